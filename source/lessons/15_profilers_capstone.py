# %% [markdown]
# # 15 The profilers, and a whole block
#
# Fourteen lessons had instruments that need no GPU: a meter, a compiler, a calculator. On a GPU others use Nsight
# Compute and torch.profiler. You will read what they say of the course's own kernels, counter by counter. Then all of
# it comes together in a transformer's block. **Is the block, fused, faster than what PyTorch brings?**
#
# After this lesson you can
#
# - read the sections of Nsight Compute's page that matter, and say which of its numbers you knew before;
# - say what a counter does *not* see, and when a page is full of praise for a program that wastes half its time;
# - find in a trace what to fuse, by a rule, and say what the rule cannot see;
# - profile a script of your own, and know what keeps a profiler from running;
# - say what each fusion of a model is worth to the whole, and which are not worth it.
#
# About 60 minutes. It builds on all lessons, above all [02](02_bytes_and_launches.ipynb), [07](07_occupancy.ipynb) and
# [10](10_attention.ipynb), and leads to [exercise 15](../exercises/15_capstone.ipynb).

# %%
import csv
import json
from functools import partial

import torch

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
from helpers.learning import predict_first, predictions, self_test
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.variants import kernel_at

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# ## Which profiler answers which question?
#
# | question | tool | what it gives |
# |---|---|---|
# | Where does the time go: kernels, gaps, the CPU? | torch.profiler, Nsight Systems (`nsys`) | a timeline |
# | Why does this one kernel take so long? | Nsight Compute (`ncu`) | hardware counters, kernel by kernel |
#
# **The timeline comes first.** A kernel that takes 2 % of the time is not worth a counter.
# <!-- given 2 %: an example -->
#
# On a machine with a GPU, `fusion profile script.py` runs both on a script of yours and says what is missing:
# Nsight Compute reads counters only where the driver lets it. The commands are no secret. This is what it runs:

# %%
from pathlib import Path

from helpers.instruments.profile_script import PERMISSION, commands

for command in commands(Path("script.py"), launches=50).values():
    print(
        "$",
        " ".join(["python" if "python" in word else word for word in command]).replace(
            " --", "\n    --"
        ),
    )
print(PERMISSION)

# %% [markdown]
# Everything below was recorded on an H200 (`python -m benchmarks.profiles`, which adds a few counters to these); the
# files are in `benchmarks/results/h200_profiles`. `nsys` was not there; its timeline has the same rows as
# torch.profiler's.
#
# Nsight Compute does not watch a program run. It stops at each kernel, saves its memory, and runs it several times
# over, some counters a time. Before each time it empties the caches. So its durations are of a kernel alone and **from
# cold caches**: what the kernel before has left in L2 is gone. (By default it fixes the clocks, too; not in this
# record.)
#
# ## A page of Nsight Compute
#
# add+GELU on $2^{25}$ numbers in fp32, the kernel of lesson 00. Before you look: you have metered it, compiled it
# for an H200, worked out its occupancy. **How many MB will the profiler see read from memory?**

# %%
read_mb = predict_first("MB read by add+GELU of 2**25 numbers in fp32", unit="MB")
read_mb

# %%
about = json.loads(recorded_page("block.json").read_text())
print(about["gpu"], about["date"], "Nsight Compute", about["ncu"]["version"])
pages = {}
for each in read_ncu(recorded_page("ncu.csv")):
    pages.setdefault(each.name, each)
add_gelu = pages["add_gelu_kernel"]
read_mb.compare(add_gelu.counter("dram__bytes_read.sum") / 1e6)

# %% [markdown]
# Two inputs, four bytes a number. Here is the page as the tool prints it, its four sections that one reads first:
# <!-- given four bytes: fp32 -->

# %%
printed = recorded_page("ncu_details.txt").read_text().split("add_gelu_kernel", 1)[1]
for section in ("GPU Speed Of Light Throughput", "Launch Statistics", "Occupancy"):
    part = printed.split(f"Section: {section}\n", 1)[1].split("\n\n", 1)[0]
    print(f"    Section: {section}\n{part}\n")

# %% [markdown]
# **Speed of light** says how close the kernel comes to what the chip can do: of memory and of arithmetic, in per cent.
# The higher of the two is the roof it works under (lesson 01). *Memory Throughput* above 80 and *Compute* far below:
# memory-bound, and near the limit.
#
# **Launch statistics** and **occupancy** you could have written yourself. You have, in fact: `compile_for` and
# `occupancy` know nothing of this GPU but its tables, the meter ran a kernel two thousand times smaller in an
# interpreter. Side by side: counted by the GPU, said by our instruments, and the ratio.


