"""A call of a kind made before does what the same call would do as it is written, and no other."""

import itertools
import math
import sys
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

from kernels import CATALOGUE, launch_cache, variant
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
SCALE = tl.constexpr(2.0)
ASKS_PYTORCH = {"ffn", "flash_attention"}  # in the backward pass
DEVICES = itertools.count(1000)
SHAPES = {"conv_bn_act": (2, 64, 14, 14, 64, 3), "flash_attention": (2, 4, 256, 64, True), "linear_act": (40, 64, 128)}
SHAPES |= {"moe_int8": CATALOGUE["moe_int8"].interpreter_shapes[-1], "ffn": (256, 64, 128, True)}
SHAPES |= {"attention_scores": (1, 2, 64, 32, True), "paged_attention": (2, 4, 1, 2, 4096, 64)}
# An operator zeroes decoder_layer's counters before each launch, and rope_cache writes into its arguments.
NOT_PLANNED = {"decoder_layer", "rope_cache"}
SHAPES |= {"decoder_layer": (1024, 16, 8, 3072, 512), "rope_cache": (64, 32, 8, 128)}


@triton.jit
def some_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor * SCALE, mask=at < n)


@triton.jit
def learners_kernel(x_ptr):
    tl.store(x_ptr, 0.0)


def by_value(x):
    """A launch's argument by value: tensors as addresses, descriptors as tuples."""
    if isinstance(x, torch.Tensor):
        return x.data_ptr()
    if isinstance(x, TensorDescriptor):
        return x.base.data_ptr(), tuple(x.shape), tuple(x.strides), tuple(x.block_shape), x.padding
    return tuple(map(by_value, x)) if isinstance(x, tuple) else x


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
            self.made.append((function, (x, y, z), stream, *map(by_value, arguments)))

        metadata = SimpleNamespace(global_scratch_size=self.scratch)
        return SimpleNamespace(run=launch, function=name, packed_metadata=(), metadata=metadata)

    def run(self, kernel, *args, grid, warmup, **options):
        self.asked += 1
        compiled = self.compiled(kernel.fn.__name__)
        given = *args, *(options.get(each.name, each.default) for each in kernel.params[len(args) :])
        compiled.run(*(*grid, 1, 1)[:3], self.device, compiled.function, (), None, None, None, *given)
        return compiled


@pytest.fixture(params=["plain", "tuned"])
def gpu(request, monkeypatch):
    """A GPU that is not there, for calls of either variant; some_kernel counts as one of the course's."""
    if runtime.has_gpu():
        pytest.skip("there is a GPU")
    found, before = Gpu(), driver._active
    driver.set_active(found)
    run = lambda kernel, *args, **options: found.run(kernel, *args, **options)  # noqa: E731
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(launch_cache, "_triton_run", run)
    monkeypatch.setattr(launch_cache, "runtime", SimpleNamespace(interprets=lambda: False))
    monkeypatch.setitem(sys.modules, "kernels.of_this_test", SimpleNamespace(some_kernel=some_kernel))
    with variant(request.param):
        yield found
    driver.set_active(before)


def renamed(launches: list, inputs: tuple, results=(), numbered: bool = True) -> tuple:
    """Launches and results, addresses that are no input's numbered in the order in which they appear, or all alike."""
    names = {x.data_ptr(): f"input {i}" for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    fresh = itertools.count()

    def name(value):
        if isinstance(value, tuple):
            return tuple(map(name, value))
        if isinstance(value, int) and not isinstance(value, bool) and value > 2**24:
            return names.setdefault(value, f"allocated {next(fresh)}" if numbered else "allocated")
        return value

    results = results if isinstance(results, tuple) else (results,)
    of_results = [x if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype, x.storage_offset()) for x in results]
    return [name(each) for each in launches], [each if each is None else name(tuple(each)) for each in of_results]


