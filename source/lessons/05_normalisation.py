# %% [markdown]
# # 05 Normalisation: one row, one program
#
# LayerNorm takes the mean off each row and divides by its standard deviation. Add ten thousand to every number of a
# row, and the result must be the same. There are three well-known formulas for the variance, and all of them are right.
# **Yet one of the three, written into a kernel, returns nonsense for that row. Which, and why?**
#
# After this lesson you can
#
# - write a normalisation as one kernel that reads a row once and writes it once;
# - find padding lanes that take part in a sum, and keep them out;
# - choose a formula for the variance and say how many digits it loses at a given mean;
# - say in which dtype a kernel adds, and why it should be fp32;
# - fuse what comes before (a residual) and after (an activation), and handle rows too wide for one block;
# - judge a published speed-up by asking what it was measured against.
#
# About 45 minutes. It follows on [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb) and leads to
# exercises [05](../exercises/05_layer_norm.ipynb) and [05b](../exercises/05b_residual_rms_norm.ipynb).

# %%
import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import compile_for, measure, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 1024, device=device)

# %% [markdown]
# ## What it costs written out
#
# With `relu` behind it, as many networks have it:


# %%
def written_out(x):
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5)


# %% [markdown]
# **How many bytes an element does `relu(written_out(x))` move, in fp32?** Go through it line by line: what is as large
# as `x` counts four bytes whenever it is read or written; the means are too small to matter.

# %%
unfused_bytes = predict_first("bytes an element, relu(layer_norm) written out", unit="B")
unfused_bytes

# %%
unfused = measure(lambda: torch.relu(written_out(x)))
display(unfused.launch_table())
unfused_bytes.compare(unfused.bytes_total / x.numel())

# %% [markdown]
# A fused kernel must read `x` and write the result. Nothing else is large. So there is much to win, if a program can
# have **all of a row at once**: then mean and variance never leave it. That is the shape of every kernel in this
# lesson: one row, one program.
#
# ## In small steps
#
# A block has a power of two lanes. Rows have any length. So a program takes the next power of two, and masks the lanes
# past the end of the row, its **padding**: they load 0, which adds nothing to a sum.


# %%
@triton.jit
def first_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    centred = x - mean
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + lane, y, mask=inside)


# %%
def normalise(kernel, x):
    y, columns = torch.empty_like(x), x.shape[1]
    kernel[(len(x),)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


def error(kernel, x):
    exact = F.layer_norm(x.double(), x.shape[1:])
    return (normalise(kernel, x) - exact).abs().max().item()


print("1024 columns, right to 1e-5:", error(first_kernel, x) < 1e-5)
measure(normalise, first_kernel, x)

# %% [markdown]
# One launch, one read, one write. And on rows that do not fill the block?

# %%
shifted = x[:, :1000].contiguous() + 3
print("1000 columns, mean 3, right to 1e-5:", error(first_kernel, shifted) < 1e-5)
measure(normalise, first_kernel, shifted)

# %% [markdown]
# Wrong, and the meter finds no fault: not a byte is read that should not be. The mask of every load and store is right.
# The mistake is between them. Step through a row of ten in a block of sixteen, and watch its last six lanes:

# %%
from helpers.figures import watch

ten = torch.tensor([[3.0, 4, 2, 5, 3, 1, 4, 2, 3, 3]], device=device)
watch(first_kernel[(1,)], ten, torch.empty_like(ten), 10, BLOCK=16)

# %% [markdown]
# The padding lanes held 0, and then, in `centred`, everyone subtracted the mean. Each of them now adds the mean's
# square to the variance. **A row has mean 3 and variance 1, and fills 1000 of 1024 lanes. What variance does the
# kernel find?**

# %%
wrong_variance = predict_first("variance found by the first kernel", unit="")
wrong_variance

# %% [markdown]
# A row of 2s and 4s has that mean and that variance. The kernel divides by the root of what it found, so the result
# tells:

# %%
two_four = torch.tensor([2.0, 4.0] * 500, device=device)[None]
result = normalise(first_kernel, two_four)
found = 1 / result[0, 1].item() ** 2
wrong_variance.compare(round(found, 4))

# %% [markdown]
# Larger means make it worse, and a mean of 0 hides it, which is why tests with `randn` alone pass. The lanes must be
# masked **again**, wherever a sum follows:


# %%
@triton.jit
def two_pass_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + lane, y, mask=inside)


