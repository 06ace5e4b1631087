# %% [markdown]
# # 08 Matmul epilogues: what comes after a product, for nothing
#
# A linear layer ends with a bias and an activation: `gelu(x @ w.T + bias)`. The library computes the product better
# than you are likely to, writes it to memory, and the activation fetches every number back. Yet each of them was in a
# register a moment before. **Who may add an epilogue there? Whoever writes the product. So how much of the library's
# speed can you reach yourself, and is what you gain worth it?**
#
# After this lesson you can
#
# - grow a matrix product from one output a program to a persistent kernel on tensor cores, and say what each step buys;
# - predict a tile's bytes, registers and shared memory, and read from the machine code which tensor core it runs on;
# - say how stages, banks and the order of tiles keep tensor cores fed;
# - put bias and activation into the product, rounded once, and prove it against double precision;
# - name what an epilogue cannot do: split sums, whole rows; and what forcing it costs.
#
# About 75 minutes. It follows on [07 Occupancy](07_occupancy.ipynb) and leads to
# [exercise 08](../exercises/08_linear_act.ipynb).

# %%
import inspect

import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, self_test
from kernels.activations import ACTIVATIONS, activate
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# ## What is to be had
#
# Take a layer of 4096 x 4096 weights on 4096 rows, in bfloat16. Written out, it is two launches: the library's product,
# which adds the bias by itself, and the activation. Of the product's result, M x N numbers, the activation reads all
# and writes all.

# %%
M = N = K = 4096
flops = 2 * M * N * K
product = flops / h200.matrix_rate
activation = 2 * 2 * M * N / h200.copy_bandwidth
print(h200.label)
print(f"product: {flops / 1e9:.0f} GFLOP, {1e6 * product:.0f} us at the rate of a large one")
print(f"activation: {4 * M * N / 1e6:.0f} MB, {1e6 * activation:.0f} us at the speed of a copy")

# %% [markdown]
# Fusing takes the second line away. **By how many per cent of the time of both can it shorten the layer, at the very
# most?**

# %%
most = predict_first("the most that fusing GELU can save, 4096 cubed", unit="%")
most

# %%
most.compare(100 * activation / (product + activation))

# %% [markdown]
# A product that is slower than the library's by as much gains nothing. That is the whole difficulty of this lesson: the
# epilogue is three lines, and it wants a product that is as good as anybody's.
#
# ## One output a program
#
# We start at the bottom. Each program computes one number of y, from a row of x and a row of w. (`torch.nn.Linear`
# keeps its weight as N rows of K, so `x @ w.T` multiplies rows with rows.) A grid may have **two dimensions**:
# `tl.program_id(0)` counts rows of y here, `tl.program_id(1)` columns. ACT is known when the kernel is compiled, so
# each activation is a kernel of its own, without a branch.


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


# %%
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
# Sums are float32: added up in bfloat16, whose numbers have three digits, the later products would not change the sum
# any more. **How many gigabytes do all programs load, for 4096 x 4096 numbers of y with K = 4096?** Each program loads
# one row of x and one of w, at two bytes a number.

# %%
loaded = predict_first("loaded by one output a program, 4096 cubed", unit="GB")
loaded

# %%
traffic = measure(lambda: output_kernel[6, 8](x, w, bias, y, 6, 8, 700, ACT="gelu", BLOCK_K=512))
per_flop = (traffic.by_tensor["x"].read + traffic.by_tensor["w"].read) / (2 * 6 * 8 * 700)
print(f"metered on the small layer: {per_flop:g} bytes a FLOP")
loaded.compare(per_flop * flops / 1e9)

# %% [markdown]
# Bytes for a FLOP stay the same at any size, so the meter may measure small. Hardly any of these bytes come from
# memory: every row is wanted thousands of times, and caches have it. But a cache, too, has a bandwidth.
#
# ## A table to grow
#
# Each step of the kernel gets a line: FLOP for each byte loaded and the bytes of the large layer, from the meter; what
# the compiler makes of it on an A100, an H100 and a B200 (registers a thread, KB of shared memory, and the instruction
# that multiplies); and the time on an H200, as recorded. `run(kernel, x, w, bias, act, **settings)` makes room for y
# and launches a program for each tile (`benchmarks/experiments/lesson_08.py`, which keeps this lesson's kernels for timing).

# %%
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


# %%
lines = {}
times = h200.experiment("matmul_steps")["4096x4096x4096"]


def step(name, kernel, size):
    settings, cells = STEPS[name][1], []
    flop_a_byte = intensity(kernel, size, **settings)
    for gpu in GPUS:
        made = compiled(kernel, gpu, **settings)
        how = next(each for each in MULTIPLIES if made.instructions[each])
        registers = f"{made.registers}{'+' if made.spill_bytes else ''}"
        cells.append(f"{registers}, {made.shared_memory / 1024:.0f} KB, {how}")
    asked = (f"{flop_a_byte:.1f}", f"{flops / flop_a_byte / 1e9:.2f}")
    lines[name] = (name, *asked, *cells, f"{1e3 * times[name].median:.3f}")
    shown = list(lines.values())[: list(lines).index(name) + 1]
    return table(("", "FLOP/B", "GB", *GPUS, "H200, ms"), shown, h200.label_of("matmul_steps"))


# %% tags=["nbval-ignore-output", "answers-loaded"]
step("one output a program", output_kernel, (6, 1024, 8))

