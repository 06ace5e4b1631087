"""The traffic animation and the launch timeline: their numbers against the meter and the record; the film's page."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from drawn import TAKES_ARROWS, bare_page, touching
from torch.nn.functional import gelu, layer_norm

from helpers.figures.attention.masked_tiles import CELL, DOT, LEFT, MASKS, TILE, TOP, kinds, mask_animation
from helpers.figures.frame.animation import Animation, Bar, Counter, Film, FilmStage, MovingBox, Note, Stack
from helpers.figures.frame.chart import si
from helpers.figures.fusion.chain_cuts import bytes_after, chain_animation
from helpers.figures.launches.launch_animation import SIZES, launch_timeline, ways
from helpers.figures.memory.moving_bytes import TILES, traffic_animation, trips
from helpers.figures.memory.pass_counts import LEGEND, PASSES, ROW, passes_animation
from helpers.figures.memory.pass_counts import TILES as TILES_OF_PASSES
from helpers.figures.memory.pass_counts import TOP as PASS_TOP
from helpers.figures.memory.requests_and_dram import SIZES as REQUEST_SIZES
from helpers.figures.memory.requests_and_dram import TILES as REQUEST_TILES
from helpers.figures.memory.requests_and_dram import request_animation, tiles_in_l2, traffic
from helpers.figures.occupancy.source_to_sass import compiler_animation, lifetimes, registers_of
from helpers.figures.performance.two_limits import limits, two_limits_animation
from helpers.figures.rowwise.block_sum import block_sum_animation, held, shuffles
from helpers.instruments import DEVICES, compile_for, measure, recorded
from helpers.instruments.dry_run import dry_run
from helpers.instruments.fusion import analyse
from helpers.instruments.prediction import L2Cache
from helpers.instruments.sass import Instruction
from helpers.style import FUSED, PURPLE, UNFUSED
from kernels import add_gelu

H200 = recorded("h200")


def test_the_animations_bytes_are_the_meters_and_its_times_the_record():
    a, b = torch.randn(2, 1000)
    unfused, fused = measure(lambda: gelu(a + b, approximate="tanh")), measure(add_gelu, a, b)
    scene = traffic_animation(H200).scenes["add + GELU"]
    for way, found in (("unfused", unfused), ("fused", fused)):
        crossed, clock = (counter for counter in scene.counters if counter.name == way)
        assert crossed.value * 1e9 / 100_000_000 == found.bytes_total / a.numel()
        assert len(trips(way == "fused")) / TILES * 4 == found.bytes_total / a.numel()
        recorded_time = H200.times("add_gelu", (100_000_000,), "float32")["eager" if way == "unfused" else "fused"]
        assert clock.value == pytest.approx(1e6 * recorded_time.median)
    assert scene.seconds == pytest.approx(
        max(counter.value for counter in scene.counters if "µs" in counter.text) / 1e6
    )


def test_the_memory_is_framed_and_named():
    scene = traffic_animation(H200).scenes["add + GELU"]
    names = [note for note in scene.notes if note.text == "memory"]
    assert len(names) == 2
    for name in names:
        [(x, top, width, height)] = [box for box in scene.boxes if box[0] + box[2] == name.x]
        assert 3 <= top - name.y <= 5
        rows = [bar for bar in scene.bars if x < bar.x < x + width and bar.y < 180]
        assert len(rows) > 2 * TILES
        assert all(top < bar.y and bar.y + bar.height < top + height for bar in rows)


def test_the_registers_name_is_right_below_its_box():
    """With what leaves the chip below the name."""
    scene = traffic_animation(H200).scenes["add + GELU"]
    names = [note for note in scene.notes if note.text == "register"]
    sums = [note for note in scene.notes if note.text == "a + b" and note.align == "center"]
    assert len(names) == len(sums) == 2
    for name, total in zip(names, sums, strict=True):
        [bottom] = [y + h for x, y, w, h in scene.boxes if x + w / 2 == total.x and y < total.y < y + h and w < 60]
        assert 9 <= name.y - bottom <= 12
        assert not [each for each in scene.movers if name.y - 8 < each.y0 < name.y and each.y0 == each.y1]


def test_where_the_bytes_are_still_to_be_found_the_animation_counts_none():
    """Nor tiles: sixteen are a tensor, so their number gives the bytes."""
    film = traffic_animation(H200, count=False)
    assert all("µs" in counter.text for counter in film.scenes["add + GELU"].counters)
    assert not re.search("GB|crossed", json.dumps(film.data()) + film.text)


def test_the_sum_makes_its_round_trip_in_order():
    unfused = trips(fused=False)
    for tile in range(TILES):
        out, back = unfused.index(("a + b", tile, False)), unfused.index(("a + b", tile, True))
        assert unfused.index(("a", tile, True)) < out < back < unfused.index(("y", tile, False))
    assert not [name for name, *_ in trips(fused=True) if name == "a + b"]


@pytest.mark.parametrize("numbers", SIZES)
def test_the_timeline_ends_as_recorded(numbers):
    found, gpu = ways(H200, numbers), H200.experiment("chain_sizes")[numbers]["gpu"]
    assert found["a CUDA graph"].gpu == found["eager"].gpu == gpu["eager"].median
    assert found["one Triton kernel"].gpu == gpu["fused"].median
    scene = launch_timeline(H200).scenes[f"{numbers:,}"]
    ends = {counter.name: counter.value / 1e6 for counter in scene.counters}
    for name, chain in found.items():
        assert ends[name] >= max(chain.cpu, chain.gpu) - 1e-12
        assert ends[name] <= chain.cpu + chain.gpu + 1e-12
    assert ends["a CUDA graph"] == pytest.approx(gpu["eager"].median)
    assert max(ends.values()) == pytest.approx(scene.seconds)
    # The three ways stand on one scale: a second is as many pixels wherever a bar stands for it.
    wide = [(bar.width + 1) / (bar.end - bar.start) for bar in scene.bars if bar.width > 1]
    assert len(wide) > 6
    assert wide == pytest.approx([wide[0]] * len(wide))


def test_a_size_that_was_not_recorded_is_refused():
    with pytest.raises(ValueError, match="999 numbers were not recorded: choose from 1024"):
        ways(H200, 999)


@triton.jit
def scale_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    y = 2 * x + 1
    tl.store(y_ptr + element, y, mask=exists)


def small_chain(x, scale, bias, weight):
    return gelu(layer_norm(torch.relu(x * scale + bias), x.shape[-1:]) @ weight)


VECTOR = torch.empty(2**20, device="meta")
COMPILED = compile_for(scale_kernel, VECTOR, VECTOR, 2**20, device="A100", BLOCK=128, num_warps=4)
SHAPES = (8192, 4096), (4096,), (4096,), (4096, 4096)
PLAN = analyse(small_chain, *(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in SHAPES))

FILMS = [
    traffic_animation(H200),
    launch_timeline(H200),
    request_animation(),
    mask_animation(),
    *map(passes_animation, PASSES),
    two_limits_animation(),
    compiler_animation(COMPILED),
    chain_animation(PLAN),
    block_sum_animation(),
]


@pytest.mark.parametrize("film", FILMS)
def test_the_still_frame_is_small_and_says_what_it_shows(film):
    bundle, metadata = film._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == bundle["text/plain"] == film.text
    assert len(bundle["text/html"]) < 150_000
    assert len(json.dumps(film.data())) < 100_000
    figure = film.chart().figure
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


def test_what_counts_in_the_animation_lies_apart():
    figure = traffic_animation(H200).chart().figure
    figure.draw_without_rendering()
    counters = [text for text in figure.axes[0].texts if "crossed" in text.get_text() or "clock" in text.get_text()]
    boxes = sorted((text.get_window_extent() for text in counters), key=lambda box: box.x0)
    assert len(boxes) == 4
    assert all(after.x0 - before.x0 > 1.5 * before.width for before, after in pairwise(boxes))  # a wider font


@pytest.mark.parametrize("elements", REQUEST_SIZES.values())
def test_requests_and_dram_traffic_are_the_meters_and_the_predictions(elements):
    few = torch.randn(2, 1000)
    per_element = measure(lambda: gelu(few[0] + few[1], approximate="tanh")).bytes_total / 1000
    requested, crossed = traffic(elements)
    assert requested == per_element * elements
    a, b = torch.empty(2, elements, device="meta")
    cache = L2Cache(DEVICES["H200"].l2_cache)
    launches = dry_run(lambda a, b: gelu(a + b), a, b, multiprocessors=DEVICES["H200"].sms)
    assert crossed == pytest.approx(sum(sum(cache.pass_through(each).values()) for each in launches))


def test_tiles_that_l2_still_has_take_no_way_to_dram():
    found = {elements: tiles_in_l2(elements) for elements in REQUEST_SIZES.values()}
    assert next(iter(found.values())) == REQUEST_TILES
    assert list(found.values())[-1] == 0
    for (name, elements), scene in zip(REQUEST_SIZES.items(), request_animation().scenes.values(), strict=True):
        requested, crossed = (counter.value for counter in scene.counters)
        assert (requested, crossed) == tuple(pytest.approx(each / 1e6) for each in traffic(elements)), name
        legs = [each for each in scene.movers if each.y0 != each.y1]
        assert len(legs) == 2 * 5 * REQUEST_TILES - found[elements]


def test_tiles_under_a_mask_are_what_torch_would_mask():
    queries, keys = torch.arange(512)[:, None], torch.arange(512)[None, :]
    sees = {
        "causal": keys <= queries,
        "none": torch.ones(512, 512, dtype=torch.bool),
        "window of 128": (keys <= queries) & (queries - keys < 128),
        "two documents": torch.block_diag(torch.ones(192, 192), torch.ones(320, 320)).bool() & (keys <= queries),
    }
    assert sees.keys() == MASKS.keys()
    for mask, seen in sees.items():
        parts = seen.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE)).sum((1, 3))
        named = [["hidden" if not each else "whole" if each == TILE**2 else "cut" for each in row] for row in parts]
        assert kinds(mask) == named
        (computed,) = mask_animation().scenes[mask].counters
        assert computed.value == int((parts > 0).sum())


@pytest.mark.parametrize("mask", MASKS)
def test_a_tile_of_scores_is_filled_once_and_alone(mask):
    """A dot before and an outline after; what is hidden stays empty."""
    scene = mask_animation().scenes[mask]
    computed = {(row, column) for row, kept in enumerate(kinds(mask)) for column, kind in enumerate(kept)
                if kind != "hidden"}  # fmt: skip

    def cell(x, y):
        return (y - TOP) // CELL, (x - LEFT) // CELL

    def in_a_cell(x, y):
        return all(0 <= place < 512 // TILE for place in cell(x, y))

    still = [each for each in scene.movers if in_a_cell(each.x0, each.y0) and (each.x0, each.y0) == (each.x1, each.y1)]
    dots, filled = ([each for each in still if (each.width == DOT) == small] for small in (True, False))
    for moment in range(len(computed)):
        assert len([each for each in filled if each.start <= moment + 0.5 < each.end]) == 1
    assert len(filled) == len(dots) == len(computed)
    outlines = {cell(bar.x, bar.y): bar for bar in scene.bars if in_a_cell(bar.x, bar.y)}
    assert set(outlines) == computed
    assert all(bar.read < bar.start for bar in outlines.values())
    assert {cell(each.x0, each.y0): each.end for each in filled} == {at: bar.start for at, bar in outlines.items()}
    assert {cell(each.x0, each.y0): each.end for each in dots} == {
        cell(each.x0, each.y0): each.start for each in filled
    }


@pytest.mark.parametrize("mask", MASKS)
def test_each_program_reads_its_keys_again(mask):
    """All tiles of keys wait when it starts; those that it reads have an edge meanwhile."""
    scene = mask_animation().scenes[mask]
    keys = [each for each in scene.movers if each.y0 == each.y1 == TOP - 21]
    columns = [[column for column, kind in enumerate(row) if kind != "hidden"] for row in kinds(mask)]
    read = [(each.x0 - LEFT) // CELL for each in sorted(keys, key=lambda each: each.start) if each.edged]
    assert read == [column for row in columns for column in row]
    time = 0
    for row in columns:
        waiting = [each for each in keys if not each.edged and each.start <= time < each.end]
        assert len(waiting) == 512 // TILE - 1, "one is read at once"
        time += len(row)


@pytest.mark.parametrize("mask", MASKS)
def test_the_clock_and_the_panel_count_the_same_tiles(mask):
    scene = mask_animation().scenes[mask]
    for percent in range(101):
        time = scene.seconds * percent / 100
        assert scene.counters[0].at(time).split()[0] == scene.clock(time).split()[0]


@pytest.mark.parametrize("what", PASSES)
def test_passes_cross_in_order_and_fusing_moves_less(what):
    shown = PASSES[what]
    for way in ("unfused", "fused"):
        written = set()
        for each in getattr(shown, way):
            made = {tensor for other in getattr(shown, way) for tensor in other.writes}
            assert set(each.reads) & made <= written, "nothing is read before it is written"
            written |= set(each.writes)
        sizes = [shown.size(tensor) for each in getattr(shown, way) for tensor in each.reads + each.writes]
        assert shown.moved(way) == pytest.approx(sum(sizes))
    assert shown.moved("fused") < shown.moved("unfused")


def test_the_chain_moves_what_the_meter_counts():
    x, scale, bias = torch.rand(100, 1000), torch.rand(1000), torch.rand(1000)
    found = measure(lambda x, scale, bias: torch.relu(x * scale + bias), x, scale, bias).bytes_total
    assert found == PASSES["chain"].moved("unfused") * x.nbytes + scale.nbytes + bias.nbytes


@pytest.mark.parametrize("what", PASSES)
def test_the_films_of_passes_say_what_is_purple(what):
    [scene] = passes_animation(what).scenes.values()
    [note] = [note for note in scene.notes if note.text == LEGEND]
    [sample] = [bar for bar in scene.bars if (bar.x, bar.y, bar.start) == (0, note.y - 9, 0.0)]
    assert sample.colour in {each.colour for each in scene.movers} - {FUSED, UNFUSED}


@pytest.mark.parametrize("what", PASSES)
def test_each_side_counts_its_own_crossings(what):
    """It stops with its side, and its number stays."""
    [scene] = passes_animation(what).scenes.values()
    counters = {counter.name: counter for counter in scene.counters}
    assert set(counters) == {"unfused", "fused"}
    for way, counter in counters.items():
        assert counter.value == pytest.approx(TILES_OF_PASSES * PASSES[what].moved(way))
        assert counter.at(counter.end) == counter.at(scene.seconds)
    assert counters["fused"].x > counters["unfused"].x
    assert counters["fused"].end < counters["unfused"].end <= scene.seconds


def test_a_chain_ends_at_36_crossings_and_at_12():
    [scene] = passes_animation("chain").scenes.values()
    ended = [[each.end for each in scene.movers if each.y0 != each.y1 and (each.x0 > 310) == side] for side in (0, 1)]
    assert [len(ends) for ends in ended] == [36, 12]
    assert [counter.at(scene.seconds) for counter in scene.counters] == ["36 crossings", "12 crossings"]
    assert [counter.at(5.5) for counter in scene.counters] == ["5 crossings", "5 crossings"]
    assert [counter.at(20.5) for counter in scene.counters] == ["20 crossings", "12 crossings"]


@pytest.mark.parametrize("what", PASSES)
def test_a_film_of_passes_ends_with_an_empty_chip(what):
    """Also by the numbers that the browser has, which are rounded."""
    [[_, scene]] = passes_animation(what).data()["scenes"]
    assert max(end for *_, end, _, _ in scene["movers"]) < scene["seconds"]


def test_the_shuffles_of_a_warp_take_in_each_lane_once():
    assert shuffles(32) == [16, 8, 4, 2, 1]
    assert [len(each) for each in held(32)] == [1, 2, 4, 8, 16, 32]


def test_unknown_passes_are_refused():
    with pytest.raises(ValueError, match="no passes 'sort' here: choose from chain"):
        passes_animation("sort")


LONG = Animation(
    (100, 50), 4.0, 2.0, "µs", 10.0, "A title",
    movers=(MovingBox(0, 0, 80, 40, 10, 10, 1.0, 3.0, "#ff0000"),),
    bars=(Bar(0, 20, 50, 10, 0.0, 4.0, "#0000ff"),),
    notes=(Note("a note", 0, 40),),
    counters=(Counter("it", "{} B", 0, 45, 8, 0.0, 4.0, 0),),
    told=((0.0, "It begins."), (3.0, "It ends.")),
)  # fmt: skip
FILM = Film({"long": LONG, "short": Animation((100, 50), 1.0, 1.0, "µs", 10.0, "Another title")}, "length", 0.0)


@pytest.fixture
def page_of(chromium):
    def shown(film, **options):
        return bare_page(chromium, FilmStage, film.data(), (800, 600), "width: 400px", **options)

    return shown


def at(page):
    return page.locator("[role=status]").text_content()


PIXEL = """([x, y]) => {
    const canvas = document.querySelector('canvas'), scale = canvas.width / 100;
    return [...canvas.getContext('2d').getImageData(x * scale, y * scale, 1, 1).data];
}"""


def test_the_browser_draws_each_time_as_it_was_placed(page_of):
    page = page_of(FILM)
    slider = page.locator("input")
    slider.focus()
    assert at(page) == LONG.says(0.0) == "0 µs: It begins. it 0 B."
    for _ in range(50):
        page.keyboard.press("ArrowRight")
    assert at(page) == LONG.says(2.0) == "20 µs: It begins. it 4 B."
    assert page.evaluate(PIXEL, [45, 22]) == [255, 0, 0, 255]  # half way from (0, 0) to (80, 40)
    assert page.evaluate(PIXEL, [10, 25]) == [0, 0, 255, 255]
    assert page.evaluate(PIXEL, [30, 25])[3] == 0  # the bar has grown to half its width
    page.keyboard.press("End")
    assert at(page) == LONG.says(4.0) == "40 µs: It ends. it 8 B."
    assert page.evaluate(PIXEL, [45, 25]) == [0, 0, 255, 255]
    assert slider.get_attribute("aria-valuetext") == "40 µs"


def test_the_arrows_are_its_own(page_of):
    page = page_of(FILM)
    page.evaluate(TAKES_ARROWS)
    page.locator("input").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("input").input_value() == "1"
    page.locator("select").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".title").text_content() == "Another title"


def test_it_plays_to_its_end_and_another_may_be_chosen(page_of):
    page = page_of(FILM)
    page.evaluate("""() => { window.lines = new Set(); new MutationObserver(() =>
        lines.add(document.querySelector('[role=status]').textContent)
    ).observe(document.querySelector('.fusion-moving'), {childList: true}); }""")
    page.locator(".fusion-film-chart").click()  # the picture takes the keys
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.clock').textContent == '40 µs'")
    page.get_by_role("button", name="Play").wait_for()
    assert "It begins." in page.evaluate("[...lines]")  # and not what it counted before it played
    assert LONG.says(0.0) not in page.evaluate("[...lines]")
    page.locator("select").select_option("short")
    assert page.locator(".title").text_content() == "Another title"


@pytest.mark.parametrize(("motion", "most"), [("no-preference", 10_000), ("reduce", 8)])
def test_where_motion_is_unwanted_it_goes_on_picture_by_picture(page_of, motion, most):
    page = page_of(FILM, reduced_motion=motion)
    page.evaluate("""() => { window.times = new Set(); new MutationObserver(() =>
        times.add(document.querySelector('.clock').textContent)
    ).observe(document.querySelector('.fusion-moving'), {childList: true}); }""")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("document.querySelector('.clock').textContent == '40 µs'")
    assert 2 < page.evaluate("times.size") <= most


def test_it_rests_where_its_still_does_and_plays_from_its_beginning(page_of):
    """Its beginning would show no difference, its end what the reader is to find."""
    page = page_of(Film({"long": LONG}, frame=0.75))
    assert at(page) == LONG.says(3.0)
    assert page.locator("input").input_value() == "75"
    page.evaluate("""() => { window.clocks = []; new MutationObserver(() =>
        clocks.push(parseFloat(document.querySelector('.clock').textContent))
    ).observe(document.querySelector('.fusion-moving'), {childList: true}); }""")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("document.querySelector('.clock').textContent == '40 µs'")
    assert page.evaluate("clocks[0]") < 10


def test_what_the_clock_counts_is_whole(page_of):
    counters = (Counter("it", "{} of 9", 0, 45, 2, 0.0, 4.0, 0, True),)
    counted = Animation(
        (100, 50), 4.0, 2.0, "steps", 0.5, "A title", (), (), (), counters, (), ((0.0, "It runs."),), True
    )
    page = page_of(Film({"counted": counted}))
    page.locator("input").fill("90")
    assert at(page) == counted.says(3.6) == "1 step: It runs. it 1 of 9."
    page.locator("input").focus()
    page.keyboard.press("End")
    assert at(page) == counted.says(4.0) == "2 steps: It runs. it 2 of 9."


@pytest.mark.parametrize("film", FILMS)
def test_no_film_has_a_still_of_its_beginning_or_end(film):
    """What has happened by then: a fifth of it at least has moved or grown."""
    assert film.frame < 1
    for scene in film.scenes.values():
        shown = film.frame * scene.seconds
        assert sum(each.end <= shown for each in scene.movers) >= 0.2 * len(scene.movers)
        assert sum(each.end <= shown for each in scene.bars) >= 0.2 * len(scene.bars)


@pytest.mark.parametrize("film", FILMS)
def test_the_browser_says_a_films_last_line_at_its_end(film):
    """Its times are rounded: the line's must not come after the film's end."""
    for _, scene in film.data()["scenes"]:
        assert max(start for start, _ in scene["told"]) <= scene["seconds"]


# Each is drawn in a browser: in `make test` every fourth.
ON_A_PHONE = [
    pytest.param(film, marks=[] if place % 4 == 0 else [pytest.mark.long]) for place, film in enumerate(FILMS)
]


@pytest.mark.parametrize("film", ON_A_PHONE)
def test_on_a_phone_nothing_is_cut_and_text_is_as_large(film, chromium):
    page = bare_page(chromium, FilmStage, film.data(), (390, 1200), "width: 358px")
    drawn = page.evaluate("""() => {
        const chart = document.querySelector('.fusion-film-chart svg'), box = chart.getBoundingClientRect();
        const texts = [...chart.querySelectorAll('text')].filter((text) => text.textContent);
        const scale = box.width / chart.viewBox.baseVal.width;
        const smallest = Math.min(...texts.map((text) => parseFloat(getComputedStyle(text).fontSize) * scale));
        return {scale, smallest, cut: texts.map((text) => [text, text.getBBox()])
            .filter(([, at]) => at.x < -2 || at.x + at.width > chart.viewBox.baseVal.width + 1)
            .map(([text]) => text.textContent)};
    }""")
    page.close()
    assert drawn["scale"] > 0.8
    assert drawn["smallest"] >= 11.99
    assert drawn["cut"] == []


BOXES = """() => [...document.querySelectorAll('.fusion-film-chart svg text')].filter((text) => text.textContent)
    .map((text) => [text.textContent, text.getBoundingClientRect()])
    .map(([text, {left, top, right, bottom}]) => ({text, box: [left, top, right, bottom]}))"""


def seek(page, percent):
    page.evaluate(
        """percent => {
            const slider = document.querySelector('input[type=range]');
            slider.value = percent;
            slider.dispatchEvent(new Event('input'));
        }""",
        percent,
    )


def test_texts_that_touch_are_found():
    boxes = {"a": [0, 0, 30, 12], "b": [31, 0, 60, 12], "c": [0, 10, 20, 22], "d": [63, 0, 70, 12]}
    assert touching([{"text": text, "box": box} for text, box in boxes.items()]) == [("a", "b"), ("a", "c")]


@pytest.mark.parametrize("film", ON_A_PHONE)
@pytest.mark.parametrize("width", [358, 820])
def test_no_text_of_a_film_touches_another(film, width, chromium):
    """In every scene, as its counters begin and as they end."""
    page = bare_page(chromium, FilmStage, film.data(), (width + 32, 1200), f"width: {width}px")
    for name in film.scenes:
        if len(film.scenes) > 1:
            page.locator("select").select_option(name)
        for percent in (0, 100):
            seek(page, percent)
            assert touching(page.evaluate(BOXES)) == [], (name, percent)
    page.close()


DARK = {"--jp-layout-color0": "#131516", "--jp-content-font-color0": "#e3e5e8"}  # of the site: page and text


def dark_page(chromium, film):
    colours = "; ".join(f"{name}: {colour}" for name, colour in DARK.items())
    return bare_page(chromium, FilmStage, film.data(), (852, 900), f"width: 820px; {colours}")


def contrasts(page, places, paper=DARK["--jp-layout-color0"]):
    """WCAG 2.1's contrast ratio of each place of a film, as it is painted, with the page."""
    pixels = page.evaluate(
        """places => {
            const canvas = document.querySelector('canvas'), context = canvas.getContext('2d');
            const scale = canvas.width / document.querySelector('.fusion-film-chart svg').viewBox.baseVal.width;
            return places.map(([x, y]) => [...context.getImageData(x * scale, y * scale, 1, 1).data]);
        }""",
        places,
    )

    def light(colour):
        parts = [part / 255 for part in colour]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    paper = bytes.fromhex(paper[1:])
    seen = [[a / 255 * part + (1 - a / 255) * own for part, own in zip(rgb, paper, strict=True)] for *rgb, a in pixels]
    ratios = [light(colour) / light(paper) for colour in seen]
    return [max(ratio, 1 / ratio) for ratio in ratios]


