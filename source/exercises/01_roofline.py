# %% [markdown]
# # Exercise 01: the roofline by hand [10 points]
#
# In this exercise you count an operation's FLOPs and bytes, work out a GPU's ridge, and decide what limits the
# operation there. You write functions that take plain numbers, and the checks call them with sizes you haven't seen.
# About 30 minutes. Everything you need is in lesson 01.
#
# **The formulas**
#
# $$\text{intensity} = \frac{\text{FLOP}}{\text{bytes}}, \qquad
# \text{ridge} = \frac{\text{peak}}{\text{bandwidth}}$$
#
# $$\text{performance at best} = \min(\text{peak},\ \text{bandwidth} \times \text{intensity})$$
#
# **The picture**

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("01")

# %%
import math  # for your answers

from helpers.instruments import table
from helpers.learning import Hints, check_numbers, draw_questions
from helpers.learning.checks import roofline_questions

# %% [markdown]
# ## How to count
#
# As in lesson 01, every +, −, ×, ÷, max or exp on one element counts as one FLOP. Each launch reads each of its inputs
# once and writes each of its outputs once. `itemsize` is the size of an element in bytes: 4 in fp32, 2 in fp16.
#
# For example, a ReLU does one max per element, and it reads and writes each element once.


# %%
def relu(rows, columns, itemsize):
    elements = rows * columns
    return elements, 2 * elements * itemsize


flops, nbytes = relu(4096, 4096, 2)
print(f"{flops:,} FLOP, {nbytes:,} bytes: {flops / nbytes:g} FLOP/byte")

# %% [markdown]
# ## Your answers
#
# **What answers may use:** the functions' arguments, your other answers, `math`, and plain Python, but no classes. You
# can't import anything else, or use any other name from this notebook. `fusion check` and the grader reject such a line
# and report it. (Outside the answer cells, do what you like.)
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 8 of the 10 points; the other 2
# are for two hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    **{
        "vector-add": (
            "Draw the tensors. Which ones does the kernel read, and which does it write?",
            "Three tensors get moved, each with rows x columns elements of itemsize bytes.",
        ),
        "softmax": (
            "Add up the table's two columns: how many tensors are as large as x, and how many have "
            "one value per row?",
            "The FLOP count doesn't change. Fused, you only move the first input and the last "
            "output.",
            "Unfused: the five launches read x, x, d, e, e, and m and s; they write m, d, e, s, y.",
        ),
        "product": (
            "How many elements are there in y, and how many FLOP does each one take?",
            "Count bytes, not values, and don't forget the output matrix.",
        ),
        "ridge": (
            "Where do the two lines of the picture meet?",
            "They meet where bandwidth x intensity = peak. What intensity is that?",
        ),
        "bound": {
            "exactly the ridge": (
                "The text above the answer has a rule for the ridge itself. What does your "
                "comparison do with equal numbers?",
                "An operation on the ridge is compute-bound: memory-bound is only what's below "
                "it, with <, not <=.",
            ),
            "": (
                "What do you have to compare with the ridge to see which side you're on?",
                "The operation's intensity is flops / nbytes. Compare it with the ridge: below it "
                "is memory-bound, on it and above it compute-bound.",
            ),
        },
        "gpus": {
            "should not be there|is missing": (
                "Do it by hand for the GPU that the message names: what's its ridge, and on which "
                "side of it is flops / nbytes?",
                'A name belongs in the list if bound(flops, nbytes, peak, bandwidth) is "compute". '
                "If you call bound and its own check passes, compare the order of your arguments.",
            ),
            "": (
                "Your bound() answers the question for one GPU. Call it for each of them.",
                "Loop over gpus.items(): each value is a list of the peak and the bandwidth.",
            ),
        },
    }
)
hint

# %% [markdown]
# ## An addition
#
# `c = a + b`, three tensors of `rows` × `columns`.


# %% grade_id="vector-add-answer"
def vector_add(rows, columns, itemsize):
    """FLOP, bytes."""
    # About 2 lines.
    # BEGIN SOLUTION
    numbers = rows * columns
    # One addition per element. a and b come in and c goes out. Everyone counts the reads and
    # forgets the write.
    return numbers, 3 * numbers * itemsize
    # END SOLUTION


