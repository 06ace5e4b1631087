# Two loops, over taps and over channels; a function for the window; the scale goes into the weights' tile.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def corner(pixel, out_height, out_width, STRIDE: tl.constexpr, PADDING: tl.constexpr):
    across = pixel % out_width
    down = (pixel // out_width) % out_height
    return pixel // out_width // out_height, down * STRIDE - PADDING, across * STRIDE - PADDING


@triton.jit
def conv_bn_relu_kernel(
    x_ptr, w_ptr, y_ptr, b_ptr, g_ptr, beta_ptr, m_ptr, v_ptr, eps, P, K, OH, OW, C, H, W, TILES,
    xn, xc, xh, xw, wk, wc, wh, ww, R: tl.constexpr, S: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    p = (tile // TILES).to(tl.int64) * 64 + tl.arange(0, 64)
    k = (tile % TILES) * 64 + tl.arange(0, 64)
    n, top, left = corner(p, OH, OW, STRIDE, PAD)
    s = tl.zeros([64, 64], tl.float32)
    for r in range(R):
        for q in range(S):
            row, col = top + r, left + q
            there = (p < P) & (row >= 0) & (row < H) & (col >= 0) & (col < W)
            at = x_ptr + n * xn + row * xh + col * xw
            for first in range(0, C, 32):
                c = first + tl.arange(0, 32)
                x = tl.load(at[:, None] + c * xc, mask=there[:, None] & (c < C), other=0.0)
                w = tl.load(
                    w_ptr + k * wk + c[:, None] * wc + r * wh + q * ww,
                    mask=(k < K) & (c[:, None] < C),
                    other=0.0,
                )
                s += tl.dot(x, w)
    s += tl.load(b_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    s -= tl.load(m_ptr + k, mask=k < K, other=0.0)
    s *= tl.load(g_ptr + k, mask=k < K, other=0.0) / tl.sqrt(
        tl.load(v_ptr + k, mask=k < K, other=1.0) + eps
    )
    s += tl.load(beta_ptr + k, mask=k < K, other=0.0)
    s = tl.where(s < 0, 0.0, s)
    tl.store(
        y_ptr + p[:, None] * K + k, s.to(y_ptr.dtype.element_ty), mask=(p[:, None] < P) & (k < K)
    )


# %% grade_id="launcher"
def conv_bn_relu(x, weight, bias, gamma, beta, mean, var, stride, padding, eps):
    n, c, h, w = x.shape
    k, r, s = weight.shape[0], weight.shape[2], weight.shape[3]
    oh, ow = 1 + (h + 2 * padding - r) // stride, 1 + (w + 2 * padding - s) // stride
    y = torch.empty(
        (n, k, oh, ow), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    tiles = triton.cdiv(k, 64)
    conv_bn_relu_kernel[(triton.cdiv(n * oh * ow, 64) * tiles,)](
        x, weight, y, bias, gamma, beta, mean, var, eps, n * oh * ow, k, oh, ow, c, h, w, tiles,
        *x.stride(), *weight.stride(), R=r, S=s, STRIDE=stride, PAD=padding,
    )  # fmt: skip
    return y
