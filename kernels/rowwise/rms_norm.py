"""RMSNorm of each row:  y = x / rms(x) * weight,  rms(x) = sqrt(mean(x^2) + eps).

Unfused, the squares and the scaled rows are written to memory and read straight back:

    unfused   x*x: read x, write squares | mean: read squares | x*rstd: read x, write t | t*weight: read t, write y
                                                            28 B/element in fp32, six launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

One program owns whole rows. A row is split into two blocks: a power of two that every row fills, and a masked rest.
Rows of more than 32768 columns do not fit in registers and are read twice, in chunks. rowwise/blocks.py chooses blocks
and warps. Every program rereads the weight from L2, so DRAM supplies it once. Training saves r = 1 / rms(x), one value
per row. With g = grad_y weight, the gradients are

    grad_x = r (g - x r^2 mean(g x))          grad_weight = sum over rows of grad_y x r

Each program of the backward pass loops over rows and keeps its share of grad_weight in registers, so x and grad_y are
read once: 12 B/element in fp32. A second, small launch sums the programs' shares.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

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
)
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import aligned, alignment, compute_dtype, norm_settings, row_blocks, row_sum
from kernels.rowwise.sums import sums_of_programs


@triton.jit
def rms_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, or None where no backward pass will need it
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
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

    # Masked elements are 0, which adds nothing to a sum of squares.
    x0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    x1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    weight0 = tl.load(weight_ptr + col0)  # before the reduction, so that it is not waited for afterwards
    weight1 = tl.load(weight_ptr + col1, mask=col1 < cols)
    squares = row_sum(x0 * x0, x1 * x1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE)
            squares += tl.sum(x * x, axis=1, keep_dims=True)
    rstd = tl.rsqrt(squares / cols + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, mask=mask0)

    y0, y1 = x0 * rstd * weight0.to(COMPUTE), x1 * rstd * weight1.to(COMPUTE)
    tl.store(y_ptr + col0, y0.to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, y1.to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols)).to(COMPUTE)
            y = x * rstd * tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
            tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=mask0 & (col < cols))


def settings(rows: int, cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return norm_settings. Few rows share a program of 4096 elements: 0.93 to 0.98 of the time (H100, bf16)."""
    shared = {"BLOCK_ROWS": 4096 // next_power_of_2(cols), "num_warps": 4} if rows < 4096 and 512 < cols <= 2048 else {}
    return norm_settings(cols, dtype, *strides) | shared


def _launch(x: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> Tensor:
    y = like(x)
    if y.numel():
        x = as_rows(x)
        rows, cols = x.shape
        chosen = settings(rows, cols, x.dtype, x.stride(0))
        tensors = x, weight.contiguous(), y, rstd
        with torch.cuda.device_of(x):
            rms_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](*tensors, rows, cols, x.stride(0), eps, **chosen)
    return y


def _forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, weight, None, eps)


def one_per_row(x: Tensor) -> Tensor:
    """Allocate one value per row of x, in the dtype of the arithmetic."""
    return x.new_empty(x.shape[:-1].numel(), dtype=torch.promote_types(x.dtype, torch.float32))


def _training(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rstd = one_per_row(x)
    return _launch(x, weight, rstd, eps), rstd


@triton.jit
def rms_norm_projection_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE
    projection_ptr,  # (rows,), in COMPUTE: r^2 mean(g x) of each row
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,
):
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    row = tl.program_id(0).to(tl.int64)
    grad_y_ptr += row * grad_y_row_stride
    x_ptr += row * x_row_stride
    products = tl.zeros((BLOCK,), COMPUTE)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        products += grad_y * tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE) * x
    rstd = tl.load(rstd_ptr + row)
    tl.store(projection_ptr + row, tl.sum(products, axis=0) / cols * rstd * rstd)


