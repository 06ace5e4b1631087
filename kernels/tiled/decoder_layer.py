"""A whole decoder layer for one token in one persistent kernel: a small, readable megakernel.

    s = x + residual,  q, k, v = qkv rms_norm(s),  s += out attention(q, keys and k, values and v)
    y = down (silu(gate h) * up h),  h = rms_norm(s)

This is a Llama layer without rotary embedding, for one sequence and a contiguous cache. With one token almost all
traffic is weights, and however the layer is split, one program reads each weight once. A launch per step adds gaps:
each kernel starts when the last program of the previous one has ended, and ramps up its loads from zero.

    a kernel per step    residual + norm | q, k, v | attention | out, residual | norm | gate, up, SwiGLU | down
    here                 one launch with a counter between steps, after a launch that zeroes the counters

Two programs per SM take tiles of each matmul in turn. After storing a tile, a program adds 1 to the step's counter. A
program that needs the step's result waits for all tiles, with the first block of its next weight already in flight,
because weights depend on no counter. Every program computes both norms itself, in the loop of the matmul that needs
them. Each head's keys are split so that every program has some; the program that completes a head merges its splits.
Heads that share a key head each read its cache, all but the first from L2.

The drawbacks: all steps pay for the registers of the worst one, no step can use a library's matmul, and a wrong count
hangs the GPU. The interpreter reports a wrong count as a deadlock and a missing wait as a race
(kernels/interpreter/resident.py).

Source: Touvron et al., arXiv:2302.13971, section 2.2; one kernel for a model: Spector et al., "Look Ma, No Bubbles!",
Hazy Research, 2025.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels import costs
from kernels.arguments import cdiv, check_option, check_together, multiprocessors, next_power_of_2
from kernels.counters import complete, signal, wait
from kernels.op import FusedOp, Work, like, planned, register

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PROGRAMS = 2  # per SM: while one waits at a counter, the other loads


@triton.jit
def weight_block(weight_ptr, tile, start, rows, cols, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Request columns `start` to `start + BLOCK_K` of a tile of a weight (rows, cols); a tile beyond the last is 0."""
    row, col = tile * BLOCK_N + tl.arange(0, BLOCK_N), start + tl.arange(0, BLOCK_K)
    inside = (row[:, None] < rows) & (col[None, :] < cols)
    return tl.load(weight_ptr + row[:, None].to(tl.int64) * cols + col[None, :], mask=inside, other=0.0)


