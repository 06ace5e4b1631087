# Has the weights, and lets fusing save them.
# rejected by: worked-example
# told: bytes fused: got 8, expected 16


# %% grade_id="count-linear-gelu"
def linear_gelu(rows, features):
    x, weights = 4 * rows * features, 4 * (features * features + features)
    return 4 * x + weights, 2 * x
