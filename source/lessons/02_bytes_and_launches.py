# %% [markdown]
# # 02 Bytes and launches: what fusing removes
#
# Eight operations, one after another, on one tensor. Fuse them and most of the traffic is gone: **how much, exactly?**
# Now fuse two operations on a small tensor. That saves traffic as well. **Why may the call then take longer?**
#
# After this lesson you can
#
# - count the bytes and the launches of a piece of PyTorch by reading it;
# - derive the saving of a fused chain, and the cases where the rule does not hold;
# - decide whether a call waits for memory or for launches, and at what size that changes;
# - find the bytes that a published example forgot.
#
# About 40 minutes. It follows on [01 The roofline](01_roofline.ipynb) and leads to
# [exercise 02](../exercises/02_count_the_bytes.ipynb).

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
# Three operations in a row, as three kernels and as one. Press **Play**: every crossing takes as long as its bytes.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("chain")

# %% [markdown]
# ## Count first: three lines of PyTorch
#
# `x` is 1000 × 1000 in fp32; `scale` and `bias` are one row each. **How many MB do its launches move?** Every
# [operator](../docs/glossary.md#operator) is one launch. It reads each of its inputs once and writes its output once.
# (Bytes in this lesson are the ones that kernels *request*. How many of them a cache delivers instead of DRAM matters on
# tensors small enough for L2, and in the lessons from 03 on.)


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
# The launch table lists the traffic of each operator. The two rows hardly count: they are
# [broadcast](../docs/glossary.md#broadcast), and read once each.

# %%
eager.launch_table()

# %% [markdown]
# All of it was *requested*. **Look at how much L2 holds**: our tensors fit into it many times over, so many requests
# never get as far as memory.

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H200", lit="L2")

# %% [markdown]
# ## In place, views, copies
#
# "Write it in place, that saves memory." It saves space. Traffic is another matter: `relu_` overwrites its input, and
# must still read it and write it.

# %%
print("relu: ", measure(torch.relu, x))
print("relu_:", measure(torch.Tensor.relu_, x.clone()))

# %% [markdown]
# A [view](../docs/glossary.md#view), on the other hand, costs nothing, and making it contiguous costs a whole pass:

# %%
print("transposed:", measure(lambda: x.t()))
print("copied:    ", measure(lambda: x.t().contiguous()))

# %% [markdown]
# ## Chains
#
# Take a chain of $N$ operations that each read one tensor and write one. Call the bytes of a tensor $B$.
#
# - Unfused, each operation reads $B$ and writes $B$: together $2NB$.
# - Fused, the first input is read and the last output written: $2B$, however long the chain.
#
# The saving is $(2NB - 2B) / 2NB = (N - 1) / N$. The meter agrees:


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
title = f"Fusing two operations saves {saved[2]:.0f} % of the bytes, fusing eight {saved[8]:.1f} %"
curves_chart(
    {"the meter": saved}, title, x="N, operations in the chain", y="bytes saved (%)", limit=rule
)

# %% [markdown]
# The first fusions bring most of it.
#
# ## When the rule does not hold
#
# You will find (N−1)/N quoted without its condition. **Claim: fusing two elementwise operations halves the traffic.**
# ([Elementwise](../docs/glossary.md#elementwise): each element of the result depends only on the inputs at its place.)
# Try it on `gelu(a + b)`. The addition reads *two* tensors. **What share of the traffic does fusing save here?**

# %% tags=["hide-input"]
with_two = predict_first("traffic saved by fusing gelu(a + b)", unit="%")
with_two

# %% tags=["hide-input"]
a, b = torch.rand(2, 100_000, device=device)
before = measure(lambda: gelu(a + b, approximate="tanh"))
after = 3 * a.nbytes  # read a, read b, write the result
with_two.compare(
    100 * (1 - after / before.bytes_total),
    "Verdict: fails here, holds for chains that read one tensor. An input from outside must be "
    "read, fused or not.",
)

# %% [markdown]
# In general, **fusing saves one write and one read of each [intermediate](../docs/glossary.md#intermediate), and nothing
# else.** Count the intermediates that no other operation needs; that is the saving, whatever the operations are.
#
# ## Fusing it, and a mistake
#
# Here is the chain as one kernel. It is written in Triton, which the next lesson teaches; read it as Python: load some
# elements, work on them, store them. One line is indented too far.

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
# Fused, eight operations on fp32 elements should move eight bytes per element. **How many does this kernel move?**