@pytest.mark.parametrize("film", ON_A_PHONE)
def test_on_a_dark_page_nothing_that_a_film_shows_vanishes(film, chromium):
    page = dark_page(chromium, film)
    scene = next(iter(film.scenes.values()))
    for percent in (0, 50, 100):
        seek(page, percent)
        time = scene.seconds * percent / 100
        shown = [bar for bar in scene.bars if bar.end <= time and bar.width * bar.height > 4]
        outlined = [bar.read is not None and time > bar.read for bar in shown]
        places = [
            (bar.x + bar.width / 2, bar.y + (0.7 if only else bar.height / 2))
            for bar, only in zip(shown, outlined, strict=True)
        ]
        found = dict(zip(places, contrasts(page, places), strict=True))
        assert {place: ratio for place, ratio in found.items() if ratio < 2.98} == {}, percent  # 3, rounded to a colour
    page.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("colour", [FUSED, UNFUSED, PURPLE])
def test_a_tile_that_was_read_is_an_outline(chromium, colour, dark):
    """Its inside is the page: no tile that waits differs less from it than its own colour does."""
    bars = Bar(0, 0, 30, 20, 0, 0, colour), Bar(60, 0, 30, 20, 0, 0, colour, read=0.5)
    film = Film({"tiles": Animation((100, 50), 1.0, 1.0, "µs", 1.0, "A title", bars=bars)})
    colours = "; ".join(f"{name}: {value}" for name, value in (DARK if dark else {}).items())
    page = bare_page(chromium, FilmStage, film.data(), (852, 900), f"width: 820px; {colours}")
    paper = DARK["--jp-layout-color0"] if dark else "#ffffff"
    seek(page, 20)
    waiting, *_ = before = contrasts(page, [(15, 10), (75, 10)], paper)
    assert before[0] == before[1]
    seek(page, 80)
    still, inside, *edges = contrasts(page, [(15, 10), (75, 10), (75, 0.7), (60.7, 10), (89.2, 10), (75, 19.2)], paper)
    page.close()
    assert still == waiting >= (2.2 if colour == UNFUSED and not dark else 2.98)  # orange on white has no more
    assert inside == 1
    assert edges == pytest.approx([waiting] * 4, rel=0.02)


