"""Dropout whose mask is a function of a seed: its random numbers, and checks that the right elements are dropped, in
the right proportion."""

import math
from collections.abc import Callable

import torch

from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.checks.cases import Case, described
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.values import outputs_start_as_nan
from helpers.learning.outcome import AnswerError, as_check
from kernels.interpreter import runtime
from kernels.philox import philox


def kept_elements(seed: int, elements: int, p: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the elements that dropout keeps, as (elements,) of bool: those where `tl.rand(seed, element)` is at least
    p."""
    # Round p to float32, like a kernel's argument.
    return drawn(seed, elements, device) >= torch.tensor(p, dtype=torch.float32, device=device)


def drawn(seed: int, elements: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return `tl.rand(seed, element)` for the elements 0, 1, 2 and so on: (elements,), float32.

    Source: tl.rand of Triton, the first word of Philox4x32-10 at the counter (element, 0, 0, 0), as a float.
    """
    element = torch.arange(elements, device=device)
    zero = torch.zeros_like(element)
    word = philox(seed, (element & 2**32 - 1, element >> 32, zero, zero))[0]
    signed = torch.where(word < 2**31, word, 2**32 - 1 - word).to(torch.float32)
    return signed * 4.6566127342e-10


def dropout_cases(
    seed: int, tensors: Callable, shapes: tuple[tuple[int, int], ...], rates: tuple[float, ...]
) -> list[Case]:
    """Return calls of a function of tensors followed by p and a seed, simplest first.

    Args:
        seed: decides the tensors' values; the seeds of the calls are `seed_of` their places, except those in SEEDS.
        tensors: (rows, cols, draw) -> the tensors of a call, where draw(*shape) is a random float32 tensor.
        shapes: (rows, cols) of the calls.
        rates: p of the calls, in turn.
    """
    generator = torch.Generator().manual_seed(seed + (cases.draw << 16))
    device = "cuda" if runtime.has_gpu() else "cpu"

    def draw(*shape: int) -> torch.Tensor:
        return (2 * torch.randn(shape, generator=generator)).to(device)

    found = []

    def add(label: str, inputs: list[torch.Tensor], look_at: str, p: float | None = None, few: bool = False) -> None:
        place = len(found)
        p = rates[place % len(rates)] if p is None else p
        seed = SEEDS.get(label, seed_of(place))
        told = f"p = {p:.6g}, seed = {seed}"
        # Where x + bias and the residual nearly cancel, the result depends on their last digits.
        low = inputs[0].dtype in (torch.float16, torch.bfloat16)
        found.append(Case(label, (*inputs, p, seed), look_at, torch.float32, told, one_rounding=low, few=few))

    formula = "the formula: which part is dropped, scaled, added afterwards"
    number = "each element's number, row * columns + column, and whose column the bias is"
    extent = "the grid and the mask: how many programs run, which of their elements exist, and each element's number"
    for shape in shapes:
        if math.prod(shape) > 8 and number:
            add("", tensors(4, 8, draw), number)  # no mask, and one block
            special = tensors(2, 8, draw)
            special[0][0, 3], special[0][1, 5] = torch.nan, torch.inf
            add("NaN and inf", special, "what happens to NaN and inf", 0.0)
            number = ""
        small = formula if shape[0] == 1 else f"{formula}; and each element's number, row * columns + column"
        add("", tensors(*shape, draw), small if math.prod(shape) <= 8 else extent)
    # Wider than a bias cut off at 8192 columns, with a p that few elements are below.
    add("a wide row", tensors(1, cases.between(9000, 14000, seed), draw), extent, cases.between(0.002, 0.008, seed))
    add("many rows", tensors(cases.between(2100, 5000, seed), 3, draw), extent, few=True)
    # 31/32: p and 1 - p are exact in float32, so it doesn't matter where an answer subtracts.
    add("nearly all dropped", tensors(2, 100, draw), "the scale, 1 / (1 - p), for any p below 1", 0.96875)
    numbers = drawn(seed_of(len(found)), 100)
    exactly = numbers[(numbers > 0.1) & (numbers < 0.6)][0].item()
    add("p is a number that is drawn", tensors(1, 100, draw), "the comparison with p, where both are equal", exactly)
    rows, cols = shapes[-1]
    strides = "the strides: your kernel reads memory in order, and these tensors are not in order there"
    for case in cases.in_turn(tensors(rows, cols, draw), cases.transposed, "strided", strides):
        add(case.label, list(case.inputs), case.look_at)
    add("strided", [cases.transposed(x) for x in tensors(rows, cols, draw)], strides)
    shifted = [torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape) for x in tensors(rows, cols, draw)]
    add("views that start at element 1", shifted, "where each tensor starts")
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        like = [x.to(dtype) for x in tensors(rows, cols, draw)]
        add(name, like, cases.in_float32(name))
        if len(like) == 3:
            # x + bias has more digits than 16 bits hold, or passes 65504; the residual takes most of it off again.
            x, bias, residual = (256.0, 1.0, -256.0) if dtype == torch.bfloat16 else (60000.0, 10000.0, -50000.0)
            sizes = (each.sigmoid() for each in tensors(rows, cols, draw)[1:2])
            large = [torch.full_like(like[0], x), (bias * next(sizes)).to(dtype), torch.full_like(like[2], residual)]
            add(
                f"{name}, terms that cancel",
                large,
                f"{name}: x + bias in float32, and nothing rounded before the store",
                0.0,
            )
    for case in cases.in_turn(tensors(3, cols, draw), lambda x: x[:1].expand(x.shape), "expanded", strides):
        add(case.label, list(case.inputs), case.look_at)  # of one row, or for a vector as it is
    for case in cases.in_turn(tensors(3, cols, draw), one_value, "of one value, expanded", strides):
        add(case.label, list(case.inputs), case.look_at)
    unknown = tensors(4, 8, draw)
    for place, x in enumerate(unknown):
        x[..., place] = torch.nan
    add("NaN in each tensor", unknown, "what happens to NaN, in any tensor", 0.0)
    add("p = 255/256", tensors(20, 200, draw), "the scale, 1 / (1 - p), for any p below 1", 0.99609375)
    for label in SEEDS:
        add(label, tensors(2, 100, draw), "the seed: tl.rand takes it as it is, with all of its bits and its sign", 0.5)
    add("no elements", tensors(0, cols, draw), "the empty tensor: return before launching on it")
    return found


