"""Other libraries' versions of the course's operations, timed next to ours, eager PyTorch and torch.compile.

There is one module per library or family of operations. Its `peers(name, inputs)` returns label -> function of the same
arguments for the operation of that name; it is empty for other operations, or if the library is not installed. A peer
that does not support these inputs raises when called.
"""

import importlib
import pkgutil
from collections.abc import Callable

import torch


def offered(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return label -> function of `inputs`, from every module here, for the catalogue's operation `name`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {label: function for module in modules for label, function in module.peers(name, inputs).items()}


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return those of `offered` that support these inputs."""
    return {label: function for label, function in offered(name, inputs).items() if _takes(function, inputs)}


def _takes(function: Callable, inputs: tuple) -> bool:
    try:
        with torch.no_grad():
            function(*inputs)
    except Exception:  # a library's compiler may raise anything if a row does not fit
        return False
    return True
