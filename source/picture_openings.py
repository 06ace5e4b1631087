"""Photograph the opening picture of every lesson as a browser shows it: three widths, both themes.

    python source/picture_openings.py FOLDER             for the pages in site/ (`make site`)
    python source/picture_openings.py FOLDER --site DIR  for the pages in DIR
    python source/picture_openings.py FOLDER --only 08   for lessons whose names start with 08

It writes FOLDER/NN_name_WIDTH_THEME.png, and one sheet per width and theme. It prints a line for each lesson:
what its opening picture is, its height, whether it moves, and how far below the top of the page it begins.
"""

import argparse
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
WIDTHS, THEMES = (1440, 1024, 390), ("light", "dark")
HEIGHT = 900  # pixels of the window
THUMB = 480  # pixels: a picture's width on a sheet
COLUMNS = 4
# The first figure that a reader sees without answering.
FIRST = """() => {
  const all = [...document.querySelectorAll("main .live, main .output figure")];
  const first = all.find((node) => !node.closest("details:not([open])") && node.getBoundingClientRect().height > 0);
  if (!first) return null;
  first.id ||= "opening";
  const box = first.getBoundingClientRect();
  return {id: first.id, live: first.matches(".live"), top: Math.round(box.top + scrollY)};
}"""


def photograph(page: Page, url: str, file: Path) -> dict | None:
    """Save the opening picture of the page at `url`; return where it is, or None if there is none."""
    page.goto(url)
    found = page.evaluate(FIRST)
    if found is None:
        return None
    place = page.locator(f"[id='{found['id']}']")
    place.scroll_into_view_if_needed()
    page.wait_for_timeout(400)  # it becomes live when it is near
    if found["live"]:
        place.locator(".fusion-explorer").first.wait_for()
    found["height"] = round(place.bounding_box()["height"])
    place.screenshot(path=file)
    return found


def sheet(files: list[Path], file: Path, theme: str) -> None:
    """Save the pictures side by side, scaled to one width."""
    pictures = [Image.open(each).convert("RGB") for each in files]
    small = [each.resize((THUMB, max(1, each.height * THUMB // each.width))) for each in pictures]
    rows = [small[start : start + COLUMNS] for start in range(0, len(small), COLUMNS)]
    heights = [max(each.height for each in row) + 16 for row in rows]
    page = Image.new("RGB", (COLUMNS * (THUMB + 16), sum(heights)), "#dddddd" if theme == "light" else "#444444")
    for number, row in enumerate(rows):
        for column, each in enumerate(row):
            page.paste(each, (column * (THUMB + 16) + 8, sum(heights[:number]) + 8))
    page.save(file)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Photograph the opening picture of every lesson.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--site", type=Path, default=ROOT / "site", metavar="DIR")
    parser.add_argument("--only", nargs="+", default=("",), metavar="NN")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="the browser's program")
    options = parser.parse_args(arguments)
    lessons = [
        each
        for each in sorted((options.site / "notebooks").glob("*.html"))
        if each.stem.startswith(tuple(options.only))
    ]
    if not lessons:
        print(f"no lesson in {options.site}: run `make site`", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser)
        for theme in THEMES:
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
                taken = []
                for lesson in lessons:
                    file = options.folder / f"{lesson.stem}_{width}_{theme}.png"
                    found = photograph(page, lesson.resolve().as_uri(), file)
                    if found:
                        taken.append(file)
                    if (theme, width) == (THEMES[0], WIDTHS[0]):
                        print(f"{lesson.stem}: {found or 'no picture'}", flush=True)
                    elif found and found["height"] > HEIGHT:
                        print(f"{lesson.stem} at {width}: {found['height']} pixels high", flush=True)
                sheet(taken, options.folder / f"sheet_{width}_{theme}.png", theme)
                page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
