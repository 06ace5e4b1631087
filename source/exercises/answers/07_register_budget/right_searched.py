# A generator of candidates, a filter, and a recursion over sides.
# ruff: noqa: C408


# %% grade_id="row-settings-answer"
def row_settings(columns):
    def candidates():
        for warps in (1 << power for power in range(2, 6)):
            for rows in (1 << power for power in range(10)):
                yield {"ROWS": rows, "num_warps": warps}

    def off(setting):
        assert setting["num_warps"] % 4 == 0
        return abs(setting["ROWS"] * columns - 8 * 32 * setting["num_warps"]), setting["num_warps"]

    return min(candidates(), key=off)


# %% grade_id="tile-settings-answer"
def tile_settings(uses, side=16):
    if side < 2 * uses:
        return tile_settings(uses, side=side << 1)
    return dict(BLOCK_ROWS=side, BLOCK_COLS=side, num_warps=max(1, (side // 16) ** 2 // 2))
