"""Grading is much faster than running the notebooks: tests/grading_speed.py in small, which measures it for a class."""

import grading_speed
import pytest

from helpers.instruments.diagnosis import bubblewrap


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
def test_a_small_class_is_graded_faster_than_its_notebooks_run():
    graded, run = grading_speed.graded(12), grading_speed.run_by_nbval(2)
    # In a small class the start, for which PyTorch is imported, weighs more than in one of 100.
    assert run.seconds / run.submissions > 2 * graded.seconds / graded.submissions
    assert graded.memory < 4 << 30


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
def test_a_class_of_400_takes_no_more_memory():
    assert grading_speed.graded(400).memory < 4 << 30
