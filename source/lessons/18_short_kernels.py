# %% [markdown]
# # 18 Short kernels: the time between them
#
# To run one token through a decoder layer, PyTorch launches more than a dozen kernels, and most of them finish before
# the CPU has launched the next one. **Where does the time go, how do you get rid of it, and is it worth writing a
# single kernel for the whole layer?**
#
# After this lesson you can
#
# - break a layer's time down into call, gap, ramp-up, tail and bytes;
# - predict how much you save with a CUDA graph or with fewer launches;
# - write kernels that start before the previous kernel has finished, and find the two PTX instructions that make it
#   possible;
# - write a kernel whose programs wait for each other, and find races and deadlocks in it without a GPU;
# - compare each version with the time its bytes need, and decide when to stop.
#
# About 75 minutes. It builds on [02](02_bytes_and_launches.ipynb) (launches), [16](16_compilers_and_libraries.ipynb)
# (compilers) and [17](17_serving.ipynb) (decode), and leads to [exercise 18](../exercises/18_short_kernels.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import kernels
from benchmarks.experiments import lesson_18
from benchmarks.experiments.lesson_18 import EMPTY, LAYERS, RECORD, SHAPES, STREAM_BLOCK, STREAMS
from helpers.figures import WaterfallExplorer
from helpers.instruments import DEVICES, check_orders, compile_for, measure, recorded, table
from helpers.instruments.dry_run import dry_run
from helpers.learning import order_puzzle, predict_first, predictions, puzzle, self_test
from kernels.counters import signal, wait
from kernels.interpreter import runtime
from kernels.tiled.decoder_layer import OP, decoder_layer_reference

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
gpu, h100 = DEVICES["H100"], recorded(RECORD.removesuffix(".json"))

# %% [markdown]
# Here are four short kernels in a row, launched in three different ways and recorded on an H200. Press **Play** and
# watch whether the CPU is waiting for the GPU or the other way round.

# %% tags=["hide-input"]
from helpers.figures import launch_timeline

launch_timeline(recorded("h200"))

# %% [markdown]
# ## Where does the time go?
#
# We'll look at two layers in bf16, both for one token of one sequence and without rotary embeddings. *small* has the
# dimensions of a Qwen3 0.6B layer, except that its heads have 64 elements instead of 128. *8B* has those of a Llama 3
# 8B layer. The cache holds 512 tokens (small) or 1024 (8B). Each timed call runs a stack of eight layers with different
# weights, because a single layer's weights might stay in L2. Below, a layer's time is an eighth of its stack's. All
# these times were recorded on an H100.
# <!-- given 0.6 B: the model's name -->
#
# Nearly all the bytes are weights, and each weight is read once. At the data sheet's bandwidth, that takes:

# %% tags=["hide-input"]
floors = {
    name: OP.work(shape, torch.bfloat16).bytes / gpu.memory_bandwidth
    for name, shape in SHAPES.items()
}
for name, floor in floors.items():
    print(f"{name}: {floor * gpu.memory_bandwidth / 1e6:.0f} MB, {floor * 1e6:.1f} us at least")

# %% [markdown]
# **Now run the small layer in eager PyTorch, which launches 14 kernels. How much of its time do these bytes account
# for?** Lesson 02's launch time gives you a first estimate. (On the machine with the H100 that we recorded, launching
# this layer's kernels takes the CPU about three times that.)

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
explained.compare(
    round(100 * floors["small"] / eager, 1),
    f"That's {eager / 14 * 1e6:.0f} us per launch, far more than in lesson 02. This CPU was "
    "slower, and probably busy. Most of the rest is the GPU waiting for its next launch, as the "
    "graph below "
    "will show.",
)

