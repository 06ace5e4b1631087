# %% [markdown]
# # 07 Occupancy and register pressure: when is it too much?
#
# So far, fusing has cut the GPU's time, because it saved launches and [round trips](../docs/glossary.md#round-trip)
# through memory. Why not fuse *everything*, then? Because a fused kernel keeps its values in
# [registers](../docs/glossary.md#register), and an [SM](../docs/glossary.md#sm) has a fixed number of those. Say you
# fuse two operations, then ten, then twenty-four. **When does it stop paying off, and can you find out without running
# anything?**
#
# In this lesson you'll learn to
#
# - find out which resource keeps another block from fitting on an SM, and how to make room for it;
# - compile a kernel for a GPU you don't have, and read its registers, spills and machine code;
# - predict how many steps fit into a growing fusion, and find where it stops paying off;
# - predict how many wavefronts a shared memory read takes;
# - choose `num_warps` and `maxnreg` with their costs in mind, and count waves and their tail.
#
# About 75 minutes. You should have done [06 Softmax](06_softmax.ipynb). The exercise is
# [07](../exercises/07_register_budget.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.instruments import (
    DEVICES,
    MAX_REGISTERS,
    REGISTERS,
    compile_for,
    limits,
    measure,
    occupancy,
    recorded,
    table,
)
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
h100 = DEVICES["H100"]
sm = limits(h100.compute_capability)

# %% [markdown]
# The explorer shows one SM of an H100 that runs a kernel with 128 registers per thread. Most of its warp slots are
# empty. Move the slider, with the mouse or the arrow keys, until they're all filled. Each panel varies one resource and
# holds the other two fixed. The limiting resource's line is blue.

# %% tags=["hide-input"]
from helpers.figures import OccupancyExplorer

explorer = OccupancyExplorer("H100", threads=128, registers=128, first="registers")
explorer

# %% [markdown]
# ## An SM fills with blocks
#
# The GPU gives each SM as many whole **[thread blocks](../docs/glossary.md#thread-block)** as fit. (Careful: until now
# *block* has meant the array a program works on, and that's still what Triton's `BLOCK` refers to. A thread block is
# the group of threads that run one program.) Threads are grouped into **[warps](../docs/glossary.md#warp)** of 32 that
# usually execute each instruction together. When one warp is waiting for memory, the SM hides the wait by running
# another. The fraction of an SM's warp slots that are filled is its **[occupancy](../docs/glossary.md#occupancy)**.
#
# Try the explorer above. The other sliders are under *More controls*.
#
# 1. Go down to 32 registers, then up again slowly. When do you first lose a block, and what's the highest count at
#    which all 64 warps still fit?
# 2. Go back to 32 registers and set 512 threads and 48 KB of shared memory. Which resources are the limit now, and
#    would fewer registers help?
# 3. With no shared memory and 1024 threads, use one register too many for two blocks. What fraction of the warps do you
#    lose?
# 4. With 256 threads and 48 registers, compare the H100 with a T4 and an RTX 4090. Does the same resource limit all
#    three?
# <!-- given 48 KB, 32 registers, 48 registers: where the sliders are set -->
#
# <details><summary>What you should see</summary>1. 32 is the highest. At 33, four of the 16 blocks no longer fit, but
# you can add the next seven registers for free. 2. Warps, registers and shared memory all run out at the same time, so
# using fewer registers won't make room for another block. 3. Half of them: only one of the two blocks still fits. 4.
# No. A T4 has half as many warp slots, and they're all full. An RTX 4090, like the H100, has more warp slots than it
# can fill at that many registers per thread.</details>
#
# Here's what an SM of an H100 has in total:

# %% tags=["hide-input"]
print(f"{h100.sms} SMs; each has room for {sm.warps} warps and {sm.blocks} blocks,")
print(f"{REGISTERS:,} registers and {sm.shared_memory // 1024} KB of shared memory")
print(f"all {sm.warps} warps fit if a thread has {REGISTERS // (sm.warps * 32)} registers;")
print(f"a thread can have {MAX_REGISTERS} at most")

# %% [markdown]
# ## Units and quarters
#
# Two details affect how many blocks fit. Registers are allocated per warp in **units of 256**, so the count per thread
# is rounded up to a multiple of eight. And an SM has **four sub-partitions**, each with a quarter of the registers. A
# block's warps are dealt out to them in turn.
# <!-- given 256 registers: cuda_occupancy.h of the CUDA toolkit, the unit -->
#
# 1. Take blocks of 96 threads with 40 registers. 65,536 / (96 x 40) is 17.07, so how many blocks fit, and why not one
#    more?
# 2. Take blocks of 384 threads with 48 registers. How much is left over in each quarter, and how much would another
#    block need there?
# <!-- given 40 registers, 48 registers: where the sliders are set; 65,536: the cell above -->

# %% tags=["hide-input"]
from helpers.figures import RegisterQuartersExplorer

RegisterQuartersExplorer(threads=128, registers=40)

