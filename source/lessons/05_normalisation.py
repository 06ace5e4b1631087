# %% [markdown]
# # 05 Normalisation: one row, one program
#
# LayerNorm subtracts a row's mean and divides by its standard deviation, so adding ten thousand to every element of the
# row shouldn't change the result. There are three well-known formulas for the variance, and on paper they're
# equivalent. **In a kernel, one of the three returns garbage for that row. Which one, and why?**
#
# In this lesson you'll learn to
#
# - write a norm of any width as one kernel that reads each row once and writes it once;
# - choose a formula for the variance and predict how many digits it loses at a given mean;
# - pick the right dtype for a sum;
# - fuse the residual before the norm and the activation after it, and handle rows too wide for one block;
# - judge a published speedup by its baseline.
#
# About 60 minutes. You should have done [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb). The
# exercises are [05](../exercises/05_layer_norm.ipynb) and [05b](../exercises/05b_residual_rms_norm.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import traffic_chart, watch
from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
torch.manual_seed(0)
x = torch.randn(64, 1024, device=device)

# %% [markdown]
# The animation shows every pass over one tensor, x. Press **Play** and count how many times each row is read: every read
# leaves a stroke on it.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("norm")

# %% [markdown]
# ## The cost of the unfused version
#
# Written in plain PyTorch, every step of the formula is a separate operator:


# %%
def unfused_norm(x):
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5)


# %% [markdown]
# Suppose a ReLU comes next. **How many bytes per element does `relu(unfused_norm(x))` move, in fp32?** Go through the
# code line by line, and count four bytes per element every time a tensor as large as x is read or written.
# (`centred * centred` reads its one input once.) The means are tiny, so ignore them.

# %% tags=["hide-input"]
unfused_bytes = predict_first("bytes per element, relu(layer_norm) unfused", unit="B")
unfused_bytes

# %% tags=["hide-input"]
unfused = measure(lambda: torch.relu(unfused_norm(x)))
display(unfused.launch_table())
unfused_bytes.compare(unfused.bytes_total / x.numel())

# %% [markdown]
# A fused kernel only has to read `x` and write the result, so there's a lot to save. The catch is that the mean and the
# variance are [reductions](../docs/glossary.md#reduction) over a row, so a program needs **the whole row**. If it holds
# the row, neither value ever goes to memory. Our first kernels work this way, with one program per row.
#
# ## A first kernel
#
# A row can have any length, but the length of a Triton block must be a power of two. So we round up to the next power
# of two and mask off the extra positions, called [padding](../docs/glossary.md#padding). Masked positions load 0, which
# doesn't affect a sum.


# %%
@triton.jit
def first_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    centred = x - mean
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + column, y, mask=inside)


