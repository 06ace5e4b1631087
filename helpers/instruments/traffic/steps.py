"""A launch line by line: what each line of a kernel read, wrote and gave a name to, and the bytes so far.

The lines and the values are those of the interpreter's own run of the kernel; the bytes are the meter's.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import triton.language as tl

from helpers.instruments.traffic import measure
from helpers.instruments.traffic.footprint import SECTOR
from helpers.instruments.traffic.lanes import LaneRecorder
from helpers.instruments.traffic.result import Traffic
from kernels import runtime

MOST_LANES = 1024  # of a block
MOST_ELEMENTS = 4096  # of a tensor, with what lies between its rows
MOST_STEPS = 1500
MOST_NUMBERS = 120_000  # of all blocks of all steps


class TooLargeError(Exception):
    """A launch that no picture holds; its text says why."""


@dataclass(frozen=True)
class Memory:
    """A tensor of the launch as it lies in memory, counted in elements from its first.

    strides: in elements; first_byte: of its first element, from the start of a sector.
    before: (places,) what lies there before the launch; own: (places,) False between rows that lie apart.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    first_byte: int
    before: np.ndarray
    own: np.ndarray

    def sectors(self, elements: np.ndarray) -> np.ndarray:
        """The sectors that hold these elements, ascending; sector 0 begins at or before the first element."""
        return np.unique((self.first_byte + elements * self.itemsize) // SECTOR)


@dataclass(frozen=True)
class Move:
    """One load ("read"), store ("write") or atomic of one program instance, or of one warp.

    name: what the source calls the block; space: "global" or "shared".
    elements: of the block's shape, what each lane asks for; active: where no mask keeps a lane out; outside: of the
        active ones, those outside every tensor; values: what came, or what lay there afterwards.
    nbytes, sectors: as the meter counts them.
    """

    kind: str
    memory: str
    name: str
    elements: np.ndarray
    active: np.ndarray
    outside: np.ndarray
    values: np.ndarray
    nbytes: int
    sectors: int
    space: str = "global"


@dataclass
class KernelStep:
    """One statement that one program instance, or one warp, has carried out.

    line: of the source shown, counted from 0. named: name -> value of what the statement gave a value: a block, or an
    array of one number. read, written: bytes of the launch so far.
    """

    program: tuple[int, ...]
    line: int
    named: dict[str, np.ndarray] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    read: int = 0
    written: int = 0


@dataclass
class Recording:
    """A launch, step by step. `source`: (line number in its file, text) of each line shown; `who`: what runs a step."""

    kernel: str
    who: str
    source: list[tuple[int, str]] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)
    steps: list[KernelStep] = field(default_factory=list)
    too_large: str = ""  # why there are no steps


def memory_of(name: str, tensor: torch.Tensor) -> Memory:
    """A tensor on the host.

    Raises:
        TooLargeError: it spans more than MOST_ELEMENTS.
    """
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if span > MOST_ELEMENTS:
        raise TooLargeError(f"{name} has {tensor.numel():,} elements")
    own = np.zeros(span, bool)
    places = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    own[places] = True
    itemsize = tensor.element_size()
    return Memory(
        name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.stride(),
        itemsize,
        tensor.storage_offset() * itemsize % SECTOR,
        numbers(_flat(tensor, span).detach().clone()),
        own,
    )


def _flat(tensor: torch.Tensor, span: int) -> torch.Tensor:
    return torch.as_strided(tensor.detach(), (span,), (1,), tensor.storage_offset())


def numbers(values) -> np.ndarray:
    """Values as NumPy's own numbers; bfloat16 as float32."""
    if isinstance(values, torch.Tensor):
        values = values.float() if values.dtype == torch.bfloat16 else values
        return values.numpy()
    return values.astype(np.float32) if values.dtype.kind == "V" else values


