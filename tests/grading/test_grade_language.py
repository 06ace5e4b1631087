"""Launchers are written in a closed language, and no text is other code to another reader than to the policy."""

import re

import attacks
import pytest

from helpers.grading.exercise import exercises_in
from helpers.learning.submission_policy.screening import kept_by, screen

KEPT = kept_by(exercises_in(only=attacks.NAME)[attacks.NAME].cells)


def refusals(launcher: str = attacks.LAUNCHER, kernel: str = attacks.KERNEL) -> str:
    return "\n".join(map(str, screen({"kernel": kernel, "launcher": launcher}, KEPT)))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = " + "+".join("1" * 2_000), "nested too deeply"),
        # Modules behind modules
        ("torch.nn.functional.importlib.import_module('os')", "torch.nn.functional.importlib isn't available"),
        ("from torch.nn.functional import importlib", "importing importlib from torch.nn.functional"),
        ("import torch.nn.functional as F\nF.importlib", "line 2: F.importlib isn't available"),
        ("from torch.nn import functional as F\nF.sys", "line 2: F.sys isn't available"),
        ("from torch import nn\nnn.Module", "nn.Module isn't available"),
        ("tl.core.builtins.exec('x')", "tl.core isn't available"),
        ("triton.language.core", "triton.language.core isn't available"),
        ("triton.jit(reference)", "triton.jit isn't available"),
        ("m = torch\nm.ops", "line 1: torch is used here on its own"),
        ("m = torch.nn.functional\nm.os", "line 1: torch.nn.functional is used here on its own"),
        ("[m for m in (tl,)][0].core", "tl is used here on its own"),
        ("import collections\nx = collections.Counter()", "importing collections is not graded"),
        # Frames, classes, code as text
        ("(x for x in [1]).gi_frame.f_back", "gi_frame isn't available"),
        ("(lambda: (yield))()", "not in the language of answers"),
        ("async def f(): pass", "not in the language of answers"),
        ("'{0.gi_frame}'.format(1)", "format isn't available"),
        ("x = str.format_map", "str.format_map isn't available"),
        ("x = map(str.format, ['{0.x}'], [1])", "str.format isn't available"),
        ("f'{reference.gi_frame}'", "reference.gi_frame isn't available"),
        ("type('X', (), {})", "type isn't available"),
        ("t = type\nt('X', (), {})", "line 1: type isn't available"),
        ("def f(type):\n    return 1\n\ndef g():\n    return type('X', (), {})", "line 5: type isn't available"),
        ("class X: pass", "classes aren't graded, and X is one: write functions"),
        ("x = object()", "object isn't available"),
        ("x = _ih", "_ih isn't available"),
        ("x = In[1]", "In isn't available"),
        # Every way to give a name of the exercise's another meaning
        ("try:\n    x = 1 / 0\nexcept ValueError as check_values:\n    pass", "not in the language of answers"),
        ("with torch.no_grad() as check_values: pass", "check_values is a name of the exercise"),
        ("[check_values := 1]", "check_values is a name of the exercise"),
        ("def f(x=(check_values := 1)): pass", "check_values is a name of the exercise"),
        ("x = lambda y=(measure := 1): y", "measure is a name of the exercise"),
        ("x = [reference := y for y in [1]]", "reference is a name of the exercise"),
        ("match 1:\n    case check_values: pass", "not in the language of answers"),
        ("del reference", "reference is a name of the exercise"),
        ("torch = 1", "torch is a name of the exercise"),
        ("import math as torch", "torch is a name of the exercise"),
        ("from math import pi as tl", "tl is a name of the exercise"),
        ("from torch import nn as reference", "reference is a name of the exercise"),
        # Kernels in other places
        ("def f(x):\n    @triton.jit\n    def k(y): pass", "under @triton.jit alone"),
        ("@triton.autotune([], [])\n@triton.jit\ndef k(x_ptr): pass", "@triton.autotune isn't graded: leave it out"),
        ("@triton.heuristics({})\n@triton.jit\ndef k(x_ptr): pass", "@triton.heuristics isn't graded: leave it out"),
        ("@staticmethod\ndef k(x_ptr): pass", "under @triton.jit alone"),
        # Other readers of the text would see other code
        ("# -*- coding: utf-7 -*-\nx = 1", "line 1: text in a notebook is UTF-8"),
        ("\n# vim: set fileencoding=latin-1 :\nx = 1", "line 2: text in a notebook is UTF-8"),
        ('x = """\nIn [1]: a\n"""', "IPython would run other code"),
        ("x = 1\n%matplotlib inline", "magics and shell commands"),
        ("x = 1\n!ls", "magics and shell commands|invalid syntax"),
        ("x = !ls", "magics and shell commands|invalid syntax"),
        ("%%bash\nls", "magics and shell commands"),
        ("reference?", "magics and shell commands|invalid syntax"),
        ("In [1]: import os", "invalid syntax"),
    ],
)
def test_what_is_not_known_to_be_safe_is_refused(code, told):
    said = refusals(code)
    assert re.search(told, said), said
    assert "\n" not in said


