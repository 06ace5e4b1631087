"""A reader goes back: each cell, rerun after the whole lesson and with the cells below it, shows the same output."""

import dis
import json
import re
from pathlib import Path
from types import CodeType

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


def names_in(code: CodeType) -> set[str]:
    """Names from outside that a function's body reads, or that of a function in it."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def reached(names: set[str], bodies: dict[str, set[str]]) -> set[str]:
    """The names, and what the functions among them read, and the functions among those."""
    found, more = set(), names
    while more:
        found |= more
        more = set().union(*(bodies.get(name, ()) for name in more)) - found
    return found


def overwritten(cells: list[str]) -> list[str]:
    """Names that a cell takes from cells above it, itself or in what it calls, and that a cell below binds again."""
    bodies, taken, found = {}, [], []
    for number, cell in enumerate(cells, 1):
        code, loaded, before, bound = compile(cell, "cell", "exec"), set(), set(), set()
        for each in dis.get_instructions(code):
            if each.opname == "LOAD_NAME":
                loaded.add(each.argval)
                before |= {each.argval} - bound
            elif each.opname == "STORE_NAME":
                bound.add(each.argval)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                bodies[inner.co_name] = names_in(inner)
                loaded |= {inner.co_name} - bound  # a lambda or a generator, which has no name
        found += [f"{name}: cells {reader} and {number}" for reader, names in taken for name in sorted(names & bound)]
        taken.append((number, before | (reached(loaded, bodies) - bound)))
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_cells_show_the_same_when_a_reader_goes_back(path):
    assert not differences(jupytext.read(path), ROOT / "notebooks")


def test_no_cell_binds_a_name_again_that_a_cell_above_it_takes():
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found[path.stem] = overwritten(["".join(each["source"]) for each in cells if each["cell_type"] == "code"])
    assert len(found) == len(LESSONS)
    assert not {name: names for name, names in found.items() if names}


@pytest.mark.parametrize(
    ("taking", "binding"),
    [
        ("n // 4", "n = 9"),
        ("print([k + n for k in range(3)])", "for n in range(3): pass"),
        ("quarter = lambda: n // 4", "import os as n"),
        ("def quarter(): return n // 4\nquarter()", "def n(): pass"),
        ("half()", "k, n = 1, 2"),
        ("n = n + 1", "n = 1"),
        ("double(3)", "n = 1"),
    ],
)
def test_a_name_that_is_bound_again_is_found(taking, binding):
    above = "n = 36\ndef half(): return n // 2\ndef double(x): return x * half()"
    assert overwritten([above, taking, binding]) == ["n: cells 2 and 3"]
    assert not overwritten([above, binding, taking])
    assert not overwritten([above, "n = 4\nn // 4", binding])
    assert not overwritten([above, taking, f"def own():\n    {binding}"])


def test_a_name_that_a_later_cell_overwrites_is_found(tmp_path):
    cells = [
        nbformat.v4.new_code_cell(source) for source in ("n = 36", "n // 4", "for n in range(3): pass", "print(8)")
    ]
    (found,) = differences(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert found == "code cell 2, 'n // 4': '9', then '0'"
