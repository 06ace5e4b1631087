"""A convolution, the batch norm after it and the activation in one kernel, for inference:

    y = act(conv(x, weight) * scale + shift),   scale = gamma / sqrt(var + eps),   shift = beta - mean * scale

    unfused   conv: read x and weight, write s | batch norm: read s, write b | activation: read b, write y
    fused     read x and weight, write y; the sum of products never leaves the registers in between

In bf16, 64 images of 56 x 56 pixels, 128 to 256 channels: 51 + 5 x 103 MB unfused, 51 + 103 MB fused. Scale and shift
are one value a channel, found by each program in its epilogue. Folding the scale into the weights, as is often done
once beforehand, saves no memory traffic over that, and rounds the weights a second time.

A convolution is a matmul in which x is read through the filter's windows (an implicit GEMM: no matrix of windows is
ever written): a row is an output pixel, a column an output channel, and the sum runs over the filter's taps and the
input's channels. In memory channels come last, so that a pixel's channels are side by side.

Two kernels compute the same. `conv_bn_act_plain_kernel` decodes image, pixel, tap and channel for every element and
masks what lies outside the picture: any sizes. In `conv_bn_act_kernel` a block of the result is a box of pixels, and
what one tap sees of x is the same box, shifted. So one tensor descriptor of x is all it takes: the copy engine (TMA)
fetches the shifted box, and gives the zeros of the padding where it sticks out. A stride of two splits the picture in
2 x 2 phases, the even and odd rows and columns; each tap reads boxes of one phase. It needs what descriptors need:
input channels in multiples of 16 and output channels of 8, sizes that are multiples of the stride, 16-bit values, and
shared memory for its tiles, which GPUs of compute capability 9.0 and 10.0 have.

Source: Ioffe and Szegedy, arXiv:1502.03167 (batch norm); Chetlur et al., arXiv:1410.0759 (implicit GEMM);
torch.nn.functional.conv2d, batch_norm.
"""

from functools import lru_cache
from itertools import product
from math import gcd, prod

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import FLOATS, check_together, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.sizes import cdiv

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TILES_IN_SHARED_MEMORY = 227 * 2**10  # bytes that conv_bn_act_kernel's tiles may take


@triton.jit
def fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, k, out_channels):
    """Batch norm as one scale and one shift of each of the channels k, in fp32."""
    inside = k < out_channels
    scale = tl.load(gamma_ptr + k, mask=inside, other=0.0).to(tl.float32)
    scale *= tl.rsqrt(tl.load(var_ptr + k, mask=inside, other=1.0).to(tl.float32) + eps)
    mean = tl.load(mean_ptr + k, mask=inside, other=0.0).to(tl.float32)
    return scale, tl.load(beta_ptr + k, mask=inside, other=0.0).to(tl.float32) - mean * scale


