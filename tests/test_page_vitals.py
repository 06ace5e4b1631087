"""Pages scored as by Lighthouse: the formula, and the first page and the largest lesson above 95."""

import pytest

from benchmarks import page_vitals
from benchmarks.page_vitals import CURVES, Vitals, score
from source import build_site


@pytest.mark.parametrize("metric", CURVES)
def test_scores_go_through_the_control_points(metric):
    _, good, middle = CURVES[metric]
    assert score(metric, good) == pytest.approx(0.9)
    assert score(metric, middle) == pytest.approx(0.5)
    assert score(metric, 0) == 1.0
    assert score(metric, 5 * middle) < 0.1


def test_a_slow_page_would_be_found():
    assert Vitals(fcp=700, lcp=700, tbt=50, cls=0.0).performance > 95
    assert Vitals(fcp=700, lcp=700, tbt=600, cls=0.0).performance < 90
    assert Vitals(fcp=700, lcp=700, tbt=50, cls=0.3).performance < 90


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_first_page_and_the_largest_lesson(chromium, tmp_path):
    build_site.build(out=tmp_path / "site")
    with page_vitals.served(tmp_path / "site") as address:
        for name in ("index.html", page_vitals.largest_lesson(tmp_path / "site")):
            runs = [page_vitals.load(chromium, address + name) for _ in range(page_vitals.RUNS)]
            assert max(each.performance for each in runs) > 95, (name, runs)
            reached, wrong = page_vitals.accessibility(chromium, address + name)
            assert reached > 95, (name, wrong)
