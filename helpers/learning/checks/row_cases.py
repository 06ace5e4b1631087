"""Inputs that expose mistakes in a row-wise kernel."""

from collections.abc import Callable
from dataclasses import replace

import torch

from helpers.learning.checks import cases
from helpers.learning.checks.cases import Case
from kernels.interpreter import runtime

LOW_PRECISION = (torch.float16, torch.bfloat16)
NAN_IN_A_COLUMN = "NaN in one column of a vector"
PADDING = "the lanes past the row's end: what they hold, and in which sums they count"
BLOCK = "the block: it must hold the whole row (triton.next_power_of_2), or the kernel must loop over the row"
EPS = "eps: it is added to the mean of squares, inside the square root"
WIDEN = "float16: 4096 such numbers, or their squares, sum to more than 65504; convert to float32 before the sums"
ROWS = "the program's number: each has a row of its own, and all of its number counts"
# Roundings of one element may add up to this many units in the last place, half a unit each: in its square and eps
# (halved by the root), the root (1), two products, SiLU's exponential with its argument's error, sum and quotient (2),
# and the product with another tensor.
ROUNDINGS = 5.0
SMALL = "small values: they must be as accurate as large ones, relative to their size"
STRIDES = "the strides: either these rows or their elements are not next to each other in memory"


