# %% [markdown]
# # 01 The roofline: what limits a kernel
#
# A ReLU does one comparison per element. An A100 can do hundreds of thousands of billions of operations per second.
# **What share of that does a ReLU reach?** And if you give it ten times the arithmetic, how much longer does it take?
#
# After this lesson you can
#
# - compute the *arithmetic intensity* of an operation by counting operations and bytes;
# - find a GPU's *ridge point* and decide which operations are memory-bound and which compute-bound on it;
# - predict the minimum time of an operation, and what fusing can and cannot change;
# - find the slip in a published intensity.
#
# About 35 minutes. It follows on [00 Welcome](00_welcome.ipynb) and leads to
# [exercise 01](../exercises/01_roofline.ipynb).

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
# Two numbers describe an operation, whatever runs it: its floating-point operations (FLOP), and the bytes that must
# cross between memory and processor. Their ratio is its
# [arithmetic intensity](../docs/glossary.md#arithmetic-intensity), in FLOP per byte. The bytes here are the minimum: each
# input once, each output once, as if no cache held anything.
#
# Each +, −, ×, ÷, max, `exp` or root on one element is one FLOP. (Their costs differ; we come to that.) Take a ReLU over
# a tensor in fp16. It is `max(x, 0)`, one operation per element; two bytes in, two bytes out.

# %%
n = 4096 * 4096
relu = Work(flops=n, bytes_read=2 * n, bytes_written=2 * n)
print(f"ReLU in fp16: {relu.intensity} FLOP/byte")

# %% [markdown]
# Is the count of bytes right? Ask the meter, on a smaller tensor.

# %%
x = torch.randn(1000, 1000, dtype=torch.float16)
measure(torch.relu, x)

# %% [markdown]
# ## The ridge point
#
# A GPU has two limits: its memory moves so much per second, its units compute so much per second. The first allows
# `bandwidth × intensity` FLOP/s, the second its peak. The lower one rules. They meet at the
# [ridge point](../docs/glossary.md#ridge-point): left of it an operation is
# [memory-bound](../docs/glossary.md#memory-bound), right of it [compute-bound](../docs/glossary.md#compute-bound).

# %% tags=["hide-input"]
a100 = Roofline(DEVICES["A100"], "fp16")
bandwidth = a100.device.memory_bandwidth
print(f"{a100.device.model}: memory {bandwidth / 1e9:,.0f} GB/s")
print(f"arithmetic in fp16 {a100.peak / 1e12:.0f} TFLOP/s")
print(f"ridge point {a100.ridge:.0f} FLOP/byte    (given by: {a100.device.source})")

# %% [markdown]
# Now answer the first question. **What share of its peak can an A100 reach on a ReLU, at best?**

# %% tags=["hide-input"]
share = predict_first("share of an A100's fp16 peak that ReLU reaches", unit="%")
share

# %% tags=["hide-input"]
import math

orders = math.log10(a100.ridge / relu.intensity)
share.compare(
    100 * a100.attainable(relu.intensity) / a100.peak,
    f"ReLU is {orders:.1f} orders of magnitude (powers of ten) under the ridge: the peak could "
    "be a hundred times lower, "
    "and ten times the arithmetic would take no longer.",
)

# %% [markdown]
# In truth the peak is lower: it is that of the tensor cores, which do only matmuls. The *CUDA cores*, which do the ReLU,
# have a ridge of their own. And exponentials, reciprocals and roots go to a third kind, the *special function units*,
# fewer still.

# %% tags=["hide-input"]
rows = []
for units in ("fp16", "fp32", "special functions"):
    roof = roofs(DEVICES["A100"])[units]
    rows.append((units, f"{roof.peak / 1e12:.1f} TFLOP/s", f"{roof.ridge:.1f} FLOP/byte"))
table(("A100", "peak", "ridge at"), rows)

# %% [markdown]
# (`fp16` are the tensor cores, `fp32` the CUDA cores; each result of a special function counts as one FLOP.) The ReLU is
# far under each of the ridges. **Look at the lit bar**: it is the slope of the roofline. Divide it by one of the last
# three bars to get that unit's ridge.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100", lit="memory")

# %% [markdown]
# ## A table of the usual suspects
#
# ReLU, vector add, GELU, add+GELU, LayerNorm, softmax, matmul+bias+ReLU, a convolution with batch norm and ReLU,
# attention: **how many of these nine are memory-bound on an A100, at 4096 rows of 4096 columns, when fused?** (Later
# lessons explain each. The [matmul](../docs/glossary.md#matmul) multiplies *rows* × *columns* by *columns* × *columns*. The convolution is 3 × 3, over
# *rows* pixels, with *columns* channels in and out. Attention compares each row with every other.)

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
    "Operations that touch each element a few times are memory-bound, by far. Only those that "
    "reuse each element many times "
    "can be compute-bound: a matmul, a convolution, attention.",
)

