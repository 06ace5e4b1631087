"""What lesson 18 times computes a decoder layer, moves the same bytes, and compiles with a dependent launch."""

import pytest
import torch

from benchmarks.experiments.lesson_18 import (
    EPS,
    empty_kernel,
    layer_in_steps,
    layer_product_by_product,
    one_query_kernel,
    rows_kernel,
    through,
)
from helpers.instruments import compile_for, measure
from kernels.tiled.decoder_layer import OP, decoder_layer_reference

SHAPE = (64, 4, 2, 72, 5)


@pytest.mark.parametrize("layer", [layer_in_steps, layer_product_by_product])
def test_each_way_is_a_decoder_layer(layer):
    inputs = OP.inputs(*SHAPE, dtype=torch.float32)
    exact = decoder_layer_reference(*(x.double() for x in inputs), EPS)[:2]
    for ours, truth in zip(layer(*inputs), exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, atol=1e-5, rtol=1e-5)


def test_a_stack_hands_on_both_streams():
    first, second = (OP.inputs(*SHAPE, dtype=torch.float64) for _ in range(2))
    x, residual = first[:2]
    y, s, *_ = decoder_layer_reference(*first)
    expected = decoder_layer_reference(y, s, *second[2:])[0]
    assert torch.equal(through(decoder_layer_reference, [first[2:], second[2:]], x, residual), expected)


def test_five_launches_that_read_each_weight_once():
    inputs = OP.inputs(*SHAPE, dtype=torch.float32)
    found = measure(layer_in_steps, *inputs)
    assert found.launches == 5
    for name in ("qkv", "out", "gate", "up", "down"):
        place = "x residual attention_norm qkv keys values out ffn_norm gate up down".split().index(name)
        assert found.by_tensor[name].read == inputs[place].nbytes


@pytest.mark.parametrize("late", [False, True])
def test_a_dependent_launch_compiles_to_griddepcontrol(late):
    x = torch.empty(64, device="meta", dtype=torch.bfloat16)
    weight = torch.empty(64, 64, device="meta", dtype=torch.bfloat16)
    kinds = {
        empty_kernel: ((x,), {}),
        rows_kernel: (
            (weight, None, x, None, None, x, None, None, 64, 64, EPS),
            {"BLOCK_N": 16, "BLOCK_K": 64, "LATE": late},
        ),
        one_query_kernel: ((x, x, x, x, 2, 1, 4, 0.1), {"D": 16, "BLOCK_KEYS": 16, "LATE": late}),
    }
    for kernel, (arguments, options) in kinds.items():
        ptx = compile_for(kernel, *arguments, device="H200", **options, PDL=True, launch_pdl=True).ptx
        assert "griddepcontrol.wait" in ptx
        assert "griddepcontrol.launch_dependents" in ptx
        assert "griddepcontrol" not in compile_for(kernel, *arguments, device="H200", **options, PDL=False).ptx
