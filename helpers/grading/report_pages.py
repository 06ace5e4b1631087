"""Write the report as HTML pages. Each page is a single file that loads nothing and runs nothing.

Everything from a submission, its name included, is treated as plain text: it is escaped, and characters that are
invisible or change the direction of text appear as a replacement character.
"""

from collections import Counter
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter

from helpers.grading.csv_tables import shown
from helpers.grading.exercise import Exercise
from helpers.grading.grade import STATES, Result, clean
from helpers.grading.gradebook import Entry, Gradebook, StudentGrades, remarks
from helpers.grading.similarity import MAX_READ, PYTHON_LEXER, THRESHOLD, AlikePair, groups
from helpers.learning.outcome import EDGE, PASS
from helpers.style import LIMIT, PURPLE, REPORT_FONT

STYLE = (
    f"body {{ font: {REPORT_FONT} }}"
    + """
body { max-width: 60em; margin: 2em auto; padding: 0 1em }
body.wide { max-width: 110em }
:root { color-scheme: light dark }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: 0.3em 0.8em; vertical-align: top }
tr + tr td { border-top: 1px solid GREY } pre { white-space: pre-wrap; margin: 0; font-size: 0.85em }
.totals { overflow-x: auto } .totals td:not(:first-child) { white-space: nowrap }
.state { border-left: 4px solid GREY; padding-left: 0.5em }
.beside { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1em 2em }
.beside h3 { font-size: 1em; margin: 0 0 0.3em } .beside > div > * + h3 { margin-top: 1em }
.verdict { border-left: 4px solid GREY; padding-left: 0.6em; margin-bottom: 1em; overflow-wrap: anywhere }
.highlight { padding: 0.6em; overflow-x: auto } .highlight pre { white-space: pre; line-height: 1.4 }
.highlight .linenos { user-select: none; color: inherit !important; opacity: 0.6; padding-right: 1em !important }
@media (max-width: 60em) { .beside { grid-template-columns: minmax(0, 1fr) } }
""".replace("GREY", LIMIT)
)
LIGHT, DARK = HtmlFormatter(style="default", linenos="inline"), HtmlFormatter(style="github-dark")
MAX_GROUPS = 100  # of an exercise
Kept = list[tuple[str, Result]]


def page(title: str, body: str, wide: bool = False) -> str:
    style = STYLE
    if wide:
        dark = DARK.get_style_defs(".highlight")
        style += f"{LIGHT.get_style_defs('.highlight')}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f"<body{' class=wide' * wide}><h1>{escape(title)}</h1>\n{body}</body></html>\n"
    )


def rows(header: list[str], lines: list[list[str]]) -> str:
    """Return a table; `lines` are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>\n" for line in lines)
    return f"<table><tr>{head}</tr>\n{body}</table>\n"


def code(source: str) -> str:
    """Return source as HTML, with the line numbers that messages use."""
    visible = "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in source[:MAX_READ])
    cut = f"<p>Cut after {MAX_READ:,} of {len(source):,} characters.</p>\n" * (len(source) > MAX_READ)
    return highlight(visible, PYTHON_LEXER, LIGHT) + cut


def beside(result: Result) -> str:
    """Return a submission's answers with the message of each check next to them."""
    answers = [f"<h3>{escape(name)}</h3>\n{code(source)}" for name, source in result.answers.items()]
    verdicts = [
        f'<div class="verdict" style="border-color: {EDGE.get(check.state, PURPLE)}"><b>{escape(check.check)}</b>: '
        f"{escape(check.state)}, {check.earned:g} of {check.points:g}{' (hidden)' * check.hidden}"
        f"<pre>{escape(check.message)}</pre></div>\n"
        for check in result.checks
    ]
    if result.left_out:
        verdicts.append(f"<p>Not run: {result.left_out} code cells added or changed outside the answer cells.</p>\n")
    return (
        f'<div class="beside"><div>{"".join(answers) or "<p>No answers that can be read.</p>"}</div>'
        f"<div>{''.join(verdicts)}</div></div>\n"
    )


# For the student


def student_page(row: StudentGrades, results: dict[str, Result], book: Gradebook) -> str:
    """Return one student's page. Each member of a group gets their own, because marks differ.

    Args:
        results: exercise -> result from `for_student`.
    """
    parts = []
    for entry in row.entries:
        lines = [line for line in (entry.why, *remarks(entry, book.rules)) if line]
        result = results.get(entry.exercise)
        if result is None and not lines:
            continue
        parts.append(f"<h2>{escape(entry.exercise)}: {shown(entry.final)} of {shown(entry.points)} points</h2>\n")
        items = "".join(f"<li>{escape(clean(line))}</li>" for line in lines)
        parts += [f"<ul>{items}</ul>\n" * bool(items), beside(result) if result else ""]
    if len(book.exercises) > 1:
        possible = shown(sum(book.exercises.values()))
        parts.append(f"<h2>In all</h2>\n<p>{shown(row.total)} of {possible} points</p>\n")
    return page(clean(row.student), "".join(parts), wide=True)


# For the instructor


def answers_page(exercise: str, graded: Kept, links: dict[str, str]) -> str:
    """Return all answers to one exercise with their verdicts; `links` has each student's anchor."""
    parts = [
        f'<h2 id="{escape(links[student])}">{escape(clean(student))}: {result.earned:g} of {result.points:g} points'
        f"{escape(''.join(f', {flag}' for flag in result.flags))}</h2>\n{beside(result)}"
        for student, result in graded
    ]
    return page(f"Answers to {exercise}", "".join(parts), wide=True)


