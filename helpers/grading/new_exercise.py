"""`fusion new-exercise`: write a working exercise to start from; its tests list what's missing."""

import re
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\d\d[a-z]?_[a-z][a-z0-9_]*")

SOURCE = '''\
# %% [markdown]
# # Exercise {number}: twice as much in one kernel [9 points]
#
# You will write a kernel that doubles every element of a tensor, in **one launch** that reads the input once and writes
# the output once. About 15 minutes.
#
# **The formula**: $y = 2x$
#
# **The picture**, for 10 elements and blocks of 4:
#
# ```text
#   x   0 1 2 3 | 4 5 6 7 | 8 9 . .      . lanes without an element: masked
#           |         |         |
#       program 0  program 1  program 2
#           |         |         |
#   y   0 1 2 3 | 4 5 6 7 | 8 9 . .
# ```

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import Hints, check_traffic, check_values, elementwise_cases

# %% [markdown]
# ## The unfused reference


# %%
def reference(x):
    return 2 * x


device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(8000, device=device)
unfused = measure(reference, x)
print(f"{{unfused.launches}} launch, {{unfused.bytes_total / x.numel():g}} B/element")

# %% [markdown]
# ## Your kernel


# %% grade_id="kernel"
@triton.jit
def double_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    # About 4 lines: which elements are this program's, which of those exist; load, store.
    # BEGIN SOLUTION
    # int64, because element numbers pass 2**31 in large tensors.
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    tl.store(y_ptr + element, 2 * x, mask=exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# The tensor is float32, float16 or bfloat16. It may have any strides, and no element at all.


# %% grade_id="launcher"
def double(x):
    """2 x, in one launch."""
    # About 4 lines: make room for the result, count the programs, launch, return.
    # BEGIN SOLUTION
    # The kernel walks memory in order: a strided tensor is copied first.
    x = x.contiguous()
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), BLOCK=1024)
    return y
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run them in order, as often as you like. Stuck? Run `hint(1)` in a cell of your own, then `hint(2)`.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "Start from the message: the smallest input that fails, and the first index that is wrong.",
        "Sizes that no block divides need a grid that is rounded up (triton.cdiv) and one mask, in "
        "load and store.",
    ),
    traffic=(
        "Count your own tl.load and tl.store lines, and the PyTorch operations in your launcher: "
        "each is paid for.",
        "torch.empty_like makes room and writes nothing; torch.zeros_like is a launch of its own.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?**

# %% grade_id="values" points=4
check_values(double, reference, elementwise_cases(1, seed=3), name="values")

# %% [markdown]
# **Is it one pass?** One launch; 8 B/element: x once, y once.

# %% grade_id="traffic" points=3
check_traffic(double, (x,), launches=1, bytes_per_element=8, name="traffic")

# %% grade_id="other-values" points=2
# Other sizes and other numbers are checked here when the exercise is graded.
# BEGIN HIDDEN TESTS
check_values(
    double, reference, elementwise_cases(1, seed=1729, sizes=(2, 255, 4099)), name="other-values"
)
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/{name}.ipynb` grades the saved notebook.
'''

NEXT = """\
{source} is a working exercise: make it yours.
Then, in {answers}:
  changed.diff  answers that change a few lines of the model answer: wrong_NAME and why, the check that rejects it, that
                check's message (a regular expression), and the lines to remove and add, as in {example}
  right_*.py    an answer in a different style, a `# %% grade_id="..."` cell for each answer cell
You need two right ones and three wrong ones, and for every check one that it rejects.
`make notebooks` builds it; `pytest tests/grading/test_exercises.py` fails until all of this is there and holds."""


def new_exercise(name: str, root: Path = COURSE) -> str:
    """Write the source of a new exercise, and the folder for its answers.

    Args:
        name: such as "04b_dropout": its number, then its name.
        root: the course.

    Returns:
        The next steps.

    Raises:
        ValueError: the name is malformed, the number is taken, or the tree is a student version; one line.
    """
    exercises = root / "source" / "exercises"
    if not exercises.is_dir():
        raise ValueError(f"{root} has no source/exercises: add exercises in the course, then `fusion release`")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not an exercise's name: write its number and its name, such as 04b_dropout")
    number = name.partition("_")[0]
    if taken := sorted(exercises.glob(f"{number}_*.py")):
        raise ValueError(f"{number} is taken by {taken[0].stem}: choose another number")
    source, answers = exercises / f"{name}.py", exercises / "answers" / name
    answers.mkdir(parents=True)
    source.write_text(SOURCE.format(number=number, name=name), encoding="utf-8")
    example = sorted((exercises / "answers").glob("*/changed.diff"))
    here = [path.relative_to(root) for path in (source, answers, *example[:1])]
    return NEXT.format(source=here[0], answers=here[1], example=here[-1])
