"""The course's web pages: complete, small, independent of other hosts, and interactive without a kernel."""

import base64
import json
import re
import threading
import zlib
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jupytext
import nbformat
import pytest
import torch
import triton.language as tl
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from lab_browser import ROOT
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from helpers.figures import TrafficExplorer, traffic_animation, watch
from helpers.figures.frame.interactive_export import export_interactive
from helpers.instruments import recorded
from helpers.learning import self_test
from helpers.learning.self_tests import MIME as SEALED
from kernels.elementwise.swiglu import swiglu_kernel
from source import build_site, record_figures, record_puzzles
from source.picture_openings import FIRST

SAMPLE = ("00_", "03_first", "03_fused", "claims")


@pytest.fixture(scope="module")
def recordings():
    """Recorded figures with the text that the notebooks show, and what every puzzle offers, so that what is stale
    fails no test of pages."""

    def as_shown(source: Path) -> dict[str, dict]:
        known = record_figures.recorded(source)
        cells = record_figures.cells_of(source) if known else []
        return {
            cell["id"]: known.get(cell["id"], next(iter(known.values()))) | {"text": record_figures.text_of(cell)}
            for cell in cells
            if record_figures.is_live(cell)
        }

    known_puzzles = record_puzzles.recorded

    def as_offered(source: Path, root: Path) -> dict[str, list[dict]]:
        lesson = root / "source/lessons" / f"{source.stem}.py"
        offered = record_puzzles.puzzles_of(lesson) if lesson.exists() else {}
        known = {
            kernel: {each["line"]: each for each in lines} for kernel, lines in known_puzzles(source, root).items()
        }
        return {
            kernel: [
                known.get(kernel, {}).get(line, {"line": line, "title": "Not yet: stale", "text": "", "picture": ""})
                for line in choices[1:]
            ]
            for kernel, (_, choices) in offered.items()
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_site, "recorded", as_shown)
        patch.setattr(record_puzzles, "recorded", as_offered)
        yield


@pytest.fixture(scope="module")
def sample(tmp_path_factory, recordings):
    return build_site.build(out=tmp_path_factory.mktemp("sample") / "site", only=SAMPLE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, recordings):
    return build_site.build(out=tmp_path_factory.mktemp("whole") / "site")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of one lesson: a film, an explorer, a launch to step through, two questions."""
    root = tmp_path_factory.mktemp("course")
    eight = torch.arange(8.0).view(2, 4)
    figures = {
        "traffic_animation(h200)": traffic_animation(recorded("h200")),
        "TrafficExplorer()": TrafficExplorer("add+GELU", "fp32", device="H200", rows=1024, columns=1000),
        "watch(kernel)": watch(
            swiglu_kernel[(2,)], eight, eight + 1, torch.empty_like(eight), 8, BLOCK=4, COMPUTE=tl.float32
        ),
    }
    cells = [
        nbformat.v4.new_markdown_cell("# 00 Small: a lesson\n\nAbout 5 minutes.\n\n## Program instances\n\nA mask.")
    ]
    for number, (source, figure) in enumerate(figures.items()):
        data, metadata = figure._repr_mimebundle_()
        data = {name: value for name, value in data.items() if "widget" not in name}
        shown = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
        cells.append(nbformat.v4.new_code_cell(source, id=f"figure{number}", outputs=[shown], execution_count=1))
    said = [
        line
        for name, unit in (("bytes", "MB"), ("launches", ""))
        for line in (
            (f'{name} = predict_first("{name}", unit="{unit}")\n{name}', f"{name}: [your guess] {unit}"),
            (f"{name}.compare(20)", f"{name}: 20 {unit}".rstrip() + "; you made no guess"),
            ("in_detail()", f"{name}, launch by launch"),
        )
    ]
    said.append(("", ""))
    said.append(("self_test(answer, right)", self_test(..., 3, "one")))
    for source, told in (*said, ("predictions()", "all of it")):
        if not source:
            cells.append(nbformat.v4.new_markdown_cell("So much for the launches.\n\n### Your predictions\n\nAll."))
            continue
        data = {"text/plain": told} if type(told) is str else told._repr_mimebundle_()
        shown = nbformat.v4.new_output("execute_result", data, execution_count=1)
        cells.append(nbformat.v4.new_code_cell(source, outputs=[shown], execution_count=1))
    timed = [("stream", {"text": "on this CPU: 3 ms\n"}), ("display_data", {"data": {"text/plain": "a table of it"}})]
    cells.append(
        nbformat.v4.new_code_cell(
            "import time\n\nstart = time.perf_counter()",
            outputs=[nbformat.v4.new_output(kind, **shown) for kind, shown in timed],
            metadata={"tags": ["nbval-ignore-output"]},
        )
    )
    collapsed = {"jp-MarkdownHeadingCollapsed": True}
    cells.append(nbformat.v4.new_markdown_cell("## Going further\n\nOther sizes.", metadata=collapsed))
    cells.append(nbformat.v4.new_code_cell("other_sizes()"))
    live = {f"figure{number}": export_interactive(figure) for number, figure in enumerate(figures.values())}
    for name, text in {
        "README.md": "# A course\n\nOf one lesson.\n\n## Start\n\nHere.\n",
        "notebooks/00_small.ipynb": nbformat.writes(nbformat.v4.new_notebook(cells=cells)),
        "source/site/live/00_small.json": json.dumps({"made_from": {}, "figures": live}),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return build_site.build(root, root / "site")


TABLE = nbformat.v4.new_code_cell(
    outputs=[nbformat.v4.new_output("display_data", {"text/html": "<table></table>", "text/plain": "a table"})]
)
PUZZLE = """# %% [markdown]
# # 00 Tried: a lesson
#
# About 5 minutes.

# %%
@triton.jit
def copy_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)  # <- here
    tl.store(y_ptr + at, tl.load(x_ptr + at))