# %% [markdown]
# (+ marks spills.)
#
# ## A tile in registers
#
# A row of x, once loaded, could serve many columns of y. So let a program make a **tile** of y: 64 rows and 64 columns,
# all its sums in registers. For each k it loads a column of 64 numbers from x and one from w, and adds all 64 x 64
# products.
#
# In Triton, `row[:, None]` stands a vector up as a column and `col[None, :]` lays one down as a row; what combines the
# two is a block of two dimensions. So are addresses and masks. `finish` is the **epilogue**: bias, activation, one
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
# Along K a tile of `BM` x `BN` loads `BM + BN` numbers and multiplies `BM * BN` pairs. **How many times fewer bytes
# than one output a program does a tile of 64 x 64 load?**

# %%
fewer = predict_first("times fewer bytes by tiles of 64 x 64", unit="times")
fewer

# %%
tile = {"BLOCK_M": 64, "BLOCK_N": 64}
fewer.compare(intensity(registers_kernel, (128, 16, 64), **tile) * per_flop)

# %% tags=["nbval-ignore-output"]
step("a tile in registers", registers_kernel, (128, 16, 64))

# %% [markdown]
# Is it faster by as much? Not nearly: see the last column. Bytes are no longer what it waits for. Each load fetches two
# bytes from a row of their own, which is the stride of lesson 03b, and the loop is as long as K. And the arithmetic is
# done by ordinary cores (`FFMA`: a multiplication and an addition in float32; on a B200 `FFMA2` does two at once and
# `FHFMA` takes 16-bit factors as they are), where there are others:
# <!-- given 16 bits: the format's definition -->

# %%
h100 = DEVICES["H100"]
cores, tensor = h100.peak_flops["fp32"], h100.peak_flops["bf16"]
print(
    f"an H100's ordinary cores: {cores / 1e12:.0f} TFLOP/s, {1e3 * flops / cores:.2f} ms for the "
    "product"
)
print(f"its tensor cores:        {tensor / 1e12:.0f} TFLOP/s, {1e3 * flops / tensor:.2f} ms")

# %% [markdown]
# ## Tensor cores: tl.dot
#
# **Look at the last bar, and at the one above it**: the same multiply-adds, by the cores that we have used so far and
# by those that this lesson is about.

# %%
from helpers.figures import gpu_picture

gpu_picture("H100", lit="tensor cores")

# %% [markdown]
# `tl.dot(a, b, acc)` multiplies two tiles and adds the product to a third. So we walk along K in steps of 64 columns
# and load whole tiles of x and w, which are wide loads again. `w.T` is a view: nothing is moved for it. A tensor core
# takes 16-bit operands as they are and adds in float32. Along K a tile needs 16 at least; rows and columns
# that the instruction has and the tile has not are filled up, and wasted.
# <!-- given 16 bits: the format's definition -->


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


# %%
uneven = layer(70, 100, 90)  # no multiple of any tile
by_tiles = run(tiles_kernel, *uneven, BLOCK_M=32, BLOCK_N=64, BLOCK_K=32)
print("right:", right(by_tiles, *uneven))

# %% [markdown]
# Watch a tile grow. x, w and y are 32 x 32 here, in tiles of 16: while `acc` adds up products, nothing is written; bias
# and activation come last, before the one store. (Cells are shaded by size.)

# %%
from helpers.figures import watch

