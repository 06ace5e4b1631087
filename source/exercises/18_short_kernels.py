# %% [markdown]
# # Exercise 18: short kernels of a decoder layer [15 points]
#
# When a decoder layer processes a single token, the operations between its matmuls are so short that launching them
# takes longer than moving their bytes. In this exercise you fuse three of them, an addition, a norm and a gate, into
# one kernel. Then you predict the launches and bytes of a layer, arrange its operations into as few launches as
# possible, put these into CUDA graphs, and work out how many launches fit into a time budget. About 65 minutes, after
# exercise 05b.
#
# **The formulas**, for each row of $n$ elements:
#
# $$s = x + r, \qquad y = \frac{s}{\sqrt{\tfrac1n \sum s^2 + \varepsilon}} \cdot w \cdot g \cdot \sigma(g)$$
#
# and, for the time of $k$ launches that move $B$ bytes at bandwidth $W$:
#
# $$t_\text{launched} = k \cdot \max\Big(\text{call},\ \text{gap} + \frac{B / k}{W}\Big), \qquad
# t_\text{graph} = \text{call} + k \cdot \text{gap} + \frac{B}{W}$$
#
# **The picture**:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("18")

# %%
import math  # for your answers

import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    GATED_NORM_MISTAKES,
    Hints,
    check_arrangement,
    check_counts,
    check_graph_plan,
    check_numbers,
    check_offsets,
    check_passes,
    check_values,
    draw_questions,
    in_a_graph,
    layers_asked,
    norm_cases,
    steps_asked,
)
from helpers.learning.checks import short_layer_questions

# %% [markdown]
# ## The unfused reference


