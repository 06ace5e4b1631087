"""A built lesson as a reader sees it: questions before their answers, and code that fits the page."""

import json
import re

import nbformat
import pytest
from lab_browser import ROOT

from helpers.course_contents import WIDGET_VIEW, as_stored, opened
from helpers.learning.questions import answers_of
from helpers.learning.saved_guesses import KeptGuess
from source.build_site import found_in

LESSONS = sorted((ROOT / "notebooks").glob("[01]*.ipynb"))
ALL = [path for folder in ("notebooks", "exercises", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))]
COLUMNS = 100  # at 1024 pixels JupyterLab shows 105, as `fusion lab` first opens
DRAWN = 88  # of a picture in text, which is indented
HAS_COLUMNS = re.compile(r"^.*\S {2,}\S.*$", re.MULTILINE)
# A listing, a compiler's or a profiler's own page, a tensor, a report that names its lines.
NO_TABLE = re.compile(
    r"\bdef |^class |ptxas|error:|^tensor\(|Section: |registers  |^traffic  |such instructions|launches in", re.M
)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_each_answer_of_a_lesson_is_folded_until_its_question_was_seen(path):
    notebook = nbformat.read(path, as_version=4)
    before = json.dumps(notebook)
    questions = answers_of(notebook)
    asked = "".join(cell.source for cell in notebook.cells if cell.cell_type == "code").count("= predict_first(")
    assert len(questions) == asked > 0, "a cell asks one question"
    opened(notebook, {}, set())
    comparing = [cell for cell in notebook.cells if re.search(r"\w\.compare\(", cell.source) and cell.get("outputs")]
    assert comparing
    for cell in comparing:
        assert cell.metadata["jupyter"]["outputs_hidden"], cell.source
    for question, cells in questions.items():
        # A number with its unit, long enough to be no other's: "24.01 MB", and not "124.01 MB" or "24.01 MB/s".
        found = found_in(question, cells)
        assert found, question
        again = re.compile(rf"(?<![\d.,]){re.escape(found)}(?![\w/])") if re.search(r"\d\.?\d\.?\d.* ", found) else None
        behind = notebook.cells[notebook.cells.index(cells[0]) :]
        sight = [cell for cell in behind if cell.get("outputs") and not folded(cell)]
        assert not [cell.source for cell in sight if again and again.search(text_of(cell))], question
    as_stored(notebook)
    assert json.dumps(notebook) == before, "saved, it is the file that it was"

    seen = {question: KeptGuess("1", 1.0, 2.0, "") for question in questions}
    opened(notebook, seen, set())
    assert "outputs_hidden" not in json.dumps(notebook)


def folded(cell: nbformat.NotebookNode) -> bool:
    return cell.metadata.get("jupyter", {}).get("outputs_hidden", False)


def text_of(cell: nbformat.NotebookNode) -> str:
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def test_what_answers_a_question():
    """To the end of its section or the next question, charts that take the guess up, and the table of all."""
    sources = {
        "before": "x = 1",
        "asked": 'size = predict_first("size", unit="MB")\nsize',
        "between": "measured = 20",
        "compared": "size.compare(measured)",
        "in detail": "measured.table()",
        "asked next": 'more = predict_first("more", unit="")',
        "compared next": "more.compare(3)",
        "# another section": None,
        "of neither": "size_of = 1",
        "with its mark": 'size.on(chart, "x")',
        "tagged": "measured_again",
        "all": "predictions()",
        "self-test": "self_test(predictions())",
    }
    v4 = nbformat.v4
    cells = [v4.new_code_cell(text) if text else v4.new_markdown_cell("# S") for text in sources.values()]
    cells[list(sources).index("tagged")].metadata.tags = ["nbval-ignore-output", "answers-size"]
    found = answers_of(v4.new_notebook(cells=cells))
    names = {question: [list(sources)[cells.index(cell)] for cell in answers] for question, answers in found.items()}
    assert names == {
        "size": ["between", "compared", "in detail", "with its mark", "tagged", "all"],
        "more": ["compared next", "all"],
    }


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_code_fits_a_page_of_1024_pixels_and_tables_are_no_printed_text(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            wide = [line for line in cell.source.splitlines() if len(line) > COLUMNS]
            assert not wide, f"more than {COLUMNS} columns: {wide[0]}"
            assert not printed_tables(cell), f"show a table with table(): {cell.source[:80]}"
        else:
            drawn = "\n".join(re.findall(r"^```\w*\n(.*?)^```", cell.source, re.DOTALL | re.MULTILINE)).splitlines()
            wide = [line for line in drawn if len(line) > DRAWN]
            assert not wide, f"a picture of more than {DRAWN} columns: {wide[0]}"


def printed_tables(cell: nbformat.NotebookNode) -> list[str]:
    """Texts with two lines and more that have columns, where nothing but text is shown."""
    texts = [
        output.get("text") or output.data.get("text/plain", "")
        for output in cell.outputs
        if output.output_type != "error" and not set(output.get("data", {})) & {"text/html", "image/png"}
    ]
    return [text for text in texts if not NO_TABLE.search(text) and len(HAS_COLUMNS.findall(text)) > 1]


@pytest.mark.parametrize(
    ("text", "found"), [("a   1\nb  12", 1), ("a 1\nb 12", 0), ("class A:\n  x =  1\n  y =  2", 0)]
)
def test_what_is_a_printed_table(text, found):
    output = nbformat.v4.new_output("stream", text=text)
    assert len(printed_tables(nbformat.v4.new_code_cell("1", outputs=[output]))) == found


def test_a_widget_that_the_kernel_has_stays_and_one_that_it_has_lost_goes():
    output = nbformat.v4.new_output("display_data", {WIDGET_VIEW: {"model_id": "1"}, "text/plain": "x"})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    opened(notebook, {}, {"1", "2"})
    assert WIDGET_VIEW in notebook.cells[0].outputs[0].data
    opened(notebook, {}, {"2"})
    assert notebook.cells[0].outputs[0].data == {"text/plain": "x"}
