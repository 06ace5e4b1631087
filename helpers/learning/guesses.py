"""Predictions before measurements: a question, the learner's guess, and the measurement."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anywidget
from traitlets import Bool, Int, Unicode

from helpers.learning.display_text import Unquoted, number
from helpers.learning.parse_guess import number_in
from helpers.learning.saved_guesses import KeptGuess, keep, kept_in, notebook_here
from helpers.style import css

if TYPE_CHECKING:  # figures need matplotlib; a lesson's first cell, which asks a question, shouldn't wait for it
    from helpers.figures.frame.chart import Chart
    from helpers.figures.frame.explorer import Explorer
    from helpers.figures.frame.guess_mark import MarkedChart
    from helpers.instruments.tables import Table

FINDING_WIDTH = 96  # characters: a cell shows 100 at 1024 pixels
_HERE = Path(__file__).parent
_predictions: dict[str, Guess] = {}


class GuessField(anywidget.AnyWidget):
    """The input field in the browser and the text under it. `heard` answers each `turn` from the browser."""

    _esm = _HERE / "guess.js"
    _css = css(_HERE / "guess.css")
    question = Unicode().tag(sync=True)
    unit = Unicode().tag(sync=True)
    typed = Unicode().tag(sync=True)
    said = Unicode().tag(sync=True)
    picture = Unicode().tag(sync=True)
    readable = Bool(True).tag(sync=True)
    found = Bool(False).tag(sync=True)
    turn = Int().tag(sync=True)
    heard = Int().tag(sync=True)


class Guess:
    """A question with an input field; `compare` shows the guess next to the measurement."""

    def __init__(self, question: str, unit: str):
        self.question, self.unit = question, unit
        self.measured = None
        self._marks: dict[tuple, Callable[[], None]] = {}
        kept = kept_in(notebook_here()).get(question)
        self._field = GuessField(question=question, unit=unit, typed=kept.typed if kept else "")
        self._field.observe(self._hear, ["typed", "turn"])
        self._show()

    @property
    def guess(self) -> float | None:
        """The number in the field; None if it's empty or not a number."""
        return self._read()[0]

    def _read(self) -> tuple[float | None, str]:
        """Return the number, and the question to ask about the typed text."""
        try:
            return number_in(self._field.typed, self.unit), ""
        except ValueError as error:
            return None, str(error)

    def compare(self, measured: float, finding: str = "") -> str:
        """Store the measurement and return one line that compares it with the guess; the field shows both on a scale.

        Args:
            measured: in the question's unit.
            finding: shown below, wrapped: an explanation, or "Verdict: ..." on a claim. Prose that would
                give the answer away belongs here, because a notebook folds this output until the guess.
        """
        self.measured = measured
        self._show()
        self._keep()
        lines = [f"{self.question}: {self._line()}", *textwrap.wrap(finding, FINDING_WIDTH)]
        return Unquoted("\n".join(lines))

    def on(
        self,
        shown: Chart | Explorer,
        axis: str,
        at: Callable[[float], float] = float,
        panel: int = 0,
        row: int | None = None,
        says: Callable[[float], str] | None = None,
    ) -> MarkedChart | Explorer:
        """Mark the guess on the chart, and move the mark whenever the guess changes; without a guess, leave the chart
        as it is.

        Args:
            shown: a chart or an explorer on which the answer is a value of an axis.
            axis: "x" or "y".
            at: converts the question's unit to the axis's.
            panel: which of the chart's axes, from 0.
            row: the guess's horizontal bar, from 0; without it, all.
            says: puts the axis value in words, if the axis has a different unit.

        Raises:
            ValueError: `axis` is neither.
        """
        from helpers.figures.frame.chart import Chart
        from helpers.figures.frame.guess_mark import GuessMark, MarkedChart

        marked = MarkedChart(shown) if isinstance(shown, Chart) else shown

        def mark() -> None:
            guess = self.guess
            said = None
            with contextlib.suppress(ZeroDivisionError):  # "0 times as fast" is not on an axis of times
                if guess is not None:
                    text = _you_said(guess, self.unit) + (f": {says(at(guess))}" if says else "")
                    said = GuessMark(text, axis, at(guess), panel, row)
            marked.mark(said)

        # If the cell that shows a chart runs again, it replaces the mark.
        self._marks[type(shown), repr(shown) if isinstance(shown, Chart) else axis, panel] = mark
        mark()
        return marked

    def _line(self) -> str:
        guess, asked = self._read()
        if asked:
            return f"{number(self.measured)} {self.unit}".rstrip() + f"; your guess: {asked}"
        return _beside(guess, self.measured, self.unit)

    def _hear(self, _change) -> None:
        self._show()
        self._keep()
        self._field.heard = self._field.turn

    def _show(self) -> None:
        guess, asked = self._read()
        field = self._field
        with field.hold_sync():
            field.readable, field.found = not asked, self.measured is not None
            if self.measured is not None:
                from helpers.figures.frame.predicted_vs_measured import predicted_vs_measured

                field.said = self._line()
                field.picture = "" if guess is None else predicted_vs_measured(guess, float(self.measured), self.unit)
            elif asked or guess is None:
                field.said, field.picture = asked, ""
            else:
                field.said, field.picture = f"You say {number(guess)} {self.unit}".rstrip() + ".", ""
        for mark in self._marks.values():
            mark()

    def _keep(self) -> None:
        found = None if self.measured is None else float(self.measured)
        keep(notebook_here(), self.question, KeptGuess(self._field.typed, self.guess, found, self.unit))

    def _repr_mimebundle_(self, include=None, exclude=None):
        return dict(self._field._repr_mimebundle_()[0]) | {"text/plain": f"{self.question}: [your guess] {self.unit}"}


def _you_said(guess: float, unit: str) -> str:
    return f"you said {number(guess)} {unit}".rstrip()


def _beside(guess: float | None, measured: float, unit: str) -> str:
    found = f"{number(measured)} {unit}".rstrip()  # what is measured, counted or computed
    if guess is None:
        return f"{found}; you made no guess"
    if guess == measured or (measured and abs(guess / measured - 1) < 0.02):
        return f"{found}, as you said"
    if guess > 0 and measured > 0:
        ratio = max(guess, measured) / min(guess, measured)
        way = "high" if guess > measured else "low"
        return f"{found}; you said {number(guess)}, too {way} by a factor of {_ratio(ratio)}"
    return f"{found}; you said {number(guess)}"


def _ratio(ratio: float) -> str:
    """Format with three digits and thousands separators: "1.67", "1,150,000"."""
    return f"{float(f'{ratio:.3g}'):,.10g}"


def predict_first(question: str, unit: str) -> Guess:
    """Ask for a guess before an instrument gives the answer. As the last expression of a cell, it shows the field.

    If the cell runs again, the question keeps its guess; in a notebook that Jupyter runs, also across restarts.
    """
    if question not in _predictions:
        _predictions[question] = Guess(question, unit)
    return _predictions[question]


def predictions() -> Table:
    """Return all questions of this notebook so far, with guess and measurement; a notebook also shows how far off each
    guess was."""
    from helpers.figures.frame.predicted_vs_measured import guesses_table

    asked = [(each.question, each.guess, each.measured, each.unit) for each in _predictions.values()]
    return guesses_table(asked, number)
