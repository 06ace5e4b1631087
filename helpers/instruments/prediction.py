"""Predict the time of a call on a GPU, present or not, term by term.

    predict(add_gelu, a, b, device="H200")

`fn` is rehearsed (dry_run.py): its launches are known, with the bytes of each, at any size, without data. Every
launch then takes

    launch       from the end of the launch before to the first instruction
    ramp         until an SM has its first blocks and their code, and the first bytes arrive: nothing hides these
    DRAM         bytes that L2 does not have / achievable bandwidth
    L2           bytes that the SMs ask for, spills among them / L2's bandwidth, of the SMs that have a block; longer
                 where threads access 4 bytes or less
    arithmetic   the busiest SM's instructions / its pipelines' rates; for matrix products of PyTorch, FLOPs / peak
    latency      waves of blocks x the time of a block that has the SM to itself: its first bytes, its instructions,
                 which wait for one another, a load in each turn of its loops, and its bytes from L2
    dispatch     blocks / those that the GPU starts per clock
    atomics      elements / those that the GPU adds per clock, at many addresses

For a Triton kernel, the blocks that fit an SM are the customers of a closed network of queues: each needs L2 and the
pipelines, which serve one block at a time, and otherwise waits for its own instructions and first bytes. Mean value
analysis gives the rate of such blocks: with many on an SM, that of the busier of the two; with one or two, both are
idle part of the time. A first wave's blocks are in step and hide less of each other. DRAM, which all SMs share, works
at the same time:

    time = launch + ramp + the largest of (DRAM^9 + blocks^9)^(1/9), dispatch, atomics

For PyTorch's kernels, time = launch + ramp + the largest of the others.

DRAM is faster at reading alone, and at writing alone, than at a copy, because turning its bus around takes time.

A Triton kernel with `tl.dot` that was compiled to asynchronous loads fetches ahead, so that the two smaller of DRAM, L2
and `matrix` are hidden: the FLOPs of the products that the busiest SM does / what a product reaches. Its other
arithmetic (exponentials at the special-function units' rate, the rest at that of fp32) is hidden only in part. Where
few tiles fit an SM, one tile after another takes longer than that: the instructions of its loops, its products and,
unless the copy engine fetches them, its operands wait for one another:

    latency = waves x (the longest of the three + half of the others, of one tile by itself) + (waves - 1) x ramp
              + the bytes of DRAM moved before and after the loops, where no other block on the SM hides them
    time = launch + ramp + the larger of latency and (the largest of DRAM, L2, matrix + 0.45 x arithmetic)

In attention a product waits for the exponentials of the one before: all of the others count, not half. A persistent
program stores in its loop, and has nothing before and after it.

For other Triton kernels the instructions are those of the SASS compiled for the device, with loops weighted by how
many times the dry run executed their loads. PyTorch's kernels use a table of measured throughput.

L2 starts cold, as timing.py measures. A later launch finds in L2 what the ones before left there: bytes whose
reuse distance (bytes moved since) is below a quarter of L2 all hit, and none beyond five quarters (three for bytes
that were only read, which both halves of the L2 keep); between, linearly.

The constants were measured on an H200 by `python benchmarks/validate.py constants`. Those without a kernel of their
own were fitted to times of the catalogue's kernels: CYCLES, EXTRA_CYCLES, ROUND, COLD_CODE, DISPATCH, PIPES, ALIGNED,
BUNCHED, OVERLAP, NARROW_L2, HINTED and BEYOND_L1 to half of the points of an H100's sweep, and with less weight to the
H200's times of benchmarks/validate.py; TILE_CYCLES and TILE_EXTRA_CYCLES to the latter; the 0.45 to flash attention's;
SERIAL to 14 linear layers of the sweep by the plain kernel.
Other devices are taken to reach the same share of their bandwidth and the same rate per SM and clock.
`python benchmarks/predictions.py` prints how far the predictions are from the recorded times, and lists
separately those that nothing was fitted to.

`unsure` names what may be off by more than a fifth, with the reason and a bound. At randomly drawn shapes, the 88 times
of row and elementwise kernels taken on 2026-11-28 are off by 6 % in the median, 19 % at the 90th percentile and 28 % at
worst. The 36 without a reason to be unsure are off by 3, 13 and 19 %, the 52 with one by 10, 22 and 28 %: rows whose
size isn't a multiple of 16 bytes, and fewer programs than SMs. Tiled kernels, always unsure, are off by 16 % in the
median, 43 % at the 90th percentile, and 56 % at worst, in a convolution whose tile is twice as wide as its output; two
more of the 32 times are of attention in Gluon, which a dry run can't interpret. PyTorch's own norms, softmax and top-k
have one throughput for all row lengths, and take 0.5x to 4x the predicted time; its other kernels are 15 % off in the
median, 36 % at worst. No constant was fitted to these random shapes, and the network of queues was chosen by the fitted
half of the sweep alone. The reasons, and the tiles' latency without the last two lines of its formula, were chosen
after looking at an earlier record of the same shapes; those two lines after looking at the sweep's convolutions and
attention alone. The bounds are the worst found there and in a sample of the sweep.
"""

import math
import re
from collections import ChainMap, Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import flop_registry, shape_wrapper

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch, dry_run, holds_integers
from helpers.instruments.occupancy_calculator import WARP, limits
from helpers.instruments.resources import Resources, compile_for
from helpers.instruments.sass import TENSOR_CORE, Instruction, disassemble

LAUNCH = 1.0e-6  # s: an empty kernel in a row of launches
FIRST_ACCESS = 0.6e-6  # s: a copy of 64 KB, less an empty kernel and its own instructions
FIRST_ACCESS_L2 = 0.2e-6  # s: the same for a copy of the copy
BANDWIDTH_SHARE = 0.88  # of the datasheet's: a copy of 1 GB
L2_BYTES = 39  # per clock and SM: a copy of 8 MB that are in L2
MATRIX_SHARE = 0.81  # of the datasheet's peak: a bf16 product of 8192^3 (benchmarks/run.py)
ATTENTION_SHARE = 0.34  # of the peak: PyTorch's FlashAttention-2, bf16, 4 x 16 x 4096 x 128 (benchmarks/peers)
HITS_FROM = 0.25  # of L2's size: with a shorter reuse distance, all bytes hit
HITS_TO = {"written": 1.25, "read": 0.75}  # with a longer one, none does

