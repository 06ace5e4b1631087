# %% [markdown]
# # Exercise 04: bias, dropout, residual, and no mask in memory [15 points]
#
# You're going to write the end of a transformer's sublayer in **one launch** each for forward and backward. PyTorch's
# dropout stores its mask for the backward pass. Yours won't, because your backward kernel will generate the same mask
# again. About 60 minutes. Everything you need is in lesson 04.
#
# **The formula**, for element $e$, counted row by row from 0:
#
# $$y = r + k_e \, \frac{x + b}{1 - p}, \qquad
# \frac{\partial L}{\partial x} = k_e \, \frac{1}{1 - p} \, \frac{\partial L}{\partial y}, \qquad
# k_e = \begin{cases} 1 & u_e \ge p \\ 0 & \text{else} \end{cases}$$
#
# with $u_e$ = `tl.rand(seed, e)`, a number from 0 to 1 that depends only on the seed and $e$.
#
# **The picture**, a row of 10 elements, blocks of 4:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("04")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    DROPOUT_MISTAKES,
    Hints,
    check_drop_rate,
    check_offsets,
    check_same_mask,
    check_traffic,
    check_values,
    compare_with_ours,
    dropout_cases,
    kept_elements,
)

# %% [markdown]
# ## The unfused reference
#
# This is PyTorch's version, as in lesson 04: `native_dropout` is what `F.dropout` runs on a GPU. `x` and `residual`
# are `rows` × `columns`, and `bias` has one value per column.


# %% tags=["nbval-ignore-output"]
def usual(x, bias, residual):
    return residual + torch.native_dropout(x + bias, 0.3, True)[0]


device = "cuda" if torch.cuda.is_available() else "cpu"
x, residual, grad_y = (torch.randn(8, 1000, device=device) for _ in range(3))
bias = torch.randn(1000, device=device)
measure(usual, x, bias, residual).launch_table()

# %% [markdown]
# It drops elements at random, so we can't compare with it directly. Instead, this reference drops the elements that
# `tl.rand` would (`kept_elements` computes the same numbers in PyTorch). Below it is its gradient with respect to x:


# %%
def reference(x, bias, residual, p, seed):
    kept = kept_elements(seed, x.numel(), p, x.device).view(x.shape)
    return residual + torch.where(kept, (x + bias) / (1 - p), 0)


def reference_backward(grad_y, p, seed):
    kept = kept_elements(seed, grad_y.numel(), p, grad_y.device).view(grad_y.shape)
    return torch.where(kept, grad_y / (1 - p), 0)


# %% [markdown]
# You don't need a kernel for the other two gradients: the residual's is `grad_y` itself, and the bias's is x's gradient
# summed over the rows.

# %% [markdown]
# ## Your answers
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 13 of the 15 points; the other
# 2 are for two hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    **{
        "drop-rate": {
            "is multiplied by": (
                "Dropping a share p of the elements makes the mean smaller. What do you do to "
                "the rest so that the mean stays the same?",
                "Divide what you keep by 1 - p.",
            ),
            "": (
                "Which elements are dropped: those whose number is below p, or those above?",
                "kept = tl.rand(seed, element) >= p, and the kept elements are divided by 1 - p.",
            ),
        },
        "values": {
            "Look at each element's number": (
                "This is the first case with several rows. Which numbers does your kernel pass to "
                "tl.rand, and which are the offsets of x and of the bias?",
                "The element's number, row * columns + column, is both its offset and the argument "
                "for tl.rand. The bias is indexed by the column.",
            ),
            "": (
                "Look at the first wrong index. Is the value off by a factor or by a bias, or was "
                "it dropped where it shouldn't be?",
                "The element's number is row * columns + column, whatever block it is in; the bias "
                "goes by the column. Bias before dropout, residual after.",
            ),
        },
        "traffic": (
            "Count your tl.load and tl.store lines, and the PyTorch operations in your launcher: "
            "they all cost traffic.",
            "x and residual are read and y is written: 12 B/element, not counting the bias. Add "
            "the bias in the kernel, not outside.",
        ),
        "large": (
            "Kernel integers are int32 unless an operand is int64. Which product in your "
            "offsets can pass 2^31?",
            "tl.program_id(0).to(tl.int64), before you multiply it; in both kernels.",
        ),
        "gradient": {
            "each element's number": (
                "Elements of a single row may be correct. What does your kernel pass to tl.rand?",
                "Pass it the element's number in the whole tensor, as in the forward pass.",
            ),
            "": (
                "Differentiate y by x for an element that is kept, then for one that is dropped.",
                "The gradient uses the same scale and mask as the forward pass, but no bias or "
                "residual.",
            ),
        },
        "same-mask": (
            "tl.rand gives the same number for the same two arguments. Are they the same in both "
            "kernels?",
            "Pass it the element's number in the whole tensor in both kernels, not its position "
            "in the block or its column.",
        ),
        "no-stored-mask": (
            "What does your backward pass read apart from the gradient?",
            "It reads one gradient and writes the other: 8 B/element. The mask comes from tl.rand, "
            "not from memory.",
        ),
        "large-gradient": (
            "This is the forward pass's problem again. Where do you compute an element's number?",
            "tl.program_id(0).to(tl.int64), before you multiply it.",
        ),
    }
)
hint

