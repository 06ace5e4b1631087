"""A launch that was made before takes the same compiled kernel as Triton's own launcher gives it, and no other."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, strategies
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction, native_specialize_impl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import launching
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
H100 = GPUTarget("cuda", 90, 32)
SCALE = tl.constexpr(2.0)


@triton.jit
def scaled_kernel(x_ptr, y_ptr, n, offset, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * SCALE + offset, mask=at < n)


DTYPES = torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool
MEMORY = {dtype: torch.zeros(64, dtype=dtype) for dtype in DTYPES}
EDGES = 0, 1, 2, 15, 16, 17, -1, -16, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31), -(2**31) - 1, 2**32, 2**40 + 1
LIMITS = 2**63 - 16, 2**63 - 1, -(2**63), 2**63, 2**63 + 16, 2**64 - 1
VIEWS = strategies.builds(
    lambda dtype, start: MEMORY[dtype][start:], strategies.sampled_from(DTYPES), strategies.integers(0, 32)
)
DESCRIBED = strategies.builds(
    lambda dtype, rows, cols, padding: TensorDescriptor(MEMORY[dtype], [4, 16], [16, 1], [rows, cols], padding),
    strategies.sampled_from((torch.float32, torch.float16, torch.bfloat16)),
    strategies.sampled_from((1, 2, 4)),
    strategies.sampled_from((8, 16)),
    strategies.sampled_from(("zero", "nan")),
)
SWIZZLED = strategies.builds(
    lambda dtype, rows, swizzle: GluonDescriptor(
        MEMORY[dtype], [4, 16], [16, 1], [rows, 16], NVMMASharedLayout(swizzle, 8 * dtype.itemsize)
    ),
    strategies.sampled_from((torch.float16, torch.bfloat16)),
    strategies.sampled_from((1, 2, 4)),
    strategies.sampled_from((0, 32)),
)
PLAIN = (
    strategies.none()
    | strategies.booleans()
    | strategies.floats()
    | strategies.sampled_from(EDGES + LIMITS)
    | strategies.integers(-(2**63), 2**64 - 1)
    | VIEWS
    | VIEWS.filter(torch.is_floating_point).map(lambda x: torch.nn.Parameter(x, requires_grad=False))
    | DESCRIBED
    | SWIZZLED
)
VALUES = PLAIN | strategies.lists(PLAIN, max_size=3).map(tuple)


@given(strategies.lists(VALUES, min_size=20, max_size=60))
@example([True, 1, 1.0, 16, 32, False, 0, None, 2, 3])
@example([MEMORY[torch.float16], MEMORY[torch.float16][8:], MEMORY[torch.float16][4:], MEMORY[torch.bfloat16]])
def test_equal_kinds_have_one_specialisation(values):
    backend, found = make_backend(H100), defaultdict(set)
    for value in values:
        found[launching.kinds((value,))[0]].add(native_specialize_impl(backend, value, False, True, True))
    assert all(len(specialisations) == 1 for specialisations in found.values()), dict(found)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (MEMORY[torch.float16], MEMORY[torch.float16][4:]),
        (MEMORY[torch.float16], MEMORY[torch.bfloat16]),
        (1, 2),
        (16, 24),
        (16, 2**31),
        (2**31, 2**63),
        (True, 1),
        (1.0, 1),
        (None, 0),
        ((16, 1), (16, 2)),
    ],
    ids=str,
)
def test_what_triton_compiles_twice_has_two_kinds(x, y):
    backend = make_backend(H100)
    assert native_specialize_impl(backend, x, False, True, True) != native_specialize_impl(
        backend, y, False, True, True
    )
    assert launching.kinds((x,)) != launching.kinds((y,))


@pytest.mark.parametrize("value", ["gelu", tl.float32, tl.constexpr(1), SimpleNamespace(), scaled_kernel], ids=str)
def test_other_kinds_are_left_to_triton(value):
    with pytest.raises(TypeError, match="left to Triton"):
        launching.kinds((value,))


class Launches:
    """A driver for a GPU that is not there: it keeps what it is told to launch."""

    def __init__(self):
        self.made = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), object(), 32, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": 2**20},
        )

    def launcher_cls(self, source, metadata):
        return lambda x, y, z, stream, function, *rest: self.made.append(((x, y, z), stream, function, rest[4:]))

    def get_current_target(self):
        return H100

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return len(self.made)  # another at each launch


@pytest.fixture
def launches(monkeypatch):
    """What was launched, and of it what Triton's own launcher was asked for, with a GPU that is not there."""
    if runtime.has_gpu():
        pytest.skip("there is a GPU")
    found, asked, run = Launches(), [], launching.triton_run

    def listening(kernel, *args, **options):
        asked.append(args)
        return run(kernel, *args, **options)

    before = driver._active
    driver.set_active(found)
    monkeypatch.setattr(JITFunction, "run", launching.run)
    monkeypatch.setattr(launching, "triton_run", listening)
    scaled_kernel.device_caches.clear()
    yield SimpleNamespace(made=found.made, asked=asked)
    scaled_kernel.device_caches.clear()
    driver.set_active(before)


