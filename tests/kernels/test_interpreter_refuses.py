"""What the interpreter refuses: memory that is not the launch's, loops without an end, blocks that no compiler ends."""

import re
import time

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from helpers.instruments import compile_for
from kernels import runtime

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
def test_a_loop_that_never_ends_is_stopped():
    x = torch.zeros(1, dtype=torch.int32)
    count_kernel[(3,)](x, 30_000, 1, BLOCK=1)  # each program instance has passes of its own
    assert x.item() == 30_000
    with pytest.raises(InterpreterError, match=r"line \d+, `while i < n:`: 65,536 passes .* does this one end"):
        count_kernel[(1,)](x, 30_000, 0, BLOCK=1)


@pytest.mark.parametrize(("block", "warps"), [(2**16, 4), (2**17, 8), (2**20, 32)])
def test_a_block_that_would_compile_for_minutes_is_refused_at_once(block, warps):
    x = torch.empty(16, device="meta")
    started = time.monotonic()
    with pytest.raises(ValueError, match=f"a block of {block} elements is .* make it at most {256 * 32 * warps}, or"):
        compile_for(copy_kernel, x, x, 16, 0, LOADS=16, STORES=16, BLOCK=block, num_warps=warps)
    assert time.monotonic() - started < 10


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
        ("index", "x = x[0]", "a block has no elements to index"),
    ],
)
def test_a_mistake_is_told_in_the_words_of_kernels_at_its_line(what, line, said):
    with pytest.raises(InterpreterError) as raised:
        mistakes_kernel[(1,)](torch.ones(16), 16, WHAT=what, BLOCK=16)
    assert f"`{line}`: " in str(raised.value)
    assert said in str(raised.value)
