"""What the policy refuses, with the line and the reason, and what it must let through."""

import json
import re
from pathlib import Path

import answers
import attacks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.grading.exercise import exercises_in
from helpers.grading.grade import REFUSED, grade
from helpers.grading.judge import Judge
from helpers.instruments.diagnosis import bubblewrap
from helpers.learning.outcome import ERROR, PASS
from helpers.learning.submission_policy.screening import kept_by, screen, screened

KEPT = kept_by(exercises_in(only=attacks.NAME)[attacks.NAME].cells)


def refusals(launcher: str = attacks.LAUNCHER, kernel: str = attacks.KERNEL) -> str:
    return "\n".join(map(str, screen({"kernel": kernel, "launcher": launcher}, KEPT)))


@pytest.mark.parametrize("answer", answers.all_answers(), ids=str)
def test_every_answer_kept_for_the_tests_is_let_through(answer):
    assert not screened(answer.cells, exercises_in(only=answer.exercise)[answer.exercise].cells).refusals


@pytest.mark.parametrize("name", exercises_in())
def test_every_solution_is_let_through(name):
    exercise = exercises_in()[name]
    answers = {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    assert not screened(answers, exercise.cells).refusals


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os", "importing os is not graded"),
        ("import torch, sys", "importing sys"),
        ("from subprocess import run", "importing subprocess"),
        ("from kernels import add_gelu", "importing kernels is not graded"),
        ("from torch import *", r"importing \* from torch"),
        ("from torch import ops", "importing ops from torch"),
        ("from . import x", "importing . is not graded"),
        ("eval('1')", "eval isn't available to answers"),
        ("x = exec", "exec isn't available"),
        ("open('/etc/passwd')", "open isn't available"),
        ("__import__('os')", "__import__ isn't available"),
        ("getattr(torch, 'o' + 's')", "getattr isn't available"),
        ("globals()['reference'] = None", "globals isn't available"),
        ("get_ipython().run_cell('1')", "get_ipython isn't available"),
        ("().__class__.__bases__", "reaches into the interpreter"),
        ("(lambda: 0).__globals__", "reaches into the interpreter"),
        ("x = reference.__code__", "reaches into the interpreter"),
        ("torch._C", "._C reaches into the interpreter"),
        ("torch.ops.aten", "torch.ops isn't available"),
        ("torch.load('x')", "torch.load isn't available"),
        ("torch.compile(reference)", "torch.compile isn't available"),
        ("torch.os.system('x')", "torch.os isn't available"),
        ("triton.runtime.driver", "triton.runtime isn't available"),
        ("torch.allclose = lambda *_: True", "would patch what it belongs to"),
        ("torch.Tensor.__eq__ = lambda *_: True", "reaches into the interpreter"),
        ("del torch.equal", "would patch"),
        ("torch.nn.functional.gelu += 1", "would patch"),
        ("for torch.equal in [1]: pass", "would patch"),
        ("reference = None", "reference is a name of the exercise"),
        ("def check_values(*_, **__): pass", "check_values is a name of the exercise"),
        ("import math as measure", "measure is a name of the exercise"),
        ("from torch import add as elementwise_cases", "elementwise_cases is a name of the exercise"),
        ("for Hints in [1]: pass", "Hints is a name of the exercise"),
        ("def f():\n    global x", "global and nonlocal"),
        ("%run /tmp/x", "magics and shell commands are not graded"),
        ("!cat /etc/passwd", "magics and shell commands are not graded"),
        ("def f(:", "invalid syntax"),
        ("x = '\x00'", "Python cannot read it|null byte"),
        ("x = '\ud800'", "or not text"),
        ("-" * 20_000 + "1", "nested too deeply"),
        ("(" * 5_000 + ")" * 5_000, "too many nested"),
        ("x = 1\n" * 10_000, "at most 50,000 are graded"),
    ],
)
def test_a_launcher_that_reaches_too_far_is_refused_with_its_line(code, told):
    said = refusals(code)
    assert re.search(told, said), said
    assert "\n" not in said


KERNEL = "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n    {line}\n"


@pytest.mark.parametrize(
    "line",
    [
        "print(n)",
        "x = n.handle",
        "x = tl.load(x_ptr).handle.data",
        "x = tl.core",
        "x = tl.semantic",
        "x = tl.math.libdevice",
        "tl.static_print(n)",
        "tl.device_print('x', n)",
        "tl.inline_asm_elementwise('', '', [n], tl.int32, True, 1)",
        "x = tl.pointer_type(tl.int8)",
        "x = triton.runtime",
        "x = triton.language.core",
        "x = f'{n}'",
        "x = '{0.handle}'.format(n)",
        "x = [n for n in range(3)]",
        "x = lambda: 0",
        "x = (y := n)",
        "import os",
        "from os import system",
        "def g(): pass",
        "class G: pass",
        "global y",
        "try:\n        x = 1\n    finally:\n        pass",
        "with n:\n        pass",
        "assert n",
        "del n",
        "raise ValueError('x')",
        "raise NotImplementedError('x')",
        "yield n",
        "x = torch.sum(n)",
        "x = reference(n)",
        "x = unknown",
        "x = open('/etc/passwd')",
        "x = getattr(n, 'handle')",
        "x = (1).__class__",
        "x_ptr.y = n",
        "x_ptr[0] = n",
        "tl = n",
        "range = n",
        "n(1)",
        "range(3)(1)",
        "x = tl.load(*n)",
        "x = tl.load(**n)",
        "x: __import__('os') = 1",
        "x = SECRET",
        "for tl.load in range(3):\n        pass",
        "match n:\n        case 1:\n            pass",
    ],
)
def test_a_kernel_has_no_word_beyond_its_language(line):
    said = refusals(attacks.LAUNCHER + "\nSECRET = [1, 2]\n", KERNEL.format(line=line))
    assert said.startswith("answer 'kernel', line "), said
    assert said.count("\n") == 0


