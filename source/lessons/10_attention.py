# %% [markdown]
# # 10 Attention: without the N x N matrix
#
# Attention compares each of N tokens with every other one. That makes N × N scores per head, and as PyTorch lets you
# write it, they go out to memory and come back several times. Twice the tokens, four times the scores: at some length
# nothing else matters, and soon after they no longer fit. Yet the *result* of attention is no larger than its input.
# **Must the matrix ever exist?**
#
# After this lesson you can
#
# - write scores, mask and softmax as one kernel, and handle a query that sees no key;
# - derive FlashAttention from online softmax, and name a test that misses a wrong one;
# - separate what is linear in N from what is quadratic;
# - skip the tiles that a causal mask hides;
# - find the unit that limits attention on a given GPU;
# - explain what FlashAttention 2, 3 and 4 changed, and what a compiler can do instead;
# - explain why decoding one token is another problem, and split its keys among programs.
#
# About 75 minutes. It follows on [06 Softmax](06_softmax.ipynb) and leads to exercises
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
# This is the kernel that you will build. Press **Play**, then choose another mask.

# %% tags=["hide-input"]
from helpers.figures import mask_animation

mask_animation()

# %% [markdown]
# ## The cost of the unfused version
#
# Each token has a *query*, a *key* and a *value* of $d$ elements each: the rows of three matrices q, k and v. A
# token's query is compared with the keys of all tokens; each match becomes a weight; the result is the weighted sum of
# their values. A model does that several times in parallel, in independent *heads*:
#
# $$s = \frac{q\,k^T}{\sqrt d}, \qquad p = \text{softmax}(s), \qquad o = p\,v$$


# %%
def written_out(q, k, v):
    s = q @ k.mT
    s = s * q.shape[-1] ** -0.5
    p = torch.softmax(s, dim=-1)
    return p @ v


# %% [markdown]
# **How many bytes does this move per score, in 16 bits?** Go through the four launches, and count only tensors of N ×
# N elements.

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
# Lesson 08 multiplied tiles, lesson 06 kept a softmax row in a program. Together: a program takes a tile of queries
# and all keys, so it owns whole rows of scores, and writes only the probabilities. First the two functions that all
# kernels here use: load a tile of rows, and store one.


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
# (These tensors are contiguous: head, then token, then column. In the exercises they are not: `row * D + col` becomes
# `row * stride_n + col * stride_d`, and a head begins at `batch * stride_b + head * stride_h`. If programs count
# `batch * heads + head`, use `//` and `%` by `heads` to separate the two.)
#
# Two masks are common. With a **[causal](../docs/glossary.md#causal-mask)** one, a query sees no later key. With
# **padding**, sequences in a batch differ in length, and some positions at one end are not real. Both set scores to
# minus infinity before the maximum is taken. Which keys a query sees is a function of its own, so that we can exchange
# it:


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
# One launch, right, and it writes only the result. (`tl.dot` multiplies tiles of 16 and more on tensor cores and
# accumulates in fp32. The result is fp32 as well: who asks for probabilities usually wants them exact.)
#
# Now with padding. First let the **last** forty positions be padding, then the **first** forty, as in a batch of
# prompts that all end at the same place. Either way sixty queries are real, and each has weights that add up to 1.
# **How much of these sixty goes to padding in the second case?** Read `sees` once more before you run on.

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
    "The mask checks whether the query is real, and it is the key that must be. With padding "
    "behind, "
    "the causal mask covers for it, and a test where all keys are real cannot see it.",
)

# %% [markdown]
# The corrected mask:


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
# The remaining NaN rows are queries that see **no key at all**. Their maximum is minus infinity; `-inf - -inf` is NaN,
# and so is 0 / 0. PyTorch's softmax does the same. No one reads these rows, but they do harm: later they are
# multiplied by 0, which is still NaN. `scaled_dot_product_attention` returns zeros instead, and so do the course's
# kernels. It takes two lines: **a maximum of minus infinity counts as 0, a sum of 0 as 1**.
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
with sdpa_kernel(SDPBackend.MATH):  # the backend that takes any mask
    theirs = F.scaled_dot_product_attention(few_q, few_k, identity, attn_mask=~hidden)
