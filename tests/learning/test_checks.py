"""The checks: what they accept, what each rejects, and what they say of it."""

import functools
import re
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

from helpers.learning import (
    Hints,
    check_cut,
    check_offsets,
    check_traffic,
    check_values,
    check_vectorised,
    elementwise_cases,
    gradient_cases,
    outcome,
)
from helpers.learning.checks.cases import Case
from helpers.learning.checks.values import differs, fresh_copy, outputs_start_as_nan, told_cases
from helpers.learning.outcome import ERROR, FAIL, MIME, NOT_ATTEMPTED, PASS, AnswerError, Outcome
from kernels.interpreter import runtime

DEVICE = "cuda" if runtime.has_gpu() else "cpu"
CASES = elementwise_cases(2, seed=0)

values = functools.partial(check_values, reference=torch.add, cases=CASES, name="values")


def vectors(elements: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(elements, device=DEVICE), torch.randn(elements, device=DEVICE)


@triton.jit
def add_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    y = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    tl.store(y_ptr + element, y, mask=exists)


@triton.jit
def unmasked_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(a_ptr + element, mask=element < elements) + tl.load(b_ptr + element)
    tl.store(y_ptr + element, y, mask=element < elements)


@triton.jit
def racing_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)
    for first in range(0, elements, BLOCK):
        exists = first + element < elements
        y = tl.load(a_ptr + first + element, mask=exists).to(tl.float32)
        y += tl.load(b_ptr + first + element, mask=exists).to(tl.float32)
        tl.store(y_ptr + first + element, y, mask=exists)


@triton.jit
def stub_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    raise NotImplementedError


@triton.jit
def spilling_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)
    # All of a is alive until its sum is known: 256 registers a thread in one warp.
    a = tl.load(a_ptr + element)
    tl.store(y_ptr + element, a * tl.sum(a))


def launcher(kernel, block=1024, contiguous=True, **options):
    def add(a, b):
        if contiguous:
            a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        kernel[(triton.cdiv(y.numel(), block),)](a, b, y, y.numel(), BLOCK=block, **options)
        return y

    return add


# Values


def test_pytorch_itself_passes_and_a_kernel_says_the_same():
    by_torch, by_kernel = values(torch.add), values(launcher(add_kernel))
    assert by_torch.state == PASS
    # A pass tells nothing of how the answer was written: fusion check compares it word for word.
    assert str(by_torch) == str(by_kernel)
    assert str(by_torch) == "pass: values\n  agrees with float64 on 24 inputs, to twice PyTorch's own error."


def changes_input(a, b):
    a += b
    return a.clone()


def forgets_the_tail(a, b):
    y = torch.empty_like(a)
    whole = y.numel() // 128 * 128
    y.view(-1)[:whole] = (a + b).reshape(-1)[:whole]
    return y


@pytest.mark.parametrize(
    ("answer", "message", "look_at"),
    [
        (lambda a, b: a - b, "shape (1,), float32: 1 of 1 elements wrong\nfirst wrong index 0: got", "the formula"),
        (lambda a, b: None, "got NoneType, expected a tensor", "what your function returns"),
        (lambda a, b: (a + b)[:, None], "the result's shape is (1, 1), expected (1,)", "how the output is allocated"),
        (lambda a, b: (a + b).double(), "the result's dtype is torch.float64, expected torch.float32", "allocated"),
        (lambda a, b: torch.empty_like(a), "got nan, expected", "the grid and the store: no element was written"),
        (forgets_the_tail, "1 of 1 elements wrong", "no element was written"),
        (changes_input, "shape (1,), float32: argument 1 was changed", "what your kernel stores to: only the output"),
        (lambda a, b: (a.half() + b.half()).to(a.dtype), "shape (1,), float32", "the formula"),
        (
            lambda a, b: torch.nan_to_num(a + b),
            "NaN, inf and huge values, shape (1025,)",
            "what happens to NaN and inf",
        ),
        (lambda a, b: (a + b) * ((a + b).abs() > 2e-6), "small values, shape (1025,)", "where inputs are small"),
        (lambda a, b: a + b if a.numel() else None, "no elements, shape (0,)", "what your function returns"),
        (launcher(add_kernel, contiguous=False), "the first transposed, shape (33, 31)", "the strides"),
        (launcher(unmasked_kernel), "shape (1,), float32: out-of-bounds read of b, 1 past its only element", "Mask"),
        (launcher(racing_kernel), "shape (1025,), float32: race of", "two programs store to this element"),
    ],
    ids="minus none shape dtype unwritten tail inplace half nan small empty strides bounds race".split(),
)
def test_a_wrong_answer_is_shown_its_smallest_case(answer, message, look_at):
    said = values(answer)
    assert said.state == FAIL, said
    assert message in said.message
    assert look_at in said.look_at


