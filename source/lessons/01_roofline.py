# %% [markdown]
# # 01 The roofline: what limits a kernel
#
# A ReLU does one comparison per element. An A100 can do hundreds of trillions of operations per second. **How much of
# that does a ReLU use?** And if you gave it ten times the arithmetic, how much longer would it take?
#
# After this lesson you can
#
# - compute the *arithmetic intensity* of an operation by counting operations and bytes;
# - find a GPU's *ridge point* and decide which operations are memory-bound on it and which are compute-bound;
# - predict an operation's minimum time, and know what fusing can and can't change about it;
# - check an intensity that someone else quotes.
#
# About 40 minutes. It builds on [00 Welcome](00_welcome.ipynb). The exercise is [01](../exercises/01_roofline.ipynb).

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
# Here are three matmuls on an A100. While the tensor cores compute, memory delivers their data. Press **Play** and
# watch which of the two finishes last:

# %% tags=["hide-input"]
from helpers.figures import two_limits_animation

two_limits_animation()

# %% [markdown]
# ## Arithmetic intensity
#
# Two numbers describe an operation on any hardware: how many floating-point operations (FLOP) it does, and how many
# bytes have to move between memory and the processor. Divide the first by the second and you get its [arithmetic
# intensity](../docs/glossary.md#arithmetic-intensity), in FLOP per byte. Here we count the minimum number of bytes: a
# kernel reads each input once and writes each output once, as if the chip could hold all of a kernel's data but kept
# nothing between kernels.
#
# We count each +, −, ×, ÷, max, `exp` or square root on one element as one FLOP. (They don't all cost the same. We'll
# get to that. For attention we count its two matmuls alone, as everyone does.) Take a ReLU in fp16, for example. It
# computes `max(x, 0)`, which is one operation per element, and it reads two bytes and writes two.

# %%
n = 4096 * 4096
relu = Work(flops=n, bytes_read=2 * n, bytes_written=2 * n)
print(f"ReLU in fp16: {relu.intensity} FLOP/byte")

# %% [markdown]
# Does the meter agree about the bytes? Let's try it on a smaller tensor.

# %%
x = torch.randn(1000, 1000, dtype=torch.float16)
measure(torch.relu, x)

# %% [markdown]
# ## The ridge point
#
# A GPU has two limits: how many bytes per second its memory can move, and how many operations per second its units can
# do. The first caps an operation at `bandwidth × intensity` FLOP/s, and the second caps it at the peak. You get the
# lower of the two. They meet at the [ridge point](../docs/glossary.md#ridge-point). Left of it, an operation is
# [memory-bound](../docs/glossary.md#memory-bound). Right of it, it's
# [compute-bound](../docs/glossary.md#compute-bound).

# %% tags=["hide-input"]
a100 = Roofline(DEVICES["A100"], "fp16")
bandwidth = a100.device.memory_bandwidth
print(f"{a100.device.model}: memory {bandwidth / 1e9:,.0f} GB/s")
print(f"arithmetic in fp16 {a100.peak / 1e12:.0f} TFLOP/s")
print(f"ridge point {a100.ridge:.0f} FLOP/byte    (source: {a100.device.source})")

# %% [markdown]
# Now you can answer the first question. Take the fp16 peak above. **What share of its peak can an A100 reach on a ReLU,
# at best?**

# %% tags=["hide-input"]
share = predict_first("share of an A100's fp16 peak that ReLU reaches", unit="%")
share

# %% tags=["hide-input"]
import math

orders = math.log10(a100.ridge / relu.intensity)
share.compare(
    100 * a100.attainable(relu.intensity) / a100.peak,
    f"ReLU is {orders:.1f} orders of magnitude (powers of ten) below the ridge. A peak a hundred "
    "times lower wouldn't slow it down, and neither would ten times the arithmetic.",
)

# %% [markdown]
# Strictly speaking, that peak doesn't apply, because it belongs to the tensor cores, and they only do matmuls. A ReLU
# runs on the *CUDA cores*, which have a lower peak and so a different ridge. (Their peak counts a multiply-add as two
# operations. A maximum is one, so a ReLU could reach half of it at best.) Exponentials, reciprocals and roots run on a
# third kind of unit, the *special function units*, and there are even fewer of those.

# %% tags=["hide-input"]
rows = []
for units in ("fp16", "fp32", "special functions"):
    roof = roofs(DEVICES["A100"])[units]
    rows.append((units, f"{roof.peak / 1e12:.1f} TFLOP/s", f"{roof.ridge:.1f} FLOP/byte"))
table(("A100", "peak", "ridge at"), rows)

# %% [markdown]
# (`fp16` means the tensor cores here and `fp32` the CUDA cores. We count each result of a special function as one
# FLOP.) ReLU is far below every one of these ridges. **Look at the lit bar**: it shows how long memory takes, and it's
# far longer than the bars for the compute units.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("A100", lit="memory")

