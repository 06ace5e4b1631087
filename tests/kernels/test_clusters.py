"""Rows shared by a cluster: what its programs compute, whose rows they are, and on a GPU the widest of them."""

import pytest
import torch
import triton
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.rowwise import clusters, rms_norm_clusters, softmax_clusters
from kernels.rowwise.residual_rms_norm import residual_rms_norm_reference
from kernels.rowwise.rms_norm import rms_norm_reference
from kernels.rowwise.softmax import softmax_reference

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
        monkeypatch.setattr(clusters, "meet", nobody_waits)
        monkeypatch.setattr(softmax_clusters, "meet", nobody_waits)
    for module in (softmax_clusters, rms_norm_clusters):
        monkeypatch.setattr(
            module,
            "launch_of",
            lambda cols, sums=False: {"SHAPE": clusters.shape_of(cols, 4), "num_ctas": 4, "num_warps": 4},
        )


def rows(cols: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Seven rows of a wider tensor, each part of which differs from the others."""
    scale = 1 + torch.arange(cols, device=device) // (cols // 4)
    return (torch.randn(7, cols + 8, device=device)[:, 8:] * scale).to(dtype)


@ROWS
def test_softmax_of_a_shared_row(four, device, cols, dtype):
    x = rows(cols, dtype, device)
    x[0] = -torch.inf
    x[1, : cols // 2] = -torch.inf
    x[2, cols // 2 :] = -torch.inf
    x[3, cols // 2] = torch.nan
    x[4, -1] = torch.inf
    x[5] *= 100
    y = torch.full_like(x, 7)
    softmax_clusters.forward(x, y)
    assert y[[0, 3, 4]].isnan().all()
    assert_as_accurate(y, softmax_reference(x), softmax_reference(x.double()))


@ROWS
def test_gradients_of_softmax_of_a_shared_row(four, device, cols, dtype):
    y, grad_y = softmax_reference(rows(cols, dtype, device)), rows(cols, dtype, device)
    grad_x = torch.full_like(y, 7)
    softmax_clusters.backward(grad_y, y, grad_x)
    native, exact = (
        torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype)
        for g, p in ((grad_y, y), (grad_y.double(), y.double()))
    )
    assert_as_accurate(grad_x, native, exact)


@ROWS
def test_rms_norm_of_a_shared_row(four, device, cols, dtype):
    x, residual, weight = (
        rows(cols, dtype, device),
        rows(cols, dtype, device),
        rows(cols, dtype, device)[0].contiguous(),
    )
    y, total, rstd = torch.full_like(x, 7), torch.full_like(x, 7), torch.empty(7, device=device)
    rms_norm_clusters.forward(x, None, weight, y, None, rstd, 1e-6)
    assert_as_accurate(y, rms_norm_reference(x, weight), rms_norm_reference(x.double(), weight.double()))
    torch.testing.assert_close(rstd, x.double().square().mean(1).rsqrt().float())
    rms_norm_clusters.forward(x, residual, weight, y, total, None, 1e-6)
    native = residual_rms_norm_reference(x, residual, weight)
    assert_as_accurate((y, total), native, residual_rms_norm_reference(x.double(), residual.double(), weight.double()))


@pytest.mark.parametrize(
    ("capability", "itemsize", "shape", "tensors", "shared"),
    [
        ((9, 0), 2, (2048, 131072), 2, True),
        ((10, 0), 2, (16, 50304), 1, True),
        ((9, 0), 2, (2048, 131072), 1, False),
        ((9, 0), 2, (2048, 152064), 2, True),
        ((9, 0), 2, (2048, 100000), 2, False),
        ((9, 0), 2, (2048, 65536), 2, False),
        ((9, 0), 2, (16, 2**20), 2, False),
        ((9, 0), 2, (16, 32768), 1, False),
        ((9, 0), 4, (16, 131072), 2, False),
        ((8, 0), 2, (16, 131072), 2, False),
        ((12, 0), 2, (16, 131072), 2, False),
    ],
)
def test_whose_rows_are_shared(capability, itemsize, shape, tensors, shared):
    assert clusters._take(capability, itemsize, *shape, tensors) == shared


def launch(name: str, cols: int) -> tuple:
    x, parts = torch.empty(9, cols, dtype=torch.bfloat16, device="meta"), torch.empty(9, device="meta")
    rest = parts, cols // 2, cols, cols, 1e-6
    return {
        "softmax": (softmax_clusters.softmax_cluster_kernel, x, x, parts, cols // 2, cols),
        "backward": (softmax_clusters.softmax_backward_cluster_kernel, x, x, x, parts, cols // 2, cols),
        "rms_norm": (rms_norm_clusters.rms_norm_cluster_kernel, x, None, x[0], x, None, None, *rest),
        "residual_rms_norm": (rms_norm_clusters.rms_norm_cluster_kernel, x, x, x[0], x, x, None, *rest),
    }[name]


@pytest.mark.parametrize(
    ("name", "cols"),
    [("residual_rms_norm", 131072)]
    + [
        pytest.param(name, cols, marks=pytest.mark.long)
        for name in ("softmax", "backward", "rms_norm", "residual_rms_norm")
        for cols in (152064, 262144)
    ],
)
def test_a_part_waits_in_registers_and_meets_the_others_once(name, cols):
    chosen = clusters.launch_of(cols, sums=name == "residual_rms_norm")
    compiled = compile_for(*launch(name, cols), device="H100", **chosen)
    # Triton 3.7 has no register for a few of the sums where a thread has 40 of them; 3.6 has.
    assert compiled.spill_bytes < (100 if (name, cols) == ("residual_rms_norm", 152064) else 1)
    assert compiled.registers <= 64
    assert {"LDG.128", "STG.128"} <= compiled.instructions.keys()
    assert (compiled.instructions["UCGABAR_ARV"], compiled.instructions["UCGABAR_WAIT"]) == (1, 1)


@gpu_only
@pytest.mark.parametrize(("rows", "cols"), [(300, 131072), (300, 152064), (300, 262144), (1, 50304), (16, 128256)])
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "residual_rms_norm"])
def test_the_widest_rows_on_a_gpu_alike_each_time(name, rows, cols):
    op = CATALOGUE[name]
    inputs = op.inputs(rows, cols, dtype=torch.bfloat16, device="cuda")
    first = op.fused(*inputs)
    assert_as_accurate(first, op.reference(*inputs), op.reference(*(x.double() for x in inputs)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = [op.fused(*inputs) for _ in range(3)]
    graph.replay()
    for each in again:
        torch.testing.assert_close(each, first, rtol=0, atol=0)
