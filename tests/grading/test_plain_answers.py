"""Answers that give numbers or settings: their checks, the language they may be written in, and how they are judged."""

import math
import re

import numpy as np
import pytest
import torch
from answers import all_answers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import tensors
from helpers.instruments.devices import DEVICES
from helpers.instruments.roofline import Roofline, Work
from helpers.instruments.traffic import measure
from helpers.learning import (
    check_budget,
    check_counts,
    check_drop_rate,
    check_numbers,
    check_same_mask,
    draw_questions,
)
from helpers.learning.checks import cases
from helpers.learning.checks import roofline_questions as asked
from helpers.learning.checks.dropout import drawn, kept_elements
from helpers.learning.outcome import ERROR, FAIL, NOT_ATTEMPTED, PASS
from helpers.learning.submission_policy.plain_language import screen_plain
from helpers.learning.submission_policy.screening import is_plain, kept_by, lent_by, plain_answers, screen, screened

PLAIN = {name: exercise for name, exercise in exercises_in().items() if is_plain(exercise.cells)}


# Numbers


def numbers(answer, expected, **options):
    return check_numbers(answer, expected, [(2, 3)], name="numbers", **options)


@pytest.mark.parametrize(
    ("gives", "expected", "told"),
    [
        (6, 6, ""),
        (6.05, 6, ""),
        (6.1, 6, "got 6.1, expected 6"),
        (12, 6, "the terms and the factors: yours is twice the expected value"),
        (math.nan, 6, "got nan, expected 6"),
        (math.inf, 6, "that number, which is not finite"),
        (True, 1, "got True, not a number"),
        ("6", 6, "got '6', not a number"),
        (None, 6, "got None, not a number"),
        (torch.tensor(6.0), 6, "gives a tensor"),
        ([1, 2], (1, 2), ""),
        ((1, 2, 3), (1, 2), "2 values are needed: FLOP, bytes"),
        ((1, 3), (1, 2), "answer(2, 3), bytes: got 3, expected 2"),
        (
            (2, 1),
            (1, 2),
            "gives (2, 1): the right numbers in the wrong order\n  Look at the order of what your function",
        ),
        ((2, 2), (1, 2), "FLOP: got 2, expected 1"),
        (np.int64(6), 6, ""),
        (np.float32(6.0), 6, ""),
        (np.float32(7.0), 6, "got 7, expected 6"),
        (["a", "b", "a"], {"a", "b"}, ""),
        (["a"], {"a", "b"}, "b is missing"),
        ("ab", {"a", "b"}, "return a list of names"),
        ({"a", "b"}, {"a", "b"}, ""),
        (frozenset("ab"), {"a", "b"}, ""),
        ({"a": 1, "b": 2}.keys(), {"a", "b"}, ""),
        ((name for name in "ab"), {"a", "b"}, ""),
        ({"a"}, {"a", "b"}, "b is missing"),
        ({1: 1, 2: 2}.values(), (1, 2), ""),
        ({1, 2}, (1, 2), "2 values are needed"),  # in what order?
        (None, (1, 2), "print shows a value and returns None"),
        (1 / 6, 6, "yours is the inverse of the right value"),
        (1.5, 6, "yours is a quarter of the expected value"),
        (6e-6, 6, "the unit: yours is in millions"),
        (6 / 2**20, 6, "the unit: yours is in millions"),
        ("memory-bound", "memory", "how it is spelled"),
        (["a", "c"], {"a"}, "c should not be there"),
        ("memory", "memory", ""),
        ("compute", "memory", "got 'compute', expected 'memory'\n  Look at the condition that decides"),
        ("Memory", "memory", "got 'Memory', expected 'memory'\n  Look at how it is spelled: one word in lowercase"),
        ("Compute", "memory", "got 'Compute', expected 'memory'\n  Look at the condition that decides"),
    ],
)
def test_a_number_is_right_or_it_is_told_what_was_expected(gives, expected, told):
    def answer(rows, columns):
        return gives

    outcome = numbers(answer, lambda rows, columns: expected, parts=("FLOP", "bytes"))
    assert outcome.state == (FAIL if told else PASS), outcome
    assert told in str(outcome)


