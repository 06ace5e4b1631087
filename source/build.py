"""Build the notebooks that learners open from the text files that authors edit.

    source/lessons/NN_name.py     ->  notebooks/NN_name.ipynb
    source/exercises/NN_name.py   ->  solutions/NN_name.ipynb    answers, hidden checks, the outputs of a pass
                                      exercises/NN_name.ipynb    stubs instead of answers, no hidden checks

Sources are in jupytext's percent format. In an exercise, an answer is between the lines `# BEGIN SOLUTION` and
`# END SOLUTION`, a hidden check between `# BEGIN HIDDEN TESTS` and `# END HIDDEN TESTS`, as in nbgrader, and a cell's
header gives its kind:

    # %% grade_id="add-gelu"            an answer cell: it contains a solution region
    # %% grade_id="values" points=6     a check cell, which JupyterLab shows with its code folded
    # %% tags=["nbval-ignore-output"]   its output depends on the machine: nbval runs it without comparing
    # %% tags=["hide-input"]            JupyterLab and the site show its code folded

A lesson's last section, "## Going further", is shown folded.

A notebook is rebuilt when anything it was made from has changed: its source, this file, or a module or record that one
of them uses (source/made_from.py). Its metadata holds the digests of all of these and of the built notebook, so the
drift check runs nothing.

    python source/build.py               build what changed
    python source/build.py --only 03     of those, only the ones whose name starts with 03
    python source/build.py --force       also rebuild what has not changed
    python source/build.py --check       build nothing; fail, with one line per notebook that has drifted
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.learning.self_tests import with_seals  # noqa: E402, this runs as a script
from source.made_from import IN_BROWSER, Project, changed, older_than  # noqa: E402

STUB = "raise NotImplementedError  # your code here"
CELL_TIMEOUT = 300  # seconds
EDITED = "was edited after it was built"
FURTHER = "## Going further"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Kernel metadata, the same on every machine.
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}

# Runs in a notebook's kernel before its first cell: logs the name of each opened file to another file.
LISTS_OPENED = (
    "__import__('sys').addaudithook(lambda event, values, out=open('{}', 'w', buffering=1): event == 'open' "
    "and isinstance(values[0], str) and print(__import__('os').path.abspath(values[0]), file=out) and None)"
)
SEEN = {".py", ".pyi", ".pyc", *IN_BROWSER}  # known from imports; notebooks don't store scripts or styles
# Top-level files that a notebook may open without depending on them; pyproject.toml counts through its pins.
OWN = {".git", ".venv", ".pytest_cache", "notebooks", "exercises", "solutions", "pyproject.toml"}


class BuildError(Exception):
    """A notebook cannot be built; the message is one line."""


def targets_of(source: Path, root: Path) -> list[Path]:
    """The notebooks built from one source, in build order."""
    folders = ("notebooks",) if source.parent.name == "lessons" else ("solutions", "exercises")
    return [root / folder / f"{source.stem}.ipynb" for folder in folders]


def sources_in(root: Path, only: str = "") -> list[Path]:
    return sorted(path for kind in ("lessons", "exercises") for path in (root / "source" / kind).glob(f"{only}*.py"))


# From text to cells


def read_source(source: Path) -> NotebookNode:
    """Parse a source file into a notebook: stable cell ids, nbgrader's metadata, nothing executed."""
    import jupytext

    text = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    cells, seen = [cell_of(cell, source) for cell in text.cells], {}
    for cell in cells:
        seen[cell.id] = seen.get(cell.id, 0) + 1
        if seen[cell.id] > 1 and "nbgrader" in cell.metadata:
            raise BuildError(f"{source.name}: two cells have the grade_id {cell.id!r}: rename one")
        if seen[cell.id] > 1:
            cell.id = f"{cell.id}-{seen[cell.id]}"
    return nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": dict(KERNELSPEC), "language_info": dict(LANGUAGE_INFO)}
    )


