"""A transformer's feed-forward layer in two launches:  y = h down^T,  h = act(x up^T) or act(x gate^T) * x up^T.

Unfused in PyTorch, tokens x hidden values go through memory between operations:

    unfused   up: write s | activation: read s, write h | down: read h
    fused     up and activation: write h | down: read h                                             two launches
    unfused   gate: write g | up: write u | activation: read g, write a | product: read a, u, write h | down: read h
    fused     gate, up, activation and product: write h | down: read h                              two launches

In bf16, with 8192 tokens and 11008 hidden values, each read or write is 180 MB, 43 us at an H200's 4.2 TB/s; the
layer's arithmetic takes 1.9 ms in all. The gated kernel reads x once for both matmuls and keeps two accumulators per
tile. The other launches run linear_act's kernel.

One launch for the whole layer would also save h's traffic, but no SM can hold the terms of a token's output: 11008
hidden values times 4096 outputs (benchmarks/experiments/lesson_08.py).

Training saves g = x gate^T and u = x up^T for the gate's backward pass. One launch computes the gradients of both. The
matmuls have no epilogue and are left to PyTorch.

Source: Vaswani et al., arXiv:1706.03762, section 3.3; the gate: Shazeer, arXiv:2002.05202.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import as_autocast_says, as_rows, cdiv, check_linear, check_option, check_together, given
from kernels.op import FusedOp, Work, like, planned, register
from kernels.tiled.linear_act import empty_result, linear_act, linear_act_kernel
from kernels.tiled.linear_act import settings as linear_settings


@triton.jit
def ffn_gated_kernel(
    x_ptr,  # (m, k), any row stride, unit column stride
    gate_ptr,  # (n, k), the same
    up_ptr,  # (n, k), the same
    h_ptr,  # (m, n), contiguous
    g_ptr,  # (m, n), contiguous: x gate^T, kept for the backward pass, or None
    u_ptr,  # (m, n), contiguous: x up^T, the same
    m,
    n,
    k,
    x_row_stride,
    gate_row_stride,
    up_row_stride,
    ACT: tl.constexpr,  # a name in kernels.activations
    COMPUTE: tl.constexpr,  # the dtype of the sums and the epilogue
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # int64 before the multiplications: row * stride passes 2**31 on large tensors.
    tile = tl.program_id(0).to(tl.int64)
    tiles_n = tl.cdiv(n, BLOCK_N)
    row = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inner = tl.arange(0, BLOCK_K)
    g = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    u = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        x = tl.load(x_ptr + row * x_row_stride + at[None, :], mask=(row < m) & (at[None, :] < k), other=0.0)
        of_weights = (col < n) & (at[:, None] < k)
        gate = tl.load(gate_ptr + col * gate_row_stride + at[:, None], mask=of_weights, other=0.0)
        up = tl.load(up_ptr + col * up_row_stride + at[:, None], mask=of_weights, other=0.0)
        g = tl.dot(x, gate, g, input_precision="ieee", out_dtype=COMPUTE)
        u = tl.dot(x, up, u, input_precision="ieee", out_dtype=COMPUTE)
    place, inside = row * n + col, (row < m) & (col < n)
    h = activate(g, ACT, h_ptr.dtype.element_ty) * u
    tl.store(h_ptr + place, h.to(h_ptr.dtype.element_ty), mask=inside)
    if g_ptr is not None:
        tl.store(g_ptr + place, g.to(g_ptr.dtype.element_ty), mask=inside)
        tl.store(u_ptr + place, u.to(u_ptr.dtype.element_ty), mask=inside)


def settings(dtype: torch.dtype) -> dict:
    """Return a dtype's tile and launch options: half of linear_act's tile, because a program has two accumulators."""
    chosen = linear_settings(dtype)
    del chosen["PRECISION"]
    return chosen | {"BLOCK_N": chosen["BLOCK_N"] // 2}


def _launch(x, gate, up, h, g, u, act: str) -> None:
    (m, k), n, chosen = x.shape, gate.shape[0], settings(x.dtype)
    grid = (cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"]),)
    strides = x.stride(0), gate.stride(0), up.stride(0)
    ffn_gated_kernel[grid](x, gate, up, h, g, u, m, n, k, *strides, ACT=act, **chosen)


def run(x, gate, up, act: str, keep_products: bool, launch=_launch) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return h and, with `keep_products`, g and u, after launch(x, gate, up, h, g, u, act) on matrices."""
    h = empty_result(x, gate)
    g, u = (like(h), like(h)) if keep_products else (None, None)
    if h.numel():
        results = [None if each is None else as_rows(each) for each in (h, g, u)]
        with torch.cuda.device_of(x):
            launch(*(as_rows(each) for each in (x, gate, up)), *results, act)
    return h, g, u


