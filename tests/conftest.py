"""Fixtures for tests in JupyterLab: `lab`, the running server; `chromium`, a browser; `lesson_page`, both together."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from lab_browser import ROOT, LabServer, LessonPage

from helpers.learning.checks import cases

# No deadline, because a cold or loaded machine exceeds Hypothesis's 200 ms. The examples are the same in every run, so
# that failures can be reproduced.
settings.register_profile(
    "course", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("course")

# `--dist loadfile --no-loadscope-reorder` hands out files in the order of collection: the slowest come first, so that
# no worker finishes long after the others.
LONGEST = """
    test_lab grading/test_exercises instruments/test_prediction grading/test_grade_class grading/test_release
    learning/test_submission grading/test_grade_cluster grading/test_grade_attacks test_site learning/test_mistakes
    test_cli figures/test_occupancy_explorer figures/test_stepper
""".split()


def pytest_collection_modifyitems(items):
    place = {str(Path(__file__).parent / f"{name}.py"): number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(str(item.path), len(place)))


@pytest.fixture(autouse=True)
def same_numbers_each_time():
    """Seed the random numbers: the same in every run, whatever ran before, so that failures can be reproduced."""
    torch.manual_seed(0)
    cases.sizes = 0


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """`fusion lab` on a copy of the notebooks, so that outputs are saved there, not in the repository."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "exercises"):
        shutil.copytree(ROOT / folder, root / folder)
    # A separate file: other workers' labs would lock a shared one while this lab saves a notebook.
    signatures = tmp_path_factory.mktemp("signatures") / "notebooks.db"
    server = LabServer("--no-browser", f"--ServerApp.root_dir={root}", f"--NotebookNotary.db_file={signatures}")
    server.root = root
    yield server
    server.stop()


@pytest.fixture(scope="module")
def chromium():
    """Headless Chromium with an empty profile and no shared cache."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    switches = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run"]
    switches += ["disable-background-networking", "disable-component-update", "disable-sync"]
    # Closed with the module: while Playwright runs, no other event loop can run in this thread.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[f"--{switch}" for switch in switches])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def learner(chromium):
    """One browser context, in which JupyterLab's pages share a cache."""
    with chromium.new_context(viewport={"width": 1400, "height": 1000}) as context:
        yield context


@pytest.fixture
def lesson_page(learner, lab):
    """A page on the running JupyterLab: call `open_lesson`, `run_all`, then use `page`."""
    with learner.new_page() as page:
        yield LessonPage(page, lab)