@triton.jit
def accumulating_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    y = tl.load(y_ptr + element, mask=exists) + tl.load(a_ptr + element, mask=exists)
    tl.store(y_ptr + element, y, mask=exists)


def test_a_read_of_what_was_never_stored():
    said = values(launcher(accumulating_kernel))
    assert said.message.startswith("shape (1,), float32: uninitialised read of result[0]")
    assert "nothing was stored there before" in said.look_at


def test_every_case_is_tried_and_told():
    said = values(lambda a, b: a + b if a.dtype == torch.float32 else a - b)
    assert said.message.splitlines()[2:] == [
        "21 of 24 cases pass; wrong: float16; float16, results past 65504; bfloat16"
    ]


def cases_named(*labels):
    return [Case(label, (), "") for label in labels]


def test_long_lists_of_cases_are_folded_and_no_name_comes_twice():
    assert told_cases([], cases_named("a")) == ["0 of 1 cases pass; wrong: a"]
    assert told_cases(cases_named("b", "b"), cases_named("a", "c", "a")) == [
        "2 of 5 cases pass; wrong: a (2 times); c",
        "the only right ones: b (2 times)",
    ]
    many = cases_named(*"abcdefghijkl")
    assert told_cases(many, many) == ["12 of 24 cases pass; wrong: a; b; c; d; e; f; g; h; and 4 more"]
    assert told_cases([], many[:9]) == ["0 of 9 cases pass; wrong: a; b; c; d; e; f; g; h; i"]


def test_a_case_with_the_first_of_several_results_wrong_comes_first():
    def answer(a, b):
        return (a + 1, a + b) if len(a) == 1025 else (a.clone(), a - b)

    said = check_values(answer, lambda a, b: (a.clone(), a + b), elementwise_cases(2, seed=1), name="values")
    assert said.message.startswith("shape (1025,), float32: result 1 of 2: "), said
    assert "right: result 2" in said.message


def test_cases_end_after_a_while_once_one_has_failed(monkeypatch):
    monkeypatch.setattr("helpers.learning.checks.values.PATIENCE", 0.0)
    assert values(lambda a, b: a - b).message.splitlines()[2:] == ["0 of 1 cases pass; wrong: (1,)"]


def test_numbers_that_differ_are_told_apart():
    case = Case("", (torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)), "the formula")
    said = check_values(lambda a, b: a + b + 2e-6, torch.add, [case], name="values")
    assert "got 1.000002, expected 1\n" in said.message


def test_a_small_number_counts_where_a_case_says_so():
    inputs = torch.tensor([0.0, -8.0], device=DEVICE), torch.zeros(2, device=DEVICE)

    def softmax(a, b):
        return torch.softmax(a.half() + b.half(), 0)

    def rounded(a, b):
        return torch.where(softmax(a, b) < 0.001, 0, softmax(a, b))

    for relative, state in ((False, PASS), (True, FAIL)):
        case = Case("", inputs, "", relative=relative)
        assert check_values(softmax, softmax, [case], name="values").state == PASS
        assert check_values(rounded, softmax, [case], name="values").state == state


@triton.jit
def asserting_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    assert BLOCK == 7
    tl.store(y_ptr + element, 1.0, mask=element < elements)


def test_an_assertion_without_words_says_what_it_claims(tmp_path):
    path, found = tmp_path / "answer.py", {}  # pytest would give this file's assertions words
    path.write_text("def asserting(a, b):\n    assert a.is_contiguous()\n    return a + b\n")
    exec(compile(path.read_text(), str(path), "exec"), found)
    said = values(found["asserting"])
    assert said.state == ERROR
    assert said.message.startswith("AssertionError: `assert a.is_contiguous()` does not hold\non the first transposed")
    assert said.look_at.endswith("`assert a.is_contiguous()`")


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, in Triton's own words")
def test_an_assertion_in_a_kernel_says_what_it_claims():
    assert "asserting_kernel: `assert BLOCK == 7` does not hold" in values(launcher(asserting_kernel)).message


@triton.jit
def summing_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)
    tl.store(y_ptr + element, tl.sum(tl.load(a_ptr + element, mask=element < elements)), mask=element < elements)


