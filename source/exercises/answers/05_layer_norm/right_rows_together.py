# Several rows a program, a two-dimensional block, and a stride instead of a copy.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    rows,
    cols,
    stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * stride + col, mask=inside, other=0.0).to(tl.float32)
    x -= tl.sum(x, axis=1, keep_dims=True) / cols
    x = tl.where(inside, x, 0.0)
    deviation = tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    y = x / deviation * weight + bias
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


# %% grade_id="launcher"
def layer_norm(x, weight, bias, eps=1e-5):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    matrix = x.reshape(-1, x.shape[-1])
    if matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    rows, cols = matrix.shape
    block = triton.next_power_of_2(cols)
    together = max(1, 1024 // block)
    layer_norm_kernel[(triton.cdiv(rows, together),)](
        matrix,
        weight,
        bias,
        y,
        rows,
        cols,
        matrix.stride(0),
        eps,
        ROWS=together,
        BLOCK=block,
        num_warps=8,
    )
    return y
