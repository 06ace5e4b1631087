"""Record the outcome of each candidate line in the lessons' puzzles for the pages of `make site`, where nothing runs.

    source/lessons/NN_name.py  ->  source/site/puzzles/NN_name.json

The cell below a puzzle ends with a comment that no page shows. Its first paragraph is the text in the puzzle's cell
that a reader replaces, and each further one is a candidate; a paragraph's second line keeps its indentation:

    <!-- choices
    b = a

    b = tl.load(b_ptr)

    b = tl.load(b_ptr + element)
    -->

    python source/record_puzzles.py            record the lessons whose puzzles are stale
    python source/record_puzzles.py --check    record nothing; fail, with one line per stale lesson
"""

import base64
import importlib.util
import io
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.learning import cuda_puzzle, puzzle  # noqa: E402, F401, this runs as a script; cells call them
from source.made_from import Project, changed, older_than  # noqa: E402

RECORDS = Path("source/site/puzzles")
CALL = re.compile(r'^(?:puzzle\((\w+),|cuda_puzzle\(\w+, "(\w+)",)', re.MULTILINE)
CHOICES = re.compile(r"<!-- choices\n(.*?)\n-->", re.DOTALL)
IMPORTS = (
    "import torch\nimport triton\nimport triton.language as tl\n\nfrom helpers.learning import cuda_puzzle, puzzle\n\n"
)
MIN_CHOICES = 4


def puzzles_of(lesson: Path) -> dict[str, tuple[str, list[str]]]:
    """Return kernel -> (the puzzle's cell, the text to replace and the candidates; empty if none are given)."""
    found = {}
    for cell, after in itertools.pairwise(jupytext.read(lesson, fmt="py:percent").cells):
        called = CALL.search(cell.source) if cell.cell_type == "code" else None
        if called:
            choices = CHOICES.search(after.source)
            found[called[1] or called[2]] = cell.source, choices[1].split("\n\n") if choices else []
    return found


def outcome(cell: str):
    """Return what a puzzle's cell shows: a chart, or a line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "puzzle_cell.py")
        path.write_text(IMPORTS + re.sub(r"^((?:cuda_)?puzzle\()", r"shown = \1", cell, flags=re.MULTILINE))
        spec = importlib.util.spec_from_file_location("puzzle_cell", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.shown


def outcomes(kernel: str, cell: str, choices: list[str]) -> list[tuple[str, object]]:
    """Return (line, the cell's output with it) for each choice.

    Raises:
        ValueError: the text to replace doesn't occur exactly once; fewer than four choices; not exactly one is right.
    """
    old, *lines = choices
    if cell.count(old) != 1:
        raise ValueError(f"the puzzle {kernel}: {old!r} stands {cell.count(old)} times in its cell, not once")
    if len(lines) < MIN_CHOICES:
        raise ValueError(f"the puzzle {kernel} has {len(lines)} choices: give it {MIN_CHOICES} or more")
    found = [(line, outcome(cell.replace(old, line))) for line in lines]
    right = [line for line, shown in found if repr(shown).startswith("Solved")]
    if len(right) != 1:
        raise ValueError(f"the puzzle {kernel}: {len(right)} of its choices are right, not one: {right}")
    return found


def record(lesson: Path) -> dict[str, list[dict]]:
    """Return kernel -> `line`, `title`, `text` and `picture` (WebP, base64; empty if there is none) of each choice."""
    found = {}
    for kernel, (cell, choices) in puzzles_of(lesson).items():
        found[kernel] = []
        for line, shown in outcomes(kernel, cell, choices) if choices else ():
            text = repr(shown)
            picture = base64.b64encode(webp(shown.png())).decode() if hasattr(shown, "png") else ""
            found[kernel].append({"line": line, "title": text.partition("\n")[0], "text": text, "picture": picture})
    return {kernel: choices for kernel, choices in found.items() if choices}


def webp(png: bytes) -> bytes:
    """Re-encode a picture losslessly, in two thirds of the bytes."""
    packed = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGBA").save(packed, "WEBP", lossless=True, method=2)
    return packed.getvalue()


def file_of(lesson: Path, root: Path = ROOT) -> Path:
    return root / RECORDS / f"{lesson.stem}.json"


def recorded(lesson: Path, root: Path = ROOT) -> dict[str, list[dict]]:
    path = file_of(lesson, root)
    return json.loads(path.read_text(encoding="utf-8"))["puzzles"] if path.exists() else {}


def made_from(lesson: Path, project: Project) -> dict[str, str]:
    return project.made_from(f"source/lessons/{lesson.name}", "source/record_puzzles.py")


def with_choices(root: Path = ROOT) -> list[Path]:
    return [
        each for each in sorted((root / "source/lessons").glob("*.py")) if "<!-- choices" in each.read_text("utf-8")
    ]


def drift_of(lesson: Path, project: Project) -> str | None:
    """Return why a lesson's recorded choices are stale, or None."""
    path = file_of(lesson, project.root)
    if not path.exists():
        return "is not recorded"
    names = changed(json.loads(path.read_text(encoding="utf-8"))["made_from"], made_from(lesson, project))
    return older_than(names) if names else None


def drifted(root: Path = ROOT) -> list[str]:
    """Return one line for each file of recorded choices that is stale."""
    project = Project(root)
    reasons = {lesson.stem: drift_of(lesson, project) for lesson in with_choices(root)}
    lines = [f"{RECORDS}/{name}.json {why}: run `make notebooks`" for name, why in reasons.items() if why]
    orphans = sorted(path.name for path in (root / RECORDS).glob("*.json") if path.stem not in reasons)
    return lines + [f"{RECORDS}/{name} belongs to no lesson with choices: delete it" for name in orphans]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        lesson = Path(arguments[1])
        content = {"made_from": made_from(lesson, Project(ROOT)), "puzzles": record(lesson)}
        file_of(lesson).parent.mkdir(exist_ok=True)
        file_of(lesson).write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
        return 0
    if arguments == ["--check"]:
        lines = drifted()
        print("\n".join(lines) or "every puzzle's choices are recorded as they are now")
        return 1 if lines else 0
    project = Project(ROOT)
    for lesson in with_choices():
        if drift_of(lesson, project) is None:
            continue
        print(f"recording the puzzles of {lesson.stem}", flush=True)
        if subprocess.run([sys.executable, __file__, "--one", lesson], check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
