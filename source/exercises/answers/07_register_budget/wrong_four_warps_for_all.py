# The four warps that Triton takes by itself, whatever the row.
# rejected by: rows
# told: row_settings\(4096\) = .*(44|38|31)% occupancy on A100, 50% needed


# %% grade_id="row-settings-answer"
def row_settings(columns):
    return {"ROWS": 1, "num_warps": 4}
