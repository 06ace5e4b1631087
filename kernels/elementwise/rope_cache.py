"""Before attention, rotate queries and keys and write keys and values to a paged cache, in one kernel.

    y1 = x1 cos - x2 sin,   y2 = x2 cos + x1 sin        x1 and x2: a head's first and second half (as GPT-NeoX)

    unfused   norm of q | norm of k | rotate q | rotate k | write k | write v     q and k read and written twice
    fused     read q, k and v once, write q, the cache's k and its v               one launch

A program owns some heads of one token: queries, or keys and their values. The cache has the layout that
kernels.paged_attention reads: (pages, key heads, page_size, dim). `slots` has each token's place in it, page *
page_size + position in the page. A token with slot -1, vLLM's padding, or beyond the cache is rotated, not written.

If q_weight and k_weight are given, RMSNorm is applied to each head before the rotation, as in Qwen 3.

Source: Su et al., arXiv:2104.09864 (RoPE); vLLM's reshape_and_cache, arXiv:2309.06180 (paged keys and values).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import cdiv, check_option, check_together, check_vectors, given, next_power_of_2
from kernels.op import FusedOp, Work, refuse_transforms, refuse_transforms_of_operator


@triton.jit
def rotated(x_ptr, x_at, mask, weight_ptr, cos, sin, col, half, eps):
    """Return both halves of heads of 2 * half elements, normalised if they have a weight, then rotated."""
    x1 = tl.load(x_ptr + x_at, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + x_at + half, mask=mask, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        squares = tl.sum(x1 * x1 + x2 * x2, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / (2 * half) + eps)
        x1 *= scale * tl.load(weight_ptr + col, mask=col < half).to(tl.float32)
        x2 *= scale * tl.load(weight_ptr + half + col, mask=col < half).to(tl.float32)
    return x1 * cos - x2 * sin, x2 * cos + x1 * sin


@triton.jit
def rope_cache_kernel(
    q_ptr,  # (tokens, heads, dim), any token and head strides, unit stride within a head
    k_ptr,  # (tokens, key heads, dim), the same
    v_ptr,  # (tokens, key heads, dim), the same
    cos_sin_ptr,  # (max_position, dim): cosines, then sines
    position_ptr,  # (tokens,) int64
    slot_ptr,  # (tokens,) int64
    q_weight_ptr,  # (dim,) or None
    k_weight_ptr,  # (dim,) or None
    y_ptr,  # (tokens, heads, dim), contiguous
    k_cache_ptr,  # (pages, key heads, page_size, dim), any strides, unit stride within a head
    v_cache_ptr,  # the same
    heads,
    key_heads,
    half,  # dim / 2
    max_position,
    pages,
    page_size,
    q_strides,
    k_strides,
    v_strides,
    k_cache_strides,
    v_cache_strides,
    eps,
    HEADS: tl.constexpr,  # heads of one program, a power of two
    BLOCK: tl.constexpr,  # a power of two, at least half
):
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)  # int64: offsets pass 2**31 on large caches
    col = tl.arange(0, BLOCK)[None, :]
    position = tl.load(position_ptr + token)
    known = (position >= 0) & (position < max_position) & (col < half)
    nan = float("nan")  # for a position outside the table: visible, not a guess
    cos = tl.load(cos_sin_ptr + position * 2 * half + col, mask=known, other=nan).to(tl.float32)
    sin = tl.load(cos_sin_ptr + position * 2 * half + half + col, mask=known, other=nan).to(tl.float32)
    query_parts = tl.cdiv(heads, HEADS)
    if part < query_parts:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        mask = (head < heads) & (col < half)
        token_stride, head_stride = q_strides
        x_at = token * token_stride + head * head_stride + col
        y1, y2 = rotated(q_ptr, x_at, mask, q_weight_ptr, cos, sin, col, half, eps)
        y_at = (token * heads + head) * 2 * half + col
        tl.store(y_ptr + y_at, y1.to(y_ptr.dtype.element_ty), mask=mask)
        tl.store(y_ptr + y_at + half, y2.to(y_ptr.dtype.element_ty), mask=mask)
    else:
        head = (part - query_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        mask = (head < key_heads) & (col < half)
        slot = tl.load(slot_ptr + token)
        page, place = slot // page_size, slot % page_size
        written = (slot >= 0) & (page < pages) & mask
        token_stride, head_stride = k_strides
        x_at = token * token_stride + head * head_stride + col
        y1, y2 = rotated(k_ptr, x_at, mask, k_weight_ptr, cos, sin, col, half, eps)
        page_stride, head_stride, place_stride = k_cache_strides
        at = page * page_stride + head * head_stride + place * place_stride + col
        tl.store(k_cache_ptr + at, y1.to(k_cache_ptr.dtype.element_ty), mask=written)
        tl.store(k_cache_ptr + at + half, y2.to(k_cache_ptr.dtype.element_ty), mask=written)
        token_stride, head_stride = v_strides
        v_at = token * token_stride + head * head_stride + col
        v1 = tl.load(v_ptr + v_at, mask=written)
        v2 = tl.load(v_ptr + v_at + half, mask=written)
        page_stride, head_stride, place_stride = v_cache_strides
        at = page * page_stride + head * head_stride + place * place_stride + col
        tl.store(v_cache_ptr + at, v1, mask=written)
        tl.store(v_cache_ptr + at + half, v2, mask=written)


def settings(heads: int, dim: int) -> dict:
    """Return HEADS, BLOCK and num_warps for `heads` heads of `dim` elements: four warps per eight heads."""
    return {"HEADS": min(8, next_power_of_2(heads)), "BLOCK": next_power_of_2(dim // 2), "num_warps": 4}


def _arguments(q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight, eps, y):
    heads, dim = q.shape[1:]
    sizes = heads, k.shape[1], dim // 2, cos_sin.shape[0], key_cache.shape[0], key_cache.shape[2]
    tensors = q, k, v, cos_sin, positions, slots, q_weight, k_weight, y, key_cache, value_cache
    strides = *(x.stride()[:2] for x in (q, k, v)), *(x.stride()[:3] for x in (key_cache, value_cache))
    return *tensors, *sizes, *strides, eps


@torch.library.custom_op("kernel_fusion::rope_cache", mutates_args=("key_cache", "value_cache"))
def rope_cache_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
) -> Tensor:
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if k.numel():
        q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
        cos_sin, positions, slots = cos_sin.contiguous(), positions.contiguous(), slots.contiguous()
        q_weight, k_weight = (x if x is None else x.contiguous() for x in (q_weight, k_weight))
        arguments = _arguments(q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight, eps, y)
        with torch.cuda.device_of(q):
            chosen = settings(q.shape[1], q.shape[2])
            parts = cdiv(q.shape[1], chosen["HEADS"]) + cdiv(k.shape[1], chosen["HEADS"])
            rope_cache_kernel[len(q), parts](*arguments, **chosen)
    return y


@rope_cache_op.register_fake
def _(q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight, eps):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


refuse_transforms_of_operator(lambda arguments: "rope_cache", rope_cache_op)


def rope_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Rotate q and k by their positions, write k and v to the paged cache in place, and return q. Not differentiable.

    Args:
        q: floating-point tensor of shape (tokens, heads, dim), dim even, any strides. Slices of one projection's result
            need no copy; non-contiguous heads do.
        k, v: (tokens, key heads, dim), of q's dtype.
        cos_sin: (max_position, dim), floating-point: each position's dim / 2 cosines, then its sines; see rope_table.
        positions: (tokens,) int64. A position outside the table turns its token into NaN.
        slots: (tokens,) int64, page * page_size + position in the page. A token whose slot is negative or beyond the
            cache isn't written. No two tokens may share a slot: their writes would race.
        key_cache, value_cache: (pages, key heads, page_size, dim), of q's dtype, written in place; any strides, but
            heads must be contiguous. For vLLM's layout, (pages, page_size, key heads, dim), pass .transpose(1, 2).
        q_weight, k_weight: (dim,), weights for an RMSNorm of each head before the rotation; no norm if not given.
        eps: added to the norm's mean square, as fp32.

    Returns:
        A contiguous tensor of q's shape and dtype. The arithmetic is fp32, rounded once.

    Raises:
        TypeError: arguments are not tensors of one floating-point dtype, or positions or slots are not int64.
        ValueError: shapes don't match, dim is odd, the cache's heads aren't contiguous, eps is out of range, devices
            differ, or tensors are on the CPU while kernels run on a GPU.
        RuntimeError: a gradient, a forward-mode derivative or vmap is requested.
    """
    if not torch.compiler.is_compiling():  # there the operator refuses
        tensors = q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight
        refuse_transforms("rope_cache", [x for x in tensors if isinstance(x, Tensor)])
    check_option("rope_cache", "eps", eps, float)
    check_together("rope_cache", OP.dtypes, q=q, k=k, v=v, key_cache=key_cache, value_cache=value_cache)
    _check_shapes(q, k, v, cos_sin, positions, slots, key_cache, value_cache)
    check_vectors(
        "rope_cache", q, q.shape[2], "q's head dimension", "element", **given(q_weight=q_weight, k_weight=k_weight)
    )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("rope_cache has no backward pass: call it under torch.no_grad()")
    return rope_cache_op(q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight, float(eps))