class _Source:
    """The lines of a kernel or of a function that it calls, without its docstring, and their statements."""

    def __init__(self, code):
        first = code.co_firstlineno
        lines = inspect.getblock(linecache.getlines(code.co_filename)[first - 1 :])
        indent = len(lines[0]) - len(lines[0].lstrip())
        lines = [line[indent:].rstrip() for line in lines]
        function = ast.parse("\n".join(lines)).body[0]
        documented = ast.get_docstring(function) is not None
        hidden = range(function.body[0].lineno, function.body[0].end_lineno + 1) if documented else ()
        self.shown = [(first + at, line) for at, line in enumerate(lines) if at + 1 not in hidden]
        self.statement: dict[int, ast.stmt] = {}  # by line
        for node in ast.walk(function):  # the outer ones first
            if isinstance(node, ast.stmt):
                last = node.body[0].lineno - 1 if getattr(node, "body", None) else node.end_lineno
                for line in range(node.lineno, max(last, node.lineno) + 1):
                    self.statement[first + line - 1] = node
        self.first = first

    def begins(self, line: int) -> int:
        """The line where the statement at `line` begins."""
        node = self.statement.get(line)
        return line if node is None else self.first + node.lineno - 1


def block_names(statement: ast.stmt | None, kinds: list[str]) -> list[str | None]:
    """What a statement calls the blocks that it loads and stores, in order; None: it has no name for one."""
    calls = [
        node
        for node in ast.walk(statement or ast.Pass())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in ("load", "store") or node.func.attr.startswith("atomic_"))
    ]
    calls.sort(key=lambda node: (node.end_lineno, node.end_col_offset))  # the inner ones run first
    if len(calls) != len(kinds):
        return [None] * len(kinds)
    names = []
    for call, kind in zip(calls, kinds, strict=True):
        value = getattr(statement, "value", None)
        while isinstance(value, ast.Call) and value is not call and isinstance(value.func, ast.Attribute):
            value = value.func.value  # .to(tl.float32)
        given = {each.arg: each.value for each in call.keywords}.get("value", (call.args + [None] * 2)[1])
        if kind == "read" and value is call and isinstance(statement, ast.Assign):
            names.append(ast.unparse(statement.targets[0]))
        else:
            names.append(None if kind == "read" or given is None else ast.unparse(given))
    return names