numbers = torch.arange(8.0)
puzzle(copy_kernel, 2, numbers, wanted=numbers.clone(), BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary>Each program has its own elements.</details>
#
# <!-- choices
# at = tl.arange(0, BLOCK)
#
# at = tl.program_id(0) + tl.arange(0, BLOCK)
#
# at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
#
# at = tl.program_id(0) * 2 * BLOCK + tl.arange(0, BLOCK)
#
# at = tl.program_id(0) * BLOCK
# -->
"""


@pytest.fixture(scope="module")
def tried(course, tmp_path_factory):
    """A course of one lesson: a recorded puzzle, and behind two questions the same explorer."""
    root = tmp_path_factory.mktemp("tried")
    lesson = root / "source/lessons/00_tried.py"
    lesson.parent.mkdir(parents=True)
    lesson.write_text(PUZZLE)
    known = json.loads((course.root / "source/site/live/00_small.json").read_text())["figures"]["figure1"]
    explorer = nbformat.read(course.root / "notebooks/00_small.ipynb", as_version=4).cells[2]
    notebook = jupytext.read(lesson, fmt="py:percent")
    # 1,024 rows of 1,000 are in the explorer's own line, 73 is not.
    for name, found in (("rows", "1024 rows"), ("registers", "73")):
        for source, told in (
            (f'{name} = predict_first("{name}", unit="")\n{name}', f"{name}: [your guess] "),
            (f"{name}.compare(...)", f"{name}: {found}; you made no guess"),
        ):
            shown = nbformat.v4.new_output("execute_result", {"text/plain": told}, execution_count=1)
            notebook.cells.append(nbformat.v4.new_code_cell(source, outputs=[shown], execution_count=1))
        notebook.cells.append(nbformat.from_dict(explorer | {"id": f"behind-{name}"}))
    for name, text in {
        "README.md": "# A course\n\nOf one lesson.\n",
        "notebooks/00_tried.ipynb": nbformat.writes(notebook),
        "source/site/live/00_tried.json": json.dumps(
            {"made_from": {}, "figures": {f"behind-{each}": known for each in ("rows", "registers")}}
        ),
        "source/site/puzzles/00_tried.json": json.dumps({"made_from": {}, "puzzles": record_puzzles.record(lesson)}),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return build_site.build(root, root / "site")


@pytest.fixture(scope="module")
def address(course):
    with served(course) as address:
        yield address


@contextmanager
def served(site: build_site.Site):
    """The address of its pages on a server of this machine."""
    handler = partial(QuietHandler, directory=site.out)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Visit:
    """A page in a browser; it remembers errors and requests."""

    def __init__(self, browser, address: str, **context):
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(60_000)
        self.address, self.errors, self.requests = address, [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, name: str):
        self.page.goto(f"{self.address}{name}.html")
        self.page.wait_for_selector("body[data-measured]")  # which parts in sight scroll from the keyboard is known
        return self.page

    def see_all(self) -> None:
        """Scroll to the end: what is near comes alive, and is measured."""
        self.page.evaluate("""async () => {
            const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight) {
                scrollTo({ top: y, behavior: "instant" });
                await frame();
            }
            await new Promise((done) => setTimeout(done, 300));
        }""")

    def elsewhere(self) -> list[str]:
        return [url for url in self.requests if not url.startswith((self.address, "data:"))]


# What is on the disk


def markup(out: Path, name: str) -> BeautifulSoup:
    return BeautifulSoup((out / f"{name}.html").read_text(encoding="utf-8"), "html.parser")


def broken_links(site: build_site.Site, known: set[str]) -> list[str]:
    """Links and files that lead nowhere. `known`: pages that are not there, as they were not asked for."""
    found, ids = [], {}
    for path in sorted(site.out.rglob("*.html")):
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        ids[path] = {node["id"] for node in page.select("[id]")}
        for node in page.select("[href], [src]"):
            url = node.get("href") or node.get("src")
            if not re.match(r"[a-z]+:", url):
                found.append((path, url))
    broken = []
    for path, url in found:
        name, _, anchor = url.partition("#")
        there = (path.parent / name).resolve() if name else path
        if there.is_relative_to(site.out) and there.relative_to(site.out).as_posix() in known:
            continue
        if not there.is_file() or (anchor and there in ids and anchor not in ids[there]):
            broken.append(f"{path.relative_to(site.out)}: {url}")
    return broken


def bytes_of(site: build_site.Site, page: str) -> int:
    """A page with all that it may ask for, the search too."""
    path = site.out / f"{page}.html"
    asked = {path, site.out / "assets/search.js"}
    for node in BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select("link[href], [src]"):
        url = node.get("href") or node["src"]
        if not url.startswith("data:"):
            asked.add((path.parent / url).resolve())
    return sum(each.stat().st_size for each in asked)


def test_links_lead_somewhere(sample):
    missing = {page.target for page in sample.pages if not (sample.out / page.target).exists()}
    assert broken_links(sample, missing) == []
    assert broken_links(sample, missing - {"notebooks/02_bytes_and_launches.html"}) != []


def test_going_further_is_folded_with_all_that_follows(course):
    page = markup(course.out, "notebooks/00_small")
    (further,) = page.select("details.further")
    assert not further.has_attr("open")
    assert further.select_one("#going-further")
    assert "other_sizes" in further.get_text()
    assert not further.select("nav, .fusion-guess")
    assert "other_sizes" not in page.select_one("main").get_text().replace(further.get_text(), "")


def test_the_first_page_is_small(sample):
    assert bytes_of(sample, "index") - (sample.out / "assets/search.js").stat().st_size < 500_000


def test_a_notebook_to_run_has_no_pictures(course):
    """They were half of the site's bytes, and running draws them again; all else stays."""
    there, here = (nbformat.read(root / "notebooks/00_small.ipynb", as_version=4) for root in (course.root, course.out))
    shown = [output for cell in here.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in shown for kind in output.get("data", ())}
    assert kinds == {"text/plain", SEALED}
    assert '"image/png": "' in nbformat.writes(there)
    assert len(nbformat.writes(here)) < 20_000 < len(nbformat.writes(there))
    assert [(cell.source, cell.metadata) for cell in here.cells] == [
        (cell.source, cell.metadata) for cell in there.cells
    ]
    tables = build_site.to_run(nbformat.writes(nbformat.v4.new_notebook(cells=[TABLE])))
    assert "<table>" in tables


def test_every_picture_has_a_description(sample):
    """nbconvert would look for that, at the price of half of the time that building takes."""
    pictures = [
        node for path in sample.out.rglob("*.html") for node in markup(sample.out, path.with_suffix("")).select("img")
    ]
    assert len(pictures) > 10
    assert [node for node in pictures if not node.has_attr("alt")] == []


@pytest.mark.long
def test_the_whole_site_is_whole(whole):
    assert broken_links(whole, set()) == []
    sizes = {page.target: bytes_of(whole, page.target.removesuffix(".html")) for page in whole.pages}
    assert {name: size for name, size in sizes.items() if size >= 3_000_000} == {}
    assert sum(path.stat().st_size for path in whole.out.rglob("*") if path.is_file()) < 25_000_000
    assert len(sizes) == len(list(whole.out.rglob("*.html"))) - 1  # and the first page