def cell_of(cell: NotebookNode, source: Path) -> NotebookNode:
    new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    tags = cell.metadata.get("tags", [])
    metadata = {"tags": tags} if tags else {}
    if "hide-input" in tags:
        metadata["jupyter"] = {"source_hidden": True}
    if cell.cell_type == "markdown" and cell.source.partition("\n")[0] == FURTHER:
        metadata["jp-MarkdownHeadingCollapsed"] = True
    grade_id = cell.metadata.get("grade_id")
    if grade_id is None:
        if "BEGIN SOLUTION" in cell.source or "BEGIN HIDDEN TESTS" in cell.source:
            raise BuildError(f"{source.name}: a cell with a solution or hidden tests needs a grade_id in its header")
        shown = with_seals(cell.source) if cell.cell_type == "code" else cell.source
        return new(shown, id=hashlib.sha256(cell.source.encode()).hexdigest()[:8], metadata=metadata)

    answer = "BEGIN SOLUTION" in cell.source
    if answer == ("points" in cell.metadata):
        raise BuildError(f"{source.name}: cell {grade_id!r} must have either a solution region or points")
    metadata["nbgrader"] = {
        "schema_version": 3,
        "grade": not answer,
        "solution": answer,
        "locked": not answer,
        "task": False,
        "grade_id": grade_id,
        "cell_type": "code",
    }
    metadata["deletable"] = False
    if not answer:
        metadata["nbgrader"]["points"] = cell.metadata["points"]
        metadata["editable"] = False
        if "BEGIN HIDDEN TESTS" not in cell.source:
            metadata["jupyter"] = {"source_hidden": True}  # between an answer and its result, a call that says little
    return new(cell.source, id=grade_id, metadata=metadata)


def is_check(cell: NotebookNode) -> bool:
    return cell.metadata.get("nbgrader", {}).get("grade", False)


def is_answer(cell: NotebookNode) -> bool:
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def without_regions(text: str, name: str, stub: str | None) -> str:
    """Return `text` with each region between `BEGIN name` and `END name` replaced by `stub`, or dropped."""
    kept, inside = [], False
    for line in text.splitlines():
        if f"BEGIN {name}" in line:
            inside = True
            if stub is not None:
                kept.append(line[: len(line) - len(line.lstrip())] + stub)
        elif f"END {name}" in line:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept).rstrip()


def exercise_of(solution: NotebookNode) -> NotebookNode:
    """Return the exercise for a solution notebook: stubs for answers, hidden checks removed, outputs cleared."""
    exercise = nbformat.from_dict(json.loads(json.dumps(solution)))
    for cell in exercise.cells:
        if cell.cell_type == "code":
            cell.source = without_regions(cell.source, "SOLUTION", STUB)
            cell.source = without_regions(cell.source, "HIDDEN TESTS", None)
            cell.outputs, cell.execution_count = [], None
    return exercise


def original_of(exercise: NotebookNode, solution: NotebookNode) -> list[dict]:
    """Return the cells in which `fusion check` runs a learner's answers, with the output of each check's pass.

    A check without a passing output here is hidden: its cell contains only a comment.
    """
    cells = []
    for cell, solved in zip(exercise.cells, solution.cells, strict=True):
        if cell.cell_type != "code":
            continue
        entry = {"id": cell.id, "source": cell.source, "answer": is_answer(cell)}
        if is_check(cell):
            entry["points"] = cell.metadata["nbgrader"]["points"]
            entry["pass"] = solved.outputs if cell.source == solved.source else None
        cells.append(entry)
    return cells


# From cells to outputs


def execute(notebook: NotebookNode, target: Path, root: Path) -> set[str]:
    """Run the notebook in its final folder, and keep only outputs fit to be stored.

    Returns:
        The project's files that it opened, other than modules, as paths from the root.
    """
    with tempfile.TemporaryDirectory() as folder:
        opened = Path(folder, "opened")
        run(notebook, target, opened)
        paths = {Path(line) for line in opened.read_text(encoding="utf-8").splitlines()}
    notebook.metadata["language_info"] = dict(LANGUAGE_INFO)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := without_widget(output)) is not None]
            refuse_machine_traces(cell, target)
    files = {path.relative_to(root) for path in paths if path.is_relative_to(root) and path.is_file()}
    return {file.as_posix() for file in files if file.parts[0] not in OWN and file.suffix not in SEEN}