# %% [markdown]
# ## Forward
#
# All tensors have the same dtype: float32, float16 or bfloat16. They can have any strides, any number of rows
# (including zero), up to 16,384 columns, and more than 2^31 elements. `p` is a float with 0 ≤ p < 1, and `seed` is any
# int that fits in int64, negative ones included. NaN or infinity in a dropped element may leave 0 or NaN. `scale` is
# meant for 1 / (1 - p), computed once in the launcher. Compute in float32, whatever dtype the inputs have.


# %% grade_id="forward-kernel"
@triton.jit
def forward_kernel(
    x_ptr, bias_ptr, residual_ptr, y_ptr, columns, p, scale, seed, BLOCK: tl.constexpr
):
    # About 9 lines: which row and columns does this program have, and which of them exist? Load,
    # draw, compute, store.
    # BEGIN SOLUTION
    # A program has one row, or a part of it, so finding an element's column (for the bias) takes no
    # division. int64, because element numbers pass 2**31 in large tensors.
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < columns
    element = row * columns + column
    # Compute in float32, so that a 16-bit result is rounded once, at the store, and not after every
    # operation.
    x = tl.load(x_ptr + element, mask=exists).to(tl.float32)
    # Every row reads the bias again, but it's small and stays in cache.
    bias = tl.load(bias_ptr + column, mask=exists).to(tl.float32)
    residual = tl.load(residual_ptr + element, mask=exists).to(tl.float32)
    # The mask is a function of the seed and the element's number, so nobody has to store it.
    kept = tl.rand(seed, element) >= p
    tl.store(y_ptr + element, residual + tl.where(kept, (x + bias) * scale, 0.0), mask=exists)
    # END SOLUTION


# %% grade_id="forward"
def forward(x, bias, residual, p, seed):
    """residual + dropout(x + bias), in one launch."""
    # About 6 lines: allocate the result, count the programs, launch, return.
    # BEGIN SOLUTION
    # The kernel reads memory in order, so copy non-contiguous tensors first.
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    y = torch.empty_like(x)
    rows, columns = x.shape
    # 1024 elements are 8 per thread with 4 warps, which is two 16-byte loads in float32.
    block = 1024
    # 1 / (1 - p) is the same for all elements, so the CPU divides once instead of every thread.
    forward_kernel[(rows, triton.cdiv(columns, block))](
        x, bias, residual, y, columns, p, 1 / (1 - p), seed, BLOCK=block
    )
    return y
    # END SOLUTION


# %% [markdown]
# **How much is dropped?** We run it on ones at p = 0.3, and also check the scale of the elements that are kept.

# %% grade_id="drop-rate" points=2
check_drop_rate(forward, p=0.3, seed=5, name="drop-rate")

# %% [markdown]
# **Does the forward compute the right thing?** We try shapes from a single element to 3 rows of 1025, views, three
# dtypes, and an empty tensor.


# %%
def of_forward(rows, columns, draw):
    return [draw(rows, columns), draw(columns), draw(rows, columns)]


shapes, rates = ((1, 1), (1, 8), (2, 127), (3, 1025)), (0.3, 0.5, 0.3, 0.1, 0.0)