print(
    "rows of zeros:",
    (p_safe[0].sum(dim=-1) == 0).sum().item(),
    " NaN:",
    p_safe.isnan().any().item(),
)
print("as PyTorch's:", torch.allclose(p_safe, theirs.float(), atol=1e-3))

# %% [markdown]
# A mask is missing below, for keys past the end: they load as 0, so their score is 0, and the exponential of 0 is 1.
# Five keys, a block of eight, and d = 1, so that a score is one multiplication. **Change the marked line so that each
# row adds up to 1.**


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
# <details><summary>Answer</summary><code>s = tl.where(inside, q * k, -float("inf"))</code>: before the maximum, not
# after the softmax.</details>
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
# **Rows too long.** Here a program holds all keys and all scores of its rows, so each doubling of the keys doubles its
# shared memory and registers; at 1024 keys only one block fits on an SM. So keys must come in tiles, and a row's
# maximum and sum must be found **online**, as lesson 06 did for one row: now for many rows at once, each with a
# maximum and a sum of its own.


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
print(
    "logarithms of the sums, as PyTorch's:", torch.allclose(lse, few_s.logsumexp(dim=-1), atol=2e-3)
)

# %% [markdown]
# What is missing is a second loop that computes **the same scores again** and writes `exp(s - peak) / total`.
# [Exercise 10](../exercises/10_attention_scores.ipynb) asks for the whole. Why recompute them instead of storing them?
# A score costs `2 d` operations on tensor cores. In memory, it costs four bytes out and four bytes back. **On an H200
# at [head dim](../docs/glossary.md#head-dimension) 64: how many times longer do the bytes take than the arithmetic?** <!-- given four bytes: a score in fp32
# -->

# %% tags=["hide-input"]
again = predict_first("time of storing a score over recomputing it, H200", unit="times")
again

# %% tags=["hide-input"]
again.compare(
    (8 / roof.bandwidth) / (2 * 64 / roof.peak), "Recomputing is half of the idea of this lesson."
)

# %% [markdown]
# ## FlashAttention: weigh the values as well
#
# The probabilities are only needed to weigh values. A program that has a tile of them can multiply it by its tile of
# values at once, add the product to a running sum, **and forget it**. With $m_i$ the maximum of row $i$:
#
# $$o_i = \frac{\sum_j e^{s_{ij} - m_i}\, v_j}{\sum_j e^{s_{ij} - m_i}}$$
#
# Numerator and denominator are both sums over the keys, so both can grow tile by tile. `acc` is the numerator, $d$
# elements per query, `total` the denominator. The step that adds a tile is again a function of its own. A first
# version:


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
# Right. But those were 64 tokens, and a tile has 64 keys: one tile. Try two and five tiles as well, and a second test
# that needs no reference: **values that are all 1**. Weights add up to 1, so the result must be 1. **At how many of
# these three lengths does that test fail?**

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
display(table(("tokens", "tiles", "values of 1 off by", "random values by"), rows))
noticed.compare(
    caught,
    "The weights do add up, but they are the wrong weights: acc and total are wrong by the "
    "same factors, and a "
    "quotient of the two is still a weighted mean of the values. Of ones it is 1.",
)

# %% [markdown]
# Add a slope to the scores, so that later keys score higher, and let each value be its key's position. The result
# shows where the weight is:

# %% tags=["hide-input"]
place = torch.arange(256, device=device).half()
slope_q, slope_k, _ = random_inputs(1, 256, 64)
slope_q[..., 0], slope_k[..., 0] = 16.0, place / 32  # later keys score higher
slope_v = (place / 256)[None, :, None].expand(1, 256, 64).contiguous()
slope = slope_q, slope_k, slope_v
for name, o in (("first version", flash(take_in, *slope)), ("exact", exact(*slope))):
    print(f"{name:13} the weight is at {o.float().mean().item():.2f} of the sequence, on average")

