"""Prepare tensors for tensor descriptors, and so for TMA, the copy engine of compute capability 9.0 and later.

A descriptor holds a tensor's shape and strides. A kernel requests a tile by its first element's coordinates; elements
outside the tensor read as zero and are not written. Rows must be contiguous, and each row must start at a multiple of
16 bytes. Earlier GPUs lack TMA: for them, Triton compiles a descriptor into pointers and masks.
"""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.arguments import cdiv, shared_memory

ALIGNMENT = 16  # bytes: CUDA driver API, cuTensorMapEncodeTiled
LARGE_TILES = 227 * 2**10  # bytes of shared memory that a program may use at compute capability 9.0 and 10.0


def padded_empty(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor of `shape`, like's dtype and device, its rows at multiples of 16 bytes."""
    unit = ALIGNMENT // like.element_size()
    columns = cdiv(shape[-1], unit) * unit
    return torch.empty((*shape[:-1], columns), dtype=like.dtype, device=like.device)[..., : shape[-1]]


def row_strides(x: torch.Tensor) -> list[int]:
    """Return x's strides except the last, in elements. A dimension of size 1 may have any, so it gets a valid one."""
    unit = ALIGNMENT // x.element_size()
    return [stride if size > 1 else unit for size, stride in zip(x.shape[:-1], x.stride(), strict=False)]


def describable(x: torch.Tensor) -> torch.Tensor:
    """Return x if a descriptor can describe it, else (unaligned strides or start, or expanded) a copy."""
    unit = ALIGNMENT // x.element_size()
    apart = all(stride > 0 and stride % unit == 0 for stride in row_strides(x))
    if apart and (x.stride(-1) == 1 or x.shape[-1] == 1) and x.data_ptr() % ALIGNMENT == 0:
        return x
    return padded_empty(x.shape, x).copy_(x)


def is_described(matrix: torch.Tensor) -> bool:
    """Return whether a descriptor can describe a (rows, cols) matrix without a copy."""
    stride = matrix.stride(0)
    return (matrix.data_ptr() | stride * matrix.itemsize) % ALIGNMENT == 0 and stride >= matrix.shape[1] > 0


def takes_descriptors(*matrices: torch.Tensor) -> bool:
    """Return whether descriptors can describe these matrices without a copy, and large tiles fit on their GPU."""
    return all(map(is_described, matrices)) and shared_memory(matrices[0]) >= LARGE_TILES


def described_rows(x: torch.Tensor) -> bool:
    """Return whether a descriptor can describe as_rows(x), without making the copy that as_rows may need."""
    try:
        rows = x if x.dim() == 2 else x.view(x.shape[:-1].numel(), x.shape[-1])
    except RuntimeError:  # no view has these strides
        rows = None
    if rows is None or rows.stride(1) != 1:  # a copy, with contiguous rows
        return x.shape[-1] > 0 and x.shape[-1] * x.itemsize % ALIGNMENT == 0
    return is_described(rows)


def described(x: torch.Tensor, tile: list[int]) -> TensorDescriptor:
    """Return the descriptor of x, which must be describable, with tiles of this shape."""
    return TensorDescriptor(x, list(x.shape), [*row_strides(x), 1], tile)
