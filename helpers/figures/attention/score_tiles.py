"""The tiles of attention's scores: those a kernel computes, masks and skips, and the bytes it requests; the live
figure."""

from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Scene, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.style import FUSED, LIMIT, STYLE

TOKENS = (128, 256, 512, 1024, 2048)
ROWS = (16, 32, 64, 128)  # queries per program, keys per tile
WALKS = {"every tile": False, "up to the diagonal": True}
DIM, ITEMSIZE = 64, 2
SIZE = (576, 258)  # points
LEFT, TOP, SIDE = 62, 56, 180  # of the square of scores
NOTES = 268  # where the numbers next to it begin


@dataclass(frozen=True)
class Tiles:
    """A causal head over `tokens` tokens: programs of `m` queries, tiles of `n` keys.

    skips: whether a program stops at the last key that any of its queries sees.
    """

    tokens: int
    m: int
    n: int
    skips: bool

    @property
    def programs(self) -> list[tuple[int, int, int]]:
        """Per program: tiles that all of its queries see, tiles that some see, tiles that it computes in total."""
        found = []
        for start in range(0, self.tokens, self.m):
            whole = (start + 1) // self.n
            seen = -(-min(self.tokens, start + self.m) // self.n)
            found.append((whole, seen - whole, seen if self.skips else -(-self.tokens // self.n)))
        return found

    @property
    def computed(self) -> int:
        """Scores computed."""
        return self.m * self.n * sum(computed for *_, computed in self.programs)

    @property
    def needed(self) -> int:
        """Scores of a key that its query sees."""
        return self.tokens * (self.tokens + 1) // 2

    @property
    def bytes(self) -> int:
        """Bytes that the programs request: k and v of each tile, q once and the output once; in 16 bits, head dim
        DIM."""
        rows = 2 * self.n * sum(computed for *_, computed in self.programs) + 2 * self.tokens
        return rows * DIM * ITEMSIZE

    @property
    def finding(self) -> str:
        """The chart's title."""
        wasted = 1 - self.needed / self.computed
        return f"Of {self.computed:,} scores computed, {plain(100 * wasted)}% are masked away"

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles computed whole, tiles that the diagonal cuts, unneeded tiles."""
        whole, cut = (sum(of[part] for of in self.programs) for part in (0, 1))
        return whole, cut, len(self.programs) * -(-self.tokens // self.n) - whole - cut

    @property
    def notes(self) -> list[str]:
        """The numbers next to the figure."""
        whole, cut, unseen = self.counts
        return [
            f"{len(self.programs):,} programs, {self.m} queries each",
            f"{whole:,} tiles that need no mask",
            f"{cut:,} tiles on the diagonal",
            f"{unseen:,} unneeded tiles, {'skipped' if self.skips else 'computed anyway'}",
            f"{si(self.bytes, 'B')} requested per head of dimension {DIM}, in 16 bits",
            f"{si(4 * self.tokens * DIM * ITEMSIZE, 'B')} distinct: q, k, v and the output",
        ]

    @property
    def text(self) -> str:
        """A one-line description of the chart."""
        return f"{self.tokens:,} tokens: {'; '.join(self.notes)}. {self.finding}."


def _scene(case: Tiles) -> Scene:
    boxes, scale = [], SIDE / case.tokens
    for number, (whole, cut, _) in enumerate(case.programs):
        top = TOP + number * case.m * scale
        high = min(case.m, case.tokens - number * case.m) * scale
        ends = [0, *(min(tiles * case.n, case.tokens) for tiles in (whole, whole + cut)), case.tokens]
        colours = FUSED, LIMIT, None if case.skips else LIMIT
        for start, end, colour in zip(ends[:-1], ends[1:], colours, strict=True):
            if end > start:
                boxes.append(Box(LEFT + start * scale, top + high / 2, (end - start) * scale, round(high, 2), colour))
    labels = [Label(note, NOTES, TOP + 18 + 21 * line, "left") for line, note in enumerate(case.notes)]
    return Scene(case.finding, tuple(boxes), tuple(labels), case.text)


def tiles_axes():
    """Draw the static parts: the names of the sides, and the colour key."""
    figure, axes = still(SIZE, {}, ())
    key = "blue: computed, no mask; grey: computed and masked; open: skipped"
    with rc_context(STYLE):
        for text, x, y in (("keys", LEFT, TOP - 10), ("queries", 14, TOP + 8), (key, LEFT, TOP + SIDE + 13)):
            axes.text(x, y, text, va="center_baseline")
    return figure, axes


def tiles_chart(case: Tiles) -> Chart:
    """Draw the square of a head's scores, one row of boxes per program."""
    return picture(*tiles_axes(), _scene(case))


class AttentionTilesExplorer(SceneExplorer):
    """The tiles of a causal head, with sliders for tokens, queries per program, keys per tile, and a choice of walk.

    Its controls are widgets: `tokens`, `m`, `n` and `walk`, one of WALKS; `text` describes the view. Without a kernel
    it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    _axes = staticmethod(tiles_axes)

    def __init__(self, tokens: int = 512, m: int = 64, n: int = 64, skips: bool = False):
        self.tokens = slider("tokens", TOKENS, tokens, [f"{each:,}" for each in TOKENS])
        self.m = slider("queries each", ROWS, m)
        self.n = slider("keys per tile", ROWS, n)
        self.walk = widgets.Dropdown(options=list(WALKS), value=list(WALKS)[skips], description="walk")
        super().__init__(FramePlayer(), [self.tokens, self.m, self.n], [[self.walk]])

    def _at(self, tokens: int, m: int, n: int) -> Tiles:
        return Tiles(tokens, m, n, WALKS[self.walk.value])

    @property
    def _case(self) -> Tiles:
        return self._at(self.tokens.value, self.m.value, self.n.value)

    def _scene(self, tokens: int, m: int, n: int) -> Scene:
        return _scene(self._at(tokens, m, n))
