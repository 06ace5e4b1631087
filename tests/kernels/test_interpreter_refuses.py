"""What the interpreter refuses: memory that is not the launch's, loops without an end, blocks that no compiler ends."""

import re
import time

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from helpers.instruments import compile_for
from helpers.learning.checks.split_decode import MANY_KEYS
from kernels.interpreter import runtime

interpreted = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, shift, LOADS: tl.constexpr, STORES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i + shift, mask=i < LOADS)
    tl.store(y_ptr + i, x, mask=i < STORES)


@triton.jit
def add_up_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr + i, tl.load(x_ptr + i))


@triton.jit
def swap_kernel(x_ptr, far):
    tl.atomic_cas(x_ptr + far, 0, 1)


@triton.jit
def swap_wide_kernel(x_ptr, far):
    tl.atomic_cas(x_ptr + far, tl.full((), 0, tl.int64), 1)


@triton.jit
def spread_kernel(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK) * stride, tl.load(y_ptr))


@triton.jit
def tile_kernel(x_ptr, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    tl.store(x_ptr + row * stride + col, 1.0, mask=(row < rows) & (col < cols))


@interpreted
@pytest.mark.parametrize(
    ("loads", "stores", "shift", "line", "said"),
    [
        (128, 100, 0, "x = tl.load", "lane 36 loads element 100 of x_ptr, which has 0 to 99 (28 of 64 lanes"),
        (100, 128, 0, "tl.store", "lane 36 stores element 100 of y_ptr, which has 0 to 99 (28 of 64 lanes"),
        (100, 100, -1, "x = tl.load", "lane 0 loads element -1 of x_ptr"),
        (100, 100, 2**40, "x = tl.load", "(64 of 64 lanes are outside)"),
    ],
)
def test_an_access_outside_is_refused_and_reaches_nothing(loads, stores, shift, line, said):
    memory = torch.zeros(164)
    x, y = torch.ones(100), memory[:100]
    with pytest.raises(InterpreterError) as raised:
        copy_kernel[(2,)](x, y, 100, shift, LOADS=loads, STORES=stores, BLOCK=64)
    assert re.match(r"copy_kernel, line \d+, `" + re.escape(line), str(raised.value))
    assert said in str(raised.value)
    assert raised.value.place[0] == __file__
    assert not memory[100:].any()


@interpreted
def test_atomics_outside_are_refused():
    with pytest.raises(InterpreterError, match="lane 8 changes element 8 of total_ptr"):
        add_up_kernel[(1,)](torch.ones(16), torch.zeros(8), BLOCK=16)
    with pytest.raises(InterpreterError, match="it changes element 5 of x_ptr, which has 0 to 3"):
        swap_kernel[(1,)](torch.zeros(4, dtype=torch.int32), 5)


@interpreted
@pytest.mark.parametrize("far", [0, 3])
def test_a_swap_wider_than_its_element_is_refused(far):
    # Eight bytes from the last element on reach past the tensor.
    memory = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(InterpreterError, match="two values of the pointer's shape and dtype, here int32"):
        swap_wide_kernel[(1,)](memory[:4], far)
    assert not memory.any()


@interpreted
def test_the_tensor_named_is_the_one_that_other_lanes_reach():
    memory = torch.zeros(2000)
    with pytest.raises(InterpreterError, match="lane 1 stores element 990 of x_ptr, which has 0 to 15"):
        spread_kernel[(1,)](memory[:16], memory[1000:], 990, BLOCK=2)


@interpreted
def test_a_storage_given_back_is_refused():
    x = torch.ones(16)
    taken = triton.jit(copy_kernel.fn)
    taken.add_pre_run_hook(lambda *arguments: x.untyped_storage().resize_(0))
    with pytest.raises(InterpreterError, match="lane 0 loads element"):
        taken[(1,)](x, torch.ones(16), 16, 0, LOADS=16, STORES=16, BLOCK=16)


@interpreted
def test_a_lane_of_a_tile_has_two_places():
    with pytest.raises(InterpreterError, match=r"lane \(3, 4\) stores element 40 of x_ptr, which has 0 to 39"):
        tile_kernel[(1,)](torch.zeros(4, 10), 4, 8, 12, ROWS=4, COLS=8)


@interpreted
def test_what_lies_in_the_tensors_goes_through():
    x, y = torch.randn(100), torch.full((100,), torch.nan)
    copy_kernel[(2,)](x, y, 100, 0, LOADS=100, STORES=100, BLOCK=64)
    assert torch.equal(x, y)
    rows = torch.zeros(4, 16)[:, :8]
    tile_kernel[(1,)](rows, 4, 8, 16, ROWS=4, COLS=8)
    assert torch.equal(rows, torch.ones(4, 8))
    # A mask that leaves no lane, and a launch of tensors without elements.
    copy_kernel[(1,)](torch.empty(0), torch.empty(0), 0, 0, LOADS=0, STORES=0, BLOCK=64)
    with pytest.raises(InterpreterError, match="every tensor is empty: return before launching"):
        copy_kernel[(1,)](torch.empty(0), torch.empty(0), 0, 0, LOADS=1, STORES=0, BLOCK=64)


@triton.jit
def count_kernel(x_ptr, n, step, BLOCK: tl.constexpr):
    i = 0
    while i < n:
        i += step
    tl.store(x_ptr, i)


@interpreted
def test_a_loop_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(runtime, "MAX_PASSES", 2**10)
    x = torch.zeros(1, dtype=torch.int32)
    count_kernel[(3,)](x, 500, 1, BLOCK=1)  # each program instance has passes of its own
    assert x.item() == 500
    with pytest.raises(InterpreterError, match=r"line \d+, `while i < n:`: 1,024 passes .* does this one end"):
        count_kernel[(1,)](x, 500, 0, BLOCK=1)


@triton.jit
def spin_kernel(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    while tl.sum(tl.load(x_ptr + i)) < 1.0:
        tl.store(x_ptr + i, tl.load(x_ptr + i) * 0.5)


@interpreted
def test_an_endless_loop_ends_within_ten_seconds(monkeypatch):
    began = time.thread_time()
    with pytest.raises(InterpreterError, match="passes through loops in one program instance: does this one end"):
        count_kernel[(1,)](torch.zeros(1, dtype=torch.int32), 500, 0, BLOCK=1)
    assert time.thread_time() - began < 10
    monkeypatch.setattr(runtime, "MAX_SECONDS", 0.5)  # a body of more work is stopped by the clock
    began = time.thread_time()
    with pytest.raises(InterpreterError, match="passes through loops in one program instance: does this one end"):
        spin_kernel[(1,)](torch.zeros(1024), BLOCK=1024)
    assert time.thread_time() - began < 5


@interpreted
def test_no_clock_ends_a_walk_through_an_exercises_keys_in_blocks_of_16(monkeypatch):
    monkeypatch.setattr(runtime, "MAX_SECONDS", 0.0)  # as on a machine that is slow without end
    x = torch.zeros(1, dtype=torch.int32)
    count_kernel[(2,)](x, MANY_KEYS, 16, BLOCK=1)
    assert x.item() >= MANY_KEYS
    with pytest.raises(InterpreterError, match="passes through loops in one program instance: does this one end"):
        count_kernel[(1,)](x, MANY_KEYS, 0, BLOCK=1)


@triton.jit
def list_kernel(x_ptr, n, step, BLOCK: tl.constexpr):
    passes = [i for i in range(n)]  # noqa: C416
    tl.store(x_ptr, passes[-1])


@triton.jit
def endless_kernel(x_ptr, n, step, BLOCK: tl.constexpr):
    endless_kernel(x_ptr, n, step, BLOCK)


@triton.jit
def launching_kernel(x_ptr, n, step, BLOCK: tl.constexpr):
    count_kernel[(1,)](x_ptr, n, step, BLOCK)


@interpreted
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (list_kernel, r"list_kernel, line \d+, `passes = .*65,536 passes"),
        (endless_kernel, r"endless_kernel, line \d+, .*a kernel cannot call itself: write a loop"),
        (launching_kernel, r"line \d+, `count_kernel.*a kernel cannot launch another: call it as a function, count_"),
    ],
)
def test_what_runs_on_without_a_loop_of_its_own_is_stopped(kernel, said):
    x = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(InterpreterError, match=said):
        kernel[(1,)](x, 70_000, 1, BLOCK=1)
    count_kernel[(1,)](x, 3, 1, BLOCK=1)
    assert x.item() == 3


