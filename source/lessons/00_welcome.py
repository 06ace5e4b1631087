# %% [markdown]
# # Welcome: the gain of kernel fusion
#
# Two tensors of a hundred million elements, one addition, one GELU. Written the usual way, in one line of PyTorch, they
# keep a fast GPU busy for a while. The same arithmetic, arranged differently, takes much less time. **What was the GPU
# doing the rest of the time?**
#
# After this lesson you can
#
# - list what fusing two kernels removes, and what it keeps;
# - read the traffic meter, and tell a function from a kernel;
# - compute how many operations your own machine can do while one byte arrives from memory;
# - work with the lessons, exercises, checks and recorded measurements of this course.
#
# About 30 minutes. You need Python and a little PyTorch. You don't need a GPU.
#
# Run a cell with **Shift+Enter**, from top to bottom. Where code is folded, it only imports or draws.
#
# First, a guess. A GPU adds two tensors and applies GELU, an activation function of about ten operations per element.
# Its memory delivers the [elements](../docs/glossary.md#element) while its arithmetic units compute. **How many times
# longer does memory take than the arithmetic?** (2 means twice as long. No answer is wrong; the difference is the
# lesson. Enter also runs the cells below, down to the one that answers.)

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
    "By the data sheet, for the fused kernel. The arithmetic units idle most of the time: they "
    "wait for memory. So the way "
    "to be faster is to move fewer bytes.",
)

# %% [markdown]
# Now watch both ways side by side: [unfused](../docs/glossary.md#unfused), as two kernels, and fused into one. Each tensor is divided into sixteen tiles. Press
# **Play**, or move the slider. (The times were recorded on an H200; in between, tiles are assumed to cross at an even
# pace.)

# %% tags=["hide-input"]
from helpers.figures import traffic_animation
from helpers.instruments import recorded

h200 = recorded("h200")
traffic_animation(h200, count="tiles")

# %% [markdown]
# The pink tiles, the sum, go out and come straight back, and no other kernel reads them. The rest of this lesson counts
# that [traffic](../docs/glossary.md#traffic).

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
# A [kernel](../docs/glossary.md#kernel) is a function that the GPU runs over many elements at once; to start one is a
# [launch](../docs/glossary.md#launch). PyTorch launches two for `gelu(a + b)`: one adds, one applies GELU. Tensors are
# in the GPU's large memory, its [DRAM](../docs/glossary.md#dram); a kernel reads them, computes, and writes its result
# back.
#
# **How many bytes do the two kernels read and write, together?** `a` and `b` have a million elements each, and an
# element in fp32, PyTorch's usual dtype, takes four bytes. Count the reads and the writes of each kernel, and type your
# answer in megabytes.

# %% tags=["hide-input"]
bytes_moved = predict_first("bytes moved by gelu(a + b)", unit="MB")
bytes_moved

# %% [markdown]
# Now ask the [meter](../docs/glossary.md#meter). It watches every operator that PyTorch runs and every load and store of
# a Triton kernel, and adds up the bytes. Its line ends with the bytes (B) per element of the result.
#
# The meter counts the bytes that kernels **request**. The program decides that, so it needs no GPU.

# %%
unfused = measure(lambda: gelu(a + b, approximate="tanh"))
unfused

# %% tags=["hide-input"]
bytes_moved.compare(unfused.bytes_total / 1e6)

# %% [markdown]
# Which launch moved what? The first writes the sum, and the second reads it straight back.

# %%
unfused.launch_table()

# %% [markdown]
# The bytes that then cross between chip and DRAM can be fewer: between the two is a cache,
# [L2](../docs/glossary.md#l2), which may still hold what was just written. **Watch which tiles of the sum it still has**,
# at three sizes. Where requests and DRAM traffic differ, the lessons name the one they mean.

# %% tags=["hide-input"]
from helpers.figures import request_animation

request_animation("H200")

# %% [markdown]
# ## Adding in place
#
# Can we avoid that [round trip](../docs/glossary.md#round-trip)? A colleague writes one function, which puts the sum
# into `a`, so that no new tensor is needed. **How many bytes does this move?**


# %%
def by_hand(a, b):
    a += b  # in place: the sum needs no memory of its own
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
    "Still two launches: one writes the sum, the other reads it, and now a is gone. A test of "
    "the result passes; the "
    "meter shows the mistake.",
)

