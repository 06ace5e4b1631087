"""Records of calls that return several tensors: what is replayed, and what a forged record earns."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from replaying import asked_here

from helpers.grading.exercise import exercises_in
from helpers.grading.judge import all_same, elements, same
from helpers.grading.replay import server
from helpers.grading.replay.call_record import record_call
from helpers.grading.replay.channel import ChannelError
from helpers.grading.replay.expected import conditioned, expected_as_json
from helpers.grading.replay.remote_answer import RemoteAnswer, Replay
from helpers.grading.replay.tensors import DTYPES, MAX_RESULTS, inputs_from_json, values_as_json
from helpers.learning.checks import cases
from helpers.learning.checks.gradients import last_program_first
from helpers.learning.checks.launches import few_programs
from helpers.learning.outcome import ERROR, FAIL, PASS

NAME = "05b_residual_rms_norm"


@pytest.fixture(scope="module")
def exercise(tmp_path_factory):
    before = cases.draw
    cells = [cell | {"source": in_float16(cell["source"])} for cell in exercises_in(only=NAME)[NAME].cells]
    yield server.RunExercise(cells, 0, tmp_path_factory.mktemp("cells"))
    cases.draw = before


def in_float16(source: str) -> str:
    """Give the check on traffic inputs of 16 bits, so that it meters no second dtype; and no wide row."""
    source = source.replace(", widest=wide", "")
    return source.replace("(x, residual, weight, 1e-6)", "(x.half(), residual.half(), weight.half(), 1e-6)")


@pytest.fixture(scope="module")
def calls(exercise, tmp_path_factory):
    """Each call of the check on traffic, at its cell's size and then at one that is drawn, with the model's record."""
    calls = exercise.calls(tmp_path_factory.mktemp("calls"))["traffic"]
    return [(call, recorded(exercise, call)) for call in calls]


@pytest.fixture(scope="module")
def called(calls):
    """The first of them."""
    return calls[0]


def recorded(exercise, call: dict) -> dict:
    record = {}
    record_call(exercise.namespace["residual_rms_norm"], inputs_from_json(call), record, name="traffic")
    return record


def judged(exercise, records: list[dict], folder, answers: dict[str, str] | None = None) -> dict:
    answers = answers or {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    request = {"check": "traffic", "answers": answers, "calls": records}
    return server.judged(exercise, request, folder, asked_here())


def test_two_results_are_recorded_and_replayed(exercise, calls, tmp_path):
    for call, record in calls:
        assert len(record["result"]) == 2
        assert same(record["values"], call["values"])
    reply = judged(exercise, [record for _, record in calls], tmp_path)
    assert reply["state"] == PASS, reply
    assert all_same(reply["values"], [call["values"] for call, _ in calls])


@pytest.mark.parametrize(
    "forge",
    [
        lambda result: result[0],
        lambda result: result[:1],
        lambda result: [],
        lambda result: [result],
        lambda result: [*result, *result],
        lambda result: [result[0], result[0]],
        lambda result: [result[1], result[0] | {"storage": 0}],
        lambda result: [result[0], result[1] | {"storage": 99}],
        lambda result: [result[0], result[1] | {"storage": -1}],
        lambda result: [result[0], result[1] | {"offset": 1}],
        lambda result: [result[0], result[1] | {"shape": [10**9, 10**9]}],
        lambda result: [result[0], result[1] | {"stride": [0, 0]}],
        lambda result: [result[0], None],
        lambda result: "yx",
        lambda result: None,
        lambda result: [result[0]] * (MAX_RESULTS + 1),
    ],
    ids="one short none nested doubled twice input unmade negative shifted huge wide null text nothing many".split(),
)
def test_a_forged_result_passes_no_check(exercise, called, tmp_path, forge):
    call, record = called
    record = {**copy.deepcopy(record), "result": forge(record["result"])}
    reply = judged(exercise, [record], tmp_path)
    assert reply["state"] in (FAIL, ERROR) or not all_same(reply["values"], [call["values"]]), reply


def test_plain_values_are_no_tensors(exercise, called, tmp_path):
    call, _ = called
    reply = judged(exercise, [{"plain": [1.0, 2.0], "values": call["values"]}], tmp_path)
    assert reply["state"] == FAIL
    assert "a result is not a tensor" in reply["message"]
    assert same(values_as_json([1.0, 2.0]), values_as_json(3))  # which of them is right, the check decides
    assert not all_same([values_as_json(3)], [call["values"]])


def test_values_are_compared_result_by_result(called):
    expected = called[0]["values"]
    assert same(expected, expected)
    wrong = [
        expected[0],
        expected[:1],
        [*expected, expected[0]],
        expected[::-1],
        [expected[0], None],
        [expected[0], expected],
        {"dtype": "plain", "shape": [], "values": ""},
        None,
    ]
    for shown in wrong:
        assert not all_same([shown], [expected])
    # How closely it must be met is said by what is expected, and by nothing that was shown.
    other = expected[0] | {"values": expected[1]["values"], "slack": 1e9}
    assert not same([other, expected[1]], expected)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_values_arrive_as_they_were(dtype):
    numbers = torch.tensor([0.0, 1.5, 100.0])
    if dtype.is_floating_point:
        numbers = torch.cat([numbers, torch.tensor([-1e-3, torch.nan, torch.inf, -torch.inf])])
    for values in (numbers.to(dtype), numbers.to(dtype)[1], numbers.to(dtype)[::2], torch.empty(0, 3, dtype=dtype)):
        wide = values.to(torch.float64 if dtype.is_floating_point else torch.int64)
        assert np.array_equal(elements(values_as_json(values)), wide.flatten().numpy(), equal_nan=True)


def test_codes_of_int8_may_be_one_off():
    codes, near, far = (values_as_json(torch.tensor([3, -7]).add(by).to(torch.int8)) for by in (0, 1, 2))
    assert same(near, codes)
    assert not same(far, codes)
    wide = values_as_json(torch.tensor([3, -7]))
    assert not same(wide, codes)
    assert not same(values_as_json(torch.tensor([4, -7])), wide)


DESCRIPTORS = """\\
@triton.jit
def residual_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, y_ptr, sum_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    rows = tl.num_programs(0) + MORE
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [1, BLOCK]).load([row + MORE, 0])
    residual = tl.make_tensor_descriptor(residual_ptr, [rows, cols], [cols, 1], [1, BLOCK]).load([row, 0])
    s = x.to(tl.float32) + residual.to(tl.float32)
    tl.make_tensor_descriptor(sum_ptr, [rows, cols], [cols, 1], [1, BLOCK]).store([row, 0], s)
    col = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols)
    y = s * tl.rsqrt(tl.sum(s * s, axis=1, keep_dims=True) / cols + eps) * weight
    tl.make_tensor_descriptor(y_ptr, [rows, cols], [cols, 1], [1, BLOCK]).store([row, 0], y)
