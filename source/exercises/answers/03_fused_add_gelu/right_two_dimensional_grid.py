# A 2-D grid from a lambda, a helper, keyword arguments, values in place of those past the end.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def tanh(u):
    # 1 - 2 / (1 + e^2u) is 1 or -1 where e^2u overflows or underflows.
    return 1.0 - 2.0 / (1.0 + tl.exp2(2.8853900817779268 * u))


@triton.jit
def add_gelu_kernel(left, right, out, elements, UNROLL: tl.constexpr, SIZE: tl.constexpr):
    first = (tl.program_id(axis=1).to(tl.int64) * tl.num_programs(0) + tl.program_id(axis=0)) * (
        UNROLL * SIZE
    )
    for part in tl.static_range(UNROLL):
        place = first + part * SIZE + tl.arange(0, SIZE)
        there = place < elements
        total = tl.load(left + place, there, other=1.0).to(tl.float32)
        total += tl.load(right + place, there, other=-1.0).to(tl.float32)
        cubic = tl.math.fma(total * total * total, 0.044715, total)
        value = 0.5 * total * (1.0 + tanh(0.7978845608028654 * cubic))
        tl.store(pointer=out + place, value=value, mask=there)


# %% grade_id="launcher"
def add_gelu(a, b):
    result = torch.empty(size=a.shape, dtype=a.dtype, device=a.device)
    count = result.numel()
    if count == 0:
        return result

    def grid(meta):
        programs = triton.cdiv(count, meta["SIZE"] * meta["UNROLL"])
        return min(programs, 1024), triton.cdiv(programs, 1024)

    add_gelu_kernel[grid](
        left=a.contiguous(), right=b.contiguous(), out=result, elements=count, UNROLL=2, SIZE=512
    )
    return result