def test_an_answer_that_breaks_or_is_a_stub_is_told_so():
    def stub(rows, columns):
        raise NotImplementedError

    def broken(rows, columns):
        return rows / 0

    assert numbers(stub, int).state == NOT_ATTEMPTED
    assert numbers(broken, int).state == ERROR


def test_a_wrong_count_is_shown_what_the_meter_saw():
    def count(rows, columns):
        return 1, 8 * rows * columns

    def inputs(rows, columns):
        return torch.rand(rows, columns), torch.rand(rows, columns)

    outcome = check_counts(count, torch.add, inputs, [(2, 3)], ("launches", "bytes"), name="count")
    assert outcome.state == FAIL
    assert "count(2, 3), bytes: got 48, expected 72\n  The meter saw:\n  add: 48 B read, 24 B written" in str(outcome)


def test_fresh_questions_are_those_of_the_draw(monkeypatch):
    first = draw_questions(1, 5, range(1, 10**12), ("a", "b"))
    assert first == draw_questions(1, 5, range(1, 10**12), ("a", "b"))
    monkeypatch.setattr(cases, "draw", 12345)
    assert first != draw_questions(1, 5, range(1, 10**12), ("a", "b"))


@given(st.tuples(*[st.integers(1, 40)] * 3))
def test_a_products_work_is_what_pytorch_counts_and_the_meter_sees(sizes):
    rows, inner, columns = sizes
    x, w = torch.rand(rows, inner), torch.rand(inner, columns)
    with FlopCounterMode(display=False) as counter:
        x @ w
    assert asked.product_work(*sizes, 4) == (counter.get_total_flops(), measure(torch.mm, x, w).bytes_total)


def test_bounds_are_the_rooflines():
    for device in DEVICES.values():
        roof = Roofline(device, "fp16")
        assert asked.ridge(roof.peak, roof.bandwidth) == roof.ridge
        for size in (16, 128, 1024, 8192):
            flops, nbytes = asked.product_work(size, size, size, 2)
            assert asked.bound(flops, nbytes, roof.peak, roof.bandwidth) == roof.bound(Work(flops, nbytes, 0))


# Settings


class Compiled:
    """As much of Resources as the check of a budget asks, for settings that make spills, or leave little occupancy."""

    def __init__(self, settings):
        self.spill_bytes, self.registers, self.shared_memory = settings["TILE"] // 512 * 8, 40, 0
        self.device = DEVICES["A100"]
        self.fraction, self.limiters = settings["num_warps"] / 8, ("registers",)

    def occupancy(self):
        return self


def compiled(question, settings, device):
    if settings["TILE"] < question:
        raise ValueError("too small a tile")
    return Compiled(settings)


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ({"TILE": 64, "num_warps": 4}, ""),
        ({"TILE": 16, "num_warps": 4}, "too small a tile"),
        ({"TILE": 512, "num_warps": 4}, "spills 8 B on A100"),
        ({"TILE": 64, "num_warps": 2}, "25% occupancy on A100, 50% needed"),
        ({"TILE": 1 << 20, "num_warps": 4}, "8192 elements per thread, which has 255 registers"),
        ({"TILE": 64, "num_warps": 64}, "32 warps at most"),
        ({"TILE": 48, "num_warps": 4}, "TILE is 48, not a whole power of two"),
        ({"TILE": 64.0, "num_warps": 4}, "TILE is 64.0, not a whole power of two"),
        ({"TILE": 0, "num_warps": 4}, "TILE is 0, not a whole power of two"),
        ({"TILE": True, "num_warps": 4}, "TILE is True, not a whole power of two"),
        ({"TILE": 64}, "expected {'TILE': .., 'num_warps': ..}"),
        (None, "expected {'TILE': .., 'num_warps': ..}"),
    ],
)
def test_settings_fit_or_it_is_told_why_not(gives, told):
    def settings(least):
        return gives

    outcome = check_budget(
        settings,
        compiled,
        lambda least, chosen: chosen["TILE"],
        [32],
        settings=("TILE", "num_warps"),
        devices=("A100",),
        name="budget",
    )
    assert outcome.state == (FAIL if told else PASS), outcome
    assert told in str(outcome)


