"""Fixtures for tests in JupyterLab: `lab`, the running server; `chromium`, a browser; `lesson_page`, both together."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from lab_browser import ROOT, LabServer, LessonPage

from helpers.learning.checks import cases

# What a property says is no bound on time: a cold or loaded machine passes Hypothesis' 200 ms. And the examples are the
# same in every run, so that a failure can be looked at.
settings.register_profile(
    "course", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("course")

# `--dist loadfile --no-loadscope-reorder` gives files out as they are collected: first those that take longest, so that
# no worker ends long after the others.
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
    """Random, but the same in every run and after whatever other tests, so that a failure can be looked at."""
    torch.manual_seed(0)
    cases.sizes = 0


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """`fusion lab` on a copy of the notebooks: what runs in it is saved there, not in the repository."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "exercises"):
        shutil.copytree(ROOT / folder, root / folder)
    # Of its own: labs of other workers would hold the one file of signatures when this one saves a notebook.
    signatures = tmp_path_factory.mktemp("signatures") / "notebooks.db"
    server = LabServer("--no-browser", f"--ServerApp.root_dir={root}", f"--NotebookNotary.db_file={signatures}")
    server.root = root
    yield server
    server.stop()


@pytest.fixture(scope="module")
def chromium():
    """Headless Chromium with an empty profile, to which each page is a stranger."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    switches = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run"]
    switches += ["disable-background-networking", "disable-component-update", "disable-sync"]
    # Ended with the module: while Playwright runs, no other event loop can run in this thread.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[f"--{switch}" for switch in switches])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def learner(chromium):
    """One browser's memory: what a page of JupyterLab has loaded, the next takes from there."""
    with chromium.new_context(viewport={"width": 1400, "height": 1000}) as context:
        yield context


@pytest.fixture
def lesson_page(learner, lab):
    """A page on the running JupyterLab: `open_lesson`, `run_all`, then what the test wants of `page`."""
    with learner.new_page() as page:
        yield LessonPage(page, lab)
