"""The kernels' sweep as recorded on a GPU: the points where a kernel is slower than a peer, and those where it slows
down between the sizes it is tuned for.

`fusion bench --sweep` writes it to benchmarks/results/<gpu>_sweep.json. Each point is a dict:

    kernel, direction, shape, dtype, regime
    gpu        provider -> [median, low, high], GPU time in microseconds with a cold L2
    calls      the same per call, timed on the host with warm caches; forward calls run without gradients. BARE is the
               time of as many empty kernels as ours launches, with the same arguments
    least      minimum time in microseconds, given the point's ceiling
    refused    provider -> reason
    waits      providers whose calls make the host wait for the GPU: their GPU time includes host time
    run        index of the run that measured the point
    kernels    fingerprints of the kernels that ours launched
    ours       "gpu" and "calls" of "fused" and, if a tuned kernel takes the point, of "plain", timed together; its own
               "run", perhaps a later one; the plain kernel's fingerprints
    fused_run  index of the run that timed ours, if it is not the peers' run
    failed     reason; such a point has no times
"""

import functools
import json
import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.instruments.fingerprints import is_current
from helpers.instruments.recordings import RESULTS, Recorded
from helpers.instruments.tables import Table, table

BEHIND = 1.03  # times the peer's time
BARE = "bare launch"
MAX_LAUNCHES = 1.5  # maximum time per call, in empty launches
# Shown, but not counted as peers: a matmul without its epilogue, and a backward pass that only scales a gradient
# computed in the forward pass.
NOT_THE_SAME = {
    ("linear_act", "forward", "cuBLAS alone"),
    ("linear_act", "backward", "cuBLAS alone"),
    ("ffn", "forward", "cuBLAS alone"),
    ("cross_entropy", "backward", "Liger"),
}
BYTES = {"bf16": 2, "fp32": 4}
FALLEN = 0.9  # times the share reached at the neighbouring power of two
# The dimensions of each shape, unless it is rows x columns or a number of elements.
SHAPES = {
    "linear_act": "rows x numbers to a row of x x columns of y",
    "conv_bn_act": "pictures x channels x height x width x filters x taps x stride",
    "flash_attention": "batch x heads x key heads x queries x keys x width",
    "paged_attention": "sequences x heads x key heads x queries x keys x width",
    "rope_cache": "tokens x heads x key heads x width",
    "decoder_layer": "width x heads x key heads x hidden x keys",
}


def key_of(point: dict) -> tuple:
    """Return the key of a point in the sweep."""
    return (point["kernel"], point["direction"], point["dtype"], point["regime"], tuple(point["shape"]))


def median(point: dict, provider: str, clock: str = "gpu") -> float:
    """Return a provider's median in microseconds; NaN if it was not timed."""
    return point.get(clock, {}).get(provider, [math.nan])[0]


def share(point: dict, provider: str = "fused") -> float:
    """Return the fraction of its ceiling that a provider reaches; NaN if it was not timed."""
    return point.get("least", math.nan) / median(point, provider)


def best_peer(point: dict, clock: str = "gpu") -> str | None:
    """Return the fastest provider of the same operation, ours excluded."""
    of = _operation(point)
    others = [name for name in point.get(clock, {}) if name not in ("fused", BARE) and (*of, name) not in NOT_THE_SAME]
    return min(others, key=lambda name: median(point, name, clock), default=None)


def ratio(point: dict, clock: str = "gpu") -> float:
    """Return our time divided by the best peer's; NaN if either is missing."""
    peer = best_peer(point, clock)
    return median(point, "fused", clock) / median(point, peer, clock) if peer else math.nan


def is_tuned(point: dict) -> bool:
    """Return whether a tuned kernel takes the point, as far as recorded."""
    return "plain" in point.get("ours", {}).get("gpu", {})


def is_earlier(point: dict) -> bool:
    """Return whether our kernel may have changed since it was timed against the peers."""
    return "gpu" in point and not is_current(point.get("kernels"))


