# %% [markdown]
# # 15 The profilers, and a whole block
#
# So far we've used instruments that don't need a GPU: a meter, a compiler, a calculator. On a GPU, the standard tools
# are Nsight Compute and torch.profiler. In this lesson you'll read their reports on the course's own kernels, one
# counter at a time, and then we'll put everything together in a transformer block. **Is the fused block faster than the
# one PyTorch's libraries give you?**
#
# After this lesson you can
#
# - find the sections of an Nsight Compute page that matter, and the numbers you could have predicted;
# - locate a counter on the chip, and name the traffic it sees;
# - find fusion candidates in a trace with a simple rule, and explain what the rule misses;
# - profile your own script, and find out why a profiler refuses to run;
# - work out how much each fusion contributes to the speed of a whole model.
#
# About 70 minutes. It builds on all the earlier lessons, especially [02](02_bytes_and_launches.ipynb),
# [07](07_occupancy.ipynb) and [10](10_attention.ipynb). The exercise is [15](../exercises/15_capstone.ipynb).

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
from triton.tools.tensor_descriptor import TensorDescriptor

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
# The capstone is a whole transformer block. Here's its second half, the gated MLP, operator by operator and in three
# kernels. (Not shown are the weights, which both versions read once.) Press **Play**:

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("mlp")

# %% [markdown]
# ## Which profiler answers which question?
#
# | question | tool | it gives you |
# |---|---|---|
# | Where does the time go: kernels, gaps, the CPU? | torch.profiler, Nsight Systems (`nsys`) | a timeline |
# | Why does this one kernel take so long? | Nsight Compute (`ncu`) | hardware counters, kernel by kernel |
#
# **Start with the timeline.** If a kernel only takes 2 % of the time, its counters aren't worth your effort.
# <!-- given 2 %: an example -->
#
# On a machine with a GPU, `fusion profile script.py` runs both tools on your script and reports anything that's
# missing. For example, Nsight Compute can only read the counters if the driver permits it. It runs these commands:

# %% tags=["hide-input"]
from helpers.instruments.profile_script import PERMISSION, commands

for command in commands(Path("script.py"), launches=50).values():
    words = " ".join(["python" if "python" in word else word for word in command])
    print("$", words.replace(" --", " \\\n    --").replace(",l1tex", ",\\\nl1tex"))
print(textwrap.fill(PERMISSION, 96))

# %% [markdown]
# We recorded the main part on an H200 with `python -m benchmarks.profiles`, which adds a few counters and
# `--clock-control none` to the commands above. The files are in `benchmarks/results/h200_profiles`. That machine didn't
# have `nsys`, but torch.profiler's timeline shows the same rows.
#
# Nsight Compute doesn't just watch your program run. It stops at each kernel, saves its memory and replays it several
# times, collecting a few counters per pass and emptying the caches before each one. So the durations are for a kernel
# that runs alone, with [cold](../docs/glossary.md#cold-l2) caches, without anything the previous kernel would have left
# in [L2](../docs/glossary.md#l2). (It also locks the clocks, unless you add `--clock-control none`.)
#
# ## A page of Nsight Compute
#
# Take lesson 00's add+GELU on $2^{25}$ elements in fp32. You've already metered it, compiled it for an H200 and worked
# out its [occupancy](../docs/glossary.md#occupancy). **How many MB of [DRAM](../docs/glossary.md#dram) reads will the
# profiler count?**

# %% tags=["hide-input"]
read_mb = predict_first("MB that add+GELU reads, 2**25 elements in fp32", unit="MB")
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
    "Two inputs at four bytes per element, just what the meter counts.",
)

# %% [markdown]
# Here's the first section of the page, exactly as the tool prints it:

# %% tags=["hide-input"]
printed = recorded_page("ncu_details.txt").read_text().split("add_gelu_kernel", 1)[1]
section = "Section: GPU Speed Of Light Throughput\n"
print("    " + section + printed.split(section, 1)[1].split("\n\n", 1)[0])

# %% [markdown]
# **Speed of Light** gives each unit's throughput as a percentage of its own maximum. *Compute (SM)* is the busiest part
# of the SM, either a pipeline or, as here, the issue slots. *Memory* summarises the memory system, and here it's DRAM's
# number. (L2's own line is even higher, but the tool's advice goes by DRAM, and so do we.) Whichever is higher is the
# roof that limits the kernel (lesson 01). If memory is above 80 % and compute is far below it, the kernel is
# memory-bound and close to the limit. If both are below 60 %, neither is the limit, so suspect latency and look at
# occupancy and stalls.
# <!-- given 60 %, 80 %: Nsight Compute's own rules for this section, SpeedOfLight.py -->
#
# In effect, you've already written the *Launch Statistics* and *Occupancy* sections yourself. `compile_for` and
# `occupancy` know nothing about this GPU beyond its data sheet, and the meter ran a much smaller kernel in an
# interpreter. How close do they come to the GPU's counters?


