"""The decision flowchart of lesson 13: five questions, answered by the analyser for the sliders' settings.

legal      may one kernel do it? (legality.py)
registers  do its values fit? (cost.py)
launches   is the GPU the limit? Its predicted time against what launching takes the CPU, recorded on an H200
worth it   is the whole step faster by WORTH or more? By Amdahl's law, from the share of the step that this is
who        does torch.compile write it? It writes pointwise kernels and kernels of rows, and leaves matmuls alone
"""

import functools
from dataclasses import dataclass

import ipywidgets as widgets
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.nn import functional

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.figures.launches.launch_overhead import launch_costs
from helpers.instruments.devices import DEVICES
from helpers.instruments.fusion.analyser import costs_of
from helpers.instruments.fusion.cost import GroupCost
from helpers.instruments.fusion.legality import NotLegalError
from helpers.instruments.occupancy_calculator import MAX_REGISTERS
from helpers.instruments.recordings import recorded
from helpers.style import FUSED, LIMIT, SMALL_SIZE, STYLE, TEXT_SIZE, TITLE_SIZE

COLUMNS = 4096
ROWS = (1, 16, 128, 1024, 8192, 65536)
OPERATIONS = (2, 3, 4, 8, 16, 32)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.9)
LAUNCHED = ("from Python", "by a CUDA graph")
WORTH = 0.02  # of a step's time: what a day of work should bring at least


def _elementwise(new, rows: int, operations: int):
    def chain(x):
        for _ in range(operations):
            x = torch.sigmoid(x)
        return x

    return chain, (new(rows, COLUMNS),)


def _after_norm(new, rows: int, operations: int):
    def chain(x, gamma, beta):
        return _elementwise(new, rows, operations - 1)[0](functional.layer_norm(x, (COLUMNS,), gamma, beta))

    return chain, (new(rows, COLUMNS), new(COLUMNS), new(COLUMNS))


def _after_matmul(new, rows: int, operations: int):
    def chain(x, weight):
        return _elementwise(new, rows, operations - 1)[0](functional.linear(x, weight))

    return chain, (new(rows, COLUMNS), new(COLUMNS, COLUMNS))


def _norm_after_matmul(new, rows: int, operations: int):
    def chain(x, weight, gamma, beta):
        y = functional.layer_norm(functional.linear(x, weight), (COLUMNS,), gamma, beta)
        return _elementwise(new, rows, operations - 2)[0](y)

    return chain, (new(rows, COLUMNS), new(COLUMNS, COLUMNS), new(COLUMNS), new(COLUMNS))


