# %% [markdown]
# # 07 Occupancy and register pressure: when is it too much?
#
# So far every fusion paid: one launch fewer, one [round trip](../docs/glossary.md#round-trip) through memory fewer. So
# why not fuse *everything*? A fused kernel keeps its values in [registers](../docs/glossary.md#register), and an
# [SM](../docs/glossary.md#sm) has only a fixed number. You fuse two operations, ten, twenty-four. **At which one does
# it stop paying, and how can you know without running it once?**
#
# After this lesson you can
#
# - name the resource that keeps one more block off an SM, and what would let it in;
# - compile a kernel for a GPU that you do not have, and read its registers, its spills and its machine code;
# - predict how many operations of a growing fusion fit, and find where it stops paying;
# - predict how many wavefronts a read of shared memory takes;
# - choose `num_warps` and `maxnreg` knowing their costs, and count waves and their tail.
#
# About 65 minutes. It follows on [06 Softmax](06_softmax.ipynb) and leads to
# [exercise 07](../exercises/07_register_budget.ipynb).

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
# ## An SM fills with blocks
#
# An SM takes whole **[thread blocks](../docs/glossary.md#thread-block)**, as many as fit. (So far a *block* was the
# array that a program works on, and in Triton's `BLOCK` it still is. On an SM it is the program itself, the threads
# that run it.) A thread block is made of **[warps](../docs/glossary.md#warp)** of 32 threads that run in lockstep.
# While one warp waits for memory, the SM runs another: that is how it hides the wait. The share of its warp slots that
# are filled is its **[occupancy](../docs/glossary.md#occupancy)**.
#
# Here is one SM of an H100. Move the sliders, with the mouse or the arrow keys; each panel varies one resource and
# keeps the other two.
#
# 1. Raise the registers slowly from 32. When does a block leave, and which count is the last with all 64 warps?
# 2. Back to 32 registers: 512 threads, 48 KB of shared memory. Which resources limit now, and do fewer registers help?
# 3. No shared memory, 1024 threads, one register too many for two blocks. What share of the warps is lost?
# 4. 256 threads with 48 registers: compare the H100 with a T4 and an RTX 4090. Is the limiter the same?
# <!-- given 48 KB, 32 registers, 48 registers: where the sliders are set -->

# %% tags=["hide-input"]
from helpers.figures import OccupancyExplorer

explorer = OccupancyExplorer("H100", threads=128, registers=32)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. 32 is the last: at 33, four of 16 blocks leave. The next seven
# registers cost nothing more. 2. Warps, registers and shared memory, all three at once: fewer
# registers admit no further block. 3. Half of them: one block of two is left. 4. No. A T4 has half the room for warps
# and is full. An RTX 4090 has more room for warps than that many registers allow, as the H100 has.</details>
#
# What an SM of an H100 has in all:

# %% tags=["hide-input"]
print(f"{h100.sms} SMs; each has room for {sm.warps} warps and {sm.blocks} blocks,")
print(f"{REGISTERS:,} registers and {sm.shared_memory // 1024} KB of shared memory")
print(f"all {sm.warps} warps fit if a thread has {REGISTERS // (sm.warps * 32)} registers;")
print(f"a thread can have {MAX_REGISTERS} at most")

# %% [markdown]
# ## Units and quarters
#
# Two details decide how many blocks fit. A warp gets its registers in **units of 256**, so a thread's count is rounded
# up to a multiple of eight. And an SM is **four parts**, each with a quarter of the registers; the warps are dealt out
# to them in turn.
# <!-- given 256 registers: cuda_occupancy.h of the CUDA toolkit, the unit -->
#
# 1. Blocks of 96 threads with 40 registers: 65,536 / (96 x 40) is 17.07. How many fit, and why not one more?
# 2. Blocks of 512 threads with 48 registers: how much is left in each quarter, and what does one more block need there?
# <!-- given 40 registers, 48 registers: where the sliders are set; 65,536: the cell above -->

# %% tags=["hide-input"]
from helpers.figures import RegisterQuartersExplorer

RegisterQuartersExplorer(threads=128, registers=40)

