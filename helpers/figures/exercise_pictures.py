"""The picture at the top of each exercise: its kernel's inputs, registers and results for a few elements.

Light grey is memory, blue is held or made on the chip, pink is written by one kernel and read by another, and a dotted
box is a position without an element. It's an SVG in an image tag, drawn for a light page like every still (see
helpers.style): it costs no import of matplotlib, and JupyterLab also shows it in a notebook that it doesn't trust.
"""

import base64
import html
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from helpers.style import FAINT, FONT, FUSED, LIMIT, PAGE_TITLE, SKY_BLUE, STILL_TEXT, UNFUSED, WRITTEN

MEMORY = FAINT
_INK = {FUSED: "white", UNFUSED: "black", WRITTEN: "black", SKY_BLUE: "black"}
SIDE = 26  # pixels: a box for one element
EDGE = 4  # around the picture
LETTER, BOLD = 7.4, 8.4  # pixels, of a wide font such as DejaVu Sans
LINE = 18  # pixels, of the title
PHONE = 560  # pixels: up to this width, the text is legible when a phone scales the picture down


@dataclass(frozen=True)
class Picture:
    """An SVG, the finding that is its title, and a description of both for those who don't see it."""

    svg: str
    width: int
    height: int
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        source = f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"
        fits = ' class="fitting"' if self.width <= PHONE else ""
        size = f'width="{self.width}" height="{self.height}"{fits}'
        shown = f'<figure><img {size} src="{source}" alt="{html.escape(self.text)}"></figure>'
        return {"text/plain": self.text, "text/html": shown}


@dataclass
class _Drawing:
    """Shapes by their place in pixels, y downwards, below a title."""

    title: str
    parts: list[str] = field(default_factory=list)
    right: float = 0  # where the last text to the right ends

    def text(self, x: float, y: float, said: object, anchor: str = "start", ink: str = STILL_TEXT, bold=False) -> None:
        """Write `said` with its middle at the height `y`."""
        weight = ' font-weight="600"' if bold else ""
        long = len(str(said)) * (BOLD if bold else LETTER)
        self.right = max(self.right, x + long * {"start": 1, "middle": 0.5, "end": 0}[anchor])
        self.parts.append(
            f'<text x="{x:g}" y="{y + 5:g}" text-anchor="{anchor}" fill="{ink}"{weight}>{html.escape(str(said))}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, said: object = "", fill: str = MEMORY) -> None:
        """Draw a box with text in its middle; `fill` "none" is an outline, "dotted" a position without an element."""
        dotted = fill == "dotted"
        look = f'fill="{"none" if dotted else fill}" stroke="{LIMIT}"' + (' stroke-dasharray="2 3"' if dotted else "")
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" {look}/>')
        if said != "":
            self.text(x + width / 2, y + height / 2, said, "middle", _INK.get(fill, STILL_TEXT))

    def row(self, x: float, y: float, values: Iterable, fills: str | Sequence[str] = MEMORY, gaps=(), wide=SIDE):
        """Draw one box per value, with a gap before each place in `gaps`; None: a dotted box. Return the right end."""
        values = list(values)
        for at, value in enumerate(values):
            x += 10 if at in gaps else 0
            fill = "dotted" if value is None else fills if isinstance(fills, str) else fills[at]
            self.box(x, y, wide, SIDE, "" if value is None else value, fill)
            x += wide
        return x

    def line(self, *points: tuple[float, float], arrow: bool = True, dashed: bool = False, ink: str = LIMIT) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        end = ' marker-end="url(#end)"' if arrow else ""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.6"{dashes}{end}/>')

    def done(self, width: int, height: int, told: str) -> Picture:
        """Return the picture, wide enough for its text. `told` describes what it shows, apart from its title."""
        width = round(max(width, self.right + 2 * EDGE))
        lines = textwrap.wrap(self.title, int((width - 2 * EDGE) / BOLD))
        head, below = LINE * len(lines) + 8, height + 2 * EDGE
        title = "".join(
            f'<text x="0" y="{LINE * at - head + 10}" font-weight="700" fill="{STILL_TEXT}">{html.escape(line)}</text>'
            for at, line in enumerate(lines)
        )
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-EDGE} {-EDGE - head} {width} {head + below}" '
            f'width="{width}" height="{head + below}" font-family="system-ui, {FONT}" font-size="{PAGE_TITLE}">'
            f'<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{LIMIT}"/></marker></defs>'
            f"{title}{''.join(self.parts)}</svg>"
        )
        return Picture(svg, width, head + below, f"{self.title}. {told}")


