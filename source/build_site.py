"""Build the course's web pages, in site/, from the built notebooks, without running anything. `make site`.

nbconvert builds them with the template in source/site/: it is installed with JupyterLab, needs no Node.js and no
network, and renders the notebooks as they are. Jupyter Book 2 (MyST) would add a theme and a search, but it is a
Node.js program that downloads its theme at build time, its pages load scripts from other hosts, and we would still have
to show figures that move without a kernel.

- A live figure moves without a kernel, from the recording made by source/record_figures.py. If that is missing or
  stale, no page is built.
- A puzzle offers lines to try, each with its recorded outcome (source/record_puzzles.py).
- Each question folds its answer: what follows it, in its section, stays hidden until the reader guesses or asks. A
  figure that moves or a puzzle needs no guess, nor does the paragraph that leads to it or the text after it, unless it
  shows an answer. Whatever answers several questions waits for the last of them.
- An answer further down is folded where it is, together with the text about it.
- If a lesson opens with a figure, the figure comes right after the lesson's question, before the objectives, how to run
  the notebook, and its first cell. On a phone a picture comes before its controls and the text that leads to it. Text
  that only applies to a notebook, <span class="lab"> in a lesson, is left out.
- An exercise's picture comes after its first paragraph, before the formulas.
- Formulas become MathML at build time; pages request nothing from other hosts, and work from a folder or a server.

    python source/build_site.py                  build site/
    python source/build_site.py --out FOLDER     build it there
    python source/build_site.py --only 00 03     only the pages whose names start with these, and the first page
"""

import argparse
import ast
import base64
import functools
import hashlib
import html
import importlib
import io
import json
import math
import pkgutil
import re
import shutil
import sys
import textwrap
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import nbformat
from anywidget import AnyWidget
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import helpers.figures  # noqa: E402, as build.py this runs as a script
from helpers.figures.frame.interactive_export import export_interactive  # noqa: E402
from helpers.figures.memory.moving_bytes import traffic_animation  # noqa: E402
from helpers.figures.thumbnails import thumbnail  # noqa: E402
from helpers.instruments import recorded as recorded_run  # noqa: E402
from helpers.learning.course_map import Lesson, lessons_of, minutes_of, parts_of  # noqa: E402
from helpers.learning.questions import HEADING, answers_of  # noqa: E402
from helpers.learning.self_tests import MIME as SEALED  # noqa: E402
from helpers.learning.self_tests import unsealed  # noqa: E402
from helpers.style import TEXT  # noqa: E402
from source import record_puzzles  # noqa: E402
from source.readme import total_time  # noqa: E402
from source.record_figures import drifted, is_live, recorded  # noqa: E402

HERE = Path(__file__).parent / "site"
RECORD_IT = "run `make notebooks`, which records figures that move"
ASKED = re.compile(r"(?P<question>.*): \[your guess\] ?(?P<unit>.*)")  # how a question is stored if no widget runs
DOORS = re.compile(r"https://(?:mybinder\.org/v2|colab\.research\.google\.com/github|codespaces\.new)/[^\s)\"<>]+")
PICTURE = re.compile(r'<img src="data:image/png;base64,([^"]+)"')
PICTURE_CELL = "from helpers.figures.exercise_pictures import"
CAPTION = "**The picture**"
CPP = re.compile(r"^(?:#include <|using \w+ = )", re.MULTILINE)
TOKEN = re.compile(r'<span class="(\w+)">([^<]*)</span>')
UNATTEMPTED = re.compile(r"not attempted|Once the check .* has passed, run this cell again")
UNASKED = "; you made no guess"
# What a cell says of the machine that built the page: what it timed there, or that something is missing.
TIMED = re.compile(r"\b(?:this_device\(|benchmark\w*\(|perf_counter\()")
LACKS = re.compile(r"No module named|CUDA driver")
NO_GPU = "No GPU here. "
THIS_CPU, BUILDER = "on this CPU", "on the CPU that built this page"
GOALS = re.compile(r"^.+\n\n(?=- )", re.MULTILINE)  # the line before a list
STRUCTURE = re.compile(r"\d+\. |- |<|\$\$|```")  # a list, HTML, a formula, code
MATHML = "{http://www.w3.org/1998/Math/MathML}"
ElementTree.register_namespace("", MATHML[1:-1])
SPACE_AT_END = re.compile(r"\\\n")  # of a formula's line
RELATIONS = ("=", "\u2265", "\u2264", "\u2260", "\u2248")
FITTING = 560  # pixels: up to this width, a picture's text is legible on a phone


