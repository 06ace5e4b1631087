"""Compute the bytes, registers and time of a kernel that does several operations.

    bytes     inputs from other kernels, read once, and outputs for other kernels, written once
    time      launch + ramp + the largest of memory, L2 and the units' roofs
    registers live values per thread, and its addresses

The roofs come from operations.Launch.times, at the share of the data sheet's rates that prediction.py measured.
"""

import math
from dataclasses import dataclass

from helpers.instruments import prediction
from helpers.instruments.devices import Device
from helpers.instruments.fusion.graph_nodes import PRODUCTS, FusionNode
from helpers.instruments.fusion.legality import COLUMNS, MANY_BLOCKS, ROWS, Legality, NotLegalError, bits, is_split
from helpers.instruments.fusion.library_kernels import (
    SUMS_BY_ATOMICS,
    LibraryKernel,
    as_an_h100,
    atomics_time,
    library_kernels,
)
from helpers.instruments.fusion.operation_account import TracedStep
from helpers.instruments.fusion.operator_kinds import launches_of
from helpers.instruments.occupancy_calculator import MAX_REGISTERS
from helpers.instruments.operations import Launch
from helpers.instruments.roofline import SPECIAL, Work

DTYPES = {2: "bf16", 1: "fp8"}
VALUES = 8  # elements per thread of a pointwise kernel: 16 bytes of 16-bit values
THREADS = 1024  # maximum per block
OTHERS = 14  # registers of a nearly empty kernel: indices, addresses
ACCUMULATORS = 128  # registers per thread for a 128 x 256 tile in fp32 over 256 threads
# Share of the tensor cores' rate if an operand goes through registers, which rules out asynchronous tile copies:
# pointer loads vs tensor descriptors for 8192^3 in bf16 on an H200 (kernels/tuned/linear_descriptors.py).
PROLOGUE_SHARE = 0.7
LATENCY = {"pointwise": 0.9e-6, "rows": 1.6e-6}  # s: one pass through a kernel's instructions; a row's reductions
# s per row that an Inductor block processes, on 132 SMs; shorter rows take their share of WIDE. From an H100's times
# for the row kernels in Whisper's encoder and Swin-T (benchmarks/public_models.py).
INDUCTOR_ROW, WIDE = 1.05e-9, 256
ATTENTION_SHARE = 0.45  # share of the tensor cores' peak: kernels/tiled/flash_attention on an H200


@dataclass(frozen=True)
class GroupCost:
    """A group's cost, with FusionGroup's fields. bound: the slowest resource."""

    kind: str
    work: Work
    launches: int
    time: float
    live: int
    registers: int
    bound: str


def pointwise_registers(live: int, width: float) -> int:
    """Return registers per thread; width: bytes of an element's inputs and results, which stay packed until each is
    processed."""
    return OTHERS + round(VALUES / 4 * width) + live


def tile_registers(live: int) -> int:
    return OTHERS + ACCUMULATORS + VALUES * live


def row_registers(live: int, operations: int, length: int) -> int:
    """Return registers per thread; length: elements of a row that a block keeps."""
    values = max(math.ceil(length / THREADS), min(VALUES, length / 32))
    return OTHERS + 2 * operations + math.ceil(values) * live


def memory_time(nbytes: float, device: Device, share: float = 1.0) -> float:
    """Return seconds; share: fraction of the bandwidth that this many blocks can use."""
    return nbytes / (share * prediction.BANDWIDTH_SHARE * device.memory_bandwidth)


def start_time(kind: str) -> float:
    """Return the seconds that a nearly empty kernel takes."""
    return prediction.LAUNCH + prediction.FIRST_ACCESS + LATENCY.get(kind, LATENCY["pointwise"])