def test_a_result_in_the_layout_of_a_transposed_input_is_told_as_that():
    def answer(a, b):
        y = torch.empty_like(a)  # before .contiguous(): it has a's strides
        a, b = a.contiguous(), b.contiguous()
        add_kernel[(triton.cdiv(y.numel(), 1024),)](a, b, y, y.numel(), BLOCK=1024)
        return y

    said = values(answer)
    assert "the first transposed" in said.message
    assert "the result's strides, (1, 33)" in said.look_at
    assert "these tensors do not" not in said.look_at


def test_lanes_that_a_mask_keeps_out_are_no_zeros():
    case = Case("", (torch.randn(100, device=DEVICE), torch.randn(100, device=DEVICE)), "the sum")
    said = check_values(launcher(summing_kernel, block=128), lambda a, b: a.sum().expand(100), [case], name="values")
    assert said.state == FAIL
    assert "a masked load without other=" in said.look_at


# Offsets


@triton.jit
def int64_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    y = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    tl.store(y_ptr + element, y, mask=exists)


def test_offsets_that_pass_32_bits_are_found_at_their_line():
    large = functools.partial(check_offsets, inputs_of=vectors, sizes=(4096, 8192), name="large")
    assert large(launcher(int64_kernel), size=2**32).state == PASS
    assert large(launcher(add_kernel), size=2**31).state == PASS  # 0 to 2^31 - 1
    said = large(launcher(add_kernel), size=2**31 + 4096)
    assert said.state == FAIL
    assert said.message == "2,147,487,744 instead of 8192: add_kernel: an integer of 32 bits passes 2^31"
    assert "`element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)`" in said.look_at
    assert "tl.program_id(0).to(tl.int64)" in said.look_at
    assert large(torch.add, size=2**32).message == "no Triton kernel was launched"


@triton.jit
def row_by_row_kernel(x_ptr, y_ptr, rows, cols, WIDE: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    if OWN:
        for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
            at = (tl.cast(row, tl.int64) if WIDE else row) * cols + col
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=col < cols), mask=col < cols)
    else:
        for row in range(tl.program_id(0), rows, tl.num_programs(0)):
            at = (tl.cast(row, tl.int64) if WIDE else row) * BLOCK + col
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=col < cols), mask=col < cols)


@pytest.mark.parametrize("own", [True, False])
def test_offsets_in_the_last_pass_of_a_long_loop_are_found(own):
    def copy(x, wide):
        y = torch.empty_like(x)
        row_by_row_kernel[(2,)](x, y, *x.shape, WIDE=wide, OWN=own, BLOCK=64)
        return y

    def state(wide, rows):
        return check_offsets(
            lambda x: copy(x, wide),
            lambda n: (torch.ones(n, 64, device=DEVICE),),
            (2, 4),
            rows,
            programs=1,
            name="large",
        ).state

    assert state(True, 2**26) == PASS
    assert state(False, 2**25) == PASS
    assert state(False, 2**25 + 2) == FAIL


def test_what_is_not_written_is_told_from_where_on():
    case = Case("", (torch.randn(1000, device=DEVICE), torch.randn(1000, device=DEVICE)), "the formula")
    said = check_values(forgets_the_tail, torch.add, [case], name="values")
    assert said.look_at == "the grid: nothing was written from element 896 on"
    assert "first wrong index 896: got nan" in said.message


def tanh_by_exponentials(a, b):
    e = torch.exp(2 * a)
    return (e - 1) / (e + 1) + 0 * b


def test_nan_that_was_stored_is_told_from_what_was_not():
    case = Case("mean 10000", (torch.full((100,), 1e4, device=DEVICE), torch.zeros(100, device=DEVICE)), "the formula")
    said = check_values(tanh_by_exponentials, lambda a, b: torch.tanh(a) + b, [case], name="values")
    assert said.state == FAIL
    assert "inf - inf" in said.look_at
    assert "the grid" not in said.look_at


@triton.jit
def cubing_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + element, mask=element < elements)
    tl.store(y_ptr + element, a**3, mask=element < elements)


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled here, in Triton's own words")
def test_a_mistake_in_a_kernel_is_told_at_its_line_and_not_the_launchers():
    said = values(launcher(cubing_kernel))
    assert said.state == ERROR
    assert (
        said.message
        == "InterpreterError: cubing_kernel: a block has no **: write s * s * s for a cube, tl.sqrt(s) for a root\n"
        "on shape (1,), float32"
    )
    assert "`tl.store(y_ptr + element, a**3" in said.look_at


