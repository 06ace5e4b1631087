"""Record the README's animation: lesson 00's film, frame by frame in Chromium, on a light and a dark page.

    python source/record_film.py            write docs/journey_light.gif and docs/journey_dark.gif if they are stale
    python source/record_film.py --check    write nothing; fail, with one line per stale picture

Each picture's comment holds the digests of what it was drawn from: the film's scenes, its script, its style, and
this file. Writing them requires Chromium and Playwright for Python.
"""

import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.figures.frame.animation import FilmStage  # noqa: E402
from helpers.figures.memory.moving_bytes import traffic_animation  # noqa: E402, this runs as a script
from helpers.instruments import recorded  # noqa: E402
from source.made_from import changed, code_of, older_than  # noqa: E402

PAGES = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#f0f6fc")}  # background and text colours, as on GitHub
WIDTH = 760
STEPS = 100  # the film's slider has as many
FRAME, LAST = 80, 3000  # ms
COLOURS = 64


def picture(theme: str) -> Path:
    return ROOT / "docs" / f"journey_{theme}.gif"


def film() -> dict:
    """Return the recorded film's data."""
    return traffic_animation(recorded("h200")).data()


def made_from() -> dict[str, str]:
    """Return part of the film -> digest."""
    parts = {
        "its scenes": json.dumps(film()),
        "its script": str(FilmStage._esm),
        "its style": str(FilmStage._css),
        "source/record_film.py": code_of(Path(__file__).read_text(encoding="utf-8")),
    }
    return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in parts.items()}


def drifted() -> list[str]:
    """Return one line for each picture of an outdated film."""
    now, lines = made_from(), []
    for path in map(picture, PAGES):
        name = path.relative_to(ROOT)
        try:
            then = json.loads(Image.open(path).info["comment"])
        except (OSError, KeyError, ValueError):
            lines.append(f"{name} was not written by source/record_film.py: run `make notebooks`")
            continue
        if names := changed(then, now):
            lines.append(f"{name} {older_than(names)}: run `make notebooks`")
    return lines


def frames(page, paper: str, ink: str) -> list[Image.Image]:
    """Return the film's frames on a page, from first to last, with the line of text shown while it plays."""
    colours = f"background: {paper}; --jp-layout-color0: {paper}; --jp-content-font-color0: {ink}"
    style = f"{colours}; margin: 0; padding: 8px 12px"
    hidden = ".fusion-film-controls { display: none !important } .fusion-film { min-height: 0 }"
    page.set_content(f"<style>{FilmStage._css}{hidden}</style><body style='{style}'><div></div></body>")
    script = str(FilmStage._esm).replace("export default", "window.stage =")
    page.evaluate(
        f"data => {{ {script}; stage.render({{model: {{get: () => data}}, el: document.body.lastChild}}); }}",
        film(),
    )
    shown = page.locator(".fusion-film").bounding_box()
    page.set_viewport_size({"width": WIDTH, "height": round(shown["y"] + shown["height"])})
    taken = []
    for step in range(STEPS + 1):
        page.evaluate(
            "step => { const slider = document.querySelector('input'); slider.value = step;"
            " slider.dispatchEvent(new Event('input')); }",
            step,
        )
        taken.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    return taken


def main(arguments: list[str]) -> int:
    lines = drifted()
    if arguments == ["--check"]:
        print("\n".join(lines) or "the README's film is up to date")
        return 1 if lines else 0
    if not lines:
        return 0
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        print("record_film: needs Chromium: apt-get install chromium", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for theme, (paper, ink) in PAGES.items():
            taken = frames(browser.new_page(viewport={"width": WIDTH, "height": 600}), paper, ink)
            palette = taken[-1].quantize(COLOURS)
            colours, page = palette.getpalette(), bytes.fromhex(paper[1:])
            apart = [
                sum(abs(a - b) for a, b in zip(colours[at : at + 3], page, strict=True))
                for at in range(0, len(colours), 3)
            ]
            at = 3 * apart.index(min(apart))  # the quantizer takes the page for a colour that is almost its own
            colours[at : at + 3] = page
            palette.putpalette(colours)
            first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in taken)
            times = [FRAME] * STEPS + [LAST]
            comment = json.dumps(made_from()).encode()
            first.save(picture(theme), save_all=True, append_images=others, duration=times, loop=0, comment=comment)
            print(f"{picture(theme).relative_to(ROOT)}: {picture(theme).stat().st_size / 1e3:.0f} kB")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
