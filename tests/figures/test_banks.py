"""Wavefronts of a read of shared memory against the meter's; the picture and its explorer."""

import re

import pytest
import torch

from helpers.figures.memory.shared_memory_banks import PLACES, READS, WIDTHS, BanksExplorer, wavefronts_of
from helpers.instruments import cuda_kernel, measure

READ = """
template <int WIDTH> __global__ void read_tile(float* y, int a, int b) {
  __shared__ float tile[32 * WIDTH];
  for (int i = threadIdx.x; i < 32 * WIDTH; i += 32) tile[i] = i;
  __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x * a + b];
}"""
# read -> lane's factor and the rest, for a width and k
TERMS = {
    "a column: tile[lane][k]": lambda width, k: (width, k),
    "a row: tile[k][lane]": lambda width, k: (1, k * width),
    "one word: tile[k][k]": lambda width, k: (0, k * width + k),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(("width", "k"), [(8, 0), (24, 7), (32, 1), (33, 0), (34, 3), (40, 2), (64, 5)])
def test_wavefronts_are_those_that_the_meter_counts(read, width, k):
    y = torch.empty(32)
    kernel = cuda_kernel(READ, f"read_tile<{width}>")
    found = measure(kernel[1, 32], y, *TERMS[read](width, k))
    filling = width  # stores, a row of 32 words each, without conflict
    assert found.shared_wavefronts - filling == wavefronts_of(read, width, k)
    assert y.tolist() == [READS[read](lane, k, width) for lane in range(32)]


def test_every_frame_is_that_of_its_sliders():
    explorer = BanksExplorer()
    assert explorer.text.startswith("32 wavefronts: 32 lanes read 1 bank. tile[32][32], a column")
    for read, width, k in zip(READS, (33, 8, 64), (0, 7, 3), strict=True):
        explorer.read.value, explorer.width.value, explorer.k.value = read, width, k
        frames = explorer._stage.data["frames"]
        assert len(frames) == len(WIDTHS) * len(PLACES)
        frame = frames[WIDTHS.index(width) * len(PLACES) + PLACES.index(k)]
        assert frame["text"] == explorer.text == repr(explorer.chart())
        words = {READS[read](lane, k, width) for lane in range(32)}
        assert sum(path.count("M") for path in re.findall(r'<path d="([^"]*)"', frame["svg"])) == len(words)


def test_boxes_stand_where_the_axes_put_them_and_within_the_picture():
    explorer = BanksExplorer(width=33)
    figure = explorer.chart().figure
    frame = explorer._stage.data["frames"][WIDTHS.index(33) * len(PLACES)]
    first = re.search(r'<path d="M([0-9.]+) ([0-9.]+)', frame["svg"])
    x, y = figure.axes[0].transData.transform((0.06, 0.92))
    assert (float(first[1]), float(first[2])) == pytest.approx((x, figure.bbox.height - y), abs=0.06)
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


@pytest.mark.parametrize(("arguments", "name"), [({"width": 27}, "words a row"), ({"k": 8}, "k")])
def test_bad_input_is_refused_in_one_line(arguments, name):
    with pytest.raises(ValueError, match=f"the {name} slider has no") as error:
        BanksExplorer(**arguments)
    assert "\n" not in str(error.value)