def _roofline() -> Picture:
    draw = _Drawing("Left of the ridge memory is the limit, right of it arithmetic is")
    draw.line((70, 0), (70, 190), (450, 190), arrow=False)
    draw.line((70, 190), (220, 40), (450, 40), arrow=False, ink=FUSED)
    draw.line((220, 40), (220, 190), arrow=False, dashed=True)
    draw.text(62, 40, "peak", "end")
    draw.text(62, 8, "FLOP/s", "end")
    draw.text(450, 206, "FLOP/byte", "end")
    draw.text(220, 206, "ridge", "middle")
    draw.text(84, 22, "memory-bound", bold=True)
    draw.text(236, 22, "compute-bound", bold=True)
    draw.text(136, 138, "bandwidth")
    draw.text(136, 156, "× intensity")
    return draw.done(
        466,
        226,
        "A line rises with the intensity, at the bandwidth, until the ridge. From there it is flat.",
    )


def _counted_bytes() -> Picture:
    draw = _Drawing("t is written by one launch and read by the next")
    for x, name, size, fill in ((0, "x", "R × C", MEMORY), (160, "t", "R × C", WRITTEN), (320, "y", "R × C", MEMORY)):
        draw.box(x, 0, 100, SIDE, name, fill)
        draw.text(x + 50, 40, size, "middle")
    for x, name in ((80, "scale"), (240, "bias")):
        draw.box(x - 70, 136, 64, SIDE, name)
        draw.text(x - 38, 176, "C, once", "middle")
    for x, said in ((80, "x × scale"), (240, "t + bias")):
        draw.box(x, 74, 100, 32, said, FUSED)
        draw.line((x - 20, 50), (x + 20, 72))
        draw.line((x - 20, 134), (x + 20, 108))
        draw.line((x + 80, 72), (x + 112, 50))
    return draw.done(
        440,
        192,
        "y = x * scale + bias takes two launches. The first reads x, with R times C elements, and scale, with "
        "C, and writes t. The second reads t and bias and writes y.",
    )


def _blocks(held: str = "s = a + b") -> Picture:
    draw = _Drawing("Each program takes a block of 4; lanes without an element are masked")
    elements = [*range(10), None, None]
    for y, name in ((0, "a"), (32, "b"), (136, "y")):
        draw.text(0, y + SIDE / 2, name)
        draw.row(24, y, elements, gaps=(4, 8))
    for at in range(3):
        x = 24 + at * (4 * SIDE + 10)
        draw.line((x + 52, 62), (x + 52, 78))
        draw.box(x, 80, 4 * SIDE, 32, f"program {at}: {held[0]}", FUSED)
        draw.line((x + 52, 113), (x + 52, 134))
    return draw.done(
        372,
        172,
        "Ten elements of a and b in blocks of 4, 4 and 2. Programs 0, 1 and 2 load one block each, hold "
        f"{held} in a register, and store their block of y. The last two positions of program 2 are empty.",
    )


KEPT: dict[str, Callable[[float, float], bool]] = {"u >= p": lambda u, p: u >= p, "u < 1 - p": lambda u, p: u < 1 - p}


