"""`fusion release`: write the tree for a class, which works as a repository of its own."""

import json
import re
import shlex
import shutil
from pathlib import Path

from helpers.grading.variants import drawn

COURSE = Path(__file__).resolve().parents[2]
FOLDERS = ("notebooks", "exercises", "kernels", "helpers", "benchmarks", ".devcontainer")
FILES = "LICENSE environment.yml postBuild requirements.lock setup.sh .gitignore".split()
PAGES = "claims.md doors.md fusion_proof.md glossary.md inductor_bytes.md public_models.md using.md".split()  # in docs/
PAGES += ["journey_dark.gif", "journey_light.gif"]
FOR_INSTRUCTORS = "helpers/grading"
MADE_HERE = (
    "__pycache__",
    ".ipynb_checkpoints",
    ".progress",
    ".*_cache",
    "*.pyc",
    "*.edited",
    "*.building",
    "*.egg-info",
)
TARGETS = ("lab", "bench")  # of the Makefile; the others need files that are left out
STARTED_HERE = "On Linux with Python 3.11 or later, in this folder:\n\n```\nmake lab\n```"  # a class has no address
SECTIONS_LEFT_OUT = ("For instructors", "For authors")  # of the README


def release(out: Path, variant: str = "") -> list[str]:
    """Write lessons, exercises, kernels and helpers to `out`, without solutions, sources, tests, hidden checks or
    grader.

    Args:
        out: a new folder.
        variant: a word for the class that picks a variant of each exercise that has any; by default none.

    Returns:
        The contents of `out`, sorted, and the chosen variants.

    Raises:
        ValueError: `out` isn't empty, or an exercise contains an answer; one line.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: choose a new folder")
    for path in sorted((COURSE / "exercises").glob("*.ipynb")):
        if re.search("(BEGIN|END) (SOLUTION|HIDDEN TESTS)", path.read_text(encoding="utf-8")):
            raise ValueError(f"{path} holds an answer or a hidden check: run `make notebooks`, then release again")
    for folder in FOLDERS:
        shutil.copytree(COURSE / folder, out / folder, ignore=shutil.ignore_patterns(*MADE_HERE))
    shutil.rmtree(out / FOR_INSTRUCTORS)
    (out / "docs").mkdir()
    for file in (*FILES, *(f"docs/{page}" for page in PAGES)):
        shutil.copy(COURSE / file, out / file)
    (out / "Makefile").write_text(makefile((COURSE / "Makefile").read_text()))
    (out / "pyproject.toml").write_text(pyproject((COURSE / "pyproject.toml").read_text()))
    (out / "README.md").write_text(readme((COURSE / "README.md").read_text()))
    chosen = {path: drawn(variant, path.stem) for path in sorted((out / "exercises").glob("*.ipynb"))}
    for path, of_class in chosen.items():
        if of_class:
            notebook = of_class.of(json.loads(path.read_text(encoding="utf-8")))
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    told = [f"{path.stem}: {of_class.name}, {of_class.why}" for path, of_class in chosen.items() if of_class]
    if told:
        told.append(f"grade this class with --variant {shlex.quote(variant)}")
    return [*map(str, sorted(out.iterdir())), *told]


def makefile(text: str) -> str:
    """Return a Makefile with the targets that a class can use."""
    rules = [rule for rule in text.split("\n\n") if re.search(rf"^({'|'.join(TARGETS)}):", rule, re.MULTILINE)]
    return "\n\n".join([f".PHONY: {' '.join(TARGETS)}", *(rule.strip("\n") for rule in rules)]) + "\n"


def pyproject(text: str) -> str:
    """Return a pyproject.toml without the grader: its entry point is removed, with the comment above it."""
    sandbox = re.compile(r"(?:^#.*\n)*^\[project\.entry-points\.[^\n]*\n(?:[^\[\n].*\n)*\n?", re.MULTILINE)
    return sandbox.sub("", text)


def readme(text: str) -> str:
    """Return the README without the parts about files that are left out."""
    text = re.sub(r"<!-- start -->.*<!-- end of start -->", STARTED_HERE, text, flags=re.DOTALL)
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    kept = [section for section in sections if not section.startswith(tuple(f"## {s}\n" for s in SECTIONS_LEFT_OUT))]
    lines = [line for line in "".join(kept).splitlines() if not line.startswith("make test")]
    return "\n".join(lines).rstrip() + "\n"
