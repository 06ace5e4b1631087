"""The meter on Triton kernels, against bytes worked out by hand. Elements have 4 bytes unless said."""

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments.traffic import measure

QUICK = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)  # shrinking would launch thousands of kernels


def line_of(kernel, text: str) -> tuple[str, int]:
    """(file, line) of the first line of a kernel's source that contains `text`."""
    first = kernel.fn.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return __file__, next(n for n in range(first, len(lines) + 1) if text in lines[n - 1])


def moved(traffic) -> dict:
    return {name: (each.read, each.written) for name, each in traffic.by_tensor.items()}


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (at < n) | (not MASKED)
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


def launch_add(x, y, MASKED=True):
    # Room for a whole last block, so that the wrong variant harms nobody.
    out = torch.empty(x.numel() + 1024, dtype=x.dtype)[: x.numel()]
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), MASKED=MASKED, BLOCK=1024)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n", [1, 127, 1024, 1025])
def test_add_is_one_launch_and_12_bytes_an_element(n, dtype):
    # Two loads and one store of n elements; the masked lanes of the last block of 1024 count nothing.
    x, y = torch.randn(2, n + 1024)[:, :n].to(dtype)
    traffic = measure(launch_add, x, y)
    size = dtype.itemsize
    assert (traffic.launches, traffic.bytes_read, traffic.bytes_written) == (1, 2 * size * n, size * n)
    assert (traffic.unique_read, traffic.unique_written) == (2 * size * n, size * n)
    sectors = -(-size * n // 32)
    assert traffic.sectors_written == sectors
    assert moved(traffic) == {"x": (size * n, 0), "y": (size * n, 0), "result": (0, size * n)}
    assert traffic.by_line[line_of(add, "x = tl.load")].read == size * n
    assert traffic.by_line[line_of(add, "y = tl.load")].read == size * n
    assert traffic.by_line[line_of(add, "tl.store")].written == size * n
    assert traffic.hazards == ()
    assert torch.equal(traffic.result, x + y)
    if n % 1024:
        wrong = measure(lambda: launch_add(x, y, MASKED=False))
        assert wrong.bytes_total == 3 * size * 1024 * triton.cdiv(n, 1024) != traffic.bytes_total


@triton.jit
def patterns(x_ptr, out_ptr, HOW: tl.constexpr):
    lane = tl.arange(0, 256)
    if HOW == "one":
        x = tl.load(x_ptr)
    elif HOW == "one for all lanes":
        x = tl.load(x_ptr + lane * 0)
    elif HOW == "stride 8":
        x = tl.load(x_ptr + lane * 8)
    elif HOW == "pairs":
        x = tl.load(x_ptr + lane // 2)
    elif HOW == "row for all":
        x = tl.sum(tl.load(x_ptr + tl.arange(0, 16)[None, :] + tl.arange(0, 8)[:, None] * 0))
    elif HOW == "neighbours":
        x = tl.load(x_ptr + lane)
    elif HOW == "shifted":
        x = tl.load(x_ptr + lane + 1)
    elif HOW == "backwards":
        x = tl.load(x_ptr + 255 - lane)
    elif HOW == "columns":
        x = tl.sum(tl.load(x_ptr + tl.arange(0, 64)[None, :] * 64 + tl.arange(0, 64)[:, None]))
    elif HOW == "nothing":
        x = tl.load(x_ptr + lane, mask=lane < 0)
    tl.store(out_ptr + lane, x)


@pytest.mark.parametrize(
    ("how", "read", "sectors", "per_request"),
    [
        ("one", 4, 1, 1),
        ("one for all lanes", 4, 1, 1),  # wrong: once per lane, 1024 B
        ("stride 8", 1024, 256, 32),  # every element 32 B from the next: a sector each
        ("pairs", 512, 16, 2),
        ("row for all", 64, 2, 2),  # 8 rows of lanes on 16 elements: 4 warps of two rows on two sectors
        ("neighbours", 1024, 32, 4),
        ("shifted", 1024, 33, 5),  # each warp's 128 B lie across 5 sectors
        ("backwards", 1024, 32, 4),
        ("columns", 16384, 512, 4),  # the neighbours lie along the first axis; the compiler deals them to a warp
        ("nothing", 0, 0, None),
    ],
)
def test_load_patterns(how, read, sectors, per_request):
    x, out = torch.randn(64 * 64), torch.zeros(256)
    traffic = measure(lambda: patterns[(1,)](x, out, HOW=how))
    here = next(line for line, each in traffic.by_line.items() if each.requests and not each.written) if read else None
    assert (traffic.bytes_read, traffic.unique_read, traffic.sectors_read) == (read, read, sectors)
    if here:
        assert traffic.by_line[here].sectors_per_request == per_request
    assert traffic.sectors_written == 32


@triton.jit
def row_kernel(x_ptr, y_ptr, cols, stride, TWICE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + at, mask=at < cols, other=0.0)
    mean = tl.sum(total) / cols
    if TWICE:
        for start in range(0, cols, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * stride + at, mask=at < cols)
            tl.store(y_ptr + row * cols + at, x - mean, mask=at < cols)


def test_a_row_read_twice_counts_twice_and_is_distinct_once():
    x = torch.randn(7, 128)[:, :100]
    y = torch.zeros(7, 100)
    traffic = measure(lambda: row_kernel[(7,)](x, y, 100, 128, TWICE=True, BLOCK=64))
    assert (traffic.bytes_read, traffic.unique_read) == (2 * 2800, 2800)
    assert (traffic.bytes_written, traffic.unique_written) == (2800, 2800)
    once = measure(lambda: row_kernel[(7,)](x, y, 100, 128, TWICE=False, BLOCK=64))
    assert (once.bytes_read, once.unique_read, once.bytes_written) == (2800, 2800, 0)
    # 64 columns are 8 sectors, the other 36 are 5 (rows of x start on a sector): 13 a row, twice.
    assert traffic.sectors_read == 2 * 7 * 13


@triton.jit
def reduce_atomically(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0)))


