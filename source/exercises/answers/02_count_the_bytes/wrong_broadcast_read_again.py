# Counts a broadcast row once for every row of x.
# rejected by: affine
# told: bytes: got 144, expected 120


# %% grade_id="count-affine"
def count_affine(rows, columns):
    n = rows * columns
    return 2, 4 * (2 * (n + n) + 2 * n)
