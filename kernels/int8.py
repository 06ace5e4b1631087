"""int8 weights as tensor cores take them: made floats in registers, exactly."""

import torch
import triton
import triton.language as tl

# A byte u in the low bits of a 16-bit float is a denormal number, u times the smallest there is. Times a power of 2,
# less 128 units, it is the int8 weight u - 128 in units: one multiply-add, exact, for two weights at a time.
FACTOR = {torch.bfloat16: 2.0**127, torch.float16: 2.0**15, torch.float32: 1.0}
UNIT = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 1.0}


@triton.jit
def in_units(weight, dtype: tl.constexpr, FACTOR: tl.constexpr, UNIT: tl.constexpr):
    """int8 weights times UNIT in a dtype of tensor cores, exactly."""
    if dtype == tl.float32:
        made = weight.to(dtype)
    else:
        byte = (weight.to(tl.int16) & 0xFF) ^ 0x80
        made = byte.to(dtype, bitcast=True) * FACTOR - 128 * UNIT
    return made


def takes_descriptors(weight: torch.Tensor) -> bool:
    """Whether the copy engine can load (experts, out_cols, cols), contiguous: there is one, and rows are multiples of
    its 16 bytes."""
    has_engine = not weight.is_cuda or torch.cuda.get_device_capability(weight.device) >= (9, 0)
    return has_engine and weight.shape[2] % 16 == 0 and weight.data_ptr() % 16 == 0
