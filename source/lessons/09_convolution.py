# %% [markdown]
# # 09 Convolution, batch norm, ReLU: a matrix that is never written
#
# An image network does the same three things again and again: a convolution, batch norm, ReLU. The first is nearly all
# of the arithmetic; the other two are traffic. And in inference, batch norm is one multiplication and one addition per
# element. **What does it take to make it vanish: a kernel, or only a pencil?**
#
# After this lesson you can
#
# - write a convolution as a tiled matmul whose left matrix does not exist in memory, and count how often it reads each
#   pixel;
# - tell a mask that keeps a kernel inside its memory from one that keeps it inside the image;
# - explain what the order of an image in memory does to sectors and to the width of loads;
# - fold batch norm into weights or into an epilogue, and compare their rounding;
# - explain why training forbids both;
# - estimate from one number, the depth of the matmul, how much fusing can gain.
#
# About 65 minutes. It follows on [08 Matmul epilogues](08_matmul_epilogues.ipynb), whose tiles and `tl.dot` it builds
# on, and leads to [exercise 09](../exercises/09_conv_bn_relu.ipynb).

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
# What follows a convolution, as kernels of its own and in its kernel. Press **Play**.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("convolution")

# %% [markdown]
# ## The cost of the unfused version
#
# Two images of 14 x 14 pixels with 16 channels, in fp16. A filter of 3 x 3 **taps** moves one pixel at a time
# ([stride](../docs/glossary.md#stride) 1) over an image with a border of zeros (padding 1), so that the result also has
# 14 x 14 pixels, of 32 channels. In **inference**, batch norm uses a mean and a variance per channel that training has
# left behind:

# %%
last = torch.channels_last  # an order in memory: below
x = normal(2, 16, 14, 14).half().to(memory_format=last)
w = (normal(32, 16, 3, 3) / 12).half().to(memory_format=last)  # 12: the root of 16 x 3 x 3
gamma, beta, mean = normal(3, 32)
var, eps = normal(32).abs() + 0.5, 1e-5


def written_out(x, w, stride=1, padding=1):
    s = F.conv2d(x, w, stride=stride, padding=padding)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


# %% [markdown]
# **How often does a tensor of the result's size cross memory, from the first kernel to the last?** Count each read and
# each write.

# %% tags=["hide-input"]
trips = predict_first("trips of a tensor of the result's size, written out", unit="trips")
trips

# %% tags=["hide-input"]
unfused = measure(written_out, x, w)
y = unfused.result
given = x.nbytes + w.nbytes
print(f"{unfused.launches} launches, {unfused.bytes_total / 1e3:.0f} kB;", end=" ")
print(f"x and w are {given / 1e3:.0f} kB of them")
trips.compare(
    round((unfused.bytes_total - given) / y.nbytes),
    "The convolution writes; batch norm reads and writes; ReLU reads and writes. Only the last "
    "write is the result.",
)

# %% tags=["hide-input"]
title = "The result's size crosses memory five times, the inputs once"
chart = traffic_chart({"unfused": unfused}, title)
in_kb = lambda nbytes: f"{nbytes / 1e3:.0f} kB"
trips.on(chart, "x", lambda count: given + count * y.nbytes, row=0, says=in_kb)

# %% [markdown]
# A matmul's [epilogue](../docs/glossary.md#epilogue) could do batch norm and ReLU before the store. But is a convolution
# a matmul?
#
# ## A convolution is a matmul
#
# For each output pixel $(p, q)$ and output channel $k$, with $r$ and $s$ looping over the filter's taps and $c$ over the
# input's channels:
#
# $$y_{kpq} = \sum_{r,s,c} w_{kcrs}\; x_{c,\; p \cdot \text{stride} + r - \text{padding},\; q \cdot \text{stride} + s -
# \text{padding}}$$
#
# One sum over $(r, s, c)$, of weights times the pixel's **window**. Write every window as a row of a matrix: the
# convolution is that matrix times the weights. `F.unfold` writes it (each window as a column). **How many times larger
# than the image is it?**

# %% tags=["hide-input"]
larger = predict_first("matrix of windows, times as large as x: 3 x 3, stride 1", unit="times")
larger

