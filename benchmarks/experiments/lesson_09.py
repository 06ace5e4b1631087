"""Lesson 09: convolution as an implicit GEMM, and the L2 and DRAM traffic of its taps.

Lesson 09's convolution on a GPU: the time of each step of conv + batch norm + ReLU, the effect of the images' memory
layout, and the number of channels at which cuDNN's own fused kernel starts to win.

`conv_bn_relu` is the lesson's kernel: it computes and masks every element's address, for any strides.

Nsight Compute's counters for lesson 09's convolution: the traffic that its taps cause in L2 and DRAM.

`python -m benchmarks.experiments.lesson_09` is the profiled program: it runs one kernel after each marker.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch.nn import functional

from benchmarks.hardware_counters import counters, profiled
from benchmarks.peers.conv import peers
from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.conv_bn_act import LARGE, OP, conv_bn_act, conv_bn_act_reference

EPS = 1e-5
CHANNELS = (32, 64, 128, 256, 512, 1024)  # in and out, 3 x 3, of 32 images of 28 x 28
LAYOUTS = ((64, 128, 56, 56, 256, 3), (32, 64, 56, 56, 64, 3))
TILE = {"BLOCK_PIXELS": 128, "BLOCK_OUT": 64, "BLOCK_IN": 32, "num_warps": 4, "num_stages": 3}


@triton.jit
def window(pixel, at, size, strides, TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr):
    channels, height, width, out_height, out_width = size
    tap, channel = at // channels, at % channels
    image = (pixel // (out_height * out_width)).to(tl.int64)
    row = pixel // out_width % out_height * STRIDE + tap // TAPS - PADDING
    col = pixel % out_width * STRIDE + tap % TAPS - PADDING
    there = (row >= 0) & (row < height) & (col >= 0) & (col < width)
    return image * strides[0] + channel * strides[1] + row * strides[2] + col * strides[3], there


@triton.jit
def products(
    x_ptr, w_ptr, pixel, k, pixels, out_channels, size, strides, WINDOW: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    depth = TAPS * TAPS * size[0]
    acc = tl.zeros((pixel.shape[0], k.shape[1]), tl.float32)
    for start in range(0, depth, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        place, there = WINDOW(pixel, at[None, :], size, strides, TAPS, STRIDE, PADDING)
        x = tl.load(x_ptr + place, mask=there & (pixel < pixels) & (at < depth)[None, :], other=0.0)
        w = tl.load(w_ptr + k * depth + at[:, None], mask=(at < depth)[:, None] & (k < out_channels), other=0.0)
        acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def conv_bn_relu_kernel(
    x_ptr, w_ptr, scale_ptr, shift_ptr, y_ptr, pixels, out_channels, size, strides, WINDOW: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)[:, None]
    k = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    s = products(x_ptr, w_ptr, pixel, k, pixels, out_channels, size, strides, WINDOW, TAPS, STRIDE, PADDING, BLOCK_IN)
    scale = tl.load(scale_ptr + k, mask=k < out_channels, other=0.0)
    shift = tl.load(shift_ptr + k, mask=k < out_channels, other=0.0)
    y = s * scale + shift
    y = tl.where(y < 0, 0, y)
    tl.store(y_ptr + pixel.to(tl.int64) * out_channels + k, y, mask=(pixel < pixels) & (k < out_channels))


def conv_bn_relu(x, w, scale, shift, stride: int = 1, padding: int = 1, tile: dict = TILE) -> torch.Tensor:
    """Compute relu(conv2d(x, w) * scale + shift) in one launch.

    Args:
        x: (images, channels, height, width), any strides.
        w: (out_channels, taps, taps, channels), contiguous.
        scale, shift: (out_channels,), fp32.
        stride, padding: of the filter, in both directions.
        tile: the kernel's blocks and launch options.

    Returns:
        (images, out_channels, out_height, out_width) of x's dtype, channels last in memory.
    """
    images, channels, height, width = x.shape
    out_channels, taps = w.shape[:2]
    out_height, out_width = ((size + 2 * padding - taps) // stride + 1 for size in (height, width))
    y = torch.empty(images, out_height, out_width, out_channels, dtype=x.dtype, device=x.device)
    pixels = images * out_height * out_width
    grid = (triton.cdiv(pixels, tile["BLOCK_PIXELS"]), triton.cdiv(out_channels, tile["BLOCK_OUT"]))
    size = (channels, height, width, out_height, out_width)
    constants = {"WINDOW": window, "TAPS": taps, "STRIDE": stride, "PADDING": padding}
    conv_bn_relu_kernel[grid](x, w, scale, shift, y, pixels, out_channels, size, x.stride(), **constants, **tile)
    return y.permute(0, 3, 1, 2)


def folded(gamma, beta, mean, var) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each output channel's scale and shift, in fp32: batch norm with running statistics."""
    scale = gamma.float() * torch.rsqrt(var.float() + EPS)
    return scale, beta.float() - mean.float() * scale


