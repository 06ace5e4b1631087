# %% [markdown]
# # 17 Serving: the roofline of one token
#
# A model reads a long prompt in one pass. It then writes the answer one token at a time, and for every token it rereads
# all the weights and everything it has cached about the conversation. **What limits that, which kernels do the work,
# and how does each trick in a serving system change the bytes?**
#
# After this lesson you can
#
# - put prefill and decode on one roofline, and work out a GPU's maximum tokens per second;
# - predict how batching, grouped heads, latent attention, formats and speculation move that maximum;
# - split a query's keys across programs, merge the results, and count what the split costs;
# - read keys through a block table, and pick a page size;
# - fuse the work around attention: rotation and cache writes, quantised caches, and sampling the next token.
#
# About 75 minutes. It builds on [10](10_attention.ipynb) (attention) and [06](06_softmax.ipynb) (online softmax), and
# leads to [exercise 17](../exercises/17_flash_decoding.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

import kernels
from benchmarks.experiments.lesson_17 import RECORD, flat_logits, peaked_logits
from helpers.figures import DecodeSpeedExplorer, DecodeStep, Point, roofline_chart
from helpers.figures.attention.decode_speed import CACHES
from helpers.instruments import DEVICES, Roofline, compile_for, measure, recorded, table
from helpers.instruments.dry_run import dry_run
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.attention import LOG2_E
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
gpu, h200, h100 = DEVICES["H200"], recorded("h200"), recorded(RECORD.removesuffix(".json"))


def in_us(name, first, tokens=None):
    found = h100.experiment(name)
    ways = [*next(iter(found.values()))]
    rows = [
        [key, *(f"{1e6 * each[way].median:.1f}" for way in ways)] for key, each in found.items()
    ]
    bound = ()
    if tokens:  # the bytes of 8 key heads of 128 elements, at the data sheet's bandwidth
        bound = ("bound",)
        for row, count in zip(rows, tokens, strict=True):
            nbytes = count * 2 * 8 * 128 * 2
            row.append(f"{1e6 * nbytes / DEVICES['H100'].memory_bandwidth:.1f}")
    title = f"{h100.label_of(name)}\nus on the GPU, cold L2"
    return table((first, *map(str, ways), *bound), rows, title)


# %% [markdown]
# Here is the attention of a single new token, step by step and in one kernel. Press **Play**, and see how many
# crossings fusion saves. (In lesson 02's chain, it saved 24 of 36.)

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("decode")

# %% [markdown]
# ## Prefill and decode on one roofline
#
# [Prefill](../docs/glossary.md#prefill) runs the model over a whole prompt. [Decode](../docs/glossary.md#decode) runs
# it for one new token per sequence. Decode does the same matmuls with far fewer rows, and its attention compares a
# single query with every earlier key. Those keys and their values are saved in the [KV
# cache](../docs/glossary.md#kv-cache).
#
# A decode step reads every weight, cached key and cached value once. The only other traffic is activations, a few rows
# per layer and sequence, which is far smaller. So **a step takes at least the bytes of weights and cache divided by the
# bandwidth.**
#
# Take a model the size of Llama 3 8B in bf16. A step multiplies by 7.5 billion weights, and each of the 32 layers
# caches 8 keys and 8 values of 128 elements per token. The H200's data sheet promises 4.8 TB/s. **With 8192 tokens in
# the cache, how many tokens per second can a single user get at most?**
# <!-- given 4.8 TB/s: NVIDIA H200 datasheet -->

# %% tags=["hide-input"]
one_user = predict_first("most tokens per second, one user, 8B weights in bf16", unit="tokens/s")
one_user

# %% tags=["hide-input"]
grouped = CACHES["8 key heads"]
alone = DecodeStep(grouped, batch=1, context=8192, format="bf16, cache bf16")
print(f"weights {alone.weight_bytes / 1e9:.1f} GB, cache {alone.cache_bytes / 1e9:.2f} GB")
one_user.compare(round(alone.tokens_per_second(gpu)), "Bandwidth over bytes. FLOPs don't matter.")

