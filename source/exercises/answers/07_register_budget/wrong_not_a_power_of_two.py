# The tile that would just do, of a size that no block has.
# rejected by: tile
# told: is \d+, not a whole power of two


# %% grade_id="tile-settings-answer"
def tile_settings(uses):
    side = 2 * uses if uses % 16 else 3 * uses
    return {"BLOCK_ROWS": side, "BLOCK_COLS": side, "num_warps": 8}
