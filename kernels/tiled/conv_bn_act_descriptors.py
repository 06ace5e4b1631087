"""conv_bn_act in 16 bits on compute capability 9.0 and 10.0, for channels in multiples of 8 (input channels of 16 where
the stride is not 1) and sizes that are multiples of the stride.

A block of the result is a box of pixels, and what one tap sees of x is the same box, shifted. So one tensor descriptor
of x is all it takes: the copy engine (TMA) fetches the shifted box, and gives the zeros of the padding where it sticks
out. A stride of two splits the picture in 2 x 2 phases, the even and odd rows and columns; each tap reads boxes of one
phase. Nothing is decoded or masked element by element, and the next tile's loads run under this tile's epilogue.

On an H200, bf16, in one run 2.3 to 3.3 times as fast as the tiled kernel of conv_bn_act.py at the four sizes below, and
where channels end within a block, 11.7 times (22 pictures of 31 x 31, 3x3, 248 to 456: 108 us, now 94, to 1263).

TFLOP/s on an H200 in bf16 by pixels x output channels of a tile in one piece, beside cuDNN's own fused kernel:

                                   256 x 128    128 x 256    128 x 64, two at once    cuDNN
    3x3, 256 to 256 at 28 x 28     550          483          597                      661
    3x3, 128 to 256 at 56 x 56     662          622          530                      721
    3x3, 64 to 64 at 56 x 56                                 328                      281
    1x1, 512 to 2048 at 14 x 14    403          463          451                      491

Few tiles want others, in us of another run, then 128 x 64 and cuDNN: 256 x 64 for 3x3, 256 to 256 at 28 x 28 (45, 53,
48); 128 x 64 in steps of 128 channels for 3x3, 512 to 512 at 7 x 7 (20, 24, 18; with a stride 21, 25, 19); 16 x 64 by
steps of 256 for 1x1, 1024 to 256 of one picture of 14 x 14 (4.3, in a later run; 32 x 64 4.9, cuDNN 5.3). Large tiles
leave in halves, which makes room for a fourth stage: 1x1, 512 to 2048 at 14 x 14 28, in one piece 30, cuDNN 28.
"""

from functools import lru_cache
from math import gcd, prod

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.arguments import cdiv, multiprocessors, next_power_of_2, shared_memory
from kernels.batch_norm import fold
from kernels.descriptors import ALIGNMENT, LARGE_TILES
from kernels.tiled.conv_bn_act_boxes import box_of_pixels, count_tiles, finish

# Pixels, output and input channels of a tile, warps, stages, tiles at once on a multiprocessor, and microseconds of all
# of these on an H200: of a step of 64 input channels or fewer, and to start and end.
TILES = (
    (256, 128, 64, 8, 4, 1, 0.69, 2.0),
    (256, 128, 32, 8, 6, 1, 0.40, 2.0),
    (128, 256, 64, 8, 4, 1, 0.70, 2.0),
    (128, 64, 64, 4, 4, 2, 0.41, 1.0),
    (256, 64, 64, 4, 4, 1, 0.365, 1.5),
    (128, 64, 128, 4, 4, 1, 0.25, 1.0),
    (32, 64, 128, 4, 6, 1, 0.14, 0.5),
    (16, 64, 256, 4, 4, 1, 0.09, 0.5),
)
# Microseconds that the copy engine takes in a step for a row that is shorter than a cache line or begins within a half.
ODD_ROW = 0.0027


