# %% [markdown]
# # Exercise 05: LayerNorm in one kernel [20 points]
#
# In this exercise you'll write LayerNorm with a weight and a bias in **one launch**. Your kernel reads each row once,
# keeps it in registers while it computes the mean and variance, and writes it once. It takes about 50 minutes, and
# lesson 05 covers everything you need.
#
# **The formula**, for each row $x$ of $n$ elements:
#
# $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \cdot w + b, \qquad
# \mu = \tfrac1n \sum x, \qquad \sigma^2 = \tfrac1n \sum (x - \mu)^2$$
#
# **The picture**, for rows of 5 elements and a block of 8 positions:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("05")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    LAYER_NORM_MISTAKES,
    Hints,
    check_offsets,
    check_passes,
    check_values,
    compare_with_ours,
    large_mean_cases,
    norm_cases,
)

# %% [markdown]
# ## The unfused reference
#
# Here every step writes its result to memory, and the next one reads it straight back.


# %%
def reference(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight + bias


device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(8, 1000, device=device)
weight, bias = torch.randn(1000, device=device), torch.randn(1000, device=device)
unfused = measure(reference, x, weight, bias, 1e-5)
print(f"{unfused.launches} launches, {unfused.bytes_total / x.numel():.3g} B/element")

# %% [markdown]
# **How many bytes per element are left if the row never leaves its registers?** Write your answer down. Don't count the
# weight and bias: every program reads them, but they stay in the L2 cache.

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.
#
# Use one program per row, and compute in float32 whatever the dtype of x. Remember that the block is a power of two,
# but a row can have any length up to 16,384.


# %% grade_id="kernel"
@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    # About 12 lines: load the row; its mean; its variance; weight and bias; store.
    # BEGIN SOLUTION
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # Positions past the row's end hold 0, which adds nothing to the sum.
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / cols
    # Those positions would now hold -mean, and each would add its square to the variance.
    centred = tl.where(exists, x - mean, 0.0)
    # Subtract the mean before squaring. E[x^2] - E[x]^2 doesn't need a second pass, but at a mean
    # of 10^4 it doesn't get a single digit right.
    variance = tl.sum(centred * centred, axis=0) / cols
    # x isn't loaded again: the second sum and the result use the copy in registers. That's where
    # all the saving comes from.
    weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=exists).to(tl.float32)
    y = centred * tl.rsqrt(variance + eps) * weight + bias
    tl.store(y_ptr + start + col, y, mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# x can have any number of dimensions and any strides, in float32, float16 or bfloat16, and more than 2^31 elements.
# Normalise over the last dimension, up to 16,384 columns wide. There can be any number of rows, including zero. The
# weight and bias are contiguous vectors of that width, in x's dtype.


# %% grade_id="launcher"
def layer_norm(x, weight, bias, eps):
    """LayerNorm over the last dimension, in one launch."""
    # About 6 lines: reshape x to rows, allocate, choose the block, launch.
    # BEGIN SOLUTION
    cols = x.shape[-1]
    # The kernel finds row r at r * cols. A non-contiguous tensor is copied first.
    x = x.contiguous()
    y = torch.empty_like(x)
    # The block holds the whole row, however wide it is, so x is only read once.
    block = triton.next_power_of_2(cols)
    # 16 elements per thread for wide rows: with 4 warps, a row of 32768 would take 256 registers
    # per thread.
    warps = min(32, max(4, block // 512))
    # x.numel() // cols is the number of rows over all other dimensions, and 0 if there are none.
    layer_norm_kernel[(x.numel() // cols,)](
        x, weight, bias, y, cols, eps, BLOCK=block, num_warps=warps
    )
    return y
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 17 of the 20 points; the other 3 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Work out a row of four elements by hand: the mean, the variance, the root, then weight "
        "and bias. Where does your kernel get a different number?",
        "Both means divide by cols. The variance is the mean of the squares of x - mean. eps is "
        "added to the variance, before the square root.",
    ),
    mean=(
        "At a mean of 10^4 the squares are near 10^8, and float32 has seven digits. How much of a "
        "variance of 4 survives?",
        "Subtract the mean first, then square. That takes two sums over the row, but the row is in "
        "registers, so the second sum doesn't touch memory.",
    ),
    traffic=(
        "Count your tl.load lines on x, and the PyTorch operations in your launcher.",
        "Apply the weight and bias in the kernel. Outside, each would be another launch that reads "
        "and writes all of y.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets "
        "can pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** We try odd widths, views, a constant row, NaN, three dtypes and one wide row.

# %% grade_id="values" points=7
check_values(
    layer_norm,
    reference,
    norm_cases(1, 2, seed=5, one_rounding=True),
    unlike=LAYER_NORM_MISTAKES,
    name="values",
)

# %% [markdown]
# **Does it handle a large mean?** The mean is 10,000, with a standard deviation of 2.

# %% grade_id="mean" points=4
check_values(layer_norm, reference, large_mean_cases(2, seed=5), name="mean")

# %% [markdown]
# **Is it fused?** It must be one launch that reads x once, writes y once, and reads the weight and bias at most once
# per row, in float32 and in bfloat16. It also mustn't spill registers for rows of 8192 on an A100.

# %% grade_id="traffic" points=5
wide = torch.randn(2, 8192, device=device), *torch.randn(2, 8192, device=device), 1e-5
check_passes(layer_norm, (x, weight, bias, 1e-5), reads=(1, 8, 8), widest=wide, name="traffic")

# %% [markdown]
# **Can it handle a large tensor?** We test 2^22 rows of 1024 without allocating them: your launcher gets tensors that
# have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned
# off. Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop over the
# rest.


# %%
def rows_of(rows):
    return torch.randn(rows, 1024, device=device), *torch.randn(2, 1024, device=device), 1e-5


# %% grade_id="large" points=1
check_offsets(layer_norm, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% grade_id="other-values" points=3
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    layer_norm,
    reference,
    norm_cases(1, 2, seed=1729, widths=(2, 255, 2049), widest=5001, one_rounding=True),
    unlike=LAYER_NORM_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.layer_norm`. The prediction is based on your compiled code. If this machine has a GPU, it times both
# kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(
    lambda x, weight, bias: layer_norm(x, weight, bias, 1e-5),
    CATALOGUE["layer_norm"],
    (32768, 4096),
)

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/05_layer_norm.ipynb`.
