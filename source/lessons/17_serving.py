# %% [markdown]
# # 17 Serving: the roofline of one token
#
# A prompt of a thousand tokens goes through a model in one pass. Its answer takes one pass *per token*, and each pass
# reads all weights and the whole memory of the conversation. **What limits that, which kernels serve it, and what does
# each trick of a serving system change in the bytes?**
#
# After this lesson you can
#
# - place prefill and decode on one roofline, and compute the most tokens per second that a GPU can give;
# - predict the effect there of batching, grouped heads, latent attention, formats and speculation;
# - split a query's keys among programs, merge the parts, and count what that costs;
# - read keys through a block table, and choose the size of a page;
# - fuse what surrounds attention: rotation and cache writes, quantised caches, the draw of the next token.
#
# About 65 minutes. It builds on [10](10_attention.ipynb) (attention) and [06](06_softmax.ipynb) (online softmax), and
# leads to [exercise 17](../exercises/17_flash_decoding.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

import kernels
from benchmarks.experiments.lesson_17 import RECORD
from helpers.figures import DecodeSpeedExplorer, DecodeStep, Point, roofline_chart
from helpers.figures.attention.decode_speed import CACHES
from helpers.instruments import DEVICES, Roofline, compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.attention import LOG2_E
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
gpu, h200, h100 = DEVICES["H200"], recorded("h200"), recorded(RECORD.removesuffix(".json"))


def in_us(name, first):
    found = h100.experiment(name)
    ways = [*next(iter(found.values()))]
    rows = [
        (key, *(f"{1e6 * each[way].median:.1f}" for way in ways)) for key, each in found.items()
    ]
    title = f"{h100.label_of(name)}\nus on the GPU, cold L2"
    return table((first, *map(str, ways)), rows, title)


# %% [markdown]
# ## Prefill and decode on one roofline
#
# [Prefill](../docs/glossary.md#prefill) runs the model over a whole prompt. [Decode](../docs/glossary.md#decode) runs
# it for one new token per sequence. The matmuls are the same, with fewer rows; attention compares one query with all
# earlier keys, which were kept, with their values, in the [KV cache](../docs/glossary.md#kv-cache).
#
# A step of decode reads every weight once, and every cached key and value once. Everything else, one row of
# activations per sequence, is thousands of times smaller. So the bytes are the weights' and the cache's, and **the
# time of a step is at least those bytes over the bandwidth.**
#
# Take a model of the size of Llama 3 8B, in bf16: a step multiplies with 7.5 billion weights. Each of its 32 layers
# keeps 8 keys and 8 values of 128 elements per token. An H200 has 4.8 TB/s, in
# its data sheet. **How many tokens per second can one user get at most, with 8192 tokens in the cache?**
# <!-- given 4.8 TB/s: NVIDIA H200 datasheet -->

# %% tags=["hide-input"]
one_user = predict_first("most tokens per second, one user, 8B weights in bf16", unit="tokens/s")
one_user

# %% tags=["hide-input"]
grouped = CACHES["8 key heads"]
alone = DecodeStep(grouped, batch=1, context=8192, format="bf16, cache bf16")
print(f"weights {alone.weight_bytes / 1e9:.1f} GB, cache {alone.cache_bytes / 1e9:.2f} GB")
one_user.compare(round(alone.tokens_per_second(gpu)), "Bandwidth over bytes; FLOPs don't matter.")

# %% [markdown]
# The roofline of one step, for one user and for 64, next to the prefill of one prompt of 8192 tokens:

# %% tags=["hide-input"]
roof = Roofline(gpu, "bf16")
prompt = 8192
pairs = prompt * (prompt + 1) / 2  # causal
flops = 2 * 7.5e9 * prompt + pairs * 32 * grouped.flops
of_steps = {
    "prefill, 1 prompt": flops / (alone.weight_bytes + alone.cache_bytes),
    "decode, 1 user": alone.work().intensity,
    "decode, 64 users": DecodeStep(grouped, 64, prompt, "bf16, cache bf16").work().intensity,
    "decode, 64, no cache": 64 * 2 * 7.5e9 / alone.weight_bytes,
}
points = [Point(name, each, roof.attainable(each)) for name, each in of_steps.items()]
title = "Prefill is arithmetic; decode waits for memory, and its cache keeps it there"
listed = "; ".join(f"{name}: {each:,.1f} FLOP/byte" for name, each in of_steps.items())
roofline_chart(roof, points, title, f"{title}. On an H200, ridge {roof.ridge:.0f}: {listed}")

# %% [markdown]
# Prefill's weights serve thousands of rows; a decode step's serve one row per sequence. A larger batch moves the
# weights' share to the right: 64 users share one read of the weights. **It doesn't move the cache's share at all**,
# because each user has a cache of their own. That is why batching alone stops helping.
#
# ## The cache in bytes
#
# Per token and layer, attention keeps a key and a value per key head. Four designs, for 32 query heads of 128 elements:
#
# - *one key head per query head* (MHA), the original;
# - **grouped heads** (GQA): 8 key heads, each shared by four query heads;
# - one key head for all (MQA);
# - **latent attention** (MLA): one vector of 512 elements per token, the source of each head's keys and values,
#   and 64 more that carry the rotation. The matrix that would expand keys is multiplied into the query
#   instead, so all heads read the same 576 elements: MQA with a long head, whose values are its keys' first 512.
#
# MLA's numbers are DeepSeek-V2's (arXiv:2405.04434).

