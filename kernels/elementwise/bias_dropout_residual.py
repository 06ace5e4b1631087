"""The end of a transformer's sublayer in one kernel:  y = residual + dropout(x + bias).

Unfused, every step goes through memory, and dropout stores its mask for the backward pass:

    unfused   add: read x, write t | dropout: read t, write d and a mask of 1 B | add: read d, residual, write y
                                                                              15 B/element in 16 bits, three launches
    fused     read x, read residual, write y                                   6 B/element, one launch

No mask is stored. kernels/philox.py computes it from seed, row and column, in the forward pass and again in the
backward pass. The backward pass reads y's gradient and writes x's, 4 B/element; residual's gradient is y's own. Each
program also sums the bias's gradient over its rows, in fp32. A small launch adds up these sums, unless each program
takes all rows of its columns. It uses no atomics, so gradients are identical in every run.

Source: Vaswani et al., "Attention is all you need", arXiv:1706.03762, section 5.4.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, check_alike, check_columns, in_widest, multiprocessors, next_power_of_2
from kernels.op import FusedOp, Work, like, planned, register
from kernels.philox import check_dropout, dropout_mask, kept, kept_at, new_seed, scale_of_kept
from kernels.rowwise.sums import sums_of_programs


@triton.jit
def bias_dropout_residual_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    bias_ptr,  # (cols,), contiguous, any floating-point dtype
    residual_ptr,  # (rows, cols), x's dtype, any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    residual_row_stride,
    p,
    scale,  # 1 / (1 - p)
    blocks_in_row,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    FOURS: tl.constexpr,  # 4 divides cols, so four neighbours share one evaluation of Philox
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    program = tl.program_id(0).to(tl.int64)
    row, first = program // blocks_in_row, program % blocks_in_row * BLOCK
    col = tl.arange(0, BLOCK)[None, :]  # from `first` on
    inside = col < cols - first
    x = tl.load(x_ptr + row * x_row_stride + first + col, mask=inside).to(COMPUTE)
    residual = tl.load(residual_ptr + row * residual_row_stride + first + col, mask=inside).to(COMPUTE)
    bias = tl.load(bias_ptr + first + col, mask=inside).to(COMPUTE)
    seed = tl.load(seed_ptr)
    if FOURS:
        keep = kept(seed, row, first, p, 1, BLOCK)
    else:
        keep = kept_at(seed, row, row * cols % 4 + first + col, p, 1, BLOCK)
    # Multiply, as PyTorch does: dropped NaN and inf then stay visible.
    y = residual + (x + bias) * tl.where(keep, scale, 0.0)
    tl.store(y_ptr + row * cols + first + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@cache
def settings(cols: int, dtype: torch.dtype) -> dict:
    """Return the forward's constexprs and launch options: 16 elements per thread, in smaller blocks if they leave less
    of a row's last block empty."""
    block = min(4096, max(16, next_power_of_2(cols)))
    while block > 512 and 8 * cdiv(cols, block) * block > 9 * cols:
        block //= 2
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"BLOCK": block, "COMPUTE": compute, "FOURS": cols % 4 == 0, "num_warps": max(1, block // 512)}


def _forward(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, residual, bias = as_rows(x), as_rows(residual), bias.contiguous()
    (rows, cols), strides = x.shape, (x.stride(0), residual.stride(0))
    chosen = settings(cols, x.dtype)
    blocks = cdiv(cols, chosen["BLOCK"])
    with torch.cuda.device_of(x):
        bias_dropout_residual_kernel[(rows * blocks,)](
            x, bias, residual, y, seed, cols, *strides, float(p), scale_of_kept(p), blocks, **chosen
        )
    return y


@triton.jit
def bias_dropout_residual_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    grad_x_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (programs along the rows, cols): sums of the bias's gradient; (cols,) if there is one
    seed_ptr,  # (1,) int64
    rows,
    cols,
    grad_y_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
    FOURS: tl.constexpr,
):
    first_col = tl.program_id(0) * BLOCK_COLS
    col = first_col + tl.arange(0, BLOCK_COLS)[None, :]
    seed = tl.load(seed_ptr)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first_row in range(tl.program_id(1) * BLOCK_ROWS, rows, tl.num_programs(1) * BLOCK_ROWS):
        row = first_row + tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
        inside = (row < rows) & (col < cols)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        if FOURS:
            keep = kept(seed, row, first_col, p, BLOCK_ROWS, BLOCK_COLS)
        else:
            keep = kept_at(seed, row, row * cols % 4 + col, p, BLOCK_ROWS, BLOCK_COLS)
        grad_x = grad_y * tl.where(keep, scale, 0.0)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        sums += tl.where(inside, grad_x, 0.0)
    total = tl.sum(sums, axis=0, keep_dims=True).to(sums_ptr.dtype.element_ty)
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * cols + col, total, mask=col < cols)


