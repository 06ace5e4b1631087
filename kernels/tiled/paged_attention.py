"""Attention for few queries over a long, paged KV cache:  out = softmax(q k^T scale) v, for each sequence.

To generate the next token, one query or a few attend to thousands of cached keys. Each key and value is read once and
used for 4 FLOPs per query, so the kernel is memory-bound, and the task is to read the cache at full bandwidth:

    flash_attention   one program per head and block of queries: with one query and 32 heads, 32 programs on 132
                      multiprocessors, and each query head of a group reads the keys of its group again
    here              the keys of each sequence are cut into `splits`, one program each, so that the GPU is full; the
                      query heads of a group, and their queries, are the rows of one tile, so keys are read once

A program knows the maximum and sum of its own keys only. It writes its split's output, as if there were no other keys,
together with peak, the largest q k^T, and total, the sum of exp(scale (q k^T - peak)). A second, small kernel merges
the splits, weighted by their keys:

    out = sum over splits of  w_i out_i / sum over splits of  w_i,     w_i = total_i exp(scale (peak_i - largest peak))

The cache is an array of pages of a few keys each, and a block table lists each sequence's pages in order. Pages are
allocated one by one as sequences grow, so no memory is reserved for a sequence's maximum length.

Source: Dao et al., Flash-Decoding for long-context inference (2023); paged keys: Kwon et al., arXiv:2309.06180; online
softmax: arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.arguments import cdiv, check_option, check_together, multiprocessors, next_power_of_2, shared_memory
from kernels.attention import LOG2_E
from kernels.op import FusedOp, Work, like, planned, register
from kernels.tiled.flash_attention import flash_attention_reference

MAX_ROWS = 64  # queries and query heads in one tile; more take several programs
MAX_SPLITS = 256
MIN_KEYS = 128  # fewest keys worth a split of their own
LARGE = 160 * 2**10  # bytes of shared memory that a program may use: A100 and later
PAGE = 16  # keys per page, as in serving engines; the kernel takes any


@triton.jit
def paged_attention_kernel(
    q_ptr,  # (sequences, heads, queries, dim), any strides, unit column stride
    k_ptr,  # (pages, kv_heads, page, dim), as q
    v_ptr,  # as k
    table_ptr,  # (sequences, width), contiguous int32: pages of each sequence; None if sequence i is page i
    lengths_ptr,  # (sequences,), contiguous int32: keys of each sequence; None if all have PAGE
    partial_ptr,  # (sequences, heads, queries, splits, dim), contiguous: the output of each split
    peak_ptr,  # (sequences, heads, queries, splits), contiguous, of COMPUTE; None with one split
    total_ptr,  # as peak
    kv_heads,
    group,  # query heads per key head
    queries,
    pages,
    width,
    splits,
    q_sequence_stride,
    q_head_stride,
    q_stride,
    k_page_stride,
    k_head_stride,
    k_stride,
    v_page_stride,
    v_head_stride,
    v_stride,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    at, split = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(group * queries, BLOCK_M)
    sequence, kv_head, tile = at // (kv_heads * tiles), at // tiles % kv_heads, at % tiles
    length = PAGE if lengths_ptr is None else tl.load(lengths_ptr + sequence)
    # Rows of the tile: the queries of the group's first head, then those of the next.
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    head, query = kv_head * group + row // queries, row % queries
    d = tl.arange(0, BLOCK_D)
    inside = (row < group * queries)[:, None] & (d < DIM)[None, :]
    # int64 before the multiplications: offsets pass 2**31 in large caches.
    sequence = sequence.to(tl.int64)
    kv_head = kv_head.to(tl.int64)
    q_at = sequence * q_sequence_stride + head.to(tl.int64) * q_head_stride + query.to(tl.int64) * q_stride
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=inside, other=0.0)
    last = length - queries + query if CAUSAL else tl.full((BLOCK_M,), 0, tl.int32) + length - 1
    # Whole tiles for each split: they differ by one tile at most, and the last ones may be empty.
    keys = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    peak = tl.full((BLOCK_M,), -float("inf"), COMPUTE)
    total = tl.zeros((BLOCK_M,), COMPUTE)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for start in tl.range(split * keys, tl.minimum(length, (split + 1) * keys), BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        if table_ptr is None:
            page, slot, known = sequence, n, n < length
        else:
            # A length beyond the table, or a page that the cache does not have, gives NaN and reads nothing.
            named = (n < length) & (n // PAGE < width)
            page = tl.load(table_ptr + sequence * width + n // PAGE, mask=named, other=-1).to(tl.int64)
            slot, known = n % PAGE, (page >= 0) & (page < pages)
        k_at = page * k_page_stride + kv_head * k_head_stride + slot.to(tl.int64) * k_stride
        v_at = page * v_page_stride + kv_head * v_head_stride + slot.to(tl.int64) * v_stride
        # Nothing past the sequence's end is read: 0 times an unused slot's contents may be NaN.
        there = known[:, None] & (d < DIM)[None, :]
        k = tl.load(k_ptr + k_at[:, None] + d[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + v_at[:, None] + d[None, :], mask=there, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
        s = tl.where(known[None, :], s, float("nan"))
        s = tl.where(n[None, :] <= last[:, None], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        # A row that has seen no key yet would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        # Subtract first: the difference of two large scores is exact, and their products with SCALE would be rounded.
        p = tl.exp2((s - base[:, None]) * (SCALE * LOG2_E))
        shrink = tl.exp2((peak - base) * (SCALE * LOG2_E))
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee", out_dtype=COMPUTE)
        peak = higher
    out = acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None]  # a row that sees no key is 0
    heads = kv_heads * group
    out_row = ((sequence * heads + head) * queries + query) * splits + split
    tl.store(partial_ptr + out_row[:, None] * DIM + d[None, :], out.to(partial_ptr.dtype.element_ty), mask=inside)
    if peak_ptr is not None:
        tl.store(peak_ptr + out_row, peak, mask=row < group * queries)
        tl.store(total_ptr + out_row, total, mask=row < group * queries)


@triton.jit
def merge_splits_kernel(
    partial_ptr,  # (rows, splits, dim), contiguous, as paged_attention_kernel writes it
    peak_ptr,  # (rows, splits)
    total_ptr,  # (rows, splits)
    out_ptr,  # (rows, dim), contiguous
    splits,
    dim,
    SCALE: tl.constexpr,
    BLOCK_S: tl.constexpr,  # a power of two, at least splits
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split, col = tl.arange(0, BLOCK_S), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    peak = tl.load(peak_ptr + row * splits + split, mask=split < splits, other=-float("inf"))
    total = tl.load(total_ptr + row * splits + split, mask=split < splits, other=0.0)
    largest = tl.max(peak, axis=0)
    # 0 for a split in which the row sees no key; if it sees none in any, -inf - -inf must not be computed.
    weight = total * tl.exp2((peak - tl.where(largest == -float("inf"), 0.0, largest)) * (SCALE * LOG2_E))
    total = tl.sum(weight, axis=0)
    inside = (split < splits)[:, None] & (col < dim)[None, :]
    partial = tl.load(partial_ptr + (row * splits + split)[:, None] * dim + col[None, :], mask=inside, other=0.0)
    out = tl.sum(partial * weight[:, None], axis=0) / tl.where(total == 0, 1.0, total)
    tl.store(out_ptr + row * dim + col, out.to(out_ptr.dtype.element_ty), mask=col < dim)


def settings(
    rows: int, dim: int, dtype: torch.dtype, in_pages: bool = True, large: bool = True, splits: int = 2
) -> dict:
    """Return launch settings.

    Args:
        rows: queries of all heads in a group.
        dim: columns per head.
        dtype: q's dtype.
        in_pages: whether keys are found through a block table. Tiles are then twice as long, because each first waits
            for the table.
        large: whether a program may use LARGE bytes of shared memory; otherwise tiles fit in 64 KB.
        splits: programs per sequence and key head. If one is enough, there are so many that three fit on an SM, with
            two stages of keys each: 180 us instead of 198 at 64 sequences of 2048 keys (H100).
    """
    block_d = max(16, next_power_of_2(dim))
    if dtype.itemsize > 2:  # fp32 and fp64 don't use tensor cores: small tiles
        block_m, block_n, stages = 16, 32 if block_d <= 128 and dtype.itemsize == 4 else 16, 2
    else:
        block_m = min(MAX_ROWS, max(16, next_power_of_2(rows)))
        smaller = (2 if block_d > 128 else 1) * (2 if block_m * block_d > 32 * 128 else 1)
        block_n, stages = (128 if in_pages else 64) // smaller, 2 if in_pages or splits == 1 else 3
    if not large:
        block_n, stages = (16 if dtype.itemsize > 2 else 32), 1 if dtype.itemsize > 2 else 2
    return {
        "DIM": dim,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "num_warps": 8 if dtype.itemsize > 2 else 4,
        "num_stages": stages,
    }


def splits_for(programs: int, keys: int, processors: int) -> int:
    """Return the number of splits for up to `keys` keys; with one split there are `programs` programs.

    The target is two programs per SM: the loads of two loops keep it busy, and the merge has to read every split's
    output."""
    return max(1, min(2 * processors // programs, cdiv(keys, MIN_KEYS), MAX_SPLITS))


def merge_settings(splits: int, dim: int) -> dict:
    """Return launch settings of the second kernel: all splits at once, as many columns as fit in registers."""
    block_s = next_power_of_2(splits)
    return {"BLOCK_S": block_s, "BLOCK_C": min(next_power_of_2(dim), max(8, 4096 // block_s)), "num_warps": 4}


def _arguments(q, k, v, table, lengths, partial, peak, total, splits: int, causal: bool, scale: float | None):
    """Return the first kernel's arguments and options."""
    _, heads, queries, dim = q.shape
    pages, kv_heads, page, _ = k.shape
    width = 1 if table is None else table.shape[1]
    strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]
    sizes = kv_heads, heads // kv_heads, queries, pages, width, splits
    options = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal, "PAGE": page}
    large = shared_memory(q) >= LARGE
    options |= settings(heads // kv_heads * queries, dim, q.dtype, table is not None, large, splits)
    return (q, k, v, table, lengths, partial, peak, total, *sizes, *strides), options


def attend_in_splits(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, lengths: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """Launch both kernels. Without table and lengths, k and v are (sequences, kv_heads, keys, dim)."""
    sequences, heads, queries, dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2] * (1 if table is None else table.shape[1])
    out = like(q)
    if q.numel() == 0 or capacity == 0 or len(k) == 0:
        return out.zero_()
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    rows = heads // kv_heads * queries
    tiles = cdiv(rows, settings(rows, dim, q.dtype)["BLOCK_M"])
    programs = sequences * kv_heads * tiles
    splits = splits_for(programs, capacity, multiprocessors(q))
    partial, peak, total = out, None, None
    if splits > 1:
        compute = torch.float64 if q.dtype == torch.float64 else torch.float32
        partial = torch.empty(*q.shape[:3], splits, dim, dtype=compute, device=q.device)
        peak, total = (torch.empty(*q.shape[:3], splits, dtype=compute, device=q.device) for _ in range(2))
    arguments, options = _arguments(q, k, v, table, lengths, partial, peak, total, splits, causal, scale)
    with torch.cuda.device_of(q):
        paged_attention_kernel[(programs, splits)](*arguments, **options)
        if splits > 1:
            chosen = merge_settings(splits, dim)
            grid = sequences * heads * queries, cdiv(dim, chosen["BLOCK_C"])
            merge_splits_kernel[grid](partial, peak, total, out, splits, dim, options["SCALE"], **chosen)
    return out


def _forward(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor, causal: bool, scale: float | None
) -> Tensor:
    if block_table.is_cpu:  # on a GPU this would synchronise: the kernel returns NaN instead
        _check_values(k_cache, block_table, lengths)
    return attend_in_splits(q, k_cache, v_cache, block_table.contiguous(), lengths.contiguous(), causal, scale)


paged_attention_op = register("paged_attention", _forward, lambda q, *_: like(q))


def _check_values(k_cache: Tensor, block_table: Tensor, lengths: Tensor) -> None:
    """Check that each sequence fits in its table entries, and that the cache has the pages they name."""
    (pages, _, page, _), width = k_cache.shape, block_table.shape[1]
    for i, length in enumerate(lengths.tolist()):
        if not 0 <= length <= width * page:
            raise ValueError(
                f"paged_attention takes lengths of 0 to {width * page}, {width} pages of {page} keys, got {length} for "
                f"sequence {i}: give block_table more columns"
            )
        wrong = [each for each in block_table[i, : cdiv(length, page)].tolist() if not 0 <= each < pages]
        if wrong:
            raise ValueError(
                f"paged_attention takes pages of 0 to {pages - 1}, those of k_cache, got {wrong[0]} in block_table for "
                f"sequence {i}: name a page that the cache has"
            )


def _check(q, k_cache, v_cache, block_table, lengths, scale) -> None:
    check_together("paged_attention", q=q, k_cache=k_cache, v_cache=v_cache)
    wrong = None
    if any(x.dim() != 4 for x in (q, k_cache, v_cache)):
        wrong = "q of (sequences, heads, queries, dim) and caches of (pages, kv_heads, page, dim)", "reshape them"
    elif k_cache.shape != v_cache.shape or q.shape[3] != k_cache.shape[3]:
        wrong = "one dim, k_cache and v_cache alike", "expand or slice them"
    elif not 1 <= q.shape[3] <= 256:
        wrong = "heads of dim 1 to 256", "split them"
    elif q.shape[1] % max(1, k_cache.shape[1]) or (q.shape[1] and not k_cache.shape[1]):
        wrong = "heads of q in multiples of those of k_cache", "repeat those of k_cache"
    elif k_cache.shape[2] == 0:
        wrong = "pages of at least 1 key", "give the caches' third dimension a size"
    if wrong is not None:
        shapes = ", ".join(f"{tuple(x.shape)}" for x in (q, k_cache, v_cache))
        raise ValueError(f"paged_attention takes {wrong[0]}, got {shapes}: {wrong[1]}")
    shapes = {"block_table": (f"({len(q)}, width)", 2), "lengths": (f"({len(q)},)", 1)}
    for (name, (shape, dims)), x in zip(shapes.items(), (block_table, lengths), strict=True):
        if not isinstance(x, Tensor) or x.dtype != torch.int32:
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"paged_attention takes {name} in a tensor of torch.int32, got {kind}: convert with .int()")
        if x.dim() != dims or len(x) != len(q):
            raise ValueError(
                f"paged_attention takes {name} of {shape}, a row per sequence of q, got {tuple(x.shape)}: reshape it"
            )
        if x.device != q.device:
            raise ValueError(
                f"paged_attention takes tensors on one device, got q on {q.device} and {name} on {x.device}: "
                f"move one with .to(device)"
            )
    check_option("paged_attention", "scale", scale, float, optional=True)
    if scale is not None and not 2.0**-126 <= scale < 2.0**127:
        raise ValueError(f"paged_attention takes a scale of 2^-126 to 2^127, got {scale}: scale q instead")


