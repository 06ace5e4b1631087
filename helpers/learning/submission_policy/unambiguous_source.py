"""Check that a piece of Python source means the same to every tool that reads it.

An answer is checked as a syntax tree. Besides `ast`, three others read its text: IPython, which rewrites anything that
looks like a prompt or a magic; `linecache`, which splits lines where Python doesn't; and Triton, which cuts a kernel's
source out of the file with a pattern. If one of them would see code that differs from the checked code, the answer is
refused.
"""

import ast
import inspect
import re
import textwrap

from IPython.core.inputtransformer2 import TransformerManager

# Line ends for str.splitlines, and so for linecache and inspect, but not, or only blanks, for Python's parser.
LINE_ENDS = {"\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"}
CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")  # PEP 263
LONG_NUMBER = re.compile(r"0[xob][0-9a-f_]{3500,}|\d[\d_]{4000,}", re.IGNORECASE)  # Python prints at most 4,300 digits
DECORATOR = re.compile(r"@triton\.jit[ \t]*(#.*)?$")
TRITONS_CUT = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)  # triton/runtime/jit.py


def characters_of_two_readings(source: str) -> tuple[int, str] | None:
    """Return the line of the first characters that other tools would read differently from Python, and the reason."""
    for number, line in enumerate(source.split("\n"), 1):
        if strange := sorted(LINE_ENDS.intersection(line)):
            return number, f"the character U+{ord(strange[0]):04X} ends a line for some tools that read it: delete it"
        if "\r" in line.removesuffix("\r"):
            return number, "the character U+000D ends a line for some tools that read it: delete it"
        if LONG_NUMBER.search(line):
            return number, "a number with thousands of digits, which Python refuses to print: compute it, as 2**100"
        if number <= 2 and CODING.match(line):
            return number, "text in a notebook is UTF-8: delete the line that names an encoding"
    return None


def is_rewritten_by_ipython(source: str, tree: ast.Module) -> bool:
    """Return whether IPython would change more than white space in a cell before running it."""
    run = TransformerManager().transform_cell(source)
    if run.strip() == source.strip():
        return False
    try:
        return ast.dump(ast.parse(run)) not in (ast.dump(tree), ast.dump(ast.parse(textwrap.dedent(source))))
    except (SyntaxError, ValueError):
        return True


def as_triton_reads(source: str, kernel: ast.FunctionDef) -> str:
    """Return why Triton would cut a different function out of the text than `kernel`; empty if it wouldn't."""
    lines = source.splitlines(keepends=True)
    if not DECORATOR.match(lines[kernel.decorator_list[0].lineno - 1].rstrip()):
        return "write @triton.jit at the start of a line of its own"
    written = re.compile(rf"def {kernel.name}\(")
    if not written.match(lines[kernel.lineno - 1]):
        return f"write `def {kernel.name}(` at the start of a line, without a break"
    block = "".join(inspect.getblock(lines[kernel.decorator_list[0].lineno - 1 :]))
    try:
        cut = ast.parse(block[TRITONS_CUT.search(block).start() :]).body
    except (SyntaxError, AttributeError):
        cut = []
    undecorated = ast.FunctionDef(**{name: getattr(kernel, name) for name in kernel._fields} | {"decorator_list": []})
    if len(cut) != 1 or ast.dump(cut[0]) != ast.dump(undecorated):
        return f"Triton would read {kernel.name} from another line of this text: let no other line begin with `def`"
    return ""
