# Both by one walk over all elements, the bias found by a remainder; scale worked out in the kernels.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="forward-kernel"
@triton.jit
def factor(element, p, seed):
    return tl.where(tl.rand(seed, element) < p, 0.0, 1.0 / (1.0 - p))


@triton.jit
def forward_kernel(x_ptr, b_ptr, r_ptr, y_ptr, n, columns, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(axis=0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(b_ptr + offs % columns, mask=mask, other=0.0).to(tl.float32)
    y = x * factor(offs, p, seed) + tl.load(r_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=mask)


# %% grade_id="forward"
def forward(x, bias, residual, p, seed):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    grid = lambda settings: (triton.cdiv(y.numel(), settings["BLOCK"]),)  # noqa: E731
    forward_kernel[grid](
        x.contiguous(),
        bias.contiguous(),
        residual.contiguous(),
        y,
        y.numel(),
        x.shape[-1],
        p,
        seed,
        BLOCK=512,
    )
    return y


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(dy_ptr, dx_ptr, n, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(axis=0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    dx = dy * factor(offs, p, seed)
    tl.store(dx_ptr + offs, dx.to(dx_ptr.dtype.element_ty), mask=mask)


# %% grade_id="backward"
def backward(grad_y, p, seed):
    dx = torch.empty(grad_y.shape, dtype=grad_y.dtype, device=grad_y.device)
    if dx.numel():
        backward_kernel[(triton.cdiv(dx.numel(), 2048),)](
            grad_y.contiguous(), dx, dx.numel(), p, seed, BLOCK=2048, num_warps=8
        )
    return dx
