# A list of launches for each snippet, added up by one function.


# %% grade_id="count-affine"
def total(*launches):
    return len(launches), sum(sum(ins) + out for ins, out in launches)


def count_affine(rows, columns):
    x, row = 4 * rows * columns, 4 * columns
    return total(([x, row], x), ([x, row], x))


# %% grade_id="count-in-place"
def count_in_place(rows, columns):
    x = 4 * rows * columns
    return total(([x], x), ([x], x))


# %% grade_id="count-turned"
def count_turned(rows, columns):
    x = 4 * rows * columns
    return total(([x], x))


# %% grade_id="count-centred"
def count_centred(rows, columns):
    x, mean = 4 * rows * columns, 4 * rows
    return total(([x], mean), ([x, mean], x))


# %% grade_id="count-chosen"
def count_chosen(rows, columns):
    x, mask = 4 * rows * columns, rows * columns
    return total(([mask, x, x], x))


# %% grade_id="count-halved"
def count_halved(rows, columns):
    x, half = 4 * rows * columns, 2 * rows * columns
    return total(([x], half), ([half], half))


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    x, weight, bias = 4 * rows * features, 4 * features**2, 4 * features
    layer = [x, weight, bias], x
    activation = [x], x
    return total(layer, activation)[1], total(layer)[1]
