"""The register explorer: what it shows is what the compiler said, on the right panel and at the right place."""

import re

import pytest
import torch

from benchmarks.experiments.lesson_07 import COLUMNS, chain_gradient_kernel
from helpers.figures.occupancy.register_file import register_file_chart
from helpers.figures.occupancy.register_growth import RegistersExplorer, registers_axes
from helpers.instruments.resources import compile_for

SIZES = (1, 4, 16)


def compiled(steps, gpu):
    row = torch.empty(1, COLUMNS, device="meta")
    return compile_for(chain_gradient_kernel, row, row, row, device=gpu, COLUMNS=COLUMNS, STEPS=steps)


@pytest.fixture(scope="module")
def explorer():
    return RegistersExplorer(compiled, SIZES)


def test_each_frame_says_what_the_compiler_said(explorer):
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(SIZES)
    for index, (steps, frame) in enumerate(zip(SIZES, frames, strict=True)):
        explorer.steps.index = index
        found = compiled(steps, "H100")
        assert frame["text"] == explorer.text == explorer.chart().text
        assert f">{found.registers} registers per thread<" in frame["svg"]
        assert f">{found.spill_bytes} spilled bytes per thread<" in frame["svg"]
        assert f">{found.occupancy().warps} active warps per SM<" in frame["svg"]
    assert "the first to spill is 16" in explorer.text


def test_marks_lie_on_the_curves(explorer):
    growth = explorer._growth
    figure, panels = registers_axes(growth)
    for index, frame in enumerate(explorer._stage.data["frames"]):
        marks = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="(\d+)"', frame["svg"])
        for (x, y, size), axes in zip(marks, panels.values(), strict=True):
            curve = axes.lines[-2].get_xydata()[index]
            expected_x, expected_y = axes.transData.transform(curve)
            assert float(x) + int(size) / 2 == pytest.approx(expected_x, abs=0.1)
            assert float(y) + int(size) / 2 == pytest.approx(figure.bbox.height - expected_y, abs=0.1)


def test_another_gpu_is_compiled_for(explorer):
    asked = []
    other = RegistersExplorer(lambda steps, gpu: asked.append(gpu) or compiled(steps, gpu), (1,), "A100")
    other.device.value = "T4"
    assert asked == ["A100", "T4"]
    assert other.text.startswith("T4: 1 fused step fits in ")
    assert f"{compiled(1, 'T4').occupancy()!r}" in other.text


def test_each_kernel_is_announced_before_it_is_compiled(explorer):
    one, asked, told = explorer._growth.compiled[0], [], []
    other = RegistersExplorer(lambda steps, gpu: asked.append(steps) or one, SIZES, "A100")
    asked.clear()
    other._stage.observe(lambda change: told.append((change["new"], len(asked))), "doing")
    other.device.value = "T4"
    assert told == [
        ("computing ...", 0),
        ("compiling 1 of 3: steps = 1, T4", 0),
        ("compiling 2 of 3: steps = 4, T4", 1),
        ("compiling 3 of 3: steps = 16, T4", 2),
        ("", 3),
    ]


def test_shown_without_a_kernel_it_is_a_picture_and_a_line(explorer):
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert data["image/png"]


@pytest.mark.parametrize(
    ("device", "steps", "message"), [("V100", 1, "not a GPU to compile for"), ("H100", 2, "has no 2")]
)
def test_what_cannot_be_shown_is_refused_in_one_line(device, steps, message):
    with pytest.raises(ValueError, match=message) as refused:
        RegistersExplorer(compiled, SIZES, device, steps)
    assert "\n" not in str(refused.value)


def test_the_register_file_holds_whole_blocks():
    # 41 registers a thread cost a warp 1536; ten warps fit in each quarter: two blocks of 16, not three.
    chart = register_file_chart((9, 0), 512, (32, 41), "title")
    assert chart.text == (
        "title. Blocks of 512 threads on an SM: 32 registers per thread, 4 blocks; 41 registers per thread, 2 blocks."
    )
    boxes = [bar for bar in chart.figure.axes[0].patches if bar.get_width() == 1536 * 16]
    assert [box.get_x() for box in boxes] == [0, 1536 * 16]
