# %% [markdown]
# # 03 Your first fused kernel
#
# A GPU runs thousands of threads. A tensor has as many numbers as it has; no power of two, no multiple of anything.
# **Who takes which number, and what do the threads do that have none?**
#
# After this lesson you can
#
# - write a Triton kernel: program instances, blocks, pointers, masks, strides, casts;
# - find a wrong mask with the meter, even where every value is right, and a race;
# - fuse two elementwise operations into one kernel, and predict what that brings at any size.
#
# About 40 minutes. It follows on [02 Bytes and launches](02_bytes_and_launches.ipynb) and leads to
# [exercise 03](../exercises/03_fused_add_gelu.ipynb).

# %%
import torch
import triton
import triton.language as tl
from torch.nn.functional import gelu

from helpers.figures import watch
from helpers.instruments import measure, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## Program instances
#
# A Triton kernel is a Python function that many **program instances** run, each on its own **block** of numbers. An
# instance knows one thing that sets it apart: its number, `tl.program_id(0)`. From that it works out which elements
# are its own. Let three instances sign what is theirs. `watch` runs a launch and then lets you walk through it: press
# **Play**, or step with the arrow keys.
#
# A block's places are its **lanes**. Memory is read and written in **sectors** of 32 bytes; how many of them a step
# touches is said below the picture. `program` appears twice: as the one number that it is, and repeated on every lane,
# as it is stored.
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->


