# One flat grid, a while loop, base-2 exponentials, and all parts in one tensor: two numbers, then the vector.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="split"
@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, bounds_ptr, parts_ptr, keys, splits, scale,
    DIM: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    head, split = number // splits, number % splits
    d = tl.arange(0, DIM)[None, :]
    q = tl.load(q_ptr + head * DIM + d).to(tl.float32) * (scale * 1.4426950408889634)
    here, end = tl.load(bounds_ptr + split), tl.load(bounds_ptr + split + 1)
    peak, total = float("-inf"), 0.0
    acc = tl.zeros([1, DIM], tl.float32)
    while here < end:
        key = here + tl.arange(0, STEP)[:, None]
        at = (head * keys + key) * DIM + d
        k = tl.load(k_ptr + at, mask=key < end, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=key < end, other=0.0).to(tl.float32)
        s = tl.where(key < end, tl.sum(k * q, 1, keep_dims=True), float("-inf"))
        higher = tl.maximum(peak, tl.max(s))
        weight, shrink = tl.exp2(s - higher), tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weight)
        acc = acc * shrink + tl.sum(v * weight, 0, keep_dims=True)
        peak, here = higher, here + STEP
    place = parts_ptr + number * (DIM + 2)
    tl.store(place, peak)
    tl.store(place + 1, total)
    tl.store(place + 2 + d, acc)


# %% grade_id="merge"
@triton.jit
def merge_kernel(parts_ptr, y_ptr, splits, DIM: tl.constexpr):
    head, d = tl.program_id(0).to(tl.int64), tl.arange(0, DIM)
    peak, total = -1e38, 0.0
    acc = tl.zeros([DIM], tl.float32)
    # One split after another, as within a split.
    for split in range(splits):
        place = parts_ptr + (head * splits + split) * (DIM + 2)
        other = tl.load(place)
        higher = tl.maximum(peak, other)
        shrink, share = tl.exp2(peak - higher), tl.exp2(other - higher)
        total = total * shrink + tl.load(place + 1) * share
        acc = acc * shrink + tl.load(place + 2 + d) * share
        peak = higher
    tl.store(y_ptr + head * DIM + d, tl.where(total == 0.0, acc, acc / total))


# %% grade_id="launcher"
def flash_decode(q, k, v, bounds):
    heads, keys, dim = k.shape
    splits = len(bounds) - 1
    parts = torch.empty((heads * splits, dim + 2), dtype=torch.float32, device=q.device)
    y = q.new_empty(q.shape)
    q, k, v = (each.contiguous() for each in (q, k, v))
    split_kernel[(heads * splits,)](
        q, k, v, bounds, parts, keys, splits, 1 / dim**0.5, dim, STEP=16
    )
    merge_kernel[(heads,)](parts, y, splits, DIM=dim)
    return y
