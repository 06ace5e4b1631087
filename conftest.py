"""How tests share a machine, and how `pytest --nbval` runs the notebooks: it tells how many cells are compared."""

import gc
import os
from pathlib import Path

# One of several workers: each has a core, and must not start a thread for every core. Before torch counts them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

# Caches of this checkout alone. Triton's knows a kernel by its text, not by its file: another checkout's would answer
# with that one's lines. PyTorch's knows a registered operator by its name, whatever its gradient has become since.
CACHES = Path(__file__).parent / ".pytest_cache"
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHES / "triton"))
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHES / "inductor"))
# torch.compile takes the processor's word for its instructions, and compiles no C++ to try each of them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

LEAST_COMPARED = 0.6  # of the code cells


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        choices=("plain", "tuned"),
        help="run tests/kernels with these kernels alone; by default tuned ones on a GPU, plain ones where interpreted",
    )


def pytest_configure(config):
    if config.getoption("nbval", False):
        # Another "python3" among the user's kernels would otherwise come first.
        config.option.nbval_current_env = True
        # Pictures are not compared, nor are those within HTML: another FreeType draws other bytes.
        config.option.nbval_sanitize_with = str(Path(__file__).parent / "tests" / "nbval_sanitize.cfg")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: looking through it for garbage would take a quarter of that time.

    Afterwards, too, garbage is looked for less often: an interpreted kernel makes 700 objects, as often as Python would
    look, in a few operations.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


def is_compared(item) -> bool:
    """Whether nbval compares the cell's outputs; where the stored count is missing, it only runs the cell."""
    return bool(item.options["check"]) and not item.options["skip"] and item.cell.execution_count is not None


COMPARED = pytest.StashKey[tuple[int, int, int]]()  # cells, of them compared, of those showing something


def pytest_collection_finish(session):
    cells = [item for item in session.items if hasattr(item, "cell")]
    compared = [item for item in cells if is_compared(item)]
    counts = len(cells), len(compared), sum(bool(item.cell.outputs) for item in compared)
    session.config.stash[COMPARED] = counts
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compared"] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Every worker collects all of the cells."""
    if hasattr(node, "workeroutput"):
        node.config.stash[COMPARED] = node.workeroutput["compared"]


def pytest_sessionfinish(session):
    cells, compared, showing = session.config.stash.get(COMPARED, (0, 0, 0))
    if not cells or hasattr(session.config, "workeroutput"):
        return
    share = compared / cells
    session.config.get_terminal_writer().line(
        f"\n{compared} of {cells} code cells are compared, not just run ({share:.0%}; at least "
        f"{LEAST_COMPARED:.0%} must be); {showing} of them show something"
    )
    if share < LEAST_COMPARED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
