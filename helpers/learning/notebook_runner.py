"""Run the code cells of a notebook with nbval and report each one's outcome.

nbval starts the kernel, runs the cells and compares their outputs with the stored ones. This module fills its gaps: it
notices a dead kernel at once, limits output while it is being printed, ignores markers such as NBVAL_SKIP in cells,
imports and writes nothing next to the notebook, and starts no further cell after one has timed out.
"""

import collections
import contextlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from types import MappingProxyType
from unittest import mock

import nbformat
import pytest
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile

from helpers.learning.submission import in_words

MAX_OUTPUT = 10_000_000  # characters a cell may print beyond the results asked of it, including Jupyter's wrapping
MAX_HELD = 256 << 20  # maximum growth of this process in bytes: a kernel's messages are kept even if unread
COPIES = 8  # of a cell's results, in this process at the same time: as received, as parsed, as compared, ...
LOOK_AFTER = 0.05  # seconds


@dataclass
class CellRun:
    """The outcome of one cell.

    Attributes:
        same: whether it ran and matched the notebook's stored outputs, if any.
        outputs: its outputs in nbformat.
        problem: why its outputs are incomplete, such as "ran for over 60 s"; empty if it ran to its end.
    """

    same: bool = False
    outputs: list[NotebookNode] = field(default_factory=list)
    problem: str = "was not run"


def problems_in(runs: dict[str, CellRun], cells: list[dict]) -> dict[str, str]:
    """Return name -> what happened, in words, for each cell that didn't run to its end."""
    named = {cell["id"]: cell for cell in cells}
    return {name: f"{in_words(named[name])} {run.problem}" for name, run in runs.items() if run.problem}


class KernelProblemError(Exception):
    """The kernel can't run any more cells."""


class WatchedKernel(RunningKernel):
    """nbval's kernel, watched while a cell runs: whether it's alive, and how much it prints."""

    def __init__(self, *args, most_results: int, **kwargs):
        self.printed = collections.deque()  # messages received from the kernel and not yet requested
        self.size = 0  # characters that the cell has printed
        self.max_output = MAX_OUTPUT
        self._max_held = MAX_HELD + COPIES * most_results
        self.flooded = False
        self._stopped = threading.Event()
        super().__init__(*args, **kwargs)
        threading.Thread(target=self._watch_memory, daemon=True).start()

    def _watch_memory(self):
        """End a kernel that sends messages faster than they are read, on any channel, even while another process
        judges."""
        began = resident()
        while not self._stopped.wait(LOOK_AFTER):
            if resident() - began > self._max_held:
                self.flooded = True
                self.km.provisioner.process.kill()
                return

    def stop(self):
        self._stopped.set()
        super().stop()

    def await_reply(self, msg_id, timeout=None):
        deadline = time.monotonic() + timeout
        self.size = 0
        while True:
            with contextlib.suppress(Empty):
                while time.monotonic() <= deadline:  # messages may arrive as fast as they are read
                    self.printed.append(self._next_printed(timeout=0))
            try:
                return super().await_reply(msg_id, timeout=0.1)
            except Empty:
                if not self.is_alive():
                    self._refuse_flood()
                    told = "ended the kernel's process: look for exit(), or too much memory"
                    raise KernelProblemError(told) from None
                if time.monotonic() > deadline:
                    raise

    def get_message(self, stream, timeout=None):
        if stream == "iopub":
            return self.printed.popleft() if self.printed else self._next_printed(timeout)
        return super().get_message(stream, timeout=timeout)

    def _next_printed(self, timeout):
        # Bypass nbval, which formats each message for its log, whether or not the log is on.
        try:
            message = self.kc.get_iopub_msg(timeout=timeout)
        except Empty:
            self._refuse_flood()
            raise
        # Count the whole message, because all of it is kept: one without text still has a header, and may have more.
        self.size += len(str(message)) + sum(map(len, message["buffers"]))
        self._refuse_flood()
        return message

    def _refuse_flood(self):
        """Raise the same message for both limits, since a print in a loop may hit either one first."""
        if self.flooded or self.size > self.max_output:
            raise KernelProblemError(f"printed over {MAX_OUTPUT:,} characters: look for a print in a loop") from None


