"""The block against the same written out in float64, its launches, and the kernel of one row."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled, with_gradients

from helpers.instruments import compile_for, measure
from kernels.rowwise.rms_norm import rms_norm_reference
from kernels.transformer_block import (
    transformer_block,
    transformer_block_inputs,
    transformer_block_reference,
)
from kernels.tuned.linear_few_rows import linear_one_row, linear_one_row_kernel

HEADS = 4, 2
SIZES = {"width": 64, "heads": 4, "key_heads": 2, "hidden": 96}


def both(*tensors):
    return transformer_block(*tensors, *HEADS), transformer_block_reference(*tensors, *HEADS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_values(tokens, dtype, device, poisoned):
    tensors = transformer_block_inputs(tokens, **SIZES, batch=1 if tokens == 1 else 2, dtype=dtype, device=device)
    assert_as_accurate(*both(*tensors), transformer_block_reference(*doubled(tensors), *HEADS))


@pytest.mark.parametrize("tokens", [1, 9])
def test_gradients_of_x_and_of_every_weight(tokens, device, poisoned):
    tensors = transformer_block_inputs(tokens, **SIZES, dtype=torch.float32, device=device)
    upstream = torch.randn_like(tensors[0])
    ours, theirs = (
        with_gradients(lambda *given, block=block: block(*given, *HEADS), tensors, upstream)
        for block in (transformer_block, transformer_block_reference)
    )
    exact = with_gradients(
        lambda *given: transformer_block_reference(*given, *HEADS), doubled(tensors), upstream.double()
    )
    for mine, native, truth in zip(ours, theirs, exact, strict=True):
        assert_as_accurate(mine, native, truth)


def test_a_token_sees_none_that_comes_later(device):
    tensors = transformer_block_inputs(7, **SIZES, dtype=torch.float32, device=device)
    before = transformer_block(*tensors, *HEADS)
    tensors[0][:, -1] += 1
    after = transformer_block(*tensors, *HEADS)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_launches_of_the_docstring(device):
    for tokens, launches in ((1, 5), (5, 8)):
        tensors = transformer_block_inputs(tokens, **SIZES, dtype=torch.bfloat16, device=device)
        assert measure(transformer_block, *tensors, *HEADS).launches == launches


@pytest.mark.parametrize("n", [1, 5, 12])
@pytest.mark.parametrize("k", [3, 1024, 1500])
def test_one_row(n, k, device, poisoned):
    x, norm, weight, gate, residual = (
        torch.randn(shape, device=device, dtype=torch.float16) for shape in ((1, 1, k), k, (n, k), (n, k), (1, 1, n))
    )

    def reference(x, norm, weight, gate, residual):
        h = rms_norm_reference(x, norm)
        return torch.nn.functional.silu(h @ gate.T) * (h @ weight.T) + residual

    given = x, norm, weight, gate, residual
    ours = linear_one_row(x, weight, norm, gate, residual)
    assert_as_accurate(ours, reference(*given), reference(*doubled(given)))
    assert_as_accurate(linear_one_row(x, weight), x @ weight.T, x.double() @ weight.double().T)


def test_one_row_reads_every_weight_once(device):
    x, weight = torch.randn(1, 2000, device=device), torch.randn(37, 2000, device=device)
    found = measure(linear_one_row, x, weight)
    assert found.launches == 1
    assert found.bytes_read == weight.nbytes + 10 * x.nbytes  # x by each of ten programs
    assert found.bytes_written == 37 * 4


def test_one_row_takes_one_row(device):
    with pytest.raises(ValueError, match="one row"):
        linear_one_row(torch.ones(2, 8, device=device), torch.ones(4, 8, device=device))


def test_one_row_does_not_spill():
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (4096, (14336, 4096)))
    found = compile_for(
        linear_one_row_kernel,
        *(x, x, weight, weight, None, weight[:, 0].contiguous(), 14336, 4096, 1e-6),
        device="H200",
        BLOCK_N=4,
        BLOCK_K=1024,
        num_warps=4,
    )
    assert found.spill_bytes == 0
    assert "LDG.E.EF.128" in found.sass
