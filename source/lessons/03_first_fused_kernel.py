# %% [markdown]
# # 03 Your first fused kernel
#
# A GPU runs thousands of threads. A tensor has as many numbers as it has; no power of two, no multiple of anything.
# **Who takes which number, and what do the threads do that have none?** And once your kernel is right: what has the
# compiler made of it, and could it be faster?
#
# After this lesson you can
#
# - write a Triton kernel: program instances, blocks, pointers, masks;
# - find a wrong mask with the meter, even where every value is right;
# - fuse two elementwise operations into one kernel, and predict what that brings at any size;
# - read from the machine code whether loads are wide, and say what makes them narrow.
#
# About 45 minutes. It follows on [02 Bytes and launches](02_bytes_and_launches.ipynb) and leads to
# [exercise 03](../exercises/03_fused_add_gelu.ipynb).

# %%
import torch
import triton
import triton.language as tl
from torch.nn.functional import gelu

from helpers.instruments import measure
from helpers.learning import predict_first, predictions, self_test
from kernels import runtime

device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## Program instances
#
# A Triton kernel is a Python function that many **program instances** run, each on its own **block** of numbers. An
# instance knows one thing that sets it apart: its number, `tl.program_id(0)`. From that it works out which elements
# are its own. Let three instances sign what is theirs:


# %%
@triton.jit
def sign_kernel(out_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    element = program * BLOCK + tl.arange(0, BLOCK)  # a block of numbers, not one
    tl.store(out_ptr + element, program)


out = torch.empty(12, dtype=torch.int32, device=device)
sign_kernel[(3,)](out, BLOCK=4)
print(out.tolist())

# %% [markdown]
# Read it again, line by line:
#
# - `sign_kernel[(3,)](...)` launches three instances. They run in any order, many at a time.
# - `tl.arange(0, BLOCK)` is the block 0, 1, 2, 3: the numbers of its places, its **lanes**. Everything in Triton is
#   done on whole blocks. A block's length is a power of two, known when the kernel is compiled: `tl.constexpr`.
# - A tensor arrives as the address of its first element. `out_ptr + element` is a block of addresses.
# - `tl.store` writes a block, `tl.load` reads one.
#
# There is no `for` over elements, and no thread: which thread takes which element of the block is the compiler's
# business. You will see its choice below.
#
# **How many instances does a tensor of a million numbers need, in blocks of 1024?**

# %%
instances = predict_first("instances for 1,000,000 numbers in blocks of 1024", unit="")
instances

# %%
instances.compare(triton.cdiv(1_000_000, 1024))

# %% [markdown]
# Rounded up, or the last numbers would have nobody. `triton.cdiv` does that.
#
# ## A kernel with a mistake
#
# Addition, the obvious way:


# %%
@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    b = tl.load(b_ptr + element)
    tl.store(y_ptr + element, a + b)


def launch(kernel, a, b, block=4):
    y = torch.empty_like(a)
    kernel[(triton.cdiv(a.numel(), block),)](a, b, y, a.numel(), BLOCK=block)
    return y


# %% [markdown]
# Twelve numbers in blocks of four: three instances, and nothing to complain of.

# %%
a, b = torch.randn(12, device=device), torch.randn(12, device=device)
twelve = measure(launch, add_kernel, a, b)
print("right:", torch.equal(twelve.result, a + b))
twelve

# %% [markdown]
# Now ten numbers. Still three instances. **How many elements does the last one touch that are not there?**

# %%
beyond = predict_first("elements beyond the end, 10 numbers in blocks of 4", unit="")
beyond

# %%
a, b = torch.randn(10, device=device), torch.randn(10, device=device)
ten = measure(launch, add_kernel, a, b)
print("right:", torch.equal(ten.result, a + b))

# %% [markdown]
# Right! A test of values is content. The meter is not: it knows where each tensor ends.

# %%
ten

# %%
beyond.compare(ten.hazards[0].elements)

# %% [markdown]
# (An instance has three numbers, as a launch may be laid out in up to three dimensions. Ours has one.)
#
# On a GPU this kernel reads what lies behind `a` and `b`, and *overwrites what lies behind `y`*: some other tensor of
# your model. No message, no crash, most days.
#
# ## The mask
#
# A **mask** says which lanes of a block may load and store. Somebody writes this one. **Is it right?**


# %%
@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element <= elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists)
    tl.store(y_ptr + element, a + b, mask=exists)


