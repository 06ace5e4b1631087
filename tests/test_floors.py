"""The layers: imports go down or stay level, the instruments don't know the kernels, and a name means one thing."""

import ast
from pathlib import Path

import pytest

import helpers

ROOT = Path(helpers.__file__).parents[1]
ROOMS = ("helpers.instruments", "helpers.figures", "helpers.learning", "helpers.grading")
FLOORS = ("kernels", "helpers.style", *ROOMS, "helpers")
# Of the kernels, the instruments know how a launch is watched, what work is, and what it comes to; the checks also the
# random numbers.
GROUND = {
    "helpers.style": set(),
    "helpers.instruments": {
        "kernels.interpreter.configurations",
        "kernels.interpreter.runtime",
        "kernels.op",
        "kernels.costs",
    },
    "helpers.figures": set(),
    "helpers.learning": {"kernels.interpreter.runtime", "kernels.philox"},
    "helpers.grading": set(),
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def floor_of(module: str) -> str:
    """The floor of the package that holds the module; `helpers` itself and its own files are the door."""
    return max((floor for floor in FLOORS if f"{module}.".startswith(f"{floor}.")), key=len)


def imports_of(source: str) -> set[str]:
    """Every module that a source names in an import, a package's submodules by their own names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {name for name in within if is_module(name)}
            found |= submodules or {node.module}
    return {name for name in found if name.split(".")[0] in ("helpers", "kernels")}


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def wrong_imports(module: str, source: str) -> set[str]:
    """The imports of a module that go up, or to a part of the kernels that its floor does not know."""
    own = floor_of(module)
    named = imports_of(source)
    # From the package itself, which imports no room, a room has what all of them share.
    up = {
        name
        for name in named
        if FLOORS.index(floor_of(name)) > FLOORS.index(own) and (name != "helpers" or own == "kernels")
    }
    return up | {name for name in named if floor_of(name) == "kernels" and name not in GROUND.get(own, {name})}


FILES = sorted([*(ROOT / "helpers").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_only_go_down(path):
    assert not wrong_imports(module_of(path), path.read_text())


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("helpers.instruments.timing", "from helpers.figures.frame.chart import Chart"),
        ("helpers.figures.frame.chart", "import helpers.learning.outcome"),
        ("helpers.style", "from helpers.instruments import table"),
        ("helpers.learning.check_command", "from helpers.grading import judge"),
        ("helpers.grading.sandbox", "from helpers.doctor import report"),
        ("helpers.grading.fork_server", "from kernels import add_gelu"),
        ("helpers.instruments.operations", "from kernels import CATALOGUE"),
        ("kernels.interpreter.runtime", "import helpers"),
    ],
)
def test_an_import_that_goes_up_is_found(module, line):
    assert wrong_imports(module, line)


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_what_a_room_gives_is_there_and_named_as_none_of_its_modules(room):
    package = __import__(room, fromlist=["_"])
    names = dir(package)
    assert names
    for name in names:
        assert getattr(package, name) is not None
        assert not is_module(f"{room}.{name}"), f"{room} gives {name} and has a module of that name"


def test_no_two_classes_of_the_helpers_have_one_name():
    homes: dict[str, set[str]] = {}
    for path in (ROOT / "helpers").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(module_of(path))
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_no_two_modules_of_the_helpers_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in (ROOT / "helpers").rglob("*.py"):
        if path.stem != "__init__":
            homes.setdefault(path.stem, []).append(module_of(path))
    assert not {name: found for name, found in homes.items() if len(found) > 1}
