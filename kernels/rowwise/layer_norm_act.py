"""LayerNorm and an activation in one kernel:  y = act(layer_norm(x)),  act one of ReLU, GELU, SiLU.

    unfused   layer_norm: read x, write z | act: read z, write y     16 B/element in fp32, two launches
    fused     read x once, keep the row in registers, write y         8 B/element, one launch

Every program reads weight and bias anew, from L2: DRAM gives them once. Rows of more than 8192 16-bit elements are read
thrice, in chunks, twice from L1. Rows beyond 32768 elements are read twice, in chunks, the second time from L2 while it
holds them; the chunks' means and variances are merged by Chan's formula.

The backward pass recomputes mean, variance and what the activation saw from x, so the forward stores nothing but y:
read the gradient and x, write x's gradient, 12 B/element in fp32, where PyTorch stores z and reads and writes it and
its gradient. Beyond 8192 columns the two sums over rows no longer fit in registers beside the row: then a first kernel
reduces each row to four numbers and a second one reads it again.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm;
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979;
the activations' sources are in kernels/activations.py.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.rowwise.normalise import normalise
from kernels.sizes import cdiv, next_power_of_2
from kernels.widen import widen

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers
AGAIN = range(8193, 16385)  # a row of so many 16-bit elements stays in L1 instead, and is read thrice
WIDEST_BACKWARD_BLOCK = 8192  # the same with the gradient's row and two sums over rows beside it


@triton.jit
def layer_norm_act_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rows,
    cols: tl.constexpr,  # known to the compiler: a mask that is always true costs nothing
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    # Weight and bias, held in registers during the reduction, cost every second program on an SM, and a program that is
    # alone on its SM nothing: it then asks for them together with the row.
    VECTORS_FIRST: tl.constexpr,
    ACT: tl.constexpr,  # a name in ACTIVATIONS
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    num_warps: tl.constexpr,
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = col < cols
    if BLOCK_ROWS > 1:  # else there are as many programs as rows
        inside = inside & (row < rows)
    x = widen(tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0), COMPUTE)
    if VECTORS_FIRST:
        weight = tl.load(weight_ptr + col, mask=col < cols)
        bias = tl.load(bias_ptr + col, mask=col < cols)
    x_hat = normalise(x, cols, eps, 128 // x_ptr.dtype.element_ty.primitive_bitwidth, num_warps)
    if not VECTORS_FIRST:
        weight = tl.load(weight_ptr + col, mask=col < cols)
        bias = tl.load(bias_ptr + col, mask=col < cols)
    y = activate(x_hat * widen(weight, COMPUTE) + widen(bias, COMPUTE), ACT, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_act_again_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    cols: tl.constexpr,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    # Static: all chunks of a loop are asked for before the first is waited for.
    for start in tl.static_range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted twice more: it should outlive in L1 what is only written.
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        total += widen(x, COMPUTE)
    mean = tl.sum(total, axis=0) / cols
    squares = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in tl.static_range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0)
        centred = tl.where(col < cols, widen(x, COMPUTE) - mean, 0.0)
        squares += centred * centred
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / cols + eps)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first")
        weight = tl.load(weight_ptr + col, mask=col < cols, eviction_policy="evict_last")
        bias = tl.load(bias_ptr + col, mask=col < cols, eviction_policy="evict_last")
        z = (widen(x, COMPUTE) - mean) * rstd * widen(weight, COMPUTE) + widen(bias, COMPUTE)
        y = activate(z, ACT, y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def layer_norm_act_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    cols,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=COMPUTE)
    squares = tl.zeros((1,), dtype=COMPUTE)  # the sum of (x - mean)^2 over what was seen
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted once more: it should outlive in L2 what is only written.
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        x = widen(x, COMPUTE)
        count = tl.minimum(cols - start, BLOCK_COLS).to(COMPUTE)
        share = count / (start + count)
        chunk_mean = tl.sum(x, axis=0, keep_dims=True) / count
        centred = tl.where(col < cols, x - chunk_mean, 0.0)
        moved = chunk_mean - mean
        mean += moved * share
        squares += tl.sum(centred * centred, axis=0, keep_dims=True) + moved * moved * share * start
    rstd = tl.rsqrt(squares / cols + eps)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first")
        weight = widen(tl.load(weight_ptr + col, mask=col < cols), COMPUTE)
        bias = widen(tl.load(bias_ptr + col, mask=col < cols), COMPUTE)
        y = activate((widen(x, COMPUTE) - mean) * rstd * weight + bias, ACT, y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def layer_norm_act_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), in COMPUTE
    rows,
    cols: tl.constexpr,
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    col = tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        mean = tl.sum(x, axis=1, keep_dims=True) / cols
        centred = tl.where(col < cols, x - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)
        x_hat = centred * rstd
        # What the activation saw is recomputed, not stored.
        grad_z = activate_gradient(grad_y, x_hat * weight + bias, ACT)
        grad_x_hat = grad_z * weight
        # Two sums in one reduction: the warps wait for each other half as often.
        shift, slope = tl.split(tl.sum(tl.join(grad_x_hat, grad_x_hat * x_hat), axis=1) / cols)
        # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
        grad_x = rstd * (grad_x_hat - shift[:, None] - x_hat * slope[:, None])
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_z * x_hat
        grad_bias += grad_z
    at = tl.program_id(0).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, tl.sum(grad_weight, axis=0, keep_dims=True), mask=col < cols)
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


@triton.jit
def layer_norm_act_row_terms_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    terms_ptr,  # (4, rows), in COMPUTE: mean, rstd, and the means of grad_x_hat and of grad_x_hat x_hat
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=COMPUTE)
    squares = tl.zeros((1,), dtype=COMPUTE)  # the sum of (x - mean)^2 over what was seen
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        x = x.to(COMPUTE)
        count = tl.minimum(cols - start, BLOCK_COLS).to(COMPUTE)
        share = count / (start + count)
        chunk_mean = tl.sum(x, axis=0, keep_dims=True) / count
        centred = tl.where(col < cols, x - chunk_mean, 0.0)
        moved = chunk_mean - mean
        mean += moved * share
        squares += tl.sum(centred * centred, axis=0, keep_dims=True) + moved * moved * share * start
    rstd = tl.rsqrt(squares / cols + eps)
    shift = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    slope = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        x_hat = (x - mean) * rstd
        grad_x_hat = activate_gradient(grad_y, x_hat * weight + bias, ACT) * weight
        shift += grad_x_hat
        slope += grad_x_hat * x_hat
    one = tl.arange(0, 1)
    tl.store(terms_ptr + row + one, mean)
    tl.store(terms_ptr + rows + row + one, rstd)
    tl.store(terms_ptr + 2 * rows + row, tl.sum(shift, axis=0) / cols)
    tl.store(terms_ptr + 3 * rows + row, tl.sum(slope, axis=0) / cols)


@triton.jit
def layer_norm_act_wide_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    terms_ptr,  # (4, rows), as above
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs along the second axis of the grid, cols), in COMPUTE
    grad_bias_ptr,  # the same
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sums fit in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(1) * BLOCK_ROWS
    for first in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        mean = tl.load(terms_ptr + row, mask=row < rows, other=0.0)
        rstd = tl.load(terms_ptr + rows + row, mask=row < rows, other=0.0)
        shift = tl.load(terms_ptr + 2 * rows + row, mask=row < rows, other=0.0)
        slope = tl.load(terms_ptr + 3 * rows + row, mask=row < rows, other=0.0)
        x_hat = (x - mean) * rstd
        grad_z = activate_gradient(grad_y, x_hat * weight + bias, ACT)
        grad_x = rstd * (grad_z * weight - shift - x_hat * slope)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_z * x_hat
        grad_bias += grad_z
    at = tl.program_id(1).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, tl.sum(grad_weight, axis=0, keep_dims=True), mask=col < cols)
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


def _reads_again(cols: int, dtype: torch.dtype, few_rows: bool) -> bool:
    return cols in AGAIN and dtype.itemsize == 2 and not few_rows


@cache
def settings(cols: int, dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings for rows of `cols` elements.

    32 elements a thread leave a thread at 64 registers or fewer, so that an SM holds 32 warps and some load while
    others compute; rows from 4096 on have a program each, for what computes must not wait for a second row. On an H200,
    bf16, 32768 rows, GELU's tanh form, per cent of copy bandwidth: 86 (1024 columns), 96 (4096), 96 (8192), 96 (16384);
    exact GELU 94 (4096), 95 (8192), 95 (16384).

    At 16384 a row in registers leaves an SM two programs, and while both compute nothing loads: 93. A row that stays in
    L1 and is read thrice takes 32 registers, and an SM holds four programs. Half the warps, or chunks of half the size,
    cost 6, chunks and warps twice that 16.

    `few_rows`: no more than the GPU has SMs. Then each has a program of its own and twice the warps: 128 rows of 8192
    take 4.4 us; 5.0 where weight and bias are asked for after mean and variance, which then take two reductions.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 16384, "COMPUTE": compute, "num_warps": 16}
    if _reads_again(cols, dtype, few_rows):
        return {"BLOCK_COLS": 4096, "COMPUTE": compute, "num_warps": 16}
    block_cols = next_power_of_2(cols)
    elements = max(2048, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "VECTORS_FIRST": few_rows and block_cols <= 16384,
        "COMPUTE": compute,
        "num_warps": min(32, elements // 512) if few_rows else elements // 1024,
    }


@cache
def backward_settings(cols: int, dtype: torch.dtype, shared_memory: int = 227 * 2**10, few_rows: bool = False) -> dict:
    """Launch settings of the backward pass for rows of `cols` elements.

    Two rows on their way while one is computed gain 7 points over none (`shared_memory`: bytes for them that a program
    may have). On an H200, bf16, 32768 rows, GELU's tanh form, per cent of copy bandwidth, the last sums over programs
    included: 57 (4096 columns), 55 (8192); at 16384, read twice, 32.

    `few_rows`: no more than the GPU has SMs. Then every row is reduced to its terms first, and one program sums some
    columns over all rows: a program a row would write as many bytes of partial sums as the rows have, twice over.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if few_rows:
        return {"BLOCK_ROWS": 64, "BLOCK_COLS": 64, "STAGES": 3, "COMPUTE": compute, "num_warps": 4}
    if cols > WIDEST_BACKWARD_BLOCK:
        return {"BLOCK_ROWS": 2, "BLOCK_COLS": 1024, "STAGES": 3, "COMPUTE": compute, "num_warps": 4}
    block_cols = next_power_of_2(cols)
    elements = max(2048, block_cols)
    in_flight = 2 * dtype.itemsize * elements  # bytes of one stage: x and the gradient
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "STAGES": 3 if 2 * in_flight < shared_memory else 1,
        "COMPUTE": compute,
        "num_warps": elements // 512,
    }


