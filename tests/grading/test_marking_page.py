"""Marking by hand in a browser: what is kept, who may, and that a submission's text stays text."""

import json
import threading
import urllib.error
import urllib.request
from decimal import Decimal

import pytest

from helpers.grading.grade import Check, Result
from helpers.grading.marking_page import mark_by_hand, page, server
from helpers.grading.marks import marks_in

EVIL = "</textarea><script>document.title='theirs'</script>"
NAME = "03_fused_add_gelu"


def kept(report, student: str, answer: str) -> None:
    result = Result(NAME, (Check("values", "fail", 5, 0, False, answer),), 0, (), 1.0, {"add-gelu": answer})
    place = report / "results" / f"s{len(list((report / 'results').glob('*')))}" / f"{NAME}.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"student": student, "result": result.as_json()}))


@pytest.fixture
def report(tmp_path):
    (tmp_path / "results").mkdir()
    kept(tmp_path, "Ann Smith", "x = 1")
    kept(tmp_path, EVIL, EVIL)
    return tmp_path


@pytest.fixture
def address(report):
    running, address = server(report, "me")
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield address
    running.shutdown()
    running.server_close()
    thread.join()


def sent(address: str, **mark) -> str:
    url = address.replace("/?", "/mark?")
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(mark).encode())).read().decode()


def refused(address: str, **mark) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as error:
        sent(address, **mark)
    return error.value.code, error.value.read().decode()


def test_a_mark_is_kept_in_the_table(report, address):
    assert sent(address, student="Ann Smith", exercise=NAME, points="-1.5", comment="see line 1") == "-1.5 see line 1"
    [mark] = marks_in(report / "marks.csv")
    assert (mark.student, mark.points, mark.comment, mark.by) == ("Ann Smith", Decimal("-1.5"), "see line 1", "me")


def test_what_makes_no_sense_is_refused_and_nothing_is_kept(report, address):
    given = {"student": "Ann Smith", "exercise": NAME, "points": "1", "comment": ""}
    assert refused(address, **given | {"student": "Bob"}) == (400, "no such hand-in")
    assert refused(address, **given | {"points": "0"}) == (400, "neither points nor a comment were given")
    assert refused(address, **given | {"points": "one"}) == (400, "'one' is not a number such as 1.5 or 1,5")
    assert refused(address, student="Ann Smith")[0] == 400
    assert not (report / "marks.csv").exists()


def test_without_the_token_nobody_reads_or_marks(report, address):
    stranger = address.partition("?")[0] + "?token=guess"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(stranger)
    assert error.value.code == 403
    assert refused(stranger, student="Ann Smith", exercise=NAME, points="9", comment="")[0] == 403
    assert not (report / "marks.csv").exists()


def test_a_class_is_marked_by_keyboard(chromium, report, address):
    browser = chromium.new_page()
    errors = []
    browser.on("pageerror", lambda error: errors.append(str(error)))
    browser.goto(address)
    assert browser.title() == "Marking"  # and not what a submission would make of it
    first = browser.locator("section:visible h2").inner_text()
    browser.keyboard.press("j")
    assert browser.locator("section:visible h2").inner_text() != first
    browser.keyboard.press("k")
    browser.keyboard.press("p")
    browser.keyboard.type("2")
    browser.keyboard.press("Escape")
    browser.keyboard.press("c")
    browser.keyboard.type("good")
    browser.keyboard.press("Control+Enter")
    browser.get_by_text("2 of 2").wait_for()
    browser.keyboard.press("Escape")
    browser.keyboard.press("k")
    assert browser.locator("section:visible [role=status]").inner_text() == "Saved: 2 good"
    [mark] = marks_in(report / "marks.csv")
    assert (mark.points, mark.comment) == (2, "good")
    assert errors == []


def test_what_a_submission_says_stays_text(report):
    text = page([(EVIL, Result(NAME, (), 0, (), 0.0, {"a": EVIL}))], [], "nonce")
    assert EVIL not in text
    assert text.count("<script") == 1


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no results: pass the --out folder of a `fusion grade`"):
        mark_by_hand(tmp_path)
