# %% [markdown]
# # 03b What the compiler made of it
#
# In your kernel, you decide which elements a program takes. The compiler then decides which *thread* gets which of
# them, which instructions load them, and how many registers they take up. **Could those decisions slow your kernel
# down, even if it doesn't move a single extra byte?**
#
# After this lesson you can
#
# - find out from the machine code how wide the loads are, and explain what makes them narrow;
# - explain how an argument's *value* changes the compiled code;
# - predict how many bytes a warp fetches compared with how many it requests, at any stride;
# - test a claimed speedup under the conditions it assumes, and time a kernel so that the number means something.
#
# About 50 minutes. It builds on [03 Your first fused kernel](03_first_fused_kernel.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.figures import compiler_animation
from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# Here's a kernel that does one multiply-add, with one element per thread. Press **Play** to see which instructions each
# line turns into, and how long each value stays in a register:


# %% tags=["hide-input"]
@triton.jit
def scale_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    y = 2 * x + 1
    tl.store(y_ptr + element, y, mask=exists)


opening = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
compiler_animation(
    compile_for(scale_kernel, opening, opening, 2**20, device="A100", BLOCK=128, num_warps=4)
)

# %% [markdown]
# Here's the fused kernel from lesson 03 again (the two kernels it replaces are folded below it):


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
# Triton's compiler and NVIDIA's assembler both run without a GPU. Triton divides a block among
# [threads](../docs/glossary.md#thread), which usually run in lockstep, in **warps** of 32. The values of a block are
# kept in [registers](../docs/glossary.md#register) of 32 bits each, and each thread has a limited number of them. Below
# are the two unfused kernels on an A100, in blocks of 1024 on 4 warps. Each thread has eight elements, so `add` needs
# registers for eight values of `a`, eight of `b`, and some addresses. <!-- given 32 bits: CUDA C++ Programming Guide
# -->

# %% tags=["hide-input"]
x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
n = x.numel()
added = compile_for(add_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
gelued = compile_for(gelu_kernel, x, x, n, device="A100", BLOCK=1024, num_warps=4)
print(f"unfused: add {added.registers}, GELU {gelued.registers} registers per thread")

# %% [markdown]
# **How many registers per thread does the fused kernel need?** As many as the two kernels together, as many as the
# larger one, or something in between? (You can't derive the exact number.)

# %% tags=["hide-input"]
registers = predict_first("registers per thread of the fused kernel, A100", unit="")
registers

# %% tags=["hide-input"]
compiled = compile_for(fused_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
registers.compare(
    compiled.registers,
    "Hardly more than the larger of the two (here, no more): the sum's register is free again as "
    "soon as GELU has used it.",
)

# %% [markdown]
# **Claim: fusing takes add+GELU from 24 to 32 registers.** Here's the compiler's report (we'll explain spills at the
# end of this lesson, and the other lines in lesson 07):

# %% tags=["hide-input", "answers-registers"]
compiled

# %% [markdown]
# **Verdict: the 32 is right, but the 24 isn't (`add` alone takes 26).** As you'll see, it depends on the block size.
#
# ## Wide loads
#
# In a block of 1024, each of the 128 threads has eight elements. **How many load instructions does a thread execute for
# the two inputs?**

# %% tags=["hide-input"]
load_count = predict_first("load instructions per thread, for a and b", unit="")
load_count

# %% tags=["hide-input"]
display(compiled.sass_view("load", "store"))
load_count.compare(
    len(compiled.sass_view("load").instructions),
    "LDG.E.128 loads 128 bits, four elements at once.",
)

# %% [markdown]
# This is the machine code, which NVIDIA calls [SASS](../docs/glossary.md#sass). Next to each instruction is the line of
# the kernel it comes from. `@!P0` is a **predicate**, which is how the mask works: a thread that's masked off skips the
# instruction. (Before the last store it simply exits.) Names that start with R are registers. The second pair of loads
# overwrites R4 and R8: by then it has added the first four pairs, so it never holds all sixteen inputs at once.
#
# CUDA programmers write `float4` to get loads of that [width](../docs/glossary.md#load-width). Triton's compiler uses
# them whenever three conditions hold. Neighbouring elements must belong to the same thread, which the compiler arranges
# itself. The address must be a multiple of 16 bytes. And the mask mustn't end in the middle of four elements. Triton
# checks the last two at launch, from the pointers and the length you pass. This is called the **divisibility hint**.
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->
#
# Let's take the hint away, with a tensor that starts one element later (PyTorch users write `x[1:]` without a second
# thought) or a length that isn't a multiple of 16. **How many loads does a thread need now?**

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
display(table(("", "loads per thread", "widths"), rows))
narrow_count.compare(
    loads["shifted by one element"], "That's four times the instructions for the same bytes."
)

# %% [markdown]
# ## A value that changes the code
#
# The hint is one case of a more general rule: **Triton looks at the integers you pass, and compiles a version for each
# class of values.** Multiples of 16 are one class. **1 is another**: it becomes a constant in the code. All other int32
# values are the third. (Values too large for int32 get a version with int64 arithmetic.) Here's a kernel that takes a
# stride. **For how many of the strides 1, 2 and 16 are its loads wide?**

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
    "Only with a stride of 1 does the compiler know that the elements are adjacent. A multiple "
    "of 16 doesn't help.",
)

# %% [markdown]
# Separate versions are usually what you want, but they have two costs. The first call with a new class of values has to
# wait for the compiler. And the code may differ where you wouldn't expect it: a dropout kernel gets a separate version
# for seed 1, for example. `@triton.jit(do_not_specialize=["seed"])` prevents that.
#
# If you pass strides, you also have to use them. This kernel copies a column-major matrix (the `.t()` of a row-major
# one), one row per program. **Fix the marked line.**


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
# <details><summary>Answer</summary><code>x_ptr + row * row_stride + column * column_stride</code>: the result is right,
# but neighbouring positions are now three elements apart. The next section shows what that costs.</details>
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
# ## Sectors: bytes requested vs bytes fetched
#
# Caches move whole [sectors](../docs/glossary.md#sector) of 32 bytes, no matter how much of a sector you request.
# Here's what the 32 threads of a warp fetch with a single instruction. (In this lesson's text, a
# [lane](../docs/glossary.md#lane) is one of these threads. Pictures and messages still use the word for a position in a
# block.)
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
# A wide load requests 4x as much in one go, and wastes no more than a narrow one. In both cases neighbouring lanes
# share sectors, which is called [coalescing](../docs/glossary.md#coalescing). Shifting everything by one element only
# adds a single sector. The real waste comes from a **stride**: if lanes take every second element, they still fetch
# whole sectors. **How many sectors does a warp fetch when it takes every sixteenth fp32 element?**

# %% tags=["hide-input"]
sectors = predict_first("sectors a warp fetches, every 16th fp32 element", unit="")
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
    measure(take_every, numbers, 16).sectors_read,
    "That's one sector per lane, and with narrow loads no stride takes more. The requested bytes "
    "are the same at every stride.",
)

