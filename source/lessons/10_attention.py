# %% [markdown]
# # 10 Attention: the matrix that need not exist
#
# Attention compares each of N tokens with each other one. That makes N × N scores a head, and written out as PyTorch
# lets you write it, they go out to memory and come back several times. Twice the tokens, four times the scores: at some
# length nothing else matters, and a little later they do not fit at all. Yet what attention *returns* is no larger than
# what it was given. **Must the matrix ever exist?**
#
# After this lesson you can
#
# - write scores, mask and softmax as one kernel, and handle a query that sees no key;
# - derive FlashAttention from online softmax, and say which test misses a forgotten rescaling;
# - say what is linear in N, what is still quadratic, and which of the two you pay for;
# - skip what a causal mask hides, and say why that does not halve the time;
# - find the unit that limits attention, and why exponentials rank with products;
# - say what FlashAttention 2, 3 and 4 changed, and what a compiler can do instead;
# - tell why decoding one token is another problem, and split its keys among programs.
#
# About 75 minutes. It follows on [06 Softmax](06_softmax.ipynb) and leads to exercises
# [10](../exercises/10_attention_scores.ipynb) and [10b](../exercises/10b_flash_attention.ipynb).

# %%
import math

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import measure, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"


def random_inputs(heads, tokens, d):
    same = torch.Generator().manual_seed(0)  # the same numbers on every machine
    return [torch.randn(heads, tokens, d, generator=same).half().to(device) for _ in range(3)]


# %% [markdown]
# ## What it costs written out
#
# Each token has a *query*, a *key* and a *value*, $d$ numbers each: the rows of three matrices q, k and v. A token's
# query is compared with the keys of all tokens; how well they match becomes a weight; what comes out is the weighted
# sum of their values. A model does that several times beside each other, in *heads* that know nothing of one another:
#
# $$s = \frac{q\,k^T}{\sqrt d}, \qquad p = \text{softmax}(s), \qquad o = p\,v$$


# %%
def written_out(q, k, v):
    s = q @ k.mT
    s = s * q.shape[-1] ** -0.5
    p = torch.softmax(s, dim=-1)
    return p @ v


# %% [markdown]
# **How many bytes does this move for each of the N × N scores, in 16 bits?** Go through the four launches, and count
# only what has N × N elements.

# %%
score_bytes = predict_first("bytes a score, attention written out", unit="B")
score_bytes

# %%
two_heads = random_inputs(heads=2, tokens=256, d=64)
unfused = measure(written_out, *two_heads)
display(unfused.launch_table())
small = 4 * two_heads[0].nbytes  # q, k and v in, the output out
score_bytes.compare((unfused.bytes_total - small) / (2 * 256 * 256))

# %% [markdown]
# And they take over as the sequence grows:

# %%
rows = []
for tokens in (64, 128, 256, 512, 1024):
    moved = measure(written_out, *random_inputs(1, tokens, 64)).bytes_total
    rows.append((tokens, f"{moved / 1e6:.2f} MB", f"{12 * tokens**2 / moved:.0%}"))
table(("tokens", "moved", "of them scores"), rows)

# %% [markdown]
# ## Scores, mask and softmax in one kernel
#
# Lesson 08 multiplied tiles, lesson 06 had a softmax row in a program. Put together: a program takes a tile of queries
# and all keys, so it owns whole rows of scores. Nothing need be written but the probabilities. First the two moves that
# all kernels here make: fetch a tile of rows, and put one back.


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
# (The tensors here are contiguous, one head after another: head, then token, then column. For others, as the exercises
# have them, `row * D + col` becomes `row * stride_n + col * stride_d`, and a head begins at
# `batch * stride_b + head * stride_h`; if programs count `batch * heads + head`, `//` and `%` by `heads` tell the two.)
#
# Two masks are usual. A **causal** one: a query sees no key that comes after it. And **padding**: sequences in a batch
# differ in length, and some keys at an end are none. Both become scores of minus infinity, before the maximum is taken.
# What a query sees is a function of its own, so that we can exchange it:


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


# %%
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
# One launch, right, and what it writes is the result. (`tl.dot` multiplies tiles of 16 and more, on tensor cores, and
# adds up in fp32. The result is fp32 too: who asks for probabilities mostly wants them exact.)
#
# Now with padding. First let the **last** forty keys be none, then the **first** forty, as in a batch of prompts that
# all end at the same place. In both cases sixty queries are real, and each has weights that add up to 1. **How much of
# their sixty goes to padding in the second case?** Do not run on yet: read `sees` once more.

# %%
padding_weight = predict_first(
    "weight that 60 real queries give to 40 padding keys before them", unit=""
)
padding_weight

# %%
behind, before = number < 60, number >= 40
for name, real in (("behind", behind), ("before", before)):
    p = probabilities(rows_kernel, sees, real)[0]
    print(f"padding {name}: {p[real][:, ~real].sum().item():.1f} of 60 goes there;", end=" ")
    print(f"rows that are not a number: {p.isnan().any(dim=-1).sum().item()}")
padding_weight.compare(probabilities(rows_kernel, sees, before)[0][before][:, ~before].sum().item())

# %% [markdown]
# The mask was asked for the *query*, and it is the *key* that must be real. It is a common slip, and it hides: with
# padding behind, the causal mask covers for it, and a test with all keys real sees nothing. The cure is one word:


