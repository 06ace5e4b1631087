"""What launching alone costs a caller: empty kernels with the arguments that a call gives its own."""

import ast
from collections.abc import Callable

from triton.runtime.jit import JITFunction

from kernels.launching import triton_run


def emptied(kernel: JITFunction) -> JITFunction:
    """A kernel of the same parameters that does nothing."""
    tree = kernel.parse()
    tree.body[0].body = [ast.Pass()]
    empty = type(kernel)(kernel.fn)
    empty._unsafe_update_src(ast.unparse(tree))
    return empty


def bare_launches(call: Callable) -> Callable:
    """As many launches as `call`, which is called once, makes of Triton's kernels: by Triton's own launcher, of empty
    kernels, on the same grids, with the same arguments and options. Nothing is checked, chosen or allocated."""
    launches, run = [], JITFunction.run

    def listening(self, *args, grid, warmup, **options):
        launches.append((emptied(self), args, options | {"grid": grid, "warmup": warmup}))
        return run(self, *args, grid=grid, warmup=warmup, **options)

    JITFunction.run = listening
    try:
        call()
    finally:
        JITFunction.run = run

    def bare() -> None:
        for kernel, args, options in launches:
            triton_run(kernel, *args, **options)

    return bare