@dataclass
class Page:
    """One page. `source`: the file it is made from, relative to the course's folder; `kind`: "lesson", "exercise" or
    "document". `sections`: (level, id, title) of its headings, `texts`: the words under each, as rendered."""

    source: Path
    kind: str
    title: str
    sections: list[tuple[int, str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """00, 03b; empty if it has none."""
        return number[0] if (number := re.match(r"\d+[a-z]?(?=_)", self.source.stem)) else ""

    @property
    def name(self) -> str:
        name = f"{self.number} {self.title}".strip()
        return f"Exercise {name}" if self.kind == "exercise" else name

    @property
    def target(self) -> str:
        return "index.html" if self.source.name == "README.md" else self.source.with_suffix(".html").as_posix()

    @property
    def root(self) -> str:
        """Path from the page to the first page's folder."""
        return "../" * (len(self.source.parts) - 1)


def pages_of(root: Path) -> list[Page]:
    """Return lessons, exercises and documents, each kind in order."""
    pages = []
    for folder, kind in (("notebooks", "lesson"), ("exercises", "exercise")):
        for path in sorted((root / folder).glob("*.ipynb"), key=lambda path: path.stem.replace("lab_", "~")):
            opening = nbformat.read(path, as_version=4).cells[0].source
            title = re.sub(r"^# (?:Exercise )?(?:\d+[a-z]?)?[.:]? ?| \[\d+ points\]$", "", opening.partition("\n")[0])
            pages.append(Page(path.relative_to(root), kind, title[:1].upper() + title[1:]))
    for path in (*sorted((root / "docs").glob("*.md")), root / "CONTRIBUTING.md", root / "CHANGELOG.md"):
        if path.exists():
            title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            pages.append(Page(path.relative_to(root), "document", title))
    return pages


# Text


class Renderer(IPythonRenderer):
    """Markdown as on a page: formulas as MathML, headings with anchors, links that lead to pages."""

    def __init__(self, page: Page, site: "Site"):
        super().__init__(escape=False)
        self.page, self.site = page, site

    def inline_math(self, body: str) -> str:
        return in_mathml(body)

    def block_math(self, body: str) -> str:
        return f'<div class="formula">{breakable(in_mathml(body, "block"))}</div>'

    def heading(self, text: str, level: int, **attrs) -> str:
        plain = html.unescape(re.sub(r"<[^>]+>", "", text))
        anchor = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "section"
        taken = {each for _, each, _ in self.page.sections}
        anchor = next(each for each in (anchor, *(f"{anchor}-{n}" for n in range(2, 99))) if each not in taken)
        self.page.sections.append((level, anchor, plain))
        link = f'<a class="anchor" href="#{anchor}" aria-label="Link to: {html.escape(plain)}">#</a>'
        return f'<h{level} id="{anchor}">{text}{link if level > 1 else ""}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        there = self.site.address(url, self.page)
        return super().link(text, there, title) if there else text

    def image(self, text: str, url: str, title: str | None = None) -> str:
        there = self.site.address(url, self.page)
        return super().image(text, there, title) if there and "://" not in there else html.escape(text)


def in_mathml(formula: str, display: str = "inline") -> str:
    formula = re.sub(r"\\text{[^}]*}", lambda words: words[0].replace(r"\_", "_"), SPACE_AT_END.sub(r"\\ ", formula))
    return convert(formula, display=display)


def breakable(formula: str) -> str:
    """Return a formula in MathML as one or more elements, so that it may be broken between them: browsers break none.

    It is broken at a wide space first, then before a relation or words and after a plus or minus, but not within
    parentheses that grow with what is in them, a fraction or a sum's limits.
    """
    whole = ElementTree.fromstring(formula)
    [row] = whole
    formulas: list[list[list]] = [[[]]]  # between wide spaces, each of parts of nodes
    ends = False  # whether an operand ends here
    for node in row:
        parts, sign = formulas[-1], node.text if node.tag == f"{MATHML}mo" else ""
        is_relation, is_sum = sign in RELATIONS, ends and sign in ("+", "\u2212")
        are_words = node.tag == f"{MATHML}mtext" and node.text.startswith("\u00a0")
        if ends and (is_relation or are_words):
            parts.append([])
        parts[-1].append(node)
        if is_relation or is_sum:
            node.set("form", "infix")  # also at a part's end, where it would have no space around it
        if is_sum:
            parts.append([])
        if node.tag == f"{MATHML}mspace" and node.get("width") in ("1em", "2em"):  # \quad, \qquad
            formulas.append([[]])
        ends = bool(formulas[-1][-1]) and (not sign or sign in (")", "]"))

    def shown(part: list) -> str:
        each = ElementTree.Element(f"{MATHML}math", whole.attrib)
        ElementTree.SubElement(each, row.tag).extend(part)
        return ElementTree.tostring(each, encoding="unicode")

    return "".join(f"<span>{''.join(map(shown, filter(None, parts)))}</span>" for parts in formulas if any(parts))


def words_of(markup: str) -> str:
    """Return the text of a page's markup without headings and formulas, in one line."""
    text = html.unescape(re.sub(r"<(math|h\d).*?</\1>|<[^>]+>", " ", markup, flags=re.DOTALL))
    return re.sub(r" ([.,;:!?)])(?!\w)", r"\1", " ".join(text.split()))


# Pages


class Exporter(HTMLExporter):
    """nbconvert's exporter without its second pass over the finished page, which takes half of the time.

    That pass looks for pictures without a description, and every picture here has one.
    """

    def from_notebook_node(self, nb, resources=None, **more):
        lines = Highlight2HTML(pygments_lexer=nb.metadata.get("language_info", {}).get("pygments_lexer"))
        self.register_filter("highlight_code", lambda *code, **more: plain_where_plain(lines(*code, **more)))
        self.register_filter("is_prose", is_prose)
        shown = self._init_resources(resources)
        self.register_filter("filter_data_type", WidgetsDataTypeFilter(self._nb_metadata, parent=self, resources=shown))
        return super(HTMLExporter, self).from_notebook_node(nb, shown, **more)


@functools.cache
def _coloured() -> frozenset[str]:
    """Return Pygments' classes that the site's style gives a colour."""
    return frozenset(re.findall(r"\.highlight \.(\w+)", (HERE / "site.css").read_text(encoding="utf-8")))


def plain_where_plain(code: str) -> str:
    """Return highlighted code without the elements that have no colour: three of four, half of a lesson's elements."""
    return TOKEN.sub(lambda token: token[0] if token[1] in _coloured() else token[2], code)


def highlighted(output: dict) -> str:
    """Return the markup of an output that is source, in Python or C++; empty for any other."""
    kinds = set(output.get("data", {})) - {"text/plain"}
    language = "" if kinds or output.get("name") == "stderr" else language_of(_text(output))
    if not language:
        return ""
    lines = highlight(textwrap.dedent(_text(output)), get_lexer_by_name(language), HtmlFormatter(cssclass="highlight"))
    return plain_where_plain(lines)


def language_of(text: str) -> str:
    """Return "cpp" or "python" if all of `text` is source; empty otherwise, and for a single line."""
    if text.strip().count("\n") < 1:
        return ""
    if CPP.search(text):
        return "cpp"
    try:
        statements = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError):
        return ""
    is_code = any(
        isinstance(each, ast.FunctionDef | ast.For)
        or (isinstance(each, ast.Assign) and isinstance(each.value, ast.Call))
        for each in statements
    )
    return "python" if is_code else ""


def is_prose(printed: str) -> bool:
    """Whether lines of what a cell printed may be broken: nothing in them stands in columns, and none is code."""
    return not re.search(r"\S {2,}\S|\t|^( {4}|@|def |class )", printed, flags=re.M)


class Site:
    """Builds the pages of the course in `root`, into `out`."""

    def __init__(self, root: Path, out: Path):
        self.root, self.out = root, out
        self.drawn: set[str] = set()  # the widgets of live figures, by name
        self.lessons = lessons_of(root)
        self.pages = pages_of(root)
        readme = (root / "README.md").read_text(encoding="utf-8")
        self.readme = re.split(r"^(?=## )", readme, flags=re.MULTILINE)
        self.front = Page(Path("README.md"), "front", self.readme[0].partition("\n")[0].removeprefix("# "))
        self.doors = sorted(set(DOORS.findall(readme)))
        self.targets = {page.source.as_posix(): page.target for page in (self.front, *self.pages)}
        config = Config(
            HTMLExporter={
                "template_name": "site",
                "extra_template_basedirs": [str(HERE.parent)],
                "filters": {"markdown2html": lambda text: text},  # cells come as markup
            }
        )
        self.exporter = Exporter(config=config)

    def address(self, url: str, page: Page) -> str:
        """Return where a link in a page's text leads on the site; empty if the site has no such page."""
        if re.match(r"[a-z]+:|#", url):
            return url
        path, hash_, anchor = url.partition("#")
        source = (self.root / page.source.parent / path).resolve()
        if not source.is_relative_to(self.root) or "solutions" in source.relative_to(self.root).parts:
            return ""
        name = source.relative_to(self.root).as_posix()
        if name in self.targets:
            return page.root + self.targets[name] + hash_ + anchor
        if not source.is_file():
            return ""
        self._copy(name)
        return page.root + name

    def _copy(self, name: str) -> None:
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.root / name, self.out / name)

    def markup(self, text: str, page: Page) -> str:
        """Render Markdown, and keep its text for the search."""
        text = re.sub(r"<!--.*?-->\n?|<span class=\"lab\">.*?</span>", "", text, flags=re.DOTALL)
        shown = ""
        for part in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
            rendered = MarkdownWithMath(renderer=Renderer(page, self)).render(part)
            section = page.sections[-1][1] if page.sections else ""
            page.texts[section] = f"{page.texts.get(section, '')} {words_of(rendered)}"
            shown += rendered
        shown = shown.replace("<p></p>\n", "")
        shown = re.sub(r"<th[^>]*></th>", "<td></td>", shown)  # a column without a name has no header
        return re.sub(r"(<table>.*?</table>)", r'<div class="wide">\1</div>', shown, flags=re.DOTALL)

    def write(self, page: Page, notebook: nbformat.NotebookNode, known: dict | None = None) -> None:
        """Render a notebook. `known`: the recorded figures that it uses, by default its own."""
        live = self._prepare(page, notebook, recorded(self.root / page.source) if known is None else known)
        self.drawn |= {figure["stage"] for figure in live.values()}
        if live:
            name = f"assets/live/{page.source.stem}.js"
            self._save(name, f"window.fusionLive = {json.dumps(live, separators=(',', ':'))};\n")
        order = [each for each in self.pages if each.kind == page.kind]
        at = order.index(page) if page in order else None
        around = {
            "before": order[at - 1] if at else None,
            "after": order[at + 1] if at is not None and at + 1 < len(order) else None,
            "related": [
                each
                for each in self.pages
                if page.number and each.kind != page.kind and each.number[:2] == page.number[:2]
                and {page.kind, each.kind} <= {"lesson", "exercise"}
            ],
        }  # fmt: skip
        divide(notebook)
        # As globals, because resources are deep-copied for each page.
        shown = {
            "page": page,
            "site": self,
            "live": name if live else "",
            "map": self.map if page is self.front else (),
            **around,
        }
        self.exporter.environment.globals.update(shown)
        markup, _ = self.exporter.from_notebook_node(notebook)
        self._save(page.target, markup)
        if page.source.suffix == ".ipynb":
            self._save(page.source.as_posix(), to_run((self.root / page.source).read_text(encoding="utf-8")))

    def _save(self, name: str, text: str) -> None:
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text(text, encoding="utf-8")

    def _prepare(self, page: Page, notebook: nbformat.NotebookNode, known: dict) -> dict:
        """Turn each cell into what the template shows; return its live figures among the `known` ones."""
        tell_whose_machine(notebook)
        begin_with_headings(notebook)
        lead_with_the_figure(notebook)
        live, asks = {}, {}
        tried, replaced = self._tried(page) if page.kind == "lesson" else ({}, {})
        answers = answers_of(notebook)
        for number, (question, cells) in enumerate(answers.items()):
            asks[question] = {"number": number, "found": found_in(question, cells)}
        answered = {cell.id for cells in answers.values() for cell in cells}
        folds = fold(notebook, list(answers.values()), [each["found"] for each in asks.values()], known)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = self.markup(for_a_box(cell.source), page)
                continue
            if page.kind == "exercise":
                to_read(cell)
            called = record_puzzles.CALL.search(cell.source)
            if called and (choices := tried.get(called[1] or called[2])):
                cell.metadata["replaced"] = aligned(replaced[called[1] or called[2]])
                cell.metadata["choices"] = [
                    each
                    | {"line": aligned(each["line"])}
                    | {"picture": each["picture"] and self._picture(each["picture"], page, sized=True)}
                    for each in choices
                ]
            if cell.id in answered:  # the form tells what was found
                cell.outputs = [output for output in cell.outputs if not _only_says(output, asks)]
            for output in cell.get("outputs", [])[1:]:
                output.built_here = False  # the first one tells
            if "unfolds" in cell.metadata:
                cell.metadata["unfolds_shows"] = shown_by(cell.outputs[-1])
            for output in cell.get("outputs", []):
                output.fold = folds.get(cell.id)
                output.code = highlighted(output)
                output.shows = shown_by(output)
                if asked := tested_by(cell, output):
                    output.tests, cell.metadata["bare"] = asked, True
                if asked := ASKED.fullmatch(_text(output).strip()):
                    output.asks, cell.metadata["bare"] = {**asked.groupdict(), **asks[asked["question"]]}, True
                if "text/plain" in output.get("data", {}):  # the form shows the reader's guess
                    output.data["text/plain"] = output.data["text/plain"].replace(UNASKED, "")
                if drawn := output.get("data", {}).get("image/svg+xml"):  # drawn in the page: its text has its colour
                    output.data["image/svg+xml"] = drawn.replace(f'fill="{TEXT}"', 'fill="currentColor"')
                if shown := output.get("data", {}).get("text/html"):
                    output.data["text/html"] = PICTURE.sub(lambda found: self._picture(found[1], page), shown)
                    if is_live(cell):
                        if known.get(cell.id, {}).get("text") != _text(output):
                            call = cell.source.strip().rpartition("\n")[2]
                            raise ValueError(f"{page.source}: the figure of `{call}` is not recorded: {RECORD_IT}")
                        output.live, live[cell.id] = cell.id, known[cell.id]
                        output.room = room_of(known[cell.id])
                for shown in (output, output.get("data", {}), output.get("asks", {})):
                    for kind in ("text", "text/plain", "text/html", "question"):
                        if THIS_CPU in shown.get(kind, ""):
                            shown[kind] = shown[kind].replace(THIS_CPU, BUILDER)
        return live

    def _tried(self, page: Page) -> tuple[dict[str, list[dict]], dict[str, str]]:
        """Return kernel -> its puzzle's recorded choices; kernel -> the lines that each of them replaces.

        Raises:
            ValueError: the lesson's source offers different choices.
        """
        tried, replaced = record_puzzles.recorded(page.source, self.root), {}
        lesson = self.root / "source/lessons" / f"{page.source.stem}.py"
        for kernel, (_, choices) in record_puzzles.puzzles_of(lesson).items() if lesson.exists() else ():
            if choices[1:] != [each["line"] for each in tried.get(kernel, ())]:
                raise ValueError(
                    f"{page.source}: what the puzzle {kernel} offers is not recorded: run `make notebooks`"
                )
            replaced[kernel] = choices[0] if choices else ""
        return tried, replaced

    def _picture(self, encoded: str, page: Page, sized: bool = False) -> str:
        """Write a picture, PNG or WebP, to its own file, loaded when it comes into view; return the start of its tag.

        sized: include width and height, as a notebook's own tag does.
        """
        content = base64.b64decode(encoded)
        kind = "webp" if content[8:12] == b"WEBP" else "png"
        name = f"assets/pictures/{hashlib.sha256(content).hexdigest()[:12]}.{kind}"
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_bytes(content)
        width, height = (pixels // 2 for pixels in Image.open(io.BytesIO(content)).size)
        tag = f'<img loading="lazy" src="{page.root}{name}"'
        if width <= FITTING:
            tag += ' class="fitting"'
        return f'{tag} width="{width}" height="{height}"' if sized else tag

    def front_page(self) -> None:
        """Build the first page: README's text, the first lesson's opening film, and the course's map."""
        opening, *sections = self.readme
        # README has still versions of the map and the film, which are live here.
        opening = re.sub(r"<picture>.*?</picture>|!\[[^\]]*\]\((?!https:)[^)]*\)", "", opening, flags=re.DOTALL)
        opening, *caption = re.split(r"^(\*[^*]+\*)$", opening, maxsplit=1, flags=re.MULTILINE)  # of the film
        mapped = "".join(each for each in sections if each.startswith("## The course"))
        sections = [each for each in sections if each != mapped]
        below_map = mapped.partition("<!-- end of the map of the course -->")[2]
        first = next(page for page in self.pages if page.kind == "lesson")
        lesson = nbformat.read(self.root / first.source, as_version=4)
        film = next(cell for cell in lesson.cells if cell.cell_type == "code" and is_live(cell))
        film.metadata["bare"] = True
        told = [f'<p class="small">{each.strip("*")}</p>' for each in caption[:1]]
        course = f"## The course\n\n{total_time(self.root)}"
        cells = [opening, film, *told, course, below_map, *sections]
        front = [nbformat.v4.new_markdown_cell(each) if isinstance(each, str) else each for each in cells]
        front[cells.index(course)].metadata["map"] = True
        known = recorded(self.root / first.source)
        if film.id in known and "traffic_animation(" in film.source:
            known[film.id] |= finished_film()
        self.write(self.front, nbformat.v4.new_notebook(cells=front), known)

    @functools.cached_property
    def map(self) -> list[tuple[str, str, list[tuple[Page, Lesson, str, list[tuple[Page, int, float]]]]]]:
        """Return each part's name, aim and lessons: page, lesson, drawing, exercises with their minutes and points."""
        of = {self.root / page.source: page for page in self.pages}
        return [
            (
                name,
                aim,
                [
                    (
                        of[lesson.path],
                        lesson,
                        thumbnail(of[lesson.path].number),
                        [(of[path], minutes_of(path), done.total) for path, done in lesson.exercises],
                    )
                    for lesson in lessons
                ],
            )
            for name, aim, lessons in parts_of(self.lessons)
        ]

    def assets(self) -> None:
        """Write styles and scripts, including the figures' own, which JupyterLab loads too."""
        for module in pkgutil.walk_packages(helpers.figures.__path__, "helpers.figures."):
            importlib.import_module(module.name)
        # A live widget gets its own class of the same name; keep the written one, which comes first.
        stages = {each.__name__: each for each in reversed(_widgets(AnyWidget))}
        scripts = [_registered(name, str(stages[name]._esm)) for name in sorted(self.drawn)]
        styles = sorted({str(stages[name]._css) for name in (*self.drawn, "FramePlayer")})
        self._save("assets/figures.js", "\n".join((*scripts, (HERE / "figures.js").read_text(encoding="utf-8"))))
        self._save("assets/site.css", "\n".join((*styles, (HERE / "site.css").read_text(encoding="utf-8"))))
        self._save("assets/site.js", (HERE / "site.js").read_text(encoding="utf-8"))

    def search_index(self) -> None:
        entries = []
        for page in (self.front, *self.pages):
            titles = {anchor: title for _, anchor, title in page.sections}
            for anchor, text in page.texts.items():
                entries.append([page.target, anchor, page.name, titles.get(anchor, ""), text.strip()])
        self._save("assets/search.js", f"window.fusionSearch = {json.dumps(entries, ensure_ascii=False)};\n")


def for_a_box(text: str) -> str:
    """Return a question's text for a page: it has a box where the notebook has dots to replace."""
    return re.sub(r"Replace the dots with(\s+)(?=your|the\b)", r"Enter\1", text)


def finished_film() -> dict:
    """Return the first page's film: it asks nothing, so it counts the bytes and rests on its end."""
    film = traffic_animation(recorded_run("h200"))
    film.rests = 1.0
    return {"states": export_interactive(film)["states"]}


def lead_with_the_figure(notebook: nbformat.NotebookNode) -> None:
    """Move a lesson's or an exercise's opening figure up; how to run the notebook comes before the rest.

    In a lesson the figure comes right after the question, with the text right before and after it. A phone shows the
    text before it below it: mark both.
    """
    opening, *others = notebook.cells
    found, rest = GOALS.search(opening.source), opening
    at = next((number for number, cell in enumerate(others) if cell.cell_type == "code" and is_live(cell)), 0)
    if found and at and others[at - 1].cell_type == "markdown" and not any(map(_has_heading, others[:at])):
        end = at + 1
        while others[end:] and others[end].cell_type == "markdown" and not _has_heading(others[end]):
            if others[end].source.rstrip().endswith(":"):
                break  # it leads to the next cell
            end += 1
        lead = others[at - 1]
        lead.source = re.sub(r":\s*\Z", ".", lead.source)
        lead.metadata["leads"] = others[at].metadata["led"] = True
        rest = nbformat.v4.new_markdown_cell(opening.source[found.start() :])
        opening.source = opening.source[: found.start()]
        notebook.cells = [opening, *others[at - 1 : end], rest, *others[: at - 1], *others[end:]]
    if others and PICTURE_CELL in others[0].source:
        picture, *others = others
        picture.metadata["bare"] = picture.metadata["picture"] = True
        told = split_opening(opening.source)
        first, rest, caption = map(nbformat.v4.new_markdown_cell, told)
        notebook.cells = [first, *([caption] if told[2] else []), picture, rest, *others]
    rest.metadata["how_to_run"] = True


def split_opening(text: str) -> tuple[str, str, str]:
    """Split an exercise's opening into what comes before its picture, what comes after it, and what the picture shows.

    In a notebook the picture comes last. On a page it comes after the first paragraph, before the formulas.
    """
    title, told, *others = text.strip().split("\n\n")
    caption = ""
    if others and others[-1].startswith(CAPTION):
        caption = others.pop()
    caption = "" if caption.rstrip(":") == CAPTION else caption
    return f"{title}\n\n{told}", "\n\n".join(others), caption


def divide(notebook: nbformat.NotebookNode) -> None:
    """Mark where a page's sections begin and end: the browser lays out those that are near."""
    inside = False
    for cell in notebook.cells:
        further = bool(cell.metadata.get("jp-MarkdownHeadingCollapsed"))
        begins = cell.cell_type == "markdown" and cell.source.startswith("<h2")
        if further or begins:
            cell.metadata["ends"], cell.metadata["begins"] = inside, not further
            inside = not further
        if further:
            break
    notebook.metadata["unclosed"] = inside


def tell_whose_machine(notebook: nbformat.NotebookNode) -> None:
    """Make outputs true for a reader: mark those that were timed by the machine that built the page."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if _text(output).startswith(NO_GPU):
                output.text = _text(output).removeprefix(NO_GPU)
            elif "nbval-ignore-output" in cell.metadata.get("tags", ()):
                output.built_here = bool(TIMED.search(cell.source) or LACKS.search(_text(output)))


def begin_with_headings(notebook: nbformat.NotebookNode) -> None:
    """Split from a cell what stands before its first heading: it belongs to the section before, and to its question."""
    cells = []
    for cell in notebook.cells:
        found = HEADING.search(cell.source) if cell.cell_type == "markdown" and cells else None
        if found and (before := cell.source[: found.start()]).strip():
            cells.append(nbformat.v4.new_markdown_cell(before))
            cell.source = cell.source[found.start() :]
        cells.append(cell)
    notebook.cells = cells


def _has_heading(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "markdown" and HEADING.search(cell.source) is not None


def to_run(notebook: str) -> str:
    """Return a notebook to run, without its pictures: they are most of its bytes, and running redraws them."""
    content = json.loads(notebook)
    for output in [each for cell in content["cells"] for each in cell.get("outputs", ())]:
        data = output.get("data", {})
        if data.pop("image/png", None):
            data.pop("text/html", None)  # the same picture, with its description
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def to_read(cell: nbformat.NotebookNode) -> None:
    """Leave out of an exercise's cell that nothing was attempted, and fold it where it only imports or checks."""
    cell.outputs = [output for output in cell.outputs if not UNATTEMPTED.match(_text(output))]
    statements = ast.parse(cell.source).body if "%" not in cell.source else []
    imports = statements and all(isinstance(each, ast.Import | ast.ImportFrom) for each in statements)
    if imports or cell.metadata.get("nbgrader", {}).get("grade"):
        cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "hide-input"]


