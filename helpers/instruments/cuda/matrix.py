"""Matrix instructions of a warp: tensor-core matmuls and the loads that feed them.

The fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and the like.
"""

import numpy as np

from helpers.instruments.cuda.access import Place
from helpers.instruments.cuda.operation import DTYPES, unknown
from helpers.instruments.cuda.ptx import PtxInstruction
from helpers.instruments.cuda.warp import WARP, everyone, store, value

_LANES = np.arange(WARP)
_GROUP, _IN_GROUP = _LANES // 4, _LANES % 4


def _whole_warps(machine, threads, line: int) -> np.ndarray | None:
    """The threads as (warps, 32); None, after telling of it, where a lane is missing."""
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
        """(warps, 32 lanes, 2) numbers of one register."""
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


BUILDERS = {"mma": _multiply, "ldmatrix": _load}