# %% tags=["hide-input"]
misplaced = predict_first("bytes per element, a chain of 8, one line misplaced", unit="B")
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
    "The store is inside the loop. One launch and the right result: no test of values finds this.",
)

# %% [markdown]
# The meter reports the line. (Its last column is the number of [sectors](../docs/glossary.md#sector), the pieces of 32
# bytes that caches move, per request of a warp: lesson 03b.)
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %%
wrong.line_table()

# %% [markdown]
# Does the compiler perhaps drop a store that the next one overwrites? Triton's compiler runs here, with or without a GPU.
# Compiled for an A100, each thread has eight elements and stores four at once:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import compile_for

meta = torch.empty(10_000, device="meta")  # meta tensor: nothing runs


def stores(kernel):
    made = compile_for(kernel, meta, meta, 10_000, device="A100", OPERATIONS=8)
    return f"{made.instructions['STG.128']} stores per thread"


print(stores(misplaced_kernel))

# %% [markdown]
# It does not. The store belongs after the loop:


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
title = f"Fusing a chain of 4 moves {ratio:g}x fewer bytes"
traffic_chart({"unfused": four_launches, "fused": one_launch}, title)

# %% [markdown]
# Now fuse by yourself. This kernel has an addition and a ReLU in one launch, and yet keeps the round trip through memory.
# **Delete the lines it does not need.**


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
# <details><summary>Answer</summary>The first <code>tl.store</code> and the <code>tl.load</code> after it: two lines
# deleted. The sum is already in <code>s</code>.</details>
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
# A CPU also waits for its memory. `torch.compile` turns the chain into one loop in C++ and compiles it, here and now;
# the first call takes a few seconds for that. **How many times faster will the fused chain of eight be?** Assume that
# only the bytes count.

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
    finding = "It may gain more than the bytes: eager allocates a new tensor per operation."
    display(on_cpu.compare(cpu_times[8] / fused_time, finding))
else:
    print("No C++ compiler here: torch.compile needs one, such as Debian's package g++.")
table(("", "operations", "time"), rows)

# %% [markdown]
# On a GPU, PyTorch reuses the memory of deleted tensors. Does the same chain on an H200 save as much time as traffic?

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
# Time is traffic, where the tensors are large. `torch.compile` has fused your chain on its own; lesson 13 looks at what
# it fuses, and what not.
#
# ## The launch
#
# So far, bytes. A launch has a cost of its own: the CPU must look up the operator, allocate the output, hand the kernel
# to the GPU. What does a call cost on this machine, when there is next to nothing to compute? (Without a GPU nothing is
# launched: you then see PyTorch's own overhead for a call.)

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

sizes = (1, 1_000, 10_000, 100_000)
tensors = {n: torch.rand(n, device=device) for n in sizes}
calls = {n: lambda n=n: torch.relu(tensors[n]) for n in sizes}
taken = benchmark_together(calls, runs=5, launches=True)
table(("relu of", "time"), ((f"{n:,} elements", timing) for n, timing in taken.items()))

# %% [markdown]
# For small tensors the size hardly matters: you see the [launch overhead](../docs/glossary.md#launch-overhead). It has
# two parts: the CPU must hand the kernel over, and the GPU must start it. **Claim: a kernel launch costs 5 to 10 µs.** On
# an H200 both parts were measured. An *empty launch* is the driver's own, from C, in a row of launches; *operator* is a
# call of PyTorch's ReLU; *Triton* a call of an empty kernel from Python. The GPU's part is that of an empty kernel, then
# of one that copies a thousand elements, which are in L2 or, cold, only in DRAM.

# %% tags=["hide-input"]
apart = h200.experiment("launches")
rows = []
for where, name, what in (
    ("host", "bare", "CPU: an empty launch, from C"),
    ("host", "operator", "CPU: an operator of PyTorch"),
    ("host", "triton", "CPU: a Triton kernel, from Python"),
    ("gpu", "empty", "GPU: an empty kernel"),
    ("gpu", "near", "GPU: first access in L2"),
    ("gpu", "far", "GPU: first access in DRAM"),
):
    cost_of = apart[where][name].median
    fared = "holds" if 5e-6 <= cost_of <= 10e-6 else "fails"
    rows.append((what, f"{1e6 * cost_of:.1f} us", f"the claim {fared}"))