# %%
def beside(name, shape, dtype, small=None, times=1):
    op = CATALOGUE[name]
    kernel, arguments, options = kernel_at(op, *shape, dtype=dtype)
    resources = compile_for(kernel, *arguments, device="H200", **options)
    traffic = small and measure(op.fused, *op.inputs(*small, dtype=dtype))
    return compare_counters(
        pages[kernel.fn.__name__], resources, traffic, times, op.work(shape, dtype)
    )


def pair_table(pairs, name=""):
    cells = []
    for pair in pairs:
        both = (f"{each:,.4g}" for each in (pair.counted, pair.said))
        cells.append((pair.counter, *both, f"{pair.ratio:.3f}", pair.instrument))
    return table(("counter", "counted", "said", "ratio", "by"), cells, name)


pair_table(beside("add_gelu", (2**25,), torch.float32, small=(2**14,), times=2**11))

# %% [markdown]
# Registers, block, occupancy, sectors, bytes read: equal, to the last digit or nearly. **One is not: fewer bytes are
# written than the result has.** Nothing is lost. A store goes to L2, and L2 writes a line to memory when it needs the
# room. When the kernel ends, the last part of `y` still lies in L2; it is written in somebody else's time. The smaller
# the tensor, the larger that part. So where each byte is stored once, a profiler's written bytes are a lower bound, and
# the meter's are what the kernel costs.
#
# A counter's long name reads from left to right: `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum` stands in L1, and
# counts the sectors that come down the pipe of load and store instructions (LSU), to global memory, for loads, summed
# over all SMs. `lts` is L2, `dram` the memory itself.
#
# And *Achieved Occupancy* is below *Theoretical*: blocks take time to start, and in the last wave some SMs are done
# first. It is an average; the calculator says how many *may* be there.
#
# ## A matmul's page
#
# Now linear+GELU. (The record has pages of LayerNorm+GELU, softmax and attention, too. Our kernels of these have changed
# since, so their counters are not compared with today's.) Where a ratio is not one, ask why before you read on:

# %% tags=["nbval-ignore-output"]
bf16 = torch.bfloat16
pairs = beside("linear_act", (4096, 4096, 4096), bf16)
pair_table((pair for pair in pairs if pair.ratio != 1), "linear_act")

# %% [markdown]
# Three reasons, and none is a mistake of an instrument:
#
# - **Registers** depend on the compiler: the record was made with Triton 3.6. Where another one compiles here, they may
#   differ, and the occupancy with them.
# - **Written bytes**, as above.
# - **linear+GELU reads more than the least**: two matrices of a size that L2 does not hold at once are read again by
#   later tiles. The least counts each input once; the profiler counts what came.
#
# And sectors? Of the three recorded kernels below, the last two load their tiles by TMA, straight into shared memory:

# %%
LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
rows = []
for name in ("softmax_kernel", "linear_act_descriptors_kernel", "flash_attention_kernel"):
    page = pages[name]
    both = (page.counter(each) for each in (LOADS, "lts__t_sectors_op_read.sum"))
    rows.append((name, *(f"{sectors / 1e6:.2f} million" for sectors in both)))
table(("sectors", "by loads", "asked of L2"), rows)

# %% [markdown]
# **A counter has a place on the chip, and sees what passes there.** The one for loads sits on the path of load
# instructions; the copy engine has another. Someone who trusts it would think that attention reads nothing.
#
# L2's counter has its place, too: softmax asks L2 for half as many sectors again as it loads. An H200's L2 is in two
# partitions, and what lies in the far one passes both.
#
# ## Unfused, fused
#
# Now both sides. **add, then GELU: by Nsight Compute the first of the two uses 88 % of the memory's speed. How many
# times faster is the fused kernel than the two together?**
# <!-- given 88 %: the recorded page, shown below -->

# %%
twice = predict_first("times faster: add+GELU fused, by ncu's durations", unit="times")
twice

