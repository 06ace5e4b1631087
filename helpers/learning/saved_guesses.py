"""Keep a learner's guesses and seen answers across restarts, in `.progress/<lesson>.guesses.json`.

Like the check states, the file is next to the notebooks. Only a notebook run by Jupyter's server has one: nbval and
the build neither save nor load guesses.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.learning.progress import FOLDER


@dataclass(frozen=True)
class KeptGuess:
    """One question: the text typed, the number parsed from it, the measurement (None if not seen yet), and its unit."""

    typed: str
    guess: float | None
    found: float | None
    unit: str


def notebook_here() -> Path | None:
    """Return the notebook that this kernel runs, according to Jupyter's server; None elsewhere."""
    name = os.environ.get("JPY_SESSION_NAME", "")
    return Path(name) if name.endswith(".ipynb") else None


def place_of(notebook: Path) -> Path:
    return notebook.parent / FOLDER / f"{notebook.stem}.guesses.json"


def kept_in(notebook: Path | None) -> dict[str, KeptGuess]:
    """Return question -> its saved guess; malformed entries are skipped."""
    if notebook is None:
        return {}
    try:
        entries = json.loads(place_of(notebook).read_text(encoding="utf-8"))
        return {question: kept for question, entry in entries.items() if (kept := _entry(entry)) is not None}
    except (OSError, ValueError, AttributeError):
        return {}


def _entry(entry: object) -> KeptGuess | None:
    match entry:
        case {
            "typed": str(typed),
            "guess": int() | float() | None as guess,
            "found": int() | float() | None as found,
            "unit": str(unit),
        }:
            return KeptGuess(typed, guess, found, unit)
    return None


def keep(notebook: Path | None, question: str, kept: KeptGuess) -> None:
    """Save a guess; do nothing if the notebook's folder is not writable."""
    if notebook is None:
        return
    place = place_of(notebook)
    entries = {name: asdict(each) for name, each in (kept_in(notebook) | {question: kept}).items()}
    with contextlib.suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        # Write next to the file and rename, so that no reader sees half of it.
        beside = place.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        beside.replace(place)
