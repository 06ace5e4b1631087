"""Times as a picture: a bar a function, with the spread of its runs."""

import textwrap

from matplotlib import rc_context

from helpers.figures.frame.chart import Chart, bar_axes, si
from helpers.instruments.timing import Timing
from helpers.style import LIMIT, MARKERS, STYLE, TEXT

LETTERS = 104  # of a line below the chart
KINDS = {"unfused": "unfused", "eager": "unfused", "fused": "fused"}  # the names that have a colour of their own


def timing_chart(times: dict[str, Timing], where: str) -> Chart:
    """One bar a function, in the order given; the line under it spans the 10th to the 90th percentile of its runs.

    Args:
        times: name -> Timing, as of benchmark_together or Recorded.times. "unfused" or "eager" is orange, "fused" blue.
        where: the machine that the times are from, such as `this_device().name` or `recorded("h200").label`.

    Raises:
        ValueError: no times, or one of no length.
    """
    if not times:
        raise ValueError("timing_chart takes name -> Timing, got no time: pass what benchmark_together returned")
    for name, timing in times.items():
        if not timing.median > 0:  # NaN neither
            raise ValueError(f"{name} took {timing.median} s: too fast to time, give it more work")
    title = _finding(times)
    with rc_context(STYLE):
        # A few slow runs must not make the bars small: a spread that leaves the axis ends in an arrow.
        longest = min(max(timing.high for timing in times.values()), 1.5 * max(each.median for each in times.values()))
        figure, axes = bar_axes(list(times), longest, title, textwrap.fill(f"time per call on {where}", LETTERS))
        axes.xaxis.set_major_formatter(lambda value, _: si(value, "s"))
        for row, (name, timing) in enumerate(times.items()):
            colour = MARKERS[KINDS[name]][1] if name in KINDS else LIMIT
            axes.barh(row, timing.median, height=0.5, color=colour, edgecolor=TEXT)
            spread = row + 0.35
            axes.plot((timing.low, timing.high), (spread, spread), "|-", color=TEXT, linewidth=1.5, markersize=6)
            if timing.high > (edge := axes.get_xlim()[1]):
                axes.plot(edge, spread, ">", color=TEXT, markersize=6, clip_on=False)
            axes.text(timing.median, row, f"  {si(timing.median, 's')}", va="center", color=TEXT)
    each = "; ".join(f"{name} {timing!r}" for name, timing in times.items())
    return Chart(figure, f"{title}, on {where}: {each}")


def _finding(times: dict[str, Timing]) -> str:
    """Compare fused with unfused, or else the fastest with the slowest; overlapping ranges count as a tie."""
    unfused = next((name for name in times if KINDS.get(name) == "unfused"), None)
    if unfused and "fused" in times:
        slow, fast = times[unfused], times["fused"]
        ratio = slow.median / fast.median
        if _overlap(slow, fast):
            return "Any change from fusing is within the spread of the runs"
        if ratio > 1:
            return f"Fused is {ratio:.2f} times faster than {unfused}"
        return f"Fused is {1 / ratio:.2f} times slower than {unfused}"
    fastest, slowest = (pick(times, key=lambda name: times[name].median) for pick in (min, max))
    if len(times) == 1:
        return f"{fastest} takes {si(times[fastest].median, 's')}"
    if _overlap(times[fastest], times[slowest]):
        return "No difference beyond the spread of the runs"
    return f"{fastest} is {times[slowest].median / times[fastest].median:.2f} times faster than {slowest}"


def _overlap(one: Timing, other: Timing) -> bool:
    return one.low <= other.high and other.low <= one.high