def fresh_inputs(name: str, grad: bool, device: str = "cpu") -> list:
    op = CATALOGUE[name]
    shape = SHAPES.get(name, (100, 1000) if op.group == "rowwise" or "dropout" in name else (100000,))
    inputs = op.inputs(*shape, dtype=torch.bfloat16, device=device)
    return [x.requires_grad_(grad) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_operation_is_planned_and_launched_as_it_is_written(gpu, name):
    expected = None
    with torch.no_grad():
        for turn in range(5):
            inputs = fresh_inputs(name, grad=False)
            gpu.made.clear()
            if turn == 4:  # nothing of it is kept for another device
                gpu.device, asked = next(DEVICES), gpu.asked
            results = CATALOGUE[name].fused(*inputs)
            seen = renamed([(function, grid, *rest) for function, grid, _, *rest in gpu.made], inputs, results)
            expected = expected or seen
            assert seen == expected
            assert {stream for _, _, stream, *_ in gpu.made} == {gpu.device}
        if name in NOT_PLANNED:
            return
        assert 2 * gpu.asked == 3 * asked  # the first two calls, and one on the other device
    assert any(type(each) is launch_cache.Plan for each in kept_of(CATALOGUE[name].fused).values())


@pytest.mark.parametrize("name", sorted(name for name, op in CATALOGUE.items() if op.backward_work is not None))
def test_gradients_are_launched_as_they_are_written(gpu, name):
    expected = None
    for turn in range(5):
        inputs = fresh_inputs(name, grad=True)
        gpu.made.clear()
        before = gpu.asked
        if turn == 4:  # nothing of it is kept for another device
            gpu.device = next(DEVICES)
        results = CATALOGUE[name].fused(*inputs)
        first = results[0] if isinstance(results, tuple) else results
        assert first.requires_grad
        leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        incoming = torch.ones_like(first)
        gradients = torch.autograd.grad(first, leaves, incoming, allow_unused=True)
        launches = [(function, grid, *rest) for function, grid, _, *rest in gpu.made]
        seen = renamed(launches, (*inputs, incoming), numbered=False)  # freed memory may be another's meanwhile
        expected = expected or seen
        assert seen == expected
        assert [x is None or x.shape == y.shape for x, y in zip(gradients, leaves, strict=True)]
        if turn == 3:  # forward and backward are planned; the public function is not, since autograd records in it
            assert (gpu.asked > before) == (name in ASKS_PYTORCH)
        if turn == 4:
            assert gpu.asked > before


def kept_of(function) -> dict:
    """kind -> plan of a planned function."""
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))["plans"].cell_contents


def doubled(x, weight, factor=2.0, **more):
    """What a planned function may do: allocate, view, launch."""
    y = torch.empty_like(x)
    work = torch.empty(x.numel() + 16)
    some_kernel[(2,)](x[None], work, x.numel(), factor, BLOCK=16)
    some_kernel[(2,)](work, y, weight.numel(), factor, BLOCK=16)
    return y.t(), None, y


def tensors(*shape: int) -> tuple:
    return torch.zeros(shape), torch.zeros(32)


def test_results_are_views_of_what_was_allocated(gpu):
    call = launch_cache.planned(doubled)
    for _ in range(3):
        transposed, nothing, y = call(*tensors(3, 5))
        assert nothing is None
        assert (transposed.data_ptr(), transposed.shape, transposed.stride()) == (y.data_ptr(), (5, 3), (1, 5))
    assert gpu.asked == 2 * 2