# %% [markdown]
# <details><summary>What you should see</summary>1. 16: a quarter holds 12 warps, and its leftover is less than a warp
# gets; leftovers of two quarters cannot be combined. 2. 4,096, enough for two warps; one more block needs four warps in
# each quarter.</details>
#
# **A block has 512 threads, and each of them has 41 registers. How many such blocks fit on one SM?**
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
    f"{REGISTERS} / (512 x 41) = {REGISTERS / (512 * 41):.2f}, so plain division promises a block "
    "that does not fit. 41 registers are 48, a warp takes 1536, a quarter of the SM holds 10 "
    "warps, and 40 warps are two blocks of 16.",
)

# %% tags=["hide-input", "answers-blocks"]
title = "One register too many costs a third of the blocks"
register_file_chart(h100.compute_capability, 512, (32, 40, 41), title)

# %% [markdown]
# ## Shared memory and bank conflicts
#
# Warps of a block cannot read each other's registers. They exchange data (partial sums, a tile they all use) through
# **[shared memory](../docs/glossary.md#shared-memory)**. Triton's compiler manages it for you, but the block still pays
# for it out of the SM's budget, as it does for registers.
#
# Shared memory has 32 **banks**. Consecutive words of four bytes are in consecutive banks, and each bank serves one
# word at a time. When lanes of a warp need different words from the same bank, the hardware splits the request into
# several **[wavefronts](../docs/glossary.md#wavefront)**: a **[bank conflict](../docs/glossary.md#bank-conflict)**. A
# tile is 32 words wide, and a warp reads one column, so that its lanes are 32 words apart. **How many wavefronts does
# that take?**
# <!-- given four bytes: CUDA C++ Programming Guide, shared memory -->

# %% tags=["hide-input"]
column = predict_first("wavefronts of a warp whose lanes are 32 words apart", unit="wavefronts")
column


# %% tags=["hide-input"]
def wavefronts(pitch, banks=32):
    words = {lane * pitch for lane in range(32)}
    return max(sum(word % banks == bank for word in words) for bank in range(banks))


column.compare(wavefronts(32), "All words are in one bank: the worst case.")

# %% [markdown]
# ### Padded rows
#
# Here each lane stores its element where its word's bank is. **Choose the smallest pitch of at least 32 that gives
# every lane a bank of its own.**


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
# <details><summary>Answer</summary><code>pitch = 33</code>: rows one word longer than they need to be, and each lane's
# bank is its own number. Any odd pitch avoids conflicts.</details>
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
# So much for theory. `benchmarks/experiments/lesson_07.py` times a kernel that does little else, and the profiler
# counts its wavefronts:

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
# Two wavefronts barely show, because other work hides them; with four and more, time grows with the count. Triton's
# compiler pads or swizzles tiles for you; in CUDA C++, that is your job.
#
# 1. At what widths from 28 to 40 does a column take one wavefront? What do they share?
# 2. Read a row instead, then one word. Why does neither ever conflict?

# %% tags=["hide-input"]
from helpers.figures import BanksExplorer

BanksExplorer(width=28)

# %% [markdown]
# <details><summary>What you should see</summary>1. They are odd. 2. The words of a row are neighbours, so they are in
# 32 banks at any width. One word is read once and goes to all lanes.</details>
#
# ## Short live ranges
#
# Let us fuse a chain of equal operations, each RMSNorm and SiLU on a row: `n = y / rms(y)`, `y = n sigmoid(n)`.


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
# (`tl.static_range` is a loop that the compiler unrolls.) One program holds a row of 1024 elements in 4 warps: eight
# elements per thread, eight registers. A value needs its register from its creation to its last use, its **[live
# range](../docs/glossary.md#live-range)**. **One step needs 29 registers per thread in all. How many do twelve steps
# need?** `compile_for` runs Triton's compiler and NVIDIA's assembler for the GPU you name; nothing runs, so it needs no
# GPU.

# %% tags=["hide-input"]
forward = predict_first("registers per thread, 12 steps, forward only", unit="registers")
forward

