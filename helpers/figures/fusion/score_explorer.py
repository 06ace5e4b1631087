"""The visible score of lesson 13 for the kernels of a plan, and how a weight changes the decision; live.

The score and its weights are the analyser's (FusionScore); only the weight of the chosen part moves here, the others
share the rest as they do now.
"""

import ipywidgets as widgets
from matplotlib import rc_context

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening
from helpers.figures.frame.page_bars import BELOW, Box, Label, Panel, Scene, picture, still, svg
from helpers.instruments.fusion.plan import WEIGHTS, FusionGroup, FusionPlan
from helpers.instruments.fusion.plan_report import FUSE
from helpers.style import FUSED, LIMIT, STYLE, UNFUSED

STEPS = tuple(round(0.05 * number, 2) for number in range(21))
MAX = 8  # kernels of one picture
PANEL = Panel(222, 490, "score: the chosen part orange, the others blue")
TOP, PITCH, BAR = 66, 30, 19


def _changed(plan: FusionPlan) -> list[FusionGroup]:
    return [group for group in plan.groups if len(group.operations) > 1]


def _name(group: FusionGroup) -> str:
    names = [name.removeprefix("native_") for name in group.operations]
    return " + ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]} ({len(names)})"


def scene(groups: list[FusionGroup], part: str, weight: float) -> Scene:
    """Return one bar per kernel: the part's share, then the rest of the score."""
    boxes, labels, advised, told = [], [], 0, []
    width = PANEL.right - PANEL.left
    for number, group in enumerate(groups):
        y, own, total = TOP + number * PITCH, getattr(group.score, part) * weight, group.score.weighing(part, weight)
        boxes.append(Box(PANEL.left, y, own * width, BAR, UNFUSED))
        boxes.append(Box(PANEL.left + own * width, y, (total - own) * width, BAR, FUSED))
        fuses = total >= FUSE
        advised += fuses
        labels.append(Label(f"{total:.2f}{', fuse' if fuses else ''}", PANEL.right + 8, y, "left"))
        told.append(f"{_name(group)} {total:.2f} ({part} {getattr(group.score, part):.2f})")
    title = f"{part.capitalize()} weighing {weight:.2f}: {advised} of {len(groups)} kernels score {FUSE} or more"
    now = "as the score has it" if abs(weight - WEIGHTS[part]) < 1e-9 else f"the score has {WEIGHTS[part]}"
    return Scene(title, tuple(boxes), tuple(labels), f"{title}; {now}. {'; '.join(told)}.")


class FusionScoreExplorer(Explorer):
    """The score of each kernel of a plan that fuses, with a slider for the weight of the part that is chosen.

    Its controls are widgets: `weight` and `part`; `text` describes the view. Without a kernel it displays as a still
    image with that text.

    Raises:
        ValueError: an unknown part of the score, or a plan that fuses nothing or too much for one picture.
    """

    def __init__(self, plan: FusionPlan, part: str = "registers"):
        if part not in WEIGHTS:
            raise ValueError(f"the score has no part {part!r}: choose from {', '.join(WEIGHTS)}")
        self._groups = _changed(plan)
        if not 1 <= len(self._groups) <= MAX:
            raise ValueError(f"{len(self._groups)} kernels of several operations: pass a plan with 1 to {MAX}")
        self.weight = slider("weight", STEPS, WEIGHTS[part], [f"{each:.2f}" for each in STEPS])
        self.part = widgets.Dropdown(options=list(WEIGHTS), value=part, description="of")
        super().__init__(FramePlayer(), [self.weight], [[self.part]])

    def _scene(self, weight: float) -> Scene:
        return scene(self._groups, self.part.value, weight)

    @property
    def text(self) -> str:
        return self._scene(self.weight.value).text

    def chart(self) -> Chart:
        return picture(*self._axes(), self._scene(self.weight.value))

    def _axes(self):
        size = 576, TOP + PITCH * len(self._groups) + BELOW
        names = {_name(group): TOP + number * PITCH for number, group in enumerate(self._groups)}
        figure, axes = still(size, names, (PANEL,))
        bottom, at = size[1] - BELOW, PANEL.left + FUSE * (PANEL.right - PANEL.left)
        axes.plot((at, at), (51, bottom), color=LIMIT, lw=1, ls=":")
        with rc_context(STYLE):
            for x, said in ((PANEL.left, "0"), (at, f"{FUSE}: fuse"), (PANEL.right, "1")):
                axes.text(x, bottom + 12, said, ha="center", va="center_baseline")
        return figure, axes

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _ = self._axes()
        opening = svg_opening(figure)
        scenes = (self._scene(weight) for weight in STEPS)
        return still_svg(figure), {
            "frames": [{"svg": svg(opening, each), "text": each.text, "table": "", "quiet": True} for each in scenes],
            "columns": 1,
        }
