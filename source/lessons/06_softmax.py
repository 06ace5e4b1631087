# %% [markdown]
# # 06 Softmax: normalising before the maximum is known
#
# Softmax turns a row of scores into probabilities: `exp(x)` divided by the sum of all `exp(x)`. Nearly every
# implementation first subtracts the row's maximum, because otherwise the exponentials can overflow. So you need the
# maximum before you can compute the first exponential. If a row is too long to keep on chip, you'd have to read it once
# for the maximum and again for the sum. **Yet one read is enough for both. How can you use exponentials that you
# computed with the wrong maximum?**
#
# In this lesson you'll learn to
#
# - write a softmax kernel that survives large scores and padding;
# - derive online softmax, and choose a test that catches a wrong version;
# - decide whether to hold a row of a given width or read it twice;
# - fuse the operations that follow: dropout, cross entropy, top-k;
# - split a few long rows among many programs and still get repeatable results.
#
# About 70 minutes. You should have done [05 Normalisation](05_normalisation.ipynb), which introduced one program per
# row. The exercise is [06](../exercises/06_softmax_topk.ipynb).

# %% tags=["hide-input"]
import inspect

import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import traffic_chart, watch
from helpers.instruments import measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
torch.manual_seed(0)
x = torch.randn(64, 1000, device=device)

# %% [markdown]
# A row of 24 scores arrives in blocks of four. The top panel shows the scores and the largest one *so far*; the bottom
# panel shows the exponential of each score minus that maximum. Move the sliders with the mouse or the arrow keys.
#
# 1. Read one block after another. When the maximum rises, what happens to the columns that you've already read?
# 2. For which slopes do the earlier columns never change?

# %% tags=["hide-input"]
from helpers.figures import RunningSumExplorer

RunningSumExplorer(blocks=1, slope=1.0)

# %% [markdown]
# <details><summary>What you should see</summary>1. They all shrink by the same factor. 2. Falling ones, because then
# the maximum is in the first block.</details>
#
# ## The cost of the unfused version


# %%
def unfused_softmax(x):
    shifted = x - x.amax(-1, keepdim=True)
    e = torch.exp(shifted)
    return e / e.sum(-1, keepdim=True)


# %% [markdown]
# **How many bytes per element does it move, in fp32?** Go through it operator by operator, and count four bytes per
# element every time a tensor as large as x is read or written. The maxima and sums are small enough to ignore.

# %% tags=["hide-input"]
unfused_bytes = predict_first("bytes per element, softmax unfused", unit="B")
unfused_bytes

# %% tags=["hide-input"]
unfused = measure(unfused_softmax, x)
display(unfused.launch_table())
unfused_bytes.compare(unfused.bytes_total / x.numel())

# %% [markdown]
# ## Why subtract the maximum?
#
# Mathematically, `exp(x) / sum(exp(x))` is the same, and you'd save the pass for the maximum. But the largest fp16
# number is 65504. **What's the largest whole-number score whose exponential still fits?**

# %% tags=["hide-input"]
largest = predict_first("largest whole score whose exponential fits in fp16", unit="")
largest

# %% tags=["hide-input"]
scores = torch.arange(1.0, 100.0).half()
fits = torch.isfinite(scores.exp())
e = torch.exp(torch.tensor([1.0, 2.0, 100.0]))
print("fp32, scores 1, 2 and 100:", (e / e.sum()).tolist())
largest.compare(
    int(scores[fits].max()),
    "Attention scores and logits can easily be larger. In fp32, the limit is 88 for one score. "
    "It's lower for a row, because the sum overflows first, and then the row is all zeros. "
    "Above 88, you get infinity over infinity, which is NaN.",
)

# %% [markdown]
# We can fix this without losing any accuracy. Subtract the same number $c$ from every score:
#
# $$\frac{e^{x_i - c}}{\sum_j e^{x_j - c}} = \frac{e^{x_i}\, e^{-c}}{\sum_j e^{x_j}\, e^{-c}}
# = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# The probabilities are the same for any $c$. If $c$ is the maximum, the largest exponential is exactly 1, so the sum is
# somewhere between 1 and the number of columns. Small exponentials may underflow to 0, but those are too small to
# matter. This is called **safe softmax**.
#
# ## One row, one program
#
# We start as in lesson 05. The block is the row's length rounded up to a power of two, and the
# [padding](../docs/glossary.md#padding) loads 0. We cast to fp32 right after the load, so that all the arithmetic is in
# fp32.


# %%
@triton.jit
def first_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


def softmax(kernel, x):
    y, columns = torch.empty_like(x), x.shape[1]
    kernel[(len(x),)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


measure(softmax, first_kernel, x)

# %% [markdown]
# One launch, one read, one write, and nothing out of bounds. But is the result right? You can test probabilities
# without a reference, because **each row must add up to 1.** Take a row of 1000 scores, all of them -5. **What do the
# first kernel's probabilities add up to?** Think about the other 24 positions of the block. (`exp(-5)` is about
# 0.0067.)

# %% tags=["hide-input"]
padded_sum = predict_first("sum of a row of 1000 scores of -5, first kernel", unit="")
padded_sum

# %% tags=["hide-input"]
fives = torch.full((1, 1000), -5.0, device=device)
padded_sum.compare(
    softmax(first_kernel, fives).sum().item(),
    "Padding loads as 0, which is larger than any score here. So it became the maximum, and each "
    "of the 24 positions added a 1 to the sum. In lesson 05 we summed x itself, and there a 0 "
    "does no harm.",
)

# %% [markdown]
# Here are three rows of five, in blocks of eight. **Fix the marked line so that padding can't be the maximum and adds
# nothing to the sum.**


# %%
@triton.jit
def padding_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=0.0)  # <- here
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


below_zero = torch.tensor(
    [[-5.0, -4, -3, -2, -1], [0, 1, 3, 2, 4], [-20002, -20001, -20000, -20003, -20004]]
)
puzzle(padding_kernel, 3, below_zero, wanted=torch.softmax(below_zero, -1), columns=5, BLOCK=8)

