"""docs/claims.md: every claim in the lessons has its verdict."""

import importlib.util
import json
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("claims", ROOT / "source" / "claims.py")
claims = importlib.util.module_from_spec(spec)
spec.loader.exec_module(claims)

CLAIM = '**Claim: "fusing is 2 times\nfaster."** On 1024 rows, in fp32. **How many times?**\n\nMore.'
VERDICT = "Before. **Verdict: fails\nhere.** The bytes are\nthe same.\n\nAfter."


def lesson(folder: Path, *cells: tuple[str, str]) -> Path:
    """A built lesson: (markdown, text) or (code, what it shows); "drawn" is code that differs between machines."""
    folder.mkdir(exist_ok=True)
    built = []
    for kind, text in cells:
        cell = {"cell_type": "markdown" if kind == "markdown" else "code", "metadata": {}, "source": [text]}
        if kind != "markdown":
            cell |= {"source": ["print()"], "outputs": [{"output_type": "stream", "text": [text]}]}
            cell["metadata"] = {"tags": ["nbval-ignore-output"]} if kind == "drawn" else {}
        built.append(cell)
    path = folder / "01_lesson.ipynb"
    path.write_text(json.dumps({"cells": built}))
    return path


def test_a_claim_its_conditions_what_was_measured_and_the_verdict(tmp_path):
    cells = ("markdown", CLAIM), ("code", "1.0 times"), ("drawn", "3 ms"), ("markdown", VERDICT), ("code", "later")
    (found,) = claims.claims_in(lesson(tmp_path / "notebooks", *cells))
    assert found == {
        "claim": "fusing is 2 times faster.",
        "conditions": "On 1024 rows, in fp32.",
        "measured": ["1.0 times"],
        "recorded": set(),
        "verdict": "fails here.",
        "why": "The bytes are the same.",
    }
    page = claims.page(tmp_path)
    assert "| [01](../notebooks/01_lesson.ipynb) | fusing is 2 times faster. | fails here. |" in page
    assert "1.0 times\n```" in page
    assert "3 ms" not in page


@pytest.mark.parametrize("gpu", claims.RECORDS)
def test_the_page_names_the_gpu_whose_record_a_claim_was_tried_on(tmp_path, gpu):
    label = claims.recorded(gpu).label
    lesson(tmp_path / "notebooks", ("markdown", CLAIM), ("code", f"{label}\n1.0 times"), ("markdown", VERDICT))
    page = claims.page(tmp_path)
    assert f"on {label}.\n" in page
    assert "on no GPU" not in page


def test_a_verdict_may_be_in_the_output_that_answers(tmp_path):
    answer = "speed-up: 1.7; you made no guess\nVerdict: holds at 1.7\ntimes. The bytes\nagree."
    cells = ("markdown", CLAIM), ("code", "1.0 times"), ("code", answer), ("code", "later")
    (found,) = claims.claims_in(lesson(tmp_path / "notebooks", *cells))
    assert (found["verdict"], found["why"]) == ("holds at 1.7 times.", "The bytes agree.")
    assert found["measured"] == ["1.0 times", "speed-up: 1.7; you made no guess"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([("markdown", CLAIM), ("code", "1")], r"no \*\*Verdict"),
        ([("markdown", CLAIM), ("markdown", CLAIM), ("markdown", VERDICT)], r"no \*\*Verdict"),
        ([("markdown", CLAIM), ("drawn", "1"), ("markdown", VERDICT)], "nothing is shown between"),
    ],
)
def test_a_claim_that_is_not_judged_or_not_tested(tmp_path, cells, message):
    with pytest.raises(ValueError, match=message):
        claims.claims_in(lesson(tmp_path, *cells))


@pytest.mark.parametrize("source", sorted((ROOT / "source" / "lessons").glob("*.py")), ids=lambda path: path.stem)
def test_every_claim_of_a_source_is_judged(source, tmp_path):
    """Whatever the cells between show: here each code cell shows something."""
    cells = jupytext.read(source, fmt="py:percent").cells
    kinds = [
        ("markdown", cell.source)
        if cell.cell_type == "markdown"
        else ("code", "shown\nVerdict: judged." if "Verdict: " in cell.source else "shown")
        for cell in cells
    ]
    found = claims.claims_in(lesson(tmp_path, *kinds))
    claimed = sum(len(claims.CLAIM.findall(cell.source)) for cell in cells if cell.cell_type == "markdown")
    assert len(found) == claimed
