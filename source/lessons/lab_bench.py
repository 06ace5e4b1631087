# %% [markdown]
# # The lab bench
#
# This notebook applies every instrument in the course to one function, with one call each. Replace the function and its
# inputs with your own, and run all cells.

# %% tags=["hide-input"]
import torch
import triton
import triton.language as tl

from helpers.figures import (
    OccupancyExplorer,
    Point,
    RooflineExplorer,
    occupancy_chart,
    roofline_chart,
    timing_chart,
    traffic_chart,
    watch,
    waves_chart,
)
from helpers.instruments import (
    bench,
    measure,
    occupancy,
    predict,
    this_device,
)
from kernels.interpreter import runtime


# %%
@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + i, mask=i < n)
    tl.store(out_ptr + i, gate * tl.sigmoid(gate) * tl.load(up_ptr + i, mask=i < n), mask=i < n)


def my_function(gate, up):
    out = torch.empty_like(gate)
    swiglu_kernel[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), BLOCK=1024)
    return out


def plain(gate, up):
    return torch.nn.functional.silu(gate) * up


inputs = torch.randn(2, 100_000, device="cuda" if runtime.has_gpu() else "cpu").unbind()

# %% [markdown]
# First, watch it run line by line on a few values in small blocks (`watch` also takes CUDA C++ kernels):

# %%
few = [each[:12] for each in inputs]
watch(swiglu_kernel[(2,)], *few, torch.empty_like(few[0]), 12, BLOCK=8)

# %%
report = bench(my_function, *inputs, reference=plain, flops=6 * inputs[0].numel(), device="H100")
report

# %%
measure(my_function, *inputs).tensor_table()

# %%
needs = report.kernels[0].resources
needs.sass_view("load", "store")

# %%
occupancy(report.device.compute_capability, threads=256, registers=70)

# %%
for name in ("T4", "A100", "B200"):
    print(repr(predict(my_function, *inputs, device=name)).splitlines()[0])

# %% tags=["nbval-ignore-output"]
times = report.times()
print(this_device().name, *times.items(), sep="\n")

# %% [markdown]
# The same results as figures, the last two with sliders:

# %%
traffic_chart({"unfused": report.reference, "fused": report.traffic})

# %% tags=["nbval-ignore-output"]
timing_chart(times["alone"], this_device().name)

# %%
waves_chart(report.kernels[0].waves)

# %%
occupancy_chart(needs.occupancy())

# %%
intensity = report.work.intensity
point = Point("yours, as predicted", intensity, report.flops / report.prediction.time, "fused")
limit = report.roof.bound(report.work)
bound = f"{limit}-bound at best, and far below that roof: a short kernel waits for its launch"
roofline_chart(report.roof, [point], bound, f"yours does {intensity:.2f} FLOP/byte")

# %%
OccupancyExplorer("H100", threads=256, registers=70)

# %%
RooflineExplorer("H100", "fp32")
