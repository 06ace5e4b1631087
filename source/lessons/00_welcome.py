# %% [markdown]
# # Welcome: what kernel fusion buys
#
# Two tensors of a hundred million numbers, one addition, one GELU. Written the usual way, in one line of PyTorch,
# they keep a fast GPU busy for a while. The same arithmetic, arranged differently, takes much less. **What was the GPU
# doing the rest of the time?**
#
# After this lesson you can
#
# - say what fusing two kernels removes, and what it does not;
# - read what the traffic meter says, and tell one function from one kernel;
# - say how many operations your own machine can do while one byte arrives from memory;
# - work with the lessons, exercises, checks and recorded measurements of this course.
#
# About 25 minutes. You need Python and a little PyTorch. You do not need a GPU.
#
# Run a cell with **Shift+Enter**. Run them from top to bottom.
#
# First, a guess. Two tensors of a hundred million fp32 numbers are to be added, and GELU applied: as two programs on
# the GPU, and as one. **How many times sooner is the one program done?** (Twice as soon is 2. No answer is wrong; the
# difference is the lesson. Enter also runs the cells below, down to the one that answers.)

# %%
from helpers.learning import predict_first

speed_up = predict_first("speed-up from fusing add+GELU, 100M numbers", unit="times")
speed_up

# %% [markdown]
# Now watch: both ways side by side, on one clock. Each tensor is cut into sixteen tiles. Press **Play**, or move the
# slider. (The times were recorded on an H200; within them, tiles are taken to cross at an even pace.)

# %%
from helpers.figures import traffic_animation
from helpers.instruments import recorded

h200 = recorded("h200")
traffic_animation(h200, count="tiles")

# %%
times = h200.times("add_gelu", (100_000_000,), "float32")
speed_up.compare(times["eager"].median / times["fused"].median)

# %% [markdown]
# The pink tiles, the sum, go out and come straight back, and nobody else ever looks at them. What follows is that
# picture, counted.

# %%
import torch
from torch.nn.functional import gelu

from helpers.instruments import measure, table
from helpers.learning import predictions, self_test
from kernels import add_gelu
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
n = 1_000_000
a, b = torch.randn(2, n, device=device)

# %% [markdown]
# ## Two kernels, and the bytes between them
#
# A *kernel* is one program that the GPU runs over many numbers at once; to start one is a *launch*. PyTorch launches
# two for `gelu(a + b)`: one adds, one applies GELU. Numbers wait in the GPU's large memory; a kernel reads them,
# computes, and writes its result back.
#
# Before you look: **how many bytes do the two kernels read and write, together?** `a` and `b` have a million numbers
# each, and a number in fp32, PyTorch's usual dtype, takes four bytes. Count the reads and the writes of each kernel,
# and type your answer in megabytes.

# %%
bytes_moved = predict_first("bytes moved by gelu(a + b)", unit="MB")
bytes_moved

# %% [markdown]
# Now ask the **meter**. It watches every operator that PyTorch runs and every load and store of a Triton kernel, and
# adds up the bytes. Its line ends with the bytes (B) for each element, that is, each number of the result.
#
# The meter counts what kernels **request**. That is decided by the program, so it needs no GPU. What then crosses
# between the chip and its large memory, the **DRAM**, is a second quantity, and the chip has a say in it: between the
# two lies a cache, *L2*, where what was written a moment ago may still lie. On tensors far larger than L2 the two
# quantities are nearly the same, as on the hundred million numbers timed below. A million fit into the L2 of a large
# GPU: there the meter still tells what is asked for. Where the two differ, the lessons say which one they mean.

# %%
unfused = measure(lambda: gelu(a + b, approximate="tanh"))
unfused

# %%
bytes_moved.compare(unfused.bytes_total / 1e6)

# %% [markdown]
# Which launch moved what? The sum is written by the first and read straight back by the second. Nobody else ever
# looks at it.

# %%
unfused.launch_table()

# %% [markdown]
# And the film once more, of a hundred times as many numbers, with its bytes:

# %%
traffic_animation(h200)

# %% [markdown]
# ## One function is not one kernel
#
# Can we have that round trip for nothing? A colleague makes one function of it, and puts the sum into `a`, so that
# there is no tensor in between. **How many bytes does this move?**


# %%
def by_hand(a, b):
    a += b  # in place: the sum needs no memory of its own
    return gelu(a, approximate="tanh")