@triton.jit
def product(
    weight, weight_ptr, tile, next_ptr, next_tile, rows, cols, x_ptr, residual_ptr, norm_ptr, eps,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return a tile of weight (rows, cols) times x (cols,), fp32, and the first block of the next tile, in flight.

    weight is the tile's own first block, requested earlier. With a norm, x is rms_norm(x + residual): its mean square
    is summed in the same loop and divides the result.
    """
    acc, squares = tl.zeros((BLOCK_N, BLOCK_K), tl.float32), tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, cols, BLOCK_K):
        # The next block is requested before the current one is used, so loads never pause, not even between tiles.
        if start + BLOCK_K < cols:
            following = weight_block(weight_ptr, tile, start + BLOCK_K, rows, cols, BLOCK_N, BLOCK_K)
        else:
            following = weight_block(next_ptr, next_tile, 0, rows, cols, BLOCK_N, BLOCK_K)
        col = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        if norm_ptr is not None:
            squares += x * x
            x *= tl.load(norm_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        acc += weight.to(tl.float32) * x[None, :]
        weight = following
    found = tl.sum(acc, axis=1)
    if norm_ptr is not None:
        found *= tl.rsqrt(tl.sum(squares, axis=0) / cols + eps)
    return found, weight


@triton.jit
def attend(
    q_ptr, new_key_ptr, new_value_ptr, keys_ptr, values_ptr, first, last, own, stride, dim, scale,
    BLOCK_D: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Return the sum of values, maximum and sum of one query over keys `first` to `last`, and its token's own key."""
    d = tl.arange(0, BLOCK_D)
    q = tl.load(q_ptr + d, mask=d < dim, other=0.0).to(tl.float32) * scale
    peak = tl.sum(q * tl.load(new_key_ptr + d, mask=d < dim, other=0.0).to(tl.float32), axis=0)
    peak, total = tl.where(own, peak, -float("inf")), tl.where(own, 1.0, 0.0)
    acc = tl.where(own, tl.load(new_value_ptr + d, mask=d < dim, other=0.0).to(tl.float32), 0.0)
    for start in range(first, last, BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        at = key[:, None].to(tl.int64) * stride + d[None, :]
        inside = (key[:, None] < last) & (d[None, :] < dim)
        k = tl.load(keys_ptr + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(values_ptr + at, mask=inside, other=0.0)  # requested before the scores are known
        score = tl.where(key < last, tl.sum(k * q[None, :], axis=1), -float("inf"))
        higher = tl.maximum(peak, tl.max(score, axis=0))
        p, shrink = tl.exp(score - higher), tl.exp(peak - higher)
        acc = acc * shrink + tl.sum(p[:, None] * v.to(tl.float32), axis=0)
        total = total * shrink + tl.sum(p, axis=0)
        peak = higher
    return acc, peak, total


@triton.jit
def merge(parts_ptr, dim, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return attention's result for one head from its SPLITS shares of (dim values, maximum, sum)."""
    part_ptr, d = parts_ptr + tl.arange(0, SPLITS) * (dim + 2), tl.arange(0, BLOCK_D)
    peak = tl.load(part_ptr + dim)
    weight = tl.exp(peak - tl.max(peak, axis=0))  # finite: the first share has the token's own key
    values = tl.load(part_ptr[:, None] + d[None, :], mask=d[None, :] < dim, other=0.0)
    return tl.sum(values * weight[:, None], axis=0) / tl.sum(tl.load(part_ptr + dim + 1) * weight, axis=0)


@triton.jit
def decoder_layer_kernel(
    x_ptr,  # (width,), contiguous, like all others
    residual_ptr,  # (width,)
    attention_norm_ptr,  # (width,)
    qkv_weight_ptr,  # ((heads + 2 key_heads) dim, width)
    keys_ptr,  # (keys, key_heads, dim)
    values_ptr,  # the same
    out_ptr,  # (width, heads dim)
    ffn_norm_ptr,  # (width,)
    gate_ptr,  # (hidden, width)
    up_ptr,  # (hidden, width)
    down_ptr,  # (width, hidden)
    y_ptr,  # (width,)
    sum_ptr,  # (width,): x + residual + attention's output
    qkv_ptr,  # ((heads + 2 key_heads) dim,)
    parts_ptr,  # (heads, SPLITS, dim + 2) fp32: a share of the keys: sum of values, maximum, sum
    seen_ptr,  # (heads dim,): attention's result
    hidden_ptr,  # (hidden,)
    counters_ptr,  # (4 + heads,) int32, zero: tiles of q, k, v; heads; tiles of out; tiles of hidden; shares of a head
    width,
    heads,
    key_heads,
    dim,
    hidden,
    keys,
    eps,
    scale,
    SPLITS: tl.constexpr,  # shares of the keys, a power of two
    BLOCK_N: tl.constexpr,  # rows of a product's tile
    BLOCK_K: tl.constexpr,  # columns at a time
    BLOCK_D: tl.constexpr,  # at least dim
    BLOCK_KEYS: tl.constexpr,  # keys at a time
):
    me, programs = tl.program_id(0), tl.num_programs(0)
    dtype = y_ptr.dtype.element_ty
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)

    # q, k, v of the normalised sum.
    rows = (heads + 2 * key_heads) * dim
    weight = weight_block(qkv_weight_ptr, me, 0, rows, width, BLOCK_N, BLOCK_K)
    for tile in range(me, tl.cdiv(rows, BLOCK_N), programs):
        found, weight = product(
            weight, qkv_weight_ptr, tile, qkv_weight_ptr, tile + programs, rows, width,
            x_ptr, residual_ptr, attention_norm_ptr, eps, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        row = tile * BLOCK_N + n
        tl.store(qkv_ptr + row, found.to(dtype), mask=row < rows)
        signal(counters_ptr)

    # Attention, a share of a head's keys at a time; the program that completes a head merges its shares.
    if me < heads * SPLITS:
        wait(counters_ptr, tl.cdiv(rows, BLOCK_N))
    for share in range(me, heads * SPLITS, programs):
        head, part = share // SPLITS, share % SPLITS
        key_head = head // (heads // key_heads)
        new = qkv_ptr + (heads + key_head) * dim
        size = tl.cdiv(keys, SPLITS)
        first = part * size
        acc, peak, total = attend(
            qkv_ptr + head * dim, new, new + key_heads * dim, keys_ptr + key_head * dim, values_ptr + key_head * dim,
            first, tl.minimum(first + size, keys), part == 0, key_heads * dim, dim, scale, BLOCK_D, BLOCK_KEYS,
        )  # fmt: skip
        part_ptr = parts_ptr + share * (dim + 2)
        tl.store(part_ptr + d, acc, mask=d < dim)
        tl.store(part_ptr + dim, peak)
        tl.store(part_ptr + dim + 1, total)
        if complete(counters_ptr + 4 + head, SPLITS):
            seen = merge(parts_ptr + head * SPLITS * (dim + 2), dim, SPLITS, BLOCK_D)
            tl.store(seen_ptr + head * dim + d, seen.to(dtype), mask=d < dim)
            signal(counters_ptr + 1)

    # The output product, added to the residual stream. Its weight depends on no counter: requested before the wait.
    weight = weight_block(out_ptr, me, 0, width, heads * dim, BLOCK_N, BLOCK_K)
    wait(counters_ptr + 1, heads)
    for tile in range(me, tl.cdiv(width, BLOCK_N), programs):
        found, weight = product(
            weight, out_ptr, tile, out_ptr, tile + programs, width, heads * dim,
            seen_ptr, None, None, eps, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        row = tile * BLOCK_N + n
        found += tl.load(x_ptr + row, mask=row < width, other=0.0).to(tl.float32)
        found += tl.load(residual_ptr + row, mask=row < width, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row, found.to(dtype), mask=row < width)
        signal(counters_ptr + 2)

    # The gated feed-forward layer of the normalised sum: hidden values, then the result.
    weight = weight_block(gate_ptr, me, 0, hidden, width, BLOCK_N, BLOCK_K)
    wait(counters_ptr + 2, tl.cdiv(width, BLOCK_N))
    for tile in range(me, tl.cdiv(hidden, BLOCK_N), programs):
        g, weight = product(
            weight, gate_ptr, tile, up_ptr, tile, hidden, width, sum_ptr, None, ffn_norm_ptr, eps, BLOCK_N, BLOCK_K
        )
        u, weight = product(
            weight, up_ptr, tile, gate_ptr, tile + programs, hidden, width,
            sum_ptr, None, ffn_norm_ptr, eps, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        row = tile * BLOCK_N + n
        tl.store(hidden_ptr + row, (g * tl.sigmoid(g) * u).to(dtype), mask=row < hidden)
        signal(counters_ptr + 3)

    weight = weight_block(down_ptr, me, 0, width, hidden, BLOCK_N, BLOCK_K)
    wait(counters_ptr + 3, tl.cdiv(hidden, BLOCK_N))
    for tile in range(me, tl.cdiv(width, BLOCK_N), programs):
        found, weight = product(
            weight, down_ptr, tile, down_ptr, tile + programs, width, hidden,
            hidden_ptr, None, None, eps, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        row = tile * BLOCK_N + n
        tl.store(y_ptr + row, found.to(dtype), mask=row < width)


def settings(heads: int, dim: int, keys: int, programs: int) -> dict:
    """Return the kernel's blocks and launch options; cooperative: all programs run at once, or the launch fails."""
    # Enough splits to occupy all programs, but none shorter than a block of keys.
    shares = max(1, min(programs // heads, keys // 64))
    blocks = {"SPLITS": 1 << (shares.bit_length() - 1), "BLOCK_D": next_power_of_2(dim), "BLOCK_KEYS": 64}
    # Few rows per tile, so that even a narrow result has a tile for every program.
    return {**blocks, "BLOCK_N": 8, "BLOCK_K": 1024, "num_warps": 4, "launch_cooperative_grid": True}


def _forward(
    x: Tensor,
    residual: Tensor,
    attention_norm: Tensor,
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    ffn_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    given = x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down
    given = [each.contiguous() for each in given]
    (width,), (length, key_heads, dim), hidden = x.shape, keys.shape, len(gate)
    heads, programs = out.shape[1] // dim, PROGRAMS * multiprocessors(x)
    y, s, found, seen, between = (x.new_empty(size) for size in (width, width, len(qkv), heads * dim, hidden))
    sizes, chosen = (width, heads, key_heads, dim, hidden, length), settings(heads, dim, length, programs)
    parts = torch.empty(heads * chosen["SPLITS"] * (dim + 2), dtype=torch.float32, device=x.device)
    counters = torch.zeros(4 + heads, dtype=torch.int32, device=x.device)
    programs = min(programs, cdiv(max(len(qkv), width, hidden), chosen["BLOCK_N"]))
    with torch.cuda.device_of(x):
        decoder_layer_kernel[(programs,)](
            *given, y, s, found, parts, seen, between, counters, *sizes, eps, dim**-0.5, **chosen
        )
    return y, s, found


def _fake(x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down, eps):
    return like(x), like(x), x.new_empty(len(qkv))


decoder_layer_op = register("decoder_layer", _forward, _fake, results=3)


def _check(x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down) -> None:
    tensors = {
        "x": x,
        "residual": residual,
        "attention_norm": attention_norm,
        "qkv": qkv,
        "keys": keys,
        "values": values,
        "out": out,
        "ffn_norm": ffn_norm,
        "gate": gate,
        "up": up,
        "down": down,
    }
    check_together("decoder_layer", DTYPES, **tensors)
    if x.dim() != 1 or not x.numel():
        raise ValueError(f"decoder_layer takes x of one token, (width,), got {tuple(x.shape)}: take one row, x[0]")
    if keys.dim() != 3 or not keys.shape[1:].numel():
        raise ValueError(f"decoder_layer takes keys of (keys, key_heads, dim), got {tuple(keys.shape)}: reshape them")
    width, (length, key_heads, dim) = len(x), keys.shape
    heads = out.shape[1] // dim if out.dim() == 2 else 0
    hidden = len(gate) if gate.dim() else 0
    if not heads or heads % key_heads:
        raise ValueError(
            f"decoder_layer takes out of (width, heads dim), heads a multiple of {key_heads} here and dim {dim}, got "
            f"{tuple(out.shape)}: transpose it"
        )
    if not hidden:
        raise ValueError(f"decoder_layer takes gate of (hidden, width), got {tuple(gate.shape)}: add rows")
    expected = {
        "residual": (width,),
        "attention_norm": (width,),
        "qkv": ((heads + 2 * key_heads) * dim, width),
        "values": (length, key_heads, dim),
        "out": (width, heads * dim),
        "ffn_norm": (width,),
        "gate": (hidden, width),
        "up": (hidden, width),
        "down": (width, hidden),
    }
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"decoder_layer takes {name} of {shape} here, got {tuple(tensors[name].shape)}: reshape or transpose it"
            )


@planned
def decoder_layer(
    x: Tensor,
    residual: Tensor,
    attention_norm: Tensor,
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    ffn_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute one token's decoder layer in one persistent kernel, after a launch that zeroes its counters.

    Args:
        x: (width,), the previous layer's output, before its addition to the residual stream; float32, float16 or
            bfloat16.
        residual: (width,), the residual stream before that addition. All tensors have x's dtype and device.
        attention_norm, ffn_norm: (width,).
        qkv: ((heads + 2 key_heads) dim, width): the rows of q, then of k, then of v.
        keys, values: (keys, key_heads, dim), those of the previous tokens; may be empty.
        out: (width, heads dim); heads is a multiple of key_heads.
        gate, up: (hidden, width).
        down: (width, hidden).
        eps: added to the mean squares of both norms, as fp32.

    Returns:
        (y, s, key, value): y (width,), the next layer's x; s (width,), its residual; key and value (key_heads, dim),
        for the cache. Sums are fp32; each step's result is rounded to x's dtype.

    Raises:
        TypeError: an argument is not a tensor of these dtypes, or the dtypes differ.
        ValueError: shapes do not match, devices differ, or tensors are on the CPU while kernels run on a GPU.
        RuntimeError: in a backward pass.
    """
    check_option("decoder_layer", "eps", eps, float)
    _check(x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down)
    given = x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down
    y, s, found = decoder_layer_op(*given, eps)
    key, value = found[out.shape[1] :].view(2, *keys.shape[1:])
    return y, s, key, value


def decoder_layer_reference(
    x, residual, attention_norm, qkv, keys, values, out, ffn_norm, gate, up, down, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute decoder_layer in plain PyTorch, one operation per line."""
    linear, norm = functional.linear, functional.rms_norm
    key_heads, dim = keys.shape[1:]
    s = x + residual
    q, key, value = linear(norm(s, s.shape, attention_norm, eps), qkv).split(
        (out.shape[1], key_heads * dim, key_heads * dim)
    )
    key, value = key.view(key_heads, dim), value.view(key_heads, dim)
    all_keys, all_values = (torch.cat([old, new[None]]).transpose(0, 1) for old, new in ((keys, key), (values, value)))
    seen = functional.scaled_dot_product_attention(
        q.view(1, -1, 1, dim), all_keys[None], all_values[None], enable_gqa=True
    )
    s = s + linear(seen.flatten(), out)
    h = norm(s, s.shape, ffn_norm, eps)
    return linear(functional.silu(linear(h, gate)) * linear(h, up), down), s, key, value


def decoder_layer_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: each input and each result moves once.

    shape: (width, heads, key_heads, hidden, keys).
    """
    width, heads, key_heads, hidden, keys = shape
    dim = width // heads
    weights = width * ((heads + 2 * key_heads) * dim + heads * dim + 3 * hidden)
    flops = costs.product(1, weights, 1) + 4 * heads * dim * (keys + 1)
    read = weights + 4 * width + 2 * keys * key_heads * dim
    return Work(flops, read * dtype.itemsize, (2 * width + 2 * key_heads * dim) * dtype.itemsize)


def _inputs(width: int, heads: int, key_heads: int, hidden: int, keys: int, **options) -> tuple[Tensor, ...]:
    dim = width // heads
    # Weights as large as a trained layer's, so that all results are as large as x.
    shapes = ((heads + 2 * key_heads) * dim, width), (width, heads * dim), (hidden, width), (hidden, width)
    qkv, out, gate, up = (torch.randn(shape, **options) / shape[1] ** 0.5 for shape in shapes)
    down = torch.randn(width, hidden, **options) / hidden**0.5
    first, second = (1 + torch.randn(width, **options) / 8 for _ in range(2))
    x, residual = torch.randn(2, width, **options)
    cache = torch.randn(2, keys, key_heads, dim, **options)
    return x, residual, first, qkv, *cache, out, second, gate, up, down


def _compile_arguments(width: int, heads: int, key_heads: int, hidden: int, keys: int, *, dtype: torch.dtype):
    given = _inputs(width, heads, key_heads, hidden, keys, dtype=dtype, device="meta")
    y, s, found, seen, between = (
        torch.empty(size, dtype=dtype, device="meta") for size in (width, width, len(given[3]), width, hidden)
    )
    parts, counters = torch.empty(1, device="meta"), torch.empty(4, dtype=torch.int32, device="meta")
    dim = width // heads
    sizes, programs = (width, heads, key_heads, dim, hidden, keys), PROGRAMS * multiprocessors(y)
    chosen = settings(heads, dim, keys, programs)
    return (*given, y, s, found, parts, seen, between, counters, *sizes, 1e-6, 0.1), chosen


OP = FusedOp(
    name="decoder_layer",
    fused=decoder_layer,
    reference=decoder_layer_reference,
    work=decoder_layer_work,
    kernel=decoder_layer_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((8, 2, 1, 12, 0), (96, 4, 2, 72, 5), (80, 5, 1, 136, 40)),
    gpu_shapes=((1024, 16, 8, 3072, 512), (4096, 32, 8, 14336, 1024)),
    dtypes=DTYPES,
)
