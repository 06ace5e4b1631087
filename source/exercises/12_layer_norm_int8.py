# %% [markdown]
# # Exercise 12: LayerNorm and int8 in one kernel [15 points]
#
# An int8 matmul takes normalised rows at one byte per element, and one scale per row that turns the bytes (the codes)
# back into values. You'll compute both in **one launch** that reads each row once. Allow about 40 minutes. You'll find
# everything you need in lesson 12, and the norm in lesson 05.
#
# **The formula**, for each row $x$ of $n$ elements:
#
# $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \cdot w + b, \qquad
# s = \frac{\text{clip}}{127} \cdot \max\big(\max_i |y_i|,\, 10^{-12}\big)$$
#
# $$q = \text{round}(y / s), \text{ kept within } \pm 127$$
#
# `clip`, from 0 to 1, is the fraction of the row's largest magnitude that the codes cover. Below 1, the few largest
# values are clamped to 127, and the many small ones get finer steps. Round to the nearest code, and a tie to the
# **even** one. If a row contains NaN or infinity, make its scale NaN, so that it can't be mistaken for data, and its
# codes 0.
#
# **The picture**, for one row, with clip 1:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("12")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    INT8_MISTAKES,
    Hints,
    check_offsets,
    check_passes,
    check_values,
    code_cases,
    compare_with_ours,
    quantised_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(x, weight, bias, eps, clip):
    single = torch.promote_types(x.dtype, torch.float32)
    x, weight, bias = x.to(single), weight.to(single), bias.to(single)
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    largest = y.abs().amax(dim=-1, keepdim=True)
    scale = clip * largest.clamp_min(1e-12) / 127
    q = (y / scale).round().clamp(-127, 127).nan_to_num(0.0)
    return q.to(torch.int8), scale


device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(8, 1000, device=device)
weight, bias = torch.randn(2, 1000, device=device)
unfused = measure(reference, x, weight, bias, 1e-5, 1.0)
print(f"{unfused.launches} launches, {unfused.bytes_total / x.numel():.3g} B/element")

# %% [markdown]
# **How many bytes per element remain if the row never leaves the registers?** Write your number down, and remember that
# not every value takes four bytes.

