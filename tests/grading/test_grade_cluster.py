"""`fusion grade --cluster`: the same report from dask.distributed's workers, one of them killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import attacks
import pytest
from distributed import Client

from helpers.cli import main
from helpers.instruments.diagnosis import bubblewrap

NOTEBOOK = f"{attacks.NAME}.ipynb"
pytestmark = pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")


def put_class(folder: Path, right: int, refused: int) -> Path:
    for number in range(right + refused):
        path = folder / "submissions" / f"student{number:02}" / NOTEBOOK
        path.parent.mkdir(parents=True)
        launcher = attacks.LAUNCHER if number < right else "import os"
        path.write_text(json.dumps(attacks.notebook(launcher=launcher)))
    return folder / "submissions"


@pytest.fixture
def scheduler(tmp_path, request):
    """The address of a scheduler with as many workers as the test names, all processes of this machine."""
    file = tmp_path / "scheduler.json"
    started = [dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))]
    deadline = time.monotonic() + 120
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    address = json.loads(file.read_text())["address"]
    options = "--nthreads 1 --no-dashboard --no-nanny --local-directory".split()
    started += [dask("worker", address, *options, str(tmp_path / f"worker{number}")) for number in range(request.param)]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(request.param, timeout=120)
    yield address
    for process in started:
        process.kill()
        process.wait()


def dask(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "dask", *arguments], stderr=subprocess.DEVNULL)


def kill_a_worker_at_work(address: str, killed: list[int]) -> None:
    """Kill the first worker that is seen with a submission under way for a while."""
    with Client(address, set_as_default=False) as client:
        processes = client.run(os.getpid)
        while True:
            time.sleep(1.0)
            if busy := [worker for worker, tasks in client.processing().items() if tasks]:
                os.kill(processes[busy[0]], signal.SIGKILL)
                killed.append(processes[busy[0]])
                return


def assert_graded(submissions: Path, out: Path, scheduler: str, right: int, capsys) -> None:
    assert main(["grade", str(submissions), "--out", str(out), "--cluster", scheduler]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(submissions.iterdir())) + 1
    for number, line in enumerate(lines[:-1]):
        earned = "15 of 15" if number < right else "0 of 15  refused"
        assert re.fullmatch(rf"student{number:02}  {attacks.NAME}  {earned}", line)


@pytest.mark.parametrize("scheduler", [1], indirect=True)
def test_a_class_is_graded(scheduler, tmp_path, capsys):
    """Refused submissions: answers that are run are those of the class whose worker is killed."""
    assert_graded(put_class(tmp_path, 0, 2), tmp_path / "out", scheduler, 0, capsys)


@pytest.mark.long
@pytest.mark.parametrize("scheduler", [4], indirect=True)
def test_a_class_is_graded_though_a_worker_is_killed(scheduler, tmp_path, capsys):
    killed = []
    killer = threading.Thread(target=kill_a_worker_at_work, args=(scheduler, killed), daemon=True)
    killer.start()
    assert_graded(put_class(tmp_path, 4, 12), tmp_path / "out", scheduler, 4, capsys)
    killer.join(10)
    assert killed


def test_no_cluster_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    submissions = put_class(tmp_path, 0, 1)
    monkeypatch.setattr("helpers.grading.workers.CONNECT_TIME", 1.0)
    assert main(["grade", str(submissions), "--out", str(tmp_path / "out"), "--cluster", "tcp://127.0.0.1:9"]) == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"fusion: no cluster at tcp://127.0.0.1:9: .*: start one with `dask scheduler`", told), told
