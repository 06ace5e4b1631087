"""Residual connection and activation in one kernel:  y = act(x + residual),  with act ReLU, GELU or SiLU.

This ends a residual block. Unfused, the sum is written to memory and read straight back:

    unfused   add: read x, read residual, write s | act: read s, write y       10 B/element in 16 bits, two launches
    fused     read x, read residual, write y                                    6 B/element, one launch

The backward pass computes the gradient that x and residual share. For ReLU it only needs to know whether the sum was
above 0, so in training the forward pass writes one bit per element. For other activations it writes the sum:

    training  ReLU: also write a bit             6.125 B/element | others: also write the sum       8 B/element
    backward  ReLU: read the gradient, read the bit, write the gradient    4.125 B/element, one launch
              others: read the gradient, read the sum, write the gradient      6 B/element, one launch

PyTorch reads y instead, and torch.compile reads a mask of one byte per element. The bits take 1/16 of y's bytes in
16 bits as extra memory, although the next layer usually saves y anyway. In return, y may be modified in place.

Source: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385; the activations and
their sources: kernels/activations.py.
"""

import torch
import triton
import triton.language as tl

from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import channels_last, check_alike, in_widest
from kernels.elementwise.vectors import MULTIPLE, has_tail, launch
from kernels.op import FusedOp, Work, like, planned, register, work_per_element


