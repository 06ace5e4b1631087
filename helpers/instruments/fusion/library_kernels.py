"""The kernels that PyTorch's libraries launch for operators that are not one kernel at copy bandwidth.

    matmul             waves of output tiles, each at the rate of one SM's tensor cores; slow if rows don't start
                       at multiples of 16 bytes
    convolution        a matmul of tiles; cuDNN converts NCHW tensors to NHWC and back; PyTorch adds the bias after it.
                       Windows with several taps need a zero-filled workspace, grouped ones three; the first layer's
                       image and filters are padded to 8 channels: zero-filled, then copied
    batch norm         16-bit parameters are converted, and 1 / sqrt(var + eps) is a separate kernel
    layer norm         a block's time for each row; a non-contiguous tensor is copied first
    attention          cuDNN's kernel, PyTorch's first choice on Hopper, after two fills
    max pooling        also writes the 64-bit position of each maximum
    rows by index      each row is fetched once per request; sums at an index use atomics
    cuDNN's LSTM, GRU  two kernels per layer and time step, a matmul of the inputs for every eight steps, and copies:
                       the input with time steps first, each weight matrix in cuDNN's own layout, and bf16 weights,
                       which nn.RNNBase doesn't keep in one buffer, into one

`compiled`: as Inductor calls the library: convolutions in NHWC, with filters and images copied on every call,
operands padded to aligned rows, the bias left to the next kernel.

The rates were measured on an H100 80GB with PyTorch 2.11, from the kernels of the models in benchmarks/public_models.py
that are not held out; other GPUs are assumed to match it per SM and clock, or per byte of bandwidth.
"""

import functools
import math
from dataclasses import dataclass

import torch

from helpers.instruments import prediction
from helpers.instruments.devices import Device
from helpers.instruments.dry_run import EagerLaunch
from helpers.instruments.prediction import LaunchPrediction

# Output tiles of cuBLAS' and cuDNN's Hopper kernels, from the kernels' names.
TILES = ((256, 128), (192, 192), (192, 128), (128, 128), (128, 64), (64, 64), (320, 128))
PRODUCT_START = 3.0e-6  # s: launch, loading the first operand tiles, storing the last tile
TILE_START = 0.9e-6  # s between two tiles of a block: storing results, fetching the next operands
SPLITS = (1, 2, 4, 8)  # splits of the inner dimension if there are few tiles
SPLIT_TIME = 2.0e-6  # s: adding up the splits
# Share of the fp32 peak outside tensor cores. By default, PyTorch's fp32 matmuls don't use TF32.
CORES_SHARE = 0.6
# Share of the tensor cores' peak if rows are not aligned to 16 bytes: older kernels with narrow copies handle them.
UNALIGNED_SHARE = {"even": 0.13, "odd": 0.096}
FEW_CHANNELS = 8  # below these, a convolution's copies are narrow
FEW_CHANNELS_SHARE = 0.04
TENSOR_CORE_STEP = 64  # terms per output: a convolution with fewer, such as 3 channels by 3 x 3, runs in NCHW directly
DEPTHWISE = (5.7e-12, 0.48e-12)  # s per output and per tap in PyTorch's own NCHW kernel on 132 SMs
DEPTHWISE_NHWC_BANDWIDTH = 0.36  # of copy bandwidth
BATCH_NORM_BANDWIDTH = {"NCHW": 0.31, "NHWC": 0.59}  # of the data sheet's, with running statistics
# cuDNN in training: forward reads x twice, backward x and the gradient; with the tensor in L2, and without.
TRAINING_BANDWIDTH = {"forward": (0.73, 0.37), "backward": (0.42, 0.25)}
CONVERSION = 2.5e-6  # s: converting a parameter vector
INVERSE_DEVIATION = 1.6e-6  # s
LAYER_NORM_START, LAYER_NORM_ROW = 2.3e-6, 1.05e-9  # s; a row of one block, on 132 SMs
CUDNN_ATTENTION_SHARE = {"full": 0.5, "causal": 0.3, "masked": 0.23}  # of the peak; masked FLOPs count too
FILL = 0.8e-6  # s of a cudaMemset
FILLS_OF_GROUPS = 3  # before a grouped cuDNN convolution
GATHER_BANDWIDTH = 0.70
BAG_BANDWIDTH = 0.325  # an embedding bag of 4 rows of 512 bytes, in DLRM
SUMS_BY_ATOMICS = frozenset("scatter_add scatter_add_ index_add index_add_".split())
POOLING_BANDWIDTH, POOLING_BACKWARD_BANDWIDTH = 0.4, 0.19
STEPS_AT_ONCE = 8  # of an LSTM or GRU whose inputs share one matmul: 128 steps launched 16
H100_SMS, H100_CLOCK = 132, 1.98e9  # the GPU of the times above
LAUNCHED = prediction.LAUNCH + prediction.FIRST_ACCESS  # s: a nearly empty kernel


