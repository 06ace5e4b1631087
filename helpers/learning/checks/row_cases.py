"""Generate inputs that expose mistakes in a row-wise kernel."""

from collections.abc import Callable
from dataclasses import replace

import torch

from helpers.learning.checks import cases
from helpers.learning.checks.cases import Case
from kernels.interpreter import runtime

LOW_PRECISION = (torch.float16, torch.bfloat16)
PADDING = "the lanes past the row's end: what they hold, and in which sums they count"
BLOCK = "the block: it must hold the whole row (triton.next_power_of_2), or the kernel must loop over the row"
EPS = "eps: it is added to the mean of squares, inside the square root"
WIDEN = "float16: 4096 such numbers, or their squares, sum to more than 65504; convert to float32 before the sums"
SMALL = "small values: they must be as accurate as large ones, relative to their size"
STRIDES = "the strides: these rows are not next to each other in memory, or their elements are not"


def normal(seed: int) -> Callable[..., torch.Tensor]:
    """Return `draw(*shape, dtype=float32, mean=0.0)`, which draws normal values of deviation 2, on the GPU if there is
    one."""
    generator = torch.Generator().manual_seed(seed + (cases.draw << 16))
    device = "cuda" if runtime.has_gpu() else "cpu"

    def draw(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> torch.Tensor:
        return (2 * torch.randn(shape, generator=generator) + mean).to(device=device, dtype=dtype)

    return draw


def norm_cases(
    tensors: int,
    vectors: int,
    seed: int,
    widths: tuple[int, ...] = (1, 127, 1025),
    widest: int = 9000,
    eps: str = EPS,
    one_rounding: bool = False,
    short: bool = False,
    strided_vectors: bool = False,
) -> list[Case]:
    """Return calls of a norm over the last dimension, `norm(x, .., weight, .., eps)`, the simplest first.

    The cases: rows of 64 elements; other eps, a constant row; a wide row that is a power of two; NaN and inf; then
    padding, in rows of each of `widths` elements; more dimensions; strided, transposed and offset tensors; sums that 16
    bits do not hold; `widest` elements; small weights, where every result must be as accurate as the largest; no rows.
    Except in the eps cases, values are too large for eps to matter.

    Args:
        tensors: number of (..., cols) tensors, which come first.
        vectors: number of (cols,) vectors, which follow.
        seed: determines the values.
        widths: elements per row.
        widest: elements of the widest row.
        eps: the likely mistake in an answer that fails only with another eps.
        one_rounding: whether 16-bit results must be rounded once.
        strided_vectors: whether vectors are also given as every second element of longer ones.
        short: whether 16-bit cases also include many rows of 8, where the roundings of squares do not average out.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, *shape: int, view=lambda x: x, adding=1e-5, scale=64.0, **kind) -> Case:
        rows = [view(draw(*shape, **kind) * scale) for _ in range(tensors)]
        cols = rows[0].shape[-1]
        inputs = (*rows, *(draw(cols, **kind) for _ in range(vectors)), adding)
        low = one_rounding and rows[0].dtype in LOW_PRECISION
        return Case(label, inputs, look_at, one_rounding=low, conditioning=shift_conditioning(sum(rows)))

    found = [call("", "the formula", 2, 64)]
    # With fewer values, PyTorch's own largest error, which sets the tolerance, depends on luck.
    found.append(call("eps 0.5 and small values", eps, 8, 64, adding=0.5, scale=0.25))
    found.append(call("eps 1e-12 and small values", eps, 8, 64, adding=1e-12, scale=1e-4))
    constant = call("a constant row", "eps: without it, this row divides by zero", 2, 64)
    constant.inputs[0][0] = 3.0
    found.append(replace(constant, input_error=torch.float32))  # what its mean is off by is all that is left of it
    found.append(call("a wide row", BLOCK, 1, 8192))
    special = call("NaN in one row, inf in another", "what rows share, which is the weights alone, and NaN", 4, 64)
    special.inputs[0][0, 7], special.inputs[0][2, 1] = torch.nan, torch.inf
    found.append(special)
    found += [call("", PADDING if cols > 1 else "a row of one element", 3, cols) for cols in sorted(widths)]
    found.append(call("three dimensions", "the number of rows: every dimension but the last", 2, 3, 65))
    found.append(call("rows of a wider matrix", STRIDES, 3, 80, view=lambda x: x[:, :65]))
    alone = call("", "", 3, 65).inputs
    found += [
        replace(case, inputs=(*case.inputs, *alone[tensors:]), conditioning=shift_conditioning(sum(alone[:tensors])))
        for case in cases.in_turn(alone[:tensors], cases.transposed, "transposed", STRIDES)
    ]
    if strided_vectors:
        case = call("every second element of longer vectors", f"{STRIDES}; the vectors have their own", 3, 65)
        apart = (cases.transposed(x) for x in case.inputs[tensors:-1])
        found.append(replace(case, inputs=(*case.inputs[:tensors], *apart, case.inputs[-1])))
    found.append(call("views that start at row 1", "where each tensor starts", 4, 65, view=lambda x: x[1:]))
    for dtype in LOW_PRECISION:
        name = str(dtype).removeprefix("torch.")
        found.append(call(name, cases.in_float32(name), 2, 127, dtype=dtype, scale=1.0))
    for dtype in LOW_PRECISION if short else ():
        name = str(dtype).removeprefix("torch.")
        squares = f"{name}: nothing is rounded to 16 bits before the store: not the squares, their sum or the root"
        found.append(call(f"{name}, short rows", squares, 64, 8, dtype=dtype, scale=1.0))
    for label, kind in (("mean 20", {"mean": 20.0, "scale": 1.0}), ("deviation 8", {"scale": 4.0})):
        found.append(call(f"float16, {label}", WIDEN, 1, 4096, dtype=torch.float16, **kind))
    wide = "bfloat16: the sums over a wide row; convert to float32 before them"
    found.append(call("bfloat16, a wide row", wide, 1, 4096, dtype=torch.bfloat16, mean=20.0, scale=1.0))
    found.append(call("the widest row", f"{BLOCK}; and {PADDING}", 1, widest))
    # No terms of a sum cancel, so small results are as accurate as large ones.
    rows = [32 * torch.stack([cases.distinct_values(x, tensors) for x in draw(4, 64)]) for _ in range(tensors)]
    weight = torch.logspace(-30, 0, 64, device=rows[0].device) * draw(64).sign()
    inputs = (*rows, weight, *(torch.zeros_like(weight) for _ in range(vectors - 1)), 1e-5)
    found.append(Case("weights from 1e-30 to 1", inputs, SMALL, relative=True, conditioning=4.0))
    found.append(call("no rows", "the empty tensor", 0, 65))
    return found


def activation_cases(tensors: int, seed: int) -> list[Case]:
    """Return calls of `norm(x, .., weight, eps)`, followed by an activation, with weights of about 100."""
    draw = normal(seed)
    inputs = (*(64 * draw(4, 64) for _ in range(tensors)), 100 * draw(64), 1e-5)
    return [Case("an activation far from 0", inputs, "the activation far from 0: e^y overflows float32 for y above 88")]


def shift_conditioning(rows: torch.Tensor) -> float:
    """Return how much rounding errors may grow in a variance about any element of its row: 1 + z^2 of the furthest
    element.

    E[(x - c)^2] - (mean - c)^2 is the difference of two numbers that are (mean - c)^2 / variance times larger than it.
    """
    exact = rows.double()
    finite = exact[exact.isfinite().all(dim=-1)]
    if not finite.numel():
        return 1.0
    apart = finite - finite.mean(dim=-1, keepdim=True)
    variance = (apart * apart).mean(dim=-1, keepdim=True)
    return 1.0 + (apart * apart / variance).nan_to_num(0.0, 0.0, 0.0).max().item()


def large_mean_cases(vectors: int, seed: int, widths: tuple[int, ...] = (64, 1000)) -> list[Case]:
    """Return calls of `norm(x, weight, .., eps)` on rows of mean 10^4 and deviation 2, in fp32."""
    draw = normal(seed)
    look_at = "the variance: a small difference of large numbers has lost its digits; subtract the mean first"
    return [
        Case(
            f"mean 10000, {cols} columns",
            (x, *(draw(cols) for _ in range(vectors)), 1e-5),
            look_at if cols == min(widths) else f"{look_at}; {PADDING}",
            input_error=torch.float32,
            conditioning=shift_conditioning(x),
        )
        for cols in sorted(widths)
        for x in [draw(2, cols, mean=1e4)]
    ]


def topk_cases(seed: int, widths: tuple[int, ...] = (1, 127, 1025), widest: int = 5000) -> list[Case]:
    """Return calls of `softmax_topk(x, k)` on rows of multiples of 1/16, so that many elements are equal and the rest
    well apart.

    The cases: means of 1000, 20000, -1000 and -20000; halves 200 apart; 16 winners, without ties; a wide row that is a
    power of two; many small probabilities; rows of equal elements; -inf; NaN; then padding, in rows of each of `widths`
    elements, with k from 1 to 5, and as many winners as columns; more dimensions; strided and transposed tensors; 16
    bits; `widest` elements; no rows.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, k: int, *shape: int, view=lambda x: x, **kind) -> Case:
        inputs = (view((draw(*shape, **kind) * 16).round() / 16), k)
        # The exponential of a difference depends on the digits of both numbers.
        low = inputs[0].dtype in LOW_PRECISION
        return Case(label, inputs, look_at, torch.float32, f"k = {k}", relative=True, one_rounding=low)

    ties = "ties: of equal elements the lower index comes first, and none comes twice"
    found = [call("", "softmax, and the largest of a row", 1, 2, 64)]
    found.append(call("mean 1000", "the exponential: subtract the row's maximum first", 1, 2, 64, mean=1e3))
    found.append(call("mean 20000", "the exponential: subtract all of the row's maximum", 1, 2, 64, mean=2e4))
    below = "the maximum: it is that of the row, and -inf where there is no element; 0 is larger than any number here"
    found.append(call("mean -1000", below, 1, 2, 64, mean=-1e3))
    spread = call("one half 200 above the other", "the maximum: that of the whole row, wherever it is", 1, 2, 128)
    spread.inputs[0][0, 64:] += 200.0
    spread.inputs[0][1, :64] += 200.0
    found.append(spread)
    # No two elements of a row are equal: ties come later.
    rounds = call("", "the k rounds: every one finds a winner and stores it at a place of its own", 16, 2, 128)
    rounds.inputs[0][:] = rounds.inputs[0].argsort() / 16
    found.append(rounds)
    found.append(call("a wide row", BLOCK, 2, 1, 8192))
    small = call("one 16 above 8191 others", "the sum: small exponentials count, there may be many", 1, 1, 8192)
    small.inputs[0][:] = 0.0
    small.inputs[0][0, 100] = 16.0
    found.append(small)
    equal = call("equal elements", ties, 3, 2, 8)
    equal.inputs[0][:] = 1.0
    pairs = call("every element twice", ties, 6, 2, 16)
    pairs.inputs[0][:, 8:] = pairs.inputs[0][:, :8]
    masked = call(
        "only three finite", "elements of -inf: their probability is 0, but each can still win once", 5, 2, 16
    )
    masked.inputs[0][:, 3:] = -torch.inf
    # p alone: which of several NaN is the largest is left open.
    unknown = call("NaN in one row", "NaN: a probability of a row that holds it is NaN, and no other row's", 2, 2, 64)
    unknown.inputs[0][0, 3] = torch.nan
    found += [equal, pairs, masked, replace(unknown, compared=1)]
    found += [call("", PADDING, min(cols, 5), 3, cols) for cols in sorted(widths)]
    negative = call("every element below 0", f"{PADDING}; 0 is a larger number than any here", 2, 2, 100, mean=-50.0)
    found.append(negative)
    found.append(
        call("mean -20000", f"{PADDING}; they must be below any number of the row: -inf", 2, 2, 100, mean=-2e4)
    )
    lowest = call("every element -3e38", f"{PADDING}; -inf alone is below any number of a row", 2, 2, 100)
    lowest.inputs[0][:] = -3e38
    found.append(replace(lowest, input_error=None))
    found.append(call("as many as there are", "the lanes past the row's end: none of them may win", 11, 2, 11))
    found.append(call("three dimensions", "the number of rows: every dimension but the last", 4, 2, 3, 65))
    found.append(call("rows of a wider matrix", STRIDES, 4, 3, 80, view=lambda x: x[:, :65]))
    found.append(call("transposed", STRIDES, 4, 65, 3, view=lambda x: x.T))
    for dtype in LOW_PRECISION:
        name = str(dtype).removeprefix("torch.")
        found.append(call(name, cases.in_float32(name), 4, 2, 127, dtype=dtype))
    wide = "bfloat16: the sum of a wide row's exponentials; convert to float32 before it"
    found.append(call("bfloat16, a wide row", wide, 2, 1, 4096, dtype=torch.bfloat16))
    last = call("the widest row", f"{BLOCK}; and {PADDING}", 2, 1, widest)
    last.inputs[0][0, -1] = 20.0  # the winner
    found.append(last)
    found.append(call("no rows", "the empty tensor", 4, 0, 65))
    return found
