"""LayerNorm and int8 quantisation with per-row scales in one kernel, to feed an int8 matmul:

    y = layer_norm(x),   scale = max(|y|) / 127,   q = round(y / scale);   y is about q * scale

    unfused   layer_norm: read x, write y | abs: read y, write a | amax: read a | y/scale: read y, write t |
              round: read t, write r | to int8: read r, write q              41 B/element in fp32, eight launches
    fused     read x once, keep the row in registers, write q once            5 B/element, one launch

In 16 bits it is 3 B/element. Rows are split into blocks as in kernels/rowwise/layer_norm.py. Rows that do not fit in
registers, or only badly (see settings), are read three times, in chunks: for mean and variance, for the largest
magnitude, and to be quantised.

Source: Dettmers et al., "LLM.int8()", arXiv:2208.07339 (row-wise absmax quantisation);
torch.nn.functional.layer_norm.
"""

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import as_rows, cdiv, check_alike, check_columns, ones_unless, zeros_unless
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise.blocks import MAX_COLUMNS, row_settings
from kernels.rowwise.layer_norm import add_chunk

MIN_MAGNITUDE = tl.constexpr(1e-12)  # a row of zeros gets the scale 1e-12 / 127: no division by zero
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def row_max_magnitude(y, inside):
    """Return the bits of the largest |y| of each row, as int32.

    Bits of magnitudes compare as integers as the floats do, with NaN above infinity: tl.max of floats drops NaN.
    """
    return tl.max(tl.where(inside, tl.abs(y).to(tl.int32, bitcast=True), 0), axis=1, keep_dims=True)


@triton.jit
def to_nearest_int8(y):
    """Round to int8, ties to even: y + 1.5 * 2^23 has no bit below 1, and its low byte is the integer. A conversion
    instruction would take four times an addition's time."""
    return (y + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def layer_norm_int8_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    q_ptr,  # (rows, cols), contiguous, int8
    scale_ptr,  # (rows,), fp32
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
    COMPUTE: tl.constexpr,  # fp32
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
    q_ptr += row * cols

    # As in layer_norm_kernel.
    first = tl.load(x_ptr, mask=mask0, other=0.0).to(COMPUTE)
    x0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE) - first
    x1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE) - first
    seen = HEAD + TAIL if WIDE else cols
    total = tl.sum(x0, axis=1, keep_dims=True) + tl.sum(tl.where(mask1, x1, 0.0), axis=1, keep_dims=True)
    mean = total / seen
    centred0, centred1 = x0 - mean, tl.where(mask1, x1 - mean, 0.0)
    squares = tl.sum(centred0 * centred0, axis=1, keep_dims=True) + tl.sum(centred1 * centred1, axis=1, keep_dims=True)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE) - first
            mean, squares = add_chunk(mean, squares, HEAD + start, cols, x, col < cols)
    rstd = tl.rsqrt(squares / cols + eps)

    y0 = (x0 - mean) * rstd * tl.load(weight_ptr + col0).to(COMPUTE) + tl.load(bias_ptr + col0).to(COMPUTE)
    weight1 = tl.load(weight_ptr + col1, mask=col1 < cols).to(COMPUTE)
    bias1 = tl.load(bias_ptr + col1, mask=col1 < cols).to(COMPUTE)
    y1 = (x1 - mean) * rstd * weight1 + bias1
    bits = tl.maximum(row_max_magnitude(y0, mask0), row_max_magnitude(y1, mask1))
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            x = tl.load(x_ptr + col, mask=inside, other=0.0).to(COMPUTE) - first
            weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
            bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
            bits = tl.maximum(bits, row_max_magnitude((x - mean) * rstd * weight + bias, inside))
    largest = tl.maximum(bits.to(tl.float32, bitcast=True), MIN_MAGNITUDE, propagate_nan=tl.PropagateNan.ALL)
    tl.store(scale_ptr + row, largest / 127.0, mask=mask0)

    to_code = 127.0 / largest
    tl.store(q_ptr + col0, to_nearest_int8(y0 * to_code), mask=mask0)
    tl.store(q_ptr + col1, to_nearest_int8(y1 * to_code), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            x = tl.load(x_ptr + col, mask=inside, other=0.0).to(COMPUTE) - first
            weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
            bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
            y = (x - mean) * rstd * weight + bias
            tl.store(q_ptr + col, to_nearest_int8(y * to_code), mask=inside)


def settings(cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return the kernel's blocks and warps for rows of `cols` columns with these row strides.

    With more than 8192 columns and a short rest, such as 10000 or 18432, 4096 stay in registers: up to 1.5x faster.
    """
    chosen = row_settings(cols, dtype, strides=strides)
    if 8192 < cols <= MAX_COLUMNS and 1 < chosen["TAIL"] <= chosen["HEAD"] // 4:
        chosen |= {"HEAD": 2048, "TAIL": 2048, "num_warps": 4}
    return {"WIDE": cols > chosen["HEAD"] + chosen["TAIL"], **chosen}


def _forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    if q.numel():
        x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
        rows, cols = x.shape
        chosen = settings(cols, x.dtype, x.stride(0))
        with torch.cuda.device_of(x):
            layer_norm_int8_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](
                x, weight, bias, q, scale, rows, cols, x.stride(0), eps, **chosen
            )
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
    """Apply LayerNorm to each row of `x` and quantise it to int8 with its own scale, in one launch. Not differentiable.

    Args:
        x: fp32, fp16 or bf16 tensor of shape (..., cols), cols at least 1, any strides; a column stride
            other than 1 costs a copy.
        weight, bias: as in layer_norm.
        eps: as in layer_norm.

    Returns:
        q: contiguous int8 tensor of x's shape, from -127 to 127, rounded to nearest, ties to even. scale: fp32 tensor
        of shape (..., 1): q * scale approximates the normalised row. It is NaN for a row that contains NaN or an
        infinity; q is then arbitrary. A row of zeros has a scale of 1e-12 / 127.

    Raises:
        TypeError: an argument is not a tensor of one of these dtypes.
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
    """Compute the same in PyTorch, unfused."""
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    scale = y.abs().amax(dim=-1, keepdim=True).float().clamp_min(1e-12) / 127
    return (y / scale).round().to(torch.int8), scale


def layer_norm_int8_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: 11 operations per element; x, weight and bias in, q and scales out, once."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    bytes_read = (elements + 2 * shape[-1]) * dtype.itemsize
    return Work(flops=(costs.LAYER_NORM + 4) * elements, bytes_read=bytes_read, bytes_written=elements + 4 * rows)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape[-1], **options), torch.randn(shape[-1], **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    q, scale = torch.empty(shape, dtype=torch.int8, device="meta"), torch.empty(rows, device="meta")
    return (x, x[0], x[0], q, scale, rows, cols, cols, 1e-5), settings(cols, dtype)


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