# %% [markdown]
# ## Nine common operations
#
# Here are nine operations: ReLU, vector add, GELU, add+GELU, LayerNorm, softmax, matmul+bias+ReLU, a convolution with
# batch norm and ReLU, and attention. Take 4096 rows of 4096 columns in fp16, and run each operation as one fused
# kernel. **How many of these nine are memory-bound on an A100?** (Later lessons explain each of them, so for now go by
# how many times each one could reuse an element. The [matmul](../docs/glossary.md#matmul) multiplies *rows* × *columns* by
# *columns* × *columns*. The convolution is 3 × 3, over *rows* pixels, with *columns* channels in and out. Attention
# compares each row with every other row, in 64 heads of 64 columns each.)

# %% tags=["hide-input"]
memory_bound = predict_first("memory-bound on an A100, out of nine fused operations", unit="")
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
    "Operations that use each element only a few times are memory-bound, and it isn't even "
    "close. Only those that reuse each element many times can be compute-bound: a matmul, a "
    "convolution, attention.",
)

# %% [markdown]
# ## The picture
#
# This is the [roofline](../docs/glossary.md#roofline). Intensity is on the horizontal axis and performance on the
# vertical one, both logarithmic. The thick slope is the memory limit. The flat lines are the peaks of the tensor cores
# (at the top), the CUDA cores and the special function units. The thin slope belongs to [shared
# memory](../docs/glossary.md#shared-memory), a small memory inside each processor, and applies to the bytes that move
# there (lesson 08).
#
# Each operation sits on the roof that limits it. A kernel whose data comes from DRAM can't get above that roof. (One
# that finds its data in a cache can.) **Fusing moves it to the right** instead, because the same arithmetic then needs
# fewer bytes. "Unfused" means one launch for each step of the formula (except that add+GELU uses PyTorch's own GELU,
# which is a single launch).
#
# The chart starts with one roof and one operation. Use *show* to add the rest one step at a time: the compute roof,
# then the points that fusing moves, then everything. (At the last step, the notebook lets you choose among nine
# operations.) Move the sliders with the mouse or the arrow keys.<span class="lab"> (If you made a guess for ReLU, it's
# marked.)</span> See if you can answer these:
#
# 1. Which operations does *columns* move, and which stay where they are?
# 2. How many columns does the matmul need to cross the ridge? How many on a T4, and on an H100?
# 3. Is attention memory-bound or compute-bound with few rows? With many rows, unfused and fused?

# %% tags=["hide-input"]
from helpers.figures import RooflineExplorer

few = ("ReLU", "add+GELU", "matmul+bias+ReLU", "attention")
explorer = RooflineExplorer(device="A100", operations=few, show="memory roof")
share.on(explorer, "y", at=lambda percent: percent / 100 * a100.peak)

# %% [markdown]
# <details><summary>What you should see</summary>1. The matmul and the convolution move, because they use each input
# element once per output column or channel. All the others use an element the same number of times, however wide the
# tensor is. 2. and 3. The crossings fall between slider positions, so the cell below works them out. With few rows,
# attention is memory-bound. With many rows, it's still memory-bound if it's unfused, because its scores, one for each
# pair of rows, make a round trip through memory. (On a T4, only libraries can reach the tensor cores' roof, since
# Triton doesn't use tensor cores on GPUs that old.)</details>


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
table(("smallest compute-bound size", "a matmul of 4096 rows", "attention"), rows)

# %% [markdown]
# ## From small to large: the matmul
#
# A matmul of two N × N matrices does `2 N³` operations. **Claim: the intensity is simply N, so a 1024 × 1024 product in
# fp16 has 1024 FLOP/byte.** Three matrices move, two in and one out, at two bytes per element. **What do you get?**

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
# Small matmuls are memory-bound, and large ones aren't:

# %% tags=["hide-input"]
gpus = [Roofline(DEVICES[name], "fp16") for name in ("T4", "A100", "H100", "B200")]
rows = []
for size in (64, 256, 512, 768, 1024, 4096):
    limits = (roof.bound(matmul(size)) for roof in gpus)
    rows.append((size, f"{matmul(size).intensity:.0f}", *limits))
table(("N", "FLOP/byte", *(roof.device.name for roof in gpus)), rows)

# %% [markdown]
# ## Vector addition
#
# **Claim: adding two fp32 vectors moves eight bytes per element.** **What does the meter count?**

# %% tags=["hide-input"]
addition = predict_first("bytes per element of c = a + b in fp32", unit="B")
addition

