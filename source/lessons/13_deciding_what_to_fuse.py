# %% [markdown]
# # 13 Deciding what to fuse
#
# You can write a fused kernel by now. A model has hundreds of operations, and a day has room for one kernel. **Which
# operations should it do, what will it bring, and should you write it at all?** This lesson answers before a kernel is
# written, with an instrument that needs no GPU, and then holds its answers against an H200.
#
# After this lesson you can
#
# - say which operations of a graph may share a kernel, and name the rule that forbids it;
# - search the best partition of a small graph, and say why taking the best pair first does not find it;
# - tell a graph that bytes make slow from one that launches make slow, and treat each with its own remedy;
# - read what torch.compile fused, and argue with it;
# - name five reasons to leave two kernels apart;
# - run the analyser on a model of your own, and know how far to trust it.
#
# About 70 minutes. It builds on [02](02_bytes_and_launches.ipynb) (bytes, launches),
# [07](07_occupancy.ipynb) (registers), [08](08_matmul_epilogues.ipynb) (epilogues) and
# [10](10_attention.ipynb), and leads to [exercise 13](../exercises/13_decide.ipynb).

# %%
import logging
import math
import re
import statistics

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import table
from helpers.instruments.fusion import analyse
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
torch.set_num_threads(1)  # tensors as small as these gain nothing by more
device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## One question to a model
#
# The feed-forward half of a transformer: norm, two products, a gate, a third product, the residual. Tensors on the
# device "meta" have a shape and a dtype and no memory, so it may be as large as we like.


# %%
def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def block(x, gamma, beta, gate, up, down):
    y = F.layer_norm(x, x.shape[-1:], gamma, beta)
    hidden = F.silu(F.linear(y, gate)) * F.linear(y, up)
    return x + F.linear(hidden, down)


def block_inputs(tokens, width=1024, hidden=2816):
    return (
        meta(tokens, width),
        *(meta(width), meta(width)),
        *(meta(hidden, width), meta(hidden, width), meta(width, hidden)),
    )


# %% [markdown]
# Eager PyTorch makes seven launches of it: the norm, three products, SiLU, the multiplication, the addition. **How many
# kernels should be left?**

# %%
kernels_left = predict_first("kernels left of seven, the best partition", unit="")
kernels_left

# %%
plan = analyse(block, *block_inputs(8192))
for group in plan.groups:
    print(f"{group.kind}: {' + '.join(group.operations)}")
print(plan.report().summary())
kernels_left.compare(len(plan.groups))

# %% [markdown]
# `analyse` traced the function, rehearsed each operation under the traffic meter's rules, asked of every set of
# operations whether one kernel may do it and what it would take, and searched the partition with the least predicted
# time. `plan` prints as a table of what each kernel saves, which lines of source it comes from, who does it already, and
# what would flip the decision. (The last column, and "the score: ...", have a section of their own below.)

# %%
plan.report()

# %% [markdown]
# And the same as a picture. Thick lines are tensors that need not exist; dashed ones go through memory, with their
# size.

# %% tags=["nbval-ignore-output"]
plan.draw()

# %% [markdown]
# The norm stays a kernel of its own, two products take what follows them as an **epilogue** (lesson 08), the third is
# left to the library. Time falls by less than bytes: products are most of it, and bound by arithmetic. One kernel less
# is possible: the catalogue's `kernels.ffn` makes gate, up and what follows in one. The analyser builds a kernel round
# one product only (attention is the exception), so what it calls best is best among those. Each of these decisions can
# be asked for its reason. That is what the next sections do.
#
# ## What may stand in one kernel
#
# Edge by edge, the analyser says yes or no and why. A small graph for each rule:


# %%
def verdicts(function, *inputs):
    """What the analyser says of each edge, and the kernels that it would make."""
    plan = analyse(function, *inputs)
    for edge in plan.edges:
        print(f"{edge.producer} -> {edge.consumer}: {'yes' if edge.legal else 'NO'}, {edge.reason}")
    print("kernels:", "; ".join(" + ".join(group.operations) for group in plan.groups))
    return plan


x, weight, square = meta(8192, 4096), meta(4096, 4096), meta(4096, 4096)

# %% [markdown]
# **Vertical**: one operation reads what the other makes, element by element. The value stays in a register.

# %%
_ = verdicts(lambda x: torch.sigmoid(torch.relu(x)), x)

# %% [markdown]
# **Horizontal**: siblings read one input and hand each other nothing. There is no edge at all, and still something to
# save. **Three activations of one tensor: what per cent of the bytes?**

# %%
sibling_bytes = predict_first("bytes saved by fusing three activations of one input", unit="%")
sibling_bytes