# %% tags=["hide-input"]
windows = F.unfold(x.float(), 3, padding=1)
product = (w.float().reshape(32, -1) @ windows).reshape(2, 32, 14, 14)
right = F.conv2d(x.float(), w.float(), padding=1)
print("the same:", torch.allclose(product, right, atol=1e-2))
print("windows, each of taps x channels:", tuple(windows.shape))
larger.compare(windows.numel() / x.numel(), "Every pixel is in as many windows as there are taps.")

# %% [markdown]
# Early libraries did write that matrix (**im2col**). Its cost on an H200, at four larger sizes that this lesson comes
# back to:

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
columns = "images x channels x height x width, filters", "windows written", "library's convolution"
table(columns, rows, f"{h200.label_of('conv_steps')}, bf16")

# %% [markdown]
# A tiled matmul does not need the matrix. A program loads a [tile](../docs/glossary.md#tile) of rows, slice by slice,
# and only has to know **where** row `pixel`, column `at` *would be*. It can compute that: the
# [implicit GEMM](../docs/glossary.md#implicit-gemm). Rows are output pixels of all images; columns are taps times
# channels, and their number is the **depth** of the matmul.


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
# `size` and `strides` are tuples; a kernel takes them as they are. `pixel` is a column of a tile and `at` a row, so every
# line makes a tile. Where `there` is false, the load gives 0, just what padding needs.
#
# The loop is any matmul's. The function that finds the windows is an argument, so that we can exchange it:


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
# No access is [out of bounds](../docs/glossary.md#out-of-bounds), nothing is uninitialised, and a test without padding
# passes. Yet it is wrong. **What share of the output pixels is wrong?** Think of the window of a pixel in the first
# column: where does the kernel find the pixel to the left of it?

# %% tags=["hide-input"]
share = predict_first("output pixels wrong, 14 x 14, padding 1", unit="%")
share

# %% tags=["hide-input"]
wrong = ~is_right(first.result, x, w, padding=1)[0].all(dim=0)
for row in wrong[[0, 1, 6, 13]]:
    print("".join("x" if each else "." for each in row))
share.compare(
    100 * wrong.float().mean().item(),
    "In memory, the pixel before the first of a row is the last of the row above. It exists, so no "
    "instrument complains, and it is not 0. Above and below the image, the careless mask was right "
    "by luck: those positions are outside the memory it checks as well.",
)

# %% [markdown]
# Here is the same mistake small enough to see: three rows of four pixels, a filter of three taps along the row, padding
# 1; one program per row. **Change the marked line so that the kernel stays inside the image.**


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
# <details><summary>Answer</summary><code>there = (col + tap >= 1) & (col + tap <= width)</code>: the column that a tap
# reads is `col + tap - 1`, and that must be in the image.</details>
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
# In two dimensions the mask checks the row and the column. `window` is `first_window` with this line, and without
# `place`:
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
# One image of 12 x 12 pixels, tiles of 16 output pixels. Left: the input with its padding, and how often each pixel is
# read; right: the tile. Move the sliders with the mouse or the arrow keys:
#
# 1. All tiles, stride 1, padding 1. How often is a pixel in the middle read, at an edge, in a corner?
# 2. Stride 2: how often now, and what happens to the regular pattern? At which stride is no pixel read twice?
# 3. A filter of 1 x 1 at stride 2, no padding: how much of the image does no tap read?
# 4. 3 x 3, stride 1, padding 0, tile 0: choose *the first* tap, then *the middle*. How do the pixels read differ?
# 5. A filter of 1 x 1, stride 1, padding 2: what does tile 0 compute?

# %% tags=["hide-input"]
from helpers.figures import Windows, WindowsExplorer

explorer = WindowsExplorer(taps=3, stride=1, padding=1, tile=3)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. As often as there are taps; at an edge a third less, in a corner
# four times. 2. Once, twice or four times: it depends on whether row and column are odd. At stride 3, where windows of
# three do not overlap. 3. Three quarters of it. 4. Only in their place, one row lower and one column further right: **a
# tap sees the same shape, shifted.** 5. Zeros: a matmul of nothing but padding.</details>
#
# Does the kernel do that? The meter counts its requests. Every read of a pixel brings all its channels:

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
# So the matrix of windows is still **requested**, many times the image; it is only not in memory. A pixel that is
# requested again soon is found in a cache. How soon is soon enough? If there are more filters than a tile has, every
# tile of filters requests the whole image again.
#
# On the H200: 64 images of 56 x 56 pixels and 128 channels in bf16, 256 filters of 3 x 3, tiles of 128 pixels by 64
# filters. A program requests a pixel nine times, and four programs do. **How many times does memory deliver x?** The
# grid counts tiles of pixels first, then tiles of filters, and x exceeds the [L2](../docs/glossary.md#l2) cache.

