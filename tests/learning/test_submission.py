"""`fusion check`: what is taken from a learner's notebook, how it is run, and what is said of it."""

import ast
import json
import re
from pathlib import Path

import pytest

from helpers.learning import check_command, notebook_runner
from helpers.learning.notebook_runner import run_cells
from helpers.learning.outcome import MIME
from helpers.learning.submission import in_words, read_submission
from helpers.learning.submission_policy.screening import Screened

ROOT = Path(__file__).parents[2]

# A check without torch: it shows what the course's checks show.
SETUP = f'''\
from IPython.display import display

def show(state, message="", look_at=""):
    data = {{"check": "double", "state": state, "message": message, "look_at": look_at}}
    display({{"text/plain": f"{{state}}: double", "{MIME}": data}}, raw=True)

def check_double(double):
    try:
        got = double(4)
    except NotImplementedError:
        return show("not attempted", "write your answer above")
    return show("pass") if got == 8 else show("fail", f"got {{got}}, expected 8", "the factor")
'''
STUB = "def double(x):\n    raise NotImplementedError  # your code here"
ANSWER = "def double(x):\n    return 2 * x"
PASS = {
    "output_type": "display_data",
    "metadata": {},
    "data": {
        "text/plain": "pass: double",
        MIME: {"check": "double", "state": "pass", "message": "", "look_at": ""},
    },
}
ORIGINAL = [
    {"id": "setup", "source": SETUP, "answer": False},
    {"id": "answer", "source": STUB, "answer": True},
    {"id": "double", "source": "check_double(double)", "answer": False, "points": 3, "pass": [PASS]},
    {"id": "again", "source": "check_double(double)", "answer": False, "points": 2, "pass": [PASS]},
    {"id": "hidden", "source": "# later", "answer": False, "points": 1, "pass": None},
]


def code(source: str, grade_id: str | None = None, **metadata) -> dict:
    if grade_id:
        metadata["nbgrader"] = {"grade_id": grade_id}
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None}


def notebook(answer: str = ANSWER, exercise: str = "03_double", original: list | None = None) -> dict:
    cells = [
        code(SETUP),
        code(answer, "answer"),
        code("check_double(double)", "double"),
        code("check_double(double)", "again"),
        code("# later", "hidden"),
    ]
    course = {"exercise": exercise, "original": json.loads(json.dumps(original or ORIGINAL))}
    return {"cells": cells, "metadata": {"kernel_fusion": course}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def saved(tmp_path):
    def save(content: dict | str, name: str = "03_double.ipynb") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return save


@pytest.fixture
def unscreened(monkeypatch):
    """For answers that the policy would not let run."""
    monkeypatch.setattr(check_command, "screened", lambda answers, cells: Screened(answers, {}, {}))


def graded(path: Path, capsys, cell_timeout: float = 60.0) -> tuple[int, str]:
    code = check_command.check_notebook(path, cell_timeout=cell_timeout)
    return code, capsys.readouterr().out


def test_a_right_answer_earns_every_point(saved, capsys):
    assert graded(saved(notebook()), capsys) == (
        0,
        "03_double\n"
        "  double  pass           3 of 3 points\n"
        "  again   pass           2 of 2 points\n"
        "  hidden  kept for the grading, 1 points\n"
        "  5 of 6 points (1 of them for hidden checks, which only the grading runs)\n",
    )


def test_a_wrong_answer_is_told_what_is_wrong_each_time_alike(saved, capsys):
    path = saved(notebook("def double(x):\n    return 3 * x"))
    first = graded(path, capsys)
    assert first == graded(path, capsys)
    assert first[0] == 1
    assert "  double  fail           0 of 3 points\n      got 12, expected 8\n      Look at the factor.\n" in first[1]


def test_a_stub_is_not_attempted(saved, capsys):
    status, report = graded(saved(notebook(STUB)), capsys)
    assert status == 1
    assert "  double  not attempted  0 of 3 points\n      write your answer above\n" in report
    assert "  0 of 6 points (1 of them for hidden checks, which only the grading runs)\n" in report


def test_what_is_not_an_answer_comes_from_the_original(saved, capsys):
    content = notebook(STUB)
    content["cells"][0]["source"] = SETUP.replace('"fail"', '"pass"')
    content["cells"][2]["source"] = 'show("pass")'
    content["cells"][2]["metadata"]["nbgrader"]["points"] = 100
    del content["cells"][3]
    content["cells"].append(code("double = lambda x: 8"))
    status, report = graded(saved(content), capsys)
    assert status == 1
    assert "  double  not attempted  0 of 3 points\n" in report
    assert "  again   not attempted  0 of 2 points\n" in report
    assert "  Not taken: 3 code cells that you added or changed outside the answer cells.\n" in report


def test_a_cell_that_asks_for_a_hint_is_expected(saved, capsys):
    content = notebook(STUB)
    content["cells"] += [code("hint(1)"), code("# stuck\nhint(2)\nhint"), code("")]
    assert "Not taken" not in graded(saved(content), capsys)[1]
    content["cells"] += [code("hint(1)\nx = 3"), code("hint = 3"), code("print(hint)"), code("hint(")]
    assert "  Not taken: 4 code cells that you added" in graded(saved(content), capsys)[1]


def test_stored_outputs_and_markers_earn_nothing(saved, capsys):
    content = notebook("# NBVAL_SKIP\n" + STUB)
    content["cells"][1]["metadata"]["tags"] = ["nbval-skip", "raises-exception"]
    for cell in content["cells"][2:4]:
        cell.update(outputs=[PASS], execution_count=None)
        cell["metadata"]["tags"] = ["nbval-skip"]
    assert "  0 of 6 points" in graded(saved(content), capsys)[1]


def test_what_an_answer_prints_does_not_count_against_it(saved, capsys, unscreened):
    chatty = "import sys\ndef double(x):\n    print('here', x)\n    print('there', file=sys.stderr)\n    return 2 * x"
    assert graded(saved(notebook(chatty)), capsys)[0] == 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("def double(x)\n    return 2 * x", "not run: the cell 'answer' stopped: SyntaxError: expected ':'"),
        ("double = 4 / 0", "not run: the cell 'answer' stopped: ZeroDivisionError: division by zero"),
        ("def twice(x):\n    return 2 * x", "it stopped: NameError: name 'double' is not defined"),
        (
            "def double(x):\n    import os\n    os._exit(0)",
            "it ended the kernel's process: look for exit(), or",
        ),
        ("while True:\n    pass", "not run: the cell 'answer' ran for over 2 s: look for a loop that never ends"),
        pytest.param(
            "def double(x):\n    while True:\n        pass",
            "it ran for over 2 s: look for a loop that never ends",
            marks=pytest.mark.long,
        ),
        ("while True:\n    print('x' * 1000)", "'answer' printed over 10,000,000 characters: look for a print in a"),
        ("def double(x):\n    show('pass')\n    show('pass')", "it showed something other than this check's outcome"),
    ],
    ids=["syntax", "exception", "name", "death", "loop", "loop in check", "flood", "forged"],
)
def test_an_answer_that_breaks_is_an_error_with_its_reason(saved, capsys, unscreened, answer, told):
    status, report = graded(saved(notebook(answer)), capsys, cell_timeout=2.0 if "over 2 s" in told else 60.0)
    assert status == 1
    assert "  double  error          0 of 3 points\n" in report
    assert told in report
    assert "  0 of 6 points" in report


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("while True:\n    print('x' * 100_000)", marks=pytest.mark.long, id="in parts"),
        pytest.param("print('x' * 200_000_000)", id="at once"),
    ],
)
def test_a_flood_is_told_alike_where_memory_is_the_first_limit(saved, capsys, unscreened, monkeypatch, answer):
    monkeypatch.setattr(notebook_runner, "MAX_OUTPUT", 10**15)
    monkeypatch.setattr(notebook_runner, "MAX_HELD", 64 << 20)
    report = graded(saved(notebook(answer)), capsys)[1]
    assert "the cell 'answer' printed over 1,000,000,000,000,000 characters: look for a print in a loop" in report