# %% [markdown]
# Here's a decode step on the roofline, for one user and for 64, next to the prefill of a single 8192-token prompt. The
# bytes are weights and cache only. (A prompt's activations would move prefill to the left.)

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
title = "Prefill is compute-bound; decode is memory-bound, and its cache keeps it that way"
listed = "; ".join(f"{name}: {each:,.1f} FLOP/byte" for name, each in of_steps.items())
roofline_chart(roof, points, title, f"{title}. On an H200, ridge {roof.ridge:.0f}: {listed}")

# %% [markdown]
# In prefill, each weight you load is used for thousands of rows, but in decode for only one row per sequence. For the
# weights, batching fixes that: 64 users share a single read, which moves that part of the step to the right on the
# roofline. **It does nothing for the cache**, because every user has their own.
#
# ## The cache in bytes
#
# For each token and layer, attention caches one key and one value per key head. With 32 query heads of 128 elements,
# there are four common designs:
#
# - *one key head per query head* (MHA), the original;
# - **grouped heads** (GQA): 8 key heads, each shared by four query heads;
# - a single key head shared by all query heads (MQA);
# - **latent attention** (MLA): one vector of 512 elements per token that encodes every head's keys and values,
#   plus 64 elements that carry the rotation. You could expand that vector into keys with a matrix, but MLA
#   folds the matrix into the query instead. All heads then read the same 576 elements, so this is MQA with one long
#   head whose values are the first 512 elements of its keys.
#
# The MLA sizes are those of DeepSeek-V2 (arXiv:2405.04434). For each cached token, a query head does a
# multiplication and an addition per element of the key for the score, and the same per element of the value:

# %% tags=["hide-input"]
rows = []
for name, cache in CACHES.items():
    per_token = cache.elements * 2
    rows.append((name, f"{per_token:,} B", f"{cache.flops / per_token:.0f} FLOP/byte"))
latent_bytes, latent_flops = 2 * (512 + 64), 128 * 2 * (512 + 64 + 512)
rows.append(
    ("MLA, 128 query heads", f"{latent_bytes:,} B", f"{latent_flops / latent_bytes:.0f} FLOP/byte")
)
table(("", "per token and layer, bf16", "intensity of attention"), rows)

# %% [markdown]
# The more query heads share each cached byte, the higher the intensity. Below the [ridge
# point](../docs/glossary.md#ridge-point), attention is memory-bound no matter how much it computes. With the 128 heads
# that DeepSeek's models use, MLA is past it on an H200 (though not on an H100), so its kernel has to keep the tensor
# cores running at full rate.
#
# **Take 8 key heads in bf16. How many tokens can the batch's caches hold in total before they are as large as the
# weights?**

# %% tags=["hide-input"]
as_heavy = predict_first("cached tokens that weigh as much as 7.5 billion weights", unit="tokens")
as_heavy

# %% tags=["hide-input"]
per_token = alone.cache_bytes / 8192
print(f"{per_token / 1024:.0f} KiB per token in 32 layers")
equal = alone.weight_bytes / per_token
as_heavy.compare(
    round(equal),
    f"64 users reach that with {equal / 64:,.0f} tokens each, or one user with a long document.",
)

# %% [markdown]
# Try other settings. The bars show the bytes, the intensity and the whole batch's tokens per second for one step. The
# mark shows the speed without a cache.
#
# 1. Start with one sequence of 8192 tokens. Which cache is fastest, and by how much? What about 131,072 tokens?
# 2. Go back to 8192 tokens and raise the batch until 8 key heads no longer fit in memory. How close to the mark does
#    the last batch that fits get?
# 3. At that batch size, how much does an fp8 cache help? How much do fp8 weights add on top of it?
# 4. Can you get any of the caches past the ridge? (Also try short contexts.)