def test_a_tile_in_flight_has_an_edge_that_its_own_colour_does_not_hide(chromium):
    movers = (MovingBox(20, 5, 40, 5, 30, 10, 0.0, 1.0, FUSED, True),)
    film = Film(
        {"tiles": Animation((100, 50), 1.0, 1.0, "µs", 1.0, "A title", movers, (Bar(0, 0, 90, 20, 0, 0, FUSED),))}
    )
    page = dark_page(chromium, film)
    seek(page, 50)
    under, edge = contrasts(page, [(10, 10), (30, 10)])
    page.close()
    assert edge > 2 * under


@pytest.mark.parametrize("film", [film for film in FILMS if any(bar.read is not None for scene in film.scenes.values()
                                                                for bar in scene.bars)])  # fmt: skip
def test_a_film_says_how_a_tile_looks_that_was_read(film):
    for scene in film.scenes.values():
        texts = [note.text for note in scene.notes]
        assert texts.count("not read yet") == 1
        assert sum(text.startswith("read") for text in texts) == 1


def crossed(box, others):
    x, y, width, height = box
    return [
        each for each in others
        if min(x + width, each[0] + each[2]) - max(x, each[0]) > 1
        and min(y + height, each[1] + each[3]) - max(y, each[1]) > 1
    ]  # fmt: skip