# %% tags=["hide-input"]
a, b = torch.randn(2, 10_000)
addition.compare(
    measure(torch.add, a, b).bytes_total / a.numel(),
    "Verdict: fails. Two reads and one write: the claim forgets the result.",
)

# %% [markdown]
# This kernel really does move eight bytes per element, as claimed. (The programs, blocks and positions are the ones you
# know from your first line of Triton in lesson 00.) But something's missing. **Fix the marked line.** `tl.load` takes
# the addresses to read from.


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
# <details><summary>Answer</summary><code>b = tl.load(b_ptr + element)</code>: you have to read the second input
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
# If a kernel is memory-bound, more arithmetic on the elements it already has should be almost free, until you reach the
# ridge. The kernel below loads each element, does as many multiply-adds on it as you ask for, and stores it. (You'll
# learn Triton in lesson 03. For now, just spot the load, the loop and the store.)

# %% tags=["hide-input"]
import inspect

from benchmarks.experiments.lesson_01 import ELEMENTS, chain, chain_kernel

print(inspect.getsource(chain_kernel.fn))

# %% [markdown]
# The number of steps changes the arithmetic but not the traffic. And the compiler hasn't optimised any of the steps
# away. Below are the instructions that one thread executes for its eight elements (`FFMA` does one multiply-add on one
# of them; `LDG.128` and `STG.128` load and store four).

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
# We tried 1, 2, 4, 8 ... steps per element on an H200. **What's the largest number of steps that still takes less
# than a tenth longer than one step?** You can work it out: each step is two operations, each element moves eight bytes,
# and you know how to find a ridge.

# %% tags=["hide-input"]
free_steps = predict_first("free multiply-adds per element on an H200", unit="steps")
free_steps

# %% tags=["hide-input"]
recorded_times = h200.experiment("free_flops")
times = {steps: timing.median for steps, timing in recorded_times.items()}
measured_free = max(steps for steps, seconds in times.items() if seconds < 1.1 * times[1])
per_element = h200_fp32.ridge * 8 / 2
print(h200.label_of("free_flops"))
free_steps.compare(
    measured_free,
    f"By the data sheet, the ridge is at {h200_fp32.ridge:.1f} FLOP/byte, which is "
    f"{per_element:.0f} multiply-adds per element: between the last step count that is free "
    "and the first that isn't.",
)

# %% tags=["hide-input"]
from helpers.figures import curves_chart

limit = {
    steps: h200_fp32.time(Work(2 * steps * ELEMENTS, 4 * ELEMENTS, 4 * ELEMENTS)) / times[1]
    for steps in times
}
chart = curves_chart(
    {"measured": {steps: seconds / times[1] for steps, seconds in times.items()}},
    f"{measured_free} steps take as long as one, 512 take {times[512] / times[1]:.1f}x as long",
    x=f"multiply-adds on each of {ELEMENTS:,} elements",
    y=f"time on an H200 (1: one step, {1e6 * times[1]:.0f} µs)",
    limit={"data sheet": limit},
    log=True,
)
free_steps.on(chart, "x")

# %% [markdown]
# That's why fusing pays off so often: the second operation's arithmetic runs while the kernel is waiting for
# memory anyway.
#
# Try it yourself. This kernel halves twelve elements. Add one line so that it halves them *and* replaces negative
# results with 0. You'll need `tl.maximum`, which takes two values and returns the larger one. Before you run it, think
# about how many bytes your line adds.


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
# <details><summary>Answer</summary><code>y = tl.maximum(y, 0.0)</code>. It costs no bytes, because the value is already
# in a register, and you still store one result per element.</details>
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
# 1. Two operations do the same number of FLOPs, but one of them moves half as many bytes. Both are memory-bound. Which
#    is faster, and by how much at best?
# <details><summary>Answer</summary>The one that moves half the bytes, by a factor of two. Their time is bytes divided
# by bandwidth.</details>
#
# 2. Which way does fusing move a point on the roofline chart, and why not straight up?
# <details><summary>Answer</summary>To the right, along the roof, because the FLOPs stay the same and there are fewer
# bytes. Straight up would mean going through the roof at the same intensity. Fusing changes the intensity
# instead.</details>
#
# 3. An operation is compute-bound on a T4. Does it have to be compute-bound on an H100 too?
# <details><summary>Answer</summary>No. The H100's ridge is further to the right, so the same intensity can be
# memory-bound there.</details>
#
# 4. You fuse a ReLU into a large matmul. What do you save, and does it matter?
# <details><summary>Answer</summary>You save a write and a read of the result, and a launch. But the matmul is
# compute-bound, so that's only a small share of the time, as you can see in the explorer.</details>
#
# 5. A fused kernel reads two fp32 tensors, writes a third of the same size, and does eighteen operations per element.
#    What is its intensity? Replace the dots with your number.

