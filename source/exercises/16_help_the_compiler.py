# %% [markdown]
# # Exercise 16: help the compiler [20 points]
#
# In this exercise you'll write a fused kernel for RMSNorm with a SiLU gate, and the pass that makes torch.compile use
# it. The pass is a function that reads a traced graph and lists the places where your kernel can be called. If it
# misses a place, you lose speed. If it finds one that isn't safe, the model's results are wrong. About 60 minutes,
# after lesson 16.
#
# **The formula**, for each row of $n$ elements:
#
# $$y = \mathrm{silu}\!\left(\frac{x}{\sqrt{\tfrac1n \sum x^2 + \varepsilon}} \cdot w\right) \cdot u$$
#
# **The picture**, a graph before the pass and after it:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("16")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    SILU_NORM_MISTAKES,
    Hints,
    activation_cases,
    check_offsets,
    check_passes,
    check_rewrites,
    check_values,
    graph_table,
    in_torch_compile,
    norm_cases,
    rewrite_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(x, up, weight, eps):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
    return torch.nn.functional.silu(y) * up


x, up = torch.randn(2, 8, 1000)
weight = torch.randn(1000)
unfused = measure(reference, x, up, weight, 1e-6)
print(f"{unfused.launches} launches, {unfused.bytes_total / x.numel():.3g} B/element")

# %% [markdown]
# ## Your answers
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 16 of the 20 points; the other
# 4 are for two hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Divide the sum of squares by cols, not by the block size. eps is inside the root.",
        "SiLU is y * sigmoid(y), where y is the normalised row times its weight. Multiply by up "
        "last.",
    ),
    traffic=(
        "x and up are read once, y is written once, in one launch. Load x into registers, and use "
        "it twice.",
        "Round once, at the store, and convert every load with .to(tl.float32).",
        "Registers spill if a thread holds too many columns, so use more warps for a larger block.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "tl.program_id(0).to(tl.int64), before you multiply anything by it.",
    ),
    finds=(
        "Work backwards: any mul could be the last one. Which of its arguments is a silu?",
        "Try both orders of every mul and add. A helper that returns (the one you want, the other) "
        "for each order saves you eight ifs.",
        "len(node['users']) is the number of readers. x and the result can have many, so check "
        "only the nodes between them. Don't test whether a size is an int.",
    ),
    leaves=(
        "The message names the condition that this place violates. Check it on the three "
        "arguments, once you know all of them.",
        "pow, mean, add, rsqrt, both inner muls and silu are inside, so each must have one reader.",
        "If the weight has a wider dtype, PyTorch's result is wider than your kernel's.",
    ),
)
hint

# %% [markdown]
# ## Your kernel
#
# x and up have the same shape, with any number of dimensions, any number of rows (including zero), and up to 16,384
# columns. All three tensors can have any strides, and share one dtype: float32, float16 or bfloat16. Compute in
# float32, and round once, at the end. There can be more than 2^31 elements.
#
# **What the kernel's answers may use:** torch, triton and math. Write the kernel in Triton, under `@triton.jit` alone;
# around it, you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check`
# and the grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def gated_norm_kernel(x_ptr, up_ptr, weight_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    # About 9 lines: one program per row.
    # BEGIN SOLUTION
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps) * weight
    tl.store(y_ptr + start + col, y * tl.sigmoid(y) * up, mask=exists)
    # END SOLUTION


# %% grade_id="launcher"
def gated_norm(x, up, weight, eps):
    """silu(rms_norm(x, eps) * weight) * up over the last dimension, in one launch."""
    # About 5 lines.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    x, up, weight = x.contiguous(), up.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    gated_norm_kernel[(x.numel() // cols,)](
        x, up, weight, y, cols, eps, BLOCK=block, num_warps=warps
    )
    return y
    # END SOLUTION


# %% [markdown]
# **Does the kernel compute the right thing?** We try odd widths, views, NaN, three dtypes, one wide row, and large and
# tiny weights.

# %% grade_id="values" points=3
asked = norm_cases(2, 1, seed=16, one_rounding=True, strided_vectors=True) + activation_cases(
    2, seed=16
)
check_values(gated_norm, reference, asked, unlike=SILU_NORM_MISTAKES, name="values")

# %% [markdown]
# **Is it fused?** It should be one launch that reads x and up once and writes the result once, in float32 and in
# bfloat16. It mustn't spill registers for rows of 8192 on an A100.

# %% grade_id="traffic" points=2
wide = *torch.randn(2, 2, 8192), torch.randn(8192), 1e-6
check_passes(gated_norm, (x, up, weight, 1e-6), reads=(1, 1, 8), widest=wide, name="traffic")

# %% [markdown]
# **Does it work on a large tensor?** We check 2^22 rows of 1024 without allocating them: your launcher gets tensors
# that have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores
# turned off. Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop
# over the rest.


# %%
def rows_of(rows):
    return *torch.randn(2, rows, 1024), torch.randn(1024), 1e-6


