# tanh(u) taken for 2 sigmoid(u) - 1.
# rejected by: values
# told: Look at the formula

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    tl.store(y_ptr + element, s * tl.sigmoid(u), mask=exists)


# %% grade_id="launcher"
def add_gelu(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    add_gelu_kernel[(triton.cdiv(y.numel(), 1024),)](a, b, y, y.numel(), BLOCK=1024)
    return y
