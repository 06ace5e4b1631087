"""Model answers with one mistake are rejected: a sample here, all of them by `python tests/mutants.py`."""

import ast
import random

import mutants
import pytest

from helpers.grading.exercise import exercises_in

EXERCISES = exercises_in()


# Every fourth in `make test`, where each exercise has its wrong answers too.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if n % 4 else []) for n, name in enumerate(EXERCISES)]
)
def test_a_mutant_of_each_exercise_is_rejected(name):
    exercise = EXERCISES[name]
    found = [each for each in mutants.all_mutants(exercise) if f"{name}: {each.change}" not in mutants.EQUIVALENT]
    mutant = random.Random(name).choice(found)
    assert mutants.rejected_by(exercise, mutant), mutant.change


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", EXERCISES)
def test_every_mutant_is_rejected_or_argued(name, capsys):
    assert mutants.main(["--only", name]) == 0, capsys.readouterr().out


def test_every_equivalent_is_a_mutant_and_is_argued():
    known = {f"{name}: {each.change}" for name in EXERCISES for each in mutants.all_mutants(EXERCISES[name])}
    assert mutants.EQUIVALENT.keys() <= known
    assert all(len(why.split()) > 3 for why in mutants.EQUIVALENT.values())


@pytest.mark.parametrize(
    ("source", "kind", "after"),
    [
        ("tl.store(p, x, mask=m)", "write skipped", '"""skipped"""'),
        ("x = tl.load(p, mask=m, other=0.0)", "mask dropped", "x = tl.load(p)"),
        ("n = triton.cdiv(a, b)", "rounded down", "n = (lambda count, size: count // size)(a, b)"),
        ("x = x.contiguous()", "copy left out", "x = x.detach()"),
        ("y = tl.where(c, a, b)", "branches exchanged", "y = tl.where(c, b, a)"),
        ("p = row * stride + col", "strides swapped", "p = col * stride + row"),
        ("m = a & b", "left half of a mask", "m = a & a"),
        ("m = a & b", "right half of a mask", "m = b & b"),
        ("m = a < b", "off by one", "m = a <= b"),
        ("x = x.to(tl.float32)", "precision lowered", "x = x.to(tl.float16)"),
        ("y = tl.max(x)", "operation exchanged", "y = tl.min(x)"),
        ("y = a - b", "operation exchanged", "y = a + b"),
        ("y = 3", "constant changed", "y = 4"),
        ("y = 2.0", "constant changed", "y = 2.02"),
        ("y = 0.0", "constant changed", "y = 1.0"),
        ("y = True", "constant changed", "y = False"),
    ],
)
def test_a_mistake_of_each_kind(source, kind, after):
    made = {(mutant.kind, mutant.after) for mutant in mutants.mutants_of("answer", source)}
    assert (kind, after) in made
    assert all(ast.unparse(ast.parse(source)) != text for _, text in made)