# Latency of one warp's instructions, in cycles: on average, and the extra cycles of a reduction step across lanes or
# warps.
CYCLES = 2.5
EXTRA_CYCLES = {"SHFL": 3, "REDUX": 3, "BAR": 30, "LDS": 20}
ROUND = 0.25e-6  # s until a load in a loop arrives, after the first
REDUCTION_ROUND = 0.45e-6  # s: the same in PyTorch's reduction
COLD_CODE = 0.35e-6  # s until a block's first instructions arrive from beyond a cold L2
DISPATCH = 0.045e-6  # s from one block to the next that an SM starts
DISPATCHED = 0.835  # blocks that the GPU starts per clock: 1,048,576 of one warp took 635 us on an H100
PIPES = 3  # exponent that adds up a warp's cycles on its pipelines: instructions for one seldom leave another idle
ALIGNED = 0.6  # of a first wave's need for the less busy parts of an SM isn't hidden: its blocks are in step
BUNCHED = 0.33  # of a block that is being served, a block that arrives waits for, beyond the average of random arrivals
OVERLAP = 9  # exponent that adds up the times of DRAM and of an SM: if both are equal, 8 % longer than either
NARROW_L2 = 1.7  # longer at L2, by this factor, where threads access 4 bytes or less
TILE_CYCLES = 2.6  # CYCLES and EXTRA_CYCLES in the loops of kernels that fetch ahead, where other warps hide more
TILE_EXTRA_CYCLES = {"SHFL": 14, "BAR": 5, "LDS": 16}
# Bandwidth relative to a copy's, which pauses to turn the DRAM's bus around: all reads, and all writes. Source: the
# ceilings in benchmarks/results of an H100 and an H200, which agree within 1 %.
ONE_WAY = {"read": 1.028, "written": 1.09}
# The same two where the first read asks to be kept (evict_last) and stores ask not to be (evict_first), for all bytes
# that are read again.
HINTED = 0.7, 1.1
BEYOND_L1 = 1.4  # times L1: if an SM's programs read more than this again, nothing hits there

# Cycles of a warp's instruction on its pipeline, 32 / (results per clock and sub-partition). Source: throughput table
# of the CUDA C++ Programming Guide, compute capability 8.0 and 9.0; opcodes: CUDA Binary Utilities.
PIPELINES = {
    "integer and compare": (
        2,
        "LOP3 PLOP3 IADD3 IADD IABS ISETP FSETP FMNMX IMNMX VIMNMX SEL FSEL SHF SHL SHR PRMT LEA POPC F2FP HSETP2 "
        "HMNMX2 FMNMX3 VIADD VIADDMNMX BMSK SGXT I2FP P2R R2P",
    ),
    "integer multiply": (2, "IMAD"),
    "special functions": (8, "MUFU F2F F2I I2F FRND"),
    "load and store": (4, "LDG STG LDS STS SHFL REDUX LDL STL LDGSTS LDSM STSM ATOMG ATOMS RED"),
}
UPPER_HALF = 4  # cycles of IMAD.HI, the upper half of a product: twice those of the lower, as in Philox
_PIPELINE = {opcode: (name, cycles) for name, (cycles, opcodes) in PIPELINES.items() for opcode in opcodes.split()}
# Operands' dtype -> that of the peak. The devices have no int8 peak.
PRODUCTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32", "int8": "fp16"}
NO_RATE = "tl.dot of {}: no peak of {} for it is known; counted at {}, so the time of its matmuls is uncertain"
DOUBLES = (torch.float64, torch.complex128)
BESIDE_PRODUCTS = 0.45  # of a tiled kernel's other arithmetic is not hidden by its matmuls
CLOSE, FEW_BLOCKS = 0.8, 4  # the second largest term of the largest; blocks that fit an SM
NARROW = 8  # loads and stores in the code, below which their width says little
# Why a prediction may be off by more than a fifth. Where none of these holds, nine in ten are 13 % off or less.
UNSURE = {
    "waits": "programs wait for each other at counters, which has no price: it may take up to 2.5x the predicted time",
    "atomics": "atomics to many addresses are assumed: to one address they run one after another, and it may take 100x "
    "the predicted time",
    "narrow": "most loads and stores take 4 bytes per thread or less, as in rows whose size isn't a multiple of 16 "
    "bytes: it may take 0.6x to 3x the predicted time",
    "few": "fewer programs than SMs: the time is one program's chain of dependent instructions; it may take up to 1.6x "
    "the predicted time",
    "close": "two resources take about equally long, and few programs fit an SM: they may overlap less, and it may "
    "take up to 1.7x the predicted time",
    "tiles": "a tiled kernel: how far its copies, matmuls and other instructions overlap is not certain, and it may "
    "take up to 2.3x the predicted time",
    "matmul": "a matmul without asynchronous copies: it may take up to 2.7x the predicted time",
}
UNKNOWN = (
    "{} reads {}, whose values are unknown and taken to be 0: as lengths, positions or masks they decide the time, "
    "which may be far longer: pass a CPU tensor that holds them"
)
EXPONENTIALS = "MUFU.EX2", "MUFU.TANH"
STORES = "STG", "UTMASTG"
STAGES = 3  # of a loop's loads, Triton's default
ATOMICS = 0.8  # per clock and SM: sums of fp32 at random addresses, by PyTorch's kernels and torch.compile's
FEW_ATOMICS = 8  # per program: locks and counters
SERIAL = 0.5  # of the shorter parts of a tile's time, alone on its SM, the longest does not hide
SUB_PARTITIONS = 4  # of an SM, each issuing one instruction per clock


