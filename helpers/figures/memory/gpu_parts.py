"""A GPU as a figure: parts on and off the chip, their sizes, and the time each takes per megabyte.

The boxes show what is where; the bars below them are to scale in time. Sizes and rates are the device's in devices.toml
(its `source`), and per SM those of NVIDIA's CUDA C++ Programming Guide: see helpers/instruments/devices.py and
occupancy_calculator.py. No vendor publishes L2's speed, so it has a bar only if it was measured.
"""

from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from helpers.figures.frame.chart import Chart, plain, si
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.occupancy_calculator import REGISTERS, limits
from helpers.style import FUSED, LIMIT, SMALL_SIZE, STYLE, TEXT, TITLE_SIZE

MEGABYTE = 1_000_000
NUMBERS = MEGABYTE // 2  # of 16 bits
REGISTER_FILE = 4 * REGISTERS  # bytes per SM
PARTS = (
    "memory",
    "L2",
    "SM",
    "registers",
    "shared memory",
    "CUDA cores",
    "tensor cores",
    "special function units",
)
WIDTH = 576  # points
TOP, SM_HEIGHT = 34, 112
ROW = 17
BARS_LEFT, BARS_RIGHT = 196, 486
WAYS = {
    "memory": "crosses from memory",
    "L2": "crosses from L2",
    "shared memory": "crosses from shared memory",
    "special function units": "an exponential of each number",
    "CUDA cores": "a multiply-add on each number",
    "tensor cores": "as many in the tensor cores",
}


@dataclass(frozen=True)
class Part:
    """A part of the figure, in points, y downwards; `lines` are its name and its contents."""

    part: str
    left: float
    top: float
    width: float
    height: float
    lines: tuple[str, ...]


def seconds_of(device: Device) -> dict[str, float]:
    """Part -> seconds that it takes over a megabyte, 500,000 numbers of 16 bits; on-chip parts: all SMs together.

    Raises:
        ValueError: no GPU of known SMs.
    """
    if device.special_rate is None:
        raise ValueError(f"{device.name} is not a GPU whose SMs are known: choose from {', '.join(DEVICES)}")
    rates = {
        "memory": MEGABYTE / device.memory_bandwidth,
        "L2": MEGABYTE / device.l2_bandwidth if device.l2_bandwidth else None,
        "shared memory": MEGABYTE / device.shared_bandwidth,
        "special function units": NUMBERS / device.special_rate,
        "CUDA cores": 2 * NUMBERS / device.peak_flops["fp32"],
        "tensor cores": 2 * NUMBERS / device.peak_flops["fp16"],
    }
    return {part: seconds for part, seconds in rates.items() if seconds}


def boxes_of(device: Device) -> tuple[Part, ...]:
    of_sm = limits(device.compute_capability)
    shared = of_sm.l1_and_shared_memory
    left, top = 24, TOP + 26
    return (
        Part("SM", 12, TOP, 312, SM_HEIGHT, (f"{device.sms} SMs, each:",)),
        Part("CUDA cores", left, top, 88, 34, ("CUDA cores",)),
        Part("tensor cores", left + 96, top, 88, 34, ("tensor cores",)),
        Part("special function units", left + 192, top, 96, 34, ("special", "function units")),
        Part("registers", left, top + 42, 136, 36, ("registers", f"{REGISTER_FILE // 1024} KiB")),
        Part("shared memory", left + 144, top + 42, 144, 36, ("shared memory and L1", f"{shared // 1024} KiB")),
        Part("L2", 348, TOP, 76, SM_HEIGHT, ("L2", f"{device.l2_cache / 2**20:g} MiB", "for all SMs")),
        Part("memory", 464, TOP, 100, SM_HEIGHT, ("memory", f"{device.memory / 2**30:g} GiB", "next to the chip")),
    )