@pytest.mark.parametrize("film", [FILMS[0], *map(passes_animation, PASSES)])
def test_a_tile_in_flight_crosses_no_other_row_and_no_text(film):
    """It is on the row that it leaves or comes to, on the bus, or in the chip."""
    for scene in film.scenes.values():
        rows = [box for box in scene.boxes if 150 < box[2] < 240 and box[3] < 20]
        letters = [
            (
                note.x - {"left": 0, "center": 3, "right": 6}[note.align] * len(note.text),
                note.y - 8,
                6 * len(note.text),
                9,
            )
            for note in scene.notes
        ]
        flying = [each for each in scene.movers if each.edged]
        assert rows
        assert flying
        for each in flying:
            left, top = min(each.x0, each.x1), min(each.y0, each.y1)
            wide, high = abs(each.x1 - each.x0) + each.width, abs(each.y1 - each.y0) + each.height
            assert len(crossed((left, top, wide, high), rows)) <= (1 if each.y0 == each.y1 else 0)
            assert crossed((left, top, wide, high), letters) == []


@pytest.mark.parametrize("what", PASSES)
def test_a_tile_is_read_after_it_arrived_and_leaves_the_chip_after_its_inputs(what):
    [scene] = passes_animation(what).scenes.values()
    assert all(bar.read >= bar.start for bar in scene.bars if bar.read is not None and bar.start >= 0)
    for side in (False, True):
        legs = sorted((each.start, each.end) for each in scene.movers if each.edged and (each.x0 > 310) == side)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(legs))


