"""axe-core, in a real browser, over what every lesson shows: prose, pictures, guess fields, explorers."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from lab_browser import ROOT, LessonPage

LESSONS = sorted(path.stem for path in (ROOT / "notebooks").glob("[01]*.ipynb"))
LIVE = "00_welcome"  # has the field, an explorer, a puzzle and tables


def violations(page: LessonPage) -> list[str]:
    """Of the cells' outputs and texts; the editor and the notebook around them are JupyterLab's own."""
    # JupyterLab leaves out what lies below the window.
    page.page.add_style_tag(content=".jp-Cell { content-visibility: visible !important; }")
    context = {"include": [".jp-OutputArea", ".jp-MarkdownOutput"]}
    found = Axe().run(page.page, context, {"resultTypes": ["violations"]}).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in SERIOUS]


SERIOUS = ("serious", "critical")


def test_a_lesson_that_runs_has_no_serious_violation(lesson_page):
    lesson_page.open_lesson(f"notebooks/{LIVE}.ipynb")
    lesson_page.run_all()
    page = lesson_page.page
    # An explorer is drawn when it comes into sight.
    page.get_by_text("What is to be found", exact=True).scroll_into_view_if_needed()
    page.get_by_role("slider", name="rows").wait_for()
    assert violations(lesson_page) == []
    assert page.get_by_role("slider", name="rows").get_attribute("aria-valuetext") == "1,024"
    assert page.get_by_label("bytes moved by gelu(a + b):").count() == 1
    page.evaluate("document.querySelector('.jp-OutputArea figure img').removeAttribute('alt')")
    assert [each.split(":")[0] for each in violations(lesson_page)] == ["image-alt"]


@pytest.mark.long
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_as_it_is_opened_has_no_serious_violation(lesson_page, lesson):
    lesson_page.open_lesson(f"notebooks/{lesson}.ipynb")
    assert violations(lesson_page) == []