@triton.jit
def places_kernel(x_ptr):
    place = tl.atomic_add(x_ptr, 1)
    tl.store(x_ptr + 1 + place, tl.program_id(0) + 10 * tl.program_id(1) + 100 * tl.program_id(2))


@interpreted
@pytest.mark.parametrize("grid", [(2**20 + 1,), (2**31 - 1,), (2**31 - 1, 65535, 65535)])
def test_a_grid_that_would_take_hours_is_refused_before_it_takes_memory(grid):
    x = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(InterpreterError, match=r"count_kernel: a grid of .* would be interpreted for hours"):
        count_kernel[grid](x, 1, 1, BLOCK=1)
    assert not x.any()


@interpreted
def test_program_instances_run_with_x_fastest():
    x = torch.zeros(13, dtype=torch.int32)
    places_kernel[(2, 3, 2)](x)
    assert x[1:].tolist() == [0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121]


@interpreted
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0], "list is passed instead of a tensor: launch with a torch.Tensor"),
        (None, "NoneType is passed instead of a tensor"),
        (torch.zeros(16, dtype=torch.complex64), "no complex numbers: pass torch.view_as_real"),
        (2**70, "at most 64 bits"),
    ],
)
def test_an_argument_that_is_no_tensor_is_told_as_one(given, said):
    with pytest.raises(InterpreterError, match=said):
        copy_kernel[(1,)](given, torch.ones(16), 16, 0, LOADS=16, STORES=16, BLOCK=16)


