"""A dry run: the launches of a call, at sizes too large to interpret.

`dry_run` gives a function tensors of the right shapes that hold zeros and take no memory. PyTorch operators are not
computed: their results have the right shape and hold zeros too. A few programs of each Triton launch are interpreted
(the first, the last and some in between), each metered separately, and the rest are assumed to behave like them. The
traffic meter's rules apply as on a GPU: an operator that PyTorch implements as one GPU kernel is one launch.
"""

import contextlib
import inspect
import mmap
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from triton.runtime.jit import JITFunction

from helpers.instruments.traffic.eager_meter import (
    READS_AT,
    READS_ROWS,
    READS_WITHOUT_RESULT,
    WRITES_AT,
    EagerMeter,
)
from helpers.instruments.traffic.footprint import SECTOR, ByteSet
from helpers.instruments.traffic.ledger import Ledger, footprint_of
from helpers.instruments.traffic.triton_meter import TritonMeter, tensors_in
from kernels.interpreter import runtime
from kernels.interpreter.runtime import kernel_code

MAP_NORESERVE = 0x4000  # mmap(2) on Linux; Python 3.11's mmap lacks it
# Functions that use the special function unit.
SPECIAL = {np.exp, np.exp2, np.log, np.log2, np.sin, np.cos, np.sqrt, np.divide, np.true_divide}
SAMPLED = 4  # programs interpreted per launch
# Integers that may decide how many times a loop runs or where a kernel reads. Those of 8 bits are quantised numbers.
GUESSED = 2**22  # elements of a tensor of unknown integers whose values are tried; a larger one's are not
ALIKE = 0.05  # the share of an instance's bytes that may depend on unknown integers, as one label per row does
DECISIVE = frozenset([torch.bool, torch.int16, torch.int32, torch.int64])
WORKED_OUT = 2**24  # maximum elements of an integer tensor that may hold positions
RANDOM = {torch.Tag.nondeterministic_seeded}


@dataclass
class MovedOperand:
    """One launch's traffic to one storage, in distinct bytes.

    loaded: bytes read by all programs of a Triton kernel, each as often as it is loaded; repeated: those of `loaded`
        that a program had loaded before.
    """

    read: int = 0
    written: int = 0
    size: int = 0  # bytes of the storage
    loaded: float = 0
    repeated: float = 0


@dataclass
class EagerLaunch:
    """One PyTorch operator.

    inputs, results: its tensors, without data; operands: storage -> MovedOperand.
    """

    name: str
    operator: object
    arguments: dict
    inputs: list[torch.Tensor]
    results: list[torch.Tensor]
    operands: dict[int, MovedOperand] = field(default_factory=dict)


