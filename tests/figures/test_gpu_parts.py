"""The picture's sizes and times are those of data sheets, and its bars are to scale."""

import re

import pytest
from drawn import assert_texts_lie_apart
from matplotlib.patches import FancyBboxPatch, Rectangle

from helpers.figures.memory.gpu_parts import PARTS, gpu_picture, seconds_of
from helpers.instruments.devices import DEVICES


def test_times_of_an_a100_by_hand():
    """Data sheet: 2039 GB/s, 19.5 and 312 TFLOP/s. Guide: 108 SMs at 1.41 GHz, with 128 B and 16 results a clock."""
    took = seconds_of(DEVICES["A100"])
    assert took == pytest.approx(
        {
            "memory": 1e6 / 2039e9,
            "shared memory": 1e6 / (108 * 128 * 1.41e9),
            "special function units": 5e5 / (108 * 16 * 1.41e9),
            "CUDA cores": 1e6 / 19.5e12,
            "tensor cores": 1e6 / 312e12,
        }
    )


@pytest.mark.parametrize("name", ["H200", "T4", "RTX 4090"])
def test_bars_are_to_scale_and_every_text_lies_apart(name):
    figure = gpu_picture(name).figure
    took = seconds_of(DEVICES[name])
    bars = [each for each in figure.axes[0].patches if type(each) is Rectangle]
    lengths = [bar.get_width() for bar in bars]
    assert len(bars) == len(took)
    longest = max(took.values())
    for length, seconds in zip(lengths, took.values(), strict=True):
        assert length / max(lengths) == pytest.approx(seconds / longest, abs=0.006)  # none is too thin to be seen
    assert_texts_lie_apart(figure)


@pytest.mark.parametrize("part", PARTS)
def test_one_part_is_lit(part):
    def lit(chart):
        boxes = [each for each in chart.figure.axes[0].patches if isinstance(each, FancyBboxPatch)]
        return [number for number, box in enumerate(boxes) if box.get_facecolor()[3] > 0]

    chart = gpu_picture("H100", lit=part)
    assert len(lit(chart)) == 1
    assert lit(gpu_picture("H100")) == []
    assert chart.text.startswith(chart.figure.axes[0].texts[0].get_text())
    assert chart.text.endswith(f"Source: {DEVICES['H100'].source}.")
    assert len(chart.png()) < 50_000


@pytest.mark.parametrize(
    ("lit", "finding"),
    [
        # 132 SMs x 65,536 registers x 4 B = 34.6e6 B, over 4814 GB/s
        ("registers", "The registers of 132 SMs hold 33 MiB (34.6 MB), which memory fills in 7.19 µs"),
        ("L2", "L2 holds 60 MiB (62.9 MB), which memory fills in 13.1 µs"),  # over 4814 GB/s
        (None, "While a number arrives from memory, the CUDA cores could do 13.9 multiply-adds on it"),
        ("tensor cores", "While a number arrives from memory, the tensor cores could do 206 multiply-adds on it"),
        ("shared memory", "While a megabyte arrives from memory, shared memory delivers 6.95 of them"),
    ],
)
def test_findings_by_hand(lit, finding):
    assert gpu_picture("H200", lit).text.startswith(f"{finding}.")


def test_sizes_are_of_powers_of_two_and_say_so():
    """Data sheets: 65,536 registers of 4 B and 256 KiB per SM, 60 MiB of L2. A megabyte in the bars is 1e6 B."""
    shown = {text.get_text() for text in gpu_picture("H200").figure.axes[0].texts}
    sizes = {size for text in shown for size in re.findall(r"[\d.]+ [KMG]i?B\b(?!/)", text)}
    assert sizes == {"256 KiB", "60 MiB", "141 GiB"}


def test_what_it_refuses():
    with pytest.raises(ValueError, match="the figure has no part 'HBM': choose from memory"):
        gpu_picture("H200", lit="HBM")
    with pytest.raises(ValueError, match="unknown device"):
        gpu_picture("H2000")
