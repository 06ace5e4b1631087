# %% [markdown]
# # 12 Quantisation and experts: when the weights are the bytes
#
# Fusion removes round trips to memory, but you still have to load every weight. You can, however, store a weight in one
# byte or half a byte, and have the kernel convert it back just before the tensor cores need it. **How much faster does
# that make a model, and how much less accurate?** Both depend on things that people rarely mention: the number of
# tokens, and which elements share a scale.
#
# By the end of this lesson you'll be able to
#
# - quantise rows in the kernel that computes them, and name three inputs that break such kernels;
# - choose which elements share a scale, based on errors against float64;
# - dequantise, multiply and quantise in one launch, and decide when it pays off;
# - predict from the number of tokens whether fewer bits make a layer faster, for one layer and for 256 experts;
# - explain what Hopper's FP8 tensor cores do to a long sum, and how to avoid it;
# - compare MXFP4 with NVFP4, and find out from compiled code whether a GPU multiplies a format or only stores it.
#
# About 70 minutes. It builds on [05](05_normalisation.ipynb) (norms) and [08](08_matmul_epilogues.ipynb) (matmuls), and
# prepares you for [exercise 12](../exercises/12_layer_norm_int8.ipynb).

# %% tags=["hide-input"]
import inspect

import torch
import triton
import triton.language as tl

import kernels
from helpers.figures import curves_chart
from helpers.instruments import DEVICES, compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# Here's LayerNorm to int8, first as three kernels, then as one. Press **Play**. The elements of q are small because
# each is a single byte. The fused kernel writes no other tensor of x's shape.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("int8")

# %% [markdown]
# ## Int8 and its scale
#
# An int8 holds an integer from -128 to 127. To store other numbers, you choose a [scale](../docs/glossary.md#scale)
# $s$, store $q = \text{round}(y / s)$, and read it back as $q \cdot s$. If you map the largest magnitude to 127,
#
# $$s = \max |y| / 127,$$
#
# then the [quantised](../docs/glossary.md#quantisation) values cover the row exactly, and the error is at most half a
# step, $s/2$. (We leave -128 unused so that $-q$ is always valid.)
#
# If an error is uniformly distributed over a step, its root mean square is $1/\sqrt{12}$ steps. **Take a row of 4096
# normally distributed elements, whose largest is about 3.5. How large is the error, in % of the row's own root mean
# square?**

# %% tags=["hide-input"]
int8_error = predict_first("error of 4096 normally distributed numbers in int8", unit="%")
int8_error


# %% tags=["hide-input"]
def rms(x):
    return x.square().mean().sqrt()


row = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
scale = row.abs().max() / 127
error = (row / scale).round() * scale - row
print(f"largest magnitude {row.abs().max():.2f}, a step {scale:.4f}")
int8_error.compare(
    round((100 * rms(error) / rms(row)).item(), 2),
    "So the error depends on how far the largest element is above the rest. You'll need that "
    "later.",
)

# %% [markdown]
# Now write the scale. Each program has one row of four elements, and the kernel returns $y/s$ before rounding. One of
# the rows is almost zero, as for a padding token, and you don't want to blow that up to full scale. At the moment, the
# kernel takes the largest element, not the largest magnitude. **Fix the marked line, with a scale of at least `1e-12 /
# 127`.**