# %% [markdown]
# One function is not one kernel. The number of lines, functions or tensors in your program does not matter. What matters
# is **how many kernels there are, and the bytes that cross between them**.
#
# ## One kernel
#
# A [fused kernel](../docs/glossary.md#fused-kernel) does both steps while it has the elements: it keeps the sum in a
# [register](../docs/glossary.md#register), the fastest storage inside the processor. Here is one, written in Triton, a
# language for GPU kernels inside Python. You will write it yourself in lesson 03; for now, only its traffic.

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
# This picture is the whole idea. Each bar is the bytes that kernels request; `add` is the sum, `a + b`, named after its
# operator. If you made a guess, it is marked. The arithmetic is the same, and so is the result, up to rounding. Only the
# round trip of the sum is gone.
#
# ## Your first line of Triton
#
# A Triton kernel is a Python function that many [programs](../docs/glossary.md#program) run, all at once; each has a
# number, `tl.program_id(0)`: 0, 1, 2 and so on. A program works on a [block](../docs/glossary.md#block) of elements:
# `tl.arange(0, BLOCK)` is 0, 1, 2 and so on, up to `BLOCK - 1`. `x_ptr` is where `x` begins in memory, and `BLOCK` is
# known when the kernel is compiled: `tl.constexpr`.
#
# This kernel should double twelve elements, with three programs of four each. As it stands, all three take the same
# four. Run the cell and look: below each line of the kernel is the tensor as it is in memory, and each numbered box is
# one place of a program's block (a *lane*), drawn at the element that it accesses. Orange-red ones are wrong; an element
# with such an edge is never stored. (The message calls program 1 `(1, 0, 0)`, because a launch may have three
# dimensions; ours has one. A *race*: two programs store to one element, and either may come last.) **Change the marked
# line until it says "Solved".**

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
# Does the sum really stay in a register? Triton's compiler runs here, with or without a GPU. These are all instructions
# with which an A100 loads from memory (`LDG`) or stores to it (`STG`) in this kernel, next to the line of the kernel
# that they come from:

# %% tags=["hide-input"]
from helpers.instruments import compile_for
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
options = {"device": "A100", **settings(torch.float32)}
made = compile_for(add_gelu_kernel, x, x, x, None, x.numel(), **options)
loads_and_stores = made.sass_view("load", "store").instructions
table(("instruction", "the kernel's line"), ((each.name, each.source) for each in loads_and_stores))

# %% [markdown]
# `a` and `b` are loaded, twice four elements of each (the suffix counts bits), and `y` is stored. Nothing stores the
# sum, and nothing loads it.
#
# ## Other operations, sizes and GPUs
#
# The same picture, launch by launch. Move the sliders with the mouse or with the arrow keys. (The time is bytes over the
# bandwidth in the GPU's data sheet. Its bars are on a logarithmic scale, where even a large gain is a short piece:
# compare the figures. GELU, LayerNorm and softmax are unfused here into the single steps of their formulas.) Find out:
#
# 1. Which operation gains most from fusing? Which gains nothing, and why?
# 2. Does the gain depend on the size? On the dtype? On what else?
# 3. From an H200 to a T4: which figures change, and which stay?

# %% tags=["hide-input"]
from helpers.figures import TrafficExplorer

explorer = TrafficExplorer("add+GELU", "fp32", device="H200", rows=1024, columns=1000)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. GELU in single steps: fusing saves all that it writes between its
# eight launches. ReLU and the addition are one launch already: there is nothing in between. 2. It depends on how many
# tensors there are in between, and not on the dtype; hardly on the size (LayerNorm of a single row reads weights as
# large as the row, fused or not). 3. Only the time. The requested bytes belong to the program.</details>
#
# ## Fewer bytes, less time?
#
# If the GPU waits for memory, time should shrink with the bytes. These times are from a real GPU. You may have none, so
# the course carries measurements, each labelled with the GPU, the versions and the day. [`eager`](../docs/glossary.md#eager) is
# PyTorch as you write it, `torch.compile` its compiler's output, `fused` our kernel; `us` are microseconds.

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
# On a hundred million elements, time followed the bytes almost exactly. `torch.compile` fuses these two as well, and
# reaches the same speed: this course is about understanding when it can, when it cannot, and what to write then.
#
# This is the time of the GPU alone. The caller also waits for the CPU, which launches the kernels. Lesson 02 takes the
# launch apart, and finds the size above which memory dominates. With a GPU, time the same comparison here:

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
# Two numbers describe a machine for our purpose: the bytes per second that it copies (its
# [bandwidth](../docs/glossary.md#bandwidth)), and the operations per second that it does in a
# [matmul](../docs/glossary.md#matmul), a matrix product, where it is fastest. An operation is one addition or
# multiplication, a [FLOP](../docs/glossary.md#flop); a TFLOP/s is a million million of them per second. The course
# measures or queries both, and calls their ratio the [ridge point](../docs/glossary.md#ridge-point): the operations that
# the machine could do while one byte arrives.

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import Roofline, this_device

