"""An answer to a lesson's self-test is right, or gets its hint."""

import pytest

from helpers.learning import self_test
from helpers.learning.self_tests import MIME, unsealed, with_seals


def test_self_test():
    assert "not answered yet" in self_test(..., 3, hint="count")
    assert self_test(3.001, 3, hint="count") == "right"
    assert self_test(3.1, 3, hint="count") == "not 3.1: count"
    with pytest.raises(TypeError, match="an answer is a number, got '3'"):
        self_test("3", 3, hint="count")


def test_a_question_carries_its_computed_answer_sealed_for_a_page_where_nothing_runs():
    shown = self_test(..., 96 / 2, "count")._repr_mimebundle_()
    assert shown["text/plain"] == str(self_test(..., 48, "count"))
    assert "48" not in shown[MIME]["sealed"]
    assert unsealed(shown[MIME]["sealed"]) == (48, "count")


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ('answer = ...\nself_test(answer, 3, hint="one of each is left")', ["3"]),
        ('answer = ...\nself_test(answer, 8192 * 128_256 * 2 / 1e9, "two bytes each")', ["8192", "1e9"]),
        ('answer = ...\nright = 3\nself_test(answer, right, "count")', []),
        ('answer = ...\nself_test(\n    answer, 3, "é, \\"quoted\\" and ' + "long " * 30 + '", within=0.5\n)', ["3"]),
    ],
)
def test_sealed_a_self_test_judges_the_same_and_shows_neither_answer_nor_hint(source, hidden):
    sealed = with_seals(source)
    call = sealed[sealed.index("self_test(") :]
    for secret in ("one of each", "two bytes", "count", "long"):
        assert secret not in sealed
    for number in hidden:
        assert f" {number}," not in call
    assert max(map(len, sealed.splitlines())) <= 88
    for answer in ("...", "3", "4", "2.1010", "99"):
        said = []
        for each in (source, sealed):
            last = each.partition("self_test(")[2]
            said.append(eval(f"self_test({last}", {"self_test": self_test, "answer": eval(answer), "right": 3}))
        assert said[0] == said[1]


def test_a_cell_without_one_stays():
    for source in ("print(1)", "x = 1  # self_test(", "self_test(answer)"):
        assert with_seals(source) == source
