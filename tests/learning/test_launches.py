"""What holds for every launch of an answer: a compiler takes the kernel, its constants are plain, its programs run in
any order, and there are enough of them."""

import weakref

import pytest
import torch
import triton
import triton.language as tl

from helpers.instruments.traffic import measure
from helpers.learning import check_offsets, check_passes, check_traffic, check_values
from helpers.learning.checks import launches
from helpers.learning.checks.cases import Case
from helpers.learning.outcome import ERROR, FAIL, PASS
from kernels.interpreter import runtime

DEVICE = "cuda" if runtime.has_gpu() else "cpu"


@triton.jit
def doubled_kernel(x_ptr, y_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HOW == "list" or (HOW == "float64" and x_ptr.dtype.element_ty == tl.float64):
        factors = [2, 1]
        factors.sort()
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * 2, mask=at < n)


def doubled(how):
    def answer(x):
        y = torch.empty_like(x)
        doubled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), HOW=how, BLOCK=64)
        return y

    return answer


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def values_of(answer, *cases):
    return check_values(answer, lambda x: x * 2, [Case("", (x,), "the formula") for x in cases], name="values")


@pytest.mark.parametrize(
    ("how", "dtype", "state"),
    [
        ("plain", torch.float32, PASS),
        ("list", torch.float32, FAIL),
        ("float64", torch.float32, PASS),
        ("float64", torch.float64, FAIL),
    ],
)
def test_a_kernel_that_no_compiler_takes_passes_no_check(how, dtype, state):
    outcome = values_of(doubled(how), numbers(100), numbers(100, dtype=dtype))
    assert outcome.state == state, outcome
    if state == FAIL:
        assert "doubled_kernel does not compile for A100" in outcome.message
        assert "factors.sort()" in outcome.message


def test_what_one_check_has_seen_compile_is_not_compiled_by_the_next(monkeypatch):
    @triton.jit
    def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

    def answer(x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
        return y

    asked = []
    for name in ("compile_for", "lower_for"):
        real = getattr(launches, name)
        monkeypatch.setattr(launches, name, lambda *args, real=real, **kind: asked.append(kind) or real(*args, **kind))
    assert values_of(answer, numbers(60), numbers(30)).state == PASS
    assert values_of(answer, numbers(50), numbers(9)).state == PASS
    assert [each["BLOCK"] for each in asked] == [64, 32, 16]


def test_a_form_launched_after_others_is_looked_at_too():
    outcome = values_of(doubled("plain"), numbers(100))
    assert outcome.state == PASS
    assert check_passes(doubled("list"), (numbers(100),), reads=(1,), name="traffic").state == FAIL


@triton.jit
def held_kernel(x_ptr, y_ptr, n, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@pytest.mark.parametrize(
    ("kept", "state"),
    [([], FAIL), ({}, FAIL), (([],), FAIL), (None, PASS), ("relu", PASS), (tl.float32, PASS), ((1, 2), PASS)],
)
def test_a_constant_of_a_launch_is_a_plain_value(kept, state):
    def answer(x):
        y = torch.empty_like(x)
        held_kernel[(2,)](x, y, x.numel(), KEPT=kept, BLOCK=64)
        return y

    outcome = values_of(answer, numbers(100))
    assert outcome.state == state, outcome
    assert state == PASS or "the constant KEPT is a" in outcome.message


@triton.jit
def in_halves_kernel(x_ptr, z_ptr, y_ptr, n, BLOCK: tl.constexpr):
    half = tl.num_programs(0) // 2
    program = tl.program_id(0)
    if program < half:
        at = program * BLOCK + tl.arange(0, BLOCK)
        tl.store(z_ptr + at, tl.load(x_ptr + at, mask=at < n) + 0.0, mask=at < n)
    else:
        at = (program - half) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(z_ptr + at, mask=at < n) * 2, mask=at < n)


def test_half_the_programs_read_what_the_other_half_stored():
    def answer(x):
        z, y = torch.empty_like(x), torch.empty_like(x)
        in_halves_kernel[(2 * triton.cdiv(x.numel(), 64),)](x, z, y, x.numel(), BLOCK=64)
        return y

    outcome = values_of(answer, numbers(100))
    assert outcome.state == FAIL
    assert "unsynchronised read" in outcome.message


@triton.jit
def last_wins_kernel(x_ptr, y_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * (1 + tl.program_id(0)), mask=at < n)
    tl.atomic_xchg(lock_ptr, 0)


def test_under_a_lock_the_last_program_wins_in_one_order_alone():
    def answer(x):
        y, lock = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
        last_wins_kernel[(2,)](x, y, lock, x.numel(), BLOCK=128)
        return y

    outcome = values_of(answer, numbers(100))
    assert outcome.state == FAIL
    assert "with the programs from last to first, 100 of 100 elements come out different" in outcome.message


@triton.jit
def summed_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0)))


def test_atomic_sums_may_round_otherwise_in_another_order():
    def answer(x):
        y = torch.zeros(1, device=x.device)
        summed_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y

    cases = [Case("", (numbers(5000),), "the sum", input_error=torch.float32)]
    assert check_values(answer, lambda x: x.sum().reshape(1), cases, name="values").state == PASS


