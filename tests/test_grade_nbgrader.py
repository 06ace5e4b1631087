"""nbgrader reads the notebooks: its validator accepts their metadata, its generator gives the same exercises."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

nbgraderformat = pytest.importorskip("nbgrader.nbgraderformat", reason="needs nbgrader: pip install -e '.[nbgrader]'")
ROOT = Path(__file__).parents[1]
NAMES = sorted(path.name for path in (ROOT / "solutions").glob("*.ipynb"))
CONFIGURATION = """\
c = get_config()
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here"}
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The folder of what `nbgrader generate_assignment` makes of the solutions."""
    course = tmp_path_factory.mktemp("nbgrader")
    (course / "source" / "fusion").mkdir(parents=True)
    (course / "nbgrader_config.py").write_text(CONFIGURATION)
    for name in NAMES:
        (course / "source" / "fusion" / name).write_bytes((ROOT / "solutions" / name).read_bytes())
    # It starts alembic, by name, for its database.
    folders = [sysconfig.get_path("scripts"), *(f"{path}/bin" for path in sys.path if path), os.environ["PATH"]]
    run = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", "fusion", "--create", f"--course-dir={course}"],
        cwd=course,
        env=os.environ | {"PATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    return course / "release" / "fusion"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", ["solutions", "exercises"])
def test_its_validator_accepts_the_metadata(folder, name):
    notebook = nbgraderformat.read(ROOT / folder / name, as_version=4)  # which validates
    nbgraderformat.MetadataValidator().validate_nb(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_its_generator_gives_the_same_exercise(generated, name):
    assert cells_of(generated / name) == cells_of(ROOT / "exercises" / name)


def cells_of(path: Path) -> list[tuple]:
    """Type, source and metadata of each cell, without the checksums that the generator adds."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        cell["metadata"].get("nbgrader", {}).pop("checksum", None)
        cells.append((cell["cell_type"], "".join(cell["source"]), cell["metadata"]))
    return cells
