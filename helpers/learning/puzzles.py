"""Micro-puzzles: fix a kernel of a few lines. It runs on a few elements, and a picture shows its lanes, with wrong ones
in red."""

import inspect
import linecache
import re
from collections import Counter

import numpy as np
import torch
from triton.runtime.errors import InterpreterError

from helpers.figures.frame.chart import Chart
from helpers.figures.memory.kernel_lanes import KernelLine, Lanes, blocks_chart, spans
from helpers.instruments.traffic.hazards import Hazard
from helpers.instruments.traffic.lanes import Access, trace
from helpers.instruments.traffic.result import Traffic
from helpers.learning.display_text import Unquoted

MAX_PROGRAMS = 16  # limits of a picture
HAZARDS = {
    "out-of-bounds read": "positions load outside their tensor",
    "out-of-bounds store": "positions store outside their tensor",
    "unsynchronised read": "a program loads what another stored, and on a GPU that one may not have run yet",
    "unsynchronised store": "a program stores to what another loads, and on a GPU that one may run later",
}


def puzzle(
    kernel,
    programs: int,
    *inputs: torch.Tensor,
    wanted: torch.Tensor,
    shared: tuple[str, ...] = (),
    **more,
) -> Chart | Unquoted:
    """Run `kernel[(programs,)](*inputs, out, **more)` under the meter and judge it.

    It is right if `out`, poisoned with NaN, ends up as `wanted`; no lane is out of bounds; no two programs store to the
    same element; every element of each input is read exactly once; and `out` is written once.

    Args:
        kernel: the reader's @triton.jit kernel.
        programs: how many to launch.
        inputs: its tensors, a few dozen elements each.
        wanted: the right result, of a floating-point dtype.
        shared: the kernel's names of inputs that many elements of the result share, such as a bias: a cache serves
            them, so they may be read again.
        more: the kernel's other arguments, by name: sizes, strides, its constexprs.

    Returns:
        The picture, whose text begins with "Solved" or "Not yet"; one line if the kernel doesn't run.

    Raises:
        ValueError: more programs than a picture holds, or none; equal numbers in an input, which would let a kernel
            that confuses them pass.
    """
    if not 1 <= programs <= MAX_PROGRAMS:
        raise ValueError(f"{programs} programs: a puzzle has 1 to {MAX_PROGRAMS}")
    for name, x in zip(kernel.arg_names, inputs, strict=False):
        if x.unique().numel() < x.numel():
            raise ValueError(f"{name} of {kernel.fn.__name__} has equal numbers: use distinct ones in a puzzle")
    out = torch.full_like(wanted, torch.nan, memory_format=torch.contiguous_format)
    try:
        traffic, accesses = trace(_named(kernel, programs, more, len(inputs) + 1), *inputs, out)
    except InterpreterError as error:
        return Unquoted(f"Not yet: {error}")
    if not accesses:
        return Unquoted("Not yet: the kernel loads nothing and stores nothing")
    tensors = dict(zip(kernel.arg_names, (*inputs, out), strict=False))
    own = {name: owned(tensor) for name, tensor in tensors.items()}
    name = kernel.arg_names[len(inputs)]
    wrong_values = wrong_elements(out, wanted)
    stored = {element for access in accesses if access.kind != "read" for element in access.elements[access.active]}
    missing = frozenset(wrong_values - stored)
    again = {
        shared_name: max(0, traffic.by_tensor[shared_name].read - tensors[shared_name].nbytes)
        for shared_name in shared
        if shared_name in traffic.by_tensor
    }
    moved = traffic.bytes_total - sum(again.values())
    least = sum(tensor.nbytes for tensor in inputs) + wanted.nbytes
    wrong = wrong_lanes(accesses, own, name, wrong_values, moved > least, shared)
    unread = {each: len(own[each]) - len(read_of(accesses, each)) for each in list(tensors)[: len(inputs)]}
    title, told = verdict(traffic, out, wanted, wrong_values, missing, moved, least, unread, name, accesses)
    return blocks_chart(panels_of(accesses, wrong, own, name, missing), title, told)


def _named(kernel, programs: int, more: dict, tensors: int):
    """Wrap the launch in a function with the kernel's parameter names, so that the meter uses them for the tensors."""

    def launch(*tensors):
        kernel[(programs,)](*tensors, **more)

    kind = inspect.Parameter.POSITIONAL_ONLY
    launch.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in kernel.arg_names[:tensors]])
    return launch