def run(notebook: NotebookNode, target: Path, opened: Path) -> None:
    """Run the notebook in this Python and log the names of all files that it opens to the file `opened`."""
    import traitlets
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

    class ThisPython(AsyncKernelManager):
        # Otherwise another "python3" among the user's kernels would take precedence.
        @traitlets.default("kernel_spec_manager")
        def _this_python(self):
            return NbvalKernelspecManager(parent=self)

    running = {}
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPython,
        kernel_name=CURRENT_ENV_KERNEL_NAME,
        extra_arguments=[
            "--IPKernelApp.log_level=ERROR",
            f"--IPKernelApp.exec_lines={LISTS_OPENED.format(opened)}",
        ],
        timeout=CELL_TIMEOUT,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(target.parent)}},
        on_cell_start=lambda cell, cell_index: running.update(cell=cell),
    )
    try:
        client.execute()
    except CellExecutionError as error:
        message = f"stopped: {error.ename}: {first_line(error.evalue)}"
    except CellTimeoutError:
        message = f"ran for over {CELL_TIMEOUT} s"
    except DeadKernelError:
        message = "killed its kernel"
    else:
        message = None
    if message:
        raise BuildError(f"{place(target, running['cell'])} {message}")


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def place(target: Path, cell: NotebookNode) -> str:
    return f"{target.parent.name}/{target.name}: the cell `{first_line(cell.source)}`"


def without_widget(output: NotebookNode) -> NotebookNode | None:
    # A widget's view refers to a kernel that is gone; the picture and text next to it stay.
    if WIDGET_VIEW in output.get("data", {}):
        del output["data"][WIDGET_VIEW]
        if not output["data"]:
            return None
    return output


def refuse_machine_traces(cell: NotebookNode, target: Path) -> None:
    texts = [text for output in cell.outputs for text in stored_texts(output)]
    folders = {str(ROOT), str(target.parent), sys.prefix, tempfile.gettempdir(), str(Path.home())} - {"/"}
    for text in texts:
        for folder in sorted(folders, key=len, reverse=True):
            if f"{folder}/" in text:
                raise BuildError(f"{place(target, cell)} shows a path of this machine, {folder}: print something else")
        if address := re.search(r" at 0x[0-9a-f]{6,}", text):
            raise BuildError(f"{place(target, cell)} shows an address that differs each time,{address[0]}: hide it")


def stored_texts(output: NotebookNode) -> list[str]:
    texts = [output.get("text", ""), *output.get("traceback", [])]
    for mime, data in output.get("data", {}).items():
        if mime.startswith("text/") or mime.endswith(("+json", "/json", "svg+xml")):
            texts.append(data if isinstance(data, str) else json.dumps(data))
    return texts


# Digests


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def made_from(source: Path, project: Project) -> dict[str, str]:
    return project.made_from(source.relative_to(project.root).as_posix(), "source/build.py")


def digest_of_notebook(notebook: dict) -> str:
    course = {key: value for key, value in notebook["metadata"]["kernel_fusion"].items() if key != "built"}
    content = {**notebook, "metadata": {**notebook["metadata"], "kernel_fusion": course}}
    return digest(json.dumps(content, sort_keys=True).encode())


def drift_of(source: Path, target: Path, project: Project) -> str | None:
    """Return why a built notebook no longer matches its source, or None."""
    if not target.exists():
        return "is not built"
    try:
        notebook = json.loads(target.read_text(encoding="utf-8"))
        course = notebook["metadata"]["kernel_fusion"]
        if course["built"] != digest_of_notebook(notebook):
            return EDITED
        if names := changed(course["made_from"], made_from(source, project)):
            return older_than(names)
    except (ValueError, KeyError, TypeError):
        return "was not written by source/build.py"
    return None


