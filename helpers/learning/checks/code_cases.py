"""Inputs that expose mistakes in a kernel that normalises rows and quantises them to int8."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from helpers.learning.checks import cases
from helpers.learning.checks.cases import Case
from helpers.learning.checks.row_cases import NAN_IN_A_COLUMN, large_mean_cases, norm_cases, normal
from helpers.learning.checks.values import moved_by_one_ulp

ALL = 1.0  # clip: codes reach to the row's largest magnitude
DROPPED = (
    "NaN: tl.maximum and tl.clamp drop it, tl.where(a < b, b, a) does not; this row's scale must be NaN, its codes 0"
)

CLIP = "clip: any number from 0 to 1, in the scale and in the codes"
CLAMP = "the clamp: to -127 and 127, while they are still floats; a conversion to int8 keeps the low byte of the rest"


def quantised_cases(seed: int, widths: tuple[int, ...] = (1, 127, 1025), widest: int = 0) -> list[Case]:
    """Return calls of `layer_norm_int8(x, weight, bias, eps, clip)` with clip = 1: norm_cases, and rows with a mean of
    10^4. There are 16 rows, because the largest magnitudes of only two might both happen to be positive.

    A scale depends on one element of its row, and PyTorch's own scale may happen to be exact. So we tolerate the effect
    of an ulp in the inputs, and of rounding in the mean.
    """
    draw = normal(seed + 1)
    rows = Case("", (64 * draw(16, 64), draw(64), draw(64), 1e-5), "the formula")  # too large for eps to matter
    found = [
        replace(case, inputs=(*case.inputs, ALL), relative=True, nearby=norms_nearby)
        for case in (
            rows,
            *large_mean_cases(2, seed, widths=(64,)),  # 16-bit sums would hide what this case reveals
            # Weights are finite here: tl.max drops NaN, and only NaN in x makes a whole row NaN.
            *(case for case in norm_cases(1, 2, seed, widths, widest) if case.label != NAN_IN_A_COLUMN),
            *large_mean_cases(2, seed + 1, widths=(1000,)),
        )
    ]
    found = [replace(case, look_at=DROPPED) if case.label.startswith("NaN") else case for case in found]
    # With many rows, the neighbours would take seconds. An ulp's effect is enough, because no mean is large.
    return [replace(case, nearby=None, conditioning=16.0) if case.few else case for case in found]


def norms_nearby(reference: Callable, inputs: tuple) -> list[tuple]:
    """Return results of `reference` that are as far off as those of a good kernel in float32 can be.

    y = z * weight + bias may be a small difference of large numbers, and using the same sign for both would hide the
    error. So x, weight and bias are moved by an ulp in all combinations of signs. The mean of n numbers, summed in
    pairs, has log2(n) roundings, plus one in the division unless n is a power of two, each at most half an ulp of the
    mean. If the mean is too small by d, every y in its row is too large by d * rstd * weight; changing single elements
    doesn't reproduce that.

    Args:
        reference: (x, weight, bias, eps, ..) -> (codes, scales).
        inputs: the call's: x (.., n), weight and bias (n,), any of the three in any dtype.
    """
    x, weight, bias, eps, *more = inputs
    signs = itertools.product((1, -1), repeat=2)
    found = [reference(_off(x), _off(weight, a), _off(bias, b), eps, *more) for a, b in signs]
    x, weight, bias = x.double(), weight.double(), bias.double()
    n = x.shape[-1]
    rows = x.reshape(-1, n)
    if not len(rows):
        return found
    roundings = (n - 1).bit_length() + bool(n & (n - 1))
    rstd = (rows.var(dim=-1, unbiased=False) + eps).rsqrt()
    off = roundings / 2 * torch.finfo(torch.float32).eps * rows.abs().amax(dim=-1) * rstd
    for sign in (1, -1):
        each = [
            reference(row[None], weight, bias + sign * d * weight, eps, *more)
            for row, d in zip(rows, off.nan_to_num(0.0, 0.0), strict=True)
        ]
        codes, scales = (torch.cat(of_rows) for of_rows in zip(*each, strict=True))
        found.append((codes.view(x.shape), scales.view(*x.shape[:-1], 1)))
    return found


def _off(x: torch.Tensor, sign: int = 1) -> torch.Tensor:
    """Return x in float64, an ulp of float32 off: every other element up, or down if `sign` is -1."""
    return x.double() + sign * (moved_by_one_ulp(x, torch.float32) - x.double())


def code_cases(seed: int, cols: int = 64) -> list[Case]:
    """Return calls whose codes are hard to get right: halves, a row of zeros, values beyond the last code, an outlier,
    other clips and large values."""
    draw = normal(seed)
    weight, bias = draw(cols), draw(cols)

    def call(label: str, look_at: str, x, weight=weight, bias=bias, eps=1e-5, clip=ALL) -> Case:
        near = norms_nearby if eps else None  # without eps all is exact
        return Case(
            label, (x, weight, bias, eps, clip), look_at, arguments=f"clip = {clip:g}", relative=True, nearby=near
        )

    # Mean 0 and deviation 1, exactly, in whatever order they are summed: y is +-weight, and the scale is 1.
    signs = torch.where(draw(3, cols).argsort(dim=-1) % 2 == 0, 1.0, -1.0)
    halves = (draw(cols).abs() * 20).floor().clamp(max=125.0) + 0.5
    halves[0] = 127.0
    beyond = torch.full_like(halves, 64.0)  # +-128 steps, where clip makes a step 0.5
    beyond[0] = 127.0
    zero = draw(3, cols)
    zero[1] = 0.0
    outlier = draw(2, cols)
    outlier[0, 5] = 1e4
    none = torch.zeros_like(bias)
    return [
        call("halves", "the rounding: to the nearest code, of two as near to the even one", signs, halves, none, 0.0),
        call(
            "a row of zeros",
            "the smallest scale: max|y| counts as 1e-12 at least, as the formula has it",
            zero,
            bias=none,
        ),
        call(
            "values beyond the last code", f"clip, in the scale and in the codes; and {CLAMP}", draw(3, cols), clip=0.5
        ),
        call("one step beyond the last code", CLAMP, signs, beyond, none, 0.0, clip=0.5),
        call("one outlier", "the scale: each row has its own, and an outlier spoils no other row", outlier),
        call(
            "a small clip",
            CLIP,
            draw(3, cols),
            clip=cases.between(0.05, 0.2, seed),
        ),
        call("a tiny clip", CLIP, draw(3, cols), clip=cases.between(0.001, 0.009, seed)),
        # The sign of y decides, so no y may be so close to 0 that a rounding does.
        call(
            "clip 0",
            f"{CLIP}; with 0, the scale is 0 and each code is the last one",
            signs,
            halves,
            none,
            0.0,
            clip=0.0,
        ),
        call("values of 1e-11", "the smallest scale: 1e-12 and no more", draw(3, cols), 4e-12 * weight, none),
        call(
            "values of 1e17 and more",
            "the scale: it is as large as the row's largest magnitude asks",
            draw(3, cols),
            *(cases.between(1e17, 1e20, seed) * torch.stack([weight, bias])),
        ),
        call("another clip", CLIP, draw(3, cols), clip=0.8125),
    ]
