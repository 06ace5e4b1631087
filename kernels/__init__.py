"""The fused kernels of the course.

`CATALOGUE` maps each name to its FusedOp: every file in `elementwise/`, `rowwise/` and `tiled/` that defines `OP` is
in it. The public functions, such as `kernels.add_gelu`, are their `fused`; modules, such as `kernels.LayerNorm`, stand
in the same files. All load on first use, so that importing one kernel imports no other.
"""

import functools
import importlib
import re
from pathlib import Path

from kernels.interpreter import runtime as runtime  # before any kernel is launched: it decides where launches go


@functools.cache
def _operations() -> dict[str, str]:
    """Name -> module of each file that defines an operation; what stands beside it for special sizes does not."""
    files = sorted(Path(__file__).parent.glob("*/*.py"), key=lambda path: path.stem)
    return {
        path.stem: f"kernels.{path.parent.name}.{path.stem}"
        for path in files
        if "\nOP = FusedOp(" in path.read_text(encoding="utf-8")
    }


@functools.cache
def _modules() -> dict[str, str]:
    """Name -> module of each torch.nn.Module in those files."""
    folder = Path(__file__).parent.parent
    return {
        name: module
        for module in _operations().values()
        for name in re.findall(
            r"^class (\w+)\(", (folder / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"), re.M
        )
    }


def __getattr__(name: str):
    if name == "CATALOGUE":
        found = {each: importlib.import_module(module).OP for each, module in _operations().items()}
    elif name in _operations():
        found = importlib.import_module(_operations()[name]).OP.fused
    elif name in _modules():
        found = getattr(importlib.import_module(_modules()[name]), name)
    else:
        raise AttributeError(f"module 'kernels' has no attribute {name!r}; its kernels are {', '.join(_operations())}")
    globals()[name] = found
    return found


def __dir__():
    return ["CATALOGUE", *_operations(), *_modules(), "runtime"]