# %%
CASES = {
    "add+GELU": (2, 1),
    "LayerNorm+GELU": (2, 1),
    "softmax": (5, 1),
    "linear+GELU": (2, 1),
    "attention": (4, 1),
}
launched, first = list(read_ncu(recorded_page("ncu.csv"))), 0
gain, rows = {}, []
for name, (unfused, fused) in CASES.items():
    parts = launched[first : first + unfused], launched[first + unfused : first + unfused + fused]
    times = [sum(each.counter("Duration") for each in part) for part in parts]
    moved = [sum(each.counter("dram__bytes_read.sum") for each in part) for part in parts]
    gain[name], first = times[0] / times[1], first + unfused + fused
    told = (*(f"{1e6 * each:.1f} us" for each in times), f"{gain[name]:.2f} times")
    each_part = " + ".join(f"{1e6 * each.counter('Duration'):.0f} us" for each in parts[0])
    rows.append((name, *told, f"{moved[0] / moved[1]:.1f} times less", each_part))
columns = ("", "unfused", "fused", "faster", "read", "unfused, each")
display(table(columns, rows))
twice.compare(gain["add+GELU"])

# %% [markdown]
# **Claim: "a kernel at almost 90 % of the memory's speed needs no more work."**
#
# The add of add+GELU is such a kernel. Per kernel, the profiler is right. Of the *program* it knows nothing: that the
# next kernel reads what this one has just written.

# %%
add = launched[0]
print(
    f"add alone: {add.counter('DRAM Throughput'):.0f}% of the memory's speed, "
    f"{1e6 * add.counter('Duration'):.1f} us"
)
print(f"add and GELU in one kernel: {1e6 * add_gelu.counter('Duration'):.1f} us")
advice = recorded_page("ncu_details.txt").read_text().split("    INF   ")[1].split("\n\n")[0]
print("of the add alone:", " ".join(advice.split()))
names, rows = ("DRAM Throughput", "Compute (SM) Throughput"), []
for step, each in zip(("max", "subtract", "exp", "sum", "divide"), launched[6:11], strict=True):
    rows.append((step, *(f"{each.counter(name):.0f}%" for name in names)))
table(("softmax", "memory", "compute"), rows)

# %% [markdown]
# **Verdict: fails.** The fused kernel takes as long as the add alone: GELU is free. No section of the page says so, and
# its advice does not either. Per cent of a limit says how well the bytes are moved, never whether they had to be. (In a
# program GELU may find a part of its input in L2, which Nsight Compute has emptied: these gains are somewhat large.)
#
# The other way round, softmax's five: two of them, the subtraction and the division, are far from memory's speed.
# They are busy with *Compute* instead: PyTorch's kernel for broadcast operands works out an index for each number.
#
# | case | what fusing took away |
# |---|---|
# | add+GELU | a tensor out and back |
# | LayerNorm+GELU | the same, and a LayerNorm that alone takes longer than ours with its GELU |
# | softmax | four passes, and the index arithmetic |
# | linear+GELU | GELU's pass; the product is not faster |
# | attention | the scores, out and back three times |
#
# ## What do warps wait for?
#
# The page has a section for it, *Warp State*: of the cycles between two instructions of a warp, how many it waits for
# what. And the *Source Counters* point at the line:

# %%
states = add_gelu.sections["Warp State Statistics"]
stalls = {name: each.value for name, each in states.items() if "Stall " in name}
longest = sorted(stalls.items(), key=lambda pair: -pair[1])[:4]
rows = ((name, f"{cycles:.1f}") for name, cycles in longest)
display(table(("stall", "cycles an instruction"), rows))
lines = list(csv.DictReader(recorded_page("ncu_source.csv").read_text().splitlines()))
samples = sum(int(line["# Samples"]) for line in lines)
rows = []
for line in sorted(lines, key=lambda line: -int(line["# Samples"]))[:4]:
    share = f"{100 * int(line['# Samples']) / samples:.0f}%"
    rows.append((share, line["Source"].strip().split(" 0x7f")[0]))
table(("of the samples", "instruction"), rows)

# %% [markdown]
# A scoreboard is where an SM notes which registers are still to be filled. *Long scoreboard* is a wait for a load, from
# L1 or further off; *short*, for shared memory and the like; *drain*, at the end, for stores to be out, and these are
# the samples of the branch (BRA). The line with most samples is no load: it is the first addition of numbers that are
# on their way. **The profiler blames the line that waits, not the line that asked.** A memory-bound kernel looks like
# this and should: nothing else is worth waiting for.
#
# ## Two questions from earlier lessons
#
# Lesson 03b metered strided loads in sectors of 32 bytes. The same kernel, reading as many numbers 32, 64 and 128 bytes
# apart. **How many bytes does memory deliver for each number of four bytes, 128 bytes apart?**
# <!-- given 32 bytes: a sector, Nsight Compute documentation -->
# <!-- given 64 bytes, 128 bytes: the strides of the experiment -->

