"""What a reader meets in `fusion lab`: questions before their answers, guesses that are kept, pages that come back."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from lab_browser import ROOT, LessonPage
from playwright.sync_api import expect

from helpers.course_contents import WIDGET_VIEW, as_stored, opened
from helpers.learning.kept_guesses import KeptGuess
from helpers.learning.questions import answers_of
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
QUESTION = "bytes moved by gelu(a + b)"
ANSWERS = re.compile(r"20 MB|8 MB|1\.667")  # in the outputs of the small lesson


def lesson_of_two_questions(path: Path) -> None:
    """As the build stores one: outputs, but no widget."""
    v4 = nbformat.v4

    def code(source: str, **data) -> nbformat.NotebookNode:
        outputs = [v4.new_output("execute_result", data, execution_count=1)] if data else []
        return v4.new_code_cell(source, outputs=outputs, execution_count=1 if data else None)

    def said(text: str) -> dict[str, str]:
        return {"text/plain": text}

    cells = [
        code(
            "from helpers.learning import predict_first, predictions\n"
            "from helpers.figures import curves_chart, roofline_explorer"
        ),
        code(f'moved = predict_first("{QUESTION}", unit="MB")\nmoved', **said(f"{QUESTION}: [your guess] MB")),
        v4.new_markdown_cell("The meter tells."),
        code('moved.on(curves_chart({"moved": {0: 0, 40: 40}}, "title", "bytes (MB)", "y"), "x")', **said("20")),
        code("moved.compare(20)", **said(f"{QUESTION}: 20 MB; you made no guess")),
        v4.new_markdown_cell("Launch by launch:"),
        code("2 + 2", **said("12 MB and 8 MB")),
        code('times = predict_first("times fewer", unit="times")\ntimes', **said("times fewer: [your guess] times")),
        code("times.compare(5 / 3)", **said("times fewer: 1.667 times; you made no guess")),
        v4.new_markdown_cell("## Behind the questions."),
        code("predictions()", **said("20 MB and 1.667 times")),
        code("1 + 1", **said("of neither")),
        code('times.on(roofline_explorer(), "x")'),
    ]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


@pytest.fixture
def two_questions(lesson_page) -> LessonPage:
    """The small lesson, opened, its first two cells run."""
    lesson_page.server.end_kernels()
    notebook = lesson_page.server.root / "notebooks/two_questions.ipynb"
    lesson_of_two_questions(notebook)
    (notebook.parent / ".progress/two_questions.guesses.json").unlink(missing_ok=True)
    lesson_page.page.set_viewport_size({"width": 1440, "height": 900})
    lesson_page.open_lesson("notebooks/two_questions.ipynb")
    return lesson_page


def shown(page: LessonPage) -> str:
    return page.page.locator(".jp-NotebookPanel:visible .jp-Notebook").inner_text()


def test_a_guess_by_keyboard_then_closed_and_another_day(two_questions):
    here, page = two_questions, two_questions.page
    expect(page.get_by_title("Click to expand")).to_have_count(5, timeout=120_000)
    assert ANSWERS.findall(shown(here)) == []
    expect(page.get_by_text("of neither")).to_be_visible(timeout=120_000)
    assert page.locator(".jp-PlaceholderText").first.is_hidden()
    # The kernel that opening began runs on when the tab is closed: still nothing has been seen.
    here.open_lesson("notebooks/two_questions.ipynb")
    expect(page.get_by_title("Click to expand")).to_have_count(5, timeout=120_000)
    assert ANSWERS.findall(shown(here)) == []

    here.run_cells(2)
    field = page.get_by_label(f"{QUESTION}:", exact=True)
    status = page.locator(".fusion-guess [role=status]").first
    field.press("Enter")
    assert "Type a number first" in status.inner_text()
    field.fill("20,5")
    field.press("Enter")
    page.get_by_text("20,5: is it 20.5 or 205?").wait_for()
    assert "20 MB" not in shown(here)

    # Enter keeps it and shows the answer, here and in the cells around; the other question's stays folded.
    field.fill("24/2 MB")
    field.press("Enter")
    page.get_by_text(f"{QUESTION}: 20 MB; you said 12, 1.67 times too few").wait_for()
    status.get_by_text("20 MB; you said 12, 1.67 times too few").wait_for()
    assert page.locator(".fusion-guess svg").first.get_attribute("aria-label") == "you said 12, found 20 MB"
    chart = page.locator(".jp-OutputArea-output figure")
    assert chart.locator("svg text").text_content() == "you said 12 MB"
    assert here.focused() == f"{QUESTION}:"
    expect(page.get_by_text("12 MB and 8 MB")).to_be_visible(timeout=120_000)
    expect(page.get_by_title("Click to expand")).to_have_count(2, timeout=120_000)
    assert "1.667" not in shown(here)
    assert page.locator(".jp-OutputArea-output svg").count() == 2, "field and chart: the line below needs no third"
    page.keyboard.press("Tab")
    assert here.focused() == "Guess"
    page.keyboard.press("Shift+Tab")

    # Changed, the answer follows, and no cell runs again. Escape leaves to the cell, where Enter edits it.
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
    field.fill("30")
    field.press("Enter")
    status.get_by_text("20 MB; you said 30, 1.5 times too many").wait_for()
    chart.get_by_text("you said 30 MB").first.wait_for()
    assert "You said 30 MB." in chart.locator("figcaption").inner_text()
    assert page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts() == prompts
    field.press("Escape")
    page.wait_for_function("() => !document.activeElement.closest('.fusion-guess')")
    page.locator(".jp-Notebook.jp-mod-commandMode").wait_for()
    page.locator(".jp-mod-active.jp-CodeCell .fusion-guess").wait_for()

    # Shift+Enter commits and goes on, to the cell behind the answer.
    page.locator(".jp-CodeCell").nth(4).locator(".jp-InputPrompt").click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    second = page.get_by_label("times fewer:", exact=True)
    second.fill("2")
    second.press("Shift+Enter")
    page.get_by_text("times fewer: 1.667 times; you said 2").wait_for()
    page.locator(".jp-MarkdownCell.jp-mod-active").filter(has_text="Behind the questions.").wait_for()

    expect(page.get_by_title("Click to expand")).to_have_count(0, timeout=120_000)
    for _ in range(4):
        page.keyboard.press("Shift+Enter")
    page.get_by_role("slider").first.wait_for()
    assert page.locator(".fusion-chart").get_by_text("you said 2 times").is_visible()
    explorer = page.locator(".jp-OutputArea-output").filter(has=page.get_by_role("slider")).bounding_box()
    window = page.locator(".jp-WindowedPanel-outer").bounding_box()
    assert explorer["height"] <= window["height"], "controls, chart and table are seen together"
    here.save()
    assert here.kernel_errors() == here.errors == []
    stored = json.loads((here.server.root / "notebooks/two_questions.ipynb").read_text())
    assert "fusion-asked" not in str(stored)
    assert not re.search("outputs_hidden|fusion_waits", str(stored))

    # Seen again while its kernel runs, it lives; with its kernel begun anew, or on another day, it is a still picture
    # and comes back when run.
    here.open_lesson("notebooks/two_questions.ipynb")
    page.get_by_role("slider").first.wait_for()
    here.server.restart_kernels()
    here.open_lesson("notebooks/two_questions.ipynb")
    page.get_by_text(f"{QUESTION}: you said 30 MB").wait_for()
    assert "Error displaying widget" not in shown(here)
    assert page.get_by_role("slider").count() == 0
    here.server.end_kernels()
    here.open_lesson("notebooks/two_questions.ipynb")
    page.get_by_text(f"{QUESTION}: you said 30 MB").wait_for()
    assert "Error displaying widget" not in shown(here)
    assert "20 MB; you said 12" in shown(here), "what has been seen is not folded again"
    still = page.locator(".jp-OutputArea-output figure").last
    assert "Memory-bound" in still.locator("img").get_attribute("alt")
    assert still.inner_text().strip() == "", "what the picture says is said once"
    here.run_cells(2)
    assert page.get_by_label(f"{QUESTION}:", exact=True).input_value() == "30"
    assert here.errors == []


def test_show_me_answers_without_a_guess(two_questions):
    page = two_questions.page
    two_questions.run_cells(2)
    page.get_by_role("button", name="Show me").first.click()
    page.get_by_text(f"{QUESTION}: 20 MB; you made no guess").wait_for()
    assert "1.667" not in shown(two_questions), "the other question stays open"


# Without a browser: every lesson as it is built.


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
        sight = [cell for cell in behind if cell.get("outputs") and "jupyter" not in cell.metadata]
        assert not [cell.source for cell in sight if again and again.search(text_of(cell))], question
    as_stored(notebook)
    assert json.dumps(notebook) == before, "saved, it is the file that it was"

    seen = {question: KeptGuess("1", 1.0, 2.0, "") for question in questions}
    opened(notebook, seen, set())
    assert "outputs_hidden" not in json.dumps(notebook)


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
