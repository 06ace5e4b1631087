"""Attention's three explorers: their models against the meter, by hand, and what lesson 10 says is to be found."""

import re

import numpy as np
import pytest
import torch

from benchmarks.experiments.lesson_10 import causal, written_out
from helpers.figures import AttentionLengthsExplorer, AttentionTilesExplorer, AttentionUnitsExplorer
from helpers.figures.attention import busy_units as units
from helpers.figures.attention import score_tiles as tiles
from helpers.figures.attention import sequence_lengths as lengths
from helpers.instruments import measure
from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import attention_of_heads
from helpers.instruments.roofline import SPECIAL
from kernels import flash_attention

H100 = DEVICES["H100"]


@pytest.mark.parametrize(("heads", "tokens", "dim"), [(1, 128, 64), (3, 96, 32), (1, 200, 128)])
def test_the_bytes_are_the_meters(heads, tokens, dim):
    inputs = torch.randn(3, 1, heads, tokens, dim).half()
    versions = attention_of_heads(tokens, heads, dim, 2)
    found = measure(written_out, *inputs)
    assert sum(each.work.bytes for each in versions.unfused) == found.bytes_total
    assert len(versions.unfused) == found.launches
    (fused,) = versions.fused
    assert fused.work.bytes == measure(flash_attention, *inputs).unique_total


def test_a_mask_costs_a_trip_and_saves_half_of_the_products():
    full, masked = (attention_of_heads(4096, 8, 64, 2, is_causal) for is_causal in (False, True))
    scores = 2 * 8 * 4096**2
    bytes_of = [sum(each.work.bytes for each in of.unfused) for of in (full, masked)]
    assert bytes_of[1] - bytes_of[0] == 2 * scores
    assert masked.fused[0].product / full.fused[0].product == pytest.approx(0.5, rel=1e-3)
    assert masked.fused[0].work.bytes == full.fused[0].work.bytes == 8 * 8 * 4096 * 64


def test_time_is_that_of_the_slowest_unit():
    long = lengths.Attention(H100, 65536, 1, 128, False).costs["fused"]
    assert long.time == pytest.approx(4 * 128 * 65536**2 / 989.4e12)
    assert long.unit == "tensor cores"
    short = lengths.Attention(H100, 128, 1, 128, False).costs["fused"]
    assert short.time == pytest.approx(8 * 128 * 128 / 3.35e12)
    assert lengths.Attention(DEVICES["B200"], 65536, 1, 64, False).costs["fused"].unit == SPECIAL
    assert lengths.Attention(H100, 65536, 1, 64, False).costs["unfused"].unit == "memory"


def test_what_lesson_10_says_of_lengths():
    def case(gpu="H100", tokens=8192, heads=32, dim=128, is_causal=False):
        return lengths.Attention(DEVICES[gpu], tokens, heads, dim, is_causal)

    for gpu, first in (("H100", 32768), ("RTX 4090", 16384)):
        assert next(tokens for tokens in lengths.TOKENS if not case(gpu, tokens).fits) == first
    bound = {tokens: case(tokens=tokens).costs["fused"].unit for tokens in lengths.TOKENS}
    assert [tokens for tokens, unit in bound.items() if unit == "memory"] == [128, 256, 512]
    ratio = {
        (heads, dim): [of["unfused"] / of["fused"] for of in case(heads=heads, dim=dim).values.values()]
        for heads in (1, 32)
        for dim in (128, 256)
    }
    assert ratio[1, 128] == pytest.approx(ratio[32, 128])
    assert all(wider < narrower for wider, narrower in zip(ratio[1, 256], ratio[1, 128], strict=True))
    assert case(is_causal=True).costs["fused"].time < 0.51 * case().costs["fused"].time
    assert case(is_causal=True).costs["unfused"].time > case().costs["unfused"].time


def test_every_curve_stays_on_its_panel():
    for device in (DEVICES["T4"], DEVICES["B300"]):
        for tokens, heads in ((128, 1), (131072, 128)):
            for dim in lengths.DIMS:
                values = lengths.Attention(device, tokens, heads, dim, tokens > 128).values
                for panel, (_, _, (low, high), _) in lengths.PANELS.items():
                    assert all(low <= value <= high for value in values[panel].values())


def brute_force(tokens, m, n):
    """Tiles that all of a program's queries see, that some see, that none sees, from the mask itself."""
    seen = np.tril(np.ones((tokens, tokens), bool))
    found = [
        (seen[row : row + m, col : col + n].all(), seen[row : row + m, col : col + n].any())
        for row in range(0, tokens, m)
        for col in range(0, tokens, n)
    ]
    whole, some = (sum(each) for each in zip(*found, strict=True))
    return whole, some - whole, len(found) - some


@pytest.mark.parametrize("tokens", [128, 512])
@pytest.mark.parametrize("m", tiles.ROWS)
@pytest.mark.parametrize("n", tiles.ROWS)
def test_tiles_are_counted_as_the_mask_has_them(tokens, m, n):
    case = tiles.Tiles(tokens, m, n, skips=True)
    assert case.counts == brute_force(tokens, m, n)
    assert case.computed == m * n * sum(case.counts[:2])
    assert tiles.Tiles(tokens, m, n, skips=False).computed == tokens**2


@pytest.mark.parametrize(("m", "n"), [(64, 32), (32, 64)])
@pytest.mark.parametrize(("skips", "step"), [(False, "every tile, masked"), (True, "up to the diagonal")])
def test_what_is_asked_for_is_the_meters(m, n, skips, step):
    inputs = torch.randn(3, 1, 256, tiles.DIM).half()
    assert tiles.Tiles(256, m, n, skips).bytes == measure(causal, *inputs, step, m, n).bytes_total