# %%
def reference(x, residual, gate, weight, eps):
    s = x + residual
    normed = s * (s.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight
    return normed * (gate * torch.sigmoid(gate)), s


device = "cuda" if torch.cuda.is_available() else "cpu"
x, residual, gate = torch.randn(3, 8, 1000, device=device)
weight = torch.randn(1000, device=device)
unfused = measure(reference, x, residual, gate, weight, 1e-6)
print(f"{unfused.launches} launches, {unfused.bytes_total / x.numel():.3g} B/element")

# %% [markdown]
# **How low can you go?** Write down the launches and the bytes per element before you continue.
#
# <details><summary>Answer</summary>One launch. Three inputs and two results take 20 bytes per element. Each row also
# reads the whole weight, 4 bytes per element, but all rows after the first find it in a cache.</details>
# <!-- given 20 bytes, 4 bytes: float32, five tensors and one -->

# %% [markdown]
# ## Your answers
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 14 of the 15 points; the other
# 1 is for one hidden check with other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Which of the two results is wrong? The message names it. Result 1 is y, result 2 is s.",
        "The mean square divides by the elements in the row. silu(g) is g * sigmoid(g), in fp32.",
        "Multiply y by the gate, but not s. The next layer gets s unchanged.",
    ),
    traffic=(
        "Count your loads and stores. You need one line each for x, residual, gate, weight, s "
        "and y.",
        "Don't load back a tensor you've just stored, and keep silu in registers.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product can exceed 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
    counts=(
        "Write one line per launch. Which vectors does it read, and which does it write?",
        "A matmul reads its weight and a vector, and writes a vector.",
        "In a fused kernel, a tensor that no other kernel needs never goes to memory. s is needed "
        "twice.",
    ),
    fused=(
        "Which launches are left when the elementwise operations join the matmuls and the norm?",
        "A matmul's epilogue still reads the other operand of its addition, and s is written: the "
        "next layer needs it.",
    ),
    arrange=(
        "Take the operations one by one. Which launch is the last to produce one of its inputs?",
        "Add the operation to that launch or to the first later one that the rules allow. "
        "If there's none, start a new launch. In the layers tried here, this gives the minimum; in "
        "others, a later launch may move fewer bytes.",
        "A matmul always starts a launch. An elementwise operation can join a matmul's launch, "
        "but a norm can't.",
    ),
    graph=(
        "Go through the launches in order. One that waits ends the graph, and the next one that "
        "doesn't starts another.",
        "For each tensor that a launch in a graph reads: where will it be for the next token?",
        "A launch that waits isn't in a graph, so its result has a new address for every "
        "token. Copy it if a graph reads it. Don't copy a tensor that only launches outside a "
        "graph read.",
    ),
    time=(
        "From Python, each launch takes the call or the gap plus the bytes, whichever is longer.",
        "You call a graph once, but each kernel in it has a gap.",
    ),
    budget=(
        "How much time is left after the bytes have been moved?",
        "For the budget, subtract the call and the time for the bytes, then count whole gaps. The "
        "answer is never below 0.",
    ),
)
hint

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def gated_norm_kernel(
    x_ptr, residual_ptr, gate_ptr, weight_ptr, y_ptr, sum_ptr, cols, eps, BLOCK: tl.constexpr
):
    # About 12 lines: load, add, store the sum; its mean square; weight; gate; store y.
    # BEGIN SOLUTION
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    s = x + residual
    tl.store(sum_ptr + start + col, s, mask=exists)
    mean_square = tl.sum(s * s, axis=0) / cols
    weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)
    normed = s * tl.rsqrt(mean_square + eps) * weight
    # The gate doesn't leave the registers either: silu in memory would cost a write and a read.
    tl.store(y_ptr + start + col, normed * (gate * tl.sigmoid(gate)), mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x, the residual and the gate have the same shape and dtype (float32, float16 or bfloat16). They can have any number of
# dimensions and rows, up to 16,384 columns, and any strides. The weight is a contiguous vector in the same dtype.


# %% grade_id="launcher"
def gated_norm(x, residual, gate, weight, eps):
    """(y, s): RMSNorm of x + residual times silu(gate), and the sum, in one launch."""
    # About 6 lines: reshape everything to rows, allocate two results, choose the block, launch.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    x, residual, gate = x.contiguous(), residual.contiguous(), gate.contiguous()
    y, s = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    gated_norm_kernel[(x.numel() // cols,)](
        x, residual, gate, weight, y, s, cols, eps, BLOCK=block, num_warps=warps
    )
    return y, s
    # END SOLUTION


# %% [markdown]
# **Are the results right?** This checks both results with odd widths, views, NaN, three dtypes and one wide row.

# %% grade_id="values" points=3
check_values(
    gated_norm,
    reference,
    norm_cases(3, 1, seed=6, gate=2),
    unlike=GATED_NORM_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is it fused?** There should be one launch that reads every input once and writes both results once, in float32 and
# in bfloat16. On an A100, rows of 8192 mustn't spill registers.

# %% grade_id="traffic" points=2
wide = *torch.randn(3, 2, 8192, device=device), torch.randn(8192, device=device), 1e-6
check_passes(
    gated_norm, (x, residual, gate, weight, 1e-6), reads=(1, 1, 1, 8), widest=wide, name="traffic"
)

# %% [markdown]
# **Does it work for a large tensor?** This checks 2^22 rows of 1024 without allocating them. Your grid has to grow with
# the tensor, or have at least 108 programs (one per SM of an A100) that loop over all of it.


# %%
def rows_of(rows):
    return *torch.randn(3, rows, 1024, device=device), torch.randn(1024, device=device), 1e-6


# %% grade_id="large" points=1
check_offsets(gated_norm, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% [markdown]
# ## What one token's layer launches
#
# The small layer below processes one token with an addition, a gate, two matmuls and the residual. Each operation is
# one launch. A matmul reads a vector and its weight, which has `hidden` x `width` elements. All tensors are float32.
# From here on, your answers may use their arguments and `math`.


# %%
def short_layer(x, residual, gate, up, down):
    s = x + residual
    gated = torch.nn.functional.silu(s) * gate
    return gated @ up.t() @ down.t() + s


# %% grade_id="count-layer"
def count_layer(width, hidden):
    """Return launches, bytes of short_layer: up is (hidden, width), down is (width, hidden)."""
    # About 3 lines.
    # BEGIN SOLUTION
    # add 3, silu 2, times gate 3, add 3: eleven vectors of `width`; a matmul: weight, two vectors.
    products = 2 * (hidden * width + hidden + width)
    return 6, 4 * (11 * width + products)
    # END SOLUTION


# %% [markdown]
# **Launches and bytes**, compared with the meter's counts.


# %%
def layer_inputs(width, hidden):
    vectors = torch.randn(3, 1, width)
    return *vectors, torch.randn(hidden, width), torch.randn(width, hidden)


sizes = [(4, 8), (24, 24), *draw_questions(1, 4, (8, 24, 96), (16, 40, 200))]
sizes += draw_questions(8, 1, range(300, 600), range(600, 1200))

# %% grade_id="counts" points=1
check_counts(
    count_layer,
    short_layer,
    layer_inputs,
    sizes,
    parts=("launches", "bytes"),
    unlike=short_layer_questions.COUNT_MISTAKES,
    name="counts",
)

# %% [markdown]
# Now fuse the operations around the matmuls. The addition, silu and the gate become one kernel, and the last addition
# becomes the epilogue of the second matmul. Each matmul is still one launch.


# %% grade_id="count-fused"
def count_fused(width, hidden):
    """Return launches, bytes of the same layer, fused."""
    # About 3 lines.
    # BEGIN SOLUTION
    # One kernel: x, residual, gate in; s, gated out. The second matmul reads s, writes the result.
    products = 2 * (hidden * width + hidden + width)
    return 3, 4 * (5 * width + products + width)
    # END SOLUTION


# %% [markdown]
# **Fused**, compared with the minimum.

# %% grade_id="fused" points=1
check_numbers(
    count_fused,
    short_layer_questions.fused_layer,
    sizes,
    parts=("launches", "bytes"),
    within=0.0,
    unlike=short_layer_questions.FUSED_MISTAKES,
    name="fused",
)

# %% [markdown]
# ## Arrange a layer
#
# You've just done this by hand for one layer. Now write a function that does it for layers like this one, including
# layers with norms, gates or a second matmul. An operation is a dictionary, and its result has the same name as the
# operation:
#
# ```python
# {"name": "s", "kind": "elementwise", "reads": {"x": 64, "residual": 64}, "length": 64}
# {"name": "up", "kind": "product", "reads": {"up_weight": 6400, "s": 64}, "length": 100}
# ```
#
# `reads` lists how many elements of each tensor are read, and `length` is the number of elements in the result. A
# matmul has the kind `"product"`. You get the operations in an order in which they can run. One launch can do several
# of them if
#
# 1. at most one is a matmul, and it comes first, so that the rest are its epilogue;
# 2. it doesn't combine a matmul with a norm (kind `"norm"`), because a tile holds just a part of the row;
# 3. all results have the same length.
#
# Launches run one after another, so an operation must come after the ones whose results it reads. **The budget of a
# layer** is the minimum number of launches that its operations allow and, with that few launches, the minimum
# number of bytes. A launch reads every tensor it doesn't produce once, and writes the ones that another launch or the
# caller needs.


# %% grade_id="arrange-answer"
def arrange(operations, results):
    """Return the launches in order, each a list of names. The caller needs `results`."""
    # About 12 lines.
    # BEGIN SOLUTION
    launches, where = [], {}
    for new in operations:
        # It can't come before a launch that produces one of its inputs.
        first = max((where[tensor] for tensor in new["reads"] if tensor in where), default=0)
        at = len(launches)
        for number in range(first, len(launches)):
            kinds = {each["kind"] for each in launches[number]}
            same = all(each["length"] == new["length"] for each in launches[number])
            epilogue = "product" not in kinds or new["kind"] == "elementwise"
            if same and epilogue and new["kind"] != "product" and at == len(launches):
                at = number
        if at == len(launches):
            launches.append([])
        launches[at].append(new)
        where[new["name"]] = at
    return [[each["name"] for each in launch] for launch in launches]
    # END SOLUTION


# %% [markdown]
# **Is it within the budget?** This checks the simplest layer, one with everything in it, and a few more.

# %% grade_id="arrange" points=2
check_arrangement(arrange, layers_asked(4, 6), name="arrange")

# %% [markdown]
# ## Put the launches into graphs
#
# A model makes the same launches for every token, so you record them once and replay them. Now you get all the launches
# for one token, in order. Each one looks like this:
#
# ```python
# {"name": "gated", "reads": {"x": 64, "gate": 64}, "makes": {"y": 64}, "waits": False}
# ```
#
# `reads` and `makes` give the number of elements, all in fp32. If `waits` is true, the CPU has to read a value from the
# GPU before it can launch, so this launch can't be in a graph. All the others can. `tensors` gives the kind of
# everything that no launch makes:
#
# - `"fixed"`: it's always at the same address, such as a weight. Its values may change;
# - `"new"`: every token brings a different tensor, at a different address;
# - `"number"`: a Python number, a different one for every token. A launch reads it as one element.
#
# A graph stores addresses and numbers when you record it, and uses the same ones in every replay. A tensor made by a
# launch in a graph is always at the same address; one made by a launch outside isn't. So a graph has to read
# everything else that moves, and every number, from a **static buffer**: you copy the value there before the replay.
# If two graphs read it, they share one buffer. Copying a tensor is a launch that reads and writes all of it. For a
# number, it's a launch that writes one element.
#
# Return a dictionary with
#
# - `"graphs"`: as few graphs as possible, each a list of names of launches that follow each other;
# - `"copied"`: the names of the tensors and numbers you copy, and no others;
# - `"launches"` and `"bytes"`: the GPU's launches and bytes per token, including the copies.


# %% grade_id="graph-answer"
def plan_step(launches, tensors):
    """Return one token's graphs, the copied names, and the number of launches and bytes."""
    # About 16 lines.
    # BEGIN SOLUTION
    graphs, copied, inside, nbytes, recording = [], [], set(), 0, False
    for launch in launches:
        nbytes += 4 * (sum(launch["reads"].values()) + sum(launch["makes"].values()))
        if launch["waits"]:
            recording = False
            continue
        if not recording:
            graphs.append([])
        recording = True
        graphs[-1].append(launch["name"])
        for tensor, length in launch["reads"].items():
            # A tensor that no graph produces and that isn't fixed has a new address for the next
            # token.
            stays = tensor in inside or tensors.get(tensor) == "fixed"
            if not stays and tensor not in copied:
                copied.append(tensor)
                nbytes += 4 if tensors.get(tensor) == "number" else 8 * length
        inside |= set(launch["makes"])
    count = len(launches) + len(copied)
    return {"graphs": graphs, "copied": copied, "launches": count, "bytes": nbytes}
    # END SOLUTION


# %% [markdown]
# **Can the graphs be replayed?** This runs three tokens according to your plan. The graphs are recorded with the first
# one, and the other two must give the same results as eager. Your launches and bytes are compared with the meter's and
# with the minimum. If you have a GPU, your graphs are also captured with `torch.cuda.CUDAGraph`.

# %% grade_id="graph" points=2
check_graph_plan(plan_step, steps_asked(18, 4), name="graph")

# %% [markdown]
# Here is your own kernel in your own graphs. This isn't graded. Without a GPU, nothing can be captured, and the cell
# prints that.

# %% tags=["nbval-ignore-output"]
in_a_graph(plan_step, gated_norm)

# %% [markdown]
# ## Launched, or a graph
#
# Times are in microseconds, and `bandwidth` is in bytes per microsecond. Use the formulas at the top. They are the
# lesson's, with a graph of a single layer, so one layer pays for the whole call.


# %% grade_id="time-answer"
def microseconds(launches, nbytes, call, gap, bandwidth, graph):
    """Return the time of the launches, from Python or, if `graph` is True, as one CUDA graph."""
    # About 3 lines.
    # BEGIN SOLUTION
    if graph:
        return call + launches * gap + nbytes / bandwidth
    # The CPU makes one launch per `call`, so either the GPU waits for the CPU or it's the other way
    # round.
    return launches * max(call, gap + nbytes / launches / bandwidth)
    # END SOLUTION


# %% grade_id="budget-answer"
def most_launches(budget, nbytes, call, gap, bandwidth):
    """Count the launches of the longest graph that takes at most `budget`; 0 if no launch fits."""
    # About 3 lines.
    # BEGIN SOLUTION
    left = budget - call - nbytes / bandwidth
    # A launch that only fits in part doesn't count.
    return max(0, math.floor(left / gap))
    # END SOLUTION


# %% [markdown]
# **Times and budgets**, both for a slow CPU and for a slow GPU.

# %%
times = draw_questions(
    2, 8, (3, 6, 11), (3e4, 3e6, 3e8), (5.0, 8.0), (1.0, 1.5), (3e6, 4e6), (True, False)
)
times = [
    (3, 3e4, 5.0, 1.0, 3e6, False),
    (3, 3e8, 5.0, 1.0, 3e6, False),
    (3, 3e8, 5.0, 1.0, 3e6, True),
    (1, 3e4, 5.0, 1.0, 3e6, True),
    (7, 100.0, 0.3, 0.2, 1e6, False),
    *times,
]
times += draw_questions(
    6, 8, range(1, 200), (1e2, 1e5, 1e9), (0.3, 20.0), (0.2, 3.5), (1e6, 2e7), (True, False)
)
budgets = [(20.25, 3e6, 5.0, 1.0, 3e6), (20.0, 3e8, 5.0, 1.0, 3e6), (9000.5, 3e6, 5.0, 1.0, 3e6)]
# Exactly nine launches, and almost.
budgets += [(15.0, 3e6, 5.0, 1.0, 3e6), (14.9999, 3e6, 5.0, 1.0, 3e6)]
budgets += draw_questions(3, 6, (30.3, 40.6, 9.1), (3e6, 6e6), (5.0, 8.0), (0.75, 1.25), (3e6, 4e6))
budgets += draw_questions(7, 4, (112.3, 500.7), (1e2, 1e8), (0.3, 20.0), (0.7, 3.5), (1e6, 2e7))
budgets.append((70.3, 100.0, 20.0, 3.5, 2e7))

# %% grade_id="time" points=1
check_numbers(
    microseconds,
    short_layer_questions.microseconds,
    times,
    within=1e-6,
    unlike=short_layer_questions.TIME_MISTAKES,
    name="time",
)

# %% grade_id="budget" points=1
check_numbers(
    most_launches,
    short_layer_questions.most_launches,
    budgets,
    within=0.0,
    unlike=short_layer_questions.BUDGET_MISTAKES,
    name="budget",
)

# %% [markdown]
# **The hidden check** is empty here, and runs during grading.

# %% grade_id="other-values" points=1
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    gated_norm,
    reference,
    norm_cases(3, 1, seed=1729, widths=(2, 255, 2049), widest=5001, gate=2),
    unlike=GATED_NORM_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# To grade the saved notebook on the command line, run `fusion check exercises/18_short_kernels.ipynb`.
