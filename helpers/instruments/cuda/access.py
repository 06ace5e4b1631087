"""PTX loads, stores and atomics in every memory space, checked before they touch memory."""

import numpy as np

from helpers.instruments.cuda.memory import LOCAL_WINDOW, SHARED_WINDOW, UNSIGNED
from helpers.instruments.cuda.operation import DTYPES, unknown
from helpers.instruments.cuda.ptx import PtxInstruction, Register, Vector
from helpers.instruments.cuda.sanitizer import BLOCK, GPU
from helpers.instruments.cuda.warp import everyone, store, value

SPACES = ("global", "shared", "local", "const", "param")
# Order, scope and caching determine when others see an access, not the values it reads or writes.
_IGNORED = {
    "nc", "volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "cta", "gpu", "sys", "ca", "cg", "cs", "cv",
    "lu", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
    "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B", "noftz",
}  # fmt: skip
_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel"}
_RELEASING = {"release", "acq_rel"}
_WINDOW = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


def space_of(modifiers) -> tuple[str, list[str]]:
    """Return the space ("global", ..., or "generic"), and the remaining modifiers, without caching hints."""
    rest = [modifier for modifier in modifiers if modifier not in _IGNORED]
    space = "generic"
    if rest and rest[0].split("::")[0] in SPACES:
        space = rest.pop(0).split("::")[0]
    return space, rest


class Place:
    """The address operand of an instruction, the same for a load, a store and an atomic."""

    def __init__(self, decoder, instruction: PtxInstruction, operand, space: str, nbytes: int):
        self._base, self._offset = decoder.address(operand)
        self._line, self._space, self._nbytes = instruction.line, space, nbytes
        modifiers = instruction.modifiers
        strong = instruction.opcode in ("atom", "red") or not _STRONG.isdisjoint(modifiers)
        self._scope = (BLOCK if "cta" in modifiers else GPU) if strong else 0
        self._read_only = "nc" in modifiers
        self._releases = self._scope == GPU and not _RELEASING.isdisjoint(modifiers)

    def resolve(self, machine, threads, kind: str, added=0):
        """Return, for each memory space addressed: (threads, memory by item size -> array, byte offsets), all within
        bounds.

        kind: "read", "write", "atomic" or, for shared memory, "copy": a write that completes later; added: bytes past
        the operand's own address, one number per thread.
        """
        here = everyone(machine, threads)
        base = value(machine, self._base, threads, here.size)
        addresses = base.astype(np.uint64) + np.uint64(self._offset % (1 << 64))
        addresses = addresses + np.asarray(added).astype(np.uint64)
        space = self._space
        machine.spaces.scope, machine.spaces.read_only = self._scope, self._read_only
        if self._releases and machine.observer is not None:
            machine.observer.fenced(here)
        if space in ("global", "const", "param"):
            yield from machine.spaces.global_access(kind, self._line, threads, here, addresses, self._nbytes)
        elif space == "shared":
            yield from machine.spaces.shared_access(kind, self._line, threads, here, addresses, self._nbytes)
        elif space == "local":
            yield from machine.spaces.local_access(kind, self._line, threads, here, addresses, self._nbytes)
        else:
            for window, access in (
                (addresses >= LOCAL_WINDOW, machine.spaces.local_access),
                ((addresses >= SHARED_WINDOW) & (addresses < LOCAL_WINDOW), machine.spaces.shared_access),
                (addresses < SHARED_WINDOW, machine.spaces.global_access),
            ):
                if window.all():
                    yield from access(kind, self._line, threads, here, _within(addresses), self._nbytes)
                    return
                if window.any():
                    chosen = here[window]
                    yield from access(kind, self._line, chosen, chosen, _within(addresses[window]), self._nbytes)


def _within(addresses):
    """Return the addresses without the window's own bits."""
    return addresses & np.uint64(SHARED_WINDOW - 1)


def _load(decoder, instruction: PtxInstruction):
    space, rest = space_of(instruction.modifiers)
    *vector, type = rest
    target, source = instruction.operands
    targets = target.parts if isinstance(target, Vector) else (target,)
    if vector not in ([], [f"v{len(targets)}"]):
        unknown()
    size = DTYPES[type].itemsize
    place = Place(decoder, instruction, source, space, size * len(targets))
    signed = type[0] == "s"
    outs = [part and (("s" if signed else "u") + part.kind, part.slot) for part in targets]

    def step(machine, threads):
        for here, memory, offsets in place.resolve(machine, threads, "read"):
            index = offsets >> (size.bit_length() - 1)
            for number, out in enumerate(outs):
                if out is not None:
                    data = memory[size][index + number if number else index]
                    store(machine, out, here, data.view(f"i{size}") if signed else data)

    return step


