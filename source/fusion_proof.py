"""Build docs/fusion_proof.md, the test of the fusion analyser: benchmarks/fusion_proof.py computes it from the records.

    python source/fusion_proof.py            write the page if it is stale: takes a minute
    python source/fusion_proof.py --check    write nothing; fail if the page is stale

Its last line, hidden from readers, lists what it was made from.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from source.made_from import Project, changed, older_than  # noqa: E402, this runs as a script

PAGE = "docs/fusion_proof.md"
LAST_LINE = re.compile(r"<!-- made from (.*) -->\n\Z")


def made_from(project: Project) -> dict[str, str]:
    return project.made_from("source/fusion_proof.py")


def drift_of(root: Path = ROOT) -> str | None:
    """Return why the page is stale, or None."""
    path = root / PAGE
    found = LAST_LINE.search(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is None:
        return "was not written by source/fusion_proof.py"
    names = changed(json.loads(found[1]), made_from(Project(root)))
    return older_than(names) if names else None


def main(arguments: list[str]) -> int:
    reason = drift_of()
    if arguments == ["--check"]:
        print(f"{PAGE} {reason}: run `make notebooks`" if reason else f"{PAGE} is up to date")
        return 1 if reason else 0
    if reason:
        from benchmarks.fusion_proof import document

        used = json.dumps(made_from(Project(ROOT)))
        (ROOT / PAGE).write_text(f"{document()}\n<!-- made from {used} -->\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
