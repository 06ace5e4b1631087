# Neighbouring lanes take elements that lie far apart.
# rejected by: vectorised
# told: 4 bytes at a time

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) + tl.arange(0, BLOCK) * tl.num_programs(0)
    exists = element < elements
    s = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)


# %% grade_id="launcher"
def add_gelu(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    add_gelu_kernel[(triton.cdiv(y.numel(), 1024),)](a, b, y, y.numel(), BLOCK=1024)
    return y
