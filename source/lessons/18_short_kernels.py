# %% [markdown]
# # 18 Short kernels: the time between them
#
# A decoder layer of one token is two dozen kernels, and most of them are over before the CPU has launched the next
# one. **Where does the time go, how do you remove it, and is one kernel for the whole layer worth writing?**
#
# After this lesson you can
#
# - split a layer's time into call, launch, ramp-up, tail and bytes;
# - predict what a CUDA graph and fewer launches save;
# - write kernels that start before the kernel ahead of them has ended, and find the two PTX instructions for it;
# - write programs of one kernel that wait for each other, and find a race or a deadlock without a GPU;
# - say how far each step is from the time of the bytes, and when to stop.
#
# About 55 minutes. It builds on [02](02_bytes_and_launches.ipynb) (launches), [16](16_compilers_and_libraries.ipynb)
# (compilers) and [17](17_serving.ipynb) (decode), and leads to [exercise 18](../exercises/18_short_kernels.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import kernels
from benchmarks.experiments import lesson_18
from benchmarks.experiments.lesson_18 import EMPTY, LAYERS, RECORD, SHAPES
from helpers.figures import WaterfallExplorer
from helpers.instruments import DEVICES, check_orders, compile_for, measure, recorded, table
from helpers.learning import order_puzzle, predict_first, predictions, puzzle, self_test
from kernels.counters import signal, wait
from kernels.interpreter import runtime
from kernels.tiled.decoder_layer import OP, decoder_layer_reference

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
gpu, h100 = DEVICES["H100"], recorded(RECORD.removesuffix(".json"))

# %% [markdown]
# Four short kernels after one another, launched in three ways. Press **Play**: who waits for whom? (Recorded on an H200.)

# %% tags=["hide-input"]
from helpers.figures import launch_timeline

launch_timeline(recorded("h200"))

# %% [markdown]
# ## Where does the time go?
#
# Two layers, without rotary embedding, for one token and one sequence, in bf16. *small* has the size of a layer of
# Qwen3 0.6B, but with heads of 64 elements, not 128; *8B* that of Llama 3 8B. A timed call runs a stack of eight layers, each with
# its own weights, so that weights come from DRAM; all times below are per layer. The cache holds 512 tokens (small) or
# 1024 (8B). The recordings are from an H100.
# <!-- given 0.6 B: the model's name -->
#
# Almost all bytes are weights, and each is read once. At the bandwidth of the data sheet they take this long:

# %% tags=["hide-input"]
floors = {
    name: OP.work(shape, torch.bfloat16).bytes / gpu.memory_bandwidth
    for name, shape in SHAPES.items()
}
for name, floor in floors.items():
    print(f"{name}: {floor * gpu.memory_bandwidth / 1e6:.0f} MB, {floor * 1e6:.1f} us at least")

# %% [markdown]
# **Eager PyTorch calls the small layer. What share of its time do these bytes explain?**

# %% tags=["hide-input"]
explained = predict_first("share of the eager time that the small layer's bytes explain", unit="%")
explained

# %% tags=["hide-input"]
measured = {name: h100.experiment(f"short_kernels_{name}") for name in SHAPES}
times = {
    name: {
        clock: {way: each[clock].median / LAYERS for way, each in ways.items()}
        for clock in ("call", "graph")
    }
    for name, ways in measured.items()
}
print(h100.label_of("short_kernels_small", "short_kernels_8B", "short_kernels_empty"))
eager = times["small"]["call"]["eager"]
print(f"{eager * 1e6:.0f} us per layer, for {floors['small'] * 1e6:.1f} us of bytes")
explained.compare(round(100 * floors["small"] / eager, 1), "The rest is between the kernels.")