# Dropout


def dropped(x, bias, residual, p, seed):
    return residual + (x + bias) * kept_elements(seed, x.numel(), p).view(x.shape) / (1 - p)


def test_the_share_that_is_dropped_and_the_scale():
    assert check_drop_rate(dropped, p=0.3, seed=1, name="rate").state == PASS
    assert "30% expected" in str(check_drop_rate(lambda x, b, r, p, s: dropped(x, b, r, 0.4, s), 0.3, 1, name="rate"))
    unscaled = check_drop_rate(lambda x, b, r, p, s: dropped(x, b, r, p, s) * 0.7, p=0.3, seed=1, name="rate")
    assert re.search(r"element \(0, \d+\) is 1, 1.42857 or 0 expected", str(unscaled))
    assert check_drop_rate(lambda *_: None, p=0.3, seed=1, name="rate").state == FAIL


def test_the_masks_of_both_passes():
    def backward(grad, p, seed):
        return grad * kept_elements(seed, grad.numel(), p).view(grad.shape) / (1 - p)

    assert check_same_mask(dropped, backward, p=0.5, seed=3, name="mask").state == PASS
    other = check_same_mask(dropped, lambda g, p, s: backward(g, p, s + 1), p=0.5, seed=3, name="mask")
    assert re.search(r"first at \(0, \d+\): the forward (dropped|kept) it, the backward (dropped|kept) it", str(other))
    nothing = check_same_mask(lambda x, *_: x, lambda grad, *_: grad, p=0.5, seed=3, name="mask")
    assert "everything is kept, or nothing" in str(nothing)


def test_numbers_are_uniform():
    u = drawn(7, 100_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert (torch.histc(u, 20, 0, 1) - 5000).abs().max() < 5 * math.sqrt(5000)


# The language, and JSON


@pytest.mark.parametrize("answer", [each for each in all_answers() if each.exercise in PLAIN], ids=str)
def test_every_answer_kept_for_the_tests_is_in_the_language(answer):
    cells = PLAIN[answer.exercise].cells
    assert not screen_plain(answer.cells, kept_by(cells), lent_by(cells))


@pytest.mark.parametrize("name", PLAIN)
def test_every_model_answer_and_stub_is_in_the_language(name):
    answers = {cell["id"]: cell["source"] for cell in PLAIN[name].cells if cell["answer"]}
    assert not screen_plain(answers, kept_by(PLAIN[name].cells), lent_by(PLAIN[name].cells))
    assert not screen_plain(dict.fromkeys(answers, "def f(n):\n    raise NotImplementedError  # your code here"))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f(n):\n    return measure(n)", "line 2: measure: an answer here may use"),
        ("def f(n):\n    return roofline.ridge(n, 1)", "line 2: roofline"),
        ("def f(n):\n    return print.__self__", "__self__ reaches into"),
        ("def f(n):\n    return n.mro()", "n.mro isn't available"),
        ("def f(n):\n    return '{0.real}'.format(n)", "isn't available"),
        ("import torch\ndef f(n):\n    return torch.ops", "torch.ops isn't available"),
        ("import os", "may import math, and nothing else"),
        ("import math as m\ndef f(n):\n    return m.e", "may import math, and nothing else"),
        ("import math as measure", "may import math, and nothing else"),
        ("from math import nan as x\ndef f(n):\n    return x", "may import math, and nothing else"),
        ("from helpers.instruments.roofline import Roofline", "may import math"),
        ("import math, os", "may import math"),
        ("def g(measure):\n    return 1\n\ndef f(n):\n    return measure(n)", "line 5: measure: an answer here may"),
        ("def g(type):\n    return 1\n\ndef f(n):\n    return type(n)", "line 5: type: an answer here may use"),
        ("for display in [1]: pass\ndef f(n):\n    return display(n)", "display"),
        ("def f(n):\n    math = n\n    return math.floor", "isn't available"),
        ("@measure\ndef f(n): pass", "no decorator"),
        ("class F: pass", "classes aren't graded, and F is one: write functions"),
        ("def f(n):\n    with n: pass", "is not in the language"),
        (
            "def f(n):\n    try:\n        pass\n    except Exception as e: return e.__traceback__",
            "__traceback__ reaches into",
        ),
        ("def f(n):\n    yield n\n\ndef g(n):\n    return f(n).gi_frame", "gi_frame isn't available"),
        ("def f(n):\n    match n:\n        case int(real=x):\n            return x", "is not in the language"),
        ("def f(n):\n    return [measure for measure in measure(n)]", "line 2: measure: an answer here may use"),
        ("def f(n, m=measure):\n    return m(n)", "line 1: measure: an answer here may use"),
        ("def f(n):\n    return (lambda measure: measure)(measure)", "line 2: measure: an answer here may use"),
        ("if False:\n    type = 1\ndef f(n):\n    return type(n)", "line 4: type: an answer here may use"),
        ("def f(n):\n    async def g(): pass", "is not in the language"),
        ("return 1", "'return' outside function"),
        ("def f(n):\n    return getattr(n, 'real')", "getattr"),
        ("def f(n):\n    return type(n)", "type"),
        ("def f(n):\n    global x", "is not in the language"),
        ("def f(n):\n    return In[1]", "In: an answer here may use"),
    ],
)
def test_what_could_work_the_answer_out_is_refused(code, told):
    refusals = screen_plain({"answer": code}, kept={"measure", "roofline"})
    assert len(refusals) == 1
    assert re.search(told, str(refusals[0])), refusals[0]


