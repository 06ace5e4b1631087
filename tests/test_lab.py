"""`fusion lab` for a learner in a real browser: guesses are kept, and pages come back."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from lab_browser import LabServer, LessonPage
from playwright.sync_api import expect
from tornado.websocket import websocket_connect

from helpers.course_contents import MAP
from helpers.figures.exercise_pictures import picture
from helpers.lab import FIRST_LESSON, open_lab

SLIDER = "[role=slider]"
QUESTION = "bytes moved by gelu(a + b)"
ANSWERS = re.compile(r"20 MB|8 MB|1\.667")  # in the outputs of the small lesson


def test_the_map_opens_the_first_lesson_which_runs_and_serves_everybody(lesson_page):
    page = lesson_page.page
    page.goto(lesson_page.server.url)
    page.get_by_role("heading", name="The course").wait_for()
    page.get_by_text(re.compile("(Start|Go on) here:")).wait_for()
    # JupyterLab makes its own links of the page's, a moment after it shows them.
    page.locator("a[href*='/files/notebooks/00_welcome']").first.click()
    lesson_page.ready()
    # News, updates and the choice of a kernel would come up some seconds after the page.
    page.wait_for_timeout(3000)
    assert page.locator(".jp-Dialog").all_text_contents() == []
    assert page.locator(".Toastify__toast").all_text_contents() == []
    assert page.locator(".jp-NotebookPanel:visible .jp-KernelName").inner_text() == "Python 3 (ipykernel)"
    assert Path(FIRST_LESSON).name in page.title() or page.get_by_role("tab", name=Path(FIRST_LESSON).name).count()

    lesson_page.run_all()
    assert lesson_page.kernel_errors() == []
    # An explorer is drawn when it comes into sight.
    lesson = page.locator(".jp-NotebookPanel:visible")
    lesson.get_by_text("What you should see", exact=True).scroll_into_view_if_needed()
    lesson.get_by_role("slider", name="rows").wait_for()
    assert lesson_page.violations() == []
    widths = lesson.locator(".jp-RenderedMarkdown > p").evaluate_all("all => all.map(each => each.clientWidth)")
    assert 0 < max(widths) <= 46 * 16, "lines of about 80 characters"
    assert lesson.get_by_role("slider", name="rows").get_attribute("aria-valuetext") == "1,024"
    assert lesson.get_by_label(f"{QUESTION}:").count() == 1
    move_slider(page)

    assert lesson_page.kernel_errors() == []
    assert lesson_page.errors == []
    assert lesson_page.requests_elsewhere() == [], "a machine without a network would lack these"
    lesson.locator(".jp-OutputArea figure img").first.evaluate("image => image.removeAttribute('alt')")
    assert [each.split(":")[0] for each in lesson_page.violations(".jp-OutputArea figure")] == ["image-alt"]


def move_slider(page) -> None:
    """One press of the right arrow on the first explorer's first slider; returns when chart and text have changed."""
    explorer = page.locator(".jp-OutputArea-output").filter(has=page.locator(SLIDER)).first
    before = {part: explorer.locator(part).inner_html() for part in ("[role=img]", "[role=status]")}
    explorer.locator(SLIDER).first.focus()
    page.keyboard.press("ArrowRight")
    for part, shown in before.items():
        changed = "([explorer, part, shown]) => explorer.querySelector(part).innerHTML !== shown"
        page.wait_for_function(changed, arg=[explorer.element_handle(), part, shown])


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
            "from helpers.figures import curves_chart, RooflineExplorer"
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
        code('times.on(RooflineExplorer(), "x")'),
    ]
    cells[6].metadata["jupyter"] = {"source_hidden": True}  # as what only draws or compares
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


