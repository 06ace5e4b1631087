"""Lesson 10's experiments time attention: values against float64, bytes and launches by the meter."""

import pytest
import torch
from lesson_code import lesson_defines

from benchmarks.experiments.lesson_10 import (
    EXPONENTIALS,
    PARTS,
    STEPS,
    N,
    by_polynomial,
    causal,
    causal_kernel,
    decode,
    exponentials,
    masked,
    one_tile,
    put,
    rescales,
    three_operations,
    tile,
    written_out,
)
from helpers.instruments import measure


def exact(q, k, v, is_causal=False):
    s = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v.double()


@pytest.mark.parametrize("step", STEPS)
def test_each_causal_step_is_attention(step):
    inputs = torch.randn(3, 2, 200, 32).half()
    found = measure(causal, *inputs, step, 64, 32)
    torch.testing.assert_close(found.result.double(), exact(*inputs, True), rtol=0, atol=2e-3)
    assert found.launches == 1
    assert found.unique_total == 4 * inputs[0].nbytes  # q, k, v, o and nothing else


def test_what_is_skipped_is_not_read():
    inputs = torch.randn(3, 1, 256, 16).half()
    all_tiles, skipping, splitting = (measure(causal, *inputs, step, 64, 64).bytes_total for step in STEPS)
    kept, square = (1 + 2 + 3 + 4) / 16, 2 * 2 * 256 * 16 * 4  # k and v, by each of four programs
    assert all_tiles - skipping == pytest.approx((1 - kept) * square)
    assert splitting == skipping


@pytest.mark.parametrize("way", EXPONENTIALS)
def test_exponentials_are_right_unless_left_out(way):
    inputs = torch.randn(3, 2, 128, 32).half()
    error = (exponentials(*inputs, way, 64, 64).double() - exact(*inputs)).abs().max().item()
    assert (error < 1e-3) is (way != "left out")


@pytest.mark.parametrize("parts", [parts for parts in PARTS if parts <= 16])
@pytest.mark.parametrize("key_heads", [4, 1])
def test_one_token_in_parts_is_one_token(parts, key_heads):
    q = torch.randn(4, 64).half()
    k, v = torch.randn(2, key_heads, 16 * N - 5, 64).half()
    found = measure(decode, q, k, v, parts)
    expected = exact(q.view(key_heads, -1, 64), k, v).view(4, 64)
    torch.testing.assert_close(found.result.double(), expected, rtol=0, atol=1e-3)
    assert found.launches == 2
    assert not found.hazards


def test_the_ways_to_write_it_out_agree():
    q, k, v = torch.randn(3, 1, 2, 33, 16)
    torch.testing.assert_close(written_out(q, k, v), exact(q, k, v).float())
    torch.testing.assert_close(three_operations(q / 4, k, v), exact(q, k, v).float())
    torch.testing.assert_close(masked(q, k, v), exact(q, k, v, True).float())


@pytest.mark.parametrize("kernel", [tile, put, rescales, one_tile, causal_kernel, by_polynomial])
def test_what_was_timed_is_what_lesson_10_shows(kernel):
    assert lesson_defines("10_attention", kernel.fn)
    assert not lesson_defines("09_convolution", kernel.fn)
