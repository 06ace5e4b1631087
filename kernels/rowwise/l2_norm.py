"""L2 normalisation of each row:  y = x / max(||x||, eps).

Written out in PyTorch, x is read twice and its squares are written and read between:

    unfused   x*x: read x, write squares | sum: read squares | x/norm: read x, write y    20 B/element in fp32
    fused     read x once, keep the row in registers, write y once                         8 B/element in fp32

The row is the unit of work: one program owns BLOCK_ROWS whole rows, so the sum never leaves its registers
and no two programs have to agree on anything. Rows beyond 32768 elements are in l2_norm_wide.py.

Source: torch.nn.functional.normalize (p=2).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import MULTIPROCESSORS, as_rows, check_alike, check_columns, largest_power_of_2, multiprocessors
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import l2_norm_wide
from kernels.rowwise.pieces import (
    arithmetic,
    blocks,
    columns_inside,
    load_pieces,
    pieces_of,
    pointers,
    row_launch,
    row_sum,
    rows_from,
)
from kernels.vectors import elements_before

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


@triton.jit
def l2_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
    x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, row < rows, 0.0)
    squares = ()
    for i in tl.static_range(len(x)):
        squares = squares + (x[i].to(COMPUTE) * x[i].to(COMPUTE),)
    norm = tl.sqrt(row_sum(squares))
    # tl.maximum would drop a NaN.
    divisor = tl.where(norm < eps, eps, norm)
    out = pointers(y_ptr, row * cols, lead, cols, PIECES)
    for i in tl.static_range(len(x)):
        y = x[i].to(COMPUTE) / divisor
        tl.store(out[i], y.to(y_ptr.dtype.element_ty), mask=(row < rows) & inside[i])


@cache
def launch_of(rows: int, cols: int, sms: int) -> tuple[int, dict]:
    """How many programs, and their settings, for rows of at most WIDEST_BLOCK elements.

    cols: in whole vectors; a rim beside them costs next to nothing.
    No more rows than the GPU has SMs: each has a program of its own, with 16 elements a thread. More than 8192 elements
    take 16 warps at least.
    """
    held = sum(blocks(cols))
    if rows <= sms:
        return rows, {"BLOCK_ROWS": 1, "num_warps": min(32, max(4, largest_power_of_2(held // 512)))}
    programs, chosen = row_launch(rows, cols)
    return programs, chosen if held <= 8192 else {**chosen, "num_warps": max(16, chosen["num_warps"])}


def _forward(x: torch.Tensor, eps: float) -> torch.Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            l2_norm_wide.forward(x, y, eps)
        else:
            pieces = pieces_of(x, as_rows(y))
            programs, chosen = launch_of(rows, cols // pieces[2] * pieces[2], multiprocessors(x))
            options = {"PIECES": pieces, "COMPUTE": arithmetic(x.dtype), **chosen}
            l2_norm_kernel[(programs,)](x, y, rows, cols, x.stride(0), eps, **options)
    return y


l2_norm_op = register("l2_norm", _forward, lambda x, eps: like(x))


@planned
def l2_norm(x: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """Divide each row of `x` by its Euclidean norm, in one launch. Not differentiable.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        eps: the least divisor, as fp32; a row of zeros stays zero, and is NaN where eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once.

    Raises:
        TypeError: x is not a floating-point tensor.
        ValueError: x has no dimension, or is on the CPU where kernels run on a GPU.
    """
    check_alike("l2_norm", x=x)
    check_columns("l2_norm", x)
    return l2_norm_op(x, eps)


def l2_norm_reference(x: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    norm = (x * x).sum(dim=-1, keepdim=True).sqrt()
    return x / norm.clamp_min(eps)


def l2_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: multiply, add and divide per element; x in once, y out once."""
    elements = torch.Size(shape).numel()
    return Work(flops=3 * elements, bytes_read=elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x = torch.empty(shape, dtype=dtype, device="meta")
    pieces = pieces_of(x)
    chosen = launch_of(rows, cols // pieces[2] * pieces[2], MULTIPROCESSORS)[1]
    return (x, x, rows, cols, cols, 1e-12), {"PIECES": pieces, "COMPUTE": arithmetic(dtype), **chosen}


OP = FusedOp(
    name="l2_norm",
    fused=l2_norm,
    reference=l2_norm_reference,
    work=l2_norm_work,
    kernel=l2_norm_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
)