def _check_shapes(q, k, v, cos_sin, positions, slots, key_cache, value_cache) -> None:
    if q.dim() != 3 or q.shape[2] % 2:
        raise ValueError(f"rope_cache takes q of (tokens, heads, even dim), got {tuple(q.shape)}: reshape it")
    if k.dim() != 3 or k.shape != v.shape or (k.shape[0], k.shape[2]) != (q.shape[0], q.shape[2]):
        raise ValueError(
            f"rope_cache takes k and v of (tokens, key heads, dim) for q of {tuple(q.shape)}, got {tuple(k.shape)} and "
            f"{tuple(v.shape)}: reshape them"
        )
    if key_cache.dim() != 4 or key_cache.shape != value_cache.shape or key_cache.shape[1::2] != k.shape[1:]:
        raise ValueError(
            f"rope_cache takes caches of (pages, {k.shape[1]}, page_size, {k.shape[2]}), got {tuple(key_cache.shape)} "
            f"and {tuple(value_cache.shape)}: reshape them"
        )
    if key_cache.stride(3) != 1 or value_cache.stride(3) != 1:
        raise ValueError("rope_cache takes caches with each head's elements side by side: allocate them with dim last")
    if not isinstance(cos_sin, Tensor) or not cos_sin.is_floating_point():
        raise TypeError("rope_cache takes cos_sin in a floating-point tensor: use rope_table(max_position, dim)")
    if cos_sin.dim() != 2 or cos_sin.shape[1] != q.shape[2]:
        raise ValueError(
            f"rope_cache takes cos_sin of (max_position, {q.shape[2]}), got {tuple(cos_sin.shape)}: see rope_table"
        )
    for name, x in (("positions", positions), ("slots", slots)):
        if not isinstance(x, Tensor) or x.dtype != torch.int64:
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"rope_cache takes {name} in a tensor of torch.int64, got {kind}: convert with .long()")
        if x.shape != q.shape[:1]:
            raise ValueError(f"rope_cache takes {name} of ({len(q)},), one per token, got {tuple(x.shape)}: flatten it")
    for name, x in (("cos_sin", cos_sin), ("positions", positions), ("slots", slots)):
        if x.device != q.device:
            raise ValueError(
                f"rope_cache takes tensors on one device, got q on {q.device} and {name} on {x.device}: move one"
            )


