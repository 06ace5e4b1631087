"""Rows split over programs: what these compute, which rows they take, and on a GPU the widest of them."""

import pytest
import torch
import triton
import triton.language as tl
from accuracy import assert_as_accurate

from helpers.instruments.occupancy_calculator import REGISTERS
from helpers.instruments.resources import compile_for
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.interpreter.resident import Programs
from kernels.rowwise.softmax import softmax_reference
from kernels.tuned import split_softmax

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
CHOSEN = {"BLOCK": 128, "THREADS": 32, "num_warps": 1}
ROWS = pytest.mark.parametrize(  # that fill one part, two, and a bit of a fifth
    ("cols", "dtype"), [(256, torch.bfloat16), (512, torch.float16), (1032, torch.bfloat16)]
)


@triton.jit
def published_in_turns(parts_ptr, count, THREADS: tl.constexpr):
    words, missing = tl.zeros((THREADS,), tl.int64), 1
    while missing > 0:
        tl.atomic_add(parts_ptr, 0)  # interpreted, other programs run after an atomic
        words = tl.load(parts_ptr + tl.arange(0, THREADS), mask=tl.arange(0, THREADS) < count, other=1)
        missing = tl.sum((words == 0).to(tl.int32))
    return words


class FewPlaces(Programs):
    """Programs that start in a random order, on a GPU with places for those of one row of five parts."""

    def _next(self, able):
        started = [each for each in able if each.thread is not None]
        return super()._next(able if len(started) < 5 else started)


@pytest.fixture
def split(monkeypatch):
    """Launch a kernel on its tensors."""

    def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
        rows, cols = tensors[0].shape
        y = torch.full_like(tensors[0], torch.nan)
        parts, count = split_softmax._parts(rows, cols, CHOSEN["BLOCK"], y.device)
        with runtime.ordered_by(cols):
            together = {} if runtime.has_gpu() else {"launch_cooperative_grid": True}
            kernel[(rows * count,)](*tensors, y, parts, cols, count, parts.shape[1], **CHOSEN, **together)
        return y

    if not runtime.has_gpu():
        monkeypatch.setattr(split_softmax, "all_published", published_in_turns)
        monkeypatch.setattr(runtime, "Programs", FewPlaces)
    return launch


def rows(cols: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Eight rows, each part of which differs from the others."""
    scale = 1 + torch.arange(cols, device=device) // 256
    return (torch.randn(8, cols, device=device) * scale).to(dtype)


@ROWS
def test_softmax_of_a_split_row(split, device, cols, dtype):
    x = rows(cols, dtype, device)
    x[0] = -torch.inf
    x[1, : cols // 2] = -torch.inf
    x[2, cols // 2 :] = -torch.inf
    x[3, cols // 2] = torch.nan
    x[4, -1] = torch.inf
    x[5] *= 100
    x[6] = 0
    x[7] -= 1000  # far below what a part of only -inf is measured from
    x[7, : cols // 2] = -torch.inf
    y = split(split_softmax.softmax_split_kernel, x)
    assert y[[0, 3, 4]].isnan().all()
    assert_as_accurate(y, softmax_reference(x), softmax_reference(x.double()))


@ROWS
def test_gradients_of_softmax_of_a_split_row(split, device, cols, dtype):
    y, grad_y = softmax_reference(rows(cols, dtype, device)), rows(cols, dtype, device)
    grad_y[0] = 0  # whose sum is 0, which is published nevertheless
    grad_x = split(split_softmax.softmax_backward_split_kernel, grad_y, y)
    native, exact = (
        torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype)
        for g, p in ((grad_y, y), (grad_y.double(), y.double()))
    )
    assert_as_accurate(grad_x, native, exact)


@pytest.mark.parametrize(
    ("cols", "itemsize", "sms", "split"),
    [
        (131072, 2, 132, True),
        (50257, 2, 132, False),
        (32768, 2, 132, False),
        (131072, 4, 132, False),
        (131072, 2, 64, True),
        (131072, 2, 63, False),
    ],
)
def test_which_rows_are_split(cols, itemsize, sms, split):
    assert split_softmax._fits(cols, itemsize, sms) == split


@pytest.mark.parametrize("cols", [50264, pytest.param(262144, marks=pytest.mark.long)])
def test_a_part_waits_in_registers(cols):
    x, parts = (
        torch.empty(9, cols, dtype=torch.bfloat16, device="meta"),
        torch.empty(9, device="meta", dtype=torch.int64),
    )
    forward, backward = split_softmax.settings(cols), split_softmax.backward_settings(cols)
    for kernel, tensors, chosen in (
        (split_softmax.softmax_split_kernel, (x, x), forward),
        (split_softmax.softmax_backward_split_kernel, (x, x, x), backward),
    ):
        compiled = compile_for(kernel, *tensors, parts, cols, 13, 16, device="H100", **chosen)
        assert compiled.spill_bytes == 0
        assert chosen["THREADS"] == 32 * chosen["num_warps"]  # no word is loaded twice
        assert 4 * chosen["THREADS"] * compiled.registers <= REGISTERS  # programs that an SM holds
        assert {"LDG.128", "STG.128"} <= compiled.instructions.keys()


@gpu_only
@pytest.mark.parametrize(("rows", "cols"), [(300, 131072), (300, 152064), (300, 262144), (1, 50304), (16, 128256)])
def test_the_widest_rows_on_a_gpu_alike_each_time(rows, cols):
    op = CATALOGUE["softmax"]
    inputs = op.inputs(rows, cols, dtype=torch.bfloat16, device="cuda")
    first = op.fused(*inputs)
    assert_as_accurate(first, op.reference(*inputs), op.reference(*(x.double() for x in inputs)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = [op.fused(*inputs) for _ in range(3)]
    for _ in range(2):
        for each in again:
            each.fill_(torch.nan)
        graph.replay()
        for each in again:
            torch.testing.assert_close(each, first, rtol=0, atol=0)


@gpu_only
def test_launches_side_by_side_do_not_wait_for_each_other():
    x = torch.randn(40, 262144, device="cuda", dtype=torch.bfloat16)
    grad_y, softmax = torch.randn_like(x), split_softmax.forward(x)
    grad_x = split_softmax.backward(grad_y, softmax)
    torch.cuda.synchronize()
    found = []
    for stream in [torch.cuda.Stream() for _ in range(16)]:
        with torch.cuda.stream(stream):
            found += [(split_softmax.forward(x), split_softmax.backward(grad_y, softmax)) for _ in range(4)]
    torch.cuda.synchronize()
    for both in found:
        torch.testing.assert_close(both, (softmax, grad_x), rtol=0, atol=0)