x_32, w_32, bias_32 = layer(32, 32, 32)
of_16 = {"ACT": "relu", "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
watch(tiles_kernel[2, 2], x_32, w_32, bias_32, torch.empty_like(x_32), 32, 32, 32, **of_16)

# %% [markdown]
# Larger tiles now, 128 x 128 for 8 warps. **How many FLOP for each byte loaded?**

# %%
of_tile = predict_first("FLOP a byte loaded, tiles of 128 x 128", unit="FLOP/B")
of_tile

# %%
wide = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
of_tile.compare(intensity(tiles_kernel, (256, 64, 128), **wide))

# %% tags=["nbval-ignore-output"]
step("tensor cores", tiles_kernel, (256, 128, 256))

# %% [markdown]
# The same source, three instructions, and three places for what it needs:
#
# | | A100 | H100 | B200 |
# |---|---|---|---|
# | instruction | `HMMA`, of one warp | `HGMMA`, of four warps together | `UTCHMMA`, started by one thread |
# | operands | registers, by way of shared memory | shared memory | shared memory |
# | sums | registers | registers | tensor memory, a store of its own |
# | in PTX | `mma.sync` | `wgmma.mma_async` | `tcgen05.mma` |
#
# On an H100 the four warps ask for one large product and go on (hence *async*); on a B200 not even the sums take
# registers until the epilogue fetches them. Look at the instructions themselves:

# %% tags=["nbval-ignore-output"]
of_three = STEPS["tensor cores"][1]
for gpu in GPUS:
    found = compiled(tiles_kernel, gpu, **of_three).sass_view("tensor core").instructions
    print(f"{gpu}: {len(found):2} such instructions, the first: {found[0].text}")

# %%
for gpu, names in zip(GPUS, ("mma.sync", "wgmma.mma_async", "tcgen05.mma"), strict=True):
    print(gpu, names, names in compiled(tiles_kernel, gpu, **of_three).ptx)

# %% [markdown]
# What the operands are decides the rate. float32 tiles would be multiplied as tf32, at half the rate and with ten bits
# of a fraction; with `input_precision="ieee"` on the ordinary cores. Converting 16-bit tiles to float32 before `tl.dot`
# gains nothing, then: products of 16-bit numbers are exact in the float32 sum anyway.
# <!-- given 16 bits: the format's definition -->
#
# ## A mistake: no mask along K
#
# Rows and columns that do not exist may hold anything: they are not stored. Along K it is different. Suppose somebody
# masks w there and forgets x: the products are x times 0, so what does it matter? K is 40, in steps of 32, and the rows
# of x are 64 apart, as a slice of a larger tensor has them: from 40 on they hold something else.


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
# **Of the 16 x 16 results, how many are wrong if what lies beyond the rows of x is 0, and how many if it is NaN?** (As
# memory may be that nobody has written yet.) Give the second number.

# %%
nans = predict_first("wrong results of 256, NaN beyond the end", unit="")
nans

# %%
x_40, w_40, _ = layer(16, 40, 16)
sums = torch.empty(16, 16, device=device)
for beyond in (0.0, float("nan")):
    larger = torch.full((16, 64), beyond, dtype=x_40.dtype, device=device)
    larger[:, :40] = x_40
    unmasked_kernel[(1,)](larger, w_40, sums, 40, 64, TILE=16, BLOCK_K=32)
    wrong = ~torch.isclose(sums.double(), x_40.double() @ w_40.double().T, atol=1e-5)
    print(
        f"beyond the end {beyond}: {int(wrong.sum())} wrong, {int(sums.isnan().sum())} of them NaN"
    )
nans.compare(int(wrong.sum()))

# %% [markdown]
# Zero times NaN is NaN, and one of them is enough for a sum. With zeros in the memory the mistake passes every test. On
# a contiguous x the row goes on with the next row's numbers, and the last one leaves the tensor, which the meter sees:

# %%
astray = measure(lambda: unmasked_kernel[(1,)](x_40, w_40, sums, 40, 40, TILE=16, BLOCK_K=32))
print(
    astray.hazards[0].kind,
    "of",
    astray.hazards[0].elements,
    "elements, at",
    astray.hazards[0].where,
)

# %% [markdown]
# So mask both operands along K, with `other=0.0`.
#
# ## Shared memory and its banks
#
# Where do the operands wait for the tensor cores? In shared memory, where all warps of the program find them. **Look at
# the lit bar**: it is far shorter than memory's, and still far longer than the tensor cores'.

# %%
gpu_picture("H100", lit="shared memory")

# %% [markdown]
# So what is fetched from there must be used more than once, and no turn must be lost. A tile's
# row is a step of K: 64 numbers, which are 32 words, one for each bank. Lesson 07 counted the turns: lanes that read
# **down a column** of such a tile all ask one bank. Try it, and find a width that does not collide:

# %%
from helpers.figures import BanksExplorer

banks = BanksExplorer(width=32)
banks

# %% [markdown]
# Tensor cores are fed in pieces of 8 rows, 16 bytes (four words) of each. A longer row would help, as in lesson 07, but
# an H100's tensor cores know a few layouts only, and none has gaps between its rows. Hence the **swizzle**: in row r,
# piece p lies where piece `p ^ r` (exclusive or) would be.
# <!-- given 16 bytes: PTX ISA, ldmatrix and the layouts of wgmma's operands -->

# %%
from collections import Counter


def turns(place, banks=32):
    words = [4 * (8 * row + place(row)) + word for row in range(8) for word in range(4)]
    return max(Counter(word % banks for word in words).values())


print("piece 3 of eight rows, as it comes:", turns(lambda row: 3), "turns")
print("swizzled:                          ", turns(lambda row: 3 ^ row), "turn")

# %% [markdown]
# Triton swizzles by itself; descriptors, below, have it done by the copy engine.
#
# Even without conflicts shared memory is a roof, the thin slope of lesson 01's chart. What crosses there depends on who
# multiplies. Of a tile of 128 x 128, each of 8 warps makes a piece of 64 x 32, and fetches its operands for itself;
# four warps together make one of 64 x 128:

# %%
from helpers.instruments import Roofline

pieces = {"a warp's 64 x 32": (64, 32), "four warps' 64 x 128": (64, 128)}
found = []
for gpu in ("A100", "H100"):
    ridge = Roofline(DEVICES[gpu], "bf16", "shared").ridge
    for name, (rows, cols) in pieces.items():
        made_of = rows * cols / (rows + cols)
        rates = (f"{each:.1f} FLOP/B" for each in (ridge, made_of))
        found.append((gpu, name, *rates, f"{min(1, made_of / ridge):.0%}"))
table(("", "", "shared memory's ridge", "made of", "of the peak"), found)

# %% [markdown]
# On an A100 warps may fetch for themselves. On an H100 shared memory would not keep up with its tensor cores, so four
# warps fetch together.
#
# ## Stages: load while you multiply
#
# With one stage the loop takes turns: load a tile, wait, multiply, wait. `num_stages=2` keeps a second pair of tiles in
# shared memory: the next one arrives while this one is multiplied. The copy must not go through registers and must not
# be waited for, so it is an instruction of its own kind: `LDGSTS` in the machine code, `cp.async` in PTX. If a load
# takes as long as two products:

# %%
from helpers.figures import stages_chart

stages_chart()

# %% [markdown]
# **How many KB of shared memory do two stages take?** One is 128 rows of x and 128 of w, 64 numbers each.

# %%
two = predict_first("shared memory of two stages, 128 x 128 x 64", unit="KB")
two

# %% tags=["nbval-ignore-output"]
rows = []
for stages in (1, 2, 3, 4):
    wide = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": stages}
    found = {gpu: compiled(tiles_kernel, gpu, **wide) for gpu in ("A100", "H100")}
    each = []
    for one in found.values():
        each.append(f"{one.shared_memory // 1024} KB, {one.occupancy().blocks} an SM")
    rows.append((stages, *each))
table(("stages", "A100", "H100"), rows)

# %%
two.compare(compiled(tiles_kernel, "H100", **STEPS["two stages"][1]).shared_memory / 1024)

# %% [markdown]
# On an H100 the tensor cores read shared memory itself, so each stage is a whole pair of tiles; on an A100 the operands
# of the current step have gone to registers, and one pair fewer will do. Each stage is paid for out of the SM's store.
# What the third costs, and what the fourth would:

# %% tags=["nbval-ignore-output"]
from helpers.figures import occupancy_chart

occupancy_chart(compiled(tiles_kernel, "H100", **STEPS["three stages"][1]).occupancy())

# %% [markdown]
# How many does it take? As many as cover the way from memory. **With three stages instead of one, how many times faster
# is the H200?**

# %%
faster = predict_first("speed-up of three stages over one, H200", unit="times")
faster

# %%
by_stage = h200.experiment("matmul_stages")["pointers"]
rows = []
for stages, time in by_stage.items():
    rate = f"{flops / time.median / 1e12:.0f} TFLOP/s"
    rows.append((stages, f"{1e3 * time.median:.3f} ms", rate))
display(table(("stages", "time", "rate"), rows, h200.label_of("matmul_stages")))
faster.compare(by_stage[1].median / by_stage[3].median)

# %% [markdown]
# The third stage still brings something. The fourth takes the SM's second block, and loses more than it brings.

# %% tags=["nbval-ignore-output"]
step("two stages", tiles_kernel, (256, 128, 256))

# %% tags=["nbval-ignore-output"]
step("three stages", tiles_kernel, (256, 128, 256))

# %% [markdown]
# ## Tile, warps and stages
#
# What limits the tile? Now you can say it in advance. The model, for an H200:
#
# - a tile asks L2 for `2 (BM + BN)` bytes for each k, and makes `BM BN / (BM + BN)` FLOP of a byte. L2 hands an SM some
#   39 bytes a clock: to the left of that **ridge** the tensor cores wait for L2;
# - its sums take `BM BN` registers, shared by the threads; everything else about 48 a thread;
# - a stage takes `2 (BM + BN)` bytes of shared memory for each k of its step.
# <!-- given 39 bytes: helpers/instruments/prediction.py, from a copy of 8 MB on an H200 -->
#
# 1. From 128 x 128, go to 256 x 256. Which resource forbids it, with 8 warps? With 16?
# 2. 128 x 256 in 4 warps: what happens?
# 3. Which is the largest number of stages that 128 x 256 can have?
# 4. Which tiles leave room for two blocks on an SM, and what is good about that?

# %%
from helpers.figures import TileChoiceExplorer, Tiling

tiles = TileChoiceExplorer(tile=(128, 128), warps=8, stages=3)
tiles

# %% [markdown]
# <details><summary>What is to be found</summary>1. Registers: 256 x 256 sums are as many as an SM has registers. In 8
# warps that is more than a thread can have, in 16 it leaves nothing for the rest. 2. The sums alone are all the
# registers that a thread can have: it spills. 3. Four. 4. Those of 128 x 128 sums or fewer, where shared memory has
# their stages twice: up to three of 128 x 128. While one block is in its epilogue or waits, the other
# multiplies.</details>
#
# A model is worth what its tests say. Three points, by the compiler and by the meter:

# %%
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
columns = ("tile", "warps", "FLOP a byte", "registers", "shared memory, KB")
table(columns, found, "the model's, and what is metered or compiled")

# %% [markdown]
# And by the clock:

# %%
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
# Small tiles reach what L2 allows, or a little more (the model's bytes a clock are a copy's, which writes, too, and
# these only read). Large ones wait for other things: addresses and masks, which take instructions and registers; the
# loop's start and the epilogue, during which the tensor cores rest; memory behind L2. The next steps go after these.
# And what spills is several times slower.
#
# ## The order of tiles
#
# L2 itself must be filled. **Look at how little it holds**, beside memory: what is to be found there must be asked for
# again soon.

# %%
gpu_picture("H200", lit="L2")

# %% [markdown]
# Programs that run together form a **wave**, 264 of them where an H200 has two on each SM. If
# they make a strip of y, 4 rows of tiles and all columns, they need 4 stripes of x and **all** of w. If they make a
# block, 16 rows by 16 columns, they need 16 of each. Tiles are numbered in `GROUP` rows at a time, column by column
# within:

# %%
from kernels.tuned.linear_descriptors import grouped_order

print(inspect.getsource(grouped_order.fn))

# %% [markdown]
# For 8192 x 8192 results in tiles of 128 x 128, that is 64 x 64 tiles:
#
# 1. Row by row, how many stripes does a wave need? Column by column?
# 2. Which group needs the fewest over all waves, and why that number?
# 3. Groups of 8 and of 32 are nearly equal. Why?
# 4. Compare FLOP a byte of memory with the ridge. Does memory limit any of these orders?

# %%
from helpers.figures import TileOrderExplorer

order = TileOrderExplorer(group=1, wave=3)
order

# %% [markdown]
# <details><summary>What is to be found</summary>1. Sixty-nine either way: five of one and all of the other. 2. Groups
# of 16: a wave's 264 tiles are about a square of 16 x 16, and a square has the least edge for its area. 3. Eight rows
# by 33 columns, 32 rows by nine: nearly the same rectangle, lying or standing. 4. None, if a wave's programs go through
# K in step and nothing else uses L2; row by row comes nearest.</details>
#
# The meter confirms it on a small layer with 8 x 8 tiles, of which it runs a wave of 20. **How many stripes, of x and w
# together, does that wave read in groups of 4 rows?**

# %%
wave = predict_first("stripes read by 20 programs, groups of 4 rows", unit="stripes")
wave


# %%
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


# %%
from helpers.figures.matmul.tile_order import stripes, wave_tiles

x_128, w_128, bias_128 = layer(128, 16, 128)
y_128 = torch.empty(128, 128, dtype=x.dtype, device=device)
blocks_of_16 = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
rows, given = [], (x_128, w_128, bias_128, y_128, 128, 128, 16)
for group in (1, 4, 8):
    of_order = {"ACT": "relu", "GROUP": group} | blocks_of_16
    found = measure(lambda of_order=of_order: grouped_kernel[(20,)](*given, **of_order))
    of_x, of_w = stripes(wave_tiles(0, 20, 8, 8, group))
    read = (found.unique_read - 32 * of_w) / (16 * 16 * 2)  # but for the bias
    rows.append((group, f"{of_x} + {of_w}", f"{read:g}"))
    if group == 4:
        wave.compare(read)
table(("rows a group", "by the model", "metered"), rows)

# %% [markdown]
# On the H200 nobody makes programs go in step. What memory really delivers, as its profiler counts it, beside the model
# with all stripes of every wave, and the time:

# %%
from helpers.figures.matmul.tile_order import all_stripes

by_group = h200.experiment("matmul_groups")
dram = h200.experiment("matmul_group_counters")
rows = []
for group, time in by_group.items():
    model = all_stripes(264, 64, 64, group) * 128 * 4096 * 2
    volumes = (f"{nbytes / 1e9:.2f} GB" for nbytes in (model, dram[group]["dram_read"]))
    rows.append((group, *volumes, f"{1e3 * time.median:.3f} ms"))
table(
    ("rows a group", "model", "counted", "time"),
    rows,
    h200.label_of("matmul_groups", "matmul_group_counters"),
)

# %% [markdown]
# The model is rough, and still its best group is the best. Memory delivers a third of the bytes; time gains little, for
# memory was not what this product waited for. Our table's layer has 32 x 32 tiles, a wave is a quarter of them, and in
# what order hardly matters. By the model, in microseconds at the speed of a copy:

# %%
for group in (1, 16, 32):
    by_memory = all_stripes(264, 32, 32, group) * 128 * 4096 * 2 / h200.copy_bandwidth
    print(
        f"{group:2} rows a group: {1e6 * by_memory:.0f} us of memory under {1e6 * product:.0f} us "
        "of products"
    )

# %% tags=["nbval-ignore-output"]
step("grouped tiles", grouped_kernel, (256, 128, 256))

# %% [markdown]
# ## Descriptors: let the copy engine do it
#
# Every load so far computes 128 x 64 addresses and masks, in registers, with instructions that no tensor core needs.
# From compute capability 9.0 on, an SM has a copy engine (**TMA**). It is told once of a tensor (where, how many rows
# and columns, how far apart: a **descriptor**), then asked for a tile by its first row and column: one thread asks, the
# tile arrives in shared memory, swizzled, zeros where the tensor ends. Masks are gone, along K too.


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
# The host makes the descriptors: `TensorDescriptor.from_tensor(x, [BLOCK_M, BLOCK_K])`; `run` does. Rows must start at
# multiples of 16 bytes: a K of 100 bfloat16 numbers is refused, 104 is not.
# <!-- given 16 bytes: CUDA driver API, cuTensorMapEncodeTiled -->

# %%
aligned = layer(70, 104, 96)
by_engine = run(descriptors_kernel, *aligned, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP=2)
print("right:", right(by_engine, *aligned))

# %% tags=["nbval-ignore-output", "answers-loaded"]
step("descriptors", descriptors_kernel, (256, 128, 256))

# %% [markdown]
# Fewer registers on the newer two. An A100 has no such engine: there Triton turns descriptors into pointers and masks,
# more of them than ours, and spills. An A100 is better off with the kernel that it had.
#
# The registers that came free go into a larger tile:

# %% tags=["nbval-ignore-output", "answers-loaded"]
step("tiles of 128 x 256", descriptors_kernel, (256, 128, 256))

# %% [markdown]
# Fewer bytes, and slower!
#
# ## Persistent: the next tile under this one's epilogue
#
# Only one such block fits on an SM. So nobody multiplies while it is in its epilogue or fills its first stages; with
# two blocks, the other did. The cure: a program for each SM that walks over the tiles. In one loop over all of its
# tiles (`flatten=True` makes one of two) the loads of the next tile are asked for while this one is finished.
# (In an epilogue the tensor cores still rest; after it they find their first stages there.)


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


# %%
by_few = run(persistent_kernel, *aligned, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32, GROUP=2)
print("right:", right(by_few, *aligned))

# %% [markdown]
# **How many times the speed of one output a program, after all these steps?**

# %%
gain = predict_first("the persistent kernel against one output a program", unit="times")
gain

# %% tags=["nbval-ignore-output"]
step("persistent", persistent_kernel, (256, 128, 256))

# %%
gain.compare(times["one output a program"].median / times["persistent"].median)
rows = []
for name in ("persistent", "linear_act", "cuBLAS and GELU", "cuBLAS alone"):
    rate = f"{flops / times[name].median / 1e12:.0f} TFLOP/s"
    rows.append((name, f"{1e3 * times[name].median:.3f} ms", rate))
table(("", "time", "rate"), rows, h200.label_of("matmul_steps"))

# %% [markdown]
# (`linear_act` is the course's own. Its plain kernel, `kernels/tiled/linear_act.py`, is `tiles_kernel` with row strides,
# a residual and the sum that training keeps. The tuned one, timed here, is in `kernels/tuned/linear_descriptors.py`: the
# same steps, the tile's way out in two halves so that a fourth stage fits. *cuBLAS alone* has the bias and no GELU.) So
# with GELU it takes a few per cent longer than the library's product without, and a launch for GELU takes more than
# that.
#
# ## The epilogue: nearly free, and precise
#
# Now for what this was done. **Of the large layer's time, how many per cent does GELU add to the product with bias?**

# %%
added = predict_first("time that GELU adds as an epilogue, H200", unit="%")
added

# %%
epilogues = h200.experiment("matmul_activations")
rows = []
for name, time in epilogues.items():
    longer = time.median / epilogues["none"].median - 1
    rows.append((name, f"{1e3 * time.median:.4f} ms", f"{longer:+.1%}"))
display(table(("epilogue", "time", "longer"), rows, h200.label_of("matmul_activations")))
added.compare(100 * (epilogues["gelu"].median / epilogues["bias"].median - 1))
apart = times["cuBLAS and GELU"].median - times["cuBLAS alone"].median
inside = epilogues["gelu"].median - epilogues["bias"].median
print(f"GELU as an epilogue {1e6 * inside:.0f} us, as a launch of its own {1e6 * apart:.0f} us")
print(f"an exponential for each element of y: {1e6 * M * N / DEVICES['H200'].special_rate:.0f} us")

# %% [markdown]
# Not a byte more than the product's own. What is left is instructions: while they run, the tensor cores rest. The last
# line is lesson 01's roof of the special functions, which GELU needs once an element here.
#
# ## A mistake: rounded before the bias
#
# The other gain is precision. The sum is float32 and lies in registers; the library's result has been rounded to 16
# bits before the activation sees it. It is easy to do the same by accident: convert the sum as soon as the loop is
# done, so that the epilogue needs half the registers.
# <!-- given 16 bits: the format's definition -->


# %%
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
# **What share of its results is not the bfloat16 number next to the exact one?**

# %%
off = predict_first("results not the nearest, rounded before the bias", unit="%")
off

# %%
layer_64 = layer(64, 256, 64)
precise = exact(*layer_64, act="relu")
nearest = precise.to(torch.bfloat16)
for name, early in (("at the end", False), ("before the bias", True)):
    y_64 = torch.empty_like(nearest)
    rounding_kernel[(1,)](*layer_64, y_64, 256, EARLY=early, TILE=64, BLOCK_K=64)
    alive = precise > 0
    missed = (y_64 != nearest)[alive].double().mean().item()
    worst = ((y_64.double() - precise).abs() / precise)[alive].max().item()
    print(f"rounded {name}: {missed:.0%} not the nearest, worst relative error {worst:.2g}")
off.compare(round(100 * missed))

# %% [markdown]
# Once at the end is as good as 16 bits can be. Rounded early, a sum and a bias that nearly cancel leave mostly rounding
# error. The library with a separate activation stands between: its bias is added in float32, its result rounded twice.
# <!-- given 16 bits: the format's definition -->
#
# ## Three claims on trial
#
# **Claim: "fusing MatMul+ReLU gains 1.07x, MatMul+Bias+ReLU 1.24x, MatMul+Bias+GELU 1.35x."** Nobody says on which GPU
# or size, or what the unfused one is. So several sizes, and two ways to be unfused: a launch for each operation, as the
# names suggest, and PyTorch's own `linear`, whose library adds the bias. **By how many times is bias and GELU faster,
# fused, than a launch for each operation, at 4096 x 4096 x 4096?**

# %%
claimed = predict_first("MatMul+Bias+GELU, fused against a launch each", unit="times")
claimed

# %%
trial = h200.experiment("matmul_epilogues")
rows = []
for epilogue, shapes in trial.items():
    for shape, ways in shapes.items():
        ours = ways["ours"].median
        others = ("a launch each", "bias by cuBLAS", "torch.compile")
        gains = (f"{ways[way].median / ours:.2f}x" for way in others)
        rows.append((epilogue, shape, *gains, f"{1e6 * ours:.1f} us"))
columns = ("epilogue", "shape", "a launch each", "linear, act", "torch.compile", "fused")
display(table(columns, rows, f"{h200.label_of('matmul_epilogues')}\nthe GPU's own time, cold L2"))
whole = trial["bias, gelu"]["4096x4096x4096"]
claimed.compare(whole["a launch each"].median / whole["ours"].median)

# %%
autotuned = h200.experiment("matmul_autotuned")
rows = []
for epilogue, ways in autotuned.items():
    rows.append((epilogue, *(f"{1e6 * time.median:.1f} us" for time in ways.values())))
table(("epilogue", *ways), rows, h200.label_of("matmul_autotuned"))

# %% [markdown]
# Other shapes with bias and GELU (rows of x, K, columns of y), among them the 1024 rows of lesson 02. The share is that
# of the library's rate here. The last columns have what a call from Python costs: for short layers compare these, too,
# much of them is Python. (The sweep below was measured later, and has newer ones.)

# %%
h200.table("linear_act", "bfloat16")

# %% [markdown]
# **Verdict: each holds at one size, against the worst opponent.** At 4096 a launch for each operation gives much what
# is claimed. Small layers and short K gain far more, large ones less: the activation takes time by the bytes of y, the
# product by K times as much. And most of what is claimed for the *bias* is no fusion of yours: `linear` adds it in the
# library. Beside that, what is left at 4096 is about a tenth.
#
# torch.compile joins what follows to one kernel beside the library's product. max-autotune may take a Triton product
# instead, with the epilogue in it; its times here are those of the library's product and a kernel more.
#
# ## From one row up
#
# A server that writes the next word multiplies one row for each conversation, a prompt has thousands. **One row, times
# 4096 x 4096 weights in bf16, on an H200: what share of the speed at which it can read the weights does our kernel
# reach?**

# %%
one_row = predict_first("one row, share of the speed of reading its weights, H200", unit="%")
one_row

# %%
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
columns = ("rows x K x columns", "ours", "best peer", "which")
display(table(columns, rows, at_all_sizes.label([odd])))
one_row.compare(100 * share(point))

# %% [markdown]
# Up to 32 rows the catalogue turns the product round: a row of the tile is a row of the *weights*, and x, so few
# columns, is what is padded. The time goes into reading weights, and into a start and an end that so short a kernel
# cannot hide.
# At a few hundred rows there are fewer tiles of a good size than SMs; after that arithmetic decides, and the epilogue's
# gain is what this lesson found.
#
# Rows of 300 or 4097 numbers begin where neither a wide load nor the copy engine may, and the library falls there. The
# catalogue copies them into padded rows first, a launch more, and is ahead, as the last table shows. (The chart
# draws one shape of weights, the table counts all.)
#
# ## What an epilogue cannot do: sums in parts
#
# An epilogue needs the whole sum. Take 16 rows, as when sixteen conversations each get their next word, and a layer
# from 16384 numbers to 1024. In tiles of 16 x 32, y is 32 programs' work, and 100 of an H200's 132 SMs have nothing to
# do. **Split-K** gives them work: programs that sum parts of K, to be added up afterwards. But GELU of a sum is not the
# sum of GELUs:

# %%
from torch.nn.functional import gelu

x_16, w_16, bias_16 = layer(16, 512, 64)
wide_x, wide_w, wide_bias = x_16.double(), w_16.double(), bias_16.double()
first, second = (wide_x[:, part] @ wide_w[:, part].T for part in (slice(0, 256), slice(256, 512)))
whole_sum = gelu(first + second + wide_bias)
each_part = gelu(first + wide_bias / 2) + gelu(second + wide_bias / 2)
print(
    f"largest result {whole_sum.max():.2f}, largest error {(each_part - whole_sum).abs().max():.2f}"
)

# %% [markdown]
# So the parts go to memory in float32, and a second launch adds them, then bias and activation: the epilogue is fused
# with the addition, no longer with the product.

# %%
from benchmarks.experiments.lesson_08 import FEW_ROWS, join_kernel, split

print(inspect.getsource(join_kernel.fn))

# %%
few = FEW_ROWS | {"BLOCK_K": 64}
one_launch = measure(lambda: run(tiles_kernel, x_16, w_16, bias_16, **few))
print("one launch:", one_launch)
for count in (2, 4):
    by_parts = measure(lambda count=count: split(x_16, w_16, bias_16, count, **few))
    print(f"{count} parts: {by_parts}, right: {right(by_parts.result, x_16, w_16, bias_16)}")

# %% [markdown]
# What such a layer waits for is its weights, and a part is small beside them. **Into how many parts would you split
# 16384 products, for 16 rows and 1024 columns on an H200?** (1, 2, 4, 8 or 16.)

# %%
print(
    f"weights: {2 * 16384 * 1024 / 1e6:.1f} MB, a part: {4 * 16 * 1024 / 1e6:.2f} MB, written and "
    "read"
)

# %%
into = predict_first("parts of K for 16 rows, 1024 columns, K = 16384", unit="parts")
into

# %%
narrow, square = (h200.experiment(f"matmul_{name}") for name in ("narrow_splits", "splits"))
print(f"the weights at the speed of a copy: {1e6 * 2 * 2**24 / h200.copy_bandwidth:.1f} us")
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
# The second column has as many weights and 128 programs to fetch them without any split: there the epilogue may stay
# where it is, and should. The same layer by the steps of our table:

# %%
few_rows = h200.experiment("matmul_steps")["16x4096x4096"]
rows = ((name, f"{1e6 * time.median:.1f} us") for name, time in few_rows.items())
table(("16 rows", "time"), rows, h200.label_of("matmul_steps"))

# %% [markdown]
# What made the large product fast is of no use here. All that counts is how the weights arrive, and low tiles with long
# steps beat even the library's product alone.
#
# **Stream-K** goes further, for grids that do not fill their last wave. All steps of all tiles are dealt out evenly,
# so an SM may begin in the middle of one tile and end in the middle of another. The last wave is gone; but a tile with
# two owners must be joined before its epilogue, through memory, and one owner waits for the other.

# %%
fits = compiled(persistent_kernel, "H200", **STEPS["persistent"][1]).occupancy()
found = []
for rows in (1152, 2176, 4096, 4224, 8320):
    tiles_now = -(-rows // 128) * (4096 // 256)
    used = fits.waves(tiles_now, DEVICES["H200"].sms).efficiency
    found.append((rows, tiles_now, f"{used:.0%}", f"{1 / used:.2f}x"))
display(table(("rows", "tiles", "slots used", "stream-K, at most"), found))
print(f"131 tiles with two owners: {2 * 131 * 128 * 256 * 4 / 1e6:.0f} MB written and read")

# %% [markdown]
# It pays where one wave more would be nearly empty, and costs bytes and waiting everywhere else: the larger the grid,
# the less there is to gain. Both fight the epilogue for the same reason. It needs a sum that has **one owner**.
#
# ## When not to fuse: LayerNorm
#
# LayerNorm, after a product, needs the mean of a whole **row** of y. A tile has 128 or 256 of its columns. To fuse it
# all the same, a program must make whole rows: a tile of few rows and all columns.

# %%
from benchmarks.experiments.lesson_08 import WHOLE_ROWS, linear_layer_norm, whole_rows_kernel

print(inspect.getsource(whole_rows_kernel.fn))

# %%
x_32, w_32, beta = layer(32, 64, 64)
gamma = torch.ones_like(beta)
normed = linear_layer_norm(x_32, w_32, gamma, beta, **WHOLE_ROWS[1024])
wanted = (x_32.double() @ w_32.double().T, (64,), gamma.double(), beta.double())
print("right:", torch.allclose(normed.double(), torch.nn.functional.layer_norm(*wanted), atol=0.02))

# %% [markdown]
# An SM has 65,536 registers, and a block no more. **A row has 1024 columns. What is the largest number of rows, a power
# of two, whose sums leave room for anything else?**
# <!-- given 65,536 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->

# %%
most_rows = predict_first("rows of 1024 columns in a block's registers", unit="rows")
most_rows

# %% tags=["nbval-ignore-output"]
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
table(("columns", "rows", "FLOP a byte of L2", "registers", "spilled"), made)
# %%
most_rows.compare(65536 // 1024 // 2)

# %% [markdown]
# 64 rows would take every register there is. With 32 the tile is long and flat, makes half the FLOP of a byte that
# 128 x 128 does, and is too low for the H100's large products (`HGMMA` takes 64 rows). At 4096 columns, which is what
# models have, the least tile spills. **LayerNorm on 8192 x 1024 results, K = 1024: how many times as long as two
# launches does one take?**

# %%
longer = predict_first("linear and LayerNorm, one launch against two", unit="times")
longer

# %%
norms = h200.experiment("matmul_layer_norm")
rows = []
for columns, ways in norms.items():
    rows.append((columns, *(f"{1e6 * t.median:.1f} us" for t in ways.values())))
display(table(("columns", *ways), rows, h200.label_of("matmul_layer_norm")))
longer.compare(norms[1024]["one launch"].median / norms[1024]["cuBLAS and LayerNorm"].median)

# %% [markdown]
# One launch loses by far at 1024 columns, and **wins** at 512. There 64 rows fit, in large products, with as many FLOP
# of a byte as a tile of 128 x 128 nearly. So the rule is not "never": fuse a row's reduction where whole rows make a
# good tile, and no further. (What stays open otherwise: the epilogue adds up each row's part of sum and squares, and
# the kernel after it normalises as it loads.)
#
# And a whole feed-forward layer, `gelu(x @ up.T) @ down.T`? One launch would keep the hidden values in registers; but a
# program that owns 128 of 11008 hidden values has a part of **every** output, and must add it in memory
# (`benchmarks/experiments/lesson_08.py`).

# %%
from benchmarks.experiments.lesson_08 import BLOCK, SHAPE

tokens, width, hidden = SHAPE
print(f"spared: {2 * 2 * tokens * hidden / 1e6:.0f} MB of hidden values, written and read")
print(
    f"added: {2 * 4 * tokens * width * hidden // BLOCK / 1e9:.1f} GB of sums, read and written by "
    "atomics"
)
one_launch = h200.experiment("ffn_one_launch")
rows = ((name, f"{1e3 * time.median:.2f} ms") for name, time in one_launch.items())
table(("", "time"), rows, h200.label_of("ffn_one_launch"))

# %% [markdown]
# Fusing is a trade of bytes for registers, as in lesson 07, and now of bytes for *reuse* as well: a product lives on
# tiles that are large both ways. Whatever an operation after it needs beyond its tile, costs that.
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A colleague doubles BLOCK_K and finds as many bytes loaded as before. Is the meter wrong?
# <details><summary>Answer</summary>No. Bytes depend on the tile's rows and columns: along K every number is loaded
# once for each tile anyway. BLOCK_K changes how many numbers a stage holds, so shared memory and the loop's
# length.</details>
#
# 2. Why does the K mask need `other=0.0` in both operands?
# <details><summary>Answer</summary>What is beyond the end is multiplied into every result. If one operand is 0 there
# and the other NaN or infinite, the product is NaN.</details>
#
# 3. The same kernel in SASS shows `HMMA` on one GPU, `HGMMA` on another. Where does each have its operands, and what
#    does that change for shared memory?
# <details><summary>Answer</summary>HMMA takes them from registers, so shared memory can hold one stage fewer; HGMMA
# reads shared memory itself, and every stage is held there until it is multiplied.</details>
#
# 4. Somebody splits K in eight and adds ReLU to every part, because that saves a launch. For which inputs is it right?
# <details><summary>Answer</summary>Only where the parts of each sum have one sign. ReLU of a sum is not the sum of
# ReLUs.</details>
#
# 5. A product with K = 64 writes 8192 x 8192 results. Is its epilogue worth more or less than with K = 4096?
# <details><summary>Answer</summary>Much more. The product has a sixty-fourth of the arithmetic and the activation takes
# as long as before: with so short a K the layer waits for the bytes of y, and fused they make one trip of
# three.</details>
#
# 6. How many FLOP for each byte loaded does a tile of 192 x 128 make? Put your number in place of the dots.

# %%
answer = ...
self_test(answer, 192 * 128 / (192 + 128), "2 x 192 x 128 FLOP for 2 x (192 + 128) bytes, each k")

# %% [markdown]
# [Exercise 08](../exercises/08_linear_act.ipynb) has you write the kernel: values, one rounding, bytes and tensor cores
# are checked. Next: [lesson 09](09_convolution.ipynb), a product whose left matrix is nowhere in memory.
