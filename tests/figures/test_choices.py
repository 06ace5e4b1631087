"""While the kernel answers a choice, the page says so; and it stops saying so, whatever the answer was."""

import pytest
from drawn import TAKES_ARROWS

from helpers.figures.frame.explorer import FramePlayer
from helpers.figures.matmul.tile_choice import TileChoiceExplorer

FRAMES = {"frames": [{"svg": "<svg></svg>", "text": "as it was", "table": ""}], "columns": 1}
MODEL = """([script, frames]) => {
  const heard = {};
  window.values = {data: frames, said: {svg: "", text: ""}, still: "", doing: "", first: 0, second: 0, third: 0};
  window.tell = (name, value) => { values[name] = value; heard[`change:${name}`].forEach(each => each()); };
  const on = (names, each) => names.split(" ").forEach(name => (heard[name] ??= []).push(each));
  (0, eval)(script);
  window.stage.render({model: {get: name => values[name], on}, el: document.querySelector("#shown")});
}"""
SEEN = """() => [document.querySelector("[role=status]").textContent,
  document.querySelector(".fusion-chart").getAttribute("aria-busy")]"""
LAB = """() => {
  window.kernel = {status: "busy"};
  const panel = {node: document.body, sessionContext: {session: {kernel}}};
  window.jupyterapp = {shell: {widgets: () => [panel]}};
}"""
GONE = ["The kernel does not answer: the chart is as it was. To bring it back to life, run this cell again.", "false"]
COMPUTING, IDLE = ["computing ...", "true"], ["as it was", "false"]


@pytest.fixture
def page(chromium):
    page = chromium.new_page()
    select = "<select><option>one<option>two<option>three</select>"
    page.set_content(
        f"{select}<div class='fusion-controls'>{select}<input type='range'>"
        f"<div class='noUi-handle'></div><div id='shown'></div></div><style>{FramePlayer._css}</style>"
    )
    script = str(FramePlayer._esm).replace("export default", "window.stage =")
    page.evaluate(MODEL, [script, FRAMES])
    yield page
    page.close()


def test_a_choice_is_answered_by_the_page_itself(page):
    assert page.evaluate(SEEN) == IDLE
    page.select_option(".fusion-controls select", "two")
    assert page.evaluate(SEEN) == COMPUTING  # though no kernel has said a word
    page.evaluate("tell('first', 0)")  # a slider moved meanwhile
    assert page.evaluate(SEEN) == COMPUTING
    page.evaluate("tell('doing', 'compiling 2 of 3')")
    assert page.evaluate(SEEN) == ["compiling 2 of 3", "true"]
    new = FRAMES | {"frames": [FRAMES["frames"][0] | {"text": "another"}]}
    page.evaluate("frames => tell('data', frames)", new)
    assert page.evaluate(SEEN) == ["another", "false"]


def test_data_that_stay_the_same_end_it_too(page):
    page.select_option(".fusion-controls select", "two")
    page.evaluate("tell('doing', '')")
    assert page.evaluate(SEEN) == IDLE


def test_a_kernel_that_is_gone_is_said_to_be(page):
    """Silent, it may be computing: then it is waited for. Else the chart is as it was, and the page says so."""
    page.clock.install()
    page.evaluate(LAB)
    page.select_option(".fusion-controls select", "two")
    page.clock.run_for(60_000)
    assert page.evaluate(SEEN) == COMPUTING
    page.evaluate("kernel.status = 'dead'")
    page.clock.run_for(5_000)
    assert page.evaluate(SEEN) == GONE
    page.evaluate("tell('data', values.data)")  # it was restarted, and the cell run again
    assert page.evaluate(SEEN) == IDLE
    page.evaluate("delete window.jupyterapp")  # a page that knows nothing of its kernel
    page.select_option(".fusion-controls select", "three")
    page.clock.run_for(5_000)
    assert page.evaluate(SEEN) == GONE


def test_only_choices_of_this_figure_begin_it(page):
    page.select_option("body > select", "two")
    page.locator("input").fill("3")
    assert page.evaluate(SEEN) == IDLE


def test_the_arrows_of_a_list_are_its_own(page):
    page.evaluate(TAKES_ARROWS)
    page.evaluate("() => new Promise(done => setTimeout(done))")  # after the timer that looks for the controls
    for place, chosen in (("body > select", "one"), (".fusion-controls select", "two")):
        page.locator(place).focus()
        page.keyboard.press("ArrowDown")
        assert page.locator(place).input_value() == chosen


def watched(explorer) -> list[str]:
    told = []
    explorer._stage.observe(lambda change: told.append(change["new"]), "doing")
    return told


def test_the_kernel_says_when_it_is_done():
    explorer = TileChoiceExplorer()
    told = watched(explorer)
    explorer.step.value = 32
    assert told == ["computing ...", ""]


def test_it_is_done_also_where_it_fails(monkeypatch):
    explorer = TileChoiceExplorer()
    told = watched(explorer)
    monkeypatch.setattr(type(explorer), "_still_and_data", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        explorer.step.value = 32
    assert told == ["computing ...", ""]