@dataclass
class TritonLaunch:
    """One kernel launch. Totals cover the whole grid, estimated from `sampled` of its program instances.

    requested: bytes in the sectors of all loads and stores, as L1 sees them.
    loads: source line -> bytes that a program loads there, including masked-off lanes.
    rounds: how many times a program executes its most frequent load.
    repeated: bytes that a program reloads; working_set: distinct bytes it moves.
    flops: of `tl.dot`, with operands of dtype `product`; most_flops: the most of any program.
    operations: float operations, counted per element; special: those on the special function unit.
    unknown: parameters whose integers it reads without knowing their values, assumed to be 0; other values lead to
        other accesses.
    """

    name: str
    kernel: JITFunction
    given: dict
    grid: tuple[int, int, int]
    sampled: int = 0
    operands: dict[int, MovedOperand] = field(default_factory=dict)
    bytes_read: float = 0
    bytes_written: float = 0
    sectors_read: float = 0
    sectors_written: float = 0
    atomics: float = 0
    loads: dict[int, int] = field(default_factory=dict)
    rounds: int = 0
    repeated: float = 0
    working_set: float = 0
    flops: float = 0
    most_flops: int = 0
    product: str = ""
    operations: float = 0
    special: float = 0
    unknown: tuple[str, ...] = ()

    @property
    def programs(self) -> int:
        """Program instances in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def requested(self) -> float:
        return SECTOR * (self.sectors_read + self.sectors_written)


def dry_run(fn: Callable, *args, multiprocessors: int) -> list[EagerLaunch | TritonLaunch]:
    """Return the launches of `fn(*args)`, in order, on a GPU with that many SMs.

    Args:
        fn: any callable. Tensors that it reaches other than through its arguments must be on the CPU.
        args: its arguments; tensors on any device, including "meta". Only shapes, strides and dtypes matter, and the
            values of integers on the CPU, which may be indices or labels. Nothing is written to them.

    Raises:
        TypeError: fn is not callable.
        ValueError: the shape of an operator's result depends on data.
    """
    if not callable(fn):
        raise TypeError(f"pass a function and its arguments, not {type(fn).__name__}: wrap it in a lambda")
    with dry_run_scope(multiprocessors) as stage:
        fn(*tree_map_only(torch.Tensor, stage.without_data, args))
    return stage.launches


@dataclass(frozen=True)
class DryRun:
    """The state of a dry run: `launches` so far, and their byte counts."""

    ledger: Ledger
    launches: list[EagerLaunch | TritonLaunch]
    meter: "_Shapes"

    def without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape, strides and dtype; it keeps the values of up to WORKED_OUT integers.

        Raises:
            ValueError: it has no strides, because it is sparse or nested.
        """
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise ValueError(f"a dry run takes dense tensors, got a {kind} one: pad it, or make it dense")
        if tensor.is_floating_point() or tensor.is_complex():
            return _hollow(tensor.shape, tensor.stride(), tensor.dtype).requires_grad_(tensor.requires_grad)
        if tensor.is_meta or tensor.numel() > WORKED_OUT:  # a copy of larger ones could fill the memory
            return self.meter.unknown(_hollow(tensor.shape, tensor.stride(), tensor.dtype))
        with _disable_current_modes():  # our own copy, not a launch of the call's
            return tensor.detach().cpu().clone()

    def without_data_together(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors without data that overlap in memory where the given ones do."""
        found = {}
        for together in _overlapping(tensors):
            if len(together) == 1:
                found[together[0]] = self.without_data(tensors[together[0]])
                continue
            first = min(tensors[place].storage_offset() * tensors[place].element_size() for place in together)
            memory = _hollow((_end(tensors, together) - first,), (1,), torch.uint8).untyped_storage()
            for place in together:
                found[place] = self._within(memory, first, tensors[place])
        return [found[place] for place in range(len(tensors))]

    def _within(self, memory, first: int, tensor: torch.Tensor) -> torch.Tensor:
        offset = tensor.storage_offset() - first // tensor.element_size()
        made = torch.empty(0, dtype=tensor.dtype).set_(memory, offset, tensor.shape, tensor.stride())
        if holds_integers(tensor):
            if tensor.is_meta or tensor.numel() > WORKED_OUT:
                return self.meter.unknown(made)
            with _disable_current_modes():
                made.copy_(tensor.detach())
        return made

    def run(self, operator, args: tuple, kwargs: dict):
        """Run an ATen operator as a GPU would; a CPU decomposes some before any meter sees them."""
        if operator not in ONLY_ON_A_GPU:
            return operator(*args, **kwargs)
        with _disable_current_modes():
            return self.meter.__torch_dispatch__(operator, (), args, kwargs)


@contextlib.contextmanager
def dry_run_scope(multiprocessors: int) -> Iterator[DryRun]:
    """Record operations on tensors of `without_data` in `launches` instead of computing them."""
    ledger, launches = Ledger(), []
    shapes = _Shapes(ledger, launches)
    sampler = _Sampler(ledger, launches, multiprocessors, shapes.unknown_storages)
    with runtime.observed(sampler), shapes, _AsOnAGpu(shapes):
        yield DryRun(ledger, launches, shapes)
    sampler.finish()


def _hollow(size, stride, dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor of zeros without allocating or reserving memory for it."""
    nbytes = 0
    if 0 not in size:
        nbytes = (sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1) * dtype.itemsize
    if not nbytes:
        return torch.empty_strided(size, stride, dtype=dtype)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of its storage that a tensor occupies, and the end of the last."""
    low = tensor.storage_offset()
    high = low + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return low * tensor.element_size(), high * tensor.element_size()


def _end(tensors: list[torch.Tensor], places: list[int]) -> int:
    return max(_span(tensors[place])[1] for place in places)


def _overlapping(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Return the places of tensors in groups that overlap in memory."""
    by_storage: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        plain = tensor.layout is torch.strided and not tensor.is_nested and tensor.numel()
        by_storage.setdefault(tensor.untyped_storage()._cdata if plain else -place - 1, []).append(place)
    groups = []
    for places in by_storage.values():
        if len(places) == 1:
            groups.append(places)
            continue
        for place in sorted(places, key=lambda each: _span(tensors[each])):
            if groups and groups[-1][0] in places and _span(tensors[place])[0] < _end(tensors, groups[-1]):
                groups[-1].append(place)
            else:
                groups.append([place])
    return groups


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def holds_integers(tensor: torch.Tensor) -> bool:
    """Return whether it holds integers or booleans, which may be addresses or masks."""
    return not (tensor.is_floating_point() or tensor.is_complex())


_fused_rms_norm = torch.ops.aten._fused_rms_norm.default
ONLY_ON_A_GPU = frozenset([_fused_rms_norm, torch.ops.aten._fused_rms_norm_backward.default])

FAKE_QUANTISED = re.compile(r"_?fake_quantize_per_(tensor|channel)_affine_cachemask")

# The argument that holds the positions an operator reads or writes.
INDICES = {"index": "indices", "_index_put_impl_": "indices", "nll_loss_forward": "target"}
INDICES |= dict.fromkeys(READS_ROWS, "indices")


class _AsOnAGpu(TorchFunctionMode):
    """Takes PyTorch's GPU code paths: RMSNorm and dropout are one kernel on a GPU, but many on a CPU."""

    def __init__(self, shapes: "_Shapes"):
        super().__init__()
        self._shapes = shapes

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in (torch.rms_norm, functional.rms_norm, torch.dropout, functional.dropout):
            return func(*args, **(kwargs or {}))
        given = inspect.signature(getattr(functional, func.__name__)).bind(*args, **(kwargs or {}))
        given.apply_defaults()
        if func.__name__ == "rms_norm":
            with _disable_current_modes():
                return self._shapes.__torch_dispatch__(_fused_rms_norm, (), given.args)[0]
        input, p, training, inplace = given.args
        if inplace or not training or not 0 < p < 1:
            return func(*args, **(kwargs or {}))
        return torch.native_dropout(input, p, training)[0]


class _Shapes(EagerMeter):
    """Applies the meter's rules to operators without computing them."""

    def __init__(self, ledger: Ledger, launches: list):
        super().__init__(ledger)
        self._launches = launches
        self._moved = {}
        self.unknown_storages = set()  # of integers that were not computed
        self._instead_of = {}  # id of positions made up for unknown ones -> themselves, the unknown

    def unknown(self, tensor: torch.Tensor) -> torch.Tensor:
        self.unknown_storages.add(self._ledger.storage(tensor))
        return tensor

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return holds_integers(tensor) and self._ledger.storage(tensor) not in self.unknown_storages

    def _body(self, func, given):
        return None if func in ONLY_ON_A_GPU else super()._body(func, given)

    def _run(self, func, args, kwargs, given, body, place):
        name = func.overloadpacket.__name__
        if name in READS_AT or name in WRITES_AT or name in READS_ROWS:
            given = self._spread(INDICES.get(name, "index"), given)
        return super()._run(func, args, kwargs, given, body, place)

    def _spread(self, argument: str, given: dict) -> dict:
        """Replace unknown positions with positions spread as widely as possible."""
        of = given["self"] if "self" in given else given["weight"]

        def spread(positions, dim):
            if not holds_integers(positions) or self._is_known(positions) or not positions.dim():
                return positions
            along = dim if "dim" in given else 0
            shape = [-1 if place == along % positions.dim() else 1 for place in range(positions.dim())]
            found = torch.arange(positions.shape[along]).remainder(max(1, of.shape[dim])).view(shape)
            found = found.expand(positions.shape)
            self._instead_of[id(found)] = found, positions
            return found

        with _disable_current_modes():
            value = given[argument]
            if isinstance(value, list | tuple):
                value = [each if each is None else spread(each, dim) for dim, each in enumerate(value)]
            else:
                value = spread(value, given.get("dim", -1) if of.dim() else 0)
        return {**given, argument: value}

    def _compute(self, func, args, kwargs):
        if func.overloadpacket.__name__ in READS_WITHOUT_RESULT:
            return func(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        result = None
        if all(self._is_known(each) for each in tensors) and not RANDOM & set(func.tags):
            result = self._shapes_of(func, args, kwargs)
            made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
            if all(holds_integers(each) and each.numel() <= WORKED_OUT for each in made):
                return func(*args, **kwargs)
        if result is None:
            result = self._shapes_of(func, args, kwargs)
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and holds_integers(each):
                self.unknown(each)
        return result

    def _shapes_of(self, func, args, kwargs):
        originals = {}

        def on_meta(tensor):
            shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            originals[id(shape)] = tensor, shape
            return shape

        def back(tensor):
            if id(tensor) not in originals:
                return _hollow(tensor.shape, tensor.stride(), tensor.dtype)
            original, _ = originals[id(tensor)]
            if original.shape != tensor.shape:  # `out=` resizes an empty tensor
                original.set_(_hollow(tensor.shape, tensor.stride(), tensor.dtype))
            return original

        args, kwargs = tree_map_only(torch.Tensor, on_meta, (args, kwargs))
        if any(argument.name == "device" for argument in func._schema.arguments):
            kwargs = {**kwargs, "device": "meta"}
        try:
            if FAKE_QUANTISED.match(func.overloadpacket.__name__):  # has no rule for meta tensors
                result = torch.empty_like(args[0]), torch.empty_like(args[0], dtype=torch.bool)
            else:
                result = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            raise ValueError(f"{func} cannot run without data: {' '.join(str(error).split())[:120]}") from None
        match func.overloadpacket.__name__:
            # Meta tensors follow the CPU's rule. Source: cudnn_conv_suggest_memory_format in ATen/native/ConvUtils.h.
            case "convolution" if any(_is_channels_last(each) for each in args[:2]):
                result = result.contiguous(memory_format=torch.channels_last)
            case "native_batch_norm" if not args[5]:  # the statistics are saved anyway
                channels = args[0].shape[1]
                result = result[0], *(torch.empty(channels, device="meta", dtype=torch.float32) for _ in result[1:])
            case "_fused_rms_norm":
                result = result[0], result[1].float()
            case "log_sigmoid_forward":  # the second is a buffer for the CPU's backward pass
                result = result[0], result[1].new_empty(0)
        return tree_map_only(torch.Tensor, back, result)

    def _enter(self, func, given, read, changed, result, place):
        before = len(self._ledger.launches)
        self._moved = {}
        read = [self._own(*each) for each in read]
        self._instead_of.clear()
        super()._enter(func, given, read, changed, result, place)
        if len(self._ledger.launches) > before:
            name = self._ledger.launches[-1][0]
            inputs = [tensor for tensor, *_ in read]
            # Without holding the tensors themselves: autograd copies a gradient that somebody else holds.
            with _disable_current_modes():
                results = [tensor.detach() for tensor in _flat(result) if isinstance(tensor, torch.Tensor)]
            self._launches.append(EagerLaunch(name, func, given, inputs, results, self._moved))

    def _own(self, tensor, name, footprint):
        """Return the tensor behind a read at made-up positions: the one that holds the unknown positions."""
        _, own = self._instead_of.get(id(tensor), (None, None))
        return (tensor, name, footprint) if own is None else (own, name, footprint_of(own))

    def _move(self, touched, way) -> int:
        distinct = self._distinct(touched, way)
        for storage, footprint in distinct:
            record = distinct[storage, footprint][0]
            operand = self._moved.setdefault(storage, MovedOperand(size=record.size))
            setattr(operand, way, getattr(operand, way) + footprint.nbytes)
        return sum(footprint.nbytes for _, footprint in distinct)


def _flat(result) -> list:
    return [part for item in result for part in _flat(item)] if isinstance(result, list | tuple) else [result]


class _Sampler:
    """An observer that runs only a few program instances of each launch, each under its own meter.

    `multiprocessors` is for launchers that ask how many programs the GPU can run at once. `unknown`: the storages of
    integers whose values are unknown; those that a launch writes join them.
    """

    resident = sys.maxsize  # programs of a cooperative launch: how many fit depends on the compiled kernel

    def __init__(self, ledger: Ledger, launches: list, multiprocessors: int, unknown: set):
        self.multiprocessors = multiprocessors
        self._ledger = ledger  # of the whole call: it tells storages apart
        self._launches = launches
        self._unknown = unknown
        self._pending = None
        self._guesses = []  # integers to try other values of, and what they were

    def launch(self, kernel, grid, on_host, given):
        self.finish()
        count = grid[0] * grid[1] * grid[2]
        chosen = np.unique(np.linspace(0, count - 1, min(count, SAMPLED)).astype(np.int64)) if count else []
        launch = TritonLaunch(kernel.fn.__name__, kernel, given, grid, sampled=len(chosen))
        if count:
            self._launches.append(launch)
        self._arguments = kernel, grid, on_host, given
        tensors = [found for name, value in on_host.items() for found in tensors_in(name, value, given[name])]
        by_key = {tensor.untyped_storage()._cdata: (name, tensor) for name, _, tensor in tensors}
        self._storages = {key: self._ledger.storage(tensor) for key, (_, tensor) in by_key.items()}
        self._decisive = {key: named for key, named in by_key.items() if named[1].dtype in DECISIVE}
        self._pending = launch, [], [], []  # of each instance: meter's ledger, executions by place, arithmetic
        self._accessed = []  # by each instance: place, first address, active lanes -> bytes
        self._guesses, unknown = [], any(self._storages[key] in self._unknown for key in self._decisive)
        if unknown and count and not given.get("launch_cooperative_grid"):
            chosen = [*chosen, chosen[0]]  # again, with other integers
        return [tuple(int(part) for part in np.unravel_index(place, grid, order="F")) for place in chosen]

    def program(self, index):
        launch, ledgers, executed, arithmetic = self._pending
        if len(ledgers) == launch.sampled and not launch.given.get("launch_cooperative_grid"):
            self._guess(ledgers[0])
        self._accessed.append(Counter())
        ledgers.append(Ledger())
        executed.append(Counter())
        arithmetic.append(Counter())
        self._meter = TritonMeter(ledgers[-1])
        self._meter.launch(*self._arguments)
        self._meter.program(index)

    def access(self, kind, addresses, mask, itemsize, stored):
        frame = sys._getframe(1)
        while frame.f_code not in kernel_code:
            frame = frame.f_back
        self._accessed[-1][frame.f_code, frame.f_lasti, addresses.item(0), np.count_nonzero(mask)] += (
            np.count_nonzero(mask) * itemsize
        )
        if kind == "read":
            executed = self._pending[2][-1]
            executed[frame.f_lineno] += addresses.size * itemsize
            executed[frame.f_lineno, frame.f_lasti] += 1
        return self._meter.access(kind, addresses, mask, itemsize, stored)

    def _guess(self, ledger: Ledger) -> None:
        """Replace unknown integers that the first instance reads, and does not write, by 1, 2, 3 and so on: lengths,
        ends of sequences or positions."""
        for key, (_, tensor) in self._decisive.items():
            touched = ledger.storages.get(key)
            if touched is not None and self._storages[key] in self._unknown and not len(touched.written):
                with _disable_current_modes():
                    if len(touched.read) and tensor.numel() <= GUESSED:
                        self._guesses.append((tensor, tensor.clone()))
                        tensor.copy_(torch.arange(1, tensor.numel() + 1).view(tensor.shape))

    def _without_guess(self, launch: TritonLaunch) -> bool:
        """Forget the instance that ran with guessed integers; return whether it accessed what it did without."""
        guessed, base = self._accessed.pop(), self._accessed[0]
        for parts in self._pending[1:]:
            parts.pop()
        with _disable_current_modes():
            for tensor, before in self._guesses:
                tensor.copy_(before)
        other = sum(((guessed - base) + (base - guessed)).values()) / 2
        return bool(self._guesses) and other <= ALIKE * max(base.total(), guessed.total())

    def withdraw(self):
        if self._pending is not None and self._launches and self._launches[-1] is self._pending[0]:
            self._launches.pop()
        self._pending = None

    def barrier(self):
        self._meter.barrier()

    def lock(self, address, took):
        self._meter.lock(address, took)

    def product(self, left, right):
        launch, *_, arithmetic = self._pending
        launch.product = left.dtype.name
        arithmetic[-1]["flops"] += 2 * left.size * right.shape[-1]

    def operation(self, function, elements):
        arithmetic = self._pending[-1][-1]
        arithmetic["operations"] += elements
        arithmetic["special"] += elements * (function in SPECIAL)

    def finish(self) -> None:
        """Record the launch that has just run."""
        if self._pending is None:
            return
        launch, ledgers, executed, arithmetic = self._pending
        known = len(ledgers) == launch.sampled + 1 and self._without_guess(launch)
        self._pending = None
        if not ledgers:
            return
        # The first and last instances represent only themselves; those in between represent all the others.
        between = (launch.programs - 2) / (len(ledgers) - 2) if len(ledgers) > 2 else 1
        weights = [1.0, *[between] * (len(ledgers) - 2), 1.0][: len(ledgers)]
        for what in ("flops", "operations", "special"):
            setattr(launch, what, sum(weight * each[what] for weight, each in zip(weights, arithmetic, strict=True)))
        launch.most_flops = max(each["flops"] for each in arithmetic)
        for weight, ledger in zip(weights, ledgers, strict=True):
            moved = ledger.launches[0][1]
            launch.bytes_read += weight * moved.read
            launch.bytes_written += weight * moved.written
            launch.sectors_read += weight * ledger.sectors_read
            launch.sectors_written += weight * ledger.sectors_written
            launch.atomics += weight * ledger.atomics
        for key, storage in self._storages.items():
            each = [ledger.storages[key] for ledger in ledgers if key in ledger.storages]
            read = _over_the_grid([part.read for part in each], weights, launch.programs)
            written = _over_the_grid([part.written for part in each], weights, launch.programs)
            loaded = repeated = 0.0
            for weight, ledger in zip(weights, ledgers, strict=True):
                if key in ledger.storages:
                    part = ledger.storages[key]
                    its = sum(region.read for region in part.regions)
                    loaded, repeated = loaded + weight * its, repeated + weight * (its - len(part.read))
            launch.operands[id(storage)] = MovedOperand(read, written, storage.size, loaded, repeated)
            launch.repeated += repeated
            if key in self._decisive:
                if read and storage in self._unknown and not known:
                    launch.unknown += (self._decisive[key][0],)
                if written:
                    self._unknown.add(storage)
        for counts in executed:
            for place, count in counts.items():
                if isinstance(place, int):
                    launch.loads[place] = max(launch.loads.get(place, 0), count)
                else:
                    launch.rounds = max(launch.rounds, count)
        middle = ledgers[len(ledgers) // 2].storages.values()
        launch.working_set = sum(len(storage.read) + len(storage.written) for storage in middle)


def _over_the_grid(sets: list[ByteSet], weights: list[float], programs: int) -> float:
    """Estimate the distinct bytes of a storage that all program instances touch, from those that some touch."""
    sizes = [len(each) for each in sets]
    together = _union(sets)
    if len(sets) == programs or together == max(sizes, default=0):
        return together  # every program was sampled, or all touch the same bytes
    scaled = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    return min(scaled, sets[0].size)


def _union(sets: list[ByteSet]) -> int:
    sets = [each for each in sets if len(each)]
    if not sets:
        return 0
    low, high = min(each.low for each in sets), max(each.high for each in sets)
    if any(each.scattered for each in sets):
        together = np.zeros(high - low, dtype=bool)
        for each in sets:
            together[each.low - low : each.high - low] |= each.map()[each.low : each.high]
        return int(np.count_nonzero(together))
    total, reached = 0, low
    for each in sorted(sets, key=lambda one: one.low):
        total += max(0, each.high - max(each.low, reached))
        reached = max(reached, each.high)
    return total
