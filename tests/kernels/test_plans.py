"""A call of a kind made before does what the same call would do as it is written, and no other."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import CATALOGUE, launching, plans, runtime

if runtime.has_gpu():
    pytest.skip("needs a machine without a GPU, whose launches can be kept", allow_module_level=True)

SCALE = tl.constexpr(2.0)
DEVICES = itertools.count(1000)
SHAPES = {"conv_bn_act": (2, 64, 14, 14, 64, 3), "flash_attention": (2, 4, 256, 64, True), "linear_act": (40, 64, 128)}
SHAPES |= {"moe_int8": CATALOGUE["moe_int8"].interpreter_shapes[-1], "ffn": (256, 64, 128, True)}
SHAPES |= {"attention_scores": CATALOGUE["attention_scores"].interpreter_shapes[-1]}


@triton.jit
def some_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor * SCALE, mask=at < n)


def plain(x):
    """A launch's argument by value: tensors as addresses, descriptors as tuples."""
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    if isinstance(x, TensorDescriptor):
        return x.base.data_ptr(), tuple(x.shape), tuple(x.strides), tuple(x.block_shape), x.padding
    return tuple(map(plain, x)) if isinstance(x, tuple) else x


class Gpu:
    """A driver for a GPU that is not there, with a Triton that compiles nothing; `made` is what it was told to launch,
    `asked` how often launches went through Triton's own Python."""

    def __init__(self):
        self.made, self.asked, self.scratch = [], 0, 0
        self.device = next(DEVICES)  # what is kept for it no other test finds

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return device

    def compiled(self, name):
        def launch(x, y, z, stream, function, metadata, scratch, enter, leave, *arguments):
            self.made.append((function, (x, y, z), stream, *map(plain, arguments)))

        metadata = SimpleNamespace(global_scratch_size=self.scratch)
        return SimpleNamespace(run=launch, function=name, packed_metadata=(), metadata=metadata)

    def run(self, kernel, *args, grid, warmup, **options):
        self.asked += 1
        compiled = self.compiled(kernel.fn.__name__)
        found = launching._remember(kernel, compiled, args, options)
        compiled.run(*(*grid, 1, 1)[:3], self.device, compiled.function, (), None, None, None, *args, *found.constants)
        return compiled


@pytest.fixture
def gpu(monkeypatch):
    found, before = Gpu(), driver._active
    driver.set_active(found)
    monkeypatch.setattr(JITFunction, "run", launching.run)
    monkeypatch.setattr(launching, "triton_run", found.run)
    yield found
    driver.set_active(before)


def renamed(launches: list, inputs: tuple, results) -> tuple:
    """Launches and results, addresses that are no input's numbered in the order in which they appear."""
    names = {x.data_ptr(): f"input {i}" for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    fresh = itertools.count()

    def name(value):
        if isinstance(value, tuple):
            return tuple(map(name, value))
        if isinstance(value, int) and not isinstance(value, bool) and value > 2**24:
            return names.setdefault(value, f"allocated {next(fresh)}")
        return value

    results = results if isinstance(results, tuple) else (results,)
    of_results = [x if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype, x.storage_offset()) for x in results]
    return [name(each) for each in launches], [each if each is None else name(tuple(each)) for each in of_results]


def fresh_inputs(name: str, grad: bool) -> list:
    op = CATALOGUE[name]
    shape = SHAPES.get(name, (100, 1000) if op.group == "rowwise" or "dropout" in name else (100000,))
    inputs = op.inputs(*shape, dtype=torch.bfloat16, device="cpu")
    return [x.requires_grad_(grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_operation_is_planned_and_launched_as_it_is_written(gpu, name):
    with torch.no_grad():
        for turn in range(5):
            inputs = fresh_inputs(name, grad=False)
            gpu.made.clear()
            if turn == 4:  # nothing of it is kept for another device
                gpu.device, asked = next(DEVICES), gpu.asked
            results = CATALOGUE[name].fused(*inputs)
            seen = renamed([(function, grid, *rest) for function, grid, _, *rest in gpu.made], inputs, results)
            expected = seen if turn == 0 else expected
            assert seen == expected
            assert {stream for _, _, stream, *_ in gpu.made} == {gpu.device}
        assert gpu.asked == 2 * asked
    assert any(type(each) is plans.Plan for each in kept_of(CATALOGUE[name].fused).values())


@pytest.mark.parametrize("name", sorted(name for name, op in CATALOGUE.items() if op.backward_work is not None))
def test_gradients_are_launched_as_they_are_written(gpu, name):
    for turn in range(4):
        inputs = fresh_inputs(name, grad=True)
        gpu.made.clear()
        results = CATALOGUE[name].fused(*inputs)
        first = results[0] if isinstance(results, tuple) else results
        leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        incoming = torch.ones_like(first)
        gradients = torch.autograd.grad(first, leaves, incoming, allow_unused=True)
        assert [x is None or x.isfinite().numel() == y.numel() for x, y in zip(gradients, leaves, strict=True)]
        functions = [(function, grid, len(rest)) for function, grid, _, *rest in gpu.made]
        expected = functions if turn == 0 else expected
        assert functions == expected


def kept_of(function) -> dict:
    """kind -> plan of a planned function."""
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))["plans"].cell_contents