# %%
print("1000 columns, mean 3, right to 1e-5:", error(two_pass_kernel, shifted) < 1e-5)

# %% [markdown]
# ## Three formulas for one variance
#
# This kernel goes over the row twice, once for the mean, once for the variance. There is a formula that needs one pass,
# `E[x^2] - E[x]^2`, and half the web uses it:


# %%
@triton.jit
def one_pass_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    variance = tl.sum(x * x) / columns - mean * mean
    y = (x - mean) * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + lane, y, mask=inside)


# %% [markdown]
# It even needs no second mask. **fp32 has about seven decimal digits. At a mean of 100 and a variance of 1, how many of
# them are left in the variance?** Think of the size of the two numbers that are subtracted:
# what they have in common is gone, and the digits with it. This is **cancellation**.

# %%
digits = predict_first("digits left in the variance, one pass, mean 100", unit="digits")
digits

# %%
lost = np.log10(100**2 / 1)  # both terms are near 100 squared, their difference is 1
digits.compare(round(-np.log10(np.finfo(np.float32).eps) - lost, 1))

# %% [markdown]
# And at a mean of ten thousand, with the kernels:

# %%
rows = []
for mean in (0, 100, 10_000):
    kernels = (one_pass_kernel, two_pass_kernel)
    one, two = (error(kernel, x[:8] + mean) for kernel in kernels)
    rows.append((mean, one < 0.1, two < 0.1))
table(("mean", "one pass right to 0.1", "two passes"), rows)

# %% [markdown]
# The third formula is **Welford's**. It keeps count, mean and the sum of squares about the mean, and says how to merge
# the three of one part of a row with the three of another. What it squares are distances between means, which are small
# however large the means: nothing large is squared, so nothing cancels. A reduction in Triton can use any such merge:


# %%
@triton.jit
def merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    share = count_b / tl.maximum(count, 1.0)  # a merge of padding with padding counts 0
    apart = mean_b - mean_a
    squares = squares_a + squares_b + apart * apart * count_a * share
    return mean_a + apart * share, squares, count


# %% [markdown]
# Each lane begins as a part with one number in it, which is its own mean: squares 0, count 1 (0, if it is padding).


# %%
@triton.jit
def welford_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + row + tl.arange(0, BLOCK), mask=inside, other=0.0)
    parts = (x, tl.zeros_like(x), inside.to(tl.float32))
    mean, squares, count = tl.reduce(parts, 0, merge)
    y = (x - mean) * tl.rsqrt(squares / count + 1e-5)
    tl.store(y_ptr + row + tl.arange(0, BLOCK), y, mask=inside)


# %%
print("Welford, mean 3, right to 1e-5:", error(welford_kernel, shifted[:4]) < 1e-5)
print("Welford, mean 10,000, right to 0.1:", error(welford_kernel, x[:4] + 10_000) < 0.1)

# %% [markdown]
# ## How wrong, at which mean?
#
# Move the mean, with the mouse or the arrow keys. The sums are those of a GPU (pairs, then pairs of pairs, a
# *tree*), each step rounded.
#
# 1. How much steeper is the line of the one pass than the other two? Why should it be?
# 2. From which mean on is a result not a number? How does a *variance* come to give one?
# 3. Choose fp16. Two passes fail too: not by cancelling, but by what? (Its largest number is 65504.)
# 4. Choose fp64. At a mean of ten thousand, is one pass good enough?

# %%
from helpers.figures import VarianceExplorer

explorer = VarianceExplorer(mean=100.0, columns=1024, arithmetic="fp32")
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. Twice as steep: it squares the mean before it subtracts. 2. At
# 10,000, in fp32: the difference of two rounded numbers comes out negative. That is a matter of luck: at 32,000, with
# 1024 columns, it does not, and no digit is right for all that. 3. The sum of the row goes past the largest number
# there is: infinity. 4. Yes: of about sixteen digits it loses eight.</details>
#
# The error of one pass grows with the *square* of the mean, that of the others with the mean. A negative variance has
# no root: that is the nonsense of our first question.
#
# Even two passes and Welford lose digits at a large mean. They must: the mean is rounded to the digits that its dtype
# has, and by as much as it is off, every result is off. (What rounding the *input* loses is not in these errors: the
# exact result is that of the rounded row.)
#
# Is Welford the better choice, then? On a CPU that streams through a row, yes: it reads the row once. But our row is in
# registers, where a second pass reads no memory:

