# %% [markdown]
# # Exercise 05b: residual addition and RMSNorm in one kernel [10 points]
#
# Every layer of a Llama begins like this: it adds its input to the residual stream and normalises the sum. Both the
# norm and the next layer need the sum, so your kernel has **two results**. About 25 minutes, after exercise 05.
#
# **The formula**, for each row of $n$ elements:
#
# $$s = x + r, \qquad y = \frac{s}{\sqrt{\tfrac1n \sum s^2 + \varepsilon}} \cdot w$$
#
# **The picture**:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("05b")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    RESIDUAL_NORM_MISTAKES,
    Hints,
    check_offsets,
    check_passes,
    check_values,
    compare_with_ours,
    norm_cases,
)

# %% [markdown]
# ## The unfused reference
#
# The addition writes s to memory, and then the norm reads it back.


# %%
def reference(x, residual, weight, eps):
    s = x + residual
    return s * (s.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight, s


device = "cuda" if torch.cuda.is_available() else "cpu"
x, residual = torch.randn(8, 1000, device=device), torch.randn(8, 1000, device=device)
weight = torch.randn(1000, device=device)
unfused = measure(reference, x, residual, weight, 1e-6)
print(f"{unfused.launches} launches, {unfused.bytes_total / x.numel():.3g} B/element")

# %% [markdown]
# **How many bytes per element have to move?** There are two tensors in and two out. Write your answer down.

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def residual_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, sum_ptr, cols, eps, BLOCK: tl.constexpr
):
    # About 11 lines: load both rows, add, store the sum; its mean square; weight; store y.
    # BEGIN SOLUTION
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # Positions past the row's end hold 0, which adds nothing to a sum of squares. Unlike LayerNorm,
    # we subtract nothing from them, so we don't need tl.where.
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    s = x + residual
    # Store a copy for the next layer. The norm uses the sum in registers, which hasn't been
    # rounded.
    tl.store(sum_ptr + start + col, s, mask=exists)
    mean_square = tl.sum(s * s, axis=0) / cols
    weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)
    tl.store(y_ptr + start + col, s * tl.rsqrt(mean_square + eps) * weight, mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x and the residual have the same shape and dtype (float32, float16 or bfloat16), with any number of dimensions, any
# strides, any number of rows and up to 16,384 columns. There can be more than 2^31 elements. The weight is a contiguous
# vector in the same dtype. Compute in float32, so that each result is rounded only once, when you store it.


# %% grade_id="launcher"
def residual_rms_norm(x, residual, weight, eps):
    """(y, s): RMSNorm of x + residual over the last dimension, and the sum, in one launch."""
    # About 6 lines: reshape both to rows, allocate two results, choose the block, launch.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    # One of them may be contiguous and the other not, so handle each.
    x, residual = x.contiguous(), residual.contiguous()
    # Allocate two tensors and don't overwrite the residual: the caller may still need it, for
    # example for a gradient.
    y, s = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    residual_rms_norm_kernel[(x.numel() // cols,)](
        x, residual, weight, y, s, cols, eps, BLOCK=block, num_warps=warps
    )
    return y, s
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 8 of the 10 points; the other 2 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Which of the two results is wrong? In the message, result 1 is y and result 2 is s.",
        "For the mean square, divide by the number of elements in the row, cols, not by BLOCK. And "
        "don't subtract the mean: that would be LayerNorm.",
    ),
    traffic=(
        "Count your loads and stores: x, residual and weight in; s and y out; one line for each.",
        "The sum is still in registers when the norm begins, so don't reload what you've just "
        "stored.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets "
        "can pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** We check both results for odd widths, views, NaN, three dtypes and one wide row.

# %% grade_id="values" points=3
check_values(
    residual_rms_norm,
    reference,
    norm_cases(2, 1, seed=6, one_rounding=True, short=True),
    unlike=RESIDUAL_NORM_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is it fused?** It must be one launch that reads x and the residual once and writes both results once, in float32 and
# in bfloat16. It also mustn't spill registers for rows of 8192 on an A100.

# %% grade_id="traffic" points=4
wide = *torch.randn(2, 2, 8192, device=device), torch.randn(8192, device=device), 1e-6
check_passes(
    residual_rms_norm, (x, residual, weight, 1e-6), reads=(1, 1, 8), widest=wide, name="traffic"
)

# %% [markdown]
# **Can it handle a large tensor?** We test 2^22 rows of 1024 without allocating them: your launcher gets tensors that
# have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned
# off. Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop over the
# rest.


# %%
def rows_of(rows):
    return *torch.randn(2, rows, 1024, device=device), torch.randn(1024, device=device), 1e-6


# %% grade_id="large" points=1
check_offsets(residual_rms_norm, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% grade_id="other-values" points=2
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    residual_rms_norm,
    reference,
    norm_cases(2, 1, seed=1729, widths=(2, 255, 2049), widest=5001, one_rounding=True, short=True),
    unlike=RESIDUAL_NORM_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.residual_rms_norm`. The prediction is based on your compiled code. If this machine has a GPU, it
# times both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(
    lambda x, residual, weight: residual_rms_norm(x, residual, weight, 1e-6),
    CATALOGUE["residual_rms_norm"],
    (32768, 4096),
)

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/05b_residual_rms_norm.ipynb`.
