"""The kernel stepper: its record against the meter, NumPy and a count by hand; its page in a real browser."""

import math
import re
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from drawn import TAKES_ARROWS, bare_page, touching

from helpers.figures import watch
from helpers.figures.frame.stepper import PAINT, Stepper, _fill, word
from helpers.instruments import cuda_kernel, measure


@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    """Adds.

    Not shown.
    """
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    a = tl.load(a_ptr + element, mask=exists)
    b = tl.load(b_ptr + element, mask=exists).to(tl.float32)
    tl.store(
        y_ptr + element,
        a + b,
        mask=exists,
    )


@triton.jit
def unmasked_kernel(a_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    tl.store(y_ptr + element, a)


@triton.jit
def peaks_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    peak = -float("inf")
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row * columns + start + tl.arange(0, BLOCK))
        peak = tl.maximum(peak, tl.max(x))
    tl.store(y_ptr + row, peak)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def tile(ptr, row, column, stride: tl.constexpr):
    return tl.load(ptr + row[:, None] * stride + column[None, :])


@triton.jit
def matmul_kernel(x_ptr, w_ptr, y_ptr, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tile(x_ptr, rows, k, K)
        w = tile(w_ptr, k, columns, N)
        acc = tl.dot(x, w, acc)
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], relu(acc))


def added():
    a, b = torch.arange(20.0).view(2, 10)
    return add_kernel[(3,)], a, b.half(), torch.empty(10), 10, {"BLOCK": 4}


def peaks():
    return peaks_kernel[(2,)], torch.randn(2, 24), torch.empty(2), 24, {"BLOCK": 8}


def product():
    tensors = torch.randn(2, 32, 32).unbind()
    return matmul_kernel[(2, 2)], *tensors, torch.empty(32, 32), {"K": 32, "N": 32, "BLOCK": 16}


def watched(launch):
    kernel, *arguments, more = launch()
    return watch(kernel, *arguments, **more), kernel, arguments, more


@pytest.mark.parametrize("launch", [added, peaks, product])
def test_bytes_and_sectors_are_the_meters(launch):
    shown, kernel, arguments, more = watched(launch)
    found = measure(lambda: kernel(*arguments, **more))
    steps, moves = shown.recording.steps, [move for step in shown.recording.steps for move in step.moves]
    assert (steps[-1].read, steps[-1].written) == (found.bytes_read, found.bytes_written)
    assert shown.scene.data()["total"] == [found.bytes_read, found.bytes_written]
    assert sum(move.sectors for move in moves) == found.sectors_read + found.sectors_written
    drawn = [shown.recording.memories[move.memory].sectors(move.elements[move.active]).size for move in moves]
    assert drawn == [move.sectors for move in moves]
    for (_, number), line in found.by_line.items():
        of_line = [move for step in steps for move in step.moves if shown.recording.source[step.line][0] <= number]
        assert sum(move.nbytes for move in of_line) >= line.total
    assert sum(line.total for line in found.by_line.values()) == sum(move.nbytes for move in moves)


def test_a_count_by_hand():
    shown, *_ = watched(added)
    assert [(step.read, step.written) for step in shown.recording.steps if step.moves] == [
        (16, 0), (24, 0), (24, 16), (40, 16), (48, 16), (48, 32), (56, 32), (60, 32), (60, 40),
    ]  # fmt: skip
    assert "2 of 4 positions write 8 B of y_ptr in 1 sector, 2 masked" in shown.text


def _codes(shown, *names):
    codes, _ = shown.scene.state(len(shown.scene.frames) - 1)
    grids = [shown.scene.memories[name] for name in names]
    return [codes[grid.first : grid.first + grid.count] for grid in grids]


def test_lines_follow_the_loop_and_the_function_that_is_called():
    shown, *_ = watched(product)
    text = [line.strip() for _, line in shown.recording.source]
    lines = [text[step.line].split(" ")[0] for step in shown.recording.steps if step.program == (1, 0, 0)]
    loop = ["for", "k", "x", "def", "return", "x", "w", "def", "return", "w", "acc"]
    assert lines == [
        "def",
        "rows",
        "columns",
        "acc",
        *loop,
        *loop,
        "for",
        "tl.store(y_ptr",
        "def",
        "return",
        "tl.store(y_ptr",
    ]
    assert all(set(grid) == {"r"} for grid in _codes(shown, "x_ptr", "w_ptr"))  # each is read through the same line
    shown, *_ = watched(added)
    assert [step.line for step in shown.recording.steps][:7] == [0, 1, 2, 3, 4, 5, 0]  # a docstring is not shown
    assert "Not shown" not in str(shown.recording.source)


