# %% [markdown]
# # 08 Matmul epilogues: bias and activation inside the matmul
#
# A linear layer ends with a bias and an activation: `gelu(x @ w.T + bias)`. The library's matmul is probably faster
# than yours. But it writes every element to memory, and then the activation has to read back what was just in a
# register.
#
# The library can fuse the common cases itself: cuBLASLt has [epilogues](../docs/glossary.md#epilogue) for bias, ReLU
# and GELU, which PyTorch exposes as one call (`torch._addmm_activation`). For anything else, you need a matmul that you
# can edit. **How close can you get to the library's speed, and is it worth it?**
#
# In this lesson you'll learn to
#
# - turn a matmul with one output per program into a pipelined tensor core kernel, and explain each step;
# - predict a tile's bytes, registers and shared memory;
# - explain what stages and swizzles do for tensor cores;
# - put bias and activation into the matmul, round once, and check the result against double precision;
# - recognise when an epilogue won't work.
#
# About 75 minutes. You should have done [07 Occupancy](07_occupancy.ipynb). The exercise is
# [08](../exercises/08_linear_act.ipynb).

# %% tags=["hide-input"]
import inspect

import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.activations import ACTIVATIONS, activate
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# A matmul nests tiles within tiles. Move the *level* slider. Where do the operands of one step along K wait, and where
# do the sums stay until the end?

# %% tags=["hide-input"]
from helpers.figures import TileHierarchyExplorer

TileHierarchyExplorer("an instruction", tile=(128, 128))

# %% [markdown]
# <details><summary>What you should see</summary>The operands wait in shared memory. The sums stay in registers, 64 per
# thread, and the bias and GELU can be applied to them right there, before the only store.</details>
#
# ## How much can fusion save?
#
# Take a layer with 4096 x 4096 weights, applied to 4096 rows in bfloat16. Unfused, it takes two launches: the library's
# matmul, which adds the bias, and the activation, which rereads and rewrites the whole result.

# %% tags=["hide-input"]
M = N = K = 4096
flops = 2 * M * N * K
product = flops / h200.matrix_rate
activation = 2 * 2 * M * N / h200.copy_bandwidth
print(h200.label)
print(f"matmul: {flops / 1e9:.0f} GFLOP, {1e6 * product:.0f} us at a large matmul's rate")
print(f"activation: {4 * M * N / 1e6:.0f} MB, {1e6 * activation:.0f} us at copy bandwidth")

# %% [markdown]
# Fusing removes the second line. Assume the activation runs at copy bandwidth. **By what percentage can fusing cut the
# layer's time, at most?**

# %% tags=["hide-input"]
most = predict_first("the most that fusing GELU can save, 4096 cubed", unit="%")
most

# %% tags=["hide-input"]
most.compare(100 * activation / (product + activation))

# %% [markdown]
# That's roughly how much slower than the library your matmul can be before you've lost the gain. The epilogue is only
# three lines. The hard part is keeping up with the library.
#
# ## One output per program
#
# We'll start with one element of y per program, computed from a row of x and a row of w. (`torch.nn.Linear` stores its
# weight as N rows of K, so `x @ w.T` multiplies rows with rows.) A grid can have **two dimensions**. Here
# `tl.program_id(0)` is the row of y and `tl.program_id(1)` the column. ACT is a
# [constexpr](../docs/glossary.md#constexpr), so each activation gets its own kernel, without a branch.


# %%
@triton.jit
def output_kernel(x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr, BLOCK_K: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    products = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col * K + k, mask=k < K, other=0.0).to(tl.float32)
        products += x * w
    s = tl.sum(products) + tl.load(bias_ptr + col).to(tl.float32)
    tl.store(y_ptr + row * N + col, activate(s, ACT).to(y_ptr.dtype.element_ty))


# %% tags=["hide-input"]
def layer(m, k, n, dtype=torch.bfloat16):
    torch.manual_seed(8)
    x, w, bias = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)
    return tuple(each.to(device, dtype) for each in (x, w, bias))


def exact(x, w, bias, act="gelu"):
    return ACTIVATIONS[act](torch.nn.functional.linear(x.double(), w.double(), bias.double()))


def right(y, *given):
    return torch.allclose(y.double(), exact(*given), rtol=0.005, atol=0.002)


x, w, bias = layer(6, 700, 8)
y = torch.empty(6, 8, dtype=x.dtype, device=device)
output_kernel[6, 8](x, w, bias, y, 6, 8, 700, ACT="gelu", BLOCK_K=512)  # a grid of 6 x 8
print("right:", right(y, x, w, bias))

# %% [markdown]
# `activate(s, ACT)` is a chain of `if ACT == ...` that's resolved at compile time. (If you also pass the result's
# dtype, it may choose a cheaper formula.) It computes
#
# ```python
# if ACT == "relu":   s = tl.where(s < 0, 0.0, s)  # tl.maximum would turn NaN into 0
# elif ACT == "silu": s = s * tl.sigmoid(s)
# elif ACT == "gelu": s = 0.5 * s * (1 + tl.erf(s * 0.70710678))
# ```
#
# with fewer instructions for the last two.
#
# We sum in float32. bfloat16 has eight significant bits, two to three decimal digits, so in a long sum many products
# would be rounded away. **How many gigabytes do all programs load for 4096 x 4096 elements of y, with K = 4096?** Each
# program loads one row of x and one of w, at two bytes per element.

# %% tags=["hide-input"]
loaded = predict_first("loaded with one output per program, 4096 cubed", unit="GB")
loaded

# %% tags=["hide-input"]
traffic = measure(lambda: output_kernel[6, 8](x, w, bias, y, 6, 8, 700, ACT="gelu", BLOCK_K=512))
per_flop = (traffic.by_tensor["x"].read + traffic.by_tensor["w"].read) / (2 * 6 * 8 * 700)
print(f"metered on the small layer: {per_flop:g} bytes per FLOP")
loaded.compare(per_flop * flops / 1e9)

# %% [markdown]
# Bytes per FLOP don't depend on size, so we can meter a small layer. Every row is used thousands of times, so most of
# these bytes come from a cache. But caches have limited bandwidth too.
#
# ## A table for every step
#
# A table compares each step with the one before. The meter counts the bytes. The compiler reports registers per thread,
# shared memory and the multiply instruction for an A100, an H100 and a B200. The time was recorded on an H200, with the
# Triton version named in the table. (That version's register counts differ from the ones compiled here.) `run(kernel,
# x, w, bias, act, **settings)` allocates y and launches one program per tile (`benchmarks/experiments/lesson_08.py`).

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_08 import STEPS, arguments, run

GPUS = ("A100", "H100", "B200")
MULTIPLIES = ("UTCHMMA", "HGMMA", "HMMA", "FHFMA", "FFMA2", "FFMA")
large = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")  # no contents


def compiled(kernel, gpu, act="relu", **settings):
    given = arguments(kernel, large, large, large[0], large, settings)
    return compile_for(kernel, *given, device=gpu, ACT=act, **settings)


def intensity(kernel, size, **settings):
    x, w, bias = layer(*size)
    moved = measure(lambda: run(kernel, x, w, bias, "relu", **settings)).by_tensor
    return 2 * size[0] * size[1] * size[2] / (moved["x"].read + moved["w"].read)


# %% tags=["hide-input"]
of_step = {}
times = h200.experiment("matmul_steps")["4096x4096x4096"]
MEASURES = ("FLOP/B", "GB loaded", *GPUS, "H200, ms")


def change(before, now, longer=("more", "fewer")):
    ratio = now / before
    return f"{max(ratio, 1 / ratio):.3g}x {longer[ratio < 1]}" if round(ratio, 2) != 1 else "same"


