# %% [markdown]
# # Welcome to kernel fusion
#
# Take two tensors with a hundred million elements each, add them, and apply GELU to the sum. In PyTorch that's one
# line, and it keeps a fast GPU busy for a while. Yet the same arithmetic can be done in much less time. **So what was
# the GPU doing the rest of the time?**
#
# After this lesson you can
#
# - explain what fusing two kernels removes and what it doesn't change;
# - read the traffic meter, and use it to check that a change really saves traffic;
# - work out how many operations your machine can do in the time one byte takes to arrive from memory;
# - find your way around the lessons, exercises, checks and recorded measurements.
#
# About 35 minutes. You need Python and a little PyTorch. You don't need a GPU.
#
# <span class="lab">Run the cells from top to bottom with **Shift+Enter**. If a cell's code is folded, it only imports
# things or draws a figure.</span>
#
# Let's start with a guess. One GPU kernel adds two tensors and applies GELU, an activation function. That's about ten
# operations per element. While the arithmetic units compute, memory has to deliver the
# [elements](../docs/glossary.md#element). **How many times longer does memory take than the arithmetic?** (2 means
# twice as long. You can't work it out yet, so don't worry about being wrong.<span class="lab"> Pressing Enter also runs
# the cells below, down to the one with the answer.</span>)

# %% tags=["hide-input"]
from helpers.learning import predict_first

waiting = predict_first("memory time ÷ arithmetic time, add+GELU in fp32 on an A100", unit="times")
waiting

# %% tags=["hide-input"]
from helpers.instruments import DEVICES, OPERATIONS

(add_gelu_launch,) = OPERATIONS["add+GELU"](1, 1_000_000, 4).fused
least = add_gelu_launch.times(DEVICES["A100"], "fp32")
waiting.compare(
    least["memory"] / least["CUDA cores"],
    "That's for the fused kernel, going by the data sheet. The arithmetic units spend most of "
    "the time waiting for memory, so the way to get faster is to move fewer bytes.",
)

# %% [markdown]
# Watch the two versions side by side: [unfused](../docs/glossary.md#unfused), as two kernels, and fused into one. Press
# **Play**, or drag the slider.

# %% tags=["hide-input"]
from helpers.figures import traffic_animation
from helpers.instruments import recorded

h200 = recorded("h200")
traffic_animation(h200, count=False)

# %% [markdown]
# Each tensor is split into sixteen tiles. The pink ones are the sum: they go out to memory and come straight back, and
# nothing but the second kernel ever reads them. In the rest of this lesson, we'll count that
# [traffic](../docs/glossary.md#traffic). (The two totals were measured on an H200. We assume that the tiles move at a
# steady pace.)

# %% tags=["hide-input"]
import torch
from torch.nn.functional import gelu

from helpers.instruments import measure, table
from helpers.learning import predictions, puzzle, self_test
from kernels import add_gelu
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
n = 700_000
a, b = torch.randn(2, n, device=device)

# %% [markdown]
# ## Two kernels, and the bytes between them
#
# A [kernel](../docs/glossary.md#kernel) is a function that the GPU runs over many elements at once, and starting one is
# called a [launch](../docs/glossary.md#launch). For `gelu(a + b)`, PyTorch launches two: one adds, the other applies
# GELU. The tensors live in the GPU's large memory, its [DRAM](../docs/glossary.md#dram). Each kernel reads its inputs
# from there, computes, and writes its result back.
#
# **How many bytes do the two kernels read and write in total?** `a` and `b` have 700,000 elements each. They're
# fp32, PyTorch's default dtype, so each element takes four bytes. Add up the reads and writes of each kernel, and enter
# the total in megabytes.

# %% tags=["hide-input"]
bytes_moved = predict_first("bytes moved by gelu(a + b)", unit="MB")
bytes_moved

# %% [markdown]
# Now let's ask the [meter](../docs/glossary.md#meter). It watches every PyTorch operator and every load and store in a
# Triton kernel, and adds up the bytes. The last number it prints is bytes (B) per element of the result.
#
# The meter counts the bytes that kernels **request**, so it doesn't need a GPU. For a Triton kernel, it adds up every
# load and store. It can't look inside PyTorch's operators, so it assumes that they read each input once and write each
# output once.

# %%
unfused = measure(lambda: gelu(a + b, approximate="tanh"))
unfused

# %% tags=["hide-input"]
bytes_moved.compare(unfused.bytes_total / 1e6)

# %% [markdown]
# Here's what each launch moved. The first one writes the sum, and the second one reads it straight back.

# %%
unfused.launch_table()

