"""LayerNorm of each row:  y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

    unfused   mean: read x | x-mean: read x, write c | c*c: read c, write squares | mean: read squares |
              c*rstd: read c, write t | t*weight: read t, write u | u+bias: read u, write y
                                                            48 B/element in fp32, nine launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch
    backward  read the gradient and x, write x's gradient                   12 B/element in fp32

One program owns whole rows, so mean and variance never leave it. A row is split into two blocks: a power of two that
every row fills, and a masked rest. Rows of more than 32768 columns don't fit in registers: they are read twice.

The variance is the mean of squared deviations, because E[x^2] - E[x]^2 loses every digit if the mean is large. Each
row's first element is subtracted before summing. That changes neither deviations nor variance, but makes a large mean
small, so that rounding it costs little, and makes a constant row exactly 0.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", 1979; torch.nn.functional.layer_norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.activations import activate, activate_gradient
from kernels.arguments import (
    as_rows,
    cdiv,
    check_alike,
    check_columns,
    check_option,
    multiprocessors,
    next_power_of_2,
    ones_unless,
    over_last,
    shared_memory,
    zeros_unless,
)
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import aligned, alignment, compute_dtype, norm_settings, row_blocks, row_sum
from kernels.rowwise.sums import sums_of_programs

MAX_BACKWARD_COLUMNS = 8192  # widest row in registers next to its gradient, weight and two sums of gradients
FEW_ROWS_BACKWARD = {"BLOCK_ROWS": 64, "BLOCK_COLS": 64, "STAGES": 1, "num_warps": 8}
WIDE_BACKWARD = {"BLOCK_ROWS": 1, "BLOCK_COLS": 1024, "STAGES": 3, "num_warps": 4}


@triton.jit
def add_chunk(mean, squares, seen, cols, x, inside):
    """Merge x, a chunk of each row, with the mean and the squared deviations of the `seen` columns before it."""
    count = tl.minimum(cols - seen, x.shape[1]).to(x.dtype)
    chunk_mean = tl.sum(tl.where(inside, x, 0.0), axis=1, keep_dims=True) / count
    centred = tl.where(inside, x - chunk_mean, 0.0)
    apart, share = chunk_mean - mean, count / (seen + count)
    squares += tl.sum(centred * centred, axis=1, keep_dims=True) + apart * apart * seen * share
    return mean + apart * share, squares


@triton.jit
def layer_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    mean_ptr,  # (rows,), in COMPUTE, or None where no backward pass will need it
    rstd_ptr,  # (rows,), in COMPUTE: 1 / sqrt(variance + eps), or None
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides; the compiler, told so, loads 16 bytes at a time
):
    cols, x_row_stride = cols // ALIGN * ALIGN, x_row_stride // ALIGN * ALIGN
    # int64 before the multiplications: row * stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col0 = tl.arange(0, HEAD)[None, :]
    col1 = HEAD + tl.arange(0, TAIL)[None, :]
    mask0 = row < rows
    mask1 = mask0 & (col1 < cols)
    x_ptr += row * x_row_stride
    y_ptr += row * cols

    first = tl.load(x_ptr, mask=mask0, other=0.0).to(COMPUTE)
    x0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE) - first
    x1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE) - first
    EARLY: tl.constexpr = HEAD + TAIL <= 4097  # there are registers for weight and bias during the reductions
    if EARLY:
        weight0, bias0 = tl.load(weight_ptr + col0), tl.load(bias_ptr + col0)
        weight1, bias1 = tl.load(weight_ptr + col1, mask=col1 < cols), tl.load(bias_ptr + col1, mask=col1 < cols)
    seen = HEAD + TAIL if WIDE else cols
    mean = row_sum(x0, tl.where(mask1, x1, 0.0)) / seen
    # Masked elements are -first - mean now: each would add its square to the variance.
    centred0, centred1 = x0 - mean, tl.where(mask1, x1 - mean, 0.0)
    squares = row_sum(centred0 * centred0, centred1 * centred1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE) - first
            mean, squares = add_chunk(mean, squares, HEAD + start, cols, x, col < cols)
    rstd = tl.rsqrt(squares / cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, first + mean, mask=mask0)
        tl.store(rstd_ptr + row, rstd, mask=mask0)

    if EARLY:
        y0 = (x0 - mean) * rstd * weight0.to(COMPUTE) + bias0.to(COMPUTE)
    else:
        y0 = (x0 - mean) * rstd * tl.load(weight_ptr + col0).to(COMPUTE) + tl.load(bias_ptr + col0).to(COMPUTE)
        weight1, bias1 = tl.load(weight_ptr + col1, mask=col1 < cols), tl.load(bias_ptr + col1, mask=col1 < cols)
    y1 = (x1 - mean) * rstd * weight1.to(COMPUTE) + bias1.to(COMPUTE)
    if ACT is not None:
        y0, y1 = activate(y0, ACT, y_ptr.dtype.element_ty), activate(y1, ACT, y_ptr.dtype.element_ty)
    tl.store(y_ptr + col0, y0.to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, y1.to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            x = tl.load(x_ptr + col, mask=inside).to(COMPUTE) - first
            weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
            bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
            y = (x - mean) * rstd * weight + bias
            if ACT is not None:
                y = activate(y, ACT, y_ptr.dtype.element_ty)
            tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def settings(rows: int, cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return norm_settings. Few rows of 513 to 1024 columns share a program by twos, of 64 or 128 by eights in one
    block, with more warps: 0.88 to 1 of the time (H100, bf16)."""
    chosen = norm_settings(cols, dtype, *strides)
    if rows < 4096 and 512 < cols <= 1024 and aligned(cols, dtype.itemsize):
        chosen |= {"BLOCK_ROWS": 2, "num_warps": 2}
    elif rows < 4096 and cols in (64, 128):
        chosen |= {"HEAD": cols, "TAIL": 1, "BLOCK_ROWS": 8, "num_warps": cols // 16}
    return chosen


def _launch(x, weight, bias, mean, rstd, act: str | None, eps: float) -> Tensor:
    """Return y, and write mean and rstd if given."""
    y = like(x)
    if y.numel():
        x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
        rows, cols = x.shape
        chosen = settings(rows, cols, x.dtype, x.stride(0))
        with torch.cuda.device_of(x):
            layer_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](
                x, weight, bias, y, mean, rstd, rows, cols, x.stride(0), eps, ACT=act, **chosen
            )
    return y


