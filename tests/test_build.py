"""source/build.py: builds the same bytes each time, rebuilds only what changed, and detects every drift."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "source" / "build.py"
spec = importlib.util.spec_from_file_location("build", SCRIPT)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

LESSON = """\
# %% [markdown]
# # A lesson

# %%
import sys

print("seen")
print(sys.argv[0] != "")

# %%
import ipywidgets

ipywidgets.IntSlider(value=3)

# %% tags=["nbval-ignore-output"]
1 + 1
"""
SECOND_LESSON = "# %%\n2 + 2\n"
EXERCISE = """\
# %% grade_id="answer"
def double(x):
    # BEGIN SOLUTION
    return 2 * x
    # END SOLUTION

# %% grade_id="value" points=3
try:
    print("pass" if double(4) == 8 else "fail")
except NotImplementedError:
    print("not attempted")

# %% grade_id="more" points=2
# More is checked later.
# BEGIN HIDDEN TESTS
print(double(-3))
# END HIDDEN TESTS
"""


def write_sources(root: Path) -> Path:
    for name, text in {
        "lessons/00_one.py": LESSON,
        "lessons/01_two.py": SECOND_LESSON,
        "exercises/03_double.py": EXERCISE,
    }.items():
        path = root / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "source/build.py").write_bytes(SCRIPT.read_bytes())
    return root


def notebooks_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob("*/*.ipynb"))}


def code_cells(root: Path, name: str) -> list[dict]:
    return [cell for cell in json.loads((root / name).read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A small course, built once; tests that change it take a copy."""
    root = write_sources(tmp_path_factory.mktemp("course"))
    assert build.main([], root=root) == 0
    return root


@pytest.fixture
def course(built, tmp_path):
    for name, content in notebooks_of(built).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return write_sources(tmp_path)


@pytest.fixture
def executes_nothing(monkeypatch):
    def refuse(notebook, target, root):
        raise AssertionError(f"{target} was executed")

    monkeypatch.setattr(build, "execute", refuse)


def test_two_builds_from_nothing_give_the_same_bytes(built, tmp_path):
    assert build.main([], root=write_sources(tmp_path)) == 0
    assert notebooks_of(tmp_path) == notebooks_of(built)
    assert set(notebooks_of(built)) == {
        "notebooks/00_one.ipynb",
        "notebooks/01_two.ipynb",
        "exercises/03_double.ipynb",
        "solutions/03_double.ipynb",
    }


def test_what_has_not_changed_is_not_run(course, executes_nothing):
    before = notebooks_of(course)
    assert build.main([], root=course) == 0
    assert notebooks_of(course) == before


def test_only_the_changed_source_is_built(course):
    before = notebooks_of(course)
    (course / "source/lessons/01_two.py").write_text("# %%\n2 + 3\n")
    assert build.main([], root=course) == 0
    changed = {name for name, content in notebooks_of(course).items() if content != before[name]}
    assert changed == {"notebooks/01_two.ipynb"}
    assert code_cells(course, "notebooks/01_two.ipynb")[0]["outputs"][0]["data"] == {"text/plain": ["5"]}


def test_force_builds_what_has_not_changed(course, monkeypatch):
    executed = []
    monkeypatch.setattr(build, "execute", lambda notebook, target, root: executed.append(target.name) or set())
    assert build.main(["--force", "--only", "01"], root=course) == 0
    assert executed == ["01_two.ipynb"]


def test_check_finds_nothing_where_all_is_built(course, executes_nothing, capsys):
    assert build.main(["--check"], root=course) == 0
    assert capsys.readouterr().out == "every notebook is up to date\n"


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text())
    change(notebook)
    path.write_text(json.dumps(notebook))


def edit_output(notebook):
    notebook["cells"][-1]["outputs"][0]["data"]["text/plain"] = ["3"]


def edit_source(notebook):
    notebook["cells"][-1]["source"] = ["1 + 2"]


def forget(notebook):
    del notebook["metadata"]["kernel_fusion"]


