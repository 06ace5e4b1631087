"""Record a CUDA launch step by step, one warp at a time: its lanes' loads and stores, and named floats.

The executor runs many warps at once. Here each warp's steps up to a barrier are listed one after another, which is an
order that a GPU could also choose.
"""

import re

import numpy as np

from helpers.instruments.cuda.warp import WARP, everyone
from helpers.instruments.traffic.cuda_meter import requested
from helpers.instruments.traffic.watched_launch import (
    MAX_NUMBERS,
    MAX_STEPS,
    KernelStep,
    Memory,
    Move,
    Recording,
    TooLargeError,
    flat_of,
    memory_of,
)

ARITHMETIC = {
    "add",
    "sub",
    "mul",
    "fma",
    "mad",
    "div",
    "max",
    "min",
    "neg",
    "abs",
    "rcp",
    "sqrt",
    "rsqrt",
    "ex2",
    "lg2",
}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
ASSIGNED = re.compile(r"(?<![\w.\]])([A-Za-z_]\w*)\s*[-+*/]?=(?!=)")
STORED = re.compile(r"\]\s*=(?!=)\s*([^;=]+);")
SHARED = re.compile(r"__shared__\s+[\w:]+\s+(\w+)\s*\[")


class WarpRecorder:
    """Keeps what each warp does, and passes it on to the meter."""

    def __init__(self, before):
        self._before = before
        self.recording: Recording | None = None
        self._steps: list[tuple[tuple, KernelStep]] = []  # (block, phase, warp), step
        self._storing: list = []  # accesses whose values are read after they complete
        self._astray: tuple | None = None
        self._numbers = 0

    def __getattr__(self, name):
        return getattr(self._before, name)  # calls for the meter only

    def launch(self, launch, arguments, originals, memory) -> None:
        self._before.launch(launch, arguments, originals, memory)
        if self.recording is not None:
            raise ValueError(f"watch follows one launch, and {launch.kernel.name} is the second: launch one")
        self.recording = Recording(re.match(r"\w+", launch.kernel.name)[0], "block, warp")
        lines = launch.kernel.source.rstrip().split("\n")
        self._text = dict(enumerate(lines, 1))
        blank = next((at for at, line in enumerate(lines) if line.strip()), 0)
        self.recording.source = list(self._text.items())[blank:]
        self._shown = {number: at for at, (number, _) in enumerate(self.recording.source)}
        self._tensors, self._phase = {}, {}
        of_shared = SHARED.findall(launch.kernel.source)
        self._shared_name = of_shared[0] if len(of_shared) == 1 else "shared memory"
        for parameter, tensor in zip(launch.kernel.parameters, arguments, strict=True):
            if hasattr(tensor, "untyped_storage") and tensor.numel():
                try:
                    self.recording.memories[parameter.name] = memory_of(parameter.name, tensor)
                except TooLargeError as error:
                    self._give_up(str(error))
                storage = tensor.untyped_storage().data_ptr()
                self._tensors.setdefault(storage, []).append((parameter.name, tensor))

    def _give_up(self, why: str) -> None:
        self.recording.too_large = self.recording.too_large or why

    def chunk(self, machine) -> None:
        self._before.chunk(machine)
        self._machine = machine
        self._padded = machine.threads // machine.blocks
        if machine.first_block == 0:
            for block in machine.basic:
                for at, instruction in enumerate(block.made_of):
                    after = block.made_of[at + 1] if at + 1 < len(block.made_of) else None
                    if name := self._named(instruction, after):
                        block.steps[at] = self._followed(block.steps[at], instruction, name)

    def _named(self, instruction, after) -> str | None:
        """Return the source's name for this instruction's result, if it is the last float that its line computes."""
        if not _floating(instruction) or (after and _floating(after) and after.line == instruction.line):
            return None
        found = ASSIGNED.findall(self._text.get(instruction.line, ""))
        return found[-1] if found and hasattr(instruction.operands[0], "slot") else None

    def _followed(self, step, instruction, name):
        key = instruction.modifiers[-1], instruction.operands[0].slot

        def followed(machine, threads):
            self._flush()
            step(machine, threads)
            here = everyone(machine, threads)
            values = machine.views[key][here]
            for warp, lanes in self._warps(here):
                held = np.ma.masked_all(WARP, values.dtype)
                held[here[lanes] % WARP] = values[lanes]
                self._enter(warp, KernelStep((), self._shown[instruction.line], {name: held}))

        return followed

    def _warps(self, threads):
        """Yield ((block, warp), places in `threads`) for each warp."""
        for warp in np.unique(threads // WARP):
            thread = int(warp) * WARP
            block = self._machine.first_block + thread // self._padded
            yield (block, thread % self._padded // WARP), np.flatnonzero(threads // WARP == warp)

    def _enter(self, warp, step: KernelStep) -> None:
        if self.recording.too_large:
            return
        block, number = warp
        step.program = (block, number, 0)
        self._steps.append(((block, self._phase.get(block, 0), number), step))
        self._numbers += WARP * (len(step.named) + 3 * len(step.moves))
        if len(self._steps) > MAX_STEPS or self._numbers > MAX_NUMBERS:
            self._give_up(f"it takes more than {len(self._steps) - 1:,} steps")

    def _flush(self) -> None:
        storing, self._storing = self._storing, []
        for read, move in storing:
            move.values[...] = read()

    # Accesses

    def outside(self, kind, line, segment, threads, offsets) -> None:
        self._astray = kind, line, threads, offsets

    def hazard(self, kind, line, where, block, thread, count) -> None:
        self._before.hazard(kind, line, where, block, thread, count)

    def access(self, kind, line, segment, threads, offsets, nbytes) -> None:
        self._flush()
        self._before.access(kind, line, segment, threads, offsets, nbytes)
        if self.recording.too_large or segment.tensor is None or line not in self._shown:
            return
        name, tensor = self._tensor(segment, int(offsets[0]))
        itemsize, first = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
        memory = self.recording.memories[name]
        astray = self._taken(kind, line)
        every = threads if astray is None else np.concatenate([threads, astray[0]])
        for warp, lanes in self._warps(every):
            inside = lanes[lanes < threads.size]
            distinct, sectors, _ = requested(threads[inside], offsets[inside], nbytes) if inside.size else (0, 0, 0)
            each = nbytes // itemsize
            elements, active, outside = np.zeros((WARP, each), np.int64), *np.zeros((2, WARP, each), bool)
            places = offsets if astray is None else np.concatenate([offsets, astray[1]])
            lane = every[lanes] % WARP
            elements[lane] = ((places[lanes] - first) // itemsize)[:, None] + np.arange(each)
            active[lane] = True
            outside[every[lanes[lanes >= threads.size]] % WARP] = True

            def read(elements=elements, good=active & ~outside, tensor=tensor, places=memory.before.size):
                flat = flat_of(tensor, places)
                return np.where(good, flat[np.where(good, elements, 0)], 0).reshape(-1)

            moving = (inside.size if kind == "atomic" else distinct) * nbytes
            self._move(kind, name, line, warp, elements, active, outside, read, moving, sectors)

    def stored(self, line, threads, offsets, lost, changed) -> None:
        self._before.stored(line, threads, offsets, lost, changed)

    def landed(self, line, threads, offsets, nbytes) -> None:
        """Record a cp.async's store when it completes, not when it starts."""
        self._before.landed(line, threads, offsets, nbytes)
        self._shared_moves("write", line, threads, offsets, nbytes)

    def shared(self, kind, line, threads, offsets, nbytes, reported) -> None:
        self._flush()
        self._before.shared(kind, line, threads, offsets, nbytes, reported)
        self._shared_moves(kind, line, threads, offsets, nbytes)

    def _shared_moves(self, kind, line, threads, offsets, nbytes) -> None:
        if self.recording.too_large or line not in self._shown:
            return
        size = self._machine.shared_size
        for (block, number), lanes in self._warps(threads):
            name, count = f"{self._shared_name} of block {block}", self._machine.spaces.shared_limit // 4
            if name not in self.recording.memories:
                self.recording.memories[name] = Memory(
                    name,
                    "float32",
                    (count,),
                    (1,),
                    4,
                    0,
                    np.zeros(count, np.float32),
                    np.ones(count, bool),
                    shared=True,
                )
            each = max(1, nbytes // 4)
            elements, active = np.zeros((WARP, each), np.int64), np.zeros((WARP, each), bool)
            lane = threads[lanes] % WARP
            elements[lane] = (offsets[lanes] % size // 4)[:, None] + np.arange(each)
            active[lane] = True
            words = self._machine.spaces.shared_words()[(block - self._machine.first_block) * size // 4 :][:count]

            def read(elements=elements, active=active, words=words):
                return np.where(active, words[np.where(active, elements, 0)], 0).reshape(-1)

            moving = np.unique(offsets[lanes]).size * nbytes
            outside = np.zeros_like(active)
            self._move(kind, name, line, (block, number), elements, active, outside, read, moving, 0)

    def _move(self, kind, memory, line, warp, elements, active, outside, read, nbytes, sectors) -> None:
        flat = [each.reshape(-1) for each in (elements, active, outside)]
        values = np.asarray(read())
        text = self._text.get(line, "")
        stored = STORED.findall(text)
        does = {"read": "load", "write": "store"}.get(kind, kind)
        name = (
            stored[-1].strip()
            if kind == "write" and stored and len(stored[-1]) < 40
            else f"{does} {memory.split(' of ')[0]}"
        )
        move = Move(kind, memory, name, *flat, values, nbytes, sectors)
        self._enter(warp, KernelStep((), self._shown[line], {}, [move]))
        if kind != "read":
            self._storing.append((read, move))

    def _taken(self, kind, line):
        """Return the lanes of this access that were just found out of bounds: (threads, offsets)."""
        astray, self._astray = self._astray, None
        return astray[2:] if astray is not None and astray[:2] == (kind, line) else None

    def _tensor(self, segment, offset: int):
        tensors = self._tensors[segment.tensor.untyped_storage().data_ptr()]
        before = [
            (name, tensor) for name, tensor in tensors if tensor.storage_offset() * tensor.element_size() <= offset
        ]
        return max(before or tensors, key=lambda pair: pair[1].storage_offset())

    # Waiting

    def block_synchronised(self, blocks) -> None:
        self._before.block_synchronised(blocks)
        for block in np.unique(blocks):
            number = self._machine.first_block + int(block)
            self._phase[number] = self._phase.get(number, 0) + 1

    def finished(self) -> Recording:
        """Return the recording, with its steps one warp at a time."""
        self._flush()
        read = written = 0
        for _, step in sorted(self._steps, key=lambda pair: pair[0]):
            for move in step.moves:
                if not self.recording.memories[move.memory].shared:
                    read += move.nbytes * (move.kind != "write")
                    written += move.nbytes * (move.kind != "read")
            step.read, step.written = read, written
            self.recording.steps.append(step)
        if self.recording.too_large:
            self.recording.steps.clear()
        return self.recording


def _floating(instruction) -> bool:
    return instruction.opcode in ARITHMETIC and instruction.modifiers[-1] in FLOATS
