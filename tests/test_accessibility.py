"""axe-core, in a real browser, on every lesson as it opens; test_lab checks a running one the same way."""

import pytest
from lab_browser import ROOT

LESSONS = sorted(path.stem for path in (ROOT / "notebooks").glob("[01]*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_as_it_is_opened_has_no_serious_violation(lesson_page, lesson):
    lesson_page.open_lesson(f"notebooks/{lesson}.ipynb")
    assert lesson_page.violations() == []
