"""Boxes of a convolution's pixels (conv_bn_act_descriptors.py): which of them cover a result, and how one leaves."""

from itertools import product
from math import prod

import triton
import triton.language as tl

from kernels.activations import activate
from kernels.arguments import cdiv


def count_tiles(box: tuple[int, int, int], images: int, height: int, width: int) -> int:
    return prod(cdiv(size, side) for size, side in zip((images, height, width), box, strict=True))


def box_of_pixels(pixels: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """The box of `pixels` pixels, a power of two in each dimension, of which the fewest cover images of this size."""
    powers = [2**i for i in range(pixels.bit_length())]
    candidates = [box for box in product(powers, repeat=3) if prod(box) == pixels]
    # Of equals the one with the fewest images and rows: its pixels are side by side.
    return min(candidates, key=lambda box: (count_tiles(box, images, height, width), box))


@triton.jit
def finish(
    acc, y_desc, scale, shift, n, h, w, k, images, out_height, out_width, out_channels,
    UNIT: tl.constexpr, ACT: tl.constexpr, BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The epilogue, from fp32 sums of (output channels, a box of pixels) in registers to memory, in PARTS, boxes one
    after another."""
    BLOCK_OUT: tl.constexpr = acc.shape[0]
    PIXELS: tl.constexpr = acc.shape[1]
    if PARTS == 2:
        HALF_N: tl.constexpr = (BOX_N + 1) // 2
        HALF_H: tl.constexpr = BOX_H if BOX_N > 1 else (BOX_H + 1) // 2
        HALF_W: tl.constexpr = BOX_W if BOX_N * BOX_H > 1 else BOX_W // 2
        first, second = tl.split(tl.permute(tl.reshape(acc, (BLOCK_OUT, 2, PIXELS // 2)), (0, 2, 1)))
        finish(
            first, y_desc, scale, shift, n, h, w, k, images, out_height, out_width, out_channels,
            UNIT, ACT, HALF_N, HALF_H, HALF_W, 1,
        )  # fmt: skip
        finish(
            second, y_desc, scale, shift, n + BOX_N - HALF_N, h + BOX_H - HALF_H, w + BOX_W - HALF_W, k,
            images, out_height, out_width, out_channels, UNIT, ACT, HALF_N, HALF_H, HALF_W, 1,
        )  # fmt: skip
    else:
        y = activate(acc * scale[:, None] + shift[:, None], ACT)
        if UNIT == 8:
            y_desc.store([n, h, w, k], y.to(y_desc.dtype).T.reshape(BOX_N, BOX_H, BOX_W, BLOCK_OUT))
        else:
            pixel, channel = tl.arange(0, PIXELS), k + tl.arange(0, BLOCK_OUT)
            n, h, w = n + pixel // (BOX_H * BOX_W), h + pixel // BOX_W % BOX_H, w + pixel % BOX_W
            inside = (n < images) & (h < out_height) & (w < out_width)
            whole = out_channels // UNIT * UNIT  # tells the compiler that UNIT divides it, as a store needs it
            # int64 before the multiplications: offsets pass 2**31 on large tensors.
            offset = ((n.to(tl.int64) * out_height + h) * out_width + w) * whole
            tl.store(
                y_desc + offset[:, None] + channel[None, :],
                y.to(y_desc.dtype.element_ty).T,
                mask=inside[:, None] & (channel < whole)[None, :],
            )
