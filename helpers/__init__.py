"""The lab bench, in four rooms: instruments, figures, learning, grading. A room's names are imported from the room."""

import importlib
import sys
from collections.abc import Callable

from kernels.interpreter import runtime as runtime  # a learner's @triton.jit works from the first import on, GPU or not

# Imported by jsonschema, and so by all that reads notebooks, it builds 38 grammars for 1.5 s: of addresses in letters
# beyond ASCII, which are in no notebook's format. Where it is missing, jsonschema goes without.
sys.modules.setdefault("rfc3987_syntax", None)


def room(package: str, names: dict[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A room's `__getattr__` and `__dir__`: each name is loaded on first use, so that one instrument loads no other.

    Args:
        package: the room's own name, such as "helpers.instruments".
        names: module of the room -> the names that it gives the room, separated by spaces.
    """
    homes = {name: module for module, given in names.items() for name in given.split()}

    def get(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(homes))}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted(homes)
