"""The gradebook: who is who, how late, what people added; and that every table says the same points."""

import csv
import io
import json
import multiprocessing
import os
import random
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import attacks
import pytest
from hypothesis import given
from hypothesis import strategies as some

from helpers.cli import main
from helpers.grading import class_report, exports, marks, report_pages, run
from helpers.grading import roster as roster_module
from helpers.grading.class_folder import Class, Found, Submitter, class_in
from helpers.grading.csv_tables import as_text, number, table_in
from helpers.grading.exercise import exercises_in
from helpers.grading.grade import Check, Result, clean
from helpers.grading.gradebook import Gradebook, Rules, gradebook
from helpers.grading.lateness import DueDates, due_dates, rule_in, span_in, time_in
from helpers.grading.roster import Roster, matched, roster_in

NAME, OTHER = attacks.NAME, "05_layer_norm"
COURSE = exercises_in()
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def roster(folder: Path, text: str, encoding: str = "utf-8") -> Roster:
    path = folder / "class.csv"
    path.write_bytes(text.encode(encoding))
    return roster_in(path)


def result(exercise: str, earned: float) -> Result:
    """Of an exercise of which so many points were earned."""
    worth = sum(COURSE[exercise].checks.values())
    return Result(exercise, (Check("all", "pass", worth, earned, False, ""),), 0, (), 1.0, {})


def handed(*found: Found) -> Class:
    return Class(Path("submissions"), found, (), {})


def book_of(found: dict[Found, float], rules: Rules, only: str = "") -> Gradebook:
    results = {(each.student, each.exercise): result(each.exercise, earned) for each, earned in found.items()}
    return gradebook(handed(*found), results, exercises_in(only=only), rules)


def cells(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# The roster


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "sep={}\n"])
def test_a_table_from_any_spreadsheet_is_read(tmp_path, encoding, separator, start):
    text = (
        start.format(separator)
        + 'Name,Student ID,E-Mail,Group,Extra time\r\n"Zoë Müller",007,z@x.org,B,"1,5 h"\r\n\r\n'
    )
    if separator != ",":
        text = text.replace("1,5", "1.5").replace(",", separator).replace("1.5", "1,5")
    (person,) = roster(tmp_path, text, encoding).people
    assert (person.name, person.id, person.email, person.group) == ("Zoë Müller", "007", "z@x.org", "B")
    assert person.extra == timedelta(minutes=90)


CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,03 fused add gelu (5567),Layer norm 05 (5568),Current Score
    Points Possible,,,,,15.00,20.00,(read only)