def step(name, kernel, size):
    settings = STEPS[name][1]
    rate = intensity(kernel, size, **settings)
    values, shown = [rate, flops / rate / 1e9], [f"{rate:.1f}", f"{flops / rate / 1e9:.2f}"]
    for gpu in GPUS:
        made = compiled(kernel, gpu, **settings)
        how = next(each for each in MULTIPLIES if made.instructions[each])
        registers = f"{made.registers}{' and spills' if made.spill_bytes else ''}"
        values.append(made.registers)
        shown.append(f"{registers}, {made.shared_memory / 1024:.0f} KB, {how}")
    values.append(times[name].median)
    shown.append(f"{1e3 * times[name].median:.3f}")
    of_step[name] = values, shown
    label = h200.label_of("matmul_steps")
    at = list(of_step).index(name)
    if at == 0:
        return table(("", name), list(zip(MEASURES, shown, strict=True)), label)
    before = list(of_step)[at - 1]
    old, old_shown = of_step[before]
    changes = [change(a, b) for a, b in zip(old[:2], values[:2], strict=True)]
    changes += [f"{b - a:+} registers" for a, b in zip(old[2:-1], values[2:-1], strict=True)]
    changes.append(change(old[-1], values[-1], ("slower", "faster")))
    rows = list(zip(MEASURES, old_shown, shown, changes, strict=True))
    return table(("", before, name, "change"), rows, label)


# %% tags=["nbval-ignore-output", "answers-loaded", "hide-input"]
step("one output per program", output_kernel, (6, 1024, 8))

# %% [markdown]
# ## A tile in registers
#
# A row of x contributes to many columns of y. So let each program compute a [tile](../docs/glossary.md#tile) of y, 64
# rows by 64 columns, with all the sums in registers. For each k, it loads a column of 64 elements from x and one from
# w, and accumulates all 64 x 64 products.
#
# In Triton, `row[:, None]` is a column vector and `col[None, :]` a row vector, and combining the two gives a
# two-dimensional block. Addresses and masks work the same way. `finish` is the **epilogue**: bias, activation, one
# rounding, store.


# %%
@triton.jit
def finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT: tl.constexpr):
    s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    y = activate(s, ACT, y_ptr.dtype.element_ty).to(y_ptr.dtype.element_ty)
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(y_ptr + at, y, mask=(row < M)[:, None] & (col < N)[None, :])


@triton.jit
def registers_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    ACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(K):
        x = tl.load(x_ptr + row.to(tl.int64) * K + k, mask=row < M, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col.to(tl.int64) * K + k, mask=col < N, other=0.0).to(tl.float32)
        acc += x[:, None] * w[None, :]
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


# %% [markdown]
# Per step of K, a tile of `BM` x `BN` loads `BM + BN` elements and multiplies `BM * BN` pairs. **By what factor does a
# 64 x 64 tile reduce the bytes loaded, compared with one output per program?**

# %% tags=["hide-input"]
fewer = predict_first("reduction in bytes by tiles of 64 x 64", unit="times")
fewer

# %% tags=["hide-input"]
tile = {"BLOCK_M": 64, "BLOCK_N": 64}
fewer.compare(intensity(registers_kernel, (128, 16, 64), **tile) * per_flop)

# %% tags=["nbval-ignore-output", "hide-input"]
step("a tile in registers", registers_kernel, (128, 16, 64))

# %% [markdown]
# Compare the change in bytes with the change in time: bytes aren't the bottleneck any more. Each load fetches two bytes
# from a different row (the strided access of lesson 03b), and the loop has K iterations. And the arithmetic runs on the
# [CUDA cores](../docs/glossary.md#cuda-cores) (`FFMA`, a float32 multiply-add; on a B200, `FFMA2` does two at once and
# `FHFMA` takes 16-bit factors directly), although the chip has something much faster:
# <!-- given 16-bit: the format's definition -->

# %% tags=["hide-input"]
h100 = DEVICES["H100"]
cores, tensor = h100.peak_flops["fp32"], h100.peak_flops["bf16"]
print(
    f"an H100's CUDA cores: {cores / 1e12:.0f} TFLOP/s, {1e3 * flops / cores:.2f} ms for the matmul"
)
print(f"its tensor cores:        {tensor / 1e12:.0f} TFLOP/s, {1e3 * flops / tensor:.2f} ms")

# %% [markdown]
# ## Tensor cores: tl.dot
#
# **Look at the last bar and the one above it.** They show the same multiply-adds on the cores we've used so far and on
# [tensor cores](../docs/glossary.md#tensor-cores).

# %% tags=["hide-input"]
from helpers.figures import gpu_picture

gpu_picture("H100", lit="tensor cores")

# %% [markdown]
# `tl.dot(a, b, acc)` multiplies two tiles and adds the result to a third. So we go through K in steps of 64 and load
# whole tiles of x and w, with wide loads again. `w.T` is a view, so no data moves. Tensor cores take 16-bit operands
# directly and accumulate in float32. `tl.dot` needs at least 16 along K, and the compiler picks an instruction that
# fits the tile.
# <!-- given 16-bit: the format's definition -->