def test_every_check_is_reported_after_a_dead_kernel(saved, capsys, unscreened):
    _, report = graded(saved(notebook("def double(x):\n    import os\n    os._exit(0)")), capsys)
    assert (
        "  again   error          0 of 2 points\n      not run: the cell 'double' ended the kernel's process" in report
    )


def test_an_answer_that_runs_in_a_folder_of_its_own(saved, capsys, unscreened, tmp_path):
    (tmp_path / "conftest.py").write_text("raise SystemExit('read')")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('read')")
    answer = "import os\nassert os.listdir() == ['notebook.ipynb'], os.listdir()\n" + ANSWER
    assert graded(saved(notebook(answer)), capsys)[0] == 0


def two_answers(first: str, second: str) -> dict:
    """Each with a check of its own: `double`, and `halve`, which halves what it is given doubled."""
    original = [
        *ORIGINAL[:2],
        {"id": "second", "source": STUB.replace("double", "halve"), "answer": True},
        ORIGINAL[2],
        {
            "id": "halves",
            "source": "check_double(lambda x: 16 // halve(x))",
            "answer": False,
            "points": 2,
            "pass": [PASS],
        },
    ]
    content = notebook(first, original=original)
    content["cells"][2:2] = [code(second, "second")]
    return content


HALVE = "def halve(x):\n    return x // 2"


@pytest.mark.parametrize("broken", ["def double(x)\n    return 2 * x", "double = 4 / 0"], ids=["syntax", "exception"])
def test_a_broken_answer_costs_no_other_its_points(saved, capsys, broken):
    _, report = graded(saved(two_answers(broken, HALVE)), capsys)
    assert "  halves  pass           2 of 2 points\n" in report
    assert "  double  error          0 of 3 points\n      not run: the cell 'answer' stopped: " in report
    _, report = graded(saved(two_answers(ANSWER, broken.replace("double", "halve"))), capsys)
    assert "  double  pass           3 of 3 points\n" in report
    assert "  halves  error          0 of 2 points\n      not run: the cell 'second' stopped: " in report