,,,,,Manual Posting,,
"Smith, Ann",900,1001,ann,A,,,
"Lee, Bo",901,1002,bo,A,,,
"Student, Test",999,,x,A,,,
"""
WORKSHEET = (
    "\ufeffIdentifier,Full name,ID number,Email address,Status,Group,Grade,Maximum grade,Last modified (submission)\n"
    'Participant 50,Ann Smith,1001,ann@x.org,Submitted,A,,15,"Sunday, 1 November 2026, 10:00 PM"\n'
    "Participant 51,Bo Lee,1002,bo@x.org,No submission,A,,15,-\n"
)
GRADESCOPE = (
    "First Name,Last Name,SID,Email,Sections,Total Score,Max Points,Status,Submission ID,Submission Time\n"
    "Ann,Smith,1001,ann@x.org,A,,15,Graded,1,2026-11-01 14:00:00 -0700\nBo,Lee,1002,bo@x.org,A,,15,Missing,,\n"
)


@pytest.mark.parametrize(
    ("text", "numbers"), [(CANVAS, ["900", "901"]), (WORKSHEET, ["50", "51"]), (GRADESCOPE, ["", ""])]
)
def test_the_platforms_own_tables_are_rosters(tmp_path, text, numbers):
    found = roster(tmp_path, text)
    assert [(each.first, each.last, each.id) for each in found.people] == [
        ("Ann", "Smith", "1001"),
        ("Bo", "Lee", "1002"),
    ]
    assert [each.number for each in found.people] == numbers
    assert not found.unknown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty: its first line names the columns"),
        ("name,id\n", "has no people"),
        ("mark,remark\n1,2\n", "has no column of names or ids, but mark, remark: call them name, id or email"),
        ("name,id\nA,1\nB,1\n", "lines 2 and 3 have one id, '1'"),
        ("name,email\nA,a@x\nB,A@X\n", "lines 2 and 3 have one email"),
        ("name\nAnn Smith\nann smith\nAnn Smith\n", "lines 2 and 4 are both Ann Smith: give each an id"),
        ("name,name\nA,B\n", "the columns 'name' and 'name' are both the name"),
        ("name,group\nA,1,2\n", "line 2: 3 cells under 2 columns"),
        ("name,extra time\nA,2\n", "line 2: extra time '2' is not a span of time such as 90 min"),
        ("name,extra time\n,2 h\n", "line 2: whose group or extra time is this?"),
        ("name,id\nA,1.2E+07\n", "line 2: id 1.2E+07: the spreadsheet rounded it"),
        ('name,id\n"A,1\n', "unexpected end of data"),
    ],
)
def test_a_roster_that_makes_no_sense_is_told_in_one_line(tmp_path, text, told):
    with pytest.raises(ValueError, match=r"class\.csv") as error:
        roster(tmp_path, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_column_that_is_not_read_is_told(tmp_path):
    found = roster(tmp_path, "name,extra tim\nAnn,2 h\n")
    assert "columns of class.csv that are not read: extra tim" in book_of({}, Rules(found)).notes


@pytest.mark.parametrize(
    "header", ["Student,ID,Section", "LastName,FirstName,ID,SIS Login ID,Section", "Student,ID,SIS Login ID,Section"]
)
def test_every_gradebook_of_canvas_is_known(tmp_path, header):
    rows = ["Points Possible,", '"Smith, Ann",900', '"Student, Test",901']
    if header.startswith("LastName"):
        rows = ["Points Possible,,", "Smith,Ann,900", "Student,Test,901"]
    found = roster(tmp_path, "\n".join([header, *rows]))
    assert [(each.first, each.last, each.number, each.id) for each in found.people] == [("Ann", "Smith", "900", "")]
    assert found.canvas is not None


# Whose it is


PEOPLE = "name;id;email;group\nAnn Smith;1;ann@x.org;A\nBo Lee;2;bo@x.org;A\nJosé d'Arc;3;jose@x.org;B\n"


@pytest.mark.parametrize(
    ("found", "who"),
    [
        (Found("Ann Smith", NAME, "", (Submitter("Ann Smith", "77"),)), ["Ann Smith"]),
        (Found("smithann", NAME, "", (Submitter("smithann", "2"),)), ["Ann Smith"]),  # 2 is Canvas's, not Bo's id
        (Found("darcjosé", NAME, "", (Submitter("darcjosé", "9"),)), ["José d'Arc"]),
        (Found("2", NAME, "", (Submitter("2"),)), ["Bo Lee"]),
        (Found("BO@x.org", NAME, "", (Submitter("BO@x.org"),)), ["Bo Lee"]),
        (Found("B. Lee", NAME, "", (Submitter("B. Lee", "", "bo@x.org"),)), ["Bo Lee"]),
        (Found("B. Lee", NAME, "", (Submitter("B. Lee", "", "", "2"),)), ["Bo Lee"]),
        (Found("A, B", NAME, "", tuple(Submitter("", "", f"{name}@x.org") for name in ("ann", "bo"))), [*"ab"]),
        (Found("a", NAME, "", (Submitter("a"),)), [*"ab"]),  # a group's folder
        (Found("Bo Leigh", NAME, "", (Submitter("Bo Leigh"),)), []),
        (Found("2", NAME, "", (Submitter("2", "", "mallory@x.org"),)), []),  # Gradescope's names are the students' own
    ],
)  # fmt: skip
def test_a_hand_in_is_whose_it_is(tmp_path, found, who):
    people = roster(tmp_path, PEOPLE)
    who = ["Ann Smith", "Bo Lee"] if who == [*"ab"] else who
    assert [person.key for person in matched(people, handed(found))[found.student]] == who
    book = book_of({found: 4}, Rules(people))
    assert [row.student for row in book.rows if row.total == 4] == (who or [found.student])
    assert any(note == f"not in class.csv: {found.student}" for note in book.notes) is not bool(who)


def test_the_platforms_number_goes_before_the_name(tmp_path):
    people = roster(tmp_path, CANVAS.replace("Lee, Bo", "Smith, Ann"))
    found = [
        Found(f"smithann ({n})", NAME, f"smithann_{n}_1_x.ipynb", (Submitter("smithann", n),)) for n in ("900", "901")
    ]
    book = book_of(dict.fromkeys(found, 3) | {found[1]: 5}, Rules(people))
    assert [(row.student, row.total) for row in book.rows] == [("Smith, Ann (1001)", 3), ("Smith, Ann (1002)", 5)]


def test_namesakes_that_nothing_tells_apart_are_told(tmp_path):
    people = roster(tmp_path, "name,id\nAnn Smith,1\nAnn Smith,2\n")
    found = Found("Ann Smith", NAME, "Ann Smith/03_x.ipynb", (Submitter("Ann Smith"),))
    with pytest.raises(ValueError, match=r"Ann Smith/03_x.ipynb may be of Ann Smith \(1\) or Ann Smith \(2\)"):
        matched(people, handed(found))


def test_a_number_that_is_an_id_by_chance_gives_nobody_a_hand_in(tmp_path):
    """Moodle's are small, and new for each assignment."""
    people = roster(tmp_path, "name,id number\nAnn Smith,1\nAnn Smith,2\n")
    found = Found("Ann Smith", NAME, "Ann Smith_2_assignsubmission_file_/03_x.ipynb", (Submitter("Ann Smith", "2"),))
    with pytest.raises(ValueError, match=r"may be of Ann Smith \(1\) or Ann Smith \(2\)"):
        matched(people, handed(found))