def _dropout(keep: str = "u >= p") -> Picture:
    draw = _Drawing("The mask is made from the seed again, so it is never in memory")
    drawn, p = (0.9, 0.4, 0.1, 0.6, 0.3, 0.8, 0.2, 0.7, 0.5, 0.0), 0.25
    kept = [int(KEPT[keep](u, p)) for u in drawn]
    rows = (
        ("e", range(20, 30), MEMORY),
        ("b", range(10), MEMORY),
        ("u", [f"{u:.1f}".lstrip("0") for u in drawn], FUSED),
        ("keep", kept, [FUSED if each else MEMORY for each in kept]),
    )
    for at, (name, values, fills) in enumerate(rows):
        fills = fills if isinstance(fills, str) else [*fills, "", ""]
        draw.text(0, at * 32 + SIDE / 2, name)
        draw.row(44, at * 32, [*values, None, None], fills, gaps=(4, 8))
    draw.text(44, 146, f"p = {p}: kept where {keep.replace('>=', '≥')}; b: one per column; u: in registers")
    for y, name, before, after in ((166, "forward", "x, b, r", "y"), (202, "backward", "∂L/∂y", "∂L/∂x")):
        draw.text(0, y + 14, name)
        draw.box(74, y, 74, 28, before)
        draw.line((148, y + 14), (180, y + 14))
        draw.box(182, y, 120, 28, "u from the seed", FUSED)
        draw.line((302, y + 14), (330, y + 14))
        draw.box(332, y, 50, 28, after)
    return draw.done(
        430,
        240,
        "A row of 10 elements in blocks of 4, numbered e = 20 to 29, with one bias b per column. For each, u is "
        f"made from the seed in a register, and the element is kept where {keep}, with p = {p}: kept are "
        f"{', '.join(str(20 + at) for at in range(10) if kept[at])}. The forward pass reads x, b and r and writes y; "
        "the backward pass reads the gradient of y and writes that of x. Both make u from the seed.",
    )


def _norm_rows() -> Picture:
    draw = _Drawing("A program holds its whole row, and the positions past its end are masked")
    for at in range(2):
        y = at * 40
        draw.text(0, y + SIDE / 2, f"x, row {at}")
        draw.row(60, y, [*range(5), None, None, None])
        draw.line((270, y + 13), (298, y + 13))
        draw.box(300, y, 90, SIDE, f"program {at}", FUSED)
        draw.line((390, y + 13), (418, y + 13))
        draw.row(420, y, range(5))
        draw.text(556, y + SIDE / 2, "y")
    draw.text(300, 84, "mean, then variance: two sums over the row, in registers", "middle")
    return draw.done(
        576,
        96,
        "Rows of 5 elements in blocks of 8 positions. Each program loads one row, computes its mean and then "
        "its variance in registers, and stores the 5 results.",
    )


def _sum_and_norm(gate: bool = False, by: str = "w") -> tuple[_Drawing, int]:
    draw = _Drawing("s stays in registers between its two uses")
    for y, name in ((0, "x"), (56, "r"), *(((112, "g"),) if gate else ())):
        draw.box(0, y, 44, SIDE, name)
    draw.line((44, 13), (94, 30))
    draw.line((44, 69), (94, 46))
    draw.box(96, 22, 40, 32, "+", FUSED)
    draw.line((136, 38), (164, 38))
    draw.box(166, 22, 40, 32, "s", FUSED)
    draw.line((206, 32), (236, 13), (410 if gate else 330, 13))
    end = 412 if gate else 332
    draw.box(end, 0, 44, SIDE, "s")
    draw.line((194, 54), (194, 74), (212, 74))
    draw.box(214, 58, 98, 32, f"÷ rms × {by}", FUSED)
    if gate:
        draw.line((312, 74), (334, 74))
        draw.box(336, 58, 40, 32, "×", FUSED)
        draw.line((44, 126), (198, 126))
        draw.box(200, 110, 124, 32, "g × sigmoid(g)", FUSED)
        draw.line((324, 126), (356, 126), (356, 92))
        draw.line((376, 74), (410, 74))
    else:
        draw.line((312, 74), (330, 74))
    draw.box(end, 61, 44, SIDE, "y")
    draw.text(end + 52, 13, "the next residual")
    draw.text(end + 52, 74, "the next matmul reads it" if gate else "this layer works on it")
    return draw, end


