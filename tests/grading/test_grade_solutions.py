"""Each solution, handed in, earns all points: on the calls that it never saw, too."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from replaying import asked_here

from helpers.grading.exercise import exercises_in
from helpers.grading.grade import grade
from helpers.grading.judge import Judge, JudgeError, all_same
from helpers.grading.replay import server
from helpers.grading.replay.call_record import record_call
from helpers.grading.replay.tensors import inputs_as_json, inputs_from_json
from helpers.grading.sandbox import MAX_MESSAGE
from helpers.instruments.diagnosis import bubblewrap
from helpers.learning.checks import cases
from helpers.learning.notebook_runner import MAX_OUTPUT
from helpers.learning.outcome import PASS

SOLUTIONS = Path(__file__).parents[2] / "solutions"
# In `make test` the cheapest that asks for what the compiler makes; attacks.py has 03.
NAMES = [pytest.param(name, marks=[] if name.startswith("07") else [pytest.mark.long]) for name in exercises_in()]
# In `make test` one with two results.
QUICK = ("05b_residual_rms_norm",)
REPLAYED = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in exercises_in()]


@pytest.fixture
def draw_stays(monkeypatch):
    monkeypatch.setattr(cases, "draw", cases.draw)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REPLAYED)
def test_a_solution_passes_on_what_it_never_saw(name, draw_stays, tmp_path):
    """As the judge has it, with nothing between its processes: recorded on one draw, judged on another."""
    cells = exercises_in(only=name)[name].cells
    judge = server.Server(tmp_path)
    begun, _ = judge.reply({"cells": cells, "seed": 5}, b"", [])
    assert "unfit" not in begun, begun["unfit"]
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    own = server.RunExercise(cells, 5, tmp_path)
    for check, calls in begun["shown"].items():
        records = []
        for call in calls:
            records.append({})
            given = inputs_from_json(call)
            outcome = record_call(own.namespace[call["function"]], given, records[-1], call["few"], name=check)
            assert outcome.state == PASS, outcome
        judged_on = judge._shown if check in judge._plain else judge._exercise
        request = {"check": check, "answers": answers, "calls": records}
        verdict = server.judged(judged_on, request, tmp_path, asked_here())
        assert verdict["state"] == PASS, verdict
        assert all_same(verdict["values"], begun["kept"][check])


def test_a_check_that_draws_its_sizes_is_told_before_anything_is_judged(draw_stays, monkeypatch, tmp_path):
    """A right answer would pass on some seeds and fail on others."""
    exercise = exercises_in(only="03")["03_fused_add_gelu"]
    sizes = "elementwise_cases(2, seed=3, sizes=(1, 127, 1000 + int(torch.randint(999, ()))),"
    cells = [
        cell | {"source": cell["source"].replace("elementwise_cases(2, seed=3,", sizes)}
        for cell in exercise.cells
        if "points" not in cell or cell["id"] == "values"
    ]
    here = server.Server(tmp_path)

    def process_with_channel(kind):
        return None, SimpleNamespace(ask=lambda question, **_: here.reply(question | {"cells": cells}, b"", []))

    monkeypatch.setattr("helpers.grading.judge.process_with_channel", process_with_channel)
    told = (
        r"03_fused_add_gelu cannot be graded: the check 'values' .* in call 3 add_gelu\(float32 \[1\d+\] .*draw values"
    )
    with pytest.raises(JudgeError, match=told) as error:
        Judge(exercise, seed=6).start()
    assert "\n" not in str(error.value)


def called_with(*inputs, function="f") -> dict:
    return {"function": function, **inputs_as_json(inputs)}


def test_calls_may_differ_in_their_values_alone():
    x, y = torch.zeros(4, 6), torch.ones(4, 6)
    server.require_alike("values", [called_with(x, 0.5), called_with(y)], [called_with(y, 0.5), called_with(x)])
    for other in (x[:3], x.half(), x.T.contiguous().T, x.view(2, 12)[:1]):
        with pytest.raises(server.ChangingCallsError, match="in call 1"):
            server.require_alike("values", [called_with(x)], [called_with(other)])
    for one, other in (
        (called_with(x, 0.5), called_with(x, 0.6)),
        (called_with(x, x), called_with(x, y)),
        (called_with(x), called_with(x, function="g")),
        (called_with(x[1:]), called_with(x[:3])),
    ):
        with pytest.raises(server.ChangingCallsError, match="in call 2"):
            server.require_alike("values", [called_with(x), one], [called_with(y), other])
    with pytest.raises(server.ChangingCallsError, match=r"in call 2 .* and nothing"):
        server.require_alike("values", [called_with(x)] * 2, [called_with(x)])


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_earns_all_points(name):
    judge = Judge(exercises_in(only=name)[name], seed=5)
    try:
        result = grade((SOLUTIONS / f"{name}.ipynb").read_bytes(), f"{name}.ipynb", judge)
    finally:
        judge.close()
    assert result.earned == result.points, [check for check in result.checks if check.state != "pass"]


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
def test_results_do_not_count_as_printed():
    """However large the results that a check asks for: here more than a cell may print, and than a message may be."""
    elements = max(MAX_OUTPUT, MAX_MESSAGE) // 4  # of 4 bytes, which base64 writes with more characters
    values = f"""\
