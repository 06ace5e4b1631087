"""README.md matches the course and its records, and a picture of an outdated film is detected."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from helpers.instruments import recorded_sweep
from source import record_film

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("readme", ROOT / "source" / "readme.py")
readme = importlib.util.module_from_spec(spec)
spec.loader.exec_module(readme)

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_part_that_is_stale_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    made = {"what was measured": "| 1 |", "the map of the course": "| 2 |", "doors": "", "start": "make lab"}
    monkeypatch.setattr(readme, "parts", lambda: made)
    page = tmp_path / "README.md"
    page.write_text("# A course\n" + "".join(f"<!-- {mark} -->\n<!-- end of {mark} -->\n" for mark in made))
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    assert capsys.readouterr().out == "README.md is up to date\n"
    made["what was measured"] = "| 3 |"
    assert readme.main(["--check"]) == 1
    line = "README.md: what was measured is older than the records in benchmarks/results: run `make notebooks`\n"
    assert capsys.readouterr().out == line


def test_a_record_taken_again_changes_the_table():
    """Every time and every date of it is seen: the shown ones are the record's."""
    sweep = recorded_sweep(readme.GPU)
    shown = readme.results(sweep)
    slower, later = copy.deepcopy(sweep), copy.deepcopy(sweep)
    for point in slower.points:
        if "gpu" in point:
            point["gpu"] = {name: [2 * time for time in times] for name, times in point["gpu"].items()}
    for each in later.runs:
        each["date"] = "2099-01-01"
    for record in (slower, later):
        lines = zip(shown.splitlines(), readme.results(record).splitlines(), strict=True)
        changed = [old != new for old, new in lines if re.match(r"\| \d", old)]
        assert changed == [True] * len(readme.SWEPT)
    last = later.runs[max(point["run"] for point in later.points)]
    last["versions"] = last["versions"] | {"torch": "9.9"}
    with pytest.raises(ValueError, match="too many values"):  # two machines' versions under one heading
        readme.results(later)


def test_the_table_shows_the_present_kernels():
    assert "earlier version" not in readme.results(recorded_sweep(readme.GPU))


def test_the_strongest_peer_of_serving_is_in_the_table():
    shown = readme.results(recorded_sweep(readme.GPU))
    assert "(FlashInfer)" in next(line for line in shown.splitlines() if "sampling" in line)


def test_the_fastest_is_bold_whoever_it_is_and_what_is_level_with_it():
    times = {"fused": 3, "eager": 9, "torch.compile": 4, "Liger": 2, "cuBLAS alone": 1}
    line = "| 01 | it | 9 | 4 | **2** (Liger) |  | 3 | 0.67 × | 50% | today |"
    assert readme.row("01", "it", times, 0.5, "today") == line
    del times["Liger"]
    assert readme.row("01", "it", times, None, "today") == "| 01 | it | 9 | 4 |  |  | **3** | 1.33 × |  | today |"
    for compiled, cell, gain in ((30.9, "**31**", "1.03"), (31.1, "31", "1.04")):
        times = {"fused": 30, "eager": 90, "torch.compile": compiled}
        line = f"| 01 | it | 90 | {cell} |  |  | **30** | {gain} × |  | today |"
        assert readme.row("01", "it", times, None, "today") == line


def test_the_plain_kernel_stands_beside_ours():
    """The gain is over others' kernels, not over our own plain one."""
    times = {"fused": 3, "plain": 4, "eager": 9}
    assert readme.row("01", "it", times, None, "today") == "| 01 | it | 9 |  |  | 4 | **3** | 3.00 × |  | today |"


def test_the_summary_counts_what_is_ahead_level_and_behind():
    rows = [
        f"| 01 | it | 9 | 4 |  |  | 3 | {gain} × | 9% | today |" for gain in ("8.43", "1.31", "1.01", "0.98", "0.92")
    ]
    assert readme.in_short(rows).replace("\N{NO-BREAK SPACE}×", "~×") == (
        "In 5 comparisons, our kernel is faster than the best of the others in 2, by up to 8.4~×; level, within 3 %, "
        "in 2; and slower in 1, at worst 0.92~×."
    )


def test_a_known_address_can_be_cloned_with_one_line():
    told = readme.start({"urls": {"Repository": "https://github.com/owner/course"}})
    assert "\ngit clone https://github.com/owner/course kernel-fusion && cd kernel-fusion && make lab\n" in told
    assert "(ADDRESS stands for this repository's URL)" in readme.start({})


def test_the_first_screen_tells_what_it_is_and_how_to_start_and_the_map_comes_before_the_numbers():
    for earlier, later in (
        ("An interactive course", "<picture>"),
        ("<picture>", "## Quick start"),
        ("make lab", "## The course"),
        ("about 22 hours", "| lesson |"),
        ("## The course", "## Measured"),
    ):
        assert TEXT.index(earlier) < TEXT.index(later)


def test_links_to_the_web_only_where_the_address_is_known():
    assert readme.doors({}) == ""
    told = readme.doors({"urls": {"Repository": "https://github.com/owner/course"}})
    assert "(https://mybinder.org/v2/gh/owner/course/HEAD?urlpath=lab/tree/COURSE_MAP.md)" in told


def test_a_readme_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="lacks <!-- the map of the course --> and <!-- end of the map"):
        readme.filled("# A title", "the map of the course", "it")


@pytest.mark.parametrize("theme", record_film.PAGES)
def test_the_picture_is_small_and_moves(theme):
    path = record_film.picture(theme)
    assert f"docs/{path.name}" in TEXT
    assert path.stat().st_size < 500_000
    film = Image.open(path)
    assert film.n_frames > 50
    paper = bytes.fromhex(record_film.PAGES[theme][0][1:])
    assert film.convert("RGB").getpixel((0, 0)) == pytest.approx(tuple(paper), abs=2)  # of a few colours, the nearest


def test_a_picture_of_another_film_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(record_film, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    for theme in record_film.PAGES:
        Image.new("P", (2, 2)).save(record_film.picture(theme), comment=json.dumps(record_film.made_from()).encode())
    assert record_film.drifted() == []
    changes = {
        "its scenes": (record_film, "film", lambda: {"scenes": []}),
        "its style": (record_film.FilmStage, "_css", "svg { fill: red }"),
        "its script": (record_film.FilmStage, "_esm", "export default {};"),
    }
    for part, change in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            assert record_film.drifted() == [
                f"docs/journey_{theme}.gif is older than {part}: run `make notebooks`" for theme in ("light", "dark")
            ]
    Image.new("P", (2, 2)).save(record_film.picture("dark"))
    assert record_film.drifted() == [
        "docs/journey_dark.gif was not written by source/record_film.py: run `make notebooks`"
    ]
