# %% [markdown]
# # 01 The roofline: what limits a kernel
#
# A ReLU does one comparison a number. An A100 can do hundreds of thousands of billions of operations a second. **What
# share of that will a ReLU reach: half of it, a tenth, a thousandth?** And if you give it ten times the arithmetic,
# how much longer will it take?
#
# After this lesson you can
#
# - work out the *arithmetic intensity* of an operation by counting operations and bytes;
# - find a GPU's *ridge point* and say which operations are memory-bound and which compute-bound on it;
# - predict the least time an operation can take, and what fusing can and cannot change;
# - find the slip in a published intensity.
#
# About 35 minutes. It follows on [00 Welcome](00_welcome.ipynb) and leads to
# [exercise 01](../exercises/01_roofline.ipynb).

# %%
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
    roofs,
    table,
)
from helpers.learning import predict_first, predictions, puzzle, self_test

# %% [markdown]
# ## Arithmetic intensity
#
# Two numbers describe an operation, whatever runs it: the floating-point operations it does (FLOP), and the bytes
# that must cross between memory and processor. Their ratio is its **arithmetic intensity**, in FLOP per byte. The
# bytes here are the least: each input once, each output once, as if nothing lay in a cache.
#
# How operations are counted: each +, −, ×, ÷, max, `exp` or root on one number is one FLOP. (They do not all cost
# alike; we come to that.) Take a ReLU over a tensor
# in fp16. It is `max(x, 0)`, one operation a number; two bytes in, two bytes out.

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
# A GPU has two limits: its memory moves so many bytes a second, its units do so many operations a second. The first
# allows `bandwidth × intensity` FLOP/s, the second its peak. The lower one rules. Where they meet lies the **ridge
# point**: left of it an operation is *memory-bound*, right of it *compute-bound*.

# %%
a100 = Roofline(DEVICES["A100"], "fp16")
bandwidth = a100.device.memory_bandwidth
print(f"{a100.device.model}: memory {bandwidth / 1e9:,.0f} GB/s")
print(f"arithmetic in fp16 {a100.peak / 1e12:.0f} TFLOP/s")
print(f"ridge point {a100.ridge:.0f} FLOP/byte    (given by: {a100.device.source})")

# %% [markdown]
# Now answer the first question. **What share of its peak can an A100 reach on a ReLU, at best?**

# %%
share = predict_first("share of an A100's fp16 peak that ReLU reaches", unit="%")
share

# %%
reached = a100.attainable(relu.intensity) / a100.peak
share.compare(100 * reached)

# %%
import math

orders = math.log10(a100.ridge / relu.intensity)
print(f"ReLU lies {orders:.1f} orders of magnitude under the ridge")

# %% [markdown]
# Three orders of magnitude (powers of ten), to the nearest. The peak could be a hundred times lower and a ReLU would
# not notice. In truth it is lower: the peak is that of the tensor cores, which do matrix products only. The *CUDA
# cores*, which do the ReLU, have a ridge of their own. And exponentials, reciprocals and roots go to a third kind,
# the *special function units*, fewer still.

# %%
rows = []
for units in ("fp16", "fp32", "special functions"):
    roof = roofs(DEVICES["A100"])[units]
    rows.append((units, f"{roof.peak / 1e12:.1f} TFLOP/s", f"{roof.ridge:.1f} FLOP/byte"))
table(("A100", "peak", "ridge at"), rows)

# %% [markdown]
# (`fp16` are the tensor cores, `fp32` the CUDA cores; of the special functions, each result counts as one FLOP.) The
# ReLU lies far under each of the ridges. **Look at the lit bar**: it is the slope of the roofline, and each ridge is
# that bar over one of the last three, turned into operations a byte.

# %%
from helpers.figures import gpu_picture

gpu_picture("A100", lit="memory")

# %% [markdown]
# And does a GPU hold what its data sheet says? On an H200 the course has measured a large copy and a large matrix
# product:

# %%
from benchmarks.experiments.lesson_01 import COUNTS
from helpers.instruments import recorded

