"""A transformer's feed-forward layer in two launches:  y = h down^T,  h = act(x up^T) or act(x gate^T) * x up^T.

Written out in PyTorch, tokens x hidden values go through memory between every two operations:

    unfused   up: write s | activation: read s, write h | down: read h
    fused     up and activation: write h | down: read h                                             two launches
    unfused   gate: write g | up: write u | activation: read g, write a | product: read a, u, write h | down: read h
    fused     gate, up, activation and product: write h | down: read h                              two launches

In bf16 with 8192 tokens and 11008 hidden values each of these is 180 MB, 43 us at an H200's 4.2 TB/s; all the
arithmetic of the layer takes 1.9 ms. The gated kernel reads x once for both products, into two sums side by side.

One launch for the whole layer would spare h as well, two passes over it. It was measured and rejected
(benchmarks/ffn_one_launch.py): no multiprocessor can hold what a token's output is a sum of, 11008 hidden values times
4096 outputs. A program that owns some hidden values of some tokens must add its part of every output into memory, in
fp32: 86 parts an output, 11.5 GB of additions where h is 0.36 GB written and read. On an H200 it reaches 221 TFLOP/s,
where two launches reach 791 and torch.compile 763 in the same run; with a gate, two launches 778 and torch.compile 754.
Computing h anew for each of 16 tiles of the output, to keep it on the chip, would be 8.5 times the arithmetic.

Training keeps g and u, or s, for the backward pass: the activation's gradient in one launch, then matmuls that have no
epilogue.

Source: Vaswani et al., arXiv:1706.03762, section 3.3; the gate: Shazeer, arXiv:2002.05202.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_autocast_says, check_together, multiprocessors
from kernels.elementwise.geglu import geglu_backward_kernel, geglu_kernel
from kernels.elementwise.geglu import settings as geglu_settings
from kernels.fused_op import FusedOp, Work
from kernels.sizes import cdiv
from kernels.tiled.linear_act import (
    as_matrix,
    grouped_order,
    linear_act,
    linear_act_kernel,
    take_descriptors,
)
from kernels.tiled.linear_act import compile_arguments as compile_linear


@triton.jit
def gated_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K)
    gate_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    up_desc,  # the same
    h_desc,  # (m, n) in tiles of (BLOCK_M, BLOCK_N)
    g_desc,  # the same: x gate^T, or None where no backward pass will ask for it
    u_desc,  # the same: x up^T, or None
    m,
    n,
    k,
    ACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            g = tl.dot(x, gate_desc.load([col, step * BLOCK_K]).T, g)
            u = tl.dot(x, up_desc.load([col, step * BLOCK_K]).T, u)
        h_desc.store([row, col], (activate(g, ACT, h_desc.dtype) * u).to(h_desc.dtype))
        if g_desc is not None:
            g_desc.store([row, col], g.to(g_desc.dtype))
            u_desc.store([row, col], u.to(u_desc.dtype))


def settings(m: int, n: int, multiprocessors: int = 132) -> dict:
    """Tiles of gated_kernel for an (m, n) result of 16-bit values; those of the other launches are linear_act's.

    Two sums of 128 x 128 take as many registers and as much shared memory as linear_act's one of 128 x 256. On an H200
    with 8192 tokens, 4096 -> 11008, bf16: 781 TFLOP/s. The loop over tiles stays a loop around the loop over K: made
    one with it (flatten), as linear_act's is, it reaches 578.
    """
    large = 4 * cdiv(m, 128) * cdiv(n, 128) >= 3 * multiprocessors
    size = 128 if large else 64
    return {
        "BLOCK_M": size,
        "BLOCK_N": size,
        "BLOCK_K": 64,
        "GROUP": 16,
        "num_warps": size // 16,
        "num_stages": 4,
    }


def _launch_gated(x, gate, up, act: str, h, g, u) -> None:
    (m, k), n = x.shape, gate.shape[0]
    chosen = settings(m, n, multiprocessors(x))
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    describe = TensorDescriptor.from_tensor
    operands = describe(x, [tile_m, tile_k]), describe(gate, [tile_n, tile_k]), describe(up, [tile_n, tile_k])
    results = [None if each is None else describe(each, [tile_m, tile_n]) for each in (h, g, u)]
    grid = (min(multiprocessors(x), cdiv(m, tile_m) * cdiv(n, tile_n)),)
    gated_kernel[grid](*operands, *results, m, n, k, ACT=act, **chosen)


def _launch_elementwise(kernel, act: str, *tensors: torch.Tensor) -> None:
    """GEGLU's kernels, which take any of the activations."""
    elements = tensors[0].numel()
    chosen = geglu_settings(tensors[0].dtype) | {"ACT": act}
    kernel[(cdiv(elements, chosen["BLOCK"]),)](*tensors, elements, **chosen)


