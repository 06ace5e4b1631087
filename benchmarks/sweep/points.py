"""The sweep's points: row-wise kernels at up to forty widths, elementwise ones at indivisible sizes.

The table of benchmarks/run.py shows sizes that kernels are tuned for. Between them a kernel may be slow: a width that
is not a power of two leaves lanes idle, and an odd one loses the alignment that wide loads need. So the widths here are
those of models in use, multiples of 8 and 64, odd numbers and primes, and powers of two for comparison. Only kernels
whose rows may be a vocabulary are timed beyond WIDEST_HIDDEN columns, because no hidden size is that wide. The parts of
a decode step (SERVING) have their own sizes: tokens, sequences and caches of models in use.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import merge
from itertools import zip_longest

import torch

from benchmarks.calls import calls_of, plain
from benchmarks.peers import offered
from kernels import CATALOGUE
from kernels.op import Work


@dataclass(frozen=True)
class Point:
    """One measurement: a kernel of the catalogue, its direction, its size.

    Args:
        kernel: its name in CATALOGUE.
        direction: "forward" or "backward".
        shape: as the catalogue's `inputs` and `work` take it.
        dtype: "bf16" or "fp32".
        regime: the figure panel that shows the point, such as "256 MB".
        call: whether to also time calls by the host's clock.
    """

    kernel: str
    direction: str
    shape: tuple[int, ...]
    dtype: str
    regime: str
    call: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

# The most informative first: sizes that no kernel is tuned for, then the rest and the powers of two.
WIDTHS = (
    *(10000, 5120, 50257, 4099, 12288, 1000, 127, 128256, 1024, 4096, 8192, 16384, 1025, 32000, 65536, 512, 131072),
    *(151936, 768, 2560, 14336, 50264, 32768, 7168, 2047, 18432, 50304, 256, 28672, 1536, 262144, 3584, 13824, 12289),
    *(152064, 100003, 2048, 515, 128, 64),
)
FP32_WIDTHS = (4096, 10000, 4099, 50257)
FP32_KERNELS = ("rms_norm", "layer_norm", "softmax", "cross_entropy")
WIDEST_HIDDEN = 32768
VOCABULARY_KERNELS = ("cross_entropy", "softmax", "softmax_dropout", "softmax_topk")
LARGE, FEW = "256 MB", "2048 rows"
CALL_WIDTHS = (1000, 4096)
SIZES = (1_000_003, 10_000_019, 100_000_007, 65_537, 4_099)
SIZES_OF_ROWS = ((1021, 4099), (16381, 5120), (2039, 50257), (4093, 12289), (257, 1000))

# Kernels of a decode step: regime -> shapes, as the catalogue's `inputs` take them.
SERVING = {
    "rope_cache": {
        "tokens": tuple((tokens, 32, 8, 128) for tokens in (64, 1, 4096, 8, 512, 1000, 16384)),
        "heads": ((64, 64, 8, 128), (64, 16, 8, 128), (64, 32, 32, 128), (4096, 64, 8, 128), (64, 32, 8, 64)),
    },
    "decoder_layer": {
        "layers": (
            (1024, 16, 8, 3072, 512),
            (4096, 32, 8, 14336, 1024),
            (2048, 32, 8, 8192, 1024),
            (3072, 24, 8, 8192, 1024),
            (1024, 16, 8, 3072, 8192),
            (4096, 32, 8, 14336, 8192),
        )
    },
    "sample": {
        f"{rows} rows": tuple((rows, width) for width in (131072, 128256, 32000, 151936, 50257)) for rows in (1, 64, 16)
    },
    "paged_attention": {
        "decode": (
            (1, 32, 8, 1, 65536, 128),
            (8, 32, 8, 1, 8192, 128),
            (64, 32, 8, 1, 2048, 128),
            (1, 32, 8, 1, 8192, 128),
            (1, 32, 32, 1, 65536, 128),
            (128, 32, 8, 1, 4096, 128),
        )
    },
}


def rows_for(regime: str, width: int, dtype: torch.dtype) -> int:
    """Return the number of rows of `width` elements: 2048, or enough for 256 MB."""
    return 2048 if regime == FEW else max(1, round(2**28 / (width * dtype.itemsize)))


def _directions(name: str) -> tuple[str, ...]:
    return ("forward",) if CATALOGUE[name].backward_work is None else ("forward", "backward")


def _row_wise() -> list[Point]:
    kernels = [name for name, op in CATALOGUE.items() if op.group == "rowwise" and name not in SERVING]
    kernels.sort(key=lambda name: (name not in FP32_KERNELS, name))
    return [
        Point(name, direction, (rows_for(regime, width, DTYPES[dtype]), width), dtype, regime, call)
        for width in WIDTHS
        for dtype in ("bf16", "fp32")
        for regime in (LARGE, FEW)
        for name in kernels
        for direction in _directions(name)
        for call in [regime == FEW and width in CALL_WIDTHS and dtype == "bf16"]
        if width <= WIDEST_HIDDEN or name in VOCABULARY_KERNELS
        if dtype == "bf16" or (regime == LARGE and width in FP32_WIDTHS and name in FP32_KERNELS)
    ]


def _elementwise() -> list[Point]:
    return [
        Point(name, direction, size, "bf16", "elements")
        for row in range(len(SIZES))
        for name, op in CATALOGUE.items()
        if op.group == "elementwise" and name not in SERVING
        for direction in _directions(name)
        for size in [SIZES_OF_ROWS[row] if name == "bias_dropout_residual" else (SIZES[row],)]
    ]


def _serving() -> list[Point]:
    panels = [
        [Point(name, "forward", shape, "bf16", regime) for shape in shapes]
        for name, regimes in SERVING.items()
        for regime, shapes in regimes.items()
    ]
    return [point for turn in zip_longest(*panels) for point in turn if point is not None]


def interleaved(*lists: list[Point]) -> list[Point]:
    """Interleave the lists, each in its own order, so that a run that stops early has some of each."""
    ranked = ([((i + 0.5) / len(each), n, i) for i in range(len(each))] for n, each in enumerate(lists))
    return [lists[n][i] for _, n, i in merge(*ranked)]


POINTS = interleaved(_row_wise(), _elementwise(), _serving())


def build(point: Point, device: str, only: Collection[str] = ()) -> tuple[dict[str, Callable[[], object]], Work]:
    """Return provider -> a call of no argument to time, its inputs made and, for a backward pass, its forward done;
    and its work. A provider that rejects the point raises when it is called.

    On the device "cpu": "fused", "plain" and "eager". With `only`, the providers named.
    """
    op = CATALOGUE[point.kernel]
    inputs = op.inputs(*point.shape, dtype=point.torch_dtype, device=device)
    functions = {"fused": op.fused, "plain": plain(op.fused), "eager": op.reference}
    if device != "cpu":
        functions["torch.compile"] = torch.compile(op.reference, dynamic=False)
        functions |= offered(op.name, inputs)
    backward = point.direction == "backward"
    work = (op.backward_work if backward else op.work)(point.shape, point.torch_dtype)
    return calls_of(chosen(functions, only), inputs, backward), work


def chosen(functions: dict[str, Callable], only: Collection[str]) -> dict[str, Callable]:
    """Return the providers named in `only`, or all of them if it is empty."""
    return {name: function for name, function in functions.items() if not only or name in only}
