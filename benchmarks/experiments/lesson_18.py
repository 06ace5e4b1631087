"""Lesson 18: short kernels, and the gaps between them.

A decoder layer for one token, in seven versions: eager with a separate matmul for each of q, k and v, eager, compiled,
one kernel per step, the same with programmatic dependent launch, signalled early and late, and the persistent kernel.
Each is launched from Python and replayed from a CUDA graph.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import kernels
from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.decoder_layer import OP, attend, decoder_layer_reference, product, weight_block

# The sizes of Qwen3 0.6B, but with a head dimension of 64 (its own is 128), and of Llama 3 8B.
SHAPES = {"small": (1024, 16, 8, 3072, 512), "8B": (4096, 32, 8, 14336, 1024)}
RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
LAYERS = 8  # each with its own weights: one layer's would stay in L2
EPS = 1e-6
BLOCK_N, BLOCK_K = 8, 1024  # the persistent kernel's tiles
EMPTY = 100  # empty kernels per call
STREAMS = 20  # kernels per call that read, each different memory
STREAM_BLOCK = 16384  # fp32: with 32 warps, one program per SM


@triton.jit
def empty_kernel(x_ptr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def stream_kernel(x_ptr, y_ptr, blocks, BLOCK: tl.constexpr):
    """Sum `blocks` consecutive blocks."""
    me = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(blocks):
        total += tl.load(x_ptr + (me * blocks + block) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y_ptr + me, tl.sum(total))


@triton.jit
def rows_kernel(
    weight_ptr,  # (rows, cols)
    other_ptr,  # the same: up, where weight is gate; or None
    x_ptr,  # (cols,)
    residual_ptr,  # (cols,), added to x before the norm, or None
    norm_ptr,  # (cols,), or None
    y_ptr,  # (rows,)
    first_ptr,  # (rows,), added to y, or None
    second_ptr,  # the same
    rows,
    cols,
    eps,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
    LATE: tl.constexpr,
):
    tile, row = tl.program_id(0), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight = weight_block(weight_ptr, tile, 0, rows, cols, BLOCK_N, BLOCK_K)  # no kernel writes it
    if PDL:
        if not LATE:
            gdc_launch_dependents()  # the next kernel's programs may start as soon as they fit
        gdc_wait()  # until the previous kernel has ended and its stores are visible
    given = weight_ptr if other_ptr is None else other_ptr
    after = rows if other_ptr is None else tile  # a tile beyond the last is not loaded
    y, weight = product(
        weight, weight_ptr, tile, given, after, rows, cols, x_ptr, residual_ptr, norm_ptr, eps, BLOCK_N, BLOCK_K
    )
    if other_ptr is not None:
        u, weight = product(
            weight, other_ptr, tile, other_ptr, rows, rows, cols, x_ptr, residual_ptr, norm_ptr, eps, BLOCK_N, BLOCK_K
        )
        y = y * tl.sigmoid(y) * u
    if PDL and LATE:
        gdc_launch_dependents()  # only now, with all weights loaded, may others take registers and warps
    if first_ptr is not None:
        y += tl.load(first_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
        y += tl.load(second_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < rows)


@triton.jit
def one_query_kernel(
    qkv_ptr,  # ((heads + 2 key_heads) dim,)
    keys_ptr,  # (keys, key_heads, dim)
    values_ptr,  # the same
    seen_ptr,  # (heads dim,)
    heads,
    key_heads,
    keys,
    scale,
    D: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PDL: tl.constexpr,
    LATE: tl.constexpr,
):
    head, d = tl.program_id(0), tl.arange(0, D)
    key_head = head // (heads // key_heads)
    if PDL:
        if not LATE:
            gdc_launch_dependents()
        gdc_wait()
    new = qkv_ptr + (heads + key_head) * D
    acc, _, total = attend(
        qkv_ptr + head * D, new, new + key_heads * D, keys_ptr + key_head * D, values_ptr + key_head * D,
        0, keys, True, key_heads * D, D, scale, D, BLOCK_KEYS,
    )  # fmt: skip
    if PDL and LATE:
        gdc_launch_dependents()
    tl.store(seen_ptr + head * D + d, (acc / total).to(seen_ptr.dtype.element_ty))


def layer_in_steps(
    x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down, pdl: bool = False, late: bool = False
) -> tuple[Tensor, Tensor]:
    """Return decoder_layer's (y, s) from five launches, one kernel per step; kernels that need a norm compute it.

    pdl: each kernel is launched before the previous one has ended, and waits for its stores (sm_90 and above); with
        `late` a kernel lets the next one start when it has loaded everything, otherwise at once.
    """
    length, key_heads, dim = keys.shape
    width, heads, hidden = len(x), out.shape[1] // dim, len(gate)
    found, seen, s, between, y = (x.new_empty(size) for size in (len(qkv), heads * dim, width, hidden, width))
    options = {"PDL": pdl, "LATE": late, "num_warps": 8} | ({"launch_pdl": True} if pdl else {})

    def rows_of(weight, other, given, residual, norm, result, first=None, second=None):
        rows, cols = weight.shape
        rows_kernel[(triton.cdiv(rows, BLOCK_N),)](
            weight, other, given, residual, norm, result, first, second, rows, cols, EPS,
            BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, **options,
        )  # fmt: skip

    rows_of(qkv, None, x, residual, attention_norm, found)
    one_query_kernel[(heads,)](
        found, keys, values, seen, heads, key_heads, length, dim**-0.5, D=dim, BLOCK_KEYS=64, **options
    )
    rows_of(out, None, seen, None, None, s, x, residual)
    rows_of(gate, up, s, None, ffn_norm, between)
    rows_of(down, None, between, None, None, y)
    return y, s


def layer_product_by_product(
    x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down
) -> tuple[Tensor, Tensor]:
    """Return decoder_layer's (y, s) in eager PyTorch with separate matmuls for q, k and v: before horizontal fusion."""
    key_heads, dim = keys.shape[1:]
    s = x + residual
    h = functional.rms_norm(s, s.shape, attention_norm, EPS)
    parts = qkv.split((out.shape[1], key_heads * dim, key_heads * dim))
    q, key, value = (functional.linear(h, part) for part in parts)
    k, v = (
        torch.cat([old, new.view(1, key_heads, dim)]).transpose(0, 1) for old, new in ((keys, key), (values, value))
    )
    seen = functional.scaled_dot_product_attention(q.view(1, -1, 1, dim), k[None], v[None], enable_gqa=True)
    s = s + functional.linear(seen.flatten(), out)
    h = functional.rms_norm(s, s.shape, ffn_norm, EPS)
    return functional.linear(functional.silu(functional.linear(h, gate)) * functional.linear(h, up), down), s


