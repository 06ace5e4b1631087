# The winners are collected in registers, and stored together at the end.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def softmax_topk_kernel(
    x_ptr,
    stride,
    p_ptr,
    values_ptr,
    indices_ptr,
    cols,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + col, mask=col < cols, other=float("-inf")).to(tl.float32)
    p = tl.exp2((x - tl.max(x, 0)) * 1.4426950408889634)
    total = tl.sum(p, 0)
    p = p / total
    tl.store(p_ptr + row * cols + col, p, mask=col < cols)
    slot = tl.arange(0, SLOTS)
    values = tl.zeros([SLOTS], tl.float32)
    indices = tl.zeros([SLOTS], tl.int32)
    left = tl.where(col < cols, p, -1.0)
    for place in range(K):
        top, winner = tl.max(left, 0, return_indices=True)
        values = tl.where(slot == place, top, values)
        indices = tl.where(slot == place, winner, indices)
        left = tl.where(col == winner, -2.0, left)
    values = tl.where(total == total, values, total)  # a row of NaN
    tl.store(values_ptr + row * K + slot, values.to(values_ptr.dtype.element_ty), mask=slot < K)
    tl.store(indices_ptr + row * K + slot, indices.to(tl.int64), mask=slot < K)


# %% grade_id="launcher"
def softmax_topk(x, k):
    *batch, cols = x.shape
    p = x.new_empty(x.shape)
    values, indices = x.new_empty((*batch, k)), x.new_empty((*batch, k), dtype=torch.int64)
    matrix = x.reshape(-1, cols)
    if matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    if len(matrix):
        softmax_topk_kernel[(len(matrix),)](
            matrix,
            matrix.stride(0),
            p,
            values,
            indices,
            cols,
            K=k,
            SLOTS=triton.next_power_of_2(k),
            BLOCK=triton.next_power_of_2(cols),
            num_warps=8,
        )
    return p, values, indices
