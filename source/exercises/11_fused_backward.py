# %% [markdown]
# # Exercise 11: a fused backward [20 points]
#
# You're given LayerNorm and GELU in one kernel. You write the backward pass: **one kernel for three gradients**, and
# the few lines around it that autograd needs. Your gradients are compared with float64. Allow about 75 minutes. Lesson
# 11 did the same for RMSNorm.
#
# **The formula**, forward, for each row $x$ of $n$ elements. GELU is in its sigmoid form, as in CLIP:
#
# $$\hat x = (x - \mu)\, r, \quad r = \frac{1}{\sqrt{\sigma^2 + \varepsilon}}, \qquad
# z = \hat x \cdot w + b, \qquad y = z \cdot \sigma(1.702\, z)$$
#
# and backward, with $g = \partial L / \partial y$ and $s = \sigma(1.702\, z)$:
#
# $$g_z = g \cdot \big(s + 1.702\, z\, s (1 - s)\big), \qquad
# \frac{\partial L}{\partial w} = \sum_{\text{rows}} g_z\, \hat x, \qquad
# \frac{\partial L}{\partial b} = \sum_{\text{rows}} g_z$$
#
# $$\frac{\partial L}{\partial x} = r \Big( g_z w - \tfrac1n \sum_j (g_z w)_j - \hat x \cdot \tfrac1n \sum_j (g_z w)_j
# \, \hat x_j \Big)$$
#
# **The picture**, for 5 rows and 2 programs:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("11")

# %%
import torch
import triton
import triton.language as tl

from helpers.learning import (
    BACKWARD_MISTAKES,
    Hints,
    check_gradcheck,
    check_gradient_traffic,
    check_offsets,
    check_repeats,
    check_values,
    gradient_cases,
)

# %% [markdown]
# ## The forward pass is given
#
# It computes in float32, or in float64 for float64 inputs, as set by `COMPUTE`.


# %%
@triton.jit
def forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, cols, eps, COMPUTE: tl.constexpr, BLOCK: tl.constexpr
):
    col = tl.arange(0, BLOCK)
    exists, at = col < cols, tl.program_id(0).to(tl.int64) * cols + col
    x = tl.load(x_ptr + at, mask=exists, other=0.0).to(COMPUTE)
    centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)
    x_hat = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)
    z = x_hat * weight + tl.load(bias_ptr + col, mask=exists, other=0.0).to(COMPUTE)
    tl.store(y_ptr + at, z * tl.sigmoid(1.702 * z), mask=exists)


