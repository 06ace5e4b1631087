# %% [markdown]
# # 02 Bytes and launches: what fusing removes
#
# Apply eight operations to one tensor, one after another. Fuse them, and most of the traffic is gone. **How much,
# exactly?** Now fuse two operations on a small tensor. That saves traffic too, but **does the call always get faster?**
#
# After this lesson you can
#
# - count the bytes and launches of PyTorch code just by reading it;
# - derive how much fusing a chain saves, and know when the rule doesn't hold;
# - decide whether a call is limited by memory or by launches, and at what size that changes;
# - find the bytes that a back-of-the-envelope estimate forgot.
#
# About 45 minutes. It builds on [01 The roofline](01_roofline.ipynb). The exercise is
# [02](../exercises/02_count_the_bytes.ipynb).

# %% tags=["hide-input"]
import torch
from torch.nn.functional import gelu

from helpers.instruments import measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
x = torch.rand(1000, 1000, device=device)

# %% [markdown]
# Here are three operations in a row, as three kernels and as one. Press **Play**. The more bytes there are to move, the
# longer it takes.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("chain")

# %% [markdown]
# ## Count first: three lines of PyTorch
#
# `x` is a 1000 × 1000 tensor in fp32; `scale` and `bias` are one row each. **How many MB do its launches move?** Each
# [operator](../docs/glossary.md#operator) is one launch, which reads each input once and writes its output once. (For a
# PyTorch operator we count each tensor once. For a Triton kernel, further down, the meter counts every load and store.
# Either way, a cache may serve some.)


# %%
def layer(x, scale, bias):
    shifted = x * scale + bias
    return torch.relu(shifted)


# %% tags=["hide-input"]
layer_bytes = predict_first("bytes moved by relu(x * scale + bias)", unit="MB")
layer_bytes

# %% tags=["hide-input"]
scale, bias = torch.rand(2, 1000, device=device)
eager = measure(layer, x, scale, bias)
print(eager)
layer_bytes.compare(eager.bytes_total / 1e6)

# %% [markdown]
# The launch table lists the traffic of each operator. `scale` and `bias` hardly count: they're
# [broadcast](../docs/glossary.md#broadcast), and we count each of them once. (A real kernel loads them again for every
# row, mostly from a cache.)

# %%
eager.launch_table()

# %% [markdown]
# **Look at how much L2 holds**: our tensors would fit many times over, so much of that traffic may never get as far as
# DRAM.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H200", lit="L2")

# %% [markdown]
# ## In place, views, copies
#
# "Do it in place, that saves memory." It does save space, but traffic is another matter. `relu_` overwrites its input,
# so it still has to read it and write it.

# %%
print("relu: ", measure(torch.relu, x))
print("relu_:", measure(torch.Tensor.relu_, x.clone()))

# %% [markdown]
# A [view](../docs/glossary.md#view), on the other hand, moves no data at all. Making it contiguous takes a full pass:

# %%
print("transposed:", measure(lambda: x.t()))
print("copied:    ", measure(lambda: x.t().contiguous()))

# %% [markdown]
# ## Chains
#
# Take a chain of $N$ operations, each of which reads one tensor and writes one. Let $B$ be the number of bytes in a
# tensor.
#
# - Unfused, each operation reads $B$ and writes $B$, which adds up to $2NB$.
# - Fused, you read the first input and write the last output. That's $2B$, however long the chain is.
#
# So you save $(2NB - 2B) / 2NB = (N - 1) / N$. The meter agrees:


# %%
def chain(x, operations):
    for _ in range(operations):
        x = x * 0.9  # any operation that takes one tensor and returns one
    return x


# %% tags=["hide-input"]
from helpers.figures import curves_chart

chains = {n: measure(chain, x, n) for n in range(1, 9)}
saved = {n: 100 * (1 - 2 * x.nbytes / each.bytes_total) for n, each in chains.items()}
rule = {"(N - 1) / N": {tenths / 10: 100 * (1 - 10 / tenths) for tenths in range(10, 81)}}
title = f"Fusing two operations saves {saved[2]:.0f} % of the bytes; eight saves {saved[8]:.1f} %"
curves_chart(
    {"the meter": saved}, title, x="N, operations in the chain", y="bytes saved (%)", limit=rule
)

