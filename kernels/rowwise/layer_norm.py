"""LayerNorm of each row:  y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

    unfused   mean: read x | x-mean: read x, write c | c*c: read c, write squares | mean: read squares |
              c*rstd: read c, write t | t*weight: read t, write u | u+bias: read u, write y
                                                            48 B/element in fp32, nine launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

The backward pass, in layer_norm_backward.py, recomputes mean and variance from x, which it reads anyway: 12 B/element
in fp32. The arithmetic of both is in normalise.py. Rows too wide for registers are in norm_wide.py.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import activate
from kernels.arguments import (
    as_rows,
    cdiv,
    check_alike,
    check_columns,
    multiprocessors,
    next_power_of_2,
    ones_unless,
    over_last,
    shared_memory,
    zeros_unless,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import norm_wide
from kernels.rowwise.layer_norm_backward import gradients
from kernels.rowwise.normalise import normalise, widened
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    columns_inside,
    few_and_narrow,
    in_step,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    rows_alike,
    rows_from,
)
from kernels.vectors import elements_before
from kernels.widen import widen

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


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
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    VECTORS_FIRST: tl.constexpr,  # weight and bias are asked for once, before any row
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    num_warps: tl.constexpr,
):
    start, APART = rows_alike(BLOCK_ROWS, PIECES)
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    lead = elements_before(start.to(tl.int64) * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight_at, bias_at = along(weight_ptr, lead, cols, PIECES), along(bias_ptr, lead, cols, PIECES)
    if VECTORS_FIRST:
        weight, bias = load_columns(weight_at, inside), load_columns(bias_at, inside)
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    step = tl.num_programs(0) * BLOCK_ROWS
    # Where nothing comes ahead there is one turn: if the compiler knows, it costs no registers.
    turns = 1 if STAGES == 1 else tl.cdiv(rows - start, step)
    for turn in tl.range(0, turns, num_stages=STAGES):
        row = rows_from(start + turn * step, BLOCK_ROWS, APART)
        here = row >= 0 if BLOCK_ROWS == 1 and not PIECES[3] else row < rows  # of one row a program, none is too many
        x = widened(load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0), COMPUTE)
        x_hat = normalise(x, inside, cols, eps, 128 // BITS, num_warps, EXACT=BITS == 16)
        if not VECTORS_FIRST:
            weight, bias = load_columns(weight_at, inside), load_columns(bias_at, inside)
        out = pointers(y_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(x)):
            z = x_hat[i] * widen(weight[i], COMPUTE) + widen(bias[i], COMPUTE)
            y = z if ACT is None else activate(z, ACT, y_ptr.dtype.element_ty)
            tl.store(out[i], y.to(y_ptr.dtype.element_ty), mask=here & inside[i])


@cache
def launch_of(
    rows: int,
    cols: int,
    dtype: torch.dtype,
    sms: int,
    pieces: tuple,
    shared_memory: int,
    tensors: int = 1,
    act: str | None = None,
) -> tuple[int, dict]:
    """How many programs, and their BLOCK_ROWS, STAGES, VECTORS_FIRST and num_warps, where a row is the sum of so many
    `tensors`' rows.

    A thread has up to 48 elements of a row: an SM then holds two programs or more, and some load while others compute.
    An activation should not wait for a second row of 4096, and has half as many elements of 16384. Alone on its SM, a
    program takes twice the warps, and weight and bias before it reduces, as does one of few narrow rows, or of few that
    fill their blocks in part; held in registers meanwhile, they would cost every second program on an SM.

    Where rows are ragged, weight and bias come in single elements: a program asks for them once and walks over rows, of
    which the next are on their way, as many as fit into `shared_memory`. Programs that walk have to be on the SMs all
    at once: 16 warps with 128 registers a thread, 12 where a second tensor takes more. Narrow rows share them anyway,
    and beside more than 8192 columns they would leave no registers.
    """
    head, tail, _, ragged = pieces
    held, few_rows = head + tail, rows <= sms
    in_part = rows < 4096 and cols != head and held <= (3072 if tensors == 1 else 4096) and act is None
    together = 1024 if ragged or held <= 512 or in_part else 8192 if cols == head > 2048 and act is None else 2048
    block_rows = max(1, (2048 if few_rows else together) // next_power_of_2(held))
    elements = block_rows * held
    programs, chosen = cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "STAGES": 1, "VECTORS_FIRST": False}
    if few_rows:
        chosen |= {"VECTORS_FIRST": held <= 16384, "num_warps": min(32, next_power_of_2(cdiv(elements, 640)))}
    elif few_and_narrow(rows, pieces):
        chosen |= {"VECTORS_FIRST": True, "num_warps": 4}
    elif ragged and held > 8192:
        chosen["num_warps"] = 8 if held <= 12288 else 16
        if held <= 12288 and dtype.itemsize == 2 and tensors == 1 and act is None:
            chosen["maxnreg"] = 80
    elif ragged:
        warps = min(4, next_power_of_2(cdiv(elements, 1280)))
        chosen["num_warps"] = warps
        per_sm = (16 if tensors == 1 or warps == 1 else 12) // warps
        stages = min(3, 1 + shared_memory // (tensors * per_sm * elements * dtype.itemsize))
        if held > 512 and stages > 1:
            chosen |= {"STAGES": stages, "VECTORS_FIRST": True}
            programs = min(programs, per_sm * sms)
            if dtype.itemsize == 2 and tensors == 1:
                chosen["maxnreg"] = 128
    else:
        two_an_sm = held <= min(18432, 2**16 // dtype.itemsize)  # of 8 warps with 128 registers a thread, or 16 with 64
        chosen["num_warps"] = min(8, next_power_of_2(cdiv(elements, 1536))) if two_an_sm else 32
        if act and held == 16384:
            chosen["num_warps"] = 16
        elif two_an_sm and held > 16384:
            chosen |= {"num_warps": 16, "maxnreg": 64}
    chosen["VECTORS_FIRST"] |= in_part
    return in_step(programs, rows, block_rows, pieces), chosen


def _forward(x: Tensor, weight: Tensor, bias: Tensor, act: str | None, eps: float) -> Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            norm_wide.forward(x, None, weight, bias, y, None, None, eps, True, act)
        else:
            pieces = pieces_of(x, as_rows(y))
            programs, chosen = launch_of(rows, cols, x.dtype, multiprocessors(x), pieces, shared_memory(x), act=act)
            constants = {"PIECES": pieces, "ACT": act, "COMPUTE": arithmetic(x.dtype)}
            layer_norm_kernel[(programs,)](x, weight, bias, y, rows, cols, x.stride(0), eps, **constants, **chosen)
    return y


layer_norm_op = register(
    "layer_norm",
    _forward,
    lambda x, weight, bias, act, eps: like(x),
    keep=lambda arguments, y: arguments,
    backward=gradients,
    backward_fake=lambda grad_y, x, weight, bias, act, eps: (like(x), like(weight), like(bias)),
)


@planned
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Bring each row of `x` to mean 0 and variance 1, scale and shift its columns, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight, bias: (cols,), of any floating-point dtype, on x's device; ones and zeros where not given, by a small
            launch each.
        eps: added to the variance, as fp32; a constant row becomes bias, or NaN where eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight or bias is not (cols,), or devices differ or run no kernels here.
    """
    check_alike("layer_norm", x=x)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("layer_norm", x, weight=weight, bias=bias)
    return layer_norm_op(x, weight, bias, None, eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, run by layer_norm."""

    def forward(self, x: Tensor) -> Tensor:
        return over_last(layer_norm, self.normalized_shape, x, self.weight, self.bias, eps=self.eps)


def layer_norm_reference(x: Tensor, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """The same in PyTorch, whose own kernel is fused too."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 7 operations an element; x, weight and bias in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(costs.LAYER_NORM * elements, (elements + 2 * shape[-1]) * size, elements * size)


def layer_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients: 18 operations an element; gradient, x and weight in, three out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(18 * elements, (2 * elements + shape[-1]) * size, (elements + 2 * shape[-1]) * size)


def compile_arguments(*shape: int, dtype: torch.dtype, act: str | None = None) -> tuple[tuple, dict]:
    """layer_norm_kernel's arguments and settings at a shape, as on an H200, which has 132 SMs."""
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    pieces = pieces_of(x)
    _, chosen = launch_of(rows, cols, dtype, 132, pieces, 227 * 2**10, act=act)
    constants = {"PIECES": pieces, "ACT": act, "COMPUTE": arithmetic(dtype)}
    return (x, x[0], x[0], x, rows, cols, cols, 1e-5), {**constants, **chosen}


OP = FusedOp(
    name="layer_norm",
    fused=layer_norm,
    reference=layer_norm_reference,
    work=layer_norm_work,
    kernel=layer_norm_kernel,
    settings=launch_of,
    inputs=lambda *shape, **options: tuple(torch.randn(size, **options) for size in (shape, shape[-1:], shape[-1:])),
    compile_arguments=compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=layer_norm_backward_work,
)