def normalise(kernel, x):
    y, columns = torch.empty_like(x), x.shape[1]
    kernel[(len(x),)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


# %% tags=["hide-input"]
def error(kernel, x):
    exact = F.layer_norm(x.double(), x.shape[1:])
    return (normalise(kernel, x) - exact).abs().max().item()


shifted = x[:, :1000].contiguous() + 3
print("1024 columns, right to 1e-5:", error(first_kernel, x) < 1e-5)
print("1000 columns, mean 3, right to 1e-5:", error(first_kernel, shifted) < 1e-5)
measure(normalise, first_kernel, shifted)

# %% [markdown]
# We're down to one launch, one read and one write, but the result is wrong for rows that don't fill the block. The
# meter doesn't complain, because the masks on the load and the store are correct. The bug is somewhere in between. Step
# through a row of ten in a block of sixteen, and watch the last six positions:

# %%
two_four = torch.tensor([[2.0, 4.0] * 5], device=device)
watch(first_kernel[(1,)], two_four, torch.empty_like(two_four), 10, BLOCK=16)

# %% [markdown]
# A row of alternating 2s and 4s has mean 3 and variance 1. **Suppose it fills 1000 of 1024 positions. What variance
# does the kernel compute?**

# %% tags=["hide-input"]
wrong_variance = predict_first("variance found by the first kernel", unit="")
wrong_variance

# %% tags=["hide-input"]
result = normalise(first_kernel, torch.tensor([2.0, 4.0] * 500, device=device)[None])
found = 1 / result[0, 1].item() ** 2  # the kernel divides by its square root
wrong_variance.compare(
    round(found, 4),
    "Padding loads as 0, but then the kernel subtracts the mean from every position, so each of "
    "the 24 padding positions adds the mean squared to the sum. A larger mean makes it worse. "
    "With a mean of 0 you don't see it, so tests that only use randn pass.",
)

# %% [markdown]
# Here's a smaller version: three rows of five, in blocks of eight, and a kernel that should store each row's variance.
# As written, only one row comes out right. **Fix the marked line so that all three do.** `tl.where(condition, a, b)`
# picks `a` where the condition is true and `b` elsewhere.


# %%
@triton.jit
def variance_kernel(x_ptr, variance_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0)
    centred = x - tl.sum(x) / columns  # <- here
    tl.store(variance_ptr + row, tl.sum(centred * centred) / columns)


three_rows = torch.tensor([[1.0, 2, 3, 4, 5], [-8, -6, 0, 6, 8], [10, 11, 12, 13, 20]])
puzzle(variance_kernel, 3, three_rows, wanted=three_rows.var(1, correction=0), columns=5, BLOCK=8)

# %% [markdown]
# <details><summary>Answer</summary><code>centred = tl.where(inside, x - tl.sum(x) / columns, 0.0)</code>: mask a value
# again before you sum it. The row that was already right has mean 0.</details>
#
# <!-- choices
# centred = x - tl.sum(x) / columns
#
# centred = x - tl.sum(x) / BLOCK
#
# centred = tl.where(inside, x, 0.0) - tl.sum(x) / columns
#
# centred = tl.where(inside, x - tl.sum(x) / columns, 0.0)
#
# centred = tl.where(inside, x - tl.sum(x) / BLOCK, 0.0)
# -->
#
# Here's the whole kernel with the second mask added:


# %%
@triton.jit
def two_pass_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + column, y, mask=inside)


print("1000 columns, mean 3, right to 1e-5:", error(two_pass_kernel, shifted) < 1e-5)

# %% [markdown]
# ## Three formulas for the variance
#
# Our kernel goes over the row in its registers twice, first for the mean and then for the variance. A popular formula,
# $\mathrm{E}[x^2] - \mathrm{E}[x]^2$, needs only one pass. It doesn't even need the second mask. Only these two lines
# change:
#
# ```python
# variance = tl.sum(x * x) / columns - mean * mean
# y = (x - mean) * tl.rsqrt(variance + 1e-5)
# ```
#
# **fp32 has about seven decimal digits. At a mean of 100 and a variance of 1, how many digits of the variance are
# right?** Compare the size of the two terms with their difference. The leading digits they have in common cancel.

# %% tags=["hide-input"]
digits = predict_first("right digits of the variance, one pass, mean 100", unit="digits")
digits


# %% tags=["hide-input"]
@triton.jit
def one_pass_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    variance = tl.sum(x * x) / columns - mean * mean
    y = (x - mean) * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + column, y, mask=inside)