# %% [markdown]
# Most of the saving comes from the first few fusions.
#
# ## Two inputs
#
# The rule has a condition: each operation reads a single tensor. **Claim: fusing two elementwise operations halves the
# traffic.** ([Elementwise](../docs/glossary.md#elementwise) means that each element of the result depends only on the
# inputs at the same position.) Try it on `gelu(a + b)`, where the addition reads *two* tensors. **What share of the
# traffic does fusing save here?**

# %% tags=["hide-input"]
with_two = predict_first("traffic saved by fusing gelu(a + b)", unit="%")
with_two

# %% tags=["hide-input"]
a, b = torch.rand(2, 100_000, device=device)
before = measure(lambda: gelu(a + b, approximate="tanh"))
after = 3 * a.nbytes  # read a, read b, write the result
with_two.compare(
    100 * (1 - after / before.bytes_total),
    "Verdict: wrong here, right for chains that read one tensor. Fused or not, you have to read "
    "every outside input once.",
)

# %% [markdown]
# In general, **fusing saves the write and the reads of each [intermediate](../docs/glossary.md#intermediate), and the
# repeated reads of an input that several operations use.** If something outside the kernel also needs an intermediate,
# you still have to write it, and you save only its reads.
#
# ## A fused chain with a mistake
#
# Here's the chain as one kernel, with a mistake in it. It's written in Triton, which you'll learn next. For now, read
# it like Python: load some elements, work on them, store them.

# %%
import triton
import triton.language as tl


@triton.jit
def misplaced_kernel(x_ptr, y_ptr, elements, OPERATIONS: tl.constexpr):
    offset = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    inside = offset < elements
    y = tl.load(x_ptr + offset, mask=inside)
    for _ in range(OPERATIONS):
        y = y * 0.9
        tl.store(y_ptr + offset, y, mask=inside)


# %% [markdown]
# A fused chain of eight operations on fp32 elements should move eight bytes per element. **How many does this kernel
# move?**

# %% tags=["hide-input"]
misplaced = predict_first("bytes per element of misplaced_kernel, 8 operations", unit="B")
misplaced


# %% tags=["hide-input"]
def launch(kernel, x, operations):
    y = torch.empty_like(x)
    programs = triton.cdiv(x.numel(), 1024)
    kernel[(programs,)](x, y, x.numel(), OPERATIONS=operations)
    return y


small = torch.rand(10_000, device=device)
wrong = measure(launch, misplaced_kernel, small, 8)
print(wrong)
print("the result is right:", torch.allclose(wrong.result, chain(small, 8)))
misplaced.compare(
    wrong.bytes_total / small.numel(),
    "The store is inside the loop. It's one launch and the result is right, so no test of the "
    "values will catch this.",
)

# %% [markdown]
# The meter points to the offending line. (A GPU runs threads in groups of 32, called [warps](../docs/glossary.md#warp).
# The last column counts the [sectors](../docs/glossary.md#sector) that a warp's request touches, on average. Sectors
# are the 32-byte units in which caches move data, so 32 fp32 elements need four. Here the last warp is only half full.
# More in lesson 03b.)
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %%
wrong.line_table()

# %% [markdown]
# Wouldn't the compiler drop a store that the next one overwrites? Triton's compiler runs on your machine, with or
# without a GPU, so let's check. Compiled for an A100, each thread gets eight elements and stores four at a time, so two
# stores would be enough:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import compile_for

meta = torch.empty(10_000, device="meta")  # meta tensor: nothing runs


def stores(kernel):
    made = compile_for(kernel, meta, meta, 10_000, device="A100", OPERATIONS=8)
    return f"{made.instructions['STG.128']} stores per thread"


print(stores(misplaced_kernel))

# %% [markdown]
# It doesn't. (L2 may merge most of the repeated stores before they reach DRAM, but they all have to get to L2.) We have
# to move the store out of the loop ourselves.


# %%
@triton.jit
def chain_kernel(x_ptr, y_ptr, elements, OPERATIONS: tl.constexpr):
    offset = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    inside = offset < elements
    y = tl.load(x_ptr + offset, mask=inside)
    for _ in range(OPERATIONS):
        y = y * 0.9
    tl.store(y_ptr + offset, y, mask=inside)


fused = measure(launch, chain_kernel, small, 8)
fused

# %% tags=["hide-input"]
from helpers.figures import traffic_chart

