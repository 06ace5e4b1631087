# A probability's bits and its column in one int64, whose largest is the next winner.
# ruff: noqa: RUF005

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def softmax_topk_kernel(logits, shares, best, places, cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    real = col < cols
    z = tl.load(logits + row * cols + col, mask=real, other=float("-inf")).to(tl.float32)
    weight = tl.exp(z - tl.max(z, axis=0, keep_dims=True))
    share = weight / tl.sum(weight, axis=0, keep_dims=True)
    tl.store(shares + row * cols + col, share, mask=real)
    # Numbers from 0 on are ordered as their bits are, NaN is above all of them, and of equal ones
    # the lowest column wins.
    bits = tl.where(share != share, 0x7FC00000, share.to(tl.int32, bitcast=True))
    keys = tl.where(real, (bits.to(tl.int64) << 32) + (BLOCK - 1 - col), -1)
    for rank in range(K):
        top = tl.max(keys, axis=0)
        value = (top >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(best + row * K + rank, value)
        tl.store(places + row * K + rank, BLOCK - 1 - (top & 0xFFFFFFFF))
        keys = tl.where(keys == top, -1, keys)


# %% grade_id="launcher"
def softmax_topk(x, k):
    shape, cols = x.shape, x.shape[-1]
    shares = x.new_empty(shape)
    best = x.new_empty(shape[:-1] + (k,))
    places = torch.empty_like(best, dtype=torch.long)
    rows = best.numel() // k
    if rows:
        block = 1 << (cols - 1).bit_length()
        softmax_topk_kernel[(rows,)](
            x.contiguous(), shares, best, places, cols=cols, K=k, BLOCK=block,
            num_warps=min(max(block // 256, 1), 16),
        )  # fmt: skip
    return shares, best, places