def test_running_values_are_numpys():
    shown, _, (x, *_), _ = watched(peaks)
    for row in range(2):
        found = [
            step.named["peak"].item()
            for step in shown.recording.steps
            if step.program[0] == row and "peak" in step.named
        ]
        assert found == [-np.inf, *np.maximum.accumulate(x[row].view(3, 8).numpy().max(1))]


def test_what_a_block_is_called_and_holds():
    shown, *_ = watched(added)
    last = [move for step in shown.recording.steps for move in step.moves][-3:]
    assert [(move.name, move.active.tolist()) for move in last] == [
        (name, [True, True, False, False]) for name in ("a", "b", "a + b")
    ]
    assert last[2].values[:2].tolist() == [26, 28]
    codes, texts = shown.scene.state(len(shown.scene.frames) - 1)
    for name in ("a", "b", "a + b"):
        grid = shown.scene.blocks[name, (4,)]
        assert codes[grid.first :][:4] == ["v", "v", "m", "m"]
    y = shown.scene.memories["y_ptr"].first
    assert (codes[y : y + 10], texts[y : y + 3]) == (["w"] * 10, ["10", "12", "14"])


def test_lanes_out_of_bounds_are_shown_and_go_nowhere():
    a, behind = torch.arange(6.0), torch.full((8,), 7.0)
    shown = watch(unmasked_kernel[(2,)], a, behind[:6], BLOCK=4)
    frame = shown.scene.frames[-1]
    assert "2 OUT OF BOUNDS" in frame.text
    assert len(frame.now["outside"]) == 2
    assert shown.scene.state(len(shown.scene.frames) - 1)[0][shown.scene.blocks["a", (4,)].first :][:4] == list("vvoo")
    assert behind[6:].tolist() == [7, 7]


@triton.jit
def sum_kernel(a_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element)
    tl.store(y_ptr + element, a + 1)


def test_what_was_stored_out_of_bounds_is_not_said_to_be_zero():
    frame = (scene := watch(sum_kernel[(3,)], torch.arange(10.0), torch.empty(10), BLOCK=4).scene).frames[-1]
    grid = scene.blocks["a + 1", (4,)]
    assert scene.state(len(scene.frames) - 1)[1][grid.first :][:4] == ["9", "10", "?", "?"]
    assert "in 1 sector," in frame.text  # elements 8 to 11 of fp32 lie in one


@triton.jit
def absorb(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    return higher, total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))


@triton.jit
def online_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    peak = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
        peak, total = absorb(peak, total, x)
    tl.store(y_ptr, total)


def test_a_line_that_returns_shows_what_it_gives_and_names_its_function():
    x = torch.tensor([0.0, 0.5]).repeat_interleave(4)
    shown = watch(online_kernel[(1,)], x, torch.empty(1), 8, BLOCK=4)
    found = measure(lambda: online_kernel[(1,)](x, torch.empty(1), 8, BLOCK=4))
    assert shown.recording.steps[-1].read == found.bytes_read
    second = [frame.text for frame in shown.scene.frames if "gives" in frame.text][1]
    assert re.match(r"Program 0, absorb, line \d+: gives higher = 0.5; gives total ", second)
    assert second.endswith(f" = {4 * math.exp(-0.5):.2f} + 4 = {4 * math.exp(-0.5) + 4:.2f}.")


def test_tensors_of_one_length_line_up_whatever_their_numbers():
    scene = watch(unmasked_kernel[(2,)], torch.ones(8), torch.full((8,), -1234.5), BLOCK=4).scene
    x, y = scene.memories.values()
    assert x.cell == y.cell


def test_a_view_is_drawn_as_it_lies_in_memory():
    x = torch.arange(18.0).view(3, 6)[:, 1:5]
    shown = watch(unmasked_kernel[(1,)], x, torch.empty(4), BLOCK=4)
    grid = shown.scene.memories["a_ptr"]
    assert (grid.columns, grid.count) == (6, 16)
    assert shown.scene.initial[0][1] == "    gg    gg    "
    cells = [round(width / grid.cell[0]) for _, _, width, *_ in shown.scene.frames[2].boxes]
    assert cells == [6, 1]  # one sector, from an element before the view: it goes on in the next row


