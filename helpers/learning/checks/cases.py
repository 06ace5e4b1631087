"""Inputs that expose kernels which only look right."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.interpreter import runtime

# The seed of random inputs: 0 for learners; grading sets a secret one.
draw = 0
# That of sizes, and of numbers that are passed as they are: one for both draws of a grading, which makes each call
# twice. So no size that an answer may end at is safe.
sizes = 0


def between(low: float, high: float, seed: int) -> float:
    """Return a size, or another number if one of the bounds is a float, from `low` to `high`."""
    chosen = random.Random(seed + (sizes << 16))
    return chosen.randint(low, high) if isinstance(low, int) and isinstance(high, int) else chosen.uniform(low, high)


MANY = 20000  # elements: too many for a few programs

PLACES = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Case:
    """One call of the answer, ideally with a single difficulty that simpler cases don't have.

    Args:
        label: the special feature of the inputs, in words.
        inputs: the arguments of the call, a tensor first.
        look_at: the likely place of the mistake if an answer fails here but on no simpler case.
        input_error: for a result that depends on its inputs' last digits, as a norm's at mean 10^4 or a softmax's of
            large scores: the effect of an ulp of this dtype in the inputs is forgiven.
        arguments: those that are not tensors, in words: "k = 4".
        whole: whether blocks and tiles of the usual sizes fit exactly, so that an out-of-bounds access is not a
            forgotten mask.
        relative: whether small values in a result must be as accurate as large ones, as with probabilities.
        least: the smallest magnitude that counts: where a result's largest value is below, errors are measured by this.
        one_rounding: whether a result of 16 bits must be the exact one, rounded once: computed in float32 throughout.
        conditioning: by how much a good algorithm may magnify roundings, as a variance about a point other than the
            mean does: the allowed units in the last place are multiplied by this.
        nearby: (reference, inputs) -> results of inputs so close to these that a right answer may be as far off: the
            tolerance is the distance between them.
        compared: number of a tuple's results whose values are compared; those after are open, such as which of several
            NaN is the largest. None for all.
        few: whether only the first and the last programs run where there is no GPU, and some between them: tensors are
            larger than all programs would take time for. Only elements that they write are compared.
    """

    label: str
    inputs: tuple
    look_at: str
    input_error: torch.dtype | None = None
    arguments: str = ""
    relative: bool = False
    least: float = 1.0
    whole: bool = False
    one_rounding: bool = False
    conditioning: float = 1.0
    nearby: Callable[[Callable, tuple], list[tuple]] | None = None
    compared: int | None = None
    few: bool = False

    @property
    def where(self) -> str:
        """Describe the call in words: "transposed, k = 4, shape (65, 3), float32"."""
        return described(self.inputs, ", ".join(filter(None, (self.label, self.arguments))))

    @property
    def short(self) -> str:
        """Describe the call among others: "transposed, k = 4", or "(3, 127), k = 4"."""
        return ", ".join(filter(None, (self.label or str(tuple(self.inputs[0].shape)), self.arguments)))


_running: Case | None = None


@contextlib.contextmanager
def running(case: Case) -> Iterator[None]:
    """Let a recorder of the calls inside this context know how their results are compared."""
    global _running
    before, _running = _running, case
    try:
        yield
    finally:
        _running = before


def running_case() -> Case | None:
    """Return the case whose call is running; None if a check compares in its own way."""
    return _running


def described(inputs: tuple, label: str = "") -> str:
    """Describe a call's inputs in words: "transposed, shape (33, 31), float32"."""
    first = inputs[0]
    kind = f"shape {tuple(first.shape)}, {str(first.dtype).removeprefix('torch.')}"
    return f"{label}, {kind}" if label else kind


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return x's values with the axes in the opposite order in memory; for a vector, as every second element of a
    longer one."""
    if x.dim() < 2:
        return torch.stack([x, -x], dim=-1)[..., 0]
    axes = tuple(range(x.dim()))[::-1]
    return x.permute(axes).contiguous().permute(axes)


def in_turn(
    inputs: list, moved: Callable[[torch.Tensor], torch.Tensor], what: str, look_at: str, **kind
) -> Iterator[Case]:
    """Yield one case per tensor of a call, in which only that tensor has another layout: "the second transposed"."""
    for place, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool:
            alone = (*inputs[:place], moved(x), *inputs[place + 1 :])
            yield Case(
                f"the {PLACES[place]} {what}", alone, f"{look_at}; here the {PLACES[place]} tensor's differ", **kind
            )


def distinct_values(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return values made from normal ones so that the sum of `count` tensors has magnitude 1 to 1.5 and alternating
    signs.

    With a single element, the sum could by chance be 0, or so large that an activation is flat and another formula
    agrees.
    """
    sign = 2 * (torch.arange(len(x), device=x.device) % 2) - 1
    return sign * (1 + x.sigmoid() / 2) / count


