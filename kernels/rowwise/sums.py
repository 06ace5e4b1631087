"""The last step of gradients of weight and bias: the sums of all programs, added up in the vectors' own dtypes.

One launch for both vectors, in an order that depends on the number of programs alone. The sums were just written, so
they come from L2: at 132 programs of 1024 columns it is one wait for memory, where a sum and a conversion by PyTorch
are two launches a vector.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2


@triton.jit
def zeros_of(COLS: tl.constexpr, TOGETHER: tl.constexpr, BLOCK_ROWS: tl.constexpr, COMPUTE: tl.constexpr):
    ROWS: tl.constexpr = BLOCK_ROWS if TOGETHER >= BLOCK_ROWS else TOGETHER if TOGETHER > 1 else 1
    return tl.zeros((ROWS, COLS), dtype=COMPUTE)


@triton.jit
def no_sums(inside, BLOCK_ROWS: tl.constexpr, VECTOR: tl.constexpr, num_warps: tl.constexpr, COMPUTE: tl.constexpr):
    """Zeros for sums over rows in pieces, whose columns are `inside`: of each piece as many rows as different threads
    hold. Rows beyond these lie in the same threads again, so with_rows adds them up where they are."""
    sums = ()
    for i in tl.static_range(len(inside)):
        sums = sums + (
            zeros_of(inside[i].shape[1], 32 * num_warps * VECTOR // inside[i].shape[1], BLOCK_ROWS, COMPUTE),
        )
    return sums


@triton.jit
def folded(x, ROWS: tl.constexpr):
    if x.shape[0] > ROWS:
        x = tl.sum(tl.reshape(x, (x.shape[0] // ROWS, ROWS, x.shape[1])), axis=0)
    return x


@triton.jit
def with_rows(sums, x):
    """no_sums and the rows x, in pieces, (BLOCK_ROWS, columns) each."""
    total = ()
    for i in tl.static_range(len(x)):
        total = total + (sums[i] + folded(x[i], sums[i].shape[0]),)
    return total


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
    """How many programs a vector, and their BLOCK_ROWS, BLOCK_COLS and num_warps: at least 128 bytes of a row."""
    block_rows = min(128, next_power_of_2(programs))
    block_cols = min(4096 // block_rows, max(32, next_power_of_2(cols)))
    return cdiv(cols, block_cols), {"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols, "num_warps": 8}


def sums_of_programs(sums: tuple[torch.Tensor, ...], vectors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The sum over the first dimension of one or two tensors, (programs, cols), each in the dtype of its vector."""
    results = [torch.empty_like(vector) for vector in vectors]
    programs, cols = sums[0].shape
    tiles, chosen = launch_of(programs, cols)
    pairs = (*sums, None)[:2], (*results, None)[:2]
    sums_of_programs_kernel[(tiles, len(sums))](*pairs[0], *pairs[1], programs, cols, **chosen)
    return results