# %% [markdown]
# **Check the addition.**

# %% grade_id="vector-add" points=1
check_numbers(
    vector_add,
    roofline_questions.work_of("vector add"),
    [
        (1, 1, 4),
        (2, 3, 2),
        (2**20, 5000, 1),
        *draw_questions(1, 3, range(1, 5000), range(1, 5000), (1, 2, 4)),
    ],
    parts=("FLOP", "bytes"),
    name="vector-add",
)

# %% [markdown]
# ## A softmax, unfused and fused
#
# Unfused, a softmax over each row takes five launches:
#
# | launch | in | out |
# |---|---|---|
# | `m = max(x)` of each row | x | one value per row |
# | `d = x - m` | x, m | d |
# | `e = exp(d)` | d | e |
# | `s = sum(e)` of each row | e | one value per row |
# | `y = e / s` | e, s | y |
#
# Taking the maximum or the sum of a row of C elements counts as C FLOP. The fused version computes the same thing in
# one launch.


# %% grade_id="softmax-answer"
def softmax(rows, columns, itemsize, fused):
    """FLOP, bytes; `fused` is True or False."""
    # About 5 lines.
    # BEGIN SOLUTION
    numbers = rows * columns
    # max, -, exp, sum and / are one FLOP per element each. Fusing changes where intermediates live,
    # not what is computed.
    flops = 5 * numbers
    if fused:
        # x in, y out. Everything in between stays on the chip.
        return flops, 2 * numbers * itemsize
    # Five launches read x or a tensor of its size (5), and three of them write one (3). m and s are
    # written once and read once, with one value per row. That's next to nothing, but it counts.
    return flops, (8 * numbers + 4 * rows) * itemsize
    # END SOLUTION


# %% [markdown]
# **Check the softmax**, fused and unfused.

# %% grade_id="softmax" points=2
check_numbers(
    softmax,
    roofline_questions.work_of("softmax"),
    [
        (1, 4, 4, True),
        (1, 4, 4, False),
        (3, 1, 2, True),  # one column
        (3, 1, 2, False),
        *draw_questions(2, 4, range(1, 500), range(1, 50), (2, 4), (True, False)),
    ],
    parts=("FLOP", "bytes"),
    name="softmax",
)

# %% [markdown]
# ## A matrix product
#
# `y = x @ w`, where x is `rows` × `inner` and w is `inner` × `columns`. Each element of y is a sum of `inner`
# products, and a multiply-add counts as two FLOP.


# %% grade_id="product-answer"
def product(rows, inner, columns, itemsize):
    """FLOP, bytes."""
    # About 3 lines.
    # BEGIN SOLUTION
    flops = 2 * rows * inner * columns
    # Each matrix moves once: x, w and y. That's the minimum, and it takes a kernel that keeps
    # everything it reuses on the chip.
    numbers = rows * inner + inner * columns + rows * columns
    return flops, numbers * itemsize
    # END SOLUTION


# %% [markdown]
# **Check the product.**

# %% grade_id="product" points=1
check_numbers(
    product,
    roofline_questions.product_work,
    [
        (1, 1, 1, 4),
        (2, 3, 5, 2),
        (5, 3, 2, 8),
        *draw_questions(3, 3, range(1, 5000), range(1, 5000), range(1, 5000), (1, 2, 4)),
    ],
    parts=("FLOP", "bytes"),
    name="product",
)

# %% [markdown]
# ## Which limit?
#
# A GPU's `peak` is in FLOP/s and its `bandwidth` in bytes/s. `bound` should return `"memory"` or `"compute"`. An
# operation exactly on the ridge counts as compute-bound, because more bandwidth wouldn't make it faster.


# %% grade_id="bound-answer"
def ridge(peak, bandwidth):
    """FLOP/byte."""
    # About 1 line.
    # BEGIN SOLUTION
    # The slope, bandwidth x intensity, meets the flat line, peak, where the intensity is peak /
    # bandwidth.
    return peak / bandwidth
    # END SOLUTION