@pytest.mark.parametrize(
    ("name", "spoil", "line"),
    [
        (
            "source/lessons/00_one.py",
            lambda path: path.write_text(LESSON + "\n"),
            "notebooks/00_one.ipynb is older than source/lessons/00_one.py: run `make notebooks`",
        ),
        (
            "notebooks/00_one.ipynb",
            Path.unlink,
            "notebooks/00_one.ipynb is not built: run `make notebooks`",
        ),
        (
            "notebooks/00_one.ipynb",
            lambda path: edit(path, edit_output),
            "notebooks/00_one.ipynb was edited after it was built: run `make notebooks`",
        ),
        (
            "notebooks/00_one.ipynb",
            lambda path: edit(path, edit_source),
            "notebooks/00_one.ipynb was edited after it was built: run `make notebooks`",
        ),
        (
            "notebooks/00_one.ipynb",
            lambda path: edit(path, forget),
            "notebooks/00_one.ipynb was not written by source/build.py: run `make notebooks`",
        ),
        (
            "notebooks/00_one.ipynb",
            lambda path: path.write_text("<<<<<<< HEAD"),
            "notebooks/00_one.ipynb was not written by source/build.py: run `make notebooks`",
        ),
        (
            "notebooks/07_gone.ipynb",
            lambda path: path.write_text("{}"),
            "notebooks/07_gone.ipynb has no source: delete it, or add one and run `make notebooks`",
        ),
    ],
    ids=["source", "missing", "output", "cell", "metadata", "conflict", "orphan"],
)
def test_drift_is_told_in_one_line(course, executes_nothing, capsys, name, spoil, line):
    spoil(course / name)
    assert build.main(["--check"], root=course) == 1
    assert capsys.readouterr().err == line + "\n"


def test_a_changed_build_script_is_drift(course, executes_nothing):
    script = course / "source/build.py"
    script.write_text(script.read_text() + "# A comment.\n")
    assert build.drifted(course) == []
    script.write_text(script.read_text() + "STUB = 0\n")
    names = notebooks_of(course)
    assert sorted(build.drifted(course)) == [
        f"{name} is older than source/build.py: run `make notebooks`" for name in names
    ]


def test_a_file_that_is_read_unseen_stops_the_build(course, capsys):
    """A name put together from parts is in no string; the kernel that runs the lesson sees the file opened."""
    record = course / "benchmarks/results/h200_roofs.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    lesson = course / "source/lessons/01_two.py"
    lesson.write_text(
        "# %%\nname = '../benchmarks/results/' + '_'.join(['h200', 'roofs']) + '.json'\nopen(name).read()\n"
    )
    assert build.main([], root=course) == 1
    assert "build: 01_two.py: reads benchmarks/results/h200_roofs.json, whose name is in no" in capsys.readouterr().err
    lesson.write_text("# %%\nopen('../benchmarks/results/h200_roofs.json').read()[:0]\n")
    assert build.main([], root=course) == 0
    record.write_text("[]")
    assert build.drifted(course) == [
        "notebooks/01_two.ipynb is older than benchmarks/results/h200_roofs.json: run `make notebooks`"
    ]


def test_an_edited_notebook_is_kept_aside(course):
    path = course / "exercises/03_double.ipynb"
    edit(path, lambda notebook: notebook["cells"][0].update(source=["my work"]))
    edited = path.read_bytes()
    assert build.main([], root=course) == 0
    assert (course / "exercises/03_double.ipynb.edited").read_bytes() == edited
    assert build.main(["--check"], root=course) == 0


def test_stored_notebooks_tell_nothing_of_the_machine(built):
    for name, content in notebooks_of(built).items():
        for trace in (str(built), sys.prefix, sys.version.split()[0], "widget-view", "widget-state", "iopub"):
            assert trace not in content.decode(), name


def test_widgets_leave_their_text(built):
    assert code_cells(built, "notebooks/00_one.ipynb")[1]["outputs"][0]["data"] == {
        "text/plain": ["IntSlider(value=3)"]
    }


def test_printing_is_one_output_and_counts_are_stored(built):
    first, *others = code_cells(built, "notebooks/00_one.ipynb")
    assert [output["text"] for output in first["outputs"]] == [["seen\n", "True\n"]]
    # nbval compares nothing where the count is null.
    assert [cell["execution_count"] for cell in (first, *others)] == [1, 2, 3]
    assert others[-1]["metadata"]["tags"] == ["nbval-ignore-output"]


def test_ids_do_not_depend_on_the_cells_around(built, tmp_path):
    source = write_sources(tmp_path) / "source/lessons/00_one.py"
    source.write_text("# %%\nnew = 0\n\n" + LESSON + "\n# %%\nnew = 0\n")
    old = [cell["id"] for cell in json.loads((built / "notebooks/00_one.ipynb").read_text())["cells"]]
    new = [cell["id"] for cell in build.read_source(source).cells]
    assert new == [new[0], *old, f"{new[0]}-2"]


