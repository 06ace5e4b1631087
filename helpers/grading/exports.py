"""Write the gradebook in the formats of Canvas, Moodle and Gradescope, and as one table with a row per student.

    Canvas      Gradebook > Import: format in lib/gradebook_importer.rb of instructure/canvas-lms
    Moodle      Grades > Import > CSV file, each column chosen there: grade/import/csv of moodle/moodle
    Gradescope  the columns of its own Download Grades; it imports no table of grades

A missing grade is an empty cell.
"""

from datetime import timedelta

from helpers.grading.csv_tables import as_text, shown, written
from helpers.grading.gradebook import Entry, Gradebook, StudentGrades, remarks


def grades(book: Gradebook) -> str:
    """Return one line per student and exercise: points from checks, deduction for lateness, points by hand."""
    lines = [["student", "exercise", "earned", "points", "flags", "late", "off", "by hand", "final"]]
    for row, entry in book.graded():
        earned = shown(entry.earned) if entry.earned is not None else ""
        change = [entry.lateness, shown(entry.off), shown(entry.added), shown(entry.final)]
        lines.append(
            [as_text(row.student), entry.exercise, earned, shown(entry.points), " ".join(entry.flags), *change]
        )
    return written(lines)


def totals(book: Gradebook) -> str:
    """Return students by exercises, including students missing from the roster."""
    lines = [["student", "id", "email", "group", *book.exercises, "total", "points", "not handed in"]]
    points = shown(sum(book.exercises.values()))
    for row in book.rows:
        of = [row.person.id, row.person.email, row.person.group] if row.person else [""] * 3
        grades = map(grade, row.entries)
        texts = map(as_text, (row.student, *of))
        lines.append([*texts, *grades, shown(row.total), points, as_text(" ".join(row.missing))])
    return written(lines)


def canvas(book: Gradebook) -> str:
    """Return the assignments under Canvas's names for them if the roster is its gradebook, else under ours."""
    roster = book.rules.roster
    titles = [as_text(roster.canvas_column(name) or name) for name in book.exercises]
    lines = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *titles]]
    lines.append(["    Points Possible", "", "", "", "", *map(shown, book.exercises.values())])
    for row in known(book):
        # Another platform's number would belong to another student.
        number = row.person.number if roster.canvas is not None else ""
        of = (row.person.name, number, row.person.id, row.person.login, row.person.group)
        lines.append([*map(as_text, of), *map(grade, row.entries)])
    return written(lines)


def moodle(book: Gradebook) -> str:
    """Return the students who have a grade, with the identifying columns that are filled for all of them.

    If such a cell is empty, Moodle gives the row's grade to the student of the row above.
    """
    rows = [row for row in known(book) if any(entry.counts for entry in row.entries)]
    columns = {"ID number": "id", "Email address": "email", "Username": "login"}
    columns = {title: field for title, field in columns.items() if all(getattr(row.person, field) for row in rows)}
    graded = [title for name in book.exercises for title in (name, f"{name} feedback")]
    lines = [["First name", "Last name", *columns, *graded]]
    for row in rows:
        of = [row.person.first, row.person.last, *(getattr(row.person, field) for field in columns.values())]
        cells = [cell for entry in row.entries for cell in (grade(entry), feedback(entry, book))]
        lines.append([*map(as_text, of), *cells])
    return written(lines)


def gradescope(book: Gradebook) -> str:
    """Return Gradescope's table; times are in UTC."""
    header = ["First Name", "Last Name", "SID", "Email", "Sections"]
    for name in book.exercises:
        header += [name, f"{name} - Max Points", f"{name} - Submission Time", f"{name} - Lateness (H:M:S)"]
    lines = [[*header, "Total Lateness (H:M:S)"]]
    for row in known(book):
        of = (row.person.first, row.person.last, row.person.id, row.person.email, row.person.group)
        cells = [cell for entry in row.entries for cell in with_time(entry)]
        late = sum((entry.late or timedelta() for entry in row.entries), timedelta())
        lines.append([*map(as_text, of), *cells, clock(late)])
    return written(lines)


def known(book: Gradebook) -> list[StudentGrades]:
    return [row for row in book.rows if row.person]


def grade(entry: Entry) -> str:
    return shown(entry.final) if entry.counts else ""


def feedback(entry: Entry, book: Gradebook) -> str:
    return as_text(" | ".join(remarks(entry, book.rules)))


def with_time(entry: Entry) -> list[str]:
    when = f"{entry.when:%Y-%m-%d %H:%M:%S %z}" if entry.when else ""
    return [grade(entry), shown(entry.points), when, clock(entry.late or timedelta()) if when else ""]


def clock(span: timedelta) -> str:
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