@pytest.mark.parametrize("name", ["make_block_ptr", "advance"])
def test_block_pointers_are_refused_with_what_to_use_instead(name):
    said = refusals(kernel=KERNEL.format(line=f"x = tl.{name}(x_ptr, [n], [1], [0], [BLOCK], [0])"))
    assert said.endswith(f"line 3: tl.{name}: block pointers aren't graded; use pointers and a mask"), said


@pytest.mark.parametrize(
    "kernel",
    [
        "@triton.jit\ndef k(x_ptr, n=print()):\n    pass",
        "@triton.jit\ndef k(x_ptr: print('x')):\n    pass",
        "@triton.jit\ndef k(x_ptr) -> print('x'):\n    pass",
        "@triton.jit\ndef k(*x):\n    pass",
        "@triton.jit\ndef k(**x):\n    pass",
        "@triton.jit\ndef k(x, /):\n    pass",
        "@triton.jit\ndef k(tl):\n    pass",
        "@triton.jit\ndef k(x):\n    pass\n\n@triton.jit\ndef k(x):\n    pass",
    ],
)
def test_a_kernels_head_runs_nothing(kernel):
    assert refusals(kernel=kernel).startswith("answer 'kernel', line ")


@pytest.mark.parametrize(
    "line",
    [
        "x = tl.load(x_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < n, other=-float('inf'))",
        "'''Words.'''",
        "x: tl.constexpr = 2 * BLOCK",
        "for i in tl.range(0, n, BLOCK):\n        x = i if i > 0 else SCALE",
        "a, b = tl.split(tl.load(x_ptr))",
        "tl.store(x_ptr, tl.zeros([BLOCK], dtype=tl.float32).to(x_ptr.dtype.element_ty)[:, None].sum(axis=0))",
        "x = tl.reduce(tl.load(x_ptr), 0, helper)",
        "x = tl.math.rsqrt(tl.cdiv(n, BLOCK) + triton.cdiv(n, 2) + math.sqrt(2.0))",
        "return",
        "raise NotImplementedError  # your code here",
    ],
)
def test_what_kernels_are_written_in_is_let_through(line):
    launcher = attacks.LAUNCHER + "\nimport math\nSCALE: tl.constexpr = tl.constexpr(math.sqrt(2 / math.pi) * -1)\n"
    kernel = KERNEL.format(line=line) + "\n@triton.jit\ndef helper(a, b):\n    return a + b\n"
    assert refusals(launcher, kernel) == ""


@given(st.text(max_size=200))
def test_any_text_is_let_through_or_refused_in_one_line_for_each_answer(text):
    assert len(screen({"answer": text})) <= 1
    assert all("\n" not in str(refusal) for refusal in screen({"answer": text}))


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.parametrize(
    ("source", "state", "told"),
    [
        ("def count_affine(rows, columns)\n    return 1", ERROR, "SyntaxError"),
        ("def count_affine(rows, columns):\n    return measure(rows)", REFUSED, "line 2: measure: an answer here may"),
    ],
)
def test_an_answer_that_is_left_out_costs_only_the_checks_that_need_it(source, state, told):
    name = "02_count_the_bytes"
    exercise = exercises_in(only=name)[name]
    content = json.loads((Path(__file__).parents[2] / "solutions" / f"{name}.ipynb").read_text())
    (answer,) = (cell for cell in content["cells"] if cell["id"] == "count-affine")
    answer["source"] = source
    judge = Judge(exercise, seed=3)
    try:
        checks = grade(json.dumps(content).encode(), f"{name}.ipynb", judge).checks
    finally:
        judge.close()
    assert {check.check: check.state for check in checks if check.state != PASS} == {"affine": state}
    assert all(told in check.message for check in checks if check.check == "affine")


@pytest.mark.parametrize("name", ["wide", "x", "hint"])
def test_a_function_with_the_name_of_a_variable_of_the_exercise_is_refused(name):
    """`wide = ...` in a later cell would replace the function, and Python would say that a tuple is not callable."""
    cells = exercises_in(only="18")["18_short_kernels"].cells
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    assert not screened(answers, cells).refusals
    answers["launcher"] += f"\n\ndef {name}(rows):\n    return rows\n"
    (refusal,) = screened(answers, cells).refusals
    assert refusal.answer == "launcher"
    assert f"{name} is a name of the exercise: choose another" in str(refusal)
