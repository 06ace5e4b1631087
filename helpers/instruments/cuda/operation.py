"""An instruction's operation: a function of NumPy arrays, with the PTX types of its result and operands."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from helpers.instruments.cuda.floats import BFLOAT16

DTYPES = {
    "pred": np.dtype(bool),
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": BFLOAT16,
    "f16x2": np.dtype(np.float16),
    "bf16x2": BFLOAT16,
}
# The dtype that stores a register of each kind.
REGISTERS = {"pred": np.dtype(bool), "16": np.dtype("u2"), "32": np.dtype("u4"), "64": np.dtype("u8")}
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")


class Operation(NamedTuple):
    compute: Callable
    result: str
    operands: tuple[str, ...]


class UnknownInstructionError(Exception):
    """The executor does not support this instruction."""


def unknown():
    raise UnknownInstructionError