# %%
@triton.jit
def sees_keys(query, key, real_ptr, tokens):
    real = tl.load(real_ptr + key, mask=key < tokens, other=0) != 0
    return (key[None, :] <= query[:, None]) & real[None, :]


# %%
p_before = probabilities(rows_kernel, sees_keys, before)[0]
print(f"padding before: {p_before[before][:, ~before].sum().item():.1f} of 60 goes there;", end=" ")
print(f"rows that are not a number: {p_before.isnan().any(dim=-1).sum().item()}")

# %% [markdown]
# What remains are rows of queries that see **no key at all**. Their maximum is minus infinity, `-inf - -inf` is not a
# number, and so is 0 divided by 0. PyTorch's softmax does the same. Nobody looks at these rows, and still they do harm:
# later they are multiplied by 0, and that is NaN again. `scaled_dot_product_attention` gives zeros instead, and so do
# the kernels of this course. It takes two lines: **a maximum of minus infinity counts as 0, a sum of 0 as 1**.


# %%
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


# %%
from torch.nn.attention import SDPBackend, sdpa_kernel

p_safe = probabilities(safe_rows_kernel, sees_keys, before)
hidden = later | ~before
identity = torch.eye(100, device=device).half().expand(2, 100, 100)
with sdpa_kernel(SDPBackend.MATH):  # of its backends the one that takes any mask
    theirs = F.scaled_dot_product_attention(few_q, few_k, identity, attn_mask=~hidden)
print(
    "rows of zeros:",
    (p_safe[0].sum(dim=-1) == 0).sum().item(),
    " NaN:",
    p_safe.isnan().any().item(),
)
print("as PyTorch's:", torch.allclose(p_safe, theirs.float(), atol=1e-3))

# %% [markdown]
# (Attention with the identity for values returns its own weights: a handy way to look at them.)
#
# **A row too long.** Here a program holds all keys and all scores of its rows. The compiler says how far that goes,
# with eight warps and heads of 64:

# %% tags=["nbval-ignore-output"]
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
# Each doubling leaves half of the blocks on an SM, and the next one has more values a thread than registers. So keys
# must come in tiles, and a row's maximum and sum must be found **online**, as lesson 06 did for one row: now for a
# column of rows at once, each with a maximum and a sum of its own.


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


# %%
lse = torch.empty(2, 100, device=device)
row_sums_kernel[(7, 2)](few_q, few_k, before, lse, 100, 32**-0.5, SEES=sees_keys, D=32, M=16, N=32)
few_s = ((few_q @ few_k.mT).float() / 32**0.5).masked_fill(hidden, -torch.inf)
print(
    "logarithms of the sums, as PyTorch's:", torch.allclose(lse, few_s.logsumexp(dim=-1), atol=2e-3)
)

# %% [markdown]
# What is missing is a second walk that computes **the same scores again** and writes `exp(s - peak) / total`.
# [Exercise 10](../exercises/10_attention_scores.ipynb) asks for the whole. Why again, and not kept? A score costs `2 d`
# operations on tensor cores. Kept in memory, it costs four bytes out and four bytes back. **On an H200, with heads of
# 64: how many times longer do the bytes take than the arithmetic?** <!-- given four bytes: a score in fp32 -->

# %%
again = predict_first(
    "times longer: a score kept against a score computed again, H200", unit="times"
)
again

# %%
from helpers.instruments import DEVICES, Roofline

roof = Roofline(DEVICES["H200"], "fp16")
again.compare((8 / roof.bandwidth) / (2 * 64 / roof.peak))

# %% [markdown]
# Recomputing is the cheaper way, by far: half of the idea of this lesson. The catalogue's kernel does it so. **Claim:
# "attention scores, fused: 2 to 3 times faster."** On an H200, in bf16, with fp32 results (the last field of a shape
# says whether it is causal):

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
h200.table("attention_scores", "bfloat16")

# %%
for flag in (False, True):
    times = h200.times("attention_scores", (4, 16, 2048, 64, flag), "bfloat16")
    against = {
        name: times[name].median / times["fused"].median for name in ("eager", "torch.compile")
    }
    told = "; ".join(f"{ratio:.1f} times faster than {name}" for name, ratio in against.items())
    print(f"{'causal' if flag else 'full':6} {told}")

# %% [markdown]
# **Verdict: fair against torch.compile, too modest against PyTorch line by line.** Whoever writes a causal mask as one
# does, with `masked_fill`, adds launches over N × N; the compiler fuses mask and softmax, and leaves the product apart.
#
# ## Nobody asked for the probabilities
#
# They are only wanted to weigh values with. A program that has a tile of them may multiply it with its tile of values
# at once, add the product to what it has, **and forget it**. With $m_i$ the maximum of row $i$:
#
# $$o_i = \frac{\sum_j e^{s_{ij} - m_i}\, v_j}{\sum_j e^{s_{ij} - m_i}}$$
#
# Numerator and denominator are both sums over the keys, so both can grow tile by tile. `acc` is the numerator, a row of
# $d$ numbers a query, `total` the denominator. How they take in a tile is a function of its own again. A first version:


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


# %%
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
# Right. But those were 64 tokens, and a tile has 64 keys: one tile. Take two and five tiles as well, and a second test
# that needs no reference: **values that are all 1**. Weights add up to 1, so the result must be 1. **At how many of
# these three lengths does that test notice anything?**

# %%
noticed = predict_first("times that values of 1 betray the first version, of three", unit="")
noticed