@dataclass(frozen=True)
class Throughput:
    """The throughput that PyTorch's kernels of one kind reach.

    latency: s, beyond the first access, of a launch with little to do.
    by_column: s for each column of a row, which one block works off; hidden where there are rows enough.
    bandwidth: share of the device's; results: at most, a clock and SM.
    """

    latency: float = 0.0
    by_column: float = 0.0
    bandwidth: float = BANDWIDTH_SHARE
    results: float = math.inf


THROUGHPUTS = {
    "elementwise": Throughput(),
    "fill": Throughput(),
    # Several dtypes or shapes: an element at a time, with its offsets computed.
    "converting or broadcasting": Throughput(results=1.42),
    "transposing": Throughput(results=0.55),
    "gelu": Throughput(results=2.9),
    "random": Throughput(latency=2.3e-6, results=2.28),
    "reduction": Throughput(bandwidth=0.8, results=5.1),  # latency: _reduction_rounds
    "layer norm": Throughput(latency=0.8e-6, by_column=1.8e-9, bandwidth=0.52),
    "RMS norm": Throughput(latency=0.4e-6, by_column=1.4e-9, bandwidth=0.62),
    # One number for several kernels, which reach, in bf16 on an H100, 0.7 of the bandwidth with 256 to 1,024 columns (a
    # warp per row), 0.5 with 2,048, 0.3 to 0.4 with 2,560 to 8,192, 0.6 with 16,384, and 0.45 from 65,536 (read again).
    "softmax": Throughput(latency=1.9e-6, by_column=0.17e-9, bandwidth=0.45),
    "top-k": Throughput(latency=40e-6, bandwidth=0.045),
    "matrix product": Throughput(),
}
KINDS = {
    "fill": "fill_ zero_ full full_like zeros ones",
    "gelu": "gelu gelu_backward erf",
    "random": "rand randn rand_like randn_like bernoulli bernoulli_ native_dropout uniform_ normal_ random_",
    "reduction": "sum mean amax amin max min prod var std var_mean argmax argmin any all norm linalg_vector_norm "
    "logsumexp",
    "layer norm": "native_layer_norm native_group_norm native_batch_norm",
    "RMS norm": "_fused_rms_norm",
    "softmax": "_softmax _log_softmax",
    "top-k": "topk sort",
}
_KIND = {name: kind for kind, names in KINDS.items() for name in names.split()}
_COPIES = frozenset("copy_ _to_copy clone".split())
# Kernels that move elements, or add up a few, at the pace of an elementwise one.
MOVES = frozenset(
    "cat stack embedding index index_select gather take roll flip arange linspace constant_pad_nd tril triu repeat "
    "native_batch_norm_elemt scalar_tensor nll_loss_forward nll_loss_backward _softmax_backward_data mse_loss "
    "_log_softmax_backward_data native_layer_norm_backward _fused_rms_norm_backward max_pool2d_with_indices avg_pool2d "
    "_adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d as_strided_copy diagonal_copy new_zeros eye "
    "embedding_dense_backward slice_backward select_backward masked_fill_ _local_scalar_dense equal".split()
)
# Elementwise, with far more arithmetic per element than its memory traffic hides.
_SERIES = re.compile(r"(special_|lgamma|mvlgamma|digamma|polygamma|i?gammainc|igamma|erfinv|zeta|i0)")
_OF_A_CPU = re.compile(r"_for_cpu|^_?mkldnn_|^onednn|^_mkl_")


# PyTorch's formulas, which a user may add to, and ours for operators that have none there. A formula takes the shapes
# of an operator's arguments.
FLOP_FORMULAS: ChainMap = ChainMap({}, flop_registry)


def flop_formula(packet) -> Callable[[Callable], Callable]:
    """Enter a formula in FLOP_FORMULAS: PyTorch's own registry belongs to the user's counters."""

    def enter(formula: Callable) -> Callable:
        FLOP_FORMULAS[packet] = shape_wrapper(formula)
        return formula

    return enter


@flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)
def _attention_flops(query, key, value, *others, out_shape=None, **named) -> int:
    return 4 * math.prod(query) * key[-2]


@flop_formula(torch.ops.aten._int_mm)
def _int_product_flops(one, other, *others, out_shape=None, **named) -> int:
    return 2 * one[0] * one[1] * other[1]


@flop_formula(torch.ops.aten._addmm_activation)
def _activated_product_flops(bias, one, other, *others, out_shape=None, **named) -> int:
    return 2 * one[0] * one[1] * other[1]


@dataclass(frozen=True)
class LaunchPrediction:
    """One launch: `terms` in seconds by name, combined into `time` as the module describes; `note`: the source of the
    estimate; `unsure`: why it may be off by more than a fifth, empty where it rarely is."""

    name: str
    time: float
    terms: dict[str, float]
    note: str
    unsure: str = ""


@dataclass(frozen=True, repr=False)
class Prediction:
    """The predicted time of a call on a device.

    time: s, from the start of its first kernel to the end of its last.
    bound: the term that takes most of it.
    terms: name -> s, summed over the launches; those that run at the same time as another add up to more than `time`.
    launches: each launch's own prediction.
    unsure: reason -> the share of `time` that may be off by more than a fifth because of it.
    """

    device: str
    time: float
    bound: str
    terms: dict[str, float]
    launches: tuple[LaunchPrediction, ...]

    @property
    def unsure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for launch in self.launches:
            if launch.unsure:
                found[launch.unsure] = found.get(launch.unsure, 0.0) + launch.time / self.time
        return found

    def __repr__(self):
        terms = ", ".join(f"{name} {_readable(seconds)}" for name, seconds in self.terms.items())
        width = max((len(launch.name) for launch in self.launches), default=0)
        lines = [
            f"  {launch.name:{width}}  {_readable(launch.time):>8}  {launch.note}".rstrip() for launch in self.launches
        ]
        unsure = [f"  unsure, {share:.0%} of the time: {reason}" for reason, share in self.unsure.items()]
        return "\n".join([f"{_readable(self.time)} on {self.device}, bound by {self.bound}: {terms}", *lines, *unsure])


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def predict(fn: Callable, *args, device: str | Device = "H200") -> Prediction:
    """The time of `fn(*args)` on a GPU, L2 cold, gaps between launches excluded: what timing.py measures there.

    Args:
        fn: any callable. Tensors that it does not get as arguments must be on the CPU.
        args: its arguments. Tensors may be on any device: `torch.empty(shape, dtype=..., device="meta")` takes no
            memory at any size. Only shapes, strides and dtypes count, and the values of integers on the CPU.
        device: a name in DEVICES, or a Device.

    Raises:
        TypeError: fn is not callable.
        ValueError: an unknown device or a CPU, a kernel that does not compile for it, or an operator whose result's
            shape depends on data.
    """
    device = device if isinstance(device, Device) else DEVICES[device]
    return prediction_of(dry_run_for(device, fn, *args), device)