@planned
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """Compute softmax(q k^T scale) v for each sequence's queries over its own paged keys. Not differentiable.

    Args:
        q: floating-point tensor of shape (sequences, heads, queries, dim), dim up to 256, any strides.
        k_cache, v_cache: (pages, kv_heads, page, dim), of q's dtype and on its device; page is the number of keys per
            page, any number. heads is a multiple of kv_heads; each key head serves that many neighbouring query heads.
            Any strides; non-adjacent columns are copied first.
        block_table: (sequences, width), int32: the pages of each sequence, in order. Entries past a sequence's length
            are not read.
        lengths: (sequences,), int32: each sequence's number of keys, including those of its queries; 0 to width * page.
        causal: whether the queries are the sequence's last tokens: the last one sees every key, each earlier query
            one key fewer.
        scale: positive multiplier for the scores; 1 / sqrt(dim) by default. Each value compiles a new kernel.

    Returns:
        A contiguous tensor of q's shape and dtype, bitwise identical in every run. Products and sums are fp32 (fp64 for
        fp64 inputs); the probabilities are rounded to q's dtype before the second matmul. A query that sees no key gets
        0. On a GPU, a sequence that is longer than its table, or whose pages are not in the cache, gets NaN, because
        raising an error would mean waiting for the GPU.

    Raises:
        TypeError: q or a cache is not a floating-point tensor, their dtypes differ, or block_table or lengths are not
            int32.
        ValueError: shapes do not match, scale is not a positive normal fp32 number, devices differ, or tensors are on
            the CPU while kernels run on a GPU; on the CPU also if lengths exceed the table or pages the cache.
    """
    _check(q, k_cache, v_cache, block_table, lengths, scale)
    return paged_attention_op(q, k_cache, v_cache, block_table, lengths, causal, scale)


