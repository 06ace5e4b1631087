"""What `measure` returns and shows, what it refuses, what it costs, and that it works in a notebook's cells."""

import time

import nbclient
import nbformat
import pytest
import torch
import triton
import triton.language as tl
from torch.nn.functional import gelu

import kernels
from helpers.instruments.traffic import measure
from helpers.instruments.traffic.result import size
from kernels.interpreter import runtime

interpreted_here = pytest.mark.skipif(runtime.has_gpu(), reason="launches kernels on the CPU without the meter")


@triton.jit
def add_gelu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    s = x + y
    tl.store(out_ptr + at, 0.5 * s * (1 + tl.erf(s * 0.7071067811865476)), mask=at < n)


@triton.jit
def softmax(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < cols
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + at, e / tl.sum(e, axis=0), mask=inside)


@triton.jit
def dot(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, K)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, K):
        a = tl.load(a_ptr + row * n + (start + k)[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * n + col)
        total += tl.dot(a, b)
    tl.store(c_ptr + row * n + col, total)


def run_add_gelu(x, y):
    out = torch.empty_like(x)
    add_gelu[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def run_softmax(x):
    y = torch.empty_like(x)
    softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024)
    return y


def run_dot(a, b):
    c = torch.empty_like(a)
    dot[(a.shape[0] // 64, a.shape[0] // 64)](a, b, c, a.shape[0], BLOCK=64, K=32)
    return c


def test_what_a_lesson_shows():
    a, b = torch.randn(2, 1_000_000)
    unfused = measure(lambda: gelu(a + b))
    assert str(unfused) == repr(unfused) == "2 launches: 12 MB read + 8 MB written = 20 MB, 20 B/element"
    assert unfused.tensor_table() == (
        "tensor  read  written\n"
        "a       4 MB      0 B\n"
        "b       4 MB      0 B\n"
        "add     4 MB     4 MB\n"
        "result   0 B     4 MB"
    )
    assert unfused.launch_table() == "launch  read  written\nadd     8 MB     4 MB\ngelu    4 MB     4 MB"
    a, b = a[:1025], b[:1025]
    fused = measure(run_add_gelu, a, b)
    assert str(fused) == "1 launch: 8.2 kB read + 4.1 kB written = 12.3 kB, 12 B/element"
    assert str(measure(torch.sum, a)) == "1 launch: 4.1 kB read + 4 B written = 4.104 kB"
    assert [line.split("  ")[0].partition(": ")[2] for line in fused.line_table().splitlines()[1:]] == [
        "x = tl.load(x_ptr + at, mask=at < n)",
        "y = tl.load(y_ptr + at, mask=at < n)",
        "tl.store(out_ptr + at, 0.5 * s * (1 + tl.erf(s * ...",
    ]
    assert str(measure(lambda: None)) == "0 launches: 0 B read + 0 B written = 0 B"


def test_sizes_as_text():
    assert [size(n) for n in (0, 12, 999, 1000, 1025, 999_949, 999_950, 4_194_304, 2**40)] == (
        ["0 B", "12 B", "999 B", "1 kB", "1.025 kB", "999.9 kB", "1 MB", "4.194 MB", "1.1 TB"]
    )


def test_the_account_adds_up():
    traffic = measure(run_softmax, torch.randn(5, 1000))
    assert traffic.bytes_total == traffic.bytes_read + traffic.bytes_written == 2 * 20_000
    for part in (traffic.by_tensor.values(), traffic.by_line.values(), [moved for _, moved in traffic.by_launch]):
        assert sum(moved.total for moved in part) == traffic.bytes_total
    assert traffic.unique_total == 40_000
    assert traffic.sectors_read + traffic.sectors_written == 2 * 5 * 125
    assert traffic.sectors_per_request == 2 * 5 * 125 / (2 * 5 * 32)


def test_no_cache_against_distinct_bytes():
    # Tiles of a and b are read again by each of the 2 columns, or rows, of tiles of c.
    a, b = torch.randn(2, 128, 128)
    traffic = measure(run_dot, a, b)
    assert traffic.bytes_read == traffic.sectors_read * 32 == 2 * 2 * 128 * 128 * 4
    assert traffic.unique_read == 2 * 128 * 128 * 4


def test_training_through_the_catalogues_operator():
    a, b, upstream = torch.randn(1025, requires_grad=True), torch.randn(1025), torch.randn(1025)
    traffic = measure(lambda: kernels.add_gelu(a, b).backward(upstream))
    # forward: a and b read, the result and the sum written. backward: sum and gradient read, one gradient written.
    assert [(name, moved.read, moved.written) for name, moved in traffic.by_launch] == [
        ("add_gelu_kernel", 8 * 1025, 8 * 1025),
        ("add_gelu_backward_kernel", 8 * 1025, 4 * 1025),
    ]


def test_the_catalogues_operator_counts_as_its_kernel():
    a, b = torch.randn(2, 1025)
    fused = measure(kernels.add_gelu, a, b)
    assert (fused.launches, fused.bytes_read, fused.bytes_written) == (1, 8 * 1025, 4 * 1025)
    assert list(fused.by_tensor)[-1] == "result"
    assert measure(kernels.add_gelu, a[:0], b[:0]).launches == 0


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: measure(torch.ones(3) + 1),
            TypeError,
            "measure takes a function and its arguments, got a tensor (the function has already run): "
            "wrap it, measure(lambda: ...)",
        ),
        (
            lambda: measure(3),
            TypeError,
            "measure takes a function and its arguments, got int: wrap it, measure(lambda: ...)",
        ),
        (
            lambda: measure(lambda: softmax[(1,)](1, 2, 3, BLOCK=16)),
            ValueError,
            "softmax was launched with no tensor: there is no traffic to meter",
        ),
        (
            lambda: measure(torch.compile(gelu), torch.ones(3)),
            TypeError,
            "measure cannot see into torch.compile's kernels: pass the uncompiled function",
        ),
        (lambda: measure(run_softmax), TypeError, "run_softmax() missing 1 required positional argument: 'x'"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


@interpreted_here
def test_an_error_in_the_function_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)
    x = torch.randn(3, 100)
    assert torch.allclose(run_softmax(x), x.softmax(-1))
    assert measure(run_softmax, x).launches == 1


def test_kernels_of_notebook_cells():
    cells = [
        "import torch, triton, triton.language as tl\nfrom helpers.instruments.traffic import measure",
        "@triton.jit\n"
        "def half(ptr, at):\n"
        "    return tl.load(ptr + at) / 2\n"
        "\n"
        "@triton.jit\n"
        "def halve(x_ptr, y_ptr, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)\n"
        "    x = half(x_ptr, at)\n"
        "    tl.store(y_ptr + at, x)\n",
        "x, y = torch.ones(64), torch.zeros(64)\ntraffic = measure(lambda: halve[(1,)](x, y, N=64))\ntraffic",
        "print(traffic.line_table())",
        "print(sorted(line for file, line in traffic.by_line), float(y.sum()))",
        "half.__name__, measure(lambda: x + y)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [
        "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)
        for cell in notebook.cells[2:]
    ]
    assert shown[0] == "1 launch: 256 B read + 256 B written = 512 B"
    assert shown[1] == (
        "line                              read  written  sectors/request\n"
        "3: return tl.load(ptr + at) / 2  256 B      0 B                4\n"
        "9: tl.store(y_ptr + at, x)         0 B    256 B                4\n"
    )
    assert shown[2] == "[3, 9] 32.0\n"
    assert shown[3] == "('half', 1 launch: 512 B read + 256 B written = 768 B, 12 B/element)"


@interpreted_here
@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (run_add_gelu, torch.randn(2, 64 * 1024)),
        (run_softmax, torch.randn(1, 64, 1000)),
        (run_dot, torch.randn(2, 128, 128)),
    ],
)
def test_metering_costs_at_most_half_of_interpreting(fn, arguments):
    def seconds(call):
        start = time.process_time()
        call()
        return time.process_time() - start

    plain, metered = [], []
    for run in range(60):  # the caches may be shared: as many as it takes for both to have had them once
        plain.append(seconds(lambda: fn(*arguments)))
        metered.append(seconds(lambda: measure(fn, *arguments)))
        if run >= 2 and min(metered) <= 1.5 * min(plain):
            break
    ratio = min(metered) / min(plain)
    print(
        f"{fn.__name__}: interpreted {min(plain) * 1e3:.1f} ms, metered {min(metered) * 1e3:.1f} ms, {ratio:.2f} times"
    )
    assert ratio <= 1.5