def strokes(scene, side, row):
    """How many strokes each tile of a row has at the end."""
    tiles = sorted(
        bar.x for bar in scene.bars if bar.height == 12 and (bar.x > 310) == side and bar.y == PASS_TOP + ROW * row + 2
    )
    tally = [bar.x for bar in scene.bars if bar.height == 6 and abs(bar.y - PASS_TOP - ROW * row - 5) < 1]
    return [sum(0 < x - tile < 27 for x in tally) for tile in tiles]


def test_the_tiles_of_x_have_a_stroke_for_each_time_they_were_read():
    [scene] = passes_animation("norm").scenes.values()
    for side, way in enumerate(("unfused", "fused")):
        reads = sum("x" in each.reads for each in getattr(PASSES["norm"], way))
        assert strokes(scene, bool(side), 0) == [reads] * TILES_OF_PASSES
    [chain] = passes_animation("chain").scenes.values()
    assert strokes(chain, False, 0) == [0] * TILES_OF_PASSES, "where nothing is read twice, an outline says it"


def test_lesson_00s_film_rests_once_its_two_sides_differ():
    """The fused kernel is done, and the second of the two reads the sum back."""
    film = traffic_animation(H200, count=False)
    scene = film.scenes["add + GELU"]
    rests = film.rests * scene.seconds
    assert scene.counters[1].end < rests < scene.counters[0].end
    assert scene.counters[0].at(rests) != scene.counters[1].at(rests)
    sums = [bar for bar in scene.bars if bar.colour == PURPLE and bar.read and bar.start > 0]
    assert len(sums) == TILES
    assert 2 < sum(bar.read < rests for bar in sums) < TILES