# %%
row, rows = torch.empty(8, 4096, device="meta"), []
for kernel in (one_pass_kernel, two_pass_kernel, welford_kernel):
    made = compile_for(kernel, row, row, 4096, device="H100", BLOCK=4096, num_warps=8)
    total = sum(made.instructions.values())
    counts = (made.instructions[name] for name in ("SHFL", "LDG.128"))
    rows.append((kernel.fn.__name__, total, *counts, f"{made.registers} registers"))
table(("", "instructions", "shuffles", "wide loads", "a thread"), rows)

# %% [markdown]
# All three load the row once. (In a *shuffle* the threads of a warp hand each other numbers, to add them up.) Welford
# takes twice the instructions for the accuracy of two passes. So: **two
# passes in registers**. Merging has its place where the row comes in chunks, below.
#
# ## In which dtype does it add?
#
# The tables below are of bf16 tensors, as models have them. A block has the dtype that its tensor has, and so has all
# that is computed from it. bf16 keeps eight binary digits. **A row has 4096 ones. Added one after the other in bf16,
# what do they come to?**

# %%
ones_sum = predict_first("4096 ones added one after the other in bf16", unit="")
ones_sum

# %%
total = torch.zeros((), dtype=torch.bfloat16)
for one in torch.ones(4096, dtype=torch.bfloat16):
    total = total + one
ones_sum.compare(total.item())

# %% [markdown]
# From there on, one more is too little to make the next number that bf16 has. A GPU adds in a tree, which is kinder,
# but adds in bf16 all the same, if the block is bf16. What the compiler makes of `tl.sum`, with and without one line:


# %%
@triton.jit
def any_dtype_kernel(x_ptr, y_ptr, columns, WIDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0)
    if WIDEN:
        x = x.to(tl.float32)
    mean = tl.sum(x) / columns
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred) / columns
    y = centred * tl.rsqrt(variance + 1e-5)
    tl.store(y_ptr + row + lane, y, mask=inside)


# %%
narrow_row = torch.empty(8, 4096, dtype=torch.bfloat16, device="meta")
for widen in (False, True):
    options = {"WIDEN": widen, "BLOCK": 4096, "device": "H100", "num_warps": 8}
    made = compile_for(any_dtype_kernel, narrow_row, narrow_row, 4096, **options)
    print(f"WIDEN={widen!s:5} additions in 16 bits (HADD2): {made.instructions['HADD2']}")

# %% [markdown]
# 15 in each thread for its 16 numbers, 5 in its warp, 3 among eight warps: the first `tl.sum`. (After the division by
# `columns` all is fp32 here, and the second sum with it. Only the mean is added up in bf16.) How far off is a result,
# then? Each number of a bf16 row is itself rounded: that is the input, and no fault of the kernel, so both are compared
# with the exact norm of the rounded row.


# %%
def error_from_bf16(widen, mean):
    narrow = (x[:8, :1000] + mean).bfloat16()
    y = torch.empty(
        narrow.shape, device=device
    )  # fp32: the error is the arithmetic's, not the store's
    any_dtype_kernel[(8,)](narrow, y, 1000, WIDEN=widen, BLOCK=1024)
    return (y - F.layer_norm(narrow.double(), (1000,))).abs().max().item()


rows = []
for mean in (0, 3, 100):
    rows.append((mean, *(error_from_bf16(widen, mean) < 0.002 for widen in (False, True))))
table(("mean", "WIDEN=False", "WIDEN=True"), rows, "right to 0.002?")

# %% [markdown]
# A mean of 3 is enough. The meter has nothing to say: the bytes are the same. **Widen right after the load, add in
# fp32, and let the store round, once.** (Matrix products do the same: their operands have 16 bits, the accumulator,
# which holds the sum so far, has 32. <!-- given 16 bits, 32 bits: PTX ISA, mma -->) Every kernel of the catalogue does
# it, and so do ours from here on.
#
# ## Before and after the norm
#
# **Claim: "relu(layer_norm(x)) written out: ten memory operations, fused two: five times less traffic."** A
# memory operation is meant to be one trip of the whole tensor. With ReLU in our kernel, that is one line more and not a
# byte; so its traffic is the one metered above.

