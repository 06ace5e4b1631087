"""A lesson's idea in a small drawing without words, for the maps of the course: one per lesson, by its number.

Orange is unfused, blue fused, pink what one kernel writes and another reads, as in the figures; all else is grey, which
can be seen on a light page and a dark one.
"""

from collections.abc import Iterable

from helpers.style import FUSED, LIMIT, UNFUSED, WRITTEN

WIDTH, HEIGHT = 136, 72


def _box(x: float, y: float, width: float, height: float, fill: str = LIMIT) -> str:
    look = f'stroke="{LIMIT}"' if fill == "none" else f'fill="{fill}"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def _tiles(x: float, y: float, fills: Iterable[str], size: float = 10, gap: float = 2) -> str:
    return "".join(_box(x + at * (size + gap), y, size, size, fill) for at, fill in enumerate(fills))


def _line(path: str, colour: str = LIMIT, width: float = 2) -> str:
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width:g}"/>'


def _dots(places: Iterable[tuple[float, float]], colour: str, radius: float = 4) -> str:
    return "".join(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>' for x, y in places)


def _grid(x: float, y: float, fills: Iterable[Iterable[str]], size: float = 9) -> str:
    return "".join(_tiles(x, y + row * (size + 2), row_fills, size) for row, row_fills in enumerate(fills))


U, F, P, G, N = UNFUSED, FUSED, WRITTEN, LIMIT, "none"  # P is passed on
_STAIRS = (64, 64, 48, 40, 32, 24, 18, 12, 8)
_PEAKS = (44, 30, 36, 20, 26, 10)
IDEAS = {
    # Fewer tiles cross to and from memory.
    "00": lambda: _tiles(8, 16, [U] * 3 + [P] * 4 + [U] * 3) + _tiles(8, 44, [F] * 6),
    # A roof, and an operation that fusing moves up along it.
    "01": lambda: (
        _line("M12 62L74 14H128", G, 3) + _line("M42 46L60 32", F) + _dots([(36, 48)], U) + _box(60, 22, 8, 8, F)
    ),
    # A chain that waits for its launches, and one launch.
    "02": lambda: _tiles(8, 14, [G] * 5, 20, 4) + _tiles(20, 38, [U] * 4, 8, 16) + _box(20, 56, 12, 8, F),
    # Programs of four lanes; the last is masked in part.
    "03": lambda: "".join(
        _grid(12 + 42 * at, 24, fills)
        for at, fills in enumerate(([[F] * 3] * 2, [[F] * 3] * 2, [[F, F, N], [F, N, N]]))
    ),
    # A few lines become many.
    "03b": lambda: (
        "".join(_box(10, 14 + 16 * at, 46, 6, F) for at in range(3))
        + _line("M62 36H76")
        + "".join(_box(82, 8 + 7 * at, 28 + 9 * (at % 3), 3, G) for at in range(8))
    ),
    # The same elements dropped, forward and backward.
    "04": lambda: "".join(_tiles(10, y, [F if at not in (2, 5, 6) else N for at in range(10)]) for y in (16, 44)),
    # Three passes over a row, and one.
    "05": lambda: "".join(_box(12, 12 + 13 * at, 112, 8, U) for at in range(3)) + _box(12, 54, 112, 8, F),
    # A running maximum.
    "06": lambda: (
        _dots([(18 + 20 * at, y + 6) for at, y in enumerate(_PEAKS)], G) + _line("M10 50H38V36H78V26H118V16H130", F, 3)
    ),
    # Occupancy falls in steps.
    "07": lambda: (
        _line("M12 66V8M12 66H128", G, 1)
        + _line("M14 " + "".join(f"{72 - y:g}H{14 + 12 * (at + 1)}V" for at, y in enumerate(_STAIRS)) + "64", F, 3)
    ),
    # A tile of a tile of the result.
    "08": lambda: (
        _box(16, 6, 60, 60, N)
        + _box(36, 26, 30, 30, F)
        + _box(46, 36, 10, 10, U)
        + _box(86, 26, 34, 30, N)
        + _box(86, 36, 34, 10, U)
    ),
    # A window that slides over a grid.
    "09": lambda: (
        _grid(34, 4, [[F if row < 3 and 1 <= at < 4 else N for at in range(6)] for row in range(6)])
        + _box(43, 2, 36, 36, N)
    ),
    # Tiles below the diagonal.
    "10": lambda: _grid(34, 4, [[F if at < row else G if at == row else N for at in range(6)] for row in range(6)]),
    # Forward keeps some; backward computes the others again.
    "11": lambda: (
        _tiles(14, 14, [F, N, F, N, F], 18, 5)
        + _line("M14 38H124M20 34L14 38L20 42", G)
        + _tiles(14, 46, [F, P, F, P, F], 18, 5)
    ),
    # The same numbers in a quarter of the bytes.
    "12": lambda: _tiles(10, 10, [U] * 4, 26, 4) + _tiles(10, 50, [F] * 4, 13, 2),
    # A graph, and where it is cut.
    "13": lambda: (
        _line("M16 36H120", G)
        + _box(8, 22, 62, 28, N)
        + _dots([(20, 36), (39, 36), (58, 36)], F, 6)
        + _dots([(92, 36), (118, 36)], U, 6)
        + _line("M80 18V54", P)
    ),
    # A sum in a tree.
    "14": lambda: (
        "".join(
            _line(f"M{x1} {y1}V{y1 + 10}L{x2} {y1 + 17}", G, 1.5)
            for y1, ends in (
                (10, [(16 + 15 * at, 16 + 15 * (at // 2 * 2) + 7.5) for at in range(8)]),
                (27, [(23.5 + 30 * at, 38.5 + 60 * (at // 2)) for at in range(4)]),
                (44, [(38.5, 68.5), (98.5, 68.5)]),
            )
            for x1, x2 in ends
        )
        + _dots([(16 + 15 * at, 10) for at in range(8)], U, 4)
        + _dots([(68.5, 63)], F, 5)
    ),
    # A step's kernels, the longest first.
    "15": lambda: "".join(
        _box(10, 8 + 10 * at, width, 7, U if at < 2 else G) for at, width in enumerate((118, 84, 46, 30, 18, 10))
    ),
    # What a compiler puts in one kernel.
    "16": lambda: (
        _box(6, 20, 56, 32, N)
        + _tiles(12, 29, [F] * 3, 14, 2)
        + _box(68, 20, 24, 32, N)
        + _tiles(73, 29, [G], 14)
        + _box(98, 20, 32, 32, N)
        + _tiles(101, 30, [F] * 2, 12, 2)
    ),
    # One query, and the keys and values that it reads.
    "17": lambda: (
        _tiles(10, 30, [F], 12) + _line("M26 36H36", G) + "".join(_tiles(40, y, [U] * 8, 9) for y in (14, 26, 38, 50))
    ),
    # Short kernels apart, and in a graph.
    "18": lambda: _tiles(10, 18, [U] * 5, 8, 18) + _tiles(10, 46, [F] * 5, 8, 1),
}


def thumbnail(number: str) -> str:
    """Return the SVG of the lesson of that number; "" if there is none."""
    if number not in IDEAS:
        return ""
    drawn = IDEAS[number]()
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view} fill="none" aria-hidden="true">{drawn}</svg>'
