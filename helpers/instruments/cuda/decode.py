"""Turn instructions into steps: functions that execute one instruction for many threads at once.

A step is called as step(machine, threads): `threads` are indices into the machine's arrays, ascending, or None for
all. Registers that hold the same value in every thread (parameters, block sizes, values computed from these alone) are
computed once, here.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from helpers.instruments.cuda import access, arithmetic, integers, matrix, mbarriers, printing, warp
from helpers.instruments.cuda.operation import DTYPES, REGISTERS, UnknownInstructionError
from helpers.instruments.cuda.ptx import (
    CARRYING,
    Address,
    Immediate,
    Not,
    Pair,
    Program,
    PtxInstruction,
    Register,
    Symbol,
    Vector,
)

FENCES = {"membar", "fence"}
NO_EFFECT = {"prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard", "applypriority"}


# Instructions that the executor doesn't support: start of the name -> feature and alternative.
NEED_A_GPU = {
    "cp.async.bulk": "TMA copies are not executed here; copy with __pipeline_memcpy_async or plain loads",
    "mbarrier.arrive.expect_tx": "TMA copies are not executed here; copy with __pipeline_memcpy_async or plain loads",
    "tex": "textures are not executed here; read global memory",
    "tld4": "textures are not executed here; read global memory",
    "suld": "surfaces are not executed here; read global memory",
    "sust": "surfaces are not executed here; write global memory",
    "mapa": "thread block clusters are not executed here; use plain blocks",
    "barrier.cluster": "thread block clusters are not executed here; use plain blocks",
}


def not_covered(instruction: PtxInstruction) -> NotImplementedError:
    """Return the error for an unsupported instruction."""
    for start, why in NEED_A_GPU.items():
        if instruction.name.startswith(start):
            return NotImplementedError(f"line {instruction.line} needs a GPU: {why} ({instruction.name})")
    return NotImplementedError(
        f"the executor does not cover {instruction.name}, line {instruction.line}: `{instruction.text}`; run this "
        "kernel on a GPU"
    )


class Decoder:
    """Decodes one program for one launch.

    Args:
        symbols: variable or parameter name -> its address, in its own space.
        parameters: the bytes of the launch's arguments.
        special: special register -> value, if it is the same for all threads.
    """

    def __init__(self, program: Program, symbols: dict[str, int], parameters: bytes, special: dict[str, int]):
        self.program = program
        self._symbols, self._parameters = symbols, parameters
        self._written = Counter(
            register.slot for instruction in program.instructions for register in _registers(_destination(instruction))
        )
        self.constants = {slot: np.uint32(special[name]) for name, slot in program.special.items() if name in special}

    def step(self, instruction: PtxInstruction) -> Callable | None:
        """Return the instruction's step; None if there is nothing to do.

        Raises:
            NotImplementedError: the executor does not support this instruction.
        """
        try:
            step = self._decode(instruction)
        except (UnknownInstructionError, KeyError, IndexError):
            raise not_covered(instruction) from None
        if step is None or instruction.guard is None:
            return step
        return _guarded(step, *instruction.guard)

    def _decode(self, instruction: PtxInstruction):
        opcode, modifiers, operands = instruction.opcode, instruction.modifiers, instruction.operands
        if opcode in NO_EFFECT:
            return None
        if opcode in FENCES:
            return None if "cta" in modifiers else _fence
        if opcode == "vprintf":
            return printing.step(self, instruction)
        if opcode in CARRYING or "cc" in modifiers:
            return self._carrying(instruction)
        if opcode == "ld" and modifiers[0] == "param" and isinstance(operands[1].base, Symbol):
            return self._parameter(instruction)
        if opcode == "bar":  # all others end a basic block
            return warp.BUILDERS["bar.warp"](self, instruction)
        for family in (access.BUILDERS, warp.BUILDERS, matrix.BUILDERS, mbarriers.BUILDERS):
            if opcode in family:
                return family[opcode](self, instruction)
        if opcode == "mov" and (isinstance(operands[0], Vector) or isinstance(operands[1], Vector)):
            return self._repack(operands)
        if opcode in ("cvta", "isspacep"):
            return access.address_space(self, instruction)
        return self.elementwise(instruction, *arithmetic.operation(instruction))

    # Operands

    def key(self, operand, type: str):
        """Return a step's key into the machine's views, (type, slot), or a NumPy scalar."""
        dtype = DTYPES[type]
        if isinstance(operand, Register):
            constant = self.constants.get(operand.slot)
            if constant is None:
                return type, operand.slot
            if type.endswith("x2"):
                return type, operand.slot, constant
            if constant.dtype.itemsize > dtype.itemsize:
                constant = constant.astype(f"u{dtype.itemsize}")
            return constant.view(dtype) if constant.dtype != dtype else constant
        if isinstance(operand, Symbol):
            return dtype.type(self._symbols[operand.name] + operand.offset)
        if isinstance(operand, Immediate):
            if type.endswith("x2"):
                return type, None, np.uint32(operand.bits & 0xFFFFFFFF)
            bits = operand.bits
            if operand.floating and operand.floating != 8 * dtype.itemsize:
                value = np.uint64(bits).view(np.float64) if operand.floating == 64 else np.uint32(bits).view(np.float32)
                return dtype.type(value)
            if type == "pred":
                return np.bool_(bits)
            size = dtype.itemsize
            return np.frombuffer((bits % (1 << (8 * size))).to_bytes(size, "little"), dtype)[0]
        raise UnknownInstructionError

    def destination(self, operand, type: str):
        """Return the destination's key, and whether it is wider than the type and takes an extended value."""
        if not isinstance(operand, Register):
            raise UnknownInstructionError
        size = DTYPES[type].itemsize * (2 if type.endswith("x2") else 1)
        if operand.kind == "pred" or 8 * size == int(operand.kind):
            return (type, operand.slot), False
        return (("s" if type[0] == "s" else "u") + operand.kind, operand.slot), True

    def shared_arrays(self) -> dict[str, int]:
        """Return the start of each variable in shared memory."""
        return {
            name: self._symbols[name]
            for name, variable in self.program.variables.items()
            if variable.space == "shared" and name in self._symbols
        }

    def single(self, operand) -> bool:
        """Return whether exactly one instruction writes this register."""
        return self._written[operand.slot] == 1

    # Instructions

    def _parameter(self, instruction: PtxInstruction):
        target, address = instruction.operands
        type = instruction.modifiers[-1]
        targets = target.parts if isinstance(target, Vector) else (target,)
        offset = self.program.parameters[address.base.name].offset + address.base.offset + address.offset
        steps = []
        for place, each in enumerate(targets):
            dtype = DTYPES[type]
            raw = np.frombuffer(self._parameters, dtype, 1, offset + place * dtype.itemsize)[0]
            steps.append(self._assign(each, type, raw, instruction.guard is None))
        steps = [step for step in steps if step is not None]
        return _sequence(steps) if steps else None

    def _assign(self, target, type: str, value, fold: bool):
        key, _ = self.destination(target, type)
        if fold and self.single(target):
            self.constants[target.slot] = _raw(np.array(value).astype(DTYPES[key[0]]), target.kind)
            return None

        def step(machine, threads):
            machine.views[key][slice(None) if threads is None else threads] = value

        return step

    def elementwise(self, instruction: PtxInstruction, compute, result: str, types: tuple[str, ...]):
        target, *sources = instruction.operands
        second = None
        if isinstance(target, Pair):
            target, second = target.first, target.second
            if result != "pred" or types[-1] == "pred":
                raise UnknownInstructionError
        if len(sources) != len(types):
            raise UnknownInstructionError
        for place, source in enumerate(sources):
            if isinstance(source, Not):
                compute, sources[place] = _inverting(compute, place), source.register
        keys = [self.key(source, type) for source, type in zip(sources, types, strict=True)]
        if target is None:
            target, second = second, None
            compute = _complement(compute)
        packed = result.endswith("x2") or any(type.endswith("x2") for type in types)
        out, extended = self.destination(target, result)
        uniform = instruction.guard is None and not any(isinstance(key, tuple) for key in keys)
        if uniform and second is None and not packed and self.single(target):
            with np.errstate(all="ignore"):
                value = np.array(compute(*keys)).astype(DTYPES[out[0]])
            self.constants[target.slot] = _raw(value, target.kind)
            return None
        if packed:
            return _packed(compute, out, keys)
        direct = isinstance(compute, np.ufunc) and not extended
        step = _plain(compute, out, keys, direct)
        if second is None:
            return step
        return _sequence([step, _plain(np.logical_not, (result, second.slot), [out], True)])

    def _carrying(self, instruction: PtxInstruction):
        """add.cc, addc, mad.hi.cc, ...: integers longer than a register, one part at a time."""
        opcode, target = instruction.opcode, instruction.operands[0]
        *how, type = (each for each in instruction.modifiers if each != "cc")
        compute = integers.carrying(opcode.removesuffix("c"), how, type)
        keys = [self.key(each, type) for each in instruction.operands[1:]]
        out, flag = self.destination(target, type)[0], ("pred", self.program.carry.slot)
        takes, gives = opcode in CARRYING, "cc" in instruction.modifiers

        def step(machine, threads):
            before = read(machine, flag, threads) if takes else np.False_
            result, carry = compute(before, *(read(machine, key, threads) for key in keys))
            chosen = slice(None) if threads is None else threads
            machine.views[out][chosen] = result
            if gives:
                machine.views[flag][chosen] = carry

        return step

    def _repack(self, operands):
        """mov between a register and its parts."""
        target, source = operands
        if isinstance(source, Vector):
            bits = int(target.kind) // len(source.parts)
            keys = [self.key(part, f"u{bits}") for part in source.parts]
            out = f"u{target.kind}", target.slot

            def step(machine, threads):
                total = DTYPES[out[0]].type(0)
                for place, key in enumerate(keys):
                    part = np.asarray(read(machine, key, threads)).astype(DTYPES[out[0]])
                    total = total | part << DTYPES[out[0]].type(place * bits)
                machine.views[out][slice(None) if threads is None else threads] = total

            return step
        kind = (
            source.kind if isinstance(source, Register) else str(sum(int(part.kind) for part in target.parts if part))
        )
        bits = int(kind) // len(target.parts)
        key = self.key(source, f"u{kind}")
        outs = [part and ((f"u{bits}", part.slot)) for part in target.parts]

        def step(machine, threads):
            whole = np.array(read(machine, key, threads))
            for place, out in enumerate(outs):
                if out:
                    part = (whole >> whole.dtype.type(place * bits)).astype(DTYPES[out[0]])
                    machine.views[out][slice(None) if threads is None else threads] = part

        return step

    def address(self, operand: Address):
        """Return the key of the base as u64, or a NumPy scalar, and the offset."""
        base = operand.base
        kind = f"u{base.kind}" if isinstance(base, Register) else "u64"
        return self.key(base, kind), operand.offset