# %%
siblings = verdicts(lambda x: (torch.relu(x), torch.sigmoid(x), torch.tanh(x)), x)
sibling_bytes.compare(round(100 * (1 - siblings.bytes_fused / siblings.bytes_unfused), 1))

# %% [markdown]
# Three reads become one; three writes stay. **Epilogue and prologue**: what is done to a product's result costs next to
# nothing, since each tile is in registers anyway. What is done to its *input* is another matter. It is legal, and
# refused by its price: every column of tiles would do it again, and the factor would have to pass through registers on
# its way to the tensor cores. (The analyser charges for the second alone.) If it reads more than it makes, it would
# even move more bytes:

# %%
_ = verdicts(lambda x, w: F.gelu(F.linear(x, w)), x, weight)
_ = verdicts(lambda x, w: F.linear(F.gelu(x), w), x, weight)
_ = verdicts(lambda x, y, w: F.linear(F.silu(x) * y, w), x, x, weight)

# %% [markdown]
# **Rows**: a reduction fuses with what makes its rows and with what reads them, if a block has a whole row. A tile of a
# product has not, and a row is not a column:

# %%
_ = verdicts(lambda x, w: F.layer_norm(F.linear(x, w), (4096,)), x, weight)
_ = verdicts(lambda x: torch.softmax(torch.softmax(x, 0), 1), x)

# %% [markdown]
# **Recompute**: two kernels need a result that is cheap to make. Each makes it for itself, and it is never stored. Here
# `x + b` is needed by columns and by rows, which no kernel does at once:


# %%
def columns_and_rows(x, b):
    h = x + b
    return h.sum(0), torch.softmax(h, 1)


for group in verdicts(columns_and_rows, x, meta(4096)).groups:
    print(f"{' + '.join(group.operations)}; again: {', '.join(group.recomputed) or 'nothing'}")

# %% [markdown]
# **Between**: `a` goes into `a + linear(a)` twice. The product has to run in between; a kernel that holds both ends
# would wait for another that waits for it. Two kernels of several operations can wait for each other in the same way,
# each of them legal on its own: of a whole partition it has to be asked once more.


# %%
def around(x, w):
    a = torch.sigmoid(x)
    return a, a + F.linear(a, w)


_ = verdicts(around, x, weight)

# %% [markdown]
# **Mutation**: an operation that overwrites its input may share a kernel with one that reads it *at the same element*:
# the read comes first. Where another element is read, as through a transpose, some block would read what another has
# overwritten. The analyser follows memory, byte range by byte range, not names:

# %%
_ = verdicts(lambda x: (torch.sigmoid(x), x.mul_(2))[0], square)
_ = verdicts(lambda x: (torch.sigmoid(x.t()), x.mul_(2))[0], square)

# %% [markdown]
# Those two edges carry no tensor. They only say who comes first. **Random numbers** and **what nobody can look into**
# are the last two rules. Dropout may be fused if you accept other random numbers, or draw them by the same counter
# (lesson 04); a sort is somebody else's kernel:

# %%
_ = verdicts(lambda x, y: F.dropout(x, 0.1) + y, x, x)
_ = verdicts(lambda x: torch.relu(x).sort(-1)[0], x)

# %% [markdown]
# Change a line of these cells and ask about a graph of your own.
#
# ## Fuse and unfuse
#
# The block again, with the pen in your hand. Click an edge, or walk with Tab and the arrow keys and press Enter. Bytes,
# launches, the most values alive in any kernel, and the predicted time follow at once. What is illegal refuses, in one
# line. **Get it as fast as you can before you press End.**

# %% tags=["nbval-ignore-output"]
from helpers.figures import fusion_simulator

simulator = fusion_simulator(block, *block_inputs(8192))
simulator

# %% [markdown]
# A lone operation counts here as PyTorch's kernel or as one of your own, whichever is faster. The same from Python, so
# that a saved page shows it as well:

# %%
simulator.apart()
for pair in (("native_layer_norm", "mm"), ("silu", "mul"), ("mm", "silu"), ("mm_2", "add")):
    refused = simulator.toggle(*pair)
    print(
        f"{' and '.join(pair)}: "
        f"{f'refused, {refused}' if refused else f'{simulator.predicted * 1e6:.0f} us'}"
    )

# %% [markdown]
# ## Searching
#
# Seven things can be put into groups in 877 ways. (That is the seventh Bell number.) **How many of them are legal here,
# all kernels connected?**

# %%
legal_ways = predict_first("legal partitions of the block, of 877", unit="")
legal_ways

# %%
ways = simulator.simulation.moves
print(
    f"{len(ways)} legal; the best takes "
    f"{min(simulator.simulation.totals(way)['time'] for way in ways) * 1e6:.0f} us"
)
legal_ways.compare(len(ways))

