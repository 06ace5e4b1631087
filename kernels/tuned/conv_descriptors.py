"""conv_bn_act in 16 bits with tensor descriptors, on compute capability 9.0 and 10.0.

**Boxes.** For channels in multiples of 8 (input channels in multiples of 16 if the stride is not 1) and image sizes
that are multiples of the stride. A block of the result is a box of pixels, and each filter tap reads the same box of x,
shifted. So one tensor descriptor of x is enough: TMA fetches the shifted box and returns zeros outside the image. A
stride of two splits the image into 2 x 2 phases, the even and odd rows and columns, and each tap reads boxes of one
phase. Nothing is decoded or masked per element, and the next tile's loads overlap this tile's epilogue.

On an H200 in bf16, one run: 2.3x to 3.3x faster than the plain kernel at the four sizes below, and 11.7x if channels
end within a block (22 images of 31 x 31, 3x3, 248 to 456: 108 us, now 94, against 1263). TFLOP/s by tile size, pixels x
output channels, for tiles stored in one part, next to cuDNN's own fused kernel:

                                   256 x 128    128 x 256    128 x 64, two per SM    cuDNN
    3x3, 256 to 256 at 28 x 28     550          483          597                     661
    3x3, 128 to 256 at 56 x 56     662          622          530                     721
    3x3, 64 to 64 at 56 x 56                                 328                     281
    1x1, 512 to 2048 at 14 x 14    403          463          451                     491

Few tiles need other sizes. In us, from another run (the tile named, 128 x 64, cuDNN): 256 x 64 for 3x3, 256 to 256 at
28 x 28 (45, 53, 48); 128 x 64 in steps of 128 channels for 3x3, 512 to 512 at 7 x 7 (20, 24, 18); 16 x 64 in steps of
256 for 1x1, 1024 to 256, one image of 14 x 14 (4.3; 32 x 64 takes 4.9, cuDNN 5.3). Large tiles are stored in halves,
which leaves room for a fourth stage: 1x1, 512 to 2048 at 14 x 14 takes 28, in one part 30, cuDNN 28.

**Runs.** For all other channels, sizes and strides, if the copies cost less than they save. With channels last, a row
of the filter covers adjacent pixels: a run of taps_w * channels contiguous elements. x is copied once, so that each
output column has a run of its own, the image's padding included, which starts at a cache line or its second half. After
the copy the filter has one column, and an image's pixels form one row, whatever its width. The filter's next row starts
one image width further on. A descriptor can express this, because its pixel and filter-row dimensions may overlap. A 7
x 7 filter over three channels then reads 7 runs of 21 elements, not 49 taps of 3. Both copies are made in one launch,
which reads x once and writes it taps_w / stride times; the matmul reads each element many times. On an H200 in bf16, in
us, against boxes of an image padded to 16 bytes and cuDNN's fused kernel: 5x5, 40 to 88 at 65 x 65: 52, 70 and 61; 3x3,
72 to 200 at 113 x 57: 57, 63 and 54; 3 to 64 at 64 x 64: 18, 27 and 47.

Source: as conv_bn_act.py; CUDA driver API, cuTensorMapEncodeTiled (strides of tensor maps).
"""

from functools import lru_cache
from itertools import product
from math import gcd, prod

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors, next_power_of_2, shared_memory
from kernels.descriptors import ALIGNMENT, LARGE_TILES
from kernels.tiled.conv_bn_act import fold, out_shape, run
from kernels.variants import tuned

HALF_LINE = 32  # elements of 16 bits in half a cache line

# Pixels, output and input channels of a tile, warps, stages, and tiles resident on an SM. Then the time of these
# resident tiles on an H200 in microseconds: per step of 64 input channels or fewer, and to start and end.
TILES = (
    (256, 128, 64, 8, 4, 1, 0.69, 2.0),
    (256, 128, 32, 8, 6, 1, 0.39, 2.0),
    (128, 256, 64, 8, 4, 1, 0.70, 2.0),
    (128, 64, 64, 4, 4, 2, 0.41, 1.0),
    (256, 64, 64, 4, 4, 1, 0.365, 1.5),
    (64, 128, 128, 4, 4, 1, 0.245, 1.0),
    (128, 64, 128, 4, 4, 1, 0.25, 1.0),
    (32, 64, 128, 4, 6, 1, 0.14, 0.5),
    (16, 64, 256, 4, 4, 1, 0.09, 0.5),
)
# Microseconds per step and row that TMA takes if rows are shorter than a cache line or start within half a line.
ODD_ROW = 0.0027