# %% [markdown]
# ## The picture
#
# This is the [roofline](../docs/glossary.md#roofline). Intensity along the bottom, performance upwards, both logarithmic. The thick slope is memory's limit, the flat lines are
# peaks: the tensor cores' at the top, then the CUDA cores', then the special functions'. The thin slope is that of
# [shared memory](../docs/glossary.md#shared-memory), a small memory inside each processor, for the bytes that cross
# there (lesson 08).
#
# An operation is on its own roof: no kernel can lift it above. **Fusing moves it to the right**, because the same
# operations need fewer bytes. "Unfused" means one launch per step of its formula (but add+GELU with PyTorch's own GELU,
# which is one launch).
#
# The chart starts with one roof and one operation. Choose the next step under *show*: the compute roof, then what
# fusing moves, then everything, where you can add operations. Move the sliders, with the mouse or the arrow keys. (If
# you guessed, the height that you gave the ReLU is marked.) Find out:
#
# 1. Which operations does *columns* move, and which stay?
# 2. At how many columns does the matmul cross the ridge? Where on a T4, where on an H100?
# 3. Attention over few rows: on which side is it? Over many, unfused and fused?

# %% tags=["hide-input"]
from helpers.figures import RooflineExplorer

few = ("ReLU", "add+GELU", "matmul+bias+ReLU", "attention")
explorer = RooflineExplorer(device="A100", operations=few, show="memory roof")
share.on(explorer, "y", at=lambda percent: percent / 100 * a100.peak)

# %% [markdown]
# <details><summary>What you should see</summary>1. The matmul: it uses each element of its inputs as often as there are
# columns. Each other operation uses an element equally often, whatever the width. 2. and 3. Between two stops of the
# slider: the cell below finds where. Over few rows attention is memory-bound; unfused it stays so over many, because its
# scores, one per pair of rows, go out and back. (On a T4 only libraries reach the tensor cores' roof: Triton does not use
# them on GPUs that old.)</details>


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
# A matmul of two N × N matrices does `2 N³` operations. A number you will find quoted for its intensity is simply
# "N FLOP per byte". **Claim: a 1024 × 1024 product in fp16 has an intensity of 1024 FLOP/byte.** Test it: three
# matrices cross, two in, one out, two bytes per element. **What do you get?**

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
# Small matmuls are memory-bound, large ones are not:

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
# "Vector addition moves eight bytes per element in fp32" is in more than one tutorial. **What does the meter count?**

# %% tags=["hide-input"]
addition = predict_first("bytes per element of c = a + b in fp32", unit="B")
addition

# %% tags=["hide-input"]
a, b = torch.randn(2, 10_000)
addition.compare(
    measure(torch.add, a, b).bytes_total / a.numel(),
    "Two reads and one write: the result must be written as well.",
)

# %% [markdown]
# Here is a kernel that does move eight bytes per element, as the tutorials have it. (Programs, blocks and lanes are those
# of your first line in lesson 00.) It has forgotten something. **Change the marked line.** `tl.load` takes the addresses
# to read.


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
# <details><summary>Answer</summary><code>b = tl.load(b_ptr + element)</code>: the second input must cross as
# well.</details>
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
# ## Arithmetic that costs nothing
#
# If a memory-bound kernel waits for memory, more arithmetic on elements that it already has should be nearly free, up to
# the ridge. This kernel does as many multiply-adds on each element as you ask, between one load and one store. (It is
# written in Triton, which lesson 03 teaches; look only for the load, the loop, and the store.)

# %% tags=["hide-input"]
import inspect

from benchmarks.experiments.lesson_01 import ELEMENTS, chain, chain_kernel

print(inspect.getsource(chain_kernel.fn))

# %% [markdown]
# The steps change the arithmetic and not the traffic. Nor has the compiler removed any: these are the instructions of one
# thread, which has eight elements (`FFMA` is a multiply-add on one of them; `LDG.128` and `STG.128` load and store four).

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
# **Up to how many steps on each element does an H200 take less than a tenth longer than with one?** Work it out: each
# step is two operations, each element moves eight bytes, and you know how to find a ridge. (1, 2, 4, 8 ... steps were
# tried.)

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
    f"The data sheet's ridge, {h200_fp32.ridge:.1f} FLOP/byte, is {per_element:.0f} "
    "multiply-adds per element: between the "
    "last size that is free and the first that is not.",
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
# This is why fusing pays so often: the arithmetic of the second operation runs while the first one waits.
#
# Try it yourself: this kernel halves twelve elements. Make it halve them *and* replace negative ones by 0, in one more
# line: `tl.maximum` takes two values and returns the larger. Before you run it: how many bytes does the line cost?


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
# <details><summary>Answer</summary><code>y = tl.maximum(y, 0.0)</code>. No bytes: the element is in a register, and the
# result is as large as before.</details>
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
# 1. Two operations have the same FLOPs; one moves half the bytes. Both are memory-bound. Which is faster, and by how
#    much at best?
# <details><summary>Answer</summary>The one with half the bytes, by a factor of two: time is bytes over
# bandwidth.</details>
#
# 2. Where does fusing move a point on the roofline chart, and why not straight up?
# <details><summary>Answer</summary>To the right, along the roof: same FLOPs, fewer bytes. Straight up would mean
# beating the roof at the same intensity; fusing changes the intensity.</details>
#
# 3. An operation is compute-bound on a T4. Must it be compute-bound on an H100?
# <details><summary>Answer</summary>No. The H100's ridge is further right, so the same intensity can be memory-bound
# there.</details>
#
# 4. You fuse a ReLU into a large matmul. What is saved, and does it matter?
# <details><summary>Answer</summary>A write and a read of the result, and a launch. The matmul itself is compute-bound,
# so the saving is a small share of the time: see it in the explorer.</details>
#
# 5. LayerNorm, fused, reads each fp16 element once, writes it once, and does seven operations on it. What is its
#    intensity, leaving out the few bytes of weights? Replace the dots with your number.

