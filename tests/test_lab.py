"""`fusion lab` as a learner meets it, in a real browser."""

import contextlib
import json
import re
import socket
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from lab_browser import LabServer

from helpers.course_contents import MAP
from helpers.lab import FIRST_LESSON, open_lab

SLIDER = "[role=slider]"


def test_the_map_opens_the_first_lesson_which_runs_and_answers_the_keyboard(lesson_page):
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
    if page.locator(SLIDER).count() == 0:
        lesson_page.open_lesson("notebooks/01_roofline.ipynb")
        lesson_page.run_all()
    move_slider(page)

    assert lesson_page.kernel_errors() == []
    assert lesson_page.errors == []
    assert lesson_page.requests_elsewhere() == [], "a machine without a network would lack these"


def move_slider(page) -> None:
    """One press of the right arrow on the first explorer's first slider; returns when chart and text have changed."""
    explorer = page.locator(".jp-OutputArea-output").filter(has=page.locator(SLIDER)).first
    before = {part: explorer.locator(part).inner_html() for part in ("[role=img]", "[role=status]")}
    explorer.locator(SLIDER).first.focus()
    page.keyboard.press("ArrowRight")
    for part, shown in before.items():
        changed = "([explorer, part, shown]) => explorer.querySelector(part).innerHTML !== shown"
        page.wait_for_function(changed, arg=[explorer.element_handle(), part, shown])


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
    with pytest.raises(ValueError, match=rf"^port {port} cannot exist: .*$"):
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
