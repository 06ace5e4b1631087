"""Answers that are alike: the threshold lies between the repository's own right answers and copies of them."""

import re
from itertools import combinations

import answers
import pytest

from helpers.grading import similarity
from helpers.grading.exercise import exercises_in
from helpers.grading.grade import Result
from helpers.grading.similarity import AlikePair, groups

EXERCISES = exercises_in()
WHOLE = [each for each in answers.all_answers() if each.whole and not each.wrong]
CHANGED = [each for each in answers.all_answers() if not each.whole]


def model_of(name: str) -> dict[str, str]:
    return {cell["id"]: cell["source"] for cell in EXERCISES[name].cells if cell["answer"]}


def alike(name: str, *handed_in: dict[str, str]) -> list[similarity.AlikePair]:
    graded = [(str(place), Result(name, (), 0, (), 0.0, each)) for place, each in enumerate(handed_in)]
    return similarity.alike(EXERCISES[name], graded)


@pytest.mark.parametrize("name", sorted({each.exercise for each in WHOLE}))
def test_right_answers_written_apart_are_not_alike(name):
    apart = [model_of(name), *(model_of(name) | each.cells for each in WHOLE if each.exercise == name)]
    assert len(apart) >= 2
    assert alike(name, *apart) == []


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.long)])
def test_an_answer_with_one_place_changed_is_alike(apart):
    """In `make test` every third of them."""
    found = [
        bool(alike(each.exercise, model_of(each.exercise), model_of(each.exercise) | each.cells))
        for each in CHANGED[::apart]
    ]
    assert len(found) > 100 / apart
    assert sum(found) >= 0.9 * len(found)


@pytest.mark.parametrize("name", ["03_fused_add_gelu", "05_layer_norm", "08_linear_act", "14_cuda_softmax"])
def test_new_names_comments_and_layout_hide_nothing(name):
    model = model_of(name)
    given = set(re.findall(r"\w+", "".join(cell["source"] for cell in EXERCISES[name].given)))
    own = set(re.findall(r"\b[a-z]\w+(?= = )", "".join(model.values()))) - given
    assert own
    comment = re.compile(r"^( *)# (?!BEGIN|END).*", re.MULTILINE)
    renamed = {
        cell: re.sub(rf"(?<!\.)\b({'|'.join(own)})\b(?!=)", r"my_\1", comment.sub(r"\1# mine", source))
        for cell, source in model.items()
    }
    assert renamed != model
    (pair,) = alike(name, model, renamed)
    assert pair.likeness > 0.9
    assert pair.to_model[0] == 1


@pytest.mark.parametrize("name", EXERCISES)
def test_what_the_exercise_gives_is_nobodys(name):
    stub = {cell["id"]: cell["source"] for cell in EXERCISES[name].given if cell["answer"]}
    assert alike(name, stub, stub) == []


def test_pairs_come_the_most_alike_first_and_earn_nothing():
    name = "05_layer_norm"
    other = next(each.cells for each in CHANGED if each.exercise == name and alike(name, model_of(name), each.cells))
    pairs = alike(name, model_of(name), model_of(name) | other, model_of(name))
    assert pairs[0].students == ("0", "2")
    assert [pair.likeness for pair in pairs] == sorted((pair.likeness for pair in pairs), reverse=True)


def test_seven_copies_are_one_group_and_two_others_another():
    copies = [AlikePair((f"s{a}", f"s{b}"), 1.0, (0.5, 0.5)) for a, b in combinations(range(7), 2)]
    others = [AlikePair(("x", "y"), 0.6, (0.1, 0.9))]
    found = groups([*others, *copies])
    assert [len({name for pair in group for name in pair.students}) for group in found] == [7, 2]


def test_a_chain_is_one_group():
    chain = [AlikePair((one, other), 0.7, (0, 0)) for one, other in (("a", "b"), ("c", "d"), ("b", "c"))]
    [group] = groups(chain)
    assert {name for pair in group for name in pair.students} == set("abcd")
