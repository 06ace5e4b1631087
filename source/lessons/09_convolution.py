# %% [markdown]
# # 09 Convolution, batch norm, ReLU: a matrix that is never written
#
# A network for pictures does the same three things again and again: a convolution, batch norm, ReLU. The first is
# nearly all of the arithmetic, the other two are most of the traffic. And in inference, batch norm is one product and
# one sum for each number. **So why does it move more bytes than the convolution, and what does it take to make it
# vanish: a kernel, or only a pencil?**
#
# After this lesson you can
#
# - write a convolution as a tiled matmul whose left matrix is nowhere in memory, and say which pixels a tile reads and
#   how often;
# - tell a mask that keeps a kernel inside its memory from one that keeps it inside the picture;
# - say what it brings to store channels last: whole sectors, and loads of full width;
# - fold batch norm into weights or into an epilogue, say which rounds less, and why training forbids both;
# - say from one number, the depth of the product, how much fusing can bring, and where cuDNN's own kernel is faster.
#
# About 60 minutes. It follows on [08 Matmul epilogues](08_matmul_epilogues.ipynb), whose tiles and `tl.dot` it takes
# for granted, and leads to [exercise 09](../exercises/09_conv_bn_relu.ipynb).

# %%
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import measure, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
same = torch.Generator().manual_seed(0)  # the same numbers on every machine


def normal(*shape):
    return torch.randn(shape, generator=same).to(device)


# %% [markdown]
# ## What it costs written out
#
# Two pictures of 14 x 14 pixels with 16 channels, in fp16; a filter of 3 x 3 taps, moved a pixel at a time (**stride**
# 1) over a picture that has a rim of zeros (**padding** 1), so that the result has 14 x 14 pixels, too, of 32 channels.
# Batch norm in **inference** takes mean and variance that training has left behind, one of each a channel:

# %%
last = torch.channels_last  # an order of the same numbers in memory: below
x = normal(2, 16, 14, 14).half().to(memory_format=last)
w = (normal(32, 16, 3, 3) / 12).half().to(memory_format=last)  # 12: the root of 16 x 3 x 3
gamma, beta, mean = normal(3, 32)
var, eps = normal(32).abs() + 0.5, 1e-5


def written_out(x, w, stride=1, padding=1):
    s = F.conv2d(x, w, stride=stride, padding=padding)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


# %% [markdown]
# **How often does a tensor of the result's size cross memory, from the first kernel to the last?** A write counts, and
# so does a read.

# %%
trips = predict_first("trips of a tensor of the result's size, written out", unit="trips")
trips

# %%
unfused = measure(written_out, x, w)
y = unfused.result
given = x.nbytes + w.nbytes
print(
    f"{unfused.launches} launches, {unfused.bytes_total / 1e3:.0f} kB; x and w are "
    f"{given / 1e3:.0f} kB of them"
)
trips.compare(round((unfused.bytes_total - given) / y.nbytes))

# %%
from helpers.figures import traffic_chart

title = "The result's size crosses memory five times, what is given once"
chart = traffic_chart({"unfused": unfused}, title)
in_kb = lambda nbytes: f"{nbytes / 1e3:.0f} kB"
trips.on(chart, "x", lambda count: given + count * y.nbytes, row=0, says=in_kb)

# %% [markdown]
# The convolution writes; batch norm reads and writes; ReLU reads and writes. Only the last write is the result. The
# epilogue of a matmul could do both on the way out. But is a convolution a matmul?
#
# ## A convolution is a matmul
#
# For each output pixel $(p, q)$ and output channel $k$, with $r$ and $s$ running over the filter's **taps** and $c$
# over the input's channels:
#
# $$y_{kpq} = \sum_{r,s,c} w_{kcrs}\; x_{c,\; p \cdot \text{stride} + r - \text{padding},\; q \cdot \text{stride} + s -
# \text{padding}}$$
#
# One sum over $(r, s, c)$, of weights and of what stands in the pixel's **window**. Write every window as a row of a
# matrix: the convolution is that matrix times the weights. `F.unfold` writes it (each window as a column). **How many
# times as large as the picture is it?**

# %%
larger = predict_first("matrix of windows, times as large as x: 3 x 3, stride 1", unit="times")
larger

# %%
windows = F.unfold(x.float(), 3, padding=1)
product = (w.float().reshape(32, -1) @ windows).reshape(2, 32, 14, 14)
right = F.conv2d(x.float(), w.float(), padding=1)
print("the same:", torch.allclose(product, right, atol=1e-2))
print("windows, each of taps x channels:", tuple(windows.shape))
larger.compare(windows.numel() / x.numel())

# %% [markdown]
# As many times as there are taps: every pixel stands in as many windows. Early libraries did write that matrix
# (**im2col**). What it costs, on an H200, at four larger sizes that this lesson comes back to:

# %%
from helpers.instruments import recorded
from kernels.tiled.conv_bn_act import LARGE

