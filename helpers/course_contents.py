"""Serve the course's files for `fusion lab`: the map redrawn, no widgets of dead kernels, and no answer before its
question.

The file on disk keeps all its outputs, for GitHub, nbviewer and nbval; outputs are removed or folded only in the page.
Set this class as `ServerApp.contents_manager_class`.
"""

import contextlib
import html
import re
from pathlib import Path
from queue import Empty

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from zmq import ZMQError

from helpers.figures.thumbnails import IDEAS, thumbnail
from helpers.learning.course_map import DRAWINGS, course_map
from helpers.learning.questions import answers_of, code_cells, text
from helpers.learning.saved_guesses import KeptGuess, kept_in

MAP = "COURSE_MAP.md"  # in the course's folder; git ignores it, and its drawings
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
ASKED = re.compile(r"(?P<question>.*): \[your guess\] ?(?P<unit>.*)")  # how a question is stored if no widget runs
PATIENCE = 2  # seconds to wait for a kernel when a page is opened
WAITS = "fusion_waits"  # in a cell's metadata, on the page only: the questions that keep its answer folded
OURS = '<div class="fusion-asked">'


def write_map(course: Path) -> None:
    """Redraw the course's map, with a drawing for each lesson; leave an unchanged one untouched."""
    files = {course / MAP: course_map(course)}
    files |= {course / DRAWINGS / f"{number}.svg": thumbnail(number) for number in IDEAS}
    (course / DRAWINGS).mkdir(exist_ok=True)
    for place, content in files.items():
        if not place.exists() or place.read_text(encoding="utf-8") != content:
            place.write_text(content, encoding="utf-8")


class CourseContents(AsyncLargeFileManager):
    """Jupyter's own contents manager, except that it opens files with `opened` and saves them without its changes."""

    async def get(self, path, content=True, type=None, format=None, **options):
        if path.strip("/") == MAP:
            with contextlib.suppress(OSError):
                write_map(Path(self.root_dir))
        model = await super().get(path, content=content, type=type, format=format, **options)
        if content and model["type"] == "notebook":
            opened(model["content"], kept_in(Path(self._get_os_path(path))), await self._living(path))
        return model

    async def _living(self, path: str) -> set[str]:
        """Return the widgets of the kernel that runs this notebook; a restarted kernel has lost the widgets in its
        outputs."""
        for session in await self.parent.session_manager.list_sessions():
            if session["path"].strip("/") == path.strip("/"):
                return await _comms(self.parent.kernel_manager.get_kernel(session["kernel"]["id"]))
        return set()

    async def save(self, model, path=""):
        if model.get("type") == "notebook" and model.get("content"):
            as_stored(model["content"])
        return await super().save(model, path)


async def _comms(kernel) -> set[str]:
    """Return the kernel's open widgets. The query uses the channel that a busy kernel answers; a starting kernel has no
    widgets."""
    client = kernel.client()
    try:
        client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
        client.control_channel.send(client.session.msg("comm_info_request", {}))
        reply = await client.get_control_msg(timeout=PATIENCE)
        return set(reply["content"].get("comms", ()))
    except (Empty, RuntimeError, ZMQError):  # a page opens even if its kernel dies in the meantime
        return set()
    finally:
        client.stop_channels()


def opened(notebook: dict, kept: dict[str, KeptGuess], living: set[str]) -> None:
    """Convert a notebook to the reader's view: only widgets that their kernel still has, answers folded until they have
    been seen, and guesses as typed.

    Args:
        kept: question -> the reader's guess and whether the answer was shown.
        living: the widgets of the kernel that runs the notebook. A running kernel does not mean that outputs were seen:
            it starts when the page opens.
    """
    for cell in code_cells(notebook):
        cell["outputs"] = [output for output in cell["outputs"] if _still(output, kept, living)]
    waits = {}
    for question, cells in answers_of(notebook).items():
        seen = question in kept and kept[question].found is not None
        for cell in cells:
            waits.setdefault(id(cell), []).extend([] if seen else [question])
    for cell in code_cells(notebook):
        if id(cell) in waits:
            _fold(cell, waits[id(cell)])


def as_stored(notebook: dict) -> None:
    """Undo what `opened` added."""
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            if OURS in text(output.get("data", {}).get("text/html", "")):
                del output["data"]["text/html"]
    answers = {id(cell) for cells in answers_of(notebook).values() for cell in cells}
    for cell in code_cells(notebook):
        if id(cell) in answers or WAITS in cell["metadata"]:
            _fold(cell, [])


def _still(output: dict, kept: dict[str, KeptGuess], living: set[str]) -> bool:
    """Return whether an output shows anything without its dead widget; a question shows its guess."""
    data = output.get("data", {})
    if data.get(WIDGET_VIEW, {}).get("model_id") in living:
        return True
    if asked := ASKED.fullmatch(text(data.get("text/plain", ""))):
        data["text/html"] = _asked(asked["question"], asked["unit"], kept.get(asked["question"]))
    return data.pop(WIDGET_VIEW, None) is None or bool(data)


def _asked(question: str, unit: str, kept: KeptGuess | None) -> str:
    if kept and kept.typed:
        said = f"<strong>{html.escape(question)}:</strong> you said {html.escape(kept.typed)} {html.escape(unit)}"
        return f"{OURS}{said}<br>Run this cell to guess again.</div>"
    told = (
        f"<strong>{html.escape(question)}?</strong> ({html.escape(unit)})" if unit else f"<strong>{question}?</strong>"
    )
    return f"{OURS}{told}<br>Run this cell, with Shift+Enter, and type your guess.</div>"


def _fold(cell: dict, waits: list[str]) -> None:
    """Fold a cell's output as JupyterLab does; it unfolds when the cell runs, or, after the last question, through
    guess.js."""
    jupyter = {key: value for key, value in cell["metadata"].get("jupyter", {}).items() if key != "outputs_hidden"}
    cell["metadata"].pop("collapsed", None)
    cell["metadata"].pop(WAITS, None)
    if waits and cell["outputs"]:
        jupyter["outputs_hidden"] = True
        cell["metadata"][WAITS] = waits
    if jupyter:
        cell["metadata"]["jupyter"] = jupyter  # keeps the order of the keys
    else:
        cell["metadata"].pop("jupyter", None)
