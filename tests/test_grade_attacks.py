"""Attacks earn nothing that is not due, and each is told why: in the sandbox, with the policy and without it."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import attacks
import pytest

from helpers.doctor import bubblewrap

ALL = attacks.RUN | attacks.UNSCREENED
pytestmark = pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")


@pytest.fixture(scope="module")
def results():
    """Every attack's result, two at a time; each worker starts one judge."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        running = {name: executor.submit(attacks.graded, attack, 17) for name, attack in ALL.items()}
        yield running
        for future in running.values():
            future.cancel()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL)
def test_an_attack_earns_what_is_due_and_is_told_why(results, name):
    attack, result = ALL[name], results[name].result()
    assert result["earned"] == attack.earned, result
    assert result["points"] == 15
    values = next(check for check in result["checks"] if check["check"] == "values")
    assert attack.state in (values["state"], "*"), values
    assert re.search(attack.told, values["message"]), values
    for check in result["checks"]:
        assert check["state"] == "pass" or check["message"], check
        assert len(check["message"]) < 2100
        assert check["message"].replace("\n", "").isprintable() or not check["message"]
