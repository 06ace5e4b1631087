# %% [markdown]
# # 03 Your first fused kernel
#
# A GPU kernel runs as many programs at once, each on its own block of elements. A tensor can have any length, not just
# powers of two or multiples of your block size. **Which program takes which elements, and what does the last one do
# with the rest of its block?**
#
# After this lesson you can
#
# - write a Triton kernel: programs, blocks, pointers, masks, strides, casts;
# - use the meter to find a wrong mask even when every value is right, and to find a data race;
# - fuse two elementwise operations into one kernel, and predict the gain on large tensors.
#
# About 60 minutes. It builds on [02 Bytes and launches](02_bytes_and_launches.ipynb). The exercise is
# [03](../exercises/03_fused_add_gelu.ipynb).

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
# Here three programs each store their own number. `watch` runs a launch and lets you step through it: press
# **Play**, or use the arrow keys.


# %%
@triton.jit
def sign_kernel(out_ptr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    element = program * BLOCK + tl.arange(0, BLOCK)  # a block of values, not just one
    tl.store(out_ptr + element, program)


out = torch.empty(12, dtype=torch.int32, device=device)
watch(sign_kernel[(3,)], out, BLOCK=4)

# %% [markdown]
# ## Programs and blocks
#
# A Triton kernel is a Python function that many [programs](../docs/glossary.md#program) run, each on its own
# [block](../docs/glossary.md#block) of elements. (Triton's documentation calls them program instances.) Programs differ
# only in their ID, `tl.program_id(0)`, which each of them uses to work out its own elements. The three programs above
# sign theirs.
#
# The places in a block are called [positions](../docs/glossary.md#position). (Some messages call them lanes.)
# Caches move data in [sectors](../docs/glossary.md#sector) of 32 bytes, and the line below the picture counts the
# sectors that a step touches. You'll see `program` twice: first as a single number, then repeated at every position,
# ready to be stored.
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->
#
# Let's go through the kernel line by line:
#
# - `sign_kernel[(3,)](...)` launches three programs. `(3,)` is the [grid](../docs/glossary.md#grid). The programs run
#   in any order, many at a time.
# - `tl.arange(0, BLOCK)` is the block 0, 1, 2, 3. Every operation in Triton works on whole blocks. A block's length has
#   to be a power of two, and it has to be known at compile time, so it's a
#   [`tl.constexpr`](../docs/glossary.md#constexpr).
# - A tensor is passed as the address of its first element, so `out_ptr + element` is a block of addresses.
# - `tl.store` writes a block, and `tl.load` reads one.
#
# There's no `for` loop over elements, and there are no threads: the compiler decides which thread takes which element
# of the block. [Lesson 03b](03b_what_the_compiler_made.ipynb) looks at its decisions.
#
# **How many programs does a tensor of a million elements need, in blocks of 1024?**

# %% tags=["hide-input"]
programs = predict_first("programs for 1,000,000 elements in blocks of 1024", unit="")
programs

# %% tags=["hide-input"]
programs.compare(
    triton.cdiv(1_000_000, 1024), "We round up, or the last elements would go unprocessed."
)

# %% [markdown]
# `triton.cdiv` computes that number for you.
#
# ## A kernel with a mistake
#
# Here's addition, written the obvious way. `launch` is its [host wrapper](../docs/glossary.md#host-wrapper), the Python
# function that allocates the result and chooses the grid:


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
# With twelve elements in blocks of four, we get three programs and no complaints.

# %%
a12, b12 = torch.randn(2, 12, device=device)
twelve = measure(launch, unmasked_kernel, a12, b12)
print("right:", torch.equal(twelve.result, a12 + b12))
twelve

# %% [markdown]
# Now try ten elements. That still takes three programs. **How many elements beyond the end of each tensor does the last
# one touch?**

# %% tags=["hide-input"]
beyond = predict_first("elements beyond the end, 10 elements in blocks of 4", unit="")
beyond

# %%
a10, b10 = torch.randn(10, device=device), torch.randn(10, device=device)
ten = measure(launch, unmasked_kernel, a10, b10)
print("right:", torch.equal(ten.result, a10 + b10))

# %% [markdown]
# Every value is right, so a test would pass. The meter isn't fooled, because it knows where each tensor ends.

# %%
ten

# %% tags=["hide-input"]
beyond.compare(ten.hazards[0].elements)

# %% [markdown]
# (A program ID has three parts because a grid can have up to three dimensions. Ours has one.) Step through the launch,
# with [out-of-bounds](../docs/glossary.md#out-of-bounds) accesses in orange-red:

# %% tags=["answers-beyond"]
slope = torch.arange(10.0, device=device)
watch(unmasked_kernel[(3,)], slope, 10 * slope, torch.empty_like(slope), 10, BLOCK=4)

# %% [markdown]
# On a GPU, this kernel would read past the ends of `a` and `b`, and *overwrite the memory after `y`*, which may belong
# to some other tensor in your model. Most of the time, you'd get no error and no crash. (Without a GPU, the course
# refuses such a launch even when no meter is watching, and tells you which position is to blame.)
#
# ## The mask
#
# A [mask](../docs/glossary.md#mask) is a block of true and false values. It decides which positions take part in a load
# or store. Let's write one. The mask in this kernel tests the wrong thing. In the picture, the positions it masks off
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
# <details><summary>Answer</summary><code>exists = element < elements</code>: a position takes part if its element
# exists, whatever block it's in.</details>
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
# A colleague wrote `<=` in their addition kernel. Let's have the meter review it:


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
# That's one element too many, because elements are numbered from 0 to `elements - 1`. With the right mask, there's
# nothing left to report, and the kernel moves the bytes of ten elements instead of twelve:


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
# The exact form of GELU is $y = \tfrac{s}{2}\,(1 + \mathrm{erf}(s/\sqrt{2}))$. Here it is as a separate kernel that
# runs after the addition:


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
# The first kernel ends by storing the sum, and the second begins by loading it. Delete those two lines, join what's
# left, and you've fused them:


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

close = torch.allclose(fused.result.double(), gelu((a + b).double()), rtol=1e-5, atol=1e-6)
print("agrees with PyTorch:", close)
fewer_bytes = unfused.bytes_total / fused.bytes_total
title = f"Two kernels move {fewer_bytes:.2f}x as many bytes as one"
traffic_chart({"unfused": unfused, "fused": fused}, title)

# %% [markdown]
# (`y_ptr` in the upper bar is the sum. The meter names a tensor after the first parameter it's passed to.)
#
# ## One million elements, timed
#
# **Claim: fusing add and GELU, on a million numbers in fp32, makes it 1.86 times faster and cuts the traffic by 40%,
# from 12 to 8 MB read and from 8 to 4 MB written.** (The claim doesn't say which GPU; ours is an H200.) You can check
# the traffic yourself:

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
# The claimed traffic is right to the byte. What about the time? **What speedup of the GPU's own time do you expect on
# 2^20 elements?** (The bytes and the cost of starting a kernel pull in the same direction.)

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
    "Verdict: the time is wrong for this GPU; the traffic is right to the byte. By bytes alone "
    f"it would be {fewer_bytes:.2f}x. Two small kernels also pay for two starts, so fusing them "
    "gains a little more.",
)