def test_what_lesson_10_says_of_tiles():
    def vain(tokens, m=64, n=64):
        case = tiles.Tiles(tokens, m, n, True)
        return 1 - case.needed / case.computed

    assert vain(128) == pytest.approx(1 / 3, abs=0.01)
    assert vain(2048) < 0.04
    few, many = (tiles.Tiles(2048, m, 64, True) for m in (128, 16))
    assert few.bytes < many.bytes
    assert vain(2048, m=128) > vain(2048, m=16)
    assert len(few.programs) < len(many.programs)
    asked = {(m, n): tiles.Tiles(2048, m, n, False).bytes for m in (32, 64) for n in (32, 64)}
    assert asked[64, 32] == asked[64, 64] < asked[32, 64] == asked[32, 32]
    computed = [each for *_, each in tiles.Tiles(2048, 64, 64, True).programs]
    assert (computed[0], computed[-1]) == (1, 32)


def test_units_by_hand():
    times = units.Units(H100, "fp16", 64, 8192).times
    assert times["tensor cores"] == pytest.approx(1e6 * 4 * 64 / 989.4e12)
    assert times[SPECIAL] == pytest.approx(1e6 / 4.18176e12)
    assert times["memory"] == pytest.approx(1e6 * 8 * 64 / 8192 / 3.35e12)
    eighths = units.Units(H100, "fp8", 64, 8192).times
    assert eighths["memory"] == pytest.approx(times["memory"] / 2)
    assert eighths["tensor cores"] == pytest.approx(times["tensor cores"] / 2, rel=1e-3)


def test_what_lesson_10_says_of_units():
    def slowest(gpu, dim, dtype="fp16", tokens=8192):
        return units.Units(DEVICES[gpu], dtype, dim, tokens).slowest

    def ratio(gpu, dim, dtype="fp16"):
        times = units.Units(DEVICES[gpu], dtype, dim, 8192).times
        return times[SPECIAL] / times["tensor cores"]

    assert [dim for dim in units.DIMS if slowest("H100", dim) == SPECIAL] == [16, 32]
    assert [dim for dim in units.DIMS if slowest("H100", dim, "fp8") == SPECIAL] == [16, 32, 64, 80, 96]
    assert 0.9 < ratio("H100", 128, "fp8") < 1
    assert ratio("B200", 64) == pytest.approx(1.9, abs=0.05)
    assert ratio("B200", 128) == pytest.approx(0.95, abs=0.02)
    assert slowest("A100", 64) == slowest("A100", 128) == "tensor cores"
    assert [slowest("H100", 64, tokens=tokens) for tokens in (512, 1024)] == ["memory", "tensor cores"]


@pytest.mark.parametrize(
    ("explorer", "sliders"),
    [
        (AttentionLengthsExplorer(causal=True), ("tokens", "heads", "dim")),
        (AttentionTilesExplorer(skips=True), ("tokens", "m", "n")),
        (AttentionUnitsExplorer("B200"), ("dim", "tokens")),
    ],
)
def test_each_frame_shows_its_position(explorer, sliders):
    controls = [getattr(explorer, name) for name in sliders]
    counts = [len(control.options) for control in controls]
    frames = explorer._stage.data["frames"]
    assert len(frames) == np.prod(counts)
    for index in range(0, len(frames), 7):
        for control, at in zip(controls, np.unravel_index(index, counts), strict=True):
            control.index = int(at)
        assert frames[index]["text"] == explorer.text == explorer.chart().text
        assert explorer._case.finding in frames[index]["svg"]
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert data["image/png"]


def test_marks_stand_where_the_values_are():
    explorer = AttentionLengthsExplorer(tokens=8192, heads=32, dim=128)
    figure, axes = lengths.lengths_axes(H100)
    at = (explorer.tokens.index * len(lengths.HEADS) + explorer.heads.index) * len(lengths.DIMS) + explorer.dim.index
    svg = explorer._stage.data["frames"][at]["svg"]
    circles = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]
    for panel, each in axes.items():
        value = explorer._case.values[panel]["unfused"]
        x, y = each.transData.transform((8192, value))
        assert min(np.hypot(x - cx, figure.bbox.height - y - cy) for cx, cy in circles) < 0.2


def test_tiles_drawn_fill_their_rows():
    explorer = AttentionTilesExplorer(tokens=512, m=64, n=32, skips=True)
    scene = tiles._scene(explorer._case)
    assert sum(box.width for box in scene.boxes) == pytest.approx(8 * tiles.SIDE)
    blue = sum(box.width for box in scene.boxes if box.colour == tiles.FUSED) / tiles.SIDE * 16
    assert blue == pytest.approx(explorer._case.counts[0])


def test_fp8_where_there_is_none_is_said():
    explorer = AttentionUnitsExplorer("A100")
    explorer.dtype.value = "fp8"
    assert explorer.text == "A100 has no tensor cores for fp8: choose fp16, or a newer GPU."
    assert "choose fp16" in explorer._stage.data["frames"][0]["text"]
    assert explorer._repr_mimebundle_()["text/plain"] == explorer.text


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (AttentionLengthsExplorer, {"device": "V200"}, "no rates of 'V200'"),
        (AttentionLengthsExplorer, {"tokens": 100}, "has no 100"),
        (AttentionTilesExplorer, {"m": 8}, "has no 8"),
        (AttentionUnitsExplorer, {"dtype": "fp32"}, "choose fp16 or fp8"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(make, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        make(**options)
    assert "\n" not in str(refused.value)