sheet, held = (
    Roofline(each, "bf16") for each in (DEVICES["H200"], measured_device(DEVICES["H200"]))
)
print(held.device.source)
print(f"memory {held.bandwidth / 1e12:.2f} of {sheet.bandwidth / 1e12:.2f} TB/s")
print(f"tensor cores {held.peak / 1e12:.0f} of {sheet.peak / 1e12:.0f} TFLOP/s")
print(f"ridge at {held.ridge:.0f}, by the data sheet {sheet.ridge:.0f} FLOP/byte")
took_on_chip = recorded("h200").experiment("roofs")
print(recorded("h200").label_of("roofs"))
for name, unit, rate in (
    ("special functions", "T/s", DEVICES["H200"].special_rate),
    ("shared memory", "TB/s", DEVICES["H200"].shared_bandwidth),
):
    print(
        f"{name} {COUNTS[name] / took_on_chip[name].median / 1e12:.2f} of {rate / 1e12:.2f} {unit}"
    )

# %% [markdown]
# A data sheet's peak is units times clock; the tensor cores at full load draw so much power that the clock falls
# (this product took turns with copies; after seconds of nothing but products, lesson 03b shows, the rate is lower
# still), and DRAM must refresh and turn around between reads and writes. What stays on the chip nearly reaches its
# peak: special functions, and *shared memory*, a small store inside each processor. (No data sheet tells these two:
# they are units times clock, from NVIDIA's programming guide.) The lessons take data sheets to compare GPUs, and say
# so where a measured roof is meant.
#
# ## The picture
#
# Intensity along the bottom, performance upwards, both logarithmic. The thick slope is the memory's limit, the flat
# lines are peaks: the tensor cores' above, then the CUDA cores', then the special functions'. The thin slope is that
# of shared memory, for the bytes that cross there; matrix products need it, and lesson 08 comes back to it. Dashed,
# where there is one: the roof that was measured.
#
# An operation sits on its own roof: no kernel can lift it above. **Fusing moves it to the right**, because the same
# operations need fewer bytes. "Unfused" means written out in the single steps of its formula, each a launch (but
# add+GELU with PyTorch's own GELU, which is one launch). "matmul" is a matrix product of x, *rows* × *columns*, and
# weights, *columns* × *columns*. Attention is over as many tokens as there are *rows*; each has *columns* numbers, in
# heads of 64.
#
# Move the sliders, with the mouse or with the arrow keys. (What you said of the ReLU is marked, if you did: the height
# that you gave it.) Find out:
#
# 1. Which operations does *columns* move, and which stay?
# 2. At how many columns does the matrix product cross the ridge? Where on a T4, where on an H100?
# 3. Attention over few rows: on which side is it? Over many, unfused and fused?

# %%
from helpers.figures import RooflineExplorer

explorer = RooflineExplorer(device="A100", dtype="fp16", rows=4096, columns=4096)
share.on(explorer, "y", at=lambda percent: percent / 100 * a100.peak)

# %% [markdown]
# <details><summary>What is to be found</summary>1. The matrix product: a number of its inputs is used as often as
# there are columns. The others use each number as often, however many there are. 2. and 3. Between two stops of the
# slider: the cell below finds where. Over few rows attention is memory-bound; unfused it stays so over many, as its
# scores go out and back. (On a T4 the tensor cores' roof is a library's: Triton does not use them on GPUs that
# old.)</details>


# %%
def crossing(compute_bound) -> int:
    """The least size from which on it is compute-bound."""
    return next(size for size in range(1, 5000) if compute_bound(size))


def limited_by(name, device, rows, columns):
    return cost(OPERATIONS[name](rows, columns, 2).fused, DEVICES[device], "fp16").bound


rows = []
for gpu in ("A100", "T4", "H100"):
    columns = crossing(lambda c, gpu=gpu: limited_by("matmul+bias+ReLU", gpu, 4096, c) == "compute")
    tokens = crossing(lambda r, gpu=gpu: limited_by("attention", gpu, r, 4096) == "compute")
    rows.append((gpu, f"{columns} columns", f"{tokens} rows"))