# %% tags=["hide-input"]
delivered = predict_first("times that memory delivers x, asked for 9 x 4 times", unit="times")
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
    "Nine taps cost memory nothing: they follow so soon that L2 still has the pixel. Four tiles of "
    "filters cost four reads: each is a pass over all images, and at its end L2 no longer has the "
    "beginning. The course's kernel runs the tiles of the same pixels together, and memory "
    "delivers x once: the order of tiles, as in any matmul.",
)

# %% [markdown]
# ## Channels first, channels last
#
# An image (images, channels, height, width) can be in memory in two orders. **Channels first**: one plane after the
# other, all pixels of a channel side by side. **[Channels last](../docs/glossary.md#channels-last)**: pixel after pixel,
# all channels of a pixel side by side. The indices are the same, only the strides differ, so the same kernel takes both:

# %% tags=["hide-input"]
first_order = x.contiguous()
print("strides, channels last: ", x.stride())
print("strides, channels first:", first_order.stride())
same_result = torch.equal(
    conv(conv_kernel, window, x, w), conv(conv_kernel, window, first_order, w)
)
print("the same result:", same_result)

# %% [markdown]
# But memory comes in [sectors](../docs/glossary.md#sector) of 32 bytes. With channels last, the 16 channels of a pixel
# in fp16 are exactly one. With channels first, a tap reads a row of pixels from a channel's plane, shifted by the tap.
# Take images of 16 x 16 pixels, so that each row is a sector. **At stride 2, channels first: how many bytes of x are
# fetched per byte requested?**
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
    "Every second pixel of a sector is wanted. (A little more than 2, because a tap in the padding "
    "wants one pixel less.) With rows of 14 pixels it doubles: they are not aligned to sectors, so "
    "a sector also brings pixels of the row that stride 2 skips.",
)

# %% [markdown]
# A cache can repair some of that: another tap wants the rest of a sector. No cache repairs the **width of a load**. With
# channels last, a thread can load 16 bytes at once, eight channels of a pixel: all of them are in the image, or none.
# With channels first, a thread would load eight neighbouring pixels, but a tap's shift leaves them unaligned, and some
# may be padding:
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
# `LDGSTS.128` copies 128 bits straight into [shared memory](../docs/glossary.md#shared-memory), where tensor cores want
# them, while the matmul of the slice before continues. `LDG.16` loads one element into a register, which is then stored
# to shared memory; and each element has its own address to compute (`IMAD`: an integer multiply-add) and its own mask.
# Tensor cores therefore like channels last: **the sum runs over channels, so let channels be neighbours.**
#
# **How many times slower is this kernel on an H200 with channels first**, at stride 1? No rule gives the number; guess.
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
    "At stride 1, memory delivers the same in either order: caches did repair the sectors, and the "
    "time goes into narrow loads. At stride 2 they did not. cuDNN prefers channels last as well.",
)

# %% [markdown]
# In PyTorch it is one line, `model.to(memory_format=torch.channels_last)`, and another for the images.
#
# ## Batch norm with a pencil
#
# In inference, batch norm subtracts the mean, divides by the standard deviation, scales and shifts:
#
# $$y = \gamma\,\frac{s - \text{mean}}{\sqrt{\text{var} + \text{eps}}} + \beta
# = \underbrace{\frac{\gamma}{\sqrt{\text{var} + \text{eps}}}}_{\text{scale}}\, s
# + \underbrace{\beta - \text{mean} \cdot \text{scale}}_{\text{shift}}$$
#
# Scale and shift do not depend on the image: two numbers per channel, computed once. And a convolution is linear, so the
# scale can move into the weights: $\text{scale}_k \sum w_k x = \sum (\text{scale}_k\, w_k)\, x$. Only a bias is left of
# batch norm. This is [folding](../docs/glossary.md#folding). Is it exact? PyTorch has a tool that does the same; both in
# float64:


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
print("as PyTorch's own tool has them:", same_weights, same_bias)

