# tanh from its definition, blocks of 4096 for 8 warps, the grid from the launch's own settings.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def tanh(x):
    # exp of a negative number only: it cannot overflow.
    small = tl.exp(-2 * tl.abs(x))
    size = (1 - small) / (1 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0).to(tl.int64) * BLOCK
    lanes = start + tl.arange(0, BLOCK)
    mask = lanes < elements
    a = tl.load(a_ptr + lanes, mask=mask, other=0.0)
    b = tl.load(b_ptr + lanes, mask=mask, other=0.0)
    s = a.to(tl.float32) + b.to(tl.float32)
    y = 0.5 * s * (1 + tanh(tl.sqrt(2 / 3.141592653589793) * (s + 0.044715 * s * s * s)))
    tl.store(y_ptr + lanes, y.to(y_ptr.dtype.element_ty), mask=mask)


# %% grade_id="launcher"
def add_gelu(a, b):
    y = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    if y.numel() == 0:
        return y
    elements = y.numel()
    grid = lambda settings: (triton.cdiv(elements, settings["BLOCK"]),)  # noqa: E731
    add_gelu_kernel[grid](
        a.reshape(-1).contiguous(), b.reshape(-1).contiguous(), y, elements, BLOCK=4096, num_warps=8
    )
    return y