def forward(x, weight, bias, eps):
    x = x.contiguous()
    y, cols = torch.empty_like(x), x.shape[-1]
    compute = tl.float64 if x.dtype == torch.float64 else tl.float32
    grid, block = (x.numel() // cols,), triton.next_power_of_2(cols)
    forward_kernel[grid](x, weight, bias, y, cols, eps, COMPUTE=compute, BLOCK=block)
    return y


# %% [markdown]
# ## The unfused reference
#
# If you write the operation in plain PyTorch, autograd finds the gradients for you:


# %%
def reference(grad_y, x, weight, bias, eps):
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    z = torch.nn.functional.layer_norm(leaves[0], x.shape[-1:], leaves[1], leaves[2], eps)
    return torch.autograd.grad(z * torch.sigmoid(1.702 * z), leaves, grad_y)


device = "cuda" if torch.cuda.is_available() else "cpu"
x, grad_y = torch.randn(2, 96, 256, device=device)
weight, bias = torch.randn(2, 256, device=device)
y = forward(x, weight, bias, 1e-5)
z = torch.nn.functional.layer_norm(x, (256,), weight, bias, 1e-5)
print("the forward pass is right:", torch.allclose(y, z * torch.sigmoid(1.702 * z), atol=1e-5))

# %% [markdown]
# **What is the minimum number of bytes per element that the backward pass has to move, in float32?** Write your number
# down.
#
# ## Your kernel
#
# A program handles rows `program_id`, `program_id + num_programs`, and so on. It accumulates the gradients of weight
# and bias in registers and stores the sums once, in its own row of a buffer. Don't use atomics: the same call has to
# return the same bits.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def backward_kernel(
    grad_y_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_x_ptr,
    sums_ptr,
    rows,
    cols,
    eps,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # About 24 lines: weight and bias; a loop over rows: load, recompute x_hat and z, three
    # gradients; store the sums.
    # BEGIN SOLUTION
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # They're the same for every row, so load them once, before the loop.
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)
    bias = tl.load(bias_ptr + col, mask=exists, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK,), dtype=COMPUTE)
    grad_bias = tl.zeros((BLOCK,), dtype=COMPUTE)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        # int64 before the multiplication: row * cols passes 2**31 in large tensors.
        at = tl.cast(row, tl.int64) * cols + col
        x = tl.load(x_ptr + at, mask=exists, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)
        # As in the forward pass, the row is in registers, so this costs arithmetic but no bytes.
        centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
        x_hat = centred * rstd
        z = x_hat * weight + bias
        gate = tl.sigmoid(1.702 * z)
        grad_z = grad_y * (gate + 1.702 * z * gate * (1.0 - gate))
        along = grad_z * weight
        # Subtract both projections: adding a constant to a row changes nothing, and neither does
        # scaling it.
        shift = tl.sum(along, axis=0) / cols
        stretch = tl.sum(along * x_hat, axis=0) / cols
        tl.store(grad_x_ptr + at, rstd * (along - shift - x_hat * stretch), mask=exists)
        # Lanes past the row's end have loaded 0 as their grad_y, so they add 0.
        grad_weight += grad_z * x_hat
        grad_bias += grad_z
    # Each program stores one row of sums in its own place: weights first, then biases.
    at = tl.program_id(0) * cols + col
    tl.store(sums_ptr + at, grad_weight, mask=exists)
    tl.store(sums_ptr + tl.num_programs(0) * cols + at, grad_bias, mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# `x` is (..., cols) and `grad_y` has the same shape, both with any strides. There can be any number of rows, including
# zero, and up to 16,384 columns. `weight` and `bias` are contiguous, with shape (cols,). All of them, and the
# gradients, have the same dtype: float32, float16, bfloat16 or float64. In float16 and bfloat16, round each gradient
# once, when you store it. Use at most `PROGRAMS` programs. (On a GPU, you'd use two per SM.)

# %%
PROGRAMS = 8


# %% grade_id="backward"
def backward(grad_y, x, weight, bias, eps):
    """(grad_x, grad_weight, grad_bias): one kernel, and a sum over the programs' sums."""
    # About 11 lines: reshape both to rows, allocate, launch, add up the partial sums.
    # BEGIN SOLUTION
    # Gradients arrive with unusual strides: that of a sum is a single value, expanded.
    grad_y, x = grad_y.contiguous(), x.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    grad_x = torch.empty_like(x)
    # Launch at least one program, even without rows: it stores the zeros that no other program
    # would.
    programs = max(1, min(rows, PROGRAMS))
    double = x.dtype == torch.float64
    # Keep sums wide until the last one: 16 bits would round at every addition.
    sums = torch.empty(
        2, programs, cols, dtype=torch.float64 if double else torch.float32, device=x.device
    )
    compute, block = tl.float64 if double else tl.float32, triton.next_power_of_2(cols)
    # About ten values per column are in registers at once, so take at most 8 columns per thread.
    warps = min(32, max(4, block // 256))
    backward_kernel[(programs,)](
        grad_y, x, weight, bias, grad_x, sums, rows, cols, eps,
        COMPUTE=compute, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(1).to(x.dtype)
    return grad_x, grad_weight, grad_bias
    # END SOLUTION


# %% [markdown]
# ## For autograd
#
# All autograd needs is the tensors to save, and a gradient for each argument, which is `None` for eps. Once your
# functions work, try `LayerNormGelu.apply(x, weight, bias, 1e-5).sum().backward()`.


# %%
class LayerNormGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        return forward(x, weight, bias, eps)

    @staticmethod
    def backward(ctx, grad_y):
        return *backward(grad_y, *ctx.saved_tensors, ctx.eps), None


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 16 of the 20 points; the other 4 are for two hidden checks
# with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about
# the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    gradients={
        "Look at the loop over rows": (
            "There are more rows than programs. Which rows does a program take, and when does it "
            "store its sums?",
            "Loop over range(tl.program_id(0), rows, tl.num_programs(0)), and store the sums after "
            "the loop.",
        ),
        "Look at the lanes past the row's end": (
            "What do the positions past the row's end hold after x - mean, and which sums and "
            "means count them?",
            "There, x - mean isn't 0. Use tl.where before you square it. Both means divide by "
            "cols.",
        ),
        "": (
            "Which of the three results is wrong? Result 1 is x's gradient, 2 the weight's and 3 "
            "the bias's. Start with 3, which is the sum of g_z and needs nothing except the gate.",
            "Then 2: the sum of g_z times the normalised x. Then 1: compare each of its terms with "
            "the formula. It has two means over the row.",
        ),
    },
    gradcheck=(
        "Use float64 throughout: convert every load with .to(COMPUTE), keep the sums in registers "
        "in COMPUTE, and make the tensor of sums float64.",
        "Use tl.zeros((BLOCK,), dtype=COMPUTE), and torch.float64 for the sums if x is float64.",
    ),
    traffic={
        r"is read [\d.]+ times": (
            "The message lists what each of your lines reads. Which tensor do two lines load?",
            "Recompute z from x. Don't have the forward pass store it, and don't load x or grad_y "
            "twice.",
        ),
        "all but grad_y": (
            "Which tensor moves many bytes, apart from grad_y, x and x's gradient?",
            "Store one row of sums per program, not per row of x, and use at most PROGRAMS "
            "programs.",
        ),
        "": (
            "Count your bytes: grad_y and x in and grad_x out make 12 B/element. Add weight and "
            "bias once per program, and the partial sums.",
        ),
    },
    repeats=(
        "Which address do two programs both write to? The GPU decides which of them comes first.",
        "Use sums_ptr + tl.program_id(0) * cols + col, which is a different row for each program. "
        "PyTorch then sums the rows in a fixed order.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "Use tl.cast(row, tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Are the gradients right?** We compare them with PyTorch in float64, for odd widths, more rows than programs (over
# 1000), unusual strides, a large mean, NaN, three dtypes and zero rows.

# %% grade_id="gradients" points=6
check_values(backward, reference, gradient_cases(11), unlike=BACKWARD_MISTAKES, name="gradients")

# %% [markdown]
# **Does gradcheck agree?** It changes each input slightly, in float64, and compares the change in the forward pass's
# results. Its eps is a power of two, because scalars reach a kernel as float32, which would round other values.

# %%
double = {"dtype": torch.float64, "device": device}
small = (torch.randn(3, 5, **double), torch.randn(5, **double), torch.randn(5, **double), 2**-10)

# %% grade_id="gradcheck" points=3
check_gradcheck(backward, forward, small, name="gradcheck")

# %% [markdown]
# **Is it fused?** You get at most three launches, which read `grad_y` and `x` once, write x's gradient once, and move
# little else, in float32 and in bfloat16. Registers mustn't spill for rows of 4096 on an A100.

# %% grade_id="traffic" points=4
wide = *torch.randn(2, 2, 4096, device=device), *torch.randn(2, 4096, device=device), 1e-5
check_gradient_traffic(
    backward, (grad_y, x, weight, bias, 1e-5), launches=3, rest=0.75, widest=wide, name="traffic"
)

# %% [markdown]
# **Is it the same in every run?** Without a GPU, we run its programs in reverse order.

# %% grade_id="repeats" points=2
check_repeats(backward, (grad_y, x, weight, bias, 1e-5), name="repeats")

# %% [markdown]
# **Can it handle a large tensor?** We check it for 2^22 rows of 1024 without allocating them: your launcher gets
# tensors that have a shape but no memory, and we run only the first and the last program of its launch, with loads and
# stores turned off. Only the first and last passes of a long loop run. The kernel may have `PROGRAMS` programs at most.


# %%
def rows_of(rows):
    return *torch.randn(2, rows, 1024, device=device), *torch.randn(2, 1024, device=device), 1e-5


# %% grade_id="large" points=1
check_offsets(backward, rows_of, sizes=(16, 32), size=2**22, at_most=PROGRAMS, name="large")

# %% grade_id="other-gradients" points=2
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    backward,
    reference,
    gradient_cases(1729, widths=(7, 255, 2049), rows=51, many=False),
    unlike=BACKWARD_MISTAKES,
    name="other-gradients",
)
# END HIDDEN TESTS

# %% grade_id="other-gradcheck" points=2
# Grading checks other values here.
# BEGIN HIDDEN TESTS
large_steps = (
    torch.randn(9, 3, **double),
    torch.randn(3, **double),
    torch.randn(3, **double),
    0.25,
)
check_gradcheck(backward, forward, large_steps, name="other-gradcheck")
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/11_fused_backward.ipynb` grades the saved notebook.
