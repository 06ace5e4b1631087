"""The report on a class, made from the results kept in its folder: JSON first, all else from it.

    results/<student>/<exercise>.json    each result, hidden checks' messages included
    results/<student>/results.json       for Gradescope: hidden checks redacted and not shown
    feedback/<student>.html              for the student, to be sent as it is: hidden checks redacted
    grades.csv, junit.xml, report.html   for the instructor
    answers/<exercise>.html              for the instructor: each answer beside what the checks, hidden ones too, said

Whatever came from a submission, its name included, is text here and nothing else: not a formula, not markup.
"""

import csv
import hashlib
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

from helpers.grading.class_folder import Class
from helpers.grading.exercise import Exercise
from helpers.grading.files import write_whole
from helpers.grading.grade import Result, clean, for_student, result_from_json
from helpers.grading.pages import answers_page, class_page, student_page
from helpers.grading.similarity import alike

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
    links = {student: folder_of(out, student).name for student, _ in kept}
    pairs = {name: alike(exercise, of_exercise(kept, name)) for name, exercise in exercises.items()}
    left = [*students.left, *ungraded.items()]
    write_whole(out / "report.html", class_page(kept, exercises, left, pairs, links))
    for name in exercises:
        if graded := of_exercise(kept, name):
            write_whole(out / "answers" / f"{name}.html", answers_page(name, graded, links))
    for student, link in links.items():
        mine = [for_student(result) for whose, result in kept if whose == student]
        write_whole(out / "feedback" / f"{link}.html", student_page(student, mine))
        write_whole(folder_of(out, student) / "results.json", gradescope(mine))


def of_exercise(kept: Kept, exercise: str) -> Kept:
    return [(student, result) for student, result in kept if result.exercise == exercise]


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
