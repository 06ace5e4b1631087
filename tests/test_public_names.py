"""An editor follows a public name to the file that defines it, without running anything."""

import sys
from pathlib import Path

import jedi
import pytest

import helpers

ROOT = Path(helpers.__file__).parents[1]
PROJECT = jedi.Project(ROOT, sys_path=[str(ROOT), *sys.path])


@pytest.mark.parametrize(
    ("package", "name", "file"),
    [
        ("helpers.instruments", "measure", "helpers/instruments/traffic/__init__.py"),
        ("helpers.learning", "check_values", "helpers/learning/checks/values.py"),
        ("helpers.figures", "watch", "helpers/figures/frame/stepper.py"),
        ("kernels", "rms_norm", "kernels/rowwise/rms_norm.py"),
    ],
)
def test_goto_finds_the_definition(package, name, file):
    line = f"from {package} import {name}"
    found = jedi.Script(line, path=ROOT / "lesson.py", project=PROJECT).goto(1, len(line) - 1, follow_imports=True)
    assert [(str(each.module_path.relative_to(ROOT)), each.name) for each in found] == [(file, name)]


@pytest.mark.parametrize("package", ["helpers.instruments", "helpers.figures", "helpers.learning"])
def test_every_public_name_is_loaded_from_where_the_stub_says(package):
    module = __import__(package, fromlist=["_"])
    for name in module.__all__:
        assert getattr(module, name) is not None