table(("compute-bound", "a product of 4096 rows from", "attention from"), rows)

# %% [markdown]
# ## A table of the usual suspects
#
# ReLU, vector add, GELU, add+GELU, LayerNorm, softmax, matmul+bias+ReLU, a convolution with batch norm and ReLU,
# attention: **how many of these nine are memory-bound on an A100, at 4096 rows of 4096 columns, when fused?**
# (The convolution is 3 × 3, over *rows* pixels, with *columns* channels in and as many out.)

# %%
memory_bound = predict_first("of nine operations, fused, memory-bound on an A100", unit="")
memory_bound

# %%
bounds, rows = [], []
for name, versions_of in OPERATIONS.items():
    versions = versions_of(4096, 4096, 2)
    unfused = cost(versions.unfused, a100.device, "fp16").work.intensity
    fused = cost(versions.fused, a100.device, "fp16")
    bounds.append(fused.bound)
    rows.append(
        (
            name,
            f"{unfused:.2f}",
            f"{fused.work.intensity:.2f}",
            f"{fused.bound}-bound: {fused.unit}",
        )
    )
table(("", "unfused", "fused", "on an A100"), rows, "FLOP/byte in fp16, 4096 x 4096")

# %%
memory_bound.compare(bounds.count("memory"))

# %% [markdown]
# Everything that touches each number a few times is memory-bound, by far. Only what reuses each number many times, a
# matrix product, a convolution, attention, can be compute-bound.
#
# Compute-bound by which units? Attention takes an exponential for each score, a number of its softmax. **From an A100
# to a B200, which units limit it: the tensor cores on all of these GPUs?**

# %%
(attention,) = OPERATIONS["attention"](4096, 4096, 2).fused
units, rows = ("tensor cores", "special functions", "CUDA cores"), []
for gpu in ("A100", "H100", "B200", "B300"):
    took = attention.times(DEVICES[gpu], "fp16")
    rows.append((gpu, *(f"{1e6 * took[name]:.0f} us" for name in units)))
table(("", *units), rows)

# %% [markdown]
# The tensor cores grew faster than the special function units. On an H100 the two are nearly level, on a B200 the
# exponentials take longer than both products, and the B300 has twice as many units for them. Lesson 10 shows what
# FlashAttention does about it.
#
# ## From small to large: the matrix product
#
# A product of two N × N matrices does `2 N³` operations. A number you will find quoted for its intensity is simply
# "N FLOP per byte". **Claim: a 1024 × 1024 product in fp16 has an intensity of 1024 FLOP/byte.** Test it: three
# matrices cross, two in, one out, two bytes a number. **What do you get?**

# %%
claimed = predict_first("intensity of a 1024 x 1024 product in fp16", unit="FLOP/byte")
claimed


# %%
def product(size: int, itemsize: int = 2) -> Work:
    return Work(
        flops=2 * size**3,
        bytes_read=2 * size**2 * itemsize,
        bytes_written=size**2 * itemsize,
    )


found = product(1024).intensity
print(f"claimed 1024 FLOP/byte, {1024 / found:.0f} times too many")
claimed.compare(found)

# %% [markdown]
# **Verdict: fails.** It counted numbers, not bytes, and forgot the output. Small products are memory-bound, large ones
# are not:

# %%
gpus = [Roofline(DEVICES[name], "fp16") for name in ("T4", "A100", "H100", "B200")]
rows = []
for size in (64, 128, 256, 512, 1024, 4096, 16384):
    limits = (roof.bound(product(size)) for roof in gpus)
    rows.append((size, f"{product(size).intensity:.0f}", *limits))
table(("N", "FLOP/byte", *(roof.device.name for roof in gpus)), rows)

# %% [markdown]
# **Claim: each new generation is harder to keep busy, because arithmetic grows faster than memory, so the ridge moves
# right.** The GPUs of data centres, from 2017 on, in the order they came:

