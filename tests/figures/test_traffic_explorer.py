"""The live traffic of an operation: against the meter, by hand, and frame by frame against the picture."""

import math
import re

import pytest
import torch
from drawn import assert_texts_lie_apart
from torch.nn import functional

from helpers.figures.memory.operation_traffic import COLUMNS, ROWS, SHOWN, TrafficExplorer, operation_scene
from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import OPERATIONS
from helpers.instruments.traffic import measure


def test_add_gelu_is_what_the_meter_says():
    a, b = torch.randn(2, 64, 1000)
    metered = measure(lambda: functional.gelu(a + b, approximate="tanh"))
    explorer = TrafficExplorer(rows=64)
    shown = explorer._scene(64, 1000)
    unfused = [box for box in shown.boxes if box.y == shown.boxes[0].y]
    moved = [(each.read, each.written) for _, each in metered.by_launch]
    scale = unfused[0].width / moved[0][0]
    assert [box.width / scale for box in unfused] == pytest.approx([part for launch in moved for part in launch])
    assert "unfused 2 launches, 1.28 MB" in shown.text  # 20 B each of 64,000


def test_the_text_by_hand():
    # 2^24 numbers of 2 bytes; softmax: eight trips and the rows' maxima and sums, against one in, one out.
    assert TrafficExplorer("softmax", "bf16", "H100", 4096, 4096).text == (
        "H100 (3.35 TB/s), softmax in bf16, 4,096 x 4,096: unfused 5 launches, 268 MB, 80.1 µs; "
        "fused 1 launch, 67.1 MB, 20 µs. Fusing moves 4.00x fewer bytes."
    )
    assert TrafficExplorer("ReLU").text.endswith("Nothing to fuse: it is one launch already.")


def test_a_size_a_dtype_and_a_gpu_look_like_their_time():
    """On the ruler, a thousand times the time is always as far; the bars above compare the launches of one size."""

    def ends(device: str, dtype: str, rows: int) -> float:
        shown = TrafficExplorer("add+GELU", dtype, device, rows, 4096)._scene(rows, 4096)
        return shown.boxes[-1].width

    h200 = ends("H200", "fp32", 1024)
    decade = (ends("H200", "fp32", 65536) - h200) / math.log10(64)
    assert decade > 40, "points a factor of ten"
    assert h200 - ends("H200", "bf16", 1024) == pytest.approx(decade * math.log10(2))
    bandwidths = DEVICES["H200"].memory_bandwidth / DEVICES["T4"].memory_bandwidth
    assert ends("T4", "fp32", 1024) - h200 == pytest.approx(decade * math.log10(bandwidths))


def test_a_time_below_that_of_a_launch_is_said_to_be_so():
    text = TrafficExplorer("add+GELU", "fp32", "H200", 1, 1000).text
    assert "unfused 2 launches, 20 kB, 4.15 ns for the bytes, but launching takes 3.35 µs" in text
    assert "launching" not in TrafficExplorer("add+GELU", "fp32", "H200", 1024, 1000).text


@pytest.mark.parametrize("operation", SHOWN)
def test_every_frame_is_that_of_its_sliders(operation):
    explorer = TrafficExplorer()
    explorer.operation.value, explorer.dtype.value, explorer.device.value = operation, "fp16", "T4"
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(ROWS) * len(COLUMNS)
    for rows, columns in ((ROWS[0], COLUMNS[-1]), (ROWS[-1], COLUMNS[1])):
        explorer.rows.value, explorer.columns.value = rows, columns
        frame, chart = frames[ROWS.index(rows) * len(COLUMNS) + COLUMNS.index(columns)], explorer.chart()
        assert frame["text"] == explorer.text == repr(chart)
        widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', frame["svg"])]
        assert widths == pytest.approx([bar.get_width() for bar in chart.figure.axes[0].patches], abs=0.06)


@pytest.mark.parametrize("operation", SHOWN)
def test_every_text_lies_on_the_picture_and_none_on_another(operation):
    for rows, columns in ((1, 256), (65536, 16384)):
        figure = TrafficExplorer(operation, "fp32", "RTX 4090", rows, columns).chart().figure
        assert_texts_lie_apart(figure)


def test_bars_are_as_long_as_the_bytes():
    versions = OPERATIONS["LayerNorm"](1000, 1000, 4)
    shown = operation_scene(versions, DEVICES["A100"], "what")
    rows = sorted({box.y for box in shown.boxes})
    lengths = [sum(box.width for box in shown.boxes if box.y == row) for row in rows]
    bytes_moved = [sum(launch.work.bytes for launch in each) for each in (versions.unfused, versions.fused)]
    assert lengths[0] / lengths[1] == pytest.approx(bytes_moved[0] / bytes_moved[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operation": "attention"}, "'attention' in 'fp32': choose from ReLU"),
        ({"dtype": "int4"}, "in 'int4': choose from"),
        ({"device": "H1000"}, "unknown device"),
        ({"rows": 5}, "the rows slider has no 5"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        TrafficExplorer(**arguments)
    assert "\n" not in str(error.value)
