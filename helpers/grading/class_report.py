"""Write the report on a class from the results in its folder: the JSON first, and everything else from that.

    results/<student>/<exercise>.json    each result, with hidden checks' messages
    results/<student>/results.json       for Gradescope: hidden checks redacted and not shown
    feedback/<student>.html              for the student, send it as it is: hidden checks redacted
    feedback.zip                         all of these, by name; feedback_moodle.zip and feedback_canvas.zip, if the
                                         hand-ins came from there: in the platform's upload format
    grades.csv, junit.xml, report.html   for the instructor
    totals.csv                           students by exercises
    canvas.csv, moodle.csv, gradescope.csv, with a roster: for the platform
    answers/<exercise>.html              for the instructor: each answer next to the messages of all checks, hidden ones
                                         included

Whatever came from a submission, its name included, is text here and nothing else: not a formula, not markup.
"""

import hashlib
import json
import re
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

from helpers.grading import exports, feedback_zips
from helpers.grading.atomic_files import write_whole
from helpers.grading.class_folder import Class
from helpers.grading.csv_tables import shown
from helpers.grading.exercise import Exercise
from helpers.grading.grade import Result, clean, for_student, result_from_json
from helpers.grading.gradebook import Gradebook
from helpers.grading.report_pages import answers_page, class_page, student_page
from helpers.grading.similarity import alike

Kept = list[tuple[str, Result]]


def folder_of(out: Path, student: str) -> Path:
    """Return a student's folder name: their name if it's plain and doesn't end like a digest, else a plain form plus a
    digest."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", student).strip(".-")[:60]
    if plain != student or not plain or re.search("-[0-9a-f]{16}$", plain):
        plain = f"{plain}-{hashlib.sha256(student.encode(errors='surrogatepass')).hexdigest()[:16]}"
    return out / "results" / plain


def write(
    out: Path, students: Class, exercises: dict[str, Exercise], ungraded: dict[str, str], book: Gradebook
) -> None:
    """Write every report from the results in `out` and their gradebook."""
    kept = results_in(out, students)
    write_whole(out / "grades.csv", exports.grades(book))
    write_whole(out / "totals.csv", exports.totals(book))
    if book.rules.roster:
        for platform in (exports.canvas, exports.moodle, exports.gradescope):
            write_whole(out / f"{platform.__name__}.csv", platform(book))
    write_whole(out / "junit.xml", junit(out, students))
    given = {(student, result.exercise): for_student(result) for student, result in kept}
    feedback = {}
    for row in book.rows:
        mine = {each.exercise: given[key] for each in row.entries if (key := (each.folder, each.exercise)) in given}
        if mine or any(each.marks for each in row.entries):
            feedback[row.student] = student_page(row, mine, book)
    links = {student: folder_of(out, student).name for student in [*(whose for whose, _ in kept), *feedback]}
    pairs = {name: alike(exercise, of_exercise(kept, name)) for name, exercise in exercises.items()}
    left = [*students.left, *ungraded.items()]
    write_whole(out / "report.html", class_page(kept, exercises, left, pairs, links, book))
    for name in exercises:
        if graded := of_exercise(kept, name):
            write_whole(out / "answers" / f"{name}.html", answers_page(name, graded, links))
    for student, text in feedback.items():
        write_whole(out / "feedback" / f"{links[student]}.html", text)
    paths = {row.student: [each.path for each in students.found if each.student in row.folders] for row in book.rows}
    zips = {"feedback": feedback_zips.named_pages(feedback)}
    zips |= {f"feedback_{each}": feedback_zips.pages_for(each, feedback, paths) for each in feedback_zips.PREFIXES}
    for name, files in zips.items():
        if files:
            write_whole(out / f"{name}.zip", feedback_zips.zipped(files))
        else:
            (out / f"{name}.zip").unlink(missing_ok=True)
    for page in (out / "feedback").glob("*.html"):
        if page.stem not in {links[student] for student in feedback}:
            page.unlink()  # left by an earlier run, under a name that the roster has since changed
    for student in dict(kept):
        mine = [result for (whose, _), result in given.items() if whose == student]
        write_whole(folder_of(out, student) / "results.json", gradescope(mine, book.total_of(student)))


def of_exercise(kept: Kept, exercise: str) -> Kept:
    return [(student, result) for student, result in kept if result.exercise == exercise]


def results_in(out: Path, students: Class) -> Kept:
    kept = []
    for each in students.found:
        path = folder_of(out, each.student) / f"{each.exercise}.json"
        if path.exists():
            kept.append((each.student, result_from_json(json.loads(path.read_text(encoding="utf-8"))["result"])))
    return kept


def table(out: Path, students: Class, ungraded: dict[str, str], book: Gradebook) -> str:
    """Format the results as lines of text."""
    kept = results_in(out, students)
    width = max((len(clean(row.student)) for row in book.rows), default=0)
    lines = [
        f"{clean(row.student):{width}}  {entry.exercise}  {shown(entry.final)} of {shown(entry.points)}"
        f"  {' '.join(entry.flags)}" + (f"  ({entry.why})" if entry.why else "")
        for row, entry in book.graded()
    ]
    lines += [f"note: {clean(note)}" for note in book.notes]
    lines += [f"not graded: {clean(path)}: {clean(why)}" for path, why in [*students.left, *ungraded.items()]]
    lines.append(f"{len(kept)} graded; read {out / 'report.html'}")
    return "\n".join(line.rstrip() for line in lines)


# For programs


def gradescope(results: list[Result], total: Decimal) -> str:
    """Return Gradescope's results.json: https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
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
    return json.dumps({"score": float(total), "tests": tests}, indent=1) + "\n"


def junit(out: Path, students: Class) -> str:
    """Merge nbval's JUnit XML into one file, with a test suite per student and exercise."""
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
                # The name of a notebook in a temporary folder is meaningless.
                case.set("classname", clean(f"{each.student}/{each.exercise}"))
            whole.append(suite)
    return ElementTree.tostring(whole, encoding="unicode", xml_declaration=True) + "\n"