# %% [markdown]
# <details><summary>What you should see</summary>1. 16. Each quarter holds 12 warps, and the rest is too small for one
# more warp. You can't combine the leftovers of two quarters. 2. There are 2,560 left, enough for one warp. Another
# block would need room for three warps in each quarter.</details>
#
# **A block has 512 threads with 41 registers each. How many of these blocks fit on one SM?**
# <!-- given 41 registers: the question's own -->

# %% tags=["hide-input"]
blocks = predict_first("blocks of 512 threads, 41 registers each, on an SM", unit="blocks")
blocks

# %% tags=["hide-input"]
from helpers.figures import register_file_chart

found = occupancy(h100.compute_capability, threads=512, registers=41)
print(found)
blocks.compare(
    found.blocks,
    f"{REGISTERS} / (512 x 41) = {REGISTERS / (512 * 41):.2f}, so simple division gives one block "
    "too many. 41 registers are rounded up to 48, so a warp takes 1536, and a quarter of the SM "
    "holds 10 warps. That's 40 warps in all, enough for two blocks of 16 but not for three.",
)

# %% tags=["hide-input", "answers-blocks"]
title = "One register too many costs a third of the blocks"
register_file_chart(h100.compute_capability, 512, (32, 40, 41), title)

# %% [markdown]
# ## Shared memory and bank conflicts
#
# Warps can't read each other's registers. To exchange data, such as partial sums or a tile they all use, the warps of a
# block go through **[shared memory](../docs/glossary.md#shared-memory)**. Triton's compiler manages it for you, but it
# still comes out of the SM's budget, just like registers.
#
# Shared memory has 32 **banks**. Consecutive four-byte words are in consecutive banks, and each bank can serve one word
# at a time. If the lanes of a warp need different words from the same bank, the hardware has to split the request into
# several **[wavefronts](../docs/glossary.md#wavefront)**. That's called a **[bank
# conflict](../docs/glossary.md#bank-conflict)**. Suppose a tile is 32 words wide and a warp reads one column of it, so
# its lanes are 32 words apart. **How many wavefronts does that take?**
# <!-- given four bytes: CUDA C++ Programming Guide, shared memory -->

# %% tags=["hide-input"]
column = predict_first("wavefronts of a warp whose lanes are 32 words apart", unit="wavefronts")
column


# %% tags=["hide-input"]
def wavefronts(pitch, banks=32):
    words = {lane * pitch for lane in range(32)}
    return max(sum(word % banks == bank for word in words) for bank in range(banks))


column.compare(wavefronts(32), "All the words are in one bank, which is the worst case.")

# %% [markdown]
# ### Padded rows
#
# In this puzzle, each lane stores its element at position *bank*, where *bank* is the bank that its word is in.
# **Choose the smallest pitch of at least 32 that gives every lane a different bank.**


# %%
@triton.jit
def column_banks_kernel(x_ptr, bank_ptr):
    lane = tl.arange(0, 32)
    x = tl.load(x_ptr + lane)
    pitch = 32  # <- here: words per row of the tile
    word = lane * pitch
    tl.store(bank_ptr + word % 32, x)


lanes = torch.arange(32.0)
puzzle(column_banks_kernel, 1, lanes, wanted=lanes.clone())

# %% [markdown]
# <details><summary>Answer</summary><code>pitch = 33</code>. With one extra word per row, each lane's bank is the lane's
# own number. Any odd pitch avoids conflicts.</details>
#
# <!-- choices
# pitch = 32
#
# pitch = 16
#
# pitch = 34
#
# pitch = 33
#
# pitch = 64
# -->
#
# `benchmarks/experiments/lesson_07.py` times a kernel that does little but read shared memory, and the profiler counts
# its wavefronts:

# %% tags=["hide-input", "answers-column"]
counted = h200.experiment("sm_counters")
times = h200.experiment("banks")
rows = []
for pitch, count in counted["pitches"].items():
    per_read = count["shared_read_turns"] / count["shared_reads"]
    time = f"{1e6 * times[pitch].median:.0f} us"
    rows.append((pitch, wavefronts(pitch), f"{per_read:.1f}", time))
table(("pitch", "wavefronts", "counted", "time"), rows, h200.label_of("banks", "sm_counters"))

# %% [markdown]
# The second wavefront hardly costs any time, because other work hides it. Starting at four, the time grows with the
# count. In Triton, the compiler pads or swizzles tiles for you. In CUDA C++, that's your job.
#
# Now move the sliders.
#
# 1. At which widths from 28 to 40 can you read a column in one wavefront? What do they have in common?
# 2. Now read a row, then a single word. Why does neither ever conflict?

# %% tags=["hide-input"]
from helpers.figures import BanksExplorer

BanksExplorer(width=32)

# %% [markdown]
# <details><summary>What you should see</summary>1. The odd ones. 2. The words of a row are adjacent, so they're in 32
# different banks whatever the width. A single word is read once and broadcast to all the lanes.</details>
#
# ## Short live ranges
#
# Let's fuse a chain of identical steps. Each step applies RMSNorm and then SiLU to a row: `n = y / rms(y)`, and then
# `y = n * sigmoid(n)`.


