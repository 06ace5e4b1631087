# %% [markdown]
# # Exercise 06: softmax and the k largest in one kernel [20 points]
#
# A sampler that makes a shortlist of words and the gate of a mixture of experts both need all the probabilities and the
# k largest of them. Your kernel will find both in **one launch** that reads each row once. Allow about 60 minutes.
# Lesson 06 covers the softmax; you'll have to work out the rest.
#
# **The formula**, for each row $x$, with $m$ its maximum:
#
# $$p_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}$$
#
# $$\text{values}_1 \ge \text{values}_2 \ge \dots \ge \text{values}_k \text{ the largest } p,
# \text{ and their indices}$$
#
# If elements are equal, the one with the **lower index** comes first. (Some elements are so far below the maximum that
# their probabilities round to the same number. Those may come in either order.) As in PyTorch, all probabilities and
# values of a row are NaN if it has a NaN or +infinity, or nothing except -infinity. The indices of such a row aren't
# checked.
#
# **The picture**, for one row and k = 2:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("06")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    TOPK_MISTAKES,
    Hints,
    check_offsets,
    check_passes,
    check_values,
    compare_with_ours,
    topk_cases,
)

# %% [markdown]
# ## The unfused reference
#
# torch.topk doesn't guarantee any order among equal elements, so the reference sorts instead.


# %%
def reference(x, k):
    p = torch.softmax(x, dim=-1)
    indices = x.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return p, p.gather(-1, indices), indices


device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(4, 1000, device=device)
unfused = measure(lambda: torch.softmax(x, dim=-1).topk(8))
each = unfused.bytes_total / x.numel()
print(f"softmax, then topk: {unfused.launches} launches, {each:.3g} B/element")

# %% [markdown]
# That count is generous, because on a GPU topk reads its input several times. **What's the minimum, with k = 8 of
# 1000?** Write it down: x in, p out, and a little more.

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.
#
# Use one program per row. If several elements are equal, `tl.argmax` returns the lowest index. k is known at compile
# time, so a loop over `tl.static_range(K)` is unrolled.


# %% grade_id="kernel"
@triton.jit
def softmax_topk_kernel(
    x_ptr, p_ptr, values_ptr, indices_ptr, cols, K: tl.constexpr, BLOCK: tl.constexpr
):
    # About 15 lines: load the row; its softmax; then K rounds, each of which finds a winner and
    # takes it out.
    # BEGIN SOLUTION
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # Positions past the row's end hold -inf, which can't be the maximum, and e^-inf adds nothing to
    # the sum.
    x = tl.load(x_ptr + row * cols + col, mask=exists, other=-float("inf")).to(tl.float32)
    # With the maximum subtracted, no exponential exceeds 1, so none overflows, and at least one is
    # 1.
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    tl.store(p_ptr + row * cols + col, p, mask=exists)
    # Past winners and padding hold -1, which is less than any probability. If we used x and -inf
    # instead of p and -1, a past winner would look like a column that was -inf to begin with, and
    # it could win again.
    left = tl.where(exists, p, -1.0)
    for place in tl.static_range(K):
        # Remove it by index, not by value, so that an equal element can still win later.
        winner = tl.argmax(left, axis=0)
        # The winner's p, which may be NaN. tl.max(left) would drop a NaN and return -1.
        tl.store(values_ptr + row * K + place, tl.sum(tl.where(col == winner, p, 0.0), axis=0))
        tl.store(indices_ptr + row * K + place, winner)
        left = tl.where(col == winner, -1.0, left)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x is a matrix (batch, vocabulary) or has more dimensions, with any strides, in float32, float16 or bfloat16. There can
# be any number of rows (including zero), up to 16,384 columns, and more than 2^31 elements. k is between 1 and 128, and
# at most the number of columns. The indices are int64, as in PyTorch.


# %% grade_id="launcher"
def softmax_topk(x, k):
    """(probabilities, values, indices) of the softmax over the last dimension, in one launch."""
    # About 8 lines: reshape x to rows, allocate three results, choose the block, launch.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    # The kernel finds row r at r * cols. A non-contiguous tensor is copied first.
    x = x.contiguous()
    p = torch.empty_like(x)
    values = torch.empty((*x.shape[:-1], k), dtype=x.dtype, device=x.device)
    indices = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    softmax_topk_kernel[(x.numel() // cols,)](
        x, p, values, indices, cols, K=k, BLOCK=block, num_warps=warps
    )
    return p, values, indices
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 15 of the 20 points; the other 5 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values={
        "Look at NaN": (
            "Which value does your round store if all of the row's p are NaN?",
            "tl.max drops NaN, so it returns what you put in the padding or in a past winner's "
            "place. Store the winner's own p: tl.sum(tl.where(col == winner, p, 0.0), axis=0).",
        ),
        r"right: result 1\b(.*\n)*.*(Look at (ties|the k rounds|elements of)|of them may win)": (
            "p is right, but the rounds aren't. Each round finds the largest probability left, "
            "stores it and its index, and removes it. How do you remove it?",
            "Take out the winner by its index, since `left == value` takes out all equal elements.",
            "What do you put in the winner's place? It must be less than everything that can still "
            "win, and a probability can be 0.",
        ),
        "": (
            "Result 1 is p, result 2 the values, result 3 the indices. Get p right first: subtract "
            "the row's maximum before the exponential, and divide by the sum.",
            "Then one round: tl.argmax for the index, the winner's p for the value, two stores. "
            "Take out the winner by its index.",
        ),
    },
    traffic=(
        "Load x once. The winners' values are in registers, so you don't have to load x or p "
        "again.",
        "It must be one launch, so you can't use torch.topk, or copy or convert the results "
        "afterwards. Allocate the results in their final dtype; tl.store converts.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets "
        "can pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** We try k from 1 to 70, ties, NaN, -inf, odd widths, views, three dtypes and one
# wide row.

# %% grade_id="values" points=8
check_values(softmax_topk, reference, topk_cases(seed=7), unlike=TOPK_MISTAKES, name="values")

# %% [markdown]
# **Is it fused?** It must be one launch that reads x once and writes the probabilities, values and indices once, in
# float32 and in bfloat16. It also mustn't spill registers for rows of 8192 on an A100.

# %% grade_id="traffic" points=6
wide = torch.randn(2, 8192, device=device)
check_passes(softmax_topk, (x, 8), reads=(1,), widest=(wide, 8), name="traffic")

# %% [markdown]
# **Can it handle a large tensor?** We test 2^22 rows of 1024 without allocating them: your launcher gets tensors that
# have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned
# off. Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop over the
# rest.


# %%
def rows_of(rows):
    return torch.randn(rows, 1024, device=device), 2


# %% grade_id="large" points=1
check_offsets(softmax_topk, rows_of, sizes=(8, 16), size=2**22, programs=108, name="large")

# %% grade_id="other-values" points=5
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    softmax_topk,
    reference,
    topk_cases(seed=1729, widths=(2, 255, 2049), widest=4097),
    unlike=TOPK_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.softmax_topk`. The prediction is based on your compiled code. If this machine has a GPU, it times
# both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(lambda x: softmax_topk(x, 8), CATALOGUE["softmax_topk"], (32768, 4096))

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/06_softmax_topk.ipynb`.
