# %% [markdown]
# # 15 The profilers, and a whole block
#
# Fourteen lessons had instruments that need no GPU: a meter, a compiler, a calculator. On a GPU everyone uses Nsight
# Compute and torch.profiler. Here you read what they recorded of the course's own kernels, counter by counter. Then
# everything comes together in a transformer block. **Is the fused block faster than the one PyTorch's libraries give
# you?**
#
# After this lesson you can
#
# - read the sections of an Nsight Compute page that matter, and name the numbers that you knew before;
# - say where on the chip a counter is, and what it therefore sees;
# - find fusion candidates in a trace by a rule, and name what the rule cannot know;
# - profile a script of your own, and find out what keeps a profiler from running;
# - say how much each fusion of a model is worth to the whole.
#
# About 50 minutes. It builds on all lessons, above all [02](02_bytes_and_launches.ipynb), [07](07_occupancy.ipynb) and
# [10](10_attention.ipynb), and leads to [exercise 15](../exercises/15_capstone.ipynb).

# %% tags=["hide-input"]
import csv
import inspect
import itertools
import json
import os
import re
import tempfile
import textwrap
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import curves_chart
from helpers.instruments import (
    compare_counters,
    compile_for,
    measure,
    read_ncu,
    read_trace,
    recorded,
    recorded_page,
    table,
)
from helpers.learning import choose_edges, predict_first, predictions, puzzle, self_test
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.variants import kernel_at

os.environ["KINETO_LOG_LEVEL"] = "99"  # torch.profiler prints no messages of its own
torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# ## Which profiler answers which question?
#
# | question | tool | it gives you |
# |---|---|---|
# | Where does the time go: kernels, gaps, the CPU? | torch.profiler, Nsight Systems (`nsys`) | a timeline |
# | Why does this one kernel take so long? | Nsight Compute (`ncu`) | hardware counters, kernel by kernel |
#
# **The timeline comes first.** A kernel that takes 2 % of the time is not worth a counter.
# <!-- given 2 %: an example -->
#
# On a machine with a GPU, `fusion profile script.py` runs both on your script and lists whatever is missing: Nsight
# Compute may read counters only if the driver permits it. These are its commands:

# %% tags=["hide-input"]
from helpers.instruments.profile_script import PERMISSION, commands

for command in commands(Path("script.py"), launches=50).values():
    words = " ".join(["python" if "python" in word else word for word in command])
    print("$", words.replace(" --", " \\\n    --").replace(",l1tex", ",\\\nl1tex"))
print(textwrap.fill(PERMISSION, 96))

# %% [markdown]
# Everything below was recorded on an H200 (`python -m benchmarks.profiles`, which adds a few counters to these; the
# files are in `benchmarks/results/h200_profiles`). `nsys` was not installed there. Its timeline has the same rows as
# torch.profiler's.
#
# Nsight Compute does not watch a program run. It stops at each kernel, saves its memory and replays it several times,
# a few counters per pass, and empties the caches before each pass. So its durations are those of a kernel alone with
# [cold](../docs/glossary.md#cold-l2) caches: whatever the kernel before left in [L2](../docs/glossary.md#l2) is gone.
# (By default it also fixes the clocks; this record does not.)
#
# ## A page of Nsight Compute
#
# Take add+GELU on $2^{25}$ elements in fp32, lesson 00's kernel. You have metered it, compiled it for an H200, worked
# out its [occupancy](../docs/glossary.md#occupancy). **How many MB will the profiler count as read from
# [DRAM](../docs/glossary.md#dram)?**

# %% tags=["hide-input"]
read_mb = predict_first("MB read by add+GELU of 2**25 numbers in fp32", unit="MB")
read_mb

# %% tags=["hide-input"]
about = json.loads(recorded_page("block.json").read_text())
print(about["gpu"], about["date"], "Nsight Compute", about["ncu"]["version"])
launched = list(read_ncu(recorded_page("ncu.csv")))
pages = {}
for each in launched:
    pages.setdefault(each.name, each)
add_gelu = pages["add_gelu_kernel"]
read_mb.compare(
    add_gelu.counter("dram__bytes_read.sum") / 1e6,
    "Two inputs, four bytes per element: the meter's number.",
)

# %% [markdown]
# The page's first section, as the tool prints it:

# %% tags=["hide-input"]
printed = recorded_page("ncu_details.txt").read_text().split("add_gelu_kernel", 1)[1]
section = "Section: GPU Speed Of Light Throughput\n"
print("    " + section + printed.split(section, 1)[1].split("\n\n", 1)[0])

# %% [markdown]
# **Speed of Light** gives each unit's throughput as a percentage of its own maximum. *Compute (SM)* is the busiest of
# the SM's pipelines, *Memory* sums up the memory system (here it is DRAM's number). The higher one is the roof that
# the kernel works under (lesson 01). Memory above 80 % and compute far below: memory-bound, and near the limit. If both are
# below 60 %, neither is: look for latency, at occupancy and at stalls.
# <!-- given 60 %, 80 %: Nsight Compute's own rules for this section, SpeedOfLight.py -->
#
# The sections *Launch Statistics* and *Occupancy* you could have written yourself. In fact you have: `compile_for` and
# `occupancy` know nothing about this GPU except its data sheet, and the meter ran a much smaller kernel in an
# interpreter. Compare the GPU's counters with our instruments:


# %%
def beside(name, shape, dtype, small=None, times=1):
    op = CATALOGUE[name]
    kernel, arguments, options = kernel_at(op, *shape, dtype=dtype)
    resources = compile_for(kernel, *arguments, device="H200", **options)
    traffic = small and measure(op.fused, *op.inputs(*small, dtype=dtype))
    return compare_counters(
        pages[kernel.fn.__name__], resources, traffic, times, op.work(shape, dtype)
    )


# %% tags=["hide-input"]
def pair_table(pairs, name=""):
    cells = []
    for pair in pairs:
        both = (f"{each:,.4g}" for each in (pair.counted, pair.said))
        cells.append((pair.counter, *both, f"{pair.ratio:.3f}", pair.instrument))
    return table(("counter", "GPU", "ours", "ratio", "by"), cells, name)


pair_table(beside("add_gelu", (2**25,), torch.float32, small=(2**14,), times=2**11))

# %% [markdown]
# [Registers](../docs/glossary.md#register), block, occupancy, [sectors](../docs/glossary.md#sector), bytes read: equal,
# or nearly. **One differs: DRAM receives fewer bytes than the result has.** Nothing is lost. A store goes to L2, and L2
# writes a line back when it needs the room. When the kernel ends, the last part of `y` is still in L2 and is written
# back later, during some other kernel. The smaller the tensor, the larger that part. So a profiler's written bytes are a
# lower bound; the meter counts what the kernel costs.
#
# A counter's long name reads from left to right: `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum` is counted in L1:
# sectors that come through the load/store units (LSU), from global memory, by loads, summed over all SMs. `lts` is L2,
# `dram` the DRAM itself.
#
# *Achieved occupancy* (in the whole page, below) is lower than *theoretical*: blocks take time to start, and in the
# last [wave](../docs/glossary.md#wave) some SMs finish first. It is an average; the calculator gives the maximum.
#
# ## A matmul's page
#
# Now linear+GELU. Before you read on, explain each ratio that is not one:

# %% tags=["nbval-ignore-output", "hide-input"]
bf16 = torch.bfloat16
pairs = beside("linear_act", (4096, 4096, 4096), bf16)
pair_table((pair for pair in pairs if pair.ratio != 1), "linear_act")

# %% [markdown]
# Three reasons, and none is an instrument's mistake:
#
# - **Registers** depend on the compiler. The record is of Triton 3.6; a newer one may use another number, and then
#   occupancy changes with it.
# - **Written bytes**: as above.
# - **Bytes read exceed the minimum.** Both matrices together exceed what L2 keeps, so later [tiles](../docs/glossary.md#tile)
#   read parts of them again. The minimum counts each input once; the profiler counts what arrived.
#
# And sectors? This kernel loads its tiles by [TMA](../docs/glossary.md#tma), straight into
# [shared memory](../docs/glossary.md#shared-memory):

# %% tags=["hide-input"]
LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
rows = []
for name in ("add_gelu_kernel", "linear_act_descriptors_kernel"):
    both = (pages[name].counter(each) for each in (LOADS, "lts__t_sectors_op_read.sum"))
    rows.append((name, *(f"{sectors / 1e6:.2f} million" for sectors in both)))
table(("sectors read", "L1: by loads", "L2: all reads"), rows)

# %% [markdown]
# **A counter has a place on the chip, and sees only what passes there.** The first column is on the path of load
# instructions, and TMA has a path of its own. Trust that column alone, and the matmul seems to read nothing.
#
# L2's counter has its place as well: add+GELU reads half as many sectors again from L2 as it loads. An H200's L2 is in
# two partitions, and data in the far one passes through both.
#
# ## Fused and unfused, by the profiler
#
# **Claim: "a kernel at almost 90 % of the memory's speed needs no more work."** An add of the same $2^{25}$ elements is
# such a kernel: Nsight Compute gives it 88 %. A GELU follows. **How many times faster is the fused kernel than the two
# together, by Nsight Compute's durations?**
# <!-- given 88 %: the recorded page, shown below -->

# %% tags=["hide-input"]
twice = predict_first("times faster: add+GELU fused, by ncu's durations", unit="times")
twice

# %% tags=["hide-input"]
add, gelu = launched[:2]
for name, each in (("add", add), ("GELU", gelu), ("both in one kernel", add_gelu)):
    of_limit = each.counter("DRAM Throughput")
    print(f"{name}: {1e6 * each.counter('Duration'):.1f} us, {of_limit:.0f}% of the memory's speed")
apart = add.counter("Duration") + gelu.counter("Duration")
twice.compare(
    apart / add_gelu.counter("Duration"),
    "Verdict: fails. Five passes become three. The fused kernel takes as long as the add alone: "
    "GELU is free. The profiler is right about each kernel and knows nothing about the program: "
    "that the next kernel reads what this one has just written. (In a program GELU may find part "
    "of its input in L2, which Nsight Compute has emptied: the gain is somewhat large.)",
)

# %% [markdown]
# And its advice on the add? The page prints it below the numbers:

# %% tags=["hide-input", "answers-twice"]
advice = recorded_page("ncu_details.txt").read_text().split("    INF   ")[1].split("\n\n")[0]
print(textwrap.fill(" ".join(advice.split()), 96))

# %% [markdown]
# A percentage of a limit tells you how well the bytes are moved, never whether they had to be moved.
#
# The same for softmax as five operators; how far each is from either limit:

# %% tags=["hide-input"]
names, rows = ("DRAM Throughput", "Compute (SM) Throughput"), []
for operator, each in zip(("max", "subtract", "exp", "sum", "divide"), launched[6:11], strict=True):
    took = f"{1e6 * each.counter('Duration'):.0f} us"
    rows.append((operator, took, *(f"{each.counter(name):.0f}%" for name in names)))
table(("softmax", "time", "memory", "compute"), rows)

# %% [markdown]
# Two of them, the subtraction and the division, are far from the memory's speed. They are busy with *compute*: PyTorch's
# kernel for broadcast operands works out an index for each element. Fusing removes four passes *and* that arithmetic.
#
# ## What do warps wait for?
#
# The section *Warp State Statistics* answers: of the cycles between two instructions of a
# [warp](../docs/glossary.md#warp), how many it waits, and for what. The source page counts samples per instruction:

# %% tags=["hide-input"]
states = add_gelu.sections["Warp State Statistics"]
stalls = {name: each.value for name, each in states.items() if "Stall " in name}
longest = sorted(stalls.items(), key=lambda pair: -pair[1])[:4]
rows = ((name, f"{cycles:.1f}") for name, cycles in longest)
display(table(("stall", "cycles per instruction"), rows))
lines = list(csv.DictReader(recorded_page("ncu_source.csv").read_text().splitlines()))
samples = sum(int(line["# Samples"]) for line in lines)
rows = []
for line in sorted(lines, key=lambda line: -int(line["# Samples"]))[:4]:
    share = f"{100 * int(line['# Samples']) / samples:.0f}%"
    rows.append((share, line["Source"].strip().split(" 0x7f")[0]))
table(("of the samples", "instruction"), rows)

# %% [markdown]
# A scoreboard is how an SM tracks registers with pending writes. *Long scoreboard* is a wait for a load from L1 or
# beyond; *short*, for shared memory and the like; *drain*, for the stores at the end, and those are the samples of the
# branch (BRA). The instruction with most samples is not a load: it is the first addition whose operands are still
# [in flight](../docs/glossary.md#in-flight). **The profiler blames the line that waits, not the line that loads.** A
# memory-bound kernel looks like this, and should: nothing else is worth waiting for.
#
# ## Two questions from earlier lessons
#
# Lesson 03b metered strided loads in sectors of 32 bytes. Here the same kernel reads elements that are 32, 64 and 128
# bytes apart, always the same number of them. **How many bytes does DRAM deliver per element of four bytes, 128 bytes
# apart?**
# <!-- given 32 bytes: a sector, Nsight Compute documentation -->
# <!-- given 128 bytes: the strides of the experiment -->
# <!-- given four bytes: fp32 -->

# %% tags=["hide-input"]
far_apart = predict_first("bytes from memory for each number, 128 bytes apart", unit="B")
far_apart

# %% tags=["hide-input"]
strided = [page for page in launched if page.name == "strided_sum_kernel"]
rows = []
for stride, page in zip((4, 32, 64, 128), strided, strict=True):
    sectors, nbytes = page.counter(LOADS), page.counter("dram__bytes_read.sum")
    asked, came = 32 * sectors / 2**22, nbytes / 2**22
    rows.append((f"{stride} B", *(f"{each:.1f} B" for each in (asked, came))))