@pytest.mark.parametrize("end", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r", ids=lambda end: f"{ord(end):x}")
@pytest.mark.parametrize("text", ["x = 1  # {}import os", "x = '''{}def k():'''", "x = 1\n{} \ny = 2"])
def test_no_line_ends_for_some_readers_alone(end, text):
    assert f"the character U+{ord(end):04X} ends a line" in refusals(text.format(end))


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ("@triton.jit\ndef \\\nk(x_ptr):\n    pass", "without a break"),
        ("@triton.jit\ndef k \\\n(x_ptr):\n    pass", "without a break"),
        ("@triton.jit\ndef  k(x_ptr):\n    pass", "without a break"),
        ("@triton.\\\njit\ndef k(x_ptr):\n    pass", "line of its own"),
        ("@(triton\n.jit)\ndef k(x_ptr):\n    pass", "line of its own"),
        ("x = 1\n@triton.jit; y = 1\ndef k(x_ptr): pass", "invalid syntax"),
        ("if 1:\n    @triton.jit\n    def k(x_ptr):\n        pass", "under @triton.jit alone"),
        ('@triton.jit\ndef k(x_ptr):\n    """\ndef k(x_ptr):\n    import os\n    """', "^$"),
        ('@triton.jit\ndef k(x_ptr, n=1, *, m="""\ndef k(x_ptr):\n    import os\n"""): pass', "^$"),
        ("@triton.jit\n# '''\ndef k(x_ptr):\n    pass\n# '''", "^$"),
        ("@triton.jit\n\n\ndef k(x_ptr):\n    pass", "^$"),
    ],
)
def test_a_kernel_is_what_triton_would_cut_out_of_the_text(kernel, told):
    said = refusals(kernel=kernel)
    assert re.search(told, said), said


@pytest.mark.parametrize(
    "code",
    [
        "import torch.nn.functional as F\n\ndef f(x):\n    return F.gelu(x)",
        "from torch.nn import functional\nfrom math import sqrt\n\ndef f(x):\n    return functional.silu(x) * sqrt(2)",
        "def f(input, type=None):\n    return input.contiguous() if type is None else type",
        "def f(x):\n    assert x.dim() == 2, f'{tuple(x.shape)}'\n    with torch.no_grad():\n        return x.sum(-1)",
        "def f(x):\n    if x.stride(-1) != 1 or x.data_ptr() % 16:\n        raise ValueError('strides')\n    return x",
        '\n\ndef f(x):\n    """Words\n    \n    and words."""\n    for _ in range(2):\n        x = x + 1\n    return x',
        "def f(x):\n    grid = lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)\r\n    return grid\r\n",
        "def f(x):\n    seen = {}\n    seen[x.shape] = [y for y in x.unbind(0) if y.numel()]\n    return seen.items()",
        "def f(x):\n    while True:\n        pass\n    return triton.cdiv(x.numel(), 2) + math.ceil(2.5)",
        "def f(x):\n    return x\n    return triton.cdiv(x.numel(), 2)",
        "def f(x: torch.Tensor, p: float = 0.1) -> torch.Tensor:\n    return x if x.dtype == torch.int8 else x",
    ],
)
def test_launchers_as_people_write_them_are_let_through(code):
    assert refusals(code) == ""
