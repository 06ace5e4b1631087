"""Convolution, batch norm and activation in one kernel, for inference:

    y = act(conv(x, weight) * scale + shift),   scale = gamma / sqrt(var + eps),   shift = beta - mean * scale

    unfused   conv: read x and weight, write s | batch norm: read s, write b | activation: read b, write y
    fused     read x and weight, write y; the sum of products never leaves the registers in between

In bf16, 64 images of 56 x 56 pixels, 128 to 256 channels: 51 + 5 x 103 MB unfused, 51 + 103 MB fused. Each program
computes scale and shift in its epilogue. Folding the scale into the weights beforehand would save no bytes and round
twice.

The convolution is an implicit GEMM: a matmul that reads x through the filter's windows and never writes a matrix of
windows. A row is an output pixel, a column an output channel, and the sum runs over filter taps and input channels.
Channels are last in memory, so a pixel's channels are adjacent. The kernel computes pixel, tap and channel of every
element and masks elements outside the image, so it takes any size on any GPU.

Source: Ioffe and Szegedy, arXiv:1502.03167 (batch norm); Chetlur et al., arXiv:1410.0759 (implicit GEMM).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_autocast_says, cdiv, check_option, check_together, check_vectors, refuse
from kernels.op import FusedOp, Work, planned, register


@triton.jit
def fold(gamma_ptr, beta_ptr, mean_ptr, var_ptr, eps, k, out_channels):
    """Return batch norm as one scale and one shift for each of the channels k, in fp32."""
    inside = k < out_channels
    scale = tl.load(gamma_ptr + k, mask=inside, other=0.0).to(tl.float32)
    scale *= tl.rsqrt(tl.load(var_ptr + k, mask=inside, other=1.0).to(tl.float32) + eps)
    mean = tl.load(mean_ptr + k, mask=inside, other=0.0).to(tl.float32)
    return scale, tl.load(beta_ptr + k, mask=inside, other=0.0).to(tl.float32) - mean * scale


@triton.jit
def conv_bn_act_kernel(
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


def settings(dtype: torch.dtype) -> dict:
    """Return the tile and launch options for a dtype. fp32 doesn't use tensor cores, so its tiles are small."""
    if dtype == torch.float32:
        return {"BLOCK_PIXELS": 64, "BLOCK_OUT": 64, "BLOCK_IN": 16, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_PIXELS": 128, "BLOCK_OUT": 128, "BLOCK_IN": 32, "num_warps": 8, "num_stages": 3}


def paddings(weight: Tensor, padding: int | None) -> tuple[int, int]:
    """Return the rows of zeros above and the columns left of each image; None means half the filter."""
    return tuple(taps // 2 for taps in weight.shape[2:]) if padding is None else (padding, padding)


def out_shape(x: Tensor, weight: Tensor, stride: int, padding: int | None) -> tuple[int, int, int, int]:
    """Return (images, out_height, out_width, out_channels); a size is below 1 if the filter does not fit."""
    (images, _, height, width), (out_channels, _, taps_h, taps_w) = x.shape, weight.shape
    padding_h, padding_w = paddings(weight, padding)
    out_height, out_width = height + 2 * padding_h - taps_h, width + 2 * padding_w - taps_w
    return images, out_height // stride + 1, out_width // stride + 1, out_channels


def _launch(x, weight, vectors, y, act: str, stride: int, padding: tuple[int, int], eps: float) -> None:
    pixels, out_channels = y.numel() // y.shape[3], y.shape[3]
    chosen = settings(x.dtype) | {"TAPS_H": weight.shape[1], "TAPS_W": weight.shape[2], "STRIDE": stride}
    chosen |= {"PADDING_H": padding[0], "PADDING_W": padding[1], "ACT": act}
    grid = (cdiv(pixels, chosen["BLOCK_PIXELS"]) * cdiv(out_channels, chosen["BLOCK_OUT"]),)
    conv_bn_act_kernel[grid](x, weight, *vectors, y, eps, *x.shape[1:], pixels, *y.shape[1:], **chosen)


def run(x, weight, gamma, beta, mean, var, act, stride, padding, eps, launch=_launch) -> Tensor:
    """Return y after launch(x, weight, vectors, y, act, stride, paddings, eps) on tensors with channels last."""
    y = x.new_empty(out_shape(x, weight, stride, padding))
    if y.numel():
        last = [each.permute(0, 2, 3, 1).contiguous() for each in (x, weight)]
        vectors = [vector.contiguous() for vector in (gamma, beta, mean, var)]
        with torch.cuda.device_of(x):
            launch(*last, vectors, y, act, stride, paddings(weight, padding), eps)
    return y.permute(0, 3, 1, 2)


def _forward(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, act: str, stride: int,
    padding: int | None, eps: float,
) -> Tensor:  # fmt: skip
    return run(x, weight, gamma, beta, mean, var, act, stride, padding, eps)


def _fake(x, weight, *others) -> Tensor:
    return x.new_empty(out_shape(x, weight, *others[5:7])).permute(0, 3, 1, 2)


conv_bn_act_op = register("conv_bn_act", _forward, _fake)


@planned
def conv_bn_act(
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    var: Tensor,
    act: str = "relu",
    stride: int = 1,
    padding: int | None = None,
    eps: float = 1e-5,
    **more,
) -> Tensor:
    """Compute act(batch_norm(conv2d(x, weight))) with running statistics, in one launch. Not differentiable.

    Args:
        x: fp32, fp16 or bf16 tensor (images, channels, height, width), channels last in memory as in
            x.to(memory_format=torch.channels_last); other strides are copied to this format first.
        weight: (out_channels, channels, taps_h, taps_w), of x's dtype, in the same memory format.
        gamma, beta: (out_channels,), batch norm's weight and bias, of any floating-point dtype.
        mean, var: (out_channels,), its running statistics, of any floating-point dtype. If the convolution has a bias,
            subtract it from mean.
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".
        stride: the filter's stride in both directions, at least 1.
        padding: zeros around x on every side. None means half the filter, so odd filters at stride 1 keep the size.
        eps: added to var, as fp32.

    Returns:
        (images, out_channels, out_height, out_width) of x's dtype (under autocast, autocast's), channels last in
        memory. Products are summed in fp32 (fp32 inputs are not rounded to tf32) and rounded once.

    Raises:
        TypeError: an argument is not a tensor of one of these dtypes, those of x and weight differ, or `more` is given.
        ValueError: shapes do not match, the filter is wider than the padded x, act is unknown, stride is below 1,
            padding is negative, devices differ, or tensors are on the CPU while kernels run on a GPU.
    """
    refuse("conv_bn_act", more)
    x, weight = as_autocast_says(x, weight)
    _check(x, weight, {"gamma": gamma, "beta": beta, "mean": mean, "var": var}, act, stride, padding)
    return conv_bn_act_op(x, weight, gamma, beta, mean, var, act, stride, padding, eps)


def _check(x, weight, vectors: dict[str, Tensor], act: str, stride: int, padding: int | None) -> None:
    check_activation("conv_bn_act", act)
    check_together("conv_bn_act", (torch.float32, torch.float16, torch.bfloat16), x=x, weight=weight)
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1] or 0 in weight.shape:
        raise ValueError(
            f"conv_bn_act takes x (images, channels, height, width) and weight (out_channels, channels, taps_h, "
            f"taps_w), got {tuple(x.shape)} and {tuple(weight.shape)}: give both the same channels, at least one"
        )
    check_vectors("conv_bn_act", x, weight.shape[0], "weight's output channels", "channel", **vectors)
    check_option("conv_bn_act", "stride", stride, int)
    check_option("conv_bn_act", "padding", padding, int, optional=True)
    if min(out_shape(x, weight, stride, padding)[1:3]) < 1:
        taps, size = tuple(weight.shape[2:]), tuple(x.shape[2:])
        raise ValueError(f"conv_bn_act takes a filter no larger than the padded x, got {taps} over {size}: pad more")


def conv_bn_act_reference(x, weight, gamma, beta, mean, var, act="relu", stride=1, padding=None, eps=1e-5) -> Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    s = torch.nn.functional.conv2d(x, weight, stride=stride, padding=paddings(weight, padding))
    return ACTIVATIONS[act](torch.nn.functional.batch_norm(s, mean, var, gamma, beta, eps=eps))


def conv_bn_act_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic at stride 1, padding None: one multiply-add per tap, channel and output, and
    three operations per output in the epilogue; x, weight and four vectors read once, y written once."""
    images, channels, height, width, out_channels, taps = shape
    outputs = images * out_channels * (height + taps // 2 * 2 - taps + 1) * (width + taps // 2 * 2 - taps + 1)
    read = images * channels * height * width + out_channels * (channels * taps**2 + 4)
    flops = costs.product(outputs, channels * taps**2, 1) + (costs.FOLDED_BATCH_NORM + costs.RELU) * outputs
    return Work(flops, read * dtype.itemsize, outputs * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[Tensor, ...]:
    images, channels, height, width, out_channels, taps = shape
    x = torch.randn(images, height, width, channels, **options).permute(0, 3, 1, 2)
    weight = torch.randn(out_channels, taps, taps, channels, **options).permute(0, 3, 1, 2)
    weight = weight / max(1, channels * taps**2) ** 0.5  # so that the outputs are of order 1
    gamma, beta, mean = torch.randn(3, out_channels, **options)
    return x, weight, gamma, beta, mean, torch.rand(out_channels, **options) + 0.5


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    images, channels, height, width, out_channels, taps = shape
    out_height, out_width = (size + taps // 2 * 2 - taps + 1 for size in (height, width))
    sizes = (images, height, width, channels), (out_channels, taps, taps, channels)
    x, weight = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    y = x.new_empty(images, out_height, out_width, out_channels)
    options = {"TAPS_H": taps, "TAPS_W": taps, "STRIDE": 1, "PADDING_H": taps // 2, "PADDING_W": taps // 2}
    pixels = images * out_height * out_width
    arguments = x, weight, *4 * (y[0, 0, 0],), y, 1e-5, *x.shape[1:], pixels, *y.shape[1:]
    return arguments, options | {"ACT": "relu"} | settings(dtype)


# Images, channels, height, width, output channels, taps in each direction.
SMALL = ((1, 1, 1, 1, 1, 1), (2, 3, 5, 7, 9, 3), (1, 16, 6, 5, 8, 3), (3, 40, 3, 3, 24, 1), (2, 5, 4, 6, 7, 3))
LARGE = ((32, 256, 28, 28, 256, 3), (64, 128, 56, 56, 256, 3), (32, 64, 56, 56, 64, 3), (32, 512, 14, 14, 2048, 1))
OP = FusedOp(
    name="conv_bn_act",
    fused=conv_bn_act,
    reference=conv_bn_act_reference,
    work=conv_bn_act_work,
    kernel=conv_bn_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=SMALL,
    gpu_shapes=LARGE,
)