# %%
def beside(name, shape, dtype, small=None, times=1, launch=None):
    op = CATALOGUE[name]
    kernel, arguments, options = launch or kernel_at(op, *shape, dtype=dtype)
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
# [Registers](../docs/glossary.md#register), block size, occupancy, [sectors](../docs/glossary.md#sector) and bytes read
# all match or come close. **One differs: DRAM receives fewer bytes than the result contains.** Stores go to L2, which
# only writes a line back to DRAM when it needs the space. So when the kernel ends, the last part of `y` is still in L2
# and gets written back during some later kernel. The smaller the tensor, the larger that share. So if the caches were
# emptied first, written bytes are a lower bound. (If not, they include what earlier kernels left behind.) Use the
# meter's count for the kernel's real cost.
#
# Read a counter's long name from left to right. `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum` counts, in L1, the
# sectors that go through the load/store units (LSU), to global memory, for loads, summed over all SMs. `lts` stands for
# L2 and `dram` for DRAM.
#
# *Achieved occupancy* (on the full page, below) is lower than *theoretical* occupancy, because blocks take time to
# start, and in the last [wave](../docs/glossary.md#wave) some SMs run out of work before others. The profiler reports
# an average, while the calculator gives you the maximum.
#
# ## A matmul's page
#
# Next up is linear+GELU, compiled with the settings it was recorded with. Before you read on, try to explain every ratio
# that differs from 1:

# %% tags=["nbval-ignore-output", "hide-input"]
bf16, square = torch.bfloat16, (4096, 4096, 4096)
kernel, arguments, options = kernel_at(CATALOGUE["linear_act"], *square, dtype=bf16)
# As recorded: a tile's result leaves in halves, by TMA. Today it leaves in quarters, by stores.
by_tma = {"DESCRIBED": True, "PARTS": 2}
result = TensorDescriptor.from_tensor(arguments[4], [128, 128])
launch = kernel, (*arguments[:4], result, *arguments[5:]), options | by_tma
pairs = beside("linear_act", square, bf16, launch=launch)
pair_table((pair for pair in pairs if pair.ratio != 1), "linear_act")

# %% [markdown]
# There are three reasons, none of them a wrong instrument:
#
# - **Registers** depend on the compiler. We recorded this with Triton 3.6. Occupancy stays the same, because shared
#   memory already limits it to one block.
# - **Written bytes** come up short for the same reason as before.
# - **Bytes read exceed the minimum** because the matrices and the result, 96 MiB in all, don't fit in an L2 of 60 MiB,
#   so later [tiles](../docs/glossary.md#tile) have to read parts of them again. The minimum counts each input once,
#   while the profiler counts the bytes that DRAM actually delivered.
#   <!-- given 96 MiB, 60 MiB: three matrices of 4096 x 4096 in bf16; the H200's entry in devices.toml -->
#
# What about the sectors? This kernel loads its tiles with [TMA](../docs/glossary.md#tma), straight into [shared
# memory](../docs/glossary.md#shared-memory):

# %% tags=["hide-input"]
LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
rows = []
for name in ("add_gelu_kernel", "linear_act_descriptors_kernel"):
    both = (pages[name].counter(each) for each in (LOADS, "lts__t_sectors_op_read.sum"))
    rows.append((name, *(f"{sectors / 1e6:.2f} million" for sectors in both)))
table(("sectors read", "L1: by loads", "L2: all reads"), rows)

# %% [markdown]
# **A counter sits at one place on the chip and only sees the traffic that passes it.** The first column counts on the
# path of the load instructions, but TMA has its own. Going by that column, the matmul hardly reads anything.
#
# The same goes for the L2 counter. It reports half again as many sectors for add+GELU as the kernel loads, most likely
# because an H200's L2 has two partitions, and data from the far one passes through both.
#
# ## Fused and unfused, according to the profiler
#
# **Claim: a kernel at almost 90 % of the memory's speed needs no more work.** Nsight Compute puts an add of the same
# $2^{25}$ elements at 88 %. Say a GELU comes next. **How many times faster is the fused kernel than the two together,
# according to Nsight Compute's durations?**
# <!-- given 88 %: the recorded page, shown below -->

# %% tags=["hide-input"]
twice = predict_first("times faster: add+GELU fused, by ncu's durations", unit="times")
twice

