"""Accesses that are wrong on a GPU but that an interpreter lets pass silently."""

from dataclasses import dataclass

import torch

from helpers.instruments.source_lines import source_line, with_source


@dataclass(frozen=True)
class Hazard:
    """The first hazard of its kind at one line of a kernel.

    kind: "out-of-bounds read", "out-of-bounds store", "out-of-bounds atomic", "uninitialised read", "race" or, for data
        that another program of the same launch stored or read, "unsynchronised read" or "unsynchronised store"; in CUDA
        C++ also "misaligned read", "misaligned store", "barrier not reached by all threads", "wrong mask", "shuffle
        from an absent lane", "unfinished copy", of bytes from a cp.async that was not waited for, and "stale read", by
        __ldg of bytes that the launch stores.
    where: the tensor and the first such element; program: the program instance, in CUDA C++ the block; elements: how
        many in this access; thread: in CUDA C++, the first such thread of the block.
    """

    kind: str
    kernel: str
    file: str
    line: int
    where: str
    program: tuple[int, int, int]
    elements: int
    thread: tuple[int, int, int] | None = None

    @property
    def source(self) -> str:
        return source_line(self.file, self.line)

    def __str__(self):
        kind = "race for" if self.kind == "race" else f"{self.kind} of"
        if self.thread is not None:
            where = with_source(self.where, self.file)
            return (
                f"{self.kind}: {where}: {self.kernel}, line {self.line}, `{self.source}`, thread {self.thread} of "
                f"block {self.program}" + (f", {self.elements} in all" if self.elements > 1 else "")
            )
        count = f"{self.elements} element{'s' * (self.elements != 1)}"
        return (
            f"{kind} {self.where}: {self.kernel}, line {self.line}, `{self.source}`, {count} in program {self.program}"
        )


def outside(tensor: torch.Tensor, place: int) -> str:
    """Return where memory outside a tensor is, `place` elements from its first: "3 past the last of its 8 elements"."""
    if not tensor.numel():
        return f"{place} elements from its start, and it is empty"
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    one = tensor.numel() == 1
    if place < 0:
        return f"{-place} before {'its only element' if one else f'the first of its {tensor.numel()} elements'}"
    if place > last:
        return f"{place - last} past {'its only element' if one else f'the last of its {tensor.numel()} elements'}"
    return f"{place} past the first of its {tensor.numel()} elements, in a gap between two"


def element(tensor: torch.Tensor, byte: int) -> str:
    """Return the index of the element at `byte` of the tensor's storage, as Python writes it: "[3, 5]"."""
    offset = byte // tensor.element_size() - tensor.storage_offset()
    index = [0] * tensor.dim()
    for axis in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.stride(axis) and tensor.shape[axis] > 1:
            index[axis], offset = divmod(offset, tensor.stride(axis))
    return str(index)
