"""Lesson 04: the cost of random numbers: bias, dropout and residual without them, with tl.rand and with tl.rand4x."""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed

ROWS, COLUMNS = 16384, 4096
NUMBERS = {"no dice": 0, "tl.rand": 1, "tl.rand4x": 4}  # how many each evaluation yields


@triton.jit
def dice_kernel(x_ptr, bias_ptr, r_ptr, y_ptr, seed, p, columns, EACH: tl.constexpr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    element, inside = row * columns + lane, lane < columns
    x = tl.load(x_ptr + element, mask=inside).to(tl.float32)
    x += tl.load(bias_ptr + lane, mask=inside).to(tl.float32)
    if EACH == 1:
        x = tl.where(tl.rand(seed, element) >= p, x / (1 - p), 0.0)
    if EACH == 4:  # every row begins a new four: 4 divides columns
        a, b, c, d = tl.rand4x(seed, row * (columns // 4) + tl.arange(0, BLOCK // 4))
        numbers = tl.join(tl.join(a, c), tl.join(b, d)).reshape((BLOCK,))  # a b c d, a b c d
        x = tl.where(numbers >= p, x / (1 - p), 0.0)
    y = tl.load(r_ptr + element, mask=inside).to(tl.float32) + x
    tl.store(y_ptr + element, y, mask=inside)


def with_dice(each: int, x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Compute residual + dropout(x + bias), (rows, columns), up to 4096 columns, with `each` numbers per evaluation."""
    y = torch.empty_like(x)
    rows, columns = x.shape
    dice_kernel[(rows,)](x, bias, residual, y, 3141, 0.1, columns, EACH=each, BLOCK=4096, num_warps=8)
    return y


def dice(dtype: str) -> dict:
    """Return generator -> call, for ROWS x COLUMNS."""
    x, residual = torch.randn(2, ROWS, COLUMNS, device="cuda", dtype=getattr(torch, dtype))
    return {name: partial(with_dice, each, x, x[0].clone(), residual) for name, each in NUMBERS.items()}


EXPERIMENTS = {"dice": timed(dice, ("bfloat16", "float32"))}
