"""Sum the programs' shares of the gradients of weight and bias in one launch, each in its vector's own dtype.

The order of the sum depends only on the number of programs. The shares were just written, so they come from L2. For 132
programs and 1024 columns the launch waits for memory once; PyTorch would need two launches per vector, a sum and a
conversion.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2


@triton.jit
def sums_of_programs_kernel(
    first_sums_ptr,  # (programs, cols), contiguous, fp32 or fp64
    second_sums_ptr,  # the same, or None
    first_ptr,  # (cols,)
    second_ptr,  # (cols,), or None
    programs,
    cols,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    sums_ptr = first_sums_ptr
    if second_sums_ptr is not None:
        sums_ptr = second_sums_ptr if tl.program_id(1) == 1 else first_sums_ptr
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=sums_ptr.dtype.element_ty)
    for start in range(0, programs, BLOCK_ROWS):
        program = start + tl.arange(0, BLOCK_ROWS)[:, None]
        at = sums_ptr + program.to(tl.int64) * cols + col
        total += tl.load(at, mask=(program < programs) & (col < cols), other=0.0)
    total = tl.sum(total, axis=0, keep_dims=True)
    if tl.program_id(1) == 0:
        tl.store(first_ptr + col, total.to(first_ptr.dtype.element_ty), mask=col < cols)
    elif second_ptr is not None:
        tl.store(second_ptr + col, total.to(second_ptr.dtype.element_ty), mask=col < cols)


def launch_of(programs: int, cols: int) -> tuple[int, dict]:
    """Return programs per vector, BLOCK_ROWS, BLOCK_COLS and num_warps. A block has at least 128 bytes per row."""
    block_rows = min(128, next_power_of_2(programs))
    block_cols = min(4096 // block_rows, max(32, next_power_of_2(cols)))
    return cdiv(cols, block_cols), {"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols, "num_warps": 8}


def sums_of_programs(sums: tuple[torch.Tensor, ...], vectors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Sum one or two (programs, cols) tensors over their first dimension, each in the dtype of its vector."""
    results = [torch.empty_like(vector) for vector in vectors]
    programs, cols = sums[0].shape
    tiles, chosen = launch_of(programs, cols)
    pairs = (*sums, None)[:2], (*results, None)[:2]
    sums_of_programs_kernel[(tiles, len(sums))](*pairs[0], *pairs[1], programs, cols, **chosen)
    return results