# %%
answer = ...
self_test(answer, 18 / 12, "eighteen operations per element, over eight bytes in and four out")

# %% [markdown]
# ## Now you
#
# In [Exercise 01](../exercises/01_roofline.ipynb) you'll work out intensities, ridges and bounds by hand, and find the
# GPU on which an operation becomes compute-bound. Next: [02 Bytes and launches](02_bytes_and_launches.ipynb).

# %% [markdown]
# ## Going further
#
# ### Does a GPU reach its data-sheet peaks?
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
print(f"ridge: {held.ridge:.0f} FLOP/byte measured, {sheet.ridge:.0f} per the data sheet")
took_on_chip = h200.experiment("roofs")
print(h200.label_of("roofs"))
for name, unit, rate in (
    ("special functions", "T/s", DEVICES["H200"].special_rate),
    ("shared memory", "TB/s", DEVICES["H200"].shared_bandwidth),
):
    on_chip = COUNTS[name] / took_on_chip[name].median / 1e12
    print(f"{name} {on_chip:.2f} of {rate / 1e12:.2f} {unit}")

# %% [markdown]
# A data sheet's peak is the number of units times the clock. But tensor cores at full load draw so much power that the
# clock usually has to drop (we didn't record it). (These matmuls alternated with copies. In lesson 03b you'll see that
# after seconds of back-to-back matmuls, the rate is lower still.) DRAM also loses time, because it has to refresh its
# cells and switch between reads and writes. The on-chip rates come close to their peaks. (The peaks for those two units
# aren't in any data sheet. We computed them as units times clock, from NVIDIA's programming guide.) Whenever we compare
# GPUs, we use their data sheets, except where a number isn't published. If a roof was measured instead, it's labelled
# as such.
#
# ### Does the ridge move right?
#
# **Claim: each new generation is harder to keep busy, because arithmetic grows faster than memory, so the ridge moves
# right.** Here are the data-centre GPUs since 2017, in order of release, in fp16 and in the narrowest floating-point
# format each one supports:

# %% tags=["hide-input"]
line, rows = ("V100", "A100", "H100", "H200", "B200", "B300"), []
for name in line:
    formats = DEVICES[name].peak_flops
    narrowest = max(formats, key=formats.get)
    narrow = Roofline(DEVICES[name], narrowest).ridge
    rows.append((name, f"{Roofline(DEVICES[name], 'fp16').ridge:.0f}", f"{narrow:.0f}", narrowest))
table(("", "ridge in fp16", "ridge in its narrowest format", "that format"), rows, "FLOP/byte")

# %% [markdown]
# **Verdict: no longer true of 16-bit formats since the H100, but still true of each generation's narrowest format.** An
# H200 isn't a new generation, and neither is a B300: the H200 is an H100 with faster memory, so its ridge is further to
# the left. From the H100 to the B200, the fp16 ridge hardly moved. But newer GPUs added fp8 and then fp4, and in those
# formats the ridge is several times further right than an A100's.
# <!-- given 16 bits: fp16 -->
#
# ### Which unit limits attention?
#
# Attention computes one exponential per score. Here's what the peaks predict for 4096 tokens in fp16, with 64 heads of
# 64 columns:

# %% tags=["hide-input"]
(attention,) = OPERATIONS["attention"](4096, 4096, 2).fused
units, rows = ("tensor cores", "special functions", "CUDA cores"), []
for gpu in ("A100", "H100", "B200", "B300"):
    took = attention.times(DEVICES[gpu], "fp16")
    rows.append((gpu, *(f"{1e6 * took[name]:.0f} us" for name in units)))
table(("", *units), rows)

# %% [markdown]
# Tensor cores have sped up faster than special function units. On an H100 the two take almost the same time, but on a
# B200 the exponentials take longer than both matmuls together. The B300 doubles the rate of exponentials. In lesson 10
# you'll see how FlashAttention deals with this.
#
# ### The multiply-adds on the roofline
#
# Here are all the step counts we measured, on the roof or below it:

# %% tags=["hide-input"]
from helpers.figures import Point, roofline_chart

points = [Point(f"{k}", 2 * k / 8, 2 * k * ELEMENTS / times[k]) for k in times]
ratio = times[measured_free] / times[1]
title = f"{measured_free} multiply-adds per element take {ratio:.2f}x as long as one"
text = f"{title}, on an H200, {ELEMENTS:,} elements in fp32"
roofline_chart(h200_fp32, points, title=title, text=text)

# %% [markdown]
# If you have a GPU, try the multiply-adds on it:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together
from kernels.interpreter import runtime

if runtime.has_gpu():
    numbers = torch.rand(2**26, device="cuda")
    steps = (1, 16, 64, 256)
    print(benchmark_together({k: lambda k=k: chain(numbers, k) for k in steps}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
