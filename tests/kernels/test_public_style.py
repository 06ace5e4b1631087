"""Kernels as public packages write them, in the meter: values against PyTorch, bytes by hand, or one true line."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments import measure
from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")


@triton.jit
def _linear(decay1, value1, decay2, value2):
    return decay1 * decay2, value1 * decay2 + value2


@triton.jit
def recurrence_kernel(a_ptr, x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, state = tl.associative_scan((tl.load(a_ptr + at), tl.load(x_ptr + at)), 0, _linear, reverse=True)
    tl.store(y_ptr + at, state)


def recurrence():
    a, x, y = torch.rand(4, 64), torch.randn(4, 64), torch.empty(4, 64)
    recurrence_kernel[(4,)](a, x, y, 64)
    expected, state = torch.empty(4, 64), torch.zeros(4)
    for step in reversed(range(64)):
        expected[:, step] = state = a[:, step] * state + x[:, step]
    return y, expected, 2 * a.nbytes, y.nbytes


@triton.jit
def transposed_kernel(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(y_ptr, [N, M], [M, 1], [BN, BM])
    for column in tl.range(0, N, BN, num_stages=3):
        target.store([column, row], tl.trans(source.load([row, column])) * 2)


def transposed():
    x, y = torch.randn(40, 48), torch.empty(48, 40)
    transposed_kernel[(3,)](x, y, 40, 48, 16, 32)
    return y, x.T * 2, x.nbytes, y.nbytes


@triton.jit
def tripled_kernel(x_desc, y_desc, BM: tl.constexpr):
    row = tl.program_id(0) * BM
    y_desc.store([row, 0], x_desc.load([row, 0]) * 3)


def tripled():
    x, y = torch.randn(40, 48), torch.empty(40, 16)
    x_desc, y_desc = TensorDescriptor.from_tensor(x, [16, 16]), TensorDescriptor.from_tensor(y, [16, 16])
    tripled_kernel[(3,)](x_desc, y_desc, 16)
    return y, x[:, :16] * 3, y.nbytes, y.nbytes


@triton.jit
def ranked_kernel(x_ptr, sorted_ptr, counts_ptr, gathered_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(sorted_ptr + at, tl.sort(x, descending=True))
    tl.store(counts_ptr + tl.arange(0, 8), tl.histogram(tl.abs(x).to(tl.int32) % 8, 8))
    tl.store(gathered_ptr + at, tl.gather(x, at * 7 % N, 0))


def ranked():
    x = torch.randn(128)
    y = torch.empty(128), torch.empty(8, dtype=torch.int32), torch.empty(128)
    ranked_kernel[(1,)](x, *y, 128)
    counts = (x.abs().int() % 8).bincount(minlength=8)
    expected = x.sort(descending=True)[0], counts, x[torch.arange(128) * 7 % 128]
    return torch.cat(y), torch.cat(expected), 512, 512 + 32 + 512


@triton.constexpr_function
def _halvings(n):
    return n.bit_length() - 1


@triton.jit
def _activation(x, KIND: tl.constexpr):
    if KIND == "relu":
        return tl.maximum(x, 0.0)
    tl.static_assert(KIND == "silu")
    return x * tl.sigmoid(x)


@triton.jit
def both_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    total = _activation(x, "silu")
    for step in tl.static_range(_halvings(N)):
        total += _activation(x, "relu") * step
    tl.store(y_ptr + at, total)


def nested():
    x, y = torch.randn(128), torch.empty(128)
    both_kernel[(1,)](x, y, 128)
    return y, torch.nn.functional.silu(x) + x.relu() * 21, 512, 512


@triton.jit
def halved_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    total, start = 0.0, 0
    while start < N:
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + row * N + at, at < N, other=0.0), 0)
        start += BLOCK
    while tl.abs(total) > 0.1:
        total = total / 2
    tl.store(y_ptr + row, total)


def halved():
    x, y = torch.randn(2, 3, 4, 50), torch.empty(2, 3, 4)
    halved_kernel[(2, 3, 4)](x, y, 50, 16)
    expected = x.sum(-1)
    while (large := expected.abs() > 0.1).any():
        expected = torch.where(large, expected / 2, expected)
    return y, expected, x.nbytes, y.nbytes


@triton.jit
def split_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    start = tl.program_id(0) * BLOCK
    a = tl.load(a_ptr + row * K + start + column)
    b = tl.load(b_ptr + (start + row) * BLOCK + column)
    tl.atomic_add(c_ptr + row * BLOCK + column, tl.dot(a, b, input_precision=PRECISION), sem="relaxed")


def product(precision):
    a, b, c = torch.randn(16, 64), torch.randn(64, 16), torch.zeros(16, 16)
    split_kernel[(4,)](a, b, c, 64, 16, precision)
    return c, a @ b, a.nbytes + b.nbytes + 4 * c.nbytes, 4 * c.nbytes


@triton.jit
def indices_kernel(y_ptr, low, high):
    for i in range(low, high):
        place = y_ptr + (i - low) * 5
        tl.store(place, (i // 3).to(tl.int64))
        tl.store(place + 1, (i % 3).to(tl.int64))
        tl.store(place + 2, (i * 1_000_000_000).to(tl.int64))
        tl.store(place + 3, (i / 2 * 2).to(tl.int64))
        tl.store(place + 4, (-i >> 1).to(tl.int64))


def indices():
    i, y = torch.arange(-4, 4, dtype=torch.int32), torch.empty(8, 5, dtype=torch.int64)
    indices_kernel[(1,)](y, -4, 4)
    thirds = torch.div(i, 3, rounding_mode="trunc"), torch.fmod(i, 3)
    return y, torch.stack([*thirds, i * 1_000_000_000, i, -i >> 1], 1), 0, y.nbytes


KERNELS = {
    "a scan of pairs": recurrence,
    "descriptors made in the kernel": transposed,
    "descriptors made by the host": tripled,
    "sort, histogram, gather": ranked,
    "functions within functions": nested,
    "a while over a value, three axes": halved,
    **{f"a product in {name}": lambda name=name: product(name) for name in ("ieee", "tf32x3", "bf16x3", "bf16x6")},
    "a loop's index is an int32": indices,
}


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_pytorchs_and_bytes_those_counted_by_hand(name):
    torch.manual_seed(0)
    traffic = measure(KERNELS[name])
    y, expected, read, written = traffic.result
    torch.testing.assert_close(y, expected.to(y.dtype), rtol=1e-4, atol=1e-4)
    moved = [(each.read, each.written) for kernel, each in traffic.by_launch if kernel.endswith("_kernel")]
    assert moved == [(read, written)]
    assert traffic.hazards == ()


@triton.jit
def breaking_kernel(x_ptr, y_ptr, N):
    for i in range(N):
        if tl.load(x_ptr + i) > 1:
            break
        tl.store(y_ptr + i, 1.0)


@triton.jit
def pointers_kernel(x_ptr, y_ptr, N):
    row = tl.load(x_ptr).to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(y_ptr, tl.load(row + N))


@triton.jit
def mapped_kernel(x_ptr, y_ptr, N):
    tl.store(y_ptr, tl.map_elementwise(_linear, tl.load(x_ptr + tl.arange(0, 8)), 1.0, 2.0, 3.0))


@triton.jit
def flipped_kernel(x_ptr, y_ptr, N):
    tl.store(y_ptr + tl.arange(0, 8), tl.flip(tl.load(x_ptr + tl.arange(0, 8))))


@triton.jit
def timed_kernel(x_ptr, y_ptr, N):
    tl.store(y_ptr, tl.extra.cuda.globaltimer())


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (breaking_kernel, "a kernel has no break: put the condition into a `while`"),
        (pointers_kernel, "a pointer made from a number points into no tensor of the launch: pass that tensor too"),
        (mapped_kernel, "map_elementwise needs a GPU: choose with tl.where"),
        (flipped_kernel, r"None is passed instead of a number: pass that argument \(tl.flip takes its dimension\)"),
        (timed_kernel, "globaltimer needs a GPU: there is no clock without one"),
    ],
)
def test_what_is_not_interpreted_is_refused_in_one_line(kernel, said):
    with pytest.raises(InterpreterError, match=said) as refused:
        kernel[(1,)](torch.ones(8), torch.zeros(8), 8)
    assert "\n" not in str(refused.value)
