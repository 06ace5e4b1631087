# Few programs walk over the rows, rows are tiles of height 1, and the deviation divides.

# %%
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def layer_norm_kernel(source, gamma, beta, target, rows, n, eps, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)[None, :]
    inside = lane < n
    gain = tl.load(gamma + lane, mask=inside, other=1.0).to(tl.float32)
    shift = tl.load(beta + lane, mask=inside, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * n + lane
        values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
        values -= tl.sum(values, axis=1, keep_dims=True) / n
        values = tl.where(inside, values, 0.0)
        spread = tl.sqrt(tl.sum(values * values, axis=1, keep_dims=True) / n + eps)
        tl.store(target + at, values / spread * gain + shift, mask=inside)


# %% grade_id="launcher"
def layer_norm(x, weight, bias, eps):
    n = x.shape[-1]
    rows = x.numel() // n
    y = x.new_empty(x.shape)
    if rows:
        layer_norm_kernel[lambda given: (min(rows, 4096),)](
            x.contiguous(), weight, bias, y, rows=rows, n=n, eps=eps,
            WIDTH=triton.next_power_of_2(n), num_warps=4 if n <= 2048 else 16,
        )  # fmt: skip
    return y
