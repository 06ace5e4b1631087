"""Programs that wait for each other's counters: they run to their ends, and what is wrong with a count is found."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from helpers.instruments import check_orders, measure
from kernels.counters import signal, wait
from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="a wrong count hangs a GPU")
PROGRAMS = 6


@triton.jit
def two_steps_kernel(
    x_ptr, between_ptr, y_ptr, counters_ptr, UNTIL: tl.constexpr, SIGNALS: tl.constexpr, WAITS: tl.constexpr
):
    """y[i] = sum of 2 x over all programs: each needs what all have stored."""
    me, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(between_ptr + me, 2 * tl.load(x_ptr + me))
    if SIGNALS:
        signal(counters_ptr + 1)
    if WAITS:
        wait(counters_ptr + 1, UNTIL)
    total = 0.0
    for other in range(programs):
        total += tl.load(between_ptr + other)
    tl.store(y_ptr + me, total)


def two_steps(x, until=PROGRAMS, signals=True, waits=True, cooperative=True):
    y, between = torch.empty_like(x), torch.empty_like(x)
    counters = torch.zeros(2, dtype=torch.int32)
    options = {"launch_cooperative_grid": True} if cooperative else {}
    two_steps_kernel[(len(x),)](x, between, y, counters, until, signals, waits, **options)
    return y


def kinds(hazards):
    return {hazard.kind for hazard in hazards}


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_each_order_gives_the_sums(seed):
    x = torch.randn(PROGRAMS)
    with runtime.ordered_by(seed):
        assert torch.allclose(two_steps(x), (2 * x.sum()).expand(PROGRAMS))


def test_a_right_count_has_no_hazard():
    assert check_orders(two_steps, torch.randn(PROGRAMS)) == ()


def test_a_missing_wait_is_a_race():
    found = check_orders(lambda x: two_steps(x, waits=False), torch.randn(PROGRAMS))
    assert kinds(found) & {"race", "unsynchronised read"}
    assert "no counter that orders the two" in str(found)


def test_signals_without_a_wait_order_nothing():
    """Also where the order happens to be right: the last program reads after all have stored."""
    hazards = measure(lambda x: two_steps(x, waits=False), torch.randn(PROGRAMS)).hazards
    assert "unsynchronised read" in kinds(hazards)


def test_waiting_for_too_few_is_found():
    for until in range(1, PROGRAMS):
        assert check_orders(lambda x, until=until: two_steps(x, until=until), torch.randn(PROGRAMS)), until


@pytest.mark.parametrize("change", [{"signals": False}, {"until": PROGRAMS + 1}])
def test_a_count_that_is_never_reached_is_a_deadlock(change):
    count = 0 if change.get("signals") is False else PROGRAMS
    until = change.get("until", PROGRAMS)
    for seed in (None, 1):
        said = rf"deadlock: .*for counters_ptr\[1\] to reach {until} \(it is {count}\).* and 2 more"
        with runtime.ordered_by(seed), pytest.raises(InterpreterError, match=said):
            two_steps(torch.randn(PROGRAMS), **change)


def test_after_a_deadlock_the_next_launch_runs():
    with pytest.raises(InterpreterError, match="deadlock"):
        two_steps(torch.randn(PROGRAMS), signals=False)
    x = torch.randn(PROGRAMS)
    assert torch.allclose(two_steps(x), (2 * x.sum()).expand(PROGRAMS))


def test_more_programs_than_can_be_resident_are_refused():
    two_steps(torch.randn(132), until=132)
    with pytest.raises(ValueError, match="a cooperative launch of 133 programs; only 132 are certain to be resident"):
        two_steps(torch.randn(133), until=133)
    with pytest.raises(ValueError, match="of 132 programs; only 108 are certain"):
        measure(lambda x: two_steps(x, until=132), torch.randn(132), device="A100")


def test_waiting_needs_a_cooperative_launch():
    with pytest.raises(InterpreterError, match=r"line .*launch with launch_cooperative_grid=True"):
        two_steps(torch.randn(PROGRAMS), cooperative=False)


@triton.jit
def failing_kernel(x_ptr, counter_ptr):
    if tl.program_id(0) == 1:
        tl.store(x_ptr + 1000, 1.0)
    wait(counter_ptr, 1)


def test_an_error_in_one_program_names_its_line():
    with pytest.raises(InterpreterError, match=r"failing_kernel, line \d+, `tl.store\(x_ptr \+ 1000, 1.0\)`"):
        failing_kernel[(3,)](torch.zeros(3), torch.zeros(1, dtype=torch.int32), launch_cooperative_grid=True)


@triton.jit
def relaxed_kernel(x_ptr, y_ptr, counter_ptr, SEM: tl.constexpr):
    me = tl.program_id(0)
    if me == 0:
        tl.store(x_ptr, 1.0)
        tl.atomic_add(counter_ptr, 1, sem=SEM)
    else:
        wait(counter_ptr, 1)
        tl.store(y_ptr, tl.load(x_ptr))


def test_a_relaxed_atomic_orders_nothing():
    """PTX ISA, memory consistency model: only a release pattern makes earlier stores visible to who acquires."""

    def call(sem):
        x, y, counter = torch.empty(1), torch.empty(1), torch.zeros(1, dtype=torch.int32)
        relaxed_kernel[(2,)](x, y, counter, sem, launch_cooperative_grid=True)
        return y

    assert check_orders(call, "release") == ()
    assert kinds(check_orders(call, "relaxed")) == {"unsynchronised read"}


@triton.jit
def reused_kernel(x_ptr, y_ptr, counters_ptr, KEEPS: tl.constexpr):
    """Program 0 overwrites x while program 1 may still read it, unless it waits for it."""
    if tl.program_id(0) == 0:
        if KEEPS:
            wait(counters_ptr, 1)
        tl.store(x_ptr, 2.0)
    else:
        tl.store(y_ptr, tl.load(x_ptr))
        signal(counters_ptr)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_store_over_what_another_reads(keeps):
    def call(x):
        y, counters = torch.empty(1), torch.zeros(1, dtype=torch.int32)
        reused_kernel[(2,)](x, y, counters, keeps, launch_cooperative_grid=True)
        return y

    assert kinds(check_orders(call, torch.ones(1))) == (set() if keeps else {"race", "unsynchronised read"})


def test_counters_are_int32():
    with pytest.raises(InterpreterError, match="wait takes a pointer to one int32"):
        failing_kernel[(1,)](torch.zeros(3), torch.zeros(1, dtype=torch.int64), launch_cooperative_grid=True)
