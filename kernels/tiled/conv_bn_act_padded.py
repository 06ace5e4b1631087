"""conv_bn_act's tensor descriptors for channels, sizes and strides that they cannot tell of: x and weight are copied
once, with zeros around them, and read through windows.

Where channels come last, a filter's row sees pixels that stand side by side: taps_w * channels numbers without a gap.
So a row of taps is one run of them for every output pixel, and the runs of neighbours overlap, `stride` pixels apart.
A descriptor may say so: its dimension of output pixels has a stride shorter than what is read of each. What it needs is
that stride in multiples of 16 bytes, so channels padded with zeros, and the padding of the picture written out, for a
run that crosses the picture's edge would read the next row. Three channels become 4 at a stride of 2 (8 at 1), and a
7 x 7 filter has 7 runs of 28 numbers to read, not 49 taps of 3.

The copies are one launch, and cost reading and writing x once.

Source: as conv_bn_act.py; CUDA driver API, cuTensorMapEncodeTiled (strides of tensor maps).
"""

from functools import lru_cache
from math import gcd, prod

import torch

from kernels.arguments import multiprocessors, shared_memory
from kernels.descriptors import LARGE_TILES
from kernels.sizes import cdiv
from kernels.tiled import conv_bn_act_descriptors
from kernels.tiled.padded import pad

UNIT = 8  # elements of 16 bits in 16 bytes


def gains(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, stride: int, plain: bool) -> bool:
    """Whether copies of x and weight, all with channels last, cost less time than they save beside conv_bn_act_kernel
    (`plain`) or the descriptors of x as it is."""
    if x.dtype == torch.float32 or not shared_memory(x) >= LARGE_TILES:
        return False
    return _gains(x.shape, weight.shape, y.shape, stride, plain, multiprocessors(x))


@lru_cache(maxsize=1024)
def _gains(x_shape, weight_shape, y_shape, stride: int, plain: bool, multiprocessors: int) -> bool:
    # On an H200 the plain kernel takes 3.1 us for each 32 of what a tile sums; copies 4, and their bytes at 3.4 TB/s.
    out_channels, taps_h, taps_w, _ = weight_shape
    depth, pixels = prod(weight_shape[1:]), prod(y_shape[:3])
    now = 3.1 * cdiv(cdiv(pixels, 128) * cdiv(out_channels, 128), multiprocessors) * cdiv(depth, 32)
    if not plain:
        now = conv_bn_act_descriptors.plan(
            x_shape, weight_shape, y_shape, stride, (taps_h // 2, taps_w // 2), multiprocessors
        )[4]
    then = plan(*padded_shapes(x_shape, weight_shape, y_shape, stride), y_shape, stride, taps_w, multiprocessors)[4]
    return now > then + 4 + 4 * prod(x_shape) / 3.4e6


def _up(size: int, unit: int) -> int:
    return cdiv(size, unit) * unit


def padded_shapes(
    x_shape: tuple[int, ...], weight_shape: tuple[int, ...], y_shape: tuple[int, ...], stride: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of x and weight, channels last, as runs of whole 16 bytes need them: just what the filter sees, and zeros."""
    channels = _up(x_shape[3], UNIT // gcd(UNIT, stride))
    whole_row = UNIT // gcd(UNIT, channels)
    out_channels, taps_h, taps_w, _ = weight_shape
    rows, cols = ((size - 1) * stride + taps for size, taps in zip(y_shape[1:3], (taps_h, taps_w), strict=True))
    return (
        (x_shape[0], _up(rows, stride), _up(cols, whole_row), channels),
        (out_channels, taps_h, _up(taps_w, whole_row), channels),
    )


@lru_cache(maxsize=1024)
def plan(x_shape, weight_shape, y_shape, stride: int, taps_w: int, multiprocessors: int) -> tuple:
    """conv_bn_act_descriptors.plan for padded x and weight, of whose columns taps_w are taps."""
    images, rows, cols, channels = x_shape
    taps_h, run, row = weight_shape[1], taps_w * channels, cols * channels
    sizes = y_shape[:3]
    if (taps_h, taps_w, stride) == (1, 1, 1):  # no neighbours are seen: all pixels are one row
        images, rows, sizes = 1, 1, (1, 1, images * rows * cols)
    of_x = (
        [images, rows // stride, stride, sizes[2], run],
        [rows * row, stride * row, row, stride * channels, 1],
    )
    pitch = weight_shape[2] * channels
    found = conv_bn_act_descriptors.fastest(*sizes, pitch, y_shape[3], 1, multiprocessors, taps_h)
    return conv_bn_act_descriptors.plan_of(
        of_x, pitch, (taps_h, 1), stride, (0, 0), sizes, y_shape[3], found, multiprocessors
    )


def launch(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    """As conv_bn_act_descriptors.launch, for any channels, sizes and stride."""
    shapes = padded_shapes(x.shape, weight.shape, y.shape, stride)
    planned = plan(*shapes, y.shape, stride, weight.shape[2], multiprocessors(x))
    conv_bn_act_descriptors.launch_planned(planned, *pad(x, weight, *shapes, *padding), vectors, y, act, eps)