# %% [markdown]
# Now move the sliders and see if you can answer these:
#
# 1. At what stride does each lane need a sector of its own, in fp32? In fp16?
# 2. At stride 1, how much does an offset cost at most, and which offsets cost nothing?
# 3. Take offset 0 and stride 8, first with one element per lane, then with four (the next lane's four begin 32 elements
#    later). What share of the fetched bytes is used? Then move the offset to 5.

# %% tags=["hide-input"]
from helpers.figures import WarpExplorer

explorer = WarpExplorer(dtype="fp32", stride=2, offset=1)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At stride 8 in fp32 and 16 in fp16, which is the number of elements
# in a sector. 2. One more sector at most, and none if the offset is a whole number of sectors, which is 8 or 16 in
# fp32. At other strides, an offset costs anything from nothing to twice the sectors. 3. An eighth, then half: four
# neighbours fill half of a sector that a single element leaves nearly empty. At offset 5 the four elements of a lane
# straddle two sectors, and only a quarter is used.</details>
#
# These are the sectors that the meter counts: the ones that caches move. Between DRAM and L2, an H200 fetches two
# sectors at a time, needed or not. The measurement is in *Going further*.
#
# ## One element per thread, or four
#
# Wide or narrow, the loads fetch the same bytes and the same sectors. Narrow ones just take more instructions. What if
# each thread gets fewer *elements*? For one element per thread, make the block as large as the number of threads: 256
# on 8 warps, say, instead of 1024 on 8 warps. **How much slower is add+GELU with one element per thread, at 256
# threads?** (There's no way to derive this one, so just guess.)

# %% tags=["hide-input"]
one_element = predict_first(
    "slowdown with one element per thread instead of four, 256 threads", unit="times"
)
one_element

# %% tags=["hide-input"]
apart = h200.experiment("numbers_a_thread")
at_256 = apart[100_000_000][256]
wide = at_256["one wide load"].median
one_element.compare(
    at_256["one number"].median / wide, "Measured on an H200, with 100 million elements in fp32."
)

# %% [markdown]
# **Claim: wide loads make add+GELU 1.2 to 1.3 times faster.** To test this, a colleague takes the divisibility hint
# away and leaves the block and the warps as they are. On an H200:

# %% tags=["hide-input", "answers-one_element"]
print(h200.label_of("load_widths"))
for count, widths in h200.experiment("load_widths").items():
    gain = widths["4 bytes"].median / widths["16 bytes"].median
    print(f"{count:12,} elements, eight per thread: narrow loads take {gain:.2f}x the time")

# %% [markdown]
# No gain at all. But look at what that experiment holds constant: a thread loads its eight elements of an input with
# two wide loads or with eight narrow ones, so either way it requests *the same bytes*. A CUDA kernel with `float4`
# usually replaces one with **one** element per thread. So let's measure that as well:

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
title = f"{h200.label_of('numbers_a_thread')}\ntime relative to the last column"
columns = ("elements", "threads", "one element", "four, narrow loads", "four, a wide load")
display(table(columns, rows, title))

from helpers.figures import timing_chart

chart = timing_chart(
    {kinds[kind]: at_256[kind] for kind in kinds}, h200.label_of("numbers_a_thread")
)
one_element.on(chart, "x", lambda times: times * wide, row=0, says=lambda t: f"{1e6 * t:.0f} µs")

# %% [markdown]
# **Verdict: against one element per thread, the claim holds on the large tensor, where it even understates the gain. On
# the small one it mostly fails. And it names the wrong cause.** The fourth column separates two possible causes:
# loading four elements per thread with four *narrow* loads takes as long as with one wide load. So it isn't the width.
# It isn't the number of programs alone either: one element on 1024 threads makes half as many programs as four elements
# on 128 threads, and still takes longer.
#
# The likeliest cause left is the bytes **[in flight](../docs/glossary.md#in-flight)**: requested, but not yet
# delivered. Memory takes a while to answer, and until then it can only work on what has already been requested. A wide
# load is the cheap way to request more at once. Several narrow loads are another. That's why the first experiment, with
# eight elements per thread on both sides, showed no difference. (Bytes in flight don't explain the whole table: with
# one element per thread there are equally many at every thread count, yet 128 threads do worst.)
#
# A program can also take several blocks. (That alone doesn't necessarily put more bytes in flight: here the second
# load comes after the first store.) This one should take two, one after the other, but the second block goes wrong.
# **Fix the marked line.** (`tl.static_range` is a loop that the compiler unrolls.)


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
# two blocks, so multiply its ID by two. (<code>program_id * BLOCK + block * num_programs * BLOCK</code> is also
# right.)</details>
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
# So `BLOCK` and `num_warps` determine how much each thread requests. They also shape the rest of the compiled kernel:

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
# With few elements per thread, loads are narrow. With many, a thread needs more registers, so fewer warps fit on the
# GPU (lesson 07). Here's the course's own add+GELU, timed on an H200:

# %% tags=["hide-input"]
sweep = h200.experiment("occupancy_sweep")
rows = []
for block in (256, 512, 1024, 2048, 4096, 8192, 16384):
    row = (sweep[f"{block}x{warps}"].median * 1e6 for warps in (2, 4, 8))
    rows.append((block, *(f"{each:.0f}" for each in row)))
title = f"{h200.label_of('occupancy_sweep')}\ntime in us, 2^27 elements in fp32"
table(("BLOCK", "2 warps", "4 warps", "8 warps"), rows, title)

# %% [markdown]
# There's a wide plateau with an edge at each end. You already know one of them: 256 on 8 warps, a single element per
# thread. What about the other end, 16384 on 4 warps?

# %% tags=["hide-input"]
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = {**settings(torch.float32), "BLOCK": 16384, "num_warps": 4}
edge = compile_for(add_gelu_kernel, x, x, x, None, n, device="H200", **chosen)
print(f"{edge.registers} registers per thread, {edge.spill_bytes} bytes of spills")

# %% [markdown]
# That's the maximum number of registers per thread. Values that don't fit are [spilled](../docs/glossary.md#spill) to
# memory, so the kernel moves bytes that don't appear anywhere in its source. Choose a block that gives each thread one
# or two wide loads, and look for speed somewhere else.
#
# ## How to time a kernel
#
# There are many ways to time a kernel, and they don't all measure the same thing. Here's add+GELU on an H200 timed in
# four ways, and a matmul timed in two:

# %% tags=["hide-input"]
ways = h200.experiment("ways_to_time")
rows, plain = [], {"host, not waited": "host, without a wait", "host, waited": "host, with a wait"}
for count in (2**20, 100_000_000):
    for way, timing in ways[count].items():
        how = plain.get(way, way)
        rows.append((f"add+GELU, {count:,} elements", how, f"{1e6 * timing.median:.1f} us"))
for when, timing in ways["product"].items():
    rate = f"{2 * 8192**3 / timing.median / 1e12:.0f} TFLOP/s"
    rows.append(("matmul, 8192 x 8192 x 8192, bf16", when, rate))