def test_nothing_of_a_solution_is_there(sample):
    """Stubs and public checks alone: neither the folder nor what stands between an answer's marks."""
    solution = json.loads((ROOT / "solutions/03_fused_add_gelu.ipynb").read_text())
    answers = ["".join(cell["source"]) for cell in solution["cells"] if "BEGIN SOLUTION" in "".join(cell["source"])]
    lines = {line.strip() for answer in answers for line in answer.partition("BEGIN SOLUTION")[2].splitlines()}
    secret = [line for line in lines if len(line) > 30]
    page = markup(sample.out, "exercises/03_fused_add_gelu").get_text()
    assert secret
    assert [line for line in secret if line in page] == []
    assert "NotImplementedError" in page
    assert not (sample.out / "solutions").exists()


def test_formulas_are_mathml(sample):
    page = markup(sample.out, "notebooks/03_first_fused_kernel")
    assert page.select("math mfrac, math msqrt")
    prose = " ".join(node.get_text() for node in page.select("main p"))
    assert "\\mathrm" not in prose


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("y = a + b", [["y", "=a+", "b"]]),
        (r"y = -a", [["y", "=\u2212a"]]),
        (r"s = a + b, \qquad y = s^2", [["s", "=a+", "b,"], ["y", "=s2"]]),
        (r"y = \frac{a + b}{c}", [["y", "=a+bc"]]),
        (r"y = \Bigl( \sum_{\text{in}} \text{size} + 1 \Bigr)", [["y", "=(\u2211insize+", "1)"]]),
        (r"a \ge b \text{ the largest}", [["a", "\u2265b", "\u00a0the\u00a0largest"]]),
    ],
)
def test_where_a_formula_may_be_broken(formula, parts):
    page = BeautifulSoup(build_site.breakable(build_site.in_mathml(formula, "block")), "html.parser")
    assert [[part.get_text() for part in each.select("math")] for each in page.select("span")] == parts


def test_a_page_knows_every_command_in_a_formula():
    formulas = [
        found
        for path in (*ROOT.glob("source/lessons/*.py"), *ROOT.glob("source/exercises/*.py"))
        for found in re.findall(r"\$\$(.+?)\$\$", re.sub(r"\n# ?", "\n", path.read_text()), re.DOTALL)
    ]
    assert len(formulas) > 50
    assert [each for each in formulas if "\\" in build_site.in_mathml(each)] == []
    assert "\\" in build_site.in_mathml(r"\arg\max_i x"), "one that it doesn't know"


def formulas_too_wide(page) -> list[str]:
    page.add_style_tag(content=".section, .cell { content-visibility: visible !important; }")
    return page.evaluate("""() => {
        for (const each of document.querySelectorAll("details")) each.open = true;
        for (const each of document.querySelectorAll(".answers")) each.hidden = false;
        return [...document.querySelectorAll("main .formula")]
            .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent);
    }""")


def test_a_phone_shows_all_of_a_formula(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 390, "height": 844}).open(
        "exercises/03_fused_add_gelu"
    )
    assert page.locator(".formula").count() >= 1
    assert formulas_too_wide(page) == []
    page.add_style_tag(content=".formula, .formula > span { flex-wrap: nowrap !important; }")
    assert formulas_too_wide(page), "one line would be too wide"


def test_an_exercises_picture_comes_before_its_formulas_and_fills_the_column(chromium, sample):
    for width in (390, 1440):
        visit = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": width, "height": 900})
        page = visit.open("exercises/03_fused_add_gelu")
        picture = page.locator(".picture img")
        picture.evaluate("node => node.decode()")
        text, drawn = page.locator("main > p").first.bounding_box(), picture.bounding_box()
        assert drawn["y"] < page.locator(".formula").first.bounding_box()["y"]
        assert drawn["width"] > 0.93 * text["width"]


@pytest.mark.parametrize(
    ("caption", "shown"), [("**The picture**", ""), ("**The picture**:", ""), ("**The picture**, of two:",) * 2]
)
def test_an_exercises_opening_is_split_around_its_picture(caption, shown):
    told = build_site.split_opening(f"# Exercise\n\nWrite it.\n\n**The formula**\n\n$$x$$\n\n{caption}\n")
    assert told == ("# Exercise\n\nWrite it.", "**The formula**\n\n$$x$$", shown)


def test_a_column_without_a_name_has_no_header(sample):
    page = BeautifulSoup(sample.markup("| | a |\n|-|-|\n| b | c |\n", sample.front), "html.parser")
    assert [(cell.name, cell.text) for cell in page.select("thead :is(th, td)")] == [("td", ""), ("th", "a")]


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than these pages"):
        build_site.build(out=tmp_path, only=SAMPLE)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


# In a browser


def test_figures_move_without_a_kernel(chromium, address):
    visit = Visit(chromium, address)
    page = visit.open("notebooks/00_small")
    film, explorer, stepper = (page.locator(f"[data-figure=figure{number}]") for number in range(3))
    stepper.scroll_into_view_if_needed()
    stepper.get_by_role("button", name="Back to the start").click()
    stepper.get_by_role("button", name="Step", exact=True).click()
    assert stepper.get_by_role("status").inner_text().startswith("Step 2 of ")

    before = shown(film)
    film.get_by_role("slider").press("End")  # it rests before it
    assert all(one != other for one, other in zip(before, shown(film), strict=True))

    slider = explorer.get_by_role("slider", name="rows")
    before = shown(explorer)
    slider.press("ArrowRight")
    moved = shown(explorer)
    assert all(one != other for one, other in zip(before, moved, strict=True))
    assert slider.get_attribute("aria-valuetext") == "4,096"
    assert "4,096" in moved[0]
    explorer.get_by_role("combobox", name="dtype").select_option("fp16")
    explorer.get_by_role("status").filter(has_text="fp16").wait_for()
    assert "4,096" in shown(explorer)[0], "a choice leaves the sliders where they are"
    gpus = explorer.get_by_role("combobox", name="GPU")  # a few: there is no room for all
    assert gpus.locator("option").all_inner_texts() == ["T4", "RTX 4090", "H100", "H200"]
    gpus.select_option("T4")
    explorer.get_by_role("status").filter(has_text="T4").wait_for()
    assert "to be changed in JupyterLab" not in page.locator("main").inner_text(), "what cannot be chosen is not shown"
    assert visit.errors == []
    assert visit.elsewhere() == []


