"""List what a built file was made from: every project file that its source uses, each with a digest.

A notebook depends on its own source, the modules it imports, everything these import in turn, and the records that any
of them reads. These dependencies aren't declared: they are found in the text of the files.

- Imports are followed from name to module. `from helpers.figures import watch` leads to the one module that
  helpers/figures/__init__.py (or its stub, __init__.pyi) imports `watch` from, so a change in another figure
  leaves the notebook fresh. A name that cannot be traced leads to every module of its package.
- A module uses a data file, such as a record in benchmarks/results/, if it has the file's name in a string:
  f"{gpu}_sweep.json" matches h200_sweep.json. When it builds a notebook, source/build.py compares this with the
  files actually opened.
- For external packages, the versions in pyproject.toml count.

A digest ignores comments, docstrings and blank lines, because no notebook shows those of helpers/. It includes them in
lessons, kernels/ and benchmarks/, whose text the lessons print.
"""

import ast
import functools
import hashlib
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "helpers", "benchmarks", "source")
SHOWN = ("kernels/", "benchmarks/", "source/lessons/", "source/exercises/")  # lessons print text from these
DATA = ("helpers", "kernels", "benchmarks")
RESULTS = "benchmarks/results"
IN_BROWSER = (".js", ".css")  # part of a live figure, but not stored in a notebook
# What a call of this name imports without an import statement.
LOADED_BY = {("kernels.variants", "variant"): "kernels.tuned"}
RELEVANT = (ast.Import, ast.ImportFrom, ast.Constant, ast.JoinedStr, ast.Name, ast.Expr)
NAMED = 3  # maximum changes named per stale file
DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml"}  # import name -> package name, where they differ