ROW_SUM = """
__global__ void row_sum(const float* x, float* y, int columns) {
  __shared__ float of_warps[2];
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    sum += x[blockIdx.x * columns + c];
  for (int far = 16; far > 0; far /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, far);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = of_warps[0] + of_warps[1];
  if (threadIdx.x == 0) y[blockIdx.x] = total;
}"""
TWICE = """
__global__ void twice(const float2* x, float2* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i];
}"""


def test_a_cuda_kernel_a_warp_at_a_time():
    x = torch.arange(200.0).view(2, 100)
    arguments = x, torch.empty(2), 100
    kernel = cuda_kernel(ROW_SUM, "row_sum")
    found = measure(kernel[2, 64], *arguments)
    shown = watch(kernel[2, 64], *arguments)
    steps = shown.recording.steps
    assert (steps[-1].read, steps[-1].written) == (found.bytes_read, found.bytes_written)
    assert (shown.traffic.launches, shown.traffic.bytes_total) == (1, found.bytes_total)
    moves = [move for step in steps for move in step.moves]
    assert sum(move.sectors for move in moves) == found.sectors_read + found.sectors_written
    assert shown.scene.data()["programs"] == ["(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"]
    for block in range(2):
        of_block = [step for step in steps if step.program[0] == block]
        lines = [shown.recording.source[step.line][0] for step in of_block if step.program[1] == 1]
        assert lines == [6] * 4 + [8] * 5 + [9]
        sums = [step.named["sum"] for step in of_block if "sum" in step.named and step.program[1] == 0]
        assert sums[1].tolist() == (x[block, :32] + x[block, 64:96]).tolist()
        assert sums[-1].tolist() == [sums[1].sum()] * 32
        total = next(step.named["total"] for step in of_block if "total" in step.named)
        assert total[0] == x[block].sum()
        assert total.mask.tolist() == [False] + [True] * 31  # the compiler moved the sum behind the `if`
    barrier = next(at for at, step in enumerate(steps) if shown.recording.source[step.line][0] == 11)
    assert {step.program[1] for step in steps[:barrier]} == {0, 1}  # all of a block come first
    assert "1 of 32 lanes write 4 B of y in 1 sector, 31 idle" in shown.text
    stored = [[move.values[0] for move in step.moves if move.memory == "y"] for step in steps]
    assert [value for values in stored for value in values] == x.sum(1).tolist()


def test_wide_loads_of_cuda_and_lanes_out_of_bounds():
    x = torch.arange(40.0)
    shown = watch(cuda_kernel(TWICE, "twice")[1, 32], x, torch.empty(40))
    read, written = [move for step in shown.recording.steps for move in step.moves]
    assert read.values[:40].tolist() == x.tolist()
    assert read.outside.tolist() == written.outside.tolist() == [False] * 40 + [True] * 24
    assert (read.nbytes, read.sectors) == (160, 5)
    assert "24 OUT OF BOUNDS" in shown.text


@pytest.mark.parametrize("elements", [5000, 2**11])
def test_a_large_launch_runs_and_says_so_in_one_line(elements):
    a, y = torch.randn(elements), torch.zeros(elements)
    shown = (
        watch(unmasked_kernel[(1,)], a[:4096], y[:4096], BLOCK=2048)
        if elements < 4096
        else watch(unmasked_kernel[(1,)], a, y, BLOCK=4096)
    )
    assert "too large to watch" in repr(shown)
    assert "\n" not in repr(shown)
    assert list(shown._repr_mimebundle_()) == ["text/plain"]
    assert torch.equal(y[:2048], a[:2048])


def test_mistakes_are_named_and_a_debugger_keeps_its_trace():
    with pytest.raises(ValueError, match=r"write watch\(kernel\[grid\]"):
        watch(torch.add, torch.ones(2), torch.ones(2))
    before = sys.gettrace()
    mine = lambda frame, event, argument: None  # noqa: E731
    sys.settrace(mine)
    try:
        watched(added)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "yes"), (12, "12"), (1.0, "1"), (-0.126, "−0.13"), (0.0, "0"), (1234.5, "1234"), (1e-5, "1e-5")],
)
def test_numbers_fit_their_cells(value, shown):
    assert word(value) == shown


