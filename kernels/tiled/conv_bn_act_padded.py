"""conv_bn_act's tensor descriptors for channels, sizes and strides that they cannot tell of: x and weight are copied
once, with zeros around them.

Where channels come last, a filter's row sees pixels that stand side by side: taps_w * channels numbers without a gap.
The copy has this run for every output column, from a cache line or its second half on, and with the picture's padding
in it. Then no tap looks sideways any more: the pixels of a picture are one row, whatever its width, the filter has one
column, and its next row sees what is a picture's width further on. A descriptor may say so: its dimensions of pixels
and of the filter's rows overlap. A 7 x 7 filter of three channels has 7 runs of 21 numbers to read, not 49 taps of 3.

On an H200, bf16, beside windows of a picture padded to 16 bytes and cuDNN's fused kernel, in us: 5x5, 40 to 88 at 65 x
65 52, 70 and 61; 3x3, 72 to 200 at 113 x 57 57, 63 and 54; 3 to 64 at 64 x 64 18, 27 and 47.

The copies are one launch, and cost reading x and writing it taps_w / stride times.

Source: as conv_bn_act.py; CUDA driver API, cuTensorMapEncodeTiled (strides of tensor maps).
"""

from functools import lru_cache
from math import prod

import torch

from kernels.arguments import cdiv, multiprocessors, next_power_of_2, shared_memory
from kernels.descriptors import LARGE_TILES
from kernels.tiled import conv_bn_act_descriptors
from kernels.tiled.runs import write_runs

HALF_LINE = 32  # elements of 16 bits in half a cache line


def gains(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, stride: int, plain: bool) -> bool:
    """Whether copies of x and weight, all with channels last, cost less time than they save beside conv_bn_act_kernel
    (`plain`) or the descriptors of x as it is."""
    whole = not plain and x.shape[3] % HALF_LINE == 0  # nothing begins within half a line
    if whole or x.dtype == torch.float32 or not shared_memory(x) >= LARGE_TILES:
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
    runs = x_shape[0] * prod(runs_of(weight_shape, y_shape, stride))
    return now > plan(weight_shape, y_shape, stride, multiprocessors)[4] + 4 + 2 * (prod(x_shape) + runs) / 3.4e6


def runs_of(weight_shape: tuple[int, ...], y_shape: tuple[int, ...], stride: int) -> tuple[int, int, int, int]:
    """Of a picture: phases, rows of a phase, columns, and elements from one run to the next."""
    run = weight_shape[2] * weight_shape[3]
    pitch = max(16, next_power_of_2(run)) if run < HALF_LINE else cdiv(run, HALF_LINE) * HALF_LINE
    return min(stride, weight_shape[1]), y_shape[1] + (weight_shape[1] - 1) // stride, y_shape[2], pitch


@lru_cache(maxsize=1024)
def plan(weight_shape: tuple[int, ...], y_shape: tuple[int, ...], stride: int, multiprocessors: int) -> tuple:
    """conv_bn_act_descriptors.plan for the copies."""
    images, height, width, out_channels = y_shape
    phases, rows, _, pitch = runs_of(weight_shape, y_shape, stride)
    taps, row = weight_shape[1], width * pitch
    if taps == 1:  # no neighbours are seen: the pixels of all pictures are one row
        images, height = 1, images * height
    sizes = images, 1, height * width
    of_x = (
        [images, cdiv(taps, phases), phases, height * width, pitch],
        [phases * rows * row, row, rows * row, pitch, 1],
    )
    found = conv_bn_act_descriptors.fastest(*sizes, pitch, out_channels, 1, multiprocessors, taps)
    return conv_bn_act_descriptors.plan_of(
        of_x, pitch, (taps, 1), phases, (0, 0), sizes, out_channels, found, multiprocessors
    )


def launch(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    """As conv_bn_act_descriptors.launch, for any channels, sizes and stride."""
    planned = plan(weight.shape, y.shape, stride, multiprocessors(x))
    _, rows, cols, pitch = runs_of(weight.shape, y.shape, stride)
    copies = write_runs(x, weight, cols, rows, pitch, stride, padding)
    conv_bn_act_descriptors.launch_planned(planned, *copies, vectors, y, act, eps)