# %%
fused = measure(normalise, two_pass_kernel, x)
trips = sum(m.read // x.nbytes + m.written // x.nbytes for _, m in unfused.by_launch)
ratio = unfused.bytes_total / fused.bytes_total
print(f"written out: {trips} trips, {ratio:.1f} times the bytes")
library = measure(lambda: torch.relu(F.layer_norm(x, (1024,))))
ratio = library.bytes_total / fused.bytes_total
print(f"F.layer_norm, then relu: {library.launches} launches, {ratio:.1f} times the bytes")

# %%
from helpers.figures import traffic_chart

chart = traffic_chart({"unfused": unfused, "fused": fused})
unfused_bytes.on(
    chart, "x", lambda nbytes: nbytes * x.numel(), row=0, says=lambda b: f"{b / 1e6:.4g} MB"
)

# %% [markdown]
# **Verdict: holds to the letter, against a baseline that nobody needs to use.** Who writes LayerNorm out? PyTorch's own
# `F.layer_norm` is a fused kernel already, and against that the bytes allow far less. **A speed-up means nothing
# without its baseline.** On a GPU, `eager` is `F.layer_norm` and an activation, `fused` the catalogue's
# `layer_norm_act`, the kernel above with weight, bias and activation:

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
h200.table("layer_norm_act", "bfloat16")

# %% [markdown]
# ## The residual before the norm
#
# **Claim: "residual + LayerNorm: 1.94 times faster."** The sum is wanted twice: by the norm, and by the next layer as
# its residual. So it must be written, fused or not. **How many times fewer bytes does fusing move, against `x + r`
# followed by `F.layer_norm`?** Count the trips.

# %%
fewer = predict_first("times fewer bytes, residual + LayerNorm fused", unit="times")
fewer

# %%
from kernels import residual_layer_norm

r = torch.randn_like(x)
ones, zeros = torch.ones(1024, device=device), torch.zeros(1024, device=device)


def add_then_norm(x, r):
    s = x + r
    return F.layer_norm(s, (1024,), ones, zeros), s


apart = measure(add_then_norm, x, r)
together = measure(residual_layer_norm, x, r, ones, zeros)
display(apart.launch_table())
fewer.compare(apart.bytes_total / together.unique_total)

# %% [markdown]
# (Weight and bias are read by every program, from the cache; here the fused kernel's count once, as the
# large memory, **DRAM**, sees them.)
#
# Five trips become four. And the clock?

# %%
h200.table("residual_layer_norm", "bfloat16")

# %% [markdown]
# More than the bytes allow, because PyTorch's kernel is not at the speed of a copy and ours nearly is. About the
# claimed figure is reached in the second line, rows of 1024, and well missed on wider rows. On the smallest tensor the
# GPU's own time says more than the claim; what its caller waits, in the columns after `call`, is another number: look
# before you quote either. **Verdict: fair for one size**, and it says so nowhere. Note `torch.compile`: it makes the
# same fusion and comes close.
#
# ## Leaner norms: RMSNorm and L2
#
# RMSNorm leaves the mean out: `x / sqrt(mean(x^2) + eps)`. No mean, no padding trap: 0 squared is 0, and no
# subtraction, no cancellation. The L2 norm (not the L2 cache: the name is all they share) divides by the root of the
# sum of squares. **Claim: "a fused L2 norm is 3 to 5 times faster."** First the bytes:

# %%
from kernels import l2_norm

l2_versions = {
    "F.normalize": lambda: F.normalize(x, dim=-1),
    "written out": lambda: x / (x * x).sum(-1, keepdim=True).sqrt(),
}
least = measure(l2_norm, x).bytes_total
for name, version in l2_versions.items():
    moved = measure(version)
    ratio = moved.bytes_total / least
    print(f"{name}: {moved.launches} launches, {ratio:.2f} times the bytes")

# %% [markdown]
# **How many times faster is the fused kernel than the one written out, on an H200, on 32768 rows of 16384?**

# %%
l2_speed_up = predict_first("speed-up, L2 norm fused or written out, H200", unit="times")
l2_speed_up

# %%
display(h200.table("l2_norm", "bfloat16"))
l2 = h200.times("l2_norm", (32768, 16384), "bfloat16")
l2_speed_up.compare(l2["eager"].median / l2["fused"].median)

# %% [markdown]
# **Verdict: holds by the GPU's own time on every size; what a caller of the smallest gains is in the last column.** But
# is it fusion that does it? Bytes explain a part; the rest is that the unfused kernels do not reach the memory's speed:

# %%
one_in_one_out = 2 * 2 * 32768 * 16384  # bytes, in bf16
share = ratio * one_in_one_out / l2["eager"].median / h200.copy_bandwidth
print(f"written out, it moves {ratio:.1f} times the bytes", end="")
print(f" at {share:.0%} of the speed of a copy")

# %% [markdown]
# So: a right figure, for two reasons, of which fusing is the larger. Against kernels as well made as the fused one it
# would win what the bytes say, and against `F.normalize` less still. `torch.compile` gets the whole of it too.
#
# With a GPU at hand, try your own shape:

# %% tags=["nbval-ignore-output"]
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

# %% [markdown]
# ## Rows too wide for one block
#
# A row lives in the registers of one block. **Look at what is lit**: the registers of a GPU's processors, its SMs. Each
# shares its own out among the blocks that it runs at once.

# %%
from helpers.figures import gpu_picture

gpu_picture("H100", lit="registers")

# %% [markdown]
# **How many numbers can a block of 16 warps hold, if each thread has 128
# registers and keeps nothing else?**

# %%
widest = predict_first("numbers in the registers of 16 warps, 128 a thread", unit="numbers")
widest

# %%
widest.compare(16 * 32 * 128)

# %%
rows = []
for columns in (4096, 16384, 32768, 65536):
    row = torch.empty(8, columns, device="meta")
    options = {"device": "H100", "BLOCK": columns, "num_warps": 16}
    made = compile_for(two_pass_kernel, row, row, columns, **options)
    registers = f"{made.registers} registers"
    occupied = f"{made.occupancy().fraction:.0%}"
    rows.append((columns, registers, occupied, f"{made.spill_bytes} B"))
table(("columns", "a thread", "occupancy", "spilled"), rows)

# %% [markdown]
# (**Occupancy** is the share of the warps a processor has room for that it can run at once, with so many registers
# each: lesson 07.) At the last width the row alone would take every register there is, which leaves none for addresses
# and sums: it spills. So a wide row comes in chunks: a first loop reduces, a second one writes. Here merging is at
# home. `mean` and `squares` of what was seen so far merge with those of a chunk, found by two passes in registers:


# %%
@triton.jit
def add_chunk(mean, squares, seen, cols, x, inside):
    count = tl.minimum(cols - seen, x.shape[1]).to(x.dtype)
    chunk_mean = tl.sum(tl.where(inside, x, 0.0), axis=1, keep_dims=True) / count
    centred = tl.where(inside, x - chunk_mean, 0.0)
    apart, share = chunk_mean - mean, count / (seen + count)
    squares += tl.sum(centred * centred, axis=1, keep_dims=True) + apart * apart * seen * share
    return mean + apart * share, squares


# %%
@triton.jit
def wide_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * columns
    y_ptr += tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, BLOCK)[None, :]  # one row of a block of rows: sums are along axis 1
    mean, squares = tl.zeros((1, 1), tl.float32), tl.zeros((1, 1), tl.float32)
    for start in range(0, columns, BLOCK):
        inside = start + lane < columns
        x = tl.load(x_ptr + start + lane, mask=inside, other=0.0).to(tl.float32)
        mean, squares = add_chunk(mean, squares, start, columns, x, inside)
    rstd = tl.rsqrt(squares / columns + 1e-5)  # one over the standard deviation
    for start in range(0, columns, BLOCK):
        inside = start + lane < columns
        x = tl.load(x_ptr + start + lane, mask=inside).to(tl.float32)
        tl.store(y_ptr + start + lane, (x - mean) * rstd, mask=inside)


