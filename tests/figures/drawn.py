"""What tests of figures share: texts of a still picture, and a live stage on a bare page."""

from itertools import combinations


def assert_texts_lie_apart(figure) -> None:
    """Every text of the figure and of its first axes lies on the picture and none on another."""
    figure.draw_without_rendering()
    texts = [text for text in (*figure.axes[0].texts, *figure.texts) if text.get_text()]
    found = [text.get_window_extent() for text in texts]
    for number, box in enumerate(found):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width, texts[number].get_text()
        assert not any(box.overlaps(other) for other in found[:number]), texts[number].get_text()


# As JupyterLab does, to go to another cell.
TAKES_ARROWS = """() => document.addEventListener("keydown", event => event.preventDefault())"""


# Of the fonts that pages are shown in, none is wider: what fits in it fits.
WIDE_FONT = ":root { --jp-content-font-family: 'DejaVu Sans', Verdana }"


def bare_page(chromium, stage, data, size: tuple[int, int], style: str = "", **options):
    """A page of `size` on which the script of `stage`, an anywidget, has drawn `data` without a kernel."""
    page = chromium.new_page(viewport={"width": size[0], "height": size[1]}, **options)
    page.set_content(f"<style>{WIDE_FONT} {stage._css}</style><div style='{style}'></div>")
    script = str(stage._esm).replace("export default", "window.stage =")
    page.evaluate(
        f"data => {{ {script}; stage.render({{model: {{get: () => data}}, el: document.body.lastChild}}); }}", data
    )
    return page


def touching(found):
    """Pairs of texts in one line with less than 3 pixels between them, or one above the other by more than 1 pixel."""
    return [
        (one["text"], other["text"])
        for one, other in combinations(found, 2)
        for a, b in [(one["box"], other["box"])]
        if min(a[2], b[2]) - max(a[0], b[0]) > -3 and min(a[3], b[3]) - max(a[1], b[1]) > 1
    ]