# %% tags=["hide-input"]
add, gelu = launched[:2]
for name, each in (("add", add), ("GELU", gelu), ("both in one kernel", add_gelu)):
    of_limit = each.counter("DRAM Throughput")
    print(f"{name}: {1e6 * each.counter('Duration'):.1f} us, {of_limit:.0f}% of peak bandwidth")
apart = add.counter("Duration") + gelu.counter("Duration")
twice.compare(
    apart / add_gelu.counter("Duration"),
    "Verdict: fails. Five passes become three. The fused kernel takes as long as the add alone, "
    "so GELU is free. The profiler is right about each kernel, but it doesn't know that the "
    "second one reads what the first has just written. (In a real program, GELU may find part of "
    "its input in L2, which Nsight Compute has emptied. With tensors as large as these it finds "
    "next to nothing. With small ones the gain shrinks, as a table in Going further shows.)",
)

# %% [markdown]
# What does Nsight Compute recommend for the add? Its advice is printed below the numbers:

# %% tags=["hide-input", "answers-twice"]
advice = recorded_page("ncu_details.txt").read_text().split("    INF   ")[1].split("\n\n")[0]
print(textwrap.fill(" ".join(advice.split()), 96))

# %% [markdown]
# A percentage of peak tells you how efficiently a kernel moves its bytes, but not whether it had to move them in the
# first place.
#
# Now take softmax as five operators, and see how far each one is from either limit:

# %% tags=["hide-input"]
names, rows = ("DRAM Throughput", "Compute (SM) Throughput"), []
for operator, each in zip(("max", "subtract", "exp", "sum", "divide"), launched[6:11], strict=True):
    took = f"{1e6 * each.counter('Duration'):.0f} us"
    rows.append((operator, took, *(f"{each.counter(name):.0f}%" for name in names)))
table(("softmax", "time", "memory", "compute"), rows)

# %% [markdown]
# The subtraction and the division don't get anywhere near memory bandwidth. They're busy with *compute*, most likely
# because PyTorch's kernel for broadcast operands works out an index for every element. (We didn't look at its
# instructions.) Fusing removes six of the eight passes *and* that arithmetic.
#
# ## What do warps wait for?
#
# The *Warp State Statistics* section lists how many cycles a [warp](../docs/glossary.md#warp) waits between two
# instructions, and why. The source page breaks this down into samples per instruction:

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
table(("share of samples", "instruction"), rows)

# %% [markdown]
# An SM uses scoreboards to track registers with pending writes. In a *long scoreboard* stall, a warp waits for a load
# from L1 or beyond, and in a *short* one, for shared memory or special functions (here, GELU's). *Drain* is waiting for
# the stores at the end of the kernel, which is probably where the samples on the branch (BRA) come from. The
# instruction with the most samples isn't a load. It's the first addition whose operands are still [in
# flight](../docs/glossary.md#in-flight). **The profiler blames the line that waits, not the line that loads.** This is
# what a healthy memory-bound kernel looks like: it should be waiting for memory and little else.
#
# ## Strides and spills, counted
#
# In lesson 03b we metered strided loads in sectors of 32 bytes. Here's a strided kernel on a GPU, reading the same
# number of elements placed 32, 64 and 128 bytes apart. **How many bytes does DRAM deliver per four-byte element if the
# elements are 128 bytes apart?**
# <!-- given 32 bytes: a sector, Nsight Compute documentation -->
# <!-- given 128 bytes: the strides of the experiment -->
# <!-- given four bytes: fp32 -->

# %% tags=["hide-input"]
far_apart = predict_first("bytes from DRAM per element, 128 bytes apart", unit="B")
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
    "L1 requests one sector and DRAM delivers two, because L2 fetches them in pairs. L1's "
    "counter can't see that. At 64 bytes apart, a strided read costs twice what the meter "
    "counts. At 128, it doesn't get any worse.",
)

# %% tags=["hide-input"]
pages_at = dict(zip((4, 32, 64, 128), strided, strict=True))
delivered = {
    "from DRAM": {b: p.counter("dram__bytes_read.sum") / 2**22 for b, p in pages_at.items()},
    "in L1's sectors": {b: 32 * p.counter(LOADS) / 2**22 for b, p in pages_at.items()},
}
axes = {"x": "bytes from one element to the next", "y": "bytes per element of 4"}
title = "At 64 bytes apart and more, DRAM delivers twice what L1 requests"
far_apart.on(curves_chart(delivered, title, **axes), "y")