h200 = recorded("h200")
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
    "windows written",
    "library's convolution",
)
table(columns, rows, f"{h200.label_of('conv_steps')}, bf16")

# %% [markdown]
# A tiled matmul does not need it. A program reads a tile of rows, a slice at a time: all it asks is **where** row
# `pixel`, column `at` would be. That can be computed: this is the **implicit GEMM**. Rows are output pixels, of all
# pictures; columns are taps times channels, and their number is the **depth** of the product.


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
# `size` and `strides` are tuples; a kernel takes them as they are. `pixel` is a column of numbers, `at` a row, so every
# line makes a tile. What `there` refuses is loaded as 0, as the padding wants it.
#
# The loop is any matmul's. Which function finds the windows is an argument, so that we can exchange it:


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
    w = w.permute(0, 2, 3, 1).contiguous()  # no copy, where its channels are last
    kernel[grid](x, w, *vectors, y, pixels, out_channels, size, x.stride(), **options)
    return y.permute(0, 3, 1, 2)


# %%
def is_right(s, *given, **options):
    exact = F.conv2d(*(each.double() for each in given), **options)
    return torch.isclose(s.double(), exact, rtol=1e-2, atol=1e-2)


first = measure(conv, conv_kernel, first_window, x, w)
print("nothing out of bounds:", not first.hazards)
no_padding = conv(conv_kernel, first_window, x, w, padding=0)
print("right without padding:", bool(is_right(no_padding, x, w).all()))
print("right with padding:", bool(is_right(first.result, x, w, padding=1).all()))

# %% [markdown]
# No access lies outside its tensor, nothing is uninitialised, and a test without padding passes. Yet it is wrong.
# **What share of the output pixels is wrong?** Think of the window of a pixel in the first column: where is the pixel
# to the left of it?

# %%
share = predict_first("output pixels wrong, 14 x 14, padding 1", unit="%")
share

# %%
wrong = ~is_right(first.result, x, w, padding=1)[0].all(dim=0)
for row in wrong[[0, 1, 6, 13]]:
    print("".join("x" if each else "." for each in row))
share.compare(100 * wrong.float().mean().item())

# %% [markdown]
# In memory, the pixel before the first of a row is the **last of the row above**. It exists, so nobody complains, and
# it is not 0. A mask must ask for more than memory: is the row in the picture, and is the column? (Above and below, the
# careless mask was right by luck: there, what is outside the picture is outside the memory that it counts as one.)


# %%
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


# %%
for stride, padding in ((1, 1), (1, 0), (2, 1), (3, 2)):
    s = conv(conv_kernel, window, x, w, stride=stride, padding=padding)
    right = bool(is_right(s, x, w, stride=stride, padding=padding).all())
    print(f"stride {stride}, padding {padding}: {tuple(s.shape)}, right: {right}")

# %% [markdown]
# ## Which pixels a tile reads, and how often
#
# One picture of 12 x 12 pixels, tiles of 16 output pixels. Left: the input in its padding, and how often each pixel is
# read; right: the tile. Move the sliders with the mouse or the arrow keys:
#
# 1. Take all tiles at stride 1, padding 1. How often is a pixel in the middle read, at the rim, in a corner?
# 2. Stride 2: how often now, and what became of the regular picture? At which stride is every pixel read once at most?
# 3. A filter of 1 x 1 at stride 2, no padding: how much of the picture does nobody look at?
# 4. 3 x 3, stride 1, padding 0, tile 0: choose *the first* tap, then *the middle*. How do the pixels read differ?
# 5. A filter of 1 x 1, stride 1, padding 2: what does tile 0 compute?

# %%
from helpers.figures import Windows, WindowsExplorer

explorer = WindowsExplorer(taps=3, stride=1, padding=1, tile=3)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. As often as there are taps; at the rim a third less, in a corner
# four times. 2. Once, twice or four times, by whether a row and a column are odd. At stride 3, where windows of three
# do not overlap. 3. Three quarters of it. 4. Not at all, but that all of them lie a row lower and a column further
# right: **a tap sees the same shape, shifted.** We come back to that. 5. Zeros: a product of nothing but
# padding.</details>
#
# Is that what the kernel does? The meter knows what it asked for. Every read of a pixel brings all its channels:

# %%
rows = []
for taps, stride, padding in ((3, 1, 1), (3, 2, 1), (1, 2, 0)):
    model = Windows(14, 14, taps, stride, padding)
    found = measure(conv, conv_kernel, window, x, w[:, :, :taps, :taps], (), stride, padding)
    metered = found.by_tensor["x"].read / (2 * 16 * x.itemsize)  # a picture, a channel
    expected = model.in_picture(model.reads()).sum()
    rows.append((f"{taps} x {taps}", stride, expected, f"{metered:.0f}"))
table(("window", "stride", "reads of 196 pixels expected", "metered"), rows)