def _forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, act: str, eps: float) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    few_rows = rows <= multiprocessors(x)
    chosen = {"ACT": act, **settings(cols, x.dtype, few_rows)}
    with torch.cuda.device_of(x):
        if _reads_again(cols, x.dtype, few_rows):
            layer_norm_act_again_kernel[(rows,)](x, weight, bias, y, cols, x.stride(0), eps, **chosen)
        elif cols <= WIDEST_BLOCK:
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            layer_norm_act_kernel[grid](x, weight, bias, y, rows, cols, x.stride(0), eps, **chosen)
        else:
            layer_norm_act_wide_kernel[(rows,)](x, weight, bias, y, cols, x.stride(0), eps, **chosen)
    return y


def _backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, act: str, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight), torch.zeros_like(bias)
    grad_y, x = as_rows(grad_y), as_rows(x)
    affine = weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    few_rows = rows <= multiprocessors(x)
    chosen = {"ACT": act, **backward_settings(cols, x.dtype, shared_memory(x), few_rows)}
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    strides = grad_y.stride(0), x.stride(0)
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BACKWARD_BLOCK and not few_rows:
            per_multiprocessor = max(1, 8192 // (chosen["BLOCK_ROWS"] * chosen["BLOCK_COLS"]))
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), per_multiprocessor * multiprocessors(x))
            grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=sums, device=x.device)
            layer_norm_act_backward_kernel[(programs,)](
                grad_y, x, *affine, grad_x, grad_weight, grad_bias, rows, cols, *strides, eps, **chosen
            )
        else:
            terms = torch.empty(4, rows, dtype=sums, device=x.device)
            block = min(8192 if few_rows else 4096, next_power_of_2(cols))
            warps = max(1, block // 512) if few_rows else 4
            chunk = {"BLOCK_COLS": block, "ACT": act, "COMPUTE": chosen["COMPUTE"], "num_warps": warps}
            layer_norm_act_row_terms_kernel[(rows,)](grad_y, x, *affine, terms, rows, cols, *strides, eps, **chunk)
            tiles = cdiv(cols, chosen["BLOCK_COLS"])
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(4 * multiprocessors(x), tiles))
            if few_rows:  # one program for some columns of all rows: nothing is left to sum
                programs = 1
            grad_weight = torch.empty(programs, cols, dtype=weight.dtype if few_rows else sums, device=x.device)
            grad_bias = torch.empty(programs, cols, dtype=bias.dtype if few_rows else sums, device=x.device)
            layer_norm_act_wide_backward_kernel[(tiles, programs)](
                grad_y, x, *affine, terms, grad_x, grad_weight, grad_bias, rows, cols, *strides, **chosen
            )
    if few_rows:
        return grad_x, grad_weight[0], grad_bias[0]
    return grad_x, grad_weight.sum(0).to(weight.dtype), grad_bias.sum(0).to(bias.dtype)


