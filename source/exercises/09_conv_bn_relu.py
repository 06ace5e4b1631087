# %% [markdown]
# # Exercise 09: convolution, batch norm and ReLU in one kernel [15 points]
#
# At inference, a network applies a convolution with a bias, batch norm with running statistics, and ReLU. PyTorch needs
# three kernels for that and yours will need one: an implicit GEMM that computes where its pixels are, with batch norm
# folded into its epilogue. Allow about 75 minutes, after [lesson 09](../notebooks/09_convolution.ipynb). The lesson has
# all the parts, except that its filters are square and its weights contiguous. Here, filters can have any height and
# width, and both tensors any memory layout. There can be any number of images, including zero.
#
# **The formula**, for output pixel $(p, q)$ of an image and output channel $k$, where $x$ is 0 outside the image:
#
# $$s_{kpq} = b_k + \sum_{r,s,c} w_{kcrs}\; x_{c,\; p \cdot \text{stride} + r - \text{padding},\;
# q \cdot \text{stride} + s - \text{padding}}$$
#
# $$y = \max\left(0,\; \gamma_k\,\frac{s_{kpq} - \text{mean}_k}{\sqrt{\text{var}_k + \text{eps}}} + \beta_k\right)$$
#
# x, w and b are float16. The sum and batch norm's four vectors are float32. y is float16, rounded once. As in PyTorch,
# ReLU turns -infinity into 0 and passes NaN on. `tl.maximum(y, 0.0)` doesn't pass it on, because it drops NaN.
#
# **The picture**: a 3 x 2 filter on a 4 x 5 image, with padding 1 and stride 1, for one output pixel:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("09")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    CONV_MISTAKES,
    Hints,
    batch_norm_cases,
    check_offsets,
    check_one_rounding,
    check_passes,
    check_tensor_cores,
    check_values,
    compare_with_ours,
    conv_cases,
    conv_rounding_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(x, weight, bias, gamma, beta, mean, var, stride, padding, eps):
    s = torch.nn.functional.conv2d(x, weight, bias, stride, padding)
    return torch.relu(torch.nn.functional.batch_norm(s, mean, var, gamma, beta, eps=eps))


device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(1, 32, 16, 16, device=device).half()
weight = torch.randn(64, 32, 3, 3, device=device).half() / 17
bias = torch.randn(64, device=device).half()
gamma, beta, mean, var = torch.rand(4, 64, device=device)
inputs = (x, weight, bias, gamma, beta, mean, var, 1, 1, 1e-5)
unfused = measure(reference, *inputs)
least = x.nbytes + weight.nbytes + 2 * 64 * 256
print(f"{unfused.launches} launches; x, weight and the result: {least / 1e3:.4g} kB")

