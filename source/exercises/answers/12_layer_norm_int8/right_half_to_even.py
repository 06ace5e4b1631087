# Rounds by floor and a half, ties to even by hand; extremes rather than magnitudes; keyword arguments.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def nearest(value):
    low = tl.floor(value)
    rest = value - low
    odd = low != 2.0 * tl.floor(low / 2.0)
    return low + tl.where((rest > 0.5) | ((rest == 0.5) & odd), 1.0, 0.0)


@triton.jit
def layer_norm_int8_kernel(x, w, b, codes, scales, n, eps, clip, LANES: tl.constexpr):
    program, lane = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    real = lane < n
    x += program * n
    row = tl.load(x + lane, real, other=0.0).to(tl.float32)
    row = tl.where(real, row - tl.sum(row) / n, 0.0)
    row /= tl.sqrt(tl.sum(row * row) / n + eps)
    row = row * tl.load(w + lane, real, other=0.0).to(tl.float32)
    row = row + tl.load(b + lane, real, other=0.0).to(tl.float32)
    peak = tl.max(tl.where(row < 0, -row, row))
    scale = tl.where(peak < 1e-12, 1e-12, peak) * clip / 127.0
    tl.store(scales + program, scale)
    code = nearest(row / scale)
    code = tl.where(code < -127.0, -127.0, tl.where(code > 127.0, 127.0, code))
    tl.store(codes + program * n + lane, code.to(tl.int8), real)


# %% grade_id="launcher"
def layer_norm_int8(x, weight, bias, eps, clip):
    *outer, n = x.shape
    codes = x.new_empty(x.shape, dtype=torch.int8)
    scales = x.new_empty((*outer, 1), dtype=torch.float32)
    if codes.numel():
        lanes = triton.next_power_of_2(n)
        layer_norm_int8_kernel[(scales.numel(),)](
            x=x.contiguous(), w=weight, b=bias, codes=codes, scales=scales, n=n, eps=eps, clip=clip,
            LANES=lanes, num_warps={True: 4, False: min(lanes // 512, 32)}[lanes <= 2048],
        )  # fmt: skip
    return codes, scales
