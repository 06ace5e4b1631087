"""Key press to paint, in the real JupyterLab and Chromium: the best of three runs, as the machine may be shared."""

import shutil

import pytest

from benchmarks import explorer_latency


@pytest.fixture(scope="module")
def page_of():
    if explorer_latency.chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    pytest.importorskip("playwright", reason="needs Playwright: pip install playwright")
    with explorer_latency.pages() as page_of:
        yield page_of


SAMPLE = {"roofline"}  # in `make test`
NAMES = [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.long]) for name in explorer_latency.EXPLORERS]


@pytest.mark.alone
@pytest.mark.parametrize("name", NAMES)
def test_the_chart_follows_the_keys(page_of, name):
    runs = []
    for run in explorer_latency.measure(page_of, name):
        assert len(run.presses) == 40
        assert min(run.presses) > 0
        runs.append(run)
        if explorer_latency.within_limits(runs):
            break
    assert explorer_latency.within_limits(runs), [(run.median, run.p95, run.burst) for run in runs]


@pytest.mark.alone
def test_a_move_is_one_message_to_the_kernel(page_of):
    """Two would make JupyterLab draw its kernel's status twice as often, in frames that a next move waits for."""
    explorer = explorer_latency.EXPLORERS["roofline"]
    with page_of(explorer.cell) as page:
        page.evaluate("""() => {
            window.sent = 0;
            const send = WebSocket.prototype.send;
            WebSocket.prototype.send = function (...data) { window.sent++; return send.apply(this, data); };
        }""")
        handle, line = page.locator(explorer.handle).first, page.locator(".fusion-explorer [role=status]")
        for value in explorer.values[1:4]:
            handle.press("ArrowRight")
            page.wait_for_timeout(1000)
            assert explorer.shown(value) in line.text_content()
        assert page.evaluate("sent") == 3
        # Moves in a row are one message, once the slider rests.
        for _ in explorer.values[4:9]:
            handle.press("ArrowRight")
        assert page.evaluate("sent") == 3
        page.wait_for_timeout(1000)
        assert page.evaluate("sent") == 4
        # A reader who goes on to something else is not waited for.
        handle.press("ArrowRight")
        handle.evaluate("handle => handle.blur()")
        assert page.evaluate("sent") == 5
        page.wait_for_timeout(1000)
        assert page.evaluate("sent") == 5


LATE = """import time
from ipywidgets import SelectionSlider

_handle = SelectionSlider._handle_msg
SelectionSlider._handle_msg = lambda slider, message: (time.sleep(0.2), _handle(slider, message))[1]
"""


@pytest.mark.alone
def test_the_kernels_answer_takes_no_move_back(page_of):
    """It repeats where the slider was when it rested; by then, the reader's next keys may have moved it on."""
    explorer = explorer_latency.EXPLORERS["occupancy"]
    with page_of(LATE + explorer.cell) as page:
        handle, line = page.locator(explorer.handle).first, page.locator(".fusion-explorer [role=status]")
        handle.press("ArrowRight")
        page.wait_for_timeout(400)  # it rested, and the kernel takes until 500 to answer
        for _ in explorer.values[2:6]:
            handle.press("ArrowRight")
        page.wait_for_timeout(200)
        handle.press("ArrowRight")
        assert explorer.shown(explorer.values[6]) in line.text_content()
        page.wait_for_timeout(1000)
        assert explorer.shown(explorer.values[6]) in line.text_content()


def test_a_slow_explorer_would_be_found():
    assert explorer_latency.within_limits([explorer_latency.Latency([20.0] * 40, 100)])
    slow = [[31.0] * 40, [20.0] * 37 + [60.0] * 3, [20.0] * 40]
    for presses, burst in zip(slow, (100, 100, 151), strict=True):
        assert not explorer_latency.within_limits([explorer_latency.Latency(presses, burst)])


def test_no_chromium_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="no Chromium found: install it"), explorer_latency.pages():
        pass


def test_the_table_of_the_docs_has_what_was_measured():
    text = explorer_latency.RESULTS.read_text(encoding="utf-8")
    best = {"roofline": (8.54, 12.0, 9.6), "occupancy": (9.0, 13.0, 11.0), "trace": (7.0, 12.25, 8.0)}
    made = explorer_latency.with_table(text, best)
    assert (
        "| roofline | 8.5 | 12.0 | 10 | trace | 7.0 | 12.2 | 8 |\n| occupancy | 9.0 | 13.0 | 11 |  | | |  |\n\nAnim"
        in made
    )
    assert made.startswith(text[: text.index("| roofline")])
    assert made.endswith(text[text.index("\n\nAnimations run") :])