@pytest.mark.parametrize(
    ("name", "sure"),
    [
        ("Ann Smith", True),
        ("smithann", True),
        ("Group A-Ann Smith", True),
        ("Joann Smith", False),
        ("Bo Lee", False),
        ("Nobody", False),
    ],
)
def test_a_platforms_number_goes_with_the_name(tmp_path, name, sure):
    people = roster(tmp_path, "identifier,name\nParticipant 77,Ann Smith\nParticipant 78,Bo Lee\n")
    found = Found(name, NAME, f"{name}_77_assignsubmission_file_/03_x.ipynb", (Submitter(name, "77"),))
    if sure:
        assert [each.key for each in matched(people, handed(found))[name]] == ["Ann Smith"]
    else:
        with pytest.raises(ValueError, match=r"has the number of Ann Smith and another name: is .*class\.csv of this"):
            matched(people, handed(found))


UNSEEN = ["{}\u200b", "\ufeff{}", "{}\u00ad", "\u202a{}\u202c", " {}\u00a0", "\u2060{}"]


@pytest.mark.parametrize("written", UNSEEN)
def test_what_nobody_sees_makes_nobody_another(tmp_path, written):
    for exercise, student in ((NAME, "Ann Smith"), (OTHER, written.format("Ann Smith"))):
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / f"{exercise}.ipynb").write_text("{}")
    assert {each.student for each in class_in(tmp_path / "in", COURSE).found} == {"Ann Smith"}
    people = roster(tmp_path, f"name,id,email\n{written.format('Ann Smith')},{written.format('7')},ann@x.org\n").people
    assert [(each.key, each.id) for each in people] == [("Ann Smith", "7")]
    said = marks.Mark(written.format("Ann Smith"), "03", Decimal(1), "", "", "me", "now")
    assert book_of({Found("Ann Smith", NAME, ""): 3}, Rules(marks=(said,), course=tuple(COURSE))).rows[0].total == 4


def test_names_that_look_alike_are_told(tmp_path):
    names = ["Jose", "Jos\u00e9", "\uff2aose", "Ann", "an\u200cn", "\u0410nn"]  # the last is Cyrillic, another letter
    book = book_of({Found(name, NAME, name): 3 for name in names}, Rules())
    assert len(book.rows) == len(names)
    alike = [note for note in book.notes if note.startswith("may be one person")]
    assert alike == ["may be one person: Ann; an\u200cn; \u0410nn", "may be one person: Jose; Jos\u00e9; \uff2aose"]
    people = Rules(roster(tmp_path, "name\nJose\nJos\u00e9\n"))  # who has both knows that they are two
    assert not [note for note in book_of({}, people).notes if "one person" in note]


def test_a_stranger_takes_nobodys_name_in_the_reports(tmp_path):
    rules = Rules(roster(tmp_path, "name,id,email\nAnn Smith,0010,a@x\nAnn Smith,0011,b@x\n"))
    key = rules.roster.people[0].key
    evil = Found(key, NAME, "1/a.ipynb", (Submitter(key, email="evil@x"),))
    ann, _, stranger = book_of({evil: 5.0}, rules).rows
    assert (ann.student, ann.total) == (key, 0)
    assert (stranger.person, stranger.total) == (None, 5)
    # A folder that the instructor calls so is hers.
    assert book_of({Found(key, NAME, "1/a.ipynb", (Submitter(key),)): 5.0}, rules).rows[0].total == 5


def test_a_roster_of_thousands_is_read_in_no_time(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(roster_module, "plain", lambda name: calls.append(name) or name)
    roster(tmp_path, "name\n" + "\n".join(f"P {number}" for number in range(500)))
    assert len(calls) <= 2 * 500


def test_one_person_in_two_folders(tmp_path):
    people = roster(tmp_path, PEOPLE)
    first = Found("Ann Smith", NAME, "Ann Smith/03.ipynb", (Submitter("Ann Smith"),))
    second = Found("smithann", NAME, "smithann/03.ipynb", (Submitter("smithann"),))
    with pytest.raises(ValueError, match=f"Ann Smith of .* has {NAME} twice, Ann Smith/03.ipynb and smithann/03.ipynb"):
        matched(people, handed(first, second))
    other = Found("smithann", OTHER, "smithann/05.ipynb", (Submitter("smithann"),))
    assert book_of({first: 3, other: 4}, Rules(people)).rows[0].total == 7


def test_who_has_handed_in_nothing_is_there(tmp_path):
    found = Found("Ann Smith", NAME, "", (Submitter("Ann Smith"),))
    book = book_of({found: 3}, Rules(roster(tmp_path, PEOPLE)))
    assert [row.missing for row in book.rows] == [[], [NAME], [NAME]]
    assert "no notebook handed in: Bo Lee; José d'Arc" in book.notes


# When


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-01 12:00 Z",
        "2026-11-01T13:00:00+01:00",
        "2026-11-01 13:00 Europe/Berlin",
        "2026-11-01 12:00:00.000000000 Z",
        "2026-11-01 05:00:00 -0700",
        "2026-11-01 13:00",
        "Sunday, 1 November 2026, 1:00 PM",
        "Sunday, November 1, 2026, 1:00 PM",
    ],
)
def test_a_time_is_the_same_in_every_zone(text):
    assert time_in(text, timezone := due_dates(["2026-01-01 00:00 Europe/Berlin"], []).zone) == NOW
    assert timezone is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2026-11-01 23:59", r"has no zone: write 2026-11-01 23:59 \+01:00"),
        ("01.11.2026 23:59", "is not a time such as"),
        ("2026-02-30 12:00 Z", "day .* month"),
        ("2026-11-01 12:00 Atlantis/Main", "unknown zone Atlantis/Main"),
    ],
)
def test_a_time_that_is_none_is_told(text, told):
    with pytest.raises(ValueError, match=told):
        time_in(text)


