"""The occupancy explorer: what the browser works out is what the calculator says, in words and in every sweep."""

import json
import math
import random
import re
from pathlib import Path

import pytest

from helpers.figures import OccupancyExplorer
from helpers.figures.frame.explorer import script
from helpers.figures.occupancy import occupancy_curves
from helpers.figures.occupancy.occupancy_curves import finding, sm_bars
from helpers.instruments.devices import DEVICES
from helpers.style import FUSED

BY_CAPABILITY = {device.compute_capability: name for name, device in DEVICES.items()}


@pytest.fixture
def frame_of(chromium):
    """`frameOf` of the explorer's script, in a real browser: positions -> frames."""
    page = chromium.new_page()
    code = script(Path(occupancy_curves.__file__).with_name("occupancy.js")).replace("export default", "window.stage =")
    page.evaluate(f"() => {{ {code}; window.frameOf = frameOf; }}")

    def frames(explorer, positions):
        return page.evaluate("([sm, all]) => all.map((p) => frameOf(sm, p))", [explorer._stage.data, positions])

    return frames


def random_positions(explorer, number, seed):
    """Positions of the three sliders, a third of them with few threads or little memory, where steps are short."""
    lengths = [len(slider.options) for slider in (explorer.threads, explorer.registers, explorer.shared_memory)]
    dice = random.Random(seed)
    return [
        [dice.randrange(length if dice.random() < 0.67 else max(2, length // 8)) for length in lengths]
        for _ in range(number)
    ]


def move(explorer, position):
    for slider, index in zip((explorer.threads, explorer.registers, explorer.shared_memory), position, strict=True):
        slider.index = index


@pytest.mark.parametrize("number", [50, pytest.param(150, marks=pytest.mark.long)])
def test_the_browser_agrees_with_helpers_occupancy(frame_of, number):
    for name in BY_CAPABILITY.values():  # one of each compute capability
        explorer = OccupancyExplorer(name, shared_memory=2177)
        positions = random_positions(explorer, number, seed=name)
        drawn = 0
        for position, frame in zip(positions, frame_of(explorer, positions), strict=True):
            move(explorer, position)
            assert frame["text"] == explorer.text
            if not frame["svg"]:
                assert "more than a block can have" in explorer.text
                continue
            drawn += 1
            found = explorer._occupancy()
            assert f">{finding(found)}<" in frame["svg"]
            for bar in sm_bars(found):
                assert f">{bar.name}<" in frame["svg"]
                assert f">{bar.used}<" in frame["svg"]
            filled = re.findall(r"<g data-bar=[^>]*>(.*?)</g>", frame["svg"])
            assert [each.count("<rect") for each in filled] == [found.blocks] * 3
            counts = [found.allowed[resource] for resource in ("warps", "registers", "shared memory", "blocks")]
            assert re.findall("<td>([a-z0-9 ]+)", frame["table"]) == [
                "no limit" if count == math.inf else f"{count}" for count in counts
            ]
        assert drawn > number / 4


def test_a_wrong_table_would_be_found(frame_of):
    explorer = OccupancyExplorer("H100")
    explorer._stage.data["by_registers"][7][70] += 1
    explorer.registers.value = 70
    frame = frame_of(explorer, [[7, 69, 0]])[0]
    explorer._stage.data["by_registers"][7][70] -= 1
    assert frame["text"] != explorer.text


def drawn_warps(path, panel, values):
    """What a sweep's path shows at each value: it goes right to a step's last value, then up or down to the next."""
    start, *steps = re.findall(r"[MHV][0-9. ]+", path)
    heights = [float(start[1:].split()[1]), *(float(step[1:]) for step in steps if step[0] == "V")]
    ends = [float(step[1:]) for step in steps if step[0] == "H"]
    scale = (panel["bottom"] - panel["top"]) / panel["most"]
    for value in values:
        x = panel["left"] + value / panel["largest"] * (panel["right"] - panel["left"])
        number = next(index for index, end in enumerate(ends) if end >= x - 0.051)  # drawn to a tenth of a point
        yield (panel["bottom"] - heights[number]) / scale


def test_the_sweeps_drawn_are_those_of_the_calculator(frame_of):
    for name in ("V100", "RTX 4090", "H100"):
        explorer = OccupancyExplorer(name, shared_memory=2177)
        positions = [p for p in random_positions(explorer, 150, seed=f"{name} sweeps") if p[2] < 60][:20]
        for position, frame in zip(positions, frame_of(explorer, positions), strict=True):
            move(explorer, position)
            paths = re.findall(r'<path d="([^"]+)"[^>]*data-sweep="([^"]+)"', frame["svg"])
            assert [resource for _, resource in paths] == ["threads", "registers", "shared memory"]
            for path, resource in paths:
                sweep = explorer._occupancy().sweep(resource)
                panel = explorer._stage.data["panels"][resource]
                assert list(drawn_warps(path, panel, sweep.values)) == pytest.approx(sweep.warps, abs=0.1)


def test_the_open_mark_stands_where_one_more_block_fits(frame_of):
    explorer = OccupancyExplorer("H100", threads=256, registers=70)
    (frame,) = frame_of(explorer, [[7, 69, 0]])
    assert explorer._occupancy().one_more_block == {"registers": 6}
    assert ">64: one more block<" in frame["svg"]
    panel = explorer._stage.data["panels"]["registers"]
    x = panel["left"] + 64 / panel["largest"] * (panel["right"] - panel["left"])
    y = panel["bottom"] - 32 / panel["most"] * (panel["bottom"] - panel["top"])
    open_x, open_y = map(float, re.search(r'fill="none"[^>]*translate\(([0-9.]+) ([0-9.]+)\)', frame["svg"]).groups())
    assert (open_x, open_y) == pytest.approx((x, y), abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "blue"),
    [
        ({"threads": 128, "registers": 128}, ["registers"]),
        ({"threads": 128, "registers": 32}, ["threads", "registers"]),
        ({"threads": 32, "registers": 16}, []),  # the SM's number of blocks limits
    ],
)
def test_the_line_and_mark_of_what_limits_are_blue(frame_of, arguments, blue):
    explorer = OccupancyExplorer("H100", **arguments)
    positions = [explorer.threads.index, explorer.registers.index, explorer.shared_memory.index]
    (frame,) = frame_of(explorer, [positions])
    lines = {resource: colour for colour, resource in re.findall(
        r'<path [^>]*stroke="([^"]+)"[^>]*data-sweep="([^"]+)"', frame["svg"]
    )}  # fmt: skip
    assert [resource for resource, colour in lines.items() if colour == FUSED] == blue
    assert re.findall(r'fill="([^"]+)" stroke="currentColor" data-mark', frame["svg"]).count(FUSED) == len(blue)
    panels = explorer.chart().figure.axes
    drawn = [[line.get_color() for line in axes.lines if line.get_drawstyle() == "steps-pre"] for axes in panels]
    assert [colours == [FUSED] for colours in drawn] == [
        name in blue for name in ("threads", "registers", "shared memory")
    ]


def test_a_control_that_there_is_not_cannot_be_the_first():
    with pytest.raises(ValueError, match="no control 'warps' here: choose from threads, registers, shared memory, GPU"):
        OccupancyExplorer(first="warps")


def test_the_text_by_hand():
    # 70 registers are 2304 a warp; a quarter of the SM's 65536 holds 7 such warps, so 28 warps fit: 3 blocks of 8.
    assert OccupancyExplorer("H100", threads=256, registers=70, shared_memory=1024).text == (
        "H100, 256 threads, 70 registers, 1 KB of shared memory: 3 blocks, 24 of 64 warps (38%), limited by registers: "
        "to fit one more block, use 6 fewer registers per thread."
    )


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = OccupancyExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]


def test_memory_that_a_gpu_does_not_have_is_said():
    explorer = OccupancyExplorer("H100", shared_memory=100 * 1024)
    explorer.device.value = "T4"
    assert explorer.text == (
        "102400 B of shared memory is 36864 B more than a block can have on compute capability 7.5: at most 65536 B"
    )
    assert "image/png" not in explorer._repr_mimebundle_()
    explorer.device.value = "A100"
    assert explorer.text.startswith("A100, 256 threads, 64 registers, 100 KB of shared memory: 1 block,")


def test_what_is_sent_stays_small():
    explorer = OccupancyExplorer()
    assert len(json.dumps(explorer._stage.data)) + len(explorer._stage.still) < 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "H1000"}, "unknown device"),
        ({"threads": 0}, "threads per block: 1 to 1024, not 0"),
        ({"threads": 1025}, "threads per block: 1 to 1024, not 1025"),
        ({"threads": 100}, "the threads slider has no 100: choose from 32, 64, ..., 1024"),
        ({"registers": 0}, "the registers slider has no 0"),
        ({"registers": 256}, "registers per thread: 0 to 255, not 256"),
        ({"shared_memory": 232449}, "232449 B of shared memory is 1 B more than a block can have"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        OccupancyExplorer(**arguments)
    assert "\n" not in str(error.value)
