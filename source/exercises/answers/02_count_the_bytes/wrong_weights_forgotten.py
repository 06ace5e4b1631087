# The worked example as it gets passed around.
# rejected by: worked-example
# told: bytes unfused: got 16, expected 24


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    return 4 * 4 * rows * features, 4 * 2 * rows * features
