# %% [markdown]
# # 02 Bytes and launches: what fusing removes
#
# Eight operations, one after another, on one tensor. Fuse them and most of the traffic is gone: **how much,
# exactly?** Now fuse two operations on a small tensor. That saves traffic, too. **Why may the call then take
# longer?**
#
# After this lesson you can
#
# - count the bytes and the launches of a piece of PyTorch by reading it;
# - derive what fusing a chain saves, and say when the rule does not hold;
# - tell whether a call waits for memory or for launches, and from which size on;
# - find the bytes that a published example forgot.
#
# About 40 minutes. It follows on [01 The roofline](01_roofline.ipynb) and leads to
# [exercise 02](../exercises/02_count_the_bytes.ipynb).

# %%
import torch
from torch.nn.functional import gelu

from helpers.instruments import measure, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
x = torch.rand(1000, 1000, device=device)

# %% [markdown]
# ## Count first: three lines of PyTorch
#
# `x` is 1000 × 1000 in fp32; `scale` and `bias` are one row each. **How many launches, and how many MB?** Every
# operator is one launch. It reads each of its inputs once and writes its output once. (Bytes in this lesson are what
# kernels *request*. How much of it DRAM delivers, and not a cache, is a question of its own; it matters on tensors
# small enough for L2, and in the lessons from 03 on.)


# %%
def layer(x, scale, bias):
    shifted = x * scale + bias
    return torch.relu(shifted)


# %%
layer_bytes = predict_first("bytes moved by relu(x * scale + bias)", unit="MB")
layer_bytes

# %%
scale, bias = torch.rand(2, 1000, device=device)
eager = measure(layer, x, scale, bias)
eager

# %%
layer_bytes.compare(eager.bytes_total / 1e6)

# %% [markdown]
# The launch table says which operator moved what. The two rows hardly count: they are broadcast, and read once each.

# %%
eager.launch_table()

# %% [markdown]
# All of it was *requested*. **Look at how much L2 holds**: our tensors fit into it many times over, so much of what is
# requested never gets as far as memory.

# %%
from helpers.figures import gpu_picture

gpu_picture("H200", lit="L2")

# %% [markdown]
# ## In place, views, copies
#
# "Write it in place, that saves memory." It saves room. **Does it save traffic?** `relu_` overwrites its input:

# %%
print("relu: ", measure(torch.relu, x))
print("relu_:", measure(torch.Tensor.relu_, x.clone()))

# %% [markdown]
# Not a byte. What an operator changes, it must read and write all the same. A view, on the other hand, costs nothing,
# and making it contiguous costs a whole pass:

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
# The saving is $(2NB - 2B) / 2NB$. **What share is that for a chain of eight?**

# %%
saving = predict_first("traffic saved by fusing a chain of 8", unit="%")
saving


# %%
def chain(x, operations):
    for _ in range(operations):
        x = x * 0.9  # any operation that takes one tensor and gives one
    return x


chains = {n: measure(chain, x, n) for n in range(1, 9)}
saved = {n: 100 * (1 - 2 * x.nbytes / each.bytes_total) for n, each in chains.items()}
print(f"unfused, a chain of eight: {chains[8]}")
saving.compare(saved[8])

# %%
from helpers.figures import curves_chart

rule = {"(N - 1) / N": {tenths / 10: 100 * (1 - 10 / tenths) for tenths in range(10, 81)}}
title = f"Fusing two operations saves {saved[2]:.0f} % of the bytes, fusing eight {saved[8]:.1f} %"
chart = curves_chart(
    {"the meter": saved}, title, x="N, operations in the chain", y="bytes saved (%)", limit=rule
)
saving.on(chart, "y")

# %% [markdown]
# The derivation and the meter agree: **fusing N operations saves (N−1)/N of the traffic.** The first fusions bring
# most of it: two operations already save half.
#
# ## When the rule does not hold
#
# You will find (N−1)/N quoted without its condition. **Claim: fusing two elementwise operations halves the traffic.**
# Try it on `gelu(a + b)`. The addition reads *two* tensors. What does fusing save here?

# %%
with_two = predict_first("traffic saved by fusing gelu(a + b)", unit="%")
with_two

# %%
a, b = torch.rand(2, 100_000, device=device)
before = measure(lambda: gelu(a + b, approximate="tanh"))
after = 3 * a.nbytes  # read a, read b, write the result
with_two.compare(100 * (1 - after / before.bytes_total))

