"""Generate dropout's random numbers with Philox4x32-10: ten rounds of multiplying and mixing a counter with a key.

Each number depends only on (seed, row, column), so masks are never stored: the backward pass recomputes them. One
evaluation yields four numbers, one for each of four neighbouring columns. These fours are aligned in memory,
across contiguous rows, like the vectors that kernels access: see dropout_mask.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; tl.philox.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import check_option, meant


@triton.jit
def numbers(seed, row, four_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the numbers of columns 4 f to 4 f + 3 for each f of four_cols, (1, COLS): four blocks of (ROWS, COLS)."""
    zero = tl.zeros((ROWS, COLS), tl.uint32)
    row_low, row_high = row.to(tl.uint32) + zero, (row >> 32).to(tl.uint32) + zero
    return tl.philox(seed, four_cols.to(tl.uint32) + zero, row_low, row_high, zero)


@triton.jit
def is_kept(number, p):
    """Return whether dropout with probability p keeps an element with this random number."""
    # A fraction p of the 2^32 values is below. With p = 1 the product overflows uint32, and the cast is undefined.
    return number >= tl.minimum(p * 4294967296.0, 4294967040.0).to(tl.uint32)


@triton.jit
def kept(seed, row, first_col, p, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return which elements of a (ROWS, COLS) block dropout with probability p keeps.

    `row` is (ROWS, 1), int64; `first_col` begins a four, and COLS is a multiple of 4.
    """
    four_cols = (first_col + 3) // 4 + tl.arange(0, COLS // 4)[None, :]
    r0, r1, r2, r3 = numbers(seed, row, four_cols, ROWS, COLS // 4)
    side_by_side = tl.reshape(tl.join(tl.join(r0, r2), tl.join(r1, r3)), (ROWS, COLS))  # r0, r1, r2, r3
    return is_kept(side_by_side, p)


@triton.jit
def kept_eights(seed, row, first_col, within_four, p, FOURS: tl.constexpr):
    """Return the same for groups of eight neighbouring columns, which begin at `first_col`, (A, B): (A, 8 B).

    A thread owns the eight elements of a 16-byte vector. With FOURS, each group begins at a four. Otherwise it begins
    anywhere, in a row that begins `within_four`, and a third evaluation covers its end.
    """
    A: tl.constexpr = first_col.shape[0]
    B: tl.constexpr = first_col.shape[1]
    four_cols = (first_col + 3) // 4 if FOURS else (within_four + first_col) // 4
    r0, r1, r2, r3 = numbers(seed, row, four_cols, A, B)
    r4, r5, r6, r7 = numbers(seed, row, four_cols + 1, A, B)
    if not FOURS:
        r8, r9, r10, _ = numbers(seed, row, four_cols + 2, A, B)
        by_two, by_one = (within_four + first_col) % 4 >= 2, (within_four + first_col) % 2 == 1
        r0, r1, r2 = tl.where(by_two, r2, r0), tl.where(by_two, r3, r1), tl.where(by_two, r4, r2)
        r3, r4, r5 = tl.where(by_two, r5, r3), tl.where(by_two, r6, r4), tl.where(by_two, r7, r5)
        r6, r7, r8 = tl.where(by_two, r8, r6), tl.where(by_two, r9, r7), tl.where(by_two, r10, r8)
        r0, r1, r2 = tl.where(by_one, r1, r0), tl.where(by_one, r2, r1), tl.where(by_one, r3, r2)
        r3, r4, r5 = tl.where(by_one, r4, r3), tl.where(by_one, r5, r4), tl.where(by_one, r6, r5)
        r6, r7 = tl.where(by_one, r7, r6), tl.where(by_one, r8, r7)
    even, odd = tl.join(tl.join(r0, r4), tl.join(r2, r6)), tl.join(tl.join(r1, r5), tl.join(r3, r7))
    return is_kept(tl.reshape(tl.join(even, odd), (A, 8 * B)), p)


@triton.jit
def kept_at(seed, row, col, p, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return the same for any columns, (1, COLS) or (ROWS, COLS), with one evaluation each.

    `col` is counted from the four in which the row begins.
    """
    r0, r1, r2, r3 = numbers(seed, row, col // 4, ROWS, COLS)
    low, high = tl.where(col % 2 == 0, r0, r1), tl.where(col % 2 == 0, r2, r3)
    return is_kept(tl.where(col % 4 < 2, low, high), p)


def philox(seed: int, counters: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Compute Philox4x32-10 in PyTorch: four int64 tensors of values below 2^32, from four such counters."""
    low_bits = 2**32 - 1
    keys = [seed & low_bits, seed >> 32 & low_bits]
    c0, c1, c2, c3 = counters
    for _ in range(10):
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # int64 keeps all 64 bits of the product, whatever its sign
        c0, c1 = (odd >> 32 & low_bits) ^ c1 ^ keys[0], odd & low_bits
        c2, c3 = (even >> 32 & low_bits) ^ c3 ^ keys[1], even & low_bits
        keys = [keys[0] + 0x9E3779B9 & low_bits, keys[1] + 0xBB67AE85 & low_bits]
    return c0, c1, c2, c3


def begin_fours(cols: int, vector: int) -> bool:
    """Return FOURS: whether each row's whole vectors, of `vector` elements, begin at a four."""
    return cols % 4 == 0 or vector % 4 == 0


def dropout_mask(seed: torch.Tensor, rows: int, cols: int, p: float) -> torch.Tensor:
    """Return the (rows, cols) bool mask that kernels compute from this seed, True for kept. For tests and lessons.

    Fours are aligned in memory, across contiguous rows. A row starts where the previous row ended within a four, not
    at a new four.

    Args:
        seed: int64 tensor with one value.
        p: the drop probability, 0 to 1.
    """
    fours = torch.arange(-(-(cols + 3) // 4), device=seed.device).expand(rows, -1)
    row = torch.arange(rows, device=seed.device)[:, None].expand_as(fours)
    words = philox(int(seed), (fours, row & 2**32 - 1, row >> 32, torch.zeros_like(row)))
    first = row[:, :1] * cols % 4
    bits = torch.stack(words, dim=-1).flatten(1).gather(1, first + torch.arange(cols, device=seed.device))
    return bits >= min(int(torch.tensor(p, dtype=torch.float32).double() * 2**32), 2**32 - 256)


def new_seed(device: torch.device) -> torch.Tensor:
    """Draw a seed from PyTorch's own generator, so that torch.manual_seed controls it and each CUDA graph replay
    redraws it."""
    return torch.randint(2**63 - 1, (), device=device)


def scale_of_kept(p: float) -> float:
    """Return 1 / (1 - p), dropout's factor for kept elements, or 0 if nothing is kept."""
    return 1.0 / (1.0 - p) if p < 1 else 0.0


def check_dropout(operation: str, x: torch.Tensor, seed: torch.Tensor | None, p: float) -> None:
    """Check the arguments that every kernel with dropout takes.

    Raises:
        TypeError: seed is not an int64 tensor, or p is not a number.
        ValueError: p is not within 0 to 1, or seed is not one value on x's device.
    """
    check_option(operation, "p", p, float)
    if seed is None:
        return
    if not isinstance(seed, torch.Tensor) or seed.dtype != torch.int64:
        kind = seed.dtype if isinstance(seed, torch.Tensor) else type(seed).__name__
        mend = meant(operation, "seed", seed) or "use torch.tensor(seed)"
        raise TypeError(f"{operation} takes seed in a tensor of torch.int64, got {kind}: {mend}")
    if seed.numel() != 1 or seed.device != x.device:
        raise ValueError(
            f"{operation} takes a seed of one value on {x.device}, got {tuple(seed.shape)} on {seed.device}: "
            f"use torch.tensor(seed, device=x.device)"
        )
