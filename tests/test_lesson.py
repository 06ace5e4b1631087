"""Predictions, self-tests and recorded measurements, as lessons use them."""

import pytest

from helpers.instruments.recordings import recorded
from helpers.learning import lesson
from helpers.learning.lesson import Guess, predict_first, predictions, self_test


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch):
    monkeypatch.setattr(lesson, "_predictions", {})


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


def test_self_test():
    assert "not answered yet" in self_test(..., 3, hint="count")
    assert self_test(3.001, 3, hint="count") == "right"
    assert self_test(3.1, 3, hint="count") == "not 3.1: count"
    with pytest.raises(TypeError, match="an answer is a number, got '3'"):
        self_test("3", 3, hint="count")


def test_an_experiment_reads_as_it_was_measured():
    times = recorded("h200").experiment("chain_sizes")
    assert times[2**20]["call"]["fused"].median > times[2**20]["gpu"]["fused"].median > 0


def test_recorded_figures_carry_their_provenance():
    h200 = recorded("H200")
    assert h200.label.startswith("NVIDIA H200, PyTorch ")
    assert h200.label in h200.table("add_gelu", "float32")
    assert 4e12 < h200.copy_bandwidth < 4.8e12
    assert "\n 100,000,000 " in h200.table("add_gelu", "float32")
    assert " 32768 x 4096 " in h200.table("softmax", "bfloat16")
    fused = h200.times("add_gelu", (100_000_000,), "float32")["fused"]
    assert fused.low <= fused.median <= fused.high


def test_the_recorded_add_gelu_meets_its_targets():
    """At least 97 % of the copy bandwidth at 100M fp32 elements; no slower than torch.compile at 1M and 10M."""
    h200 = recorded("h200")
    large = h200.times("add_gelu", (100_000_000,), "float32")["fused"]
    assert 12 * 100_000_000 / large.median >= 0.97 * h200.copy_bandwidth
    for elements in (2**20, 10_000_000):
        for clock in ("gpu", "call"):
            median = {
                row["provider"]: row[clock]["median"]
                for row in h200.rows
                if (row["kernel"], row["shape"], row["dtype"]) == ("add_gelu", [elements], "float32")
            }
            assert median["fused"] <= median["torch.compile"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: recorded("h200").experiment("x"), "no experiment 'x' is recorded: there are free_flops, "),
        (lambda: recorded("H300"), "nothing is recorded for H300: there is h200"),
        (lambda: recorded("h200").times("add_gelu", (3,), "float32"), r"no recorded add_gelu of \(3,\) in float32"),
    ],
)
def test_what_was_not_recorded(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
