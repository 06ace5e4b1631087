# Reads x once, as if a launch kept it for the next.
# rejected by: centred
# told: got 16, expected 20


# %% grade_id="count-centred"
def count_centred(rows, columns):
    n = rows * columns
    return 2, 4 * ((n + rows) + (rows + n))
