"""Other people's versions of the catalogue's operations, timed beside ours and eager PyTorch and torch.compile.

A module a library or family of operations; each has `peers(name, inputs)`, which gives label -> function of the same
arguments for the operation of that name: empty for another operation, or where the library is not installed. One that
refuses these inputs raises when it is called.
"""

import importlib
import pkgutil
from collections.abc import Callable

import torch


def offered(name: str, inputs: tuple) -> dict[str, Callable]:
    """Label -> function of `inputs`, from every module here, for the catalogue's operation `name`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {label: function for module in modules for label, function in module.peers(name, inputs).items()}


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Those of `offered` that take these inputs."""
    return {label: function for label, function in offered(name, inputs).items() if _takes(function, inputs)}


def _takes(function: Callable, inputs: tuple) -> bool:
    try:
        with torch.no_grad():
            function(*inputs)
    except Exception:  # a library's compiler raises what it likes where a row does not fit
        return False
    return True
