# As many warps as a block may have: plenty of registers, and two numbers a thread.
# rejected by: rows
# told: loads 2 bytes at a time on A100


# %% grade_id="row-settings-answer"
def row_settings(columns):
    return {"ROWS": 1, "num_warps": 32}