def through(layer: Callable, layers: list[tuple], x: Tensor, residual: Tensor) -> Tensor:
    """Return y of a stack: each layer's y and s are the next one's x and residual."""
    for weights in layers:
        x, residual, *_ = layer(x, residual, *weights)
    return x


def in_graph(function: Callable[[], Tensor]) -> Callable[[], None]:
    """Return the replay of a CUDA graph of the call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def ways(shape: tuple[int, ...]) -> dict[str, Callable[[], Tensor]]:
    """Return way -> a call of LAYERS layers; each agrees with the reference."""
    layers = [OP.inputs(*shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    x, residual = layers[0][:2]
    weights = [layer[2:] for layer in layers]
    stacks = {
        "eager, separate q, k, v": layer_product_by_product,
        "eager": decoder_layer_reference,
        "torch.compile": torch.compile(decoder_layer_reference, dynamic=False),
        "kernel per step": layer_in_steps,
        "dependent launch": lambda *given: layer_in_steps(*given, pdl=True),
        "dependent, late signal": lambda *given: layer_in_steps(*given, pdl=True, late=True),
        "persistent kernel": kernels.decoder_layer,
    }
    return {
        way: (lambda layer=layer: through(layer, weights, x, residual)) for way, layer in stacks.items()
    }  # fmt: skip


def measure_layer(shape: tuple[int, ...]) -> dict[str, dict[str, Timing | float]]:
    """Return way -> {"call", "graph": time of LAYERS layers by the caller's clock, launched and replayed; "difference
    from eager": of the result's norm}; a way that fails has no times."""
    with torch.no_grad():
        calls = ways(shape)
        exact = calls["eager"]().float()
        found, good, graphs = {}, {}, {}
        for way, call in calls.items():
            found[way] = {}
            try:
                y = call().float()
                found[way]["difference from eager"] = ((y - exact).norm() / exact.norm()).item()
                good[way] = call
                graphs[way] = in_graph(call)
            except Exception as error:
                print(f"{way} is left out: {str(error).splitlines()[0]}")
                torch.cuda.synchronize()
        for clock, functions in (("call", good), ("graph", graphs)):
            for way, time in benchmark_together(functions, runs=10, launches=True).items():
                found[way][clock] = time
    return found


def measure_empty() -> dict[str, dict[str, Timing]]:
    """Return launch mode -> {"call", "graph"} time of EMPTY empty kernels: the costs of a launch and a gap."""
    x = torch.zeros(1, device="cuda")

    def row(grid: int, pdl: bool) -> Callable[[], None]:
        options = {"PDL": pdl} | ({"launch_pdl": True} if pdl else {})

        def call():
            for _ in range(EMPTY):
                empty_kernel[(grid,)](x, **options)

        return call

    rows = {f"{grid} programs{', dependent' * pdl}": row(grid, pdl) for grid in (1, 132, 1056) for pdl in (False, True)}
    rows["torch add"] = lambda: [x.add_(1.0) for _ in range(EMPTY)] and None
    found = {}
    for clock, functions in (("call", rows), ("graph", {key: in_graph(call) for key, call in rows.items()})):
        for key, time in benchmark_together(functions, runs=10, launches=True).items():
            found.setdefault(key, {})[clock] = time
    return found


def measure_ends() -> dict[str, dict[str, Timing]]:
    """Return programs, blocks per program -> {"graph": time of STREAMS kernels}: a kernel's start and end.

    One program fits on an SM. More blocks per program take longer by their bytes; the remaining time is the
    ramp-up. One program more than there are SMs runs alone at the end: the tail.
    """
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    sizes = [(sms, blocks) for blocks in (1, 2, 4, 8)] + [(sms + 1, 8), (2 * sms, 8)]
    x = torch.randn(STREAMS, 2 * sms * 8 * STREAM_BLOCK, device="cuda")  # far more than L2 holds
    y = torch.empty(2 * sms, device="cuda")

    def row(programs: int, blocks: int) -> Callable[[], None]:
        def call():
            for part in x:
                stream_kernel[(programs,)](part, y, blocks, BLOCK=STREAM_BLOCK, num_warps=32)

        return call

    graphs = {f"{programs} programs, {blocks} blocks": in_graph(row(programs, blocks)) for programs, blocks in sizes}
    return {key: {"graph": time} for key, time in benchmark_together(graphs, runs=10, launches=True).items()}


EXPERIMENTS = {
    "short_kernels_empty": measure_empty,
    "short_kernels_ends": measure_ends,
    "short_kernels_small": lambda: measure_layer(SHAPES["small"]),
    "short_kernels_8B": lambda: measure_layer(SHAPES["8B"]),
}
