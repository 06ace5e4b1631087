# 32 numbers a thread: half of an RTX 4090's warps, and less than half of an A100's.
# rejected by: tile
# told: occupancy on A100, 50% needed


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    side = 16
    while side < 2 * uses:
        side *= 2
    return {"BLOCK_ROWS": side, "BLOCK_COLS": side, "num_warps": max(1, side * side // 1024)}