def _keep_inputs(ctx, inputs, output):
    *tensors, ctx.act, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


class LayerNormActFunction(torch.autograd.Function):
    """layer_norm_act for autograd. Calling it costs Python less than the registered operator does."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep_inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        return *_backward(grad_y, *ctx.saved_tensors, ctx.act, ctx.eps), None, None


# The same for torch.compile, which does not look inside registered operators.
layer_norm_act_op = torch.library.custom_op("kernel_fusion::layer_norm_act", _forward, mutates_args=())
layer_norm_act_backward_op = torch.library.custom_op(
    "kernel_fusion::layer_norm_act_backward", _backward, mutates_args=()
)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _gradients(ctx, grad_y):
    return *layer_norm_act_backward_op(grad_y, *ctx.saved_tensors, ctx.act, ctx.eps), None, None


layer_norm_act_op.register_fake(lambda x, weight, bias, act, eps: _like(x))
layer_norm_act_backward_op.register_fake(
    lambda grad_y, x, weight, bias, act, eps: (_like(x), _like(weight), _like(bias))
)
layer_norm_act_op.register_autograd(_gradients, setup_context=_keep_inputs)


def layer_norm_act(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, act: str = "gelu_tanh", eps: float = 1e-5
) -> torch.Tensor:
    """act(layer_norm(x)) over the last dimension, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight, bias: (cols,), of any floating-point dtype, on x's device.
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".
        eps: added to the variance, as in layer_norm.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: a tensor is not a floating-point tensor.
        ValueError: act is none of the four, x has no dimension, weight or bias is not (cols,), the devices differ, or
            the tensors are on the CPU where kernels run on a GPU.
    """
    check_activation("layer_norm_act", act)
    check_alike("layer_norm_act", x=x)
    check_columns("layer_norm_act", x, weight=weight, bias=bias)
    if torch.compiler.is_compiling():
        return layer_norm_act_op(x, weight, bias, act, eps)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        return LayerNormActFunction.apply(x, weight, bias, act, eps)
    return _forward(x, weight, bias, act, eps)


class LayerNormAct(torch.nn.Module):
    """layer_norm_act with weight and bias that are learned, ones and zeros at first."""

    def __init__(self, cols: int, act: str = "gelu_tanh", eps: float = 1e-5, device=None, dtype=None):
        super().__init__()
        check_activation("LayerNormAct", act)
        self.act, self.eps = act, eps
        self.weight = torch.nn.Parameter(torch.ones(cols, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(cols, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm_act(x, self.weight, self.bias, self.act, self.eps)


def layer_norm_act_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, act: str = "gelu_tanh", eps: float = 1e-5
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    return ACTIVATIONS[act](torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps))


def layer_norm_act_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 16 operations an element with GELU's tanh form; all inputs in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=16 * elements, bytes_read=(elements + 2 * shape[-1]) * size, bytes_written=elements * size)


def layer_norm_act_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients: 38 operations an element; gradient and inputs in, three out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    bytes_read, bytes_written = (2 * elements + 2 * shape[-1]) * size, (elements + 2 * shape[-1]) * size
    return Work(flops=38 * elements, bytes_read=bytes_read, bytes_written=bytes_written)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape[-1], **options), torch.randn(shape[-1], **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    few_rows = rows <= 132  # as on an H200, which has 132 SMs
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    counts = (cols,) if _reads_again(cols, dtype, few_rows) else (rows, cols)
    return (x, weight, weight, x, *counts, cols, 1e-5), {"ACT": "gelu_tanh", **settings(cols, dtype, few_rows)}


OP = FusedOp(
    name="layer_norm_act",
    fused=layer_norm_act,
    reference=layer_norm_act_reference,
    work=layer_norm_act_work,
    kernel=layer_norm_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    kernel_for=lambda rows, cols: (
        layer_norm_act_again_kernel if _reads_again(cols, torch.bfloat16, rows <= 132) else layer_norm_act_kernel
    ),
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=layer_norm_act_backward_work,
)