@pytest.mark.parametrize(
    "other",
    [
        lambda x, weight: ((x.double(), weight), {}),
        lambda x, weight: ((torch.zeros(5, 4), weight), {}),
        lambda x, weight: ((torch.zeros(5, 4).t(), weight), {}),
        lambda x, weight: ((torch.zeros(21)[1:].view(4, 5), weight), {}),
        lambda x, weight: ((torch._neg_view(x), weight), {}),
        lambda x, weight: ((x, weight, 2), {}),
        lambda x, weight: ((x, weight, 1.0), {}),
        lambda x, weight: ((x, weight, True), {}),
        lambda x, weight: ((x, weight), {"factor": 2.0}),
        lambda x, weight: ((x, weight), {"other": 2.0}),
        lambda x, weight: ((x, weight.requires_grad_()), {}),
    ],
    ids=range(11),
)
def test_another_kind_has_another_plan(gpu, other):
    seen = []

    def watched(*arguments, **named):
        seen.append(arguments)
        return doubled(*arguments, **named)

    call = launch_cache.planned(watched)
    for kind in (tensors(4, 5), {}), other(*tensors(4, 5)):
        seen.clear()
        for _ in range(4):
            call(*kind[0], **kind[1])
        assert len(seen) == 2


UNLIKE = {
    "copy": lambda x, weight: doubled(x.clone(), weight),
    "sum": lambda x, weight: doubled(x, weight)[2].sum(),
    "fill": lambda x, weight: doubled(x, weight)[2].zero_(),
    "its argument": lambda x, weight: doubled(x, weight) and x,
    "a part": lambda x, weight: doubled(x[1:], weight),
    "of another's": lambda x, weight: doubled(MEMORY, weight),
    "a number": lambda x, weight: doubled(x, weight, factor=float(x[0, 0])),
    "by name": lambda x, weight: some_kernel[(1,)](x, torch.empty(32), factor=1.0, n=3, BLOCK=16) and None,
    "a list": lambda x, weight: [doubled(x, weight)],
    "one tensor twice": lambda x, weight: doubled(x, x),
}
MEMORY = torch.zeros(4, 5)


@pytest.mark.parametrize("how", sorted(UNLIKE))
def test_what_does_more_is_done_as_it_is_written(gpu, how):
    calls = []

    def watched(x, weight):
        calls.append(x)
        return (UNLIKE[how] if how != "one tensor twice" else doubled)(x, weight)

    call = launch_cache.planned(watched)
    for _ in range(4):
        x, weight = tensors(4, 5)
        call(x, x if how == "one tensor twice" else weight)
    assert len(calls) == 4


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return operator(*args, **(kwargs or {}))


def _in_forward_mode(call):
    with torch.autograd.forward_ad.dual_level():
        call()


def _in_dispatch_mode(call):
    with _Mode():
        call()


def _deterministic(call):
    torch.use_deterministic_algorithms(True)
    try:
        call()
    finally:
        torch.use_deterministic_algorithms(False)


def _under_autocast(call):
    with torch.autocast("cpu", torch.bfloat16):
        call()


def _listened_to(call):
    with pytest.MonkeyPatch.context() as patch:
        run = JITFunction.run
        patch.setattr(JITFunction, "run", lambda self, *args, **options: run(self, *args, **options))
        call()


def _hooked(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime.launch_enter_hook, "calls", [print])
        call()


def _before_a_hook(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(some_kernel, "pre_run_hooks", [lambda *args, **_: None])
        call()


@pytest.mark.parametrize(
    "inside",
    [_in_forward_mode, _in_dispatch_mode, _deterministic, _under_autocast, _listened_to, _hooked, _before_a_hook],
)
def test_a_plan_holds_where_it_was_made(gpu, inside):
    calls = []

    def watched(*arguments):
        calls.append(arguments)
        return doubled(*arguments)

    call = launch_cache.planned(watched)
    for _ in range(3):
        call(*tensors(4, 5))
    inside(lambda: call(*tensors(4, 5)))
    assert len(calls) == 3
    call(*tensors(4, 5))
    assert len(calls) == 3


def test_a_changed_global_of_a_kernel_is_seen(gpu, monkeypatch):
    monkeypatch.setattr(some_kernel, "used_global_vals", {("SCALE", 0): (SCALE, globals())})
    call = launch_cache.planned(doubled)
    for _ in range(3):
        call(*tensors(4, 5))
    asked = gpu.asked
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3.0))
    call(*tensors(4, 5))
    assert gpu.asked == asked + 2