BROKEN = "def never_begun(a, b):\n    return a +\n"


def never_begun(a, b):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("cells", "state", "message"),
    [
        ([], NOT_ATTEMPTED, "write your answer"),
        ([BROKEN], ERROR, "SyntaxError: invalid syntax"),
        (
            ["def stub(a, b):\n    return a +\n", "def stub(a, b):\n    raise NotImplementedError"],
            NOT_ATTEMPTED,
            "write",
        ),
        (["1 +\n"], NOT_ATTEMPTED, "write your answer"),
    ],
    ids="none broken mended another".split(),
)
def test_a_cell_that_python_cannot_read_is_no_answer_never_begun(monkeypatch, cells, state, message):
    monkeypatch.setattr(outcome, "get_ipython", lambda: SimpleNamespace(user_ns={"In": ["", *cells]}))
    said = values(never_begun)
    assert said.state == state
    assert said.message.startswith(message)
    assert ("your line 2, `return a +`" in said.look_at) == (state == ERROR)


def test_sixteen_bits_are_rounded_once():
    def three(a, b, c):
        return a * b + c

    cases = elementwise_cases(3, seed=1, dtypes=(torch.float16, torch.bfloat16))

    def eight_roundings(a, b, c):
        for _ in range(4):
            c = (c + a * b / 4).to(torch.bfloat16).to(a.dtype)
        return c

    assert check_values(three, three, cases, name="values").state == PASS
    assert check_values(eight_roundings, three, cases, name="values").state == FAIL


@given(st.integers(1, 300), st.floats(1e-3, 1e3), st.integers(0, 1000))
@settings(max_examples=30)
def test_tolerance_lies_between_pytorchs_error_and_a_thousandth(elements, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(elements, generator=generator)
    exact, usual = x.double().exp().log1p(), x.exp().log1p()
    if not usual.isfinite().all():
        return
    assert not differs(usual, exact, usual).any()
    far = exact + 1e-3 * exact.abs().max().clamp(min=1)
    assert differs(far.float(), exact, usual).all()
    assert differs(torch.full_like(usual, float("nan")), exact, usual).all()


def test_nan_and_inf_must_stand_where_pytorch_has_them():
    usual = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    assert not differs(usual.clone(), usual.double(), usual).any()
    other = torch.tensor([float("inf"), 1.0, -float("inf"), float("nan")])
    assert differs(other, usual.double(), usual).all()


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 3), st.booleans())
@settings(max_examples=30)
def test_a_fresh_copy_lies_in_memory_as_the_original_does(rows, columns, step, transposed):
    x = torch.randn(rows * step + 1, columns + 2)[1::step, 1:]
    x = x.T if transposed else x
    copy = fresh_copy(x)
    assert torch.equal(copy, x)
    assert (copy.stride(), copy.storage_offset()) == (x.stride(), x.storage_offset())
    copy.fill_(7)
    assert not (x == 7).any()


def test_outputs_start_as_nan_and_the_setting_is_put_back():
    with outputs_start_as_nan():
        assert torch.empty(1000, device=DEVICE).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_cases_are_awkward_fresh_and_never_zero():
    sizes = {case.inputs[0].numel() for case in CASES}
    assert {0, 1, 127, 1025} <= sizes
    assert any(not case.inputs[0].is_contiguous() for case in CASES)
    assert any(case.inputs[0].storage_offset() for case in CASES)
    assert {case.inputs[0].dtype for case in CASES} == {torch.float32, torch.float16, torch.bfloat16}
    assert all((x != 0).all() for case in CASES for x in case.inputs)
    other = elementwise_cases(2, seed=1)
    assert not torch.equal(CASES[2].inputs[1], other[2].inputs[1])
    again = elementwise_cases(2, seed=0)
    assert torch.equal(CASES[2].inputs[1], again[2].inputs[1])


# Traffic


def traffic(answer, inputs=None):
    return check_traffic(answer, inputs or vectors(), launches=1, bytes_per_element=12, name="traffic")


@triton.jit
def rereading_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    y = tl.load(a_ptr + element, mask=exists) + tl.load(b_ptr + element, mask=exists)
    y += 0 * tl.load(a_ptr + element, mask=exists)
    tl.store(y_ptr + element, y, mask=exists)


def test_one_launch_and_twelve_bytes():
    said = traffic(launcher(add_kernel))
    assert str(said) == "pass: traffic\n  1 launch, 12 B/element."