def owned(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the positions of a tensor's elements in memory, counted from the first one."""
    places = torch.zeros(tensor.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        places += (torch.arange(size) * stride).reshape(-1, *[1] * (tensor.dim() - axis - 1))
    return tuple(sorted(set(places.flatten().tolist())))


def wrong_elements(out: torch.Tensor, wanted: torch.Tensor) -> set[int]:
    """Return the elements that are more than two roundings away from `wanted`."""
    near = torch.isclose(out.double(), wanted.double(), rtol=2 * torch.finfo(wanted.dtype).eps, atol=0)
    return set((~near).flatten().nonzero().flatten().tolist())


def read_of(accesses: list[Access], tensor: str) -> set[int]:
    """Return the elements of a tensor that any lane loads."""
    found = [set(each.elements[each.active]) for each in accesses if each.tensor == tensor and each.kind == "read"]
    return set().union(*found)


def wrong_lanes(
    accesses: list[Access], own: dict, out: str, wrong_values: set[int], again: bool, shared: tuple[str, ...] = ()
) -> list[np.ndarray]:
    """Return, for each access, the lanes that are out of bounds, store to an element that another program stores to, or
    store a wrong value; with `again`, also repeated reads and stores."""
    storing = {}
    for access in accesses:
        if access.kind == "write":
            for element in access.elements[access.active]:
                storing.setdefault((access.tensor, element), set()).add(access.program)
    last = {
        (access.tensor, element): number
        for number, access in enumerate(accesses)
        if access.kind == "write"
        for element in access.elements[access.active]
    }
    read, found = Counter(), []
    for number, access in enumerate(accesses):
        wrong = ~np.isin(access.elements, own[access.tensor])
        for lane, element in enumerate(access.elements):
            key = access.tensor, element
            if access.kind == "read":
                wrong[lane] |= again and access.tensor not in shared and (read[key] > 0 or access.tensor == out)
                read[key] += bool(access.active[lane])
            elif access.kind == "write":
                wrong[lane] |= len(storing.get(key, ())) > 1 or (access.tensor == out and element in wrong_values)
                wrong[lane] |= again and last.get(key) != number
        found.append(wrong & access.active)
    return found


def verdict(
    traffic: Traffic,
    out: torch.Tensor,
    wanted: torch.Tensor,
    wrong: set[int],
    missing: frozenset[int],
    moved: int,
    least: int,
    unread: dict[str, int],
    name: str,
    accesses: list[Access],
) -> tuple[str, str]:
    """Return (title, further text). `name`: the kernel's name of the result."""
    if traffic.hazards:
        hazard = traffic.hazards[0]
        if hazard.kind == "race" and (found := collisions(accesses)):
            return f"Not yet: {found[0]}", f"{found[1]}On a GPU, any of them may store last."
        return f"Not yet: {HAZARDS.get(hazard.kind, hazard.kind)}", without_axes(hazard)
    per_element = f"{traffic.bytes_total / out.numel():.4g} B/element"
    needed = f"It moves {moved / out.numel():.4g} B per element of {name}; {least / out.numel():.4g} B are needed."
    if missing:
        are = "is" if len(missing) == 1 else "are"
        return f"Not yet: {len(missing)} of {out.numel()} elements {are} never stored", ""
    if wrong:
        first = min(wrong)
        found, right = out.flatten()[first].item(), wanted.flatten()[first].item()
        return f"Not yet: element {first} is {found:.6g}; it should be {right:.6g}", needed
    for other, elements in unread.items():
        if elements:
            never = "is" if elements == 1 else "are"
            return (
                f"Not yet: right on these numbers, but {elements} of {other}'s elements {never} never loaded",
                "On other numbers it would be wrong.",
            )
    if moved > least:
        enough = f"{least / out.numel():.4g} are enough"
        title = f"Not yet: right values, but {per_element}, and {enough}"
        return title, "The orange-red positions move unnecessary bytes."
    return f"Solved: right values, every position on its own element, {per_element}", ""


def without_axes(hazard: Hazard) -> str:
    """Describe a hazard by its source line, without the line's number or kernel; a puzzle's programs have one axis."""
    where = re.sub(r"\((\d+), 0, 0\)", r"program \1", hazard.where)
    return f"{hazard.kind} by program {hazard.program[0]}: {where}, in the line {hazard.source}"


def collisions(accesses: list[Access]) -> tuple[str, str] | None:
    """Return who stores to the same elements, in a title's words, and whether there are other such elements."""
    stored: dict[tuple, list[int]] = {}  # (tensor, element) -> the program of each lane that stores to it
    for access in accesses:
        if access.kind == "write":
            for element in access.elements[access.active].tolist():
                stored.setdefault((access.tensor, element), []).append(access.program[0])
    shared = {key: tuple(sorted(set(programs))) for key, programs in stored.items() if len(set(programs)) > 1}
    if not shared:  # lanes of the same program
        shared = {key: tuple(programs) for key, programs in stored.items() if len(programs) > 1}
        if not shared:
            return None
    tensor, _ = next(iter(shared))
    programs = max(shared.values(), key=len)
    elements = np.array([element for (its, element), who in shared.items() if (its, who) == (tensor, programs)])
    if len(set(programs)) == 1:
        who = f"{len(programs)} positions of program {programs[0]} all"
    elif len(programs) > 3:
        who = f"{len(programs)} programs all"
    else:
        both = "both" if len(programs) == 2 else "all"
        who = f"programs {', '.join(map(str, programs[:-1]))} and {programs[-1]} {both}"
    others = len(shared) - len(elements)
    more = f"In all, {len(shared)} elements are stored to more than once. " if others else ""
    return f"{who} store to {tensor}[{spans(elements)}]", more


def panels_of(
    accesses: list[Access], wrong: list[np.ndarray], own: dict, out: str, missing: frozenset[int]
) -> list[KernelLine]:
    """Return the kernel's lines that load or store, in the order in which they first ran."""
    lines: dict[tuple, list[Lanes]] = {}
    for access, red in zip(accesses, wrong, strict=True):
        key = access.place, access.tensor, access.kind
        lines.setdefault(key, []).append(Lanes(access.program[0], access.elements, access.active, red))
    return [
        KernelLine(
            linecache.getline(*place).strip().split("  #")[0],
            own[tensor],
            missing if tensor == out and kind != "read" else frozenset(),
            tuple(lanes),
        )
        for (place, tensor, kind), lanes in lines.items()
    ]
