"""A whole decoder layer for one token in one persistent kernel, a small and readable megakernel.

    s = x + residual,  q, k, v = qkv rms_norm(s),  s += out attention(q, keys and k, values and v)
    y = down (silu(gate h) * up h),  h = rms_norm(s)

A Llama's layer without its rotary embedding, for one sequence and a cache that is contiguous. Every weight is read once
by one program, however the layer is cut, and at one token almost all traffic is weights. A launch per step adds gaps:
each kernel starts when the last program of the previous one has ended, and ramps up its loads from zero.

    a kernel per step    residual + norm | q, k, v | attention | out, residual | norm | gate, up, SwiGLU | down
    here                 one launch with a counter between steps, after a launch that zeroes the four counters

One program per multiprocessor takes tiles of each product in turn. A tile that is stored adds 1 to the counter of its
step; a program that needs the step's result waits for all tiles. Every program computes both norms
itself: width values from L2, and no counter. Heads that share a key head each read its cache, all but the first from
L2.

What it costs: the registers of its worst step for all steps, no library's product, and a wrong count hangs the GPU. The
interpreter reports such a count as a deadlock, and a missing wait as a race (kernels/interpreter/resident.py).

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
from kernels.counters import signal, wait
from kernels.op import FusedOp, Work, like, planned, register

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def product(weight_ptr, row, rows, x_ptr, residual_ptr, norm_ptr, rstd, cols, BLOCK_K: tl.constexpr):
    """Rows of a weight (rows, cols) times x (cols,), or times rms_norm(x + residual) where there is a norm: fp32."""
    acc = tl.zeros((row.shape[0], BLOCK_K), tl.float32)
    for start in range(0, cols, BLOCK_K):
        col = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        if norm_ptr is not None:
            x = x * rstd * tl.load(norm_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        inside = (row[:, None] < rows) & (col[None, :] < cols)
        weight = tl.load(weight_ptr + row[:, None].to(tl.int64) * cols + col[None, :], mask=inside, other=0.0)
        acc += weight.to(tl.float32) * x[None, :]
    return tl.sum(acc, axis=1)


@triton.jit
def decoder_layer_kernel(
    x_ptr,  # (width,), contiguous as all others
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
    sum_ptr,  # (width,): x + residual + what attention adds
    qkv_ptr,  # ((heads + 2 key_heads) dim,)
    seen_ptr,  # (heads dim,): attention's result
    hidden_ptr,  # (hidden,)
    counters_ptr,  # (4,) int32, zero: tiles of q, k, v; heads; tiles of out; tiles of hidden values
    width,
    heads,
    key_heads,
    dim,
    hidden,
    keys,
    eps,
    scale,
    BLOCK: tl.constexpr,  # at least width
    BLOCK_N: tl.constexpr,  # rows of a product's tile
    BLOCK_K: tl.constexpr,  # columns at a time
    BLOCK_D: tl.constexpr,  # at least dim
    BLOCK_KEYS: tl.constexpr,  # keys at a time
):
    me, programs = tl.program_id(0), tl.num_programs(0)
    dtype = y_ptr.dtype.element_ty
    all_cols, n = tl.arange(0, BLOCK), tl.arange(0, BLOCK_N)

    # q, k, v of the normalised sum.
    s = tl.load(x_ptr + all_cols, mask=all_cols < width, other=0.0).to(tl.float32)
    s += tl.load(residual_ptr + all_cols, mask=all_cols < width, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(s * s, axis=0) / width + eps)
    rows = (heads + 2 * key_heads) * dim
    for tile in range(me, tl.cdiv(rows, BLOCK_N), programs):
        row = tile * BLOCK_N + n
        found = product(
            qkv_weight_ptr, row, rows, x_ptr, residual_ptr, attention_norm_ptr, rstd, width, BLOCK_K=BLOCK_K
        )
        tl.store(qkv_ptr + row, found.to(dtype), mask=row < rows)
        signal(counters_ptr)

    # Attention, a head at a time: the new token's own key first, then the cache's.
    d = tl.arange(0, BLOCK_D)
    if me < heads:
        wait(counters_ptr, tl.cdiv(rows, BLOCK_N))
    for head in range(me, heads, programs):
        key_head = head // (heads // key_heads)
        q = tl.load(qkv_ptr + head * dim + d, mask=d < dim, other=0.0).to(tl.float32) * scale
        new = qkv_ptr + (heads + key_head) * dim + d
        peak = tl.sum(q * tl.load(new, mask=d < dim, other=0.0).to(tl.float32), axis=0)
        acc = tl.load(new + key_heads * dim, mask=d < dim, other=0.0).to(tl.float32)
        total = 1.0
        for start in range(0, keys, BLOCK_KEYS):
            key = start + tl.arange(0, BLOCK_KEYS)
            at = (key[:, None].to(tl.int64) * key_heads + key_head) * dim + d[None, :]
            inside = (key[:, None] < keys) & (d[None, :] < dim)
            score = tl.sum(tl.load(keys_ptr + at, mask=inside, other=0.0).to(tl.float32) * q[None, :], axis=1)
            score = tl.where(key < keys, score, -float("inf"))
            higher = tl.maximum(peak, tl.max(score, axis=0))
            p, shrink = tl.exp(score - higher), tl.exp(peak - higher)
            value = tl.load(values_ptr + at, mask=inside, other=0.0).to(tl.float32)
            acc = acc * shrink + tl.sum(p[:, None] * value, axis=0)
            total = total * shrink + tl.sum(p, axis=0)
            peak = higher
        tl.store(seen_ptr + head * dim + d, (acc / total).to(dtype), mask=d < dim)
        signal(counters_ptr + 1)

    # The output product, added to the residual stream.
    wait(counters_ptr + 1, heads)
    for tile in range(me, tl.cdiv(width, BLOCK_N), programs):
        row = tile * BLOCK_N + n
        found = product(out_ptr, row, width, seen_ptr, None, None, 1.0, heads * dim, BLOCK_K=BLOCK_K)
        found += tl.load(x_ptr + row, mask=row < width, other=0.0).to(tl.float32)
        found += tl.load(residual_ptr + row, mask=row < width, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row, found.to(dtype), mask=row < width)
        signal(counters_ptr + 2)

    # The gated feed-forward layer of the normalised sum: hidden values, then the result.
    wait(counters_ptr + 2, tl.cdiv(width, BLOCK_N))
    s = tl.load(sum_ptr + all_cols, mask=all_cols < width, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(s * s, axis=0) / width + eps)
    for tile in range(me, tl.cdiv(hidden, BLOCK_N), programs):
        row = tile * BLOCK_N + n
        g = product(gate_ptr, row, hidden, sum_ptr, None, ffn_norm_ptr, rstd, width, BLOCK_K=BLOCK_K)
        u = product(up_ptr, row, hidden, sum_ptr, None, ffn_norm_ptr, rstd, width, BLOCK_K=BLOCK_K)
        tl.store(hidden_ptr + row, (g * tl.sigmoid(g) * u).to(dtype), mask=row < hidden)
        signal(counters_ptr + 3)

    wait(counters_ptr + 3, tl.cdiv(hidden, BLOCK_N))
    for tile in range(me, tl.cdiv(width, BLOCK_N), programs):
        row = tile * BLOCK_N + n
        found = product(down_ptr, row, width, hidden_ptr, None, None, 1.0, hidden, BLOCK_K=BLOCK_K)
        tl.store(y_ptr + row, found.to(dtype), mask=row < width)


def settings(width: int, dim: int) -> dict:
    """Return the kernel's blocks and launch options; cooperative: all programs run at once, or the launch fails."""
    blocks = {"BLOCK": next_power_of_2(width), "BLOCK_D": next_power_of_2(dim)}
    return {**blocks, "BLOCK_N": 16, "BLOCK_K": 512, "BLOCK_KEYS": 32, "num_warps": 8, "launch_cooperative_grid": True}


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
    heads = out.shape[1] // dim
    y, s, found, seen, between = (x.new_empty(size) for size in (width, width, len(qkv), heads * dim, hidden))
    counters = torch.zeros(4, dtype=torch.int32, device=x.device)
    sizes, chosen = (width, heads, key_heads, dim, hidden, length), settings(width, dim)
    programs = min(multiprocessors(x), cdiv(max(len(qkv), width, hidden), chosen["BLOCK_N"]))
    with torch.cuda.device_of(x):
        decoder_layer_kernel[(programs,)](
            *given, y, s, found, seen, between, counters, *sizes, eps, dim**-0.5, **chosen
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
    """Compute one token's decoder layer in one persistent kernel, and one launch that zeroes its counters.

    Args:
        x: (width,), the previous layer's output, not yet added to the residual stream; float32, float16 or bfloat16.
        residual: (width,), the stream before that; x's dtype and device, as all others have.
        attention_norm, ffn_norm: (width,).
        qkv: ((heads + 2 key_heads) dim, width): the rows of q, then of k, then of v.
        keys, values: (keys, key_heads, dim), of the tokens before this one; may be empty.
        out: (width, heads dim); heads is a multiple of key_heads.
        gate, up: (hidden, width).
        down: (width, hidden).
        eps: added to the mean squares of both norms.

    Returns:
        (y, s, key, value): y (width,), for the next layer's x; s (width,), for its residual; key and value (key_heads,
        dim), for the cache. Sums are fp32; each step's result is rounded to x's dtype.

    Raises:
        TypeError: an argument is not a tensor of these dtypes, or two dtypes.
        ValueError: shapes that do not fit, two devices, or the CPU where a GPU is.
        RuntimeError: a backward pass.
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
    """Count FLOPs and bytes: each input and each result moves once.

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
    # Weights of the size that a trained layer has, so that all results are as large as x.
    shapes = ((heads + 2 * key_heads) * dim, width), (width, heads * dim), (hidden, width), (hidden, width)
    qkv, out, gate, up = (torch.randn(shape, **options) / shape[1] ** 0.5 for shape in shapes)
    down = torch.randn(width, hidden, **options) / hidden**0.5
    first, second = (1 + torch.randn(width, **options) / 8 for _ in range(2))
    x, residual = torch.randn(2, width, **options)
    cache = torch.randn(2, keys, key_heads, dim, **options)
    return x, residual, first, qkv, *cache, out, second, gate, up, down


def _compile_arguments(width: int, heads: int, key_heads: int, hidden: int, keys: int, *, dtype: torch.dtype):
    given = _inputs(width, heads, key_heads, hidden, keys, dtype=dtype, device="meta")
    made = (torch.empty(size, dtype=dtype, device="meta") for size in (width, width, len(given[3]), width, hidden))
    counters = torch.empty(4, dtype=torch.int32, device="meta")
    sizes = width, heads, key_heads, width // heads, hidden, keys
    return (*given, *made, counters, *sizes, 1e-6, 0.1), settings(width, width // heads)


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
