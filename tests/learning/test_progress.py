"""`fusion progress`: what is kept, and what is no longer claimed when a notebook has changed."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from helpers.cli import main
from helpers.learning import progress

ROOT = Path(__file__).parents[2]


def put(folder: Path, name: str = "01_roofline", built: str = "solutions") -> Path:
    notebook = folder / f"{name}.ipynb"
    notebook.write_bytes((ROOT / built / notebook.name).read_bytes())
    return notebook


def answers_in(notebook: Path) -> dict[str, str]:
    asked = {cell["id"] for cell in progress.course_of(notebook)["original"] if cell["answer"]}
    return {cell.id: cell.source for cell in nbformat.read(notebook, 4).cells if cell.id in asked}


def edit(notebook: Path, answer: str, source: str) -> None:
    content = json.loads(notebook.read_text())
    next(cell for cell in content["cells"] if cell["id"] == answer)["source"] = source
    notebook.write_text(json.dumps(content))


def test_what_was_said_stands_as_long_as_the_answers_do(tmp_path):
    notebook = put(tmp_path)
    before = answers_in(notebook)
    assert progress.progress_of(notebook).described == "not checked yet"
    progress.record(notebook, {"product": "pass", "softmax": "fail"}, before)
    told = progress.progress_of(notebook)
    assert told.states == {"softmax": "fail", "product": "pass"}
    assert told.earned == 1
    assert "fail: softmax; to do: vector-add, ridge, bound, gpus" in told.described
    edit(notebook, "product-answer", before["product-answer"] + "  # better")
    told = progress.progress_of(notebook)
    assert told.states == {"softmax": "fail"}  # its answer is above the one that changed
    assert told.earned == 0
    assert "changed since: run product again" in told.described
    edit(notebook, "vector-add-answer", before["vector-add-answer"] + "  # better")
    assert "changed since: run softmax, product again" in progress.progress_of(notebook).described
    edit(notebook, "vector-add-answer", before["vector-add-answer"])
    edit(notebook, "product-answer", before["product-answer"].splitlines(keepends=True))
    assert progress.progress_of(notebook).earned == 1


def test_an_earlier_answer_that_is_put_back_has_its_result_again(tmp_path):
    notebook = put(tmp_path)
    before = answers_in(notebook)
    progress.record(notebook, {"product": "pass"}, before)
    for number in range(3):
        edit(notebook, "product-answer", f"def product():\n    return {number}")
        progress.record(notebook, {"product": "fail"}, answers_in(notebook))
    assert progress.progress_of(notebook).states == {"product": "fail"}
    edit(notebook, "product-answer", before["product-answer"])
    assert progress.progress_of(notebook).states == {"product": "pass"}
    # What is checked again counts as it is now, not as it was.
    progress.record(notebook, {"product": "fail"}, before)
    assert progress.progress_of(notebook).states == {"product": "fail"}
    [kept] = progress.kept_in(tmp_path / ".progress/01_roofline.json").values()
    assert len(progress.entries_of(kept)) == 4
    for number in range(30):
        progress.record(notebook, {"product": "pass"}, before | {"product-answer": str(number)})
    [kept] = progress.kept_in(tmp_path / ".progress/01_roofline.json").values()
    assert len(progress.entries_of(kept)) == 1 + progress.EARLIER


def test_all_passes_are_said_and_hidden_checks_are_not_counted(tmp_path):
    notebook = put(tmp_path, built="exercises")
    points = progress.progress_of(notebook).points
    assert sum(points.values()) == 8
    progress.record(notebook, dict.fromkeys([*points, "other-work"], "pass"), answers_in(notebook))
    assert str(progress.progress_of(notebook)).startswith("01_roofline")
    assert "8 of 10 points" in str(progress.progress_of(notebook))
    assert (
        "every check passes, and the other 2 points are for hidden checks" in progress.progress_of(notebook).described
    )


TORN = '{"product": {"state": "pass", "answers": "", "when": 0, "earlier": [3]}}'


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"product": 3}', '{"product": {"state": "won"}}', TORN, "\udcff"])
def test_what_was_not_written_here_counts_for_nothing(tmp_path, kept):
    notebook = put(tmp_path)
    (tmp_path / ".progress").mkdir()
    (tmp_path / ".progress/01_roofline.json").write_bytes(kept.encode(errors="surrogateescape"))
    assert progress.progress_of(notebook).states == {}
    progress.record(notebook, {"product": "pass"}, answers_in(notebook))
    assert progress.progress_of(notebook).states == {"product": "pass"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    notebook = put(tmp_path)
    (tmp_path / ".progress").write_text("in the way")
    said = progress.record(notebook, {"product": "pass"}, answers_in(notebook))
    assert said == f"Not kept for `fusion progress`: {tmp_path / '.progress'} cannot be written (File exists)."
    assert progress.progress_of(notebook).states == {}
    assert progress.report(tmp_path).endswith(f"Nothing is kept in {tmp_path / '.progress'} yet.")


def test_a_copy_of_an_exercise_is_not_counted_again(tmp_path):
    notebook = put(tmp_path)
    copy = notebook.with_name("01_roofline-Copy1.ipynb")
    copy.write_bytes(notebook.read_bytes())
    progress.record(notebook, {"product": "pass"}, answers_in(notebook))
    edit(copy, "product-answer", "def product():\n    pass")
    said = progress.report(tmp_path)
    assert "\n                             1 of 10 points (2 of them" in said
    assert "01_roofline-Copy1.ipynb is not counted: it is another copy of 01_roofline." in said


def test_the_command_lists_every_exercise(tmp_path, capsys):
    put(tmp_path)
    put(tmp_path, "03_fused_add_gelu", built="exercises")
    (tmp_path / "notes.ipynb").write_text("{}")
    (tmp_path / "torn.ipynb").write_text("{")
    assert main(["progress", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["01_roofline", "03_fused_add_gelu", "0", "torn.ipynb", "Nothing"]
    assert "torn.ipynb cannot be read: save it again from JupyterLab." in said
    assert main(["progress", str(tmp_path / "none")]) == 2
    assert "has no exercises" in capsys.readouterr().err


def test_a_running_notebook_records_what_its_checks_say(tmp_path, monkeypatch):
    notebook = put(tmp_path)
    # What Jupyter's server tells a kernel.
    monkeypatch.setitem(os.environ, "JPY_SESSION_NAME", str(notebook))
    cells = [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code" and "other" not in cell.id]
    manager, kernel = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        for cell in cells:
            execute_as_jupyterlab(kernel, cell)
        assert set(progress.progress_of(notebook).states.values()) == {"pass"}, progress.progress_of(notebook).states
        assert progress.progress_of(notebook).earned == 8
        # A stub is run and checked, but not saved: the file still holds the answer that passed.
        stub = next(cell for cell in cells if cell.id == "product-answer")
        stub.source = "def product(rows, inner, columns, itemsize):\n    raise NotImplementedError"
        execute_as_jupyterlab(kernel, stub)
        execute_as_jupyterlab(kernel, next(cell for cell in cells if cell.id == "product"))
        assert progress.progress_of(notebook).earned == 8
        edit(notebook, "product-answer", stub.source)
        kept = {"vector-add": "pass", "softmax": "pass"}  # their answers, above this one, are as they were
        assert progress.progress_of(notebook).states == kept | {"product": "not attempted"}
        # What the grading would refuse is refused here, for the check that needs it and no other.
        stub.source = "import os\n\n\ndef product(rows, inner, columns, itemsize):\n    return os.getpid()"
        edit(notebook, "product-answer", stub.source)
        execute_as_jupyterlab(kernel, stub)
        for name in ("vector-add", "product"):
            execute_as_jupyterlab(kernel, next(cell for cell in cells if cell.id == name))
        assert progress.progress_of(notebook).states == kept | {"product": "fail"}
        said = asked(kernel, "helpers.learning.outcome.latest['product'].message")
        assert "refused: answer 'product-answer', line 1: importing os is not graded" in said
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


def asked(kernel: BlockingKernelClient, expression: str) -> str:
    """What an expression is worth in the kernel, as text."""
    code = "import helpers.learning.outcome"
    reply = kernel.execute_interactive(code, user_expressions={"it": expression}, timeout=60)
    return reply["content"]["user_expressions"]["it"]["data"]["text/plain"]


def execute_as_jupyterlab(kernel: BlockingKernelClient, cell) -> None:
    """Run a cell with its id, which JupyterLab sends along and jupyter_client does not."""
    message = kernel.session.msg("execute_request", {"code": cell.source, "silent": False, "store_history": True})
    message["metadata"]["cellId"] = cell.id
    kernel.shell_channel.send(message)
    reply = kernel.get_shell_msg(timeout=60)
    while reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
        reply = kernel.get_shell_msg(timeout=60)
    assert reply["content"]["status"] == "ok", reply["content"]
