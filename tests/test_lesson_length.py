"""Each lesson's main thread fits the minutes it announces, and has something to write: docs/writing.md has the rule."""

import jupytext
import pytest

from tests.lesson_length import LESSONS, Length, length_of, main_thread

MOST_MINUTES, MOST_WORDS, MOST_LARGE_TABLES = 75, 3200, 1
WITHOUT_PUZZLES = ("00", "01", "02", "03")  # these have one at least, the others two
# Lessons whose edit is not done, one a line: take yours out.
UNEDITED = {
    "00",
    "01",
    "02",
    "03b",
    "04",
    "05",
    "06",
    "07",
    "08",
    "09",
    "10",
    "15",
}


def too_much(length: Length) -> list[str]:
    """What of a lesson is over its limit."""
    least = 1 if length.lesson in WITHOUT_PUZZLES else 2
    found = {
        f"{length.minutes:.0f} minutes, {length.announced} announced": length.minutes > length.announced + 0.5,
        f"{length.announced} minutes announced, at most {MOST_MINUTES}": length.announced > MOST_MINUTES,
        f"{length.words} words, at most {MOST_WORDS}": length.words > MOST_WORDS,
        f"{length.large_tables} large tables, at most {MOST_LARGE_TABLES}": length.large_tables > MOST_LARGE_TABLES,
        f"{length.puzzles} puzzles, at least {least}": length.puzzles < least,
    }
    return [text for text, over in found.items() if over]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem.partition("_")[0])
def test_the_main_thread_keeps_its_limits(path):
    length = length_of(path)
    if length.lesson in UNEDITED:
        pytest.skip("not edited yet")
    assert too_much(length) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem.partition("_")[0])
def test_going_further_is_the_end_and_asks_nothing(path):
    cells = jupytext.read(path, fmt="py:percent").cells
    further = cells[len(main_thread(cells)) :]
    markdown = [cell.source for cell in further if cell.cell_type == "markdown"]
    assert [line for text in markdown for line in text.splitlines() if line.startswith("## ")][1:] == []
    assert not any("predict_first(" in cell.source for cell in further)


LENGTH = {"lesson": "04", "words": 1500, "lines": 60, "guesses": 4, "puzzles": 2, "explorers": 1}
LENGTH |= {"figures": 3, "large_tables": 0}


def test_the_rule_adds_words_lines_guesses_and_puzzles():
    assert Length(**LENGTH, announced=35).minutes == 10 + 10 + 6 + 9
    assert too_much(Length(**LENGTH, announced=35)) == []


@pytest.mark.parametrize(
    ("change", "announced", "text"),
    [
        ({}, 30, "35 minutes, 30 announced"),
        ({}, 80, "80 minutes announced, at most 75"),
        ({"words": 3300}, 60, "3300 words, at most 3200"),
        ({"large_tables": 2}, 35, "2 large tables, at most 1"),
        ({"puzzles": 1}, 35, "1 puzzles, at least 2"),
    ],
)
def test_a_limit_that_is_not_kept_is_named(change, announced, text):
    assert text in too_much(Length(**{**LENGTH, **change}, announced=announced))
