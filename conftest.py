"""How `pytest --nbval` runs the course's notebooks: in this Python, and telling how many cells are really compared."""

import os
from pathlib import Path

import pytest

# Caches of this checkout alone. Triton's knows a kernel by its text, not by its file: another checkout's would answer
# with that one's lines. PyTorch's knows a registered operator by its name, whatever its gradient has become since.
CACHES = Path(__file__).parent / ".pytest_cache"
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHES / "triton"))
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHES / "inductor"))

LEAST_COMPARED = 0.5  # of the code cells


def pytest_configure(config):
    if config.getoption("nbval", False):
        # Another "python3" among the user's kernels would otherwise come first.
        config.option.nbval_current_env = True


def is_compared(item) -> bool:
    """Whether nbval compares the cell's outputs; where the stored count is missing, it only runs the cell."""
    return bool(item.options["check"]) and not item.options["skip"] and item.cell.execution_count is not None


def pytest_sessionfinish(session):
    cells = [item for item in session.items if hasattr(item, "cell")]
    if not cells:
        return
    compared = [item for item in cells if is_compared(item)]
    showing = sum(bool(item.cell.outputs) for item in compared)
    share = len(compared) / len(cells)
    session.config.get_terminal_writer().line(
        f"\n{len(compared)} of {len(cells)} code cells are compared, not just run ({share:.0%}; at least "
        f"{LEAST_COMPARED:.0%} must be); {showing} of them show something"
    )
    if share < LEAST_COMPARED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