def dry_run_for(device: Device, fn: Callable, *args) -> list[EagerLaunch | TritonLaunch]:
    """The launches of `fn(*args)` on `device`, for prediction_of and report.compiled; errors as of `predict`."""
    if device.sms is None:
        raise ValueError(f"{device.name} is a CPU: choose a GPU to predict for, such as device='H200'")
    return dry_run(fn, *args, multiprocessors=device.sms)


def prediction_of(rehearsed: list[EagerLaunch | TritonLaunch], device: Device) -> Prediction:
    """Return the prediction for launches from an earlier dry run."""
    cache = L2Cache(device.l2_cache)
    launches = []
    for launch in rehearsed:
        launches.append(launch_prediction(launch, sum(cache.pass_through(launch).values()), device))
    names = dict.fromkeys(name for launch in launches for name in launch.terms)
    terms = {name: sum(launch.terms.get(name, 0.0) for launch in launches) for name in names}
    bound = max(terms, key=terms.get) if terms else "nothing"
    return Prediction(device.name, sum(launch.time for launch in launches), bound, terms, tuple(launches))


def launch_prediction(launch: EagerLaunch | TritonLaunch, missing: float, device: Device) -> LaunchPrediction:
    """One launch's time where L2 does not have `missing` of its bytes."""
    if isinstance(launch, EagerLaunch):
        return _eager(launch, missing, device)
    found = _triton(launch, missing, device)
    return replace(found, unsure=UNKNOWN.format(launch.name, " and ".join(launch.unknown))) if launch.unknown else found


def still_in_l2(distance: float, size: int, way: str) -> float:
    """Return how likely bytes are still in an L2 of `size` bytes when `distance` bytes have moved since they were
    touched.

    `way` is "read" or "written".
    """
    return _falling(distance, HITS_FROM * size, HITS_TO[way] * size)


class L2Cache:
    """The contents that earlier launches left in L2."""

    def __init__(self, size: int):
        self._size = size
        self._moved = 0  # bytes, by all launches so far
        self._last = {}  # storage -> how it was touched last: way, bytes, and _moved before and after that launch

    def pass_through(self, launch: EagerLaunch | TritonLaunch) -> dict[int, float]:
        """Storage -> bytes of it that the launch must have of DRAM: reads that miss, and all writes."""
        operands = launch.operands
        total = sum(operand.read + operand.written for operand in operands.values())
        missing = {
            storage: operand.written
            + (operand.read * (1 - self._hits(storage, operand.read, total)) if operand.read else 0)
            for storage, operand in operands.items()
        }
        for storage, operand in operands.items():
            way = "written" if operand.written else "read"
            self._last[storage] = way, operand.read + operand.written, self._moved, self._moved + total
        self._moved += total
        return missing

    def _hits(self, storage: int, nbytes: float, total: float) -> float:
        """The share of the bytes read that hit, when this launch and the one before go over them in the same order."""
        if storage not in self._last:
            return 0.0
        way, touched, before, after = self._last[storage]
        places = [(step + 0.5) / 32 for step in range(32)]
        distances = ((1 - place) * (after - before) + self._moved - after + place * total for place in places)
        return min(1.0, touched / nbytes) * sum(still_in_l2(distance, self._size, way) for distance in distances) / 32


def _made_of(name: str, terms: dict[str, float], note: str, unsure: str = "") -> LaunchPrediction:
    """Return the prediction where the largest of DRAM, L2, latency and arithmetic hides the others."""
    _, first = _two_largest(terms)
    return LaunchPrediction(name, terms["launch"] + terms["ramp"] + first, terms, note, unsure)


def _two_largest(terms: dict[str, float]) -> list[float]:
    return sorted(terms[term] for term in ("DRAM", "L2", "latency", "arithmetic"))[-2:]


def _triton(launch: TritonLaunch, missing: float, device: Device) -> LaunchPrediction:
    resources = compile_for(launch.kernel, device=device, **launch.given)
    if launch.flops and _fetches_ahead(resources):
        return _tiled(launch, resources, missing, device)
    fitting = resources.occupancy().blocks
    if launch.given.get("launch_cooperative_grid") and launch.programs > fitting * device.sms:
        raise ValueError(
            f"{launch.name}: a cooperative launch of {launch.programs} programs; {device.name} holds "
            f"{fitting * device.sms} at once: launch at most that many, each with more work"
        )
    on_one_sm = math.ceil(launch.programs / device.sms)
    resident = min(on_one_sm, fitting)
    busy, chain = (cycles / device.sm_clock for cycles in _cycles(resources, launch))
    issue = busy * resources.num_warps / SUB_PARTITIONS  # of one block
    wait = _first_access(missing, launch)
    missing += _missing_again(launch, _kept(launch, resources, resident, device), device)
    spilled = resources.spill_bytes * WARP * resources.num_warps * launch.programs
    busy_sms = min(device.sms, launch.programs)
    narrow = _is_narrow(resources)
    from_l2 = (launch.requested + spilled) / (L2_BYTES * busy_sms * device.sm_clock) * (NARROW_L2 if narrow else 1)
    # Without asynchronous copies, a program's matmuls wait for its loads.
    products = launch.flops / launch.programs / _flops_of_an_sm(launch, resources, device) if launch.flops else 0.0
    needs = from_l2 / on_one_sm, issue, products
    alone = wait + max(issue, chain) - issue  # what a block waits for that no other block delays
    terms = {
        "launch": LAUNCH,
        "ramp": COLD_CODE + DISPATCH * resident + wait,
        "DRAM": missing / (_relative_bandwidth(launch, missing) * BANDWIDTH_SHARE * device.memory_bandwidth),
        "L2": from_l2,
        "latency": math.ceil(on_one_sm / fitting) * (alone + sum(needs)) - wait,
        "arithmetic": on_one_sm * (issue + products),
        "dispatch": launch.programs / (DISPATCHED * device.sm_clock),
    }
    if launch.atomics > FEW_ATOMICS * launch.programs:
        terms["atomics"] = launch.atomics / (ATOMICS * device.sms * device.sm_clock)
    of_an_sm = _time_of_blocks(on_one_sm, resident, needs, alone) - wait
    shared = (terms["DRAM"] ** OVERLAP + of_an_sm**OVERLAP) ** (1 / OVERLAP)
    time = LAUNCH + terms["ramp"] + max(shared, terms["dispatch"], terms.get("atomics", 0.0))
    second, first = _two_largest(terms)
    reasons = {
        "waits": bool(launch.given.get("launch_cooperative_grid")),
        "atomics": "atomics" in terms,
        "matmul": launch.flops > 0,
        "narrow": narrow,
        "few": launch.programs < device.sms,
        "close": second > CLOSE * first and fitting <= FEW_BLOCKS,
    }
    unsure = next((UNSURE[reason] for reason, holds in reasons.items() if holds), "")
    unsure = (launch.flops and _product_rate(launch, resources, device)[1]) or unsure
    return LaunchPrediction(launch.name, time, terms, _sampling(launch), unsure)


