"""What a row of a filter sees of a picture, copied as one run of numbers for each result, and weights as they meet it:
what is to be read by tensor descriptors, but begins between multiples of 16 bytes. All in one launch.

A run begins with a cache line or its second half where it is that long: others take the copy engine twice the time.
Copying costs reading x and writing a filter's width of it; in a product each number is read many times.
"""

import triton
import triton.language as tl

from kernels.arguments import cdiv


@triton.jit
def copy_runs(
    source_ptr, runs_ptr, first, numbers, cols,
    APART: tl.constexpr, RUN: tl.constexpr, PITCH: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write up to BLOCK_COLS of `cols` runs: RUN numbers each, the i-th from first + i * APART on, and zeros. What is
    before the source's `numbers` numbers, and after, is zero, too."""
    col = tl.arange(0, BLOCK_COLS)[:, None]
    for start in tl.static_range(0, PITCH, BLOCK):
        t = start + tl.arange(0, BLOCK)[None, :]
        at = first + col * APART + t
        value = tl.load(source_ptr + at, mask=(at >= 0) & (at < numbers) & (t < RUN), other=0.0)
        tl.store(runs_ptr + col * PITCH + t, value, mask=(col < cols) & (t < PITCH))


@triton.jit
def runs_kernel(
    x_ptr,  # (images, height, width, CHANNELS), contiguous
    weight_ptr,  # (weight_rows, RUN), contiguous
    runs_ptr,  # (images, PHASES, rows, cols, PITCH), contiguous
    padded_weight_ptr,  # (weight_rows, PITCH), contiguous
    height,
    width,
    rows,
    cols,
    top,  # rows of zeros above x
    left,
    blocks,  # of BLOCK_COLS columns, in a row
    x_programs,  # images * PHASES * rows * blocks
    weight_rows,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    PHASES: tl.constexpr,
    RUN: tl.constexpr,
    PITCH: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0)
    if at < x_programs:
        line, col = at // blocks, at % blocks * BLOCK_COLS
        image, row = line // (rows * PHASES), line % rows * STRIDE + line // rows % PHASES - top
        inside = tl.where((row >= 0) & (row < height), width * CHANNELS, 0)
        # int64 before the multiplications: offsets pass 2**31 on large tensors.
        x_ptr += (image.to(tl.int64) * height + row) * width * CHANNELS
        runs_ptr += (line.to(tl.int64) * cols + col) * PITCH
        copy_runs(
            x_ptr, runs_ptr, (col * STRIDE - left) * CHANNELS, inside, cols - col,
            STRIDE * CHANNELS, RUN, PITCH, BLOCK_COLS, BLOCK,
        )  # fmt: skip
    else:
        row = (at - x_programs) * BLOCK_COLS
        left_over = tl.minimum(weight_rows - row, BLOCK_COLS)
        weight_ptr += row.to(tl.int64) * RUN
        padded_weight_ptr += row.to(tl.int64) * PITCH
        copy_runs(weight_ptr, padded_weight_ptr, 0, left_over * RUN, left_over, RUN, RUN, PITCH, BLOCK_COLS, BLOCK)


def write_runs(x, weight, cols: int, rows: int, pitch: int, stride: int = 1, padding: tuple[int, int] = (0, 0)):
    """x, (images, height, width, channels), as (images, phases, rows, cols, pitch): the run at [n, p, r, c] is what a
    row of the filter sees from row r * stride + p of the padded picture and column c * stride on, and zeros. Phases are
    those of `stride` that a row of the filter meets. weight, (out_channels, taps_h, taps_w, channels), as
    (out_channels, taps_h, pitch). Both contiguous."""
    images, height, width, channels = x.shape
    out_channels, taps_h, taps_w, _ = weight.shape
    phases = min(stride, taps_h)
    runs, padded = x.new_empty(images, phases, rows, cols, pitch), weight.new_empty(out_channels, taps_h, pitch)
    block = min(256, triton.next_power_of_2(pitch))
    block_cols = min(2048 // block, triton.next_power_of_2(cols))
    blocks = cdiv(cols, block_cols)
    x_programs, weight_rows = images * phases * rows * blocks, out_channels * taps_h
    runs_kernel[(x_programs + cdiv(weight_rows, block_cols),)](
        x, weight, runs, padded, height, width, rows, cols, *padding, blocks, x_programs, weight_rows,
        CHANNELS=channels, STRIDE=stride, PHASES=phases, RUN=taps_w * channels, PITCH=pitch, BLOCK_COLS=block_cols,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return runs, padded