# %% [markdown]
# When a later tile raises the maximum, the sums so far are too large: they were made with exponentials below the old
# maximum. Here is the kernel without a head dimension: the scores are given, and each key has **one number** as its
# value. `total` is rescaled, as in lesson 06. **Correct the marked line.** Two of the rows are right as they stand:
# why?


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
# denominator shrink alike. In rows 1 and 3 the maximum is in the first tile, so nothing needs to shrink.</details>
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
# With a head dimension, `p * v` becomes a matmul and `acc` a tile. The same correction, twice:


# %%
@triton.jit
def rescales(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp(peak - higher)
    p = tl.exp(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


# %% tags=["hide-input"]
print(f"with a slope: {flash(rescales, *slope).float().mean().item():.2f}")
for tokens in (64, 100, 320):
    inputs = random_inputs(1, tokens, 64)
    error = (flash(rescales, *inputs).float() - exact(*inputs)).abs().mean().item()
    theirs = (written_out(*inputs).float() - exact(*inputs)).abs().mean().item()
    nearer = error < min(theirs, 1e-4)
    print(
        f"{tokens:4} tokens: off by less than 0.0001 on average, and by less than unfused: {nearer}"
    )

# %% [markdown]
# Watch it on 32 tokens in tiles of 16. Scores rise by a step from the first tile to the second, and each value is its
# key's position: `s` and `p` are made, used and dropped, and `shrink` corrects `acc` once. Nothing N × N is ever in
# memory.

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
# This is **FlashAttention** (Dao et al., [arXiv:2205.14135](https://arxiv.org/abs/2205.14135)): not an approximation,
# the same arithmetic in another order, with fewer roundings than unfused, because the scores stay in fp32.
#
# ## What is linear in N, and what is not
#
# **How many kilobytes does the fused kernel touch in all, for one head of dimension 64 over 512 tokens, in 16 bits?**
# The matrix alone would have been half a megabyte. <!-- given 16 bits: the inputs' dtype -->

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
# It touches q, k, v and the output: O(N) where it was O(N²). That much DRAM must hold and deliver. But look at the
# last column. **Each program reads all keys and values again**, so the bytes requested still grow with the square,
# divided by the queries per program. L2 serves most of them, because programs of a head run side by side. With 128
# queries per program instead of 64, half as many are requested.
#
# FlashAttention does *more* arithmetic than the separate kernels, rescaling included. It moves less. And the matmuls
# are still N × N. Move the sliders, with the mouse or the arrow keys; time is the roofline's, a lower bound.
#
# 1. At what length does the unfused version no longer fit in an H100? And in an RTX 4090?
# 2. At what length does the fused version's time start to grow with the square of the tokens? What limits it before?
# 3. Choose one head only. Do the ratios change? And at head dim 256?
# 4. Make it causal. Which of the two gains, and why not the other?

# %% tags=["hide-input"]
from helpers.figures import AttentionLengthsExplorer

explorer = AttentionLengthsExplorer("H100", tokens=8192, heads=32, dim=128)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 32,768 tokens, with 32 heads of dimension 128; on an RTX 4090,
# with less than a third of the memory, at 16,384. 2. At 1,024: before that memory limits it, and its time is linear;
# then tensor cores do. 3. The ratios of memory and traffic are the same for any number of heads. A wider head has
# fewer scores per byte of q, k and v: the ratios fall. 4. The fused version computes half. Unfused, a mask is one more
# pass over the matrix.</details>
#
# ## Causal masks: skip the hidden tiles
#
# A causal mask hides half of the scores. `flash_kernel` with a mask would compute them and throw them away. A program
# whose queries end at 128 needs no key after 128, so its loop can stop there. And tiles left of the diagonal need no
# mask at all. A step of the loop becomes a function with an optional mask, and the loop becomes two:


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
# (No row is without a key here: each sees itself. With padding, the two lines from above come back.) **At 512 tokens,
# in tiles of 64 x 64: what share of the tiles is no longer computed?** Draw the 8 x 8 tiles.

# %% tags=["hide-input"]
skipped_share = predict_first("share of the tiles skipped, 512 tokens, tiles of 64 x 64", unit="%")
skipped_share


# %% tags=["hide-input"]
def causal_flash(q, k, v, skips, splits, m=64, n=64):
    o = torch.empty_like(q)
    heads, tokens, d = q.shape
    options = {"SKIPS": skips, "SPLITS": splits, "D": d, "M": m, "N": n}
    causal_kernel[(triton.cdiv(tokens, m), heads)](q, k, v, o, tokens, d**-0.5, **options)
    return o


long_inputs = random_inputs(1, 512, 64)
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
    100 * left_out / (512 // 64) ** 2, "Not half: tiles on the diagonal are computed in full."
)

# %% [markdown]
# Time shrinks less than the tiles do. A program's start, its queries and its store cost as much as before, and
# programs now differ in length, so the GPU is less evenly busy at the end. *Going further* has the times.
#
# ## The limiting unit
#
# Memory is not the limit at these lengths, as the explorer showed. Then the tensor cores? Between the two matmuls each
# score passes through an **exponential**, computed by the [SFU](../docs/glossary.md#sfu), which is slow (lesson 01 has
# the rates of both). Per score, a head of dimension $d$ takes $4d$ operations on tensor cores and one exponential.
# **On an H200 at head dim 64: how long do the exponentials take, as a percentage of the matmuls' time?**

# %% tags=["hide-input"]
share_of_products = predict_first("exponentials' time over the matmuls', d = 64, H200", unit="%")
share_of_products

# %% tags=["hide-input"]
special = Roofline(DEVICES["H200"], "special functions")
for d in (64, 128):
    products, exponentials = 4 * d / roof.peak, 1 / special.peak
    took = f"matmuls {1e15 * products:.0f} ns, exponentials {1e15 * exponentials:.0f} ns"
    print(f"head dim {d:3}, a million scores: {took}")
share_of_products.compare(100 * (1 / special.peak) / (4 * 64 / roof.peak))

# %% [markdown]
# If tensor cores and SFUs worked one after the other, exponentials would be a large part of the time. Only if they
# work **at the same time** are they free.
#
# 1. On an H100: at what head dims do exponentials take longer than matmuls?
# 2. Choose matmuls in fp8, as FlashAttention-3 has them: where is the balance now?
# 3. On a B200, at 64 and 128? On an A100?
# 4. How short must the sequence be for memory to be the limit?

# %% tags=["hide-input"]
from helpers.figures import AttentionUnitsExplorer

units = AttentionUnitsExplorer("H100", dtype="fp16", dim=64, tokens=8192)
units

# %% [markdown]
# <details><summary>What you should see</summary>1. Below 64. 2. Matmuls twice as fast: exponentials are the limit up
# to head dim 96, and nearly as slow as the matmuls at 128. 3. On a B200 they take nearly twice as long as the matmuls
# at 64, and about as long at 128. On an A100 its slower tensor cores are the limit, at 64 as well. 4. At head dim 64,
# 512 tokens on an H100; at 1,024 matmuls already are.</details>
#
# A roofline is a model; remove the exponentials and see. A kernel that uses the score itself instead of its `exp2`
# computes nonsense, as fast as if exponentials were free. **How many times faster is full attention without
# exponentials, at head dim 64 on an H200?** The kernel is a plain one, with pointers and without roles for its warps.

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_01 import COUNTS

without = predict_first("speedup without exponentials, d = 64, H200", unit="times")
without

# %% tags=["hide-input"]
taken_away = h200.experiment("attention_exponentials")
rows = []
for d, times in taken_away.items():
    rows.append((d, *(f"{1e6 * time.median:.0f} us" for time in times.values())))
display(table(("head dim", *times), rows, h200.label_of("attention_exponentials")))
without.compare(
    taken_away[64]["special function units"].median / taken_away[64]["left out"].median,
    "Most of them were hidden behind other work without any planning: the warps of an SM "
    "don't run in lockstep, and "
    "while some wait for a matmul, others take exponentials.",
)

# %% [markdown]
# ## FlashAttention 2, 3 and 4
#
# The first paper brought tiles, online softmax and recomputation. What followed is the same arithmetic, better
# arranged.
#
# - **FlashAttention-2** (Dao, [arXiv:2307.08691](https://arxiv.org/abs/2307.08691)) runs the query tiles of one head
#   in parallel, where the first version had one program per head; it divides once at the end instead of in each tile,
#   and splits queries, not keys, among warps, so that they need no exchange. Our kernel does all three.
# - **FlashAttention-3** (Shah et al., [arXiv:2407.08608](https://arxiv.org/abs/2407.08608)) is for Hopper, where loads
#   and matmuls are asynchronous. Some warps only load (TMA); two groups of others alternate, so that one computes
#   exponentials while the other's matmul runs. It has an fp8 version. The course's tuned kernel for head dims 65 to
#   256 has the first two ideas, in Gluon, Triton's lower level (`kernels/tuned/hopper_attention.py`).
# - **FlashAttention-4** ([arXiv:2603.05451](https://arxiv.org/abs/2603.05451)) is for Blackwell, whose matmuls became
#   twice as fast and whose exponentials did not. It computes a part of the exponentials with multiply-adds instead:
#   $2^x$ is $2^{\lfloor x \rfloor}$, the exponent bits of a float, times $2$ to the remainder, a short polynomial. It
#   also rescales less often: the running maximum need not be *the* maximum, a value near it will do, so it moves only
#   when the true one has grown by more than, say, 8 in base 2. And it uses what only Blackwell has: accumulators in
#   tensor memory, and matmuls that two SMs share.
#
# (FlashAttention-3 and -4 are not in this lesson's recordings: their times are not here, so no table here shows the
# fastest attention there is. PyTorch can call both, by `torch.nn.attention.activate_flash_attention_impl`.)
#
# ## What a compiler can do
#
# `torch.compile` fuses elementwise operations and leaves matmuls to a library. For attention it has a list of
# *patterns*, which it replaces by `scaled_dot_product_attention`, a fused kernel written by hand. The pass can be run
# alone, on attention in one line and with a causal mask by `masked_fill`:

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
# The second it does not recognise in these words; others it may.
#
# **FlexAttention** is a compiler's answer that knows attention. You write what a query sees, or how a score changes,
# as a small Python function, and `torch.compile` puts it into a FlashAttention kernel made from a template. From the
# function it also finds in advance which tiles are empty. A window of 1024 tokens:

# %%
from torch.nn.attention.flex_attention import create_block_mask


def window(batch, head, query, key):
    return (query >= key) & (query - key < 1024)


block_mask = create_block_mask(window, None, None, 8192, 8192, device="cpu")
print(f"tiles skipped: {block_mask.sparsity():.0f}%")

# %% [markdown]
# None of the course's kernels has a window; here it is one line.
#
# ## Claims: time and memory
#
# **Claim: "attention in three operations, fused: 3.33 times faster."** No conditions are given. Take the plainest:
# matmul, softmax, matmul, against one kernel, 96 heads of dimension 64, fp16, on an H200. The scaling is done
# beforehand.

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
# **Verdict: too modest here, and not a constant.** The gain grows with the tokens, because one side's traffic is
# quadratic and the other's linear. On shorter sequences, or on a GPU with other ratios, some length may give that
# number.
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** (Quoted without a source, as in lessons 04 and 06.)
# Unfused attention saves all probabilities for the backward pass. Fused, it saves q, k, v, the output, and one value
# per row, the logarithm of its sum: from these, probabilities are recomputed tile by tile. A model saves more than
# attention does. So take a whole block of GPT-2's size (768 columns, 12 heads), in fp16, on tensors without data, and
# list what the forward pass saves.
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
    """Bytes that a block's forward pass saves, without its weights."""
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
# **Verdict: holds at some lengths, in such a block at 256 and 512 tokens, and is no law.** A share that grows with N
# cannot be one number: at 128 tokens it is less, at 4096 most of the memory is gone.
#
# [Lesson 11](11_training.ipynb) derives the backward pass.
#
# ## One token at a time
#
# A language model generates one token after another. The one new query sees all keys before it, which are stored with
# the values in the *KV cache*. This is [decode](../docs/glossary.md#decode). The matrix of scores is now one row, and
# there is nothing left to keep out of memory. **What is the arithmetic intensity of such a step, in 16 bits: FLOP per
# byte of k and v?**

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
# Over a whole sequence each key that is fetched serves thousands of queries; here it serves one. Unless heads share
# it: with **grouped heads** several query heads use one head of keys and values, 32 query heads with 8 or with 1, say.
# The cache shrinks by the same factor:

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
title = "A group's size is its intensity: one token waits for memory, whatever the kernel"
each = (f"{point.label} {point.intensity:.0f} FLOP/byte" for point in points)
text = f"{title}. On an H200: {'; '.join(each)}"
intensity.on(roofline_chart(roof, points, title, text), "x")

# %% [markdown]
# So a decoding kernel should read k and v once, at copy bandwidth, for all queries of a group. `flash_kernel` has one
# program per head and tile of queries: with one query and eight key heads, eight programs for all SMs. Each loops over
# 65,536 keys alone. The remedy is lesson 06's: **split the row**. A part finds maximum, sum and numerator of its keys,
# and a second launch combines them:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_10 import decode, join_kernel, part_kernel

print(inspect.getsource(part_kernel.fn))
print(inspect.getsource(join_kernel.fn))

# %% [markdown]
# The queries of a group are the rows of a tile. Tensor cores take 16 of them, so most are padding, and there is time
# for that.

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
# This is **Flash-Decoding**, and how FlashAttention's own library serves a KV cache. **How many times faster are 64
# parts than one, with 8 key heads and 65,536 keys, on an H200?** Count the SMs at work.

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
title = (
    f"{h200.label_of('attention_decode')}\nus on the GPU, cold L2, by parts, and as others do it"
)
display(table(("keys", "key heads", "at copy bandwidth", *ways), rows, title))
split_gain.compare(
    decoding[65536][8][1].median / decoding[65536][8][64].median,
    "One part for each of 8 heads leaves 124 of 132 SMs idle.",
)

# %% [markdown]
# Read the table by rows: with enough parts, how near is a long cache to copy bandwidth, and which number of key heads
# is furthest from it? Two launches each have a start and an end. And bytes decide: a quarter of the key heads is a
# quarter of the cache. (FlexAttention decodes as well, but it needs a block mask to split the keys sensibly; the
# recording called it without one, so it is left out.) All that is GPU time. From Python, two launches cost more than
# the shortest of these (lesson 02); servers decode in [CUDA graphs](../docs/glossary.md#cuda-graph).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A colleague's FlashAttention passes a test with values of 1, and one with 64 tokens. What do the two tests have in
#    common?
# <details><summary>Answer</summary>Neither detects a forgotten rescaling. With values of 1 any weights give 1, as long
# as `acc` and `total` are wrong by the same factor; with one tile there is nothing to rescale.</details>
#
# 2. Why is a padding key hidden with minus infinity before the maximum, and not by a weight of 0 after the softmax?
# <details><summary>Answer</summary>By then the hidden key is in the sum, so the other weights no longer add up to 1;
# and it may have set the maximum.</details>
#
# 3. FlashAttention's memory is linear in N, its time is not. Why is it faster, then?
# <details><summary>Answer</summary>The matmuls are N × N either way. The matrix's round trips through memory are gone,
# and they took several times as long as the matmuls.</details>
#
# 4. Two parts of a row were computed separately. The first has maximum 1, sum 4 and a numerator of 8; the second
#    maximum 3, sum 2 and a numerator of 10. What does attention return? Replace the dots with your number.

# %%
answer = ...
shrink = torch.exp(torch.tensor([1.0 - 3.0, 0.0], dtype=torch.float64))
right_answer = (shrink * torch.tensor([8.0, 10.0])).sum() / (
    shrink * torch.tensor([4.0, 2.0])
).sum()
self_test(
    answer,
    right_answer.item(),
    "shrink sum and numerator of the first part by exp(1 - 3), add, then divide",
)

# %% [markdown]
# [Exercise 10](../exercises/10_attention_scores.ipynb) asks for scores, mask and softmax in one kernel; [exercise
# 10b](../exercises/10b_flash_attention.ipynb) for FlashAttention, with strides and a causal mask. The course's kernels
# are in `kernels/tiled/`.
#
# ## Going further
#
# ### How the bytes grow

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
# The kernel that holds all keys, with eight warps at head dim 64:

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
# **Claim: "attention scores, fused: 2 to 3 times faster."** On an H200, in bf16, with fp32 results (the last field of
# a shape says whether it is causal):

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
# **Verdict: fair against torch.compile, too modest against PyTorch line by line.** A causal mask written with
# `masked_fill` adds launches over N × N; the compiler fuses mask and softmax, and leaves the matmul separate.
#
# ### The model of the explorer against the meter and the clock

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
# And 16 heads of dimension 128 on an H200, in bf16; `-` did not fit. "fused took" is an earlier kernel of ours than the
# one in *Attention by other kernels* below: compare it with the other columns here, not with that table.

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
columns = ("tokens", "unfused at least", "unfused took", "fused at least", "fused took")
table((*columns, "unfused memory", "fused memory"), rows, h200.label_of("attention_lengths"))

# %% [markdown]
# (The first line's unfused memory is mostly cuBLAS's own workspace.) Memory is the model's. Times are above the
# roofline's: for short sequences by far, because nothing there fills the GPU. On long ones, a part of the difference
# is the rate that tensor cores hold under load, less than the data sheet's; the rest no single roof shows: matmuls and
# exponentials that don't overlap.
#
# ### Causal tiles: times and sizes
#
# The lesson's own kernel, 32 heads of dimension 64 and 16 of dimension 128, batch 4, 4096 tokens:
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
    f"up to the diagonal: tiles {32 * 64 / computed:.2f}x fewer, "
    f"time {every / stopping:.2f}x shorter"
)

# %% [markdown]
# Omitting the mask where it hides nothing, a comparison and a selection per score, gains about a tenth more. Choose
# your own tiles:
#
# 1. Loop up to the diagonal, in tiles of 64 x 64. How does the wasted share change from 128 tokens to 2,048?
# 2. At 2,048 tokens, 128 queries per program request less than 16 do. What do they cost?
# 3. Queries or keys: which size decides how much is requested?
# 4. How long is the last program's row of tiles, compared with the first one's? In what order would you start them?

# %% tags=["hide-input"]
from helpers.figures import AttentionTilesExplorer

tiles = AttentionTilesExplorer(tokens=512, m=64, n=64)
tiles

# %% [markdown]
# <details><summary>What you should see</summary>1. From a third to a few hundredths: the diagonal's tiles grow with
# the tokens, all others with their square. 2. Larger tiles on the diagonal, so more waste; and fewer programs, which
# may leave SMs idle. 3. Queries: each program reads the keys it needs once, so fewer programs read them less often. 4.
# As many tiles as there are rows of tiles, against one. The longest first: a long one started last would keep one SM
# busy while all others are done. The course's kernel does that.</details>
#
# ### How near to the roofs
#
# The SFUs are the slowest units on the chip by far:

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H200", lit="special function units")

# %% [markdown]
# At the rates that were *measured* on this GPU, matmuls and exponentials take:

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
columns = ("head dim", "matmuls", "exponentials", "in turn", "took, fused", "took, cuDNN")
table(columns, rows, h200.label_of("flash_attention", "roofs"))

# %% [markdown]
# `fused` is the course's tuned kernel, not the plain one whose exponentials were removed above, so the two tables
# differ. It takes less than the two in turn, and in that time it has done all the other arithmetic. Neither it nor
# cuDNN comes near to full overlap, the longer of the two.
#
# ### Exponentials in base 2
#
# A GPU has no `exp`, only powers of two: `tl.exp(x)` is `exp2` of `x` times $\log_2 e$. The score is multiplied by the
# scale anyway. Multiply it by the scale times $\log_2 e$ once, take `exp2`, and the multiplication inside every
# exponential goes. All of the course's kernels do so.


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
# (`MUFU` is the SFU's instruction, one result per thread; `HGMMA` is a matmul on Hopper's tensor cores, a whole tile
# per warp group.)
#
# ### Roles in the machine code
#
# How many programs does one sequence with 16 heads give an H200's SMs?

# %% tags=["hide-input"]
sms = DEVICES["H200"].sms
for tokens in (1024, 8192):
    print(
        f"{tokens} tokens: {sms} SMs, {16} programs of a whole head, {16 * tokens // 64} programs "
        "of 64 queries"
    )

# %% [markdown]
# Roles show in the machine code of the course's two kernels, plain and tuned: warps that load hand registers to those
# that compute, `USETMAXREG`; `UTMALDG` loads a tile.

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

    2^whole is an exponent's bits, 2^part a cubic in 0 to 1.
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
# Its error is smaller than a rounding to 16 bits, which p undergoes next. And the slack: the share of tiles after a
# row's first that rescale, on random scores:
# <!-- given 16 bits: the format's definition -->


# %% tags=["hide-input"]
def rescalings(s, slack):
    """How often per tile a row's maximum moves, after the first; s: (rows, tiles, keys), base 2."""
    peak, moves = s[:, 0].amax(-1), 0
    for each in s[:, 1:].amax(-1).T:
        moved = each > peak + slack
        peak, moves = torch.where(moved, each, peak), moves + moved.sum().item()
    return moves / (s.shape[0] * (s.shape[1] - 1))


random_scores = torch.randn(512, 64, 64, generator=torch.Generator().manual_seed(0)) * 1.4427
for slack in (0, 8):
    print(f"slack {slack}: rescaled in {rescalings(random_scores, slack):.1%} of the tiles")

# %% [markdown]
# Multiplying `acc` in *every* tile, as our kernel does, is wasted in nearly all of them. (A warp can skip it only if
# none of its rows needs it, so the saving is smaller than it looks.)
#
# ### Attention by compilation
#
# **Claim: "attention becomes 2 to 3 times faster by compilation."** With 96 heads of dimension 64, forward, in fp16,
# on an H200, compiled with and without the patterns:

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
# **Verdict: fair for attention with a causal mask written out, where the compiler fuses what is done to the matrix. Of
# plain attention too modest, but not by the compiler's own work: it replaced the kernel.** Without the patterns plain
# attention gains little: the matmuls stay separate, and the matrix still goes through memory. (Why the causal one was
# slower with them, at 2048 tokens, was not looked into.)
#
# ### Attention by other kernels
#
# On an H200 in bf16 (TFLOP/s, a causal head counted half; the last line has the best matmul's):

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
# `FlashAttention-2` is PyTorch's build of it, made for an A100; the third version is for Hopper. `Flex` is its Triton
# template: PyTorch 2.11 can also give it a FlashAttention-4 backend, which was not timed. In the full lines,
# torch.compile's time is that of the kernel it called. By tokens per sequence, 16384 in all (the chart shows head dim
# 128; the table has all):

# %% tags=["hide-input"]
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
display(sweep_chart(at_all_sizes, "flash_attention"), at_all_sizes.summary(["flash_attention"]))

# %% [markdown]
# Where sequences are short, a program meets few tiles of keys, and its first loads and last stores weigh most. So the
# tuned kernel processes many query tiles one after another, and computes the next one's first scores while the last
# one's output is stored. Backward, at head dims 33 to 128 on Hopper, it is one kernel of five matmuls whose programs
# add to the queries' gradient in memory; at others it is two kernels, one for the queries' gradient and one for the
# keys', which both recompute the scores: seven matmuls.
#
# **Claim: "FlashAttention: 2 to 4 times faster between 128 and 4K tokens."** This is its first README, about an A100:
# forward and backward pass together, batch 8, 12 heads of dimension 64, against unfused PyTorch; and "more with
# masking". The same on an H200, with PyTorch's FlashAttention-2 and with ours, whose backward pass was then the one of
# seven matmuls:
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
# **Verdict: fair, from 512 tokens on, and more with a mask, as it says.** Below that, on this larger GPU, less with
# PyTorch's kernel. (This is GPU time alone. With sequences so short, a call from Python takes longer.)
#
# ### On your GPU

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    many = [torch.randn(64, 4096, 64, dtype=torch.float16, device="cuda") for _ in range(3)]
    ways = {
        "written out": lambda: written_out(*many),
        "flash, base e": lambda: flash(rescales, *many),
        "up to the diagonal": lambda: causal_flash(*many, True, True),
        "PyTorch's": lambda: F.scaled_dot_product_attention(*(x[None] for x in many)),
    }
    print(benchmark_together(ways))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
