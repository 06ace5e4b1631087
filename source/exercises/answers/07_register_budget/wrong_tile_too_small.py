# A tile of a quarter of the size: few registers, and twice the bytes.
# rejected by: tile
# told: a tile of 16 x 16 uses each number 8 times, 16 needed


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    side = 16
    while side < uses:
        side *= 2
    return {"BLOCK_ROWS": side, "BLOCK_COLS": side, "num_warps": max(1, side * side // 512)}