# %% [markdown]
# So the matrix of windows is still **asked for**, many times the picture; it is only not in memory. Whoever asks again
# soon finds the pixel in a cache. How soon is soon? With more filters than a tile has, the whole is asked for once more
# by every tile of filters. On the H200: 64 pictures of 56 x 56 pixels and 128 channels in bf16, 256 filters of 3 x 3,
# tiles of 128 pixels by 64 filters. A program asks for a pixel nine times, and four programs do. **How many times does
# memory deliver x?** The kernel's grid counts tiles of pixels first, then tiles of filters.

# %%
delivered = predict_first("times that memory delivers x, asked for 9 x 4 times", unit="times")
delivered

# %%
counters = h200.experiment("conv_counters")
pixels, tiles = 64 * 56 * 56, 256 // 64
picture, filters = 2 * 128 * pixels, 2 * 256 * 128 * 9  # bytes
model = Windows(56, 56, 3, 1, 1)
asked = 2 * 128 * 64 * tiles * model.in_picture(model.reads()).sum() + filters * pixels // 128
counted = counters["channels last"][1]
print(h200.label_of("conv_counters"))
print(f"x: {picture / 1e6:.0f} MB; asked for, with the weights: {asked / 1e9:.2f} GB")
print(
    f"read of L2: {32 * counted['l2_read'] / 1e9:.2f} GB; of memory: "
    f"{counted['dram_read'] / 1e6:.0f} MB"
)
print(f"the catalogue's kernel, of memory: {counters['catalogue'][1]['dram_read'] / 1e6:.0f} MB")
delivered.compare((counted["dram_read"] - filters) / picture)

# %% [markdown]
# Nine taps cost memory nothing: they follow so soon that L2 has the pixel. Four tiles of filters cost four reads: each
# is a pass over all pictures, and by its end L2 has lost where it began. The catalogue's kernel lets the tiles of the
# **same pixels** run together, and memory delivers x once: the order of tiles again, as with any matmul.
#
# ## Channels last, and why
#
# A picture (images, channels, height, width) can lie in memory in two orders. **Channels first**: one plane after the
# other, all of a channel's pixels side by side. **Channels last**: pixel after pixel, all channels of one side by side.
# The indices stay the same, only the strides differ, so the same kernel takes both:

# %%
first_order = x.contiguous()
print("strides, channels last: ", x.stride())
print("strides, channels first:", first_order.stride())
same_result = torch.equal(
    conv(conv_kernel, window, x, w), conv(conv_kernel, window, first_order, w)
)
print("the same result:", same_result)

# %% [markdown]
# But memory comes in sectors of 32 bytes. A pixel's 16 channels in fp16 are just one. With channels first, what a tap
# reads of a channel is a row of pixels, shifted by the tap. **At stride 2, channels first: how many bytes of sectors
# for each byte that is wanted?**
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->

# %%
waste = predict_first("bytes fetched for a byte wanted, channels first, stride 2", unit="times")
waste

# %%
for stride in (1, 2):
    for order, each in (("last", x), ("first", first_order)):
        found = measure(conv, conv_kernel, window, each, w, (), stride)
        fetched = 32 * found.sectors_read / found.bytes_read
        print(f"stride {stride}, channels {order:5}: {fetched:.2f} B fetched for each wanted")
waste.compare(fetched)

# %% [markdown]
# (The weights are in these numbers, too, and they lie well.) A cache may repair some of that: the other half of a
# sector is wanted by another tap. What no cache repairs is the **width of a load**. With channels last, a thread may
# take 16 bytes at once, eight channels of a pixel, which are always there or not there together. With channels first, a
# thread would take eight pixels side by side, but the shift by a tap leaves them unaligned, and some may be padding:
# <!-- given 16 bytes: CUDA C++ Programming Guide, device memory accesses -->

# %%
from helpers.instruments import compile_for

half = {"dtype": torch.float16, "device": "meta"}
pictures, weights = torch.empty(64, 128, 56, 56, **half), torch.empty(256, 3, 3, 128, **half)
result, size = torch.empty(64, 56, 56, 256, **half), (128, 56, 56, 56, 56)
options = {"WINDOW": window, "TAPS": 3, "STRIDE": 1, "PADDING": 1}
options |= {"BLOCK_PIXELS": 128, "BLOCK_OUT": 64, "BLOCK_IN": 32, "num_warps": 4}
made, rows = {}, []
for order, layout in (("last", last), ("first", torch.contiguous_format)):
    passed = (
        pictures,
        weights,
        result,
        64 * 56 * 56,
        256,
        size,
        pictures.to(memory_format=layout).stride(),
    )
    made[order] = compile_for(conv_kernel, *passed, device="A100", **options)
    counts = (made[order].instructions[name] for name in ("LDGSTS.128", "LDG.16"))
    rows.append((f"channels {order}", *counts))