def test_a_film_follows_the_page_from_light_to_dark(chromium):
    film = Film(
        {"faint": Animation((100, 50), 1.0, 1.0, "µs", 1.0, "A title", bars=(Bar(0, 0, 90, 20, 0, 0, FUSED, 0.25),))}
    )
    page = bare_page(chromium, FilmStage, film.data(), (852, 900), "width: 820px")
    assert page.evaluate(PIXEL, [45, 10])[3] == 64
    for name, colour in DARK.items():
        page.evaluate("([name, colour]) => document.documentElement.style.setProperty(name, colour)", [name, colour])
    page.wait_for_function(f"({PIXEL})([45, 10])[3] === 255")
    page.close()


def test_no_name_lies_under_a_bar():
    """A bar is painted over the names: in the dark it is not as transparent as in the light."""
    for film in FILMS:
        for scene in (*film.scenes.values(), *(film._narrow.values() if isinstance(film._narrow, dict) else ())):
            for note in scene.notes:
                wide = 6 * len(note.text)
                left = note.x - {"left": 0, "center": wide / 2, "right": wide}[note.align]
                under = [
                    bar
                    for bar in scene.bars
                    if min(left + wide, bar.x + bar.width) - max(left, bar.x) > 2
                    and min(note.y, bar.y + bar.height) - max(note.y - 8, bar.y) > 2
                ]
                assert under == [], note.text