def paged_attention_reference(
    q, k_cache, v_cache, block_table, lengths, causal: bool = True, scale: float | None = None
) -> Tensor:
    """Compute the same in plain PyTorch, one sequence at a time, after gathering its pages."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, page = torch.zeros_like(q, memory_format=torch.contiguous_format), k_cache.shape[2]
    for i, length in enumerate(lengths.tolist()):
        used = block_table[i, : cdiv(length, page)].long()
        k, v = (cache[used].transpose(0, 1).flatten(1, 2)[None, :, :length] for cache in (k_cache, v_cache))
        out[i] = flash_attention_reference(q[i : i + 1], k, v, causal, scale)[0]
    return out


def paged_attention_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (sequences, heads, kv_heads, queries, keys, dim): two matmuls, 4 dim FLOPs
    per pair of a query and a visible key; q, the sequences' pages and the table read once, the output written once."""
    sequences, heads, kv_heads, queries, keys, dim = shape
    seen = min(queries, keys)
    pairs = seen * keys - seen * (seen - 1) // 2
    width = cdiv(keys, PAGE)
    size = sequences * heads * queries * dim * dtype.itemsize
    cache = 2 * sequences * width * PAGE * kv_heads * dim * dtype.itemsize
    return Work(costs.attention(sequences * heads * pairs, dim), size + cache + 4 * sequences * (width + 1), size)