display(table(("apart", "per element, in L1's sectors", "from DRAM"), rows))
far_apart.compare(
    strided[-1].counter("dram__bytes_read.sum") / 2**22,
    "L1 requests one sector and DRAM delivers two, because L2 fetches them in pairs. L1's counter "
    "cannot see that. At 64 bytes apart a strided read costs twice what the meter counts, and at "
    "128 no more than that.",
)

# %% tags=["hide-input"]
pages_at = dict(zip((4, 32, 64, 128), strided, strict=True))
delivered = {
    "from DRAM": {b: p.counter("dram__bytes_read.sum") / 2**22 for b, p in pages_at.items()},
    "in L1's sectors": {b: 32 * p.counter(LOADS) / 2**22 for b, p in pages_at.items()},
}
axes = {"x": "bytes from one element to the next", "y": "bytes per element of 4"}
title = "From 64 bytes apart, DRAM delivers twice what L1 requests"
far_apart.on(curves_chart(delivered, title, **axes), "y")

# %% [markdown]
# **Claim: "spilled registers stay in the L1 cache."** Lesson 07 [spilled](../docs/glossary.md#spill) in two ways: a
# chain of steps with a few registers too many, and add+GELU with far too large a block.

# %% tags=["hide-input"]
chain = h200.experiment("sm_counters")["steps"][15]
LOCAL = "l1tex__t_sectors_pipe_lsu_mem_local_op_ld"
large = next(page for page in reversed(launched) if page.counter(f"{LOCAL}.sum"))
print(h200.label_of("sm_counters"))
share = chain["local_read_hit"] / chain["local_read"]
print(f"chain of 15 steps: {100 * share:.0f}% of the spilled reads hit L1")
hits = large.counter(f"{LOCAL}_lookup_hit.sum") / large.counter(f"{LOCAL}.sum")
print(f"add+GELU, 16384 elements by 2 warps: {100 * hits:.0f}% hit L1;")
more = large.counter("dram__bytes_read.sum") / add_gelu.counter("dram__bytes_read.sum")
slower = large.counter("Duration") / add_gelu.counter("Duration")
busy_memory = large.counter("DRAM Throughput")
print(f"  {more:.1f}x the bytes read from DRAM, {slower:.1f}x the time,", end=" ")
print(f"at {busy_memory:.0f}% of the memory's speed")
print(
    "\nVerdict: holds for a few, fails for many. All spills of an SM's blocks have to fit into its "
    "L1.\nThose that don't go to L2 and to DRAM, where they look like work."
)

# %% [markdown]
# ## The timeline
#
# The other tool. A transformer block at the sizes of Llama 3's smaller model, 512 tokens, bf16: RMSNorm, attention with
# grouped heads, SwiGLU, [residuals](../docs/glossary.md#residual). torch.profiler recorded it in four versions, each
# launched from Python and as a [CUDA graph](../docs/glossary.md#cuda-graph). "eager" has attention written out;
# "libraries" is eager PyTorch with its fused attention; "fused" consists of this course's kernels.

# %% tags=["hide-input"]
VERSIONS = ("eager", "libraries", "torch_compile", "fused")
timelines = {
    f"{way}{how}": read_trace(recorded_page(f"block_{way}{how}.trace.json"))
    for way in VERSIONS
    for how in ("", "_cuda_graph")
}
eager = timelines["eager"]
span = eager.kernels[-1].launched - eager.kernels[0].launched
work = sum(kernel.duration for kernel in eager.kernels)
print(f"eager: {len(eager.kernels)} kernels run for {1e6 * work:.0f} us in all;", end=" ")
print(f"Python launches them over {1e6 * span:.0f} us")

# %% [markdown]
# **What share of the time is the GPU busy, eager, launched from Python?**

# %% tags=["hide-input"]
busy = predict_first("the GPU busy, eager, 512 tokens", unit="%")
busy

# %% tags=["hide-input"]
rows = []
for name, timeline in timelines.items():
    times = (f"{1e6 * timeline.wall:.0f} us", f"{100 * timeline.busy:.0f}%")
    rows.append((name, len(timeline.kernels), *times))
display(table(("", "kernels", "in all", "busy"), rows))
busy.compare(
    100 * eager.busy,
    "A gap is a kernel that ends before the CPU has launched the next one. The large matmuls run "
    "last, when the CPU is ahead; what they take after the last launch comes on top.",
)

# %% [markdown]
# Use the arrow keys, and type a part of a name (`nvjet` for cuBLAS's matmuls here, `elementwise`, `softmax`) into the
# search. Matmuls are blue, everything else is grey, search hits are orange, gaps are shaded. The `.trace.json` files
# also open in [Perfetto](https://ui.perfetto.dev): drag one into its window.

# %% tags=["hide-input"]
from helpers.figures import KernelTimelineExplorer

KernelTimelineExplorer(timelines, "eager", search="elementwise")

# %% [markdown]
# Look at two things. *Fused* has the fewest kernels, and in this record, launched from Python, it took as long as
# *eager*: its host wrappers were Python, and at this size the GPU waited for them. (The profiler itself also slows the
# CPU.) As CUDA graphs all versions are busy nearly all the time, and only the kernels count. **Fusing alone does not
# close gaps: a CUDA graph does, because it launches everything at once.**
#
# ## What to fuse: a rule, and the analyser
#
# A rule that anyone can apply to a trace:
#
# 1. Several kernels in a row that are not matmuls move bytes for one another: fuse the row.
# 2. A single such kernel after a matmul may be its [epilogue](../docs/glossary.md#epilogue).
# 3. At least half of the gaps are longer than the kernels before them: launch less, whatever the kernels do.

# %% tags=["hide-input"]
rows = []
for each in eager.opportunities():
    kernels = eager.kernels[each.first : each.last + 1]
    names = " ".join(kernel.short_name[:14] for kernel in kernels[:5])
    names += " ..." if len(kernels) > 5 else ""
    took = f"{1e6 * sum(kernel.duration for kernel in kernels):.1f} us"
    rows.append((each.sign, each.kernels, took, names))
table(("sign (product: a matmul)", "kernels", "in all", ""), rows)

# %% [markdown]
# The analyser (`fusion analyse`) needs no trace and no GPU: it has the graph. Its groups for the same block:

# %%
from helpers.instruments import analyse
from kernels.transformer_block import (
    transformer_block,
    transformer_block_inputs,
    transformer_block_reference,
)

SIZES = {"width": 4096, "heads": 32, "key_heads": 8, "hidden": 14336}
written_out = partial(transformer_block_reference, heads=32, key_heads=8)


def plan_for(tokens):
    tensors = transformer_block_inputs(tokens, **SIZES, dtype=torch.bfloat16, device="meta")
    return analyse(lambda *given: written_out(*given), *tensors)


# %% tags=["hide-input"]
plan = plan_for(512)
for group in plan.groups:
    if len(group.operations) > 1:
        print(f"{group.kind}:", *(plan.by_name[name].operator for name in group.operations))

