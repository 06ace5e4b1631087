# %% [markdown]
# # 01 The roofline: what limits a kernel
#
# A ReLU does one comparison per element. An A100 can do hundreds of thousands of billions of operations per second.
# **What share of that does a ReLU actually reach?** And if you made it do ten times the arithmetic, how much longer
# would it take?
#
# After this lesson you can
#
# - compute the *arithmetic intensity* of an operation from its operations and its bytes;
# - find a GPU's *ridge point*, and tell which operations are memory-bound on it and which are compute-bound;
# - predict the minimum time of an operation, and what fusing can and can't do about it;
# - spot the error in a published intensity.
#
# About 35 minutes. It builds on [00 Welcome](00_welcome.ipynb) and prepares you for [exercise
# 01](../exercises/01_roofline.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.instruments import (
    DEVICES,
    OPERATIONS,
    Roofline,
    Work,
    cost,
    measure,
    measured_device,
    recorded,
    roofs,
    table,
)
from helpers.learning import predict_first, predictions, puzzle, self_test

h200 = recorded("h200")

# %% [markdown]
# ## Arithmetic intensity
#
# You can describe any operation, on any hardware, with two numbers: how many floating-point operations (FLOP) it
# does, and how many bytes it has to move between memory and processor. Divide the first by the second and you get its
# [arithmetic intensity](../docs/glossary.md#arithmetic-intensity) in FLOP per byte. For the bytes we take the
# minimum: every input is read once and every output is written once, with no help from a cache.
#
# Every +, −, ×, ÷, max, `exp` or root of one element counts as one FLOP. (They don't all cost the same; we'll get to
# that.) Take a ReLU on an fp16 tensor. It computes `max(x, 0)`, which is one operation per element, and it reads two
# bytes and writes two.

# %%
n = 4096 * 4096
relu = Work(flops=n, bytes_read=2 * n, bytes_written=2 * n)
print(f"ReLU in fp16: {relu.intensity} FLOP/byte")

# %% [markdown]
# Did we count the bytes correctly? Let's ask the meter, on a smaller tensor.

# %%
x = torch.randn(1000, 1000, dtype=torch.float16)
measure(torch.relu, x)

# %% [markdown]
# ## The ridge point
#
# A GPU has two limits. Its memory can move so many bytes per second, which allows `bandwidth × intensity` FLOP/s, and
# its arithmetic units have a peak in FLOP/s. Whichever is lower is what you get. The intensity at which the two are
# equal is the [ridge point](../docs/glossary.md#ridge-point): to the left of it an operation is
# [memory-bound](../docs/glossary.md#memory-bound), and to the right it's
# [compute-bound](../docs/glossary.md#compute-bound).

# %% tags=["hide-input"]
a100 = Roofline(DEVICES["A100"], "fp16")
bandwidth = a100.device.memory_bandwidth
print(f"{a100.device.model}: memory {bandwidth / 1e9:,.0f} GB/s")
print(f"arithmetic in fp16 {a100.peak / 1e12:.0f} TFLOP/s")
print(f"ridge point {a100.ridge:.0f} FLOP/byte    (given by: {a100.device.source})")

# %% [markdown]
# Now back to our first question. **What share of its peak can an A100 reach on a ReLU, at best?**

# %% tags=["hide-input"]
share = predict_first("share of an A100's fp16 peak that ReLU reaches", unit="%")
share

# %% tags=["hide-input"]
import math

orders = math.log10(a100.ridge / relu.intensity)
share.compare(
    100 * a100.attainable(relu.intensity) / a100.peak,
    f"ReLU is {orders:.1f} orders of magnitude (powers of ten) below the ridge. You could cut the "
    "peak to a hundredth, or do ten times the arithmetic, and it would take no longer.",
)

# %% [markdown]
# That was generous, because the peak we used belongs to the tensor cores, and they only do matmuls. A ReLU runs on
# the *CUDA cores*, which have a lower peak and therefore a different ridge. Exponentials, reciprocals and roots run
# on yet another kind of unit, the *special function units*, and the GPU has even fewer of those.

# %% tags=["hide-input"]
rows = []
for units in ("fp16", "fp32", "special functions"):
    roof = roofs(DEVICES["A100"])[units]
    rows.append((units, f"{roof.peak / 1e12:.1f} TFLOP/s", f"{roof.ridge:.1f} FLOP/byte"))
table(("A100", "peak", "ridge at"), rows)

# %% [markdown]
# (`fp16` is the tensor cores and `fp32` the CUDA cores. A special function counts as one FLOP per result.) ReLU is
# far below all three ridges. **Look at the highlighted bar**: it's what sets the slope of the roofline. If you divide
# it by one of the last three bars, you get the ridge of that unit.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100", lit="memory")