@pytest.mark.parametrize("in_between", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_guess_by_keyboard_then_closed_and_another_day(two_questions, in_between):
    """In between the page is opened beside its running kernel, too, and beside one begun anew."""
    here, page = two_questions, two_questions.page
    expect(page.locator(".jp-OutputPlaceholder")).to_have_count(5, timeout=120_000)
    assert ANSWERS.findall(shown(here)) == []
    expect(page.get_by_text("of neither")).to_be_visible(timeout=120_000)
    assert page.locator(".jp-PlaceholderText").first.is_hidden()
    if in_between:
        # The kernel that opening began runs on when the tab is closed: still nothing has been seen.
        here.open_lesson("notebooks/two_questions.ipynb")
        expect(page.locator(".jp-OutputPlaceholder")).to_have_count(5, timeout=120_000)
        assert ANSWERS.findall(shown(here)) == []

    here.run_cells(2)
    field = page.get_by_label(f"{QUESTION}:", exact=True)
    status = page.locator(".fusion-guess [role=status]").first
    page.locator(".fusion-guess input:focus").wait_for()
    assert here.focused() == f"{QUESTION}:", "the cell was run to type a guess"
    page.keyboard.press("Enter")
    assert "Type a number first" in status.inner_text()
    field.fill("20,5")
    field.press("Enter")
    page.get_by_text("20,5: is it 20.5 or 205?").wait_for()
    assert "20 MB" not in shown(here)

    # Enter keeps it and shows the answer, here and in the cells around; the other question's stays folded.
    field.fill("24/2 MB")
    field.press("Enter")
    page.get_by_text(f"{QUESTION}: 20 MB; you said 12, too low by a factor of 1.67").wait_for()
    status.get_by_text("20 MB; you said 12, too low by a factor of 1.67").wait_for()
    assert page.locator(".fusion-guess svg").first.get_attribute("aria-label") == "you said 12, found 20 MB"
    chart = page.locator(".jp-OutputArea-output figure")
    assert chart.locator("svg text").text_content() == "you said 12 MB"
    assert here.focused() == f"{QUESTION}:"
    expect(page.get_by_text("12 MB and 8 MB")).to_be_visible(timeout=120_000)
    expect(page.locator(".jp-OutputPlaceholder")).to_have_count(2, timeout=120_000)
    assert "1.667" not in shown(here)
    assert page.locator(".jp-OutputArea-output svg").count() == 2, "field and chart: the line below needs no third"
    page.keyboard.press("Tab")
    assert here.focused() == "Guess"
    page.keyboard.press("Shift+Tab")

    # Changed, the answer follows, and no cell runs again. Escape leaves to the cell, where Enter edits it.
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
    field.fill("30")
    field.press("Enter")
    status.get_by_text("20 MB; you said 30, too high by a factor of 1.5").wait_for()
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

    expect(page.locator(".jp-OutputPlaceholder")).to_have_count(0, timeout=120_000)
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
    if in_between:
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
    assert still.inner_text().strip() == "Run this cell to move it.", "what the picture says is said once"
    here.run_cells(2)
    assert page.get_by_label(f"{QUESTION}:", exact=True).input_value() == "30"
    assert here.errors == []


def test_an_answer_whose_cell_is_run_without_a_guess_stays_folded(two_questions):
    here, page = two_questions, two_questions.page
    expect(page.locator(".jp-OutputPlaceholder")).to_have_count(5, timeout=120_000)
    folded = page.locator(".jp-CodeCell:has(.jp-OutputPlaceholder)")
    for each in folded.all():
        each.scroll_into_view_if_needed()
        expect(each.locator(".jp-OutputPlaceholder")).to_be_visible()  # also below code that is folded
    told = "getComputedStyle(document.querySelector('.jp-Placeholder-contentContainer'), '::after').content"
    assert page.evaluate(told) == '"Guess above to see this, or click here"'
    here.run_cells(2)
    page.locator(".fusion-guess input:focus").first.wait_for()
    for number in (2, 3, 4, 6):  # past the empty field, and the cells behind it
        page.keyboard.press("Shift+Enter")
        if number == 2:
            page.keyboard.press("Shift+Enter")
        prompt = page.locator(".jp-CodeCell").nth(number if number < 5 else 5).locator(".jp-InputPrompt")
        expect(prompt).not_to_contain_text("*", timeout=120_000)
    field, status = page.get_by_label(f"{QUESTION}:", exact=True), page.locator(".fusion-guess [role=status]").first
    assert ANSWERS.findall(shown(here)) == []
    assert status.inner_text() == ""
    field.press("Enter")
    assert "Type a number first" in status.inner_text()
    field.fill("12")
    field.press("Enter")
    status.get_by_text("20 MB; you said 12, too low by a factor of 1.67").wait_for()
    page.get_by_text(f"{QUESTION}: 20 MB; you said 12").first.wait_for()
    assert "1.667" not in shown(here), "the other question's"
    page.locator(".jp-OutputPlaceholder").first.click()
    expect(page.get_by_text("1.667").first).to_be_visible()
    assert here.errors == []


@pytest.mark.long
def test_show_me_answers_without_a_guess(two_questions):
    page = two_questions.page
    two_questions.run_cells(2)
    page.get_by_role("button", name="Show me").first.click()
    page.get_by_text(f"{QUESTION}: 20 MB; you made no guess").wait_for()
    assert "1.667" not in shown(two_questions), "the other question stays open"


def test_going_further_is_folded_until_its_heading_is_opened(lesson_page):
    lesson_page.server.end_kernels()
    v4 = nbformat.v4
    cells = [v4.new_markdown_cell("## Now you\n\nThe exercise."), v4.new_code_cell("1 + 1")]
    cells += [v4.new_markdown_cell("## Going further", metadata={"jp-MarkdownHeadingCollapsed": True})]
    cells += [v4.new_markdown_cell("### Other widths"), v4.new_code_cell("2 + 2")]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, lesson_page.server.root / "notebooks/further.ipynb")
    lesson_page.open_lesson("notebooks/further.ipynb")
    page = lesson_page.page.locator(".jp-NotebookPanel:visible")
    expect(page.get_by_role("heading", name="Going further")).to_be_visible()
    expect(page.get_by_role("heading", name="Other widths")).to_be_hidden()
    page.get_by_role("button", name="2 cells hidden").click()
    expect(page.get_by_role("heading", name="Other widths")).to_be_visible()