# %% [markdown]
# A kernel costs more than its bytes, in four places:
#
# ```text
#  CPU   |  call  |  call  |  call  |
#  GPU            | ramp-up, bytes, tail | gap | ramp-up, bytes, tail | gap |
# ```
#
# - **call**: Python, the dispatcher and the driver prepare a [launch](../docs/glossary.md#launch);
# - **gap**: the GPU ends one kernel, makes its stores visible, and starts the next one;
# - **ramp-up**: no load is in flight when a kernel starts, and the first bytes take a whole latency to arrive;
# - **tail**: the last programs run while other SMs are idle ([tail](../docs/glossary.md#tail)).
#
# The first two can be measured without any work: launch a hundred empty kernels in a row, from Python, then as one
# [CUDA graph](../docs/glossary.md#cuda-graph). **How long does a launch of an empty Triton kernel from Python take?**

# %% tags=["hide-input"]
empty_call = predict_first("one empty Triton kernel, called from Python", unit="us")
empty_call

# %% tags=["hide-input"]
empty = h100.experiment("short_kernels_empty")
rows = [
    (name, *(f"{each[clock].median / EMPTY * 1e6:.2f} us" for clock in ("call", "graph")))
    for name, each in empty.items()
]
display(
    table(("empty kernel of", "call", "in a graph"), rows, h100.label_of("short_kernels_empty"))
)
empty_call.compare(
    round(empty["132 programs"]["call"].median / EMPTY * 1e6, 1),
    "PyTorch's own operators, in C++, take less. In a graph about a microsecond is left: the gap.",
)

# %% [markdown]
# That gives a model, the one of exercise 18, for $k$ launches that move $B$ bytes at the bandwidth $W$:
#
# $$t_\text{launched} = k \cdot \max\Big(\text{call},\ \text{gap} + \frac{B / k}{W}\Big), \qquad
# t_\text{graph} = \text{call} + k \cdot \text{gap} + \frac{B}{W}$$
#
# Our recordings replay eight layers with one call, so an eighth of it is a layer's. The model knows nothing of ramp-up
# and tail. We'll see how much that matters.
#
# ## Remove the call: CUDA graphs
#
# A CUDA graph records the launches of a function once, and replays them with one call:
#
# ```python
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):
#     y = layer(x)  # recorded, not run
# x.copy_(next_x)   # a replay reads and writes the same addresses
# graph.replay()
# ```
#
# Shapes and addresses are fixed, no value may be read on the CPU inside, and the recorded memory stays allocated. For a
# decode step with a fixed batch that is acceptable; serving systems record one graph per batch size.
#
# The meter counts the launches of the eager layer:

# %%
inputs = OP.inputs(64, 4, 2, 72, 5, dtype=torch.float32, device=device)
eager_launches = measure(decoder_layer_reference, *inputs).launches
print(f"eager: {eager_launches} launches per layer")

# %% [markdown]
# **By what factor is the small eager layer faster as a graph?** Use the model: a call of a PyTorch operator and its gap
# are in the table's last row.

# %% tags=["hide-input"]
as_graph = predict_first("small layer, eager: time called over time as a graph", unit="times")
as_graph

# %% tags=["hide-input"]
small = {clock: times["small"][clock]["eager"] for clock in ("call", "graph")}
print(f"called: {small['call'] * 1e6:.0f} us; as a graph: {small['graph'] * 1e6:.1f} us")
large = {clock: times["8B"][clock]["eager"] for clock in ("call", "graph")}
print(f"8B called: {large['call'] * 1e6:.0f} us; as a graph: {large['graph'] * 1e6:.0f} us")
as_graph.compare(
    round(small["call"] / small["graph"], 1),
    "No kernel changed. The larger layer gains less: some of its kernels outlast a call.",
)

# %% [markdown]
# `torch.compile` fuses the elementwise operations around the matmuls, so it has fewer launches to make; its
# `mode="reduce-overhead"` also records a graph. Here graphs are recorded by hand, for every way.
#
# ## Fewer launches: fuse along and across
#
# **Along**: an operation and the next one, as in all lessons so far. The residual and the norm are one kernel, with one
# trap: the sum is needed twice, by the norm and by the next residual. Below, row $i$ of the result is $s = x + r$ and
# then $s$ over its root mean square. **Change the marked line** so that the next layer gets its residual.


