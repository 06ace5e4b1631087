"""Fingerprints of the project's Triton and Gluon kernels, which show whether a kernel has changed since it was
recorded.

A fingerprint has two parts, "code.settings". The code is the kernel's syntax tree with all device functions and
constants that it uses. The settings are the trees of the functions that choose its launch options: functions in
kernels/ that are annotated to return a dict and that the kernel's launcher calls, or its callers if it calls none.
Comments, docstrings, formatting and the names of modules and device functions are left out, so a kernel that only moves
keeps its fingerprint, and changing a plain kernel doesn't affect the tuned ones. Everything is read from the files: no
kernel is imported or launched.
"""

import ast
import copy
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernels", "benchmarks", "source/lessons")  # where the timed kernels are defined
# How every call reaches the GPU or the interpreter: nothing here is specific to one kernel.
CALLS = {"kernels.op", "kernels.plans", "kernels.launching", "kernels.launch_cache", "kernels.variants"}

Function = ast.FunctionDef
Name = tuple[str, str]  # module, name in it


class Module(NamedTuple):
    """A file's top-level definitions, and its imports: local name -> (module, name), or (module, "")."""

    definitions: dict[str, ast.stmt]
    imports: dict[str, Name]


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                kept = [s for s in block if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
                setattr(node, field, kept)
    return tree


def _read(text: str) -> Module:
    tree = _without_docstrings(ast.parse(text))
    definitions, imports = {}, {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        definitions[each.id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            definitions[node.target.id] = node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            whole = (alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names)
            imports |= {alias.asname or name: (name, "") for alias, name in zip(node.names, whole, strict=True)}
    return Module(definitions, imports)


def _is_kernel(node: ast.AST | None) -> bool:
    """Return whether a definition is a function for the GPU: decorated with triton.jit or gluon.jit."""
    return isinstance(node, Function) and any(
        ast.unparse(each).partition("(")[0].endswith("jit") for each in node.decorator_list
    )


def _local_names(tree: ast.AST) -> set[str]:
    """Return a function's parameters and assigned names, which shadow the module's."""
    if not isinstance(tree, Function):
        return set()
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _root(node: ast.AST) -> str | None:
    """Return the name of a name node, or of an attribute's object."""
    node = node.value if isinstance(node, ast.Attribute) else node
    return node.id if isinstance(node, ast.Name) else None


def _returns_options(node: ast.AST | None) -> bool:
    return isinstance(node, Function) and node.returns is not None and "dict" in ast.unparse(node.returns)


def _shown(node: object) -> str:
    """Write out a syntax tree, the same in every version of Python: empty fields are left out, because versions differ
    in which of them a node has and which of them ast.dump writes."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in fields)})"
    return f"[{', '.join(map(_shown, node))}]" if isinstance(node, list) else repr(node)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Code:
    """The kernels, device functions and launchers in the files of a folder.

    Args:
        root: the folder that holds FOLDERS.
    """

    def __init__(self, root: Path = ROOT):
        self.modules = {}
        for path in (path for folder in FOLDERS for path in sorted((root / folder).glob("**/*.py"))):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name not in CALLS:
                self.modules[name] = _read(path.read_text(encoding="utf-8"))
        self._codes: dict[Name, str] = {}
        self._uses: dict[Name, set[Name]] = {}

    def _resolve(self, module: str, name: str, seen: tuple = ()) -> Name | None:
        """Return where `name` in `module` is defined; (module, "") for a module; None if outside the project."""
        if module not in self.modules or (module, name) in seen:
            return None
        found = self.modules[module]
        if name in found.definitions:
            return module, name
        if name in found.imports:
            other, its = found.imports[name]
            if not its or f"{other}.{its}" in self.modules:
                whole = f"{other}.{its}" if its else other
                return (whole, "") if whole in self.modules else None
            return self._resolve(other, its, (*seen, (module, name)))
        return None

    def _used(self, module: str, node: ast.AST) -> Name | None:
        """Return the project's definition that a name, or an attribute of an imported module, refers to."""
        if isinstance(node, ast.Name):
            found = self._resolve(module, node.id)
            return found if found and found[1] else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = self._resolve(module, node.value.id)
            return self._resolve(found[0], node.attr) if found and not found[1] else None
        return None

    def definition(self, where: Name) -> ast.stmt:
        return self.modules[where[0]].definitions[where[1]]

    def uses(self, where: Name) -> set[Name]:
        """Return the project's definitions that the one at `where` refers to."""
        if where not in self._uses:
            tree = self.definition(where)
            local = _local_names(tree)
            found = {self._used(where[0], node) for node in ast.walk(tree) if _root(node) not in local}
            self._uses[where] = found - {None, where}
        return self._uses[where]

    def code(self, where: Name) -> str:
        """Return the digest of a definition's tree, with each definition that it uses replaced by that one's digest."""
        if where not in self._codes:
            self._codes[where] = ""  # in progress, in case a definition uses itself
            module, code = where[0], self
            tree = copy.deepcopy(self.definition(where))
            local = _local_names(tree)

            class Names(ast.NodeTransformer):
                def generic_visit(self, node):
                    used = None if _root(node) in local else code._used(module, node)
                    if used is not None and isinstance(node.ctx, ast.Load):
                        return ast.Constant(code.code(used))
                    return super().generic_visit(node)

            if isinstance(tree, (ast.FunctionDef, ast.ClassDef)):
                tree.name = ""
                shown = _shown(Names().generic_visit(tree))
            else:
                shown = _shown(Names().visit(tree.value)) if tree.value else ""
            self._codes[where] = _digest(shown)
        return self._codes[where]

    @functools.cached_property
    def launchers(self) -> dict[Name, set[Name]]:
        """Kernel -> the host functions that name it, except those that only pass its arguments to a compiler."""
        found: dict[Name, set[Name]] = {}
        for module, read in self.modules.items():
            for name, node in read.definitions.items():
                if name.endswith("compile_arguments"):
                    continue
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not _is_kernel(node):
                    for used in self.uses((module, name)):
                        if _is_kernel(self.definition(used)):
                            found.setdefault(used, set()).add((module, name))
        return found

    @functools.cached_property
    def _callers(self) -> dict[Name, set[Name]]:
        """Host function -> the host functions that use it."""
        found: dict[Name, set[Name]] = {}
        for module, read in self.modules.items():
            for name in read.definitions:
                if self._is_host_function((module, name)):
                    for used in self.uses((module, name)):
                        found.setdefault(used, set()).add((module, name))
        return found

    def _is_host_function(self, where: Name) -> bool:
        node = self.definition(where)
        return isinstance(node, Function) and not _is_kernel(node)

    def _options(self, launchers: set[Name]) -> set[Name]:
        """Return the option-returning functions that these reach without going through another kernel's launcher."""
        named = {launcher for launchers in self.launchers.values() for launcher in launchers}
        every, left = set(), set(launchers)
        while left:
            every |= left
            left = {each for where in left for each in self.uses(where) if self._is_host_function(each)} - every - named
        return {where for where in every if where[0].startswith("kernels") and _returns_options(self.definition(where))}

    def settings(self, kernel: Name) -> str:
        """Return the digest of the code that chooses a kernel's launch options."""
        launchers = self.launchers.get(kernel, set())
        chosen = {_digest(text) for launcher in launchers for text in self._written(kernel, launcher)}
        options, asked = self._options(launchers), set(launchers)
        while not options and launchers:
            launchers = set().union(*(self._callers.get(each, set()) for each in launchers)) - asked
            options, asked = self._options(launchers), asked | launchers
        return _digest(" ".join(sorted(chosen | {self.code(where) for where in options})))

    def _written(self, kernel: Name, launcher: Name) -> Iterable[str]:
        """Return the options written at the launch itself, such as num_warps=4."""
        for node in ast.walk(self.definition(launcher)):
            launch = isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
            if launch and self._used(launcher[0], node.func.value) == kernel:
                yield from (_shown(each) for each in node.keywords if isinstance(each.value, ast.Constant))

    def fingerprint(self, kernel: Name) -> str:
        """Return a kernel's fingerprint, "code.settings"."""
        return f"{self.code(kernel)}.{self.settings(kernel)}"

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """Return "module.name" -> fingerprint of each launched kernel."""
        return {".".join(kernel): self.fingerprint(kernel) for kernel in sorted(self.launchers)}


@functools.cache
def _code() -> Code:
    return Code()


def fingerprints(folder: str = "") -> dict[str, str]:
    """Return "module.name" -> fingerprint of the kernels in the files as they are now, of one folder if given."""
    return {name: found for name, found in _code().fingerprints.items() if name.startswith(folder)}


def is_current(recorded: Iterable[str] | None) -> bool:
    """Return whether the kernels with these fingerprints all still exist unchanged, wherever they are now.

    False for None: without recorded fingerprints, there is no way to know."""
    return recorded is not None and set(recorded) <= set(fingerprints().values())
