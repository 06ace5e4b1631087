# %% [markdown]
# # Exercise 17: flash-decoding in two kernels [20 points]
#
# You have one query per head and thousands of keys. Split the keys across programs, then merge the programs' results.
# You get **two launches** and may read each key and value once. About 60 minutes. Lesson 17 explains the maths.
# In this exercise the splits have different lengths, and some are empty.
#
# **The formula**, for each head, where `i` runs over all of its keys:
#
# $$y = \sum_i p_i v_i, \qquad p = \text{softmax}(q \cdot k_i / \sqrt{dim})$$
#
# Split $s$ owns the keys from `bounds[s]` up to but not including `bounds[s + 1]`. It produces a maximum $m_s$, a sum
# $t_s$ and the weighted sum of its values $a_s$. The lesson's splits divide theirs by their own sum. Here, only the
# merge divides:
#
# $$y = \frac{\sum_s e^{m_s - m} a_s}{\sum_s e^{m_s - m} t_s}, \qquad m = \max_s m_s$$
#
# For a head without keys, the result is 0. As in PyTorch, NaN stays NaN, even in a value with a weight of 0.
#
# **The picture**, for bounds of 0, 5, 5, 8:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("17")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    SPLIT_MISTAKES,
    Hints,
    check_offsets,
    check_split_traffic,
    check_values,
    split_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(q, k, v, bounds):
    if k.shape[1] == 0:
        return torch.zeros_like(q)
    scores = (q[:, None, :] * k).sum(-1) * q.shape[-1] ** -0.5
    return (torch.softmax(scores, dim=-1)[:, :, None] * v).sum(1)


device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v = (torch.randn(shape, device=device) for shape in ((4, 64), (4, 256, 64), (4, 256, 64)))
bounds = torch.tensor([0, 90, 90, 200, 256], device=device)
unfused = measure(reference, q, k, v, bounds)
each = unfused.bytes_total / (2 * k.nbytes)
print(f"PyTorch: {unfused.launches} launches, {each:.3g} times the bytes of k and v")

# %% [markdown]
# **What's the minimum with four splits and partial results in float32?** Write it down as a multiple of the size of k
# and v. You have to read both once. For each split and head, you also write and read back whatever the merge needs.
#
# <details><summary>Answer</summary>About 1.03 times. The merge needs dim + 2 values per split and head, written and
# read back. Each split also reads its head's query, and the result is written once.</details>
# <!-- given 1.03 times: 1 + (16 x 66 x 2 + 16 x 64 + 4 x 64) x 4 bytes over 524,288 -->

# %% [markdown]
# ## Your kernel for the splits
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.
#
# Each program handles one split of one head. It loads `bounds[s]` and `bounds[s + 1]`, loops over blocks of keys, and
# stores its maximum, its sum and its weighted values in float32. Compute in float32 too, and round once, when the merge
# stores the result. You decide how to lay the partial results out in memory.