def test_an_hour_that_clocks_show_twice_is_counted():
    due = time_in("2026-10-25 00:00 Europe/Berlin")
    assert time_in("2026-10-25 04:00 Europe/Berlin") - due == timedelta(hours=5)


def test_platforms_tell_when(tmp_path):
    def put(path, text="{}"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put(f"gs/submission_1/{NAME}.ipynb")
    submitters = "submission_1:\n  :submitters:\n  - :name: A\n    :sid: '1'\n"
    put("gs/submission_metadata.yml", f"{submitters}  :created_at: 2026-11-01 12:00:00.5 Z\n")
    put(f"canvas/smithann_LATE_9_8_{NAME}.ipynb")
    put(f"canvas/leebo_9_8_{NAME}.ipynb")
    put(f"moodle/Ann LATE_9_assignsubmission_file_/{NAME}.ipynb")
    found = {folder: class_in(tmp_path / folder, COURSE).found for folder in ("gs", "canvas", "moodle")}
    assert [time_in(each.handed_in) for each in found["gs"]] == [NOW]
    assert found["gs"][0].submitters == (Submitter("A", "", "", "1"),)
    assert {each.student: each.late for each in found["canvas"]} == {"leebo": False, "smithann": True}
    assert [(each.student, each.late, each.handed_in) for each in found["moodle"]] == [("Ann LATE", False, "")]


def test_extra_time_and_a_corrected_time_count(tmp_path):
    people = roster(tmp_path, "name,extra time\nAnn,\nBo,2 days\nCy,\nDi,1 h\n")
    due = DueDates({"": NOW}, UTC)
    said = marks.Mark("Cy", "03", Decimal(0), "ill", "2026-11-01 12:00", "me", "today")
    rules = Rules(people, due, rule_in("10 % a day"), (said,), course=tuple(COURSE))
    found = {Found(name, NAME, "", (Submitter(name),), "2026-11-02 13:00 Z"): 15 for name in ("Ann", "Bo", "Cy", "Di")}
    book = book_of(found, rules)
    assert [shown.entries[0].lateness for shown in book.rows] == ["25 h late", "", "", "24 h late"]
    assert [row.total for row in book.rows] == [12, 15, 15, Decimal("13.5")]


def test_late_by_nobody_knows_how_much(tmp_path):
    found = {Found("Ann", NAME, "", (Submitter("Ann"),), late=True): 15}
    once = book_of(found, Rules(due=DueDates({"": NOW}, UTC), late=rule_in("20 %")))
    daily = book_of(found, Rules(due=DueDates({"": NOW}, UTC), late=rule_in("20 % a day")))
    assert (once.rows[0].total, daily.rows[0].total) == (12, 15)
    assert any(note.startswith("late by an unknown amount, and nothing is deducted: Ann") for note in daily.notes)


def test_where_nothing_tells_when_that_is_said():
    book = book_of({Found("Ann", NAME, ""): 15}, Rules(due=DueDates({"": NOW}, UTC)))
    assert any("no time of handing in, taken as in time: Ann" in note for note in book.notes)


# What lateness costs


@pytest.mark.parametrize(
    ("rule", "late", "off"),
    [
        ("10 % a day, at most 50 %, grace 15 min", "15 min", "0"),
        ("10 % a day, at most 50 %, grace 15 min", "16 min", "1.5"),
        ("10 % a day, at most 50 %, grace 15 min", "1 day", "1.5"),
        ("10 % a day, at most 50 %, grace 15 min", "1 day 1 min", "3"),
        ("10% per day; AT MOST 50%", "40 days", "7.5"),
        ("7,5 % an hour", "2 h", "2.25"),
        ("20 % once", "1 min", "3"),
        ("20 %, grace 1 week", "7 days", "0"),
        ("100 % a week", "1 min", "15"),
    ],
)
def test_lateness_costs_what_the_rule_says(rule, late, off):
    assert rule_in(rule).cost(span_in(late), Decimal(15)) == Decimal(off)


@pytest.mark.parametrize(
    "rule",
    ["", "ten", "at most 50 %", "10 % a day, 5 % a day", "110 %", "10 % a month", "10 % a day, grace 5", "-5 %"],
)
def test_a_rule_that_says_nothing_is_told(rule):
    with pytest.raises(ValueError, match=r"--late|not a span"):
        rule_in(rule)


percents = some.decimals(0, 100, places=1)
spans = some.timedeltas(timedelta(), timedelta(days=400))


@given(
    percents,
    percents,
    some.sampled_from(["", " a day", " an hour", " a week"]),
    spans,
    spans,
    spans,
    some.integers(0, 100),
)
def test_lateness_never_pays(share, most, unit, grace, one, other, points):
    rule = rule_in(f"{share} %{unit}, at most {most} %, grace {int(grace.total_seconds()) // 60} min")
    sooner, later = (rule.cost(late, Decimal(points)) for late in sorted((one, other)))
    assert 0 <= sooner <= later <= Decimal(points) * most / 100 + Decimal("0.01")


@given(some.integers(-(10**9), 10**9), some.integers(1, 2), some.sampled_from(".,"))
def test_numbers_are_read_with_either_sign(value, places, sign):
    exact = Decimal(value) / 10**places
    if abs(exact) < 10**9:
        assert number(f"{exact:f}".replace(".", sign)) == exact


@pytest.mark.parametrize("text", ["1,000", "1.000,5", "1e3", "=1", "", "x", "1 000", "١"])
def test_what_may_be_two_numbers_is_none(text):
    with pytest.raises(ValueError, match="is not a number"):
        number(text)


# One source


def sums_of(book: Gradebook) -> dict[str, dict[str, Decimal]]:
    """table -> student -> the sum of the grades in it."""
    named = {(row.person.name if row.person else row.student): row.student for row in book.rows}
    tables = {name: cells(getattr(exports, name)(book)) for name in ("canvas", "moodle", "gradescope", "totals")}
    found: dict[str, dict[str, Decimal]] = {name: {} for name in tables}
    for name, lines in tables.items():
        for line in lines:
            who = (
                line.get("student")
                or line.get("Student")
                or " ".join(
                    line.get(f"First {n}", "") + " " + line.get(f"Last {n}", "") for n in ("Name", "name")
                ).strip()
            )
            if who.strip() != "Points Possible":
                grades = [line[exercise] for exercise in book.exercises]
                found[name][named.get(who, who)] = sum(map(Decimal, filter(None, grades)), Decimal(0))
    found["grades"] = {row.student: Decimal(0) for row in book.rows}
    for line in cells(exports.grades(book)):
        found["grades"][line["student"]] += Decimal(line["final"])
    found["totals' total"] = {line["student"]: Decimal(line["total"]) for line in cells(exports.totals(book))}
    return found


students = some.lists(
    some.tuples(some.integers(0, 60), some.integers(0, 80), spans, some.decimals(-20, 20, places=2)),
    min_size=1,
    max_size=5,
)


@given(students, some.sampled_from(["10 % a day, at most 50 %", "33.3 % an hour, grace 2 h", "20 %"]))
def test_every_table_says_the_same(tmp_path_factory, told, rule):
    folder = tmp_path_factory.mktemp("class")
    names = [f"S{place} Last{place}" for place in range(len(told))]
    lines = [f"{name},{place},s{place}@x.org" for place, name in enumerate([*names, "Eve Absent"])]
    people = roster(folder, "\n".join(["name,id,email", *lines]))
    found, said = {}, [marks.Mark("Eve Absent", "03", Decimal("2.5"), "oral", "", "me", "now")]
    for name, (first, second, late, points) in zip(names, told, strict=True):
        when = f"{NOW + late:%Y-%m-%d %H:%M} Z"
        found[Found(name, NAME, "", (Submitter(name),), when)] = first / 4
        found[Found(name, OTHER, "", (Submitter(name),), when)] = second / 4
        said.append(marks.Mark(name, "05", points, "", "", "me", "now"))
    rules = Rules(people, DueDates({"": NOW}, UTC), rule_in(rule), tuple(said), course=tuple(COURSE))
    book = book_of(found, rules)
    totals = {row.student: row.total for row in book.rows}
    for row, (first, second, _, points) in zip(book.rows, told, strict=False):
        assert row.total == sum(entry.final for entry in row.entries)
        assert all(entry.final >= 0 for entry in row.entries)
        assert row.total <= Decimal(first + second) / 4 + max(points, Decimal(0))
    sums = sums_of(book)
    assert sums.pop("moodle") == totals  # Eve has points by hand, so all are there
    assert all(each == totals for each in sums.values()), sums
    shown = report_pages.class_totals(book, {}, None)
    for row in book.rows:
        assert (
            f"<b>{exports.shown(row.total)}</b></td></tr>" in shown.split(f"<td>{row.student}</td>")[1].split("\n")[0]
        )


def test_canvas_gets_its_own_columns(tmp_path):
    people = roster(tmp_path, CANVAS)
    found = {Found("smithann", name, "", (Submitter("smithann", "900"),)): 3 for name in (NAME, OTHER)}
    book = book_of(found, Rules(people))
    lines = exports.canvas(book).splitlines()
    assert lines[0] == "Student,ID,SIS User ID,SIS Login ID,Section,03 fused add gelu (5567),Layer norm 05 (5568)"
    points = sum(COURSE[OTHER].checks.values())
    assert lines[1] == f"    Points Possible,,,,,15,{points:g}"
    assert lines[2:] == ['"Smith, Ann",900,1001,ann,A,3,3', '"Lee, Bo",901,1002,bo,A,,']
    assert any(note.startswith("Canvas gives 'Layer norm 05 (5568)' 20.00 points") for note in book.notes) is (
        points != 20
    )


def test_moodle_gets_nobody_that_it_would_take_for_another(tmp_path):
    people = roster(tmp_path, "name,id number,email\nAnn Smith,1,a@x.org\nBo Lee,,b@x.org\nCy Ng,3,c@x.org\n")
    found = {Found(name, NAME, "", (Submitter(name),)): 3 for name in ("Ann Smith", "Bo Lee")}
    lines = exports.moodle(book_of(found, Rules(people))).splitlines()
    assert lines == [
        f"First name,Last name,Email address,{NAME},{NAME} feedback",
        "Ann,Smith,a@x.org,3,",
        "Bo,Lee,b@x.org,3,",
    ]


def test_another_platforms_number_is_not_canvas_s(tmp_path):
    found = {Found("Ann Smith", NAME, "", (Submitter("Ann Smith", "50"),)): 3}
    assert exports.canvas(book_of(found, Rules(roster(tmp_path, WORKSHEET)))).splitlines()[2] == "Ann Smith,,1001,,A,3"


FORMULAS = ["=1+1", "+1", "-1", "@x", " =1", "|x", "%x", "'=1"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_no_table_holds_a_formula(tmp_path, formula):
    people = roster(tmp_path, f'name,id,email,group\n"{formula}","{formula}","{formula}","{formula}"\n')
    said = marks.Mark(formula.strip(), "03", Decimal(-1), formula, "", formula, "now")
    book = book_of({Found(formula, NAME, ""): 3}, Rules(people, marks=(said,), course=tuple(COURSE)))
    for name in ("canvas", "moodle", "gradescope", "totals", "grades"):
        for line in csv.reader(io.StringIO(getattr(exports, name)(book))):
            assert not [cell for cell in line if cell.lstrip()[:1] in tuple("=+-@|%") and cell != "-1"]


# By hand


def test_marks_are_read_back_as_they_were_written(tmp_path):
    path = tmp_path / "marks.csv"
    said = [
        marks.Mark("Müller, Zoë", "03", Decimal("1.5"), 'two\nlines, "quoted"; and more', "", "Dr. Nó", "2026-11-01"),
        *(marks.Mark(text.strip(), "05", Decimal(-2), text.strip(), "", "x", "y") for text in FORMULAS),
        marks.Mark("a", "05", Decimal(0), "long " * 1000 + "end", "2026-11-01 12:00 Z", "x", "y"),
    ]
    for each in said:
        marks.add_mark(path, each)
    assert marks.marks_in(path) == said
    assert not [line for line in csv.reader(io.StringIO(path.read_text("utf-8-sig"))) if line[0][:1] in tuple("=+-@")]


def test_a_table_saved_by_a_spreadsheet_is_read_and_completed(tmp_path):
    path = tmp_path / "marks.csv"
    marks.start_table(path, [("Ann", NAME), ("Bo", NAME)])
    text = path.read_text("utf-8-sig").replace(",", ";").replace(f"Bo;{NAME};;", f"Bo;{NAME};-1,5;schön")
    path.write_bytes(text.encode("cp1252"))
    (mark,) = marks.marks_in(path, by="Dr. No")
    assert (mark.student, mark.points, mark.comment, mark.by) == ("Bo", Decimal("-1.5"), "schön", "Dr. No")
    assert datetime.fromisoformat(mark.when).tzinfo
    written = path.read_bytes()
    assert marks.marks_in(path, by="another") == [mark]
    assert path.read_bytes() == written
    marks.start_table(path, [("Cy", NAME)])
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("student,exercise,score\nAnn,03,1\n", "has a column 'score': its columns are student, exercise, points"),
        ("student,exercise,points\nAnn,03,one\n", "line 2: 'one' is not a number such as 1.5 or 1,5"),
        ("student,exercise,points\n,03,1\n", "line 2: no student or no exercise"),
    ],
)
def test_marks_that_make_no_sense_are_told(tmp_path, text, told):
    (tmp_path / "marks.csv").write_text(text)
    with pytest.raises(ValueError, match=r"marks\.csv") as error:
        marks.marks_in(tmp_path / "marks.csv")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("who", "exercise", "told"),
    [
        ("Ann Smth", "03", "unknown student 'Ann Smth': is it 'Ann Smith'"),
        ("xyz", "03", "unknown student 'xyz': write the name"),
        ("Ann Smith", "77", "no exercise '77'"),
    ],
)
def test_a_mark_of_nobody_is_told(tmp_path, who, exercise, told):
    said = marks.Mark(who, exercise, Decimal(1), "", "", "", "")
    with pytest.raises(ValueError, match=told):
        book_of({Found("Ann Smith", NAME, ""): 3}, Rules(marks=(said,), course=tuple(COURSE)))


