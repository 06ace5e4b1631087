# %% [markdown]
# # 09 Convolution, batch norm, ReLU: a matmul without the matrix
#
# Image networks repeat the same three operations over and over: convolution, batch norm, ReLU. Nearly all of the
# arithmetic is in the convolution. Batch norm and ReLU mostly move bytes, and at inference, batch norm is just one
# multiply and one add per element. **What does it take to make it disappear: a new kernel, or some algebra with pencil
# and paper?**
#
# By the end of this lesson you'll be able to
#
# - write a convolution as a tiled matmul whose left matrix never exists in memory, and count how many times it reads
#   each pixel;
# - write masks for a convolution's padding, and find out what a passing test can miss;
# - explain how an image's memory layout affects sectors and load width;
# - fold batch norm into the weights or into an epilogue, and compare the rounding;
# - explain why neither works during training;
# - estimate the gain from fusion with a single number, the depth of the matmul.
#
# About 75 minutes. This lesson uses the tiles and `tl.dot` from [08 Matmul epilogues](08_matmul_epilogues.ipynb),
# and prepares you for [exercise 09](../exercises/09_conv_bn_relu.ipynb).

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import traffic_chart
from helpers.instruments import compile_for, measure, recorded, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime
from kernels.tiled.conv_bn_act import LARGE

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")
same = torch.Generator().manual_seed(0)  # the same values on every machine


def normal(*shape):
    return torch.randn(shape, generator=same).to(device)


# %% [markdown]
# Here are batch norm and ReLU after a convolution, first as separate kernels, then inside the convolution's kernel.
# Press **Play**.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("convolution")

# %% [markdown]
# ## The cost of the unfused version
#
# We'll use two 14 x 14 images with 16 channels, in fp16. The 3 x 3 filter moves one pixel at a time
# ([stride](../docs/glossary.md#stride) 1), and the image gets a border of zeros (padding 1), so the output is also 14 x
# 14, with 32 channels. Each of the filter's nine positions is a **tap**. At **inference**, batch norm uses a mean and a
# variance per channel, saved during training:

# %%
last = torch.channels_last  # a memory layout, explained below
x = normal(2, 16, 14, 14).half().to(memory_format=last)
w = (normal(32, 16, 3, 3) / 12).half().to(memory_format=last)  # 12: the root of 16 x 3 x 3
gamma, beta, mean = normal(3, 32)
var, eps = normal(32).abs() + 0.5, 1e-5


def separate(x, w, stride=1, padding=1):
    s = F.conv2d(x, w, stride=stride, padding=padding)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


# %% [markdown]
# **Over all the kernels, how many times is a tensor the size of the result read or written?**

# %% tags=["hide-input"]
trips = predict_first("reads and writes of result-sized tensors, unfused", unit="trips")
trips

# %% tags=["hide-input"]
unfused = measure(separate, x, w)
y = unfused.result
given = x.nbytes + w.nbytes
print(f"{unfused.launches} launches, {unfused.bytes_total / 1e3:.0f} kB;", end=" ")
print(f"{given / 1e3:.0f} kB of that is x and w")
trips.compare(
    round((unfused.bytes_total - given) / y.nbytes),
    "The convolution writes its output, batch norm reads and writes, ReLU reads and writes. Only "
    "the last write is the result.",
)

# %% tags=["hide-input"]
title = "Unfused, a tensor the size of the result is read or written five times, the inputs once"
chart = traffic_chart({"unfused": unfused}, title)
in_kb = lambda nbytes: f"{nbytes / 1e3:.0f} kB"
trips.on(chart, "x", lambda count: given + count * y.nbytes, row=0, says=in_kb)

# %% [markdown]
# As with matmuls, an [epilogue](../docs/glossary.md#epilogue) could apply batch norm and ReLU before the store. But is
# a convolution a matmul?
#
# ## A convolution is a matmul
#
# Take output pixel $(p, q)$ and output channel $k$. With $r$ and $s$ running over the filter's taps and $c$ over the
# input channels,
#
# $$y_{kpq} = \sum_{r,s,c} w_{kcrs}\; x_{c,\; p \cdot \text{stride} + r - \text{padding},\; q \cdot \text{stride} + s -
# \text{padding}}$$
#
# This is one sum over $(r, s, c)$: the weights times the pixel's **window**. Write each window as a row of a matrix,
# and the convolution is that matrix times the weights. `F.unfold` builds the matrix for you (with windows as columns).
# **How many times larger than the image is it?**

# %% tags=["hide-input"]
larger = predict_first("matrix of windows, times as large as x: 3 x 3, stride 1", unit="times")
larger

# %% tags=["hide-input"]
windows = F.unfold(x.float(), 3, padding=1)
product = (w.float().reshape(32, -1) @ windows).reshape(2, 32, 14, 14)
right = F.conv2d(x.float(), w.float(), padding=1)
print("the same:", torch.allclose(product, right, atol=1e-2))
print("windows, taps x channels each:", tuple(windows.shape))
larger.compare(
    windows.numel() / x.numel(),
    "Each pixel is in one window per tap. (The border of "
    "zeros makes up for the pixels at the edge.)",
)

# %% [markdown]
# Early libraries really did write that matrix to memory (**im2col**). Here's how slow that is on an H200, at four
# larger sizes that we'll use throughout this lesson:

# %% tags=["hide-input"]
steps = h200.experiment("conv_steps")
steps = {
    kind: {tuple(map(int, size.split("x"))): steps[kind][size] for size in steps[kind]}
    for kind in steps
}
bf16, fp32 = steps["bf16, channels last"], steps["fp32, channels first"]


def named(shape):
    images, channels, height, width, filters, taps = shape
    return f"{images} x {channels} x {height} x {width}, {filters} of {taps} x {taps}"


rows = []
for shape, times in bf16.items():
    both = (f"{1e6 * times[name].median:.0f} us" for name in ("windows, product", "conv"))
    rows.append((named(shape), *both))
columns = (
    "images x channels x height x width, filters",
    "im2col and matmul",
    "library's convolution",
)
table(columns, rows, f"{h200.label_of('conv_steps')}, bf16")

# %% [markdown]
# (With 1 x 1 filters, the matrix is just the image, so a library would skip the copy.)
#
# A tiled matmul doesn't need the
# matrix in memory. A program loads a [tile](../docs/glossary.md#tile) of rows, one slice at a time. All it needs is the
# address that row `pixel`, column `at` *would have*, and it can compute that from the image. This is called [implicit
# GEMM](../docs/glossary.md#implicit-gemm). There's one row for each output pixel of every image, and one column for
# each tap and channel. The number of columns is the **depth** of the matmul.


