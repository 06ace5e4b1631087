"""Other people's versions of the catalogue's operations, timed beside ours and eager PyTorch and torch.compile.

A module a library or family of operations; each has `peers(name, inputs)`, which gives label -> function of the same
arguments for the operation of that name: empty for another operation, where the library is not installed, or where it
refuses these inputs.
"""

import importlib
import pkgutil
from collections.abc import Callable


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Label -> function of `inputs`, from every module here, for the catalogue's operation `name`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {label: function for module in modules for label, function in module.peers(name, inputs).items()}
