"""Check that a CUDA C++ kernel is right, safe and economical, by compiling and running the text of the answer."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable

import torch

from helpers.instruments.cuda.kernel import CudaKernel, cuda_kernel
from helpers.instruments.occupancy_calculator import WARP
from helpers.instruments.traffic import Traffic, measure
from helpers.learning.checks import cases
from helpers.learning.checks.values import bits, described_difference, differs
from helpers.learning.outcome import AnswerError, as_check

ROWS = 3
LARGE = 2**20  # rows of 8192 columns: 2^33 elements, in float4 2^31
LARGE_COLUMNS = (8192, 8191)  # read four at a time, and one at a time
FAR_BELOW_ZERO = 200  # e^-200 is 0 in fp32
LOWER_STILL = -(2.0**127)  # below what a maximum may start at by mistake, such as -10000 or -1e30
MAX_THREADS = 1024
MAX_SOURCE = 20_000  # characters
MAX_LINES_SHOWN = 12  # of the compiler's messages
NAME = re.compile(r"\w{1,60}(<[\w ,]{1,60}>)?")
KEYS = {"source", "kernel", "threads"}
FIRST_WRONG = "the first element that differs: its row's maximum, its sum, and the values of threads past its end"
OF_NAN = (
    "where the NaN comes from: an exponential that overflows, inf / inf, 0 / 0, or -inf - -inf where a thread has no "
    "element of the row"
)
softmax_of_rows = functools.partial(torch.softmax, dim=-1)


def exponentials(x: torch.Tensor, base: float = torch.e) -> torch.Tensor:
    return base ** (x - x.max(dim=-1, keepdim=True).values)


UNLIKE: dict[str, Callable] = {
    "the formula without the division by the sum": exponentials,
    "the formula with 2^x for e^x": lambda x: exponentials(x, 2.0) / exponentials(x, 2.0).sum(dim=-1, keepdim=True),
}


@as_check
def check_cuda_rows(answer: Callable, reference: Callable, columns: Iterable[int], scales: Iterable[float]) -> str:
    """Run the kernel with one block per row and compare it with `reference`, to within twice PyTorch's own error.

    Args:
        answer: the learner's function: columns -> {"source", "kernel", "threads"}; the kernel takes
            (const float* x, float* y, int columns), x and y of (rows, columns).
        reference: x -> y.
        columns: the widths to try, simplest first; some that are drawn at random follow.
        scales: of x, which is drawn from the normal distribution: each is tried. The last row is below -200; where x is
            scaled, the second holds one value, far lower still, a fourth NaN, or infinity, and a fifth -inf alone.
        name: the check's name.
    """
    widths = list(columns)
    asked = [*itertools.product(widths, scales), *((width, 1.0) for width in drawn_widths(sum(widths)))]
    for width, scale in asked:
        traffic, x, y = run(answer, width, scale)
        require_no_cuda_hazards(traffic, width, ("out-of-bounds", "misaligned"))
        require_right_values(traffic, x, y, reference, f"{width} columns, x of deviation {scale:g}")
    return f"right on rows of {', '.join(map(str, widths))}."


def drawn_widths(seed: int) -> list[int]:
    """Widths that no bound of an answer can know: narrow ones, and wide ones that leave 0, 1 or 3, and 2 modulo 4."""

    def four(low: int, high: int, place: int) -> int:
        return 4 * cases.between(low, high, seed + place)

    narrow = [cases.between(2, 31, seed), cases.between(104, 999, seed)]
    odd = four(270, 2046, 2) + cases.between(0, 1, seed) * 2 + 1
    return [*narrow, four(270, 524, 0), four(1030, 2047, 1), odd, four(270, 2046, 3) + 2, four(525, 1020, 4)]


@as_check
def check_cuda_memory_safety(answer: Callable, columns: Iterable[int], reference: Callable = softmax_of_rows) -> str:
    """Run the kernel under the sanitizer: no race, no wrong mask, nothing out of bounds or misaligned; and finally on
    the last rows of a tensor of 2^33 elements that is never allocated.

    Args:
        answer, columns, reference: as in check_cuda_rows, two of the drawn widths included; a kernel that computes
            something else earns nothing.
        name: the check's name.
    """
    widths = list(columns)
    for width in [*widths, *drawn_widths(sum(widths))[-2:]]:
        traffic, x, y = run(answer, width)
        require_no_cuda_hazards(traffic, width)
        require_right_values(traffic, x, y, reference, f"{width} columns")
    for width in LARGE_COLUMNS:
        require_large_offsets(answer, reference, width)
    return f"the sanitizer found nothing on rows of {', '.join(map(str, widths))}."


@as_check
def check_cuda_traffic(answer: Callable, columns: Iterable[int], reference: Callable = softmax_of_rows) -> str:
    """Meter the kernel: it should be one launch that reads x once and writes y once, without bank conflicts.

    Args:
        answer, columns, reference: as in check_cuda_memory_safety.
        name: the check's name.
    """
    for width in columns:
        traffic, x, y = run(answer, width)
        require_no_cuda_hazards(traffic, width, ("out-of-bounds", "misaligned"))  # past a row's end is the next row
        for what, moved in (("read", traffic.bytes_read), ("written", traffic.bytes_written)):
            if moved != x.nbytes:
                raise AnswerError(
                    f"{width} columns: {moved / x.nbytes:.3g} times the row is {what}, once is enough",
                    "where the row is kept between one loop and the next",
                )
        if traffic.bank_conflicts:
            raise AnswerError(
                f"{width} columns: {traffic.bank_conflicts} bank conflicts in {traffic.shared_requests} requests",
                "which words of shared memory the lanes of a warp ask for together",
            )
        require_right_values(traffic, x, y, reference, f"{width} columns")
    return "x is read once, y is written once, no bank conflicts."


@as_check
def check_cuda_code(
    answer: Callable, columns: Iterable[int], device: str = "H100", reference: Callable = softmax_of_rows
) -> str:
    """Compile the kernel: everything should be in registers, with 16 bytes per load and store if the rows allow it.

    Args:
        answer, columns, reference: as in check_cuda_memory_safety; four widths that are drawn at random follow, all
            of them multiples of four, and two of them of a warp's four numbers per lane.
        device: a name in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    widths = list(columns)
    # No answer can know these: one up to 4096 and one above, then two that leave a warp partly idle at each row's end.
    drawn = [
        unit * (2 * cases.between(*bounds, sum(widths)) + 1)
        for unit, *bounds in ((4 * WARP, 5, 15), (4 * WARP, 16, 31), (4, 16, 120), (4, 260, 1000))
    ]
    for width in [*widths, *drawn]:
        chosen, kernel = compiled(answer, width, device)
        need = kernel.resources_for(chosen["threads"])
        if need.spill_bytes or need.stack:
            raise AnswerError(
                f"{width} columns: {need.spill_bytes} B spilled, {need.stack} B of stack per thread: "
                "values in memory that should be in registers",
                "arrays whose index the compiler does not know, and how many numbers a thread holds",
            )
        if width % 4 == 0 and not (need.instructions["LDG.128"] and need.instructions["STG.128"]):
            raise AnswerError(
                f"{width} columns: no load or no store moves 16 bytes per thread, though every row is aligned",
                "float4, or a struct of four floats with alignas(16)",
            )
        traffic, x, y = launched(chosen, kernel, width)
        require_right_values(traffic, x, y, reference, f"{width} columns")
        if width % 4 == 0:
            require_wide_accesses(traffic, x, width)
    return "no spills, no stack, wide loads where rows are aligned."


