"""The sweep's points for tiled kernels: their shapes, and that all providers of a point compute the same."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks.peers.attention import by_backend, decoding, flex
from benchmarks.sweep import tiled
from benchmarks.sweep.points import Point
from kernels.tiled.flash_attention import flash_attention_reference

GRADIENTS = {"linear_act", "flash_attention"}


def point(kernel, shape, direction="forward"):
    return Point(kernel=kernel, direction=direction, shape=shape, dtype="bf16", regime="odd")


def test_points_are_told_apart_and_cover_what_the_sweep_is_for():
    points = tiled.POINTS
    assert len(set(points)) == len(points)
    forward = [each for each in points if each.direction == "forward"]
    linear, convolutions, attention = (
        [each.shape for each in forward if each.kernel == name]
        for name in ("linear_act", "conv_bn_act", "flash_attention")
    )
    assert len(linear) >= 30
    assert len(convolutions) >= 30
    assert {1, 2, 4, 8, 16, 17, 32, 64, 127} <= {shape[0] for shape in linear}
    assert {shape[5:] for shape in convolutions} >= {(1, 1), (3, 1), (3, 2)}
    assert {shape[3] for shape in attention} >= {128, 32768}
    assert {shape[5] for shape in attention} >= {32, 64, 128, 256}
    assert any(shape[1] > shape[2] for shape in attention)
    assert any(shape[3] < shape[4] for shape in attention)
    assert {each.kernel for each in points if each.direction == "backward"} == GRADIENTS


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 5), (5, 3), (4, 4), (4, 3)])
def test_pairs_are_counted_as_the_last_query_sees_every_key(queries, keys):
    seen = torch.ones(queries, keys).tril(keys - queries)
    assert tiled._seen_pairs(queries, keys, True) == seen.sum()
    assert tiled._seen_pairs(queries, keys, False) == queries * keys


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_work_is_the_kernels_own_where_it_counts_the_same_shape(direction):
    of = tiled.flash_attention.OP
    counted = (of.work if direction == "forward" else of.backward_work)((2, 4, 300, 64, True), torch.bfloat16)
    assert tiled.work(point("flash_attention", (2, 4, 4, 300, 300, 64, True), direction)) == counted
    conv = tiled.conv_bn_act.OP.work((2, 8, 9, 9, 16, 3), torch.bfloat16)
    assert tiled.work(point("conv_bn_act", (2, 8, 9, 9, 16, 3, 1))) == conv


def test_a_strided_convolution_reads_only_the_pixels_that_it_sees():
    seen = tiled.work(point("conv_bn_act", (1, 16, 8, 8, 16, 1, 2)))
    assert seen.bytes_read == 2 * (16 * 4 * 4 + 16 * (16 + 4))
    assert seen.bytes_written == 2 * 16 * 4 * 4


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        ("linear_act", (3, 16, 24)),
        ("conv_bn_act", (1, 3, 6, 6, 5, 3, 2)),
        ("flash_attention", (1, 4, 2, 5, 9, 16, False)),
    ],
)
def test_ours_and_eager_are_ready_to_time_and_agree(kernel, shape):
    functions, _ = tiled.build(point(kernel, shape), "cpu")
    torch.testing.assert_close(functions["fused"](), functions["eager"](), rtol=0.02, atol=0.02)


def test_a_backward_pass_can_be_run_again_and_again():
    functions, _ = tiled.build(point("flash_attention", (1, 2, 1, 4, 4, 16, True), "backward"), "cpu")
    first, second = functions["fused"](), functions["fused"]()
    assert len(first) == 3
    assert all(map(torch.equal, first, second))


def test_a_peer_that_refuses_says_so_when_it_is_called(monkeypatch):
    def refuses(*_):
        raise RuntimeError("no such backend")

    monkeypatch.setitem(
        tiled.PROVIDERS,
        "flash_attention",
        lambda shape, inputs: {"fused": tiled.flash_attention.flash_attention, "eager": refuses},
    )
    functions, _ = tiled.build(point("flash_attention", (1, 1, 1, 4, 4, 16, False), "backward"), "cpu")
    assert len(functions["fused"]()) == 3
    with pytest.raises(RuntimeError, match="no such backend"):
        functions["eager"]()


@pytest.mark.parametrize("kernel", ["linear_act", "conv_bn_act", "flash_attention"])
def test_every_point_has_a_size_for_the_interpreter(kernel):
    tiny = {tiled.tiny(each) for each in tiled.POINTS if each.kernel == kernel}
    assert all(tiled.work(each).flops < 1e6 for each in tiny)
    functions, _ = tiled.build(max(tiny, key=str), "cpu")
    assert functions["fused"]().isfinite().all()


def test_attentions_peers_see_what_ours_sees(monkeypatch):
    """Grouped heads; causal, Flex's mask is bottom right, as ours. Not compiled here."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    q, (k, v) = torch.randn(2, 4, 3, 32), torch.randn(2, 2, 2, 40, 32)
    every, causal = (flash_attention_reference(*(x.double() for x in (q, k, v)), causal) for causal in (False, True))
    found = {
        "Flex": (flex(q, k, causal=False)(q, k, v), every),
        "Flex, causal": (flex(q, k, causal=True)(q, k, v), causal),
        "Flex, decoding": (decoding(q, k, v)["Flex"](q), causal),
        "by a backend": (by_backend(SDPBackend.MATH)(q, k, v), every),
    }
    for name, (got, wanted) in found.items():
        torch.testing.assert_close(
            got.double(), wanted, msg=lambda text, name=name: f"{name}: {text}", rtol=0, atol=2e-6
        )
    assert not torch.allclose(every, causal, rtol=0, atol=1e-3)
