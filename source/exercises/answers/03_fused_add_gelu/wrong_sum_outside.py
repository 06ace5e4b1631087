# Adds in PyTorch, then launches a kernel for GELU alone.
# rejected by: traffic
# told: 2 launches

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def gelu_kernel(s_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(s_ptr + element, mask=exists).to(tl.float32)
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)


# %% grade_id="launcher"
def add_gelu(a, b):
    s = (a + b).contiguous()
    y = torch.empty_like(s)
    gelu_kernel[(triton.cdiv(y.numel(), 1024),)](s, y, y.numel(), BLOCK=1024)
    return y
