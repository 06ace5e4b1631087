"""The report on a class, made from the results kept in its folder: JSON first, all else from it.

    results/<student>/<exercise>.json    each result, hidden checks' messages included
    results/<student>/report.html        for the student: hidden checks redacted
    results/<student>/results.json       for Gradescope: hidden checks redacted and not shown
    grades.csv, junit.xml, report.html   for the instructor

Whatever came from a submission, its name included, is text here and nothing else: not a formula, not markup.
"""

import csv
import hashlib
import io
import json
import re
from collections import Counter
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from helpers.grading.class_folder import Class
from helpers.grading.exercise import Exercise
from helpers.grading.files import write_whole
from helpers.grading.grade import STATES, Result, clean, for_student, result_from_json
from helpers.learning.outcome import EDGE, PASS

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
:root { color-scheme: light dark }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: 0.3em 0.8em; vertical-align: top }
tr + tr td { border-top: 1px solid #8888 } pre { white-space: pre-wrap; margin: 0; font-size: 0.85em }
.state { border-left: 4px solid #888888; padding-left: 0.5em }
"""
Kept = list[tuple[str, Result]]


def folder_of(out: Path, student: str) -> Path:
    """A student's folder: the name where it is plain and ends like no digest, else made plain, with a digest."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", student).strip(".-")[:60]
    if plain != student or not plain or re.search("-[0-9a-f]{16}$", plain):
        plain = f"{plain}-{hashlib.sha256(student.encode(errors='surrogatepass')).hexdigest()[:16]}"
    return out / "results" / plain


def write(out: Path, students: Class, exercises: dict[str, Exercise], ungraded: dict[str, str]) -> None:
    """Write every report from the results kept in `out`."""
    kept = results_in(out, students)
    write_whole(out / "grades.csv", grades(kept))
    write_whole(out / "junit.xml", junit(out, students))
    write_whole(out / "report.html", class_page(kept, exercises, students, ungraded))
    for student in sorted({student for student, _ in kept}):
        mine = [for_student(result) for whose, result in kept if whose == student]
        write_whole(folder_of(out, student) / "report.html", student_page(student, mine))
        write_whole(folder_of(out, student) / "results.json", gradescope(mine))


def results_in(out: Path, students: Class) -> Kept:
    kept = []
    for each in students.found:
        path = folder_of(out, each.student) / f"{each.exercise}.json"
        if path.exists():
            kept.append((each.student, result_from_json(json.loads(path.read_text(encoding="utf-8"))["result"])))
    return kept


def table(out: Path, students: Class, ungraded: dict[str, str]) -> str:
    """The results as lines of text."""
    kept = results_in(out, students)
    width = max((len(clean(student)) for student, _ in kept), default=0)
    lines = [
        f"{clean(student):{width}}  {result.exercise}  {result.earned:g} of {result.points:g}  {' '.join(result.flags)}"
        for student, result in kept
    ]
    lines += [f"not graded: {clean(path)}: {clean(why)}" for path, why in [*students.left, *ungraded.items()]]
    lines.append(f"{len(kept)} graded; read {out / 'report.html'}")
    return "\n".join(line.rstrip() for line in lines)


# For programs


def grades(kept: Kept) -> str:
    """CSV: a line for each student and exercise. A spreadsheet takes no cell for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", "exercise", "earned", "points", "flags"])
    for student, result in kept:
        writer.writerow(
            [
                as_text(student),
                result.exercise,
                f"{result.earned:g}",
                f"{result.points:g}",
                " ".join(result.flags),
            ]
        )
    return text.getvalue()


def as_text(cell: str) -> str:
    cell = clean(cell).replace("\n", " ")
    return f"'{cell}" if cell.lstrip()[:1] in tuple("=+-@|%'") and cell.strip() else cell


def gradescope(results: list[Result]) -> str:
    """Gradescope's results.json: https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
    tests = [
        {
            "name": f"{result.exercise}: {check.check}",
            "score": check.earned,
            "max_score": check.points,
            "output": f"{check.state}\n{check.message}".strip(),
            "output_format": "text",
            "visibility": "after_published" if check.hidden else "visible",
        }
        for result in results
        for check in result.checks
    ]
    return json.dumps({"score": sum(result.earned for result in results), "tests": tests}, indent=1) + "\n"


def junit(out: Path, students: Class) -> str:
    """nbval's own JUnit XML, merged: a test suite for each student and exercise."""
    whole = ElementTree.Element("testsuites")
    for each in students.found:
        path = folder_of(out, each.student) / f"{each.exercise}.xml"
        if not path.exists() or not path.stat().st_size:
            continue
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            suite.set("name", clean(f"{each.student}/{each.exercise}"))
            for name in ("timestamp", "hostname"):
                suite.attrib.pop(name, None)
            for case in suite.iter("testcase"):
                # The name of a temporary folder's notebook says nothing.
                case.set("classname", clean(f"{each.student}/{each.exercise}"))
            whole.append(suite)
    return ElementTree.tostring(whole, encoding="unicode", xml_declaration=True) + "\n"


# For people


def page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>\n{body}</html>\n"
    )


def rows(header: list[str], lines: list[list[str]]) -> str:
    """A table; what stands in `lines` is HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>\n" for line in lines)
    return f"<table><tr>{head}</tr>\n{body}</table>\n"


def shown_state(state: str) -> str:
    return f'<span class="state" style="border-color: {EDGE.get(state, "#CC79A7")}">{escape(state)}</span>'


def student_page(student: str, results: list[Result]) -> str:
    parts = []
    for result in results:
        lines = [
            [
                escape(check.check),
                shown_state(check.state),
                f"{check.earned:g} of {check.points:g}",
                f"<pre>{escape(check.message)}</pre>",
            ]
            for check in result.checks
        ]
        parts.append(f"<h2>{escape(result.exercise)}: {result.earned:g} of {result.points:g} points</h2>\n")
        parts.append(rows(["check", "state", "points", "what was seen"], lines))
        if result.left_out:
            parts.append(
                f"<p>Not run: {result.left_out} code cells that you added or changed outside the answer cells.</p>\n"
            )
    return page(clean(student), "".join(parts))


def class_page(kept: Kept, exercises: dict[str, Exercise], students: Class, ungraded: dict[str, str]) -> str:
    parts = []
    for name, exercise in exercises.items():
        results = [result for _, result in kept if result.exercise == name]
        if not results:
            continue
        mean = sum(result.earned for result in results) / len(results)
        parts.append(
            f"<h2>{escape(name)}: {len(results)} graded, {mean:.1f} of {results[0].points:g} on average</h2>\n"
        )
        lines = []
        for check in exercise.checks:
            states = Counter(each.state for result in results for each in result.checks if each.check == check)
            counts = [str(states[state]) if states[state] else "" for state in STATES]
            share = f'<meter min="0" max="{len(results)}" value="{states[PASS]}">{states[PASS]}</meter>'
            hidden = " (hidden)" if check in exercise.hidden else ""
            lines.append([escape(check) + hidden, share, *counts])
        parts.append(rows(["check", "passed", *STATES], lines))
    flagged = [
        [
            link(student),
            escape(result.exercise),
            escape(" ".join(result.flags)),
            f"<pre>{escape(first_reason(result))}</pre>",
        ]
        for student, result in kept
        if result.flags
    ]
    if flagged:
        parts.append("<h2>Flagged</h2>\n" + rows(["student", "exercise", "flag", "first reason"], flagged))
    left = [[escape(clean(path)), escape(clean(why))] for path, why in [*students.left, *ungraded.items()]]
    if left:
        parts.append("<h2>Not graded</h2>\n" + rows(["file", "why"], left))
    slowest = sorted(kept, key=lambda each: -each[1].seconds)[:5]
    parts.append("<h2>All</h2>\n")
    parts.append(
        rows(
            ["student", "exercise", "points"],
            [[link(student), escape(r.exercise), f"{r.earned:g} of {r.points:g}"] for student, r in kept],
        )
    )
    parts.append("<h2>Slowest</h2>\n")
    parts.append(rows(["student", "seconds"], [[link(student), f"{r.seconds:.1f}"] for student, r in slowest]))
    return page("Grades", "".join(parts))


def link(student: str) -> str:
    return f'<a href="results/{escape(folder_of(Path(), student).name)}/report.html">{escape(clean(student))}</a>'


def first_reason(result: Result) -> str:
    return next((check.message for check in result.checks if check.message), "")
