# %% [markdown]
# # Exercise 07: fit the register budget [15 points]
#
# You're given two kernels that already compute the right result. You choose their launch settings: how much
# work a program holds, and how many warps share it. **On both an A100 and an RTX 4090, no register may spill, and at
# least half of an SM's warps must be active.** You don't need either GPU, because the compiler can target both. Allow
# about 40 minutes. Lesson 07 covers everything you need.
#
# **The formula**, with 65,536 registers per SM on any GPU. The count per thread is rounded up to a multiple of eight:
# <!-- given 65,536 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->
#
# $$\text{registers per thread} \le 8 \left\lfloor \frac{65\,536 / 8}{32 \times \text{active warps}} \right\rfloor$$
#
# $$\text{numbers per thread} = \frac{\text{numbers in the tile}}{32 \times \text{num\_warps}}$$
#
# **The picture**, for a tile of 4 rows of 256 numbers:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("07")

# %%
import math  # for your answers

import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, compile_for, limits, occupancy
from helpers.learning import Hints, check_budget, draw_questions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPUS = ("A100", "RTX 4090")
for name in GPUS:
    capability = DEVICES[name].compute_capability
    warps = limits(capability).warps
    half = [
        r for r in range(1, 256) if occupancy(capability, threads=128, registers=r).fraction >= 0.5
    ]
    print(f"{name}: {warps} warps per SM, half of them with {max(half)} registers per thread")

# %% [markdown]
# ## The first kernel: rows
#
# This is the backward pass of softmax, unfused. It computes the gradient of the softmax's input from that input and the
# gradient of the result:


# %%
def reference(x, dy):
    y = torch.softmax(x, dim=1)
    return y * (dy - (y * dy).sum(dim=1, keepdim=True))


# %% [markdown]
# A program holds `ROWS` whole rows. They're bfloat16 in memory and float32 in registers. Count how many values per
# element are live at once: that's how many registers per element you need, plus a few more for addresses.


# %%
@triton.jit
def softmax_backward_kernel(x_ptr, dy_ptr, dx_ptr, rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    offset = row * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + offset, mask=row < rows, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offset, mask=row < rows, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    y = e / tl.sum(e, axis=1)[:, None]
    dx = y * (dy - tl.sum(y * dy, axis=1)[:, None])
    tl.store(dx_ptr + offset, dx, mask=row < rows)


x, dy = torch.randn(2, 5, 256, device=DEVICE).bfloat16()
dx = torch.empty_like(x)
softmax_backward_kernel[(3,)](x, dy, dx, 5, COLUMNS=256, ROWS=2)
print("right:", torch.allclose(dx.float(), reference(x.float(), dy.float()), atol=0.01))

# %% [markdown]
# The settings are `{"ROWS": .., "num_warps": ..}`, both powers of two. `columns` is a power of two from 256 to 8192.
# **Every load and store must also move 16 bytes per thread**, so each thread needs enough adjacent two-byte numbers.
# <!-- given 16 bytes: what the check asks for -->
#
# Try out settings here, as often as you like:


# %%
def compiled_rows(columns, settings, device):
    row = torch.empty(1, columns, dtype=torch.bfloat16, device="meta")
    return compile_for(
        softmax_backward_kernel, row, row, row, 4096, COLUMNS=columns, device=device, **settings
    )


# %% tags=["nbval-ignore-output"]
compiled_rows(4096, {"ROWS": 1, "num_warps": 4}, "A100")

# %% [markdown]
# **What answers may use:** the functions' arguments, `math`, and plain Python, but no classes. You can't import
# anything else or use other names from this notebook; `fusion check` and the grader reject such a line and report it.
# Experiment with the compiler, then write down a rule.
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 11 of the 15 points; the other
# 4 are for two hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell, then
# `hint(2)`: they're about the first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    rows=(
        "For each of your settings, work out elements per thread = ROWS x columns / "
        "(32 num_warps), and compare it with the registers. How many elements are 16 bytes?",
        "8 numbers of 2 bytes are 16 bytes. Find out how many elements per thread fit on the "
        "A100, then keep that number for every row length, with more warps for longer rows and "
        "more rows for short ones.",
        "A block has at most 32 warps, and an SM holds at most 32 blocks on an A100 and 24 on an "
        "RTX 4090. With one-warp blocks, you can fill half of the SM at best.",
    ),
    tile=(
        "A square tile of n x n uses each number n/2 times. How large does n have to be?",
        "Then choose the number of warps: numbers per thread = n x n / (32 num_warps). Try 32, 16 "
        "and 8 on the A100.",
    ),
)
hint