class Costs:
    """The costs of one graph's groups on one device, each computed once."""

    def __init__(self, legality: Legality, device: Device, eager: list[GroupCost]):
        self.legality, self.nodes, self.device, self.eager = legality, legality.nodes, device, eager
        self.all = (1 << len(self.nodes)) - 1
        self._found: dict[tuple[int, int], GroupCost] = {}

    def of(self, mask: int, placed: int | None = None) -> GroupCost:
        """Return the lowest cost of one kernel; for a single node, PyTorch's own kernel or a new one.

        Args:
            placed: nodes known to be outside; a result that none of them reads is not stored yet.

        Raises:
            NotLegalError: no kernel can do it.
        """
        stored = self.legality.stored(mask, self.all if placed is None else placed)
        found = self._found.get((mask, stored))
        if found is None:
            kind = self.legality.kind(mask, stored)
            group = [self.nodes[place] for place in bits(mask)]
            # PyTorch's own kernel reads the values that this one would recompute, so eager PyTorch has no such kernel.
            alone = len(group) == 1 and not group[0].inlined
            found = self.eager[group[0].index] if alone and kind in ("eager", *PRODUCTS) else None
            if found is None:
                found = self._kernel(group, mask, stored, kind)
                if alone and self.eager[group[0].index].time <= found.time:
                    found = self.eager[group[0].index]
            self._found[mask, stored] = found
        return found

    def _kernel(self, group: list[FusionNode], mask: int, stored: int, kind: str) -> GroupCost:
        reads: dict[int, dict] = {}
        for node in group:
            for read in node.reads:
                if not read.sources or any(not mask >> source & 1 for source in read.sources):
                    of = reads.setdefault(read.key[0], {})
                    had = of.get(read.key[1:], (0, 0))
                    of[read.key[1:]] = max(had[0], read.nbytes), max(had[1], read.missing)
        nbytes = sum(size for of in reads.values() for size, _ in of.values())
        missing = sum(each for of in reads.values() for _, each in of.values())
        written = sum(write.nbytes for place in bits(stored & mask) for write in self._needed(self.nodes[place], mask))
        flops, product, special = 0.0, 0.0, 0.0
        for node in group:
            flops += node.arithmetic.fp32
            product += node.arithmetic.product
            special += node.arithmetic.special
            flops += sum(step.writes[0].points for step in node.inlined)
        live = self._live(group, mask)
        share, launches, again, registers, by_row = 1.0, 1, 0.0, 0, 0.0
        if kind == "rows":
            space = next(node.space for node in group if node.kind in ROWS)
            share, launches, again, registers = self._row_settings(group, space, live, nbytes)
            if not self.legality.epilogues and space[-1][1] and launches == 1:
                rows = math.prod(size for size, reduced in space if not reduced)
                by_row = rows * INDUCTOR_ROW * min(1.0, space[-1][0] / WIDE) * as_an_h100(self.device)
        elif kind in ("pointwise", *PRODUCTS):
            # Inputs and results stay packed, and elements are processed one by one.
            sizes = [size for of in reads.values() for size, _ in of.values()]
            widths = [size / max(node.points for node in group) for size in (*sizes, written)]
            registers = tile_registers(live) if kind in PRODUCTS else pointwise_registers(live, sum(widths))
        else:
            registers = MAX_REGISTERS
        if registers > MAX_REGISTERS and len(group) > 1:
            raise NotLegalError(f"{live} live values per thread need more than {MAX_REGISTERS} registers")
        registers = min(registers, MAX_REGISTERS)
        work = Work(flops + product, nbytes, written)
        dtype = DTYPES.get(min(node.itemsize for node in group if node.kind in PRODUCTS), "fp32") if product else "fp32"
        launch = Launch(kind, work, product, flops, special)
        times = launch.times(self.device, dtype if dtype in self.device.peak_flops else "fp16")
        matrix = ATTENTION_SHARE if kind == "attention" else prediction.MATRIX_SHARE
        terms = {
            "memory": memory_time(missing + written + again, self.device, share),
            "L2": (nbytes + written + again) / (prediction.L2_BYTES * self.device.sms * self.device.sm_clock),
            "tensor cores": times["tensor cores"] / matrix,
            "CUDA cores": 2 * times["CUDA cores"],  # the peak assumes multiply-adds
            SPECIAL: times.get(SPECIAL, 0.0),
            "atomics": atomics_time(sum(node.points for node in group if _adds_by_atomics(node)), self.device),
        }
        if kind in PRODUCTS:
            library = sum(self.eager[node.index].time for node in group if node.kind in PRODUCTS)
            terms["tensor cores"] = library - start_time(kind)
            if self._has_prologue(group, mask):
                terms["tensor cores"] /= PROLOGUE_SHARE
        bound = max(terms, key=terms.get)
        time = launches * start_time(kind) + terms[bound] + by_row
        return GroupCost(kind, work, launches, time, live, registers, bound)

    def _has_prologue(self, group: list[FusionNode], mask: int) -> bool:
        """Return whether an operand of the matmul is transformed before it."""
        return any(
            link.target == node.index and mask >> link.source & 1 and self.nodes[link.source].points > node.points // 16
            for node in group
            if node.kind in PRODUCTS
            for source in bits(node.before & mask)
            for link in self.nodes[source].links
        )

    def _needed(self, node: FusionNode, mask: int):
        """Return a node's writes that outlive the kernel."""
        wanted = {link.storage for link in node.links if not mask >> link.target & 1}
        if not node.links and not node.step.kept:
            return node.step.writes
        return [write for write in node.step.writes if write.storage in wanted or write.storage in node.step.kept]

    def _row_settings(self, group, space, live, nbytes) -> tuple[float, int, float, int]:
        """Return the share of bandwidth that the rows' blocks reach, launches, bytes reread, registers."""
        kept = math.prod(size for size, reduced in space if not reduced)
        length = math.prod(size for size, reduced in space if reduced)
        split = is_split(space)
        blocks = kept * math.ceil(length / THREADS) if split else kept
        if not space[-1][1]:
            blocks = math.ceil(kept / COLUMNS) * (math.ceil(length / MANY_BLOCKS) if split else 1)
        share = min(1.0, blocks / self.device.sms)
        registers = row_registers(live, len(group), VALUES * THREADS if split else length)
        again = 0.0
        if split and any(node.kind == "normalisation" for node in group):
            again = nbytes
        elif registers > MAX_REGISTERS:  # too long to keep: each reduction rereads the row
            again = nbytes * sum(node.kind in ROWS for node in group)
            registers = OTHERS + 2 * len(group) + VALUES * live
        return share, 1 + split, again, registers

    def _live(self, group: list[FusionNode], mask: int) -> int:
        """Return the maximum number of live values per element if the nodes run in the graph's order."""
        last: dict = {}
        wide = max(node.points for node in group)
        for node in group:
            for read in node.reads:
                if read.points >= wide:
                    last[read.key] = node.index
            for link in node.links:
                if mask >> link.target & 1 and node.points >= wide:
                    last[node.index] = max(last.get(node.index, 0), link.target)
        most, alive = 1, set()
        for node in group:
            alive |= {read.key for read in node.reads if read.points >= wide and self._external(read, mask)}
            if node.index in last:
                alive.add(node.index)
            most = max(most, len(alive))
            alive = {key for key in alive if last[key] > node.index}
        return most

    @staticmethod
    def _external(read, mask: int) -> bool:
        return not read.sources or any(not mask >> source & 1 for source in read.sources)