# %% [markdown]
# Fewer bytes may actually travel between the chip and DRAM. There's a cache in between, [L2](../docs/glossary.md#l2),
# which may still hold data that was written a moment ago. Here are three sizes, in a simple model of the cache. **Watch
# which tiles of the sum are still in L2** when the second kernel asks for them. Whenever the requested bytes and the
# DRAM traffic differ, we'll tell you which one we mean.

# %% tags=["hide-input"]
from helpers.figures import request_animation

request_animation("H200")

# %% [markdown]
# ## Adding in place
#
# Can we avoid that [round trip](../docs/glossary.md#round-trip)? A colleague suggests a single function that stores the
# sum in `a`, so that it doesn't need a new tensor. **How many bytes does this move?**


# %%
def by_hand(a, b):
    a += b  # in place: the sum doesn't need a new tensor
    return gelu(a, approximate="tanh")


# %% tags=["hide-input"]
in_place = predict_first("bytes moved if the sum overwrites a", unit="MB")
in_place

# %% tags=["hide-input"]
attempt = measure(by_hand, a.clone(), b)
print("the result is right:", torch.equal(attempt.result, unfused.result))
display(attempt.launch_table())
in_place.compare(
    attempt.bytes_total / 1e6,
    "Still two launches: one writes the sum, and the other reads it. And now a has been "
    "overwritten. A test of the result would pass, but the meter catches the mistake.",
)

# %% [markdown]
# Putting it in one function doesn't make it one kernel. The number of lines, functions or tensors in your program
# doesn't matter. What does matter is **how many kernels you launch, and how many bytes they pass to each other through
# memory**.
#
# ## One kernel
#
# A [fused kernel](../docs/glossary.md#fused-kernel) does both steps in one go. It keeps the sum in a
# [register](../docs/glossary.md#register), the fastest storage on the chip. Here's the heart of ours, in Triton, a
# language for GPU kernels that is embedded in Python. You'll write one yourself in lesson 03. For now, just look for
# the loads and the stores. (`mask` keeps the last program inside the tensor, and `COMPUTE` is the dtype of the
# arithmetic.)

# %% tags=["hide-input"]
import inspect

from kernels.elementwise.add_gelu import add_gelu_block, add_gelu_kernel, settings

lines = inspect.getsource(add_gelu_block.fn).splitlines()
print(*lines[4:10], sep="\n")

# %% [markdown]
# It loads `a` and `b`, and it stores `y`. The sum, `s`, is never stored. Now let's meter it:

# %%
fused = measure(add_gelu, a, b)
fused

# %% tags=["hide-input"]
from helpers.figures import traffic_chart

fewer_bytes = unfused.bytes_total / fused.bytes_total
difference = add_gelu(a[:4096], b[:4096]) - gelu(a[:4096] + b[:4096], approximate="tanh")
print("all results within 1e-6:", bool(difference.abs().max() <= 1e-6))
title = f"Fusing cuts traffic by a factor of {fewer_bytes:.2f}"
chart = traffic_chart({"unfused": unfused, "fused": fused}, title)
bytes_moved.on(chart, "x", at=lambda megabytes: 1e6 * megabytes, row=0)

# %% [markdown]
# This chart is the whole course in one picture. Each bar shows the bytes that the kernels request. `add` is the sum,
# `a + b`, named after its operator.<span class="lab"> If you made a guess, it's marked.</span> The arithmetic is the
# same, and so is the result, up to rounding. All we got rid of is the sum's round trip, and one launch.
#
# ## Your first line of Triton
#
# A Triton kernel is a Python function that many [programs](../docs/glossary.md#program) run at the same time. Each
# program has an ID, `tl.program_id(0)`: 0, 1, 2 and so on. Each works on a [block](../docs/glossary.md#block) of
# elements: `tl.arange(0, BLOCK)` is 0, 1, 2 and so on, up to `BLOCK - 1`. `x_ptr` is the address where `x` begins, and
# `tl.constexpr` means that `BLOCK` is known when the kernel is compiled.
#
# The kernel below should double twelve elements, using three programs with four elements each. It has a bug: all three
# programs work on the same four elements. `puzzle` launches the programs and allocates the result `y`, which `tl.store`
# writes to. `tl.load` reads from `twelve`.<span class="lab"> Run the cell and watch.</span> Below each line of the
# kernel you'll see the tensor in memory. Each numbered box is one position in a program's block, drawn at
# the element it accesses. Orange-red boxes are wrong, and an element with an orange-red edge is never stored. (A *race*
# means that two programs store to the same element, and either one may win.) **Change the marked line until it says
# "Solved".**

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
# begins where program 0 ends.</details>
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
# Does the sum really stay in a register? Triton's compiler runs on your machine whether or not you have a GPU, so we
# can check. Here are all the instructions in the add+GELU kernel that load from memory (`LDG`) or store to it (`STG`)
# on an A100, each with the source line it comes from:

# %% tags=["hide-input"]
from helpers.instruments import compile_for

x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
options = {"device": "A100", **settings(torch.float32)}
made = compile_for(add_gelu_kernel, x, x, x, None, x.numel(), **options)
loads_and_stores = made.sass_view("load", "store").instructions
table(("instruction", "source line"), ((each.name, each.source) for each in loads_and_stores))

# %% [markdown]
# A program's block is divided among threads. The table shows what one thread does with its eight elements. It loads `a`
# and `b` with two instructions each, four elements at a time (the suffix is the number of bits), and stores `y`. No
# instruction stores the sum, and none loads it.
#
# ## Other operations, sizes and GPUs
#
# Here's the same chart, launch by launch. Move the sliders with the mouse or the arrow keys. (The time is the number of
# bytes divided by the GPU's bandwidth, from its data sheet or as the device itself reports it. The axis is logarithmic,
# so even a large gain looks small: compare the numbers. The unfused versions of GELU, LayerNorm and softmax run every
# step of their formula as a separate kernel here, while add+GELU uses PyTorch's own GELU, which is a single kernel.)
# See if you can answer these:
#
# 1. Which operation gains the most from fusing? Which gains nothing, and why?
# 2. Does the gain depend on the size? On the dtype? On anything else?
# 3. If you go from an H200 to a T4, which numbers change and which don't?

# %% tags=["hide-input"]
from helpers.figures import TrafficExplorer

explorer = TrafficExplorer("add+GELU", "fp32", device="H200", rows=1024, columns=1000)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. GELU gains the most: step by step it takes eight launches, and
# fusing eliminates everything they write for each other. ReLU and the addition are a single launch to begin with, so
# there's nothing to save. 2. It depends on the number of intermediate tensors. The dtype doesn't matter, and the size
# hardly does (LayerNorm on a single row reads weights as large as the row, fused or not). 3. Only the time changes. The
# bytes come from the formulas alone.</details>
#
# ## Fewer bytes, less time?
#
# If the GPU is waiting for memory, then the time should shrink along with the bytes. You may not have a GPU, so the
# course comes with measurements from real ones, each labelled with the GPU, the software versions and the date.
# [`eager`](../docs/glossary.md#eager) is PyTorch as you write it, `torch.compile` is its compiler's output, `fused` is
# our kernel, and cells print µs (microseconds) as `us`.

# %% tags=["hide-input"]
rows = []
for count in (10_000_000, 100_000_000):
    timed = h200.times("add_gelu", (count,), "float32")
    took = [1e6 * timed[name].median for name in ("eager", "torch.compile", "fused")]
    gain = f"{took[0] / took[2]:.2f}x"
    rows.append((f"{count:,}", *(f"{each:.0f} us" for each in took), gain))
columns = ("elements", "eager", "torch.compile", "fused", "speedup")
table(columns, rows, f"the GPU's own time\n{h200.label_of('add_gelu')}")

# %% [markdown]
# On a hundred million elements, the time went down by the same factor as the bytes. `torch.compile` fuses these
# two operations too, and it's just as fast. So this course is about when a compiler can do this for you, and what to
# write when it can't.
#
# Those times are for the GPU alone. In a real program, you also wait for the CPU to launch the kernels. Lesson 02
# covers launches and the size at which memory starts to dominate. If you have a GPU, you can time both versions here:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    x, y = torch.randn(2, 100_000_000, device="cuda")
    eager, one_kernel = lambda: gelu(x + y, approximate="tanh"), lambda: add_gelu(x, y)
    here = benchmark_together({"eager": eager, "fused": one_kernel})
    print(torch.cuda.get_device_name(), here)
else:
    print("No GPU here. The recorded times are above.")

# %% [markdown]
# ## How fast is your machine?
#
# For our purposes, two numbers describe a machine. One is its [bandwidth](../docs/glossary.md#bandwidth): how many
# bytes it can move per second, counting reads and writes. The other is how many operations per second it can do in a
# [matmul](../docs/glossary.md#matmul), a matrix product, which is the fastest thing it does. One addition or
# multiplication counts as one [FLOP](../docs/glossary.md#flop), and a TFLOP/s is a trillion of them per second. The
# course measures both numbers or looks them up. Divide the second by the first and you get the [ridge
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
# Compare that with an A100, a data-centre GPU. Most of its arithmetic power is in its [tensor
# cores](../docs/glossary.md#tensor-cores), units that multiply matrices and do nothing else. Here are the numbers from
# its data sheet:

# %% tags=["hide-input"]
a100 = Roofline(DEVICES["A100"], "fp16")
print(f"memory {a100.device.memory_bandwidth / 1e9:,.0f} GB/s")
print(f"tensor cores {a100.peak / 1e12:.0f} TFLOP/s in fp16")