# %% [markdown]
# **Verdict: fails here, holds for chains that read one tensor.** What comes in from outside must be read, fused or not.
# In general, **fusing saves a write and a read of each intermediate, and nothing else.** Count the intermediates that
# nobody else needs; that is the saving, whatever the operations are.
#
# ## Fusing it, and a mistake
#
# Here is the chain as one kernel. It is written in Triton, which is the next lesson's matter; read it as Python: load
# some numbers, work on them, store them. Somebody moved one line too far to the right.

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
# Fused, eight operations on fp32 numbers should move eight bytes an element. **How many does this kernel move?**

# %%
misplaced = predict_first("bytes an element, a chain of 8, one line misplaced", unit="B")
misplaced


# %%
def launch(kernel, x, operations):
    y = torch.empty_like(x)
    programs = triton.cdiv(x.numel(), 1024)
    kernel[(programs,)](x, y, x.numel(), OPERATIONS=operations)
    return y


small = torch.rand(10_000, device=device)
wrong = measure(launch, misplaced_kernel, small, 8)
print(wrong)
misplaced.compare(wrong.bytes_total / small.numel())

# %%
right_result = torch.allclose(launch(misplaced_kernel, small, 8), chain(small, 8))
print("the result is right:", right_result)

# %% [markdown]
# One launch, and the right result: no test of values finds this. The meter does, and says in which line. (What the
# last column counts, lesson 03 explains.)

# %%
wrong.line_table()

# %% [markdown]
# Would the compiler not drop what the next store overwrites? Triton's compiler runs here, GPU or none. Compiled for an
# A100, a thread has eight numbers, and stores four at once:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import compile_for

meta = torch.empty(10_000, device="meta")  # no contents: nothing will run


def stores(kernel):
    made = compile_for(kernel, meta, meta, 10_000, device="A100", OPERATIONS=8)
    return f"{made.instructions['STG.128']} stores a thread"


print(stores(misplaced_kernel))

# %% [markdown]
# It does not. The store stands inside the loop. It belongs after it:


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

# %% tags=["nbval-ignore-output"]
print(stores(chain_kernel))

# %% [markdown]
# As a picture, with a chain of four, so that its bars can be told apart:

# %%
from helpers.figures import traffic_chart

four_launches = measure(chain, small, 4)
one_launch = measure(launch, chain_kernel, small, 4)
times_fewer = four_launches.bytes_total / one_launch.bytes_total
title = f"Fusing a chain of 4 moves {times_fewer:g} times fewer bytes"
traffic_chart({"unfused": four_launches, "fused": one_launch}, title)

# %% [markdown]
# Now fuse by yourself. Somebody put an addition and a ReLU into one kernel, one launch, and left the way over memory
# in between. **Delete what need not be there.**


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