# %% grade_id="large" points=1
check_offsets(gated_norm, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% [markdown]
# ## A graph of plain values
#
# Here is the graph that torch.compile passes to its backend, written as dictionaries. In `args`, a string is the name
# of another node, and numbers are constants. `users` lists the nodes that read the result. `mul` and `add` may have
# their arguments in either order. If torch.compile leaves a size open, you'll see a string such as `"s75"`.

# %%
graph_table(lambda x, weight, up: reference(x, up, weight, 1e-6), x, weight, up)

# %% [markdown]
# ## Your pass
#
# Return a list with one dictionary per place. It has the names of the nodes `x`, `up`, `weight` and `result`, and the
# number `eps`. For the graph above, you'd return
#
# ```python
# [{"x": "x_1", "up": "up_1", "weight": "weight_1", "eps": 1e-06, "result": "mul_2"}]
# ```
#
# A place only counts if it's safe to call the kernel there:
#
# 1. **nothing inside is read elsewhere**, because the kernel stores only its result, and x, up and weight come from
#    outside;
# 2. **dtypes**: x, up and weight all have the same dtype, which is float32, float16 or bfloat16;
# 3. **shapes**: up has x's shape, weight has the size of the last dimension, and the mean is over that dimension. Sizes
#    may be strings.
#
# Any number of nodes may read x and the result. **What this answer may use:** its argument, `math` and plain Python,
# but no classes.


# %% grade_id="pass"
def find_places(graph):
    """A list of dictionaries with the keys x, up, weight, eps and result."""
    # About 35 lines, with a function or two of your own.
    # BEGIN SOLUTION
    nodes = {node["name"]: node for node in graph}

    def inner(name, op):
        """Return the node of this name if `op` makes it and only one node reads it, or {}."""
        node = nodes.get(name, {}) if isinstance(name, str) else {}
        return node if node and node["op"] == op and len(node["users"]) == 1 else {}

    def split(node, op):
        """List (a node made by `op`, the other argument) for each argument that `op` makes."""
        if not node:
            return []
        one, other = node["args"][:2]
        return [(inner(a, op), b) for a, b in ((one, other), (other, one)) if inner(a, op)]

    def root_of(rsqrt):
        """(x, eps) of rsqrt(mean(x^2) + eps), or (None, None)."""
        for mean, eps in split(inner(rsqrt["args"][0], "add"), "mean"):
            square = inner(mean["args"][0], "pow")
            over_last = mean["args"][1:] == [[-1], True]
            if square and square["args"][1] == 2 and over_last and isinstance(eps, float):
                return square["args"][0], eps
        return None, None

    found = []
    for node in graph:
        if node["op"] != "mul":
            continue
        for silu, up in split(node, "silu"):
            for scaled, weight in split(inner(silu["args"][0], "mul"), "mul"):
                for rsqrt, x in split(scaled, "rsqrt"):
                    source, eps = root_of(rsqrt)
                    # SiLU's result times itself has up inside the part that the kernel replaces.
                    if source == x and up != silu["name"] and fits(nodes, x, up, weight):
                        place = {"x": x, "up": up, "weight": weight, "eps": eps}
                        found.append(place | {"result": node["name"]})
    return found


def fits(nodes, x, up, weight):
    """Return whether the kernel takes these three."""
    if any(not isinstance(name, str) or name not in nodes for name in (x, up, weight)):
        return False
    dtypes = {nodes[name]["dtype"] for name in (x, up, weight)}
    one = len(dtypes) == 1 and dtypes <= {"float32", "float16", "bfloat16"}
    # Only compare sizes, don't compute with them: they may be symbols.
    shape = nodes[x]["shape"]
    return one and nodes[up]["shape"] == shape and nodes[weight]["shape"] == shape[-1:]
    # END SOLUTION


# %% [markdown]
# **Does the pass find every place?** We rewrite the graph at each place that you return, and compare its values, nodes
# and metered bytes with the original's.

# %% grade_id="finds" points=5
check_rewrites(find_places, rewrite_cases(16, places=True), name="finds")

# %% [markdown]
# **Does it skip places that only look right?** They have values that are read elsewhere, or the wrong dtypes, shapes or
# means.

# %% grade_id="leaves" points=5
check_rewrites(find_places, rewrite_cases(16, places=False), name="leaves")

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-values" points=2
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    gated_norm,
    reference,
    norm_cases(
        2,
        1,
        seed=1729,
        widths=(2, 255, 2049),
        widest=5001,
        one_rounding=True,
        strided_vectors=True,
    ),
    unlike=SILU_NORM_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% grade_id="other-graphs" points=2
# Grading checks other graphs here.
# BEGIN HIDDEN TESTS
other_graphs = [
    case for places in (True, False) for case in rewrite_cases(1729, places=places, rows=3, cols=65)
]
check_rewrites(find_places, other_graphs, name="other-graphs")
# END HIDDEN TESTS

# %% [markdown]
# ## In torch.compile
#
# Not graded. Once the checks above pass, run this cell to compile a layer with torch.compile, using your pass as the
# backend. It prints the rewritten graph, and the metered bytes before and after.

# %% tags=["nbval-ignore-output"]
in_torch_compile(
    find_places,
    gated_norm,
    lambda x, up, weight: x + reference(x, up, weight, 1e-6),
    *(x, up, weight),
)

# %% [markdown]
# On the command line, `fusion check exercises/16_help_the_compiler.ipynb` grades the saved notebook.
