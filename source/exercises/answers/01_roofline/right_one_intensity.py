# Everything by way of intensities; math's own tools where there are some.


# %% grade_id="vector-add-answer"
import math


def vector_add(rows, columns, itemsize):
    n = math.prod([rows, columns])
    return n, n * itemsize + n * itemsize + n * itemsize


# %% grade_id="softmax-answer"
def softmax(rows, columns, itemsize, fused):
    n = rows * columns
    tensors, vectors = (2, 0) if fused else (8, 4)
    return 5 * n, itemsize * (tensors * n + vectors * rows)


# %% grade_id="product-answer"
def product(rows, inner, columns, itemsize):
    return 2 * math.prod((rows, inner, columns)), itemsize * (
        inner * (rows + columns) + rows * columns
    )


# %% grade_id="bound-answer"
def ridge(peak, bandwidth):
    return peak / bandwidth


def bound(flops, nbytes, peak, bandwidth):
    intensity = flops / nbytes
    attainable = min(peak, bandwidth * intensity)
    return "memory" if attainable < peak else "compute"


# %% grade_id="gpus-answer"
def compute_bound_on(flops, nbytes, gpus):
    intensity = flops / nbytes
    return sorted(filter_by(intensity, gpus), reverse=True)


def filter_by(intensity, gpus):
    return {name for name, given in gpus.items() if intensity >= given[0] / given[1]}