display(table(("", "LDGSTS.128", "LDG.16"), rows))
more = made["first"].instructions["IMAD"] > made["last"].instructions["IMAD"]
print("more integer arithmetic with channels first:", more)

# %% [markdown]
# `LDGSTS.128` brings 128 bits straight into shared memory, where tensor cores want them, while the products of the
# slice before go on. `LDG.16` brings one number to a register, which is stored again; and each number has its own
# address to work out (`IMAD`: an integer product and sum) and its own mask. That is why tensor cores like channels
# last: **the sum runs over channels, so let channels be side by side.**
#
# **How many times slower is this kernel on an H200 with channels first**, at stride 1?
# <!-- given 128 bits: the instruction's name -->

# %%
slower = predict_first("times slower with channels first, stride 1, H200", unit="times")
slower

# %%
orders = h200.experiment("conv_layouts")["x".join(map(str, LARGE[1]))]
rows = []
for name, who in (("ours", "the lesson's kernel"), ("cuDNN", "cuDNN")):
    for order in ("channels last", "channels first"):
        taken = (orders[stride][f"{who}, {order}"].median for stride in (1, 2))
        rows.append((f"{name}, {order}", *(f"{1e6 * each:.0f} us" for each in taken)))
display(table(("", "stride 1", "stride 2"), rows))
for order in ("channels last", "channels first"):
    from_memory = (f"{counters[order][stride]['dram_read'] / 1e6:.0f} MB" for stride in (1, 2))
    print(f"read of memory by ours, {order}, stride 1 and 2:", ", ".join(from_memory))
times = orders[1]
with_first, with_last = (
    times[f"the lesson's kernel, channels {order}"] for order in ("first", "last")
)
slower.compare(with_first.median / with_last.median)

# %%
from helpers.figures import timing_chart

pair = {"channels last": with_last, "channels first": with_first}
chart = timing_chart(pair, f"{h200.label_of('conv_layouts')}; the lesson's kernel, stride 1")
at_best = with_last.median
slower.on(chart, "x", lambda times: times * at_best, row=1, says=lambda t: f"{1e6 * t:.0f} µs")

# %% [markdown]
# At stride 1, memory delivers as much in either order: caches did repair the sectors, and it is the narrow loads that
# take the time. At stride 2 they did not repair them. cuDNN prefers channels last as well. In PyTorch it is one line,
# `model.to(memory_format=torch.channels_last)`, and another for the pictures.
#
# ## Batch norm with a pencil
#
# In inference, batch norm takes the mean off, divides by the deviation, and scales and shifts:
#
# $$y = \gamma\,\frac{s - \text{mean}}{\sqrt{\text{var} + \text{eps}}} + \beta
# = \underbrace{\frac{\gamma}{\sqrt{\text{var} + \text{eps}}}}_{\text{scale}}\, s
# + \underbrace{\beta - \text{mean} \cdot \text{scale}}_{\text{shift}}$$
#
# Nothing in scale and shift depends on the picture: they are four vectors' affair, once and for all. And a convolution
# is linear, so the scale can go into the weights: $\text{scale}_k \sum w_k x = \sum (\text{scale}_k\, w_k)\, x$. What
# remains of batch norm is a bias. Is that exact? PyTorch has a tool that does the same; both in float64:

# %%
from torch.nn.utils.fusion import fuse_conv_bn_weights


def fold(gamma, beta, mean, var, eps):
    scale = gamma * torch.rsqrt(var + eps)
    return scale, beta - mean * scale


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


# %%
def off(found, expected):
    return ((found.double().cpu() - expected).abs().max() / expected.abs().max()).item()


theirs = fuse_conv_bn_weights(w64, None, mean64, var64, eps, gamma64, beta64)
print("in an epilogue, right to 14 digits:", off(into_epilogue, expected) < 1e-14)
print("in the weights, right to 14 digits:", off(into_weights, expected) < 1e-14)
same_weights, same_bias = torch.allclose(theirs[0], folded_w64), torch.allclose(theirs[1], shift64)
print("as PyTorch's own tool has them:", same_weights, same_bias)

# %% [markdown]
# With a pencil, then, and no kernel: fold the weights once, and batch norm is gone from the model. In float64 both are
# as good as exact. In fp16 the two are not equal. **Which is closer to the exact result, the scale in the weights or in
# the epilogue?** Count how often something is rounded to fp16.
#
# ## The epilogue
#
# The kernel with batch norm and ReLU on its way out. The sum is in registers, in fp32:


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
# (`tl.where(y < 0, 0, y)` and not `tl.maximum(y, 0)`: on a GPU a maximum drops NaN, and a network that has gone wrong
# would look healthy.)