def test_one_source_gives_an_exercise_and_its_solution(built):
    exercise, solution = (code_cells(built, f"{folder}/03_double.ipynb") for folder in ("exercises", "solutions"))
    assert "".join(exercise[0]["source"]) == f"def double(x):\n    {build.STUB}"
    assert "return 2 * x" in "".join(solution[0]["source"])
    assert [cell["outputs"][0]["text"] for cell in (exercise[1], solution[1])] == [["not attempted\n"], ["pass\n"]]
    assert exercise[2]["source"] == ["# More is checked later."]
    assert solution[2]["outputs"][0]["text"] == ["-6\n"]
    assert "-6" not in (built / "exercises/03_double.ipynb").read_text()
    assert "2 * x" not in (built / "exercises/03_double.ipynb").read_text()


def test_cells_carry_nbgraders_metadata(built):
    answer, check, _ = (cell["metadata"]["nbgrader"] for cell in code_cells(built, "exercises/03_double.ipynb"))
    common = {"schema_version": 3, "task": False, "cell_type": "code"}
    assert answer == common | {"grade": False, "solution": True, "locked": False, "grade_id": "answer"}
    assert check == common | {"grade": True, "solution": False, "locked": True, "grade_id": "value", "points": 3}


def test_the_code_of_a_check_is_folded_unless_it_is_a_hidden_one(built):
    answer, check, hidden = (cell["metadata"] for cell in code_cells(built, "exercises/03_double.ipynb"))
    assert check["jupyter"] == {"source_hidden": True}
    assert "jupyter" not in answer
    assert "jupyter" not in hidden


def test_going_further_is_collapsed_and_no_other_heading(tmp_path):
    path = tmp_path / "00_one.py"
    path.write_text("# %% [markdown]\n# ## A lesson\n\n# %% [markdown]\n# ## Going further\n#\n# More.\n")
    one, further = build.read_source(path).cells
    assert one.metadata == {}
    assert further.metadata == {"jp-MarkdownHeadingCollapsed": True}


def test_an_exercise_carries_its_original(built):
    course = json.loads((built / "exercises/03_double.ipynb").read_text())["metadata"]["kernel_fusion"]
    assert course["exercise"] == "03_double"
    answer, check, hidden = course["original"]
    assert answer["answer"]
    assert answer["source"].endswith(build.STUB)
    assert check["points"] == 3
    assert check["pass"][0]["text"] == "pass\n"
    assert hidden["pass"] is None


def test_a_solution_carries_its_exercise_and_no_answer_in_its_metadata(built):
    exercise, solution = (
        json.loads((built / folder / "03_double.ipynb").read_text())["metadata"]["kernel_fusion"]
        for folder in ("exercises", "solutions")
    )
    assert solution["original"] == exercise["original"]
    assert "2 * x" not in json.dumps(solution)
    assert "-3" not in json.dumps(solution)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "the cell `1 / 0` stopped: ZeroDivisionError: division by zero"),
        ("import os\nos._exit(1)", "the cell `import os` killed its kernel"),
        (
            "print(__import__('sys').prefix + '/lib')",
            f"shows a path of this machine, {sys.prefix}: print something else",
        ),
        ("object()", "shows an address that differs each time, at 0x"),
    ],
    ids=["exception", "death", "path", "address"],
)
def test_a_build_stops_with_one_line_and_the_old_notebook_stays(course, capsys, source, message):
    before = notebooks_of(course)
    (course / "source/lessons/01_two.py").write_text(f"# %%\n{source}\n")
    assert build.main(["--only", "01"], root=course) == 1
    told = capsys.readouterr().err
    assert told.startswith("build: notebooks/01_two.ipynb: the cell `")
    assert message in told
    assert told.count("\n") == 1
    assert notebooks_of(course) == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("# %%\n# BEGIN SOLUTION\n# END SOLUTION\n", "needs a grade_id in its header"),
        ('# %% grade_id="a"\n1\n', "cell 'a' must have either a solution region or points"),
        ('# %% grade_id="a" points=1\n1\n\n# %% grade_id="a" points=1\n2\n', "two cells have the grade_id 'a'"),
    ],
)
def test_sources_that_make_no_exercise(tmp_path, source, message):
    path = tmp_path / "03_bad.py"
    path.write_text(source)
    with pytest.raises(build.BuildError, match=message):
        build.read_source(path)


def test_an_unknown_number_names_what_there_is(course, capsys):
    assert build.main(["--only", "42"], root=course) == 2
    assert capsys.readouterr().err == "build: no source starts with '42'; there are: 03_double, 00_one, 01_two\n"
