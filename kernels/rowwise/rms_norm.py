"""RMSNorm of each row:  y = x / rms(x) * weight,  rms(x) = sqrt(mean(x^2) + eps).

Written out in PyTorch, the squares and the scaled rows go to memory and come straight back:

    unfused   x*x: read x, write squares | mean: read squares | x*rstd: read x, write t | t*weight: read t, write y
                                                            28 B/element in fp32, six launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

Every program reads the weight anew, from L2: DRAM gives it once. Rows beyond 32768 elements are read twice, in chunks,
the second time from L2 while it holds them.

Training keeps 1 / rms of each row, one number. The backward pass reads the gradient and x and writes x's gradient,
12 B/element in fp32. Beyond 16384 columns the sum over rows for the weight no longer fits in registers beside the row:
then a first kernel reduces each row to one number more and a second one reads it again, 20 B/element.

Where the GPU has an SM for each row, time goes to launches. Then one launch holds the programs for the rows' gradients
and those for the sums over rows, which need nothing from each other: 20 B/element asked for, of which L2 serves what
was read before.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers
WIDEST_BACKWARD_BLOCK = 16384  # the same with the gradient's row and a sum over rows beside it
FEW_ROWS = 128  # of which one program holds 64 columns in registers


@triton.jit
def rms_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), in COMPUTE, or None where no backward pass will ask for it
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
    weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)
    y = x * rstd * weight
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def rms_norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), as above
    cols,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted once more: it should outlive in L2 what is only written.
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        x = x.to(COMPUTE)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / cols + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
        y = x * rstd * weight
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def rms_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    rows,
    cols: tl.constexpr,  # known to the compiler: without masks fewer values wait in registers
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    COMPUTE: tl.constexpr,
):
    col = tl.arange(0, BLOCK_COLS)[None, :]
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        # Loaded for every row: kept, its registers would be missing for the sum.
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        # d rstd / dx = -rstd^3 x / cols reaches x through every column of its row.
        pull = tl.sum(grad_y * x * weight, axis=1, keep_dims=True) / cols * rstd * rstd
        grad_weight += grad_y * (x * rstd)
        grad_x = rstd * (grad_y * weight - x * pull)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(grad_weight_ptr + tl.program_id(0).to(tl.int64) * cols + col, total, mask=col < cols)


@triton.jit
def rms_norm_few_rows_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), as above
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (cols,), weight's dtype
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    WHOLE_ROW: tl.constexpr,  # a power of two, at least cols
    BLOCK_ROWS: tl.constexpr,  # a power of two, at least rows
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # The first programs own a row each, the others some columns of all rows; none waits for another.
    program = tl.program_id(0).to(tl.int64)
    if program < rows:
        col = tl.arange(0, WHOLE_ROW)
        x = tl.load(x_ptr + program * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + program * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + program)
        pull = tl.sum(grad_y * weight * x, axis=0) / cols * rstd * rstd
        grad_x = rstd * (grad_y * weight - x * pull)
        tl.store(grad_x_ptr + program * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)
    else:
        rows_of_tile = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
        cols_of_tile = (program - rows) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
        inside = (rows_of_tile < rows) & (cols_of_tile < cols)
        xs = tl.load(x_ptr + rows_of_tile * x_row_stride + cols_of_tile, mask=inside, other=0.0).to(COMPUTE)
        grads = tl.load(grad_y_ptr + rows_of_tile * grad_y_row_stride + cols_of_tile, mask=inside, other=0.0)
        rstds = tl.load(rstd_ptr + rows_of_tile, mask=rows_of_tile < rows, other=0.0)
        total = tl.sum(grads.to(COMPUTE) * (xs * rstds), axis=0, keep_dims=True)
        tl.store(grad_weight_ptr + cols_of_tile, total.to(grad_weight_ptr.dtype.element_ty), mask=cols_of_tile < cols)


@triton.jit
def rms_norm_row_pulls_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), as above
    pull_ptr,  # (rows,), in COMPUTE: rstd^2 mean(grad_y weight x)
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstd_ptr + row)
    product = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        product += grad_y * weight * x
    tl.store(pull_ptr + row, tl.sum(product, axis=0) / cols * rstd * rstd)


@triton.jit
def rms_norm_wide_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), as above
    pull_ptr,  # (rows,), as above
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs along the second axis of the grid, cols)
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sum fits in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(1) * BLOCK_ROWS
    for first in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        pull = tl.load(pull_ptr + row, mask=row < rows, other=0.0)
        grad_weight += grad_y * (x * rstd)
        grad_x = rstd * (grad_y * weight - x * pull)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(grad_weight_ptr + tl.program_id(1).to(tl.int64) * cols + col, total, mask=col < cols)


@cache
def settings(cols: int, dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings for rows of `cols` elements.

    32 elements a thread leave a thread at 64 registers or fewer, so that an SM holds 32 warps and some load while
    others compute. On an H200, bf16, 32768 rows, per cent of copy bandwidth: 91 (1024 columns), 94 (4096), 97 (8192),
    97 (16384). What costs: one row of 4096 to a program (2), 32 warps for 16384 columns (28: one program fills the SM).

    `few_rows`: no more than the GPU has SMs. Then each has a program of its own and twice the warps: 128 rows of 8192
    take 3.3 us instead of 3.7. Neither 4, 8 or 32 warps nor doing without masks nor reading the row twice in chunks, as
    torch.compile does, gains more than the 5 % by which one kernel varies.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 16384, "COMPUTE": compute, "num_warps": 16}
    block_cols = next_power_of_2(cols)
    elements = max(2048 if block_cols <= 2048 or few_rows else 16384, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "COMPUTE": compute,
        "num_warps": min(32, elements // 512) if few_rows else elements // 1024,
    }


@cache
def backward_settings(cols: int, dtype: torch.dtype, shared_memory: int = 227 * 2**10, few_rows: bool = False) -> dict:
    """Launch settings of the backward pass for rows of `cols` elements.

    Two rows on their way while one is computed gain 20 points over none (`shared_memory`: bytes for them that a program
    may have). At 16384 columns the row, its gradient and the sum over rows fill the registers and 96 bytes spill. On an
    H200, bf16, 32768 rows, per cent of copy bandwidth, the last sum over programs included: 87 (4096 columns), 94
    (8192), 82 (16384); computing rms again instead of keeping it takes as long.

    `few_rows`: no more than FEW_ROWS and than the GPU has SMs. 128 rows of 8192 take 5.9 us in the one launch, 7.0 with
    16 warps; in two, a number a row first and then the columns, 9.0 to 10.3.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if few_rows and cols > WIDEST_BACKWARD_BLOCK:
        return {"BLOCK_ROWS": 64, "BLOCK_COLS": 64, "STAGES": 3, "COMPUTE": compute, "num_warps": 4}
    if few_rows:
        whole_row = next_power_of_2(cols)
        warps = 8 if whole_row <= 8192 else 16
        return {
            "WHOLE_ROW": whole_row,
            "BLOCK_ROWS": FEW_ROWS,
            "BLOCK_COLS": 64,
            "COMPUTE": compute,
            "num_warps": warps,
        }
    if cols > WIDEST_BACKWARD_BLOCK:
        return {"BLOCK_ROWS": 2, "BLOCK_COLS": 1024, "STAGES": 3, "COMPUTE": compute, "num_warps": 4}
    block_cols = next_power_of_2(cols)
    elements = max(2048, block_cols)
    in_flight = (2 * dtype.itemsize + 4) * elements  # bytes of one stage: x, the gradient and the weight
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "STAGES": 3 if 2 * in_flight < shared_memory else 1,
        "COMPUTE": compute,
        "num_warps": min(16, elements // 512),
    }