def shown(figure) -> tuple[str, str]:
    """Its line, and what its picture says of itself."""
    return figure.get_by_role("status").inner_text(), figure.get_by_role("img").get_attribute("aria-label")


@pytest.mark.parametrize("recorded", [{}, {"figure0": {"text": "another"}}], ids=["missing", "another"])
def test_no_page_shows_a_still_of_a_figure_that_moves(course, tmp_path, monkeypatch, recorded):
    monkeypatch.setattr(build_site, "recorded", lambda lesson: recorded)
    with pytest.raises(
        ValueError, match=r"00_small.ipynb: the figure of `traffic_animation\(h200\)` is not recorded: run"
    ):
        build_site.build(course.root, tmp_path / "site")


def test_stale_recordings_make_no_site(monkeypatch, tmp_path, capsys):
    line = "source/site/live/00_small.json is older than helpers/figures/style.py: run `make notebooks`"
    monkeypatch.setattr(build_site, "drifted", lambda: [line])
    assert build_site.main(["--out", str(tmp_path / "site")]) == 1
    assert capsys.readouterr().err == f"site: {line}\n"
    assert not (tmp_path / "site").exists()


def test_an_answer_waits_for_the_guess(chromium, address):
    page = Visit(chromium, address).open("notebooks/00_small")
    first, second = page.locator(".fusion-guess[data-number]").all()
    answers = [page.get_by_text(text) for text in ("bytes, launch by launch", "launches, launch by", "So much for")]
    assert [each.is_visible() for each in answers] == [False] * 3
    table = page.get_by_text("all of it")
    assert not table.is_visible()
    field = first.get_by_role("textbox")
    field.fill("many")
    field.press("Enter")
    assert "as a number" in first.get_by_role("status").inner_text()
    assert [each.is_visible() for each in answers] == [False] * 3
    field.fill("10 MB")
    field.press("Enter")
    assert first.get_by_role("status").inner_text() == "Found: 20 MB; you said 10, too low by a factor of 2."
    assert [each.is_visible() for each in answers] == [True, False, False]
    page.reload()  # another day
    assert [each.is_visible() for each in answers] == [True, False, False]
    assert not table.is_visible(), "it answers the other question, too"
    second.get_by_role("button", name="Show me").click()
    assert [each.is_visible() for each in answers] == [True] * 3
    assert table.is_visible()
    page.goto(f"{address}index.html")
    assert page.locator("[data-lesson='00_small'] .done").inner_text() == "2 of 2 questions seen"


def test_a_link_into_an_answer_and_a_button_open_it(chromium, address):
    page = Visit(chromium, address).open("notebooks/00_small")
    answer, _ = page.locator(".answers").all()
    page.evaluate("id => location.hash = id", answer.locator(".cell").last.get_attribute("id"))
    page.get_by_text("bytes, launch by launch").wait_for()
    assert not page.get_by_text("launches, launch by launch").is_visible()
    page.get_by_role("button", name="Show every answer").click()
    assert page.get_by_text("launches, launch by launch").is_visible()
    assert page.get_by_text("all of it").is_visible()


def test_an_exercise_is_there_to_read(sample):
    page = markup(sample.out, "exercises/03_fused_add_gelu").select_one("main")
    assert "not attempted" not in page.get_text()
    imports = next(each for each in page.select(".code") if "import torch" in each.get_text())
    assert imports.name == "details"
    assert page.select_one("a.start[download]")["href"] == "03_fused_add_gelu.ipynb"


def test_a_question_has_one_fold(sample):
    """What answers it and what is said of it are hidden, with no other link to open; the table of all has its own."""
    for name in ("00_welcome", "03_first_fused_kernel"):
        page = markup(sample.out, f"notebooks/{name}")
        asked = page.select(".fusion-guess[data-number]")
        folds = page.select(".answers")
        assert [each["data-answers"] for each in folds] == [form["data-number"] for form in asked]
        assert all(each["hidden"] == "until-found" for each in folds)
        assert page.select(".answers h2, .answers .fusion-guess, .answers .answer") == []
        table = page.select(".answer")[-1]
        assert table["data-answers"].split() == [form["data-number"] for form in asked]
        assert len(page.select(".answer")) <= 2


def test_what_a_question_hides():
    """To a heading, the next question, or a figure that moves and tells nothing and the paragraph that leads to it."""
    v4, found = nbformat.v4, "size: 20 MB; you made no guess"
    texts = {
        "size": "size: [your guess] MB",
        "size.compare": found,
        "chart": "a chart of 20 MB",
        "read": None,
        "lead": None,
        "puzzle(kernel, 2)": "Not yet",
        "behind": "a table",
        "telling": "20 MB again",
        "more": "more: [your guess] ",
        "more.compare": "more: 3; you made no guess",
        "## Section": None,
        "again": "20 MB",
        "It fell.\n\nOf two.\n\nNow try:\n\n1. What else?": None,
        "puzzle(other, 2)": "Not yet",
        "## Another": None,
        "last": "20 MB",
        "It says so.": None,
    }
    cells = [
        v4.new_markdown_cell(name)
        if told is None
        else v4.new_code_cell(name, outputs=[v4.new_output("stream", text=told)])
        for name, told in texts.items()
    ]
    of = {0: [1, 2, 5, 6, 7, 11, 15], 1: [9, 11, 15]}
    notebook = v4.new_notebook(cells=[*cells])
    waits = build_site.fold(notebook, [[cells[at] for at in its] for its in of.values()], ["20 MB", "3"], {})
    marks = {
        cell.source: tuple(cell.metadata.get(mark) for mark in ("opens", "closes", "unfolds", "unfolded"))
        for cell in notebook.cells
    }
    assert {name: mark for name, mark in marks.items() if any(each is not None for each in mark)} == {
        "size.compare": (0, None, None, None),
        "read": (None, True, None, None),
        "more.compare": (1, True, None, None),
        "again": (None, None, [0, 1], None),
        "It fell.\n\nOf two.": (None, None, None, True),
        "last": (None, None, [0, 1], None),
        "It says so.": (None, None, None, True),
    }
    assert "Now try:\n\n1. What else?" in marks
    assert {next(cell.source for cell in cells if cell.id == each): numbers for each, numbers in waits.items()} == {
        "telling": [0]
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It fell.\n\nNow try this.", "It fell."),
        ("It fell. Now try this.", ""),
        ("It fell.\n\nTry:\n\n1. One.\n2. Two.\n", "It fell."),
        ("It fell.\n\nFrom this:\n\n$$x$$\n\nNow try this.", "It fell."),
    ],
)
def test_the_paragraph_that_leads_to_a_figure_is_not_folded(text, told):
    before, leads = build_site.split_at_lead(text)
    assert before == told
    assert f"{before}\n\n{leads}".strip() == text.strip()


