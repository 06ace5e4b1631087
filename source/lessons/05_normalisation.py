# %% [markdown]
# # 05 Normalisation: one row, one program
#
# LayerNorm subtracts each row's mean and divides by its standard deviation. Add ten thousand to every element of a row,
# and the result must be the same. There are three well-known formulas for the variance, and all of them are correct.
# **Yet one of the three, written into a kernel, returns nonsense for that row. Which, and why?**
#
# After this lesson you can
#
# - write a normalisation of any width as one kernel that reads a row once and writes it once;
# - choose a formula for the variance and predict how many digits it loses at a given mean;
# - choose the dtype of a sum;
# - fuse the step before (a residual) and after (an activation), and handle rows too wide for one block;
# - judge a published speedup by its baseline.
#
# About 50 minutes. It follows on [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb) and leads to
# exercises [05](../exercises/05_layer_norm.ipynb) and [05b](../exercises/05b_residual_rms_norm.ipynb).

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
# The passes over one tensor, x. Press **Play**: how often is each row read?

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("norm")

# %% [markdown]
# ## The cost of the unfused version
#
# Each step of the formula is an operator:


# %%
def unfused_norm(x):
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5)


# %% [markdown]
# Many networks apply a ReLU next. **How many bytes per element does `relu(unfused_norm(x))` move, in fp32?** Go through
# it line by line: each read or write of a tensor of x's size costs four bytes per element; the means are too small to
# matter.

# %% tags=["hide-input"]
unfused_bytes = predict_first("bytes per element, relu(layer_norm) unfused", unit="B")
unfused_bytes

# %% tags=["hide-input"]
unfused = measure(lambda: torch.relu(unfused_norm(x)))
display(unfused.launch_table())
unfused_bytes.compare(unfused.bytes_total / x.numel())

# %% [markdown]
# A fused kernel must read `x` and write the result. Nothing else is large. So fusing can save most of it, if a program
# has **a whole row at once**: then mean and variance, two [reductions](../docs/glossary.md#reduction) over the row, never
# leave it. Every kernel in this lesson is built that way: one row, one program.
#
# ## A first kernel
#
# A block's length is a power of two. Rows have any length. So a program takes the next power of two, and masks the
# positions past the end of the row, its [padding](../docs/glossary.md#padding): they load 0, which adds nothing to a
# sum.


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
# One launch, one read, one write. On rows that do not fill the block it is wrong, and the meter finds no error: the mask
# of every load and store is right. The mistake is between them. Step through a row of ten in a block of sixteen, and
# watch its last six positions:

# %%
two_four = torch.tensor([[2.0, 4.0] * 5], device=device)
watch(first_kernel[(1,)], two_four, torch.empty_like(two_four), 10, BLOCK=16)

# %% [markdown]
# A row of 2s and 4s has mean 3 and variance 1. **It fills 1000 of 1024 positions. What variance does the kernel find?**

# %% tags=["hide-input"]
wrong_variance = predict_first("variance found by the first kernel", unit="")
wrong_variance

# %% tags=["hide-input"]
result = normalise(first_kernel, torch.tensor([2.0, 4.0] * 500, device=device)[None])
found = 1 / result[0, 1].item() ** 2  # the kernel divides by the root of it
wrong_variance.compare(
    round(found, 4),
    "The padding held 0, and then every position subtracted the mean: each of the 24 now adds "
    "the mean's square to "
    "the sum. Larger means make it worse, and a mean of 0 hides it, which is why tests with "
    "randn alone pass.",
)

