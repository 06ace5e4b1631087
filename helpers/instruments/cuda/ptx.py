"""Parse PTX into instructions: registers as numbers, each instruction with its line of C++.

The grammar is the subset of NVIDIA's "Parallel Thread Execution ISA" that NVRTC and inline assembly use.
"""

import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple


class Register(NamedTuple):
    slot: int
    kind: str  # "pred", "16", "32", "64"


class Immediate(NamedTuple):
    bits: int  # an integer's value; a floating-point constant's bits
    floating: int  # width in bits of a floating-point constant, 0 for an integer


class Vector(NamedTuple):
    parts: tuple


class Symbol(NamedTuple):
    name: str
    offset: int


class Address(NamedTuple):
    base: object  # Register, Symbol or Immediate
    offset: int


class Pair(NamedTuple):
    """Two destinations, as in `%p1|%p2`."""

    first: object
    second: object


class Not(NamedTuple):
    """An inverted predicate."""

    register: Register


@dataclass(frozen=True)
class PtxInstruction:
    """`@guard opcode.modifiers operands`; guard is (Register, whether negated) or None."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple
    guard: tuple[Register, bool] | None
    line: int  # of the C++ source
    text: str

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))


class Parameter(NamedTuple):
    type: str  # "u64", "f32", ... ; "b8" with a size for a struct
    size: int  # bytes
    offset: int


@dataclass(frozen=True)
class Variable:
    """Memory declared by the module: space "global", "const", "shared" or "local"."""

    space: str
    align: int
    size: int  # bytes; 0 for dynamic shared memory
    initial: bytes | None
    addresses: tuple[tuple[int, str, int], ...] = ()  # (byte, variable whose generic address it holds, bytes past it)


@dataclass
class Program:
    """One kernel: instructions in the order of the text, labels as indices into it."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    registers: list[str] = field(default_factory=list)  # the kind of each slot
    special: dict[str, int] = field(default_factory=dict)  # "%tid.x" -> slot
    instructions: list[PtxInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)  # tables of brx.idx
    carry: Register | None = None  # written by add.cc for addc


CARRYING = ("addc", "subc", "madc")
_HEAP = ("malloc", "free")
# Special registers that only a GPU has -> the reason, and an alternative.
_ON_A_GPU = (
    (r"%clock|%globaltimer", "there is no clock without one; count with `measure`, or time on a GPU"),
    (r"%cluster|%is_explicit_cluster|%nclusterid", "thread block clusters are not executed here; use plain blocks"),
    (r"%n?smid", "which multiprocessor runs a block is known only there"),
    (r"%envreg", "this_grid() of cooperative groups is not executed here; end the kernel and launch a second one "
     "instead of calling sync()"),
)  # fmt: skip
MAX_CALLS = 16  # nested
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(global|const|shared|local)\s+(?:\.attribute\([^)]*\)\s*)?"
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)((?:\[\d*\])*)(?:\s*=\s*(.+))?$",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+\d+)?)?\s+([\w$]+)(?:\[(\d+)\])?"
)
_LABEL = re.compile(r"([A-Za-z_$%][\w$%]*)\s*:(?!:)\s*")
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid)\.[xyz]$|%(laneid|warpid|nwarpid|envreg[12]|lanemask_\w+|dynamic_smem_size)$"
)
_FLOATING = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


