"""LayerNorm of each row:  y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

Written out in PyTorch, every step goes to memory and comes straight back:

    unfused   mean: read x | x-mean: read x, write c | c*c: read c, write squares | mean: read squares |
              c*rstd: read c, write t | t*weight: read t, write u | u+bias: read u, write y
                                                            48 B/element in fp32, nine launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

Mean and variance are as in kernels/rowwise/normalise.py. Every program reads weight and bias anew, from L2: DRAM gives
them once. Rows beyond 32768 elements are read twice, in chunks, the second time from L2 while it holds them; means and
variances of the chunks are merged by Chan's formula.

The backward pass recomputes mean and variance from x, which it reads anyway, so the forward stores nothing but y: read
the gradient and x, write x's gradient, 12 B/element in fp32. Beyond 8192 columns (16384 of bf16, two to a register) the
two sums over rows, for weight and bias, no longer fit in registers beside the row: then a first kernel reduces each row
to four numbers and a second one reads it again, 20 B/element.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm;
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.rowwise.normalise import normalise
from kernels.sizes import cdiv, next_power_of_2
from kernels.widen import widen, widen_pairs

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers
WIDEST_BACKWARD_BLOCK = 8192  # the same with the gradient's row and two sums over rows beside it
WIDEST_PACKED_BACKWARD_BLOCK = 16384  # the same with x's row and the gradient's two elements to a register


@triton.jit
def layer_norm_kernel(
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
    y = x_hat * widen(weight, COMPUTE) + widen(bias, COMPUTE)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    cols,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=COMPUTE)
    squares = tl.zeros((1,), dtype=COMPUTE)  # the sum of (x - mean)^2 over what was seen
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted once more: it should outlive in L2 what is only written.
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
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
        bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
        y = (x - mean) * rstd * weight + bias
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def layer_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
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
    COMPUTE: tl.constexpr,
):
    col = tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_x_hat = grad_y * weight
        # Two sums in one reduction: the warps wait for each other half as often.
        mean, shift = tl.split(tl.sum(tl.join(x, grad_x_hat), axis=1) / cols)
        centred = tl.where(col < cols, x - mean[:, None], 0.0)
        variance, slope = tl.split(tl.sum(tl.join(centred * centred, grad_x_hat * centred), axis=1) / cols)
        rstd = tl.rsqrt(variance[:, None] + eps)
        x_hat = centred * rstd
        # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
        grad_x = rstd * (grad_x_hat - shift[:, None] - x_hat * (slope[:, None] * rstd))
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_y * x_hat
        grad_bias += grad_y
    at = tl.program_id(0).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, tl.sum(grad_weight, axis=0, keep_dims=True), mask=col < cols)
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


@triton.jit
def layer_norm_packed_backward_kernel(
    grad_y_ptr,  # (rows, cols), bf16 from an even address on, even row stride, unit column stride
    x_ptr,  # the same
    weight_ptr,  # (cols,), bf16 from an even address on
    grad_x_ptr,  # (rows, cols), contiguous, bf16
    grad_weight_ptr,  # (programs, cols), fp32: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), fp32
    rows,
    cols: tl.constexpr,  # even
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
):
    PAIRS: tl.constexpr = tl.pointer_type(tl.int32)
    pair = tl.arange(0, BLOCK_COLS // 2)
    col = tl.arange(0, BLOCK_COLS)
    in_row = pair < cols // 2
    some = tl.arange(0, BLOCK_COLS // 32) * 32
    # Neither is ever other than 16; see widen_pairs.
    again = 16 + (rows < 0).to(tl.int32)
    once_more = 16 + (rows < -1).to(tl.int32)
    grad_weight = tl.zeros((BLOCK_COLS,), dtype=tl.float32)
    grad_bias = tl.zeros((BLOCK_COLS,), dtype=tl.float32)
    for first in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(first, tl.int64)
        x = tl.load((x_ptr + row * x_row_stride).to(PAIRS) + pair, mask=in_row, other=0)
        grad_y = tl.load((grad_y_ptr + row * grad_y_row_stride).to(PAIRS) + pair, mask=in_row, other=0)
        # An element every 64 bytes brings the next row to L2 while this one is computed. Nobody waits for the elements,
        # and the compiler keeps a load that nobody uses if it is volatile.
        after = row + tl.num_programs(0)
        touched = (some < cols) & (after < rows)
        tl.load(x_ptr + after * x_row_stride + some, mask=touched, volatile=True)
        tl.load(grad_y_ptr + after * grad_y_row_stride + some, mask=touched, volatile=True)
        mean = tl.sum(widen_pairs(x, 16), axis=0) / cols
        centred = tl.where(col < cols, widen_pairs(x, again) - mean, 0.0)
        weight = tl.load(weight_ptr.to(PAIRS) + pair, mask=in_row, other=0)
        grad_x_hat = widen_pairs(grad_y, again) * widen_pairs(weight, 16)
        shift = tl.sum(grad_x_hat, axis=0) / cols
        variance, slope = tl.split(tl.sum(tl.join(centred * centred, grad_x_hat * centred), axis=0) / cols)
        rstd = tl.rsqrt(variance + eps)
        wide_grad_y = widen_pairs(grad_y, once_more)
        x_hat = (widen_pairs(x, once_more) - mean) * rstd
        weight = tl.load(weight_ptr.to(PAIRS) + pair, mask=in_row, other=0, eviction_policy="evict_last")
        grad_x_hat = wide_grad_y * widen_pairs(weight, once_more)
        # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
        grad_x = rstd * (grad_x_hat - shift - x_hat * (slope * rstd))
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)
        grad_weight += wide_grad_y * x_hat
        grad_bias += wide_grad_y
    at = tl.program_id(0).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, grad_weight, mask=col < cols)
    tl.store(grad_bias_ptr + at, grad_bias, mask=col < cols)


@triton.jit
def layer_norm_row_terms_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    terms_ptr,  # (4, rows), in COMPUTE: mean, rstd, and the means of grad_y weight and of grad_y weight x_hat
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=COMPUTE)
    squares = tl.zeros((1,), dtype=COMPUTE)  # the sum of (x - mean)^2 over what was seen
    shift = tl.zeros((1,), dtype=COMPUTE)  # the sum of g = grad_y weight
    slope = tl.zeros((1,), dtype=COMPUTE)  # the sum of g (x - mean)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)[None, :]
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        g = grad_y * tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        count = tl.minimum(cols - start, BLOCK_COLS).to(COMPUTE)
        share = count / (start + count)
        # Two sums in one reduction: the warps wait for each other half as often.
        chunk_mean, chunk_shift = tl.split(tl.sum(tl.join(x, g), axis=1))
        chunk_mean = chunk_mean / count
        centred = tl.where(col < cols, x - chunk_mean[:, None], 0.0)
        chunk_squares, chunk_slope = tl.split(tl.sum(tl.join(centred * centred, g * centred), axis=1))
        moved = chunk_mean - mean
        # A sum of g (x - m) moves by the sum of g times what m moves.
        slope += chunk_slope + moved * ((1 - share) * chunk_shift - share * shift)
        squares += chunk_squares + moved * moved * share * start
        mean += moved * share
        shift += chunk_shift
    rstd = tl.rsqrt(squares / cols + eps)
    at = row + tl.arange(0, 1)
    tl.store(terms_ptr + at, mean)
    tl.store(terms_ptr + rows + at, rstd)
    tl.store(terms_ptr + 2 * rows + at, shift / cols)
    tl.store(terms_ptr + 3 * rows + at, slope / cols * rstd)


@triton.jit
def layer_norm_wide_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
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
    COMPUTE: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sums fit in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
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
        grad_x = rstd * (grad_y * weight - shift - x_hat * slope)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_y * x_hat
        grad_bias += grad_y
    at = tl.program_id(1).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, tl.sum(grad_weight, axis=0, keep_dims=True), mask=col < cols)
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


@cache
def settings(cols: int, dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings for rows of `cols` elements.

    32 elements a thread leave a thread at 64 registers or fewer, so that an SM holds 32 warps and some load while
    others compute. On an H200, bf16, 32768 rows, per cent of copy bandwidth: 90 (1024 columns), 96 (4096), 96 (8192),
    98 (16384). What costs: weight and bias loaded before the reductions (36 at 16384), 16 elements a thread (6 at
    8192), a mask of rows that is always true (3 at 16384), two reductions for mean and variance (1 at 16384).

    `few_rows`: no more than the GPU has SMs. Then each has a program of its own and twice the warps: 128 rows of 8192
    take 4.1 us; 4.7 where weight and bias are asked for after mean and variance, which then take two reductions.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 16384, "COMPUTE": compute, "num_warps": 16}
    block_cols = next_power_of_2(cols)
    elements = max(2048 if block_cols <= 2048 or few_rows else 8192, block_cols)
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

    Two rows on their way while one is computed gain 20 points over none (`shared_memory`: bytes for them that a program
    may have). On an H200, bf16, 32768 rows, per cent of copy bandwidth, the last sums over programs included: 84 (4096
    columns), 88 (8192); read twice, 59 (16384), 57 (12000).

    Pairs of bf16 take a row of 16384 in one pass, which in fp32 spills 600 bytes and gets 47: 79 (16384), 66 (12000).
    There it costs 10 not to touch the next row, or to touch it every 128 bytes, and 20 to touch it every 32; half the
    warps cost 9, x and the gradient read again from L1 instead of held 8.

    `few_rows`: no more than the GPU has SMs. Then every row is reduced to its terms first, and one program sums some
    columns over all rows, all of them at once: a program a row would write as many bytes of partial sums as the rows
    have, twice over. 128 rows of 8192 take 12.0 us; 12.6 in tiles of 64 rows, two on their way.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if few_rows:
        return {"BLOCK_ROWS": 128, "BLOCK_COLS": 64, "STAGES": 1, "COMPUTE": compute, "num_warps": 8}
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


def _forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() == 0:
        return y
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    chosen = settings(cols, x.dtype, few_rows=rows <= multiprocessors(x))
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            layer_norm_kernel[grid](x, weight, bias, y, rows, cols, x.stride(0), eps, **chosen)
        else:
            layer_norm_wide_kernel[(rows,)](x, weight, bias, y, cols, x.stride(0), eps, **chosen)
    return y


def _in_pairs(*tensors: torch.Tensor) -> bool:
    """Whether every row of these is pairs of bf16 at multiples of four bytes."""
    return all(
        x.dtype == torch.bfloat16
        and x.data_ptr() % 4 == 0
        and x.shape[-1] % 2 == 0
        and all(stride % 2 == 0 for stride in x.stride()[:-1])
        for x in tensors
    )


def _backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight), torch.zeros_like(bias)
    grad_y, x, contiguous_weight = as_rows(grad_y), as_rows(x), weight.contiguous()
    rows, cols = x.shape
    few_rows = rows <= multiprocessors(x)
    chosen = backward_settings(cols, x.dtype, shared_memory(x), few_rows)
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    strides = grad_y.stride(0), x.stride(0)
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BACKWARD_BLOCK and not few_rows:
            per_multiprocessor = max(1, 8192 // (chosen["BLOCK_ROWS"] * chosen["BLOCK_COLS"]))
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), per_multiprocessor * multiprocessors(x))
            grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=sums, device=x.device)
            layer_norm_backward_kernel[(programs,)](
                grad_y, x, contiguous_weight, grad_x, grad_weight, grad_bias, rows, cols, *strides, eps, **chosen
            )
        elif cols <= WIDEST_PACKED_BACKWARD_BLOCK and not few_rows and _in_pairs(grad_y, x, contiguous_weight):
            programs = min(rows, multiprocessors(x))
            grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=sums, device=x.device)
            layer_norm_packed_backward_kernel[(programs,)](
                *(grad_y, x, contiguous_weight, grad_x, grad_weight, grad_bias, rows, cols, *strides, eps),
                BLOCK_COLS=WIDEST_PACKED_BACKWARD_BLOCK,
                num_warps=16,
            )
        else:
            terms = torch.empty(4, rows, dtype=sums, device=x.device)
            block = min(8192 if few_rows else 4096, next_power_of_2(cols))
            warps = max(1, block // 512) if few_rows else 4
            chunk = {"BLOCK_COLS": block, "COMPUTE": chosen["COMPUTE"], "num_warps": warps}
            layer_norm_row_terms_kernel[(rows,)](
                grad_y, x, contiguous_weight, terms, rows, cols, *strides, eps, **chunk
            )
            tiles = cdiv(cols, chosen["BLOCK_COLS"])
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(4 * multiprocessors(x), tiles))
            if few_rows:  # one program for some columns of all rows: nothing is left to sum
                programs = 1
            grad_weight = torch.empty(programs, cols, dtype=weight.dtype if few_rows else sums, device=x.device)
            grad_bias = torch.empty(programs, cols, dtype=bias.dtype if few_rows else sums, device=x.device)
            layer_norm_wide_backward_kernel[(tiles, programs)](
                grad_y, x, contiguous_weight, terms, grad_x, grad_weight, grad_bias, rows, cols, *strides, **chosen
            )
    if few_rows:
        return grad_x, grad_weight[0], grad_bias[0]
    return grad_x, grad_weight.sum(0).to(weight.dtype), grad_bias.sum(0).to(bias.dtype)


def _keep_inputs(ctx, inputs, output):
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


class LayerNormFunction(torch.autograd.Function):
    """layer_norm for autograd. Calling it costs Python less than the registered operator does."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep_inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        return *_backward(grad_y, *ctx.saved_tensors, ctx.eps), None


