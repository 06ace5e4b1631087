"""The cost of well-known operations, launch by launch: FLOPs and bytes, unfused and fused.

Each operation takes `rows`, `columns` and the bytes of one element, and returns `Versions(unfused, fused)`. Every
launch reads each of its inputs once and writes each of its outputs once, as eager PyTorch does it; intermediates have
the inputs' dtype. Below, R = rows, C = columns and N = R*C. kernels/costs.py defines what counts as a FLOP, and how
many an operation takes.

FLOPs count the work, not the units that do it. An exponential is one FLOP on a special function unit, but an SM has
only an eighth to a quarter as many of these as fp32 units. So a launch also lists its special function results, and
the FLOPs that a matmul's epilogue takes on CUDA cores.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from helpers.instruments.devices import Device
from helpers.instruments.roofline import SPECIAL, Roofline, Work
from kernels import costs

ITEMSIZE = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}  # bytes; tf32 is a way to multiply fp32 values

HEAD = 64  # columns of one attention head

# Results of special function units per element. tanh(x) = 1 - 2 / (exp(2x) + 1), as in PyTorch and the course's
# kernels; dividing a row by one value takes one reciprocal per row, which is not counted.
TANH_RESULTS = 2
EXP_RESULTS = 1


@dataclass(frozen=True)
class Launch:
    """One kernel launch, and the units that do its arithmetic.

    work: FLOPs as usually counted, and bytes.
    product: the matmul FLOPs in `work`.
    fp32: FLOPs on CUDA cores; for attention also its softmax, which `work` by convention omits.
    special: results of special function units, each also counted as one FLOP of `fp32`.
    """

    name: str
    work: Work
    product: int = 0
    fp32: int = 0
    special: int = 0

    @property
    def tensor_cores(self) -> bool:
        return self.product > 0

    def times(self, device: Device, dtype: str) -> dict[str, float]:
        """Return minimum seconds for "memory" and for each unit; they work at the same time.

        Raises:
            ValueError: the device has no peak for dtype, or none for fp32.
        """
        vector, tensor = Roofline(device, "fp32"), Roofline(device, dtype)
        on_tensor_cores, on_cuda_cores = (0, self.product) if dtype == "fp32" else (self.product, 0)
        found = {
            "memory": self.work.bytes / tensor.bandwidth,
            "tensor cores": on_tensor_cores / tensor.peak,
            "CUDA cores": (on_cuda_cores + self.fp32) / vector.peak,
        }
        if device.special_rate:
            found[SPECIAL] = self.special / device.special_rate
        return found


@dataclass(frozen=True)
class Versions:
    """The launches of an operation, unfused and fused."""

    unfused: tuple[Launch, ...]
    fused: tuple[Launch, ...]


@dataclass(frozen=True)
class Cost:
    """The best case on a device: `time` in seconds; `unit`, the limit of the launches that take most of it."""

    launches: int
    work: Work
    time: float
    unit: str  # "memory", "tensor cores", "CUDA cores" or "special functions"

    @property
    def bound(self) -> str:
        """ "memory" or "compute"."""
        return "memory" if self.unit == "memory" else "compute"

    @property
    def performance(self) -> float:
        """FLOP/s over all launches; 0 if they take no time."""
        return self.work.flops / self.time if self.time else 0.0


def cost(launches: tuple[Launch, ...], device: Device, dtype: str) -> Cost:
    """Return the roofline's minimum time for launches one after another, without launch overhead.

    The slowest of memory and the units sets each launch's time and hides the others' work. fp32's peak assumes
    multiply-adds: other arithmetic takes up to twice as long as counted here.

    Raises:
        ValueError: no launch, or the device has no peak for dtype, or none for fp32.
    """
    if not launches:
        raise ValueError("cost takes at least one launch, got none")
    total, time = Work(0, 0, 0), Counter()
    for launch in launches:
        total += launch.work
        times = launch.times(device, dtype)
        slowest = max(times, key=times.get)
        time[slowest] += times[slowest]
    return Cost(len(launches), total, time.total(), max(time, key=time.get))


def _launch(name, itemsize, flops, reads, writes, special=0) -> Launch:
    """Return a launch without a matmul that reads and writes that many elements."""
    return Launch(name, Work(flops, reads * itemsize, writes * itemsize), fp32=flops, special=special)


def _product(name, itemsize, product, reads, writes, epilogue=0) -> Launch:
    """Return a matmul of that many FLOPs, plus those of its epilogue."""
    return Launch(name, Work(product + epilogue, reads * itemsize, writes * itemsize), product, fp32=epilogue)


def relu(rows: int, columns: int, itemsize: int) -> Versions:
    """max(x, 0): N FLOPs, x in, y out. One launch: nothing to fuse."""
    n = rows * columns
    only = (_launch("max(x, 0)", itemsize, n, n, n),)
    return Versions(only, only)


def vector_add(rows: int, columns: int, itemsize: int) -> Versions:
    """a + b: N FLOPs, two tensors in, one out. One launch: nothing to fuse."""
    n = rows * columns
    only = (_launch("a + b", itemsize, n, 2 * n, n),)
    return Versions(only, only)


def gelu(rows: int, columns: int, itemsize: int) -> Versions:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) unfused in eight launches: 9 FLOPs per element.

    Unfused, 10 N elements read and 8 N written; fused, N and N.
    """
    n = rows * columns
    unfused = (
        _launch("x^3", itemsize, 2 * n, n, n),
        _launch("0.044715 *", itemsize, n, n, n),
        _launch("x +", itemsize, n, 2 * n, n),
        _launch("sqrt(2/pi) *", itemsize, n, n, n),
        _launch("tanh", itemsize, n, n, n, TANH_RESULTS * n),
        _launch("1 +", itemsize, n, n, n),
        _launch("0.5 x", itemsize, n, n, n),
        _launch("product", itemsize, n, 2 * n, n),
    )
    return Versions(unfused, (_launch("gelu", itemsize, costs.GELU_TANH * n, n, n, TANH_RESULTS * n),))


