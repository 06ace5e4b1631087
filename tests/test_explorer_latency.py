"""Key press to paint, in the real JupyterLab and Chromium: the best of three runs, as the machine may be shared."""

import shutil

import pytest

from benchmarks import explorer_latency


@pytest.mark.skipif(explorer_latency.chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_the_roofline_follows_the_keys():
    pytest.importorskip("playwright", reason="needs Playwright: pip install playwright")
    runs = explorer_latency.measure()
    assert all(len(run.presses) == 40 and min(run.presses) > 0 for run in runs)
    assert min(run.median for run in runs) <= explorer_latency.MEDIAN_LIMIT
    assert min(run.p95 for run in runs) <= explorer_latency.P95_LIMIT
    assert min(run.burst for run in runs) <= explorer_latency.BURST_LIMIT


def test_no_chromium_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="no Chromium found: install it"):
        explorer_latency.measure()