# %% [markdown]
# **Claim: spilled registers stay in the L1 cache.** Lesson 07 caused [spills](../docs/glossary.md#spill) in two ways:
# with a chain of steps that needs a few registers too many, and with add+GELU in far too large a block.

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
print(f"at {busy_memory:.0f}% of peak bandwidth")
print(
    "\nVerdict: holds for a few, fails for many. All the spills from an SM's blocks must fit in "
    "its L1.\nWhat doesn't fit spills over into L2 and DRAM, where it looks like useful traffic."
)

# %% [markdown]
# ## The timeline
#
# Now for the other tool, on a transformer block with the dimensions of the smaller Llama 3 model, on 512 tokens in
# bf16: RMSNorm, grouped-query attention, SwiGLU and [residuals](../docs/glossary.md#residual). torch.profiler recorded
# it in four versions, each launched from Python and as a [CUDA graph](../docs/glossary.md#cuda-graph). "eager" runs
# attention operator by operator, "libraries" is eager PyTorch with its fused attention, and "fused" is built from this
# course's kernels.

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
print(f"eager: {len(eager.kernels)} kernels run for {1e6 * work:.0f} us in total;", end=" ")
print(f"Python launches them over {1e6 * span:.0f} us,")
after = eager.kernels[-1].end - eager.kernels[-1].launched
print(f"and the last one ends {1e6 * after:.0f} us after its launch")

# %% [markdown]
# The longest kernels are the last matmuls, so the GPU is still busy after the last launch. **What share of the time is
# the GPU busy in the eager version, launched from Python?**

# %% tags=["hide-input"]
busy = predict_first("share of the time the GPU is busy, eager, 512 tokens", unit="%")
busy

# %% tags=["hide-input"]
rows = []
for name, timeline in timelines.items():
    times = (f"{1e6 * timeline.wall:.0f} us", f"{100 * timeline.busy:.0f}%")
    rows.append((name, len(timeline.kernels), *times))
display(table(("", "kernels", "total time", "busy"), rows))
busy.compare(
    100 * eager.busy,
    "There's a gap whenever a kernel ends before the CPU has launched the next one. The large "
    "matmuls run last, when the CPU is already ahead, so the GPU is still busy after the last "
    "launch.",
)

# %% [markdown]
# Move around with the arrow keys, and type part of a name into the search box (`nvjet` for cuBLAS's matmuls here,
# `elementwise`, `softmax`). Matmuls are blue, other kernels are grey, search hits are orange and gaps are shaded. You
# can also open the `.trace.json` files in [Perfetto](https://ui.perfetto.dev) by dragging one into its window.

# %% tags=["hide-input"]
from helpers.figures import KernelTimelineExplorer

KernelTimelineExplorer(timelines, "eager", search="elementwise")

# %% [markdown]
# *Fused* has the fewest kernels, yet when Python launches them it takes as long as *eager* in this recording: its host
# wrappers are written in Python, and at this size the GPU has to wait for them. (The profiler also slows the CPU down.)
# As CUDA graphs, all versions keep the GPU busy nearly all the time, so only the kernels matter. **Fusing alone doesn't
# close the gaps. A CUDA graph does, because it launches everything at once.**
#
# ## What to fuse: a rule, and the analyser
#
# You can apply a simple rule to any trace:
#
# 1. If several kernels in a row aren't matmuls, they're passing bytes to each other, so fuse them.
# 2. If there's only one such kernel and it follows a matmul, it may be that matmul's
#    [epilogue](../docs/glossary.md#epilogue).
# 3. If at least half of the gaps are longer than the kernels before them, reduce the launches, no matter what the
#    kernels do.

# %% tags=["hide-input"]
rows = []
for each in eager.opportunities():
    kernels = eager.kernels[each.first : each.last + 1]
    names = " ".join(kernel.short_name[:14] for kernel in kernels[:5])
    names += " ..." if len(kernels) > 5 else ""
    took = f"{1e6 * sum(kernel.duration for kernel in kernels):.1f} us"
    rows.append((each.sign, each.kernels, took, names))
table(("what the rule sees", "kernels", "total time", ""), rows)

