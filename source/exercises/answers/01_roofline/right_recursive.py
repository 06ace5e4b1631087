# Recursion, sets, keyword arguments, assertions, and a generator.
# ruff: noqa: C417


# %% grade_id="vector-add-answer"
def vector_add(rows, columns, itemsize):
    if rows == 0:
        return 0, 0
    flops, nbytes = vector_add(rows // 2, columns, itemsize=itemsize)
    odd = rows % 2 * columns
    return 2 * flops + odd, 2 * nbytes + sum(odd * itemsize for _tensor in "abc")


# %% grade_id="softmax-answer"
def softmax(rows, columns, itemsize, fused):
    per_row = {
        True: [columns, columns],
        False: [columns, 1, columns, 1, columns, columns, columns, columns, 1, columns, 1, columns],
    }[bool(fused)]
    assert len(per_row) in {2, 12}
    return sum(columns for _ in range(5)) * rows, rows * sum(per_row) * itemsize


# %% grade_id="product-answer"
def product(rows, inner, columns, itemsize):
    sides = (rows, inner), (inner, columns), (rows, columns)
    return rows * columns * (inner + inner), sum(map(lambda one: one[0] * one[1] * itemsize, sides))


# %% grade_id="bound-answer"
ridge = lambda peak, bandwidth: peak * bandwidth**-1  # noqa: E731


def bound(flops, nbytes, peak, bandwidth):
    try:
        seconds = {"compute": flops / peak, "memory": nbytes / bandwidth}
    except ZeroDivisionError:
        return "compute"
    return max(seconds, key=lambda name: seconds[name])


# %% grade_id="gpus-answer"
def compute_bound_on(flops, nbytes, gpus):
    return {name for name in gpus if bound(flops, nbytes, *gpus[name]) != "memory"}