def test_text_about_a_folded_picture_is_folded_with_it(sample):
    """Beside "Show the picture", it would give the answer away, or speak of nothing."""
    page = markup(sample.out, "notebooks/00_welcome")
    [fold] = page.select(".answer:has(> p)")
    assert fold["data-answers"] == "1"
    assert fold.summary.get_text() == "Show the picture and the text about it"
    assert "This chart is the whole course in one picture" in fold.get_text()
    assert not page.select(".answer .answer"), "one link opens all of it"


def test_code_has_elements_only_where_it_has_colours():
    """They were three of four elements in the largest lesson."""
    code = '<span class="k">def</span> <span class="nf">f</span><span class="p">(</span><span class="n">x</span>'
    plain = '<span class="k">def</span> <span class="nf">f</span>(x'
    assert build_site.plain_where_plain(code) == plain


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("@triton.jit\ndef kernel(x):\n    tl.store(x, 1)\n", "python"),
        ("    tmp0 = tl.load(x)\n    tmp1 = tl.load(y)\n", "python"),
        ("#include <torch/extension.h>\nint f();\n", "cpp"),
        ("memory 11.5 GB/s\nridge point 9.6\n", ""),
        ("x: 3\ny: 4\n", ""),
        ("f(3)", ""),
        ("@%p1 bra L;\n", ""),
    ],
)
def test_printed_source_is_highlighted(text, language):
    assert build_site.language_of(text) == language
    shown = build_site.highlighted(nbformat.v4.new_output("stream", text=text))
    assert ('<div class="highlight">' in shown) == bool(language)
    table = nbformat.v4.new_output("display_data", {"text/plain": text, "text/html": "<table></table>"})
    assert build_site.highlighted(table) == ""


def test_nothing_denies_a_guess(sample, course):
    """Nothing runs on a page: what a notebook printed about no guess contradicts the form above it."""
    for site, name in ((sample, "notebooks/00_welcome"), (course, "notebooks/00_small")):
        assert "you made no guess" not in markup(site.out, name).get_text()


def test_the_last_question_takes_an_answer(chromium, address):
    page = Visit(chromium, address).open("notebooks/00_small")
    form = page.locator(".fusion-guess[data-right]")
    assert not page.get_by_text("self_test(").count(), "no cell that cannot run, and no sealed answer"
    for typed, told in (("4", "Not 4: one."), ("many", "Type a number first, or press “Show me”."), ("3", "Right.")):
        form.get_by_role("textbox").fill(typed)
        form.get_by_role("textbox").press("Enter")
        assert form.get_by_role("status").inner_text() == told
    form.get_by_role("button", name="Show me").click()
    assert form.get_by_role("status").inner_text() == "3: one."


def test_what_the_building_machine_timed_is_said_to_be_its(course, sample):
    """A reader's own machine has other times, or none."""
    for site, name in ((course, "notebooks/00_small"), (sample, "notebooks/00_welcome")):
        text = " ".join(each.get_text() for each in markup(site.out, name).select(".output"))
        assert text.count("On the machine that built this page:") == 1, "once per cell"
        assert "on this CPU" not in text
        assert "No GPU here" not in text
    assert "on the CPU that built this page: 3 ms" in markup(course.out, "notebooks/00_small").get_text()


def test_no_page_shows_a_sealed_answer(whole):
    for path in whole.out.glob("notebooks/*.html"):
        assert "sealed=" not in path.read_text(encoding="utf-8"), path.name


def test_the_table_at_the_end_marks_how_far_off_a_guess_was(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/").open("notebooks/00_welcome")
    for form in page.locator(".fusion-guess[data-number]").all():
        form.get_by_role("textbox").fill("16")
        form.get_by_role("textbox").press("Enter")
    marks = page.locator(".fusion-table").last.get_by_role("img")
    told = [each.get_attribute("aria-label") for each in marks.all()]
    assert len(told) == page.locator(".fusion-guess[data-number]").count()
    assert all(re.fullmatch(r"right|too (high|low) by a factor of [\d.]+", each) for each in told)


def test_the_contents_mark_the_section_that_is_read(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 1440, "height": 900}).open(
        "notebooks/00_welcome"
    )
    for heading in page.locator("main h2[id]").all()[:3]:
        heading.evaluate("heading => heading.scrollIntoView({block: 'start', behavior: 'instant'})")
        page.wait_for_function(
            "id => document.querySelector('#contents a[aria-current=location]')?.hash === `#${id}`",
            arg=heading.get_attribute("id"),
        )


@pytest.mark.parametrize("folder", ["lessons", "exercises"])
def test_text_is_rendered(folder):
    """Markdown in an HTML block, such as an answer's, stays as it was typed; so does a code span broken by a bullet."""
    found = []
    for path in sorted((ROOT / "source" / folder).glob("*.py")):
        for cell in jupytext.read(path, fmt="py:percent").cells:
            if cell.cell_type == "markdown":
                rendered = MarkdownWithMath(renderer=IPythonRenderer(escape=False)).render(cell.source)
                page = BeautifulSoup(rendered, "html.parser")
                for node in page.select("pre, code"):
                    node.decompose()
                text = re.sub(r"\$[^$]+\$(?![^<]*</details>)", "", page.get_text())
                found += [(path.stem, line) for line in text.splitlines() if "`" in line]
    assert found == []


def test_an_explorer_moves_without_a_guess_unless_it_tells(chromium, tried):
    with served(tried) as address:
        visit = Visit(chromium, address)
        page = visit.open("notebooks/00_tried")
        telling, moving = (page.locator(f"[data-figure=behind-{name}]") for name in ("rows", "registers"))
        moving.scroll_into_view_if_needed()
        slider = moving.get_by_role("slider", name="rows")
        before = shown(moving)
        slider.press("ArrowRight")
        assert all(one != other for one, other in zip(before, shown(moving), strict=True))
        assert not telling.is_visible()
        assert not page.get_by_text("registers: 73").is_visible(), "the answer waits"
        page.get_by_role("button", name="Show me").first.click()
        assert telling.is_visible()
        assert visit.errors == []


