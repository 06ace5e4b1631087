"""A warp's sectors against bytes counted one by one and against the meter; the picture and its explorer."""

import re

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from helpers.figures.memory.warp_load import OFFSETS, STRIDES, WarpExplorer, WarpLoad, warp_chart, warp_load
from helpers.instruments.traffic import measure


@triton.jit
def strided_kernel(x_ptr, y_ptr, stride, offset):
    lane = tl.arange(0, 32)
    tl.store(y_ptr + lane, tl.load(x_ptr + offset + lane * stride))


@pytest.mark.parametrize(("stride", "offset", "sectors"), [(1, 0, 4), (1, 1, 5), (2, 0, 8), (8, 0, 32), (32, 5, 32)])
def test_sectors_are_those_that_the_meter_counts(stride, offset, sectors):
    x = torch.randn(32 * 32 + 8)

    def launch(x):
        y = torch.empty(32)
        strided_kernel[(1,)](x, y, stride, offset)
        return y

    load = warp_load("fp32", stride, offset, 1)
    assert len(load.sectors) == sectors == measure(launch, x).sectors_read


@given(step=st.integers(0, 200), width=st.integers(1, 16), offset=st.integers(0, 100))
def test_sectors_cover_the_bytes_wanted_and_no_other(step, width, offset):
    load = WarpLoad(step, width, offset)
    wanted = {offset + lane * step + byte for lane in range(32) for byte in range(width)}
    assert load.wanted == len(wanted)
    assert load.sectors == sorted({byte // 32 for byte in wanted})


def test_a_load_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 byte"):
        WarpLoad(4, 0)


def test_the_picture_says_and_draws_what_is_fetched():
    chart = warp_chart({"neighbours": WarpLoad(4, 4), "every other": WarpLoad(8, 4)}, "Strides waste bytes")
    assert repr(chart) == (
        "Strides waste bytes. neighbours: 4 sectors, 128 of 128 bytes used; "
        "every other: 8 sectors, 128 of 256 bytes used"
    )
    drawn = [len(bars.get_paths()) for bars in chart.figure.axes[0].collections]
    assert drawn == [4, 32, 8, 32]
    box, (width, height) = chart.figure.get_tightbbox(), chart.figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


def test_every_frame_is_that_of_its_sliders():
    explorer = WarpExplorer()
    assert len(explorer._stage.data["frames"]) == len(STRIDES) * len(OFFSETS)
    for dtype, elements, stride, offset in (("fp32", 1, 1, 0), ("fp16", 4, 3, 16), ("fp8", 2, 32, 1)):
        explorer.dtype.value, explorer.elements.value = dtype, elements
        explorer.stride.value, explorer.offset.value = stride, offset
        frame = explorer._stage.data["frames"][STRIDES.index(stride) * len(OFFSETS) + OFFSETS.index(offset)]
        assert frame["text"] == explorer.text == repr(explorer.chart())
        itemsize = {"fp32": 4, "fp16": 2, "fp8": 1}[dtype]
        starts = [(offset + lane * stride * elements) * itemsize for lane in range(32)]
        shown = {byte // 32 for start in starts for byte in range(start, start + elements * itemsize)}
        assert frame["svg"].count('fill="none"') == len({sector for sector in shown if sector < 32})
        beyond = len({sector for sector in shown if sector >= 32})
        assert (f"({beyond} of them are to the right of this figure)" in frame["svg"]) == (beyond > 0)


def test_boxes_stand_where_the_axes_put_them():
    explorer = WarpExplorer(offset=8)
    frame = explorer._stage.data["frames"][8]
    axes = explorer.chart().figure.axes[0]
    x, _ = axes.transData.transform((32, 0))
    first = re.search(r'<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', frame["svg"])
    assert float(first[1]) == pytest.approx(x, abs=0.06)
    assert float(first[2]) == pytest.approx(axes.bbox.width / 32, abs=0.06)


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = WarpExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert (
        data["text/plain"]
        == metadata["image/png"]["alt"]
        == (
            "A warp fetches 4 sectors and uses 100% of their bytes. fp32, 1 per lane, stride 1, offset 0: "
            "4 sectors, 128 of 128 bytes used"
        )
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int4"}, "no dtype 'int4' here"),
        ({"stride": 5}, "the stride slider has no 5"),
        ({"offset": 99}, "the offset slider has no 99"),
        ({"elements": 3}, "3 elements per lane"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        WarpExplorer(**arguments)
    assert "\n" not in str(error.value)
