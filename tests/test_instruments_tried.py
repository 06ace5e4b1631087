"""docs/instruments_tried.md names tests that exist, and counts patterns as they are."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "instruments_tried.md").read_text()


def test_the_tests_that_the_page_names_exist():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE))
    assert len(named) >= 30
    for file in {file for file, _ in named}:
        tree = ast.parse((ROOT / file).read_text())
        found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name for each, name in named if each == file} <= found, file


@pytest.mark.parametrize("which", ["planted races", "sound patterns"])
def test_patterns_are_counted(which, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cuda"))
    sys.modules.pop("test_cuda_global_races", None)
    import test_cuda_global_races as races

    counted = {"planted races": len(races.RACES), "sound patterns": len(races.SOUND)}
    assert f"{counted[which]} {which}" in PAGE
