"""Which kernel a call takes, and that importing the course on a GPU leaves Triton and PyTorch as they are."""

import subprocess
import sys

import pytest
import torch

import kernels
from helpers.instruments.resources import compile_for
from kernels import CATALOGUE, variants
from kernels.interpreter import runtime

UNTOUCHED = """
import torch
torch.cuda.is_available = lambda: True
import triton
import warnings
from torch._decomp import decomposition_table
import torch._dynamo, torch._inductor  # what PyTorch itself registers when these are first imported
from torch.utils import _pytree, flop_counter
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import cache, interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

def state():
    return {
        "JITFunction.run": JITFunction.run,
        "JITFunction.__call__": JITFunction.__call__,
        "Autotuner.run": Autotuner.run,
        "CUDABackend.make_ttgir": CUDABackend.make_ttgir,
        "triton_key": cache.triton_key,
        "interpreter": {name: value for name, value in vars(interpreter).items() if not name.startswith("__")},
        "builder": (type(interpreter.interpreter_builder), dict(interpreter.interpreter_builder.codegen_fns)),
        "tensor": dict(vars(triton.language.tensor)),
        "Function.apply": torch.autograd.Function.apply,
        "library": {name for name in vars(torch.library) if not name.startswith("__")},
        "operators": {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("aten:", "prim"))},
        "aten in CUDA": torch._C._dispatch_dump("aten::add.Tensor") + torch._C._dispatch_dump("aten::rms_norm"),
        "FLOP formulas": dict(flop_counter.flop_registry),
        "trees": set(_pytree.SUPPORTED_NODES),
        "decompositions": dict(decomposition_table),
        "warnings": list(warnings.filters),
    }

before = state()
import kernels, kernels.tuned, helpers.instruments, helpers.figures, helpers.learning
import helpers.instruments.fusion.analyser, helpers.instruments.fusion.gpu_ways
from helpers.instruments import compile_for, measure, predict
from helpers.learning import check_values
kernels.CATALOGUE
after = state()
print([name for name in before if before[name] != after[name]])
"""


@pytest.fixture
def registered(monkeypatch):
    """A registry of tuned kernels of this test's own."""
    found = {}
    monkeypatch.setattr(variants, "TUNED", found)
    monkeypatch.setattr(variants, "tuned_kernels", lambda: found)
    return found


def test_importing_the_course_on_a_gpu_changes_nothing_in_triton_or_pytorch():
    ran = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


def test_observing_launches_restores_triton():
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    before = JITFunction.run, interpreter.ReduceOps, type(interpreter.interpreter_builder)
    with runtime.observed(object()):
        assert runtime.interprets()
    assert (JITFunction.run, interpreter.ReduceOps, type(interpreter.interpreter_builder)) == before


def test_compiling_restores_the_compiler():
    from triton.backends.nvidia.compiler import CUDABackend

    before = vars(CUDABackend)["make_ttgir"]
    arguments, options = CATALOGUE["softmax"].compile_arguments(4, 64, dtype=torch.bfloat16)
    compile_for(CATALOGUE["softmax"].kernel, *arguments, device="H100", **options)
    assert vars(CUDABackend)["make_ttgir"] is before


def test_a_call_goes_to_the_first_tuned_kernel_that_takes_it(registered):
    calls = []

    def tune(name, takes):
        variants.tuned("double", "forward", takes=takes, gain="none: a test")(lambda x: calls.append(name) or x)

    tune("even", lambda x: x % 2 == 0)
    tune("fours", lambda x: x % 4 == 0)
    tune("small", lambda x: x < 10)
    call = variants.by_variant("double", "forward", lambda x: calls.append("plain") or x)
    for name, expected in (("plain", ["plain"] * 3), ("tuned", ["even", "small", "plain"])):
        calls.clear()
        with kernels.variant(name):
            for x in (4, 3, 11):
                assert call(x) == x
        assert calls == expected


def test_interpreted_calls_are_plain_and_compiled_ones_tuned(registered, monkeypatch):
    variants.tuned("double", "forward", takes=lambda x: True, gain="none: a test")(lambda x: "tuned")
    call = variants.by_variant("double", "forward", lambda x: "plain")
    monkeypatch.setattr(variants, "_variant", None)  # whatever --tier chose
    for interpreted, expected in ((True, "plain"), (False, "tuned")):
        monkeypatch.setattr(runtime, "interprets", lambda interpreted=interpreted: interpreted)
        assert call(1) == expected


def test_the_variant_is_restored_after_an_error_and_nests(registered):
    before = variants.chosen_variant()
    with kernels.variant("tuned"):
        with pytest.raises(KeyError), kernels.variant("plain"):
            raise KeyError(variants.chosen_variant())
        assert variants.chosen_variant() == "tuned"
    assert variants.chosen_variant() == before


def test_another_variant_is_refused_in_one_line():
    message = r"kernels\.variant takes 'plain' or 'tuned', got 'fast': choose one"
    with pytest.raises(ValueError, match=message), kernels.variant("fast"):
        pass
    with pytest.raises(ValueError, match="tuned takes one of the stages forward, training, backward, got 'sideways'"):
        variants.tuned("softmax", "sideways", takes=lambda: True, gain="")


def test_a_backward_pass_takes_the_variant_that_holds_when_it_runs(registered):
    calls = []
    variants.tuned("softmax", "backward", takes=lambda grad_y, y: True, gain="none: a test")(
        lambda grad_y, y: calls.append("tuned") or torch.zeros_like(y)
    )
    x = torch.randn(3, 5, requires_grad=True)
    if runtime.has_gpu():
        pytest.skip("kernels are compiled here")
    y = kernels.softmax(x)
    with kernels.variant("tuned"):
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert calls == ["tuned"]
    assert not grad.any()


def test_tuned_kernels_are_of_the_catalogue_and_say_what_they_gain():
    for (operation, stage), entries in variants.tuned_kernels().items():
        assert operation in CATALOGUE
        for entry in entries:
            assert (entry.operation, entry.stage) == (operation, stage)
            assert any(character.isdigit() for character in entry.gain), f"{operation} {stage}: {entry.gain!r}"