@pytest.mark.parametrize(
    "code",
    [
        "def f(n):\n    bytes = 3 * n\n    return bytes",
        "def f(type, input, format):\n    open, table, id = type, input, format\n    return open + table + id",
        "def f(n):\n    measure = roofline = torch = n\n    return measure + roofline + torch",
        "def f(n):\n    return [measure for measure in range(n)]",
        "import numpy as np\nimport torch\nfrom typing import Iterable\ndef f(n):\n    return n",
        "def f(n):\n    return set(n) | {1}.union({2}) - frozenset().difference([3])",
        "def f(n):\n    return list(filter(None, map(str.upper, sorted(n))))",
        "def f(n):\n    try:\n        return 1 / n\n    except ZeroDivisionError:\n        return 0",
        "def f(n):\n    assert n > 0, f'{n}'\n    def g():\n        nonlocal n\n        n += 1\n    g()\n    return n",
        "def g(n):\n    yield from range(n)\ndef f(n):\n    return sum(g(n))",
        "def f(n):\n    match n:\n        case [a, *_]:\n            n = a\n        case {'k': b}:\n            n = b",
        "def f(n):\n    n = {**n}\n    del n['a']\n    return n.pop('b', 0) if (m := len(n)) else m",
        "def f(n):\n    raise ValueError('odd') if n % 2 else TypeError",
        "import math\ndef f(n):\n    return math.ceil(math.log2(n))",
        "def f(n):\n    return n\n    return math.ceil(n)",
    ],
)
def test_python_that_reaches_nothing_outside_is_open(code):
    assert screen_plain({"answer": code}, kept={"measure", "roofline", "torch"}) == []
    assert screen({"answer": code}, {"measure", "roofline", "torch"}, {"answer"}) == []


def test_in_an_exercise_with_a_kernel_answers_that_launch_nothing_are_plain():
    cells = exercises_in(only="18_short_kernels")["18_short_kernels"].cells
    model = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    assert plain_answers(cells) == model.keys() - {"kernel", "launcher"}
    for answer, function in (("arrange-answer", "arrange(operations"), ("graph-answer", "plan_step(launches")):
        code = f"def {function}, more):\n    try:\n        {function.partition('(')[2]}.remove(None)\n"
        code += "    except ValueError:\n        pass\n    return []\n"
        assert screened(model | {answer: code}, cells).refused == {}


