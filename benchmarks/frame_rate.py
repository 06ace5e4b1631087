"""Measure the animations' frame rate, in real JupyterLab in real headless Chromium.

    python benchmarks/frame_rate.py              # all of ANIMATIONS
    python benchmarks/frame_rate.py traffic

It plays each animation and records the browser's own frame times (requestAnimationFrame): median and 95th percentile of
the intervals, and the number of frames dropped at 60 per second. Needs Playwright for Python and Chromium.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from benchmarks.explorer_latency import EXPLORERS, RUNS, pages

DUE = 1000 / 60  # ms
LOST_LIMIT = 0.05  # of the frames that were due
SECONDS = 8

_FILMS = """from helpers.figures import traffic_animation, launch_timeline
from helpers.instruments import recorded
"""
ANIMATIONS = {
    "traffic": f"{_FILMS}traffic_animation(recorded('h200'))",
    "timeline": f"{_FILMS}launch_timeline(recorded('h200'))",
    "stepper": EXPLORERS["stepper"].cell,
}

# The times of all frames from one click on Play until it ends, or the time is over.
PLAY = """seconds => new Promise(done => {
  const player = document.querySelector('.fusion-explorer button[aria-label=Play]');
  const times = [];
  const tick = now => {
    times.push(now);
    if (player.getAttribute('aria-label') === 'Play' || now - times[0] > 1000 * seconds) done(times);
    else requestAnimationFrame(tick);
  };
  player.click();
  requestAnimationFrame(tick);
})"""


@dataclass(frozen=True)
class Played:
    """The intervals between the frames of one run, in milliseconds."""

    intervals: list[float]

    @property
    def median(self) -> float:
        return median(self.intervals)

    @property
    def p95(self) -> float:
        return quantiles(self.intervals, n=20, method="inclusive")[-1]

    @property
    def due(self) -> int:
        return round(sum(self.intervals) / DUE)

    @property
    def lost(self) -> int:
        """Return the number of frames that were due and did not come."""
        return sum(max(0, round(interval / DUE) - 1) for interval in self.intervals)


def holds(runs: list[Played]) -> bool:
    """Return whether the best of the runs drops hardly any frame."""
    return min(run.lost / run.due for run in runs) <= LOST_LIMIT


def played(page_of, name: str) -> Iterator[Played]:
    """Play the animation of a name in ANIMATIONS, and yield one Played per run."""
    with page_of(ANIMATIONS[name]) as page:
        for _ in range(RUNS):
            pause = page.get_by_role("button", name="Pause")
            if pause.count():
                pause.click()
            page.wait_for_timeout(500)
            times = page.evaluate(PLAY, SECONDS)
            yield Played([after - before for before, after in pairwise(times)])


def main() -> None:
    parser = argparse.ArgumentParser(description="The animations' frames per second, in JupyterLab in Chromium.")
    parser.add_argument("animations", nargs="*", metavar="NAME", help=f"of {', '.join(ANIMATIONS)}; all by default")
    names = parser.parse_args().animations or list(ANIMATIONS)
    if unknown := sorted(set(names) - set(ANIMATIONS)):
        parser.error(f"no animation is named {unknown[0]!r}: choose from {', '.join(ANIMATIONS)}")
    with pages() as page_of:
        for name in names:
            runs = list(played(page_of, name))
            for run in runs:
                lost = f"{run.lost} of {run.due} lost"
                print(f"{name}: median {run.median:.1f} ms, 95th percentile {run.p95:.1f} ms, {lost}")
            print(f"{name}: {'holds' if holds(runs) else 'does NOT hold'} 60 frames per second")


if __name__ == "__main__":
    main()
