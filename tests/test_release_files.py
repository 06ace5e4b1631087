"""One version number everywhere in the course; the issue forms ask for useful facts."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from helpers.cli import main

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def test_the_changelog_and_the_citation_name_the_version_of_pyproject():
    newest = re.search(r"^## \[(.+?)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest[1] == citation["version"] == PROJECT["version"]
    assert newest[2] == str(citation["date-released"])
    assert citation["license"] == PROJECT["license"]


def test_the_citation_has_what_its_schema_asks_for():
    """Citation File Format 1.2.0: these keys must be there; an author is a person or, with a name alone, an entity."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert all("name" in author or "family-names" in author for author in citation["authors"])


def test_the_command_tells_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == version("kernel-fusion-course") + "\n"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes_and_asks_for_the_doctor(path):
    """By GitHub's syntax for issue forms: these keys, these types, ids that differ."""
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert {field["type"] for field in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]+", each) for each in ids)
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any("`fusion doctor`" in field["attributes"]["label"] for field in form["body"])