# %%
caught, rows = 0, []
for tokens in (64, 128, 320):
    q, k, v = random_inputs(1, tokens, 64)
    ones_off = (flash(take_in, q, k, torch.ones_like(v)).float() - 1).abs().max().item()
    error = (flash(take_in, q, k, v).float() - exact(q, k, v)).abs().max().item()
    caught += ones_off > 1e-3
    rows.append((tokens, f"{tokens // 64} x 64", f"{ones_off:.2f}", f"{error:.2f}"))
display(table(("tokens", "tiles", "values of 1 off by", "random values by"), rows))
noticed.compare(caught)

# %% [markdown]
# The weights do add up, they are just **the wrong weights**. When a later tile raises the maximum, what was summed
# before stands there too large, in `acc` and in `total` alike, so that early keys count for more than they should. A
# quotient of two sums that are wrong alike is still a mean of the values, and of ones it is 1. On the first tile there
# is no before: that is why it was right. Add a slope to the scores, and early keys win that should have lost:

# %%
place = torch.arange(256, device=device).half()
slope_q, slope_k, _ = random_inputs(1, 256, 64)
slope_q[..., 0], slope_k[..., 0] = 16.0, place / 32  # later keys score higher
slope_v = (
    (place / 256)[None, :, None].expand(1, 256, 64).contiguous()
)  # the answer says where the weight lies
slope = slope_q, slope_k, slope_v
for name, o in (("first version", flash(take_in, *slope)), ("exact", exact(*slope))):
    print(f"{name:13} the weight lies at {o.float().mean().item():.2f} of the sequence, on average")

# %% [markdown]
# The cure is lesson 06's, once more, and for both sums: multiply by $e^{m - M}$ what was summed under the old maximum
# $m$ when the new one is $M$.