def _launch(x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor | None, eps: float) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    x, weight = as_rows(x), weight.contiguous()
    rows, cols = x.shape
    chosen = settings(cols, x.dtype, few_rows=rows <= multiprocessors(x))
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            rms_norm_kernel[grid](x, weight, y, rstd, rows, cols, x.stride(0), eps, **chosen)
        else:
            rms_norm_wide_kernel[(rows,)](x, weight, y, rstd, cols, x.stride(0), eps, **chosen)
    return y


def _forward(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _launch(x, weight, None, eps)


def _number_a_row(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1].numel(), dtype=torch.promote_types(x.dtype, torch.float32))


def _forward_keeping_rstd(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = _number_a_row(x)
    return _launch(x, weight, rstd, eps), rstd


def _backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight)
    grad_y, x, contiguous_weight = as_rows(grad_y), as_rows(x), weight.contiguous()
    rows, cols = x.shape
    few_rows = rows <= min(FEW_ROWS, multiprocessors(x))
    chosen = backward_settings(cols, x.dtype, shared_memory(x), few_rows)
    inputs, strides = (grad_y, x, contiguous_weight, rstd), (grad_y.stride(0), x.stride(0))
    tiles = cdiv(cols, chosen["BLOCK_COLS"])
    if few_rows:  # one program for some columns of all rows: nothing is left to sum
        programs = 1
    elif cols <= WIDEST_BACKWARD_BLOCK:
        per_multiprocessor = max(1, 8192 // (chosen["BLOCK_ROWS"] * chosen["BLOCK_COLS"]))
        programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), per_multiprocessor * multiprocessors(x))
    else:
        programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(4 * multiprocessors(x), tiles))
    grad_weight = torch.empty(programs, cols, dtype=weight.dtype if few_rows else rstd.dtype, device=x.device)
    with torch.cuda.device_of(x):
        if cols > WIDEST_BACKWARD_BLOCK:
            pull = torch.empty_like(rstd)
            block, warps = (8192, 16) if few_rows else (4096, 4)
            chunk = {"BLOCK_COLS": block, "COMPUTE": chosen["COMPUTE"], "num_warps": warps}
            rms_norm_row_pulls_kernel[(rows,)](*inputs, pull, cols, *strides, **chunk)
            rms_norm_wide_backward_kernel[(tiles, programs)](
                *inputs, pull, grad_x, grad_weight, rows, cols, *strides, **chosen
            )
        elif few_rows:
            rms_norm_few_rows_backward_kernel[(rows + tiles,)](
                *inputs, grad_x, grad_weight, rows, cols, *strides, **chosen
            )
        else:
            rms_norm_backward_kernel[(programs,)](*inputs, grad_x, grad_weight, rows, cols, *strides, **chosen)
    return grad_x, grad_weight[0] if few_rows else grad_weight.sum(0).to(weight.dtype)


