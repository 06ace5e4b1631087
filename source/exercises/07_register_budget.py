# %% [markdown]
# # Exercise 07: fit the register budget [15 points]
#
# Two kernels are given, and they are right. Their launch settings are yours: how much one program holds, and how many
# warps share it. **No register may spill, and at least half of an SM's warps must be active, on an A100 and on an
# RTX 4090.** Neither need be here: the compiler is. About 40 minutes. Lesson 07 has all you need.
#
# **The formula**, with 65,536 registers per SM, whatever the GPU; a thread's are counted in whole eights:
# <!-- given 65,536 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->
#
# $$\text{registers per thread} \le 8 \left\lfloor \frac{65\,536 / 8}{32 \times \text{active warps}} \right\rfloor$$
#
# $$\text{numbers per thread} = \frac{\text{numbers in the tile}}{32 \times \text{num\_warps}}$$
#
# **The picture**, a tile of 4 rows of 256 numbers:
#
# ```text
#   num_warps = 4                            num_warps = 16
#   128 threads, 8 numbers each              512 threads, 2 numbers each
#   +---------------------------------+      +---------------------------------+
#   |xxxxxxxx|xxxxxxxx|xxxxxxxx| ...  |      |xx|xx|xx|xx|xx|xx|xx|xx|xx| ...  |
#   +---------------------------------+      +---------------------------------+
#   a load moves 16 bytes; more registers    a load moves 4 bytes; fewer registers
# ```

# %%
import math  # for your answers

import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, compile_for, limits, occupancy
from helpers.learning import Hints, check_budget

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
# Softmax backwards. It computes the gradient of the softmax's input from that input and the gradient of the result,
# unfused:


# %%
def reference(x, dy):
    y = torch.softmax(x, dim=1)
    return y * (dy - (y * dy).sum(dim=1, keepdim=True))


# %% [markdown]
# A program holds `ROWS` whole rows, in bfloat16 outside and float32 inside. Count what is alive at once: that many
# registers per element, and some more for addresses.


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
# Its settings are `{"ROWS": .., "num_warps": ..}`, powers of two both. `columns` is a power of two from 256 to 8192.
# **Every load and store must also move 16 bytes per thread**, so a thread needs enough neighbouring two-byte numbers.
# <!-- given 16 bytes: what the check asks for -->
#
# Try settings here, as often as you like:


# %%
def compiled_rows(columns, settings, device):
    row = torch.empty(1, columns, dtype=torch.bfloat16, device="meta")
    return compile_for(
        softmax_backward_kernel, row, row, row, 4096, COLUMNS=columns, device=device, **settings
    )


# %% tags=["nbval-ignore-output"]
compiled_rows(4096, {"ROWS": 1, "num_warps": 4}, "A100")

# %% [markdown]
# **What answers may use:** the functions' arguments, `math`, and plain Python: no other import, and no other name from
# this notebook. `fusion check` and the grading refuse such a line, and name it. Try with the compiler; in the end,
# write down a rule.


# %% grade_id="row-settings-answer"
def row_settings(columns):
    """{"ROWS": .., "num_warps": ..} for rows of that many elements."""
    # About 4 lines.
    # BEGIN SOLUTION
    # Three wishes meet. 16 bytes are 8 numbers of bfloat16, so a thread needs 8 at least. Half of
    # an A100's 64 warps leaves 64 registers per thread (half of the 4090's 48 leaves 80, so the
    # A100 decides). And a number costs two to three registers here, since x and dy, later y and
    # dy, are alive together: with 16 numbers per thread that still fits, with 32 it does not. So 8:
    # the rest is occupancy.
    numbers = 8
    # A row of 8192 needs 32 warps then. A short row needs one, but an SM holds only so many blocks
    # (32 and 24), and blocks of one warp would just reach half: 4 warps at least, which share
    # several rows.
    warps = min(32, max(4, columns // (32 * numbers)))
    return {"ROWS": max(1, 32 * warps * numbers // columns), "num_warps": warps}
    # END SOLUTION


# %% [markdown]
# ## The second kernel: one tile
#
# Distances between the rows of a and the columns of b, in float32: $y_{ij} = \sum_k |a_{ik} - b_{kj}|$. No tensor core
# does this. A program holds a tile of y and walks along k; each step loads `BLOCK_ROWS` numbers of a and `BLOCK_COLS`
# of b.


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
# A large tile moves fewer bytes: a step does `BLOCK_ROWS` × `BLOCK_COLS` differences with `BLOCK_ROWS` + `BLOCK_COLS`
# numbers. **So each number loaded must be used at least `uses` times, on average.** A large tile also needs registers,
# one for each number of it and thread, and that in several unrolled steps of the loop.


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
# Its settings are `{"BLOCK_ROWS": .., "BLOCK_COLS": .., "num_warps": ..}`, powers of two; `uses` is from 8 to 64.


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    """{"BLOCK_ROWS": .., "BLOCK_COLS": .., "num_warps": ..}: for a tile whose elements have that
    many uses."""
    # About 5 lines.
    # BEGIN SOLUTION
    # Among tiles of equal size a square one loads least: n x n uses each value n^2 / 2n = n/2
    # times.
    side = 16
    while side / 2 < uses:
        side *= 2
    # 16 elements of the tile per thread: with 32, the compiler wants some 72 to 80 registers, and
    # the A100 gives 64 at half occupancy. With fewer than 16 it unrolls the loop further and spends
    # what was saved.
    warps = max(1, side * side // (32 * 16))
    return {"BLOCK_ROWS": side, "BLOCK_COLS": side, "num_warps": warps}
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run them in order, as often as you like. Stuck? Run `hint(1)` in a cell of your own, then `hint(2)`: they are about
# the check that failed last.

# %% tags=["hide-input"]
hint = Hints(
    rows=(
        "Work out numbers per thread = ROWS x columns / (32 num_warps) for each of your "
        "settings, next to its registers. What minimum do 16 bytes need?",
        "8 numbers of 2 bytes are 16 bytes. Find out how many elements per thread fit on the "
        "A100, then keep that number for every row length: more warps for longer rows, more "
        "rows for short ones.",
        "A block has 32 warps at most, and an SM holds at most 32 blocks on an A100, 24 on an RTX "
        "4090: blocks of one warp fill half of it at best.",
    ),
    tile=(
        "A square tile of n x n uses each number n/2 times. How large must n be?",
        "Then choose the warps: numbers per thread = n x n / (32 num_warps). Try 32, 16 and 8 on "
        "the A100.",
    ),
)
hint

# %% [markdown]
# **Rows** of 1024 and of 4096.


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
# **Tiles** that use each number sixteen times, and thirty-two times.

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

# %% grade_id="other-rows" points=2
# Other rows are asked here when the exercise is graded.
# BEGIN HIDDEN TESTS
check_budget(
    row_settings,
    compiled_rows,
    lambda columns, settings: columns * settings["ROWS"],
    [256, 8192],
    settings=("ROWS", "num_warps"),
    devices=GPUS,
    wide=True,
    name="other-rows",
)
# END HIDDEN TESTS

# %% grade_id="other-tiles" points=2
# Other tiles are asked here when the exercise is graded.
# BEGIN HIDDEN TESTS
check_budget(
    tile_settings,
    compiled_tile,
    lambda uses, settings: settings["BLOCK_ROWS"] * settings["BLOCK_COLS"],
    [10, 60],
    settings=("BLOCK_ROWS", "BLOCK_COLS", "num_warps"),
    devices=GPUS,
    name="other-tiles",
)
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/07_register_budget.ipynb` grades the saved notebook.