def _residual_norm(by: str = "w") -> Picture:
    draw, _ = _sum_and_norm(by=by)
    return draw.done(
        556,
        98,
        "x and r are added to s in registers. s is stored, as the next layer's residual, and divided by its "
        f"rms, times {by}, it is y, which this layer works on.",
    )


def _top_two(p: str = ".00 .49 .00 .49 .01") -> Picture:
    first, best, third, _, last = p.split()
    draw = _Drawing("Each round takes the largest probability that is left, the first one if two are equal")
    rows = (
        ("x", (2, 7, 1, 7, 3, None, None, None), ()),
        ("p", (first, best, third, best, last, None, None, None), ()),
        ("round 1", (first, best, third, best, last, -1, -1, -1), (1,)),
        ("round 2", (first, -1, third, best, last, -1, -1, -1), (3,)),
    )
    for at, (name, values, wins) in enumerate(rows):
        y = at * 34
        draw.text(0, y + SIDE / 2, name)
        draw.row(60, y, values, [FUSED if each in wins else MEMORY for each in range(8)], wide=36)
        for each in wins:
            draw.text(360, y + SIDE / 2, f"takes index {each}, value {best}")
    return draw.done(
        600,
        132,
        "One row of 5 elements in a block of 8, with k = 2: 2, 7, 1, 7, 3. Positions past the row's end have "
        f"a probability of -1. Round 1 takes index 1, with {best}; its probability becomes -1. Round 2 takes "
        f"index 3, with {best}.",
    )


def _register_tile() -> Picture:
    draw = _Drawing("More warps: fewer registers per thread, but narrower loads")
    for y, warps, each in ((0, 4, 8), (76, 16, 2)):
        draw.text(0, y + 8, f"num_warps = {warps}: {warps * 32} threads, {each} numbers each")
        for at in range(32):
            mine = at // each % 2 == 0
            draw.box(at * 13, y + 22, 13, 22, "", FUSED if mine else MEMORY)
        draw.text(424, y + 33, f"a load moves {2 * each} bytes")
    return draw.done(
        564,
        128,
        "A tile of 4 rows of 256 numbers, two bytes each. With 4 warps, 128 threads hold 8 numbers each, and "
        "a load moves 16 bytes. With 16 warps, 512 threads hold 2 numbers each, and a load moves 4 bytes.",
    )


def _linear_tile(then: str = "bias, activation") -> Picture:
    draw = _Drawing("A program steps along K, one slice of x and one of W at a time")
    draw.box(190, 0, 150, 90)
    draw.text(180, 45, "Wᵀ, K × N", "end")
    draw.box(244, 0, 40, 90, "", "none")
    draw.box(244, 32, 40, 18, "", FUSED)
    draw.box(0, 106, 174, 84)
    draw.text(0, 204, "x, M × K")
    draw.box(0, 132, 174, 30, "", "none")
    draw.box(66, 132, 36, 30, "", FUSED)
    draw.box(190, 106, 150, 84)
    draw.text(190, 204, "y, M × N")
    draw.box(244, 132, 40, 30, "acc", FUSED)
    draw.line((104, 147), (242, 147))
    draw.line((264, 52), (264, 130))
    draw.text(352, 128, "acc += slice of x @ slice of Wᵀ,")
    draw.text(352, 150, f"then {then}, rounding")
    draw.text(352, 172, "and one store")
    return draw.done(
        566,
        214,
        "Each program computes one tile of y. In each step it loads a slice of x's rows and a slice of the "
        "columns of W transposed, and adds their product to acc. After the last step follow "
        f"{then}, rounding and one store.",
    )