def test_a_lesson_opens_with_its_film_unless_that_tells(sample, course):
    page = markup(sample.out, "notebooks/00_welcome")
    films = page.select(".live")
    assert not films[0].find_parent(class_="answer"), "the first question has another answer"
    known = json.loads((course.root / "source/site/live/00_small.json").read_text())["figures"]
    assert build_site.counted_by(known["figure0"]).split()[0] == "2"  # GB, unfused
    assert build_site.counted_by(known["figure1"]) == ""


@pytest.mark.parametrize(
    ("text", "found", "told"),
    [
        ("H100: 16 operations; the first to spill is 15.", "15 operations", True),
        ("The GPU is busy 53.9% of 880 us.", "53.93 %", True),
        ("fp32: a warp fetches 8 sectors.", "32", False),  # the dtype's name is no number
        ("262,144 bytes", "262144 B", True),
        ("262,144 bytes", "262.1 kB", False),
        ("nothing that counts", "", True),  # not known: it stays folded
    ],
)
def test_what_tells_an_answer(text, found, told):
    assert build_site.says(text, found) == told


def test_a_page_asks_to_fill_its_box_and_not_to_replace_dots():
    assert build_site.for_a_box("How many? Replace the dots with\nyour number.") == "How many? Enter\nyour number."
    asking = [path for path in ROOT.glob("source/lessons/*.py") if "Replace the dots" in path.read_text()]
    assert asking
    for path in asking:
        told = re.sub(r"\n# +", "\n", path.read_text())
        assert "Replace the dots" not in build_site.for_a_box(told), path.name


def test_the_first_pages_film_counts_bytes_and_rests_on_its_end(tmp_path):
    [state] = build_site.finished_film()["states"]
    data = json.loads(zlib.decompress(base64.b64decode(state)))["data"]
    assert data["rests"] == 1
    [[_, scene]] = data["scenes"]
    assert [counter[1] for counter in scene["counters"]] == ["{} GB have crossed", "clock: {} µs"] * 2


def test_a_puzzle_offers_lines_to_the_keyboard(chromium, tried):
    visit = Visit(chromium, f"{tried.out.as_uri()}/", viewport={"width": 390, "height": 844})
    page = visit.open("notebooks/00_tried")
    wrong, right, *_ = lines = page.locator(".choice").all()
    assert [each.get_by_role("img").is_visible() for each in lines] == [False] * 4
    assert page.get_by_text("Which of these should replace").locator("code").inner_text() == "at = tl.arange(0, BLOCK)"
    wrong.locator("summary").press("Enter")
    assert wrong.get_by_text("Not yet: programs 0 and 1 both store to y_ptr").is_visible()
    assert sideways(page) <= 0
    page.keyboard.press("Tab")
    if not right.locator("summary:focus").count():  # the picture, wider than a phone, scrolls
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert right.get_by_text("Solved: right values").is_visible()
    assert right.get_by_role("img").get_attribute("alt").startswith("Solved")
    assert not wrong.get_by_text("Not yet").is_visible(), "one line at a time"
    assert sideways(page) <= 0
    assert visit.errors == []
    assert violations(page) == []


def test_lines_break_where_nothing_stands_in_columns():
    assert build_site.is_prose("2 launches: 12 MB read + 8 MB written = 20 MB\n  (by the meter)")
    assert not build_site.is_prose("eager   2 launches\nfused   1 launch")
    assert not build_site.is_prose("def layer(x):\n    return x")


def test_a_phone_shows_all_that_a_cell_prints(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 390, "height": 844}).open(
        "notebooks/00_welcome"
    )
    page.evaluate("document.querySelectorAll('.answer').forEach((each) => (each.open = true))")
    printed = page.locator(".output pre.prose").evaluate_all(
        """all => all.map(
            (each) => [each.textContent, each.scrollWidth - each.clientWidth, each.getBoundingClientRect().right])"""
    )
    assert len(printed) > 5
    assert [text for text, more, right in printed if more > 0 or right > 390] == []


def test_lines_of_a_puzzle_stand_below_each_other():
    assert build_site.aligned("a = 1\n    b = 2\n        c = 3") == "a = 1\nb = 2\n    c = 3"
    assert build_site.aligned("a = 1") == "a = 1"


@pytest.mark.parametrize(
    "change", [lambda puzzles: {}, lambda puzzles: {kernel: lines[1:] for kernel, lines in puzzles.items()}]
)  # fmt: skip
def test_no_page_leaves_out_what_a_puzzle_offers(tried, tmp_path, monkeypatch, change):
    known = record_puzzles.recorded(Path("notebooks/00_tried.ipynb"), tried.root)
    monkeypatch.setattr(record_puzzles, "recorded", lambda *_: change(known))
    with pytest.raises(ValueError, match=r"00_tried.ipynb: what the puzzle copy_kernel offers is not recorded: run"):
        build_site.build(tried.root, tmp_path / "site")


def test_recorded_lines_without_a_lesson_are_reported(tmp_path):
    folder = tmp_path / "source/site/puzzles"
    folder.mkdir(parents=True)
    (folder / "00_gone.json").write_text("{}")
    line = "source/site/puzzles/00_gone.json belongs to no lesson with choices: delete it"
    assert record_puzzles.drifted(tmp_path) == [line]


def sideways(page) -> int:
    """Pixels by which it is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def violations(page) -> list[str]:
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in serious]


def test_pages_fit_a_phone(chromium, sample):
    visit = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 390, "height": 844})
    pages = [path.relative_to(sample.out).with_suffix("").as_posix() for path in sample.out.rglob("*.html")]
    assert {name: wide for name in pages if (wide := sideways(visit.open(name))) > 0} == {}
    visit.page.add_style_tag(content=".code { overflow: visible } main { width: 60rem }")
    assert sideways(visit.page) > 0


def test_a_link_lands_on_its_heading(chromium, sample):
    """Parts that weren't seen yet have an estimated height: a smooth scroll would aim at where they were."""
    visit = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 1440, "height": 900})
    page = visit.open("notebooks/03_first_fused_kernel")
    for link in ("test-yourself", "a-data-race"):
        page.evaluate("link => { location.hash = link }", link)
        page.wait_for_timeout(700)
        assert 0 <= page.locator(f"[id='{link}']").bounding_box()["y"] < 120, link