table(("", "how it was timed", ""), rows, h200.label_of("ways_to_time"))

# %% [markdown]
# - **Without a wait.** A launch returns immediately, so the host's clock only sees the launch, whatever the kernel
#   does. That's too short for a large tensor, too long for a small one.
# - **With a wait.** This includes the launch and the wait, which take up most of the time for a small tensor. Your
#   program may pay for that, but it isn't the kernel's time.
# - **L2 warm.** If you time a kernel repeatedly on the same small tensors, it finds its inputs in the cache. In a
#   model, other kernels run in between. (What the last one has just written may still be in L2, so a [cold
#   L2](../docs/glossary.md#cold-l2) is the cautious choice.)
# - **The first calls.** After a pause, a matmul runs faster for a moment. (Usually that's the clock, which drops when
#   the GPU hits its power limit. We recorded the rates here, but not the clock.)
#
# So the course reports GPU time with a cold L2, as the median of many runs with their spread. Kernels that we compare
# take turns, call by call, so that drift affects them equally. For small sizes we also show the time per call.
# `benchmark_together` does all of that. Whenever you see a time, including one of ours, ask which of these it is.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why doesn't a fused kernel need as many registers as the two kernels together?
# <details><summary>Answer</summary>When the first part is done with a register, the second part can use it. Only values
# that are live at the same time need registers of their own.</details>
#
# 2. You pass a slice `x[:, 1:]` to a kernel that handles strides correctly. It's slower than with `x`. What do you
#    check?
# <details><summary>Answer</summary>The widths of the loads in the SASS. The address is no longer a multiple of 16
# bytes, so a thread loads one element at a time. Whether that costs anything depends on how many bytes each thread
# still has in flight.</details>
#
# 3. A colleague adds `float4` to a kernel with one element per thread, finds it a quarter faster, and concludes that
#    wide instructions are what this memory needs. What experiment would you ask for?
# <details><summary>Answer</summary>Four elements per thread with four narrow loads. If that's just as fast, it was the
# bytes in flight that helped, not the width.</details>
#
# 4. A benchmark runs the same kernel on the same 4 MB a thousand times and reports twice the memory's bandwidth. What
#    has it measured?
# <!-- given 4 MB: the question's own -->
# <details><summary>Answer</summary>The L2 cache. The tensor stays in it from one call to the next.</details>
#
# 5. A warp reads one fp16 element per lane, every fourth one. How many sectors does it fetch? Replace the dots with
#    your number.

# %%
answer = ...
correct = len(WarpLoad(step=4 * 2, width=2).sectors)
self_test(answer, correct, "32 lanes, eight bytes from one to the next; a sector is 32 bytes")

# %% [markdown]
# Next: [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb), where kernels get a backward pass.

# %% [markdown]
# ## Going further
#
# ### Strides, timed
#
# Caches work in sectors, but the unit between L2 and DRAM may be different. To find out, we had an H200 read 2^24
# elements, further and further apart. If only sectors counted, the time would grow with the stride up to 8 and then
# stay flat.

# %% tags=["hide-input"]
from helpers.figures import curves_chart

strided = h200.experiment("strides")
rows = []
for stride, timing in strided.items():
    ratio, in_sectors = timing.median / strided[1].median, min(stride, 8)
    rates = (2**24 * min(4 * stride, unit) / timing.median / 1e9 for unit in (32, 64))
    row = (stride, f"{1e6 * timing.median:.1f} us", f"{ratio:.1f}x", f"{in_sectors}x")
    rows.append((*row, *(f"{rate:,.0f}" for rate in rates)))
columns = ("stride", "time", "÷ stride 1", "by sectors", "GB/s by 32 bytes", "by 64 bytes")
display(table(columns, rows, h200.label_of("strides")))
took = {stride: timing.median / strided[1].median for stride, timing in strided.items()}
by_sectors = {"by sectors": {stride: min(stride, 8) for stride in strided}}
title = f"Reading every 16th element takes {took[16] / took[8]:.1f}x as long as every 8th"
axes = {"x": "stride (elements)", "y": "time relative to stride 1"}
curves_chart({"measured": took}, title, **axes, log=True, limit=by_sectors)

# %% [markdown]
# Up to a stride of 8, the time roughly follows the sectors. After that it should stay the same, but it nearly doubles
# once more: DRAM delivers 64 bytes at a time, which is two sectors, whether you need both or not. The right-hand column
# counts in that unit, and up to a stride of 16 it stays close to what this memory can deliver. (Beyond that, the time
# still grows. By then the elements are spread over gigabytes, and other units come into play, such as those that
# translate addresses. This experiment doesn't show which.) So from a cold L2, if no sector is read twice, DRAM traffic
# is at least the meter's sectors.