def found_in(question: str, cells: list[nbformat.NotebookNode]) -> str:
    """Return the measured number and unit from one of the answering outputs: its own line, or the final table."""
    line = re.compile(rf"^{re.escape(question)}(?:: (.*); you made no guess| +- +(.*))$", re.MULTILINE)
    texts = [_text(output) for cell in cells for output in cell.outputs]
    told = next((shown for text in texts if (shown := line.search(text))), None)
    return " ".join((told[1] or told[2]).split()) if told else ""


def fold(
    notebook: nbformat.NotebookNode, answers: list[list[nbformat.NotebookNode]], founds: list[str], known: dict
) -> dict[str, list[int]]:
    """Mark what each question hides, by `opens` and `closes` in cells' metadata; return what else waits for questions.

    Args:
        answers: per question, the cells that answer it.
        founds: per question, what was found.
        known: the recorded figures.

    Returns:
        A cell's id -> the numbers of the questions that its outputs wait for.
    """
    cells = notebook.cells
    waits: dict[str, list[int]] = {}
    for number, its in enumerate(answers):
        for cell in its:
            waits.setdefault(cell.id, []).append(number)
    free = {cell.id for cell in cells if _moves(cell, [founds[each] for each in waits.get(cell.id, ())], known)}
    for number, its in enumerate(answers):
        # Its own stretch: from the question to the next one, a heading, or what may be seen.
        start = cells.index(its[0])
        while not _asks(cells[start - 1]):
            start -= 1
        stretch = []
        for cell in cells[start:]:
            if _asks(cell) or _has_heading(cell) or cell.id in free:
                break
            stretch.append(cell)
        beyond = cells[start + len(stretch) :][:1]
        if beyond and beyond[0].id in free:
            stretch = _without_lead(stretch, cells)
        if not any(cell.id in waits for cell in stretch):
            continue
        stretch[0].metadata["opens"], stretch[-1].metadata["closes"] = number, True
        for cell in stretch:
            others = [each for each in waits.pop(cell.id, ()) if each != number]
            if others:
                waits[cell.id] = others
    # What is left behind such a figure or another heading waits where it tells.
    left = {}
    for id_, numbers in waits.items():
        cell = next(cell for cell in cells if cell.id == id_)
        told = " ".join(map(_text, cell.outputs))
        if id_ in free:
            continue
        if _tagged_as_answer(cell) or len(numbers) == len(answers):
            left[id_] = numbers
        elif telling := [each for each in numbers if says(told, founds[each])]:
            left[id_] = telling
    for id_ in list(left):
        if id_ in left:
            _fold_with_its_text(cells, id_, left, free)
    return left