def test_of_a_kernel_without_atomics_only_the_first_call_is_repeated(monkeypatch):
    measured = []
    monkeypatch.setattr(
        launches, "measure", lambda answer, *inputs: measured.append(len(inputs[0])) or measure(answer, *inputs)
    )
    monkeypatch.setattr(launches, "_in_any_order", weakref.WeakSet())
    assert values_of(doubled("plain"), numbers(60), numbers(100), numbers(200)).state == PASS
    assert measured == [60, 100, 100, 100, 200]  # of one program nothing can be reordered
    measured.clear()
    cases = [Case("", (numbers(size),), "the sum", input_error=torch.float32) for size in (100, 200)]

    def summed(x):
        y = torch.zeros(1, device=x.device)
        summed_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y

    assert check_values(summed, lambda x: x.sum().reshape(1), cases, name="values").state == PASS
    assert measured == [100, 100, 100, 200, 200, 200]


# How work is spread


@triton.jit
def looping_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@pytest.mark.parametrize(
    ("programs", "least", "state"),
    [
        (lambda n: 1, 2, FAIL),
        (lambda n: 8, 2, PASS),
        (lambda n: 8, 108, FAIL),
        (lambda n: 132, 108, PASS),
        (lambda n: triton.cdiv(n, 64), 108, PASS),
    ],
)
def test_few_programs_for_any_size_fail(programs, least, state):
    def answer(x):
        y = torch.empty_like(x)
        looping_kernel[(programs(x.numel()),)](x, y, x.numel(), BLOCK=64)
        return y

    outcome = check_offsets(answer, lambda n: (numbers(n),), (512, 1024), 2**32, programs=least, name="large")
    assert outcome.state == state, outcome
    assert state == PASS or "all the work, however large" in outcome.message


@pytest.mark.parametrize("programs", [1, 2])
def test_a_block_that_grows_with_the_tensor_fails(programs):
    def answer(x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(triton.cdiv(x.numel(), programs))
        looping_kernel[(programs,)](x, y, x.numel(), BLOCK=block)
        return y

    outcome = check_offsets(answer, lambda n: (numbers(n),), (512, 1024), 2**32, programs=2, name="large")
    assert outcome.state == FAIL
    told = "one program does all the work" if programs == 1 else "does not compile"
    assert told in outcome.message, outcome


def large(answer):
    return check_offsets(answer, lambda n: (numbers(n),), (512, 1024), 2**32, programs=108, name="large")


@pytest.mark.parametrize("most", [1024, 65535])
@pytest.mark.parametrize("loops", [True, False])
def test_a_grid_that_stops_growing_fails_unless_its_programs_go_on(most, loops):
    def answer(x):
        y = torch.empty_like(x)
        grid = (min(triton.cdiv(x.numel(), 64), most),)
        if loops:
            looping_kernel[grid](x, y, x.numel(), BLOCK=64)
        else:
            doubled_kernel[grid](x, y, x.numel(), HOW="plain", BLOCK=64)
        return y

    outcome = large(answer)
    assert outcome.state == (PASS if loops else FAIL), outcome
    if not loops:
        assert f"store {64 * most:,} elements of the result, which has 4,294,967,296" in outcome.message
        assert "the grid" in outcome.look_at


def test_programs_past_the_first_must_store_too():
    def answer(x):
        y = torch.empty_like(x)
        doubled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, min(x.numel(), 100_000), HOW="plain", BLOCK=64)
        return y

    outcome = check_offsets(answer, lambda n: (numbers(n),), (512, 1024), 2**26, programs=108, name="large")
    assert outcome.state == FAIL, outcome
    assert "one in the middle and the last do not" in outcome.message


@pytest.mark.parametrize("most", [2**20, 2**32])
def test_what_a_second_launch_reads_is_stored_whole(most):
    def answer(x):
        between, y = torch.empty_like(x), torch.empty_like(x)
        looping_kernel[(256,)](x, between, min(x.numel(), most), BLOCK=64)
        looping_kernel[(256,)](between, y, x.numel(), BLOCK=64)
        return y

    outcome = large(answer)
    assert outcome.state == (PASS if most == 2**32 else FAIL), outcome
    assert outcome.state == PASS or "elements of y_ptr, which has 4,294,967,296" in outcome.message


# Launches in 16 bits


def converted(x):
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    doubled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), HOW="plain", BLOCK=64)
    return y.to(x.dtype)


def test_an_exception_in_16_bits_alone_says_so():
    def answer(x):
        if x.dtype == torch.bfloat16:
            raise TypeError("this function takes fp32 or fp64, got bf16")
        return doubled("plain")(x)

    outcome = check_traffic(answer, (numbers(256),), launches=1, bytes_per_element=8, name="traffic")
    assert outcome.state == ERROR
    assert outcome.message.endswith("got bf16\non bfloat16 inputs, which this check also tries")


def test_a_conversion_after_the_kernel_is_metered_in_16_bits():
    x = numbers(256)
    for outcome in (
        check_traffic(converted, (x,), launches=1, bytes_per_element=8, name="traffic"),
        check_passes(converted, (x,), reads=(1,), name="traffic"),
    ):
        assert outcome.state == FAIL
        assert "in bfloat16: 2 launches (doubled_kernel, _to_copy)" in outcome.message
        assert "tl.store converts" in outcome.look_at
    assert check_traffic(doubled("plain"), (x,), launches=1, bytes_per_element=8, name="traffic").state == PASS
