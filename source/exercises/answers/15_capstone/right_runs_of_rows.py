# Runs of neighbouring rows, helpers that both passes share, a dictionary of arguments, and a report by name.
# ruff: noqa: F821

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="forward-kernel"
@triton.jit
def gated(values, gates):
    share = 1.0 / (1.0 + tl.exp(-gates))
    return values * gates * share, share


@triton.jit
def scale_of(h, n, eps):
    return 1.0 / tl.sqrt(tl.sum(h * h, axis=0) / n + eps)


@triton.jit
def forward_kernel(out, values, gates, beside, gains, n, eps, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    real = lane < n
    lane = tl.program_id(0).to(tl.int64) * n + lane
    value = tl.load(values + lane, real, other=0.0).to(tl.float32)
    gate = tl.load(gates + lane, real, other=0.0).to(tl.float32)
    h, _ = gated(value, gate)
    h *= scale_of(h, n, eps)
    h *= tl.load(gains + tl.arange(0, LANES), real, other=0.0).to(tl.float32)
    h += tl.load(beside + lane, real, other=0.0).to(tl.float32)
    tl.store(out + lane, h, real)


# %% grade_id="forward"
def forward(x, gate, residual, weight, eps):
    out = x.new_empty(x.shape)
    given = {"values": x, "gates": gate, "beside": residual}
    given = {name: each.contiguous() for name, each in given.items()}
    if out.numel():
        n = x.shape[-1]
        lanes = triton.next_power_of_2(n)
        forward_kernel[(out.numel() // n,)](
            out,
            **given,
            gains=weight,
            n=n,
            eps=eps,
            LANES=lanes,
            num_warps=min(32, max(4, lanes // 512)),
        )
    return out


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(
    ups, values, gates, gains, to_values, to_gates, parts, rows, n, eps,
    KIND: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    real = lane < n
    gain = tl.load(gains + lane, real, other=0.0).to(KIND)
    part = tl.zeros([LANES], KIND)
    run = tl.cdiv(rows, tl.num_programs(0))
    for step in range(run):
        row = (tl.program_id(0) * run + step).to(tl.int64)
        # A row that doesn't exist is loaded as zeros and not stored.
        here = real & (row < rows)
        at = row * n + lane
        up = tl.load(ups + at, here, other=0.0).to(KIND)
        value = tl.load(values + at, here, other=0.0).to(KIND)
        gate = tl.load(gates + at, here, other=0.0).to(KIND)
        h, share = gated(value, gate)
        scale = scale_of(h, n, eps)
        unit = tl.where(here, h * scale, 0.0)
        part += up * unit
        up *= gain
        to_h = scale * (up - unit * (tl.sum(up * unit, axis=0) / n))
        tl.store(to_values + at, to_h * (gate * share), here)
        tl.store(to_gates + at, to_h * value * (share + gate * share * (1.0 - share)), here)
    tl.store(parts + tl.program_id(0) * n + lane, part, real)


# %% grade_id="backward"
def backward(grad_y, x, gate, weight, eps):
    n = x.shape[-1]
    rows = x.numel() // n
    count = min(rows, PROGRAMS) if rows else 1
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = torch.empty((count, n), dtype=wide, device=x.device)
    to_x, to_gate = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in "xg")
    lanes = triton.next_power_of_2(n)
    backward_kernel[(count,)](
        *(each.contiguous() for each in (grad_y, x, gate)),
        weight, to_x, to_gate, parts, rows, n, eps,
        KIND={torch.float32: tl.float32, torch.float64: tl.float64}[wide], LANES=lanes,
        num_warps=min(32, max(4, lanes // 256)),
    )  # fmt: skip
    return to_x, to_gate, parts.sum(dim=0).to(x.dtype)


# %% grade_id="report"
def report(rows, columns, share):
    x, row, weight = 4 * rows * columns, 4 * rows, 4 * columns
    launches = {
        "silu": x + x,
        "h": x + x + x,
        "square": x + x,
        "mean": x + row,
        "eps": row + row,
        "rsqrt": row + row,
        "normalised": x + row + x,
        "weighted": x + weight + x,
        "y": x + x + x,
    }
    before, after = sum(launches.values()), x + x + x + weight + x
    rest = 1.0 - share
    return (
        len(launches),
        before,
        after,
        (before - after) * 100 / before,
        before / (rest * before + share * after),
    )
