"""The fused kernels of the course.

`CATALOGUE` maps each name to its FusedOp: every module in `elementwise/`, `rowwise/` and `tiled/` that defines `OP` is
in it. The public functions, such as `kernels.add_gelu`, are their `fused`. Both load on first use, so that importing
one kernel, or `kernels.runtime` alone, imports no other.
"""

import importlib
import pkgutil

from kernels import runtime as runtime  # before any kernel is launched: it decides where launches go


def _modules() -> dict[str, str]:
    """Kernel name -> module, for every kernel file below this package."""
    found = pkgutil.walk_packages(__path__, prefix="kernels.")
    return {module.name.rpartition(".")[2]: module.name for module in found if module.name.count(".") == 2}


def __getattr__(name: str):
    if name == "CATALOGUE":
        modules = {kernel: importlib.import_module(module) for kernel, module in sorted(_modules().items())}
        globals()["CATALOGUE"] = {kernel: module.OP for kernel, module in modules.items() if hasattr(module, "OP")}
        return globals()["CATALOGUE"]
    module = importlib.import_module(_modules()[name]) if name in _modules() else None
    if not hasattr(module, "OP"):
        raise AttributeError(f"module 'kernels' has no attribute {name!r}; its kernels are {', '.join(_modules())}")
    globals()[name] = module.OP.fused
    return globals()[name]


def __dir__():
    return [*globals(), "CATALOGUE", *_modules()]
