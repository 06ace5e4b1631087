"""Parts of triton.language that Triton's own interpreter gets wrong in silence: right here, or refused."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language import maximum
from triton.language.extra.libdevice import hypot
from triton.runtime.errors import InterpreterError

from helpers.instruments import compile_for
from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")


@triton.jit
def larger(a, b):
    if a > b:  # noqa: SIM108
        found = a
    else:
        found = b
    return found


@triton.jit
def larger_of_pairs(a, i, b, j):
    first = a > b or (a == b and i < j)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def larger_by_name(a, b):
    return maximum(a, b)


@triton.jit
def length(a, b):
    return hypot(a, b)


@triton.jit
def combined_kernel(x_ptr, y_ptr, at_ptr, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if HOW == "scan":
        tl.store(y_ptr + i, tl.associative_scan(x, 0, larger))
    elif HOW == "if":
        tl.store(y_ptr, tl.reduce(x, 0, larger))
    elif HOW == "and, or":
        value, at = tl.reduce((x, 100 + 2 * i), 0, larger_of_pairs)
        tl.store(y_ptr, value)
        tl.store(at_ptr, at)
    elif HOW == "argmax's own function":
        value, at = tl.reduce((x, 100 + 2 * i), 0, tl.standard._argmax_combine_tie_break_left)
        tl.store(y_ptr, value)
        tl.store(at_ptr, at)
    elif HOW == "imported by name":
        tl.store(y_ptr, tl.reduce(x, 0, larger_by_name))
    elif HOW == "libdevice":
        tl.store(y_ptr, tl.reduce(x, 0, length))


@pytest.mark.parametrize(
    ("how", "expected", "index"),
    [
        ("if", [7], 0),
        ("scan", [5, 5, 7, 7, 7, 7, 7, 7], 0),
        ("and, or", [7], 104),
        ("argmax's own function", [7], 104),
        ("imported by name", [7], 0),
        ("libdevice", [189**0.5], 0),
    ],
)
def test_a_function_that_combines_works_on_single_values(how, expected, index):
    """Two maxima, so that the lower index decides; every form compiles for a GPU."""
    x, y, at = torch.tensor([5.0, 1, 7, 2, 7, 0, 6, 5]), torch.zeros(8), torch.zeros(1, dtype=torch.int32)
    combined_kernel[(1,)](x, y, at, HOW=how, N=8)
    torch.testing.assert_close(y[: len(expected)], torch.tensor(expected, dtype=torch.float32))
    assert at.item() == index
    assert compile_for(combined_kernel, torch.float32, torch.float32, torch.int32, HOW=how, N=8).registers


@triton.jit
def places_kernel(x_ptr, at_ptr, y_ptr, n, GATHER: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    at = tl.load(at_ptr + i)
    if GATHER:
        tl.store(y_ptr + i, tl.gather(tl.load(x_ptr + i), at, 0))
    else:
        tl.store(y_ptr + tl.arange(0, BINS), tl.histogram(at, BINS, mask=i < n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elements_are_gathered(dtype):
    x, at, y = torch.arange(8).to(dtype), torch.tensor([7, 0, 3, 3, 1, 6, 2, 5], dtype=torch.int32), torch.zeros(8)
    places_kernel[(1,)](x, at, y, 8, GATHER=True, N=8, BINS=4)
    assert y.tolist() == at.tolist()


def test_a_histogram_counts_what_its_mask_leaves():
    values, counts = torch.arange(1024, dtype=torch.int32) % 700 // 200, torch.zeros(4, dtype=torch.int32)
    for n in (1024, 1000, 0):
        places_kernel[(1,)](values, values, counts, n, GATHER=False, N=1024, BINS=4)
        assert torch.equal(counts, torch.bincount(values[:n], minlength=4).int())


@pytest.mark.parametrize(
    ("gather", "value", "dtype", "said"),
    [
        (True, -1, torch.int32, "tl.gather along 8 elements takes indices from 0 to 7, got -1: mask or clamp it"),
        (True, 8, torch.int32, "tl.gather along 8 elements takes indices from 0 to 7, got 8"),
        (False, 4, torch.int32, "tl.histogram of 4 bins takes values from 0 to 3, got 4: mask or clamp it"),
        (False, -1, torch.int32, "tl.histogram of 4 bins takes values from 0 to 3, got -1"),
        (False, 1, torch.int8, r"tl.histogram takes int32, got int8: write x.to\(tl.int32\)"),
        (False, 1, torch.int64, "tl.histogram takes int32, got int64"),
    ],
)
def test_places_outside_are_refused(gather, value, dtype, said):
    at = torch.full((8,), value, dtype=dtype)
    with pytest.raises(InterpreterError, match=rf"places_kernel, line \d+, .*: {said}"):
        places_kernel[(1,)](torch.zeros(8), at, torch.zeros(8), 8, GATHER=gather, N=8, BINS=4)


@triton.jit
def upper_half_kernel(x_ptr, y_ptr, z_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z_ptr + i, tl.umulhi(tl.load(x_ptr + i), tl.load(y_ptr + i)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64])
def test_the_upper_half_of_a_product_is_of_unsigned_numbers(dtype):
    bits = 8 * dtype.itemsize
    limits = [0, 1, 2, 3, 2**bits - 1, 2**bits - 5, 2**bits // 2, 2**bits // 2 - 1]
    wrapped = [value - 2**bits if dtype.is_signed and value >= 2**bits // 2 else value for value in limits]
    x, z = torch.tensor(wrapped, dtype=dtype), torch.zeros(8, dtype=dtype)
    upper_half_kernel[(1,)](x, x.flip(0) if dtype.is_signed else x, z, N=8)
    other = limits[::-1] if dtype.is_signed else limits
    assert [value % 2**bits for value in z.tolist()] == [a * b >> bits for a, b in zip(limits, other, strict=True)]


@triton.jit
def padded_kernel(x_ptr, y_ptr, n, PADDING: tl.constexpr, FIRST: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (FIRST,), (N,), (0,))
    y = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, y + tl.load(block, boundary_check=(0,), padding_option=PADDING))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize(("padding", "outside"), [("", torch.nan), ("nan", torch.nan), ("zero", 0.0)])
@pytest.mark.parametrize("first", [0, -3, 5])
def test_a_block_pointers_padding_is_its_own(padding, outside, first):
    """A load before, with its own `other`, leaves no trace."""
    x, y = torch.arange(1.0, 9), torch.zeros(8)
    padded_kernel[(1,)](x, y, 6, PADDING=padding, FIRST=first, N=8)
    at = torch.arange(first, first + 8)
    own = torch.where((at >= 0) & (at < 6), x[at.clamp(0, 5)], torch.tensor(outside))
    torch.testing.assert_close(y, own + torch.where(torch.arange(8) < 6, x, 0.0), equal_nan=True)


@triton.jit
def loops_kernel(y_ptr, n, step, HOW: tl.constexpr, STEP: tl.constexpr):
    if HOW == "64 bits":
        for i in range(n.to(tl.int64)):
            tl.store(y_ptr + i, i * 2147483647)
    elif HOW == "64 bits by tl.range":
        for i in tl.range(0, n, STEP + tl.zeros((), tl.int64), num_stages=2):
            tl.store(y_ptr + i, i * 2147483647)
    elif HOW == "32 bits":
        for i in range(n):
            tl.store(y_ptr + i, i * 2147483647)
    elif HOW == "down by a constant":
        for i in range(n - 1, -1, -STEP):
            tl.store(y_ptr + i, n - i)
    elif HOW == "down by an argument":
        for i in range(n - 1, -1, step):
            tl.store(y_ptr + i, n - i)
    elif HOW == "unrolled":
        for i in tl.static_range(0, 4, STEP):
            tl.store(y_ptr + i, i // 2 + i)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("64 bits", [0, 2147483647, 4294967294, 6442450941]),
        ("64 bits by tl.range", [0, 2147483647, 4294967294, 6442450941]),
        ("32 bits", [0, 2147483647, -2, 2147483645]),
        ("down by a constant", [4, 3, 2, 1]),
        ("unrolled", [0, 1, 3, 4]),
    ],
)
def test_the_index_of_a_loop_has_its_bounds_width(how, expected):
    y = torch.zeros(4, dtype=torch.int64)
    loops_kernel[(1,)](y, 4, -1, HOW=how, STEP=1)
    assert y.tolist() == expected


def test_a_loop_that_counts_down_by_an_argument_is_refused():
    """Compiled, its condition is i < -1, so that it does nothing."""
    with pytest.raises(InterpreterError, match=r"line \d+, .*: on a GPU a loop counts down by a constant only"):
        loops_kernel[(1,)](torch.zeros(4, dtype=torch.int64), 4, -1, HOW="down by an argument", STEP=1)
    ptx = compile_for(loops_kernel, torch.int64, 4, -1, HOW="down by an argument", STEP=1).ptx
    assert "setp.lt.s32" in ptx


@triton.jit
def atomic_kernel(x_ptr, y_ptr, N: tl.constexpr):
    tl.atomic_add(y_ptr, tl.load(x_ptr + tl.arange(0, N)))


def test_an_atomic_of_a_block_at_one_pointer_is_refused():
    with pytest.raises(InterpreterError, match="an atomic takes one value per pointer: reduce the block first"):
        atomic_kernel[(1,)](torch.ones(8), torch.zeros(1), N=8)


@triton.jit
def masked_atomic_kernel(x_ptr, y_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i, tl.atomic_add(x_ptr + i, 1.0, mask=i < n))


def test_an_atomic_returns_nothing_certain_in_masked_lanes():
    x, y = torch.arange(8.0), torch.zeros(8)
    masked_atomic_kernel[(1,)](x, y, 5, N=8)
    assert x.tolist() == [1, 2, 3, 4, 5, 5, 6, 7]
    torch.testing.assert_close(y, torch.tensor([0, 1, 2, 3, 4] + 3 * [torch.nan]), equal_nan=True)
