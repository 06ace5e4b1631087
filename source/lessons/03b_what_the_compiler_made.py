# %% [markdown]
# # 03b What the compiler made of it
#
# Your kernel says which elements a program takes. It does not say which *thread* takes which, in what instruction, or
# out of how many registers. The compiler has decided all that. **Could its decisions cost you a third of the speed,
# with every byte in its place?** One block size too small, and they may.
#
# After this lesson you can
#
# - read from the machine code how wide loads are, and say what makes them narrow;
# - say how an argument's *value* changes the code that is compiled;
# - tell what is fetched from what is asked for, at any stride;
# - test a claim on speed under its own conditions, and time a kernel so that the figure means something.
#
# About 45 minutes. It follows on [03 Your first fused kernel](03_first_fused_kernel.ipynb).

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# The three kernels of lesson 03, again:


# %%
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


# %% [markdown]
# ## Registers
#
# Triton's compiler and NVIDIA's assembler run here, without a GPU. They share a block out among *threads*, and those
# step together in **warps** of 32. The values of a block live in **registers**, 32 bits each, of which a thread has a
# limited number. Here are the two unfused kernels on an A100, in blocks of 1024 on 4 warps. A thread of `add` has eight
# elements; it holds eight numbers of `a`, eight of `b`, and addresses:

# %%
x = torch.empty(2**20, device="meta")  # a tensor without memory: nothing will run
n = x.numel()
added = compile_for(add_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
gelued = compile_for(gelu_kernel, x, x, n, device="A100", BLOCK=1024, num_warps=4)
print(f"add {added.registers} registers a thread, GELU {gelued.registers}")

# %% [markdown]
# **Claim: fusing takes add+GELU from 24 to 32 registers.** How many does the fused kernel need: as many as both
# together, as many as the hungrier, or something between?

# %%
registers = predict_first("registers a thread of the fused kernel, A100", unit="")
registers

# %%
compiled = compile_for(fused_kernel, x, x, x, n, device="A100", BLOCK=1024, num_warps=4)
compiled

# %%
registers.compare(compiled.registers)

# %% [markdown]
# (Spills come up at the end of this lesson; what the other lines mean, lesson 07 explains.)
#
# No more than the hungrier of the two: the sum's register is free again as soon as GELU has used it. **Verdict: half
# of it holds, the second number; the first comes out for neither of the two kernels.** Both change with the block, as
# you will see.
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
# R are registers. `@!P0` is a **predicate**, the mask at work: a thread to which it does not apply skips the
# instruction. The last store has none, and needs none. Why not?

# %%
print(*(line.strip() for line in compiled.sass.splitlines() if "EXIT" in line), sep="\n")

# %% [markdown]
# A thread without elements in its second half has left just before (`@P1 EXIT`): who arrives at the last store may
# store.
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
loads, rows = {}, []
for name, (tensor, length) in variants.items():
    arguments = (tensor, tensor, tensor, length)
    made = compile_for(fused_kernel, *arguments, device="A100", BLOCK=1024)
    loads[name] = len(made.sass_view("load").instructions)
    widths = [each for each in made.instructions if each.startswith(("LDG", "STG"))]
    rows.append((name, loads[name], " and ".join(widths)))
table(("", "loads a thread", "of these widths"), rows)

# %%
narrow_count.compare(loads["one number on"])

# %% [markdown]
# Four times the instructions, for the same bytes.
#
# ## A value that changes the code
#
# The hint is one case of a rule: **Triton looks at the integers you pass, and compiles for what it sees.** A multiple
# of 16 is one thing, any other number another, and **1 is a third**: it is put into the code as a constant. Here is a
# kernel that takes a stride. Before you look: **for which of the strides 1, 2 and 16 are its loads wide?**


# %%
@triton.jit
def strided_copy_kernel(x_ptr, y_ptr, stride, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element * stride, mask=exists)
    tl.store(y_ptr + element, x, mask=exists)


rows = []
for stride in (1, 2, 16):
    made = compile_for(strided_copy_kernel, x, x, stride, n, device="A100", BLOCK=1024)
    found = (f"{k} {name}" for name, k in made.instructions.items() if name.startswith("LDG"))
    rows.append((stride, ", ".join(found)))
table(("stride", "loads"), rows)

# %% [markdown]
# With a stride of 1 the compiler *knows* that elements are neighbours. With any other it does not, multiple of 16 or
# not. That is often what you want, and has two prices: a compilation for each kind of value (the first call with a new
# kind waits for it), and code that differs where you would not think of it. A seed of 1, a dropout kernel of lesson 04
# will show, is compiled apart from all other seeds. `@triton.jit(do_not_specialize=["seed"])` forbids it.
#
# ## Sectors: what is fetched for what is asked
#
# Between the caches the GPU moves **sectors** of 32 bytes, however they are asked for. Here is what the 32 threads of
# a warp, its lanes, fetch with one instruction:
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
rows = []
for stride in (1, 2, 4, 8, 16):
    traffic = measure(take_every, numbers, stride)
    rows.append((stride, f"{traffic.bytes_read} B", traffic.sectors_read))
table(("stride", "bytes read", "sectors"), rows)

# %%
sectors.compare(measure(take_every, numbers, 8).sectors_read)

# %% [markdown]
# The bytes asked for are the same; the sectors, which must be delivered, are not. Move it yourself. Find out:
#
# 1. From which stride on does each lane have a sector of its own, in fp32? In fp16?
# 2. What does an offset cost, at most? At which offsets nothing?
# 3. Stride 8 with one number a lane, then with four (the next lane begins eight times as far on as a lane is wide):
#    how much is used of what is fetched, and why does it differ?

# %%
from helpers.figures import WarpExplorer

explorer = WarpExplorer(dtype="fp32", stride=2, offset=1)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 8 in fp32, from 16 in fp16: as many numbers as a sector
# holds. 2. One sector more at most, and none where the offset is a whole number of sectors: 8 or 16 in fp32. 3. An
# eighth, then half: four neighbours fill half of the sector that one alone would leave nearly empty.</details>
#
# ## Strides, timed
#
# Sectors hold between the caches. Between the L2 cache and the large memory (DRAM) other units may hold, and what this
# course has checked of its meter with a profiler's counters was contiguous access. So ask a clock: an H200 read 2^24
# numbers, further and further apart. By sectors alone, time grows with the stride up to 8 and not beyond. **How many
# times as long as neighbours does every 16th number take?**

# %%
apart_16 = predict_first("time of every 16th number over that of neighbours", unit="times")
apart_16

# %%
strided = h200.experiment("strides")
rows = []
for stride, timing in strided.items():
    ratio, by_sectors = timing.median / strided[1].median, min(stride, 8)
    rates = (2**24 * min(4 * stride, unit) / timing.median / 1e9 for unit in (32, 64))
    row = (stride, f"{1e6 * timing.median:.1f} us", f"{ratio:.1f}x", f"{by_sectors}x")
    rows.append((*row, *(f"{rate:,.0f}" for rate in rates)))
columns = ("stride", "time", "of neighbours'", "by sectors", "GB/s in 32 bytes", "in 64 bytes")
table(columns, rows, h200.label_of("strides"))

# %%
apart_16.compare(strided[16].median / strided[1].median)

# %%
from helpers.figures import curves_chart

took = {stride: timing.median / strided[1].median for stride, timing in strided.items()}
by_sectors = {"by sectors": {stride: min(stride, 8) for stride in strided}}
title = f"Every 16th number takes {took[16] / took[8]:.1f} times as long as every 8th"
axes = {"x": "stride (numbers)", "y": "times as long as neighbours"}
chart = curves_chart({"the clock": took}, title, **axes, log=True, limit=by_sectors)
apart_16.on(chart, "y")

# %% [markdown]
# Up to a stride of 8 sectors tell it. Then time should stay, and doubles once more: from DRAM come 64 bytes at a time,
# two sectors, wanted or not. The right-hand column counts in that unit, and up to 16 it stays near what this memory can
# deliver. (Beyond, time still grows. The numbers then lie over gigabytes, and other units begin to count, such as those
# in which addresses are translated. This experiment does not tell which.)
#
# So the meter's sectors are what the caches move; of DRAM they are a lower bound where access is strided.
#
# ## One number a thread, or four
#
# **Claim: wide loads make add+GELU another 1.2 to 1.3 times faster.** The bytes and the sectors are the same, wide or
# narrow. What differs is how many instructions ask for them, and *how much each thread has asked for* while it waits.
# Which of the two is it? Somebody tests the claim by taking the divisibility hint away, block and warps unchanged, on
# an H200. Look at what is held equal:

# %%
print(h200.label_of("load_widths"))
for count, widths in h200.experiment("load_widths").items():
    gain = widths["4 bytes"].median / widths["16 bytes"].median
    print(f"{count:12,} numbers: wide loads are {gain:.2f} times as fast")

# %% [markdown]
# No gain at all. Has the claim failed? Not yet. This compares eight numbers a thread in two wide loads with eight
# numbers a thread in eight narrow ones: each thread asks for *the same bytes*. The claim is made by people who write
# `float4` in CUDA, and what they compare with is a kernel with **one** number a thread. Those are its conditions. In
# Triton, one number a thread is a block as large as its threads: 256 on 8 warps, say, beside 1024 on 8 warps.
# **How many times as long does one number a thread take, at 256 threads?**

# %%
one_number = predict_first("time of one number a thread over four, 256 threads", unit="times")
one_number

# %%
apart = h200.experiment("numbers_a_thread")
kinds = {"one number": "one number", "four loads": "four, narrow", "one wide load": "four, wide"}
rows = []
for count, by_threads in apart.items():
    for threads, found in by_threads.items():
        wide = found["one wide load"].median
        took = (found[kind].median for kind in kinds)
        cells = (f"{1e6 * each:.1f} ({each / wide:.2f}x)" for each in took)
        rows.append((f"{count:,}", threads, *cells))
title = f"{h200.label_of('numbers_a_thread')}\nus a call (times that of four, wide)"
table(("numbers", "threads", *kinds.values()), rows, title)

# %%
at_256 = apart[100_000_000][256]
wide = at_256["one wide load"].median
one_number.compare(at_256["one number"].median / wide)

# %%
from helpers.figures import timing_chart

chart = timing_chart(
    {kinds[kind]: at_256[kind] for kind in kinds}, h200.label_of("numbers_a_thread")
)
one_number.on(chart, "x", lambda times: times * wide, row=0, says=lambda t: f"{1e6 * t:.0f} µs")

# %% [markdown]
# **Verdict: holds on the large tensor under its own conditions, one number a thread against four (there it is rather
# too modest), fails for most thread counts on the small one, and credits the wrong cause.** The middle column tells
# two causes apart: four numbers a thread in four *narrow* loads take as long as in one wide load. So the width is not
# what counts. Nor is it the number of programs: with one number and 1024 threads there are half as many as with four
# and 128, and they take longer.
#
# What is left, and fits, is **how many bytes are asked for at any moment**. Memory answers late, and what is under way
# meanwhile is all that it can deliver. A wide load is the cheap way to have more under way; narrow ones in a row are
# another. That is what makes the difference go away, and why the first experiment, with eight numbers a thread on both
# sides, saw none.
#
# ## Block size and warps
#
# So `BLOCK` and `num_warps` decide how much a thread asks for. What else follows from them:

# %%
rows = []
for block, warps in ((128, 4), (256, 4), (512, 4), (1024, 4), (4096, 4), (8192, 4)):
    chosen = {"BLOCK": block, "num_warps": warps}
    made = compile_for(fused_kernel, x, x, x, n, device="H200", **chosen)
    widest = max(int(name[4:]) for name in made.instructions if name.startswith("LDG."))
    occupied = f"{made.occupancy().fraction:.0%}"
    a_thread = block // (32 * warps)
    rows.append((block, warps, a_thread, f"{widest} bit", made.registers, occupied))
columns = ("BLOCK", "warps", "a thread", "widest load", "registers", "active warps")
table(columns, rows)

# %% [markdown]
# Few elements a thread: narrow loads. Many: more registers, so fewer warps fit on the GPU at a time. (Lesson 07 is
# about that.) What an H200 did with many of these choices, on the course's own add+GELU:

# %%
sweep = h200.experiment("occupancy_sweep")
rows = []
for block in (256, 512, 1024, 2048, 4096, 8192, 16384):
    row = (sweep[f"{block}x{warps}"].median * 1e6 for warps in (2, 4, 8))
    rows.append((block, *(f"{each:.0f}" for each in row)))
table(("BLOCK", "2 warps", "4 warps", "8 warps"), rows, f"{h200.label_of('occupancy_sweep')}, us")

# %% [markdown]
# A wide plain, and two edges. One you know by now: 256 on 8 warps, a single number a thread. And the other end, 16384
# on 4 warps?

# %%
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = {**settings(torch.float32), "BLOCK": 16384, "num_warps": 4}
edge = compile_for(add_gelu_kernel, x, x, x, None, n, device="H200", **chosen)
print(f"{edge.registers} registers a thread, {edge.spill_bytes} bytes of spills")

# %% [markdown]
# A thread cannot have more registers than that. What does not fit is **spilled** to memory, and the kernel moves
# bytes that nobody asked for. So choose a block that gives each thread one or two wide loads, and look elsewhere for
# speed.
#
# ## How one measures
#
# Every time in this course was taken in a certain way. Here is add+GELU on an H200 in four ways, and a matrix product
# in two. **How many times too fast does the kernel look on a hundred million numbers, if nobody waits for it to end?**
# (Take the GPU's own time, from a cold cache, for the truth.)

# %%
flattered = predict_first("GPU's own time over the host's clock, not waited, 100M", unit="times")
flattered

# %%
ways = h200.experiment("ways_to_time")
rows = []
for count in (2**20, 100_000_000):
    for way, timing in ways[count].items():
        rows.append((f"add+GELU, {count:,} numbers", way, f"{1e6 * timing.median:.1f} us"))
for when, timing in ways["product"].items():
    rate = f"{2 * 8192**3 / timing.median / 1e12:.0f} TFLOP/s"
    rows.append(("matrix product, 8192 x 8192 x 8192, bf16", when, rate))
table(("", "timed how", ""), rows, h200.label_of("ways_to_time"))

# %%
hundred = ways[100_000_000]
flattered.compare(hundred["GPU, L2 cold"].median / hundred["host, not waited"].median)

# %% [markdown]
# - **Not waited for.** A launch returns at once. What the host's clock saw is the launch, whatever the kernel does: too
#   short for a large tensor, too long for a small one.
# - **Waited for.** Now the launch and the waiting are in it: on a small tensor, most of it. That is what a caller who
#   waits feels, and not what the kernel takes.
# - **L2 warm.** Called again on the same tensors, a kernel on few bytes finds its inputs in the cache. In a model,
#   other kernels have been there in between. On a large tensor there is no difference: it does not fit.
# - **The first calls.** A rested GPU is faster for a moment. (The usual cause is the clock, which falls when power
#   reaches its limit. It was not recorded here; the rates were.)
#
# So the course's own figures are the GPU's time, from a cold L2, as medians of many runs with their spread. Kernels
# that are compared take **turns**, call by call, so that what drifts drifts for all. And where a size is small, the
# time of a call stands beside. `benchmark_together` does all that. Ask any other figure, ours included: which of these
# was it?
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why does fusing not need the registers of both kernels added up?
# <details><summary>Answer</summary>What the first part no longer needs makes room for the second. Only values that live
# at the same time need registers of their own.</details>
#
# 2. A slice `x[:, 1:]` comes into a kernel that takes strides and is right. It is slower than for `x`. What would you
#    look at?
# <details><summary>Answer</summary>The widths of the loads in the SASS: the address is no longer a multiple of 16
# bytes, so a thread asks for one number at a time. Whether that costs anything depends on how many it has asked for
# while it waits.</details>
#
# 3. A colleague adds `float4` to a kernel with one number a thread, finds it a quarter faster, and concludes that wide
#    instructions are what this memory needs. What experiment would you ask for?
# <details><summary>Answer</summary>Four numbers a thread in four narrow loads. If that is as fast, the width was not
# the cause: the bytes asked for at a time were.</details>
#
# 4. A benchmark runs the same kernel on the same 4 MB a thousand times and reports twice the memory's bandwidth. What
#    has it measured?
# <!-- given 4 MB: the question's own -->
# <details><summary>Answer</summary>The L2 cache: the tensor stays there from one call to the next.</details>
#
# 5. A warp reads one fp16 number a lane, every fourth. How many sectors does it fetch? Put your number in place of the
#    dots.

# %%
answer = ...
correct = len(WarpLoad(step=4 * 2, width=2).sectors)
self_test(answer, correct, "32 lanes, eight bytes from one to the next; a sector has 32 bytes")

# %% [markdown]
# Next: [04 Residuals, gates and dropout](04_residuals_gates_dropout.ipynb), where a kernel has a backward pass.
