"""Find the elements of a check's outputs that no program has written."""

import numpy as np


def unwritten(values, dtype: str):
    """Return where `values`, an array or a tensor from an output of `dtype`, still hold its initial value: NaN, or the
    largest integer of that type."""
    return values != values if "float" in dtype else values == np.iinfo(dtype).max