def bound(flops, nbytes, peak, bandwidth):
    """ "memory" or "compute"."""
    # About 1 line.
    # BEGIN SOLUTION
    # Left of the ridge, memory can't deliver as fast as the units compute. On the ridge both are
    # busy. More bandwidth wouldn't help there, so it counts as compute-bound.
    return "memory" if flops / nbytes < ridge(peak, bandwidth) else "compute"
    # END SOLUTION


# %% [markdown]
# **Check the ridge**, for the course's GPUs and for some others.

# %% grade_id="ridge" points=1
check_numbers(
    ridge,
    roofline_questions.ridge,
    [
        (2e12, 1e12),
        (1e12, 4e12),
        (1e9, 3e13),
        *roofline_questions.fp16_gpus().values(),
        *draw_questions(4, 5, range(10**12, 10**15, 10**11), range(10**11, 10**13)),
    ],
    within=1e-6,
    name="ridge",
)

# %% [markdown]
# **Check the bound** for an addition and some matmuls, on the course's GPUs and others.

# %% grade_id="bound" points=1
check_numbers(
    bound,
    roofline_questions.bound,
    [(8, 4, 1, 1), (1, 4, 1, 1), (8, 4, 2, 1)]  # right of the ridge, left of it, on it
    + [
        (flops, nbytes, *gpu)
        for flops, nbytes in (
            roofline_questions.work_of("vector add")(4096, 4096, 2),
            *(roofline_questions.product_work(n, n, n, 2) for n in (64, 512, 4096)),
        )
        for gpu in roofline_questions.fp16_gpus().values()
    ]
    + [
        (flops, nbytes, *gpu)
        for flops, nbytes, gpus in roofline_questions.products_and_gpus(5, 5)
        for gpu in gpus.values()
    ],
    seen=roofline_questions.seen_from_the_ridge,
    name="bound",
)

# %% [markdown]
# ## Which GPU?
#
# `gpus` is a dictionary, name → `[peak, bandwidth]`. Return the names of the GPUs where the operation is compute-bound.
# Here are the GPUs that the course knows, in fp16:

# %%
rows = []
for name, (peak, bandwidth) in roofline_questions.fp16_gpus().items():
    rows.append((name, f"{peak / 1e12:.0f}", f"{bandwidth / 1e9:.0f}"))
table(("GPU", "TFLOP/s", "GB/s"), rows)


# %% grade_id="gpus-answer"
def compute_bound_on(flops, nbytes, gpus):
    """A list of names, in any order."""
    # About 3 lines.
    # BEGIN SOLUTION
    # These aren't the fastest GPUs, but those whose memory keeps up with their arithmetic: what
    # counts is a low ridge, not a high peak.
    return [
        name
        for name, (peak, bandwidth) in gpus.items()
        if bound(flops, nbytes, peak, bandwidth) == "compute"
    ]
    # END SOLUTION


# %% [markdown]
# **Check the names**, first for the course's GPUs, then for some made-up ones.

# %% grade_id="gpus" points=2
check_numbers(
    compute_bound_on,
    roofline_questions.compute_bound_on,
    [
        (*roofline_questions.product_work(n, n, n, 2), roofline_questions.fp16_gpus())
        for n in (64, 512, 4096)
    ]
    + roofline_questions.products_and_gpus(4, 5)
    + [(8, 4, {"left of its ridge": [4, 1], "on its ridge": [2, 1], "right of its ridge": [1, 1]})],
    seen=roofline_questions.seen_on_one,
    unlike={"the GPUs that leave it memory-bound": roofline_questions.memory_bound_on},
    name="gpus",
)

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-work" points=1
# Grading tries other sizes here.
# BEGIN HIDDEN TESTS
check_numbers(
    softmax,
    roofline_questions.work_of("softmax"),
    draw_questions(1729, 12, range(1, 9000), range(1, 9), (1, 2, 4, 8), (True, False)),
    parts=("FLOP", "bytes"),
    name="other-work",
)
# END HIDDEN TESTS

# %% grade_id="other-gpus" points=1
# Grading tries other operations and GPUs here.
# BEGIN HIDDEN TESTS
check_numbers(
    compute_bound_on,
    roofline_questions.compute_bound_on,
    roofline_questions.products_and_gpus(1729, 20),
    name="other-gpus",
)
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/01_roofline.ipynb` grades the saved notebook.
