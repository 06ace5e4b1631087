# %% [markdown]
# # Exercise 03: add and GELU in one kernel [15 points]
#
# Time to write your first fused kernel. It adds two tensors and applies GELU to the sum, in **one launch** that reads
# each input once and writes the output once. About 40 minutes. Everything you need is in lesson 03.
#
# **The formula**, GELU in its tanh form:
#
# $$y = \tfrac{s}{2}\,\bigl(1 + \tanh u\bigr), \qquad s = a + b, \qquad
# u = \sqrt{2/\pi}\,\bigl(s + 0.044715\,s^3\bigr)$$
#
# **The picture**, for 10 elements and blocks of 4:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("03")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    ADD_GELU_MISTAKES,
    Hints,
    check_offsets,
    check_traffic,
    check_values,
    check_vectorised,
    compare_with_ours,
    elementwise_cases,
)

# %% [markdown]
# ## The unfused reference
#
# PyTorch runs this as two kernels. The first writes the sum to memory, and the second reads it straight back.


# %%
def reference(a, b):
    return torch.nn.functional.gelu(a + b, approximate="tanh")


device = "cuda" if torch.cuda.is_available() else "cpu"
a, b = torch.randn(8000, device=device), torch.randn(8000, device=device)
unfused = measure(reference, a, b)
print(f"{unfused.launches} launches, {unfused.bytes_total / a.numel():g} B/element")

# %% [markdown]
# Each element takes four bytes. The first kernel reads a and b and writes s; the second reads s and writes y. **How
# many bytes per element are left if s never leaves its register?** A check below meters your kernel.

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.
#
# `tl` doesn't have a `tanh` that runs without a GPU, but it has a sigmoid, so use tanh(u) = 2 sigmoid(2u) - 1. Compute
# in float32, whatever dtype the inputs have.


# %% grade_id="kernel"
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    # About 7 lines: which elements does this program have, and which of them exist? Load, compute,
    # store.
    # BEGIN SOLUTION
    # Neighbouring lanes take neighbouring elements, so that the compiler can merge a thread's loads
    # into wide ones. int64, because element numbers pass 2**31 in large tensors.
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # The last block extends past the end of the tensors. Lanes without an element must neither load
    # nor store.
    exists = element < elements
    # Compute in float32, so that a 16-bit result is rounded once, at the store, and not after every
    # operation.
    a = tl.load(a_ptr + element, mask=exists).to(tl.float32)
    b = tl.load(b_ptr + element, mask=exists).to(tl.float32)
    # The point of the exercise: the sum stays in a register. In memory it would cost 4 bytes out
    # and 4 back.
    s = a + b
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    # With tanh(u) = 2 sigmoid(2u) - 1 the formula s/2 (1 + tanh(u)) becomes s sigmoid(2u).
    tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# The launcher is the function that the lesson calls the host wrapper. The checks only call the launcher, so you're free
# to change the kernel's parameters. Both tensors have the same shape and the same dtype: float32, float16 or bfloat16.
# They can have any strides, and any number of elements, including zero and more than 2^31.


# %% grade_id="launcher"
def add_gelu(a, b):
    """gelu(a + b), tanh form, in one launch."""
    # About 5 lines: allocate the result, count the programs, launch, return.
    # BEGIN SOLUTION
    # The kernel reads memory in order. A transposed or strided tensor isn't contiguous, so it's
    # copied first.
    a, b = a.contiguous(), b.contiguous()
    # Not zeros: filling them would be a launch, and 4 B/element, for values that no one reads.
    y = torch.empty_like(a)
    # 1024 elements are 8 per thread with 4 warps, so two 16-byte loads, and that leaves enough
    # programs to fill any GPU.
    block = 1024
    # Round up, because the last, partly filled block needs a program too.
    programs = triton.cdiv(y.numel(), block)
    add_gelu_kernel[(programs,)](a, b, y, y.numel(), BLOCK=block)
    return y
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 12 of the 15 points; the other 3 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "The message lists the inputs that pass and those that fail. Is every value wrong, or "
        "only large ones, or only those of one dtype?",
        "If every value is a little off, compare the constants with the formula: sqrt(2/pi) = "
        "0.7978845608, 0.044715, and 2 sigmoid(2u) - 1 has two twos.",
    ),
    traffic=(
        "Count your own tl.load and tl.store lines, and the PyTorch operations in your launcher: "
        "they all cost traffic.",
        "One launch means no a + b outside the kernel, and torch.empty_like for the result: "
        "torch.zeros_like fills it, which is a launch of its own. Keep what you loaded in a "
        "variable and use the variable twice.",
    ),
    vectorised=(
        "A load of 16 bytes is four adjacent float32 values. How many elements does "
        "each thread have?",
        "Elements per thread = BLOCK / (32 num_warps), with 4 warps unless you say otherwise. And "
        "the lanes of a program must take neighbouring elements: tl.arange without a step.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets "
        "can pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** We try sizes 1, 127 and 1025, views, small values, a large mean, NaN and inf, and
# three dtypes.

# %% grade_id="values" points=5
check_values(
    add_gelu,
    reference,
    elementwise_cases(2, seed=3, one_rounding=True),
    unlike=ADD_GELU_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is it fused?** It should be one launch that moves 12 B/element in float32, and 6 in bfloat16: it reads a and b once
# and writes y once.

# %% grade_id="traffic" points=3
check_traffic(add_gelu, (a, b), launches=1, bytes_per_element=12, name="traffic")

# %% [markdown]
# **How does it compile?** On an A100, each thread should move 16 bytes per instruction. For that, your block has to
# give each thread at least four neighbouring elements. Lesson 03b shows what this looks like in the machine code.

# %% grade_id="vectorised" points=3
check_vectorised(add_gelu, (a, b), device="A100", name="vectorised")

# %% [markdown]
# **Can it handle a large tensor?** We test 2^32 elements without allocating them: your launcher gets tensors that have
# a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned off.
# Your grid has to grow with the tensor, or have at least 108 programs, one per SM of an A100, that loop over the rest.


# %%
def vectors(elements):
    return tuple(torch.randn(2, elements, device=device))


# %% grade_id="large" points=1
check_offsets(add_gelu, vectors, sizes=(16384, 32768), size=2**32, programs=108, name="large")

# %% grade_id="other-values" points=3
# Grading checks other sizes and values here.
# BEGIN HIDDEN TESTS
check_values(
    add_gelu,
    reference,
    elementwise_cases(2, seed=1729, sizes=(2, 255, 4099), one_rounding=True, every_shape=False),
    unlike=ADD_GELU_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.add_gelu`. The prediction is based on your compiled code. If this machine has a GPU, it times both
# kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(add_gelu, CATALOGUE["add_gelu"], (100_000_000,))

# %% [markdown]
# On the command line, `fusion check exercises/03_fused_add_gelu.ipynb` grades the saved notebook.