@dataclass(frozen=True)
class LibraryKernel:
    """One kernel, copy or fill; time in seconds; copied: bytes that it copies in addition to the operator's own."""

    name: str
    time: float
    copied: int = 0


def library_kernels(
    launch: EagerLaunch,
    predicted: LaunchPrediction,
    device: Device,
    compiled: bool = False,
    cudnn: bool = True,
    mask: str = "",
) -> list[LibraryKernel]:
    """Return the kernels of one operator on `device`, in order; by default the predicted one.

    Args:
        launch: the operator and its tensors.
        predicted: its prediction by prediction.py, which includes the bytes that miss L2.
        compiled: as Inductor calls the library.
        cudnn: whether cuDNN's attention may be used where it is preferred.
        mask: how attention without a mask runs: "masked" as if it had one, "matmuls" as matmuls and a softmax.
    """
    name = launch.operator.overloadpacket.__name__
    make = _MAKERS.get(name) if cudnn or "attention" not in name else None
    if make is _attention:
        make = functools.partial(_attention, runs=mask)
    found = make(launch, predicted, device, compiled) if make else None
    return found or [LibraryKernel(predicted.name, predicted.time)]


def product_time(
    batch: int, rows: int, columns: int, inner: int, dtype: torch.dtype, device: Device, aligned: str = "yes"
) -> float:
    """Return the seconds for `batch` matmuls (rows, inner) @ (inner, columns), without memory time."""
    flops = 2.0 * batch * rows * columns * inner * (4 if dtype.is_complex else 1)
    if dtype in prediction.DOUBLES:
        return PRODUCT_START + flops / (prediction.MATRIX_SHARE * prediction.double_rate(device))
    tensor_cores = dtype == torch.float32 and "tf32" in device.peak_flops and prediction.takes_tf32(convolution=False)
    if dtype in (torch.float32, torch.complex64) and not tensor_cores:
        return PRODUCT_START + flops / (CORES_SHARE * device.peak_flops["fp32"])
    peak = _tensor_peak(dtype, device)
    if aligned != "yes":
        return PRODUCT_START + flops / (UNALIGNED_SHARE[aligned] * peak)
    return _tiles_time(batch, rows, columns, inner, peak, device)


def _tiles_time(batch: int, rows: int, columns: int, inner: int, peak: float, device: Device) -> float:
    """Return the seconds of the fastest tile shape and number of parts."""
    one_sm = prediction.MATRIX_SHARE * peak / device.sms
    return min(
        PRODUCT_START
        + math.ceil(batch * math.ceil(rows / high) * math.ceil(columns / wide) * parts / device.sms)
        * (2.0 * high * wide * inner / parts / one_sm + TILE_START)
        + (SPLIT_TIME if parts > 1 else 0.0)
        for shape in TILES
        for high, wide in {shape, shape[::-1]}
        for parts in SPLITS
        if parts == 1 or inner // parts >= 512
    )


