"""Choose between an operation's plain kernel and the tuned kernels in kernels/tuned/.

An operation's own file launches its plain kernel. Files in kernels/tuned/ register faster kernels for some calls:

    @tuned("softmax", "forward", takes=_takes, gain="1.22x at 4096 x 32768, 2.3x at 4096 x 50257 (H200, bf16)")
    def _forward(x): ...

`takes` and the decorated function accept the plain function's arguments, and the decorated function returns the same
results. On a GPU, a call runs the first tuned kernel whose `takes` returns True, or else the plain kernel. When kernels
are interpreted, the plain one runs, so that meters measure the code that the learner reads. `variant` overrides this
default.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels.interpreter import runtime

VARIANTS = ("plain", "tuned")
STAGES = ("forward", "training", "backward")


@dataclass(frozen=True)
class Tuned:
    """One tuned launcher, the calls it supports, and its speedup.

    Args:
        operation: its name in CATALOGUE.
        stage: "forward", "training" (a forward that also saves tensors for the backward pass) or "backward".
        takes: takes(*arguments) -> bool: whether it supports a call, given the plain function's arguments.
        launch: launch(*arguments) -> the plain function's results.
        gain: the recorded speedup over the plain kernel, with shapes and GPU.
        compile_arguments: compile_arguments(*shape, dtype=) -> the (kernel, arguments, options) of a launch at that
            shape on an H200, or None if it does not support the shape. For compiling without launching.
    """

    operation: str
    stage: str
    takes: Callable[..., bool]
    launch: Callable
    gain: str
    compile_arguments: Callable | None = None


TUNED: dict[tuple[str, str], list[Tuned]] = {}
_variant: str | None = None  # None: tuned on a GPU, plain when interpreted


def tuned(operation: str, stage: str, *, takes: Callable[..., bool], gain: str, compile_arguments=None) -> Callable:
    """Register the decorated launcher for a stage of an operation; see Tuned for the arguments.

    Launchers are tried in order of registration. To serve two stages, decorate a launcher twice.
    """
    if stage not in STAGES:
        raise ValueError(f"tuned takes one of the stages {', '.join(STAGES)}, got {stage!r}")

    def add(launch: Callable) -> Callable:
        entry = Tuned(operation, stage, takes, launch, gain, compile_arguments)
        TUNED.setdefault((operation, stage), []).append(entry)
        return launch

    return add


@contextlib.contextmanager
def variant(name: str) -> Iterator[None]:
    """Select the kernels for calls inside this context: "plain", or "tuned" wherever a tuned kernel supports the call.

    The default is tuned on a GPU and plain when kernels are interpreted. The choice applies to the whole process,
    because autograd runs backward passes in its own threads.

    Raises:
        ValueError: the name is unknown.
    """
    global _variant
    if name not in VARIANTS:
        raise ValueError(f"kernels.variant takes 'plain' or 'tuned', got {name!r}: choose one")
    before, _variant = _variant, name
    try:
        yield
    finally:
        _variant = before


def chosen_variant() -> str:
    """Return the current variant: "plain" or "tuned"."""
    return _variant or ("plain" if runtime.interprets() else "tuned")


@functools.cache
def tuned_kernels() -> dict[tuple[str, str], list[Tuned]]:
    """Load kernels/tuned/ and return its launchers by (operation, stage)."""
    importlib.import_module("kernels.tuned")
    return TUNED


def tuned_for(operation: str, stage: str, arguments: tuple) -> Tuned | None:
    """Return the first tuned launcher that supports the call, regardless of the variant, or None if there is none."""
    for entry in tuned_kernels().get((operation, stage), ()):
        if entry.takes(*arguments):
            return entry
    return None


def kernel_at(op, *shape: int, dtype) -> tuple:
    """Return the (kernel, arguments, options) that a forward call of `op`, a FusedOp, launches at this shape on an
    H200."""
    for entry in tuned_kernels().get((op.name, "forward"), ()):
        if entry.compile_arguments is not None and (found := entry.compile_arguments(*shape, dtype=dtype)):
            return found
    return op.kernel_for(*shape), *op.compile_arguments(*shape, dtype=dtype)


def by_variant(operation: str, stage: str, plain: Callable) -> Callable:
    """Return a function with plain's signature that launches the kernel that the variant and the arguments select."""

    @functools.wraps(plain)
    def launch(*arguments):
        found = tuned_for(operation, stage, arguments) if chosen_variant() == "tuned" else None
        return (plain if found is None else found.launch)(*arguments)

    return launch
