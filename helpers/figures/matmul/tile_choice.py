"""A matmul's tile, warps and stages: their demand on L2, registers and shared memory on Hopper; live.

The model, for 16-bit operands and fp32 sums on an SM of compute capability 9.0:

    intensity      2 M N K FLOP of a tile over the 2 (M + N) K bytes that it asks L2 for: M N / (M + N)
    registers      the sums, M N over the threads, and OTHERS for addresses, masks and the epilogue
    shared memory  a stage holds what one step along K needs: 2 (M + N) times the step's length. Products of warp groups
                   (64 rows and more) read their operands there while the next stages arrive; of smaller tiles operands
                   go to registers first, which frees a stage

`compile_for` reports the compiler's result: within a fifth for the registers of tiles that do not spill.
"""

from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context

from helpers.figures.frame.chart import plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import BELOW, Box, Label, Panel, Scene, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.devices import DEVICES
from helpers.instruments.occupancy_calculator import MAX_REGISTERS, WARP, Occupancy, limits, occupancy
from helpers.instruments.prediction import L2_BYTES
from helpers.style import FUSED, LIMIT, STYLE, WRONG

ITEMSIZE = 2  # bytes of an operand's element
OTHERS = 48  # registers per thread: median in tests/figures/test_tile_choice.py, without the accumulators
GROUP_ROWS = 64  # the fewest rows of a warp group's product: PTX ISA, wgmma.mma_async
FEWEST = 2048  # bytes of shared memory that every such kernel has, for storing its accumulators
DEVICE = DEVICES["H200"]
SM = limits(DEVICE.compute_capability)


@dataclass(frozen=True)
class Tiling:
    """A tile of `rows` x `columns` results, summed in steps of `step` along K by `warps`, with `stages` steps in
    flight."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int

    @property
    def intensity(self) -> float:
        """FLOP a byte that the tile asks L2 for, along K."""
        return self.rows * self.columns * 2 / (ITEMSIZE * (self.rows + self.columns))

    @property
    def fed(self) -> float:
        """The share of peak that L2 sustains on the tensor cores."""
        return min(1.0, self.intensity / ridge())

    @property
    def registers(self) -> int:
        """A thread's; more than MAX_REGISTERS spill."""
        return self.rows * self.columns // (self.warps * WARP) + OTHERS

    @property
    def shared_memory(self) -> int:
        """Bytes a block."""
        held = self.stages if self.rows >= GROUP_ROWS and self.warps >= 4 else max(1, self.stages - 1)
        return max(FEWEST, held * self.step * ITEMSIZE * (self.rows + self.columns))

    @property
    def spills(self) -> bool:
        return self.registers > MAX_REGISTERS

    @property
    def fits(self) -> bool:
        return self.shared_memory <= SM.shared_memory_per_block

    def occupancy(self) -> Occupancy | None:
        """The SM's occupancy; None if the block does not fit."""
        if not self.fits:
            return None
        return occupancy(
            DEVICE.compute_capability,
            threads=self.warps * WARP,
            registers=min(self.registers, MAX_REGISTERS),
            dynamic_shared_memory=self.shared_memory,
        )


def ridge() -> float:
    """Return the FLOP per byte of L2 that keeps an SM's tensor cores fed: its FLOP per clock over L2_BYTES."""
    return DEVICE.peak_flops["bf16"] / (DEVICE.sms * DEVICE.sm_clock * L2_BYTES)