def test_what_the_grading_would_refuse_is_refused(saved, capsys):
    status, report = graded(saved(two_answers("import os\n" + ANSWER, HALVE)), capsys)
    assert status == 1
    assert "  double  refused        0 of 3 points\n      answer 'answer', line 1: importing os is not" in report
    assert "  halves  pass           2 of 2 points\n" in report
    # The meter would work a number out; the grading's sandbox has none for it.
    _, report = graded(saved(two_answers(ANSWER, "def halve(x):\n    return measure(x).launches")), capsys)
    assert "answer 'second', line 2: measure(x).launches isn't available to answers that" in report


def without(*places) -> dict:
    content = notebook()
    for place in places:
        content["cells"][place] = code("")
    return content


def retyped() -> dict:
    content = notebook()
    content["cells"][1]["cell_type"] = "markdown"
    return content


def doubled() -> dict:
    content = notebook()
    content["cells"].append(content["cells"][1])
    return content


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        ("", "03_double.ipynb", "is not a notebook (not JSON): save it again from JupyterLab"),
        ("{", "03_double.ipynb", "is not a notebook (not JSON)"),
        ("[" * 100_000, "03_double.ipynb", "is not a notebook (not JSON)"),
        ("[]", "03_double.ipynb", "is JSON, but not a notebook of format 4"),
        ('{"worksheets": []}', "03_double.ipynb", "is JSON, but not a notebook of format 4"),
        ('{"cells": [1], "metadata": {}}', "03_double.ipynb", "is JSON, but not a notebook of format 4"),
        ({"cells": [], "metadata": {}}, "03_double.ipynb", "is not an exercise of this course: choose one of"),
        (notebook(), "05_layer_norm.ipynb", "holds exercise 03_double, not 05: rename it, or pass the right file"),
        (notebook(exercise="05b_rms"), "05_rms.ipynb", "holds exercise 05b_rms, not 05"),
        (without(1), "03_double.ipynb", "has no answer cell 'answer': start again from a fresh copy of the exercise"),
        (doubled(), "03_double.ipynb", "has 2 answer cells 'answer', one of them a copy: delete one"),
        (retyped(), "03_double.ipynb", "has its answer 'answer' in a markdown cell: make it code again"),
    ],
    ids="empty cut deep list old numbers lesson renamed letter missing doubled retyped".split(),
)
def test_what_cannot_be_graded_is_told_in_one_line(saved, content, name, told):
    path = saved(content, name)
    with pytest.raises(ValueError, match=re.escape(str(path))) as refused:
        check_command.check_notebook(path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "03_double.ipynb").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not JSON"):
        check_command.check_notebook(tmp_path / "03_double.ipynb")


def test_a_missing_notebook_names_those_there_are(tmp_path):
    folder = tmp_path / "exercises"
    folder.mkdir()
    (folder / "03_double.ipynb").write_text(json.dumps(notebook()))
    with pytest.raises(FileNotFoundError, match=r"no notebook .*/04\.ipynb: choose one of .*/03_double\.ipynb"):
        check_command.check_notebook(folder / "04.ipynb")


@pytest.mark.parametrize("name", ["03_double.ipynb", "03_double-Copy1.ipynb", "my answer.ipynb"])
def test_copies_are_taken(saved, name):
    submission = read_submission(saved(notebook(), name))
    assert submission.answers == {"answer": ANSWER}
    assert submission.left_out == 0


def test_sources_may_be_lists_of_lines(saved):
    content = notebook()
    for cell in content["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
    submission = read_submission(saved(content))
    assert submission.answers == {"answer": ANSWER}
    assert submission.left_out == 0


def test_the_comparison_is_nbvals(saved):
    # The same cell, the same text; only the stored output decides.
    other = json.loads(json.dumps(ORIGINAL))
    other[2]["pass"][0]["data"]["text/plain"] = "pass: another"
    submission = read_submission(saved(notebook(original=other)))
    runs = run_cells(check_command.assembled(submission), needed=set(), cell_timeout=20.0)
    assert [runs[name].same for name in ("double", "again")] == [False, True]


def test_grading_imports_neither_kernels_nor_torch():
    # The fork server is there to import them, in a process of its own.
    for path in set((ROOT / "helpers/grading").glob("*.py")) - {ROOT / "helpers/grading/fork_server.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"kernels", "torch", "triton"}, path


def test_a_cell_is_named_as_learners_know_it():
    shown = {"id": "98b81921", "source": "# Try it:\n\ntry:\n    f()", "answer": False}
    assert in_words(shown) == "the cell that begins with `try:`"
    assert in_words({"id": "kernel", "source": "x", "answer": True}) == "the cell 'kernel'"
    assert in_words({"id": "values", "source": "x", "answer": False, "points": 3}) == "the cell 'values'"


def test_a_solution_has_no_changed_cells():
    """Its hidden checks are not in the learner's notebook."""
    assert read_submission(ROOT / "solutions" / "02_count_the_bytes.ipynb").left_out == 0
