# A fixed number of programs, each of which loops over its share of the blocks.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    for first in range(tl.program_id(0) * BLOCK, elements, tl.num_programs(0) * BLOCK):
        element = first + tl.arange(0, BLOCK)
        exists = element < elements
        s = tl.load(a_ptr + element, mask=exists).to(tl.float32)
        s += tl.load(b_ptr + element, mask=exists).to(tl.float32)
        gate = 1 / (1 + tl.exp(-1.5957691216057308 * s * (1 + 0.044715 * s * s)))
        tl.store(y_ptr + element, s * gate, mask=exists)


# %% grade_id="launcher"
# One for each SM of an H200.
PROGRAMS, BLOCK = 132, 1024


def add_gelu(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    add_gelu_kernel[(PROGRAMS,)](a, b, y, y.numel(), BLOCK=BLOCK)
    return y