# %%
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
# Half as much again as one read and one write; but the second read follows soon on the first, and may find the row in
# the cache that all programs share, **L2**, still: the next lesson says when.
#
# ## The whole kernel
#
# This is `layer_norm` as the course ships it, in `kernels/rowwise/layer_norm.py`. You have met its parts: two passes in
# registers, a second mask, fp32, chunks where a row is `WIDE`, and an activation. What is new:
#
# - **Two blocks per row.** 10000 columns are a block of 8192, which every row fills and which needs no column mask, and
#   a masked one of 2048. One block of 16384 would leave 39 % of it idle.
# - **Several rows per program** where rows are short.
# - **The first element is subtracted from the row.** The result is the same, but a large mean becomes a small one, and
#   rounding it loses little.
# - `mean_ptr` and `rstd_ptr` are for a backward pass (lesson 11), and None without one.

# %%
from kernels.activations import activate


@triton.jit
def layer_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    mean_ptr,  # (rows,), in COMPUTE, or None where no backward pass will need it
    rstd_ptr,  # (rows,), in COMPUTE: 1 / sqrt(variance + eps), or None
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, to be read in chunks of TAIL
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
):
    # int64 before the multiplications: row * stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col0 = tl.arange(0, HEAD)[None, :]
    col1 = HEAD + tl.arange(0, TAIL)[None, :]
    mask0 = row < rows
    mask1 = mask0 & (col1 < cols)
    x_ptr += row * x_row_stride
    y_ptr += row * cols

    first = tl.load(x_ptr, mask=mask0, other=0.0).to(COMPUTE)
    x0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE) - first
    x1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE) - first
    seen = HEAD + TAIL if WIDE else cols
    total = tl.sum(x0, axis=1, keep_dims=True) + tl.sum(
        tl.where(mask1, x1, 0.0), axis=1, keep_dims=True
    )
    mean = total / seen
    # Masked elements are -first - mean now: each would add its square to the variance.
    centred0, centred1 = x0 - mean, tl.where(mask1, x1 - mean, 0.0)
    squares = tl.sum(centred0 * centred0, axis=1, keep_dims=True) + tl.sum(
        centred1 * centred1, axis=1, keep_dims=True
    )
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE) - first
            mean, squares = add_chunk(mean, squares, HEAD + start, cols, x, col < cols)
    rstd = tl.rsqrt(squares / cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, first + mean, mask=mask0)
        tl.store(rstd_ptr + row, rstd, mask=mask0)

    y0 = (x0 - mean) * rstd * tl.load(weight_ptr + col0).to(COMPUTE) + tl.load(bias_ptr + col0).to(
        COMPUTE
    )
    weight1 = tl.load(weight_ptr + col1, mask=col1 < cols).to(COMPUTE)
    bias1 = tl.load(bias_ptr + col1, mask=col1 < cols).to(COMPUTE)
    y1 = (x1 - mean) * rstd * weight1 + bias1
    if ACT is not None:
        y0, y1 = (
            activate(y0, ACT, y_ptr.dtype.element_ty),
            activate(y1, ACT, y_ptr.dtype.element_ty),
        )
    tl.store(y_ptr + col0, y0.to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, y1.to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            x = tl.load(x_ptr + col, mask=inside).to(COMPUTE) - first
            weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
            bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
            y = (x - mean) * rstd * weight + bias
            if ACT is not None:
                y = activate(y, ACT, y_ptr.dtype.element_ty)
            tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=inside)