def rope_table(max_position: int, dim: int, base: float = 10000.0, device=None) -> Tensor:
    """Return cosines and sines of every position, fp32 of (max_position, dim), computed in float64."""
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    angle = torch.arange(max_position, dtype=torch.float64, device=device)[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def rope_cache_reference(
    q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight=None, k_weight=None, eps: float = 1e-6
) -> Tensor:
    """Do the same in PyTorch, unfused, for positions within the table."""

    def rotate(x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            x = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)
        cos, sin = cos_sin[positions].to(x.dtype)[:, None].chunk(2, dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

    size = key_cache.shape[2]
    kept = ((slots >= 0) & (slots < len(key_cache) * size)).nonzero()[:, 0]
    page, place = slots[kept] // size, slots[kept] % size
    key_cache[page, :, place] = rotate(k, k_weight)[kept]
    value_cache[page, :, place] = v[kept]
    return rotate(q, q_weight)


def rope_cache_work(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (tokens, heads, key heads, dim), each head with a norm: 3 operations per
    rotated element and 4 for its norm; q, k, v, both weights, a position's row of fp32, position and slot read once;
    q, k and v written once."""
    tokens, heads, key_heads, dim = shape
    rotated, elements = tokens * (heads + key_heads) * dim, tokens * (heads + 2 * key_heads) * dim
    read = (elements + 2 * dim) * dtype.itemsize + tokens * (4 * dim + 16)
    return Work(flops=7 * rotated, bytes_read=read, bytes_written=elements * dtype.itemsize)


PAGE_SIZE = 16


def _inputs(tokens: int, heads: int, key_heads: int, dim: int, device="cpu", **options) -> tuple:
    q, k, v = (torch.randn(tokens, n, dim, device=device, **options) for n in (heads, key_heads, key_heads))
    positions = torch.randperm(tokens, device=device)  # each row of the table is read by one token
    pages = -(-tokens // PAGE_SIZE) + 1
    slots = torch.randperm(pages * PAGE_SIZE, device=device)[:tokens]
    caches = torch.zeros(2, pages, key_heads, PAGE_SIZE, dim, device=device, **options)
    q_weight, k_weight = torch.randn(2, dim, device=device, **options)
    return q, k, v, rope_table(tokens, dim, device=device), positions, slots, *caches, q_weight, k_weight


def _compile_arguments(tokens: int, heads: int, key_heads: int, dim: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    with torch.device("meta"):
        q, k = torch.empty(tokens, heads, dim, dtype=dtype), torch.empty(tokens, key_heads, dim, dtype=dtype)
        cache, table = torch.empty(8, key_heads, PAGE_SIZE, dim, dtype=dtype), torch.empty(4096, dim)
        index = torch.empty(tokens, dtype=torch.int64)
    weight = q[0, 0]
    return _arguments(q, k, k, table, index, index, cache, cache, weight, weight, 1e-6, q), settings(heads, dim)


OP = FusedOp(
    name="rope_cache",
    fused=rope_cache,
    reference=rope_cache_reference,
    work=rope_cache_work,
    kernel=rope_cache_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1, 2), (5, 4, 2, 36), (20, 2, 1, 64)),
    gpu_shapes=((1, 32, 8, 128), (64, 32, 8, 128), (4096, 32, 8, 128)),
    writes=(6, 7),
)
