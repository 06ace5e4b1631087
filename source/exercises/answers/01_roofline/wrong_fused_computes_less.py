# Takes fusing for a saving in arithmetic as well.
# rejected by: softmax
# told: softmax\(1, 4, 4, True\), FLOP: got 4, expected 20\.?0?


# %% grade_id="softmax-answer"
def softmax(rows, columns, itemsize, fused):
    numbers = rows * columns
    if fused:
        return numbers, 2 * numbers * itemsize
    return 5 * numbers, (8 * numbers + 4 * rows) * itemsize