# %% [markdown]
# Both find the norm with its addition, SwiGLU's two steps after a matmul, the residual after the last one. The
# differences teach more:
#
# - **Attention.** The rule sees a row of kernels *between* two matmuls and would fuse that row. The analyser fuses
#   across the matmuls because it recognises softmax between them.
# - **The rule has no reason to stop.** It would put a norm behind a matmul, whatever the tile holds. The analyser checks
#   that one program has the whole row.
# - **A trace has no tensors.** Two neighbours may have nothing in common, and the rule cannot know.
# - **A plan has operators, a trace has kernels.** The plan does not see how well a library computes one of them.
#
# So a trace shows *where* the time is; the graph shows what may be fused.
#
# Your turn, with the block's second half. Suppose a trace lists both matmuls of the gate (`mm`, `mm_1`) one after the
# other, then `silu` and `mul`. The choice below is the rule's. **Find the partition with the shortest predicted time.**
# The edges: `_fused_rms_norm` with `mm` and `mm_1`, `mm`-`silu`, `silu`-`mul`, `mm_1`-`mul`, `mul`-`mm_2`, `mm_2`-`add`.


# %%
def feed_forward(s, norm, gate, up, down):
    h = F.rms_norm(s, (4096,), norm)
    return s + (F.silu(h @ gate) * (h @ up)) @ down


shapes = (512, 4096), (4096,), (4096, 14336), (4096, 14336), (14336, 4096)
choose_edges(
    feed_forward, *(torch.empty(shape, dtype=bf16, device="meta") for shape in shapes),
    fuse=[("silu", "mul"), ("mm_2", "add")],  # <- change these
)  # fmt: skip

# %% [markdown]
# <details><summary>Answer</summary><code>fuse=[("mm", "silu"), ("silu", "mul"), ("mm_2", "add")]</code>: the gate's row
# of two is itself an epilogue, of either matmul. The norm cannot join: every tile of the matmul would need whole rows.
# The analyser puts one matmul in a kernel; a kernel written by hand can hold two.</details>
#
# ## The capstone: one call for the block
#
# `kernels/transformer_block.py` is the block made of the course's kernels. It takes the same arguments as the unfused
# block:

# %% tags=["hide-input"]
print(inspect.getsource(transformer_block).split('"""')[2])

# %% [markdown]
# `gated_op` computes both matmuls of the gate in one kernel, with two
# [accumulators](../docs/glossary.md#accumulator), and its epilogue is SwiGLU: `silu(gate) * up`. For a single token a
# program of such a kernel computes one element: two dot products over the same x. Here with three weights per row, in
# blocks of four. **Change the marked line so that the activation is applied where it belongs.**


# %%
@triton.jit
def gated_row_kernel(x_ptr, gate_ptr, up_ptr, y_ptr, K, BLOCK: tl.constexpr):
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + k, mask=k < K, other=0.0)
    gate = x * tl.load(gate_ptr + row * K + k, mask=k < K, other=0.0)
    up = x * tl.load(up_ptr + row * K + k, mask=k < K, other=0.0)
    y = tl.sum(gate * tl.sigmoid(gate) * up)  # <- here
    tl.store(y_ptr + row, y)


