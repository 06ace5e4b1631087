"""Build docs/claims.md from the built lessons: every claim they quote, and how it fared when tested.

    python source/claims.py            write the page
    python source/claims.py --check    write nothing; fail if the page is stale

A lesson quotes a claim as `**Claim: ...**`; the rest of that cell gives the test conditions. A later markdown cell
judges it, `**Verdict: ...**`, or a code cell's output does, in a paragraph that begins "Verdict: ", whose first
sentence is the verdict. The outputs in between that nbval compares are the measurements.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.instruments.recordings import recorded  # noqa: E402, as build.py this runs as a script

CLAIM = re.compile(r"\*\*[Cc]laim: ?(.*?)\*\*", re.DOTALL)
VERDICT = re.compile(r"\*\*Verdict: ?(.*?)\*\*(.*?)(?:\n\n|\Z)", re.DOTALL)
SHOWN_VERDICT = re.compile(r"^Verdict: (.*?\.)(?:\s+|\Z)(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
RECORDS = ("h200", "h100_80gb_hbm3")
HEADING = """\
# Claims that circulate, and how they fared

Built by `source/claims.py` from the lessons, where each claim is tested: edit there.
"""


def text_of(cell: dict) -> str:
    return "".join(cell["source"])


def shown_by(cell: dict) -> str:
    """Return a cell's output as text, if it is the same on every machine."""
    if cell["cell_type"] != "code" or "nbval-ignore-output" in cell["metadata"].get("tags", []):
        return ""
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell["outputs"])
    return "\n".join(text for each in texts if (text := "".join(each).rstrip()))


def in_one_line(text: str) -> str:
    """Return prose without line breaks, comments and requests to guess."""
    text = re.sub(r"<!--.*?-->|\*\*[^*]*\?\*\*", "", text, flags=re.DOTALL)
    line = " ".join(text.split()).strip(" *,")
    return f"{line}**" if line.count("**") % 2 else line


def recorded_in(text: str, shown: str) -> set[str]:
    """Return the RECORDS that a cell reads, or whose label it shows."""
    return {name for name in RECORDS if name[:4] in text or f"{recorded(name).gpu}, PyTorch" in shown}


def claims_in(path: Path) -> list[dict]:
    """Return the claims of one built lesson, in order: claim, conditions, measured, on, verdict.

    Raises:
        ValueError: no cell judges a claim before the next one, or no output is shown in between.
    """
    cells, found, open_claim = json.loads(path.read_text(encoding="utf-8"))["cells"], [], None
    for cell in cells:
        text = text_of(cell)
        if cell["cell_type"] == "code":
            if open_claim is not None:
                shown = shown_by(cell)
                verdict = SHOWN_VERDICT.search(shown)
                open_claim["measured"] += [measured] if (measured := SHOWN_VERDICT.sub("", shown).rstrip()) else []
                open_claim["recorded"] |= recorded_in(text, shown)
                if verdict:
                    found.append(open_claim | {"verdict": in_one_line(verdict[1]), "why": in_one_line(verdict[2])})
                    open_claim = None
            continue
        if open_claim is not None and (verdict := VERDICT.search(text)):
            found.append(open_claim | {"verdict": in_one_line(verdict[1]), "why": in_one_line(verdict[2])})
            open_claim = None
        if claim := CLAIM.search(text):
            if open_claim is not None:
                raise ValueError(f"{path.name}: no **Verdict: ...** on the claim {open_claim['claim']!r}")
            after = text[claim.end() :].split("\n\n")[0]
            quoted = in_one_line(claim[1]).strip('"')
            open_claim = {"claim": quoted, "conditions": in_one_line(after), "measured": [], "recorded": set()}
    if open_claim is not None:
        raise ValueError(f"{path.name}: no **Verdict: ...** on the claim {open_claim['claim']!r}")
    if unshown := [each["claim"] for each in found if not each["measured"]]:
        raise ValueError(f"{path.name}: nothing is shown between the claim {unshown[0]!r} and its verdict")
    return found


def page(root: Path = ROOT) -> str:
    """Return the whole page, built from root/notebooks."""
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    of_lesson = {path: claims for path in paths if (claims := claims_in(path))}
    lines = [HEADING, "| lesson | claim | verdict |", "|---|---|---|"]
    for path, claims in of_lesson.items():
        link = f"[{path.stem.partition('_')[0]}](../notebooks/{path.name})"
        lines += [f"| {link} | {each['claim']} | {each['verdict']} |" for each in claims]
    for path, claims in of_lesson.items():
        for each in claims:
            labels = [recorded(name).label for name in RECORDS if name in each["recorded"]]
            on = "; ".join(labels) or "no GPU: counted by the meter, or compiled"
            lines += [f"\n## {each['claim']}\n", f"Lesson [{path.stem}](../notebooks/{path.name}), on {on}.\n"]
            if each["conditions"]:
                lines += [f"Tried so: {each['conditions']}\n"]
            lines += ["```text", *each["measured"], "```\n", f"**Verdict: {each['verdict']}** {each['why']}".rstrip()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    target = ROOT / "docs" / "claims.md"
    try:
        text = page()
    except ValueError as error:
        print(f"claims: {error}", file=sys.stderr)
        return 1
    if arguments == ["--check"]:
        same = target.exists() and target.read_text(encoding="utf-8") == text
        print(
            "docs/claims.md is up to date"
            if same
            else "docs/claims.md is older than the notebooks: run `make notebooks`"
        )
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
