"""Meter a call several times, with the programs of its cooperative launches in different orders."""

from collections.abc import Callable

from helpers.instruments.devices import Device
from helpers.instruments.traffic import measure
from helpers.instruments.traffic.hazards import Hazard
from kernels.interpreter import runtime


def check_orders(fn: Callable, *args, orders: int = 20, device: str | Device | None = None) -> tuple[Hazard, ...]:
    """Return the hazards found in any of several program orders, one per kernel line: races, unsynchronised
    and uninitialised reads. An empty result isn't a proof.

    The first order is the grid's own. In the others, programs of cooperative launches take turns at each atomic, and
    one whose counter has just reached its value usually continues at once.

    Args:
        fn, args, device: as `measure` takes them.
        orders: how many to try.

    Raises:
        ValueError: orders is less than 1.
        InterpreterError: a deadlock in one of them, or another error in a kernel.
    """
    if orders < 1:
        raise ValueError(f"check_orders needs orders of at least 1, got {orders}: 20 find most races")
    found = {}
    for seed in (None, *range(1, orders)):
        with runtime.ordered_by(seed):
            for hazard in measure(fn, *args, device=device).hazards:
                found.setdefault((hazard.kind, hazard.file, hazard.line), hazard)
    return tuple(found.values())
