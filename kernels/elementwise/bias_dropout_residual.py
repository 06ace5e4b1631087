"""The end of a transformer's sublayer in one kernel:  y = residual + dropout(x + bias).

Written out in PyTorch, every step goes through memory, and dropout stores its mask for the backward pass:

    unfused   add: read x, write t | dropout: read t, write d and a mask of 1 B | add: read d, residual, write y
                                                                              15 B/element in 16 bits, three launches
    fused     read x, read residual, write y                                   6 B/element, one launch

No mask is stored: kernels/philox.py makes it from the seed, the row and the column, in the forward and again in the
backward pass. That reads the gradient and writes x's, 4 B/element; residual's gradient is y's own. On the way programs
that own some rows and columns each sum the bias's gradient in fp32; a small launch adds up what they found, unless one
program can take all rows of its columns. There are no atomics, so the gradients are the same in every run.

Source: Vaswani et al., "Attention is all you need", arXiv:1706.03762, section 5.4.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns, in_widest, multiprocessors
from kernels.fused_op import FusedOp, Work
from kernels.philox import check_dropout, dropout_mask, kept, new_seed, scale_of_kept
from kernels.register import like, register
from kernels.sizes import cdiv, next_power_of_2


@triton.jit
def bias_dropout_residual_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    bias_ptr,  # (cols,), contiguous, any floating-point dtype
    residual_ptr,  # (rows, cols), x's dtype, any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    residual_row_stride,
    p,
    scale,  # 1 / (1 - p)
    blocks_in_row,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    block = tl.program_id(0).to(tl.int64)
    row = block // blocks_in_row + tl.zeros((1, 1), tl.int64)
    first_col = block % blocks_in_row * BLOCK
    col = first_col + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols).to(COMPUTE)
    residual = tl.load(residual_ptr + row * residual_row_stride + col, mask=col < cols).to(COMPUTE)
    bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
    # A product, as in PyTorch: NaN and inf stay seen where they are dropped.
    factor = tl.where(kept(tl.load(seed_ptr), row, first_col, p, 1, BLOCK), scale, 0.0)
    y = residual + (x + bias) * factor
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def bias_dropout_residual_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    grad_x_ptr,  # (rows, cols), contiguous
    partial_ptr,  # (programs along the rows, cols): parts of the bias's gradient
    seed_ptr,  # (1,) int64
    rows,
    cols,
    grad_y_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    first_col = tl.program_id(1) * BLOCK_COLS
    col = first_col + tl.arange(0, BLOCK_COLS)[None, :]
    seed = tl.load(seed_ptr)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first_row in range(tl.program_id(0) * BLOCK_ROWS, rows, tl.num_programs(0) * BLOCK_ROWS):
        row = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64) + first_row
        inside = (row < rows) & (col < cols)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_x = grad_y * tl.where(kept(seed, row, first_col, p, BLOCK_ROWS, BLOCK_COLS), scale, 0.0)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        sums += tl.where(inside, grad_x, 0.0)
    place = tl.program_id(0).to(tl.int64) * cols + first_col + tl.arange(0, BLOCK_COLS)
    total = tl.sum(sums, axis=0).to(partial_ptr.dtype.element_ty)
    tl.store(partial_ptr + place, total, mask=first_col + tl.arange(0, BLOCK_COLS) < cols)


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of the forward.

    16 elements a thread, whose four Philox evaluations overlap. On an H200 (16384 x 4096, bf16): 98 per cent of copy
    bandwidth.
    """
    block = min(4096, max(16, next_power_of_2(cols)))
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"BLOCK": block, "COMPUTE": compute, "num_warps": max(1, block // 512)}


def backward_settings(dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings of the backward. On an H200, 16384 x 4096 in bf16: 82 per cent of copy bandwidth.

    `few_rows`: no more than the GPU has SMs. Then a program takes all rows of its columns and nothing is left to sum:
    128 x 8192 in 5.5 us instead of 15.8.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if few_rows:
        return {"BLOCK_ROWS": 128, "BLOCK_COLS": 32, "COMPUTE": compute, "num_warps": 4}
    return {"BLOCK_ROWS": 4, "BLOCK_COLS": 512, "COMPUTE": compute, "num_warps": 4}


PROGRAMS_ALONG_ROWS = 264  # two for each multiprocessor of an H200


def _forward(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, residual, bias = as_rows(x), as_rows(residual), bias.contiguous()
    (rows, cols), strides = x.shape, (x.stride(0), residual.stride(0))
    chosen = settings(cols, x.dtype)
    blocks = cdiv(cols, chosen["BLOCK"])
    with torch.cuda.device_of(x):
        bias_dropout_residual_kernel[(rows * blocks,)](
            x, bias, residual, y, seed, cols, *strides, float(p), scale_of_kept(p), blocks, **chosen
        )
    return y


def _backward(
    grad_y: torch.Tensor, seed: torch.Tensor, p: float, bias_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = torch.empty(grad_y.shape, dtype=grad_y.dtype, device=grad_y.device)
    if grad_y.numel() == 0:
        return grad_x, torch.zeros(grad_y.shape[-1], dtype=bias_dtype, device=grad_y.device)
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    few_rows = rows <= multiprocessors(grad_y)
    chosen = backward_settings(grad_y.dtype, few_rows)
    programs = 1 if few_rows else min(PROGRAMS_ALONG_ROWS, cdiv(rows, chosen["BLOCK_ROWS"]))
    sums = bias_dtype if few_rows else torch.promote_types(grad_y.dtype, torch.float32)
    partial = torch.empty((programs, cols), dtype=sums, device=grad_y.device)
    grid = (programs, cdiv(cols, chosen["BLOCK_COLS"]))
    with torch.cuda.device_of(grad_y):
        bias_dropout_residual_backward_kernel[grid](
            grad_y, grad_x, partial, seed, rows, cols, grad_y.stride(0), float(p), scale_of_kept(p), **chosen
        )
    return grad_x, partial[0] if few_rows else partial.sum(dim=0).to(bias_dtype)


bias_dropout_residual_op = register(
    "bias_dropout_residual",
    _forward,
    lambda x, bias, residual, seed, p: like(x),
    keep=lambda arguments, y: (arguments[3], arguments[4], arguments[1].dtype),
    backward=_backward,
    backward_fake=lambda grad_y, seed, p, dtype: (like(grad_y), grad_y.new_empty(grad_y.shape[-1], dtype=dtype)),
    gradients=lambda backward, needed, grad_y, *kept: (*backward(grad_y, *kept), grad_y),
)


def bias_dropout_residual(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1
) -> torch.Tensor:
    """residual + dropout(x + bias) in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        bias: (cols,), of any floating-point dtype.
        residual: tensor of x's shape, dtype and device.
        seed: int64 tensor of one value on x's device: the same seed drops the same elements (see
            kernels.philox.dropout_mask). Without one, a small launch draws one from PyTorch's generator; under
            torch.compile, whose generator is another, give one to have the same as without.
        p: the probability to be dropped, 0 to 1; what stays is multiplied by 1 / (1 - p), as fp32.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once.
        Under autocast, two dtypes of x and residual meet in the wider one.

    Raises:
        TypeError: a tensor is not one of floating point, x and residual differ in dtype, or seed is not int64.
        ValueError: shapes or devices do not fit, p is not of 0 to 1, or the tensors are on the CPU where kernels run
            on a GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("bias_dropout_residual", x=x, residual=residual)
    check_columns("bias_dropout_residual", x, bias=bias)
    check_dropout("bias_dropout_residual", x, seed, p)
    seed = new_seed(x.device) if seed is None else seed
    return bias_dropout_residual_op(x, bias, residual, seed, p)


def bias_dropout_residual_reference(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory; PyTorch's generator chooses what is dropped."""
    return residual + torch.nn.functional.dropout(x + bias, p)


def bias_dropout_residual_oracle(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor, p: float = 0.1
) -> torch.Tensor:
    """The same with the elements dropped that `seed` drops."""
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    mask = dropout_mask(seed, rows, x.shape[-1], p).view(x.shape)
    return residual + (x + bias) * mask.to(x.dtype) * scale_of_kept(p)


def bias_dropout_residual_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: two additions and a product an element, the random numbers' integers not counted; x, bias,
    residual and the seed in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=3 * elements, bytes_read=(2 * elements + shape[-1]) * size + 8, bytes_written=elements * size)


def bias_dropout_residual_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradients: a product and an addition an element; y's gradient and the seed in once,
    x's and the bias's out once (residual's is y's own)."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=2 * elements, bytes_read=elements * size + 8, bytes_written=(elements + shape[-1]) * size)


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple[torch.Tensor, ...]:
    x, bias, residual = (torch.randn(size, device=device, **options) for size in (shape, shape[-1], shape))
    return x, bias, residual, new_seed(device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    cols = shape[-1]
    x = torch.empty(shape, dtype=dtype, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    chosen = settings(cols, dtype)
    return (x, x, x, x, seed, cols, cols, cols, 0.1, scale_of_kept(0.1), cdiv(cols, chosen["BLOCK"])), chosen


OP = FusedOp(
    name="bias_dropout_residual",
    fused=bias_dropout_residual,
    reference=bias_dropout_residual_reference,
    work=bias_dropout_residual_work,
    kernel=bias_dropout_residual_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 5000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (16384, 4096)),
    backward_work=bias_dropout_residual_backward_work,
    oracle=bias_dropout_residual_oracle,
)
