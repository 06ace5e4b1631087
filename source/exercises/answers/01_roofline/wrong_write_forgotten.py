# The two reads of an addition, and not the write.
# rejected by: vector-add
# told: bytes: got 8, expected 12


# %% grade_id="vector-add-answer"
def vector_add(rows, columns, itemsize):
    return rows * columns, 2 * rows * columns * itemsize