def test_stacked_panels_keep_what_they_show(chromium):
    whole = Animation(
        (200, 100), 1.0, 1.0, "µs", 1.0, "A title",
        movers=(MovingBox(10, 50, 150, 60, 10, 10, 0.0, 1.0, "#ff0000"),),
        notes=(Note("left", 10, 40), Note("right", 110, 40)), boxes=((110, 50, 80, 40),),
    )  # fmt: skip
    film = Film({"whole": whole}, narrow=Stack(100, 100))
    page = bare_page(chromium, FilmStage, film.data(), (390, 900), "width: 300px")
    # Text from 24 on, what travels 6 below it; then, 10 below that, the same on the right, and a box's two lines.
    assert page.locator(".fusion-film-chart svg").get_attribute("viewBox") == "0 0 100 122"
    notes = page.locator(".fusion-film-chart svg text:not(.title)")
    assert [(note.get_attribute("x"), note.get_attribute("y")) for note in notes.all()] == [("10", "36"), ("10", "78")]
    assert page.locator(".fusion-film-chart svg rect").get_attribute("y") == "88"
    assert page.locator(".fusion-film-chart svg rect").get_attribute("height") == "30"
    page.locator("input").fill("50")
    assert page.evaluate(PIXEL, [35, 77]) == [255, 0, 0, 255]  # half way from (10, 46) to (50, 98)
    page.evaluate("document.body.lastChild.style.width = '600px'")  # the page is turned
    page.wait_for_function("document.querySelector('svg').getAttribute('viewBox') == '0 0 200 100'")


def test_registers_of_an_instruction():
    """By hand, from NVIDIA's own notation: what an instruction reads and writes, pairs as two."""
    known = {
        "S2R R0, SR_TID.X": (set(), {0}),
        "IMAD.WIDE R4, R0, R3, c[0x0][0x168]": ({0, 3}, {4, 5}),
        "LDG.E R2, [R2.64]": ({2, 3}, {2}),
        "LDG.E.64 R2, [R6.64]": ({6, 7}, {2, 3}),
        "FFMA R7, R2, R7, 1": ({2, 7}, {7}),
        "@P0 EXIT": (set(), set()),
        "STG.E [R4.64], R7": ({4, 5, 7}, set()),
        "ISETP.GE.AND P0, PT, R0.reuse, c[0x0][0x170], PT": ({0}, set()),
        "ULDC.64 UR4, c[0x0][0x118]": (set(), set()),
    }
    assert {text: registers_of(Instruction(text, "", 0, "")) for text in known} == known


