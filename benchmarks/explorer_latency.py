"""Measure the explorers' latency from key press to paint, in real JupyterLab in real headless Chromium.

    python benchmarks/explorer_latency.py              # all of EXPLORERS
    python benchmarks/explorer_latency.py occupancy
    python benchmarks/explorer_latency.py --write      # all, and docs/results.md's table with them

A press is timed from the keyboard event's own time stamp to the end of the first frame painted after the chart changed.
The time up to the change and the time of the frame itself are also reported; the rest is waiting for the frame. The
burst is 40 presses at 30 per second, timed from the last press to the frame that shows the last value. Needs Playwright
for Python and Chromium.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from benchmarks.experiments.lesson_07 import STEPS
from helpers.figures.attention.busy_units import DIMS
from helpers.figures.attention.score_tiles import TOKENS as SQUARES
from helpers.figures.attention.sequence_lengths import TOKENS as SEQUENCES
from helpers.figures.frame.animation import Film
from helpers.figures.frame.chart import plain
from helpers.figures.fusion.fusion_decision import ROWS as CHAIN_ROWS
from helpers.figures.fusion.score_explorer import STEPS as SCORE_STEPS
from helpers.figures.launches.launch_animation import launch_timeline
from helpers.figures.launches.launch_overhead import ELEMENTS
from helpers.figures.matmul.convolution_windows import TILES
from helpers.figures.matmul.expert_weights import TOKENS as OF_A_BATCH
from helpers.figures.matmul.expert_weights import counted
from helpers.figures.matmul.tile_choice import TILES as PRODUCT_TILES
from helpers.figures.matmul.tile_order import GROUPS, order_name
from helpers.figures.memory.moving_bytes import traffic_animation
from helpers.figures.memory.operation_traffic import ROWS as SIZES
from helpers.figures.memory.shared_memory_banks import WIDTHS
from helpers.figures.memory.thread_addresses import STRIDES as APART
from helpers.figures.memory.warp_load import STRIDES
from helpers.figures.occupancy.occupancy_curves import THREADS
from helpers.figures.occupancy.register_quarters import THREADS as OF_A_BLOCK
from helpers.figures.performance.roofline_chart import ROWS
from helpers.figures.rowwise.running_sum import READ_BLOCKS
from helpers.figures.rowwise.variance_error import MEANS
from helpers.figures.rowwise.wide_rows import COLUMNS
from helpers.figures.training.checkpointing import TOKENS as OF_A_STEP
from helpers.figures.training.recomputation import ROWS as TOKENS
from helpers.instruments import recorded
from helpers.instruments.recordings import Recorded

RESULTS = Path(__file__).resolve().parents[1] / "docs/results.md"
PRESSES = 40
RUNS = 3  # the machine may be shared: the best run counts
BURST_RATE = 30  # presses per second
MEDIAN_LIMIT, P95_LIMIT, BURST_LIMIT = 30, 50, 150  # ms

# Records each key press and the end of each frame painted after the chart changed. Nothing polls: polling at every
# frame would make the page draw all the time, and be slower than a learner's.
WATCH = """() => {
  const layer = document.querySelector('.fusion-moving');
  const line = document.querySelector('.fusion-explorer [role=status]');
  window.forget = () => { window.pressed = []; window.painted = []; window.next = new Promise(r => window.done = r); };
  window.forget();
  document.addEventListener('keydown', event => window.pressed.push(event.timeStamp), true);
  new MutationObserver(() => { const changed = performance.now(); requestAnimationFrame(() => {
    const begun = performance.now();
    const channel = new MessageChannel();
    channel.port1.onmessage = () => {
      const now = performance.now();
      window.painted.push([now, line.textContent, changed, begun]);
      window.done();
    };
    channel.port2.postMessage(0);
  }); }).observe(layer, {childList: true});
}"""


@dataclass(frozen=True)
class Explorer:
    """One to measure: a cell that shows it with its first slider at the left end, and the slider's values.

    handle, keys: the element that takes the keys, and those for a step forward and back; Home selects the first value.
    """

    cell: str
    values: tuple
    shown: Callable[[float], str]  # text that only this value's status line contains
    handle: str = ".fusion-controls .noUi-handle"
    keys: tuple[str, str] = ("ArrowRight", "ArrowLeft")


_REGISTERS = """import torch
from benchmarks.experiments.lesson_07 import COLUMNS, STEPS, chain_gradient_kernel
from helpers.figures.occupancy.register_growth import RegistersExplorer
from helpers.instruments.resources import compile_for

