"""Measure the lessons' main threads, everything before "Going further": docs/writing.md has the rule and the limits.

python tests/lesson_length.py          one line per lesson
"""

import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "source/lessons").glob("[0-9]*.py"))

WORDS_PER_MINUTE, LINES_PER_MINUTE = 150, 6
MINUTES_PER_GUESS, MINUTES_PER_PUZZLE = 1.5, 3  # an explorer takes as long as a puzzle
LARGE_TABLE = 40  # numbers

FURTHER = re.compile(r"^## Going further$", re.MULTILINE)
PUZZLE = re.compile(r"^puzzle\(|\b(?:choose_edges|(?:cuda|graph|order|pattern|score)_puzzle)\(", re.MULTILINE)
EXPLORER = re.compile(r"\b[A-Z]\w*(?:Explorer|Simulator|Stepper|Flowchart)\(")
FIGURE = re.compile(r"\b(?:\w+_(?:chart|picture|animation)|watch)\(|" + EXPLORER.pattern)
NOT_READ = re.compile(r"<!--.*?-->|\]\([^)]*\)|<[^>\n]{1,80}>|\$[^$]*\$", re.DOTALL)
NUMBER_CELL = re.compile(r"<td[^>]*>[^<]*\d[^<]*</td>")


@dataclass(frozen=True)
class Length:
    """One lesson's main thread; `announced`: minutes by its first cell; `large_tables`: of more than 40 numbers."""

    lesson: str
    words: int
    lines: int
    guesses: int
    puzzles: int
    explorers: int
    figures: int
    large_tables: int
    announced: int

    @property
    def minutes(self) -> float:
        """What a learner who predicts and plays takes, by the rule in docs/writing.md."""
        reading = self.words / WORDS_PER_MINUTE + self.lines / LINES_PER_MINUTE
        return reading + MINUTES_PER_GUESS * self.guesses + MINUTES_PER_PUZZLE * (self.puzzles + self.explorers)


def main_thread(cells: list) -> list:
    """The cells before the heading "Going further"; all of them where there is none."""
    ends = (at for at, cell in enumerate(cells) if cell.cell_type == "markdown" and FURTHER.search(cell.source))
    return cells[: next(ends, len(cells))]


def length_of(path: Path) -> Length:
    """Measure a lesson's source, and its tables in the notebook built of it."""
    cells = main_thread(jupytext.read(path, fmt="py:percent").cells)
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    read = [
        cell.source for cell in cells if cell.cell_type == "code" and "hide-input" not in cell.metadata.get("tags", [])
    ]
    built = ROOT / "notebooks" / f"{path.stem}.ipynb"
    outputs = main_thread(nbformat.read(built, as_version=4).cells) if built.exists() else []
    return Length(
        lesson=path.stem.partition("_")[0],
        words=len(re.findall(r"\w[\w'’.,-]*", NOT_READ.sub(" ", text))),
        lines=sum(bool(line.strip()) for source in read for line in source.splitlines()),
        guesses=sum("= predict_first(" in source for source in code),
        puzzles=sum(bool(PUZZLE.search(source)) for source in code),
        explorers=sum(bool(EXPLORER.search(source)) for source in code),
        figures=sum(bool(FIGURE.search(source)) for source in code),
        large_tables=sum(numbers > LARGE_TABLE for numbers in numbers_in_tables(outputs)),
        announced=int(re.search(r"About (\d+) minutes", text)[1]),
    )


def numbers_in_tables(cells: list) -> list[int]:
    """Count the numbers of every table that the cells show: its data cells with a digit."""
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/html", "") for output in outputs]
    return [len(NUMBER_CELL.findall(text)) for text in shown if "<table" in text]


def main() -> None:
    columns = ("lesson", "words", "lines", "guesses", "puzzles", "explorers", "figures", "large tables")
    print(" ".join(f"{name:>12}" for name in (*columns, "minutes", "announced")))
    for length in map(length_of, LESSONS):
        row = [getattr(length, name.replace(" ", "_")) for name in columns]
        print(" ".join(f"{each:>12}" for each in (*row, f"{length.minutes:.0f}", length.announced)))


if __name__ == "__main__":
    main()
