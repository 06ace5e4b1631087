# %% [markdown]
# # Welcome: what kernel fusion buys
#
# Two tensors of a million numbers, one addition, one GELU. Written the usual way, in two lines of PyTorch, a fast GPU
# spends nearly all of that time waiting for memory. The same arithmetic, arranged differently, takes little more than
# half as long. **What was it doing the rest of the time?**
#
# After this lesson you can
#
# - say what fusing two kernels removes, and what it does not;
# - read the two lines of the traffic meter;
# - say how many operations your own machine can do while one number arrives from memory;
# - work with the lessons, exercises, checks and recorded measurements of this course.
#
# About 20 minutes. You need Python and a little PyTorch. You do not need a GPU.
#
# Run a cell with **Shift+Enter**. Run them from top to bottom.

# %%
import torch
from torch.nn.functional import gelu

from helpers.lesson import predict_first, predictions, self_test
from helpers.traffic import measure
from kernels import add_gelu, runtime

device = "cuda" if runtime.has_gpu() else "cpu"
n = 1_000_000
a, b = torch.randn(2, n, device=device)

# %% [markdown]
# ## Two kernels, and the bytes between them
#
# A *kernel* is one program that the GPU runs over many numbers at once. PyTorch runs `gelu(a + b)` as two of them: one
# adds, one applies GELU. Numbers wait in the GPU's large memory; a kernel reads them, computes, and writes its result
# back.
#
# Before you look: **how many bytes do the two kernels read and write, together?** An fp32 number takes four bytes.
# Count the reads and the writes of each kernel, and type your answer. No answer is wrong; the difference is the lesson.

# %%
bytes_moved = predict_first("bytes moved by gelu(a + b)", unit="MB")
bytes_moved

# %% [markdown]
# Now ask the **meter**. It watches every operator that PyTorch runs and every load and store of a Triton kernel, and
# adds up the bytes. It needs no GPU: the traffic is decided by the program, not by the chip.

# %%
unfused = measure(lambda: gelu(a + b, approximate="tanh"))
unfused

# %%
bytes_moved.compare(unfused.bytes_total / 1e6)

# %% [markdown]
# Which launch moved what? The sum is written by the first and read straight back by the second. Nobody else ever
# looks at it.

# %%
print(unfused.launch_table())

# %% [markdown]
# ## One kernel
#
# A **fused** kernel does both steps while the numbers are at hand: it keeps the sum in a register, the small fast
# store inside the processor. Here is one. You will write it yourself in lesson 03; for now, only its traffic.

# %%
fused = measure(add_gelu, a, b)
fused

# %%
fewer_bytes = unfused.bytes_total / fused.bytes_total
fewer_launches = unfused.launches - fused.launches
print(f"{fewer_bytes:.2f} times fewer bytes, {fewer_launches} launch fewer")

# %% [markdown]
# The arithmetic is the same and the result is the same, to the rounding of the last digits. Only the round trip of the
# sum is gone.

# %%
difference = add_gelu(a[:4096], b[:4096]) - gelu(a[:4096] + b[:4096], approximate="tanh")
print("no result differs by more than 1e-6:", bool(difference.abs().max() <= 1e-6))

# %% [markdown]
# This picture is the whole idea. Each bar is what crosses between memory and processor.

# %%
from helpers.traffic_chart import traffic_chart

title = f"Fusing moves {fewer_bytes:.2f} times fewer bytes"
traffic_chart({"unfused": unfused, "fused": fused}, title)

# %% [markdown]
# ## Fewer bytes, less time?
#
# If memory is what the GPU waits for, then time should shrink as the bytes do. **How many times faster is the fused
# kernel, on a hundred million numbers?**

# %%
speed_up = predict_first("speed-up from fusing add+GELU, 100M numbers", unit="times")
speed_up

# %% [markdown]
# Below is what a real GPU did. You may have none, so the course carries measurements, each labelled with the GPU, the
# versions and the day it comes from. "Of copy" is the share of the speed at which that GPU copies memory, measured in
# the same run: nothing that reads and writes these bytes can be much faster.

# %%
from helpers.recorded import recorded

h200 = recorded("h200")
print(h200.table("add_gelu", "float32"))

# %%
times = h200.times("add_gelu", (100_000_000,), "float32")
speed_up.compare(times["eager"].median / times["fused"].median)

# %% [markdown]
# Time followed the bytes almost exactly. `torch.compile` fuses these two as well, and reaches the same speed on large
# tensors: this course is about understanding when it can, when it cannot, and what to write then.
#
# On small tensors the picture differs. There the launch itself, not the memory, is the larger part; lesson 02 measures
# where that ends.
#
# With a GPU at hand, the same comparison runs here:

# %% tags=["nbval-ignore-output"]
from helpers.timing import benchmark_together

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
# Two numbers describe a machine for our purpose: how many bytes a second it copies, and how many operations a second it
# does in a matrix product, the work it does best. The course measures or queries both, and calls their ratio the
# **ridge point**: the operations it could do while one byte arrives.

# %% tags=["nbval-ignore-output"]
from helpers.devices import DEVICES, this_device
from helpers.roofline import Roofline

mine = this_device()
print(mine.name)
print(f"memory {mine.memory_bandwidth / 1e9:.0f} GB/s")
print(f"arithmetic {mine.peak_flops['fp32'] / 1e12:.2f} TFLOP/s in fp32")
print(f"ridge point {Roofline(mine, 'fp32').ridge:.0f} FLOP/byte")

# %% [markdown]
# Compare a data-centre GPU. **How many operations could an A100 do on its tensor cores while one byte arrives?**

# %%
ridge = predict_first("ridge point of an A100 in fp16", unit="FLOP/byte")
ridge

# %%
a100 = Roofline(DEVICES["A100"], "fp16")
ridge.compare(a100.ridge)

# %% [markdown]
# And `gelu(a + b)`? It does ten operations on each number and moves many bytes for it. How far below the ridge is
# that?

# %%
from kernels import CATALOGUE

work = CATALOGUE["add_gelu"].work((n,), torch.float32)
idle = a100.ridge / work.intensity
print(f"add+GELU, fused: {work.intensity:.2f} FLOP/byte")
print(f"an A100 could do {idle:.0f} times that")

# %% [markdown]
# So the processor idles, whatever we do to the arithmetic. **Moving fewer bytes is the only way to be faster**, and
# fusing is how. Lesson 01 turns this into a picture that you can move.
#
# ## How this course works
#
# - **Lessons** (the folder `notebooks`) ask first, then measure. Nothing is quoted: each number comes from a cell that
#   you can change and run again.
# - **Without a GPU** your Triton kernels run in an interpreter, step by step. Results are right, the meter counts, and
#   Triton's own compiler tells registers and machine code for any GPU; only time cannot be had, so it is recorded.
#   **With a GPU** the same cells run compiled, and are timed.
# - **Exercises** (the folder `exercises`) give you a formula and an empty function. Their check cells say *pass*,
#   *fail* with a hint, *not attempted* or *error*. Start with
#   [add+GELU](../exercises/03_fused_add_gelu.ipynb) after lesson 03.
# - In a terminal, `fusion check exercises/03_fused_add_gelu.ipynb` grades the notebook that you saved, and
#   `fusion doctor` says what your machine has.
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
# <details><summary>Answer</summary>Which addresses a program reads and writes is decided by the program. The chip
# decides how long that takes.</details>
#
# 3. A kernel reads one tensor and writes one. Can fusing anything into it make it move fewer bytes than that?
# <details><summary>Answer</summary>No: input and output must cross once. Fusing removes what lies between
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
