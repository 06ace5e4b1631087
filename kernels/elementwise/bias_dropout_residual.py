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

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, check_alike, check_columns, in_widest, next_power_of_2
from kernels.elementwise.bias_dropout_residual_backward import gradients, vectors_of
from kernels.op import FusedOp, Work, like, planned, register
from kernels.philox import check_dropout, dropout_mask, kept, kept_at, new_seed, scale_of_kept
from kernels.vectors import at_vector, elements_before, inside_rim, rim


@triton.jit
def bias_dropout_residual_at(x_at, bias_at, residual_at, y_at, inside, keep, scale, COMPUTE: tl.constexpr):
    x = tl.load(x_at, mask=inside).to(COMPUTE)
    residual = tl.load(residual_at, mask=inside).to(COMPUTE)
    bias = tl.load(bias_at, mask=inside).to(COMPUTE)
    # A product, as in PyTorch: NaN and inf stay seen where they are dropped.
    y = residual + (x + bias) * tl.where(keep, scale, 0.0)
    tl.store(y_at, y.to(y_at.dtype.element_ty), mask=inside)


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
    VECTOR: tl.constexpr = 1,  # elements of a vector, and whether rows begin or end within one: kernels/vectors.py
    RAGGED: tl.constexpr = False,
    FOURS: tl.constexpr = True,  # whether blocks begin with four neighbours of one evaluation: kernels/philox.py
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks_in_row + tl.zeros((1, 1), tl.int64)
    first = program % blocks_in_row * BLOCK
    lead = elements_before(program // blocks_in_row * cols, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    seed = tl.load(seed_ptr)
    x_start, residual_start, y_start = row * x_row_stride, row * residual_row_stride, row * cols
    first_col = lead + first
    place = tl.arange(0, BLOCK)[None, :]
    within_four = y_start % 4  # of the row's first element
    if FOURS:
        keep = kept(seed, row, first_col, p, 1, BLOCK)
    else:
        keep = kept_at(seed, row, within_four + first_col + place, p, 1, BLOCK)
    bias_dropout_residual_at(
        x_ptr + at_vector(x_start + first_col, VECTOR) + place,
        bias_ptr + first_col + place,
        residual_ptr + at_vector(residual_start + first_col, VECTOR) + place,
        y_ptr + at_vector(y_start + first_col, VECTOR) + place,
        place < whole - first,
        keep,
        scale,
        COMPUTE,
    )
    if RAGGED and first == 0:
        col = rim(lead, cols, VECTOR)
        bias_dropout_residual_at(
            x_ptr + x_start + col,
            bias_ptr + col,
            residual_ptr + residual_start + col,
            y_ptr + y_start + col,
            inside_rim(lead, whole, cols, VECTOR),
            kept_at(seed, row, within_four + col, p, 1, 2 * VECTOR),
            scale,
            COMPUTE,
        )


@cache
def launch_of(cols: int, dtype: torch.dtype, vector: int, ragged: bool, fours: bool) -> tuple[int, dict]:
    """How many programs a row of the forward has, and their constexprs and launch options.

    16 elements a thread, whose four Philox evaluations overlap. On an H200 (16384 x 4096, bf16): 95 to 100 % of copy
    bandwidth. Smaller blocks where they leave less of a row's last one empty.
    """
    cols = cols // vector * vector
    block = min(4096, max(16, next_power_of_2(cols)))
    while block > 512 and 8 * cdiv(cols, block) * block > 9 * cols:
        block //= 2
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    chosen = {"BLOCK": block, "COMPUTE": compute, "VECTOR": vector, "RAGGED": ragged, "FOURS": fours}
    return cdiv(cols, block), {**chosen, "num_warps": max(1, block // 512)}


def _forward(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, residual, bias = as_rows(x), as_rows(residual), bias.contiguous()
    (rows, cols), strides = x.shape, (x.stride(0), residual.stride(0))
    blocks, chosen = launch_of(cols, x.dtype, *vectors_of(x, residual, as_rows(y)))
    with torch.cuda.device_of(x):
        bias_dropout_residual_kernel[(rows * blocks,)](
            x, bias, residual, y, seed, cols, *strides, float(p), scale_of_kept(p), blocks, **chosen
        )
    return y


bias_dropout_residual_op = register(
    "bias_dropout_residual",
    _forward,
    lambda x, bias, residual, seed, p: like(x),
    keep=lambda arguments, y: (arguments[3], arguments[4], arguments[1].dtype),
    backward=gradients,
    backward_fake=lambda grad_y, seed, p, dtype: (like(grad_y), grad_y.new_empty(grad_y.shape[-1], dtype=dtype)),
    gradients=lambda backward, needed, grad_y, *kept: (*backward(grad_y, *kept), grad_y),
)


@planned
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
    blocks, chosen = launch_of(cols, dtype, *vectors_of(as_rows(x)))
    return (x, x, x, x, seed, cols, cols, cols, 0.1, scale_of_kept(0.1), blocks), chosen


OP = FusedOp(
    name="bias_dropout_residual",
    fused=bias_dropout_residual,
    reference=bias_dropout_residual_reference,
    work=bias_dropout_residual_work,
    kernel=bias_dropout_residual_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 5000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (16384, 4096)),
    backward_work=bias_dropout_residual_backward_work,
    oracle=bias_dropout_residual_oracle,
)