# %%
far_apart = predict_first("bytes from memory for each number, 128 bytes apart", unit="B")
far_apart

# %%
strided = [page for page in launched if page.name == "strided_sum_kernel"]
rows = []
for stride, page in zip((4, 32, 64, 128), strided, strict=True):
    sectors, nbytes = page.counter(LOADS), page.counter("dram__bytes_read.sum")
    asked, came = 32 * sectors / 2**22, nbytes / 2**22
    rows.append((f"{stride} B", *(f"{each:.1f} B" for each in (asked, came))))
display(table(("apart", "a number, in sectors", "from memory"), rows))
far_apart.compare(strided[-1].counter("dram__bytes_read.sum") / 2**22)

# %%
from helpers.figures import curves_chart

pages_at = dict(zip((4, 32, 64, 128), strided, strict=True))
delivered = {
    "from memory": {b: p.counter("dram__bytes_read.sum") / 2**22 for b, p in pages_at.items()},
    "in sectors, by L1": {b: 32 * p.counter(LOADS) / 2**22 for b, p in pages_at.items()},
}
axes = {"x": "bytes from one number to the next", "y": "bytes for each number of 4"}
title = "From 64 bytes apart, memory delivers twice what L1 asks for"
far_apart.on(curves_chart(delivered, title, **axes), "y")

# %% [markdown]
# Up to a sector apart, sectors tell it all. From 64 bytes on, memory delivers two sectors where one was asked for, and
# L1's counter does not see it: L2 fetches in pairs. So at 64 bytes the strided read costs twice what the meter says,
# and at 128 it is no worse.
#
# **Claim: "spilled registers stay in the L1 cache."** Lesson 07 spilled in two ways: a chain of steps with a few
# registers too many, and add+GELU with far too large a block.

# %%
chain = h200.experiment("sm_counters")["steps"][15]
large = next(
    page
    for page in reversed(launched)
    if page.counter("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum")
)
LOCAL = "l1tex__t_sectors_pipe_lsu_mem_local_op_ld"
print(h200.label_of("sm_counters"))
print(
    f"15 steps: {100 * chain['local_read_hit'] / chain['local_read']:.0f}% of the spills' reads "
    "hit L1"
)
hits = large.counter(f"{LOCAL}_lookup_hit.sum") / large.counter(f"{LOCAL}.sum")
more = large.counter("dram__bytes_read.sum") / add_gelu.counter("dram__bytes_read.sum")
print(
    f"16384 numbers by 2 warps: {100 * hits:.0f}% hit L1; {more:.1f} times as many bytes read from "
    "memory"
)
slower = large.counter("Duration") / add_gelu.counter("Duration")
print(
    f"it takes {slower:.1f} times as long, at {large.counter('DRAM Throughput'):.0f}% of the "
    "memory's speed"
)

# %% [markdown]
# **Verdict: holds for a few, fails for many.** What the threads of all blocks on an SM spill must fit into its L1
# beside everything else. Where it does not, it goes to L2 and on to memory, and is counted there as work.
#
# ## The timeline
#
# The other tool. A block of a transformer at the sizes of Llama 3's smaller model, 512 tokens, in bf16: RMSNorm,
# attention with grouped heads, SwiGLU, residuals. Recorded by torch.profiler in four ways, launched one by one and as a
# CUDA graph. "libraries" is eager PyTorch with its fused attention; "eager" has attention written out; "fused" is made
# of this course's kernels, as below.
#
# **What share of the time is the GPU busy, eager, launched from Python?**

# %%
busy = predict_first("the GPU busy, eager, 512 tokens", unit="%")
busy

# %%
WAYS = ("eager", "libraries", "torch_compile", "fused")
traces = {
    f"{way}{how}": recorded_page(f"block_{way}{how}.trace.json")
    for way in WAYS
    for how in ("", "_cuda_graph")
}
timelines = {name: read_trace(path) for name, path in traces.items()}
rows = []
for name, timeline in timelines.items():
    times = (f"{1e6 * timeline.wall:.0f} us", f"{100 * timeline.busy:.0f}%")
    rows.append((name, len(timeline.kernels), *times))
display(table(("", "kernels", "in all", "busy"), rows))
busy.compare(100 * timelines["eager"].busy)

# %% [markdown]
# Press the arrow keys, and type a part of a name (`nvjet`, as cuBLAS calls its products here, `elementwise`, `softmax`)
# into the search. Products are blue, everything else is grey, what the search finds is orange, gaps are shaded. The
# `.trace.json` files open in [Perfetto](https://ui.perfetto.dev) as well: drag one into its window.