four_launches = measure(chain, small, 4)
one_launch = measure(launch, chain_kernel, small, 4)
ratio = four_launches.bytes_total / one_launch.bytes_total
title = f"Fusing a chain of 4 cuts traffic by a factor of {ratio:g}"
traffic_chart({"unfused": four_launches, "fused": one_launch}, title)

# %% [markdown]
# Your turn. This kernel does an addition and a ReLU in one launch, but the sum still makes a round trip through memory.
# **Delete the lines you don't need.**


# %%
@triton.jit
def add_relu_kernel(a_ptr, b_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    b = tl.load(b_ptr + element)
    s = a + b
    tl.store(y_ptr + element, s)
    s = tl.load(y_ptr + element)
    tl.store(y_ptr + element, tl.maximum(s, 0.0))


first, second = torch.arange(12.0) - 6, 3 * torch.arange(12.0) - 20
puzzle(add_relu_kernel, 3, first, second, wanted=torch.relu(first + second), BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary>Delete two lines: the first <code>tl.store</code> and the <code>tl.load</code> after
# it. The sum is already in <code>s</code>.</details>
#
# <!-- choices
# tl.store(y_ptr + element, s)
#     s = tl.load(y_ptr + element)
#     tl.store(y_ptr + element, tl.maximum(s, 0.0))
#
# tl.store(y_ptr + element, s)
#
# tl.store(y_ptr + element, s)
#     tl.store(y_ptr + element, tl.maximum(s, 0.0))
#
# s = tl.load(y_ptr + element)
#     tl.store(y_ptr + element, tl.maximum(s, 0.0))
#
# tl.store(y_ptr + element, tl.maximum(s, 0.0))
# -->

# %% [markdown]
# ## On your own CPU
#
# CPUs wait for memory too. `torch.compile` turns the chain into a single C++ loop and compiles it on your machine, so
# the first call takes a few seconds. **How many times faster will the fused chain of eight be?** Assume that the time
# depends only on the bytes, and expect your machine to disagree a little.

# %% tags=["hide-input"]
on_cpu = predict_first("speedup from fusing a chain of 8 on this CPU", unit="times")
on_cpu

# %% tags=["nbval-ignore-output", "hide-input"]
import shutil
import time
from statistics import median


def seconds(function, runs=5):
    """Return the median time by the host's clock, after a first call that may compile."""
    function()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


large = torch.rand(2**24)  # more than most caches hold
cpu_times = {n: seconds(lambda n=n: chain(large, n)) for n in (1, 2, 4, 8)}
rows = [("eager", n, f"{1e3 * taken:.1f} ms") for n, taken in cpu_times.items()]
if shutil.which("g++"):
    compiled = torch.compile(chain, dynamic=False)
    fused_time = seconds(lambda: compiled(large, 8))
    rows.append(("fused", 8, f"{1e3 * fused_time:.1f} ms"))
    finding = "By the bytes alone it would be 8. Allocations, caches and threads change that."
    display(on_cpu.compare(cpu_times[8] / fused_time, finding))
else:
    print("No C++ compiler here: torch.compile needs one, such as Debian's package g++.")
table(("", "operations", "time"), rows)

# %% [markdown]
# Now for a GPU, where PyTorch reuses the memory of deleted tensors, so allocation costs next to nothing. On an H200,
# does fusing the same chain save as much time as it saves traffic?

# %% tags=["hide-input"]
print(h200.label_of("chain_lengths"))
took = h200.experiment("chain_lengths")
time_saved = {
    n: 100 * max(0, 1 - each["fused"].median / each["eager"].median) for n, each in took.items()
}
off = max(abs(time_saved[n] - saved[n]) for n in time_saved)
curves_chart(
    {"time saved": time_saved},
    f"The time saved matches the bytes saved, within {off:.2f} percentage points",
    x="N, operations in the chain",
    y="time saved on an H200 (%), 2^28 elements in fp32",
    limit={"bytes saved": rule["(N - 1) / N"]},
)

# %% [markdown]
# With large tensors, time follows traffic. On your CPU, `torch.compile` fused the chain by itself. Lesson 13 shows what
# it can't fuse.
#
# ## The launch
#
# So far we've only counted bytes. But a launch has a cost of its own: the CPU has to look up the operator, allocate the
# output and hand the kernel to the GPU. How long does a call take on your machine when there's next to nothing to
# compute? (Without a GPU there are no launches, so you'll see PyTorch's own overhead per call.)

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

sizes = (1, 1_000, 10_000, 100_000)
tensors = {n: torch.rand(n, device=device) for n in sizes}
calls = {n: lambda n=n: torch.relu(tensors[n]) for n in sizes}
taken = benchmark_together(calls, runs=5, launches=True)
table(("relu of", "time"), ((f"{n:,} elements", timing) for n, timing in taken.items()))

# %% [markdown]
# For small tensors on a GPU, the size hardly matters: you're looking at [launch
# overhead](../docs/glossary.md#launch-overhead). It has two parts. The CPU has to hand the kernel over, and the GPU has
# to start it. **Claim: a kernel launch costs 5 to 10 µs.** We measured both parts on an H200. The *empty launch* goes
# straight to the driver from C, many times in a row. The *operator* is PyTorch's ReLU, and the *Triton kernel* is an
# empty one, called from Python. For the GPU's part we timed the empty kernel, and then one that copies a thousand
# elements, either from L2 or from DRAM.

# %% tags=["hide-input"]
apart = h200.experiment("launches")
rows = []
for where, name, what in (
    ("host", "bare", "CPU: an empty launch, from C"),
    ("host", "operator", "CPU: a PyTorch operator"),
    ("host", "triton", "CPU: a Triton kernel, from Python"),
    ("gpu", "empty", "GPU: an empty kernel"),
    ("gpu", "near", "GPU: a small copy, from L2"),
    ("gpu", "far", "GPU: a small copy, from DRAM"),
):
    cost_of = apart[where][name].median
    fared = "holds" if 5e-6 <= cost_of <= 10e-6 else "fails"
    rows.append((what, f"{1e6 * cost_of:.1f} us", f"the claim {fared}"))
table(("", "time", "5 to 10 us?"), rows, h200.label_of("launches"))

# %% [markdown]
# **Verdict: it depends on what you call a launch.** The driver's own launch costs less than claimed. Through PyTorch,
# with dispatch, checks and allocation, a call costs about as much as claimed. So does an empty Triton kernel. (With
# arguments and a result to allocate, it costs more.) The GPU's part is far smaller. If you record kernels in a [CUDA
# graph](../docs/glossary.md#cuda-graph) and replay them together, that's nearly all you pay. (The first memory access
# isn't part of the launch. But a small kernel can't do anything until its first elements arrive.)
#
# ## CPU-bound or GPU-bound?
#
# The CPU doesn't wait for a kernel to finish before it launches the next one, and the GPU runs them one after another.
# We take the cost of a launch from a chain of four operations on a thousand elements, where launch overhead is all
# there is. (Triton's kernel costs more than the empty one above: it has arguments, and its host wrapper allocates a
# result.) For the GPU's share we time one whole small kernel, including its first access to cold memory.

# %% tags=["hide-input"]
from helpers.figures import chain_time, launch_costs, launch_timeline

costs = launch_costs(h200)
print(f"CPU: {1e6 * costs.operator:.1f} us per operator", end="")
print(f", {1e6 * costs.triton:.1f} us per Triton kernel")
print(f"GPU: {1e6 * costs.start:.1f} us per small kernel", end="")
print(f"; copies {h200.copy_bandwidth / 1e9:,.0f} GB/s")

# %% [markdown]
# Here are four operations on one time axis, run in three ways: launched one by one, as one Triton kernel, and as a CUDA
# graph. (The GPU's times were measured at each size. Replaying a graph costs the CPU just one launch, which the picture
# leaves out.) Press **Play**, then choose more elements. Launched one by one, at what size does the GPU stop waiting
# for the CPU between kernels?

# %% tags=["hide-input"]
launch_timeline(h200)

# %% [markdown]
# <details><summary>What you should see</summary>At 4,194,304 elements: each kernel takes longer than the next launch,
# so they queue up and the gaps close. At 65,536, the GPU mostly waits, so a graph helps most there. Fusing helps most
# at 16,777,216.</details>
#
# So over many calls, the slower of the two, CPU or GPU, sets the pace:
#
# - CPU: launches × cost of a launch;
# - GPU: launches × cost of a start + bytes ÷ bandwidth.
#
# Below is `gelu(a + b)` on a million elements, timed both ways: the GPU's own time, and the time per call over many
# back-to-back calls.

# %% tags=["hide-input"]
million, rows = 2**20, []
clocks = {
    (row["dtype"], row["provider"]): row
    for row in h200.rows
    if row["kernel"] == "add_gelu" and row["shape"] == [million]
}
for dtype in ("float32", "bfloat16"):
    for provider, what in (("eager", "two operators"), ("fused", "one Triton kernel")):
        timed = clocks[dtype, provider]
        rows.append(
            (dtype, what, *(f"{1e6 * timed[clock]['median']:.1f} us" for clock in ("gpu", "call")))
        )
table(("", "", "GPU", "per call"), rows, h200.label_of("add_gelu"))

# %% [markdown]
# The fused kernel takes less GPU time, and yet the call takes *longer*, because here the GPU is waiting for the CPU.
# Our fused call checks its inputs and allocates its output in Python, while PyTorch's operators do that in C++. (In
# fp32, two operators take about twice what the model says. Host times depend on the host and on whatever else it was
# doing, so don't expect more than the order of magnitude.)
#
# ## Other sizes, chains and GPUs
#
# Here's the model from above, for any chain length and any tensor size. Where a line is flat, launches dominate. Where
# it climbs, memory does. (We use the launch cost of the H200's machine for every GPU, and each GPU's bandwidth from its
# data sheet.) See if you can answer these:
#
# 1. At what size does the fused chain start to climb? Why does that happen later than for the unfused one?
# 2. How short does a chain have to be before fusing it in Triton makes it slower on small tensors? What if the fused
#    kernel is launched from C++?
# 3. If a CUDA graph launches the chain, what does fusing still save on small tensors?
# 4. If you go from an H200 to a T4, do launches matter more or less?

# %% tags=["hide-input"]
from helpers.figures import LaunchExplorer

explorer = LaunchExplorer(device="H200", elements=1_000_000, operations=4)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. It starts to climb once moving its bytes takes as long as launching
# it. A Triton launch costs more than an operator's, so that happens later. 2. One or two operations: launching those
# costs less than one launch from Triton. From C++, the fused kernel is never slower. 3. The GPU's kernel starts: you
# pay for one instead of one per operation. 4. Less. With slower memory, the bytes dominate even for smaller
# tensors.</details>
#
# **On an H200, at what size does moving the bytes of a single PyTorch operator take as long as launching it?** The
# operator reads four bytes per element and writes four. Its launch cost and the GPU's copy bandwidth are printed above
# the timeline.

# %% tags=["hide-input"]
large_enough = predict_first("size at which bytes take as long as a launch", unit="elements")
large_enough.on(explorer, "x")  # your guess, marked in the picture above
large_enough


# %% tags=["hide-input"]
def break_even(host):
    """Return the size at which one elementwise operation in fp32 takes as long as its launch."""
    return host * h200.copy_bandwidth / (2 * 4)


large_enough.compare(
    break_even(costs.operator),
    f"For a Triton kernel it's {break_even(costs.triton):,.0f}. Either way, that's millions of "
    "elements.",
)

# %% [markdown]
# Far above that size, fusing helps by saving *bytes*. Below it, fusing helps by saving *launches*, but only if the
# fused kernel's launch costs less than the ones it replaces. From C++ or a CUDA graph, it does. So before you fuse,
# check which of the two you'd save.
#
# ## A worked example
#
# Suppose you read this: *Linear(4096 → 4096) and GELU on 1024 rows, in fp32. Unfused, the linear layer reads x and
# writes y, GELU reads y and writes z: four tensors of 1024 × 4096. Fused, the kernel reads x and writes z: two.
# **Claim: fusing halves the traffic.*** **Counting all bytes, what share does fusing save?**

# %% tags=["hide-input"]
linear_saving = predict_first("traffic saved by fusing Linear(4096) and GELU", unit="%")
linear_saving

# %% tags=["hide-input"]
linear = torch.nn.Linear(4096, 4096, device=device)
tokens = torch.rand(1024, 4096, device=device)
with torch.no_grad():
    example = measure(lambda: gelu(linear(tokens)))
weights = example.by_tensor["linear['weight']"].read
intermediate = 2 * tokens.nbytes  # y, written and read back
print(example)
display(example.tensor_table())
linear_saving.compare(
    100 * intermediate / example.bytes_total,
    "Verdict: fails; only a quarter is saved, half of what is claimed. The example forgets "
    f"{weights / 1e6:.2f} MB of weights. They have to be read too, and they're larger than any of "
    "the four tensors.",
)

# %% [markdown]
# Does the *time* drop by that much too? Let's check with the roofline from lesson 01. We'll use bf16, where tensor
# cores make the matmul fast, so the saving counts for more.

# %% tags=["hide-input"]
from helpers.instruments import DEVICES, Roofline, Work

flops = 2 * 1024 * 4096 * 4096
h200_bf16 = Roofline(DEVICES["H200"], "bf16")
in_bf16 = tokens.nbytes // 2  # half the bytes of fp32
matmul = Work(flops, weights // 2 + in_bf16, in_bf16)
extra = 2 * in_bf16 / DEVICES["H200"].memory_bandwidth  # y written and read back
print(f"the matmul in bf16 on an H200 is {h200_bf16.bound(matmul)}-bound")
print(f"at best, the matmul takes {1e6 * h200_bf16.time(matmul):.1f} us")
print(f"writing y and reading it back takes {1e6 * extra:.1f} us")

# %% [markdown]
# The matmul takes as long as its arithmetic does, so a quarter of the bytes is at most about a tenth of the time. In
# lesson 08 we'll fuse this very example and measure it.
#
# ## Your predictions vs the measurements

# %% tags=["nbval-ignore-output", "hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. How many bytes of traffic do you save by writing `x.mul_(2)` instead of `x = x * 2`?
# <details><summary>Answer</summary>None. Either way it reads one tensor and writes one. It only saves the space for a
# second tensor.</details>
#
# 2. A chain of three: `y = x * 2`, `z = y + 1`, `w = relu(z)`. Another operation also needs `z`. What does fusing all
#    three still save?
# <details><summary>Answer</summary>The write and the read of y, and the read of z. You still have to write z because
# something else needs it, so three passes out of six remain.</details>
#
# 3. A kernel computes the right result in one launch. How could it still move many times more bytes than it needs to?
# <details><summary>Answer</summary>By storing or loading the same data over and over, like the store in the loop. The
# values don't show it, but the meter's line-by-line table does, even where a cache hides it from DRAM.</details>
#
# 4. Your model calls many small kernels, and the profiler shows that the GPU is idle half of the time. What will help,
#    and what won't?
# <details><summary>Answer</summary>Fewer launches will help: fuse the kernels, or replay them from a CUDA graph. A GPU
# with faster memory won't: it would finish each kernel sooner and then wait longer for the CPU.</details>
#
# 5. `relu(a * b + c)` involves four tensors of the same size (the three inputs and the result). What share of the
#    traffic does fusing save, in %? Replace the dots with your number.

# %%
answer = ...
x1, x2, x3 = torch.rand(3, 1000, device=device)
whole = measure(lambda: torch.relu(x1 * x2 + x3)).bytes_total
correct = 100 * (1 - 4 * x1.nbytes / whole)
self_test(answer, correct, "count every read and write; the fused kernel moves four tensors")

# %% [markdown]
# ## Now you
#
# In [Exercise 02](../exercises/02_count_the_bytes.ipynb) you'll count the bytes in snippets of PyTorch before the meter
# does, and correct a worked example. Next: [03 Your first fused kernel](03_first_fused_kernel.ipynb).

# %% [markdown]
# ## Going further
#
# ### How good is the model?
#
# Its launch costs come from the smallest chain we recorded, so we can test it on the larger ones:

# %% tags=["hide-input"]
rows = []
for n, times in list(h200.experiment("chain_sizes").items())[4:]:
    for version in ("eager", "fused"):
        launches, host = (4, costs.operator) if version == "eager" else (1, costs.triton)
        nbytes = launches * 2 * 4 * n
        model = chain_time(launches, nbytes, h200.copy_bandwidth, host, costs.start).total
        call = times["call"][version].median
        rows.append((f"{n:,}", version, f"{1e6 * model:.1f} us", f"{1e6 * call:.1f} us"))
columns = ("elements", "a chain of 4", "model", "measured, per call on an H200")
table(columns, rows, h200.label_of("chain_sizes"))

# %% [markdown]
# If you have a GPU, here is your own chain at different lengths:

# %% tags=["nbval-ignore-output", "hide-input"]
from benchmarks.experiments.lesson_02 import EXPERIMENTS

if runtime.has_gpu():
    for operations, timings in EXPERIMENTS["chain_lengths"]().items():
        print(f"{operations} operations: {timings}")
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
