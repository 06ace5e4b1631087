# %% [markdown]
# # Exercise 18: short kernels of a decoder layer [15 points]
#
# When a decoder layer serves one token, the operations between its products are so short that launching them takes
# longer than moving their bytes. Fuse three of them, an addition, a norm and a gate, into one kernel. Then predict the
# launches, bytes and time of a layer, arrange its operations in as few launches as possible, and count the launches
# that a time budget allows. About 55 minutes, after exercise 05b.
#
# **The formulas**, for each row of $n$ elements:
#
# $$s = x + r, \qquad y = \frac{s}{\sqrt{\tfrac1n \sum s^2 + \varepsilon}} \cdot w \cdot g \cdot \sigma(g)$$
#
# and for the time of $k$ launches that move $B$ bytes at the bandwidth $W$:
#
# $$t_\text{launched} = k \cdot \max\Big(\text{call},\ \text{gap} + \frac{B / k}{W}\Big), \qquad
# t_\text{graph} = \text{call} + k \cdot \text{gap} + \frac{B}{W}$$
#
# **The picture**:
#
# ```text
#   x  ----\
#           + --> s --+-----------------------> s   the next residual
#   r  ----/          |
#                     +--> / rms, * w --> * --> y   what the next product reads
#                                         ^
#   g  ------------------> g * sigmoid(g) +
#
#   launched    CPU  |call|call|call|            the CPU is slower: kernels wait for it
#               GPU       |k|  |k|  |k|
#   graph       CPU  |call|
#               GPU       |k|k|k|                only the gaps are left
# ```

# %%
import math  # for your answers

