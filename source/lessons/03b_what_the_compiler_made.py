# %% [markdown]
# # 03b What the compiler made of it
#
# Your kernel determines which elements each program works on. But it's the compiler that assigns them to *threads*,
# picks the instructions and allocates registers. **Could those choices cost you a fifth of the speed, even if every
# byte is where it should be?** They could: all it takes is a block that's one size too small.
#
# After this lesson you can
#
# - tell from the machine code how wide the loads are, and explain what makes them narrow;
# - explain how the *value* of an argument can change the compiled code;
# - tell fetched bytes from requested bytes, for any stride;
# - test a claim about speed under the conditions it was made for, and time a kernel in a way that means something.
#
# About 40 minutes. It builds on [03 Your first fused kernel](03_first_fused_kernel.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# Here's the fused kernel from lesson 03 again. (The two kernels that it replaces are folded below it.)


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


# %% tags=["hide-input"]
@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists)
    tl.store(y_ptr + element, a + b, mask=exists)


@triton.jit
def gelu_kernel(s_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(s_ptr + element, mask=exists)
    y = 0.5 * s * (1 + tl.erf(s * 0.7071067811865476))
    tl.store(y_ptr + element, y, mask=exists)


# %% [markdown]
# ## Registers
#
# You can run Triton's compiler and NVIDIA's assembler here without a GPU. They split a block between
# [threads](../docs/glossary.md#thread), which run in lockstep in **warps** of 32. The values in a block are kept in
# 32-bit [registers](../docs/glossary.md#register), and a thread only gets so many of those. Let's look at the two
# unfused kernels on an A100, in blocks of 1024 with 4 warps. Each thread of `add` has eight elements, so it needs
# registers for eight values of `a`, eight of `b`, and some addresses. <!-- given 32-bit: CUDA C++ Programming Guide
# -->

# %% tags=["hide-input"]
x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
n = x.numel()
added = compile_for(add_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
gelued = compile_for(gelu_kernel, x, x, n, device="A100", BLOCK=1024, num_warps=4)
print(f"add {added.registers} registers per thread, GELU {gelued.registers}")

# %% [markdown]
# **How many registers per thread does the fused kernel need?** As many as both kernels together, as many as the
# larger one, or something in between?

# %% tags=["hide-input"]
registers = predict_first("registers per thread of the fused kernel, A100", unit="")
registers

# %% tags=["hide-input"]
compiled = compile_for(fused_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
registers.compare(
    compiled.registers,
    "No more than the larger of the two, because GELU can reuse the sum's register once it's done "
    "with the sum.",
)

# %% [markdown]
# **Claim: fusing takes add+GELU from 24 to 32 registers.** Here's the compiler's report (we'll explain spills at the
# end of this lesson, and the other lines in lesson 07):

# %% tags=["hide-input", "answers-registers"]
print(f"unfused: add {added.registers}, GELU {gelued.registers} registers per thread")
compiled

# %% [markdown]
# **Verdict: half of it holds, the second number; no kernel here needs 24.** Both numbers depend on the block, as
# you'll see.
#
# ## Wide loads
#
# With a block of 1024 and 128 threads, each thread has eight elements. **How many load instructions does a thread
# execute for the two inputs?**

# %% tags=["hide-input"]
load_count = predict_first("load instructions per thread, for a and b", unit="")
load_count

# %% tags=["hide-input"]
display(compiled.sass_view("load", "store"))
load_count.compare(
    len(compiled.sass_view("load").instructions),
    "LDG.E.128 loads 128 bits, which is four elements at a time.",
)

# %% [markdown]
# This is the machine code, which NVIDIA calls [SASS](../docs/glossary.md#sass). Next to each instruction you see the
# line of the kernel it was compiled from. Names with an R are registers. `@!P0` is a **predicate**, which is how the
# mask is implemented: threads that are masked out skip the instruction.
#
# In CUDA, you'd write `float4` to get loads of that [width](../docs/glossary.md#load-width). Triton's compiler uses
# them automatically if it can be sure of two things. Neighbouring elements have to belong to the same thread, which
# it arranges itself, and the address has to be a multiple of 16 bytes. It finds that out at launch, from the pointers
# you pass. This is called the **divisibility hint**.
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->
#
# So what if we take the hint away? We could pass a tensor that starts one element later, `x[1:]`, a view that PyTorch
# users create without a second thought. Or we could pass a length that isn't a multiple of 16, so that the mask may
# end in the middle of a group of four. **How many loads do we get now?**

# %% tags=["hide-input"]
narrow_count = predict_first(
    "load instructions per thread, tensors shifted by one element", unit=""
)
narrow_count

# %% tags=["hide-input"]
later = torch.empty(2**20 + 1, device="meta")[1:]
variants = {
    "aligned": (x, n),
    "shifted by one element": (later, n),
    "odd length": (x, n + 1),
}
loads, rows = {}, []
for name, (tensor, length) in variants.items():
    arguments = (tensor, tensor, tensor, length)
    made = compile_for(fused_kernel, *arguments, device="A100", BLOCK=1024)
    loads[name] = len(made.sass_view("load").instructions)
    widths = [each for each in made.instructions if each.startswith(("LDG", "STG"))]
    rows.append((name, loads[name], " and ".join(widths)))
display(table(("", "loads per thread", "of these widths"), rows))
narrow_count.compare(
    loads["shifted by one element"], "That's four times as many instructions for the same bytes."
)

# %% [markdown]
# ## A value that changes the code
#
# The hint is an instance of a general rule: **Triton looks at the integers you pass, and compiles for the kind of
# value.** Multiples of 16 are one kind and most other numbers are another. **1 is a third**, and gets compiled into
# the code as a constant. Here's a kernel that takes a stride. **For how many of the strides 1, 2 and 16 are its loads
# wide?**

# %% tags=["hide-input"]
wide_strides = predict_first("strides among 1, 2 and 16 with wide loads", unit="")
wide_strides


# %%
@triton.jit
def strided_copy_kernel(x_ptr, y_ptr, stride, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element * stride, mask=exists)
    tl.store(y_ptr + element, x, mask=exists)


# %% tags=["hide-input"]
rows = []
for stride in (1, 2, 16):
    made = compile_for(strided_copy_kernel, x, x, stride, n, device="A100", BLOCK=1024)
    found = (f"{k} {name}" for name, k in made.instructions.items() if name.startswith("LDG"))
    rows.append((stride, ", ".join(found)))
display(table(("stride", "loads per thread"), rows))
wide_strides.compare(
    sum("LDG.128" in found for _, found in rows),
    "The compiler can only tell that elements are neighbours if the stride is 1. A multiple of 16 "
    "doesn't help.",
)

# %% [markdown]
# Most of the time you'll want this, but there's a price. Each kind of value has to be compiled separately, so the
# first call with a new kind has to wait. And the code may differ where you wouldn't expect it: a dropout kernel, for
# instance, gets compiled separately for seed 1. You can prevent that with `@triton.jit(do_not_specialize=["seed"])`.
#
# If you pass strides, you also have to use them. This kernel copies a matrix that's stored column by column (the
# `.t()` of one that's stored row by row), with one program per row. **Fix the marked line.**


# %%
@triton.jit
def transposed_kernel(x_ptr, y_ptr, row_stride, column_stride, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row * row_stride + column)  # <- here
    tl.store(y_ptr + row * COLUMNS + column, x)


by_columns = (torch.arange(12.0) ** 2).view(4, 3).t()
row_stride, column_stride = by_columns.stride()
strides = {"row_stride": row_stride, "column_stride": column_stride}
puzzle(transposed_kernel, 3, by_columns, wanted=by_columns.clone(), COLUMNS=4, **strides)

# %% [markdown]
# <details><summary>Answer</summary><code>x_ptr + row * row_stride + column * column_stride</code>. That's correct,
# but neighbouring lanes of a program are now three elements apart. The next section shows what that costs.</details>
#
# <!-- choices
# x = tl.load(x_ptr + row * row_stride + column)
#
# x = tl.load(x_ptr + row * column_stride + column)
#
# x = tl.load(x_ptr + row * column_stride + column * row_stride)
#
# x = tl.load(x_ptr + row * row_stride + column * column_stride)
#
# x = tl.load(x_ptr + (row + column) * column_stride)
# -->
#
# ## Sectors: fetched bytes and requested bytes
#
# Caches work in [sectors](../docs/glossary.md#sector) of 32 bytes, even if you only request part of one. Here's what
# the 32 threads of a warp, its [lanes](../docs/glossary.md#lane), fetch with a single instruction:
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %% tags=["hide-input"]
from helpers.figures import WarpLoad, warp_chart

warp_chart(
    {
        "4 bytes per lane": WarpLoad(step=4, width=4),
        "16 bytes per lane": WarpLoad(step=16, width=16),
        "shifted by one element": WarpLoad(step=4, width=4, offset=4),
        "every second element": WarpLoad(step=8, width=4),
    },
    "Contiguous loads use nearly every byte fetched; strided ones don't",
)

# %% [markdown]
# A wide load requests four times as much at once and wastes no more than a narrow one, because the hardware lets
# neighbouring lanes share sectors. This is called [coalescing](../docs/glossary.md#coalescing). Shifting by one
# element adds one sector. What really wastes bandwidth is a **stride**: if the lanes take every second element, they
# fetch whole sectors all the same. **How many sectors does a warp fetch if it takes every eighth element?**

# %% tags=["hide-input"]
sectors = predict_first("sectors a warp fetches, every 8th fp32 element", unit="")
sectors


# %% tags=["hide-input"]
@triton.jit
def stride_kernel(x_ptr, y_ptr, STRIDE: tl.constexpr):
    lane = tl.arange(0, 32)
    tl.store(y_ptr + lane, tl.load(x_ptr + lane * STRIDE))


def take_every(x, stride):
    y = torch.empty(32, device=x.device)
    stride_kernel[(1,)](x, y, STRIDE=stride)
    return y


numbers, rows = torch.randn(1024, device=device), []
for stride in (1, 2, 4, 8, 16):
    traffic = measure(take_every, numbers, stride)
    rows.append((stride, f"{traffic.bytes_read} B", traffic.sectors_read))
display(table(("stride", "bytes requested", "sectors fetched"), rows))
sectors.compare(
    measure(take_every, numbers, 8).sectors_read,
    "You request the same bytes at every stride, but you don't fetch the same sectors.",
)

# %% [markdown]
# Now try it yourself, and find out:
#
# 1. At what stride does each lane need its own sector in fp32? And in fp16?
# 2. At stride 1, how many extra sectors can an offset cost you at most, and which offsets are free?
# 3. Set offset 0 and stride 8, first with one element per lane, then with four (the next lane then starts eight
#    lane-widths further on). What share of the fetched bytes gets used? Now move the offset to 5.

# %% tags=["hide-input"]
from helpers.figures import WarpExplorer

explorer = WarpExplorer(dtype="fp32", stride=2, offset=1)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 8 in fp32 and 16 in fp16, which is how many elements fit in a
# sector. 2. At most one extra sector, and none if the offset is a whole number of sectors: 8 or 16 in fp32. (At other
# strides, an offset may be free, or it may double the sectors.) 3. An eighth, then half, because four neighbouring
# elements fill half of a sector that a single one leaves nearly empty. At offset 5, each lane's four elements
# straddle two sectors, so only a quarter gets used.</details>
#
# So the sectors that the meter reports are what the caches move. DRAM is different: an H200 fetches two sectors at a
# time, whether you need both or not. You'll find the measurement in *Going further*.
#
# ## One element per thread, or four
#
# Wide and narrow loads move the same bytes and the same sectors. What differs is the number of instructions, and how
# many bytes each thread has [in flight](../docs/glossary.md#in-flight) while it waits. To get one element per thread
# in Triton, make the block as large as the number of threads, for instance 256 on 8 warps instead of 1024 on 8 warps.
# **How much slower is add+GELU with one element per thread, at 256 threads?** (There's no way to derive this one, so
# just guess.)

# %% tags=["hide-input"]
one_element = predict_first(
    "slowdown of one element per thread over four, 256 threads", unit="times"
)
one_element

# %% tags=["hide-input"]
apart = h200.experiment("numbers_a_thread")
at_256 = apart[100_000_000][256]
wide = at_256["one wide load"].median
one_element.compare(at_256["one number"].median / wide, "On an H200, 100 million elements in fp32.")

# %% [markdown]
# **Claim: wide loads make add+GELU another 1.2 to 1.3 times faster.** A colleague tests this on an H200 by removing
# the divisibility hint, with the same block and the same number of warps:

# %% tags=["hide-input", "answers-one_element"]
print(h200.label_of("load_widths"))
for count, widths in h200.experiment("load_widths").items():
    gain = widths["4 bytes"].median / widths["16 bytes"].median
    print(f"{count:12,} elements, eight per thread: narrow loads take {gain:.2f}x the time")

# %% [markdown]
# No gain at all. But look at what the experiment compares: eight elements per thread in two wide loads, with eight
# elements per thread in eight narrow loads. Each thread requests *the same number of bytes*. The people who make this
# claim write `float4` in CUDA, and they compare it with **one** element per thread. So let's test it under those
# conditions:

# %% tags=["hide-input", "answers-one_element"]
kinds = {
    "one number": "one element",
    "four loads": "four, narrow loads",
    "one wide load": "four, a wide load",
}
rows = []
for count, by_threads in apart.items():
    for threads, found in by_threads.items():
        best = found["one wide load"].median
        cells = (f"{found[kind].median / best:.2f}" for kind in ("one number", "four loads"))
        rows.append((f"{count:,}", threads, *cells, f"{1e6 * best:.1f} us"))
title = f"{h200.label_of('numbers_a_thread')}\ntime over that of the last column"
columns = ("elements", "threads", "one element", "four, narrow loads", "four, a wide load")
display(table(columns, rows, title))

from helpers.figures import timing_chart

chart = timing_chart(
    {kinds[kind]: at_256[kind] for kind in kinds}, h200.label_of("numbers_a_thread")
)
one_element.on(chart, "x", lambda times: times * wide, row=0, says=lambda t: f"{1e6 * t:.0f} µs")

# %% [markdown]
# **Verdict: holds on the large tensor under its own conditions, one element per thread against four (and is rather
# too modest there), fails for most thread counts on the small one, and credits the wrong cause.** The fourth column
# lets us tell two causes apart. Four elements per thread take as long in four *narrow* loads as in one wide load, so
# it can't be the width. It isn't the number of programs either: one element with 1024 threads needs half as many
# programs as four elements with 128 threads, and it's slower.
#
# The explanation that fits is **bytes in flight**. Memory takes a long time to answer, and while you wait it can only
# deliver what you've requested. A wide load is a cheap way of requesting more, but several narrow loads work too.
# That's why our colleague, with eight elements per thread in both versions, saw no difference.
#
# Even in a kernel with one element per thread, a program can process several blocks. This one is supposed to do two,
# one after the other, but it gets the second one wrong. **Fix the marked line.** (`tl.static_range` is a loop that
# the compiler unrolls.)


# %%
@triton.jit
def two_blocks_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    for block in tl.static_range(2):
        first = tl.program_id(0) * BLOCK + block * BLOCK  # <- here
        element = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + element)
        tl.store(y_ptr + element, 2 * x)


sixteen = torch.arange(16.0) ** 2
puzzle(two_blocks_kernel, 2, sixteen, wanted=2 * sixteen, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>first = (2 * tl.program_id(0) + block) * BLOCK</code>: each program now owns
# two blocks, so you have to double its number. (<code>program_id * BLOCK + block * num_programs * BLOCK</code> also
# works.)</details>
#
# <!-- choices
# first = tl.program_id(0) * BLOCK + block * BLOCK
#
# first = (2 * tl.program_id(0) + block) * BLOCK
#
# first = 2 * tl.program_id(0) * BLOCK
#
# first = 2 * (tl.program_id(0) + block) * BLOCK
#
# first = tl.program_id(0) * BLOCK + block
# -->
#
# ## Block size and warps
#
# So `BLOCK` and `num_warps` control how much each thread requests. They also affect the rest of the compiled kernel:

# %% tags=["hide-input"]
rows = []
for block, warps in ((128, 4), (256, 4), (512, 4), (1024, 4), (4096, 4), (8192, 4)):
    chosen = {"BLOCK": block, "num_warps": warps}
    made = compile_for(fused_kernel, x, x, x, n, device="H200", **chosen)
    widest = max(int(name[4:]) for name in made.instructions if name.startswith("LDG."))
    occupied = f"{made.occupancy().fraction:.0%}"
    per_thread = block // (32 * warps)
    rows.append((block, warps, per_thread, f"{widest} bit", made.registers, occupied))
columns = ("BLOCK", "warps", "elements per thread", "widest load", "registers", "active warps")
table(columns, rows)

# %% [markdown]
# With few elements per thread, you get narrow loads. With many, you use more registers, so fewer warps fit on the GPU
# at the same time (lesson 07). Here's how long the course's own add+GELU takes on an H200:

# %% tags=["hide-input"]
sweep = h200.experiment("occupancy_sweep")
rows = []
for block in (256, 512, 1024, 2048, 4096, 8192, 16384):
    row = (sweep[f"{block}x{warps}"].median * 1e6 for warps in (2, 4, 8))
    rows.append((block, *(f"{each:.0f}" for each in row)))
table(("BLOCK", "2 warps", "4 warps", "8 warps"), rows, f"{h200.label_of('occupancy_sweep')}, us")

# %% [markdown]
# Most of the table is flat, except at the two ends. One of them you know: 256 on 8 warps is a single element per
# thread. What about the other, 16384 on 4 warps?

# %% tags=["hide-input"]
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = {**settings(torch.float32), "BLOCK": 16384, "num_warps": 4}
edge = compile_for(add_gelu_kernel, x, x, x, None, n, device="H200", **chosen)
print(f"{edge.registers} registers per thread, {edge.spill_bytes} bytes of spills")

# %% [markdown]
# A thread can't have more registers than that. What doesn't fit gets [spilled](../docs/glossary.md#spill) to memory,
# so the kernel moves bytes that you won't find anywhere in its source. The lesson is to pick a block that gives each
# thread one or two wide loads, and then look for speed elsewhere.
#
# ## How to time a kernel
#
# It matters how you take a timing. Here's add+GELU on an H200 timed in four ways, and a matmul timed in two:

# %% tags=["hide-input"]
ways = h200.experiment("ways_to_time")
rows = []
for count in (2**20, 100_000_000):
    for way, timing in ways[count].items():
        rows.append((f"add+GELU, {count:,} elements", way, f"{1e6 * timing.median:.1f} us"))
for when, timing in ways["product"].items():
    rate = f"{2 * 8192**3 / timing.median / 1e12:.0f} TFLOP/s"
    rows.append(("matmul, 8192 x 8192 x 8192, bf16", when, rate))
table(("", "timed how", ""), rows, h200.label_of("ways_to_time"))

# %% [markdown]
# - **Not waited.** A launch returns immediately, so the host's clock only saw the launch, no matter what the kernel
#   does. That's too short for a large tensor and too long for a small one.
# - **Waited.** This includes the launch and the wait, which on a small tensor is most of it. If you call the kernel
#   and wait for it, that's what you'll experience, but it isn't the kernel's time.
# - **L2 warm.** If you call a kernel on the same small tensors over and over, it finds its inputs in the cache. In a
#   model, other kernels will have run in between, so you'd have a [cold L2](../docs/glossary.md#cold-l2). A large
#   tensor wouldn't fit anyway.
# - **The first calls.** A GPU that has been idle is faster for a moment. (Usually that's the clock, which drops when
#   the GPU reaches its power limit. We recorded the rates here, but not the clock.)
#
# So what this course reports is GPU time with a cold L2, as the median of many runs, with their spread. When we
# compare kernels, we alternate between them call by call, so that drift affects them all equally. For small sizes we
# also show the time per call. `benchmark_together` does all of this for you. Whenever you see a timing, including
# ours, ask how it was taken.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why doesn't a fused kernel need as many registers as both kernels put together?
# <details><summary>Answer</summary>Because the second part can reuse registers that the first part is done with. Only
# values that are live at the same time need separate registers.</details>
#
# 2. You pass a slice `x[:, 1:]` to a kernel that handles strides correctly. It's slower than it is for `x`. What do
#    you check?
# <details><summary>Answer</summary>How wide the loads are in the SASS. The address is no longer a multiple of 16
# bytes, so a thread has to load one element at a time. Whether that makes it slower depends on how many bytes it has
# in flight.</details>
#
# 3. A colleague adds `float4` to a kernel with one element per thread, finds that it's a quarter faster, and
#    concludes that this memory needs wide instructions. What experiment would you ask for?
# <details><summary>Answer</summary>Four elements per thread in four narrow loads. If that's just as fast, it wasn't
# the width that helped, but the bytes in flight.</details>
#
# 4. A benchmark runs the same kernel on the same 4 MB a thousand times, and reports twice the memory bandwidth. What
#    has it measured?
# <!-- given 4 MB: the question's own -->
# <details><summary>Answer</summary>The L2 cache, because the tensor is still there from the previous call.</details>
#
# 5. Each lane of a warp reads one fp16 element, four elements apart from its neighbour's. How many sectors does the
#    warp fetch? Replace the dots with your number.

# %%
answer = ...
correct = len(WarpLoad(step=4 * 2, width=2).sectors)
self_test(answer, correct, "there are 32 lanes, eight bytes apart, and a sector has 32 bytes")

# %% [markdown]
# Next: [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb), where we write our first backward pass.

# %% [markdown]
# ## Going further
#
# ### Strides, timed
#
# Caches work in sectors, but transfers between L2 and DRAM may use a different unit. To find out, we had an H200 read
# 2^24 elements at larger and larger strides. If sectors were all that mattered, the time would grow up to a stride of
# 8 and then level off.

# %% tags=["hide-input"]
from helpers.figures import curves_chart

strided = h200.experiment("strides")
rows = []
for stride, timing in strided.items():
    ratio, in_sectors = timing.median / strided[1].median, min(stride, 8)
    rates = (2**24 * min(4 * stride, unit) / timing.median / 1e9 for unit in (32, 64))
    row = (stride, f"{1e6 * timing.median:.1f} us", f"{ratio:.1f}x", f"{in_sectors}x")
    rows.append((*row, *(f"{rate:,.0f}" for rate in rates)))
columns = ("stride", "time", "over stride 1", "by sectors", "GB/s in 32 bytes", "in 64 bytes")
display(table(columns, rows, h200.label_of("strides")))
took = {stride: timing.median / strided[1].median for stride, timing in strided.items()}
by_sectors = {"by sectors": {stride: min(stride, 8) for stride in strided}}
title = f"Every 16th element takes {took[16] / took[8]:.1f}x the time of every 8th"
axes = {"x": "stride (elements)", "y": "time over that of stride 1"}
curves_chart({"measured": took}, title, **axes, log=True, limit=by_sectors)

# %% [markdown]
# Up to a stride of 8, sectors predict the time. After that it should level off, but it nearly doubles again, because
# DRAM delivers 64 bytes at a time, which is two sectors, whether you need both or not. The right-hand column counts
# in 64-byte units, and up to a stride of 16 it's close to what this memory can deliver. (Beyond that, time continues
# to grow. The elements are now spread over gigabytes, so other parts of the memory system start to matter, such as
# address translation. This experiment can't tell us which.) So for strided access, treat the sectors that the meter
# reports as a lower bound on DRAM traffic.
