"""Warp matrix instructions: tensor-core matmuls and the loads that feed them.

The fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and the like.
"""

from typing import NamedTuple

import numpy as np

from helpers.instruments.cuda import floats
from helpers.instruments.cuda.access import Place, put, space_of
from helpers.instruments.cuda.operation import DTYPES, unknown
from helpers.instruments.cuda.ptx import PtxInstruction
from helpers.instruments.cuda.warp import WARP, everyone, store, value

_LANES = np.arange(WARP)
_GROUP, _IN_GROUP = _LANES // 4, _LANES % 4


def _whole_warps(machine, threads, line: int) -> np.ndarray | None:
    """Return the threads as (warps, 32); if a lane is missing, report it and return None."""
    here = everyone(machine, threads)
    if here.size % WARP == 0 and not (here.reshape(-1, WARP) - here[::WARP, None] != _LANES).any():
        return here.reshape(-1, WARP)
    machine.hazard("wrong mask", line, "a matrix instruction needs all 32 lanes of the warp", int(here[0]), here.size)
    return None


def _multiply(decoder, instruction: PtxInstruction):
    """mma.sync.aligned.m16n8k{8,16}.row.col, fp16 or bf16 operands, fp32 sums."""
    sync, aligned, shape, *layout, result, left, right, sums = instruction.modifiers
    if (sync, aligned, layout, result, sums) != ("sync", "aligned", ["row", "col"], "f32", "f32"):
        unknown()
    if shape not in ("m16n8k8", "m16n8k16") or left != right or left not in ("f16", "bf16"):
        unknown()
    depth = int(shape.split("k")[1])
    dtype = DTYPES[left]
    d, a, b, c = (operand.parts for operand in instruction.operands)
    a, b = ([decoder.key(part, "u32") for part in parts] for parts in (a, b))
    c = [decoder.key(part, "f32") for part in c]

    def halves(machine, key, here):
        """Return one register's numbers, (warps, 32 lanes, 2)."""
        words = np.ascontiguousarray(value(machine, key, here.ravel(), here.size))
        return words.view(dtype).astype(np.float64).reshape(-1, WARP, 2)

    def step(machine, threads):
        here = _whole_warps(machine, threads, instruction.line)
        if here is None:
            return
        first, second = np.empty((len(here), 16, depth)), np.empty((len(here), depth, 8))
        for place, key in enumerate(a):
            pair = halves(machine, key, here)
            for half in range(2):
                first[:, _GROUP + 8 * (place % 2), 2 * _IN_GROUP + half + 8 * (place // 2)] = pair[:, :, half]
        for place, key in enumerate(b):
            pair = halves(machine, key, here)
            for half in range(2):
                second[:, 2 * _IN_GROUP + half + 8 * place, _GROUP] = pair[:, :, half]
        product = first @ second
        for place, (key, out) in enumerate(zip(c, d, strict=True)):
            before = np.asarray(value(machine, key, here.ravel(), here.size)).reshape(-1, WARP)
            total = product[:, _GROUP + 8 * (place // 2), 2 * _IN_GROUP + place % 2] + before
            store(machine, ("f32", out.slot), here.ravel(), total.astype(np.float32).ravel())

    return step


def _load(decoder, instruction: PtxInstruction):
    """ldmatrix: 8 x 8 matrices of 16-bit numbers, whose rows the lanes point to."""
    rest = [modifier for modifier in instruction.modifiers if modifier not in ("shared", "shared::cta")]
    transposed = "trans" in rest
    targets, source = instruction.operands
    targets = targets.parts if hasattr(targets, "parts") else (targets,)
    if [each for each in rest if each != "trans"] != ["sync", "aligned", "m8n8", f"x{len(targets)}", "b16"]:
        unknown()
    place = Place(decoder, instruction, source, "shared", 16)

    def step(machine, threads):
        here = _whole_warps(machine, threads, instruction.line)
        if here is None:
            return
        rows = np.zeros((len(here), 8 * len(targets), 8), np.uint16)
        pointing = here[:, : 8 * len(targets)].ravel()
        for these, memory, offsets in place.resolve(machine, pointing, "read"):
            words = memory[2][(offsets >> 1)[:, None] + np.arange(8)]
            rows[np.searchsorted(here[:, 0], these // WARP * WARP), these % WARP] = words
        for number, target in enumerate(targets):
            matrix = rows[:, 8 * number : 8 * number + 8]
            matrix = matrix.swapaxes(1, 2) if transposed else matrix
            pairs = np.stack([matrix[:, _GROUP, 2 * _IN_GROUP], matrix[:, _GROUP, 2 * _IN_GROUP + 1]], axis=-1)
            store(machine, ("b32", target.slot), here.ravel(), np.ascontiguousarray(pairs).view(np.uint32).ravel())

    return step


class Fragment(NamedTuple):
    """A matrix of wmma in the registers of a warp.

    The executor chooses which lane holds which element: CUDA doesn't specify it. Registers are filled one by one,
    lane by lane, in the order of the matrix's rows or columns; a matrix with fewer elements is repeated.
    """

    rows: int
    columns: int
    by_columns: bool
    dtype: np.dtype
    registers: int

    @property
    def each(self) -> int:
        """Return the number of elements per register."""
        return 4 // self.dtype.itemsize

    @property
    def copies(self) -> int:
        return max(1, self.registers * WARP * self.each // (self.rows * self.columns))

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements' (rows, columns), each (registers without repetition, lanes, elements in one)."""
        shape = (self.registers // self.copies, WARP, self.each)
        order = np.arange(self.rows * self.columns).reshape(shape)
        if self.by_columns:
            return order % self.rows, order // self.rows
        return order // self.columns, order % self.columns

    def gather(self, machine, keys, here: np.ndarray) -> np.ndarray:
        """Return the numbers in these registers as (warps, rows, columns)."""
        whole = np.empty((len(here), self.rows, self.columns), self.dtype)
        for row, column, key in zip(*self.places(), keys, strict=False):
            words = np.ascontiguousarray(value(machine, key, here.ravel(), here.size))
            whole[:, row, column] = words.view(self.dtype).reshape(-1, WARP, self.each)
        return whole

    def scatter(self, machine, outs, here: np.ndarray, whole: np.ndarray) -> None:
        for row, column, out in zip(*self.places(), outs, strict=False):
            words = np.ascontiguousarray(whole[:, row, column]).view(np.uint32)
            store(machine, out, here.ravel(), words.ravel())


_SHAPES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16), "m16n16k8": (16, 16, 8)}
_WMMA_TYPES = {"f16", "bf16", "tf32", "f32", "s32", "s8", "u8"}


def _fragment(which: str, shape: str, layout: str, type: str, registers: int) -> Fragment:
    if shape not in _SHAPES or type not in _WMMA_TYPES:
        unknown()
    m, n, k = _SHAPES[shape]
    rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    # The load and the store determine the layout of sums in memory, not the fragment.
    by_columns = layout == "col" and which in "ab"
    return Fragment(rows, columns, by_columns, DTYPES["f32" if type == "tf32" else type], registers)


def _wmma(decoder, instruction: PtxInstruction):
    """The warp matrices of <mma.h>: wmma.load, wmma.store and wmma.mma."""
    build = {"load": _wmma_move, "store": _wmma_move, "mma": _wmma_multiply}.get(instruction.modifiers[0]) or unknown()
    return build(decoder, instruction)


def _wmma_move(decoder, instruction: PtxInstruction):
    how, which, sync, aligned, layout, shape, *space, type = instruction.modifiers
    space, rest = space_of(space)
    loads = how == "load"
    registers, address, *stride = instruction.operands if loads else _swapped(instruction.operands)
    if (sync, aligned) != ("sync", "aligned") or rest or layout not in ("row", "col"):
        unknown()
    fragment = _fragment(which, shape, layout, type, len(registers.parts))
    size, each = fragment.dtype.itemsize, fragment.each
    rows, columns = fragment.places()
    together = each > 1 and fragment.by_columns == (layout == "col")  # a register's elements are adjacent in memory
    nbytes = 4 if together else size
    place = Place(decoder, instruction, address, space, nbytes)
    keys = [("b32", part.slot) for part in registers.parts] if loads else [
        decoder.key(part, "u32") for part in registers.parts
    ]  # fmt: skip
    leading = (
        decoder.key(stride[0], "u32") if stride else np.uint32(fragment.rows if layout == "col" else fragment.columns)
    )

    def step(machine, threads):
        here = _whole_warps(machine, threads, instruction.line)
        if here is None:
            return
        flat = here.ravel()
        wide = value(machine, leading, flat, flat.size).astype(np.int64)
        for number, (row, column) in enumerate(zip(rows, columns, strict=True)):
            words = np.zeros(flat.size, np.uint32)
            if not loads:
                words[...] = value(machine, keys[number], flat, flat.size)
            parts = words.view(f"u{nbytes}").reshape(flat.size, -1)
            for part in range(parts.shape[1]):
                outer, inner = (column, row) if layout == "col" else (row, column)
                lane = flat % WARP
                added = (outer[lane, part] * wide + inner[lane, part]) * size
                for these, memory, offsets in place.resolve(machine, flat, "read" if loads else "write", added):
                    chosen = slice(None) if these is flat else np.searchsorted(flat, these)
                    index = offsets >> (nbytes.bit_length() - 1)
                    if loads:
                        parts[chosen, part] = memory[nbytes][index]
                    else:
                        put(machine, instruction.line, these, memory, nbytes, index, parts[chosen, part], offsets)
            if loads:
                for copy in range(number, len(keys), len(rows)):
                    store(machine, keys[copy], flat, words)

    return step


def _swapped(operands):
    address, registers, *stride = operands
    return registers, address, *stride


def _wmma_multiply(decoder, instruction: PtxInstruction):
    _, sync, aligned, left_layout, right_layout, shape, *types = instruction.modifiers
    saturates = types[-1] == "satfinite"
    types = types[:-1] if saturates else types
    if len(types) == 2:  # for fp16, only the sums' types are named
        types = [types[0], "f16", "f16", types[1]]
    result, left, right, sums = types
    d, a, b, c = (operand.parts for operand in instruction.operands)
    if (sync, aligned) != ("sync", "aligned") or (saturates and result != "s32"):
        unknown()
    fragments = [
        _fragment("a", shape, left_layout, left, len(a)),
        _fragment("b", shape, right_layout, right, len(b)),
        _fragment("c", shape, "row", sums, len(c)),
    ]
    of_result = _fragment("d", shape, "row", result, len(d))
    keys = [[decoder.key(part, "u32") for part in parts] for parts in (a, b, c)]
    outs = [("b32", part.slot) for part in d]
    whole = np.int64 if result == "s32" else np.float64

    def step(machine, threads):
        here = _whole_warps(machine, threads, instruction.line)
        if here is None:
            return
        first, second, before = (
            fragment.gather(machine, parts, here) for fragment, parts in zip(fragments, keys, strict=True)
        )
        if left == "tf32":
            first, second = (
                (np.ascontiguousarray(each).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
                for each in (first, second)
            )
        total = first.astype(whole) @ second.astype(whole) + before.astype(whole)
        if result == "s32":
            limits = np.iinfo(np.int32)
            total = (np.clip(total, limits.min, limits.max) if saturates else total).astype(np.int32)
        else:
            total = floats.narrow(total, of_result.dtype)
        of_result.scatter(machine, outs, here, total)

    return step


BUILDERS = {"mma": _multiply, "ldmatrix": _load, "wmma": _wmma}