# %% [markdown]
# With a pencil, then, and without a kernel: fold the weights once, and batch norm is gone from the model.
#
# Many convolutions have a bias of their own, $s = \sum w x + b$. This kernel applies batch norm and ReLU to four
# channels of three pixels' sums. **Change the marked line so that the bias is part of the shift, in the right place.**


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
normed = torch.nn.functional.batch_norm(sums_4 + b, mean_4, var_4, g, beta_4, eps=0).relu()
vectors = ("bias_ptr", "gamma_ptr", "beta_ptr", "mean_ptr", "var_ptr")
given_4 = (sums_4, b, g, beta_4, mean_4, var_4)
puzzle(folded_bias_kernel, 3, *given_4, wanted=normed, shared=vectors, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>shift = tl.load(beta_ptr + k) + (bias - mean) * scale</code>: batch norm sees
# the bias as part of its input, so it is scaled like the mean.</details>
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
# The kernel with batch norm and ReLU before its store. The sum is in registers, in fp32:


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
# (`tl.where(y < 0, 0, y)` and not `tl.maximum(y, 0)`: by default a maximum drops NaN, and a network that has gone wrong
# would look healthy. `propagate_nan=tl.PropagateNan.ALL` keeps NaN as well.)
#
# Now in fp16: three kernels; the scale in the weights; the scale in the epilogue. Count how often each of them rounds to
# fp16. **What share of the epilogue's results is not the fp16 number nearest to the exact result?**

# %% tags=["hide-input"]
not_nearest = predict_first("results of the epilogue that are not the nearest fp16", unit="%")
not_nearest

# %% tags=["hide-input"]
scale, shift = fold(gamma, beta, mean, var, eps)
fused = measure(conv, conv_bn_relu_kernel, window, x, w, (scale, shift))
folded_w = (w * scale[:, None, None, None]).half().to(memory_format=last)
folded = conv(conv_bn_relu_kernel, window, x, folded_w, (torch.ones_like(scale), shift))
found = {"three kernels": y, "scale in the weights": folded, "in the epilogue": fused.result}
not_the_nearest = {
    name: round(100 * (each.cpu() != exact_y.half()).double().mean().item())
    for name, each in found.items()
}
display(table(("not the nearest fp16", ""), ((n, f"{p} %") for n, p in not_the_nearest.items())))
not_nearest.compare(
    not_the_nearest["in the epilogue"],
    "The epilogue rounds only the result (and an fp32 sum, hardly ever visible). Three kernels "
    "round the sum first, then batch norm's result. Folded weights are rounded once, in advance, "
    "so each product in the sum is a little off.",
)

# %% [markdown]
# And its bytes? The meter counts the **requests** of a Triton kernel, nine times the image, but assumes that PyTorch's
# operator reads its input once. For a fair pair, our own convolution is the first of three kernels here:


# %% tags=["hide-input"]
def three_kernels(x, w):
    s = conv(conv_kernel, window, x, w)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


apart = measure(three_kernels, x, w)
fewer = apart.unique_total / fused.unique_total
print(f"distinct bytes: {fewer:.1f} times fewer in {fused.launches} launch")
traffic_chart({"unfused": apart, "fused": fused})

# %% [markdown]
# Requested and distinct bytes are two bounds: memory delivers something between, and caches decide where. The distinct
# bytes fall by the four trips that no longer happen.
#
# ## The mistake: folding statistics of a batch
#
# In **training**, batch norm computes mean and variance from the current batch, per channel over all images and pixels.
# (It divides by $\sqrt{\text{var}}$ with $n$ in the variance's denominator, and stores a running variance with $n - 1$,
# the unbiased estimate.) A colleague folds the current batch's. Here is the test:


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


of_batch = statistics(x)
print("test passed:", torch.allclose(with_folded(x, *of_batch), training_mode(x)))

# %% [markdown]
# Passed, to the last digit. So what is wrong? Take image 0 again, with another image beside it in the batch. **What
# share of image 0's results changes, in training mode?**

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
    "In training mode an image's result depends on its neighbours, and no weights can do that: "
    "weights see one window. The test passed because it used the batch that the weights were made "
    "from. Fold running statistics, and compare with the model in eval() mode on a new batch.",
)