def _convolution() -> Picture:
    draw = _Drawing("A tap that falls into the padding is 0, and is not in memory")
    taps = {(1, 1): 0, (1, 2): 1, (2, 1): 2, (2, 2): 3, (3, 1): 4, (3, 2): 5}
    for column in range(-1, 6):
        draw.text(80 + (column + 1) * SIDE + 13, 8, column, "middle")
    for row in range(-1, 5):
        y = 22 + (row + 1) * SIDE
        draw.text(70, y + 13, f"row {row}", "end")
        for column in range(-1, 6):
            inside = 0 <= row < 4 and 0 <= column < 5
            tap = taps.get((row, column))
            fill = FUSED if tap is not None else MEMORY if inside else "dotted"
            draw.box(80 + (column + 1) * SIDE, y, SIDE, SIDE, "" if tap is None else tap, fill)
    draw.text(280, 48, "output pixel (2, 2): its window begins")
    draw.text(280, 70, "at row 2 − 1, column 2 − 1")
    draw.text(280, 106, "taps 0 to 5, each with all channels:")
    draw.text(280, 128, "6 × channels products in its sum")
    return draw.done(
        530,
        186,
        "An image of 4 rows and 5 columns with padding 1, and a filter of 3 rows and 2 columns with stride 1. "
        "The window of output pixel (2, 2) has rows 1 to 3 and columns 1 and 2: taps 0 and 1, 2 and 3, 4 and "
        "5.",
    )


def _scores() -> Picture:
    draw = _Drawing("Rows without a visible key, and all that is hidden, must be written as 0")
    draw.text(132, 8, "keys")
    for key in range(8):
        draw.text(180 + key * SIDE + 13 + 10 * (key > 3), 8, key, "middle")
    for query in range(8):
        y = 22 + query * SIDE + 10 * (query > 3)
        draw.text(168, y + 13, f"query {query}", "end")
        seen = [2 <= key <= query for key in range(8)]
        draw.row(180, y, ["p" if each else 0 for each in seen], [FUSED if each else MEMORY for each in seen], gaps=(4,))
    for at in range(2):
        y = 22 + at * (4 * SIDE + 10)
        draw.box(0, y, 90, 4 * SIDE, f"program {at}", "none")
    draw.text(412, 56, "first pass: maximum and")
    draw.text(412, 78, "sum of each row")
    draw.text(412, 170, "second pass: the scores")
    draw.text(412, 192, "again, weights stored")
    return draw.done(
        576,
        248,
        "8 queries and keys in tiles of 4 by 4; keys 0 and 1 are padding. A query sees the keys from 2 up to "
        "itself, so queries 0 and 1 see none. Program 0 has queries 0 to 3, program 1 has queries 4 to 7.",
    )


def _flash() -> Picture:
    draw = _Drawing("One pass over the keys: the sums so far are rescaled at each new maximum")
    draw.box(0, 62, 40, 32, "q", FUSED)
    for at in range(3):
        x = 70 + at * 150
        draw.box(x, 0, 110, SIDE, f"k, v: tile {at}")
        draw.line((x + 55, 27), (x + 55, 60))
        draw.box(x, 62, 110, 32, "s, then e", FUSED)
        draw.line((x + 55, 95), (x + 55, 122))
        draw.box(x, 124, 110, 52, "", FUSED)
        times = "" if at == 0 else "× f + "
        draw.text(x + 55, 140, f"acc {times}e @ v".replace("acc e", "acc = e"), "middle", "white")
        draw.text(x + 55, 162, f"sum {times}Σ e".replace("sum Σ", "sum = Σ"), "middle", "white")
        if at < 2:
            draw.line((x + 110, 150), (x + 148, 150))
    draw.line((40, 78), (68, 78))
    draw.line((425, 177), (425, 196))
    draw.box(370, 198, 110, SIDE, "o = acc ÷ sum")
    draw.text(0, 200, "e = exp(s − maximum so far)")
    draw.text(0, 220, "f = exp(old maximum − new one)")
    return draw.done(
        490,
        232,
        "A program holds BLOCK_M queries and loops over tiles of keys and values. For each it computes the "
        "scores s and e = exp(s - maximum so far), multiplies acc and sum by f = exp(old maximum - new one), "
        "and adds e @ v and the sum of e. At the end it stores o = acc / sum, once.",
    )