# %% [markdown]
# ## A table of the usual suspects
#
# ReLU, vector add, GELU, add+GELU, LayerNorm, softmax, matmul+bias+ReLU, a convolution with batch norm and ReLU, and
# attention: **how many of these nine are memory-bound on an A100 when fused, at 4096 rows and 4096 columns?** (Later
# lessons explain each of them. The [matmul](../docs/glossary.md#matmul) multiplies *rows* × *columns* by *columns* ×
# *columns*. The convolution is 3 × 3, over *rows* pixels, with *columns* channels in and out. Attention compares
# every row with every other row.)

# %% tags=["hide-input"]
memory_bound = predict_first("of nine operations, fused, memory-bound on an A100", unit="")
memory_bound

# %% tags=["hide-input"]
bounds, rows = [], []
for name, versions_of in OPERATIONS.items():
    versions = versions_of(4096, 4096, 2)
    unfused = cost(versions.unfused, a100.device, "fp16").work.intensity
    fused = cost(versions.fused, a100.device, "fp16")
    bounds.append(fused.bound)
    intensities = (f"{unfused:.2f}", f"{fused.work.intensity:.2f}")
    rows.append((name, *intensities, f"{fused.bound}-bound: {fused.unit}"))
display(table(("", "unfused", "fused", "on an A100"), rows, "FLOP/byte in fp16, 4096 x 4096"))
memory_bound.compare(
    bounds.count("memory"),
    "An operation that uses each element only a few times is memory-bound by a wide margin. To be "
    "compute-bound, it has to reuse each element many times, like a matmul, a convolution or "
    "attention.",
)

# %% [markdown]
# ## The picture
#
# This is a [roofline](../docs/glossary.md#roofline) chart, with intensity on the x-axis and performance on the
# y-axis, both logarithmic. The thick slope is the memory limit. The flat lines are the peaks: tensor cores at the
# top, then CUDA cores, then special functions. The thin slope is the limit of [shared
# memory](../docs/glossary.md#shared-memory), a small memory inside each processor, for the bytes that are moved there
# (lesson 08).
#
# We draw each operation on its own roof, because no kernel can get above it. **Fusing moves an operation to the
# right**, since it does the same arithmetic with fewer bytes. "Unfused" means one launch per step of the formula
# (except in add+GELU, where it's PyTorch's own GELU, a single launch).
#
# The chart starts with a single roof and a single operation. Go through the steps under *show*: first the compute
# roof, then what fusing moves, then everything, where you can also add operations. Move the sliders with the mouse or
# the arrow keys. (If you made a guess, the chart marks the height you gave the ReLU.) Find out:
#
# 1. Which operations move when you change *columns*, and which don't?
# 2. At how many columns does the matmul cross the ridge? What about a T4, or an H100?
# 3. On which side of the ridge is attention when there are few rows? And when there are many, unfused and fused?

# %% tags=["hide-input"]
from helpers.figures import RooflineExplorer

few = ("ReLU", "add+GELU", "matmul+bias+ReLU", "attention")
explorer = RooflineExplorer(device="A100", operations=few, show="memory roof")
share.on(explorer, "y", at=lambda percent: percent / 100 * a100.peak)

# %% [markdown]
# <details><summary>What you should see</summary>1. Only the matmul moves, because it uses each input element as many
# times as there are columns. The other operations use an element the same number of times at any width. 2. and 3. It
# happens between two stops of the slider; the cell below finds the exact size. With few rows, attention is
# memory-bound. Unfused, it's still memory-bound with many, because it writes its scores, one per pair of rows, to
# memory and reads them back. (On a T4, only libraries reach the roof of the tensor cores, because Triton doesn't use
# tensor cores on GPUs that old.)</details>


# %% tags=["hide-input"]
def crossing(compute_bound) -> int:
    """Return the smallest size that is compute-bound."""
    return next(size for size in range(1, 5000) if compute_bound(size))


def limited_by(name, device, rows, columns):
    return cost(OPERATIONS[name](rows, columns, 2).fused, DEVICES[device], "fp16").bound


rows = []
for gpu in ("A100", "T4", "H100"):
    columns = crossing(lambda c, gpu=gpu: limited_by("matmul+bias+ReLU", gpu, 4096, c) == "compute")
    tokens = crossing(lambda r, gpu=gpu: limited_by("attention", gpu, r, 4096) == "compute")
    rows.append((gpu, f"{columns} columns", f"{tokens} rows"))
table(("compute-bound at", "a matmul of 4096 rows", "attention"), rows)