def _fold_with_its_text(cells: list[nbformat.NotebookNode], id_: str, left: dict[str, list[int]], free: set) -> None:
    """Mark what is folded along with an answer, by `unfolds` and `unfolded`, if it has text: what follows it, to a
    heading, a question, or what may be seen. Those cells wait no longer by themselves: take them out of `left`."""
    at = next(number for number, cell in enumerate(cells) if cell.id == id_)
    group = [cells[at]]
    for cell in cells[at + 1 :]:
        seen = _asks(cell) or cell.id in free
        if seen or _has_heading(cell) or "opens" in cell.metadata or left.get(cell.id, left[id_]) != left[id_]:
            break
        group.append(cell)
    if cells[at + len(group) :] and seen:
        group = _without_lead(group, cells)
    if all(cell.cell_type == "code" for cell in group):
        return
    group[0].metadata["unfolds"], group[-1].metadata["unfolded"] = left[id_], True
    for cell in group:
        left.pop(cell.id, None)


def _without_lead(stretch: list[nbformat.NotebookNode], cells: list) -> list[nbformat.NotebookNode]:
    """Return cells to fold without the text at their end that leads to what may be seen; split its cell in `cells`."""
    if not stretch or stretch[-1].cell_type != "markdown":
        return stretch
    *others, last = stretch
    told, last.source = split_at_lead(last.source)
    if not told:
        return others
    before = nbformat.v4.new_markdown_cell(told)
    cells.insert(cells.index(last), before)
    return [*others, before]