measure(launch, add_kernel, a, b)

# %% [markdown]
# One element too many: they are numbered from 0 to `elements - 1`. Put right, nothing is left to report, and the
# bytes are those of ten numbers, not of twelve:


# %%
@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists)
    tl.store(y_ptr + element, a + b, mask=exists)


measure(launch, add_kernel, a, b)

# %% [markdown]
# ## Two kernels, then one
#
# GELU in its exact form is $y = \tfrac{s}{2}\,(1 + \mathrm{erf}(s/\sqrt{2}))$. As a kernel of its own, after the
# addition:


# %%
@triton.jit
def gelu_kernel(s_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(s_ptr + element, mask=exists)
    y = 0.5 * s * (1 + tl.erf(s * 0.7071067811865476))
    tl.store(y_ptr + element, y, mask=exists)


def two_kernels(a, b, block=1024):
    s = launch(add_kernel, a, b, block)
    y = torch.empty_like(s)
    gelu_kernel[(triton.cdiv(s.numel(), block),)](s, y, s.numel(), BLOCK=block)
    return y


# %%
a, b = torch.randn(2, 8000, device=device)
unfused = measure(two_kernels, a, b)
unfused

# %% [markdown]
# Look at the two kernels. The first ends by storing the sum; the second begins by loading it. Take both lines out,
# put what is left together, and you have fused them. **How many bytes an element will the fused kernel move?**

# %%
per_element = predict_first("bytes an element of the fused kernel, fp32", unit="B")
per_element


# %%
@triton.jit
def fused_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists)
    s = a + b
    y = 0.5 * s * (1 + tl.erf(s * 0.7071067811865476))
    tl.store(y_ptr + element, y, mask=exists)


fused = measure(launch, fused_kernel, a, b, 1024)
fused

# %%
close = torch.allclose(fused.result, gelu(a + b), rtol=1e-5, atol=1e-6)
print("agrees with PyTorch:", close)
per_element.compare(fused.bytes_total / a.numel())

# %%
from helpers.figures import traffic_chart

times_fewer = unfused.bytes_total / fused.bytes_total
title = f"One kernel moves {times_fewer:.2f} times fewer bytes than two"
traffic_chart({"unfused": unfused, "fused": fused}, title)

# %% [markdown]
# (`y_ptr` in the upper bar is the sum: the meter calls it by the parameter through which it was first seen.)
#
# ## One million, ten million, a hundred million
#
# **Claim: fusing add and GELU, on a million numbers in fp32, makes it 1.86 times faster and cuts the traffic by 40 %:
# reads from 12 to 8 MB, writes from 8 to 4 MB.** The traffic you can test:

# %%
million = 1_000_000
scale = million / a.numel()
for name, traffic in (("unfused", unfused), ("fused", fused)):
    read, written = scale * traffic.bytes_read, scale * traffic.bytes_written
    print(f"{name:8} {read / 1e6:4.1f} MB read, {written / 1e6:4.1f} MB written")
print(f"{1 - fused.bytes_total / unfused.bytes_total:.0%} less")

# %% [markdown]
# It holds, to the byte. **And the time? How many times faster do you expect, if time follows the bytes?**

# %%
speed_up = predict_first("speed-up from fusing add+GELU, 1M numbers", unit="times")
speed_up

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
print(h200.table("add_gelu", "float32"))

# %%
times = h200.times("add_gelu", (2**20,), "float32")
speed_up.compare(times["eager"].median / times["fused"].median)