import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    Hints,
    check_arrangement,
    check_counts,
    check_numbers,
    check_offsets,
    check_passes,
    check_values,
    draw_questions,
    layers_asked,
    norm_cases,
)

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
# **How few can it be?** Write down launches and bytes per element before you go on.
#
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Kernels are Triton; around them, allocate, view, copy and launch.
# PyTorch arithmetic earns nothing; `fusion check` and the grading refuse any other import or name and show the line.


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
    # The gate never leaves the registers either: silu in memory would cost a write and a read.
    tl.store(y_ptr + start + col, normed * (gate * tl.sigmoid(gate)), mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x, the residual and the gate have one shape and one dtype, any number of dimensions, any strides, any number of rows.


# %% grade_id="launcher"
def gated_norm(x, residual, gate, weight, eps):
    """(y, s): RMSNorm of x + residual times silu(gate), and the sum, in one launch."""
    # About 6 lines: lay all out in rows, make room for two results, choose the block, launch.
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
# ## What one token's layer launches
#
# Below is a small layer of one token: an addition, a gate, two products and the residual. Each operation is one launch;
# a product reads its weight, `hidden` x `width` numbers, and a vector. All tensors are float32. From here on answers
# may use their arguments and `math`.


# %%
def short_layer(x, residual, gate, up, down):
    s = x + residual
    gated = torch.nn.functional.silu(s) * gate
    return gated @ up.t() @ down.t() + s


# %% grade_id="count-layer"
def count_layer(width, hidden):
    """Launches, bytes of short_layer: up is (hidden, width), down is (width, hidden)."""
    # About 3 lines.
    # BEGIN SOLUTION
    # add 3, silu 2, times gate 3, add 3: eleven vectors of `width`; a matmul: weight, two vectors.
    products = 2 * (hidden * width + hidden + width)
    return 6, 4 * (11 * width + products)
    # END SOLUTION


# %% [markdown]
# Now fuse the operations around the products: addition, silu and gate are one kernel, and the last addition is the
# second product's epilogue. Each product is a launch of its own.


# %% grade_id="count-fused"
def count_fused(width, hidden):
    """Launches, bytes of the same layer, fused."""
    # About 3 lines.
    # BEGIN SOLUTION
    # One kernel: x, residual, gate in; s, gated out. The second matmul reads s, writes the result.
    products = 2 * (hidden * width + hidden + width)
    return 3, 4 * (5 * width + products + width)
    # END SOLUTION


# %% [markdown]
# ## Arrange a layer
#
# That was by hand, for one layer. Now write it for any: some have norms, gates or a second product. An operation is a
# dictionary, and the result has the operation's name:
#
# ```python
# {"name": "s", "kind": "elementwise", "reads": {"x": 64, "residual": 64}, "length": 64}
# {"name": "up", "kind": "product", "reads": {"up_weight": 6400, "s": 64}, "length": 100}
# ```
#
# `reads` has the elements of each tensor read, `length` those of the result. Operations are given in an order that can
# run. One launch can do several of them if
#
# 1. at most one is a product, and it comes first: the rest is its epilogue;
# 2. none is a norm, if one is a product: a tile has only a part of the row (kind `"norm"`);
# 3. all results have the same length.
#
# Launches run one after another, so each operation comes after those whose results it reads. **The budget of a layer**
# is the fewest launches that its operations allow and, with these, the fewest bytes: a launch reads each tensor that
# it doesn't make once, and writes what another launch or the caller needs.


# %% grade_id="arrange-answer"
def arrange(operations, results):
    """A list of launches, each a list of names, in running order. The caller needs `results`."""
    # About 12 lines.
    # BEGIN SOLUTION
    launches, where = [], {}
    for new in operations:
        # Not before any launch that makes what it reads.
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
# ## Launched, or a graph
#
# Times are in microseconds, `bandwidth` is in bytes per microsecond. Use the formulas at the top.


# %% grade_id="time-answer"
def microseconds(launches, nbytes, call, gap, bandwidth, graph):
    """Time of the launches, from Python or, where `graph` is True, as one CUDA graph."""
    # About 3 lines.
    # BEGIN SOLUTION
    if graph:
        return call + launches * gap + nbytes / bandwidth
    # The CPU hands out a launch every `call`; the GPU waits for it or it waits for the GPU.
    return launches * max(call, gap + nbytes / launches / bandwidth)
    # END SOLUTION


# %% grade_id="budget-answer"
def most_launches(budget, nbytes, call, gap, bandwidth):
    """Count the launches of the longest graph that takes at most `budget`; 0 if no launch fits."""
    # About 3 lines.
    # BEGIN SOLUTION
    left = budget - call - nbytes / bandwidth
    # A launch that does not fit as a whole does not fit.
    return max(0, math.floor(left / gap))
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run them in order, as often as you like. Stuck? Run `hint(1)` in a cell of your own, then `hint(2)`: they are about
# the check that failed last.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Which of the two results is wrong? The message names it: result 1 is y, result 2 is s.",
        "The mean square divides by the row's elements; silu(g) is g times its sigmoid, in fp32.",
        "The gate multiplies y alone: s goes to the next layer as it is.",
    ),
    traffic=(
        "Count loads and stores: x, residual, gate and weight in; s and y out; each on one line.",
        "Do not load back what you have just stored, and leave silu in registers.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product can pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
    counts=(
        "One line per launch: which vectors does it read, which does it write?",
        "A product reads its weight and a vector, and writes a vector.",
        "Fused: a tensor that only its own kernel needs is not written or read. s is needed twice.",
    ),
    arrange=(
        "Take the operations one by one. Which launch makes the latest of what this one reads?",
        "An operation joins that launch or the first later one whose rules it keeps, "
        "or begins a new one.",
        "A product begins a launch, always. A norm can't join a product's launch, "
        "an elementwise operation can.",
    ),
    time=(
        "From Python, each launch takes the longer of two: the call, or the gap and the bytes.",
        "A graph is called once, and each of its kernels has its gap.",
        "Budget: subtract the call and the time of the bytes, then count whole gaps.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** Both results; odd widths, views, NaN, three dtypes, one wide row.

# %% grade_id="values" points=3
check_values(gated_norm, reference, norm_cases(3, 1, seed=6), name="values")

# %% [markdown]
# **Is it fused?** One launch; every input is read once, both results are written once; in float32 and in bfloat16.
# And no register spills in rows of 8192 on an A100.

# %% grade_id="traffic" points=3
wide = *torch.randn(3, 2, 8192, device=device), torch.randn(8192, device=device), 1e-6
check_passes(
    gated_norm, (x, residual, gate, weight, 1e-6), reads=(1, 1, 1, 8), widest=wide, name="traffic"
)

# %% [markdown]
# **Does it reach a large tensor?** 2^22 rows of 1024, without allocating them.


# %%
def rows_of(rows):
    return *torch.randn(3, rows, 1024, device=device), torch.randn(1024, device=device), 1e-6


# %% grade_id="large" points=1
check_offsets(gated_norm, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% [markdown]
# **Launches and bytes**, as the meter counts the layer, and of the fused one.


# %%
def layer_inputs(width, hidden):
    vectors = torch.randn(3, 1, width)
    return *vectors, torch.randn(hidden, width), torch.randn(width, hidden)


def fused_layer(width, hidden):
    return 3, 4 * (width * 6 + 2 * (hidden * width + hidden + width))


sizes = [(4, 8), *draw_questions(1, 4, (8, 24, 96), (16, 40, 200))]

# %% grade_id="counts" points=1
check_counts(
    count_layer, short_layer, layer_inputs, sizes, parts=("launches", "bytes"), name="counts"
)

# %% grade_id="fused" points=1
check_numbers(
    count_fused, fused_layer, sizes, parts=("launches", "bytes"), within=0.0, name="fused"
)

# %% [markdown]
# **Within the budget?** The plainest layer, one with every part, and others.

# %% grade_id="arrange" points=2
check_arrangement(arrange, layers_asked(4, 6), name="arrange")

# %% [markdown]
# **Times and budgets**: where the CPU is the slower one, and where the GPU is.


# %%
def right_time(launches, nbytes, call, gap, bandwidth, graph):
    moved = nbytes / bandwidth
    return call + launches * gap + moved if graph else max(launches * call, launches * gap + moved)


def right_budget(budget, nbytes, call, gap, bandwidth):
    return max(0, int((budget - call - nbytes / bandwidth) // gap))


times = draw_questions(
    2, 8, (3, 6, 11), (3e4, 3e6, 3e8), (5.0, 8.0), (1.0, 1.5), (3e6, 4e6), (True, False)
)
times = [
    (3, 3e4, 5.0, 1.0, 3e6, False),
    (3, 3e8, 5.0, 1.0, 3e6, False),
    (3, 3e8, 5.0, 1.0, 3e6, True),
    *times,
]
budgets = [(20.25, 3e6, 5.0, 1.0, 3e6), (20.0, 3e8, 5.0, 1.0, 3e6)]
budgets += draw_questions(3, 6, (30.3, 40.6, 9.1), (3e6, 6e6), (5.0, 8.0), (0.75, 1.25), (3e6, 4e6))

# %% grade_id="time" points=2
check_numbers(microseconds, right_time, times, within=1e-6, name="time")

# %% grade_id="budget" points=1
check_numbers(most_launches, right_budget, budgets, within=0.0, name="budget")

# %% grade_id="other-values" points=1
# Other widths and other numbers are checked here when the exercise is graded.
# BEGIN HIDDEN TESTS
check_values(
    gated_norm,
    reference,
    norm_cases(3, 1, seed=1729, widths=(2, 255, 2049), widest=5001),
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/18_short_kernels.ipynb` grades the saved notebook.