def add_gelu(rows: int, columns: int, itemsize: int) -> Versions:
    """gelu(a + b), tanh form, with a library's GELU: the sum is written and read back between the two launches.

    10 FLOPs per element; unfused, 3 N elements read and 2 N written; fused, 2 N and N.
    """
    n = rows * columns
    special = TANH_RESULTS * n
    unfused = (
        _launch("a + b", itemsize, n, 2 * n, n),
        _launch("gelu", itemsize, costs.GELU_TANH * n, n, n, special),
    )
    return Versions(unfused, (_launch("gelu(a + b)", itemsize, (1 + costs.GELU_TANH) * n, 2 * n, n, special),))


def layer_norm(rows: int, columns: int, itemsize: int) -> Versions:
    """(x - mean) * rsqrt(var + eps) * w + b over each row, unfused in nine launches: 7 N FLOPs.

    Two of the launches compute one value per row. Fused: x, w and b in, y out.
    """
    n, r, c = rows * columns, rows, columns
    unfused = (
        _launch("mean", itemsize, n, n, r),
        _launch("x - mean", itemsize, n, n + r, n),
        _launch("square", itemsize, n, n, n),
        _launch("variance", itemsize, n, n, r),
        _launch("+ eps", itemsize, 0, r, r),
        _launch("rsqrt", itemsize, 0, r, r),
        _launch("* rsqrt", itemsize, n, n + r, n),
        _launch("* w", itemsize, n, n + c, n),
        _launch("+ b", itemsize, n, n + c, n),
    )
    return Versions(unfused, (_launch("layer_norm", itemsize, costs.LAYER_NORM * n, n + 2 * c, n),))


def softmax(rows: int, columns: int, itemsize: int) -> Versions:
    """exp(x - max) / sum over each row, unfused in five launches: 5 N FLOPs. Fused: x in, y out."""
    n, r = rows * columns, rows
    unfused = (
        _launch("max", itemsize, n, n, r),
        _launch("x - max", itemsize, n, n + r, n),
        _launch("exp", itemsize, n, n, n, EXP_RESULTS * n),
        _launch("sum", itemsize, n, n, r),
        _launch("/ sum", itemsize, n, n + r, n),
    )
    return Versions(unfused, (_launch("softmax", itemsize, costs.SOFTMAX * n, n, n, EXP_RESULTS * n),))


