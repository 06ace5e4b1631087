"""The outcome of a check: pass, fail, not attempted or error, with the observation and where to look.

A check cell ends with a call that returns an Outcome. Jupyter shows it as text, as HTML, and as JSON of type
`application/vnd.kernel-fusion.check+json`, which `fusion check` reads. The text of a pass never depends on how the
answer was written, so a stored pass can be compared word for word.
"""

import ast
import contextlib
import functools
import html
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from IPython import get_ipython

from helpers.style import GREEN, LIMIT, SKY_BLUE, VERMILION

MIME = "application/vnd.kernel-fusion.check+json"
PASS, FAIL, NOT_ATTEMPTED, ERROR = "pass", "fail", "not attempted", "error"

# Distinguishable for colour-blind readers, on light and dark pages.
EDGE = {PASS: GREEN, FAIL: VERMILION, NOT_ATTEMPTED: LIMIT, ERROR: SKY_BLUE}

# The latest outcome of each check in this session, which `Hints` reads.
latest: dict[str, "Outcome"] = {}

# The checks that have hints in this session: `hint("values")`.
hinted: set[str] = set()

# Called with each outcome as it comes.
listeners: list[Callable[["Outcome"], None]] = []

MAX_QUOTED = 100  # characters of a source line

# Called before a check runs, to refuse an answer: (functions that the check gets) -> reason, or "".
gates: list[Callable[[list[Callable]], str]] = []


@dataclass(frozen=True)
class Outcome:
    """The result of one check.

    Args:
        check: the check's name, which is its cell's grade_id.
        state: "pass", "fail", "not attempted" or "error".
        message: the observation, in one or a few lines.
        look_at: where to look next; empty for a pass.
    """

    check: str
    state: str
    message: str
    look_at: str = ""

    def __str__(self) -> str:
        lines = [f"{self.state}: {self.check}", *self.message.splitlines()]
        if self.look_at:
            lines.append(f"Look at {self.look_at}.")
        return "\n  ".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        lines = [in_code(html.escape(line, quote=False)) for line in self.message.splitlines()]
        if self.look_at:
            lines.append(f"Look at {in_code(html.escape(self.look_at, quote=False))}.")
        text = str(self)
        if self.state in (FAIL, ERROR) and self.check in hinted:
            lines.append(f'<code>hint("{self.check}")</code> in a cell of your own says more.')
            text += f'\n  hint("{self.check}") in a cell of your own says more.'
        body = "<br>".join(lines)
        page = (
            f'<div style="border-left: 4px solid {EDGE[self.state]}; padding: 0.2em 0.8em">'
            f"<b>{self.state}</b>: {html.escape(self.check)}<br>{body}</div>"
        )
        data = {"check": self.check, "state": self.state, "message": self.message, "look_at": self.look_at}
        return {"text/plain": text, "text/html": page, MIME: data}


def in_code(page: str) -> str:
    """Return HTML with text in backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", page)


class AnswerError(Exception):
    """Raised inside a check when the answer doesn't pass.

    Args:
        message: the observation.
        look_at: where to look, completing "Look at ...".

    Attributes:
        formulas: names of mistaken formulas that give the answer's values.
        results: places of the results whose values are wrong, if that is why.
    """

    def __init__(self, message: str, look_at: str):
        super().__init__(message)
        self.look_at = look_at
        self.formulas: list[str] = []
        self.results: list[int] = []


def as_check(run: Callable[..., str], compiled: bool = True) -> Callable[..., Outcome]:
    """Turn a function that returns the text of a pass, or raises, into one that returns an Outcome.

    The first argument of `run` is the learner's answer, and `name=` is the check's name. AnswerError counts as a fail,
    a bare NotImplementedError (which a stub raises) as not attempted, and any other exception as an error. With
    `compiled`, a check can't pass if it launches a kernel that Triton's compiler rejects (`checks.launches`).
    """

    @functools.wraps(run)
    def check(answer, *args, name: str, **kwargs) -> Outcome:
        try:
            functions = [each for each in (answer, *args, *kwargs.values()) if callable(each)]
            if why := next(filter(None, (gate(functions) for gate in gates)), ""):
                raise AnswerError(f"refused: {why}", "that line: `fusion check` and the grader would refuse it")
            with watched_launches() if compiled else contextlib.nullcontext() as launches:
                message = run(answer, *args, **kwargs)
                if launches is not None:
                    launches.require_compiled()
            outcome = Outcome(name, PASS, message)
        except Exception as error:
            origins = list(causes(error))
            failure = next((cause for cause in origins if isinstance(cause, AnswerError)), None)
            if failure is not None:
                outcome = Outcome(name, FAIL, str(failure), failure.look_at)
            elif any(isinstance(cause, NotImplementedError) and not cause.args for cause in origins):
                outcome = unwritten(name)
            elif wrong := syntax_error(name):
                outcome = wrong
            else:
                outcome = Outcome(name, ERROR, *described(error, answer))
        outcome = without_repetition(outcome)
        latest[name] = outcome
        for listener in listeners:
            listener(outcome)
        return outcome

    return check


def without_repetition(outcome: Outcome) -> Outcome:
    """Return a check's outcome; if the same compile error failed another check in this session, refer to that."""
    what, _, log = outcome.message.partition("\n")
    if outcome.state != FAIL or not log or not what.endswith(" does not compile:"):
        return outcome
    same = (each.check for each in latest.values() if each.message == outcome.message and each.check != outcome.check)
    other = next(same, None)
    return replace(outcome, message=f"{what[:-1]}: its message is at the check {other!r}") if other else outcome