x_3 = torch.tensor([1.0, -2, 0.5])
gates_3, ups_3 = torch.arange(9.0).view(3, 3) / 4 - 1, 5 - torch.arange(9.0).view(3, 3) / 2
gated_3 = torch.nn.functional.silu(gates_3 @ x_3) * (ups_3 @ x_3)
puzzle(gated_row_kernel, 3, x_3, gates_3, ups_3, wanted=gated_3, shared=("x_ptr",), K=3, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>y = tl.sum(gate) * tl.sigmoid(tl.sum(gate)) * tl.sum(up)</code>: an epilogue
# works on finished sums. Inside the sum the activation sees single products.</details>
#
# <!-- choices
# y = tl.sum(gate * tl.sigmoid(gate) * up)
#
# y = tl.sum(gate * tl.sigmoid(gate)) * tl.sum(up)
#
# y = tl.sum(gate) * tl.sigmoid(tl.sum(gate)) * tl.sum(up)
#
# y = tl.sum(gate * up) * tl.sigmoid(tl.sum(gate))
#
# y = tl.sigmoid(tl.sum(gate)) * tl.sum(up)
# -->
#
# Now the whole block, small, on the CPU. **How many times fewer launches does the fused block make?** In the traces it
# was 26 and 8. On the CPU each of PyTorch's two RMSNorms is six operators instead of one kernel, and the meter counts
# operators.
# <!-- given 26 launches, 8 launches: the table of traces above -->

# %% tags=["hide-input"]
fewer = predict_first("times fewer launches, the block fused", unit="times")
fewer

# %% tags=["hide-input"]
SMALL = {"width": 64, "heads": 4, "key_heads": 2, "hidden": 96}
fused_block = partial(transformer_block, heads=4, key_heads=2)
unfused_block = partial(transformer_block_reference, heads=4, key_heads=2)
tensors = transformer_block_inputs(24, **SIZES | SMALL, dtype=torch.float32)
unfused, fused = (measure(lambda b=block: b(*tensors)) for block in (unfused_block, fused_block))
for name, each in (("unfused", unfused), ("fused", fused)):
    print(f"{name}: {each.launches} launches, {each.bytes_total / 1e3:.1f} kB")
print("the same values:", torch.allclose(fused.result, unfused.result, atol=1e-5))
fewer.compare(unfused.launches / fused.launches)

# %% [markdown]
# The backward pass, and how much is [saved for it](../docs/glossary.md#saved-for-backward):

# %% tags=["hide-input"]
from helpers.instruments import saved_for_backward


def leaves():
    return [each.detach().to(device).requires_grad_() for each in tensors]


def gradients(block):
    given = leaves()
    return torch.autograd.grad(block(*given).square().sum(), given)


pairs = list(zip(gradients(fused_block), gradients(unfused_block), strict=True))
off = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
print(f"{len(pairs)} gradients, each within a hundred-thousandth of its largest:", off < 1e-5)

# %% tags=["nbval-ignore-output", "hide-input"]
for name, block in (("unfused", unfused_block), ("fused", fused_block)):
    kept = saved_for_backward(block, *leaves())
    print(f"{name} saves {sum(kept.made.values()) / 1e3:.0f} kB in addition to its arguments")

# %% [markdown]
# ## Predicted and measured
#
# At real sizes the analyser predicts, from the graph alone, how much faster the fused block is on an H200. For 8192
# tokens, its plan adds up these parts:

# %% tags=["hide-input"]
plan = plan_for(8192)
score = 2 * 32 * 8192**2  # bytes of a matrix of scores, in bf16
one_pass = score / h200.copy_bandwidth
attention = next(group for group in plan.groups if group.kind == "attention")
rest = [
    1e3 * (plan.time_unfused - attention.time_unfused),
    1e3 * (plan.time_fused - attention.time),
]
print(f"all but attention: {rest[0]:.1f} ms unfused, {rest[1]:.1f} ms fused")
print(f"attention in one kernel: {1e3 * attention.time:.1f} ms")
passes = attention.time_unfused / one_pass
print(
    f"attention unfused: as long as {passes:.0f} passes over a matrix of {score / 1e9:.1f} GB,",
    end=" ",
)
print(f"32 heads of scores, {1e3 * one_pass:.1f} ms each")

# %% [markdown]
# **How many times faster does it predict the fused block to be, 8192 tokens, forward?**

# %% tags=["hide-input"]
by_plan = predict_first("times faster by the analyser, 8192 tokens, forward", unit="times")
by_plan

# %% tags=["hide-input"]
by_plan.compare(plan.time_unfused / plan.time_fused)

# %% [markdown]
# The analyser takes each kernel to be as fast as its bytes, or its arithmetic, allow. **And how many times faster was it
# when measured?** No instrument here can know: it depends on how close PyTorch's kernels come to their limits.

# %% tags=["hide-input"]
predicted = predict_first(
    "times faster, 8192 tokens, forward, fused against written out", unit="times"
)
predicted

# %% tags=["hide-input"]
from helpers.instruments.recordings import dated

TIMES = about["times"]
day = dated(about["date"], TIMES["8192"]["forward"]["fused"].get("fingerprints"))
label = (
    f"{about['gpu']}, PyTorch {about['versions']['torch']}, Triton {about['versions']['triton']}"
)
label = f"{label}, {day}"


def milliseconds(tokens, way, direction="forward"):
    return 1e3 * TIMES[str(tokens)][direction][way]["gpu"]["median"]


found, rows = {"predicted": {}, "measured": {}}, []
for tokens in (1, 512, 8192):
    of_size = plan_for(tokens)
    found["predicted"][tokens] = of_size.time_unfused / of_size.time_fused
    found["measured"][tokens] = milliseconds(tokens, "eager") / milliseconds(tokens, "fused")
    rows.append((tokens, *(f"{each[tokens]:.2f} times" for each in found.values())))
display(table(("tokens", "predicted", "measured"), rows, label))
slowest = sorted(TIMES["8192"]["forward"]["eager"]["kernels"], key=lambda row: -row[1])[0]
print(f"eager's slowest kernel, softmax: {slowest[1] / 1e3:.1f} ms; at copy bandwidth")
print(f"a read and a write of the scores take {2e3 * one_pass:.1f} ms")
predicted.compare(
    found["measured"][8192],
    "At 512 tokens the assumption nearly holds. At 8192 the unfused block's kernels are far from "
    "their limits. At one token a kernel of ours is (Going further).",
)

# %% tags=["hide-input"]
title = "At 8192 tokens fusing gains more than predicted, at fewer tokens about as much"
axes = {"x": "tokens", "y": "times faster than unfused, forward"}
predicted.on(curves_chart(found, title, **axes, log=True), "y")

# %% [markdown]
# ## Against PyTorch's libraries
#
# Unfused attention is a weak baseline. The strong ones: "libraries" has cuBLAS and PyTorch's choice of attention
# (cuDNN's, and FlashAttention at one token); `torch.compile`, in its default mode, is given that version;
# **`max-autotune` was not timed here**. "fused, cuBLAS" has our norms, attention and SwiGLU, and cuBLAS's matmuls. GPU
# times in ms, cold L2, gaps between launches excluded; a step is forward and backward:

# %% tags=["hide-input"]
COMPARED = ("eager", "libraries", "torch.compile", "fused", "fused, cuBLAS")
rows = []
for direction in ("forward", "step"):
    for tokens in (1, 512, 8192):
        row = (milliseconds(tokens, way, direction) for way in COMPARED)
        rows.append((tokens, direction, *(f"{each:.3f}" for each in row)))
display(table(("tokens", "", *COMPARED), rows, f"{label}\nms"))
for direction in ("forward", "step"):
    compiled, ours = (TIMES["8192"][direction][way]["gpu"] for way in ("torch.compile", "fused"))
    slowest, fastest = 1e3 * compiled["high"], 1e3 * ours["low"]
    shown = f"torch.compile's slowest {slowest:.3f} ms, our fastest {fastest:.3f} ms"
    print(f"8192 tokens, {direction}: {shown}")
sizes = [(tokens, direction) for direction in ("forward", "step") for tokens in (1, 512, 8192)]
for way in COMPARED:
    if way != "fused":
        ours_first = sum(milliseconds(n, "fused", d) < milliseconds(n, way, d) for n, d in sizes)
        print(f"ours is faster than {way} at {ours_first} of {len(sizes)}")

# %% [markdown]
# **Our block beats unfused attention**, by a lot, as it should. How often it beats PyTorch with its libraries, and
# `torch.compile`, is in the last lines; at 8192 tokens its spread overlaps `torch.compile`'s. Errors and memory:

# %% tags=["hide-input"]
rows = []
for tokens in (1, 512, 8192):
    for way in ("libraries", "torch.compile", "fused"):
        of_step, forward = (TIMES[str(tokens)][direction][way] for direction in ("step", "forward"))
        launches = sum("Mem" not in name for name, _ in forward["kernels"])
        told = (f"{of_step['error']:.1e}", f"{of_step['peak'] / 1e6:.0f} MB")
        rows.append((tokens, way, launches, *told))
columns = ("tokens", "", "kernels forward", "error", "at a step's peak")
table(columns, rows)

# %% [markdown]
# Fewest kernels, an error between the other two, and no gain in time. At 8192 tokens not even in memory: `gated_op`
# saves both matmuls' results for the backward pass *and* their gated product; torch.compile
# [recomputes](../docs/glossary.md#recompute) the latter (lesson 11). Why no gain in time?
#
# ## Amdahl's share
#
# Each part of the block, by the kernels that torch.profiler saw: its time with libraries, with ours, and *how many
# times faster the whole would be if only this part were exchanged*. 8192 tokens, forward:

# %% tags=["hide-input"]
PARTS = {  # part -> places of its kernels, with libraries and in ours
    "norms": ((0, 5), (0, 5)),
    "q, k, v": ((1,), (1,)),
    "attention": ((2,), (2, 3)),
    "out, residual": ((3, 4), (4,)),
    "gate, up, SwiGLU": ((6, 7, 8, 9), (6,)),
    "down, residual": ((10, 11), (7,)),
}


def parts_of(tokens):
    """Part -> microseconds of its kernels, with libraries and in ours."""
    found = {}
    for way, side in (("libraries", 0), ("fused", 1)):
        kernels = [
            us
            for name, us in TIMES[str(tokens)]["forward"][way]["kernels"]
            if not name.startswith("Mem")
        ]
        for part, places in PARTS.items():
            found.setdefault(part, []).append(sum(kernels[place] for place in places[side]))
    return found


def shares(tokens):
    parts = parts_of(tokens)
    whole = sum(theirs for theirs, _ in parts.values())
    listed = TIMES[str(tokens)]["forward"]["libraries"]["kernels"]
    matmuls = 100 * sum(us for name, us in listed if name.startswith("nvjet")) / whole
    in_attention = 100 * parts["attention"][0] / whole
    print(f"{tokens} tokens: {whole:.0f} us with libraries,", end=" ")
    print(f"{matmuls:.0f}% of it in matmuls, {in_attention:.0f}% in attention")
    rows = []
    for part, (theirs, ours) in parts.items():
        times = (f"{each:.1f} us" for each in (theirs, ours))
        share, gain = f"{100 * theirs / whole:.1f}%", f"{whole / (whole - theirs + ours):.3f}"
        rows.append((part, *times, share, gain))
    return table(("part", "libraries", "ours", "of the whole", "the whole faster"), rows, label)


shares(8192)

# %% [markdown]
# Most of the time is in matmuls, and a matmul does not get faster by fusing. Fusing *can* save the rest, the norms and
# all elementwise kernels together, and that is little. Part by part, with the table for 512 tokens (Going further):
#
# - **Worth it**: SwiGLU in the epilogue of two matmuls (the largest gain), and at 512 tokens the norms.
# - **Not worth it**: the residual in a matmul's epilogue. Where our matmul is slower than cuBLAS's, as at 512 tokens, it
#   loses more than the addition took.
# - **A loss**: attention. The library's kernel is faster than the one recorded here at both sizes, and it writes its
#   result so that no copy has to put a token's heads side by side.
#
# A mixture would be best: the library's attention, our gate, cuBLAS for the rest. A block is not faster because all its
# kernels have one author.
#
# ## Your predictions vs the measurements

# %% tags=["nbval-ignore-output", "hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two kernels in a row each reach 85 % of the memory's speed. What does Nsight Compute advise, and what do you?
# <!-- given 85 %: an example -->
# <details><summary>Answer</summary>It reports that each is near its limit. You check whether the second reads what the
# first wrote: then one kernel moves fewer bytes at the same speed.</details>
#
# 2. A kernel's counter for global loads is 0, and its result is right. How?
# <details><summary>Answer</summary>It loads by TMA, which has a path of its own. Look at L2's counter, or
# DRAM's.</details>
#
# 3. The profiler counts fewer bytes written than the result has. Is the meter wrong?
# <details><summary>Answer</summary>No. The rest was still in L2 when the kernel ended, and is written back
# later.</details>
#
# 4. Most stall samples are on an addition. Would a cheaper addition help?
# <details><summary>Answer</summary>No. It waits for its operands: the loads before it take the time.</details>
#
# 5. In a trace the GPU is busy 10 % of the time. Which do you try first: a fused kernel, or a CUDA graph?
# <!-- given 10 %: an example -->
# <details><summary>Answer</summary>A CUDA graph, or torch.compile with one: the time is between the kernels. Fusing
# helps only as far as the CPU has fewer kernels to launch.</details>
#
# 6. A fusion takes 3 % off a block's time, and the block is half of a step. What percentage of the step does it save?
#    Replace the dots by your number.
# <!-- given 3 %: an example -->

# %%
answer = ...
self_test(answer, 0.5 * 3, "half of it")

# %% [markdown]
# ## Now you
#
# [Exercise 15](../exercises/15_capstone.ipynb): a block of another model, forward and backward, and a report. It is the
# last one. After it, take a model of your own: `fusion analyse`, then a trace, then a page.

# %% [markdown]
# ## Going further
#
# ### The whole page, and `--set full`
#
# add+GELU's page, as `ncu` prints it with the sections above. `INF` and `OPT` lines are its rules' advice; an estimated
# speedup assumes that the named problem can be removed completely.

# %% tags=["hide-input"]
indent = {"initial_indent": 4 * " ", "subsequent_indent": 10 * " "}
page = "Section: Compute Workload Analysis" + printed.split("Section: Compute Workload Analysis")[1]
for part in page.rstrip().split("\n\n"):
    if part.lstrip().startswith(("INF", "OPT")):
        for advice in re.split("-{20,}", part.replace("    ----- ", "")):
            print(textwrap.fill(" ".join(advice.split()), 88, **indent), end="\n\n")
    else:
        print(part, end="\n\n")

# %% [markdown]
# By default `ncu` collects the set `basic`: Speed of Light, launch and occupancy. `--set full` collects nearly all
# sections. The tool lists its sets itself; this list, and the page below, are of an H100:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_15 import RECORD

H100 = RECORD.removesuffix(".json")
outputs = json.loads(recorded_page("outputs.json", H100).read_text())
print(outputs["gpu"], outputs["date"], "Nsight Compute", outputs["ncu"])
sets = recorded_page("ncu_sets.txt", H100).read_text()
print("$ ncu --list-sets")
for line in sets.splitlines():
    print(
        textwrap.fill(" ".join(line.split()), 96, subsequent_indent=10 * " ")
        if line.split()
        else ""
    )

# %% [markdown]
# More sections need more replays of each kernel, so pick kernels as well: `--kernel-name regex:gated --launch-skip 3
# --launch-count 1`. One launch of add+GELU with `--set full` has these sections:

# %% tags=["hide-input"]
full_page = recorded_page("ncu_full.txt", H100).read_text()
sections = full_page.split("Section: ")[1:]
rows = []
for section in sections:
    title, *lines = section.splitlines()
    numbers = sum(bool(re.match(r"\s+\S.*\s[\d,.]+$", line)) for line in lines)
    rules = [line.split()[0] for line in lines if re.match(r"\s+(INF|OPT|WRN)\s", line)]
    rows.append((title.strip(), numbers, " ".join(rules)))
display(table(("section", "numbers", "advice"), rows))
wanted = ("Scheduler Statistics", "Instruction Statistics", "Memory Workload Analysis Tables")
for section in sections:
    title, *lines = section.rstrip().splitlines()
    if title.strip() in wanted[:1]:
        print("    Section:", title)
        print("\n".join(line for line in lines if re.match(r"\s+(-|Metric|\S.*\d$)", line)))

# %% [markdown]
# Read a full page in this order:
#
# 1. **Speed of Light**: which roof, and how far below it.
# 2. Near the memory roof: *Memory Workload Analysis*. Are the bytes the minimum? L2's hit rate, and in *Source
#    Counters* the excess sectors per line (lesson 03b).
# 3. Near the compute roof: *Compute Workload Analysis*. Which pipeline: tensor cores, FMA, or the special function
#    units (lesson 10)?
# 4. Near neither: *Scheduler Statistics* (how often has a scheduler no warp that can issue?), *Warp State* (why?),
#    *Occupancy* and *Launch Statistics* (too few warps, or less than a wave?).
#
# ### From an operator to your line: `with_stack=True`
#
# A trace lists operators and kernels. With `with_stack=True` torch.profiler also records the Python calls, so that each
# operator can be traced to the line that called it. It slows the CPU a lot: read *who* from such a trace, not *how
# long*.


# %%
def residual_part(x, update):
    return x + update


def gate_part(gate, up):
    return F.silu(gate) * up


def two_parts(x, gate, up):
    return residual_part(x, gate_part(gate, up))


small = [torch.randn(8, 16) for _ in range(3)]
with torch.profiler.profile(with_stack=True) as profiler:
    two_parts(*small)
with tempfile.TemporaryDirectory() as folder:
    profiler.export_chrome_trace(f"{folder}/trace.json")
    events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]

