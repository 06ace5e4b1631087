"""CPU and GPU over time: four operations launched one by one, as one fused kernel, and as a CUDA graph, on one axis."""

from helpers.figures.frame.animation import LINE, Animation, Bar, Counter, Film, Note, folded
from helpers.figures.frame.chart import plain, si
from helpers.figures.launches.launch_overhead import CHAIN, ChainTime, launch_costs, timeline
from helpers.instruments.recordings import Recorded
from helpers.style import FUSED, LIMIT, UNFUSED

LEFT, RIGHT, TOP = 150, 620, 44  # pixels
NARROW = (88, 344)  # LEFT and RIGHT on a narrow page
LANE, WAY = 22, 78  # heights
SIZES = (65_536, 1_048_576, 4_194_304, 16_777_216)
GAP = 0.22  # opacity of the time that the GPU waits


def ways(run: Recorded, numbers: int) -> dict[str, ChainTime]:
    """Four operations, on as many fp32 numbers, by each way: the GPU's time is recorded, a launch's is launch_costs'.

    A graph's kernels need no launch each: its CPU lane stays empty.

    Raises:
        ValueError: that size was not recorded.
    """
    sizes, costs = run.experiment("chain_sizes"), launch_costs(run)
    if numbers not in sizes:
        raise ValueError(f"{numbers:,} numbers were not recorded: choose from {', '.join(map(str, sorted(sizes)))}")
    gpu = {name: timing.median for name, timing in sizes[numbers]["gpu"].items()}
    nbytes = 2 * numbers * 4
    return {
        "eager": ChainTime(CHAIN, CHAIN * nbytes, CHAIN * costs.operator, 0.0, gpu["eager"]),
        "one Triton kernel": ChainTime(1, nbytes, costs.triton, 0.0, gpu["fused"]),
        "a CUDA graph": ChainTime(CHAIN, CHAIN * nbytes, 0.0, 0.0, gpu["eager"]),
    }


def _scene(run: Recorded, numbers: int, left: float = LEFT, right: float = RIGHT) -> Animation:
    chains = ways(run, numbers)
    spans = {name: timeline(chain) for name, chain in chains.items()}
    ends = {name: ran[-1][1] for name, (_, ran) in spans.items()}
    seconds = max(ends.values())
    scale = (right - left) / seconds
    slowest, quickest = max(ends, key=ends.get), min(ends, key=ends.get)
    title = f"{numbers:,} elements: {quickest} is {plain(ends[slowest] / ends[quickest])} times faster than {slowest}"
    title = folded(title, right)
    first = TOP + LINE * title.count("\n")
    bars, notes, counters, boxes = [], [], [], []
    for place, (name, (launched, ran)) in enumerate(spans.items()):
        top = first + place * WAY
        notes.append(Note(name, 0, top - 4, bold=True))
        colour = FUSED if chains[name].launches == 1 else UNFUSED
        for lane, label in enumerate(("CPU launches", "GPU runs")):
            y = top + lane * LANE
            notes.append(Note(label, left - 8, y + 17, "right"))
            boxes.append((left, y + 4, right - left, LANE - 6))
        if not chains[name].cpu:
            notes.append(Note("replayed: its one launch is not counted", left + 8, top + 17))
        free = 0.0
        for start, end in ran:
            if start > free:
                bars.append(_bar(free, start, top + LANE, LIMIT, left, scale, GAP))
            bars.append(_bar(start, end, top + LANE, colour, left, scale))
            free = end
        bars += [_bar(start, end, top, LIMIT, left, scale) for start, end in launched if end > start]
        busy = sum(end - start for start, end in ran)
        counters.append(
            Counter(name, "{} µs", left + (right - left) * 0.3, top - 4, 1e6 * ends[name], 0.0, ends[name], 1)
        )
        gpu = "GPU busy" if right == RIGHT else "busy"  # next to the time, on a narrow page
        notes.append(Note(f"{gpu} {plain(100 * busy / ends[name])} %", right, top - 4, "right"))
    bottom = first + 3 * WAY
    notes += [
        Note("0", left, bottom, "center"),
        Note(si(seconds, "s"), right, bottom, "right"),
        Note("grey, GPU: waiting for work", left, bottom + 18),
    ]
    told = (
        (0.0, "The CPU launches kernels; the GPU runs them."),
        *sorted((end, f"{name} is done.") for name, end in ends.items()),
    )
    return Animation(
        (right + 4, bottom + 26), seconds, 8.0, "µs", 1e6, title, (), tuple(bars), tuple(notes), tuple(counters),
        tuple(boxes), told,
    )  # fmt: skip


def _bar(start: float, end: float, y: float, colour: str, left: float, scale: float, opacity: float = 1.0) -> Bar:
    width = max(0.5, (end - start) * scale - 1)  # a gap between neighbours
    return Bar(left + start * scale, y + 5, width, LANE - 8, start, end, colour, opacity)


def launch_timeline(run: Recorded) -> Film:
    """The film of a recorded machine, with a choice of how many numbers the tensor has.

    Raises:
        ValueError: the sizes were not recorded.
    """
    scenes = {f"{numbers:,}": _scene(run, numbers) for numbers in SIZES}
    narrow = {f"{numbers:,}": _scene(run, numbers, *NARROW) for numbers in SIZES}
    return Film(scenes, "numbers", narrow=narrow)