def test_an_exercises_picture_is_shown_before_anything_runs(lesson_page):
    """JupyterLab drops scripts and drawings from the outputs of a notebook that it doesn't trust, but not images."""
    lesson_page.server.end_kernels()
    v4 = nbformat.v4
    output = v4.new_output("execute_result", picture("03")._repr_mimebundle_(), execution_count=1)
    cells = [v4.new_markdown_cell("# An exercise"), v4.new_code_cell('picture("03")', outputs=[output])]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, lesson_page.server.root / "notebooks/drawn.ipynb")
    lesson_page.open_lesson("notebooks/drawn.ipynb")
    image = lesson_page.page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output figure img")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.complete && image.naturalWidth") == picture("03").width
    assert image.get_attribute("alt") == repr(picture("03"))


def test_without_a_browser_the_kernel_is_the_courses_own_python(server, tmp_path):
    """Whatever the learner has called python3, wherever Jupyter may find it; and nothing of the learner's changes."""
    home = tmp_path / "home"
    another = json.dumps({"argv": ["/bin/false"], "display_name": "another", "language": "python"})
    for folder in (home / ".local/share/jupyter", tmp_path / "path"):
        (folder / "kernels/python3").mkdir(parents=True)
        (folder / "kernels/python3/kernel.json").write_text(another)
    (home / ".jupyter").mkdir()
    (home / ".jupyter/jupyter_server_config.py").write_text("get_config().ServerApp.base_url = '/mine/'")
    before = jupyter_files(home)

    nowhere = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    running = server(**nowhere, HOME=str(home), JUPYTER_PATH=str(tmp_path / "path"))
    assert running.url.split("?")[0].endswith(f"/lab/tree/{MAP}"), "the address stands on a line of its own"
    running.post("api/kernels", {"name": "python3"})
    deadline = time.monotonic() + 120
    while not (pythons := kernel_pythons(running)) and time.monotonic() < deadline:
        time.sleep(0.1)

    # python, python3 or python3.11 of the one environment
    assert [Path(python).parent for python in pythons] == [Path(sys.executable).parent]
    # A terminal's parent is the server, as a kernel's: there `fusion` is a command.
    [path] = {child.environ()["PATH"] for child in psutil.Process(running.process.pid).children()}
    assert Path(shutil.which("fusion", path=path)).parent == Path(sys.executable).parent
    assert urlsplit(running.url).path.startswith("/lab/"), "the learner's own settings were read"
    assert jupyter_files(home) == before


def jupyter_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "jupyter" in str(path.relative_to(folder))}


def kernel_pythons(server: LabServer) -> list[str]:
    """The interpreters of its running kernels."""
    commands = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):  # one that has just ended
            commands.append(child.cmdline())
    return [command[0] for command in commands if "ipykernel_launcher" in command]


def test_its_terminals_find_fusion(server):
    """As lessons write it, `fusion check ...`, also under a shell whose profile sets PATH."""
    running = server("--no-browser", SHELL="/bin/sh", PATH="/usr/bin:/bin")
    running.post("api/terminals", {"name": "learner"})

    async def said() -> str:
        socket = await websocket_connect(f"ws{running.host[4:]}/terminals/websocket/learner?token={running.token}")
        await socket.write_message(json.dumps(["stdin", "command -v fusion; echo en''d\r"]))
        seen = ""
        while "end" not in seen:
            kind, *text = json.loads(await socket.read_message())
            seen += "".join(text) if kind == "stdout" else ""
        return seen

    with ThreadPoolExecutor(1) as thread:  # Playwright has a loop of its own in this one
        found = thread.submit(lambda: asyncio.run(asyncio.wait_for(said(), 60))).result()
    assert str(Path(sys.executable).parent / "fusion") in found


def test_a_busy_port_gives_way_to_another_and_a_browser_opens_it(server, tmp_path):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = other.getsockname()[1]
        running = server(f"--port={busy}", BROWSER=str(browser))
        assert running.port != busy
        assert f"Port {busy} is busy: using {running.port}." in running.lines
        assert running.status() == 200
    deadline = time.monotonic() + 120
    while not opened.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    # A file that sends the browser on, so that the token is not in any list of processes.
    address = opened.read_text().strip()
    with urllib.request.urlopen(address) as page:
        assert running.url.split("?")[0] in page.read().decode()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_impossible_port(port):
    with pytest.raises(ValueError, match=rf"^port {port} is invalid: .*$"):
        open_lab(port=port)


def test_lessons_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("helpers.lab.COURSE", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no lessons in .*: install the course from its own folder"):
        open_lab()


@pytest.fixture
def server(request):
    """Starts `fusion lab` with options and environment variables, stops it after the test."""

    def start(*options: str, **environment: str) -> LabServer:
        running = LabServer(*options, **environment)
        request.addfinalizer(running.stop)
        return running

    return start
