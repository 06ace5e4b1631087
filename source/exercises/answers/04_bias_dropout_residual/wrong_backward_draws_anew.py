# Draws other numbers in the backward pass, as a generator that moved on would.
# rejected by: same-mask
# told: first at \(0, \d+\): the forward (kept|dropped) it, the backward (kept|dropped) it

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="forward-kernel"
@triton.jit
def forward_kernel(x_ptr, bias_ptr, residual_ptr, y_ptr, columns, p, scale, seed, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < columns
    element = row * columns + column
    x = tl.load(x_ptr + element, mask=exists).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=exists).to(tl.float32)
    residual = tl.load(residual_ptr + element, mask=exists).to(tl.float32)
    kept = tl.rand(seed, element) >= p
    tl.store(y_ptr + element, residual + tl.where(kept, (x + bias) * scale, 0.0), mask=exists)


# %% grade_id="forward"
def forward(x, bias, residual, p, seed):
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    y = torch.empty_like(x)
    rows, columns = x.shape
    grid = rows, triton.cdiv(columns, 1024)
    forward_kernel[grid](x, bias, residual, y, columns, p, 1 / (1 - p), seed, BLOCK=1024)
    return y


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(grad_y_ptr, grad_x_ptr, elements, p, scale, seed, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=exists).to(tl.float32)
    kept = tl.rand(seed + 1, element) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y * scale, 0.0), mask=exists)


# %% grade_id="backward"
def backward(grad_y, p, seed):
    grad_y = grad_y.contiguous()
    grad_x = torch.empty_like(grad_y)
    grid = (triton.cdiv(grad_y.numel(), 1024),)
    backward_kernel[grid](grad_y, grad_x, grad_y.numel(), p, 1 / (1 - p), seed, BLOCK=1024)
    return grad_x