# %%
@triton.jit
def int8_scale_kernel(y_ptr, steps_ptr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(y_ptr + at)
    scale = tl.max(y) / 127.0  # <- change this line
    tl.store(steps_ptr + at, y / scale)


y = torch.tensor([[3.0, -12.7, 8.0, 0.5], [1, 2.54, -1.5, 2], [0, 1e-13, -2e-13, 3e-13]])
wanted = y / (y.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127)
puzzle(int8_scale_kernel, 3, y, wanted=wanted, COLUMNS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>scale = tl.maximum(tl.max(tl.abs(y)), 1e-12) / 127.0</code>: without the
# floor, the almost-zero row gets blown up to full scale, and a row of zeros divides 0 by 0. Converting that NaN to int8
# happens to give 0, so trouble only shows up later, where a kernel divides by the scale.</details>
#
# <!-- choices
# scale = tl.max(y) / 127.0
#
# scale = tl.maximum(tl.max(tl.abs(y)), 1e-12) / 127.0
#
# scale = tl.max(tl.abs(y)) / 127.0
#
# scale = tl.maximum(tl.max(y), 1e-12) / 127.0
#
# scale = tl.abs(tl.max(y)) / 127.0
# -->
#
# ## Quantise where the row is computed
#
# An int8 matmul needs int8 input, which usually comes from a norm. While the norm holds the row in registers, finding
# the largest magnitude takes just one more reduction, and then the kernel only has to write one byte per element. We'll
# use RMSNorm, because it's shorter than LayerNorm:


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
    scale = clip * tl.maximum(tl.max(tl.abs(y), axis=0), 1e-12) / 127.0
    tl.store(scale_ptr + row, scale)
    tl.store(q_ptr + row * cols + col, TO_INT8(y, scale), mask=inside)


# %% [markdown]
# With `clip`, the range can end below the largest magnitude. At 0.9, the few values above it are clamped to 127, and
# all the others get finer steps. The final conversion is a function that we pass in, because it's the part people get
# wrong. The obvious version adds a half, truncates, and clamps:


# %%
@triton.jit
def careless(y, scale):
    q = (y / scale + tl.where(y < 0, -0.5, 0.5)).to(tl.int32).to(tl.int8)
    return tl.minimum(tl.maximum(q, -127), 127)


# %% tags=["hide-input"]
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


def furthest(found, expected):
    return (found[0].int() - expected[0].int()).abs().max().item()


x, weight = torch.randn(8, 1000, device=device), torch.randn(1000, device=device)
off = furthest(norm_int8(x, weight, careless), in_pytorch(x, weight))
print("random rows, clip 1: within 1 of PyTorch:", off <= 1)

# %% [markdown]
# It passes, as it nearly always will with random numbers. **Now set `clip` to 0.5, and suppose $y/s$ is 200 somewhere.
# What does `careless` store instead of 127?** (Converting an int32 to int8 keeps its low byte.)

# %% tags=["hide-input"]
of_200 = predict_first("the int8 that 200.0 turns into", unit="")
of_200


# %% tags=["hide-input"]
@triton.jit
def convert_kernel(y_ptr, q_ptr, TO_INT8: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(q_ptr + at, TO_INT8(tl.load(y_ptr + at), 1.0))


def converted(numbers, to_int8):
    y = torch.tensor(numbers, device=device)
    q = torch.empty_like(y, dtype=torch.int8)
    convert_kernel[(1,)](y, q, TO_INT8=to_int8, BLOCK=len(numbers))
    return q.tolist()


HARD = [200.0, -200.0, 127.4, 0.5, 1.5, 2.5, 3.5, -0.5]
print("numbers ", HARD)
print("careless", converted(HARD, careless))
off = furthest(norm_int8(x, weight, careless, 0.5), in_pytorch(x, weight, 0.5))
print(f"clip 0.5: off by up to {off}")
of_200.compare(
    converted(HARD, careless)[0],
    "The clamp comes too late. Converting a float directly is even worse: out of range, the "
    "result is undefined, as in C++.",
)

# %% [markdown]
# So **clamp while the value is still a float.** There's another bug: `careless` rounds 0.5 to 1 and 1.5 to 2, always
# away from zero. With bf16 inputs and power-of-two scales, exact halves are common, and magnitudes grow on average.
# PyTorch rounds halves to the nearest *even* number. So does fp32 addition, which gives us a trick: around $1.5 \cdot
# 2^{23}$, an fp32 has no bits left for fractions, so *adding* that constant rounds.


# %%
@triton.jit
def careful(y, scale):
    q = y / scale + 12582912.0 - 12582912.0
    q = tl.where(q > 127.0, 127.0, q)
    return tl.where(q < -127.0, -127.0, q).to(tl.int8)


print("careful ", converted(HARD, careful))
off = furthest(norm_int8(x, weight, careful, 0.5), in_pytorch(x, weight, 0.5))
print("clip 0.5: within 1 of PyTorch:", off <= 1)

# %% [markdown]
# The last troublemaker is a row with a NaN. `tl.max` drops NaN, and so does `tl.maximum` without `propagate_nan`, so
# that row can end up with a perfectly ordinary scale. Its scale should be NaN, and exercise 12 asks you to handle it.
#
# How much traffic does fusion save? Let's compare `kernels.layer_norm_int8` with the same computation in PyTorch,
# operator by operator:

# %% tags=["hide-input"]
op = kernels.CATALOGUE["layer_norm_int8"]
print("\n".join(inspect.getsource(op.reference).rstrip().splitlines()[4:]))

# %% [markdown]
# **By what factor does the fused kernel cut the traffic, in fp32**, on 16 rows of 4096? (Count weight and bias
# once.)

# %% tags=["hide-input"]
norm_bytes = predict_first("unfused ÷ fused traffic, LayerNorm and int8, fp32", unit="times")
norm_bytes

# %% tags=["hide-input"]
wide, gain, shift = torch.randn(16, 4096, device=device), *torch.randn(2, 4096, device=device)
unfused, fused = (measure(function, wide, gain, shift) for function in (op.reference, op.fused))
each = f"{unfused.bytes_total / wide.numel():.1f} B/element"
print(f"unfused: {unfused.launches} launches, {each}")
print(f"fused:   {fused.launches} launch, {fused.unique_total / wide.numel():.1f} B/element")
norm_bytes.compare(unfused.bytes_total / fused.unique_total)

# %% [markdown]
# A fairer baseline is *two* kernels:
#
# **Claim: "LayerNorm + quantisation, fused, is 2.5 to 3 times faster than separate kernels."** We timed it in bf16 on
# an H200 with 32,768 rows. Both two-kernel versions use our int8 kernel:

# %% tags=["hide-input"]
separate, rows = h200.experiment("quantised_layer_norm"), []
for cols, ways in separate.items():
    one, taken = ways["one kernel"].median, [time.median for time in ways.values()]
    rows.append((cols, *(f"{1e6 * each:.0f} us, {each / one:.2f}x" for each in taken)))
heads = ("columns", "PyTorch's LayerNorm, then int8", "our LayerNorm, then int8", "one kernel")
display(table(heads, rows, h200.label_of("quantised_layer_norm")))
print("\nVerdict: fair, against PyTorch's norm. Two kernels move 7 bytes per element, one moves 3.")
print("Against our norm, the gain is a little less than the bytes suggest. Against one kernel per")
print("operator it would be far larger. With such a number, always ask what the baseline was.")

# %% [markdown]
# ## Which elements share a scale?
#
# We used one scale per row. You could also use a single scale for the whole tensor, which takes less memory, or one for
# every 128 elements of a row, which takes more. And you don't have to use int8, with its 255 evenly spaced values.
# Another one-byte format is **FP8**: `e4m3` has 4 bits of exponent and 3 of mantissa, so its steps grow with the value,
# as in any float:
# <!-- given 4 bits, 3 bits: the name e4m3, Micikevicius et al., arXiv:2209.05433 -->

# %% tags=["hide-input"]
rows = []
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
    kind = torch.finfo(dtype)
    rows.append((dtype, f"{kind.max:.3g}", f"{kind.tiny:.2g}", f"{1 + kind.eps:g}"))
display(table(("", "largest", "smallest normal", "next after 1"), rows))
numbers = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
small = 100 * (numbers < 4.48).float().mean()
print(f"e4m3: {small:.0f} % of its values are below a hundredth of the largest")

# %% [markdown]
# Let's try them on a matmul. We round both `x` and the weights, and compare with float64. Each group of `size`
# neighbouring elements shares a scale, which maps the largest of them to the format's largest value.


# %%
def to_grid(x, size, grid, largest):
    groups = x.reshape(-1, size)
    scale = groups.abs().amax(-1, keepdim=True) / largest
    return (grid(groups / scale) * scale).reshape(x.shape)


# %% tags=["hide-input"]
def e4m3(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


GRIDS = {"int8": (torch.round, 127), "e4m3": (e4m3, 448)}
SHARED = {"per tensor": None, "per row": 1024, "per 128 of a row": 128}

draw = torch.Generator().manual_seed(0)
plain_x, w = (torch.randn(rows, 1024, generator=draw, dtype=torch.float64) for rows in (64, 256))
outlier_x = plain_x.clone()
outlier_x[:, 7] *= 100


def product_error(x, rounded_x, rounded_w):
    return 100 * rms(rounded_x @ rounded_w.T - x @ w.T) / rms(x @ w.T)


# %% [markdown]
# In a language model's activations, a few *columns* are far larger than the rest, for every token (Dettmers et al.,
# arXiv:2208.07339). `outlier_x` is normally distributed, except that we multiplied one of its 1024 columns by a
# hundred. So in a typical row, one int8 step is about half of a normal element's size. **With a per-row scale, what
# share of `outlier_x` is rounded to zero?**

# %% tags=["hide-input"]
zeroed = predict_first(
    "of x's elements rounded to 0, int8, per-row scale, one column 100x larger", unit="%"
)
zeroed


# %% tags=["hide-input"]
def tried(x, size, grid):
    rounded_x, rounded_w = (to_grid(each, size or each.numel(), *grid) for each in (x, w))
    zeros = 100 * (rounded_x == 0).double().mean()
    return f"{product_error(x, rounded_x, rounded_w):.1f} %", f"{zeros:.0f} %"


rows = []
for name, grid in GRIDS.items():
    for shared, size in SHARED.items():
        found = (*tried(plain_x, size, grid), *tried(outlier_x, size, grid))
        rows.append((f"{name}, scale {shared}", *found))
display(table(("", "normally distributed", "zeros", "with an outlier column", "zeros"), rows))
rounded = to_grid(outlier_x, 1024, *GRIDS["int8"])
zeroed.compare(
    round(100 * (rounded == 0).double().mean().item()),
    "For normally distributed numbers, int8 is the better format: its values are evenly spaced, "
    "while FP8 spends more than half of its values near zero. An outlier column ruins int8 but "
    "hardly FP8, because a float's error is proportional to each element, no matter how large "
    "its neighbours are. A per-row scale can't fix that, because every row contains the large "
    "column. A scale per 128 elements confines the damage to one block.",
)

# %% [markdown]
# (SmoothQuant, arXiv:2211.10438, has another remedy: it divides such columns by a factor and multiplies the matching
# weights by it in advance. DeepSeek-V3, arXiv:2412.19437, was trained with per-block scales, in FP8.) So should you
# always use a scale per block? It has a cost, because of where the scale ends up in the matmul:
#
# $$\sum_k x_k s_x \cdot w_k s_w = s_x s_w \sum_k x_k w_k \qquad \text{but} \qquad
# \sum_b s_{x,b}\, s_{w,b} \sum_{k \in b} x_k w_k$$
#
# Per-row scales factor out of the sum, so they take one multiplication per output, which is free in the epilogue.
# Per-block scales have to be applied inside the loop over K. **Write it**: each program computes the dot product of a
# row of `q` and a row of `x`, in two blocks of four, each with its own scale. At the moment, the second block's scale
# also multiplies the first block's sum.


# %%
@triton.jit
def block_scales_kernel(q_ptr, x_ptr, scale_ptr, y_ptr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    row, acc = tl.program_id(0), 0.0
    for block in range(BLOCKS):
        at = (row * BLOCKS + block) * SIZE + tl.arange(0, SIZE)
        product = tl.sum(tl.load(q_ptr + at) * tl.load(x_ptr + at))
        scale = tl.load(scale_ptr + row * BLOCKS + block)
        acc = (acc + product) * scale  # <- change this line
    tl.store(y_ptr + row, acc)


q = torch.tensor([[1.0, -2, 3, 4, 5, -6, 7, 8], [-1, 2, -3, -4, 9, 6, -7, -8]])
vector = torch.tensor([[2.0, 1, 0, 3, -1, 2.5, 1.5, 4], [-2, 0.5, 3.5, 0.25, 5.5, -3, 5, -0.5]])
scales = torch.tensor([[0.5, 0.25], [2.0, 0.125]])
dequantised = q * scales.repeat_interleave(4, dim=1)
wanted = (dequantised * vector).sum(1)
puzzle(block_scales_kernel, 2, q, vector, scales, wanted=wanted, BLOCKS=2, SIZE=4)

# %% [markdown]
# <details><summary>Answer</summary><code>acc += product * scale</code>: scale each block's sum before you add it to the
# others. With tensor cores, that's one multiply-add per output and block, outside the tensor cores.</details>
#
# <!-- choices
# acc = (acc + product) * scale
#
# acc = acc * scale + product
#
# acc = product * scale
#
# acc += product + scale
#
# acc += product * scale
# -->
#
# ## Dequantise, multiply, quantise
#
# Int8 weights don't require int8 activations. You can keep `x` in bf16, load the weights as bytes, convert them to bf16
# **in registers**, and multiply. The epilogue applies the per-row scale and quantises the result for the next layer:
#
# ```python
# for start in range(0, cols, BLOCK_IN):
#     weight = tl.load(...)                      # int8 bytes
#     x = tl.load(...)                           # bf16
#     acc = tl.dot(weight.to(tl.bfloat16), x, acc)
# y = acc * scale[:, None]                       # one scale per row of weights
# q, y_scale = to_int8(y, axis=0)                # one scale per token and 128 outputs
# ```
#
# The output gets one scale per token *and 128 outputs*, not one per token, because a tile only holds 128 of a token's
# outputs, and other programs have the rest of the row. (The kernel we measured, `experts_kernel` in
# `benchmarks/experiments/lesson_12.py`, converts the bytes without a conversion instruction.) If you split this into
# three kernels (dequantise, matmul and quantise), the weights pass through memory in bf16 in between. **With one token
# and a large layer, by what factor does the one kernel cut the traffic?**

# %% tags=["hide-input"]
weight_bytes = predict_first("traffic of three kernels ÷ traffic of one, one token", unit="times")
weight_bytes

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_12 import expert_inputs, fused_experts, separate_experts

inputs = [each.to(device) for each in expert_inputs(1, (1, 512, 1024), dtype=torch.float16)]
off = furthest(fused_experts(*inputs), separate_experts(*inputs))
print("quantised results within 1 of each other:", off <= 1)
one = measure(fused_experts, *inputs)
by_hand = 3 * inputs[1].numel() + 2 * inputs[1].numel()  # 1 in, 2 out; 2 in
print(f"weights in three kernels: {by_hand / 1e6:.2f} MB; in one: {one.unique_total / 1e6:.2f} MB")
weight_bytes.compare(
    by_hand / inputs[1].numel(),
    "The three kernels read one byte, write two and read two per weight. The one kernel reads one.",
)

# %% [markdown]
# **Claim: "in a mixture of experts, dequantise + matmul + quantise fused is 3 to 4 times faster."** A *mixture of
# [experts](../docs/glossary.md#expert)* has many such layers and sends each token to a few of them. We timed 64 experts
# of 2048 x 768 in bf16 on an H200, each with the same number of tokens. `eager` is PyTorch operator by operator, and
# `torch.compile` generates three kernels.

# %% tags=["hide-input"]
of_experts = h200.experiment("quantised_experts")
rows, slower = [], ("torch.compile", "eager")
for tokens, ways in of_experts.items():
    gains = (f"{ways[name].median / ways['fused'].median:.1f}x" for name in slower)
    rows.append((tokens, *(f"{1e6 * time.median:.0f} us" for time in ways.values()), *gains))
columns = ("tokens per expert", *ways, *(f"speedup over {name}" for name in slower))
display(table(columns, rows, h200.label_of("quantised_experts")))
print(f"all weights at copy bandwidth: {1e6 * 64 * 2048 * 768 / h200.copy_bandwidth:.0f} us")
print("\nVerdict: holds for few tokens, and reverses for many.")
print("Up to 8 tokens per expert, most of the time is spent on the weights' bytes; at 64, about")
print("half. Beyond that, arithmetic matters, and the fused kernel has to unpack each weight again")
print("for every tile of tokens, while the three kernels unpack it only once.")

# %% [markdown]
# So fuse this for decoding, but not for long prompts.
#
# ## Why the number of tokens matters
#
# A linear layer reads its weights once, no matter how many tokens you give it. With $T$ tokens there are $n \cdot m$
# weights, $T(n + m)$ activations and $2Tnm$ FLOPs. With few tokens, nearly all of the bytes are weights, and the
# arithmetic intensity in bf16 is about $T$ FLOP/byte. At $T = 1$, that's a two-hundredth of the ridge point. That's the
# situation in [decoding](../docs/glossary.md#decode), where each user generates one token at a time. Experts make it
# worse: if 64 tokens take 8 of 64 experts each, that's only *eight per expert*, yet you read nearly all 64 experts. If
# the router spreads tokens evenly, a token misses a given expert with probability $1 - k/E$, and all $T$ tokens miss it
# with probability $(1 - k/E)^T$. Try these:
#
# 1. One expert (a dense layer): at how many tokens do int8 weights no longer help? What still helps?
# 2. 64 experts, 8 per token: where is that point now, and why?
# 3. 256 experts: how many do 8 tokens read? And 128 tokens?
# 4. At 8192 tokens and 256 experts, what does FP8 gain that int8 weights don't?

# %% tags=["hide-input"]
from helpers.figures import ExpertLayer, ExpertWeightsExplorer

explorer = ExpertWeightsExplorer(tokens=16, experts=64, top_k=8, size="2048 x 768", device="H200")
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 512. FP8 on both sides is still twice as fast, because it also
# multiplies faster. 2. At 2048: each expert gets an eighth of the tokens, so its weights dominate for longer. 3. 8
# tokens read 57 of them, out of a possible 64, and 128 tokens read 252, nearly all. 4. At that size, arithmetic takes
# longer than the bytes, so fewer bytes don't help. FP8 tensor cores have twice the rate, while int8 weights are
# multiplied in bf16.</details>
#
# The explorer's times come from the data sheet and are *lower bounds*. For real times, here's `kernels.moe_int8` on an
# H200, with int8 weights and bf16 activations. Its **grouped matmul** is one launch for all experts, although only the
# router knows how many tokens each one gets (the code is in Going further).

# %% tags=["hide-input"]
from helpers.figures.matmul.expert_weights import FORMATS, counted, seconds

layer = ExpertLayer(64, 8, 2048, 768)
rows = []
for tokens in (1, 8, 64, 512, 8192):
    kept = FORMATS["int8 weights"]
    least = max(seconds(layer.work(tokens, kept), kept, DEVICES["H200"]))
    found = h200.times("moe_int8", (tokens, 2048, 768, 64), "bfloat16")
    ours, theirs = (1e6 * found[name].median for name in ("fused", "grouped_mm"))
    shown = (f"{1e6 * least:.1f} us", f"{ours:.1f} us", f"{theirs:.0f} us")
    rows.append((tokens, f"{layer.touched(tokens):.0f}", *shown))
others = "dequantised, then PyTorch's grouped matmul"
columns = ("tokens", "experts read", "lower bound", "recorded", others)
table(columns, rows, f"{h200.label_of('moe_int8')}\nthe GPU's own time, cold L2")

# %% [markdown]
# Don't expect to reach the bound: we're furthest above it at 512 tokens, and haven't investigated why. From 8 tokens to
# 64, the time hardly changes, even though the arithmetic grows eightfold. The extra tokens are nearly free, which is
# why servers wait to fill a batch.
#
# What about other formats? Here's one large dense layer, from 8192 to 28,672 columns, as in the 70-billion-parameter
# Llama 3. `int8 weights` is the kernel from above without its last step. `fp8` has one byte per element on both sides
# and uses NVIDIA's library:

# %% tags=["hide-input"]
formats = h200.experiment("quantised_formats")
ways_shown = {"fp8": "fp8, a scale a tensor", "int8 weights": "int8 weights"}
ways_shown["mxfp4 weights"] = "mxfp4 weights"
gains = {
    name: {tokens: ways["bf16"].median / ways[key].median for tokens, ways in formats.items()}
    for name, key in ways_shown.items()
}
even = {"bf16": dict.fromkeys(formats, 1)}
axes = {"x": "tokens", "y": "speedup over bf16"}
title = "FP8 gains with any number of tokens, int8 weights only with few"
print(h200.label_of("quantised_formats"))
for name, wide in (("bf16", 2), ("int8 weights", 1)):
    rate = wide * 8192 * 28672 / formats[1][name].median
    print(f"{name}, one token: reads its weights at {rate / 1e12:.1f} TB/s")
curves_chart(gains, title, **axes, log=True, limit=even)

# %% [markdown]
# - **FP8 nearly delivers on the data sheet's promise**: close to twice the speed, from one token to 8192, with one
#   scale per tensor and cuBLAS's fast sums (see below), not counting the time to quantise x. With few tokens, that's
#   because there are fewer bytes to read. With many, the matmuls are faster. (With a scale per row, it gains less on
#   few tokens: see *Going further*.)
# - **Int8 weights only gain with few tokens, and by less than the bytes suggest**, because our kernel has to unpack
#   them and reads at 2.7 TB/s, where the bf16 one reads at 4.2 TB/s.
# - **This MXFP4 kernel is slower than bf16 throughout.** That needn't be the format's fault: Triton unpacks it first
#   (see below). We haven't timed any weight-only kernels made for Hopper, such as Marlin, Machete or Triton's own MXFP4
#   kernels.
#
# ## FP8 sums
#
# In lesson 08 we could rely on bf16 matmuls to accumulate in fp32. FP8 on Hopper is different. The accumulator is still
# in fp32 registers, but the tensor cores' *adder* is narrower: it shifts the products and the accumulator to the
# largest exponent among them and drops the bits that don't fit (DeepSeek-V3, arXiv:2412.19437, section 3.3). The larger
# the sum gets, the more of each new product is lost. The fix is to restart from zero every 128 terms, and add up these
# short sums with ordinary fp32 additions, outside the tensor cores. Our kernel has three modes: one long sum, short
# sums in fp32, or per-block scales, which need short sums anyway:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_12 import FP8_WAYS, fp8_kernel

source = inspect.getsource(fp8_kernel.fn).splitlines()
first, last = (
    next(n for n, line in enumerate(source) if text in line)
    for text in ("for start", "max_num_imprecise")
)
print(inspect.cleandoc("\n" + "\n".join(source[first : last + 1])))

# %% [markdown]
# We compile it for an H200 with 128 x 128 tiles and 8 warps. **How many extra fp32 additions per thread do the short
# sums take, every 128 terms?**

# %% tags=["hide-input"]
fp8_additions = predict_first("fp32 additions per thread every 128 terms, 128 x 128 tile", unit="")
fp8_additions


# %% tags=["hide-input"]
def on_paper(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


fp8 = on_paper(8192, 8192, dtype=torch.float8_e4m3fn)
arguments = (fp8, fp8, on_paper(8192, 64), on_paper(64, 64))
arguments += (on_paper(8192, 8192, dtype=torch.bfloat16), 8192, 8192, 8192)
names, rows, compiled = ("QGMMA", "UTCQMMA", "FADD", "FFMA", "FFMA2"), [], {}
for gpu in ("H200", "B200"):
    for way, (per_block, in_tensor_cores) in FP8_WAYS.items():
        options = {"PER_BLOCK": per_block, "IN_TENSOR_CORES": in_tensor_cores, "BLOCK_ROWS": 128}
        compiled[gpu, way] = compile_for(fp8_kernel, *arguments, device=gpu, num_warps=8, **options)
        counts = (compiled[gpu, way].instructions[name] for name in names)
        rows.append((gpu, way.replace("a scale a", "scale per"), *counts))
display(table(("", "", *names), rows))
short, long = "a scale a row, sums in fp32", "a scale a row"
print("B200: short sums compile to the same instructions as one long sum:", end=" ")
print(compiled["B200", short].instructions == compiled["B200", long].instructions)
fp8_additions.compare(
    compiled["H200", short].instructions["FADD"],
    "128 x 128 outputs are shared by 256 threads. Per-block scales turn each FADD into an FFMA.",
)

# %% [markdown]
# `QGMMA` is Hopper's FP8 matmul. In these two instructions you can see whether it starts from zero (`RZ`) or from the
# accumulator:

# %% tags=["hide-input"]
for way in (long, short):
    (start, *_) = (line for line in compiled["H200", way].sass.splitlines() if "QGMMA" in line)
    print(f"{way.replace('a scale a', 'scale per')}: {start.strip()}")

# %% [markdown]
# On a B200 the option makes no difference. (We haven't measured how accurate its sums are.) Its per-block scales
# compile to `FFMA2` (two multiply-adds in one instruction), and the counts cover two passes: the loop's, and one that
# the compiler split off. For Hopper, here's the relative error of a sum of positive products, compared with float64 on
# the same e4m3 values:

# %% tags=["hide-input"]
sums = h200.experiment("quantised_fp8_sums")
ways_shown = {
    "one long sum": "Triton, a scale a row",
    "cuBLAS, fast sums": "cuBLAS, fast sums",
    "fp32 every 128 terms": "Triton, a scale a row, sums in fp32",
}
growing = {
    name: {terms: 100 * ways[key]["positive"] for terms, ways in sums.items()}
    for name, key in ways_shown.items()
}
axes = {"x": "terms of the sum", "y": "error of sums of positive numbers (%)"}
title = "With fp32 additions every 128 terms, a sum's error doesn't grow"
print(h200.label_of("quantised_fp8_sums"))
curves_chart(growing, title, **axes, log=True)

# %% tags=["hide-input"]
rows = []
for name, time in h200.experiment("quantised_fp8_times").items():
    rate = f"{2 * 8192**3 / time.median / 1e12:.0f} TFLOP/s"
    rows.append((name.replace("a scale a", "scale per"), f"{1e3 * time.median:.2f} ms", rate))
table(("", "time", "rate"), rows, h200.label_of("quantised_fp8_times"))

# %% [markdown]
# With values of mixed sign, you lose far less (see *Going further*). In our kernel, short sums are expensive: they add
# more than half of the original time, because the additions wait for the matmul and the next matmul waits for the
# additions. cuBLAS uses short sums unless you pass `use_fast_accum=True`, and that costs it only a few percent, so most
# of the cost can be hidden. **Once you pay for short sums, per-block scales are nearly free.** That's the choice
# DeepSeek-V3 made. But look at the first line: with short sums, our FP8 kernel is hardly faster than bf16. To gain
# anything, you have to hide the additions, as cuBLAS does.
#
# ## Four bits: MXFP4 and NVFP4
#
# An `e2m1` number has 4 bits: a sign, and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Two formats build on it:
#
# - **MXFP4** (Open Compute Project) has a one-byte scale for every 32 elements, which is a power of two (`e8m0`, just
#   an exponent). So it usually can't map a block's largest element to exactly 6, and values above 6 are clamped.
#   **MXFP8** does the same with e4m3 elements.
# - **NVFP4** (NVIDIA, Blackwell) has a scale in `e4m3` for every 16 elements, plus one scale for the whole tensor.
#   Because the block's scale has a mantissa, the largest element ends up close to 6.
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


def nvfp4(x):
    groups, tensor_scale = x.reshape(-1, 16), x.abs().max() / (448 * 6)
    scale = e4m3(groups.abs().amax(-1, keepdim=True) / 6 / tensor_scale) * tensor_scale
    return (e2m1((groups / scale).clamp(-6, 6)) * scale).reshape(x.shape)


# %% [markdown]
# Including its share of the scale, an element takes 4.25 bits in MXFP4 and 4.5 in NVFP4. The steps of `e2m1` are 1
# between 2 and 4, and 2 between 4 and 6. In MXFP4, a block's largest element ends up between 4 and 8, and among 32
# normally distributed numbers, it's a little over two standard deviations. **How large is the error of a matmul with
# normally distributed *weights* in MXFP4?** A rough estimate will do: take the share of the weights in each step size,
# and $1/\sqrt{12}$ of a step as the error.
# <!-- given 4.25 bits: 4 + 8 / 32 -->

# %% tags=["hide-input"]
mx_error = predict_first("error of a matmul with normally distributed MXFP4 weights", unit="%")
mx_error

# %% tags=["hide-input"]
formats_of = {
    "bf16": (16, lambda x: x.bfloat16().double()),
    "int8, scale per row": (8 + 32 / 1024, lambda x: to_grid(x, 1024, torch.round, 127)),
    "e4m3, scale per row": (8 + 32 / 1024, lambda x: to_grid(x, 1024, e4m3, 448)),
    "MXFP8": (8 + 8 / 32, lambda x: microscaled(x, e4m3, 448.0)),
    "MXFP4": (4 + 8 / 32, lambda x: microscaled(x, e2m1, 6.0)),
    "NVFP4": (4 + 8 / 16, nvfp4),
    "4-bit integers, scale per 32": (4 + 16 / 32, lambda x: to_grid(x, 32, torch.round, 7)),
}
rows = []
for name, (bits, rounded) in formats_of.items():
    alone = product_error(plain_x, plain_x, rounded(w))
    both = [product_error(x, rounded(x), rounded(w)) for x in (plain_x, outlier_x)]
    rows.append((name, f"{bits:.2f}", *(f"{each:.2f} %" for each in (alone, *both))))
columns = ("", "bits", "weights alone", "both", "both, outlier column in x")
display(table(columns, rows))
mx_error.compare(
    round(product_error(plain_x, plain_x, microscaled(w, e2m1, 6.0)).item(), 1),
    "NVFP4 is more accurate than MXFP4 for a quarter of a bit per element, and slightly more "
    "accurate than 4-bit integers of the same size.",
)

# %% [markdown]
# These errors come from *rounding* alone, so no kernel that takes these values can do better. (A better choice of
# scales can.) No kernel can tell you whether your model tolerates such an error: you have to evaluate the model. If the
# activations keep more bits, the column *weights alone* applies. How much would you save? Here are the weights of a
# model with 70 billion parameters, and the minimum time for a token, which has to read them all:

# %% tags=["hide-input"]
bandwidth = DEVICES["H200"].memory_bandwidth
print(f"an H200 reads {bandwidth / 1e12:.2f} TB/s")
rows = []
for name in ("bf16", "int8, scale per row", "MXFP8", "MXFP4", "NVFP4"):
    size = 70e9 * formats_of[name][0] / 8
    rows.append((name, f"{size / 1e9:.1f} GB", f"{1e3 * size / bandwidth:.1f} ms"))
table(("", "weights", "per token"), rows)

# %% [markdown]
# In Triton, `tl.dot_scaled` takes both sides with their scales, or one of them in 16 bits without a scale. It's a
# single line, whatever the GPU, as long as Triton supports the format there. But does the GPU multiply the format, or
# does the compiler unpack it first? Let's compile a tile with 4-bit weights and with activations in bf16, e4m3 or 4
# bits, for two GPUs:
# <!-- given 16 bits: bf16 and fp16 -->


# %%
@triton.jit
def tile_kernel(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    y_ptr,
    X: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALES: tl.constexpr,
):  # 128 x 128 elements: rows of 64 bytes in 4 bits, with 4 (MXFP4) or 8 (NVFP4) scales
    i, packed, block = tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, SCALES)
    x = tl.load(x_ptr + i[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])
    w = tl.load(w_ptr + i[None, :] * 64 + packed[:, None])
    w_scale = tl.load(w_scale_ptr + i[:, None] * SCALES + block[None, :])
    x_scale = None if X == "bf16" else tl.load(x_scale_ptr + i[:, None] * SCALES + block[None, :])
    y = tl.dot_scaled(x, x_scale, X, w, w_scale, "e2m1")
    tl.store(y_ptr + i[:, None] * 128 + i[None, :], y)


# %% tags=["hide-input"]
cases = {
    "bf16 x MXFP4": ("bf16", torch.bfloat16, 128, torch.uint8, 4),
    "e4m3 x MXFP4": ("e4m3", torch.float8_e4m3fn, 128, torch.uint8, 4),
    "MXFP4 x MXFP4": ("e2m1", torch.uint8, 64, torch.uint8, 4),
    "NVFP4 x NVFP4": ("e2m1", torch.uint8, 64, torch.float8_e4m3fn, 8),
}
rows = []
for name, (kind, dtype, width, scale_dtype, count) in cases.items():
    shown = []
    for gpu in ("H200", "B200"):
        scale_of = on_paper(128, count, dtype=scale_dtype)
        tensors = (on_paper(128, width, dtype=dtype), scale_of)
        tensors += (on_paper(128, 64, dtype=torch.uint8), scale_of, on_paper(128, 128))
        options = {"X": kind, "WIDTH": width, "SCALES": count}
        try:
            found = compile_for(tile_kernel, *tensors, device=gpu, **options).instructions
            shown.append(", ".join(f"{n} {op}" for op, n in found.items() if "MMA" in op))
        except ValueError:
            shown.append("does not compile")
    rows.append((name, *shown))
table(("", "H200", "B200"), rows)

# %% [markdown]
# `HGMMA` is Hopper's matmul, here in **bf16**. An H200 doesn't have a 4-bit matmul, so the compiler unpacks MXFP4 into
# bf16 first. That saves bytes but no arithmetic, and you pay for the unpacking on top. NVFP4 doesn't compile for it at
# all with this version of Triton. On a B200, `UTCQMMA` multiplies 8-bit elements, here with scales, and `UTCOMMA`
# multiplies 4-bit ones, in MXFP4 or NVFP4. According to NVIDIA's data sheet, halving the bits doubles the rate; the
# counts fit that. But if the activations are bf16, even a B200 has to unpack: `UTCHMMA`. **Just because you can store a
# format doesn't mean the GPU can multiply it.** With few tokens, storing it may be enough, as long as unpacking keeps
# up. With many tokens, only multiplying it helps.
# <!-- given 8 bits, 4 bits: e4m3 and e2m1 -->
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel computes `q = (y / scale).to(tl.int8)` and then clamps to -127 and 127. Its tests pass. Name an input that
#    breaks it, and the output for that input.
# <details><summary>Answer</summary>Any value beyond 127 steps, for example because of a clip. The result is undefined.
# If the low byte is kept, 200 becomes -56. (It also truncates instead of rounding.)</details>
#
# 2. A colleague gives each row of the activations its own scale, but the error is still large. Which columns do you
#    look at, and what do you suggest?
# <details><summary>Answer</summary>A few columns that are large in every row, because they determine each row's scale.
# Use a scale per block of a row, or FP8, whose error is proportional to each element. Or divide those columns by a
# factor and multiply their weights by it.</details>
#
# 3. Int8 weights make your model twice as fast for one user. What will they do for a batch of 4096 tokens?
# <details><summary>Answer</summary>In a dense layer, nothing, or they'll make it slower. The tensor cores are the
# limit, and they still multiply in bf16, with unpacking on top. FP8 or int8 on both sides could still help, and int8
# weights still help experts with few tokens each.</details>
#
# 4. Why can a matmul's epilogue quantise with one scale per 128 outputs, but not with one per row?
# <details><summary>Answer</summary>The row is spread over several programs, so none of them knows its largest
# magnitude. You'd need programs that hold whole rows, or a cluster of thread blocks that exchange their maxima. CUDA
# has had those since Hopper, but Triton can't use them that way.</details>
#
# 5. Per-block scales add almost nothing to the time of an FP8 kernel like DeepSeek's on Hopper. Why?
# <details><summary>Answer</summary>Because of the narrow adder, it has to restart its sums every 128 terms anyway. The
# scale just turns each fp32 addition into a multiply-add.</details>
#
# 6. There are 32 experts, and each token takes 4. How many experts do 8 tokens read on average? Replace the dots with
#    your number, to one decimal place.

# %%
answer = ...
self_test(answer, round(ExpertLayer(32, 4, 1, 1).touched(8), 1), "E (1 - (1 - k/E)^T)")

# %% [markdown]
# ## Now you
#
# In [Exercise 12](../exercises/12_layer_norm_int8.ipynb) you'll write LayerNorm and int8 as one kernel that also
# handles rows of zeros and rows with NaN.

# %% [markdown]
# ## Going further
#
# ### Grouped matmul
#
# With just one token, its 8 experts fit in one small kernel. But with 8192 tokens you have 64 matmuls, each with a
# different number of rows, and you don't know those numbers until the router has chosen. Launching them separately
# would take 64 kernels, plus a round trip to the host to find out their sizes. The grouped matmul (in
# `kernels/tiled/moe_int8.py`) is a single launch. Its grid is large enough for the worst case. Each program counts
# through the experts' tiles until it finds its own, and surplus programs exit immediately:

# %% tags=["hide-input"]
from kernels.tiled.moe_int8 import moe_int8_kernel

source = inspect.getsource(moe_int8_kernel.fn).splitlines()
first, last = (
    next(n for n, line in enumerate(source) if text in line) for text in ("tiles_out =", "entry = ")
)
print(inspect.cleandoc("\n" + "\n".join(source[first : last + 1])))

# %% [markdown]
# A tile has room for at least 32 tokens, and an expert's last tile is rarely full. With 8 of 64 experts per token and
# tiles of 32, you get:

# %% tags=["hide-input"]
draw = torch.Generator().manual_seed(0)
found = []
for tokens in (128, 512, 8192):
    chosen = torch.randn(tokens, 64, generator=draw).topk(8, dim=-1).indices
    count = torch.bincount(chosen.flatten(), minlength=64)
    padded = 32 * ((count + 31) // 32).sum().item()
    empty = 100 * (1 - tokens * 8 / padded)
    found.append((tokens, f"{count.min()} to {count.max()}", f"{empty:.0f} %"))
table(("tokens", "per expert", "empty rows in the tiles"), found)

# %% [markdown]
# With few tokens, half of the arithmetic is wasted, **but it hardly matters**, because arithmetic isn't the bottleneck
# there. With many tokens it would matter, but then the share of padding falls, and you can use larger tiles. So our
# kernel chooses its tiles by the mean number of tokens per expert. There are separate kernels for up to 8 and up to 64
# tokens, because with so little work, an extra launch to list each expert's tokens would take a large part of the time.
#
# ### All formats and token counts
#
# `int8` uses one byte per element on both sides and calls NVIDIA's library through PyTorch. It should be as fast as
# FP8, but here the library's int8 matmul is slower. (PyTorch also refuses to call it for 16 tokens or fewer.)

# %% tags=["hide-input"]
large = ExpertLayer(1, 1, 8192, 28672)
kept_as = {"int8": "FP8 both", "fp8": "FP8 both", "mxfp4 weights": "MXFP4 weights"}
rows = []
for tokens, ways in formats.items():
    for name, time in ways.items():
        kept = FORMATS[kept_as.get(name.split(",")[0], name)]
        least = max(seconds(large.work(tokens, kept), kept, DEVICES["H200"]))
        shown = (f"{1e6 * each:.0f} us" for each in (time.median, least))
        way = name.replace("a scale a", "scale per")
        rows.append((counted(tokens), way, *shown, f"{ways['bf16'].median / time.median:.2f}x"))
columns = ("", "", "time", "lower bound", "speedup over bf16")
table(columns, rows, h200.label_of("quantised_formats"))

# %% [markdown]
# ### FP8 sums of mixed sign

# %% tags=["hide-input"]
rows = []
for terms, ways in sums.items():
    for name, error in ways.items():
        both = (f"{100 * error[kind]:.4f} %" for kind in ("both signs", "positive"))
        rows.append((f"{terms} terms", name.replace("a scale a", "scale per"), *both))
title = f"{h200.label_of('quantised_fp8_sums')}\nerror of sums"
table(("", "", "of mixed sign", "of positive numbers"), rows, title)

# %% [markdown]
# If the signs are mixed, the accumulator stays small, and rounding to e4m3 loses far more than the adder does.
# For sums of 8192 terms and more, cuBLAS's fast sums lose less than ours.
#
# ### LayerNorm and int8 in every recorded shape

# %% tags=["hide-input"]
h200.table("layer_norm_int8", "bfloat16")
