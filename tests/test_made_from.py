"""source/made_from.py: finds a built file's dependencies from text alone; a change makes stale what it can affect."""

import ast
import functools
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers.figures
from source import made_from, record_figures
from source.made_from import Project, changed, code_of, older_than

ROOT = Path(__file__).resolve().parents[1]
KINDS = "source/lessons/*.py", "source/exercises/*.py"
SOURCES = sorted(path.relative_to(ROOT).as_posix() for kind in KINDS for path in ROOT.glob(kind))


# In a small project


SMALL = {
    "kernels/__init__.py": "from kernels.rowwise.softmax import softmax\nfrom kernels.rowwise.norm import norm\n"
    "from kernels.variants import variant\nCATALOGUE = {'softmax': softmax, 'norm': norm}\n",
    "kernels/costs.py": "FLOP = 2\n",
    "kernels/rowwise/softmax.py": "from kernels.costs import FLOP\nfrom kernels.variants import by_variant\n",
    "kernels/rowwise/norm.py": "",
    "kernels/variants.py": "def variant(name): ...\ndef by_variant(plain): ...\n",
    "kernels/tuned/wide.py": "",
    "helpers/__init__.py": "from kernels.runtime import install\n",
    "kernels/runtime.py": "",
    "helpers/figures/__init__.py": "import lazy_loader\n__getattr__ = lazy_loader.attach_stub(__name__, __file__)\n",
    "helpers/figures/__init__.pyi": "from .frame.film import film as film\nfrom .waves import Waves as Waves\n",
    "helpers/figures/frame/film.py": "from pathlib import Path\nfrom ..style import ORANGE\n"
    "script = Path(__file__).with_name('film.js')\n",
    "helpers/figures/frame/film.js": "",
    "helpers/figures/style.py": 'ORANGE = "#e69f00"\n',
    "helpers/figures/waves.py": "import numpy\n",
    "helpers/records.py": "RESULTS = 'benchmarks/results'\n"
    "def recorded(gpu='h200'):\n    return RESULTS + f'/{gpu}.json'\n",
    "helpers/sweep.py": "def sweep(gpu='h200'):\n    from helpers.records import RESULTS\n"
    "    return f'{RESULTS}/{gpu}_sweep.json'\n",
    "benchmarks/results/h200.json": "{}",
    "benchmarks/results/h200_sweep.json": "{}",
    "benchmarks/results/h200_profiles/block.json": "{}",
    "benchmarks/experiments/lesson_01.py": "",
    "pyproject.toml": '[project]\ndependencies = ["numpy==2.4.6", "tqdm==4.70.1"]\n',
}


@pytest.fixture
def small(tmp_path):
    for name, text in SMALL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "source/lessons").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("lesson", "uses"),
    [
        ("import math", ""),
        ("from kernels import norm", "kernels/rowwise/norm.py"),
        ("from kernels import softmax", "kernels/rowwise/softmax.py kernels/costs.py kernels/variants.py"),
        ("import kernels\nkernels.norm(x)", "kernels/rowwise/norm.py"),
        ("import kernels as k\nk.norm(x)", "kernels/rowwise/norm.py"),
        ("import kernels.costs\nkernels.costs.FLOP", "kernels/costs.py"),
        ("import kernels.costs", "kernels/costs.py"),
        ("from kernels import CATALOGUE\nCATALOGUE['norm']", "kernels/rowwise/norm.py"),
        ("import kernels\nkernels.CATALOGUE['norm']", "kernels/rowwise/norm.py"),
        ("from kernels import variant", "kernels/variants.py kernels/tuned/wide.py"),
        ("def later():\n    from kernels import norm", "kernels/rowwise/norm.py"),
        ("from helpers.figures import Waves", "helpers/figures/waves.py kernels/runtime.py numpy"),
        (
            "from helpers.figures import film",
            "helpers/figures/frame/film.py helpers/figures/style.py kernels/runtime.py",
        ),
        ("from benchmarks.experiments.lesson_01 import COUNTS", "benchmarks/experiments/lesson_01.py"),
        ("from helpers.records import recorded", "helpers/records.py kernels/runtime.py benchmarks/results/h200.json"),
        (
            "from helpers.sweep import sweep",
            "helpers/sweep.py helpers/records.py kernels/runtime.py benchmarks/results/h200.json "
            "benchmarks/results/h200_sweep.json",
        ),
        ("open('../benchmarks/results/h200_profiles/block.json')", "benchmarks/results/h200_profiles/block.json"),
        ("open(f'{folder}/block{kind}.json')", "benchmarks/results/h200_profiles/block.json"),
        ("open(f'{exercise}.json')", ""),
        ("from tqdm.auto import tqdm", "tqdm"),
    ],
)
def test_what_a_lesson_uses(small, lesson, uses):
    (small / "source/lessons/00_one.py").write_text(lesson)
    found = {name.removesuffix(" (pyproject.toml)") for name in Project(small).made_from("source/lessons/00_one.py")}
    assert found == {"source/lessons/00_one.py", *uses.split()}