# %% [markdown]
# Here are three rows of five, in blocks of eight, and a kernel that should store their variances. One row comes out
# right as it stands. **Change the marked line so that all do:** `tl.where(condition, a, b)` picks `a` where the
# condition is true.


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
# <details><summary>Answer</summary><code>centred = tl.where(inside, x - tl.sum(x) / columns, 0.0)</code>: mask again
# wherever a sum follows. The row that was right has mean 0.</details>
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
# The whole kernel, with the second mask:


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
# This kernel goes over the row twice, once for the mean, once for the variance. There is a formula that needs one pass,
# $\mathrm{E}[x^2] - \mathrm{E}[x]^2$, and half the web uses it. It does not even need a second mask. The lines that
# differ:
#
# ```python
# variance = tl.sum(x * x) / columns - mean * mean
# y = (x - mean) * tl.rsqrt(variance + 1e-5)
# ```
#
# **fp32 has about seven decimal digits. At a mean of 100 and a variance of 1, how many of them are right in the
# variance?** Compare the size of the two numbers with that of their difference: the digits that they share cancel.

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
    f"The median of 400 rows; the worst row has {right_digits.min():.1f}. Both terms are near "
    "10,000, their difference "
    "is near 1: four of the seven digits cancel.",
)

# %% [markdown]
# The loss is called **cancellation**. And at a mean of ten thousand, with the kernels:

# %% tags=["hide-input"]
rows = []
for mean in (0, 100, 10_000):
    one, two = (error(kernel, x[:8] + mean) for kernel in (one_pass_kernel, two_pass_kernel))
    rows.append((mean, one < 0.1, two < 0.1))
table(("mean", "one pass right to 0.1", "two passes"), rows)

# %% [markdown]
# The third formula is [Welford's](../docs/glossary.md#welford). It keeps the count, the mean and the sum of squares
# about the mean, and merges the three of one part of a row with the three of another. It squares only distances between
# means, which are small however large the means are, so nothing cancels. A reduction in Triton can use any such merge:


# %%
@triton.jit
def merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    share = count_b / tl.maximum(count, 1.0)  # padding merged with padding counts 0
    apart = mean_b - mean_a
    squares = squares_a + squares_b + apart * apart * count_a * share
    return mean_a + apart * share, squares, count


# %% [markdown]
# Each position begins as a part with one element, which is its own mean: squares 0, count 1 (0 for padding).


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
# Move the mean, with the mouse or the arrow keys. The sums add pairs, then pairs of pairs, as a GPU does (a *tree*),
# and round at each step.
#
# 1. How much steeper is the line of the one pass than the other two? Why should it be?
# 2. At what mean does a result stop being a number? How can a *variance* cause that?
# 3. Choose fp16. Two passes fail as well, but not by cancellation. Why? (The largest fp16 number is 65504.)
# 4. Choose fp64. At a mean of ten thousand, is one pass good enough?

# %% tags=["hide-input"]
from helpers.figures import VarianceExplorer

explorer = VarianceExplorer(mean=100.0, columns=1024, arithmetic="fp32")
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. Twice as steep: it squares the mean before it subtracts. 2. At
# 10,000, in fp32: the difference of two rounded numbers is negative, and a negative variance has no root. That is a
# matter of luck: at 32,000, with 1024 columns, it is positive, and yet not one digit is right. 3. The sum of the row
# exceeds the largest number: infinity. 4. Yes: of about sixteen digits it loses eight.</details>
#
# Even two passes and Welford lose digits at a large mean. They must: the mean is rounded to the digits of its dtype, and
# every result inherits that error. (The rounding of the *input* is not in these errors: the exact result is that of the
# rounded row.)
#
# Is Welford the better choice, then? On a CPU that streams through a row, yes: it reads the row once. But our row is in
# registers, where a second pass reads no memory:

# %% tags=["hide-input"]
row, rows = torch.empty(8, 4096, device="meta"), []
for kernel in (one_pass_kernel, two_pass_kernel, welford_kernel):
    made = compile_for(kernel, row, row, 4096, device="H100", BLOCK=4096, num_warps=8)
    total = sum(made.instructions.values())
    counts = (made.instructions[name] for name in ("SHFL", "LDG.128"))
    rows.append((kernel.fn.__name__, total, *counts, made.registers))