row = torch.empty(1, COLUMNS, device="meta")
def compiled(steps, gpu):
    return compile_for(chain_gradient_kernel, row, row, row, device=gpu, COLUMNS=COLUMNS, STEPS=steps)
RegistersExplorer(compiled, STEPS)
"""
_STEPPER = """import torch
from benchmarks.experiments.lesson_08 import run, tiles_kernel
from helpers.figures import watch

x, w = torch.randn(2, 32, 32).half()
watch(run, tiles_kernel, x, w, torch.zeros(32).half(), BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
"""
_PLAN = """from benchmarks.fusion_proof import compare, homes_of_all, plan_of, record
from helpers.figures import TwoPartitions, FusionGroupsExplorer, FusionScoreExplorer, TraceExplorer
"""
_SIMULATOR = """import torch
from helpers.figures import fusion_simulator
x = torch.empty(8192, 8192, device="meta")
fusion_simulator(lambda x: torch.relu(torch.sigmoid(torch.tanh(x))), x)
"""
_GROUPS = """def beside(name):
    plan, found = plan_of(name), compare(name)
    differing = *found.analyser_alone, *found.inductor_alone
    return TwoPartitions(plan, homes_of_all(plan, record()["graphs"][name]), differing, found.edges)
FusionGroupsExplorer({name: beside(name) for name in ("siblings", "hard_swish_chain", "column_statistics")})
"""
_TIMELINE = """from helpers.figures import KernelTimelineExplorer
from helpers.instruments import read_trace, recorded_page

KernelTimelineExplorer({"eager": read_trace(recorded_page("block_eager.trace.json"))})
"""


def _film(name: str, made: Callable[[Recorded], Film]) -> Explorer:
    """Return the explorer of an animation whose slider goes from 0 to 100."""
    cell = f"from helpers.figures import {name}\nfrom helpers.instruments import recorded\n{name}(recorded('h200'))"
    scene = next(iter(made(recorded("h200")).scenes.values()))
    return Explorer(cell, tuple(range(101)), lambda part: scene.says(scene.seconds * part / 100), ".fusion-film input")


EXPLORERS = {
    "roofline": Explorer(
        "from helpers.figures import RooflineExplorer\nRooflineExplorer(rows=1)", ROWS, "shape ({}, ".format
    ),
    "occupancy": Explorer(
        "from helpers.figures import OccupancyExplorer\nOccupancyExplorer(threads=32)",
        THREADS,
        " {} threads".format,
    ),
    "launches": Explorer(
        "from helpers.figures import LaunchExplorer\nLaunchExplorer(elements=1000)",
        ELEMENTS,
        " {:,} numbers:".format,
    ),
    "variance": Explorer(
        "from helpers.figures.rowwise.variance_error import VarianceExplorer\nVarianceExplorer(mean=1.0)",
        MEANS,
        lambda mean: f"mean of {plain(mean)},",
    ),
    "recomputation": Explorer(
        "from helpers.figures.training.recomputation import RecomputationExplorer\nRecomputationExplorer(rows=64)",
        TOKENS,
        ", {:,} x 4,096:".format,
    ),
    "expert weights": Explorer(
        "from helpers.figures import ExpertWeightsExplorer\nExpertWeightsExplorer(tokens=1)",
        OF_A_BATCH,
        lambda tokens: f", {counted(tokens)}, ",
    ),
    "checkpointing": Explorer(
        "from helpers.figures.training.checkpointing import CheckpointingExplorer\nCheckpointingExplorer(tokens=1024)",
        OF_A_STEP,
        " {:,} tokens x".format,
    ),
    "traffic": Explorer(
        "from helpers.figures.memory.operation_traffic import TrafficExplorer\nTrafficExplorer(rows=1)",
        SIZES,
        ", {:,} x 1,000:".format,
    ),
    "registers": Explorer(_REGISTERS, STEPS, " {} fused step".format),
    "warp": Explorer("from helpers.figures import WarpExplorer\nWarpExplorer()", STRIDES, " stride {},".format),
    "threads": Explorer("from helpers.figures import ThreadsExplorer\nThreadsExplorer()", APART, "Stride {}:".format),
    "banks": Explorer(
        "from helpers.figures import BanksExplorer\nBanksExplorer(width=8)", WIDTHS, "tile[32][{}],".format
    ),
    "register quarters": Explorer(
        "from helpers.figures import RegisterQuartersExplorer\nRegisterQuartersExplorer(threads=32)",
        OF_A_BLOCK,
        " {} threads with".format,
    ),
    "running sum": Explorer(
        "from helpers.figures import RunningSumExplorer\nRunningSumExplorer()", READ_BLOCKS, "After {} of".format
    ),
    "wide rows": Explorer(
        "from helpers.figures.rowwise.wide_rows import WideRowsExplorer\nWideRowsExplorer(columns=1024)",
        COLUMNS,
        "A row of {:,} ".format,
    ),
    "attention lengths": Explorer(
        "from helpers.figures import AttentionLengthsExplorer\nAttentionLengthsExplorer(tokens=128)",
        SEQUENCES,
        " {:,} tokens: ".format,
    ),
    "attention tiles": Explorer(
        "from helpers.figures import AttentionTilesExplorer\nAttentionTilesExplorer(tokens=128)",
        SQUARES,
        "{:,} tokens: ".format,
    ),
    "attention units": Explorer(
        "from helpers.figures import AttentionUnitsExplorer\nAttentionUnitsExplorer(dim=16)",
        DIMS,
        "Heads of {}: ".format,
    ),
    "timeline": Explorer(_TIMELINE, tuple(range(1, 27)), "kernel {} of 26: ".format),
    "windows": Explorer(
        "from helpers.figures import WindowsExplorer\nWindowsExplorer(tile='all')",
        TILES,
        lambda tile: f"; {'all tiles' if tile == 'all' else f'tile {tile}'}, all taps",
    ),
    "matmul": Explorer(
        "from helpers.figures import TileChoiceExplorer\nTileChoiceExplorer(tile=(16, 16))",
        PRODUCT_TILES,
        lambda tile: f"{tile[0]} x {tile[1]}, 8 warps",
    ),
    "simulator": Explorer(
        _SIMULATOR,
        (0, 1),
        lambda fused: f"Fused: {'tanh + sigmoid' if fused else 'nothing'}.",
        ".fusion-edge",
        ("Enter",) * 2,
    ),
    "decision": Explorer(
        "from helpers.figures import FusionDecisionExplorer\nFusionDecisionExplorer(rows=1)",
        CHAIN_ROWS,
        "), {:,} x 4,096".format,
    ),
    "score": Explorer(
        f"{_PLAN}FusionScoreExplorer(plan_of('gpt2_block', epilogues=True))", SCORE_STEPS, " weighing {:.2f}:".format
    ),
    "groups": Explorer(_PLAN + _GROUPS, ("siblings", "hard_swish_chain", "column_statistics"), "{}: ".format),
    "trace": Explorer(_PLAN + "TraceExplorer(record()['timeline'])", tuple(range(1, 18)), "Kernel {}, ".format),
    "order": Explorer(
        "from helpers.figures import TileOrderExplorer\nTileOrderExplorer()",
        GROUPS,
        lambda group: order_name(group).capitalize(),
    ),
    "traffic animation": _film("traffic_animation", traffic_animation),
    "launch lanes": _film("launch_timeline", launch_timeline),
    "stepper": Explorer(_STEPPER, tuple(range(1, 21)), "Step {} of ".format, ".fusion-stepper input"),
}


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one run: each press to its paint, and the last press of a burst to the last value."""

    presses: list[float]
    burst: float
    changes: list[float] = field(default_factory=list)  # of each press, up to the change
    frames: list[float] = field(default_factory=list)  # the frame that shows it

    @property
    def median(self) -> float:
        return median(self.presses)

    @property
    def p95(self) -> float:
        return quantiles(self.presses, n=20, method="inclusive")[-1]

    @staticmethod
    def best(runs: list["Latency"]) -> tuple[float, float, float]:
        """Return the minimum median, 95th percentile and burst of several runs."""
        return min(run.median for run in runs), min(run.p95 for run in runs), min(run.burst for run in runs)


def within_limits(runs: list[Latency]) -> bool:
    """Return whether the best of the runs is fast enough."""
    limits = MEDIAN_LIMIT, P95_LIMIT, BURST_LIMIT
    return all(found <= limit for found, limit in zip(Latency.best(runs), limits, strict=True))


@contextlib.contextmanager
def lab(notebook: Path) -> Iterator[str]:
    """Serve the folder of `notebook` in JupyterLab, and yield the address that opens it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    folder = notebook.parent
    own = {f"JUPYTER_{name}": str(folder / f".{name}") for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")}
    options = [
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.port={port}",
        f"--IdentityProvider.token={token}",
        "--ServerApp.allow_root=True",
        "--ServerApp.open_browser=False",
        "--ServerApp.kernel_websocket_connection_class=helpers.prompt_websocket.PromptConnection",
        f"--LabApp.user_settings_dir={folder / '.settings'}",
        f"--LabApp.workspaces_dir={folder / '.workspaces'}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (
        open(folder / "server.log", "w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            stdout=log,
            stderr=log,
            env=os.environ | own,
        ) as server,
    ):
        try:
            for _ in range(300):
                with contextlib.suppress(urllib.error.URLError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}").close()
                    break
                time.sleep(0.1)
            else:
                raise RuntimeError(f"JupyterLab did not start: {(folder / 'server.log').read_text()[-500:]}")
            yield f"http://127.0.0.1:{port}/lab/tree/{notebook.name}?token={token}"
        finally:
            server.terminate()


def write_notebook(path: Path, cell: str) -> None:
    """Write a notebook of one cell, for the Python kernel."""
    code = {
        "cell_type": "code",
        "id": "explorer",
        "metadata": {},
        "source": cell,
        "outputs": [],
        "execution_count": None,
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.write_text(
        json.dumps({"cells": [code], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})
    )


def _one_run(page, handle, explorer: Explorer) -> Latency:
    ends = len(explorer.values) - 1
    ways = [number // ends % 2 for number in range(PRESSES)]
    keys = [explorer.keys[way] for way in ways]
    last = explorer.shown(explorer.values[ways.count(0) - ways.count(1)]).lower()  # a sentence may begin with it
    _rewind(page, handle)
    presses, changes, frames = [], [], []
    for number, key in enumerate(keys):
        page.wait_for_timeout(40 + 7 * (number % 5))  # out of step with the screen's refresh
        page.evaluate("forget()")
        page.keyboard.press(key)
        page.evaluate("next")
        now, _, changed, begun = page.evaluate("painted[0]")
        pressed = page.evaluate("pressed[0]")
        presses.append(now - pressed)
        changes.append(changed - pressed)
        frames.append(now - begun)

    _rewind(page, handle)
    start = time.perf_counter()
    for number, key in enumerate(keys):
        time.sleep(max(0.0, start + number / BURST_RATE - time.perf_counter()))
        page.keyboard.press(key)
    page.wait_for_timeout(1000)
    pressed, painted = page.evaluate("[pressed, painted]")
    if last not in painted[-1][1].lower():
        raise RuntimeError(f"a second after the burst the chart shows {painted[-1][1]!r}, not {last!r}")
    shown = next(time for time, text, *_ in painted if time > pressed[-1] and last in text.lower())
    return Latency(presses, shown - pressed[-1], changes, frames)


def _rewind(page, handle) -> None:
    handle.focus()
    handle.press("Home")
    page.wait_for_timeout(300)
    page.evaluate("forget()")


def chromium() -> str | None:
    """Return Chromium's path, or None if it isn't on the path."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def pages() -> Iterator[Callable[[str], contextlib.AbstractContextManager]]:
    """Start JupyterLab and a browser, and yield a function that opens a page on which a cell has been run.

    Raises:
        FileNotFoundError: no Chromium on the path.
    """
    from playwright.sync_api import sync_playwright

    executable = chromium()
    if executable is None:
        raise FileNotFoundError("no Chromium found: install it (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        notebook = Path(folder) / "explorer.ipynb"
        with lab(notebook) as address:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])

            @contextlib.contextmanager
            def page_of(cell: str):
                write_notebook(notebook, cell)  # the same notebook, so the same kernel, already started
                with browser.new_page(viewport={"width": 1280, "height": 1000}) as page:
                    open_explorer(page, address)
                    yield page

            try:
                yield page_of
            finally:
                browser.close()


