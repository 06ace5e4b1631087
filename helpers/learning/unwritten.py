"""What outputs start as in a check, so that an element that is never written can't pass for a value."""

import numpy as np


def unwritten(values, dtype: str):
    """Return where `values`, an array or a tensor from an output of `dtype`, are what it started as: NaN, or the
    largest integer of that type."""
    return values != values if "float" in dtype else values == np.iinfo(dtype).max
