"""LayerNorm and int8 quantisation, one scale a row, in one kernel, as an int8 matrix product wants its input:

    y = layer_norm(x),   scale = max(|y|) / 127,   q = round(y / scale);   y is about q * scale

    unfused   layer_norm: read x, write y | abs: read y, write a | amax: read a | y/scale: read y, write t |
              round: read t, write r | to int8: read r, write q              41 B/element in fp32, eight launches
    fused     read x once, keep the row in registers, write q once            5 B/element, one launch

In 16 bits it is 3 B/element. A few programs walk over all rows and keep weight and bias in registers. Rows beyond 16384
elements are in layer_norm_int8_wide.py.

Source: Dettmers et al., "LLM.int8()", arXiv:2208.07339 (row-wise absmax quantisation);
torch.nn.functional.layer_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.affine import ones_unless, zeros_unless
from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.register import like, register
from kernels.rowwise.layer_norm_int8_wide import LEAST, largest_magnitude, layer_norm_int8_wide_kernel, to_nearest_int8
from kernels.rowwise.normalise import normalise
from kernels.sizes import cdiv, next_power_of_2
from kernels.widen import widen

WIDEST_BLOCK = 16384  # elements of a row that one program holds in registers
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    STAGES: tl.constexpr,  # blocks of rows on their way from memory at once, plus one
    num_warps: tl.constexpr,
):
    # Without a bound on what is side by side, a thread would store 16 elements at once and so load 16, and each of its
    # two loads leave out every second 16 bytes: the row would come from L2 twice.
    VECTOR: tl.constexpr = min(128 // x_ptr.dtype.element_ty.primitive_bitwidth, BLOCK_COLS)
    col = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_COLS), VECTOR), VECTOR)[None, :]
    # Converted once for all rows of the program: with a byte to write an element, instructions are what is short.
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        # int64 before the multiplication: row * stride passes 2**31 on large tensors.
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = widen(tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0), tl.float32)
        y = normalise(x, cols, eps, VECTOR, num_warps, x_ptr.dtype.element_ty.primitive_bitwidth == 16) * weight + bias
        largest = tl.maximum(largest_magnitude(y, axis=1), LEAST, propagate_nan=tl.PropagateNan.ALL)
        tl.store(scale_ptr + row, largest / 127.0, mask=row < rows)
        tl.store(q_ptr + row * cols + col, to_nearest_int8(y * (127.0 / largest)), mask=inside)


@cache
def settings(cols: int, dtype: torch.dtype, shared_memory: int = 227 * 2**10) -> dict:
    """Launch settings for rows of `cols` elements.

    A thread takes 32 elements of a row; 64 from 8192 columns on, so that fewer warps wait for each other.
    `shared_memory`: bytes that a program may have; rows are fetched ahead into it where they fit.
    """
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 16384, "num_warps": 16}
    block_cols = next_power_of_2(cols)
    elements = max(1024, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "STAGES": 3 if 2 * dtype.itemsize * elements < shared_memory else 1,
        "num_warps": elements // 1024 if elements <= 4096 else max(4, elements // 2048),
    }


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    if q.numel() == 0:
        return q, scale
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    chosen = settings(cols, x.dtype, shared_memory(x))
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            resident = multiprocessors(x) * (16 if chosen["BLOCK_COLS"] <= 4096 else 8) // chosen["num_warps"]
            grid = (min(cdiv(rows, chosen["BLOCK_ROWS"]), max(1, resident)),)
            layer_norm_int8_kernel[grid](x, weight, bias, q, scale, rows, cols, x.stride(0), eps, **chosen)
        else:
            layer_norm_int8_wide_kernel[(rows,)](x, weight, bias, q, scale, cols, x.stride(0), eps, **chosen)
    return q, scale


layer_norm_int8_op = register(
    "layer_norm_int8",
    _forward,
    lambda x, *_: (like(x.to(torch.int8)), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)),
)


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
    rows, cols = shape
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    q, scale = torch.empty(shape, dtype=torch.int8, device="meta"), torch.empty(rows, device="meta")
    return (x, weight, weight, q, scale, rows, cols, cols, 1e-5), settings(cols, dtype)


OP = FusedOp(
    name="layer_norm_int8",
    fused=layer_norm_int8,
    reference=layer_norm_int8_reference,
    work=layer_norm_int8_work,
    kernel=layer_norm_int8_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
)
