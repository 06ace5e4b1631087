# The circulating "N FLOP per byte": numbers counted as bytes, the output forgotten.
# rejected by: product
# told: product\(1, 1, 1, 4\), bytes: got 2, expected 12


# %% grade_id="product-answer"
def product(rows, inner, columns, itemsize):
    return 2 * rows * inner * columns, rows * inner + inner * columns