# %%
scale, shift = fold(gamma, beta, mean, var, eps)
fused = measure(conv, conv_bn_relu_kernel, window, x, w, (scale, shift))
folded_w = (w * scale[:, None, None, None]).half().to(memory_format=last)
folded = conv(conv_bn_relu_kernel, window, x, folded_w, (torch.ones_like(scale), shift))
found = {"three kernels": y, "in the weights": folded, "in the epilogue": fused.result}
errors = {name: off(each, exact_y) for name, each in found.items()}
print("right:", errors["in the epilogue"] < 1e-3)
print(
    "from the largest error to the least:", ", ".join(sorted(errors, key=errors.get, reverse=True))
)

# %% [markdown]
# Three kernels round the sum, then batch norm's result. Folded weights are rounded once when folded: each product of
# the sum is a little off. The epilogue rounds nothing but the result.
#
# And its bytes? The meter counts what a Triton kernel **asks for**, nine times the picture, but of an operator of
# PyTorch's only that it reads its input once. So that the pair is fair, let our own convolution be the first of three
# kernels:


# %%
def three_kernels(x, w):
    s = conv(conv_kernel, window, x, w)
    return torch.relu(F.batch_norm(s, mean, var, gamma, beta, eps=eps))


apart = measure(three_kernels, x, w)
print(
    f"distinct bytes: {apart.unique_total / fused.unique_total:.1f} times fewer in "
    f"{fused.launches} launch"
)
traffic_chart({"unfused": apart, "fused": fused})

# %% [markdown]
# Asked for, and distinct: what memory really delivers lies between the two, and caches decide where. The distinct bytes
# fall by the four trips that are no longer made.
#
# ## The mistake: folding what training computes
#
# In **training**, batch norm takes mean and variance of the batch that is just passing, of each channel over all
# pictures and pixels. A colleague folds these. Here is the test:


# %%
def sums(x):
    return F.conv2d(x.double(), w.double(), padding=1)


def statistics(x):
    return sums(x).mean((0, 2, 3)), sums(x).var((0, 2, 3), unbiased=False)


def training_mode(x):
    return F.batch_norm(sums(x), None, None, gamma.double(), beta.double(), training=True, eps=eps)


def with_folded(x, mean, var):
    scale, shift = fold(gamma.double(), beta.double(), mean, var, eps)
    return sums(x) * scale[:, None, None] + shift[:, None, None]


kept = statistics(x)
print("test passed:", torch.allclose(with_folded(x, *kept), training_mode(x)))

# %% [markdown]
# Passed, to the last digit. What is wrong? Take picture 0 again, but put another picture beside it in the batch. **What
# share of picture 0's results changes, in training mode?**

# %%
changed = predict_first("picture 0's results that change with picture 1, training mode", unit="%")
changed

# %%
other = x.clone()
other[1] = 3 * normal(16, 14, 14).half() + 1
before, after = training_mode(x)[0], training_mode(other)[0]
changed.compare(100 * (before != after).double().mean().item())

# %%
running = mean.double(), var.double()
inference = F.batch_norm(sums(other), *running, gamma.double(), beta.double(), eps=eps)
print(
    "on the second batch, in training mode:",
    torch.allclose(with_folded(other, *kept), training_mode(other)),
)
print("on the second batch, in inference:", torch.allclose(with_folded(other, *kept), inference))
print(
    "running statistics folded, in inference:",
    torch.allclose(with_folded(other, *running), inference),
)

# %% [markdown]
# In training mode a picture's result depends on its neighbours. No weights can do that: weights know one window. The
# test passed because it asked for the batch that the weights were made from. Fold **running** statistics, compare with
# the model in `eval()` mode, on a batch that it has not seen.
#
# Nor can an epilogue do it in training. A channel's mean is known when the last program has finished its last pixel; a
# program that waits with its tile in registers would wait for programs that have not begun, if there are more than a
# wave. So training writes the sums of products, collects their statistics on the way, and reads them back: two trips
# more that fusing cannot save. PyTorch's batch norm alone, on the H200:

# %%
rows = []
for shape, times in bf16.items():
    with_running, with_batch = (times[name].median for name in ("BN", "BN, batch statistics"))
    rows.append((named(shape), f"{with_batch / with_running:.1f} times as long"))
table(("", "with the batch's statistics"), rows)

# %% [markdown]
# (Weights that go on learning while the statistics are frozen can be folded again after each step, or left alone.)
#
# ## How much can fusing bring?
#
# Bytes are half of the story: a convolution computes. Take a large one, in bf16. Each number of the result takes two
# FLOPs for each step of the depth. Each of the four trips saved takes two bytes of memory's time. With $R$ the rate of
# the tensor cores and $B$ the bandwidth:
#
# $$\text{speed-up} = \frac{2\,\text{depth}/R + 4 \cdot 2/B}{2\,\text{depth}/R} = 1 + \frac{4\,R/B}{\text{depth}}$$
#
# $R/B$ is the ridge point of lesson 01. The size of the picture is not in it, nor the number of output channels: only
# the depth, taps times input channels. **For 3 x 3 taps and 128 channels on an H200: how many times faster?**
# <!-- given two bytes: bf16 -->

