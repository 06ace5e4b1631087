"""(x - mean) / sqrt(variance + eps) of rows in registers, with one exchange between warps where that is possible.

The variance is the mean square of what is left after the mean is taken off. E[x^2] - E[x]^2 would need one reduction
less, and loses every digit where the mean is large. Two reductions, though, are two waits of all warps for each other.
Where each thread holds as many elements of a row as every other, it takes the mean and variance of its own, and these
are merged by Chan's formula for two halves of one size: one reduction, and no digit lost. For rows too wide for
registers see wide_rows.py.

A mean is off by what its sum was rounded, and a constant row is then not 0 but as far off as eps lets it be. Where sums
are EXACT, of 16-bit values, nothing is rounded. Elsewhere what is left when the mean is taken off is summed too: in a
constant row it is the same few units in the last place everywhere, and their sum is exact.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

import triton
import triton.language as tl

from kernels.activations import activate_gradient
from kernels.rowwise.pieces import row_sum
from kernels.widen import widen


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
def widened(x, COMPUTE: tl.constexpr):
    wide = ()
    for i in tl.static_range(len(x)):
        wide = wide + (widen(x[i], COMPUTE),)
    return wide


@triton.jit
def sum_of_pairs(a, b, more_a, more_b):
    return a + more_a, b + more_b


@triton.jit
def row_sums(a, b):
    """row_sum of a and of b: the warps wait for each other once for both."""
    AXIS: tl.constexpr = None if a[0].shape[0] == 1 else 1
    if len(a) > 1:  # joined, several pieces would be brought into other layouts
        total_a, total_b = tl.reduce((a[0], b[0]), AXIS, sum_of_pairs, keep_dims=AXIS is not None)
        for i in tl.static_range(1, len(a)):
            more_a, more_b = tl.reduce((a[i], b[i]), AXIS, sum_of_pairs, keep_dims=AXIS is not None)
            total_a, total_b = total_a + more_a, total_b + more_b
    else:  # as pairs, two sums take more registers
        total_a, total_b = tl.split(tl.sum(tl.join(a[0], b[0]), axis=1))
        if AXIS is None:
            total_a, total_b = tl.sum(total_a, axis=0), tl.sum(total_b, axis=0)
        else:
            total_a, total_b = total_a[:, None], total_b[:, None]
    return total_a, total_b


@triton.jit
def products(a, b):
    product = ()
    for i in tl.static_range(len(a)):
        product = product + (a[i] * b[i],)
    return product


@triton.jit
def plus(a, b):
    total = ()
    for i in tl.static_range(len(a)):
        total = total + (a[i] + b[i],)
    return total


@triton.jit
def less(x, mean, inside):
    """x - mean, and 0 past the row's end, where it would be -mean and count in the variance."""
    centred = ()
    for i in tl.static_range(len(x)):
        centred = centred + (tl.where(inside[i], x[i] - mean, 0.0),)
    return centred


@triton.jit
def centred_and_variance(x, inside, cols: tl.constexpr, EXACT: tl.constexpr):
    """x - mean, 0 where not `inside`, and the variance, (BLOCK_ROWS, 1), in two reductions; x as normalise's."""
    centred = less(x, mean_of(row_sum(x), cols), inside)
    if EXACT:
        return centred, row_sum(products(centred, centred)) / cols
    off, squares = row_sums(centred, products(centred, centred))
    off, squares = mean_of(off, cols), mean_of(squares, cols)
    variance = tl.maximum(squares - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return less(centred, off, inside), variance


@triton.jit
def normalise(x, inside, cols: tl.constexpr, eps, VECTOR: tl.constexpr, num_warps: tl.constexpr, EXACT: tl.constexpr):
    """(x - mean) / sqrt(variance + eps) of each row of x.

    x: rows in pieces (kernels/rowwise/pieces.py) in the dtype of the arithmetic, 0 where not `inside`; so is the
        result.
    VECTOR: elements that a thread loads at once. Where a layout has others side by side, only speed is lost.
    EXACT: x has values of 16 bits.
    """
    BLOCK_ROWS: tl.constexpr = x[0].shape[0]
    BLOCK_COLS: tl.constexpr = x[0].shape[1]
    THREADS: tl.constexpr = 32 * num_warps
    x_hat = ()
    # Of rows in 32 bits a merging thread holds 32 elements in 64 registers only by spilling.
    if len(x) == 1 and cols == BLOCK_COLS and BLOCK_COLS >= THREADS * VECTOR and VECTOR >= 8:
        OWN: tl.constexpr = BLOCK_COLS // THREADS  # elements of a row that one thread holds
        own = tl.reshape(x[0], (BLOCK_ROWS, OWN // VECTOR, THREADS, VECTOR))
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
        merged_x_hat = centred * rstd[:, None, :, None] + moved[:, None, :, None]
        x_hat = (tl.reshape(merged_x_hat, (BLOCK_ROWS, BLOCK_COLS)),)
    else:
        centred, variance = centred_and_variance(x, inside, cols, EXACT)
        rstd = tl.rsqrt(variance + eps)
        for i in tl.static_range(len(x)):
            x_hat = x_hat + (centred[i] * rstd,)
    return x_hat


@triton.jit
def through_normalise(grad_y, x, weight, bias, inside, cols: tl.constexpr, eps, ACT: tl.constexpr, EXACT: tl.constexpr):
    """The gradients of z = x_hat weight + bias and of x where y = act(z) has gradient grad_y; x_hat = normalise(x).

    All are rows in pieces, 0 where not `inside`, weight and bias of one row. Returns grad_z, x_hat, grad_x. Two sums at
    a time share a reduction where they can: the warps wait for each other half as often.
    """
    if ACT is None and EXACT:
        grad_z = grad_y
        grad_x_hat = products(grad_z, weight)
        mean, shift = row_sums(x, grad_x_hat)
        shift = shift / cols
        centred = less(x, mean_of(mean, cols), inside)
        variance, slope = row_sums(products(centred, centred), products(grad_x_hat, centred))
        rstd = tl.rsqrt(variance / cols + eps)
        along = slope / cols * rstd
        x_hat = ()
        for i in tl.static_range(len(x)):
            x_hat = x_hat + (centred[i] * rstd,)
    else:  # what an activation saw is recomputed, not stored, and its gradient has to wait for it
        centred, variance = centred_and_variance(x, inside, cols, EXACT)
        rstd = tl.rsqrt(variance + eps)
        x_hat = ()
        grad_z = ()
        for i in tl.static_range(len(x)):
            x_hat = x_hat + (centred[i] * rstd,)
            if ACT is None:
                grad_z = grad_z + (grad_y[i],)
            else:
                grad_z = grad_z + (activate_gradient(grad_y[i], x_hat[i] * weight[i] + bias[i], ACT),)
        grad_x_hat = products(grad_z, weight)
        shift, along = row_sums(grad_x_hat, products(grad_x_hat, x_hat))
        shift, along = shift / cols, along / cols
    grad_x = ()
    for i in tl.static_range(len(x)):
        # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
        grad_x = grad_x + (rstd * (grad_x_hat[i] - shift - x_hat[i] * along),)
    return grad_z, x_hat, grad_x
