# %% [markdown]
# # Welcome: the gain of kernel fusion
#
# Take two tensors of a hundred million elements, add them, and apply GELU. In PyTorch that's one line, and it keeps a
# fast GPU busy for a while. Rearrange the same arithmetic and it runs in much less time. **What was the GPU doing the
# rest of the time?**
#
# After this lesson you can
#
# - list what fusing two kernels removes and what it leaves in place;
# - read the traffic meter, and tell a function from a kernel;
# - work out how many operations your own machine could do in the time it takes one byte to arrive from memory;
# - find your way around the lessons, exercises, checks and recorded measurements.
#
# About 30 minutes. You need Python and a little PyTorch, but no GPU.
#
# Run the cells from top to bottom with **Shift+Enter**. Folded code is only imports and plotting.
#
# Start with a guess. A GPU adds two tensors and applies GELU, an activation function that takes about ten operations
# per element. While its memory delivers more [elements](../docs/glossary.md#element), its arithmetic units compute on
# the ones they have. **How many times longer does memory take than the arithmetic?** (2 means twice as long. You
# can't get this wrong: what you learn is how far off you were. Pressing Enter also runs the cells below, down to the
# one with the answer.)

# %% tags=["hide-input"]
from helpers.learning import predict_first

waiting = predict_first(
    "memory's time over the arithmetic's, add+GELU in fp32 on an A100", unit="times"
)
waiting

# %% tags=["hide-input"]
from helpers.instruments import DEVICES, OPERATIONS

(add_gelu_launch,) = OPERATIONS["add+GELU"](1, 1_000_000, 4).fused
least = add_gelu_launch.times(DEVICES["A100"], "fp32")
waiting.compare(
    least["memory"] / least["CUDA cores"],
    "That's for the fused kernel, by the data sheet. The arithmetic units spend most of their "
    "time waiting for memory, so the way to go faster is to move fewer bytes.",
)

# %% [markdown]
# Now watch both versions side by side: [unfused](../docs/glossary.md#unfused), which takes two kernels, and fused
# into one. Each tensor is cut into sixteen tiles. Press **Play** or drag the slider. (The start and end times were
# recorded on an H200; in between, the animation assumes that tiles move at a constant rate.)

# %% tags=["hide-input"]
from helpers.figures import traffic_animation
from helpers.instruments import recorded

h200 = recorded("h200")
traffic_animation(h200, count="tiles")

# %% [markdown]
# The pink tiles are the sum. They go out to memory and come straight back, and no other kernel ever reads them. The
# rest of this lesson is about counting that [traffic](../docs/glossary.md#traffic).

# %% tags=["hide-input"]
import torch
from torch.nn.functional import gelu

from helpers.instruments import measure, table
from helpers.learning import predictions, puzzle, self_test
from kernels import add_gelu
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
n = 1_000_000
a, b = torch.randn(2, n, device=device)

# %% [markdown]
# ## Two kernels, and the bytes between them
#
# A [kernel](../docs/glossary.md#kernel) is a function that the GPU runs on many elements at once, and starting one is
# called a [launch](../docs/glossary.md#launch). For `gelu(a + b)`, PyTorch launches two: one to add and one for GELU.
# Tensors live in the GPU's large memory, its [DRAM](../docs/glossary.md#dram), so each kernel has to read its inputs
# from there and write its result back.
#
# **How many bytes do the two kernels read and write in total?** `a` and `b` have a million elements each, and in
# fp32, PyTorch's default dtype, an element takes four bytes. Count the reads and writes of each kernel and enter your
# answer in megabytes.

# %% tags=["hide-input"]
bytes_moved = predict_first("bytes moved by gelu(a + b)", unit="MB")
bytes_moved

# %% [markdown]
# Let's check with the [meter](../docs/glossary.md#meter). It hooks into every PyTorch operator and every load and
# store in a Triton kernel, and adds up the bytes. The last figure on its line is bytes (B) per element of the result.
#
# What it counts are the bytes that kernels **request**. Those follow from the program alone, so you don't need a GPU
# to count them.

# %%
unfused = measure(lambda: gelu(a + b, approximate="tanh"))
unfused

# %% tags=["hide-input"]
bytes_moved.compare(unfused.bytes_total / 1e6)

# %% [markdown]
# Here's the same total, split by launch. The first one writes the sum, and the second one reads it straight back.

# %%
unfused.launch_table()

# %% [markdown]
# Fewer bytes than that may actually travel between chip and DRAM, because there's a cache in the way,
# [L2](../docs/glossary.md#l2), which may still hold what a kernel has just written. **Watch which tiles of the sum
# are still in L2** at three different sizes. Wherever requests and DRAM traffic differ, the lessons will say which of
# the two they mean.

