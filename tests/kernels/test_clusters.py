"""Rows shared by a cluster: what its programs compute, whose rows they are, and on a GPU the widest of them."""

import pytest
import torch
import triton
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.rowwise.softmax import softmax_reference
from kernels.tuned import cluster_softmax

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
ROWS = pytest.mark.parametrize(  # that fill HEAD, a part of it, HEAD and a part of TAIL
    ("cols", "dtype"), [(1024, torch.bfloat16), (1256, torch.float16), (4752, torch.bfloat16)]
)


@triton.jit
def nobody_waits():
    pass


@pytest.fixture
def four(monkeypatch):
    """Four CTAs for any row. Interpreted, one program is the whole cluster, and has nobody to wait for."""
    if not runtime.has_gpu():
        monkeypatch.setattr(cluster_softmax, "cluster_sync", nobody_waits)
    chosen = lambda cols: {"SHAPE": cluster_softmax.shape_of(cols, 4), "num_ctas": 4, "num_warps": 4}  # noqa: E731
    monkeypatch.setattr(cluster_softmax, "settings", chosen)


def rows(cols: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Seven rows, each part of which differs from the others."""
    scale = 1 + torch.arange(cols, device=device) // (cols // 4)
    return (torch.randn(7, cols, device=device) * scale).to(dtype)


@ROWS
def test_softmax_of_a_shared_row(four, poisoned, device, cols, dtype):
    x = rows(cols, dtype, device)
    x[0] = -torch.inf
    x[1, : cols // 2] = -torch.inf
    x[2, cols // 2 :] = -torch.inf
    x[3, cols // 2] = torch.nan
    x[4, -1] = torch.inf
    x[5] *= 100
    y = cluster_softmax.forward(x)
    assert y[[0, 3, 4]].isnan().all()
    assert_as_accurate(y, softmax_reference(x), softmax_reference(x.double()))


@ROWS
def test_gradients_of_softmax_of_a_shared_row(four, poisoned, device, cols, dtype):
    y, grad_y = softmax_reference(rows(cols, dtype, device)), rows(cols, dtype, device)
    grad_x = cluster_softmax.backward(grad_y, y)
    native, exact = (
        torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype)
        for g, p in ((grad_y, y), (grad_y.double(), y.double()))
    )
    assert_as_accurate(grad_x, native, exact)


@pytest.mark.parametrize(
    ("capability", "itemsize", "shape", "tensors", "shared"),
    [
        ((9, 0), 2, (2048, 131072), 2, True),
        ((10, 0), 2, (16, 50304), 1, True),
        ((9, 0), 2, (2048, 131072), 1, False),
        ((9, 0), 2, (2048, 152064), 2, True),
        ((9, 0), 2, (2048, 100000), 2, False),
        ((9, 0), 2, (2048, 65536), 2, False),
        ((9, 0), 2, (16, 50257), 1, False),
        ((9, 0), 4, (16, 131072), 2, False),
        ((8, 0), 2, (16, 131072), 2, False),
        ((12, 0), 2, (16, 131072), 2, False),
    ],
)
def test_whose_rows_are_shared(capability, itemsize, shape, tensors, shared):
    assert cluster_softmax._shared(capability, itemsize, *shape, tensors) == shared


@pytest.mark.parametrize(
    ("name", "cols"),
    [("backward", 131072)]
    + [
        pytest.param(name, cols, marks=pytest.mark.long)
        for name in ("softmax", "backward")
        for cols in (152064, 262144)
    ],
)
def test_a_part_waits_in_registers_and_meets_the_others_once(name, cols):
    x, parts = torch.empty(9, cols, dtype=torch.bfloat16, device="meta"), torch.empty(9, device="meta")
    kernel, arguments = {
        "softmax": (cluster_softmax.softmax_cluster_kernel, (x, x, parts, cols // 2, cols)),
        "backward": (cluster_softmax.softmax_backward_cluster_kernel, (x, x, x, parts, cols // 2, cols)),
    }[name]
    compiled = compile_for(kernel, *arguments, device="H100", **cluster_softmax.settings(cols))
    assert compiled.spill_bytes == 0
    assert compiled.registers <= 64
    assert {"LDG.128", "STG.128"} <= compiled.instructions.keys()
    assert (compiled.instructions["UCGABAR_ARV"], compiled.instructions["UCGABAR_WAIT"]) == (1, 1)


def test_every_thread_publishes_what_it_stored_before_the_barrier():
    x, parts = torch.empty(9, 131072, dtype=torch.bfloat16, device="meta"), torch.empty(9, device="meta")
    arguments = x, x, parts, 65536, 131072
    ptx = compile_for(
        cluster_softmax.softmax_cluster_kernel, *arguments, device="H100", **cluster_softmax.settings(131072)
    ).ptx
    assert ptx.count("barrier.cluster.arrive.release.aligned") == ptx.count("barrier.cluster.wait.acquire.aligned") == 1


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
    graph.replay()
    for each in again:
        torch.testing.assert_close(each, first, rtol=0, atol=0)
