# %% [markdown]
# # 10 Attention: without the N x N matrix
#
# Attention compares each of N tokens with every other token. That's N × N scores per head, and in plain PyTorch they
# make several round trips through memory. Double the tokens and you get four times the scores. Pretty soon their
# traffic dominates, and then they don't fit in memory at all. But the *result* of attention is no larger than its
# input. **Does the matrix have to exist at all?**
#
# By the end of this lesson you'll be able to
#
# - write scores, mask and softmax as one kernel that also handles a query with no visible key;
# - derive FlashAttention from online softmax, and choose tests that catch a broken version;
# - predict which costs grow linearly with N and which quadratically;
# - skip the tiles that a causal mask hides;
# - explain what a compiler can do with attention;
# - explain why decoding one token is a different problem, and split the keys among programs.
#
# About 75 minutes. It builds on [06 Softmax](06_softmax.ipynb) and prepares you for exercises
# [10](../exercises/10_attention_scores.ipynb) and [10b](../exercises/10b_flash_attention.ipynb).

# %% tags=["hide-input"]
import inspect
import math

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import DEVICES, Roofline, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
roof = Roofline(DEVICES["H200"], "fp16")
rates = h200.runs[h200.experiments["attention_exponentials"]["run"]]["ceilings"]


def random_inputs(heads, tokens, d):
    same = torch.Generator().manual_seed(0)  # the same values on every machine
    return [torch.randn(heads, tokens, d, generator=same).half().to(device) for _ in range(3)]


# %% [markdown]
# This is the kernel you'll build. Press **Play**, then try another mask.

# %% tags=["hide-input"]
from helpers.figures import mask_animation

mask_animation()

# %% [markdown]
# ## The cost of the unfused version
#
# Each token has a *query*, a *key* and a *value*: rows of $d$ elements in three matrices q, k and v. You compare a
# token's query with the keys of all tokens. That gives you a weight for each of them, and the result is the weighted
# sum of their values. A model does this in several *heads* in parallel:
#
# $$s = \frac{q\,k^T}{\sqrt d}, \qquad p = \text{softmax}(s), \qquad o = p\,v$$


# %%
def written_out(q, k, v):
    s = q @ k.mT
    s = s * q.shape[-1] ** -0.5
    p = torch.softmax(s, dim=-1)
    return p @ v


# %% [markdown]
# **How many bytes does this move per score, in 16 bits?** Go through the four launches, counting only tensors of N × N
# elements.

# %% tags=["hide-input"]
score_bytes = predict_first("bytes per score, attention unfused", unit="B")
score_bytes

# %% tags=["hide-input"]
two_heads = random_inputs(heads=2, tokens=256, d=64)
unfused = measure(written_out, *two_heads)
display(unfused.launch_table())
small = 4 * two_heads[0].nbytes  # q, k and v in, the output out
score_bytes.compare((unfused.bytes_total - small) / (2 * 256 * 256))

# %% [markdown]
# ## Scores, mask and softmax in one kernel
#
# Let's combine the tiled matmul of lesson 08 with the softmax of lesson 06. A program takes a tile of queries and all
# the keys, so it has whole rows of scores, and writes only the probabilities. All kernels in this lesson use two
# functions, one to load a tile of rows and one to store it:


# %%
@triton.jit
def tile(ptr, first, tokens, D: tl.constexpr, ROWS: tl.constexpr):
    row, col = first + tl.arange(0, ROWS), tl.arange(0, D)
    return tl.load(ptr + row[:, None] * D + col[None, :], mask=(row < tokens)[:, None], other=0.0)


@triton.jit
def put(ptr, x, first, tokens, D: tl.constexpr, ROWS: tl.constexpr):
    row, col = first + tl.arange(0, ROWS), tl.arange(0, D)
    tl.store(
        ptr + row[:, None] * D + col[None, :],
        x.to(ptr.dtype.element_ty),
        mask=(row < tokens)[:, None],
    )


# %% [markdown]
# (These tensors are contiguous: head, token, column. The exercises' aren't, so `row * D + col` becomes
# `row * stride_n + col * stride_d`, and a head starts at `batch * stride_b + head * stride_h`. If the program index is
# `batch * heads + head`, split it using `//` and `%` by `heads`.)
#
# Two masks are common. A **[causal](../docs/glossary.md#causal-mask)** mask hides later keys from a query. If a batch
# has sequences of different lengths, a **padding** mask hides the positions at one end that aren't real tokens. Either
# mask sets scores to minus infinity before we take the maximum. The mask is a function, so that we can swap it:


# %%
@triton.jit
def sees(query, key, real_ptr, tokens):
    real = tl.load(real_ptr + query, mask=query < tokens, other=0) != 0
    return (key[None, :] <= query[:, None]) & real[:, None]


# %%
@triton.jit
def rows_kernel(q_ptr, k_ptr, real_ptr, p_ptr, tokens, scale, SEES: tl.constexpr,
                D: tl.constexpr, M: tl.constexpr, ALL: tl.constexpr):  # fmt: skip
    start, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    q = tile(q_ptr + head * tokens * D, start, tokens, D, M)
    k = tile(k_ptr + head * tokens * D, 0, tokens, D, ALL)
    query, key = start + tl.arange(0, M), tl.arange(0, ALL)
    s = tl.where(SEES(query, key, real_ptr, tokens), tl.dot(q, k.T) * scale, -float("inf"))
    e = tl.exp(s - tl.max(s, axis=1)[:, None])
    p = e / tl.sum(e, axis=1)[:, None]
    at = (head * tokens + query[:, None]) * tokens + key[None, :]
    tl.store(p_ptr + at, p, mask=(query[:, None] < tokens) & (key[None, :] < tokens))


# %% tags=["hide-input"]
def probabilities(kernel, sees, real):
    heads, tokens, d = few_q.shape
    p = torch.empty(heads, tokens, tokens, device=device)
    options = {"SEES": sees, "D": d, "M": 16, "ALL": triton.next_power_of_2(tokens)}
    kernel[(triton.cdiv(tokens, 16), heads)](few_q, few_k, real, p, tokens, d**-0.5, **options)
    return p


few_q, few_k, _ = random_inputs(heads=2, tokens=100, d=32)
number = torch.arange(100, device=device)
later = number[None, :] > number[:, None]
expected = torch.softmax(
    ((few_q @ few_k.mT).float() / 32**0.5).masked_fill(later, -torch.inf), dim=-1
)
with_all = measure(probabilities, rows_kernel, sees, number >= 0)
print("right:", torch.allclose(with_all.result, expected, atol=1e-3))
print(with_all)

# %% [markdown]
# It takes one launch, returns the right result and writes only the probabilities. (`tl.dot` accumulates in fp32. We
# store fp32, since people who want the probabilities usually want them exact.)
#
# Now let's add padding: first in the **last** forty positions, then in the **first** forty, as in a batch of prompts
# that all end at the same position. Either way, sixty queries are real, and the weights of each add up to 1, which
# makes sixty in total. **How much of that goes to padding in the second case?** Reread `sees` before you continue.

# %% tags=["hide-input"]
padding_weight = predict_first(
    "weight that 60 real queries give to 40 padding keys before them", unit=""
)
padding_weight

# %% tags=["hide-input"]
behind, before = number < 60, number >= 40
for name, real in (("behind", behind), ("before", before)):
    p = probabilities(rows_kernel, sees, real)[0]
    print(f"padding {name}: {p[real][:, ~real].sum().item():.1f} of 60 goes there;", end=" ")
    print(f"rows that are NaN: {p.isnan().any(dim=-1).sum().item()}")
padding_weight.compare(
    probabilities(rows_kernel, sees, before)[0][before][:, ~before].sum().item(),
    "The mask checks whether the query is real, but it should check the key. If the padding "
    "comes last, the causal mask hides the bug, and a test with only real keys can't reveal it.",
)

# %% [markdown]
# Here's the corrected mask:


# %%
@triton.jit
def sees_keys(query, key, real_ptr, tokens):
    real = tl.load(real_ptr + key, mask=key < tokens, other=0) != 0
    return (key[None, :] <= query[:, None]) & real[None, :]