# %%
@triton.jit
def sign_kernel(out_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    element = program * BLOCK + tl.arange(0, BLOCK)  # a block of numbers, not one
    tl.store(out_ptr + element, program)


out = torch.empty(12, dtype=torch.int32, device=device)
watch(sign_kernel[(3,)], out, BLOCK=4)

# %% [markdown]
# Read it again, line by line:
#
# - `sign_kernel[(3,)](...)` launches three instances. They run in any order, many at a time.
# - `tl.arange(0, BLOCK)` is the block 0, 1, 2, 3: the numbers of its lanes. Everything in Triton is done on whole
#   blocks. A block's length is a power of two, known when the kernel is compiled: `tl.constexpr`.
# - A tensor arrives as the address of its first element. `out_ptr + element` is a block of addresses.
# - `tl.store` writes a block, `tl.load` reads one.
#
# There is no `for` over elements, and no thread: which thread takes which element of the block is the compiler's
# business. [Lesson 03b](03b_what_the_compiler_made.ipynb) shows its choice.
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
def unmasked_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
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
a12, b12 = torch.randn(2, 12, device=device)
twelve = measure(launch, unmasked_kernel, a12, b12)
print("right:", torch.equal(twelve.result, a12 + b12))
twelve

# %% [markdown]
# Now ten numbers. Still three instances. **How many elements does the last one touch that are not there?**

# %%
beyond = predict_first("elements beyond the end, 10 numbers in blocks of 4", unit="")
beyond

# %%
a10, b10 = torch.randn(10, device=device), torch.randn(10, device=device)
ten = measure(launch, unmasked_kernel, a10, b10)
print("right:", torch.equal(ten.result, a10 + b10))

# %% [markdown]
# Right! A test of values is content. The meter is not: it knows where each tensor ends.

# %%
ten

# %%
beyond.compare(ten.hazards[0].elements)

# %% [markdown]
# (An instance has three numbers, as a launch may be laid out in up to three dimensions. Ours has one.) Its steps, one
# by one; what is out of bounds is orange-red:

# %%
watch(unmasked_kernel[(3,)], a10, b10, torch.empty_like(a10), 10, BLOCK=4)

# %% [markdown]
# On a GPU this kernel reads what lies behind `a` and `b`, and *overwrites what lies behind `y`*: some other tensor of
# your model. No message, no crash, most days. (Where no GPU is, this course refuses such a launch even when no meter
# watches, and names the lane.)
#
# ## The mask
#
# A **mask** says which lanes of a block may load and store: a block of yes and no. Write one. As it stands, this
# kernel asks the wrong question: look at the picture, where lanes that the mask keeps out are dotted. **Change the
# marked line until it says "Solved".**


# %%
@triton.jit
def mask_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < BLOCK  # <- here
    x = tl.load(x_ptr + element, mask=exists)
    tl.store(y_ptr + element, 2 * x, mask=exists)


tenths = torch.arange(10.0)
puzzle(mask_kernel, 3, tenths, wanted=2 * tenths, elements=10, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>exists = element < elements</code>: a lane counts where its element exists,
# whatever the block.</details>
#
# Somebody else writes `<=` into the addition. **Is it right?**


# %%
@triton.jit
def off_by_one_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element <= elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists)
    tl.store(y_ptr + element, a + b, mask=exists)


measure(launch, off_by_one_kernel, a10, b10)

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


measure(launch, add_kernel, a10, b10)

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
chart = traffic_chart({"unfused": unfused, "fused": fused}, title)
per_element.on(
    chart, "x", lambda nbytes: nbytes * a.numel(), row=1, says=lambda b: f"{b / 1e6:.4g} MB"
)

# %% [markdown]
# (`y_ptr` in the upper bar is the sum: the meter calls it by the parameter through which it was first seen.)
#
# ## One million, ten million, a hundred million
#
# **Claim: fusing add and GELU, on a million numbers in fp32, makes it 1.86 times faster and cuts the traffic by 40 %:
# reads from 12 to 8 MB, writes from 8 to 4 MB.** (The claim names no GPU; ours is an H200.) The traffic you can test:

# %%
million = 1_000_000
scale = million / a.numel()
print(f"{1 - fused.bytes_total / unfused.bytes_total:.0%} less")
rows = []
for name, traffic in (("unfused", unfused), ("fused", fused)):
    read, written = scale * traffic.bytes_read, scale * traffic.bytes_written
    rows.append((name, f"{read / 1e6:.1f} MB", f"{written / 1e6:.1f} MB"))
table(("", "read", "written"), rows)

# %% [markdown]
# It holds, to the byte. **And the time? How many times faster do you expect, if time follows the bytes?**

# %%
speed_up = predict_first("speed-up from fusing add+GELU, 1M numbers", unit="times")
speed_up

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
h200.table("add_gelu", "float32")

# %%
times = h200.times("add_gelu", (2**20,), "float32")
speed_up.compare(times["eager"].median / times["fused"].median)

# %% [markdown]
# **Verdict: fails for the time on this GPU, holds for the traffic to the byte.** The claimed speed-up could not come
# from bytes alone: they allow no more than the chart above says, and the measured speed-ups come close to that. On a
# million numbers the bytes are not all: starting kernels takes a good part of the time, and takes it twice where there
# are two; on the other side the sum may still lie in the **cache** when GELU reads it back: a small, faster memory
# between the large one and the processor, which keeps what was touched last. (The recorded kernel is the course's own,
# with GELU's tanh form, which you will write in the exercise. Its arithmetic costs nothing either way.)
#
# Those are the GPU's times. The columns on the right are what a call costs its caller, Python and launch included. In
# a row of calls as small as the first, the fused kernel makes its caller wait *no less*: lesson 02 has the reason. The
# gain is the GPU's, and yours where the GPU is what everybody waits for.
#
# With a GPU at hand, your kernel, here:

# %% tags=["nbval-ignore-output"]
from functools import partial

from helpers.instruments import benchmark_together

if runtime.has_gpu():
    for n in (2**20, 10_000_000, 100_000_000):
        left, right = torch.randn(2, n, device="cuda")
        eager = partial(lambda left, right: gelu(left + right), left, right)
        one = partial(launch, fused_kernel, left, right, 1024)
        print(f"{n:,}:", benchmark_together({"eager": eager, "fused": one}))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## Casts: in which dtype the arithmetic is done
#
# Half-precision inputs move half the bytes. But arithmetic on them is done in half precision, too, unless you say
# otherwise, and fp16 ends at 65504. This kernel is to give the square of each number, divided by 100. Every result
# fits. **What goes wrong, and what does the marked line need?**


# %%
@triton.jit
def square_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + element)  # <- here
    tl.store(y_ptr + element, x * x / 100)


