"""The page that shows every instrument: it fits on a screen down to its pictures, and leaves none out."""

import re

import nbformat
from lab_browser import ROOT

LINES_OF_A_SCREEN = 62  # of 17 pixels, on 1080
INSTRUMENTS = "bench measure resources sass_view occupancy predict this_device times".split()
PICTURES = "traffic_chart timing_chart waves_chart occupancy_chart roofline_chart OccupancyExplorer RooflineExplorer"


def cells():
    notebook = nbformat.read(ROOT / "notebooks" / "lab_bench.ipynb", as_version=4)
    middle = next(n for n, cell in enumerate(notebook.cells) if "as figures" in cell.source)
    return notebook.cells[:middle], notebook.cells[middle:]


def shown_lines(cell):
    folded = "hide-input" in cell.metadata.get("tags", [])
    texts = [] if folded else [cell.source]
    for output in cell.get("outputs", []):
        texts.append(output.get("text") or output["data"]["text/plain"])
    return sum(len(text.strip().splitlines()) for text in texts)


def test_the_instruments_fit_on_a_screen():
    """Below the film that the page opens with."""
    assert sum(shown_lines(cell) for cell in cells()[0] if "watch(" not in cell.source) <= LINES_OF_A_SCREEN


def test_no_instrument_is_left_out():
    instruments, pictures = (
        "\n".join(cell.source for cell in part if "hide-input" not in cell.metadata.get("tags", [])) for part in cells()
    )
    assert [name for name in INSTRUMENTS if not re.search(rf"\b{name}\b", instruments)] == []
    assert [name for name in PICTURES.split() if not re.search(rf"\b{name}\(", pictures)] == []