# %% [markdown]
# <details><summary>Answer</summary><code>x = tl.load(x_ptr + offset, mask=inside, other=-float("inf"))</code>: minus
# infinity can't raise the maximum, and its exponential is 0. -1e4 isn't low enough for the third row.</details>
#
# <!-- choices
# x = tl.load(x_ptr + offset, mask=inside, other=0.0)
#
# x = tl.load(x_ptr + offset, mask=inside, other=-1e4)
#
# x = tl.load(x_ptr + offset, mask=inside, other=float("inf"))
#
# x = tl.load(x_ptr + offset, mask=inside, other=-float("inf"))
#
# x = tl.load(x_ptr + offset)
# -->
#
# `held_kernel` below is our first kernel with that line fixed. We call it *held* because each program holds its row in
# [registers](../docs/glossary.md#register).


# %% tags=["hide-input"]
@triton.jit
def held_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


# %% tags=["hide-input"]
def rows_add_up(y):
    return bool(((y.sum(-1) - 1).abs() < 1e-5).all())


found = []
for name, rows in (("fives", fives), ("x", x), ("100 * x", 100 * x)):
    y = softmax(held_kernel, rows)
    right = torch.allclose(y, F.softmax(rows, -1), rtol=1e-4, atol=1e-30)
    found.append((name, rows_add_up(y), right))
display(table(("input", "rows add up to 1", "equal to PyTorch's"), found))
fused = measure(softmax, held_kernel, x)
chart = traffic_chart({"unfused": unfused, "fused": fused})
unfused_bytes.on(
    chart, "x", lambda nbytes: nbytes * x.numel(), row=0, says=lambda b: f"{b / 1e6:.4g} MB"
)

# %% [markdown]
# How does it compare with `F.softmax`? That's already fused: it's one launch, and at best it moves the same number of
# bytes. (The meter can't see inside the library. It assumes one read and one write.) The table shows GPU times
# for 32768 rows of 8192 in bf16. `fused` is the course's `softmax`; Liger and QuACK are published collections of fused
# kernels:

# %% tags=["hide-input"]
print(f"F.softmax: {measure(lambda: F.softmax(x, -1))}")
read_and_write = 2 * 2 * 32768 * 8192  # bytes, in bf16
rows = []
for name, time in h200.times("softmax", (32768, 8192), "bfloat16").items():
    share = read_and_write / time.median / h200.copy_bandwidth
    rows.append((name, f"{1e6 * time.median:.0f} us", f"{share:.0%}"))
table(("", "time", "of copy bandwidth"), rows, h200.label_of("softmax"))

# %% [markdown]
# The minimum number of bytes is the same for all of them, but the times aren't. (Some may also read a row twice. The
# table doesn't show that.) **Fusing makes a kernel move fewer bytes. Tuning makes it move them faster.**
#
# ## Dropout in the same kernel
#
# During training, attention drops some of its probabilities. On a GPU, PyTorch does this in a second kernel, which also
# stores a mask for the backward pass, at one byte per element. We only have to add two lines. `tl.rand` uses
# [Philox](../docs/glossary.md#philox), which computes each random number from a seed and the element's index, so the
# backward pass can regenerate the mask. (The backward pass also needs the probabilities before dropout, which a fused
# training step recomputes from `x`, the maximum and the sum.)


# %%
@triton.jit
def dropout_kernel(x_ptr, y_ptr, seed, rate, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    kept = tl.rand(seed, offset) >= rate
    y = tl.where(kept, e / (tl.sum(e) * (1 - rate)), 0.0)
    tl.store(y_ptr + offset, y, mask=inside)


# %% [markdown]
# **By what factor does fusing softmax and dropout reduce the bytes, in fp32, compared with PyTorch's two operators?**

# %% tags=["hide-input"]
dropout_bytes = predict_first("bytes of softmax and dropout ÷ bytes of one kernel", unit="times")
dropout_bytes


# %% tags=["hide-input"]
def fused_dropout(x, rate):
    y = torch.empty_like(x)
    dropout_kernel[(len(x),)](x, y, 7, rate, x.shape[1], BLOCK=1024)
    return y


apart = measure(lambda: torch.native_dropout(F.softmax(x, -1), 0.1, train=True)[0])
display(apart.launch_table())
together = measure(fused_dropout, x, 0.1)
times = {
    name: h200.times(name, (32768, 4096), "bfloat16")["fused"].median
    for name in ("softmax", "softmax_dropout")
}
slower = times["softmax_dropout"] / times["softmax"]
dropout_bytes.compare(
    apart.bytes_total / together.bytes_total,
    "It moves no more bytes than softmax alone. But on an H200, dropout makes the course's "
    f"softmax (32768 x 4096, bf16) take {slower:.1f}x as long: with all of Philox's "
    "multiplications, it no longer waits for memory alone (see Going further).",
)

# %% [markdown]
# ## Rows too wide to hold
#
# A row of 65,536 fp32 values would fill every register of an [SM](../docs/glossary.md#sm), and in lesson 05 it
# [spilled](../docs/glossary.md#spill). So we have to go through a row like that **in blocks**, and read it more than
# once. Safe softmax takes three loops: one for the maximum, one for the sum, and one to write the result. Can we merge
# the first two? We'd have to start summing before we know the maximum, using the largest score **so far**, the [running
# max](../docs/glossary.md#running-max). The step that adds a block is a separate function, passed as a
# [constexpr](../docs/glossary.md#constexpr), so that we can swap it out:


# %%
@triton.jit
def take_in(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    return higher, total + tl.sum(tl.exp(x - higher))


@triton.jit
def write(x_ptr, y_ptr, columns, peak, total, BLOCK: tl.constexpr):
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - peak) / total, mask=col < columns)


@triton.jit
def online_kernel(x_ptr, y_ptr, columns, TAKE_IN: tl.constexpr, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * columns
    y_ptr += tl.program_id(0).to(tl.int64) * columns
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns, other=-float("inf")).to(tl.float32)
        peak, total = TAKE_IN(peak, total, x)
    write(x_ptr, y_ptr, columns, peak, total, BLOCK)


