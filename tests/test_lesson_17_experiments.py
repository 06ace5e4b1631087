"""What lesson 17 times computes what it says: decode in splits, and rotation without the search for slots."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels
from benchmarks.experiments.lesson_17 import OP, cache_inputs, rope_cache_without_checks, split_decode
from helpers.instruments import measure
from kernels.tiled.paged_attention import merge_splits_kernel

LESSON = Path(__file__).resolve().parents[1] / "source/lessons/17_serving.py"


@pytest.mark.parametrize(("batch", "keys", "rows", "splits"), [(1, 300, 1, 4), (2, 1000, 2, 7), (1, 65, 8, 2)])
def test_splits_are_attention(batch, keys, rows, splits):
    q, k, v = cache_inputs(batch, keys, rows, device="cpu", dtype=torch.float16)
    exact = scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    torch.testing.assert_close(split_decode(q, k, v, splits).double(), exact, atol=2e-3, rtol=2e-3)


def test_the_cache_is_read_once_and_nothing_else_is_launched():
    q, k, v = cache_inputs(1, 300, 1, device="cpu", dtype=torch.float16)
    found = measure(split_decode, q, k, v, 4)
    assert found.launches == 2
    assert found.by_tensor["k"].read == k.nbytes
    assert found.by_tensor["v"].read == v.nbytes


def test_every_slot_written():
    given = OP.inputs(8, 4, 2, 32, dtype=torch.float32)
    copies = [x.clone() for x in given]
    torch.testing.assert_close(rope_cache_without_checks(*given), kernels.rope_cache(*copies))
    torch.testing.assert_close(given[6:8], copies[6:8])


def test_the_lessons_merge_is_the_catalogues():
    """Where a lesson builds a kernel cell by cell, its last cell is the file's."""
    functions = {
        node.name: node for node in ast.walk(ast.parse(LESSON.read_text())) if isinstance(node, ast.FunctionDef)
    }
    (ours,) = ast.parse(inspect.getsource(merge_splits_kernel.fn)).body
    assert ast.dump(functions["merge_splits_kernel"]) == ast.dump(ours)
