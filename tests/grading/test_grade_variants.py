"""Variants of exercises: the right answer of one passes it, the catalogue's and another variant's do not, and the
grader takes the class's own alone."""

import functools
import importlib.util
import json
import re
from types import SimpleNamespace

import answers
import nbformat
import pytest
from replaying import asked_here

from helpers.cli import main
from helpers.grading import grade
from helpers.grading.exercise import COURSE, exercises_in
from helpers.grading.judge import all_same
from helpers.grading.replay import server
from helpers.grading.replay.call_record import record_call
from helpers.grading.replay.tensors import inputs_from_json
from helpers.grading.variants import FOLDER, drawn, variants_of
from helpers.instruments.diagnosis import bubblewrap
from helpers.learning.checks import cases
from helpers.learning.outcome import FAIL, PASS
from helpers.learning.submission import read_submission

NAMES = [path.stem for path in sorted(FOLDER.glob("*.diff"))]
VARIANTS = [variant for name in NAMES for variant in variants_of(name)]
# What runs kernels: in `make test` the first of a quick exercise.
FIRST = [variants_of(name)[0] for name in NAMES if name[:3] == "03_"]
MARKED = [
    pytest.param(each, id=f"{each.exercise}-{each.name}", marks=[pytest.mark.long] * (each not in FIRST))
    for each in VARIANTS
]
needs_sandbox = pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
of_each_variant = pytest.mark.parametrize("variant", MARKED)


def exercise_of(variant):
    return exercises_in(only=variant.exercise, drawn=lambda name: variant)[variant.exercise]


def answers_of(exercise) -> dict[str, str]:
    return {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}


def answered(exercise, given: dict[str, str], folder) -> server.RunExercise:
    cells = [cell | {"source": given.get(cell["id"], cell["source"])} for cell in exercise.cells]
    folder.mkdir(exist_ok=True)
    return server.RunExercise(cells, cases.draw, folder)


@functools.cache
def build():
    spec = importlib.util.spec_from_file_location("build", COURSE / "source" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_exercises_that_lie_in_the_catalogue_have_variants():
    assert [name.partition("_")[0] for name in NAMES] == ["03", "04", "05", "05b", "06", "08", "10"]
    assert all(len(variants_of(name)) >= 2 for name in NAMES)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: f"{each.exercise}-{each.name}")
def test_an_exercise_is_its_solution_without_answers_in_a_variant_too(variant):
    solution, exercise = (
        variant.of(json.loads((COURSE / folder / f"{variant.exercise}.ipynb").read_text()))
        for folder in ("solutions", "exercises")
    )
    made = build().exercise_of(nbformat.reads(json.dumps(solution), as_version=4))
    assert [cell.source for cell in made.cells] == ["".join(cell["source"]) for cell in exercise["cells"]]
    original = exercise["metadata"]["kernel_fusion"]["original"]
    assert original == solution["metadata"]["kernel_fusion"]["original"]
    code = ["".join(cell["source"]) for cell in exercise["cells"] if cell["cell_type"] == "code"]
    assert [cell["source"] for cell in original] == code
    assert exercise["metadata"]["kernel_fusion"]["variant"] == variant.name
    nbformat.validate(nbformat.reads(json.dumps(exercise), as_version=4))
    # What the class reads: its own formula, and that the catalogue's is another.
    text = "".join(made.cells[0].source)
    assert "your class's own" in text
    assert re.search(r"`kernels\.\w+` computes another", text)
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in solution["cells"]]
    assert all(len(line) <= (100 if kind == "code" else 120) for kind, text in cells for line in text.splitlines())


@of_each_variant
def test_the_right_answer_of_a_variant_passes_as_it_is_and_as_it_is_replayed(variant, tmp_path):
    exercise = exercise_of(variant)
    own = answered(exercise, {}, tmp_path / "own")
    for name in own.checks:
        outcome = own.run_check(name, {}, tmp_path / "own")
        assert outcome.state == PASS, outcome
    model = answered(exercise, {}, tmp_path / "model")
    for name, calls in model.calls(tmp_path / "model").items():
        records = []
        for call in calls:
            records.append({})
            record_call(own.namespace[call["function"]], inputs_from_json(call), records[-1], call["few"], name=name)
        request = {"check": name, "answers": answers_of(exercise), "calls": records}
        reply = server.judged(model, request, tmp_path, asked_here())
        assert reply["state"] == PASS, reply
        assert all_same(reply["values"], [call["values"] for call in calls])


@of_each_variant
def test_the_course_s_own_right_answers_fail_a_variant_and_are_told_why(variant, tmp_path):
    exercise = exercise_of(variant)
    own = answers_of(exercises_in(only=variant.exercise)[variant.exercise])
    right = [each.cells for each in answers.all_answers() if each.exercise == variant.exercise and not each.wrong]
    for place, given in enumerate([own, *(own | cells for cells in right)]):
        run = answered(exercise, given, tmp_path / str(place))
        for check in ("values", "other-values"):
            outcome = run.run_check(check, {}, tmp_path / str(place))
            assert outcome.state == FAIL, outcome
            assert re.search(r"these are the values of kernels\.\w+, not of the formula asked for", outcome.message), (
                outcome
            )
            assert "the formula at the top of this exercise" in outcome.look_at


@pytest.mark.long
@of_each_variant
def test_the_answer_of_one_variant_is_wrong_in_another(variant, tmp_path):
    exercise = exercise_of(variant)
    for other in variants_of(variant.exercise):
        if other != variant:
            run = answered(exercise, answers_of(exercise_of(other)), tmp_path / other.name)
            assert run.run_check("other-values", {}, tmp_path / other.name).state == FAIL


