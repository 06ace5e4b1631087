"""The glossary: in alphabetical order, each entry links its lesson, and every link to the glossary finds its entry."""

import re
from pathlib import Path

import pytest

from tests.lesson_length import LESSONS

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
SOURCES = [*sorted((ROOT / "source").glob("*/*.py")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
LINK = re.compile(r"glossary\.md#([\w-]+)")


def anchor(heading: str) -> str:
    """As source/build_site.py and GitHub make it, for the headings that a glossary has."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def number(lesson: Path) -> str:
    return lesson.stem.partition("_")[0]


ENTRIES = dict(re.findall(r"^## (.+)\n\n(.+)$", GLOSSARY, re.MULTILINE))


def test_entries_are_in_order_and_one_paragraph_each():
    terms = re.findall(r"^## (.+)$", GLOSSARY, re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    assert list(ENTRIES) == terms
    assert len({anchor(term) for term in terms}) == len(terms)
    assert not any("'" in term for term in terms), "GitHub and the site make different anchors of it"


def test_a_letter_jumps_to_its_first_entry():
    first = {}
    for term in ENTRIES:
        first.setdefault(term[0].upper(), anchor(term))
    assert " · ".join(f"[{letter}](#{entry})" for letter, entry in first.items()) in GLOSSARY.splitlines()


@pytest.mark.parametrize("term", ENTRIES)
def test_an_entry_is_short_and_ends_with_its_lesson(term):
    text, lesson = re.fullmatch(r"(.+) (\[\d\db?\]\(\.\./notebooks/[\w.]+\))", ENTRIES[term]).groups()
    assert len(text.split()) <= 45
    assert 1 <= len(re.findall(r"[.!?](?:\s|$)", text)) <= 3
    assert (ROOT / "docs" / re.search(r"\((.+)\)", lesson)[1]).exists()


@pytest.mark.parametrize("lesson", LESSONS, ids=number)
def test_a_lesson_links_the_entries_that_name_it(lesson):
    linked = set(LINK.findall(lesson.read_text(encoding="utf-8")))
    own = {anchor(term) for term, text in ENTRIES.items() if f"[{number(lesson)}](" in text}
    assert own - linked == set()


def test_every_link_leads_to_an_entry():
    anchors = {anchor(term) for term in ENTRIES}
    links = {(path.name, found) for path in SOURCES for found in LINK.findall(path.read_text(encoding="utf-8"))} - {
        ("writing.md", "term")
    }
    assert {link for link in links if link[1] not in anchors} == set()
