# Counts the mask at four bytes a number.
# rejected by: chosen
# told: got 16, expected 13


# %% grade_id="count-chosen"
def count_chosen(rows, columns):
    return 1, 4 * 4 * rows * columns