def one_value(x: torch.Tensor) -> torch.Tensor:
    return x.flatten()[:1].expand(x.shape)


# Any int of 64 bits is a seed.
SEEDS = {"a seed of 63 bits": 5_000_000_000_000_000_011, "a seed below 0": -3}


def seed_of(place: int) -> int:
    """Return the seed of a call; some are small, from 0 on, and some large."""
    return place - 1 if place % 3 else 1_000_000_007 + place


@as_check
def check_drop_rate(answer: Callable, p: float, seed: int, rows: int = 20, cols: int = 1000) -> str:
    """Call `answer(x, bias, residual, p, seed)` on ones, zeros and zeros: a share p should be 0, and the rest 1 / (1 -
    p).

    Args:
        answer: the learner's forward.
        name: the check's name.
    """
    device = "cuda" if runtime.has_gpu() else "cpu"
    x = torch.ones(rows, cols, device=device)
    bias, residual = torch.zeros(cols, device=device), torch.zeros(rows, cols, device=device)
    y = result_of(answer, (x, bias, residual, p, seed), "the forward")
    share = (y == 0).double().mean().item()
    deviation = math.sqrt(p * (1 - p) / y.numel())
    if abs(share - p) > 5 * deviation:
        raise AnswerError(
            f"x = 1, bias = 0, residual = 0, p = {p}: {share:.1%} of {y.numel()} elements are 0, {p:.0%} expected",
            "which side of p is dropped, and each element's random number",
        )
    scale = 1 / (1 - p)
    wrong = (y != 0) & ((y - scale).abs() > 1e-5 * scale)
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise AnswerError(
            f"x = 1, bias = 0, residual = 0, p = {p}: element {index} is {y[index].item():.6g}, "
            f"{scale:.6g} or 0 expected",
            "what a kept element is multiplied by, so that the mean stays the same",
        )
    return f"a share of {p:g} is dropped, and the rest scaled by {scale:.6g}."


@as_check
def check_same_mask(forward: Callable, backward: Callable, p: float, seed: int, rows: int = 3, cols: int = 700) -> str:
    """Check that on ones, `forward(x, bias, residual, p, seed)` and `backward(grad, p, seed)` are 0 at the same
    elements.

    Args:
        forward, backward: the learner's functions.
        name: the check's name.
    """
    device = "cuda" if runtime.has_gpu() else "cpu"
    x = torch.ones(rows, cols, device=device)
    bias, residual = torch.zeros(cols, device=device), torch.zeros(rows, cols, device=device)
    y = result_of(forward, (x, bias, residual, p, seed), "the forward")
    grad_x = result_of(backward, (torch.ones_like(x), p, seed), "the backward")
    differ = (y == 0) != (grad_x == 0)
    if differ.any():
        index = tuple(differ.nonzero()[0].tolist())
        ways = ("dropped", "kept") if y[index] == 0 else ("kept", "dropped")
        raise AnswerError(
            f"shape {tuple(x.shape)}, p = {p}, seed = {seed}: {int(differ.sum())} of {x.numel()} elements differ\n"
            f"first at {index}: the forward {ways[0]} it, the backward {ways[1]} it",
            "the two numbers you pass to tl.rand: the seed, and the element's number in its tensor",
        )
    if not (y == 0).any() or (y == 0).all():
        raise AnswerError(f"p = {p}: everything is kept, or nothing", "the comparison with p")
    return "the backward drops what the forward dropped."


def result_of(answer: Callable, inputs: tuple, what: str) -> torch.Tensor:
    """Return a call's result, under the meter; AnswerError unless it has the first input's full shape."""
    with outputs_start_as_nan():
        traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    result, x = traffic.result, inputs[0]
    if not isinstance(result, torch.Tensor) or result.shape != x.shape:
        kind = f"shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise AnswerError(f"{what} gives {kind}: return a tensor of shape {tuple(x.shape)}", "what it returns")
    if result.isnan().any():
        first = tuple(result.isnan().nonzero()[0].tolist())
        raise AnswerError(f"{what} gives NaN at {first}", "the grid and the store: what was never written is NaN here")
    return result
