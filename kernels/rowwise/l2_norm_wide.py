"""l2_norm of rows beyond 32768 columns: held in one program's registers, a row of 65536 spills 108 bytes a thread.

A row is read twice, in chunks: 12 B/element in fp32 asked of memory, of which L2 serves what it still holds. On an
H200, bf16, 2048 x 131072 take 402 us, held 526; 4096 x 65536 take 330, held 309 in spite of the spills.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows
from kernels.rowwise.pieces import arithmetic, columns_inside, pointers, row_sum
from kernels.vectors import elements_before, vectors_of_rows

CHUNK = 16384  # elements of a row that are seen at once


@triton.jit
def l2_norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous, x's dtype
    cols,
    x_row_stride,
    eps,
    PIECES: tl.constexpr,  # of a chunk of a row: kernels/rowwise/pieces.py
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    total = tl.cast(0.0, COMPUTE)
    for chunk in tl.range(0, cols, PIECES[0]):
        inside = columns_inside(lead, cols, PIECES, chunk)
        at = pointers(x_ptr + chunk, row * x_row_stride, lead, cols, PIECES)
        squares = ()
        for i in tl.static_range(len(at)):
            # The row is wanted once more: it should outlive in L2 what is only written.
            x = tl.load(at[i], mask=inside[i], other=0.0, eviction_policy="evict_last").to(COMPUTE)
            squares = squares + (x * x,)
        total += row_sum(squares)
    norm = tl.sqrt(total)
    divisor = tl.where(norm < eps, eps, norm)
    for chunk in tl.range(0, cols, PIECES[0]):
        inside = columns_inside(lead, cols, PIECES, chunk)
        at = pointers(x_ptr + chunk, row * x_row_stride, lead, cols, PIECES)
        out = pointers(y_ptr + chunk, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(at)):
            x = tl.load(at[i], mask=inside[i], eviction_policy="evict_first").to(COMPUTE)
            tl.store(out[i], (x / divisor).to(y_ptr.dtype.element_ty), mask=inside[i])


def forward(x: torch.Tensor, y: torch.Tensor, eps: float) -> None:
    """Write y; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    pieces = CHUNK, 0, *vectors_of_rows(x, as_rows(y))
    compute = arithmetic(x.dtype)
    l2_norm_wide_kernel[(rows,)](x, y, cols, x.stride(0), eps, PIECES=pieces, COMPUTE=compute, num_warps=16)