def split_at_lead(text: str) -> tuple[str, str]:
    """Split text before its last paragraph, which leads to what follows: it keeps the list after it, and the formula
    before it with its paragraph."""
    blocks = [block for block in text.strip().split("\n\n") if block]
    lead = max((at for at, block in enumerate(blocks) if not STRUCTURE.match(block)), default=0)
    if lead and blocks[lead - 1].startswith("$$"):
        lead = max(lead - 2, 0)
    return "\n\n".join(blocks[:lead]), "\n\n".join(blocks[lead:])


def _asks(cell: nbformat.NotebookNode) -> bool:
    return any(ASKED.fullmatch(_text(output).strip()) for output in cell.get("outputs", ()))


def _only_says(output: dict, asks: dict[str, dict]) -> bool:
    """Whether it is no more than the line of an answer: the question, and what was found."""
    question, _, _ = _text(output).strip().rpartition(": ")
    return question in asks and "text/html" not in output.get("data", {}) and "\n" not in _text(output).strip()


def _moves(cell: nbformat.NotebookNode, founds: list[str], known: dict) -> bool:
    """Whether it shows a puzzle or a figure that moves, which tells nothing of what was found."""
    if cell.cell_type != "code" or _tagged_as_answer(cell):
        return False
    if not is_live(cell):
        return record_puzzles.CALL.search(cell.source) is not None
    told = f"{' '.join(map(_text, cell.outputs))} {counted_by(known.get(cell.id, {}))}"
    return not any(says(told, found) for found in founds)