# %% tags=["hide-input"]
p_before = probabilities(rows_kernel, sees_keys, before)[0]
print(f"padding before: {p_before[before][:, ~before].sum().item():.1f} of 60 goes there;", end=" ")
print(f"rows that are NaN: {p_before.isnan().any(dim=-1).sum().item()}")

# %% [markdown]
# The rows that are still NaN belong to queries with **no visible key at all**. Their maximum is minus infinity, and
# `-inf - -inf` is NaN. So is 0 / 0. PyTorch's softmax does the same. You never use these rows, but multiplied by 0,
# they're still NaN. `scaled_dot_product_attention` returns zeros instead, and so do the course's kernels. The fix takes
# two lines: **treat a maximum of minus infinity as 0 and a sum of 0 as 1**.
#
# ```python
# peak = tl.max(s, axis=1)
# e = tl.exp(s - tl.where(peak == -float("inf"), 0.0, peak)[:, None])
# total = tl.sum(e, axis=1)
# p = e / tl.where(total == 0.0, 1.0, total)[:, None]
# ```


# %% tags=["hide-input"]
@triton.jit
def safe_rows_kernel(q_ptr, k_ptr, real_ptr, p_ptr, tokens, scale, SEES: tl.constexpr,
                     D: tl.constexpr, M: tl.constexpr, ALL: tl.constexpr):  # fmt: skip
    start, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    q = tile(q_ptr + head * tokens * D, start, tokens, D, M)
    k = tile(k_ptr + head * tokens * D, 0, tokens, D, ALL)
    query, key = start + tl.arange(0, M), tl.arange(0, ALL)
    s = tl.where(SEES(query, key, real_ptr, tokens), tl.dot(q, k.T) * scale, -float("inf"))
    peak = tl.max(s, axis=1)
    e = tl.exp(s - tl.where(peak == -float("inf"), 0.0, peak)[:, None])
    total = tl.sum(e, axis=1)
    p = e / tl.where(total == 0.0, 1.0, total)[:, None]
    at = (head * tokens + query[:, None]) * tokens + key[None, :]
    tl.store(p_ptr + at, p, mask=(query[:, None] < tokens) & (key[None, :] < tokens))


# %% tags=["hide-input"]
from torch.nn.attention import SDPBackend, sdpa_kernel

p_safe = probabilities(safe_rows_kernel, sees_keys, before)
hidden = later | ~before
identity = torch.eye(100, device=device).half().expand(2, 100, 100)
with sdpa_kernel(SDPBackend.MATH):  # the backend that supports any mask
    theirs = F.scaled_dot_product_attention(few_q, few_k, identity, attn_mask=~hidden)
print(
    "rows of zeros:",
    (p_safe[0].sum(dim=-1) == 0).sum().item(),
    " NaN:",
    p_safe.isnan().any().item(),
)
print("same as PyTorch:", torch.allclose(p_safe, theirs.float(), atol=1e-3))

# %% [markdown]
# The kernel below forgets to mask keys past the end. They load as 0, so their scores are 0 and join the sum. There are
# five keys in a block of eight, and d = 1. **Fix the marked line so that each row adds up to 1.**


