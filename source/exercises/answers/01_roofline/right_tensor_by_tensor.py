# Adds up tensor by tensor, in loops; compares times instead of intensities; gives a set.


# %% grade_id="vector-add-answer"
def vector_add(rows, columns, itemsize):
    tensors = {"a": rows * columns, "b": rows * columns, "c": rows * columns}
    return tensors["c"], sum(tensors.values()) * itemsize


# %% grade_id="softmax-answer"
def softmax(rows, columns, itemsize, fused):
    whole, narrow = rows * columns, rows
    launches = [
        ((whole,), narrow),
        ((whole, narrow), whole),
        ((whole,), whole),
        ((whole,), narrow),
        ((whole, narrow), whole),
    ]
    flops = 0
    crossing = 0
    for ins, out in launches:
        flops += max(ins)
        crossing += sum(ins) + out
    if fused:
        crossing = launches[0][0][0] + launches[-1][1]
    return flops, crossing * itemsize


# %% grade_id="product-answer"
def product(rows, inner, columns, itemsize):
    shapes = [(rows, inner), (inner, columns), (rows, columns)]
    nbytes = sum(height * width * itemsize for height, width in shapes)
    return [2.0 * inner * rows * columns, nbytes]


# %% grade_id="bound-answer"
def ridge(peak, bandwidth):
    return float(peak) * bandwidth**-1


def bound(flops, nbytes, peak, bandwidth):
    waiting = nbytes / bandwidth
    computing = flops / peak
    if waiting > computing:
        return "memory"
    return "compute"


# %% grade_id="gpus-answer"
def compute_bound_on(flops, nbytes, gpus):
    found = []
    for name in gpus:
        if bound(flops, nbytes, *gpus[name]) == "compute":
            found.append(name)
    return found