# %% tags=["hide-input"]
rows = []
for name, cache in CACHES.items():
    per_token = cache.elements * 2
    rows.append((name, f"{per_token:,} B", f"{cache.flops / per_token:.0f} FLOP/byte"))
table(("", "per token and layer, bf16", "intensity of attention"), rows)

# %% [markdown]
# The intensity grows with the query heads that share a byte. Below the
# [ridge point](../docs/glossary.md#ridge-point) attention waits for memory, whatever it computes. MLA is nearest to
# it: with the 128 heads of DeepSeek's models it is past the ridge, and its kernel needs tensor cores at full rate.
#
# **With 8 key heads in bf16, at how many tokens in the batch's caches together do they weigh as much as the weights?**

# %% tags=["hide-input"]
as_heavy = predict_first("cached tokens that weigh as much as 7.5 billion weights", unit="tokens")
as_heavy

# %% tags=["hide-input"]
per_token = alone.cache_bytes / 8192
print(f"{per_token / 1024:.0f} KiB per token in 32 layers")
as_heavy.compare(
    round(alone.weight_bytes / per_token),
    "One user with a long document, or 64 with a few pages each: the same bytes per step.",
)

# %% [markdown]
# Now vary it. The bars show one step: bytes, intensity, and tokens per second for the whole batch; the mark is what the
# same batch would reach without any cache.
#
# 1. One sequence of 8192 tokens: which cache is fastest, and by how much? At 131,072 tokens?
# 2. 8192 tokens each: raise the batch until 8 key heads no longer fit. What share of the mark do they reach just
#    before?
# 3. At that batch, what does an fp8 cache gain? What do fp8 weights gain on top?
# 4. Which caches ever get past the ridge?

# %% tags=["hide-input"]
explorer = DecodeSpeedExplorer(batch=64, context=8192)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. They hardly differ at 8192 tokens, because weights are most of the
# bytes; at 131,072 the cache of 32 heads is several times the weights. 2. 64 sequences fit, 128 don't; at 64 the cache
# is most of the bytes, and less than a fifth of the mark is left. 3. An fp8 cache gains most of a doubling, and lets
# 128 fit; fp8 weights add little, because the weights are no longer most of the bytes. 4. None with a long context: the
# intensity of a step tends to that of its attention, which batching doesn't change. With 1024 tokens and hundreds of
# sequences, one key head and the latent do.</details>
#
# ## Split over keys, in steps
#
# A decode kernel has to read k and v at copy bandwidth. Let's build one, for one sequence. Query heads that share a key
# head are the rows of one tile, so that each key is loaded once for all of them. `attend` is lesson 10's loop, from
# `first` to `last`. `LOCATE` returns where in the cache a key is; in order, for now.


# %%
@triton.jit
def in_order(key, inside, table_ptr, PAGE: tl.constexpr):
    return key