def _forward(x: Tensor, gate: Tensor, up: Tensor, act: str) -> Tensor:
    return run(x, gate, up, act, keep_products=False)[0]


def _training(x: Tensor, gate: Tensor, up: Tensor, act: str) -> tuple[Tensor, Tensor, Tensor]:
    return run(x, gate, up, act, keep_products=True)


@triton.jit
def ffn_gated_backward_kernel(
    grad_h_ptr,  # (elements,), like all others
    g_ptr,
    u_ptr,
    grad_g_ptr,
    grad_u_ptr,
    elements,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    grad_h = tl.load(grad_h_ptr + offset, mask=inside).to(COMPUTE)
    g = tl.load(g_ptr + offset, mask=inside).to(COMPUTE)
    u = tl.load(u_ptr + offset, mask=inside).to(COMPUTE)
    grad_g, grad_u = activate_gradient(grad_h * u, g, ACT), grad_h * activate(g, ACT)
    tl.store(grad_g_ptr + offset, grad_g.to(grad_g_ptr.dtype.element_ty), mask=inside)
    tl.store(grad_u_ptr + offset, grad_u.to(grad_u_ptr.dtype.element_ty), mask=inside)


def _gradients_of_products(grad_h: Tensor, g: Tensor, u: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of g and u."""
    grad_g, grad_u = like(g), like(u)
    elements, compute = g.numel(), tl.float64 if g.dtype == torch.float64 else tl.float32
    if elements:
        with torch.cuda.device_of(g):
            ffn_gated_backward_kernel[(cdiv(elements, 1024),)](
                grad_h.contiguous(), g, u, grad_g, grad_u, elements, ACT=act, COMPUTE=compute, BLOCK=1024, num_warps=4
            )
    return grad_g, grad_u


def _gradients(of_products, needed, grad_h: Tensor, x: Tensor, gate: Tensor, up: Tensor, g, u, act: str) -> tuple:
    """Return the gradients of x, gate and up that are needed. The matmuls use the precision set in
    torch.backends.cuda.matmul."""
    to_x, to_gate, to_up, *_ = needed
    grad_g, grad_u = of_products(grad_h, g, u, act)
    return (
        grad_g @ gate + grad_u @ up if to_x else None,
        as_rows(grad_g).T @ as_rows(x) if to_gate else None,
        as_rows(grad_u).T @ as_rows(x) if to_up else None,
    )


gated_op = register(
    "ffn",
    _forward,
    lambda x, gate, up, act: empty_result(x, gate),
    training=_training,
    training_fake=lambda x, gate, up, act: tuple(empty_result(x, gate) for _ in range(3)),
    keep=lambda arguments, results: (*arguments[:3], *results[1:], arguments[3]),
    backward=_gradients_of_products,
    backward_fake=lambda grad_h, g, u, act: (like(g), like(u)),
    gradients=_gradients,
)


def _check(act: str, x, up, down, gate, up_bias, down_bias) -> None:
    check_activation("ffn", act)
    check_together("ffn", x=x, up=up, down=down, **given(gate=gate, up_bias=up_bias, down_bias=down_bias))
    if gate is not None and up_bias is not None:
        raise ValueError("ffn takes up_bias or gate, got both: leave one out")
    check_linear("ffn", x, up, up_bias, names=("up", "up_bias"))
    if gate is not None and gate.shape != up.shape:
        raise ValueError(f"ffn takes gate of up's shape, {tuple(up.shape)}, got {tuple(gate.shape)}: reshape it")
    if down.dim() != 2 or down.shape[1] != up.shape[0]:
        raise ValueError(f"ffn takes down of (outputs, {up.shape[0]}) here, got {tuple(down.shape)}: transpose it")
    if down_bias is not None and down_bias.shape != down.shape[:1]:
        raise ValueError(f"ffn takes down_bias of ({len(down)},), got {tuple(down_bias.shape)}: reshape it")


@planned
def ffn(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    act: str = "gelu_tanh",
) -> Tensor:
    """Compute act(x up^T + up_bias) down^T + down_bias, or with a gate (act(x gate^T) * x up^T) down^T + down_bias, in
    two launches; differentiable once.

    Args:
        x: floating-point tensor of shape (..., width), any strides.
        up, gate: (hidden, width). All tensors have x's dtype and device.
        down: (outputs, hidden).
        up_bias, down_bias: (hidden,), only without a gate, and (outputs,).
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor of shape (..., outputs) and x's dtype (under autocast, autocast's). Products are summed in
        fp32 (fp64 for fp64 inputs), and the activation is applied before rounding. The hidden values and the result are
        rounded once each.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes do not match, act is unknown, up_bias is given with a gate, devices differ, or tensors are on
            the CPU while kernels run on a GPU.
    """
    x, up, down, gate, up_bias, down_bias = as_autocast_says(x, up, down, gate, up_bias, down_bias)
    _check(act, x, up, down, gate, up_bias, down_bias)
    h = linear_act(x, up, up_bias, None, act) if gate is None else gated_op(x, gate, up, act)
    return linear_act(h, down, down_bias, act=None)


class FeedForward(torch.nn.Module):
    """ffn with learned weights: up, down and, if gated, gate. Takes device and dtype like torch.nn.Linear."""

    def __init__(
        self, width: int, hidden: int, gated: bool = False, bias: bool = False, act: str = "gelu_tanh", **options
    ):
        super().__init__()
        check_activation("FeedForward", act)
        check_option("FeedForward", "gated", gated, bool)
        check_option("FeedForward", "bias", bias, bool)
        if gated and bias:
            raise ValueError("FeedForward takes no bias if gated, got both: leave one out")
        self.act, self.up = act, torch.nn.Linear(width, hidden, bias, **options)
        self.down = torch.nn.Linear(hidden, width, bias, **options)
        self.gate = torch.nn.Linear(width, hidden, False, **options) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate.weight
        return ffn(x, self.up.weight, self.down.weight, gate, self.up.bias, self.down.bias, self.act)

    def extra_repr(self) -> str:
        return f"act={self.act!r}"


def ffn_reference(x, up, down, gate=None, up_bias=None, down_bias=None, act: str = "gelu_tanh") -> Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    linear, activation = torch.nn.functional.linear, ACTIVATIONS[act]
    h = activation(linear(x, up, up_bias)) if gate is None else activation(linear(x, gate)) * linear(x, up)
    return linear(h, down, down_bias)


def ffn_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (tokens, width, hidden) or (tokens, width, hidden, gated) without biases:
    two or three matmuls, GELU's 9 operations and the gate's one; x and the weights read once, y written once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    flops = products * costs.product(tokens, width, hidden) + (costs.GELU_TANH + gated) * tokens * hidden
    return Work(flops, (tokens + products * hidden) * width * dtype.itemsize, tokens * width * dtype.itemsize)


def ffn_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic of all the layer's gradients: two matmuls for each of the forward's, and GELU's
    20 operations; grad_y, x, the weights and the saved hidden values read once, the gradients written once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    return Work(
        flops=products * 4 * tokens * width * hidden + (22 if gated else 20) * tokens * hidden,
        bytes_read=(2 * tokens * width + products * (width * hidden + tokens * hidden)) * dtype.itemsize,
        bytes_written=(tokens * width + products * width * hidden) * dtype.itemsize,
    )


def _inputs(tokens: int, width: int, hidden: int, gated: bool = False, **options) -> tuple[Tensor, ...]:
    # Weights as large as a trained layer's, so that hidden values and results are as large as x.
    shapes = [(hidden, width), (width, hidden)] + [(hidden, width)] * bool(gated)
    weights = [torch.randn(shape, **options) / max(1, shape[1]) ** 0.5 for shape in shapes]
    return torch.randn(tokens, width, **options), *weights


def _compile_arguments(tokens: int, width: int, hidden: int, gated: bool = False, *, dtype: torch.dtype):
    sizes = (tokens, width), (hidden, width), (tokens, hidden)
    x, weight, h = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    if not gated:
        arguments = x, weight, None, None, h, None, tokens, hidden, width, width, width
        return arguments, {"ACT": "gelu_tanh", **linear_settings(dtype)}
    arguments = x, weight, weight, h, None, None, tokens, hidden, width, *3 * (width,)
    return arguments, {"ACT": "gelu_tanh", **settings(dtype)}


OP = FusedOp(
    name="ffn",
    fused=ffn,
    reference=ffn_reference,
    work=ffn_work,
    kernel=ffn_gated_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 33, 129, True), (5, 33, 129), (70, 72, 136, True), (33, 40, 72)),
    gpu_shapes=((8192, 4096, 11008), (8192, 4096, 11008, True)),
    backward_work=ffn_backward_work,
    kernel_for=lambda *shape: ffn_gated_kernel if any(shape[3:]) else linear_act_kernel,
)