# %% tags=["hide-input"]
def online_softmax(take_in, x):
    y = torch.empty_like(x)
    online_kernel[(len(x),)](x, y, x.shape[1], TAKE_IN=take_in, BLOCK=1024)
    return y


same = torch.Generator().manual_seed(0)  # the same numbers on every machine
wide = torch.randn(4, 10_000, generator=same).to(device)
stale = online_softmax(take_in, wide)
off = (stale - F.softmax(wide, -1)).abs().max().item()
print("every probability within 0.01 of PyTorch's:", off < 0.01)

# %% [markdown]
# But in rows this wide, the probabilities are far below 0.01, so a kernel that returns all zeros would pass too. Let's
# check the row sums instead. Take a row of 1024 scores of 0 followed by 1024 scores of 3, one block each. **What do its
# probabilities add up to?** (`exp(-3)` is about 0.05.) Work through the two blocks by hand.

# %% tags=["hide-input"]
stale_sum = predict_first("sum of a row of 1024 zeros, then 1024 threes", unit="")
stale_sum

# %% tags=["hide-input"]
steps = torch.tensor([0.0, 3.0], device=device).repeat_interleave(1024)[None]
backwards = online_softmax(take_in, steps.flip(1))
print(f"the same row, backwards: {backwards.sum().item():.4g}")
print("the random rows:", *(f"{total:.2f}" for total in stale.sum(1).tolist()))
stale_sum.compare(
    online_softmax(take_in, steps).sum().item(),
    "In the first block the maximum was 0, so each score added exp(0), which is 1. Then the "
    "maximum rose to 3, and each of those ones should have become exp(-3). In the reversed row, "
    "the maximum comes first and nothing goes wrong.",
)

# %% [markdown]
# That brings us back to the opening question. Exponentials computed with the wrong maximum are all too large by the
# *same* factor, so we can correct their **sum** with one multiplication.
#
# Your turn. Each program below should store the sum of its row's exponentials, computed in blocks of four. **Fix the
# marked line.** Which row is right even without the fix?


# %%
@triton.jit
def running_sum_kernel(x_ptr, total_ptr, columns, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row * columns + start + lane)
        higher = tl.maximum(peak, tl.max(x))
        total = total + tl.sum(tl.exp(x - higher))  # <- here
        peak = higher
    tl.store(total_ptr + row, total)


step = torch.arange(8.0) / 2
three_rows = torch.stack((step, 7.75 - step, step % 2.3 + 8))
row_sums = torch.exp(three_rows - three_rows.amax(-1, keepdim=True)).sum(-1)
puzzle(running_sum_kernel, 3, three_rows, wanted=row_sums, columns=8, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))</code>:
# <code>exp(x - higher)</code> is <code>exp(x - peak) * exp(peak - higher)</code>, so the old sum shrinks by the second
# factor. The second row is already right: it's falling, so its maximum is in the first block.</details>
#
# <!-- choices
# total = total + tl.sum(tl.exp(x - higher))
#
# total = (total + tl.sum(tl.exp(x - higher))) * tl.exp(peak - higher)
#
# total = total * tl.exp(higher - peak) + tl.sum(tl.exp(x - higher))
#
# total = total + tl.sum(tl.exp(x - peak))
#
# total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))
# -->
#
# Here it is as a function for `online_kernel`:


# %%
@triton.jit
def absorb(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    factor = tl.exp(peak - higher)
    return higher, total * factor + tl.sum(tl.exp(x - higher))


# %% [markdown]
# Follow `factor` and `total` through a row of 24, in blocks of four. Whenever the maximum rises, `factor` is below 1
# and scales the old sum down before we add the new block's exponentials. That's why `total` can go down as well as up.
# If the maximum doesn't change, `factor` is 1. In the first block, the old maximum is minus infinity, so `factor` is
# `exp(-inf)`, which is 0, times a sum that's still 0.

# %% tags=["hide-input"]
levels = torch.tensor([0, 0.5, 2, 1, 3, 1.5], device=device).repeat_interleave(4)[None]
watch(online_kernel[(1,)], levels, torch.empty_like(levels), 24, TAKE_IN=absorb, BLOCK=4)

# %% tags=["hide-input"]
y = online_softmax(absorb, wide)
print("rows add up to 1:", rows_add_up(y))
print("equal to PyTorch's:", torch.allclose(y, F.softmax(wide, -1), rtol=1e-4, atol=0))
print("zeros, then threes:", round(online_softmax(absorb, steps).sum().item(), 6))

# %% [markdown]
# This is **[online softmax](../docs/glossary.md#online-softmax)** (Milakov and Gimelshein,
# [arXiv:1805.02867](https://arxiv.org/abs/1805.02867)). Our version still has one bug. If the *first* block is all
# minus infinity, it computes `-inf - -inf`, which is NaN. In attention (lesson 10), a
# [causal mask](../docs/glossary.md#causal-mask) won't trigger it, because every query sees key 0, but a sliding window
# or padding at the front of a sequence will. The course's `absorb` in `kernels/online_softmax.py` handles that case.
#
# **By what factor does online softmax reduce the bytes requested, compared with safe softmax?** Don't forget that both
# also have a loop that writes the result.

# %% tags=["hide-input"]
paper = predict_first("safe ÷ online: bytes requested, wide rows", unit="times")
paper


# %% tags=["hide-input"]
@triton.jit
def safe_wide_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * columns
    y_ptr += tl.program_id(0).to(tl.int64) * columns
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns, other=-float("inf")).to(tl.float32)
        peak = tl.maximum(peak, tl.max(x))
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - peak))
    write(x_ptr, y_ptr, columns, peak, total, BLOCK)


def safe_softmax(x):
    y = torch.empty_like(x)
    safe_wide_kernel[(len(x),)](x, y, x.shape[1], BLOCK=1024)
    return y


safe, online = measure(safe_softmax, wide), measure(online_softmax, absorb, wide)
print(f"safe: {safe}")
print(f"online: {online}")
paper.compare(safe.bytes_total / online.bytes_total)