def _gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, act: str, keep: bool) -> tuple:
    """h, and g and u or None."""
    h = x.new_empty(*x.shape[:-1], gate.shape[0])
    g, u = (torch.empty_like(h), torch.empty_like(h)) if keep else (None, None)
    if h.numel() == 0:
        return h, g, u
    matrices = [as_matrix(each) for each in (x, gate, up)]
    results = [None if each is None else as_matrix(each) for each in (h, g, u)]
    with torch.cuda.device_of(x):
        if x.dtype.itemsize == 2 and take_descriptors(*matrices, results[0]):
            _launch_gated(*matrices, act, *results)
        else:
            g, u = linear_act(x, gate, act=None), linear_act(x, up, act=None)
            _launch_elementwise(geglu_kernel, act, g, u, h)
    return h, g, u


def _forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
    return _gated(x, gate, up, act, keep=False)[0]


def _forward_keeping(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, act: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _gated(x, gate, up, act, keep=True)


def _backward(grad_h: torch.Tensor, g: torch.Tensor, u: torch.Tensor, act: str) -> tuple[torch.Tensor, torch.Tensor]:
    grad_g, grad_u = torch.empty_like(g), torch.empty_like(u)
    if g.numel():
        with torch.cuda.device_of(g):
            _launch_elementwise(geglu_backward_kernel, act, grad_h.contiguous(), g, u, grad_g, grad_u)
    return grad_g, grad_u


def _keep(ctx, inputs, output):
    x, gate, up, ctx.act = inputs
    ctx.set_materialize_grads(False)  # no tensors of zeros for g and u, which nobody differentiates
    ctx.save_for_backward(x, gate, up, *output[1:])


def _gradients(ctx, grad_h: torch.Tensor | None, of_g, of_u, elementwise=_backward):
    if grad_h is None:
        return None, None, None, None
    x, gate, up, g, u = ctx.saved_tensors
    to_x, to_gate, to_up, _ = ctx.needs_input_grad
    grad_g, grad_u = elementwise(grad_h, g, u, ctx.act)
    return (
        grad_g @ gate + grad_u @ up if to_x else None,
        as_matrix(grad_g).T @ as_matrix(x) if to_gate else None,
        as_matrix(grad_u).T @ as_matrix(x) if to_up else None,
        None,
    )


class GatedFunction(torch.autograd.Function):
    """act(x gate^T) * x up^T and both products, for autograd."""

    forward = staticmethod(_forward_keeping)
    setup_context = staticmethod(_keep)
    backward = staticmethod(once_differentiable(_gradients))


# The same for torch.compile, which does not look inside registered operators.
gated_op = torch.library.custom_op("kernel_fusion::ffn_gated", _forward, mutates_args=())
gated_training_op = torch.library.custom_op("kernel_fusion::ffn_gated_training", _forward_keeping, mutates_args=())
gated_backward_op = torch.library.custom_op("kernel_fusion::ffn_gated_backward", _backward, mutates_args=())


def _hidden_like(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], gate.shape[0])


gated_op.register_fake(lambda x, gate, up, act: _hidden_like(x, gate))
gated_training_op.register_fake(lambda x, gate, up, act: tuple(_hidden_like(x, gate) for _ in range(3)))
gated_backward_op.register_fake(lambda grad_h, g, u, act: (torch.empty_like(g), torch.empty_like(u)))
gated_training_op.register_autograd(partial(_gradients, elementwise=gated_backward_op), setup_context=_keep)


def _check(x, up, down, gate, up_bias, down_bias, act: str) -> None:
    check_activation("ffn", act)
    named = {"x": x, "up": up, "down": down, "gate": gate, "up_bias": up_bias, "down_bias": down_bias}
    given = {name: each for name, each in named.items() if each is not None}
    check_together("ffn", **given)
    if gate is not None and up_bias is not None:
        raise ValueError("ffn takes no up_bias beside gate, got both: leave one out")
    if x.dim() == 0 or up.dim() != 2 or x.shape[-1] != up.shape[1]:
        raise ValueError(
            f"ffn takes x of (..., width) and up of (hidden, width), got {tuple(x.shape)} and {tuple(up.shape)}: "
            f"transpose up, or reshape x"
        )
    if down.dim() != 2 or down.shape[1] != up.shape[0]:
        raise ValueError(
            f"ffn takes down of (outputs, {up.shape[0]}) beside up of {tuple(up.shape)}, got {tuple(down.shape)}: "
            f"transpose it"
        )
    for name, shape in {"gate": up.shape, "up_bias": up.shape[:1], "down_bias": down.shape[:1]}.items():
        if name in given and given[name].shape != shape:
            raise ValueError(f"ffn takes {name} of {tuple(shape)}, got {tuple(given[name].shape)}: reshape it")


