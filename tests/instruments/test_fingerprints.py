"""Fingerprints of kernels: what changes them, and what does not."""

import pytest

from helpers.instruments import fingerprints
from helpers.instruments.fingerprints import Code
from kernels import CATALOGUE

FILES = {
    "rowwise/one": '''
"""First."""
import triton
import triton.language as tl
from kernels.deep import scaled
from kernels.options import settings

SIZE = BLOCK = 4

@triton.jit
def one_kernel(x_ptr, BLOCK: tl.constexpr):
    """Doc."""
    tl.store(x_ptr, scaled(tl.load(x_ptr + BLOCK)))  # a comment

def _forward(x):
    one_kernel[(1,)](x, num_warps=4, **settings(x.shape[0]))

OP = FusedOp(kernel=one_kernel)
''',
    "deep": """
import triton
import triton.language as tl
FACTOR = tl.constexpr(2)

@triton.jit
def scaled(x):
    return x * FACTOR
""",
    "options": """
def settings(n) -> dict:
    return {"BLOCK": width(n)}

def width(n):
    return 2 * n
""",
    "rowwise/two": """
import triton
from kernels import deep
from kernels.rowwise import one

@triton.jit
def two_kernel(x_ptr):
    deep.scaled(x_ptr)

def launch(x, chosen):
    two_kernel[(1,)](x, **chosen)

def forward(x):
    return launch(x, chosen(x)) if x.numel() else one._forward(x)

def chosen(x) -> dict:
    return {"num_warps": 8}
""",
}

# Of FILES, in CPython 3.11, 3.12 and 3.13.
EXPECTED = {
    "kernels.rowwise.one.one_kernel": "05831d636af7.3ee2736ea8d5",
    "kernels.rowwise.two.two_kernel": "9897495f8c04.9ab0ad3aced5",
}


@pytest.fixture
def changed(tmp_path):
    """A function: the kernels whose fingerprint another text gives, (file, text before, text after) or {file: text}."""

    def found(files: dict[str, str]) -> dict[str, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / "kernels" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {name.rpartition(".")[2]: each for name, each in Code(folder).fingerprints.items()}

    before = found(FILES)
    assert before.keys() == {"one_kernel", "two_kernel"}

    def compared(*edits: tuple[str, str, str], **files: str) -> set[str]:
        new = dict(FILES) | files
        for name, old, text in edits:
            assert old in new[name]
            new[name] = new[name].replace(old, text)
        after = found(new)
        return {name for name in before if after.get(name) != before[name]}

    return compared


def test_what_a_kernel_consists_of_and_its_settings_change_it(changed):
    assert changed(("rowwise/one", "tl.load(x_ptr + BLOCK)", "tl.load(x_ptr + 1)")) == {"one_kernel"}
    assert (
        changed(("deep", "x * FACTOR", "x + FACTOR")) == changed(("deep", "(2)", "(3)")) == {"one_kernel", "two_kernel"}
    )
    assert changed(("options", "width(n)}", "4 * n}")) == changed(("options", "2 * n", "3 * n")) == {"one_kernel"}
    assert changed(("rowwise/one", "num_warps=4", "num_warps=8")) == {"one_kernel"}
    assert changed(("rowwise/two", '"num_warps": 8', '"num_warps": 4')) == {"two_kernel"}


def test_every_version_of_python_finds_the_same(tmp_path):
    """Syntax trees differ: from 3.12 on a function has type parameters, and 3.13 dumps no empty fields."""
    for name, text in FILES.items():
        path = tmp_path / "kernels" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert Code(tmp_path).fingerprints == EXPECTED


def test_what_says_nothing_of_the_kernel_changes_nothing(changed):
    assert changed(("rowwise/one", "# a comment", "# another"), ("rowwise/one", "Doc.", "Other.")) == set()
    assert changed(("rowwise/one", "BLOCK = 4", "BLOCK = 5"), ("rowwise/one", "First.", "Second.")) == set()
    assert changed(("rowwise/two", "x.numel()", "x.shape[0] > 8")) == set()
    compile_arguments = "\ndef _compile_arguments(n) -> tuple:\n    return two_kernel, (n,), {'num_warps': 8}\n"
    assert changed(("rowwise/two", "\ndef chosen", f"{compile_arguments}\ndef chosen")) == set()


def test_a_kernel_that_moves_keeps_its_fingerprint(changed):
    moved = FILES["rowwise/one"].replace("kernels.deep", "kernels.other").replace("scaled", "multiplied")
    other = FILES["deep"].replace("scaled", "multiplied")
    assert changed(**{"tuned/wide": moved, "other": other, "rowwise/one": "def _forward(x): ..."}) == set()


def test_a_recorded_kernel_is_current_wherever_it_is_now(monkeypatch):
    monkeypatch.setattr(fingerprints, "fingerprints", lambda: {"kernels.tuned.new": "1.2"})
    assert fingerprints.is_current(["1.2"])
    assert fingerprints.is_current([])
    assert not fingerprints.is_current(["1.2", "1.3"])
    assert not fingerprints.is_current(None)


def test_every_kernel_of_the_catalogue_has_a_fingerprint():
    found = fingerprints.fingerprints("kernels.")
    for op in CATALOGUE.values():
        assert f"{op.kernel.fn.__module__}.{op.kernel.fn.__name__}" in found