def test_a_phone_reaches_all_contents_and_results(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 390, "height": 844}).open(
        "notebooks/03_first_fused_kernel"
    )
    page.locator("#menu").click()
    contents = page.locator("#contents")
    box = contents.bounding_box()
    assert box["y"] + box["height"] <= 844
    last = contents.locator("a").last
    last.scroll_into_view_if_needed()
    assert last.bounding_box()["y"] < 844
    page.keyboard.press("Escape")
    page.locator("#search input").fill("warp")
    box = page.locator("#found a").first.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("typed", ["occupancy", "Bank conflict", "bank conflicts", "wave", "cold l2", "CUDA graph"])
def test_the_search_lists_the_very_term_first_and_shows_it_in_each_excerpt(chromium, whole, typed):
    page = Visit(chromium, f"{whole.out.as_uri()}/").open("index")
    page.locator("#search input").fill(typed)
    first = page.locator("#found a").first
    first.wait_for()
    term = typed.lower().removesuffix("s").replace(" ", "-")
    assert first.get_attribute("href").endswith(f"docs/glossary.html#{term}")
    for found in page.locator("#found a").all():
        marked = " ".join(found.locator("mark").all_inner_texts()).lower()
        words = typed.lower().removesuffix("s").split()
        assert all(word in marked or word in found.locator("b").inner_text().lower() for word in words), (
            found.inner_text()
        )


def test_a_link_to_the_glossary_lands_on_its_entry(chromium, whole):
    visit = Visit(chromium, f"{whole.out.as_uri()}/", viewport={"width": 1440, "height": 900})
    for term in ("accumulator", "occupancy", "warp"):
        visit.page.goto("about:blank")
        visit.page.goto(f"{visit.address}docs/glossary.html#{term}")
        top = visit.page.locator(f"#{term}").bounding_box()["y"]
        at_end = visit.page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 2")
        assert 40 <= top < 140 or (at_end and top < 900), (term, top)


def test_what_scrolls_can_have_the_focus_before_it_was_seen(chromium, sample):
    """Far down a page nothing is measured yet, and a checker or a reader may go there first."""
    only = {"runOnly": ["scrollable-region-focusable"], "resultTypes": ["violations"]}
    for width in (412, 1440):
        page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": width, "height": 823}).open("index")
        assert Axe().run(page, options=only).response["violations"] == [], width
        idle = page.locator("main [tabindex='0']").evaluate_all("""nodes => nodes.filter((node) =>
            node.getBoundingClientRect().top < innerHeight && node.scrollWidth <= node.clientWidth).length""")
        assert idle == 0, width
    page.locator("main :is(pre, .output, .wide)").evaluate_all("""nodes => nodes.forEach((node) => {
        node.style.width = "9rem";
        node.removeAttribute("tabindex");
    })""")
    assert Axe().run(page, options=only).response["violations"]


def test_the_first_page_breaks_no_number(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 1440, "height": 900}).open("index")
    cards = page.locator(".map .row > a").evaluate_all("""cards => cards.map((card) => {
        const range = document.createRange();
        range.selectNodeContents(card.querySelector(".number"));
        const title = card.lastElementChild.getBoundingClientRect();
        return [card.textContent, title.left - range.getBoundingClientRect().right];
    })""")
    assert len(cards) > 10
    assert [text for text, gap in cards if gap < 4] == []
    cells = page.locator("main td:nth-last-child(-n + 3)").filter(has_text="1")
    cells = cells.evaluate_all("""cells => cells.map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return [cell.textContent, new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size];
    })""")
    assert len(cells) > 10
    assert [text for text, lines in cells if lines > 1] == []


def test_each_exercise_has_its_line_on_the_map(chromium, sample):
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 390, "height": 844}).open("index")
    lines = page.locator(".map .exercise").evaluate_all(
        "lines => lines.map((line) => [line.textContent, line.querySelector('a').getClientRects().length])"
    )
    assert len(lines) > 15
    assert [text for text, rows in lines if rows > 1] == []
    assert all(re.fullmatch(r"exercise \d+b?: \d+ minutes, \d+ points", text) for text, _ in lines)
    tops = page.locator(".map .row").evaluate_all("""rows => rows.map((row) => {
        const lines = [...row.querySelectorAll(".small:not(.done)")].map((each) => each.getBoundingClientRect());
        return lines.slice(1).every((each, place) => each.top >= lines[place].bottom - 1);
    })""")
    assert all(tops)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_maps_drawings_are_seen_in_either_theme(chromium, sample, theme):
    visit = Visit(chromium, f"{sample.out.as_uri()}/", color_scheme=theme)
    page = visit.open("index")
    fills = page.locator(".map svg [fill]:not([fill=none])").evaluate_all(
        "all => [...new Set(all.map((each) => getComputedStyle(each).fill))]"
    )
    paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(fills) >= 4
    for fill in fills:
        ink = luminance(fill)
        least = 4 if theme == "dark" else 2
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > least, fill


def luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance of "rgb(r, g, b)"."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("width", "height", "lowest"), [(1440, 900, 700), (390, 844, 650)])
def test_each_lesson_shows_its_opening_figure_in_the_first_window(chromium, whole, width, height, lowest):
    visit = Visit(chromium, f"{whole.out.as_uri()}/", viewport={"width": width, "height": height})
    lessons = [page for page in whole.pages if page.kind == "lesson" and page.number]
    tops = {page.number: visit.open(page.target.removesuffix(".html")).evaluate(FIRST)["top"] for page in lessons}
    assert len(tops) >= 20
    assert {number: top for number, top in tops.items() if top > lowest} == {}


def test_a_phone_shows_a_picture_first_and_its_controls_in_the_same_window(chromium, address):
    page = Visit(chromium, address, viewport={"width": 390, "height": 844}).open("notebooks/00_small")
    figure = page.locator("[data-figure=figure1]")
    figure.scroll_into_view_if_needed()
    chart, controls = figure.locator(".fusion-chart"), figure.locator(".controls")
    chart.wait_for()
    figure.evaluate("node => scrollTo(0, node.getBoundingClientRect().top + scrollY - 100)")
    page.wait_for_timeout(300)
    above, below = chart.bounding_box(), controls.bounding_box()
    assert above["y"] + above["height"] <= below["y"] + 1
    chart.evaluate("node => node.style.minHeight = '800px'")  # more than the window has
    page.wait_for_timeout(300)
    assert 840 <= controls.evaluate("node => node.getBoundingClientRect().bottom") <= 844
    figure.evaluate("node => scrollTo(0, node.getBoundingClientRect().top + scrollY - 600)")
    page.wait_for_timeout(300)
    clear = figure.evaluate("""node => {
        const top = (name) => node.querySelector(name).getBoundingClientRect().top;
        return top(".controls") - top(".picture-first");
    }""")
    assert clear == pytest.approx(320, abs=2), "they cover what comes first"
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_timeout(300)
    assert controls.bounding_box()["y"] < chart.bounding_box()["y"]