# %%
answer = ...
self_test(answer, 7 / 4, "seven operations per element, over two bytes in and two bytes out")

# %% [markdown]
# ## Now you
#
# [Exercise 01](../exercises/01_roofline.ipynb) has you find intensities, ridges and bounds by hand, and the GPU on
# which an operation becomes compute-bound. Next: [02 Bytes and launches](02_bytes_and_launches.ipynb).

# %% [markdown]
# ## Going further
#
# ### Does a GPU reach its data sheet?
#
# On an H200 the course has measured a large copy and a large matmul, and on-chip rates:

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
# A data sheet's peak is units times clock. Tensor cores at full load draw so much power that the clock falls (here matmuls
# alternated with copies; after seconds of matmuls alone, lesson 03b shows, the rate is lower still), and DRAM must
# refresh and turn around between reads and writes. On-chip rates nearly reach their peak. (No data sheet lists these two:
# they are units times clock, from NVIDIA's programming guide.) The lessons compare GPUs by data sheets, and name a
# measured roof where they use one.
#
# ### Does the ridge move right?
#
# **Claim: each new generation is harder to keep busy, because arithmetic grows faster than memory, so the ridge moves
# right.** Data-centre GPUs since 2017, in the order they came, in fp16 and in the narrowest format of each:

# %% tags=["hide-input"]
line, rows = ("V100", "A100", "H100", "H200", "B200", "B300"), []
for name in line:
    formats = DEVICES[name].peak_flops
    narrowest = max(formats, key=formats.get)
    narrow = Roofline(DEVICES[name], narrowest).ridge
    rows.append((name, f"{Roofline(DEVICES[name], 'fp16').ridge:.0f}", f"{narrow:.0f}", narrowest))
table(("", "ridge in fp16", "in its narrowest format", "which is"), rows, "FLOP/byte")

# %% [markdown]
# **Verdict: fails in 16 bits since the H100, holds in each generation's narrowest format.** An H200 is not a new
# generation but an H100 with faster memory, and its ridge is further left. From H100 to B200 the fp16 ridge stays where
# it was; but fp8 and fp4 came, and their ridges are several times further right. <!-- given 16 bits: fp16 -->
#
# ### Which unit limits attention?
#
# Attention takes an exponential for each score. By the data sheets, at 4096 tokens in fp16:

# %% tags=["hide-input"]
(attention,) = OPERATIONS["attention"](4096, 4096, 2).fused
units, rows = ("tensor cores", "special functions", "CUDA cores"), []
for gpu in ("A100", "H100", "B200", "B300"):
    took = attention.times(DEVICES[gpu], "fp16")
    rows.append((gpu, *(f"{1e6 * took[name]:.0f} us" for name in units)))
table(("", *units), rows)

# %% [markdown]
# The tensor cores grew faster than the special function units. On an H100 the two are nearly level, on a B200 the
# exponentials take longer than both matmuls, and the B300 has twice as many units for them. Lesson 10 shows
# FlashAttention's answer.
#
# ### The multiply-adds on the roofline
#
# Every number of steps that was measured, on the roof or under it:

# %% tags=["hide-input"]
from helpers.figures import Point, roofline_chart

points = [Point(f"{k}", 2 * k / 8, 2 * k * ELEMENTS / times[k]) for k in times]
ratio = times[measured_free] / times[1]
title = f"{measured_free} multiply-adds per element take {ratio:.2f} times the time of one"
text = f"{title}, on an H200, {ELEMENTS:,} elements in fp32"
roofline_chart(h200_fp32, points, title=title, text=text)

# %% [markdown]
# With a GPU, try the multiply-adds on yours:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together
from kernels.interpreter import runtime

if runtime.has_gpu():
    numbers = torch.rand(2**26, device="cuda")
    steps = (1, 16, 64, 256)
    print(benchmark_together({k: lambda k=k: chain(numbers, k) for k in steps}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
