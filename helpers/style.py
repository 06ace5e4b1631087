"""The look of the whole course: every colour, size and font of a picture, live figure or report is set here.

Unfused is an orange circle, fused a blue square, and limits are grey. A live figure's text takes the page's colour
(TEXT becomes currentColor), and each orange or blue mark has a grey edge. A still picture is drawn for a light page, on
a transparent background: near-black text with a white halo, which is invisible on white and keeps the text readable on
a dark page. On dark pages, the course's own style sheets invert lightness and keep hues, so stills have full contrast
in both themes.

Matplotlib uses STYLE, hand-written SVG uses the constants, and style sheets and scripts in the browser get the same
values from `css` and `javascript`.
"""

import json
from pathlib import Path

# Okabe and Ito, "Color universal design" (2008).
ORANGE, SKY_BLUE, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, VERMILION, YELLOW)  # for marks that only have to differ
TEXT = "#797979"  # text is drawn in STILL_TEXT or currentColor: no grey has 4.5:1 on both pages
LIMIT = "#707070"  # white text on it has 4.9:1, and it 3.8:1 on JupyterLab's dark page
STILL_TEXT = "#1a1a1a"  # 17:1 on white; inverted, 15:1 on JupyterLab's dark #111111
HALO = "white"
FAINT = LIMIT + "55"  # transparent: table lines, timeline gaps

UNFUSED, FUSED, WRONG = ORANGE, BLUE, VERMILION
READ, WRITTEN = GREEN, PURPLE
POSITIVE, NEGATIVE = SKY_BLUE, YELLOW
MARKERS = {"unfused": ("o", UNFUSED), "fused": ("s", FUSED), "single": ("D", LIMIT)}
JOINED = tuple(colour for colour in PALETTE if colour != UNFUSED)  # operations in one kernel, kernel by kernel
INK = {UNFUSED: "black", FUSED: "white", LIMIT: "white"}  # text on a bar of that colour

FONT = "sans-serif"
MONOSPACE = "monospace"

# Sizes of a picture, in points.
MARKER_SIZE = 7
TITLE_SIZE = 10
TEXT_SIZE = 9
SMALL_SIZE = 8.25

# Sizes in the browser, in pixels.
PAGE_TEXT = 14
PAGE_TITLE = 13
PAGE_SMALL = 12
PAGE_LABEL = 11  # the smallest

# The `font` of a stand-alone page's body, such as a report's.
REPORT_FONT = f"16px/1.5 system-ui, {FONT}"

STYLE = {
    "figure.figsize": (8, 5),
    "figure.dpi": 72,  # one pixel per point, as in an SVG
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": FONT,
    "font.size": TEXT_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,  # the grid under the bars
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.parse_math": False,  # a dollar in a title is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "kernel-fusion-course",  # the same drawing gives the same bytes
    "grid.color": LIMIT,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
}

_VARIABLES = {
    "fused": FUSED,
    "wrong": WRONG,
    "read": READ,
    "written": WRITTEN,
    "positive": POSITIVE,
    "negative": NEGATIVE,
    "grey": LIMIT,
    "font": f"var(--jp-content-font-family, {FONT})",
    "monospace": f"var(--jp-code-font-family, {MONOSPACE})",
    "text": f"{PAGE_TEXT}px",
    "title": f"{PAGE_TITLE}px",
    "small": f"{PAGE_SMALL}px",
    "label": f"{PAGE_LABEL}px",
}


def css(file: Path) -> str:
    """Return a style sheet that may use `var(--fusion-NAME)` for each of the variables above."""
    variables = " ".join(f"--fusion-{name}: {value};" for name, value in _VARIABLES.items())
    return f":root {{ {variables} }}\n{file.read_text(encoding='utf-8')}"


def javascript(*files: Path) -> str:
    """Return one script that joins several files, which may use `STYLE.read`, `STYLE.written` and `STYLE.titleSize`."""
    style = {"read": READ, "written": WRITTEN, "titleSize": TITLE_SIZE}
    return "\n".join([f"const STYLE = {json.dumps(style)};", *(file.read_text(encoding="utf-8") for file in files)])