def _keep_inputs(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # no tensor of zeros for rstd, which nobody differentiates
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


class RMSNormFunction(torch.autograd.Function):
    """rms_norm and 1 / rms, for autograd. Calling it costs Python less than the registered operator does."""

    forward = staticmethod(_forward_keeping_rstd)
    setup_context = staticmethod(_keep_inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, _):
        return (None,) * 3 if grad_y is None else (*_backward(grad_y, *ctx.saved_tensors), None)


# The same for torch.compile, which does not look inside registered operators.
rms_norm_op = torch.library.custom_op("kernel_fusion::rms_norm", _forward, mutates_args=())
rms_norm_training_op = torch.library.custom_op(
    "kernel_fusion::rms_norm_training", _forward_keeping_rstd, mutates_args=()
)
rms_norm_backward_op = torch.library.custom_op("kernel_fusion::rms_norm_backward", _backward, mutates_args=())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _gradients(ctx, grad_y, _):
    return (None,) * 3 if grad_y is None else (*rms_norm_backward_op(grad_y, *ctx.saved_tensors), None)


rms_norm_op.register_fake(lambda x, weight, eps: _like(x))
rms_norm_training_op.register_fake(lambda x, weight, eps: (_like(x), _number_a_row(x)))
rms_norm_backward_op.register_fake(lambda grad_y, x, weight, rstd: (_like(x), _like(weight)))
rms_norm_training_op.register_autograd(_gradients, setup_context=_keep_inputs)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Divide each row of `x` by its root mean square and scale its columns, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight: (cols,), of any floating-point dtype, on x's device.
        eps: added to the mean square; a row of zeros stays zero, and is NaN where eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradient of weight is summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight is not (cols,), the devices differ, or the tensors are on the CPU where
            kernels run on a GPU.
    """
    check_alike("rms_norm", x=x)
    check_columns("rms_norm", x, weight=weight)
    tracked = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if torch.compiler.is_compiling():
        return rms_norm_training_op(x, weight, eps)[0] if tracked else rms_norm_op(x, weight, eps)
    return RMSNormFunction.apply(x, weight, eps)[0] if tracked else _forward(x, weight, eps)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight that is learned, ones at first; as torch.nn.RMSNorm over the last dimension."""

    def __init__(self, cols: int, eps: float = 1e-6, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(cols, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The same in PyTorch, whose own kernel is fused on a GPU; on a CPU it is written out in PyTorch."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 4 operations an element; x and weight in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=4 * elements, bytes_read=(elements + shape[-1]) * size, bytes_written=elements * size)


def rms_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of both gradients: 12 operations an element; gradient, x and weight in, two out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    moved = (elements + shape[-1]) * size
    return Work(flops=12 * elements, bytes_read=elements * size + moved, bytes_written=moved)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape[-1], **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    # As on an H200, which has 132 SMs.
    return (x, weight, x, None, rows, cols, cols, 1e-6), settings(cols, dtype, few_rows=rows <= 132)


OP = FusedOp(
    name="rms_norm",
    fused=rms_norm,
    reference=rms_norm_reference,
    work=rms_norm_work,
    kernel=rms_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=rms_norm_backward_work,
)