# %% tags=["hide-input"]
explorer = DecodeSpeedExplorer(batch=64, context=8192)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. One key head. At 8192 tokens it leads 32 key heads by less than a
# third, because most of the bytes are weights. At 131,072 tokens, their cache dwarfs the weights, and one key head is
# nearly five times as fast. 2. 64 sequences fit and 128 don't. At 64 most of the bytes are cache, and you get less than
# a fifth of the mark. 3. An fp8 cache makes the step about two thirds faster, and 128 sequences fit. fp8 weights add
# less than a fifth, because most of the bytes are cache. 4. Not with a long context, because the intensity of the step
# approaches that of its attention, and batching doesn't change that. With 1024 tokens and hundreds of sequences, MQA
# and MLA do.</details>
#
# ## Split over keys, in steps
#
# A good decode kernel reads k and v nearly as fast as a plain copy would. Let's build one for a single sequence. We put
# the query heads that share a key head into the rows of one tile, so each key is loaded once for all of them. `attend`
# is the loop from lesson 10, running from `first` to `last`. `LOCATE` returns a key's position in the cache. For now
# the keys are in order.


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
# Run one program per key head and you have a complete attention kernel. But 8 key heads make only 8 programs, and 124
# of an H200's 132 SMs sit idle.
#
# So we share out each key head's keys among several programs. Each [split](../docs/glossary.md#split) computes its
# output as if its own keys were the only ones, and also stores its maximum and its sum.


# %%
@triton.jit
def split_kernel(
    q_ptr,  # (heads, D)
    k_ptr,  # (slots, key heads, D)
    v_ptr,  # (slots, key heads, D)
    table_ptr,  # (pages,) int32, or None if keys are in order
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
# Next, the merge. Each split computed its sum $t_i$ relative to its *own* maximum $m_i$. To weight the splits against
# each other, we rescale all the sums to the overall maximum $m$:
#
# $$y = \frac{\sum_i w_i\, \text{out}_i}{\sum_i w_i}, \qquad w_i = t_i\, e^{m_i - m}$$
#
# **Now write it**, for d = 1. Each program merges the four splits of one row. The code below ignores the maxima.


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
# <details><summary>Answer</summary><code>weight = total * tl.exp(peak - tl.max(peak))</code>. If you use
# <code>tl.exp(peak)</code> alone, every weight in the second row underflows to 0 and the result is 0 / 0, just like a
# softmax that doesn't subtract its maximum.</details>
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
# Splits can be empty when the sequences in a batch differ in length. An empty split has a maximum of $-\infty$ and a
# sum of 0. The merge ignores it, because $e^{-\infty - m} = 0$, unless *every* split is empty:
# $-\infty - (-\infty)$ is NaN. Attention over no keys should return 0, as it does in PyTorch. The three sequences below
# have 3, 1 and 0 splits, and the code computes a sum of NaN for the last one. **Change the marked line to make it 0.**


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
# <details><summary>Answer</summary><code>top = tl.maximum(tl.max(peak), -1e30)</code>. Any finite number below every
# real score works. The sum is then 0, and the kernel that divides by it uses 1 instead.</details>
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
# The merge kernel does both, with one program per row. This one is from our catalogue. It calls `exp2` and merges its
# factor $\log_2 e$ with the scale (lesson 10). Here, `SCALE` is 1, because our scores are already scaled:


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
# What does splitting cost? One launch writes the partial results and the next one reads them back. Each split also
# reads q again. **Take 2048 keys, 4 query heads per key head and 128 elements in fp16. With 16 splits, how many bytes
# move in addition to the cache, as a percentage of it?**

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
    "For each row and split, 130 fp32 values are written and read back, and the 128 elements of q "
    "are read again. The split's 128 keys and values are read once for all four rows.",
)

# %% [markdown]
# So splits are cheap as long as each one has hundreds of keys. (A split is a whole number of blocks, so 15 of the 31
# are empty.) How much do they gain? Lesson 10 recorded such kernels for one sequence in bf16:

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
# How many splits? Enough that batch x key heads x splits is about the number of SMs, or more. Here's what happens with
# several sequences as the number of splits grows. The last column is how long the cache's bytes take at the data
# sheet's bandwidth:

