"""Inductor's Triton for a GPU that is not there: the kernels compute what eager does, groups and launches are right."""

import pytest
import torch

from helpers.instruments import compile_for, flex_code, inductor_code, measure


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def norm(x, weight):
    return torch.relu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


def test_a_kernel_runs_in_the_meter_and_computes_what_eager_does():
    x, weight = torch.randn(5, 70), torch.randn(70)
    code = inductor_code(norm, x, weight)
    assert code.groups == (code.buffers,)
    assert code.calls == list(code.kernels)

    def run(x, weight):
        y = torch.empty_like(x)
        code.kernel()[(5,)](x, weight, y, 5, 70, XBLOCK=1)
        return y

    seen = measure(run, x, weight)
    torch.testing.assert_close(seen.result, norm(x.double(), weight.double()).float(), rtol=1e-5, atol=1e-5)
    assert (seen.launches, seen.bytes_written, seen.hazards) == (1, 5 * 70 * 4, ())


def test_wide_rows_are_read_twice_and_compile():
    wide = meta(8192, 4096)
    code = inductor_code(norm, wide, meta(4096))
    (source,) = code.kernels.values()
    assert source.count("tl.load(in_ptr0") == 2
    arguments = wide, meta(4096), wide, 8192, 4096
    assert compile_for(code.kernel(), *arguments, XBLOCK=1, R0_BLOCK=1024).spill_bytes == 0


@pytest.mark.parametrize(("on", "loops"), [(True, 2), (False, 3)])
def test_online_softmax_is_an_option(on, loops):
    code = inductor_code(lambda x: torch.softmax(x, -1), meta(8192, 32000), online_softmax=on)
    assert sum(source.count("tl.load(in_ptr0") for source in code.kernels.values()) == loops


def test_library_calls_are_named_and_a_template_takes_the_epilogue():
    halves = [meta(*size, dtype=torch.float16) for size in ((512, 512), (512, 512), (512,))]
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "test_configs.max_mm_configs": 1}

    def linear_relu(x, weight, bias):
        return torch.relu(torch.nn.functional.linear(x, weight, bias))

    assert inductor_code(linear_relu, *halves).calls[0] == "extern_kernels.addmm"
    assert len(inductor_code(linear_relu, *halves, **options).calls) == 1


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def test_attention_in_plain_operators_becomes_the_librarys_as_on_a_gpu():
    """Inductor's patterns match it; eager's own attention is that of a GPU too, not the products of a CPU."""
    q = meta(2, 8, 512, 64)
    library = "torch.ops.aten._scaled_dot_product_flash_attention.default"
    assert inductor_code(attention, q, q, q).calls == [library]
    assert inductor_code(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), q).calls == [library]


def test_which_kernel_must_be_named_where_there_are_several():
    code = inductor_code(lambda a, b: (a.relu(), b.tanh()), meta(64, 4096), meta(32, 1024))
    with pytest.raises(ValueError, match="name one"):
        code.kernel()


def test_the_gpu_is_unknown_in_one_line():
    with pytest.raises(ValueError, match="unknown device"):
        inductor_code(torch.relu, meta(8), device="H900")


def test_combo_kernels_put_loops_without_a_shared_input_into_one_launch():
    three = [meta(64, 4096) for _ in range(3)]

    def loops(a, b, c):
        return a.relu(), b.sigmoid(), c.tanh()

    assert len(inductor_code(loops, *three).calls) == 3
    together = inductor_code(loops, *three, combo_kernels=True, combo_kernel_peak_memory_pct_threshold=None)
    assert len(together.calls) == 1
    (source,) = together.kernels.values()
    assert source.count("tl.store") == 3
    assert "pid % 3" in source


def test_a_score_mod_is_inlined_between_the_two_matmuls():
    sizes = {"batch": 1, "heads": 2, "tokens": 256, "head_dim": 64}
    made = [
        flex_code(lambda score, b, h, q, k: 20 * torch.tanh(score / 20), **sizes),
        flex_code(lambda score, b, h, q, k: score, **sizes),
    ]
    capped, plain = (next(iter(code.kernels.values())) for code in made)
    assert [len(code.calls) for code in made] == [1, 1]
    assert "tanh" not in plain
    before, after = capped.split("libdevice.tanh", 1)
    assert "qk = tl.dot(" in before
    assert "tl.dot(" in after


def test_convolutions_are_laid_out_as_for_inference():
    """Training leaves a model in NCHW if a convolution halves its channels; inference copies to channels-last."""
    x, weight = torch.empty(2, 128, 16, 16), torch.empty(64, 128, 3, 3)
    code = inductor_code(lambda x, w: torch.conv2d(x, w, padding=1), x, weight)
    assert len(code.kernels) == 3  # copies of both operands, and of the result to NCHW, as eager returns it


def test_groups_and_bytes_are_the_same_without_source():
    inputs = meta(64, 4096), meta(4096)
    whole, fused = inductor_code(norm, *inputs), inductor_code(norm, *inputs, source=False)
    assert (fused.groups, fused.traffic) == (whole.groups, whole.traffic)
    assert fused.traffic != ()
    assert (fused.kernels, fused.calls) == ({}, [])
