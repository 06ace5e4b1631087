"""SASS, the machine code of NVIDIA GPUs: read it from a cubin, count instructions by kind, show them highlighted."""

import functools
import html
import re
import subprocess
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from triton import knobs

from helpers.instruments.source_lines import source_line

# Opcodes without modifiers, by function. Source: instruction tables in NVIDIA's CUDA Binary Utilities.
KINDS = {
    "load": {"LDG", "LD", "LDGSTS", "UTMALDG", "UBLKCP"},
    "store": {"STG", "ST", "UTMASTG", "UTMAREDG", "UBLKRED"},
    "atomic": {"ATOM", "ATOMG", "RED", "REDG"},
    "shared": {"LDS", "STS", "LDSM", "STSM", "ATOMS"},
    "stack": {"LDL", "STL"},
}
TENSOR_CORE = re.compile(r"(H|I|D|B|Q|O|HG|IG|QG|BG|UTC[A-Z]*)MMA")  # mma.sync, wgmma and tcgen05 of PTX
SIZED = {"LDG", "LD", "LDGSTS", "STG", "ST", "LDS", "STS", "LDL", "STL"}
SOURCE_WIDTH = 60  # characters of source shown next to an instruction
WIDTH = re.compile(r"[USB]?(8|16|32|64|128|256)")  # a modifier that gives the bits per thread; without one they are 32

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;")
_PLACE = re.compile(r'\s*//## File "(.*)", line (\d+)')
_LABEL = re.compile(r"(\.L_\w+):")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        text: as NVIDIA's disassembler prints it, with the predicate.
        file, line: where it comes from; "" and 0 if the compiler recorded neither.
        label: its label if it is a branch target, else "".
    """

    text: str
    file: str
    line: int
    label: str

    @property
    def source(self) -> str:
        """The text of its source line; "" if it cannot be read."""
        return source_line(self.file, self.line)

    @property
    def opcode(self) -> str:
        """The opcode with its modifiers, such as "LDG.E.128"."""
        words = self.text.split()
        return words[1] if words[0].startswith("@") else words[0]

    @property
    def name(self) -> str:
        """The opcode without modifiers, but with the width in bits of a load or store: "LDG.128", "FFMA"."""
        base, *modifiers = self.opcode.split(".")
        if base not in SIZED:
            return base
        widths = [match[1] for match in map(WIDTH.fullmatch, modifiers) if match]
        return f"{base}.{widths[0] if widths else 32}"

    @property
    def kind(self) -> str:
        """ "load", "store", "atomic" (global memory), "shared", "stack", "tensor core", or "" for all else."""
        base = self.opcode.split(".")[0]
        if TENSOR_CORE.fullmatch(base):
            return "tensor core"
        return next((kind for kind, opcodes in KINDS.items() if base in opcodes), "")


@functools.lru_cache(maxsize=64)
def disassemble(cubin: bytes) -> tuple[Instruction, ...]:
    """Return a cubin's instructions, without the padding after each function.

    Raises:
        RuntimeError: NVIDIA's disassembler refuses the cubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", "-g", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm cannot read this cubin: {done.stderr.strip().splitlines()[-1]}")
    functions = re.split(r"^\.text\.\S+:$", done.stdout, flags=re.MULTILINE)[1:]
    return tuple(instruction for function in functions for instruction in _without_padding(_parse(function)))


def _parse(function: str) -> list[Instruction]:
    instructions, file, line, label = [], "", 0, ""
    for row in function.splitlines():
        if match := _INSTRUCTION.match(row):
            instructions.append(Instruction(match[1], file, line, label))
            label = ""
        elif match := _PLACE.match(row):
            file, line = match[1], int(match[2])
        elif match := _LABEL.match(row):
            label = match[1]
    return instructions


def _without_padding(instructions: list[Instruction]) -> list[Instruction]:
    # A function ends in a branch to itself, which stops runaway fetches, and NOPs up to its alignment.
    end = len(instructions)
    while end and instructions[end - 1].opcode == "NOP":
        end -= 1
    if end and instructions[end - 1].label and instructions[end - 1].text.endswith(f"({instructions[end - 1].label})"):
        end -= 1
    return instructions[:end]


def count(instructions: Sequence[Instruction]) -> Counter[str]:
    """Count the instructions of each name; 0 for a name that does not occur."""
    return Counter(sorted(instruction.name for instruction in instructions))


@dataclass(frozen=True, repr=False)
class SassView:
    """Readable SASS: kind, source line, instruction. As text, and as HTML with the marked lines in bold.

    Line numbers refer to the kernel's own file or cell; other files are named, as in standard.py:50. A line's text is
    next to the first of its consecutive instructions.
    """

    instructions: tuple[Instruction, ...]
    file: str  # the kernel's own
    spills: bool  # stack accesses are spills

    def _rows(self) -> Iterator[tuple[str, str]]:
        """(kind, row) of the head, then of each instruction."""
        texts = [f"{each.label and each.label + ': '}{each.text}" for each in self.instructions]
        sources = [each.source for each in self.instructions]
        width = max(map(len, texts), default=0)
        yield "", f"{'kind':<12}{'line':>16}  {'instruction':<{width}}  {'source' if any(sources) else ''}".rstrip()
        before = None
        for each, text, source in zip(self.instructions, texts, sources, strict=True):
            kind = "spill" if each.kind == "stack" and self.spills else each.kind
            place = str(each.line or "") if each.file == self.file else f"{Path(each.file).name}:{each.line}"
            beside = textwrap.shorten(source, SOURCE_WIDTH, placeholder=" ...") if place != before else ""
            yield kind, f"{kind:<12}{place:>16}  {text:<{width}}  {beside}".rstrip()
            before = place

    def __repr__(self):
        return "\n".join(row for _, row in self._rows())

    def _repr_html_(self):
        rows = (f"<b>{html.escape(row)}</b>" if kind else html.escape(row) for kind, row in self._rows())
        return f'<pre style="max-height: 40em; overflow: auto">{"<br>".join(rows)}</pre>'