def require_large_offsets(answer: Callable, reference: Callable, columns: int) -> None:
    """Raise AnswerError if the kernel can't reach a row past 2^31 elements."""
    chosen, kernel = compiled(answer, columns)
    traffic, x, y = launched(chosen, kernel, columns)
    require_right_values(traffic, x, y, reference, f"{columns} columns")
    where = f"{columns} columns, rows from {LARGE:,} on"
    remedy = "a row's first element: blockIdx.x * columns passes 2^31; write (long long)blockIdx.x * columns"
    try:
        traffic, x, y = launched(chosen, kernel, columns, after=LARGE)
    except AnswerError as error:
        raise AnswerError(f"rows from {LARGE:,} on: {error}", remedy) from None
    for hazard in traffic.hazards:
        raise AnswerError(f"{where}: {hazard}", remedy)
    require_right_values(traffic, x, y, reference, where, remedy)


def require_wide_accesses(traffic: Traffic, x: torch.Tensor, width: int) -> None:
    """Raise AnswerError if warps make more requests than they need at 16 bytes per lane, whatever else is in the
    binary."""
    requests = sum(line.requests for line in traffic.by_line.values())
    least = -(-2 * x.nbytes // (16 * WARP))  # x loaded and y stored
    # At the end of a row, warps may be partly idle. If x alone moves 4 bytes per thread, the factor is 2.5.
    if requests > (2 if width % (4 * WARP) else 1.25) * least:
        raise AnswerError(
            f"{width} columns: {requests} loads and stores of a warp ran, {least} are enough with 16 bytes per thread",
            "which of the loads and stores run: each of them should move a float4",
        )


def compiled(answer: Callable, width: int, device: str = "H100") -> tuple[dict, CudaKernel]:
    """Return the answer for a given width, and its kernel."""
    chosen = answer(width)
    if not isinstance(chosen, dict) or set(chosen) != KEYS:
        raise AnswerError(
            f"{answer.__name__}({width}) gave {str(chosen)[:60]!r}, expected "
            '{"source": .., "kernel": .., "threads": ..}',
            "what your function returns",
        )
    source, name, threads = chosen["source"], chosen["kernel"], chosen["threads"]
    if not isinstance(source, str) or len(source) > MAX_SOURCE:
        raise AnswerError(f"the source is a string of at most {MAX_SOURCE:,} characters", "source")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise AnswerError(f"{str(name)[:60]!r} is not a kernel's name: write softmax or softmax<4>", "kernel")
    if type(threads) is not int or threads % 32 or not 32 <= threads <= MAX_THREADS:
        raise AnswerError(f"threads is {threads!r}: expected whole warps, 32 to {MAX_THREADS}", "threads")
    short = name.partition("<")[0]
    if not re.search(rf"\b{short}\b", source):
        raise AnswerError(f"there is no kernel {short!r} in the source", 'kernel: the name after "__global__ void"')
    try:
        # During grading, a submission's text is compiled and launched in a process that holds nothing else.
        return chosen, getattr(answer, "cuda_kernel", cuda_kernel)(source, name, device=device)
    except ValueError as error:
        told = "\n".join(str(error).splitlines()[:MAX_LINES_SHOWN])
        raise AnswerError(told, "the line that the compiler names") from None


def run(answer: Callable, width: int, scale: float = 1.0) -> tuple[Traffic, torch.Tensor, torch.Tensor]:
    """Launch the answer for a given width."""
    return launched(*compiled(answer, width), width, scale)


def launched(
    chosen: dict, kernel: CudaKernel, width: int, scale: float = 1.0, after: int = 0
) -> tuple[Traffic, torch.Tensor, torch.Tensor]:
    """Meter one launch on rows of a given width, skipping the first `after` rows: (traffic, x, y)."""
    generator = torch.Generator().manual_seed(1000 * cases.draw + width)
    x = scale * torch.randn(ROWS, width, generator=generator)
    x[-1] -= x[-1].max() + FAR_BELOW_ZERO  # for this row, a maximum that starts at 0 is wrong
    if scale != 1:
        x[1] = LOWER_STILL  # a single value, so that scaling the exponent loses no digits, however it's done
        unknown = torch.randn(2, width, generator=generator)
        unknown[0, width // 2] = torch.nan if scale > 1 else torch.inf
        unknown[1] = -torch.inf
        x = torch.cat([x, unknown])
    seen, y = x.clone(), torch.full_like(x, torch.nan)
    try:
        traffic = measure(kernel[after + len(x), chosen["threads"]].after(after), seen, y, width)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise AnswerError(f"{width} columns: {error}", "the kernel's parameters, its loops and barriers") from None
    if not torch.equal(bits(seen), bits(x)):
        raise AnswerError(f"{width} columns: x was changed", "what your kernel stores to: only y")
    return traffic, x, y


def require_right_values(
    traffic: Traffic, x: torch.Tensor, y: torch.Tensor, reference: Callable, where: str, look_at: str = ""
) -> None:
    """Raise AnswerError if y is further from the reference than twice PyTorch's own error."""
    expected = reference(x)
    exact = reference(x.double())
    wrong = differs(y, exact, expected) | lost(y, x, exact)
    if wrong.any():
        said = f"{where}: {described_difference(y, expected, wrong)}"
        look_at = look_at or likely_place(traffic, y, expected, wrong)
        for other, formula in UNLIKE.items():
            if not differs(y, formula(x.double()), formula(x)).any():
                said = f"{said}\nthese are the values of {other}, not of the formula asked for"
                look_at = "the formula at the top of this exercise, next to yours"
                break
        raise AnswerError(said, look_at)


def likely_place(traffic: Traffic, y: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Return where to look: elements never stored, NaN, or the sum if a whole row is off by one factor."""
    missing = (y.nbytes - traffic.unique_written) // y.itemsize
    if missing > 0 and y.isnan().any():
        return f"the stores: {missing} elements of y were never written"
    row, column = wrong.nonzero()[0].tolist()
    if y[row, column].isnan():
        return OF_NAN
    seen = expected[row] > 1e-30
    factors = y[row][seen].double() / expected[row][seen].double()
    factor = factors.median().item()
    if len(factors) > 1 and 0 < factor < torch.inf and (factors / factor - 1).abs().max() < 1e-4:
        size, why = ("small", "what is missing in it") if factor > 1 else ("large", "what does not belong in it")
        return f"the sum, which is too {size}: every element of row {row} is {factor:.4g} times the right one; {why}"
    return FIRST_WRONG


def lost(y: torch.Tensor, x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return where a small probability is off by more than a rounded exponent makes it, in proportion to itself.

    The exponent and the maximum are as large as the row's numbers, and off by half an ulp each.
    """
    kind = torch.finfo(y.dtype)
    largest = x.abs().amax(dim=-1, keepdim=True).double()
    allowed = 4 * (1 + largest) * kind.eps * exact + kind.tiny  # below, GPUs may have 0
    return (largest < 2000) & ((y.double() - exact).abs() > allowed)


def require_no_cuda_hazards(traffic: Traffic, width: int, kinds: tuple[str, ...] = ("",)) -> None:
    """Raise AnswerError at the first hazard whose kind begins with one of `kinds`."""
    for hazard in traffic.hazards:
        if hazard.kind.startswith(kinds):
            raise AnswerError(f"{width} columns: {hazard}", "the line that is named")
