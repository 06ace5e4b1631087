"""What a kernel costs, by instruments that need no GPU: the compiler for registers, the meter for bytes."""

import inspect

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import CATALOGUE

# A tiled kernel reads its inputs once a tile, and some take two launches: each of their own tests says how many bytes.
UNTILED = pytest.mark.parametrize(
    "op",
    [op for op in CATALOGUE.values() if op.group != "tiled"],
    ids=lambda op: op.name,
)


# Bytes that Triton 3.6 spills where later versions spill none. With at most 80 registers it spills none either, and the
# kernel takes 0.99 to 1 of the time (H100, 16384 and 65536 columns).
SPILLED = {"softmax_topk": 8} if triton.__version__ < "3.7" else {}


# In `make test` every fourth operation; tests of each compile what its settings choose at other sizes.
@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=[pytest.mark.long] * (place % 4 > 0)) for place, op in enumerate(CATALOGUE.values())],
    ids=CATALOGUE,
)
@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
def test_no_spills_at_the_benchmarks_settings(op, gpu):
    compiled = set()
    for shape in op.gpu_shapes:
        for dtype in op.gpu_dtypes:
            with torch.device("meta"):
                arguments, options = op.compile_arguments(*shape, dtype=dtype)
            kernel = op.kernel_for(*shape)
            if gpu == "A100" and any(isinstance(argument, TensorDescriptor) for argument in arguments):
                continue  # launched from compute capability 9.0 on only, where a copy engine takes descriptors
            if (key := (kernel, dtype, str(options))) not in compiled:
                compiled.add(key)
                spilled = compile_for(kernel, *arguments, device=gpu, **options).spill_bytes
                assert spilled <= SPILLED.get(op.name, 0), (shape, options)


@UNTILED
def test_one_launch_moves_the_least_bytes(op, device):
    """Distinct bytes, as memory sees them; and the largest inputs are asked for once."""
    shape = op.interpreter_shapes[-1]
    for dtype in op.dtypes:
        inputs = op.inputs(*shape, dtype=dtype, device=device)
        with torch.no_grad():
            traffic = measure(op.fused, *inputs)
        work = op.work(shape, dtype)
        assert (traffic.launches, traffic.hazards) == (1, ())
        assert (traffic.unique_read, traffic.unique_written) == (work.bytes_read, work.bytes_written)
        assert traffic.bytes_written == work.bytes_written
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        for name, x in zip(inspect.signature(op.fused).parameters, tensors, strict=False):
            if x.numel() == max(each.numel() for each in tensors):
                assert (
                    traffic.by_tensor[name].read <= 1.1 * x.nbytes
                )  # what is looked up again: a logit, the best groups
