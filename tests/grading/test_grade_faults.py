"""What goes wrong on the grader's side loses nothing and gives no false score."""

import os
import re
import shutil
import socket
import subprocess
import sys

import attacks
import grading_faults
import pytest

from helpers.cli import main
from helpers.grading import fork_server, run, sandbox, workers
from helpers.instruments.diagnosis import bubblewrap

pytestmark = pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def graded_in_this_process(tasks, jobs):
    return ((task, workers.work(task)) for task in tasks)


def fork_of_this_process(arguments: list[str]) -> int:
    """A process that has imported everything already."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            status = main(arguments)
        finally:
            os._exit(status)
    return process


# In `make test`, tests/grading/test_grade_class.py kills one once.
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_a_grader_killed_ten_times_gives_the_report_of_one_that_was_not(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(run, "graded_here", graded_in_this_process)
    refused = ["import os", "open('/etc/passwd')", "import sys", "torch.ops"]
    submissions = grading_faults.put_class(tmp_path, refused)
    graded = grading_faults.kill_and_resume(fork_of_this_process, submissions, tmp_path / "killed", seed)
    assert len(set(graded)) > 5
    assert max(graded) < grading_faults.SIZE
    assert main(["grade", str(submissions), "--out", str(tmp_path / "whole"), "--seed", "5"]) == 0
    whole = grading_faults.report_without_times(tmp_path / "whole")
    killed = grading_faults.report_without_times(tmp_path / "killed")
    assert sorted(killed) == sorted(whole)
    assert killed == whole
    assert len(whole["grades.csv"].splitlines()) == grading_faults.SIZE + 1


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_so_does_the_command_killed_with_its_workers():
    grading_faults.in_full()


class PastTheSandbox:
    """A fork server for which the root that it enters is another than the sandbox's, as from a chroot."""

    def fork(self, asked: dict, descriptors: list[int]) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fork_server.fork(theirs, asked | {"root": [0, 0]}, *descriptors)
            raise RuntimeError(ours.recv(1 << 12).decode().strip())


def test_from_a_chroot_nothing_is_run_and_that_is_told(monkeypatch):
    monkeypatch.setattr(sandbox, "fork_server", PastTheSandbox())
    with pytest.raises(RuntimeError, match=r"from a chroot there is no way into a sandbox.*: grade outside it$"):
        sandbox.forked({"replay": True}, [], [])


@pytest.mark.long
def test_a_full_disk_is_told_in_one_line_and_nothing_is_scored(tmp_path):
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace of its own")
    submissions = grading_faults.put_class(tmp_path, ["import os"])
    out = tmp_path / "report"
    out.mkdir()
    arguments = ["grade", str(submissions), "--out", str(out), "--jobs", "1"]
    grade = f"import sys; from helpers.cli import main; sys.exit(main({arguments}))"
    script = 'mount -t tmpfs -o size=128k none "$1" && "$2" -c "$3"; echo "exit status $?"; find "$1" -name "*.csv"'
    ended = subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", str(out), sys.executable, grade], capture_output=True, text=True
    )
    assert ended.stdout == "exit status 2\n"
    told = ended.stderr.splitlines()[-1]
    assert re.fullmatch(
        rf"fusion: {out}/results/student\d+/{attacks.NAME}\.(json|xml) cannot be written: No space left on device; "
        "make room or choose another folder, then use --resume",
        told,
    ), told