# %% [markdown]
# ## The second read: DRAM or L2?
#
# The second read comes soon after the first. If [L2](../docs/glossary.md#l2) can hold every row in progress until then,
# the second read never reaches [DRAM](../docs/glossary.md#dram). The explorer's model is a rough fit to an H200,
# applied to every GPU: L2 keeps everything up to a quarter of its size, less and less beyond that, and nothing at three
# quarters or more. Move the sliders with the mouse or the arrow keys. (A row *fits* if its block does, at one fp32
# value per register.)
#
# 1. At what width can't you hold the row any more, no matter how many warps you use?
# 2. At 50,257 columns, GPT-2's vocabulary, go from 4 to 32 warps per row. Why does a *larger* block save bytes?
# 3. Still at 50,257 columns, with 4 warps, lower the number of rows. When does the second read become free, and why?
# 4. At that width, with 32 warps and 8,192 rows, try an RTX 4090, then a T4. On which would even a third read be free?

# %% tags=["hide-input"]
from helpers.figures import WideRowsExplorer

explorer = WideRowsExplorer("H100", dtype="bf16", rows=8192, columns=16384, warps=8)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 50,257: its block has 65,536 positions, which is every register
# on an SM. 2. Fewer rows are in progress at once, so L2 has less to hold by the time a program goes back to the start
# of its row. 3. At 128 rows, because they all fit in L2 together. 4. On the RTX 4090, with its much larger L2 and one
# row in progress per SM. On the T4, the row has already been evicted, so you pay full price for each read.</details>
#
# So use large blocks for wide rows. The paper's **claim: "softmax accelerates by up to 1.3 times"** over safe softmax
# was measured on a V100, and it's close to the ratio of the bytes. Does the time follow the bytes here too? The
# course's `softmax` holds a narrow row. In the table below, one program reads each wider row twice. On a GPU, in bf16:

# %% tags=["hide-input"]
from helpers.instruments import recorded_sweep
from kernels.tuned import wide_softmax

at_all_sizes = recorded_sweep()
of_width = {point["shape"][1]: point for point in at_all_sizes.of("softmax", "forward", "256 MB")}
timed, rows = [of_width[columns] for columns in (4096, 4099, 32768, 50257, 100003)], []
for point in timed:
    columns = point["shape"][1]
    chosen = wide_softmax.settings(columns, torch.bfloat16, vector=8, unaligned=columns % 8 != 0)
    how = "read twice" if columns >= wide_softmax.MIN_COLUMNS and chosen["REREADS"] else "held"
    if how != "held" and chosen["NUM_CACHED"]:
        how += ", except the last block"
    rows.append((f"{columns:,}", how, f"{point['least'] / point['gpu']['fused'][0]:.0%}"))
table(("columns", "a row is", "of copy bandwidth"), rows, at_all_sizes.label(timed))

# %% [markdown]
# (The share counts one read and one write. Odd rows lose some of it because they aren't aligned.) **Verdict: it's right
# about the bytes, but the time only follows if every read comes from DRAM.** On this GPU, the second read is nearly
# free at 32,768 columns and costs time at 100,003. (L2 isn't the only cache that helps: in bf16, one row of 65,536
# even fits in the SM's own cache, L1. We didn't time the paper's two kernels.)
#
# ## Cross entropy in one read, at any width
#
# One program's softmax reads a wide row twice because it has to write a whole row. A loss writes just one number. Given
# a row of scores (here they're called logits), cross entropy needs the logarithm of a single probability, the label's:
#
# $$-\log \frac{e^{x_\text{label} - M}}{\sum_j e^{x_j - M}} = M + \log \sum_j e^{x_j - M} - x_\text{label}$$
#
# All it needs is the row's maximum $M$ and the sum, and the label's logit, so one loop is enough at **any** width.


# %%
@triton.jit
def loss_kernel(x_ptr, labels_ptr, losses_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * columns
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns, other=-float("inf")).to(tl.float32)
        peak, total = absorb(peak, total, x)
    at_label = tl.load(x_ptr + tl.load(labels_ptr + row)).to(tl.float32)
    tl.store(losses_ptr + row, peak + tl.log(total) - at_label)


# %% [markdown]
# PyTorch computes the logarithms of all the probabilities, writes them out, and picks one per row. **By what factor
# does our single loop reduce the bytes?**

# %% tags=["hide-input"]
loss_bytes = predict_first(
    "bytes of PyTorch's cross entropy ÷ bytes of the fused one", unit="times"
)
loss_bytes


# %% tags=["hide-input"]
def loss(x, labels):
    losses = torch.empty(len(x), device=x.device)
    loss_kernel[(len(x),)](x, labels, losses, x.shape[1], BLOCK=4096)
    return losses


labels = torch.randint(10_000, (4,), device=device)
expected = F.cross_entropy(wide, labels, reduction="none")
print("right:", torch.allclose(loss(wide, labels), expected))
apart = measure(lambda: F.cross_entropy(wide, labels, reduction="none"))
display(apart.launch_table())
loss_bytes.compare(apart.bytes_total / measure(loss, wide, labels).bytes_total)

# %% tags=["hide-input", "answers-loss_bytes"]
h200.table("cross_entropy", "bfloat16")

# %% [markdown]
# On large tensors the speedup is higher than the ratio of the bytes. PyTorch's kernels don't reach copy bandwidth, and
# they read wide rows, such as those of 65,536 columns, three times (in `cunn_SoftMaxForward`), while the meter assumes
# one read. In the first row of the table, our kernel doesn't reach copy bandwidth either. With so few rows, there isn't
# even one program for each of the H200's SMs, so each program would have to keep many loads [in
# flight](../docs/glossary.md#in-flight), and it doesn't keep enough. **With few rows, give each of them more warps, or
# more programs.**
#
# ## Few rows: several programs per row
#
# Let's try more programs, so that several share a row. Each of them finds the maximum and sum of its part, and we
# combine these pairs just as we combine a block with those before it: rescale, then add. But which program should do
# the combining? Programs can start in any order, so none of them can simply wait for another, which may not have
# started yet. So we use a second launch, which combines the pairs in a fixed order. (You can also do it in one launch:
# each program increments a counter in memory, and the last to arrive combines.) Here's the code we timed:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_06 import join_kernel, part_kernel, split_loss