def aligned(lines: str) -> str:
    """Dedent lines of a cell whose first line has lost its indentation."""
    first, *others = lines.split("\n")
    return "\n".join([first, *textwrap.dedent("\n".join(others)).split("\n")]) if others else first


def shown_by(output: dict) -> str:
    """Describe a folded output for the link that opens it."""
    markup = output.get("data", {}).get("text/html", "")
    return "the picture" if "<img" in markup else "the table" if "<table" in markup else "the answer"


def tested_by(cell: nbformat.NotebookNode, output: dict) -> dict | None:
    """Return a page's question for a cell that calls `self_test`: the right answer, and the hint for others; else
    None."""
    if SEALED not in output.get("data", {}):
        return None
    right, told = unsealed(output.data[SEALED]["sealed"])
    right = f"{right:.12g}"
    return {"right": right, "told": told, "id": cell.id}


def says(text: str, found: str) -> bool:
    """Return whether a number in `text` is the measurement within 1 %; true if no number is known."""
    wanted = _numbers(found)
    return not wanted or any(math.isclose(each, wanted[0], rel_tol=0.01) for each in _numbers(text))


def counted_by(figure: dict) -> str:
    """Return the final values of a recorded film's counters; empty if the figure is not a film."""
    if not figure.get("states"):
        return ""
    return " ".join(f"{counter[4]:g}" for _, scene in _data(figure).get("scenes", ()) for counter in scene["counters"])