# %%
row = torch.empty(1, 1024, device="meta")  # no contents: the compiler does not read any
chains = {
    steps: compile_for(forward_kernel, row, row, device="H100", COLUMNS=1024, STEPS=steps)
    for steps in (1, 12, 16, 24)
}

# %% tags=["hide-input"]
for steps, chain in chains.items():
    print(f"{steps:2} steps: {chain.registers} registers, {chain.occupancy().blocks} blocks per SM")
forward.compare(
    chains[12].registers,
    "Fusing costs few registers: a value that the next step replaces frees its own. At 16 and 24 "
    "steps the assembler takes one and two units of eight more, and blocks are lost. Live values "
    "do not explain that, since eight are live as before.",
)

# %% [markdown]
# ## Long live ranges
#
# The gradient walks the chain backwards and needs values of each step. Unfused, they are in memory. Fused, they must
# stay in registers: they are *live*. For one step, with $r$ the scale, $d$ the gradient that arrives and $s$ the
# sigmoid of $n$:
#
# $$\text{grad}_y = r\,\bigl(g - n\,\text{mean}(g\,n)\bigr), \qquad g = d\,s\,\bigl(1 + n\,(1 - s)\bigr)$$
#
# Textbooks write it with the step's input `y`, so a first version keeps `y`, in a tuple that grows at compile time:


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
# Each step keeps one row, eight elements per thread, so each further step should cost eight registers:

# %% tags=["hide-input"]
tensors = (row, row, row)
options = {"device": "H100", "COLUMNS": 1024}
four, eight = (compile_for(keeps_y_kernel, *tensors, STEPS=n, **options) for n in (4, 8))
print(f"each further step: {(eight.registers - four.registers) / 4:g} registers per thread")
print(
    f"MUFU per step: {eight.instructions['MUFU'] / 8:g}; "
    f"with one sigmoid {2 * 8 + 1}, with two {4 * 8 + 1}"
)

# %% [markdown]
# Far more than eight, and the machine code shows why. A `sigmoid` takes an exponential and a reciprocal per element,
# both on the [SFU](../docs/glossary.md#sfu) (`MUFU`); the scale takes one more. The way back needs the sigmoid again,
# but the kernel computes it once: the compiler saw the same expression twice and **kept** the result. So three rows are
# live per step: `y`, which we keep, and `n` and `sigmoid(n)`, which the compiler keeps.
#
# The mistake is ours: `y` is only `n / r`. In this small kernel the way back already takes `n`. **Correct the line that
# keeps the wrong row.**


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
# <details><summary>Answer</summary><code>kept += ((n, scale),)</code>: the values are right, and `y` is no longer
# live.</details>
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
# **How many registers per thread does each further step of this version have to keep, for rows of 1024 in 4 warps?**
# Remember what the compiler does with the sigmoid.

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
    "Two rows of eight: n, which we keep, and sigmoid(n), which the compiler keeps, and some "
    "registers that it takes because they are free. Memory traffic does not grow at all.",
)

# %% [markdown]
# ## The first spill
#
# An instruction has eight bits to name a register, so a thread can have at most the 255 from above. What does not fit
# **[spills](../docs/glossary.md#spill)**: it is stored to *local memory*, ordinary GPU memory behind the SM's own
# cache, **L1**, and loaded back. Each thread has a place of its own there, its **stack**. One step needs 37 registers;
# each further one keeps two rows. **Which number of fused operations is the first to spill on an H100?**
# <!-- given 37 registers: the compiler's count for one step, in the explorer below -->

# %% tags=["hide-input"]
first_spill = predict_first("the first number of operations to spill", unit="operations")
first_spill

# %% [markdown]
# The next cell compiles the kernel twelve times, in some seconds. Another GPU means another twelve compilations.
#
# 1. Which panel moves long before the first spill?
# 2. When do the warps stop falling, and why?
# 3. Compare a T4, an A100 and an RTX 4090. Does the first spill move? Does the occupancy?

# %% tags=["hide-input"]
from helpers.figures import RegistersExplorer