# %%
@triton.jit
def rescales(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp(peak - higher)
    p = tl.exp(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


# %%
print(f"with a slope: {flash(rescales, *slope).float().mean().item():.2f}")
for tokens in (64, 100, 320):
    inputs = random_inputs(1, tokens, 64)
    error = (flash(rescales, *inputs).float() - exact(*inputs)).abs().mean().item()
    theirs = (written_out(*inputs).float() - exact(*inputs)).abs().mean().item()
    nearer = error < min(theirs, 1e-4)
    print(
        f"{tokens:4} tokens: off by less than 0.0001 on average, and by less than written out: "
        f"{nearer}"
    )

# %% [markdown]
# Watch it, on 32 tokens in tiles of 16: `s` and `p` are made, used and forgotten, and `acc` is put right whenever
# `peak` has risen. Nothing N × N is ever in memory.

# %%
from helpers.figures import watch

of_32 = random_inputs(1, 32, 16)
tiles_of_16 = {"TAKE_IN": rescales, "D": 16, "M": 16, "N": 16}
watch(flash_kernel[2, 1], *of_32, torch.empty_like(of_32[0]), 32, 0.25, **tiles_of_16)

# %% [markdown]
# This is **FlashAttention** (Dao et al., [arXiv:2205.14135](https://arxiv.org/abs/2205.14135)): not an approximation,
# the same numbers in another order, and fewer roundings than written out, as the scores stay in fp32.
#
# ## What is linear now, and what is not
#
# **How many kilobytes does the fused kernel touch in all, for one head of 64 over 512 tokens?** The matrix alone would
# have been half a megabyte.

# %%
touched = predict_first("kB of memory touched, one head of 64, 512 tokens", unit="kB")
touched

# %%
rows = []
for tokens in (128, 256, 512):
    inputs = random_inputs(1, tokens, 64)
    apart, fused = measure(written_out, *inputs), measure(flash, rescales, *inputs)
    sizes = (apart.bytes_total, fused.unique_total, fused.bytes_total)
    rows.append((tokens, *(f"{size / 1e3:.1f} kB" for size in sizes)))
display(table(("tokens", "written out", "fused touches", "fused asks for"), rows))
touched.compare(fused.unique_total / 1e3)

# %% [markdown]
# What is touched is q, k, v and the output: twice the tokens, twice the bytes, O(N) where it was O(N²). That is what
# memory must hold, and what DRAM must deliver. But look at the last column. **Each program reads all keys and values
# again**; what programs ask for still grows with the square, divided by the queries that a program serves. (The paper's
# own bound, $N^2 d^2$ over the size of the memory on the chip, counts this.) L2 answers most of it, as programs of a
# head run side by side. Twice the queries a program, half the questions:

# %%
rows = []
for m in (16, 32, 64, 128):
    asked = measure(flash, rescales, *random_inputs(1, 256, 64), m).bytes_total
    rows.append((m, f"{asked / 1e3:.1f} kB"))
table(("queries a program", "asked for, 256 tokens"), rows)

# %% [markdown]
# So it is also wrong to say that FlashAttention does less: it does *more* arithmetic than the kernels apart, rescaling
# included. It moves less. And the products are still N × N. Now at sizes where it counts. Move the sliders, with the
# mouse or the arrow keys; time is the roofline's, of the data sheet's peaks: nobody is faster.
#
# 1. At which length does the unfused one no longer fit in an H100? And in an RTX 4090?
# 2. From which length on does the fused one's time grow with the square of the tokens? What did it wait for before?
# 3. Take one head only. Do the ratios change? And with heads of 256?
# 4. Make it causal. Which of the two gains, and what does the other one do?

# %%
from helpers.figures import AttentionLengthsExplorer

explorer = AttentionLengthsExplorer("H100", tokens=8192, heads=32, dim=128)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 32,768 tokens on, with 32 heads of 128; in an RTX 4090, with
# less than a third of the memory, from 16,384. 2. From 1,024: before that it waits for memory, and its time is linear;
# then tensor cores decide. 3. The ratios of memory and bytes are the same for any number of heads. Wider heads have
# fewer scores for each byte of q, k and v: the ratios fall. 4. The fused one computes half. Written out, a mask is one
# more trip of the matrix.</details>
#
# The chart is a model. Do its bytes agree with the meter's, at three points?

# %%
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
# And its times and its memory: what did a real GPU take? 16 heads of 128 on an H200, in bf16; `-` did not fit.

# %%
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
columns = ("tokens", "apart at least", "apart took", "fused at least", "fused took")
table((*columns, "apart holds", "fused holds"), rows, h200.label_of("attention_lengths"))

# %% [markdown]
# (The first line's memory apart is mostly cuBLAS's own workspace, made at its first call.) Memory is the model's. Times
# are above the roofline's, as all times are: of short sequences by far, as nothing there fills the GPU. On long ones, a
# part of what is missing is the rate that tensor cores hold under load, less than the data sheet's. The rest is what no
# single roof tells: products and exponentials that do not run at the same time. More of that below.
#
# ## What a causal mask lets you skip
#
# A causal mask hides half of the scores. `flash_kernel` with a mask would compute them and throw them away: whole tiles
# of nothing. A program whose queries end at 128 needs no key after 128, so its loop may stop there. And tiles that lie
# left of the diagonal need no mask at all. A step of the loop becomes a function, with the mask at choice, and the loop
# becomes two:


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
# (No row is without a key here: each sees itself, and the first tile holds a key that all rows see. With padding, the
# two lines from above must come back.) **At 512 tokens, in tiles of 64 x 64: which share of the tiles is not computed
# any more?**

# %%
skipped_share = predict_first("share of the tiles skipped, 512 tokens, tiles of 64 x 64", unit="%")
skipped_share


# %%
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
display(table(("", "right", "asks for"), rows))
a_tile = 2 * 64 * 64 * 2  # bytes of a tile of k and one of v
left_out = (walked["every tile"].bytes_total - walked["up to the diagonal"].bytes_total) / a_tile
skipped_share.compare(100 * left_out / (512 // 64) ** 2)

# %% [markdown]
# Not half: tiles on the diagonal are computed in full. **How many times faster does stopping at the diagonal make this
# kernel on an H200, at 4096 tokens, with heads of 64?**

# %%
skip_gain = predict_first("times faster, up to the diagonal, heads of 64, H200", unit="times")
skip_gain

# %%
steps = h200.experiment("attention_causal")
rows = []
for d, times in steps.items():
    for name, time in times.items():
        rows.append((d, name, f"{1e6 * time.median:.0f} us"))
display(table(("heads of", "walks over", "time"), rows, h200.label_of("attention_causal")))
computed = sum(2 * (program + 1) for program in range(32))  # tiles of 128 x 64, 32 programs a head
print(f"tiles: {32 * 64 / computed:.2f} times fewer, up to the diagonal")
every, stopping, _ = (time.median for time in steps[64].values())
skip_gain.compare(every / stopping)

# %% [markdown]
# The time shrinks less than the tiles do. What a program does once, to start, to fetch its queries and to store, is
# done as often as before; and programs now differ in length, so that the GPU is less evenly busy at the end. Leaving
# the mask out where it hides nothing, a comparison and a choice for each score, is worth about a tenth more.
#
# Now with tiles of your own. What is asked for, and what is computed in vain?
#
# 1. Walk up to the diagonal, in tiles of 64 x 64. How does the share in vain change from 128 tokens to 2,048?
# 2. At 2,048 tokens: 128 queries a program ask for less than 16 do. What do they cost?
# 3. Queries and keys: which of the two sizes decides how much is asked for, and why not the other?
# 4. How long is the last program's row of tiles, beside the first one's? In which order would you start them?

# %%
from helpers.figures import AttentionTilesExplorer

tiles = AttentionTilesExplorer(tokens=512, m=64, n=64)
tiles

# %% [markdown]
# <details><summary>What is to be found</summary>1. From a third to a few hundredths: the diagonal's tiles grow with the
# tokens, all others with their square. 2. Larger tiles on the diagonal, so more in vain; and fewer programs, which may
# leave SMs without work. 3. Queries: each program reads the keys it needs once, so fewer programs read them less often.
# How many keys are read at a time does not change how many are read. 4. As many tiles as there are rows of tiles,
# against one. The longest first: a long one started last would keep one SM busy while all others are done. The
# catalogue's kernel does it so.</details>
#
# ## What is it waiting for?
#
# Not for memory, as the explorer said. Then for the tensor cores? Between the two products each score passes through an
# **exponential**, and exponentials have units of their own, few of them (lesson 01 has the rates of both). For each
# score, a head of $d$ takes $4d$ operations on tensor cores and one exponential. **On an H200, with heads of 64: how
# long do the exponentials take, in per cent of the products' time?**

# %%
share_of_products = predict_first(
    "exponentials' time, of the products', heads of 64, H200", unit="%"
)
share_of_products

# %%
special = Roofline(DEVICES["H200"], "special functions")
for d in (64, 128):
    products, exponentials = 4 * d / roof.peak, 1 / special.peak
    took = f"products {1e15 * products:.0f} ns, exponentials {1e15 * exponentials:.0f} ns"
    print(f"heads of {d:3}, a million scores: {took}")
share_of_products.compare(100 * (1 / special.peak) / (4 * 64 / roof.peak))

# %% [markdown]
# **Look at the lit bar, and at the last one**: of what is on the chip, the units for exponentials are the slowest by
# far. (A score is made there, and never waits for memory.)

# %%
from helpers.figures import gpu_picture

gpu_picture("H200", lit="special function units")

# %% [markdown]
# Two roofs, nearly level, and a third far above. With heads of 64 exponentials cost as much as both products, with
# heads of 128 half of it. If tensor cores and special function units worked one after the other, that would be half of
# the time, or a third. Only if they work **at the same time** does it cost nothing.
#
# 1. On an H100: for which heads do exponentials take longer than products?
# 2. Products in fp8, as FlashAttention-3 has them: where is the balance now?
# 3. On a B200, with heads of 64 and 128. On an A100?
# 4. How short must the sequence be for memory to be the limit?

# %%
from helpers.figures import AttentionUnitsExplorer

units = AttentionUnitsExplorer("H100", dtype="fp16", dim=64, tokens=8192)
units

# %% [markdown]
# <details><summary>What is to be found</summary>1. For heads below 64. 2. Twice the rate of products: exponentials are
# the limit up to heads of 96, and nearly as long as the products at 128. 3. On a B200 they take nearly twice as long as
# the products at 64, and about as long at 128. On an A100 its slower tensor cores decide, with heads of 64 as well. 4.
# With heads of 64, 512 tokens on an H100; with 1,024 products are the limit already.</details>
#
# A roof is a model; take the exponentials away and see. A kernel that uses the score itself where `exp2` stood computes
# nonsense, as fast as if exponentials were free:
#
# **How many times faster is full attention without exponentials, heads of 64, H200?**

# %%
from benchmarks.experiments.lesson_01 import COUNTS

without = predict_first("times faster without exponentials, heads of 64, H200", unit="times")
without

# %%
taken_away = h200.experiment("attention_exponentials")
rows = []
for d, times in taken_away.items():
    rows.append((d, *(f"{1e6 * time.median:.0f} us" for time in times.values())))
display(table(("heads of", *times), rows, h200.label_of("attention_exponentials")))
without.compare(taken_away[64]["special function units"].median / taken_away[64]["left out"].median)

# %% [markdown]
# Less than the roofs say: most of them *were* hidden behind something else, with no one having arranged it. The warps
# of an SM do not step together, and while some wait for a product, others take exponentials. And a `polynomial` in
# place of all exponentials, of which more below, costs more than it saves here.
#
# How near can one come? At the rates that were *measured* on this GPU, products and exponentials take:

# %%
rates = h200.runs[h200.experiments["attention_exponentials"]["run"]]["ceilings"]
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
columns = ("heads of", "products", "exponentials", "in turn", "took, fused", "took, cuDNN")
table(columns, rows, h200.label_of("flash_attention", "roofs"))

# %% [markdown]
# (`fused` is the catalogue's kernel.) Ours takes less than the two in turn, and in that time it has done all the other
# arithmetic, too. With heads of 128, where its roles are written by hand, it overlaps as much as cuDNN's. Neither
# comes near to all at once, the longer of the two.
#
# One thing comes free of charge. A GPU has no `exp`, only powers of two: `tl.exp(x)` is `exp2` of `x` times
# $\log_2 e$. The score is multiplied by the scale anyway. Multiply it by the scale times $\log_2 e$, once, and take
# `exp2`: **how many multiplications fewer does the loop hold?** (All kernels of the catalogue do so.)


# %%
@triton.jit
def rescales_in_base_2(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp2(peak - higher)
    p = tl.exp2(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


# %%
q, k, v = random_inputs(1, 128, 64)
o, in_base_2 = torch.empty_like(q), 64**-0.5 * math.log2(math.e)
flash_kernel[(2, 1)](q, k, v, o, 128, in_base_2, TAKE_IN=rescales_in_base_2, D=64, M=64, N=64)
print(
    "right, with the logarithm in the scale:", torch.allclose(o.float(), exact(q, k, v), atol=1e-3)
)

# %% tags=["nbval-ignore-output"]
meta = torch.empty(16, 4096, 64, dtype=torch.float16, device="meta")
names, rows = ("FMUL", "FFMA", "MUFU", "HGMMA"), []
for take in (rescales, rescales_in_base_2):
    options = {"TAKE_IN": take, "D": 64, "M": 64, "N": 64}
    made = compile_for(flash_kernel, *[meta] * 4, 4096, 0.125, device="H200", **options)
    rows.append((take.fn.__name__, *(made.instructions[name] for name in names)))
table(("", *names), rows)

# %% [markdown]
# (`MUFU` is the special function units' instruction, `HGMMA` a product on Hopper's tensor cores; each `MUFU` stands for
# one result a thread, each `HGMMA` for a whole tile of a warp group.)
#
# ## FlashAttention 2, 3 and 4
#
# The first paper brought tiles, online softmax and recomputation. What has come since is the same arithmetic, better
# laid out. Each step can be seen here.
#
# **FlashAttention-2** (Dao, [arXiv:2307.08691](https://arxiv.org/abs/2307.08691)) parallelises over the queries of one
# head too, where the first had a program a head; it divides once at the end instead of in each tile, and splits the
# queries, not the keys, among warps, so that they need not exchange sums. Our kernel has all three. How many programs
# has one sequence with 16 heads for an H200's SMs?

# %%
sms = DEVICES["H200"].sms
for tokens in (1024, 8192):
    print(
        f"{tokens} tokens: {sms} SMs, {16} programs of a whole head, {16 * tokens // 64} programs "
        "of 64 queries"
    )

# %% [markdown]
# **FlashAttention-3** (Shah et al., [arXiv:2407.08608](https://arxiv.org/abs/2407.08608)) is made for Hopper, where
# loads and products run on their own while warps do something else. Some warps only load (TMA); two groups of others
# take turns, so that one computes exponentials while the other's products run; and there is a version in fp8. The
# catalogue has two kernels: the plain one, in which all warps do the same (`kernels/tiled/flash_attention.py`), and for
# heads of 65 to 256 on Hopper a tuned one with the first two of these ideas, in Gluon, Triton's lower level, where roles
# are written by hand (`kernels/tuned/hopper_attention.py`). The times by shape and by tokens below are the tuned
# kernel's; this lesson's other experiments with heads of 128 are of an earlier one, which left roles to the compiler.
# Roles show in the machine code: warps that load hand registers to those that compute, `USETMAXREG`. `UTMALDG` loads a
# tile.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE
from kernels.variants import tuned_kernels

shape = 1, 16, 4096, 128, False
op, (by_hand,) = CATALOGUE["flash_attention"], tuned_kernels()["flash_attention", "forward"]
both = {
    "plain": (op.kernel, *op.compile_arguments(*shape, dtype=torch.float16)),
    "tuned": by_hand.compile_arguments(*shape, dtype=torch.float16),
}
names, rows = ("UTMALDG", "USETMAXREG", "HGMMA", "MUFU"), []
for variant, (kernel, arguments, options) in both.items():
    made = compile_for(kernel, *arguments, device="H200", **options)
    rows.append((variant, *(made.instructions.get(name, 0) for name in names)))
table(("", *names), rows)

# %% [markdown]
# **FlashAttention-4** ([Together AI, 2026](https://www.together.ai/blog/flashattention-4)) is for Blackwell, where
# products became twice as fast and exponentials did not. So it takes a part of the exponentials off the special
# function units: $2^x$ is $2^{\lfloor x \rfloor}$, which is the exponent of a floating-point number, some bits to set,
# times $2$ to the rest, which a short polynomial gives with multiply-adds. Is a cubic good enough?


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


# %%
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
# Its error is less than a rounding to 16 bits, which is what becomes of p next. And FlashAttention-4 rescales less
# often: the running maximum need not be *the* maximum, a number near it will do, as any $c$ did in lesson 06. It moves
# only when the true one has grown by more than, say, 8 in base 2, and p never exceeds $2^8$. **Of the tiles after a
# row's first, how many make it rescale without that slack, and how many with it?** On random scores:


# %%
def rescalings(s, slack):
    """Times a tile that a row's maximum moves, after the first; s: (rows, tiles, keys), base 2."""
    peak, moves = s[:, 0].amax(-1), 0
    for each in s[:, 1:].amax(-1).T:
        moved = each > peak + slack
        peak, moves = torch.where(moved, each, peak), moves + moved.sum().item()
    return moves / (s.shape[0] * (s.shape[1] - 1))


random_scores = torch.randn(512, 64, 64, generator=torch.Generator().manual_seed(0)) * 1.4427
for slack in (0, 8):
    print(f"slack {slack}: rescaled in {rescalings(random_scores, slack):.1%} of the tiles")

# %% [markdown]
# Multiplying `acc` in *every* tile, as our kernel does, is work for nothing in nearly all of them. (A warp can leave it
# out only if none of its rows needs it, so what is saved is less than it looks.) There is more that only Blackwell has:
# sums that stay in a memory of the tensor cores, products that two SMs make together.
#
# ## What a compiler can do
#
# `torch.compile` fuses what is element by element, and leaves matrix products to a library. So does it have a chance
# here? It has a list of attention's *patterns*, and exchanges them for `scaled_dot_product_attention`, a fused kernel
# that somebody wrote by hand. The pass that does it can be run alone. **Does it know attention with a causal mask, as
# one would write it?**

# %%
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
    print(f"{name:6} exchanged for scaled_dot_product_attention: {known}")

# %% [markdown]
# Not in these words; others it may know. Somebody else's hand-written kernel is what makes the first one fast. **Claim:
# "attention becomes 2 to 3 times faster by compilation."** With 96 heads of 64, forward, in fp16, on an H200, compiled
# with and without those patterns:

# %%
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
# plain attention too modest, but not by the compiler's own work: it exchanged the kernel.** Without the patterns plain
# attention gains little: the products stay apart, and the matrix goes through memory all the same. (Why
# the causal one was slower with them, at 2048 tokens, was not looked into.)
#
# **FlexAttention** is a compiler's answer that knows what attention is. You write what a query sees, or what becomes of
# a score, as a small Python function, and `torch.compile` puts it into a FlashAttention kernel made from a template.
# From the function it also finds, beforehand, which tiles are empty. A window of 1024 tokens:

# %%
from torch.nn.attention.flex_attention import create_block_mask


def window(batch, head, query, key):
    return (query >= key) & (query - key < 1024)


block_mask = create_block_mask(window, None, None, 8192, 8192, device="cpu")
print(f"tiles skipped: {block_mask.sparsity():.0f}%")

# %% [markdown]
# No kernel of the catalogue has a window; here it is one line. What generality costs, beside PyTorch's other ways and
# ours, on an H200 in bf16 (TFLOP/s, a causal head counted half; the best product reaches as many as the last line
# says):

# %%
providers = ("eager", "torch.compile", "FlashAttention-2", "Flex", "cuDNN", "fused")
rows = []
for shape in op.gpu_shapes:
    times = h200.times("flash_attention", shape, "bfloat16")
    flops = op.work(shape, torch.bfloat16).flops
    reached = (f"{flops / times[name].median / 1e12:.0f}" for name in providers)
    rows.append((" x ".join(map(str, shape)), *reached))
display(table(("shape, causal", *providers), rows, f"{h200.label_of('flash_attention')}\nTFLOP/s"))
print(f"a matrix product: {rates['bf16_matrix_flops_per_second'] / 1e12:.0f} TFLOP/s")

# %% [markdown]
# cuDNN's and ours are level, and ours a little ahead where a mask is causal. `FlashAttention-2` is PyTorch's build of
# it, made for an A100: on Hopper it does not reach half of a product's rate, which is what the third version was for.
# Flex pays for its generality. And look at torch.compile in the full lines: whose time is it?
#
# Over the number of tokens in a sequence, 16384 in all (heads of 128 are drawn; the table has all):

# %%
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
display(sweep_chart(at_all_sizes, "flash_attention"), at_all_sizes.summary(["flash_attention"]))

# %% [markdown]
# Where sequences are short, a program meets few tiles of keys, and its first loads and last stores weigh most. So ours
# takes many tiles of queries one after another, and computes the next one's first scores while the last one's output is
# stored. Backward, with heads of 33 to 128 on Hopper, ours is one kernel of
# five products, in Gluon too, whose programs add to the queries' gradient in memory; with others it has two kernels, one
# for the queries' gradient and one for the keys', which both work out the scores: seven products.
#
# **Claim: "attention in three operations, fused: 3.33 times faster."** Its conditions are not told. Take the plainest:
# product, softmax, product, against one kernel, 96 heads of 64, fp16, on an H200. The scaling is done beforehand.

# %%
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
# **Verdict: too modest here, and no constant.** The gain grows with the tokens, as it must where one side is quadratic
# in bytes and the other is not. On shorter sequences, or on a GPU with other ratios, some length may give that number.
#
# **Claim: "FlashAttention: 2 to 4 times faster between 128 and 4K tokens."** So its first README says, of an A100:
# forward and backward pass together, batch 8, 12 heads of 64, against PyTorch written out; and it says "more with
# masking". The same on an H200, with PyTorch's FlashAttention-2 and with ours:

# %%
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
# PyTorch's kernel. (This is the GPU's time alone. With sequences so short, a call from Python takes longer than that.)
#
# ## What is kept for the backward pass
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** (Quoted without a source, as in lessons 04 and 06.)
# For its backward pass, attention written out keeps all probabilities. Fused, it keeps q, k, v, the output, and one
# number a row, the logarithm of its sum: from that and from q and k, probabilities are computed again, tile by tile.
# Attention is not all that a model keeps. So take a whole block of GPT-2's size (768 columns, 12 heads), in fp16, on
# tensors without data, and list what the forward pass saves.
# <!-- given 12 heads: GPT-2's configuration -->


# %%
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


# %%
from torch._subclasses.fake_tensor import FakeTensorMode


def kept(attention, tokens):
    """Bytes that a block's forward pass saves, its weights apart."""
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


# %%
rows = []
for tokens in (128, 256, 512, 1024, 2048, 4096):
    apart, fused = kept(in_one_line, tokens), kept(F.scaled_dot_product_attention, tokens)
    both = (f"{each / 1e6:.1f} MB" for each in (apart, fused))
    rows.append((tokens, *both, f"{1 - fused / apart:.0%} less"))
table(("tokens", "kept", "fused", ""), rows)

# %% [markdown]
# **Verdict: holds at some lengths, in such a block at 256 and 512 tokens, and is no law.** A share that
# grows with N cannot be one number: at 128 tokens it is less, at 4096 most of the memory is gone. Lesson 11 writes the
# backward pass that this needs.
#
# ## One token at a time
#
# A model that writes asks for one token after another. Its one new query sees all keys before it. They are kept, with
# the values, in the *KV cache*. The matrix of scores is now one row, and there is nothing left to keep out of memory.
# **What is the arithmetic intensity of such a step, in 16 bits: FLOP for each byte of k and v?**

# %%
intensity = predict_first("intensity of decoding one token, fp16", unit="FLOP/byte")
intensity

# %%
from helpers.instruments import Work


def one_token(keys, heads, key_heads, d=128):
    return Work(4 * d * keys * heads, 2 * 2 * d * keys * key_heads, 0)


print(f"ridge of an H200: {roof.ridge:.0f} FLOP/byte")
intensity.compare(one_token(65536, 32, 32).intensity)

# %% [markdown]
# That is why its roofline differs. Over a whole sequence each key that is fetched serves thousands of queries. Here it
# serves one, and memory is the limit by two orders of magnitude, whatever the units. Unless heads share it. With
# **grouped heads** several query heads have one head of keys and values: 32 query heads with 8 or with 1, say. The
# cache shrinks by the same factor:

# %%
from helpers.figures import Point, roofline_chart

sequence = Attention(DEVICES["H200"], 4096, 32, 128, causal=True).costs["fused"]
points = [Point("4096 tokens", sequence.work.intensity, sequence.performance)]
for key_heads in (32, 8, 1):
    work = one_token(65536, 32, key_heads)
    points.append(
        Point(
            f"one token, {32 // key_heads} to a key head",
            work.intensity,
            roof.attainable(work.intensity),
        )
    )
title = "A group's size is its intensity: one token waits for memory, whatever the kernel"
each = (f"{point.label} {point.intensity:.0f} FLOP/byte" for point in points)
text = f"{title}. On an H200: {'; '.join(each)}"
intensity.on(roofline_chart(roof, points, title, text), "x")

# %% [markdown]
# So a decoding kernel should read k and v once, at the speed of a copy, and all queries of a group with them. Our
# `flash_kernel` gives a program to each head and tile of queries: with one query, as many programs as there are heads,
# for all SMs. With eight key heads, eight. Each walks along 65,536 keys alone. What is missing is known from lesson 06:
# **split the row**. A part finds maximum, sum and numerator of its keys, and a second launch joins them:

# %%
import inspect

from benchmarks.experiments.lesson_10 import decode, join_kernel, part_kernel

print(inspect.getsource(part_kernel.fn))

# %%
print(inspect.getsource(join_kernel.fn))

# %% [markdown]
# The queries of a group are the rows of a tile. Tensor cores take 16 of them at a time, so most are padding; the
# tensor cores have time for that. Right, and how many bytes more?

# %%
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
# This is **Flash-Decoding**, and the way that FlashAttention's own library serves a KV cache. **How many times faster
# are 64 parts than one, with 8 key heads and 65,536 keys, on an H200?**

# %%
split_gain = predict_first("times faster, 64 parts, 8 key heads, 65,536 keys, H200", unit="times")
split_gain

# %%
decoding = h200.experiment("attention_decode")
ways, rows = list(decoding[65536][8]), []
for keys, by_heads in decoding.items():
    for key_heads, times in by_heads.items():
        least = 2 * 2 * 128 * keys * key_heads / rates["copy_bytes_per_second"]
        took = (f"{1e6 * times[way].median:.1f}" if way in times else "" for way in ways)
        rows.append((f"{keys:,}", key_heads, f"{1e6 * least:.1f}", *took))
title = (
    f"{h200.label_of('attention_decode')}\nus on the GPU, cold L2, by parts, and as others do it"
)
display(table(("keys", "key heads", "at a copy's speed", *ways), rows, title))
split_gain.compare(decoding[65536][8][1].median / decoding[65536][8][64].median)

# %% [markdown]
# With parts enough, a long cache is read near the speed of a copy, level with the libraries; one key head needs the
# most parts, and spends less than half of its time on bytes: two launches each start and end. One part for each
# of 8 heads leaves 124 of 132 SMs idle. And the bytes decide: with 8 key heads it takes a quarter of the time of 32, as
# there is a quarter of the cache. (Flex was called without a block mask; why it takes that long was not looked into.)
# All that is the GPU's time. From Python, call by call, two launches cost more than the shortest of them takes (lesson
# 02); servers decode in CUDA graphs.
#
# With a GPU at hand, see what your own kernels take:

# %% tags=["nbval-ignore-output"]
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

# %% [markdown]
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A colleague's FlashAttention passes a test with values of 1, and one with 64 tokens. What have the two tests in
#    common?
# <details><summary>Answer</summary>Neither sees a forgotten rescaling. With values of 1 any weights give 1, as long as
# `acc` and `total` are wrong alike; with one tile there is nothing to rescale.</details>
#
# 2. Why is a padding key hidden with minus infinity before the maximum, and not by a weight of 0 after the softmax?
# <details><summary>Answer</summary>After it, the hidden key has had its part in the sum, so the other weights no longer
# add up to 1; and it may have set the maximum.</details>
#
# 3. FlashAttention's memory is linear in N, its time is not. Why is it faster, then?
# <details><summary>Answer</summary>The products are N × N either way. What is gone are the trips of the matrix through
# memory, which took several times as long as the products.</details>
#
# 4. Doubling the keys a tile changes hardly any bytes, doubling the queries a program halves what is asked for. Why?
# <details><summary>Answer</summary>Each program reads all its keys once, in large or in small tiles. With more queries
# to each there are fewer programs, so keys are read by fewer.</details>
#
# 5. On which GPU would you look for exponentials first, and with which heads: an A100 with 128, or a B200 with 64?
# <details><summary>Answer</summary>The B200 with 64: its products became faster, its exponentials did not, and small
# heads have fewer products for each exponential.</details>
#
# 6. Somebody speeds up decoding with a kernel that computes exponentials twice as fast. What do you say?
# <details><summary>Answer</summary>Decoding waits for k and v from memory: one query a head, one FLOP a byte or a few.
# Fewer bytes help (grouped heads, a cache in fp8), and enough programs to read them at full speed.</details>
#
# 7. Two parts of a row were computed apart. The first has maximum 1, sum 4 and a numerator of 8; the second maximum 3,
#    sum 2 and a numerator of 10. What does attention return? Put your number in place of the dots.

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
# [Exercise 10](../exercises/10_attention_scores.ipynb) asks for scores, mask and softmax in one kernel;
# [exercise 10b](../exercises/10b_flash_attention.ipynb) for FlashAttention, with strides and a causal mask. The
# catalogue's kernels are in `kernels/tiled/`.
