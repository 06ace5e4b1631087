"""Attacks written without sight of the grading earn nothing that is not due, and the grading goes on after them."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import attacks
import pytest
import strangers
from test_grade_attacks import NoJudge, assert_due

from helpers.grading.grade import grade
from helpers.instruments.machine import bubblewrap

# Every twelfth runs in `make test`.
RUN = [pytest.param(name, marks=[] if n % 12 == 5 else [pytest.mark.long]) for n, name in enumerate(strangers.RUN)]


@pytest.fixture(scope="module")
def results(request):
    """The result of each attack that was chosen, two at a time, as test_grade_attacks has it."""
    chosen = [item.callspec.params["name"] for item in request.session.items if "results" in item.fixturenames]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        running = {name: executor.submit(strangers.graded, name, 23) for name in chosen if name in strangers.RUN}
        yield running
        for future in running.values():
            future.cancel()


@pytest.mark.parametrize("name", strangers.NOT_RUN)
def test_a_text_is_refused_for_what_it_says(name):
    attack = strangers.NOT_RUN[name]
    assert_due(attack, grade(attack.content(), f"{attacks.NAME}.ipynb", NoJudge()).as_json())


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUN)
def test_an_attack_earns_what_is_due(results, name):
    assert_due(strangers.RUN[name], results[name].result())


def test_there_are_at_least_sixty_more():
    assert len(strangers.NOT_RUN | strangers.RUN) >= 60
    assert not strangers.RUN.keys() & attacks.ALL_RUN.keys()