sizes = (1, 2, 4, 6, 8, 10, 12, 14, 15, 16, 20, 24)
lab = RegistersExplorer(compiled, sizes, device="H100", operations=16)
first_spill.on(lab, "x", panel=1)

# %% [markdown]
# <details><summary>What you should see</summary>1. The warps: they fall as soon as there is a second operation. 2. At
# ten: two blocks fit then, and they do even with all the registers that a thread can have. 3. The first spill hardly
# moves, as a thread's limit is the same on all of them. The blocks do not move either; the share of the warps does,
# since some GPUs have room for more warps per SM than others.</details>

# %% tags=["hide-input"]
rows = []
for steps in (12, 14, 15, 16, 20, 24):
    made = compiled(steps)
    needed = compiled(1).registers + 2 * 8 * (steps - 1)
    stored = made.spill_stores // 4
    rows.append((steps, needed, made.registers, max(0, needed - MAX_REGISTERS), stored))
display(table(("steps", "needed", "taken", "needed over 255", "values spilled"), rows))
spills = {steps: compiled(steps).spill_bytes for steps in sizes}
first = next(steps for steps, spilled in spills.items() if spilled)
first_spill.compare(
    first,
    "While registers are free the compiler takes more than it needs: 230 for 12 steps. It spills "
    "only when the need itself, 37 and 16 per further step, passes 255, and then about as much as "
    "is over.",
)

# %% [markdown]
# ## Where does it stop paying?
#
# The alternative is to **cut** the chain in two, which takes three launches: one runs the first half forward and writes
# the row it ends with, then each half has one for its gradient. The meter counts what a cut costs, the compiler what it
# saves (spilled bytes are those that a thread stores and loads again):

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
# A cut must pay for its bytes with blocks, or with spills avoided. **At which of these numbers does the chain in two
# pieces first beat the chain in one, on an H200?** (It has an H100's SMs and a faster memory.) Decide which of the two
# matters more, blocks or spills; nothing so far says.

# %% tags=["hide-input"]
stops = predict_first(
    "the first number of operations where two pieces win, H200", unit="operations"
)
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
    "Not where it spills, but long before: the time per step jumps where the SM loses a block, and "
    "hardly moves where spills begin.",
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
    f"In two pieces the chain is faster at {gains[0]} to {gains[-1]} steps, and slower at fewer "
    "and at more",
    x="steps of the chain",
    y="time per step on an H200 (µs)",
)
stops.on(chart, "x")

# %% [markdown]
# Two explanations, and how well each is tested.
#
# **Blocks.** The kernel does not wait for memory: at copy bandwidth its bytes would take a small part of its time, as
# the first line below shows. Each step adds up a row twice, and each time all warps of the block wait for the slowest.
# Meanwhile only *another block* can use the SM, and with three there is one more to do so than with two. That fits the
# times; no experiment here isolates it.
#
# **Spills.** A spill goes to L1 first. Do the stacks of all threads on the SM fit there, and does the profiler agree?

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_07 import ROWS

copied = 12 * ROWS * 1024 / h200.copy_bandwidth
print(f"ten steps: {1e3 * copied:.2f} ms of copying, {1e3 * pieces[10][1].median:.2f} ms taken")
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
# They fit, and nearly every spilled value comes back from L1. Stores are passed on to L2, but no warp waits for a
# store, and [DRAM](../docs/glossary.md#dram) sees little of it.
#
# So fusing stops paying **where one more operation costs a block that the SM needed**, and the compiler told us which
# operation that is. A cut can pay only where its pieces hold more blocks: at 20 and 24 steps each half holds no more
# than the whole, and two pieces lose.
#
# ## Capping registers: maxnreg
#
# Triton's launch option `maxnreg` caps a thread's registers. (CUDA C++ has `__maxnreg__`; its `__launch_bounds__`
# states the block size and how many blocks should fit, and leaves the registers to the compiler.) The assembler obeys,
# and spills what it must. **Twelve steps in 4 warps, capped at 64 registers: what occupancy does that give?**
# <!-- given 64 registers: the question's own -->

# %% tags=["hide-input"]
capped = predict_first("occupancy of 12 steps capped at 64 registers", unit="%")
capped