# %%
from helpers.figures import KernelTimelineExplorer

KernelTimelineExplorer(timelines, "eager", search="elementwise")

# %% [markdown]
# Look at two things. *Fused* has the fewest kernels, and in this record, launched from Python, it took as long as *eager*:
# its launchers were Python, and at this size the GPU waited for them. (The profiler itself slows the CPU, too.) As CUDA
# graphs all ways are busy nearly all the time, and then kernels alone count. **Fusing alone does not close gaps: what
# counts is how long the CPU takes to launch, and a CUDA graph launches all at once.**
#
# ## What to fuse: a rule, and the analyser
#
# A rule that anyone can apply to a trace:
#
# 1. Kernels in a row that are no products move bytes for one another: fuse the row.
# 2. A kernel that is none, alone after a product, may be its epilogue.
# 3. Half of the gaps, or more, longer than the kernels before them: launch less, whatever the kernels do.

# %%
eager = timelines["eager"]
rows = []
for each in eager.opportunities():
    kernels = eager.kernels[each.first : each.last + 1]
    names = " ".join(kernel.short_name[:14] for kernel in kernels[:5])
    names += " ..." if len(kernels) > 5 else ""
    took = f"{1e6 * sum(kernel.duration for kernel in kernels):.1f} us"
    rows.append((each.sign, each.kernels, took, names))
table(("sign", "kernels", "in all", ""), rows)

# %% [markdown]
# The analyser (`fusion analyse`) needs no trace and no GPU: it has the graph. What does it find in the same block?

# %%
from helpers.instruments import analyse
from kernels.transformer_block import (
    transformer_block,
    transformer_block_inputs,
    transformer_block_reference,
)

# %%
SIZES = {"width": 4096, "heads": 32, "key_heads": 8, "hidden": 14336}
written_out = partial(transformer_block_reference, heads=32, key_heads=8)


def plan_for(tokens):
    tensors = transformer_block_inputs(tokens, **SIZES, dtype=torch.bfloat16, device="meta")
    return analyse(lambda *given: written_out(*given), *tensors)


plan = plan_for(512)
for group in plan.groups:
    if len(group.operations) > 1:
        print(f"{group.kind}:", *(plan.by_name[name].operator for name in group.operations))

# %% [markdown]
# Both find the norm with its addition, SwiGLU's two steps after a product, the residual after the last one. The
# differences teach more:
#
# - **Attention.** The rule sees a row of kernels *between* two products, and would fuse that row. The analyser fuses
#   across the products, because it knows what they are: softmax between two matrices.
# - **The rule has no reason to stop.** It would put a norm behind a product, whatever the product's tile holds. The
#   analyser asks whether one program has the whole row.
# - **A trace has no tensors.** Two neighbours may have nothing in common. The rule cannot know.
# - **A plan is of operators, a trace of kernels.** What a library does inside one of them, well or badly, the plan does
#   not see.
#
# So a trace says *where* the time is; the graph says what may be done.
#
# ## The capstone: one call for the block
#
# `kernels/transformer_block.py` is the block, made of the catalogue. It takes the same arguments as the block written
# out:

# %%
import inspect

print(inspect.getsource(transformer_block).split('"""')[2])

# %% [markdown]
# Small, here and now. **How many launches does the block written out make, and how many the fused?** Say how many times
# fewer.

# %%
fewer = predict_first("times fewer launches, the block fused", unit="times")
fewer

# %%
SMALL = {"width": 64, "heads": 4, "key_heads": 2, "hidden": 96}
fused_block = partial(transformer_block, heads=4, key_heads=2)
unfused_block = partial(transformer_block_reference, heads=4, key_heads=2)
tensors = transformer_block_inputs(24, **SIZES | SMALL, dtype=torch.float32)
unfused, fused = (measure(lambda b=block: b(*tensors)) for block in (unfused_block, fused_block))
for name, found in (("unfused", unfused), ("fused", fused)):
    print(f"{name}: {found.launches} launches, {found.bytes_total / 1e3:.1f} kB")
print("the same values:", torch.allclose(fused.result, unfused.result, atol=1e-5))
fewer.compare(unfused.launches / fused.launches)

# %% [markdown]
# Here on the CPU each of PyTorch's norms is several launches, and so there are more than in the trace. The way back,
# and what is kept for it:

# %%
from helpers.instruments import saved_for_backward