def in_float32(dtype: str) -> str:
    """Return where to look if a result with this 16-bit dtype is wrong."""
    return f"{dtype}: load, convert to float32, compute all of it there, then store: nothing is rounded before that"


def elementwise_cases(
    count: int,
    seed: int,
    sizes: tuple[int, ...] = (1, 127, 1025),
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16),
    one_rounding: bool = False,
    every_shape: bool = True,
) -> list[Case]:
    """Return calls of an elementwise operation on `count` tensors of the same shape, simplest first.

    They are: one vector per size in `sizes`; many programs, and many more; a matrix; each tensor alone transposed, and
    all; strided and offset views; small values; a large mean; NaN and inf; the largest size in each further dtype; and
    an empty tensor. Values are normal with a deviation of 2, from `seed`, except in the first call, where their
    magnitude is about 1. The tensors are on the GPU if there is one. With `one_rounding`, 16-bit results must be
    rounded only once. Without `every_shape`, the shapes that don't depend on `sizes` are left out, except for a vector
    of many elements: a hidden check needn't repeat them, because grading draws other inputs for the public check too.
    """
    generator = torch.Generator().manual_seed(seed + (draw << 16))
    device = "cuda" if runtime.has_gpu() else "cpu"

    def tensors(*shape: int, dtype: torch.dtype = dtypes[0], mean: float = 0.0) -> list[torch.Tensor]:
        return [
            (2 * torch.randn(shape, generator=generator) + mean).to(device=device, dtype=dtype) for _ in range(count)
        ]

    largest = max(sizes)
    rows, cols = largest // 31, 31
    formula, extent = "the formula", "the grid and the mask: how many programs run, and which of their elements exist"
    strides = "the strides: your kernel reads memory in order, and these tensors are not in order there"

    first, *longer = sorted(sizes)
    cases = [Case("", tuple(distinct_values(x, count) for x in tensors(first)), formula)]
    cases += [Case("", tuple(tensors(size)), extent) for size in longer]
    cases.append(Case("", tuple(tensors(MANY)), "the grid: as many programs as cover all elements, triton.cdiv"))
    if every_shape:
        more = tensors(between(70_000, 120_000, seed))
        every = "the grid and the mask: every element has its program"
        cases.append(Case("many elements", tuple(more), every, few=True))
        counted = "the number of elements: numel()"
        cases.append(Case("a matrix", tuple(tensors(MANY // 2 // cols, cols)), f"{counted}, not the first size"))
        cases.append(Case("four dimensions", tuple(tensors(2, 3, 5, cols)), f"{counted}, in all of them"))
        cases.append(Case("six dimensions", tuple(tensors(2, 1, 2, 3, 2, cols)), counted))
    cases += in_turn(tensors(rows, cols), transposed, "transposed", strides)
    if every_shape:
        cases += in_turn(tensors(4, cols), lambda x: x[:1].expand(x.shape), "of one row, expanded", strides)
        cases += in_turn(tensors(4, cols), lambda x: x[:1, :1].expand(x.shape), "of one value, expanded", strides)
    cases.append(Case("transposed", tuple(x.T for x in tensors(cols, rows)), strides))
    cases.append(Case("every second element", tuple(x[::2] for x in tensors(2 * largest)), strides))
    cases.append(
        Case("views that start at element 1", tuple(x[1:] for x in tensors(largest + 1)), "where each tensor starts")
    )
    small = tuple(1e-5 * x for x in cases[len(longer)].inputs)
    cases.append(Case("small values", small, "the formula where inputs are small"))
    cases.append(Case("mean 10000", tuple(tensors(largest, mean=1e4)), "the formula where inputs are large"))
    special = tensors(largest)
    for position, value in enumerate((float("nan"), float("inf"), 1e30, -1e30, -float("inf"))):
        for place, x in enumerate(special):  # each at elements of its own
            x[position * 7 + place] = value
    cases.append(Case("NaN, inf and huge values", tuple(special), "what happens to NaN and inf"))
    for dtype in dtypes[1:]:
        name = str(dtype).removeprefix("torch.")
        low = tensors(largest, dtype=dtype)
        for place, x in enumerate(low):
            x[-1 - place] = float("nan")
        cases.append(Case(name, tuple(low), in_float32(name), one_rounding=one_rounding))
        if dtype == torch.float16:
            past = [40000.0 * (-1.0) ** torch.arange(largest) for _ in range(count)]
            told = "float16: a result past 65504 is inf, as PyTorch's is"
            past = tuple(x.to(device=device, dtype=dtype) for x in past)
            cases.append(Case(f"{name}, results past 65504", past, told, one_rounding=one_rounding))
    cases.append(Case("no elements", tuple(tensors(0)), "the empty tensor: return before launching on it"))
    return cases
