"""Record the Triton kernels that a function launches."""

import contextlib
from typing import NamedTuple

from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction


class Launch(NamedTuple):
    """One launch, its arguments by place, the rest and the launch options by name; `loaded`: None if interpreted."""

    kernel: JITFunction
    grid: tuple
    arguments: tuple
    options: dict
    loaded: CompiledKernel | None


@contextlib.contextmanager
def triton_launches():
    """Yield a list of every Launch made in this context."""
    seen, run = [], JITFunction.run

    def listening(self, *args, grid, warmup, **options):
        loaded = run(self, *args, grid=grid, warmup=warmup, **options)
        seen.append(Launch(self, grid, args, options, loaded))
        return loaded

    JITFunction.run = listening
    try:
        yield seen
    finally:
        JITFunction.run = run
