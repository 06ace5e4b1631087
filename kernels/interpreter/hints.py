"""Check a kernel's promises to the compiler (tl.multiple_of and the like) against its values.

The compiler trusts `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy`, and emits wide accesses based on them.
If a promise is false, a GPU reads and writes wrong addresses. Triton's interpreter ignores promises.

A promise is checked as the compiler understands it (triton/include/triton/Analysis/AxisInfo.h): multiple_of on the
first of each run of consecutive values, the others within each group of that many values.
"""

import functools

import numpy as np
import triton.language as tl


def _kept(name: str, data: np.ndarray, axis: int, value: int, step: int) -> np.ndarray:
    """Return whether the promise holds for each position along the last axis, the block's `axis`."""
    along = np.moveaxis(data.astype(np.int64), axis, -1)
    differences = np.diff(along, axis=-1)
    begins = np.ones(along.shape, bool)
    if name == "multiple_of":
        begins[..., 1:] = differences != step
        return ~begins | (along % value == 0)
    begins[..., 1:] = differences == (step if name == "max_contiguous" else 0)
    begins[..., :: min(value, along.shape[-1])] = True
    return begins


def _promise(input, values, *, name: str):
    """Replace Triton's function of this name: check its promise in the interpreter."""
    if not isinstance(input, tl.tensor):
        return input
    values = values if isinstance(values, list | tuple) else [values]
    values = [value.value if isinstance(value, tl.constexpr) else value for value in values]
    data = input.handle.data
    if len(values) != max(1, len(input.shape)):
        raise ValueError(f"tl.{name} takes {max(1, len(input.shape))} values, one per axis, got {len(values)}")
    pointer = input.dtype.scalar.is_ptr()
    step = input.dtype.scalar.element_ty.primitive_bitwidth // 8 if pointer else 1
    for axis, value in enumerate(values):
        # A scalar counts as a block with one axis.
        block = data if data.ndim else data.reshape(1)
        kept = _kept(name, block, axis, max(1, int(value)), step)
        if not kept.all():
            wrong = np.moveaxis(block, axis, -1)[~kept][0]
            what = "an address" if pointer else "a value"
            raise ValueError(
                f"tl.{name}(..., {value}) is not true: {what} of it is {int(wrong)}; a GPU would access other addresses"
            )
    return input


PROMISES = {name: functools.partial(_promise, name=name) for name in ("multiple_of", "max_contiguous", "max_constancy")}
