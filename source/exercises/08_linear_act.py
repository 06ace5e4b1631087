# %% [markdown]
# # Exercise 08: matmul, bias and activation in one kernel [20 points]
#
# In this exercise you'll write a tiled matmul for tensor cores and give it an epilogue, which applies the bias and
# activation while the sum is still in registers, with no extra traffic and a single rounding. Allow about 90 minutes,
# after [lesson 08](../notebooks/08_matmul_epilogues.ipynb). We start with small kernels that review two-dimensional
# grids, tiles of addresses and `tl.dot`.
#
# **The formula**, with $x$ of $M \times K$, $W$ of $N \times K$ as `torch.nn.Linear` keeps it, and $b$ of $N$:
#
# $$y = \text{act}(x W^T + b), \qquad \text{act} \in \{\text{relu}, \text{gelu}, \text{silu}\}$$
#
# gelu(s) = s/2 (1 + erf(s / sqrt 2)) and silu(s) = s sigmoid(s). As in PyTorch, each activation of NaN is NaN. All
# tensors are float16, and the sum is float32.
#
# **The picture**: each program computes one tile of y. It steps along K, loading one slice of x and one of W at a time.

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("08")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, compile_for, measure, table
from helpers.learning import (
    LINEAR_MISTAKES,
    Hints,
    check_offsets,
    check_one_rounding,
    check_tensor_cores,
    check_tile_traffic,
    check_values,
    compare_with_ours,
    linear_cases,
    rounding_cases,
)

# %% [markdown]
# ## The unfused reference
#
# The library adds the bias itself. The activation is a second launch, and its input has been rounded to float16.

# %%
ACT = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}


def reference(x, weight, bias, activation):
    return ACT[activation](torch.nn.functional.linear(x, weight, bias))


device = "cuda" if torch.cuda.is_available() else "cpu"
x, weight = (torch.randn(size, 128, device=device).half() for size in (192, 128))
bias = torch.randn(128, device=device).half()
unfused = measure(reference, x, weight, bias, "gelu")
activation = unfused.by_launch[-1][1].total
print(f"{unfused.launches} launches; the activation alone: {activation / 1e3:.4g} kB")

# %% [markdown]
# **The tile model.** A tile of 64 x 64 needs 64 whole rows of x and 64 whole rows of W. So x is read N/64 times and W
# is read M/64 times. With M = 192, N = K = 128: **how many kB is that, if the result is written once?** Write your
# answer down. A check below meters your kernel and allows a tenth more.

# %% [markdown]
# ## Tiles, once more
#
# A grid can have two dimensions, as in `kernel[3, 2]`. Then `tl.program_id(0)` is 0, 1 or 2, and `tl.program_id(1)` is
# 0 or 1. A block can have two dimensions too: add a column of row numbers, `row[:, None]`, to a row of column numbers,
# `col[None, :]`, and you get a tile. Each program below writes its two ids, as two digits, to a tile of 2 x 4:


# %%
@triton.jit
def who_kernel(y_ptr, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    address = y_ptr + row[:, None] * stride_m + col[None, :] * stride_n
    tl.store(
        address, 10 * tl.program_id(0) + tl.program_id(1) + tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    )


y = torch.zeros(6, 8, dtype=torch.int32, device=device)
who_kernel[3, 2](y, *y.stride(), BLOCK_M=2, BLOCK_N=4)
y.cpu()

# %% [markdown]
# You build a tile's mask the same way: `(row < M)[:, None] & (col < N)[None, :]`. If you swap the two strides, the
# kernel reads the transposed matrix without a copy.
#
# `tl.dot(a, b, acc)` multiplies two tiles and adds the result to a third. Here's one program with one tile of 16 x 16,
# and as much of K as tensor cores need. b is the transpose of w, which we get by using its strides:


# %%
@triton.jit
def dot_kernel(
    a_ptr, w_ptr, y_ptr, SIZE: tl.constexpr, WIDEN: tl.constexpr, PRECISION: tl.constexpr
):
    i = tl.arange(0, SIZE)
    a = tl.load(a_ptr + i[:, None] * SIZE + i[None, :])
    b = tl.load(w_ptr + i[:, None] + i[None, :] * SIZE)
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    acc = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(y_ptr + i[:, None] * SIZE + i[None, :], acc)


a, w = torch.randn(2, 16, 16, device=device).half()
y = torch.empty(16, 16, device=device)
dot_kernel[(1,)](a, w, y, SIZE=16, WIDEN=False, PRECISION="tf32")
print("right:", torch.allclose(y, a.float() @ w.float().T, atol=1e-4))

# %% [markdown]
# The instruction depends on the operands' dtype. Here's what you get on an A100. (`input_precision` selects how float32
# operands are multiplied; the default is `"tf32"`.)

# %%
options = {"SIZE": 16, "device": "A100", "num_warps": 1}
peak, rows = DEVICES["A100"].peak_flops, []
for name, widen, precision in (
    ("fp16", False, "tf32"),
    ("tf32", True, "tf32"),
    ("fp32", True, "ieee"),
):
    compiled = compile_for(dot_kernel, a, w, y, WIDEN=widen, PRECISION=precision, **options)
    products = {each.opcode for each in compiled.sass_view("tensor core").instructions} or {"FFMA"}
    rows.append((name, ", ".join(products), f"{peak[name] / 1e12:.4g}"))
table(("operands", "instruction", "TFLOP/s"), rows)

# %% [markdown]
# `HMMA` is a tensor core instruction. The first one covers 16 steps of the sum and the second only 8, so **tf32 runs at
# half the rate**. tf32 keeps 10 fraction bits, as float16 does. Operands that were float16 don't lose any, while
# float32 operands had 23 bits. The last version keeps them all, but runs on the CUDA cores (`FFMA`). The sum is float32
# in all three.
# <!-- given 10 bits, 23 bits: the formats' definitions -->
#
# ## Your kernel
#
# `tl.program_id(0)` selects the tile's rows and `tl.program_id(1)` its columns. You're given the strides, so x and
# weight can have any layout, and you don't have to copy them. x can have more than 2^31 elements. M and K can be 0: a
# sum of no products is 0. ACTIVATION is a string that's known at compile time, so an `if` on it costs no time when the
# kernel runs.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def linear_act_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, M, N, K,
    x_stride_m, x_stride_k, weight_stride_n, weight_stride_k,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # About 22 lines: the tile's rows and columns; a loop over K with tl.dot; bias, activation,
    # store.
    # BEGIN SOLUTION
    # int64 before the multiplication by a stride, which may pass 2**31.
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    # float32: the sum of K products keeps its digits, and 65504 is not a limit.
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        # Elements that don't exist must load as 0. Along K that's essential, because values from
        # there would be added to every element.
        x = tl.load(
            x_ptr + row[:, None] * x_stride_m + k[None, :] * x_stride_k,
            mask=(row < M)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        # W^T's tile, loaded in that layout: we transpose the pointers, not the data.
        weight = tl.load(
            weight_ptr + k[:, None] * weight_stride_k + col[None, :] * weight_stride_n,
            mask=(k < K)[:, None] & (col < N)[None, :],
            other=0.0,
        )
        # float16 operands and a float32 sum make one tensor core instruction. If you convert the
        # operands to float32 first, they're multiplied as tf32, with the same digits here, at half
        # the rate, with twice the shared memory.
        acc = tl.dot(x, weight, acc)
    # The epilogue: the sum is already in registers, so bias and activation cost no traffic.
    s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    # The compiler resolves this, so each activation gets its own kernel, without a branch.
    if ACTIVATION == "relu":
        # Not tl.maximum, which drops NaN.
        y = tl.where(s < 0, 0.0, s)
    elif ACTIVATION == "gelu":
        y = 0.5 * s * (1 + tl.erf(s * 0.7071067811865476))
    else:
        y = s * tl.sigmoid(s)
    # The only rounding, to float16.
    tl.store(
        y_ptr + row[:, None] * N + col[None, :],
        y.to(tl.float16),
        mask=(row < M)[:, None] & (col < N)[None, :],
    )
    # END SOLUTION


# %% [markdown]
# ## Its launcher


# %% grade_id="launcher"
def linear_act(x, weight, bias, activation):
    """act(x weight^T + bias): x (M, K), weight (N, K), bias (N,) in float16.

    `activation` is "relu", "gelu" or "silu".
    """
    # About 8 lines: the sizes, the result, tiles, a two-dimensional grid, launch.
    # BEGIN SOLUTION
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    # 64 x 64 outputs in float32 are 32 registers per thread with 4 warps, and 32 along K are two
    # tensor core steps. Tiles twice as large would load half as much, and suit large matrices
    # better.
    block_m = block_n = 64
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    # We pass the strides, so nothing is copied, transposed or not.
    linear_act_kernel[grid](
        x, weight, bias, y, m, n, k, *x.stride(), *weight.stride(),
        ACTIVATION=activation, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=32, num_warps=4,
    )  # fmt: skip
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
    values={
        "Mask the others|lets these lanes through|Look at the edges": (
            "Which rows, columns and products exist in a tile that overhangs x, the weight or y?",
            "You need three masks: rows below M, columns below N, and k below K. With other=0.0, "
            "products past the end of K add nothing.",
        ),
        "Look at the loop over K|the accumulator": (
            "Each slice of K adds to the same sum. Where does your loop end, and which dtype does "
            "the sum have?",
            "acc = tl.zeros(..., dtype=tl.float32), then for start in range(0, K, BLOCK_K), with K "
            "from the arguments: acc = tl.dot(x, weight, acc).",
        ),
        "relu of NaN": (
            "What does your relu return for NaN? tl.maximum(NaN, 0.0) is 0.0.",
            "tl.where(s < 0, 0.0, s) keeps NaN, because comparisons with NaN are false.",
        ),
        "": (
            "Start with one tile: row, col and k are vectors of tl.arange; row[:, None] and "
            "k[None, :] turn them into the addresses of a tile of x. For W^T it is k[:, None] and "
            "col[None, :].",
            "Take every stride from the arguments. Only y is new and contiguous, so its rows are N "
            "apart. The bias and the activation come after the loop, on the whole sum.",
        ),
    },
    rounding={
        "the formula of gelu": (
            "relu and silu are right, so only gelu differs. Which of its forms do you compute?",
            "It's the exact form: 0.5 * s * (1 + tl.erf(s / sqrt(2))), with all digits of "
            "1 / sqrt(2) = 0.7071067811865476.",
        ),
        "": (
            "Which values in your kernel have 16 bits? Only the ones you load and the result you "
            "store. Everything in between should be float32.",
            "acc = tl.zeros(..., dtype=tl.float32), then acc = tl.dot(x, weight, acc); "
            "bias.to(tl.float32); the activation of the float32 sum; .to(tl.float16) in the store.",
        ),
    },
    traffic=(
        "How many times is each value of x loaded? Once per tile in a row of y. How can you "
        "reduce that?",
        "Use tiles of 64 x 64. Load the bias once per tile, after the loop.",
    ),
    tensor_cores=(
        "Did you multiply without tl.dot? Or did you convert the tiles to float32? Then they're "
        "multiplied as tf32, or on the CUDA cores with input_precision='ieee'.",
        "Call tl.dot(x, weight, acc) with x and weight as you loaded them. Their products are "
        "exact in float32 anyway.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets can exceed that?",
        "Convert with tl.program_id(0).to(tl.int64) before you multiply.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** We try three activations, sizes that aren't multiples of a tile, strides, large
# sums and NaN.

# %% grade_id="values" points=5
check_values(linear_act, reference, linear_cases(seed=8), unlike=LINEAR_MISTAKES, name="values")

# %% [markdown]
# **Is it rounded once?** Each element must be the float16 value nearest to the exact result.

# %% grade_id="rounding" points=4
check_one_rounding(linear_act, reference, rounding_cases(seed=9), name="rounding")

# %% [markdown]
# **Is it fused, and tiled?** It must be one launch that moves at most 1.1 times the bytes of 64 x 64 tiles. Here x and
# the weight are transposed, so if you copy them, you'll need another launch.

# %% grade_id="traffic" points=4
transposed = (x.T.contiguous().T, weight.T.contiguous().T, bias, "gelu")
check_tile_traffic(linear_act, transposed, tile=64, name="traffic")

# %% [markdown]
# **Does it use tensor cores** on float16 operands? We compile for an A100 and an H100.

# %% grade_id="tensor_cores" points=3
check_tensor_cores(
    linear_act, (x, weight, bias, "gelu"), devices=("A100", "H100"), name="tensor_cores"
)

# %% [markdown]
# **Can it handle a large matrix?** We test 10 million rows of 1024 without allocating them: your launcher gets tensors
# that have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores
# turned off.


# %%
def rows_of(rows):
    x, weight = (torch.randn(size, 1024, device=device).half() for size in (rows, 64))
    return x, weight, torch.randn(64, device=device).half(), "relu"


# %% grade_id="large" points=1
check_offsets(linear_act, rows_of, sizes=(128, 256), size=10_000_000, name="large")

# %% grade_id="other-values" points=3
# Grading checks other sizes and values here.
# BEGIN HIDDEN TESTS
check_values(
    linear_act,
    reference,
    linear_cases(seed=1729, sizes=((2, 3, 5), (65, 20, 31), (17, 129, 64), (40, 70, 200))),
    unlike=LINEAR_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.linear_act`. The prediction is based on your compiled code. If this machine has a GPU, it times both
# kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(
    lambda x, weight, bias: linear_act(x, weight, bias, "gelu"),
    CATALOGUE["linear_act"],
    (1024, 4096, 4096),
    torch.float16,
)

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/08_linear_act.ipynb`.