def class_page(
    kept: Kept,
    exercises: dict[str, Exercise],
    left: list[tuple[str, str]],
    pairs: dict[str, list[AlikePair]],
    links: dict[str, str],
    book: Gradebook,
) -> str:
    """Return the overview page for a class.

    Args:
        left: files not graded: (path, reason).
        pairs: exercise -> similar answers.
        links: each student, by name in the class's folder and in the gradebook -> the name of the student's files.
        book: everyone's points, after lateness and with those by hand.
    """

    def linked(student: str, exercise: str = "") -> str:
        target = f"answers/{exercise}.html#{links[student]}" if exercise else f"feedback/{links[student]}.html"
        return f'<a href="{escape(target)}">{escape(clean(student))}</a>'

    parts = [class_totals(book, links, linked)]
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
        parts.append(
            f'<p><a href="answers/{escape(name)}.html">All answers next to the messages of all checks</a></p>\n'
        )
    flagged = [
        [
            linked(student, result.exercise),
            escape(result.exercise),
            escape(" ".join(result.flags)),
            f"<pre>{escape(first_reason(result))}</pre>",
        ]
        for student, result in kept
        if result.flags
    ]
    if flagged:
        parts.append("<h2>Flagged</h2>\n" + rows(["student", "exercise", "flag", "first reason"], flagged))
    parts += [alike_table(name, found, linked) for name, found in pairs.items() if found]
    if left:
        lines = [[escape(clean(path)), escape(clean(why))] for path, why in left]
        parts.append("<h2>Not graded</h2>\n" + rows(["file", "why"], lines))
    slowest = sorted(kept, key=lambda each: -each[1].seconds)[:5]
    parts.append("<h2>All</h2>\n")
    parts.append(
        rows(
            ["student's page", "exercise, with the answers", "points"],
            [
                [
                    linked(row.student) if row.student in links else escape(clean(row.student)),
                    f'<a href="answers/{escape(entry.exercise)}.html#{escape(links[entry.folder])}">'
                    f"{escape(entry.exercise)}</a>"
                    if entry.earned is not None
                    else escape(entry.exercise),
                    points_of(entry, book),
                ]
                for row, entry in book.graded()
            ],
        )
    )
    parts.append("<h2>Slowest</h2>\n")
    parts.append(
        rows(["student", "seconds"], [[linked(student, r.exercise), f"{r.seconds:.1f}"] for student, r in slowest])
    )
    return page("Grades", "".join(parts))


def class_totals(book: Gradebook, links: dict[str, str], linked) -> str:
    """Return students by exercise, with remarks for the instructor."""
    grouped = any(row.person and row.person.group for row in book.rows)
    header = ["student", *(["group"] if grouped else []), *(name.partition("_")[0] for name in book.exercises), "total"]
    lines = []
    for row in book.rows:
        cells = [linked(row.student) if row.student in links else escape(clean(row.student))]
        cells += [escape(clean(row.person.group if row.person else ""))] if grouped else []
        cells += [shown(each.final) if each.counts else "not graded" if each.folder else "–" for each in row.entries]
        lines.append([*cells, f"<b>{shown(row.total)}</b>"])
    possible = [shown(points) for points in (*book.exercises.values(), sum(book.exercises.values()))]
    lines.append(["of", *([""] if grouped else []), *possible])
    due = "; ".join(f"{name} {date:%Y-%m-%d %H:%M} UTC".strip() for name, date in book.rules.due.dates.items())
    said = ["–: not handed in.", *([f"Due: {due}."] if due else [])]
    said += [f"Late: {book.rules.late.text}."] if book.rules.late else []
    notes = "".join(f"<li>{escape(clean(note))}</li>" for note in book.notes)
    return (
        f"<h2>Totals</h2>\n{f'<ul>{notes}</ul>' if notes else ''}<p>{escape(clean(' '.join(said)))}</p>\n"
        f'<div class="totals">{rows(header, lines)}</div>\n'
    )


def points_of(entry: Entry, book: Gradebook) -> str:
    lines = [f"{shown(entry.final)} of {shown(entry.points)}", entry.why, *remarks(entry, book.rules)]
    return "<br>".join(escape(clean(line)) for line in lines if line)


def alike_table(exercise: str, pairs: list[AlikePair], linked) -> str:
    found = groups(pairs)
    lines = []
    for group in found[:MAX_GROUPS]:
        to_model = {name: share for pair in group for name, share in zip(pair.students, pair.to_model, strict=True)}
        shares = (
            f"{group[-1].likeness:.0%} to {group[0].likeness:.0%}" if len(group) > 1 else f"{group[0].likeness:.0%}"
        )
        students = [f"{linked(name, exercise)} ({to_model[name]:.0%})" for name in sorted(to_model)]
        lines.append([", ".join(students), shares])
    more = f"<p>And {len(found) - MAX_GROUPS} groups more.</p>\n" if len(found) > MAX_GROUPS else ""
    return (
        f"<h2>Alike in {escape(exercise)}</h2>\n"
        f"<p>Each row is a group. Beyond the given text, each answer shares at least {THRESHOLD:.0%} with another one "
        "in its group, whatever names were chosen. No points depend on this. In brackets: how similar an answer is to "
        "the model answer. Two answers that are both close to it may have been written independently.</p>\n"
        + rows(["students", "alike"], lines)
        + more
    )


def first_reason(result: Result) -> str:
    return next((check.message for check in result.checks if check.message), "")
