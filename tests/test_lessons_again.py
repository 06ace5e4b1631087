"""A reader goes back: each cell of a lesson, run again after the whole of it and those below, shows what it showed."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "source" / "lessons").glob("*.py"))
UNCOMPARED = {"nbval-ignore-output", "nbval-skip", "raises-exception"}


def gone_back(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook's cells in order, then each of them again from the last to the first."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = []
    for number, cell in [*enumerate(code, 1), *reversed([*enumerate(code, 1)])]:
        again = nbformat.v4.new_code_cell(cell.source)
        again.metadata |= {"tags": list(cell.metadata.get("tags", [])), "number": number}
        cells.append(again)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and its value as text, without addresses."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "error":
            texts.append(f"{output.ename}: {output.evalue}")
        texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return re.sub(r"0x[0-9a-f]+|In\[\d+\]|ipykernel_\d+/\d+\.py", "", "".join(texts))


def differences(notebook: nbformat.NotebookNode, folder: Path) -> list[str]:
    """Cells that raise, or show something else, when a reader comes back to them."""
    run = NotebookClient(gone_back(notebook), timeout=120, allow_errors=True, resources={"metadata": {"path": folder}})
    cells = run.execute().cells
    half = len(cells) // 2
    first = {cell.metadata.number: cell for cell in cells[:half]}
    found = []
    for cell in cells[half:]:
        before, now = shown(first[cell.metadata.number]), shown(cell)
        raises = any(output.output_type == "error" for output in cell.outputs)
        compared = not UNCOMPARED & set(cell.metadata.tags)
        if (raises and "raises-exception" not in cell.metadata.tags) or (compared and before != now):
            found.append(f"code cell {cell.metadata.number}, {cell.source.splitlines()[0]!r}: {before!r}, then {now!r}")
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_cells_show_the_same_when_a_reader_goes_back(path):
    assert not differences(jupytext.read(path), ROOT / "notebooks")


def test_a_name_that_a_later_cell_overwrites_is_found(tmp_path):
    cells = [
        nbformat.v4.new_code_cell(source) for source in ("n = 36", "n // 4", "for n in range(3): pass", "print(8)")
    ]
    (found,) = differences(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert found == "code cell 2, 'n // 4': '9', then '0'"