def resident() -> int:
    """Return how many bytes of memory this process holds."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class WatchedNotebook(IPyNbFile):
    def setup(self):
        most_results = max(self.recorder.results_size.values(), default=0)
        self.kernel = WatchedKernel(self.recorder.kernel_name, cwd=str(self.path.parent), most_results=most_results)

    def teardown(self):
        if hasattr(self.kernel, "km"):  # nbval has already stopped it if a cell ran out of time
            self.kernel.stop()

    def collect(self):
        for item in super().collect():
            item.options = collections.defaultdict(bool, check=bool(item.cell.outputs))
            # A learner's prints do not affect a check's outcome.
            item.compare_outputs = lambda test, stored, item=item: self.recorder.compare(
                item, [output for output in test if output.output_type != "stream"], stored
            )
            yield item


class Recorder:
    """A pytest plugin that collects the notebook and records the outcome of each cell."""

    def __init__(
        self,
        needed: set[str],
        cell_timeout: float,
        kernel_name: str,
        compare: Callable[..., bool],
        results_size: Mapping[str, int],
    ):
        self.needed = needed
        self.cell_timeout = cell_timeout
        self.kernel_name = kernel_name
        self.compare = compare
        self.results_size = results_size
        self.runs: dict[str, CellRun] = {}
        self.stopped = ""
        self.no_kernel = ""

    def pytest_collect_file(self, file_path, parent):
        notebook = WatchedNotebook.from_parent(parent, path=file_path)
        notebook.recorder = self
        return notebook

    def pytest_runtest_setup(self, item):
        if self.stopped:
            pytest.skip(self.stopped)

    def pytest_runtest_call(self, item):
        item.parent.kernel.max_output = MAX_OUTPUT + self.results_size.get(item.cell.id, 0)

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception):
            return
        if call.when == "setup" and call.excinfo is not None:
            self.stopped = self.no_kernel = f"no kernel: {call.excinfo.value}"
        if call.when != "call":
            return
        run = CellRun(same=call.excinfo is None, outputs=item.test_outputs or [], problem="")
        raised = next((output for output in run.outputs if output.output_type == "error"), None)
        if call.excinfo is not None and call.excinfo.errisinstance(KernelProblemError):
            run.problem = str(call.excinfo.value)
        elif item.parent.timed_out:
            run.problem = f"ran for over {self.cell_timeout:g} s: look for a loop that never ends"
        elif raised is not None:
            run.problem = f"stopped: {raised.ename}: {raised.evalue.strip().partition(chr(10))[0]}"
        self.runs[item.cell.id] = run
        if run.problem and (item.cell.id in self.needed or raised is None or item.parent.timed_out):
            self.stopped = run.problem


def run_cells(
    notebook: NotebookNode,
    needed: set[str],
    cell_timeout: float,
    kernel_name: str = CURRENT_ENV_KERNEL_NAME,
    compare: Callable[..., bool] = IPyNbCell.compare_outputs,
    junit: Path | None = None,
    results_size: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, CellRun]:
    """Run a notebook's code cells in order, in a kernel of this Python and in an empty folder.

    Args:
        notebook: a cell's outputs are compared with those it stores, if it stores any.
        needed: ids of cells that later cells depend on.
        cell_timeout: seconds a cell may run.
        kernel_name: the kernel's name among the installed kernelspecs; default: this Python.
        compare: (nbval's item, outputs, stored outputs) -> whether they are the same; default: nbval's own.
        junit: where pytest writes its JUnit XML, if anywhere.
        results_size: cell id -> characters of the results that the cell has to output, which don't count as printed.

    Returns:
        cell id -> CellRun, for every code cell.

    Raises:
        RuntimeError: there is no kernel, or nbval didn't finish; one line.
    """
    recorder = Recorder(needed, cell_timeout, kernel_name, compare, results_size)
    told = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="fusion-check-") as folder:
        path = Path(folder, "notebook.ipynb")
        nbformat.write(notebook, path)
        arguments = [
            "-c",
            os.devnull,
            "--rootdir",
            folder,
            "--confcutdir",  # otherwise everything next to the folder is scanned
            folder,
            "--noconftest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:unraisableexception",  # collects all of this process's garbage, ten times
            "-p",
            "nbval.plugin",
        ]
        arguments += ["--capture=no", "--color=no", f"--nbval-cell-timeout={cell_timeout}", str(path)]
        if junit is not None:
            arguments.append(f"--junitxml={junit}")
        with (
            mock.patch.dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS=""),
            contextlib.redirect_stdout(told),
            contextlib.redirect_stderr(told),
        ):
            ended = pytest.main(arguments, plugins=[recorder])
    if ended == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        lines = told.getvalue().strip().splitlines()
        raise RuntimeError(f"nbval could not run the notebook: {lines[-1] if lines else f'exit status {ended}'}")
    if recorder.no_kernel:
        raise RuntimeError(f"{recorder.no_kernel}; nothing was run")
    return {cell.id: recorder.runs.get(cell.id, CellRun()) for cell in notebook.cells if cell.cell_type == "code"}
