"""Softmax of each row, then dropout, in one kernel:  y = dropout(softmax(x)), as attention applies to its scores.

    unfused   softmax: read x, write s | dropout: read s, write y and a mask of 1 B    9 B/element in 16 bits
    fused     read x, write y                                                           4 B/element, one launch

Neither the probabilities nor the mask are stored for the backward pass. It computes them again from x, from each row's
maximum and sum, and from the seed (kernels/philox.py): read x, read the gradient, write x's, 6 B/element. Rows of more
than 16384 columns are in softmax_dropout_wide.py.

Source: Vaswani et al., "Attention is all you need", arXiv:1706.03762; torch.nn.functional.dropout.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E
from kernels.philox import check_dropout, dropout_mask, kept, new_seed, scale_of_kept
from kernels.register import like, register
from kernels.rowwise import softmax_dropout_wide
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 16384  # elements of a row that one program holds in registers


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
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols and 4
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
    top = tl.max(x, axis=1)[:, None]
    e = tl.exp2((x - top) * LOG2_E)
    total = tl.sum(e, axis=1)[:, None]
    # A product, as in PyTorch: NaN stays seen where it is dropped.
    y = e * tl.where(kept(tl.load(seed_ptr), row, 0, p, BLOCK_ROWS, BLOCK_COLS), scale / total, 0.0 / total)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top, mask=row < rows)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total), mask=row < rows)


@triton.jit
def softmax_dropout_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    sums_ptr,  # (rows, 2) COMPUTE
    seed_ptr,  # (1,) int64
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols and 4
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    top = tl.load(sums_ptr + 2 * row, mask=row < rows)
    log_total = tl.load(sums_ptr + 2 * row + 1, mask=row < rows)
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
    grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
    softmax = tl.exp2((x - top) * LOG2_E - log_total)
    passed = grad_y * tl.where(kept(tl.load(seed_ptr), row, 0, p, BLOCK_ROWS, BLOCK_COLS), scale, 0.0)
    mean = tl.sum(softmax * passed, axis=1)[:, None]
    grad_x = softmax * (passed - mean)
    tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the forward, for rows of `cols` elements: softmax's, with registers left for Philox."""
    block_cols = max(4, next_power_of_2(cols))
    return {
        "BLOCK_ROWS": max(1, 1024 // block_cols),
        "BLOCK_COLS": block_cols,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 2 if block_cols <= 1024 else 4 if block_cols <= 2048 else 8 if block_cols <= 4096 else 16,
    }


def backward_settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the backward: 16 elements a thread; fewer leave too little in flight, more do not fit beside Philox."""
    block_cols = max(4, next_power_of_2(cols))
    return {
        "BLOCK_ROWS": max(1, 1024 // block_cols),
        "BLOCK_COLS": block_cols,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": max(2, block_cols // 512),
    }


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
            chosen = settings(cols, x.dtype)
            softmax_dropout_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](
                x, y, sums, seed, rows, cols, x.stride(0), float(p), scale_of_kept(p), **chosen
            )
    return y


def _forward(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    return _launch(x, None, seed, p)


def _forward_keeping_sums(x: torch.Tensor, seed: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    sums = _sums(x)
    return _launch(x, sums, seed, p), sums


def _backward(grad_y: torch.Tensor, x: torch.Tensor, sums: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return grad_x
    x, grad_y = as_rows(x), as_rows(grad_y)
    rows, cols = x.shape
    tensors, dropout = (grad_y, x, sums, seed, grad_x), (float(p), scale_of_kept(p))
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            softmax_dropout_wide.backward(*tensors, *dropout)
        else:
            chosen = backward_settings(cols, x.dtype)
            softmax_dropout_backward_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](
                *tensors, rows, cols, grad_y.stride(0), x.stride(0), *dropout, **chosen
            )
    return grad_x


softmax_dropout_op = register(
    "softmax_dropout",
    _forward,
    lambda x, seed, p: like(x),
    training=_forward_keeping_sums,
    training_fake=lambda x, seed, p: (like(x), _sums(x)),
    keep=lambda arguments, result: (arguments[0], result[1], *arguments[1:]),
    backward=_backward,
    backward_fake=lambda grad_y, x, sums, seed, p: like(x),
)


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
    return (x, x, None, seed, rows, cols, cols, 0.1, scale_of_kept(0.1)), settings(cols, dtype)


OP = FusedOp(
    name="softmax_dropout",
    fused=softmax_dropout,
    reference=softmax_dropout_reference,
    work=softmax_dropout_work,
    kernel=softmax_dropout_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 20000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (16384, 16384)),
    backward_work=softmax_dropout_backward_work,
    oracle=softmax_dropout_oracle,
)