# %% [markdown]
# On top of its bytes, each kernel costs you time in four places:
#
# ```text
#  CPU   |  call  |  call  |  call  |
#  GPU            | ramp-up, bytes, tail | gap | ramp-up, bytes, tail | gap |
# ```
#
# - **call**: Python, the dispatcher and the driver prepare the [launch](../docs/glossary.md#launch);
# - **gap**: the GPU finishes one kernel, makes its stores visible, and starts the next one;
# - **ramp-up**: a new kernel has no loads in flight, so it waits a full memory latency for its first bytes;
# - **tail**: the last few programs are still running while the other SMs are idle ([tail](../docs/glossary.md#tail)).
#
# You can measure the first two with kernels that do nothing. Launch a hundred of them in a row from Python, then replay
# them as a single [CUDA graph](../docs/glossary.md#cuda-graph). **How long does it take to launch an empty Triton
# kernel from Python?** Lesson 02 measured that on another machine, with a faster CPU.

# %% tags=["hide-input"]
empty_call = predict_first("one empty Triton kernel, called from Python", unit="µs")
empty_call

# %% tags=["hide-input"]
empty = h100.experiment("short_kernels_empty")
rows = [
    (
        name.replace("1 programs", "1 program"),
        *(f"{each[clock].median / EMPTY * 1e6:.2f} us" for clock in ("call", "graph")),
    )
    for name, each in empty.items()
]
display(
    table(("empty kernel of", "call", "in a graph"), rows, h100.label_of("short_kernels_empty"))
)
empty_call.compare(
    round(empty["132 programs"]["call"].median / EMPTY * 1e6, 1),
    "PyTorch's own operators are launched from C++ and take less. In a graph, you're left with the "
    "gap, which is about a microsecond, if you count the empty kernel itself.",
)

# %% [markdown]
# To see the other two, you need kernels that read something. Here each program adds up blocks of 64 KiB, and an SM has
# room for one program, so 132 run at the same time. The last column is what the gap and the bytes don't explain:
# <!-- given 64 KiB: 16,384 fp32 numbers -->

# %% tags=["hide-input"]
ends, rows = h100.experiment("short_kernels_ends"), []
gap = empty["132 programs"]["graph"].median / EMPTY
for name, each in ends.items():
    programs, blocks = (int(word) for word in name.split()[::2])
    time, moved = each["graph"].median / STREAMS, programs * blocks * STREAM_BLOCK * 4
    needed = moved / gpu.memory_bandwidth
    shown = (f"{seconds * 1e6:.1f} us" for seconds in (time, needed, time - needed - gap))
    rows.append((name.replace(" 1 blocks", " 1 block"), *shown))
columns = ("kernels in a graph", "time of one", "its bytes", "rest")
display(table(columns, rows, h100.label_of("short_kernels_ends")))

# %% [markdown]
# With one block, the rest is mostly ramp-up, about a microsecond. It grows slowly with more blocks, because memory
# doesn't quite reach the data sheet's bandwidth. The 133rd program has to wait for a free SM, so it runs alone at the
# end. It adds more than a microsecond, although its bytes would take a fraction of that. That's the tail.
#
# From call and gap we can build a simple model. A layer that makes $k$ launches and moves $B$ bytes at bandwidth $W$ takes
#
# $$t_\text{launched} = k \cdot \max\Big(\text{call},\ \text{gap} + \frac{B / k}{W}\Big), \qquad
# t_\text{graph} = \frac{\text{call}}{L} + k \cdot \text{gap} + \frac{B}{W}$$
#
# where $L$ is the number of layers in a graph: we assume that a replay costs about one call, however many kernels it
# runs. In our recordings $L$ is 8, and in exercise 18 it is 1. The model ignores ramp-up and tail, and we'll see how
# much that matters.
#
# ## Remove the call: CUDA graphs
#
# A CUDA graph records all the launches in a function once and replays them with a single call:
#
# ```python
# layer(x)          # a first run compiles the kernels and sets up the libraries
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):
#     y = layer(x)  # recorded, not run
# x.copy_(next_x)   # a replay reads and writes the same addresses
# graph.replay()
# ```
#
# The catch is that shapes, addresses and numbers from Python are fixed, the CPU can't read any values inside the graph,
# and the graph's memory remains allocated. Decode steps can live with that. Serving systems record graphs for a few
# batch sizes, and pad each batch to the next one.
#
# Let's count the launches in the eager layer, with sizes small enough for any machine: the count doesn't depend on
# them. `dry_run` lists the launches that a GPU would see. (Without a GPU, PyTorch's RMSNorm would count as six.)

