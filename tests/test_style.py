"""Every colour, size and font in the helpers comes from helpers/style.py, including SVG, style sheets and scripts."""

import re
from pathlib import Path

import pytest

import helpers
from helpers import style

HELPERS = Path(helpers.__file__).parent
FILES = sorted(path for ending in ("py", "js", "css") for path in HELPERS.rglob(f"*.{ending}"))
LITERALS = {
    "a colour": re.compile(r"""["'\s:;(]#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6}|[0-9a-fA-F]{3,4})\b|rgba?\(\s*\d"""),
    "a font's size": re.compile(
        r"""font-?size["']?\s*[=:]\s*["']?[\d.]+(?!\d*\.?\d*em)|[( ](?:font)?size=[\d.]+, (?:ha|va|color|weight|loc)"""
    ),
    "a font": re.compile(r"sans-serif|(?<!--fusion-)\bmonospace\b|\bfont: *\d"),
}


@pytest.mark.parametrize("what", LITERALS)
def test_only_the_style_module_sets_it(what):
    found = [
        f"{path.relative_to(HELPERS)}:{number}: {line.strip()}"
        for path in FILES
        if path.name != "style.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LITERALS[what].search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a colour", 'UNFUSED = "#E69F00"'),
        ("a colour", "border: 1px solid #7a7a7a;"),
        ("a colour", "background: rgba(0, 158, 115, 0.75);"),
        ("a font's size", """f'<text font-size="8.5">'"""),
        ("a font's size", "font-size: 12px;"),
        ("a font's size", 'axes.text(x, y, name, size=8.5, ha="center")'),
        ("a font", "font-family: sans-serif"),
    ],
)
def test_a_literal_is_found(what, line):
    assert LITERALS[what].search(line)


def test_style_sheets_and_scripts_use_only_what_the_style_module_gives():
    given = set(re.findall(r"--fusion-[\w-]+", style.css(HELPERS / "figures/frame/explorer.css").split("\n")[0]))
    keys = set(re.findall(r'"(\w+)":', style.javascript().split("\n")[0]))
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".css":
            assert set(re.findall(r"var\((--fusion-[\w-]+)", text)) <= given, path
        if path.suffix == ".js":
            assert set(re.findall(r"\bSTYLE\.(\w+)", text)) <= keys, path