# %%
in_place = predict_first("bytes moved with the sum in place of a", unit="MB")
in_place

# %%
attempt = measure(by_hand, a.clone(), b)
print("the result is right:", torch.equal(attempt.result, unfused.result))
display(attempt.launch_table())
in_place.compare(attempt.bytes_total / 1e6)

# %% [markdown]
# A test of the result is content; the meter shows the mistake. It is still two launches, the sum is still written by
# one and read by the other, and now `a` is gone. What counts is not how many lines, functions or tensors your program
# has, but **how many kernels, and what crosses between them**.
#
# ## One kernel
#
# A **fused** kernel does both steps while the numbers are at hand: it keeps the sum in a register, the small fast
# store inside the processor. Here is one, written in Triton, a language for GPU kernels inside Python. You will write
# it yourself in lesson 03; for now, only its traffic.

# %%
fused = measure(add_gelu, a, b)
fused

# %%
fewer_bytes = unfused.bytes_total / fused.bytes_total
fewer_launches = unfused.launches - fused.launches
print(f"{fewer_bytes:.2f} times fewer bytes, {fewer_launches} launch fewer")

# %% [markdown]
# The arithmetic is the same and the result is the same, to the rounding of the last digits. Only the round trip of
# the sum is gone.

# %%
difference = add_gelu(a[:4096], b[:4096]) - gelu(a[:4096] + b[:4096], approximate="tanh")
print("no result differs by more than 1e-6:", bool(difference.abs().max() <= 1e-6))

# %% [markdown]
# ## Your first line of Triton
#
# You need not wait for lesson 03 to write some. A Triton kernel is a Python function that many **programs** run, all
# at once; each has a number, `tl.program_id(0)`: 0, 1, 2 and so on. A program works on a **block** of numbers:
# `tl.arange(0, BLOCK)` is 0, 1, 2 and so on, up to `BLOCK - 1`. `x_ptr` is where `x` begins in memory.
#
# This kernel should double twelve numbers, with three programs of four numbers each. As it stands, all three take the
# same four. Run the cell and look: below each line of the kernel stands the tensor as it lies in memory, and each box
# with a number is a *lane*, one place of a program's block, at the element that it asks for. Orange-red ones are wrong;
# an element with such an edge is stored by nobody. (The message calls program 1 `(1, 0, 0)`, as a launch may have three
# dimensions; ours has one. A *race*: two programs store to one element, and nobody knows which comes last.) **Change
# the marked line until it says "Solved".**

# %%
import triton
import triton.language as tl

from helpers.learning import puzzle


@triton.jit
def double_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)  # <- here
    x = tl.load(x_ptr + element)
    tl.store(y_ptr + element, 2 * x)


twelve = torch.arange(12.0)
puzzle(double_kernel, 3, twelve, wanted=2 * twelve, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)</code>: program 1
# begins where program 0 ends.</details>

# %% [markdown]
# ## Is it true?
#
# Does the sum really stay in a register? Triton's compiler runs here, GPU or none. This is each instruction with
# which a thread of an A100 loads from memory (`LDG`) or stores to it (`STG`), beside the line of the kernel that asks
# for it:

# %%
from helpers.instruments import compile_for
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

x = torch.empty(2**20, device="meta")  # a tensor without memory: nothing will run
options = {"device": "A100", **settings(torch.float32)}
made = compile_for(add_gelu_kernel, x, x, x, None, x.numel(), **options)
loads_and_stores = made.sass_view("load", "store").instructions
table(
    ("instruction", "of the kernel's line"), ((each.name, each.source) for each in loads_and_stores)
)

# %% [markdown]
# `a` and `b` are loaded, twice four numbers of each (the suffix counts bits), and `y` is stored. Nothing stores the
# sum, and nothing loads it.
#
# This picture is the whole idea. Each bar is what the kernels request; `add` is the sum, `a + b`, by the name of the
# operation that makes it. If you made a guess, it is marked.

# %%
from helpers.figures import traffic_chart

title = f"Fusing moves {fewer_bytes:.2f} times fewer bytes"
chart = traffic_chart({"unfused": unfused, "fused": fused}, title)
bytes_moved.on(chart, "x", at=lambda megabytes: 1e6 * megabytes, row=0)

