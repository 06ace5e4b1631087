"""Softmax of each row:  y = exp(x - max x) / sum exp(x - max x).

Unfused in PyTorch, every step goes through memory:

    unfused   max: read x | subtract: read x, write s | exp: read s, write e | sum: read e | divide: read e, write y
                                                                              16 B/element in 16 bits, five launches
    fused     read x once, keep the exponentials in registers, write y         4 B/element, one launch

A row of up to 32768 columns stays in the registers of its program. A wider row is read twice: once for its maximum and
sum together (online softmax), and once to write y.

The backward pass needs only y: grad_x = y (grad_y - sum(y grad_y)), 6 B/element. It keeps two rows of up to 16384
columns in registers.

Source: torch.nn.functional.softmax; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import as_rows, check_alike, check_columns, refuse
from kernels.online_softmax import LOG2_E, absorb
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import CHUNK, MAX_COLUMNS, compute_dtype, row_settings, row_sum


@triton.jit
def row_max(x0, x1):
    """Return the maximum of each row's HEAD x0 and TAIL x1, as row_sum returns their sum."""
    if x0.shape[0] == 1 and x0.shape[1] <= 4 * x1.shape[1]:
        x1 = tl.maximum(x1, tl.max(tl.reshape(x0, (1, x0.shape[1] // x1.shape[1], x1.shape[1])), axis=1))
        return tl.max(x1, axis=1, keep_dims=True)
    return tl.maximum(tl.max(x0, axis=1, keep_dims=True), tl.max(x1, axis=1, keep_dims=True))


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,  # columns that every row has, a power of two
    TAIL: tl.constexpr,  # a power of two, at least the remaining columns
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides; the compiler, told so, loads 16 bytes at a time
):
    cols, x_row_stride = cols // ALIGN * ALIGN, x_row_stride // ALIGN * ALIGN
    # int64 before the multiplication: row numbers and row * stride pass 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    col = tl.arange(0, HEAD)[None, :]
    tail_col = HEAD + tl.arange(0, TAIL)[None, :]
    in_tail = (row < rows) & (tail_col < cols)
    x = tl.load(x_ptr + col, mask=row < rows, other=0.0)
    # Positions past the row's end hold -inf, which changes no maximum and whose exponential adds nothing.
    x_tail = tl.load(x_ptr + tail_col, mask=in_tail, other=-float("inf"))
    top = row_max(x, x_tail).to(COMPUTE)
    e = tl.exp2((x.to(COMPUTE) - top) * LOG2_E)
    e_tail = tl.exp2((x_tail.to(COMPUTE) - top) * LOG2_E)
    scale = 1.0 / row_sum(e, e_tail)
    tl.store(y_ptr + col, (e * scale).to(y_ptr.dtype.element_ty), mask=row < rows)
    tl.store(y_ptr + tail_col, (e_tail * scale).to(y_ptr.dtype.element_ty), mask=in_tail)


@triton.jit
def softmax_online_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    cols,
    x_row_stride,
    BLOCK: tl.constexpr,  # columns at a time
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    peak, total = tl.full((1,), -float("inf"), COMPUTE), tl.zeros((1,), COMPUTE)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(COMPUTE)
        peak, total = absorb(peak, total, x)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < cols).to(COMPUTE)
        tl.store(y_ptr + col, (tl.exp(x - peak) / total).to(y_ptr.dtype.element_ty), mask=col < cols)


def settings(rows: int, cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return row_settings; where rows are few, half as many share a program: 0.76 to 0.89 of the time (H100, bf16)."""
    chosen = row_settings(cols, dtype, strides=strides)
    return {**chosen, "BLOCK_ROWS": triton.cdiv(chosen["BLOCK_ROWS"], 2 if rows < 4096 else 1)}


def _forward(x: torch.Tensor) -> torch.Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols <= MAX_COLUMNS:
            chosen = settings(rows, cols, x.dtype, x.stride(0))
            programs = triton.cdiv(rows, chosen["BLOCK_ROWS"])
            softmax_kernel[(programs,)](x, y, rows, cols, x.stride(0), **chosen)
        else:
            softmax_online_kernel[(rows,)](x, y, cols, x.stride(0), **_in_chunks(x.dtype))
    return y


def _in_chunks(dtype: torch.dtype) -> dict:
    return {"BLOCK": CHUNK, "COMPUTE": compute_dtype(dtype), "num_warps": 8}


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """Compute the same in PyTorch, whose own softmax is already one launch."""
    return torch.nn.functional.softmax(x, dim=-1)


@triton.jit
def softmax_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,  # divides cols and the row stride
):
    cols, grad_y_row_stride = cols // ALIGN * ALIGN, grad_y_row_stride // ALIGN * ALIGN
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    grad_y_ptr += row * grad_y_row_stride
    y_ptr += row * cols
    grad_x_ptr += row * cols
    col = tl.arange(0, HEAD)[None, :]
    tail_col = HEAD + tl.arange(0, TAIL)[None, :]
    in_tail = (row < rows) & (tail_col < cols)
    grad_y = tl.load(grad_y_ptr + col, mask=row < rows, other=0.0).to(COMPUTE)
    y = tl.load(y_ptr + col, mask=row < rows, other=0.0).to(COMPUTE)
    grad_y_tail = tl.load(grad_y_ptr + tail_col, mask=in_tail, other=0.0).to(COMPUTE)
    y_tail = tl.load(y_ptr + tail_col, mask=in_tail, other=0.0).to(COMPUTE)
    dot = row_sum(y * grad_y, y_tail * grad_y_tail)
    grad_x, grad_x_tail = y * (grad_y - dot), y_tail * (grad_y_tail - dot)
    tl.store(grad_x_ptr + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=row < rows)
    tl.store(grad_x_ptr + tail_col, grad_x_tail.to(grad_x_ptr.dtype.element_ty), mask=in_tail)


@triton.jit
def softmax_backward_in_chunks_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    cols,
    grad_y_row_stride,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_y_ptr += row * grad_y_row_stride
    y_ptr += row * cols
    grad_x_ptr += row * cols
    products = tl.zeros((BLOCK,), COMPUTE)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        products += tl.load(y_ptr + col, mask=col < cols, other=0.0).to(COMPUTE) * grad_y
    dot = tl.sum(products, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols).to(COMPUTE)
        grad_x = tl.load(y_ptr + col, mask=col < cols).to(COMPUTE) * (grad_y - dot)
        tl.store(grad_x_ptr + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)


def backward_settings(rows: int, cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return the backward's settings for rows of `cols` columns: 48 to 96 elements per thread, both tensors together.
    Few rows of up to 512 columns in one block by 4 warps take 0.93 to 0.97 of the time (H100, bf16)."""
    chosen = row_settings(cols, dtype, strides=strides)
    if rows < 4096 and cols in (64, 128, 256, 512):
        return chosen | {"HEAD": cols, "TAIL": 1, "BLOCK_ROWS": min(8, 1024 // cols), "num_warps": 4}
    held = 2 * chosen["BLOCK_ROWS"] * (chosen["HEAD"] + chosen["TAIL"])
    return {**chosen, "num_warps": min(32, triton.next_power_of_2(triton.cdiv(held, 3072)))}


def _backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grad_x = torch.empty_like(y)
    if y.numel() == 0:
        return grad_x
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    with torch.cuda.device_of(y):
        if cols <= MAX_COLUMNS // 2:
            chosen = backward_settings(rows, cols, y.dtype, grad_y.stride(0))
            programs = triton.cdiv(rows, chosen["BLOCK_ROWS"])
            softmax_backward_kernel[(programs,)](grad_y, y, grad_x, rows, cols, grad_y.stride(0), **chosen)
        else:
            arguments = grad_y, y, grad_x, cols, grad_y.stride(0)
            softmax_backward_in_chunks_kernel[(rows,)](*arguments, **_in_chunks(y.dtype))
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
def softmax(x: torch.Tensor, **more) -> torch.Tensor:
    """Take the softmax over the last dimension in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; non-adjacent columns are copied first.

    Returns:
        A contiguous tensor of x's shape and dtype, even under autocast. The arithmetic is fp32 (fp64 for fp64 inputs),
        rounded once. A row of only -inf, or one that contains NaN or inf, becomes NaN, as in PyTorch.

    Raises:
        TypeError: x is not a floating-point tensor, or `more` is given.
        ValueError: x has no dimension, or is on the CPU where kernels run on a GPU.
    """
    refuse("softmax", more)
    check_alike("softmax", x=x)
    check_columns("softmax", x)
    return softmax_op(x)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    if cols > MAX_COLUMNS:
        return (x, x, cols, cols), _in_chunks(dtype)
    return (x, x, rows, cols, cols), settings(rows, cols, dtype)


OP = FusedOp(
    name="softmax",
    fused=softmax,
    reference=softmax_reference,
    work=work_per_element(costs.SOFTMAX, tensors=(1, 1)),
    kernel=softmax_kernel,
    settings=settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options),),
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
    backward_work=work_per_element(4, tensors=(2, 1)),
    kernel_for=lambda *shape: softmax_kernel if shape[-1] <= MAX_COLUMNS else softmax_online_kernel,
)