# %% tags=["hide-input", "nbval-ignore-output"]
calls = [event for event in events if event.get("cat") == "python_function"]
rows = []
for event in events:
    if event.get("cat") == "cpu_op":
        around = [
            call["name"].rpartition(": ")[2]
            for call in sorted(calls, key=lambda call: call["ts"])
            if call["ts"] <= event["ts"]
            and event["ts"] + event["dur"] <= call["ts"] + call["dur"]
            and "_part" in call["name"]
        ]
        rows.append((event["name"], " > ".join(around)))
table(("operator", "called in"), rows)

# %% [markdown]
# In Perfetto the Python calls are the rows above the operators. `record_function("gate")` marks a region of your own by
# name, without stacks; in `nsys` the same is an NVTX range, `torch.cuda.nvtx.range("gate")`.
#
# On a GPU the same trace shows which Python function launched which kernel: the kernel's correlation number leads to its
# launch, and the launch falls inside the calls. A training step with gradient clipping, on an H100:

# %%
from benchmarks import profiler_outputs

print(inspect.getsource(profiler_outputs.clip))
print(inspect.getsource(profiler_outputs.update))

# %% tags=["hide-input"]
gap_trace = json.loads(recorded_page("gap.trace.json", H100).read_text())["traceEvents"]
launches_of = {
    each["args"]["correlation"]: each
    for each in gap_trace
    if each["cat"].startswith("cuda_") and "aunch" in each["name"]
}
python_calls = [each for each in gap_trace if each["cat"] == "python_function"]
ran = sorted((each for each in gap_trace if each["cat"] == "kernel"), key=lambda each: each["ts"])