@pytest.mark.parametrize("who", ["Ann Smith", "1", "ann@x.org", "smith, ann"])
@pytest.mark.parametrize("exercise", ["03", "3", NAME])
def test_marks_find_their_student(tmp_path, who, exercise):
    said = marks.Mark(who, exercise, Decimal("0.5"), "well done", "", "me", "today")
    found = {Found("smithann", NAME, "", (Submitter("smithann"),)): 3}
    book = book_of(found, Rules(roster(tmp_path, PEOPLE), marks=(said, said), course=tuple(COURSE)))
    assert book.rows[0].total == 4
    text = report_pages.class_totals(book, {}, None) + report_pages.points_of(book.rows[0].entries[0], book)
    assert "0.5 points added; well done (me, today)" in text


def test_more_points_than_there_are_are_told():
    said = [marks.Mark(who, "03", Decimal(13), "", "", "me", "today") for who in ("Ann", "Bo")]
    found = {Found("Ann", NAME, "1"): 3, Found("Bo", NAME, "2"): 2}
    book = book_of(found, Rules(marks=tuple(said), course=tuple(COURSE)))
    assert [note for note in book.notes if "by hand" in note] == [
        f"more points than there are, by hand: Ann, {NAME}, 16 of 15"
    ]


def test_a_mark_of_another_exercise_waits_for_it():
    said = marks.Mark("Ann Smith", "05", Decimal(1), "", "", "me", "today")
    book = book_of({Found("Ann Smith", NAME, ""): 3}, Rules(marks=(said,), course=tuple(COURSE)), only="03")
    assert book.rows[0].total == 3