# %% [markdown]
# The analyser (`fusion analyse`) works from the graph, so you don't need a trace or a GPU. Here's how it groups the
# same block:

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
# Both find the norm with its addition, the two SwiGLU steps after a matmul, and the residual after the last matmul. The
# differences are more interesting:
#
# - **Attention.** The rule only sees the kernels *between* two matmuls, so that's all it would fuse. The analyser
#   recognises the softmax, so it fuses across the matmuls.
# - **The rule doesn't know when to stop.** It would happily fuse a norm into the matmul before it, no matter what the
#   tile holds. The analyser checks that a single program has the whole row.
# - **A trace has no tensors.** Two consecutive kernels might not share any data, and the rule has no way to know.
# - **A plan has operators, a trace has kernels.** The plan doesn't show how well a library implements each operator.
#
# So use a trace to see *where* the time goes, and the graph to see what you can legally fuse.
#
# Now try it yourself on the second half of the block. Suppose a trace lists the gate's two matmuls (`mm`, `mm_1`) one
# after the other, followed by `silu` and `mul`. The rule would pick the partition below. **Find the one with the
# shortest predicted time.** The edges are `_fused_rms_norm` with `mm` and `mm_1`, `mm`-`silu`, `silu`-`mul`,
# `mm_1`-`mul`, `mul`-`mm_2`, `mm_2`-`add`.


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
# <details><summary>Answer</summary><code>fuse=[("mm", "silu"), ("silu", "mul"), ("mm_2", "add")]</code>: the gate's two
# elementwise steps can be the epilogue of either matmul, or each matmul can take one. The analyser won't put the norm
# into that kernel, because every column of tiles would have to work out the norms of its rows again. (With a single row
# that's cheap, and our kernel for one token does it.) It fuses two matmuls only in attention, but you can write such a
# kernel by hand.</details>
#
# ## The capstone: one call for the block
#
# `kernels/transformer_block.py` builds the block from the course's kernels. You call it with the same arguments as the
# unfused block:

# %% tags=["hide-input"]
print(inspect.getsource(transformer_block).split('"""')[2])

# %% [markdown]
# `gated_op` computes both of the gate's matmuls in one kernel, using two
# [accumulators](../docs/glossary.md#accumulator), with SwiGLU as its epilogue: `silu(gate) * up`. With a single token,
# each program of a kernel like this computes one element from two dot products over the same x. Here it is with three
# weights per row, in blocks of four. **Fix the marked line so that the activation is applied where it belongs.**


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
# works on the finished sums. Inside the sum, you'd apply the activation to individual products.</details>
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
# Now let's run a small version of the whole block on the CPU. **By what factor does fusing reduce the launches?** In
# the traces we counted 26 and 8. The meter counts operators, and on the CPU there's one fill fewer, but each of
# PyTorch's two RMSNorms runs as six operators instead of one kernel.
# <!-- given 26 launches, 8 launches: the table of traces above -->

# %% tags=["hide-input"]
fewer = predict_first("launches of the block, unfused ÷ fused", unit="times")
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
# Here's the backward pass, and how much is [saved for it](../docs/glossary.md#saved-for-backward):

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
# At realistic sizes, the analyser can predict from the graph alone how much faster the fused block is on an H200. For
# 8192 tokens, its plan adds up these parts:

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
moved = attention.work_unfused
passes = (moved.bytes_read + moved.bytes_written) / score
print(f"attention unfused: {passes:.0f} passes over a matrix of {score / 1e9:.1f} GB,", end=" ")
print(
    "32 heads of scores. Some of PyTorch's\nkernels are slower than a copy, so they take", end=" "
)
print(f"as long as {attention.time_unfused / one_pass:.0f} at copy bandwidth,", end=" ")
print(f"{1e3 * one_pass:.1f} ms each")

# %% [markdown]
# **What speedup does it predict for the fused block's forward pass with 8192 tokens?**

# %% tags=["hide-input"]
by_plan = predict_first("times faster by the analyser, 8192 tokens, forward", unit="times")
by_plan

# %% tags=["hide-input"]
by_plan.compare(plan.time_unfused / plan.time_fused)

# %% [markdown]
# The analyser assumes that each kind of kernel reaches a fixed share of its limit, and also counts the scores that the
# mask hides. **And what speedup did we measure?** None of our instruments can answer this one, because it depends on
# how close PyTorch's kernels get to their limits.

# %% tags=["hide-input"]
predicted = predict_first("times faster as measured, 8192 tokens, forward", unit="times")
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
    "At 512 tokens the assumption nearly holds. At 8192, eager takes 1.4 times its prediction "
    "and ours only 0.8 times. At one token, it's one of our own kernels that falls short of its "
    "limit (see Going further).",
)

# %% tags=["hide-input"]
title = "Fusing gains more than predicted at 8192 tokens, and about as much at fewer"
axes = {"x": "tokens", "y": "times faster than unfused, forward"}
predicted.on(curves_chart(found, title, **axes, log=True), "y")

