"""`fusion mark report/`: go through the answers in a browser, and enter points and a comment by keyboard; marks.csv
stores them.

The server is small and only reachable from this machine. Marking needs the address with its token. The content of
submissions is escaped, and the page runs no script but its own.
"""

import json
import secrets
import webbrowser
from collections.abc import Callable
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from helpers.grading.grade import Result, clean, result_from_json
from helpers.grading.marks import Mark, add_mark, mark_of, marks_in, number
from helpers.grading.report_pages import LIGHT, STYLE, beside

MAX_BODY = 100_000  # bytes that the page may send
SCRIPT = Path(__file__).with_name("marking.js").read_text(encoding="utf-8")


def answers_kept(report: Path) -> list[tuple[str, Result]]:
    """Return (student, result) for each answer in a report's folder, one exercise after another.

    Raises:
        FileNotFoundError: it holds no results; one line.
    """
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((report / "results").glob("*/*.json"))]
    found = [(each["student"], result_from_json(each["result"])) for each in kept if "result" in each]
    if not found:
        raise FileNotFoundError(f"{report} holds no results: pass the --out folder of a `fusion grade`")
    return sorted(found, key=lambda each: (each[1].exercise, each[0]))


def page(found: list[tuple[str, Result]], marks: list[Mark], nonce: str) -> str:
    """Return the page, with one section per answer and one section visible at a time."""
    sections = []
    for student, result in found:
        given = [mark for mark in marks if mark.student == student and mark.exercise == result.exercise]
        lines = "".join(f"<li>{escape(clean(f'{each.points}: {each.comment} ({each.by})'))}</li>" for each in given)
        sections.append(
            f'<section hidden data-student="{escape(student)}" data-exercise="{escape(result.exercise)}">'
            f"<h2>{escape(clean(student))}, {escape(result.exercise)}: "
            f"{result.earned:g} of {result.points:g} points</h2>"
            '<form><label>Points to add <input name="points" inputmode="decimal" size="6"></label> '
            '<label>Comment <textarea name="comment" rows="2" cols="60"></textarea></label> '
            '<button>Save and go on</button> <span role="status"></span></form>'
            f"<ul>{lines}</ul>{beside(result)}</section>"
        )
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>Marking</title>'
        f"<style>{STYLE}\n{LIGHT.get_style_defs('.highlight')}</style><body class=wide>"
        '<p><b id="place"></b>: <kbd>j</kbd> next, <kbd>k</kbd> back, <kbd>p</kbd> points, <kbd>c</kbd> comment, '
        "<kbd>Ctrl+Enter</kbd> save and go on, <kbd>Esc</kbd> leave a field</p>"
        f'{"".join(sections)}<script nonce="{nonce}">{SCRIPT}</script></body></html>\n'
    )


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, report: Path, by: str, token: str, *given):
        self.report, self.by, self.token = report, by, token
        super().__init__(*given)

    def do_GET(self) -> None:
        if self._allowed("/"):
            marks, nonce = marks_in(self.report / "marks.csv", self.by), secrets.token_urlsafe(16)
            self._answer(HTTPStatus.OK, page(answers_kept(self.report), marks, nonce), "text/html")

    def do_POST(self) -> None:
        if not self._allowed("/mark"):
            return
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 < length <= MAX_BODY:
                raise ValueError(f"a mark has at most {MAX_BODY:,} bytes")
            said = json.loads(self.rfile.read(length))
            number(str(said["points"]))  # its error names no command's option
            mark = mark_of(*(str(said[name]) for name in ("student", "exercise", "points", "comment")))
            if (mark.student, mark.exercise) not in {
                (who, result.exercise) for who, result in answers_kept(self.report)
            }:
                raise ValueError("no such hand-in")
            if not mark.says:
                raise ValueError("neither points nor a comment were given")
            add_mark(self.report / "marks.csv", mark, self.by)
        except (ValueError, KeyError, TypeError, OSError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._answer(HTTPStatus.OK, f"{mark.points} {mark.comment}".strip())

    def _allowed(self, path: str) -> bool:
        asked, _, query = self.path.partition("?")
        right = secrets.compare_digest(query.encode(), f"token={self.token}".encode())
        if not right:
            self._answer(HTTPStatus.FORBIDDEN, "the address lacks this run's token")
        elif asked != path:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such page")
        return right and asked == path

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Print nothing."""


def server(report: Path, by: str = "") -> tuple[ThreadingHTTPServer, str]:
    """Return a server for a report's folder, and its address. `by` names the marker, by default this user.

    Raises:
        FileNotFoundError: the folder holds no results; one line.
    """
    answers_kept(report)
    token = secrets.token_urlsafe(16)
    found = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, report, by, token))
    return found, f"http://127.0.0.1:{found.server_port}/?token={token}"


def mark_by_hand(report: Path, by: str = "", show: Callable[[str], object] = webbrowser.open) -> int:
    """Serve the page until Control-C; after that, `fusion grade ... --resume` includes the marks."""
    running, address = server(report, by)
    print(f"Open this address, if your browser does not:\n{address}\nStop with Control-C.", flush=True)
    show(address)
    try:
        running.serve_forever()
    except KeyboardInterrupt:
        print("Marks are in marks.csv: `fusion grade SUBMISSIONS --out REPORT --resume` counts them.")
    return 0