def ends(event):
    return event["ts"] + event["dur"]


def called_in(event):
    """Return the Python functions around an event, outermost first."""
    around = [c for c in python_calls if c["ts"] <= event["ts"] and ends(event) <= ends(c)]
    return " > ".join(each["name"].rpartition(": ")[2] for each in around)


def short(name):
    """Return a kernel's name without its templates' arguments."""
    return re.findall(r"\w+", name.partition("<")[0].partition("(")[0])[-1][:32]


rows = []
for kernel in ran[: len(ran) // profiler_outputs.STEPS]:
    launch = launches_of[kernel["args"]["correlation"]]
    rows.append((short(kernel["name"]), f"{kernel['dur']:.0f} us", called_in(launch)))
table(("the first step's kernels", "time", "launched in"), rows, outputs["gpu"])

# %% [markdown]
# ### How to read a gap
#
# `nsys profile --trace cuda,nvtx -o report python script.py` records a timeline; `nsys export --type sqlite` writes its
# events as tables: kernels in `CUPTI_ACTIVITY_KIND_KERNEL`, launches in `CUPTI_ACTIVITY_KIND_RUNTIME`, each with `start`
# and `end` in nanoseconds and a `correlationId` that joins a kernel to its launch; names are numbers that `StringIds`
# resolves. So a timeline is read by a query:
# <!-- given: Nsight Systems documentation, SQLite export schema -->

# %%
print(profiler_outputs.QUERY)

# %% [markdown]
# `nsys` is not installed on the machine of these records. But the trace above has the same columns. Put into tables of
# these names, it answers the same query:

# %% tags=["hide-input"]
import sqlite3

base = sqlite3.connect(":memory:")
base.execute("CREATE TABLE StringIds (id, value)")
base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (correlationId, start, "end")')
base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (correlationId, start, "end", shortName)')
for number, kernel in enumerate(ran):
    correlation = kernel["args"]["correlation"]
    launch = launches_of[correlation]
    nanoseconds = [[1e3 * each["ts"], 1e3 * ends(each)] for each in (launch, kernel)]
    base.execute("INSERT INTO StringIds VALUES (?, ?)", (number, short(kernel["name"])))
    base.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", (correlation, *nanoseconds[0])
    )
    base.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)",
        (correlation, *nanoseconds[1], number),
    )
timeline = base.execute(profiler_outputs.QUERY).fetchall()
rows = []
for before, after in itertools.pairwise(timeline):
    gap, late = after[1] - before[2], after[3] - before[2]
    verdict = "the CPU is late" if late > 0 else "the GPU is busy: launched before"
    rows.append(
        (f"{before[0]} > {after[0]}", f"{gap / 1e3:.1f} us", f"{late / 1e3:.1f} us", verdict)
    )
table(("between", "gap", "launched after the end", ""), rows)

# %% [markdown]
# A late launch after a kernel whose result Python reads is `norm.item()`: the CPU waits for the GPU, then the GPU for the
# CPU. The condition can stay on the GPU: `grad * (most / norm).clamp(max=1)` clips without asking.
#
# Here are the fused block's longest gaps, from the trace in the main part:

# %% tags=["hide-input"]
fused_timeline = timelines["fused"]
order = sorted(range(len(fused_timeline.gaps)), key=lambda at: -fused_timeline.gaps[at])
rows = []
for at in sorted(order[:4]):
    before, after = fused_timeline.kernels[at : at + 2]
    late = after.launched - before.end
    rows.append(
        (
            f"{before.short_name[:18]} > {after.short_name[:18]}",
            *(f"{1e6 * each:.0f} us" for each in (fused_timeline.gaps[at], late)),
            f"{1e6 * (after.start - after.launched):.0f} us",
        )
    )
table(("gap between", "gap", "launched after the end", "from launch to start"), rows)

# %% [markdown]
# The launch comes late and the kernel starts soon after it: the CPU is the bottleneck, here the Python of our host
# wrappers, and a CUDA graph or fewer launches help. If the launch came long before the end of the kernel before it, the
# GPU would be the one that waits: for a copy, another stream or an event. And where a kernel starts a microsecond after
# the one before it, the CPU is ahead, and only the kernels are left to improve.
#
# ### Amdahl's share at 512 tokens

# %% tags=["hide-input"]
shares(512)

# %% [markdown]
# ### Five kernels, fused and unfused, by Nsight Compute
#
# The pages of LayerNorm+GELU, softmax and attention are of earlier versions of our kernels:

# %% tags=["hide-input"]
CASES = {
    "add+GELU": (2, 1),
    "LayerNorm+GELU": (2, 1),
    "softmax": (5, 1),
    "linear+GELU": (2, 1),
    "attention": (4, 1),
}
first, rows = 0, []
for name, (unfused_kernels, fused_kernels) in CASES.items():
    middle, last = first + unfused_kernels, first + unfused_kernels + fused_kernels
    parts, first = (launched[first:middle], launched[middle:last]), last
    times = [sum(each.counter("Duration") for each in part) for part in parts]
    moved = [sum(each.counter("dram__bytes_read.sum") for each in part) for part in parts]
    shown = (*(f"{1e6 * each:.1f} us" for each in times), f"{times[0] / times[1]:.2f} times")
    each_part = " + ".join(f"{1e6 * each.counter('Duration'):.0f} us" for each in parts[0])
    rows.append((name, *shown, f"{moved[0] / moved[1]:.1f} times less", each_part))