# %% [markdown]
# ## From small to large: the matmul
#
# Multiplying two N × N matrices takes `2 N³` operations. People often quote its intensity as simply "N FLOP per
# byte". **Claim: a 1024 × 1024 product in fp16 has an intensity of 1024 FLOP/byte.** Let's test that. Three matrices
# move, two in and one out, at two bytes per element. **What do you get?**

# %% tags=["hide-input"]
claimed = predict_first("intensity of a 1024 x 1024 matmul in fp16", unit="FLOP/byte")
claimed


# %%
def matmul(size: int, itemsize: int = 2) -> Work:
    return Work(
        flops=2 * size**3,
        bytes_read=2 * size**2 * itemsize,
        bytes_written=size**2 * itemsize,
    )


# %% tags=["hide-input"]
found = matmul(1024).intensity
claimed.compare(
    found,
    f"Verdict: fails. 1024 FLOP/byte is {1024 / found:.0f} times too high: it counts elements, "
    "not bytes, and forgets the "
    "output.",
)

# %% [markdown]
# So a small matmul is memory-bound and a large one isn't:

# %% tags=["hide-input"]
gpus = [Roofline(DEVICES[name], "fp16") for name in ("T4", "A100", "H100", "B200")]
rows = []
for size in (64, 256, 512, 768, 1024, 4096):
    limits = (roof.bound(matmul(size)) for roof in gpus)
    rows.append((size, f"{matmul(size).intensity:.0f}", *limits))
table(("N", "FLOP/byte", *(roof.device.name for roof in gpus)), rows)

# %% [markdown]
# ## Find the slip
#
# Several tutorials say that "vector addition moves eight bytes per element in fp32". **What does the meter report?**

# %% tags=["hide-input"]
addition = predict_first("bytes per element of c = a + b in fp32", unit="B")
addition

# %% tags=["hide-input"]
a, b = torch.randn(2, 10_000)
addition.compare(
    measure(torch.add, a, b).bytes_total / a.numel(),
    "It reads two elements and writes one. The tutorials forgot the write.",
)

# %% [markdown]
# Here's a kernel that really does move eight bytes per element, as those tutorials say. It has forgotten something.
# (Programs, blocks and lanes work as in your first kernel in lesson 00.) **Fix the marked line.** `tl.load` takes the
# addresses to read from.


