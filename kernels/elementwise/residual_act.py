"""A residual connection and its activation in one kernel:  y = act(x + residual), act ReLU, GELU or SiLU.

The end of a residual block. Written out in PyTorch, the sum goes to memory and comes straight back:

    unfused   add: read x, read residual, write s | act: read s, write y       10 B/element in 16 bits, two launches
    fused     read x, read residual, write y                                    6 B/element, one launch

The backward pass recomputes the sum from x and residual: read both and the gradient, write one gradient that x and
residual share, 8 B/element.

Source: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385; the activations and their sources
stand in kernels/activations.py.
"""

import torch
import triton
import triton.language as tl

from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import check_alike, in_widest
from kernels.fused_op import FusedOp, Work


@triton.jit
def residual_act_kernel(
    x_ptr,  # (elements,)
    residual_ptr,  # (elements,), x's dtype
    y_ptr,  # (elements,), x's dtype
    elements,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,  # a name in ACTIVATIONS
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: element offsets pass 2**31 on large tensors.
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    x = tl.load(x_ptr + offset, mask=inside).to(COMPUTE)
    residual = tl.load(residual_ptr + offset, mask=inside).to(COMPUTE)
    tl.store(y_ptr + offset, activate(x + residual, ACT).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def residual_act_backward_kernel(
    grad_y_ptr,  # (elements,)
    x_ptr,  # (elements,)
    residual_ptr,  # (elements,)
    grad_ptr,  # (elements,): the gradient of the sum, which is x's and residual's
    elements,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    grad_y = tl.load(grad_y_ptr + offset, mask=inside).to(COMPUTE)
    x = tl.load(x_ptr + offset, mask=inside).to(COMPUTE)
    residual = tl.load(residual_ptr + offset, mask=inside).to(COMPUTE)
    grad = activate_gradient(grad_y, x + residual, ACT)
    tl.store(grad_ptr + offset, grad.to(grad_ptr.dtype.element_ty), mask=inside)


def settings(dtype: torch.dtype, act: str = "relu") -> dict:
    """Launch settings: a block that gives each of 128 threads one 16-byte load an input in 16 bits."""
    return {
        "BLOCK": 1024,
        "ACT": act,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 4,
    }


def _launch(kernel, *inputs: torch.Tensor, act: str) -> torch.Tensor:
    """Run `kernel` over flat views of the inputs into a new tensor shaped like the first."""
    inputs = [tensor.contiguous() for tensor in inputs]
    output = torch.empty_like(inputs[0])
    elements = output.numel()
    if elements == 0:
        return output
    chosen = settings(output.dtype, act)
    with torch.cuda.device_of(output):
        kernel[(triton.cdiv(elements, chosen["BLOCK"]),)](*inputs, output, elements, **chosen)
    return output


@torch.library.custom_op("kernel_fusion::residual_act", mutates_args=())
def residual_act_op(x: torch.Tensor, residual: torch.Tensor, act: str) -> torch.Tensor:
    return _launch(residual_act_kernel, x, residual, act=act)


@torch.library.custom_op("kernel_fusion::residual_act_backward", mutates_args=())
def residual_act_backward_op(grad_y: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, act: str) -> torch.Tensor:
    return _launch(residual_act_backward_kernel, grad_y, x, residual, act=act)


@residual_act_op.register_fake
def _(x, residual, act):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@residual_act_backward_op.register_fake
def _(grad_y, x, residual, act):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_inputs(ctx, inputs, output):
    x, residual, ctx.act = inputs
    ctx.save_for_backward(x, residual)


def _gradients(ctx, grad_y):
    grad = residual_act_backward_op(grad_y, *ctx.saved_tensors, ctx.act)
    return grad, grad, None


residual_act_op.register_autograd(_gradients, setup_context=_keep_inputs)


def residual_act(x: torch.Tensor, residual: torch.Tensor, act: str = "relu") -> torch.Tensor:
    """act(x + residual) in one launch, differentiable once.

    Args:
        x: floating-point tensor of any shape and strides; what is not contiguous is copied first.
        residual: tensor of x's shape, dtype and device.
        act: "relu", "gelu" (by the error function), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once.
        Under autocast, two dtypes meet in the wider one.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: another `act`, the shapes or devices differ, or the tensors are on the CPU where kernels run on a
            GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("residual_act", x=x, residual=residual)
    check_activation("residual_act", act)
    tracked = torch.is_grad_enabled() and (x.requires_grad or residual.requires_grad)
    # The registered operator costs several microseconds in Python; only autograd and torch.compile need it.
    if tracked or torch.compiler.is_compiling():
        return residual_act_op(x, residual, act)
    return _launch(residual_act_kernel, x, residual, act=act)


def residual_act_reference(x: torch.Tensor, residual: torch.Tensor, act: str = "relu") -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    return ACTIVATIONS[act](x + residual)


def residual_act_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes with ReLU: 1 addition and 1 comparison; x and residual in once, y out once."""
    elements = torch.Size(shape).numel()
    return Work(flops=2 * elements, bytes_read=2 * elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def residual_act_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient with ReLU: 1 addition, 1 comparison; three tensors in, one out."""
    elements = torch.Size(shape).numel()
    return Work(flops=2 * elements, bytes_read=3 * elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, **options), torch.randn(shape, **options)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    block = torch.empty(shape, dtype=dtype)
    return (block, block, block, block.numel()), settings(dtype)


OP = FusedOp(
    name="residual_act",
    fused=residual_act,
    reference=residual_act_reference,
    work=residual_act_work,
    kernel=residual_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1,), (127,), (1025,), (3, 5, 7), (4, 1023)),
    gpu_shapes=((2**20,), (10_000_000,), (100_000_000,)),
    backward_work=residual_act_backward_work,
)