# %% [markdown]
# With only a million elements, bytes don't explain everything. Starting a kernel takes a good part of the time, and two
# kernels pay for that twice. On the other hand, GELU may find the sum still in **cache**, a small, fast memory between
# DRAM and the SMs that keeps recently used data. (The recorded kernel is the course's own, with the tanh form of GELU
# that you'll write in the exercise. Both forms of GELU hide behind the memory traffic.)
#
# On the left are GPU times. The columns on the right show what a whole call costs, including Python and the launch. At
# the smallest size, calling the fused kernel actually takes longer, for the reason you saw in lesson 02. But the GPU is
# busy for less time, so you gain once other work keeps it busy.
#
# If you have a GPU, time your own kernel:

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
# Half-precision inputs move half as many bytes. But unless you cast them, the arithmetic also happens in half
# precision, and fp16 only goes up to 65504. This kernel should square each element and divide by 100. All the results
# fit in fp16. (`x.to(dtype)` casts.) **Fix the marked line.**


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
# above 65504. fp32 can, and the quotient fits in fp16 again.</details>
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
# So load, then `.to(tl.float32)`, then compute. The cast adds no traffic, because the values are already in registers,
# and the store rounds to the dtype of `y_ptr`. Range is only one reason to cast. The other is rounding: a chain of
# operations in fp32 gets rounded to fp16 just *once*, at the store. How much does that help? Let's compute a cube both
# ways:


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
# There's a third reason to cast first: `tl.exp`, `tl.sqrt`, `tl.erf` and `tl.sigmoid` need fp32 or fp64.
# (`tl.sigmoid(x)` is $1/(1+e^{-x})$, and you can build others from it, such as $\tanh x = 2\,\sigma(2x) - 1$.)
#
# ## Strides: where a tensor is in memory
#
# A tensor is an address plus a [stride](../docs/glossary.md#stride) for each dimension: the distance, in elements, from
# one index to the next. A kernel only sees the address. `matrix[:, 1:5]` is a view. It copies nothing, and it isn't
# [contiguous](../docs/glossary.md#contiguous): there are gaps between its rows.

# %%
matrix = torch.arange(18.0).view(3, 6)
middle = matrix[:, 1:5]
print("shape", tuple(middle.shape), "strides", middle.stride())
print("contiguous:", middle.is_contiguous())

