# %% [markdown]
# # 12 Quantisation and experts: when the weights are the bytes
#
# Fusion removes trips to memory. It cannot remove the trip of the weights: each must come in once. But it can come in
# as one byte, or half of one, if the kernel makes a number of it again on the way to the tensor cores. **How much
# faster does that make a model, and how wrong?** Both depend on things that people rarely say: how many tokens there
# are, and what shares a scale.
#
# After this lesson you can
#
# - quantise rows inside the kernel that makes them, and name the three inputs on which such kernels fail;
# - say what a scale should cover, from the error of each choice against float64;
# - dequantise, multiply and quantise in one launch, and say when that pays;
# - predict from the number of tokens whether fewer bits make a layer faster, for one layer and for 256 experts;
# - say what FP8 tensor cores do to a long sum, and what is done against it;
# - read from compiled code whether a GPU multiplies MXFP4 or only stores it.
#
# About 60 minutes. It builds on [05](05_normalisation.ipynb) (norms) and [08](08_matmul_epilogues.ipynb) (products),
# and leads to [exercise 12](../exercises/12_layer_norm_int8.ipynb).

# %%
import inspect

import torch
import triton
import triton.language as tl

import kernels
from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# ## A code and a scale
#
# An int8 holds whole numbers from -128 to 127. To keep other numbers in it, take a **scale** $s$ and store
# $q = \text{round}(y / s)$, the *code*; $q \cdot s$ is what comes back. With the largest magnitude on 127,
#
# $$s = \max |y| / 127,$$
#
# the codes reach as far as the numbers do, and the error is half a step, $s/2$, at most. (-128 stays unused, so that
# $-q$ is always a code.)

# %%
row = torch.tensor([0.023, -1.304, 0.496, 2.54])
scale = row.abs().max() / 127
codes = (row / scale).round()
print(
    f"scale {scale:.3f}, codes {codes.int().tolist()}, back "
    f"{[round(x, 3) for x in (codes * scale).tolist()]}"
)

# %% [markdown]
# **A row of 4096 normal numbers in int8: how large is the error, in % of the numbers themselves?** (Root mean square
# of the one over that of the other.)

# %%
int8_error = predict_first("error of 4096 normal numbers in int8", unit="%")
int8_error


# %%
def rms(x):
    return x.square().mean().sqrt()


row = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
scale = row.abs().max() / 127
error = (row / scale).round() * scale - row
print(
    f"largest magnitude {row.abs().max():.2f}, a step {scale:.4f}; error "
    f"{100 * rms(error) / rms(row):.2f} %"
)
int8_error.compare(round((100 * rms(error) / rms(row)).item(), 2))

# %% [markdown]
# A step is the largest number over 127, and an error spread evenly over a step has $1/\sqrt{12}$ of it as its root mean
# square. So the error hangs on **how far the largest number stands out**. Keep that in mind.
#
# ## Quantise where the row is made
#
# A product in int8 wants int8 for its input. That input is most often a norm's result: the row is in registers, its
# largest magnitude is one more reduction, and one byte an element goes out. With RMSNorm, which is shorter:


# %%
@triton.jit
def norm_int8_kernel(
    x_ptr, weight_ptr, q_ptr, scale_ptr, cols, eps, clip, TO_INT8: tl.constexpr, BLOCK: tl.constexpr
):
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps) * weight
    scale = clip * tl.max(tl.abs(y), axis=0) / 127.0
    tl.store(scale_ptr + row, scale)
    tl.store(q_ptr + row * cols + col, TO_INT8(y, scale), mask=inside)


# %% [markdown]
# `clip` lets the codes reach to less than the largest: at 0.9 the few numbers above it are all held at 127, and the
# many others get finer steps. The last step comes as a function, because it is the one that goes wrong. The first is
# what one writes: add a half, cut off, keep within bounds.


# %%
@triton.jit
def careless(y, scale):
    q = (y / scale + tl.where(y < 0, -0.5, 0.5)).to(tl.int32).to(tl.int8)
    return tl.minimum(tl.maximum(q, -127), 127)


# %%
def norm_int8(x, weight, to_int8, clip=1.0):
    rows, cols = x.shape
    q, scale = torch.empty_like(x, dtype=torch.int8), torch.empty(rows, 1, device=x.device)
    block = triton.next_power_of_2(cols)
    norm_int8_kernel[(rows,)](x, weight, q, scale, cols, 1e-6, clip, TO_INT8=to_int8, BLOCK=block)
    return q, scale


def in_pytorch(x, weight, clip=1.0):
    y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
    scale = clip * y.abs().amax(-1, keepdim=True) / 127
    return (y / scale).round().clamp(-127, 127).to(torch.int8), scale


# %%
x, weight = torch.randn(8, 1000, device=device), torch.randn(1000, device=device)


def furthest(found, expected):
    return (found[0].int() - expected[0].int()).abs().max().item()


print(
    "codes within one of PyTorch's:",
    furthest(norm_int8(x, weight, careless), in_pytorch(x, weight)) <= 1,
)

# %% [markdown]
# It passes: with random numbers it nearly always would. **Now `clip` is 0.5. What does `careless` make of a number
# whose code should be held at 127, if $y/s$ is 200?**

# %%
of_200 = predict_first("the int8 that becomes of 200.0", unit="")
of_200