def is_earlier_plain(point: dict) -> bool:
    """Return whether the plain kernel has changed since it was timed at this point."""
    return "ours" in point and not is_current(point["ours"]["kernels"])


def plain_ratio(point: dict, clock: str = "gpu") -> float:
    """Return the plain kernel's time over ours, timed together; 1 if no tuned kernel takes the point.

    NaN if that was not recorded."""
    ours = point.get("ours", {})
    if clock == "gpu" and "gpu" in ours and not is_tuned(point):
        return 1.0 if "refused" not in ours else math.nan
    return median(ours, "plain", clock) / median(ours, "fused", clock)


def bare_launches(point: dict) -> float:
    """Return our call's time divided by that of the bare launches; NaN if either is missing."""
    return median(point, "fused", "calls") / median(point, BARE, "calls")


def within_spread(point: dict, clock: str = "gpu") -> bool:
    """Return whether our 10th percentile is at or below the best peer's 90th."""
    _, low, _ = point[clock]["fused"]
    _, _, high = point[clock][best_peer(point, clock)]
    return low <= high


def aligned(point: dict) -> bool:
    """Return whether each row of a row-wise kernel is aligned to 16 bytes, the widest load of a thread."""
    return len(point["shape"]) != 2 or point["shape"][-1] * BYTES[point["dtype"]] % 16 == 0


def _is_power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


CLOCKS = "GPU times: cold L2; call times: measured on the host, warm caches"