def _tensor_peak(dtype: torch.dtype, device: Device) -> float:
    """Return FLOP/s; for fp32 the TF32 rate if the tensor cores support it, for 8 bits that of fp8."""
    if dtype.itemsize == 1 and "fp8" in device.peak_flops:
        return device.peak_flops["fp8"]
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "tf32")
    return device.peak_flops[name if name in device.peak_flops else "fp32"]


def _alignment(*sizes: int) -> str:
    """Return the alignment of rows that start at multiples of these numbers of 16-bit elements."""
    step = math.gcd(*sizes)
    return "yes" if step % 8 == 0 else "odd" if step % 2 else "even"


def _leading(tensor: torch.Tensor) -> int:
    """Return the stride in elements between a matrix's rows or columns; for a vector 8, which is aligned."""
    strides = [stride for size, stride in zip(tensor.shape[-2:], tensor.stride()[-2:], strict=True) if size > 1]
    return max(strides, default=8) if min(strides, default=1) <= 1 else 8


def as_an_h100(device: Device) -> float:
    """Return the slowdown of all its SMs together relative to an H100, for the same instructions."""
    return H100_SMS * H100_CLOCK / (device.sms * device.sm_clock)


def _memory(predicted: LaunchPrediction) -> float:
    return max(predicted.terms.get("DRAM", 0.0), predicted.terms.get("L2", 0.0))


def _product(launch, predicted, device, compiled):
    left, right = [each for each in launch.inputs if each.dim() >= 2][-2:]
    if left.dtype.itemsize < 2 or left.dim() != right.dim():
        return None
    batch = left.shape[0] if left.dim() == 3 else 1
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    aligned = "yes"
    if (
        left.dtype.itemsize == 2
        and min(rows, columns) > 1
        and not (compiled and _is_padded(rows, columns, inner, device))
    ):
        aligned = _alignment(_leading(left), _leading(right), columns)
    arithmetic = product_time(batch, rows, columns, inner, left.dtype, device, aligned)
    return [LibraryKernel(predicted.name, max(arithmetic, PRODUCT_START + _memory(predicted)))]


def _is_padded(rows: int, columns: int, inner: int, device: Device) -> bool:
    """Return whether Inductor pads a matmul to aligned rows: is_mm_compute_bound in its fx_passes/pad_mm.py."""
    intensity = rows * columns * inner / (rows * inner + inner * columns + rows * columns)
    return intensity > device.peak_flops["bf16"] / device.memory_bandwidth


def _bandwidth(device: Device) -> float:
    return prediction.BANDWIDTH_SHARE * device.memory_bandwidth


def _bytes_time(nbytes: float, device: Device, share: float = prediction.BANDWIDTH_SHARE) -> float:
    return LAUNCHED + nbytes / (share * device.memory_bandwidth)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def is_channels_first(x: torch.Tensor) -> bool:
    """Return whether it holds images, or sequences, in NCHW order, which cuDNN converts."""
    return x.dim() in (3, 4, 5) and x.shape[1] > 1 and x.stride(1) != 1


def _convolution(launch, predicted, device, compiled):
    given = launch.arguments
    x, weight, bias = given.get("input"), given.get("weight"), given.get("bias")
    if not isinstance(x, torch.Tensor) or x.dim() not in (3, 4, 5) or given.get("transposed"):
        return None
    result = launch.results[0]
    kernels = _convolved(x, weight, result, given.get("groups", 1), predicted, device, compiled)
    if isinstance(bias, torch.Tensor) and not compiled:
        pace = prediction.THROUGHPUTS["converting or broadcasting"].results * device.sms * device.sm_clock
        time = max(_bytes_time(2 * _size(result), device), LAUNCHED + result.numel() / pace)
        kernels.append(LibraryKernel("add the bias", time))
    return kernels


