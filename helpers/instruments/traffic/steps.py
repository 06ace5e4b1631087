"""Record a launch line by line: the values that each kernel line reads, writes and names, and the bytes so far.

Lines and values come from the interpreter's run of the kernel; bytes come from the meter.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator

import numpy as np
import triton.language as tl

from helpers.instruments.cuda import observers
from helpers.instruments.traffic import measure
from helpers.instruments.traffic.lanes import LaneRecorder
from helpers.instruments.traffic.result import Traffic
from helpers.instruments.traffic.warp_steps import WarpRecorder
from helpers.instruments.traffic.watched_launch import (
    MAX_LANES,
    MAX_NUMBERS,
    MAX_STEPS,
    KernelStep,
    Move,
    Recording,
    TooLargeError,
    flat_of,
    memory_of,
    numbers,
)
from kernels.interpreter import runtime


class _Source:
    """The lines of a kernel or of a function that it calls, without the docstring, and their statements."""

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
        """Return the first line of the statement at `line`."""
        node = self.statement.get(line)
        return line if node is None else self.first + node.lineno - 1


def block_names(statement: ast.stmt | None, kinds: list[str]) -> list[str | None]:
    """Return the names of the blocks that a statement loads and stores, in order; None for an unnamed block."""
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
    """Follows the kernel's lines and records them; passes its observations on to the meter."""

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
            raise ValueError(
                f"watch follows one launch, and {kernel.fn.__name__} is the second: "
                "write watch(kernel[grid], *arguments)"
            )
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

    def finished(self) -> Recording:
        return self.recording

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
                if self._frames:
                    self.recording.called[len(self.recording.source)] = frame.f_code.co_name
                self.recording.source.append((number, text))
        self._close()
        known = {}
        if self._frames:  # the caller's picture already shows a function's arguments
            given = set(map(id, self._frames[-1][0].f_locals.values()))
            plain = bool | int | float | tl.constexpr
            known = {
                name: value for name, value in frame.f_locals.items() if id(value) in given or isinstance(value, plain)
            }
        self._frames.append((frame, known))
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
            self._close(arg if len(self._frames) > 1 else None)
            self._frames.pop()
            if self._frames:
                caller = self._frames[-1][0]
                self._begin(caller, self._sources[caller.f_code].begins(caller.f_lineno), back=True)
        return self._at

    def _begin(self, frame, number: int, back: bool = False) -> None:
        self._open = frame, number, back, []

    def _close(self, given=None) -> None:
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
        names = [self._prefix(frame) + name if name in frame.f_locals else name for name in names]
        made = [self._moved(name, *move) for name, move in zip(names, moves, strict=True)]
        moved = self._before.moved
        gave = _returned(statement, given, frame) if given is not None and not moves else []
        step = KernelStep(self._program, line, named, made, gave, moved.read, moved.written)
        self.recording.steps.append(step)
        self._numbers += sum(value.size for value in named.values()) + sum(3 * move.values.size for move in made)
        largest = max([0, *(value.size for value in named.values()), *(move.values.size for move in made)])
        if largest > MAX_LANES:
            self._give_up(f"a block has {largest:,} lanes")
        elif len(self.recording.steps) > MAX_STEPS:
            self._give_up(f"it takes more than {MAX_STEPS:,} steps")
        elif self._numbers > MAX_NUMBERS:
            self._give_up(f"its blocks hold more than {MAX_NUMBERS:,} numbers")

    def _prefix(self, frame) -> str:
        """Return the prefix for names in a function that the kernel calls."""
        return "" if frame is self._frames[0][0] else f"{frame.f_code.co_name}: "

    def _changed(self, frame) -> dict[str, np.ndarray]:
        known = next(values for each, values in self._frames if each is frame)
        prefix, found = self._prefix(frame), {}
        for name, value in frame.f_locals.items():
            if known.get(name) is not value:
                known[name] = value
                shown = _shown(value)
                # Tiles of offsets are not drawn; the elements that they point to are.
                if shown is not None and not (shown.ndim > 1 and shown.dtype == np.int64):
                    found[prefix + name] = shown
        return found

    # Accesses

    def access(
        self, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int, stored: np.ndarray | None
    ) -> np.ndarray | None:
        moved, ledger = self._before.moved, self._before.ledger
        bytes_before = moved.total
        sectors_before = ledger.sectors_read + ledger.sectors_written
        allowed = super().access(kind, addresses, mask, itemsize, stored)
        access = self.accesses.pop()
        if not self._following or self._open is None:
            return allowed
        elements, active = (each.reshape(addresses.shape or 1) for each in (access.elements, access.active))
        went = active if allowed is None else np.asarray(allowed).reshape(active.shape)
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
        flat = flat_of(tensor, places)
        inside = active & (elements >= 0) & (elements < places)
        return np.where(inside, flat[np.where(inside, elements, 0)], 0)


