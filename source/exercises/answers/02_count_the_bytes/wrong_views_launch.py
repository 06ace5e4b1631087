# Counts a launch, and its bytes, for every call.
# rejected by: turned
# told: launches: got 3, expected 1


# %% grade_id="count-turned"
def count_turned(rows, columns):
    return 3, 3 * 4 * 2 * rows * columns