@triton.jit
def conv_bn_act_descriptors_kernel(
    # (images, height / STRIDE, STRIDE, width / STRIDE, STRIDE * CHANNELS) in (BOX_N, BOX_H, 1, BOX_W, BLOCK_IN)
    x_desc,
    weight_desc,  # (out_channels, TAPS_H * TAPS_W * CHANNELS) in (BLOCK_OUT, BLOCK_IN)
    y_desc,  # (images, out_height, out_width, out_channels) in (BOX_N, BOX_H, BOX_W, BLOCK_OUT), or a pointer to it
    gamma_ptr,  # (out_channels,), as the next three
    beta_ptr,
    mean_ptr,
    var_ptr,
    eps,
    images,
    out_height,
    out_width,
    out_channels,
    CHANNELS: tl.constexpr,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    UNIT: tl.constexpr,  # divides out_channels; where it is 8, 16 bytes, y is a descriptor
    ACT: tl.constexpr,
    BOX_N: tl.constexpr,
    BOX_H: tl.constexpr,
    BOX_W: tl.constexpr,
    BLOCK_OUT: tl.constexpr,  # output channels
    BLOCK_IN: tl.constexpr,  # input channels
    PARTS: tl.constexpr,  # in which a tile leaves, by way of shared memory: one of 2 leaves room for another stage
    ALONE: tl.constexpr,  # whether a program has one tile, and a small one
):
    PIXELS: tl.constexpr = BOX_N * BOX_H * BOX_W
    STEPS: tl.constexpr = (CHANNELS + BLOCK_IN - 1) // BLOCK_IN  # a tap
    tiles_out = tl.cdiv(out_channels, BLOCK_OUT)
    tiles_w = tl.cdiv(out_width, BOX_W)
    tiles_h = tl.cdiv(out_height, BOX_H)
    tiles = tiles_out * tiles_w * tiles_h * tl.cdiv(images, BOX_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=not ALONE):
        # Tiles of the same pixels come one after another: they run together, and L2 gives them x once.
        k = tile % tiles_out * BLOCK_OUT
        w = tile // tiles_out % tiles_w * BOX_W
        h = tile // (tiles_out * tiles_w) % tiles_h * BOX_H
        n = tile // (tiles_out * tiles_w * tiles_h) * BOX_N
        channel = k + tl.arange(0, BLOCK_OUT)
        if ALONE:  # under the sums, nobody waits for their way from memory
            scale, shift = fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, channel, out_channels)
        # The weights are the left operand: only there the compiler wants a block as it was loaded, not reshaped, to
        # leave it in shared memory for the tensor cores.
        acc = tl.zeros((BLOCK_OUT, PIXELS), tl.float32)
        for step in range(TAPS_H * TAPS_W * STEPS):
            tap, c = step // STEPS, step % STEPS * BLOCK_IN
            # Where the tap is, counted from STRIDE paddings before the first, so that division rounds down.
            down = tap // TAPS_W + (STRIDE - 1) * PADDING_H
            right = tap % TAPS_W + (STRIDE - 1) * PADDING_W
            row, col = h + down // STRIDE - PADDING_H, w + right // STRIDE - PADDING_W
            x = x_desc.load([n, row, down % STRIDE, col, right % STRIDE * CHANNELS + c])
            # Past a tap's channels x is 0, and these are the next tap's weights.
            weight = weight_desc.load([k, tap * CHANNELS + c])
            acc = tl.dot(weight, x.reshape(PIXELS, BLOCK_IN).T, acc)
        if not ALONE:
            scale, shift = fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, channel, out_channels)
        finish(
            acc, y_desc, scale, shift, n, h, w, k, images, out_height, out_width, out_channels,
            UNIT, ACT, BOX_N, BOX_H, BOX_W, PARTS,
        )  # fmt: skip


