"""What a kernel costs, by instruments that need no GPU: the compiler for registers, the meter for bytes."""

import pytest
import torch

from helpers.resources import compile_for
from helpers.traffic import measure
from kernels import CATALOGUE

OPS = pytest.mark.parametrize("op", CATALOGUE.values(), ids=CATALOGUE)


@OPS
@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_no_spills_at_the_benchmarks_settings(op, gpu):
    compiled = set()
    for shape in op.gpu_shapes:
        for dtype in op.gpu_dtypes:
            with torch.device("meta"):
                arguments, options = op.compile_arguments(*shape, dtype=dtype)
            if (key := (dtype, str(options))) not in compiled:
                compiled.add(key)
                assert compile_for(op.kernel, *arguments, device=gpu, **options).spill_bytes == 0, (shape, options)


@OPS
def test_one_launch_moves_the_least_bytes(op):
    shape = op.interpreter_shapes[-1]
    for dtype in op.dtypes:
        inputs = op.inputs(*shape, dtype=dtype)
        with torch.no_grad():
            traffic = measure(op.fused, *inputs)
        work = op.work(shape, dtype)
        assert (traffic.launches, traffic.hazards) == (1, ())
        assert (traffic.bytes_read, traffic.bytes_written) == (work.bytes_read, work.bytes_written)