# %% [markdown]
# **How many times does a kernel read x if each program computes 64 output pixels for all 64 channels, one tap at a
# time? How many times does it read the weights?** The traffic check below
# has a limit for each.
#
# ## Your kernel
#
# `tl.program_id(0)` counts tiles of output pixels across all images, and `tl.program_id(1)` counts tiles of output
# channels. It's easiest to store the result with its channels last in memory: (pixels, out_channels), contiguous.
# `pixels` is the total number of output pixels in all images.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def conv_bn_relu_kernel(
    x_ptr, weight_ptr, bias_ptr, gamma_ptr, beta_ptr, mean_ptr, var_ptr, y_ptr, eps,
    pixels, out_channels, out_height, out_width, channels, height, width,
    x_stride_n, x_stride_c, x_stride_h, x_stride_w,
    weight_stride_k, weight_stride_c, weight_stride_h, weight_stride_w,
    TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    # About 30 lines: pixels and channels of the tile; a loop over taps and input channels; fold,
    # ReLU, store.
    # BEGIN SOLUTION
    # int64 before the multiplication by a stride, which may pass 2**31.
    pixel = tl.program_id(0).to(tl.int64) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    k = tl.program_id(1).to(tl.int64) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    image = pixel // (out_height * out_width)
    # The first row and column of a pixel's window, which may be in the padding.
    top = pixel // out_width % out_height * STRIDE - PADDING
    left = pixel % out_width * STRIDE - PADDING
    depth = TAPS_H * TAPS_W * channels
    acc = tl.zeros((BLOCK_PIXELS, BLOCK_OUT), dtype=tl.float32)
    for start in range(0, depth, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        # Channels vary fastest: with channels last, neighbours in the sum are neighbours in memory.
        tap, channel = at // channels, at % channels
        row = top + (tap // TAPS_W)[None, :]
        col = left + (tap % TAPS_W)[None, :]
        # Inside the image, not just inside memory: past the end of a row comes the next row.
        seen = (row >= 0) & (row < height) & (col >= 0) & (col < width)
        x = tl.load(
            x_ptr
            + image * x_stride_n
            + channel[None, :] * x_stride_c
            + row * x_stride_h
            + col * x_stride_w,
            mask=seen & (pixel < pixels) & (at < depth)[None, :],
            other=0.0,
        )
        offset = (
            channel * weight_stride_c
            + tap // TAPS_W * weight_stride_h
            + tap % TAPS_W * weight_stride_w
        )
        weight = tl.load(
            weight_ptr + k * weight_stride_k + offset[:, None],
            mask=(k < out_channels) & (at < depth)[:, None],
            other=0.0,
        )
        acc = tl.dot(x, weight, acc)
    # Batch norm scales and shifts each channel; the convolution's own bias is added before it.
    exists = k < out_channels
    scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)
    scale *= tl.rsqrt(tl.load(var_ptr + k, mask=exists, other=1.0) + eps)
    bias = tl.load(bias_ptr + k, mask=exists, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + k, mask=exists, other=0.0)
    shift = tl.load(beta_ptr + k, mask=exists, other=0.0) + (bias - mean) * scale
    y = acc * scale + shift
    # Not tl.maximum, which drops NaN.
    y = tl.where(y < 0, 0.0, y)
    # The only rounding.
    tl.store(y_ptr + pixel * out_channels + k, y.to(tl.float16), mask=(pixel < pixels) & exists)
    # END SOLUTION


# %% [markdown]
# ## Its launcher


# %% grade_id="launcher"
def conv_bn_relu(x, weight, bias, gamma, beta, mean, var, stride, padding, eps):
    """relu(batch_norm(conv2d(x, weight, bias))): x (images, channels, height, width) and weight
    (out_channels, channels, taps_h, taps_w) in float16 with any strides; stride and padding the
    same in both directions."""
    # About 14 lines: the sizes, a result of (images, out_height, out_width, out_channels), launch,
    # permute.
    # BEGIN SOLUTION
    images, channels, height, width = x.shape
    out_channels, _, taps_h, taps_w = weight.shape
    out_height = (height + 2 * padding - taps_h) // stride + 1
    out_width = (width + 2 * padding - taps_w) // stride + 1
    y = torch.empty((images, out_height, out_width, out_channels), dtype=x.dtype, device=x.device)
    pixels = images * out_height * out_width
    # 64 x 64 outputs in float32 are 32 registers per thread with 4 warps. Larger tiles suit larger
    # images better.
    block_pixels = block_out = 64
    grid = (triton.cdiv(pixels, block_pixels), triton.cdiv(out_channels, block_out))
    conv_bn_relu_kernel[grid](
        x, weight, bias, gamma, beta, mean, var, y, eps,
        pixels, out_channels, out_height, out_width, channels, height, width,
        *x.stride(), *weight.stride(),
        TAPS_H=taps_h, TAPS_W=taps_w, STRIDE=stride, PADDING=padding,
        BLOCK_PIXELS=block_pixels, BLOCK_OUT=block_out, BLOCK_IN=32,
    )  # fmt: skip
    # (images, out_channels, out_height, out_width), without moving any data.
    return y.permute(0, 3, 1, 2)
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 12 of the 15 points; the other 3 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    convolution={
        r"expected nan\b(.*\n)*.*Look at ReLU": (
            "The convolution gives NaN here, as it should. Which of the operations after it turns "
            "NaN into a number?",
            "tl.maximum drops NaN, and comparisons with NaN are false. tl.where(y < 0, 0.0, y) "
            "keeps it; tl.where(y > 0, y, 0.0) doesn't.",
        ),
        r"got nan\b(.*\n)*.*Look at ReLU": (
            "This NaN is in x, in a filter or in a bias, and it reached a result that doesn't use "
            "it. 0 * NaN is NaN: which positions do you load and multiply by 0?",
            "Mask both loads, with at < depth too, and give both other=0.0.",
        ),
        "Look at (the index map|the stride: |the image: )": (
            "An output pixel is (image, p, q). Which row and column of the image does each tap see "
            "from there?",
            "Divide the pixel's number by out_height * out_width, then by out_width. Its window "
            "begins at p * STRIDE - PADDING, q * STRIDE - PADDING, and the tap adds tap // TAPS_W "
            "and tap % TAPS_W. Outside the image, load 0.",
        ),
        "Mask the others|lets these lanes through|Look at the edges|past the filter": (
            "What must hold for a position of the tile to be loaded from x? There are four "
            "conditions.",
            "The pixel exists, the position in the sum exists, the row is inside the image, and so "
            "is the column. Past the end of a row you'd read the next row.",
        ),
        "": (
            "Start with a 1 x 1 filter and no padding. That's a matmul, except that each row's "
            "address is a pixel's address.",
            "Then let `at` run over taps times channels: tap = at // channels, channel = at % "
            "channels.",
        ),
    },
    batch_norm=(
        "Do the algebra on paper first: y = scale * s + shift. The convolution's bias is part of "
        "s, so where does it go?",
        "scale = gamma * tl.rsqrt(var + eps); shift = beta + (bias - mean) * scale. Then apply "
        "ReLU. Keep all of it in float32.",
    ),
    rounding=(
        "Which values in your kernel are 16-bit? It should only be x, the weights, the bias and "
        "the stored result. Keep the sum in float32 until batch norm and ReLU are done.",
        "Scale the float32 sum, not the float16 weights. Scaling the weights rounds them again, so "
        "you'd be using different weights.",
    ),
    tensor_cores=(
        "Did you convert a tile to float32 before tl.dot? If so, it multiplies in tf32, at half "
        "the rate.",
        "Call tl.dot(x, weight, acc) with x and weight exactly as you loaded them.",
    ),
    traffic=(
        "How many times do you load each value of x? It should be once per tap, for each tile of "
        "output channels. The weights should be loaded once per tile of pixels.",
        "Use tiles of 64 x 64, load the vectors after the loop, and write nothing except y.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "Use tl.program_id(0).to(tl.int64), so that the pixel index, and with it the image index, "
        "is int64 before you multiply by a stride.",
    ),
)
hint