def leaves():
    return [each.detach().to(device).requires_grad_() for each in tensors]


def step(block):
    given = leaves()
    return torch.autograd.grad(block(*given).square().sum(), given)


pairs = list(zip(step(fused_block), step(unfused_block), strict=True))
off = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
print(f"{len(pairs)} gradients, each within a hundred-thousandth of its largest:", off < 1e-5)

# %% tags=["nbval-ignore-output"]
for name, block in (("unfused", unfused_block), ("fused", fused_block)):
    kept = saved_for_backward(block, *leaves())
    print(f"{name} keeps {sum(kept.made.values()) / 1e3:.0f} kB beside its arguments")

# %% [markdown]
# ## Predicted, measured
#
# At real sizes the analyser predicts how many times faster the block gets on an H200, from the graph alone. **For 8192
# tokens, forward?** Attention written out moves a matrix of 8192 by 8192 for each of 32 heads, several times.

# %%
predicted = predict_first(
    "times faster, 8192 tokens, forward, fused against written out", unit="times"
)
predicted

# %%
TIMES = about["times"]


def milliseconds(tokens, way, direction="forward"):
    return 1e3 * TIMES[str(tokens)][direction][way]["gpu"]["median"]


rows = []
for tokens in (1, 512, 8192):
    plan = plan_for(tokens)
    measured = milliseconds(tokens, "eager") / milliseconds(tokens, "fused")
    both = (plan.time_unfused / plan.time_fused, measured)
    rows.append((tokens, *(f"{each:.2f} times" for each in both)))
display(table(("tokens", "predicted", "measured"), rows))
predicted.compare(milliseconds(8192, "eager") / milliseconds(8192, "fused"))

# %%
found = {"predicted": {}, "measured": {}}
for tokens in (1, 512, 8192):
    plan = plan_for(tokens)
    found["predicted"][tokens] = plan.time_unfused / plan.time_fused
    found["measured"][tokens] = milliseconds(tokens, "eager") / milliseconds(tokens, "fused")
title = "At 8192 tokens fusing brings more than predicted, before that about as much"
axes = {"x": "tokens", "y": "times as fast as written out, forward"}
predicted.on(curves_chart(found, title, **axes, log=True), "y")

# %% [markdown]
# The analyser takes each kernel to be as fast as its bytes, or its arithmetic, allow. At 512 tokens that is nearly so.
# At one token a kernel of ours is slower; the last section looks into it. At 8192 kernels of the *eager* block are:

# %%
score = 2 * 32 * 8192**2  # bytes of a matrix of scores, in bf16
slowest = sorted(TIMES["8192"]["forward"]["eager"]["kernels"], key=lambda row: -row[1])[:2]
for name, us in slowest:
    print(f"{us / 1e3:.1f} ms: {name[:80]}")
print(
    f"reading and writing a matrix of scores: {1e3 * 2 * score / h200.copy_bandwidth:.1f} ms at a "
    "copy's speed"
)

# %% [markdown]
# Now the honest comparison, with what PyTorch brings. "libraries" has cuBLAS and PyTorch's choice of attention:
# cuDNN's, and FlashAttention at one token. `torch.compile` is given that version. "fused, cuBLAS" has our norms,
# attention and SwiGLU, and cuBLAS's products. Times are the GPU's own, in ms, cold L2, launch gaps excluded; a step is
# forward and backward:

# %%
from helpers.instruments.recordings import dated

COMPARED = ("eager", "libraries", "torch.compile", "fused", "fused, cuBLAS")
versions, rows = about["versions"], []
for direction in ("forward", "step"):
    for tokens in (1, 512, 8192):
        row = (milliseconds(tokens, way, direction) for way in COMPARED)
        rows.append((tokens, direction, *(f"{each:.3f} ms" for each in row)))
day = dated(about["date"], TIMES["8192"]["forward"]["fused"].get("fingerprints"))
title = f"{about['gpu']}, PyTorch {versions['torch']}, Triton {versions['triton']}, {day}"
display(table(("tokens", "", *COMPARED), rows, title))
for direction in ("forward", "step"):
    compiled, ours = (TIMES["8192"][direction][way]["gpu"] for way in ("torch.compile", "fused"))
    slowest, fastest = 1e3 * compiled["high"], 1e3 * ours["low"]
    told = f"torch.compile's slowest {slowest:.3f} ms, our fastest {fastest:.3f} ms"
    print(f"8192 tokens, {direction}: {told}")
