"""The puzzles of lesson 18: programs that wait for each other and must be right in any order a GPU may run them."""

import textwrap
from collections.abc import Callable

import torch
from triton.runtime.errors import InterpreterError

from helpers.instruments import check_orders
from helpers.learning.display_text import Unquoted

ORDERS, WIDTH = 20, 96


def order_puzzle(call: Callable, *inputs: torch.Tensor, wanted: torch.Tensor) -> Unquoted:
    """Run a call with the programs of its cooperative launches in several orders; report deadlocks, races and wrong
    values.

    Args:
        call: launches the reader's kernel and returns its result, of wanted's shape.
        inputs: its tensors.
        wanted: the right result.

    Returns:
        Text that begins with "Solved" or "Not yet".
    """
    results = []

    def kept(*given):
        results.append(call(*given))
        return results[-1]

    try:
        hazards = check_orders(kept, *inputs, orders=ORDERS)
    except InterpreterError as error:
        return _wrapped(f"Not yet: {error}")
    wrong = sum(not torch.allclose(y, wanted, rtol=1e-5, atol=1e-6) for y in results)
    if wrong:
        found = f"; {hazards[0]}" if hazards else ""
        return _wrapped(f"Not yet: wrong values in {wrong} of {ORDERS} orders{found}")
    if hazards:
        return _wrapped(f"Not yet: right values by luck; {hazards[0]}")
    return _wrapped(f"Solved: right values and no race in {ORDERS} orders")


def _wrapped(text: str) -> Unquoted:
    return Unquoted("\n".join(textwrap.wrap(text, WIDTH)))