def _inputs(sequences: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int, **options) -> tuple:
    width, device = cdiv(keys, PAGE), options.get("device", "cpu")
    q = torch.randn(sequences, heads, queries, dim, **options)
    caches = (torch.randn(sequences * width, kv_heads, PAGE, dim, **options) for _ in range(2))
    table = torch.randperm(sequences * width, device="cpu").to(device, torch.int32).view(sequences, width)
    return q, *caches, table, torch.full((sequences,), keys, dtype=torch.int32, device=device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    q, k, v, table, lengths = _inputs(*shape, dtype=dtype, device="meta")
    partial = torch.empty(1, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device="meta")
    return _arguments(q, k, v, table, lengths, partial, partial, partial, 8, True, None)


OP = FusedOp(
    name="paged_attention",
    fused=paged_attention,
    reference=paged_attention_reference,
    work=paged_attention_work,
    kernel=paged_attention_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1, 1, 1, 16), (2, 4, 2, 3, 17, 36), (1, 7, 1, 1, 300, 64), (2, 4, 1, 4, 160, 16)),
    gpu_shapes=(
        (1, 32, 32, 1, 65536, 128),
        (1, 32, 8, 1, 65536, 128),
        (8, 32, 8, 1, 8192, 128),
        (64, 32, 8, 1, 2048, 128),
        (1, 8, 1, 1, 131072, 128),
    ),
)