# %% [markdown]
# ## Against PyTorch's libraries
#
# Unfused attention is a weak baseline, so here are the strong ones. "libraries" uses cuBLAS and whichever attention
# PyTorch picks (cuDNN's, and FlashAttention at one token). `torch.compile`, in its default mode, starts from that
# version. **We didn't time `max-autotune` here.** "fused, cuBLAS" combines our norms, attention and SwiGLU with
# cuBLAS's matmuls. These are GPU times in ms with a cold L2, without the gaps between launches. A step is forward plus
# backward:

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
        print(f"ours is faster than {way} in {ours_first} of {len(sizes)} rows")

# %% [markdown]
# **Our block is faster than eager PyTorch with unfused attention in every row**, by a wide margin at 8192 tokens and by
# almost nothing in a one-token step. But it rarely beats PyTorch with its libraries, and it never beats
# `torch.compile`. At 8192 tokens its spread overlaps with `torch.compile`'s. Next, errors and memory:

# %% tags=["hide-input"]
rows = []
for tokens in (1, 512, 8192):
    for way in ("libraries", "torch.compile", "fused"):
        of_step, forward = (TIMES[str(tokens)][direction][way] for direction in ("step", "forward"))
        launches = sum("Mem" not in name for name, _ in forward["kernels"])
        told = (f"{of_step['error']:.1e}", f"{of_step['peak'] / 1e6:.0f} MB")
        rows.append((tokens, way, launches, *told))
columns = ("tokens", "", "forward kernels", "relative error", "peak memory of a step")
table(columns, rows)

# %% [markdown]
# Our block has the fewest kernels, and its error falls between the other two. At 8192 tokens it doesn't save memory,
# although for the gate it saves three large tensors for the backward pass where the libraries save four. So the peak
# most likely comes later, in the backward pass itself. We haven't traced it. And why isn't our block faster?
#
# ## Amdahl's law, part by part
#
# This table breaks the forward pass with 8192 tokens into parts, using the kernels that torch.profiler recorded. The
# last column is *how many times faster the whole block would be if you swapped only that part* for ours:

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
    return table(("part", "libraries", "ours", "of the block", "the block's speedup"), rows, label)


shares(8192)

# %% [markdown]
# Most of the time goes into matmuls, and fusing doesn't make a matmul faster. It *can* speed up the rest, the norms and
# all the elementwise kernels, but together they don't take much. Part by part, and including the table for 512 tokens
# (Going further):
#
# - **Worth it**: SwiGLU in the epilogue of two matmuls, which gains the most, and the norms at 512 tokens.
# - **Not worth it**: the residual in a matmul's epilogue. At 8192 tokens it's a tie. At 512, our matmul is so much
#   slower than cuBLAS's that you lose more time than the addition took.
# - **A loss**: attention. At both sizes, the library's kernel is faster than the one we recorded here. It also writes
#   its output with each token's heads side by side, so it doesn't need an extra copy.
#
# On paper, the best block would mix them: the library's attention, our norms and gate, and cuBLAS for the rest. The
# parts add up to 5.48 ms instead of 5.76. We didn't time it. (By these sums our block would win narrowly, yet timed it
# loses.)
# <!-- given 5.48 ms, 5.76 ms: the table above, 5757 us less 19.7 and 260.2 -->
#
# ## Your predictions vs the measurements

# %% tags=["nbval-ignore-output", "hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two consecutive kernels each reach 85 % of memory bandwidth. What does Nsight Compute advise, and what would you?
# <!-- given 85 %: an example -->
# <details><summary>Answer</summary>It reports that each of them is close to its limit. You'd check whether the second
# reads what the first one wrote, because then a single kernel could move fewer bytes at the same speed.</details>
#
# 2. A kernel's counter for global loads reads 0, but its result is correct. How can that be?
# <details><summary>Answer</summary>It loads with TMA, which takes a different path. Check the counters in L2 or DRAM
# instead.</details>
#
# 3. The profiler counts fewer bytes written than there are in the result. Is the meter wrong?
# <details><summary>Answer</summary>No. When the kernel ended, some of the result was still in L2. It gets written back
# later.</details>
#
# 4. Most of the stall samples are on an addition. Would a cheaper addition help?
# <details><summary>Answer</summary>No. The addition is waiting for its operands, so the time is really spent on the
# loads before it.</details>
#
# 5. A trace shows that the GPU is only busy 10 % of the time. Which would you try first, a fused kernel or a CUDA
#    graph?
# <!-- given 10 %: an example -->
# <details><summary>Answer</summary>A CUDA graph, or torch.compile with one, because the time is lost between the
# kernels. Fusing only helps insofar as the CPU has fewer kernels to launch.</details>
#
# 6. A fusion makes a block take 3 % less time, and the block is half of a training step. By what percentage does the
#    step get shorter? Replace the dots with your answer.
# <!-- given 3 %: an example -->

