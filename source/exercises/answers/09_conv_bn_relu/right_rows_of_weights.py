# Output channels are the rows: weights on the left, pixels on the right; larger tiles; the result has channels first.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def conv_bn_relu_kernel(
    x_ptr, weight_ptr, bias_ptr, gamma_ptr, beta_ptr, mean_ptr, var_ptr, y_ptr, eps,
    pixels, out_channels, plane, out_width, channels, height, width,
    x0, x1, x2, x3, w0, w1, w2, w3,
    TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    pixel = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    picture, within = pixel // plane, pixel % plane
    acc = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for slice in range(tl.cdiv(channels * TAPS_H * TAPS_W, DEPTH)):
        # Taps run fastest, as the weights lie when they are contiguous.
        at = slice * DEPTH + tl.arange(0, DEPTH)
        channel, r, s = at // (TAPS_H * TAPS_W), at // TAPS_W % TAPS_H, at % TAPS_W
        row = (within // out_width * STRIDE - PADDING)[None, :] + r[:, None]
        col = (within % out_width * STRIDE - PADDING)[None, :] + s[:, None]
        outside = (row < 0) | (row >= height) | (col < 0) | (col >= width)
        exists = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        place = picture[None, :] * x0 + channel[:, None] * x1 + row * x2 + col * x3
        x = tl.load(x_ptr + place, mask=exists & (outside == 0), other=0.0)
        place = k[:, None] * w0 + (channel * w1 + r * w2 + s * w3)[None, :]
        weight = tl.load(
            weight_ptr + place,
            mask=(k < out_channels)[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        acc = tl.dot(weight, x, acc)
    real = k < out_channels
    deviation = tl.sqrt(tl.load(var_ptr + k, mask=real, other=1.0) + eps)
    scale = tl.load(gamma_ptr + k, mask=real, other=0.0) / deviation
    shift = tl.load(bias_ptr + k, mask=real, other=0.0).to(tl.float32) - tl.load(
        mean_ptr + k, mask=real, other=0.0
    )
    y = (acc + shift[:, None]) * scale[:, None] + tl.load(beta_ptr + k, mask=real, other=0.0)[
        :, None
    ]
    y = tl.where(y >= 0, y, tl.where(y < 0, 0.0, y)).to(tl.float16)
    place = (picture[None, :] * out_channels + k[:, None]) * plane + within[None, :]
    tl.store(y_ptr + place, y, mask=real[:, None] & (pixel < pixels)[None, :])


# %% grade_id="launcher"
def conv_bn_relu(x, weight, bias, gamma, beta, mean, var, stride, padding, eps):
    def size(whole, taps):
        return (whole + 2 * padding - taps) // stride + 1

    images, channels, height, width = x.shape
    out_channels, _, taps_h, taps_w = weight.shape
    out_height, out_width = size(height, taps_h), size(width, taps_w)
    y = torch.empty(
        images, out_channels, out_height, out_width, dtype=torch.float16, device=x.device
    )
    pixels = images * out_height * out_width
    conv_bn_relu_kernel[triton.cdiv(pixels, 128), triton.cdiv(out_channels, 64)](
        x, weight, bias, gamma, beta, mean, var, y, eps, pixels, out_channels,
        out_height * out_width, out_width, channels, height, width, *x.stride(), *weight.stride(),
        TAPS_H=taps_h, TAPS_W=taps_w, STRIDE=stride, PADDING=padding,
        ROWS=64, COLS=128, DEPTH=16, num_warps=8,
    )  # fmt: skip
    return y