def normal(seed: int) -> Callable[..., torch.Tensor]:
    """Return a function `draw(*shape, dtype=float32, mean=0.0)` of normal values with a deviation of 2, on the GPU if
    there is one."""
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
    widest: int = 0,
    eps: str = EPS,
    one_rounding: bool = False,
    short: bool = False,
    strided_vectors: bool = False,
    gate: int | None = None,
) -> list[Case]:
    """Return calls of a norm over the last dimension, `norm(x, .., weight, .., eps)`, simplest first.

    They are: rows of 64 elements; other eps, a constant row; a wide row with a power-of-two width; NaN and inf; then
    padding, for each width in `widths`; more dimensions; strided, expanded, transposed and offset tensors; sums that 16
    bits can't hold; `widest` elements; many rows; small weights, where every result must be as accurate as the largest;
    and no rows at all. Unless a case is about eps, its values are too large for eps to matter.

    Args:
        tensors: how many of (..., cols) come first.
        vectors: how many of (cols,) follow.
        seed: decides the values.
        widths: elements of a row.
        widest: elements of the widest row; 0 for a number that is drawn, up to 16384.
        eps: the likely place of the mistake if an answer fails only for a different eps.
        one_rounding: whether results of 16 bits must be rounded once.
        strided_vectors: whether to include vectors that are every second element of longer ones.
        short: whether to include many 16-bit rows of 8, where the rounding of squares doesn't average out.
        gate: the place of a tensor that silu is applied to, for a row where it is large; None for no such tensor.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, *shape: int, view=lambda x: x, adding=1e-5, scale=64.0, **kind) -> Case:
        rows = [view(draw(*shape, **kind) * scale) for _ in range(tensors)]
        cols = rows[0].shape[-1]
        inputs = (*rows, *(draw(cols, **kind) for _ in range(vectors)), adding)
        low = one_rounding and rows[0].dtype in LOW_PRECISION
        return Case(label, inputs, look_at, one_rounding=low, conditioning=shift_conditioning(sum(rows)))

    found = [call("", "the formula", 2, 64)]
    # With fewer values, PyTorch's own largest error, which sets the tolerance, is a matter of luck.
    found.append(call("eps 0.5 and small values", eps, 8, 64, adding=0.5, scale=0.25))
    found.append(call("eps 10000", eps, 8, 64, adding=1e4))
    found.append(call("eps 1e-12 and small values", eps, 8, 64, adding=1e-12, scale=1e-4))
    # Exact: as accurate as other values. The square of two multiplied must not underflow.
    tiny = 2.0**-20 if gate is not None else 2.0**-44
    none = call("eps 0 and small values", f"{eps}; 0 is an eps like any other", 8, 64, adding=0.0, scale=tiny)
    found.append(replace(none, least=tiny))
    constant = call("a constant row", "eps: without it, this row divides by zero", 2, 64)
    constant.inputs[0][0] = 3.0
    found.append(replace(constant, input_error=torch.float32))  # all that's left of it is the error of its mean
    found.append(call("a wide row", BLOCK, 1, 8192))
    if gate is not None:
        gated = call("a gate of 10000", "the activation far from 0: silu of a large gate is the gate, or 0", 2, 64)
        gated.inputs[gate][:] *= torch.logspace(0, 2, 64, device=gated.inputs[gate].device)
        found.append(gated)
    shared = "what rows share (only the weights), and NaN"
    special = call("NaN in one row, inf in others", shared, 4 + 3 * tensors, 60)
    special.inputs[0][0, 7], special.inputs[0][2, 1] = torch.nan, torch.inf
    special.inputs[0][-1, 3] = -torch.inf
    for place in range(1, tensors):  # each in a row of its own
        row = 3 * place
        special.inputs[place][row, 5], special.inputs[place][row + 1, 5] = torch.nan, torch.inf
        special.inputs[place][row + 2, 5] = torch.inf if place == gate else -torch.inf
    for cols in sorted(widths):
        padded = call("", PADDING if cols > 1 else "a row of one element", 3, cols)
        # With two columns, each of them may by chance be a sum of terms that nearly cancel.
        of_terms = largest_term(sum(padded.inputs[:tensors]), padded.inputs[tensors]) if vectors > 1 else 1.0
        # The root of a single square has no more digits than its element; in longer rows errors average out.
        rounded = max(padded.conditioning, ROUNDINGS) if cols == 1 else padded.conditioning
        found.append(replace(padded, least=of_terms, conditioning=rounded))
    found.append(special)  # after those: it doesn't fill its block either
    count = "the number of rows: every dimension but the last"
    found.append(call("three dimensions", count, 2, 3, 65))
    found.append(call("four dimensions", count, 2, 2, 3, 65))
    found.append(call("six dimensions", count, 2, 1, 2, 1, 3, 65))
    found.append(call("one dimension", f"{count}; a vector is one row", 65))
    found.append(call("rows of a wider matrix", STRIDES, 3, 80, view=lambda x: x[:, :65]))
    found.append(call("one row, expanded to three", STRIDES, 1, 65, view=lambda x: x.expand(3, 65)))
    level = call("one column, expanded to a row", STRIDES, 3, 1, view=lambda x: x.round().expand(3, 65))
    found.append(replace(level, input_error=torch.float32))  # as for a constant row
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
        some = call(name, cases.in_float32(name), 3, 127, dtype=dtype, scale=1.0)
        some.inputs[0][-1, 5] = torch.nan
        found.append(some)
    for dtype in LOW_PRECISION if short else ():
        name = str(dtype).removeprefix("torch.")
        squares = f"{name}: nothing is rounded to 16 bits before the store: not the squares, their sum or the root"
        found.append(call(f"{name}, short rows", squares, 64, 8, dtype=dtype, scale=1.0))
    for label, kind in (("mean 20", {"mean": 20.0, "scale": 1.0}), ("deviation 8", {"scale": 4.0})):
        found.append(call(f"float16, {label}", WIDEN, 1, 4096, dtype=torch.float16, **kind))
    if one_rounding:
        # Of two sizes in turn, so that no result is near the largest that float16 holds.
        past = call("float16, results past 65504", "float16: a result past 65504 is inf", 2, 64, dtype=torch.float16)
        columns = torch.arange(64, device=past.inputs[0].device)
        signed = (1 - 2.0 * (columns % 2)) * torch.where(columns % 4 < 2, 15000.0, 45000.0)
        for x in past.inputs[:tensors]:
            x[:] = signed
        past.inputs[tensors][:] = 60000.0
        for x in past.inputs[tensors + 1 : -1]:
            x[:] = 0.0
        found.append(past)
        below = "float16: results below 6e-5 have fewer digits, but they are not 0"
        tiny = call("float16, small results", below, 4, 64, dtype=torch.float16, scale=1.0)
        for x in tiny.inputs[tensors:-1]:
            x *= 2.0**-16
        found.append(tiny)
    for vector in range(vectors):
        unknown = call(NAN_IN_A_COLUMN, "what happens to NaN in a tensor that rows share", 2, 64)
        unknown.inputs[tensors + vector][5] = torch.nan
        found.append(unknown)
    wide = "bfloat16: the sums over a wide row; convert to float32 before them"
    found.append(call("bfloat16, a wide row", wide, 1, 4096, dtype=torch.bfloat16, mean=20.0, scale=1.0))
    found.append(call("the widest row", f"{BLOCK}; and {PADDING}", 1, widest or cases.between(14000, 16384, seed)))
    many = call("many rows", ROWS, cases.between(2100, 4000, seed), 9)
    # With this many rows, some row's elements are close to each other by chance, which loses digits.
    found.append(replace(many, input_error=torch.float32, few=True))
    # No two terms of a sum cancel, so small results are as accurate as large ones.
    rows = [32 * torch.stack([cases.distinct_values(x, tensors) for x in draw(4, 64)]) for _ in range(tensors)]
    weight = torch.logspace(-30, 0, 64, device=rows[0].device) * draw(64).sign()
    inputs = (*rows, weight, *(torch.zeros_like(weight) for _ in range(vectors - 1)), 1e-5)
    found.append(Case("weights from 1e-30 to 1", inputs, SMALL, relative=True, conditioning=4.0))
    found.append(call("no rows", "the empty tensor", 0, 65))
    return found


def activation_cases(tensors: int, seed: int) -> list[Case]:
    """Return calls of `norm(x, .., weight, eps)` with an activation of the norm; the weights and the tensors that
    multiply the activation grow along the row, from about 100 to 10^5."""
    draw = normal(seed)
    x, *others = (64 * draw(4, 64) for _ in range(tensors))
    grow = torch.logspace(0, 3, 64, device=x.device)
    inputs = (x, *(grow * each for each in others), 100 * grow * draw(64), 1e-5)
    look_at = "the activation far from 0: e^y overflows float32 for y above 88"
    return [Case("an activation far from 0", inputs, look_at, conditioning=ROUNDINGS)]


def shift_conditioning(rows: torch.Tensor) -> float:
    """Return how much rounding errors may grow in a variance computed about any element of its row: 1 + z^2 of the
    furthest one.

    E[(x - c)^2] - (mean - c)^2 subtracts two numbers that exceed the result by a factor of (mean - c)^2 / variance.
    """
    exact = rows.double()
    finite = exact[exact.isfinite().all(dim=-1)]
    if not finite.numel():
        return 1.0
    apart = finite - finite.mean(dim=-1, keepdim=True)
    variance = (apart * apart).mean(dim=-1, keepdim=True)
    return 1.0 + (apart * apart / variance).nan_to_num(0.0, 0.0, 0.0).max().item()


def largest_term(rows: torch.Tensor, weight: torch.Tensor) -> float:
    """Return the largest product of a normalised element and its weight, at least 1. It's rounded before the bias is
    added, and the result may be smaller."""
    exact = rows.double()
    apart = exact - exact.mean(dim=-1, keepdim=True)
    normalised = apart / (apart * apart).mean(dim=-1, keepdim=True).sqrt()
    return max(1.0, (normalised * weight).nan_to_num(0.0, 0.0, 0.0).abs().max().item())


def large_mean_cases(vectors: int, seed: int, widths: tuple[int, ...] = (64, 1000)) -> list[Case]:
    """Return calls of `norm(x, weight, .., eps)` on rows with a mean of 10^4 and a deviation of 2, in fp32."""
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


def exponent_conditioning(x: torch.Tensor) -> float:
    """Return how far the rounding of exponents may move small probabilities, in units in their last place.

    The exponential's relative error is its exponent's absolute one. On the way to base 2, the exponent is multiplied by
    a rounded log2(e) and rounded again: half a unit in the last place each, together its size times eps.
    """
    return max(1.0, (x.max() - x.min()).item()) if x.numel() else 1.0


def topk_cases(seed: int, widths: tuple[int, ...] = (1, 127, 1025), widest: int = 9000) -> list[Case]:
    """Return calls of `softmax_topk(x, k)` on rows of multiples of 1/16, so that many are equal and the rest well
    separated.

    They are: means of 1000, 20000, -1000 and -20000; halves that are 200 apart; 16 winners without ties; a wide row
    with a power-of-two width; many small probabilities; rows of equal elements; -inf; NaN; then padding, for each width
    in `widths`, with k from 1 to 5, and with as many winners as columns; more dimensions; strided and transposed
    tensors; 16 bits; `widest` elements; many rows; and no rows at all.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, k: int, *shape: int, view=lambda x: x, **kind) -> Case:
        inputs = (view((draw(*shape, **kind) * 16).round() / 16), k)
        # The exponential of a difference depends on the digits of both numbers.
        low = inputs[0].dtype in LOW_PRECISION
        rounded = exponent_conditioning(inputs[0])
        return Case(
            label, inputs, look_at, torch.float32, f"k = {k}", relative=True, one_rounding=low, conditioning=rounded
        )

    ties = "ties: among equal elements the lower index comes first, and no element comes twice"
    found = [call("", "softmax, and the largest of a row", 1, 2, 64)]
    found.append(call("mean 1000", "the exponential: subtract the row's maximum first", 1, 2, 64, mean=1e3))
    found.append(call("mean 20000", "the exponential: subtract all of the row's maximum", 1, 2, 64, mean=2e4))
    below = "the maximum: it is that of the row, and -inf where there is no element; 0 is larger than any number here"
    found.append(call("mean -1000", below, 1, 2, 64, mean=-1e3))
    spread = call("one half 200 above the other", "the maximum: that of the whole row, wherever it is", 1, 2, 128)
    spread.inputs[0][0, 64:] += 200.0
    spread.inputs[0][1, :64] += 200.0
    found.append(spread)
    # Each row so far has one largest element: ties come after.
    for case in found:
        x = case.inputs[0]
        x.scatter_add_(-1, x.argmax(-1, keepdim=True), torch.full_like(x[:, :1], 1 / 16))
    rounds = call("", "the k rounds: each finds a winner and stores it in its own place", 16, 2, 128)
    rounds.inputs[0][:] = rounds.inputs[0].argsort() / 16
    found.append(rounds)
    found.append(call("a wide row", BLOCK, 2, 1, 8192))
    small = call("one 16 above 8191 others", "the sum: small exponentials count, because there may be many", 1, 1, 8192)
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
    # Not the indices: which of several NaN is the largest is undefined.
    nan = (
        "NaN: all probabilities and values of a row with NaN or inf, or of -inf alone, are NaN, and none of other "
        "rows; tl.max and tl.maximum drop NaN"
    )
    unknown = call("NaN in one row", nan, 2, 4, 50)
    unknown.inputs[0][0, 3], unknown.inputs[0][1, 5], unknown.inputs[0][2] = torch.nan, torch.inf, -torch.inf
    more = call("70 winners", "the k rounds: there may be any number of them", 70, 2, 128)
    more.inputs[0][:] = more.inputs[0].argsort() / 16
    found += [equal, pairs, masked, more]
    found += [call("", PADDING, min(cols, 5), 3, cols) for cols in sorted(widths)]
    negative = call("every element below 0", f"{PADDING}; 0 is larger than any value here", 2, 2, 100, mean=-50.0)
    found.append(negative)
    found.append(
        call("mean -20000", f"{PADDING}; they must be below any number of the row: -inf", 2, 2, 100, mean=-2e4)
    )
    lowest = call("every element -3e38", f"{PADDING}; -inf alone is below any number of a row", 2, 2, 100)
    lowest.inputs[0][:] = -3e38
    found.append(replace(lowest, input_error=None))
    found.append(call("as many as there are", "the lanes past the row's end: none of them may win", 11, 2, 11))
    found.append(replace(unknown, compared=2))
    found.append(call("three dimensions", "the number of rows: every dimension but the last", 4, 2, 3, 65))
    found.append(call("four dimensions", "the number of rows: every dimension but the last", 4, 2, 2, 3, 65))
    found.append(call("six dimensions", "the number of rows: every dimension but the last", 4, 2, 1, 2, 1, 3, 65))
    found.append(call("one row, expanded to three", STRIDES, 4, 1, 65, view=lambda x: x.expand(3, 65)))
    found.append(call("one column, expanded to a row", STRIDES, 4, 3, 1, view=lambda x: x.expand(3, 65)))
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
    found.append(replace(call("many rows", ROWS, 2, cases.between(2100, 4000, seed), 9), few=True))
    found.append(call("no rows", "the empty tensor", 4, 0, 65))
    return found