sizes = [(tokens, direction) for direction in ("forward", "step") for tokens in (1, 512, 8192)]
for way in COMPARED:
    if way != "fused":
        ours_first = sum(milliseconds(n, "fused", d) < milliseconds(n, way, d) for n, d in sizes)
        print(f"ours is faster than {way} at {ours_first} of {len(sizes)}")

# %% [markdown]
# **Our block wins against attention written out**, by a lot, as it should. Against PyTorch with its libraries, and
# against `torch.compile` in its default mode, the last lines say how often it does; at 8192 tokens its spread overlaps
# `torch.compile`'s. (max-autotune was not timed.) Error and memory:

# %%
rows = []
for tokens in (1, 512, 8192):
    for way in ("libraries", "torch.compile", "fused"):
        found, forward = (TIMES[str(tokens)][direction][way] for direction in ("step", "forward"))
        launches = sum("Mem" not in name for name, _ in forward["kernels"])
        told = (f"{found['error']:.1e}", f"{found['peak'] / 1e6:.0f} MB")
        rows.append((tokens, way, launches, *told))
columns = ("tokens", "", "kernels forward", "error", "at a step's peak")
table(columns, rows)

# %% [markdown]
# Fewest kernels, an error between the other two, and no gain in time. In the largest step not even in memory:
# `gated_op` keeps both its products for the way back *and* what it makes of them; torch.compile makes that again
# (lesson 11). Why no gain in time?
#
# ## Amdahl's share
#
# Each part of the block, by the kernels that torch.profiler saw: the time of the version with libraries, ours, and
# *how many times faster the whole would be if only this part were exchanged*. 8192 tokens, forward.

# %%
PARTS = {  # part -> places of its kernels, with libraries and in ours
    "norms": ((0, 5), (0, 5)),
    "q, k, v": ((1,), (1,)),
    "attention": ((2,), (2, 3)),
    "out, residual": ((3, 4), (4,)),
    "gate, up, SwiGLU": ((6, 7, 8, 9), (6,)),
    "down, residual": ((10, 11), (7,)),
}


# %%
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


# %%
rows = []
for tokens in (8192, 512):
    parts = parts_of(tokens)
    whole = sum(theirs for theirs, _ in parts.values())
    listed = TIMES[str(tokens)]["forward"]["libraries"]["kernels"]
    products = sum(us for name, us in listed if name.startswith("nvjet"))
    attention = 100 * parts["attention"][0] / whole
    told = f"{100 * products / whole:.0f}% of it in products, {attention:.0f}% in attention"
    print(f"{tokens} tokens: {whole:.0f} us with libraries, {told}")
    for part, (theirs, ours) in parts.items():
        times = (f"{each:.1f} us" for each in (theirs, ours))
        share, gain = f"{100 * theirs / whole:.1f}%", f"{whole / (whole - theirs + ours):.3f}"
        rows.append((tokens, part, *times, share, gain))
table(("tokens", "part", "libraries", "ours", "of the whole", "the whole faster"), rows)

# %% [markdown]
# Most of the time is products, and a product does not get faster by fusing. What fusing *can* save here is the rest,
# the norms and all elementwise kernels together, and that is little, whoever does it. Of those, as these traces have it:
#
# - **Worth it**: SwiGLU in the epilogue of two products (the largest gain of all), and at 512 tokens the norms.
# - **Not worth it**: the residual in a product's epilogue. Where our product is slower than cuBLAS's, as it is at 512
#   tokens, it loses more than the addition took.
# - **Not worth writing for this block**: attention. The library's is as good, and writes its result so that no copy has
#   to put heads side by side.
#
# Best would be a mixture: library attention, our gate, cuBLAS for the rest. A block is not faster for being made of one
# hand's kernels.
#
# ## Why one token is slow
#
# At one token everything is weights, read once. Our block has a kernel for it that normalises, multiplies and gates in
# one launch, five launches in all, and yet:

# %%
rows = []
for way in ("libraries", "fused"):
    for name, us in TIMES["1"]["forward"][way]["kernels"]:
        if us > 9:
            rows.append((way, name.split("<")[0][-24:], f"{us:.0f} us"))
display(table(("", "kernel", "time"), rows))
weights = 2 * 2 * 14336 * 4096
print(
    f"gate and up are {weights / 1e6:.0f} MB: {1e6 * weights / h200.copy_bandwidth:.0f} us at a "
    "copy's speed"
)

# %% [markdown]
# The gated launch takes half as long again as the library's two products. You have the instruments; ask them:

# %% tags=["nbval-ignore-output"]
from kernels.tuned.linear_few_rows import linear_one_row_kernel

x, matrix = (torch.empty(shape, dtype=bf16, device="meta") for shape in (4096, (14336, 4096)))
y = torch.empty(14336, dtype=bf16, device="meta")
ways = {"one matrix": (None, 4), "gated": (matrix, 4), "gated, half the rows": (matrix, 2)}
made = []
for name, (gate, rows) in ways.items():
    sizes = {"BLOCK_N": rows, "BLOCK_K": 1024, "num_warps": 4}
    given = (x, x, matrix, gate, None, y, 14336, 4096, 1e-6)
    found = compile_for(linear_one_row_kernel, *given, device="H200", **sizes)
    made.append((name, found.registers, repr(found.occupancy())))
table(("", "registers", "occupancy"), made)

# %% [markdown]
# Two sums instead of one, and so twice the registers for sums: fewer warps are there to wait for memory. That looks
# like lesson 07's fusing too much, and half the rows a program would give the warps back. **It is a suspicion, not a
# finding**: a warp of the gated kernel has two tiles to wait for, not one, and no page of it was recorded. Its sectors
# and its stalls would tell, and whether half the rows are *faster*, only a GPU.
#
# ## Who is ahead, and where
#
# No kernel is the fastest everywhere. The course's own, at all sizes of the sweep, beside the best peer at each (eager
# PyTorch, `torch.compile`, by default or by max-autotune, Liger, QuACK, cuDNN, FlashAttention-2, Flex); then those at
# which a peer is furthest ahead, on the GPU and as a call from Python. (A shape: attention: batch, heads, key heads,
# queries, keys, width; convolution: pictures, channels, height, width, filters, taps, stride.)

# %%
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
display(at_all_sizes.summary())
late = at_all_sizes.behind()
calls = [line for line in late if line.startswith("a call")]
print(*late[:8], *calls[:4], sep="\n")
timed = sum(bool(point.get("calls")) for point in at_all_sizes.points)
points = len(at_all_sizes.points)
on_gpu = len(late) - len(calls)
print(f"behind at {on_gpu} of {points} points, {on_gpu / points:.0%}")
print(f"behind as a call at {len(calls)} of the {timed} that were called, {len(calls) / timed:.0%}")

# %% [markdown]
# So a library is ahead at the share of points, and of calls, that the last lines print. Each has its place: QuACK on many
# wide rows; cuDNN in some convolutions and in attention of short sequences; eager PyTorch in some calls, of backward
# passes most of all; `torch.compile` at some sizes of some. `fusion bench --recorded --sweep` lists all points, with the
# reasons and what was tried; a kernel's name behind it gives every time. Before you write a kernel, look for your sizes
# in such a list; when you have written one, make the list.
#
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Two kernels in a row each reach 85 % of the memory's speed. What does Nsight Compute advise, and what do you?
# <!-- given 85 %: an example -->
# <details><summary>Answer</summary>It says that each is near its limit. You look whether the second reads what the
# first wrote: then one kernel moves fewer bytes at the same speed.</details>
#
# 2. A kernel's counter for global loads is 0, and its result is right. How?
# <details><summary>Answer</summary>It loads by the copy engine, which has a path of its own. Ask L2's counter, or
# DRAM's.</details>
#
# 3. The profiler counts fewer bytes written than the result has. Is the meter wrong?
# <details><summary>Answer</summary>No. The rest lay in L2 when the kernel ended, and is written to memory
# later.</details>
#
# 4. Most stall samples are on an addition. Would a cheaper addition help?
# <details><summary>Answer</summary>No. It waits for its operands: the loads before it are what takes the
# time.</details>
#
# 5. In a trace the GPU is busy 10 % of the time. Which do you try first: a fused kernel, or a CUDA graph?
# <!-- given 10 %: an example -->
# <details><summary>Answer</summary>A CUDA graph, or torch.compile with one: the time is between the kernels. Fusing
# helps as far as the CPU is done launching sooner.</details>
#
# 6. A fusion takes 3 % off a block's time, and the block is half of a step. How many per cent of the step does it take
#    off? Put your number in place of the dots.
# <!-- given 3 %: an example -->

# %%
answer = ...
self_test(answer, 0.5 * 3, "half of it")

# %% [markdown]
# ## Now you
#
# [Exercise 15](../exercises/15_capstone.ipynb): a block of another model, forward and backward, and a report. It is the
# last one. After it, take a model of your own: `fusion analyse`, then a trace, then a page.