def _time_of_blocks(blocks: int, resident: int, needs: tuple[float, ...], alone: float) -> float:
    """Return the seconds that an SM takes for its blocks, `resident` of them at a time.

    `needs`: the time that one block needs of each part of the SM, which serves one at a time; `alone`: the time that
    it waits for nothing that others use. The first wave's blocks are in step: they need the same part at the same time.
    Later each starts where another ends, at the rate of a closed queueing network.
    """
    one = alone + sum(needs)
    found = one + (resident - 1) * (max(needs) + ALIGNED * (sum(needs) - max(needs)))
    if blocks > resident:
        in_waves = (math.ceil(blocks / resident) - 1) * one
        found += max((blocks - resident) / _rate_of_blocks(resident, needs, alone), in_waves)
    return found


def _rate_of_blocks(resident: int, needs: tuple[float, ...], alone: float) -> float:
    """Return how many blocks per second end: mean value analysis of a closed network of queues.

    A block that arrives at a part of the SM waits for those that it finds there, as many as there would be without it
    (Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, 1980), and, since blocks arrive in
    bunches, for BUNCHED of another one if the part is busy.
    """
    found, queues, shares = 0.0, [0.0] * len(needs), [0.0] * len(needs)
    for blocks in range(1, resident + 1):
        stays = [need * (1 + queue + BUNCHED * share) for need, queue, share in zip(needs, queues, shares, strict=True)]
        found = min(blocks / (alone + sum(stays)), 1 / max(needs))
        queues = [found * stay for stay in stays]
        shares = [found * need for need in needs]
    return found


def _relative_bandwidth(launch: TritonLaunch, missing: float) -> float:
    """Return the bandwidth that a mix of reads and writes reaches, relative to a copy's."""
    if not missing:
        return 1.0
    written = min(1.0, sum(operand.written for operand in launch.operands.values()) / missing)
    way, share = ("read", 1 - 2 * written) if written <= 0.5 else ("written", 2 * written - 1)
    return 1 + share * (ONE_WAY[way] - 1)


def _is_narrow(resources: Resources) -> bool:
    """Return whether most loads and stores of global memory take 4 bytes per thread or less."""
    widths: Counter[bool] = Counter()
    for opcode, count in resources.instructions.items():
        if found := re.fullmatch(r"(?:LDG|STG)\.(\d+)", opcode):
            widths[int(found[1]) <= 32] += count
    return widths[True] > max(2 * widths[False], NARROW)


def _kept(launch: TritonLaunch, resources: Resources, resident: int, device: Device) -> float:
    """Return the share of the bytes read again that a cache still has after all resident programs moved theirs."""
    own = (launch.bytes_read - launch.repeated) / launch.programs * resident  # distinct bytes that an SM reads
    l1 = limits(device.compute_capability).shared_memory
    texts = [each.text for each in disassemble(resources.cubin)]
    if any("LDG.E.EL" in text for text in texts) and any("STG.E.EF" in text for text in texts):
        in_l2 = _falling(own * device.sms, *(share * device.l2_cache for share in HINTED))
    else:
        in_l2 = still_in_l2(launch.working_set * resident * device.sms, device.l2_cache, "read")
    return max(in_l2, _falling(own, l1, BEYOND_L1 * l1))


def _missing_again(launch: TritonLaunch, kept: float, device: Device) -> float:
    """Return the bytes that programs load again and no cache has.

    `kept`: the share that is still there after all resident programs moved theirs. Data that many programs load,
    such as the vector of a persistent kernel's products, is used again earlier.
    """
    moved = sum(operand.read + operand.written for operand in launch.operands.values())
    found = 0.0
    for operand in launch.operands.values():
        if operand.repeated:
            shared = still_in_l2(moved * operand.read / operand.loaded, device.l2_cache, "read")
            found += operand.repeated * (1 - max(kept, shared))
    return found


def _falling(value: float, least: float, most: float) -> float:
    """Return 1 up to `least`, 0 from `most`, and between them a straight line."""
    return min(1.0, max(0.0, (most - value) / (most - least)))


def _fetches_ahead(resources: Resources) -> bool:
    return _has(resources, ("LDGSTS", "UTMALDG"))