def count_tiles(box: tuple[int, int, int], images: int, height: int, width: int) -> int:
    return prod(cdiv(size, side) for size, side in zip((images, height, width), box, strict=True))


def box_of_pixels(pixels: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """Return the box of `pixels` pixels, a power of two in each dimension, that covers images of this size with the
    fewest boxes."""
    powers = [2**i for i in range(pixels.bit_length())]
    candidates = [box for box in product(powers, repeat=3) if prod(box) == pixels]
    # On a tie, take the fewest images and rows: their pixels are contiguous.
    return min(candidates, key=lambda box: (count_tiles(box, images, height, width), box))


@triton.jit
def finish(
    acc, y_desc, scale, shift, n, h, w, k, images, out_height, out_width, out_channels,
    UNIT: tl.constexpr, ACT: tl.constexpr, BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to fp32 sums of (output channels, a box of pixels) in registers, and store them in PARTS, box
    by box."""
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
            whole = out_channels // UNIT * UNIT  # shows the compiler that UNIT divides it, as a wide store requires
            # int64 before the multiplications: offsets pass 2**31 on large tensors.
            offset = ((n.to(tl.int64) * out_height + h) * out_width + w) * whole
            tl.store(
                y_desc + offset[:, None] + channel[None, :],
                y.to(y_desc.dtype.element_ty).T,
                mask=inside[:, None] & (channel < whole)[None, :],
            )


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
    UNIT: tl.constexpr,  # divides out_channels; if it is 8, 16 bytes, y is a descriptor
    ACT: tl.constexpr,
    BOX_N: tl.constexpr,
    BOX_H: tl.constexpr,
    BOX_W: tl.constexpr,
    BLOCK_OUT: tl.constexpr,  # output channels
    BLOCK_IN: tl.constexpr,  # input channels
    PARTS: tl.constexpr,  # parts in which a tile is stored through shared memory: with 2, another stage fits
    ALONE: tl.constexpr,  # whether a program has a single, small tile
):
    PIXELS: tl.constexpr = BOX_N * BOX_H * BOX_W
    STEPS: tl.constexpr = (CHANNELS + BLOCK_IN - 1) // BLOCK_IN  # per tap
    tiles_out = tl.cdiv(out_channels, BLOCK_OUT)
    tiles_w = tl.cdiv(out_width, BOX_W)
    tiles_h = tl.cdiv(out_height, BOX_H)
    tiles = tiles_out * tiles_w * tiles_h * tl.cdiv(images, BOX_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=not ALONE):
        # Tiles of the same pixels come one after another: they run together, and share x in L2.
        k = tile % tiles_out * BLOCK_OUT
        w = tile // tiles_out % tiles_w * BOX_W
        h = tile // (tiles_out * tiles_w) % tiles_h * BOX_H
        n = tile // (tiles_out * tiles_w * tiles_h) * BOX_N
        channel = k + tl.arange(0, BLOCK_OUT)
        if ALONE:  # their loads are in flight during the sums
            scale, shift = fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, channel, out_channels)
        # The weights are the left operand, the only one that must be as loaded, not reshaped, for the compiler to
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
    """Return launch settings for an output of this size, the number of tiles resident on an SM, and the time in
    microseconds. The settings are the entry of TILES whose rounds add up to the shortest time."""

    def block_in(tile: tuple) -> int:  # with a stride, the next phase follows a tap's channels, not zeros: whole blocks
        return gcd(channels, tile[2]) if stride > 1 else min(tile[2], max(16, next_power_of_2(channels)))

    def time(tile: tuple) -> float:
        pixels, out, _, _, _, at_once, step, around = tile
        box = box_of_pixels(pixels, images, height, width)
        tiles = count_tiles(box, images, height, width) * cdiv(out_channels, out)
        if channels % 32 or channels < 64:
            step = max(step, ODD_ROW * (pixels + out) * at_once)
        steps = taps * cdiv(channels, block_in(tile)) * max(1, block_in(tile) // 64)
        return cdiv(tiles, multiprocessors * at_once) * (steps * step + around)

    widest = max(64, next_power_of_2(out_channels))
    fitting = [tile for tile in TILES if tile[2] <= max(128, channels) and tile[1] <= widest]
    pixels, out, _, warps, stages, at_once, _, _ = tile = min(fitting, key=time)
    box_n, box_h, box_w = box_of_pixels(pixels, images, height, width)
    chosen = {"BOX_N": box_n, "BOX_H": box_h, "BOX_W": box_w, "BLOCK_OUT": out, "BLOCK_IN": block_in(tile)}
    chosen |= {"PARTS": max(1, pixels * out // 2**14), "num_warps": warps, "num_stages": stages}
    return chosen, at_once, time(tile)


def plan_of(of_x, channels, taps, stride, padding, sizes, out_channels, found, multiprocessors) -> tuple:
    """Return the plan for a view of x, given by shape and strides. Channels, taps and padding are the kernel's."""
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
    """Return the shape and its contiguous strides. In PyTorch a dimension of size 1 may have any stride; TMA checks
    it."""
    return list(shape), [prod(shape[i + 1 :]) for i in range(len(shape))]


@lru_cache(maxsize=1024)  # images come in many sizes
def boxes_plan(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    multiprocessors: int,
) -> tuple[tuple[int], tuple, tuple[int, ...], dict, float]:
    """Return everything a launch needs except its tensors: grid, (shape, strides, block) of the descriptors of x,
    weight and, if it has one, y, sizes, constexprs, and an estimate of the time in microseconds. Cached, because
    computing it takes Python longer than the launch does."""
    images, height, width, channels = x_shape
    out_channels, taps_h, taps_w, _ = weight_shape
    sizes = y_shape[:3]
    if (taps_h, taps_w, stride, *padding) == (1, 1, 1, 0, 0):  # no tap reads a neighbour: all pixels form one row
        images, height, width = sizes = 1, 1, images * height * width
    of_x = contiguous(images, height // stride, stride, width // stride, stride * channels)
    found = fastest(*sizes, channels, out_channels, stride, multiprocessors, taps_h * taps_w)
    return plan_of(of_x, channels, (taps_h, taps_w), stride, padding, sizes, out_channels, found, multiprocessors)


def describe(tensors: tuple[torch.Tensor, ...], planned: tuple) -> list[TensorDescriptor | torch.Tensor]:
    """Return x, weight and y as the kernel takes them under this plan."""
    found = [TensorDescriptor(each, *views) for each, views in zip(tensors, planned[1], strict=False)]
    return found if len(found) == 3 else [*found, tensors[2]]


@triton.jit
def copy_runs(
    source_ptr, runs_ptr, first, numbers, cols,
    APART: tl.constexpr, RUN: tl.constexpr, PITCH: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write up to BLOCK_COLS of `cols` runs: RUN values each, the i-th starting at first + i * APART, and zeros. Values
    before and after the source's `numbers` values are also zero."""
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
    """Copy x, (images, height, width, channels), to (images, phases, rows, cols, pitch), and weight, (out_channels,
    taps_h, taps_w, channels), to (out_channels, taps_h, pitch). Both are contiguous. The run at [n, p, r, c] holds the
    elements under a filter row that starts at row r * stride + p and column c * stride of the padded image, then zeros.
    Phases are those of `stride` that the filter's rows use."""
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


def runs_of(weight_shape: tuple[int, ...], y_shape: tuple[int, ...], stride: int) -> tuple[int, int, int, int]:
    """Return, for one image: phases, rows per phase, columns, and the distance between runs in elements."""
    run = weight_shape[2] * weight_shape[3]
    pitch = max(16, next_power_of_2(run)) if run < HALF_LINE else cdiv(run, HALF_LINE) * HALF_LINE
    return min(stride, weight_shape[1]), y_shape[1] + (weight_shape[1] - 1) // stride, y_shape[2], pitch


@lru_cache(maxsize=1024)
def runs_plan(weight_shape: tuple[int, ...], y_shape: tuple[int, ...], stride: int, multiprocessors: int) -> tuple:
    """Plan the kernel over copied runs, as boxes_plan does for boxes."""
    images, height, width, out_channels = y_shape
    phases, rows, _, pitch = runs_of(weight_shape, y_shape, stride)
    taps, row = weight_shape[1], width * pitch
    if taps == 1:  # no tap reads a neighbour: the pixels of all images form one row
        images, height = 1, images * height
    sizes = images, 1, height * width
    of_x = (
        [images, cdiv(taps, phases), phases, height * width, pitch],
        [phases * rows * row, row, rows * row, pitch, 1],
    )
    found = fastest(*sizes, pitch, out_channels, 1, multiprocessors, taps)
    return plan_of(of_x, pitch, (taps, 1), phases, (0, 0), sizes, out_channels, found, multiprocessors)


def _launch_planned(planned: tuple, x, weight, vectors, y, act: str, eps: float) -> None:
    grid, _, sizes, options, _ = planned
    descriptors = describe((x, weight, y), planned)
    conv_bn_act_descriptors_kernel[grid](*descriptors, *vectors, eps, *sizes, ACT=act, **options)


def launch_boxes(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    """Write y from an x and a weight that need no copy for their descriptors, all with channels last."""
    planned = boxes_plan(x.shape, weight.shape, y.shape, stride, padding, multiprocessors(x))
    _launch_planned(planned, x, weight, vectors, y, act, eps)


def launch_runs(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    """Write y for any channels, sizes and stride, from copies of x and weight."""
    planned = runs_plan(weight.shape, y.shape, stride, multiprocessors(x))
    _, rows, cols, pitch = runs_of(weight.shape, y.shape, stride)
    copies = write_runs(x, weight, cols, rows, pitch, stride, padding)
    _launch_planned(planned, *copies, vectors, y, act, eps)


@lru_cache(maxsize=1024)
def copies_gain(x_shape, weight_shape, y_shape, stride: int, by_boxes: bool, multiprocessors: int) -> bool:
    """Return whether copying x and weight is faster overall than boxes, or than the plain kernel. Shapes are those of
    tensors with channels last."""
    if by_boxes and x_shape[3] % HALF_LINE == 0:  # no row starts within half a line
        return False
    # On an H200 the plain kernel takes 3.1 us per 32 terms of a tile's sum. Copies take 4 us plus their bytes at 3.4
    # TB/s.
    out_channels, taps_h, taps_w, _ = weight_shape
    depth, pixels = prod(weight_shape[1:]), prod(y_shape[:3])
    now = 3.1 * cdiv(cdiv(pixels, 128) * cdiv(out_channels, 128), multiprocessors) * cdiv(depth, 32)
    if by_boxes:
        now = boxes_plan(x_shape, weight_shape, y_shape, stride, (taps_h // 2, taps_w // 2), multiprocessors)[4]
    runs = x_shape[0] * prod(runs_of(weight_shape, y_shape, stride))
    return now > runs_plan(weight_shape, y_shape, stride, multiprocessors)[4] + 4 + 2 * (prod(x_shape) + runs) / 3.4e6


def _starts_aligned(x: torch.Tensor) -> bool:
    """Return whether x, with channels last, starts at a multiple of 16 bytes, as any copy of it does."""
    return x.data_ptr() % ALIGNMENT == 0 or not x.permute(0, 2, 3, 1).is_contiguous()


def launch_for(x, weight, stride: int, padding: int | None):
    """Return the launch that takes these arguments of conv_bn_act, or None if the plain kernel has to."""
    if x.dtype == torch.float32 or x.numel() == 0 or shared_memory(x) < LARGE_TILES:
        return None
    (images, channels, height, width), (out_channels, _, taps_h, taps_w) = x.shape, weight.shape
    # Descriptors take 16 bytes at a time, tensor cores 16 channels.
    whole = height % stride == 0 and width % stride == 0 and channels % (8 if stride == 1 else 16) == 0
    by_boxes = whole and _starts_aligned(x) and _starts_aligned(weight)
    shapes = (images, height, width, channels), (out_channels, taps_h, taps_w, channels)
    y_shape = out_shape(x, weight, stride, padding)
    if copies_gain(*shapes, y_shape, stride, by_boxes, multiprocessors(x)):
        return launch_runs
    return launch_boxes if by_boxes else None


def _takes(x, weight, gamma, beta, mean, var, act, stride, padding, eps) -> bool:
    return launch_for(x, weight, stride, padding) is not None


def compile_arguments(*shape: int, dtype: torch.dtype):
    """Return compile arguments as kernels.variants.Tuned defines them."""
    images, channels, height, width, out_channels, taps = shape
    if dtype.itemsize != 2 or channels % 8:
        return None
    shapes = (
        (images, height, width, channels),
        (out_channels, taps, taps, channels),
        (images, height, width, out_channels),
    )
    tensors = tuple(torch.empty(each, dtype=dtype, device="meta") for each in shapes)
    vector = torch.empty(out_channels, dtype=dtype, device="meta")
    planned = boxes_plan(*shapes, 1, (taps // 2, taps // 2), 132)
    arguments = *describe(tensors, planned), *4 * (vector,), 1e-5, *planned[2]
    return conv_bn_act_descriptors_kernel, arguments, planned[3] | {"ACT": "relu"}


@tuned(
    "conv_bn_act",
    "forward",
    takes=_takes,
    gain="2.3x to 3.3x at the benchmark's four sizes, 11.7x at 22 x 248 x 31 x 31 to 456 (H200, bf16)",
    compile_arguments=compile_arguments,
)
def _forward(x, weight, gamma, beta, mean, var, act, stride, padding, eps) -> torch.Tensor:
    launch = launch_for(x, weight, stride, padding)
    return run(x, weight, gamma, beta, mean, var, act, stride, padding, eps, launch=launch)