print(inspect.getsource(part_kernel.fn), inspect.getsource(join_kernel.fn), sep="\n")
whole = measure(loss, wide, labels)
for parts in (1, 4, 16):
    split = measure(split_loss, wide, labels, parts)
    right = torch.allclose(split.result, expected)
    ratio = split.bytes_total / whole.bytes_total
    print(f"{parts:2} parts: right: {right}, {ratio:.3f} times the bytes")

# %% [markdown]
# This adds hardly any bytes. **How many times faster are 16 parts per row than one, on an H200, for 8 rows of 32,768 in
# bf16?** The GPU has 132 SMs. The number of programs gives you an upper bound, but it takes a measurement to see how
# close the GPU gets.
# <!-- given 132 SMs: helpers/instruments/devices.toml -->

# %% tags=["hide-input"]
split_speed_up = predict_first("speedup of 16 parts per row over one, 8 rows, H200", unit="times")
split_speed_up

# %% tags=["hide-input"]
split_times = h200.experiment("split_rows")
rows = []
for many, times in split_times.items():
    rows.append((many, *(f"{1e6 * time.median:.1f}" for time in times.values())))
title = f"{h200.label_of('split_rows')}\nus on the GPU, by parts per row"
display(table(("rows", *split_times[8]), rows, title))
split_speed_up.compare(
    split_times[8][1].median / split_times[8][16].median,
    "That's much less than 16, because there's a second launch, and every part has to start up "
    "and finish. Even 128 rows benefit, nearly one per SM, because a single program of four "
    "warps doesn't keep enough loads in flight. 4096 rows gain next to nothing, and with too "
    "many parts they get slower.",
)

# %% [markdown]
# Could we skip the second launch and have all parts add to a single number in memory? `tl.atomic_add` reads, adds and
# writes as one [atomic operation](../docs/glossary.md#atomic-operation). (A maximum and its sum have to match, so let's
# take a plain sum as the example.) The problem is that programs can arrive in any **order**. Here we set the order
# ourselves, to try out several that a GPU might pick:


# %%
@triton.jit
def atomic_sum_kernel(x_ptr, order_ptr, out_ptr, BLOCK: tl.constexpr):
    part = tl.load(order_ptr + tl.program_id(0))
    x = tl.load(x_ptr + part * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out_ptr, tl.sum(x))


# %% tags=["hide-input"]
def atomic_sum(x, order):
    out = torch.zeros(1, device=device)
    atomic_sum_kernel[(64,)](x, order, out, BLOCK=128)
    return out.item()


numbers = torch.randn(64 * 128, device=device)
sums = [atomic_sum(numbers, torch.randperm(64, device=device)) for _ in range(10)]
exact = numbers.double().sum().item()
print("all sums right to 0.001:", max(abs(each - exact) for each in sums) < 1e-3)
print("all sums the same:", len(set(sums)) == 1)

# %% [markdown]
# The order matters because each addition rounds. With atomics, the last digits change from run to run, and after enough
# steps, so does a whole training run. If you store each partial result separately instead and combine them in a fixed
# order, you get the same answer every time: the kernel is **deterministic**. Atomics are fine for operations where the
# order can't matter, such as integer sums or a maximum. We'll come back to this in lesson 11, with weight gradients.
#
# ## Softmax and top-k in one pass
#
# A sampler needs the few most likely words in a vocabulary, and a mixture of experts needs the few best experts.
# Unfused, that's `topk(softmax(x), k)`. But the scores have the same order as their probabilities, so you only have to
# divide and write the best `K`. The kernel finds the maximum, removes it, and repeats that `K` times:


# %%
@triton.jit
def shortlist_kernel(x_ptr, p_ptr, i_ptr, columns, K: tl.constexpr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + lane, mask=lane < columns, other=-float("inf"))
    x = x.to(tl.float32)
    peak = tl.max(x)
    total = tl.sum(tl.exp(x - peak))
    for place in range(K):
        best, index = tl.max(x, 0, return_indices=True)
        tl.store(p_ptr + row * K + place, tl.exp(best - peak) / total)
        tl.store(i_ptr + row * K + place, index)
        x = tl.where(lane == index, -float("inf"), x)


