# Element numbers in one loop, rows and columns from a division, the dropped elements chosen rather than the kept ones.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="forward-kernel"
@triton.jit
def is_dropped(seed, number, p):
    return p > tl.rand(seed, number)


@triton.jit
def forward_kernel(x, bias, residual, out, count, width, p, seed, CHUNK: tl.constexpr):
    start = tl.cast(tl.program_id(0), tl.int64) * CHUNK * 2
    for half in tl.static_range(0, 2):
        number = start + half * CHUNK + tl.arange(0, CHUNK)
        inside = number < count
        kept = tl.load(x + number, inside, 0).to(tl.float32)
        kept += tl.load(bias + number % width, inside, other=0).to(tl.float32)
        beside = tl.load(residual + number, inside, other=0).to(tl.float32)
        y = tl.where(is_dropped(seed, number, p), beside, beside + kept / (1.0 - p))
        tl.store(out + number, y, inside)


# %% grade_id="forward"
def forward(x, bias, residual, p, seed):
    out = x.new_empty(x.shape)
    if out.numel():
        forward_kernel[lambda meta: (triton.cdiv(x.numel(), 2 * meta["CHUNK"]),)](
            x.contiguous(), bias.contiguous(), residual.contiguous(), out,
            count=x.numel(), width=x.size(-1), p=p, seed=seed, CHUNK=512,
        )  # fmt: skip
    return out


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(grad, out, count, p, seed, CHUNK: tl.constexpr):
    number = tl.cast(tl.program_id(0), tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = number < count
    gradient = tl.load(grad + number, inside, other=0.0).to(tl.float32) / (1.0 - p)
    tl.store(out + number, tl.where(is_dropped(seed, number, p), 0.0, gradient), inside)


# %% grade_id="backward"
def backward(grad_y, p, seed):
    grad_x = torch.empty(grad_y.shape, dtype=grad_y.dtype, device=grad_y.device)
    if grad_x.numel():
        grid = (triton.cdiv(grad_x.numel(), 2048),)
        backward_kernel[grid](
            grad_y.contiguous(), grad_x, grad_x.numel(), p, seed, 2048, num_warps=8
        )
    return grad_x
