"""Few rows, each shared by several programs: cross entropy with a row in 1 to 16 parts, and a second launch to join."""

from functools import partial

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

COLUMNS = 32768
ROWS = (8, 128, 4096)
PARTS = (1, 2, 4, 8, 16)
BLOCK = 2048


@triton.jit
def absorb(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    return higher, total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))


@triton.jit
def part_kernel(x_ptr, peaks_ptr, totals_ptr, columns, each, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, total = -float("inf"), 0.0
    for start in range(part * each, tl.minimum(part * each + each, columns), BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + col, mask=col < columns, other=-float("inf"))
        peak, total = absorb(peak, total, x.to(tl.float32))
    place = row * tl.num_programs(1) + part
    tl.store(peaks_ptr + place, peak)
    tl.store(totals_ptr + place, total)


@triton.jit
def join_kernel(x_ptr, labels_ptr, peaks_ptr, totals_ptr, losses_ptr, columns, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = row * PARTS + tl.arange(0, PARTS)
    peaks, totals = tl.load(peaks_ptr + part), tl.load(totals_ptr + part)
    peak = tl.max(peaks)
    total = tl.sum(totals * tl.exp(peaks - peak))
    at_label = tl.load(x_ptr + row * columns + tl.load(labels_ptr + row)).to(tl.float32)
    tl.store(losses_ptr + row, peak + tl.log(total) - at_label)


def split_loss(x: torch.Tensor, labels: torch.Tensor, parts: int) -> torch.Tensor:
    """Cross entropy of each row: (rows, columns) and (rows,) to (rows,) fp32. `parts` is a power of two."""
    rows, columns = x.shape
    peaks, totals = torch.empty(2, rows, parts, device=x.device)
    losses = torch.empty(rows, device=x.device)
    each = triton.cdiv(columns, parts * BLOCK) * BLOCK  # whole blocks
    part_kernel[(rows, parts)](x, peaks, totals, columns, each, BLOCK=BLOCK)
    join_kernel[(rows,)](x, labels, peaks, totals, losses, columns, PARTS=parts)
    return losses


def measure() -> dict[int, dict[int, Timing]]:
    """Rows -> parts a row -> time on the GPU, of both launches, for rows of COLUMNS in bf16."""
    found = {}
    for rows in ROWS:
        x = torch.randn(rows, COLUMNS, device="cuda", dtype=torch.bfloat16)
        labels = torch.randint(COLUMNS, (rows,), device="cuda")
        found[rows] = benchmark_together({parts: partial(split_loss, x, labels, parts) for parts in PARTS})
    return found
