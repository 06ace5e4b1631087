"""LayerNorm's variance computed three ways, and how wrong each one's result is.

    one pass    E[x^2] - E[x]^2
    two passes  the mean first, then E[(x - mean)^2]
    Welford     both at once: (count, mean, sum of squares about the mean) of two halves merge into that of the whole

Sums are trees, as a GPU's are: halves of a row are added element by element until one is left. Every operation rounds
as IEEE 754 says, so the results are the same on every machine.

Source: Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4, 1962; the
merging step is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979.
"""

import functools

import numpy as np

WAYS = ("one pass", "two passes", "Welford")
ARITHMETIC = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
EPS = 1e-5
ROWS = 8


def _sum(rows: np.ndarray) -> np.ndarray:
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows


def mean_and_variance(way: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row, in the rows' own dtype and one of WAYS.

    Args:
        way: one of WAYS.
        rows: (rows, columns), columns a power of two.

    Returns:
        mean and variance, each (rows, 1).

    Raises:
        ValueError: another way, or columns that are no power of two.
    """
    columns = rows.shape[1]
    if way not in WAYS or columns & (columns - 1):
        raise ValueError(f"{way!r} over {columns} columns: one of {WAYS} and a power of two expected")
    count = rows.dtype.type(columns)
    if way == "Welford":
        means, squares, merged = rows, np.zeros_like(rows), 1
        while means.shape[1] > 1:
            half = means.shape[1] // 2
            apart = means[:, half:] - means[:, :half]
            means = means[:, :half] + apart / rows.dtype.type(2)
            squares = squares[:, :half] + squares[:, half:] + apart * apart * rows.dtype.type(merged / 2)
            merged *= 2
        return means, squares / count
    mean = _sum(rows) / count
    if way == "one pass":
        return mean, _sum(rows * rows) / count - mean * mean
    return mean, _sum((rows - mean) * (rows - mean)) / count


@functools.cache
def layer_norm_errors(mean: float, columns: int, arithmetic: str) -> dict[str, float]:
    """How far LayerNorm's results, each about 1, are from those of exact arithmetic: way -> the largest difference.

    NaN where a result is not a number: the variance came out negative, or a sum overflowed.

    Args:
        mean: of normally distributed rows of standard deviation 1.
        columns: of a row, a power of two.
        arithmetic: a name in ARITHMETIC; the rows are given in that dtype, so rounding them is no error of the way.
    """
    dtype = ARITHMETIC[arithmetic]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rows = (np.random.default_rng(0).standard_normal((ROWS, columns)) + mean).astype(dtype)
        wide = rows.astype(np.longdouble)
        centred = wide - wide.mean(axis=1, keepdims=True)
        exact = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + EPS)
        found = {}
        for way in WAYS:
            centre, variance = mean_and_variance(way, rows)
            result = (rows - centre) / np.sqrt(variance + dtype(EPS))
            found[way] = float(np.abs(result.astype(np.longdouble) - exact).max())
    return found
