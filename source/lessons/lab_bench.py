# %% [markdown]
# # The lab bench
#
# Every instrument of the course, each in one line, on the kernel below. Put your own in its place and run all cells.

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.figures import (
    Point,
    occupancy_chart,
    occupancy_explorer,
    roofline_chart,
    roofline_explorer,
    timing_chart,
    traffic_chart,
    waves_chart,
)
from helpers.instruments import (
    DEVICES,
    Roofline,
    Work,
    benchmark,
    benchmark_together,
    compile_for,
    measure,
    occupancy,
    predict,
    this_device,
)
from kernels import runtime


# %%
@triton.jit
def silu_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n)
    tl.store(out + offsets, value * tl.sigmoid(value), mask=offsets < n)


def fused(x):
    out = torch.empty_like(x)
    silu_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def unfused(x):
    return x * torch.sigmoid(x)


device = DEVICES["H100"]
x = torch.randn(100_000, device="cuda" if runtime.has_gpu() else "cpu")

# %%
measure(fused, x)

# %%
needs = compile_for(silu_kernel, x, x, x.numel(), device="H100", BLOCK=1024)
print(needs)

# %%
needs.sass_view("load", "store")

# %%
needs.occupancy().waves(grid=10_000, sms=device.sms)

# %%
occupancy(device.compute_capability, threads=256, registers=70)

# %%
roof, work = Roofline(device, "fp32"), Work(flops=5 * x.numel(), bytes_read=x.nbytes, bytes_written=x.nbytes)
print(f"{roof.time(work) * 1e9:.0f} ns at best, {roof.bound(work)}-bound")

# %%
predict(fused, x, device="H100")

# %% tags=["nbval-ignore-output"]
print(this_device().name, benchmark(torch.nn.functional.silu, x))

# %% [markdown]
# The same as pictures, the last two with sliders:

# %%
traffic_chart({"unfused": measure(unfused, x), "fused": measure(fused, x)})

# %% tags=["nbval-ignore-output"]
times = benchmark_together({"unfused": lambda: unfused(x), "fused": lambda: torch.nn.functional.silu(x)})
timing_chart(times, this_device().name)

# %%
waves_chart(needs.occupancy().waves(grid=10_000, sms=device.sms))

# %%
occupancy_chart(needs.occupancy())

# %%
point = Point("SiLU", work.intensity, roof.attainable(work.intensity), "fused")
roofline_chart(roof, [point], f"SiLU is {roof.bound(work)}-bound", f"SiLU does {work.intensity:.2f} FLOP/byte")

# %%
occupancy_explorer("H100", threads=256, registers=70)

# %%
roofline_explorer("H100", "fp32")