def test_a_launch_made_before_does_not_ask_triton(launches):
    x, y = torch.zeros(64), torch.zeros(64)
    first = scaled_kernel[(4,)](x, y, 64, 0.5, BLOCK=16, num_warps=1)
    second = scaled_kernel[4, 2](y, x, 48, 1.5, BLOCK=16, num_warps=1)
    assert first is second
    assert len(launches.asked) == 1
    (_, _, function, given), (grid, stream, same, others) = launches.made
    assert (grid, stream, same) == ((4, 2, 1), 1, function)
    assert given == (x, y, 64, 0.5, 16, False)
    assert others == (y, x, 48, 1.5, 16, False)


@pytest.mark.parametrize(
    "changed",
    [
        {"x": torch.zeros(65)[1:]},
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"n": 63},
        {"n": 1},
        {"offset": 2},
        {"BLOCK": 32},
        {"EVEN": True},
        {"num_warps": 2},
    ],
    ids=str,
)
def test_another_kind_takes_another_kernel(launches, changed):
    def launch(x, n=64, offset=0.5, **options):
        return scaled_kernel[(1,)](x, torch.zeros(64), n, offset, **({"BLOCK": 16, "num_warps": 1} | options))

    x = torch.zeros(64)
    ours = [launch(**{"x": x} | each) for each in ({}, changed, {}, changed)]
    assert ours[0] is ours[2] is not ours[1] is ours[3]
    assert len(launches.asked) == 2
    functions = [function for _, _, function, _ in launches.made]
    assert functions[0] is functions[2] is not functions[1] is functions[3]


def test_a_constant_given_by_its_place_takes_its_own_kernel(launches):
    x = torch.zeros(64)
    ours = [scaled_kernel[(1,)](x, x, 64, 0.5, block, num_warps=1) for block in (16, 32, 16, 32)]
    assert ours[0] is ours[2] is not ours[1] is ours[3]
    assert len(launches.asked) == 2
    assert [given[4] for *_, given in launches.made] == [16, 32, 16, 32]


@pytest.mark.parametrize("how", ["hook", "debug", "grid", "name", "other", "before"])
def test_what_is_left_to_triton(launches, monkeypatch, how):
    x, grid, options, seen = torch.zeros(64), (1,), {"BLOCK": 16, "num_warps": 1}, []
    scaled_kernel[grid](x, x, 64, 0.5, **options)
    arguments = [x, x, 64, 0.5]
    if how == "hook":
        monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [seen.append])
    elif how == "debug":
        monkeypatch.setattr(knobs.runtime, "debug", True)
    elif how == "grid":
        grid = lambda constants: (constants["n"] // constants["BLOCK"],)  # noqa: E731
    elif how == "name":
        options["offset"] = arguments.pop()
    elif how == "other":
        arguments[3] = tl.constexpr(0.5)
    elif how == "before":
        monkeypatch.setattr(scaled_kernel, "pre_run_hooks", [lambda *args, **_: seen.append(args)])
    for _ in range(2):
        scaled_kernel[grid](*arguments, **options)
    assert len(launches.asked) == 3
    assert launches.made[-1][0] == ((4, 1, 1) if how == "grid" else (1, 1, 1))
    assert len(seen) == (2 if how == "before" else 0)  # a launch hook is the compiled launcher's to call


def test_a_global_that_changed_is_refused_as_by_triton(launches, monkeypatch):
    x = torch.zeros(64)
    scaled_kernel[(1,)](x, x, 64, 0.5, BLOCK=16)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3.0))
    with pytest.raises(RuntimeError, match="SCALE has changed"):
        scaled_kernel[(1,)](x, x, 64, 0.5, BLOCK=16)
    assert len(launches.made) == 1


@gpu_only
def test_right_on_a_gpu_from_any_address_and_in_a_graph():
    memory = torch.randn(1040, device="cuda")
    for start in (0, 1, 4, 0, 1, 4):
        x, y = memory[start : start + 1000], torch.zeros(1001, device="cuda")[start % 2 :][:1000]
        scaled_kernel[(8,)](x, y, 1000, 0.5, BLOCK=128)
        assert torch.equal(y, x * 2 + 0.5)
    x, y, side, graph = memory[:1000], torch.zeros(1000, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        scaled_kernel[(8,)](x, y, 1000, 0.5, BLOCK=128)
    assert not y.any()
    graph.replay()
    assert torch.equal(y, x * 2 + 0.5)


@gpu_only
def test_hooks_see_every_launch_on_a_gpu():
    x, seen = torch.randn(64, device="cuda"), []
    scaled_kernel[(1,)](x, x, 64, 0.5, BLOCK=64)
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        scaled_kernel[(1,)](x, x, 64, 0.5, BLOCK=64)
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    scaled_kernel[(1,)](x, x, 64, 0.5, BLOCK=64)
    assert [launch.get()["name"] for launch in seen] == ["scaled_kernel"]