# %%
@triton.jit
def column_mask_kernel(q_ptr, k_ptr, p_ptr, keys, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, key = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    q = tl.load(q_ptr + row)[:, None]
    k = tl.load(k_ptr + key, mask=key < keys, other=0.0)[None, :]
    inside = (key < keys)[None, :] & (row >= 0)[:, None]
    s = q * k  # <- here
    e = tl.exp(s - tl.max(s, axis=1)[:, None])
    p = e / tl.sum(e, axis=1)[:, None]
    tl.store(p_ptr + row[:, None] * keys + key[None, :], p, mask=inside)


q_4, k_5 = torch.tensor([1.0, -1, 0.5, 0]), torch.tensor([-4.0, -3, -2, -1, -5])
rows_of_5 = torch.softmax(q_4[:, None] * k_5, dim=-1)
puzzle(column_mask_kernel, 1, q_4, k_5, wanted=rows_of_5, keys=5, ROWS=4, BLOCK=8)

# %% [markdown]
# <details><summary>Answer</summary><code>s = tl.where(inside, q * k, -float("inf"))</code>: you have to mask before the
# maximum, not after the softmax.</details>
#
# <!-- choices
# s = q * k
#
# s = tl.where(inside, q * k, 0.0)
#
# s = tl.where(inside, q * k, float("inf"))
#
# s = tl.where(inside, q * k, -float("inf"))
#
# s = tl.where(inside, q * k, -1.0)
# -->
#
# **Longer rows.** This program holds all the keys and all the scores of its rows. Double the keys, and it needs twice
# the shared memory and registers. At 1024 keys, only one block fits on an SM. So we load the keys in tiles and compute
# the maximum and sum **online**, as in lesson 06, but for many rows at once:


# %%
@triton.jit
def row_sums_kernel(q_ptr, k_ptr, real_ptr, lse_ptr, tokens, scale, SEES: tl.constexpr,
                    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    start, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    q = tile(q_ptr + head * tokens * D, start, tokens, D, M)
    query = start + tl.arange(0, M)
    peak, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    for first in range(0, tokens, N):
        key = first + tl.arange(0, N)
        k = tile(k_ptr + head * tokens * D, first, tokens, D, N)
        s = tl.where(SEES(query, key, real_ptr, tokens), tl.dot(q, k.T) * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen yet: not -inf - -inf
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(s - base[:, None]), axis=1)
        peak = higher
    tl.store(lse_ptr + head * tokens + query, peak + tl.log(total), mask=query < tokens)


# %% tags=["hide-input"]
lse = torch.empty(2, 100, device=device)
row_sums_kernel[(7, 2)](few_q, few_k, before, lse, 100, 32**-0.5, SEES=sees_keys, D=32, M=16, N=32)
few_s = ((few_q @ few_k.mT).float() / 32**0.5).masked_fill(hidden, -torch.inf)
print("log-sum-exp, same as PyTorch:", torch.allclose(lse, few_s.logsumexp(dim=-1), atol=2e-3))

# %% [markdown]
# In [exercise 10](../exercises/10_attention_scores.ipynb) you'll add a second loop that computes **the same scores
# again** and writes `exp(s - peak) / total`. Why not store the scores? Computing a score takes `2 d` operations on
# tensor cores. Storing it takes four bytes out and four bytes back. **How many times longer do the bytes take than the
# arithmetic, on an H200 at [head dim](../docs/glossary.md#head-dimension) 64?** (Its ridge point is 206 FLOP/byte.)
# <!-- given four bytes: a score in fp32 -->

# %% tags=["hide-input"]
again = predict_first("time to store scores ÷ time to recompute them, H200", unit="times")
again

# %% tags=["hide-input"]
again.compare(
    (8 / roof.bandwidth) / (2 * 64 / roof.peak),
    "Recomputing is half the idea behind this lesson.",
)

# %% [markdown]
# ## FlashAttention: fuse the second matmul
#
# All we do with the probabilities is weight the values. As soon as a program has a tile of them, it can multiply it by
# its tile of values, add the product to a running sum, **and forget the tile**. With $m_i$ the maximum of row $i$,
#
# $$o_i = \frac{\sum_j e^{s_{ij} - m_i}\, v_j}{\sum_j e^{s_{ij} - m_i}}$$
#
# Numerator and denominator are both sums over the keys, so we can accumulate them tile by tile. `acc` is the numerator,
# with $d$ elements per query, and `total` is the denominator. Here's a first attempt at adding a tile:


# %%
@triton.jit
def take_in(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    p = tl.exp(s - higher[:, None])
    return higher, total + tl.sum(p, axis=1), tl.dot(p.to(v.dtype), v, acc)


# %%
@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, o_ptr, tokens, scale, TAKE_IN: tl.constexpr,
                 D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    start, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64) * tokens * D
    q = tile(q_ptr + head, start, tokens, D, M)
    peak, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for first in range(0, tokens, N):
        k, v = tile(k_ptr + head, first, tokens, D, N), tile(v_ptr + head, first, tokens, D, N)
        inside = first + tl.arange(0, N) < tokens
        s = tl.where(inside[None, :], tl.dot(q, k.T) * scale, -float("inf"))
        peak, total, acc = TAKE_IN(peak, total, acc, s, v)
    put(o_ptr + head, acc / total[:, None], start, tokens, D, M)


# %% tags=["hide-input"]
def flash(take_in, q, k, v, m=64, n=64):
    heads, tokens, d = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(tokens, m), heads)
    flash_kernel[grid](q, k, v, o, tokens, d**-0.5, TAKE_IN=take_in, D=d, M=m, N=n)
    return o


def exact(q, k, v):
    return (
        torch.softmax(q.double() @ k.double().mT / q.shape[-1] ** 0.5, dim=-1) @ v.double()
    ).float()


short = random_inputs(heads=2, tokens=64, d=64)
print("right:", torch.allclose(flash(take_in, *short).float(), exact(*short), atol=1e-3))

# %% [markdown]
# All 64 tokens fit in one tile of keys. Let's also try two and five tiles, with a test that needs no reference: **set
# every value to 1**. The weights add up to 1, so the result has to be 1. **At how many of these three lengths does that
# test fail?**

# %% tags=["hide-input"]
noticed = predict_first("lengths at which values of 1 expose the first version, of three", unit="")
noticed

# %% tags=["hide-input"]
caught, rows = 0, []
for tokens in (64, 128, 320):
    q, k, v = random_inputs(1, tokens, 64)
    ones_off = (flash(take_in, q, k, torch.ones_like(v)).float() - 1).abs().max().item()
    error = (flash(take_in, q, k, v).float() - exact(q, k, v)).abs().max().item()
    caught += ones_off > 1e-3
    rows.append((tokens, f"{tokens // 64} x 64", f"{ones_off:.2f}", f"{error:.2f}"))
display(table(("tokens", "tiles", "error, values of 1", "error, random values"), rows))
noticed.compare(
    caught,
    "The weights do add up to 1, but they're the wrong weights. acc and total are wrong in the "
    "same way, so their quotient is still a weighted mean of the values, and any mean of ones is "
    "1.",
)

# %% [markdown]
# To see where the weight goes, we make later keys score higher and set each value to its key's position:

# %% tags=["hide-input"]
place = torch.arange(256, device=device).half()
slope_q, slope_k, _ = random_inputs(1, 256, 64)
slope_q[..., 0], slope_k[..., 0] = 16.0, place / 32  # later keys score higher
slope_v = (place / 256)[None, :, None].expand(1, 256, 64).contiguous()
slope = slope_q, slope_k, slope_v
for name, o in (("first version", flash(take_in, *slope)), ("exact", exact(*slope))):
    print(f"{name:13} the weight is at {o.float().mean().item():.2f} of the sequence, on average")

# %% [markdown]
# When a later tile raises the maximum, the sums so far are too large, because their exponentials are relative to the
# old maximum. In this kernel the scores are given, and each key's value is **one number**. We already rescale `total`,
# as in lesson 06. **Fix the marked line.** Two of the rows already come out right. Why?


# %%
@triton.jit
def scalar_flash_kernel(s_ptr, v_ptr, o_ptr, keys, ROWS: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, ROWS)
    peak, total = tl.full((ROWS,), -float("inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS,), tl.float32)
    for first in range(0, keys, N):
        key = first + tl.arange(0, N)
        s = tl.load(s_ptr + row[:, None] * keys + key[None, :])
        v = tl.load(v_ptr + key)
        higher = tl.maximum(peak, tl.max(s, axis=1))
        shrink = tl.exp(peak - higher)
        p = tl.exp(s - higher[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc + tl.sum(p * v[None, :], axis=1)  # <- here
        peak = higher
    tl.store(o_ptr + row, acc / total)


step = torch.arange(8.0)
s_4 = torch.stack((step, 7.5 - step, step / 4 + 0.1, 2.05 - step / 4))
v_8 = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 9])
weighed = torch.softmax(s_4, dim=-1) @ v_8
puzzle(scalar_flash_kernel, 1, s_4, v_8, wanted=weighed, keys=8, ROWS=4, N=4)

# %% [markdown]
# <details><summary>Answer</summary><code>acc = acc * shrink + tl.sum(p * v[None, :], axis=1)</code>: numerator and
# denominator have to shrink by the same factor. In rows 1 and 3 the maximum is in the first tile, so there's nothing to
# rescale.</details>
#
# <!-- choices
# acc = acc + tl.sum(p * v[None, :], axis=1)
#
# acc = (acc + tl.sum(p * v[None, :], axis=1)) * shrink
#
# acc = acc * shrink + tl.sum(p * v[None, :], axis=1)
#
# acc = acc / shrink + tl.sum(p * v[None, :], axis=1)
#
# acc = acc * total + tl.sum(p * v[None, :], axis=1)
# -->
#
# With a head dimension, `p * v` becomes a matmul and `acc` a tile. We rescale both sums the same way:


# %%
@triton.jit
def rescales(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp(peak - higher)
    p = tl.exp(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


# %% tags=["hide-input"]
print(f"when later keys score higher: {flash(rescales, *slope).float().mean().item():.2f}")
for tokens in (64, 100, 320):
    inputs = random_inputs(1, tokens, 64)
    error = (flash(rescales, *inputs).float() - exact(*inputs)).abs().mean().item()
    theirs = (written_out(*inputs).float() - exact(*inputs)).abs().mean().item()
    nearer = error < min(theirs, 1e-4)
    print(
        f"{tokens:4} tokens: off by less than 0.0001 on average, and by less than unfused: {nearer}"
    )

# %% [markdown]
# Now watch it run on 32 tokens in tiles of 16. Scores are higher in the second tile, and each value is its key's
# position. The kernel computes `s` and `p`, uses them and throws them away, and `shrink` corrects `acc` between the
# tiles. No N × N tensor ever reaches memory.

# %% tags=["hide-input"]
from helpers.figures import watch

in_order = torch.arange(32, device=device).half()
q_32 = torch.zeros(1, 32, 16, device=device).half()
k_32 = torch.zeros_like(q_32)
q_32[..., 0], k_32[..., 0] = 4.0, (in_order >= 16).half()
v_32 = in_order[None, :, None].expand(1, 32, 16).contiguous()
tiles_of_16 = {"TAKE_IN": rescales, "D": 16, "M": 16, "N": 16}
watch(flash_kernel[2, 1], q_32, k_32, v_32, torch.empty_like(q_32), 32, 0.25, **tiles_of_16)

# %% [markdown]
# This is **FlashAttention** (Dao et al., [arXiv:2205.14135](https://arxiv.org/abs/2205.14135)). It isn't an
# approximation. It computes the same function. It never rounds its scores to 16 bits, only the weights, just before the
# second matmul.
#
# ## What grows linearly with N, and what doesn't
#
# **How many kilobytes of memory does the fused kernel touch, for one head of dimension 64 over 512 tokens, in 16
# bits?** The matrix alone would be half a megabyte. <!-- given 16 bits: the inputs' dtype -->

# %% tags=["hide-input"]
touched = predict_first("kB of memory touched, one head, d = 64, 512 tokens", unit="kB")
touched

# %% tags=["hide-input"]
rows = []
for tokens in (128, 256, 512):
    inputs = random_inputs(1, tokens, 64)
    apart, fused = measure(written_out, *inputs), measure(flash, rescales, *inputs)
    sizes = (apart.bytes_total, fused.unique_total, fused.bytes_total)
    rows.append((tokens, *(f"{size / 1e3:.1f} kB" for size in sizes)))
display(table(("tokens", "unfused", "fused, touched", "fused, requested"), rows))
touched.compare(fused.unique_total / 1e3)

# %% [markdown]
# That's q, k, v and the output, so memory went from O(N²) to O(N). But look at the last column. **Every program reads
# all keys and values again**, so requested bytes still grow as N² (over the number of queries per program). L2 serves
# most of these requests, because a head's programs run side by side. With 128 queries per program instead of 64,
# there'd be about half as many.
#
# FlashAttention doesn't save arithmetic. The matmuls are still N × N. Rescaling costs about as much as dividing each
# probability did: in our tiles, 64 multiplications and an exponential per row instead of 64 divisions. It's faster
# because it moves fewer bytes. Now move the sliders. (The times come from the roofline, so they're lower bounds.)
#
# 1. At what length does the unfused version no longer fit on an H100? On an RTX 4090?
# 2. At what length does the fused version's time start to grow quadratically? What limits it before that?
# 3. Choose a single head. Do the ratios change? How about head dim 256?
# 4. Make it causal. Which version gains, and why doesn't the other?

# %% tags=["hide-input"]
from helpers.figures import AttentionLengthsExplorer

explorer = AttentionLengthsExplorer("H100", tokens=8192, heads=32, dim=128)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 32,768 tokens, with 32 heads of dimension 128. An RTX 4090, with
# less than a third of the memory, runs out at 16,384. 2. At 1,024. Below that, memory is the limit and time grows
# linearly. Above it, the tensor cores are the limit. 3. The ratios of memory and traffic are the same for any number of
# heads. Wider heads have fewer scores per byte of q, k and v, so the ratios fall. 4. The fused version computes only
# half the scores. In the unfused one, the mask is one more pass over the matrix.</details>
#
# ## Causal masks: skip the hidden tiles
#
# A causal mask hides half of the scores. If we just added a mask to `flash_kernel`, it would compute them and throw
# them away. But a program whose queries end at 128 can stop its loop there, and tiles left of the diagonal don't need a
# mask at all. So the loop body becomes a function with an optional mask, and we split the loop in two:


# %%
@triton.jit
def one_tile(q, k_ptr, v_ptr, start, first, tokens, scale, peak, total, acc,
             MASKED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    k, v = tile(k_ptr, first, tokens, D, N), tile(v_ptr, first, tokens, D, N)
    s = tl.dot(q, k.T) * scale
    if MASKED:
        key, query = first + tl.arange(0, N), start + tl.arange(0, M)
        s = tl.where(key[None, :] <= query[:, None], s, -float("inf"))
    return rescales(peak, total, acc, s, v)


# %%
@triton.jit
def causal_kernel(q_ptr, k_ptr, v_ptr, o_ptr, tokens, scale,
                  SKIPS: tl.constexpr, SPLITS: tl.constexpr,
                  D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    start = tl.program_id(0) * M
    head = tl.program_id(1).to(tl.int64) * tokens * D
    q = tile(q_ptr + head, start, tokens, D, M)
    peak, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    end = tl.minimum(tokens, start + M) if SKIPS else tokens
    whole = (start + 1) // N * N if SPLITS else 0
    for first in range(0, whole, N):
        peak, total, acc = one_tile(
            q, k_ptr + head, v_ptr + head, start, first, tokens, scale, peak, total, acc,
            False, D, M, N,
        )  # fmt: skip
    for first in range(whole, end, N):
        peak, total, acc = one_tile(
            q, k_ptr + head, v_ptr + head, start, first, tokens, scale, peak, total, acc,
            True, D, M, N,
        )  # fmt: skip
    put(o_ptr + head, acc / total[:, None], start, tokens, D, M)


# %% [markdown]
# (With padding, you'd need the two lines for queries with no visible key again.) **What percentage of the tiles can you
# skip at 384 tokens, in tiles of 64 x 64?** Draw the 6 x 6 tiles.

# %% tags=["hide-input"]
skipped_share = predict_first("share of the tiles skipped, 384 tokens, tiles of 64 x 64", unit="%")
skipped_share


# %% tags=["hide-input"]
def causal_flash(q, k, v, skips, splits, m=64, n=64):
    o = torch.empty_like(q)
    heads, tokens, d = q.shape
    options = {"SKIPS": skips, "SPLITS": splits, "D": d, "M": m, "N": n}
    causal_kernel[(triton.cdiv(tokens, m), heads)](q, k, v, o, tokens, d**-0.5, **options)
    return o


long_inputs = random_inputs(1, 384, 64)
theirs_causal = F.scaled_dot_product_attention(
    *(x[None].float() for x in long_inputs), is_causal=True
)[0]
walks = {
    "every tile": (False, False),
    "up to the diagonal": (True, False),
    "mask on the diagonal": (True, True),
}
walked = {name: measure(causal_flash, *long_inputs, *walk) for name, walk in walks.items()}
rows = []
for name, each in walked.items():
    right = torch.allclose(each.result.float(), theirs_causal, atol=2e-3)
    rows.append((name, right, f"{each.bytes_total / 1e3:.1f} kB"))
display(table(("", "right", "requested"), rows))
a_tile = 2 * 64 * 64 * 2  # bytes of a tile of k and one of v
left_out = (walked["every tile"].bytes_total - walked["up to the diagonal"].bytes_total) / a_tile
skipped_share.compare(
    100 * left_out / (384 // 64) ** 2,
    "It's less than half, because tiles on the diagonal are computed in full.",
)

# %% [markdown]
# The time falls by a smaller factor than the number of tiles. A program still has to start, load its queries and store
# its output. And programs now differ in length, which can leave SMs idle towards the end. *Going further* lists the
# times, and asks which unit limits the kernel: memory, the tensor cores, or the one that computes exponentials.
#
# ## What a compiler can do
#
# `torch.compile` fuses elementwise operations and leaves matmuls to a library. For attention it has a list of
# *patterns*, which it replaces with `scaled_dot_product_attention`, a hand-written fused kernel. We can run just that
# pass, first on attention written in one line, then with a causal mask (`masked_fill`):

# %% tags=["hide-input"]
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.experiments.lesson_10 import masked
from benchmarks.experiments.lesson_10 import written_out as in_one_line

for name, function in (("full", in_one_line), ("causal", masked)):
    with torch.no_grad():
        sample = [torch.empty(2, 4, 128, 64) for _ in range(3)]
        graph = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(
            *sample
        )
        joint_graph_passes(graph)
    known = any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes)
    print(f"{name:6} replaced by scaled_dot_product_attention: {known}")

# %% [markdown]
# It doesn't recognise the second one.
#
# **FlexAttention** is a compiler that knows about attention. You write a small Python function for the mask or a change
# to the scores, and `torch.compile` inserts it into a FlashAttention template. It also uses the function to work out in
# advance which tiles are empty. Here's a window of 1024 tokens:

# %%
from torch.nn.attention.flex_attention import create_block_mask


def window(batch, head, query, key):
    return (query >= key) & (query - key < 1024)


block_mask = create_block_mask(window, None, None, 8192, 8192, device="cpu")
print(f"tiles skipped: {block_mask.sparsity():.0f}%")

# %% [markdown]
# None of our kernels supports a window. Here, you get one in a single line.
#
# ## Claims: time and memory
#
# **Claim: "attention in three operations, fused: 3.33 times faster."** It states no conditions, so we take the
# simplest: matmul, softmax, matmul against one kernel, with 96 heads of dimension 64 in fp16 on an H200. The scaling is
# done beforehand.

# %% tags=["hide-input"]
rows = []
for tokens, times in h200.experiment("attention_three").items():
    apart, fused = times["three operations"].median, times["fused"].median
    both = (f"{1e6 * each:.0f} us" for each in (apart, fused))
    rows.append((tokens, *both, f"{apart / fused:.2f} times faster"))
table(
    ("tokens", "three operations", "fused", ""),
    rows,
    f"{h200.label_of('attention_three')}\nthe GPU's own time, cold L2",
)

# %% [markdown]
# **Verdict: the claim understates the gain here, and there is no single factor.** At 1,024 tokens and above, both
# versions are quadratic: the unfused traffic is, and so is the fused kernel's arithmetic, which is why its time nearly
# quadruples with each doubling. The unfused time grows faster still. (We didn't investigate why. At 512 tokens, all the
# scores still fit in L2.)
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** Unfused attention saves all probabilities for the
# backward pass. Fused attention saves q, k, v, the output and the logarithm of each row's sum, and recomputes the
# probabilities tile by tile. But attention is only part of a model, so we run the forward pass of a whole GPT-2-sized
# block (768 columns, 12 heads) in fp16, on tensors without data, and add up the tensors it saves.
# <!-- given 12 heads: GPT-2's configuration -->


# %% tags=["hide-input"]
class Block(torch.nn.Module):
    def __init__(self, attention, width=768, heads=12):
        super().__init__()
        self.attention, self.heads, half = attention, heads, {"dtype": torch.float16}
        self.before, self.between = (torch.nn.LayerNorm(width, **half) for _ in range(2))
        self.qkv, self.out = (
            torch.nn.Linear(width, 3 * width, **half),
            torch.nn.Linear(width, width, **half),
        )
        self.up, self.down = (
            torch.nn.Linear(width, 4 * width, **half),
            torch.nn.Linear(4 * width, width, **half),
        )

    def forward(self, x):
        qkv = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(*qkv).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


# %% tags=["hide-input"]
from torch._subclasses.fake_tensor import FakeTensorMode


def kept(attention, tokens):
    """Return the bytes that a block's forward pass saves, without its weights."""
    with FakeTensorMode():
        block, sizes = Block(attention), {}
        own = {weight.untyped_storage()._cdata for weight in block.parameters()}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                sizes[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            block(torch.empty(1, tokens, 768, dtype=torch.float16, requires_grad=True))
    return sum(sizes.values())


# %% tags=["hide-input"]
rows = []
for tokens in (128, 256, 512, 1024, 2048, 4096):
    apart, fused = kept(in_one_line, tokens), kept(F.scaled_dot_product_attention, tokens)
    both = (f"{each / 1e6:.1f} MB" for each in (apart, fused))
    rows.append((tokens, *both, f"{1 - fused / apart:.0%} less"))
table(("tokens", "saved, unfused", "fused", ""), rows)

# %% [markdown]
# **Verdict: the claim holds at some lengths (256 and 512 tokens for this block), but it isn't a rule.** At 128 tokens
# the saving is smaller, and at 4096 most of the memory is gone.
#
# [Lesson 11](11_training.ipynb) derives the backward pass.
#
# ## One token at a time
#
# A language model generates one token at a time. The one new query sees all earlier keys, which are in the *KV cache*
# along with the values. This is [decode](../docs/glossary.md#decode). The score matrix is just a row, so there's
# nothing large to keep out of memory. **What's the arithmetic intensity of such a step in 16 bits, in FLOP per byte of
# k and v?**

# %% tags=["hide-input"]
intensity = predict_first("intensity of decoding one token, fp16", unit="FLOP/byte")
intensity

# %% tags=["hide-input"]
from helpers.instruments import Work


def one_token(keys, heads, key_heads, d=128):
    return Work(4 * d * keys * heads, 2 * 2 * d * keys * key_heads, 0)


print(f"ridge of an H200: {roof.ridge:.0f} FLOP/byte")
intensity.compare(one_token(65536, 32, 32).intensity)

# %% [markdown]
# When you process a whole sequence, each key you fetch serves thousands of queries. Here it serves just one, unless
# heads share it. With **grouped heads** (grouped-query attention), several query heads use the same head of keys and
# values, say 32 query heads with 8 or 1, and the cache shrinks by a factor of the group's size:

# %% tags=["hide-input"]
from helpers.figures import Point, roofline_chart
from helpers.figures.attention.sequence_lengths import Attention

sequence = Attention(DEVICES["H200"], 4096, 32, 128, causal=True).costs["fused"]
points = [Point("4096 tokens", sequence.work.intensity, sequence.performance)]
for key_heads in (32, 8, 1):
    work = one_token(65536, 32, key_heads)
    points.append(
        Point(
            f"one token, {32 // key_heads} per key head",
            work.intensity,
            roof.attainable(work.intensity),
        )
    )
title = "A group's size is its intensity: decoding one token is memory-bound, whatever the kernel"
each = (f"{point.label} {point.intensity:.0f} FLOP/byte" for point in points)
text = f"{title}. On an H200: {'; '.join(each)}"
intensity.on(roofline_chart(roof, points, title, text), "x")

# %% [markdown]
# So a decoding kernel should read k and v just once, at copy bandwidth, for all queries of a group. One program per
# *key* head would do that, but with eight key heads, that's eight programs for the whole GPU, each looping over 65,536
# keys on its own. The fix is the one from lesson 06: **split the row**. Each part computes the maximum, sum and
# numerator of its own keys, and a second launch combines them:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_10 import decode, join_kernel, part_kernel

print(inspect.getsource(part_kernel.fn))
print(inspect.getsource(join_kernel.fn))

# %% [markdown]
# The queries of a group become the rows of a tile. Tensor cores multiply at least 16 rows at a time, so most are
# padding, which we can afford because the kernel is memory-bound.

# %% tags=["hide-input"]
cache_k, cache_v, _ = (x[:, :1000] for x in random_inputs(2, 1024, 64))
cache = cache_k.contiguous(), cache_v.contiguous()
queries = random_inputs(8, 1, 64)[0][:, 0].contiguous()
wanted = exact(queries.view(2, 4, 64), *cache).view(8, 64)
for parts in (1, 4, 16):
    found = measure(decode, queries, *cache, parts)
    right = torch.allclose(found.result.float(), wanted, atol=1e-3)
    cost = found.bytes_total / (2 * cache[0].nbytes)
    print(
        f"{parts:2} parts: right: {right}, {found.launches} launches, {cost:.3f} times the bytes "
        "of k and v"
    )

# %% [markdown]
# This is **Flash-Decoding**, which is how FlashAttention's own library handles a KV cache. **How many times faster are
# 64 parts than one, with 8 key heads and 65,536 keys, on an H200?** Count the busy SMs for an upper bound.

# %% tags=["hide-input"]
split_gain = predict_first("speedup of 64 parts, 8 key heads, 65,536 keys, H200", unit="times")
split_gain

# %% tags=["hide-input"]
decoding = h200.experiment("attention_decode")
ways = [way for way in decoding[65536][8] if way != "Flex"]  # timed without the block mask it needs
rows = []
for keys, by_heads in decoding.items():
    for key_heads, times in by_heads.items():
        least = 2 * 2 * 128 * keys * key_heads / rates["copy_bytes_per_second"]
        took = (f"{1e6 * times[way].median:.1f}" if way in times else "" for way in ways)
        rows.append((f"{keys:,}", key_heads, f"{1e6 * least:.1f}", *took))
what = "us on the GPU, cold L2: ours by number of parts, and other kernels"
title = f"{h200.label_of('attention_decode')}\n{what}"
display(table(("keys", "key heads", "at copy bandwidth", *ways), rows, title))
split_gain.compare(
    decoding[65536][8][1].median / decoding[65536][8][64].median,
    "One part for each of 8 heads leaves 124 of the 132 SMs idle. Filling them would give 132 / 8 "
    "= 16.5 times, and copy bandwidth allows slightly less. 16 parts, one program per SM, are even "
    "faster than 64. With a single key head, more parts still help.",
)

# %% [markdown]
# With enough parts, a long cache of 32 key heads gets very close to copy bandwidth, but one of a single head stays far
# below it: the smaller the cache, the more the ramp-up and the second launch weigh. Bytes matter most: with a quarter
# of the key heads, the cache is a quarter of the size. (FlexAttention can also decode, but needs a block mask to split
# the keys sensibly. Our recording didn't pass one, so we left it out.) These are GPU times. From Python, two launches
# take longer than the shortest times in this table (lesson 02), so servers decode inside [CUDA
# graphs](../docs/glossary.md#cuda-graph).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A colleague's FlashAttention passes a test with values of 1, and another with 64 tokens. What do the two tests have
#    in common?
# <details><summary>Answer</summary>Neither detects missing rescaling. With values of 1, any weights give 1 if
# <code>acc</code> and <code>total</code> are wrong by the same factor. With one tile there's nothing to
# rescale.</details>
#
# 2. Why do we set a padding key's score to minus infinity before the maximum, and not its weight to 0 after the
#    softmax?
# <details><summary>Answer</summary>After the softmax, the hidden key is already in the sum, so the other weights no
# longer add up to 1. It may also have been the maximum.</details>
#
# 3. FlashAttention's memory is linear in N but its time isn't. So why is it faster?
# <details><summary>Answer</summary>The matmuls are N × N either way, but the matrix no longer makes its round trips
# through memory, and those took several times as long as the matmuls.</details>
#
# 4. Two parts of a row were computed separately. The first has maximum 1, sum 4 and numerator 8, and the second has
#    maximum 3, sum 2 and numerator 10. What does attention return? Replace the dots with your number.

# %%
answer = ...
shrink = torch.exp(torch.tensor([1.0 - 3.0, 0.0], dtype=torch.float64))
right_answer = (shrink * torch.tensor([8.0, 10.0])).sum() / (
    shrink * torch.tensor([4.0, 2.0])
).sum()
self_test(
    answer,
    right_answer.item(),
    "multiply the first part's sum and numerator by exp(1 - 3), add the second part's, then divide",
)

# %% [markdown]
# In [exercise 10](../exercises/10_attention_scores.ipynb) you'll write scores, mask and softmax as one kernel, and in
# [exercise 10b](../exercises/10b_flash_attention.ipynb) FlashAttention, with strides and a causal mask. The course's
# kernels are in `kernels/tiled/`.
#
# ## Going further
#
# ### The limiting unit
#
# On long sequences, memory isn't the limit. Are the tensor cores? Between the two matmuls, you need an **exponential**
# for each score, and that runs on the [SFU](../docs/glossary.md#sfu), which is slow: 4.18 TFLOP/s on an H200, against
# the tensor cores' 989 TFLOP/s. At head dimension $d$, a score takes $4d$ operations on tensor cores and one
# exponential. Here's how long each takes at two head dims:
# <!-- given 4.18 TFLOP/s, 989 TFLOP/s: helpers/instruments/devices.toml, one result of the SFU counted as one FLOP -->

# %% tags=["hide-input"]
special = Roofline(DEVICES["H200"], "special functions")
for d in (64, 128):
    products, exponentials = 4 * d / roof.peak, 1 / special.peak
    took = f"matmuls {1e15 * products:.0f} ns, exponentials {1e15 * exponentials:.0f} ns"
    print(f"head dim {d:3}, a million scores: {took}")

# %% [markdown]
# If tensor cores and SFUs took turns, exponentials would take up much of the time. They're only free if both units work
# **at the same time**.
#
# 1. On an H100, at what head dims do the exponentials take longer than the matmuls?
# 2. Choose matmuls in fp8, as in FlashAttention-3. Where is the balance now?
# 3. How about a B200, at 64 and 128? An A100?
# 4. How short must the sequence be for memory to be the limit?

# %% tags=["hide-input"]
from helpers.figures import AttentionUnitsExplorer

units = AttentionUnitsExplorer("H100", dtype="fp16", dim=64, tokens=8192)
units

# %% [markdown]
# <details><summary>What you should see</summary>1. Below 64. 2. The matmuls are twice as fast, so exponentials are the
# limit up to head dim 96 and nearly as slow as the matmuls at 128. 3. On a B200, exponentials take nearly twice as long
# as the matmuls at 64, and about as long at 128. An A100's tensor cores are slower, so at 64 the exponentials only
# take half as long. 4. At head dim 64 on an H100, memory is the limit at 512 tokens, but at 1,024 it's the
# matmuls.</details>
#
# A roofline is only a model, so let's see what happens without the exponentials. A kernel that uses the score itself
# instead of its `exp2` computes nonsense, but it runs as if exponentials were free. (It's a plain kernel with pointers
# and no warp specialisation.)

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_01 import COUNTS

taken_away = h200.experiment("attention_exponentials")
rows = []
for d, times in taken_away.items():
    rows.append((d, *(f"{1e6 * time.median:.0f} us" for time in times.values())))
table(("head dim", *times), rows, h200.label_of("attention_exponentials"))

# %% [markdown]
# Leaving them out gains little. Most were already hidden behind other work, without any planning. An SM's warps don't
# run in lockstep, so while some wait for a matmul, others compute exponentials. *Polynomial* replaces every exponential
# by multiply-adds. On an H200 that's slower, most likely because the CUDA cores become the limit. FlashAttention-4,
# below, does it for only some of them, and on a GPU whose SFUs are further behind.
#
# ### FlashAttention 2, 3 and 4
#
# The first paper introduced tiling, online softmax and recomputation. Later versions schedule the same arithmetic
# better.
#
# - **FlashAttention-2** (Dao, [arXiv:2307.08691](https://arxiv.org/abs/2307.08691)) runs the query tiles of a head in
#   parallel, while the first version had one program per head. It divides at the very end, not in every tile, and
#   splits queries rather than keys among warps, so they don't have to communicate. Our kernel does all three.
# - **FlashAttention-3** (Shah et al., [arXiv:2407.08608](https://arxiv.org/abs/2407.08608)) is for Hopper, where loads
#   and matmuls are asynchronous. Some warps only load (TMA), and two other groups of warps take turns, so that one
#   computes exponentials while the other's matmul runs. Within a group, one tile's exponentials overlap the previous
#   tile's second matmul. It also has an fp8 version. The course's tuned kernel for head dims 33 to 256 has the loading
#   warp and the overlap within a group, but its groups don't take turns. It's written in Gluon, Triton's lower-level
#   language (`kernels/tuned/hopper_attention.py`).
# - **FlashAttention-4** ([arXiv:2603.05451](https://arxiv.org/abs/2603.05451)) is for Blackwell, which doubled the
#   speed of matmuls but not of exponentials. So it computes some of the exponentials with multiply-adds: $2^x$ is
#   $2^{\lfloor x \rfloor}$, which goes into a float's exponent bits, times $2$ to the remainder, approximated by a
#   short polynomial. It also rescales less often. The running maximum only has to be close to the true one, so it's
#   updated only when the true one has grown by more than, say, 8 in base 2. And it uses features that only Blackwell
#   has: accumulators in tensor memory, and matmuls shared by two SMs.
#
# (*Other attention kernels*, below, lists the `flash-attn-4` package on an H100. There it runs its Hopper kernel, which
# follows FlashAttention-3, not the algorithm described here.)
#
# ### How the bytes grow
#
# As N grows, the scores take over the unfused traffic. More queries per program make for fewer requests:

# %% tags=["hide-input"]
rows = []
for tokens in (64, 128, 256, 512, 1024):
    moved = measure(written_out, *random_inputs(1, tokens, 64)).bytes_total
    rows.append((tokens, f"{moved / 1e6:.2f} MB", f"{12 * tokens**2 / moved:.0%}"))
table(("tokens", "moved", "share of scores"), rows)

# %% tags=["hide-input"]
rows = []
for m in (16, 32, 64, 128):
    asked = measure(flash, rescales, *random_inputs(1, 256, 64), m).bytes_total
    rows.append((m, f"{asked / 1e3:.1f} kB"))
table(("queries per program", "requested, 256 tokens"), rows)

# %% [markdown]
# ### Whole rows, compiled
#
# Here's the kernel that holds all keys, compiled for eight warps at head dim 64:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import compile_for

rows = []
for tokens in (256, 512, 1024):
    x = torch.empty(16, tokens, 64, dtype=torch.float16, device="meta")
    flags, out = (
        torch.empty(tokens, dtype=torch.bool, device="meta"),
        x.new_empty(16, tokens, tokens).float(),
    )
    options = {"SEES": sees_keys, "D": 64, "M": 16, "ALL": tokens, "num_warps": 8}
    made = compile_for(safe_rows_kernel, x, x, flags, out, tokens, 0.125, device="H200", **options)
    shared = f"{made.shared_memory // 1024} KB"
    rows.append((tokens, made.registers, shared, repr(made.occupancy())))
table(("tokens", "registers", "shared", "occupancy"), rows)

# %% [markdown]
# ### Scores on a GPU
#
# **Claim: "attention scores, fused: 2 to 3 times faster."** Let's test it on an H200 in bf16, with fp32 results. (The
# last field of a shape is True if it's causal.)

# %% tags=["hide-input"]
h200.table("attention_scores", "bfloat16")

# %% tags=["hide-input"]
for flag in (False, True):
    times = h200.times("attention_scores", (4, 16, 2048, 64, flag), "bfloat16")
    against = {
        name: times[name].median / times["fused"].median for name in ("eager", "torch.compile")
    }
    told = "; ".join(f"{ratio:.1f} times faster than {name}" for name, ratio in against.items())
    print(f"{'causal' if flag else 'full':6} {told}")

# %% [markdown]
# **Verdict: the claim is about right against torch.compile, and understates the gain over eager PyTorch.** There, a
# causal mask written with `masked_fill` adds launches on N × N tensors. The compiler fuses mask and softmax but leaves
# the matmul separate.
#
# ### The explorer's model vs the meter and measured times

# %% tags=["hide-input"]
from helpers.instruments.operations import attention_of_heads

for heads, tokens, d in ((1, 128, 64), (2, 256, 64), (1, 512, 128)):
    inputs = random_inputs(heads, tokens, d)
    versions = attention_of_heads(tokens, heads, d, itemsize=2)
    unfused_model, fused_model = (
        sum(each.work.bytes for each in of) for of in (versions.unfused, versions.fused)
    )
    agree = unfused_model == measure(written_out, *inputs).bytes_total
    print(f"{heads} x {tokens} x {d}: unfused agrees: {agree}, fused:", end=" ")
    print(fused_model == measure(flash, rescales, *inputs).unique_total)

# %% [markdown]
# Next, 16 heads of dimension 128 on an H200, in bf16. A `-` means that it didn't fit. "fused, time" is an older kernel
# of ours than the one in *Other attention kernels* below, so compare it with the other columns here, not with that
# table.

# %% tags=["hide-input"]
from helpers.figures.attention.sequence_lengths import Attention
from helpers.figures.frame.chart import si

rows = []
for tokens, found in h200.experiment("attention_lengths").items():
    model = Attention(DEVICES["H200"], tokens, 16, 128, causal=False).costs
    fits = "eager" in found
    row = [si(model["unfused"].time, "s"), si(found["eager"].median, "s") if fits else "-"]
    row += [si(model["fused"].time, "s"), si(found["fused"].median, "s")]
    row += [si(found["eager memory"], "B") if fits else "-", si(found["fused memory"], "B")]
    rows.append((f"{tokens:,}", *row))
columns = ("tokens", "unfused, bound", "unfused, time", "fused, bound", "fused, time")
table((*columns, "unfused memory", "fused memory"), rows, h200.label_of("attention_lengths"))

# %% [markdown]
# (In the first row, most of the unfused memory is cuBLAS's own workspace.) Unfused memory grows fourfold with each
# doubling, fused memory twofold. The times are above the roofline's bound, and for short sequences far above it,
# because there isn't enough work to fill the GPU. On long ones, part of the fused gap is that busy tensor cores don't
# sustain the data sheet's rate. The rest is probably time when matmuls and exponentials don't overlap, which no single
# roof can show.
#
# ### Causal tiles: times and sizes
#
# This is the lesson's own kernel with 32 heads of dimension 64 and 16 of dimension 128, batch 4, 4096 tokens:
# <!-- given 32 heads, 16 heads: benchmarks/experiments/lesson_10.py -->

# %% tags=["hide-input"]
steps = h200.experiment("attention_causal")
rows = []
for d, times in steps.items():
    for name, time in times.items():
        rows.append((d, name, f"{1e6 * time.median:.0f} us"))
display(table(("head dim", "loops over", "time"), rows, h200.label_of("attention_causal")))
computed = sum(
    2 * (program + 1) for program in range(32)
)  # tiles of 128 x 64, 32 programs per head
every, stopping, _ = (time.median for time in steps[64].values())
print(
    f"up to the diagonal: {32 * 64 / computed:.2f}x reduction in tiles, "
    f"{every / stopping:.2f}x in time"
)

# %% [markdown]
# The mask costs a comparison and a select per score. If you skip it in tiles where it hides nothing, you gain about
# another tenth. Now choose your own tiles:
#
# 1. Loop up to the diagonal, in tiles of 64 x 64. How does the wasted share change from 128 tokens to 2,048?
# 2. At 2,048 tokens, programs of 128 queries request fewer bytes than programs of 16. What's the downside?
# 3. What determines how much is requested: queries per tile or keys per tile?
# 4. How long is the last program's row of tiles, compared with the first one's? In what order would you start them?

# %% tags=["hide-input"]
from helpers.figures import AttentionTilesExplorer

tiles = AttentionTilesExplorer(tokens=512, m=64, n=64)
tiles

# %% [markdown]
# <details><summary>What you should see</summary>1. It falls from a third to a few hundredths, because the number of
# tiles on the diagonal grows linearly with the tokens, while the total number of tiles grows with their square. 2. The
# tiles on the diagonal are larger, so more is wasted, and there are fewer programs, which may leave SMs idle. 3.
# Queries. Each program reads the keys it needs once, so with fewer programs they're read fewer times. 4. It has as many
# tiles as there are rows of tiles, and the first has one. Start the longest first, as the course's kernel does.
# Otherwise, a long one that starts last keeps a single SM busy after all others have finished.</details>
#
# ### How close do we get to the roofs?
#
# The SFUs are by far the slowest compute units in this picture:

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H200", lit="special function units")

# %% [markdown]
# At the rates we *measured* on this GPU, the matmuls and exponentials take this long:

# %% tags=["hide-input"]
from kernels import CATALOGUE

op = CATALOGUE["flash_attention"]
exponential_rate = (
    COUNTS["special functions"] / h200.experiment("roofs")["special functions"].median
)
rows = []
for heads, d in ((32, 64), (16, 128)):
    pairs = 4 * heads * 4096**2
    products = 4 * d * pairs / rates["bf16_matrix_flops_per_second"]
    exponentials = pairs / exponential_rate
    times = h200.times("flash_attention", (4, heads, 4096, d, False), "bfloat16")
    took = [times[name].median for name in ("fused", "cuDNN")]
    all_of_it = (products, exponentials, products + exponentials, *took)
    rows.append((d, *(f"{1e6 * each:.0f} us" for each in all_of_it)))
columns = ("head dim", "matmuls", "exponentials", "one after the other", "fused", "cuDNN")
table(columns, rows, h200.label_of("flash_attention", "roofs"))

# %% [markdown]
# `fused` isn't the plain kernel whose exponentials we removed above, so the two tables differ. It takes less time than
# matmuls and exponentials one after the other, and that includes all of its other arithmetic. With full overlap, it
# would take as long as the slower of the two. At head dim 128, our kernel and cuDNN's take about a fifth longer than
# that. At 64, neither gets close.
#
# ### Exponentials in base 2
#
# GPUs don't have an `exp` instruction, only powers of two, so `tl.exp(x)` is `exp2` of `x` times $\log_2 e$. We already
# multiply the score by the scale. If we put $\log_2 e$ into the scale and call `exp2` directly, we save the
# multiplication inside every exponential. Our `flash_attention` does this.


# %%
@triton.jit
def rescales_in_base_2(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp2(peak - higher)
    p = tl.exp2(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


# %% tags=["hide-input"]
q, k, v = random_inputs(1, 128, 64)
o, in_base_2 = torch.empty_like(q), 64**-0.5 * math.log2(math.e)
flash_kernel[(2, 1)](q, k, v, o, 128, in_base_2, TAKE_IN=rescales_in_base_2, D=64, M=64, N=64)
print(
    "right, with the logarithm in the scale:", torch.allclose(o.float(), exact(q, k, v), atol=1e-3)
)

# %% tags=["nbval-ignore-output", "hide-input"]
meta = torch.empty(16, 4096, 64, dtype=torch.float16, device="meta")
names, rows = ("FMUL", "FFMA", "MUFU", "HGMMA"), []
for take in (rescales, rescales_in_base_2):
    options = {"TAKE_IN": take, "D": 64, "M": 64, "N": 64}
    made = compile_for(flash_kernel, *[meta] * 4, 4096, 0.125, device="H200", **options)
    rows.append((take.fn.__name__, *(made.instructions[name] for name in names)))
table(("", *names), rows)

# %% [markdown]
# (`MUFU` is the SFU's instruction, which returns one result per thread. `HGMMA` is a matmul on Hopper's tensor cores,
# on a whole tile per warp group.)
#
# ### FlashAttention 2 and 3 in our kernels
#
# Here's why version 2 runs the query tiles in parallel: with 16 heads of one sequence, one program per head can't fill
# an H200.

# %% tags=["hide-input"]
sms = DEVICES["H200"].sms
for tokens in (1024, 8192):
    print(
        f"{tokens} tokens: {sms} SMs, {16} programs of a whole head, {16 * tokens // 64} programs "
        "of 64 queries"
    )

# %% [markdown]
# And you can see version 3's specialised warps if you compare the machine code of the course's plain and tuned kernels.
# With `USETMAXREG`, the loading warps hand registers to the computing warps. `UTMALDG` is a tile load.

# %% tags=["nbval-ignore-output", "hide-input"]
from kernels.variants import kernel_at

shape = 1, 16, 4096, 128, False
both = {
    "plain": (op.kernel, *op.compile_arguments(*shape, dtype=torch.float16)),
    "tuned": kernel_at(op, *shape, dtype=torch.float16),
}
names, rows = ("UTMALDG", "USETMAXREG", "HGMMA", "MUFU"), []
for variant, (kernel, arguments, options) in both.items():
    made = compile_for(kernel, *arguments, device="H200", **options)
    rows.append((variant, *(made.instructions.get(name, 0) for name in names)))
table(("", *names), rows)

# %% [markdown]
# ### FlashAttention-4's exponential and its slack
#
# Is a cubic good enough?


# %%
@triton.jit
def by_polynomial(x):
    """2^x for x <= 0 without the special function units.

    2^whole goes into the exponent's bits. A cubic approximates 2^part, with part from 0 to 1.
    """
    x = tl.maximum(x, -126.0)
    whole = tl.floor(x)
    part = x - whole
    mantissa = 0.99992522 + part * (0.69583309 + part * (0.22606716 + part * 0.07802446))
    bits = mantissa.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


# %% tags=["hide-input"]
@triton.jit
def polynomial_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + lane, by_polynomial(tl.load(x_ptr + lane)))


x = -20 * torch.rand(4096, generator=torch.Generator().manual_seed(0)).to(device)
y = torch.empty_like(x)
polynomial_kernel[(4,)](x, y, BLOCK=1024)
worst = (y.double() / x.double().exp2() - 1).abs().max().item()
rounding = {"fp16": 2**-11, "bf16": 2**-8}
print(
    f"off by less than 1e-4: {worst < 1e-4};",
    ", ".join(f"{name} rounds by {r:.0e}" for name, r in rounding.items()),
)

# %% [markdown]
# Its error is smaller than that of rounding to 16 bits, which is what happens to p next. As for the slack, here's the
# percentage of tiles that rescale, not counting each row's first, on random scores:
# <!-- given 16 bits: the format's definition -->


# %% tags=["hide-input"]
def rescalings(s, slack):
    """Return the share of tiles, after the first, in which a row's maximum moves.

    s: scores (rows, tiles, keys), to base 2.
    """
    peak, moves = s[:, 0].amax(-1), 0
    for each in s[:, 1:].amax(-1).T:
        moved = each > peak + slack
        peak, moves = torch.where(moved, each, peak), moves + moved.sum().item()
    return moves / (s.shape[0] * (s.shape[1] - 1))


random_scores = torch.randn(512, 64, 64, generator=torch.Generator().manual_seed(0)) * 1.4427
for slack in (0, 8):
    print(f"slack {slack}: rescaled in {rescalings(random_scores, slack):.1%} of the tiles")

# %% [markdown]
# Our kernel rescales `acc` in *every* tile, nearly always for nothing. (A warp can only skip it if none of its rows
# needs it, so you'd save less than this suggests.)
#
# ### Compiled attention
#
# **Claim: "attention becomes 2 to 3 times faster by compilation."** We timed the forward pass with 96 heads of
# dimension 64, in fp16 on an H200, compiled with and without the patterns:

# %% tags=["hide-input"]
rows = []
for tokens, times in h200.experiment("attention_compiled").items():
    for kind in ("full", "causal"):
        eager = times[kind].median
        ways = [name for name in times if name.startswith(f"{kind},")]
        gains = (f"{eager / times[name].median:.1f} times faster" for name in ways)
        rows.append((tokens, kind, f"{1e6 * eager:.0f} us", *gains))
table(
    ("tokens", "", "eager", "compiled", "without patterns"),
    rows,
    h200.label_of("attention_compiled"),
)

# %% [markdown]
# **Verdict: the claim is fair for attention with an explicit causal mask, where the compiler fuses the work on the
# matrix. For plain attention it's an understatement, but there the compiler replaced the kernel instead of fusing it.**
# Without the patterns, plain attention gains little, because the matmuls stay separate and the matrix still goes
# through memory. (We didn't investigate why the causal version was slower with the patterns at 2048 tokens.)
#
# ### Other attention kernels
#
# These are TFLOP/s on an H200 in bf16. With a causal mask we count half the FLOPs, and the last line shows the rate of
# the best matmul:

# %% tags=["hide-input"]
providers = ("eager", "torch.compile", "FlashAttention-2", "Flex", "cuDNN", "fused")
rows = []
for shape in op.gpu_shapes:
    times = h200.times("flash_attention", shape, "bfloat16")
    flops = op.work(shape, torch.bfloat16).flops
    reached = (f"{flops / times[name].median / 1e12:.0f}" for name in providers)
    rows.append((" x ".join(map(str, shape)), *reached))
display(table(("shape, causal", *providers), rows, f"{h200.label_of('flash_attention')}\nTFLOP/s"))
print(f"a matmul: {rates['bf16_matrix_flops_per_second'] / 1e12:.0f} TFLOP/s")

# %% [markdown]
# `FlashAttention-2` is PyTorch's build. Version 2 was written for an A100, version 3 for Hopper. `Flex` is
# FlexAttention's Triton template. Without a mask, `torch.compile` recognises the pattern and calls one of the library
# kernels, so its column shows that kernel's time.
#
# The sweep ran on an H100, later than the runs above, and with the `flash-attn-4` package, whose Hopper kernel beats
# ours on most long sequences, forward and backward. The chart shows head dim 128 at each sequence length, with the same
# batch x heads x tokens. The table covers every size:

# %% tags=["hide-input"]
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
display(sweep_chart(at_all_sizes, "flash_attention"), at_all_sizes.summary(["flash_attention"]))

# %% [markdown]
# On short sequences, a program has few tiles of keys, so it probably spends much of its time on its first loads and
# last stores. That's why the tuned kernel processes many query tiles one after another, and computes the first scores
# of the next tile while it stores the output of the last. The backward pass, at head dims 33 to 128 on Hopper, is one
# kernel with five matmuls, whose programs add to the queries' gradient in memory. At other head dims there are two
# kernels, one for the queries' gradient and one for the keys' and values'. Both recompute the scores, which makes seven
# matmuls.
#
# **Claim: "FlashAttention: 2 to 4 times faster between 128 and 4K tokens."** This comes from its first README, for an
# A100: forward and backward pass together, batch 8, 12 heads of dimension 64, against unfused PyTorch, and "more with
# masking". We repeated it on an H200 with PyTorch's FlashAttention-2 and with our kernel, which still had the backward
# pass with seven matmuls at the time:
# <!-- given 12 heads: FlashAttention's README of 2022 -->

# %% tags=["hide-input"]
training, rows = h200.experiment("attention_training"), []
for kind in ("full", "causal"):
    for tokens, times in training.items():
        names = ("eager", "FlashAttention-2", "ours")
        eager, *others = (times[f"{kind}, {name}"].median for name in names)
        gains = (f"{eager / each:.1f} times faster" for each in others)
        rows.append((kind, tokens, f"{1e6 * eager:.0f} us", *gains))
table(
    ("", "tokens", *names),
    rows,
    f"{h200.label_of('attention_training')}\nthe GPU's own time, cold L2",
)

# %% [markdown]
# **Verdict: the claim is fair from 512 tokens upwards, and the gain with a mask is larger, as it says.** On shorter
# sequences, PyTorch's kernel gains less on this larger GPU. (These are GPU times. At those lengths, a call from Python
# takes longer than the kernel.)
#
# ### On your GPU

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    many = [torch.randn(64, 4096, 64, dtype=torch.float16, device="cuda") for _ in range(3)]
    ways = {
        "unfused": lambda: written_out(*many),
        "flash, base e": lambda: flash(rescales, *many),
        "up to the diagonal": lambda: causal_flash(*many, True, True),
        "PyTorch's": lambda: F.scaled_dot_product_attention(*(x[None] for x in many)),
    }
    print(benchmark_together(ways))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
