# %% [markdown]
# # 06 Softmax: a maximum that is not known yet
#
# Softmax turns a row of scores into probabilities: `exp(x)` over the sum of all `exp(x)`. To keep the exponentials from
# overflowing, every program first takes the row's maximum off. So the maximum must be known before the first
# exponential is taken, and a row too long to keep must be read once for it and then again for the sum. **Yet one read
# is enough for both. What becomes of the exponentials that were taken with the wrong maximum?**
#
# After this lesson you can
#
# - write softmax as one kernel that no score overflows and no padding lane enters;
# - derive online softmax, and spot a running sum that was not rescaled where a test with a tolerance does not;
# - decide for a width whether to hold a row or to read it twice, and say what the second read costs;
# - fuse what comes after: dropout, top-k, cross entropy;
# - share few rows among many programs, and say why atomics make results differ from run to run;
# - tell how much of a published speed-up is fusion.
#
# About 60 minutes. It follows on [05 Normalisation](05_normalisation.ipynb), where one program works on one row, and
# leads to [exercise 06](../exercises/06_softmax_topk.ipynb).

# %%
import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import measure, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
torch.manual_seed(0)
x = torch.randn(64, 1000, device=device)

# %% [markdown]
# ## What it costs written out


# %%
def written_out(x):
    shifted = x - x.amax(-1, keepdim=True)
    e = torch.exp(shifted)
    return e / e.sum(-1, keepdim=True)


# %% [markdown]
# **How many bytes an element does it move, in fp32?** Go through it operator by operator: what is as large as `x`
# counts four bytes whenever it is read or written; maxima and sums are too small to matter.

# %%
unfused_bytes = predict_first("bytes an element, softmax written out", unit="B")
unfused_bytes

# %%
unfused = measure(written_out, x)
display(unfused.launch_table())
unfused_bytes.compare(unfused.bytes_total / x.numel())

# %% [markdown]
# ## Why take off the maximum?
#
# Leave it out, and the row is read once less. `exp(x) / sum(exp(x))` is the same formula. But the largest number that
# fp16 has is 65504. **Which is the largest whole score whose exponential still fits?**

# %%
largest = predict_first("largest whole score whose exponential fits in fp16", unit="")
largest

# %%
scores = torch.arange(1.0, 100.0).half()
fits = torch.isfinite(scores.exp())
largest.compare(int(scores[fits].max()))

# %% [markdown]
# Scores of attention or of a vocabulary go past that. fp32 helps for a while only:

# %%
for dtype in (torch.float16, torch.float32, torch.float64):
    most = torch.log(torch.tensor(torch.finfo(dtype).max, dtype=torch.float64))
    print(f"{dtype}: exponentials up to exp({most:.0f})")

e = torch.exp(torch.tensor([1.0, 2.0, 100.0]))
print(e / e.sum())

# %% [markdown]
# Infinity over infinity is not a number. The cure costs nothing in accuracy: take the same number $c$ off all scores.
#
# $$\frac{e^{x_i - c}}{\sum_j e^{x_j - c}} = \frac{e^{x_i}\, e^{-c}}{\sum_j e^{x_j}\, e^{-c}}
# = \frac{e^{x_i}}{\sum_j e^{x_j}}$$
#
# Any $c$ gives the same probabilities. With the maximum for $c$ the largest exponential is exactly 1, so the sum lies
# between 1 and the number of columns. Small exponentials may underflow to 0: they were too small to count. This is
# **safe softmax**.
#
# ## One row, one program
#
# As in lesson 05: the next power of two of lanes, padding lanes masked, and loaded as 0; widened to fp32 right after
# the load, so that a bf16 row is not added up in bf16.


# %%
@triton.jit
def first_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


