"""Record the live figures of the built lessons for the pages of `make site`, which have no kernel.

    source/lessons/NN_name.py  ->  source/site/live/NN_name.json

The JSON has `figures`, cell id -> the result of helpers.figures.frame.interactive_export, and `made_from`, the
lesson's dependencies from source/made_from.py. A lesson is run up to its last live figure, because a built notebook
stores only a figure's picture.

    python source/record_figures.py            record the lessons whose figures are stale
    python source/record_figures.py 03 10      record those whose names start with 03 or 10
    python source/record_figures.py --check    record nothing; fail, with one line per lesson with stale figures
"""

import atexit
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from source.made_from import Project, changed, older_than  # noqa: E402, this runs as a script

LIVE = Path("source/site/live")
CALLS = ("Explorer(", "watch(", "_animation(", "_timeline(", "fusion_simulator(")  # that create a live figure


def cells_of(lesson: Path) -> list[dict]:
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def is_live(cell: dict) -> bool:
    shown = any("image/png" in output.get("data", {}) for output in cell["outputs"])
    return shown and any(call in cell["source"] for call in CALLS)


def record(lesson: Path) -> dict[str, dict]:
    """Run a lesson in this process and return its live figures.

    Raises:
        Whatever a cell raises.
    """
    from IPython.core.interactiveshell import InteractiveShell

    from helpers.figures.frame.interactive_export import export_interactive

    cells = cells_of(lesson)
    last = max(number for number, cell in enumerate(cells) if is_live(cell))
    os.chdir(lesson.parent)
    shell, found = InteractiveShell.instance(), {}
    # At exit, IPython would empty the lesson's globals before its functions are freed. torch.compile removes what it
    # added to these globals when they are freed, and would print a KeyError.
    atexit.unregister(shell.atexit_operations)
    for cell in cells[: last + 1]:
        with contextlib.redirect_stdout(io.StringIO()):
            ran = shell.run_cell(cell["source"])
        ran.raise_error()
        if is_live(cell) and (live := export_interactive(ran.result)):
            found[cell["id"]] = live
    return found


def file_of(lesson: Path) -> Path:
    return lesson.parents[1] / LIVE / f"{lesson.stem}.json"


def recorded(lesson: Path) -> dict[str, dict]:
    """Return cell id -> its live figure's data."""
    path = file_of(lesson)
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}


def made_from(lesson: Path, project: Project) -> dict[str, str]:
    return project.made_from(f"source/lessons/{lesson.stem}.py", "source/record_figures.py")


def drift_of(lesson: Path, project: Project) -> str | None:
    """Return why the recorded figures of a built lesson differ from those it shows, or None."""
    live = [cell for cell in cells_of(lesson) if is_live(cell)]
    path = file_of(lesson)
    if not live:
        return "belongs to a lesson without live figures" if path.exists() else None
    if not path.exists():
        return "is not recorded"
    content = json.loads(path.read_text(encoding="utf-8"))
    if names := changed(content["made_from"], made_from(lesson, project)):
        return older_than(names)
    if any(content["figures"].get(cell["id"], {}).get("text") != text_of(cell) for cell in live):
        return f"shows other figures than notebooks/{lesson.name}"
    return None


def drifted(root: Path = ROOT) -> list[str]:
    """Return one line for each file of recorded figures that is stale."""
    lessons, project = sorted((root / "notebooks").glob("*.ipynb")), Project(root)
    reasons = {lesson.stem: drift_of(lesson, project) for lesson in lessons}
    lines = [f"{LIVE}/{name}.json {reason}: run `make notebooks`" for name, reason in reasons.items() if reason]
    orphans = sorted(path.name for path in (root / LIVE).glob("*.json") if path.stem not in reasons)
    return lines + [f"{LIVE}/{name} has no notebook: delete it" for name in orphans]


def text_of(cell: dict) -> str:
    """Return the line under the figure that a cell shows."""
    return next("".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output)


def write(lesson: Path) -> None:
    """Record a lesson's live figures; if it has none, remove its recording."""
    path = file_of(lesson)
    if not any(map(is_live, cells_of(lesson))):
        path.unlink(missing_ok=True)
        return
    content = {"made_from": made_from(lesson, Project(ROOT)), "figures": record(lesson)}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        write(Path(arguments[1]))
        return 0
    if arguments == ["--check"]:
        lines = drifted()
        print("\n".join(lines) or "every live figure is recorded as it is now")
        return 1 if lines else 0
    lessons, project = sorted((ROOT / "notebooks").glob("*.ipynb")), Project(ROOT)
    chosen = [
        each for each in lessons if (each.stem.startswith(tuple(arguments)) if arguments else drift_of(each, project))
    ]
    for lesson in chosen:  # each in its own process, because lessons reuse kernel names
        print(f"recording the figures of {lesson.stem}", flush=True)
        if subprocess.run([sys.executable, __file__, "--one", lesson], check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
