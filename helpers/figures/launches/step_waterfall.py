"""A waterfall of a decoder layer's time: the change with each step, a prediction, and the time of the bytes."""

import functools

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still, svg
from helpers.style import FUSED, LIMIT, TEXT, UNFUSED

SIZE = (576, 304)  # points, for seven ways
TOP, PITCH, BAR = 64, 30, 18
PANEL = Panel(132, 400, "time per layer; |: minimum for its bytes; blue: predicted", "s")

Times = dict[str, dict[str, dict[str, float]]]  # layer -> clock -> way -> seconds per layer


def waterfall_scene(
    layer: str, clock: str, times: dict[str, float], floor: float, predicted: dict[str, float], longest: float
) -> Scene:
    """One bar per way: grey up to the shorter of it and the one above, open where time went, orange where it came.

    Args:
        times: way -> seconds, in the order of the steps.
        floor: seconds that the bytes take at the bandwidth.
        predicted: way -> seconds, of the ways that have a prediction.
        longest: seconds that the axis has to hold.
    """
    end = axis_end(longest)
    scale = (PANEL.right - PANEL.left) / end
    boxes, labels, listed, before = [], [], [], None
    for number, (way, time) in enumerate(times.items()):
        y, before = TOP + PITCH * number, time if before is None else before
        shorter = min(before, time)
        boxes.append(Box(PANEL.left, y, shorter * scale, BAR, LIMIT))
        if time != before:
            colour = UNFUSED if time > before else None
            boxes.append(Box(PANEL.left + shorter * scale, y, abs(time - before) * scale, BAR, colour))
        boxes.append(Box(PANEL.left + floor * scale - 1, y, 2, BAR + 8, TEXT))
        compared = f", {time / floor:.1f}x its bytes"
        if way in predicted:
            boxes.append(Box(PANEL.left + predicted[way] * scale - 1.5, y, 3, BAR + 4, FUSED))
        labels.append(Label(micro(time), PANEL.left + max(time, before) * scale + 7, y, "left", more=compared))
        foreseen = f", predicted {micro(predicted[way])}" if way in predicted else ""
        listed.append(f"{way}: {micro(time)}{compared}{foreseen}")
        before = time
    labels += PANEL.ends(end, SIZE)
    best = min(times, key=times.get)
    title = f"{layer}, {clock}: {best} is the fastest, at {times[best] / floor:.1f}x the minimum for its bytes"
    text = f"{title}. Bytes: {micro(floor)}. {'; '.join(listed)}."
    return Scene(title, tuple(boxes), tuple(labels), text)


def micro(seconds: float) -> str:
    """Write seconds as microseconds, to three digits or one."""
    amount = 1e6 * seconds
    return f"{amount:.0f} µs" if amount >= 99.5 else f"{amount:.1f} µs"


class WaterfallExplorer(Explorer):
    """Bars of a layer's time, way by way, with sliders for the layer and the clock.

    Its controls are widgets: `layer` and `clock` (names); the string `text` says the same. Without a kernel it displays
    as a still image with that text.

    Args:
        times: layer -> clock -> way -> seconds per layer; the same ways, in the same order, everywhere.
        floors: layer -> seconds that its bytes take at the bandwidth.
        predicted: as times, with the ways that have a prediction.
        layer, clock: shown first; the first ones by default.

    Raises:
        ValueError: a layer or clock without times.
    """

    _bar = BAR

    def __init__(
        self,
        times: Times,
        floors: dict[str, float],
        predicted: Times,
        layer: str | None = None,
        clock: str | None = None,
    ):
        self._times, self._floors, self._predicted = times, floors, predicted
        layers = tuple(times)
        clocks = tuple(times[layers[0]])
        self.layer = slider("layer", layers, layer or layers[0])
        self.clock = slider("clock", clocks, clock or clocks[0])
        super().__init__(FramePlayer(), [self.layer, self.clock], [])

    def _scene(self, layer: str, clock: str) -> Scene:
        times, predicted = self._times[layer][clock], self._predicted[layer][clock]
        # One axis for a layer's clocks, so that they compare.
        longest = max(time for each in self._times[layer].values() for time in each.values())
        return waterfall_scene(layer, clock, times, self._floors[layer], predicted, longest)

    @property
    def text(self) -> str:
        return self._scene(self.layer.value, self.clock.value).text

    def chart(self) -> Chart:
        return picture(*waterfall_axes(self._ways), self._scene(self.layer.value, self.clock.value))

    @property
    def _ways(self) -> tuple[str, ...]:
        return tuple(next(iter(next(iter(self._times.values())).values())))

    def _still_and_data(self) -> tuple[str, dict]:
        drawn, opening = _still(self._ways)
        clocks = self._times[self.layer.value]
        scenes = (self._scene(layer, clock) for layer in self._times for clock in clocks)
        frames = [{"svg": svg(opening, each), "text": each.text, "table": "", "quiet": True} for each in scenes]
        return drawn, {"frames": frames, "columns": len(clocks)}


def waterfall_axes(ways: tuple[str, ...]):
    """Draw what stays still: the ways' names and the axis."""
    return still(SIZE, {way: TOP + PITCH * number for number, way in enumerate(ways)}, (PANEL,))


@functools.cache
def _still(ways: tuple[str, ...]):
    figure, _ = waterfall_axes(ways)
    return still_svg(figure), svg_opening(figure)