# %% [markdown]
# ## Move it
#
# The same picture, launch by launch, for other operations, sizes, dtypes and GPUs. Move the sliders with the mouse or
# with the arrow keys. (The time is the bytes over the speed of the GPU's memory, by its data sheet. Its bars are on a
# logarithmic scale, where even a large gain is a short piece: compare the figures, not the lengths. GELU, LayerNorm and
# softmax are written out here as the single steps of their formulas, as you might write them in PyTorch.) Find out:
#
# 1. Which operation gains most from fusing? Which gains nothing, and why?
# 2. Does the gain depend on the size? On the dtype? What does?
# 3. From an H200 to a T4: which figures change, and which do not?

# %%
from helpers.figures import TrafficExplorer

explorer = TrafficExplorer("add+GELU", "fp32", device="H200", rows=1024, columns=1000)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. GELU in single steps: all it writes between its eight launches is
# saved. ReLU and the addition are one launch already: there is nothing in between. 2. It depends on how many tensors
# lie in between, and not on the dtype; on the size hardly (LayerNorm with a single row reads weights as large as the
# row, fused or not). 3. The time alone. What is requested belongs to the program.</details>
#
# ## Fewer bytes, less time?
#
# If memory is what the GPU waits for, then time should shrink as the bytes do. Hold the clocks of the first picture
# against the bytes: here are its times, with those of smaller tensors.
#
# They are what a real GPU did. You may have none, so the course carries measurements, each labelled with the GPU, the
# versions and the day it comes from. `eager` is PyTorch as you write it, `torch.compile` what its compiler makes of it,
# `fused` our kernel; `us` are microseconds, and the speed-up is eager's time over ours. `of copy` is our kernel's share
# of the speed at which that GPU copies memory, measured in the same run: nothing that reads and writes these bytes can
# be much faster. (A little it can: a copy writes as much as it reads, our kernel writes half as much.)

# %% tags=["answers-speed_up"]
h200.table("add_gelu", "float32")

# %% [markdown]
# On a hundred million numbers, time followed the bytes almost exactly. `torch.compile` fuses these two as well, and
# reaches the same speed on large tensors: this course is about understanding when it can, when it cannot, and what to
# write then.
#
# That is the time of the GPU by itself. Whoever calls waits for the CPU, too, which launches the kernels. On small
# tensors that is the larger part. The smallest size above, both ways:

# %%
million = {
    row["provider"]: row
    for row in h200.rows
    if (row["kernel"], row["shape"], row["dtype"]) == ("add_gelu", [2**20], "float32")
}
rows = []
for clock, what in (("gpu", "the GPU alone"), ("call", "a whole call")):
    took, one_kernel = (1e6 * million[name][clock]["median"] for name in ("eager", "fused"))
    rows.append((what, f"{took:.1f} us", f"{one_kernel:.1f} us", f"{took / one_kernel:.2f} times"))
table(("time of", "eager", "fused", "faster"), rows)

# %% [markdown]
# A speed-up of the GPU is not yet one of your program. Lesson 02 takes the launch apart and finds the size from which
# on memory is what counts.
#
# With a GPU at hand, the same comparison runs here:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    x, y = torch.randn(2, 100_000_000, device="cuda")
    eager, one_kernel = lambda: gelu(x + y, approximate="tanh"), lambda: add_gelu(x, y)
    here = benchmark_together({"eager": eager, "fused": one_kernel})
    print(torch.cuda.get_device_name(), here)
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## How fast is the machine you sit at?
#
# Two numbers describe a machine for our purpose: how many bytes a second it copies, and how many operations a second
# it does in a matrix product, the work it does best. An operation is one addition or multiplication, a **FLOP**; a
# TFLOP/s is a million million of them a second. The course measures or queries both numbers, and calls their ratio
# the **ridge point**: the operations that the machine could do while one byte arrives.

# %% tags=["nbval-ignore-output"]
from helpers.instruments import DEVICES, Roofline, this_device

mine = this_device()
print(mine.name)
print(f"memory {mine.memory_bandwidth / 1e9:.1f} GB/s")
print(f"arithmetic {mine.peak_flops['fp32'] / 1e12:.3f} TFLOP/s in fp32")
print(f"ridge point {Roofline(mine, 'fp32').ridge:.1f} FLOP/byte")