@cache
def backward_settings(rows: int, cols: int, dtype: torch.dtype, sms: int) -> tuple[tuple[int, int], dict]:
    """Return the backward's grid, along columns (which may need more than 65,535 blocks) and rows, and its options.

    With few rows, a program takes all rows of its columns, and no second launch is needed. Otherwise the grid fills the
    GPU once, which leaves few sums to add. On an H200 in bf16, 16384 x 4096 takes 89 us.
    """
    few_rows = rows <= (4 * sms if cdiv(cols, 32) <= sms else sms)
    block_rows, block_cols, warps = 4, 256, 2
    if few_rows:
        block_rows, block_cols, warps = (128, 32, 4) if rows <= 128 else (256, 32, 8)
    blocks = cdiv(cols, block_cols)
    programs = 1 if few_rows else min(cdiv(rows, block_rows), max(1, 24 // warps * sms // blocks))
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    chosen = {"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols, "COMPUTE": compute, "FOURS": cols % 4 == 0}
    return (blocks, programs), {**chosen, "num_warps": warps}


def _backward(
    grad_y: torch.Tensor, seed: torch.Tensor, p: float, bias_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and the bias."""
    grad_x = like(grad_y)
    if grad_y.numel() == 0:
        return grad_x, torch.zeros(grad_y.shape[-1], dtype=bias_dtype, device=grad_y.device)
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    grid, chosen = backward_settings(rows, cols, grad_y.dtype, multiprocessors(grad_y))
    grad_bias = torch.empty(cols, dtype=bias_dtype, device=grad_y.device)
    sums = grad_bias
    if grid[1] > 1:
        sums = torch.empty(grid[1], cols, dtype=torch.promote_types(grad_y.dtype, torch.float32), device=grad_y.device)
    with torch.cuda.device_of(grad_y):
        bias_dropout_residual_backward_kernel[grid](
            grad_y, grad_x, sums, seed, rows, cols, grad_y.stride(0), float(p), scale_of_kept(p), **chosen
        )
        if grid[1] > 1:
            (grad_bias,) = sums_of_programs((sums,), (grad_bias,))
    return grad_x, grad_bias


bias_dropout_residual_op = register(
    "bias_dropout_residual",
    _forward,
    lambda x, bias, residual, seed, p: like(x),
    keep=lambda arguments, y: (arguments[3], arguments[4], arguments[1].dtype),
    backward=_backward,
    backward_fake=lambda grad_y, seed, p, dtype: (like(grad_y), grad_y.new_empty(grad_y.shape[-1], dtype=dtype)),
    gradients=lambda backward, needed, grad_y, *kept: (*backward(grad_y, *kept), grad_y),
)


@planned
def bias_dropout_residual(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1
) -> torch.Tensor:
    """Compute residual + dropout(x + bias) in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; non-adjacent columns are copied first.
        bias: (cols,), of any floating-point dtype.
        residual: tensor of x's shape, dtype and device.
        seed: int64 tensor of one value on x's device: the same seed drops the same elements (see
            kernels.philox.dropout_mask). If not given, a small launch draws it from PyTorch's generator.
            torch.compile's generator differs; pass a seed to get the same result there.
        p: the drop probability, 0 to 1; kept elements are multiplied by 1 / (1 - p), as fp32.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. Under
        autocast, the wider of two dtypes is used.

    Raises:
        TypeError: a tensor is not floating-point, x and residual differ in dtype, or seed is not int64.
        ValueError: shapes or devices do not match, p is not within 0 to 1, or the tensors are on the CPU while kernels
            run on a GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("bias_dropout_residual", x=x, residual=residual)
    check_columns("bias_dropout_residual", x, bias=bias)
    check_dropout("bias_dropout_residual", x, seed, p)
    seed = new_seed(x.device) if seed is None else seed
    return bias_dropout_residual_op(x, bias, residual, seed, p)


def bias_dropout_residual_reference(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1
) -> torch.Tensor:
    """Compute the same in plain PyTorch, one operation at a time; PyTorch's generator chooses the dropped
    elements."""
    return residual + torch.nn.functional.dropout(x + bias, p)


def bias_dropout_residual_oracle(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor, p: float = 0.1
) -> torch.Tensor:
    """Compute the same, dropping the elements that `seed` drops."""
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    mask = dropout_mask(seed, rows, x.shape[-1], p).view(x.shape)
    return residual + (x + bias) * mask.to(x.dtype) * scale_of_kept(p)


def bias_dropout_residual_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: two additions and a multiplication per element, without the generator's integer
    operations; x, bias, residual and the seed read once, y written once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=3 * elements, bytes_read=(2 * elements + shape[-1]) * size + 8, bytes_written=elements * size)


def bias_dropout_residual_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic of the gradients: a multiplication and an addition per element; y's gradient and
    the seed read once, x's and the bias's written once (residual's is y's own)."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=2 * elements, bytes_read=elements * size + 8, bytes_written=(elements + shape[-1]) * size)


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple[torch.Tensor, ...]:
    x, bias, residual = (torch.randn(size, device=device, **options) for size in (shape, shape[-1], shape))
    return x, bias, residual, new_seed(device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    cols = shape[-1]
    x = torch.empty(shape, dtype=dtype, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    chosen = settings(cols, dtype)
    return (x, x, x, x, seed, cols, cols, cols, 0.1, scale_of_kept(0.1), cdiv(cols, chosen["BLOCK"])), chosen


OP = FusedOp(
    name="bias_dropout_residual",
    fused=bias_dropout_residual,
    reference=bias_dropout_residual_reference,
    work=bias_dropout_residual_work,
    kernel=bias_dropout_residual_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 5000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (16384, 4096)),
    backward_work=bias_dropout_residual_backward_work,
    oracle=bias_dropout_residual_oracle,
)
