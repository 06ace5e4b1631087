"""Kernels with a line of theirs changed: what the compiler would make of them without a trick against it."""

import importlib.util
import inspect
from pathlib import Path

from triton.runtime.jit import JITFunction


def rewritten(kernel: JITFunction, folder: Path, before: str = "", after: str = "", **functions: JITFunction):
    """`kernel` with the text `after` in place of `before`, and with these functions under the names that it calls.

    Raises:
        ValueError: the kernel's source has not got `before`.
    """
    source = inspect.getsource(kernel.fn)
    if before not in source:
        raise ValueError(f"{kernel.__name__} has no line {before!r}: rewrite one that it has")
    path = folder / f"{kernel.__name__}_rewritten.py"
    path.write_text(f"from {kernel.fn.__module__} import *\n\n\n{source.replace(before, after) if before else source}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, function in functions.items():
        setattr(module, name, function)
    return getattr(module, kernel.__name__)