hundreds = torch.arange(100, 1300, 100, dtype=torch.float16)
squares = (hundreds.float() ** 2 / 100).half()
puzzle(square_kernel, 3, hundreds, wanted=squares, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>tl.load(x_ptr + element).to(tl.float32)</code>: squares above 65504 do not
# exist in fp16; in fp32 they do, and the quotient fits again.</details>
#
# So load, then `.to(tl.float32)`, then compute. It costs no traffic: the cast is done on what has arrived, and the
# store rounds back to what `y_ptr` points to. Range is half of it; the other half is that a chain of operations in
# fp32 is rounded to fp16 *once*, at the store. How much is that worth? A cube, both ways:


# %%
@triton.jit
def cube_kernel(x_ptr, y_ptr, elements, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    if WIDE:  # decided when the kernel is compiled
        x = x.to(tl.float32)
    tl.store(y_ptr + element, x * x * x, mask=exists)


def cube(x, wide):
    y = torch.empty_like(x)
    cube_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), WIDE=wide, BLOCK=1024)
    return y


# %%
halves = torch.linspace(-8, 8, 4096, device=device, dtype=torch.float16)
nearest = (halves.double() ** 3).half()
for wide in (False, True):
    off = (cube(halves, wide) != nearest).double().mean()
    print(f"WIDE={wide}: {off:.1%} of the results are not the nearest fp16 number")

# %% [markdown]
# Cast first for a third reason: `tl.exp`, `tl.sqrt`, `tl.erf` and `tl.sigmoid` take fp32. (`tl.sigmoid(x)` is
# $1/(1+e^{-x})$; with it you can write others, as $\tanh x = 2\,\sigma(2x) - 1$.)
#
# ## Strides: where a tensor lies in memory
#
# A tensor is an address and a **stride** for each dimension: how many elements further on the next one lies. A
# kernel sees the address alone. `matrix[:, 1:5]` is a view: no copy, and its rows do not lie end to end.

# %%
matrix = torch.arange(18.0).view(3, 6)
middle = matrix[:, 1:5]
print("shape", tuple(middle.shape), "strides", middle.stride())
print("contiguous:", middle.is_contiguous())

# %% [markdown]
# This kernel doubles a row a program, and believes that rows lie end to end. The picture shows the view as it lies in
# memory. `stride` is given and not yet used. **Put the marked line right.** (The result is contiguous: there the
# rows do lie end to end.)


# %%
@triton.jit
def row_kernel(x_ptr, y_ptr, stride, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * COLUMNS + column)  # <- here
    tl.store(y_ptr + row * COLUMNS + column, 2 * x)


