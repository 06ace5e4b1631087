"""What LayerNorm's gradients need of each row, four numbers, before layer_norm_wide.py sums columns.

In one pass of chunks where there is no activation; else what the activation saw waits for mean and variance, and the
row is read again, from its end back to its start, most of it from the L1 cache: kernels/rowwise/wide_rows.py.
"""

import triton
import triton.language as tl

from kernels.activations import activate_gradient
from kernels.rowwise.normalise import less, over, products, row_sums, widened
from kernels.rowwise.pieces import along, columns_inside, load_columns, load_pieces, pointers, row_sum
from kernels.rowwise.wide_rows import load_tiles, places, read_row
from kernels.vectors import at_vector, elements_before


@triton.jit
def layer_norm_row_terms_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    terms_ptr,  # (4, rows), in COMPUTE: mean, rstd, and the means of grad_x_hat and of grad_x_hat x_hat
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    eps,
    PIECES: tl.constexpr,  # of a chunk of a row: kernels/rowwise/pieces.py
    COMPUTE: tl.constexpr,
):
    """Without an activation, grad_x_hat = grad_y weight waits for no mean: all four sums take one pass."""
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    whole = at_vector(cols - lead, PIECES[2])
    mean = tl.cast(0.0, COMPUTE)
    squares = tl.cast(0.0, COMPUTE)  # the sum of (x - mean)^2 over what was seen
    shift = tl.cast(0.0, COMPUTE)  # the sum of g = grad_y weight
    slope = tl.cast(0.0, COMPUTE)  # the sum of g (x - mean)
    seen = tl.cast(0.0, COMPUTE)
    for chunk in tl.range(0, whole, PIECES[0]):
        inside = columns_inside(lead, cols, PIECES, chunk)
        at = pointers(x_ptr + chunk, row * x_row_stride, lead, cols, PIECES)
        x = widened(load_pieces(at, inside, True, 0.0), COMPUTE)
        at = pointers(grad_y_ptr + chunk, row * grad_y_row_stride, lead, cols, PIECES)
        grad_y = widened(load_pieces(at, inside, True, 0.0), COMPUTE)
        weight = widened(load_columns(along(weight_ptr + chunk, lead, cols, PIECES), inside), COMPUTE)
        g = products(grad_y, weight)
        count = tl.minimum(whole - chunk, PIECES[0])
        if chunk == 0:
            count += cols - whole  # the rim
        count = count.to(COMPUTE)
        share = count / (seen + count)
        chunk_mean, chunk_shift = row_sums(x, g)  # two sums in one: the warps wait for each other half as often
        chunk_mean = over(chunk_mean, count)
        centred = less(x, chunk_mean, inside)
        if x_ptr.dtype.element_ty.primitive_bitwidth != 16:  # see kernels/rowwise/normalise.py
            off = over(row_sum(centred), count)
            centred = less(centred, off, inside)
            chunk_mean += off
        chunk_squares, chunk_slope = row_sums(products(centred, centred), products(g, centred))
        moved = chunk_mean - mean
        # A sum of g (x - m) moves by the sum of g times what m moves.
        slope += chunk_slope + moved * ((1 - share) * chunk_shift - share * shift)
        squares += chunk_squares + moved * moved * share * seen
        mean += moved * share
        shift += chunk_shift
        seen += count
    rstd = tl.rsqrt(squares / cols + eps)
    tl.store(terms_ptr + row, mean)
    tl.store(terms_ptr + rows + row, rstd)
    tl.store(terms_ptr + 2 * rows + row, shift / cols)
    tl.store(terms_ptr + 3 * rows + row, slope / cols * rstd)


@triton.jit
def through_tile(x, grad_y, weight, bias, mean, rstd, ACT: tl.constexpr, COMPUTE: tl.constexpr):
    """A tile's gradient of x_hat, and its product with x_hat."""
    x_hat = (x.to(COMPUTE) - mean) * rstd
    grad_z = grad_y.to(COMPUTE)
    grad_z = activate_gradient(grad_z, x_hat * weight.to(COMPUTE) + bias.to(COMPUTE), ACT)
    grad_x_hat = grad_z * weight.to(COMPUTE)
    return grad_x_hat, grad_x_hat * x_hat


@triton.jit
def layer_norm_act_row_terms_kernel(
    grad_y_ptr,  # as above
    x_ptr,
    weight_ptr,
    bias_ptr,  # (cols,)
    terms_ptr,
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    eps,
    VECTOR: tl.constexpr,  # of rows: kernels/vectors.py
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,  # of tiles: kernels/rowwise/wide_rows.py
    GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    x_ptr += at_vector(row * x_row_stride + lead, VECTOR)
    grad_y_ptr += at_vector(row * grad_y_row_stride + lead, VECTOR)
    weight_ptr += lead
    bias_ptr += lead
    mean, variance, end, last, inside, kept = read_row(
        *(x_ptr, None, None, lead, cols, VECTOR, RAGGED, LANES, GROUP, KEPT, True, COMPUTE)
    )
    rstd = tl.rsqrt(variance + eps)
    shift, slope = tl.zeros((LANES,), COMPUTE), tl.zeros((LANES,), COMPUTE)
    shift_of_rim, slope_of_rim = tl.cast(0.0, COMPUTE), tl.cast(0.0, COMPUTE)
    for i in tl.static_range(len(last)):
        grad_y = tl.load(grad_y_ptr + last[i], mask=inside[i], other=0.0)
        weight = tl.load(weight_ptr + last[i], mask=inside[i], other=0.0)
        bias = tl.load(bias_ptr + last[i], mask=inside[i], other=0.0)
        grad_x_hat, product = through_tile(kept[i], grad_y, weight, bias, mean, rstd, ACT, COMPUTE)
        if i < KEPT:
            shift, slope = shift + grad_x_hat, slope + product
        else:
            shift_of_rim, slope_of_rim = tl.sum(grad_x_hat), tl.sum(product)
    for back in tl.range(GROUP * LANES, end + GROUP * LANES, GROUP * LANES):
        at = places(end - back, GROUP, LANES, VECTOR)
        x = load_tiles(x_ptr, None, at, None, "evict_first", COMPUTE)
        of_y = load_tiles(grad_y_ptr, None, at, None, "evict_first", COMPUTE)
        for i in tl.static_range(GROUP):
            of_weight, of_bias = tl.load(weight_ptr + at[i]), tl.load(bias_ptr + at[i])
            through, times = through_tile(x[i], of_y[i], of_weight, of_bias, mean, rstd, ACT, COMPUTE)
            shift, slope = shift + through, slope + times
    tl.store(terms_ptr + row, mean)
    tl.store(terms_ptr + rows + row, rstd)
    tl.store(terms_ptr + 2 * rows + row, (tl.sum(shift, axis=0) + shift_of_rim) / cols)
    tl.store(terms_ptr + 3 * rows + row, (tl.sum(slope, axis=0) + slope_of_rim) / cols)