def _backward_rows() -> Picture:
    draw = _Drawing("Programs take rows in turn, and each has its own sums")
    for row in range(5):
        y, fill = row * 32, (FUSED, SKY_BLUE)[row % 2]
        draw.box(0, y, 150, SIDE, f"grad_y, x: row {row}")
        draw.line((150, y + 13), (178, y + 13))
        draw.box(180, y, 90, SIDE, f"program {row % 2}", fill)
        draw.line((270, y + 13), (298, y + 13))
        draw.box(300, y, 110, SIDE, f"grad_x: row {row}")
    for at, fill in enumerate((FUSED, SKY_BLUE)):
        y = 172 + at * 32
        draw.box(110, y, 160, SIDE, f"sums of program {at}", fill)
        draw.line((270, y + 13), (298, 198 + at * 6))
    draw.box(300, 188, 186, SIDE, "grad_weight, grad_bias")
    draw.text(424, 58, "z and its gate:")
    draw.text(424, 80, "made from x again")
    return draw.done(
        560,
        236,
        "5 rows and 2 programs. Program 0 takes rows 0, 2 and 4, program 1 rows 1 and 3. Each reads grad_y "
        "and x, computes z and its gate from x again, and writes its rows of grad_x. Each sums over its rows "
        "in registers, and the programs' sums are added to grad_weight and grad_bias.",
    )


def _int8() -> Picture:
    draw = _Drawing("The row's largest magnitude sets its scale; the row stays in registers until then")
    rows = (
        ("x", ("2.0", "-1.0", "0.5", "7.0"), MEMORY, ""),
        ("y", ("-0.04", "-1.04", "-0.54", "1.62"), FUSED, "normalised, in registers"),
        ("q", ("-3", "-81", "-42", "127"), MEMORY, "one byte each"),
    )
    for at, (name, values, fill, told) in enumerate(rows):
        y = at * 34 + (34 if at == 2 else 0)
        draw.text(0, y + SIDE / 2, name)
        draw.row(24, y, values, fill, wide=58)
        draw.row(262, y, [None] * 3)
        if told:
            draw.text(352, y + SIDE / 2, told)
    draw.text(24, 81, "largest magnitude 1.62: s = 1.62 ÷ 127 = 0.0128")
    return draw.done(
        530,
        132,
        "A row of 4 elements, with clip 1: 2.0, -1.0, 0.5 and 7.0. Normalised they are -0.04, -1.04, -0.54 "
        "and 1.62, so the scale s is 1.62 / 127 = 0.0128, and the codes q are -3, -81, -42 and 127.",
    )


def _partitions() -> Picture:
    draw = _Drawing("Two kernels write s and read it back; one kernel keeps it")
    for x, together in ((20, False), (280, True)):
        draw.box(x, 0, 54, SIDE, "x")
        draw.box(x + 76, 0, 54, SIDE, "y")
        if together:
            draw.box(x - 14, 44, 204, 142, "", "none")
        draw.line((x + 27, 27), (x + 50, 54))
        draw.line((x + 103, 27), (x + 80, 54))
        draw.box(x + 20, 56, 90, 32, "add", FUSED if together else UNFUSED)
        draw.line((x + 65, 89), (x + 65, 140))
        draw.box(x + 44, 100, 42, SIDE, "s", FUSED if together else WRITTEN)
        draw.box(x + 20, 142, 90, 32, "gelu", FUSED if together else UNFUSED)
        draw.line((x + 65, 175), (x + 65, 202))
        draw.text(x + 78, 198, "result")
        draw.text(x + 96, 113, "in registers" if together else "written, read")
        draw.text(x + 65, 220, "one kernel" if together else "two kernels", "middle", bold=True)
    return draw.done(
        500,
        236,
        "Left, two kernels: add reads x and y and writes s to memory, and gelu reads it. Right, one kernel: "
        "add and gelu, with s in registers.",
    )