def everything(folder: str) -> set[str]:
    return {name for name in SMALL if name.startswith(folder) and name.endswith(".py")}


@pytest.mark.parametrize(
    ("lesson", "folder"),
    [
        ("from kernels import CATALOGUE\nfor name in CATALOGUE: CATALOGUE[name]", "kernels/"),
        ("import kernels\nprint(kernels)", "kernels/"),
        ("from kernels import *", "kernels/"),
        ("from helpers.figures import hidden", "helpers/figures/"),
    ],
)
def test_what_cannot_be_traced_is_everything_there(small, lesson, folder):
    """A name that no __init__.py imports, and a package used as a whole. The lists of names themselves may count."""
    (small / "source/lessons/00_one.py").write_text(lesson)
    found = Project(small).made_from("source/lessons/00_one.py").keys()
    assert {name for name in everything(folder) if "tuned" not in name and "runtime" not in name} <= found


def test_scripts_and_styles_count_where_they_are_shown(small):
    (small / "source/lessons/00_one.py").write_text("from helpers.figures import film")
    source = "source/lessons/00_one.py"
    assert "helpers/figures/frame/film.js" not in Project(small).made_from(source)
    assert "helpers/figures/frame/film.js" in Project(small).made_from(source, browser=True)


def test_a_file_that_comes_to_be_used_and_one_that_goes_are_changes(small):
    lesson = small / "source/lessons/00_one.py"
    lesson.write_text("from kernels import norm")
    then = Project(small).made_from("source/lessons/00_one.py")
    (small / "kernels/rowwise/norm.py").write_text("from kernels import costs\n")
    now = Project(small).made_from("source/lessons/00_one.py")
    assert changed(then, now) == changed(now, then) == ["kernels/costs.py", "kernels/rowwise/norm.py"]


def test_a_pin_is_a_change(small):
    (small / "source/lessons/00_one.py").write_text("import numpy\n")
    then = Project(small).made_from("source/lessons/00_one.py")
    for pins, names in (
        ('["numpy==2.4.6", "tqdm==5.0"]', []),
        ('["numpy==3.0", "tqdm==4.70.1"]', ["numpy (pyproject.toml)"]),
    ):
        (small / "pyproject.toml").write_text(f"[project]\ndependencies = {pins}\n")
        assert changed(then, Project(small).made_from("source/lessons/00_one.py")) == names


def test_the_first_changes_are_named():
    assert older_than(["a.py"]) == "is older than a.py"
    assert older_than(["a.py", "b.py", "c.py"]) == "is older than a.py, b.py, c.py"
    assert older_than(["a.py", "b.py", "c.py", "d.py", "e.py"]) == "is older than a.py, b.py, c.py and 2 more"


def test_comments_docstrings_and_blank_lines_are_no_code():
    text = (
        '"""A module."""\n\n\ndef f(x):  # a comment\n    """Return x."""\n    # Why.\n    return "# no comment" + x\n'
    )
    assert code_of(text) == 'def f(x):\n    return "# no comment" + x'


# In the course


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """A text is parsed and walked through once, however many copies of the course hold it."""
    parse, code_of, codes = functools.cache(ast.parse), made_from.code_of, {}

    @functools.cache
    def nodes(tree: ast.Module) -> list[ast.AST]:
        return [node for node in ast.walk(tree) if isinstance(node, made_from.RELEVANT)]

    @functools.cache
    def tree(self, file: str) -> ast.Module:
        return parse((self.root / file).read_text(encoding="utf-8"))

    def code(text: str, nodes=()) -> str:
        if text not in codes:
            codes[text] = code_of(text, nodes)
        return codes[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Project, "_tree", tree)
        patch.setattr(Project, "_nodes", lambda self, file: nodes(self._tree(file)))
        patch.setattr(made_from, "code_of", code)
        yield


@pytest.fixture(scope="module")
def before() -> dict[str, dict[str, str]]:
    project = Project(ROOT)
    return {source: project.made_from(source, "source/build.py") for source in SOURCES}


@pytest.fixture
def course(tmp_path) -> Path:
    """A copy of the course; a file of it is replaced, not written to."""
    for folder in ("kernels", "helpers", "benchmarks", "source"):
        shutil.copytree(ROOT / folder, tmp_path / folder, copy_function=os.symlink)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def edit(course: Path, name: str, old: str, new: str, count: int = 1) -> None:
    text = (course / name).read_text()
    assert re.search(old, text), f"{name} has no {old}"
    (course / name).unlink()
    (course / name).write_text(re.sub(old, new, text, count=count))