def asked(tiling: Tiling, m: int, n: int, k: int) -> int:
    """Bytes of x (m, k) and W (n, k) that all tiles together ask L2 for; m and n multiples of the tile's."""
    return ITEMSIZE * k * (m * n // tiling.columns + m * n // tiling.rows)


SIZE = (576, 208)  # points
PANEL = Panel(150, 398, "share of the limit, on an H200")
ROWS = {"FLOP per byte of L2": 66, "registers per thread": 97, "shared memory": 128, "warps": 159}
BAR = 20
MAX = 1.15  # a bar ends here, of its limit
LARGE = 4096  # rows, columns and K of the example in the text


def scene(tiling: Tiling) -> Scene:
    """A bar for each thing that runs out, its end the limit's share."""
    found = tiling.occupancy()
    share = tiling.intensity / ridge()
    amounts = {
        "FLOP per byte of L2": (share, f"{plain(tiling.intensity)}; the ridge is {plain(ridge())}"),
        "registers per thread": (tiling.registers / MAX_REGISTERS, f"{tiling.registers} of {MAX_REGISTERS}"),
        "shared memory": (
            tiling.shared_memory / SM.shared_memory_per_block,
            f"{tiling.shared_memory // 1024} of {SM.shared_memory_per_block // 1024} KB",
        ),
        "warps": (found.fraction, f"{found.warps} of {SM.warps}: {_blocks(found.blocks)}") if found else (0, "none"),
    }
    boxes, labels = [], []
    for name, (part, label) in amounts.items():
        bad = part > 1 and name in ("registers per thread", "shared memory")
        width = min(part, MAX) * (PANEL.right - PANEL.left)
        if width:
            boxes.append(Box(PANEL.left, ROWS[name], width, BAR, WRONG if bad else FUSED))
        labels.append(Label(label, PANEL.left + MAX * (PANEL.right - PANEL.left) + 8, ROWS[name], "left"))
    what = f"{tiling.rows} x {tiling.columns}, {tiling.warps} warps, {tiling.stages} stages of {tiling.step}"
    told = "; ".join(f"{name} {label}" for name, (_, label) in amounts.items())
    bytes_asked = si(asked(tiling, LARGE, LARGE, LARGE), "B")
    title = finding(tiling)
    whole = f"At {LARGE} x {LARGE} x {LARGE} tiles ask L2 for {bytes_asked}."
    return Scene(title, tuple(boxes), tuple(labels), f"{what}: {told}. {whole} {title}.", whole)


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)}"


def finding(tiling: Tiling) -> str:
    if not tiling.fits:
        return "Does not fit: more shared memory than a block can have"
    if not tiling.occupancy().blocks:
        return "Does not run: its threads need more registers than an SM has"
    if tiling.spills:
        return "Spills: the sums leave no registers for anything else"
    if tiling.fed == 1:
        return "L2 can feed the tensor cores"
    return f"L2 feeds the tensor cores at {tiling.fed:.0%} of their peak"


TILES = ((16, 16), (32, 32), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256))
WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5, 6)
STEPS = (32, 64, 128)


def _axes():
    figure, axes = still(SIZE, ROWS, (PANEL,))
    bottom = SIZE[1] - BELOW
    axes.plot((PANEL.right, PANEL.right), (51, bottom), color=LIMIT, lw=1, ls=":")
    with rc_context(STYLE):
        for x, name in ((PANEL.left, "0"), (PANEL.right, "the limit")):
            axes.text(x, bottom + 12, name, ha="center", va="center_baseline")
    return figure, axes


class TileChoiceExplorer(SceneExplorer):
    """Costs and benefits of a matmul's tile, with sliders for the tile, warps and stages, and a choice of the step.

    Its controls are widgets: `tile` (rows, columns), `warps`, `stages` and `step` (along K); `text` describes the view.
    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    _axes = staticmethod(_axes)
    _bar = BAR

    def __init__(self, tile: tuple[int, int] = (128, 128), warps: int = 8, stages: int = 3, step: int = 64):
        if step not in STEPS:
            raise ValueError(f"no step of {step} along K: choose from {', '.join(map(str, STEPS))}")
        self.tile = slider("tile", TILES, tile, [f"{rows} x {columns}" for rows, columns in TILES])
        self.warps = slider("warps", WARPS, warps)
        self.stages = slider("stages", STAGES, stages)
        self.step = widgets.Dropdown(options=STEPS, value=step, description="K per step")
        super().__init__(FramePlayer(), [self.tile, self.warps, self.stages], [[self.step]])

    def _scene(self, tile: tuple[int, int], warps: int, stages: int) -> Scene:
        return scene(Tiling(*tile, self.step.value, warps, stages))
