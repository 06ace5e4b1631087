"""Fixtures for tests in JupyterLab: `lab`, the running server; `chromium`, a browser; `lesson_page`, both together."""

import shutil

import pytest
from hypothesis import settings
from lab_browser import ROOT, LabServer, LessonPage

# What a property says is no bound on time: a cold or loaded machine passes Hypothesis' 200 ms.
settings.register_profile("course", deadline=None)
settings.load_profile("course")


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """`fusion lab` on a copy of the notebooks: what runs in it is saved there, not in the repository."""
    root = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "exercises"):
        shutil.copytree(ROOT / folder, root / folder)
    server = LabServer("--no-browser", f"--ServerApp.root_dir={root}")
    server.root = root
    yield server
    server.stop()


@pytest.fixture
def chromium():
    """Headless Chromium with an empty profile."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    switches = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run"]
    switches += ["disable-background-networking", "disable-component-update", "disable-sync"]
    # Ended with the test: while Playwright runs, no other event loop can run in this thread.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[f"--{switch}" for switch in switches])
        yield browser
        browser.close()


@pytest.fixture
def lesson_page(chromium, lab):
    """A page on the running JupyterLab: `open_lesson`, `run_all`, then what the test wants of `page`."""
    return LessonPage(chromium.new_page(viewport={"width": 1400, "height": 1000}), lab)
