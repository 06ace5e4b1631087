"""Lesson 16: stage texts come from the installed packages; CUTLASS's file and script agree; records name kernels."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import libraries

ROOT = Path(__file__).resolve().parents[1]
LESSON = (ROOT / "source/lessons/16_compilers_and_libraries.py").read_text()
# What only a compiler writes: none of it may be typed into the lesson's code.
WRITTEN_BY_COMPILERS = (
    r"tl\.load\(in_ptr\d \+", r"triton_\w{3}_fused\w*\(", r"torch\.ops\.aten", r"LOAD_FAST .*\n", r"ld\.global\.[a-z]",
    r"HloModule", r"\btmp\d = tl\.",
)  # fmt: skip


def code_cells(text):
    cells = re.split(r"^# %%", text, flags=re.M)
    return [cell for cell in cells if not cell.lstrip().startswith("[markdown]")]


def typed(text):
    return [name for name in WRITTEN_BY_COMPILERS if any(re.search(name, cell) for cell in code_cells(text))]


def test_no_stage_text_is_typed_into_the_lesson():
    assert typed(LESSON) == []


@pytest.mark.parametrize("line", ["triton_poi_fused_0(x)", "tmp1 = tl.sigmoid(tmp0)", "HloModule jit_gated"])
def test_a_typed_stage_text_is_found(line):
    assert typed(f'{LESSON}\n# %%\nprint("""{line}""")\n')


def test_every_tile_is_given_whole_to_nvcc():
    source = libraries.CUTLASS_SOURCE.read_text()
    for tile in libraries.CUTLASS_TILES:
        command = libraries.nvcc_command(tile, "include", Path("out.so"))
        given = {each[2:].partition("=")[0] for each in command if each.startswith("-D")}
        assert {"TILE_M", "TILE_N", "SCHEDULE", "CLUSTER_M"} <= given
        assert all(name in source for name in given - {"NDEBUG"})  # that one is for the headers
        assert ("EPILOGUE_COOPERATIVE" in given) == tile.endswith("cooperative")


def test_what_does_not_build_is_recorded_as_nvcc_said_it(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "nvcc_command", lambda *_: ["sh", "-c", "echo no such header >&2; exit 1"])
    built = libraries.cutlass_build("nowhere", tmp_path)
    assert set(built) == set(libraries.CUTLASS_TILES)
    assert all("no such header" in error for error in built.values())


def test_each_recorded_part_says_which_kernels_it_launched(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["libraries", "--small", "--only", "xla", "--out", str(tmp_path / "record.json")])
    monkeypatch.setattr(libraries, "xla_texts", lambda shape: {"shape": shape})
    libraries.main()
    assert json.loads((tmp_path / "record.json").read_text())["kernels"] == {"xla": []}