def _many_values(new, rows: int, operations: int):
    """The sum of a + b c over many a, b and c, in fp32, all of them read before the first is added."""

    def chain(*tensors):
        parts = [torch.addcmul(*tensors[place : place + 3]) for place in range(0, len(tensors), 3)]
        total = parts[0]
        for each in parts[1:]:
            total = total + each
        return total

    count = 3 * max(2, operations // 2)
    return chain, tuple(new(rows, COLUMNS, dtype=torch.float32) for _ in range(count))


KINDS = {
    "elementwise": _elementwise,
    "a norm, then elementwise": _after_norm,
    "a matmul, then elementwise": _after_matmul,
    "a matmul, then a norm": _norm_after_matmul,
    "many values at once": _many_values,
}


@dataclass(frozen=True)
class Asked:
    """The analyser's result for the operations as one kernel: its cost, or why it is illegal; and for eager PyTorch."""

    eager_time: float
    launches: int
    illegal: str = ""
    too_many: str = ""
    kernel: GroupCost | None = None


@functools.lru_cache(maxsize=4096)
def asked(kind: str, rows: int, operations: int, device: str) -> Asked:
    """The analyser's answer for one position of the sliders."""

    def new(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    function, inputs = KINDS[kind](new, rows, operations)
    costs = costs_of(function, *inputs, device=device)
    found = Asked(sum(each.time for each in costs.eager), sum(each.launches for each in costs.eager))
    try:
        costs.legality.kind(costs.all, costs.legality.stored(costs.all, costs.all))
    except NotLegalError as error:
        return Asked(found.eager_time, found.launches, illegal=str(error))
    try:
        return Asked(found.eager_time, found.launches, kernel=costs.of(costs.all))
    except NotLegalError as error:
        return Asked(found.eager_time, found.launches, too_many=str(error))


QUESTIONS = (
    "May one kernel do it?",
    "Do its values fit in registers?",
    "Is the GPU the limit, not launching?",
    f"Is the step {WORTH:.0%} faster or more?",
    "Does torch.compile write the kernel?",
)
NO = (
    "Leave it unfused",
    "Make it two kernels",
    "A CUDA graph first",
    "Leave it: not worth a kernel",
    "Write an epilogue",
)
YES = "Let torch.compile do it"
WRITTEN = {"pointwise": "the same elements in, the same out", "rows": "one block per row"}


@dataclass(frozen=True)
class Decision:
    """The path through the questions: for each one reached, the answer and its basis."""

    answers: tuple[tuple[bool, str], ...]
    what: str

    @property
    def outcome(self) -> str:
        return YES if self.answers[-1][0] else NO[len(self.answers) - 1]

    @property
    def text(self) -> str:
        asked = zip(QUESTIONS, self.answers, strict=False)
        told = " ".join(f"{question} {'Yes' if yes else 'No'}: {why}." for question, (yes, why) in asked)
        return f"{self.what}: {self.outcome.lower()}. {told}"


def decide(kind: str, rows: int, operations: int, share: float, launched: str, device: str) -> Decision:
    """Decide what to do with a chain of `operations` of `kind` over rows of 4096 that is `share` of a step's time.

    Raises:
        ValueError: none of KINDS or LAUNCHED, or an unknown device or a CPU.
    """
    if kind not in KINDS or launched not in LAUNCHED:
        raise ValueError(f"{kind!r} launched {launched!r}: choose from {', '.join(KINDS)}, and from {LAUNCHED}")
    found = asked(kind, rows, operations, device)
    launching = found.launches * _host() if launched == LAUNCHED[0] else 0.0
    rest = f"{share:.0%} of a step, launched {launched}, {device}"
    what = f"{found.launches} launches ({kind}), {rows:,} x {COLUMNS:,}, {rest}"
    answers = [(not found.illegal, found.illegal or "each block has all the data it needs")]
    if not found.illegal:
        answers.append((not found.too_many, found.too_many or _registers(found.kernel)))
    if found.kernel:
        cpu = si(launching, "s") if launching else "next to nothing"
        why = f"the GPU needs {si(found.eager_time, 's')}, the CPU {cpu}"
        answers.append((found.eager_time >= launching, why))
    if found.kernel and answers[-1][0]:
        fused = found.kernel.time
        gain = 1 / (1 - share * (1 - fused / found.eager_time)) - 1
        why = f"{si(found.eager_time, 's')} become {si(fused, 's')}, the step is {_percent(gain)} faster"
        answers.append((gain >= WORTH, why))
        if gain >= WORTH:
            answers.append((found.kernel.kind in WRITTEN, WRITTEN.get(found.kernel.kind, "it leaves matmuls alone")))
    return Decision(tuple(answers), what)


def _registers(cost: GroupCost) -> str:
    return f"about {cost.registers} of {MAX_REGISTERS}" if cost.registers else "PyTorch's own kernel"


def _percent(share: float) -> str:
    return f"{plain(100 * share)} %" if share >= 0.0005 else "0 %"


@functools.cache
def _host() -> float:
    """Seconds that launching one operator of PyTorch takes the CPU."""
    return launch_costs(recorded("h200")).operator


SIZE = (576, 333)  # points
QUESTION = (12, 44, 320, 34)  # left, top, width and height of the first
PITCH = 50
OUTCOME_LEFT, OUTCOME_WIDTH = 370, 196


def _places() -> list[tuple[tuple[float, float, float, float], tuple[float, float, float, float]]]:
    """Return (left, top, width, height) of each question and of its "no" box; the last pair is the "yes" box."""
    left, top, width, height = QUESTION
    return [
        ((left, top + n * PITCH, width, height), (OUTCOME_LEFT, top + n * PITCH, OUTCOME_WIDTH, height))
        for n in range(len(QUESTIONS))
    ]


def _last() -> tuple[float, float, float, float]:
    left, top, width, height = QUESTION
    return left, top + len(QUESTIONS) * PITCH, width, height - 6


NARROW = (700, 0, 330, 512)  # left, top, width and height of a narrow page's chart, where a wide page does not see it
NARROW_BOX = (36, 26)  # heights of a question and of its "no" box
NARROW_PITCH, SPINE, INDENT = 96, 16, 62  # points; from the left to the line down, and to the "no" boxes


def _narrow_places() -> list[tuple[tuple[float, float, float, float], tuple[float, float, float, float]]]:
    """Return the questions and their "no" boxes as on a narrow page: each box below its question."""
    left, top, width, _ = NARROW
    high, low = NARROW_BOX
    tops = [top + 3 + n * NARROW_PITCH for n in range(len(QUESTIONS))]
    return [((left + 3, y, width - 6, high), (left + INDENT, y + high + 12, width - INDENT - 3, low)) for y in tops]


def _narrow_last() -> tuple[float, float, float, float]:
    left, top, width, _ = NARROW
    return left + 3, top + 3 + len(QUESTIONS) * NARROW_PITCH, width - 6, NARROW_BOX[1]


def _narrow_way(number: int, yes: bool) -> str:
    """Return the path from a question to the next one, or to its "no" box."""
    (x, y, _, height), (right, top, _, high) = _narrow_places()[number]
    down = f"M{x + SPINE} {y + height}V"
    return f"{down}{y + NARROW_PITCH}" if yes else f"{down}{top + high / 2}H{right}"


def _narrow_still() -> str:
    """Draw the static parts for a narrow page."""
    pieces, outline = [], f'fill="none" stroke="{LIMIT}"'
    for number, ((x, y, width, height), (right, top, wide, high)) in enumerate(_narrow_places()):
        middle = top + high / 2
        pieces += [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {outline}/>',
            f'<rect x="{right}" y="{top}" width="{wide}" height="{high}" {outline} stroke-dasharray="3 2"/>',
            *(f'<path d="{_narrow_way(number, yes)}" {outline}/>' for yes in (True, False)),
            f'<text x="{x + 8}" y="{y + 15}" font-weight="bold">{QUESTIONS[number]}</text>',
            f'<text x="{right + 8}" y="{middle + 4}">{NO[number]}</text>',
            f'<text x="{x + SPINE + 8}" y="{middle - 5}">no</text>',
            f'<text x="{x + SPINE + 8}" y="{y + NARROW_PITCH - 6}">yes</text>',
        ]
    x, y, width, height = _narrow_last()
    pieces += [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {outline} stroke-dasharray="3 2"/>',
        f'<text x="{x + 8}" y="{y + height / 2 + 4}">{YES}</text>',
    ]
    return f'<g fill="currentColor" font-size="{TEXT_SIZE}">{"".join(pieces)}</g>'


def _narrow_frame(decision: Decision) -> str:
    """The lit parts for a narrow page."""
    pieces, places, lit = [], _narrow_places(), f'fill="none" stroke="{FUSED}"'
    for number, (yes, why) in enumerate(decision.answers):
        x, y, width, height = places[number][0]
        pieces += [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {lit} stroke-width="2.5"/>',
            f'<text x="{x + 8}" y="{y + 30}" font-size="{SMALL_SIZE}">{_fitting(why)}</text>',
            f'<path d="{_narrow_way(number, yes)}" {lit} stroke-width="3"/>',
        ]
    x, y, width, height = _narrow_last() if decision.answers[-1][0] else places[len(decision.answers) - 1][1]
    pieces += [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{FUSED}"/>',
        f'<text x="{x + 8}" y="{y + height / 2 + 4}" fill="white">{decision.outcome}</text>',
    ]
    return "".join(pieces)


def _flowchart() -> tuple[Figure, Axes]:
    """Draw the static parts: the questions, their outcomes, and the paths between."""
    with rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] / 72, SIZE[1] / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
        axes.axis("off")
        middle = {"va": "center_baseline"}
        outline = {"fc": "none", "ec": LIMIT, "lw": 1}
        for number, ((x, y, width, height), (right, _, wide, _)) in enumerate(_places()):
            axes.add_patch(Rectangle((x, y), width, height, **outline))
            axes.add_patch(Rectangle((right, y), wide, height, linestyle=(0, (3, 2)), **outline))
            axes.text(x + 8, y + 11, QUESTIONS[number], weight="bold", **middle)
            axes.text(right + 8, y + height / 2, NO[number], **middle)
            axes.plot((x + width, right), (y + height / 2,) * 2, color=LIMIT, lw=1)
            axes.plot((x + 40,) * 2, (y + height, y + PITCH), color=LIMIT, lw=1)
            axes.text((x + width + right) / 2, y + height / 2 - 7, "no", ha="center", **middle)
            axes.text(x + 48, y + height + 7, "yes", **middle)
        x, y, width, height = _last()
        axes.add_patch(Rectangle((x, y), width, height, linestyle=(0, (3, 2)), **outline))
        axes.text(x + 8, y + height / 2, YES, **middle)
    return figure, axes


def _ways(decision: Decision) -> tuple[list, list, tuple]:
    """Return the lit parts: boxes of the questions reached, the paths taken, and the final box with its text."""
    boxes, ways = [], []
    places = _places()
    for number, (yes, _) in enumerate(decision.answers):
        (x, y, width, height), (right, *_) = places[number]
        boxes.append((x, y, width, height))
        if yes:
            ways.append((x + 40, y + height, x + 40, y + PITCH))
        else:
            ways.append((x + width, y + height / 2, right, y + height / 2))
    end = _last() if decision.answers[-1][0] else places[len(decision.answers) - 1][1]
    return boxes, ways, end


class FusionDecisionExplorer(Explorer):
    """The flowchart, with the path for the sliders' settings lit.

    Its controls are widgets: the sliders `rows`, `operations` and `share` (of the step's time), and the choices `kind`,
    `launched` and `device` (a name); `text` describes the view. Without a kernel it displays as a still image with that
    text.

    Raises:
        ValueError: an unknown kind, way to launch or device, or a value not on its slider.
    """

    def __init__(
        self,
        kind: str = "elementwise",
        rows: int = 8192,
        operations: int = 4,
        share: float = 0.2,
        launched: str = LAUNCHED[0],
        device: str = "H200",
    ):
        decide(kind, ROWS[0], OPERATIONS[0], SHARES[0], launched, device)  # refuses what cannot be shown
        self.rows = slider("rows of 4096", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.operations = slider("operations", OPERATIONS, operations)
        self.share = slider("of the step", SHARES, share, [f"{each:.0%}" for each in SHARES])
        gpus = [name for name, each in DEVICES.items() if each.sms and "bf16" in each.peak_flops]  # they run in bf16
        self.kind = widgets.Dropdown(options=list(KINDS), value=kind, description="what")
        self.launched = widgets.Dropdown(options=list(LAUNCHED), value=launched, description="launched")
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        choices = [[self.kind, self.launched, self.device]]
        self._parts = ((NARROW,),)
        super().__init__(FramePlayer(), [self.rows, self.operations, self.share], choices)

    def _decision(self, rows: int, operations: int, share: float) -> Decision:
        return decide(self.kind.value, rows, operations, share, self.launched.value, self.device.value)

    @property
    def decision(self) -> Decision:
        return self._decision(self.rows.value, self.operations.value, self.share.value)

    @property
    def text(self) -> str:
        return self.decision.text

    def chart(self) -> Chart:
        figure, axes = _flowchart()
        decision = self.decision
        boxes, ways, end = _ways(decision)
        with rc_context(STYLE):
            axes.text(12, 18, decision.outcome, size=TITLE_SIZE, weight="bold")
            for (x, y, width, height), (_, why) in zip(boxes, decision.answers, strict=True):
                axes.add_patch(Rectangle((x, y), width, height, fc="none", ec=FUSED, lw=2.5))
                axes.text(x + 8, y + 25, _fitting(why), va="center_baseline", size=SMALL_SIZE)
            for x1, y1, x2, y2 in ways:
                axes.plot((x1, x2), (y1, y2), color=FUSED, lw=3)
            x, y, width, height = end
            axes.add_patch(Rectangle((x, y), width, height, fc=FUSED, ec=FUSED, zorder=3))
            axes.text(x + 8, y + height / 2, decision.outcome, color="white", va="center_baseline", zorder=4)
        return Chart(figure, self.text)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _ = _flowchart()
        opening = svg_opening(figure)
        decisions = (self._decision(rows, count, share) for rows in ROWS for count in OPERATIONS for share in SHARES)
        frames = [{"svg": _frame(opening, each), "text": each.text, "table": "", "quiet": True} for each in decisions]
        still = still_svg(figure).replace("</svg>", f"{_narrow_still()}</svg>")
        return still, {"frames": frames, "columns": len(OPERATIONS), "layers": len(SHARES)}


def _fitting(why: str) -> str:
    return why if len(why) <= 66 else f"{why[:65]}…"


def _frame(opening: str, decision: Decision) -> str:
    boxes, ways, end = _ways(decision)
    parts = [svg_title(decision.outcome, 12, 18)]
    for (x, y, width, height), (_, why) in zip(boxes, decision.answers, strict=True):
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="{FUSED}" stroke-width="2.5"/>'
            f'<text x="{x + 8}" y="{y + 28}" font-size="{SMALL_SIZE}">{_fitting(why)}</text>'
        )
    for x1, y1, x2, y2 in ways:
        parts.append(f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{FUSED}" stroke-width="3"/>')
    x, y, width, height = end
    parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{FUSED}"/>')
    parts.append(f'<text x="{x + 8}" y="{y + height / 2 + 3}" fill="white">{decision.outcome}</text>')
    return opening + "".join(parts) + _narrow_frame(decision) + "</svg>"
