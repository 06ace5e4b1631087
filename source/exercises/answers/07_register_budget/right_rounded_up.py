# Powers of two by logarithms; longer tiles than wide ones; one row a program wherever it is long enough.


# %% grade_id="row-settings-answer"
import math


def power_of_two(number):
    return 2 ** math.ceil(math.log2(number))


def row_settings(columns):
    rows = 1
    while rows * columns < 1024:
        rows += rows
    return {"num_warps": power_of_two(rows * columns / 256), "ROWS": rows}


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    columns = power_of_two(max(16, 1.5 * uses))
    rows = columns
    while rows * columns / (rows + columns) < uses:
        rows *= 2
    return {"BLOCK_ROWS": rows, "BLOCK_COLS": columns, "num_warps": max(1, rows * columns // 512)}