@given(some.text(max_size=30))
def test_no_name_spoils_the_table(tmp_path_factory, name):
    path = tmp_path_factory.mktemp("marks") / "marks.csv"
    marks.start_table(path, [(clean(name), NAME), ("Ann", NAME)])
    assert marks.marks_in(path) == []
    marks.add_mark(path, marks.Mark("Ann", "03", Decimal(1), "", "", "me", "now"))
    assert [mark.student for mark in marks.marks_in(path)] == ["Ann"]


def test_a_name_that_a_terminal_would_obey_is_found():
    said = marks.Mark("Ann[2J", "03", Decimal(1), "", "", "me", "now")
    assert book_of({Found("Ann\x1b[2J", NAME, ""): 3}, Rules(marks=(said,), course=tuple(COURSE))).rows[0].total == 4


def test_a_table_that_cannot_be_written_stays(tmp_path, monkeypatch):
    path = tmp_path / "marks.csv"
    said = marks.Mark("Ann", "03", Decimal(1), "kept", "", "me", "now")
    marks.add_mark(path, said)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device; make room"):
        marks.add_mark(path, said)
    assert marks.marks_in(path) == [said]


def add_when_told(path: Path, told) -> None:
    told.wait()
    marks.add_mark(path, marks.Mark("Ann", "03", Decimal(1), "second", "", "b", "now"))