"""


@pytest.mark.parametrize(("more", "state", "told"), [(0, PASS, ""), (50, FAIL, "out-of-bounds read of")])
def test_tensor_descriptors_are_replayed_within_their_tensors(exercise, tmp_path, monkeypatch, more, state, told):
    """Whatever shape a descriptor claims. Its rows must be whole 16 bytes, so a width that is drawn is, too."""
    monkeypatch.setattr(cases, "between", lambda least, most, *_: most // 8 * 8)
    calls = server.RunExercise(exercise.cells, 0, tmp_path).calls(tmp_path)["traffic"]
    cells = [
        cell | {"source": DESCRIPTORS.replace("MORE", str(more)) if cell["id"] == "kernel" else cell["source"]}
        for cell in exercise.cells
    ]
    own = server.RunExercise(cells, 0, tmp_path)
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    reply = judged(exercise, [recorded(own, call) for call in calls], tmp_path, answers)
    assert reply["state"] == state, reply
    assert told in reply["message"]


@pytest.mark.parametrize("variant", ["__setattr__", "overloads", "no_such"])
def test_an_operators_variant_is_one_of_its_own(exercise, tmp_path, variant):
    step = {"operator": f"aten.add.{variant}", "args": ["default", 1], "kwargs": {}, "made": []}
    verdict = judged(exercise, [{"steps": [step], "result": []}], tmp_path)
    assert verdict["state"] == FAIL
    assert f"add has no variant {variant!r}" in verdict["message"]


def stalls():
    def ask(question, payload):
        raise ChannelError("took over 30 s")

    return ask


def nonsense(**said):
    return lambda question, payload: (said, b"")


def cut(**said):
    """What a right replay says, with something else in its place."""
    ask = asked_here()

    def changed(question, payload):
        reply, results = ask(question, payload)
        return {**reply, **said}, results

    return changed


GOOD = {"dtype": "float32", "shape": [1]}


@pytest.mark.parametrize(
    "ask",
    [
        stalls(),
        nonsense(),
        nonsense(raised=3),
        nonsense(raised={"kind": "not a name", "message": ""}),
        nonsense(raised={"kind": "Error", "message": "x" * 10**6}),
        nonsense(tensors=[GOOD], changed=[], several=False, traffic={}),
        nonsense(tensors=[{"dtype": "float32", "shape": [-1]}], changed=[], several=False, traffic={}),
        nonsense(tensors=[{"dtype": "float32", "shape": [10**9, 10**9]}], changed=[], several=False, traffic={}),
        nonsense(tensors=[{"dtype": "object", "shape": []}], changed=[], several=False, traffic={}),
        nonsense(tensors=[GOOD] * 100, changed=[], several=False, traffic={}),
        cut(tensors=[]),
        cut(changed="x"),
        cut(changed=[-1]),
        cut(traffic=None),
        cut(traffic={"counts": {}}),
    ],
)
def test_a_replay_that_keeps_to_no_conversation_is_ended_and_earns_nothing(exercise, called, tmp_path, ask):
    _, record = called
    answers = {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    reply = server.judged(exercise, {"check": "traffic", "answers": answers, "calls": [record]}, tmp_path, ask)
    assert reply["state"] == ERROR, reply
    assert reply["replay"], reply
    assert "replaying your launches" in reply["message"], reply


@pytest.mark.parametrize("most", [2**31, 65535])
def test_a_call_without_memory_is_recorded_and_replayed(exercise, tmp_path, most):
    own = server.RunExercise(exercise.cells, exercise.seed, tmp_path)
    own.checks = {"large": own.checks["large"]}
    calls = own.calls(tmp_path)["large"]
    changed = [
        cell | {"source": cell["source"].replace("(x.numel() // cols,)", f"(min(x.numel() // cols, {most}),)")}
        for cell in exercise.cells
    ]
    answer = server.RunExercise(changed, exercise.seed, tmp_path).namespace["residual_rms_norm"]
    records = [{} for _ in calls]
    for call, record in zip(calls, records, strict=True):
        record_call(answer, inputs_from_json(call), record, name="large")
    answers = {cell["id"]: cell["source"] for cell in changed if cell["answer"]}
    reply = server.judged(own, {"check": "large", "answers": answers, "calls": records}, tmp_path, asked_here())
    assert reply["state"] == (PASS if most == 2**31 else FAIL), reply
    if most == 2**31:
        assert all_same(reply["values"], [call["values"] for call in calls])
    else:
        assert "the programs store 67,107,840 elements of the result, which has 4,294,967,296" in reply["message"]


def test_a_launch_that_a_check_runs_backwards_or_in_part_is_replayed_so(called):
    asked = []

    def ask(question, payload):
        asked.append((question["backwards"], question["few"]))
        raise ChannelError("enough")

    answer = RemoteAnswer("f", ["x"], Replay({}, [{"steps": [], "result": []}] * 3, ask))
    for order in (contextlib.nullcontext(), last_program_first(), few_programs()):
        with order, pytest.raises(ChannelError):
            answer(1.0)
    assert asked == [(False, False), (True, False), (False, True)]


def test_an_input_that_was_changed_fails_whatever_is_checked(exercise, called, tmp_path):
    _, record = called
    answers = {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    request = {"check": "traffic", "answers": answers, "calls": [record]}
    reply = server.judged(exercise, request, tmp_path, cut(changed=[1]))
    assert (reply["state"], reply["message"]) == (FAIL, "argument 2 was changed"), reply


# Reads x three times and the residual twice, and calls x what the check lets be read for nothing.
RENAMED = """\
@triton.jit
def forward_kernel(bias, b_ptr, residual_ptr, y_ptr, columns, p, scale, seed, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < columns
    element = row * columns + column
    x = tl.load(bias + element, mask=exists)
    x = (x + tl.load(bias + element, mask=exists) + tl.load(bias + element, mask=exists)) / 3
    residual = tl.load(residual_ptr + element, mask=exists)
    residual = (residual + tl.load(residual_ptr + element, mask=exists)) / 2
    added = (x + tl.load(b_ptr + column, mask=exists)) * scale
    tl.store(y_ptr + element, residual + tl.where(tl.rand(seed, element) >= p, added, 0.0), mask=exists)
"""


def test_names_are_the_callers_whatever_the_signature_and_the_kernel_say(tmp_path):
    cells = exercises_in(only="04")["04_bias_dropout_residual"].cells
    exercise = server.RunExercise(cells, 0, tmp_path)
    exercise.checks = {"traffic": exercise.checks["traffic"]}
    call, *_ = exercise.calls(tmp_path)["traffic"]
    (launcher,) = (cell["source"] for cell in cells if cell["id"] == "forward")
    for signature in ("x, bias, residual, p, seed, more=1", "x, /, bias, residual, p, seed"):
        changed = launcher.replace("(x, bias, residual, p, seed)", f"({signature})", 1)
        answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
        answers |= {"forward-kernel": RENAMED, "forward": changed}
        theirs = [cell | {"source": answers.get(cell["id"], cell["source"])} for cell in cells]
        record = {}
        forward = server.RunExercise(theirs, 0, tmp_path).namespace["forward"]
        record_call(forward, inputs_from_json(call), record, name="traffic")
        request = {"check": "traffic", "answers": answers, "calls": [record]}
        verdict = server.judged(exercise, request, tmp_path, asked_here())
        assert verdict["state"] == FAIL
        assert "x is read 3 times; residual is read twice; 24 B/element, 12 needed" in verdict["message"]


def test_inputs_on_which_the_model_answer_fails_are_drawn_again(exercise, tmp_path, monkeypatch):
    outcomes = iter([FAIL, PASS, PASS, PASS])
    seeds = []

    def calls(self, folder):
        seeds.append(self.seed)
        if next(outcomes) != PASS:
            raise server.UnluckyDrawError("the model answer does not pass 'values'")
        return {}

    monkeypatch.setattr(server.RunExercise, "calls", calls)
    drawn, _ = server.drawn_exercise(exercise.cells, 5, "a test", tmp_path)
    assert (len(set(seeds)), drawn.seed) == (2, seeds[1])
    outcomes = iter([FAIL] * server.MAX_DRAWS)
    with pytest.raises(server.UnluckyDrawError, match="does not pass 'values'"):
        server.drawn_exercise(exercise.cells, 5, "a test", tmp_path)


def test_a_result_that_the_check_leaves_open_may_be_anything_of_its_shape(tmp_path):
    """Exercise 06 leaves open which NaN is the largest. Answers that gave other indices there passed in the notebook,
    and the grader said that the notebook's were wrong."""
    name = "06_softmax_topk"
    run = server.RunExercise(exercises_in(only=name)[name].cells, 0, tmp_path)
    run.checks = {"values": run.checks["values"]}
    (unknown,) = (call for call in run.calls(tmp_path)["values"] if "values" not in call["values"][2])
    p, values, indices = run.namespace["softmax_topk"](*inputs_from_json(unknown))
    assert p.isnan().any()
    for mine, right in (
        ((p, values, indices + 1), True),
        ((p, values.half(), indices), False),
        ((p, values, indices[..., :1]), False),
        ((p.nan_to_num(), values, indices), False),
        ((p, values.nan_to_num(), indices), False),
    ):
        assert same(values_as_json(mine), unknown["values"]) == right


@pytest.mark.parametrize(("apart", "right"), [(0.0, True), (150.0, True), (250.0, False)])
def test_results_may_be_as_far_apart_as_the_case_lets_two_right_ones_be(apart, right):
    """Scores of 10^4 round weights apart in proportion to them, though no input moves by an ulp."""
    x = torch.linspace(0.0, 2.0, 8)
    case = cases.Case("", (x,), "", conditioning=100.0)
    expected = expected_as_json(lambda x: x, (x,), x, case)
    assert expected["slack"] <= 1e-6
    eps = torch.finfo(torch.float32).eps
    assert same(values_as_json(x + apart * eps * 2.0), expected) == right
    assert same(values_as_json(x + apart * eps * 2.0), expected_as_json(lambda x: x, (x,), x)) == (apart == 0.0)


def test_16_bits_that_are_rounded_once_may_differ_by_their_float32_roundings_alone():
    case = cases.Case("", (), "", conditioning=8.0, one_rounding=True)
    assert conditioned(torch.float16, case) == conditioned(torch.bfloat16, case) == 64 * torch.finfo(torch.float32).eps
    assert conditioned(torch.float16, cases.Case("", (), "", conditioning=8.0)) == 16 * torch.finfo(torch.float16).eps
    assert conditioned(torch.int64, case) == conditioned(torch.float32, cases.Case("", (), "")) == 0.0