# %% grade_id="row-settings-answer"
def row_settings(columns):
    """{"ROWS": .., "num_warps": ..} for rows of that many elements."""
    # About 4 lines.
    # BEGIN SOLUTION
    # There are three constraints. 16 bytes are 8 bfloat16 values, so a thread needs at least 8.
    # Half of an A100's 64 warps leaves 64 registers per thread (half of the 4090's 48 leaves 80, so
    # the A100 decides). And a value costs two to three registers here, because x and dy, and later
    # y and dy, are live at the same time: 16 values per thread still fit, 32 don't. So we take 8,
    # and leave the rest to occupancy.
    numbers = 8
    # A row of 8192 then needs 32 warps. A short row needs only one, but an SM only holds so many
    # blocks (32 and 24), and one-warp blocks would barely reach half. So use at least 4 warps, and
    # let them share several rows.
    warps = min(32, max(4, columns // (32 * numbers)))
    return {"ROWS": max(1, 32 * warps * numbers // columns), "num_warps": warps}
    # END SOLUTION


# %% [markdown]
# **Rows** of 1024 and 4096 elements.

# %% grade_id="rows" points=6
check_budget(
    row_settings,
    compiled_rows,
    lambda columns, settings: columns * settings["ROWS"],
    [1024, 4096],
    settings=("ROWS", "num_warps"),
    devices=GPUS,
    wide=True,
    name="rows",
)

# %% [markdown]
# ## The second kernel: one tile
#
# This one computes distances between the rows of a and the columns of b, in float32: $y_{ij} = \sum_k |a_{ik} -
# b_{kj}|$. Tensor cores can't do that. A program holds a tile of y and loops over k, and each step loads `BLOCK_ROWS`
# numbers of a and `BLOCK_COLS` of b.


# %%
@triton.jit
def distance_kernel(
    a_ptr, b_ptr, y_ptr, depth, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for k in range(depth):
        a = tl.load(a_ptr + row * depth + k)
        b = tl.load(b_ptr + k * columns + column)
        total += tl.abs(a[:, None] - b[None, :])
    tl.store(y_ptr + row[:, None] * columns + column[None, :], total)


a, b = torch.randn(2, 32, 32, device=DEVICE)
y = torch.empty_like(a)
distance_kernel[(2, 2)](a, b, y, 32, 32, BLOCK_ROWS=16, BLOCK_COLS=16)
print("right:", torch.allclose(y, torch.cdist(a, b.T, p=1), atol=1e-4))

# %% [markdown]
# A larger tile moves fewer bytes, because each step loads `BLOCK_ROWS` + `BLOCK_COLS` numbers and computes
# `BLOCK_ROWS` × `BLOCK_COLS` differences from them. **Each number you load must be used at least `uses` times, on
# average.** But a larger tile also takes more registers: each thread needs one for every number it holds, in each of
# several unrolled steps of the loop.


# %%
def compiled_tile(uses, settings, device):
    rows, columns = settings["BLOCK_ROWS"], settings["BLOCK_COLS"]
    found = rows * columns / (rows + columns)
    if found < uses:
        raise ValueError(
            f"a tile of {rows} x {columns} uses each number {found:.4g} times, {uses} needed"
        )
    matrix = torch.empty(1, 1, device="meta")
    return compile_for(
        distance_kernel, matrix, matrix, matrix, 512, 4096, device=device, **settings
    )


# %% tags=["nbval-ignore-output"]
compiled_tile(32, {"BLOCK_ROWS": 64, "BLOCK_COLS": 64, "num_warps": 4}, "A100")

# %% [markdown]
# The settings are `{"BLOCK_ROWS": .., "BLOCK_COLS": .., "num_warps": ..}`, all powers of two. `uses` is a whole number
# from 8 to 64.


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    """{"BLOCK_ROWS": .., "BLOCK_COLS": .., "num_warps": ..}: for a tile that uses each number
    that many times."""
    # About 5 lines.
    # BEGIN SOLUTION
    # Among tiles of the same size, a square one loads the least: n x n uses each value n^2 / 2n =
    # n/2 times.
    side = 16
    while side / 2 < uses:
        side *= 2
    # Take 16 elements of the tile per thread. With 32, the compiler needs 72 to 80 registers, and
    # at half occupancy the A100 has 64. With fewer than 16, it unrolls the loop further and uses up
    # the registers again.
    warps = max(1, side * side // (32 * 16))
    return {"BLOCK_ROWS": side, "BLOCK_COLS": side, "num_warps": warps}
    # END SOLUTION


# %% [markdown]
# **Tiles** that use each number sixteen times and thirty-two times.

# %% grade_id="tile" points=5
check_budget(
    tile_settings,
    compiled_tile,
    lambda uses, settings: settings["BLOCK_ROWS"] * settings["BLOCK_COLS"],
    [16, 32],
    settings=("BLOCK_ROWS", "BLOCK_COLS", "num_warps"),
    devices=GPUS,
    name="tile",
)

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-rows" points=2
# Grading asks about other rows here.
# BEGIN HIDDEN TESTS
check_budget(
    row_settings,
    compiled_rows,
    lambda columns, settings: columns * settings["ROWS"],
    [256, 512, 2048, 8192],
    settings=("ROWS", "num_warps"),
    devices=GPUS,
    wide=True,
    name="other-rows",
)
# END HIDDEN TESTS

# %% grade_id="other-tiles" points=2
# Grading asks about other tiles here.
# BEGIN HIDDEN TESTS
check_budget(
    tile_settings,
    compiled_tile,
    lambda uses, settings: settings["BLOCK_ROWS"] * settings["BLOCK_COLS"],
    [8, 10, 20, 60, 64, *(uses for (uses,) in draw_questions(7, 2, range(33, 60)))],
    settings=("BLOCK_ROWS", "BLOCK_COLS", "num_warps"),
    devices=GPUS,
    name="other-tiles",
)
# END HIDDEN TESTS

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/07_register_budget.ipynb`.
