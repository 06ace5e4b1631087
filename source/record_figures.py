"""Record the live figures of the built lessons, for the pages of `make site`, where no kernel answers.

    source/lessons/NN_name.py  ->  source/site/live/NN_name.json

The JSON maps a cell's id to what `helpers.figures.frame.interactive_export` gives for it.

A lesson is run up to its last live figure, for a built notebook keeps a figure's picture alone. A figure that has
changed since it was recorded is shown as its picture.

    python source/record_figures.py          record the lessons with a figure that has changed
    python source/record_figures.py 03 10    record those whose names start so
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LIVE = Path("source/site/live")
CALLS = ("Explorer(", "watch(", "traffic_animation(", "_timeline(", "fusion_simulator(")  # that give a live figure


def cells_of(lesson: Path) -> list[dict]:
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def is_live(cell: dict) -> bool:
    shown = any("image/png" in output.get("data", {}) for output in cell["outputs"])
    return shown and any(call in cell["source"] for call in CALLS)


def record(lesson: Path) -> dict[str, dict]:
    """The live figures of a lesson, run in this process.

    Raises:
        Whatever a cell raises.
    """
    from IPython.core.interactiveshell import InteractiveShell

    from helpers.figures.frame.interactive_export import export_interactive

    cells = cells_of(lesson)
    last = max(number for number, cell in enumerate(cells) if is_live(cell))
    os.chdir(lesson.parent)
    shell, found = InteractiveShell.instance(), {}
    for cell in cells[: last + 1]:
        with contextlib.redirect_stdout(io.StringIO()):
            ran = shell.run_cell(cell["source"])
        ran.raise_error()
        if is_live(cell) and (live := export_interactive(ran.result)):
            found[cell["id"]] = live
    return found


def recorded(lesson: Path) -> dict[str, dict]:
    """Cell's id -> what its live figure is made of."""
    path = lesson.parents[1] / LIVE / f"{lesson.stem}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def unrecorded(lesson: Path) -> bool:
    """Whether a cell makes a live figure that is not recorded, or was recorded as another."""
    known = recorded(lesson)
    return any(is_live(cell) and known.get(cell["id"], {}).get("text") != text_of(cell) for cell in cells_of(lesson))


def text_of(cell: dict) -> str:
    """The line under the figure that a cell shows."""
    return next("".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        lesson = Path(arguments[1])
        ROOT.joinpath(LIVE, f"{lesson.stem}.json").write_text(
            json.dumps(record(lesson), indent=0) + "\n", encoding="utf-8"
        )
        return 0
    lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))
    chosen = [each for each in lessons if (each.stem.startswith(tuple(arguments)) if arguments else unrecorded(each))]
    ROOT.joinpath(LIVE).mkdir(exist_ok=True)
    for lesson in chosen:  # each in a process of its own: a kernel's name means another kernel in the next
        print(f"recording the figures of {lesson.stem}", flush=True)
        if subprocess.run([sys.executable, __file__, "--one", lesson], check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