def _shown(value) -> np.ndarray | None:
    """Return a kernel's local variable as an array; None for addresses, functions and tuples, which are not drawn."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.tensor):
        return None if value.dtype.is_ptr() else _at_least_one(numbers(np.asarray(value.handle.data)))
    return _at_least_one(np.asarray(value)) if isinstance(value, bool | int | float) else None


def _returned(statement: ast.stmt | None, given, frame) -> list[tuple[str, list[np.ndarray]]]:
    """Return the values of a `return`, expression by expression; for a sum, its two terms come first."""
    if not isinstance(statement, ast.Return):
        return []
    several = isinstance(statement.value, ast.Tuple)
    nodes, values = (statement.value.elts, given) if several else ([statement.value], [given])
    found = []
    for node, value in zip(nodes, values, strict=True):
        shown = _shown(value)
        if shown is None:
            continue
        adds = shown.size == 1 and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _of_tl(node)
        parts = [_shown(_value(each, frame)) for each in (node.left, node.right)] if adds else []
        found.append((ast.unparse(node), [*(part for part in parts if part is not None), shown]))
    return found


def _of_tl(node: ast.expr) -> bool:
    """Return whether an expression calls only Triton's own functions, which are safe to call again: the kernel's might
    load."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return all(isinstance(call, ast.Attribute) and ast.unparse(call.value) == "tl" for call in calls)


def _value(node: ast.expr, frame):
    return eval(compile(ast.Expression(node), "<returned>", "eval"), frame.f_globals, frame.f_locals)


def _at_least_one(values: np.ndarray) -> np.ndarray:
    """Give a single number the shape (1,), whether it was a scalar or a block."""
    return values.reshape(1) if values.size == 1 else values


@contextlib.contextmanager
def _trace_kept() -> Iterator[None]:
    before = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(before)


def record(fn: Callable, *args, **more) -> tuple[Traffic, Recording]:
    """Meter `fn(*args, **more)`, which launches one kernel, and record what each of its lines does.

    Args:
        fn: `kernel[grid]`, or a function that launches one; args, more: its arguments.

    Raises:
        ValueError: it launches no kernel, or more than one.
        Whatever the kernel raises.
    """
    recorders = []

    @functools.wraps(fn)
    def watched(*args):
        with (
            _trace_kept(),
            runtime.observed(StepRecorder(runtime.observer())) as of_triton,
            observers.observed(WarpRecorder(observers.observer())) as of_cuda,
        ):
            recorders.extend((of_triton, of_cuda))
            return fn(*args, **more)

    traffic = measure(watched, *args)
    found = [recorder.finished() for recorder in recorders if recorder.recording is not None]
    if not found:
        raise ValueError("watch found no kernel launch: write watch(kernel[grid], *arguments)")
    if len(found) > 1:
        raise ValueError("watch follows one launch, and this makes two: write watch(kernel[grid], *arguments)")
    return traffic, found[0]