# %% [markdown]
# The claim of 1.86 does not hold on this GPU. Nor could it by bytes alone: they allow what the chart above says, and
# the measured speed-ups come close to that. On a million numbers the bytes are not all: starting kernels takes a good
# part of the time, and takes it twice where there are two; on the other side the sum may still lie in the **cache**
# when GELU reads it back: a small, faster memory between the large one and the processor, which keeps what was
# touched last. (The recorded kernel is the course's own, with GELU's tanh form, which you will write in the exercise.
# Its arithmetic costs nothing either way.)
#
# With a GPU at hand, your kernel, here:

# %% tags=["nbval-ignore-output"]
from functools import partial

from helpers.instruments import benchmark_together

if runtime.has_gpu():
    for n in (2**20, 10_000_000, 100_000_000):
        x, y = torch.randn(2, n, device="cuda")
        eager = partial(lambda x, y: gelu(x + y), x, y)
        one = partial(launch, fused_kernel, x, y, 1024)
        print(f"{n:,}:", benchmark_together({"eager": eager, "fused": one}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## What the compiler made of it
#
# Triton's compiler and NVIDIA's assembler run here, without a GPU. They share a block out among *threads*, and those
# step together in **warps** of 32. The values of a block live in **registers**, 32 bits each, of which a thread has a
# limited number. **Claim: fusing takes add+GELU from 24 to 32 registers.** How many does the fused kernel need on an
# A100, in blocks of 1024 on 4 warps? (That is eight elements a thread. Addresses, and what is being worked on, take
# registers, too.)

# %%
registers = predict_first("registers a thread of the fused kernel, A100", unit="")
registers

# %%
from helpers.instruments import compile_for

x = torch.empty(2**20, device="meta")  # a tensor without memory: nothing will run
n = x.numel()
compiled = compile_for(fused_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
compiled

# %%
alone = {
    "add": compile_for(add_kernel, x, x, x, n, device="A100", BLOCK=1024),
    "GELU": compile_for(gelu_kernel, x, x, n, device="A100", BLOCK=1024),
    "fused": compiled,
}
print({name: each.registers for name, each in alone.items()})
registers.compare(compiled.registers)

# %% [markdown]
# (Spills come up at the end of this lesson; what the other lines mean, lesson 07 explains.)
#
# The fused kernel needs no more than the hungrier of the two: the sum's register is free again as soon as GELU has
# used it. So the claim's second number comes out here as well; its first does not, whichever of the two kernels you
# ask, and both change with the block, as you will see.
#
# ## Wide loads
#
# Each of 128 threads has eight elements of a block of 1024. **How many load instructions does a thread execute for
# the two inputs?**

# %%
load_count = predict_first("load instructions a thread, for a and b", unit="")
load_count

# %%
compiled.sass_view("load", "store")

# %%
load_count.compare(len(compiled.sass_view("load").instructions))

# %% [markdown]
# This is the machine code, which NVIDIA calls **SASS**, with the line of the kernel that asked for it. Names with an
# R are registers, `@!P0` is the mask at work: a thread to which it does not apply skips the instruction.
#
# `LDG.E.128`: a load of 128 bits, four numbers at once. CUDA programmers write `float4` for that. In Triton the
# compiler does it when it can prove two things: that neighbouring elements belong to one thread, which it arranges
# itself, and that the address is a multiple of 16 bytes. That it learns at the launch, from the pointers it is given:
# the **divisibility hint**.
#
# So take the hint away. Give it a tensor that begins one number later: `x[1:]`, a view that PyTorch users make
# without a thought. Or a length that is no multiple of 16, so that the mask may end in the middle of four numbers.
# **How many loads now?**

# %%
narrow_count = predict_first("load instructions a thread, tensors one number on", unit="")
narrow_count

# %%
later = torch.empty(2**20 + 1, device="meta")[1:]
variants = {
    "aligned": (x, n),
    "one number on": (later, n),
    "odd length": (x, n + 1),
}
loads = {}
for name, (tensor, length) in variants.items():
    arguments = (tensor, tensor, tensor, length)
    made = compile_for(fused_kernel, *arguments, device="A100", BLOCK=1024)
    loads[name] = len(made.sass_view("load").instructions)
    widths = [each for each in made.instructions if each.startswith(("LDG", "STG"))]
    print(f"{name:14} {loads[name]:2} loads a thread; {' and '.join(widths)}")

# %%
narrow_count.compare(loads["one number on"])

# %% [markdown]
# Four times the instructions, for the same bytes. Does that cost time? The memory delivers **sectors** of 32 bytes,
# however they are asked for. Here is what the 32 threads of a warp, its lanes, fetch with one instruction:
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %%
from helpers.figures import WarpLoad, warp_chart

warp_chart(
    {
        "4 bytes a lane": WarpLoad(step=4, width=4),
        "16 bytes a lane": WarpLoad(step=16, width=16),
        "one number on": WarpLoad(step=4, width=4, offset=4),
        "every second number": WarpLoad(step=8, width=4),
    },
    "Neighbours use nearly all that is fetched, strides do not",
)

# %% [markdown]
# A wide load asks for four times as much at once, and wastes as little. Beginning one number later touches one sector
# more. What really wastes is a **stride**: lanes that take every second number still fetch whole sectors. **How many
# sectors does a warp fetch when it takes every eighth?**

# %%
sectors = predict_first("sectors a warp fetches, every 8th fp32 number", unit="")
sectors


# %%
@triton.jit
def stride_kernel(x_ptr, y_ptr, STRIDE: tl.constexpr):
    lane = tl.arange(0, 32)
    tl.store(y_ptr + lane, tl.load(x_ptr + lane * STRIDE))


def take_every(x, stride):
    y = torch.empty(32, device=x.device)
    stride_kernel[(1,)](x, y, STRIDE=stride)
    return y


# %%
numbers = torch.randn(1024, device=device)
print("stride  bytes read  sectors")
for stride in (1, 2, 4, 8, 16):
    traffic = measure(take_every, numbers, stride)
    print(f"{stride:6} {traffic.bytes_read:8} B {traffic.sectors_read:8}")

# %%
sectors.compare(measure(take_every, numbers, 8).sectors_read)

# %% [markdown]
# The bytes asked for are the same; the sectors, which the memory must deliver, are not. Move it yourself. Find out:
#
# 1. From which stride on does each lane have a sector of its own, in fp32? In fp16?
# 2. What does an offset cost, at most? At which offsets nothing?
# 3. Stride 8 with one number a lane, then with four (the next lane begins eight times as far on as a lane is wide):
#    how much is used of what is fetched, and why does it differ?

# %%
from helpers.figures import warp_explorer

explorer = warp_explorer(dtype="fp32", stride=2, offset=1)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 8 in fp32, from 16 in fp16: as many numbers as a sector
# holds. 2. One sector more at most, and none where the offset is a whole number of sectors: 8 or 16 in fp32. 3. An
# eighth, then half: four neighbours fill half of the sector that one alone would leave nearly empty.</details>
#
# **Claim: wide loads make add+GELU another 1.2 to 1.3 times faster.** You have the means to judge: the bytes and the
# sectors are the same, wide or narrow; what differs is how many instructions ask for them, and how much each thread
# has asked for while it waits. That is worth something only where asking is what limits the kernel. On the recorded
# H200:

# %%
for n, widths in h200.experiment("load_widths").items():
    gain = widths["4 bytes"].median / widths["16 bytes"].median
    print(f"{n:12,} numbers: wide loads are {gain:.2f} times as fast")

# %% [markdown]
# So the claim fails there: enough threads with narrow loads keep this memory as busy as fewer with wide ones do.

# %% [markdown]
# ## Block size and warps
#
# Two numbers are yours to choose: `BLOCK`, and `num_warps`, the warps (of 32 threads) that share a block. What
# follows from them:

# %%
print(" BLOCK  warps  a thread  widest load  registers  active warps")
for block, warps in ((128, 4), (256, 4), (512, 4), (1024, 4), (4096, 4), (8192, 4)):
    chosen = {"BLOCK": block, "num_warps": warps}
    made = compile_for(fused_kernel, x, x, x, n, device="H200", **chosen)
    widest = max(int(name[4:]) for name in made.instructions if name.startswith("LDG."))
    occupied = f"{made.occupancy().fraction:.0%}"
    a_thread = block // (32 * warps)
    load = f"{widest} bit"
    print(f"{block:6} {warps:6} {a_thread:9} {load:>12} {made.registers:10} {occupied:>13}")

# %% [markdown]
# Few elements a thread: narrow loads. Many: more registers, so fewer warps fit on the GPU at a time. (Lesson 07 is
# about that.) **By what factor do you expect the worst of these choices to be slower than the best?** Here is what an
# H200 did with many of them, on the course's own add+GELU:

# %%
worst = predict_first("slowest over fastest block, 256 to 8192, 4 warps", unit="times")
worst

# %%
sweep = h200.experiment("occupancy_sweep")
print(f"{h200.label}, us\n BLOCK " + "".join(f"{warps:>5} warps" for warps in (2, 4, 8)))
blocks = (256, 512, 1024, 2048, 4096, 8192, 16384)
for block in blocks:
    row = (sweep[f"{block}x{warps}"].median * 1e6 for warps in (2, 4, 8))
    print(f"{block:6} " + "".join(f"{each:11.0f}" for each in row))

# %%
on_four = [sweep[f"{block}x4"].median for block in blocks[:-1]]
worst.compare(max(on_four) / min(on_four))

# %% [markdown]
# Over a wide range it does not matter: the memory is the limit, and any of these keeps it busy. The edges do matter.
# A block of 256 on 8 warps gives each thread a single element: it asks for too little at a time. And the other end,
# 16384 on 4 warps?

# %%
edge = compile_for(fused_kernel, x, x, x, n, device="H200", BLOCK=16384, num_warps=4)
print(f"{edge.registers} registers a thread, {edge.spill_bytes} bytes of spills")

# %% [markdown]
# A thread cannot have more registers than that. What does not fit is **spilled** to memory, and the kernel moves
# bytes that nobody asked for. So choose a block that gives each thread one or two wide loads, and look elsewhere for
# speed.
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel has no mask, and your tensors all have 4096 × 4096 numbers, in blocks of 1024. Is it wrong?
# <details><summary>Answer</summary>Not for these. It will be on the first tensor whose length is no multiple of the
# block, and values alone may not show it.</details>
#
# 2. Only the store is masked. What can go wrong?
# <details><summary>Answer</summary>The loads still read beyond the end: values nobody stores, but the address may not
# be yours to read. The meter reports an out-of-bounds read.</details>
#
# 3. Why does fusing not need the registers of both kernels added up?
# <details><summary>Answer</summary>What the first part no longer needs makes room for the second. Only values that live
# at the same time need registers of their own.</details>
#
# 4. A slice `x[:, 1:]` of a matrix comes into your kernel, and it gets slower though it moves the same bytes. What
#    would you look at?
# <details><summary>Answer</summary>The widths of the loads in the SASS: the address is no longer a multiple of 16
# bytes. And the sectors: each row begins in the middle of one.</details>
#
# 5. `y = relu(a * b + c)` in one kernel, fp16. How many bytes an element does it move? Put your number in place of
#    the dots.

# %%
answer = ...
halves = torch.rand(4, 1000, dtype=torch.float16)
correct = halves.nbytes / halves[0].numel()
self_test(answer, correct, "three inputs and one output cross; two bytes a number")

# %% [markdown]
# ## Now you
#
# You have built the kernel for one dtype, contiguous tensors and the exact GELU.
# [Exercise 03](../exercises/03_fused_add_gelu.ipynb) asks for the whole: GELU's tanh form, half-precision inputs, any
# strides, no elements at all, and loads as wide as they can be. Next:
# [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb), where a kernel has a backward pass.