def room_of(figure: dict) -> str:
    """Return a recorded film's height over its width, wide and narrow, as a style that keeps text from jumping."""
    data = _data(figure)
    if "scenes" not in data:
        return ""
    (_, scene), narrow = data["scenes"][0], data["narrow"]
    (width, height), size = scene["size"], None
    if isinstance(narrow, list) and narrow:
        size = narrow[0]["size"]
    upright = f" --upright: {size[1] / size[0]:.2f}" if size else ""
    return f"--across: {height / width:.2f};{upright}"


def _data(figure: dict) -> dict:
    return json.loads(zlib.decompress(base64.b64decode(figure["states"][0])))["data"]


def _numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?", text)]


def _tagged_as_answer(cell: nbformat.NotebookNode) -> bool:
    return any(tag.startswith("answers-") for tag in cell.metadata.get("tags", ()))


def _text(output: dict) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def _widgets(kind: type) -> list[type]:
    return [kind, *(each for child in kind.__subclasses__() for each in _widgets(child))]


def _registered(name: str, module: str) -> str:
    """Return a widget's module as a plain script, which pages opened from a folder can also load."""
    script = module.replace("export default { render };", f'(window.fusionStages ??= {{}})["{name}"] = render;')
    if script == module:
        raise ValueError(f"the script of {name} does not end with `export default {{ render }};`")
    return f"(() => {{\n{script}}})();"