def watched_launches() -> contextlib.AbstractContextManager:
    """Return a context that watches kernel launches; empty if Triton was never imported."""
    if "triton" not in sys.modules:
        return contextlib.nullcontext()
    from helpers.learning.checks.launches import Launches

    return Launches()


def unwritten(name: str) -> Outcome:
    """Return the outcome for a stub: nothing was written, or Python can't parse it."""
    return syntax_error(name) or Outcome(
        name, NOT_ATTEMPTED, "write your answer above, run its cell, then run this one again"
    )


def syntax_error(name: str) -> Outcome | None:
    """Return the outcome if Python can't parse a cell of this notebook that defines something, since later errors
    follow from that; otherwise None."""
    shell = get_ipython()
    wrong = unread(shell.user_ns.get("In", [])) if shell is not None else None
    return wrong and Outcome(
        name, ERROR, f"SyntaxError: {wrong.msg}", f"your line {wrong.lineno}, `{wrong.text.strip()}`"
    )


def unread(ran: list[str]) -> SyntaxError | None:
    """Return the syntax error of the latest executed cell that defines something, if it has one."""
    read = set()  # whatever a later cell redefines without errors
    for source in reversed(ran):
        defined = set(re.findall(r"^def (\w+)", source, re.MULTILINE))
        try:
            ast.parse(source)
            read |= defined
        except SyntaxError as error:
            if defined - read and error.text:
                return error
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, because the interpreter wraps a kernel's exceptions."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def described(error: Exception, answer: Callable) -> tuple[str, str]:
    """Return an exception's message, and which of the learner's lines to look at."""
    text = str(error).strip()
    message = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    if not text and isinstance(error, AssertionError) and (claim := asserted(error.__traceback__)):
        message = f"AssertionError: `{claim}` does not hold"
    message = "\n".join([message, *getattr(error, "__notes__", [])])
    code = getattr(answer, "__code__", None)
    line = innermost_line(error.__traceback__, code.co_filename if code else None)
    for cause in causes(error):
        # The interpreter knows which line of a kernel failed; Python only sees the launcher's line.
        if place := getattr(cause, "place", None):
            line = quoted_line(*place)
            message = message.replace(f", line {place[1]}, `{linecache.getline(*place).strip()}`", "")
    # A program that continues with a value from outside a tensor may fail later, so report the hazard first.
    for hazard in next((each.hazards for each in causes(error) if getattr(each, "hazards", ())), ()):
        if hazard.kind in ("out-of-bounds read", "uninitialised read"):
            message = f"{hazard.kind} of {hazard.where}, elements: {hazard.elements}\nand then {message}"
            line = quoted_line(hazard.file, hazard.line)
            break
    return message, line or "the line that this names"


def asserted(trace: TracebackType | None) -> str:
    """Return the line where a traceback ends, which is the condition if an assertion has no message."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip() if trace else ""


def innermost_line(trace: TracebackType | None, filename: str | None) -> str:
    """Return the last line of `filename` in a traceback, with its text; empty if there isn't one."""
    found = ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            found = quoted_line(filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def quoted_line(filename: str, number: int) -> str:
    """Quote a source line: "your line 7, `y = x`"; if a call begins there, include its first argument."""
    line = linecache.getline(filename, number).strip()
    if line.endswith("("):
        line += f"{linecache.getline(filename, number + 1).strip()} ..."
    return f"your line {number}, `{shortened(line)}`"


def shortened(line: str) -> str:
    """Return a source line that is too long to quote whole, cut between two words."""
    if len(line) <= MAX_QUOTED:
        return line
    return f"{line[:MAX_QUOTED].rpartition(' ')[0] or line[:MAX_QUOTED]} ..."