class Project:
    """The files in `root`, each read only once."""

    def __init__(self, root: Path = ROOT):
        self.root = root

    def made_from(self, *sources: str, browser: bool = False) -> dict[str, str]:
        """Return the dependencies of `sources`: file, or "package (pyproject.toml)", -> digest or version.

        Args:
            sources: paths from the root, such as "source/lessons/03_first_fused_kernel.py" and "source/build.py".
            browser: whether the built file also shows scripts and styles.
        """
        files, packages, left = set(), set(), set(sources)
        while left:
            files |= left
            used = [self._uses(each) for each in left]
            packages = packages.union(*(outside for _, outside in used))
            left = set().union(*(inside for inside, _ in used)) - files
        files |= {data for file in files for data in self._data_of(file)}
        kept = sorted(file for file in files if browser or not file.endswith(IN_BROWSER))
        pins = {f"{name} (pyproject.toml)": pin for name, pin in self._pins.items() if name in packages}
        return {file: self._digest(file) for file in kept} | pins

    # Imports

    def _path(self, module: str) -> str | None:
        """Return a module's file; for a package its __init__.py, or its folder if it has none."""
        place = module.replace(".", "/")
        candidates = (f"{place}.py", f"{place}/__init__.py", place)
        return next((each for each in candidates if (self.root / each).exists()), None)

    @functools.cache  # noqa: B019, a project lives as long as its process
    def _tree(self, file: str) -> ast.Module:
        return ast.parse((self.root / file).read_text(encoding="utf-8"), file)

    @functools.cache  # noqa: B019
    def _nodes(self, file: str) -> list[ast.AST]:
        """Return the nodes that show what a file uses: imports, strings, names. One walk finds all of them."""
        return [node for node in ast.walk(self._tree(file)) if isinstance(node, RELEVANT)]

    @functools.cache  # noqa: B019
    def _uses(self, file: str) -> tuple[set[str], set[str]]:
        """Return the files that a Python file imports, including in functions, and the names of external packages."""
        if not file.endswith(".py"):  # a package without __init__.py, imported only for its name
            return set(), set()
        package = tuple(Path(file).parent.parts)
        found, outside = self._effects_of_parents(file), set()
        for node in self._nodes(file):
            if isinstance(node, ast.ImportFrom):
                module = _absolute(node, package)
                names = [(module, alias.name, alias.asname or alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [(alias.name, None, alias.asname or alias.name) for alias in node.names]
            else:
                continue
            for module, name, known_as in names:
                root = module.partition(".")[0]
                if root not in PACKAGES or self._path(root) is None:
                    outside.add(root)
                elif name is None:
                    for attribute in self._attributes(file, known_as):
                        found |= self._resolve(module, attribute, file, known_as)
                else:
                    found |= self._resolve(module, name, file, known_as)
        # The file that lists a package's names doesn't use them.
        return found - {file}, outside

    def _attributes(self, file: str, name: str) -> set[str]:
        """Return X for each use of `name.X` in a file, "*" if the name is used by itself or not at all."""
        found = set()
        for node in ast.walk(self._tree(file)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name:
                found.add(node.attr)
        inside = {node.value for node in ast.walk(self._tree(file)) if isinstance(node, ast.Attribute)}
        alone = any(
            isinstance(node, ast.Name) and node.id == name and node not in inside for node in ast.walk(self._tree(file))
        )
        return {each for each in found if not each.startswith("__")} | ({"*"} if alone or not found else set())

    def _resolve(self, module: str, name: str, user: str, known_as: str) -> set[str]:
        """Return the files behind `from module import name`, following re-exports."""
        path = self._path(module)
        if path is None:  # an import that would fail
            return set()
        extra = self._everything(LOADED_BY[module, name]) if (module, name) in LOADED_BY else set()
        if path == f"{module.replace('.', '/')}.py":
            return {path} | extra
        names = self._names(module)
        if name in names:
            return self._resolve(*names[name], user, known_as)
        if (submodule := self._path(f"{module}.{name}")) is not None:
            return {submodule}
        if name == "CATALOGUE" and (keys := self._keys(user, known_as)):
            # One operation's entry, CATALOGUE["softmax"], is its own file's.
            return set().union(*(self._resolve(module, key, user, known_as) for key in keys))
        if path.endswith(".py") and name in self._defined(path):
            return {path}
        return self._everything(module)

    def leads_to(self, module: str, name: str) -> set[str]:
        """Return the files that `from module import name` leads to."""
        return self._resolve(module, name, "", name)

    @functools.cache  # noqa: B019
    def _names(self, package: str) -> dict[str, tuple[str, str]]:
        """Return the names that a package imports: name -> (module, its name there)."""
        init = self._path(package)
        files = [each for each in (init, f"{init}i") if each.endswith((".py", ".pyi")) and (self.root / each).exists()]
        found = {}
        for node in (node for file in files for node in self._tree(file).body if isinstance(node, ast.ImportFrom)):
            module = _absolute(node, tuple(package.split(".")))
            if module.partition(".")[0] in PACKAGES:
                found |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
        return {name: (module, at) for name, (module, at) in found.items() if (module, at) != (package, name)}

    @functools.cache  # noqa: B019
    def _defined(self, file: str) -> set[str]:
        """Return the names that a file itself defines."""
        found = set()
        for node in self._tree(file).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        # In a package that resolves names lazily, the function that resolves them is not a dependency.
        return found - {"__getattr__", "__dir__"}

    def _everything(self, package: str) -> set[str]:
        folder = self.root / package.replace(".", "/")
        return {path.relative_to(self.root).as_posix() for path in folder.rglob("*.py")}

    def _keys(self, file: str, name: str) -> set[str]:
        """Return the keys with which a file indexes `name`; empty if one of them is not a literal."""
        tree, found = self._tree(file), set()
        dotted = f"{name}.CATALOGUE"
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
        uses = [node for node in uses if ast.unparse(node) in ({name, dotted} if name == "CATALOGUE" else {dotted})]
        looked_up = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                looked_up[node.value] = node.slice.value
        for node in uses:
            if node not in looked_up:
                return set()
            found.add(looked_up[node])
        return found

    def _effects_of_parents(self, file: str) -> set[str]:
        """Return the files that a module's parent packages load on import, beyond defining names."""
        found = set()
        for parent in list(Path(file).parents)[:-1]:
            init = f"{parent.as_posix()}/__init__.py"
            if init == file or not (self.root / init).exists():
                continue
            package = ".".join(parent.parts)
            for node in self._tree(init).body:
                if isinstance(node, ast.ImportFrom) and not _absolute(node, parent.parts).startswith(package):
                    module = _absolute(node, parent.parts)
                    if module.partition(".")[0] in PACKAGES:
                        found |= set().union(
                            *(self._resolve(module, each.name, init, each.name) for each in node.names)
                        )
                elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                    found.add(init)
        return found

    # Data

    @functools.cached_property
    def _data(self) -> list[str]:
        paths = (path for folder in DATA for path in (self.root / folder).rglob("*"))
        found = (path for path in paths if path.suffix not in (".py", ".pyi", ".pyc", "") and path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    @functools.cached_property
    def _gpus(self) -> str:
        """Return a pattern of the GPUs' names: records whose names don't begin with another record's name."""
        names = [
            path.removeprefix(f"{RESULTS}/").removesuffix(".json") for path in self._data if path.endswith(".json")
        ]
        names = [name for name in names if "/" not in name]
        gpus = [name for name in names if not any(name.startswith(f"{other}_") for other in names)]
        return f"(?:{'|'.join(map(re.escape, gpus))})"

    def _data_of(self, file: str) -> set[str]:
        """Return the data files whose names occur in the strings of a Python file."""
        if not file.endswith(".py"):
            return set()
        exact, patterns, reads_results = self._strings(file)
        found = set()
        for path in self._data:
            folder, _, name = path.rpartition("/")
            is_record = reads_results and folder == RESULTS
            if name in exact or any(
                pattern.fullmatch(name) and (is_record or not begins_with_value)
                for pattern, begins_with_value in patterns
            ):
                found.add(path)
        return found

    @functools.cache  # noqa: B019
    def _strings(self, file: str) -> tuple[set[str], list[tuple[re.Pattern, bool]], bool]:
        """Return the last parts of its strings; for each f-string, a pattern and whether it begins with a value; and
        whether the file names the results folder.

        A value at the beginning is a GPU's name: f"{gpu}.json" does not match h200_sweep.json. Outside the results
        folder, such a name means nothing.
        """
        exact, patterns, inside = set(), {}, set()
        reads_results = False
        for node in self._nodes(file):
            if isinstance(node, ast.JoinedStr):
                inside |= set(node.values)
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                text = "".join("\0" if part is None else part for part in parts).rpartition("/")[2]
                if re.fullmatch(r".*\.\w+", text, re.DOTALL):
                    value = "\0[^/]*"
                    pattern = re.escape(text).replace(re.escape("\0"), value[1:])
                    if text.startswith("\0"):
                        pattern = self._gpus + pattern[len(value) - 1 :]
                    patterns[pattern] = text.startswith("\0")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                exact.add(node.value.rpartition("/")[2])
                reads_results |= node.value.rstrip("/").endswith("results")
            elif isinstance(node, ast.Name):
                reads_results |= node.id == "RESULTS"
        return exact, [(re.compile(each), at_start) for each, at_start in patterns.items()], reads_results

    # Digests

    @functools.cached_property
    def _pins(self) -> dict[str, str]:
        """Return import name -> the package version that the course installs."""
        path = self.root / "pyproject.toml"
        if not path.exists():
            return {}
        imported = {name: module for module, name in DISTRIBUTIONS.items()}
        pins = (each.partition("==") for each in tomllib.loads(path.read_text())["project"]["dependencies"])
        return {imported.get(name.lower(), name.replace("-", "_")): version for name, _, version in pins}

    @functools.cache  # noqa: B019
    def _digest(self, file: str) -> str:
        path = self.root / file
        if path.is_dir():
            return ""
        content = path.read_bytes()
        if file.endswith(".py") and (not file.startswith(SHOWN) or file.startswith("kernels/interpreter/")):
            content = code_of(content.decode(), self._nodes(file)).encode()
        return hashlib.sha256(content).hexdigest()[:8]


def _absolute(node: ast.ImportFrom, package: tuple[str, ...]) -> str:
    """Return the module of `from ... import` in a file of `package`."""
    if not node.level:
        return node.module
    return ".".join((*package[: len(package) - node.level + 1], *filter(None, [node.module])))


def code_of(text: str, nodes: Iterable[ast.AST] = ()) -> str:
    """Return Python source without comments, docstrings and blank lines; the same in every version of Python.

    Args:
        nodes: the parsed nodes of `text`, if available.
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    for node in nodes or ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def changed(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what differs between two results of `made_from`, files before packages."""
    names = {name for name in {*then, *now} if then.get(name) != now.get(name)}
    return sorted(names, key=lambda name: (" " in name, name))


def older_than(names: list[str]) -> str:
    """Return "is older than a.py, b.py, c.py and 2 more"; `names`: from `changed`, not empty."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"is older than {', '.join(names[:NAMED])}{more}"