# %% [markdown]
# Nor can an epilogue do it in training. A channel's mean is known when the last program has finished its last pixel. A
# program that waited for that with its tile in registers would wait for programs that have not begun, if there is more
# than a [wave](../docs/glossary.md#wave). So training writes the sums, collects their statistics in the epilogue, and
# reads the sums back. That read need not be a kernel of its own: normalising and ReLU can be the **prologue** of the
# next convolution, which loads the sums anyway. (cuDNN has such kernels: scale, bias, ReLU, convolution, statistics.)
# The write stays.
#
# ## How much can fusing gain?
#
# Bytes are half of the story: a convolution computes. Take a large one, in bf16. Each element of the result takes two
# FLOPs per step of the depth. Each of the four trips saved takes two bytes. With $R$ the rate of the tensor cores and
# $B$ the bandwidth:
#
# $$\text{speedup} = \frac{2\,\text{depth}/R + 4 \cdot 2/B}{2\,\text{depth}/R} = 1 + \frac{4\,R/B}{\text{depth}}$$
#
# $R/B$ is the [ridge point](../docs/glossary.md#ridge-point) of lesson 01. The size of the image is not in it, nor the
# number of output channels: only the depth, taps times input channels. **For 3 x 3 taps and 128 channels on an H200: how
# many times faster?**
# <!-- given two bytes: bf16 -->

# %% tags=["hide-input"]
ridge = h200.matrix_rate / h200.copy_bandwidth
print(f"ridge, measured: {ridge:.0f} FLOP/B; depth: {9 * 128}")
speed_up = predict_first("speed-up by fusing, 3 x 3, 128 channels, H200", unit="times")
speed_up

# %% tags=["hide-input"]
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
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
    "The formula takes the convolution at the rate of a large matmul and the trips at copy "
    "bandwidth. It gives the order, if not the number.",
)

# %% tags=["hide-input"]
from helpers.figures import curves_chart

gains = {
    way: dict(sorted((shape[5] ** 2 * shape[1], gain(shape, way)) for shape in LARGE))
    for way in WAYS
}
formula = {"formula": {depth: 1 + 4 * ridge / depth for depth in range(512, 2400, 64)}}
axes = {"x": "depth: taps times input channels", "y": "times faster than three kernels"}
title = "The gain falls with the depth, about as the formula predicts"
chart = curves_chart(gains, title, **axes, log=True, limit=formula)
speed_up.on(chart, "y")

# %% [markdown]
# "Ours" is the course's tuned `conv_bn_act`, in the version that was timed then. cuDNN's kernel adds a bias and applies
# ReLU in its epilogue; with folded weights, that is all we need. In PyTorch it is `torch.cudnn_convolution_relu`.
#
# And **only a pencil**? Fold the weights, give `conv2d` its bias, call ReLU: no new kernel. Batch norm's two trips are
# gone. **How many times faster than three kernels, at the same size?** One thing to know: on a GPU PyTorch calls cuDNN
# without the bias and adds it afterwards, in a kernel of its own (`ATen/native/Convolution.cpp`).

# %% tags=["hide-input"]
pencil = predict_first("speed-up by folding alone, 3 x 3, 128 channels, H200", unit="times")
pencil

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    only_folded = times["conv, BN, ReLU"].median / times["folded conv, ReLU"].median
    epilogue = times["cuDNN fused"].median / times["conv"].median
    rows.append((named(shape), f"{only_folded:.2f} times faster", f"{epilogue:.2f} times"))
    if shape == LARGE[1]:
        at_this_size = only_folded
columns = ("", "only folded", "cuDNN's fused kernel over its convolution alone")
display(table(columns, rows, h200.label_of("conv_steps")))
pencil.compare(
    at_this_size,
    "Nothing, or worse: batch norm's trips are the bias's now, at the same cost or more. cuDNN's "
    "kernel with the epilogue takes the time of its convolution alone: there, batch norm and ReLU "
    "are free, or nearly. So it takes both, a pencil and a kernel.",
)

# %% [markdown]
# **Claim: "fusing Conv + BN + ReLU makes it 1.41 times faster."** It names no size, no dtype and no GPU; it does name what
# it compares, three kernels and one. So PyTorch's three kernels against cuDNN's one, in bf16 with channels last, and in
# fp32 with channels first, the default (cuDNN then multiplies in tf32, which PyTorch allows for convolutions by default):