# %% tags=["hide-input"]
in_us("serving_splits", "sequences x tokens", (8192, 65536, 16 * 8192, 128 * 4096))

# %% [markdown]
# A single sequence needs many. 16 sequences with 8 key heads make 128 programs, nearly one per SM, so splitting costs
# time and gains nothing. 128 sequences make 1024 programs. There, many splits make things worse. So the right number of
# splits depends on the lengths in the batch, and changes from step to step.
#
# ## Paged keys
#
# You don't know how long a conversation will get. If you reserve memory for the longest possible one, most of it is
# never used. vLLM (arXiv:2309.06180) borrowed its solution from operating systems. It hands out **pages** of 16 tokens
# one at a time, and each sequence has a [block table](../docs/glossary.md#block-table) that lists its pages in order.
# <!-- given 16 tokens: vLLM's default block size -->
#
# To find a key, look up its page and its place within the page. **Write that line.** Each program below gathers 8
# tokens from pages of 4, and `cache` holds their values. The code treats the table entry as a position.


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
# <details><summary>Answer</summary><code>slot = page * PAGE + key % PAGE</code>. The table holds page numbers, so you
# multiply by the page size.</details>
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
# Our kernel just needs a different `LOCATE`:


# %%
@triton.jit
def by_page(key, inside, table_ptr, PAGE: tl.constexpr):
    page = tl.load(table_ptr + key // PAGE, mask=inside, other=0)
    return page * PAGE + key % PAGE


# %% [markdown]
# How many extra bytes does this lookup cost? We'll store the same keys and values in pages and shuffle them. We attend
# to 2000 of the 2048 tokens: over all of them, a wrong order would give the same result. **With pages of 16 tokens and
# 2 key heads of 128 elements in fp16, how large is the block table as a percentage of the cache?**

# %% tags=["hide-input"]
table_cost = predict_first("bytes of the block table, pages of 16 tokens", unit="% of the cache")
table_cost

# %% tags=["hide-input"]
rows, lengths = [], torch.randint(100, 4000, (64,), generator=torch.Generator().manual_seed(0))
in_use = 2000
for page in (1, 4, 16, 64, 256):
    order = torch.randperm(2048 // page, device=device, dtype=torch.int32)
    paged = torch.empty(2, 2048 // page, page, 2, 128, device=device, dtype=torch.float16)
    paged[:, order.long()] = cache.view(2, -1, page, 2, 128)
    found = measure(decode, q, *paged, 4, in_use, order, by_page)
    same = torch.allclose(found.result, decode(q, k[:in_use], v[:in_use], 4), rtol=0, atol=1e-4)
    held = (lengths + page - 1) // page * page
    empty = 100 * (1 - lengths.sum() / held.sum()).item()
    fetched = f"{32 * found.sectors_read / found.bytes_read:.2f}x"  # sectors, each of 32 bytes
    block_table = f"{100 * order.nbytes / cache.nbytes:.3f} %"
    rows.append((page, same, fetched, block_table, f"{empty:.1f} %"))
columns = ("tokens per page", "same result", "sectors / bytes read", "block table", "empty slots")
display(table(columns, rows))
print("empty slots: 64 sequences of 100 to 4000 tokens")
reserved = 100 * (1 - lengths.sum() / (64 * 8192)).item()
print(f"without pages, 8192 tokens reserved per sequence: {reserved:.0f} % empty")
table_cost.compare(100 * 4 / (16 * 2 * 2 * 128 * 2), "That's 4 bytes per 16 KiB page.")

# %% [markdown]
# The table is negligible. Small pages don't waste [sectors](../docs/glossary.md#sector) either, because even one
# token's row has 256 bytes, eight full sectors. But with any page size, you can't request k until the table entry has
# arrived, and with small pages, a tile of 64 keys has up to 64 base addresses instead of one. Large pages waste memory
# at the end of each sequence, and prompts with a common prefix can share only pages that match completely. **At 16
# tokens the table and the empty slots are both below 1 %.**
# <!-- given 256 bytes: 128 elements of fp16, as in the cell above -->
#
# What do small pages cost in time? Here's the catalogue's kernel for a batch, `kernels.paged_attention`. Columns are
# tokens per page. Under *one page*, each sequence is a single page:

# %% tags=["hide-input"]
in_us("serving_pages", "sequences x tokens", (8192, 65536, 16 * 8192, 128 * 4096))

# %% [markdown]
# In the first three rows the differences have no clear order. Only at 128 sequences are smaller pages consistently
# slower, by a few percent. (With [TMA](../docs/glossary.md#tma), which copies rectangles, you'd need an instruction for
# every page.)

# %% [markdown]
# ## Around attention
#
# Before attention can run, each new token's q and k are rotated, and in some models normalised first
# ([RoPE](../docs/glossary.md#rope)), and k and v are written into their page. In PyTorch, that's a chain of small
# operations (*Going further* counts them). `kernels.rope_cache` does all of it in one launch:

# %% tags=["hide-input"]
from kernels.elementwise import rope_cache

inputs = rope_cache.OP.inputs(16, 8, 2, 128, dtype=torch.float16, device=device)
copies = [x.clone() for x in inputs]
unfused, fused = (
    measure(rope_cache.rope_cache_reference, *inputs),
    measure(kernels.rope_cache, *copies),
)
close = {"rtol": 1e-2, "atol": 1e-2}  # PyTorch rounds to fp16 after every step
print("same q:", torch.allclose(unfused.result, fused.result, **close), end="; ")
print("same cache:", torch.allclose(inputs[6], copies[6], **close))
# PyTorch's RMSNorm is one kernel on a GPU and several without one: count it as one.
norm_alone = measure(torch.nn.functional.rms_norm, inputs[0], (128,), inputs[8]).launches
on_a_gpu = unfused.launches - 2 * (norm_alone - 1)
print(f"PyTorch: {on_a_gpu} launches; one kernel: {fused.launches} launch")
print(f"the kernel moves {fused.unique_total / 1e3:.0f} kB for 16 tokens")

# %% [markdown]
# Fusion saves bytes too, but with one token per user the kernel moves only kilobytes. **Here it's the launches that
# matter.** (In eager mode, the CPU also waits for the GPU, because `nonzero` can't allocate its result before it knows
# how many tokens have a slot.)

# %% tags=["hide-input"]
in_us("serving_rope_cache", "tokens")

# %% [markdown]
# Eager takes as long for one token as for 4096: the GPU waits for the CPU. (The compiled version assumes that every
# token has a slot, so its CPU doesn't wait.) In prefill, the bytes do matter, and the kernel saves those, too.
#
# *Going further* fuses the operations before an int8 matmul (lesson 12): residual, norm and quantisation.
#
# ### Quantised caches
#
# With many users or long contexts, most of the bytes are cache, so let's store it in one byte per element. We quantise
# keys and values when we write them, and convert them back in registers when we read them. The table below shows the
# error of attention over 4096 tokens, compared with float64. One channel of the keys is ten times larger than the
# others, because real models have such outliers (KIVI, arXiv:2402.02750):


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
plain, values = torch.randn(2, 4096, 8, 128, generator=draw, dtype=torch.float64)
keys = plain.clone()
keys[..., 5] *= 10


def error(keys, values, low_keys, low_values):
    truth, y = exact(queries, keys, values), exact(queries, low_keys, low_values)
    return f"{100 * ((y - truth).square().mean() / truth.square().mean()).sqrt():.2f} %"


def errors(store):
    low_keys, low_plain, low_values = (store(x) for x in (keys, plain, values))
    yield error(keys, values, low_keys, values)
    yield error(plain, values, low_plain, values)
    yield error(keys, values, keys, low_values)


rows = [("bf16", *errors(lambda x: x.bfloat16().double()))]
for name, grid in (("fp8 (e4m3)", (e4m3, 448)), ("int8", (int8, 127))):
    for scale, dims in (("per tensor", (0, 1, 2)), ("per token and head", 2), ("per channel", 0)):
        found = errors(lambda x, grid=grid, dims=dims: stored_as(x, *grid, dims))
        rows.append((f"{name}, scale {scale}", *found))
table(("", "keys quantised", "keys without outlier", "values quantised"), rows)

# %% [markdown]
# Errors in the values pass through: the result is about as inaccurate as its elements. Errors in the keys end up in an
# exponential. With int8, the large channel determines the step size for all the others unless every channel has its own
# scale, and you can't compute that scale until you have a whole group of tokens. With fp8, errors are proportional to
# the element, so most of the error comes from the large channel wherever you put the scale. A scale per token happens
# to put exactly that element at the end of the grid, where it's represented exactly. **Test with keys from your own
# model before you choose.** Without the outlier, the choice of scale doesn't affect fp8, and it affects int8 much less.
#
# ## The next token
#
# The last matmul produces 128 thousand logits, one per vocabulary entry. **Sampling** divides them by a
# temperature, keeps the top k, or the most probable tokens up to a total probability of p (*top-p*), and draws one. The
# textbook version needs a softmax, a sort, a cumulative sum and a search.
#
# `kernels.sample` doesn't sort, and it doesn't store a softmax. If the $e_i$ are exponential random numbers, then
#
# $$\operatorname*{argmax}_i \; e^{x_i / T} / e_i \quad \text{is } i \text{ with probability } \text{softmax}(x / T)_i$$
#
# so it can draw from *all* tokens in a single pass by keeping a running maximum. A second pass then checks the
# candidate by counting the tokens with larger logits and adding up their probability. If the candidate fails, the next
# one has to come from the tokens with larger logits. The checking pass has already drawn it. The total is one pass,
# plus one for every candidate. **With top_p = 0.9, how many times is a row read on average?**

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
    "One to draw, one to check, and another each time the filter rejects a token, at most a "
    "tenth of the time. L2 can hold a row, so on a GPU only the first should read from DRAM.",
)

# %% [markdown]
# A single draw can't show whether a sampler is correct, so *Going further* tests the distribution. These are its times:

# %% tags=["hide-input"]
torch.manual_seed(0)  # the same logits whenever the cell runs
for kind, logits in (("flat", flat_logits), ("peaked", peaked_logits)):
    likely = torch.softmax(logits(16, device="cpu").float(), 1).topk(50).values.sum(1).mean()
    print(f"{kind}: the top 50 tokens have {100 * likely:.0f} % of the probability")
in_us("serving_sample", "131,072 logits per row; filtered: top_k 50, top_p 0.9")

# %% [markdown]
# Without a filter, 64 rows take barely longer than one, because a row is one program: a single row keeps one SM busy.
# With a filter, every rejected candidate costs a pass over the row, and with 64 rows you wait for the unluckiest. If
# the logits are flat, most candidates are rejected, and a single row is slower than the sort in `torch.compile`. If
# they're peaked, as when a model is sure of the next token, two passes are usually enough.
#
# ## Speculation: several rows of q
#
# In speculative decoding, a small model guesses the next few tokens and the large one checks all of them in one step,
# so q has 4 or 8 rows per sequence. The rows share the weights and the cache, so only the FLOPs grow. **As long as the
# step is memory-bound, extra rows are nearly free**, and so is every token that was guessed correctly. Suppose each
# guess is right with probability 0.7, provided the ones before it were. A step with 4 rows checks three guesses. It
# yields 1 + 0.7 + 0.49 + 0.343 tokens on average, because the large model itself always contributes one. On an H200,
# ignoring the small model's own time, that gives:


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
# Here are recorded times of attention over 16 caches of 8192 tokens. Every row of q sees all keys, without a mask among
# the new tokens. PyTorch's is `scaled_dot_product_attention`.

# %% tags=["hide-input"]
in_us("serving_rows", "rows of q", 5 * (16 * 8192,))

# %% [markdown]
# Extra rows raise the intensity just like grouped heads do, and cost little time: 4 query heads times 4 rows fill the
# tile of 16 rows that was mostly padding before. (PyTorch takes twice as long with two or more rows. Our guess: only
# with a single row does FlashAttention pack a group's heads into one tile.) In the first table, all three batches gain
# the same factor. But 64 sequences with 8 rows are already close to the ridge. Beyond it, extra rows aren't free.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. You double the batch, and tokens per second go up by only a tenth. Which bytes grew?
# <details><summary>Answer</summary>The cache. It makes up most of the step's bytes, and every new sequence brings its
# own. Fewer key heads, a latent or one byte per element would help.</details>
#
# 2. You serve 128 sequences with 8 key heads on an H200. How many splits should you use?
# <details><summary>Answer</summary>One or two, because 1024 programs already give every SM several. The exception is
# a sequence that's far longer than the rest. Split that one, or everything waits for its program at the end.</details>
#
# 3. A merge kernel divides each split's result by its own sum, then averages the results. When is that correct?
# <details><summary>Answer</summary>When all splits have the same weight, which is the sum times the exponential of the
# maximum. A test with identical keys and splits of equal length wouldn't catch the bug.</details>
#
# 4. Your sampler draws a uniform random number with a resolution of $2^{-24}$ and takes its logarithm. Why can 128
# thousand logits expose it?
# <details><summary>Answer</summary>The winner is the most extreme of 128 thousand random numbers, and at the extremes
# that resolution is coarse. About once every hundred rows, you'd even draw exactly the end of the range whose logarithm
# is 0. That $e_i$ is 0, so the token wins whatever its logit.</details>
#
# 5. A step reads as many bytes of weights as of cache, both in bf16. What speedup can you get at most by switching the
# cache to fp8? Replace the dots with your answer, to two decimal places.

# %%
answer = ...
self_test(answer, 1.33, "(2 + 2) bytes over (2 + 1)")

# %% [markdown]
# ## Now you
#
# In [exercise 17](../exercises/17_flash_decoding.ipynb) you write both kernels of flash-decoding. They have to handle
# splits of different lengths, empty ones, and scores far below zero.

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
# ### `kernels.paged_attention`
#
# The catalogue's kernel reads pages for a whole batch. Each sequence has its own row in the table, and the kernel picks
# the number of splits.

# %% tags=["hide-input"]
order = torch.randperm(128, device=device, dtype=torch.int32)
paged = torch.empty(2, 128, 16, 2, 128, device=device, dtype=torch.float16)
paged[:, order.long()] = cache.view(2, 128, 16, 2, 128)
k_pages, v_pages = paged.transpose(2, 3)  # (pages, key heads, page, dim): a view
length = torch.tensor([in_use], device=device, dtype=torch.int32)
ours = measure(kernels.paged_attention, q[None, :, None], k_pages, v_pages, order[None], length)
alike = decode(q, *paged, 4, in_use, order, by_page)
close = torch.allclose(ours.result[0, :, 0], alike, atol=1e-3)
more_bytes = 100 * (ours.bytes_total / (cache.nbytes * in_use / 2048) - 1)
print(f"same result: {close}; {ours.launches} launches; {more_bytes:.1f} % more than k and v")

# %% [markdown]
# ### The launches of the rotation in PyTorch
#
# Each of the two rotations takes 10 launches: 1 for the norm, 2 for the angles, 6 for the rotation and 1 to join the
# halves. Finding the slots takes 8 more (with `nonzero` as one, although a GPU needs several), and the two writes take
# 2 each. Views such as `chunk` and `[:, None]` don't launch anything.
# <!-- given 10 launches: 1 + 2 + 6 + 1, as counted here -->

# %% tags=["hide-input"]
import inspect

print(inspect.getsource(rope_cache.rope_cache_reference))

# %% [markdown]
# ### Residual, norm and quantisation
#
# One program per row keeps everything in registers:


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
exactly, one_kernel = add_norm_int8_reference(*given), measure(add_norm_int8, *given)
codes = (exactly[1].int() - one_kernel.result[1].int()).abs().max().item()
print(f"codes differ by at most {codes}; scales agree: "
      f"{torch.allclose(exactly[2], one_kernel.result[2], rtol=2e-3)}")  # fmt: skip
eager = dry_run(add_norm_int8_reference, *given, multiprocessors=132)
moved = sum(each.read + each.written for launch in eager for each in launch.operands.values())
print(f"PyTorch: {len(eager)} launches, {moved / 1e3:.0f} kB; "
      f"one kernel: {one_kernel.launches} launch, "
      f"{one_kernel.bytes_total / 1e3:.0f} kB")  # fmt: skip

# %% [markdown]
# ### Compared with FlashInfer
#
# Serving systems such as vLLM call the kernels of FlashInfer or FlashAttention. Here are their times next to ours. In
# decode, ours and FlashInfer's look up pages, and the other two read a cache without pages. *k and v once* is how long
# the cache's bytes take at the bandwidth of a plain read:

# %% tags=["hide-input"]
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
timed = [point for point in at_all_sizes.of("paged_attention") if "gpu" in point]
peers = ("fused", "FlashInfer", "Flex", "FlashAttention-2")
rows = []
for point in timed:
    sequences, heads, key_heads, _, tokens, _ = point["shape"]
    shown = (f"{point['gpu'][peer][0]:.1f}" for peer in peers)
    rows.append(
        (f"{sequences} x {tokens}", f"{heads} / {key_heads}", *shown, f"{point['least']:.1f}")
    )
columns = ("sequences x tokens", "heads / key heads", "ours", *peers[1:], "k and v once")
title = f"decode, {at_all_sizes.label(timed)}, us on the GPU, cold L2"
display(table(columns, rows, title))
timed, peers = at_all_sizes.of("sample"), ("fused", "FlashInfer", "torch.compile")
rows = []
for point in timed:
    shown = (f"{point['gpu'][peer][0]:.1f}" for peer in peers)
    rows.append((*(f"{size}" for size in point["shape"]), *shown))
title = f"sample without a filter, {at_all_sizes.label(timed)}, us on the GPU, cold L2"
table(("rows", "logits", "ours", *peers[1:]), rows, title)

# %% [markdown]
# In decode, all four take up to a third longer than a plain read, and far longer if the cache is short. In sampling,
# ours takes half as long as FlashInfer's at 64 rows. At a single row of 128 thousand logits, where ours keeps just one
# SM busy, the lead is small.

# %% [markdown]
# ### Is the sampler correct?
#
# Test its *distribution*: draw many times, count the tokens, and compute how likely it is to get counts this far from
# the expected ones (Pearson's chi-squared test). For a correct sampler, it can be anything from 0 to 1. For a wrong one
# it's close to 0:

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
    "the kernel's first 200 draws match those of its float64 model:", torch.equal(ours, drawn[:200])
)
print(f"20,000 draws of the model: probability {probability_of(drawn):.2f}")
hotter = torch.multinomial(torch.where(p > 0, (few.double() / 1.1).softmax(0), 0.0), 20000, True,
                           generator=torch.Generator().manual_seed(0))  # fmt: skip
print(f"20,000 draws at temperature 1.1: probability {probability_of(hotter):.0e}")

# %% [markdown]
# The test catches a temperature that is off by a tenth, although every single draw looks fine. Edge cases have exact
# answers. With top_p = 0 you get the most probable token, or one of those tied with it. A logit of $-\infty$ is never
# drawn. If only one token is possible, you always get it. And top_p = 1 keeps everything:

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

# %% [markdown]
# ### The sampler's kernel

# %% tags=["hide-input"]
from kernels.rowwise.sample import sample_kernel

print(inspect.getsource(sample_kernel.fn))