def _tiled(launch: TritonLaunch, resources: Resources, missing: float, device: Device) -> LaunchPrediction:
    on_one_sm = math.ceil(launch.programs / device.sms)
    busiest = launch.flops / launch.programs * on_one_sm
    if on_one_sm <= resources.occupancy().blocks:  # all at once: the one that does most ends last
        busiest = launch.most_flops * on_one_sm
    uneven = busiest * device.sms / launch.flops
    of_an_sm = _flops_of_an_sm(launch, resources, device)
    special = launch.special / device.special_rate if device.special_rate else 0.0
    busy_sms = min(device.sms, launch.programs)
    waves = math.ceil(on_one_sm / resources.occupancy().blocks)
    ramp = _first_access(missing, launch) + TILE_CYCLES * len(disassemble(resources.cubin)) / device.sm_clock
    # Only other blocks on the SM hide what precedes and follows a block's loops. A persistent program, which stores in
    # the loop over its tiles, has nothing there.
    outside = 0.0 if _loops_have(resources, STORES) else _outside_loops(launch, missing)
    outside /= min(on_one_sm, resources.occupancy().blocks) * BANDWIDTH_SHARE * device.memory_bandwidth
    terms = {
        "launch": LAUNCH,
        "ramp": ramp,
        "DRAM": missing / (BANDWIDTH_SHARE * device.memory_bandwidth),
        "L2": launch.requested / (L2_BYTES * busy_sms * device.sm_clock),
        "latency": waves * _one_tile(launch, resources, device, of_an_sm, waves == 1) + (waves - 1) * ramp + outside,
        "matrix": uneven * launch.flops / (device.sms * of_an_sm),
        # A multiply-add counts as two in the peak, and every operation on a float is one instruction.
        "arithmetic": uneven * (special + launch.operations / (device.peak_flops["fp32"] / 2)),
    }
    hidden = max(terms["DRAM"], terms["L2"], terms["matrix"]) + BESIDE_PRODUCTS * terms["arithmetic"]
    time = terms["launch"] + terms["ramp"] + max(hidden, terms["latency"])
    unsure = _product_rate(launch, resources, device)[1] or UNSURE["tiles"]
    return LaunchPrediction(launch.name, time, terms, _sampling(launch), unsure)


def _outside_loops(launch: TritonLaunch, missing: float) -> float:
    """Return the bytes of DRAM that programs move before and after their loops: what their first turns fetch, as many
    as there are stages but one, and what they store."""
    written = sum(operand.written for operand in launch.operands.values())
    ahead = launch.given.get("num_stages", STAGES) - 1
    return written + max(0.0, missing - written) * min(1.0, ahead / max(1, launch.rounds))


def _flops_of_an_sm(launch: TritonLaunch, resources: Resources, device: Device) -> float:
    """Return the FLOP/s that the kernel's matmuls reach on one SM."""
    return MATRIX_SHARE * _product_rate(launch, resources, device)[0] / device.sms


def _product_rate(launch: TritonLaunch, resources: Resources, device: Device) -> tuple[float, str]:
    """Return the peak FLOP/s of the kernel's matmuls, and why that is not known; empty if it is."""
    dtype, named = launch.product, "fp32"
    if dtype == "float64":
        return double_rate(device), "" if device.double_rate else NO_RATE.format(dtype, device.name, "half of fp32's")
    if any(TENSOR_CORE.fullmatch(opcode) for opcode in resources.instructions):
        named = PRODUCTS[dtype]
    return device.peak_flops[named], NO_RATE.format(dtype, device.name, f"{named}'s") if dtype == "int8" else ""


def _one_tile(
    launch: TritonLaunch, resources: Resources, device: Device, flops_of_an_sm: float, busiest: bool
) -> float:
    """Return the seconds of the loops of one program by itself, the busiest one or an average one.

    Its instructions, its products and, where its own warps copy them, its operands wait for one another in part. The
    copy engine (TMA) fetches operands without the program's warps.
    """
    average = launch.flops / launch.programs
    products = (launch.most_flops if busiest else average) / flops_of_an_sm
    instructions = _loop_cycles(resources, launch) / device.sm_clock
    instructions *= 1.0 if busiest else min(1.0, average / launch.most_flops)
    operands = launch.requested / launch.programs / (L2_BYTES * device.sm_clock)
    parts = [instructions, products] + [operands] * (not _has(resources, "UTMALDG"))
    # Exponentials of a product in its loop, as in attention: the next product waits for them, and they for this one.
    # A persistent program's loop has those of its epilogue, too, once per tile.
    chained = _loops_have(resources, EXPONENTIALS) and not _loops_have(resources, STORES)
    serial = 1.0 if chained else SERIAL
    return max(parts) + serial * (sum(parts) - max(parts))


def _loops_have(resources: Resources, opcodes: tuple[str, ...]) -> bool:
    """Return whether a loop with matmuls also has one of these instructions."""
    return any(each.opcode.startswith(opcodes) for loop in _loops_with_products(resources) for each in loop)