def linear_relu(rows: int, columns: int, itemsize: int) -> Versions:
    """max(x @ w + b, 0) with x (R, C), w (C, C), b (C): 2 N C FLOPs on tensor cores, 2 N in the epilogue.

    Unfused, the product makes two round trips to memory. Fused: x, w and b in, y out.
    """
    n, c = rows * columns, columns
    product = costs.product(rows, columns, columns)
    unfused = (
        _product("x @ w", itemsize, product, n + c * c, n),
        _launch("+ b", itemsize, n, n + c, n),
        _launch("max(., 0)", itemsize, costs.RELU * n, n, n),
    )
    fused = (_product("linear_relu", itemsize, product, n + c * c + c, n, (1 + costs.RELU) * n),)
    return Versions(unfused, fused)


def conv_bn_relu(rows: int, columns: int, itemsize: int) -> Versions:
    """A 3x3 convolution of R pixels with C channels in and out, batch norm, ReLU.

    18 N C FLOPs in the convolution; batch norm in inference subtracts, scales twice and adds (4 N) and reads four
    vectors of C. Fused, they become one scale and one shift per channel: 2 N, and ReLU's N.
    """
    n, c = rows * columns, columns
    product = costs.product(rows, 9 * columns, columns)
    unfused = (
        _product("conv", itemsize, product, n + 9 * c * c, n),
        _launch("batch norm", itemsize, costs.BATCH_NORM * n, n + 4 * c, n),
        _launch("max(., 0)", itemsize, costs.RELU * n, n, n),
    )
    epilogue = (costs.FOLDED_BATCH_NORM + costs.RELU) * n
    fused = (_product("conv_bn_relu", itemsize, product, n + 9 * c * c + 4 * c, n, epilogue),)
    return Versions(unfused, fused)


def attention(rows: int, columns: int, itemsize: int) -> Versions:
    """softmax(q k^T / 8) v over R tokens; q, k, v (R, C) in heads of 64 columns (the last head takes the remainder).

    Each of the two matmuls is 2 R N FLOPs. Unfused, the S = heads * R * R scores are written by the first matmul,
    scaled, softmaxed (5 FLOPs each) and read by the second. Fused (FlashAttention), they never leave the chip, and
    their arithmetic there is not counted.
    """
    return _attention(rows, rows * columns, math.ceil(columns / HEAD) * rows**2, itemsize, causal=False)


def attention_of_heads(tokens: int, heads: int, dim: int, itemsize: int, causal: bool = False) -> Versions:
    """Return attention's cost for that many heads of `dim` columns. If causal, another launch masks the scores; the
    fused kernel doesn't compute masked scores.

    Raises:
        ValueError: fewer than one token, head or column.
    """
    if min(tokens, heads, dim) < 1:
        raise ValueError(f"attention takes at least 1 token, head and column, got {tokens}, {heads} and {dim}")
    return _attention(tokens, heads * tokens * dim, heads * tokens**2, itemsize, causal)


def _attention(tokens: int, n: int, scores: int, itemsize: int, causal: bool) -> Versions:
    """`n`: elements of q over all heads."""
    product = 2 * tokens * n

    def seen(count: int) -> int:
        return count * (tokens + 1) // (2 * tokens) if causal else count

    unfused = [
        _product("q k^T", itemsize, product, 2 * n, scores),
        _launch("scale", itemsize, scores, scores, scores),
        _launch("mask", itemsize, scores, scores, scores),
        _launch("softmax", itemsize, costs.SOFTMAX * scores, scores, scores, EXP_RESULTS * scores),
        _product("p v", itemsize, product, scores + n, n),
    ]
    fused = Launch(
        "flash attention",
        Work(seen(2 * product), 3 * n * itemsize, n * itemsize),
        product=seen(2 * product),
        fp32=seen((1 + costs.SOFTMAX) * scores),
        special=seen(EXP_RESULTS * scores),
    )
    return Versions(tuple(launch for launch in unfused if causal or launch.name != "mask"), (fused,))


OPERATIONS: dict[str, Callable[[int, int, int], Versions]] = {
    "ReLU": relu,
    "vector add": vector_add,
    "GELU": gelu,
    "add+GELU": add_gelu,
    "LayerNorm": layer_norm,
    "softmax": softmax,
    "matmul+bias+ReLU": linear_relu,
    "conv+BN+ReLU": conv_bn_relu,
    "attention": attention,
}