# %%
def softmax(kernel, x):
    y = torch.empty_like(x)
    columns = x.shape[1]
    kernel[(len(x),)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


measure(softmax, first_kernel, x)

# %% [markdown]
# One launch, one read, one write, nothing out of bounds. Is it right? Probabilities have a test of their own, which
# needs no reference: **a row adds up to 1.** A row of 1000 scores, all of them -5, has 1000 equal probabilities. **What
# do those of the first kernel add up to?** Think of what the other lanes of the block hold.

# %%
padded_sum = predict_first("sum of a row of 1000 scores of -5, first kernel", unit="")
padded_sum

# %%
fives = torch.full((1, 1000), -5.0, device=device)
padded_sum.compare(softmax(first_kernel, fives).sum().item())

# %% [markdown]
# The padding lanes hold 0: larger than any score, so they set the maximum, and each puts a 1 into the sum. 0 is neutral
# for a sum of `x`, as in lesson 05. What is neutral for a maximum *and* for a sum of exponentials? Minus infinity.


# %%
@triton.jit
def held_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


# %%
def rows_add_up(y):
    return bool(((y.sum(-1) - 1).abs() < 1e-5).all())


found = []
for name, rows in (("fives", fives), ("x", x), ("100 * x", 100 * x)):
    y = softmax(held_kernel, rows)
    right = torch.allclose(y, F.softmax(rows, -1), rtol=1e-4, atol=1e-30)
    found.append((name, rows_add_up(y), right))
table(("of", "rows add up to 1", "equal to PyTorch's"), found)

# %% [markdown]
# Right. What is left is waste: a row of 10,000 in a block of 16,384 leaves over a third of it idle, and a row of 64 keeps a
# program hardly busy. The course's `softmax` (`kernels/rowwise/softmax.py`) is this kernel with both mended: a **head**,
# a power of two of columns that every row has, beside a masked **tail** for the rest, and several short rows per
# program. It also takes rows that are not side by side in memory, and fp64, and writes its exponentials as powers of
# two, the only ones that a GPU has:

# %%
from kernels.online_softmax import LOG2_E


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,  # columns that every row has, a power of two
    TAIL: tl.constexpr,  # a power of two, at least the remaining columns; 0 where there are none
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
):
    # int64 before the multiplication: row numbers and row * stride pass 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    col = tl.arange(0, HEAD)[None, :]
    # x waits for the maximum in its own dtype: in fp32 it would take twice as many registers.
    x = tl.load(x_ptr + col, mask=row < rows, other=0.0)
    top = tl.max(x, axis=1, keep_dims=True).to(COMPUTE)
    if TAIL:
        tail_col = HEAD + tl.arange(0, TAIL)[None, :]
        in_tail = (row < rows) & (tail_col < cols)
        # Positions past the end hold -inf, which changes no maximum; its exponential adds nothing.
        x_tail = tl.load(x_ptr + tail_col, mask=in_tail, other=-float("inf"))
        top = tl.maximum(top, tl.max(x_tail, axis=1, keep_dims=True).to(COMPUTE))
    e = tl.exp2((x.to(COMPUTE) - top) * LOG2_E)
    total = tl.sum(e, axis=1, keep_dims=True)
    if TAIL:
        e_tail = tl.exp2((x_tail.to(COMPUTE) - top) * LOG2_E)
        total += tl.sum(e_tail, axis=1, keep_dims=True)
    scale = 1.0 / total
    tl.store(y_ptr + col, (e * scale).to(y_ptr.dtype.element_ty), mask=row < rows)
    if TAIL:
        tl.store(y_ptr + tail_col, (e_tail * scale).to(y_ptr.dtype.element_ty), mask=in_tail)


# %%
def two_blocks(x):
    y, (rows, columns) = torch.empty_like(x), x.shape
    blocks = {"BLOCK_ROWS": 2, "HEAD": 512, "TAIL": 512, "COMPUTE": tl.float32}
    softmax_kernel[(triton.cdiv(rows, 2),)](x, y, rows, columns, columns, **blocks)
    return y


print("right:", torch.allclose(two_blocks(x), F.softmax(x, -1), rtol=1e-4, atol=1e-30))

# %%
from helpers.figures import traffic_chart

fused = measure(softmax, held_kernel, x)
chart = traffic_chart({"unfused": unfused, "fused": fused})
unfused_bytes.on(
    chart, "x", lambda nbytes: nbytes * x.numel(), row=0, says=lambda b: f"{b / 1e6:.4g} MB"
)

# %% [markdown]
# And `F.softmax`? It is a fused kernel already: one launch, as many bytes as ours. Below, on an H200, `eager` is
# `F.softmax` and `fused` our `softmax`, the kernel above; `of copy` is
# the share of the speed at which a copy moves as many bytes. **Do the same bytes take the same time?**

# %%
from helpers.instruments import recorded

print(f"F.softmax: {measure(lambda: F.softmax(x, -1))}")
h200 = recorded("h200")
h200.table("softmax", "bfloat16")

# %%
read_and_write = 2 * 2 * 32768 * 8192  # bytes, in bf16
rows = []
for name, time in h200.times("softmax", (32768, 8192), "bfloat16").items():
    rows.append((name, f"{read_and_write / time.median / h200.copy_bandwidth:.0%}"))
table(("", "of the speed of a copy"), rows)

