"""The windows of a convolution against PyTorch's own and against the meter; the picture and its explorer."""

import re

import pytest
import torch
from torch.nn import functional

from benchmarks.experiments.lesson_09 import TILE as KERNEL_TILE
from benchmarks.experiments.lesson_09 import conv_bn_relu
from helpers.figures.matmul.convolution_windows import (
    CELL,
    FILTERS,
    LEFT,
    PADDINGS,
    SIZE,
    STRIDES,
    TILE,
    TILES,
    TOP,
    Windows,
    WindowsExplorer,
    WindowsScene,
)
from helpers.instruments import measure

EVERY = [(taps, stride, padding) for taps in FILTERS for stride in STRIDES for padding in PADDINGS]


@pytest.mark.parametrize("size", [(12, 12), (7, 10)])
@pytest.mark.parametrize(("taps", "stride", "padding"), EVERY)
def test_reads_are_the_gradient_of_a_convolution_of_ones(size, taps, stride, padding):
    """A pixel's share in the sum of some output pixels, all weights being 1, is how often these see it."""
    windows = Windows(*size, taps, stride, padding)
    padded = torch.zeros(1, 1, *(each + 2 * padding for each in size), requires_grad=True)
    out = functional.conv2d(padded, torch.ones(1, 1, taps, taps), stride=stride).flatten()
    assert out.numel() == windows.pixels
    for pixels in (None, range(1, min(9, windows.pixels))):
        chosen = out if pixels is None else out[pixels.start : pixels.stop]
        (expected,) = torch.autograd.grad(chosen.sum(), padded, retain_graph=True)
        assert torch.equal(torch.from_numpy(windows.reads(pixels)).float(), expected[0, 0])
    by_tap = sum(windows.reads(tap=tap) for tap in range(taps**2))
    assert (by_tap == windows.reads()).all()


@pytest.mark.parametrize(("taps", "stride", "padding"), [(3, 1, 1), (3, 2, 0), (5, 3, 2), (1, 2, 0)])
def test_the_meter_counts_as_many_reads(taps, stride, padding):
    channels = 16
    windows = Windows(SIZE, 6, taps, stride, padding)
    x = torch.randn(1, SIZE, 6, channels).permute(0, 3, 1, 2)
    w, vector = torch.randn(16, taps, taps, channels), torch.ones(16)
    tile = KERNEL_TILE | {"BLOCK_PIXELS": TILE, "BLOCK_OUT": 16, "BLOCK_IN": channels}  # a tap a step
    found = measure(conv_bn_relu, x, w, vector, vector.clone(), stride, padding, tile)
    read = windows.in_picture(windows.reads())
    assert found.by_tensor["x"].read == 4 * channels * read.sum()
    assert found.unique_read == 4 * channels * (read > 0).sum() + w.nbytes + 2 * vector.nbytes


def test_what_lesson_09_says_is_to_be_found():
    def reads(taps, stride, padding, **chosen):
        windows = Windows(SIZE, SIZE, taps, stride, padding)
        return windows.in_picture(windows.reads(**chosen))

    every = reads(3, 1, 1)
    assert (every[5, 5], every[0, 5], every[0, 0]) == (9, 6, 4)
    assert set(reads(3, 2, 1)[1:-1, 1:-1].flatten()) == {1, 2, 4}
    assert set(reads(3, 3, 0).flatten()) == {1}
    assert (reads(1, 2, 0) == 0).mean() == 0.75
    first, middle = (reads(3, 1, 0, pixels=range(16), tap=tap) for tap in (0, 4))
    assert (middle[1:, 1:] == first[:-1, :-1]).all()
    assert Windows(SIZE, SIZE, 1, 1, 2).out_shape == (16, 16)
    assert not reads(1, 1, 2, pixels=range(16)).any()


@pytest.mark.parametrize("taps", FILTERS)
def test_every_frame_is_that_of_its_sliders(taps):
    explorer = WindowsExplorer(taps)
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(TILES) * len(STRIDES) * len(PADDINGS)
    for index in range(0, len(frames), 13):
        explorer.tile.index, rest = divmod(index, len(STRIDES) * len(PADDINGS))
        explorer.stride.index, explorer.padding.index = divmod(rest, len(PADDINGS))
        assert frames[index]["text"] == explorer.text
        shown = sum(map(int, re.findall(r">(\d+)</text>", frames[index]["svg"])))
        assert shown == explorer._scene.counts.sum()


def test_cells_stand_on_the_picture():
    explorer = WindowsExplorer(padding=0, tile="all")
    frame = explorer._stage.data["frames"][0]
    corner = re.search(r'<path d="M([0-9.]+) ([0-9.]+)', frame["svg"]).groups()
    assert [float(each) for each in corner] == [LEFT + CELL * max(PADDINGS), TOP + CELL * max(PADDINGS)]
    chart = explorer.chart()
    assert chart.text == explorer.text
    figure = chart.figure
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


def test_titles():
    def title(taps, stride, padding, tile="all", shown="all"):
        return WindowsScene(Windows(SIZE, SIZE, taps, stride, padding), tile, shown).told()[0]

    assert title(3, 1, 1) == "All tiles: 1,156 reads of 144 of 144 pixels, 4 to 9 times each"
    assert title(1, 2, 0, 0) == "Tile 0: 16 reads of 16 of 144 pixels, once each"
    assert title(1, 1, 2, 0) == "Tile 0 reads nothing: all it sees is padding"
    assert title(3, 3, 1, 5) == "No tile 5: the output has 4 x 4 pixels"
    assert title(3, 1, 1, 3, "the first") == "Tile 3: 14 reads of 14 of 144 pixels, once each"


@pytest.mark.parametrize(
    ("arguments", "message"), [({"taps": 2}, "no filter of 2 x 2"), ({"stride": 4}, "stride slider has no 4")]
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        WindowsExplorer(**arguments)
    assert "\n" not in str(error.value)