# %% tags=["hide-input"]
caps, rows = h200.experiment("over_fusion_limited"), []
for most in (None, 200, 168, 128, 96, 64):
    made = compiled(12, maxnreg=most)
    time = f"{1e3 * caps[most or 255].median:.2f} ms"  # 255 caps nothing: it takes fewer
    at, spilled = f"{made.occupancy().fraction:.1%}", f"{made.spill_bytes} B"
    rows.append((most or "none", made.registers, at, spilled, time))
columns = ("cap", "registers", "occupancy", "spilled", "time")
display(table(columns, rows, h200.label_of("over_fusion_limited")))
capped.compare(
    100 * compiled(12, maxnreg=64).occupancy().fraction,
    f"The cap at 128 is {caps[255].median / caps[128].median:.2f}x faster than none, although each "
    "thread spills hundreds of bytes: two more blocks were worth it. The mildest cap only costs, "
    "since no further block fits. The tightest loses more than it gains.",
)

# %% [markdown]
# Each cap buys blocks with spills. No rule gives the best one: the compiler gives the candidates (each cap at which one
# more block fits), and the clock decides.
#
# ## More threads for a row: num_warps
#
# Twenty-four steps spill in 4 warps. With 8 warps a thread holds half as many elements:

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
# No spill: the row's values are spread over twice as many threads. But the SM holds fewer rows. The register file did
# not grow.
#
# ## Is low occupancy bad?
#
# **Claim: "below 50 % occupancy, reconsider."** Take add+GELU of lesson 00, which only moves memory, at several block
# sizes. A larger block gives each thread more loads at once, and more registers.

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
# From full occupancy down to a fifth of it, no difference: each thread has more loads
# [in flight](../docs/glossary.md#in-flight), and bytes in flight are what memory needs (**Little's law**: bytes in
# flight are bandwidth times *latency*, the time from request to delivery). The last is slower, but it spills.
# **Verdict: fair as an alarm, wrong as a rule.** A chain that waits at every step, such as ours, did need its blocks.
# *Going further* has the same for arithmetic.
#
# ## Waves and the tail
#
# The blocks that fit at once, on all SMs, are a **[wave](../docs/glossary.md#wave)**. A launch of more blocks takes
# several; the last may be nearly empty, the **[tail](../docs/glossary.md#tail)**. Our chain of twelve steps allows two
# blocks per SM. **On 264 rows every slot of an H100's 132 SMs is used. What share is used on 265?**

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
# One block past a full wave: does the time double? The picture says so, but it assumes that a block is as slow on an
# empty SM as on a full one. Measured, with arithmetic that keeps the SM busy, and with the twelve steps, which mostly
# wait:

# %% tags=["hide-input"]
waves, rows = h200.experiment("waves"), []
for n, busy in waves["filling"].items():
    rows.append((n, f"{1e6 * busy.median:.0f} us", f"{1e6 * waves['waiting'][n].median:.1f} us"))
display(table(("blocks", "busy SM", "a chain that waits"), rows, h200.label_of("waves")))
ratios = [waves[kind][265].median / waves[kind][264].median for kind in ("filling", "waiting")]
print("265 blocks over 264: busy {:.2f}x, waiting {:.2f}x".format(*ratios))