def _store(decoder, instruction: PtxInstruction):
    space, rest = space_of(instruction.modifiers)
    *vector, type = rest
    target, source = instruction.operands
    sources = source.parts if isinstance(source, Vector) else (source,)
    if vector not in ([], [f"v{len(sources)}"]):
        unknown()
    size = DTYPES[type].itemsize
    place = Place(decoder, instruction, target, space, size * len(sources))
    raw = f"u{8 * size}"
    keys = [decoder.key(part, raw if isinstance(part, Register) else type) for part in sources]
    keys = [key if isinstance(key, tuple) else key.view(UNSIGNED[size]) for key in keys]

    def step(machine, threads):
        for here, memory, offsets in place.resolve(machine, threads, "write"):
            index = offsets >> (size.bit_length() - 1)
            for number, key in enumerate(keys):
                data = key if not isinstance(key, tuple) else value(machine, key, here, index.size)
                put(machine, instruction.line, here, memory, size, index + number if number else index, data, offsets)

    return step


def put(machine, line: int, threads, memory, size: int, index: np.ndarray, data, offsets) -> None:
    """Store items of `size` bytes, and report to an observer which of them the same store overwrites."""
    watched = machine.observer is not None and memory is not machine.spaces.local
    before = memory[size][index] if watched else None
    memory[size][index] = data
    if watched:
        lost = memory[size][index] != data
        machine.spaces.check_agreement(line, threads, memory, lost, before != data, offsets)


_UPDATE = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _one_by_one(how: str, dtype: np.dtype):
    """Return f in: new value = f(old, b, c)."""
    if how in _UPDATE:
        return lambda old, b, c: _UPDATE[how](old, b)
    return {
        "exch": lambda old, b, c: b,
        "cas": lambda old, b, c: np.where(old == b, c, old),
        "inc": lambda old, b, c: np.where(old >= b, dtype.type(0), old + dtype.type(1)),
        "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - dtype.type(1)),
    }[how]


def _atomic(decoder, instruction: PtxInstruction):
    space, rest = space_of(instruction.modifiers)
    if len(rest) != 2:  # of a vector
        unknown()
    how, type = rest
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode == "atom" else None
    dtype = DTYPES[type]
    size = dtype.itemsize * (2 if type.endswith("x2") else 1)
    place = Place(decoder, instruction, operands[0], space, size)
    raw = f"u{8 * size}"
    keys = [decoder.key(operand, type if not type.endswith("x2") else raw) for operand in operands[1:]]
    out = (raw, target.slot) if target is not None else None
    update = _one_by_one(how, dtype)

    def step(machine, threads):
        for here, memory, offsets in place.resolve(machine, threads, "atomic"):
            index = offsets >> (size.bit_length() - 1)
            values = [value(machine, key, here, index.size) for key in keys]
            b, c = values if len(values) == 2 else (values[0], values[0])
            bits = memory[size]
            old = np.empty(index.size, bits.dtype)
            for turn in _turns(index) if how != "cas" else _swaps(bits, index, b.view(bits.dtype), old):
                before = bits[index[turn]]
                old[turn] = before
                after = np.asarray(
                    update(
                        before.view(dtype),
                        np.ascontiguousarray(b[turn]).view(dtype),
                        np.ascontiguousarray(c[turn]).view(dtype),
                    )
                )
                bits[index[turn]] = np.ascontiguousarray(after.astype(dtype)).view(bits.dtype)
            if out is not None:
                store(machine, out, here, old)

    def added_at_once(machine, threads):
        for here, memory, offsets in place.resolve(machine, threads, "atomic"):
            index = offsets >> (size.bit_length() - 1)
            _UPDATE[how].at(memory[size].view(dtype), index, value(machine, keys[0], here, index.size))

    alone = out is None and how in _UPDATE and dtype.kind in "iuf" and not type.endswith("x2")
    return added_at_once if alone and dtype.itemsize >= 4 else step


def _swaps(bits: np.ndarray, index: np.ndarray, expected: np.ndarray, old: np.ndarray):
    """Return the lanes whose compare-and-swap succeeds, in turns with one lane per address; fill in `old` of the
    others.

    Under contention one lane in thousands succeeds, so one turn per lane would be thousands of times slower.
    """
    left = np.arange(index.size)
    while left.size:
        now = bits[index[left]]
        old[left] = now
        winners = left[now == expected[left]]
        if not winners.size:
            return
        _, first = np.unique(index[winners], return_index=True)
        winners = winners[first]  # the first of each address
        yield winners
        turn = dict(zip(index[winners].tolist(), winners.tolist(), strict=True))
        won = np.array([turn.get(place, index.size) for place in index[left].tolist()])
        left = left[left > won]