# %%
inputs = OP.inputs(64, 4, 2, 72, 5, dtype=torch.float32, device=device)
eager_launches = len(dry_run(decoder_layer_reference, *inputs, multiprocessors=132))
print(f"eager: {eager_launches} launches per layer")

# %% [markdown]
# **How much faster is the small eager layer as a graph?** Use the model for both times; the answer is measured. The
# last row of the table of empty kernels gives the call and the gap of a PyTorch operator.

# %% tags=["hide-input"]
as_graph = predict_first("small layer, eager: time called over time as a graph", unit="times")
as_graph

# %% tags=["hide-input"]
small = {clock: times["small"][clock]["eager"] for clock in ("call", "graph")}
print(f"called: {small['call'] * 1e6:.0f} us; as a graph: {small['graph'] * 1e6:.1f} us")
large = {clock: times["8B"][clock]["eager"] for clock in ("call", "graph")}
print(f"8B called: {large['call'] * 1e6:.0f} us; as a graph: {large['graph'] * 1e6:.0f} us")
of_add = {clock: time.median / EMPTY * 1e6 for clock, time in empty["torch add"].items()}
moved = floors["small"] * 1e6
by_model = {
    "call": eager_launches * max(of_add["call"], of_add["graph"] + moved / eager_launches),
    "graph": of_add["call"] / LAYERS + eager_launches * of_add["graph"] + moved,
}
print(f"the model: {by_model['call']:.0f} us called; {by_model['graph']:.0f} us as a graph")
as_graph.compare(
    round(small["call"] / small["graph"], 1),
    "And we didn't change a single kernel. The model gives about half of both times, for different "
    "reasons: most operators take the CPU longer than an addition, and a graph has ramp-ups and "
    "tails. The larger layer gains less, because its kernels take longer.",
)

# %% [markdown]
# You'd expect both layers to take the same time when called: eager makes the same launches for both, and the GPU waits
# for the CPU. But the CPU was slower in one recording than in the other. *Going further* shows the spread.
#
# `torch.compile` fuses the elementwise operations around the matmuls, which leaves fewer kernels to launch. With
# `mode="reduce-overhead"` it also records a CUDA graph. We recorded all graphs by hand instead, so that every version
# is measured in the same way.
#
# ## Fewer launches: fuse along and across
#
# You can fuse **along** the data flow, an operation with the one after it, as we've done in every lesson so far. The
# residual addition and the norm fit into one kernel, but there's a catch: you need the sum twice, for the norm and as
# the next residual. Row $i$ of the result below should contain $s = x + r$, followed by $s$ divided by its root mean
# square. **Change the marked line** so that the next layer gets the right residual.


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
# <details><summary>Answer</summary><code>kept = s</code>. If you store <code>x</code>, the norm is still correct, and
# so is the next matmul. But everything after it has lost the residual stream.</details>
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
# You can also fuse **across**, which means merging operations that read the same input but don't depend on each other.
# q, k and v come from three matmuls with the same vector. If you stack the three weights when you load the model, a
# single matmul computes all of them. This is **[horizontal fusion](../docs/glossary.md#horizontal-fusion)**. It saves
# launches, and it replaces three kernels that may be too small to fill the GPU with one that isn't.

# %%
apart = len(dry_run(lesson_18.layer_product_by_product, *inputs, multiprocessors=132))
print(f"q, k, v apart: {apart} launches per layer; together: {eager_launches}")

# %% [markdown]
# **How many microseconds per layer does that save for the 8B layer as a graph?** According to the model, it's just the
# gaps. Each launch also has a ramp-up and a tail, so the answer is larger.

# %% tags=["hide-input"]
across = predict_first("8B layer as a graph: saved by one matmul for q, k, v", unit="µs")
across

# %% tags=["hide-input"]
for name in SHAPES:
    before, after = (times[name]["graph"][way] for way in ("eager, separate q, k, v", "eager"))
    print(f"{name}: {before * 1e6:.1f} us apart, {after * 1e6:.1f} us together")