def test_two_who_comment_at_once_wait_for_each_other(tmp_path):
    path = tmp_path / "marks.csv"
    context = multiprocessing.get_context("fork")
    told = context.Event()
    other = context.Process(target=add_when_told, args=(path, told))
    other.start()
    with marks.alone(path):
        told.set()
        other.join(1)
        assert other.is_alive()
        marks.write(path, [*marks.read(path), marks.Mark("Ann", "03", Decimal(1), "first", "", "a", "now")])
    other.join()
    assert [mark.comment for mark in marks.marks_in(path)] == ["first", "second"]


@given(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_text_makes_one_table_or_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("table") / "class.csv"
    path.write_text(f"name,id\n{text}", encoding="utf-8")
    with suppress(ValueError):
        assert roster_in(path).people


# The command


@pytest.fixture
def graded_without_sandbox(monkeypatch):
    """`fusion grade` that gives each notebook ten points at once."""
    monkeypatch.setattr(run, "require_sandbox", lambda: None)
    done = {"earned": 10, **result(NAME, 10).as_json()}
    monkeypatch.setattr(run, "graded_here", lambda tasks, jobs: ((task, (done, "")) for task in tasks))


def test_who_hand_in_together_read_nothing_of_each_other(tmp_path, graded_without_sandbox, capsys):
    (tmp_path / "in" / "G1").mkdir(parents=True)
    (tmp_path / "in" / "G1" / f"{NAME}.ipynb").write_text("{}")
    (tmp_path / "class.csv").write_text("name,group\nAnn,G1\nBo,G1\nCy,G2\n")
    out = tmp_path / "out"
    command = ["grade", str(tmp_path / "in"), "--out", str(out)]
    assert main([*command, "--only", "03"]) == 0  # without the roster the page is the group's
    assert {path.stem for path in (out / "feedback").iterdir()} == {"G1"}
    said = ["--comment", "Bo", "03", "-3", "was not there", "--comment", "Cy", "05", "2", "at the board"]
    assert main([*command, "--resume", "--roster", str(tmp_path / "class.csv"), *said]) == 0
    ann, bo, cy = ((out / "feedback" / f"{name}.html").read_text() for name in ("Ann", "Bo", "Cy"))
    assert {path.stem for path in (out / "feedback").iterdir()} == {"Ann", "Bo", "Cy"}
    assert f"{NAME}: 10 of" in ann
    assert f"{NAME}: 7 of" in bo
    assert "was not there" in bo
    assert "Bo" not in ann
    assert "not there" not in ann
    assert "at the board" in cy
    # Of a submission there is one score: what both of them have.
    assert json.loads((out / "results" / "G1" / "results.json").read_text())["score"] == 7
    note = "one hand-in, G1, and other points for each: its results.json has the least of Ann; Bo"
    assert note in capsys.readouterr().out
    assert set(re.findall(r'feedback/(\w+).html">(\w+)<', (out / "report.html").read_text())) == {
        (name, name) for name in ("Ann", "Bo", "Cy")
    }


def test_regrading_keeps_what_people_said(tmp_path, graded_without_sandbox, capsys):
    for student in ("Ann Smith", "Bo Lee"):
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / f"{NAME}.ipynb").write_text("{}")
    (tmp_path / "class.csv").write_text(PEOPLE)
    out = tmp_path / "out"
    command = ["grade", str(tmp_path / "in"), "--out", str(out), "--only", "03"]
    told = ["--roster", str(tmp_path / "class.csv"), "--due", "2026-11-01 12:00 Z", "--late", "10 % a day"]
    assert main([*command, *told]) == 0
    assert main([*command, "--resume", "--by", "Dr. No", "--comment", "Bo Lee", "3", "-1.5", "see <line> 3"]) == 0
    (out / "results" / class_report.folder_of(out, "Bo Lee").name / f"{NAME}.json").unlink()  # graded anew
    assert main([*command, "--resume"]) == 0
    assert [line["final"] for line in cells((out / "grades.csv").read_text())] == ["10", "8.5"]
    tables = {"grades", "totals", "canvas", "moodle", "gradescope", "marks"}
    assert {path.stem for path in out.glob("*.csv")} == tables
    for path in (out / "report.html", out / "feedback" / f"{class_report.folder_of(out, 'Bo Lee').name}.html"):
        assert "1.5 points off; see &lt;line&gt; 3 (Dr. No, 20" in path.read_text()
    scores = json.loads((class_report.folder_of(out, "Bo Lee") / "results.json").read_text())
    assert scores["score"] == 8.5
    assert json.loads((out / "run.json").read_text())["late"] == "10 % a day"
    assert main([*command, "--resume", "--late", ""]) == 0
    assert not json.loads((out / "run.json").read_text())["late"]
    assert "José d'Arc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--roster", "none.csv"], "none.csv cannot be read: No such file"),
        (["--late", "10 % a day"], "needs to know when it was due"),
        (["--late", "x"], "is not understood: write 10 % a day"),
        (["--due", "2026-11-01 12:00"], "has no zone"),
        (["--due", "77=2026-11-01 12:00 Z"], "no exercise '77' is graded"),
        (["--comment", "Bo", "03", "1", "x"], "unknown student 'Bo'"),
        (["--comment", "Ann", "03", "one", "x"], "'one' is not a number such as 1.5 or 1,5, or 0"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_graded(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.setattr(run, "require_sandbox", lambda: None)
    (tmp_path / "in" / "Ann").mkdir(parents=True)
    (tmp_path / "in" / "Ann" / f"{NAME}.ipynb").write_text("{}")
    assert main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fusion: ")
    assert error.count("\n") == 1
    assert told in error
    assert not (tmp_path / "out").exists()


def test_tables_are_told_apart_from_other_files(tmp_path):
    (tmp_path / "class.csv").write_bytes(random.Random(1).randbytes(1000) + b"\0")
    with pytest.raises(ValueError, match=r"class\.csv"):
        table_in(tmp_path / "class.csv", {})
    assert as_text("=1") == "'=1"