table(("", "unfused", "fused", "faster", "read", "unfused, each"), rows)

# %% [markdown]
# | case | fusing removed |
# |---|---|
# | add+GELU | a round trip of a tensor |
# | LayerNorm+GELU | the same, and a LayerNorm that alone takes longer than ours with its GELU |
# | softmax | four passes, and the index arithmetic |
# | linear+GELU | GELU's pass; the matmul is not faster |
# | attention | three round trips of the scores |
#
# ### add+GELU by a table of counters
#
# Lesson 03 tried the time of a claim about add+GELU. The claim comes with a table of counters, for a million fp32
# elements:
#
# **Claim: "fusing add and GELU raises the L2 hit rate from 65 to 78 % and occupancy from 75 to 85 %, cuts DRAM reads from
# 12 to 8 MB, and makes it 1.86 times faster."** The same counters on an H100, of both kernels together and of the one
# that replaces them, for 1 million elements and for 32 million; with caches emptied before each kernel, as `ncu`
# does by default, and as the program leaves them (`--cache-control none`):
# <!-- given 32 times: 2^25 over 2^20 elements -->

# %% tags=["hide-input"]
h100 = recorded(H100)
by_caches, rows = h100.experiment("add_gelu_counters"), []
for caches, by_size in by_caches.items():
    for elements, by_way in by_size.items():
        took = {}
        for way, by_kernel in by_way.items():
            each = list(by_kernel.values())
            total = {name: sum(one[name] for one in each) for name in each[0]}
            took[way] = total["nanoseconds"]
            occupied = sum(one["nanoseconds"] * one["occupancy"] for one in each) / took[way]
            hits = f"{100 * total['L2 hits'] / total['L2 sectors']:.0f}%"
            of_reads = f"{100 * total['L2 read hits'] / total['L2 read']:.0f}%"
            read = f"{total['DRAM read'] / 2**20:.1f} MiB"
            gain = f"{took['unfused'] / took[way]:.2f}x"
            name = f"{elements:,} {way}, {caches}"
            time = f"{took[way] / 1e3:.1f} us"
            rows.append((name, hits, of_reads, f"{occupied:.0f}%", read, time, gain))
columns = ("caches", "L2 hits", "of reads", "occupancy", "DRAM read", "time", "faster")
table(columns, rows, h100.label_of("add_gelu_counters"))

# %% [markdown]
# **Verdict: holds for the DRAM reads, with emptied caches, and fails for the rest.** The L2 hit rate *falls*, or stays
# the same: most hits are stores and, in the program, reads of the sum that was just written, and fusing removes both. Occupancy
# hardly changes. A million elements are too few to fill this GPU, whatever the kernels do. With caches as the program
# leaves them GELU reads nearly nothing from DRAM even unfused. And no row reaches the claimed time. Don't aim for
# a high hit rate: bytes that are never requested cannot hit.
#
# ### Why one token is slow
#
# At one token everything is weights, read once. Our block has a kernel for it that normalises, multiplies and gates in
# one launch, five launches in all, and yet:

# %% tags=["hide-input"]
rows = []
for way in ("libraries", "fused"):
    for name, us in TIMES["1"]["forward"][way]["kernels"]:
        if us > 9:
            rows.append((way, name.split("<")[0][-24:], f"{us:.0f} us"))
display(table(("", "kernel", "time"), rows, label))
weights = 2 * 2 * 14336 * 4096
at_best = 1e6 * weights / h200.copy_bandwidth
print(f"gate and up are {weights / 1e6:.0f} MB: {at_best:.0f} us at copy bandwidth")

# %% [markdown]
# The gated launch takes half again as long as the library's two matmuls. You have the instruments; use them:

# %% tags=["nbval-ignore-output", "hide-input"]
from kernels.tuned.linear_few_rows import linear_one_row_kernel

x, matrix = (torch.empty(shape, dtype=bf16, device="meta") for shape in (4096, (14336, 4096)))
y = torch.empty(14336, dtype=bf16, device="meta")
ways = {"one matrix": (None, 4), "gated": (matrix, 4), "gated, half the rows": (matrix, 2)}
made = []
for name, (gate, rows) in ways.items():
    sizes = {"BLOCK_N": rows, "BLOCK_K": 1024, "num_warps": 4}
    given = (x, x, matrix, gate, None, y, 14336, 4096, 1e-6)
    kernel = compile_for(linear_one_row_kernel, *given, device="H200", **sizes)
    made.append((name, kernel.registers, repr(kernel.occupancy())))
table(("", "registers", "occupancy"), made)

# %% [markdown]
# Two sums instead of one, so twice the registers for sums, and fewer warps to hide the wait for memory. That looks like
# lesson 07's fusing too much, and half the rows per program would bring the warps back. **It is a suspicion, not a
# finding**: a warp of the gated kernel has two tiles to wait for, not one, and no page of it was recorded. Its sectors
# and stalls would show the reason, and only a GPU whether half the rows are *faster*.
#
# ### Who is ahead, and where
#
# No kernel is the fastest everywhere. Here are the course's own at all sizes of the sweep, beside the best peer at each
# (eager PyTorch, `torch.compile`, by default or by max-autotune, Liger, QuACK, cuDNN, cuBLASLt, FlashAttention-2 and -4,
# Flex); then the points where a peer is furthest ahead, on the GPU and as a call from Python. (A shape: attention: batch, heads, key
# heads, queries, keys, head dim; convolution: images, channels, height, width, filters, taps, stride.)

# %% tags=["hide-input"]
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
display(at_all_sizes.summary())
late = at_all_sizes.behind()
slow = [line for line in late if line.startswith("a call")]
print(*late[:8], *slow[:4], sep="\n")
timed = sum(bool(point.get("calls")) for point in at_all_sizes.points)
points = len(at_all_sizes.points)
on_gpu = len(late) - len(slow)
print(f"behind at {on_gpu} of {points} points, {on_gpu / points:.0%}")
print(f"behind as a call at {len(slow)} of the {timed} that were called, {len(slow) / timed:.0%}")

# %% [markdown]
# So a library is ahead at the share of points, and of calls, in the last lines. Each has its place: QuACK on many wide
# rows; FlashAttention-4 in most long sequences, cuDNN in short ones and in some convolutions; cuBLASLt in linear layers of
# a few hundred rows; eager PyTorch in some calls, of backward passes most of all; `torch.compile` at some sizes of some. `fusion bench --recorded --sweep` lists all points, with the
# reasons and the things we tried; a kernel's name behind it gives every time. Before you write a kernel, look for your
# sizes in such a list; when you have written one, make the list.