def _cuda_block() -> Picture:
    draw = _Drawing("Threads reduce by shuffles in a warp, then through shared memory")
    draw.text(0, 13, "row")
    draw.text(0, 58, "thread")
    for x, said, thread in ((60, "0 … 3", 0), (126, "4 … 7", 1), (222, "124 … 127", 31), (308, "128 … 131", 32)):
        draw.box(x, 0, 64 if thread < 2 else 84, SIDE, said)
        draw.box(x, 45, 64 if thread < 2 else 84, SIDE, thread, FUSED)
    draw.text(199, 58, "…")
    draw.text(396, 58, "…")
    draw.box(414, 0, 84, SIDE, "196 … 199")
    draw.box(414, 45, 84, SIDE, 49, FUSED)
    draw.box(504, 45, 70, SIDE, "50 … 63", "dotted")
    draw.box(60, 92, 246, 28, "warp 0: shuffles", FUSED)
    draw.box(308, 92, 266, 28, "warp 1: shuffles", FUSED)
    draw.line((183, 121), (270, 144))
    draw.line((441, 121), (360, 144))
    draw.box(216, 146, 200, 28, "of_warps[0], of_warps[1]")
    draw.text(428, 160, "shared memory")
    return draw.done(
        586,
        184,
        "A block of two warps and a row of 200, with four elements per load. Threads 0 to 49 have four "
        "elements each; threads 50 to 63 are beyond the row, but they take part in every shuffle and barrier. Each "
        "warp leaves its result in of_warps, in shared memory.",
    )


def _capstone() -> Picture:
    draw = _Drawing("h and r are never in memory: the backward pass makes them again")
    for y, name, before, held, after in (
        (0, "forward", "x, gate, residual", "h, r", ("y",)),
        (56, "backward", "g, x, gate", "h, r, again", ("gradients of x and gate", "sums: a row per program")),
    ):
        draw.text(0, y + 14, name, bold=True)
        draw.box(80, y, 130, 28, before)
        draw.line((210, y + 14), (238, y + 14))
        draw.box(240, y, 100, 28, held, FUSED)
        for at, said in enumerate(after):
            there = y + at * 42
            draw.line((340, y + 14), (378, there + 14))
            draw.box(380, there, 190, 28, said, WRITTEN if at else MEMORY)
    draw.line((475, 127), (475, 142))
    draw.box(380, 144, 190, 28, "gradient of w")
    return draw.done(
        582,
        180,
        "Traffic through memory, one row at a time. The forward pass reads x, gate and residual, holds h and "
        "r in registers, and writes y. The backward pass reads g, x and gate, makes h and r again, and writes "
        "the gradients of x and gate, and one row of sums per program, which are added to the gradient of w.",
    )


def _pass_over_graph() -> Picture:
    draw = _Drawing("The pass replaces eight nodes by one call of the kernel")
    draw.box(0, 0, 40, 28, "x")
    x = 62
    for name, wide in (("pow", 48), ("mean", 54), ("add eps", 70), ("rsqrt", 54)):
        draw.line((x - 22, 14), (x - 2, 14))
        draw.box(x, 0, wide, 28, name, UNFUSED)
        x += wide + 22
    draw.line((358 - 44, 28), (358 - 44, 50))
    for at, (before, name) in enumerate((("", "mul"), ("w", "mul"), ("", "silu"), ("u", "mul"))):
        y = 52 + at * 42
        draw.box(290, y, 50, 28, name, UNFUSED)
        if before:
            draw.box(0, y, 40, 28, before)
            draw.line((40, y + 14), (288, y + 14))
        if at < 3:
            draw.line((315, y + 28), (315, y + 40))
    draw.line((20, 29), (20, 66), (288, 66))
    draw.line((340, 192), (358, 192))
    draw.box(360, 178, 36, 28, "y")
    for at, name in enumerate("xwu"):
        y = 60 + at * 40
        draw.box(430, y, 36, 28, name)
        draw.line((466, y + 14), (490, 114 + (at - 1) * 6))
    draw.box(492, 98, 96, 32, "gated_norm", FUSED)
    draw.line((588, 114), (604, 114))
    draw.box(606, 100, 34, 28, "y")
    draw.text(180, 226, "before", "middle", bold=True)
    draw.text(536, 226, "after", "middle", bold=True)
    return draw.done(
        646,
        242,
        "Before: x goes through pow, mean, add eps and rsqrt, which multiplies x; times w; silu; times u; "
        "that is y. After: gated_norm reads x, w and u, and its result is y.",
    )


