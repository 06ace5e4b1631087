"""Addition and GELU in one kernel:  y = gelu(a + b), with GELU's tanh form.

    gelu(s) = s/2 (1 + tanh(u)),  u = sqrt(2/pi) (s + 0.044715 s^3)

Unfused, the sum is written to memory and read straight back:

    unfused   add: read a, read b, write s | gelu: read s, write y       20 B/element in fp32, two launches
    fused     read a, read b, keep the sum in a register, write y        12 B/element, one launch

Training saves the sum, so the backward pass needs neither a nor b:

    unfused   20 forward, 12 backward (read the gradient and the sum, write the gradient)      32 B/element
    fused     16 forward (the sum is written, never read), 12 backward                         28 B/element

Recomputing the sum from a and b would move the same bytes and keep two tensors alive instead of one.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415;
torch.nn.functional.gelu(approximate="tanh").
"""

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import channels_last, check_alike, in_widest
from kernels.elementwise.vectors import MULTIPLE, has_tail, launch
from kernels.op import FusedOp, like, planned, register, work_per_element


@triton.jit
def twice_u(s):
    return 1.5957691216057308 * (s + 0.044715 * s * s * s)  # 2 sqrt(2/pi) (s + 0.044715 s^3)


@triton.jit
def add_gelu_block(first, end, a_ptr, b_ptr, y_ptr, sum_ptr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    offset = first + tl.arange(0, BLOCK)
    inside = offset < end
    a = tl.load(a_ptr + offset, mask=inside).to(COMPUTE)
    b = tl.load(b_ptr + offset, mask=inside).to(COMPUTE)
    s = a + b
    # (1 + tanh(u)) / 2 = sigmoid(2u): one exponential, and no cancellation where GELU is small.
    y = s * tl.sigmoid(twice_u(s))
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=inside)
    if sum_ptr is not None:
        tl.store(sum_ptr + offset, s.to(sum_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_gelu_kernel(
    a_ptr,  # (elements,)
    b_ptr,  # (elements,), a's dtype
    y_ptr,  # (elements,), a's dtype
    sum_ptr,  # (elements,), a's dtype, or None if no backward pass follows
    elements,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    HAS_TAIL: tl.constexpr = False,  # elements is not a multiple of 16: the last program takes the rest
):
    # int64 before the multiplication: element offsets pass 2**31 on large tensors.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    # Threads move 16 bytes at a time only if the compiler can see that the mask ends at a multiple of 16.
    end = elements // MULTIPLE * MULTIPLE if HAS_TAIL else elements
    add_gelu_block(first, end, a_ptr, b_ptr, y_ptr, sum_ptr, BLOCK, COMPUTE)
    if HAS_TAIL and tl.program_id(0) == tl.num_programs(0) - 1:
        add_gelu_block(end, elements, a_ptr, b_ptr, y_ptr, sum_ptr, MULTIPLE, COMPUTE)


@triton.jit
def add_gelu_backward_block(first, end, grad_y_ptr, sum_ptr, grad_ptr, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    offset = first + tl.arange(0, BLOCK)
    inside = offset < end
    grad_y = tl.load(grad_y_ptr + offset, mask=inside).to(COMPUTE)
    s = tl.load(sum_ptr + offset, mask=inside).to(COMPUTE)
    # y = s g with the gate g = sigmoid(2u), so dy/ds = g + s g(1 - g) 2u'. From e = exp(-|2u|) both g and
    # g(1 - g) = e / (1 + e)^2 keep all their digits where g is near 1 and 1 - g would lose them.
    z = twice_u(s)
    e = tl.exp(-tl.abs(z))
    reciprocal = 1.0 / (1.0 + e)
    gate = tl.where(z < 0, e, 1.0) * reciprocal
    slope = 1.5957691216057308 * (1.0 + 0.134145 * s * s)  # 2u'; 0.134145 = 3 * 0.044715
    # A fully closed or open gate is flat; without tl.where, 0 * inf would give NaN when s^2 overflows.
    bend = tl.where(e == 0.0, 0.0, s * slope * e * reciprocal * reciprocal)
    tl.store(grad_ptr + offset, (grad_y * (gate + bend)).to(grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_gelu_backward_kernel(
    grad_y_ptr,  # (elements,)
    sum_ptr,  # (elements,)
    grad_ptr,  # (elements,): the gradient of the sum, and so of a and b
    elements,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
    HAS_TAIL: tl.constexpr = False,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    end = elements // MULTIPLE * MULTIPLE if HAS_TAIL else elements
    add_gelu_backward_block(first, end, grad_y_ptr, sum_ptr, grad_ptr, BLOCK, COMPUTE)
    if HAS_TAIL and tl.program_id(0) == tl.num_programs(0) - 1:
        add_gelu_backward_block(end, elements, grad_y_ptr, sum_ptr, grad_ptr, MULTIPLE, COMPUTE)


def settings(dtype: torch.dtype, backward: bool = False) -> dict:
    """Return launch settings for 128 threads per block.

    Forward: 1024 elements, loaded 16 bytes at a time in every dtype. Backward: two 16-byte loads per thread and input,
    which reach 96 % of copy bandwidth on an H200 with 100M elements in bf16.
    """
    return {
        "BLOCK": 4096 // dtype.itemsize if backward else 1024,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 4,
    }


def _forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    launch(add_gelu_kernel, settings(a.dtype), a, b, y, None)
    return y


def _training(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = a.contiguous(), b.contiguous()
    y, s = torch.empty_like(a), torch.empty_like(a)
    launch(add_gelu_kernel, settings(a.dtype), a, b, y, s)
    return y, s


def _backward(grad_y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    grad = torch.empty_like(s)
    launch(add_gelu_backward_kernel, settings(s.dtype, backward=True), grad_y.contiguous(), s, grad)
    return grad


add_gelu_op = register(
    "add_gelu",
    _forward,
    lambda a, b: like(a),
    training=_training,
    training_fake=lambda a, b: (like(a), like(a)),
    keep=lambda arguments, results: results[1:],
    backward=_backward,
    backward_fake=lambda grad_y, s: like(s),
    gradients=lambda backward, needed, grad_y, s: (backward(grad_y, s),) * 2,
)


@planned
def add_gelu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute gelu(a + b), tanh form, in one launch; differentiable once.

    Args:
        a: floating-point tensor of any shape and strides, copied first if not contiguous, unless both are channels-last
            images.
        b: tensor of a's shape, dtype and device.

    Returns:
        A contiguous tensor of a's shape and dtype, or channels-last if both are. The arithmetic is fp32 (fp64 for fp64
        inputs), rounded once. Under autocast, the wider of two dtypes is used. The gradient at a sum of inf or -inf is
        its limit, 1 or 0; PyTorch's is NaN.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: the shapes or devices differ, or the tensors are on the CPU while kernels run on a GPU.
    """
    a, b = in_widest(a, b)
    check_alike("add_gelu", a=a, b=b)
    if a.dim() == 4 and channels_last(a, b):
        return add_gelu_op(a.permute(0, 2, 3, 1), b.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return add_gelu_op(a, b)


def add_gelu_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    return torch.nn.functional.gelu(a + b, approximate="tanh")


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    block = torch.empty(shape, dtype=dtype)
    return (block, block, block, None, block.numel()), settings(dtype) | {"HAS_TAIL": has_tail(block.numel())}


OP = FusedOp(
    name="add_gelu",
    fused=add_gelu,
    reference=add_gelu_reference,
    work=work_per_element(1 + costs.GELU_TANH, tensors=(2, 1)),
    kernel=add_gelu_kernel,
    settings=settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options), torch.randn(shape, **options)),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1,), (127,), (1025,), (3, 5, 7), (4, 1023)),
    gpu_shapes=((2**20,), (10_000_000,), (100_000_000,)),
    gpu_dtypes=(torch.float32, torch.bfloat16),
    backward_work=work_per_element(20, tensors=(2, 1)),
)
