# %% [markdown]
# # Exercise 02: count the bytes [10 points]
#
# Here are six PyTorch snippets. For each one, predict how many kernels it launches and how many bytes they move,
# **before** you ask the meter. Then fix a worked example that forgot some bytes. You write functions of `rows` and
# `columns`, and the checks meter the snippets on shapes you haven't seen. About 30 minutes. Everything you need is in
# lesson 02.
#
# **The formula**
#
# $$\text{bytes} = \sum_{\text{launches}} \Bigl( \sum_{\text{inputs}} \text{elements} \times \text{itemsize} +
# \sum_{\text{outputs}} \text{elements} \times \text{itemsize} \Bigr)$$
#
# **The picture**, for `y = x * scale + bias`, rows R, columns C:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("02")

# %%
import math  # for your answers

import torch
from torch.nn.functional import gelu, linear

from helpers.instruments import measure
from helpers.learning import Hints, check_counts, check_numbers, draw_questions

# %% [markdown]
# ## The rules
#
# - An operator that does any work is one launch. It reads each of its inputs once and writes its output once.
# - If a value is broadcast, it's read only once. Python numbers, such as the 2 in `x * 2`, are free.
# - In-place operations aren't any cheaper, because they read and write the tensor too.
# - A view (`x.t()`, `x[None]`) moves no data and launches nothing.
# - An element takes four bytes in float32 and two in float16; a bool takes one. `x` is always float32, `rows` ×
#   `columns`.
#
# Here's one that we've worked out and metered for you:


# %%
def scaled_sum(x, y):
    return (x + y) * 0.5


def count_scaled_sum(rows, columns):
    """Launches, bytes."""
    n = rows * columns
    return 2, 4 * (3 * n + 2 * n)  # x, y in, sum out; sum in, result out


print(count_scaled_sum(100, 50))
measure(scaled_sum, *torch.rand(2, 100, 50)).launch_table()

# %% [markdown]
# ## Your answers
#
# **What answers may use:** the functions' arguments, `math`, and plain Python, but no classes. You can't import
# anything else, or use any other name from this notebook. `fusion check` and the grader reject such a line and report
# it. Each answer returns two numbers: **launches, bytes**.
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 8 of the 10 points; the other 2
# are for two hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    affine=(
        "Write down the inputs and outputs of each launch, one line per launch.",
        "scale and bias are read once each: columns elements, however many rows there are.",
    ),
    **{
        "in-place": (
            "Can x.mul_(2) compute its result without reading x?",
            "There are two launches, and each of them reads x and writes x.",
        )
    },
    turned=(
        "Which of the three calls moves data, and which ones just change shape and strides?",
        "There's one launch, which reads every element and writes it to its new place.",
    ),
    centred=(
        "How many elements are there in the mean, and which launch reads them?",
        "x is read twice, by the mean and by the subtraction: nothing is kept between two "
        "launches.",
    ),
    chosen=(
        "There are three inputs. Do all of their elements have the same size?",
        "The mask has one byte per element.",
    ),
    halved=(
        "There are two launches. How big is an element before, between and after them?",
        "The first reads 4 bytes per element and writes 2.",
    ),
    **{
        "worked-example": (
            "What does a linear layer read apart from its input?",
            "weight and bias are read either way. Fusing only saves the round trip of y.",
        )
    },
)
hint


# %% tags=["hide-input"]
def fp32(rows, columns):
    return torch.rand(rows, columns)


shapes = [
    (1, 1),
    (2, 3),
    *draw_questions(2, 3, range(1, 300), range(1, 300)),
    *draw_questions(3, 1, range(2, 9), range(40000, 90000)),
    *draw_questions(4, 1, range(40000, 90000), range(2, 9)),
    *draw_questions(7, 1, range(1100, 1500), range(1100, 1500)),
]
parts = ("launches", "bytes")

# %% [markdown]
# ## 1. Scale and shift
#
# `scale` and `bias` have `columns` elements each.


# %%
def affine(x, scale, bias):
    return x * scale + bias


