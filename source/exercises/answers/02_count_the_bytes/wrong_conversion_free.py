# Takes a conversion for a view.
# rejected by: halved
# told: launches: got 1, expected 2


# %% grade_id="count-halved"
def count_halved(rows, columns):
    return 1, rows * columns * (4 + 2)