# %% [markdown]
# ## Your kernel
#
# Use one program per row and compute in float32, whatever x's dtype is. Two things may surprise you:
#
# - Converting a float to int8 (`.to(tl.int8)`) drops its fraction, and if the value doesn't fit, the **result is
#   undefined**. Here you get the low byte, so 200 becomes -56, but a GPU may return another value. NaN becomes 0.
# - `tl.max`, `tl.maximum` and `tl.clamp` **drop NaN**, on a GPU as well as here, and return the other value. `tl.max`
#   only returns NaN if it has nothing else. You can replace the other two with `tl.where(a < b, b, a)`, which keeps a
#   NaN in `a` because no comparison with NaN is true.
#
# To round, add $1.5 \cdot 2^{23}$ (12582912.0) and subtract it again. At that size float32 has no bits for fractions,
# so the addition itself rounds to nearest, ties to even.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def layer_norm_int8_kernel(
    x_ptr, weight_ptr, bias_ptr, q_ptr, scale_ptr, cols, eps, clip, BLOCK: tl.constexpr
):
    # About 18 lines: the norm as in exercise 05; the largest magnitude; the scale; round, clamp,
    # convert, store.
    # BEGIN SOLUTION
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=exists, other=0.0).to(tl.float32)
    # Lanes past the row's end would hold -mean, and count towards the variance.
    centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    # Past the row's end this is 0 (or NaN, if rstd is NaN), so y is 0 there and never the largest.
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=exists, other=0.0).to(tl.float32)
    y = centred * rstd * weight + bias
    # A NaN or an infinity in x makes every y NaN through the mean, and then tl.max has only NaN to
    # return.
    largest = tl.max(tl.abs(y), axis=0)
    # Not tl.maximum, which would return 1e-12 for NaN.
    largest = tl.where(largest < 1e-12, 1e-12, largest)
    scale = clip * largest / 127.0
    tl.store(scale_ptr + row, scale)
    # The addition rounds: at 1.5 * 2^23, float32 has no digits below 1.
    code = y / scale + 12582912.0 - 12582912.0
    # Clamp while it's a float: converting to int8 first would keep only the low byte. NaN passes
    # through, and becomes 0 as an int8.
    code = tl.where(code > 127.0, 127.0, code)
    code = tl.where(code < -127.0, -127.0, code)
    tl.store(q_ptr + row * cols + col, code.to(tl.int8), mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x has any number of dimensions and any strides, in float32, float16 or bfloat16. There can be any number of rows,
# including zero, and up to 16,384 columns. weight and bias are contiguous vectors of finite numbers, one per column, in
# x's dtype. `q` has x's shape, in int8. `scale` has one float32 per row: x's shape, but with 1 for the last dimension.
# There may be more than 2^31 elements.


# %% grade_id="launcher"
def layer_norm_int8(x, weight, bias, eps, clip):
    """(q, scale) of LayerNorm over the last dimension, in one launch."""
    # About 8 lines: reshape x to rows, allocate both results, choose the block, launch.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    # The kernel finds row r at r * cols. A non-contiguous tensor is copied first.
    x = x.contiguous()
    q = torch.empty_like(x, dtype=torch.int8)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    # The block holds the whole row, however wide it is, so x is only read once.
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    # x.numel() // cols is the number of rows over all other dimensions, and 0 if there are none.
    grid = (x.numel() // cols,)
    layer_norm_int8_kernel[grid](
        x, weight, bias, q, scale, cols, eps, clip, BLOCK=block, num_warps=warps
    )
    return q, scale
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 12 of the 15 points; the other 3 are for one hidden check with
# other inputs, which only runs during grading. At most one code in a hundred may be off by one, which can happen when
# the last digit decides the rounding. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the first check
# that fails.

# %% tags=["hide-input"]
hint = Hints(
    values={
        "Look at the lanes past the row's end": (
            "What do the positions past the row's end hold in x, in weight and bias, and in y?",
            "They must not contribute to the variance or to the largest magnitude: use "
            "tl.where(exists, ..., 0.0) before squaring, and other=0.0 for weight and bias.",
        ),
        "Look at NaN": (
            "In the row with NaN, all of y is NaN, so tl.max returns NaN, unless you set y to 0 "
            "past the row's end: then it returns that 0. Which later operation returns a number?",
            "tl.maximum(NaN, 1e-12) is 1e-12, and tl.clamp of NaN is -127. A comparison and "
            "tl.where keep the NaN.",
        ),
        "": (
            "Result 1 is q and result 2 is the scale. Get the scale right first, since it only "
            "depends on y. Is it the largest |y|, rather than the largest y?",
            "Subtract the mean before you square. q is y / scale, rounded to the nearest code.",
        ),
    },
    codes={
        "Look at the rounding": (
            "0.5 becomes 0, and both 1.5 and 2.5 become 2. What does your kernel round them to?",
            "Adding a half and rounding down doesn't do that, but adding and subtracting the large "
            "constant does.",
        ),
        "Look at the smallest scale": (
            "What is the scale of a row of zeros, and what is 0 / scale?",
            "The 1e-12 belongs inside the scale, as a lower bound on the largest magnitude.",
        ),
        "": (
            "With clip below 1, y / scale goes up to 127 / clip. What happens to 130 in an int8?",
            "Clamp y / scale to -127 and 127 before .to(tl.int8). Never use -128, so that -q is "
            "also a code.",
        ),
    },
    traffic=(
        "Count the tl.load calls on x, and the PyTorch operations in your launcher.",
        "y stays in registers, so don't store or load it. Allocate q as int8 from the start, one "
        "byte per element.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "Use tl.program_id(0).to(tl.int64), before you multiply anything by it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** The cases include odd widths, views, a constant row, NaN, three dtypes, a wide
# row and a large mean.

# %% grade_id="values" points=5
check_values(layer_norm_int8, reference, quantised_cases(12), unlike=INT8_MISTAKES, name="values")

# %% [markdown]
# **Are the codes right in the hard cases?** These are ties, a row of zeros, values beyond the last code, and an
# outlier.

# %% grade_id="codes" points=3
check_values(layer_norm_int8, reference, code_cases(12), unlike=INT8_MISTAKES, name="codes")

# %% [markdown]
# **Is it fused?** It should be one launch that reads x once, writes both results once, and reads weight and bias at
# most once per row, in float32 and in bfloat16. It mustn't spill registers for rows of 8192 on an A100.

# %% grade_id="traffic" points=3
wide = torch.randn(2, 8192, device=device), *torch.randn(2, 8192, device=device), 1e-5, 1.0
check_passes(
    layer_norm_int8, (x, weight, bias, 1e-5, 1.0), reads=(1, 8, 8), widest=wide, name="traffic"
)

# %% [markdown]
# **Can it handle a large tensor?** We check it for 2^22 rows of 1024 without allocating them: your launcher gets
# tensors that have a shape but no memory, and we run only the first and the last program of its launch, with loads and
# stores turned off. Your grid has to grow with the tensor, or have at least 108 programs (one per SM of an A100) that
# loop over all of it.


# %%
def rows_of(rows):
    return torch.randn(rows, 1024, device=device), *torch.randn(2, 1024, device=device), 1e-5, 1.0


# %% grade_id="large" points=1
check_offsets(layer_norm_int8, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% grade_id="other-values" points=3
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
other_cases = quantised_cases(1729, widths=(2, 255, 2049), widest=5001) + code_cases(1729, cols=254)
check_values(layer_norm_int8, reference, other_cases, unlike=INT8_MISTAKES, name="other-values")
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.layer_norm_int8`. The prediction is based on your compiled code. If this machine has a GPU, it times
# both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE


def mine(x, weight, bias):
    return layer_norm_int8(x, weight, bias, 1e-5, 1.0)


compare_with_ours(mine, CATALOGUE["layer_norm_int8"], (32768, 4096))

# %% [markdown]
# On the command line, `fusion check exercises/12_layer_norm_int8.ipynb` grades the saved notebook.
