# %% [markdown]
# # 03 Your first fused kernel
#
# A GPU runs thousands of threads, and a tensor can have any length, which may be neither a power of two nor a
# multiple of the block. **Which thread works on which element, and what happens to the threads that have no element
# to work on?**
#
# After this lesson you can
#
# - write a Triton kernel, with programs, blocks, pointers, masks, strides and casts;
# - use the meter to find a data race, or a wrong mask that leaves every value correct;
# - fuse two elementwise operations into one kernel, and predict the speedup at any size.
#
# About 55 minutes. It builds on [02 Bytes and launches](02_bytes_and_launches.ipynb) and prepares you for [exercise
# 03](../exercises/03_fused_add_gelu.ipynb).

# %% tags=["hide-input"]
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
# ## Programs and blocks
#
# A Triton kernel is a Python function that's run by many [programs](../docs/glossary.md#program), each on its own
# [block](../docs/glossary.md#block) of elements. (Triton's documentation calls them program instances.) The only
# thing that distinguishes one program from another is its number, `tl.program_id(0)`, so that's what it uses to work
# out which elements to process. Below, three programs write their number into their elements. `watch` runs a launch
# and lets you go through it step by step: press **Play**, or use the arrow keys.
#
# The slots of a block are called [positions](../docs/glossary.md#position), or lanes in messages and pictures. Memory
# is read and written in [sectors](../docs/glossary.md#sector) of 32 bytes, and the line below the picture shows how
# many of them a step touches. You'll see `program` twice: first as a single number, and then repeated at every
# position, because that's how it's stored.
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
# Let's go through it line by line:
#
# - `sign_kernel[(3,)](...)` launches three programs; `(3,)` is the [grid](../docs/glossary.md#grid). They run in any
#   order, many at the same time.
# - `tl.arange(0, BLOCK)` is the block 0, 1, 2, 3, which numbers the positions. Every operation in Triton works on
#   whole blocks. The length of a block must be a power of two, and it has to be known at compile time:
#   [`tl.constexpr`](../docs/glossary.md#constexpr).
# - When you pass a tensor, the kernel gets the address of its first element, so `out_ptr + element` is a block of
#   addresses.
# - `tl.store` writes a block, and `tl.load` reads one.
#
# You don't loop over elements, and you don't see any threads, because the compiler assigns the elements of a block to
# threads for you. In [lesson 03b](03b_what_the_compiler_made.ipynb) you'll see how it does that.
#
# **How many programs do you need for a tensor of a million elements, in blocks of 1024?**

# %% tags=["hide-input"]
programs = predict_first("programs for 1,000,000 elements in blocks of 1024", unit="")
programs

# %% tags=["hide-input"]
programs.compare(
    triton.cdiv(1_000_000, 1024), "You have to round up, or the last elements never get processed."
)

# %% [markdown]
# `triton.cdiv` does this division for you.
#
# ## A kernel with a mistake
#
# Here's addition, written the obvious way. `launch` is its [host wrapper](../docs/glossary.md#host-wrapper), the
# Python function that allocates the output and picks the grid:


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
# Twelve elements in blocks of four makes three programs, and everything looks fine.

# %%
a12, b12 = torch.randn(2, 12, device=device)
twelve = measure(launch, unmasked_kernel, a12, b12)
print("right:", torch.equal(twelve.result, a12 + b12))
twelve

# %% [markdown]
# Now try ten elements. We still need three programs. **How many elements does the last one access that don't exist?**

# %% tags=["hide-input"]
beyond = predict_first("elements beyond the end, 10 elements in blocks of 4", unit="")
beyond

# %%
a10, b10 = torch.randn(10, device=device), torch.randn(10, device=device)
ten = measure(launch, unmasked_kernel, a10, b10)
print("right:", torch.equal(ten.result, a10 + b10))

# %% [markdown]
# Every value is correct, so a test would pass. The meter still objects, because it knows where each tensor ends.

# %%
ten

# %% tags=["hide-input"]
beyond.compare(ten.hazards[0].elements)

# %% [markdown]
# (The program's number has three parts because a grid can have up to three dimensions; ours has one.) Here it is step
# by step, with [out-of-bounds](../docs/glossary.md#out-of-bounds) accesses in orange-red:

# %%
slope = torch.arange(10.0, device=device)
watch(unmasked_kernel[(3,)], slope, 10 * slope, torch.empty_like(slope), 10, BLOCK=4)

