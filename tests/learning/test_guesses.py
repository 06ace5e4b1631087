"""A guess is kept, and set beside what was found."""

import pytest

from helpers.learning import guesses
from helpers.learning.guesses import Guess, predict_first, predictions


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch):
    monkeypatch.setattr(guesses, "_predictions", {})


def guessed(text: str, unit: str = "MB") -> Guess:
    prediction = predict_first("bytes", unit)
    prediction._field.value = text
    return prediction


@pytest.mark.parametrize(
    ("guess", "measured", "line"),
    [
        ("", 20, "bytes: 20 MB; you made no guess"),
        ("20", 20, "bytes: 20 MB, as you said"),
        (" 12,000 ", 12_100, "bytes: 12,100 MB, as you said"),
        ("12", 20, "bytes: 20 MB; you said 12, 1.67 times too few"),
        ("40", 20, "bytes: 20 MB; you said 40, 2 times too many"),
        ("0", 20, "bytes: 20 MB; you said 0"),
        ("1", 0, "bytes: 0 MB; you said 1"),
        ("-3", 20, "bytes: 20 MB; you said -3"),
    ],
)
def test_a_guess_beside_what_was_found(guess, measured, line):
    assert repr(guessed(guess).compare(measured)) == line


def test_a_guess_that_is_no_number():
    with pytest.raises(ValueError, match="'lots' is not a number: type one such as"):
        guessed("lots").compare(20)


def test_the_same_question_keeps_its_guess_and_the_table_has_all():
    guessed("12").compare(20)
    assert predict_first("bytes", "MB").guess == 12
    predict_first("speed-up of it", "times")
    assert repr(predictions()).splitlines() == [
        "question        you said  found  unit",
        "bytes                 12     20  MB",
        "speed-up of it         -      -  times",
    ]


def test_a_question_shows_as_text_where_no_widget_runs():
    assert predict_first("bytes", "MB")._repr_mimebundle_()["text/plain"] == "bytes: [your guess] MB"