# %% [markdown]
# **Is it a convolution?** In these cases batch norm does nothing, while strides, padding, filter sizes and image sizes
# vary, and no tile divides them evenly. Some have NaN or inf.

# %% grade_id="convolution" points=4
check_values(conv_bn_relu, reference, conv_cases(seed=9), unlike=CONV_MISTAKES, name="convolution")

# %% [markdown]
# **Is batch norm folded correctly?** Expect a bias, a negative gamma, NaN and very small variances.

# %% grade_id="batch_norm" points=2
check_values(
    conv_bn_relu, reference, batch_norm_cases(seed=9), unlike=CONV_MISTAKES, name="batch_norm"
)

# %% [markdown]
# **Is it rounded only once?** Each element must be the float16 nearest to the exact value. The sums in these cases have
# a mean of 24, which batch norm subtracts.

# %% grade_id="rounding" points=2
check_one_rounding(conv_bn_relu, reference, conv_rounding_cases(seed=9), name="rounding")

# %% [markdown]
# **Is it fused and tiled?** It should be one launch that writes y once, reads x at most once per tap, reads the weights
# and vectors at most once per 64 pixels, and touches no other memory. x is a slice of a larger tensor here, and copying
# it would count as a second launch.

# %% grade_id="traffic" points=2
part_of_larger = (torch.randn(1, 32, 20, 20, device=device).half()[..., 2:18, 2:18], *inputs[1:])
check_passes(conv_bn_relu, part_of_larger, reads=(9, *6 * (4,)), name="traffic")

# %% [markdown]
# **Does it use tensor cores** on float16 operands? We compile it for an A100 and an H100.

# %% grade_id="tensor_cores" points=1
check_tensor_cores(conv_bn_relu, inputs, devices=("A100", "H100"), name="tensor_cores")

# %% [markdown]
# **Can it handle a large tensor?** We check it for 2^21 images without allocating them: your launcher gets tensors that
# have a shape but no memory, and we run only the first and the last program of its launch, with loads and stores turned
# off.


# %%
def pictures(images):
    filters = torch.randn(64, 32, 1, 1, device=device).half()
    vectors = torch.rand(5, 64, device=device)
    return (
        torch.randn(images, 32, 8, 8, device=device).half(),
        filters,
        vectors[0].half(),
        *vectors[1:],
        1,
        0,
        1e-5,
    )


# %% grade_id="large" points=1
check_offsets(conv_bn_relu, pictures, sizes=(16, 32), size=2**21, name="large")

# %% grade_id="other-values" points=3
# Grading checks other sizes and values here.
# BEGIN HIDDEN TESTS
others = conv_cases(seed=1729, sizes=((3, 17, 5, 4, 5), (1, 33, 10, 9, 66)))
others += batch_norm_cases(seed=1729, sizes=((1, 9, 6, 5, 33),))
check_values(conv_bn_relu, reference, others, unlike=CONV_MISTAKES, name="other-values")
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.conv_bn_act`. The prediction is based on your compiled code. If this machine has a GPU, it times both
# kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE


def without_bias(x, weight, gamma, beta, mean, var):
    return conv_bn_relu(x, weight, torch.zeros_like(gamma), gamma, beta, mean, var, 1, 1, 1e-5)


compare_with_ours(
    without_bias,
    CATALOGUE["conv_bn_act"],
    (32, 256, 28, 28, 256, 3),
    torch.float16,
    passed="convolution",
)

# %% [markdown]
# On the command line, `fusion check exercises/09_conv_bn_relu.ipynb` grades the saved notebook.