@triton.jit
def one_pass_variance_kernel(x_ptr, variance_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    mean = tl.sum(x) / columns
    tl.store(variance_ptr + row, tl.sum(x * x) / columns - mean * mean)


# %% tags=["hide-input"]
near_100 = torch.randn(400, 1000, generator=torch.Generator().manual_seed(1)).to(device) + 100
found, exact = torch.empty(400, device=device), near_100.double().var(1, correction=0)
one_pass_variance_kernel[(400,)](near_100, found, 1000, BLOCK=1024)
right_digits = -torch.log10((found / exact - 1).abs())
digits.compare(
    round(right_digits.median().item(), 1),
    f"That's the median of 400 rows; the worst row has {right_digits.min():.1f}. Both terms are "
    "near 10,000 and their difference is near 1, so four of the seven digits cancel.",
)

# %% [markdown]
# This is called **cancellation**. Now let's run both kernels at a mean of ten thousand:

# %% tags=["hide-input"]
rows = []
for mean in (0, 100, 10_000):
    one, two = (error(kernel, x[:8] + mean) for kernel in (one_pass_kernel, two_pass_kernel))
    rows.append((mean, one < 0.1, two < 0.1))
table(("mean", "one pass right to 0.1", "two passes"), rows)

# %% [markdown]
# The third formula is [Welford's](../docs/glossary.md#welford). For each part of a row it keeps three values: the
# count, the mean, and the sum of squared deviations from that mean. To merge two parts, you combine their triples. The
# merge squares only the difference between two means, which is small even when the means themselves are large, so it
# never subtracts one huge square from another. Triton's `tl.reduce` takes any merge function like this:


# %%
@triton.jit
def merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    share = count_b / tl.maximum(count, 1.0)  # avoids 0/0 when both parts are padding
    apart = mean_b - mean_a
    squares = squares_a + squares_b + apart * apart * count_a * share
    return mean_a + apart * share, squares, count


# %% [markdown]
# We start with one part per position. Its mean is the element itself, its squares are 0, and its count is 1 (or 0 for
# padding).


# %%
@triton.jit
def welford_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    parts = (x, tl.zeros_like(x), inside.to(tl.float32))
    mean, squares, count = tl.reduce(parts, 0, merge)
    y = (x - mean) * tl.rsqrt(squares / count + 1e-5)
    tl.store(y_ptr + row + column, y, mask=inside)


# %% tags=["hide-input"]
print("Welford, mean 3, right to 1e-5:", error(welford_kernel, shifted[:4]) < 1e-5)
print("Welford, mean 10,000, right to 0.1:", error(welford_kernel, x[:4] + 10_000) < 0.1)

# %% [markdown]
# ## The error at each mean
#
# Change the mean with the mouse or the arrow keys. As on a GPU, the sums add pairs, then pairs of pairs (a *tree*), and
# round at every step.
#
# 1. How much steeper is the one-pass line than the other two, and why?
# 2. At what mean does the result become NaN? How can a *variance* cause that?
# 3. Switch to fp16. Now two passes fail too, but not because of cancellation. What goes wrong? (The largest fp16 number
#    is 65504.)
# 4. Switch to fp64. At a mean of ten thousand, is one pass good enough?

# %% tags=["hide-input"]
from helpers.figures import VarianceExplorer

explorer = VarianceExplorer(mean=100.0, columns=1024, arithmetic="fp32")
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. Twice as steep, because it squares the mean before subtracting. 2.
# At 10,000, in fp32: the difference between the two rounded terms comes out negative, so its square root is NaN. The
# sign is a matter of luck. At 32,000, with 1024 columns, it happens to be positive, but not a single digit is right. 3.
# The sum of the row overflows to infinity. 4. Yes. fp64 has about sixteen digits, and you lose eight of them.</details>
#
# Even two passes and Welford lose digits at a large mean, because the mean itself gets rounded, and everything computed
# from it inherits the error. (The rounding of the *input* isn't included here: the reference uses the same rounded row.
# *Going further* shows a trick that keeps the mean small.)
#
# So should we use Welford? If you can only stream through a row once, yes. But our row is already in registers, so a
# second pass doesn't touch memory:

# %% tags=["hide-input"]
row, rows = torch.empty(8, 4096, device="meta"), []
for kernel in (one_pass_kernel, two_pass_kernel, welford_kernel):
    made = compile_for(kernel, row, row, 4096, device="H100", BLOCK=4096, num_warps=8)
    total = sum(made.instructions.values())
    counts = (made.instructions[name] for name in ("SHFL", "LDG.128"))
    rows.append((kernel.fn.__name__, total, *counts, made.registers))
table(("", "instructions", "shuffles", "wide loads", "registers per thread"), rows)

# %% [markdown]
# All three load the row once. (In a *shuffle*, the threads of a warp read each other's registers, here to add them up.)
# Welford takes twice as many instructions as two passes and isn't any more accurate, so for a row in registers **we use
# two passes**. Merging pays off when a row arrives in chunks, as we'll see below.
#
# ## The dtype of the sum
#
# Most models use bf16 tensors. A loaded block keeps its tensor's dtype, and sums over it inherit that dtype unless you
# cast. bf16 has eight significant bits, and ties round to even. **Take a row of 4096 ones and add them one after
# another in bf16. What's the sum?**

# %% tags=["hide-input"]
ones_sum = predict_first("4096 ones added one after another in bf16", unit="")
ones_sum

# %% tags=["hide-input"]
total = torch.zeros((), dtype=torch.bfloat16)
for one in torch.ones(4096, dtype=torch.bfloat16):
    total = total + one
ones_sum.compare(
    total.item(),
    "From there, the next bf16 number is 258, so each added 1 is rounded away.",
)

# %% [markdown]
# A GPU adds in a tree, which loses less, but if the block is bf16, so are the additions. fp16 has more digits but runs
# into a different limit. The kernel below should store the mean of each fp16 row. Every one of these means fits in
# fp16. **Fix the marked line.**


# %%
@triton.jit
def mean_kernel(x_ptr, mean_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    mean = tl.sum(x) / columns  # <- here
    tl.store(mean_ptr + row, mean)


thousands = (torch.arange(15.0).view(3, 5) * 2000 + 1000).half()
puzzle(mean_kernel, 3, thousands, wanted=thousands.double().mean(1).half(), columns=5, BLOCK=8)

# %% [markdown]
# <details><summary>Answer</summary><code>mean = tl.sum(x.to(tl.float32)) / columns</code>, or cast right after the
# load. In two of the rows, the sum exceeds 65504.</details>
#
# <!-- choices
# mean = tl.sum(x) / columns
#
# mean = tl.sum(x.to(tl.float32)) / BLOCK
#
# mean = tl.sum(x).to(tl.float32) / columns
#
# mean = tl.sum(x.to(tl.float32)) / columns
#
# mean = tl.sum(x.to(tl.float16)) / columns
# -->
#
# **Cast to fp32 right after the load, add in fp32, and let the store round the result.** If you forget, the meter won't
# catch it, because the byte count doesn't change. Every kernel in the course follows this rule. (So do matmuls: their
# operands have 16 bits, but the [accumulator](../docs/glossary.md#accumulator), which holds the running sum, has 32.)
# <!-- given 16 bits, 32 bits: PTX ISA, mma -->
#
# ## Before and after the norm
#
# **Claim: relu(layer_norm(x)) takes ten memory operations written out and two fused, so fusing cuts the traffic to a
# fifth.** A memory operation here means one pass over the whole tensor. Adding ReLU to our kernel takes one more line
# and moves no extra bytes, so we can use the traffic of `two_pass_kernel` for the fused version.

# %% tags=["hide-input"]
fused = measure(normalise, two_pass_kernel, x)
passes = sum(m.read // x.nbytes + m.written // x.nbytes for _, m in unfused.by_launch)
ratio = unfused.bytes_total / fused.bytes_total
print(f"unfused: {passes} passes, {ratio:.1f} times the bytes")
library = measure(lambda: torch.relu(F.layer_norm(x, (1024,))))
ratio = library.bytes_total / fused.bytes_total
print(f"F.layer_norm, then relu: {library.launches} launches, {ratio:.1f} times the bytes")
chart = traffic_chart({"unfused": unfused, "fused": fused})
unfused_bytes.on(
    chart, "x", lambda nbytes: nbytes * x.numel(), row=0, says=lambda b: f"{b / 1e6:.4g} MB"
)

# %% [markdown]
# **Verdict: it's literally true, but against a baseline that you don't have to use.** PyTorch's own `F.layer_norm` is
# already a fused kernel, and against that, the bytes allow far less. **A speedup means nothing without its baseline.**
# Here are the times on a GPU. (Where the gain exceeds what the bytes allow, the baseline was slower than a copy, or
# moved more than the meter assumes.) `eager` is `F.layer_norm` followed by an activation, and `fused` is the course's
# `layer_norm_act`: our kernel plus a weight, a bias and the activation.

# %% tags=["hide-input"]
h200.table("layer_norm_act", "bfloat16")

# %% [markdown]
# ## The residual before the norm
#
# The sum of the input and the residual is used twice: by this norm, and by a later layer as its residual. So even a
# fused kernel has to write it. **By what factor does fusing reduce the bytes, compared with `x + r` followed by
# `F.layer_norm`?** Count the passes.

# %% tags=["hide-input"]
fewer = predict_first("bytes of x + r followed by layer_norm ÷ bytes of one kernel", unit="times")
fewer

# %% tags=["hide-input"]
from kernels import residual_layer_norm

r = torch.randn_like(x)
ones, zeros = torch.ones(1024, device=device), torch.zeros(1024, device=device)


def add_then_norm(x, r):
    s = x + r
    return F.layer_norm(s, (1024,), ones, zeros), s


apart = measure(add_then_norm, x, r)
together = measure(residual_layer_norm, x, r, ones, zeros)
display(apart.launch_table())
fewer.compare(
    apart.bytes_total / together.unique_total,
    "Fusing cuts five passes to four. (Every program reads the weight and the bias, but from "
    "cache, so we count them once here.)",
)

# %% [markdown]
# **Claim: fusing the residual into LayerNorm makes it 1.94 times faster.**

# %% tags=["hide-input", "answers-fewer"]
h200.table("residual_layer_norm", "bfloat16")

# %% [markdown]
# These speedups exceed what the bytes allow, because PyTorch's kernel loads each row twice (the meter assumes once) and
# doesn't reach copy bandwidth, while ours nearly does. With rows of 1024 (the second line), we get close to the claimed
# figure. Wider rows stay well below it. On the smallest tensor, the GPU time improves by more than that, but a call
# from Python takes longer than before. **Verdict: it's about right for one size**, which the claim doesn't name.
# `torch.compile` finds the same fusion and comes close.
#
# ## RMSNorm
#
# RMSNorm drops the mean: `x / sqrt(mean(x^2) + eps)`. Padding does no harm, because 0 squared is 0. Nothing cancels,
# because nothing is subtracted. So one pass is safe. In [Exercise 05b](../exercises/05b_residual_rms_norm.ipynb) you'll
# fuse it with a residual.
#
# ## Rows too wide for one block
#
# So far we've kept the whole row in registers, **highlighted below**. Each SM divides its registers among the programs
# it's running.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H100", lit="registers")

# %% [markdown]
# **How many fp32 elements can a program of 16 warps hold, if each thread has 128 registers and uses them for nothing
# else?**
# <!-- given 128 registers: the question's own -->

# %% tags=["hide-input"]
widest = predict_first("elements in the registers of 16 warps, 128 per thread", unit="")
widest

# %% tags=["hide-input"]
rows = []
for columns in (4096, 16384, 32768, 65536):
    row = torch.empty(8, columns, device="meta")
    options = {"device": "H100", "BLOCK": columns, "num_warps": 16}
    made = compile_for(two_pass_kernel, row, row, columns, **options)
    occupied = f"{made.occupancy().fraction:.0%}"
    rows.append((columns, made.registers, occupied, f"{made.spill_bytes} B"))
display(table(("columns", "registers per thread", "occupancy", "spilled"), rows))
widest.compare(
    16 * 32 * 128,
    "At that width the row alone would fill every register, with no room for addresses and "
    "sums, so the kernel spills some of them to memory.",
)

# %% [markdown]
# ([Occupancy](../docs/glossary.md#occupancy) is the fraction of an SM's warp slots that are in use; lesson 07 covers
# it.) We process rows this wide in chunks: one loop computes the mean and the variance, and a second loop writes the
# result. This is where Welford's merge pays off. We compute each chunk's mean and squares with two passes in registers,
# then merge them into the `mean` and `squares` of the columns so far:


# %%
@triton.jit
def add_chunk(mean, squares, seen, columns, x, inside):
    count = tl.minimum(columns - seen, x.shape[0]).to(tl.float32)
    chunk_mean = tl.sum(tl.where(inside, x, 0.0)) / count
    centred = tl.where(inside, x - chunk_mean, 0.0)
    apart, share = chunk_mean - mean, count / (seen + count)
    squares += tl.sum(centred * centred) + apart * apart * seen * share
    return mean + apart * share, squares


# %%
@triton.jit
def wide_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * columns
    y_ptr += tl.program_id(0).to(tl.int64) * columns
    position = tl.arange(0, BLOCK)
    mean, squares = 0.0, 0.0
    for start in range(0, columns, BLOCK):
        inside = start + position < columns
        x = tl.load(x_ptr + start + position, mask=inside, other=0.0).to(tl.float32)
        mean, squares = add_chunk(mean, squares, start, columns, x, inside)
    rstd = tl.rsqrt(squares / columns + 1e-5)  # one over the standard deviation
    for start in range(0, columns, BLOCK):
        inside = start + position < columns
        x = tl.load(x_ptr + start + position, mask=inside).to(tl.float32)
        tl.store(y_ptr + start + position, (x - mean) * rstd, mask=inside)


# %% tags=["hide-input"]
def normalise_wide(x):
    y = torch.empty_like(x)
    wide_kernel[(len(x),)](x, y, x.shape[1], BLOCK=4096)
    return y


long = torch.randn(2, 40_000, device=device) + 1000
exact = F.layer_norm(long.double(), (40_000,))
print("right to 1e-3:", bool((normalise_wide(long) - exact).abs().max() < 1e-3))
wide = measure(normalise_wide, long)
print(wide)
print(f"distinct bytes: {wide.unique_total / long.numel():.0f} B/element")

# %% [markdown]
# That's three passes instead of two. But the second read follows soon after the first, so the row may still be in
# [L2](../docs/glossary.md#l2), the cache that all SMs share. In the next lesson we'll see when that works.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why does the variance need a second mask when `tl.sum(x) / columns` doesn't?
# <details><summary>Answer</summary>Padding loads as 0, so it adds nothing to the sum of x. Once you've subtracted the
# mean, each padding position holds minus the mean, and the square of that isn't 0.</details>
#
# 2. Your LayerNorm passes a test on `torch.randn(128, 1000)`. Name two bugs from this lesson that it could still have.
# <details><summary>Answer</summary>Padding in the variance, and the one-pass formula: neither shows when the mean is
# near 0. Or a missing cast to fp32, which doesn't show in fp32.</details>
#
# 3. Why is it safe for RMSNorm to compute its mean square in one pass?
# <details><summary>Answer</summary>It only adds squares, so there's nothing to cancel.</details>
#
# 4. Your LayerNorm is right in fp32 but off by a tenth in bf16. The loads, stores and masks are correct. What did
#    you forget?
# <details><summary>Answer</summary><code>.to(tl.float32)</code> after the load. Without it, the sums are computed in
# bf16.</details>
#
# 5. A blog post reports a LayerNorm that's four times faster. What should you ask?
# <details><summary>Answer</summary>Faster than what: unfused operators, PyTorch's own kernel, or torch.compile? And at
# what size?</details>
#
# 6. Residual + RMSNorm + SiLU: `s = x + r`, `y = silu(rms_norm(s))`, and you need both `s` and `y`. Compare three
#    kernels, each reading and writing its own tensors, with a single fused one. By what factor does the fused kernel
#    reduce the bytes? Replace the dots with your answer.

# %%
answer = ...
self_test(
    answer,
    7 / 4,
    "add takes 3 passes, norm 2 and silu 2; the fused kernel reads 2 tensors and writes 2",
)

# %% [markdown]
# ## Now you
#
# In [Exercise 05](../exercises/05_layer_norm.ipynb) you'll write a LayerNorm that handles any width and any mean, and
# in [05b](../exercises/05b_residual_rms_norm.ipynb) a fused residual and RMSNorm. Next up is [06
# Softmax](06_softmax.ipynb), which needs a row's maximum before it has seen the whole row.

# %% [markdown]
# ## Going further
#
# ### 16-bit sums in the machine code
#
# Here's what the compiler makes of `tl.sum` on a bf16 row, with and without a cast after the load:


# %%
@triton.jit
def any_dtype_kernel(x_ptr, y_ptr, columns, WIDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)
    if WIDEN:
        x = x.to(tl.float32)
    mean = tl.sum(x) / columns
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + column, y, mask=inside)


# %% tags=["hide-input"]
narrow_row = torch.empty(8, 4096, dtype=torch.bfloat16, device="meta")
for widen in (False, True):
    options = {"WIDEN": widen, "BLOCK": 4096, "device": "H100", "num_warps": 8}
    made = compile_for(any_dtype_kernel, narrow_row, narrow_row, 4096, **options)
    print(f"WIDEN={widen!s:5} additions in 16 bits (HADD2): {made.instructions['HADD2']}")

# %% [markdown]
# These come from the first `tl.sum`: 15 additions in each thread for its 16 elements, 5 across the warp, and 3 across
# the eight warps. (Dividing by `columns` gives fp32, so everything after that is fp32, including the second sum. Only
# the sum for the mean is in bf16.) A mean of 3 is already enough to spoil the result. We can't blame the kernel for the
# rounding of its input, so we compare both versions with the exact norm of the rounded row:


# %% tags=["hide-input"]
def error_from_bf16(widen, mean):
    narrow = (x[:8, :1000] + mean).bfloat16()
    y = torch.empty(narrow.shape, device=device)  # fp32: the arithmetic's error, not the store's
    any_dtype_kernel[(8,)](narrow, y, 1000, WIDEN=widen, BLOCK=1024)
    return (y - F.layer_norm(narrow.double(), (1000,))).abs().max().item()


rows = []
for mean in (0, 3, 100):
    rows.append((mean, *(error_from_bf16(widen, mean) < 0.002 for widen in (False, True))))
table(("mean", "WIDEN=False", "WIDEN=True"), rows, "right to 0.002?")

# %% [markdown]
# ### L2 norm
#
# The L2 norm (no relation to the L2 cache) divides by the square root of the sum of squares. **Claim: a fused L2 norm
# is 3 to 5 times faster.** (`eager` in the table is the second of the two versions here.)

# %% tags=["hide-input"]
from kernels import l2_norm

l2_versions = {
    "F.normalize": lambda: F.normalize(x, dim=-1),
    "unfused": lambda: x / (x * x).sum(-1, keepdim=True).sqrt(),
}
minimum = measure(l2_norm, x).bytes_total
for name, version in l2_versions.items():
    moved = measure(version)
    ratio = moved.bytes_total / minimum
    print(f"{name}: {moved.launches} launches, {ratio:.2f} times the bytes")
one_in_one_out = 2 * 2 * 32768 * 16384  # bytes, in bf16
l2 = h200.times("l2_norm", (32768, 16384), "bfloat16")
share = ratio * one_in_one_out / l2["eager"].median / h200.copy_bandwidth
print(f"32768 x 16384: unfused, it moves its bytes at {share:.0%} of copy bandwidth")
h200.table("l2_norm", "bfloat16")

# %% [markdown]
# **Verdict: it holds for GPU time at every size; the last column shows the gain for a call from Python.** The byte
# count explains only part of it. At the size printed above, the rest comes from unfused kernels that don't reach copy
# bandwidth. If they did, the speedup would equal the ratio of the bytes, and over `F.normalize` it would be smaller
# still. `torch.compile` gets the full gain too.
#
# ### LayerNorm and RMSNorm, operator by operator
#
# Model code often spells out a norm: convert to fp32, normalise, round, multiply by the weight. Below is the RMSNorm
# from transformers' Llama, line by line, and a LayerNorm in the same style:

# %%
import inspect

from benchmarks.experiments.lesson_05 import NORMS, RECORD, inputs

for by_operator, *_ in NORMS.values():
    print(inspect.getsource(by_operator))

# %% [markdown]
# **Claim: LayerNorm and RMSNorm run 2 to 4 times faster fused.** It doesn't name a baseline, so we'll try three, all in
# bf16: the operators above, PyTorch's own function, and the operators under `torch.compile`. First, the metered bytes.
# (On a CPU, PyTorch's RMSNorm runs several operators, while on a GPU it's one kernel. That's why only LayerNorm has an
# entry under PyTorch's call.)

# %% tags=["hide-input"]
rows = []
for norm, (by_operator, by_pytorch, ours, _) in NORMS.items():
    given = inputs(norm, 64, 1024, dtype=torch.bfloat16, device=device)
    apart, fused = measure(by_operator, *given), measure(ours, *given)
    one_call = measure(by_pytorch, *given).unique_total if norm == "LayerNorm" else None
    bytes_of = (apart.bytes_total, one_call, fused.unique_total)
    shown = ("" if each is None else f"{each / given[0].numel():.1f}" for each in bytes_of)
    rows.append((norm, apart.launches, *shown, f"{apart.bytes_total / fused.unique_total:.1f}x"))
columns = ("B/element", "operators", "by operator", "PyTorch's call", "ours", "bytes allow")
display(table(columns, rows))

# %% tags=["hide-input"]
h100 = recorded(RECORD.removesuffix(".json"))
by_size = h100.experiment("norms_by_operator")
called = h100.experiment("norms_by_operator_called")
OTHERS, rows = ("by operator", "PyTorch", "torch.compile"), []
for clock, found in (("GPU", by_size), ("call", called)):
    for shape, of_norm in found.items():
        for norm, taken in of_norm.items():
            gains = (f"{taken[way].median / taken['ours'].median:.2f}x" for way in OTHERS)
            rows.append((f"{norm}, {shape}", clock, f"{1e6 * taken['ours'].median:.0f} us", *gains))
columns = ("bf16", "clock", "ours", "vs operators", "vs PyTorch", "vs torch.compile")
table(columns, rows, h100.label_of("norms_by_operator", "norms_by_operator_called"))

# %% [markdown]
# **Verdict: in GPU time, it fails against each baseline.** Against the operators, it's far too modest: they move many
# times as many bytes, and do so slowly. Against PyTorch's own function, which is already fused, it's too generous.
# `torch.compile` gets close to our kernel on the large tensors. And if you time the whole call from Python on a small
# tensor, launch overhead dominates: we lose to PyTorch, and only `torch.compile` is slower by as much as claimed.
#
# ### The course's own kernel
#
# `kernels/rowwise/layer_norm.py` does everything you've seen here: two passes in registers, the second mask, fp32 sums,
# chunks for rows that don't fit in registers, and an activation. It adds three ideas:
#
# - **Two blocks per row.** A row of 10000 columns is split into a block of 8192, which is always full and needs no
#   column mask, and a masked block of 2048. A single block of 16384 would waste a large part of its positions.
# - **Several rows per program** when rows are short.
# - **Subtracting the row's first element from the whole row.** On paper this doesn't change the result. In floating
#   point, it makes a large mean small, so rounding the mean does little damage.

# %% tags=["hide-input"]
from kernels import layer_norm

far = x[:8, :1000].contiguous() + 10_000
exact = F.layer_norm(far.double(), (1000,))
ours = (layer_norm(far) - exact).abs().max().item()
print(f"10000 columns in a block of 16384: {1 - 10000 / 16384:.0%} idle")
print("mean 10,000, right to 1e-5: two passes", error(two_pass_kernel, far) < 1e-5, end="")
print(", the course's kernel", ours < 1e-5)

# %% [markdown]
# ### Other widths
#
# Benchmark tables tend to show the sizes a kernel was designed for. Other widths can be slower. If the width isn't a
# power of two, some positions are idle. If it's odd, most rows don't start at a multiple of 16 bytes (lesson 06). So we
# timed the course's kernels and several others at dozens of widths, all in one run. We did this once with enough rows
# to fill a 256 MiB tensor, where memory bandwidth dominates, and once with 2048 rows, where a kernel's ramp-up and tail
# show. (The others are eager PyTorch, `torch.compile`, and two published collections of fused kernels: Liger, written
# in Triton, and QuACK, written in CuTe DSL. *The best peer* is whichever is fastest at that size.) The charts show
# bf16; the first table includes fp32.
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses; 256 MiB: benchmarks/sweep/points.py -->

# %% tags=["hide-input"]
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
for kernel in ("rms_norm", "layer_norm"):
    display(sweep_chart(at_all_sizes, kernel))
display(
    at_all_sizes.summary(["rms_norm", "layer_norm"]), at_all_sizes.calls(["rms_norm", "layer_norm"])
)

# %% [markdown]
# On large tensors, RMSNorm's forward pass runs close to copy bandwidth at nearly every width, powers of two or not. Odd
# widths slow it down, but mostly less than they slow down the others. Where are we behind?
#
# - RMSNorm on many rows. At 12,289 columns, `torch.compile`'s forward pass leads, and at 4,099 its backward pass in
#   fp32.
# - 2048 rows: a kernel that runs for a few microseconds is mostly ramp-up and tail. In the forward pass we're furthest
#   behind at 64 columns in LayerNorm, where `torch.compile` leads, and at 4,096 in RMSNorm, where Liger leads. `fusion
#   bench --recorded --sweep` lists every point.
#
# Rows of 1000 columns could easily be on this list: 1000 is a multiple of 8 but not of 16, the only divisor that Triton
# checks for, so it would load them element by element. So we pass our kernels the divisor of a row's length (`ALIGN`
# in `kernels/rowwise/blocks.py`), and they load eight elements at a time.
#
# The last table shows how long a **call** from Python takes. For work this short, that's mostly launch overhead: *bare
# launch* is an empty kernel with the same arguments. A call adds argument checks, allocation and waiting for the GPU.
# The backward pass also goes through autograd, which is slower in Python than in C++. Eager PyTorch launches from C++,
# so it can win here even when its kernel is slower. In a CUDA graph (lesson 02), only the GPU time is left.
#
# If you have a GPU, try your own shape:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    big = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
    more, weight, bias = torch.randn_like(big), big[0].clone(), big[1].clone()
    versions = {
        "add, layer_norm": lambda: F.layer_norm(big + more, (4096,), weight, bias),
        "fused residual": lambda: residual_layer_norm(big, more, weight, bias),
        "F.normalize": lambda: F.normalize(big, dim=-1),
        "fused L2 norm": lambda: l2_norm(big),
    }
    print(benchmark_together(versions))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