# %% grade_id="values" points=3
check_values(
    forward,
    reference,
    dropout_cases(4, of_forward, shapes, rates),
    unlike=DROPOUT_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is the forward fused?** It should be one launch that moves 12 B/element: it reads x and residual once, writes y
# once, and doesn't touch a mask.

# %% grade_id="traffic" points=2
check_traffic(
    forward,
    (x, bias, residual, 0.3, 7),
    launches=1,
    bytes_per_element=12,
    cached=(1,),
    name="traffic",
)

# %% [markdown]
# **Can it handle a large tensor?** We test 2^22 rows of 1024 without allocating them: your launcher gets tensors that
# have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned
# off. Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop over the
# rest.


# %%
def on_device(*shape):
    return torch.randn(shape, device=device)


def rows_forward(rows):
    return *of_forward(rows, 1024, on_device), 0.3, 7


# %% grade_id="large" points=1
check_offsets(forward, rows_forward, sizes=(8, 16), size=2**22, programs=108, name="large")

# %% [markdown]
# ## Backward
#
# The backward pass gets the gradient of the result, plus the same p and seed, and **nothing else**. If it needs
# anything from the forward pass, it has to compute it again.


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(grad_y_ptr, grad_x_ptr, elements, p, scale, seed, BLOCK: tl.constexpr):
    # About 6 lines.
    # BEGIN SOLUTION
    # There's no bias here, so rows and columns don't matter: a single loop over all elements will
    # do. Their numbers match the forward pass, because a contiguous tensor is also numbered row by
    # row, so the mask is the same.
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=exists).to(tl.float32)
    kept = tl.rand(seed, element) >= p
    # Dropped elements didn't affect the result, so their gradient is 0. Kept elements were scaled,
    # and so are their gradients.
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y * scale, 0.0), mask=exists)
    # END SOLUTION


# %% grade_id="backward"
def backward(grad_y, p, seed):
    """The gradient with respect to x, in one launch."""
    # About 5 lines.
    # BEGIN SOLUTION
    # Gradients often arrive with unusual strides: that of a sum is expanded, that of a transpose is
    # transposed.
    grad_y = grad_y.contiguous()
    grad_x = torch.empty_like(grad_y)
    block = 1024
    programs = triton.cdiv(grad_y.numel(), block)
    backward_kernel[(programs,)](grad_y, grad_x, grad_y.numel(), p, 1 / (1 - p), seed, BLOCK=block)
    return grad_x
    # END SOLUTION


# %% [markdown]
# **And the backward?** It gets gradients of the same shapes.


# %%
def of_backward(rows, columns, draw):
    return [draw(rows, columns)]


# %% grade_id="gradient" points=2
check_values(
    backward, reference_backward, dropout_cases(5, of_backward, shapes, rates), name="gradient"
)

# %% [markdown]
# **Is it the same mask?** We run both on ones.

# %% grade_id="same-mask" points=1
check_same_mask(forward, backward, p=0.5, seed=11, name="same-mask")

# %% [markdown]
# **Is nothing stored?** The backward should also be one launch. It moves 8 B/element, because it reads one gradient
# and writes the other.

# %% grade_id="no-stored-mask" points=1
check_traffic(backward, (grad_y, 0.3, 7), launches=1, bytes_per_element=8, name="no-stored-mask")

# %% [markdown]
# **Can the backward handle a large tensor?** It gets as many rows.


# %%
def rows_backward(rows):
    return *of_backward(rows, 1024, on_device), 0.3, 7


# %% grade_id="large-gradient" points=1
check_offsets(
    backward, rows_backward, sizes=(8, 16), size=2**22, programs=108, name="large-gradient"
)

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-values" points=1
# Grading checks other shapes, rates and values here.
# BEGIN HIDDEN TESTS
check_values(
    forward,
    reference,
    dropout_cases(1729, of_forward, ((2, 2), (5, 255), (2, 2049)), rates=(0.45, 0.6, 0.05)),
    unlike=DROPOUT_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% grade_id="other-gradients" points=1
# Grading checks other shapes, rates and values here.
# BEGIN HIDDEN TESTS
check_values(
    backward,
    reference_backward,
    dropout_cases(1730, of_backward, ((2, 2), (5, 255), (2, 2049)), rates=(0.45, 0.6, 0.05)),
    name="other-gradients",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.bias_dropout_residual`. The prediction is based on your compiled code. If this machine has a GPU, it
# times both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(
    lambda x, bias, residual, *_: forward(x, bias, residual, 0.1, 1),
    CATALOGUE["bias_dropout_residual"],
    (16384, 4096),
)

# %% [markdown]
# On the command line, `fusion check exercises/04_bias_dropout_residual.ipynb` grades the saved notebook.