# %%
ridge = h200.matrix_rate / h200.copy_bandwidth
print(f"ridge, measured: {ridge:.0f} FLOP/B; depth: {9 * 128}")
speed_up = predict_first("speed-up by fusing, 3 x 3, 128 channels, H200", unit="times")
speed_up

# %%
rows = []
for shape, times in bf16.items():
    images, channels, height, width, filters, taps = shape
    three, depth = times["conv, BN, ReLU"].median, taps**2 * channels
    gains = (f"{three / times[name].median:.2f}" for name in ("fused", "cuDNN fused"))
    megabytes = f"{2 * images * filters * height * width / 1e6:.0f} MB"
    rows.append((named(shape), depth, f"{1 + 4 * ridge / depth:.2f}", *gains, megabytes))
title = "times faster than three kernels, bf16 on an H200"
display(table(("", "depth", "formula", "ours", "cuDNN's", "y"), rows, title))
speed_up.compare(bf16[LARGE[1]]["conv, BN, ReLU"].median / bf16[LARGE[1]]["fused"].median)

# %%
from helpers.figures import curves_chart

of_depth = {}
for shape, times in bf16.items():
    of_depth[shape[5] ** 2 * shape[1]] = times["conv, BN, ReLU"].median, times
ways = {"ours": "fused", "cuDNN's": "cuDNN fused"}
gains = {
    who: {depth: three / times[way].median for depth, (three, times) in sorted(of_depth.items())}
    for who, way in ways.items()
}
formula = {"formula": {depth: 1 + 4 * ridge / depth for depth in range(512, 2400, 64)}}
axes = {"x": "depth: taps times input channels", "y": "times as fast as three kernels"}
title = "What fusing brings falls with the depth, about as the formula says"
chart = curves_chart(gains, title, **axes, log=True, limit=formula)
speed_up.on(chart, "y")

# %% [markdown]
# `ours` is the catalogue's `conv_bn_act`; cuDNN has a fused kernel of its own, to which we come. The formula gives the
# order, if not the numbers. It takes the convolution to run at the rate of a large matmul, and the trips to go at the
# speed of a large copy. How fast are they?

# %%
rows = []
for shape, times in bf16.items():
    images, channels, height, width, filters, taps = shape
    results = images * filters * height * width
    rate = 2 * results * channels * taps**2 / times["conv"].median / h200.matrix_rate
    trips_time = times["conv, BN, ReLU"].median - times["conv"].median
    speed = 4 * 2 * results / trips_time / h200.copy_bandwidth
    rows.append((named(shape), f"{rate:.0%}", f"{speed:.0%}"))
table(("", "convolution, of a matmul's rate", "the trips, of a copy's speed"), rows)

# %% [markdown]
# Where both are slower alike, the formula holds. Where the trips lose more of their speed, as in the first two, a fused
# kernel as fast as cuDNN's convolution gains more than it says (on the first, ours was not when these steps were
# recorded); where the convolution loses more of its own rate, as with 64 channels, it gains less.
#
# And **only a pencil**? Fold the weights, give the convolution its bias, call ReLU: no new kernel at all. Batch norm's
# two trips are gone. **How many times faster than three kernels, at the same size?**

# %%
pencil = predict_first("speed-up by folding alone, 3 x 3, 128 channels, H200", unit="times")
pencil

# %%
rows = []
for shape, times in bf16.items():
    only_folded = times["conv, BN, ReLU"].median / times["folded conv, ReLU"].median
    epilogue = times["cuDNN fused"].median / times["conv"].median
    rows.append((named(shape), f"{only_folded:.2f} times faster", f"{epilogue:.2f} times"))
    if shape == LARGE[1]:
        pencil.compare(only_folded)
table(("", "folded", "cuDNN's fused kernel, of its convolution alone"), rows)

# %% [markdown]
# Nothing, or worse. `conv2d` takes a bias, but on a GPU PyTorch calls cuDNN without it and adds it afterwards, **in a
# kernel of its own** (`ATen/native/Convolution.cpp`): one that is no better than batch norm's. Folding has moved the
# trips to another name. cuDNN's kernel that has the epilogue takes the time of its convolution alone: there, batch norm
# and ReLU are free, or nearly. So it takes both, a pencil and a kernel. That is the answer to the first question.
#
# **Claim: "fusing Conv + BN + ReLU makes it 1.41 times faster."** It names no size, no dtype and no GPU; what it does
# say is what is compared, three kernels and one. So three kernels of PyTorch's against cuDNN's one, in bf16 with
# channels last, and in fp32 with channels first, as tensors are when nobody says anything (cuDNN then
# multiplies in tf32, which PyTorch allows for convolutions unless told otherwise):

