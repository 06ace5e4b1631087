# %% [markdown]
# # 07 Occupancy and register pressure: when is it too much?
#
# So far every fusion paid: one launch fewer, one round trip through memory fewer. So why not fuse *everything*? A fused
# kernel keeps its values in registers, and an SM has only so many. You fuse two operations, ten, twenty-four. **At
# which one does it stop paying, and how can you know without running it once?**
#
# After this lesson you can
#
# - say what stops one more block of a kernel from running on an SM, and what would let it in;
# - compile a kernel for a GPU that you do not have, and read its registers, its spills and the machine code behind
#   them;
# - find the point where a growing fusion starts to spill and the one where it stops paying, and say why they differ;
# - say how many turns a read of shared memory takes;
# - choose `num_warps` and `maxnreg` knowing what each costs, and count waves and their tail.
#
# About 60 minutes. It follows on [06 Softmax](06_softmax.ipynb) and leads to
# [exercise 07](../exercises/07_register_budget.ipynb).

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import (
    DEVICES,
    MAX_REGISTERS,
    REGISTERS,
    compile_for,
    limits,
    occupancy,
    table,
)
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## What an SM has to share out
#
# A GPU is many *streaming multiprocessors*, SMs. Each takes whole **blocks**, as many as fit. (So far a block was the
# lanes that a program works on, and in Triton's `BLOCK` it still is. In an SM it is the program itself: the threads
# that run one program instance.) A block is made of **warps**: 32 threads each, that step together. While one warp
# waits for memory, the SM runs another: that is how it hides the wait. The share of its warp slots that are filled is
# its **occupancy**.
#
# **Look into the lit box**: this lesson stays in it, and asks how many blocks find room there.

# %%
from helpers.figures import gpu_picture

gpu_picture("H100", lit="SM")

# %% [markdown]
# What is shared out, on an H100 (*shared memory* is a small fast store that the threads of a block have in common):

# %%
h100 = DEVICES["H100"]
sm = limits(h100.compute_capability)
print(f"{h100.sms} SMs; each has room for {sm.warps} warps and {sm.blocks} blocks,")
print(f"{REGISTERS:,} registers and {sm.shared_memory // 1024} KB of shared memory")
print(f"all {sm.warps} warps fit if a thread has {REGISTERS // (sm.warps * 32)} registers;")
print(f"a thread can have {MAX_REGISTERS} at most")

# %% [markdown]
# With more registers a thread, fewer blocks fit:

# %%
from helpers.figures import register_file_chart

title = "The more registers a thread has, the fewer blocks an SM holds"
register_file_chart(h100.compute_capability, 128, (32, 64, 96, 168, 255), title)

# %% [markdown]
# Now you. A block has 512 threads, and each of them has 41 registers. **How many such blocks fit on one SM?** Divide,
# and type what you get.

# %%
blocks = predict_first("blocks of 512 threads, 41 registers each, on an SM", unit="blocks")
blocks

# %%
print(f"by division: {REGISTERS} / (512 x 41) = {REGISTERS / (512 * 41):.2f}")
found = occupancy(h100.compute_capability, threads=512, registers=41)
blocks.compare(found.blocks)

# %%
found

# %% [markdown]
# Division is wrong here, because a warp gets its registers in whole units of a few hundred: 41 a thread cost as much as
# the next multiple of eight. And even division in whole units can be wrong, as it is for the second block below: an SM
# is four parts, each with its own quarter of the registers; a warp lives in one of them, and what is left over in two
# parts cannot be put together.

# %%
from helpers.instruments import REGISTER_UNIT, WARP

