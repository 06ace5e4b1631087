# Bytes an element, worked out beforehand; lists and dictionaries on the way.


# %% grade_id="count-affine"
def count_affine(rows, columns):
    nbytes = 16 * rows * columns + 8 * columns
    return [2, nbytes]


# %% grade_id="count-in-place"
def count_in_place(rows, columns):
    launches = ["mul_", "add_"]
    nbytes = 0
    for _ in launches:
        nbytes += 8 * rows * columns
    return len(launches), nbytes


# %% grade_id="count-turned"
def count_turned(rows, columns):
    moves = {"t": 0, "contiguous": 8, "view": 0}
    return sum(1 for each in moves.values() if each), max(moves.values()) * rows * columns


# %% grade_id="count-centred"
def count_centred(rows, columns):
    return 2, 12 * rows * columns + 8 * rows


# %% grade_id="count-chosen"
def count_chosen(rows, columns):
    return 1, 13 * rows * columns


# %% grade_id="count-halved"
def count_halved(rows, columns):
    return 2, 10 * rows * columns


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    fused = 8 * rows * features + 4 * features * (features + 1)
    return fused + 8 * rows * features, fused
