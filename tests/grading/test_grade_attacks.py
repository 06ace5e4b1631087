"""Attacks earn nothing that is not due, harm nobody else, and each is told why: with the policy, and without it."""

import contextlib
import re
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import attacks
import pytest

from helpers.grading.exercise import exercises_in
from helpers.grading.grade import for_student, grade, result_from_json
from helpers.instruments.diagnosis import bubblewrap


class NoJudge:
    exercise = exercises_in(only=attacks.NAME)[attacks.NAME]

    def __getattr__(self, name):
        raise AssertionError("something was run")


# Every twelfth runs in `make test`.
RUN = [pytest.param(name, marks=[] if n % 12 == 11 else [pytest.mark.long]) for n, name in enumerate(attacks.ALL_RUN)]


@contextlib.contextmanager
def grading_of(names: list[str], graded: Callable[[str, int], dict], seed: int) -> Iterator[dict[str, Future]]:
    """The result of each attack. A process starts a judge and a fork server of its own: a few attacks have one."""
    with ProcessPoolExecutor(2 if len(names) > 10 else 1, mp_context=get_context("spawn")) as executor:
        running = {name: executor.submit(graded, name, seed) for name in names}
        yield running
        for future in running.values():
            future.cancel()


def chosen_of(request, names: Container[str]) -> list[str]:
    chosen = (
        item.callspec.params["name"] for item in request.session.items if "results" in getattr(item, "fixturenames", ())
    )
    return [name for name in chosen if name in names]


@pytest.fixture(scope="module")
def results(request):
    with grading_of(chosen_of(request, attacks.ALL_RUN), attacks.graded, seed=17) as running:
        yield running


def assert_due(attack: attacks.Attack, result: dict) -> None:
    told = "\n".join(f"{check['check']}: {check['state']}, {check['message']}" for check in result["checks"])
    assert attack.earned in (result["earned"], None), told
    assert result["points"] == 15
    values = next(check for check in result["checks"] if check["check"] == "values")
    assert attack.state in (values["state"], "*"), told
    assert re.search(attack.told, values["message"]), told
    for check in result["checks"]:
        assert check["state"] == "pass" or check["message"], check
        assert len(check["message"]) < 2100
        assert check["message"].replace("\n", "").isprintable() or not check["message"]
    for check in for_student(result_from_json(result)).checks:
        assert not check.hidden or check.state in ("pass", "invalid", "refused") or "kept for the" in check.message


@pytest.mark.parametrize("name", attacks.NOT_RUN)
def test_an_attack_that_is_seen_in_the_file_is_not_run(name):
    attack = attacks.NOT_RUN[name]
    assert_due(attack, grade(attack.content(), f"{attacks.NAME}.ipynb", NoJudge()).as_json())


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUN)
def test_an_attack_earns_what_is_due_and_is_told_why(results, name):
    assert_due(attacks.ALL_RUN[name], results[name].result())


def test_there_are_at_least_sixty():
    assert len(attacks.NOT_RUN | attacks.ALL_RUN) >= 60