# %% [markdown]
# One in sixty. A pair that may never share a kernel, such as a product and a norm, rules out every partition that puts
# them together, and that is what makes search possible. The analyser grows groups from single operations by
# neighbours, keeps those that are legal, and puts them together by dynamic programming over what is done so far. That
# finds the least *predicted* time, and reaches to fourteen operations, fewer if too many groups are legal. Beyond, it
# goes through them in order, keeps the six best beginnings of a partition, and in the end joins what still saves time.
#
# Why not simply click the edge that helps most, and go on until none does? Three tensors are added up; besides,
# somebody wants the product of two of them summed by rows, and each of the three summed by columns:


# %%
from helpers.figures.fusion.simulator import Simulation
from helpers.instruments.fusion.analyser import costs_of


def sums(x, y, z):
    return x + y + z, (x * y).sum(1), x.sum(0), y.sum(0), z.sum(0)


def best_click_first(graph):
    now, time = graph.apart, lambda way: graph.totals(way)["time"]
    while True:
        then = min((way for way in graph.moves[now] if not isinstance(way, str)), key=time)
        if time(then) >= time(now):
            return now
        now = then


# %%
from helpers.instruments.fusion.legality import bits

graph = Simulation(costs_of(sums, square, square, square))
for name, way in {"best click first": best_click_first(graph), "exact": graph.best}.items():
    kernels = ["+".join(graph.names[place] for place in bits(mask)) for mask in way]
    found = graph.totals(way)
    print(
        f"{name:16} {found['time'] * 1e6:.0f} us, {found['bytes'] / 1e6:.0f} MB: "
        f"{'; '.join(kernels)}"
    )

# %% [markdown]
# The addition shares two tensors with the multiplication, and one with each sum by columns. Two are more than one, so
# the best click joins it with the first, and with the sum by rows that hangs on it; a kernel of rows can take no
# columns in. The small gains together were worth more. Greedy search is cheap, and wrong without saying so.
#
# Not every legal fusion wins. **Parallelism** can be lost: a kernel of rows has a block a row, and an H200 has 132
# multiprocessors. Six tensors are added up, then normalised, with ever more rows:
# <!-- given 132 multiprocessors: the H200's entry in devices.toml -->


# %%
def sum_and_norm(*tensors):
    return F.layer_norm(sum(tensors[1:], tensors[0]).float(), tensors[0].shape[-1:])


for rows in (16, 64, 128, 256):
    found = analyse(sum_and_norm, *(meta(rows, 16384) for _ in range(6)))
    print(
        f"{rows:3} rows: kernels of {[len(group.operations) for group in found.groups]} operations"
    )

# %% [markdown]
# With few rows it leaves the additions apart: they can use the whole GPU, and few blocks of a fused kernel cannot.
#
# And **registers** end it: values that are alive at once must all be held (lesson 07). The analyser counts them in the
# order of the graph. Below, exponentials of ever more tensors are made first and added up after. It can also write the
# kernel out and compile it, for any GPU:


# %%
def exponentials(*tensors):
    parts = [torch.exp(each) for each in tensors]
    return sum(parts[1:], parts[0])


compiled = {}
for count in (2, 8, 16, 32):
    found = analyse(exponentials, *(meta(8192, 4096, dtype=torch.float32) for _ in range(count)))
    largest = max(found.groups, key=lambda group: len(group.operations))
    print(
        f"{count:2} tensors: {len(found.groups)} kernel(s), {largest.live} values alive, "
        f"{largest.registers} registers"
    )
    compiled[count] = found.compile(largest)

# %% tags=["nbval-ignore-output"]
for count, resources in compiled.items():
    print(
        f"{count:2} tensors: compiled {resources.registers} registers, {resources.spill_bytes} "
        "bytes spilled"
    )

# %% [markdown]
# The estimate is far too high, and splits the last one for nothing: a compiler need not keep the order of the graph. It
# adds each exponential up as soon as it has it. **Ask `plan.compile` before you believe that registers forbid it.**
# (Where every value is needed twice, as in lesson 07, no order helps.)
#
# ## Bytes or launches?
#
# All that was large. Here is GPT-2's block with 128 tokens, eager and compiled, each launched kernel by kernel and from
# a CUDA graph, recorded by torch.profiler on an H200.

# %%
from benchmarks.fusion_groups import TIMELINE
from benchmarks.fusion_models import GRAPHS, Tensors
from benchmarks.fusion_proof import record
from helpers.figures import Trace

provenance = f"{record()['gpu']}, {record()['date']}, PyTorch {record()['versions']['torch']}"
traces = {name: Trace.of(rows) for name, rows in record()["timeline"].items()}
print(f"recorded: {provenance}; ways: {'; '.join(traces)}")

# %% [markdown]
# **How many times shorter does the CUDA graph alone make it, nothing fused?** From the first launch to the end of the
# last kernel.