# %%
for kind, of_kind in steps.items():
    pairs = ((times["conv, BN, ReLU"], times["cuDNN fused"]) for times in of_kind.values())
    gains = (f"{apart.median / fused_conv.median:.2f}" for apart, fused_conv in pairs)
    print(f"{kind}: {', '.join(gains)} times faster on the GPU")
depth = 4 * ridge / 0.41
print(
    f"1.41 times, by the formula: at a depth of {depth:.0f}, so at {depth / 9:.0f} channels of 3 x "
    "3 taps"
)

# %% [markdown]
# **Verdict: fair for one depth, and no number for convolutions.** In each dtype one of the four sizes comes close to
# it, not the same. A deep convolution gains less, for it is arithmetic; a shallow one gains more. Who quotes a speed-up
# should say the depth.
#
# ## Where the library wins
#
# cuDNN's kernel adds a bias and applies ReLU in its epilogue; with folded weights, that is all we want. Its name in
# PyTorch is `torch.cudnn_convolution_relu`. `torch.compile` leaves the convolution to the library unless it is told to
# try its own (`max-autotune`). `fused` is the catalogue's `conv_bn_act`, made with all that its authors know. **How
# many times as fast as that is cuDNN's kernel, 256 channels in and out, 28 x 28 pixels?**

# %%
library = predict_first(
    "cuDNN's fused kernel, times as fast as ours, 256 channels, 28 x 28", unit="times"
)
library

# %%
from helpers.instruments import recorded_sweep

at_all_sizes = recorded_sweep()
swept = {tuple(point["shape"]): point for point in at_all_sizes.of("conv_bn_act")}
at_large = [swept[(*shape, 1)] for shape in LARGE]  # stride 1
providers = ("eager", "torch.compile", "max-autotune", "fused", "cuDNN fused")
rows = []
for shape, point in zip(LARGE, at_large, strict=True):
    images, channels, height, width, filters, taps = shape
    flops = 2 * images * height * width * filters * channels * taps**2
    rates = {name: f"{flops / us / 1e6:.0f}" for name, (us, *_) in point["gpu"].items()}
    rows.append((named(shape), *(rates.get(name, "") for name in providers)))
label = at_all_sizes.label(at_large)
table(("", *providers), rows, f"{label}\nTFLOP/s, bf16; empty: not timed")

# %%
ahead = {}
for shape, point in zip(LARGE, at_large, strict=True):
    ahead[shape] = point["gpu"]["fused"][0] / point["gpu"]["cuDNN fused"][0]
rows = ((named(shape), f"{each:.2f} times as fast as ours") for shape, each in ahead.items())
display(table(("", "cuDNN's kernel"), rows))
print(f"The library wins {sum(each > 1 for each in ahead.values())} of {len(ahead)}.")
library.compare(ahead[LARGE[0]])

# %% [markdown]
# Both leave eager PyTorch behind on all of them. Is it the depth that decides? 32 pictures of 28 x 28, 3 x 3 taps, as
# many channels out as in, recorded earlier:

# %%
rows = []
for channels, times in h200.experiment("conv_channels").items():
    of_cudnn = times["fused"].median / times["cuDNN fused"].median
    rows.append((channels, f"{of_cudnn:.2f} times as fast"))
table(("channels", "cuDNN's"), rows, h200.label_of("conv_channels"))

# %% [markdown]
# Not the depth: mostly the two are level. (256 channels took another tile then; above they have a better one.) Where
# they are not, it is the tile. Large ones may be too few to fill the
# GPU's last round (lesson 07), and small ones load more for each product. The catalogue chooses among the few of `TILES`
# in `kernels/tuned/conv_descriptors.py`, a library among many more kernels.
#
# All that is the GPU's own time. What does a **caller** wait, from Python, with the launch?

# %%
at_all_sizes.calls(["conv_bn_act"])

# %% [markdown]
# (A shape: pictures, channels, height, width, filters, taps, stride. A *bare launch* is an empty kernel with the same
# arguments, launched from Python by Triton.) Where a call takes longer than the GPU, the rest is Python and the launch. A
# CUDA graph takes that away (lesson 02), for both. And at 30 sizes, from ResNet's stages to odd ones: each mark is a
# layer, at its depth; *odd*: sizes that no tile divides; *strided*: stride 2.

# %%
from helpers.figures import sweep_chart

display(sweep_chart(at_all_sizes, "conv_bn_act"), at_all_sizes.summary(["conv_bn_act"]))
late = at_all_sizes.behind(["conv_bn_act"])
print("Furthest behind:", *[line for line in late if not line.startswith("a call")][:6], sep="\n")