rows = []
for threads, wanted in ((512, 41), (96, 40)):
    of_a_warp = -(-wanted * WARP // REGISTER_UNIT) * REGISTER_UNIT
    units = REGISTERS // (of_a_warp * threads // WARP)
    fit = occupancy(h100.compute_capability, threads=threads, registers=wanted).blocks
    rows.append((threads, wanted, f"{REGISTERS / (threads * wanted):.2f}", units, fit))
table(("threads", "registers", "division", "in whole units", "found"), rows)

# %% [markdown]
# Whoever divides plans a block that never comes. The instrument says what would bring it: for the first, one register
# less.
#
# ## Shared memory, and its banks
#
# The warps of a block cannot read each other's registers. What they have in common goes through shared memory: the
# parts of a sum, a tile that all of them use. In Triton you do not write it; the compiler does, and the block pays for
# it out of the SM's store, as for registers.
#
# It is quick where its 32 **banks** are all at work. Word after word of four bytes lies in bank after bank, and each
# gives one word a turn. A warp whose lanes want different words of one bank waits: a **bank conflict**. Think of a tile
# 32 words wide, and of a warp that reads it down a column, its lanes 32 words apart. **How many turns does that take?**
# <!-- given four bytes: CUDA C++ Programming Guide, shared memory -->

# %%
column = predict_first("turns for a warp's lanes, 32 words apart", unit="turns")
column


# %%
def turns(pitch, banks=32):
    words = {lane * pitch for lane in range(WARP)}
    return max(sum(word % banks == bank for word in words) for bank in range(banks))


column.compare(turns(32))

# %% [markdown]
# That is a count on paper. A kernel that does little else (`benchmarks/experiments/lesson_07.py`) says whether it holds; the
# profiler counts its turns:

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
counted = h200.experiment("sm_counters")
times = h200.experiment("banks")
rows = []
for pitch, count in counted["pitches"].items():
    a_read = count["shared_read_turns"] / count["shared_reads"]
    rows.append((pitch, turns(pitch), f"{a_read:.1f}", f"{1e6 * times[pitch].median:.0f} us"))
table(("words apart", "on paper", "counted", "time"), rows, h200.label_of("banks", "sm_counters"))

# %% [markdown]
# Two turns hardly show, other work hides them; from four on, time grows with the turns. All in one bank is the worst
# there is. The cure is in the table's last line: a tile whose rows are **one word longer** than they need be. Odd
# distances never collide. Triton's compiler pads or shuffles its tiles for you; in CUDA C++ it is your task.
#
# ## Turn the knobs
#
# Three sweeps: each panel varies one resource and keeps the other two; the mark is where you are. Find out, with the
# mouse or the arrow keys:
#
# 1. Start at full occupancy. Which register count is the last that keeps it?
# 2. Give the block 48 KB of shared memory. Which resource limits now, and does a lower register count help?
# 3. Take 1024 threads and one register too many for two blocks. What share of the warps is lost at one stroke?
# 4. Change the GPU to a T4 or an RTX 4090: the same block, another limiter?
# <!-- given 48 KB: where the slider is set -->

# %%
from helpers.figures import OccupancyExplorer

explorer = OccupancyExplorer("H100", threads=512, registers=41)
blocks.on(explorer, "y", at=lambda count: count * 512 // 32, panel=1)

# %% [markdown]
# <details><summary>What is to be found</summary>1. At 512 threads, 32. 2. Warps, registers and shared memory, all
# three at once: fewer registers let nobody in. 3. Half of them: of two blocks one is left. 4. Yes. A T4 has half the
# room for warps, and it is full at 41 registers. An RTX 4090 has room for more warps than so many registers
# allow.</details>
#
# ## A chain that lets go
#
# Let us fuse a chain of equal operations, each of them RMSNorm and SiLU on a row: `n = y / rms(y)`, `y = n sigmoid(n)`.
# One step, as a function that kernels can call:


# %%
@triton.jit
def there(y, COLUMNS: tl.constexpr):
    scale = tl.rsqrt(tl.sum(y * y) / COLUMNS + 1e-6)
    n = y * scale
    return n * tl.sigmoid(n), n, scale


@triton.jit
def forward_kernel(x_ptr, y_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    for _ in tl.static_range(STEPS):
        y, n, scale = there(y, COLUMNS)
    tl.store(y_ptr + offset, y)


# %% [markdown]
# (`tl.static_range` is a loop that the compiler writes out, step after step.) One program holds a row of 1024 numbers
# in 4 warps: that is eight numbers a thread, eight registers.
#
# **One step needs about thirty registers a thread in all. How many do twenty-four steps need?**

# %%
forward = predict_first("registers a thread, 24 steps, forward only", unit="registers")
forward

# %% [markdown]
# `compile_for` runs Triton's compiler and NVIDIA's assembler for the GPU you name. Nothing runs, so no GPU is needed.

# %%
row = torch.empty(1, 1024, device="meta")  # no contents: the compiler asks for none
for steps in (1, 24):
    chain = compile_for(forward_kernel, row, row, device="H100", COLUMNS=1024, STEPS=steps)
    print(f"{steps:2} steps: {chain.registers} registers, {chain.occupancy()}")

# %%
forward.compare(chain.registers)

# %% [markdown]
# Less than one more for each further step, though even these cost blocks: see the occupancy. A value that the next step
# replaces gives its register back. **Fusing costs few registers; keeping costs many.**
#
# ## A chain that keeps
#
# The gradient is another matter. It walks the chain backwards, and needs what each step made on the way there. Unfused,
# those rows lie in memory. Fused, they must stay in registers: they are *live*. For one step, with $r$ the scale, $d$
# the gradient that arrives and $s$ the sigmoid of $n$:
#
# $$\text{grad}_y = r\,\bigl(g - n\,\text{mean}(g\,n)\bigr), \qquad g = d\,s\,\bigl(1 + n\,(1 - s)\bigr)$$
#
# Textbooks write it with the step's input `y`, so a first version keeps `y`:


# %%
@triton.jit
def back_from_y(grad, y, scale, COLUMNS: tl.constexpr):
    n = y * scale
    gate = tl.sigmoid(n)
    grad *= gate * (1 + n * (1 - gate))
    return scale * grad - y * (scale * scale * scale * tl.sum(grad * y) / COLUMNS)


# %% [markdown]
# Triton has tuples that grow at compile time; the row waits in one until the way back comes past.


# %%
@triton.jit
def keeps_y_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y, kept = tl.load(x_ptr + offset), ()
    for _ in tl.static_range(STEPS):
        after, n, scale = there(y, COLUMNS)
        kept += ((y, scale),)
        y = after
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        grad = back_from_y(grad, kept[step][0], kept[step][1], COLUMNS)
    tl.store(grad_x_ptr + offset, grad)


# %% [markdown]
# Each step leaves one row behind, eight numbers a thread. **By how many registers a thread does each further step make
# the kernel larger?**

# %%
growth = predict_first("registers a thread that each further step costs", unit="registers")
growth

# %%
tensors = (row, row, row)
options = {"device": "H100", "COLUMNS": 1024}
four, eight = (compile_for(keeps_y_kernel, *tensors, STEPS=n, **options) for n in (4, 8))
growth.compare((eight.registers - four.registers) / 4)

# %% [markdown]
# Far more than eight: that is our mistake, and the compiler's output says what it is. Each step computes a `sigmoid`,
# which takes an exponential and a reciprocal, both done by the special unit (`MUFU` in the machine code), and one
# reciprocal root. The way back asks for the sigmoid again. Does the kernel compute it twice?

# %%
numbers = 1024 // (4 * 32)
once = eight.instructions["MUFU"] / 8
print(f"{once:g} MUFU a step for {numbers} numbers a thread;")
print(f"sigmoid once would be {2 * numbers + 1}, twice {4 * numbers + 1}")

# %% [markdown]
# Once. The compiler saw the same expression on the way there and on the way back, and **kept** the result in between.
# So three rows of eight are live for each step: `y`, which we kept, and `n` and `sigmoid(n)`, which it kept; the rest
# are scalars.
#
# The mistake is ours: `y` is only `n / r`. With `n` kept in its place, the third row is gone.


# %%
@triton.jit
def back(grad, n, scale, COLUMNS: tl.constexpr):
    gate = tl.sigmoid(n)
    grad *= gate * (1 + n * (1 - gate))
    return scale * (grad - n * (tl.sum(grad * n) / COLUMNS))


# %%
@triton.jit
def keeps_n_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y, kept = tl.load(x_ptr + offset), ()
    for _ in tl.static_range(STEPS):
        y, n, scale = there(y, COLUMNS)
        kept += ((n, scale),)
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        grad = back(grad, kept[step][0], kept[step][1], COLUMNS)
    tl.store(grad_x_ptr + offset, grad)


# %%
def compiled(steps, gpu="H100", kernel=keeps_n_kernel, **options):
    return compile_for(kernel, *tensors, device=gpu, COLUMNS=1024, STEPS=steps, **options)


per_step = (compiled(12).registers - compiled(1).registers) / 11
print(f"{per_step:.0f} registers a step; two live rows are {2 * numbers} numbers a thread")

# %% [markdown]
# Two rows a step stay: `n`, which we keep, and `sigmoid(n)`, which the compiler keeps. Is it still the right gradient?
# PyTorch's own, in double precision, is the judge.

# %%
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

# %% [markdown]
# And its traffic? However many steps: two rows in, one out.

# %%
from benchmarks.experiments.lesson_07 import chain_gradient
from helpers.instruments import measure

for steps in (1, 12):
    print(f"{steps:2} steps: {measure(chain_gradient, x, grad_y, steps)}")

# %% [markdown]
# (`benchmarks/experiments/lesson_07.py` has the kernel above and its launcher, for timing it.)
#
# ## The over-fusion lab
#
# An instruction has eight bits to name a register, so a thread can have no more than the 255 of the first cell. What
# does not fit **spills**: it is stored to *local memory*, which is ordinary GPU memory behind the SM's own cache,
# **L1**, and loaded back. Each thread has a place of its own there, its **stack**. You know what each step costs, and
# that about thirty registers are needed for everything else. **Which number of fused operations is the first to spill
# on an H100?**

# %%
first_spill = predict_first("the first number of operations to spill", unit="operations")
first_spill

# %% [markdown]
# The next cell compiles the kernel twelve times, in some seconds. Then the slider is free to move. Another GPU is
# another twelve compilations.
#
# 1. Which panel moves long before the first spill?
# 2. From where on do the warps fall no further, and why?
# 3. Compare a T4, an A100 and an RTX 4090. Does the first spill move? Does the occupancy?

# %%
from helpers.figures import RegistersExplorer

sizes = (1, 2, 4, 6, 8, 10, 12, 14, 15, 16, 20, 24)
lab = RegistersExplorer(compiled, sizes, device="H100", operations=16)
first_spill.on(lab, "x", panel=1)

# %% [markdown]
# <details><summary>What is to be found</summary>1. The one of the warps: it falls from the second operation on. 2.
# From ten: two blocks fit then, and they do even with all the registers that a thread can have. 3. The first spill
# hardly moves, as a thread's limit is the same on all of them. The blocks do not move either; the share of the warps
# does, as an SM has more room for warps on some GPUs than on others.</details>

# %%
spills = {steps: compiled(steps).spill_bytes for steps in sizes}
first = next(steps for steps, spilled in spills.items() if spilled)
first_spill.compare(first)

# %% [markdown]
# The arithmetic agrees. A chain needs what one step does, and two rows for each step more; what is over the most that a
# thread can have is what spills. (Nearly: the assembler also shuffles.)

# %%
rows = []
for steps in (12, 14, 16, 20, 24):
    needed = compiled(1).registers + 2 * numbers * (steps - 1)
    stored = compiled(steps).spill_stores // 4
    rows.append((steps, needed, max(0, needed - MAX_REGISTERS), stored))
table(("steps", "needed", "over 255", "spilled"), rows)

# %% [markdown]
# In the machine code, a spill is an `STL` (store local) and an `LDL` (load local). No line of your program says so;
# beside each stands the line that the compiler was at work on:

# %% tags=["nbval-ignore-output"]
of_stack = compiled(first).sass_view("stack").instructions
print(f"{len(of_stack)} of {sum(compiled(first).instructions.values())} instructions")
some = (*of_stack[:3], *of_stack[-3:])
table(("instruction", "of the line"), ((each.text, each.source) for each in some))

# %% [markdown]
# ## Where does it stop paying?
#
# The other way is to **cut** the chain in two pieces, which takes three launches: one runs the first half forward and
# writes the row it ends with, then each half has one for its gradient. The meter says what a cut costs.

# %%
whole = measure(chain_gradient, x, grad_y, 16, 1)
cut = measure(chain_gradient, x, grad_y, 16, 2)
cost_of_cut = (cut.bytes_total - whole.bytes_total) / x.numel()
print(f"one piece {whole}")
print(f"in two    {cut}")
print(f"a cut costs {cost_of_cut:g} bytes an element and {cut.launches - 1} launches")

# %% [markdown]
# And this is what it saves:

# %%
rows = []
for steps in (6, 10, 12, 16, 20, 24):
    both = (compiled(steps), compiled(-(-steps // 2)))
    cells = [(made.occupancy().blocks, f"{made.spill_bytes} B") for made in both]
    rows.append((steps, *cells[0], *cells[1]))
columns = ("steps", "one piece: blocks", "spilled", "each half: blocks", "spilled")
table(columns, rows)

# %% [markdown]
# (Spilled bytes are those that a thread stores and those that it loads again, here and in the explorer.)
#
# A cut must pay for its bytes with blocks, or with spills avoided. **At which of these numbers does the chain in two
# pieces first beat the chain in one, on an H200?** (It has an H100's SMs, and a faster memory.)

# %%
stops = predict_first("operations from which two pieces beat one, H200", unit="operations")
stops

# %%
pieces = h200.experiment("over_fusion")
print(h200.label_of("over_fusion"))
gains = [s for s, times in pieces.items() if s > 1 and times[2].median < times[1].median]
stops.compare(gains[0])

# %%
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
    y="time of a step on an H200 (µs)",
)
stops.on(chart, "x")

# %% [markdown]
# Not where it spills! Long before. What happens at that number? Set the compiler's findings beside the time for each
# step:

# %%
rows = []
for steps in (6, 8, 10, 12, 14, 16, 20, 24):
    one, time = compiled(steps), pieces[steps][1].median
    spilled = f"{one.spill_bytes} B"
    rows.append((steps, one.occupancy().blocks, spilled, f"{1e6 * time / steps:.0f}"))
table(("steps", "blocks", "spilled", "us a step"), rows)

# %% [markdown]
# The time for a step jumps where the SM **loses a block**, and hardly moves where spills begin. Both can be explained.
#
# **Why a block matters.** Is it memory that waits? No: moved at the speed of a copy, these bytes would take

# %%
from benchmarks.experiments.lesson_07 import ROWS

copied = 12 * ROWS * 1024 / h200.copy_bandwidth
print(f"{1e3 * copied:.2f} ms; ten steps take {1e3 * pieces[10][1].median:.2f} ms")

# %% [markdown]
# Each step adds up a row, twice: every warp of the block waits until the slowest has delivered its part. Meanwhile only
# *another block* can use the SM. With three there is one to step in more often than with two.
#
# **Why these spills matter so little.** A spill goes to the L1 cache first. Is there room for the stacks of all threads
# on the SM? L1 has what shared memory leaves of one store, and this kernel leaves nearly all.

# %%
for steps in (first, 16, 20, 24):
    one = compiled(steps)
    stacks = one.stack * 128 * one.occupancy().blocks
    print(f"{steps} steps: {stacks / 1024:.0f} KB of stack an SM", end=", ")
    print(f"of {sm.l1_and_shared_memory // 1024} KB for L1 and shared memory")

# %% [markdown]
# There is. **What share of the spilled values that 24 steps load comes from L1?** The profiler has counted it.

# %%
from_l1 = predict_first("spills loaded from L1, 24 steps, H200", unit="%")
from_l1

# %%
unspilled, rows = counted["steps"][14], []
for steps, count in counted["steps"].items():
    if count["local_read"]:
        hit = count["local_read_hit"] / count["local_read"]
        stored, more = 32e-6 * count["local_written"], 32e-6 * (count["l2"] - unspilled["l2"])
        dram = 1e-6 * (count["dram_written"] - unspilled["dram_written"])
        rows.append((steps, f"{hit:.0%}", *(f"{each:.0f} MB" for each in (stored, more, dram))))
columns = ("steps", "loaded from L1", "stored", "more in L2", "more written to DRAM")
display(table(columns, rows, h200.label_of("sm_counters")))
from_l1.compare(100 * hit)

# %% [markdown]
# A warp waits for what it loads, and that comes from L1 nearly always. What is stored does not stay there: L1 passes it
# on, and L2 has more to do than was stored. But no warp waits for a store, and memory sees little of it.
#
# So fusing stops paying **where one more operation costs a block that the SM needed**, and the compiler told
# us which operation that is. A cut can pay only where its pieces hold more blocks. Check it in the first table: where
# each half holds no more than the whole, two pieces lose, and it takes three or four to gain. On the shortest chain,
# too, they lose: it has blocks enough, and the cut's bytes buy nothing.
#
# With a GPU at hand, look for the point on yours:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    big_x, big_grad = torch.randn(2, 2**16, 1024, device="cuda")
    run = lambda steps, pieces: lambda: chain_gradient(big_x, big_grad, steps, pieces)
    for steps in (6, 8, 10, 12):
        times = benchmark_together({p: run(steps, p) for p in (1, 2, 3)}, runs=10)
        print(steps, "steps:", {p: f"{t.median * 1e3:.2f} ms" for p, t in times.items()})
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## Fewer registers by order: maxnreg
#
# Triton's launch option `maxnreg` caps a thread's registers (CUDA C++ says it with `__maxnreg__`; its
# `__launch_bounds__` tells how large a block is and how many should fit, and leaves the registers to the compiler). The
# assembler obeys, and spills what it must. **Twelve steps capped at 64 registers: what occupancy does that give?**

# %%
capped = predict_first("occupancy of 12 steps capped at 64 registers", unit="%")
capped

# %%
rows = []
for most in (None, 200, 168, 128, 64):
    made = compiled(12, maxnreg=most)
    at, spilled = f"{made.occupancy().fraction:.1%}", f"{made.spill_bytes} B"
    rows.append((most or "free", f"{made.registers} registers", at, spilled))
table(("at most", "a thread", "occupancy", "spilled"), rows)

# %%
capped.compare(100 * compiled(12, maxnreg=64).occupancy().fraction)

# %% [markdown]
# Occupancy at a price: each cap buys blocks with spills. Is that a bargain? **How many times faster, or slower (less
# than one), is the kernel capped at 128 registers than the free one?**

# %%
faster = predict_first("speed-up of 12 steps from a cap at 128 registers", unit="times")
faster

# %%
caps = h200.experiment("over_fusion_limited")  # 255 is no cap: the kernel wants fewer
rows = ((f"{most} registers", f"{1e3 * time.median:.2f} ms") for most, time in caps.items())
table(("at most", "time"), rows, h200.label_of("over_fusion_limited"))

# %%
faster.compare(caps[255].median / caps[128].median)

# %% [markdown]
# Faster, with hundreds of bytes spilled by every thread: two more blocks were worth it. The mildest cap only costs: it
# lets no further block in. The tightest buys twice as many blocks again and loses more than it gains. Between lies a
# best value that no rule tells; the compiler gives the candidates (each cap at which one more block fits), the clock
# decides.
#
# ## The same row on more threads: num_warps
#
# Twenty-four steps spill in 4 warps. With 8 warps a thread holds half the numbers. **Predict the registers a thread of
# 24 steps in 8 warps**: two live rows a step, and about thirty registers for everything else.

# %%
on_eight = predict_first("registers a thread, 24 steps in 8 warps", unit="registers")
on_eight

# %%
wider = compiled(24, num_warps=8)
print(wider)
on_eight.compare(wider.registers)

# %% [markdown]
# No spill: the row's values now have twice as many threads to lie in. But look at the blocks: the SM holds fewer of
# them. The register file did not grow; it holds as many *rows* as before, or fewer.

# %%
for steps, warps in ((12, 4), (24, 8)):
    each = compiled(steps, num_warps=warps)
    kept = 2 * steps * 1024 * each.occupancy().blocks
    print(f"{steps} steps, {warps} warps: rows at work {each.occupancy().blocks}", end="")
    print(f", {kept:,} numbers kept, {kept / REGISTERS:.0%} of the SM's registers")

# %% [markdown]
# ## Two claims on trial
#
# **Claim: "below 50 % occupancy, reconsider."** Take add+GELU of lesson 00, which does nothing but move memory, at
# several block sizes. A larger block gives each thread more loads at once, and more registers.

# %%
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

sweep = h200.experiment("occupancy_sweep")
rows = []
for block, warps in ((512, 4), (2048, 4), (4096, 4), (8192, 4), (8192, 2)):
    chosen = settings(torch.float32) | {"BLOCK": block, "num_warps": warps}
    add = compile_for(add_gelu_kernel, *tensors, None, 2**27, device="H200", **chosen)
    share, loads = f"{add.occupancy().fraction:.0%}", add.instructions["LDG.128"]
    time = f"{1e6 * sweep[f'{block}x{warps}'].median:.0f} us"
    rows.append((block, warps, share, loads, f"{add.spill_bytes} B", time))
columns = ("BLOCK", "warps", "occupancy", "loads a thread", "spilled", "time")
table(columns, rows, h200.label_of("occupancy_sweep"))

# %% [markdown]
# From full occupancy down to a fifth of it, no difference: each thread has more loads under way, and bytes under way
# are what memory needs (**Little's law**: bytes in flight are bandwidth times *latency*, the time from asking to
# having). The last is slower, but it spills.
#
# Is it so for arithmetic, too? A product takes some cycles, and the next one of the *same* number must wait for it.
# Other warps fill the gap, or other numbers of the same thread: **instruction-level parallelism**. One kernel gives a
# thread one number, another eight. **With 4 warps an SM and eight numbers a thread: how many times the arithmetic of
# 64 warps and one number?**

# %%
ratio = predict_first("4 warps with 8 numbers a thread, against 64 with 1", unit="times")
ratio

# %%
from benchmarks.experiments.lesson_07 import ROUNDS

parallel = h200.experiment("parallelism")


def rate(numbers, warps):
    products = DEVICES["H200"].sms * warps * WARP * numbers * ROUNDS
    return 2 * products / parallel[numbers][warps].median


rows = []
for warps in parallel[1]:
    rates = (f"{rate(numbers, warps) / 1e12:.1f}" for numbers in parallel)
    rows.append((warps, f"{warps / sm.warps:.0%}", *rates))
title = f"{h200.label_of('parallelism')}\nTFLOP/s, by numbers a thread"
display(table(("warps", "occupancy", *parallel), rows, title))
ratio.compare(rate(8, 4) / rate(1, 64))

# %% [markdown]
# **Full occupancy, and the slower of the two.** Down each column, more warps help until something is full; along each
# row, more numbers do the same. (One number a thread also pays for the loop more often.) What counts is the work under
# way, warps times what each has under way. **Verdict: fair as an alarm, wrong as a rule.** A chain that waits at
# every step, such as ours, did need its blocks.
#
# **Claim: "spilled registers are 100 times slower."** Twelve steps, free and capped at 64 registers:

# %%
free, tight = compiled(12), compiled(12, maxnreg=64)
added = sum(tight.instructions.values()) - sum(free.instructions.values())
longer = added / sum(free.instructions.values())
local = sum(n for name, n in tight.instructions.items() if name[:3] in ("LDL", "STL"))
stacks = 128 * tight.occupancy().blocks * tight.stack
print(f"{local} loads and stores of the stack, {longer:.0%} more instructions in all")
print(
    f"{stacks / 1024:.0f} KB of stack an SM, {sm.l1_and_shared_memory // 1024} KB of L1", end="; "
)
count = counted["limits"][64]
print(
    f"{count['local_read_hit'] / count['local_read']:.0%} of what an H200 loads of it comes from L1"
)
print(f"slower by a factor of {caps[64].median / caps[255].median:.2f}, measured")

# %% [markdown]
# **Verdict: fails for a kernel.** One access that goes all the way to memory may take a hundred times as long as one to
# a register. A kernel that spills is not a hundred times slower, because other warps run meanwhile, and caches catch
# some of it; the cap at 128 registers spilled and gained. What comes nearest to the claim? add+GELU with blocks of
# 16384 in 2 warps: more numbers a thread than it can have registers. There the assembler gave up, and keeps nearly
# everything on the stack:

# %%
chosen = settings(torch.float32) | {"BLOCK": 16384, "num_warps": 2}
add = compile_for(add_gelu_kernel, *tensors, None, 2**27, device="H200", **chosen)
print(f"{16384 // 64} numbers a thread; {add.registers} registers, {add.stack} B of stack")
worst = sweep["16384x2"].median / min(time.median for time in sweep.values())
print(f"{worst:.1f} times slower than the best block size")

# %% [markdown]
# ## Waves and the tail
#
# Blocks that fit at once, on all SMs, are a **wave**. A launch of more blocks (its *grid*) takes several; the last
# may be nearly empty. Twelve steps allow two blocks an SM. **On 264 rows every slot
# of an H100 is used. What share is used on 265?**

# %%
used = predict_first("slots used by 265 blocks, two an SM, on an H100", unit="%")
used

# %%
twelve = compiled(12).occupancy()
for rows in (264, 265, 1000, 100_000):
    print(f"{rows:7,} rows: {twelve.waves(rows, h100.sms)}")
used.compare(100 * twelve.waves(265, h100.sms).efficiency)

# %%
from helpers.figures import waves_chart

waves_chart(twelve.waves(300, h100.sms))

# %% [markdown]
# One block past a full wave: does the time double? The picture says so, but it takes every block to be as slow in an
# empty SM as in a full one. **How many times the time of 264 blocks do 265 take**, of a kernel whose arithmetic keeps
# the SM busy?

# %%
one_more = predict_first("time of 265 blocks against 264, SM busy", unit="times")
one_more

# %%
waves = h200.experiment("waves")
rows = []
for n, busy in waves["filling"].items():
    rows.append((n, f"{1e6 * busy.median:.0f} us", f"{1e6 * waves['waiting'][n].median:.1f} us"))
display(table(("blocks", "busy SM", "a chain that waits"), rows, h200.label_of("waves")))
for kind in ("filling", "waiting"):
    print(f"{kind}: {waves[kind][265].median / waves[kind][264].median:.2f} times")
one_more.compare(waves["filling"][265].median / waves["filling"][264].median)

# %% [markdown]
# Double is the most that it can be. Where two blocks share a busy SM, the one alone in the last wave has the SM for
# itself and runs twice as fast (as half a wave shows in the first line). The twelve steps mostly wait, so a block is as
# slow alone as in company; still it is not double, because starting the kernel is paid once. With hundreds of waves,
# the tail is lost among them: that is why large tensors forgive any grid. On small ones, choose the block so that the
# grid fills its waves, or let a fixed number of programs walk over the rows (*persistent* programs).
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two kernels have the same occupancy. One waits for memory, the other does not. How can that be?
# <details><summary>Answer</summary>What hides the wait is bytes in flight. A warp whose threads each have eight loads
# under way does as much as eight warps with one.</details>
#
# 2. You fuse a tenth operation into a forward chain of nine; each needs only the result of the one before. What happens
#    to the registers?
# <details><summary>Answer</summary>Next to nothing. A value that is replaced gives its register back; only what is
# needed again later stays live.</details>
#
# 3. One operation more, and the compiler reports a block less on each SM, but no spill. A colleague says: no spill, no
#    harm. What do you answer?
# <details><summary>Answer</summary>Time it. In our chain the lost block cost far more than the first spills did; in
# add+GELU, which has loads enough under way, lost blocks cost nothing.</details>
#
# 4. A tight `maxnreg` quadruples a kernel's occupancy and it gets slower. Where do you look first?
# <details><summary>Answer</summary>At `spill_bytes` and `stack`: the occupancy was bought with spills, and the stacks
# of all threads together may be more than L1 holds.</details>
#
# 5. A kernel keeps six rows of 2048 fp32 numbers live, in 4 warps. How many registers a thread do they take? Put your
#    number in place of the dots.

# %%
answer = ...
self_test(answer, 6 * 2048 / 128, "2048 numbers over 4 x 32 threads, a register each")

# %% [markdown]
# [Exercise 07](../exercises/07_register_budget.ipynb) gives you kernels to fit into a register budget. Next:
# [08 Matmul epilogues](08_matmul_epilogues.ipynb), where tiles of a product fill the registers. The
# [lab bench](lab_bench.ipynb) has every instrument of the course in one line each.