def test_the_still_picture_says_what_it_shows():
    bundle, metadata = watched(added)[0]._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == bundle["text/plain"]
    assert bundle["text/plain"].startswith("add_kernel, program 2, step 18 of 18.")
    assert 'alt="add_kernel' in bundle["text/html"]
    assert len(bundle["text/html"]) < 250_000
    figure = watched(product)[0].chart().figure
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.2 < box.x0 < box.x1 < width + 0.2
    assert 0 <= box.y0 < box.y1 <= height + 0.1


# In a browser


@pytest.mark.parametrize("tint", [*PAINT, "read", "written", "outside"])
def test_what_stands_in_a_coloured_cell_of_the_picture_reads(tint):
    """In black, on a tint that no page shines through. WCAG 2.1's contrast ratio."""
    fill = _fill(tint, "1", True, None) if tint in PAINT else _fill("v", "1", True, tint)
    if fill == "none":
        assert tint == "v"
        return
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in fill]
    assert len(fill) == 3
    assert (np.dot([0.2126, 0.7152, 0.0722], linear) + 0.05) / 0.05 > 4.5


@pytest.fixture
def page_of(chromium):
    """A page that shows what `watch` gave."""

    def shown(watched, **options):
        return bare_page(chromium, Stepper, watched.scene.data(), (1024, 768), **options)

    return shown


CELLS = """() => [...document.querySelectorAll('g.memory rect, g.lanes rect')]
    .map(cell => cell.getAttribute('class').split(' ')[0])"""
WORDS = """() => [...document.querySelectorAll('g.memory text:not(.name), g.lanes text:not(.name)')]
    .map(cell => cell.textContent)"""
NAMES = {" ": "empty", "v": "value", "m": "masked", "o": "outside", "r": "read", "w": "written", "g": "gap"}


def at(page):
    return page.locator("[role=status]").inner_text()


def test_the_browser_paints_what_the_picture_does_forwards_and_back(page_of):
    shown, *_ = watched(added)
    page = page_of(shown)
    last = len(shown.scene.frames) - 1
    page.locator("input").focus()
    for key, step in [("Home", 0), *[("ArrowRight", step) for step in range(1, last + 1)], ("ArrowLeft", last - 1)]:
        page.keyboard.press(key)
        codes, texts = shown.scene.state(step)
        assert page.evaluate(CELLS) == [NAMES[code] for code in codes]
        assert page.evaluate(WORDS) == texts
        assert at(page) == f"Step {step + 1} of {last + 1}. {shown.scene.frames[step].text}"
        lit = page.locator(".fusion-stepper-source .lit")
        assert lit.get_attribute("data-line") == str(shown.recording.source[shown.scene.frames[step].line][0])


TILE_CELLS = """() => Object.fromEntries([...document.querySelectorAll('.shaded')].map((grid) =>
    [grid.dataset.place, [...grid.querySelectorAll('path')].flatMap((path) => {
        const [code, ...looks] = path.getAttribute('class').split(' ');
        const shade = parseFloat(path.style.getPropertyValue('--shade')) * 9;
        const kind = [code, Math.round(looks.includes('below') ? -shade : shade)];
        const corners = path.getAttribute('d').matchAll(/M([^ ]+) ([^h]+)/g);
        return [...corners].map(([, x, y]) => [Number(y), Number(x), kind]);
    }).sort((one, other) => one[0] - other[0] || one[1] - other[1]).map(([, , kind]) => kind)]))"""