def fastest(
    images: int, height: int, width: int, channels: int, out_channels: int, stride: int, multiprocessors: int, taps: int
) -> tuple[dict, int, float]:
    """Launch settings for an output of this size, tiles at once on a multiprocessor, and the time in microseconds: of
    TILES those whose rounds add up to the least."""

    def block_in(tile: tuple) -> int:  # with a stride, another phase follows a tap's channels, not zeros: whole blocks
        return gcd(channels, tile[2]) if stride > 1 else min(tile[2], max(16, next_power_of_2(channels)))

    def time(tile: tuple) -> float:
        pixels, out, _, _, _, at_once, step, around = tile
        box = box_of_pixels(pixels, images, height, width)
        tiles = count_tiles(box, images, height, width) * cdiv(out_channels, out)
        if channels % 32 or channels < 64:
            step = max(step, (pixels + out) * at_once * ODD_ROW)
        steps = taps * cdiv(channels, block_in(tile)) * max(1, block_in(tile) // 64)
        return cdiv(tiles, multiprocessors * at_once) * (steps * step + around)

    deep = [tile for tile in TILES if tile[2] <= max(128, channels)]
    pixels, out, _, warps, stages, at_once, _, _ = tile = min(deep, key=time)
    box_n, box_h, box_w = box_of_pixels(pixels, images, height, width)
    chosen = {"BOX_N": box_n, "BOX_H": box_h, "BOX_W": box_w, "BLOCK_OUT": out, "BLOCK_IN": block_in(tile)}
    chosen |= {"PARTS": max(1, pixels * out // 2**14), "num_warps": warps, "num_stages": stages}
    return chosen, at_once, time(tile)


def takes(x: torch.Tensor, weight: torch.Tensor, stride: int) -> bool:
    """Whether this kernel can, for x and weight with channels last."""
    _, height, width, channels = x.shape
    aligned = (x.data_ptr() | weight.data_ptr()) % ALIGNMENT == 0
    # Descriptors take 16 bytes at a time, tensor cores 16 channels.
    whole = channels % (8 if stride == 1 else 16) == 0
    fits = height % stride == 0 and width % stride == 0 and whole
    return x.dtype != torch.float32 and aligned and fits and shared_memory(x) >= LARGE_TILES


def plan_of(of_x, channels, taps, stride, padding, sizes, out_channels, found, multiprocessors) -> tuple:
    """The plan for a view of x, its shape and strides; channels, taps and paddings are as the kernel counts them."""
    chosen, at_once, time = found
    box = chosen["BOX_N"], chosen["BOX_H"], chosen["BOX_W"]
    block_out, block_in = chosen["BLOCK_OUT"], chosen["BLOCK_IN"]
    described = (
        (*of_x, [*box[:2], 1, box[2], block_in]),
        (*contiguous(out_channels, prod(taps) * channels), [block_out, block_in]),
    )
    unit = gcd(out_channels, 8)
    if unit == 8:
        part, widest = list(box), min(i for i in range(3) if box[i] > 1)
        part[widest] //= chosen["PARTS"]
        described += ((*contiguous(*sizes, out_channels), [*part, block_out]),)
    constants = {"CHANNELS": channels, "TAPS_H": taps[0], "TAPS_W": taps[1], "STRIDE": stride, "UNIT": unit}
    constants |= {"PADDING_H": padding[0], "PADDING_W": padding[1]}
    tiles = count_tiles(box, *sizes) * cdiv(out_channels, block_out)
    grid = (min(tiles, multiprocessors * at_once),)
    constants["ALONE"] = grid[0] == tiles and prod(box) <= 32
    return grid, described, (*sizes, out_channels), constants | chosen, time


def contiguous(*shape: int) -> tuple[list[int], list[int]]:
    """The shape and its strides. PyTorch leaves the stride of a dimension of size 1 open, the copy engine does not."""
    return list(shape), [prod(shape[i + 1 :]) for i in range(len(shape))]


@lru_cache(maxsize=1024)  # pictures come in many sizes
def plan(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    multiprocessors: int,
) -> tuple[tuple[int], tuple, tuple[int, ...], dict, float]:
    """All that a launch of the kernel is but its tensors: grid, (shape, strides, block) of the descriptors of x, weight
    and, where it has one, y, sizes, constexprs, and about how long it takes, in microseconds. It takes Python longer to
    work out than the launch itself."""
    images, height, width, channels = x_shape
    out_channels, taps_h, taps_w, _ = weight_shape
    sizes = y_shape[:3]
    if (taps_h, taps_w, stride, *padding) == (1, 1, 1, 0, 0):  # no neighbours are seen: all pixels are one row
        images, height, width = sizes = 1, 1, images * height * width
    of_x = contiguous(images, height // stride, stride, width // stride, stride * channels)
    found = fastest(*sizes, channels, out_channels, stride, multiprocessors, taps_h * taps_w)
    return plan_of(of_x, channels, (taps_h, taps_w), stride, padding, sizes, out_channels, found, multiprocessors)


def describe(tensors: tuple[torch.Tensor, ...], planned: tuple) -> list[TensorDescriptor | torch.Tensor]:
    """x, weight and y as the kernel takes them by this plan."""
    found = [TensorDescriptor(each, *views) for each, views in zip(tensors, planned[1], strict=False)]
    return found if len(found) == 3 else [*found, tensors[2]]


def launch_planned(planned: tuple, x, weight, vectors, y, act: str, eps: float) -> None:
    grid, _, sizes, options, _ = planned
    descriptors = describe((x, weight, y), planned)
    conv_bn_act_descriptors_kernel[grid](*descriptors, *vectors, eps, *sizes, ACT=act, **options)


def launch(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    """Write y for x and weight that the kernel takes, all with channels last; vectors are gamma, beta, mean and var."""
    planned = plan(x.shape, weight.shape, y.shape, stride, padding, multiprocessors(x))
    launch_planned(planned, x, weight, vectors, y, act, eps)


def compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    """As FusedOp.compile_arguments."""
    images, channels, height, width, out_channels, taps = shape
    shapes = (
        (images, height, width, channels),
        (out_channels, taps, taps, channels),
        (images, height, width, out_channels),
    )
    tensors = tuple(torch.empty(each, dtype=dtype, device="meta") for each in shapes)
    vector = torch.empty(out_channels, dtype=dtype, device="meta")
    planned = plan(*shapes, 1, (taps // 2, taps // 2), 132)
    return (*describe(tensors, planned), *4 * (vector,), 1e-5, *planned[2]), planned[3] | {"ACT": "relu"}