@triton.jit
def rms_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE
    projection_ptr,  # (rows,), in COMPUTE, where a program has some columns of its rows only; None where it has all
    grad_sum_ptr,  # (rows, cols), contiguous: a gradient of x that bypasses the norm, or None; see residual_rms_norm
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,  # rows of one turn of the loop
    HEAD: tl.constexpr,  # columns of the first block
    TAIL: tl.constexpr,  # columns of the second block
    STAGES: tl.constexpr,  # 2 or 3: the rows of the next one or two turns are loaded while these are computed
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides
):
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    col0 = tl.program_id(1) * (HEAD + TAIL) + tl.arange(0, HEAD)[None, :]
    col1 = tl.program_id(1) * (HEAD + TAIL) + HEAD + tl.arange(0, TAIL)[None, :]
    # Every row fills HEAD, but the last chunk of a wide row may not.
    inside0 = tl.full((1, HEAD), True, tl.int1) if projection_ptr is None else col0 < cols
    inside1 = col1 < cols
    grad_weight0 = tl.zeros((BLOCK_ROWS, HEAD), COMPUTE)
    grad_weight1 = tl.zeros((BLOCK_ROWS, TAIL), COMPUTE)
    start = tl.program_id(0).to(tl.int64) * BLOCK_ROWS  # int64: row * stride may exceed 2**31
    for first in tl.range(start, rows, tl.num_programs(0) * BLOCK_ROWS, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_ROWS)[:, None]
        mask0 = (row < rows) & inside0
        mask1 = (row < rows) & inside1
        x0 = tl.load(x_ptr + row * x_row_stride + col0, mask=mask0, other=0.0).to(COMPUTE)
        x1 = tl.load(x_ptr + row * x_row_stride + col1, mask=mask1, other=0.0).to(COMPUTE)
        grad_y0 = tl.load(grad_y_ptr + row * grad_y_row_stride + col0, mask=mask0, other=0.0).to(COMPUTE)
        grad_y1 = tl.load(grad_y_ptr + row * grad_y_row_stride + col1, mask=mask1, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        grad_weight0 += grad_y0 * (x0 * rstd)
        grad_weight1 += grad_y1 * (x1 * rstd)

        # Loaded at every turn: registers hold it only while it is used.
        g0 = grad_y0 * tl.load(weight_ptr + col0, mask=inside0, other=0.0).to(COMPUTE)
        g1 = grad_y1 * tl.load(weight_ptr + col1, mask=inside1, other=0.0).to(COMPUTE)
        if projection_ptr is None:
            products = tl.sum(g0 * x0, axis=1, keep_dims=True) + tl.sum(g1 * x1, axis=1, keep_dims=True)
            projection = products / cols * rstd * rstd
        else:
            projection = tl.load(projection_ptr + row, mask=row < rows, other=0.0)
        grad_x0 = rstd * (g0 - x0 * projection)
        grad_x1 = rstd * (g1 - x1 * projection)
        if grad_sum_ptr is not None:
            grad_x0 += tl.load(grad_sum_ptr + row * cols + col0, mask=mask0, other=0.0).to(COMPUTE)
            grad_x1 += tl.load(grad_sum_ptr + row * cols + col1, mask=mask1, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + row * cols + col0, grad_x0.to(grad_x_ptr.dtype.element_ty), mask=mask0)
        tl.store(grad_x_ptr + row * cols + col1, grad_x1.to(grad_x_ptr.dtype.element_ty), mask=mask1)
    grad_weight_ptr += tl.program_id(0).to(tl.int64) * cols
    tl.store(grad_weight_ptr + col0, tl.sum(grad_weight0, axis=0, keep_dims=True), mask=inside0)
    tl.store(grad_weight_ptr + col1, tl.sum(grad_weight1, axis=0, keep_dims=True), mask=inside1)


def fits_registers(cols: int, itemsize: int) -> bool:
    """Return whether a backward program can keep in registers a row of x, its gradient and a share of grad_weight.

    Rows that aren't aligned are loaded element by element, which takes more registers.
    """
    return cols <= (16384 if aligned(cols, itemsize) else 5120)


def backward_settings(
    rows: int, cols: int, itemsize: int, sms: int, shared_memory: int, residual: bool = False
) -> tuple[tuple[int, int], dict]:
    """Return the backward kernel's grid, and its blocks and warps.

    An iteration of the loop takes one wide row, or several narrow rows of 1024 elements in all, 2048 for 65 to 256
    columns. There are 16 warps per SM in all, so all programs run at once. The rows of the next two iterations are
    prefetched if `shared_memory` has room for x, grad_y, grad_sum and weight, of `itemsize` bytes per element. Rows
    that aren't aligned are loaded element by element, with settings found by trial: for 513 to 4095 columns, or rows in
    chunks, no prefetching and at most 128 registers take 0.6 to 0.85 of the time (H100, bf16). More than 4096 rows fill
    a turn better, and if they are narrow and not aligned, many small programs take 0.77 to 0.79 of the time. With
    `residual`, grad_sum is read too.
    """
    head, tail = row_blocks(cols) if fits_registers(cols, itemsize) else (1024, 1024)
    width = next_power_of_2(head + tail)
    block_rows = max(1, min(16, 2048 // width) if width <= 256 else 1024 // width)
    elements = block_rows * (head + tail)
    warps, per_sm = min(16, max(4, next_power_of_2(cdiv(elements, 512)))), None
    stages = min(3 if elements <= 12288 else 1, 1 + (shared_memory - 1024) // (4 * itemsize * elements))
    by_element, registers = not aligned(cols, itemsize), {}
    many = rows > 4096
    if by_element and many and width <= 128:
        block_rows, warps, per_sm, stages = (256 if residual else 512) // max(32, width), 2, 24 if residual else 16, 1
    elif by_element and block_rows > 8:
        warps, stages = 8, 1
    elif by_element and 4096 <= elements < 8192:
        warps, stages = 4, 2
    elif by_element and block_rows == 1 and elements < 4096:
        warps, stages, registers = 2 if elements < 2048 and rows > 4096 else 4, 1, {"maxnreg": 128}
    elif many and not by_element and 128 < width <= 256:
        warps = 8
    elif many and not by_element and (elements < 1024 or (256 < width <= 512 and not residual)):
        block_rows *= 2
    chunks = cdiv(cols, head + tail)
    programs = min(cdiv(rows, block_rows), cdiv((per_sm or 16 // warps) * sms, chunks))
    chosen = {"BLOCK_ROWS": block_rows, "HEAD": head, "TAIL": tail, "STAGES": stages, "num_warps": warps, **registers}
    return (programs, chunks), chosen


def gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, grad_sum: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight; grad_sum, if given, is added to x's."""
    grad_x = like(x)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight)
    grad_y, x, grad_sum = as_rows(grad_y), as_rows(x), None if grad_sum is None else grad_sum.contiguous()
    rows, cols = x.shape
    inputs, strides = (grad_y, x, weight.contiguous(), rstd), (grad_y.stride(0), x.stride(0))
    constants = {"COMPUTE": compute_dtype(x.dtype), "ALIGN": alignment(cols, *strides)}
    itemsize = max(x.itemsize, weight.itemsize)
    room, residual = shared_memory(x), grad_sum is not None
    grid, chosen = backward_settings(rows, cols, itemsize, multiprocessors(x), room, residual)
    sums = torch.empty(grid[0], cols, dtype=rstd.dtype, device=x.device)
    with torch.cuda.device_of(x):
        projection = None
        if not fits_registers(cols, itemsize):
            projection = torch.empty_like(rstd)
            rms_norm_projection_kernel[(rows,)](
                *inputs, projection, cols, *strides, BLOCK=4096, num_warps=8, **constants
            )
        rms_norm_backward_kernel[grid](
            *inputs, projection, grad_sum, grad_x, sums, rows, cols, *strides, **constants, **chosen
        )
        return grad_x, *sums_of_programs((sums,), (weight,))


rms_norm_op = register(
    "rms_norm",
    _forward,
    lambda x, weight, eps: like(x),
    training=_training,
    training_fake=lambda x, weight, eps: (like(x), one_per_row(x)),
    keep=lambda arguments, result: (*arguments[:2], result[1]),
    backward=gradients,
    backward_fake=lambda grad_y, x, weight, rstd: (like(x), like(weight)),
)


@planned
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Divide each row of `x` by its root mean square and scale its columns, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        weight: (cols,), of any floating-point dtype, on x's device; if not given, a small launch makes ones.
        eps: added to the mean square, as fp32; a row of zeros stays zero, or becomes NaN if eps is 0. The default is
            Llama's; torch.nn.functional.rms_norm defaults to torch.finfo(x.dtype).eps.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradient of weight is summed in fp32 too, without atomics, in an order that depends only on the GPU.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight is not (cols,), the devices differ, or have no kernels here.
    """
    check_alike("rms_norm", x=x)
    weight = ones_unless(weight, x)
    check_columns("rms_norm", x, weight=weight)
    return rms_norm_op(x, weight, eps)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by rms_norm; as there, eps of None means the dtype's own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        check_option("RMSNorm", "eps", self.eps, float, optional=True)

    def forward(self, x: Tensor) -> Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return over_last(rms_norm, self.normalized_shape, x, self.weight, eps=eps)


def rms_norm_reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Compute the same in PyTorch, which fuses it on a GPU but not on a CPU."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x[0], x, None, rows, cols, cols, 1e-6), settings(rows, cols, dtype)


OP = FusedOp(
    name="rms_norm",
    fused=rms_norm,
    reference=rms_norm_reference,
    work=work_per_element(4, tensors=(1, 1), vectors=(1, 0)),
    kernel=rms_norm_kernel,
    settings=settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options), torch.randn(shape[-1:], **options)),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=work_per_element(12, tensors=(2, 1), vectors=(1, 1)),
)