table(("", "time", "5 to 10 us?"), rows, h200.label_of("launches"))

# %% [markdown]
# **Verdict: depends on what you call a launch.** The driver's own costs less than claimed. A caller who goes through
# PyTorch or Triton also pays for looking up the operator, checking, allocating or preparing arguments, and such a call
# costs about what is claimed. The GPU's part is far smaller: where kernels are recorded once in a
# [CUDA graph](../docs/glossary.md#cuda-graph) and replayed together, only that remains. (The first access is not part of
# the launch: a kernel waits for its first elements, and a small one has nothing else to do. It is often counted in.)
#
# ## CPU-bound or GPU-bound?
#
# The CPU does not wait for a kernel to end; it launches the next. The GPU runs them one after another. The cost of a
# launch here is that of a chain of four on a thousand elements, which is all launch overhead; the GPU's start is the
# whole of a small kernel, including its first access to cold memory.

# %% tags=["hide-input"]
from helpers.figures import chain_time, launch_costs, launch_timeline

costs = launch_costs(h200)
print(f"CPU: {1e6 * costs.operator:.1f} us per operator", end="")
print(f", {1e6 * costs.triton:.1f} us per Triton kernel")
print(f"GPU: {1e6 * costs.start:.1f} us per small kernel", end="")
print(f"; copies {h200.copy_bandwidth / 1e9:,.0f} GB/s")

# %% [markdown]
# Four operations three ways, on one axis: launched one by one, as one Triton kernel, and as a CUDA graph, which the CPU
# starts once for all. Press **Play**, then choose more elements, and find the size at which the CPU no longer holds up
# the GPU.

# %% tags=["hide-input"]
launch_timeline(h200)

# %% [markdown]
# <details><summary>What you should see</summary>Four launches one by one: at 4,194,304 elements and more, the GPU still
# has work left when the CPU has launched everything. At 65,536 it waits most of the time, and fusing or a graph gains
# most.</details>
#
# So in a row of calls the slower of the two sets the pace:
#
# - CPU: launches × cost of a launch;
# - GPU: launches × cost of a start + bytes ÷ bandwidth.
#
# Here is `gelu(a + b)` on a million elements, recorded both ways: the GPU's own time, and the time per call in a long row
# of calls.

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
# The GPU needs less time for the fused kernel, and the call takes *longer*: here the GPU waits for the CPU. The fused call
# runs through Python, checks its inputs and allocates its output there; PyTorch's operators do that in C++. (The kernel
# and its checks are the same in both dtypes, and yet the calls differ. Host times depend on the host, and on its other
# work at that moment: compare them within a row of one recording, and expect no more than the order of magnitude.)
#
# ## Other sizes, chains and GPUs
#
# The model above, for a chain as long and a tensor as large as you like. Where a line is flat, launches decide; where it
# climbs, memory. (The cost of a launch is that of the H200's machine for every GPU; bandwidth is the data sheet's.) Find
# out:
#
# 1. At what size does the fused chain begin to climb? Why later than the unfused one?
# 2. How short must a chain be for fusing in Triton to be slower on small tensors? And if the fused kernel is launched
#    from C++?
# 3. If a CUDA graph launches the chain, what does fusing still save on small tensors?
# 4. Go from an H200 to a T4. Do launches matter more or less?

# %% tags=["hide-input"]
from helpers.figures import LaunchExplorer

explorer = LaunchExplorer(device="H200", elements=1_000_000, operations=4)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. Where its bytes take as long as its launch. A launch from Triton
# costs more than an operator's, so that is later. 2. One or two operations: that few operators cost less than one
# launch from Triton. From C++ it is never slower. 3. The starts on the GPU: one instead of as many as there are
# operations. 4. Less: where memory is slower, the bytes take most of the time on smaller tensors already.</details>
#
# **At what size do the bytes of a single PyTorch operator take as long as its launch, on an H200?** The operator reads
# four bytes per element and writes four; its launch cost and the GPU's copy bandwidth are printed above the timeline.

