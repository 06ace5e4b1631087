"""The gradients of layer_norm, and of layer_norm_act and residual_layer_norm, which are that and something more.

    read the gradient and x, recompute mean and variance, write x's gradient; sum weight's and bias's over the rows of a
    program, and a second, small launch over the programs                     12 B/element in fp32

Where what is normalised is a sum that goes on as it is, the sum's own gradient is read and added too: 16 B/element.
Rows too wide for registers, or very few, are in layer_norm_wide.py, wide ones of bf16 in layer_norm_pairs.py.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, multiprocessors, next_power_of_2, shared_memory
from kernels.op import like
from kernels.rowwise import layer_norm_pairs, layer_norm_wide
from kernels.rowwise.normalise import plus, products, through_normalise, widened
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    columns_inside,
    in_step,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    rows_alike,
    rows_from,
)
from kernels.rowwise.sums import no_sums, sums_of_programs, with_rows
from kernels.vectors import elements_before

WIDEST_BLOCK = 8192  # elements of a row in registers, beside three others; see holds for 10240


@triton.jit
def layer_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), in COMPUTE
    rows,
    cols: tl.constexpr,
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    num_warps: tl.constexpr,
):
    start, APART = rows_alike(BLOCK_ROWS, PIECES)
    lead = elements_before(start.to(tl.int64) * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight = widened(load_columns(along(weight_ptr, lead, cols, PIECES), inside), COMPUTE)
    bias = weight if ACT is None else widened(load_columns(along(bias_ptr, lead, cols, PIECES), inside), COMPUTE)
    grad_weight = no_sums(inside, BLOCK_ROWS, PIECES[2], num_warps, COMPUTE)
    grad_bias = grad_weight
    EXACT: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    for first in tl.range(start, rows, tl.num_programs(0) * BLOCK_ROWS, num_stages=STAGES):
        row = rows_from(first, BLOCK_ROWS, APART)
        here = row < rows
        x = widened(load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0), COMPUTE)
        at = pointers(grad_y_ptr, row * grad_y_row_stride, lead, cols, PIECES)
        grad_y = widened(load_pieces(at, inside, here, 0.0), COMPUTE)
        grad_z, x_hat, grad_x = through_normalise(grad_y, x, weight, bias, inside, cols, eps, ACT, EXACT)
        if grad_sum_ptr is not None:
            at = pointers(grad_sum_ptr, row * cols, lead, cols, PIECES)
            grad_x = plus(grad_x, widened(load_pieces(at, inside, here, 0.0), COMPUTE))
        out = pointers(grad_x_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(x)):
            tl.store(out[i], grad_x[i].to(grad_x_ptr.dtype.element_ty), mask=here & inside[i])
        grad_weight = with_rows(grad_weight, products(grad_z, x_hat))
        grad_bias = with_rows(grad_bias, grad_z)
    program = tl.program_id(0).to(tl.int64) * cols
    to_weight = along(grad_weight_ptr + program, lead, cols, PIECES)
    to_bias = along(grad_bias_ptr + program, lead, cols, PIECES)
    for i in tl.static_range(len(inside)):
        tl.store(to_weight[i], tl.sum(grad_weight[i], axis=0, keep_dims=True), mask=inside[i])
        tl.store(to_bias[i], tl.sum(grad_bias[i], axis=0, keep_dims=True), mask=inside[i])


@cache
def launch_of(
    rows: int,
    cols: int,
    dtype: torch.dtype,
    sms: int,
    pieces: tuple,
    shared_memory: int,
    tensors: int = 2,
    act: str | None = None,
) -> tuple[int, dict]:
    """How many programs, and their PIECES, BLOCK_ROWS, STAGES and num_warps: up to 40 elements of a row a thread, and 8
    warps an SM, which have all its registers; 32 beside a sum's, and 20 beside what an activation needs.

    Two rows are on their way while one is computed, if `shared_memory` holds them, of each of `tensors` that are read:
    x, the gradient, and a sum's. Rows of up to 1024 columns are one block, for a block of several rows and a smaller
    one lie in threads differently, and each sum would be brought from one to the other; rows of up to 256 lie within
    a warp, and 16 of these wait for memory in turns. Ragged ones of those move an element at a time: beside so few
    columns the rim of each row is a second block.

    Programs that walk have to be on the SMs all at once: `maxnreg` where a rim or an activation would take more. Beside
    an activation many narrow rows have a warp each, which waits for no other.
    """
    short, many = dtype.itemsize == 2, rows >= 32 * sms
    a_warp_each = act and short and many and 256 < cols < 1024 + pieces[2] and cols != 1024
    if cols <= 1024 and not a_warp_each:
        whole = cols if cols <= 256 else cols // pieces[2] * pieces[2]
        pieces = (next_power_of_2(whole), 0, *pieces[2:])
    (held, ragged), within_warp = (sum(pieces[:2]), pieces[3]), cols <= 256
    registers = None
    if a_warp_each:
        block_rows, warps, stages, per_sm = max(1, 1024 // next_power_of_2(held)) if not ragged else 1, 1, 3, 8
    elif within_warp:
        pieces = (held, 0, 1, False) if ragged else pieces
        block_rows = min(max(1, (512 if ragged else 2048 if act else 4096) // held), next_power_of_2(rows // sms))
        warps, stages, per_sm = (1, 1, 16) if ragged else (4, 1, 4)
    else:
        block_rows = max(1, (512 if ragged else 2048) // next_power_of_2(held))
        warps = next_power_of_2(cdiv(block_rows * held, 640 if act else 1280 if tensors == 2 or held > 8192 else 1024))
        stages = 3 if 2 * tensors * dtype.itemsize * block_rows * held < shared_memory else 1
        per_sm = max(1, (16 if act else 8) // warps)
        if act and short and (ragged or not pieces[1]) and held <= 4096:
            registers = 128
    if short and ragged and 256 < held <= 512 and warps == 1:
        per_sm, registers = 12 if many else 8, 168
    chosen = {"PIECES": pieces, "BLOCK_ROWS": block_rows, "STAGES": stages, "num_warps": warps}
    if registers:
        chosen["maxnreg"] = registers
    return in_step(min(cdiv(rows, block_rows), sms * per_sm), rows, block_rows, pieces), chosen


def holds(cols: int, dtype: torch.dtype, pieces: tuple, act: str | None) -> bool:
    """Whether a program has registers for rows of `cols` elements: up to 10240 of 16 bits, in whole vectors."""
    wider = act is None and dtype.itemsize == 2 and not pieces[3] and sum(pieces[:2]) <= 10240
    return cols <= WIDEST_BLOCK or wider


def gradients(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    act: str | None,
    eps: float,
    grad_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; `grad_sum` is added to x's."""
    grad_x = like(x)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight), torch.zeros_like(bias)
    grad_y, x, weight, bias = as_rows(grad_y), as_rows(x), weight.contiguous(), bias.contiguous()
    grad_sum = None if grad_sum is None else as_rows(grad_sum.contiguous())
    tensors = grad_y, x, weight, bias, grad_sum, grad_x
    (rows, cols), sms = x.shape, multiprocessors(x)
    of_rows = [as_rows(each) for each in (grad_y, x, grad_x, grad_sum) if each is not None]
    with torch.cuda.device_of(x):
        pieces = pieces_of(*of_rows)
        if rows > sms and holds(cols, x.dtype, pieces, act):
            room = shared_memory(x)
            programs, chosen = launch_of(rows, cols, x.dtype, sms, pieces, room, len(of_rows) - 1, act)
            constants = {"ACT": act, "COMPUTE": arithmetic(x.dtype)}
            sums = torch.float64 if x.dtype == torch.float64 else torch.float32
            grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=sums, device=x.device)
            layer_norm_backward_kernel[(programs,)](
                *(*tensors, grad_weight, grad_bias, rows, cols, grad_y.stride(0), x.stride(0), eps),
                **constants,
                **chosen,
            )
        elif act is None and grad_sum is None and layer_norm_pairs.fits(grad_y, x, weight):
            grad_weight, grad_bias = layer_norm_pairs.backward_in_pairs(grad_y, x, weight, grad_x, eps)
        else:
            grad_weight, grad_bias = layer_norm_wide.backward_in_two(*tensors, act, eps)
        if rows <= sms:
            return grad_x, grad_weight[0], grad_bias[0]
        return grad_x, *sums_of_programs((grad_weight, grad_bias), (weight, bias))