def graded(exercise, notebook: dict) -> grade.Result:
    """By a judge that is not asked: for notebooks of which nothing is run."""
    return grade.grade(json.dumps(notebook).encode(), "x.ipynb", SimpleNamespace(exercise=exercise))


def test_a_notebook_of_another_variant_is_refused_with_the_reason():
    own = exercises_in(only="03")["03_fused_add_gelu"]
    sigmoid, erf, _ = variants_of(own.name)
    notebook = json.loads((COURSE / "exercises" / f"{own.name}.ipynb").read_text())
    told = "x.ipynb holds {} of 03_fused_add_gelu, this class was given {}: hand in the notebook that came with"
    for exercise, held, said in (
        (exercise_of(erf), sigmoid.of(notebook), ("the variant 'sigmoid'", "the variant 'erf'")),
        (exercise_of(erf), notebook, ("the course's own", "the variant 'erf'")),
        (own, sigmoid.of(notebook), ("the variant 'sigmoid'", "the course's own")),
    ):
        result = graded(exercise, held)
        assert {check.state for check in result.checks} == {"invalid"}
        assert told.format(*said) in result.checks[0].message
    strange = sigmoid.of(notebook)
    strange["metadata"]["kernel_fusion"]["variant"] = ["<script>" * 100]
    assert len(graded(own, strange).checks[0].message) < 400


def test_a_word_draws_one_variant_and_words_draw_all():
    assert drawn("", NAMES[0]) is None
    assert drawn("autumn", "01_roofline") is None
    assert drawn("autumn", NAMES[0]) == drawn("autumn", NAMES[0])
    for name in NAMES:
        assert {drawn(f"class {number}", name) for number in range(40)} == set(variants_of(name))


def test_a_class_gets_its_variants_and_nothing_is_given_away(tmp_path, capsys):
    assert main(["release", str(tmp_path / "student"), "--variant", "autumn 26"]) == 0
    said = capsys.readouterr().out
    assert "grade this class with --variant 'autumn 26'" in said
    for name in NAMES:
        variant = drawn("autumn 26", name)
        assert f"{name}: {variant.name}, {variant.why}" in said
        submission = read_submission(tmp_path / "student" / "exercises" / f"{name}.ipynb")
        assert submission.original == exercise_of(variant).given
        assert submission.left_out == 0
        own = answers_of(exercises_in(only=name)[name])
        answer = next(text for cell, text in answers_of(exercise_of(variant)).items() if text != own[cell])
        told = max(re.search("BEGIN SOLUTION\n(.*?)\n *# END", answer, re.DOTALL)[1].splitlines(), key=len).strip()
        assert told not in (tmp_path / "student" / "exercises" / f"{name}.ipynb").read_text()
    plain = (tmp_path / "student" / "exercises" / "01_roofline.ipynb").read_bytes()
    assert plain == (COURSE / "exercises" / "01_roofline.ipynb").read_bytes()
    assert not (tmp_path / "student" / "source").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quick: x\nwrongly", "'quick: x' begins with none of"),
        ("wrongly", "'wrongly' begins with none of"),
        ("quick: x\n-nothing\n+something", "'nothing' occurs 0 times in it, not once"),
        ("quick: x\n-a = 1\n+a = 2", "'a = 1' occurs 2 times in it, not once"),
    ],
)
def test_a_variant_that_does_not_fit_is_told_in_one_line(text, told, tmp_path):
    (tmp_path / "x.diff").write_text(text)
    cells = [{"cell_type": "code", "source": ["# BEGIN SOLUTION\n", "a = 1\n", "a = 1"], "outputs": [], "metadata": {}}]
    notebook = {"cells": cells, "metadata": {"kernel_fusion": {"original": []}}}
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        variants_of("x", tmp_path)[0].of(notebook)
    assert "\n" not in str(error.value)


def in_class(exercise, given: dict[str, str], notebook: dict) -> bytes:
    made = json.loads(json.dumps(notebook))
    for cell in made["cells"]:
        if cell["id"] in given:
            cell["source"] = given[cell["id"]]
    return json.dumps(made).encode()


@needs_sandbox
def test_a_class_is_graded_by_its_variant(tmp_path):
    variant = drawn("autumn", "03_fused_add_gelu")
    exercise, own = exercise_of(variant), exercises_in(only="03")["03_fused_add_gelu"]
    plain = json.loads((COURSE / "exercises" / f"{own.name}.ipynb").read_text())
    for student, given, notebook in (
        ("right", answers_of(exercise), variant.of(plain)),
        ("copied", answers_of(own), variant.of(plain)),
        ("elsewhere", answers_of(exercise), plain),
    ):
        (tmp_path / "class" / student).mkdir(parents=True)
        (tmp_path / "class" / student / f"{own.name}.ipynb").write_bytes(in_class(exercise, given, notebook))
    out = tmp_path / "report"
    command = ["grade", str(tmp_path / "class"), "--out", str(out), "--only", "03", "--jobs", "1"]
    assert main([*command, "--variant", "autumn"]) == 0
    assert json.loads((out / "run.json").read_text())["variant"] == "autumn"
    results = {path.parent.name: json.loads(path.read_text())["result"] for path in out.glob("results/*/03_*.json")}
    assert {student: result["earned"] for student, result in results.items()} == {
        "right": 15,
        "copied": 0,
        "elsewhere": 0,
    }
    assert "these are the values of kernels.add_gelu" in results["copied"]["checks"][0]["message"]
    assert results["elsewhere"]["flags"] == ["invalid"]
    before = {path: path.stat().st_mtime_ns for path in out.glob("results/*/03_*.json")}
    assert main([*command, "--resume"]) == 0  # by the word that the report knows
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("results/*/03_*.json")}