table(("", "instructions", "shuffles", "wide loads", "registers per thread"), rows)

# %% [markdown]
# All three load the row once. (In a *shuffle* the threads of a warp read each other's registers, to add them up.)
# Welford takes twice the instructions for the accuracy of two passes. So: **two passes in registers**. Merging pays off
# where the row comes in chunks, below.
#
# ## The dtype of the sum
#
# Models use bf16 tensors. A block has its tensor's dtype, and so has everything computed from it. bf16 keeps eight
# binary digits. **A row has 4096 ones. Add them one after another in bf16: what is the sum?**

# %% tags=["hide-input"]
ones_sum = predict_first("4096 ones added one after another in bf16", unit="")
ones_sum

# %% tags=["hide-input"]
total = torch.zeros((), dtype=torch.bfloat16)
for one in torch.ones(4096, dtype=torch.bfloat16):
    total = total + one
ones_sum.compare(
    total.item(), "From there, adding 1 does not reach the next bf16 number and is rounded away."
)

# %% [markdown]
# A GPU adds in a tree, which loses less, but it still adds in bf16 if the block is bf16. fp16 has more digits and
# another limit. This kernel should store the mean of each row of fp16 elements; each mean fits. **Change the marked
# line.**


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
# <details><summary>Answer</summary><code>mean = tl.sum(x.to(tl.float32)) / columns</code>: or cast right after the load.
# The sums of two rows exceed 65504.</details>
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
# **Widen right after the load, add in fp32, and let the store round, once.** The bytes are the same, so the meter cannot
# remind you. (Matmuls do the same: their operands have 16 bits, the [accumulator](../docs/glossary.md#accumulator),
# which holds the sum so far, has 32. <!-- given 16 bits, 32 bits: PTX ISA, mma -->) Every kernel of the course does it.
#
# ## Before and after the norm
#
# **Claim: "relu(layer_norm(x)) written out: ten memory operations, fused two: five times less traffic."** A memory
# operation here is one pass over the whole tensor. In our kernel ReLU is one more line and not a byte, so its traffic is
# that of `two_pass_kernel`.

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
# **Verdict: holds to the letter, against a baseline that you don't have to use.** PyTorch's own `F.layer_norm` is
# already a fused kernel, and against that the bytes allow far less. **A speedup means nothing without its baseline.** On
# a GPU, `eager` is `F.layer_norm` and an activation, `fused` the course's `layer_norm_act`: the kernel above with
# weight, bias and activation.

# %% tags=["hide-input"]
h200.table("layer_norm_act", "bfloat16")

# %% [markdown]
# ## The residual before the norm
#
# The sum of input and residual is needed twice: by the norm, and by the next layer as its residual. So it must be
# written, fused or not. **By what factor does fusing reduce the bytes, against `x + r` followed by `F.layer_norm`?**
# Count the passes.

# %% tags=["hide-input"]
fewer = predict_first("bytes of x + r, then layer_norm, over those of one kernel", unit="times")
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
    "Five passes become four. (Every program reads weight and bias, but from the cache: here "
    "they count once.)",
)

# %% [markdown]
# **Claim: "residual + LayerNorm: 1.94 times faster."**

# %% tags=["hide-input", "answers-fewer"]
h200.table("residual_layer_norm", "bfloat16")

# %% [markdown]
# Faster than the bytes allow, because PyTorch's kernel does not reach copy bandwidth and ours nearly does. The second
# line, rows of 1024, comes close to the claimed figure; wider rows stay well below it. On the smallest tensor the GPU
# gains more than claimed, and its caller (the columns after `call`) loses time. **Verdict: fair for one size**, which the
# claim does not name. Note `torch.compile`: it makes the same fusion and comes close.
#
# ## RMSNorm
#
# RMSNorm leaves the mean out: `x / sqrt(mean(x^2) + eps)`. Without a mean there is no padding trap, since 0 squared is 0,
# and without a subtraction no cancellation: one pass is safe. [Exercise 05b](../exercises/05b_residual_rms_norm.ipynb)
# fuses it with a residual.
#
# ## Rows too wide for one block
#
# A row is held in the registers of one block. **Look at the lit part**: the registers of a GPU's processors, its SMs.
# Each SM divides its own among the blocks that it runs at once.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H100", lit="registers")