# %% tags=["hide-input"]
print(h200.label_of("conv_steps"))
for kind, of_kind in steps.items():
    pairs = ((times["conv, BN, ReLU"], times["cuDNN fused"]) for times in of_kind.values())
    ratios = (f"{apart.median / fused_conv.median:.2f}" for apart, fused_conv in pairs)
    print(f"{kind}: {', '.join(ratios)} times faster on the GPU")
depth = 4 * ridge / 0.41
print(f"1.41 times, by the formula: at a depth of {depth:.0f},", end=" ")
print(f"so at {depth / 9:.0f} channels of 3 x 3 taps")
print(
    "\nVerdict: fair for one depth, and no number for convolutions. In each dtype one of the four "
    "sizes\ncomes close to it, not the same. A deep convolution gains less, because it is "
    "arithmetic; a shallow\none gains more. A speedup should come with its depth."
)

# %% [markdown]
# Should you write this kernel, then? If the library has it, no: fold the weights and call it. Your own kernel is for
# everything the library does not have: another activation, a residual added, a result in int8.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel masks `place >= 0` and `place < height * width`, and the meter finds no access out of bounds. Which output
#    pixels are wrong, and which test would not notice?
# <details><summary>Answer</summary>Those whose window extends past the left or right edge: they read the row above or
# below. A test without padding, or with a filter of one tap, does not notice; nor does an image whose outer columns are
# 0.</details>
#
# 2. A filter of 5 x 5 at stride 5 without padding: how often is a pixel read, and what is that layer to a matmul?
# <details><summary>Answer</summary>Once at most: windows do not overlap. The matrix of windows is the image itself,
# reordered: this is how vision transformers split an image into patches.</details>
#
# 3. Your colleague trains one step with `momentum=1`, so that the running statistics are this batch's own, folds them,
#    and compares with the training-mode result on the same batch. It is off by a little, and by more in smaller batches.
#    Why?
# <details><summary>Answer</summary>Batch norm divides by the variance with $n$, but stores the one with $n - 1$, the
# unbiased estimate. For $n$ = 2 it is twice as large.</details>
#
# 4. In fp16, why is the scale better off in the epilogue than in the weights, and what speaks for the weights?
# <details><summary>Answer</summary>Folded weights are rounded again; the scale in the epilogue multiplies an fp32 sum.
# With folded weights only a bias is left: a library's kernel with bias and ReLU in its epilogue is enough.</details>
#
# 5. A 1 x 1 convolution of 2048 channels to 512: is fusing batch norm and ReLU worth more or less than for 512 to 2048?
# <details><summary>Answer</summary>Less: at four times the depth, each element of the result has four times the
# arithmetic beside the same trips.</details>
#
# 6. A GPU has a ridge of 200 FLOP/B in bf16. A 3 x 3 convolution of 64 channels is compute-bound, fused or not. By the
#    formula, how many times faster is one kernel than three? Replace the dots by your number.
# <!-- given 200 FLOP/B: the question's own -->

# %%
answer = ...
self_test(
    answer,
    1 + 4 * 200 / (9 * 64),
    "1 + 4 x ridge / depth, the depth being taps times input channels",
)

# %% [markdown]
# ## Now you
#
# [Exercise 09](../exercises/09_conv_bn_relu.ipynb) asks for the whole in one launch: any stride, padding and filter,
# with batch norm folded into its epilogue.

# %% [markdown]
# ## Going further
#
# ### How exact is the formula?
#
# It takes the convolution at the rate of a large matmul and the trips at copy bandwidth. How fast are they?

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    count, channels, height, width, filters, side = shape
    results = count * filters * height * width
    rate = 2 * results * channels * side**2 / times["conv"].median / h200.matrix_rate
    trips_time = times["conv, BN, ReLU"].median - times["conv"].median
    speed = 4 * 2 * results / trips_time / h200.copy_bandwidth
    rows.append((named(shape), f"{rate:.0%}", f"{speed:.0%}"))
columns = ("", "convolution, of a matmul's rate", "trips, of copy bandwidth")
table(columns, rows, h200.label_of("conv_steps"))

