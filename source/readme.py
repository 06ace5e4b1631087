"""What README.md shows of the course and of its records: the table of measured times, the map, the doors on the web.

python source/readme.py            write them between their marks
python source/readme.py --check    write nothing; fail, with a line for each, where one is stale

They are made again for the check, which takes no time: nothing needs to be kept of what they were made from.
"""

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.instruments import recorded, recorded_page  # noqa: E402, as build.py this runs as a script
from helpers.instruments.recordings import Recorded, dated  # noqa: E402
from helpers.instruments.sweep_records import BEHIND  # noqa: E402
from helpers.learning.course_map import still_map  # noqa: E402

# One row a lesson: lesson, what it builds, and under which kernel, shape and dtype that was recorded.
ROWS = [
    ("03", "add + GELU, 100 million fp32", "add_gelu", (100_000_000,), "float32"),
    ("04", "bias + dropout + residual, 16384 × 4096", "bias_dropout_residual", (16384, 4096), "bfloat16"),
    ("05", "LayerNorm + GELU, 32768 × 4096", "layer_norm_act", (32768, 4096), "bfloat16"),
    ("06", "softmax + top 8, 32768 × 4096", "softmax_topk", (32768, 4096), "bfloat16"),
    ("08", "linear + bias + GELU, 8192 × 4096 × 11008", "linear_act", (8192, 4096, 11008), "bfloat16"),
    ("09", "3 × 3 convolution + batch norm + ReLU", "conv_bn_act", (64, 128, 56, 56, 256, 3), "bfloat16"),
    ("10", "causal attention, 4 × 16 heads of 4096 × 128", "flash_attention", (4, 16, 4096, 128, True), "bfloat16"),
    ("11", "LayerNorm's backward pass, 32768 × 4096", "layer_norm backward", (32768, 4096), "bfloat16"),
    ("12", "LayerNorm to int8, 32768 × 4096", "layer_norm_int8", (32768, 4096), "bfloat16"),
]
BLOCK = ("15", "a transformer block, 8192 tokens", "8192", "forward")
# Mark in README.md -> where what stands after it comes from.
SOURCES = {
    "what was measured": "the records in benchmarks/results",
    "the map of the course": "the notebooks",
    "doors": "pyproject.toml",
}
NO_RIVAL = ("fused", "plain", "eager", "torch.compile", "cuBLAS alone")  # the last leaves out what is fused


def micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.0f}"


def row(lesson: str, what: str, times: dict[str, float], share: float | None, date: str) -> str:
    """One line of the table, the fastest time and what is level with it in bold; `times`: provider -> seconds."""
    rivals = {name: time for name, time in times.items() if name not in NO_RIVAL}
    rival = min(rivals, key=rivals.get, default=None)
    shown = [times["eager"], times.get("torch.compile"), rivals.get(rival), times.get("plain"), times["fused"]]
    fastest = min(time for time in shown if time is not None)
    cells = [f"**{micro(time)}**" if time and time <= BEHIND * fastest else micro(time) for time in shown]
    if rival:
        cells[2] = f"{cells[2]} ({rival})"
    reached = "" if share is None else f"{share:.0%}"
    return f"| {' | '.join([lesson, what, *cells, reached, date])} |"


def results(run: Recorded, block: dict) -> str:
    """The table, with the machine and the versions of its rows above it."""
    lines, runs = [], set()
    for lesson, what, kernel, shape, dtype in ROWS:
        found = [each for each in run.rows if (each["kernel"], each["dtype"]) == (kernel, dtype)]
        found = {each["provider"]: each for each in found if each["shape"] == list(shape)}
        fused, times = found["fused"], {name: each["gpu"]["median"] for name, each in found.items()}
        runs.add(fused["run"])
        share = fused["least_seconds"] / times["fused"]
        lines.append(row(lesson, what, times, share, dated(run.runs[fused["run"]]["date"], fused.get("kernels"))))
    lesson, what, tokens, direction = BLOCK
    of_block = block["times"][tokens][direction]
    times = {name: of_block[name]["gpu"]["median"] for name in ("fused", "eager", "torch.compile", "libraries")}
    lines.append(row(lesson, what, times, None, dated(block["date"], of_block["fused"].get("fingerprints"))))
    used = {tuple(run.runs[each]["versions"].items()) for each in runs} | {tuple(block["versions"].items())}
    [versions] = [dict(each) for each in used]
    said = f"Python {versions['python']}, PyTorch {versions['torch']}, Triton {versions['triton']}"
    columns = "lesson | what is fused | unfused | torch.compile | best of others | plain | ours | of the limit | taken"
    heading = f"| {columns} |"
    return "\n".join(
        [f"{run.gpu}, {said}; microseconds:", "", heading, "|---|---|--:|--:|--:|--:|--:|--:|---|", *lines]
    )


def doors(project: dict) -> str:
    """Links that open the course elsewhere; none where no address is known at which others could find it."""
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
    """Mark -> what stands after it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "what was measured": results(recorded("h200"), json.loads(recorded_page("block.json").read_text())),
        "the map of the course": still_map(ROOT),
        "doors": doors(project),
    }


def filled(readme: str, mark: str, text: str) -> str:
    """`readme` with `text` between a mark and its end.

    Raises:
        ValueError: the marks are not there.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"README.md lacks {begin} and {end}: put them where that shall stand")
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