# %% tags=["hide-input"]
def shortlist(x, k):
    p = torch.empty(len(x), k, device=x.device)
    i = torch.empty(len(x), k, dtype=torch.int64, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    shortlist_kernel[(len(x),)](x, p, i, x.shape[1], K=k, BLOCK=block)
    return p, i


apart = measure(lambda: torch.topk(F.softmax(x, -1), 4))
together = measure(shortlist, x, 4)
(p, i), (right_p, right_i) = together.result, apart.result
print("right:", torch.allclose(p, right_p), torch.equal(i, right_i))
print(f"{apart.bytes_total / together.bytes_total:.2f}x as many bytes unfused")
two_finite = torch.full((1, 6), -torch.inf, device=device)
two_finite[0, 5], two_finite[0, 2] = 2.0, 1.0
print("two finite scores, k = 4: indices", shortlist(two_finite, 4)[1][0].tolist())

# %% [markdown]
# The kernel removes the winner by *position*, not by value (`x == best`), because two scores can be equal. But look at
# the last line: **one index appears twice.** If a row has fewer than `K` finite scores, which can happen with masks,
# the kernel can't tell a removed score from one that was minus infinity to begin with. In exercise 06 you'll write a
# kernel without that bug. *Going further* shows how much time this fusion saves, and tests a published speedup.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. You take a maximum and then a sum of exponentials. What value should the padding hold? Why not 0?
# <details><summary>Answer</summary>Minus infinity, because it can't raise the maximum and its exponential is 0. A 0
# would become the maximum of any row of negative scores, and it would add to every row's sum.</details>
#
# 2. Online softmax without the rescaling still gets some rows right. Which ones?
# <details><summary>Answer</summary>Rows with their maximum in the first block. The running max never changes after
# that, so every factor would be 1 anyway.</details>
#
# 3. Why can cross entropy read its logits once at any width, when softmax in one program has to read a wide row twice?
# <details><summary>Answer</summary>Softmax has to write a value for every column, and it can't until it knows the sum.
# The loss is a single number, computed from the maximum, the sum and the label's logit.</details>
#
# 4. Your softmax reads wide rows twice, yet it's hardly slower than a copy. How is that possible, and what change to
#    the launch could ruin it?
# <details><summary>Answer</summary>The second read hits in a cache: L2, or even the SM's own L1. With smaller blocks,
# more rows would be in progress at once, and a row could be evicted before its second read.</details>
#
# 5. A colleague eliminates the second launch by having every part use `tl.atomic_add`. The tests pass, but two runs
#    with the same seed diverge after a few hundred steps. Why?
# <details><summary>Answer</summary>The parts arrive in a different order each time, and fp32 addition rounds, so the
# last digits differ. Training then amplifies the difference.</details>
#
# 6. Two programs share a row. On its half, the first found a maximum of 2 and a sum of 10. The second found a maximum
#    of 4 and a sum of 3. What's the sum of $e^{x-4}$ over the whole row? Replace the dots with your answer.

# %%
answer = ...
row = np.repeat([2.0, 4.0], [10, 3])  # a row with two such halves
self_test(
    answer, np.exp(row - 4).sum(), "rescale the first sum to a maximum of 4, then add the second"
)

# %% [markdown]
# ## Now you
#
# In [Exercise 06](../exercises/06_softmax_topk.ipynb) you'll compute probabilities and top-k from one read, and handle
# equal scores correctly. Next up is [07 Occupancy](07_occupancy.ipynb), about the cost of using more registers, warps
# and blocks.

# %% [markdown]
# ## Going further
#
# ### The cost of dropout
#
# `predict` compiles a kernel for an H200, counts its instructions and bytes, and estimates how long each would take. We
# run it on the course's two kernels (with dropout, one Philox call yields four random numbers, as in lesson 04), and on
# ours above, which calls Philox for every number:

# %% tags=["hide-input", "nbval-ignore-output"]
import kernels
from helpers.instruments import predict

many, seed = torch.empty(32768, 1024, dtype=torch.bfloat16, device="meta"), torch.tensor(7)
asked = {
    "softmax": (kernels.softmax, many),
    "softmax_dropout": (kernels.softmax_dropout, many, seed, 0.1),
    "our dropout_kernel": (fused_dropout, many, 0.1),
}
rows = []
for name, call in asked.items():
    terms = predict(*call, device="H200").terms
    rows.append((name, *(f"{1e6 * terms[term]:.0f} us" for term in ("DRAM", "arithmetic"))))
table(("", "DRAM", "arithmetic"), rows)

# %% tags=["hide-input"]
h200.table("softmax_dropout", "bfloat16")

# %% [markdown]
# By this estimate, dropout makes arithmetic the bottleneck in the course's kernel, and far more so in ours. (The
# estimate is on the high side: the measured kernel, an earlier version, takes less time than that, but more than its
# bytes alone would.) In a kernel that waits for memory, extra arithmetic is free **until it no longer waits**.
#
# ### Few rows in one launch
#
# You can combine the parts of a row without a second launch. Each program adds 1 to the row's counter, and the atomic
# operation returns the previous value. The program that gets the last value knows that all the others have stored their
# parts, so it doesn't have to wait. Whichever program that is, it combines the parts in the same fixed order and resets
# the counter for the next call. (`tl.debug_barrier` makes the program's own threads wait until all their stores above
# it are done, and the atomic, with Triton's default ordering, makes them visible to the other programs.)


# %%
@triton.jit
def last_combines_kernel(x_ptr, labels_ptr, peaks_ptr, totals_ptr, done_ptr, losses_ptr,
                         columns, each, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, total = -float("inf"), 0.0
    for start in range(part * each, tl.minimum(part * each + each, columns), BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + col, mask=col < columns, other=-float("inf"))
        peak, total = absorb(peak, total, x.to(tl.float32))
    tl.store(peaks_ptr + row * PARTS + part, peak)
    tl.store(totals_ptr + row * PARTS + part, total)
    tl.debug_barrier()
    if tl.atomic_add(done_ptr + row, 1) == PARTS - 1:
        parts = row * PARTS + tl.arange(0, PARTS)
        peaks, totals = tl.load(peaks_ptr + parts), tl.load(totals_ptr + parts)
        peak = tl.max(peaks)
        total = tl.sum(totals * tl.exp(peaks - peak))
        at_label = tl.load(x_ptr + row * columns + tl.load(labels_ptr + row)).to(tl.float32)
        tl.store(losses_ptr + row, peak + tl.log(total) - at_label)
        tl.store(done_ptr + row, 0)


# %% tags=["hide-input"]
def one_launch_loss(x, labels, done, parts):
    rows, columns = x.shape
    peaks, totals = torch.empty(2, rows, parts, device=x.device)
    losses = torch.empty(rows, device=x.device)
    each = triton.cdiv(columns, parts * 1024) * 1024  # whole blocks
    last_combines_kernel[(rows, parts)](
        x, labels, peaks, totals, done, losses, columns, each, PARTS=parts, BLOCK=1024
    )
    return losses


done = torch.zeros(len(wide), dtype=torch.int32, device=device)
for parts in (1, 4, 16):
    once = measure(one_launch_loss, wide, labels, done, parts)
    again = one_launch_loss(wide, labels, done, parts)
    same_again = torch.equal(once.result, again)
    print(
        f"{parts:2} parts: {once.launches} launch,",
        f"right: {torch.allclose(once.result, expected)}, the same again: {same_again}",
    )

# %% [markdown]
# ### The course's own kernel
#
# `held_kernel` is wasteful in two cases: a row of 10,000 in a block of 16,384 leaves over a third of the block idle,
# and a row of 64 hardly keeps a program busy. The course's `softmax` (`kernels/rowwise/softmax.py`) is the same kernel
# with both fixed. It splits a row into a **head**, a power-of-two number of columns that's always full, and a masked
# **tail** for the rest. If rows are short, a program handles several of them. It also accepts any row stride and fp64,
# and it computes exponentials as powers of two, because that's the only exponential the hardware has:

# %%
from kernels.online_softmax import LOG2_E
from kernels.rowwise.blocks import row_sum  # of both blocks, in one exchange between warps
from kernels.rowwise.softmax import row_max


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,  # columns that every row has, a power of two
    TAIL: tl.constexpr,  # a power of two, at least the remaining columns
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides: allows 16-byte loads
):
    cols, x_row_stride = cols // ALIGN * ALIGN, x_row_stride // ALIGN * ALIGN
    # int64 before the multiplication: row * stride exceeds 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    col = tl.arange(0, HEAD)[None, :]
    tail_col = HEAD + tl.arange(0, TAIL)[None, :]
    in_tail = (row < rows) & (tail_col < cols)
    x = tl.load(x_ptr + col, mask=row < rows, other=0.0)
    # Positions past the end hold -inf, which changes no maximum; its exponential adds nothing.
    x_tail = tl.load(x_ptr + tail_col, mask=in_tail, other=-float("inf"))
    top = row_max(x, x_tail).to(COMPUTE)
    e = tl.exp2((x.to(COMPUTE) - top) * LOG2_E)
    e_tail = tl.exp2((x_tail.to(COMPUTE) - top) * LOG2_E)
    scale = 1.0 / row_sum(e, e_tail)
    tl.store(y_ptr + col, (e * scale).to(y_ptr.dtype.element_ty), mask=row < rows)
    tl.store(y_ptr + tail_col, (e_tail * scale).to(y_ptr.dtype.element_ty), mask=in_tail)


# %% tags=["hide-input"]
def two_blocks(x):
    y, (rows, columns) = torch.empty_like(x), x.shape
    blocks = {"BLOCK_ROWS": 2, "HEAD": 512, "TAIL": 512, "COMPUTE": tl.float32, "ALIGN": 1}
    softmax_kernel[(triton.cdiv(rows, 2),)](x, y, rows, columns, columns, **blocks)
    return y


print("right:", torch.allclose(two_blocks(x), F.softmax(x, -1), rtol=1e-4, atol=1e-30))
h200.table("softmax", "bfloat16")

# %% [markdown]
# On a GPU, a tuned kernel handles wide rows (`kernels/tuned/wide_softmax.py`), with two more tricks. Its second loop
# runs **backwards** from the end of the row, which was read last and is therefore most likely still in a cache. It
# also keeps the last block of the widest rows in registers, along with whole rows of up to 20,480 columns.
#
# ### Can we hold wide rows after all?
#
# fp32 registers aren't the only place to keep a row. bf16 values take half the space if you leave them packed, two per
# register, until you need them. A thread block also has shared memory. And starting with compute capability 9.0, the
# SMs in a [cluster](../docs/glossary.md#cluster) can read each other's shared memory:

# %% tags=["hide-input"]
from helpers.instruments import DEVICES
from helpers.instruments.occupancy_calculator import REGISTERS, limits

shared = limits(DEVICES["H200"].compute_capability).shared_memory_per_block // 2
room = {"registers, fp32": REGISTERS, "registers, bf16, packed": 2 * REGISTERS}
room |= {"shared memory, bf16": shared, "shared memory of 8 SMs, bf16": 8 * shared}
table(("", "maximum elements"), ((place, f"{numbers:,}") for place, numbers in room.items()))

# %% [markdown]
# Let's try a kernel that keeps the row packed and widens it at each use:


# %%
@triton.jit
def packed_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf"))  # not widened here
    peak = tl.max(x.to(tl.float32))
    total = tl.sum(tl.exp(x.to(tl.float32) - peak))
    tl.store(y_ptr + offset, tl.exp(x.to(tl.float32) - peak) / total, mask=inside)


# %% tags=["hide-input"]
from helpers.instruments import compile_for

row = torch.empty(2, 65536, dtype=torch.bfloat16, device="meta")
for kernel in (held_kernel, packed_kernel):
    made = compile_for(kernel, row, row, 65536, device="H200", BLOCK=65536, num_warps=32)
    print(f"{kernel.fn.__name__}: {made.registers} registers, spills: {made.spill_bytes > 0}")

# %% [markdown]
# It spills just the same. The compiler sees the same conversion three times, does it once, and keeps the fp32 values.
# (`kernels/tuned/packed.py` shows how to prevent that.) Clusters aren't an easy way out either: our Triton version
# launches them (`num_ctas`), but can't compile a row's maximum across one. So `kernels/tuned/split_softmax.py` does
# without: it splits each of the widest rows over ordinary programs, which publish their maximum and sum in memory and
# wait there for those of the others. Each program draws its part as it starts, so it never waits for one that can't.
#
# ### Odd widths and other sizes
#
# GPT-2's vocabulary has 50257 words. In bf16 that isn't a multiple of 16 bytes, so seven out of eight rows start at an
# address where a wide load isn't allowed (lesson 03b). A kernel can fall back to loading single elements, or it can
# handle the few elements before the next aligned address separately. Either way it moves the same bytes, apart from
# sectors that straddle two rows.
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->

# %% tags=["hide-input"]
from helpers.figures import sweep_chart

for kernel in ("softmax", "cross_entropy"):
    display(sweep_chart(at_all_sizes, kernel))
display(at_all_sizes.summary(["softmax", "cross_entropy"]))
odd, even = of_width[4099], of_width[4096]
longer = odd["gpu"]["fused"][0] / even["gpu"]["fused"][0]
odd_rows, even_rows = ("{} rows of {}".format(*point["shape"]) for point in (odd, even))
print(f"softmax: {odd_rows} take {longer:.2f}x as long as {even_rows}")
blocks = {"BLOCK_ROWS": 1, "HEAD": 4096, "TAIL": 4, "COMPUTE": tl.float32, "ALIGN": 1}
made = compile_for(softmax_kernel, row, row, 32744, 4099, 4099, device="H100", **blocks)
print("global loads, rows of 4099:", *(name for name in made.instructions if "LDG" in name))
print(f"the wide kernel takes odd rows from {wide_softmax.MIN_COLUMNS:,} columns")

# %% [markdown]
# So odd rows can be nearly as fast, even here, where our kernel loads single elements (`LDG.16`). The wide kernel moves
# whole 16-byte vectors, starting at the first aligned address in a row, and a small extra block handles the few
# elements before and after. The hollow marks show the other odd widths: most lose a few percent, some far more. QuACK
# rejects odd bf16 rows, and the others are mostly slower there.
#
# Our softmax is behind elsewhere: with few rows, at some narrow widths and, by a little, at several wider ones, and
# above 32,768 columns, where QuACK is ahead. QuACK splits rows that wide across the SMs of a cluster. We split them
# too, unless they're odd: then one program reads all or most of its row twice. In the backward pass, splitting makes us
# level with QuACK or ahead. Cross entropy reads each row once at any width, and at the widest it's level with QuACK or
# ahead. At narrower widths, the two are close. (In the backward pass, a few points are slightly above the ceiling,
# because softmax reads two elements for each one it writes, while a copy reads one.)
# <!-- given 16 bytes: as above -->
#
# ### Memory saved for backward
#
# **Claim: dropping intermediates takes 20 to 40 % less memory.** Is it true for cross entropy? Memory has to hold the
# logits, everything the forward pass [saved for backward](../docs/glossary.md#saved-for-backward), and the gradients.
# PyTorch's hooks let us see each saved tensor. (Unfused, the logarithms have a gradient of their own.)

# %% tags=["hide-input"]
from kernels import cross_entropy


def kept(loss, x):
    """Return the bytes of x and of all tensors that `loss` saves for the backward pass."""
    sizes = {x.data_ptr(): x.nbytes}

    def keep(tensor):
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss(x, labels)
    return sum(sizes.values())


logits = wide.clone().requires_grad_()
gradient = logits.nbytes
unfused_kept, fused_kept = kept(F.cross_entropy, logits), kept(cross_entropy, logits)
for name, nbytes, gradients in (("unfused", unfused_kept, 2), ("fused", fused_kept, 1)):
    print(f"{name}: {nbytes / logits.nbytes:.2f} times the logits' bytes, gradients: {gradients}")
less = 1 - (fused_kept + gradient) / (unfused_kept + 2 * gradient)
print(f"{less:.0%} less memory")
freed = unfused_kept - logits.nbytes
less = 1 - (fused_kept + gradient) / (freed + 2 * gradient)
print(f"{round(100 * less)}% less if the logits are freed after the forward pass")

# %% [markdown]
# **Verdict: it's within the claimed range only if the logits are freed.** The fused kernel saves the logits, which
# exist anyway, and two numbers per row. Its backward pass recomputes the probabilities. Unfused, PyTorch also saves the
# logarithms, and their gradient exists while the logits' gradient is written. If nothing else needs the logits, they're
# freed after the forward pass, and fusing saves a third.
#
# ### A paper's softmax and top-k
#
# The online-softmax paper makes a second **claim: "softmax and top-k combined and fused: up to 5 times faster"**, on a
# V100. It compares the authors' own kernels. In the unfused version, safe softmax writes its probabilities and top-k
# reads them back. The fused versions write only the winners. There are 4000 rows of 25,000 fp32 scores, and `k` is 5.
# One fused version uses safe softmax and the other online softmax, so you can tell the two gains apart. We wrote and
# timed all three ourselves, in `benchmarks/experiments/lesson_06.py`:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_06 import VERSIONS

few = wide[:2]
passes = {
    name: measure(version, few).bytes_total / few.nbytes for name, version in VERSIONS.items()
}
parts = {name: 1e6 * time.median for name, time in h200.experiment("top_k_parts")[25000].items()}
rows = []
for name, time in parts.items():
    rows.append((name, f"{passes[name]:.1f}" if name in passes else "", f"{time:.0f} us"))
display(table(("", "passes over the data", "time"), rows, h200.label_of("top_k_parts")))
not_fused, safe_fused, online_fused = (parts[name] for name in VERSIONS)
print(
    f"fusing: {not_fused / safe_fused:.2f}x, "
    f"one read instead of two: {safe_fused / online_fused:.2f}x"
)
print(f"both: {not_fused / online_fused:.2f}x")
one_read = 1e6 * 4000 * 25000 * 4 / h200.copy_bandwidth
print(f"one read at copy bandwidth: {one_read:.0f} us")
short = h200.experiment("top_k_parts")[1000]
short_unfused, _, short_online = (short[name].median for name in VERSIONS)
print(f"rows of 1,000: {short_unfused / short_online:.2f}x faster")

# %% [markdown]
# **Verdict: it's about three times on an H200, with the paper's sizes, and most of that comes from fusing.** Online
# softmax contributes the rest. The bytes allow five, but the online kernel doesn't get there. Its one read takes much
# less time than the whole kernel, so the rest is most likely the work on each score, exponentials and comparisons. A
# V100 has slower memory, so it may get closer to five. We didn't test that.
#
# Compared with `F.softmax` followed by `topk`, the numbers get even larger. The course's `softmax_topk` also writes all
# the probabilities, so it saves only one read out of three passes, and yet:

# %% tags=["hide-input"]
h200.table("softmax_topk", "bfloat16")

# %% [markdown]
# Fusion can't explain that. `torch.topk` takes many times longer than reading its input, probably because it has to
# work for any `k` and any length, while the fused kernel knows that `k` is small. **A different baseline and different
# outputs make it a different claim.**
#
# If you have a GPU, see what the second and third reads cost:

# %% tags=["hide-input", "nbval-ignore-output"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    big = torch.randn(4096, 131072, device="cuda")
    ways = {
        "three reads": lambda: safe_softmax(big),
        "online": lambda: online_softmax(absorb, big),
        "F.softmax": lambda: F.softmax(big, -1),
    }
    print(benchmark_together(ways))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
