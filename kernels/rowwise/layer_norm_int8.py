"""LayerNorm and int8 quantisation, one scale a row, in one kernel, as an int8 matrix product wants its input:

    y = layer_norm(x),   scale = max(|y|) / 127,   q = round(y / scale);   y is about q * scale

    unfused   layer_norm: read x, write y | abs: read y, write a | amax: read a | y/scale: read y, write t |
              round: read t, write r | to int8: read r, write q              41 B/element in fp32, eight launches
    fused     read x once, keep the row in registers, write q once            5 B/element, one launch

In 16 bits it is 3 B/element. Many rows share a few programs, which keep weight and bias in registers; wide ones in 16
bits, and few, have one each. Rows beyond 32768 elements, 16384 ragged or in 32 bits, are in layer_norm_int8_wide.py.

Source: Dettmers et al., "LLM.int8()", arXiv:2208.07339 (row-wise absmax quantisation);
torch.nn.functional.layer_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import (
    as_rows,
    cdiv,
    check_alike,
    check_columns,
    multiprocessors,
    next_power_of_2,
    ones_unless,
    shared_memory,
    zeros_unless,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import layer_norm_int8_wide
from kernels.rowwise.layer_norm_int8_wide import LEAST, bits_of_magnitude, to_nearest_int8
from kernels.rowwise.normalise import normalise, plus, products, widened
from kernels.rowwise.pieces import (
    along,
    columns_inside,
    few_and_narrow,
    in_step,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    row_max,
    rows_alike,
    rows_from,
)
from kernels.vectors import at_vector, elements_before

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers; half where ragged or in 32 bits
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def side_by_side(ptr, start, lead, cols, PIECES: tl.constexpr):
    """pieces.pointers, where a thread has VECTOR elements side by side and no more.

    Else it would store 16 bytes at once, and so load 16 elements, of which each of its loads leaves out every second 16
    bytes: the row would come from L2 twice.
    """
    VECTOR: tl.constexpr = PIECES[2]
    at = pointers(ptr, start, lead, cols, PIECES)
    first = ptr + at_vector(start + lead, VECTOR)
    bounded = (first + tl.max_contiguous(tl.multiple_of(tl.arange(0, PIECES[0]), VECTOR), VECTOR)[None, :],)
    if PIECES[1]:
        place = tl.max_contiguous(tl.multiple_of(tl.arange(0, PIECES[1]), VECTOR), VECTOR)[None, :]
        bounded = bounded + (first + PIECES[0] + place,)
    if PIECES[3]:
        bounded = bounded + (at[len(at) - 1],)
    return bounded


@triton.jit
def layer_norm_int8_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    q_ptr,  # (rows, cols), contiguous, int8
    scale_ptr,  # (rows,), fp32
    rows,
    cols: tl.constexpr,  # known to the compiler: a mask that is always true costs nothing
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    STAGES: tl.constexpr,  # blocks of rows on their way from memory at once, plus one; 1: it has one block
    VECTORS_FIRST: tl.constexpr,  # weight and bias are asked for once, before any row
    num_warps: tl.constexpr,
):
    start, APART = rows_alike(BLOCK_ROWS, PIECES)
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    lead = elements_before(start.to(tl.int64) * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight_at, bias_at = along(weight_ptr, lead, cols, PIECES), along(bias_ptr, lead, cols, PIECES)
    if VECTORS_FIRST:
        # Converted once for all rows of the program: with a byte to write an element, instructions are what is short.
        weight = widened(load_columns(weight_at, inside), tl.float32)
        bias = widened(load_columns(bias_at, inside), tl.float32)
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    step = tl.num_programs(0) * BLOCK_ROWS
    turns = 1 if STAGES == 1 else tl.cdiv(rows - start, step)  # as in layer_norm
    for turn in tl.range(0, turns, num_stages=STAGES):
        row = rows_from(start + turn * step, BLOCK_ROWS, APART)
        here = row < rows
        x = widened(load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0), tl.float32)
        y = normalise(x, inside, cols, eps, 128 // BITS, num_warps, EXACT=BITS == 16)
        if not VECTORS_FIRST:  # beside a wide row they would cost the other programs on the SM
            weight = widened(load_columns(weight_at, inside), tl.float32)
            bias = widened(load_columns(bias_at, inside), tl.float32)
        y = plus(products(y, weight), bias)
        bits = ()
        for i in tl.static_range(len(y)):
            bits = bits + (bits_of_magnitude(y[i]),)
        largest = tl.maximum(row_max(bits).to(tl.float32, bitcast=True), LEAST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(scale_ptr + row, largest / 127.0, mask=here)
        at = side_by_side(q_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(y)):
            tl.store(at[i], to_nearest_int8(y[i] * (127.0 / largest)), mask=here & inside[i])


@cache
def launch_of(
    rows: int, cols: int, dtype: torch.dtype, sms: int, pieces: tuple, shared_memory: int
) -> tuple[int, dict]:
    """How many programs, and their PIECES, BLOCK_ROWS, STAGES and num_warps.

    A thread takes 32 elements of a row; 64 from 8192 columns on, so that fewer warps wait for each other. A small
    second block adds 8, and then an SM has 12 warps. `shared_memory`: bytes that a program may have; rows are fetched
    ahead into it where they fit, but for few of up to 768 elements. Beyond 8192 columns, a row of 16 bits in two
    blocks, or beyond 16384, has a program of its own, which asks for weight and bias late: few registers a thread let
    three programs share an SM, two up to 18432 columns. Ragged or in 32 bits such a row is one block, however full:
    idle lanes cost less there than weight and bias in two layouts.
    """
    head, tail, vector, ragged = pieces
    if ((tail and head >= 8192) or head > 16384) and not ragged and dtype.itemsize == 2:
        warps, registers = (8, 80) if head == 8192 else (16, 64 if head + tail <= 18432 else 128)
        chosen = {"BLOCK_ROWS": 1, "STAGES": 1, "VECTORS_FIRST": False, "num_warps": warps, "maxnreg": registers}
        return rows, {"PIECES": pieces, **chosen}
    if tail and head >= 8192:
        head, tail = 2 * head, 0
    held = head + tail
    block_rows = max(1, (512 if ragged else 1024) // next_power_of_2(held))
    elements = block_rows * next_power_of_2(held)
    warps = max(1, elements // 1024 if elements <= 4096 else max(4, elements // 2048))
    per_sm = (16 if held <= 4096 else 8) // warps
    if 0 < 4 * tail <= head and head >= 2048:
        warps, per_sm = head // 1024, 12 // (head // 1024)
    pieces, programs, stages = (head, tail, vector, ragged), cdiv(rows, block_rows), 1
    if few_and_narrow(rows, pieces):
        warps = 4
    elif (rows >= 4096 or held > 768 or ragged) and 2 * dtype.itemsize * block_rows * held < shared_memory:
        programs, stages = min(programs, max(1, per_sm * sms)), 3
    chosen = {"PIECES": pieces, "BLOCK_ROWS": block_rows, "STAGES": stages, "VECTORS_FIRST": True, "num_warps": warps}
    return in_step(programs, rows, block_rows, pieces), chosen


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    if q.numel() == 0:
        return q, scale
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    given = x, weight, bias, q, scale
    with torch.cuda.device_of(x):
        pieces = pieces_of(x, as_rows(q))
        if cols <= (WIDEST_BLOCK // 2 if pieces[3] or x.itemsize > 2 else WIDEST_BLOCK):
            programs, chosen = launch_of(rows, cols, x.dtype, multiprocessors(x), pieces, shared_memory(x))
            layer_norm_int8_kernel[(programs,)](*given, rows, cols, x.stride(0), eps, **chosen)
        else:
            layer_norm_int8_wide.forward(*given, eps)
    return q, scale


layer_norm_int8_op = register(
    "layer_norm_int8",
    _forward,
    lambda x, *_: (like(x.to(torch.int8)), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)),
)


@planned
def layer_norm_int8(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """LayerNorm of each row of `x`, quantised to int8 with a scale of its own, in one launch. Not differentiable.

    Args:
        x: fp32, fp16 or bf16 tensor of shape (..., cols), cols at least 1, any strides; columns that are not side by
            side are copied first.
        weight, bias: as in layer_norm.
        eps: as in layer_norm.

    Returns:
        q: contiguous int8 tensor of x's shape, from -127 to 127, rounded to nearest, ties to even.
        scale: fp32 tensor of shape (..., 1): q * scale approximates the normalised row. In a row with a NaN or an
            infinity it is NaN and says so; q is then arbitrary. A row of zeros has a scale of 1e-12 / 127.

    Raises:
        TypeError: an argument is not a tensor of such a dtype.
        ValueError: x has no dimension or no column, weight or bias is not (cols,), the devices differ, or the tensors
            are on the CPU where kernels run on a GPU.
    """
    check_alike("layer_norm_int8", DTYPES, x=x)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("layer_norm_int8", x, weight=weight, bias=bias)
    if x.shape[-1] == 0:
        raise ValueError("layer_norm_int8 takes rows of at least one column, got none: an empty row has no scale")
    return layer_norm_int8_op(x, weight, bias, eps)


def layer_norm_int8_reference(
    x: torch.Tensor, weight=None, bias=None, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, as one writes it in PyTorch before thinking of memory."""
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    scale = y.abs().amax(dim=-1, keepdim=True).float().clamp_min(1e-12) / 127
    return (y / scale).round().to(torch.int8), scale


def layer_norm_int8_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 11 operations an element; x, weight and bias in once, q and the scales out once."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    bytes_read = (elements + 2 * shape[-1]) * dtype.itemsize
    return Work(flops=(costs.LAYER_NORM + 4) * elements, bytes_read=bytes_read, bytes_written=elements + 4 * rows)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape[-1], **options), torch.randn(shape[-1], **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    q, scale = torch.empty(shape, dtype=torch.int8, device="meta"), torch.empty(rows, device="meta")
    pieces = pieces_of(x)
    _, chosen = launch_of(rows, cols, dtype, 132, pieces, 227 * 2**10)
    return (x, x[0], x[0], q, scale, rows, cols, cols, 1e-5), chosen


OP = FusedOp(
    name="layer_norm_int8",
    fused=layer_norm_int8,
    reference=layer_norm_int8_reference,
    work=layer_norm_int8_work,
    kernel=layer_norm_int8_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
)