# %% tags=["hide-input"]
from helpers.figures import request_animation

request_animation("H200")

# %% [markdown]
# ## Adding in place
#
# Can we avoid that [round trip](../docs/glossary.md#round-trip)? A colleague suggests a single function that adds
# into `a`, so that it doesn't need a new tensor. **How many bytes does this version move?**


# %%
def by_hand(a, b):
    a += b  # in place: no new tensor for the sum
    return gelu(a, approximate="tanh")


# %% tags=["hide-input"]
in_place = predict_first("bytes moved with the sum in place of a", unit="MB")
in_place

# %% tags=["hide-input"]
attempt = measure(by_hand, a.clone(), b)
print("the result is right:", torch.equal(attempt.result, unfused.result))
display(attempt.launch_table())
in_place.compare(
    attempt.bytes_total / 1e6,
    "It's still two launches: one writes the sum and the other reads it back. And you've lost a. "
    "A test of the result would pass, but the meter catches the mistake.",
)

# %% [markdown]
# So one function doesn't mean one kernel. It doesn't matter how many lines, functions or tensors your program has.
# What matters is **how many kernels it launches, and how many bytes they pass to each other through memory**.
#
# ## One kernel
#
# A [fused kernel](../docs/glossary.md#fused-kernel) does both steps while it has the elements on the chip. It keeps
# the sum in a [register](../docs/glossary.md#register), the fastest storage a processor has. Here's one written in
# Triton, a language for writing GPU kernels in Python. You'll write this kernel yourself in lesson 03; for now, we
# only want to see its traffic.

# %%
fused = measure(add_gelu, a, b)
fused

# %% tags=["hide-input"]
from helpers.figures import traffic_chart

fewer_bytes = unfused.bytes_total / fused.bytes_total
difference = add_gelu(a[:4096], b[:4096]) - gelu(a[:4096] + b[:4096], approximate="tanh")
print("no result differs by more than 1e-6:", bool(difference.abs().max() <= 1e-6))
title = f"Fusing moves {fewer_bytes:.2f}x fewer bytes"
chart = traffic_chart({"unfused": unfused, "fused": fused}, title)
bytes_moved.on(chart, "x", at=lambda megabytes: 1e6 * megabytes, row=0)

# %% [markdown]
# If you remember one picture from this lesson, make it this one. The bars show the bytes that kernels request, and
# `add` is the sum, `a + b`, named after the operator that makes it. Your guess is marked if you made one. Both
# versions do the same arithmetic and get the same result up to rounding. The only thing we removed is the sum's round
# trip.
#
# ## Your first line of Triton
#
# A Triton kernel is a Python function, and many [programs](../docs/glossary.md#program) run it at the same time. Each
# program gets its number from `tl.program_id(0)`: 0, 1, 2 and so on. It works on a [block](../docs/glossary.md#block)
# of elements: `tl.arange(0, BLOCK)` gives you 0, 1, 2 and so on, up to `BLOCK - 1`. `x_ptr` is the address where `x`
# starts, and `BLOCK` is marked `tl.constexpr` because its value is fixed when the kernel is compiled.
#
# This kernel is supposed to double twelve elements, using three programs with four elements each. As written, all
# three programs work on the same four. Run the cell to see it: under each line of the kernel you'll find the tensor
# as it is in memory. Each numbered box is one position in a program's block (a *lane*), drawn at the element it
# accesses. Orange-red boxes are wrong accesses, and elements with an orange-red edge never get stored. (The message
# calls program 1 `(1, 0, 0)` because a launch can have up to three dimensions; ours has one. A *race* means that two
# programs store to the same element, and either one may win.) **Change the marked line until it says "Solved".**

# %%
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)  # <- here
    x = tl.load(x_ptr + element)
    tl.store(y_ptr + element, 2 * x)


twelve = torch.arange(12.0)
puzzle(double_kernel, 3, twelve, wanted=2 * twelve, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)</code>: program 1
# picks up where program 0 stopped.</details>
#
# <!-- choices
# element = tl.arange(0, BLOCK)
#
# element = tl.program_id(0) + tl.arange(0, BLOCK)
#
# element = BLOCK + tl.arange(0, BLOCK)
#
# element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
#
# element = (tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK)
# -->

# %% [markdown]
# ## In the machine code
#
# Does the sum really stay in a register? We can check, because Triton's compiler works here whether or not you have a
# GPU. These are all the instructions in this kernel that load from memory (`LDG`) or store to it (`STG`) on an A100,
# each with the line of the kernel it was compiled from:

# %% tags=["hide-input"]
from helpers.instruments import compile_for
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
options = {"device": "A100", **settings(torch.float32)}
made = compile_for(add_gelu_kernel, x, x, x, None, x.numel(), **options)
loads_and_stores = made.sass_view("load", "store").instructions
table(("instruction", "the kernel's line"), ((each.name, each.source) for each in loads_and_stores))

# %% [markdown]
# We see two loads each for `a` and `b`, four elements at a time (the suffix gives the width in bits), and the stores
# of `y`. There isn't a single instruction that stores the sum or loads it back.
#
# ## Other operations, sizes and GPUs
#
# Here's the same picture for other operations, launch by launch. Move the sliders with the mouse or the arrow keys.
# (Time here is bytes divided by the bandwidth on the GPU's data sheet. The bars have a logarithmic scale, on which
# even a big gain looks small, so go by the figures. Unfused GELU, LayerNorm and softmax are broken down into the
# individual steps of their formulas.) Find out:
#
# 1. Which operation gains most from fusing? Which gains nothing, and why?
# 2. Does the gain depend on the size? On the dtype? On anything else?
# 3. When you switch from an H200 to a T4, which figures change and which don't?

# %% tags=["hide-input"]
from helpers.figures import TrafficExplorer

explorer = TrafficExplorer("add+GELU", "fp32", device="H200", rows=1024, columns=1000)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. GELU in single steps, because fusing removes all the traffic
# between its eight launches. ReLU and the addition are a single launch to begin with, so there's nothing to remove.
# 2. The gain depends on the number of intermediate tensors. It doesn't depend on the dtype, and hardly on the size
# (for a LayerNorm of one row, the weights are as large as the row, and they have to be read whether it's fused or
# not). 3. Only the time changes. The requested bytes are a property of the program.</details>
#
# ## Fewer bytes, less time?
#
# If the GPU is waiting for memory, then fewer bytes should mean less time. These timings come from a real GPU. You
# may not have one, so the course ships with recorded measurements, each labelled with GPU, software versions and
# date. [`eager`](../docs/glossary.md#eager) is PyTorch as you'd normally write it, `torch.compile` is what its
# compiler produces, and `fused` is our kernel; `us` means microseconds.

# %% tags=["hide-input"]
rows = []
for count in (10_000_000, 100_000_000):
    timed = h200.times("add_gelu", (count,), "float32")
    took = [1e6 * timed[name].median for name in ("eager", "torch.compile", "fused")]
    gain = f"{took[0] / took[2]:.2f} times"
    rows.append((f"{count:,}", *(f"{each:.0f} us" for each in took), gain))
columns = ("elements", "eager", "torch.compile", "fused", "faster")
table(columns, rows, f"the GPU's own time\n{h200.label_of('add_gelu')}")

# %% [markdown]
# At a hundred million elements, the time shrinks almost exactly as much as the bytes do. `torch.compile` also fuses
# these two operations and is just as fast. In this course you'll learn when it can do that, when it can't, and what
# to write yourself in that case.
#
# These timings cover the GPU only. A caller also waits for the CPU to launch the kernels; lesson 02 takes that launch
# apart and finds the size above which memory dominates. If you have a GPU, you can run the same comparison here:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    x, y = torch.randn(2, 100_000_000, device="cuda")
    eager, one_kernel = lambda: gelu(x + y, approximate="tanh"), lambda: add_gelu(x, y)
    here = benchmark_together({"eager": eager, "fused": one_kernel})
    print(torch.cuda.get_device_name(), here)
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## How fast is your machine?
#
# For our purposes, two numbers describe a machine: how many bytes per second it can copy (its
# [bandwidth](../docs/glossary.md#bandwidth)), and how many operations per second it can do in a
# [matmul](../docs/glossary.md#matmul), a matrix product, which is where it's fastest. One addition or one
# multiplication counts as one operation, a [FLOP](../docs/glossary.md#flop); a TFLOP/s is a million million of them
# per second. The course measures these numbers or looks them up. Their ratio is the [ridge
# point](../docs/glossary.md#ridge-point): how many operations the machine could do in the time it takes one byte to
# arrive.

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import Roofline, this_device

mine = this_device()
print(mine.name)
print(f"memory {mine.memory_bandwidth / 1e9:.1f} GB/s")
print(f"arithmetic {mine.peak_flops['fp32'] / 1e12:.3f} TFLOP/s in fp32")
print(f"ridge point {Roofline(mine, 'fp32').ridge:.1f} FLOP/byte")

# %% [markdown]
# For comparison, take a data-centre GPU, the A100. Most of its arithmetic throughput is in its [tensor
# cores](../docs/glossary.md#tensor-cores), which multiply matrices and can't do anything else. According to its data
# sheet:

# %% tags=["hide-input"]
a100 = Roofline(DEVICES["A100"], "fp16")
print(f"memory {a100.device.memory_bandwidth / 1e9:,.0f} GB/s")
print(f"tensor cores {a100.peak / 1e12:.0f} TFLOP/s in fp16")

# %% [markdown]
# **How many operations could those tensor cores do while one byte arrives?**

# %% tags=["hide-input"]
ridge = predict_first("ridge point of an A100 in fp16", unit="FLOP/byte")
ridge

# %% tags=["hide-input"]
ridge.compare(a100.ridge)

# %% [markdown]
# What about `gelu(a + b)`? That isn't a matmul, so tensor cores can't help. Its ten operations per element run on the
# [CUDA cores](../docs/glossary.md#cuda-cores), which add and multiply, except for two, an exponential and a
# reciprocal, which go to the special function units ([SFU](../docs/glossary.md#sfu)). A GPU has fewer of those. All
# of these units can work while memory delivers. The minimum times for a million elements are:

# %% tags=["hide-input"]
rows = []
for what in ("memory", "special functions", "CUDA cores"):
    rows.append((what, f"{1e6 * least[what]:.2f} us", f"{least['memory'] / least[what]:.1f}"))
table(("busy", "at least", "memory's time ÷ this"), rows)

# %% [markdown]
# So all of these units sit idle most of the time, waiting for memory. Here's the whole GPU. **Compare the first bar
# with the others**: each one is the time that one part needs for the same elements. You'll see this picture again in
# other lessons, with the relevant part highlighted. (Its elements have 16 bits, so memory needs half as long per
# element as in fp32. An [SM](../docs/glossary.md#sm) is one of the GPU's processors; we'll explain the other parts
# when we get to them.)
# <!-- given 16 bits: the picture's own setting -->

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100")

# %% [markdown]
# As long as memory takes the longest, cleverer arithmetic gains you nothing. **What helps is to move fewer bytes, and
# to move them at full memory speed.** Fusion takes care of the first. The second depends on how wide a kernel's loads
# are and how many it keeps [in flight](../docs/glossary.md#in-flight), which we'll look at from lesson 03 on. Lesson
# 01 turns all this into a chart that you can play with.
#
# ## How this course works
#
# - **Lessons** (in the `notebooks` folder) ask you first and measure afterwards. Every number comes from a cell that
#   you can change and run again.
# - **Without a GPU**, your Triton kernels run in an interpreter. You get correct results, the meter counts bytes, and
#   Triton's real compiler shows you registers and machine code for GPUs that you don't have. The only thing you can't
#   measure is time, so we show recorded timings instead. **With a GPU**, the same cells run compiled and get timed.
# - **Exercises** (in the `exercises` folder) give you a formula and an empty function. Check cells report *pass*,
#   *fail* with a hint, *not attempted* or *error*. The first exercise is [the
#   roofline](../exercises/01_roofline.ipynb), after lesson 01; you'll write your first kernel in
#   [add+GELU](../exercises/03_fused_add_gelu.ipynb), after lesson 03.
# - In a terminal, `fusion check exercises/01_roofline.ipynb` grades your saved notebook, and `fusion doctor` checks
#   your machine.
# - We explain terms when they first come up, and you can look them up in the [glossary](../docs/glossary.md).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. What exactly does fusing add and GELU remove: operations, reads, writes, launches?
# <details><summary>Answer</summary>The write of the sum, the read of the sum, and one launch. It doesn't remove a
# single operation.</details>
#
# 2. Why can the meter count bytes without a GPU?
# <details><summary>Answer</summary>Because it counts requests, and the program alone determines which addresses it
# reads and writes. You'd need the chip to find out how long that takes and how much of it the caches serve.</details>
#
# 3. A kernel reads one tensor and writes one. If you fuse more work into it, can it move fewer bytes than that?
# <details><summary>Answer</summary>No. It has to read its input and write its output once in any case. Fusion only
# removes traffic between kernels.</details>
#
# 4. A friend makes GELU's arithmetic twice as fast. How does that change the time on an A100?
# <details><summary>Answer</summary>For a large tensor, not by anything you could measure, because the GPU is waiting
# for memory.</details>
#
# 5. You have three elementwise kernels in a row (so each output element depends on one input element). Each reads one
#    tensor and writes one. By what factor does fusing all three cut the bytes? Replace the dots with your number.

# %%
answer = ...
self_test(answer, 3, hint="each kernel does one read and one write; the fused one does that once")

# %% [markdown]
# Next: [01 The roofline](01_roofline.ipynb).
