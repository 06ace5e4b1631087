"""Two tensors copied with zeros around them, in one launch: what is to be read by tensor descriptors, but whose rows do
not begin at multiples of 16 bytes.

Reading and writing both once is all that it costs. In a product each number is read many times.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_row(
    source_ptr, padded_ptr, at, height, width, rows, cols, top, left,
    CHANNELS: tl.constexpr, PADDED: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write the at-th row of (images, rows, cols, PADDED), (images, height, width, CHANNELS) with zeros around it."""
    # int64 before the multiplications: offsets pass 2**31 on large tensors.
    image, row = (at // rows).to(tl.int64), at % rows - top
    source_ptr += (image * height + row) * width * CHANNELS
    padded_ptr += at.to(tl.int64) * cols * PADDED
    for first in range(0, cols, BLOCK_COLS):
        for start in tl.static_range(0, PADDED, BLOCK_CHANNELS):
            col = first + tl.arange(0, BLOCK_COLS)[:, None]
            channel = start + tl.arange(0, BLOCK_CHANNELS)[None, :]
            seen = (row >= 0) & (row < height) & (col >= left) & (col < width + left) & (channel < CHANNELS)
            value = tl.load(source_ptr + (col - left) * CHANNELS + channel, mask=seen, other=0.0)
            tl.store(padded_ptr + col * PADDED + channel, value, mask=(col < cols) & (channel < PADDED))


@triton.jit
def pad_kernel(
    x_ptr,  # (images, height, width, CHANNELS), contiguous
    weight_ptr,  # (out_channels, taps_h, taps_w, CHANNELS), contiguous
    padded_x_ptr,  # (images, rows, cols, PADDED), contiguous
    padded_weight_ptr,  # (out_channels, taps_h, taps_cols, PADDED), contiguous
    height,
    width,
    taps_h,
    taps_w,
    x_rows,  # images * rows
    rows,
    cols,
    taps_cols,
    top,  # rows of zeros above x
    left,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    at = tl.program_id(0)
    if at < x_rows:
        copy_row(
            x_ptr, padded_x_ptr, at, height, width, rows, cols, top, left, CHANNELS, PADDED, BLOCK_COLS, BLOCK_CHANNELS
        )
    else:
        copy_row(
            weight_ptr, padded_weight_ptr, at - x_rows, taps_h, taps_w, taps_h, taps_cols, 0, 0,
            CHANNELS, PADDED, BLOCK_COLS, BLOCK_CHANNELS,
        )  # fmt: skip


def pad(x, weight, x_shape, weight_shape, top: int = 0, left: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x and weight, four dimensions each and contiguous, in these shapes: with zeros after their columns and channels,
    and around x's rows, `top` and `left` of them before the first."""
    padded_x, padded_weight = x.new_empty(x_shape), weight.new_empty(weight_shape)
    x_rows, channels = x_shape[0] * x_shape[1], x_shape[3]
    block_channels = min(256, triton.next_power_of_2(channels))
    block_cols = min(2048 // block_channels, triton.next_power_of_2(x_shape[2]))
    pad_kernel[(x_rows + weight.shape[0] * weight.shape[1],)](
        x, weight, padded_x, padded_weight, *x.shape[1:3], *weight.shape[1:3], x_rows, *x_shape[1:3], weight_shape[2],
        top, left, CHANNELS=x.shape[3], PADDED=channels, BLOCK_COLS=block_cols, BLOCK_CHANNELS=block_channels,
        num_warps=4,
    )  # fmt: skip
    return padded_x, padded_weight