@dataclass(frozen=True)
class RecordedSweep:
    """The sweep recorded on one GPU.

    runs: a dict per run, newest last: "date", "versions", "kernels" (name -> fingerprint), "ceilings".
    points: dicts as the module describes, sorted by kernel, direction, dtype, regime and shape.
    """

    gpu: str
    runs: list[dict]
    points: list[dict]

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels in the sweep."""
        return list(dict.fromkeys(point["kernel"] for point in self.points))

    def of(self, kernel: str, direction: str | None = None, regime: str | None = None, dtype: str = "bf16") -> list:
        """Return a kernel's points of that dtype, and of that direction and regime if given.

        Raises:
            ValueError: nothing was recorded for that kernel.
        """
        if kernel not in self.kernels:
            raise ValueError(f"the sweep has no {kernel!r}: choose from {', '.join(self.kernels)}")
        wanted = {"kernel": kernel, "dtype": dtype}
        wanted |= {"direction": direction} if direction else {}
        wanted |= {"regime": regime} if regime else {}
        return [point for point in self.points if wanted.items() <= point.items()]

    def label(self, points: Iterable[dict]) -> str:
        """Return the label that figures must show: GPU, versions and measurement dates of these points."""
        return Recorded(
            self.gpu,
            [
                self.runs[number]
                for number in sorted({p[run] for p in points for run in ("run", "fused_run") if run in p})
            ],
            [],
            {},
        ).label

    @functools.cached_property
    def _powers(self) -> dict[tuple, dict]:
        """The timed points with power-of-two columns, keyed by key_of with the columns instead of the shape."""
        with_time = (point for point in self.points if "least" in point and _is_power_of_2(point["shape"][-1]))
        return {(*key_of(point)[:-1], point["shape"][-1]): point for point in with_time}

    def neighbour(self, point: dict) -> dict | None:
        """Return a row-wise kernel's point at the nearest power-of-two columns, or None if it was not timed."""
        *_, width = point["shape"]
        if _is_power_of_2(width) or len(point["shape"]) != 2:
            return None
        return self._powers.get((*key_of(point)[:-1], 2 ** round(math.log2(width))))

    def table(self, kernel: str) -> Table:
        """Return every point of a kernel: each provider's GPU time and share of the ceiling, and call times if any."""
        points = [point for point in self.points if point["kernel"] == kernel] or self.of(kernel)
        names = [name for point in points for name in (*point.get("gpu", {}), *point.get("refused", {}))]
        providers = sorted(dict.fromkeys(names), key=lambda name: name != "fused")
        beside = any(is_tuned(point) for point in points)
        rows = []
        for point in points:
            what = (point["direction"], point["regime"], _shape(point, " x "), point["dtype"])
            if "failed" in point:
                rows.append((*what, point["failed"], *[""] * (len(providers) + 2 + beside)))
                continue
            times = [_cell(point, name) for name in providers]
            peer = best_peer(point)
            against = f"{ratio(point):.2f} x {peer}" if peer else ""
            called = best_peer(point, "calls")
            calls = f"{median(point, 'fused', 'calls'):.1f} us, {called} {median(point, called, 'calls'):.1f} us"
            calls += f", {BARE} {median(point, BARE, 'calls'):.1f} us" if BARE in point.get("calls", {}) else ""
            plain = [_beside_plain(point)] if beside else []
            rows.append((*what, f"{point['least']:.1f} us", *times, *plain, against, calls if called else ""))
        columns = ("direction", "regime", "shape", "dtype", "ceiling allows", *providers)
        columns += (*(["plain"] if beside else []), "ours", "call: ours, best")
        waits = "; (waits): the time includes the host waiting for the GPU"
        waits = waits if any(point.get("waits") for point in points) else ""
        told = [f"{kernel}, {self.label(points)}", f"{CLOCKS}{waits}"]
        told += ["plain: the plain kernel's time / ours, timed together"] if beside else []
        told += [f"shape: {SHAPES[kernel]}"] if kernel in SHAPES else []
        return table(columns, rows, "\n".join([*told, *self._earlier(points)]))

    def calls(self, kernels: Iterable[str] = ()) -> Table:
        """Return one row per point whose calls were timed, of all or the named kernels: GPU and call times of ours
        and of the peer with the fastest call, and the time of the bare launches if measured."""
        rows, shown = [], []
        bare = any(BARE in point.get("calls", {}) for point in self.points)
        for point in self.points:
            peer = best_peer(point, "calls")
            if peer and (not kernels or point["kernel"] in kernels):
                pairs = [(clock, name) for clock in ("gpu", "calls") for name in ("fused", peer)]
                row = [_name(point), peer, *(f"{median(point, name, clock):.1f} us" for clock, name in pairs)]
                if bare:
                    row.append(f"{median(point, BARE, 'calls'):.1f} us" if BARE in point["calls"] else "")
                rows.append(row)
                shown.append(point)
        columns = ["", "peer", "GPU: ours", "GPU: peer", "call: ours", "call: peer", *([BARE] if bare else [])]
        told = f"{CLOCKS}\npeer: the one with the fastest call, for both times"
        told += f"; {BARE}: timed for forward calls only" if bare else ""
        if earlier := sum("fused_run" in point for point in shown):
            told += f"\n{earlier} of {len(shown)} calls come from the peers' run, with our kernel as it was then"
        return table(columns, rows, f"the sweep, {self.label(shown)}\n{told}")

    def behind(self, kernels: Iterable[str] = ()) -> list[str]:
        """Return a line for each point where our GPU or call time is over 1.03 times the best peer's, worst first,
        for all or the named kernels. "Within the spread": our 10th percentile is at or below that peer's 90th."""
        chosen = set(kernels) or set(self.kernels)
        found = []
        for point in (point for point in self.points if point["kernel"] in chosen):
            for clock, text in (("gpu", "behind"), ("calls", "a call behind")):
                if ratio(point, clock) > BEHIND:
                    line = f"{text} {best_peer(point, clock)}: {_name(point)}: {ratio(point, clock):.2f} times its time"
                    line += ", within the spread" if within_spread(point, clock) else ""
                    found.append((clock, -ratio(point, clock), line))
        return [line for *_, line in sorted(found, key=lambda each: (each[0] == "calls", each[1]))]

    def passes_behind(self, kernels: Iterable[str] = ()) -> list[str]:
        """Return the `pass_of` name of each kernel and direction with a point behind a peer, of all or the named
        kernels."""
        chosen = [point for point in self.points if not kernels or point["kernel"] in kernels]
        late = (p for p in chosen if any(ratio(p, clock) > BEHIND for clock in ("gpu", "calls")))
        return list(dict.fromkeys(pass_of(point) for point in late))

    def over_bare(self, kernels: Iterable[str] = ()) -> list[str]:
        """Return a line for each point whose call takes longer than 1.5 bare launches, worst first, of all or the
        named kernels.

        A call's time includes its GPU work; the line also gives the GPU time."""
        chosen = [point for point in self.points if not kernels or point["kernel"] in kernels]
        late = sorted((p for p in chosen if bare_launches(p) > MAX_LAUNCHES), key=bare_launches, reverse=True)
        return [
            f"over {MAX_LAUNCHES} bare launches: a call of {_name(point)}: {bare_launches(point):.2f}, "
            f"the GPU's part {median(point, 'fused') / median(point, BARE, 'calls'):.2f}"
            for point in late
        ]

    def fallen(self, kernels: Iterable[str] = ()) -> list[str]:
        """Return a line for each point whose share is below 0.9 of the neighbouring power of two's, worst first."""
        chosen = set(kernels) or set(self.kernels)
        found = []
        for point in (point for point in self.points if point["kernel"] in chosen):
            near = self.neighbour(point)
            if near and share(point) < FALLEN * share(near):
                part = share(point) / share(near)
                where = f"{share(point):.0%} of its ceiling, {share(near):.0%} at {near['shape'][-1]} columns"
                where += "" if aligned(point) else "; rows not aligned to 16 bytes"
                found.append((part, f"between: {_name(point)}: {where}"))
        return [line for _, line in sorted(found)]

    def failures(self, kernels: Iterable[str] = ()) -> list[str]:
        """Return a line with the reason for each point where ours was not timed."""
        chosen = set(kernels) or set(self.kernels)
        missing = (point for point in self.points if point["kernel"] in chosen and math.isnan(median(point, "fused")))
        return [
            f"not measured: {_name(point)}: {point.get('failed') or point['refused'].get('fused')}" for point in missing
        ]

    def summary(self, kernels: Iterable[str] = ()) -> Table:
        """Return one row per kernel and direction, of all or the named kernels: the number of points, how many are
        ahead of the best peer or at most 3 % behind, our median and worst time relative to that peer, and the number of
        drops between powers of two, "" if no points were comparable. The title lists each kernel's peers."""
        rows, shown = [], []
        for kernel in kernels or self.kernels:
            for direction in ("forward", "backward"):
                points = [p for p in self.points if (p["kernel"], p["direction"]) == (kernel, direction)]
                shown += points
                ratios = sorted(r for point in points if not math.isnan(r := ratio(point)))
                if not ratios:
                    continue
                level = sum(r <= BEHIND for r in ratios)
                beside = [(share(p), share(near)) for p in points if (near := self.neighbour(p))]
                low = sum(ours < FALLEN * of_near for ours, of_near in beside) if beside else ""
                middle = ratios[len(ratios) // 2]
                taken = sorted(plain_ratio(point) for point in points if is_tuned(point))
                plain = f"{taken[len(taken) // 2]:.2f}" if taken else ""
                row = (kernel, direction, len(ratios), level, f"{middle:.2f}", f"{ratios[-1]:.2f}", low)
                rows.append((*row, len(taken) or "", plain))
        columns = ("kernel", "direction", "points", "level or ahead", "median", "worst", "dropped", "tuned", "plain")
        told = [
            "GPU times, cold L2, all shapes and dtypes",
            f"We are level or ahead if our time is at most {BEHIND} of the best peer's.",
            "Median and worst are our time ÷ the best peer's.",
        ]
        if any(row[6] != "" for row in rows):
            told.append(
                f"A point has dropped if its share of the ceiling is below {FALLEN} of that at the nearest power of 2."
            )
        if any(row[7] != "" for row in rows):
            told.append(
                "Tuned counts the points that run a tuned kernel; there, plain is the plain kernel's time ÷ ours."
            )
        rows.append(("all", "", *(sum(row[i] for row in rows) for i in (2, 3)), *[""] * 5))
        told += self._earlier(shown)
        return table(columns, rows, "\n".join([f"the sweep, {self.label(shown)}", *told, *_peers(shown)]))

    def _earlier(self, points: list[dict]) -> list[str]:
        """Return lines that count the points that show an earlier version of our kernels; none if there are none."""
        found = [(sum(map(is_earlier, points)), "our"), (sum(map(is_earlier_plain, points)), "the plain")]
        text = f"of {len(points)} points show an earlier version of"
        lines = [f"{number} {text} {whose} kernel" for number, whose in found if number]
        if apart := sum("fused_run" in point for point in points):
            lines.append(f"{apart} of {len(points)} points compare our time with peers' times from an earlier run")
        return lines


def pass_of(point: dict) -> str:
    """Return the point's kernel, with " backward" for that direction: the key used in benchmarks/tried.py."""
    return point["kernel"] + (" backward" if point["direction"] == "backward" else "")


def _name(point: dict) -> str:
    return f"{pass_of(point)} {_shape(point, 'x')} {point['dtype']}"


def _shape(point: dict, between: str) -> str:
    """Return the point's sizes; for attention also "causal" or "every pair"."""
    sizes, pairs = point["shape"], ""
    if isinstance(sizes[-1], bool):
        pairs = " causal" if sizes[-1] else " every pair"
        sizes = sizes[:-1]
    return between.join(map(str, sizes)) + pairs


def _peers(points: Iterable[dict]) -> list[str]:
    """Return lines that list each kernel's peers, without those that do different work."""
    of_kernel, kernels_of = {}, {}
    for point in points:
        names = (n for n in point.get("gpu", {}) if n != "fused" and (*_operation(point), n) not in NOT_THE_SAME)
        of_kernel.setdefault(point["kernel"], set()).update(names)
    for kernel, names in of_kernel.items():
        kernels_of.setdefault(", ".join(sorted(names, key=str.lower)), []).append(kernel)
    lines = (f"peers of {', '.join(kernels)}: {names}" for names, kernels in kernels_of.items())
    return [part for line in lines for part in textwrap.wrap(line, 100, subsequent_indent="  ")]


def _operation(point: dict) -> tuple[str, str]:
    return point["kernel"], point["direction"]


def _cell(point: dict, provider: str) -> str:
    if provider in point["gpu"]:
        waits = " (waits)" if provider in point.get("waits", ()) else ""
        return f"{median(point, provider):.1f} us, {share(point, provider):.0%}{waits}"
    return "refused" if provider in point["refused"] else ""


def _beside_plain(point: dict) -> str:
    """Return the plain kernel's time, and its ratio to ours."""
    if not is_tuned(point):
        return "ours" if "ours" in point else ""
    return f"{median(point['ours'], 'plain'):.1f} us, {plain_ratio(point):.2f} x"


def recorded_sweep(gpu: str = "h100_80gb_hbm3") -> RecordedSweep:
    """Return the recorded sweep of a GPU, by the name of its file in benchmarks/results.

    Raises:
        ValueError: no sweep of that GPU is recorded.
    """
    return read_sweep(RESULTS / f"{gpu.lower()}_sweep.json")


def read_sweep(path: Path) -> RecordedSweep:
    """Read a sweep from a file.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"no recorded sweep {path.name}; on a machine with that GPU, run `fusion bench --sweep`")
    return RecordedSweep(**json.loads(path.read_text()))