# %% tags=["hide-input"]
large_enough = predict_first("size at which bytes take as long as a launch", unit="numbers")
large_enough.on(explorer, "x")  # your guess, marked in the picture above
large_enough


# %% tags=["hide-input"]
def break_even(host):
    """Return the size at which one elementwise operation in fp32 takes as long as its launch."""
    return host * h200.copy_bandwidth / (2 * 4)


large_enough.compare(
    break_even(costs.operator),
    f"A Triton kernel: {break_even(costs.triton):,.0f}. That is millions of elements.",
)

# %% [markdown]
# Far above that size, fusing helps by saving *bytes*. Below, it helps by saving *launches*, and only if the fused
# kernel's launch costs less than those it replaces. Launched from C++ or by a CUDA graph, it does. So the two halves of
# this lesson are the two halves of every decision to fuse.
#
# ## Find the missing bytes
#
# A worked example that gets passed around: *Linear(4096 → 4096) and GELU on 1024 rows, in fp32. Unfused, the linear
# layer reads x and writes y, GELU reads y and writes z: four tensors of 1024 × 4096. Fused, x is read and z written:
# two. **Claim: fusing halves the traffic.*** Something is missing. **What share does fusing save, all bytes counted?**

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
    "Verdict: fails, only a quarter is saved, half of what is claimed. The example forgets "
    f"{weights / 1e6:.2f} MB of "
    "weights: they are also read, and they are larger than any of the four tensors.",
)

# %% [markdown]
# And does the *time* fall by that much? Ask the roofline of lesson 01, in bf16, where tensor cores make the matmul short
# and a saving weighs most.

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
# The matmul takes the time of its arithmetic; the time that fusing saves is short next to it. Lesson 08 fuses exactly
# this, and measures it.
#
# ## Your predictions vs the measurements

# %% tags=["nbval-ignore-output", "hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. `x.mul_(2)` instead of `x = x * 2`: how many bytes of traffic does it save?
# <details><summary>Answer</summary>None. It reads x and writes x either way. It saves the space for a second
# tensor.</details>
#
# 2. A chain of three: `y = x * 2`, `z = y + 1`, `w = relu(z)`. Another operation needs `z` as well. What does fusing all
#    three still save?
# <details><summary>Answer</summary>The write and the read of y, and the read of z. z must be written, because it is needed
# elsewhere: three passes of the six remain.</details>
#
# 3. A kernel has the right result and runs in one launch. How could it still move many times too many bytes?
# <details><summary>Answer</summary>By storing or loading the same data again and again, like the store in the loop. Values
# do not show it; the meter's table by line does.</details>
#
# 4. Your model calls many small kernels, and the profiler shows the GPU idle half of the time. What will help, and
#    what will not?
# <details><summary>Answer</summary>Fewer launches: fuse, or replay them from a CUDA graph. A GPU with faster memory
# will not help: nothing waits for memory here.</details>
#
# 5. `relu(a * b + c)` with four tensors of the same size (the three inputs and the result). What share of the traffic
#    does fusing save, in %? Replace the dots with your number.

# %%
answer = ...
x1, x2, x3 = torch.rand(3, 1000, device=device)
whole = measure(lambda: torch.relu(x1 * x2 + x3)).bytes_total
correct = 100 * (1 - 4 * x1.nbytes / whole)
self_test(answer, correct, "count every read and write; fused, four tensors cross")

# %% [markdown]
# ## Now you
#
# [Exercise 02](../exercises/02_count_the_bytes.ipynb) gives you snippets of PyTorch to count before the meter does,
# and a worked example to put right. Next: [03 Your first fused kernel](03_first_fused_kernel.ipynb).

# %% [markdown]
# ## Going further
#
# ### Is the model any good?
#
# Its launch costs come from the smallest chain that was recorded; the larger ones are a test.

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
# With a GPU, here is your own chain, over its length:

# %% tags=["nbval-ignore-output", "hide-input"]
from benchmarks.experiments.lesson_02 import EXPERIMENTS

if runtime.has_gpu():
    for operations, timings in EXPERIMENTS["chain_lengths"]().items():
        print(f"{operations} operations: {timings}")
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
