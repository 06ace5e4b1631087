"""@triton.autotune and @triton.heuristics where nothing is timed: which configuration runs and compiles, and hooks."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import AutotunerError, InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.cli import main
from helpers.instruments import compile_for, measure
from kernels.interpreter import runtime

interpreted = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are timed here")


def config(block, warps=4, **options):
    return triton.Config({"BLOCK": block}, num_warps=warps, **options)


@triton.jit
def scale_body(x_ptr, y_ptr, sum_ptr, n, LEAST: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.static_assert(BLOCK >= LEAST)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, 2 * x, mask=i < n)
    tl.atomic_add(sum_ptr, tl.sum(x))


even = triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
# Decorated at the top of a module, for `fusion inspect`.
scale_kernel = triton.autotune([config(16), config(32, 2), config(64)], key=["n"])(even(scale_body))


def tuned(configs=(), **options):
    configs = configs or (config(16), config(32, 2), config(64))
    return triton.autotune(list(configs), key=["n"], **options)(even(scale_body))


def launch(kernel, n=100, least=16, start=0.0):
    """Launch it; return (y, sum)."""
    x, y, total = torch.arange(1.0, n + 1), torch.full((n,), torch.nan), torch.full((1,), start)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, total, n, LEAST=least)
    assert torch.equal(y, 2 * x)
    return total.item() - start


@interpreted
def test_the_first_configuration_that_fits_runs_and_the_result_names_it():
    kernel = tuned()
    traffic = measure(launch, kernel)
    assert traffic.configurations == (
        ("scale_body", "BLOCK=16, num_warps=4, num_stages=3: the first of 3 configurations that fits"),
    )
    assert "\n  scale_body ran with BLOCK=16, num_warps=4, num_stages=3: the first of 3 " in str(traffic)
    assert kernel.best_config is kernel.configs[0]
    assert not kernel.cache  # a GPU would still time them
    assert traffic.result == 5050


@interpreted
def test_a_configuration_whose_static_assertion_fails_is_passed_over_and_leaves_no_launch():
    kernel = tuned()
    traffic = measure(launch, kernel, 128, 32)
    assert traffic.configurations[0][1].startswith("BLOCK=32, num_warps=2")
    assert [name for name, moved in traffic.by_launch if name == "scale_body"] == ["scale_body"]
    with pytest.raises(InterpreterError, match=r"scale_body, line \d+, `tl.static_assert.*`: static_assert fails"):
        launch(kernel, least=128)


@interpreted
def test_heuristics_see_the_configuration():
    @triton.autotune([config(32), config(64)], key=[])
    @triton.heuristics({"HALF": lambda given: given["BLOCK"] // 2})
    @triton.jit
    def halves_kernel(y_ptr, BLOCK: tl.constexpr, HALF: tl.constexpr):
        tl.store(y_ptr + tl.arange(0, HALF), BLOCK * 1000 + HALF)

    y = torch.zeros(16, dtype=torch.int32)
    halves_kernel[(1,)](y)
    assert y.tolist() == [32016] * 16


@interpreted
def test_pruning_is_asked_as_triton_asks_it():
    seen = []

    def largest(configs, named_args, **kwargs):
        seen.append((named_args["n"], kwargs["LEAST"]))
        return configs[-1:]

    kernel = tuned(prune_configs_by={"early_config_prune": largest})
    assert measure(launch, kernel).configurations[0][1].startswith("BLOCK=64")
    assert seen == [(100, 16)]
    ranked = tuned(prune_configs_by={"perf_model": lambda **given: -given["BLOCK"], "top_k": 1})
    assert measure(launch, ranked).configurations[0][1].startswith("BLOCK=64")

    def of_a_gpu(**_):
        return torch.cuda.get_device_properties(0)

    unranked = tuned(prune_configs_by={"perf_model": of_a_gpu, "top_k": 1})
    assert measure(launch, unranked).configurations[0][1].startswith("BLOCK=16")


@interpreted
@pytest.mark.parametrize(
    ("prune", "said"),
    [
        (lambda configs, *_, **__: [], "its early_config_prune left no configuration: relax it"),
        (lambda *_, **__: 1 / 0, r"its early_config_prune failed without a GPU \(division by zero\): launch"),
    ],
)
def test_pruning_that_leaves_none_or_fails_is_one_line(prune, said):
    with pytest.raises(AutotunerError, match=said) as raised:
        launch(tuned(prune_configs_by={"early_config_prune": prune}))
    assert "\n" not in str(raised.value)


@interpreted
def test_what_tuning_resets_is_reset_once_and_not_metered():
    kernel = tuned(reset_to_zero=["sum_ptr"])
    first, again = measure(launch, kernel, 100, 16, 7.0), measure(launch, kernel, 100, 16, 7.0)
    assert first.result == 5050 - 7
    assert again.result == 5050
    assert [name for name, _ in first.by_launch] == [name for name, _ in again.by_launch]
    assert measure(launch, kernel, 50, 16, 7.0).result == 1275 - 7  # another key is another tuning


@interpreted
def test_hooks_run_as_in_a_first_call():
    calls = []
    kernel = tuned(
        configs=(config(32, pre_hook=lambda given: calls.append(("config", given["BLOCK"], given["n"]))), config(64)),
        pre_hook=lambda given, reset_only=False: calls.append(("kernel", reset_only)),
        post_hook=lambda given, exception: calls.append(("after", exception)),
    )
    launch(kernel)
    launch(kernel)
    assert calls == [("kernel", True), ("config", 32, 100), ("config", 32, 100)]


@interpreted
def test_nothing_is_restored_for_nothing_was_tried():
    @triton.autotune([config(16), config(32)], key=[], restore_value=["x_ptr"])
    @triton.jit
    def more_kernel(x_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)

    x = torch.zeros(40)
    more_kernel[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, 40)
    assert x.tolist() == [1.0] * 40


@interpreted
def test_what_a_gpu_has_chosen_is_taken():
    kernel = tuned()
    kernel.cache[100, "torch.float32", "torch.float32", "torch.float32"] = kernel.configs[2]
    assert measure(launch, kernel).configurations[0][1].endswith("timed best of 3 configurations on this GPU")
    assert kernel.best_config is kernel.configs[2]
    assert measure(launch, kernel, 99).configurations[0][1].startswith("BLOCK=16")


@interpreted
def test_a_value_for_what_is_tuned_is_refused():
    with pytest.raises(ValueError, match=r"scale_body is autotuned and sets BLOCK itself: leave it out, or launch"):
        tuned()[(1,)](torch.ones(16), torch.ones(16), torch.ones(1), 16, LEAST=16, BLOCK=16)


@interpreted
def test_a_hook_that_sets_a_descriptors_block():
    def set_block(given):
        given["x_desc"].block_shape = [given["BLOCK"]]

    @triton.autotune([config(32, pre_hook=set_block), config(64, pre_hook=set_block)], key=[])
    @triton.jit
    def described_kernel(x_desc, y_ptr, BLOCK: tl.constexpr):
        tl.store(y_ptr + tl.arange(0, BLOCK), x_desc.load([0]))

    x, y = torch.randn(32), torch.full((32,), torch.nan)
    described_kernel[(1,)](TensorDescriptor.from_tensor(x, [1]), y)
    assert torch.equal(x, y)
    descriptor = TensorDescriptor.from_tensor(x, [1])
    resources = compile_for(described_kernel, descriptor, y)
    assert resources.configuration.startswith("BLOCK=32")
    assert descriptor.block_shape == [1]  # as it was given


ARGUMENTS = (torch.float32, torch.float32, torch.float32, 128)


def test_compile_for_takes_the_first_that_fits_and_lists_all():
    resources = compile_for(tuned(), *ARGUMENTS, LEAST=32)
    assert resources.configuration == "BLOCK=32, num_warps=2, num_stages=3"
    assert resources.num_warps == 2
    passed_over, *others = resources.configurations
    assert passed_over.startswith("BLOCK=16, num_warps=4, num_stages=3: scale_body does not compile for H100: ")
    assert passed_over.endswith("`tl.static_assert(BLOCK >= LEAST)`: it does not hold")
    assert others == ["BLOCK=32, num_warps=2, num_stages=3", "BLOCK=64, num_warps=4, num_stages=3"]
    assert "  configuration  BLOCK=32, num_warps=2, num_stages=3" in str(resources)
    assert compile_for(tuned(), *ARGUMENTS, LEAST=16, BLOCK=64).configuration.startswith("BLOCK=64")
    assert compile_for(tuned(), *ARGUMENTS, LEAST=16, num_warps=2).configuration.startswith("BLOCK=32")
    assert compile_for(even(scale_body), *ARGUMENTS, LEAST=16, BLOCK=128).configurations == ()


def test_compile_for_passes_over_what_needs_too_much_shared_memory():
    @triton.autotune([triton.Config({}, num_stages=8), triton.Config({}, num_stages=2)], key=[])
    @triton.jit
    def product_kernel(a_ptr, b_ptr, c_ptr, k):
        i, j = tl.arange(0, 128)[:, None], tl.arange(0, 128)[None, :]
        total = tl.zeros((128, 128), tl.float32)
        for start in range(0, k, 128):
            total = tl.dot(tl.load(a_ptr + i * k + start + j), tl.load(b_ptr + (start + i) * 128 + j), total)
        tl.store(c_ptr + i * 128 + j, total)

    resources = compile_for(product_kernel, torch.float16, torch.float16, torch.float32, 1024, device="A100")
    assert resources.configuration == "num_warps=4, num_stages=2"
    assert "B of shared memory and a block on A100 has at most" in resources.configurations[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"LEAST": 16, "BLOCK": 48}, "no configuration of scale_body has BLOCK=48: it has BLOCK=16, num_warps=4, num_"),
        ({"LEAST": 128}, "no configuration of scale_body fits H100; the last: BLOCK=64"),
    ],
)
def test_compile_for_says_that_none_fits_in_one_line(given, said):
    with pytest.raises(ValueError, match=said) as raised:
        compile_for(tuned(), *ARGUMENTS, **given)
    assert "\n" not in str(raised.value)


def test_a_heuristic_that_needs_a_tensor_says_so():
    kernel = triton.heuristics({"EVEN": lambda given: given["x_ptr"].numel() % 16 == 0})(scale_body)
    with pytest.raises(TypeError, match=r"^the heuristic of EVEN in scale_body fails .*: pass tensors, on device meta"):
        compile_for(kernel, *ARGUMENTS, LEAST=16, BLOCK=16)
    x = torch.empty(16, device="meta")
    assert compile_for(kernel, x, x, x, 16, LEAST=16, BLOCK=16).registers


def test_fusion_inspect_takes_and_lists_them(capsys, monkeypatch):
    monkeypatch.syspath_prepend("tests/kernels")
    assert main(["inspect", "test_configurations:scale_kernel", "*fp32", "*fp32", "*fp32", "128", "LEAST=32"]) == 0
    printed = capsys.readouterr().out
    assert "\n  configuration  BLOCK=32, num_warps=2, num_stages=3\n" in printed
    assert "\n  configurations 1: BLOCK=16, num_warps=4, num_stages=3: scale_body does not compile" in printed
    assert printed.endswith(" 3: BLOCK=64, num_warps=4, num_stages=3\n")
    assert main(["inspect", "test_configurations:other"]) != 0
    assert "choose from scale_body, scale_kernel" in capsys.readouterr().err
