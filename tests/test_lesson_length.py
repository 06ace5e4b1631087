"""Each lesson's main thread fits the minutes it announces, and has code to write: docs/writing.md has the rule."""

import itertools
import re

import jupytext
import nbformat
import pytest

from tests.lesson_length import LESSONS, Length, length_of, main_thread

CLAIM = re.compile(r"\*\*[Cc]laim:.*?\*\*", re.DOTALL)
MOST_MINUTES, MOST_WORDS, MOST_LARGE_TABLES = 75, 3200, 1
WITHOUT_PUZZLES = ("00", "01", "02", "03")  # these have one at least, the others two


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
    assert too_much(length_of(path)) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem.partition("_")[0])
def test_going_further_is_the_end_and_asks_nothing(path):
    cells = jupytext.read(path, fmt="py:percent").cells
    further = cells[len(main_thread(cells)) :]
    markdown = [cell.source for cell in further if cell.cell_type == "markdown"]
    assert [line for text in markdown for line in text.splitlines() if line.startswith("## ")][1:] == []
    assert not any("predict_first(" in cell.source for cell in further)


def unasked(cells: list) -> list[str]:
    """The bold questions, but for those of the first cell and of claims, that no cell asks before the next text."""
    found = []
    for at, cell in enumerate(cells[1:], 1):
        if cell.cell_type == "markdown":
            code = itertools.takewhile(lambda each: each.cell_type == "code", cells[at + 1 :])
            guesses = sum("= predict_first(" in each.source for each in code)
            questions = re.findall(r"\*\*[^*]*\?\*\*", CLAIM.sub("", cell.source))
            found += questions if len(questions) > guesses else []
    return found


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem.partition("_")[0])
def test_every_bold_question_has_its_guess(path):
    assert unasked(main_thread(jupytext.read(path, fmt="py:percent").cells)) == []


def test_a_bold_question_without_a_guess_is_found():
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    opening, question = markdown("**Why?**"), markdown("**Claim: is it twice?** **How many\nbytes?**")
    asks = code('moved = predict_first("bytes", unit="B")')
    assert unasked([opening, question, code("def f(): ..."), asks]) == []
    assert unasked([opening, question, code("f()"), markdown("More."), asks]) == ["**How many\nbytes?**"]


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