# %%
def layer_norm(x, weight, bias, head, tail, act=None):
    y, (rows, columns) = torch.empty_like(x), x.shape
    blocks = {"BLOCK_ROWS": 1, "HEAD": head, "TAIL": tail, "WIDE": head + tail < columns}
    arguments = (x, weight, bias, y, None, None, rows, columns, columns, 1e-5)
    layer_norm_kernel[(rows,)](*arguments, **blocks, ACT=act, COMPUTE=tl.float32)
    return y


def whole(x, head, tail):
    exact = F.layer_norm(x.double(), x.shape[1:])
    ones, zeros = torch.ones(x.shape[1], device=device), torch.zeros(x.shape[1], device=device)
    return (layer_norm(x, ones, zeros, head, tail) - exact).abs().max().item()


far = x[:8, :1000].contiguous() + 10_000
print("mean 10,000, right to 1e-5: two passes", error(two_pass_kernel, far) < 1e-5, end="")
print(", the whole kernel", whole(far, 512, 512) < 1e-5)
print("40,000 columns, right to 1e-5:", whole(long, 8192, 8192) < 1e-5)

# %% [markdown]
# Ten thousand costs two passes digits, and costs this kernel none.
#
# ## Between the sizes
#
# Tables show sizes that kernels were made for. Between them a kernel may fall: a width that is no power of two leaves
# lanes idle, an odd one has rows that begin where no wide load may (lesson 06). So the catalogue's kernels were timed
# at dozens of widths beside their peers, in one run: once with as many rows as make a tensor of 256 MiB, where memory
# is all, and once with 2048 rows, where on narrow ones a kernel's start and end count. (Peers: eager PyTorch,
# `torch.compile`, and two published collections of fused kernels, Liger, in Triton, and QuACK, in CuTe DSL. *The best
# peer* is the fastest of them at that size, so not always the same one.) The charts draw bf16; the first table counts
# fp32, too.
# <!-- given 256 MiB: benchmarks/sweep/points.py -->