@pytest.mark.parametrize(("block", "warps"), [(2**16, 4), (2**17, 8), (2**20, 32)])
def test_a_block_that_would_compile_for_minutes_is_refused_at_once(block, warps):
    x = torch.empty(16, device="meta")
    began = time.process_time()
    with pytest.raises(ValueError, match=f"a block of {block} elements is .* make it at most {256 * 32 * warps}, or"):
        compile_for(copy_kernel, x, x, 16, 0, LOADS=16, STORES=16, BLOCK=block, num_warps=warps)
    assert time.process_time() - began < 10


def test_a_block_of_as_many_elements_as_registers_compiles():
    x = torch.empty(16, device="meta")
    resources = compile_for(copy_kernel, x, x, 16, 0, LOADS=16, STORES=16, BLOCK=256 * 32, num_warps=1)
    assert resources.registers > 200


@triton.jit
def mistakes_kernel(x_ptr, n, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    if WHAT == "cube":
        x = x**3
    elif WHAT == "torch":
        x = torch.exp(x)
    elif WHAT == "tanh":
        x = tl.tanh(x)
    elif WHAT == "float":
        x = x.float()
    elif WHAT == "torch's dtype":
        x = x.to(torch.float32)
    elif WHAT == "and":
        x = (x > 0) and (x < 1)
    elif WHAT == "size":
        x = x + tl.zeros((n,), tl.float32)
    elif WHAT == "index":
        x = x[0]
    tl.store(x_ptr + i, x)


@interpreted
@pytest.mark.parametrize(
    ("what", "line", "said"),
    [
        ("cube", "x = x**3", "write s * s * s"),
        ("torch", "x = torch.exp(x)", "use tl's functions, such as tl.exp"),
        ("tanh", "x = tl.tanh(x)", r"write 2 * tl.sigmoid(2 * x) - 1"),
        ("float", "x = x.float()", "write x.to(tl.float32)"),
        ("torch's dtype", "x = x.to(torch.float32)", "write x.to(tl.float32)"),
        ("and", "x = (x > 0) and (x < 1)", "join with & and |"),
        ("size", "x = x + tl.zeros((n,), tl.float32)", "declared tl.constexpr"),
        ("index", "x = x[0]", "a block cannot be indexed or looped over"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_kernels_at_its_line(what, line, said):
    with pytest.raises(InterpreterError) as raised:
        mistakes_kernel[(1,)](torch.ones(16), 16, WHAT=what, BLOCK=16)
    assert f"`{line}`: " in str(raised.value)
    assert said in str(raised.value)
