"""Check that an answer computes what PyTorch computes.

The reference runs twice: in float64, which counts as exact, and in the inputs' own dtype, which shows PyTorch's own
error. An answer may have twice that error, plus one unit in the last place of the largest value. If the result depends
on digits that the inputs no longer have, as in a norm at mean 10^4, the case is marked with `input_error`: then the
answer may also have the error caused by one unit in the last place of the inputs. If an exercise requires float32
throughout, its 16-bit cases are marked with `one_rounding`: then an element may be off by half a unit in its last
place, plus float32's own error.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from helpers.learning.checks.cases import Case, running
from helpers.learning.checks.launches import LaunchError, few_programs, fresh_copy, measure_in_any_order
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.outcome import AnswerError, as_check, causes
from helpers.learning.unwritten import unwritten
from kernels.interpreter import runtime

PATIENCE = 20.0  # seconds for all cases, once one has failed
NAMED, FEW_RIGHT = 8, 4  # cases that a message names, of those that fail and pass


@as_check
def check_values(
    answer: Callable, reference: Callable, cases: Iterable[Case], unlike: dict[str, Callable] | None = None
) -> str:
    """Call `answer` on each case and compare it with `reference`; report the first case that differs.

    Each call gets fresh inputs and outputs that start as NaN, and must leave its inputs unchanged. Kernels run under
    the meter, which sees out-of-bounds accesses and races, and then compiled, if there is a GPU.

    Args:
        answer: the learner's function of tensors, and of numbers where the cases have some, returning a tensor or a
            tuple of tensors.
        reference: the same in PyTorch.
        cases: calls, the simplest first.
        unlike: description -> a function in PyTorch: mistaken formulas to recognise.
        name: the check's name.
    """
    cases = list(cases)
    passed, results = [], []

    def judge(case: Case) -> None:
        got = check_case(answer, reference, case, unlike, passed)
        require_kept(results, case)
        results.extend((case, x, bits(x).clone()) for x in as_tuple(got))
        passed.append(case)

    try_each(cases, judge)
    return f"agrees with float64 on {len(cases)} inputs, to twice PyTorch's own error."


def try_each(cases: list[Case], judge: Callable[[Case], None], hint: Callable[[list[Case], str], str] | None = None):
    """Judge every case, and raise AnswerError for the first one that fails, with a summary of the others. If results
    are right in it that another case has wrong, the earliest result that is wrong anywhere comes first.

    Args:
        cases: calls, each with one difficulty more than those before it, so that the first failure identifies the
            mistake.
        judge: raises AnswerError if the answer is wrong on a case.
        hint: (the cases that failed, the first one's look_at) -> where to look.
    """
    failed: dict[int, AnswerError] = {}
    tried, began = 0, time.monotonic()
    for place, case in enumerate(cases):
        try:
            judge(case)
        except Exception as error:
            failure = next((cause for cause in causes(error) if isinstance(cause, AnswerError)), None)
            if isinstance(failure, LaunchError):  # in this launch as in all others
                raise
            if failure is None and not failed:
                error.add_note(f"on {case.where}")
                raise
            failed[place] = failure
        tried = place + 1
        if failed and time.monotonic() - began > PATIENCE:
            break
    if failed:
        first = with_formula(simplest_first([each for each in failed.values() if each is not None]))
        wrong = [cases[place] for place in failed]
        right = [cases[place] for place in range(tried) if place not in failed]
        look_at = hint(wrong, first.look_at) if hint else first.look_at
        raise AnswerError("\n".join([str(first), *told_cases(right, wrong)]), look_at) from first


def simplest_first(failures: list[AnswerError]) -> list[AnswerError]:
    """Return the failures with one in the earliest wrong result first: later results depend on it."""
    first = failures[0]
    if not first.results:
        return failures
    simplest = min((each for each in failures if each.results), key=lambda each: each.results[0])
    return [simplest, *(each for each in failures if each is not simplest)]


def told_cases(right: list[Case], wrong: list[Case]) -> list[str]:
    """Return the lines that count the cases and name those that fail; and those that pass, if they are few."""
    lines = [f"{len(right)} of {len(right) + len(wrong)} cases pass; wrong: {named_cases(wrong)}"]
    if 0 < len(right) <= FEW_RIGHT and len(right) < len(wrong):
        lines.append(f"the only right ones: {named_cases(right)}")
    return lines


def named_cases(some: list[Case]) -> str:
    """Name each case once, those of one name with their count, and only as many as a reader takes in."""
    counted = Counter(case.short for case in some)
    names = [name if count == 1 else f"{name} ({count} times)" for name, count in counted.items()]
    rest = len(names) - NAMED
    return "; ".join(names if rest <= 1 else [*names[:NAMED], f"and {rest} more"])


def with_formula(failures: list[AnswerError]) -> AnswerError:
    """Return the first failure, with the mistaken formulas that explain it and at least half of all failures. On one
    element several formulas may agree with an answer that computes none of them."""
    first, count = failures[0], Counter(name for each in failures for name in each.formulas)
    most = max((count[name] for name in first.formulas), default=0)
    if 2 * most < len(failures):
        return first
    others = [name for name in first.formulas if count[name] == most]
    message = f"{first}\nthese are the values of {', and of '.join(others)}, not of the formula asked for"
    return AnswerError(message, "the formula at the top of this exercise, next to yours")


def require_kept(results: Iterable[tuple[Case, torch.Tensor, torch.Tensor]], case: Case) -> None:
    """Raise AnswerError if a later call, on `case`, has changed what an earlier call returned.

    `results` are (the earlier case, its result, the result's bits when it was returned).
    """
    for earlier, result, before in results:
        if not torch.equal(bits(result), before):
            raise AnswerError(
                f"{case.where}: this call changed the result of an earlier one, on {earlier.where}",
                "where the output is allocated: each call must allocate its own",
            )


def check_case(
    answer: Callable,
    reference: Callable,
    case: Case,
    unlike: dict[str, Callable] | None = None,
    passed: Iterable[Case] = (),
) -> object:
    """Return what `answer` returns on one case; raise AnswerError if it differs from `reference`.

    The error's `formulas` are the names of those that the answer agrees with, if they would also have `passed` the same
    cases, and if they agree on more than NaN, which many mistakes return.
    """
    inputs = of_tensors(fresh_copy, case.inputs)
    some = few_programs() if case.few else contextlib.nullcontext()
    with outputs_start_as_nan(), some, running(case):
        traffic = measure_in_any_order(answer, *inputs)
    require_no_hazards(traffic, case.where, case.look_at if case.whole or not in_order(case.inputs) else "")
    written = {name: moved.written for name, moved in traffic.by_tensor.items()}
    # With several launches, the last may read elements that no program has written.
    part = case.few and (traffic.launches > 1 or not all_unwritten(traffic.result))
    try:
        compare(traffic.result, inputs, reference, case, written, part)
    except AnswerError as error:
        told = any(isinstance(x, torch.Tensor) and not x.isnan().all() for x in as_tuple(traffic.result))
        formulas = unlike.items() if unlike and told else ()
        alike = (o for o, formula in formulas if agrees(traffic.result, inputs, formula, case))
        error.formulas = [o for o in alike if all(would_pass(unlike[o], reference, each) for each in passed)]
        raise
    if runtime.has_gpu():
        inputs = of_tensors(fresh_copy, case.inputs)
        with outputs_start_as_nan():
            result = answer(*inputs)
        compare(result, inputs, reference, case)
    return traffic.result


def agrees(got: object, inputs: list, reference: Callable, case: Case) -> bool:
    try:
        compare(got, inputs, reference, case)
    except AnswerError:
        return False
    return True


def would_pass(formula: Callable, reference: Callable, case: Case) -> bool:
    return agrees(formula(*case.inputs), list(case.inputs), reference, case)


def compare(
    got: object,
    inputs: list,
    reference: Callable,
    case: Case,
    written: dict[str, int] | None = None,
    part: bool = False,
) -> None:
    """Raise AnswerError if a call's result, or its inputs afterwards, differ from the reference's.

    Args:
        got: the result.
        inputs: of the call, as it left them.
        reference, case: as for `check_case`.
        written: how many bytes were stored to each tensor, by the meter's names.
        part: whether only what was written is compared.
    """
    exact = as_tuple(reference(*of_tensors(in_float64, case.inputs)))
    usual = reference(*case.inputs)
    where = case.where
    if isinstance(usual, tuple):
        kinds = [type(each).__name__ for each in as_tuple(got)]
        if not isinstance(got, tuple) or len(got) != len(usual) or not all(isinstance(x, torch.Tensor) for x in got):
            said = f"a tuple of {', '.join(kinds)}" if isinstance(got, tuple) else kinds[0]
            raise AnswerError(
                f"{where}: got {said}, expected a tuple of {len(usual)} tensors", "what your function returns"
            )
    elif not isinstance(got, torch.Tensor):
        what = "what your function returns" + ": None, as one without return does" * (got is None)
        raise AnswerError(f"{where}: got {type(got).__name__}, expected a tensor", what)
    results = list(zip(as_tuple(got), exact, as_tuple(usual), strict=True))
    names = [f"result {number} of {len(results)}" for number in range(1, len(results) + 1)]
    mine, wanted = ([(tuple(x[which].shape), str(x[which].dtype)) for x in results] for which in (0, 2))
    if mine != wanted and sorted(mine) == sorted(wanted):
        order = ", ".join(f"{shape} in {kind.removeprefix('torch.')}" for shape, kind in wanted)
        raise AnswerError(
            f"{where}: the results are in another order than expected: {order}",
            "the order of what your function returns",
        )
    for name, (mine, _, wanted) in zip(names, results, strict=True):
        for what, has, expected in (
            ("shape", tuple(mine.shape), tuple(wanted.shape)),
            ("dtype", mine.dtype, wanted.dtype),
            ("device", mine.device.type, wanted.device.type),
        ):
            if has != expected:
                which = name if len(results) > 1 else "the result"
                raise AnswerError(
                    f"{where}: {which}'s {what} is {has}, expected {expected}",
                    "how the output is allocated, and any operation that your launcher applies to it",
                )
    for number, (before, after) in enumerate(zip(case.inputs, inputs, strict=True), start=1):
        if isinstance(before, torch.Tensor) and not torch.equal(bits(before), bits(after)):
            raise AnswerError(f"{where}: argument {number} was changed", "what your kernel stores to: only the output")
    moved = case.nearby(reference, case.inputs) if case.nearby else []
    if case.input_error is not None:
        moved = [*moved, as_tuple(reference(*(moved_by_one_ulp(x, case.input_error) for x in case.inputs)))]
    single = as_tuple(reference(*of_tensors(in_float32, case.inputs))) if case.one_rounding else exact
    found = {}  # place -> (mine, wanted, where it is wrong)
    for number, (mine, truth, wanted) in enumerate(results[: case.compared]):
        if part:
            mine = torch.where(never_written(mine), wanted, mine)
        if case.one_rounding and wanted.dtype in (torch.float16, torch.bfloat16):
            wrong = rounded_twice(mine, truth, single[number], case)
            wanted = truth.to(wanted.dtype)
        else:
            near = [each[number] for each in moved]
            rounding = rounding_allowed(wanted.dtype, case) if wanted.is_floating_point() else 0.0
            wrong = differs(mine, truth, wanted, near, case.relative, rounding, case.least)
        if wrong.any():
            found[number] = mine, wanted, wrong
    if found:
        number, (mine, wanted, wrong) = next(iter(found.items()))
        told = described_difference(mine, wanted, wrong)
        if len(results) > 1:
            told = f"{names[number]}: {told}{others_wrong(list(found), len(results[: case.compared]))}"
        metered = f"result[{number}]" if isinstance(usual, tuple) else "result"
        stored = 0 if written is None else written.get(metered, 0)
        error = AnswerError(
            f"{where}: {told}", likely_place(mine, wanted, wrong, case, mine.numel() - stored // mine.itemsize)
        )
        error.results = list(found)
        raise error


def others_wrong(wrong: list[int], count: int) -> str:
    """Return a line with the other wrong results, after the first of `wrong`, and the right ones, out of `count`; "" if
    only one is compared."""
    right = [place for place in range(count) if place not in wrong]
    told = (("also wrong", wrong[1:]), ("right", right))
    also = [f"{said}: {', '.join(f'result {place + 1}' for place in places)}" for said, places in told if places]
    return f"\n{'; '.join(also)}" if also else ""


def differs(
    got: torch.Tensor,
    exact: torch.Tensor,
    usual: torch.Tensor,
    near: Iterable[torch.Tensor] = (),
    relative: bool = False,
    rounding: float | None = None,
    least: float = 1.0,
) -> torch.Tensor:
    """Return where `got` is further from `exact` than the tolerance; NaN and inf must be where PyTorch has them.

    Each of `near` is exact for inputs that are, for example, an ulp off; the tolerance grows by the distance to the
    furthest. If the tolerance is `relative`, each value has its own, proportional to its magnitude; otherwise all have
    one, proportional to the largest, or to `least` if that is larger. `rounding` is the error allowed for roundings,
    by default one unit in the last place. Integers must be equal, except int8,
    which holds rounded codes.
    """
    if usual.dtype == torch.int8:
        return other_codes(got, exact, usual, near)
    if not usual.is_floating_point():
        return got != usual
    finite = exact.to(usual.dtype).isfinite() & usual.isfinite()
    kind = torch.finfo(usual.dtype)
    # By what numbers are measured: themselves, or the largest, where sums and differences of some give others.
    whole = exact.abs()[finite].max().clamp(min=least) if finite.any() else exact.new_ones(())
    size = exact.abs().clamp(min=kind.tiny) if relative else whole

    def furthest(other: torch.Tensor) -> torch.Tensor:
        return ((other.double() - exact).abs() / size)[finite].max() if finite.any() else exact.new_zeros(())

    apart = max((furthest(each) for each in near), default=0)
    tolerance = (2 * furthest(usual) + (kind.eps if rounding is None else rounding) + apart) * size
    error = (got.double() - exact).abs()
    same = (got == usual) | (got.isnan() & usual.isnan())
    # A NaN error is outside the tolerance.
    return torch.where(finite, ~(error <= tolerance), ~same)


def rounding_allowed(dtype: torch.dtype, case: Case) -> float:
    """Return the error that roundings may cause in a result of this dtype, as a share of its size: one unit in the last
    place, times the case's conditioning. If the case allows a single rounding, it's four of float32's, on top of that
    rounding. The grader's comparison with the model's values allows twice that."""
    once = case.one_rounding and dtype in (torch.float16, torch.bfloat16)
    return case.conditioning * (4 * torch.finfo(torch.float32).eps if once else torch.finfo(dtype).eps)


def rounded_twice(got: torch.Tensor, exact: torch.Tensor, single: torch.Tensor, case: Case) -> torch.Tensor:
    """Return where `got`, in 16 bits, is further from `exact` than one rounding plus float32's own error.

    `single` is the reference in float32; with its operations in another order, it may lose several times more.
    """
    nearest = exact.to(got.dtype)
    finite = nearest.isfinite()
    size = exact.abs() if case.relative else exact.abs()[finite].max() if finite.any() else exact.new_ones(())
    lost = ((single.double() - exact).abs() / size.clamp(min=torch.finfo(got.dtype).tiny))[finite]
    allowed = 4 * (lost.max() if finite.any() else 0) + rounding_allowed(got.dtype, case)
    wrong = ~((got.double() - exact).abs() <= half_ulp(exact, got.dtype) + allowed * size)
    return torch.where(finite, wrong, ~((got == nearest) | (got.isnan() & nearest.isnan())))


def half_ulp(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half the distance between neighbouring numbers of `dtype` at each value: the error of rounding to
    nearest."""
    kind = torch.finfo(dtype)
    power = torch.frexp(exact.abs().clamp(min=kind.tiny)).exponent
    return torch.ldexp(torch.full_like(exact, kind.eps / 4), power)


def in_float32(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


def other_codes(
    got: torch.Tensor, exact: torch.Tensor, usual: torch.Tensor, near: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Return where `got` is more than one code from `exact`; and where it's one code off, if that happens often.

    A value that is rounded to a code may be so close to the midpoint between two that the last digit decides. That's
    rare. So one in a hundred may be off, or twice as many as in PyTorch's own result, or as many as differ in any of
    `near`: inputs between two that are off in opposite directions change no other code.
    """
    apart = (got.int() - exact.int()).abs()
    moved = torch.zeros_like(exact, dtype=torch.bool)
    for each in near:
        moved |= each != exact
    allowed = max(1, got.numel() // 100) + 2 * (usual != exact).sum() + moved.sum()
    return apart > (1 if (apart == 1).sum() <= allowed else 0)


def as_tuple(result: object) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def in_float64(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def moved_by_one_ulp(x: object, dtype: torch.dtype) -> object:
    """Return x in float64 with every other element an ulp of `dtype` higher and the rest an ulp lower; inf and NaN stay
    as they are."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    sign = 1 - 2 * (torch.arange(x.numel(), device=x.device).view(x.shape) % 2)
    return x.double() * (1 + sign * torch.finfo(dtype).eps)


def described_difference(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    place = index[0] if len(index) == 1 else index
    mine, right = told_apart(got[index].item(), usual[index].item())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements wrong\nfirst wrong index {place}: got {mine}, expected {right}"
    )


def told_apart(mine: float, right: float) -> tuple[str, str]:
    """Format two numbers with enough digits to tell them apart, at least six."""
    pairs = ((f"{mine:.{digits}g}", f"{right:.{digits}g}") for digits in range(6, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{mine:.6g}", f"{right:.6g}"))


def in_order(inputs: tuple) -> bool:
    return all(x.is_contiguous() for x in inputs if isinstance(x, torch.Tensor))


def likely_place(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor, case: Case, unstored: int) -> str:
    """Return where to look; `unstored`: how many elements of the result were never stored."""
    whole = unstored <= 0
    moved = not nearly(got, usual)  # else values that hardly differ from each other seem to be in another order
    if moved and stored_in_another_layout(got, usual):
        return (
            f"the result's strides, {got.stride()}: the values are right in the order of memory, so your kernel stores "
            "as to a contiguous tensor. Allocate one: torch.empty_like copies the layout of the tensor it is given"
        )
    if moved and axes_exchanged(got, usual):
        return "the result's last two axes: every value is right, but they are exchanged"
    if moved and stored_transposed(got, usual):
        rows, columns = got.shape[-2:]
        return (
            "the store: every value is right, but rows and columns are exchanged in memory. Element (i, j) of "
            f"{rows} x {columns} belongs at i * {columns} + j"
        )
    if got.is_floating_point() and not got.any() and usual.nan_to_num(0.0).any():
        return (
            "the store: every element is 0, as torch.zeros leaves it. Does a kernel store to the tensor that you "
            f"return? If so, look at {case.look_at}"
        )
    start = never_written(got)
    missing = start & wrong & ~usual.isnan()
    if not torch.equal(missing, wrong) or (whole and not got.is_floating_point()):
        low = case.inputs[0].dtype in (torch.float16, torch.bfloat16) and got.is_floating_point()
        # An exercise that asks for one rounding has its own text in its 16-bit cases.
        if low and not case.one_rounding and torch.allclose(got.double(), usual.double(), 0.01, 0.0, equal_nan=True):
            near = "what is rounded to 16 bits on the way, since every value is within 1% of the right one"
            return f"{near}; or {case.look_at}"
        return case.look_at
    if whole:
        return (
            f"where the NaN comes from: a masked load without other=, an exponential that overflows, 0 / 0, inf - inf; "
            f"and {case.look_at}"
        )
    # So these were never stored, or were computed from memory that was never stored.
    if missing.all():
        return f"the grid and the store: no element was written; or else NaN was, and then look at {case.look_at}"
    first = int(missing.flatten().nonzero()[0])
    if start.flatten()[first:].all():
        return f"the grid: nothing was written from element {first} on"
    if int(missing.sum()) == unstored:  # so what was stored was not NaN
        return "the grid and the store: these elements were never written"
    return f"the store: these elements were never written, or NaN was; and {case.look_at}"


def never_written(x: torch.Tensor) -> torch.Tensor:
    return unwritten(x, str(x.dtype).removeprefix("torch."))


def all_unwritten(result: object) -> bool:
    return all(bool(never_written(x).all()) for x in as_tuple(result) if isinstance(x, torch.Tensor))


def nearly(got: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether all values agree roughly, those near 0 in proportion to the largest."""
    finite = usual[usual.isfinite()].double().abs()
    least = 1e-3 * min(1.0, finite.max().item()) if finite.numel() else 0.0
    return torch.allclose(got.double(), usual.double(), rtol=1e-2, atol=least, equal_nan=True)


def stored_in_another_layout(got: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether every value is right in memory order, so that only the result's strides are wrong."""
    room = got.untyped_storage().nbytes() // got.itemsize - got.storage_offset()
    if got.is_contiguous() or not got.is_floating_point() or got.numel() > room:
        return False
    in_memory = got.as_strided(got.shape, torch.empty(got.shape, device="meta").stride())
    return nearly(in_memory, usual)


def axes_exchanged(got: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether every value is right, but a square view has its last two axes exchanged."""
    if got.dim() < 2 or got.is_contiguous() or not got.is_floating_point() or got.shape[-1] != got.shape[-2]:
        return False
    return nearly(got.mT, usual)


def stored_transposed(got: torch.Tensor, usual: torch.Tensor) -> bool:
    """Return whether every value is right, but each matrix is stored column after column."""
    if got.dim() < 2 or not got.is_contiguous() or not got.is_floating_point() or min(got.shape[-2:]) < 2:
        return False
    in_memory = got.view(*got.shape[:-2], got.shape[-1], got.shape[-2]).mT
    return nearly(in_memory, usual)


def of_tensors(function: Callable, inputs: tuple) -> list:
    """Return a call's inputs with `function` applied to its tensors, and its numbers unchanged."""
    return [function(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def bits(x: torch.Tensor) -> torch.Tensor:
    # Compared as bytes, a NaN equals itself.
    return x.reshape(-1).contiguous().view(torch.uint8)


@contextlib.contextmanager
def outputs_start_as_nan():
    """Fill every `torch.empty` with NaN, so that an element that is never written can't pass for a value."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filling
