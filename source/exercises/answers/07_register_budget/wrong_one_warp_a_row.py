# A warp a row, as if registers had no end.
# rejected by: rows
# told: spills \d+ B|occupancy on A100, 50% needed


# %% grade_id="row-settings-answer"
def row_settings(columns):
    return {"ROWS": max(1, 4096 // columns), "num_warps": 1}