class StepRecorder(LaneRecorder):
    """Follows the kernel's lines and keeps what they do; what it observes it passes on to the meter."""

    def __init__(self, before):
        super().__init__(before)
        self.recording: Recording | None = None
        self._sources, self._lines = {}, {}
        self._frames: list = []
        self._open = None
        self._numbers = 0
        self._following = False

    def launch(self, kernel, grid, arguments: dict, originals: dict):
        instances = super().launch(kernel, grid, arguments, originals)
        if self.recording is not None:
            self._stop()
            raise ValueError(f"watch follows one launch, and {kernel.fn.__name__} is the second: give it kernel[grid]")
        self.recording = Recording(kernel.fn.__name__, "program")
        self._hosts = dict(self._tensors)
        try:
            self.recording.memories = {name: memory_of(name, tensor) for name, tensor in self._tensors}
        except TooLargeError as error:
            self._give_up(str(error))
            return instances
        self._following = True
        sys.settrace(self._entered)
        return instances

    def _give_up(self, why: str) -> None:
        self._stop()
        self.recording.too_large = why
        self.recording.steps.clear()

    def _stop(self) -> None:
        self._following = False
        sys.settrace(None)

    # Lines

    def _entered(self, frame, event, arg):
        if frame.f_code not in runtime.kernel_code or not self._following:
            return None
        frame.f_trace = self._at
        if frame.f_code not in self._sources:
            source = self._sources[frame.f_code] = _Source(frame.f_code)
            for number, text in source.shown:
                self._lines[frame.f_code.co_filename, number] = len(self.recording.source)
                self.recording.source.append((number, text))
        self._close()
        self._frames.append((frame, {}))
        self._begin(frame, frame.f_code.co_firstlineno)
        return self._at

    def _at(self, frame, event, arg):
        if not self._following:
            return None
        if event == "line":
            begins = self._sources[frame.f_code].begins(frame.f_lineno)
            if self._open is None or self._open[0] is not frame or self._open[1] != begins:
                self._close()
                self._begin(frame, begins)
        elif event == "return":
            self._close()
            self._frames.pop()
            if self._frames:
                caller = self._frames[-1][0]
                self._begin(caller, self._sources[caller.f_code].begins(caller.f_lineno), back=True)
        return self._at

    def _begin(self, frame, number: int, back: bool = False) -> None:
        self._open = frame, number, back, []

    def _close(self) -> None:
        if self._open is None:
            return
        frame, number, back, moves = self._open
        self._open = None
        line = self._lines.get((frame.f_code.co_filename, number))
        named = self._changed(frame)
        if line is None or (back and not named and not moves):
            return
        statement = self._sources[frame.f_code].statement.get(number)
        names = block_names(statement, [kind for kind, *_ in moves])
        made = [self._moved(name, *move) for name, move in zip(names, moves, strict=True)]
        moved = self._before.moved
        step = KernelStep(self._program, line, named, made, moved.read, moved.written)
        self.recording.steps.append(step)
        self._numbers += sum(value.size for value in named.values()) + sum(3 * move.values.size for move in made)
        largest = max([0, *(value.size for value in named.values()), *(move.values.size for move in made)])
        if largest > MOST_LANES:
            self._give_up(f"a block has {largest:,} lanes")
        elif len(self.recording.steps) > MOST_STEPS:
            self._give_up(f"it takes more than {MOST_STEPS:,} steps")
        elif self._numbers > MOST_NUMBERS:
            self._give_up(f"its blocks hold more than {MOST_NUMBERS:,} numbers")

    def _changed(self, frame) -> dict[str, np.ndarray]:
        known = next(values for each, values in self._frames if each is frame)
        prefix = "" if frame is self._frames[0][0] else f"{frame.f_code.co_name}: "
        found = {}
        for name, value in frame.f_locals.items():
            if known.get(name) is not value:
                known[name] = value
                shown = _shown(value)
                if shown is not None:
                    found[prefix + name] = shown
        return found

    # Accesses

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int) -> np.ndarray | None:
        moved, ledger = self._before.moved, self._before.ledger
        bytes_before = moved.total
        sectors_before = ledger.sectors_read + ledger.sectors_written
        allowed = super().access(kind, addresses, mask, itemsize)
        access = self.accesses.pop()
        if not self._following or self._open is None:
            return allowed
        elements, active = (each.reshape(addresses.shape) for each in (access.elements, access.active))
        went = active if allowed is None else np.asarray(allowed)
        outside = active & ~went
        values = self._values(access.tensor, elements, went) if kind == "read" else None
        nbytes, sectors = moved.total - bytes_before, ledger.sectors_read + ledger.sectors_written - sectors_before
        self._open[3].append((kind, access.tensor, elements, active, outside, values, nbytes, sectors))
        return allowed

    def _moved(self, name, kind, memory, elements, active, outside, values, nbytes, sectors) -> Move:
        values = self._values(memory, elements, active & ~outside) if values is None else values
        does = {"read": "load", "write": "store"}.get(kind, kind)
        return Move(kind, memory, name or f"{does} {memory}", elements, active, outside, values, nbytes, sectors)

    def _values(self, name: str, elements: np.ndarray, active: np.ndarray) -> np.ndarray:
        tensor, places = self._hosts[name], len(self.recording.memories[name].before)
        flat = numbers(_flat(tensor, places))
        inside = active & (elements >= 0) & (elements < places)
        return np.where(inside, flat[np.where(inside, elements, 0)], 0)


def _shown(value) -> np.ndarray | None:
    """A local variable of a kernel as an array; None for what has no picture: addresses, functions, tuples."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.tensor):
        return None if value.dtype.is_ptr() else numbers(np.asarray(value.handle.data))
    return np.asarray(value) if isinstance(value, bool | int | float) else None


@contextlib.contextmanager
def _trace_kept() -> Iterator[None]:
    before = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(before)


def record(fn: Callable, *args, **more) -> tuple[Traffic, Recording]:
    """Meter `fn(*args, **more)`, which launches one Triton kernel, and keep what each line of it does.

    Args:
        fn: `kernel[grid]`, or a function that launches one; args, more: its arguments.

    Raises:
        ValueError: it launches no kernel, or more than one.
        Whatever the kernel raises.
    """
    recorders = []

    @functools.wraps(fn)
    def watched(*args):
        with _trace_kept(), runtime.observed(StepRecorder(runtime.observer())) as recorder:
            recorders.append(recorder)
            return fn(*args, **more)

    traffic = measure(watched, *args)
    (recorder,) = recorders
    if recorder.recording is None:
        raise ValueError("watch was given nothing that launches a kernel: write watch(kernel[grid], *arguments)")
    return traffic, recorder.recording
