"""Notebooks and answers that nobody would write: no crash, and no verdict without a reason.

The corpus is every answer and attack that the tests keep; hypothesis cuts, joins and swaps its pieces. In `make test`
some hundred of each kind, in `make test-all` 20,000.
"""

import ast
import copy
import json
import random
import re

import answers
import attacks
import pytest
import strangers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.grading import grade as grading
from helpers.grading.exercise import exercises_in
from helpers.grading.replay.submitted_kernels import kernels_of
from helpers.learning.notebook_runner import CellRun
from helpers.learning.outcome import ERROR
from helpers.learning.submission_policy.kernel_language import RefusedError
from helpers.learning.submission_policy.screening import kept_by, screened

EXERCISE = exercises_in(only=attacks.NAME)[attacks.NAME]
KEPT = kept_by(EXERCISE.cells)
ALL = [*attacks.NOT_RUN.values(), *attacks.ALL_RUN.values(), *strangers.NOT_RUN.values(), *strangers.RUN.values()]
TEXTS = sorted(
    {text for each in ALL for text in (each.kernel, each.launcher)}
    | {source for answer in answers.all_answers() for source in answer.cells.values()}
)
PIECES = sorted({piece for text in TEXTS for piece in re.findall(r"\w+|\s+|[^\w\s]+", text)})
PIECES += [
    "\x0c",
    "\u2028",
    "\x85",
    "\r",
    "\x00",
    "\ud800",
    "# coding: utf-7\n",
    "@triton.jit\n",
    "\ndef ",
    "\\\n",
    "'''",
]
PIECES += [
    "__class__",
    "torch.ops",
    "tl.core",
    "eval",
    "import os",
    ":=",
    "*",
    "**",
    "lambda: ",
    "9**9**9",
    "\n    ",
    "",
]
NOTEBOOK = attacks.notebook()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SHORT = settings(max_examples=150, suppress_health_check=list(HealthCheck))
LONG = settings(SHORT, max_examples=10_000)


@st.composite
def texts(draw) -> str:
    """A text of the corpus, some of its pieces swapped for others."""
    pieces = re.findall(r"\w+|\s+|[^\w\s]+", draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(pieces)))
        length = draw(st.sampled_from([0, 0, 1, 1, 2, 20]))
        pieces[place : place + length] = draw(st.lists(st.sampled_from(PIECES), max_size=3))
    return "".join(pieces)


def places_in(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places_in(each, (*path, key))


PLACES = list(places_in(NOTEBOOK))


@st.composite
def notebooks(draw) -> bytes:
    """The exercise's notebook, some of its JSON replaced, removed or doubled, or its bytes cut and changed."""
    content = copy.deepcopy(NOTEBOOK)
    for grade_id in draw(st.sets(st.sampled_from(["kernel", "launcher"]))):
        attacks.cell_of(content, grade_id)["source"] = draw(texts())
    for *path, last in draw(st.lists(st.sampled_from(PLACES[1:]), max_size=3)):
        inside = content
        try:
            for key in path:
                inside = inside[key]
            how = draw(st.sampled_from(["replace", "remove", "double"]))
            if how == "replace":
                inside[last] = draw(JSON)
            elif how == "remove":
                del inside[last]
            elif isinstance(inside, list):
                inside.insert(last, inside[last])
        except (KeyError, IndexError, TypeError):
            pass  # what an earlier change took away
    raw = bytearray(json.dumps(content, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass"))
    for place, byte in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=2)):
        raw[place] = byte
    return bytes(raw[: draw(st.sampled_from([None, None, None, len(raw) // 2]))])


class Reached:
    """A judge that is not asked: what comes to it was to be run."""

    exercise = EXERCISE


def not_run(found, judge, junit):
    return {}, {cell["id"]: CellRun() for cell in EXERCISE.cells}


def holds_of_a_notebook(content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "run", not_run)
        result = grading.grade(content, "fuzzed.ipynb", Reached())
    assert {check.check for check in result.checks} == EXERCISE.checks.keys()
    assert result.earned == 0
    for check in result.checks:
        assert check.state in (grading.INVALID, grading.REFUSED, ERROR), check
        assert check.message, check
        assert len(check.message) < 2100
        assert check.message.replace("\n", "").isprintable()
    assert grading.result_from_json(json.loads(json.dumps(result.as_json()))) == result


def holds_of_an_answer(kernel: str, launcher: str) -> None:
    found = screened({"kernel": kernel, "launcher": launcher}, EXERCISE.cells)
    for refusal in (*found.refusals, *found.unreadable.values()):
        assert re.match(r"(answer )?'(kernel|launcher)'(, line \d+)?: .", str(refusal))
        assert "\n" not in str(refusal)
    if found.refusals:
        return
    for source in found.readable.values():
        tree = ast.parse(source)
        for node in ast.walk(tree):
            # Said otherwise than the policy says it.
            assert not (isinstance(node, ast.Attribute) and node.attr.startswith("_"))
            assert not (
                isinstance(node, ast.Name) and node.id in ("eval", "exec", "open", "getattr", "__import__", "type")
            )
            if isinstance(node, ast.Import):
                assert all(name.name.partition(".")[0] in ("torch", "triton", "math") for name in node.names)
        for statement in tree.body:
            bound = {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            }
            assert isinstance(statement, ast.FunctionDef) or not bound & KEPT
    try:
        kernels_of(found.readable)
    except RefusedError as error:
        pytest.fail(f"let through, and refused where it would run: {error}")


def test_notebooks():
    SHORT(given(notebooks())(holds_of_a_notebook))()


def test_answers():
    SHORT(given(texts(), texts())(holds_of_an_answer))()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_10_000_notebooks():
    LONG(given(notebooks())(holds_of_a_notebook))()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_10_000_answers():
    LONG(given(texts(), texts())(holds_of_an_answer))()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 7)) for seed in range(20)])
def test_answers_of_the_corpus_in_any_combination(seed):
    chosen = random.Random(seed)
    for _ in range(10):
        holds_of_an_answer(chosen.choice(TEXTS), chosen.choice(TEXTS))
