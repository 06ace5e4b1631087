"""A transformer's feed-forward layer in two launches:  y = h down^T,  h = act(x up^T) or act(x gate^T) * x up^T.

Written out in PyTorch, tokens x hidden values go through memory between every two operations:

    unfused   up: write s | activation: read s, write h | down: read h
    fused     up and activation: write h | down: read h                                             two launches
    unfused   gate: write g | up: write u | activation: read g, write a | product: read a, u, write h | down: read h
    fused     gate, up, activation and product: write h | down: read h                              two launches

In bf16 with 8192 tokens and 11008 hidden values each of these is 180 MB, 43 us at an H200's 4.2 TB/s; all the
arithmetic of the layer takes 1.9 ms. The gated kernel reads x once for both products, into two sums side by side; the
other launches are linear_act's.

One launch for the whole layer would spare h as well, but no multiprocessor can hold what a token's output is a sum of,
11008 hidden values times 4096 outputs (benchmarks/ffn_one_launch.py).

Source: Vaswani et al., arXiv:1706.03762, section 3.3; the gate: Shazeer, arXiv:2002.05202.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import costs
from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_autocast_says, as_matrix, cdiv, check_linear, check_together, given, multiprocessors
from kernels.descriptors import takes_descriptors
from kernels.elementwise.geglu import geglu_kernel
from kernels.op import FusedOp, Work, like, planned, register
from kernels.tiled import ffn_backward, linear_act_descriptors
from kernels.tiled.linear_act import empty_result, linear_act
from kernels.tiled.linear_act_descriptors import grouped_order


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
    """Tiles for (m, n): two sums of 128 x 128 take as many registers and bytes as linear_act's one of 128 x 256."""
    size = 128 if 4 * cdiv(m, 128) * cdiv(n, 128) >= 3 * multiprocessors else 64
    tile = {"BLOCK_M": size, "BLOCK_N": size, "BLOCK_K": 64, "GROUP": 16}
    return {**tile, "num_warps": size // 16, "num_stages": 4}


def _operands(x, gate, up, h, g, u, chosen: dict) -> tuple:
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    describe = TensorDescriptor.from_tensor
    operands = describe(x, [tile_m, tile_k]), describe(gate, [tile_n, tile_k]), describe(up, [tile_n, tile_k])
    results = [None if each is None else describe(each, [tile_m, tile_n]) for each in (h, g, u)]
    return *operands, *results, x.shape[0], gate.shape[0], x.shape[1]


def _launch(x, gate, up, h, g, u, act: str) -> None:
    (m, n), programs = h.shape, multiprocessors(x)
    chosen = settings(m, n, programs)
    grid = (min(programs, cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"])),)
    gated_kernel[grid](*_operands(x, gate, up, h, g, u, chosen), ACT=act, **chosen)


def _gated(x: Tensor, gate: Tensor, up: Tensor, act: str, keep: bool) -> tuple:
    """h, and g = x gate^T and u = x up^T where they are kept."""
    h = empty_result(x, gate)
    g, u = (like(h), like(h)) if keep else (None, None)
    if h.numel() == 0:
        return h, g, u
    matrices = [as_matrix(each) for each in (x, gate, up)]
    results = [None if each is None else as_matrix(each) for each in (h, g, u)]
    with torch.cuda.device_of(x):
        if x.dtype.itemsize == 2 and takes_descriptors(*matrices, results[0]):
            _launch(*matrices, *results, act)
        else:
            g, u = linear_act(x, gate, act=None), linear_act(x, up, act=None)
            ffn_backward.launch_elementwise(geglu_kernel, act, g, u, h)
    return h, g, u


def _forward(x: Tensor, gate: Tensor, up: Tensor, act: str) -> Tensor:
    return _gated(x, gate, up, act, keep=False)[0]


def _training(x: Tensor, gate: Tensor, up: Tensor, act: str) -> tuple[Tensor, Tensor, Tensor]:
    return _gated(x, gate, up, act, keep=True)


gated_op = register(
    "ffn_gated",
    _forward,
    lambda x, gate, up, act: empty_result(x, gate),
    training=_training,
    training_fake=lambda x, gate, up, act: tuple(empty_result(x, gate) for _ in range(3)),
    keep=lambda arguments, results: (*arguments[:3], *results[1:], arguments[3]),
    backward=ffn_backward.gradients_of_products,
    backward_fake=lambda grad_h, g, u, act: (like(g), like(u)),
    gradients=ffn_backward.gradients,
)


def _check(act: str, x, up, down, gate, up_bias, down_bias) -> None:
    check_activation("ffn", act)
    check_together("ffn", x=x, up=up, down=down, **given(gate=gate, up_bias=up_bias, down_bias=down_bias))
    if gate is not None and up_bias is not None:
        raise ValueError("ffn takes no up_bias beside gate, got both: leave one out")
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
    """act(x up^T + up_bias) down^T + down_bias, or with a gate (act(x gate^T) * x up^T) down^T + down_bias, in two
    launches; differentiable once.

    Args:
        x: floating-point tensor of shape (..., width), any strides.
        up, gate: (hidden, width), of x's dtype and on its device, as are the others.
        down: (outputs, hidden).
        up_bias, down_bias: (hidden,), only without a gate, and (outputs,).
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor of shape (..., outputs) and x's dtype, the autocast dtype under autocast. Products are
        summed in fp32 (fp64 for fp64 inputs), where the activation is applied too; the hidden values and the result are
        rounded once each. What gated_kernel cannot take (fp32, fp64, rows that do not start at multiples of 16 bytes,
        GPUs without the shared memory) takes four launches with a gate.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes that do not fit, another act, up_bias beside a gate, two devices, or the CPU where a GPU is.
    """
    x, up, down, gate, up_bias, down_bias = as_autocast_says(x, up, down, gate, up_bias, down_bias)
    _check(act, x, up, down, gate, up_bias, down_bias)
    h = linear_act(x, up, up_bias, None, act) if gate is None else gated_op(x, gate, up, act)
    return linear_act(h, down, down_bias, act=None)


class FeedForward(torch.nn.Module):
    """ffn with learned weights, up, down and, where gated, gate; device and dtype as torch.nn.Linear takes them."""

    def __init__(
        self, width: int, hidden: int, gated: bool = False, bias: bool = False, act: str = "gelu_tanh", **options
    ):
        super().__init__()
        check_activation("FeedForward", act)
        if gated and bias:
            raise ValueError("FeedForward takes no bias where gated, got both: leave one out")
        self.act, self.up = act, torch.nn.Linear(width, hidden, bias, **options)
        self.down = torch.nn.Linear(hidden, width, bias, **options)
        self.gate = torch.nn.Linear(width, hidden, False, **options) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate.weight
        return ffn(x, self.up.weight, self.down.weight, gate, self.up.bias, self.down.bias, self.act)

    def extra_repr(self) -> str:
        return f"act={self.act!r}"


def ffn_reference(x, up, down, gate=None, up_bias=None, down_bias=None, act: str = "gelu_tanh") -> Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    linear, activation = torch.nn.functional.linear, ACTIVATIONS[act]
    h = activation(linear(x, up, up_bias)) if gate is None else activation(linear(x, gate)) * linear(x, up)
    return linear(h, down, down_bias)


def ffn_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (tokens, width, hidden) or (tokens, width, hidden, gated) without biases: two or three
    products, GELU's 9 operations and the gate's one; x and the weights in once, y out once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    flops = products * costs.product(tokens, width, hidden) + (costs.GELU_TANH + gated) * tokens * hidden
    return Work(flops, (tokens + products * hidden) * width * dtype.itemsize, tokens * width * dtype.itemsize)


def _inputs(tokens: int, width: int, hidden: int, gated: bool = False, **options) -> tuple[Tensor, ...]:
    # Weights of the size that a trained layer has, so that hidden values and results are as large as x is.
    shapes = [(hidden, width), (width, hidden)] + [(hidden, width)] * bool(gated)
    weights = [torch.randn(shape, **options) / max(1, shape[1]) ** 0.5 for shape in shapes]
    return torch.randn(tokens, width, **options), *weights


def _compile_arguments(tokens: int, width: int, hidden: int, gated: bool = False, *, dtype: torch.dtype):
    if not gated:
        return linear_act_descriptors.compile_arguments(tokens, width, hidden, dtype, bias=False)
    chosen = settings(tokens, hidden)
    sizes = (tokens, width), (hidden, width), (tokens, hidden)
    x, weight, h = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    return _operands(x, weight, weight, h, None, None, chosen), {"ACT": "gelu_tanh", **chosen}


OP = FusedOp(
    name="ffn",
    fused=ffn,
    reference=ffn_reference,
    work=ffn_work,
    kernel=gated_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 33, 129, True), (5, 33, 129), (70, 72, 136, True), (33, 40, 72)),
    gpu_shapes=((8192, 4096, 11008), (8192, 4096, 11008, True)),
    backward_work=ffn_backward.work,
    kernel_for=lambda *shape: gated_kernel if any(shape[3:]) else linear_act_descriptors.linear_act_descriptors_kernel,
)