# %% [markdown]
# **How many elements can a block of 16 warps hold, if each thread has 128 registers and holds nothing else?**
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
    "At that width the row alone would take every register, which leaves none for addresses "
    "and sums: the kernel "
    "spills some to memory.",
)

# %% [markdown]
# ([Occupancy](../docs/glossary.md#occupancy) is the share of a processor's warps that can be active at once: lesson 07.)
# So a wide row comes in chunks: a first loop reduces, a second one writes. Here Welford's merge pays off. `mean` and
# `squares` of the columns seen so far merge with those of the next chunk, found by two passes in registers:


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
# Three passes instead of two; but the second read follows soon on the first, and may still find the row in
# [L2](../docs/glossary.md#l2), the cache that all programs share. The next lesson shows when.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why does `tl.sum(x) / columns` need no second mask, and the variance does?
# <details><summary>Answer</summary>Padding loads 0, which adds nothing to the sum of x. After the mean is subtracted it
# holds minus the mean, whose square adds something.</details>
#
# 2. A test of your LayerNorm on `torch.randn(128, 1000)` passes. Which two mistakes of this lesson might it still have?
# <details><summary>Answer</summary>Padding in the variance, and the one-pass formula: with a mean near 0, neither
# shows.</details>
#
# 3. Why is RMSNorm's mean square safe in one pass?
# <details><summary>Answer</summary>Nothing is subtracted: a sum of squares has no cancellation.</details>
#
# 4. Your LayerNorm is right for fp32 and a hundredth off for bf16. Loads, stores and masks are correct. What is
#    missing?
# <details><summary>Answer</summary>`.to(tl.float32)` after the load: the sums are computed in bf16.</details>
#
# 5. A blog reports LayerNorm four times faster. What do you ask?
# <details><summary>Answer</summary>Faster than what: unfused operators, PyTorch's own kernel, torch.compile? And at
# which size?</details>
#
# 6. Residual + RMSNorm + SiLU: `s = x + r`, `y = silu(rms_norm(s))`, with `s` and `y` both needed. Three kernels, each
#    reading and writing its own tensors, against one: by what factor does the one kernel reduce the bytes? Replace the
#    dots with your number.

# %%
answer = ...
self_test(answer, 7 / 4, "add 3 passes, norm 2, silu 2; the one kernel has 2 in and 2 out")

# %% [markdown]
# ## Now you
#
# [Exercise 05](../exercises/05_layer_norm.ipynb) asks for a LayerNorm that takes any width and any mean,
# [05b](../exercises/05b_residual_rms_norm.ipynb) for a residual and RMSNorm. Next: [06 Softmax](06_softmax.ipynb),
# where a row's maximum is needed first and known last.

# %% [markdown]
# ## Going further
#
# ### 16-bit sums in the machine code
#
# The compiler's output for `tl.sum` of a bf16 row, with and without widening it after the load:


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
# 15 in each thread for its 16 elements, 5 in its warp, 3 among eight warps: the first `tl.sum`. (After the division by
# `columns` everything is fp32, including the second sum. Only the mean is added up in bf16.) A mean of 3 is enough to
# spoil the result. Each element of a bf16 row is itself rounded, which is not the kernel's fault, so both are compared
# with the exact norm of the rounded row:


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
# The L2 norm (not the L2 cache: they share only the name) divides by the root of the sum of squares. **Claim: "a fused
# L2 norm is 3 to 5 times faster."**

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
# **Verdict: holds by the GPU's own time on every size; the last column has the gain of a caller.** Bytes explain only a
# part of it; the rest is that the unfused kernels do not reach copy bandwidth. Against kernels as good as the fused one
# the gain would be that of the bytes, and against `F.normalize` less still. `torch.compile` reaches the whole gain as
# well.
#
# ### LayerNorm and RMSNorm, operator by operator
#
# Model code often writes a norm out: widen to fp32, normalise, round, multiply by the weight. These are transformers'
# RMSNorm of Llama, line by line, and a LayerNorm in the same style:

# %%
import inspect

from benchmarks.experiments.lesson_05 import NORMS, RECORD, inputs

for by_operator, *_ in NORMS.values():
    print(inspect.getsource(by_operator))

# %% [markdown]
# **Claim: "LayerNorm and RMSNorm run 2 to 4 times faster fused."** It names no baseline, so here are three: the operators
# above, PyTorch's own call, and `torch.compile` of the operators, in bf16. First the bytes, by the meter (PyTorch's
# RMSNorm on a CPU consists of operators; on a GPU it is one kernel, so only LayerNorm's call has a number here):

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
columns = ("bf16", "clock", "ours", *(f"over {way}" for way in OTHERS))
table(columns, rows, h100.label_of("norms_by_operator", "norms_by_operator_called"))

# %% [markdown]
# **Verdict: fails against either baseline.** Against the operators it is far too modest: they move many times the bytes,
# and slowly. Against PyTorch's own call, which is already fused, it is too generous, and `torch.compile` of the operators
# is close to our kernel on the large tensors. Against that call you gain even less on a small
# tensor, or lose: there the launch dominates.
#
# ### The course's own kernel
#
# `kernels/rowwise/layer_norm.py` has the parts you have met: two passes in registers, a second mask, fp32, chunks for
# rows that registers cannot hold, an activation. Three more ideas:
#
# - **Two blocks per row.** 10000 columns are a block of 8192, which every row fills and which needs no column mask, and
#   a masked one of 2048. One block of 16384 would leave a large share of it idle.
# - **Several rows per program** where rows are short.
# - **The row's first element is subtracted from the row.** The result is the same, but a large mean becomes a small one,
#   and rounding it loses little.

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
# Tables show the sizes that kernels were made for. Other widths may be slower: a width that is not a power of two leaves
# positions idle, and an odd one has rows that do not begin at a multiple of 16 bytes (lesson 06). So the course's
# kernels were timed at dozens of widths next to others, in one run: once with as many rows as fill a tensor of 256 MiB,
# where memory decides, and once with 2048 rows, where a kernel's start and end count. (The others: eager PyTorch,
# `torch.compile`, and two published collections of fused kernels, Liger, in Triton, and QuACK, in CuTe DSL. *The best
# peer* is the fastest of them at that size.) The charts draw bf16; the first table also counts fp32.
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
# widths cost more, but mostly less than they cost the others. Where are we behind?
#
# - Wide rows of LayerNorm whose width is not a power of two: at 14336 columns, for example, `torch.compile` is well ahead.
#   Nobody has found out why; if you have a GPU, that's a good one to profile.
# - Backward, many rows of RMSNorm: QuACK and `torch.compile` lead from about 2000 columns on.
# - Narrow rows: a kernel of a few microseconds is mostly start and end. `fusion bench --recorded --sweep` lists every
#   point.
#
# The last table has the time of a **call** from Python. For work this short it is mostly the launch: *bare launch* is an
# empty kernel with the same arguments. A call adds checks, allocation and waiting for the GPU; backward, also autograd,
# whose way through Python is longer than the one through C++. Eager PyTorch launches from C++ and may be faster than any
# of these, even where its kernel is slower. In a CUDA graph (lesson 02) only the GPU's time remains.
#
# With a GPU, try your own shape:

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
