"""Bytes against PyTorch's own dispatcher, FLOPs of products against PyTorch's counter, the rest by hand."""

import dataclasses
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import OPERATIONS, Launch, attention_of_heads, cost
from helpers.instruments.resources import compile_for
from kernels import CATALOGUE

SHAPES = [(1, 64), (127, 64), (5, 1025), (64, 128)]
ELEMENT = 4
NO_LAUNCH = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "expand",
    "unsqueeze",
    "detach",
    "alias",
    "permute",
    "split",
    "empty",
}


class Dispatched(TorchDispatchMode):
    """Elements that each dispatched operator reads and writes, views and allocations left out."""

    def __init__(self):
        super().__init__()
        self.launches, self.read, self.written = 0, 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if function.overloadpacket.__name__ not in NO_LAUNCH:
            distinct = {id(t): t for t in tree_leaves((arguments, options)) if isinstance(t, torch.Tensor) and t.dim()}
            self.launches += 1
            self.read += sum(t.numel() for t in distinct.values())
            self.written += sum(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.numel())
        return result


def written_out(name, rows, columns):
    """The operation in eager PyTorch, as its docstring describes it."""
    x, y = torch.randn(2, rows, columns)
    w, b = torch.randn(2, columns)
    if name == "ReLU":
        return lambda: torch.relu(x)
    if name == "vector add":
        return lambda: x + y
    if name == "GELU":
        return lambda: (0.5 * x) * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))
    if name == "add+GELU":
        return lambda: torch.nn.functional.gelu(x + y, approximate="tanh")
    if name == "LayerNorm":

        def layer_norm():
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.square().mean(-1, keepdim=True)
            return centred * torch.rsqrt(variance + 1e-5) * w + b

        return layer_norm
    if name == "softmax":

        def softmax():
            exponentials = torch.exp(x - x.amax(-1, keepdim=True))
            return exponentials / exponentials.sum(-1, keepdim=True)

        return softmax
    if name == "matmul+bias+ReLU":
        weights = torch.randn(columns, columns)
        return lambda: torch.relu(x @ weights + b)
    if name == "conv+BN+ReLU":
        image = x.T.reshape(1, columns, rows, 1).contiguous()
        weights = torch.randn(columns, columns, 3, 3)
        mean, variance = torch.randn(columns), torch.rand(columns)

        def conv():
            t = torch.nn.functional.conv2d(image, weights, padding=1)
            return torch.relu(torch.nn.functional.batch_norm(t, mean, variance, w, b))

        return conv
    heads = math.ceil(columns / 64)
    q, k, v = torch.randn(3, heads, rows, columns // heads)
    return lambda: torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 8, -1), v)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_unfused_bytes_and_launches_are_what_pytorch_dispatches(name, shape):
    if name == "attention" and shape[1] % 64:
        pytest.skip("heads of 64 columns only")
    launches = OPERATIONS[name](*shape, ELEMENT).unfused
    run = written_out(name, *shape)
    with Dispatched() as eager:
        run()
    assert len(launches) == eager.launches
    assert sum(launch.work.bytes_read for launch in launches) == eager.read * ELEMENT
    assert sum(launch.work.bytes_written for launch in launches) == eager.written * ELEMENT


@pytest.mark.parametrize("shape", [(127, 64), (64, 128)])
@pytest.mark.parametrize("name", ["matmul+bias+ReLU", "conv+BN+ReLU", "attention"])
def test_flops_of_products_are_pytorchs(name, shape):
    run = written_out(name, *shape)
    with FlopCounterMode(display=False) as counter:
        run()
    products = sum(launch.work.flops for launch in OPERATIONS[name](*shape, ELEMENT).unfused if launch.tensor_cores)
    assert products == counter.get_total_flops()


def test_element_wise_flops_by_hand():
    per_element = {"ReLU": 1, "vector add": 1, "GELU": 9, "add+GELU": 10, "LayerNorm": 7, "softmax": 5}
    for name, flops in per_element.items():
        versions = OPERATIONS[name](3, 100, 4)
        for launches in (versions.unfused, versions.fused):
            assert sum(launch.work.flops for launch in launches) == 300 * flops


