"""Every quantity in a notebook's prose can be checked: a cell shows it, a claim to be tested quotes it, or it is
marked as given, with its source. docs/writing.md tells authors how."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path for folder in ("notebooks", "solutions") for path in (ROOT / folder).glob("*.ipynb"))

UNIT = (
    r"[kKMGTP]?i?B(?:/s|/element)?|bytes?|bits?|[kMGTP]?FLOPs?(?:/s|/byte)?|[kMG]?Hz|[mµun]s|(?<=\s)s|seconds?|"
    r"%|per ?cent|times|(?<=\d)[x×]|registers?|launch(?:es)?"
)
QUANTITY = re.compile(rf"(?<![\w./])(\d+(?:,\d{{3}})*(?:\.\d+)?)[\s-]?({UNIT})(?![\w/])")
FACTOR = re.compile(
    r"\b(?:speed-?up|slow-?down|factor) of (\d+(?:\.\d+)?)(?![\w.]*\d)(?!\s?(?:%|[a-zµ×]*(?:times|x|×|s)\b))",
    re.IGNORECASE,
)
SAME = {
    "byte": "B",
    "bytes": "B",
    "bit": "bits",
    "per cent": "%",
    "percent": "%",
    "times": "x",
    "×": "x",
    "µs": "us",
    "register": "registers",
}
SAME |= {"second": "s", "seconds": "s", "launch": "launches", "FLOPs": "FLOP"}

GIVEN = re.compile(r"<!-- given (.+?): \S.*?-->", re.DOTALL)
CLAIM = re.compile(r"\*\*[Cc]laim:.*?\*\*", re.DOTALL)
NO_PROSE = re.compile(r"<!--.*?-->|```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)", re.DOTALL)


def quantities(text: str) -> list[str]:
    """Every number with a unit, each unit in one spelling: "12,000 bytes" is "12000 B"."""
    found = [(each.start(), each[1], each[2]) for each in QUANTITY.finditer(text)]
    found += [(each.start(), each[1], "x") for each in FACTOR.finditer(text)]
    return [f"{number.replace(',', '')} {SAME.get(unit, unit)}" for _, number, unit in sorted(found)]


def unaccounted(text: str, shown: str = "") -> list[str]:
    """The quantities in a markdown cell that are neither claimed nor given nor in `shown`, what cells show."""
    known = {quantity for given in GIVEN.findall(text) for quantity in quantities(given)} | set(quantities(shown))
    prose = NO_PROSE.sub(" ", CLAIM.sub(" ", text))
    return [quantity for quantity in quantities(prose) if quantity not in known]


def shown_by(notebook: nbformat.NotebookNode) -> str:
    """All text in the outputs of cells whose outputs are the same on every machine."""
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", []):
            texts += [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_quantity_in_prose_is_accounted_for(path):
    notebook = nbformat.read(path, as_version=4)
    shown = shown_by(notebook)
    found = [
        f"{quantity}: {cell.source[:60]!r}"
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for quantity in unaccounted(cell.source, shown)
    ]
    assert not found, "show it in a cell, or mark it (docs/writing.md): " + "; ".join(found)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The fused kernel takes 5.2 µs.", ["5.2 us"]),
        ("It is 1.86 times faster, moves 12 MB at 3,350 GB/s,\nand needs 32\nregisters.", None),
        ("At 40 % occupancy, 16-bit loads, 1.5x", ["40 %", "16 bits", "1.5 x"]),
        ("It is 1.7× faster, 12 percent less, a speedup of 1.7; a slowdown of 2.", ["1.7 x", "12 %", "1.7 x", "2 x"]),
        ("3 × 3 taps, 3×3 taps, a speed-up of 200 us", ["200 us"]),
        ("**Claim: it is 1.86 times faster.** It is not: 1.6 times.", ["1.6 x"]),
        ('The paper\'s **claim: "up to 5 times\nfaster"** fails', []),
        ("A register has 32 bits. <!-- given 32 bits: CUDA C++ Programming Guide -->", []),
        ("A register has 32 bits. <!-- given 64 bits: CUDA C++ Programming Guide -->", ["32 bits"]),
        ("A register has 32 bits. <!-- given 32 bits: -->", ["32 bits"]),  # no source
        ("Two launches, eleven bytes; 24 elements, 16384 rows, A100, tiles of 4 x 4, a row of 2s and 4s", []),
        ("`BLOCK = 4 bytes`, $2 s$, [here](10%20s.html)", []),
    ],
)
def test_what_is_found(text, left):
    expected = ["1.86 x", "12 MB", "3350 GB/s", "32 registers"] if left is None else left
    assert unaccounted(text) == expected


def test_what_a_cell_shows_is_accounted_for_unless_it_differs_between_machines():
    cell, prose = nbformat.v4.new_code_cell, "It moves 12,000 bytes in 3.1 ms."
    outputs = [nbformat.v4.new_output("stream", text="12000 B, 3.1 ms\n")]
    notebook = nbformat.v4.new_notebook(cells=[cell("1", outputs=outputs)])
    assert unaccounted(prose, shown_by(notebook)) == []
    notebook.cells[0].metadata["tags"] = ["nbval-ignore-output"]
    assert unaccounted(prose, shown_by(notebook)) == ["12000 B", "3.1 ms"]


INLINE = re.compile(r"\$[^$]+\$|`[^`]+`")


def split_by_lists(text: str) -> list[str]:
    """Code and formulas with a line that begins as a list's item: Markdown makes one of it."""
    blocks = re.split(r"\n\s*\n", re.sub(r"```.*?```|<!--.*?-->|\$\$.*?\$\$", "", text, flags=re.DOTALL))
    return [each for block in blocks for each in INLINE.findall(block) if re.search(r"\n\s*([-+*]|\d+[.)]) ", each)]


def test_no_code_or_formula_is_split_into_a_list():
    sources = [path for folder in ("lessons", "exercises") for path in (ROOT / "source" / folder).glob("*.py")]
    cells = [(path.name, cell) for path in sources for cell in jupytext.read(path, fmt="py:percent").cells]
    texts = [(name, cell.source) for name, cell in cells if cell.cell_type == "markdown"]
    assert len(texts) > 500
    found = {name: split for name, text in texts if (split := split_by_lists(text))}
    assert found == {}
    assert split_by_lists("unless it is empty: $-\\infty\n- (-\\infty)$ is NaN, and `a\n+ b` too") != []
    assert split_by_lists("of $a$:\n\n- $b$ and `c`\n- $d$") == []


IN_ASCII = re.compile(r"\d us\b|\b(?:in|per) us\b")


def test_prose_and_questions_write_a_microsecond_as_charts_do():
    """Only what a cell prints may have "us"."""
    sources = [path for folder in ("lessons", "exercises") for path in (ROOT / "source" / folder).glob("*.py")]
    cells = [(path.name, cell) for path in sources for cell in jupytext.read(path, fmt="py:percent").cells]
    prose = [(name, cell.source) for name, cell in cells if cell.cell_type == "markdown"]
    texts = [(name, re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)) for name, text in prose]
    assert [(name, found[0]) for name, text in texts if (found := IN_ASCII.search(text))] == []
    assert [path.name for path in sources if re.search(r'unit="us"', path.read_text())] == []
    assert IN_ASCII.search("It takes 90 us, at 3 MB per us.")