middle = torch.arange(18.0).view(3, 6)[:, 1:5]
puzzle(row_kernel, 3, middle, wanted=2 * middle, stride=middle.stride(0), COLUMNS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>x_ptr + row * stride</code>, plus the column: the next row begins a stride
# further on, not a row's length.</details>
#
# What does `add_kernel`, which knows no strides, make of such a view, with zeros to add to it? It takes 12 elements
# of each, in the order of memory.

# %%
views = torch.arange(18.0, device=device).view(3, 6)[:, 1:5], torch.zeros(3, 4, device=device)
unaware = measure(launch, add_kernel, *views)
print("right:", torch.equal(unaware.result, views[0] + views[1]))
unaware

# %% [markdown]
# Not slow: *wrong*. There are two ways out. Pass strides, as `row_kernel` does; or have the launcher say
# `x.contiguous()`, which copies what does not lie in order and returns everything else as it is. The copy is a launch
# and a pass over memory:

# %%
in_order = measure(lambda a, b: launch(add_kernel, a.contiguous(), b.contiguous()), *views)
print("right:", torch.equal(in_order.result, views[0] + views[1]))
in_order.launch_table()

# %% [markdown]
# ## A race
#
# Programs run at the same time, in any order. Here three programs add up four numbers each. The sum of each block is
# wanted. **What happens to the sums? Put the marked line right.**


# %%
@triton.jit
def block_sum_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    x = tl.load(x_ptr + program * BLOCK + tl.arange(0, BLOCK))
    tl.store(y_ptr, tl.sum(x))  # <- here


quarters = torch.arange(12.0)
sums = quarters.view(3, 4).sum(1)
puzzle(block_sum_kernel, 3, quarters, wanted=sums, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>tl.store(y_ptr + program, tl.sum(x))</code>: a place for each program. All
# in one place, the last to arrive wins, and nobody knows who that is.</details>
#
# A race need not show in the values: where all programs store the same, or the right one happens to be last, tests
# pass for months. The meter reports it all the same, since it knows who stored what.
#
# ## Two billion elements
#
# Your kernels count elements in int32: a program's number is one, and so is `tl.arange`. **What is the number of the
# first element of program 2,097,152, in blocks of 1024?**


# %%
@triton.jit
def first_element_kernel(program_ptr, first_ptr, BLOCK: tl.constexpr):
    program = tl.load(
        program_ptr
    )  # in place of tl.program_id(0): as many programs would take a while
    tl.store(first_ptr, program * BLOCK)
    tl.store(first_ptr + 1, program.to(tl.int64) * BLOCK)


# %%
program = torch.tensor([2**21], dtype=torch.int32, device=device)
firsts = torch.empty(2, dtype=torch.int64, device=device)
first_element_kernel[(1,)](program, firsts, BLOCK=1024)
print("in int32:", firsts[0].item())
print("in int64:", firsts[1].item())

# %% [markdown]
# Negative: the kernel would store *before* its tensor. The mask lets it pass, since a negative number is less than
# `elements`. Tensors of that size are rare and real: a batch of logits over a large vocabulary has as many numbers.
# The remedy is one cast, and it must come before the multiplication: `tl.program_id(0).to(tl.int64) * BLOCK`. From
# the exercise on, write it so.
#
# ## Which block, how many warps
#
# Two numbers are yours to choose: `BLOCK`, and `num_warps`, an option of the launch:
# `kernel[grid](..., BLOCK=1024, num_warps=4)`. A **warp** is 32 threads, and 4 warps share a block unless you say
# otherwise: in a block of 1024, a thread has eight elements. **By what factor is the worst of these choices slower
# than the best, on an H200?** (The course's own add+GELU, 4 warps, blocks of 256 to 8192.)

# %%
worst = predict_first("slowest over fastest block, 256 to 8192, 4 warps", unit="times")
worst

# %%
from benchmarks.experiments.lesson_03 import ELEMENTS

sweep = h200.experiment("occupancy_sweep")
blocks = (256, 512, 1024, 2048, 4096, 8192)
on_four = [sweep[f"{block}x4"].median for block in blocks]
rows = ((block, f"{1e6 * each:.0f} us") for block, each in zip(blocks, on_four, strict=True))
timed = f"add+GELU of {ELEMENTS:,} numbers in fp32, 4 warps, the GPU's own time"
display(table(("block", "time"), rows, f"{timed}\n{h200.label_of('occupancy_sweep')}"))
worst.compare(max(on_four) / min(on_four))

# %% [markdown]
# Over a wide range it does not matter: the memory is the limit, and any of these keeps it busy. So take a block of
# 1024 on 4 warps, which gives a thread at least four neighbours, and turn to what does matter, the bytes. Where the
# edges of that range are, and why, is lesson 03b's matter.
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
# 3. Two programs store the same right value to one element. Does it matter?
# <details><summary>Answer</summary>Not to the result. It is a store too many, and it hides the next mistake: the day
# that the values differ, the result depends on who was last.</details>
#
# 4. A slice `x[:, 1:]` of a matrix comes into this lesson's `fused_kernel`. What happens?
# <details><summary>Answer</summary>The result is wrong: the kernel takes as many numbers in order as the slice has,
# and those are not the slice's. Pass strides, or make it contiguous in the launcher. (With strides it is right, and
# its loads are narrow: lesson 03b.)</details>
#
# 5. `y = relu(a * b + c)` in one kernel, fp16. How many bytes an element does it move? Put your number in place of
#    the dots.

# %%
answer = ...
tensors = torch.rand(4, 1000, dtype=torch.float16)
correct = tensors.nbytes / tensors[0].numel()
self_test(answer, correct, "three inputs and one output cross; two bytes a number")

# %% [markdown]
# ## Now you
#
# You have built the kernel for one dtype, contiguous tensors and the exact GELU.
# [Exercise 03](../exercises/03_fused_add_gelu.ipynb) asks for the whole: GELU's tanh form, half-precision inputs, any
# strides, no elements at all, and loads as wide as they can be, for which blocks of 1024 on 4 warps will do. Next:
# [03b What the compiler made of it](03b_what_the_compiler_made.ipynb), where the machine code says why a block of
# 1024 was a good choice.