# %%
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
for kernel in ("rms_norm", "layer_norm"):
    display(sweep_chart(at_all_sizes, kernel))
display(
    at_all_sizes.summary(["rms_norm", "layer_norm"]), at_all_sizes.calls(["rms_norm", "layer_norm"])
)

# %% [markdown]
# Forward, where tensors are large, both norms come close to a copy up to 16384 columns, whether the width is a power of
# two or not: two blocks, a large one and one for the rest, leave few lanes idle. Odd rows cost more, most of all
# LayerNorm's wide ones; ours are ahead of every peer there. Look for the holes:
#
# - The widest rows of RMSNorm: one SM's registers do not hold such a row, so a part of it is read again. QuACK spreads
#   such a row over several SMs.
# - Narrow rows: where a kernel takes a few microseconds, most of it is start and end. A single point that stands out is
#   worth a look at `fusion bench --recorded --sweep`.
#
# And the last table has what a **call** from Python takes. Of work this short that is mostly the launch. A *bare
# launch* is launching alone: an empty kernel, same arguments, as many launches as ours, from Python. What a call takes
# beyond it are checks, allocation and waiting for the GPU; backward, autograd as well, whose way through Python is
# longer than the one through C++. Eager PyTorch launches from C++ and may be quicker than any of these, even where its
# kernel is slower. In a CUDA graph (lesson 02) only the GPU's time is left.
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why does `tl.sum(x) / columns` need no second mask, and the variance does?
# <details><summary>Answer</summary>Padding lanes load 0, which adds nothing to the sum of x. After the mean is taken
# off they hold minus the mean, whose square adds something.</details>
#
# 2. A test of your LayerNorm on `torch.randn(128, 1000)` passes. Which two mistakes of this lesson might it still have?
# <details><summary>Answer</summary>Padding lanes in the variance, and the one-pass formula: with a mean near 0, neither
# shows.</details>
#
# 3. Why is RMSNorm's mean square safe in one pass?
# <details><summary>Answer</summary>Nothing is subtracted: a sum of squares has no cancellation.</details>
#
# 4. Your LayerNorm is right for fp32 and a hundredth off for bf16. Loads, stores and masks are as they should
#    be. What is missing?
# <details><summary>Answer</summary>`.to(tl.float32)` after the load: the sums are made in bf16.</details>
#
# 5. A blog reports LayerNorm four times faster. What do you ask?
# <details><summary>Answer</summary>Faster than what: written out, PyTorch's own kernel, torch.compile? And at which
# size?</details>
#
# 6. Residual + RMSNorm + SiLU: `s = x + r`, `y = silu(rms_norm(s))`, with `s` and `y` both wanted. Three kernels, each
#    reading and writing its own tensors, against one: how many times fewer bytes does the one move? Put your number in
#    place of the dots.

# %%
answer = ...
self_test(answer, 7 / 4, "add 3 trips, norm 2, silu 2; the one kernel has 2 in and 2 out")

# %% [markdown]
# Exercise [05](../exercises/05_layer_norm.ipynb) asks for a LayerNorm that takes any width and any mean,
# [05b](../exercises/05b_residual_rms_norm.ipynb) for a residual and RMSNorm. Next: [06 Softmax](06_softmax.ipynb),
# where what a row needs first is known last.