gap = empty["torch add"]["graph"].median / EMPTY
print(f"by the gaps alone: {(apart - eager_launches) * gap * 1e6:.1f} us")
across.compare(
    round(
        (times["8B"]["graph"]["eager, separate q, k, v"] - times["8B"]["graph"]["eager"]) * 1e6, 1
    ),
    "That's more than the gaps. Each launch has its own ramp-up and tail, too, and the "
    "short k and v matmuls probably don't reach full bandwidth.",
)

# %% [markdown]
# If we fuse in both directions, five kernels are left: norm + q, k, v; attention; output + residual; norm + gate, up
# and SwiGLU; and down. Every program of a matmul recomputes the norm it needs. We expect reading a vector from L2 to be
# cheaper than another launch, but we didn't time the alternative. The kernels are in
# `benchmarks/experiments/lesson_18.py`. They are plain Triton and don't use tensor cores, since you don't need those
# for a single row.

# %%
steps = measure(lesson_18.layer_in_steps, *inputs)
print(f"a kernel per step: {steps.launches} launches per layer")

# %% [markdown]
# ## Start earlier: dependent launches
#
# Normally, a kernel in a stream can't start until the previous one has finished. Hopper has two instructions that relax
# this rule ([programmatic dependent launch](../docs/glossary.md#programmatic-dependent-launch)). Once every program of
# a kernel has executed the first one, or has ended, the GPU may start programs of the next kernel wherever there's
# room. The second one waits until the previous kernel has finished and its stores are visible. Whatever you do before
# that wait overlaps with the previous kernel. That includes the launch itself, address arithmetic, and loading tensors
# that no kernel still in flight writes, such as weights. (The kernel before the previous one may not have finished
# either.) Triton exposes both instructions, plus a launch option:


# %%
@triton.jit
def double_kernel(x_ptr, y_ptr, PDL: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        gdc_launch_dependents()  # the next kernel may start
        gdc_wait()  # the previous kernel has ended
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


numbers = torch.empty(1024, device="meta")
compiled = compile_for(
    double_kernel, numbers, numbers, device="H100", PDL=True, BLOCK=256, launch_pdl=True
)
for line in compiled.ptx.splitlines():
    if any(name in line for name in ("griddepcontrol", "ld.global", "st.global")):
        print(" ".join(line.split("//")[0].split()))

# %% [markdown]
# If you forget the wait, the kernel may read values that the previous one hasn't stored yet. That's a race between two
# launches, but it compiles and might even pass your tests. You get the same race if you put the wait *after* the first
# load of an activation.
#
# The table of empty kernels above has rows with dependent launches. Our five kernels have up to 1792 programs. You can
# work out the direction, but not how far. **How many microseconds per layer will they take for 8B, as a graph with
# dependent launches?**

# %% tags=["hide-input"]
per_step = times["8B"]["graph"]["kernel per step"]
print(f"without: {per_step * 1e6:.0f} us per layer")
dependent = predict_first("8B layer, five kernels with dependent launches, as a graph", unit="µs")
dependent

# %% tags=["hide-input"]
for name in SHAPES:
    ways = times[name]["graph"]
    with_it = ways["dependent launch"]
    print(f"{name}: {ways['kernel per step'] * 1e6:.1f} us without, {with_it * 1e6:.1f} us with")
for name in SHAPES:
    late = times[name]["graph"]["dependent, late signal"]
    print(f"{name}, signalled when all weights are loaded: {late * 1e6:.1f} us")
dependent.compare(
    round(times["8B"]["graph"]["dependent launch"] * 1e6),
    "It got slower, not faster. Each kernel lets the next one start right "
    "away, and its waiting programs probably hold registers and warps that the running kernel "
    "could use. With a later signal, the loss is gone.",
)

# %% [markdown]
# So it matters when you signal. At the end of the loop it does no harm and saves a little time when kernels are short.
# The table warned us: with 1056 programs, even an empty kernel got slower.
#
# ## No launches: one persistent kernel
#
# The final step is to put **the whole layer into one kernel**, a small [megakernel](../docs/glossary.md#megakernel). It
# runs as many programs as fit on the GPU at once ([persistent](../docs/glossary.md#persistent-kernel)), here two per SM,
# and each works on some tiles of every step. Between steps, the programs wait for each other using counters in memory
# (`kernels/counters.py`):
#
# ```python
# signal(counter_ptr)       # add 1; whoever sees it also sees earlier stores (release)
# wait(counter_ptr, value)  # loop until the counter has reached value (acquire)
# ```
#
# Waiting like this is only safe if every program you're waiting for is actually running. With a [cooperative
# launch](../docs/glossary.md#cooperative-launch) (`launch_cooperative_grid=True`), the launch fails unless all programs
# fit on the GPU at the same time. Without it, a program can wait forever for one that never gets onto an SM.
#
# The GPU can run programs in any order, so a single successful run proves very little. `check_orders` runs the programs
# in several orders and reports every access that isn't ordered by a counter. **In this puzzle, every program doubles
# its own element and then adds up all of them. Fix the marked line.** A barrier isn't enough, because it only
# synchronises the threads within one program.


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
# <details><summary>Answer</summary><code>wait(counter_ptr, programs)</code>. Without it, if the programs run in grid
# order, only the last one gets the right result. <code>wait(counter_ptr, 1)</code> continues as soon as any program has
# stored its element.</details>
#
# The next puzzle has tiles, and its first step has fewer tiles than there are programs. On a GPU this kernel would hang
# without any message until you kill the process. Here you get a report instead. **Find the wrong count.**


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
# <details><summary>Answer</summary><code>wait(counter_ptr, tiles)</code>. There is one signal per tile, not per
# program, and two of the programs have no tile. If there were more tiles than programs, the wrong line would be a race
# instead, because the programs wouldn't wait long enough.</details>
#
# `kernels.decoder_layer` in our catalogue is the whole layer written this way. It has four counters between its five
# steps, plus one for each head, because several programs share a head's keys. Each program requests the first block of
# its next weight *before* it waits, which is safe because no program writes the weights. The code is in
# `kernels/tiled/decoder_layer.py`. Let's run its programs in six different orders:

# %%
whole = measure(kernels.decoder_layer, *inputs)
close = torch.allclose(whole.result[0], decoder_layer_reference(*inputs)[0], rtol=1e-4, atol=1e-4)
print(f"matches the reference: {close}; {whole.launches} launches (the first zeroes the counters)")
weight = inputs[3]
print(f"the first weight is read {whole.by_tensor['qkv'].read / weight.nbytes:.0f} time")
hazards = check_orders(kernels.decoder_layer, *inputs, orders=6)
print("hazards in six orders:", len(hazards))

# %% [markdown]
# A megakernel has its drawbacks, even before you run it. Since all steps share one launch, every step is compiled for
# as many registers as the hungriest one needs, and all of them run with the same number of programs. You can't call a
# library matmul inside it. And if you get a count wrong, the GPU hangs.

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
    fitting = 65536 // (each.registers * 32 * each.num_warps)  # an SM has 65,536 registers
    print(
        f"{name}: {each.registers} registers per thread, {each.spill_bytes} bytes spilled; "
        f"registers for {fitting} programs of {each.num_warps} warps per SM"
    )

# %% [markdown]
# Two programs of the persistent kernel fit on an SM, but only because they have four warps instead of eight. With just
# one, the SM would have nothing to do while that program waits at a counter. On its own, attention would fit four
# programs of eight warps.
#
# **Claim: "One persistent kernel per layer is faster than a graph of its parts."** Let's test that on the 8B layer, as
# a graph. You can't derive the answer, but you know how long the bytes, eager PyTorch and our five kernels take. **How
# long does the persistent kernel take?**

# %% tags=["hide-input"]
persistent = predict_first("8B layer, one persistent kernel, as a graph", unit="µs")
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
    f"Verdict: {verdict}. Compared with the faster of torch.compile and our five kernels, it makes "
    f"the small layer {gains['small']:.2f}x as fast and 8B {gains['8B']:.2f}x.",
)

