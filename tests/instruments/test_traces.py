"""A timeline's gaps and busy time against a count of every microsecond; the rule on rows made by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.instruments import read_trace

PRODUCT, BYTES = "nvjet_sm90_tst_64x64_64x13_4x2_h_bz_bias_TNT", "void at::native::vectorized_elementwise_kernel<4>"


def trace(*rows):
    """(name, start, duration) in microseconds, each launched 5 us before."""
    events = [{"ph": "M", "name": "process_name", "pid": 0}]
    for number, (name, start, duration) in enumerate(rows):
        same = {"ph": "X", "args": {"correlation": number}}
        events.append(same | {"cat": "kernel", "name": name, "ts": start, "dur": duration})
        events.append(same | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 5, "dur": 2})
    return {"traceEvents": events}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=8))
def test_busy_is_every_microsecond_in_which_something_runs(spans):
    timeline = read_trace(trace(*(("k", start, duration) for start, duration in spans)))
    running = {us for start, duration in spans for us in range(start, start + duration)}
    wall = max(running) + 1 - min(running)
    assert timeline.wall == pytest.approx(wall * 1e-6)
    assert timeline.busy == pytest.approx(len(running) / wall)
    assert sum(timeline.gaps) == pytest.approx((wall - len(running)) * 1e-6)


def signs(*kinds, gap=0.0):
    rows, at = [], 0.0
    for kind in kinds:
        rows.append(({"p": PRODUCT, "b": BYTES}[kind], at, 10))
        at += 10 + gap
    return [(each.first, each.last, each.sign) for each in read_trace(trace(*rows)).opportunities()]


def test_the_rule():
    assert signs(*"pbp") == [(0, 1, "matmul, then bytes")]
    assert signs(*"bbp") == [(0, 1, "bytes, bytes")]
    assert signs(*"pbbbp") == [(1, 3, "bytes, bytes")]
    assert signs(*"ppp") == signs("b") == []
    assert signs(*"pp", gap=11) == [(0, 1, "gaps longer than kernels")]
    assert signs(*"pp", gap=9) == []


def test_a_kernel_has_its_launch_and_a_name_to_read():
    names = {
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std": "add",
        "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIter)": "Gelu",
        "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float>": "softmax_warp_forward",
        "triton_per_fused_native_layer_norm_0": "triton_per_fused_native_layer_norm_0",
        "Memcpy DtoD (Device -> Device)": "Memcpy DtoD",
    }
    timeline = read_trace(trace(*((name, 10 * i, 5) for i, name in enumerate(names, 1))))
    assert [each.short_name for each in timeline.kernels][:2] == ["add", "Gelu"]
    assert timeline.kernels[-1].short_name == "Memcpy DtoD"
    assert all(each.start - each.launched == pytest.approx(5e-6) for each in timeline.kernels)
    assert timeline.search("bfloat16") == (0, 2)


def test_a_file_of_the_profilers(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace((BYTES, 5, 1))))
    assert len(read_trace(file).kernels) == 1
    for wrong, why in (({"traceEvents": []}, "no kernel"), ({}, "traceEvents")):
        with pytest.raises(ValueError, match=why):
            read_trace(wrong)
    file.write_text("<html>")
    with pytest.raises(ValueError, match="not a Chrome trace"):
        read_trace(file)