# %% [markdown]
# Where the two are far apart, it is the shape. cuDNN is ahead at some pictures of 14 x 14 or 7 x 7, where tiles are few,
# and a little at some larger ones: a library has more kernels to choose from. Where channels are no multiple of 16 bytes (100, 130, or the 3 of a first
# layer), it is cuDNN that falls, and ours copies first (below).
# <!-- given 16 bytes: CUDA C++ Programming Guide, tensor maps: strides -->
#
# The catalogue's plain kernel (`kernels/tiled/conv_bn_act.py`) computes addresses and masks as the lesson's does, for
# channels last. What does its tuned kernel do that neither does? Remember what the explorer showed: a tap sees
# the same shape, shifted. Let a tile be a **box** of pixels, and each tap reads a box. Hopper's copy engine (TMA) fetches boxes by
# itself, and gives zeros where they stick out of the picture: no address, no mask, no thread. In the machine code:

# %%
from kernels.tiled.conv_bn_act import OP
from kernels.variants import kernel_at

boxes_kernel, arguments, chosen = kernel_at(OP, 64, 128, 56, 56, 256, 3, dtype=torch.float16)
with_boxes = compile_for(boxes_kernel, *arguments, device="H200", **chosen)
passed = (
    pictures,
    weights,
    result,
    64 * 56 * 56,
    256,
    size,
    pictures.to(memory_format=last).stride(),
)
decoding = compile_for(conv_kernel, *passed, device="H200", **options)
names, rows = ("LDGSTS.128", "UTMALDG", "HGMMA"), []
for name, kernel in (("the lesson's, above", decoding), ("with boxes", with_boxes)):
    rows.append((name, *(kernel.instructions[each] for each in names)))
display(table(("", *names), rows))
times = bf16[LARGE[1]]
ours = times["the lesson's kernel"].median
print(
    f"with boxes: {ours / times['fused'].median:.1f} times faster on an H200, and its tiles are "
    "larger"
)

# %% [markdown]
# The price: channels must come in multiples of 8 (of 16, where the stride is not 1), the tensors be aligned, the GPU be
# a recent one. Other channels the catalogue copies once, with zeros after them and around the picture, where there is
# enough to multiply (`kernels/tuned/conv_descriptors.py`: then even the copy engine's boxes may overlap, and a
# filter's row is one step); for the rest it keeps the decoding kernel. **Should one write this kernel, then?** If the
# library has it, no: fold the weights and call it. The kernel of one's own is for what the library has not: another
# activation, a residual added, a result in int8.
#
# With a GPU at hand, see what yours says:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together
from kernels import conv_bn_act

if runtime.has_gpu():
    inputs = OP.inputs(*LARGE[0], dtype=torch.float16, device="cuda")
    print(
        benchmark_together(
            {"eager": lambda: OP.reference(*inputs), "fused": lambda: conv_bn_act(*inputs)}
        )
    )
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel masks `place >= 0` and `place < height * width`, and the meter finds no access out of bounds. Which output
#    pixels are wrong, and which test would not notice?
# <details><summary>Answer</summary>Those whose window sticks out at the left or the right: they read the row above or
# below. A test without padding, or with a filter of one tap, does not notice; nor does a picture
# whose outer columns are 0.</details>
#
# 2. A filter of 5 x 5 at stride 5 without padding: how often is a pixel read, and what is that layer to a matmul?
# <details><summary>Answer</summary>Once at most: windows do not overlap. The matrix of windows is the picture itself,
# reordered: this is how vision transformers cut a picture into patches.</details>
#
# 3. Your colleague trains one step with `momentum=1`, so that the running statistics are this batch's own, folds them,
#    and compares with the training-mode result on the same batch. It is off by a little, the more so the smaller the
#    batch. Why?
# <details><summary>Answer</summary>Batch norm divides by the variance with $n$, but keeps for later the one with $n -
# 1$, the unbiased estimate. For $n$ = 2 it is twice as large.</details>
#
# 4. In fp16, why is the scale better off in the epilogue than in the weights, and what speaks for the weights?
# <details><summary>Answer</summary>Folded weights are rounded again, the scale in the epilogue meets an fp32 sum. With
# folded weights, what is left is a bias: a library's kernel that has a bias and ReLU in its epilogue will do.</details>
#
# 5. A 1 x 1 convolution of 2048 channels to 512: is fusing batch norm and ReLU worth more or less than for 512 to 2048?
# <details><summary>Answer</summary>Less: the depth is four times as large, so each number of the result has four times
# the arithmetic to hide the same trips behind.</details>
#
# 6. A GPU has a ridge of 200 FLOP/B in bf16. A 3 x 3 convolution of 64 channels is bound by arithmetic, fused or not.
#    By how many times is one kernel faster than three, by the formula? Put your number in place of the dots.
# <!-- given 200 FLOP/B: the question's own -->

# %%
answer = ...
self_test(
    answer,
    1 + 4 * 200 / (9 * 64),
    "1 + 4 x ridge / depth, the depth being taps times input channels",
)

# %% [markdown]
# [Exercise 09](../exercises/09_conv_bn_relu.ipynb) asks for the whole in one launch: any stride, padding and filter,
# with batch norm folded in the epilogue.