# %%
answer = ...
self_test(answer, 0.5 * 3, "half of it")

# %% [markdown]
# ## Now you
#
# In [exercise 15](../exercises/15_capstone.ipynb) you'll fuse a block from another model, forward and
# backward, and write a report. After that, pick a model of your own and run `fusion analyse` on it, then record a
# trace, then profile the kernels that matter.

# %% [markdown]
# ## Going further
#
# ### The whole page, and `--set full`
#
# Here's add+GELU's page with the sections above, as `ncu` prints it. Lines marked `INF` and `OPT` are advice from its
# rules. When a rule estimates a speedup, it assumes that you can remove the problem completely. A *local* speedup
# concerns only the units that the rule looks at: this kernel as a whole is already close to its limit.

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
# By default, `ncu` collects the `basic` set: Speed of Light, launch, occupancy and workload distribution. `--set full`
# collects nearly all sections, and `--list-sets` lists the sets. This list and the page below come from an H100:

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
# More sections mean more replays of each kernel, so restrict the kernels that get profiled: `--kernel-name regex:gated
# --launch-skip 3 --launch-count 1`. With `--set full`, one launch of add+GELU gives you these sections:

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
# Go through a full page in this order:
#
# 1. **Speed of Light**: find out which roof applies, and how far below it you are.
# 2. If you're near the memory roof, go to *Memory Workload Analysis*. Is the traffic at its minimum? Check L2's hit
#    rate, and the excess sectors per line in *Source Counters* (lesson 03b).
# 3. If you're near the compute roof, go to *Compute Workload Analysis*. Which pipeline is it: tensor cores, FMA, or the
#    special function units (lesson 10)?
# 4. If you're not near either, look at *Scheduler Statistics* (how often does a scheduler have no warp ready to
#    issue?), *Warp State* (why not?), and *Occupancy* and *Launch Statistics* (too few warps, or less than a wave?).
#
# ### From an operator to your line: `with_stack=True`
#
# A trace lists operators and kernels. If you pass `with_stack=True`, torch.profiler also records the Python calls, so
# you can trace each operator back to the line that called it. This slows the CPU down a lot, so use it to find out
# *who* made a call, not *how long* it took.


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
# In Perfetto, the Python calls show up in the rows above the operators. You can also label a region of your code with
# `record_function("gate")`, which doesn't need stacks. The equivalent for `nsys` is an NVTX range,
# `torch.cuda.nvtx.range("gate")`.
#
# On a GPU, the same trace also shows which Python function launched which kernel. The kernel's correlation number leads
# you to its launch, and the launch happened during one of the Python calls. Here's a training step with gradient
# clipping on an H100:

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
# `nsys profile --trace cuda,nvtx -o report python script.py` records a timeline, and `nsys export --type sqlite`
# exports its events as tables. Kernels are in `CUPTI_ACTIVITY_KIND_KERNEL` and launches in
# `CUPTI_ACTIVITY_KIND_RUNTIME`. Both have `start` and `end` in nanoseconds, and a `correlationId` that joins a kernel
# to its launch. Names are stored as numbers, which you look up in `StringIds`. So you can read a timeline with a query:
# <!-- given: Nsight Systems documentation, SQLite export schema -->

# %%
print(profiler_outputs.QUERY)

# %% [markdown]
# Our recording machine doesn't have `nsys`, but the trace above contains the same columns. If we put them into tables
# with those names, the same query works:

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
# The first late launch in each step is due to `norm.item()`: the CPU waits for the GPU, and then the GPU waits for the
# CPU. The next two follow from it. The queue is empty, and these kernels take about a microsecond, so each one ends
# long before the next is launched. Only the long kernel after them lets the CPU catch up. You can keep the condition on
# the GPU instead: `grad * (most / norm).clamp(max=1)` clips without a sync.
#
# And these are the longest gaps in the fused block's trace from the main part:

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
# Each launch comes late and its kernel starts soon afterwards, so the CPU is the bottleneck. Here that's the Python
# code in our host wrappers, and a CUDA graph or fewer launches would help. If the launch had come long before the
# previous kernel ended, the GPU would be waiting for something else, perhaps a copy, another stream or an event. And if
# a kernel starts within a microsecond of the previous one, the CPU is keeping ahead, and all you can improve is the
# kernels.
#
# ### Amdahl's law at 512 tokens

# %% tags=["hide-input"]
shares(512)