# The same for torch.compile, which does not look inside registered operators.
layer_norm_op = torch.library.custom_op("kernel_fusion::layer_norm", _forward, mutates_args=())
layer_norm_backward_op = torch.library.custom_op("kernel_fusion::layer_norm_backward", _backward, mutates_args=())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _gradients(ctx, grad_y):
    return *layer_norm_backward_op(grad_y, *ctx.saved_tensors, ctx.eps), None


layer_norm_op.register_fake(lambda x, weight, bias, eps: _like(x))
layer_norm_backward_op.register_fake(lambda grad_y, x, weight, bias, eps: (_like(x), _like(weight), _like(bias)))
layer_norm_op.register_autograd(_gradients, setup_context=_keep_inputs)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Bring each row of `x` to mean 0 and variance 1, then scale and shift its columns; differentiable once.

    One launch.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight, bias: (cols,), of any floating-point dtype, on x's device.
        eps: added to the variance; a constant row becomes bias. Where eps is 0 it has no direction: NaN if its mean is
            exact, as of a power of two columns, else its rounding errors brought to variance 1.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight or bias is not (cols,), the devices differ, or the tensors are on the
            CPU where kernels run on a GPU.
    """
    check_alike("layer_norm", x=x)
    check_columns("layer_norm", x, weight=weight, bias=bias)
    if torch.compiler.is_compiling():
        return layer_norm_op(x, weight, bias, eps)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        return LayerNormFunction.apply(x, weight, bias, eps)
    return _forward(x, weight, bias, eps)


class LayerNorm(torch.nn.Module):
    """layer_norm with weight and bias that are learned, ones and zeros at first; as torch.nn.LayerNorm(cols)."""

    def __init__(self, cols: int, eps: float = 1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(cols, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(cols, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


def layer_norm_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """The same in PyTorch, whose own kernel is fused too."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 7 operations an element; x, weight and bias in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=7 * elements, bytes_read=(elements + 2 * shape[-1]) * size, bytes_written=elements * size)


def layer_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients: 18 operations an element; gradient, x and weight in, three out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    bytes_read, bytes_written = (2 * elements + shape[-1]) * size, (elements + 2 * shape[-1]) * size
    return Work(flops=18 * elements, bytes_read=bytes_read, bytes_written=bytes_written)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape[-1], **options), torch.randn(shape[-1], **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    # As on an H200, which has 132 SMs.
    return (x, weight, weight, x, rows, cols, cols, 1e-5), settings(cols, dtype, few_rows=rows <= 132)


OP = FusedOp(
    name="layer_norm",
    fused=layer_norm,
    reference=layer_norm_reference,
    work=layer_norm_work,
    kernel=layer_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=layer_norm_backward_work,
)
