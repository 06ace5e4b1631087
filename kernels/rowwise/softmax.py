"""Softmax of each row:  y = exp(x - max x) / sum exp(x - max x).

Written out in PyTorch, every step goes through memory:

    unfused   max: read x | subtract: read x, write s | exp: read s, write e | sum: read e | divide: read e, write y
                                                                              16 B/element in 16 bits, five launches
    fused     read x once, keep the exponentials in registers, write y         4 B/element, one launch

A row of up to WIDEST_BLOCK columns stays in the registers of the program that owns it. A wider row is read twice: once
for its maximum and sum, which one pass finds together (kernels/online_softmax.py), and once more, from its end back to
its start, to write y. What was read last is still in the L1 cache, so that memory sees little of the second read: by
an H200's counters 16 % of it at 65536 columns, 58 % at 131072 where no chunk was kept.

The backward pass needs y alone: grad_x = y (grad_y - sum(y grad_y)), 6 B/element. Beyond 8192 columns y and its
gradient are asked for again after the sum, and the L1 cache answers: held in registers, they would leave an SM half the
warps.

Source: torch.nn.functional.softmax; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.arguments import as_rows, check_alike, check_columns
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 16384  # elements of a row that one program holds in registers


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    # Lanes past the row's end hold -inf, whose exponential adds nothing.
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
    e = tl.exp2((x - tl.max(x, axis=1)[:, None]) * LOG2_E)
    y = e * (1.0 / tl.sum(e, axis=1))[:, None]
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    cols,
    x_row_stride,
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    KEEPS_LAST: tl.constexpr,  # whether the last chunk stays in registers, packed, and is not read again
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    last = (tl.cdiv(cols, CHUNK) - 1) * CHUNK
    end = last if KEEPS_LAST else last + CHUNK  # of what is read twice
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, end, CHUNK):
        col = start + place
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
        peak, total = absorb(peak, total, x)
    if KEEPS_LAST:
        col = last + place
        kept = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_first")
        peak, total = absorb(peak, total, kept.to(COMPUTE))
    top, total = combine(peak, total)
    shift = tl.log2(total)  # dividing by the total is subtracting its logarithm, and costs no operation more
    if KEEPS_LAST:
        y = tl.exp2((kept.to(COMPUTE) - top) * LOG2_E - shift)
        tl.store(
            y_ptr + last + place, y.to(y_ptr.dtype.element_ty), mask=last + place < cols, eviction_policy="evict_first"
        )
    for back in tl.range(0, end, CHUNK):
        col = end - CHUNK - back + place
        x = tl.load(x_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        y = tl.exp2((x - top) * LOG2_E - shift)
        # What is written should not drive out of the L1 cache what is still to be read again.
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < cols, eviction_policy="evict_first")


@triton.jit
def softmax_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    AGAIN: tl.constexpr,  # whether to ask for the row again instead of holding it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    first: tl.constexpr = "evict_last" if AGAIN else ""
    grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0, eviction_policy=first)
    grad_y = grad_y.to(COMPUTE)
    y = tl.load(y_ptr + row * cols + col, mask=inside, other=0.0, eviction_policy=first).to(COMPUTE)
    mean = tl.sum(y * grad_y, axis=1)[:, None]
    if AGAIN:
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, eviction_policy="evict_first")
        grad_y = grad_y.to(COMPUTE)
        y = tl.load(y_ptr + row * cols + col, mask=inside, eviction_policy="evict_first").to(COMPUTE)
    last: tl.constexpr = "evict_first" if AGAIN else ""  # what is written should not drive out what is asked for again
    grad_x = (y * (grad_y - mean)).to(grad_x_ptr.dtype.element_ty)
    tl.store(grad_x_ptr + row * cols + col, grad_x, mask=inside, eviction_policy=last)


@triton.jit
def softmax_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    cols: tl.constexpr,  # known to the compiler: where BLOCK_COLS divides it, masks go
    grad_y_row_stride,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_y_ptr += row * grad_y_row_stride
    y_ptr += row * cols
    mean = tl.zeros((1,), COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        y = tl.load(y_ptr + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        mean += tl.sum(grad_y * y, axis=0, keep_dims=True)
    last = (tl.cdiv(cols, BLOCK_COLS) - 1) * BLOCK_COLS
    for back in range(0, cols, BLOCK_COLS):
        col = last - back + tl.arange(0, BLOCK_COLS)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        y = tl.load(y_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        grad_x = y * (grad_y - mean)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of the forward for rows of `cols` elements.

    On an H200 (bf16, per cent of copy bandwidth): rows of up to 2048 share a program of 2048 elements and 2 warps (93
    at 1024 columns; 4 warps for 8 rows: 67); 4 warps hold 4096 (94), 16 hold 8192 (97) and 16384 (95). Wider rows are
    read twice by 32 warps, two rows a multiprocessor, as much as its L1 cache can have again: 94 at 32768 columns,
    where the best program that holds the row had 92, and 93 at 65536. There two rows of 131072 would be four times the
    cache, so that one is read at a time and its last 32768 columns stay in registers: 83, against 75.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        keeps_last = cols > 65536 and dtype.itemsize == 2
        each = 32 if keeps_last else 16
        return {"LANES": 1024, "EACH": each, "KEEPS_LAST": keeps_last, "COMPUTE": compute, "num_warps": 32}
    block_cols = next_power_of_2(cols)
    warps = 2 if block_cols <= 2048 else 4 if block_cols <= 4096 else 16
    return {
        "BLOCK_ROWS": max(1, 2048 // block_cols),
        "BLOCK_COLS": block_cols,
        "COMPUTE": compute,
        "num_warps": warps,
    }


def backward_settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of the backward: on an H200 (bf16, per cent of copy bandwidth) 95 at 1024 columns, 98 and more at
    4096 and 8192; asked for again 103 at 16384 (held 99). 32 warps that ask for all 32768 columns again, without masks,
    reach 102 (16 warps with masks 99, 32 with masks 83; held in registers, spilling, 92). Chunks of 16384 reach 101,
    smaller ones 98 to 73. In chunks of 64 elements a thread 94 at 65536 and 70 at 131072.

    128 rows of 8192 take 5.3 us. Neither 8 or 32 warps nor doing without masks nor asking again nor chunks of 1024 to
    4096 gain more than the 5 % by which one kernel varies.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 32768, "COMPUTE": compute, "num_warps": 32 if cols <= 32768 else 16}
    block_cols = next_power_of_2(cols)
    warps = 2 if block_cols <= 2048 else 8 if block_cols <= 4096 else 16 if block_cols <= 8192 else 32
    return {
        "BLOCK_ROWS": max(1, 2048 // block_cols),
        "BLOCK_COLS": block_cols,
        "AGAIN": block_cols > 8192,
        "COMPUTE": compute,
        "num_warps": warps,
    }


def _forward(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    chosen = settings(cols, x.dtype)
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            softmax_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](x, y, rows, cols, x.stride(0), **chosen)
        else:
            softmax_wide_kernel[(rows,)](x, y, cols, x.stride(0), **chosen)
    return y


def _backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grad_x = torch.empty_like(y)
    if y.numel() == 0:
        return grad_x
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    chosen = backward_settings(cols, y.dtype)
    with torch.cuda.device_of(y):
        if cols <= WIDEST_BLOCK:
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            softmax_backward_kernel[grid](grad_y, y, grad_x, rows, cols, grad_y.stride(0), **chosen)
        else:
            softmax_backward_wide_kernel[(rows,)](grad_y, y, grad_x, cols, grad_y.stride(0), **chosen)
    return grad_x


def _keep_y(ctx, inputs, output):
    ctx.save_for_backward(output)


class Softmax(torch.autograd.Function):
    """The operation for autograd. Calling it costs Python less than the registered operator does."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep_y)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        return _backward(grad_y, *ctx.saved_tensors)


