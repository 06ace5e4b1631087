"""Check that a kernel's launch settings leave enough registers, and enough warps per SM."""

from collections.abc import Callable, Iterable

from helpers.instruments.occupancy_calculator import MAX_REGISTERS, WARP
from helpers.instruments.resources import Resources
from helpers.learning.checks.compiled_code import check_widths
from helpers.learning.outcome import AnswerError, as_check


@as_check
def check_budget(
    answer: Callable,
    compiled: Callable,
    tile: Callable,
    questions: Iterable,
    settings: tuple[str, ...],
    devices: tuple[str, ...],
    occupancy: float = 0.5,
    wide: bool = False,
) -> str:
    """Compile a kernel with the settings that `answer` returns: no spills, and the minimum occupancy on each device.

    Args:
        answer: the learner's function: a question -> the kernel's settings, {name: power of two}.
        compiled: (question, settings, device) -> Resources, or ValueError for settings that cannot work. tile:
            (question, settings) -> the number of elements in one program.
        questions: simplest first.
        settings: the expected names, including num_warps.
        devices: names in helpers.instruments.devices.DEVICES.
        occupancy: the minimum share of an SM's warps, 0 to 1.
        wide: whether every load and store must move 16 bytes per thread.
        name: the check's name.
    """
    questions = list(questions)
    for question in questions:
        chosen = answer(question)
        asked = f"{answer.__name__}({question}) = {chosen}"
        require_settings(chosen, settings, asked)
        numbers = tile(question, chosen) / (WARP * chosen["num_warps"])
        if numbers > MAX_REGISTERS:  # the compiler would work on it for minutes
            raise AnswerError(
                f"{asked}: {numbers:g} elements per thread, which has {MAX_REGISTERS} registers at most",
                "the tile, and the warps that share it",
            )
        for device in devices:
            try:
                resources = compiled(question, chosen, device)
            except ValueError as error:
                raise AnswerError(f"{asked}: {error}", "the settings") from None
            require_resources(resources, occupancy, asked)
            if wide:
                require_wide_accesses(resources, asked)
    return f"no spills and at least {occupancy:.0%} occupancy on {' and '.join(devices)}, {len(questions)} times."


def require_settings(chosen: object, names: tuple[str, ...], asked: str) -> None:
    """Raise AnswerError unless settings are a dictionary of the expected names, each a power of two."""
    if not isinstance(chosen, dict) or set(chosen) != set(names):
        wanted = ", ".join(f"{name!r}: .." for name in names)
        raise AnswerError(f"{asked}: expected {{{wanted}}}", "what your function returns")
    for name, value in chosen.items():
        if type(value) is not int or value < 1 or value & (value - 1):
            raise AnswerError(f"{asked}: {name} is {value!r}, not a whole power of two", f"how {name} is made")
    if chosen["num_warps"] > 32:
        raise AnswerError(f"{asked}: a block has 32 warps at most", "how num_warps is made")


def require_wide_accesses(resources: Resources, asked: str) -> None:
    """Raise AnswerError if a load or store moves less than 16 bytes per thread."""
    try:
        check_widths(resources)
    except AnswerError as error:
        raise AnswerError(f"{asked}: {error}", error.look_at) from None


def require_resources(resources: Resources, least: float, asked: str) -> None:
    """Raise AnswerError if registers spill or too few warps fit on an SM."""
    found, device = resources.occupancy(), resources.device.name
    needs = f"{resources.registers} registers per thread, {resources.shared_memory} B of shared memory per block"
    if resources.spill_bytes:
        raise AnswerError(
            f"{asked}: spills {resources.spill_bytes} B on {device}; {needs}",
            "the tile, and the warps that share it: fewer elements per thread need fewer registers",
        )
    if found.fraction < least:
        raise AnswerError(
            f"{asked}: {found.fraction:.0%} occupancy on {device}, {least:.0%} needed; {needs}\n{found}",
            f"what limits it: {' and '.join(found.limiters)}",
        )