@pytest.mark.parametrize(
    "code",
    [
        "measure = 1",
        "def measure(): pass",
        "try:\n    1 / 0\nexcept ZeroDivisionError as measure:\n    pass",
        "match 1:\n    case measure:\n        pass",
        "[(measure := n) for n in [1]]",
        "del measure",
        "for measure in [1]: pass",
    ],
)
def test_a_name_of_the_exercises_own_keeps_its_meaning(code):
    (refusal,) = screen_plain({"answer": code}, kept={"measure"})
    assert "measure" in str(refusal)


def test_a_refused_answer_costs_its_own_checks():
    cells = PLAIN["02_count_the_bytes"].cells
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    answers["count-affine"] = "def count_affine(rows, columns):\n    return measure(rows)"
    answers["count-halved"] = "def count_halved(rows, columns)\n    return 1"
    found = screened(answers, cells)
    assert found.refused.keys() == {"count-affine"}
    assert found.unreadable.keys() == {"count-halved"}
    assert found.readable.keys() == answers.keys() - {"count-affine", "count-halved"}


def test_a_parameter_lends_no_helper_of_an_answer_that_launches():
    """As one answer's `helper` could run the meter, and a parameter of that name let the numbers call it."""
    cells = exercises_in(only="15")["15_capstone"].cells
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    report = next(answer for answer, source in answers.items() if "def report" in source)
    launching = next(answer for answer in answers if answer != report and "def forward" in answers[answer])
    answers[launching] += "\n\ndef helper(rows, columns):\n    return 1\n"
    answers[report] += "\n\ndef unused(helper):\n    return 0\n\n\ndef more(n):\n    return helper(n, n)\n"
    assert any("helper: an answer here may use" in str(each) for each in screened(answers, cells).refusals)


def decided(code):
    """The refusals of an answer to exercise 13, as `fusion check` and `fusion grade` come by them."""
    answers = {cell["id"]: cell["source"] for cell in PLAIN["13_decide"].cells if cell["answer"]}
    return screened(answers | {"partition-answer": code}, PLAIN["13_decide"].cells).refusals


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("from helpers.instruments.fusion.search import exact", "importing helpers.instruments.fusion.search is not"),
        ("from helpers.learning.checks.partition_search import best_partition", "is not graded"),
        ("from helpers.learning.allowed_calls import kernel_cost", "is not graded"),
        ("import helpers", "importing helpers is not graded"),
        ("def partition(graph):\n    return drawn_graphs(1, 'greedy')", "line 2: drawn_graphs: an answer here may use"),
        ("def partition(graph):\n    return check_partitions.best_partition(graph)", "isn't available"),
        ("def partition(graph):\n    return kernel_cost.__globals__", "reaches into the interpreter"),
        ("def partition(graph):\n    return kernel_cost.mro()", "isn't available"),
        ("def kernel_cost(graph, group):\n    return {'time': 0}", "kernel_cost is a name of the exercise"),
        ("kernel_cost = min", "kernel_cost is a name of the exercise"),
        ("def check_partitions(*given, name):\n    return 0", "check_partitions is a name of the exercise"),
    ],
)
def test_what_would_find_the_partition_is_refused(code, told):
    refusals = decided(code)
    assert len(refusals) == 1
    assert told in str(refusals[0]), refusals[0]


def test_what_an_exercise_lends_is_open_and_nothing_else_is():
    assert lent_by(PLAIN["13_decide"].cells) == {"kernel_cost"}
    assert not decided("def partition(graph):\n    return kernel_cost(graph, ['add'])['time']")
    assert not any(lent_by(exercise.cells) for name, exercise in PLAIN.items() if name != "13_decide")


@given(
    st.recursive(
        st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_stand_as_they_are(value):
    assert tensors.is_plain(value)
    assert tensors.values_as_json(value) == tensors.PLAIN
    assert tensors.inputs_from_json(tensors.inputs_as_json((torch.ones(2), value)))[1] == value


def test_what_json_has_not_is_not_plain():
    for value in (None, torch.ones(1), [torch.ones(1)], {1: 2}, {"x": None}, object(), {1, 2}):
        assert not tensors.is_plain(value)