# %% [markdown]
# Less than double, both. Where two blocks share a busy SM, the one alone in the last wave has the SM for itself and
# runs twice as fast (see the first two lines). The chain is as slow alone as in company, but starting the kernel is
# paid only once. With hundreds of waves, the tail is lost among them: that is why large tensors forgive any grid.
#
# On small ones, choose the block so that the grid fills its waves, or launch a fixed number of programs that loop over
# the rows, a **[persistent kernel](../docs/glossary.md#persistent-kernel)**. Here three programs share seven rows.
# **Correct the loop.**


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
# <details><summary>Answer</summary><code>for row in range(tl.program_id(0), rows, tl.num_programs(0)):</code>: program
# 1 takes rows 1 and 4. As it was, every program also did the rows of the later ones.</details>
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
# 1. Two kernels have the same occupancy. One waits for memory, the other does not. How can that be?
# <details><summary>Answer</summary>Bytes in flight hide the wait. A warp whose threads each have eight loads in flight
# does as much as eight warps with one.</details>
#
# 2. You fuse a tenth operation into a forward chain of nine; each needs only the result of the one before. What happens
#    to the registers?
# <details><summary>Answer</summary>Next to nothing. A value that is replaced frees its register; only a value that is
# needed again later stays live.</details>
#
# 3. With one operation more the compiler reports a block less per SM, but no spill. A colleague says: no spill, no
#    harm. What do you answer?
# <details><summary>Answer</summary>Time it. In our chain the lost block cost far more than the first spills did; in
# add+GELU, which has enough loads in flight, lost blocks cost nothing.</details>
#
# 4. A tight `maxnreg` quadruples a kernel's occupancy and it gets slower. Where do you look first?
# <details><summary>Answer</summary>At `spill_bytes` and `stack`: the occupancy was bought with spills, and the stacks
# of all threads together may be more than L1 holds.</details>
#
# 5. A kernel keeps six rows of 2048 fp32 elements live, in 4 warps. How many registers per thread do they take? Replace
#    the dots with your number.

# %%
answer = ...
self_test(answer, 6 * 2048 / 128, "2048 elements over 4 x 32 threads, a register each")

# %% [markdown]
# ## Now you
#
# [Exercise 07](../exercises/07_register_budget.ipynb) gives you kernels to fit into a register budget. Next:
# [08 Matmul epilogues](08_matmul_epilogues.ipynb), where tiles of a matmul fill the registers. The
# [lab bench](lab_bench.ipynb) has every instrument of the course in one line each.

# %% [markdown]
# ## Going further
#
# ### Occupancy and arithmetic
#
# A multiplication takes some cycles, and the next one of the *same* value must wait for it. Other warps fill the gap,
# or other values of the same thread: **instruction-level parallelism**. A kernel that multiplies and adds, with 1 to 8
# values per thread and 4 to 64 warps per SM:

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
print(f"4 warps with 8 values over 64 warps with 1: {rate(8, 4) / rate(1, 64):.2f}x")

# %% [markdown]
# **Full occupancy, and the slower of the two.** Down each column, more warps help until a unit is full; along each row,
# more values do the same. (One value per thread also pays for the loop more often.) The work in flight counts: warps
# times what each has in flight.
#
# ### The cost of a spill
#
# In the machine code, a spill is an `STL` (store local) and an `LDL` (load local), each with the source line that the
# compiler was working on:

# %% tags=["hide-input", "nbval-ignore-output"]
of_stack = compiled(first).sass_view("stack").instructions
print(f"{len(of_stack)} of {sum(compiled(first).instructions.values())} instructions")
some = (*of_stack[:3], *of_stack[-3:])
table(("instruction", "of the line"), ((each.text, each.source) for each in some))

# %% [markdown]
# **Claim: "spilled registers are 100 times slower."** Twelve steps, free and capped at 64 registers; then the nearest
# case to the claim, add+GELU with blocks of 16384 in 2 warps, which have more elements per thread than registers exist:
# <!-- given 64 registers: the cap chosen -->

# %% tags=["hide-input"]
free, tight = compiled(12), compiled(12, maxnreg=64)
added = sum(tight.instructions.values()) - sum(free.instructions.values())
longer = added / sum(free.instructions.values())
local = sum(n for name, n in tight.instructions.items() if name[:3] in ("LDL", "STL"))
stacks = 128 * tight.occupancy().blocks * tight.stack
print(f"{local} loads and stores of the stack, {longer:.0%} more instructions in all")
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
# **Verdict: fails for a kernel.** One access that goes all the way to DRAM may be a hundred times slower than one to a
# register. A kernel that spills is not a hundred times slower, because other warps run meanwhile, and caches catch some
# of it; above, a cap spilled and gained. In the add+GELU case the assembler gave up and keeps nearly
# everything on the stack.
#
# ### On your GPU
#
# With a GPU, see where your own stops gaining:

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