def measure(page_of: Callable, name: str) -> Iterator[Latency]:
    """Measure the explorer of a name in EXPLORERS on one of `pages`: a Latency per run."""
    explorer = EXPLORERS[name]
    with page_of(explorer.cell) as page:
        page.evaluate(WATCH)
        handle = page.locator(explorer.handle).first
        for _ in range(RUNS):
            yield _one_run(page, handle, explorer)


def open_explorer(page, address: str) -> None:
    """Open the notebook, run its first cell and wait for the explorer."""
    from playwright.sync_api import TimeoutError

    dialogue = page.locator(".jp-Dialog .jp-mod-accept")  # which kernel? the one it proposes
    page.add_locator_handler(dialogue, lambda: dialogue.click())
    page.goto(address)
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=30_000)
    explorer = page.locator(".fusion-explorer [role=status]")
    for _ in range(5):  # a cell run while the kernel is still connecting may be silently dropped
        page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Control+Enter")
        with contextlib.suppress(TimeoutError):
            explorer.wait_for(timeout=15_000)
            break
    explorer.wait_for(timeout=1000)
    page.wait_for_timeout(1000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Key press to paint on the explorers, in JupyterLab in Chromium.")
    parser.add_argument("explorers", nargs="*", metavar="NAME", help=f"of {', '.join(EXPLORERS)}; all by default")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/results.md; of all explorers")
    options = parser.parse_args()
    if options.write and options.explorers:
        parser.error("--write takes no names: the table has all explorers")
    names = options.explorers or list(EXPLORERS)
    best = {}
    if unknown := sorted(set(names) - set(EXPLORERS)):
        parser.error(f"no explorer is named {unknown[0]!r}: choose from {', '.join(EXPLORERS)}")
    with pages() as page_of:
        for name in names:
            runs = []
            for run in measure(page_of, name):
                runs.append(run)
                parts = f"change {median(run.changes):.1f}, frame {median(run.frames):.1f}"
                print(f"{name}: median {run.median:.1f} ms ({parts}), 95th percentile {run.p95:.1f} ms, ", end="")
                print(f"burst {run.burst:.0f} ms")
            middle, late, burst = best[name] = Latency.best(runs)
            print(
                f"{name}, best of {RUNS}: median {middle:.1f} ms (limit {MEDIAN_LIMIT}), 95th percentile {late:.1f} ms "
                f"(limit {P95_LIMIT}), last value of a burst {burst:.0f} ms after its last press (limit {BURST_LIMIT})"
            )
    if options.write:
        RESULTS.write_text(with_table(RESULTS.read_text(encoding="utf-8"), best), encoding="utf-8")


def with_table(text: str, best: dict[str, tuple[float, float, float]]) -> str:
    """Return the text with its table of latencies replaced: two explorers per row, the first half on the left."""
    cells = [f"{name} | {middle:.1f} | {late:.1f} | {burst:.0f}" for name, (middle, late, burst) in best.items()]
    half = (len(cells) + 1) // 2
    right = cells[half:] + [" | | | "] * (2 * half - len(cells))
    rows = [f"| {one} | {other} |" for one, other in zip(cells[:half], right, strict=True)]
    head = "| | median | 95th | burst | | median | 95th | burst |\n|---|---|---|---|---|---|---|---|\n"
    before, _, after = text.partition(head)
    return before + head + "\n".join(rows) + after[after.index("\n\n") :]


if __name__ == "__main__":
    main()