# %%
@triton.jit
def add_norm_kernel(x_ptr, residual_ptr, y_ptr, COLS: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, COLS)
    x = tl.load(x_ptr + row * COLS + col)
    s = x + tl.load(residual_ptr + row * COLS + col)
    kept = x  # <- change this line
    tl.store(y_ptr + row * 2 * COLS + col, kept)
    mean_square = tl.sum(s * s, axis=0) / COLS
    tl.store(y_ptr + row * 2 * COLS + COLS + col, s * tl.rsqrt(mean_square + 1e-6))


x = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 4.0, -1.5, 2.0], [-3.0, 1.25, 2.5, 0.75]])
residual = torch.tensor([[0.5, 1.0, -1.0, 2.0], [3.0, -0.5, 0.75, 1.5], [2.25, -2.0, 4.0, -0.25]])
s = x + residual
normed = s * (s.square().mean(1, keepdim=True) + 1e-6).rsqrt()
puzzle(add_norm_kernel, 3, x, residual, wanted=torch.stack([s, normed], 1).flatten(), COLS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>kept = s</code>: with <code>x</code> the norm is right, so this layer is
# right, and every later layer has lost the stream.</details>
#
# <!-- choices
# kept = x
#
# kept = s
#
# kept = s * s
#
# kept = x + s
#
# kept = s * tl.rsqrt(tl.sum(s * s, axis=0) / COLS + 1e-6)
# -->
#
# **Across**: operations that don't depend on each other but read the same input. q, k and v are three matmuls of one
# vector. Put the three weights below each other, once, when the model is loaded, and one matmul computes all three:
# **[horizontal fusion](../docs/glossary.md#horizontal-fusion)**. It saves launches, and gives the GPU one kernel that
# fills it instead of three that may not.

# %%
apart = measure(lesson_18.layer_product_by_product, *inputs).launches
print(f"q, k, v apart: {apart} launches per layer; together: {eager_launches}")

# %% [markdown]
# Take the 8B layer as a graph. **How many microseconds per layer do the saved launches bring?** The model has an
# answer, from the gap alone.

# %% tags=["hide-input"]
across = predict_first("8B layer as a graph: saved by one matmul for q, k, v", unit="us")
across

# %% tags=["hide-input"]
for name in SHAPES:
    before, after = (times[name]["graph"][way] for way in ("eager, a product each", "eager"))
    print(f"{name}: {before * 1e6:.1f} us apart, {after * 1e6:.1f} us together")
gap = empty["torch add"]["graph"].median / EMPTY
print(f"by the gaps alone: {(apart - eager_launches) * gap * 1e6:.1f} us")
across.compare(
    round((times["8B"]["graph"]["eager, a product each"] - times["8B"]["graph"]["eager"]) * 1e6, 1),
    "More than the gaps. A likely reason: k and v alone are short matmuls, each with a ramp-up "
    "and a tail of its own.",
)

# %% [markdown]
# Both directions together leave five kernels: norm + q, k, v; attention; output + residual; norm + gate, up and SwiGLU;
# down. Each matmul computes the norm it needs by itself, since a vector from L2 costs less than a launch.
# `benchmarks/experiments/lesson_18.py` has these kernels, plain Triton without tensor cores, which one row doesn't need.

# %%
steps = measure(lesson_18.layer_in_steps, *inputs)
print(f"a kernel per step: {steps.launches} launches per layer")

# %% [markdown]
# ## Start earlier: dependent launches
#
# In a stream, a kernel starts after the one before it has ended. Two instructions of Hopper relax that
# ([programmatic dependent launch](../docs/glossary.md#programmatic-dependent-launch)): the first lets the next kernel's
# programs be placed on the GPU, as far as there is room; the other waits until the kernel before has ended and its
# stores are visible. Everything before the wait overlaps with the kernel ahead: the launch, address arithmetic, and
# loads of tensors that the kernel before doesn't write, such as weights. Triton has both, and a launch option:


# %%
@triton.jit
def double_kernel(x_ptr, y_ptr, PDL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        gdc_launch_dependents()  # the next kernel may start
        gdc_wait()  # the kernel before has ended
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


numbers = torch.empty(1024, device="meta")
compiled = compile_for(
    double_kernel, numbers, numbers, device="H100", PDL=True, BLOCK=256, launch_pdl=True
)
for line in compiled.ptx.splitlines():
    if any(name in line for name in ("griddepcontrol", "ld.global", "st.global")):
        print(" ".join(line.split("//")[0].split()))

# %% [markdown]
# Forget the wait, and the kernel reads what the one before has not stored yet: a race between two launches. It compiles,
# and may even pass its tests. Put the wait *behind* the first load of an activation: the same race.
#
# The empty kernels above have rows with dependent launches. So, for the five kernels of the 8B layer as a graph, **how
# many microseconds per layer with dependent launches?**

# %% tags=["hide-input"]
per_step = times["8B"]["graph"]["kernel per step"]
print(f"without: {per_step * 1e6:.0f} us per layer")
dependent = predict_first("8B layer, five kernels with dependent launches, as a graph", unit="us")
dependent

# %% tags=["hide-input"]
for name in SHAPES:
    ways = times[name]["graph"]
    with_it = ways["dependent launch"]
    print(f"{name}: {ways['kernel per step'] * 1e6:.1f} us without, {with_it * 1e6:.1f} us with")
dependent.compare(
    round(times["8B"]["graph"]["dependent launch"] * 1e6),
    "Slower, where microseconds should be saved. Here a kernel lets its successor start at once, "
    "and the waiting programs hold registers and warps that the running kernel could use.",
)
for name in SHAPES:
    late = times[name]["graph"].get("dependent, late signal")
    if late is not None:
        print(f"{name}, signalled when all weights are loaded: {late * 1e6:.1f} us")

# %% [markdown]
# So the place of the signal decides: at the end of the loop it costs nothing, and saves a little where kernels are
# short. A technique that makes an empty kernel faster has shown nothing about yours.
#
# ## No launches: one persistent kernel
#
# The last step: **one kernel for the whole layer**, a small [megakernel](../docs/glossary.md#megakernel). One program
# per SM ([persistent](../docs/glossary.md#persistent-kernel)) takes tiles of every step in turn. Between two steps the
# programs wait for each other, through counters in memory (`kernels/counters.py`):
#
# ```python
# signal(counter_ptr)       # add 1; a program that sees it sees earlier stores (release)
# wait(counter_ptr, value)  # loop until the counter has reached value (acquire)
# ```
#
# Waiting is safe only if every program that should signal is running. A
# [cooperative launch](../docs/glossary.md#cooperative-launch) (`launch_cooperative_grid=True`) fails unless all programs
# fit on the GPU at once. Without it, a program can wait for one that never gets a place.
#
# A GPU runs programs in any order, so one good run proves little. `check_orders` runs the programs in several orders,
# and reports every access that no counter orders. **Puzzle: every program doubles its element, then sums all. Correct the
# marked line.** The barrier is not enough: it orders the threads of one program.


# %%
@triton.jit
def double_then_sum_kernel(x_ptr, between_ptr, y_ptr, counter_ptr):
    me, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(between_ptr + me, 2 * tl.load(x_ptr + me))
    signal(counter_ptr)
    tl.debug_barrier()  # <- change this line
    total = 0.0
    for other in range(programs):
        total += tl.load(between_ptr + other)
    tl.store(y_ptr + me, total)


def double_then_sum(x):
    between, y = torch.full_like(x, torch.nan), torch.empty_like(x)
    counter = torch.zeros(1, dtype=torch.int32)
    double_then_sum_kernel[(len(x),)](x, between, y, counter, launch_cooperative_grid=True)
    return y


shares = torch.arange(1.0, 7.0)
order_puzzle(double_then_sum, shares, wanted=(2 * shares.sum()).expand(6))

# %% [markdown]
# <details><summary>Answer</summary><code>wait(counter_ptr, programs)</code>. In the order of the grid the last program
# would be right without it, and only that one. <code>wait(counter_ptr, 1)</code> passes as soon as anyone has
# stored.</details>
#
# Now tiles: the first step has fewer of them than there are programs. On a GPU the kernel below hangs, without a
# message, until someone ends the process. Here you get a report. **Find the wrong count.**


# %%
@triton.jit
def tiles_then_sum_kernel(x_ptr, between_ptr, y_ptr, counter_ptr, tiles):
    me, programs = tl.program_id(0), tl.num_programs(0)
    for tile in range(me, tiles, programs):
        tl.store(between_ptr + tile, 2 * tl.load(x_ptr + tile))
        signal(counter_ptr)
    wait(counter_ptr, programs)  # <- change this line
    total = 0.0
    for tile in range(tiles):
        total += tl.load(between_ptr + tile)
    tl.store(y_ptr + me, total)


def tiles_then_sum(x):
    between, y = torch.full_like(x, torch.nan), torch.empty(6)
    counter = torch.zeros(1, dtype=torch.int32)
    tiles_then_sum_kernel[(6,)](x, between, y, counter, len(x), launch_cooperative_grid=True)
    return y


shares = torch.arange(1.0, 5.0)
order_puzzle(tiles_then_sum, shares, wanted=(2 * shares.sum()).expand(6))

# %% [markdown]
# <details><summary>Answer</summary><code>wait(counter_ptr, tiles)</code>: tiles signal, not programs; two programs have
# no tile. With more tiles than programs, the wrong line is a race instead: all wait for too little.</details>
#
# The catalogue's `kernels.decoder_layer` is the whole layer in this style, four counters between five steps, and one per
# head, whose keys several programs share. A program requests the first block of its next weight *before* it waits:
# weights depend on no counter. Read it: `kernels/tiled/decoder_layer.py`. Here it runs in six orders of its programs:

# %%
whole = measure(kernels.decoder_layer, *inputs)
close = torch.allclose(whole.result[0], decoder_layer_reference(*inputs)[0], rtol=1e-4, atol=1e-4)
print(f"as the reference: {close}; {whole.launches} launches (the first zeroes the counters)")
weight = inputs[3]
print(f"the first weight is read {whole.by_tensor['qkv'].read / weight.nbytes:.0f} time")
if not runtime.has_gpu():
    hazards = check_orders(kernels.decoder_layer, *inputs, orders=6)
    print("hazards in six orders:", len(hazards))

# %% [markdown]
# It has costs before it runs. All steps share one launch, so all have the registers of the worst one, and the
# number of programs of all. No library's matmul can be called inside. And a wrong count hangs the GPU.

# %% tags=["hide-input"]
from kernels.tiled.decoder_layer import decoder_layer_kernel

vector, matrix = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in (4096, (4096, 4096)))
cache = torch.empty(1024, 8, 128, dtype=torch.bfloat16, device="meta")
arguments, settings = OP.compile_arguments(*SHAPES["8B"], dtype=torch.bfloat16)
options = {"PDL": False, "LATE": False, "num_warps": 8}
blocks = {"BLOCK_N": lesson_18.BLOCK_N, "BLOCK_K": lesson_18.BLOCK_K, **options}
rows_of = (vector, vector, None, None, 4096, 4096, 1e-6)
compiled = {
    "attention": compile_for(
        lesson_18.one_query_kernel, vector, cache, cache, vector, 32, 8, 1024, 0.1,
        device="H100", D=128, BLOCK_KEYS=64, **options,
    ),
    "norm + q, k, v": compile_for(
        lesson_18.rows_kernel, matrix, None, vector, vector, *rows_of, device="H100", **blocks
    ),
    "norm + gate, up": compile_for(
        lesson_18.rows_kernel, matrix, matrix, vector, None, *rows_of, device="H100", **blocks
    ),
    "persistent kernel": compile_for(
        decoder_layer_kernel, *arguments, device="H100", **settings
    ),
}  # fmt: skip
for name, each in compiled.items():
    print(f"{name}: {each.registers} registers per thread, {each.spill_bytes} bytes spilled")

# %% [markdown]
# **Claim: "One persistent kernel per layer is faster than a graph of its parts."** Take the 8B layer as a graph.
# You know eager's time and that of the five kernels. **What does the persistent kernel take?**

# %% tags=["hide-input"]
persistent = predict_first("8B layer, one persistent kernel, as a graph", unit="us")
persistent

# %% tags=["hide-input"]
print(h100.label_of("short_kernels_small", "short_kernels_8B"))
for name in SHAPES:
    ways = {way: time * 1e6 for way, time in times[name]["graph"].items()}
    listed = ", ".join(f"{way} {ways[way]:.1f} us" for way in (
        "eager", "torch.compile", "kernel per step", "persistent kernel"))  # fmt: skip
    print(f"{name}: {listed}")
gains = {
    name: min(ways["graph"]["torch.compile"], ways["graph"]["kernel per step"])
    / ways["graph"]["persistent kernel"]
    for name, ways in times.items()
}
held = {name: gain > 1 for name, gain in gains.items()}
verdict = {0: "fails", 1: "holds for the small layer alone", 2: "holds"}[sum(held.values())]
persistent.compare(
    round(times["8B"]["graph"]["persistent kernel"] * 1e6),
    f"Verdict: {verdict}. Against the faster of torch.compile and our five kernels: small "
    f"{gains['small']:.2f}x, 8B {gains['8B']:.2f}x.",
)

# %% [markdown]
# ## The whole waterfall
#
# All steps, one below the other. Grey is what both a step and the one before it take; open is what a step removes;
# orange is what it adds. The line is the time of the bytes, blue is the model's prediction where we know the launches
# (none for `torch.compile`, whose kernels we haven't counted).
#
# 1. Small layer, called: which bars follow the model, and which number of the model dominates?
# 2. The same as a graph: how far is each bar from its prediction?
# 3. 8B as a graph: what separates eager from our five kernels, if eager has more gaps?
# 4. Called, 8B: for which ways does a graph hardly matter?

# %% tags=["hide-input"]
launches = {
    "eager, a product each": apart,
    "eager": eager_launches,
    "kernel per step": steps.launches,
    "dependent launch": steps.launches,
    "dependent, late signal": steps.launches,
    "persistent kernel": whole.launches,
}
of_empty = {"kernel per step": "132 programs", "dependent launch": "132 programs, dependent",
            "dependent, late signal": "132 programs, dependent",
            "persistent kernel": "132 programs"}  # fmt: skip


def predicted(way, clock, moved):
    cost = {each: t.median / EMPTY for each, t in empty[of_empty.get(way, "torch add")].items()}
    count = launches[way]
    if clock == "graph":
        return cost["call"] / LAYERS + count * cost["graph"] + moved
    return count * max(cost["call"], cost["graph"] + moved / count)


model = {
    name: {
        clock: {way: predicted(way, clock, floors[name]) for way in launches}
        for clock in ("call", "graph")
    }
    for name in SHAPES
}
print(h100.label_of("short_kernels_small", "short_kernels_8B"))
WaterfallExplorer(times, floors, model)

# %% [markdown]
# <details><summary>What you should see</summary>1. Launches x call dominates: the CPU is the limit, the GPU waits, and
# <code>torch.compile</code> gains nothing. All bars are above the model: it has the call of an empty kernel or of an
# addition, and a dozen arguments, results to allocate or a busy CPU cost more. 2. Eager is a third above it, our kernels
# are two to three times above it. Gaps are not what is left. 3. Only the kernels themselves: our matmuls and attention
# against cuBLAS and SDPA. 4. For our own: their kernels last about as long as their calls, so the CPU keeps up.</details>
#
# So in a graph the model explains most of eager's time and less than half of our kernels' on the small layer. It
# assumes that a kernel moves its bytes at the bandwidth from its first cycle to its last. In a kernel of a few
# microseconds, ramp-up and tail take their share of these.
#
# ## When to stop
#
# The floor doesn't move: bytes at the bandwidth. No launch trick can win more than the distance to it.

# %% tags=["hide-input"]
rows = []
for way in times["8B"]["graph"]:
    shown = []
    for name in SHAPES:
        time = times[name]["graph"][way]
        shown += [f"{time * 1e6:.1f} us", f"{time / floors[name]:.1f}x"]
    rows.append((way, *shown))
columns = ("as a graph", "small", "of its bytes", "8B", "of its bytes")
table(columns, rows, h100.label_of("short_kernels_small", "short_kernels_8B"))

# %% [markdown]
# **The verdict.** Record a graph first: it takes a few lines, changes no kernel, and gives the most. Then let a
# compiler fuse everything between the matmuls. At 8B, that is near enough to the floor to look elsewhere: fewer bytes
# (lesson 12), or more tokens per weight (lesson 17). On the small layer a large factor is left: the megakernel takes a
# part of it, more than anything else here. Where no graph is possible, launch less: called, our kernels take less than
# two thirds of eager's time on the small layer.
#
# Why does our megakernel win on the small layer and lose at 8B? What it removes, gaps, ramp-ups and tails, is most of a
# short kernel's time and little of a long one's. At 8B the matmuls decide, and ours are slower than cuBLAS's: five
# separate kernels with the same matmul also lose there. A megakernel needs
#
# - **matmuls as fast as the library's**, with enough loads in flight. Ours has one block of weights on the way per
#   program, and one program per SM; asynchronous copies and a deep pipeline would have more;
# - **the next step's weights in flight while it waits**: they depend on no counter. Ours requests one block;
# - **work for every program in every step**: an earlier version gave attention one program per head, and all others
#   waited for them;
# - counters fine enough that a tile waits for the tiles it reads, instead of the whole step. Ours are not.
#
# The gain is the gaps, ramp-ups and tails, and no more than that. Published ones do all this (Hazy Research,
# "Look Ma, No Bubbles!", 2025). Do it when the model is small, the batch is 1, and graphs are already there.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A profile shows kernels back to back, without gaps on the GPU's timeline. What does a CUDA graph save?
# <details><summary>Answer</summary>Almost nothing: the CPU is ahead of the GPU already. It frees the CPU.</details>
#
# 2. A kernel with a dependent launch loads its weight before `gdc_wait` and its activation after it. Right? And
# the other way round?
# <details><summary>Answer</summary>Right: no kernel writes the weight. The other way round it reads an activation that
# may not be stored yet.</details>
#
# 3. A persistent kernel passes a hundred tests on a GPU with 132 SMs, and waits forever on one with 108. What is missing?
# <details><summary>Answer</summary>A cooperative launch, and a grid sized by the device. If one program fits on each SM, 24
# programs have no SM, and the others wait for them. With the option, the launch fails with a message.</details>
#
# 4. Why does waiting for too few signals often pass a test?
# <details><summary>Answer</summary>On an idle GPU the programs start together and have equal work, so the last tile
# is stored by the time anyone reads it. Another order, or one slow SM, shows the race.</details>
#
# 5. A graph of 12 kernels with a gap of 1 us moves 30 MB at 3 MB per us; its call takes 8 us. Replace the dots by its
# time in us by the model.
# <!-- given 1 us, 30 MB, 3 MB, 8 us: an example -->

# %%
answer = ...
self_test(answer, 8 + 12 * 1 + 30 / 3, "8 + 12 x 1 + 30 / 3")

# %% [markdown]
# ## Now you
#
# [Exercise 18](../exercises/18_short_kernels.ipynb) asks for an addition, a norm and a gate in one kernel, then for the
# launches, bytes and time of a layer, and for the launches that a time budget allows.

# %% [markdown]
# ## Going further
#
# ### How steady the times are
#
# Median, low and high of ten runs of eight layers, in ms. Calls vary where the CPU is the limit.

# %% tags=["hide-input"]
rows = [
    (way, *(f"{1e3 * t.median:.2f} ({1e3 * t.low:.2f} to {1e3 * t.high:.2f})" for t in pair))
    for way, each in measured["8B"].items()
    for pair in [(each["call"], each["graph"])]
]
table(("8B, eight layers", "called", "as a graph"), rows, h100.label_of("short_kernels_8B"))

# %% [markdown]
# ### The persistent kernel

# %% tags=["hide-input"]
import inspect

print(inspect.getsource(decoder_layer_kernel.fn))
