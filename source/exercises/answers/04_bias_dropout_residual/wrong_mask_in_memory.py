# Makes the mask in PyTorch's way: a tensor that the kernel of the backward pass reads.
# rejected by: no-stored-mask
# told: 9 B/element, 8 needed|2 launches

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
def backward_kernel(grad_y_ptr, mask_ptr, grad_x_ptr, elements, scale, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=exists).to(tl.float32)
    kept = tl.load(mask_ptr + element, mask=exists) != 0
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y * scale, 0.0), mask=exists)


@triton.jit
def mask_kernel(mask_ptr, elements, p, seed, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(mask_ptr + element, (tl.rand(seed, element) >= p).to(tl.int8), mask=element < elements)


# %% grade_id="backward"
def backward(grad_y, p, seed):
    grad_y = grad_y.contiguous()
    grad_x = torch.empty_like(grad_y)
    mask = torch.empty(grad_y.shape, dtype=torch.int8, device=grad_y.device)
    grid = (triton.cdiv(grad_y.numel(), 1024),)
    mask_kernel[grid](mask, grad_y.numel(), p, seed, BLOCK=1024)
    backward_kernel[grid](grad_y, mask, grad_x, grad_y.numel(), 1 / (1 - p), BLOCK=1024)
    return grad_x