def _steps(shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> dict[str, Callable]:
    """Return conv + batch norm + ReLU up to each step, then the ways to do all of it."""
    x, w, gamma, beta, mean, var = OP.inputs(*shape, dtype=dtype, device="cuda")
    x, w = (each.contiguous(memory_format=memory_format) for each in (x, w))
    scale, shift = folded(gamma, beta, mean, var)
    into = (w * scale[:, None, None, None]).to(dtype).contiguous(memory_format=memory_format)
    bias, padding = shift.to(dtype), shape[5] // 2

    def conv():
        return functional.conv2d(x, w, padding=padding)

    def normed():
        return functional.batch_norm(conv(), mean, var, gamma, beta, eps=EPS)

    sums = conv()
    return {
        "conv": conv,
        "BN": lambda: functional.batch_norm(sums, mean, var, gamma, beta, eps=EPS),
        "BN, batch statistics": lambda: functional.batch_norm(sums, None, None, gamma, beta, training=True, eps=EPS),
        "conv, BN": normed,
        "conv, BN, ReLU": lambda: torch.relu(normed()),
        "folded conv, ReLU": lambda: torch.relu(functional.conv2d(x, into, bias, padding=padding)),
        "cuDNN fused": lambda: torch.cudnn_convolution_relu(x, into, bias, [1, 1], 2 * [padding], [1, 1], 1),
    }


def measure_steps() -> dict[str, dict[str, dict[str, Timing]]]:
    """Time dtype and layout -> shape -> step on the GPU. bf16 with channels last also times the explicit windows, the
    lesson's kernel, and the catalogue's."""
    found = {}
    kinds = (("bf16, channels last", torch.bfloat16, torch.channels_last),
             ("fp32, channels first", torch.float32, torch.contiguous_format))  # fmt: skip
    for name, dtype, memory_format in kinds:
        found[name] = {}
        for shape in LARGE:
            calls = _steps(shape, dtype, memory_format)
            if dtype == torch.bfloat16:
                inputs = OP.inputs(*shape, dtype=dtype, device="cuda")
                x, w, *vectors = inputs
                scale, shift = folded(*vectors)
                last, padding = w.permute(0, 2, 3, 1).contiguous(), shape[5] // 2
                flat = w.flatten(1)
                calls["windows, product"] = lambda x=x, flat=flat, taps=shape[5], padding=padding: (
                    flat @ functional.unfold(x, taps, padding=padding)
                )
                calls["the lesson's kernel"] = partial(conv_bn_relu, x, last, scale, shift, padding=padding)
                calls["fused"] = partial(conv_bn_act, *inputs)
            found[name]["x".join(map(str, shape))] = benchmark_together(calls, runs=20)
            torch.cuda.empty_cache()
    return found


def measure_layouts() -> dict[str, dict[str, dict[str, Timing]]]:
    """Time shape -> filter stride -> version and image layout on the GPU, in bf16."""
    found = {}
    for shape in LAYOUTS:
        by_stride = found["x".join(map(str, shape))] = {}
        x, w, *vectors = OP.inputs(*shape, dtype=torch.bfloat16, device="cuda")
        scale, shift = folded(*vectors)
        last = w.permute(0, 2, 3, 1).contiguous()
        for stride in (1, 2):
            calls = {}
            formats = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}
            for layout, memory_format in formats.items():
                x_, w_ = (each.contiguous(memory_format=memory_format) for each in (x, w))
                calls[f"cuDNN, {layout}"] = partial(functional.conv2d, x_, w_, stride=stride, padding=1)
                calls[f"the lesson's kernel, {layout}"] = partial(conv_bn_relu, x_, last, scale, shift, stride)
            by_stride[stride] = benchmark_together(calls, runs=20)
    return found


def measure_channels() -> dict[int, dict[str, Timing]]:
    """Time channels -> version on the GPU: 3 x 3, as many channels out as in, 32 images of 28 x 28, bf16."""
    found = {}
    for channels in CHANNELS:
        inputs = OP.inputs(32, channels, 28, 28, channels, 3, dtype=torch.bfloat16, device="cuda")
        calls = {"fused": partial(conv_bn_act, *inputs), "eager": partial(conv_bn_act_reference, *inputs)}
        calls["cuDNN fused"] = partial(peers("conv_bn_act", inputs)["cuDNN fused"], *inputs)
        found[channels] = benchmark_together(calls, runs=20)
    return found


SHAPE = (64, 128, 56, 56, 256, 3)
METRICS = {
    "lts__t_sectors_op_read.sum": "l2_read",  # sectors of 32 bytes
    "dram__bytes_read.sum": "dram_read",
    "gpu__time_duration.sum": "nanoseconds",
}


def counted_calls() -> dict[tuple[str, int], callable]:
    """Return (version and layout, stride) -> a launch, in bf16."""
    x, w, *vectors = OP.inputs(*SHAPE, dtype=torch.bfloat16, device="cuda")
    scale, shift = folded(*vectors)
    last, first = w.permute(0, 2, 3, 1).contiguous(), x.contiguous()
    found = {}
    for stride in (1, 2):
        found["channels last", stride] = partial(conv_bn_relu, x, last, scale, shift, stride)
        found["channels first", stride] = partial(conv_bn_relu, first, last, scale, shift, stride)
        found["catalogue", stride] = partial(conv_bn_act, x, w, *vectors, "relu", stride)
    return found


def measure_counters() -> dict[str, dict[int, dict[str, int]]]:
    """Return version and layout -> stride -> METRICS' names -> the counter."""
    calls, found = counted_calls(), {}
    for call in calls.values():
        call()  # here too, so that the record knows which kernels were launched
    rows = counters("benchmarks.experiments.lesson_09", METRICS)
    for (who, stride), (row,) in zip(calls, rows, strict=True):
        found.setdefault(who, {})[stride] = {name: row[name] for name in METRICS.values()}
    return found


EXPERIMENTS = {
    "conv_steps": measure_steps,
    "conv_layouts": measure_layouts,
    "conv_channels": measure_channels,
    "conv_counters": measure_counters,
}

if __name__ == "__main__":
    profiled(counted_calls().values())