def _loops_with_products(resources: Resources) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each loop that has matmuls; a branch back without a condition waits for a barrier."""
    instructions = disassemble(resources.cubin)
    loops = (instructions[start : end + 1] for start, end in _loops(instructions) if _is_conditional(instructions[end]))
    return [loop for loop in loops if any(TENSOR_CORE.fullmatch(each.opcode.split(".")[0]) for each in loop)]


def _is_conditional(branch: Instruction) -> bool:
    return branch.text.lstrip().startswith("@")


def _loop_cycles(resources: Resources, launch: TritonLaunch) -> float:
    """Return the cycles of one warp in the loops of its machine code."""
    instructions = disassemble(resources.cubin)
    loops = _iterations(instructions, resources.num_warps * WARP, launch)
    # An unconditional branch back leaves the code that waits for a barrier, after the rest.
    loops = {loop: runs for loop, runs in loops.items() if _is_conditional(instructions[loop[1]])}
    copies = {loop: _lines_of_copies(instructions[loop[0] : loop[1] + 1]) for loop in loops}
    alike = Counter(copies.values())
    cycles = 0.0
    for place, instruction in enumerate(instructions):
        # Loops that fetch by the same lines of source share their turns.
        turns = [
            runs / (alike[copies[loop]] if copies[loop] else 1)
            for loop, runs in loops.items()
            if loop[0] <= place <= loop[1]
        ]
        cycles += max(turns, default=0) * (TILE_CYCLES + TILE_EXTRA_CYCLES.get(instruction.opcode.split(".")[0], 0))
    return cycles


def _lines_of_copies(instructions: tuple[Instruction, ...]) -> frozenset[int]:
    """Return the lines of source whose operands the copy engine fetches."""
    return frozenset(each.line for each in instructions if each.opcode.startswith("UTMALDG"))


def _has(resources: Resources, opcodes: str | tuple[str, ...]) -> bool:
    return any(each.startswith(opcodes) for each in resources.instructions)


def _sampling(launch: TritonLaunch) -> str:
    if launch.sampled == launch.programs:
        return ""
    return f"{launch.sampled} of {launch.programs} programs metered, the others taken to be like them"


def _first_access(missing: float, launch: EagerLaunch | TritonLaunch) -> float:
    """Return the time until the first bytes arrive: from L2 if the previous launch left all of them there."""
    reads = any(operand.read for operand in launch.operands.values())
    written = sum(operand.written for operand in launch.operands.values())
    return FIRST_ACCESS if reads and missing > written else FIRST_ACCESS_L2


def _cycles(resources: Resources, launch: TritonLaunch) -> tuple[float, float]:
    """Return cycles of one warp: on its pipelines; and alone, from its first instruction to its last."""
    instructions = disassemble(resources.cubin)
    loops = _iterations(instructions, resources.num_warps * WARP, launch)
    busy, once, again = Counter(), 0.0, 0.0
    for place, instruction in enumerate(instructions):
        times = max((count for (start, end), count in loops.items() if start <= place <= end), default=1)
        opcode = instruction.opcode.split(".")[0]
        extra = EXTRA_CYCLES.get(opcode, 0) if opcode != "BAR" or resources.num_warps > 1 else 0
        once += min(times, 1) * (CYCLES + extra)
        again += max(times - 1, 0) * (CYCLES + extra)
        busy["issue"] += times
        if opcode in _PIPELINE:
            pipeline, cycles = _PIPELINE[opcode]
            busy[pipeline] += times * (UPPER_HALF if instruction.opcode.startswith("IMAD.HI") else cycles)
    if not _fetches_ahead(resources):
        again += (launch.rounds - 1) * ROUND * resources.device.sm_clock
    return sum(cycles**PIPES for cycles in busy.values()) ** (1 / PIPES), once + again


def _iterations(instructions: tuple[Instruction, ...], threads: int, launch: TritonLaunch) -> dict:
    """(first, last instruction) -> how many times each loop runs: enough to load what its source lines load.

    An unrolled loop comes before the one that works off what is left. A loop whose loads the program never executed
    does not run. One that loads nothing by itself counts to its bound, in every turn of the loops around it, or, where
    the bound is not in the code, runs as often as any load.
    """
    found, left = {}, dict(launch.loads)
    loops = _loops(instructions)
    for start, end in loops:
        at_once, loads = Counter(), False
        for each in instructions[start : end + 1]:
            width = re.fullmatch(r"(?:LDG|LDGSTS)\.(\d+)", each.name)
            loads |= width is not None
            if width and each.line in launch.loads:
                at_once[each.line] += int(width[1]) // 8 * threads
        runs = [min(launch.rounds, left[line] // size) for line, size in at_once.items()]
        for line, size in at_once.items():
            left[line] -= max(runs) * size
        found[start, end] = max(runs, default=0 if loads else None)
    for start, end in [loop for loop, runs in found.items() if runs is None]:
        turns = _turns(instructions[start : end + 1])
        around = [found[loop] for loop in loops if loop[0] < start and end < loop[1] and found[loop] is not None]
        found[start, end] = turns * max(around, default=1) if turns else max(around, default=launch.rounds)
    return found


def _turns(loop: tuple[Instruction, ...]) -> int | None:
    """Return how many times a loop runs that counts a register from 0 to a constant; None of others."""
    counters = (re.search(r"\b(R\d+), \1, (0x[0-9a-f]+)\b", each.text) for each in loop if "ADD" in each.opcode)
    steps = dict(found.groups() for found in counters if found)
    for each in reversed(loop):
        bound = re.search(r"ISETP\.NE\S* P\d, PT, (R\d+), (0x[0-9a-f]+), PT", each.text)
        if bound and bound[1] in steps:
            return max(1, int(bound[2], 16) // int(steps[bound[1]], 16))
    return None


def _loops(instructions: tuple[Instruction, ...]) -> list[tuple[int, int]]:
    """First and last instruction of each loop: a branch back."""
    labels = {each.label: place for place, each in enumerate(instructions) if each.label}
    branches = ((place, re.search(r"\bBRA\b.*?(\.L_\w+)", each.text)) for place, each in enumerate(instructions))
    ends = ((labels.get(found[1], place), place) for place, found in branches if found)
    return [(start, end) for start, end in ends if start < end]


def _eager(launch: EagerLaunch, missing: float, device: Device) -> LaunchPrediction:
    tensors = [tensor for tensor in (*launch.inputs, *launch.results) if tensor.numel() > 1]
    elements = max((tensor.numel() for tensor in tensors), default=1)
    results = max((tensor.numel() for tensor in launch.results), default=1)
    kind = "matrix product" if launch.operator.overloadpacket in FLOP_FORMULAS else _kind(launch, tensors)
    pace = THROUGHPUTS[kind]
    columns = launch.inputs[0].shape[-1] if launch.inputs and launch.inputs[0].dim() else 1
    first = _first_access(missing, launch)
    per_clock = device.sms * device.sm_clock
    arithmetic = elements / (pace.results * per_clock)
    if kind == "matrix product":
        arithmetic = product_flops(launch.operator, launch.arguments, launch.results) / (
            _matrix_share(launch) * _peak(launch, device)
        )
    ramp, latency = first + pace.latency, pace.by_column * columns
    if kind == "reduction":
        # A round waits for DRAM or for L2, as the first access does.
        latency = REDUCTION_ROUND * first / FIRST_ACCESS * _reduction_rounds(results, elements // max(1, results))
    terms = {
        "launch": LAUNCH,
        "ramp": ramp,
        "DRAM": missing / (pace.bandwidth * device.memory_bandwidth),
        "L2": sum(each.read + each.written for each in launch.operands.values()) / (L2_BYTES * per_clock),
        "latency": latency,
        "arithmetic": arithmetic,
    }
    note = f"PyTorch's {kind}"
    if launch.operator.overloadpacket.__name__ == "where":
        given = [launch.arguments[name] for name in ("self", "other")]
        note += ", without the fill for a number" * any(each.dim() == 0 for each in given)
    return _made_of(launch.name, terms, note, unsure=_unsure_of(launch, kind))


def _unsure_of(launch: EagerLaunch, kind: str) -> str:
    name = launch.operator.overloadpacket.__name__
    if _OF_A_CPU.search(name):
        if name.startswith("_scaled_dot_product"):
            return "attention: counted as FlashAttention's kernel; dtype, mask and heads decide which one a GPU runs"
        return f"{name}: PyTorch implements it for CPUs only; the GPU's kernels are unknown and may take far longer"
    if kind == "matrix product" and launch.arguments.get("groups", 1) > 1:
        return f"{name} in groups: its kernels are unknown; counted at the rate of a large matmul, so a lower bound"
    if reason := unknown_arithmetic(name, launch.inputs):
        return reason
    if kind in ("layer norm", "RMS norm", "softmax", "top-k"):
        return f"PyTorch's {kind}: one throughput for all row lengths; it may take 0.5x to 4x the predicted time"
    known = kind != "elementwise" or torch.Tag.pointwise in launch.operator.tags or name in MOVES | _COPIES
    if known and not (name.startswith("index_put") or name == "_index_put_impl_"):
        return ""
    return f"{name}: its kernels are unknown; counted as one kernel that moves each tensor once, so a lower bound"


def unknown_arithmetic(name: str, inputs: list[torch.Tensor]) -> str:
    """Return why an operator's arithmetic takes longer than its bytes or FLOPs tell; empty if it doesn't."""
    if _SERIES.match(name):
        return f"{name}: it sums up a series or iterates; only its bytes are counted, so a lower bound"
    integers = bool(inputs) and holds_integers(inputs[0])
    if integers and name != "_int_mm" and getattr(torch.ops.aten, name, None) in FLOP_FORMULAS:
        return f"{name}: PyTorch has no matmul of {inputs[0].dtype} on a GPU, where the call fails"
    return ""


def _kind(launch: EagerLaunch, tensors: list[torch.Tensor]) -> str:
    name = launch.operator.overloadpacket.__name__
    if name in _KIND:
        return _KIND[name]
    if torch.Tag.pointwise not in launch.operator.tags and name not in _COPIES:
        return "elementwise"
    if len({(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors}) == 1 and _is_dense(tensors[0]):
        return "elementwise"  # in any order of dimensions, channels-last among them
    if any(tensor.dim() > 1 and not tensor.is_contiguous() and tensor.stride(-1) > 1 for tensor in tensors):
        return "transposing"
    alike = {(tensor.shape, tensor.dtype) for tensor in tensors}
    plain = len(alike) <= 1 and all(tensor.is_contiguous() for tensor in tensors)
    return "elementwise" if plain else "converting or broadcasting"


def _reduction_rounds(outputs: int, length: int) -> int:
    """Return how many times a thread of PyTorch's reduction waits for its four loads, one after another.

    Source: setReduceConfig in aten/src/ATen/native/cuda/Reduce.cuh: up to 512 threads of a block share 16 outputs.
    """
    width = min(_power_of_two(length), 32)
    height = min(_power_of_two(outputs), 512 // width)
    width = min(_power_of_two(length), 512 // height)
    values = math.ceil(length / width)
    if values >= min(16 * height, 256):
        values = math.ceil(values / height)
    return min(math.ceil(values / 4), 64)


def _power_of_two(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


def product_flops(operator, given: dict, results: list[torch.Tensor]) -> float:
    """FLOPs of a matrix product, a convolution or attention, by PyTorch's count; half where half is masked."""
    named = {each.name: given[each.name] for each in operator._schema.arguments if each.kwarg_only}
    plain = [value for name, value in given.items() if name not in named]
    outputs = results[0] if len(results) == 1 else results
    if operator is torch.ops.aten.convolution_backward.default:  # it skips gradients that are not required
        outputs = given["input"], given["weight"], None
    found = FLOP_FORMULAS[operator.overloadpacket](*plain, **named, out_val=outputs)
    found *= 4 if results[0].is_complex() else 1  # four products of real numbers
    return found / 2 if given.get("is_causal") else found


