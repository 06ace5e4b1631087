"""Three ways to add up a weight's gradient in the backward pass of RMSNorm: their times, and whether they repeat."""

from functools import partial

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

ROWS, COLUMNS = 32768, 4096
RUNS = 20  # of the same call, to count how many different gradients come of it
FEW = 264  # programs: two for each SM of an H200
WAYS = {  # whether the programs add to one row of sums, and how many programs there are
    "atomics, a program a row": (True, ROWS),
    "atomics, few programs": (True, FEW),
    "partial sums": (False, FEW),
}


@triton.jit
def backward_kernel(
    grad_y_ptr,
    x_ptr,
    weight_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    rows,
    cols,
    eps,
    ATOMIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    inside = col < cols
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * cols + col
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        grad_y = tl.load(grad_y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
        x_hat, along = x * rstd, grad_y * weight
        grad_x = rstd * (along - x_hat * (tl.sum(along * x_hat) / cols))
        tl.store(grad_x_ptr + at, grad_x, mask=inside)
        total += grad_y * x_hat
    if ATOMIC:
        tl.atomic_add(grad_weight_ptr + col, total, mask=inside)
    else:
        tl.store(grad_weight_ptr + tl.program_id(0) * cols + col, total, mask=inside)


def backward(
    way: str, grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x, (rows, cols), and of the weight, (cols,) fp32; `way` is one of WAYS."""
    rows, cols = x.shape
    atomic, most = WAYS[way]
    programs = min(most, rows)
    grad_x = torch.empty_like(x)
    grad_weight = torch.zeros(cols, device=x.device) if atomic else torch.empty(programs, cols, device=x.device)
    arguments = (grad_y, x, weight, grad_x, grad_weight, rows, cols, 1e-6)
    backward_kernel[(programs,)](*arguments, ATOMIC=atomic, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return grad_x, grad_weight if atomic else grad_weight.sum(0)


def measure_times() -> dict[str, Timing]:
    """way -> time on the GPU of both gradients, for ROWS x COLUMNS in bf16."""
    grad_y, x = torch.randn(2, ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(COLUMNS, device="cuda", dtype=torch.bfloat16)
    return benchmark_together({way: partial(backward, way, grad_y, x, weight) for way in WAYS})


def measure_repeats(rows: int = ROWS, cols: int = COLUMNS, device: str = "cuda") -> dict[str, dict[str, float]]:
    """way -> of RUNS calls on the same fp32 inputs: how many gradients differ from all before; columns that are not the
    same in all of them; the largest spread of a column and the largest error against float64, over the largest sum."""
    torch.manual_seed(0)
    grad_y, x = torch.randn(2, rows, cols, device=device)
    weight = torch.randn(cols, device=device)
    exact = (grad_y.double() * x.double() * (x.double().square().mean(1, keepdim=True) + 1e-6).rsqrt()).sum(0)
    largest = exact.abs().max()
    found = {}
    for way in WAYS:
        sums = torch.stack([backward(way, grad_y, x, weight)[1] for _ in range(RUNS)])
        spread = sums.amax(0) - sums.amin(0)
        found[way] = {
            "different": len(sums.unique(dim=0)),
            "columns": int((spread > 0).sum()),
            "spread": (spread.max() / largest).item(),
            "error": ((sums - exact).abs().max() / largest).item(),
            "first": {run: sums[run, 0].item() for run in range(3)},
        }
    return found
