"""printf in a kernel: threads that reach it together print in thread order."""

import re
import sys

import numpy as np

from helpers.instruments.cuda.memory import LOCAL_WINDOW, SHARED_WINDOW
from helpers.instruments.cuda.ptx import PtxInstruction
from helpers.instruments.cuda.warp import everyone, store, value

MOST = 1 << 20  # characters per launch; a GPU's own buffer has as many bytes
# %[flags][width][.precision][length]conversion
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXcsfFeEgGaAp%])|%")


class Printer:
    """The output of one launch."""

    def __init__(self):
        self._printed = self._lost = 0

    def write(self, text: str) -> None:
        if self._printed > MOST:
            self._lost += 1
            return
        self._printed += len(text)
        sys.stdout.write(text)

    def finish(self) -> None:
        """Print how many calls were left out."""
        if self._lost:
            sys.stdout.write(
                f"... and {self._lost:,} more calls of printf: the buffer holds {MOST >> 20} MiB per launch\n"
            )


def step(decoder, instruction: PtxInstruction):
    """Return vprintf(text, values) as a step."""
    result, text, values = instruction.operands
    text, values = decoder.key(text, "u64"), decoder.key(values, "u64")

    def printed(machine, threads):
        here = everyone(machine, threads)
        texts = value(machine, text, threads, here.size).astype(np.uint64)
        places = value(machine, values, threads, here.size).astype(np.uint64)
        formats = {int(each): machine.text_at(int(each), int(here[0])) for each in np.unique(texts)}
        counts = np.zeros(here.size, np.uint32)
        for at, (thread, address, place) in enumerate(zip(here.tolist(), texts.tolist(), places.tolist(), strict=True)):
            memory = machine.local_bytes(thread, place & (SHARED_WINDOW - 1)) if place >= LOCAL_WINDOW else b""
            line, counts[at] = formatted(
                formats[address], memory, lambda of, thread=thread: machine.text_at(of, thread)
            )
            machine.printer.write(line)
        if result is not None:
            store(machine, ("b32", result.slot), threads, counts)

    return printed


def formatted(text: str, memory: bytes, text_at) -> tuple[str, int]:
    """Return the text that printf writes, and the number of values it used.

    Args:
        memory: the values, aligned as C aligns them.
        text_at: returns the string at an address.
    """
    taken = count = 0

    def take(size: int) -> bytes:
        nonlocal taken, count
        taken = -(-taken // size) * size
        raw = memory[taken : taken + size].ljust(size, b"\0")
        taken, count = taken + size, count + 1
        return raw

    def one(match: re.Match) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind is None:
            return match[0]
        if kind == "%":
            return "%"
        integer = lambda size, signed: int.from_bytes(take(size), "little", signed=signed)  # noqa: E731
        width = str(integer(4, True)) if width == "*" else width or ""
        if width.startswith("-"):
            flags, width = flags + "-", width[1:]
        if precision == "*":
            precision = str(integer(4, True))
        dot = "" if precision is None and "." not in match[0] else "." + (precision or "0")
        dot = "" if dot.startswith(".-") else dot
        spec = f"%{flags}{width}{dot}"
        size = 8 if length in ("l", "ll", "j", "z", "t") else 4
        narrow = {"h": 16, "hh": 8}.get(length)
        if kind in "fFeEgGaA":
            number = float(np.frombuffer(take(8), np.float64)[0])
            if kind in "aA":
                return f"%{flags}{width}s" % (number.hex() if kind == "a" else number.hex().upper())
            return (spec + kind) % number
        if kind == "c":
            return f"%{flags}{width}c" % (integer(4, False) & 0xFF)
        if kind == "s":
            address = integer(8, False)
            return (spec + "s") % (text_at(address) if address else "(null)")
        if kind == "p":
            address = integer(8, False)
            return f"%{flags}{width}s" % (f"0x{address:x}" if address else "(nil)")
        number = integer(size, False)
        bits = narrow or 8 * size
        number &= (1 << bits) - 1
        if kind in "di" and number >> (bits - 1):
            number -= 1 << bits
        if kind == "o" and "#" in flags:
            return f"%{flags.replace('#', '')}{width}s" % (f"0{number:o}" if number else "0")
        if kind in "xX" and not number:
            spec = spec.replace("#", "")
        if dot and "0" in flags:  # C: with a precision, an integer's flag 0 is ignored
            spec = f"%{flags.replace('0', '')}{width}{dot}"
        return (spec + ("d" if kind in "diu" else kind)) % number

    return _CONVERSION.sub(one, text), count
