"""nbgrader reads the notebooks: its validator accepts their metadata, its generator gives the same exercises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from extra_packages import folder_with

from helpers.learning.submission import read_submission

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.name for path in (ROOT / "solutions").glob("*.ipynb"))
CONFIGURATION = """\
c = get_config()
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}
"""
# Prints the notebooks that its validator refuses, a line each.
VALIDATE = """\
import sys
from nbgrader import nbgraderformat
for path in sys.argv[1:]:
    try:
        nbgraderformat.MetadataValidator().validate_nb(nbgraderformat.read(path, as_version=4))
    except Exception as error:
        print(path, error)
"""


# nbgrader is installed for it, and generates every notebook.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Variables with which Python finds nbgrader: in a folder of its own, as it changes the JupyterLab beside it."""
    folder = folder_with("nbgrader")
    # It starts alembic, by name, for its database.
    return os.environ | {"PYTHONPATH": str(folder), "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def generated(tmp_path_factory, environment):
    """The folder of what `nbgrader generate_assignment` makes of the solutions."""
    course = tmp_path_factory.mktemp("nbgrader")
    (course / "source" / "fusion").mkdir(parents=True)
    (course / "nbgrader_config.py").write_text(CONFIGURATION)
    for name in NAMES:
        (course / "source" / "fusion" / name).write_bytes((ROOT / "solutions" / name).read_bytes())
    run = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", "fusion", "--create", f"--course-dir={course}"],
        cwd=course,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    return course / "release" / "fusion"


def refused(paths: list[Path], environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", VALIDATE, *paths]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_its_validator_accepts_the_metadata(environment, tmp_path):
    paths = [ROOT / folder / name for folder in ("solutions", "exercises") for name in NAMES]
    assert refused(paths, environment) == ""
    content = json.loads(paths[0].read_text())
    graded = next(cell for cell in content["cells"] if "nbgrader" in cell["metadata"])
    del graded["metadata"]["nbgrader"]["grade_id"]
    (tmp_path / "no_id.ipynb").write_text(json.dumps(content))
    assert "no_id.ipynb" in refused([tmp_path / "no_id.ipynb"], environment)


@pytest.mark.parametrize("name", NAMES)
def test_its_generator_gives_the_same_exercise(generated, name):
    assert cells_of(generated / name) == cells_of(ROOT / "exercises" / name)
    # What `fusion check` reads, and no answer with it.
    assert read_submission(generated / name) == read_submission(ROOT / "exercises" / name)


def cells_of(path: Path) -> list[tuple]:
    """Type, source and metadata of each cell, without the checksums that the generator adds."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        cell["metadata"].get("nbgrader", {}).pop("checksum", None)
        cells.append((cell["cell_type"], "".join(cell["source"]), cell["metadata"]))
    return cells