from helpers.learning.checks.cases import Case

many = tuple(torch.randn(2, 1).expand(2, {elements}))
check_values(add_gelu, reference, [Case("many", many, "", few=True)], name="values")
"""
    exercise = exercises_in(only="03")["03_fused_add_gelu"]
    cells = [each for each in exercise.cells if "points" not in each or each["id"] == "values"]
    cells = [each | {"source": values} if each["id"] == "values" else each for each in cells]
    judge = Judge(replace(exercise, cells=cells), seed=5)
    try:
        result = grade((SOLUTIONS / "03_fused_add_gelu.ipynb").read_bytes(), "03_fused_add_gelu.ipynb", judge)
        assert judge.results_size["values"] > max(MAX_OUTPUT, MAX_MESSAGE)
    finally:
        judge.close()
    assert result.earned == result.points, result.checks


@pytest.mark.long
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def partition(graph):\n    while True:\n        pass", "ran for over 30 s: look for a loop that never ends"),
        (
            "def partition(graph):\n    return [each['name'] for each in graph['operations']]",
            "a list of lists of names",
        ),
        ("def partition(graph):\n    return partition(graph)", "RecursionError"),
    ],
    ids=["without an end", "one list", "recursion"],
)
def test_a_partition_that_is_none_earns_nothing(code, told):
    exercise = exercises_in(only="13")["13_decide"]
    notebook = json.loads((SOLUTIONS / "13_decide.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["id"] == "partition-answer":
            cell["source"] = code
    judge = Judge(exercise, seed=5)
    try:
        result = grade(json.dumps(notebook).encode(), "13_decide.ipynb", judge)
    finally:
        judge.close()
    earned = {check.check for check in result.checks if check.earned}
    # After a cell that came to no end, no other is run.
    assert earned in ({"legal", "edges"}, {"legal", "edges", "other-groups"}), result.checks
    (message,) = [check.message for check in result.checks if check.check == "partitions"]
    assert re.search(told, message)


WRONG_IN_SANDBOX = [
    ("17_flash_decoding", "split", "inside = key < last", "inside = key <= last", {"values"}),
    ("17_flash_decoding", "merge", "top = tl.maximum(tl.max(peak, axis=0), -1e38)", "top = tl.max(peak, axis=0)", None),
    ("18_short_kernels", "kernel", "gate * tl.sigmoid(gate)", "tl.sigmoid(gate)", {"values"}),
    ("18_short_kernels", "arrange-answer", "if same and epilogue", "if False and epilogue", {"arrange"}),
]


@pytest.mark.long
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "cell", "old", "new", "lost"), WRONG_IN_SANDBOX)
def test_a_wrong_answer_handed_in_loses_the_points_of_its_checks(name, cell, old, new, lost):
    """Exercises 17 and 18 graded as hand-ins: the check meant for the mistake fails, and those of other cells stand."""
    exercise = exercises_in(only=name)[name]
    notebook = json.loads((SOLUTIONS / f"{name}.ipynb").read_text())
    for each in notebook["cells"]:
        if each["id"] == cell:
            source = "".join(each["source"])
            assert source.count(old) == 1
            each["source"] = source.replace(old, new)
    judge = Judge(exercise, seed=5)
    try:
        result = grade(json.dumps(notebook).encode(), f"{name}.ipynb", judge)
    finally:
        judge.close()
    failed = {check.check for check in result.checks if check.state == "fail"}
    assert (lost or {"values"}) <= failed, result.checks
    assert 0 < result.earned < result.points
    assert failed <= {"values", "traffic", "large", "arrange", "other-values"}, result.checks