def _convolution_backward(launch, predicted, device, compiled):
    given = launch.arguments
    gradient, x, weight = given.get("grad_output"), given.get("input"), given.get("weight")
    if not isinstance(x, torch.Tensor) or x.dim() not in (3, 4, 5) or given.get("transposed"):
        return None
    of_x, of_weight, of_bias = given.get("output_mask", (True, True, False))
    kernels = _convolved(x, weight, gradient, given.get("groups", 1), predicted, device, compiled)
    kernels *= of_x + of_weight
    if of_bias and not compiled:
        kernels.append(LibraryKernel("sum of the bias's gradient", _bytes_time(_size(gradient), device)))
    return kernels


def _convolved(x, weight, result, groups, predicted, device, compiled) -> list[LibraryKernel]:
    """One of the three matmuls of a convolution, which all have the same dimensions in a different order."""
    outputs, channels, taps = weight.shape[0], weight.shape[1], math.prod(weight.shape[2:])
    positions = result.numel() // result.shape[1]
    first = is_channels_first(x) and not compiled
    name = predicted.name
    if channels == 1 and groups > 1:
        if first:
            each = (DEPTHWISE[0] + DEPTHWISE[1] * taps) * as_an_h100(device)
            return [LibraryKernel(name, LAUNCHED + result.numel() * each)]
        share = prediction.BANDWIDTH_SHARE * DEPTHWISE_NHWC_BANDWIDTH
        return [LibraryKernel(name, _bytes_time(_size(x) + _size(result), device, share))]
    flops = 2.0 * result.numel() * channels * taps
    # cuDNN's fp32 convolutions use TF32 by default.
    on_cores = x.dtype == torch.float32 and not prediction.takes_tf32(convolution=True)
    peak = CORES_SHARE * device.peak_flops["fp32"] if on_cores else _tensor_peak(x.dtype, device)
    area = math.prod(result.shape[2:])
    if first and taps == 1 and area == math.prod(x.shape[2:]) and x.dtype.itemsize == 2 and area % 2 == 0:
        # A matmul per image, whose rows are the pixels of a channel. No such kernel takes rows of odd length.
        time = product_time(x.shape[0], outputs, area, channels, x.dtype, device, _alignment(area))
        return [LibraryKernel(name, max(time, PRODUCT_START + _memory(predicted)))]
    if x.shape[1] < FEW_CHANNELS:
        time = PRODUCT_START + flops / (FEW_CHANNELS_SHARE * peak) + _memory(predicted)
    else:
        time = max(
            _tiles_time(groups, positions, outputs // groups, channels * taps, peak, device),
            PRODUCT_START + _memory(predicted),
        )
    kernel = LibraryKernel(name, time)
    on_tensor_cores, few = channels * taps >= TENSOR_CORE_STEP, x.shape[1] < FEW_CHANNELS
    filters = [weight] if taps > 1 and is_channels_first(weight) else []  # one tap is the same in both layouts
    if compiled:  # other inputs are written in NHWC by their producers; images have none
        before = [*filters, x] if few and is_channels_first(x) else filters
    else:
        before = [x, *filters] if first and on_tensor_cores else []
    kernels = [_converted("operand to NHWC", each, device) for each in before]
    if on_tensor_cores and few:
        padded = [_size(each) // each.shape[1] * FEW_CHANNELS for each in (x, weight)]
        kernels += [LibraryKernel("fill", FILL + each / _bandwidth(device)) for each in padded]
        if compiled or not first:  # otherwise the conversion pads
            kernels += [LibraryKernel("operand padded to 8 channels", _bytes_time(each, device)) for each in padded]
    elif on_tensor_cores and taps > 1:
        kernels += [LibraryKernel("fill", FILL)] * (1 if groups == 1 else FILLS_OF_GROUPS)
    kernels.append(kernel)
    if first and on_tensor_cores and is_channels_first(result):
        kernels.append(_converted("result to NCHW", result, device))
    return kernels


def _converted(name: str, tensor: torch.Tensor, device: Device) -> LibraryKernel:
    return LibraryKernel(name, _bytes_time(2 * _size(tensor), device), copied=_size(tensor))


def _batch_norm(launch, predicted, device, compiled):
    given = launch.arguments
    x = given.get("input")
    if not isinstance(x, torch.Tensor):
        return None
    if given.get("training", True):
        return [LibraryKernel(predicted.name, _statistics_time("forward", 3, x, device))]
    share = BATCH_NORM_BANDWIDTH["NCHW" if is_channels_first(x) else "NHWC"]
    kernels = [LibraryKernel("1 / sqrt(var + eps)", INVERSE_DEVIATION)]
    if x.dtype.itemsize == 2:
        kernels.insert(0, LibraryKernel("parameters to fp32", CONVERSION))
    moved = predicted.terms.get("DRAM", 0.0) * prediction.THROUGHPUTS["layer norm"].bandwidth / share
    return [*kernels, LibraryKernel(predicted.name, LAUNCHED + moved)]


def _batch_norm_backward(launch, predicted, device, compiled):
    x = launch.arguments.get("input")
    if not isinstance(x, torch.Tensor) or not launch.arguments.get("train", True):
        return None
    return [LibraryKernel(predicted.name, _statistics_time("backward", 5, x, device))]


def _statistics_time(way: str, passes: int, x: torch.Tensor, device: Device) -> float:
    held, streamed = TRAINING_BANDWIDTH[way]
    return _bytes_time(passes * _size(x), device, held if _size(x) < device.l2_cache else streamed)


def _layer_norm(launch, predicted, device, compiled):
    x = launch.inputs[0]
    rows = x.numel() // math.prod(launch.arguments["normalized_shape"])
    share = prediction.THROUGHPUTS["layer norm"].bandwidth / prediction.BANDWIDTH_SHARE
    time = LAYER_NORM_START + rows * LAYER_NORM_ROW * as_an_h100(device) + share * predicted.terms.get("DRAM", 0.0)
    kernels = [LibraryKernel(predicted.name, time)]
    if not x.is_contiguous():
        kernels.insert(0, LibraryKernel("copy to contiguous rows", _copy_time(x, device)))
    return kernels


def _copy_time(x: torch.Tensor, device: Device) -> float:
    slowest = x.numel() / (prediction.THROUGHPUTS["transposing"].results * device.sms * device.sm_clock)
    return LAUNCHED + max(2 * _size(x) / (prediction.BANDWIDTH_SHARE * device.memory_bandwidth), slowest)


def _attention(launch, predicted, device, compiled, runs=""):
    q, k = launch.inputs[:2]
    if runs == "matmuls":
        return _attention_by_matmuls(q, k, device)
    if device.compute_capability < (9, 0) or q.dtype.itemsize != 2 or q.dim() != 4:
        return None
    given = launch.arguments
    mask = next((given[name] for name in ("attn_bias", "attn_mask") if given.get(name) is not None), None)
    way = "masked" if runs or mask is not None else "causal" if given.get("is_causal") else "full"
    flops = 4.0 * q.numel() * k.shape[-2] / (2 if way == "causal" else 1)
    peak = _tensor_peak(q.dtype, device)
    time = max(flops / (CUDNN_ATTENTION_SHARE[way] * peak), _memory(predicted))
    return [
        LibraryKernel("fill", FILL),
        LibraryKernel("fill", FILL),
        LibraryKernel(predicted.name, PRODUCT_START + time),
    ]


def _attention_by_matmuls(q, k, device) -> list[LibraryKernel]:
    """Return attention as Inductor compiles its matmuls and softmax: in fp32, with converted operands and result."""
    heads, rows, columns, width = math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2], q.shape[-1]
    converted = LibraryKernel("operand to fp32", _bytes_time(q.numel() * (q.element_size() + 4), device))
    scores = LibraryKernel("softmax of the scores", _bytes_time(2 * 4 * heads * rows * columns, device))
    product = LibraryKernel("product in fp32", product_time(heads, rows, columns, width, torch.float32, device))
    return [converted] * 4 + [product, scores, product]


def _pooling(launch, predicted, device, compiled):
    x = launch.inputs[0]
    moved = _size(x) + sum(map(_size, launch.results))
    return [LibraryKernel(predicted.name, _bytes_time(moved, device, POOLING_BANDWIDTH))]


def _pooling_backward(launch, predicted, device, compiled):
    moved = sum(map(_size, launch.results)) + sum(_size(each) for each in launch.inputs if each.dim() == 4)
    return [LibraryKernel(predicted.name, _bytes_time(moved, device, POOLING_BACKWARD_BANDWIDTH))]


def _gather(launch, predicted, device, compiled):
    return [LibraryKernel(predicted.name, _bytes_time(2 * _size(launch.results[0]), device, GATHER_BANDWIDTH))]


def _bag(launch, predicted, device, compiled):
    rows = launch.arguments["indices"].numel() * launch.arguments["weight"][:1].nbytes
    return [LibraryKernel(predicted.name, _bytes_time(rows + _size(launch.results[0]), device, BAG_BANDWIDTH))]


def atomics_time(count: float, device: Device) -> float:
    """Return the seconds that so many sums by atomics take, in PyTorch's kernels and in torch.compile's."""
    return count / (prediction.ATOMICS * device.sms * device.sm_clock)


def _scatter(launch, predicted, device, compiled):
    source = launch.arguments.get("src", launch.arguments.get("source"))
    if not isinstance(source, torch.Tensor):
        return None
    atomics = atomics_time(source.numel(), device)
    return [LibraryKernel(predicted.name, LAUNCHED + max(_memory(predicted), atomics))]


def _recurrent(launch, predicted, device, compiled):
    given = launch.arguments
    x, hidden, weights = given["x"], given["hidden"][0], given["weights"]
    layers, width = hidden.shape[0], hidden.shape[-1]
    batch, steps = x.shape[:2] if given.get("batch_first") else x.shape[1::-1]
    gates = weights[0].shape[0]
    kernels = [LibraryKernel("steps before sequences", _copy_time(x, device))] * bool(given.get("batch_first"))
    if x.dtype not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES:  # otherwise nn.RNNBase keeps them in one buffer
        kernels.append(LibraryKernel("fill the weights' buffer", _bytes_time(sum(map(_size, weights)), device)))
        kernels += [LibraryKernel("weight to the buffer", _bytes_time(2 * _size(each), device)) for each in weights]
    matrices = [each for each in weights if each.dim() == 2]
    kernels += [LibraryKernel("weight to cuDNN's layout", _bytes_time(2 * _size(each), device)) for each in matrices]
    inputs = product_time(1, batch * STEPS_AT_ONCE, gates, max(x.shape[-1], width), x.dtype, device)
    product = product_time(1, batch, gates, width, x.dtype, device)
    step = [LibraryKernel("product of a step", product), LibraryKernel("gates of a step", LAUNCHED)]
    of_inputs = math.ceil(steps / STEPS_AT_ONCE) * [LibraryKernel("product of the inputs of some steps", inputs)]
    return kernels + layers * [*of_inputs, *steps * step]


_MAKERS = {
    **dict.fromkeys("mm addmm bmm baddbmm _addmm_activation".split(), _product),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm": _layer_norm,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "max_pool2d_with_indices": _pooling,
    "max_pool2d_with_indices_backward": _pooling_backward,
    **dict.fromkeys(("index_select", "embedding"), _gather),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bag),
    **dict.fromkeys(SUMS_BY_ATOMICS, _scatter),
    "cudnn_rnn": _recurrent,
}