# %% [markdown]
# Where both slow down equally, the formula holds. Where the trips lose more of their speed, as in the first two, a fused
# kernel as fast as cuDNN's convolution gains more than predicted; where the convolution loses more of its own rate, as
# with 64 channels, less.
#
# ### Where the library wins
#
# `torch.compile` leaves the convolution to the library unless `max-autotune` makes it try its own. `fused` is the
# course's tuned kernel, later than the one in the table by channels below:

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
print("cuDNN's speed over ours:", ", ".join(f"{each:.2f}" for each in ahead), end="; ")
print(f"the library wins {sum(each > 1 for each in ahead)} of {len(ahead)}")

# %% [markdown]
# Both beat eager PyTorch on all of them. Is it the depth that decides? 32 images of 28 x 28, 3 x 3 taps, as many
# channels out as in:

# %% tags=["hide-input"]
rows = []
for channels, times in h200.experiment("conv_channels").items():
    of_cudnn = times["fused"].median / times["cuDNN fused"].median
    rows.append((channels, f"{of_cudnn:.2f}"))
table(("channels", "cuDNN's speed over ours"), rows, h200.label_of("conv_channels"))

# %% [markdown]
# Not the depth: mostly the two are level. (256 channels used another tile then; above they have a better one.) Where
# they are not, it is the tile. Large tiles may be too few to fill the GPU's last wave (lesson 07), and small ones load
# more per FLOP. Ours chooses among the few of `TILES` in `kernels/tuned/conv_descriptors.py`, a library among many more
# kernels.
#
# All that is GPU time. How long does a **caller** wait, from Python, with the launch?

# %% tags=["hide-input"]
at_all_sizes.calls(["conv_bn_act"])

# %% [markdown]
# (A shape: images, channels, height, width, filters, taps, stride. A *bare launch* is an empty kernel with the same
# arguments, launched from Python by Triton.) Where a call takes longer than the GPU, the rest is Python and the launch. A
# [CUDA graph](../docs/glossary.md#cuda-graph) removes that, for both. And at 30 sizes, from ResNet's stages to odd ones:
# each mark is a layer, at its depth; *odd*: sizes that no tile divides; *strided*: stride 2.

# %% tags=["hide-input"]
from helpers.figures import sweep_chart

display(sweep_chart(at_all_sizes, "conv_bn_act"), at_all_sizes.summary(["conv_bn_act"]))
late = at_all_sizes.behind(["conv_bn_act"])
print("Furthest behind:", *[line for line in late if not line.startswith("a call")][:6], sep="\n")

# %% [markdown]
# Where the two are far apart, it is the shape. cuDNN is ahead at some images of 14 x 14 or 7 x 7, where tiles are few,
# and a little at some larger ones: a library has more kernels to choose from. Where the channels are not a multiple of
# 16 bytes (100, 130, or the 3 of a first layer), cuDNN falls behind, and ours copies first (below).
# <!-- given 16 bytes: CUDA C++ Programming Guide, tensor maps: strides -->
#
# ### A tap is a shifted box
#
# The course's plain kernel (`kernels/tiled/conv_bn_act.py`) computes addresses and masks as the lesson's does, for
# channels last. Its tuned kernel uses what the explorer showed: a tap sees the same shape, shifted. Let a tile be a
# **box** of pixels, and each tap reads a box. Hopper's [TMA](../docs/glossary.md#tma) fetches boxes by itself, and gives
# zeros outside the image: no address, no mask, no thread. In the machine code:

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
print(f"with boxes: {ratio:.1f} times faster on an H200, and its tiles are larger")

# %% [markdown]
# The price: channels must come in multiples of 8 (of 16, where the stride is not 1), the tensors be aligned, the GPU be
# a recent one. Other channel counts are copied once, with zeros after them and around the image, where there is enough
# to multiply (then even TMA's boxes may overlap, and a filter's row is one step); the rest uses the plain kernel.
#
# ### Batch statistics, timed
#
# PyTorch's batch norm alone, on the H200, with the batch's statistics over running ones:

# %% tags=["hide-input"]
rows = []
for shape, times in bf16.items():
    with_running, with_batch = (times[name].median for name in ("BN", "BN, batch statistics"))
    rows.append((named(shape), f"{with_batch / with_running:.1f}x slower"))
table(("", "with the batch's statistics"), rows, h200.label_of("conv_steps"))

# %% [markdown]
# (If weights keep training while the statistics are frozen, fold them again after each step, or don't fold.)
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