# %% [markdown]
# ## The whole waterfall
#
# Here are all the steps in one chart. Grey is the time that a step shares with the one above it, the outlined part is
# the time it saves, and orange is time it adds. The line marks how long the bytes alone would take. Blue is the model's
# prediction, which we have for every step except `torch.compile`, because we didn't count its kernels.
#
# 1. Look at the small layer, called from Python. Which bars follow the model, and which term of the model dominates?
# 2. Switch to graphs. How far is each bar from its prediction?
# 3. Switch to 8B as a graph. Eager has more gaps than our five kernels, so what explains the difference between them?
# 4. For 8B, which versions hardly benefit from a graph?

# %% tags=["hide-input"]
launches = {
    "eager, separate q, k, v": apart,
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
# <details><summary>What you should see</summary>1. In the model, the number of launches times the call dominates, and
# the CPU is the bottleneck. No bar follows it closely: most are about twice as high, and the persistent kernel is five
# times as high, because its Python wrapper takes far longer than two empty launches. <code>torch.compile</code> gains
# nothing. We didn't look into why, but Triton's launches take longer than PyTorch's, and every call first checks its
# guards. The model uses the call of an empty kernel or an addition. Passing a dozen arguments and allocating results
# takes longer, and so does a busy CPU. 2. Every bar is above its prediction. Five launches leave as much as fourteen
# do, so it isn't the gaps that are left. 3. The kernels themselves. Our matmuls and our attention are slower than
# cuBLAS and SDPA. 4. Our five kernels. They take longer than their calls, so the CPU can keep ahead.</details>
#
# The model assumes that a kernel moves bytes at full bandwidth from the first cycle to the last. Subtract its three
# terms from a graph's time, and what remains is ramp-up, tail and loads that are slower than the bandwidth. **At 8B,
# how does the rest per launch of our five kernels compare with that of eager's 14: how many times as large is it?**
# You've seen all the numbers.

# %% tags=["hide-input"]
remains = predict_first("8B as a graph: rest per launch, our five kernels over eager", unit="times")
remains

# %% tags=["hide-input"]
rest = {
    name: {way: times[name]["graph"][way] - model[name]["graph"][way] for way in launches}
    for name in SHAPES
}
rows = []
for way, count in launches.items():
    left = [1e6 * rest[name][way] for name in SHAPES]
    shown = [
        f"{each:.1f} us" for whole_layer in left for each in (whole_layer, whole_layer / count)
    ]
    rows.append((way, count, *shown))
columns = ("as a graph", "launches", "small: rest", "per launch", "8B: rest", "per launch")
display(table(columns, rows, h100.label_of("short_kernels_small", "short_kernels_8B")))
five, of_eager = (rest["8B"][way] / launches[way] for way in ("kernel per step", "eager"))
remains.compare(
    round(five / of_eager, 1),
    "Eager's kernels have ramp-ups and tails too, so most of our rest is something else: our "
    "matmul loads more slowly than cuBLAS's.",
)

# %% [markdown]
# The megakernel has the least left over, because removing the launches also removed their ramp-ups and tails. In both
# layers, eager comes next despite its 14 launches.
#
# ## When to stop
#
# The floor is always the same: the bytes divided by the bandwidth. No launch trick can save more than the distance
# between you and that floor.

# %% tags=["hide-input"]
rows = []
for way in times["8B"]["graph"]:
    shown = []
    for name in SHAPES:
        time = times[name]["graph"][way]
        shown += [f"{time * 1e6:.1f} us", f"{time / floors[name]:.1f}x"]
    rows.append((way, *shown))
columns = ("as a graph", "small", "vs its floor", "8B", "vs its floor")
table(columns, rows, h100.label_of("short_kernels_small", "short_kernels_8B"))

# %% [markdown]
# **The verdict.** Record a graph first. It takes a few lines, you don't have to touch a kernel, and on the small layer
# it gives you the biggest gain. Next, let a compiler fuse everything between the matmuls. At 8B, most of what's left is
# bytes, so look for fewer of them (lesson 12) or more tokens per weight (lesson 17). The small layer is still a long
# way from its floor. The megakernel closes part of that distance, and more of it than anything else we tried. If you
# can't use a graph, reduce the number of launches. Called from Python, our five kernels take less than half of eager's
# time on the small layer. But look at what your own wrapper costs: there, the persistent kernel takes longer than the
# five.
#
# Why does our megakernel gain so much on the small layer and so little at 8B? It removes gaps, ramp-ups and tails. They
# are most of the time in a short kernel but a small part of a long one. At 8B it comes down to the matmuls, and ours are
# slower than cuBLAS's: with five kernels they lose to eager's 14. (We tuned the megakernel's number of warps, but not that
# of the five kernels.) A good megakernel needs
#
# - **matmuls as fast as the library's**. Ours has two programs per SM, and each has one block of weights in flight, 16
#   KiB. By Little's law that should just about do, so we don't know how much of the difference it explains.
#   Asynchronous copies and a deep pipeline would keep more in flight; <!-- given 16 KiB: 8 x 1024 weights of 2 bytes
#   -->
# - **the next step's weights in flight while it waits**, which is possible because weights don't depend on any counter.
#   Ours requests one block;
# - **work for every program in every step**. With one program per head for attention, all the others would wait;
# - counters that let a tile wait for just the tiles it reads. Ours wait for the whole step.
#
# Even then, all you can win is the gaps, ramp-ups and tails. The published megakernel we know best aims at all of the
# above (Hazy Research, "Look Ma, No Bubbles!", 2025). Write one if the model is small, the batch size is 1, and you
# already use graphs.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A profile shows kernels running back to back, with no gaps on the GPU's timeline. What would a CUDA graph save?
# <details><summary>Answer</summary>Almost no time, because the CPU is already ahead of the GPU. It would free up the
# CPU, though.</details>
#
# 2. A kernel with a dependent launch loads its weight before `gdc_wait` and its activation after it. Is that correct?
# What if you swap the two?
# <details><summary>Answer</summary>It's correct, because no kernel writes the weight. If you swap them, it may read the
# activation before it has been stored.</details>
#
# 3. A persistent kernel passes a hundred tests on a GPU with 132 SMs and hangs forever on one with 108 SMs. What's
#    missing?
# <details><summary>Answer</summary>A cooperative launch, and a grid size that depends on the device. If an SM has room
# for one program, 24 programs don't get an SM, and the others wait for them forever. With the option, you'd get an
# error at the launch.</details>
#
# 4. Why do tests often pass even though a kernel waits for too few signals?
# <details><summary>Answer</summary>On an idle GPU, the programs start together and do the same amount of work, so even
# the last tile has been stored by the time anyone reads it. A different order or one slow SM exposes the
# race.</details>
#
# 5. A graph of 12 kernels with a gap of 1 µs moves 30 MB at 3 MB per µs, and its call takes 8 µs. One replay runs one
# layer. Replace the dots with the time that the model predicts, in µs.
# <!-- given 1 us, 30 MB, 3 MB, 8 us: an example -->

# %%
answer = ...
self_test(answer, 8 + 12 * 1 + 30 / 3, "8 + 12 x 1 + 30 / 3")

# %% [markdown]
# ## Now you
#
# In [exercise 18](../exercises/18_short_kernels.ipynb) you fuse an addition, a norm and a gate into one kernel. Then
# you predict the launches, bytes and time of a layer, put the launches for one token into CUDA graphs, and count how
# many fit into a time budget.

# %% [markdown]
# ## Going further
#
# ### How steady the times are
#
# The tables show the median, low and high of ten runs of eight layers, in ms. The graphs hardly vary. The calls do,
# wherever the CPU is the bottleneck, probably because we weren't alone on the machine. All versions in a table took
# turns, so you can compare their calls with each other, but not with those in the other table.

# %% tags=["hide-input"]
for name in SHAPES:
    rows = [
        (way, *(f"{1e3 * t.median:.2f} ({1e3 * t.low:.2f} to {1e3 * t.high:.2f})" for t in pair))
        for way, each in measured[name].items()
        for pair in [(each["call"], each["graph"])]
    ]
    columns = (f"{name}, eight layers", "called", "as a graph")
    display(table(columns, rows, h100.label_of("short_kernels_small", "short_kernels_8B")))

# %% [markdown]
# ### The persistent kernel

# %% tags=["hide-input"]
import inspect

print(inspect.getsource(decoder_layer_kernel.fn))