@triton.jit
def attend(q, k_ptr, v_ptr, table_ptr, first, last, stride, scale, LOCATE: tl.constexpr,
           PAGE: tl.constexpr, N: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total, acc = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D), tl.float32)
    for start in range(first, last, N):
        key = start + tl.arange(0, N)
        inside = key < last
        slot = LOCATE(key, inside, table_ptr, PAGE)
        at = slot.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.where(inside[None, :], tl.dot(q, k.T) * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p, shrink = tl.exp(s - higher[:, None]), tl.exp(peak - higher)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        total, peak = total * shrink + tl.sum(p, axis=1), higher
    return peak, total, acc


# %% [markdown]
# With one program per key head, this is a whole attention kernel. Count its programs: 8 key heads are 8 programs, and
# an H200 has 132 SMs. For a long cache of one user, 124 of them do nothing.
#
# So give a key head's keys to several programs. Each [split](../docs/glossary.md#split) computes the output as if there
# were no other keys, and keeps its maximum and its sum: the merge needs them.


# %%
@triton.jit
def split_kernel(
    q_ptr,  # (heads, D)
    k_ptr,  # (slots, key heads, D)
    v_ptr,  # (slots, key heads, D)
    table_ptr,  # (pages,) int32, or None where keys are in order
    partial_ptr,  # (heads, splits, D) fp32: each split's output
    peak_ptr,  # (heads, splits) fp32
    total_ptr,  # (heads, splits) fp32
    keys, key_heads, splits, scale,
    LOCATE: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0), tl.program_id(1)
    row, d = tl.arange(0, 16), tl.arange(0, D)  # tl.dot takes 16 rows: the rest are padding
    at = row[:, None] * D + d[None, :]
    q = tl.load(q_ptr + head * GROUP * D + at, mask=row[:, None] < GROUP, other=0.0)
    size = tl.cdiv(tl.cdiv(keys, splits), N) * N  # keys per split, in whole blocks
    first = tl.minimum(split * size, keys)
    last = tl.minimum(first + size, keys)
    peak, total, acc = attend(q, k_ptr + head * D, v_ptr + head * D, table_ptr, first, last,
                              key_heads * D, scale, LOCATE, PAGE, N)  # fmt: skip
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_row = (head * GROUP + row) * splits + split
    tl.store(partial_ptr + out_row[:, None] * D + d[None, :], out, mask=row[:, None] < GROUP)
    tl.store(peak_ptr + out_row, peak, mask=row < GROUP)
    tl.store(total_ptr + out_row, total, mask=row < GROUP)


# %% [markdown]
# Now the merge. A split's sum $t_i$ is relative to its *own* maximum $m_i$. Its weight among the others is its sum
# relative to the largest maximum $m$:
#
# $$y = \frac{\sum_i w_i\, \text{out}_i}{\sum_i w_i}, \qquad w_i = t_i\, e^{m_i - m}$$
#
# **Write it**, for d = 1: each program merges the four splits of one row. As given, the maxima don't count.


# %%
@triton.jit
def weights_kernel(peak_ptr, total_ptr, out_ptr, y_ptr, SPLITS: tl.constexpr):
    at = tl.program_id(0) * SPLITS + tl.arange(0, SPLITS)
    peak, total = tl.load(peak_ptr + at), tl.load(total_ptr + at)
    weight = total + 0 * peak  # <- change this line
    y = tl.sum(weight * tl.load(out_ptr + at)) / tl.sum(weight)
    tl.store(y_ptr + tl.program_id(0), y)


peaks = torch.tensor(
    [[0.5, 2.0, -1.0, 1.0], [-120.0, -118.0, -121.5, -117.0], [3.0, 1.5, 2.5, 0.0]]
)
totals = torch.tensor([[1.5, 2.0, 1.25, 3.0], [2.5, 1.0, 4.0, 1.75], [1.1, 2.25, 1.6, 3.5]])
outs = torch.tensor([[2.0, -1.0, 0.5, 4.0], [1.0, 3.0, -2.0, 0.25], [-1.5, 2.5, 0.75, 1.25]])
weight = totals * (peaks - peaks.amax(1, keepdim=True)).exp()
wanted = (outs * weight).sum(1) / weight.sum(1)
puzzle(weights_kernel, 3, peaks, totals, outs, wanted=wanted, SPLITS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>weight = total * tl.exp(peak - tl.max(peak))</code>: with
# <code>tl.exp(peak)</code> alone, every weight of the second row is 0, and its result 0 / 0, as in any softmax that
# doesn't subtract its maximum.</details>
#
# <!-- choices
# weight = total + 0 * peak
#
# weight = total * peak
#
# weight = total * tl.exp(peak)
#
# weight = total * tl.exp(tl.max(peak) - peak)
#
# weight = total * tl.exp(peak - tl.max(peak))
# -->
#
# A split can be empty: seven splits of a short sequence, or sequences of different lengths in one batch. Its maximum is
# $-\infty$, its sum 0. It drops out of the merge by itself, as $e^{-\infty - m} = 0$, unless *every* split is empty:
# then $-\infty - -\infty$ is NaN. Attention to no keys returns 0, as PyTorch's does. Below, three sequences have 3, 1
# and 0 splits. As given, the sum of the one without is NaN. **Change the marked line so that it is 0.**


# %%
@triton.jit
def empty_splits_kernel(first_ptr, count_ptr, peak_ptr, sum_ptr, y_ptr, SPLITS: tl.constexpr):
    row, split = tl.program_id(0), tl.arange(0, SPLITS)
    inside = split < tl.load(count_ptr + row)
    at = tl.load(first_ptr + row) + split
    peak = tl.load(peak_ptr + at, mask=inside, other=-float("inf"))
    top = tl.max(peak)  # <- change this line
    total = tl.load(sum_ptr + at, mask=inside, other=0.0)
    tl.store(y_ptr + row, tl.sum(total * tl.exp(peak - top)))


first, count = torch.tensor([[0, 3, 4], [3, 1, 0]], dtype=torch.int32)
peaks, sums = torch.tensor([[1.0, 3.0, 2.0, -80.0], [2.0, 1.5, 3.0, 1.25]])
wanted = torch.stack([(sums[:3] * (peaks[:3] - 3).exp()).sum(), sums[3], torch.tensor(0.0)])
puzzle(empty_splits_kernel, 3, first, count, peaks, sums, wanted=wanted, SPLITS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>top = tl.maximum(tl.max(peak), -1e30)</code>: any finite number does that no
# real score is below. The sum is then 0; the kernel that divides by it takes 1 instead.</details>
#
# <!-- choices
# top = tl.max(peak)
#
# top = tl.max(tl.where(inside, peak, 0.0))
#
# top = tl.maximum(tl.max(peak), 0.0)
#
# top = tl.maximum(tl.max(peak), -1e30)
#
# top = tl.minimum(tl.max(peak), 1e30)
# -->
#
# Both together, in the kernel that merges, one program per row. It is the catalogue's own (`exp2` is faster than `exp`,
# and takes $\log_2 e$ as a factor):


# %%
@triton.jit
def merge_splits_kernel(
    partial_ptr,  # (rows, splits, dim), contiguous
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
    weight = total * tl.exp2(
        (peak - tl.where(largest == -float("inf"), 0.0, largest)) * (SCALE * LOG2_E)
    )
    total = tl.sum(weight, axis=0)
    inside = (split < splits)[:, None] & (col < dim)[None, :]
    partial = tl.load(
        partial_ptr + (row * splits + split)[:, None] * dim + col[None, :], mask=inside, other=0.0
    )
    out = tl.sum(partial * weight[:, None], axis=0) / tl.where(total == 0, 1.0, total)
    tl.store(out_ptr + row * dim + col, out.to(out_ptr.dtype.element_ty), mask=col < dim)


# %% tags=["hide-input"]
def decode(q, k, v, splits, keys=None, pages=None, locate=in_order):
    (heads, d), key_heads = q.shape, k.shape[-2]
    keys, page = (len(k), 1) if pages is None else (keys, k.shape[1])
    partial = torch.empty(heads, splits, d, device=q.device)
    peak, total = (torch.empty(heads, splits, device=q.device) for _ in range(2))
    y = torch.empty_like(q)
    split_kernel[key_heads, splits](
        q, k, v, pages, partial, peak, total, keys, key_heads, splits, d**-0.5, LOCATE=locate,
        PAGE=page, GROUP=heads // key_heads, D=d, N=64,
    )  # fmt: skip
    block_s = triton.next_power_of_2(splits)
    merge_splits_kernel[heads, 1](
        partial, peak, total, y, splits, d, SCALE=1.0, BLOCK_S=block_s, BLOCK_C=d
    )
    return y


# %% [markdown]
# What does it cost? The partial results are written by one launch and read by the next. **With 2048 keys, 4 query heads
# per key head and 128 elements in fp16: how many bytes do 16 splits add, in % of the cache?**

# %% tags=["hide-input"]
split_cost = predict_first("bytes that 16 splits of 128 keys add", unit="% of the cache")
split_cost

# %% tags=["hide-input"]
q = torch.randn(8, 128, device=device, dtype=torch.float16)
cache = torch.randn(2, 2048, 2, 128, device=device, dtype=torch.float16)
k, v = cache


def exact(q, k, v):
    per_head = (x.double().transpose(0, 1) for x in (k, v))
    y = torch.nn.functional.scaled_dot_product_attention(
        q.double()[:, None], *per_head, enable_gqa=True
    )
    return y[:, 0]


rows, more = [], {}
for splits in (1, 4, 16, 31):
    found = measure(decode, q, k, v, splits)
    right = torch.allclose(found.result.double(), exact(q, k, v), atol=1e-3)
    more[splits] = 100 * (found.bytes_total / cache.nbytes - 1)
    rows.append((splits, 2 * splits, found.launches, f"{more[splits]:.2f} %", right))
display(table(("splits", "programs", "launches", "bytes over the cache", "right"), rows))
split_cost.compare(
    round(more[16], 1),
    "Per row and split 130 fp32 values go out and come back, and q's 128 are read again; the "
    "split's 128 keys and values are read once for four rows.",
)

# %% [markdown]
# (Of 31 splits, in whole blocks, 16 get 128 keys each and 15 are empty, and the result is right.) So splits cost little
# while each has hundreds of keys. The gain, from lesson 10's recording of such kernels, one sequence, bf16:

# %% tags=["hide-input"]
decoding = h200.experiment("attention_decode")
ways = [way for way in decoding[65536][8] if way != "Flex"]
rows = []
for keys, by_heads in decoding.items():
    took = (f"{1e6 * by_heads[8][way].median:.1f}" if way in by_heads[8] else "" for way in ways)
    rows.append((f"{keys:,}", *took))
title = f"{h200.label_of('attention_decode')}\n8 key heads; us on the GPU, cold L2, by splits"
table(("keys", *ways), rows, title)

# %% [markdown]
# How many splits? Enough to fill the GPU: batch x key heads x splits of at least a few programs per SM. Here are such
# kernels for several sequences, by the number of splits:

# %% tags=["hide-input"]
in_us("serving_splits", "sequences x tokens")

# %% [markdown]
# One sequence needs many splits. 16 sequences of 8 key heads are 128 programs without any, nearly one per SM, and splits
# only add their cost. 128 sequences are 1024 programs: a few splits shorten the tail a little, many cost. Servers choose
# per step, from the lengths in the batch.
#
# ## Paged keys
#
# A conversation grows by a token per step, to an unknown length. Reserve the longest possible, and most
# of the memory stays empty. vLLM's answer (arXiv:2309.06180) is an operating system's: **pages** of 16 tokens, given
# out one at a time, and a [block table](../docs/glossary.md#block-table) per sequence that lists its pages in order.
# <!-- given 16 tokens: vLLM's default block size -->
#
# A key is then found in two steps: which page, and where in it. **Write it.** One program gathers 8 tokens of a
# sequence from pages of 4, `cache` holds their values. As given, it treats the table's entry as the position itself.


# %%
@triton.jit
def page_kernel(table_ptr, cache_ptr, y_ptr, KEYS: tl.constexpr, PAGE: tl.constexpr):
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    page = tl.load(table_ptr + key // PAGE)
    slot = page + key % PAGE  # <- change this line
    tl.store(y_ptr + key, tl.load(cache_ptr + slot))


pages = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
stored = torch.tensor([5.0, 6, 7, 8, 13, 14, 15, 16, 1, 2, 3, 4, 9, 10, 11, 12])
puzzle(page_kernel, 2, pages, stored, wanted=torch.arange(1.0, 17), KEYS=8, PAGE=4,
       shared=("table_ptr",))  # fmt: skip

# %% [markdown]
# <details><summary>Answer</summary><code>slot = page * PAGE + key % PAGE</code>: a page's number counts pages; its
# first token is at that many whole pages.</details>
#
# <!-- choices
# slot = page + key % PAGE
#
# slot = page * PAGE + key
#
# slot = page * PAGE + key % PAGE
#
# slot = page * KEYS + key % PAGE
#
# slot = page + key // PAGE
# -->
#
# In our kernel it is another `LOCATE`, and nothing else changes:


# %%
@triton.jit
def by_page(key, inside, table_ptr, PAGE: tl.constexpr):
    page = tl.load(table_ptr + key // PAGE, mask=inside, other=0)
    return page * PAGE + key % PAGE


# %% [markdown]
# What does the detour cost in bytes? Same keys and values, in pages in random order. **With pages of 16
# tokens, 2 key heads of 128 elements in fp16: how large is the block table, in % of the cache?**

# %% tags=["hide-input"]
table_cost = predict_first("bytes of the block table, pages of 16 tokens", unit="% of the cache")
table_cost

# %% tags=["hide-input"]
rows, lengths = [], torch.randint(100, 4000, (64,), generator=torch.Generator().manual_seed(0))
for page in (1, 4, 16, 64, 256):
    order = torch.randperm(2048 // page, device=device, dtype=torch.int32)
    paged = torch.empty(2, 2048 // page, page, 2, 128, device=device, dtype=torch.float16)
    paged[:, order.long()] = cache.view(2, -1, page, 2, 128)
    found = measure(decode, q, *paged, 4, 2048, order, by_page)
    same = torch.equal(found.result, decode(q, k, v, 4))
    held = (lengths + page - 1) // page * page
    empty = 100 * (1 - lengths.sum() / held.sum()).item()
    rows.append((page, same, f"{100 * order.nbytes / cache.nbytes:.3f} %", f"{empty:.1f} %"))
columns = ("tokens per page", "same result", "block table", "empty slots, 64 sequences")
display(table(columns, rows))
reserved = 100 * (1 - lengths.sum() / (64 * 8192)).item()
print(f"without pages, 8192 tokens reserved per sequence: {reserved:.0f} % empty")
table_cost.compare(100 * 4 / (16 * 2 * 2 * 128 * 2), "4 bytes per page of 16 KiB.")

# %% [markdown]
# The table's bytes are nothing. Nor do small pages waste [sectors](../docs/glossary.md#sector): even a page of one
# token is rows of 256 bytes, eight whole sectors. Small pages cost *latency and addresses*: k can't be
# requested before the table's entry has arrived, and a tile of 64 keys has 64 base addresses instead of one. A copy
# engine ([TMA](../docs/glossary.md#tma)) fetches a rectangle, so it needs one instruction per page. Large pages waste
# memory at every sequence's end, and prompts that begin alike share only the pages that are alike in whole. **At 16 the
# table and the empty slots are both below 1 %**; the latency is not measured here.
# <!-- given 256 bytes: 128 elements of fp16, as in the cell above -->
#
# ### `kernels.paged_attention`
#
# The catalogue's kernel is this one for a batch: a table row and a length per sequence, a few queries each, pages that
# don't exist refused. It chooses the splits itself.

# %% tags=["hide-input"]
order = torch.randperm(128, device=device, dtype=torch.int32)
paged = torch.empty(2, 128, 16, 2, 128, device=device, dtype=torch.float16)
paged[:, order.long()] = cache.view(2, 128, 16, 2, 128)
k_pages, v_pages = paged.transpose(2, 3)  # (pages, key heads, page, dim): a view
length = torch.tensor([2048], device=device, dtype=torch.int32)
ours = measure(kernels.paged_attention, q[None, :, None], k_pages, v_pages, order[None], length)
close = torch.allclose(ours.result[0, :, 0], decode(q, *paged, 4, 2048, order), atol=1e-3)
more_bytes = 100 * (ours.bytes_total / cache.nbytes - 1)
print(
    f"same result: {close}; {ours.launches} launches; {more_bytes:.1f} % more bytes than the cache"
)

# %% [markdown]
# ## Around attention
#
# Before attention, each new token's q and k are normed and rotated
# ([RoPE](../docs/glossary.md#rope)), and k and v go into their page. Written in PyTorch, each step is a launch or
# several. `kernels.rope_cache` does it in one. This does the same in PyTorch, for fp16 tensors. Each operation is a
# launch, and so are an index and a comparison; `rms_norm` is eight, two of them conversions to fp32 and back; a view or
# a `chunk` needs no launch, and a conversion of the cosines' row is one. **How many launches are that?**

# %% tags=["hide-input"]
import inspect

from kernels.elementwise import rope_cache

print(inspect.getsource(rope_cache.rope_cache_reference))

# %% tags=["hide-input"]
rope_launches = predict_first("launches of norm, rotation and cache write in PyTorch", unit="")
rope_launches

# %% tags=["hide-input"]
inputs = rope_cache.OP.inputs(16, 8, 2, 128, dtype=torch.float16, device=device)
copies = [x.clone() for x in inputs]
unfused, fused = (
    measure(rope_cache.rope_cache_reference, *inputs),
    measure(kernels.rope_cache, *copies),
)
close = {"rtol": 1e-2, "atol": 1e-2}  # PyTorch rounds to fp16 after every step
print("same q:", torch.allclose(unfused.result, fused.result, **close), end="; ")
print("same cache:", torch.allclose(inputs[6], copies[6], **close))
for name, found in (("PyTorch", unfused), ("one kernel", fused)):
    launches = "1 launch" if found.launches == 1 else f"{found.launches} launches"
    print(f"{name}: {launches}, {found.unique_total / 1e3:.0f} kB")
rope_launches.compare(
    unfused.launches,
    "Two rotations of 17 each: 8 for the norm, 2 for the angles, 6 for the rotation, 1 to join the "
    "halves. 8 more find the slots, 4 write.",
)

# %% [markdown]
# Fusion saves bytes too, but at one token per user they are kilobytes, and take less than a microsecond: **here the
# launches count.** (Eager PyTorch also waits for the CPU, where it looks for the tokens that have a slot.)

# %% tags=["hide-input"]
in_us("serving_rope_cache", "tokens")

# %% [markdown]
# With thousands of tokens, in prefill, the bytes count, and our kernel, one warp per head, loses to `torch.compile`.
#
# The same holds for the other neighbour: residual, norm and quantisation before a matmul with int8 weights (lesson 12),
# twice per layer. One program per row, everything in registers:


# %%
@triton.jit
def add_norm_int8_kernel(
    x_ptr, residual_ptr, weight_ptr, s_ptr, y_ptr, scale_ptr, BLOCK: tl.constexpr
):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    at = row * BLOCK + col
    s = tl.load(x_ptr + at).to(tl.float32) + tl.load(residual_ptr + at).to(tl.float32)
    tl.store(s_ptr + at, s)  # the next residual
    h = s * tl.rsqrt(tl.sum(s * s) / BLOCK + 1e-6) * tl.load(weight_ptr + col).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(h)) / 127, 1e-12)
    tl.store(scale_ptr + row, scale)
    rounded = tl.floor(h / scale + 0.5)
    tl.store(y_ptr + at, tl.minimum(tl.maximum(rounded, -127), 127).to(tl.int8))


# %% tags=["hide-input"]
def add_norm_int8(x, residual, weight):
    s, y = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int8, device=device)
    scale = torch.empty(len(x), 1, device=device)
    add_norm_int8_kernel[(len(x),)](x, residual, weight, s, y, scale, BLOCK=x.shape[1])
    return s, y, scale


def add_norm_int8_reference(x, residual, weight):
    s = x + residual
    h = torch.nn.functional.rms_norm(s.float(), (s.shape[1],), weight.float(), 1e-6)
    scale = (h.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
    return s, (h / scale + 0.5).floor().clamp(-127, 127).to(torch.int8), scale


given = (*torch.randn(2, 16, 1024, device=device, dtype=torch.float16),
         torch.rand(1024, device=device, dtype=torch.float16) + 0.5)  # fmt: skip
unfused, fused = (measure(each, *given) for each in (add_norm_int8_reference, add_norm_int8))
codes = (unfused.result[1].int() - fused.result[1].int()).abs().max().item()
print(f"codes differ by at most {codes}; scales agree: "
      f"{torch.allclose(unfused.result[2], fused.result[2], rtol=2e-3)}")  # fmt: skip
for name, found in (("PyTorch", unfused), ("one kernel", fused)):
    launches = "1 launch" if found.launches == 1 else f"{found.launches} launches"
    print(f"{name}: {launches}, {found.bytes_total / 1e3:.0f} kB")

# %% [markdown]
# ### Quantised caches
#
# The cache is most of the bytes, so store it in a byte per element. Keys and values are converted when they are written
# and converted back in registers. What does it do to the result? Attention over 4096 tokens, against float64; keys with
# one outlier channel, ten times the rest, as models have them (KIVI, arXiv:2402.02750):


# %% tags=["hide-input"]
def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def int8(x):
    return x.round().clamp(-127, 127)


def stored_as(x, grid, largest, dims):
    scale = x.abs().amax(dims, keepdim=True) / largest
    return grid(x / scale) * scale


draw = torch.Generator().manual_seed(0)
queries = torch.randn(32, 128, generator=draw, dtype=torch.float64)
keys, values = torch.randn(2, 4096, 8, 128, generator=draw, dtype=torch.float64)
keys[..., 5] *= 10
right, rows = exact(queries, keys, values), []


def error(keys, values):
    y = exact(queries, keys, values)
    return f"{100 * ((y - right).square().mean() / right.square().mean()).sqrt():.2f} %"


rows.append(("bf16", *(error(*each) for each in (
    (keys.bfloat16().double(), values), (keys, values.bfloat16().double())))))  # fmt: skip
for name, grid in (("fp8 (e4m3)", (e4m3, 448)), ("int8", (int8, 127))):
    for scale, dims in (("per tensor", (0, 1, 2)), ("per token and head", 2), ("per channel", 0)):
        low = (stored_as(x, *grid, dims) for x in (keys, values))
        low_keys, low_values = low
        rows.append((f"{name}, scale {scale}", error(low_keys, values), error(keys, low_values)))
table(("", "keys quantised", "values quantised"), rows)

# %% [markdown]
# Errors in values average out over thousands of tokens; errors in keys go through an exponential. In int8 the large
# channel sets the step of all the others, unless each channel has its own scale, which needs a group of tokens to be
# complete before it is known. In fp8 an error is proportional to its element, so most of the error is the large
# channel's own, wherever the scale is; a scale per token puts just this element at the grid's end, where it is exact.
# **Try the model's own keys before you choose**: a table for normal numbers would show none of this.
#
# ## The next token
#
# The last matmul gives a logit per entry of the vocabulary, 128 thousand of them. **Sampling** divides by a
# temperature, keeps the top k or the most probable with a total of p (*top-p*), and draws. By the book that is a
# softmax, a sort, a cumulative sum and a search: for one token per user.
#
# `kernels.sample` needs no sort and stores no softmax. With $e_i$ exponential random numbers,
#
# $$\arg\max_i \; x_i / T - \log e_i \quad \text{is } i \text{ with probability } \text{softmax}(x / T)_i$$
#
# so one pass with a running maximum draws from *all* tokens. Then it checks its candidate: how many tokens have a
# larger logit, and with how much probability? If that is too many, it draws again from those above, in the same pass
# as the check. The first pass plus one per candidate: **with top_p = 0.9, how often is a row read on average?**

# %% tags=["hide-input"]
passes = predict_first("passes over the logits per draw, top_p = 0.9", unit="passes")
passes

# %% tags=["hide-input"]
logits = (2 * torch.randn(1, 4096, generator=torch.Generator().manual_seed(1))).to(device)
reads = []
for seed in range(60):
    found = measure(kernels.sample, logits, torch.tensor(seed, device=device), 1.0, 0, 0.9)
    reads.append(found.by_tensor["logits"].read // logits.nbytes)
print("passes:", {count: reads.count(count) for count in sorted(set(reads))}, "in one launch")
passes.compare(
    round(sum(reads) / len(reads), 1),
    "One to draw, one to check, and one more for the tenth that the filter refuses. All but the "
    "first come from L2.",
)

# %% [markdown]
# Is it right? A sampler can't be compared number by number. Its *distribution* can: draw many times, count, and ask how
# probable counts so far from the expected ones are (Pearson's chi-squared test). A wrong sampler gives a probability
# near 0:

# %% tags=["hide-input"]
from kernels.rowwise.sample import sample_oracle

few = torch.tensor([2.0, 1.0, 1.0, 0.5, -1.0, -3.0])
p = torch.softmax(few.double(), 0)
p = torch.where(p.cumsum(0) - p < 0.9, p, 0.0)
p = p / p.sum()


def probability_of(tokens):
    counts = torch.bincount(tokens, minlength=6)[p > 0].double()
    expected = p[p > 0] * len(tokens)
    statistic = ((counts - expected).square() / expected).sum()
    degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(degrees, statistic / 2).item()


seed, many = torch.tensor(0), few.expand(20000, -1)
drawn = sample_oracle(many, seed, 1.0, 0, 0.9)
ours = kernels.sample(many[:200].to(device), seed.to(device), 1.0, 0, 0.9).cpu()
print(
    "the kernel's first 200 draws are those of its float64 model:", torch.equal(ours, drawn[:200])
)
print(f"20,000 draws of the model: probability {probability_of(drawn):.2f}")
hotter = torch.multinomial(torch.where(p > 0, (few.double() / 1.1).softmax(0), 0.0), 20000, True,
                           generator=torch.Generator().manual_seed(0))  # fmt: skip
print(f"20,000 draws at temperature 1.1: probability {probability_of(hotter):.0e}")

# %% [markdown]
# A temperature wrong by a tenth is caught; no single draw looks wrong. The edges, where samplers fail, have
# definite answers: top_p = 0 keeps the most probable token, and all that equal it; a logit of $-\infty$ is never
# drawn; where only one token is left, it is drawn, whatever the filters are. top_p = 1 keeps all:

# %% tags=["hide-input"]
edges = {
    "top_p = 0": ([1.0, 3.0, 2.0, -1.0], 0.0),
    "top_p = 0, a tie": ([1.0, 3.0, 3.0, -1.0], 0.0),
    "top_p = 1": ([1.0, 1.0, 1.0, 1.0], 1.0),
    "two at -inf": ([-torch.inf, 1.0, -torch.inf, 1.0], 1.0),
    "one left": ([-torch.inf, -torch.inf, 0.5, -torch.inf], 0.9),
}
rows = []
for name, (values, p) in edges.items():
    given = torch.tensor(values, device=device).expand(100, 4).contiguous()
    drawn = kernels.sample(given, torch.tensor(0, device=device), 1.0, 0, p)
    rows.append((name, str(values), str(sorted(set(drawn.tolist())))))
display(table(("", "logits", "tokens in 100 draws"), rows))
in_us("serving_sample", "")

# %% [markdown]
# The recording is of 131,072 logits per row. With a filter, one row takes longer than `torch.compile`'s sort does: one
# program reads it several times. 64 rows cost hardly more than one.
#
# ## Speculation: several rows of q
#
# A small model guesses the next tokens, and the large one checks them all in one step: q has 4 or 8 rows per sequence.
# The bytes stay the same, since rows share weights and cache. FLOPs grow with the rows. **While a step waits for
# memory, extra rows are free**, and each accepted guess is a token for nothing. With 7 guesses, each right with
# probability 0.7 if those before it are, on an H200:


# %% tags=["hide-input"]
def accepted(rows, right=0.7):
    return sum(right**n for n in range(rows))


rows = []
for batch in (1, 16, 64):
    shown = []
    for count in (1, 4, 8):
        step = DecodeStep(grouped, batch, 4096, "bf16, cache bf16", rows=count)
        memory, arithmetic = step.seconds(gpu)
        speed = batch * accepted(count) / max(memory, arithmetic)
        shown += [f"{100 * arithmetic / memory:.0f} %", f"{speed:,.0f}"]
    rows.append((batch, *shown))
columns = (
    "sequences",
    "1 row: arithmetic / memory",
    "tokens/s",
    "4 rows",
    "tokens/s",
    "8 rows",
    "tokens/s",
)
display(table(columns, rows))
print(f"tokens per step: {accepted(4):.1f} with 4 rows, {accepted(8):.1f} with 8")

# %% [markdown]
# That is the limit. Attention to 16 caches of 8192 tokens, as recorded, by rows of q:

# %% tags=["hide-input"]
in_us("serving_rows", "rows of q")

# %% [markdown]
# Rows multiply intensity as grouped heads do: 4 query heads times 8 rows make a tile of 32, and the padding of our
# kernel's 16 rows turns into work. All three batches gain the same factor here, but 64 sequences with 8 rows are near
# the ridge: past it rows stop being free, and a larger batch gains less than one user does.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. You double the batch, and tokens per second rise by a tenth. Which bytes grew?
# <details><summary>Answer</summary>The cache's: it is most of a step's bytes, and each sequence brings its own. Fewer
# key heads, a latent, or a byte per element would help; a larger batch doesn't.</details>
#
# 2. 128 sequences, 8 key heads, an H200. How many splits?
# <details><summary>Answer</summary>One: 1024 programs are several per SM already. Unless one sequence is far longer
# than the others: then split that one, or its program is the tail that all wait for.</details>
#
# 3. A merge kernel divides each split's result by its own sum, then averages the results. When is it right?
# <details><summary>Answer</summary>When all splits have the same weight, sum times the exponential of the maximum: in a
# test with equal keys and splits of equal length, for instance.</details>
#
# 4. Your sampler draws a uniform number with steps of $2^{-24}$ and takes its logarithm. Why can 128 thousand logits
# expose it?
# <details><summary>Answer</summary>The winner is the most extreme of 128 thousand numbers, where such steps
# are coarse, and 0 or 1 comes up every hundred rows: infinite noise, and a random token.</details>
#
# 5. A step reads as many bytes of weights as of cache, both in bf16. By what factor is it faster, at most, with an fp8
# cache? Replace the dots by your number, to two digits after the point.

# %%
answer = ...
self_test(answer, round((2 + 2) / (2 + 1), 2), "(2 + 2) bytes over (2 + 1)")

# %% [markdown]
# ## Now you
#
# [Exercise 17](../exercises/17_flash_decoding.ipynb) asks for both kernels of flash-decoding: splits of unequal
# lengths, an empty one, and scores far below zero.

# %% [markdown]
# ## Going further
#
# ### The compiled kernel

# %% tags=["hide-input"]
on_paper = [
    torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((32, 128), (9, 8, 128))
]
floats = torch.empty(9, device="meta")
pages = torch.empty(9, dtype=torch.int32, device="meta")
for name, locate, given in (("in order", in_order, None), ("paged", by_page, pages)):
    found = compile_for(
        split_kernel, *on_paper, on_paper[1], given, *[floats] * 3, 8192, 8, 16, 0.1,
        device="H200", LOCATE=locate, PAGE=16, GROUP=4, D=128, N=64, num_warps=4,
    )  # fmt: skip
    print(f"{name}: {found.registers} registers per thread, {found.spill_bytes} bytes spilled")

# %% [markdown]
# ### The sampler's kernel

# %% tags=["hide-input"]
from kernels.rowwise.sample import sample_kernel

print(inspect.getsource(sample_kernel.fn))