def drifted(root: Path, only: str = "") -> list[str]:
    """Return one line for each notebook that no longer matches its source."""
    lines, known, project = [], set(), Project(root)
    for source in sources_in(root, only):
        for target in targets_of(source, root):
            known.add(target)
            if reason := drift_of(source, target, project):
                lines.append(f"{target.relative_to(root)} {reason}: run `make notebooks`")
    for folder in ("notebooks", "exercises", "solutions"):
        for orphan in sorted(set((root / folder).glob(f"{only}*.ipynb")) - known):
            lines.append(f"{orphan.relative_to(root)} has no source: delete it, or add one and run `make notebooks`")
    return lines


# Building


def build(source: Path, project: Project) -> None:
    """Build all notebooks of one source, and write them only if all of them ran."""
    root = project.root
    notebook = read_source(source)
    targets = targets_of(source, root)
    for target in targets:
        target.parent.mkdir(exist_ok=True)
    opened = execute(notebook, targets[0], root)
    built = {targets[0]: notebook}
    if len(targets) == 2:
        built[targets[1]] = exercise = exercise_of(notebook)
        opened |= execute(exercise, targets[1], root)
    known = made_from(source, project)
    if unseen := sorted(opened - known.keys()):
        raise BuildError(
            f"{source.name}: reads {unseen[0]}, whose name is in no string of the modules it uses, so that a change of "
            "it would go unseen: write the file's name where it is read"
        )
    for result in built.values():
        course = {"made_from": known}
        if len(targets) == 2:
            # The exercise's metadata in both, because tools such as nbgrader copy the solution's.
            course |= {"exercise": source.stem, "original": original_of(exercise, notebook)}
        result.metadata["kernel_fusion"] = course
        nbformat.validate(result)
        # On disk, a long string is a list of lines: hash the notebook as it will be read from the file.
        course["built"] = digest_of_notebook(json.loads(nbformat.writes(result)))
        result.metadata["kernel_fusion"] = course
    for target, result in built.items():
        keep_edits(source, target, project)
        write(target, nbformat.writes(result) + "\n")


def keep_edits(source: Path, target: Path, project: Project) -> None:
    """Move an edited notebook aside: it may contain a learner's work, which a build must not overwrite."""
    if drift_of(source, target, project) == EDITED:
        kept = target.with_suffix(".ipynb.edited")
        os.replace(target, kept)
        print(f"{target.relative_to(project.root)} {EDITED}: kept as {kept.relative_to(project.root)}")


def write(target: Path, text: str) -> None:
    # Write next to it and rename, so that an interrupted build leaves the old notebook intact.
    beside = target.with_suffix(".building")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, target)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Build the course's notebooks from their sources.")
    parser.add_argument("--only", default="", metavar="NN", help="only the sources whose name starts with NN")
    parser.add_argument("--force", action="store_true", help="build again what has not changed")
    parser.add_argument("--check", action="store_true", help="build nothing; fail where a notebook has drifted")
    options = parser.parse_args(arguments)
    if options.only and not sources_in(root, options.only):
        names = ", ".join(source.stem for source in sources_in(root)) or "none"
        print(f"build: no source starts with {options.only!r}; there are: {names}", file=sys.stderr)
        return 2
    if options.check:
        lines = drifted(root, options.only)
        print("\n".join(lines) or "every notebook is up to date", file=sys.stderr if lines else sys.stdout)
        return 1 if lines else 0
    project = Project(root)
    for source in sources_in(root, options.only):
        targets = targets_of(source, root)
        if not options.force and not any(drift_of(source, target, project) for target in targets):
            continue
        print(f"building {', '.join(str(target.relative_to(root)) for target in targets)}", flush=True)
        try:
            build(source, project)
        except BuildError as error:
            print(f"build: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