# %% [markdown]
# In this kernel, each program doubles one row and assumes that there are no gaps between rows. The picture shows the
# view in memory. `stride` is passed in, but the kernel doesn't use it yet. **Fix the marked line.** (The result is
# contiguous, so the assumption is fine there.)


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
# later, not one row length.</details>
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
# `add_kernel` doesn't know about strides. If we have it add zeros to such a view, it simply takes 12 consecutive
# elements from memory:

# %%
views = torch.arange(18.0, device=device).view(3, 6)[:, 1:5], torch.zeros(3, 4, device=device)
unaware = measure(launch, add_kernel, *views)
print("right:", torch.equal(unaware.result, views[0] + views[1]))
unaware

# %% [markdown]
# This isn't slow, it's *wrong*. There are two ways out. You can pass strides, as `row_kernel` does. Or the host wrapper
# can call `x.contiguous()`, which copies a tensor if it isn't contiguous and otherwise returns it unchanged. The copy
# costs a launch and a pass over memory. (Allocate the result *after* that call, because `torch.empty_like` copies the
# strides of a transposed view.)

# %%
in_order = measure(lambda a, b: launch(add_kernel, a.contiguous(), b.contiguous()), *views)
print("right:", torch.equal(in_order.result, views[0] + views[1]))
in_order.launch_table()

# %% [markdown]
# ## A data race
#
# Programs run at the same time, in any order. Each of these three adds up four elements and should store its own sum.
# Run it, see where the sums end up, and **fix the marked line.**


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
# <details><summary>Answer</summary><code>tl.store(y_ptr + program, tl.sum(x))</code>: every program gets its own
# element. If they share one, the last store wins, and the order is undefined.</details>
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
# A [data race](../docs/glossary.md#data-race) doesn't always show in the values. If all programs store the same value,
# or the right one happens to come last, tests can pass for months. The meter reports it anyway, because it records
# which program stored what.
#
# ## Two billion elements
#
# Your kernels count elements in int32, because that's the type of both the program ID and `tl.arange`. **In blocks of
# 1024, what does `tl.program_id(0) * BLOCK` give for the first element of program 2,097,152?** (That's program 2^21.)

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
    "int32 goes up to 2^31 - 1, then wraps around, so the kernel would store before the start "
    "of its tensor. The mask lets that through, because a negative number is less than `elements`.",
)

# %% [markdown]
# Tensors that large are rare but real: the logits of a batch over a large vocabulary can get there. All you need is a
# cast, and it has to come before the multiplication: `tl.program_id(0).to(tl.int64) * BLOCK`. Do it this way in the
# exercise and whenever you write a kernel.
#
# ## Block size and warps
#
# You get to choose two numbers: `BLOCK`, and `num_warps`, which is a launch option: `kernel[grid](..., BLOCK=1024,
# num_warps=4)`. A [warp](../docs/glossary.md#warp) is 32 threads. By default, 4 warps share a block, so in a block of
# 1024, each thread has eight elements. Over a wide range, the choice hardly matters: memory is the limit, and most
# choices keep it busy. A block of 1024 on 4 warps is a good default. In lesson 03b we'll find out where that range
# ends, and why.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel has no mask, and your tensors all have 4096 × 4096 elements, in blocks of 1024. Is it wrong?
# <details><summary>Answer</summary>Not for those tensors. It's wrong as soon as a length isn't a multiple of the block
# size, and you may not notice from the values alone.</details>
#
# 2. Only the store is masked. What can go wrong?
# <details><summary>Answer</summary>The loads still read past the end. Those values never get stored, but reading that
# address may be illegal. The meter reports an out-of-bounds read.</details>
#
# 3. Two programs store the same correct value to one element. Does it matter?
# <details><summary>Answer</summary>Not for the result. But it's a wasted store, and it hides the next mistake: once the
# values differ, the result depends on which program came last.</details>
#
# 4. You pass a slice `x[:, 1:]` of a matrix to this lesson's `fused_kernel`. What happens?
# <details><summary>Answer</summary>The result is wrong. The kernel takes the right number of consecutive elements, but
# they aren't the slice's elements. Pass strides, or make it contiguous in the host wrapper. (Strides make the result
# right, but the loads get narrow, as you'll see in lesson 03b.)</details>
#
# 5. `y = relu(a * b + c)` in one kernel, fp16. How many bytes per element does it move? Replace the dots with your
#    number.

# %%
answer = ...
tensors = torch.rand(4, 1000, dtype=torch.float16)
correct = tensors.nbytes / tensors[0].numel()
self_test(answer, correct, "three inputs and one output; two bytes per element")

# %% [markdown]
# ## Now you
#
# You've built the kernel for one dtype, contiguous tensors and the exact GELU. [Exercise
# 03](../exercises/03_fused_add_gelu.ipynb) asks for more: GELU's tanh form, half-precision inputs, any strides, empty
# tensors, and the widest loads, which a block of 1024 on 4 warps gives you. Next: [03b What the compiler made of
# it](03b_what_the_compiler_made.ipynb), where the machine code shows why 1024 was a good choice.