def _splits() -> Picture:
    draw = _Drawing("A split without keys must not change the result")
    draw.text(0, 13, "keys")
    draw.row(64, 0, range(8), gaps=(5,))
    for at, (first, last, left) in enumerate(((0, 5, "m, t, a"), (5, 5, "−inf, 0, 0"), (5, 8, "m, t, a"))):
        y = 38 + at * 34
        draw.text(0, y + 13, f"split {at}")
        if last > first:
            draw.box(
                64 + first * SIDE + 10 * (first > 4), y, (last - first) * SIDE, SIDE, f"{last - first} keys", FUSED
            )
        else:
            draw.text(64 + first * SIDE - 34, y + 13, "no keys")
        draw.box(310, y, 90, SIDE, left, WRITTEN)
        draw.line((400, y + 13), (430, 85 + (at - 1) * 8))
    draw.box(432, 69, 74, 32, "merge", FUSED)
    draw.line((506, 85), (526, 85))
    draw.box(528, 71, 40, 28, "o")
    return draw.done(
        580,
        146,
        "8 keys with bounds of 0, 5, 5 and 8. Split 0 has keys 0 to 4, split 1 none, split 2 keys 5 to 7. "
        "Each writes its maximum m, its sum t and its vector a; split 1 writes -inf, 0 and 0. The merge reads "
        "three of each and writes one vector o.",
    )


def _short_kernels() -> Picture:
    draw, _ = _sum_and_norm(gate=True)
    draw.title = "One kernel for five operations; a graph leaves only the gaps between kernels"
    for y, name, calls, kernels in (
        (176, "launched", [0, 62, 124], [44, 106, 168]),
        (252, "graph", [0], [44, 70, 96]),
    ):
        draw.text(0, y + 26, name, bold=True)
        draw.text(110, y + 12, "CPU", "end")
        draw.text(110, y + 42, "GPU", "end")
        for x in calls:
            draw.box(120 + x, y, 58, SIDE, "call", UNFUSED)
        for x in kernels:
            draw.box(120 + x, y + 30, 20, SIDE, "k", FUSED)
    draw.text(330, 202, "kernels wait for the CPU")
    draw.text(330, 278, "only the gaps remain")
    return draw.done(
        630,
        318,
        "x and r are added to s, which is stored as the next residual. s divided by its rms, times w, times g "
        "× sigmoid(g), is y, which the next matmul reads. Launched from Python, each kernel waits for its "
        "call. In a graph, one call starts three kernels with only gaps between them.",
    )


PICTURES: dict[str, Callable[..., Picture]] = {
    "01": _roofline,
    "02": _counted_bytes,
    "03": _blocks,
    "04": _dropout,
    "05": _norm_rows,
    "05b": _residual_norm,
    "06": _top_two,
    "07": _register_tile,
    "08": _linear_tile,
    "09": _convolution,
    "10": _scores,
    "10b": _flash,
    "11": _backward_rows,
    "12": _int8,
    "13": _partitions,
    "14": _cuda_block,
    "15": _capstone,
    "16": _pass_over_graph,
    "17": _splits,
    "18": _short_kernels,
}


def picture(exercise: str, **options: str) -> Picture:
    """Return an exercise's picture by the exercise's number.

    Args:
        options: "03" takes `held`, the register's content; "04" takes `keep`, one of the rules in `KEPT` for keeping an
            element; "05b" takes `by`, the factor; "06" takes `p`, the five probabilities; "08" takes `then`, the steps
            after the sum.
    """
    return PICTURES[exercise](**options)