def _forward(x: Tensor, weight: Tensor, bias: Tensor, act: str | None, eps: float) -> Tensor:
    return _launch(x, weight, bias, None, None, act, eps)


def row_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return uninitialised memory for the mean and the rstd of each row of x, in the dtype of the arithmetic."""
    rows, dtype = x.shape[:-1].numel(), torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(rows, dtype=dtype), x.new_empty(rows, dtype=dtype)


def _training(x: Tensor, weight: Tensor, bias: Tensor, act: str | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = row_statistics(x)
    return _launch(x, weight, bias, mean, rstd, act, eps), mean, rstd


@triton.jit
def through_affine(grad_y, x, weight, bias, mean, rstd, ACT: tl.constexpr):
    """Return x_hat, and the gradients of z = x_hat * weight + bias and of x_hat, where y = act(z) has grad_y."""
    x_hat = (x - mean) * rstd
    grad_z = grad_y if ACT is None else activate_gradient(grad_y, x_hat * weight + bias, ACT)
    return x_hat, grad_z, grad_z * weight


@triton.jit
def layer_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    mean_ptr,  # (rows,), from the forward pass
    rstd_ptr,  # (rows,)
    grad_sum_ptr,  # (rows, cols), contiguous, added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), in COMPUTE
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,  # rows that a program takes at a time
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    STAGES: tl.constexpr,  # 3: the next two rows are loaded while one is computed; 1: none
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,  # divides cols and the row strides
):
    """With g = grad_x_hat, grad_x = rstd (g - mean(g) - x_hat mean(g x_hat)): the remainder of g is orthogonal to ones
    and to x_hat, because shifting or scaling a row leaves x_hat unchanged."""
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    col0 = tl.arange(0, HEAD)[None, :]
    col1 = HEAD + tl.arange(0, TAIL)[None, :]
    weight0 = tl.load(weight_ptr + col0).to(COMPUTE)
    weight1 = tl.load(weight_ptr + col1, mask=col1 < cols, other=0.0).to(COMPUTE)
    bias0, bias1 = weight0, weight1
    if ACT is not None:
        bias0 = tl.load(bias_ptr + col0).to(COMPUTE)
        bias1 = tl.load(bias_ptr + col1, mask=col1 < cols, other=0.0).to(COMPUTE)
    grad_weight0, grad_bias0 = tl.zeros((BLOCK_ROWS, HEAD), COMPUTE), tl.zeros((BLOCK_ROWS, HEAD), COMPUTE)
    grad_weight1, grad_bias1 = tl.zeros((BLOCK_ROWS, TAIL), COMPUTE), tl.zeros((BLOCK_ROWS, TAIL), COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    for start in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(start, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        mask0 = row < rows
        mask1 = mask0 & (col1 < cols)
        mean = tl.load(mean_ptr + row, mask=mask0, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=mask0, other=0.0)
        at0, at1 = row * x_row_stride + col0, row * x_row_stride + col1
        x0 = tl.load(x_ptr + at0, mask=mask0, other=0.0).to(COMPUTE)
        x1 = tl.load(x_ptr + at1, mask=mask1, other=0.0).to(COMPUTE)
        # Masked gradients are 0, and so is what they add to any sum.
        at0, at1 = row * grad_y_row_stride + col0, row * grad_y_row_stride + col1
        grad_y0 = tl.load(grad_y_ptr + at0, mask=mask0, other=0.0).to(COMPUTE)
        grad_y1 = tl.load(grad_y_ptr + at1, mask=mask1, other=0.0).to(COMPUTE)
        x_hat0, grad_z0, g0 = through_affine(grad_y0, x0, weight0, bias0, mean, rstd, ACT)
        x_hat1, grad_z1, g1 = through_affine(grad_y1, x1, weight1, bias1, mean, rstd, ACT)
        shift = (tl.sum(g0, axis=1, keep_dims=True) + tl.sum(g1, axis=1, keep_dims=True)) / cols
        slope = tl.sum(g0 * x_hat0, axis=1, keep_dims=True) + tl.sum(g1 * x_hat1, axis=1, keep_dims=True)
        slope = slope / cols
        grad_x0 = rstd * (g0 - shift - x_hat0 * slope)
        grad_x1 = rstd * (g1 - shift - x_hat1 * slope)
        at0, at1 = row * cols + col0, row * cols + col1
        if grad_sum_ptr is not None:
            grad_x0 += tl.load(grad_sum_ptr + at0, mask=mask0, other=0.0).to(COMPUTE)
            grad_x1 += tl.load(grad_sum_ptr + at1, mask=mask1, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + at0, grad_x0.to(grad_x_ptr.dtype.element_ty), mask=mask0)
        tl.store(grad_x_ptr + at1, grad_x1.to(grad_x_ptr.dtype.element_ty), mask=mask1)
        grad_weight0 += grad_z0 * x_hat0
        grad_weight1 += grad_z1 * x_hat1
        grad_bias0 += grad_z0
        grad_bias1 += grad_z1
    program = tl.program_id(0).to(tl.int64) * cols
    tl.store(grad_weight_ptr + program + col0, tl.sum(grad_weight0, axis=0, keep_dims=True))
    tl.store(grad_weight_ptr + program + col1, tl.sum(grad_weight1, axis=0, keep_dims=True), mask=col1 < cols)
    tl.store(grad_bias_ptr + program + col0, tl.sum(grad_bias0, axis=0, keep_dims=True))
    tl.store(grad_bias_ptr + program + col1, tl.sum(grad_bias1, axis=0, keep_dims=True), mask=col1 < cols)


@triton.jit
def layer_norm_row_terms_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    mean_ptr,  # (rows,), from the forward pass
    rstd_ptr,  # (rows,)
    shift_ptr,  # (rows,), in COMPUTE: the mean of g, as in layer_norm_backward_kernel
    slope_ptr,  # (rows,), in COMPUTE: the mean of g x_hat
    cols,
    grad_y_row_stride,
    x_row_stride,
    CHUNK: tl.constexpr,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,
):
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    row = tl.program_id(0).to(tl.int64)
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    shift, slope = tl.zeros((CHUNK,), COMPUTE), tl.zeros((CHUNK,), COMPUTE)
    for start in range(0, cols, CHUNK):
        col = start + tl.arange(0, CHUNK)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        bias = weight if ACT is None else tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        x_hat, _, g = through_affine(grad_y, x, weight, bias, mean, rstd, ACT)
        shift += g
        slope += g * x_hat
    tl.store(shift_ptr + row, tl.sum(shift, axis=0) / cols)
    tl.store(slope_ptr + row, tl.sum(slope, axis=0) / cols)


@triton.jit
def layer_norm_columns_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    mean_ptr,  # (rows,), from the forward pass
    rstd_ptr,  # (rows,)
    shift_ptr,  # (rows,), from layer_norm_row_terms_kernel
    slope_ptr,  # (rows,)
    grad_sum_ptr,  # (rows, cols), contiguous, added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs along the second axis of the grid, cols)
    grad_bias_ptr,  # the same
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,  # as in layer_norm_backward_kernel
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """One program owns some columns of every row that it loops over, so that their sums fit in registers."""
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    bias = weight if ACT is None else tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    step = tl.num_programs(1) * BLOCK_ROWS
    for start in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(start, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        shift = tl.load(shift_ptr + row, mask=row < rows, other=0.0)
        slope = tl.load(slope_ptr + row, mask=row < rows, other=0.0)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        x_hat, grad_z, g = through_affine(grad_y, x, weight, bias, mean, rstd, ACT)
        grad_x = rstd * (g - shift - x_hat * slope)
        if grad_sum_ptr is not None:
            grad_x += tl.load(grad_sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_z * x_hat
        grad_bias += grad_z
    at = tl.program_id(1).to(tl.int64) * cols + col
    weights, biases = tl.sum(grad_weight, axis=0, keep_dims=True), tl.sum(grad_bias, axis=0, keep_dims=True)
    tl.store(grad_weight_ptr + at, weights.to(grad_weight_ptr.dtype.element_ty), mask=col < cols)
    tl.store(grad_bias_ptr + at, biases.to(grad_bias_ptr.dtype.element_ty), mask=col < cols)


def backward_settings(
    cols: int, dtype: torch.dtype, act: str | None, shared_memory: int, tensors: int = 2
) -> tuple[int, dict]:
    """Return layer_norm_backward_kernel's programs per SM and settings for `tensors` inputs with `cols` columns.

    Next to weight and two sums, 255 registers per thread hold 32 elements of a row; with an activation's gradient, 128
    hold 16. So few warps fit on an SM, and rows are prefetched if two of them fit in a program's `shared_memory`, in
    bytes. The launch has only as many programs as fit in each SM's 65536 registers, so that all loop over their rows at
    once. Narrow rows that aren't aligned are loaded element by element: twice as many programs take half as many rows
    each, without prefetching.
    """
    head, tail = row_blocks(cols)
    block_rows = max(1, 1024 // next_power_of_2(head + tail))
    by_element = not aligned(cols, dtype.itemsize) and block_rows > 1
    block_rows //= 2 if by_element else 1
    elements = block_rows * (head + tail)
    warps = next_power_of_2(cdiv(elements, 512 if act and not by_element else 1024))
    registers = 128 if by_element or (act and block_rows == 1) else 255
    return 65536 // (32 * warps * (registers + registers % 2)), {
        "BLOCK_ROWS": block_rows,
        "HEAD": head,
        "TAIL": tail,
        "STAGES": 3 if not by_element and 2 * tensors * elements * dtype.itemsize < shared_memory else 1,
        "num_warps": warps,
        "maxnreg": registers,
    }


def gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, act: str | None,
    grad_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, weight and bias; grad_sum, if given, is added to x's.

    Persistent programs loop over rows and accumulate the gradients of weight and bias in registers. Wider rows, or no
    more rows than SMs, take two launches instead: one reduces rows, one sums columns.
    """
    grad_x, grad_weight, grad_bias = like(x), like(weight), like(bias)
    if grad_x.numel() == 0:
        return grad_x, grad_weight.zero_(), grad_bias.zero_()
    grad_y, x, weight, bias = as_rows(grad_y), as_rows(x), weight.contiguous(), bias.contiguous()
    grad_sum = None if grad_sum is None else grad_sum.contiguous()
    tensors = grad_y, x, weight, bias, mean, rstd
    (rows, cols), sms, few_rows = x.shape, multiprocessors(x), x.shape[0] <= multiprocessors(x)
    sizes = rows, cols, grad_y.stride(0), x.stride(0)
    constants = {"ACT": act, "COMPUTE": compute_dtype(x.dtype), "ALIGN": alignment(*sizes[1:])}
    with torch.cuda.device_of(x):
        if cols <= MAX_BACKWARD_COLUMNS and not few_rows:
            read = 2 if grad_sum is None else 3
            per_sm, chosen = backward_settings(cols, x.dtype, act, shared_memory(x), read)
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), per_sm * sms)
            sums = mean.new_empty(programs, cols), mean.new_empty(programs, cols)
            layer_norm_backward_kernel[(programs,)](*tensors, grad_sum, grad_x, *sums, *sizes, **constants, **chosen)
        else:
            shift, slope = torch.empty_like(mean), torch.empty_like(mean)
            chunk = min(4096, next_power_of_2(cols))
            layer_norm_row_terms_kernel[(rows,)](
                *tensors, shift, slope, *sizes[1:], CHUNK=chunk, **constants, num_warps=max(1, chunk // 1024)
            )
            chosen = FEW_ROWS_BACKWARD if few_rows else WIDE_BACKWARD
            tiles = cdiv(cols, chosen["BLOCK_COLS"])
            sums = grad_weight, grad_bias  # with few rows one program sums whole columns: no second sum
            programs = 1
            if not few_rows:
                programs = min(rows, cdiv(4 * sms, tiles))
                sums = mean.new_empty(programs, cols), mean.new_empty(programs, cols)
            layer_norm_columns_kernel[(tiles, programs)](
                *tensors, shift, slope, grad_sum, grad_x, *sums, *sizes, **constants, **chosen
            )
    if few_rows:
        return grad_x, grad_weight, grad_bias
    return grad_x, *sums_of_programs(sums, (weight, bias))


layer_norm_op = register(
    "layer_norm",
    _forward,
    lambda x, weight, bias, act, eps: like(x),
    training=_training,
    training_fake=lambda x, weight, bias, act, eps: (like(x), *row_statistics(x)),
    keep=lambda arguments, result: (*arguments[:3], *result[1:], arguments[3]),
    backward=gradients,
    backward_fake=lambda grad_y, x, weight, bias, mean, rstd, act: (like(x), like(weight), like(bias)),
    called=lambda arguments: "layer_norm" if arguments[3] is None else "layer_norm_act",
)


@planned
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Normalise each row of `x` to mean 0 and variance 1, then scale and shift its columns, in one launch;
    differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        weight, bias: (cols,), of any floating-point dtype, on x's device; by default, small launches make 1 and 0.
        eps: added to the variance, as fp32; a constant row becomes bias, or NaN if eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, without atomics, in an order that depends only on the GPU.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight or bias is not (cols,), the devices differ, or have no kernels here.
    """
    check_alike("layer_norm", x=x)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("layer_norm", x, weight=weight, bias=bias)
    return layer_norm_op(x, weight, bias, None, eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by layer_norm."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        check_option("LayerNorm", "eps", self.eps, float)

    def forward(self, x: Tensor) -> Tensor:
        return over_last(layer_norm, self.normalized_shape, x, self.weight, self.bias, eps=self.eps)


def layer_norm_reference(x: Tensor, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """Compute the same in PyTorch, whose own kernel is fused too."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def compile_arguments(*shape: int, dtype: torch.dtype, act: str | None = None) -> tuple[tuple, dict]:
    """Return layer_norm_kernel's arguments and settings at a shape."""
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x[0], x[0], x, None, None, rows, cols, cols, 1e-5), {"ACT": act, **settings(rows, cols, dtype)}


OP = FusedOp(
    name="layer_norm",
    fused=layer_norm,
    reference=layer_norm_reference,
    work=work_per_element(7, tensors=(1, 1), vectors=(2, 0)),  # costs.LAYER_NORM
    kernel=layer_norm_kernel,
    settings=settings,
    inputs=lambda *shape, **options: tuple(torch.randn(size, **options) for size in (shape, shape[-1:], shape[-1:])),
    compile_arguments=compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=work_per_element(18, tensors=(2, 1), vectors=(1, 2)),
)