# %%
by_graph = predict_first("times shorter, eager under a CUDA graph", unit="times")
by_graph

# %%
totals = {name: trace.total for name, trace in traces.items()}
by_graph.compare(totals["eager"] / totals["eager, CUDA graph"])

# %% [markdown]
# **And torch.compile alone, no graph?**

# %%
by_compile = predict_first("times shorter, compiled, launched one by one", unit="times")
by_compile

# %%
rows = []
for name, trace in traces.items():
    gaps = sum(kernel.gap for kernel in trace.kernels)
    times = (f"{each:.0f} us" for each in (trace.busy, gaps))
    rows.append((name, f"{trace.total:.0f} us", len(trace.kernels), *times))
display(table(("", "in all", "kernels", "busy for", "gaps"), rows))
by_compile.compare(totals["eager"] / totals["compiled"])

# %% [markdown]
# Move through the kernels and look at the gaps:

# %% tags=["nbval-ignore-output"]
from helpers.figures import TraceExplorer

TraceExplorer(record()["timeline"])

# %% [markdown]
# The kernels of the eager block need 45 us. The rest is the CPU, which runs PyTorch's Python and C++ for each operator,
# and under a profiler takes longer still: gaps without one are shorter, and have the same cause. (What is neither
# kernel nor gap is the way from the first launch to the first kernel, for a graph the launch of all of it.)
#
# **Fusion takes away launches one by one; a CUDA graph takes away the CPU.** It replays a recorded row of launches with
# one call. What it asks: the same shapes, the same addresses, no decision by the CPU in between.
#
# In PyTorch it is `torch.cuda.graph(...)`, or `torch.compile(mode="reduce-overhead")`. Does that make fusing useless?
# Compare the two graphs: fusing is still worth what the kernels themselves got shorter by, and a graph of fewer kernels
# was under way sooner. The analyser predicts only the kernels, the GPU's own time. In kernels of so little work
# launches count there, too, at what the GPU needs for each:

# %%
from helpers.instruments.prediction import LAUNCH

function, inputs = GRAPHS["gpt2_block"].make(
    Tensors("meta"), **GRAPHS["gpt2_block"].real | TIMELINE
)
small = analyse(
    function, *inputs, epilogues=False
)  # as torch.compile does by default: products to the library
pairs = (("eager", small.time_unfused), ("compiled", small.time_fused))
for name, predicted in pairs:
    found = traces[f"{name}, CUDA graph"]
    print(
        f"{name:8} predicted {predicted * 1e6:.0f} us; from the first kernel to the last "
        f"{found.span:.0f} us"
    )
saved = small.time_unfused - small.time_fused
launches = (small.launches_unfused - small.launches_fused) * LAUNCH
print(f"of {saved * 1e6:.0f} us that it would save, {launches * 1e6:.0f} us are launches")

# %% [markdown]
# Both times are too short by nearly a third, for such kernels are all beginning and end, and the model knows little of
# either. The ratio is about right.
#
# ## The flowchart
#
# So there is an order in which to ask. May one kernel do it? Do its values fit? Is the GPU the limit at all? Is it
# enough of the step to matter: by Amdahl's law, a part of the step that takes a share $s$ and becomes $k$ times as fast
# makes the step $1 / (1 - s + s/k)$ times as fast. Who writes it? The answers below are the analyser's, for what the
# sliders describe (registers as estimated, see above); what a launch costs the CPU was recorded. Move them until you
# have seen all six ends.

# %% tags=["nbval-ignore-output"]
from helpers.figures import FusionDecisionExplorer

FusionDecisionExplorer()

# %%
from helpers.figures.fusion.fusion_decision import decide

for kind, rows, share in (
    ("elementwise", 8192, 0.2),
    ("elementwise", 16, 0.2),
    ("elementwise", 8192, 0.01),
    ("a product, then elementwise", 8192, 0.5),
    ("a product, then a norm", 8192, 0.5),
):
    print(
        f"{kind}, {rows} rows, {share:.0%}: "
        f"{decide(kind, rows, 4, share, 'from Python', 'H200').outcome}"
    )

# %% [markdown]
# ## A score that shows its weights
#
# Predicted time knows nothing of the weeks that a kernel has to be kept alive. Teams that discuss fusions often use a
# weighted score, so here is one, in the open: five parts from 0 to 1, 1 in favour of fusing.
#
# | part | weight | is |
# |---|---|---|
# | bandwidth | 0.4 | the share of bytes saved |
# | launches | 0.2 | the share of launches saved |
# | registers | 0.2 | the occupancy that the registers allow |
# | complexity | 0.1 | how easy the kernel is to get right, by what it is built round |
# | upkeep | 0.1 | how little there is to keep up: 1 where torch.compile or PyTorch does it |
#
# From 0.5 on it says "fuse". The weights are a convention, and a convention can be argued with. Move one, and the
# others share the rest:

# %% tags=["nbval-ignore-output"]
from benchmarks.fusion_proof import plan_of
from helpers.figures import FusionScoreExplorer

FusionScoreExplorer(plan_of("gpt2_block", epilogues=True))

# %%
from helpers.instruments.fusion.plan_report import flips

rows = []
for group in plan_of("gpt2_block", epilogues=True).groups:
    if len(group.operations) > 1:
        gain = (group.time_unfused - group.time) * 1e6
        says = "fuse" if group.score.total >= 0.5 else "leave"
        told = (f"{gain:.0f} us", f"{group.score.total:.2f}", says)
        rows.append((group.operations[0], *told, "; ".join(flips(group)) or "nothing nearby"))
table(("group", "saves", "score", "says", "flips"), rows)

# %% [markdown]
# Two opinions, and they differ: every one of these kernels saves predicted time, and the score would leave some. It
# counts a *share* of bytes, so an epilogue that saves a little of a lot scores low, however many microseconds that is;
# and a low occupancy is no fault of a product (lesson 08). Two of them hang on a few hundredths of a weight that nobody
# has measured. **Rank by time, and let the score ask what you may have forgotten.**
#
# ## What torch.compile really fused
#
# Inductor, torch.compile's code generator, decides such things for you. What it decided was read out of it on the H200,
# for the traced graphs that the analyser was tried on. Side by side; an operation that two kernels work out stands in
# both, and where an edge is judged differently, both ends are marked:

# %%
from benchmarks.fusion_proof import compare, homes_of_all
from helpers.figures import FusionGroupsExplorer, TwoPartitions


def beside(name):
    found = compare(name)
    homes = homes_of_all(plan_of(name), record()["graphs"][name])
    return TwoPartitions(
        plan_of(name), homes, (*found.analyser_alone, *found.inductor_alone), found.edges
    )


shown = {
    name: beside(name)
    for name in ("gpt2_block", "squeeze_excite", "column_statistics", "bert_layer")
}
rows = ((name, each.edges - len(each.differing), each.edges) for name, each in shown.items())
table(("graph", "edges alike", "of"), rows)

# %% tags=["nbval-ignore-output"]
FusionGroupsExplorer(shown)

# %% [markdown]
# In `column_statistics`, the analyser takes the difference of maximum and minimum, `sub_1`, into the kernel that finds
# the two; Inductor takes it into the kernel of the addition behind it. Who is right can only be timed, and was: each of
# the two ways was compiled and run.

# %%
from benchmarks.fusion_proof import verdict

for name, each in shown.items():
    for edge in each.differing:
        print(f"{name}: {' -> '.join(edge)}: {verdict(name, edge)}")

# %% [markdown]
# And the code. Here is what Inductor generated of an activation written by hand in six operations, `hard_swish_chain`.
# Compare it with your kernel of lesson 03:


# %%
def generated(name):
    """Source of the Triton kernels that Inductor wrote for a graph."""
    return re.findall(
        r"(@triton\.jit\n.*?)\n''', device_str", record()["graphs"][name]["code"][0], re.DOTALL
    )


print(*generated("hard_swish_chain"), sep="\n")

# %% [markdown]
# One load a tensor, one store, everything between in fp32 registers: nothing that you would write otherwise. Now
# residual and LayerNorm, 32768 rows of 4096. It is one kernel, too. **How often does that one kernel read or write
# something of the rows' full size?** The least is three reads and writes for the sum, if that is stored, and one for
# the result: `x` and the residual in, the new residual and the norm out, 4 together.

# %%
passes = predict_first("reads and writes of full size, Inductor's residual + LayerNorm", unit="")
passes

# %%
(source,) = generated("residual_layer_norm")
touched = [
    line.strip()
    for line in source.splitlines()
    if ("tl.load" in line or "tl.store" in line) and "x0" in line
]
for line in touched:
    print(re.sub(r", r0_mask.*", ", ...)", line))
passes.compare(len(touched))

# %% [markdown]
# It loops over the row in blocks, so when it comes to normalise, the row is gone from registers, and it reads back what
# it has just stored. **One kernel is not one pass.** Lesson 05 kept the row in registers instead. Whether the second
# read costs anything hangs on whether L2 still has it, so it was timed:

# %%
from helpers.instruments import recorded

at_size = {
    row["provider"]: row["gpu"]["median"]
    for row in recorded("h200").rows
    if row["kernel"] == "residual_layer_norm"
    and row["shape"] == [32768, 4096]
    and row["dtype"] == "bfloat16"
}
rows = ((provider, f"{seconds * 1e6:.0f} us") for provider, seconds in at_size.items())
table(("", "time"), rows)