mine = this_device()
print(mine.name)
print(f"memory {mine.memory_bandwidth / 1e9:.1f} GB/s")
print(f"arithmetic {mine.peak_flops['fp32'] / 1e12:.3f} TFLOP/s in fp32")
print(f"ridge point {Roofline(mine, 'fp32').ridge:.1f} FLOP/byte")

# %% [markdown]
# Compare a data-centre GPU, an A100. Most of its arithmetic is in its [tensor cores](../docs/glossary.md#tensor-cores),
# units that multiply matrices and do nothing else. From its data sheet:

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
# And `gelu(a + b)`? It is not a matmul, so tensor cores cannot do it. Its ten operations per element go to the
# [CUDA cores](../docs/glossary.md#cuda-cores), which add and multiply, and two of them, an exponential and a reciprocal,
# to the special function units ([SFU](../docs/glossary.md#sfu)), of which there are fewer. Each works while memory
# delivers. The minimum times for a million elements:

# %% tags=["hide-input"]
rows = []
for what in ("memory", "special functions", "CUDA cores"):
    rows.append((what, f"{1e6 * least[what]:.2f} us", f"{least['memory'] / least[what]:.1f}"))
table(("busy", "at least", "memory's time ÷ this"), rows)

# %% [markdown]
# So all of them idle most of the time: they wait for memory. Here is the whole GPU. **Look at the first bar and at the
# others**: each is the time that one part takes for the same elements. This picture returns in other lessons, with the
# part lit that they are about. (Its elements have 16 bits, so memory takes half as long for each as in fp32. An
# [SM](../docs/glossary.md#sm) is one of the GPU's processors; the lessons explain the other parts when they use them.)
# <!-- given 16 bits: the picture's own setting -->

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100")

# %% [markdown]
# While memory takes longest, cleverer arithmetic gains nothing. **It helps to move fewer bytes, and to move them at the
# memory's full speed.** Fusing does the first; the width of a kernel's loads, and how many it has
# [in flight](../docs/glossary.md#in-flight), decide the second, from lesson 03 on. Lesson 01 turns this into a picture
# that you can move.
#
# ## How this course works
#
# - **Lessons** (the folder `notebooks`) ask first, then measure. Each number comes from a cell that you can change and
#   run again.
# - **Without a GPU** your Triton kernels run in an interpreter. Results are right, the meter counts, and Triton's own
#   compiler lists registers and machine code for GPUs that you do not have; only times cannot be measured here, so
#   recorded ones are shown. **With a GPU** the same cells run compiled, and are timed.
# - **Exercises** (the folder `exercises`) give you a formula and an empty function. Their check cells answer *pass*,
#   *fail* with a hint, *not attempted* or *error*. The first is [the roofline](../exercises/01_roofline.ipynb), after
#   lesson 01; your first kernel is [add+GELU](../exercises/03_fused_add_gelu.ipynb), after lesson 03.
# - In a terminal, `fusion check exercises/01_roofline.ipynb` grades the notebook that you saved, and `fusion doctor`
#   checks your machine.
# - Terms are explained at first use, and again in the [glossary](../docs/glossary.md).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. What exactly does fusing add and GELU remove: operations, reads, writes, launches?
# <details><summary>Answer</summary>One write and one read of the sum, and one launch. Not a single operation.</details>
#
# 2. Why can the meter count bytes without a GPU?
# <details><summary>Answer</summary>It counts requests: the program decides which addresses it reads and writes. The chip
# decides how long that takes, and how much of it its caches serve.</details>
#
# 3. A kernel reads one tensor and writes one. Can fusing anything into it make it move fewer bytes than that?
# <details><summary>Answer</summary>No: input and output must be requested once. Fusing removes only the traffic between
# kernels.</details>
#
# 4. A friend makes GELU's arithmetic twice as fast. What happens to the time on an A100?
# <details><summary>Answer</summary>Nothing you could measure on a large tensor. The GPU waits for memory.</details>
#
# 5. Three elementwise kernels in a row (each element of the result depends on one element of the input), each reading
#    one tensor and writing one. By what factor does fusing all three reduce the bytes? Replace the dots with your
#    number.

# %%
answer = ...
self_test(answer, 3, hint="one read and one write per kernel; after fusing, one of each is left")

# %% [markdown]
# Next: [01 The roofline](01_roofline.ipynb).