def read(machine, key, threads):
    """Return an operand's values: an array over the threads, or a scalar."""
    if not isinstance(key, tuple):
        return key
    values = machine.views[key]
    return values if threads is None else values[threads]


def _fence(machine, threads):
    if machine.observer is not None:
        machine.observer.fenced(warp.everyone(machine, threads))


def _raw(value: np.ndarray, kind: str):
    return value.view(REGISTERS[kind])[()]


def _plain(compute, out, keys, direct):
    def step(machine, threads):
        views = machine.views
        if threads is None:
            values = [views[key] if type(key) is tuple else key for key in keys]
            if direct:
                compute(*values, out=views[out])
            else:
                views[out][...] = compute(*values)
        else:
            views[out][threads] = compute(*[views[key][threads] if type(key) is tuple else key for key in keys])

    return step


def _packed(compute, out, keys):
    """Apply `compute` to two 16-bit numbers per register."""
    raw = "b32", out[1]

    def step(machine, threads):
        count = machine.threads if threads is None else threads.size
        values = []
        for key in keys:
            if isinstance(key, tuple) and len(key) == 3:
                value = np.full(count, key[2])
            else:
                value = read(
                    machine, ("b32", key[1]) if isinstance(key, tuple) and key[0].endswith("x2") else key, threads
                )
            if isinstance(key, tuple) and key[0].endswith("x2"):
                value = np.ascontiguousarray(value).view(DTYPES[key[0]])
            values.append(value)
        result = np.ascontiguousarray(compute(*values))
        machine.views[raw][slice(None) if threads is None else threads] = result.view(np.uint32)

    return step


def _sequence(steps):
    def step(machine, threads):
        for each in steps:
            each(machine, threads)

    return steps[0] if len(steps) == 1 else step


def _inverting(compute, place):
    def inverted(*values):
        return compute(*(~value if at == place else value for at, value in enumerate(values)))

    return inverted


def _complement(compute):
    return lambda *values: ~compute(*values)


def _guarded(step, register: Register, negated: bool):
    key = "pred", register.slot

    def guarded(machine, threads):
        holds = machine.views[key] if threads is None else machine.views[key][threads]
        holds = ~holds if negated else holds
        chosen = np.flatnonzero(holds) if threads is None else threads[holds]
        if chosen.size:
            step(machine, None if chosen.size == machine.threads else chosen)

    return guarded


def _destination(instruction: PtxInstruction):
    if instruction.opcode in ("st", "red", "bra", "bar", "barrier", "ret", "exit", "cp") or not instruction.operands:
        return None
    return instruction.operands[0]


def _registers(operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Vector):
        return [register for part in operand.parts for register in _registers(part)]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    return []