def _adds_by_atomics(node: FusionNode) -> bool:
    return node.step.node.target.overloadpacket.__name__ in SUMS_BY_ATOMICS


def eager_costs(nodes: list[FusionNode], predicted: dict[int, list], device: Device) -> list[GroupCost]:
    """Return each node's cost in the libraries that Inductor calls; `predicted`: step -> (launch, its prediction)."""
    found = []
    for node in nodes:
        of = predicted[node.step.index]
        moved = [operand for launch, _ in of for operand in launch.operands.values()]
        flops = node.arithmetic.product + node.arithmetic.fp32
        kernels, launches, time = eager_run(node.step, of, device, compiled=True)
        copied = sum(each.copied for each in kernels)
        read, written = (sum(getattr(each, way) for each in moved) for way in ("read", "written"))
        work = Work(flops, read + copied, written + copied)
        terms: dict[str, float] = {}
        for _, each in of:
            for name, seconds in each.terms.items():
                terms[name] = terms.get(name, 0.0) + seconds
        bound = max(terms, key=terms.get) if terms else "nothing"
        found.append(GroupCost("eager", work, launches, time, len(node.step.reads), 0, bound))
    return found


def eager_run(
    step: TracedStep, predicted: list, device: Device, compiled: bool = False
) -> tuple[list[LibraryKernel], int, float]:
    """Return a step's kernels, launches and seconds, including those added by a long tensor list or a library."""
    meta = step.node.meta
    cudnn, mask = meta.get("cudnn", True), meta.get("compiled_mask", "") if compiled else ""
    kernels = [each for pair in predicted for each in library_kernels(*pair, device, compiled, cudnn, mask)]
    more = launches_of(step) - len(step.launches)
    return kernels, len(kernels) + more, sum(each.time for each in kernels) + more * prediction.LAUNCH