def test_a_second_read_is_told_with_its_line():
    said = traffic(launcher(rereading_kernel))
    assert said.state == FAIL
    assert said.message.startswith("a is read twice; 16 B/element, 12 needed\n")
    assert "`y += 0 * tl.load(a_ptr + element, mask=exists)`: 4 read, 0 written" in said.message


def test_an_operator_too_many_is_named():
    add = launcher(add_kernel)
    said = traffic(lambda a, b: add(a * 2, b))
    assert said.message.startswith("2 launches (mul, add_kernel), 1 needed; 20 B/element, 12 needed")


def cut(answer, least, launches=1):
    return check_cut(answer, lambda a, b: (a + b) * 1 + 0, vectors(), least=least, launches=launches, name="cut")


def test_a_cut_is_of_the_unfused_bytes_and_in_so_many_launches():
    add = launcher(add_kernel)  # 12 of 12 + 8 + 8 B an element: 57.1 per cent less
    assert cut(add, 0.57).state == PASS
    assert "57.1% less" in str(cut(add, 0.57))
    said = cut(add, 0.58)
    assert said.state == FAIL
    assert "57.1% less, 58% needed" in said.message
    assert "add_kernel" in cut(lambda a, b: add(a * 1, b), 0.1).message
    assert cut(lambda a, b: add(a * 1, b), 0.1, launches=2).state == PASS
    assert "got nan" in cut(lambda a, b: torch.empty_like(a), 0.57).message  # nothing moved, nothing computed


def test_gradient_cases_have_the_tensors_that_are_asked_for():
    for tensors, vectors_ in ((1, 2), (2, 1)):
        for case in gradient_cases(0, tensors=tensors, vectors=vectors_):
            grad_y, *rest, eps = case.inputs
            if grad_y.dim() == 1:  # where all have one shape
                continue
            assert [x.shape == grad_y.shape for x in rest] == [True] * tensors + [False] * vectors_
            assert isinstance(eps, float)


def test_bytes_that_are_missing():
    said = traffic(lambda a, b: a + 1)
    assert said.message.startswith("8 B/element, 12 needed")
    assert said.look_at == "what is never read, or never written"


def test_nothing_returned():
    assert traffic(lambda a, b: None).message == "got NoneType, expected a tensor"
    assert traffic(lambda a, b: a[:0]).message == "the result has no elements"


# Resources


def vectorised(answer, inputs=None):
    return check_vectorised(answer, inputs or vectors(), device="A100", name="vectorised")


def test_sixteen_bytes_a_thread():
    said = vectorised(launcher(add_kernel))
    assert said.state == PASS, said
    assert said.message == "every load and store is 16 bytes wide on A100 (sm_80), and no register spills."


@pytest.mark.parametrize(("block", "width"), [(128, 4), (256, 8)])
def test_narrow_loads_are_counted(block, width):
    said = vectorised(launcher(add_kernel, block=block))
    assert said.state == FAIL
    assert said.message.startswith(f"a thread of add_kernel loads {width} bytes at a time on A100: ")
    assert f"LDG.{8 * width}, 0 LDG.128" in said.message


def test_launch_options_are_the_learners():
    assert vectorised(launcher(add_kernel, block=256, num_warps=2)).state == PASS


def test_spills_are_told():
    said = vectorised(launcher(spilling_kernel, block=8192, num_warps=1), vectors(8192))
    assert said.state == FAIL
    assert re.match(r"spilling_kernel spills \d+ bytes of registers to memory on A100", said.message)


def test_no_kernel_at_all():
    assert vectorised(torch.add).message == "no Triton kernel was launched"


# Outcomes


def stub(a, b):
    raise NotImplementedError


@pytest.mark.parametrize("answer", [stub, launcher(stub_kernel)], ids=["launcher", "kernel"])
@pytest.mark.parametrize("run", [values, traffic, vectorised])
def test_a_stub_is_not_attempted(run, answer):
    assert run(answer).state == NOT_ATTEMPTED


def test_an_error_names_the_learners_line():
    def add(a, b):
        return a.plus(b)

    said = values(add)
    assert said.state == ERROR
    assert said.message == "AttributeError: 'Tensor' object has no attribute 'plus'\non shape (1,), float32"
    assert said.look_at.endswith(", `return a.plus(b)`")


def test_an_exception_with_words_is_an_error_not_a_stub():
    def add(a, b):
        raise NotImplementedError("no float16 yet")

    assert values(add).state == ERROR