@triton.jit
def conv_bn_act_plain_kernel(
    x_ptr,  # (images, height, width, channels), contiguous
    weight_ptr,  # (out_channels, TAPS_H, TAPS_W, channels), contiguous
    gamma_ptr,  # (out_channels,), as the next three
    beta_ptr,
    mean_ptr,
    var_ptr,
    y_ptr,  # (images, out_height, out_width, out_channels), contiguous
    eps,
    height,
    width,
    channels,
    pixels,  # images * out_height * out_width
    out_height,
    out_width,
    out_channels,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,  # output channels
    BLOCK_IN: tl.constexpr,  # taps and input channels
):
    tiles_out = tl.cdiv(out_channels, BLOCK_OUT)
    # int64 before the multiplications: offsets pass 2**31 on large tensors.
    pixel = (tl.program_id(0) // tiles_out).to(tl.int64) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    image = pixel // (out_height * out_width)
    top = pixel // out_width % out_height * STRIDE - PADDING_H
    left = pixel % out_width * STRIDE - PADDING_W
    k = tl.program_id(0) % tiles_out * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    depth = TAPS_H * TAPS_W * channels
    acc = tl.zeros((BLOCK_PIXELS, BLOCK_OUT), tl.float32)
    for start in range(0, depth, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)[None, :]
        tap = at // channels
        row, col = top + tap // TAPS_W, left + tap % TAPS_W
        seen = (pixel < pixels) & (at < depth) & (row >= 0) & (row < height) & (col >= 0) & (col < width)
        x = tl.load(x_ptr + ((image * height + row) * width + col) * channels + at % channels, mask=seen, other=0.0)
        offset = k[:, None].to(tl.int64) * depth + at
        weight = tl.load(weight_ptr + offset, mask=(k[:, None] < out_channels) & (at < depth), other=0.0)
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    scale, shift = fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, k, out_channels)
    y = activate(acc * scale[None, :] + shift[None, :], ACT)
    inside = (pixel < pixels) & (k[None, :] < out_channels)
    tl.store(y_ptr + pixel * out_channels + k[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def conv_bn_act_kernel(
    # (images, height / STRIDE, STRIDE, width / STRIDE, STRIDE * CHANNELS) in (BOX_N, BOX_H, 1, BOX_W, BLOCK_IN)
    x_desc,
    weight_desc,  # (out_channels, TAPS_H * TAPS_W * CHANNELS) in (BLOCK_OUT, BLOCK_IN)
    y_desc,  # (images, out_height, out_width, out_channels) in (BOX_N, BOX_H, BOX_W, BLOCK_OUT)
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
    ACT: tl.constexpr,
    BOX_N: tl.constexpr,
    BOX_H: tl.constexpr,
    BOX_W: tl.constexpr,
    BLOCK_OUT: tl.constexpr,  # output channels
    BLOCK_IN: tl.constexpr,  # input channels
):
    PIXELS: tl.constexpr = BOX_N * BOX_H * BOX_W
    STEPS: tl.constexpr = CHANNELS // BLOCK_IN  # a tap
    tiles_out = tl.cdiv(out_channels, BLOCK_OUT)
    tiles_w = tl.cdiv(out_width, BOX_W)
    tiles_h = tl.cdiv(out_height, BOX_H)
    tiles = tiles_out * tiles_w * tiles_h * tl.cdiv(images, BOX_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        # Tiles of the same pixels come one after another: they run together, and L2 gives them x once.
        k = tile % tiles_out * BLOCK_OUT
        w = tile // tiles_out % tiles_w * BOX_W
        h = tile // (tiles_out * tiles_w) % tiles_h * BOX_H
        n = tile // (tiles_out * tiles_w * tiles_h) * BOX_N
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
            weight = weight_desc.load([k, step * BLOCK_IN])
            acc = tl.dot(weight, x.reshape(PIXELS, BLOCK_IN).T, acc)
        channel = k + tl.arange(0, BLOCK_OUT)
        scale, shift = fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, channel, out_channels)
        y = activate(acc * scale[:, None] + shift[:, None], ACT)
        y_desc.store([n, h, w, k], y.to(y_desc.dtype).T.reshape(BOX_N, BOX_H, BOX_W, BLOCK_OUT))


def _tiles(box: tuple[int, int, int], images: int, height: int, width: int) -> int:
    return prod(cdiv(size, side) for size, side in zip((images, height, width), box, strict=True))


def box_of_pixels(pixels: int, images: int, height: int, width: int) -> tuple[int, int, int]:
    """The box of `pixels` pixels, a power of two in each dimension, of which the fewest cover images of this size."""

    powers = [2**i for i in range(pixels.bit_length())]
    candidates = [box for box in product(powers, repeat=3) if prod(box) == pixels]
    # Of equals the one with the fewest images and rows: its pixels are side by side.
    return min(candidates, key=lambda box: (_tiles(box, images, height, width), box))


# Pixels and output channels of a tile, warps, stages, tiles at once on a multiprocessor, and the speed of full rounds.
TILES = ((256, 128, 8, 3, 1, 1.25), (128, 256, 8, 3, 1, 1.2), (128, 64, 4, 4, 2, 1.0))


def settings(
    images: int, height: int, width: int, channels: int, out_channels: int, multiprocessors: int = 132
) -> dict:
    """Launch settings of conv_bn_act_kernel for an output of this size.

    A step of a large tile reads 48 KB for 2 million products, one of a small tile 24 KB for half a million: the large
    ones are up to a quarter faster where they come out even. What tiles lose at the edges, and in a last round in which
    few multiprocessors have one, counts as much. On an H200, TFLOP/s in bf16:

        pixels x channels of a tile    256 x 128    128 x 256    128 x 64, two at once
        3x3, 256 to 256 at 28 x 28     550          483          597       large tiles: 196, a round and a half
        3x3, 128 to 256 at 56 x 56     662          622          530
        3x3, 64 to 64 at 56 x 56                                 328
        1x1, 512 to 2048 at 14 x 14    403          463          451       of 256 pixels: 400 tiles, 3.03 rounds

    cuDNN's own fused kernel, timed beside the chosen ones: 661, 721, 281, 491.

    One stage more does not fit in shared memory. One program a tile, where these walk over tiles and load the next one
    while they finish this, was 2 to 13 % slower.
    """

    def speed(tile: tuple) -> float:
        pixels, out, _, _, at_once, full = tile
        tiles = _tiles(box_of_pixels(pixels, images, height, width), images, height, width)
        rounds = cdiv(tiles * cdiv(out_channels, out), multiprocessors * at_once)
        return full * images * height * width * out_channels / (rounds * at_once * pixels * out)

    pixels, out, warps, stages, _, _ = max(TILES, key=speed)
    box_n, box_h, box_w = box_of_pixels(pixels, images, height, width)
    return {
        "BOX_N": box_n,
        "BOX_H": box_h,
        "BOX_W": box_w,
        "BLOCK_OUT": out,
        "BLOCK_IN": gcd(channels, 64),  # 128 bytes, as wide as the copy engine swizzles
        "num_warps": warps,
        "num_stages": stages,
    }


def plain_settings(dtype: torch.dtype) -> dict:
    """Launch settings of conv_bn_act_plain_kernel. In fp32 the products are not for tensor cores, and tiles small."""
    if dtype == torch.float32:
        return {"BLOCK_PIXELS": 64, "BLOCK_OUT": 64, "BLOCK_IN": 16, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_PIXELS": 128, "BLOCK_OUT": 128, "BLOCK_IN": 32, "num_warps": 8, "num_stages": 3}


def _paddings(weight: torch.Tensor, padding: int | None) -> tuple[int, int]:
    taps_h, taps_w = weight.shape[2:]
    return (taps_h // 2, taps_w // 2) if padding is None else (padding, padding)


def _out_shape(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int | None) -> tuple[int, int, int, int]:
    """(images, out_channels, out_height, out_width), a size below 1 where the filter does not fit."""
    images, _, height, width = x.shape
    out_channels, _, taps_h, taps_w = weight.shape
    padding_h, padding_w = _paddings(weight, padding)
    out_height, out_width = height + 2 * padding_h - taps_h, width + 2 * padding_w - taps_w
    return images, out_channels, out_height // stride + 1, out_width // stride + 1


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """(a, b, c, d) with b the last in memory as (a, c, d, b), contiguous; a copy where it is not so in memory."""
    return x.permute(0, 2, 3, 1).contiguous()


def _takes_descriptors(x: torch.Tensor, weight: torch.Tensor, stride: int) -> bool:
    """Whether conv_bn_act_kernel can: x and weight with channels last."""
    _, height, width, channels = x.shape
    aligned = (x.data_ptr() | weight.data_ptr()) % 16 == 0
    # Tensor cores take 16 channels at a time, descriptors 16 bytes.
    fits = height % stride == 0 and width % stride == 0 and channels % 16 == 0 and weight.shape[0] % 8 == 0
    return x.dtype != torch.float32 and aligned and fits and shared_memory(x) >= TILES_IN_SHARED_MEMORY


@lru_cache(maxsize=1024)  # pictures come in many sizes
def _plan(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    multiprocessors: int,
) -> tuple[tuple[int], tuple, tuple[int, ...], dict]:
    """All that a launch of conv_bn_act_kernel is but its tensors: grid, (shape, strides, block) of the descriptors of
    x, weight and y, sizes, and constexprs. It takes Python longer to work out than the launch itself."""
    images, height, width, channels = x_shape
    out_channels, taps_h, taps_w, _ = weight_shape
    sizes = y_shape[:3]
    if (taps_h, taps_w, stride, *padding) == (1, 1, 1, 0, 0):  # no neighbours are seen: all pixels are one row
        images, height, width = sizes = 1, 1, images * height * width
    chosen = settings(*sizes, channels, out_channels, multiprocessors)
    box = chosen["BOX_N"], chosen["BOX_H"], chosen["BOX_W"]
    block_out, block_in = chosen["BLOCK_OUT"], chosen["BLOCK_IN"]
    views = (
        ([images, height // stride, stride, width // stride, stride * channels], [*box[:2], 1, box[2], block_in]),
        ([out_channels, taps_h * taps_w * channels], [block_out, block_in]),
        ([*sizes, out_channels], [*box, block_out]),
    )
    # Strides of contiguous tensors; PyTorch leaves the stride of a dimension of size 1 open, the copy engine does not.
    described = tuple((shape, [prod(shape[i + 1 :]) for i in range(len(shape))], block) for shape, block in views)
    constants = {"CHANNELS": channels, "TAPS_H": taps_h, "TAPS_W": taps_w, "STRIDE": stride}
    constants |= {"PADDING_H": padding[0], "PADDING_W": padding[1]}
    tiles = _tiles(box, *sizes) * cdiv(out_channels, block_out)
    grid = (min(tiles, multiprocessors * 8 // chosen["num_warps"]),)
    return grid, described, (*sizes, out_channels), constants | chosen


def _described(x, weight, y, stride: int, padding: tuple[int, int], multiprocessors: int = 132):
    """conv_bn_act_kernel's grid, its descriptors and sizes, and its constexprs."""
    grid, described, *rest = _plan(x.shape, weight.shape, y.shape, stride, padding, multiprocessors)
    descriptors = [TensorDescriptor(each, *views) for each, views in zip((x, weight, y), described, strict=True)]
    return grid, descriptors, *rest


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    act: str,
    stride: int,
    padding: int | None,
    eps: float,
) -> torch.Tensor:
    images, out_channels, out_height, out_width = _out_shape(x, weight, stride, padding)
    y = torch.empty(images, out_height, out_width, out_channels, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y.permute(0, 3, 1, 2)
    pads = _paddings(weight, padding)
    x, weight = _channels_last(x), _channels_last(weight)
    vectors = [vector.contiguous() for vector in (gamma, beta, mean, var)]
    with torch.cuda.device_of(x):
        if _takes_descriptors(x, weight, stride):
            grid, descriptors, sizes, options = _described(x, weight, y, stride, pads, multiprocessors(x))
            conv_bn_act_kernel[grid](*descriptors, *vectors, eps, *sizes, ACT=act, **options)
        else:
            _launch_plain(x, weight, vectors, y, act, stride, pads, eps)
    return y.permute(0, 3, 1, 2)


def _launch_plain(x, weight, vectors, y, act, stride, padding, eps) -> None:
    pixels, out_channels = y.numel() // y.shape[3], y.shape[3]
    chosen = plain_settings(x.dtype)
    grid = (cdiv(pixels, chosen["BLOCK_PIXELS"]) * cdiv(out_channels, chosen["BLOCK_OUT"]),)
    conv_bn_act_plain_kernel[grid](
        x,
        weight,
        *vectors,
        y,
        eps,
        *x.shape[1:],
        pixels,
        *y.shape[1:],
        TAPS_H=weight.shape[1],
        TAPS_W=weight.shape[2],
        STRIDE=stride,
        PADDING_H=padding[0],
        PADDING_W=padding[1],
        ACT=act,
        **chosen,
    )


# For autograd, which finds no gradient here and says so, and for torch.compile.
conv_bn_act_op = torch.library.custom_op("kernel_fusion::conv_bn_act", _forward, mutates_args=())


@conv_bn_act_op.register_fake
def _(x, weight, gamma, beta, mean, var, act, stride, padding, eps):
    images, out_channels, height, width = _out_shape(x, weight, stride, padding)
    return x.new_empty(images, height, width, out_channels).permute(0, 3, 1, 2)


def conv_bn_act(
    x: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    act: str = "relu",
    stride: int = 1,
    padding: int | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """act(batch_norm(conv2d(x, weight))) with running statistics, in one launch. Not differentiable.

    Args:
        x: fp32, fp16 or bf16 tensor (images, channels, height, width). In memory channels come last, as
            x.to(memory_format=torch.channels_last) has them; other strides are copied to that first.
        weight: (out_channels, channels, taps_h, taps_w), x's dtype; the same about memory.
        gamma, beta: (out_channels,), batch norm's weight and bias, of any floating-point dtype.
        mean, var: (out_channels,), its running statistics, the same. A bias of the convolution's own comes off mean.
        act: "relu", "gelu" (by the error function), "gelu_tanh" or "silu".
        stride: of the filter in both directions, at least 1.
        padding: zeros around x on every side; None is half the filter, which at stride 1 and odd filters keeps the
            size.
        eps: added to var.

    Returns:
        (images, out_channels, out_height, out_width) of x's dtype, channels last in memory. Products are summed in
        fp32 (fp32 products in fp32, not tf32) and rounded once.

    Raises:
        TypeError: an argument is not a tensor of such a dtype, or x and weight have two.
        ValueError: shapes that do not fit each other, a filter wider than the padded x, another `act`, a stride below
            1, a negative padding, two devices, or tensors on the CPU where kernels run on a GPU.
    """
    _check(x, weight, {"gamma": gamma, "beta": beta, "mean": mean, "var": var}, act, stride, padding)
    tensors = x, weight, gamma, beta, mean, var
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return conv_bn_act_op(*tensors, act, stride, padding, eps)
    return _forward(*tensors, act, stride, padding, eps)


def _check(x, weight, vectors: dict[str, torch.Tensor], act: str, stride: int, padding: int | None) -> None:
    check_activation("conv_bn_act", act)
    check_together("conv_bn_act", DTYPES, x=x, weight=weight)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1] or 0 in weight.shape:
        raise ValueError(
            f"conv_bn_act takes x (images, channels, height, width) and weight (out_channels, channels, taps_h, "
            f"taps_w), got {tuple(x.shape)} and {tuple(weight.shape)}: give both the same channels, at least one"
        )
    device, one_a_channel = x.device, weight.shape[:1]
    for name, vector in vectors.items():
        if not isinstance(vector, torch.Tensor) or vector.dtype not in FLOATS:
            kind = vector.dtype if isinstance(vector, torch.Tensor) else type(vector).__name__
            raise TypeError(
                f"conv_bn_act takes {name} as a floating-point tensor, got {kind}: convert it with .to(dtype)"
            )
        if vector.shape != one_a_channel or vector.device != device:
            raise ValueError(
                f"conv_bn_act takes {name} of shape ({weight.shape[0]},) on {device}, got {tuple(vector.shape)} on "
                f"{vector.device}: give it one value an output channel"
            )
    if stride < 1 or (padding or 0) < 0:
        raise ValueError(
            f"conv_bn_act takes a stride of at least 1 and a padding of at least 0, got {stride}, {padding}"
        )
    if min(_out_shape(x, weight, stride, padding)[2:]) < 1:
        raise ValueError(
            f"conv_bn_act takes a filter no larger than the padded x, got taps {tuple(weight.shape[2:])} over "
            f"{tuple(x.shape[2:])} with padding {padding}: pad more"
        )


def conv_bn_act_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    act: str = "relu",
    stride: int = 1,
    padding: int | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    s = torch.nn.functional.conv2d(x, weight, stride=stride, padding=_paddings(weight, padding))
    return ACTIVATIONS[act](torch.nn.functional.batch_norm(s, mean, var, gamma, beta, eps=eps))


def conv_bn_act_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes at stride 1, padding None: a multiply-add a tap, channel and output, and three operations
    an output for the epilogue; x, weight and four vectors in once, y out once.
    """
    images, channels, height, width, out_channels, taps = shape
    outputs = images * out_channels * (height + taps // 2 * 2 - taps + 1) * (width + taps // 2 * 2 - taps + 1)
    read = images * channels * height * width + out_channels * (channels * taps**2 + 4)
    return Work((2 * channels * taps**2 + 3) * outputs, read * dtype.itemsize, outputs * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor, ...]:
    images, channels, height, width, out_channels, taps = shape
    x = torch.randn(images, height, width, channels, **options).permute(0, 3, 1, 2)
    weight = torch.randn(out_channels, taps, taps, channels, **options).permute(0, 3, 1, 2)
    weight = weight / max(1, channels * taps**2) ** 0.5  # so that sums of products are of order 1
    gamma, beta, mean = torch.randn(3, out_channels, **options)
    return x, weight, gamma, beta, mean, torch.rand(out_channels, **options) + 0.5


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    images, channels, height, width, out_channels, taps = shape
    x = torch.empty(images, height, width, channels, dtype=dtype, device="meta")
    weight = torch.empty(out_channels, taps, taps, channels, dtype=dtype, device="meta")
    y = torch.empty(images, height, width, out_channels, dtype=dtype, device="meta")
    vector = torch.empty(out_channels, dtype=dtype, device="meta")
    _, descriptors, sizes, options = _described(x, weight, y, 1, (taps // 2, taps // 2))
    return (*descriptors, *4 * (vector,), 1e-5, *sizes), options | {"ACT": "relu"}


OP = FusedOp(
    name="conv_bn_act",
    fused=conv_bn_act,
    reference=conv_bn_act_reference,
    work=conv_bn_act_work,
    kernel=conv_bn_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=(
        (1, 1, 1, 1, 1, 1),
        (2, 3, 5, 7, 9, 3),
        (1, 16, 6, 5, 8, 3),
        (3, 40, 3, 3, 24, 1),
        (2, 5, 4, 6, 7, 3),
    ),
    gpu_shapes=(
        (32, 256, 28, 28, 256, 3),
        (64, 128, 56, 56, 256, 3),
        (32, 64, 56, 56, 64, 3),
        (32, 512, 14, 14, 2048, 1),
    ),
)
