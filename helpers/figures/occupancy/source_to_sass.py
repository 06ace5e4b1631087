"""Animate a kernel's compilation: each line of Triton becomes machine instructions, and their values fill registers."""

import re
import textwrap
from itertools import accumulate

from helpers.figures.frame.animation import Animation, Bar, Film, MovingBox, Note, Stack
from helpers.instruments.resources import Resources
from helpers.instruments.sass import Instruction
from helpers.style import LIMIT, PALETTE

SPLIT, WIDTH = 336, 646  # pixels: where the machine code begins, and the end of it
LETTERS = 50  # of a line of Triton, before it is folded
TOP, LINE, ROW = 58, 24, 15  # the first row's top; heights of a line of Triton and of an instruction
FOLDED = 14  # height of each further line of a line of Triton
MARK = (10, 10)  # of a line's colour
REGISTER = (28, 22)
IN_A_ROW = 10  # registers
FLIGHT = 0.8  # of an instruction's turn
# Opcodes whose first operand is not written.
NO_RESULT = ("ST", "BRA", "EXIT", "BSSY", "BSYNC", "RET", "NOP", "BAR", "RED")
_REGISTER = re.compile(r"(?<![A-Z])R(\d+)(\.64)?")


def registers_of(instruction: Instruction) -> tuple[set[int], set[int]]:
    """Return the registers that an instruction reads, and those that it writes."""
    _, _, operands = instruction.text.partition(f"{instruction.opcode} ")
    first, _, others = operands.partition(", ")
    pair = ".WIDE" in instruction.opcode or instruction.name.endswith(".64")

    def named(text: str) -> set[int]:
        return {int(found[1]) + more for found in _REGISTER.finditer(text) for more in range(1 + bool(found[2]))}

    if instruction.opcode.startswith(NO_RESULT):
        return named(operands), set()
    if not (written := re.fullmatch(r"R(\d+)", first)):
        return named(others), set()
    return named(others), {int(written[1]) + more for more in range(1 + pair)}


def lifetimes(instructions: tuple[Instruction, ...]) -> list[tuple[int, int, int]]:
    """Return (register, the instruction that writes it, the last that reads that value), in the order of writing."""
    found, held = [], {}
    for number, each in enumerate(instructions):
        read, written = registers_of(each)
        for register in read & held.keys():
            held[register][2] = number
        for register in written:
            held[register] = [register, number, number]
            found.append(held[register])
    return [tuple(each) for each in found]


def compiler_animation(compiled: Resources) -> Film:
    """Return the film of a compiled kernel: short ones fit."""
    instructions = compiled.sass_view().instructions
    lines = sorted({each.line for each in instructions if each.source and not each.source.strip().startswith("def ")})
    colours = dict(zip(lines, PALETTE, strict=False))
    sources = {each.line: each.source.strip() for each in instructions}
    parts = {line: textwrap.wrap(sources[line], LETTERS, subsequent_indent="  ") for line in lines}
    heights = [LINE + FOLDED * (len(parts[line]) - 1) for line in lines]
    place = dict(zip(lines, accumulate(heights, initial=TOP), strict=False))
    seconds = len(instructions) + 1.0
    movers, bars, boxes, told = [], [], [], [(0.0, "The compiler takes the kernel apart, instruction by instruction.")]
    notes = [Note("Triton: what a block does", 0, 40, bold=True)]
    notes.append(Note(f"{compiled.device.name}'s machine code: what a thread does", SPLIT, 40, bold=True))
    for line, y in place.items():
        bars.append(Bar(0, y, *MARK, 0.0, 0.0, colours[line]))
        notes += [Note(part, 16, y + 9 + FOLDED * number) for number, part in enumerate(parts[line])]
    for number, each in enumerate(instructions):
        y, colour = TOP + ROW * number, colours.get(each.line, LIMIT)
        notes.append(Note(each.text, SPLIT + 16, y + 9))
        boxes.append((SPLIT, y, *MARK))
        if each.line in place:
            movers.append(MovingBox(0, place[each.line], SPLIT, y, *MARK, number, number + FLIGHT, colour))
            count = sum(other.line == each.line for other in instructions[: number + 1])
            told.append((float(number), f"Line {lines.index(each.line) + 1}, instruction {count} of it: {each.text}."))
        bars.append(Bar(SPLIT, y, *MARK, number + FLIGHT, number + FLIGHT, colour))
    top = TOP + sum(heights) + 42
    notes.append(Note(f"{compiled.registers} registers per thread", 0, top - 10, bold=True))
    slots = [
        (REGISTER[0] * (number % IN_A_ROW), top + (REGISTER[1] + 22) * (number // IN_A_ROW))
        for number in range(compiled.registers)
    ]
    for number, (x, y) in enumerate(slots):
        boxes.append((x, y, REGISTER[0] - 4, REGISTER[1]))
        notes.append(Note(f"R{number}", x + REGISTER[0] / 2 - 2, y + REGISTER[1] + 13, "center"))
    for register, written, read in lifetimes(instructions):
        x, y = slots[register]
        colour = colours.get(instructions[written].line, LIMIT)
        size = REGISTER[0] - 8, REGISTER[1] - 4
        movers.append(MovingBox(x + 2, y + 2, x + 2, y + 2, *size, written + FLIGHT, read + 1.0, colour))
    under = slots[-1][1] + REGISTER[1] + 38
    notes += [
        Note("filled: holds a value that a later instruction reads,", 0, under),
        Note("in the colour of the line that wrote it; grey: set-up", 0, under + 15),
    ]
    told.append((seconds - 1, "Each of the block's threads runs these instructions."))
    bottom = max(TOP + ROW * len(instructions), under + 15) + 8
    title = f"{len(lines)} lines of Triton become {len(instructions)} machine instructions"
    scene = Animation(
        (WIDTH, bottom), seconds, 14.0, "instructions", 1.0, title, tuple(movers), tuple(bars), tuple(notes),
        (), tuple(boxes), tuple(told), counts=True,
    )  # fmt: skip
    return Film({compiled.kernel: scene}, frame=0.66, narrow=Stack(SPLIT, SPLIT))
