"""Predictions before measurements: a question, the learner's guess, what was found."""

import ipywidgets as widgets

from helpers.learning.lines import Unquoted, number

_predictions: dict[str, "Guess"] = {}


class Guess:
    """A question with a field for the learner's guess, which `compare` sets beside the measurement."""

    def __init__(self, question: str, unit: str):
        self.question, self.unit = question, unit
        self.measured = None
        self._field = widgets.Text(placeholder="your guess", layout=widgets.Layout(width="10em"))
        self._field.add_class("fusion-prediction")
        self._box = widgets.HBox([widgets.Label(f"{question}:"), self._field, widgets.Label(unit)])

    @property
    def guess(self) -> float | None:
        """The number in the field; None where it is empty.

        Raises:
            ValueError: something that is not a number stands in it.
        """
        text = self._field.value.strip().replace(",", "")
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number: type one such as 12 or 0.5, without the unit") from None

    def compare(self, measured: float) -> str:
        """Keep the measurement and return one line that sets the guess beside it."""
        self.measured = measured
        return Unquoted(f"{self.question}: {_beside(self.guess, measured, self.unit)}")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return dict(self._box._repr_mimebundle_()) | {"text/plain": f"{self.question}: [your guess] {self.unit}"}


def _beside(guess: float | None, measured: float, unit: str) -> str:
    found = f"{number(measured)} {unit}".rstrip()  # what is measured, counted or computed
    if guess is None:
        return f"{found}; you made no guess"
    if guess == measured or (measured and abs(guess / measured - 1) < 0.02):
        return f"{found}, as you said"
    if guess > 0 and measured > 0:
        ratio = max(guess, measured) / min(guess, measured)
        return f"{found}; you said {number(guess)}, {ratio:.3g} times too {'many' if guess > measured else 'few'}"
    return f"{found}; you said {number(guess)}"


def predict_first(question: str, unit: str) -> Guess:
    """Ask for a guess before an instrument answers; the last expression of a cell shows the field.

    Asked again (the cell run a second time), the same question keeps its guess.
    """
    return _predictions.setdefault(question, Guess(question, unit))


def predictions() -> str:
    """All questions of this notebook so far, as a table: guessed, found."""
    rows = []
    for prediction in _predictions.values():
        guess = "-" if prediction.guess is None else number(prediction.guess)
        measured = "-" if prediction.measured is None else number(prediction.measured)
        rows.append((prediction.question, guess, measured, prediction.unit))
    rows.insert(0, ("question", "you said", "found", "unit"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return Unquoted(
        "\n".join(
            f"{question:{widths[0]}}  {guess:>{widths[1]}}  {measured:>{widths[2]}}  {unit}".rstrip()
            for question, guess, measured, unit in rows
        )
    )