@triton.jit
def histogram(x_ptr, bins_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(bins_ptr + tl.load(x_ptr + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def take_lock(lock_ptr):
    tl.atomic_cas(lock_ptr, 0, 1)


def test_atomics():
    x, total = torch.ones(1025), torch.zeros(1)
    traffic = measure(lambda: reduce_atomically[(5,)](x, total, 1025, BLOCK=256))
    # Five instances, one atomic each: 4 B read and 4 B written.
    assert traffic.atomics == 5
    assert moved(traffic) == {"x": (4100, 0), "total": (20, 20)}
    assert traffic.unique_written == 4
    assert total.item() == 1025

    # 100 lanes on 3 bins: every lane is an atomic of its own, masked ones are none.
    values, bins = torch.randint(0, 3, (128,), dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    traffic = measure(lambda: histogram[(1,)](values, bins, 100, BLOCK=128))
    assert traffic.atomics == 100
    assert moved(traffic) == {"values": (400, 0), "bins": (400, 400)}
    assert traffic.unique_written <= 12

    traffic = measure(lambda: take_lock[(3,)](bins))
    assert (traffic.atomics, traffic.bytes_read, traffic.bytes_written) == (3, 12, 12)


@triton.jit
def copy_tiles(x_desc, y_desc, M: tl.constexpr, N: tl.constexpr):
    row, col = tl.program_id(0) * M, tl.program_id(1) * N
    y_desc.store([row, col], x_desc.load([row, col]))


@triton.jit
def copy_tiles_made_inside(x_ptr, y_ptr, rows, cols, M: tl.constexpr, N: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [M, N])
    y_desc = tl.make_tensor_descriptor(y_ptr, [rows, cols], [cols, 1], [M, N])
    row, col = tl.program_id(0) * M, tl.program_id(1) * N
    y_desc.store([row, col], x_desc.load([row, col]))


def test_a_descriptors_overhang_counts_nothing():
    # Tiles of 16 x 16 over 20 x 24: 2 x 2 instances, of which only the elements inside count.
    x, y = torch.randn(20, 24), torch.zeros(20, 24)
    x_desc, y_desc = (TensorDescriptor.from_tensor(t, [16, 16]) for t in (x, y))
    traffic = measure(lambda: copy_tiles[(2, 2)](x_desc, y_desc, M=16, N=16))
    assert (traffic.bytes_read, traffic.bytes_written) == (1920, 1920)
    assert moved(traffic) == {"x_desc": (1920, 0), "y_desc": (0, 1920)}
    # A row of a tile: 16 columns are 2 sectors, the remaining 8 are 1.
    assert traffic.sectors_read == 20 * 3
    assert torch.equal(x, y)
    y.zero_()
    inside = measure(lambda: copy_tiles_made_inside[(2, 2)](x, y, 20, 24, M=16, N=16))
    assert moved(inside) == {"x": (1920, 0), "y": (0, 1920)}
    assert torch.equal(x, y)
    # Wrong: whole tiles.
    assert traffic.bytes_read != 4 * 16 * 16 * 4


@triton.jit
def doubled(ptr, at, mask):
    return 2 * tl.load(ptr + at, mask=mask)


@triton.jit
def calls_another(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, doubled(x_ptr, at, at < n) + tl.max(doubled(x_ptr, at, at < n)), mask=at < n)


def test_functions_that_a_kernel_calls():
    x, y = torch.randn(100), torch.zeros(100)
    traffic = measure(lambda: calls_another[(1,)](x, y, 100, BLOCK=128))
    assert moved(traffic) == {"x": (800, 0), "y": (0, 400)}
    assert traffic.by_line[line_of(doubled, "tl.load")].read == 800
    assert traffic.by_line[line_of(calls_another, "tl.store")].written == 400
    assert traffic.by_line[line_of(calls_another, "tl.store")].read == 0


@triton.jit
def add_pair(pair, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(pair[0] + at) + tl.load(pair[1] + at))


def test_two_tensors_in_one_storage():
    both = torch.randn(2, 64)
    x, y = both
    out = torch.zeros(64)
    expected = {"x": (256, 0), "y": (256, 0), "out": (0, 256)}
    assert moved(measure(lambda: add[(1,)](x, y, out, 64, MASKED=True, BLOCK=64))) == expected
    unnamed = measure(lambda: add[(1,)](*both.chunk(2), out, 64, MASKED=True, BLOCK=64))
    assert moved(unnamed) == {"both": (512, 0), "out": (0, 256)}  # the caller knows one tensor
    unnamed = measure(lambda: add_pair[(1,)]((both[0], both[1]), torch.zeros(64), N=64))
    assert moved(unnamed)["both"] == (512, 0)
    allocated_inside = measure(lambda: add[(1,)](*torch.ones(2, 64).unbind(), out, 64, MASKED=True, BLOCK=64))
    assert sum(read for read, _ in moved(allocated_inside).values()) == 512


def test_names_without_a_caller():
    def launch():
        x, y = torch.ones(64), torch.empty(64)
        add[(1,)](x, x, y, 64, MASKED=True, BLOCK=64)

    assert moved(measure(launch)) == {"ones": (512, 256), "out_ptr": (0, 256)}


def test_launches_in_a_row_and_eager_operators_between():
    def f(x):
        first = launch_add(x, x)
        return launch_add(first * 2, x)

    traffic = measure(f, torch.ones(100))
    assert [(name, each.read, each.written) for name, each in traffic.by_launch] == [
        ("add", 800, 400),
        ("mul", 400, 400),
        ("add", 800, 400),
    ]
    assert traffic.unique_read == 400 * 3  # x, first and first * 2
    assert traffic.unique_written == 400 * 3


def test_an_empty_grid_launches_nothing():
    x = torch.ones(4)
    traffic = measure(lambda: add[(0,)](x, x, x, 0, MASKED=True, BLOCK=64))
    assert (traffic.launches, traffic.bytes_total, traffic.by_tensor) == (0, 0, {})


def test_tensors_with_no_elements():
    x = torch.ones(0)
    traffic = measure(lambda: add[(1,)](x, x, x, 0, MASKED=True, BLOCK=64))
    assert (traffic.launches, traffic.bytes_total) == (1, 0)


@triton.jit
def touch(x_ptr, offsets_ptr, mask_ptr, ATOMIC: tl.constexpr, STORE: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(offsets_ptr + lane)
    mask = tl.load(mask_ptr + lane) != 0
    if ATOMIC:
        tl.atomic_add(x_ptr + at, 1, mask=mask)
    elif STORE:
        tl.store(x_ptr + at, 1, mask=mask)
    else:
        tl.load(x_ptr + at, mask=mask)


@settings(max_examples=60, phases=QUICK)
@given(
    st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]),
    st.sampled_from(["load", "store", "atomic"]),
    st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=64, max_size=64),
)
def test_any_offsets_and_any_mask_against_sets(dtype, kind, lanes):
    if kind == "atomic" and dtype.itemsize < 4:
        dtype = torch.int32
    offsets, mask = torch.tensor([at for at, _ in lanes]), torch.tensor([active for _, active in lanes]).to(torch.int8)
    x = torch.zeros(100, dtype=dtype)
    run = touch[(4,)]
    traffic = measure(lambda: run(x, offsets, mask, ATOMIC=kind == "atomic", STORE=kind == "store", BLOCK=16))

    size = dtype.itemsize
    programs = [lanes[first : first + 16] for first in range(0, 64, 16)]
    touched = [[at for at, active in program if active] for program in programs]
    elements = sum(len(each) if kind == "atomic" else len(set(each)) for each in touched)
    distinct = len({at for each in touched for at in each})
    sectors = sum(len({at * size // 32 for at in each}) for each in touched)
    per_program = sum(len({at for at, _ in program}) for program in programs)  # wrong: masked-off lanes counted
    read = 0 if kind == "store" else elements * size
    written = 0 if kind == "load" else elements * size
    got = traffic.by_tensor.get("x")
    assert (got.read, got.written) == (read, written) if elements else got is None
    assert traffic.unique_written == (0 if kind == "load" else distinct * size)
    assert traffic.sectors_written == (0 if kind == "load" else sectors)
    assert elements <= per_program or kind == "atomic"


@triton.jit
def strided_tile(x_ptr, start, row_stride, col_stride, rows, cols, M: tl.constexpr, N: tl.constexpr):
    row, col = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.load(x_ptr + start + row * row_stride + col * col_stride, mask=(row < rows) & (col < cols))


@settings(max_examples=80, phases=QUICK)
@given(*[st.integers(0, 40)] * 3, *[st.integers(0, 8)] * 2)
def test_any_tile_against_sets(start, row_stride, col_stride, rows, cols):
    x = torch.zeros(2000)
    traffic = measure(lambda: strided_tile[(1,)](x, start, row_stride, col_stride, rows, cols, M=8, N=8))
    elements = {start + row * row_stride + col * col_stride for row in range(rows) for col in range(cols)}
    assert traffic.bytes_read == traffic.unique_read == 4 * len(elements)
    assert traffic.sectors_read == len({element // 8 for element in elements})


def test_a_gpus_tensors_are_known_by_the_originals():
    """On a GPU the kernel runs on copies on the host, new ones in each launch; the tensors are still the same."""
    from helpers.instruments.traffic.ledger import Ledger
    from helpers.instruments.traffic.triton_meter import TritonMeter

    ledger = Ledger()
    meter = TritonMeter(ledger)
    x = torch.zeros(64)
    for _ in range(2):
        copy = x.clone()
        meter.launch(add, (1, 1, 1), {"x_ptr": copy}, {"x_ptr": x})
    assert [region.name for storage in ledger.storages.values() for region in storage.regions] == ["x_ptr"]
