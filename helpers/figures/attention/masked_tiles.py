"""Animate attention without the matrix of scores: tiles of queries against tiles of keys, under several masks."""

from helpers.figures.frame.animation import Animation, Bar, Counter, Film, MovingBox, Note, Stack, read_legend
from helpers.style import FUSED, GREEN, LIMIT, SKY_BLUE

TOKENS, TILE = 512, 64
TILES = TOKENS // TILE
WINDOW = 128  # keys that a query sees under the window, itself the last
DOCUMENT = 192  # tokens of the first of two documents
# Whether a query sees a key.
MASKS = {
    "causal": lambda query, key: key <= query,
    "none": lambda query, key: True,
    f"window of {WINDOW}": lambda query, key: query - WINDOW < key <= query,
    "two documents": lambda query, key: key <= query and (key < DOCUMENT) == (query < DOCUMENT),
}
WIDTH, TOP, LEFT, CELL = 620, 78, 92, 25  # pixels
DOT = 5  # pixels
SIDE = 344  # left edge of the chip and the counters
KINDS = ("hidden", "cut", "whole")


def kind_of(mask: str, row: int, column: int) -> str:
    """Return whether the queries of a tile see all its keys ("whole"), some ("cut") or none ("hidden")."""
    sees = MASKS[mask]
    seen = sum(
        sees(query, key)
        for query in range(row * TILE, (row + 1) * TILE)
        for key in range(column * TILE, (column + 1) * TILE)
    )
    return "whole" if seen == TILE**2 else "cut" if seen else "hidden"


def kinds(mask: str) -> list[list[str]]:
    """Return the kind of each tile, a list for each tile of queries."""
    return [[kind_of(mask, row, column) for column in range(TILES)] for row in range(TILES)]


def _scene(mask: str) -> Animation:
    found, movers, bars = kinds(mask), [], []
    count = {kind: sum(row.count(kind) for row in found) for kind in KINDS}
    time, right = 0.0, LEFT + TILES * CELL
    for row, of_row in enumerate(found):
        y, started, read = TOP + row * CELL, time, {}
        for column, kind in enumerate(of_row):
            x = LEFT + column * CELL
            if kind == "hidden":
                continue
            # A dot until it is computed, filled while it exists, then an outline.
            paint = FUSED if kind == "whole" else LIMIT
            dot, at, size = (CELL - DOT) / 2, (x + 3, y + 3), (CELL - 6, CELL - 6)
            movers.append(MovingBox(x + dot, y + dot, x + dot, y + dot, DOT, DOT, -1.0, time, paint))
            movers.append(MovingBox(*at, *at, *size, time, time + 1, paint))
            bars.append(Bar(*at, *size, time + 1, time + 1, paint, read=-1.0))
            read[column] = time
            # The tile is folded into the running maximum, sum and output, and is gone.
            movers.append(MovingBox(x + 2, y + 8, SIDE + 8, TOP + 34, 10, 10, time + 0.5, time + 1, paint))
            time += 1
        at = LEFT - 21, y + 2
        bars.append(Bar(*at, 13, CELL - 4, 0.0, 0.0, SKY_BLUE, read=started))
        movers.append(MovingBox(*at, *at, 13, CELL - 4, started, time, SKY_BLUE, True))
        # Every program reads its keys again: all wait when it starts.
        for column in range(TILES):
            at, until = (LEFT + column * CELL + 2, TOP - 21), read.get(column, time)
            movers.append(MovingBox(*at, *at, CELL - 4, 13, started, until, SKY_BLUE))
            if column in read:
                movers.append(MovingBox(*at, *at, CELL - 4, 13, until, until + 1, SKY_BLUE, True))
        movers.append(MovingBox(SIDE + 22, TOP + 46, right + 7, y + 2, 13, CELL - 4, time - 0.4, time, GREEN))
        bars.append(Bar(right + 7, y + 2, 13, CELL - 4, time, time, GREEN))
        for share in range(round(time - started)):  # the sum grows with each tile
            done = started + share + 1
            width = 120 * (share + 1) / TILES
            movers.append(MovingBox(SIDE + 22, TOP + 34, SIDE + 22, TOP + 34, width, 9, done, max(done, time), GREEN))
    for place in range(TILES):
        bars.append(Bar(LEFT + place * CELL + 2, TOP - 21, CELL - 4, 13, 0.0, 0.0, SKY_BLUE, read=-1.0))
    legend, said = read_legend(SIDE, TOP + 106, "read, or dropped")
    bars += legend
    computed = count["whole"] + count["cut"]
    boxes = (
        (LEFT, TOP, TILES * CELL, TILES * CELL),
        (right + 5, TOP, 17, TILES * CELL),
        (SIDE, TOP, WIDTH - SIDE - 4, 62),
    )
    notes = (
        Note("keys, values", LEFT, TOP - 28), Note("queries", LEFT - 28, TOP + 14, "right"),
        Note("output", right + 4, TOP - 8),
        Note("on the chip: maximum, sum, output", SIDE + 8, TOP + 18),
        Note("blue: no mask needed; grey: masked", SIDE, TOP + 88),
        *said, Note("dot: to come; empty: never computed", SIDE, TOP + 124),
        Note("tiles of scores computed", SIDE, TOP + 150),
        Note("scores in memory: 0", SIDE, TOP + 192),
    )  # fmt: skip
    told = (
        (0.0, "A program takes a tile of queries and loops over the keys, one tile at a time."),
        (float(len([kind for kind in found[0] if kind != "hidden"])), "Each tile of scores is used and dropped."),
        (time, "Each output is written once, and the score matrix was never in memory."),
    )
    title = "The scores exist one tile at a time" + {"none": ""}.get(mask, "; hidden tiles are skipped")
    return Animation(
        (WIDTH, TOP + TILES * CELL + 10), time, 12.0, "tiles", 1.0, title, tuple(movers), tuple(bars), notes,
        (Counter("tiles of scores computed", f"{{}} of {TILES**2}", SIDE, TOP + 168, computed, 0.0, time, 0, True),),
        boxes, told, counts=True,
    )  # fmt: skip


def mask_animation() -> Film:
    """The film, with a choice of mask."""
    scenes = {mask: _scene(mask) for mask in MASKS}
    return Film(scenes, "mask", frame=0.56, narrow=Stack(SIDE, SIDE))
