"""Hints that are given one at a time, on asking."""

import html
from dataclasses import dataclass

from helpers.learning.outcome import ERROR, FAIL, PASS, latest
from helpers.style import PURPLE


@dataclass(frozen=True)
class Hint:
    """A hint as Jupyter shows it."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<div style="border-left: 4px solid {PURPLE}; padding: 0.2em 0.8em">{html.escape(self.text)}</div>'


class Hints:
    """The hints of an exercise: `hint(1)`, then `hint(2)`, for the check that failed last.

    Args:
        hints: for each check, in their order, its hints from the vaguest to the plainest.
    """

    def __init__(self, **hints: tuple[str, ...]):
        self.hints = hints

    def __repr__(self) -> str:
        return "Stuck? Run hint(1) in a cell of your own, then hint(2)."

    def __call__(self, number: int | str = 1, check: str | None = None) -> Hint:
        """Return hint `number`, from 1, on `check`; by default on the check that failed last, or else on the first not
        passed yet. `hint("traffic")` is the first on that one."""
        if isinstance(number, str):
            number, check = 1, number
        if check is None:
            seen = [name for name, outcome in latest.items() if name in self.hints and outcome.state in (FAIL, ERROR)]
            left = [name for name in self.hints if name not in latest or latest[name].state != PASS]
            check = next(iter([*reversed(seen), *left]), None)
        if check is None:
            return Hint("Every check here has passed.")
        if check not in self.hints:
            raise ValueError(f"there is no check {check!r}; there are: {', '.join(self.hints)}")
        hints = self.hints[check]
        if not isinstance(number, int) or not 1 <= number <= len(hints):
            return Hint(f"{check}: its hints are hint(1) to hint({len(hints)}).")
        return Hint(f"{check}, hint {number} of {len(hints)}: {hints[number - 1]}")