# %% [markdown]
# ### Five kernels, fused and unfused, by Nsight Compute
#
# We recorded every page but add+GELU's with earlier versions of our kernels:

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
    rows.append((name, *shown, f"{moved[0] / moved[1]:.1f}x", each_part))
table(("", "unfused", "fused", "speedup", "bytes read, unfused / fused", "unfused, each"), rows)

# %% [markdown]
# | case | fusing removed |
# |---|---|
# | add+GELU | a round trip of a tensor |
# | LayerNorm+GELU | a round trip too, and a LayerNorm that takes longer than our LayerNorm and GELU combined |
# | softmax | six passes, and the index arithmetic |
# | linear+GELU | a round trip too, though the matmul isn't any faster |
# | attention | three round trips of the scores |
#
# ### A table of counters for add+GELU
#
# In lesson 03 we tested a claimed speedup for add+GELU. The claim also comes with a table of counters, for a million
# fp32 elements:
#
# **Claim: fusing add and GELU raises the L2 hit rate from 65 to 78 % and occupancy from 75 to 85 %, cuts DRAM reads
# from 12 to 8 MB, and makes it 1.86 times faster.** Here are the same counters from an H100, for the two kernels
# together and for the fused one, at 1 million elements and at 32 million. We ran both with the caches emptied before
# each replay, as `ncu` does by default, and not emptied (`--cache-control none`), so replays find earlier data:
# <!-- given 32 times: 2^25 over 2^20 elements -->

# %% tags=["hide-input"]
h100 = recorded(H100)
by_caches, rows = h100.experiment("add_gelu_counters"), []
for caches, by_size in by_caches.items():
    left = "emptied" if caches == "emptied" else "not emptied"
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
            name = f"{elements:,} {way}, {left}"
            time = f"{took[way] / 1e3:.1f} us"
            rows.append((name, hits, of_reads, f"{occupied:.0f}%", read, time, gain))
columns = ("caches", "L2 hits", "of reads", "occupancy", "DRAM read", "time", "faster")
table(columns, rows, h100.label_of("add_gelu_counters"))

# %% [markdown]
# **Verdict: holds for the DRAM reads, with emptied caches, and fails for the rest.** The L2 hit rate *falls*: with
# emptied caches, nearly all hits are stores, and fusing removes the sum's. (At a million elements, not emptied, replays
# make even the inputs hit.) Occupancy hardly changes. At a million elements it's only a third. We didn't look into why.
# If you leave the caches alone, GELU hardly reads anything from DRAM at a million elements, even unfused. At 32
# million, it reads everything. And no row shows the claimed speedup. Don't aim for a high hit rate: bytes you never
# request can't hit.
#
# ### Why one token is slow
#
# With one token, nearly all of the traffic is weights, and you read each of them once. For this case, our block has a
# kernel that normalises, multiplies and gates in a single launch, which brings the block down to five launches. Even
# so:

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
# The gated launch takes half again as long as the library's two matmuls. You have the instruments to find out why.
# Let's use them:

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
# The gated kernel keeps two sums instead of one, so it needs more registers and has fewer warps to hide memory latency.
# That looks like too much fusion, as in lesson 07, and halving the rows per program would bring the warps back. **But
# that's only a guess**: a warp of the gated kernel waits for two tiles instead of one, and we didn't record a page for
# it. Its sectors and stalls would show the reason, and only a GPU can show whether half the rows are actually *faster*.
#
# ### Where the libraries are faster
#
# A few of these kernels lead at every size we timed. Most don't. First, the course's own kernels at every size in the
# sweep, compared with the best peer at that size (eager PyTorch, `torch.compile` with its default or max-autotune,
# Liger, QuACK, cuDNN, cuBLASLt, FlashAttention-2 and -4, FlashInfer, Flex). Then the points where a peer is furthest
# ahead, both in GPU time and as a call from Python. (Shapes list, for attention: batch, heads, key heads, queries,
# keys, head dim; for convolution: images, channels, height, width, filters, taps, stride.)

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
# The last lines show the share of points, and of calls, where a library is ahead. Each library has its strengths: QuACK
# on many wide rows, FlashAttention-4 on most long sequences, cuDNN on short ones and in some convolutions, cuBLASLt in
# linear layers with odd sizes or a few hundred rows, eager PyTorch in some calls, especially for backward passes, and
# `torch.compile` at some sizes of some kernels. `fusion bench --recorded --sweep` lists every point where we're behind,
# with the reasons and our attempts to fix it. Add a kernel's name to get all of its times. Before you write a kernel,
# look up your sizes in a list like this one. After you've written it, make your own.