def build(root: Path = ROOT, out: Path = ROOT / "site", only: tuple[str, ...] = ()) -> Site:
    """Build all pages, or the first page and those whose file names start with one of `only`."""
    if out.exists() and any(out.iterdir()) and not (out / "assets" / "site.css").exists():
        raise ValueError(f"{out} holds something else than these pages: name another folder, or empty it")
    shutil.rmtree(out, ignore_errors=True)
    site = Site(root, out)
    for page in site.pages:
        if only and not page.source.name.startswith(only):
            continue
        text = (root / page.source).read_text(encoding="utf-8")
        if page.source.suffix == ".ipynb":
            notebook = nbformat.reads(text, as_version=4)
        else:
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
        site.write(page, notebook)
    site.front_page()
    site.assets()
    site.search_index()
    return site


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the course's web pages.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", metavar="FOLDER", help="default: site/")
    parser.add_argument("--only", nargs="+", default=(), metavar="NN", help="only the pages whose names start so")
    options = parser.parse_args(arguments)
    if stale := drifted() + record_puzzles.drifted():
        print(f"site: {stale[0]}", file=sys.stderr)
        return 1
    try:
        build(out=options.out.resolve(), only=tuple(options.only))
    except ValueError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}/index.html; to read it: python -m http.server --directory {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