# %%
@triton.jit
def forward_step(y, COLUMNS: tl.constexpr):
    scale = tl.rsqrt(tl.sum(y * y) / COLUMNS + 1e-6)
    n = y * scale
    return n * tl.sigmoid(n), n, scale


@triton.jit
def forward_kernel(x_ptr, y_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    for _ in tl.static_range(STEPS):
        y, n, scale = forward_step(y, COLUMNS)
    tl.store(y_ptr + offset, y)


# %% [markdown]
# A program holds a row of 1024 elements in 4 warps, so each thread keeps eight elements, in eight registers. A value
# occupies its register from its creation to its last use, which is its **[live
# range](../docs/glossary.md#live-range)**. **One step needs 29 registers per thread in total. How many do twelve steps
# need?** (Live ranges get you close. The assembler has the last word.) `compile_for` runs Triton's compiler and
# NVIDIA's assembler for any GPU you name. It doesn't run the kernel, so you don't need the GPU.

# %% tags=["hide-input"]
forward = predict_first("registers per thread, 12 steps, forward only", unit="registers")
forward

# %%
row = torch.empty(1, 1024, device="meta")  # no data: the compiler doesn't need any
chains = {
    steps: compile_for(forward_kernel, row, row, device="H100", COLUMNS=1024, STEPS=steps)
    for steps in (1, 12, 16, 24)
}

# %% tags=["hide-input"]
for steps, chain in chains.items():
    print(f"{steps:2} steps: {chain.registers} registers, {chain.occupancy().blocks} blocks per SM")
forward.compare(
    chains[12].registers,
    "Fusing costs few registers, because a step that replaces a value frees its register. At 16 "
    "and 24 steps the assembler takes one and two more units of eight, and you lose blocks. Live "
    "values aren't to blame, because there are still only eight.",
)

# %% [markdown]
# ## Long live ranges
#
# To compute the gradient, we go through the chain in reverse, and we need values from every step. Unfused, those are in
# memory. If we fuse it all, they have to stay in registers the whole time: they're *live*. For one step, with scale
# $r$, incoming gradient $d$, and $s$ the sigmoid of $n$:
#
# $$\text{grad}_y = r\,\bigl(g - n\,\text{mean}(g\,n)\bigr), \qquad g = d\,s\,\bigl(1 + n\,(1 - s)\bigr)$$
#
# A step's input is `y`, so our first version keeps that, in a tuple that grows at compile time:


# %%
@triton.jit
def keeps_y_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y, kept = tl.load(x_ptr + offset), ()
    for _ in tl.static_range(STEPS):
        after, n, scale = forward_step(y, COLUMNS)
        kept += ((y, scale),)
        y = after
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        y, scale = kept[step]
        n = y * scale
        gate = tl.sigmoid(n)
        grad *= gate * (1 + n * (1 - gate))
        grad = scale * grad - y * (scale * scale * scale * tl.sum(grad * y) / COLUMNS)
    tl.store(grad_x_ptr + offset, grad)


# %% [markdown]
# Each step keeps one row, at eight elements per thread, so you'd expect each additional step to cost eight registers:

# %% tags=["hide-input"]
tensors = (row, row, row)
options = {"device": "H100", "COLUMNS": 1024}
four, eight = (compile_for(keeps_y_kernel, *tensors, STEPS=n, **options) for n in (4, 8))
print(f"each additional step: {(eight.registers - four.registers) / 4:g} registers per thread")
print(
    f"MUFU per step: {eight.instructions['MUFU'] / 8:g}; "
    f"with one sigmoid {2 * 8 + 1}, with two {4 * 8 + 1}"
)

# %% [markdown]
# It's far more than eight, and the machine code shows why. A `sigmoid` takes an exponential and a reciprocal per
# element, and both run on the [SFU](../docs/glossary.md#sfu) (`MUFU`). The scale takes one more. The backward half
# needs the sigmoid again, but the kernel computes it only once, because the compiler noticed the repeated expression
# and **kept** the result. So each step has more live rows than the one we keep.
#
# Keeping `y` is our mistake, because it's just `n / r`. In the small kernel below, the backward half already uses `n`.
# **Fix the line that keeps the wrong row.**


# %%
@triton.jit
def saved_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    y, kept = tl.load(x_ptr + at), ()
    for _ in tl.static_range(STEPS):
        scale = tl.rsqrt(tl.sum(y * y) / COLUMNS + 1e-6)
        n = y * scale
        kept += ((y, scale),)  # <- here
        y = n * tl.sigmoid(n)
    grad = tl.load(grad_y_ptr + at)
    for step in tl.static_range(STEPS - 1, -1, -1):
        n, scale = kept[step]
        gate = tl.sigmoid(n)
        grad *= gate * (1 + n * (1 - gate))
        grad = scale * (grad - n * (tl.sum(grad * n) / COLUMNS))
    tl.store(grad_x_ptr + at, grad)


two_rows = torch.tensor([[4.0, -1, 2, 3], [1, -2, 5, 0.5]])
arriving = torch.tensor([[1.0, 2, -1, 3], [0.5, -2, 4, -3]])
y = exact = two_rows.double().requires_grad_()
for _ in range(2):
    y = torch.nn.functional.silu(torch.nn.functional.rms_norm(y, (4,), eps=1e-6))
(gradient,) = torch.autograd.grad(y, exact, arriving.double())
puzzle(saved_kernel, 2, two_rows, arriving, wanted=gradient.half(), COLUMNS=4, STEPS=2)

# %% [markdown]
# <details><summary>Answer</summary><code>kept += ((n, scale),)</code>. The results are right, and <code>y</code> is no
# longer live.</details>
#
# <!-- choices
# kept += ((y, scale),)
#
# kept += ((n * tl.sigmoid(n), scale),)
#
# kept += ((n, scale),)
#
# kept += ((n, 1 / scale),)
#
# kept += ((y, n),)
# -->
#
# **In this version, how many registers per thread does each additional step take up, for rows of 1024 in 4 warps?**
# Remember what the compiler does with the sigmoid. (Counting live rows gets you close.)

# %% tags=["hide-input"]
growth = predict_first("registers per thread that each further step keeps", unit="registers")
growth


# %% tags=["hide-input"]
@triton.jit
def keeps_n_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y, kept = tl.load(x_ptr + offset), ()
    for _ in tl.static_range(STEPS):
        y, n, scale = forward_step(y, COLUMNS)
        kept += ((n, scale),)
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        n, scale = kept[step]
        gate = tl.sigmoid(n)
        grad *= gate * (1 + n * (1 - gate))
        grad = scale * (grad - n * (tl.sum(grad * n) / COLUMNS))
    tl.store(grad_x_ptr + offset, grad)


def compiled(steps, gpu="H100", kernel=keeps_n_kernel, **options):
    return compile_for(kernel, *tensors, device=gpu, COLUMNS=1024, STEPS=steps, **options)


# %% tags=["hide-input"]
from benchmarks.experiments.lesson_07 import chain_gradient

torch.manual_seed(0)
x, grad_y = torch.randn(2, 3, 1024, device=device)
grad_x = torch.empty_like(x)
keeps_n_kernel[(3,)](x, grad_y, grad_x, COLUMNS=1024, STEPS=6)
y = exact = x.double().requires_grad_()
for _ in range(6):
    y = torch.nn.functional.silu(torch.nn.functional.rms_norm(y, (1024,), eps=1e-6))
(expected,) = torch.autograd.grad(y, exact, grad_y.double())
error = (grad_x - expected).abs().max() / expected.abs().max()
print("gradient right to one part in 100,000:", bool(error < 1e-5))
for steps in (1, 12):
    print(f"{steps:2} steps: {measure(chain_gradient, x, grad_y, steps)}")
growth.compare(
    round((compiled(14).registers - compiled(1).registers) / 13, 1),
    "That's two rows of eight, n (which we keep) and sigmoid(n) (which the compiler keeps), plus "
    "a few registers that it uses because they're free. Memory traffic doesn't grow at all.",
)

# %% [markdown]
# ## The first spill
#
# Instructions encode a register in eight bits, and one of the 256 codes always reads as zero, so a thread can't have
# more than the 255 we saw above. If a value doesn't fit, it **[spills](../docs/glossary.md#spill)**: it's stored to
# *local memory* and loaded back later. Local memory is ordinary GPU memory behind the SM's own cache, **L1**, and each
# thread has a private area there, its **stack**. One step needs 37 registers, and each additional one keeps two rows.
# **On an H100, what's the smallest number of fused steps that spills?**
# <!-- given 37 registers: the compiler's count for one step, in the explorer below -->

# %% tags=["hide-input"]
first_spill = predict_first("the first number of steps to spill", unit="steps")
first_spill

# %% [markdown]
# The next cell compiles the kernel at twelve sizes, which takes a few seconds. If you pick another GPU, it compiles
# them again.
#
# 1. Which panel changes long before the first spill?
# 2. When does the number of warps stop dropping, and why?
# 3. Compare a T4, an A100 and an RTX 4090. Does the first spill move? Does the occupancy?

# %% tags=["hide-input"]
from helpers.figures import RegistersExplorer

sizes = (1, 2, 4, 6, 8, 10, 12, 14, 15, 16, 20, 24)
lab = RegistersExplorer(compiled, sizes, device="H100", steps=16)
first_spill.on(lab, "x", panel=1)

# %% [markdown]
# <details><summary>What you should see</summary>1. The number of warps, which drops as soon as you add a second step.
# 2. At ten, of the sizes here. Two blocks fit, and two still fit even if every thread uses the maximum number of
# registers. 3. The first spill hardly moves, because all of them have the same limit per thread. The number of blocks
# doesn't change either (except at one or two steps, where all of a T4's warp slots are taken), but the occupancy does,
# because some GPUs have more warp slots per SM.</details>

# %% tags=["hide-input"]
rows = []
for steps in (12, 14, 15, 16, 20, 24):
    made = compiled(steps)
    needed = compiled(1).registers + 2 * 8 * (steps - 1)
    stored = made.spill_stores // 4
    rows.append((steps, needed, made.registers, max(0, needed - MAX_REGISTERS), stored))
display(table(("steps", "needed", "taken", "excess over 255", "values spilled"), rows))
spills = {steps: compiled(steps).spill_bytes for steps in sizes}
first = next(steps for steps, spilled in spills.items() if spilled)
first_spill.compare(
    first,
    "While registers are free, the compiler uses more than it needs: 230 for 12 steps. It only "
    "spills once it really needs more than 255, at 37 plus 16 per additional step, and then it "
    "spills roughly the excess.",
)

# %% [markdown]
# ## Where does fusing stop paying off?
#
# The alternative is to **cut** the chain in two. That takes three launches: one runs the first half forward and writes
# the row at the cut, and then each half gets a launch for its gradient, so the first half runs forward twice. The meter
# shows the bytes that the cut costs, and the compiler shows the gain. (*Spilled* counts bytes stored plus bytes loaded,
# per thread.)

# %% tags=["hide-input"]
whole = measure(chain_gradient, x, grad_y, 16, 1)
cut = measure(chain_gradient, x, grad_y, 16, 2)
cost_of_cut = (cut.bytes_total - whole.bytes_total) / x.numel()
print(f"one piece {whole}")
print(f"in two    {cut}")
print(f"a cut costs {cost_of_cut:g} B/element and {cut.launches - 1} launches")
rows = []
for steps in (6, 10, 12, 16, 20, 24):
    both = (compiled(steps), compiled(-(-steps // 2)))
    cells = [(made.occupancy().blocks, f"{made.spill_bytes} B") for made in both]
    rows.append((steps, *cells[0], *cells[1]))
columns = ("steps", "one piece: blocks per SM", "spilled", "each half: blocks per SM", "spilled")
table(columns, rows)

# %% [markdown]
# A cut is only worth its extra work if more blocks fit or fewer values spill. **At how many steps do two pieces first
# beat one, on an H200?** (We timed even numbers of steps. An H200 has the same SMs as an H100 and faster memory.)
# You'll have to guess whether blocks or spills matter more.

# %% tags=["hide-input"]
stops = predict_first("the first number of steps where two pieces win, H200", unit="steps")
stops

# %% tags=["hide-input"]
pieces, rows = h200.experiment("over_fusion"), []
for steps in (6, 8, 10, 12, 14, 16, 20, 24):
    one, time = compiled(steps), pieces[steps][1].median
    per_step = f"{1e6 * time / steps:.0f} us"
    rows.append((steps, one.occupancy().blocks, f"{one.spill_bytes} B", per_step))
columns = ("steps, in one piece", "blocks per SM", "spilled", "time per step")
display(table(columns, rows, h200.label_of("over_fusion")))
gains = [s for s, times in pieces.items() if s > 1 and times[2].median < times[1].median]
stops.compare(
    gains[0],
    "That's long before it spills. The time per step jumps when the SM loses a block, and hardly "
    "changes when spills begin.",
)

# %% tags=["hide-input", "answers-stops"]
from helpers.figures import curves_chart

each_step = {
    f"{count} piece{'s' * (count > 1)}": {
        steps: 1e6 * times[count].median / steps for steps, times in pieces.items() if steps >= 4
    }
    for count in (1, 2, 3, 4)
}
chart = curves_chart(
    each_step,
    f"In two pieces the chain is faster at {gains[0]} to {gains[-1]} steps, and no faster "
    "with fewer or more",
    x="steps of the chain",
    y="time per step on an H200 (µs)",
)
stops.on(chart, "x")

# %% [markdown]
# Blocks or spills: how good is the evidence for each?
#
# **Blocks.** The kernel isn't waiting for memory: as the first line of the next output shows, moving its bytes at copy
# bandwidth would take only a small part of its time. Each step sums a row twice, and each time all the warps in the
# block wait for the slowest one. Meanwhile, only *another block* can use the SM. The more blocks there are, the better
# they fill these gaps. That's consistent with the times, but we have no experiment that isolates it.
#
# **Spills.** A spilled value goes to L1 first. Do the stacks of all the threads on the SM fit there, and does the
# profiler agree?

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_07 import ROWS

copied = 12 * ROWS * 1024 / h200.copy_bandwidth
print(f"ten steps: {1e3 * copied:.2f} ms to copy, {1e3 * pieces[10][1].median:.2f} ms measured")
print(f"L1 and shared memory: {sm.l1_and_shared_memory // 1024} KB")
unspilled, rows = counted["steps"][14], []
for steps in (15, 16, 20, 24):
    one, count = compiled(steps), counted["steps"][steps]
    stacks = f"{one.stack * 128 * one.occupancy().blocks / 1024:.0f} KB"
    hit = f"{count['local_read_hit'] / count['local_read']:.0%}"
    stored, dram = count["local_written"], count["dram_written"] - unspilled["dram_written"]
    rows.append((steps, stacks, hit, f"{32e-6 * stored:.0f} MB", f"{1e-6 * dram:.0f} MB"))
columns = ("steps", "stacks per SM", "loaded from L1", "stored", "more written to DRAM")
table(columns, rows, h200.label_of("sm_counters"))

# %% [markdown]
# The stacks do fit, and nearly every spilled value is reloaded from L1. The stores go on to L2, but a warp doesn't wait
# for its store to finish, and little of this traffic reaches [DRAM](../docs/glossary.md#dram).
#
# So, as far as these measurements go, fusing stops paying off **when one more step costs a block that the SM needed**,
# and the compiler lists the candidates. A cut only helps if it lets more blocks fit. At 20 and 24 steps it doesn't, so
# cutting the chain in two makes it slower.
#
# ## Capping registers: maxnreg
#
# Triton's launch option `maxnreg` caps the registers per thread. (CUDA C++ has `__maxnreg__`. It also has
# `__launch_bounds__`: you give it the block size and how many blocks should fit, and the compiler chooses the
# registers.) The assembler respects the cap and spills whatever doesn't fit. **What occupancy do twelve steps in 4
# warps reach with a cap of 64 registers?**
# <!-- given 64 registers: the question's own -->

# %% tags=["hide-input"]
capped = predict_first("occupancy of 12 steps capped at 64 registers", unit="%")
capped

# %% tags=["hide-input"]
caps, rows = h200.experiment("over_fusion_limited"), []
for most in (None, 200, 168, 128, 96, 64):
    made = compiled(12, maxnreg=most)
    time = f"{1e3 * caps[most or 255].median:.2f} ms"  # 255 doesn't cap anything
    at, spilled = f"{made.occupancy().fraction:.1%}", f"{made.spill_bytes} B"
    rows.append((most or "none", made.registers, at, spilled, time))
columns = ("cap", "registers", "occupancy", "spilled", "time")
display(table(columns, rows, h200.label_of("over_fusion_limited")))
capped.compare(
    100 * compiled(12, maxnreg=64).occupancy().fraction,
    f"A cap of 128 is {caps[255].median / caps[128].median:.2f}x faster than no cap, even though "
    "each thread spills hundreds of bytes, because two more blocks fit. The mildest cap only "
    "slows it down, because it doesn't make room for another block. The tightest loses more than "
    "it gains.",
)

# %% [markdown]
# Every cap trades spills for blocks, and no rule gives you the best one. Get the candidates from the compiler (the caps
# that let one more block fit), then time them.
#
# ## More threads per row: num_warps
#
# In 4 warps, twenty-four steps spill. In 8 warps, each thread holds half as many elements:

# %% tags=["hide-input"]
rows = []
for steps, warps in ((12, 4), (24, 4), (24, 8)):
    each = compiled(steps, num_warps=warps)
    resident = each.occupancy().blocks
    kept = f"{2 * steps * 1024 * resident / REGISTERS:.0%}"
    rows.append((steps, warps, each.registers, f"{each.spill_bytes} B", resident, kept))
columns = ("steps", "warps", "registers", "spilled", "rows per SM", "kept rows / register file")
table(columns, rows)

# %% [markdown]
# Now nothing spills, because the row is spread over twice as many threads. But the register file hasn't grown, so each
# SM holds fewer rows. We haven't timed whether that's faster.
#
# ## Is low occupancy bad?
#
# **Claim: below 50 % occupancy, reconsider.** Let's test it on add+GELU from lesson 00, which does little but move
# bytes, at several block sizes. With a larger block, each thread has more loads in flight and uses more registers.

# %% tags=["hide-input"]
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

sweep, rows = h200.experiment("occupancy_sweep"), []
for block, warps in ((512, 4), (2048, 4), (4096, 4), (8192, 4), (8192, 2)):
    chosen = settings(torch.float32) | {"BLOCK": block, "num_warps": warps}
    add = compile_for(add_gelu_kernel, *tensors, None, 2**27, device="H200", **chosen)
    share, loads = f"{add.occupancy().fraction:.0%}", add.instructions["LDG.128"]
    time = f"{1e6 * sweep[f'{block}x{warps}'].median:.0f} us"
    rows.append((block, warps, share, loads, f"{add.spill_bytes} B", time))
columns = ("BLOCK", "warps", "occupancy", "loads per thread", "spilled", "time")
table(columns, rows, h200.label_of("occupancy_sweep"))

# %% [markdown]
# Dropping from full occupancy to a fifth of it makes hardly any difference, because each thread has more loads [in
# flight](../docs/glossary.md#in-flight), and only the total bytes in flight matter. (This is **Little's law**: bytes in
# flight equal bandwidth times *latency*, the time from request to delivery.) The last row is slower, but that one
# spills. **Verdict: it's fine as a warning sign, but wrong as a rule.** Our chain waits at every step, so it did need
# its blocks. *Going further* runs the same test for arithmetic.
#
# ## Waves and the tail
#
# The blocks that fit on all SMs at once make up a **[wave](../docs/glossary.md#wave)**. A launch with more blocks takes
# several waves, and the last one, the **[tail](../docs/glossary.md#tail)**, may be nearly empty. Our chain of twelve
# steps fits two blocks per SM. **With 264 rows, every slot on an H100's 132 SMs is used. What percentage is used with
# 265?**

# %% tags=["hide-input"]
used = predict_first("slots used by 265 blocks, two per SM, on an H100", unit="%")
used

# %% tags=["hide-input"]
twelve = compiled(12).occupancy()
for rows in (264, 265, 1000, 100_000):
    print(f"{rows:7,} rows: {twelve.waves(rows, h100.sms)}")
used.compare(100 * twelve.waves(265, h100.sms).efficiency)

# %% tags=["hide-input", "answers-used"]
from helpers.figures import waves_chart

waves_chart(twelve.waves(300, h100.sms))

# %% [markdown]
# Does one block past a full wave double the time? The picture assumes that a block takes just as long on an empty SM as
# on a full one. Here are measurements of two kernels: one does arithmetic that keeps the SM busy, and the other is our
# twelve steps, which mostly wait:

# %% tags=["hide-input"]
waves, rows = h200.experiment("waves"), []
for n, busy in waves["filling"].items():
    rows.append((n, f"{1e6 * busy.median:.0f} us", f"{1e6 * waves['waiting'][n].median:.1f} us"))
display(table(("blocks", "busy SM", "a chain that waits"), rows, h200.label_of("waves")))
ratios = [waves[kind][265].median / waves[kind][264].median for kind in ("filling", "waiting")]
print("265 blocks vs 264: busy {:.2f}x, waiting {:.2f}x".format(*ratios))

# %% [markdown]
# Neither doubles. In the busy kernel, the extra block has an SM to itself, and it runs twice as fast as two that share
# one (see the first two lines). A block of the chain takes just as long on its own, but the kernel's start is only paid
# for once. With hundreds of waves you won't notice the tail, so on large tensors almost any grid works.
#
# On small ones, choose a block size that fills the last wave, or divide the work into smaller pieces. You can also
# launch a fixed number of programs that loop over the rows, a **[persistent
# kernel](../docs/glossary.md#persistent-kernel)**: each block starts only once, but the last round may still be nearly
# empty. Here three programs share seven rows, and each row should be computed once. **Fix the loop.**


# %%
@triton.jit
def persistent_kernel(x_ptr, y_ptr, rows, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    for row in range(tl.program_id(0), rows, 1):  # <- here
        x = tl.load(x_ptr + row * COLUMNS + column)
        tl.store(y_ptr + row * COLUMNS + column, x / tl.sum(x))


seven_rows = torch.arange(1.0, 29.0).view(7, 4)
shares = seven_rows / seven_rows.sum(1, keepdim=True)
puzzle(persistent_kernel, 3, seven_rows, wanted=shares, rows=7, COLUMNS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>for row in range(tl.program_id(0), rows, tl.num_programs(0)):</code>. Now
# program 1 takes rows 1 and 4. Before, every program ran to the last row, so most rows were computed several
# times.</details>
#
# <!-- choices
# for row in range(tl.program_id(0), rows, 1):
#
# for row in range(0, rows, tl.num_programs(0)):
#
# for row in range(tl.program_id(0), rows, COLUMNS):
#
# for row in range(tl.program_id(0), rows, rows // tl.num_programs(0)):
#
# for row in range(tl.program_id(0), rows, tl.num_programs(0)):
# -->
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two kernels have the same occupancy, but one stalls on memory and the other doesn't. How is that possible?
# <details><summary>Answer</summary>It takes bytes in flight to hide the wait. A warp with eight loads in flight per
# thread hides as much as eight warps with one each.</details>
#
# 2. You add a tenth operation to a fused forward chain of nine. Each one needs only the previous result. What happens
#    to the registers?
# <details><summary>Answer</summary>Hardly anything. When a value is replaced, its register is freed. Only values you
# need again later stay live.</details>
#
# 3. You fuse one more operation, and the compiler reports one block fewer per SM but no spills. "No spill, no harm,"
#    says a colleague. What's your answer?
# <details><summary>Answer</summary>Time it. In our chain, losing a block cost far more than the first spills did. In
# add+GELU, which has enough loads in flight, losing blocks didn't cost anything.</details>
#
# 4. A tight `maxnreg` quadruples a kernel's occupancy, but the kernel gets slower. Where do you look first?
# <details><summary>Answer</summary>At <code>spill_bytes</code> and <code>stack</code>. The cap traded registers for
# spills, and the stacks of all the threads together may not fit in L1.</details>
#
# 5. A kernel keeps six rows of 2048 fp32 elements live, in 4 warps. How many registers per thread does that take?
#    Replace the dots with your answer.

# %%
answer = ...
self_test(answer, 6 * 2048 / 128, "2048 elements over 4 x 32 threads, one register each")

# %% [markdown]
# ## Now you
#
# In [Exercise 07](../exercises/07_register_budget.ipynb) you'll fit kernels into a register budget. Next up is [08
# Matmul epilogues](08_matmul_epilogues.ipynb), where the tiles of a matmul fill the registers. The [lab
# bench](lab_bench.ipynb) shows each instrument of the course in one line.

# %% [markdown]
# ## Going further
#
# ### Occupancy and arithmetic
#
# A multiplication takes several cycles, and an instruction that needs its result has to wait. You can fill the gap with
# other warps, or with independent values in the same thread, which is **instruction-level parallelism**. We measured a
# kernel that multiplies and adds, with 1 to 8 values per thread and 4 to 64 warps per SM:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_07 import ROUNDS

parallel = h200.experiment("parallelism")


def rate(values, warps):
    products = DEVICES["H200"].sms * warps * 32 * values * ROUNDS
    return 2 * products / parallel[values][warps].median


rows = []
for warps in parallel[1]:
    rates = (f"{rate(values, warps) / 1e12:.1f}" for values in parallel)
    rows.append((warps, f"{warps / sm.warps:.0%}", *rates))
title = f"{h200.label_of('parallelism')}\nTFLOP/s, by values per thread"
display(table(("warps", "occupancy", *parallel), rows, title))
print(f"4 warps with 8 values vs 64 warps with 1: {rate(8, 4) / rate(1, 64):.2f}x")

# %% [markdown]
# **The version with full occupancy is the slower of the two.** Both down a column (more warps) and along a row (more
# values per thread), the rate rises until some unit is saturated, and then it levels off or drops a little. (With one
# value per thread, you also pay more for the loop.) You need enough total work in flight: warps times the work in
# flight per warp.
#
# ### The cost of a spill
#
# In the machine code, a spill is an `STL` (store local) and an `LDL` (load local). Here are some of them, with their
# source lines:

# %% tags=["hide-input", "nbval-ignore-output"]
of_stack = compiled(first).sass_view("stack").instructions
print(f"{len(of_stack)} of {sum(compiled(first).instructions.values())} instructions")
some = (*of_stack[:3], *of_stack[-3:])
table(("instruction", "source line"), ((each.text, each.source) for each in some))

# %% [markdown]
# **Claim: spilled registers are 100 times slower.** Let's test it on twelve steps, uncapped and capped at 64 registers,
# and then on the case closest to the claim: add+GELU with blocks of 16384 in 2 warps, which has more elements per
# thread than a thread has registers:
# <!-- given 64 registers: the cap chosen -->

# %% tags=["hide-input"]
free, tight = compiled(12), compiled(12, maxnreg=64)
added = sum(tight.instructions.values()) - sum(free.instructions.values())
longer = added / sum(free.instructions.values())
local = sum(n for name, n in tight.instructions.items() if name[:3] in ("LDL", "STL"))
stacks = 128 * tight.occupancy().blocks * tight.stack
print(f"{local} stack loads and stores, {longer:.0%} more instructions in all")
print(
    f"{stacks / 1024:.0f} KB of stack per SM, {sm.l1_and_shared_memory // 1024} KB of L1", end="; "
)
count = counted["limits"][64]
print(f"{count['local_read_hit'] / count['local_read']:.0%} of it is loaded from L1 on an H200")
print(f"slower by a factor of {caps[64].median / caps[255].median:.2f}")
chosen = settings(torch.float32) | {"BLOCK": 16384, "num_warps": 2}
add = compile_for(add_gelu_kernel, *tensors, None, 2**27, device="H200", **chosen)
print(f"add+GELU: {16384 // 64} elements per thread, {add.registers} registers,", end=" ")
worst = sweep["16384x2"].median / min(time.median for time in sweep.values())
print(f"{add.stack} B of stack; {worst:.1f} times slower than the best block size")

# %% [markdown]
# **Verdict: it fails for a whole kernel.** A single access that goes all the way to DRAM is far slower than a register.
# But a kernel that spills isn't, because other warps run in the meantime, and caches catch some of the spills. With
# some of the caps above, the kernel spilled and still got faster. In the add+GELU case, the assembler gave up and kept
# nearly everything on the stack.
#
# ### On your GPU
#
# If you have a GPU, find out where fusing stops paying off:

# %% tags=["hide-input", "nbval-ignore-output"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    big_x, big_grad = torch.randn(2, 2**16, 1024, device="cuda")
    run = lambda steps, pieces: lambda: chain_gradient(big_x, big_grad, steps, pieces)
    for steps in (6, 8, 10, 12):
        times = benchmark_together({p: run(steps, p) for p in (1, 2, 3)}, runs=10)
        print(steps, "steps:", {p: f"{t.median * 1e3:.2f} ms" for p, t in times.items()})
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