# %% grade_id="split"
@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, bounds_ptr, acc_ptr, peak_ptr, total_ptr, keys, splits, scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # About 20 lines: the split's bounds and the query; a loop over blocks of keys; three stores.
    # BEGIN SOLUTION
    # int64 before the multiplication: head * keys * DIM passes 2**31 in large caches.
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, DIM)
    q = tl.load(q_ptr + head * DIM + d).to(tl.float32)
    first = tl.load(bounds_ptr + split)
    last = tl.load(bounds_ptr + split + 1)
    peak = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((DIM,), tl.float32)
    # An empty split never enters the loop, so it stores -inf, 0 and 0, just what the merge needs.
    for start in range(first, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        inside = key < last
        at = (head * keys + key[:, None]) * DIM + d[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
        s = tl.sum(q[None, :] * k, axis=1) * scale
        # Keys past the split's end belong to another program: mask them with -inf, not 0, or they
        # count.
        s = tl.where(inside, s, -float("inf"))
        grown = tl.maximum(peak, tl.max(s, axis=0))
        e = tl.exp(s - grown)
        shrink = tl.exp(peak - grown)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(e[:, None] * v, axis=0)
        total = total * shrink + tl.sum(e, axis=0)
        peak = grown
    part = head * splits + split
    tl.store(acc_ptr + part * DIM + d, acc)
    tl.store(peak_ptr + part + tl.arange(0, 1), peak)
    tl.store(total_ptr + part + tl.arange(0, 1), total)
    # END SOLUTION


# %% [markdown]
# ## Your kernel for the merge
#
# Each program handles one head. The number of splits doesn't have to be a power of two.


# %% grade_id="merge"
@triton.jit
def merge_kernel(
    acc_ptr, peak_ptr, total_ptr, y_ptr, splits, DIM: tl.constexpr, SPLITS: tl.constexpr
):
    # About 12 lines: all maxima, sums and vectors of the head; the shares; one store.
    # BEGIN SOLUTION
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    exists = split < splits
    part = head * splits + split
    peak = tl.load(peak_ptr + part, mask=exists, other=-float("inf"))
    total = tl.load(total_ptr + part, mask=exists, other=0.0)
    # A finite number below any score: if every split is empty, -inf - -inf would be NaN.
    top = tl.maximum(tl.max(peak, axis=0), -1e38)
    share = tl.exp(peak - top)
    acc = tl.load(acc_ptr + part[:, None] * DIM + d[None, :], mask=exists[:, None], other=0.0)
    total = tl.sum(total * share, axis=0)
    y = tl.sum(acc * share[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(y_ptr + head * DIM + d, y)
    # END SOLUTION


# %% [markdown]
# ## Their launcher
#
# q has shape (heads, dim), and k and v have shape (heads, keys, dim). They are float32, float16 or bfloat16, and dim is
# 16, 32, 64 or 128. q is contiguous, and k and v may be views. No score is -infinity unless another one in the same
# head is +infinity. `bounds` is int64, lives on the same device, and ascends from 0 to the number of keys. Don't read
# it in the launcher. Its values are on the GPU, so the CPU would have to wait for them.


# %% grade_id="launcher"
def flash_decode(q, k, v, bounds):
    """softmax(q k^T / sqrt(dim)) v for each head, (heads, dim), in two launches."""
    # About 10 lines: allocate partial results and the result; two launches.
    # BEGIN SOLUTION
    heads, keys, dim = k.shape
    splits = bounds.shape[0] - 1
    # The kernel finds key j of head h at (h * keys + j) * dim.
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    acc = torch.empty((heads, splits, dim), dtype=torch.float32, device=q.device)
    peak = torch.empty((heads, splits), dtype=torch.float32, device=q.device)
    total = torch.empty((heads, splits), dtype=torch.float32, device=q.device)
    y = torch.empty_like(q)
    split_kernel[(heads, splits)](
        q, k, v, bounds, acc, peak, total, keys, splits, dim**-0.5, DIM=dim, BLOCK=32
    )
    merge_kernel[(heads,)](
        acc, peak, total, y, splits, DIM=dim, SPLITS=triton.next_power_of_2(splits)
    )
    return y
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 15 of the 20 points; the other 5 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Start with a single split. It's the loop from lesson 10 with one query. Then merge two "
        "equal splits.",
        "Each split's results are relative to its own maximum. What do you multiply its sum and "
        "its vector by to make them relative to the common maximum?",
        "An empty split stores -inf, 0 and 0. Where could your split or your merge compute "
        "-inf - -inf?",
    ),
    traffic=(
        "Read k and v once each. The last block of a split overlaps the next split, so mask it "
        "with the split's end.",
        "For each split and head, the merge needs dim values, a maximum and a sum, and reads them "
        "once.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets can "
        "exceed 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Are the results right?** This checks unequal and empty splits, scores far from zero, views and three dtypes.

# %% grade_id="values" points=8
check_values(
    flash_decode,
    reference,
    split_cases(seed=17, many=True),
    unlike=SPLIT_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is everything read just once?** There should be two launches, one read of k and v, and little else.

# %% grade_id="traffic" points=6
check_split_traffic(flash_decode, (q, k, v, bounds), name="traffic")

# %% [markdown]
# **Does it work for a large cache?** The check uses 2^16 heads of 512 keys without allocating them: your launcher gets
# tensors that have a shape but no memory, and we run only the first and the last program of each launch, with loads and
# stores turned off. Your grid has to grow with the number of heads, or have at least 108 programs (one per SM of an
# A100) that loop over all of them.


# %%
def heads_of(heads):
    kept = torch.randn(2, heads, 512, 128, device=device)
    return torch.randn(heads, 128, device=device), *kept, torch.tensor([0, 512], device=device)


# %% grade_id="large" points=1
check_offsets(flash_decode, heads_of, sizes=(1, 2), size=2**16, programs=108, name="large")

# %% grade_id="other-values" points=5
# Grading checks other lengths and values here.
# BEGIN HIDDEN TESTS
check_values(
    flash_decode,
    reference,
    split_cases(seed=1729, lengths=(31, 257)),
    unlike=SPLIT_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# To grade the saved notebook on the command line, run `fusion check exercises/17_flash_decoding.ipynb`.