# %%
@triton.jit
def first_window(
    pixel, at, size, strides, TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr
):
    channels, height, width, out_height, out_width = size
    tap, channel = at // channels, at % channels
    image = (pixel // (out_height * out_width)).to(tl.int64)
    row = pixel // out_width % out_height * STRIDE + tap // TAPS - PADDING
    col = pixel % out_width * STRIDE + tap % TAPS - PADDING
    place = row * width + col
    there = (place >= 0) & (place < height * width)
    return image * strides[0] + channel * strides[1] + row * strides[2] + col * strides[3], there


# %% [markdown]
# `size` and `strides` are tuples, which you can pass straight to a kernel. `pixel` is a column vector and `at` a row
# vector, so combining them gives a tile. Wherever `there` is false, the load returns 0, which is exactly what padding
# needs.
#
# The rest is an ordinary matmul loop. We pass in the function that locates the windows, so that we can swap it later:


# %%
@triton.jit
def products(
    x_ptr, w_ptr, pixel, k, pixels, out_channels, size, strides, WINDOW: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    depth = TAPS * TAPS * size[0]
    acc = tl.zeros((pixel.shape[0], k.shape[1]), tl.float32)
    for start in range(0, depth, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        place, there = WINDOW(pixel, at[None, :], size, strides, TAPS, STRIDE, PADDING)
        x = tl.load(x_ptr + place, mask=there & (pixel < pixels) & (at < depth)[None, :], other=0.0)
        w = tl.load(
            w_ptr + k * depth + at[:, None],
            mask=(at < depth)[:, None] & (k < out_channels),
            other=0.0,
        )
        acc = tl.dot(x, w, acc)
    return acc


# %%
@triton.jit
def conv_kernel(
    x_ptr, w_ptr, y_ptr, pixels, out_channels, size, strides, WINDOW: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    k = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    s = products(
        x_ptr, w_ptr, pixel, k, pixels, out_channels, size, strides,
        WINDOW, TAPS, STRIDE, PADDING, BLOCK_IN,
    )  # fmt: skip
    tl.store(
        y_ptr + pixel.to(tl.int64) * out_channels + k, s, mask=(pixel < pixels) & (k < out_channels)
    )


# %%
TILE = {"BLOCK_PIXELS": 64, "BLOCK_OUT": 32, "BLOCK_IN": 16}


def conv(kernel, window, x, w, vectors=(), stride=1, padding=1):
    (images, channels, height, width), (out_channels, _, taps, _) = x.shape, w.shape
    down, across = ((size + 2 * padding - taps) // stride + 1 for size in (height, width))
    y = torch.empty(images, down, across, out_channels, dtype=x.dtype, device=x.device)
    pixels = images * down * across
    grid = triton.cdiv(pixels, TILE["BLOCK_PIXELS"]), triton.cdiv(out_channels, TILE["BLOCK_OUT"])
    size = (channels, height, width, down, across)
    options = {"WINDOW": window, "TAPS": taps, "STRIDE": stride, "PADDING": padding, **TILE}
    w = w.permute(0, 2, 3, 1).contiguous()  # no copy if its channels are last
    kernel[grid](x, w, *vectors, y, pixels, out_channels, size, x.stride(), **options)
    return y.permute(0, 3, 1, 2)


# %% tags=["hide-input"]
def is_right(s, *given, **options):
    exact = F.conv2d(*(each.double() for each in given), **options)
    return torch.isclose(s.double(), exact, rtol=1e-2, atol=1e-2)


first = measure(conv, conv_kernel, first_window, x, w)
print("nothing out of bounds:", not first.hazards)
no_padding = conv(conv_kernel, first_window, x, w, padding=0)
print("right without padding:", bool(is_right(no_padding, x, w).all()))
print("right with padding:", bool(is_right(first.result, x, w, padding=1).all()))

# %% [markdown]
# The kernel makes no [out-of-bounds](../docs/glossary.md#out-of-bounds) access, reads nothing uninitialised, and passes
# a test without padding. It's still wrong. **What percentage of the output pixels are wrong?** Take a window centred on
# the first column. Where does the kernel look for the pixel to its left?

# %% tags=["hide-input"]
share = predict_first("output pixels wrong, 14 x 14, padding 1", unit="%")
share

# %% tags=["hide-input"]
wrong = ~is_right(first.result, x, w, padding=1)[0].all(dim=0)
for row in wrong[[0, 1, 6, 13]]:
    print("".join("x" if each else "." for each in row))
share.compare(
    100 * wrong.float().mean().item(),
    "In memory, the pixel before the first one in a row is the last one of the row above. That's "
    "a valid address, so no instrument complains, but the value isn't 0. Above and below the "
    "image, the mask happened to be right, because `place` is outside the plane there.",
)

# %% [markdown]
# Here's the same bug in a kernel small enough to trace by hand: three rows of four pixels, a three-tap filter along the
# row, padding 1, and one program per row. **Fix the marked line so that the kernel stays inside the image.**


# %%
@triton.jit
def border_kernel(x_ptr, w_ptr, y_ptr, rows, width, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    y = tl.zeros((BLOCK,), tl.float32)
    for tap in range(3):
        at = row * width + col + tap - 1
        there = (at >= 0) & (at < rows * width)  # <- here
        y += tl.load(x_ptr + at, mask=there, other=0.0) * tl.load(w_ptr + tap)
    tl.store(y_ptr + row * width + col, y)


image, taps = torch.arange(1.0, 13).view(3, 4), torch.tensor([1.0, 10, 100])
convolved = torch.nn.functional.conv1d(image[:, None], taps[None, None], padding=1)[:, 0]
both = ("x_ptr", "w_ptr")
puzzle(border_kernel, 3, image, taps, wanted=convolved, shared=both, rows=3, width=4, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>there = (col + tap >= 1) & (col + tap <= width)</code>: the tap reads column
# <code>col + tap - 1</code>, so check that against the width.</details>
#
# <!-- choices
# there = (at >= 0) & (at < rows * width)
#
# there = (col + tap >= 0) & (col + tap < width)
#
# there = (col + tap >= 1) & (col + tap <= width)
#
# there = (col >= 1) & (col < width - 1)
#
# there = (at >= row * width) & (at < rows * width)
# -->
#
# In two dimensions, the mask has to check both the row and the column. `window` is `first_window` with this line
# instead of the old mask, so it no longer needs `place`:
#
# ```python
# there = (row >= 0) & (row < height) & (col >= 0) & (col < width)
# ```


# %% tags=["hide-input"]
@triton.jit
def window(
    pixel, at, size, strides, TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr
):
    channels, height, width, out_height, out_width = size
    tap, channel = at // channels, at % channels
    image = (pixel // (out_height * out_width)).to(tl.int64)
    row = pixel // out_width % out_height * STRIDE + tap // TAPS - PADDING
    col = pixel % out_width * STRIDE + tap % TAPS - PADDING
    there = (row >= 0) & (row < height) & (col >= 0) & (col < width)
    return image * strides[0] + channel * strides[1] + row * strides[2] + col * strides[3], there


# %% tags=["hide-input"]
for stride, padding in ((1, 1), (1, 0), (2, 1), (3, 2)):
    s = conv(conv_kernel, window, x, w, stride=stride, padding=padding)
    right = bool(is_right(s, x, w, stride=stride, padding=padding).all())
    print(f"stride {stride}, padding {padding}: {tuple(s.shape)}, right: {right}")

# %% [markdown]
# ## Reads per pixel
#
# The explorer below shows a 12 x 12 image with tiles of 16 output pixels. On the left is the padded input, with the
# number of reads per pixel, and on the right is the tile. Move the sliders with the mouse or the arrow keys:
#
# 1. All tiles, stride 1, padding 1: how many times is a pixel in the middle read? At an edge? In a corner?
# 2. Stride 2: how do the counts change, and what happens to the regular pattern? At what stride is no pixel read twice?
# 3. A 1 x 1 filter with stride 2 and no padding: how much of the image is never read?
# 4. 3 x 3, stride 1, padding 0, tile 0: choose *the first* tap, then *the middle*. How do the pixels that they read
#    differ?
# 5. A 1 x 1 filter, stride 1, padding 2: what does tile 0 compute?

# %% tags=["hide-input"]
from helpers.figures import Windows, WindowsExplorer

explorer = WindowsExplorer(taps=3, stride=1, padding=1, tile=3)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. A pixel in the middle is read once per tap, one at an edge a third
# fewer times, and one in a corner only four times. 2. Once, twice or four times, depending on whether its row and
# column are odd. At stride 3, windows of three no longer overlap. 3. Three quarters of it. 4. Only in position: one row
# lower and one column further right. **Each tap reads the same shape, shifted.** 5. Zeros, because its windows contain
# only padding.</details>
#
# Does the kernel really do this? Let's count its requests with the meter. Each time a pixel is read, all of its
# channels are read:

# %% tags=["hide-input"]
rows = []
for side, stride, padding in ((3, 1, 1), (3, 2, 1), (1, 2, 0)):
    model = Windows(14, 14, side, stride, padding)
    found = measure(conv, conv_kernel, window, x, w[:, :, :side, :side], (), stride, padding)
    metered = found.by_tensor["x"].read / (2 * 16 * x.itemsize)  # per image and channel
    expected = model.in_picture(model.reads()).sum()
    rows.append((f"{side} x {side}", stride, expected, f"{metered:.0f}"))
table(("window", "stride", "reads of 196 pixels, by the model", "metered"), rows)

# %% [markdown]
# So even though the matrix of windows isn't in memory, the kernel still **requests** all of it, many times the size of
# the image. If it requests the same pixel again soon enough, the pixel is still in cache. But is it soon enough? If one
# tile can't hold all the filters, every tile of filters requests the whole image again.
#
# On an H200, take 64 images of 56 x 56 pixels and 128 channels in bf16, 256 filters of 3 x 3, and tiles of 128 pixels
# by 64 filters. A program requests each pixel nine times, and four programs request the same pixels. The grid runs
# through all tiles of pixels before it moves to the next tile of filters. Such a pass reads x (51 MB) and writes 26 MB,
# and [L2](../docs/glossary.md#l2) holds 63 MB. **How many times is x read from DRAM?**
# <!-- given 26 MB, 63 MB: 64 x 56 x 56 x 64 x 2 bytes; 60 MiB, helpers/instruments/devices.toml -->

# %% tags=["hide-input"]
delivered = predict_first("times x is read from DRAM (requested 9 x 4 times)", unit="times")
delivered

# %% tags=["hide-input"]
counters = h200.experiment("conv_counters")
pixels, tiles = 64 * 56 * 56, 256 // 64
image_bytes, filter_bytes = 2 * 128 * pixels, 2 * 256 * 128 * 9
model = Windows(56, 56, 3, 1, 1)
requested = 2 * 128 * 64 * tiles * model.in_picture(model.reads()).sum()
requested += filter_bytes * pixels // 128
counted = counters["channels last"][1]
print(h200.label_of("conv_counters"))
print(f"x: {image_bytes / 1e6:.0f} MB; requested, with the weights: {requested / 1e9:.2f} GB")
print(f"read from L2: {32 * counted['l2_read'] / 1e9:.2f} GB;", end=" ")
print(f"from memory: {counted['dram_read'] / 1e6:.0f} MB")
print(f"by the course's kernel, from memory: {counters['catalogue'][1]['dram_read'] / 1e6:.0f} MB")
delivered.compare(
    (counted["dram_read"] - filter_bytes) / image_bytes,
    "The nine taps add no memory traffic, because they follow each other so closely that the "
    "pixel is still in cache. The four tiles of filters do cost four reads: each is a pass over "
    "all images, and by the time it ends, the first images have been evicted from L2. The "
    "course's kernel runs all filter tiles of the same pixels together, so memory delivers x "
    "once. As in any matmul, the order of the tiles matters.",
)

# %% [markdown]
# ## Channels first, channels last
#
# There are two layouts for an image tensor (images, channels, height, width). **Channels first** stores one plane after
# another, so all pixels of a channel are contiguous. **[Channels last](../docs/glossary.md#channels-last)** stores one
# pixel after another, so all channels of a pixel are contiguous. You index both the same way. Only the strides differ,
# so our kernel works with either:

# %% tags=["hide-input"]
first_order = x.contiguous()
print("strides, channels last: ", x.stride())
print("strides, channels first:", first_order.stride())
same_result = torch.equal(
    conv(conv_kernel, window, x, w), conv(conv_kernel, window, first_order, w)
)
print("the same result:", same_result)

# %% [markdown]
# But memory delivers whole [sectors](../docs/glossary.md#sector) of 32 bytes. With channels last, the 16 fp16 channels
# of a pixel fill exactly one sector. With channels first, a tap reads a row of pixels from one channel's plane, shifted
# by the tap's offset. Take 16 x 16 images, so that each row is one sector. **With channels first, at stride 2, how many
# bytes of x are fetched per byte requested?**
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %% tags=["hide-input"]
waste = predict_first(
    "bytes of x fetched per byte requested, channels first, stride 2", unit="times"
)
waste

# %% tags=["hide-input"]
rows, fetched = [], {}
for side in (16, 14):
    plane = normal(2, 16, side, side).half()
    for order, each in (("last", plane.to(memory_format=last)), ("first", plane)):
        for stride in (1, 2):
            found = measure(conv, conv_kernel, window, each, w, (), stride)
            of_x = found.by_tensor["x"].read
            of_w = found.bytes_read - of_x  # whole sectors
            fetched[side, order, stride] = (32 * found.sectors_read - of_w) / of_x
        shown = (f"{fetched[side, order, stride]:.2f} B" for stride in (1, 2))
        rows.append((f"{side} x {side}, channels {order}", *shown))
display(table(("fetched per byte requested", "stride 1", "stride 2"), rows))
waste.compare(
    fetched[16, "first", 2],
    "Only every second pixel of a sector is used. (It's slightly above 2 because a tap that "
    "falls into the padding uses one fewer pixel.) With rows of 14 pixels the waste doubles: rows "
    "aren't aligned to sectors, so a sector also brings in pixels of the row that stride 2 skips.",
)

# %% [markdown]
# A cache can make up for some of this waste, because another tap will need the rest of the sector. It can't do anything
# about **load width**. With channels last, a thread can load 16 bytes at a time: eight channels of one pixel, all of
# them inside the image or all outside. With channels first, it would have to load eight neighbouring pixels, but a
# tap's shift leaves them unaligned, and some of them may be padding:
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->

# %% tags=["hide-input"]
half = {"dtype": torch.float16, "device": "meta"}
images, weights = torch.empty(64, 128, 56, 56, **half), torch.empty(256, 3, 3, 128, **half)
result, size = torch.empty(64, 56, 56, 256, **half), (128, 56, 56, 56, 56)
options = {"WINDOW": window, "TAPS": 3, "STRIDE": 1, "PADDING": 1}
options |= {"BLOCK_PIXELS": 128, "BLOCK_OUT": 64, "BLOCK_IN": 32, "num_warps": 4}


def compiled(gpu, layout=last):
    strides = images.to(memory_format=layout).stride()
    passed = (images, weights, result, 64 * 56 * 56, 256, size, strides)
    return compile_for(conv_kernel, *passed, device=gpu, **options)


made = {"last": compiled("A100"), "first": compiled("A100", torch.contiguous_format)}
rows = []
for order, kernel in made.items():
    counts = (kernel.instructions[name] for name in ("LDGSTS.128", "LDG.16"))
    rows.append((f"channels {order}", *counts))
display(table(("", "LDGSTS.128", "LDG.16"), rows))
more = made["first"].instructions["IMAD"] > made["last"].instructions["IMAD"]
print("more integer arithmetic with channels first:", more)

# %% [markdown]
# `LDGSTS.128` copies 128 bits directly into [shared memory](../docs/glossary.md#shared-memory) for the tensor cores,
# while they're still multiplying the previous slice. `LDG.16` loads one element into a register. The thread then has
# to store it to shared memory, and every element needs its own mask and address calculation (`IMAD` is an integer
# multiply-add). That's why tensor cores work best with channels last: **the sum runs over channels, so they should be
# contiguous.**
#
# **How many times slower is this kernel on an H200 with channels first**, at stride 1? There's no formula for this one,
# so just guess.
# <!-- given 128 bits: the instruction's name -->

# %% tags=["hide-input"]
slower = predict_first("times slower with channels first, stride 1, H200", unit="times")
slower

# %% tags=["hide-input"]
orders = h200.experiment("conv_layouts")["x".join(map(str, LARGE[1]))]
rows = []
for name, who in (("ours", "the lesson's kernel"), ("cuDNN", "cuDNN")):
    for order in ("channels last", "channels first"):
        taken = (f"{1e6 * orders[stride][f'{who}, {order}'].median:.0f} us" for stride in (1, 2))
        moved = ("", "")
        if name == "ours":
            moved = (f"{counters[order][stride]['dram_read'] / 1e6:.0f} MB" for stride in (1, 2))
        rows.append((f"{name}, {order}", *taken, *moved))
columns = ("", "stride 1", "stride 2", "memory read, stride 1", "stride 2")
display(table(columns, rows, h200.label_of("conv_layouts")))
times = orders[1]
with_first, with_last = (
    times[f"the lesson's kernel, channels {order}"] for order in ("first", "last")
)
slower.compare(
    with_first.median / with_last.median,
    "At stride 1, memory delivers the same number of bytes in either layout. So the caches made "
    "up for the wasted sectors, and the extra time is most likely due to narrow loads. At stride "
    "2, memory delivers four times the bytes, yet the slowdown is the same, so narrow loads are "
    "probably the limit at both strides. cuDNN is also faster with channels last.",
)

# %% [markdown]
# In PyTorch, call `.to(memory_format=torch.channels_last)` on the model and on the images.
#
# ## Folding batch norm by hand
#
# At inference, batch norm subtracts the mean, divides by the standard deviation, scales and shifts:
#
# $$y = \gamma\,\frac{s - \text{mean}}{\sqrt{\text{var} + \text{eps}}} + \beta
# = \underbrace{\frac{\gamma}{\sqrt{\text{var} + \text{eps}}}}_{\text{scale}}\, s
# + \underbrace{\beta - \text{mean} \cdot \text{scale}}_{\text{shift}}$$
#
# Neither scale nor shift depends on the image, so they're two numbers per channel that you compute once. And a
# convolution is linear, so you can move the scale into the weights: $\text{scale}_k \sum w_k x = \sum (\text{scale}_k\,
# w_k)\, x$. All that remains of batch norm is a bias. This is called [folding](../docs/glossary.md#folding). Is it
# exact? Let's check it in float64, against PyTorch's own tool for the job:


# %%
def fold(gamma, beta, mean, var, eps):
    scale = gamma * torch.rsqrt(var + eps)
    return scale, beta - mean * scale


# %% tags=["hide-input"]
from torch.nn.utils.fusion import fuse_conv_bn_weights

x64, w64, gamma64, beta64, mean64, var64 = (
    each.double().cpu() for each in (x, w, gamma, beta, mean, var)
)
s64 = F.conv2d(x64, w64, padding=1)
expected = F.batch_norm(s64, mean64, var64, gamma64, beta64, eps=eps)
scale64, shift64 = fold(gamma64, beta64, mean64, var64, eps)
folded_w64 = w64 * scale64[:, None, None, None]
into_weights = F.conv2d(x64, folded_w64, shift64, padding=1)
into_epilogue = s64 * scale64[:, None, None] + shift64[:, None, None]
exact_y = torch.relu(expected)


def off(found, expected):
    return ((found.double().cpu() - expected).abs().max() / expected.abs().max()).item()


theirs = fuse_conv_bn_weights(w64, None, mean64, var64, eps, gamma64, beta64)
print("in an epilogue, right to 14 digits:", off(into_epilogue, expected) < 1e-14)
print("in the weights, right to 14 digits:", off(into_weights, expected) < 1e-14)
same_weights, same_bias = torch.allclose(theirs[0], folded_w64), torch.allclose(theirs[1], shift64)
print("same as PyTorch's own tool:", same_weights, same_bias)

# %% [markdown]
# So algebra is enough to remove batch norm from the *model*: you fold the weights once. Whether that also removes its
# *time* is another question. We'll get to it.
#
# Many convolutions have a bias of their own, $s = \sum w x + b$. The kernel below applies batch norm and ReLU to sums
# that don't include the bias yet, for three pixels with four channels. **Fix the marked line so that the bias enters
# the shift in the right place.**


# %%
@triton.jit
def folded_bias_kernel(
    s_ptr, bias_ptr, gamma_ptr, beta_ptr, mean_ptr, var_ptr, y_ptr, BLOCK: tl.constexpr
):
    k = tl.arange(0, BLOCK)
    scale = tl.load(gamma_ptr + k) * tl.rsqrt(tl.load(var_ptr + k))
    bias, mean = tl.load(bias_ptr + k), tl.load(mean_ptr + k)
    shift = tl.load(beta_ptr + k) - mean * scale + bias  # <- here
    at = tl.program_id(0) * BLOCK + k
    y = tl.load(s_ptr + at) * scale + shift
    tl.store(y_ptr + at, tl.where(y < 0, 0.0, y))


sums_4 = torch.arange(12.0).view(3, 4) - 5
b, g, beta_4, mean_4 = torch.arange(16.0).view(4, 4) / 2 - 3
var_4 = torch.tensor([1.0, 4, 0.25, 16])
normed = torch.nn.functional.batch_norm(sums_4 + b, mean_4, var_4, g, beta_4, eps=1e-30).relu()
vectors = ("bias_ptr", "gamma_ptr", "beta_ptr", "mean_ptr", "var_ptr")
given_4 = (sums_4, b, g, beta_4, mean_4, var_4)
puzzle(folded_bias_kernel, 3, *given_4, wanted=normed, shared=vectors, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>shift = tl.load(beta_ptr + k) + (bias - mean) * scale</code>: the bias is part
# of batch norm's input, so it gets scaled, just like the mean.</details>
#
# <!-- choices
# shift = tl.load(beta_ptr + k) - mean * scale + bias
#
# shift = (tl.load(beta_ptr + k) - mean + bias) * scale
#
# shift = tl.load(beta_ptr + k) - mean + bias * scale
#
# shift = tl.load(beta_ptr + k) + (bias - mean) * scale
#
# shift = tl.load(beta_ptr + k) - (bias + mean) * scale
# -->
#
# ## The epilogue
#
# Now we'll add batch norm and ReLU to the kernel, just before the store, while the sum is in registers in fp32:


# %%
@triton.jit
def conv_bn_relu_kernel(
    x_ptr, w_ptr, scale_ptr, shift_ptr, y_ptr,
    pixels, out_channels, size, strides, WINDOW: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    k = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    s = products(
        x_ptr, w_ptr, pixel, k, pixels, out_channels, size, strides,
        WINDOW, TAPS, STRIDE, PADDING, BLOCK_IN,
    )  # fmt: skip
    scale = tl.load(scale_ptr + k, mask=k < out_channels, other=0.0)
    shift = tl.load(shift_ptr + k, mask=k < out_channels, other=0.0)
    y = s * scale + shift
    y = tl.where(y < 0, 0, y)
    tl.store(
        y_ptr + pixel.to(tl.int64) * out_channels + k, y, mask=(pixel < pixels) & (k < out_channels)
    )


# %% [markdown]
# (We write `tl.where(y < 0, 0, y)` rather than `tl.maximum(y, 0)` because a maximum drops NaN by default, and a network
# that has gone wrong would look healthy. With `propagate_nan=tl.PropagateNan.ALL` it would keep NaN.)
#
# Let's compare three versions in fp16: three separate kernels, the scale folded into the weights, and the scale in the
# epilogue. Count how many times each of them rounds to fp16. **What percentage of the three kernels' positive results
# aren't correctly rounded, that is, aren't the fp16 value nearest to the exact one?** (A rough guess will do.)

# %% tags=["hide-input"]
not_nearest = predict_first(
    "positive results of three kernels that aren't correctly rounded", unit="%"
)
not_nearest

# %% tags=["hide-input"]
scale, shift = fold(gamma, beta, mean, var, eps)
fused = measure(conv, conv_bn_relu_kernel, window, x, w, (scale, shift))
folded_w = (w * scale[:, None, None, None]).half().to(memory_format=last)
folded = conv(conv_bn_relu_kernel, window, x, folded_w, (torch.ones_like(scale), shift))
found = {"three kernels": y, "scale in the weights": folded, "in the epilogue": fused.result}
not_the_nearest = {
    name: round(100 * (each.cpu() != exact_y.half())[exact_y > 0].double().mean().item())
    for name, each in found.items()
}
columns = ("positive results", "not correctly rounded")
display(table(columns, ((n, f"{p} %") for n, p in not_the_nearest.items())))
not_nearest.compare(
    not_the_nearest["three kernels"],
    "The epilogue only rounds the result (the fp32 sum also rounds, but it hardly ever shows). "
    "Three kernels also round the sum before batch norm. Folded weights are rounded ahead of "
    "time, so every product in the sum is slightly off.",
)

# %% [markdown]
# What about bytes? The meter counts every **request** of a Triton kernel (here about eight times the image), but it
# assumes that PyTorch's operator reads its input once. To keep the comparison fair, we'll use our own convolution as
# the first of the three kernels:


# %% tags=["hide-input"]
def three_kernels(x, w):
    s = conv(conv_kernel, window, x, w)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


apart = measure(three_kernels, x, w)
fewer = apart.unique_total / fused.unique_total
print(f"{fewer:.1f}x reduction in distinct bytes, with {fused.launches} launch")
traffic_chart({"unfused": apart, "fused": fused})

# %% [markdown]
# The actual memory traffic is somewhere between distinct bytes and requested bytes, depending on the caches. The
# distinct bytes dropped by the four reads and writes we removed.
#
# ## The mistake: folding statistics of a batch
#
# During **training**, batch norm computes the mean and variance of each channel from the current batch, over all images
# and pixels. (It normalises with the variance that divides by $n$, but stores a running variance that divides by $n -
# 1$, the unbiased estimate.) A colleague folds the current batch's statistics, and writes this test:


# %% tags=["hide-input"]
def sums(x):
    return F.conv2d(x.double(), w.double(), padding=1)


def statistics(x):
    return sums(x).mean((0, 2, 3)), sums(x).var((0, 2, 3), unbiased=False)


def training_mode(x):
    return F.batch_norm(sums(x), None, None, gamma.double(), beta.double(), training=True, eps=eps)


def with_folded(x, mean, var):
    scale, shift = fold(gamma.double(), beta.double(), mean, var, eps)
    return sums(x) * scale[:, None, None] + shift[:, None, None]


def same_digits(found, expected):
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


of_batch = statistics(x)
print("test passed:", same_digits(with_folded(x, *of_batch), training_mode(x)))

# %% [markdown]
# It passes, to a dozen digits. So what's wrong? Keep image 0, but change the other image in the batch. **What
# percentage of image 0's results changes, in training mode?**

# %% tags=["hide-input"]
changed = predict_first("image 0's results that change with image 1, training mode", unit="%")
changed

# %% tags=["hide-input"]
other = x.clone()
other[1] = 3 * normal(16, 14, 14).half() + 1
before, after = training_mode(x)[0], training_mode(other)[0]
running = mean.double(), var.double()
inference = F.batch_norm(sums(other), *running, gamma.double(), beta.double(), eps=eps)
agree = {
    "batch's, in training mode": (of_batch, training_mode(other)),
    "batch's, in inference": (of_batch, inference),
    "running, in inference": (running, inference),
}
rows = []
for name, (statistic, expected_y) in agree.items():
    rows.append((name, torch.allclose(with_folded(other, *statistic), expected_y)))
display(table(("folded statistics, on the second batch", "right"), rows))
changed.compare(
    100 * (before != after).double().mean().item(),
    "In training mode, an image's result depends on the other images in the batch. No weights "
    "can reproduce that, because a convolution only sees one window. The test passed because it "
    "used the same batch that the statistics came from. Fold running statistics instead, and "
    "compare with the model in eval() mode on a new batch.",
)

# %% [markdown]
# An epilogue can't do it during training either. You only know a channel's mean after the last program has finished its
# last pixel. If programs kept their tiles in registers and waited for the mean, and there was more than one
# [wave](../docs/glossary.md#wave) of them, they'd be waiting for programs that can't start. So training kernels write
# the sums, accumulate the statistics in the epilogue, and read the sums back. That read doesn't need a separate kernel:
# the next convolution loads the sums anyway, so it can normalise and apply ReLU in its **prologue**. (cuDNN has kernels
# that do scale, bias, ReLU, convolution and statistics.) You still have to write the sums.
#
# ## How much can fusing gain?
#
# Bytes are only half the story, because a convolution also computes. Take a large one in bf16. Each element of the
# result takes two FLOPs per unit of depth. Fusion saves four reads and writes of that element, at two bytes each. If
# $R$ is the tensor cores' rate and $B$ the bandwidth, then
#
# $$\text{speedup} = \frac{2\,\text{depth}/R + 4 \cdot 2/B}{2\,\text{depth}/R} = 1 + \frac{4\,R/B}{\text{depth}}$$
#
# $R/B$ is the [ridge point](../docs/glossary.md#ridge-point) from lesson 01. The image size and the number of output
# channels aren't in the formula. All that matters is the depth: taps times input channels. **What's the speedup for 3 x
# 3 taps and 128 channels on an H100?**
# <!-- given two bytes: bf16 -->

# %% tags=["hide-input"]
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
measured = at_all_sizes.runs[-1]["ceilings"]
ridge = measured["bf16_matrix_flops_per_second"] / measured["copy_bytes_per_second"]
print(f"ridge, measured: {ridge:.0f} FLOP/B; depth: {9 * 128}")
speed_up = predict_first("speedup by fusing, 3 x 3, 128 channels, H100", unit="times")
speed_up

# %% tags=["hide-input"]
swept = {tuple(point["shape"]): point for point in at_all_sizes.of("conv_bn_act")}
at_large = {shape: swept[(*shape, 1)] for shape in LARGE}  # stride 1
WAYS = {"cuDNN's": "cuDNN fused", "ours": "fused"}


def gain(shape, way):
    took = at_large[shape]["gpu"]
    return took["eager"][0] / took[WAYS[way]][0]


rows = []
for shape in LARGE:
    depth = shape[5] ** 2 * shape[1]
    gains = (f"{gain(shape, way):.2f}" for way in WAYS)
    rows.append((named(shape), depth, f"{1 + 4 * ridge / depth:.2f}", *gains))
label = at_all_sizes.label(list(at_large.values()))
title = f"{label}\ntimes faster than PyTorch's three kernels, bf16"
display(table(("", "depth", "formula", *WAYS), rows, title))
speed_up.compare(
    gain(LARGE[1], "ours"),
    "The formula assumes that the convolution runs at a large matmul's rate, and that the other "
    "two kernels run at copy bandwidth. With 64 channels, the convolution is far below that "
    "rate, so fusing gains less there than the formula promises.",
)

# %% tags=["hide-input"]
from helpers.figures import curves_chart

gains = {
    way: dict(sorted((shape[5] ** 2 * shape[1], gain(shape, way)) for shape in LARGE))
    for way in WAYS
}
formula = {"formula": {depth: 1 + 4 * ridge / depth for depth in range(512, 2400, 64)}}
axes = {"x": "depth: taps times input channels", "y": "speedup over three kernels"}
title = "The gain falls with depth; at 64 channels the formula promises too much"
chart = curves_chart(gains, title, **axes, log=True, limit=formula)
speed_up.on(chart, "y")

# %% [markdown]
# "Ours" is the course's tuned `conv_bn_act`. cuDNN's kernel adds a bias and applies ReLU in its epilogue, and once the
# weights are folded that's all we need. PyTorch exposes it as `torch.cudnn_convolution_relu`.
#
# So is **algebra alone** enough? Fold the weights, give `conv2d` its bias and call ReLU. That takes no new kernel, and
# batch norm's read and write should be gone. **What's the speedup over three kernels at the same size, on an H200?**
# One thing you should know: on a GPU, PyTorch calls cuDNN without the bias and adds it afterwards, in a separate kernel
# (`ATen/native/Convolution.cpp`).

# %% tags=["hide-input"]
pencil = predict_first("speedup from folding alone, 3 x 3, 128 channels, H200", unit="times")
pencil

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    only_folded = times["conv, BN, ReLU"].median / times["folded conv, ReLU"].median
    epilogue = times["cuDNN fused"].median / times["conv"].median
    rows.append((named(shape), f"{only_folded:.2f}x", f"{epilogue:.2f}"))
    if shape == LARGE[1]:
        at_this_size = only_folded
columns = ("", "speedup from folding alone", "cuDNN's time, fused ÷ convolution alone")
display(table(columns, rows, h200.label_of("conv_steps")))
pencil.compare(
    at_this_size,
    "You gain nothing, or even lose: the bias kernel reads and writes what batch norm used to, "
    "at the same cost or more. cuDNN's kernel takes about as long with its epilogue as without, "
    "so batch norm and ReLU are free there, or nearly. You need both: the algebra and a kernel.",
)

# %% [markdown]
# **Claim: "fusing Conv + BN + ReLU makes it 1.41 times faster."** The source doesn't give a size, a dtype or a GPU, but
# it does compare three kernels with one. So we'll compare PyTorch's three with cuDNN's one, first in bf16 with channels
# last, then in fp32 with channels first, which is PyTorch's default. (In fp32, cuDNN multiplies in tf32, which PyTorch
# allows for convolutions by default.)

# %% tags=["hide-input"]
print(h200.label_of("conv_steps"))
for kind, of_kind in steps.items():
    pairs = ((times["conv, BN, ReLU"], times["cuDNN fused"]) for times in of_kind.values())
    ratios = (f"{apart.median / fused_conv.median:.2f}" for apart, fused_conv in pairs)
    print(f"{kind}: {', '.join(ratios)} times faster on the GPU")
depth = 4 * h200.matrix_rate / h200.copy_bandwidth / 0.41
print(f"the formula gives 1.41x at a depth of {depth:.0f},", end=" ")
print(f"which is {depth / 9:.0f} channels with 3 x 3 taps")
print(
    "\nVerdict: fair for one depth, but not for convolutions in general. In each dtype, one of the "
    "four\nsizes comes close to it, though not the same one. A deep convolution gains less because "
    "arithmetic\ndominates. A shallow one gains more if its matmul runs near full rate, which "
    "at 64 channels\nit doesn't. A speedup should be quoted with its depth."
)

# %% [markdown]
# So should you write this kernel? Not if the library already has it: fold the weights and call the library. Write your
# own if you need something else, such as another activation, a residual add, or int8 output.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel masks `place >= 0` and `place < height * width`, and the meter finds no out-of-bounds access. Which output
#    pixels are wrong, and what kind of test would miss it?
# <details><summary>Answer</summary>Those whose window extends past the left or right edge: they read from the row above
# or below. A test without padding or with a one-tap filter would miss it, and so would an image whose outer columns are
# 0.</details>
#
# 2. With a 5 x 5 filter at stride 5 and no padding, how many times is each pixel read? What does this layer look like
#    as a matmul?
# <details><summary>Answer</summary>At most once, because the windows don't overlap. The matrix of windows is just the
# image, reordered. Vision transformers split an image into patches this way.</details>
#
# 3. A colleague trains for one step with `momentum=1`, so that the running statistics are this batch's own, folds them,
#    and compares with the training-mode result on the same batch. The results are slightly off, and smaller batches are
#    worse. Why?
# <details><summary>Answer</summary>
#
# Batch norm normalises with the variance that divides by $n$, but stores the unbiased
# estimate, which divides by $n - 1$. For $n$ = 2, the stored value is twice as large.
#
# </details>
#
# 4. In fp16, why would you rather have the scale in the epilogue than in the weights? What is the argument for the
#    weights?
# <details><summary>Answer</summary>Folding rounds the weights a second time, while in the epilogue the scale multiplies
# an fp32 sum. The advantage of folded weights is that only a bias remains, so a library kernel with bias and ReLU in
# its epilogue is all you need.</details>
#
# 5. Consider a 1 x 1 convolution from 2048 channels to 512. Does fusing batch norm and ReLU gain more or less than it
#    would from 512 to 2048?
# <details><summary>Answer</summary>Less. The matmul is four times as deep, so each element of the result needs four
# times the arithmetic, while fusion saves the same four reads and writes.</details>
#
# 6. A GPU has a ridge point of 200 FLOP/B in bf16. A 3 x 3 convolution with 64 channels is compute-bound on it, and
#    we'd like to fuse the batch norm and ReLU that follow. According to the formula, how many times faster is one
#    kernel than three? Replace the dots with your number.
# <!-- given 200 FLOP/B: the question's own -->

# %%
answer = ...
self_test(
    answer,
    1 + 4 * 200 / (9 * 64),
    "1 + 4 x ridge / depth, where depth is taps times input channels",
)

# %% [markdown]
# ## Now you
#
# In [Exercise 09](../exercises/09_conv_bn_relu.ipynb) you'll write the whole thing as one launch, for any stride,
# padding and filter, with batch norm folded into the epilogue.

# %% [markdown]
# ## Going further
#
# ### How accurate is the formula?
#
# The formula assumes that the convolution runs at a large matmul's rate and that batch norm and ReLU run at copy
# bandwidth. How close do they get?

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    count, channels, height, width, filters, side = shape
    results = count * filters * height * width
    rate = 2 * results * channels * side**2 / times["conv"].median / h200.matrix_rate
    trips_time = times["conv, BN, ReLU"].median - times["conv"].median
    speed = 4 * 2 * results / trips_time / h200.copy_bandwidth
    rows.append((named(shape), f"{rate:.0%}", f"{speed:.0%}"))
columns = ("", "convolution, % of matmul rate", "batch norm and ReLU, % of copy bandwidth")
table(columns, rows, h200.label_of("conv_steps"))

# %% [markdown]
# If both fall short by the same factor, the formula is right. If batch norm and ReLU fall further short, as at the
# first two sizes, a fused kernel as fast as cuDNN's convolution gains more than the formula predicts. If the
# convolution falls further short, as with 64 channels, it gains less.
#
# ### Where the library wins
#
# `torch.compile` leaves the convolution to the library unless you use `max-autotune`, which also tries Triton kernels.
# `fused` is the course's tuned kernel, a later version than in the table by channels below:

# %% tags=["hide-input"]
providers = ("eager", "torch.compile", "max-autotune", "fused", "cuDNN fused")
rows = []
for shape, point in at_large.items():
    count, channels, height, width, filters, side = shape
    flops = 2 * count * height * width * filters * channels * side**2
    rates = {name: f"{flops / us / 1e6:.0f}" for name, (us, *_) in point["gpu"].items()}
    rows.append((named(shape), *(rates.get(name, "") for name in providers)))
display(table(("", *providers), rows, f"{label}\nTFLOP/s, bf16; empty: not timed"))
ahead = [point["gpu"]["fused"][0] / point["gpu"]["cuDNN fused"][0] for point in at_large.values()]
print("cuDNN's speed ÷ ours:", ", ".join(f"{each:.2f}" for each in ahead), end="; ")
print(f"the library wins {sum(each > 1 for each in ahead)} of {len(ahead)}")

# %% [markdown]
# Both are faster than eager PyTorch at every size. Does the winner depend on depth? To find out, we timed 32 images of
# 28 x 28 with 3 x 3 taps and equal numbers of input and output channels:

# %% tags=["hide-input"]
rows = []
for channels, times in h200.experiment("conv_channels").items():
    of_cudnn = times["fused"].median / times["cuDNN fused"].median
    rows.append((channels, f"{of_cudnn:.2f}"))
table(("channels", "cuDNN's speed ÷ ours"), rows, h200.label_of("conv_channels"))

# %% [markdown]
# It doesn't: at three of the six channel counts they're level, and at the others, either one leads. (At 256 channels
# our kernel used a different tile at the time. The version in the table above has a better one.) Where they differ, the
# tile is the likely reason. Large tiles may leave the GPU's last wave partly empty (lesson 07), while small ones load
# more bytes per FLOP. Our kernel picks from the few `TILES` in `kernels/tuned/conv_descriptors.py`. A library has many
# more kernels to choose from.
#
# So far we've only looked at GPU time. How long does a whole **call** from Python take?

# %% tags=["hide-input"]
at_all_sizes.calls(["conv_bn_act"])

# %% [markdown]
# (Shapes are images, channels, height, width, filters, taps, stride. A *bare launch* is an empty kernel with the same
# arguments, launched from Python by Triton.) If a call takes longer than its GPU time, the difference is Python and
# launch overhead, and a [CUDA graph](../docs/glossary.md#cuda-graph) removes it for either kernel. The next chart
# covers 30 sizes, from ResNet's stages to odd ones. Each mark is one layer at its depth. *Odd* sizes aren't divisible
# by any tile, and *strided* layers have stride 2.

# %% tags=["hide-input"]
from helpers.figures import sweep_chart

display(sweep_chart(at_all_sizes, "conv_bn_act"), at_all_sizes.summary(["conv_bn_act"]))
late = at_all_sizes.behind(["conv_bn_act"])
print("Furthest behind:", *[line for line in late if not line.startswith("a call")][:6], sep="\n")

# %% [markdown]
# Large gaps show up only at particular shapes. cuDNN leads on some 14 x 14 images, where there are few tiles, and by
# about as much on some larger ones. If the size of a pixel isn't a multiple of 16 bytes (with 100 or 130 channels, say,
# or the 3 of a first layer), cuDNN falls behind (the hollow marks in the chart), while ours makes a padded copy first
# (see below).
# <!-- given 16 bytes: CUDA C++ Programming Guide, tensor maps: strides -->
#
# ### A tap is a shifted box
#
# The course's plain kernel (`kernels/tiled/conv_bn_act.py`) computes addresses and masks for channels-last tensors,
# just as the lesson's kernel does. The tuned kernel exploits what you saw in the explorer: each tap reads the same
# shape, shifted. If the tile is a **box** of pixels, every tap reads a box. Hopper's [TMA](../docs/glossary.md#tma) can
# fetch a box on its own and fill in zeros outside the image, so threads don't have to compute any addresses or masks.
# You can see this in the machine code:

# %% tags=["hide-input"]
from kernels.tiled.conv_bn_act import OP
from kernels.variants import kernel_at

boxes_kernel, arguments, chosen = kernel_at(OP, 64, 128, 56, 56, 256, 3, dtype=torch.float16)
with_boxes = compile_for(boxes_kernel, *arguments, device="H200", **chosen)
names, rows = ("LDGSTS.128", "UTMALDG", "HGMMA"), []
for name, kernel in (("the lesson's", compiled("H200")), ("with boxes", with_boxes)):
    rows.append((name, *(kernel.instructions[each] for each in names)))
display(table(("", *names), rows))
times = bf16[LARGE[1]]
ratio = times["the lesson's kernel"].median / times["fused"].median
print(f"with boxes: {ratio:.1f} times faster on an H200 (and with larger tiles)")

# %% [markdown]
# There are restrictions: the number of channels has to be a multiple of 8 (16 if the stride isn't 1), the tensors have
# to be aligned, and the GPU has to be recent. For other channel counts, the kernel first makes a zero-padded copy of
# the channels and the image, if there's enough arithmetic to pay for it. (In that copy, TMA's boxes may even overlap,
# so that a whole filter row becomes one step.) Everything else goes to the plain kernel.
#
# ### Batch statistics, timed
#
# Here's PyTorch's batch norm alone on the H200, with the batch's statistics and with running statistics:

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    with_running, with_batch = (times[name].median for name in ("BN", "BN, batch statistics"))
    rows.append((named(shape), f"{with_batch / with_running:.1f}x slower"))
table(("", "with the batch's statistics"), rows, h200.label_of("conv_steps"))

# %% [markdown]
# (If the statistics are frozen but the weights are still training, fold again after every step or don't fold at all.)
#
# ### On your GPU

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together
from kernels import conv_bn_act

if runtime.has_gpu():
    inputs = OP.inputs(*LARGE[0], dtype=torch.float16, device="cuda")
    ways = {"eager": lambda: OP.reference(*inputs), "fused": lambda: conv_bn_act(*inputs)}
    print(benchmark_together(ways))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