# %%
@triton.jit
def codes_kernel(y_ptr, q_ptr, TO_INT8: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(q_ptr + at, TO_INT8(tl.load(y_ptr + at), 1.0))


# %%
def codes_of(numbers, to_int8):
    y = torch.tensor(numbers, device=device)
    q = torch.empty_like(y, dtype=torch.int8)
    codes_kernel[(1,)](y, q, TO_INT8=to_int8, BLOCK=len(numbers))
    return q.tolist()


HARD = [200.0, -200.0, 127.4, 0.5, 1.5, 2.5, 3.5, -0.5]
print("numbers ", HARD)
print("careless", codes_of(HARD, careless))
off = furthest(norm_int8(x, weight, careless, 0.5), in_pytorch(x, weight, 0.5))
print(f"clip 0.5: off by up to {off} codes")
of_200.compare(codes_of(HARD, careless)[0])

# %% [markdown]
# An integer that becomes an int8 keeps its **low byte**, and the clamp comes too late to see it. The largest numbers of
# a row turn into wrong ones of the other sign. (From a float to int8 in one step it is worse: what an int8 cannot hold
# then has no defined result, as in C++, and a GPU's compiler may give another than this machine.) **Clamp while it is a
# float.**
#
# The second fault is in the halves: 0.5 became 1 and 1.5 became 2, away from zero each time. **On average over the
# halves from 0.5 to 99.5, how far off is that, and how far off if they go to the *even* neighbour?**

# %%
halves = torch.arange(100, dtype=torch.float64) + 0.5
print(
    f"away from zero: {((halves + 0.5).floor() - halves).mean():+.2f}; to even: "
    f"{(halves.round() - halves).mean():+.2f}"
)

# %% [markdown]
# Half a step outwards each time, against nothing: magnitudes grow. Exact halves are rare in a norm's results, and the
# right way costs nothing more. PyTorch rounds to even; so does a float's own addition, and that is the trick: at
# $1.5 \cdot 2^{23}$ an fp32 has no digits below 1, so *adding* it rounds.


# %%
@triton.jit
def careful(y, scale):
    q = y / scale + 12582912.0 - 12582912.0
    q = tl.where(q > 127.0, 127.0, q)
    return tl.where(q < -127.0, -127.0, q).to(tl.int8)


print("careful ", codes_of(HARD, careful))
off = furthest(norm_int8(x, weight, careful, 0.5), in_pytorch(x, weight, 0.5))
print("clip 0.5: codes within one of PyTorch's:", off <= 1)

# %% [markdown]
# The third input is a row of zeros: a padding token has one. **What are its scale and its codes?**

# %%
zeros = torch.zeros(1, 1000, device=device)
zero_q, zero_scale = norm_int8(zeros, weight, careful)
print(
    f"ours: scale {zero_scale.item()}, codes {zero_q.unique().tolist()}; 0 / 0 = "
    f"{(torch.zeros(1) / 0).item()}"
)
zero_q, zero_scale = kernels.layer_norm_int8(zeros, weight, torch.zeros_like(weight))
print(f"the catalogue's: scale above 0: {zero_scale.item() > 0}, codes {zero_q.unique().tolist()}")

# %% [markdown]
# Ours divides 0 by 0. The conversion happens to make 0 of NaN, so the codes look right, and the NaN shows up wherever
# somebody divides by the scale. The catalogue's kernel lets no scale fall below a tiny number. And a row that *holds*
# NaN? `tl.max` and `tl.maximum` drop NaN, so such a row can come out with a harmless scale. It should not: exercise 12
# asks for that.
#
# ## What it saves
#
# LayerNorm and int8, `kernels.layer_norm_int8`, beside the same in PyTorch. **How many times fewer bytes, in fp32?**

# %%
norm_bytes = predict_first("times fewer bytes, LayerNorm and int8 fused, fp32", unit="times")
norm_bytes

# %%
wide, gain, shift = torch.randn(16, 4096, device=device), *torch.randn(2, 4096, device=device)
op = kernels.CATALOGUE["layer_norm_int8"]
written_out, fused = (measure(function, wide, gain, shift) for function in (op.reference, op.fused))
print(
    f"written out: {written_out.launches} launches, {written_out.bytes_total / wide.numel():.1f} "
    "B/element"
)
print(
    f"fused:       {fused.launches} launch, {fused.unique_total / wide.numel():.1f} B/element "
    "(weight, bias: once)"
)
norm_bytes.compare(written_out.bytes_total / fused.unique_total)

# %% [markdown]
# Nobody in earnest writes it out so. The claim that circulates compares with *two* kernels:
#
# **Claim: "LayerNorm + quantisation, fused, is 2.5 to 3 times faster than separate kernels."**
#
# In 16 bits, LayerNorm reads and writes two bytes an element, the quantising kernel reads two and writes one: seven.
# Fused, two come in and one goes out. On an H200, 32,768 rows in bf16, a norm of PyTorch's or of ours and then int8 in
# a kernel of its own (`benchmarks/experiments/lesson_12.py`). **How many times faster is one kernel than PyTorch's norm and then
# int8, at 4096 columns?**
# <!-- given 16 bits: bf16 -->

# %%
norm_gain = predict_first("times faster than two kernels, H200, 32768 x 4096", unit="times")
norm_gain

# %%
separate, rows = h200.experiment("quantised_layer_norm"), []
for cols, ways in separate.items():
    one, taken = ways["one kernel"].median, [time.median for time in ways.values()]
    rows.append((cols, *(f"{1e6 * each:.0f} us, {each / one:.2f}x" for each in taken)))
display(table(("columns", *ways), rows, h200.label_of("quantised_layer_norm")))
times = separate[4096]
two = times["PyTorch's LayerNorm, then int8"].median
norm_gain.compare(two / times["one kernel"].median)

# %%
from helpers.figures import timing_chart

chart, one_row = (
    timing_chart(times, f"{h200.label_of('quantised_layer_norm')}, bf16"),
    list(times).index("one kernel"),
)
in_us = lambda seconds: f"{1e6 * seconds:.0f} µs"
norm_gain.on(chart, "x", lambda gain: two / gain, row=one_row, says=in_us)

# %%
h200.table("layer_norm_int8", "bfloat16")

# %% [markdown]
# **Verdict: fair, against PyTorch's norm; the bytes say 7 to 3.** Beside PyTorch's LayerNorm and a good kernel for int8
# it is about what is claimed, and more on narrow rows, where that norm is slow. Beside the catalogue's norm it is what
# the bytes promise, less a little. Written operator by operator it is about fifteen times, where the work is not
# short; and `torch.compile`, left to itself, comes near on narrow rows. **Ask of such a number what the other side
# was.**

# %% [markdown]
# ## What shares a scale
#
# A scale a row was a choice. One for the whole tensor would be less to store; one for every 128 numbers of a row, more.
# And int8 is one grid of 256 numbers; **FP8** is another. `e4m3`, with 4 bits of exponent and 3 of mantissa, has steps
# that grow with the number, like any float:
# <!-- given 4 bits, 3 bits: the name e4m3, Micikevicius et al., arXiv:2209.05433 -->

# %%
rows = []
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
    kind = torch.finfo(dtype)
    rows.append((dtype, f"{kind.max:.3g}", f"{kind.tiny:.2g}", f"{1 + kind.eps:g}"))
display(table(("", "largest", "smallest normal", "next after 1"), rows))
numbers = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
print(
    f"e4m3: {100 * (numbers < 4.48).float().mean():.0f} % of its numbers are below a hundredth of "
    "the largest"
)

# %% [markdown]
# We try them on a product of rows `x` and weights, both rounded, and compare with float64. Only the rounding counts,
# for the sums are float64 too. `size` numbers side by side share a scale, which puts the largest of them on the grid's
# largest.


# %%
def to_grid(x, size, grid, largest):
    """x with each of its numbers on a grid times the scale of its group of `size`."""
    groups = x.reshape(-1, size)
    scale = groups.abs().amax(-1, keepdim=True) / largest
    return (grid(groups / scale) * scale).reshape(x.shape)


def e4m3(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


GRIDS = {"int8": (torch.round, 127), "e4m3": (e4m3, 448)}
SHARED = {"the tensor": None, "a row": 1024, "128 of a row": 128}

# %%
draw = torch.Generator().manual_seed(0)
plain_x, w = (torch.randn(rows, 1024, generator=draw, dtype=torch.float64) for rows in (64, 256))
outlier_x = plain_x.clone()
outlier_x[:, 7] *= 100


def product_error(x, rounded_x, rounded_w):
    return 100 * rms(rounded_x @ rounded_w.T - x @ w.T) / rms(x @ w.T)


# %% [markdown]
# In a language model's activations a few *columns* are far larger than the rest, for every token (Dettmers et al.,
# arXiv:2208.07339). `outlier_x` has one, a hundred times as large. **Int8 with a scale a row: what share of `outlier_x`
# is rounded to zero?**

# %%
zeroed = predict_first(
    "of x is rounded to 0, int8, a scale a row, one column 100 times as large", unit="%"
)
zeroed


# %%
def tried(x, size, grid):
    rounded_x, rounded_w = (to_grid(each, size or each.numel(), *grid) for each in (x, w))
    zeros = 100 * (rounded_x == 0).double().mean()
    return f"{product_error(x, rounded_x, rounded_w):.1f} %", f"{zeros:.0f} %"


rows = []
for name, grid in GRIDS.items():
    for what, size in SHARED.items():
        found = (*tried(plain_x, size, grid), *tried(outlier_x, size, grid))
        rows.append((f"{name}, a scale for {what}", *found))
columns = ("", "normal", "zeros", "with an outlier column", "zeros")
display(table(columns, rows))
rounded = to_grid(outlier_x, 1024, *GRIDS["int8"])
zeroed.compare(round(100 * (rounded == 0).double().mean().item()))

# %% [markdown]
# Three things to see:
#
# - **Of normal numbers int8 is the better byte**, with a scale a row by more than three times: its 255 codes are evenly
#   spaced, and FP8 spends more than half of its own on numbers that are hardly there.
# - **An outlier column spoils int8 and leaves FP8 alone.** A float's error is in proportion to each number, whatever
#   its neighbours are. (With a scale a row it even falls: the outlier, now most of the result, is on the grid
#   exactly.)
# - **A scale a row helps only in part against a column**: each row has the outlier in it. A scale for 128 numbers does
#   better: the outlier spoils those 128 and no other. Another way is to divide such columns by a factor and multiply
#   the weights' by it beforehand (SmoothQuant, arXiv:2211.10438). And blocks help FP8, too, once an outlier is so large
#   that the rest falls off FP8's lower end: DeepSeek-V3 was trained with them (arXiv:2412.19437).
#
# So is a scale a block always better? It has a price: where it stands in the product.
#
# $$\sum_k x_k s_x \cdot w_k s_w = s_x s_w \sum_k x_k w_k \qquad \text{but} \qquad
# \sum_b s_{x,b}\, s_{w,b} \sum_{k \in b} x_k w_k$$
#
# A scale a row (of `x`) and a row of weights comes off the sum: one multiplication an output, in the epilogue, free. A
# scale a block must be applied inside the walk along K, to every partial sum. We will see what that costs.
#
# ## Dequantise, multiply, quantise
#
# Int8 weights need no int8 activations. Keep `x` in bf16, load the weights as bytes, make them bf16 **in registers**,
# multiply; the scale comes off in the epilogue, and there the result is quantised for the next layer. Written as three
# kernels, each weight goes to memory and back: one byte in, two out, two in again. **With one token and a large layer,
# how many times fewer bytes does the one kernel move?**

# %%
weight_bytes = predict_first(
    "times fewer bytes, dequantise + matmul + quantise, one token", unit="times"
)
weight_bytes

# %%
from benchmarks.experiments.lesson_12 import (
    expert_inputs,
    experts_kernel,
    fused_experts,
    separate_experts,
)

source = inspect.getsource(experts_kernel.fn).splitlines()
first = next(number for number, line in enumerate(source) if "tl.zeros" in line)
print("\n".join(source[first:]))

# %% [markdown]
# - `in_units` makes a 16-bit float of each byte without a conversion instruction, exactly; the factor that it leaves is
#   taken off with the scale.
# - `to_int8` is your `careful` and the scale. It takes **one scale for each token and 128 outputs**, not one a token.
#   Why not a row, as before?
# <!-- given 16 bits: bf16 and fp16 -->
#
# <details><summary>Answer</summary>A tile holds 128 of a token's outputs; the others are in other programs. The largest
# of the row is known when all are done: lesson 08's norm after a matmul, again. A scale a block asks nobody. (The
# product that follows then has to take it so.)</details>

# %%
inputs = [each.to(device) for each in expert_inputs(1, (1, 512, 1024), dtype=torch.float16)]
print("codes within one:", furthest(fused_experts(*inputs), separate_experts(*inputs)) <= 1)
three, one = (measure(function, *inputs) for function in (separate_experts, fused_experts))
by_hand = 3 * inputs[1].numel() + 2 * inputs[1].numel()  # 1 in, 2 out; 2 in
print(f"PyTorch, operator by operator: {three.launches} launches, {three.bytes_total / 1e6:.2f} MB")
print(
    f"three kernels, weights alone: {by_hand / 1e6:.2f} MB; one kernel: "
    f"{one.unique_total / 1e6:.2f} MB"
)
weight_bytes.compare(by_hand / inputs[1].numel())

# %% [markdown]
# **Claim: "in a mixture of experts, dequantise + matmul + quantise fused is 3 to 4 times faster."** A *mixture of
# experts* has many such layers and sends each token to a few of them. Here are 64 experts of 2048 x 768, in bf16 on an
# H200, with equally many tokens for each. `eager` is PyTorch operator by operator; `torch.compile` makes three kernels:
# dequantise, cuBLAS's product, quantise. **How many times faster than these three is one, with 8 tokens an expert?**

# %%
moe_gain = predict_first(
    "times faster than three kernels, 64 experts, 8 tokens each, H200", unit="times"
)
moe_gain

# %%
of_experts = h200.experiment("quantised_experts")
weights = 64 * 768 * 2048  # bytes, in int8
rows, slower = [], ("torch.compile", "eager")
for tokens, ways in of_experts.items():
    gains = (f"{ways[name].median / ways['fused'].median:.1f} times" for name in slower)
    rows.append((tokens, *(f"{1e6 * time.median:.0f} us" for time in ways.values()), *gains))
columns = ("tokens an expert", *ways, *(f"of {name}" for name in slower))
display(table(columns, rows, h200.label_of("quantised_experts")))
rates = [
    share * weights / of_experts[1][name].median
    for name, share in (("torch.compile", 5), ("fused", 1))
]
print(
    "one token: weights come and go at", " and ".join(f"{rate / 1e12:.1f} TB/s" for rate in rates)
)
moe_gain.compare(of_experts[8]["torch.compile"].median / of_experts[8]["fused"].median)

# %%
from helpers.figures import curves_chart

gains = {
    name: {n: ways[name].median / ways["fused"].median for n, ways in of_experts.items()}
    for name in slower
}
even = {"as fast": dict.fromkeys(of_experts, 1)}
axes = {"x": "tokens an expert", "y": "times as long as one kernel takes"}
title = "One kernel wins with few tokens, and loses with many"
moe_gain.on(curves_chart(gains, title, **axes, log=True, limit=even), "y")

# %% [markdown]
# **Verdict: holds for few tokens, and turns round for many.** The three kernels move five times as many bytes; one
# kernel gains less than that, for theirs come nearer to the memory's rate. Up to 64 tokens for each expert the claim is
# right. From there on arithmetic counts, and the fused kernel unpacks each weight *again for every tile of tokens*,
# while the three unpack it once. With 1024 tokens an expert they win: fuse this for decoding, and not for long prompts.

# %% [markdown]
# ## Whose bytes?
#
# A linear layer reads its weights once, whatever comes; rows of tokens come and go. With $T$ tokens the weights are
# $n \cdot m$ numbers and the rows $T(n + m)$; the FLOPs are $2Tnm$. Few tokens: all bytes are weights, the intensity is
# about $T$ FLOP a byte in bf16, two hundred times below the ridge at $T = 1$. That is *decoding*, one token at a time
# for each user. Experts make it worse: 64 tokens that take 8 of 64 experts each are *eight an expert*, and nearly all
# 64 are read.
# Find out:
#
# 1. One expert (a dense layer). From how many tokens on do int8 weights gain nothing any more? What still gains?
# 2. 64 experts, of which a token takes 8. Where is that point now, and why?
# 3. 256 experts: how many of them do 8 tokens read? How many do 128?
# 4. At 8192 tokens and 256 experts, what does FP8 gain that int8 weights do not?

# %%
from helpers.figures import ExpertLayer, ExpertWeightsExplorer

explorer = ExpertWeightsExplorer(tokens=16, experts=64, top_k=8, size="2048 x 768", device="H200")
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 512 on. FP8 on both sides is still twice as fast: it multiplies
# faster, too. 2. From 2048: an expert sees an eighth of the tokens, so its weights rule for longer. 3. 8 tokens read 57
# of them, though they could read 64; 128 tokens 252, nearly all. 4. All is arithmetic there. FP8 tensor cores have
# twice the rate; int8 weights are multiplied in bf16.</details>
#
# How many experts are read is a matter of chance: a token misses one with the chance $1 - k/E$, all $T$ miss it with
# $(1 - k/E)^T$. Is that so with a router's own choices, if they are even?

# %%
draw = torch.Generator().manual_seed(0)
rows = []
for tokens in (1, 8, 32, 128):
    logits = torch.randn(200, tokens, 64, generator=draw)
    read = logits.topk(8, dim=-1).indices.flatten(1)
    drawn = sum(len(each.unique()) for each in read) / 200
    formula = ExpertLayer(64, 8, 1, 1).touched(tokens)
    rows.append((tokens, f"{drawn:.1f}", f"{formula:.1f}"))
table(("tokens", "of 64 experts, mean of 200 draws", "by the formula"), rows)

# %% [markdown]
# A real router is not quite even; then fewer are read. Now hold the model against the clock. The explorer's time is the
# data sheet's, so it is a *lower bound*. On an H200, `kernels.moe_int8`, which takes int8 weights and bf16 tokens:

# %%
from helpers.figures.matmul.expert_weights import FORMATS, counted, seconds
from helpers.instruments import DEVICES

layer = ExpertLayer(64, 8, 2048, 768)
rows = []
for tokens in (1, 8, 64, 512, 8192):
    kept = FORMATS["int8 weights"]
    least = max(seconds(layer.work(tokens, kept), kept, DEVICES["H200"]))
    found = h200.times("moe_int8", (tokens, 2048, 768, 64), "bfloat16")
    ours, theirs = (1e6 * found[name].median for name in ("fused", "grouped_mm"))
    shown = (f"{1e6 * least:.1f} us", f"{ours:.1f} us", f"{theirs:.0f} us")
    rows.append((tokens, f"{layer.touched(tokens):.0f}", *shown))
others = "PyTorch's grouped matmul, dequantised before"
columns = ("tokens", "experts read", "least time", "recorded", others)
table(columns, rows, f"{h200.label_of('moe_int8')}\nthe GPU's own time, cold L2")

# %% [markdown]
# From 8 to 64 tokens the time hardly moves, though there is eight times as much to compute: arithmetic is not what it
# waits for. (Nor are the weights all of it: their least time is about half.) More tokens come along nearly free, and
# that is why a server waits to fill a batch.
#
# ## Experts, grouped
#
# One token's 8 experts are one small kernel's work; 8192 tokens make 64 matrix products of different heights, which
# nobody knows before the router has chosen. One launch for each would mean 64 of them, and a trip to the host to ask
# how high they are. The **grouped matmul** (`kernels/tiled/moe_int8.py`) is one launch for all: its grid is for the
# worst case, each program counts through the experts' tiles until it finds its own, and what is left over ends at once:

# %%
from kernels.tiled.moe_int8 import moe_int8_kernel

source = inspect.getsource(moe_int8_kernel.fn).splitlines()
first, last = (
    next(n for n, line in enumerate(source) if text in line) for text in ("tiles_out =", "entry = ")
)
print("\n".join(source[first : last + 1]))

# %% [markdown]
# A tile has room for 32 tokens or more, and an expert's last tile is rarely full. **128 tokens, 8 of 64 experts each:
# what share of the tiles' rows holds no token?** Tiles of 32.

# %%
padding = predict_first(
    "of the rows of tiles hold no token, 128 tokens, 64 experts, tiles of 32", unit="%"
)
padding

# %%
draw = torch.Generator().manual_seed(0)
found = []
for tokens in (128, 512, 8192):
    chosen = torch.randn(tokens, 64, generator=draw).topk(8, dim=-1).indices
    count = torch.bincount(chosen.flatten(), minlength=64)
    rows = 32 * ((count + 31) // 32).sum().item()
    empty = 100 * (1 - tokens * 8 / rows)
    found.append((tokens, f"{count.min()} to {count.max()}", f"{empty:.0f} %"))
    if tokens == 128:
        padding.compare(round(empty))
table(("tokens", "an expert", "of the tiles' rows are empty"), found)

# %% [markdown]
# With few tokens half of the arithmetic is for nobody, **and it hardly matters**, for arithmetic is not what is short
# there. With many it would matter, and there tiles may grow, for their share of padding falls. So the catalogue chooses
# tiles by the mean number of tokens an expert has. For up to 8 tokens and for up to 64 it has kernels of their own: a
# launch that lists each expert's tokens would be a good part of so short a time.
#
# ## Formats, on the clock
#
# One large dense layer: from 8192 to 28,672 numbers, as in Llama 3 with 70 billion parameters. `int8 weights` is the
# kernel from above without its last step, `mxfp4 weights` a kernel that we come to; `int8` and `fp8` have both sides in
# a byte and go through PyTorch to NVIDIA's libraries. **With 16 tokens, how many times faster than bf16 are int8
# weights?**

# %%
format_gain = predict_first(
    "times faster than bf16, int8 weights, 16 tokens, 28672 x 8192, H200", unit="times"
)
format_gain

# %%
formats = h200.experiment("quantised_formats")
large = ExpertLayer(1, 1, 8192, 28672)
kept_as = {
    "int8": "FP8 both",
    "fp8": "FP8 both",
    "mxfp4 weights": "MXFP4 weights",
}  # int8 at FP8's rate
rows = []
for tokens, ways in formats.items():
    for name, time in ways.items():
        kept = FORMATS[kept_as.get(name.split(",")[0], name)]
        least = max(seconds(large.work(tokens, kept), kept, DEVICES["H200"]))
        gain = ways["bf16"].median / time.median
        shown = (f"{1e6 * each:.0f} us" for each in (time.median, least))
        rows.append((counted(tokens), name, *shown, f"{gain:.2f} times"))
columns = ("", "", "time", "at least", "bf16's speed")
display(table(columns, rows, h200.label_of("quantised_formats")))
format_gain.compare(formats[16]["bf16"].median / formats[16]["int8 weights"].median)

# %%
shown = {"fp8": "fp8, a scale a tensor"} | {
    name: name for name in ("int8 weights", "mxfp4 weights")
}
gains = {
    name: {tokens: ways["bf16"].median / ways[key].median for tokens, ways in formats.items()}
    for name, key in shown.items()
}
even = {"bf16": dict.fromkeys(formats, 1)}
axes = {"x": "tokens", "y": "times as fast as bf16"}
title = "FP8 keeps its promise with any number of tokens, int8 weights with few"
format_gain.on(curves_chart(gains, title, **axes, log=True, limit=even), "y")

# %% [markdown]
# - **FP8 keeps what the data sheet promises**, about twice the speed, with one token as with 8192: fewer bytes at the
#   one end, faster products at the other. A scale a row costs some of it where there are few tokens.
# - **Int8 weights gain only where there are few tokens, and less than the bytes say**: our kernel unpacks, and does not
#   keep the memory as busy as bf16's does. With many tokens it loses, as among the experts.
# - **MXFP4 has a quarter of the bytes and is slower than bf16 throughout.** Why, we will see in the code.
# - `int8` on both sides should be as fast as FP8; the library's product for it is not, here (and PyTorch's way to it
#   refuses so few tokens as 16).
#
# Fewer bytes are an *offer*. What becomes of it is a matter of the kernel, and of what the hardware multiplies.

# %% [markdown]
# ## FP8's sums
#
# A product in fp16 adds in fp32, and the course has relied on that since lesson 08. Hopper's tensor cores add FP8 with
# fewer bits than fp32 has. The sum leaves them for fp32 registers only when the kernel says so. Our kernel
# (`fp8_kernel`) has three ways: all of the sum in the tensor cores; out to fp32 after each 128 terms; and a scale a
# block, which must leave them every 128 terms anyway:

# %%
from benchmarks.experiments.lesson_12 import FP8_WAYS, fp8_kernel

source = inspect.getsource(fp8_kernel.fn).splitlines()
first, last = (
    next(n for n, line in enumerate(source) if text in line)
    for text in ("for start", "max_num_imprecise")
)
print("\n".join(source[first : last + 1]))


# %%
def on_paper(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


code = on_paper(8192, 8192, dtype=torch.float8_e4m3fn)
arguments = (
    code,
    code,
    on_paper(8192, 64),
    on_paper(64, 64),
    on_paper(8192, 8192, dtype=torch.bfloat16),
)
names, rows = ("QGMMA", "FADD", "FFMA"), []
for way, (per_block, in_tensor_cores) in FP8_WAYS.items():
    options = {"PER_BLOCK": per_block, "IN_TENSOR_CORES": in_tensor_cores, "BLOCK_ROWS": 128}
    sizes = (8192, 8192, 8192)
    found = compile_for(fp8_kernel, *arguments, *sizes, device="H200", num_warps=8, **options)
    rows.append((way, *(found.instructions[name] for name in names)))
table(("", *names), rows)

# %% [markdown]
# `QGMMA` is Hopper's FP8 product. In fp32 there is an addition a thread for each of its 64 outputs, `FADD`, every 128
# terms; the scales of blocks make it a multiply-add, `FFMA`: as many instructions. **How wrong is a sum of 8192 terms
# of one sign that stays in the tensor cores, and how wrong one that leaves them?** In units of the result, against
# float64 of the same e4m3 numbers.

# %%
fp8_error = predict_first(
    "error of a sum of 8192 positive products in the tensor cores, H200", unit="%"
)
fp8_error

# %%
sums = h200.experiment("quantised_fp8_sums")
rows = []
for terms, ways in sums.items():
    for name, error in ways.items():
        both = (f"{100 * error[kind]:.4f} %" for kind in ("both signs", "positive"))
        rows.append((f"{terms} terms", name, *both))
title = f"{h200.label_of('quantised_fp8_sums')}\nerror of sums"
display(table(("", "", "with both signs", "of positive numbers"), rows, title))
fp8_error.compare(100 * sums[8192]["Triton, a scale a row"]["positive"])

# %%
ways_shown = {
    "in the tensor cores": "Triton, a scale a row",
    "cuBLAS, fast sums": "cuBLAS, fast sums",
    "out every 128 terms": "Triton, a scale a row, sums in fp32",
}
growing = {
    name: {terms: 100 * ways[key]["positive"] for terms, ways in sums.items()}
    for name, key in ways_shown.items()
}
axes = {"x": "terms of the sum", "y": "error of sums of positive numbers (%)"}
title = "Out of the tensor cores every 128 terms, a sum's error does not grow"
fp8_error.on(curves_chart(growing, title, **axes, log=True), "y")

# %%
rows = []
for name, time in h200.experiment("quantised_fp8_times").items():
    rate = f"{2 * 8192**3 / time.median / 1e12:.0f} TFLOP/s"
    rows.append((name, f"{1e3 * time.median:.2f} ms", rate))
table(("", "time", "rate"), rows, h200.label_of("quantised_fp8_times"))

# %% [markdown]
# A sum that stays in the tensor cores keeps too few bits. With numbers of one sign, a part of each new product falls
# off the end of the growing sum, and the longer the sum, the more. Of both signs it is far less; beside what rounding
# to e4m3 has cost before, it hardly counts there. Out to fp32 every 128 terms, the error no longer grows. cuBLAS does
# so unless it is told `use_fast_accum=True`. (Its fast sums of 8192 terms and more lose less than ours.)
#
# And the price? In our kernel it is more than half as much time again, for the additions wait for the product and the
# next product for them; FP8 then gains next to nothing on bf16, and with blocks it loses. cuBLAS pays a few per cent,
# so most of it can be hidden. A scale a block costs hardly more than the additions do: **once the sum leaves, scales
# are nearly free.** That was DeepSeek-V3's bargain.

# %% [markdown]
# ## Four bits and a shared power of two
#
# The Open Compute Project's **microscaling** formats fix the block at 32 numbers and make its scale a power of two, in
# a byte of its own (`e8m0`: nothing but an exponent). **MXFP8** keeps e4m3 numbers so, **MXFP4** numbers of 4 bits: a
# sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 (`e2m1`). A power of two cannot put a block's largest number on the grid's
# largest exactly: it goes by the exponent alone, and what then lies beyond is held at the largest.
# <!-- given 4 bits: OCP Microscaling Formats (MX) Specification 1.0 -->

# %%
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def e2m1(x):
    nearest = (x.abs()[..., None] - E2M1).abs().argmin(-1)
    return E2M1[nearest] * x.sign()


def microscaled(x, grid, largest):
    groups = x.reshape(-1, 32)
    exponent = groups.abs().amax(-1, keepdim=True).log2().floor() - int(
        torch.tensor(largest).log2()
    )
    return (grid((groups / 2**exponent).clamp(-largest, largest)) * 2**exponent).reshape(x.shape)


# %% [markdown]
# **How many bits does a number take in MXFP4, its share of the scale included, and how large is the error of a product
# whose *weights* are MXFP4?**

# %%
mx_error = predict_first("error of a product with MXFP4 weights, normal numbers", unit="%")
mx_error

# %%
formats_of = {
    "bf16": (16, lambda x: x.bfloat16().double()),
    "int8, a scale a row": (8 + 32 / 1024, lambda x: to_grid(x, 1024, torch.round, 127)),
    "int8, a scale for 128": (8 + 32 / 128, lambda x: to_grid(x, 128, torch.round, 127)),
    "e4m3, a scale a row": (8 + 32 / 1024, lambda x: to_grid(x, 1024, e4m3, 448)),
    "e4m3, a scale for 128": (8 + 32 / 128, lambda x: to_grid(x, 128, e4m3, 448)),
    "MXFP8": (8 + 8 / 32, lambda x: microscaled(x, e4m3, 448.0)),
    "MXFP4": (4 + 8 / 32, lambda x: microscaled(x, e2m1, 6.0)),
    "4 bits, a scale for 32": (4 + 16 / 32, lambda x: to_grid(x, 32, torch.round, 7)),
}
# %%
rows = []
for name, (bits, rounded) in formats_of.items():
    alone = product_error(plain_x, plain_x, rounded(w))
    both = [product_error(x, rounded(x), rounded(w)) for x in (plain_x, outlier_x)]
    rows.append((name, f"{bits:.2f}", *(f"{each:.2f} %" for each in (alone, *both))))
columns = ("", "bits", "weights alone", "both", "both, with an outlier column in x")
display(table(columns, rows))
mx_error.compare(round(product_error(plain_x, plain_x, microscaled(w, e2m1, 6.0)).item(), 1))

# %% [markdown]
# Every error is against float64, and each is what the *rounding* does: no kernel that takes these codes can do better.
# (A better choice of scales can: the specification's loses where it holds numbers at the largest.) MXFP4's is dozens of
# times bf16's. Whether a model bears that is not a matter of kernels: one measures the model (and most keep activations
# in more bits, which is the column *weights alone*). Note the last line: 4 bits as whole numbers, with a finer
# scale for the same 32, are *more* exact for normal weights than MXFP4, for a quarter of a bit each. What MXFP4 has is
# hardware.
#
# What would it save? Weights of a model of 70 billion, and the least time for a token that must read them all:

# %%
bandwidth = DEVICES["H200"].memory_bandwidth
print(f"an H200 reads {bandwidth / 1e12:.2f} TB/s")
rows = []
for name in ("bf16", "int8, a scale a row", "MXFP8", "MXFP4"):
    size = 70e9 * formats_of[name][0] / 8
    rows.append((name, f"{size / 1e9:.1f} GB", f"{1e3 * size / bandwidth:.1f} ms"))
table(("", "weights", "a token"), rows)

# %% [markdown]
# In Triton, `tl.dot_scaled` takes both sides with their scales, or one side in 16 bits without. It is one line, on any
# GPU; what it becomes is another matter. A tile with MXFP4 weights, and bf16, MXFP8 or MXFP4 rows:
# <!-- given 16 bits: bf16 and fp16 -->


# %%
@triton.jit
def tile_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, y_ptr, X: tl.constexpr, WIDTH: tl.constexpr
):
    i, packed, block = (
        tl.arange(0, 128),
        tl.arange(0, 64),
        tl.arange(0, 4),
    )  # 128 numbers: 64 bytes, 4 scales
    x = tl.load(x_ptr + i[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])
    w = tl.load(w_ptr + i[None, :] * 64 + packed[:, None])
    w_scale = tl.load(w_scale_ptr + i[:, None] * 4 + block[None, :])
    if X == "bf16":
        y = tl.dot_scaled(x, None, X, w, w_scale, "e2m1")
    else:
        x_scale = tl.load(x_scale_ptr + i[:, None] * 4 + block[None, :])
        y = tl.dot_scaled(x, x_scale, X, w, w_scale, "e2m1")
    tl.store(y_ptr + i[:, None] * 128 + i[None, :], y)


# %%
byte, scales = on_paper(128, 64, dtype=torch.uint8), on_paper(128, 4, dtype=torch.uint8)
rows_in = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e2m1": torch.uint8}
for kind, dtype in rows_in.items():
    width = 64 if kind == "e2m1" else 128
    for gpu in ("H200", "B200"):
        arguments = on_paper(128, width, dtype=dtype), scales, byte, scales, on_paper(128, 128)
        found = compile_for(tile_kernel, *arguments, device=gpu, X=kind, WIDTH=width)
        products = {name: count for name, count in found.instructions.items() if "MMA" in name}
        print(f"{kind} x MXFP4 on {gpu}: {products}")

# %% [markdown]
# `HGMMA` is Hopper's product in **bf16**: an H200 has nothing for 4 bits, so the compiler unpacks the codes into bf16
# first, as our int8 kernel does. The bytes are saved, the arithmetic is not, and unpacking comes on top: above, MXFP4
# was slower than bf16. A B200 has something: `UTCQMMA` multiplies 8 bits with scales, `UTCOMMA` 4 bits by 4, each at
# twice the rate of the one before. Beside bf16 rows even a B200 unpacks: `UTCHMMA`. **A format that is stored is not
# yet one that is multiplied.** With few tokens storing can be enough, if unpacking keeps pace; with many, only
# multiplying helps.
# <!-- given 4 bits, 8 bits: e2m1 and e4m3 -->
#
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel computes `q = (y / scale).to(tl.int8)` and then clamps to -127 and 127. Its tests pass. Name an input that
#    breaks it, and what comes out.
# <details><summary>Answer</summary>Anything beyond 127 steps, as with a scale below the largest magnitude: its result
# is not defined. Where the low byte is kept, 200 becomes -56. (It also cuts fractions off instead of
# rounding.)</details>
#
# 2. A colleague gives each row of the activations a scale of its own, and the error stays large. Which columns do you
#    look at, and what do you propose?
# <details><summary>Answer</summary>A few columns that are large in every row: each row's scale is theirs. Scales for
# blocks of a row; FP8, whose error is in proportion to each number; or dividing those columns by a factor and
# multiplying the weights' by it.</details>
#
# 3. Int8 weights make your model twice as fast for one user. What will they do for a batch of 4096 tokens?
# <details><summary>Answer</summary>For a dense layer nothing, or they make it slower: the tensor cores are the limit,
# and they multiply bf16 as before, with unpacking on top. FP8 or int8 on both sides could still gain. Experts with few
# tokens each still gain.</details>
#
# 4. Why can a matmul's epilogue quantise with a scale for 128 outputs, but not with one for a row?
# <details><summary>Answer</summary>The row's largest is spread over programs, none of which sees it. (Unless one
# program has whole rows, at the price of lesson 08.)</details>
#
# 5. A scale a block costs an FP8 kernel of DeepSeek's kind almost nothing. Why?
# <details><summary>Answer</summary>Its sums leave the tensor cores every 128 terms anyway, for the sake of their
# digits. The scale makes of each addition a multiply-add.</details>
#
# 6. 32 experts, of which each token takes 4. How many experts do 8 tokens read on average? Put your number in place of
#    the dots, to one digit after the point.

# %%
answer = ...
self_test(answer, round(ExpertLayer(32, 4, 1, 1).touched(8), 1), "E (1 - (1 - k/E)^T)")

# %% [markdown]
# ## Now you
#
# [Exercise 12](../exercises/12_layer_norm_int8.ipynb) asks for LayerNorm and int8 in one kernel, zero rows, NaN and
# all.
