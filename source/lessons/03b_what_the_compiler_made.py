# %% [markdown]
# # 03b What the compiler made of it
#
# Your kernel says which elements a program takes. The compiler decides which *thread* takes which of them, in what
# instruction, and with how many registers. **Could its decisions cost you a fifth of the speed, with every byte in its
# place?** One block size too small, and they do.
#
# After this lesson you can
#
# - read from the machine code how wide loads are, and explain what makes them narrow;
# - explain how an argument's *value* changes the compiled code;
# - tell fetched bytes from requested bytes, at any stride;
# - test a claim on speed under its own conditions, and time a kernel so that the figure means something.
#
# About 40 minutes. It follows on [03 Your first fused kernel](03_first_fused_kernel.ipynb).

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
# The fused kernel of lesson 03 again (folded below it, the two that it replaces):


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
# Triton's compiler and NVIDIA's assembler run here, without a GPU. They divide a block among
# [threads](../docs/glossary.md#thread), which run in lockstep in **warps** of 32. The values of a block are in
# [registers](../docs/glossary.md#register) of 32 bits, and each thread has a limited number of them. Here are the two
# unfused kernels on an A100, in blocks of 1024 on 4 warps. A thread of `add` has eight elements: it holds eight values of
# `a`, eight of `b`, and addresses. <!-- given 32 bits: CUDA C++ Programming Guide -->

# %% tags=["hide-input"]
x = torch.empty(2**20, device="meta")  # meta tensor: nothing runs
n = x.numel()
added = compile_for(add_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
gelued = compile_for(gelu_kernel, x, x, n, device="A100", BLOCK=1024, num_warps=4)
print(f"add {added.registers} registers per thread, GELU {gelued.registers}")

# %% [markdown]
# **How many registers per thread does the fused kernel need?** As many as both together, as many as the larger of the
# two, or something in between?

# %% tags=["hide-input"]
registers = predict_first("registers per thread of the fused kernel, A100", unit="")
registers

# %% tags=["hide-input"]
compiled = compile_for(fused_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
registers.compare(
    compiled.registers,
    "No more than the larger of the two: the sum's register is free again as soon as GELU has "
    "used it.",
)

# %% [markdown]
# **Claim: fusing takes add+GELU from 24 to 32 registers.** The compiler's report (the end of this lesson explains spills,
# lesson 07 the other lines):

# %% tags=["hide-input", "answers-registers"]
print(f"unfused: add {added.registers}, GELU {gelued.registers} registers per thread")
compiled

# %% [markdown]
# **Verdict: half of it holds, the second number; no kernel here needs 24.** Both numbers change with the block, as you
# will see.
#
# ## Wide loads
#
# Each of 128 threads has eight elements of a block of 1024. **How many load instructions does a thread execute for the
# two inputs?**

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
# This is the machine code, which NVIDIA calls [SASS](../docs/glossary.md#sass), with the kernel's line that each
# instruction comes from. Names with an R are registers. `@!P0` is a **predicate**, the mask at work: a thread that it
# excludes skips the instruction.
#
# CUDA programmers write `float4` for loads of that [width](../docs/glossary.md#load-width). In Triton the compiler uses them when it can prove two things: that
# neighbouring elements belong to one thread, which it arranges itself, and that the address is a multiple of 16 bytes.
# It learns that at launch, from the pointers that you pass: the **divisibility hint**.
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->
#
# So take the hint away. Pass a tensor that begins one element later: `x[1:]`, a view that PyTorch users make without a
# thought. Or a length that is not a multiple of 16, so that the mask may end in the middle of four elements. **How many
# loads now?**

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
    loads["shifted by one element"], "Four times the instructions, for the same bytes."
)

# %% [markdown]
# ## A value that changes the code
#
# The hint is one case of a rule: **Triton looks at the integers you pass, and compiles for the kind of value.** A multiple
# of 16 is one kind, any other number another, and **1 is a third**: it becomes a constant in the code. Here is a kernel
# that takes a stride. **For how many of the strides 1, 2 and 16 are its loads wide?**

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
    "Only with a stride of 1 does the compiler know that elements are neighbours. A multiple "
    "of 16 is of no help.",
)

