"""Animate requests against DRAM traffic: gelu(a + b) as two kernels, with L2 between the SMs and memory.

Which tiles of the sum L2 still has when the second kernel asks for them is what `helpers.instruments.prediction`
predicts: it counts reads that miss, and all writes, as DRAM traffic.
"""

from helpers.figures.frame.animation import Animation, Bar, Counter, Film, MovingBox, Note, Stack, read_legend
from helpers.instruments.devices import DEVICES
from helpers.instruments.dry_run import EagerLaunch, MovedOperand
from helpers.instruments.prediction import L2Cache
from helpers.style import BLUE, PURPLE

TILES = 16  # of each tensor, in the picture
ITEM = 4  # bytes of an element
SIZES = {"1 million": 1_000_000, "4 million": 4_000_000, "100 million": 100_000_000}
WIDTH = 620  # pixels
LEFT, CELL = 96, (20, 14)  # of the tensors' rows
SMS, L2, DRAM, ROW = 34, 112, 182, 24  # tops
SIDE = 440  # of the counters
LONGEST = 170  # pixels of the counters' bars


def traffic(elements: int, device: str = "H200") -> tuple[int, float]:
    """Return the bytes that the two kernels request, and those that cross between L2 and DRAM."""
    nbytes, cache = ITEM * elements, L2Cache(DEVICES[device].l2_cache)
    read, written = MovedOperand(read=nbytes, size=nbytes), MovedOperand(written=nbytes, size=nbytes)
    add = EagerLaunch("add", None, {}, [], [], operands={0: read, 1: read, 2: written})
    gelu = EagerLaunch("gelu", None, {}, [], [], operands={2: read, 3: written})
    return 5 * nbytes, sum(sum(cache.pass_through(each).values()) for each in (add, gelu))


def tiles_in_l2(elements: int, device: str = "H200") -> int:
    """Return how many of the sum's TILES tiles L2 still has when they are read back."""
    requested, crossed = traffic(elements, device)
    return round((requested - crossed) / (ITEM * elements) * TILES)


def _scene(elements: int, device: str) -> Animation:
    kept, (requested, crossed) = tiles_in_l2(elements, device), traffic(elements, device)
    rows = {name: DRAM + 8 + ROW * number for number, name in enumerate(("a", "b", "a + b", "y"))}
    turns, time = 2.0 * 5 * TILES + 4, 0.0  # of the clock: two for each request
    movers, bars, boxes = [], [], []
    crossing, asked = [], []

    def x_of(tile: int) -> float:
        return LEFT + tile * CELL[0]

    def leg(tile: int, top: float, bottom: float, start: float, paint: str) -> None:
        movers.append(
            MovingBox(
                x_of(tile) + 1, top, x_of(tile) + 1, bottom, CELL[0] - 3, CELL[1] - 3, start, start + 1, paint, True
            )
        )  # fmt: skip

    def loaded(name: str, tile: int, paint: str, hit: bool = False) -> None:
        nonlocal time
        if not hit:
            leg(tile, rows[name] + 2, L2 + 16, time, paint)
            read[name, tile] = time
            crossing.append(time + 1)
        leg(tile, L2 + 16, SMS + 22, time + 1, paint)
        asked.append(time + 2)
        time += 2

    def stored(name: str, tile: int, paint: str) -> None:
        nonlocal time
        leg(tile, SMS + 22, L2 + 16, time, paint)
        leg(tile, L2 + 16, rows[name] + 2, time + 1, paint)
        arrived[name, tile] = time + 2
        asked.append(time + 1)
        crossing.append(time + 2)
        time += 2

    arrived = {(name, tile): 0.0 for name in "ab" for tile in range(TILES)}
    read = {}  # from DRAM
    written = []
    for tile in range(TILES):
        loaded("a", tile, BLUE)
        loaded("b", tile, BLUE)
        stored("a + b", tile, PURPLE)
        written.append(time)
    second = time
    for tile in range(TILES):
        hit = tile >= TILES - kept
        if kept:
            # Held after its store until it is read back or evicted.
            held = time + 1 if hit else written[tile] + (second - written[tile]) / 2
            at = x_of(tile) + 1, L2 + 16
            movers.append(MovingBox(*at, *at, CELL[0] - 3, CELL[1] - 3, written[tile] - 1, held, PURPLE))
        loaded("a + b", tile, PURPLE, hit)
        stored("y", tile, BLUE)
    for (name, tile), start in arrived.items():
        paint, at = PURPLE if name == "a + b" else BLUE, (x_of(tile) + 1, rows[name] + 2)
        bars.append(Bar(*at, CELL[0] - 3, CELL[1] - 3, start, start, paint, read=read.get((name, tile))))
    legend, said = read_legend(LEFT - 8, DRAM + 4 * ROW + 26, "read from DRAM")
    bars += legend
    boxes += [(LEFT - 8, SMS, TILES * CELL[0] + 16, 48), (LEFT - 8, L2, TILES * CELL[0] + 16, 42)]
    boxes.append((LEFT - 8, DRAM, TILES * CELL[0] + 16, 4 * ROW + 8))
    notes = [
        Note("SMs", 0, SMS + 28, bold=True), Note("L2", 0, L2 + 25, bold=True),
        Note("DRAM", 0, rows["b"] + 12, bold=True),
        *(Note(name, LEFT - 14, top + 12, "right") for name, top in rows.items()), *said,
    ]  # fmt: skip
    counters = []
    for name, value, top, ends in (
        ("requested from L2", requested, SMS + 74, asked), ("crossed to or from DRAM", crossed, L2 + 67, crossing),
    ):  # fmt: skip
        value /= 1e6
        wide = LONGEST * value / (requested / 1e6)
        notes.append(Note(name, SIDE, top - 14))
        counters.append(Counter(name, "{} MB", SIDE, top + 2, value, 0.0, ends[-1], 0))
        # One step per tile, so that the bar pauses while L2 answers.
        bars += [
            Bar(SIDE + number * wide / len(ends), top + 8, wide / len(ends), 14, end, end, BLUE)
            for number, end in enumerate(sorted(ends))
        ]
    share = 1 - crossed / requested
    answered = {0: "L2 answers no request", TILES: "L2 answers every read of the sum"}
    title = answered.get(
        kept, f"L2 answers {100 * (requested - crossed) / (ITEM * elements):.0f} % of the reads of the sum"
    )
    read_back = (
        "The tiles that L2 still has do not come from DRAM." if kept else "L2 no longer has it: it comes from DRAM."
    )
    less = f"{100 * share:.0f} % less than was requested" if kept else "as much as was requested"
    told = (
        (0.0, "The first kernel reads a and b, adds, and writes the sum."),
        (second, f"The second kernel reads the sum back. {read_back}"),
        (time, f"DRAM moved {less}."),
    )
    title = f"{title}: {elements / 1e6:,.0f} million elements, {device}"
    return Animation(
        (WIDTH, DRAM + 4 * ROW + 34), turns, 14.0, "turns", 1.0, title,
        tuple(movers), tuple(bars), tuple(notes), tuple(counters), tuple(boxes), told, counts=True,
    )  # fmt: skip


def request_animation(device: str = "H200") -> Film:
    """The film, with a choice of how many fp32 elements each tensor has."""
    scenes = {name: _scene(elements, device) for name, elements in SIZES.items()}
    return Film(scenes, "elements", frame=0.72, narrow=Stack(SIDE, LEFT + TILES * CELL[0] + 12))