first, second = torch.arange(12.0) - 6, torch.arange(12.0) / 4
puzzle(add_relu_kernel, 3, first, second, wanted=torch.relu(first + second), BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary>The first <code>tl.store</code> and the <code>tl.load</code> after it: two lines
# deleted. The sum is at hand in <code>s</code>.</details>

# %% [markdown]
# ## For real, on your own CPU
#
# A CPU waits for its memory, too. `torch.compile` turns the chain into one loop in C++ and compiles it, here and now;
# the first call takes a few seconds for that. **How many times faster will the fused chain of eight be?** If memory
# is all that counts, the bytes tell.

# %%
on_cpu = predict_first("speed-up from fusing a chain of 8 on this CPU", unit="times")
on_cpu

# %%
import time
from statistics import median


def seconds(function, runs=5):
    """The host's clock, after a first call that compiles what there is to compile."""
    function()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


# %% tags=["nbval-ignore-output"]
import shutil

large = torch.rand(2**24)  # 64 MiB, more than most caches hold
cpu_times = {n: seconds(lambda n=n: chain(large, n)) for n in (1, 2, 4, 8)}
rows = [("eager", n, f"{1e3 * taken:.1f} ms") for n, taken in cpu_times.items()]
if shutil.which("g++"):
    compiled = torch.compile(chain, dynamic=False)
    fused_time = seconds(lambda: compiled(large, 8))
    rows.append(("fused", 8, f"{1e3 * fused_time:.1f} ms"))
    display(on_cpu.compare(cpu_times[8] / fused_time))
else:
    print("No C++ compiler here: torch.compile needs one, such as Debian's package g++.")
table(("", "operations", "time"), rows)

# %% [markdown]
# The eager chain's time grows with each operation; the fused one's is about that of a single operation. (It may gain
# even more than the bytes say: eager allocates a fresh tensor for each operation, and on a CPU that is not free.)
#
# On a GPU PyTorch keeps the memory of tensors that are gone for those to come. The same chain on an H200, eager and as
# one kernel: is the time saved the traffic saved, or is there such a side cost?

# %%
from helpers.instruments import recorded

h200 = recorded("h200")
print(h200.label_of("chain_lengths"))
took = h200.experiment("chain_lengths")
share = {
    n: 100 * max(0, 1 - each["fused"].median / each["eager"].median) for n, each in took.items()
}
off = max(abs(share[n] - saved[n]) for n in share)
curves_chart(
    {"time saved": share},
    f"The share of time saved is that of bytes saved, to {off:.2f} per cent points",
    x="N, operations in the chain",
    y="time saved on an H200 (%), 2^28 numbers in fp32",
    limit={"bytes saved": rule["(N - 1) / N"]},
)

# %% [markdown]
# The marks lie on the curve: there is no side cost to be seen. Time is traffic, where the tensors are large.
#
# `torch.compile` has fused your chain on its own. Lesson 13 looks at what it fuses, and what not.
#
# ## The launch
#
# So far, bytes. A launch has a price of its own: the CPU must look up the operator, allocate the output, hand the
# kernel to the GPU. **Claim: a kernel launch costs 5 to 10 µs.** What does a call cost on this machine, when there is
# next to nothing to compute? And at which size does the work itself begin to count? (Without a GPU nothing is
# launched: what you then see is PyTorch's own overhead for a call.)

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together

sizes = (1, 1_000, 10_000, 100_000)
tensors = {n: torch.rand(n, device=device) for n in sizes}
calls = {n: lambda n=n: torch.relu(tensors[n]) for n in sizes}
taken = benchmark_together(calls, runs=5, launches=True)
table(("relu of", "time"), ((f"{n:,} numbers", timing) for n, timing in taken.items()))

# %% [markdown]
# For small tensors the size hardly matters: what you see is the price of asking.
#
# Whose price? A launch has two: the CPU must hand the kernel over, and the GPU must start it. On an H200 both were
# taken apart. *Bare* is the driver's own launch of an empty kernel, from C, in a row of launches; *operator* a call of
# PyTorch's ReLU; *Triton* a call of an empty kernel from Python. The GPU's share is that of an empty kernel, then of
# one that copies a thousand numbers, which lie in L2 or, cold, only in DRAM. How fares the claim?

# %%
apart = h200.experiment("launches")
rows = []
for where, who, what in (
    ("host", "bare", "the CPU: a bare launch, from C"),
    ("host", "operator", "the CPU: an operator of PyTorch"),
    ("host", "triton", "the CPU: a Triton kernel, from Python"),
    ("gpu", "empty", "the GPU: an empty kernel"),
    ("gpu", "near", "the GPU: first access in L2"),
    ("gpu", "far", "the GPU: first access in DRAM"),
):
    cost_of = apart[where][who].median
    fared = "holds" if 5e-6 <= cost_of <= 10e-6 else "fails"
    rows.append((what, f"{1e6 * cost_of:.1f} us", f"the claim {fared}"))
table(("", "time", "5 to 10 us?"), rows, h200.label_of("launches"))

# %% [markdown]
# **Verdict: depends on what is called a launch.** The driver's own costs less than is claimed. A caller who goes
# through PyTorch or Triton also pays for looking up the operator, checking, allocating or preparing arguments, and what
# such a call costs is what is claimed. The GPU's share is far smaller: where kernels are recorded once in a *CUDA
# graph* and replayed together, the CPU drops out and only that remains. (The first access is no launch: a kernel waits
# for its first numbers, and a small one has nothing else to do. It is often counted in.)
#
# The course has also recorded `gelu(a + b)` both ways: the GPU's own time, and what a caller waits per call in a long
# row of calls. **On a million numbers, how many times faster is a call of the fused kernel?** It moves fewer bytes in
# half the launches, as you have counted. Two operators against one Triton kernel: you have what each costs the CPU.
# (The empty kernel above had no inputs to check and no output to allocate.)

# %%
small_call = predict_first("speed-up of a call of add+GELU, 1M numbers", unit="times")
small_call

# %%
both_clocks = {
    (row["shape"][0], row["dtype"], row["provider"]): row
    for row in h200.rows
    if row["kernel"] == "add_gelu" and row["call"]  # long calls wait for the GPU alone
}
rows = []
for (n, dtype, version), row in both_clocks.items():
    times = (f"{1e6 * row[clock]['median']:.1f} us" for clock in ("gpu", "call"))
    rows.append((f"{n:,}", dtype, version, *times))
table(("numbers", "dtype", "version", "GPU", "call"), rows, h200.label_of("add_gelu"))

# %%
million = 2**20
eager_call = both_clocks[million, "float32", "eager"]["call"]["median"]
fused_call = both_clocks[million, "float32", "fused"]["call"]["median"]
small_call.compare(eager_call / fused_call)

# %% [markdown]
# Not what the bytes promised. The GPU needs less time for it, but nobody waits for the GPU here. All of the call is the
# CPU launching; and one kernel through Python, which checks its inputs and allocates its output there, costs about what
# two of PyTorch's operators do, which are C++.
#
# ## Who waits for whom
#
# The CPU does not wait for a kernel to end; it launches the next. The GPU runs them one after another. What a launch
# costs is taken from a chain of four on a thousand numbers, which is nothing but launches; the GPU's start here is the
# whole of a small kernel, its first access to cold memory included.

# %%
from helpers.figures import chain_time, launch_costs, launch_timeline

costs = launch_costs(h200)
print(
    f"CPU: {1e6 * costs.operator:.1f} us an operator, {1e6 * costs.triton:.1f} us a Triton kernel"
)
print(
    f"GPU: {1e6 * costs.start:.1f} us a small kernel; copies {h200.copy_bandwidth / 1e9:,.0f} GB/s"
)

# %% [markdown]
# Four operations three ways, on one axis: launched one by one, as one Triton kernel, and as a **CUDA graph**, which the
# CPU starts once for all. How long the GPU works is recorded. Press **Play**, then choose more numbers. **From which
# size on does the CPU no longer hold up the GPU?**

# %%
launch_timeline(h200)

# %% [markdown]
# <details><summary>What is to be found</summary>Four launches one by one: from 4,194,304 numbers on, the GPU has work
# left when the CPU has launched all. At 65,536 it waits most of the time, and fusing or a graph gains most.</details>
#
# So in a row of calls the slower of the two sets the pace:
#
# - CPU: launches × cost of a launch;
# - GPU: launches × cost of a start + bytes ÷ bandwidth.
#
# Is the model any good? Its launch costs come from the smallest chain that was recorded; the larger ones are a test.

# %%
rows = []
for n, times in list(h200.experiment("chain_sizes").items())[4:]:
    for version in ("eager", "fused"):
        launches, host = (4, costs.operator) if version == "eager" else (1, costs.triton)
        nbytes = launches * 2 * 4 * n
        model = chain_time(launches, nbytes, h200.copy_bandwidth, host, costs.start).total
        call = times["call"][version].median
        rows.append((f"{n:,}", version, f"{1e6 * model:.1f} us", f"{1e6 * call:.1f} us"))
table(
    ("numbers", "a chain of 4", "model", "measured, a call on an H200"),
    rows,
    h200.label_of("chain_sizes"),
)

# %% [markdown]
# ## Move it
#
# The same model, for a chain as long and a tensor as large as you like. Where a line is flat, launching is what takes
# the time; where it climbs, memory. (What a launch costs is taken from the H200's machine for every GPU; the
# bandwidth is the data sheet's.) Find out:
#
# 1. At which size does the fused chain begin to climb? Why later than the unfused one?
# 2. How short must a chain be for fusing in Triton to be slower on small tensors? And if the fused kernel is launched
#    from C++?
# 3. By a CUDA graph: what does fusing still save on small tensors?
# 4. Go from an H200 to a T4. Do launches matter more or less?

# %%
from helpers.figures import LaunchExplorer

explorer = LaunchExplorer(device="H200", elements=1_000_000, operations=4)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. Where its bytes take as long as its launch. A launch from Triton
# costs more than an operator's, so that is later. 2. One or two operations: so many operators cost less than one
# launch from Triton. From C++ it is never slower. 3. The starts on the GPU: one in place of as many as there are
# operations. 4. Less: where memory is slower, the bytes take most of the time on smaller tensors already.</details>
#
# From which size on does memory take most of a single launch's time? Where the bytes take as long as the launch.
# **How many numbers are that, for one PyTorch operator on an H200?** What an operator costs the CPU and what the GPU
# copies a second stand above the timeline; an operator reads four bytes a number and writes four.

# %%
large_enough = predict_first("size at which bytes take as long as a launch", unit="numbers")
large_enough.on(explorer, "x")  # your guess, marked in the picture above
large_enough


# %%
def break_even(host):
    """Numbers at which one elementwise operation in fp32 takes as long as its launch."""
    return host * h200.copy_bandwidth / (2 * 4)


print(f"a Triton kernel on an H200: {break_even(costs.triton):,.0f} numbers")
large_enough.compare(break_even(costs.operator))

# %% [markdown]
# That is millions of numbers. Far above, fusing helps by saving *bytes*. Below, it helps by saving *launches*, and only
# if the fused kernel's launch costs less than those it replaces: launched from Triton, one launch cost more than two
# operators', as you saw; launched from C++ or by a CUDA graph, it does not. So the two halves of this lesson are the
# two halves of every decision to fuse.
#
# ## Find the missing bytes
#
# A worked example that gets passed around: *Linear(4096 → 4096) and GELU on 1024 rows, in fp32. Unfused, the linear
# layer reads x and writes y, GELU reads y and writes z: four tensors of 1024 × 4096. Fused, x is read and z written:
# two. **Claim: fusing halves the traffic.*** Something is missing. **What does fusing save, all bytes counted?**

# %%
linear_saving = predict_first("traffic saved by fusing Linear(4096) and GELU", unit="%")
linear_saving

# %%
linear = torch.nn.Linear(4096, 4096, device=device)
rows = torch.rand(1024, 4096, device=device)
with torch.no_grad():
    example = measure(lambda: gelu(linear(rows)))
print(example)
example.tensor_table()

# %% [markdown]
# The weights. They are read, too, and they are larger than any of the four tensors.

# %%
weights = example.by_tensor["linear['weight']"].read
intermediate = 2 * rows.nbytes  # y, written and read back
print(f"forgotten: {weights / 2**20:.0f} MiB of weights")
linear_saving.compare(100 * intermediate / example.bytes_total)

# %% [markdown]
# **Verdict: fails, half of it is saved.** And does the *time* fall by that much? Lesson 01 has the answer ready: ask
# the roofline, in bf16, where tensor cores make the product short and a saving weighs most.

# %%
from helpers.instruments import DEVICES, Roofline, Work

flops = 2 * 1024 * 4096 * 4096
h200_bf16 = Roofline(DEVICES["H200"], "bf16")
in_bf16 = rows.nbytes // 2  # half the bytes of fp32
product = Work(flops, weights // 2 + in_bf16, in_bf16)
extra = 2 * in_bf16 / DEVICES["H200"].memory_bandwidth  # y written and read back
print(f"the product in bf16 on an H200 is {h200_bf16.bound(product)}-bound")
print(f"at best, the product takes {1e6 * h200_bf16.time(product):.1f} us")
print(f"writing y and reading it back takes {1e6 * extra:.1f} us")

# %% [markdown]
# The product takes the time of its arithmetic; what fusing saves is short beside it. Lesson 08 fuses exactly
# this, and measures it.
#
# With a GPU at hand, here is your own chain, over its length:

# %% tags=["nbval-ignore-output"]
from benchmarks.experiments.lesson_02 import EXPERIMENTS

if runtime.has_gpu():
    for operations, timings in EXPERIMENTS["chain_lengths"]().items():
        print(f"{operations} operations: {timings}")
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. `x.mul_(2)` in place of `x = x * 2`: how many bytes of traffic does it save?
# <details><summary>Answer</summary>None. It reads x and writes x either way. It saves the room for a second
# tensor.</details>
#
# 2. A chain of three: `y = x * 2`, `z = y + 1`, `w = relu(z)`. Somebody needs `z` as well as `w`. What does fusing
#    all three still save?
# <details><summary>Answer</summary>The write and the read of y, and the read of z. z must be written, since somebody
# needs it: three passes of the six remain.</details>
#
# 3. A kernel has the right result and runs in one launch. How could it still move many times too many bytes?
# <details><summary>Answer</summary>By storing or loading the same thing again and again, as the store in the loop did.
# Values do not show it, the meter's table by line does.</details>
#
# 4. Your model calls many small kernels, and the profiler shows the GPU idle half of the time. What will help, and
#    what will not?
# <details><summary>Answer</summary>Fewer launches: fuse, or replay them from a CUDA graph. A GPU with faster memory
# will not help: nobody waits for it.</details>
#
# 5. `relu(a * b + c)` with four tensors of the same size (the three inputs and the result). What share of the traffic
#    does fusing save, in per cent? Put your number in place of the dots.

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