def test_the_compilers_film_shows_the_machine_code():
    instructions = COMPILED.sass_view().instructions
    [scene] = compiler_animation(COMPILED).scenes.values()
    texts = [note.text for note in scene.notes]
    assert [text for text in texts if text in {each.text for each in instructions}] == [
        each.text for each in instructions
    ]
    assert all(register < COMPILED.registers for register, *_ in lifetimes(instructions))
    assert f"{COMPILED.registers} registers per thread" in texts


def test_the_plans_film_ends_with_the_plans_bytes():
    moved = bytes_after(PLAN)
    assert moved[0] == PLAN.bytes_unfused
    assert moved[-1] - PLAN.bytes_fused == 2 * 8192 * 4  # the norm's statistics, in fp32, are not written
    [scene] = chain_animation(PLAN).scenes.values()
    told = [text for _, text in scene.told]
    assert sum(text.startswith("Yes") for text in told) == len(PLAN.fused_edges)
    assert sum(text.startswith("No") for text in told) == len(PLAN.edges) - len(PLAN.fused_edges)
    assert told[-1].startswith(f"{len(PLAN.groups)} kernels")


def test_the_plans_film_says_at_which_edge_it_is_and_how_many_bytes_are_left():
    """The number is at the bar's end; a tensor that left memory has no size there."""
    [scene], moved = chain_animation(PLAN).scenes.values(), bytes_after(PLAN)
    edges, sizes = len(PLAN.edges), {si(edge.nbytes, "B") for edge in PLAN.edges}
    for edge in range(edges):
        for time, bytes_now in ((2 * edge + 0.5, moved[edge]), (2 * edge + 1.5, moved[edge + 1])):
            assert scene.clock(time) == f"edge {edge + 1} of {edges}"
            [number] = [note for note in scene.notes if note.bold and note.start is not None and note.at(time)]
            [bar] = [
                each
                for each in scene.movers
                if (each.height, each.colour) == (14, UNFUSED) and each.start <= time < each.end
            ]
            assert number.text == si(bytes_now, "B")
            assert 4 <= number.x - (bar.x0 + bar.width) <= 8
            freed = sum(
                (each.producer, each.consumer) in PLAN.fused_edges for each in PLAN.edges[: edge + (time % 2 > 1)]
            )
            shown = [note for note in scene.notes if note.text in sizes and not note.bold and note.at(time)]
            assert len(shown) == edges - freed
    assert scene.clock(scene.seconds) == f"edge {edges} of {edges}"


def test_a_note_is_shown_for_its_time(page_of):
    notes = Note("early", 0, 20, end=2.0), Note("late", 50, 20, start=2.0), Note("always", 0, 40)
    film = Film({"notes": Animation(
        (100, 50), 4.0, 2.0, "edges", 1.0, "A title", notes=notes, moments=((0.0, "edge 1 of 2"), (2.0, "edge 2 of 2"))
    )}, frame=0.0)  # fmt: skip
    page = page_of(film)
    for percent, shown, clock in (
        (0, "early", "edge 1 of 2"),
        (50, "late", "edge 2 of 2"),
        (100, "late", "edge 2 of 2"),
    ):
        seek(page, percent)
        texts = [each.text_content() for each in page.locator(".note").all() if each.is_visible()]
        assert texts == sorted({shown, "always"}, key=["early", "late", "always"].index)
        assert page.locator(".clock").text_content() == clock
        assert page.locator("input").get_attribute("aria-valuetext") == clock
    page.close()


def test_what_is_no_chain_is_refused():
    x = torch.empty(64, 64, device="meta")
    with pytest.raises(ValueError, match="the film shows a chain"):
        chain_animation(analyse(lambda x: torch.sin(torch.exp(x)) + torch.exp(x).cos(), x))


def test_the_two_limits_are_the_data_sheets():
    """An A100 80GB SXM: 2,039 GB/s and 312 TFLOP/s in fp16, by NVIDIA's data sheet."""
    for rows, (memory, arithmetic) in {rows: limits(rows) for rows in (32, 128, 512)}.items():
        assert memory == pytest.approx(2 * (2 * rows * 4096 + 4096**2) / 2039e9)
        assert arithmetic == pytest.approx(2 * rows * 4096**2 / 312e12)
    assert limits(32)[0] > limits(32)[1]
    assert limits(512)[0] < limits(512)[1]


def test_lesson_00s_question_asks_for_no_number_of_the_first_pages_film():
    """That one counts the same two kernels' bytes: its digits are not the answer's."""
    lesson = (Path(__file__).parents[2] / "source/lessons/00_welcome.py").read_text(encoding="utf-8")
    elements = int(re.search(r"^n = ([0-9_]+)$", lesson, re.MULTILINE)[1])
    a, b = torch.randn(2, elements)
    asked = measure(lambda: gelu(a + b, approximate="tanh")).bytes_total
    shown = [counter.at(counter.end).split()[0] for counter in traffic_animation(H200).scenes["add + GELU"].counters]
    assert f"{asked / 1e6:g}".rstrip("0") not in [number.replace(".", "").rstrip("0") for number in shown]
