"""A program as basic blocks: runs of steps between jumps, labels, barriers and instructions that wait for lanes."""

from dataclasses import dataclass

from helpers.instruments.cuda.decode import not_covered
from helpers.instruments.cuda.ptx import Program, PtxInstruction
from helpers.instruments.cuda.warp import COLLECTIVE

JUMPS = {"bra", "brx", "ret", "exit", "trap"}
BARRIERS = {"bar", "barrier"}
_BARRIER_MODIFIERS = {"sync", "cta", "aligned", "red", "popc", "and", "or", "pred", "u32", "warp"}


@dataclass
class Basic:
    """A basic block: steps, and the instruction that ends it, if it jumps or waits."""

    steps: list
    lines: list[int]
    made_of: list[PtxInstruction]  # one per step
    count: int  # instructions
    end: PtxInstruction | None
    waits_for: object = None  # key of the lane mask that its first step waits for

    @property
    def leaves(self) -> bool:
        """Return whether the block only ends its threads."""
        return not self.steps and self.end is not None and self.end.opcode in ("ret", "exit") and not self.end.guard


def basic_blocks(program: Program, decoder) -> tuple[list[Basic], dict[str, int]]:
    """Return the blocks in program order, and each label's block number (the number of blocks: the end).

    Raises:
        NotImplementedError: an instruction is not supported.
    """
    instructions = program.instructions
    starts = {0, *program.labels.values()}
    for place, instruction in enumerate(instructions):
        if _ends(instruction):
            starts.add(place + 1)
        elif _collective(instruction):
            starts.add(place)
    starts = sorted(start for start in starts if start < len(instructions))
    numbers = {start: number for number, start in enumerate(starts)}
    blocks = [
        _block(instructions[start:end], decoder)
        for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True)
    ]
    return blocks, {label: numbers.get(place, len(blocks)) for label, place in program.labels.items()}


def _block(instructions: list[PtxInstruction], decoder) -> Basic:
    last = instructions[-1]
    ends = _ends(last)
    if ends and last.opcode in BARRIERS and not set(last.modifiers) <= _BARRIER_MODIFIERS:
        raise not_covered(last)
    steps, lines, made_of = [], [], []
    for instruction in instructions[:-1] if ends else instructions:
        step = decoder.step(instruction)
        if step is not None:
            steps.append(step)
            lines.append(instruction.line)
            made_of.append(instruction)
    block = Basic(steps, lines, made_of, len(instructions), last if ends else None)
    if _collective(instructions[0]):
        block.waits_for = decoder.key(instructions[0].operands[-1], "u32")
        block.lines = lines or [instructions[0].line]
    return block


def _ends(instruction: PtxInstruction) -> bool:
    if instruction.opcode in BARRIERS:
        return instruction.modifiers[0] != "warp"
    return instruction.opcode in JUMPS


def _collective(instruction: PtxInstruction) -> bool:
    return instruction.opcode in COLLECTIVE or (instruction.opcode == "bar" and instruction.modifiers[0] == "warp")
