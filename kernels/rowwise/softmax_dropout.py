"""Softmax of each row, then dropout, in one kernel:  y = dropout(softmax(x)), as attention applies to its scores.

    unfused   softmax: read x, write s | dropout: read s, write y and a mask of 1 B    9 B/element in 16 bits
    fused     read x, write y                                                           4 B/element, one launch

Neither the probabilities nor the mask are stored for the backward pass. It computes them again from x, from each row's
maximum and sum, and from the seed (kernels/philox.py): read x, read the gradient, write x's, 6 B/element. Rows of more
than 8192 columns are in softmax_dropout_wide.py.

Source: Vaswani et al., "Attention is all you need", arXiv:1706.03762; torch.nn.functional.dropout.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns
from kernels.online_softmax import LOG2_E
from kernels.op import FusedOp, Work, like, planned, register
from kernels.philox import check_dropout, dropout_mask, new_seed, scale_of_kept
from kernels.rowwise import softmax_dropout_wide
from kernels.rowwise.pieces import (
    arithmetic,
    columns_inside,
    kept_pieces,
    load_pieces,
    pieces_of,
    pointers,
    row_max,
    row_sum,
    rows_from,
)
from kernels.rowwise.softmax_dropout_backward import backward, launch_of
from kernels.vectors import elements_before

WIDEST_BLOCK = 8192  # elements of a row that one program holds in registers


@triton.jit
def softmax_dropout_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    seed_ptr,  # (1,) int64
    rows,
    cols,
    x_row_stride,
    p,
    scale,  # 1 / (1 - p)
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    FOURS: tl.constexpr,  # whether vectors begin with four neighbours of one evaluation: kernels/philox.py
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    here = row < rows
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, -float("inf"))
    keep = kept_pieces(tl.load(seed_ptr), row, lead, cols, p, BLOCK_ROWS, PIECES, FOURS)  # while x is on its way
    top = row_max(x).to(COMPUTE)
    e = ()
    for i in tl.static_range(len(x)):
        e = e + (tl.exp2((x[i].to(COMPUTE) - top) * LOG2_E),)
    total = row_sum(e)
    scale = scale / total  # NaN where any of the row is: it stays seen where it is dropped, as in PyTorch
    out = pointers(y_ptr, row * cols, lead, cols, PIECES)
    for i in tl.static_range(len(x)):
        y = tl.where(keep[i], e[i], 0.0) * scale
        tl.store(out[i], y.to(y_ptr.dtype.element_ty), mask=here & inside[i])
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top, mask=here)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total), mask=here)


@cache
def forward_launch_of(rows: int, cols: int, pieces: tuple[int, int, int, bool]) -> tuple[int, dict]:
    """As the backward's; 40 registers a thread let an SM have three rows of 8192 lanes of 16 bits in place of two, with
    some 20 bytes a thread spilled."""
    programs, chosen = launch_of(rows, cols, pieces)
    three_an_sm = {"maxnreg": 40} if chosen["num_warps"] == 16 and pieces[2:] == (8, False) else {}
    return programs, {**chosen, **three_an_sm}


def _sums(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.empty((*x.shape[:-1], 2), dtype=dtype, device=x.device)


def _launch(x: torch.Tensor, sums: torch.Tensor | None, seed: torch.Tensor, p: float) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            softmax_dropout_wide.forward(x, y, sums, seed, float(p), scale_of_kept(p))
        else:
            programs, chosen = forward_launch_of(rows, cols, pieces_of(x, as_rows(y)))
            sizes = rows, cols, x.stride(0), float(p), scale_of_kept(p)
            softmax_dropout_kernel[(programs,)](x, y, sums, seed, *sizes, COMPUTE=arithmetic(x.dtype), **chosen)
    return y


def _forward(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    return _launch(x, None, seed, p)


def _forward_keeping_sums(x: torch.Tensor, seed: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    sums = _sums(x)
    return _launch(x, sums, seed, p), sums


softmax_dropout_op = register(
    "softmax_dropout",
    _forward,
    lambda x, seed, p: like(x),
    training=_forward_keeping_sums,
    training_fake=lambda x, seed, p: (like(x), _sums(x)),
    keep=lambda arguments, result: (arguments[0], result[1], *arguments[1:]),
    backward=backward,
    backward_fake=lambda grad_y, x, sums, seed, p: like(x),
)


@planned
def softmax_dropout(x: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1) -> torch.Tensor:
    """dropout(softmax(x)) over the last dimension in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        seed: int64 tensor of one value on x's device: the same seed drops the same elements (see
            kernels.philox.dropout_mask). Without one, a small launch draws one from PyTorch's generator; under
            torch.compile, whose generator is another, give one to have the same as without.
        p: the probability to be dropped, 0 to 1; what stays is multiplied by 1 / (1 - p), as fp32.

    Returns:
        A contiguous tensor of x's shape and dtype, whatever autocast says. The arithmetic is fp32 (fp64 for fp64
        inputs), rounded once. A row of nothing but -inf, with NaN or with inf in it is NaN, as in PyTorch.

    Raises:
        TypeError: x is not a floating-point tensor, or seed is not int64.
        ValueError: x has no dimension, p is not of 0 to 1, or seed is not one value on x's device.
    """
    check_alike("softmax_dropout", x=x)
    check_columns("softmax_dropout", x)
    check_dropout("softmax_dropout", x, seed, p)
    seed = new_seed(x.device) if seed is None else seed
    return softmax_dropout_op(x, seed, p)


def softmax_dropout_reference(x: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory; PyTorch's generator chooses what is dropped."""
    return torch.nn.functional.dropout(torch.nn.functional.softmax(x, dim=-1), p)


def softmax_dropout_oracle(x: torch.Tensor, seed: torch.Tensor, p: float = 0.1) -> torch.Tensor:
    """The same with the elements dropped that `seed` drops."""
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    mask = dropout_mask(seed, rows, x.shape[-1], p).view(x.shape)
    return torch.nn.functional.softmax(x, dim=-1) * mask.to(x.dtype) * scale_of_kept(p)


def softmax_dropout_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 6 operations an element, no random numbers counted; x and the seed in, y out, once."""
    elements = torch.Size(shape).numel()
    return Work(flops=6 * elements, bytes_read=elements * dtype.itemsize + 8, bytes_written=elements * dtype.itemsize)


def softmax_dropout_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient: 8 operations an element; x, y's gradient, two fp32 values a row and the
    seed in, x's gradient out, once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    rows = elements // shape[-1] if elements else 0
    return Work(flops=8 * elements, bytes_read=2 * elements * size + 8 * rows + 8, bytes_written=elements * size)


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, device=device, **options), new_seed(device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, seed = torch.empty(shape, dtype=dtype, device="meta"), torch.empty((), dtype=torch.int64, device="meta")
    chosen = {"COMPUTE": arithmetic(dtype), **forward_launch_of(rows, cols, pieces_of(x))[1]}
    return (x, x, None, seed, rows, cols, cols, 0.1, scale_of_kept(0.1)), chosen


OP = FusedOp(
    name="softmax_dropout",
    fused=softmax_dropout,
    reference=softmax_dropout_reference,
    work=softmax_dropout_work,
    kernel=softmax_dropout_kernel,
    settings=forward_launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 20000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (16384, 16384)),
    backward_work=softmax_dropout_backward_work,
    oracle=softmax_dropout_oracle,
)
