"""Fusing too much: a chain of operations and its gradient in one kernel, which keeps a row of each in registers.

Each operation is y -> silu(rms_norm(y)) on rows of COLUMNS elements. The gradient of the chain with respect to its
input walks through the operations backwards and needs what each made on the way forward:

    one piece     read x and the gradient, write the gradient of x          12 B/element in fp32, whatever the steps
    cut in p      p - 1 forward launches, which read and write a row,       12 p + 8 (p - 1) B/element
                  then p launches such as the one above, last piece first

So cutting costs memory traffic and relieves registers. `measure` times both sides of that bargain, and
`measure_limited` one kernel that is given fewer registers than it wants.
"""

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

COLUMNS = 1024
WARPS = 4  # 8 elements of a row a thread
ROWS = 2**17  # 512 MB in fp32: far beyond any L2
STEPS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24)
PIECES = (1, 2, 3, 4)
LIMITED_STEPS = 12
LIMITS = (255, 200, 168, 128, 96, 64)  # registers a thread; 128 threads at 168 make 3 blocks an SM, at 128 make 4
EPS = tl.constexpr(1e-6)


@triton.jit
def chain_forward_kernel(x_ptr, y_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    for _ in tl.static_range(STEPS):
        n = y * tl.rsqrt(tl.sum(y * y) / COLUMNS + EPS)
        y = n * tl.sigmoid(n)
    tl.store(y_ptr + offset, y)


@triton.jit
def chain_gradient_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    rows, scales = (), ()
    for _ in tl.static_range(STEPS):
        scale = tl.rsqrt(tl.sum(y * y) / COLUMNS + EPS)
        n = y * scale
        rows += (n,)  # alive until the way back comes past
        scales += (scale,)
        y = n * tl.sigmoid(n)
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        n = rows[step]
        gate = tl.sigmoid(n)
        grad *= gate * (1 + n * (1 - gate))
        grad = scales[step] * (grad - n * (tl.sum(grad * n) / COLUMNS))
    tl.store(grad_x_ptr + offset, grad)


def chain_gradient(
    x: torch.Tensor, grad_y: torch.Tensor, steps: int, pieces: int = 1, maxnreg: int | None = None
) -> torch.Tensor:
    """The gradient of `steps` operations on x, in 2 * pieces - 1 launches.

    Args:
        x, grad_y: (rows, COLUMNS), fp32, contiguous.
        steps: operations, at least `pieces`.
        pieces: the parts that the chain is cut into, as equal as can be.
        maxnreg: the most registers a thread may have; None leaves it to the compiler.
    """
    grid, options = (len(x),), {"COLUMNS": COLUMNS, "num_warps": WARPS, "maxnreg": maxnreg}
    ends = [steps * (piece + 1) // pieces for piece in range(pieces)]
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    inputs = [x]
    for length in lengths[:-1]:
        inputs.append(torch.empty_like(x))
        chain_forward_kernel[grid](inputs[-2], inputs[-1], STEPS=length, **options)
    grad = grad_y
    for source, length in zip(reversed(inputs), reversed(lengths), strict=True):
        grad_x = torch.empty_like(x)
        chain_gradient_kernel[grid](source, grad, grad_x, STEPS=length, **options)
        grad = grad_x
    return grad


def measure(rows: int = ROWS) -> dict[int, dict[int, Timing]]:
    """Steps -> pieces -> time on the GPU."""
    x, grad_y = torch.randn(2, rows, COLUMNS, device="cuda")
    return {
        steps: benchmark_together(
            {
                pieces: lambda steps=steps, pieces=pieces: chain_gradient(x, grad_y, steps, pieces)
                for pieces in PIECES
                if pieces <= steps
            },
            runs=20,
        )
        for steps in STEPS
    }


def measure_limited(rows: int = ROWS) -> dict[int, Timing]:
    """The most registers a thread -> time on the GPU of LIMITED_STEPS steps in one piece."""
    x, grad_y = torch.randn(2, rows, COLUMNS, device="cuda")
    return benchmark_together(
        {most: lambda most=most: chain_gradient(x, grad_y, LIMITED_STEPS, maxnreg=most) for most in LIMITS}, runs=20
    )