# %% grade_id="count-affine"
def count_affine(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    n = rows * columns
    # Two launches. Each reads a whole tensor and one row, and writes a whole tensor. Broadcasting
    # reads a small tensor once, not once per row.
    return 2, 4 * (2 * (n + columns) + 2 * n)
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="affine" points=1
check_counts(
    count_affine,
    affine,
    lambda rows, columns: (fp32(rows, columns), fp32(1, columns)[0], fp32(1, columns)[0]),
    shapes,
    parts,
    name="affine",
)

# %% [markdown]
# ## 2. In place


# %%
def in_place(x):
    return x.mul_(2).add_(1)


# %% grade_id="count-in-place"
def count_in_place(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    n = rows * columns
    # Each launch reads and writes x. Working in place saves the space for a second tensor, but no
    # traffic.
    return 2, 4 * 4 * n
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="in-place" points=1
check_counts(
    count_in_place,
    in_place,
    lambda rows, columns: (fp32(rows, columns),),
    shapes,
    parts,
    name="in-place",
)

# %% [markdown]
# ## 3. Turned around


# %%
def turned(x):
    return x.t().contiguous().view(-1)


# %% grade_id="count-turned"
def count_turned(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    # t() and view(-1) only change shape and strides. contiguous() moves all elements.
    return 1, 4 * 2 * rows * columns
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="turned" points=1
tall = [
    (2, 3),
    *draw_questions(3, 3, range(2, 300), range(2, 300)),
]  # a single row has its column's memory layout
check_counts(
    count_turned, turned, lambda rows, columns: (fp32(rows, columns),), tall, parts, name="turned"
)

# %% [markdown]
# ## 4. Minus the mean of each row


# %%
def centred(x):
    return x - x.mean(dim=1, keepdim=True)


# %% grade_id="count-centred"
def count_centred(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    n = rows * columns
    # The mean reads x and writes one value per row. The subtraction reads x again, and those
    # values.
    return 2, 4 * ((n + rows) + (n + rows + n))
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="centred" points=1
check_counts(
    count_centred,
    centred,
    lambda rows, columns: (fp32(rows, columns),),
    shapes,
    parts,
    name="centred",
)

# %% [markdown]
# ## 5. Chosen by a mask
#
# `mask` is a bool tensor of x's shape, `y` a float32 tensor of x's shape.


# %%
def chosen(mask, x, y):
    return torch.where(mask, x, y)


# %% grade_id="count-chosen"
def count_chosen(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    # Every element of both is read, whether it's chosen or not. A bool takes a byte, not a bit.
    return 1, rows * columns * (1 + 4 + 4 + 4)
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="chosen" points=1
check_counts(
    count_chosen,
    chosen,
    lambda rows, columns: (fp32(rows, columns) < 0.5, fp32(rows, columns), fp32(rows, columns)),
    shapes,
    parts,
    name="chosen",
)

# %% [markdown]
# ## 6. In half precision


# %%
def halved(x):
    return x.half() * 2


# %% grade_id="count-halved"
def count_halved(rows, columns):
    """Launches, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    # The conversion reads 4 bytes per element and writes 2. After that, elements have 2 bytes.
    return 2, rows * columns * ((4 + 2) + (2 + 2))
    # END SOLUTION


# %% [markdown]
# **Check your count.**

# %% grade_id="halved" points=1
check_counts(
    count_halved, halved, lambda rows, columns: (fp32(rows, columns),), shapes, parts, name="halved"
)

# %% [markdown]
# ## The worked example
#
# You'll hear this claim: *take a linear layer and GELU, both with `features` columns, on `rows` rows in float32.
# Unfused, the layer reads x and writes y, then GELU reads y and writes z. Fused, you read x and write z, so that's half
# the traffic.*


# %%
def claimed(rows, features):
    unfused = 4 * 4 * rows * features
    fused = 4 * 2 * rows * features
    return unfused, fused


unfused, fused = claimed(1024, 4096)
print(f"claimed: {unfused:,} and {fused:,} bytes, {1 - fused / unfused:.0%} saved")

# %% [markdown]
# But to compute `gelu(linear(x, weight, bias))`, you also have to read something else: weight is `features` ×
# `features`, and bias has `features` elements. Count all the bytes, both unfused (two launches) and fused (one launch
# that keeps y on the chip).


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    """Bytes unfused, bytes fused."""
    # About 4 lines.
    # BEGIN SOLUTION
    activations, parameters = rows * features, features * features + features
    # x, weight and bias in, y out; then y in, z out. Every row needs all the weights, but they only
    # move once.
    unfused = 4 * (4 * activations + parameters)
    # Fusing saves y's round trip. It can't save the weights.
    return unfused, unfused - 4 * 2 * activations
    # END SOLUTION


# %% [markdown]
# **Check both numbers**, to the byte. We compare your fused count with the bytes a linear layer moves when it runs
# alone.


# %%
def metered(rows, features):
    x, weight, bias = (
        torch.zeros(rows, features),
        torch.zeros(features, features),
        torch.zeros(features),
    )
    layer = measure(linear, x, weight, bias)
    both = measure(lambda: gelu(linear(x, weight, bias)))
    return both.bytes_total, layer.bytes_total


# %% grade_id="worked-example" points=2
check_numbers(
    linear_gelu,
    metered,
    [
        (1, 1),
        (2, 3),
        *draw_questions(4, 3, range(1, 100), range(1, 100)),
        *draw_questions(5, 1, range(20000, 60000), range(2, 9)),
        *draw_questions(6, 1, range(1, 4), range(4200, 5000)),
    ],
    parts=("bytes unfused", "bytes fused"),
    within=0.0,
    name="worked-example",
)

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-shapes" points=1
# Grading meters other shapes here.
# BEGIN HIDDEN TESTS
check_counts(
    count_centred,
    centred,
    lambda rows, columns: (fp32(rows, columns),),
    draw_questions(1729, 12, range(1, 2000), range(1, 50)),
    parts,
    name="other-shapes",
)
# END HIDDEN TESTS

# %% grade_id="other-layers" points=1
# Grading meters other layers here.
# BEGIN HIDDEN TESTS
check_numbers(
    linear_gelu,
    metered,
    draw_questions(1729, 12, range(1, 300), range(1, 60)),
    parts=("bytes unfused", "bytes fused"),
    within=0.0,
    name="other-layers",
)
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/02_count_the_bytes.ipynb` grades the saved notebook.