# %% [markdown]
# Hardly anything, at this size, though it is a fifth pass where four were needed: each block reads its row back soon
# after it was stored, so a cache may still have it. (No counter was read here to say which.)
#
# ## How right is the analyser?
#
# It was tried on thirty graphs to which no constant was fitted: blocks of transformers and convolutional networks,
# losses, optimisers, training steps. **On what share of the edges do the analyser and Inductor agree?**

# %%
agreement = predict_first("edges on which analyser and Inductor agree", unit="%")
agreement

# %%
from benchmarks.fusion_proof import compared, summary

trials = compared()
of_all = summary(trials)
print(f"{of_all['graphs']} graphs, {of_all['edges']} edges; recorded: {provenance}")
print(
    f"alike on {of_all['agreement']:.0%} of edges; {of_all['agreement_with_a_choice']:.0%} where "
    "there was a choice"
)
print(f"median error of the predicted speed-up {of_all['median_error']:.0%}")
print(f"right about faster or slower in {of_all['right_directions']:.0%}")
agreement.compare(round(100 * of_all["agreement"]))

# %% [markdown]
# Where they differ, who was right? Only a timing of both ways settles it, and many could not be settled, because
# Inductor makes more kernels of the analyser's groups than it plans:

# %%
from collections import Counter

differing = [
    (each.name, edge) for each in trials for edge in (*each.analyser_alone, *each.inductor_alone)
]
print(dict(Counter(verdict(*each).split(",")[0].split(" (")[0] for each in differing)))
print("wrong direction:", *(each.name for each in trials if not each.right_direction))

# %% [markdown]
# A median hides its tail. The five worst, and whose time was wrong, as predicted over measured:

# %%
rows = []
for each in sorted(trials, key=lambda each: -abs(math.log(1 + each.error)))[:5]:
    measured, found = record()["graphs"][each.name]["gpu"], plan_of(each.name)
    over = (
        found.time_unfused / measured["eager"]["median"],
        found.time_fused / measured["compiled"]["median"],
    )
    gains = (f"{gain:.2f} times" for gain in (each.predicted, each.measured))
    rows.append((each.name, *gains, f"{each.error:+.0%}", *(f"{ratio:.2f}" for ratio in over)))
columns = ("", "predicted", "measured", "error", "predicted over measured: eager", "compiled")
table(columns, rows)

# %% [markdown]
# Where it promises too much, eager's time is mostly about right, and Inductor's kernels take longer than the analyser
# thinks a kernel must. (In `conv_stem` both times are wrong: its convolution of three channels is slow for the library,
# too.) `rotary` errs the other way, Inductor's kernel is faster than predicted: no bound, then, but what a good kernel
# should reach. Is that a dream? The same for kernels of this course, written by hand:

# %%
from benchmarks.fusion_proof import with_our_kernels

ours = with_our_kernels()
names = "swiglu bias_dropout_residual softmax_dropout cross_entropy layer_norm_act softmax_topk"
rows = []
for name in names.split():
    found = plan_of(name, epilogues=True)
    said = found.time_unfused / found.time_fused
    gains = (said, compare(name).measured, ours[name])
    rows.append((name, *(f"{gain:.1f} times" for gain in gains)))
table(("", "predicted", "torch.compile", "ours"), rows)

# %% [markdown]
# Mostly it is a promise that somebody can keep. Where the compiler falls short of it, there may be a kernel worth
# writing, and that is the use of the instrument. The last line is its blind side: it takes a sort for a wall, and
# lesson 06 did softmax and top-k in one pass. (Times of these kernels served to fit the model's constants, so they are
# no test of it.) [All of it](../docs/fusion_proof.md), graph by graph.
#
# **Claim: "a model's forward pass goes from 120 to 80 ms by fusion."** Test it, GPU time of whole blocks, eager against
# compiled:

# %%
BLOCKS = "bert_layer gpt2_block llama_block vit_block mixtral_experts mamba_block".split()
BLOCKS += ["resnet_bottleneck", "unet_block"]
gains = {name: compare(name).measured for name in BLOCKS}
rows = ((name, f"{gain:.2f} times", f"{120 / gain:.0f} ms") for name, gain in gains.items())
display(table(("", "faster", "120 ms would become"), rows))
print(
    f"median {statistics.median(gains.values()):.2f}, claimed {120 / 80:.2f}; h200_fusion.json, "
    f"{provenance}"
)

# %% [markdown]
# **Verdict: fair in the middle, and no number for a model.** The four transformers among them (BERT, GPT-2, Llama, ViT)
# write attention out step by step, which is part of their gain; and where nearly all is products, as in
# `mixtral_experts`, little is left to gain.
#
# ## Graph breaks
#
# All this presupposes one graph. Python that must *look at a value* ends it: the GPU has to finish, the CPU reads, and
# what comes after is another graph. Nothing is fused across. `torch._dynamo.explain` counts them. The same computation
# twice, once with `if`, once with `where`:


# %%
def with_if(x):
    y = torch.relu(x) * 2
    if y.sum() > 0:
        y = y + 1
    return torch.sigmoid(y) * 3


def with_where(x):
    y = torch.relu(x) * 2
    return torch.sigmoid(torch.where(y.sum() > 0, y + 1, y)) * 3


logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it explains each break at length
for function in (with_if, with_where):
    found = torch._dynamo.explain(function)(torch.randn(8))
    print(f"{function.__name__:10} {found.graph_count} graphs, {found.graph_break_count} breaks")

# %% [markdown]
# The analyser takes only what can be traced, and names the line that cannot be. **What does one break cost, in bytes?** A chain of four
# operations, broken in the middle:

# %%
break_cost = predict_first(
    "times the bytes, four elementwise operations broken in two", unit="times"
)
break_cost

# %%
try:
    analyse(with_if, x)
except ValueError as error:
    print(error)
first, second = lambda x: torch.relu(x) * 2, lambda y: torch.sigmoid(y) * 3
whole = analyse(lambda x: second(first(x)), x).bytes_fused
halves = analyse(first, x).bytes_fused + analyse(second, x).bytes_fused
print(f"whole {whole / 1e6:.0f} MB, in halves {halves / 1e6:.0f} MB")
break_cost.compare(halves / whole)

# %% [markdown]
# ## Reasons not to fuse
#
# You have met five: the law (a row is not a tile), lost parallelism, too many values for the registers, a library's
# product that is faster than yours, and time that is not there to be saved. Here are three more.
#
# **Batch invariance.** A reduction over few long rows is split over several blocks, so that the GPU is full; over many
# rows it is not. Then the *order of the additions* hangs on how many other requests are in the batch, and the last bits
# of *your* row with it. Below, each row is summed by up to 32 programs, as many as make 256 together.