# %% [markdown]
# **How many operations could its tensor cores do while one byte arrives?**

# %% tags=["hide-input"]
ridge = predict_first("ridge point of an A100 in fp16", unit="FLOP/byte")
ridge

# %% tags=["hide-input"]
ridge.compare(a100.ridge)

# %% [markdown]
# What about `gelu(a + b)`? It isn't a matmul, so the tensor cores can't help. It does ten operations per element, one
# for the addition and nine for GELU, and we charge all ten to the [CUDA cores](../docs/glossary.md#cuda-cores), which
# add and multiply: that's the arithmetic of this lesson's first question. Two of the ten, an exponential and a
# reciprocal, also need the special function units ([SFU](../docs/glossary.md#sfu)). There are fewer of those, so they
# take longer. All of these units can work while memory delivers data. Here's the minimum time each of them needs for a
# million elements, at data-sheet peaks. (The CUDA cores' peak counts a multiply-add as two operations. Where additions
# and multiplications can't be paired, they take up to twice as long.)

# %% tags=["hide-input"]
rows = []
for what in ("memory", "CUDA cores", "special functions"):
    rows.append((what, f"{1e6 * least[what]:.2f} us", f"{least['memory'] / least[what]:.1f}"))
table(("unit", "minimum time", "memory time ÷ this"), rows)

# %% [markdown]
# So both kinds of unit sit idle most of the time, waiting for memory. Here's the whole GPU. **Compare the first bar
# with the others**: each bar shows how long one part takes for the same elements. This picture will be back in other
# lessons, with the part we're talking about lit up. (Elements are 16 bits here, so memory needs half as much time for
# each one as in fp32. An [SM](../docs/glossary.md#sm) is one of the GPU's processors. We'll explain the other parts
# when we get to them.)
# <!-- given 16 bits: the picture's own setting -->

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100")

# %% [markdown]
# As long as memory is the slowest part, smarter arithmetic won't make anything faster. **You have to move fewer bytes,
# and move them at full memory speed.** Fusing takes care of the first part. The second depends on how many bytes a
# kernel keeps [in flight](../docs/glossary.md#in-flight). We'll get to that in lesson 03b. First, lesson 01 turns all
# of this into a chart you can play with.
#
# ## How this course works
#
# - **Lessons** (in the folder `notebooks`) first ask you for a prediction, then measure. Every number comes from a cell
#   that you can change and run again.
# - **Without a GPU**, your Triton kernels run in an interpreter. The results are correct, the meter counts the bytes,
#   and Triton's own compiler reports registers and machine code for GPUs that you don't have. The only thing you can't
#   measure is time, so we show recorded times instead. **With a GPU**, the same cells compile the kernels and time
#   them.
# - **Exercises** (in the folder `exercises`) give you a formula and an empty function. Their check cells report *pass*,
#   *fail* with a hint, *not attempted* or *error*. The first one is [the roofline](../exercises/01_roofline.ipynb),
#   after lesson 01. You'll write your first kernel, [add+GELU](../exercises/03_fused_add_gelu.ipynb), after lesson 03.
# - In a terminal, `fusion check exercises/01_roofline.ipynb` grades the notebook you saved, and `fusion doctor` checks
#   your machine.
# - We explain each term when we first use it. You can look it up again in the [glossary](../docs/glossary.md).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. What exactly goes away when you fuse add and GELU: operations, reads, writes, launches?
# <details><summary>Answer</summary>One write and one read of the sum, and one launch. It doesn't remove a single
# operation.</details>
#
# 2. Why can the meter count bytes without a GPU?
# <details><summary>Answer</summary>Because it counts requests, and a Triton program alone determines which addresses it
# reads and writes. The chip only affects how long that takes, and how many of the requests the caches can
# serve.</details>
#
# 3. A kernel reads one tensor and writes one. You fuse another elementwise operation into it. Does the fused kernel
# move fewer bytes than that first kernel did alone?
# <details><summary>Answer</summary>No. It still has to read its input once and write its output once. What you save is
# the traffic between it and the second kernel.</details>
#
# 4. A friend makes GELU's arithmetic twice as fast. What happens to the time on an A100?
# <details><summary>Answer</summary>On a large tensor, nothing you could measure. The GPU is waiting for
# memory.</details>
#
# 5. Three elementwise kernels run one after another (in an elementwise kernel, each element of the result depends on
#    one element of the input). Each reads one tensor and writes one. By what factor does fusing all three reduce the
#    bytes? Replace the dots with your number.

# %%
answer = ...
self_test(answer, 3, hint="one read and one write per kernel; after fusing, one of each is left")

# %% [markdown]
# Next: [01 The roofline](01_roofline.ipynb).
