# Tiles of (channels, pixels), taps unrolled; the result's channels stay outermost.
# ruff: noqa: B905

# %%
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def folded(gamma, beta, mean, var, bias, k, real, eps):
    slope = tl.load(gamma + k, real, other=0.0) / tl.sqrt(tl.load(var + k, real, other=1.0) + eps)
    moved = tl.load(mean + k, real, other=0.0) - tl.load(bias + k, real, other=0.0).to(tl.float32)
    return slope, tl.load(beta + k, real, other=0.0) - moved * slope


@triton.jit
def conv_bn_relu_kernel(
    x, w, bias, gamma, beta, mean, var, y, eps,
    images, outs, rows, cols, ins, height, width, xn, xc, xh, xw, wk, wc, wh, ww,
    TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PIXELS: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    exists = pixel < images * rows * cols
    image, place = pixel // (rows * cols), pixel % (rows * cols)
    row, col = place // cols, place % cols
    k = tl.program_id(1).to(tl.int64) * OUTS + tl.arange(0, OUTS)
    sums = tl.zeros((OUTS, PIXELS), tl.float32)
    for tap_h in tl.static_range(TAPS_H):
        for tap_w in tl.static_range(TAPS_W):
            h, v = row * STRIDE - PADDING + tap_h, col * STRIDE - PADDING + tap_w
            inside = (h >= 0) & (h < height) & (v >= 0) & (v < width) & exists
            for start in range(0, ins, INS):
                c = start + tl.arange(0, INS)
                taps = tl.load(
                    w + k[:, None] * wk + c[None, :] * wc + tap_h * wh + tap_w * ww,
                    mask=(k < outs)[:, None] & (c < ins)[None, :],
                    other=0.0,
                )
                seen = tl.load(
                    x + c[:, None] * xc + (image * xn + h * xh + v * xw)[None, :],
                    mask=(c < ins)[:, None] & inside[None, :],
                    other=0.0,
                )
                sums = tl.dot(taps, seen, acc=sums)
    slope, shift = folded(gamma, beta, mean, var, bias, k, k < outs, eps)
    result = sums * slope[:, None] + shift[:, None]
    result = tl.where(result <= 0, 0.0, result)
    at = (image * outs * rows * cols + place)[None, :] + k[:, None] * rows * cols
    tl.store(y + at, result.to(tl.float16), mask=(k < outs)[:, None] & exists[None, :])


# %% grade_id="launcher"
def conv_bn_relu(x, weight, bias, gamma, beta, mean, var, stride, padding, eps):
    images, ins, *sides = x.shape
    outs, _, *taps = weight.shape
    rows, cols = ((side + 2 * padding - tap) // stride + 1 for side, tap in zip(sides, taps))
    y = x.new_empty((images, outs, rows, cols))
    grid = triton.cdiv(images * rows * cols, 64), triton.cdiv(outs, 64)
    if y.numel():
        conv_bn_relu_kernel[grid](
            x, weight, bias, gamma, beta, mean, var, y, eps, images, outs, rows, cols, ins, *sides,
            *x.stride(), *weight.stride(), TAPS_H=taps[0], TAPS_W=taps[1], STRIDE=stride,
            PADDING=padding, PIXELS=64, OUTS=64, INS=32, num_warps=4,
        )  # fmt: skip
    return y