# %% [markdown]
# (Liger and QuACK are published collections of fused kernels, in Triton and in CuTe DSL.) The bytes are the same, the
# speed at which they move is not. **Fusing decides how many bytes a kernel moves; how it is made decides how fast.**
# Keep that in mind for every speed-up below.
#
# ## What comes after: dropout
#
# Attention drops some of its probabilities in training. On a GPU, PyTorch does that in a second kernel, which also
# stores what it dropped, one byte an element, for the backward pass. In our kernel it is two lines: `tl.rand` makes a
# random number from a seed and the element's place, so nothing need be stored, and the backward pass can make it again.


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
# **How many times fewer bytes does it move than the two kernels, in fp32?** (The second is `native_dropout`, which
# `F.dropout` runs on a GPU.)

# %%
dropout_bytes = predict_first("times fewer bytes, dropout(softmax) fused", unit="times")
dropout_bytes


# %%
def fused_dropout(x, rate):
    y = torch.empty_like(x)
    dropout_kernel[(len(x),)](x, y, 7, rate, x.shape[1], BLOCK=1024)
    return y


apart = measure(lambda: torch.native_dropout(F.softmax(x, -1), 0.1, train=True)[0])
display(apart.launch_table())
together = measure(fused_dropout, x, 0.1)
share = (together.result == 0).float().mean().item()
print(f"dropped: {share:.1%}")
dropout_bytes.compare(apart.bytes_total / together.bytes_total)

# %%
h200.table("softmax_dropout", "bfloat16")

# %% [markdown]
# As many bytes as softmax alone, but `of copy` has fallen. The same bytes take longer:

# %%
for columns in (1024, 4096):
    shape = (32768, columns)
    names = ("softmax", "softmax_dropout")
    alone, dropped = (h200.times(name, shape, "bfloat16")["fused"] for name in names)
    print(f"{shape}: {dropped.median / alone.median:.2f} times as long with dropout")

# %% [markdown]
# What does the kernel wait for now? `predict` compiles for an H200, counts instructions and bytes, and says how long
# each would take. It is asked about the catalogue's two kernels, those that the tables time (four numbers to an
# evaluation of Philox, as in lesson 04), and then about ours above, with an evaluation a number:

# %% tags=["nbval-ignore-output"]
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

# %% [markdown]
# Random numbers are made by rounds and rounds of multiplying. In the catalogue's kernel they take about as long as its
# bytes, and since the one is not wholly hidden behind the other, together they take longer than either. In ours they
# would take longer than the bytes by far. Arithmetic added to a kernel that waits for memory is free **until it no
# longer waits**.
#
# ## A row too wide to hold
#
# A row of 65,536 fp32 numbers takes every register of an SM; lesson 05 saw it spill. Registers in fp32 are not all the
# room there is. bf16 numbers take half of it, if they stay packed, two to a register, until they are used. A block has
# shared memory, too. And from compute capability 9.0 on, the SMs of a *cluster* read each other's:

# %%
from helpers.instruments import DEVICES
from helpers.instruments.occupancy_calculator import REGISTERS, limits

shared = limits(DEVICES["H200"].compute_capability).shared_memory_per_block // 2
room = {"registers, fp32": REGISTERS, "registers, bf16, packed": 2 * REGISTERS}
room |= {"shared memory, bf16": shared, "shared memory of 8 SMs, bf16": 8 * shared}
table(("", "numbers at most"), ((place, f"{numbers:,}") for place, numbers in room.items()))

# %% [markdown]
# Can we have it? A kernel that loads the row packed and widens it wherever it is used:


# %%
@triton.jit
def packed_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf"))  # not widened here
    peak = tl.max(x.to(tl.float32))
    total = tl.sum(tl.exp(x.to(tl.float32) - peak))
    tl.store(y_ptr + offset, tl.exp(x.to(tl.float32) - peak) / total, mask=inside)


# %%
from helpers.instruments import compile_for

row = torch.empty(2, 65536, dtype=torch.bfloat16, device="meta")
for kernel in (held_kernel, packed_kernel):
    made = compile_for(kernel, row, row, 65536, device="H200", BLOCK=65536, num_warps=32)
    print(f"{kernel.fn.__name__}: {made.registers} registers, spills: {made.spill_bytes > 0}")

# %% [markdown]
# Not so: the compiler sees the same conversion three times, makes it once, and holds fp32. Programs that share a row
# are no simple way out: Triton can start clusters (`num_ctas`), but gives their programs no way to tell each other what
# they found. `kernels/tuned/cluster_softmax.py` adds a barrier by hand and uses it for few rows and for the widest
# gradients. What Triton offers by itself is to read a row again, **in blocks**. Safe softmax then reads it three
# times: for the maximum, for the sum, and to write. The last read first:


# %%
@triton.jit
def write(x_ptr, y_ptr, columns, peak, total, BLOCK: tl.constexpr):
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - peak) / total, mask=col < columns)


# %%
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


# %% [markdown]
# Can the first two loops be one? Then the sum must begin before the maximum is known, with the largest score **so
# far**. What takes in a block is a function of its own, and the kernel gets it as a constant, so that we can exchange
# it later:


# %%
@triton.jit
def take_in(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    return higher, total + tl.sum(tl.exp(x - higher))


# %%
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


# %%
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
# A test that many would write, and it passes. But in rows as wide as these most probabilities are far below that, so it
# would pass for zeros. Take the other test. A row has 1024 scores of 0 and then 1024 scores of 3, a block each. **What
# do its probabilities add up to?** (`exp(-3)` is about 0.05.)

# %%
stale_sum = predict_first("sum of a row of 1024 zeros, then 1024 threes", unit="")
stale_sum

# %%
steps = torch.tensor([0.0, 3.0], device=device).repeat_interleave(1024)[None]
stale_sum.compare(online_softmax(take_in, steps).sum().item())

# %%
backwards = online_softmax(take_in, steps.flip(1))
print(f"the same row, backwards: {backwards.sum().item():.4g}")
print("the random rows:", *(f"{total:.2f}" for total in stale.sum(1).tolist()))

# %% [markdown]
# Wrong forwards, right backwards. The order matters, and what differs is **when the maximum moves**. In the first block
# it was 0, so each score was summed as `exp(0)`, a 1. Then it rose to 3, and each of those ones should have been
# `exp(-3)`.
#
# Here is what becomes of the exponentials that were taken with the wrong maximum: all of them are too large by the
# *same* factor, so one multiplication puts their **sum** right. With $m$ the old maximum and $M$ the new one,
#
# $$\sum_j e^{x_j - M} = \sum_j e^{x_j - m}\, e^{m - M} = e^{m - M} \cdot \text{old sum}$$

#
# Put right, it is one factor more:


# %%
@triton.jit
def absorb(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    factor = tl.exp(peak - higher)
    return higher, total * factor + tl.sum(tl.exp(x - higher))


# %% [markdown]
# Watch `factor` and `total` on a row of 24 in blocks of four. In the second, third and fifth block the maximum moves,
# `factor` is below 1, and what was summed before is scaled down before the block's own exponentials are added: the
# first block's 4 becomes $4\,e^{0 - 0.5}$ in the second, which adds 4 of its own, so that `total` as a whole still
# grows. Where the maximum stays, `factor` is 1, and the old sum is carried over whole.

# %%
from helpers.figures import watch

levels = torch.tensor([0, 0.5, 2, 1, 3, 1.5], device=device).repeat_interleave(4)[None]
watch(online_kernel[(1,)], levels, torch.empty_like(levels), 24, TAKE_IN=absorb, BLOCK=4)

# %%
y = online_softmax(absorb, wide)
print("rows add up to 1:", rows_add_up(y))
print("equal to PyTorch's:", torch.allclose(y, F.softmax(wide, -1), rtol=1e-4, atol=0))
print("zeros, then threes:", round(online_softmax(absorb, steps).sum().item(), 6))

# %% [markdown]
# This is **online softmax** (Milakov and Gimelshein, [arXiv:1805.02867](https://arxiv.org/abs/1805.02867)). At the
# start the old maximum is minus infinity: its factor is `exp(-inf)`, which is 0, times a sum of 0. Only a first block
# of nothing but minus infinity, as a causal mask makes them, would compute `-inf - -inf`, which is not a number; the
# catalogue's `absorb` in `kernels/online_softmax.py` takes care of that.
#
# The paper's **claim: "softmax accelerates by up to 1.3 times"**, against safe softmax. **How many times fewer bytes
# does one loop for maximum and sum request than two?** The loop that writes is in both.

# %%
paper = predict_first("times fewer bytes, online against safe, wide rows", unit="times")
paper


# %%
def safe_softmax(x):
    y = torch.empty_like(x)
    safe_wide_kernel[(len(x),)](x, y, x.shape[1], BLOCK=1024)
    return y


safe, online = measure(safe_softmax, wide), measure(online_softmax, absorb, wide)
print(f"safe: {safe}")
print(f"online: {online}")
paper.compare(safe.bytes_total / online.bytes_total)

# %% [markdown]
# **Verdict: fair, if every read comes from memory:** it is the ratio of the bytes, rounded. Does it?
#
# ## Rows too wide, live
#
# A second read comes soon after the first. If L2 can keep all rows that are at work meanwhile, DRAM does not see it.
# It need not keep all that would just fit: the model behind this picture, fitted to an H200, has it keep everything up
# to a quarter of its size, less and less beyond, and nothing from three quarters on.
#
# Move the sliders, with the mouse or the arrow keys. (Whether a row fits follows from counting registers, a number in
# fp32 to each, as our kernels hold it.)
#
# 1. From which width on does no choice of warps hold the row? (A block's lanes are a power of two.)
# 2. At 50,257 columns, GPT-2's vocabulary, go from 4 to 32 warps a row. Why does the *larger* block save bytes?
# 3. At 4 warps, go down with the rows. From where on is the second read free, and why?
# 4. At 32 warps and 8,192 rows, choose an RTX 4090, then a T4. On which of them may you read three times unpunished?

# %%
from helpers.figures import WideRowsExplorer

explorer = WideRowsExplorer("H100", dtype="bf16", rows=8192, columns=16384, warps=8)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 50,257: its lanes are 65,536, as many as an SM has registers.
# 2. Fewer rows are at work at once, so there is less to keep until each program comes back to the start of its row.
# 3. At 128 rows: all of them fit in L2 together. 4. On the RTX 4090: its L2 is the larger by far, and it has one row
# at work on each SM. The T4's has lost the row, and each read costs in full.</details>
#
# So for wide rows, large blocks. On a GPU our `softmax` has a tuned kernel for them (`kernels/tuned/wide_softmax.py`),
# which does two things more: its second loop runs **backwards**, from the row's end, which was read last and is
# nearest; and the last block of the widest rows stays in registers, packed, as do whole rows of up to 20,480 columns
# (`kernels/tuned/packed.py` shows how the compiler is kept from widening them). As recorded on an H200, bf16:

# %%
from kernels.tuned import wide_softmax

rows = []
for row in h200.rows:
    if (row["kernel"], row["provider"]) == ("softmax", "fused") and row["shape"][0] > 128:
        columns = row["shape"][1]
        share = row["least_seconds"] / row["gpu"]["median"]
        chosen = wide_softmax.settings(columns, torch.bfloat16, vector=8, unaligned=False)
        how = "read twice" if columns >= wide_softmax.MIN_COLUMNS and chosen["REREADS"] else "held"
        if how != "held" and chosen["NUM_CACHED"]:
            how += ", but for the last block"
        rows.append((f"{columns:,}", how, f"{share:.0%}"))
table(("columns", "a row is", "of the speed of a copy"), rows, h200.label_of("softmax"))

# %% [markdown]
# (The share counts one read and one write, also where it reads twice.) So up to 65,536 columns a second read is nearly
# free, and at twice that it begins to cost.
#
# ## One read and no second: cross entropy
#
# Softmax comes back because it has a row to write. A loss has one number to write. Of a row of scores, which are called
# logits here, cross entropy wants the probability of one, the label's, as a logarithm:
#
# $$-\log \frac{e^{x_\text{label} - M}}{\sum_j e^{x_j - M}} = M + \log \sum_j e^{x_j - M} - x_\text{label}$$
#
# Maximum and sum: one loop, and **any** width. PyTorch computes the logarithms of all probabilities, writes them, and
# picks one a row. **How many times fewer bytes does the one loop move?**

# %%
loss_bytes = predict_first("times fewer bytes, cross entropy fused", unit="times")
loss_bytes


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


# %%
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

# %%
h200.table("cross_entropy", "bfloat16")

# %% [markdown]
# On large tensors the speed-up is more than the ratio of the bytes, for the reason that you know: PyTorch's kernels do
# not move them at the speed of a copy. The first line is another story: see its share of a copy. It has few rows, so
# few programs: not even one for each of the H200's SMs. And each walks alone along its row: too few loads are under way
# to keep the memory busy. **One row, one program needs many rows.**
#
# ## Few rows: let programs share one
#
# What is missing is programs. Let several share a row. Each finds maximum and sum of its part, and two such pairs are
# joined as a block is to what came before it: rescale, then add. No program can wait for another, so joining is a
# launch of its own:

# %%
import inspect

from benchmarks.experiments.lesson_06 import join_kernel, part_kernel, split_loss

print(inspect.getsource(part_kernel.fn), inspect.getsource(join_kernel.fn), sep="\n")

# %%
whole = measure(loss, wide, labels)
for parts in (1, 4, 16):
    split = measure(split_loss, wide, labels, parts)
    right = torch.allclose(split.result, expected)
    print(
        f"{parts:2} parts: right: {right}, {split.bytes_total / whole.bytes_total:.3f}"
        " times the bytes"
    )

# %% [markdown]
# Hardly a byte more. **How many times faster are 16 parts a row than one, on an H200, for 8 rows of 32,768 in bf16?**
# It has 132 SMs. <!-- given 132 SMs: helpers/instruments/devices.toml -->

# %%
split_speed_up = predict_first("times faster, 8 rows in 16 parts each, H200", unit="times")
split_speed_up

# %%
split_times = h200.experiment("split_rows")
split_speed_up.compare(split_times[8][1].median / split_times[8][16].median)

# %%
rows = []
for many, times in split_times.items():
    rows.append((many, *(f"{1e6 * time.median:.1f}" for time in times.values())))
title = f"{h200.label_of('split_rows')}\nus on the GPU, by parts per row"
display(table(("rows", *split_times[8]), rows, title))
short = {"kernel": "cross_entropy", "shape": [128, 32768], "dtype": "bfloat16", "provider": "fused"}
(row,) = (each for each in h200.rows if short.items() <= each.items())
both = [f"{1e6 * row[clock]['median']:.1f} us" for clock in ("gpu", "call")]
print(f"the catalogue's, 128 rows: {both[0]} on the GPU, {both[1]} a call with Python and launch")

# %% [markdown]
# Much faster with few rows, if not by as much as there are more programs: there is a second launch, and each part has a
# start and an end of its own. 128 rows gain, too, though they are nearly as many as there are SMs: one program of four
# warps does not keep an SM's loads busy. (More warps a program is the other remedy, without a second launch. The
# catalogue's kernel has them, and its 128 rows in the table above take less time than any of these.) With 4096 rows
# there is nothing to gain, and with too many parts something to lose. But the last line: a call of such a short kernel
# is more than the GPU's part, in one part or sixteen. The gain is yours where the GPU has a queue to work off, or in a
# CUDA graph (lesson 02).
#
# Could the parts not add to one number in memory, with no second launch? `tl.atomic_add` reads, adds and writes in one
# step, which no other program comes between. (A maximum and a sum that must match each other are two numbers; take a
# plain sum.) It does not say in which **order** the programs come. Here a program's turn is given to it, so that we
# can try several orders, as a GPU takes them by chance:


# %%
@triton.jit
def atomic_sum_kernel(x_ptr, order_ptr, out_ptr, BLOCK: tl.constexpr):
    part = tl.load(order_ptr + tl.program_id(0))
    x = tl.load(x_ptr + part * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out_ptr, tl.sum(x))


# %%
def atomic_sum(x, order):
    out = torch.zeros(1, device=device)
    atomic_sum_kernel[(64,)](x, order, out, BLOCK=128)
    return out.item()


numbers = torch.randn(64 * 128, device=device)
sums = [atomic_sum(numbers, torch.randperm(64, device=device)) for _ in range(10)]
print(
    "all sums right to 0.001:",
    max(abs(each - numbers.double().sum().item()) for each in sums) < 1e-3,
)
print("all sums the same:", len(set(sums)) == 1)

# %% [markdown]
# Rounded additions depend on their order. With atomics the last digits change from run to run, and with them, after
# many steps, a whole training run. Partial results at places of their own, joined in a fixed order, are the same every
# time: **deterministic**. Atomics are fine where order cannot matter, as for integers and for a maximum. Lesson 11
# comes back to this with gradients of weights.
#
# ## Odd widths
#
# GPT-2 knows 50257 words. In bf16 that is no multiple of 16 bytes, so that seven rows of eight begin at an address
# which a wide load refuses (lesson 03b). A kernel can load its numbers one by one, or begin each row with the few that
# come before the next such address. The bytes are the same, but for the sectors that two rows share. **32744 rows of
# 4099 are all but a few the bytes of 32768 rows of 4096. How many times as long does the catalogue's softmax take, on
# an H200?**
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->

# %%
odd_rows = predict_first("softmax of rows of 4099 against 4096, H200", unit="times")
odd_rows

# %%
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
of_width = {
    point["shape"][1]: point.get("gpu") for point in at_all_sizes.of("softmax", "forward", "256 MB")
}
for kernel in ("softmax", "cross_entropy"):
    display(sweep_chart(at_all_sizes, kernel))
display(at_all_sizes.summary(["softmax", "cross_entropy"]))
odd_rows.compare(of_width[4099]["fused"][0] / of_width[4096]["fused"][0])

# %% [markdown]
# At 4099 columns that is what odd rows cost: threads move whole vectors of 16 bytes from the first address in a row
# that allows it, and one small piece more takes the few numbers before and after. At other widths see the hollow marks:
# the fewer columns, the larger the part of a row that its two ends are; and the widest cost something, too. QuACK
# refuses odd rows; of the others the best falls well behind.
#
# Softmax is behind elsewhere: at few narrow rows, and from some 12000 columns on QuACK is mostly ahead. A row fills much of an SM's registers,
# so that few rows are on their way at once, and it shares the widest among several SMs; ours does so for few rows and
# for the widest gradients, and otherwise reads most of such a row twice. Cross entropy reads each row once at any
# width, and the widest are where it leads; at narrower ones, where QuACK keeps the row, too, look at the chart.
# (Backward, a few points lie a little above the ceiling: there softmax reads two numbers for each that it writes, a
# copy one.)
# <!-- given 16 bytes: as above -->
#
# ## What is kept for the backward pass
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** (It circulates without a model or a source.) A
# backward pass needs what the forward saves for it. What lies in memory, then, is the logits, what was saved, and the
# gradient. PyTorch has hooks that see each tensor saved. Is the claim true of cross entropy?

# %%
from kernels import cross_entropy


def kept(loss, x):
    """Bytes of x, and of what the forward pass of `loss` saves for the backward."""
    sizes = {x.data_ptr(): x.nbytes}

    def keep(tensor):
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss(x, labels)
    return sum(sizes.values())


# %%
logits = wide.clone().requires_grad_()
gradient = logits.nbytes
unfused_kept, fused_kept = kept(F.cross_entropy, logits), kept(cross_entropy, logits)
for name, nbytes in (("unfused", unfused_kept), ("fused", fused_kept)):
    print(f"{name}: {nbytes / logits.nbytes:.2f} times the logits kept, and a gradient")
less = 1 - (fused_kept + gradient) / (unfused_kept + gradient)
print(f"{less:.0%} less memory")

# %% [markdown]
# **Verdict: fair, within its range, and it depends.** The fused kernel saves the logits, which are there anyway, and
# two numbers a row; the probabilities are computed again on the way back. Unfused, the logarithms are saved *beside*
# the logits. If nothing else holds on to the logits, they are freed after the forward pass, and the gain is gone:

# %%
freed = unfused_kept - logits.nbytes
less = 1 - (fused_kept + gradient) / (freed + gradient)
print(f"{round(100 * less)}% less if nobody keeps the logits")

# %% [markdown]
# ## Softmax and top-k in one pass
#
# A sampler wants the few most likely words of a vocabulary, a mixture of experts the few best experts. Written out,
# that is `topk(softmax(x), k)`. Which are the largest, the scores tell as well as the probabilities: the exponential
# keeps their order. So the probabilities of all the others need never exist. The kernel takes the best, strikes it out,
# and does so `K` times:


# %%
@triton.jit
def shortlist_kernel(x_ptr, p_ptr, i_ptr, columns, K: tl.constexpr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    offset = row * columns + lane
    x = tl.load(x_ptr + offset, mask=lane < columns, other=-float("inf")).to(tl.float32)
    peak = tl.max(x)
    total = tl.sum(tl.exp(x - peak))
    for place in range(K):
        best, index = tl.max(x, 0, return_indices=True)
        tl.store(p_ptr + row * K + place, tl.exp(best - peak) / total)
        tl.store(i_ptr + row * K + place, index)
        x = tl.where(lane == index, -float("inf"), x)


# %%
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
print(f"{apart.bytes_total / together.bytes_total:.2f} times fewer bytes")

# %% [markdown]
# (Why strike out by *place* and not by value, `x == best`? Think of two equal scores.)
#
# The same paper's **claim: "softmax and top-k combined and fused: up to 5 times faster"**, on a V100. Look at its
# conditions first. Both sides are the paper's own kernels. Unfused, safe softmax writes its probabilities, and top-k
# reads them. Fused, **only the winners are written**, of 4000 rows of 25,000 fp32 scores, `k` being 5. And there are
# two fused versions, one with safe softmax's two reads and one with online softmax's single one, so that what fusing
# does can be told from what online softmax does. All three are made again in `benchmarks/experiments/lesson_06.py`. By their
# bytes:

# %%
from benchmarks.experiments.lesson_06 import VERSIONS

few = wide[:2]
trips = {name: measure(version, few).bytes_total / few.nbytes for name, version in VERSIONS.items()}
table(("", "trips"), ((name, f"{each:.1f} trips") for name, each in trips.items()))

# %% [markdown]
# Five trips, two, one: the claim's five are the bytes'. **How many times faster is online and fused than unfused, on an
# H200, under the paper's conditions?**

# %%
topk_speed_up = predict_first("speed-up, softmax and top-5, the paper's way, H200", unit="times")
topk_speed_up

# %%
parts = {name: 1e6 * time.median for name, time in h200.experiment("top_k_parts")[25000].items()}
rows = [(name, f"{time:.0f} us") for name, time in parts.items()]
display(table(("", "time"), rows, h200.label_of("top_k_parts")))
not_fused, safe_fused, online_fused = (parts[name] for name in VERSIONS)
print(
    f"fusing: {not_fused / safe_fused:.2f} times,"
    f" one read for two: {safe_fused / online_fused:.2f} times"
)
topk_speed_up.compare(not_fused / online_fused)

# %%
one_read = 1e6 * 4000 * 25000 * 4 / h200.copy_bandwidth
print(f"one read at a copy's speed: {one_read:.0f} us")
short = h200.experiment("top_k_parts")[1000]
short_unfused, _, short_online = (short[name].median for name in VERSIONS)
print(f"rows of 1,000: {short_unfused / short_online:.2f} times faster")

# %% [markdown]
# **Verdict: under the paper's conditions, but on an H200, about three times: by fusing most, by online softmax next.**
# The bytes allow five. The online kernel does not take them: its one read would be done much
# sooner than it is, and the rest is most likely its own work, exponentials and comparisons for each score. On a V100,
# whose memory is slower, more of them may show: that was not tested. On short rows, finding the winners takes most of
# the time in all three.
#
# Another comparison is often made, and gives larger figures. The catalogue's `softmax_topk` returns all probabilities
# as well, so that against two kernels it saves but one read of three trips. Against `F.softmax`, then `topk`:

# %%
h200.table("softmax_topk", "bfloat16")

# %%
topk = h200.times("softmax_topk", (32768, 4096), "bfloat16")
alone = h200.times("softmax", (32768, 4096), "bfloat16")
read = 32768 * 4096 * 2 / h200.copy_bandwidth
eager, good = 1e6 * alone["eager"].median, 1e6 * alone["fused"].median
sorting = 1e6 * topk["eager"].median - eager
print(f"eager: softmax {eager:.0f} us, topk {sorting:.0f} us")
print(f"two kernels, well made: softmax {good:.0f} us, one read {1e6 * read:.0f} us")
print(f"fused: {1e6 * topk['fused'].median:.0f} us")

# %% [markdown]
# That is hardly fusion. `torch.topk` takes many times as long as reading its input: it is made for any `k` and any
# length. The fused kernel wins because it knows that `k` is small. Two kernels at the speed of a copy, not fused, would
# come close to it. So these figures say nothing of the paper's claim: **another baseline and other results are another
# claim.**
#
# With a GPU at hand, see for yourself what the second and the third read cost:

# %% tags=["nbval-ignore-output"]
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

# %% [markdown]
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. What must a padding lane hold that takes part in a maximum and then in a sum of exponentials, and why not 0?
# <details><summary>Answer</summary>Minus infinity: no maximum is changed by it, and its exponential is 0. A 0 wins the
# maximum of a row of negative scores, and adds an exponential of its own to every row's sum.</details>
#
# 2. Online softmax without the rescaling is right on some rows. On which?
# <details><summary>Answer</summary>Where the first block holds the row's maximum: it never moves, and every factor
# would be 1.</details>
#
# 3. Why does cross entropy read its logits once, however wide, and softmax a wide row twice?
# <details><summary>Answer</summary>Softmax must write a number for each column, and can only when the sum is known. The
# loss is one number, made from maximum, sum and the label's logit.</details>
#
# 4. Your softmax of wide rows reads everything twice, and takes hardly longer than a copy. How can that be, and what
#    change to the launch could spoil it?
# <details><summary>Answer</summary>The second read comes from a cache. With more, smaller blocks, more rows are at work
# at once, and a row is gone from the cache before its second read.</details>
#
# 5. A colleague saves the joining launch: every part adds its share with `tl.atomic_add`. The tests pass, and two runs
#    with the same seed part ways after some hundred steps. Why?
# <details><summary>Answer</summary>The parts arrive in another order each time, and fp32 additions round: the last
# digits differ, and training magnifies them.</details>
#
# 6. Two programs share a row. The first found maximum 2 and sum 10 on its half, the second maximum 4 and sum 3. What is
#    the sum of $e^{x-4}$ over the whole row? Put your number in place of the dots.

# %%
answer = ...
row = np.repeat([2.0, 4.0], [10, 3])  # has two such halves
self_test(answer, np.exp(row - 4).sum(), "rescale the first sum to the maximum 4, then add")

# %% [markdown]
# [Exercise 06](../exercises/06_softmax_topk.ipynb) asks for probabilities and top-k from one read, equal scores
# included. Next: [07 Occupancy](07_occupancy.ipynb), on what more registers, more warps and more blocks each cost.