# The same for torch.compile, which does not look inside registered operators.
softmax_op = torch.library.custom_op("kernel_fusion::softmax", _forward, mutates_args=())
softmax_backward_op = torch.library.custom_op("kernel_fusion::softmax_backward", _backward, mutates_args=())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


softmax_op.register_fake(_like)
softmax_backward_op.register_fake(lambda grad_y, y: _like(y))
softmax_op.register_autograd(lambda ctx, grad_y: softmax_backward_op(grad_y, *ctx.saved_tensors), setup_context=_keep_y)


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
    if torch.compiler.is_compiling():
        return softmax_op(x)
    return Softmax.apply(x) if torch.is_grad_enabled() and x.requires_grad else _forward(x)


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
    return Work(flops=5 * elements, bytes_read=elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def softmax_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient: two products, an addition, a subtraction; two tensors in, one out."""
    elements = torch.Size(shape).numel()
    return Work(flops=4 * elements, bytes_read=2 * elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x = torch.empty(shape, dtype=dtype, device="meta")
    sizes = (rows, cols, cols) if cols <= WIDEST_BLOCK else (cols, cols)
    return (x, x, *sizes), settings(cols, dtype)


OP = FusedOp(
    name="softmax",
    fused=softmax,
    reference=softmax_reference,
    work=softmax_work,
    kernel=softmax_kernel,
    settings=settings,
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
    kernel_for=lambda *shape: softmax_kernel if shape[-1] <= WIDEST_BLOCK else softmax_wide_kernel,
)