# What the course has a kernel for: its name in CATALOGUE, its shape for so many rows and columns, and FLOPs an element
# of the result that its epilogue takes beyond the operation's: linear_act counts a GELU, the operation here a ReLU.
KERNELS = {
    "add+GELU": ("add_gelu", lambda rows, columns: (rows, columns), 0),
    "LayerNorm": ("layer_norm", lambda rows, columns: (rows, columns), 0),
    "softmax": ("softmax", lambda rows, columns: (rows, columns), 0),
    "matmul+bias+ReLU": ("linear_act", lambda rows, columns: (rows, columns, columns), 9 - 1),
    "conv+BN+ReLU": ("conv_bn_act", lambda rows, columns: (1, columns, rows, 1, columns, 3), 0),
    "attention": ("flash_attention", lambda rows, columns: (1, columns // 64, rows, 64, False), 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_and_the_registry_count_alike(name, dtype):
    kernel, shape, more = KERNELS[name]
    for rows, columns in ((1, 64), (128, 1024), (127, 192)):
        (fused,) = OPERATIONS[name](rows, columns, dtype.itemsize).fused
        work = CATALOGUE[kernel].work(shape(rows, columns), dtype)
        assert fused.work == dataclasses.replace(work, flops=work.flops - more * rows * columns)


def test_an_operation_without_a_kernel_is_a_part_of_one_that_has_it():
    assert OPERATIONS.keys() - KERNELS == {"ReLU", "vector add", "GELU"}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (127, 1025), (4096, 4096), (65536, 16384)])
def test_fusing_never_moves_more_bytes_nor_takes_longer(name, shape):
    versions = OPERATIONS[name](*shape, 2)
    unfused, fused = (cost(launches, DEVICES["A100"], "fp16") for launches in (versions.unfused, versions.fused))
    assert fused.launches == 1
    assert fused.work.bytes <= unfused.work.bytes
    assert fused.time <= unfused.time * (1 + 1e-12)


def test_cost_by_hand():
    unfused = cost(OPERATIONS["add+GELU"](1, 10**6, 4).unfused, DEVICES["A100"], "tf32")
    assert unfused.time == pytest.approx(20e6 / 2039e9)
    assert (unfused.launches, unfused.bound) == (2, "memory")
    assert unfused.performance == pytest.approx(10e6 / (20e6 / 2039e9))
    # A GELU runs on CUDA cores, however fast the tensor cores are: past fp32's ridge it is bound by arithmetic.
    product = cost(OPERATIONS["matmul+bias+ReLU"](4096, 4096, 2).fused, DEVICES["A100"], "fp16")
    assert (product.bound, product.unit) == ("compute", "tensor cores")


def test_exponentials_take_their_own_units():
    gelu = Launch("", OPERATIONS["GELU"](1, 10**6, 2).fused[0].work, fp32=9 * 10**6, special=2 * 10**6)
    assert OPERATIONS["GELU"](1, 10**6, 2).fused[0].times(DEVICES["A100"], "fp16") == gelu.times(
        DEVICES["A100"], "fp16"
    )
    times = gelu.times(DEVICES["A100"], "fp16")
    assert times["special functions"] == pytest.approx(2e6 / (108 * 16 * 1.41e9))
    assert times["CUDA cores"] == pytest.approx(9e6 / 19.5e12)
    # Heads of 64: 4 * 64 FLOPs of products on tensor cores and one exponential a score. A B200's tensor cores are
    # twice as fast as an H100's, its special function units are not.
    attention = OPERATIONS["attention"](4096, 4096, 2).fused
    score = 64 * 4096**2
    assert attention[0].special == score
    units = {name: cost(attention, DEVICES[name], "fp16").unit for name in ("A100", "H100", "B200")}
    assert units == {"A100": "tensor cores", "H100": "tensor cores", "B200": "special functions"}
    assert cost(attention, DEVICES["B200"], "fp16").time == pytest.approx(score / (148 * 16 * 1.965e9))
    in_fp32 = OPERATIONS["matmul+bias+ReLU"](4096, 4096, 4).fused[0].times(DEVICES["A100"], "fp32")
    assert in_fp32["tensor cores"] == 0  # products in fp32 share the CUDA cores with their epilogue
    assert in_fp32["CUDA cores"] == pytest.approx((2 * 4096**3 + 2 * 4096**2) / 19.5e12)


@pytest.mark.parametrize(("operation", "kernel", "elements"), [("add+GELU", "add_gelu", 8), ("softmax", "softmax", 32)])
def test_special_functions_are_those_of_the_machine_code(operation, kernel, elements):
    """Of the kernel compiled: each thread has so many elements; what is left over is done once a row."""
    shape = (2**20,) if operation == "add+GELU" else (128, 1024)
    op = CATALOGUE[kernel]
    arguments, options = op.compile_arguments(*shape, dtype=torch.float32)
    made = compile_for(op.kernel_for(*shape), *arguments, device="A100", **options)
    (fused,) = OPERATIONS[operation](128, 1024, 4).fused
    assert made.instructions["MUFU"] // elements == fused.special / (128 * 1024)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="T4 has no bf16 peak"):
        cost(OPERATIONS["ReLU"](1, 1, 2).unfused, DEVICES["T4"], "bf16")


def test_nothing_has_no_cost():
    with pytest.raises(ValueError, match="cost takes at least one launch, got none"):
        cost((), DEVICES["A100"], "fp16")
    assert cost(OPERATIONS["ReLU"](0, 4, 2).fused, DEVICES["A100"], "fp16").performance == 0
    with pytest.raises(ValueError, match="at least 1 token, head and column, got 0, 1 and 64"):
        attention_of_heads(0, 1, 64, 2, causal=True)
