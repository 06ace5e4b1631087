"""The course's tools, in four packages: instruments, figures, learning, grading. Import names from the package.

Without a GPU, a learner's own @triton.jit kernels run as soon as Triton is imported, by the learner or by one of the
packages. kernels.interpreter is only loaded then, because a lesson's first cell asks a question and
needs neither.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys


class _LoaderOfTriton(importlib.abc.Loader):
    """Triton's own loader, followed by the import of kernels.interpreter."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        self._loader.exec_module(module)
        importlib.import_module("kernels.interpreter.runtime")

    def __getattr__(self, name: str):  # everything else that a loader provides, such as the source for linecache
        return getattr(self._loader, name)


class _FinderOfTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "triton":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _LoaderOfTriton(spec.loader)
        return spec


if "triton" in sys.modules:
    importlib.import_module("kernels.interpreter.runtime")
else:
    sys.meta_path.insert(0, _FinderOfTriton())
