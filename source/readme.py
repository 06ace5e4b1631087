"""Write the generated parts of README.md: the table of measured times, the map, the links that open the course online.

python source/readme.py            write them between their marks
python source/readme.py --check    write nothing; fail, with one line per stale part

The check regenerates them, which takes no time, so no digests are stored.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.instruments import recorded_sweep  # noqa: E402, as build.py this runs as a script
from helpers.instruments.recordings import dated  # noqa: E402
from helpers.instruments.sweep_records import BEHIND, RecordedSweep, is_tuned, median  # noqa: E402
from helpers.learning.course_map import lessons_of, minutes_of, still_map  # noqa: E402

GPU = "h100_80gb_hbm3"
# Shapes of attention: batch, heads, key heads, queries, keys, head dim, whether causal.
CAUSAL, DECODE = [4, 16, 16, 4096, 4096, 128, True], [8, 32, 8, 1, 8192, 128, False]
# One row per lesson: lesson, what it builds, and the sweep point that timed it: kernel, direction, shape.
SWEPT = [
    ("03", "add + GELU, 100 million elements, bf16", "add_gelu", "forward", [100_000_007]),
    ("04", "bias + dropout + residual, 16381 × 5120", "bias_dropout_residual", "forward", [16381, 5120]),
    ("05", "LayerNorm + GELU, 32768 × 4096", "layer_norm_act", "forward", [32768, 4096]),
    ("06", "softmax + top 8, 32768 × 4096", "softmax_topk", "forward", [32768, 4096]),
    ("08", "linear + bias + GELU, 8192 × 4096 × 11008", "linear_act", "forward", [8192, 4096, 11008]),
    ("09", "3 × 3 convolution + batch norm + ReLU", "conv_bn_act", "forward", [64, 128, 56, 56, 256, 3, 1]),
    ("10", "causal attention, 4 × 16 heads of 4096 × 128", "flash_attention", "forward", CAUSAL),
    ("10", "its backward pass", "flash_attention", "backward", CAUSAL),
    ("11", "LayerNorm's backward pass, 32768 × 4096", "layer_norm", "backward", [32768, 4096]),
    ("12", "LayerNorm to int8, 32768 × 4096", "layer_norm_int8", "forward", [32768, 4096]),
    ("17", "one token's attention, 8 × 8192 keys, grouped", "flash_attention", "forward", DECODE),
    ("17", "the same from pages of 16 keys", "paged_attention", "forward", [8, 32, 8, 1, 8192, 128]),
    ("17", "sampling, 64 × 131072 logits", "sample", "forward", [64, 131072]),
    ("18", "a small decoder layer, one token", "decoder_layer", "forward", [1024, 16, 8, 3072, 512]),
    ("18", "Llama 3 8B's decoder layer, one token", "decoder_layer", "forward", [4096, 32, 8, 14336, 1024]),
]
# Mark in README.md -> source of the text after it.
SOURCES = {
    "what was measured": "the records in benchmarks/results",
    "the map of the course": "the notebooks",
    "doors": "pyproject.toml",
    "start": "pyproject.toml",
}
NO_RIVAL = ("fused", "plain", "eager", "torch.compile", "cuBLAS alone")  # the last one leaves out the fused operation


def micro(time: float | None) -> str:
    return "" if time is None else f"{time:,.0f}"


def row(lesson: str, what: str, times: dict[str, float], share: float | None, date: str) -> str:
    """Return one line of the table, with the fastest time and those level with it in bold; `times`: provider -> µs."""
    rivals = {name: time for name, time in times.items() if name not in NO_RIVAL}
    rival = min(rivals, key=rivals.get, default=None)
    shown = [times.get("eager"), times.get("torch.compile"), rivals.get(rival), times.get("plain"), times["fused"]]
    fastest = min(time for time in shown if time is not None)
    cells = [f"**{micro(time)}**" if time and time <= BEHIND * fastest else micro(time) for time in shown]
    if rival:
        cells[2] = f"{cells[2]} ({rival})"
    gain = min(time for time in shown[:3] if time is not None) / times["fused"]
    reached = "" if share is None else f"{share:.0%}"
    return f"| {' | '.join([lesson, what, *cells, f'{gain:.2f} ×', reached, date])} |"


def results(sweep: RecordedSweep) -> str:
    """Return the table, with its rows' machine and versions above it."""
    lines, versions = [], set()
    for lesson, what, kernel, direction, shape in SWEPT:
        [point] = [each for each in sweep.of(kernel, direction) if each["shape"] == shape]
        times = {name: median(point, name) for name in point["gpu"]}
        if is_tuned(point):
            times["plain"] = median(point["ours"], "plain")
        of_peers, of_ours = (sweep.runs[point.get(run, point["run"])] for run in ("run", "fused_run"))
        versions |= {tuple(each["versions"].items()) for each in (of_peers, of_ours)}
        date = dated(of_ours["date"], point["kernels"])
        lines.append(row(lesson, what, times, point["least"] / times["fused"], date))
    [used] = [dict(each) for each in versions]
    said = f"Python {used['python']}, PyTorch {used['torch']}, Triton {used['triton']}"
    columns = (
        "lesson | what is fused | unfused | torch.compile | best of others | plain | ours | gain | of the limit | taken"
    )
    heading = f"| {columns} |"
    table = "\n".join(
        [f"{sweep.gpu}, {said}; microseconds:", "", heading, "|---|---|--:|--:|--:|--:|--:|--:|--:|---|", *lines]
    )
    return (
        f"{in_short(lines)}\n\n<details><summary>The {len(lines)} rows, with times</summary>\n\n{table}\n\n</details>"
    )


