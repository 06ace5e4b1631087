"""(x - mean) / sqrt(variance + eps) of rows in registers, with one exchange between warps where that is possible.

The variance is the mean square of what is left after the mean is taken off. E[x^2] - E[x]^2 would need one reduction
less, and loses every digit where the mean is large. Two reductions, though, are two waits of all warps for each other.
Where each thread holds as many elements of a row as every other, it takes the mean and variance of its own, and these
are merged by Chan's formula for two halves of one size: one reduction, and no digit lost. Rows too wide for registers
are seen in chunks, whose means and variances are merged by the same formula for two parts of any size.

A mean is off by what its sum was rounded, and a constant row is then not 0 but as far off as eps lets it be. Where sums
are EXACT, of 16-bit values, nothing is rounded. Elsewhere what is left when the mean is taken off is summed too: in a
constant row it is the same few units in the last place everywhere, and their sum is exact.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

import triton
import triton.language as tl

from kernels.activations import activate_gradient


@triton.jit
def merged(mean_a, variance_a, mean_b, variance_b):
    """Mean and variance of two halves of one size, together."""
    apart = mean_b - mean_a
    return 0.5 * (mean_a + mean_b), 0.5 * (variance_a + variance_b) + 0.25 * apart * apart


@triton.jit
def first(a, b):
    return a


@triton.jit
def over(total, count):
    """total / count, rounded to nearest: a plain division of fp32 may be off by two units in the last place."""
    if total.dtype == tl.float32:
        return tl.div_rn(total, count + tl.zeros_like(total))
    return total / count


@triton.jit
def mean_of(total, cols: tl.constexpr):
    """total / cols, rounded to nearest."""
    if cols & (cols - 1) == 0:  # a plain division by a power of two is exact
        return total / cols
    return over(total, cols)


@triton.jit
def centred_and_variance(x, cols: tl.constexpr, EXACT: tl.constexpr):
    """x - mean, 0 from column `cols` on, and the variance, (BLOCK_ROWS, 1), in two reductions; x as normalise's."""
    inside = tl.arange(0, x.shape[1])[None, :] < cols
    mean = mean_of(tl.sum(x, axis=1, keep_dims=True), cols)
    # Lanes past the row's end would now hold -mean and count in the variance.
    centred = tl.where(inside, x - mean, 0.0)
    if EXACT:
        return centred, tl.sum(centred * centred, axis=1, keep_dims=True) / cols
    off, squares = tl.split(mean_of(tl.sum(tl.join(centred, centred * centred), axis=1), cols))
    variance = tl.maximum(squares - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(inside, centred - off[:, None], 0.0), variance[:, None]


@triton.jit
def normalise(x, cols: tl.constexpr, eps, VECTOR: tl.constexpr, num_warps: tl.constexpr, EXACT: tl.constexpr):
    """(x - mean) / sqrt(variance + eps) of each row of x.

    x: (BLOCK_ROWS, BLOCK_COLS) in the dtype of the arithmetic, 0 from column `cols` on; so is the result.
    VECTOR: elements that a thread loads at once. Where a layout has others side by side, only speed is lost.
    EXACT: x has values of 16 bits.
    """
    BLOCK_ROWS: tl.constexpr = x.shape[0]
    BLOCK_COLS: tl.constexpr = x.shape[1]
    THREADS: tl.constexpr = 32 * num_warps
    # Of rows in 32 bits a merging thread holds 32 elements in 64 registers only by spilling.
    if cols == BLOCK_COLS and BLOCK_COLS >= THREADS * VECTOR and VECTOR >= 8:
        OWN: tl.constexpr = BLOCK_COLS // THREADS  # elements of a row that one thread holds
        own = tl.reshape(x, (BLOCK_ROWS, OWN // VECTOR, THREADS, VECTOR))
        if not EXACT:  # a thread's first element is near its mean, and in one of its registers already
            origin = tl.reduce(tl.reduce(own, 3, first), 1, first)
            own = own - origin[:, None, :, None]
        own_mean = tl.sum(tl.sum(own, axis=3), axis=1) * (1.0 / OWN)
        centred = own - own_mean[:, None, :, None]
        own_variance = tl.sum(tl.sum(centred * centred, axis=3), axis=1) * (1.0 / OWN)
        if not EXACT:
            own_mean += origin
        mean, variance = tl.reduce((own_mean, own_variance), 1, merged, keep_dims=True)
        rstd = tl.rsqrt(variance + eps)
        moved = (own_mean - mean) * rstd
        x_hat = tl.reshape(centred * rstd[:, None, :, None] + moved[:, None, :, None], (BLOCK_ROWS, BLOCK_COLS))
    else:
        centred, variance = centred_and_variance(x, cols, EXACT)
        x_hat = centred * tl.rsqrt(variance + eps)
    return x_hat


@triton.jit
def with_chunk(mean, squares, x, start, cols, EXACT: tl.constexpr):
    """Mean, and sum of squares about it, of a row's first `start` elements and of x, its next: Chan's formula.

    mean, squares: one element each, of the elements before `start`.
    x: (BLOCK_COLS,), 0 from the row's column `cols` on.
    """
    BLOCK_COLS: tl.constexpr = x.shape[0]
    inside = start + tl.arange(0, BLOCK_COLS) < cols
    count = tl.minimum(cols - start, BLOCK_COLS).to(x.dtype)
    share = count / (start + count)
    chunk_mean = over(tl.sum(x, axis=0, keep_dims=True), count)
    centred = tl.where(inside, x - chunk_mean, 0.0)
    if not EXACT:
        off = over(tl.sum(centred, axis=0, keep_dims=True), count)
        centred = tl.where(inside, centred - off, 0.0)
        chunk_mean += off
    moved = chunk_mean - mean
    squares += tl.sum(centred * centred, axis=0, keep_dims=True) + moved * moved * share * start
    return mean + moved * share, squares


@triton.jit
def through_normalise(grad_y, x, weight, bias, cols: tl.constexpr, eps, ACT: tl.constexpr, EXACT: tl.constexpr):
    """The gradients of z = x_hat weight + bias and of x where y = act(z) has gradient grad_y; x_hat = normalise(x).

    All are (BLOCK_ROWS, BLOCK_COLS), 0 from column `cols` on, or (1, BLOCK_COLS). Returns grad_z, x_hat, grad_x. Two
    sums at a time share a reduction where they can: the warps wait for each other half as often.
    """
    col = tl.arange(0, x.shape[1])[None, :]
    if ACT is None and EXACT:
        grad_z = grad_y
        grad_x_hat = grad_z * weight
        mean, shift = tl.split(mean_of(tl.sum(tl.join(x, grad_x_hat), axis=1), cols))
        centred = tl.where(col < cols, x - mean[:, None], 0.0)
        variance, slope = tl.split(tl.sum(tl.join(centred * centred, grad_x_hat * centred), axis=1) / cols)
        rstd = tl.rsqrt(variance[:, None] + eps)
        x_hat = centred * rstd
        along = slope[:, None] * rstd
    else:  # what an activation saw is recomputed, not stored, and its gradient has to wait for it
        centred, variance = centred_and_variance(x, cols, EXACT)
        rstd = tl.rsqrt(variance + eps)
        x_hat = centred * rstd
        grad_z = grad_y if ACT is None else activate_gradient(grad_y, x_hat * weight + bias, ACT)
        grad_x_hat = grad_z * weight
        shift, slope = tl.split(tl.sum(tl.join(grad_x_hat, grad_x_hat * x_hat), axis=1) / cols)
        along = slope[:, None]
    # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
    return grad_z, x_hat, rstd * (grad_x_hat - shift[:, None] - x_hat * along)