# %%
@triton.jit
def share_kernel(x_ptr, sums_ptr, cols, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * (cols // SPLIT), (part + 1) * (cols // SPLIT), BLOCK):
        total += tl.load(x_ptr + row * cols + start + tl.arange(0, BLOCK))
    tl.store(sums_ptr + row * SPLIT + part, tl.sum(total))


def row_sums(x, split=None):
    rows, cols = x.shape
    split = split or max(1, min(32, 256 // rows))
    sums = torch.empty(rows, split, device=x.device)
    share_kernel[(rows, split)](x, sums, cols, SPLIT=split, BLOCK=256)
    return sum(sums.unbind(1))  # one after the other, in any batch


# %% [markdown]
# **16 rows, summed in one batch, and each alone. How many of the 16 come out different?** In any bit.

# %%
rows_differ = predict_first("of 16 rows, sums that change with the batch", unit="")
rows_differ

# %% tags=["nbval-ignore-output"]
many = torch.randn(16, 8192, device=device)
together, alone = row_sums(many), torch.cat([row_sums(row[None]) for row in many])
fixed = torch.cat([row_sums(row[None], split=16) for row in many])
rows_differ.compare(int((together != alone).sum()))

# %%
print("some differ:", bool((together != alone).any()))
print("with a split that never changes, some differ:", bool((together != fixed).any()))
exact = many.double().sum(1)
print(
    "all right to a thousandth:",
    all(bool(((each - exact).abs() < 1e-3).all()) for each in (together, alone, fixed)),
)

# %% [markdown]
# Nothing is wrong with either, and a language model that must give the same answer in any batch cannot have it. (He and
# Thinking Machines Lab, "Defeating nondeterminism in LLM inference", 2025.) The remedy is a split that hangs on nothing
# but the row, which leaves speed on the table for small batches. Split-K products and attention's split-KV have the
# same trouble.
#
# **Other values.** Fusing changes results even where the order stays: what was rounded to bf16 between two kernels is
# now kept in fp32. Closer to the truth, and different from the run that you compare with:

# %%
half = torch.randn(10_000, device=device).bfloat16()
rounded = ((half * 3).exp() * 0.1).log()
kept = ((half.float() * 3).exp() * 0.1).log().bfloat16()
exact = ((half.double() * 3).exp() * 0.1).log()
print("the same bits:", torch.equal(rounded, kept))
errors = {
    name: (each.double() - exact).abs().mean().item()
    for name, each in (("rounded", rounded), ("kept", kept))
}
print("fused is closer to float64:", errors["kept"] < errors["rounded"])

# %% [markdown]
# **Upkeep.** Somebody compiles it, tests it on the next GPU, and finds the bug in it. What compiling alone took for the
# thirty graphs above and those that the model was fitted to, each once, for one shape:

# %%
seconds = sorted(graph["compile_seconds"] for graph in record()["graphs"].values())
print(
    f"{len(seconds)} graphs: median {statistics.median(seconds):.1f} s, the slowest "
    f"{seconds[-1]:.1f} s"
)

# %% [markdown]
# A shape that changes with every request may pay that again, or a kernel for any shape, which is slower. A fused kernel
# is also one line in a profile where there were six, and one breakpoint less.
#
# ## Megakernels
#
# Go to the end of the road: the *whole* model in one kernel. Blocks wait for each other through counters in memory
# instead of ending; the next layer's weights are fetched while this one still computes. For one user and one token it
# is done ("Look Ma, No Bubbles!", Hazy Research, 2025). What is there to gain? Take the block under its CUDA graph,
# compiled.
# **How many times longer are its kernels busy than reading all weights once would take?**

# %%
bubble = predict_first(
    "times longer than reading the weights once, compiled, CUDA graph", unit="times"
)
bubble

# %%
last = traces["compiled, CUDA graph"]
weights = sum(each.numel() * each.element_size() for each in inputs)
floor = weights / recorded("h200").copy_bandwidth * 1e6
arithmetic = sum(each.work.flops for each in small.operations) / recorded("h200").matrix_rate * 1e6
gaps = sum(kernel.gap for kernel in last.kernels)
print(
    f"{weights / 1e6:.1f} MB of weights and input: {floor:.1f} us; arithmetic {arithmetic:.1f} us"
)
print(f"{len(last.kernels)} kernels: busy {last.busy:.0f} us, gaps {gaps:.1f} us")
bubble.compare(last.busy / floor)

# %% [markdown]
# Neither bytes nor arithmetic explain it, and the gaps are the smaller part. What is left is how a kernel begins and
# ends: its first bytes arrive after a while, its last blocks leave most of the GPU idle, and none of these kernels is
# long enough for that not to matter. A megakernel can win some of that back, and only where kernels are this short.
#
# ## Your model
#
# The default below is a block of PyTorch's own. Put your module and its inputs in its place: anything that
# `torch.export` or `make_fx` can trace, on meta tensors if it is large. In a terminal the same is
# `fusion analyse model.py:build --device H100`.


# %%
def build():
    with torch.device("meta"):
        model = torch.nn.TransformerEncoderLayer(
            1024, 16, dtype=torch.bfloat16, batch_first=True, norm_first=True
        )
        return model.train(), (torch.empty(16, 512, 1024, dtype=torch.bfloat16),)


# %% tags=["nbval-ignore-output"]
model, model_inputs = build()
yours = analyse(model, *model_inputs, device="H200")
yours.report()

# %% tags=["nbval-ignore-output"]
yours.draw()

# %% [markdown]
# Then go down the list from the top. Who does it already? Is that share of your step worth it? Which line of the table
# would you bet on? Write the one kernel, and *measure*.
#
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. `y = layer_norm(linear(x))`. Your colleague wants one kernel. What do you say?
# <details><summary>Answer</summary>A tile of the product holds no whole row. A block could own whole rows only if the
# row were a tile's width; else blocks wait for each other, or work out tiles again. Lesson 08 shows the
# price.</details>
#
# 2. Two groups, each legal alone. Can the pair of them be illegal?
# <details><summary>Answer</summary>Yes: if something in the first waits for something in the second and the other way
# round, no order of the two kernels exists.</details>
#
# 3. A profile shows kernels of a few microseconds with gaps of thirty between them. What do you do first?
# <details><summary>Answer</summary>A CUDA graph, or anything that takes the CPU out. Fusing removes a gap per launch; a
# graph removes them all. Then ask again: what is left are bytes and ramps.</details>
#
# 4. A kernel's score is 0.42 and it saves more time than all others. Write it?
# <details><summary>Answer</summary>Ask what pulled the score down. Few blocks at a time are no fault of a
# product; upkeep means that you pay for it. Rank by time, and let the score name the price.</details>
#
# 5. Your service returns other last digits at night, when it is quiet. What do you look for?
# <details><summary>Answer</summary>A reduction, product or attention whose split follows the batch size.</details>
#
# 6. A part takes 20 % of a step, and a fused kernel needs a third of its time. How many times as fast is the step? Put
#    your number in place of the dots.

# %%
answer = ...
self_test(answer, 1 / (1 - 0.2 + 0.2 / 3), "Amdahl: one over what is left, 0.8 and a third of 0.2")

# %% [markdown]
# ## Now you
#
# [Exercise 13](../exercises/13_decide.ipynb) gives you small graphs and asks for the decision: what is legal, whether
# to fuse a pair, and the best partition. It is judged against exhaustive search.
