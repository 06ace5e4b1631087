"""Time the caller's cost of a launch alone: empty kernels that take the arguments of a call's real kernels."""

import ast
from collections.abc import Callable

from triton.runtime.jit import JITFunction

from benchmarks.triton_launches import triton_launches


def emptied(kernel: JITFunction) -> JITFunction:
    """Return a kernel with the same parameters that does nothing."""
    tree = kernel.parse()
    tree.body[0].body = [ast.Pass()]
    empty = type(kernel)(kernel.fn)
    empty._unsafe_update_src(ast.unparse(tree))
    return empty


def bare_launches(call: Callable) -> Callable:
    """Return the Triton launches of `call`, which is called once, with empty kernels: by Triton's own launcher, on the
    same grids, with the same arguments and options. Nothing is checked, chosen or allocated."""
    with triton_launches() as seen:
        call()
    launches = [(emptied(each.kernel), each) for each in seen]

    def bare() -> None:
        for empty, launch in launches:
            empty.run(*launch.arguments, grid=launch.grid, warmup=False, **launch.options)

    return bare