def width(type: str) -> int:
    """Return the bytes of a PTX type: "u32", "b64", "f16x2"."""
    return 4 if type.endswith("x2") else max(1, int(re.search(r"\d+", type)[0]) // 8)


def plain_name(mangled: str) -> str:
    """Return a variable's name in the source: "tile" for "_ZZ4copyPKfPfE4tile"; unmangled names stay."""
    for found in re.finditer(r"(?=(?<!\d)(\d+)([A-Za-z_]\w*))", mangled):
        if mangled.startswith("_Z") and re.fullmatch(r"E?(_\d*_?)?", found[2][int(found[1]) :]) is not None:
            return found[2][: int(found[1])]
    return mangled


def parse(text: str, entry: str) -> Program:
    """Return the kernel `entry` (its mangled name) of a PTX module.

    Raises:
        NotImplementedError: it uses an unsupported part of PTX; the message names it and its line.
    """
    program = Program(parameters=parameters(text, entry))
    for statement in _module_statements(_COMMENT.sub("", text)):
        if match := _VARIABLE.match(statement):
            _declare(program, match)
    _Body(program, text, {}).read(text[_entry(text, entry).end() :])
    return program


def _entry(text: str, entry: str) -> re.Match:
    return re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)[^{{]*\{{", text, re.DOTALL)


def parameters(text: str, entry: str) -> dict[str, Parameter]:
    """Return the parameters of the kernel `entry`, in order."""
    found, offset = {}, 0
    for align, type, name, count in _PARAMETER.findall(_entry(text, entry)[1]):
        size = width(type) * int(count or 1)
        step = int(align or width(type))
        offset = -(-offset // step) * step
        found[name] = Parameter(type, size, offset)
        offset += size
    return found


def _module_statements(text: str):
    """Yield the declarations outside functions."""
    depth = 0
    for line in re.sub(r"\n(?=\s*[^.\s}])", " ", text).splitlines():
        if depth == 0 and line.lstrip().startswith((".extern", ".visible", ".weak", ".common", ".global", ".const")):
            yield line.strip().rstrip(";").strip()
        depth += line.count("{") - line.count("}")


def _declare(program: Program, match: re.Match) -> None:
    space, align, type, name, dimensions, initial = match.groups()
    size = width(type)
    for count in re.findall(r"\[(\d*)\]", dimensions):
        size *= int(count or 0)
    contents, addresses = None, ()
    if initial is not None:
        initial, addresses = _without_addresses(initial, width(type))
        values = [int(value, 0) for value in re.findall(r"-?(?:0x[0-9a-fA-F]+|\d+)(?![\w.])", initial)]
        if re.search(r"[A-Za-z_$]", re.sub(r"0[xX][0-9a-fA-F]+", "", initial)):
            raise NotImplementedError(f"the executor cannot fill {name} with an address: fill it in the kernel")
        each = width(type)
        contents = b"".join((value % (1 << (8 * each))).to_bytes(each, "little") for value in values).ljust(size, b"\0")
    elif space in ("global", "const"):
        contents = bytes(size)
    program.variables[name] = Variable(space, int(align or width(type)), size, contents, addresses)


_POINTER = re.compile(r"(?:generic\(([$_A-Za-z][\w$]*)\)|(?<![\w.(])([$_A-Za-z][\w$]*))(?:\s*\+\s*(\d+))?")


def _without_addresses(initial: str, each: int) -> tuple[str, tuple]:
    """Return the values with 0 for every address of a variable, and the addresses as Variable stores them."""
    if each != 8 or "(" in re.sub(r"generic\([\w$]*\)", "", initial):
        return initial, ()
    values = initial.strip().strip("{}").split(",")
    found = []
    for place, text in enumerate(values):
        if match := _POINTER.fullmatch(text.strip()):
            found.append((place * each, match[1] or match[2], int(match[3] or 0)))
            values[place] = "0"
    return ", ".join(values), tuple(found)


class _Body:
    """Reads the statements of one function; a call to another function is inlined.

    names: register name, or "prefix<" of a numbered family, -> Register or kind; a called function's parameters.
    call: "" for the kernel, else a prefix that makes this call's labels unique.
    """

    def __init__(self, program: Program, module: str, names: dict, call: str = "", depth: int = 0):
        self._program, self._module = program, module
        self._scopes = [names]
        self._call, self._depth = call, depth
        self._line = 0

    def read(self, body: str) -> None:
        """Read up to the brace that closes the function."""
        statement = ""
        braces = 0  # open braces within the statement
        for row in body.splitlines():
            row = row.split("//", 1)[0].strip()
            if re.match(r"\.loc\s", row):
                self._locate(row)
                continue
            for piece in re.split(r"([;{}])", row):
                if piece == "{" and not statement.strip():
                    self._scopes.append({})
                elif piece == "}" and not statement.strip():
                    self._scopes.pop()
                    if not self._scopes:
                        return
                elif piece == ";" and not braces:
                    self._statement(" ".join(statement.split()))
                    statement = ""
                else:
                    braces += (piece == "{") - (piece == "}")
                    statement += piece
                    if piece.strip().endswith(":"):  # a label precedes a brace or an instruction
                        statement = self._labelled(statement)
            statement += " "

    def _locate(self, row: str) -> None:
        place = re.search(r"inlined_at\s+1\s+(\d+)", row) or re.match(r"\.loc\s+1\s+(\d+)", row)
        if place and int(place[1]):
            self._line = int(place[1])

    def _labelled(self, statement: str) -> str:
        """Record a statement's labels, and return it without them."""
        statement = statement.strip()
        while match := _LABEL.match(statement):
            rest = statement[match.end() :]
            if rest.startswith(".branchtargets"):
                targets = re.findall(r"[\w$%]+", rest.removeprefix(".branchtargets"))
                self._program.targets[self._call + match[1]] = [self._call + target for target in targets]
                return ""
            self._program.labels[self._call + match[1]] = len(self._program.instructions)
            statement = rest
        return statement

    def _statement(self, text: str) -> None:
        text = self._labelled(text)
        if not text or text.startswith((".pragma", ".maxntid", ".callprototype")):
            return
        if text.startswith(".reg"):
            self._registers(text)
        elif match := _VARIABLE.match(text):
            _declare(self._program, match)
        elif match := re.fullmatch(r"\.param \.([bus]\d+|f\d+) ([\w$]+)", text):
            self._scopes[-1][match[2]] = self._new(str(max(16, 8 * width(match[1]))))
        elif match := re.fullmatch(r"\.param (?:\.align (\d+) )?\.b8 ([\w$]+)\[(\d+)\]", text):
            # A struct that a call passes or returns: memory of the thread.
            place = f"{match[2]}@{len(self._program.variables)}"
            self._program.variables[place] = Variable("local", int(match[1] or 1), int(match[3]), None)
            self._scopes[-1][match[2]] = Symbol(place, 0)
        elif text.startswith("call"):
            self._inline(text)
        elif text.startswith("."):
            raise NotImplementedError(f"the executor does not read `{text}` (line {self._line})")
        else:
            self._instruction(text)

    def _registers(self, text: str) -> None:
        _, type, names = text.split(None, 2)
        kind = "pred" if type == ".pred" else str(max(16, 8 * width(type)))
        for name in names.split(","):
            name = name.strip()
            if match := re.fullmatch(r"(.*)<\d+>", name):
                self._scopes[-1][match[1] + "<"] = kind
            else:
                self._scopes[-1][name] = self._new(kind)

    def _inline(self, text: str) -> None:
        """Insert the statements of a called function here."""
        called = re.fullmatch(r"call(?:\.uni)? ?(?:\(([^)]*)\), )?([\w$]+)(?:, \(([^)]*)\))? ?", text)
        name = called[2] if called else text
        if name == "vprintf":
            result, text_and_values = called[1], called[3].split(",")
            operands = tuple(self._register(each.strip()) for each in (result, *text_and_values))
            self._program.instructions.append(PtxInstruction("vprintf", (), operands, None, self._line, text))
            return
        if name in _HEAP:
            raise NotImplementedError(
                f"{name} within a kernel (line {self._line}) needs a GPU: allocate the memory in PyTorch, one part "
                "per thread, and pass the tensor"
            )
        if name == "__assertfail":
            self._program.instructions.append(PtxInstruction("trap", ("assert",), (), None, self._line, text))
            return
        if name is text:
            raise NotImplementedError(
                f"the executor does not call functions through pointers, or virtual ones (line {self._line}): choose "
                "with `if` or `switch` and call them by name"
            )
        function = re.search(rf"\.func\s*(\([^)]*\))?\s*{re.escape(name)}\s*(?:\(([^)]*)\))?\s*\{{", self._module)
        if function is None or self._depth > MAX_CALLS:
            why = "calls itself: write it as a loop" if function else "is not in the program"
            named = re.match(r"_Z(\d+)(\w+)", name)
            name = named[2][: int(named[1])] if named else name
            raise NotImplementedError(f"the executor cannot call {name} (line {self._line}): it {why}")
        names = {}
        for declared, given in ((function[1], called[1]), (function[2], called[3])):
            parameters = [parameter for *_, parameter, _ in _PARAMETER.findall(declared or "")]
            for parameter, argument in zip(parameters, (given or "").split(","), strict=bool(parameters)):
                names[parameter] = self._register(argument.strip())
        call = f"{self._call}{name}@{len(self._program.instructions)}:"
        _Body(self._program, self._module, names, call, self._depth + 1).read(self._module[function.end() :])
        self._program.labels[f"{call}return"] = len(self._program.instructions)

    def _new(self, kind: str) -> Register:
        self._program.registers.append(kind)
        return Register(len(self._program.registers) - 1, kind)

    def _register(self, name: str) -> Register | None:
        family = re.sub(r"\d+$", "<", name)
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
            if family in scope and family != name:
                scope[name] = self._new(scope[family])
                return scope[name]
        if _SPECIAL.match(name):
            slot = self._program.special.get(name)
            if slot is None:
                slot = self._program.special[name] = self._new("32").slot
            return Register(slot, "32")
        return None

    def _instruction(self, text: str) -> None:
        guard = None
        rest = text
        if match := re.match(r"@(!?)([\w%$]+)\s+", text):
            guard = self._register(match[2]), match[1] == "!"
            rest = text[match.end() :]
        words = rest.split(None, 1)
        opcode, *modifiers = words[0].split(".")
        operands = tuple(map(self._operand, _split(words[1]))) if len(words) > 1 else ()
        if self._call and opcode == "ret":
            opcode, modifiers, operands = "bra", [], (Symbol("return", 0),)
        if self._call and opcode in ("bra", "brx"):
            operands = tuple(
                Symbol(self._call + operand.name, 0) if isinstance(operand, Symbol) else operand for operand in operands
            )
        if modifiers[:1] == ["param"] and "[%" not in text:  # a call's, not the kernel's: registers
            operands = tuple(
                operand.base if isinstance(operand, Address) and isinstance(operand.base, Register) else operand
                for operand in operands
            )
            if any(isinstance(each, Address) and each.base.name in self._program.variables for each in operands):
                modifiers[0] = "local"
            elif not any(isinstance(operand, Address) for operand in operands):
                opcode, modifiers = "mov", [f"b{operands[0].kind}"]
        if self._program.carry is None and (opcode in CARRYING or "cc" in modifiers):
            self._program.carry = self._new("pred")
        self._program.instructions.append(PtxInstruction(opcode, tuple(modifiers), operands, guard, self._line, text))

    def _operand(self, text: str):
        text = text.strip()
        if text.startswith("{"):
            return Vector(tuple(map(self._operand, _split(text[1:-1]))))
        if text.startswith("["):
            base, _, offset = text[1:-1].partition("+")
            return Address(self._operand(base), int(offset or "0", 0))
        if "|" in text:
            return Pair(*map(self._operand, text.split("|")))
        if match := _FLOATING.match(text):
            return Immediate(int(match[2], 16), 32 if match[1] in "fF" else 64)
        if _INTEGER.match(text):
            return Immediate(int(text.rstrip("U"), 0), 0)
        if re.fullmatch(r"-?\d*\.\d+(e[+-]?\d+)?", text):
            return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
        if text == "_":
            return None
        if text == "WARP_SZ":
            return Immediate(32, 0)
        if text.startswith("!"):
            return Not(self._operand(text[1:]))
        register = self._register(text)
        if register is not None:
            return register
        if text == "%globaltimer" and "nanosleep" in self._module:
            return Immediate(0, 0)  # time that a barrier has waited: 0
        if text.startswith("%"):
            why = next((why for pattern, why in _ON_A_GPU if re.match(pattern, text)), f"the register {text}")
            raise NotImplementedError(f"line {self._line} needs a GPU: {why}")
        name, _, offset = text.partition("+")
        register = self._register(name.strip())
        if register is not None and not int(offset or "0", 0):
            return register  # a parameter of a call, [param0+0]
        return Symbol(name.strip(), int(offset or "0", 0))


def _split(text: str) -> list[str]:
    """Split operands at the commas outside brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [*parts, part]
