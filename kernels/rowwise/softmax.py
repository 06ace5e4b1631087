"""Softmax of each row:  y = exp(x - max x) / sum exp(x - max x).

Written out in PyTorch, every step goes through memory:

    unfused   max: read x | subtract: read x, write s | exp: read s, write e | sum: read e | divide: read e, write y
                                                                              16 B/element in 16 bits, five launches
    fused     read x once, keep the exponentials in registers, write y         4 B/element, one launch

A row of up to 12288 columns stays in the registers of the program that owns it, and two of up to 10240 in the backward
pass; wider rows are in softmax_wide.py. Whatever the width, threads move 16 bytes at a time: kernels/rowwise/pieces.py.

The backward pass needs y alone: grad_x = y (grad_y - sum(y grad_y)), 6 B/element.

Source: torch.nn.functional.softmax; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import as_rows, check_alike, check_columns
from kernels.online_softmax import LOG2_E
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import softmax_wide
from kernels.rowwise.pieces import (
    arithmetic,
    columns_inside,
    load_pieces,
    pieces_of,
    pointers,
    row_launch,
    row_max,
    row_sum,
    rows_from,
)
from kernels.vectors import elements_before, vectors_of_rows

WIDEST_BLOCK = 12288  # elements of a row that one program holds in registers, of one tensor
WIDEST_BACKWARD = 10240  # columns of each of two rows, whose vectors have 8 elements
WIDEST_BACKWARD_BYTES = 65536  # of others


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    # Lanes past the row's end hold -inf, whose exponential adds nothing.
    x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, row < rows, -float("inf"))
    top = row_max(x).to(COMPUTE)
    e = ()
    for i in tl.static_range(len(x)):
        e = e + (tl.exp2((x[i].to(COMPUTE) - top) * LOG2_E),)
    scale = 1.0 / row_sum(e)
    out = pointers(y_ptr, row * cols, lead, cols, PIECES)
    for i in tl.static_range(len(x)):
        tl.store(out[i], (e[i] * scale).to(y_ptr.dtype.element_ty), mask=(row < rows) & inside[i])


@triton.jit
def softmax_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    lead = elements_before(row * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    grad_y = load_pieces(pointers(grad_y_ptr, row * grad_y_row_stride, lead, cols, PIECES), inside, row < rows, 0.0)
    y = load_pieces(pointers(y_ptr, row * cols, lead, cols, PIECES), inside, row < rows, 0.0)
    both = ()
    for i in tl.static_range(len(y)):
        both = both + (y[i].to(COMPUTE) * grad_y[i].to(COMPUTE),)
    mean = row_sum(both)
    out = pointers(grad_x_ptr, row * cols, lead, cols, PIECES)
    for i in tl.static_range(len(y)):
        grad_x = y[i].to(COMPUTE) * (grad_y[i].to(COMPUTE) - mean)
        tl.store(out[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=(row < rows) & inside[i])


def _forward(x: torch.Tensor) -> torch.Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            softmax_wide.forward(x, y)
        else:
            programs, chosen = row_launch(rows, cols)
            options = {"PIECES": pieces_of(x, as_rows(y)), "COMPUTE": arithmetic(x.dtype), **chosen}
            softmax_kernel[(programs,)](x, y, rows, cols, x.stride(0), **options)
    return y


def _backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grad_x = torch.empty_like(y)
    if y.numel() == 0:
        return grad_x
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    with torch.cuda.device_of(y):
        pieces = pieces_of(grad_y, as_rows(y), as_rows(grad_x))
        if cols > WIDEST_BACKWARD if pieces[2] == 8 else cols * y.itemsize > WIDEST_BACKWARD_BYTES:
            softmax_wide.backward(grad_y, y, grad_x)
        else:
            programs, chosen = row_launch(rows, cols, tensors=2)
            options = {"PIECES": pieces, "COMPUTE": arithmetic(y.dtype), **chosen}
            softmax_backward_kernel[(programs,)](grad_y, y, grad_x, rows, cols, grad_y.stride(0), **options)
    return grad_x


softmax_op = register(
    "softmax",
    _forward,
    like,
    keep=lambda arguments, y: (y,),
    backward=_backward,
    backward_fake=lambda grad_y, y: like(y),
)


@planned
def softmax(x: torch.Tensor) -> torch.Tensor:
    """The softmax over the last dimension in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.

    Returns:
        A contiguous tensor of x's shape and dtype, whatever autocast says. The arithmetic is fp32 (fp64 for fp64
        inputs), rounded once. A row of nothing but -inf, with NaN or with inf in it is NaN, as in PyTorch.

    Raises:
        TypeError: x is not a floating-point tensor.
        ValueError: x has no dimension, or is on the CPU where kernels run on a GPU.
    """
    check_alike("softmax", x=x)
    check_columns("softmax", x)
    return softmax_op(x)


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, whose own softmax is one launch already."""
    return torch.nn.functional.softmax(x, dim=-1)


def softmax_unfused(x: torch.Tensor) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


def softmax_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: a comparison, subtraction, exponential, addition and product each; x in, y out, once."""
    elements = torch.Size(shape).numel()
    moved = elements * dtype.itemsize
    return Work(flops=costs.SOFTMAX * elements, bytes_read=moved, bytes_written=moved)


def softmax_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient: two products, an addition, a subtraction; two tensors in, one out."""
    elements = torch.Size(shape).numel()
    return Work(flops=4 * elements, bytes_read=2 * elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, compute = torch.empty(shape, dtype=dtype, device="meta"), arithmetic(dtype)
    if cols > WIDEST_BLOCK:
        vectors = vectors_of_rows(x)
        return (x, x, cols, cols, *vectors), {"COMPUTE": compute, **softmax_wide.settings(cols, dtype, *vectors)}
    return (x, x, rows, cols, cols), {"PIECES": pieces_of(x), "COMPUTE": compute, **row_launch(rows, cols)[1]}


OP = FusedOp(
    name="softmax",
    fused=softmax,
    reference=softmax_reference,
    work=softmax_work,
    kernel=softmax_kernel,
    settings=row_launch,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=(
        (128, 8192),
        (32768, 1024),
        (32768, 4096),
        (32768, 8192),
        (32768, 16384),
        (16384, 32768),
        (8192, 65536),
        (4096, 131072),
    ),
    backward_work=softmax_backward_work,
    kernel_for=lambda *shape: softmax_kernel if shape[-1] <= WIDEST_BLOCK else softmax_wide.softmax_wide_kernel,
)