def double_rate(device: Device) -> float:
    """FLOP/s of a product in fp64: where it is not known, half of that of fp32."""
    return device.double_rate or device.peak_flops["fp32"] / 2


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether its elements fill a range of memory without gaps or overlaps."""
    return (
        sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        == tensor.numel()
    )


def _matrix_share(launch: EagerLaunch) -> float:
    attention = launch.operator.overloadpacket.__name__.startswith("_scaled_dot_product")
    return ATTENTION_SHARE if attention else MATRIX_SHARE


def _peak(launch: EagerLaunch, device: Device) -> float:
    dtype = launch.inputs[0].dtype
    if dtype in DOUBLES:
        return double_rate(device)
    if dtype.itemsize == 1:
        return device.peak_flops.get("fp8") or device.peak_flops["fp16"]
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
    if dtype == torch.float32 and "tf32" in device.peak_flops and takes_tf32(_is_convolution(launch)):
        name = "tf32"
    return device.peak_flops[name]


def takes_tf32(convolution: bool) -> bool:
    """Return whether PyTorch is set to run fp32 convolutions, or other products, in TF32: by default convolutions."""
    backend = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
    try:
        return backend.allow_tf32
    except RuntimeError:  # it was set by the newer `fp32_precision`, which it cannot express
        return (backend.conv if convolution else backend).fp32_precision == "tf32"


def _is_convolution(launch: EagerLaunch) -> bool:
    return launch.operator.overloadpacket.__name__ in ("convolution", "convolution_backward")