@triton.jit
def residual_act_block(
    first, end, x_ptr, residual_ptr, y_ptr, kept_ptr, BLOCK: tl.constexpr, ACT: tl.constexpr, COMPUTE: tl.constexpr
):
    offset = first + tl.arange(0, BLOCK)
    inside = offset < end
    x = tl.load(x_ptr + offset, mask=inside).to(COMPUTE)
    residual = tl.load(residual_ptr + offset, mask=inside).to(COMPUTE)
    s = x + residual
    tl.store(y_ptr + offset, activate(s, ACT).to(y_ptr.dtype.element_ty), mask=inside)
    if kept_ptr is not None:
        if ACT == "relu":
            bit = tl.where(inside & ~(s <= 0), 1 << (tl.arange(0, BLOCK) % 8), 0)
            byte = first // 8 + tl.arange(0, BLOCK // 8)
            bits = tl.sum(tl.reshape(bit, (BLOCK // 8, 8)), axis=1)
            tl.store(kept_ptr + byte, bits.to(tl.uint8), mask=byte * 8 < end)
        else:
            tl.store(kept_ptr + offset, s.to(kept_ptr.dtype.element_ty), mask=inside)


@triton.jit
def residual_act_kernel(
    x_ptr,  # (elements,)
    residual_ptr,  # (elements,), x's dtype
    y_ptr,  # (elements,), x's dtype
    kept_ptr,  # the sum, (elements,), or with ReLU one bit per element; None if no backward pass follows
    elements,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,  # a name in ACTIVATIONS
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    HAS_TAIL: tl.constexpr = False,  # elements is not a multiple of 16: the last program takes the rest
):
    # int64 before the multiplication: element offsets pass 2**31 on large tensors.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    # Threads move 16 bytes at a time only if the compiler can see that the mask ends at a multiple of 16.
    end = elements // MULTIPLE * MULTIPLE if HAS_TAIL else elements
    residual_act_block(first, end, x_ptr, residual_ptr, y_ptr, kept_ptr, BLOCK, ACT, COMPUTE)
    if HAS_TAIL and tl.program_id(0) == tl.num_programs(0) - 1:
        residual_act_block(end, elements, x_ptr, residual_ptr, y_ptr, kept_ptr, MULTIPLE, ACT, COMPUTE)


@triton.jit
def residual_act_backward_block(
    first, end, grad_y_ptr, kept_ptr, grad_ptr, BLOCK: tl.constexpr, ACT: tl.constexpr, COMPUTE: tl.constexpr
):
    offset = first + tl.arange(0, BLOCK)
    inside = offset < end
    grad_y = tl.load(grad_y_ptr + offset, mask=inside).to(COMPUTE)
    if ACT == "relu":
        # Eight neighbours read one byte: a single load where one thread holds them.
        kept = (tl.load(kept_ptr + offset // 8, mask=inside) >> (tl.arange(0, BLOCK) % 8)) & 1
    else:
        kept = tl.load(kept_ptr + offset, mask=inside).to(COMPUTE)
    grad = activate_gradient(grad_y, kept, ACT)
    tl.store(grad_ptr + offset, grad.to(grad_ptr.dtype.element_ty), mask=inside)


@triton.jit
def residual_act_backward_kernel(
    grad_y_ptr,  # (elements,)
    kept_ptr,  # as the forward pass wrote it
    grad_ptr,  # (elements,): the gradient of the sum, and so of x and residual
    elements,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    HAS_TAIL: tl.constexpr = False,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    end = elements // MULTIPLE * MULTIPLE if HAS_TAIL else elements
    residual_act_backward_block(first, end, grad_y_ptr, kept_ptr, grad_ptr, BLOCK, ACT, COMPUTE)
    if HAS_TAIL and tl.program_id(0) == tl.num_programs(0) - 1:
        residual_act_backward_block(end, elements, grad_y_ptr, kept_ptr, grad_ptr, MULTIPLE, ACT, COMPUTE)


def settings(dtype: torch.dtype, act: str = "relu") -> dict:
    """Return launch settings: in 16 bits, each of 128 threads makes one 16-byte load per input.

    A thread's eight elements then make one byte of ReLU's bits. On an H200 with 10^8 elements in bf16, as % of copy
    bandwidth: forward 99; backward from ReLU's bits 97, otherwise 99. Writing the bits takes 2.7 % longer.
    """
    return {"BLOCK": 1024, "ACT": act, "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32, "num_warps": 4}


def _forward(x: torch.Tensor, residual: torch.Tensor, act: str) -> torch.Tensor:
    x, residual = x.contiguous(), residual.contiguous()
    y = torch.empty_like(x)
    launch(residual_act_kernel, settings(x.dtype, act), x, residual, y, None)
    return y


def _training(x: torch.Tensor, residual: torch.Tensor, act: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, residual = x.contiguous(), residual.contiguous()
    y, kept = torch.empty_like(x), _empty_kept(x, act)
    launch(residual_act_kernel, settings(x.dtype, act), x, residual, y, kept)
    return y, kept


def _empty_kept(x: torch.Tensor, act: str) -> torch.Tensor:
    if act == "relu":
        return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device=x.device)
    return like(x)


def _backward(grad_y: torch.Tensor, kept: torch.Tensor, act: str) -> torch.Tensor:
    grad_y = grad_y.contiguous()
    grad = torch.empty_like(grad_y)
    launch(residual_act_backward_kernel, settings(grad.dtype, act), grad_y, kept, grad)
    return grad


residual_act_op = register(
    "residual_act",
    _forward,
    lambda x, residual, act: like(x),
    training=_training,
    training_fake=lambda x, residual, act: (like(x), _empty_kept(x, act)),
    keep=lambda arguments, results: (results[1], arguments[2]),
    backward=_backward,
    backward_fake=lambda grad_y, kept, act: like(grad_y),
    gradients=lambda backward, needed, grad_y, kept, act: (backward(grad_y, kept, act),) * 2,
)


@planned
def residual_act(x: torch.Tensor, residual: torch.Tensor, act: str = "relu") -> torch.Tensor:
    """Compute act(x + residual) in one launch; differentiable once.

    Args:
        x: floating-point tensor of any shape and strides, copied first if not contiguous, unless both are channels-last
            images.
        residual: tensor of x's shape, dtype and device.
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor of x's shape and dtype, or channels-last if both are. The arithmetic is fp32 (fp64 for fp64
        inputs), rounded once. Under autocast, the wider of two dtypes is used. gelu_tanh's gradient at a sum of inf or
        -inf is its limit, 1 or 0; PyTorch's is NaN.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: act is unknown, the shapes or devices differ, or the tensors are on the CPU while kernels run on a
            GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("residual_act", x=x, residual=residual)
    check_activation("residual_act", act)
    if x.dim() == 4 and channels_last(x, residual):
        return residual_act_op(x.permute(0, 2, 3, 1), residual.permute(0, 2, 3, 1), act).permute(0, 3, 1, 2)
    return residual_act_op(x, residual, act)


def residual_act_reference(x: torch.Tensor, residual: torch.Tensor, act: str = "relu") -> torch.Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    return ACTIVATIONS[act](x + residual)


def residual_act_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic of the gradient with ReLU: 1 comparison; the gradient and a bit in, one gradient
    out."""
    elements = torch.Size(shape).numel()
    return Work(
        flops=elements,
        bytes_read=elements * dtype.itemsize + (elements + 7) // 8,
        bytes_written=elements * dtype.itemsize,
    )


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    block = torch.empty(shape, dtype=dtype, device="meta")
    return (block, block, block, None, block.numel()), settings(dtype) | {"HAS_TAIL": has_tail(block.numel())}


OP = FusedOp(
    name="residual_act",
    fused=residual_act,
    reference=residual_act_reference,
    work=work_per_element(2, tensors=(2, 1)),  # an addition, and ReLU's comparison
    kernel=residual_act_kernel,
    settings=settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options), torch.randn(shape, **options)),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1,), (127,), (1025,), (3, 5, 7), (4, 1023)),
    gpu_shapes=((2**20,), (10_000_000,), (100_000_000,)),
    backward_work=residual_act_backward_work,
)