def stale(course: Path, before: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Source -> what changed of what its notebooks are made from; fresh ones are left out."""
    project = Project(course)
    now = {source: project.made_from(source, "source/build.py") for source in SOURCES}
    return {source: names for source in SOURCES if (names := changed(before[source], now[source]))}


def module_of(value) -> str:
    return Path(inspect.getfile(value)).resolve().relative_to(ROOT).as_posix()


def pictures(source: str) -> bool:
    """Whether the built lesson or solution shows a picture."""
    folder = "notebooks" if "lessons" in source else "solutions"
    return "image/png" in (ROOT / folder / f"{Path(source).stem}.ipynb").read_text()


def test_an_unchanged_course_is_fresh(course, before):
    assert stale(course, before) == {}


def test_a_colour(course, before):
    style = "helpers/style.py"
    edit(course, style, "#E69F00", "#123456")
    found = stale(course, before)
    assert set(map(tuple, found.values())) == {(style,)}
    assert {source for source in SOURCES if pictures(source)} <= found.keys()


def test_a_record(course, before):
    record = "benchmarks/results/h100_80gb_hbm3_sweep.json"
    edit(course, record, r"\d\.\d+", "9.99")
    shown = [source for source in SOURCES if "recorded_sweep()" in (ROOT / source).read_text()]
    assert len(shown) > 3
    assert stale(course, before) == {source: [record] for source in shown}


def test_a_helpers_formula(course, before):
    """Of the windows of a convolution, which one lesson shows."""
    module = module_of(helpers.figures.Windows)
    edit(course, module, r" // ", " % ")
    assert stale(course, before) == {"source/lessons/09_convolution.py": [module]}


def test_a_comment_in_a_helper_and_in_a_kernel(course, before):
    """A lesson prints kernels as they stand, comments too; helpers are printed by none."""
    edit(course, module_of(helpers.figures.Windows), r"\Z", "# A comment.\n")
    assert stale(course, before) == {}
    edit(course, "kernels/rowwise/softmax_topk.py", r"\Z", "# A comment.\n")
    assert stale(course, before)["source/exercises/06_softmax_topk.py"] == ["kernels/rowwise/softmax_topk.py"]


@pytest.mark.parametrize("package", ["kernels", "helpers.figures", "helpers.instruments", "helpers.learning"])
def test_every_public_name_is_traced_to_the_module_that_defines_it(package):
    """Against Python's own answer: the name leads to one module, which is the one that defines it or imports that."""
    project, module = Project(ROOT), importlib.import_module(package)
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        traced = {file for file in project.leads_to(package, name) if not file.startswith("kernels/tuned/")}
        assert len(traced) == 1, name
        assert module_of(inspect.unwrap(value)) in project.made_from(*traced), name


def test_recording_ends_without_a_word_from_what_a_lesson_leaves(tmp_path):
    """As torch.compile does, a cell asks to remove one of its globals when a function is freed."""
    source = """
import sys, weakref
def compiled(): ...
added = 1
sys.kept = weakref.ref(compiled, lambda _, scope=globals(): scope.__delitem__("added"))
Explorer = lambda: None
Explorer()"""
    cell = {"id": "one", "cell_type": "code", "source": [source], "outputs": [{"data": {"image/png": ""}}]}
    lesson = tmp_path / "00_one.ipynb"
    lesson.write_text(json.dumps({"cells": [cell]}))
    script = "import sys; from pathlib import Path; from source.record_figures import record; record(Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, lesson]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_recorded_figures_are_stale_with_what_they_show(course):
    """A changed formula, and a figure that shows another text than its notebook."""
    shown = {"image/png": "", "text/plain": ["16 windows"]}
    cell = {"id": "one", "cell_type": "code", "source": ["WindowsExplorer()"], "outputs": [{"data": shown}]}
    lesson = course / "notebooks/09_convolution.ipynb"
    lesson.parent.mkdir()
    lesson.write_text(json.dumps({"cells": [cell]}))
    figures = {"one": {"text": "16 windows"}}
    path = record_figures.file_of(lesson)

    def line(made_from: dict, figures: dict) -> list[str]:
        path.unlink(missing_ok=True)
        path.write_text(json.dumps({"made_from": made_from, "figures": figures}))
        return [each for each in record_figures.drifted(course) if "09_convolution" in each]

    known = record_figures.made_from(lesson, Project(course))
    name = "source/site/live/09_convolution.json"
    assert line(known, figures) == []
    assert line(known, {"one": {"text": "another"}}) == [
        f"{name} shows other figures than notebooks/09_convolution.ipynb: run `make notebooks`"
    ]
    module = module_of(helpers.figures.Windows)
    edit(course, module, r" // ", " % ")
    assert line(known, figures) == [f"{name} is older than {module}: run `make notebooks`"]
    path.unlink()
    assert [each for each in record_figures.drifted(course) if "09_convolution" in each] == [
        f"{name} is not recorded: run `make notebooks`"
    ]
