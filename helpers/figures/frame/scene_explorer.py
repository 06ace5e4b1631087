"""An explorer whose frames are scenes of bars and labels (page_bars.py): a subclass gives its axes and its scenes."""

import functools
import itertools
from abc import abstractmethod
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, still_svg, svg_opening
from helpers.figures.frame.page_bars import Scene, picture, svg

DrawAxes = Callable[..., tuple[Figure, Axes]]


@functools.cache
def drawn_once(axes: DrawAxes, *given) -> tuple[str, str]:
    """Return the SVG of the still part that `axes(*given)` draws, and the opening tag for the moving part."""
    figure, _ = axes(*given)
    return still_svg(figure), svg_opening(figure)


class SceneExplorer(Explorer):
    """Sliders over scenes, a scene for each of their positions. A subclass defines `_axes` and `_scene`.

    `_quiet`: whether the picture shows everything in its text. If so, the text is not displayed below it.
    """

    _quiet = True

    @staticmethod
    @abstractmethod
    def _axes() -> tuple[Figure, Axes]:
        """Draw what stays still."""

    @abstractmethod
    def _scene(self, *values) -> Scene:
        """Return the scene where the sliders have these values."""

    def _frame(self, opening: str, shown: Scene) -> dict:
        frame = {"svg": svg(opening, shown), "text": shown.text, "table": ""}
        return frame | ({"quiet": self._quiet} if shown.line is None else {"line": shown.line})

    def _now(self) -> Scene:
        return self._scene(*(each.value for each in self._sliders))

    @property
    def text(self) -> str:
        return self._now().text

    def chart(self) -> Chart:
        return picture(*self._axes(), self._now())

    def _still_and_data(self) -> tuple[str, dict]:
        still, opening = drawn_once(self._axes)
        options = [[value for _, value in each.options] for each in self._sliders]
        scenes = itertools.starmap(self._scene, itertools.product(*options))
        frames = [self._frame(opening, each) for each in scenes]
        columns, layers = (*map(len, options[1:]), 1, 1)[:2]
        return still, {"frames": frames, "columns": columns, "layers": layers}