def test_an_outcome_is_text_html_and_json(monkeypatch):
    monkeypatch.setattr(outcome, "hinted", set())
    shown = Outcome("values", FAIL, "got <1>\nexpected 2", "the & sign")
    data = DisplayFormatter().format(shown)[0]
    assert data["text/plain"] == "fail: values\n  got <1>\n  expected 2\n  Look at the & sign."
    assert "got &lt;1&gt;<br>expected 2<br>Look at the &amp; sign." in data["text/html"]
    assert data[MIME] == {
        "check": "values",
        "state": FAIL,
        "message": "got <1>\nexpected 2",
        "look_at": "the & sign",
    }


def test_what_is_in_backticks_is_code_where_a_page_shows_it(monkeypatch):
    monkeypatch.setattr(outcome, "hinted", {"values"})
    failed = Outcome("values", FAIL, "see `x < 1`", "your line 2, `y = x`")
    data = DisplayFormatter().format(failed)[0]
    assert "see <code>x &lt; 1</code><br>Look at your line 2, <code>y = x</code>.<br>" in data["text/html"]
    assert '<code>hint("values")</code> in a cell of your own says more.' in data["text/html"]
    assert data["text/plain"] == f'{failed}\n  hint("values") in a cell of your own says more.'
    assert "says more" not in DisplayFormatter().format(Outcome("values", PASS, "right"))[0]["text/html"]


def test_a_long_line_is_quoted_in_part():
    assert outcome.shortened("x = y") == "x = y"
    assert outcome.shortened("total = " + "value + " * 20) == "total = " + "value + " * 10 + "value + ..."


def test_one_compile_error_is_shown_once(monkeypatch):
    monkeypatch.setattr(outcome, "latest", {})

    def refused(_answer):
        raise AnswerError("k does not compile:\nk.cu(1): error\n> 1 | intt x;", "the line that the compiler names")

    check = outcome.as_check(refused, compiled=False)
    first, second, again = (check(None, name=name) for name in ("values", "traffic", "values"))
    assert first.message == again.message
    assert "intt x" in first.message
    assert second.message == "k does not compile: its message is at the check 'values'"
    assert second.state == FAIL


# Hints


@pytest.fixture
def hint(monkeypatch):
    monkeypatch.setattr(outcome, "latest", {})
    monkeypatch.setattr("helpers.learning.hints.latest", outcome.latest)
    return Hints(values=("look", "look <there>"), traffic=("count",))


def test_hints_come_one_at_a_time_for_the_first_check_that_has_not_passed(hint):
    assert repr(hint(1)) == "values, hint 1 of 2: look"
    assert "look &lt;there&gt;" in hint(2)._repr_html_()
    assert repr(hint(3)) == "values: its hints are hint(1) to hint(2)."
    values(torch.add)
    assert repr(hint(1)) == "traffic, hint 1 of 1: count"
    assert repr(hint(1, "values")) == "values, hint 1 of 2: look"
    assert repr(hint("values")) == "values, hint 1 of 2: look"
    assert repr(hint()) == "traffic, hint 1 of 1: count"
    assert repr(hint(1.5)) == "traffic: its hints are hint(1) to hint(1)."
    # The first check that fails is asked about, whichever ran last; a name asks about another.
    outcome.latest["traffic"] = Outcome("traffic", FAIL, "")
    assert repr(hint(1)) == "traffic, hint 1 of 1: count"
    outcome.latest["values"] = Outcome("values", FAIL, "")
    assert repr(hint(2)) == "values, hint 2 of 2: look <there>"
    assert repr(hint("traffic")) == "traffic, hint 1 of 1: count"
    del outcome.latest["traffic"]
    values(stub)
    assert repr(hint(1)) == "values, hint 1 of 2: look"
    outcome.latest.update({name: Outcome(name, PASS, "") for name in ("values", "traffic")})
    assert repr(hint(1)) == "Every check here has passed."


def test_a_hint_on_no_such_check(hint):
    with pytest.raises(ValueError, match="there is no check 'speed'; there are: values, traffic"):
        hint(1, "speed")


def test_a_number_of_warps_that_no_gpu_takes_is_an_error():
    outcome = values(launcher(add_kernel, num_warps=5))
    assert outcome.state == ERROR
    assert "num_warps" in outcome.message


def test_no_row_of_many_is_nearly_constant():
    """With 3 columns one in a thousand rows is: a right gradient's rounding there once exceeded the tolerance."""
    for seed in range(10):
        [case] = [each for each in gradient_cases(seed) if each.label == "many more"]
        assert case.inputs[1].std(dim=1).min() > 0.5
