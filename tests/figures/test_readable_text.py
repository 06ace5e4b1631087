"""No text in a chart is smaller than 11 pixels on a page of 1024 by 768 pixels."""

import pytest
from matplotlib.text import Text

from helpers.figures import (
    AttentionUnitsExplorer,
    BanksExplorer,
    FusionDecisionExplorer,
    RegisterQuartersExplorer,
    RunningSumExplorer,
    TileChoiceExplorer,
    TileOrderExplorer,
    WideRowsExplorer,
)
from helpers.figures.frame.explorer import Stage

PAGE = 836  # pixels beside the prompt, at 1024
MIN = 11
EXPLORERS = {
    "banks": BanksExplorer,
    "decision": FusionDecisionExplorer,
    "matmul": TileChoiceExplorer,
    "order": TileOrderExplorer,
    "register quarters": RegisterQuartersExplorer,
    "running sum": RunningSumExplorer,
    "units": AttentionUnitsExplorer,
    "wide rows": WideRowsExplorer,
}
SMALLEST = """() => Math.min(...[...document.querySelectorAll('.fusion-chart text')].map(
  text => parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().b, text.getScreenCTM().d)))"""


@pytest.fixture(scope="module")
def explorers():
    return {name: make() for name, make in EXPLORERS.items()}


def test_in_a_still_picture(explorers):
    for name, explorer in explorers.items():
        figure = explorer.chart().figure
        scale = 96 / 72 * min(1, PAGE / (96 * figure.get_size_inches()[0]))
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
        assert scale * min(sizes) >= MIN, name


def test_in_a_live_one(explorers, chromium):
    page = chromium.new_page(viewport={"width": 1024, "height": 768})
    for name, explorer in explorers.items():
        page.set_content(f"<style>{Stage._css}</style><div style='width:{PAGE}px'></div>")
        still, data = explorer._still_and_data()
        script = str(explorer._stage._esm).replace("export default", "window.stage =")
        page.evaluate(
            f"""given => {{ {script}
            const model = {{ get: name => given[name] ?? 0, on: () => {{}} }};
            stage.render({{ model, el: document.body.lastChild }}); }}""",
            {"still": still, "data": data},
        )
        assert page.evaluate(SMALLEST) >= MIN - 0.01, name
        page.evaluate("document.querySelector('.fusion-chart').style.removeProperty('--readable')")
        if name == "banks":
            assert page.evaluate(SMALLEST) < MIN, "half the window alone is too low for it"
