"""The pages of a report: the code stands beside the verdict, a page for a student tells of nobody else and nothing
hidden, and whatever was handed in is text."""

import html
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import attacks
import pytest

from helpers.grading import report_pages, similarity
from helpers.grading.class_folder import Class, Found
from helpers.grading.exercise import exercises_in
from helpers.grading.grade import Check, Result, for_student
from helpers.grading.gradebook import Rules, gradebook

NAME = attacks.NAME
EVIL = '<script>alert(1)</script><img src="//evil.example/x" onerror=alert(1)>'
CODE = f'x = 1  # {EVIL}\n\ny = """</pre></div>{EVIL}\n# **bold** [link](javascript:alert)\u202e\x1b[2J\n"""\n'
CHECKS = (
    Check("values", "fail", 5, 0, False, f"got {EVIL}"),
    Check("other-values", "fail", 3, 0, True, "seed 1729 of the hidden check"),
)
RESULT = Result(NAME, CHECKS, 1, ("error",), 1.0, {"kernel": CODE, "launcher": attacks.LAUNCHER})


class Seen(HTMLParser):
    """Which elements and attributes a browser would see, and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.attributes, self.text = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def book_of(*students: str):
    found = tuple(Found(student, NAME, "x.ipynb") for student in students)
    results = {(student, NAME): RESULT for student in students}
    return gradebook(Class(Path(), found, (), {}), results, exercises_in(only="03"), Rules())


def student_page(student: str) -> str:
    book = book_of(student, "jones")
    return report_pages.student_page(book.rows_of(student)[0], {NAME: for_student(RESULT)}, book)


def class_page(students: dict[str, str]) -> str:
    kept = [(student, RESULT) for student in students]
    pair = similarity.AlikePair(tuple(students)[:2], 0.9, (0.5, 0.4))
    return report_pages.class_page(
        kept, exercises_in(only="03"), [(EVIL, EVIL)], {NAME: [pair]}, students, book_of(*students)
    )


LINKS = {EVIL: "evil-0123456789abcdef", "jones": "jones"}
MADE = {
    "student": student_page(EVIL),
    "answers": report_pages.answers_page(NAME, [(student, RESULT) for student in LINKS], LINKS),
    "class": class_page(LINKS),
}


@pytest.mark.parametrize("kind", MADE)
def test_what_was_handed_in_is_text(kind):
    seen = Seen(MADE[kind])
    assert not seen.elements & {"script", "img", "link", "iframe", "a" if kind != "class" else ""}
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name == "src"]
    targets = [value for name, value in seen.attributes if name == "href"]
    assert all(re.fullmatch(r"(feedback|answers)/[\w.#-]+", target) for target in targets)
    assert "<script>alert(1)</script>" in seen.text
    assert not re.search("[\x1b\u202e]", MADE[kind])
    assert "default-src 'none'" in html.unescape(MADE[kind])


def test_a_student_reads_the_code_beside_the_verdict_and_of_nobody_else():
    page = Seen(student_page("smith")).text
    shown = re.sub(r"^ *\d+", "", page, flags=re.MULTILINE)
    assert "x = 1  # <script>" in shown
    assert "def add_gelu(a, b):" in shown
    assert "values: fail, 0 of 5" in page
    assert "other-values: fail, 0 of 3 (hidden)kept for the grading" in page
    assert "1729" not in page
    assert "jones" not in page


def test_the_instructor_reads_what_hidden_checks_said():
    page = Seen(MADE["answers"]).text
    assert page.count("seed 1729 of the hidden check") == 2
    assert 'id="jones"' in MADE["answers"]
    assert f'href="answers/{NAME}.html#jones"' in MADE["class"]
    assert re.search(r"\(50%\), jones \(40%\)\s*90%", Seen(MADE["class"]).text)


def test_lines_are_numbered_as_messages_number_them():
    assert re.findall(r'class="linenos">\s*(\d+)</span>([^<]*)', report_pages.code("\n\na\n")) == [
        ("1", "\n"),
        ("2", "\n"),
        ("3", ""),
    ]


@pytest.mark.parametrize(
    "text", ["'" * 10**6, "(" * 10**6, "\\\n" * 10**6, "rb'\\" * 10**6, "f'{" * 10**6, " " * 10**6]
)
def test_a_long_answer_takes_no_long_time(text):
    began = time.process_time()
    assert "Cut after 50,000 of" in report_pages.code(text)
    assert time.process_time() - began < 10