def _turns(index: np.ndarray):
    """Split lanes into groups without repeated addresses: the first lane per address, the second per address, ..."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    rank = np.arange(index.size) - np.repeat(first, np.diff(np.append(first, index.size)))
    if not rank.any():
        return [slice(None)]
    by_rank = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    return np.split(order[by_rank], ends[:-1])


def _copy(decoder, instruction: PtxInstruction):
    """cp.async: copy from global to shared memory; the bytes arrive when the thread waits for them."""
    modifiers = [modifier for modifier in instruction.modifiers if modifier not in _IGNORED]
    if modifiers[:1] != ["async"]:
        unknown()
    if modifiers[1] == "commit_group":
        return lambda machine, threads: machine.spaces.copies.commit(threads)
    if modifiers[1] in ("wait_group", "wait_all"):
        left = instruction.operands[0].bits if modifiers[1] == "wait_group" else None
        return lambda machine, threads: machine.spaces.copies.wait(threads, left)
    if modifiers[1] == "mbarrier":
        return _copies_arrive(decoder, instruction, modifiers[2:])
    if modifiers[1:] not in (["shared", "global"], ["shared::cta", "global"]):
        unknown()
    target, source, size, *filled = instruction.operands
    if len(filled) > 1:
        unknown()
    nbytes = size.bits
    to = Place(decoder, instruction, target, "shared", nbytes)
    origin = Place(decoder, instruction, source, "global", nbytes)
    wanted = decoder.key(filled[0], "u32") if filled else np.uint32(nbytes)

    def step(machine, threads):
        here = everyone(machine, threads)
        data = np.zeros((machine.threads, nbytes // 4), np.uint32)
        source, memory = np.full(machine.threads, -1), None
        asked = value(machine, wanted, threads, here.size)
        reading = here[asked > 0]
        if reading.size:
            for these, memory, offsets in origin.resolve(machine, reading, "read"):
                chosen = everyone(machine, these)
                words = memory[4][(offsets >> 2)[:, None] + np.arange(nbytes // 4)]
                kept = np.arange(nbytes // 4) * 4 < asked[np.searchsorted(here, chosen)][:, None]
                data[chosen] = np.where(kept, words, np.uint32(0))
                source[chosen] = offsets >> 2
        for these, _, offsets in to.resolve(machine, threads, "copy"):
            chosen = everyone(machine, these)
            machine.spaces.copies.start(instruction.line, chosen, offsets, data[chosen], source[chosen], memory)

    return step


def _copies_arrive(decoder, instruction: PtxInstruction, modifiers):
    """cp.async.mbarrier.arrive: the thread's copies arrive at an mbarrier when they complete."""
    counted = "noinc" in modifiers
    if [each for each in modifiers if each != "noinc"] not in (["arrive", "shared", "b64"],
                                                               ["arrive", "shared::cta", "b64"]):  # fmt: skip
        unknown()
    place = Place(decoder, instruction, instruction.operands[0], "shared", 8)

    def step(machine, threads):
        for these, _, offsets in place.resolve(machine, threads, "atomic"):
            machine.spaces.copies.attach(everyone(machine, these), offsets >> 3, counted)

    return step


def address_space(decoder, instruction: PtxInstruction):
    """cvta and isspacep."""
    if instruction.opcode == "isspacep":
        space = instruction.modifiers[0].split("::")[0]

        def inside(address):
            if space == "global":
                return np.asarray(address) < SHARED_WINDOW
            if space not in _WINDOW:
                return np.zeros(np.shape(address), bool)
            window = np.uint64(_WINDOW[space])
            return (np.asarray(address) & np.uint64(SHARED_WINDOW | LOCAL_WINDOW)) == window

        return decoder.elementwise(instruction, inside, "pred", ("u64",))
    *to, space, type = instruction.modifiers
    space = space.split("::")[0]
    if to not in ([], ["to"]) or space not in SPACES:
        unknown()
    window = np.uint64(_WINDOW.get(space, 0))
    if to:
        return decoder.elementwise(instruction, lambda address: address & ~window, type, (type,))
    return decoder.elementwise(instruction, lambda address: address | window, type, (type,))


BUILDERS = {"ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "cp": _copy}