# %%
@triton.jit
def sum_kernel(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    b = a  # <- here
    tl.store(c_ptr + element, a + b)


left, right = torch.arange(12.0), 100 - torch.arange(12.0) ** 2
puzzle(sum_kernel, 3, left, right, wanted=left + right, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>b = tl.load(b_ptr + element)</code>: the kernel has to load the second input
# too.</details>
#
# <!-- choices
# b = a
#
# b = tl.load(a_ptr + element)
#
# b = tl.load(b_ptr)
#
# b = tl.load(b_ptr + tl.arange(0, BLOCK))
#
# b = tl.load(b_ptr + element)
# -->

# %% [markdown]
# ## Free arithmetic
#
# If a memory-bound kernel spends its time waiting for memory, then doing more arithmetic on the elements it has
# should be nearly free, up to the ridge. The next kernel lets us test that: between one load and one store, it does
# as many multiply-adds per element as you ask for. (It's in Triton, which we'll get to in lesson 03. For now, just
# find the load, the loop and the store.)

# %% tags=["hide-input"]
import inspect

from benchmarks.experiments.lesson_01 import ELEMENTS, chain, chain_kernel

print(inspect.getsource(chain_kernel.fn))

# %% [markdown]
# More steps mean more arithmetic, but the same traffic. And the compiler hasn't optimised any of them away, as you
# can see from the instructions of a single thread, which handles eight elements (`FFMA` is a multiply-add on one of
# them; `LDG.128` and `STG.128` load and store four at a time).

# %% tags=["hide-input"]
from helpers.instruments import compile_for

meta = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
names, rows = ("LDG.128", "FFMA", "STG.128"), []
for steps in (1, 64):
    traffic = measure(chain, torch.rand(5000), steps)
    chosen = {"device": "H200", "STEPS": steps, "BLOCK": 1024}
    made = compile_for(chain_kernel, meta, meta, meta.numel(), **chosen)
    counts = (made.instructions[name] for name in names)
    per_element = f"{traffic.bytes_total / 5000:g} B"
    rows.append((steps, f"{2 * steps / 8:g} FLOP/byte", per_element, *counts))
display(table(("steps", "intensity", "per element", *names), rows))
h200_fp32 = Roofline(DEVICES["H200"], "fp32")
print(f"H200: memory {h200_fp32.device.memory_bandwidth / 1e9:,.0f} GB/s", end="")
print(f", CUDA cores {h200_fp32.peak / 1e12:.0f} TFLOP/s in fp32")

# %% [markdown]
# **How many steps per element can an H200 do before it takes a tenth longer than with one?** You can work it out: a
# step is two operations, an element moves eight bytes, and you know how to find a ridge. (We tried 1, 2, 4, 8 ...
# steps.)

# %% tags=["hide-input"]
free_steps = predict_first("multiply-adds per element, free on an H200", unit="steps")
free_steps

# %% tags=["hide-input"]
recorded_times = h200.experiment("free_flops")
times = {steps: timing.median for steps, timing in recorded_times.items()}
measured_free = max(steps for steps, seconds in times.items() if seconds < 1.1 * times[1])
per_element = h200_fp32.ridge * 8 / 2
print(h200.label_of("free_flops"))
free_steps.compare(
    measured_free,
    f"The ridge on the data sheet, {h200_fp32.ridge:.1f} FLOP/byte, works out at {per_element:.0f} "
    "multiply-adds per element. That's between the last count that was free and the first that "
    "wasn't.",
)

# %% tags=["hide-input"]
from helpers.figures import curves_chart

limit = {
    steps: h200_fp32.time(Work(2 * steps * ELEMENTS, 4 * ELEMENTS, 4 * ELEMENTS)) / times[1]
    for steps in times
}
chart = curves_chart(
    {"measured": {steps: seconds / times[1] for steps, seconds in times.items()}},
    f"{measured_free} steps take the time of one, 512 take {times[512] / times[1]:.1f} times that",
    x=f"multiply-adds on each of {ELEMENTS:,} elements",
    y=f"time on an H200 (1 is that of one step, {1e6 * times[1]:.0f} µs)",
    limit={"data sheet": limit},
    log=True,
)
free_steps.on(chart, "x")

# %% [markdown]
# That's why fusing pays off so often: while the kernel waits for memory anyway, the second operation's arithmetic is
# nearly free.
#
# Try it yourself. This kernel halves twelve elements. Add one line so that it also replaces negative results by 0;
# `tl.maximum` takes two values and returns the larger. Before you run it, how many extra bytes will that line move?


# %%
@triton.jit
def half_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + element)
    y = 0.5 * x
    # <- a line here
    tl.store(y_ptr + element, y)


signed = torch.arange(12.0) - 6
puzzle(half_kernel, 3, signed, wanted=torch.relu(0.5 * signed), BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>y = tl.maximum(y, 0.0)</code>. It moves no extra bytes, because the element
# is already in a register and the output is the same size.</details>
#
# <!-- choices
# # <- a line here
#
# tl.maximum(y, 0.0)
#
# y = tl.maximum(y, 0.0)
#
# y = tl.maximum(x, 0.0)
#
# y = tl.minimum(y, 0.0)
# -->

# %% [markdown]
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two operations do the same FLOPs, but one of them moves half the bytes. Both are memory-bound. Which one is
#    faster, and by how much at best?
# <details><summary>Answer</summary>The one that moves half the bytes, by up to a factor of two, because the time is
# bytes divided by bandwidth.</details>
#
# 2. In which direction does fusing move a point on the roofline chart, and why not straight up?
# <details><summary>Answer</summary>To the right, along the roof, because it does the same FLOPs with fewer bytes.
# Going straight up would mean breaking through the roof at the same intensity.</details>
#
# 3. If an operation is compute-bound on a T4, is it always compute-bound on an H100?
# <details><summary>Answer</summary>No. The H100's ridge is further to the right, so an operation with the same
# intensity may be memory-bound there.</details>
#
# 4. You fuse a ReLU into a large matmul. What do you save, and does it matter?
# <details><summary>Answer</summary>You save writing the result, reading it back, and a launch. But the matmul itself
# is compute-bound, so that's only a small share of the time, as you can see in the explorer.</details>
#
# 5. A fused LayerNorm reads each fp16 element once, writes it once, and does seven operations on it. If we ignore the
#    few bytes of weights, what's its intensity? Replace the dots with your number.

# %%
answer = ...
self_test(answer, 7 / 4, "seven operations per element, divided by two bytes in plus two bytes out")

# %% [markdown]
# ## Now you
#
# In [exercise 01](../exercises/01_roofline.ipynb) you'll work out intensities, ridges and bounds by hand, and find
# the GPU on which an operation becomes compute-bound. Next: [02 Bytes and launches](02_bytes_and_launches.ipynb).

# %% [markdown]
# ## Going further
#
# ### Does a GPU reach its data sheet?
#
# We measured a large copy, a large matmul and the on-chip rates on an H200:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_01 import COUNTS

sheet, held = (
    Roofline(each, "bf16") for each in (DEVICES["H200"], measured_device(DEVICES["H200"]))
)
print(held.device.source)
print(f"memory {held.bandwidth / 1e12:.2f} of {sheet.bandwidth / 1e12:.2f} TB/s")
print(f"tensor cores {held.peak / 1e12:.0f} of {sheet.peak / 1e12:.0f} TFLOP/s")
print(f"ridge at {held.ridge:.0f}, by the data sheet {sheet.ridge:.0f} FLOP/byte")
took_on_chip = h200.experiment("roofs")
print(h200.label_of("roofs"))
for name, unit, rate in (
    ("special functions", "T/s", DEVICES["H200"].special_rate),
    ("shared memory", "TB/s", DEVICES["H200"].shared_bandwidth),
):
    on_chip = COUNTS[name] / took_on_chip[name].median / 1e12
    print(f"{name} {on_chip:.2f} of {rate / 1e12:.2f} {unit}")

# %% [markdown]
# The peak on a data sheet is the number of units times the clock. Tensor cores at full load draw so much power that
# the GPU lowers its clock. (Here matmuls alternated with copies. Lesson 03b shows that after seconds of nothing but
# matmuls, the rate drops further.) DRAM loses some time to refreshing and to switching between reads and writes. The
# on-chip rates nearly reach their peak. (You won't find those two on a data sheet: we calculated them as units times
# clock, from NVIDIA's programming guide.) When the lessons compare GPUs, they use data sheets, and they say so where
# they use a measured roof.
#
# ### Does the ridge move right?
#
# **Claim: each new generation is harder to keep busy, because arithmetic grows faster than memory, so the ridge moves
# right.** Here are the data-centre GPUs since 2017, in order of release, in fp16 and in the narrowest format that
# each one supports:

# %% tags=["hide-input"]
line, rows = ("V100", "A100", "H100", "H200", "B200", "B300"), []
for name in line:
    formats = DEVICES[name].peak_flops
    narrowest = max(formats, key=formats.get)
    narrow = Roofline(DEVICES[name], narrowest).ridge
    rows.append((name, f"{Roofline(DEVICES[name], 'fp16').ridge:.0f}", f"{narrow:.0f}", narrowest))
table(("", "ridge in fp16", "in its narrowest format", "which is"), rows, "FLOP/byte")

# %% [markdown]
# **Verdict: fails in 16 bits since the H100, holds in each generation's narrowest format.** The H200 isn't a new
# generation. It's an H100 with faster memory, which is why its ridge is further left. From the H100 to the B200 the
# fp16 ridge hasn't moved, but fp8 and fp4 have been added, and their ridges are several times further right. <!--
# given 16 bits: fp16 -->
#
# ### Which unit limits attention?
#
# Attention computes an exponential for every score. By the data sheets, 4096 tokens in fp16 would take:

# %% tags=["hide-input"]
(attention,) = OPERATIONS["attention"](4096, 4096, 2).fused
units, rows = ("tensor cores", "special functions", "CUDA cores"), []
for gpu in ("A100", "H100", "B200", "B300"):
    took = attention.times(DEVICES[gpu], "fp16")
    rows.append((gpu, *(f"{1e6 * took[name]:.0f} us" for name in units)))
table(("", *units), rows)

# %% [markdown]
# Tensor cores have grown faster than special function units. On an H100 the two take about the same time. On a B200
# the exponentials take longer than both matmuls, and the B300 has twice as many units for them. Lesson 10 shows what
# FlashAttention does about this.
#
# ### The multiply-adds on the roofline
#
# Here are all the step counts we measured, on the roof or below it:

# %% tags=["hide-input"]
from helpers.figures import Point, roofline_chart

points = [Point(f"{k}", 2 * k / 8, 2 * k * ELEMENTS / times[k]) for k in times]
ratio = times[measured_free] / times[1]
title = f"{measured_free} multiply-adds per element take {ratio:.2f} times the time of one"
text = f"{title}, on an H200, {ELEMENTS:,} elements in fp32"
roofline_chart(h200_fp32, points, title=title, text=text)

# %% [markdown]
# If you have a GPU, try the multiply-adds on yours:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together
from kernels.interpreter import runtime

if runtime.has_gpu():
    numbers = torch.rand(2**26, device="cuda")
    steps = (1, 16, 64, 256)
    print(benchmark_together({k: lambda k=k: chain(numbers, k) for k in steps}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
