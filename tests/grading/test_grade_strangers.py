"""Attacks written without sight of the grading earn nothing that is not due, and the grading goes on after them."""

import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import attacks
import pytest
import strangers
from test_grade_attacks import NoJudge, assert_due, chosen_of, grading_of

from helpers.grading.grade import grade
from helpers.instruments.diagnosis import bubblewrap


@pytest.fixture(scope="module")
def results(request):
    with grading_of(chosen_of(request, strangers.RUN), strangers.graded, seed=23) as running:
        yield running


@pytest.mark.parametrize("name", strangers.NOT_RUN)
def test_a_text_is_refused_for_what_it_says(name):
    attack = strangers.NOT_RUN[name]
    assert_due(attack, grade(attack.content(), f"{attacks.NAME}.ipynb", NoJudge()).as_json())


@pytest.mark.long  # in `make test` those of test_grade_attacks, judged alike, and what is refused unrun
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", strangers.RUN)
def test_an_attack_earns_what_is_due(results, name):
    assert_due(strangers.RUN[name], results[name].result())


def memory_after(names: list[str]) -> int:
    """Bytes that this process has held at most, once these were graded in it."""
    for name in names:
        strangers.graded(name, 23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.long
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
def test_messages_that_nobody_reads_take_little_of_the_graders_memory():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        before = executor.submit(memory_after, ["right, after all of them"]).result()
        after = executor.submit(memory_after, [name for name in strangers.RUN if "flood" in name]).result()
    assert after - before < 400 << 20


def test_there_are_at_least_sixty_more():
    assert len(strangers.NOT_RUN | strangers.RUN) >= 60
    assert not strangers.RUN.keys() & attacks.ALL_RUN.keys()