def test_the_other_variant_has_a_plan_of_its_own(gpu):
    call = launch_cache.planned(doubled)
    for name in ("plain", "tuned"):
        with variant(name):
            for _ in range(3):
                call(*tensors(4, 5))
    assert gpu.asked == 2 * 2 * 2
    assert len(kept_of(call)) == 2


def test_switched_off_every_call_runs_as_written(gpu, monkeypatch):
    monkeypatch.setattr(launch_cache, "enabled", False)
    call = launch_cache.planned(doubled)
    for _ in range(4):
        call(*tensors(4, 5))
    assert gpu.asked == 4 * 2


def test_only_the_courses_kernels_are_watched(gpu):
    call = launch_cache.planned(doubled)
    for _ in range(3):
        call(*tensors(4, 5))
    assert "run" in vars(some_kernel)
    assert "run" not in vars(learners_kernel)


def test_plans_are_dropped_when_asked(gpu):
    factors = [2.0]
    call = launch_cache.planned(lambda *arguments: doubled(*arguments, factors[0]))
    for _ in range(3):
        call(*tensors(4, 5))
    factors[0] = 3.0
    call(*tensors(4, 5))
    assert gpu.made[-1][-2] == 2.0
    launch_cache.clear_plans()
    call(*tensors(4, 5))
    assert gpu.made[-1][-2] == 3.0


def test_a_kernel_that_wants_memory_of_triton_is_left_to_it(gpu):
    gpu.scratch, calls = 128, []
    call = launch_cache.planned(lambda *arguments: calls.append(arguments) or doubled(*arguments))
    for _ in range(4):
        call(*tensors(4, 5))
    assert len(calls) == 4


def test_errors_are_raised_every_time_and_numbers_that_equal_nothing_are_no_leak(gpu, monkeypatch):
    def refuses(x, weight, factor):
        raise ValueError("no, always")

    call = launch_cache.planned(refuses)
    for _ in range(4):
        with pytest.raises(ValueError, match="no, always"):
            call(*tensors(4, 5), 1.0)
    assert not torch._C._len_torch_dispatch_stack()
    assert not launch_cache.watching()
    monkeypatch.setattr(launch_cache, "MAX_KINDS", 5)
    call = launch_cache.planned(doubled)
    for _ in range(12):
        call(*tensors(4, 5), math.nan)
        assert len(kept_of(call)) <= 5


def test_a_sparse_tensor_is_refused_in_words(gpu):
    for x in torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr():
        with pytest.raises(TypeError, match="softmax takes dense tensors, got x in layout sparse"):
            CATALOGUE["softmax"].fused(x)


def same(results, others) -> bool:
    results, others = (x if isinstance(x, tuple) else (x,) for x in (results, others))
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(results, others, strict=True))


@gpu_only
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_on_a_gpu_a_call_made_before_is_right_on_streams_in_graphs_and_on_devices(name):
    call = CATALOGUE[name].fused
    with torch.no_grad():
        for _ in range(3):
            call(*fresh_inputs(name, grad=False, device="cuda"))
        inputs, expected = fresh_inputs(name, grad=False, device="cuda"), []
        _listened_to(lambda: expected.append(call(*inputs)))
        assert same(call(*inputs), expected[0])
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = call(*inputs)
        side.synchronize()
        assert same(found, expected[0])
        with torch.cuda.graph(graph):
            found = call(*inputs)
        graph.replay()
        torch.cuda.synchronize()
        assert same(found, expected[0])
        for device in range(torch.cuda.device_count()):
            there = [x.to(f"cuda:{device}") if isinstance(x, torch.Tensor) else x for x in inputs]
            for _ in range(4):
                assert same(call(*there), expected[0])