def finding(device: Device, lit: str | None) -> str:
    """Return the figure's text on the lit part."""
    took = seconds_of(device)
    if lit in ("L2", "registers", "SM"):
        size = device.l2_cache if lit == "L2" else REGISTER_FILE * device.sms
        what = "L2 holds" if lit == "L2" else f"The registers of {device.sms} SMs hold"
        held = f"{size / 2**20:.3g} MiB ({si(size, 'B')})"  # times are of powers of ten, as bandwidths are
        return f"{what} {held}, which memory fills in {si(size / device.memory_bandwidth, 's')}"
    if lit == "shared memory":
        times = plain(took["memory"] / took["shared memory"])
        return f"While a megabyte arrives from memory, shared memory delivers {times} of them"
    unit = lit if lit in ("tensor cores", "special function units") else "CUDA cores"
    what = "exponentials of" if unit == "special function units" else "multiply-adds on"
    return f"While a number arrives from memory, the {unit} could do {plain(took['memory'] / took[unit])} {what} it"


def gpu_picture(device: str | Device = "H200", lit: str | None = None) -> Chart:
    """The parts of a GPU with one of them lit, and bars to scale: how long each takes over a megabyte.

    Args:
        device: a name in DEVICES, or a GPU from there.
        lit: one of PARTS; None lights none.

    Raises:
        ValueError: an unknown part or GPU, or a device whose SMs are not known.
    """
    device = DEVICES[device] if isinstance(device, str) else device
    if lit is not None and lit not in PARTS:
        raise ValueError(f"the figure has no part {lit!r}: choose from {', '.join(PARTS)}")
    took, title = seconds_of(device), finding(device, lit)
    bars = TOP + SM_HEIGHT + 40
    height = bars + ROW * len(took) + 22
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        axes.text(12, 16, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        for box in boxes_of(device):
            _draw_box(axes, box, box.part == lit)
        for left, right in ((324, 348), (424, 464)):
            middle = TOP + SM_HEIGHT / 2
            axes.annotate("", (right, middle), (left, middle), arrowprops={"arrowstyle": "<->", "color": TEXT, "lw": 1})
        axes.text(444, TOP + SM_HEIGHT / 2 - 16, si(device.memory_bandwidth, "B/s"), ha="center", size=SMALL_SIZE)
        axes.text(12, bars - 14, f"{device.name}: a megabyte, {NUMBERS:,} numbers of 16 bits, to scale in time")
        longest = max(took.values())
        for row, (part, seconds) in enumerate(took.items()):
            _draw_bar(axes, bars + ROW * row, part, seconds, longest, part == lit)
    return Chart(figure, _text(device, title, took))


def _draw_box(axes: Axes, box: Part, lit: bool) -> None:
    look = {"fc": FUSED, "ec": TEXT, "lw": 2} if lit else {"fc": "none", "ec": LIMIT, "lw": 1}
    outer = box.part == "SM"
    if outer and lit:  # its parts stay readable
        look["fc"] = (*_rgb(FUSED), 0.25)
    axes.add_patch(
        FancyBboxPatch((box.left, box.top), box.width, box.height, boxstyle="round,pad=0,rounding_size=4", **look)
    )
    colour = "white" if lit and not outer else TEXT
    x, middle = box.left + box.width / 2, box.top + (12 if outer else box.height / 2)
    for number, line in enumerate(box.lines):
        y = middle + 12 * (number - (len(box.lines) - 1) / 2)
        weight = "bold" if number == 0 else "normal"
        axes.text(x, y, line, ha="center", va="center_baseline", color=colour, weight=weight, size=SMALL_SIZE)


def _draw_bar(axes: Axes, y: float, part: str, seconds: float, longest: float, lit: bool) -> None:
    width = max(1.5, (BARS_RIGHT - BARS_LEFT) * seconds / longest)
    weight = "bold" if lit else "normal"
    axes.text(BARS_LEFT - 8, y + 6, WAYS[part], ha="right", va="center_baseline", weight=weight)
    axes.barh(y + 6, width, left=BARS_LEFT, height=11, color=FUSED if lit else LIMIT, edgecolor=TEXT)
    axes.text(BARS_LEFT + width + 6, y + 6, si(seconds, "s"), va="center_baseline", weight=weight)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _text(device: Device, title: str, took: dict[str, float]) -> str:
    held = "; ".join(" ".join(box.lines) for box in boxes_of(device)[4:])
    told = "; ".join(f"{WAYS[part]} {si(seconds, 's')}" for part, seconds in took.items())
    return (
        f"{title}. {device.name}, {device.sms} SMs, each with {held}. A megabyte, {NUMBERS:,} numbers of 16 bits: "
        f"{told}. Source: {device.source}."
    )