# %%
from itertools import pairwise

line = ("V100", "A100", "H100", "H200", "B200")
ridges = [Roofline(DEVICES[name], "fp16").ridge for name in line]
print(
    ", ".join(f"{name} {ridge:.0f}" for name, ridge in zip(line, ridges, strict=True)), "FLOP/byte"
)
steps_right = sum(after > before for before, after in pairwise(ridges))
print(f"the ridge moved right in {steps_right} of {len(line) - 1} steps")

# %% [markdown]
# **Verdict: fails as a rule.** The first two steps hold. An H200 is no new generation but an H100 with faster memory,
# and its ridge lies further left; leave it out, and from H100 to B200, a generation, the ridge stays where it was.
# What can be said: on an H100 a product must be larger to be compute-bound than on an A100.

# %% [markdown]
# ## Find the slip
#
# "Vector addition moves eight bytes an element in fp32" stands in more than one tutorial. **What does the meter
# say?**

# %%
addition = predict_first("bytes per element of c = a + b in fp32", unit="B")
addition

# %%
a, b = torch.randn(2, 10_000)
addition.compare(measure(torch.add, a, b).bytes_total / a.numel())

# %% [markdown]
# Two reads and one write. The result must be written, too.

# %% [markdown]
# Here is a kernel that does move eight bytes an element, as the tutorials have it. (Programs, blocks and lanes are
# those of your first line in lesson 00.) **What has it forgotten? Change the marked line.** `tl.load` takes where to
# read.