def test_a_tile_is_drawn_with_an_element_per_look_and_each_cell_as_in_the_picture(page_of):
    """With an element per cell, a step of a tiled kernel took twice as long as one of any other figure."""
    shown, *_ = watched(product)
    page = page_of(shown)
    page.locator("input").focus()
    page.keyboard.press("Home")
    tiles = {str(place): grid for place, grid in enumerate(shown.scene.grids) if not grid.words}
    for step in range(len(shown.scene.frames) // 3):
        codes, texts = shown.scene.state(step)
        drawn = page.evaluate(TILE_CELLS)
        assert set(drawn) == set(tiles)
        for place, grid in tiles.items():
            cells = slice(grid.first, grid.first + grid.count)
            expected = [[NAMES[code], int(text or 0)] for code, text in zip(codes[cells], texts[cells], strict=True)]
            assert drawn[place] == expected
        page.keyboard.press("ArrowRight")
    assert shown.scene.cells > 4000
    assert page.locator(".fusion-stepper-chart *").count() < 500


def test_it_opens_on_the_first_read_and_plays_from_the_start(page_of):
    shown, *_ = watched(added)
    page = page_of(shown)
    first = next(step for step, frame in enumerate(shown.scene.frames) if frame.now["read"])
    assert at(page).startswith(f"Step {first + 1} of 18")
    assert page.evaluate(WORDS) == shown.scene.state(first)[1]
    page.evaluate("""() => {
        window.seen = [];
        const line = document.querySelector('[role=status]');
        new MutationObserver(() => window.seen.push(line.textContent)).observe(line, {childList: true});
    }""")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("window.seen.length > 1")
    assert [text.split(" of ")[0] for text in page.evaluate("window.seen")][:2] == ["Step 1", "Step 2"]


def test_after_a_step_it_plays_on(page_of):
    page = page_of(watched(added)[0])
    page.get_by_role("button", name="Step", exact=True).click()
    begun = int(at(page).split()[1])
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(f"document.querySelector('[role=status]').textContent.startsWith('Step {begun + 1} of')")


def test_mouse_keyboard_and_choice_of_program(page_of):
    page = page_of(watched(added)[0])
    page.get_by_role("button", name="Back to the start").click()
    page.get_by_role("button", name="Step", exact=True).click()
    page.get_by_role("button", name="Step", exact=True).click()
    assert at(page).startswith("Step 3 of 18")
    page.get_by_role("button", name="Step back").click()
    assert at(page).startswith("Step 2 of 18")
    page.locator("select").select_option("2")
    assert at(page).startswith("Step 13 of 18. Program 2")
    page.locator(".fusion-stepper-chart").click()  # the picture takes the keys
    page.keyboard.press("PageUp")
    assert at(page).startswith("Step 7 of 18. Program 1")
    page.keyboard.press("End")
    assert at(page).startswith("Step 18 of 18")
    page.wait_for_function(
        "document.querySelector('.fusion-stepper-bytes').textContent == 'read 60 of 60 Bwritten 40 of 40 B'"
    )


def test_the_arrows_of_the_choice_are_its_own(page_of):
    page = page_of(watched(added)[0])
    page.evaluate(TAKES_ARROWS)
    page.locator("select").focus()
    page.keyboard.press("ArrowDown")
    assert at(page).startswith("Step 7 of 18. Program 1")


def test_it_plays_and_pauses_and_counts(page_of):
    shown = watched(added)[0]
    page = page_of(shown)
    page.locator(".fusion-stepper-source").focus()
    page.keyboard.press("Space")
    page.wait_for_function("parseInt(document.querySelector('[role=status]').textContent.slice(5)) >= 4")
    page.keyboard.press("Space")
    page.get_by_role("button", name="Play").wait_for()
    stopped = at(page)
    page.wait_for_timeout(1000)  # longer than between two steps
    assert at(page) == stopped
    frame = shown.scene.frames[int(stopped.split()[1]) - 1]
    assert frame.read >= 16
    page.wait_for_function(f"document.querySelector('.read b').textContent == '{frame.read}'")


@pytest.mark.parametrize(("motion", "drawn"), [("no-preference", True), ("reduce", False)])
def test_what_flies_stays_still_where_motion_is_unwanted(page_of, motion, drawn):
    page = page_of(watched(added)[0], reduced_motion=motion)
    page.evaluate("""() => { window.drawn = 0; const fill = CanvasRenderingContext2D.prototype.fillRect;
        CanvasRenderingContext2D.prototype.fillRect = function(...a) { window.drawn++; fill.apply(this, a); }; }""")
    page.locator("input").focus()
    for _ in range(15 if drawn else 3):  # a page that stands still for as long as a flight takes draws nothing of it
        page.wait_for_timeout(300)  # who hurries sees nothing fly
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        if page.evaluate("window.drawn"):
            break
    assert (page.evaluate("window.drawn") > 0) == drawn


def test_it_fits_a_narrow_page_and_has_names(page_of):
    page = page_of(watched(product)[0])
    page.set_viewport_size({"width": 700, "height": 768})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    unnamed = (
        "[...document.querySelectorAll('button, input, select')].filter(e => !e.getAttribute('aria-label')).length"
    )
    assert page.evaluate(unnamed) == 0


NAMED = """() => [...document.querySelectorAll('.fusion-stepper-chart .name')].map((name) => {
    const { left, top, right, bottom } = name.getBoundingClientRect();
    return {text: name.textContent, box: [left, top, right, bottom]};
}).filter(({ box }) => box[2] > box[0])"""


@pytest.mark.parametrize("width", [390, 1024])
def test_no_name_touches_another(page_of, width):
    """Each in bold, as it is where its values change, and in capitals, the widest."""
    shown, *_ = watched(added)
    for grid in shown.scene.grids:
        grid.name = "BLOCKS" if not grid.memory else grid.name
    page = page_of(shown)
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate("document.body.lastChild.style.width = '100%'")
    page.wait_for_function("width => Boolean(document.querySelector('.fusion-narrow')) === width < 480", arg=width)
    page.add_style_tag(content=".fusion-stepper-chart .name { font-weight: bold }")
    found = page.evaluate(NAMED)
    assert len(found) > 5
    assert touching(found) == []


SEEN = """() => [...document.querySelectorAll('g.memory, g.lanes')].filter((grid) => {
    const view = document.querySelector('.fusion-stepper-view').getBoundingClientRect();
    const box = grid.getBoundingClientRect();
    return box.height && box.top >= view.top - 1 && box.bottom <= view.bottom + 1;
}).map((grid) => grid.querySelector('.name').textContent.split('  ')[0])"""


@pytest.mark.parametrize("size", [(1440, 900), (836, 900), (760, 900), (390, 844)])
def test_memory_and_what_changes_are_in_sight_together(page_of, size):
    """With the controls, in one window; only the blocks of the function that runs are there."""
    shown, *_ = watched(product)
    page = page_of(shown)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.evaluate("document.body.lastChild.style.width = '100%'")
    page.evaluate("scrollTo(0, document.querySelector('.fusion-stepper').getBoundingClientRect().top + scrollY)")
    if size[0] < 480:
        page.wait_for_selector(".fusion-narrow")
    for _ in range(2):
        page.get_by_role("button", name="To the next read or write").click()
        page.wait_for_timeout(50)
        frame = shown.scene.frames[int(at(page).split()[1]) - 1]
        seen = page.evaluate(SEEN)
        assert {"x_ptr", "w_ptr", "y_ptr"} <= set(seen)
        assert {shown.scene.grids[number].name for number in frame.lit} <= set(seen)
        assert not [name for name in seen if name.startswith("relu: ")]
    boxes = page.evaluate("""() => ['.fusion-stepper-controls', '.fusion-stepper-view'].map((part) => {
        const { top, bottom } = document.querySelector(part).getBoundingClientRect();
        return [top, bottom];
    })""")
    assert boxes[1][1] - boxes[0][0] < size[1]
    sizes = page.evaluate("""() => [...document.querySelectorAll('.fusion-stepper-chart text')]
        .map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)""")
    assert min(sizes) >= (12 if size[0] < 480 else 11)
    # Long lines of code fold.
    assert page.evaluate(
        "(pane => pane.scrollWidth <= pane.clientWidth)(document.querySelector('.fusion-stepper-source'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


HIDDEN_CELLS = """() => {
    const memory = document.querySelector('.fusion-stepper-memory').getBoundingClientRect();
    const busy = [...document.querySelectorAll('.memory :is(.reading, .writing)')]
        .map((cell) => cell.getBoundingClientRect());
    return [busy.length, busy.filter((box) => box.top < memory.top - 1 || box.bottom > memory.bottom + 1).length];
}"""


def test_what_is_read_and_written_is_in_sight_where_memory_is_too_high(page_of):
    """A long row of numbers on a narrow page: memory took all of the view, and scrolled away with what was read."""
    x = torch.arange(96.0)
    shown = watch(add_kernel[(3,)], x, x, torch.empty_like(x), 96, BLOCK=32)
    page = page_of(shown)
    page.set_viewport_size({"width": 390, "height": 700})
    page.evaluate("document.body.lastChild.style.width = '100%'")
    page.wait_for_selector(".fusion-narrow")
    page.wait_for_selector(".fusion-stepper-memory.cut")
    height = "node => node.getBoundingClientRect().height"
    assert page.locator(".fusion-stepper-memory").evaluate(height) < 0.62 * page.locator(
        ".fusion-stepper-view"
    ).evaluate(height)
    page.locator("input").focus()
    page.keyboard.press("Home")
    seen = 0
    for _ in shown.scene.frames:
        busy, hidden = page.evaluate(HIDDEN_CELLS)
        seen += busy
        assert hidden == 0, at(page)
        page.keyboard.press("ArrowRight")
    assert seen >= 3 * 96