def test_the_link_to_code_is_below_what_the_code_drew(chromium, sample):
    """Beside it, it covered the ends of lines, and was far from a narrow figure."""
    page = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": 1440, "height": 900}).open(
        "notebooks/00_welcome"
    )
    gaps = page.locator(".cell:has(> details.code):has(> .output)").evaluate_all("""cells => cells.map((cell) => {
        const { top, left } = cell.querySelector(":scope > details.code").getBoundingClientRect();
        const drawn = [...cell.querySelectorAll(":scope > .output")].at(-1).getBoundingClientRect();
        return [top - drawn.bottom, left - drawn.left];
    })""")
    assert len(gaps) > 3
    assert [gap for gap in gaps if gap[0] < 0 or abs(gap[1]) > 1] == []


def test_a_phone_shows_the_opening_figure_before_the_text_that_leads_to_it(chromium, sample):
    for width, first in ((390, "figure"), (1440, "text")):
        visit = Visit(chromium, f"{sample.out.as_uri()}/", viewport={"width": width, "height": 844})
        page = visit.open("notebooks/00_welcome")
        tops = [page.locator(f".opening > {each}").first.bounding_box()["y"] for each in (".cell", "p")]
        assert ("figure" if tops[0] < tops[1] else "text") == first


@pytest.mark.parametrize(
    ("name", "theme"),
    [
        pytest.param("notebooks/00_welcome", "dark", marks=pytest.mark.long),
        ("exercises/03_fused_add_gelu", "light"),
    ],
)
def test_a_page_has_no_serious_violation(chromium, sample, name, theme):
    visit = Visit(chromium, f"{sample.out.as_uri()}/", color_scheme=theme)
    page = visit.open(name)
    visit.see_all()
    assert violations(page) == []
    page.evaluate("document.querySelector('header button[id=theme]').textContent = ''")
    assert [each.split(":")[0] for each in violations(page)] == ["button-name"]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_at_every_width(chromium, whole, theme):
    with served(whole) as address:  # of pages from a folder, the browser lets no script read the style
        visit = Visit(chromium, address, color_scheme=theme)
        for page in (whole.front, *whole.pages):
            name = page.target.removesuffix(".html")
            for width in (1440, 1024, 412, 390):
                visit.page.set_viewport_size({"width": width, "height": 900})
                assert sideways(visit.open(name)) <= 0, f"{name} at {width}"
                visit.see_all()
                assert violations(visit.page) == [], f"{name} at {width}"
                assert sideways(visit.page) <= 0, f"{name} at {width}"
                assert formulas_too_wide(visit.page) == [], f"{name} at {width}"
            assert visit.errors == [], name


def test_the_keyboard_finds_the_way(chromium, address):
    visit = Visit(chromium, address)
    page = visit.open("index")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("/")
    page.keyboard.type("program instances mask")
    page.locator("#found a").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/notebooks/00_small.html#program-instances")
    page.get_by_role("button", name="Dark page").press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 22)"
    page = visit.open("index")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.set_viewport_size({"width": 390, "height": 844})
    menu = page.get_by_role("button", name="Contents")
    assert not page.locator("#contents").is_visible()
    menu.press("Enter")
    assert page.evaluate("document.activeElement.closest('#contents') !== null")
    page.keyboard.press("Escape")
    assert not page.locator("#contents").is_visible()
    assert page.evaluate("document.activeElement.id") == "menu"
    assert visit.errors == []


def _opening(*between: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """A lesson's first cells, with those before its figure; the site's order of them all."""
    figure = nbformat.v4.new_output("display_data", {"image/png": "", "text/plain": "a film"})
    return [
        nbformat.v4.new_markdown_cell("# 05 A lesson\n\nWhy?\n\nYou learn to\n\n- count.\n\nAbout 5 minutes."),
        *between,
        nbformat.v4.new_markdown_cell("Press Play:"),
        nbformat.v4.new_code_cell("passes_animation('norm')", outputs=[figure]),
    ]


SETUP = nbformat.v4.new_code_cell("import torch")
GUESS = nbformat.v4.new_code_cell("predict_first('B')", outputs=[nbformat.v4.new_output("stream", text="B:")])
CODE_AHEAD = nbformat.v4.new_markdown_cell("This is its kernel:")
SEEN = nbformat.v4.new_markdown_cell("<details><summary>What you should see</summary>It moves.</details>")


@pytest.mark.parametrize("between", [[SETUP], [GUESS, SETUP]], ids=["after the imports", "after a guess"])
@pytest.mark.parametrize("after", [[], [SEEN], [CODE_AHEAD]], ids=["alone", "with what is to be seen", "before code"])
def test_a_lesson_leads_with_its_opening_figure(between, after):
    section = nbformat.v4.new_markdown_cell("## Section")
    notebook = nbformat.v4.new_notebook(cells=[*_opening(*between), *after, section])
    stays, after = (after, []) if after == [CODE_AHEAD] else ([], after)
    build_site.lead_with_the_figure(notebook)
    first, told, film, *others = notebook.cells
    assert first.source == "# 05 A lesson\n\nWhy?\n\n"
    assert (told.source, film.source) == ("Press Play.", "passes_animation('norm')"), "it may come after the figure"
    assert told.metadata["leads"]
    assert film.metadata["led"]
    assert others[: len(after)] == after
    goals = others[len(after)]
    assert goals.source.startswith("You learn to")
    assert [cell for cell in notebook.cells if cell.metadata.get("how_to_run")] == [goals]
    assert others[len(after) + 1 :] == [*between, *stays, section]


def test_a_figure_of_a_section_stays_there():
    notebook = nbformat.v4.new_notebook(cells=_opening(SETUP, nbformat.v4.new_markdown_cell("## Section")))
    before = [cell.source for cell in notebook.cells]
    build_site.lead_with_the_figure(notebook)
    assert [cell.source for cell in notebook.cells] == before
    assert notebook.cells[0].metadata["how_to_run"]
