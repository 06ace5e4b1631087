"""(x - mean) / sqrt(variance + eps) of rows held in registers, with one exchange between warps where that is possible.

The variance is the mean square of what is left after the mean is taken off. E[x^2] - E[x]^2 would need one reduction
less, and loses every digit where the mean is large. Two reductions, though, are two waits of all warps for each other.
Where each thread holds as many elements of a row as every other, it takes the mean and variance of its own, and these
are merged by Chan's formula for two halves of one size: one reduction, and no digit lost.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

import triton
import triton.language as tl


@triton.jit
def merged(mean_a, variance_a, mean_b, variance_b):
    """Mean and variance of two halves of one size, together."""
    apart = mean_b - mean_a
    return 0.5 * (mean_a + mean_b), 0.5 * (variance_a + variance_b) + 0.25 * apart * apart


@triton.jit
def normalise(x, cols: tl.constexpr, eps, VECTOR: tl.constexpr, num_warps: tl.constexpr):
    """(x - mean) / sqrt(variance + eps) of each row of x.

    x: (BLOCK_ROWS, BLOCK_COLS) in the dtype of the arithmetic, 0 from column `cols` on; so is the result.
    VECTOR: elements that a thread loads at once. Where a layout has others side by side, only speed is lost.
    """
    BLOCK_ROWS: tl.constexpr = x.shape[0]
    BLOCK_COLS: tl.constexpr = x.shape[1]
    THREADS: tl.constexpr = 32 * num_warps
    # Of rows in 32 bits a merging thread holds 32 elements in 64 registers only by spilling.
    if cols == BLOCK_COLS and BLOCK_COLS >= THREADS * VECTOR and VECTOR >= 8:
        OWN: tl.constexpr = BLOCK_COLS // THREADS  # elements of a row that one thread holds
        own = tl.reshape(x, (BLOCK_ROWS, OWN // VECTOR, THREADS, VECTOR))
        own_mean = tl.sum(tl.sum(own, axis=3), axis=1) * (1.0 / OWN)
        centred = own - own_mean[:, None, :, None]
        own_variance = tl.sum(tl.sum(centred * centred, axis=3), axis=1) * (1.0 / OWN)
        mean, variance = tl.reduce((own_mean, own_variance), 1, merged, keep_dims=True)
        rstd = tl.rsqrt(variance + eps)
        moved = (own_mean - mean) * rstd
        x_hat = tl.reshape(centred * rstd[:, None, :, None] + moved[:, None, :, None], (BLOCK_ROWS, BLOCK_COLS))
    else:
        mean = tl.sum(x, axis=1, keep_dims=True) / cols
        # Lanes past the row's end would now hold -mean and count in the variance.
        centred = tl.where(tl.arange(0, BLOCK_COLS)[None, :] < cols, x - mean, 0.0)
        x_hat = centred * tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)
    return x_hat