# %%
@triton.jit
def sum_kernel(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    b = a  # <- here
    tl.store(c_ptr + element, a + b)


left, right = torch.arange(12.0), torch.arange(12.0) / 4
puzzle(sum_kernel, 3, left, right, wanted=left + right, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>b = tl.load(b_ptr + element)</code>: the second input must cross,
# too.</details>

# %% [markdown]
# ## Arithmetic that costs nothing
#
# If a memory-bound kernel waits for memory, more arithmetic on numbers already at hand should be nearly free, up to
# the ridge. Here is a kernel that does as many multiply-adds on each number as you ask, between one load and one
# store. It is written in Triton, which lesson 03 teaches; here it is enough to see the load, the loop, and the store.

# %%
import inspect

from benchmarks.experiments.lesson_01 import ELEMENTS, chain, chain_kernel

print(inspect.getsource(chain_kernel.fn))

# %% [markdown]
# The steps change the arithmetic and not the traffic:

# %%
for steps in (1, 64):
    traffic = measure(chain, torch.rand(5000), steps)
    print(f"{steps:3} steps: {traffic}, {2 * steps / 8:g} FLOP/byte")

# %% [markdown]
# Has the compiler perhaps left out some of the steps, or loads? It says what a thread does, with eight numbers
# (`FFMA` is a multiply-add on one of them, `LDG.128` and `STG.128` load and store four):

# %%
from helpers.instruments import compile_for

meta = torch.empty(2**20, device="meta")  # no contents: nothing will run
names, rows = ("LDG.128", "FFMA", "STG.128"), []
for steps in (1, 64):
    chosen = {"device": "H200", "STEPS": steps, "BLOCK": 1024}
    made = compile_for(chain_kernel, meta, meta, meta.numel(), **chosen)
    rows.append((steps, *(made.instructions[name] for name in names)))
table(("steps", *names), rows)

# %% [markdown]
# All are there. Now for the time, on an H200; this is what it has:

# %%
h200_fp32 = Roofline(DEVICES["H200"], "fp32")
print(f"memory {h200_fp32.device.memory_bandwidth / 1e9:,.0f} GB/s")
print(f"CUDA cores {h200_fp32.peak / 1e12:.0f} TFLOP/s in fp32")

# %% [markdown]
# **Up to how many steps on each number takes it less than a tenth longer than with one?** Work it out: each step is
# two operations, each number moves eight bytes, and you know how to find a ridge. (1, 2, 4, 8 ... steps have been
# tried.)

# %%
free_steps = predict_first("multiply-adds per number, free on an H200", unit="steps")
free_steps

# %%
h200 = recorded("h200")
recorded_times = h200.experiment("free_flops")
times = {steps: timing.median for steps, timing in recorded_times.items()}
measured_free = max(steps for steps, seconds in times.items() if seconds < 1.1 * times[1])
print(h200.label_of("free_flops"))
free_steps.compare(measured_free)

# %%
from helpers.figures import curves_chart

least = {
    steps: h200_fp32.time(Work(2 * steps * ELEMENTS, 4 * ELEMENTS, 4 * ELEMENTS)) / times[1]
    for steps in times
}
chart = curves_chart(
    {"measured": {steps: seconds / times[1] for steps, seconds in times.items()}},
    f"{measured_free} steps take as long as one, 512 take {times[512] / times[1]:.1f} times as "
    "long",
    x=f"multiply-adds on each of {ELEMENTS:,} numbers",
    y=f"time on an H200 (1 is that of one step, {1e6 * times[1]:.0f} µs)",
    limit={"data sheet": least},
    log=True,
)
free_steps.on(chart, "x")

# %% [markdown]
# The roofline's own answer, from the data sheet's peak and bandwidth:

# %%
per_number = h200_fp32.ridge * 8 / 2
print(f"ridge {h200_fp32.ridge:.1f} FLOP/byte = {per_number:.0f} multiply-adds per number")

# %% [markdown]
# It lies between the two sizes tried, the last that is free and the first that is not.
#
# And drawn: every number of steps that was measured, on the roof or under it.

# %%
from helpers.figures import Point, roofline_chart

points = [Point(f"{k}", 2 * k / 8, 2 * k * ELEMENTS / times[k]) for k in times]
gain = times[measured_free] / times[1]
title = f"{measured_free} multiply-adds a number take {gain:.2f} times as long as one"
roofline_chart(
    h200_fp32,
    points,
    title=title,
    text=f"{title}, on an H200, {ELEMENTS:,} numbers in fp32",
)

# %% [markdown]
# This is why fusing pays so often: the arithmetic of the second operation is done in time that the first one spent
# waiting.

# %% [markdown]
# Try it with your own hands: this kernel halves twelve numbers. Make it halve them *and* put 0 in place of what is
# negative, in one more line: `tl.maximum` takes two values and gives the larger. **Which bytes does that cost?**


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
# <details><summary>Answer</summary><code>y = tl.maximum(y, 0.0)</code>. None: the number is at hand, and what is
# stored is as large as before.</details>

# %% [markdown]
# With a GPU at hand, try the multiply-adds on yours:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together
from kernels.interpreter import runtime

if runtime.has_gpu():
    numbers = torch.rand(2**26, device="cuda")
    steps = (1, 16, 64, 256)
    print(benchmark_together({k: lambda k=k: chain(numbers, k) for k in steps}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## What you said, what was found

# %%
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
# <details><summary>Answer</summary>No. The H100's ridge lies further right, so the same intensity can be
# memory-bound there.</details>
#
# 4. You fuse a ReLU into a large matrix product. What is saved, and does it matter?
# <details><summary>Answer</summary>A write and a read of the result, and a launch. The product itself is
# compute-bound, so the saving is a small share of the time: see it in the explorer.</details>
#
# 5. LayerNorm, fused, reads each fp16 number once, writes it once, and does seven operations on it. What is its
#    intensity, leaving out the few bytes of weights? Put your number in place of the dots.

# %%
answer = ...
self_test(answer, 7 / 4, "seven operations a number, over two bytes in and two bytes out")

# %% [markdown]
# ## Now you
#
# [Exercise 01](../exercises/01_roofline.ipynb) has you find intensities, ridges and bounds by hand, and the GPU on
# which an operation becomes compute-bound. Next: [02 Bytes and launches](02_bytes_and_launches.ipynb).