# %%
@triton.jit
def load_tile(ptr, row, col, rows, cols):
    at = row.to(tl.int64)[:, None] * cols + col[None, :]
    return tl.load(ptr + at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def tiles_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


# %% tags=["hide-input"]
uneven = layer(70, 100, 90)  # not a multiple of any tile
by_tiles = run(tiles_kernel, *uneven, BLOCK_M=32, BLOCK_N=64, BLOCK_K=32)
print("right:", right(by_tiles, *uneven))

# %% [markdown]
# Watch a tile accumulate in two steps of 16 along K. x is a ramp, and w subtracts element n + 16 from element n. After
# the first step, `acc` is the ramp itself. After the second, it's the same small difference everywhere. The bias (a
# step from 0 to 1) and ReLU come last, just before the only store.

# %% tags=["hide-input"]
from helpers.figures import watch

ramp = (torch.arange(512.0, device=device).reshape(16, 32) / 32).bfloat16()
eye = torch.eye(16, device=device).bfloat16()
differences = torch.cat((eye, -eye), dim=1)  # row n of w: element n minus element n + 16
step_bias = torch.tensor([0.0] * 8 + [1.0] * 8, device=device).bfloat16()
in_steps = {"ACT": "relu", "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
out_16 = torch.empty(16, 16, dtype=ramp.dtype, device=device)
watch(tiles_kernel[1, 1], ramp, differences, step_bias, out_16, 16, 16, 32, **in_steps)

# %% [markdown]
# Now a larger tile: 128 x 128, 8 warps.

# %% tags=["nbval-ignore-output", "hide-input"]
step("tensor cores", tiles_kernel, (256, 128, 256))

# %% [markdown]
# The same source compiles to a different instruction on each GPU, with operands and
# [accumulators](../docs/glossary.md#accumulator) in different places:
#
# | | A100 | H100 | B200 |
# |---|---|---|---|
# | instruction | `HMMA`, by one warp | `HGMMA`, by four warps together | `UTCHMMA`, started by one thread |
# | operands here | registers, loaded from shared memory | shared memory | shared memory |
# | accumulators | registers | registers | tensor memory, a separate on-chip store |
# | in PTX | `mma.sync` | `wgmma.mma_async` | `tcgen05.mma` |
#
# On an H100, four warps issue one large multiply and carry on (hence *async*). On a B200, even the sums don't occupy
# registers until the epilogue reads them.
#
# The operands' dtype sets the speed. By default, `tl.dot` multiplies float32 tiles as tf32, at half the rate (by the
# data sheet) and with ten fraction bits. So don't convert 16-bit tiles to float32 first. It's slower and gains nothing:
# their products are exact either way, and only the sum rounds.
# <!-- given 16-bit: the format's definition -->
#
# ## Masks along K
#
# The values that you load for rows and columns past the edge don't matter, because you never store their results. (You
# still need the mask, or the load is out of bounds.) Does the same hold along K? Suppose a kernel masks w there and
# forgets x. Those products are x times 0, so does it matter? K is 40, in steps of 32, and the rows of x are 64 apart,
# as in a slice of a larger tensor, so other data follows element 39.


# %%
@triton.jit
def unmasked_kernel(x_ptr, w_ptr, y_ptr, K, x_stride, TILE: tl.constexpr, BLOCK_K: tl.constexpr):
    i = tl.arange(0, TILE)
    acc = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + i[:, None] * x_stride + k[None, :])  # and k < K?
        w = tl.load(w_ptr + i[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)
        acc = tl.dot(x, w.T, acc)
    tl.store(y_ptr + i[:, None] * TILE + i[None, :], acc)


# %% [markdown]
# Suppose that the memory past the rows of x first holds 7, and then NaN. (Uninitialised memory can hold anything.)
# **How many of the 16 x 16 results are wrong with NaN?**

# %% tags=["hide-input"]
nans = predict_first("wrong results of 256, NaN beyond the end", unit="")
nans

# %% tags=["hide-input"]
x_40, w_40, _ = layer(16, 40, 16)
sums = torch.empty(16, 16, device=device)
for beyond in (7.0, float("nan")):
    larger = torch.full((16, 64), beyond, dtype=x_40.dtype, device=device)
    larger[:, :40] = x_40
    unmasked_kernel[(1,)](larger, w_40, sums, 40, 64, TILE=16, BLOCK_K=32)
    wrong = ~torch.isclose(sums.double(), x_40.double() @ w_40.double().T, atol=1e-5)
    print(
        f"beyond the end {beyond}: {int(wrong.sum())} wrong, {int(sums.isnan().sum())} of them NaN"
    )
nans.compare(
    int(wrong.sum()),
    "Zero times NaN is NaN, and a single NaN ruins a sum. Zero times 7 is 0, so if that memory "
    "holds finite numbers, whichever they are, the bug passes every test.",
)

# %% [markdown]
# Here each row of x has five elements, followed by NaN. K is 5, in steps of 4. **Fix the marked line so that every sum
# is correct.**


# %%
@triton.jit
def k_mask_kernel(x_ptr, w_ptr, y_ptr, K, x_stride, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.arange(0, ROWS)
    acc = tl.zeros((ROWS,), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = row[:, None] * x_stride + k[None, :]
        w = tl.load(w_ptr + k, mask=k < K, other=0.0)
        x = tl.load(x_ptr + at)  # <- here
        acc += tl.sum(x * w[None, :], axis=1)
    tl.store(y_ptr + row, acc)


larger = torch.full((4, 8), torch.nan)
larger[:, :5] = torch.arange(20.0).reshape(4, 5)
x_5, w_5 = larger[:, :5], torch.tensor([3.0, 1, -2, 5, 4])
puzzle(k_mask_kernel, 1, x_5, w_5, wanted=x_5 @ w_5, K=5, x_stride=8, ROWS=4, BLOCK_K=4)

# %% [markdown]
# <details><summary>Answer</summary><code>x = tl.load(x_ptr + at, mask=(k < K)[None, :], other=0.0)</code>: mask both
# operands along K, with 0.</details>
#
# <!-- choices
# x = tl.load(x_ptr + at)
#
# x = tl.load(x_ptr + at, mask=at < K, other=0.0)
#
# x = tl.load(x_ptr + at, mask=(k < K)[None, :], other=0.0)
#
# x = tl.load(x_ptr + at, mask=(k < x_stride)[None, :], other=0.0)
#
# x = tl.load(x_ptr + at, mask=at < ROWS * K, other=0.0)
# -->
#
# ## Shared memory and its banks
#
# Operands wait for the tensor cores in shared memory, where all the program's warps can read them. It's faster than
# DRAM but can't keep up with the tensor cores, so you have to use each value more than once and avoid [bank
# conflicts](../docs/glossary.md#bank-conflict). A row of the tile is 64 elements, or 32 words, one per bank, so lanes
# that read **down a column** all hit the same bank, as in lesson 07. Padding the rows would fix that, but an H100's
# tensor cores accept only a few layouts, none of them with padded rows. The answer is a **swizzle**. The matmul reads
# 16-byte segments from 8 rows, and in row r, segment p is stored at position `p ^ r` (exclusive or). That puts the same
# segment of eight rows in eight positions, so one wavefront reads them all. Triton does this for you.
# <!-- given 16 bytes: PTX ISA, ldmatrix and the layouts of wgmma's operands -->
#
# ## Stages: load while you multiply
#
# With one stage, the loop has to load a tile, wait, multiply, and wait again. `num_stages=2` keeps another pair of
# tiles in shared memory, so the next pair can load while you multiply this one
# ([pipelining](../docs/glossary.md#pipelining)). A special instruction copies in the background and bypasses registers:
# `LDGSTS` in the machine code, `cp.async` in PTX. If a load takes as long as two multiplies:

# %% tags=["hide-input"]
from helpers.figures import stages_chart

stages_chart()

# %% [markdown]
# **How many KB of shared memory do two stages take on an H100?** One stage is 128 rows of x and 128 of w, with 64
# elements each.

# %% tags=["hide-input"]
two = predict_first("shared memory of two stages, 128 x 128 x 64, H100", unit="KB")
two

# %% tags=["nbval-ignore-output", "hide-input"]
rows = []
for stages in (1, 2, 3, 4):
    wide = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": stages}
    found = {gpu: compiled(tiles_kernel, gpu, **wide) for gpu in ("A100", "H100")}
    each = []
    for one in found.values():
        each.append(f"{one.shared_memory // 1024} KB, {one.occupancy().blocks} per SM")
    rows.append((stages, *each))
table(("stages", "A100", "H100"), rows)

# %% tags=["hide-input"]
two.compare(
    compiled(tiles_kernel, "H100", **STEPS["two stages"][1]).shared_memory / 1024,
    "An A100 keeps the current step's operands in registers, so it needs one fewer pair of tiles.",
)

# %% [markdown]
# Each stage takes shared memory that another block on the SM could use, so you want the fewest stages that hide memory
# latency. **How many times faster are three stages than one, on an H200?** Start from the figure's proportions.

# %% tags=["hide-input"]
faster = predict_first("speedup of three stages over one, H200", unit="times")
faster

# %% tags=["hide-input"]
by_stage = h200.experiment("matmul_stages")["pointers"]
rows = []
for stages, time in by_stage.items():
    rate = f"{flops / time.median / 1e12:.0f} TFLOP/s"
    rows.append((stages, f"{1e3 * time.median:.3f} ms", rate))
display(table(("stages", "time", "rate"), rows, h200.label_of("matmul_stages")))
faster.compare(
    by_stage[1].median / by_stage[3].median,
    "The figure's proportions would give 18 / 8, if nothing else took time. The third stage still "
    "helps. With a fourth, only one block fits on the SM, and you lose more than you gain.",
)

# %% tags=["nbval-ignore-output", "hide-input"]
display(step("two stages", tiles_kernel, (256, 128, 256)))
step("three stages", tiles_kernel, (256, 128, 256))

# %% [markdown]
# ## Tile, warps and stages
#
# Now you can predict what limits a tile. Here's a model for an H200:
#
# - a tile requests `2 (BM + BN)` bytes from L2 for each k, and does `BM BN / (BM + BN)` FLOP per byte. L2 delivers
#   about 39 bytes per clock to an SM (by a copy of 8 MB that we timed), which sets a **ridge**: left of it, the tensor
#   cores have to wait for L2;
# - its sums take `BM BN` registers, spread over the threads, and each thread needs about 48 for everything else (fitted
#   to the compiler's reports in *Going further*);
# - a stage takes `2 (BM + BN)` bytes of shared memory for each k of its step.
# <!-- given 39 bytes, 8 MB: helpers/instruments/prediction.py, from a copy of 8 MB on an H200 -->
#
# 1. Go from 128 x 128 to 256 x 256. Which resource rules it out with 8 warps? With 16?
# 2. What happens with 128 x 256 and 4 warps?
# 3. How many stages can 128 x 256 have?
# 4. Which tiles allow two blocks per SM, and why does that help?

# %% tags=["hide-input"]
from helpers.figures import TileChoiceExplorer, Tiling

tiles = TileChoiceExplorer(tile=(128, 128), warps=8, stages=3)
tiles

# %% [markdown]
# <details><summary>What you should see</summary>1. Registers. The sums of a 256 x 256 tile fill an SM's register file.
# With 8 warps, that's more than a thread can have, and with 16, there's nothing left for the rest. 2. It spills,
# because the sums alone take every register a thread can have. 3. Four. 4. Tiles of up to 128 x 128, if the stages of
# two blocks fit in shared memory: up to three stages for 128 x 128. While one block waits or runs its epilogue, the
# other multiplies.</details>
#
# ## The rest of the way
#
# Three stages still leave a gap to the library. *Going further* has the code of three more steps:
#
# - **tile order**: programs that run at the same time compute neighbouring tiles, so they share rows and columns in L2
#   (our layer is too small for that to matter);
# - **descriptors**: a copy engine, [TMA](../docs/glossary.md#tma), loads whole tiles, so threads don't compute addresses;
# - a [persistent kernel](../docs/glossary.md#persistent-kernel), with a larger tile, loads the next tile during the
#   epilogue.

# %% tags=["hide-input"]
rows = []
SHOWN = ("one output per program", "three stages", "grouped tiles", "descriptors", "persistent")
for name in (*SHOWN, "linear_act", "cuBLAS and GELU", "cuBLAS alone"):
    rate = f"{flops / times[name].median / 1e12:.0f} TFLOP/s"
    rows.append((name, f"{1e3 * times[name].median:.3f} ms", rate))
display(table(("", "time", "rate"), rows, h200.label_of("matmul_steps")))
one_each = 1e6 * M * N / DEVICES["H200"].special_rate
print(f"one exponential per element of y: {one_each:.0f} us on all special function units")

# %% [markdown]
# (`linear_act` is the course's tuned kernel, `kernels/tuned/linear_descriptors.py`. It works the same way, but stores
# the tile in parts, to make room for a fourth stage. *cuBLAS alone* includes the bias but not GELU.)
#
# The strongest competitor isn't in this recording (*Going further* has it, on an H100): cuBLASLt's own epilogue,
# `torch._addmm_activation(bias, x, w.T, use_gelu=True)`, with GELU in its tanh form. The gains below are relative to a
# separate GELU.
#
# ## The epilogue: time and precision
#
# **By what percentage does GELU increase the large layer's time, compared with bias alone?** GELU takes one
# exponential per element.

# %% tags=["hide-input"]
added = predict_first("time that GELU adds as an epilogue, H200", unit="%")
added

# %% tags=["hide-input"]
epilogues = h200.experiment("matmul_activations")
rows = []
for name, time in epilogues.items():
    longer = time.median / epilogues["none"].median - 1
    rows.append((name, f"{1e3 * time.median:.4f} ms", f"{longer:+.1%}"))
display(table(("epilogue", "time", "change"), rows, h200.label_of("matmul_activations")))
apart = times["cuBLAS and GELU"].median - times["cuBLAS alone"].median
inside = epilogues["gelu"].median - epilogues["bias"].median
print(f"GELU as an epilogue {1e6 * inside:.0f} us, as a separate launch {1e6 * apart:.0f} us")
added.compare(
    100 * (epilogues["gelu"].median / epilogues["bias"].median - 1),
    "It moves no extra bytes. The time goes into GELU's instructions, and the tensor cores idle "
    "while they run.",
)

# %% [markdown]
# You also gain precision. Our sum stays in float32, while the library's result is rounded to 16 bits before a separate
# activation reads it. A fused kernel can make the same mistake by converting the sum right after the loop, `acc =
# acc.to(tl.bfloat16)`, and adding the bias to that.
# <!-- given 16 bits: the format's definition -->


# %% tags=["hide-input"]
@triton.jit
def rounding_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, K, EARLY: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr
):
    i = tl.arange(0, TILE)
    acc = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        acc = tl.dot(load_tile(x_ptr, i, k, TILE, K), load_tile(w_ptr, i, k, TILE, K).T, acc)
    bias = tl.load(bias_ptr + i)[None, :]
    if EARLY:
        acc = (acc.to(bias.dtype) + bias).to(tl.float32)
    else:
        acc += bias.to(tl.float32)
    tl.store(y_ptr + i[:, None] * TILE + i[None, :], activate(acc, "relu").to(bias.dtype))


# %% [markdown]
# **What percentage of that mistake's positive results aren't correctly rounded, that is, aren't the bfloat16 value
# nearest to the exact one?** On average, the first rounding moves a sum by a quarter of the distance between
# neighbouring bfloat16 values.

# %% tags=["hide-input"]
off = predict_first("positive results not correctly rounded, rounded too early", unit="%")
off

# %% tags=["hide-input"]
layer_64 = layer(64, 256, 64)
precise = exact(*layer_64, act="relu")
nearest = precise.to(torch.bfloat16)
for name, early in (("at the end", False), ("before the bias", True)):
    y_64 = torch.empty_like(nearest)
    rounding_kernel[(1,)](*layer_64, y_64, 256, EARLY=early, TILE=64, BLOCK_K=64)
    alive = precise > 0
    missed = (y_64 != nearest)[alive].double().mean().item()
    worst = ((y_64.double() - precise).abs() / precise)[alive].max().item()
    print(f"rounded {name}: {missed:.0%} not correctly rounded, worst relative error {worst:.2g}")
off.compare(
    round(100 * missed),
    "Rounded once, at the end, the result is as accurate as 16 bits allow. If you round early and "
    "the sum and the bias nearly cancel, you're left with mostly rounding error.",
)

# %% [markdown]
# ## Claim: speedups of three epilogues
#
# **Claim: "fusing MatMul+ReLU gains 1.07x, MatMul+Bias+ReLU 1.24x, MatMul+Bias+GELU 1.35x."** It names no GPU, size or
# baseline, so we try several sizes and two baselines: one launch per operation, as the names suggest, and PyTorch's own
# `linear`, where the library adds the bias. **How much faster is fused bias and GELU than one launch per operation, at
# 8192 x 512 x 8192, where K is 512?** Count the passes over y.

# %% tags=["hide-input"]
claimed = predict_first(
    "speedup of fused MatMul+Bias+GELU over one launch per operation, K = 512", unit="times"
)
claimed

# %% tags=["hide-input"]
trial, BASELINES = (
    h200.experiment("matmul_epilogues"),
    ("a launch each", "bias by cuBLAS", "torch.compile"),
)


def trial_rows(keep):
    for epilogue, shapes in trial.items():
        for shape, ways in shapes.items():
            if keep(epilogue, shape):
                gains = (f"{ways[way].median / ways['ours'].median:.2f}x" for way in BASELINES)
                yield epilogue, shape, *gains, f"{1e6 * ways['ours'].median:.1f} us"


trial_columns = ("epilogue", "shape", "one launch each", "linear, act", "torch.compile", "fused")
trial_label = f"{h200.label_of('matmul_epilogues')}\nthe GPU's own time, cold L2"
large_or_gelu = trial_rows(
    lambda epilogue, shape: epilogue == "bias, gelu" or shape.startswith("4096")
)
display(table(trial_columns, list(large_or_gelu), trial_label))
short_k = trial["bias, gelu"]["8192x512x8192"]
claimed.compare(
    short_k["a launch each"].median / short_k["ours"].median,
    "Verdict: fair near one size, about 4096, and only against the weakest baseline. Each claimed "
    "speedup lies between those of two neighbouring sizes of ours. Small layers and short K gain "
    "far more, and large ones less, because the activation's time grows with the bytes of y, "
    "while the matmul's also grows with K. And most of the gain from the bias isn't due to your "
    "fusion, because linear already adds it in the library. cuBLASLt's own GELU epilogue isn't in "
    "this recording. In the H100 sweep in Going further, it's level with our kernel at 4096 cubed, "
    "so against that baseline, your fusion gains nothing.",
)

# %% [markdown]
# ## What an epilogue cannot do: partial sums
#
# An epilogue needs the whole sum. Take 16 rows (say, sixteen conversations that each need their next word) and a layer
# from 16384 to 1024. Split into tiles of 16 x 32, y has work for only 32 programs, so 100 of an H200's 132 SMs are
# idle. [Split-K](../docs/glossary.md#split-k) puts them to work: each program sums part of K, and the parts are added
# up later. Below, two programs have each computed half of K, and the kernel should add the halves, then apply bias and
# ReLU. **Something is in the wrong order. Fix it.** (Two lines.)


# %%
@triton.jit
def join_parts_kernel(parts_ptr, bias_ptr, y_ptr, N, PARTS: tl.constexpr):
    col = tl.arange(0, 8)
    bias = tl.load(bias_ptr + col)
    y = bias
    for part in range(PARTS):
        y += tl.maximum(tl.load(parts_ptr + part * N + col), 0.0)  # <- here
    tl.store(y_ptr + col, y)  # <- and here


halves = torch.tensor([[3.0, -2, 5, -4, 1, -6, 2, -1], [-1.5, -3, 2.5, 6, -4.5, 1.5, -5, 4]])
bias_8 = torch.tensor([0.5, 1, -9, 0.25, 1.5, 2, 0.75, -1])
joined = torch.relu(halves.sum(0) + bias_8)
puzzle(join_parts_kernel, 1, halves, bias_8, wanted=joined, N=8, PARTS=2)

# %% [markdown]
# <details><summary>Answer</summary>Add the parts as they are, <code>y += tl.load(parts_ptr + part * N + col)</code>,
# and apply the activation once: <code>tl.store(y_ptr + col, tl.maximum(y, 0.0))</code>. The ReLU of a sum isn't the sum
# of the ReLUs.</details>
#
# <!-- choices
# y += tl.maximum(tl.load(parts_ptr + part * N + col), 0.0)  # <- here
#     tl.store(y_ptr + col, y)  # <- and here
#
# y += tl.load(parts_ptr + part * N + col)
#     tl.store(y_ptr + col, y)
#
# y += tl.maximum(tl.load(parts_ptr + part * N + col), 0.0)
#     tl.store(y_ptr + col, tl.maximum(y, 0.0))
#
# y += tl.load(parts_ptr + part * N + col)
#     tl.store(y_ptr + col, tl.maximum(y, 0.0))
#
# y = tl.maximum(y + tl.load(parts_ptr + part * N + col), 0.0)
#     tl.store(y_ptr + col, y)
# -->
#
# So the parts go to memory in float32, and the epilogue moves from the matmul to the launch that adds them. The meter
# counts both:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_08 import FEW_ROWS, split

x_16, w_16, bias_16 = layer(16, 512, 64)
few = FEW_ROWS | {"BLOCK_K": 64}
one_launch = measure(lambda: run(tiles_kernel, x_16, w_16, bias_16, **few))
print("one launch:", one_launch)
for count in (2, 4):
    by_parts = measure(lambda count=count: split(x_16, w_16, bias_16, count, **few))
    print(f"{count} parts: {by_parts}, right: {right(by_parts.result, x_16, w_16, bias_16)}")
weights, part = 2 * 16384 * 1024 / 1e6, 4 * 16 * 1024 / 1e6
print(f"the layer's weights: {weights:.1f} MB; one part: {part:.2f} MB, written and read")

# %% [markdown]
# Reading weights takes most of the time. **Into how many parts would you split
# K = 16384, for 16 rows and 1024 columns on an H200?** (1, 2, 4, 8 or 16.)

# %% tags=["hide-input"]
into = predict_first("parts of K for 16 rows, 1024 columns, K = 16384", unit="parts")
into

# %% tags=["hide-input"]
narrow, square = (h200.experiment(f"matmul_{name}") for name in ("narrow_splits", "splits"))
print(f"the weights at copy bandwidth: {1e6 * 2 * 2**24 / h200.copy_bandwidth:.1f} us")
rows = []
for count in narrow:
    name = f"{count} part{'s' * (count > 1)}, 2 launches" if count else "no split, 1 launch"
    rows.append((name, *(f"{1e6 * each[count].median:.1f} us" for each in (narrow, square))))
display(
    table(
        ("", "16384 to 1024", "4096 to 4096"),
        rows,
        h200.label_of("matmul_splits", "matmul_narrow_splits"),
    )
)
into.compare(max(1, min(narrow, key=lambda count: narrow[count].median)))

# %% [markdown]
# The layer in the second column has just as many weights, but even without a split, 128 programs load them, so the
# epilogue should stay in the matmul. Here's that layer with our table's steps:

# %% tags=["hide-input"]
few_rows = h200.experiment("matmul_steps")["16x4096x4096"]
rows = ((name, f"{1e6 * time.median:.1f} us") for name, time in few_rows.items())
table(("16 rows", "time"), rows, h200.label_of("matmul_steps"))

# %% [markdown]
# Stages still pay off here, because they hide latency. The steps after them bring nothing or cost time, so don't reuse
# settings tuned at 4096 rows. All that matters is how fast the weights arrive. Tiles short along M and N, with a large
# BLOCK_K, beat even the library's bare matmul. (`linear_act` here is an earlier version; see *Going further*.)
#
# What if an epilogue needs a whole row, as LayerNorm does? A tile only has part of it. You can make the tile as wide as
# the row, but then it has only a few rows (*Going further* times that). As in lesson 07, fusing trades bytes for
# registers. Here it also costs *reuse*, because a matmul needs tiles that are large in both directions.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A colleague doubles BLOCK_K, and the kernel loads as many bytes as before. Is the meter wrong?
# <details><summary>Answer</summary>No. Bytes depend on the tile's rows and columns. Along K, each element is loaded
# once per tile anyway. BLOCK_K changes shared memory per stage and the number of iterations.</details>
#
# 2. K doubles. What happens to the share of time that fusing GELU saves?
# <details><summary>Answer</summary>It falls to about half. The matmul takes twice as long, while GELU's bytes depend
# only on M and N.</details>
#
# 3. How many FLOP per byte loaded does a tile of 192 x 128 do? Replace the dots with your answer.

# %%
answer = ...
self_test(
    answer, 192 * 128 / (192 + 128), "for each k, 2 x 192 x 128 FLOP and 2 x (192 + 128) bytes"
)

# %% [markdown]
# In [Exercise 08](../exercises/08_linear_act.ipynb) you'll write the kernel. Its checks cover values, rounding, bytes
# and tensor cores. Next up is [lesson 09](09_convolution.ipynb), a matmul whose left matrix is never in memory.
#
# ## Going further
#
# ### LayerNorm after a matmul
#
# LayerNorm needs the mean of a whole **row** of y, but a tile only has 128 or 256 columns. You can still fuse it if
# each program computes whole rows: a tile with few rows and all columns. An SM has 65,536 registers, so with 1024
# columns you get 32 rows, using half the register file for sums. Here are 8192 rows with K = 1024: in one launch, in
# two of ours, with cuBLAS and our LayerNorm, and for cuBLAS alone:
# <!-- given 65,536 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->

# %% tags=["hide-input"]
norms = h200.experiment("matmul_layer_norm")
rows = []
for columns, ways in norms.items():
    rows.append((columns, *(f"{1e6 * t.median:.1f} us" for t in ways.values())))
table(("columns", *ways), rows, h200.label_of("matmul_layer_norm"))

# %% [markdown]
# A 32 x 1024 tile does half the FLOP per byte of a 128 x 128 one, and it doesn't have the 64 rows that the H100's large
# instruction needs. At 512 columns 64 rows fit, and one launch wins.
# <!-- given 64 rows: m64 in the instruction's name -->
#
# So fuse a row reduction if whole rows make a good tile. There are two other ways. On compute capability 9.0 and later,
# the programs of a [cluster](../docs/glossary.md#cluster) (lesson 06) can exchange row sums through each other's shared
# memory, in CUDA C++ and CUTLASS but not in Triton. Or the epilogue can write each row's partial mean and squared
# deviations (lesson 05) for the next kernel to normalise with.
#
# ### Autotuning: triton.autotune
#
# You can also let Triton search ([autotuning](../docs/glossary.md#autotuning)). `triton.autotune` takes a list of
# configurations and a key:

# %%
SEARCHED = ((64, 64, 4, 3), (128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 8, 4), (128, 256, 4, 3))
configs = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in SEARCHED
]
tuned_kernel = triton.autotune(configs=configs, key=["M", "N", "K"])(tiles_kernel)

# %% [markdown]
# The first time you launch with a new M, N or K (or new dtypes), Triton compiles and times **every** configuration and
# keeps the fastest for that key. Timing takes a GPU, but compiling doesn't. For an H100:

# %% tags=["hide-input", "nbval-ignore-output"]
rows = []
for config in tuned_kernel.configs:
    made = compiled(tiles_kernel, "H100", **config.all_kwargs())
    m, n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
    name = f"{m}x{n}, {config.num_warps}, {config.num_stages}"
    spilled = f"{made.spill_bytes} B" if made.spill_bytes else ""
    shared = f"{made.shared_memory // 1024} KB"
    rows.append((name, made.registers, spilled, shared, made.occupancy().blocks))
table(("tile, warps, stages", "registers", "spilled", "shared memory", "blocks per SM"), rows)

# %% [markdown]
# You can rule out the one that spills without timing it, and `prune_configs_by` automates that. Its sums go through
# local memory at every step:

# %% tags=["hide-input"]
sweep, rows = h200.experiment("matmul_tiles"), []
searched = [f"{m}x{n}, {warps}, {stages}" for m, n, warps, stages in SEARCHED]
for name in searched:
    rows.append((name, f"{1e6 * sweep[name].median:.0f} us"))
table(("tile, warps, stages", "time"), rows, h200.label_of("matmul_tiles"))

# %% [markdown]
# Before you use it:
#
# - **It only searches your list.**
# - **It overfits to the key.** The winner is the fastest at one shape, alone on the GPU. With M in the key, every new
#   batch size stalls for a search. Without it, the first size you run decides for all.
# - **Its cache** is a dictionary in the process. `cache_results=True` or `TRITON_CACHE_AUTOTUNING=1` also saves it to
#   disk, and `TRITON_PRINT_AUTOTUNING=1` prints each winner.
# - **It runs your kernel many times**, so a kernel that adds to its output needs `reset_to_zero`.
#
# Our own kernels read their settings from a table in the source instead, so calls never search, and every run returns
# the same bits.
#
# ### The order of tiles
#
# L2 is small compared with DRAM, so a value has to be reused soon after it's loaded. Programs that run together form a
# [wave](../docs/glossary.md#wave), 264 of them on an H200 with two per SM. Say y has 64 x 64 tiles. If a wave covers 4
# rows of tiles and all columns, it needs 4 stripes of x and **all** 64 of w. If it covers a 16 by 16 square, it needs
# 16 of each. So we number the tiles in groups of `GROUP` rows, column by column within a group:

# %% tags=["hide-input"]
from kernels.tuned.linear_descriptors import grouped_order

print(inspect.getsource(grouped_order.fn))


# %% tags=["hide-input"]
@triton.jit
def grouped_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


# %% tags=["nbval-ignore-output", "hide-input"]
step("grouped tiles", grouped_kernel, (256, 128, 256))

# %% [markdown]
# Our layer has only 32 x 32 tiles. A wave covers a quarter of them, so the order hardly matters.
#
# ### Descriptors for TMA
#
# So far, every load computes 128 x 64 addresses and masks, which takes registers and instructions. Starting with
# compute capability 9.0, each SM has a copy engine, [TMA](../docs/glossary.md#tma). You describe a tensor once
# (address, shape, strides: a **descriptor**), and then a single thread requests the whole tile by its first row and
# column. It arrives in shared memory, swizzled, with zeros past the edge, so you don't need masks, even along K.


# %%
@triton.jit
def one_tile(
    x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        x = x_desc.load([row, start])
        w = w_desc.load([col, start])
        acc = tl.dot(x, w.T, acc)
    at = col + tl.arange(0, BLOCK_N)
    s = acc + tl.load(bias_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    y_desc.store([row, col], activate(s, ACT, y_desc.dtype).to(y_desc.dtype))


@triton.jit
def descriptors_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    one_tile(x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K)


# %% [markdown]
# `run` creates the descriptors on the host with `TensorDescriptor.from_tensor(x, [BLOCK_M, BLOCK_K])`. Rows must start
# at multiples of 16 bytes, so in bfloat16, a K of 104 works and 100 is rejected.
# <!-- given 16 bytes: CUDA driver API, cuTensorMapEncodeTiled -->

# %% tags=["hide-input"]
aligned = layer(70, 104, 96)
by_engine = run(descriptors_kernel, *aligned, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=2)
print("right:", right(by_engine, *aligned))

# %% tags=["nbval-ignore-output", "answers-loaded", "hide-input"]
step("descriptors", descriptors_kernel, (256, 128, 256))

# %% [markdown]
# On an H100, descriptors save registers; on a B200, they don't. An A100 has no TMA, so Triton expands the descriptors
# into pointers and masks. Stick with the pointer kernel there.
#
# With registers to spare on an H100, you can try a larger tile. It's slower, for a reason we'll get to:

# %% tags=["nbval-ignore-output", "answers-loaded", "hide-input"]
step("tiles of 128 x 256", descriptors_kernel, (256, 128, 256))

# %% [markdown]
# ### Persistent: prefetch the next tile during the epilogue
#
# Only one of these blocks fits on an SM, so while it runs its epilogue or fills its first stages, the tensor cores have
# nothing to do. The fix is a [persistent kernel](../docs/glossary.md#persistent-kernel): one program per SM that loops
# over tiles. `flatten=True` merges the two loops into one, so the next tile's loads start during this tile's epilogue.
# (This kernel's tensor cores still idle during the epilogue. On an H100, CUTLASS's *ping-pong* kernels avoid that: two
# groups of warps take turns, each with its own tile (CUTLASS documentation, *Efficient GEMM in CUDA*; we haven't timed
# them). A B200's tensor memory has room for the sums of two tiles.)


# %%
@triton.jit
def persistent_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        one_tile(
            x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K
        )


# %% tags=["hide-input"]
by_few = run(persistent_kernel, *aligned, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32, GROUP=2)
print("right:", right(by_few, *aligned))

# %% tags=["nbval-ignore-output", "hide-input"]
step("persistent", persistent_kernel, (256, 128, 256))

# %% [markdown]
# ### The tensor core instructions of three GPUs

# %% tags=["nbval-ignore-output", "hide-input"]
of_three = STEPS["tensor cores"][1]
for gpu in GPUS:
    found = compiled(tiles_kernel, gpu, **of_three).sass_view("tensor core").instructions
    print(f"{gpu}: {len(found):2} such instructions, the first: {found[0].text}")

# %% tags=["hide-input"]
for gpu, names in zip(GPUS, ("mma.sync", "wgmma.mma_async", "tcgen05.mma"), strict=True):
    print(gpu, names, names in compiled(tiles_kernel, gpu, **of_three).ptx)

# %% [markdown]
# ### Shared memory as a roof
#
# Even without conflicts, shared memory bandwidth is a limit: the thin slope in lesson 01's chart. How much traffic
# there is depends on which warps multiply together. In a tile of 128 x 128, each of 8 warps could compute 64 x 32 and
# fetch its own operands, or four warps together could compute 64 x 128:

# %% tags=["hide-input"]
from helpers.instruments import Roofline

pieces = {"one warp's 64 x 32": (64, 32), "four warps' 64 x 128": (64, 128)}
found = []
for gpu in ("A100", "H100"):
    ridge = Roofline(DEVICES[gpu], "bf16", "shared").ridge
    for name, (rows, cols) in pieces.items():
        made_of = rows * cols / (rows + cols)
        rates = (f"{each:.1f} FLOP/B" for each in (ridge, made_of))
        found.append((gpu, name, *rates, f"{min(1, made_of / ridge):.0%}"))
table(("", "", "shared memory's ridge", "intensity", "of the peak"), found)

# %% [markdown]
# On an A100, each warp can afford to fetch its own operands. On an H100, shared memory couldn't keep up with the tensor
# cores that way, so four warps fetch together.
#
# Find a row width that avoids conflicts, then count the wavefronts with the swizzle:

# %% tags=["hide-input"]
from helpers.figures import BanksExplorer

banks = BanksExplorer(width=32)
banks

# %% tags=["hide-input"]
from collections import Counter


def turns(place, banks=32):
    words = [4 * (8 * row + place(row)) + word for row in range(8) for word in range(4)]
    return max(Counter(word % banks for word in words).values())


print("segment 3 of eight rows, unswizzled:", turns(lambda row: 3), "wavefronts")
print("swizzled:                          ", turns(lambda row: 3 ^ row), "wavefront")

# %% [markdown]
# ### The tile model vs the compiler, the meter and measured times

# %% tags=["hide-input"]
found = []
for rows, cols, warps in ((64, 64, 4), (128, 128, 8), (128, 256, 8)):
    model = Tiling(rows, cols, step=64, warps=warps, stages=3)
    blocks = {"BLOCK_M": rows, "BLOCK_N": cols, "BLOCK_K": 64, "num_warps": warps, "num_stages": 3}
    made = compiled(tiles_kernel, "H200", **blocks)
    metered = intensity(tiles_kernel, (256, 64, 256), **blocks)
    near = abs(made.registers / model.registers - 1) < 0.25
    intensities = f"{model.intensity:.1f}, {metered:.1f}"
    registers = f"{model.registers}, {'near' if near else 'off'}"
    shared = f"{model.shared_memory // 1024}, {made.shared_memory // 1024}"
    found.append((f"{rows} x {cols}", warps, intensities, registers, shared))
columns = ("tile", "warps", "FLOP per byte", "registers", "shared memory, KB")
table(columns, found, "pairs: the model's value, then the metered or compiled one")

# %% tags=["hide-input"]
sweep, found = h200.experiment("matmul_tiles"), []
for name, time in sweep.items():
    size, *others = name.split(",")
    (rows, cols), (warps, stages) = map(int, size.split("x")), map(int, others)
    model = Tiling(rows, cols, step=64, warps=warps, stages=stages)
    reached = flops / time.median / DEVICES["H200"].peak_flops["bf16"]
    spills = "spills" if model.spills else ""
    found.append((name, f"{model.fed:.0%}", f"{reached:.0%}", spills))
table(
    ("tile, warps, stages", "of peak by L2", "measured", ""), found, h200.label_of("matmul_tiles")
)

# %% [markdown]
# Small tiles run as fast as L2 allows, or slightly faster (the model's bytes per clock come from a copy, which also
# writes). Other things slow large tiles down: addresses and masks, the loop's start and the epilogue (when the tensor
# cores idle), and DRAM. A tile that spills is several times slower.
#
# ### Tile order, explored, metered and timed
#
# An 8192 x 8192 result has 64 x 64 tiles of 128 x 128:
#
# 1. How many stripes does a wave need if you go row by row? Column by column?
# 2. Which group size needs the fewest over all waves, and why that one?
# 3. Compare the FLOP per byte of DRAM with the ridge. Does DRAM limit any of these orders?

# %% tags=["hide-input"]
from helpers.figures import TileOrderExplorer

order = TileOrderExplorer(group=1, wave=3)
order

# %% [markdown]
# <details><summary>What you should see</summary>1. Sixty-nine either way: five stripes of one operand and all of the
# other. 2. Groups of 16. A wave's 264 tiles then form roughly a 16 x 16 square, and a square has the shortest edge for
# its area. 3. No, as long as a wave's programs go through K in lockstep and nothing else uses L2: every wave is above
# the ridge.</details>
#
# Let's meter a wave of 20 tiles on a small layer with 8 x 8 tiles. It reads these stripes of x and w:

# %% tags=["hide-input"]
from helpers.figures.matmul.tile_order import stripes, wave_tiles

x_128, w_128, bias_128 = layer(128, 16, 128)
y_128 = torch.empty(128, 128, dtype=x.dtype, device=device)
blocks_of_16 = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
rows, given = [], (x_128, w_128, bias_128, y_128, 128, 128, 16)
for group in (1, 4, 8):
    of_order = {"ACT": "relu", "GROUP": group} | blocks_of_16
    found = measure(lambda of_order=of_order: grouped_kernel[(20,)](*given, **of_order))
    of_x, of_w = stripes(wave_tiles(0, 20, 8, 8, group))
    read = (found.unique_read - 32 * of_w) / (16 * 16 * 2)  # without the bias
    rows.append((group, f"{of_x} + {of_w}", f"{read:g}"))
    if group == 4:
        print(f"groups of 4: {read:g} stripes")
table(("rows per group", "by the model", "metered"), rows)

# %% [markdown]
# On a real H200, programs don't run in lockstep. The table lists the DRAM traffic from a model in which every wave
# loads all its stripes, the traffic that the profiler counted, and the time:

# %% tags=["hide-input"]
from helpers.figures.matmul.tile_order import all_stripes

by_group = h200.experiment("matmul_groups")
dram = h200.experiment("matmul_group_counters")
rows = []
for group, time in by_group.items():
    model = all_stripes(264, 64, 64, group) * 128 * 4096 * 2
    volumes = (f"{nbytes / 1e9:.2f} GB" for nbytes in (model, dram[group]["dram_read"]))
    rows.append((group, *volumes, f"{1e3 * time.median:.3f} ms"))
table(
    ("rows per group", "model", "counted", "time"),
    rows,
    h200.label_of("matmul_groups", "matmul_group_counters"),
)

# %% [markdown]
# The model is rough, but it picks the best group. DRAM traffic drops to a third, but the time falls far less, because
# DRAM wasn't the main bottleneck. The gain we're after is small too, so the order is still worth a line of index
# arithmetic. Here's the model at copy bandwidth for the 32 x 32 tiles of our table:

# %% tags=["hide-input"]
for group in (1, 16, 32):
    by_memory = all_stripes(264, 32, 32, group) * 128 * 4096 * 2 / h200.copy_bandwidth
    print(
        f"{group:2} rows per group: {1e6 * by_memory:.0f} us of DRAM traffic, "
        f"{1e6 * product:.0f} us "
        "of matmul"
    )

# %% [markdown]
# ### The three claims at every size

# %% tags=["hide-input"]
display(table(trial_columns, list(trial_rows(lambda *_: True)), trial_label))
autotuned = h200.experiment("matmul_autotuned")
rows = []
for epilogue, ways in autotuned.items():
    rows.append((epilogue, *(f"{1e6 * time.median:.1f} us" for time in ways.values())))
display(table(("epilogue", *ways), rows, h200.label_of("matmul_autotuned")))
h200.table("linear_act", "bfloat16")

# %% [markdown]
# The max-autotune times are for the library's matmul plus one kernel. The last columns include the overhead of a call
# from Python, which matters for short layers.
#
# ### From one row up
#
# When a server generates text, it multiplies one row per conversation. A prompt has thousands of rows.

# %% tags=["hide-input"]
from helpers.figures import sweep_chart
from helpers.instruments import recorded_sweep
from helpers.instruments.sweep_records import best_peer, median, share

at_all_sizes = recorded_sweep()
display(sweep_chart(at_all_sizes, "linear_act"))
display(at_all_sizes.summary(["linear_act"]), at_all_sizes.calls(["linear_act"]))
(point,) = (
    each for each in at_all_sizes.of("linear_act", "forward") if each["shape"] == [1, 4096, 4096]
)
rows = []
for shape in ([777, 300, 5000], [1023, 4097, 4099]):
    (odd,) = (each for each in at_all_sizes.of("linear_act", "forward") if each["shape"] == shape)
    peer = best_peer(odd)
    taken = (f"{median(odd, name):.1f} us" for name in ("fused", peer))
    rows.append((" x ".join(map(str, shape)), *taken, peer))
odd_columns = ("rows x K x columns", "ours", "best peer", "which")
display(table(odd_columns, rows, at_all_sizes.label([odd])))
print(f"one row reads its weights at {share(point):.0%} of copy bandwidth")

# %% [markdown]
# Up to 32 rows, the course's kernel swaps the operands, so that *weights* fill the tile's rows, and x is padded. Most
# of the time goes into reading weights, plus ramp-up and tail, which you can't hide in such a short kernel. At a few
# hundred rows, there aren't enough good-sized tiles to give every SM one. Beyond that, arithmetic dominates.
#
# Rows of 300 or 4097 elements start at addresses that don't allow wide loads or TMA, and the library slows down. The
# course's kernel first copies them into padded rows, which takes one more launch. (The chart shows one weight shape;
# the table counts all of them.)
#
# ### Fuse at low intensity, leave the rest to cuBLAS?
#
# **Claim: "arithmetic intensity below 100: consider fusing; above: leave it to cuBLAS."** We take the intensity of the
# fused operation, counting each tensor once. *Gained* is the speedup over eager PyTorch, which uses cuBLAS for its
# matmuls. *By the library* is the same for cuBLASLt's own GELU epilogue, if there is one.

# %% tags=["hide-input"]
import statistics


def flop_per_byte(point):
    """Return FLOP/byte of a fused operation in bf16, each tensor read or written once."""
    if point["kernel"] == "linear_act":
        m, k, n = point["shape"]
        return m * k * n / (m * k + k * n + m * n)
    if point["kernel"] == "flash_attention":
        batch, heads, key_heads, queries, keys, dim, _ = point["shape"]
        return heads * queries * keys / (heads * queries + key_heads * keys)
    return 3 / 4  # a norm: square, add, multiply; two bytes in, two out


def gained(point, provider="fused"):
    return median(point, "eager") / median(point, provider)


CASES = {
    "RMSNorm, 32768 x 4096": ("rms_norm", [32768, 4096]),
    "linear + GELU, 8 x 4096 x 4096": ("linear_act", [8, 4096, 4096]),
    "128 x 4096 x 4096": ("linear_act", [128, 4096, 4096]),
    "2048 x 1024 x 4096": ("linear_act", [2048, 1024, 4096]),
    "4096 x 4096 x 4096": ("linear_act", [4096, 4096, 4096]),
    "1023 x 4097 x 4099": ("linear_act", [1023, 4097, 4099]),
    "attention, one query, 65536 keys": ("flash_attention", [1, 32, 8, 1, 65536, 128, False]),
    "attention, 1024 tokens, dim 128": ("flash_attention", [16, 16, 16, 1024, 1024, 128, False]),
}
rows, shown = [], []
for name, (kernel, shape) in CASES.items():
    (point,) = (
        each
        for each in at_all_sizes.of(kernel, "forward")
        if each["shape"] == shape and each["dtype"] == "bf16"
    )
    shown.append(point)
    rule = "fuse" if flop_per_byte(point) < 100 else "leave"
    library = "cuBLASLt epilogue"
    by_library = f"{gained(point, library):.2f}x" if library in point["gpu"] else ""
    rows.append((name, f"{flop_per_byte(point):.3g}", rule, f"{gained(point):.2f}x", by_library))
columns = ("", "FLOP/byte", "by the claim", "gained", "by the library")
display(table(columns, rows, at_all_sizes.label(shown)))
linears = at_all_sizes.of("linear_act", "forward")
for side, those in (
    ("below", [each for each in linears if flop_per_byte(each) < 100]),
    ("above", [each for each in linears if flop_per_byte(each) >= 100]),
):
    gains = [gained(each) for each in those]
    ahead = sum(gained(each) > 1.03 * gained(each, "cuBLASLt epilogue") for each in those)
    print(
        f"{side} 100, {len(those)} linear layers: median gain {statistics.median(gains):.2f}x,",
        end="",
    )
    print(f" {max(gains):.2f}x at most; {ahead} faster than the library's epilogue")

# %% [markdown]
# **Verdict: fails as a rule.** Linear layers gain about as much above 100 as below it. The largest gain above 100 is
# for attention: fused, it does hundreds of FLOP per byte, but unfused, its matrix of scores goes through memory several
# times. Intensity tells you which roof limits an operation. It doesn't tell you how many bytes move *between* its
# steps, and those are the bytes that fusing saves. For a single matmul, though, it's good advice: above 100, the
# library's own epilogue is as fast as our kernel or faster at nearly every size. So leave it to cuBLAS, but have it
# fuse the epilogue. (The two exceptions have unaligned rows, which our kernel copies first.)
#
# ### Stream-K
#
# **Stream-K** is meant for grids that don't fill their last wave. It divides the steps of all tiles evenly among the
# SMs, so an SM may start in the middle of one tile and end in the middle of another. That eliminates the partial wave.
# But if a tile has two owners, they have to combine their sums through memory before the epilogue, and one has to wait
# for the other.

# %% tags=["hide-input"]
fits = compiled(persistent_kernel, "H200", **STEPS["persistent"][1]).occupancy()
found = []
for rows in (1152, 2176, 4096, 4224, 8320):
    tiles_now = -(-rows // 128) * (4096 // 256)
    used = fits.waves(tiles_now, DEVICES["H200"].sms).efficiency
    found.append((rows, tiles_now, f"{used:.0%}", f"{1 / used:.2f}x"))
display(table(("rows", "tiles", "slots used", "stream-K, at most"), found))
print(f"131 tiles with two owners: {2 * 131 * 128 * 256 * 4 / 1e6:.0f} MB written and read")

# %% [markdown]
# It pays off if the last wave would be nearly empty, but everywhere else, it costs extra bytes and waiting. Like
# split-K, it conflicts with the epilogue, which needs a sum with **one owner**.
#
# ### Whole rows, compiled
#
# Here's the kernel of *LayerNorm after a matmul*:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_08 import WHOLE_ROWS, linear_layer_norm, whole_rows_kernel

print(inspect.getsource(whole_rows_kernel.fn))

# %% tags=["hide-input"]
x_32, w_32, beta = layer(32, 64, 64)
gamma = torch.ones_like(beta)
normed = linear_layer_norm(x_32, w_32, gamma, beta, **WHOLE_ROWS[1024])
wanted = (x_32.double() @ w_32.double().T, (64,), gamma.double(), beta.double())
print("right:", torch.allclose(normed.double(), torch.nn.functional.layer_norm(*wanted), atol=0.02))

# %% tags=["nbval-ignore-output", "hide-input"]
from triton.tools.tensor_descriptor import TensorDescriptor

describe = TensorDescriptor.from_tensor
made = []
for columns, rows in ((512, 64), (1024, 32), (2048, 16), (4096, 16)):
    chosen = WHOLE_ROWS.get(columns, {"BLOCK_K": 16, "num_warps": 16, "num_stages": 2}) | {
        "BLOCK_M": rows
    }
    out = torch.empty(8192, columns, dtype=torch.bfloat16, device="meta")
    w_all = torch.empty(columns, 1024, dtype=torch.bfloat16, device="meta")
    tiles_of = [
        (large[:, :1024].contiguous(), rows, chosen["BLOCK_K"]),
        (w_all, columns, chosen["BLOCK_K"]),
    ]
    ins = [describe(tensor, list(block)) for tensor, *block in tiles_of]
    both = (*ins, out[0], out[0], describe(out, [rows, columns]), 1024)
    found = compile_for(whole_rows_kernel, *both, COLUMNS=columns, device="H200", **chosen)
    model = Tiling(rows, columns, step=32, warps=16, stages=2)
    spilled = f"{found.spill_bytes} B" if found.spill_bytes else ""
    made.append((columns, rows, f"{model.intensity:.1f}", found.registers, spilled))
table(("columns", "rows", "FLOP per byte of L2", "registers", "spilled"), made)

# %% [markdown]
# At 4096 columns, the width of many models, even the smallest tile spills.
#
# ### A feed-forward layer in one launch
#
# If you computed `gelu(x @ up.T) @ down.T` in one launch, the hidden values could stay in registers. But a program that
# owns 128 of the 11008 hidden values contributes to **every** output and has to add its share in memory
# (`benchmarks/experiments/lesson_08.py`).

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_08 import BLOCK, SHAPE

tokens, width, hidden = SHAPE
print(f"saved: {2 * 2 * tokens * hidden / 1e6:.0f} MB of hidden values, written and read")
print(
    f"added: {2 * 4 * tokens * width * hidden // BLOCK / 1e9:.1f} GB of sums, read and written by "
    "atomics"
)
one_launch = h200.experiment("ffn_one_launch")
rows = ((name, f"{1e3 * time.median:.2f} ms") for name, time in one_launch.items())
table(("", "time"), rows, h200.label_of("ffn_one_launch"))