# %% [markdown]
# This is often what you want, at two costs: one compilation per kind of value (the first call with a new kind waits for
# it), and code that differs where you would not expect it. A dropout kernel with the seed 1, for instance, is compiled
# separately from all other seeds. `@triton.jit(do_not_specialize=["seed"])` prevents that.
#
# Strides you pass must also be used. This kernel copies a matrix that is stored by columns (`.t()` of one stored by
# rows), one row per program. **Put the marked line right.**


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
# <details><summary>Answer</summary><code>x_ptr + row * row_stride + column * column_stride</code>: right, but the lanes of
# a program are now three elements apart. The next section shows the cost.</details>
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
# Caches move [sectors](../docs/glossary.md#sector) of 32 bytes, whatever part of one is requested. With one instruction,
# the 32 threads of a warp, its [lanes](../docs/glossary.md#lane), fetch this:
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
# A wide load requests four times as much at once, and wastes as little: the hardware's
# [coalescing](../docs/glossary.md#coalescing) lets neighbouring lanes share sectors. A shift by one element touches one
# sector more. The real waste is a **stride**: lanes that take every second element still fetch whole sectors. **How many
# sectors does a warp fetch when it takes every eighth?**

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
    "The requested bytes are the same at every stride; the fetched sectors are not.",
)

# %% [markdown]
# Move it yourself. Find out:
#
# 1. At what stride does each lane have a sector of its own, in fp32? In fp16?
# 2. At stride 1, what does an offset cost at most, and at which offsets nothing?
# 3. Offset 0 and stride 8, with one element per lane, then with four (the next lane begins eight lane-widths further on):
#    what share of the fetched bytes is used? Then move the offset to 5.

# %% tags=["hide-input"]
from helpers.figures import WarpExplorer

explorer = WarpExplorer(dtype="fp32", stride=2, offset=1)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. At 8 in fp32, at 16 in fp16: as many elements as a sector holds. 2. One
# sector more at most, and none where the offset is a whole number of sectors: 8 or 16 in fp32. (At other strides an
# offset may cost nothing, or double the sectors.) 3. An eighth, then half: four neighbours fill half of the sector that one
# alone leaves nearly empty. At offset 5 the four of a lane straddle two sectors, and only a quarter is used.</details>
#
# So the meter's sectors are what the caches move. From DRAM, an H200 fetches two sectors at a time, needed or not; *Going
# further* has the measurement.
#
# ## One element per thread, or four
#
# The bytes and the sectors are the same, with wide loads or narrow ones. Their number of instructions differs, and so does
# the number of bytes that each thread has [in flight](../docs/glossary.md#in-flight) while it waits. In Triton, one
# element per thread is a block as large as its threads: 256 on 8 warps, say, instead of 1024 on 8 warps. **How much slower
# is add+GELU with one element per thread, at 256 threads?** (Nobody can derive this one: guess.)

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
# **Claim: wide loads make add+GELU another 1.2 to 1.3 times faster.** A colleague tests that by taking the divisibility
# hint away, block and warps unchanged, on an H200:

# %% tags=["hide-input", "answers-one_element"]
print(h200.label_of("load_widths"))
for count, widths in h200.experiment("load_widths").items():
    gain = widths["4 bytes"].median / widths["16 bytes"].median
    print(f"{count:12,} elements, eight per thread: narrow loads take {gain:.2f}x the time")

# %% [markdown]
# No gain at all. But look at what that experiment holds equal: eight elements per thread in two wide loads, against eight
# in eight narrow loads. Each thread requests *the same bytes*. The claim is made by people who write `float4` in CUDA, and
# they compare with **one** element per thread. Those are its conditions:

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
# **Verdict: holds on the large tensor under its own conditions, one element per thread against four (and is rather too
# modest there), fails for most thread counts on the small one, and credits the wrong cause.** The fourth column separates
# two causes: four elements per thread in four *narrow* loads take as long as in one wide load. So it is not the width. Nor
# is it the number of programs: with one element and 1024 threads there are half as many as with four and 128, and they
# take longer.
#
# The explanation that is left, and fits, is **bytes in flight**. Memory answers late, and it delivers only what is in
# flight meanwhile. A wide load is the cheap way to have more in flight; several narrow ones are another. That is why the
# first experiment, with eight elements per thread on both sides, saw no difference.
#
# In a kernel with one element per thread, each program can also take several blocks. This one should take two, one after
# the other, and its second block goes wrong. **Put the marked line right.** (`tl.static_range` is a loop that the compiler
# unrolls.)


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
# <details><summary>Answer</summary><code>first = (2 * tl.program_id(0) + block) * BLOCK</code>: each program now owns two
# blocks, so its number counts double. (<code>program_id * BLOCK + block * num_programs * BLOCK</code> is right as
# well.)</details>
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
# So `BLOCK` and `num_warps` decide how much each thread requests. They also decide the rest of the compiled kernel:

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
# Few elements per thread: narrow loads. Many: more registers, so fewer warps fit on the GPU at a time (lesson 07). The
# times of the course's own add+GELU on an H200:

# %% tags=["hide-input"]
sweep = h200.experiment("occupancy_sweep")
rows = []
for block in (256, 512, 1024, 2048, 4096, 8192, 16384):
    row = (sweep[f"{block}x{warps}"].median * 1e6 for warps in (2, 4, 8))
    rows.append((block, *(f"{each:.0f}" for each in row)))
table(("BLOCK", "2 warps", "4 warps", "8 warps"), rows, f"{h200.label_of('occupancy_sweep')}, us")

# %% [markdown]
# A wide plain, and two edges. One you know by now: 256 on 8 warps, a single element per thread. And the other end, 16384
# on 4 warps?

# %% tags=["hide-input"]
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = {**settings(torch.float32), "BLOCK": 16384, "num_warps": 4}
edge = compile_for(add_gelu_kernel, x, x, x, None, n, device="H200", **chosen)
print(f"{edge.registers} registers per thread, {edge.spill_bytes} bytes of spills")

# %% [markdown]
# A thread cannot have more registers than that. The rest is [spilled](../docs/glossary.md#spill) to memory, and the kernel
# moves bytes that its source never mentions. So choose a block that gives each thread one or two wide loads, and look
# elsewhere for speed.
#
# ## How to time a kernel
#
# Every time in this course was taken in a certain way. Here is add+GELU on an H200 in four ways, and a matmul in two:

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
# - **Not waited.** A launch returns at once. The host's clock saw only the launch, whatever the kernel does: too short for
#   a large tensor, too long for a small one.
# - **Waited.** This includes the launch and the waiting: on a small tensor, most of it. A caller who waits feels that, but
#   it is not the kernel's time.
# - **L2 warm.** Called again on the same small tensors, a kernel finds its inputs in the cache. In a model, other kernels
#   have run in between: [cold L2](../docs/glossary.md#cold-l2). A large tensor does not fit anyway.
# - **The first calls.** A rested GPU is faster for a moment. (The usual cause is the clock, which falls when power reaches
#   its limit. It was not recorded here; the rates were.)
#
# So the course's own figures are the GPU's time, from a cold L2, as medians of many runs with their spread. Compared
# kernels alternate, call by call, so that drift affects all alike. For small sizes the time of a call is shown as well.
# `benchmark_together` does all that. Ask of any other figure, including ours: which of these was it?
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why does a fused kernel not need the registers of both kernels added up?
# <details><summary>Answer</summary>Registers that the first part no longer needs are free for the second. Only values
# that live at the same time need registers of their own.</details>
#
# 2. A slice `x[:, 1:]` is passed to a kernel that takes strides and is right. It is slower than for `x`. What do you check?
# <details><summary>Answer</summary>The widths of the loads in the SASS: the address is no longer a multiple of 16 bytes,
# so a thread requests one element at a time. Whether that costs anything depends on how many bytes it has in
# flight.</details>
#
# 3. A colleague adds `float4` to a kernel with one element per thread, finds it a quarter faster, and concludes that wide
#    instructions are what this memory needs. What experiment would you ask for?
# <details><summary>Answer</summary>Four elements per thread in four narrow loads. If that is as fast, the width was not
# the cause: the bytes in flight were.</details>
#
# 4. A benchmark runs the same kernel on the same 4 MB a thousand times and reports twice the memory's bandwidth. What has
#    it measured?
# <!-- given 4 MB: the question's own -->
# <details><summary>Answer</summary>The L2 cache: the tensor stays there from one call to the next.</details>
#
# 5. A warp reads one fp16 element per lane, every fourth. How many sectors does it fetch? Replace the dots with your
#    number.

# %%
answer = ...
correct = len(WarpLoad(step=4 * 2, width=2).sectors)
self_test(answer, correct, "32 lanes, eight bytes from one to the next; a sector has 32 bytes")

# %% [markdown]
# Next: [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb), where a kernel has a backward pass.

# %% [markdown]
# ## Going further
#
# ### Strides, timed
#
# Sectors are the unit of the caches. Between L2 and DRAM the unit may be another. An H200 read 2^24 elements, further and
# further apart. By sectors alone, time grows with the stride up to 8 and not beyond.

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
# Up to a stride of 8, sectors predict the time. Then it should stay, and nearly doubles once more: DRAM delivers 64 bytes
# at a time, two sectors, needed or not. The right-hand column counts in that unit, and up to 16 it stays near what this
# memory can deliver. (Beyond, time still grows. The elements are then spread over gigabytes, and other units begin to
# count, such as those that translate addresses. This experiment does not show which.) So the meter's sectors are a lower
# bound on DRAM traffic where access is strided.