# %% [markdown]
# On a GPU, this kernel would read past the ends of `a` and `b`, and *overwrite whatever comes after `y` in memory*,
# such as another tensor in your model. Most days you wouldn't get a crash or even an error message. (Without a GPU,
# the course refuses to run such a launch even when you're not using the meter, and names the position.)
#
# ## The mask
#
# A [mask](../docs/glossary.md#mask) is a block of booleans that says which positions of a block may load and store.
# Let's write one. The mask in this kernel tests for the wrong thing; in the picture, positions that it switches off
# are dotted. **Change the marked line until it says "Solved".**


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
# <details><summary>Answer</summary><code>exists = element < elements</code>: a position is active if its element
# exists, regardless of the block.</details>
#
# <!-- choices
# exists = element < BLOCK
#
# exists = element <= elements
#
# exists = element < elements
#
# exists = tl.arange(0, BLOCK) < elements
#
# exists = element < elements - 1
# -->
#
# A colleague adds a mask to our addition, but writes `<=`. Here's the meter's review:


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
# That's one element too many, since they're numbered from 0 to `elements - 1`. With the correct mask, the meter has
# nothing to complain about, and it counts the bytes of ten elements rather than twelve:


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
# The exact form of GELU is $y = \tfrac{s}{2}\,(1 + \mathrm{erf}(s/\sqrt{2}))$. Written as a separate kernel that runs
# after the addition:


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
# The first kernel ends by storing the sum, and the second starts by loading it again. To fuse them, delete both of
# those lines and join what's left:


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

# %% tags=["hide-input"]
from helpers.figures import traffic_chart

close = torch.allclose(fused.result, gelu(a + b), rtol=1e-5, atol=1e-6)
print("agrees with PyTorch:", close)
fewer_bytes = unfused.bytes_total / fused.bytes_total
title = f"One kernel moves {fewer_bytes:.2f}x fewer bytes than two"
traffic_chart({"unfused": unfused, "fused": fused}, title)

# %% [markdown]
# (The `y_ptr` in the upper bar is the sum. The meter names a tensor after the first parameter it was passed as.)
#
# ## One million elements, timed
#
# **Claim: fusing add and GELU, on a million numbers in fp32, makes it 1.86 times faster and cuts the traffic by 40 %:
# reads from 12 to 8 MB, writes from 8 to 4 MB.** (The claim doesn't say on which GPU; we'll use an H200.) You can
# check the traffic yourself:

# %% tags=["hide-input"]
million = 1_000_000
per_million = million / a.numel()
print(f"{1 - fused.bytes_total / unfused.bytes_total:.0%} less")
rows = []
for name, traffic in (("unfused", unfused), ("fused", fused)):
    read, written = per_million * traffic.bytes_read, per_million * traffic.bytes_written
    rows.append((name, f"{read / 1e6:.1f} MB", f"{written / 1e6:.1f} MB"))
table(("", "read", "written"), rows)

# %% [markdown]
# The claim about traffic is correct to the byte. **What about time: if it follows the bytes, what speedup would you
# expect on a million elements?**

# %% tags=["hide-input"]
speed_up = predict_first("speedup from fusing add+GELU, 1M elements", unit="times")
speed_up

# %% tags=["hide-input"]
from helpers.instruments import recorded

h200 = recorded("h200")
h200.table("add_gelu", "float32")

# %% tags=["hide-input"]
times = h200.times("add_gelu", (2**20,), "float32")
speed_up.compare(
    times["eager"].median / times["fused"].median,
    "Verdict: fails for the time on this GPU, holds for the traffic to the byte. By bytes alone, "
    f"you can't do better than {fewer_bytes:.2f}x, and the measured speedups get close to that.",
)

# %% [markdown]
# At a million elements, time doesn't depend on bytes alone. Starting a kernel takes up a good part of it, and with
# two kernels you pay for that twice. On the other hand, GELU may find the sum still in the **cache**, a small, fast
# memory between DRAM and the processor that keeps recently used data. (We recorded the course's own kernel, with the
# tanh form of GELU that you'll write in the exercise. For either form, the arithmetic is free.)
#
# All of that was GPU time. The columns on the right show what a call costs the caller, including Python and the
# launch. In a series of calls as small as the first one, fusing doesn't save the caller *anything*, for the reason we
# saw in lesson 02. The GPU finishes earlier, but you only benefit if your program is waiting for the GPU.
#
# If you have a GPU, you can time your own kernel:

# %% tags=["nbval-ignore-output", "hide-input"]
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
# ## Casts: the dtype of the arithmetic
#
# Half-precision inputs take half the bytes. But unless you cast them, the arithmetic is done in half precision too,
# and the largest number in fp16 is 65504. This kernel should square each element and divide it by 100, and every
# result would fit in fp16. **Fix the marked line.**


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
# <details><summary>Answer</summary><code>tl.load(x_ptr + element).to(tl.float32)</code>: fp16 can't represent squares
# above 65504, but fp32 can, and after the division they fit in fp16 again.</details>
#
# <!-- choices
# x = tl.load(x_ptr + element)
#
# x = tl.load(x_ptr + element) * 1.0
#
# x = tl.load(x_ptr + element).to(tl.bfloat16)
#
# x = tl.load(x_ptr + element) / 10
#
# x = tl.load(x_ptr + element).to(tl.float32)
# -->
#
# So the order is: load, `.to(tl.float32)`, compute. This adds no traffic, because the cast happens in registers, and
# the store rounds to the dtype of `y_ptr`. Overflow is one reason to do this. The other is accuracy: if you compute a
# chain of operations in fp32, you round to fp16 only *once*, at the store. How much does that help? Let's compute a
# cube both ways:


# %%
@triton.jit
def cube_kernel(x_ptr, y_ptr, elements, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    if WIDE:  # decided when the kernel is compiled
        x = x.to(tl.float32)
    tl.store(y_ptr + element, x * x * x, mask=exists)


# %% tags=["hide-input"]
halves = torch.linspace(-8, 8, 4096, device=device, dtype=torch.float16)
nearest = (halves.double() ** 3).half()
for wide in (False, True):
    cubes = torch.empty_like(halves)
    cube_kernel[(4,)](halves, cubes, halves.numel(), WIDE=wide, BLOCK=1024)
    off = (cubes != nearest).double().mean()
    print(f"WIDE={wide}: {off:.1%} of the results are not the nearest fp16 number")

# %% [markdown]
# There's a third reason to cast first: `tl.exp`, `tl.sqrt`, `tl.erf` and `tl.sigmoid` expect fp32. (`tl.sigmoid(x)`
# is $1/(1+e^{-x})$, and you can build other functions from it, such as $\tanh x = 2\,\sigma(2x) - 1$.)
#
# ## Strides: where a tensor is in memory
#
# A tensor is an address plus a [stride](../docs/glossary.md#stride) for each dimension, which is how many elements
# you have to move to get to the next index. The kernel only gets the address. `matrix[:, 1:5]` is a view, so nothing
# is copied, and it isn't [contiguous](../docs/glossary.md#contiguous): there are gaps between its rows.

# %%
matrix = torch.arange(18.0).view(3, 6)
middle = matrix[:, 1:5]
print("shape", tuple(middle.shape), "strides", middle.stride())
print("contiguous:", middle.is_contiguous())

# %% [markdown]
# In this kernel, each program doubles one row, and it assumes that there are no gaps between rows. The picture shows
# how the view is laid out in memory. The kernel gets `stride` but doesn't use it yet. **Fix the marked line.** (The
# output is contiguous, so the assumption is fine there.)


# %%
@triton.jit
def row_kernel(x_ptr, y_ptr, stride, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * COLUMNS + column)  # <- here
    tl.store(y_ptr + row * COLUMNS + column, 2 * x)


middle = torch.arange(18.0).view(3, 6)[:, 1:5]
puzzle(row_kernel, 3, middle, wanted=2 * middle, stride=middle.stride(0), COLUMNS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>x_ptr + row * stride</code>, plus the column: the next row starts one stride
# later, which isn't the same as one row length.</details>
#
# <!-- choices
# x = tl.load(x_ptr + row * COLUMNS + column)
#
# x = tl.load(x_ptr + row + column * stride)
#
# x = tl.load(x_ptr + row * stride + column)
#
# x = tl.load(x_ptr + (row * COLUMNS + column) * stride)
#
# x = tl.load(x_ptr + row * (COLUMNS + stride) + column)
# -->
#
# `add_kernel` doesn't know about strides. If you give it a view like this one, and zeros to add, it just takes the
# first 12 elements of each in memory order:

# %%
views = torch.arange(18.0, device=device).view(3, 6)[:, 1:5], torch.zeros(3, 4, device=device)
unaware = measure(launch, add_kernel, *views)
print("right:", torch.equal(unaware.result, views[0] + views[1]))
unaware

# %% [markdown]
# The problem isn't that it's slow, it's *wrong*. There are two ways to fix it. You can pass strides, as in
# `row_kernel`. Or the host wrapper can call `x.contiguous()`, which copies a tensor that isn't contiguous and returns
# any other tensor unchanged. The copy costs a launch and a pass over memory. (Allocate the output *after* that,
# because `torch.empty_like` of a transposed view gives you the strides of the view.)

# %%
in_order = measure(lambda a, b: launch(add_kernel, a.contiguous(), b.contiguous()), *views)
print("right:", torch.equal(in_order.result, views[0] + views[1]))
in_order.launch_table()

# %% [markdown]
# ## A data race
#
# Programs run at the same time, in any order. Here, each of three programs adds up four elements and should store its
# own sum. Run it, see where the sums end up, and **fix the marked line.**


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
# <details><summary>Answer</summary><code>tl.store(y_ptr + program, tl.sum(x))</code>, so that each program has its
# own element. If they share one, the last store wins, and you can't know which one that is.</details>
#
# <!-- choices
# tl.store(y_ptr, tl.sum(x))
#
# tl.store(y_ptr + program * BLOCK, tl.sum(x))
#
# tl.store(y_ptr + tl.arange(0, BLOCK), x)
#
# tl.store(y_ptr + program, tl.sum(x))
#
# tl.store(y_ptr + 1, tl.sum(x))
# -->
#
# You can't always see a [data race](../docs/glossary.md#data-race) in the values. If all programs store the same
# value, or the right one happens to come last, your tests may pass for months. The meter reports it anyway, because
# it keeps track of which program stored what.
#
# ## Two billion elements
#
# Your kernels compute element numbers in int32, because that's the type of both `tl.program_id(0)` and `tl.arange`.
# **What number does `tl.program_id(0) * BLOCK` give for the first element of program 2,097,152, in blocks of 1024?**
# (That's program 2^21.)

# %% tags=["hide-input"]
first = predict_first("first element of program 2^21 in blocks of 1024, computed in int32", unit="")
first


# %%
@triton.jit
def first_element_kernel(program_ptr, first_ptr, BLOCK: tl.constexpr):
    program = tl.load(program_ptr)  # stands for tl.program_id(0): launching 2^21 would take a while
    tl.store(first_ptr, program * BLOCK)
    tl.store(first_ptr + 1, program.to(tl.int64) * BLOCK)


program = torch.tensor([2**21], dtype=torch.int32, device=device)
firsts = torch.empty(2, dtype=torch.int64, device=device)
first_element_kernel[(1,)](program, firsts, BLOCK=1024)
print(f"in int64: {firsts[1].item():,}")

# %% tags=["hide-input"]
first.compare(
    firsts[0].item(),
    "The largest int32 is 2^31 - 1, so the number wraps around, and the kernel would store to "
    "addresses before the tensor. The mask doesn't catch it, because a negative number is less "
    "than `elements`.",
)

# %% [markdown]
# Tensors this big are rare, but they do exist: the logits of a batch over a large vocabulary can have that many
# elements. The fix is a single cast, and it has to come before the multiplication: `tl.program_id(0).to(tl.int64) *
# BLOCK`. From the exercise on, write it like that.
#
# ## Block size and warps
#
# You get to choose two numbers: `BLOCK`, and `num_warps`, which you pass at the launch: `kernel[grid](...,
# BLOCK=1024, num_warps=4)`. A [warp](../docs/glossary.md#warp) is 32 threads. By default, 4 warps share a block, so
# in a block of 1024 each thread gets eight elements. The grid has to grow with the tensor, because a program runs on
# just one of the GPU's many processors. Apart from that, the choice makes little difference over a wide range,
# because memory is the limit and most choices keep it busy. Use a block of 1024 with 4 warps. Lesson 03b measures
# where that range ends, and why.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel has no mask, but all your tensors have 4096 × 4096 elements and the block size is 1024. Is it wrong?
# <details><summary>Answer</summary>Not for these tensors. It will be as soon as a length isn't a multiple of the
# block size, and you may not notice from the values.</details>
#
# 2. You mask the store but not the loads. What can go wrong?
# <details><summary>Answer</summary>The loads still read past the end. Those values never get stored, but you may not
# be allowed to read that address. The meter reports an out-of-bounds read.</details>
#
# 3. Two programs store the same, correct value to the same element. Does it matter?
# <details><summary>Answer</summary>Not for the result. But it's a wasted store, and it hides a future bug: as soon as
# the values differ, the result will depend on which program came last.</details>
#
# 4. You pass a slice `x[:, 1:]` of a matrix to this lesson's `fused_kernel`. What happens?
# <details><summary>Answer</summary>You get a wrong result. The kernel takes the right number of elements, but from
# consecutive addresses, and the slice isn't laid out like that. Either pass strides, or make the slice contiguous in
# the host wrapper. (With strides the result is correct, but the loads are narrow; see lesson 03b.)</details>
#
# 5. One fp16 kernel computes `y = relu(a * b + c)`. How many bytes per element does it move? Replace the dots with
#    your number.

# %%
answer = ...
tensors = torch.rand(4, 1000, dtype=torch.float16)
correct = tensors.nbytes / tensors[0].numel()
self_test(answer, correct, "it reads three inputs and writes one output, at two bytes per element")

# %% [markdown]
# ## Now you
#
# You've built this kernel for one dtype, contiguous tensors and the exact GELU. [Exercise
# 03](../exercises/03_fused_add_gelu.ipynb) asks for the full version: GELU's tanh form, half-precision inputs, any
# strides, empty tensors, and the widest possible loads, which you get from a block of 1024 with 4 warps. Next: [03b
# What the compiler made of it](03b_what_the_compiler_made.ipynb), where the machine code shows why 1024 was a good
# choice.