def ffn(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    gate: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    act: str = "gelu_tanh",
) -> torch.Tensor:
    """act(x up^T + up_bias) down^T + down_bias, or with a gate (act(x gate^T) * x up^T) down^T + down_bias, in two
    launches; differentiable once.

    Args:
        x: floating-point tensor of shape (..., width), any strides.
        up: (hidden, width), of x's dtype and on its device, as are the others.
        down: (outputs, hidden).
        gate: (hidden, width).
        up_bias, down_bias: (hidden,), only without a gate, and (outputs,).
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor of shape (..., outputs) and x's dtype, the autocast dtype under autocast. Products are
        summed in fp32 (fp64 for fp64 inputs), where the activation is applied too; the hidden values and the result are
        rounded once each. What gated_kernel cannot take (fp32, fp64, rows that do not start at multiples of 16 bytes,
        GPUs without the shared memory) takes four launches with a gate.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes that do not fit, act is none of these, a bias beside a gate, two devices, or tensors on the
            CPU where kernels run on a GPU.
    """
    x, up, down, gate, up_bias, down_bias = as_autocast_says(x, up, down, gate, up_bias, down_bias)
    _check(x, up, down, gate, up_bias, down_bias, act)
    if gate is None:
        h = linear_act(x, up, up_bias, None, act)
    else:
        tracked = torch.is_grad_enabled() and any(each.requires_grad for each in (x, gate, up))
        if torch.compiler.is_compiling():
            h = gated_training_op(x, gate, up, act)[0] if tracked else gated_op(x, gate, up, act)
        else:
            h = GatedFunction.apply(x, gate, up, act)[0] if tracked else _forward(x, gate, up, act)
    return linear_act(h, down, down_bias, act=None)


class FeedForward(torch.nn.Module):
    """ffn with weights that are learned, initialised as torch.nn.Linear's: up, down and, where gated, gate."""

    def __init__(
        self,
        width: int,
        hidden: int,
        gated: bool = False,
        bias: bool = False,
        act: str = "gelu_tanh",
        device=None,
        dtype=None,
    ):
        super().__init__()
        check_activation("FeedForward", act)
        if gated and bias:
            raise ValueError("FeedForward takes no bias where gated, got both: leave one out")
        self.act = act
        self.up = torch.nn.Linear(width, hidden, bias, device, dtype)
        self.down = torch.nn.Linear(hidden, width, bias, device, dtype)
        self.gate = torch.nn.Linear(width, hidden, False, device, dtype) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = None if self.gate is None else self.gate.weight
        return ffn(x, self.up.weight, self.down.weight, gate, self.up.bias, self.down.bias, self.act)


def ffn_reference(
    x: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    gate: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    act: str = "gelu_tanh",
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    linear, activation = torch.nn.functional.linear, ACTIVATIONS[act]
    h = activation(linear(x, up, up_bias)) if gate is None else activation(linear(x, gate)) * linear(x, up)
    return linear(h, down, down_bias)


def ffn_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (tokens, width, hidden) or (tokens, width, hidden, gated) without biases: two or three
    products, GELU's 9 operations and the gate's one; x and the weights in once, y out once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    return Work(
        flops=products * 2 * tokens * width * hidden + (10 if gated else 9) * tokens * hidden,
        bytes_read=(tokens * width + products * width * hidden) * dtype.itemsize,
        bytes_written=tokens * width * dtype.itemsize,
    )


def ffn_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradients: two products for each of the forward's, and GELU's 20 operations; grad_y,
    x, the weights and what was kept of the hidden values in once, the gradients out once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    return Work(
        flops=products * 4 * tokens * width * hidden + (22 if gated else 20) * tokens * hidden,
        bytes_read=(2 * tokens * width + products * (width * hidden + tokens * hidden)) * dtype.itemsize,
        bytes_written=(tokens * width + products * width * hidden) * dtype.itemsize,
    )


def _inputs(tokens: int, width: int, hidden: int, gated: bool = False, **options) -> tuple[torch.Tensor, ...]:
    # Weights of the size that a trained layer has, so that hidden values and results are as large as x is.
    shapes = [(hidden, width), (width, hidden)] + [(hidden, width)] * bool(gated)
    weights = [torch.randn(shape, **options) / max(1, shape[1]) ** 0.5 for shape in shapes]
    return torch.randn(tokens, width, **options), *weights


def _compile_arguments(tokens: int, width: int, hidden: int, gated: bool = False, *, dtype: torch.dtype):
    if not gated:
        return compile_linear(tokens, width, hidden, dtype, bias=False)
    chosen = settings(tokens, hidden)
    describe = TensorDescriptor.from_tensor
    sizes = (tokens, width), (hidden, width), (tokens, hidden)
    x, weight, h = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    of_weight = describe(weight, [tile_n, tile_k])
    operands = describe(x, [tile_m, tile_k]), of_weight, of_weight, describe(h, [tile_m, tile_n]), None, None
    return (*operands, tokens, hidden, width), {"ACT": "gelu_tanh", **chosen}


OP = FusedOp(
    name="ffn",
    fused=ffn,
    reference=ffn_reference,
    work=ffn_work,
    kernel=linear_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 33, 129, True), (5, 33, 129), (70, 72, 136, True), (33, 40, 72)),
    gpu_shapes=((8192, 4096, 11008), (8192, 4096, 11008, True)),
    backward_work=ffn_backward_work,
    kernel_for=lambda *shape: gated_kernel if len(shape) == 4 and shape[3] else linear_act_kernel,
)