# %% [markdown]
# Compare a GPU of a data centre, an A100. Most of its arithmetic is in its *tensor cores*, units that do matrix
# products and nothing else. From its data sheet:

# %%
a100 = Roofline(DEVICES["A100"], "fp16")
print(f"memory {a100.device.memory_bandwidth / 1e9:,.0f} GB/s")
print(f"tensor cores {a100.peak / 1e12:.0f} TFLOP/s in fp16")

# %% [markdown]
# **How many operations could its tensor cores do while one byte arrives?**

# %%
ridge = predict_first("ridge point of an A100 in fp16", unit="FLOP/byte")
ridge

# %%
ridge.compare(a100.ridge)

# %% [markdown]
# And `gelu(a + b)`? It is no matrix product, so tensor cores cannot do it. Its ten operations on each number go to
# the *CUDA cores*, which add and multiply, and two of them, an exponential and a reciprocal, to the *special function
# units*, of which there are fewer. Each works while the memory delivers. What takes longest, for a million numbers?

# %%
from helpers.instruments import OPERATIONS

(add_gelu_launch,) = OPERATIONS["add+GELU"](1, n, 4).fused
least = add_gelu_launch.times(DEVICES["A100"], "fp32")
rows = []
for what in ("memory", "special functions", "CUDA cores"):
    rows.append((what, f"{1e6 * least[what]:.2f} us", f"{least['memory'] / least[what]:.1f} times"))
table(("what is busy", "at least", "memory takes"), rows)

# %% [markdown]
# So all of them idle most of the time: that is what the GPU was doing the rest of the time. Here is the whole of it.
# **Look at the first bar and at the others**: they are the time that each part takes over the same numbers. This
# picture comes back in other lessons, with the part lit that they are about. (Its numbers are of 16 bits, so that each
# takes memory half as long as one of ours in fp32.)

# %%
from helpers.figures import gpu_picture

gpu_picture("A100")

# %% [markdown]
# While memory takes longest, cleverer arithmetic gains nothing. **What helps is to move fewer bytes, and to move them
# at the memory's full speed.** Fusing does the first; how wide a kernel loads, and how many loads it has under way,
# decide the second, from lesson 03 on.
# Lesson 01 turns this into a picture that you can move.
#
# ## How this course works
#
# - **Lessons** (the folder `notebooks`) ask first, then measure. Nothing is quoted: each number comes from a cell
#   that you can change and run again.
# - **Without a GPU** your Triton kernels run in an interpreter, step by step. Results are right, the meter counts, and
#   Triton's own compiler tells registers and machine code for NVIDIA GPUs that you do not have; only time cannot be
#   had, so it is recorded. **With a GPU** the same cells run compiled, and are timed.
# - **Exercises** (the folder `exercises`) give you a formula and an empty function. Their check cells say *pass*,
#   *fail* with a hint, *not attempted* or *error*. The first is [the roofline](../exercises/01_roofline.ipynb), after
#   lesson 01; your first kernel is [add+GELU](../exercises/03_fused_add_gelu.ipynb), after lesson 03.
# - In a terminal, `fusion check exercises/01_roofline.ipynb` grades the notebook that you saved, and `fusion doctor`
#   says what your machine has.
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. What exactly does fusing add and GELU remove: operations, reads, writes, launches?
# <details><summary>Answer</summary>One write and one read of the sum, and one launch. Not a single operation.</details>
#
# 2. Why can the meter count bytes without a GPU?
# <details><summary>Answer</summary>It counts what is requested: which addresses a program reads and writes is decided
# by the program. The chip decides how long that takes, and how much of it its caches serve.</details>
#
# 3. A kernel reads one tensor and writes one. Can fusing anything into it make it move fewer bytes than that?
# <details><summary>Answer</summary>No: input and output must be requested once. Fusing removes what lies between
# kernels.</details>
#
# 4. A friend speeds up GELU's arithmetic by half. What happens to the time on an A100?
# <details><summary>Answer</summary>Nothing you could measure on a large tensor. Memory is what it waits for.</details>
#
# 5. Three elementwise kernels in a row, each reading one tensor and writing one. By what factor does fusing all three
#    cut the bytes? Put your number in place of the dots.

# %%
answer = ...
self_test(answer, 3, hint="a read and a write a kernel; after fusing, one of each is left")

# %% [markdown]
# Next: [01 The roofline](01_roofline.ipynb).
