"""Check that a backward pass is right in float64, moves no more bytes than necessary, and is the same in every run."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch.autograd.gradcheck import GradcheckError

from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.checks.cases import PLACES, Case, described, transposed
from helpers.learning.checks.compiled_code import require_no_spills_at
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.row_cases import BLOCK, LOW_PRECISION, PADDING, STRIDES, WIDEN, normal, shift_conditioning
from helpers.learning.checks.traffic_checks import further_calls, launched, lines_of
from helpers.learning.checks.values import as_tuple, outputs_start_as_nan
from helpers.learning.outcome import AnswerError, as_check
from kernels.interpreter import runtime

# For gradcheck, whose step h is 1e-6. Its difference quotient errs by the rounding of two values, u |y| / h, which is
# 1e-16 * 5 / 1e-6 = 5e-10 for values to 5, and by h^2 / 6 times the third derivative, which is less: 1.5e-9 at most on
# 500 draws of the exercises' inputs. Arithmetic in float32 errs by 3e-8 at least on each of them.
ATOL, RTOL = 5e-9, 1e-8
RUNS = 10  # of one call on a GPU, to see whether it repeats
MOVES = 16  # of the inputs, whose effect is averaged


def gradient_cases(
    seed: int,
    widths: tuple[int, ...] = (7, 127, 1025),
    rows: int = 37,
    tensors: int = 1,
    vectors: int = 2,
    wide: bool = False,
    many: bool = True,
) -> list[Case]:
    """Return calls of `backward(grad_y, x, .., weight, .., eps)` of a norm with an activation, simplest first.

    grad_y is followed by `tensors` of its shape, then by `vectors` with one element per column: x, weight and bias by
    default. If the reference accumulates in float32 (`wide`), there are also fp16 rows whose partial sums pass 65504.

    The cases are: rows of 64 elements, one case per width in `widths`, and a wide one; `rows` rows, which is more than
    there are programs, and, if `many`, over 1000; more dimensions; each tensor with strides of its own; another eps
    (elsewhere it's too small to matter); a large mean; an activation far from 0; large gradients; NaN; 16 bits, where
    each gradient must be rounded only once; and no rows at all. (In float64 the reference is no better than the answer,
    so check_gradcheck judges that. In rows of one element the gradient of x is 0, the difference of two equal products,
    and a GPU that multiplies and adds in one step is off by a rounding.)
    """
    draw = normal(seed)

    def call(
        label: str,
        look_at: str,
        *shape: int,
        of_grad=lambda g: g,
        of_x=lambda x: x,
        mean=0.0,
        scale: float | torch.Tensor = 1.0,
        size=64.0,
        eps=1e-5,
        **kind,
    ) -> Case:
        grad_y = of_grad(draw(*shape, **kind) * size)
        x, cols = of_x(draw(*grad_y.shape, mean=mean, **kind) * size), grad_y.shape[-1]
        more = [draw(*grad_y.shape, **kind) for _ in range(tensors - 1)] + [draw(cols, **kind) for _ in range(vectors)]
        more[0] = more[0] * scale  # the gate, or the weights that scale the activation's input
        if vectors > 1:
            more[-1] = more[-1] * scale  # the bias, which is part of that input
        if x.dtype in LOW_PRECISION:
            # A variance about a point other than the mean is also right: x may be centred in two ways.
            return Case(label, (grad_y, x, *more, eps), look_at, one_rounding=True, conditioning=shift_conditioning(x))
        return Case(label, (grad_y, x, *more, eps), look_at, nearby=three_deviations)

    formula = "that result's formula, one term after another; if all results are wrong, first what they share"
    found = [call("", formula, 2, 64)]
    # With fewer rows, PyTorch's own largest error, which sets the tolerance, is a matter of luck.
    found += [
        call("", f"{BLOCK}; and {PADDING}" if cols == max(widths) else PADDING, 8, cols) for cols in sorted(widths)
    ]
    found.append(call("more rows than programs", "the loop over rows, and the sums over all of them", rows, 65))
    if many:
        more = cases.between(1050, 1200, seed)
        found.append(call("many more", "the loop over rows, and the sums over all of them", more, 33))
    for label, shape in (
        ("three dimensions", (2, 3, 65)),
        ("four dimensions", (2, 2, 3, 65)),
        ("six dimensions", (2, 1, 2, 1, 3, 65)),
        ("one dimension", (65,)),
    ):
        found.append(call(label, "the number of rows: every dimension but the last", *shape))
    found.append(call("every second column of grad_y", STRIDES, 4, 130, of_grad=lambda g: g[:, ::2]))
    found.append(call("grad_y transposed", STRIDES, 65, 65, of_grad=lambda g: g.T))
    found.append(call("grad_y of one value, expanded", STRIDES, 4, 65, of_grad=lambda g: g[:1, :1].expand(4, 65)))
    found.append(call("x transposed", STRIDES, 65, 65, of_x=lambda x: x.T))
    found.append(call("x of one row, expanded", STRIDES, 4, 65, of_x=lambda x: x[:1].expand(4, 65)))
    for place in range(2, tensors + 1):
        turned = call(f"the {PLACES[place]} transposed", STRIDES, 65, 65)
        found.append(
            replace(turned, inputs=tuple(transposed(x) if n == place else x for n, x in enumerate(turned.inputs)))
        )
        shared = call(f"the {PLACES[place]} of one row, expanded", STRIDES, 4, 65)
        shared_inputs = tuple(x[:1].expand(4, 65) if n == place else x for n, x in enumerate(shared.inputs))
        found.append(replace(shared, inputs=shared_inputs))
    found.append(call("eps 0.5", "eps: inside the square root, also in the backward pass", 8, 65, size=1.0, eps=0.5))
    found.append(call("eps 10000", "eps: inside the square root, also in the backward pass", 8, 65, eps=1e4))
    for eps in (1e-12, 0.0):
        told = "eps: the one that the function is given, 0 too"
        found.append(call(f"eps {eps:g} and small values", told, 8, 65, size=1e-4, eps=eps))
    found.append(
        call(
            "mean 1000", "the row's mean and deviation: which values they are computed from", 8, 65, size=1.0, mean=1e3
        )
    )
    far = torch.logspace(2, 4, 65, device=draw(1).device)
    found.append(call("gate far from 0", "the activation far from 0, where its gate is 0 or 1", 2, 65, scale=far))
    large = "that result's formula where gradients are large: float32 holds numbers up to 3e38"
    # Not more: an answer may multiply these by x, and by the number of columns.
    found.append(call("gradients of 1e30", large, 2, 64, of_grad=lambda g: 2.0**93 * g))
    # 2^-66 is exact: as accurate as other gradients, in proportion to the largest.
    small = "that result's formula where gradients are small: float32 holds numbers from 1e-38"
    tiny = call("gradients of 1e-20", small, 2, 64, of_grad=lambda g: 2.0**-66 * g)
    found.append(replace(tiny, least=2.0**-66))
    for label, size in (("weights of 1e-20, one 0", 2.0**-66), ("weights of 1e20", 2.0**66)):
        weights = call(label, "the weights: float32 holds numbers from 1e-38 to 3e38, and 0", 2, 64)
        weights.inputs[1 + tensors][:] *= size
        weights.inputs[1 + tensors][7] *= size > 1
        found.append(replace(weights, least=min(1.0, size)))
    equal = "the row's deviation: in a row of equal elements it is 0, and 1 / sqrt(eps) counts"
    zeros = call("a row of zeros", equal, 3, 65, eps=1e-12)
    zeros.inputs[1][1] = 0.0
    found.append(zeros)
    # After those on eps, which also decides in rows of equal elements.
    found.append(call("x of one column, expanded", STRIDES, 4, 65, of_x=lambda x: x[:, :1].round().expand(4, 65)))
    # Infinity in grad_y decides nothing: with it, sums in different orders are inf or NaN.
    for what, place, value in (
        ("NaN in one row of grad_y", 0, torch.nan),
        ("NaN in one row of x", 1, torch.nan),
        ("infinity in one row of x", 1, torch.inf),
    ):
        nan = f"what happens to {what.split()[0]}, and the tensors that rows share: weights and their gradients"
        special = call(what, nan, 4, 64)
        special.inputs[place][2, 5] = value
        found.append(special)
    for place in range(2, tensors + 1):
        nan = call(
            f"NaN in one row of the {PLACES[place]}", "what happens to NaN, and the tensors that rows share", 4, 64
        )
        nan.inputs[place][2, 5] = torch.nan
        found.append(nan)
    for vector in range(vectors):
        special = call("NaN in one column", "what happens to NaN in a tensor that rows share", 2, 64)
        special.inputs[1 + tensors + vector][5] = torch.nan
        found.append(special)
    for dtype in LOW_PRECISION:
        name = str(dtype).removeprefix("torch.")
        widen = f"{name}: load, convert to float32, compute, and round each gradient once, when it is stored"
        found.append(call(name, widen, 2, 127, dtype=dtype, size=1.0))
        sums = f"{name}: a program's sums stay in float32, and so does the tensor of sums, until the last sum is made"
        found.append(call(f"{name}, many rows", sums, 40, 33, dtype=dtype, size=1.0))
    found.append(call("float16, mean 80", WIDEN, 1, 4096, dtype=torch.float16, mean=20.0, size=4.0))
    wider = cases.between(14000, 16384, seed)
    found.append(call("a wide row", f"{BLOCK}; and {PADDING}", 4, wider))
    if wide:
        found.append(sums_that_pass_65504(draw, tensors, vectors))
    found.append(call("no rows", "the empty tensor: no row adds to the sums, and they are 0", 0, 65))
    return found


def three_deviations(reference: Callable, inputs: tuple) -> list[tuple]:
    """Return one result that is three standard deviations off, among results whose inputs each move by a random ulp.

    An answer makes many independent roundings of that size. One random draw reveals little: if a row's sums nearly
    cancel, or at the bend of an activation of large numbers, another draw may be off by several times that amount.
    """
    draw = torch.Generator().manual_seed(0)

    def moved(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        signs = 2 * torch.randint(2, x.shape, generator=draw).to(x.device) - 1
        return x.double() * (1 + signs * torch.finfo(x.dtype).eps)

    exact = as_tuple(reference(*(x.double() if isinstance(x, torch.Tensor) else x for x in inputs)))
    draws = [as_tuple(reference(*map(moved, inputs))) for _ in range(MOVES)]
    squares = [sum((each[place] - x) ** 2 for each in draws) for place, x in enumerate(exact)]
    return [tuple(x + 3 * (of_all / MOVES).sqrt() for x, of_all in zip(exact, squares, strict=True))]


def sums_that_pass_65504(draw: Callable, tensors: int, vectors: int) -> Case:
    """Return 128 fp16 rows, dealt to 8 programs so that each one gets rows of one sign: each program's sum passes
    65504, and the total doesn't."""

    def alike(rows: torch.Tensor) -> torch.Tensor:  # four rows, twice
        return rows.expand(16, 2, 4, 33).reshape(128, 33)

    signed = torch.tensor([16000.0, -15500.0])[:, None, None]
    grad_y = alike(signed.to(draw(1).device))
    rows = [alike(draw(16, 1, 4, 33)) for _ in range(tensors)]
    inputs = [each.half() for each in (grad_y, *rows, *(draw(33) / 8 for _ in range(vectors)))]
    where = "float16: a program's sums pass 65504; keep them in float32 until the last one is made, then store"
    return Case("float16, large sums", (*inputs, 1e-5), where, input_error=torch.float16)


@as_check
def check_gradcheck(answer: Callable, forward: Callable, inputs: tuple) -> str:
    """Run torch.autograd.gradcheck on `forward(x, weight, bias, eps)`, with `answer(grad_y, x, weight, bias, eps)` as
    its backward pass, in float64.

    Args:
        answer: the learner's backward pass, returning a gradient for each tensor.
        forward: the operation.
        inputs: float64 tensors, then a number that float32 can represent.
        name: the check's name.

    Raises:
        ValueError: the number changes when a kernel gets it as float32; that alone may exceed the tolerance.
    """
    names = list(inspect.signature(forward).parameters)
    *tensors, eps = inputs
    if torch.tensor(eps, dtype=torch.float32).item() != eps:
        raise ValueError(f"eps = {eps} is rounded to float32 on its way into a kernel: take a power of two, 2**-10")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return forward(*tensors, eps)

        @staticmethod
        def backward(ctx, grad_y):
            found = answer(grad_y, *ctx.saved_tensors, eps)
            if len(as_tuple(found)) != len(tensors):
                raise AnswerError(
                    f"{len(as_tuple(found))} gradients, {len(tensors)} needed", "what your function returns"
                )
            return found

    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    try:
        torch.autograd.gradcheck(Function.apply, leaves, atol=ATOL, rtol=RTOL, check_undefined_grad=False)
    except GradcheckError as error:
        which = re.search(r"with respect to input (\d+)", str(error))
        what = f"the gradient of {names[int(which[1])]}" if which else str(error).splitlines()[0]
        raise AnswerError(
            f"float64, shape {tuple(tensors[0].shape)}: gradcheck moves the inputs, and {what} disagrees",
            "the dtype of the arithmetic, float64 for float64; and the formula of that gradient, where the check of "
            "gradients has not passed",
        ) from None
    return f"gradcheck agrees in float64 on the gradients of {', '.join(names[: len(tensors)])}."


@as_check
def check_gradient_traffic(
    answer: Callable, inputs: tuple, launches: int, rest: float, widest: tuple = (), device: str = "A100"
) -> str:
    """Meter `answer(grad_y, x, ..)`: it should read both once, write x's gradient once, and move little else; the
    same at another width, and with bfloat16 inputs instead of float32, except that partial sums stay wide. With
    `widest`, that call must not spill.

    Args:
        answer: the learner's backward pass, returning x's gradient first.
        inputs: its arguments.
        launches: maximum.
        rest: allowed traffic of weights, partial sums and their sums, in units of x's bytes.
        widest: arguments for a call on the widest rows that the exercise allows.
        device: the GPU that this call is compiled for, a name in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    require_gradient_traffic(answer, inputs, launches, rest)
    for other, share, told in further_calls(inputs, least=inputs[1].shape[0]):
        with told:
            require_gradient_traffic(answer, other, launches, rest / share)
    require_no_spills_at(answer, widest, device)
    return f"grad_y and x are read once, x's gradient is written once, all else is under {rest:g} times x's bytes."


def require_gradient_traffic(answer: Callable, inputs: tuple, launches: int, rest: float) -> None:
    """Raise AnswerError if a call moves more than `check_gradient_traffic` allows."""
    traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    x, moved = inputs[1], dict(traffic.by_tensor)
    elements = x.numel()
    if traffic.launches > launches:
        raise AnswerError(
            f"{launched(traffic)}, at most {launches}",
            "your launcher: one kernel, a sum over its partial sums, a conversion; tl.load converts what it loads",
        )

    def refuse(what: str, look_at: str) -> None:
        raise AnswerError("\n".join([what, *lines_of(traffic, elements)]), look_at)

    for name in list(inspect.signature(answer).parameters)[:2]:
        read = moved.pop(name).read if name in moved else 0
        if read != x.nbytes:
            refuse(
                f"{name} is read {read / x.nbytes:.3g} times, once needed",
                "the loads above: use the variable that already holds the value",
            )
    of_result = moved.pop("result[0]", None)
    if of_result is None or of_result.written != x.nbytes or of_result.read:
        times = of_result.total / x.nbytes if of_result else 0
        refuse(f"the gradient of x is moved {times:.3g} times, written once needed", "the stores above")
    others = sum(each.total for each in moved.values())
    if others > rest * x.nbytes:
        refuse(
            f"all but grad_y, x and x's gradient: {others / x.nbytes:.2f} times x's bytes, at most {rest:g}",
            "the partial sums: a program takes many rows, and stores one row of sums",
        )


@as_check
def check_repeats(answer: Callable, inputs: tuple) -> str:
    """Check that `answer(*inputs)` returns the same bits when its programs run in reverse order.

    A GPU chooses its own order, so if there is one, the answer is called repeatedly instead.
    """
    with outputs_start_as_nan():
        results = [as_tuple(answer(*inputs))]
        if runtime.has_gpu():
            results += [as_tuple(answer(*inputs)) for _ in range(RUNS - 1)]
        else:
            with last_program_first():
                results.append(as_tuple(answer(*inputs)))
    for number, each in enumerate(zip(*results, strict=True), start=1):
        which = f"result {number} of {len(results[0])}"
        if missing := int(each[0].isnan().sum()):
            raise AnswerError(
                f"{which} has {missing} elements that are NaN, or were never written", "the grid and the stores"
            )
        differ = sum(int((other != each[0]).sum()) for other in each[1:])
        if differ:
            raise AnswerError(
                f"{which} depends on the order of the programs: {differ} elements differ",
                "where programs share memory, by tl.atomic_add or by reading each other's results: give each its own",
            )
    return "the same bits, whatever the order of the programs."


@contextmanager
def last_program_first() -> Iterator[None]:
    """Make the interpreter run the programs of a launch in reverse order."""
    in_order = runtime._in_order

    def backwards(grid):
        return reversed(list(in_order(grid)))

    with mock.patch.object(runtime, "_in_order", backwards):
        yield


def runs_backwards() -> bool:
    """Return whether programs currently run in reverse order, so that a launch in another process can do the same."""
    return runtime._in_order.__name__ == "backwards"