def in_short(lines: list[str]) -> str:
    """Return what the gains add up to: in how many rows ours is faster, level, slower, and by how much at most."""
    gains = [float(line.split("|")[8].removesuffix("× ")) for line in lines]
    level = [gain for gain in gains if 1 / BEHIND <= gain <= BEHIND]
    ahead, behind = [gain for gain in gains if gain > BEHIND], [gain for gain in gains if gain < 1 / BEHIND]
    text = (
        f"In {len(gains)} comparisons, our kernel is faster than the best of the others in {len(ahead)}, by up to "
        f"{max(ahead):.1f} ×; level, within {100 * BEHIND - 100:.0f} %, in {len(level)}; and slower in {len(behind)}, "
        f"at worst {min(behind):.2f} ×."
    )
    return text.replace(" ×", "\N{NO-BREAK SPACE}×")


def start(project: dict) -> str:
    """Return the command that clones, installs and opens the course."""
    address = project.get("urls", {}).get("Repository")
    told = "" if address else " (ADDRESS stands for this repository's URL)"
    clone = f"git clone {address or 'ADDRESS'} kernel-fusion && cd kernel-fusion && make lab"
    return f"On Linux with Python 3.11 or later{told}:\n\n```\n{clone}\n```"


def total_time(course: Path) -> str:
    lessons = lessons_of(course)
    hours = sum(lesson.minutes for lesson in lessons) / 60
    exercises = [minutes_of(path) or 0 for lesson in lessons for path, _ in lesson.exercises]
    own = f", the {len(exercises)} exercises about {sum(exercises) / 60:.0f}" if exercises else ""
    return f"The {len(lessons)} lessons take about {hours:.0f} hours{own}."


def with_hours(course: Path) -> str:
    """Return the map below the time that all lessons take."""
    return f"{total_time(course)}\n\n{still_map(course)}"


def doors(project: dict) -> str:
    """Return links that open the course elsewhere; none if the course has no known public address."""
    address = project.get("urls", {}).get("Repository")
    if address is None:
        return ""
    name = address.removeprefix("https://github.com/")
    places = {
        "Binder": f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/COURSE_MAP.md",
        "Codespaces": f"https://codespaces.new/{name}",
        "Colab": f"https://colab.research.google.com/github/{name}",
    }
    return "Open it in " + " · ".join(f"[{place}]({link})" for place, link in places.items()) + "."


def parts() -> dict[str, str]:
    """Return mark -> the text after it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "what was measured": results(recorded_sweep(GPU)),
        "the map of the course": with_hours(ROOT),
        "doors": doors(project),
        "start": start(project),
    }


def filled(readme: str, mark: str, text: str) -> str:
    """Return `readme` with `text` between a mark and its end.

    Raises:
        ValueError: the marks are missing.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"README.md lacks {begin} and {end}: put them where it belongs")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}" if text else f"{before}{begin}\n{end}{after}"


def main(arguments: list[str]) -> int:
    path = ROOT / "README.md"
    text = drawn = path.read_text(encoding="utf-8")
    lines = []
    for mark, part in parts().items():
        if filled(text, mark, part) != text:
            lines.append(f"README.md: {mark} is older than {SOURCES[mark]}: run `make notebooks`")
        drawn = filled(drawn, mark, part)
    if arguments == ["--check"]:
        print("\n".join(lines) or "README.md is up to date")
        return 1 if lines else 0
    path.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
