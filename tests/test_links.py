"""Every relative link in a notebook or page leads to a file of the course, and so does every path that a page names."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("notebooks", "exercises", "solutions")
NOTEBOOKS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.ipynb"))
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def broken(text: str, folder: Path) -> list[str]:
    links = [link.split("#")[0] for link in LINK.findall(CODE.sub("", text)) if "://" not in link]
    return [link for link in links if link and not (folder / link).exists()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_links_resolve(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [link for cell in cells if cell.cell_type == "markdown" for link in broken(cell.source, path.parent)] == []


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_a_page_names_what_is_there(path):
    text = path.read_text()
    assert broken(text, path.parent) == []
    named = re.findall(r"`((?:kernels|helpers|source|tests|benchmarks)/[\w/.]+)`", text)
    ours = [name for name in named if not re.search(r"NN_|\b04b_", name)]  # those that the page tells one to write
    assert [name for name in ours if not (ROOT / name).exists()] == []


def test_a_broken_link_is_found():
    text = "[here](00_welcome.ipynb), [gone](99_gone.ipynb#top), [out](https://example.org), `kernel[grid](x)`"
    assert broken(text, ROOT / "notebooks") == ["99_gone.ipynb"]


@pytest.mark.parametrize("exercise", sorted(path.stem for path in (ROOT / "exercises").glob("*.ipynb")))
def test_the_lesson_of_an_exercise_leads_to_it(exercise):
    lessons = sorted((ROOT / "notebooks").glob(f"{exercise[:2]}_*.ipynb"))
    if not lessons:
        pytest.skip(f"lesson {exercise[:2]} is not there yet")
    cells = nbformat.read(lessons[0], as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert f"../exercises/{exercise}.ipynb" in LINK.findall(CODE.sub("", text))
