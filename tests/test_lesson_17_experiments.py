"""Lesson 17 times what it claims to: decode in splits, and rotation without the search for slots."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels
from benchmarks.experiments.lesson_17 import (
    FLAT,
    OP,
    PEAKED,
    RECORD,
    ROWS,
    SEEDS,
    cache_inputs,
    drawing,
    flat_logits,
    paged_inputs,
    peaked_logits,
    rope_cache_without_checks,
    split_decode,
)
from helpers.instruments import measure, recorded, recorded_sweep
from kernels.tiled.paged_attention import merge_splits_kernel, paged_attention_reference

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


def test_the_paged_comparison_rejects_a_lookup_that_ignores_the_table():
    """Attention over every slot is the same in any order: the lesson's cells leave some of the last page unread."""
    source = LESSON.read_text()
    assert "in_use = 2000" in source
    assert source.count("4, in_use, order, by_page)") == 2
    q, k, v = torch.randn(3, 1, 2, 64, 16, dtype=torch.float64)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for used, blind in ((64, True), (62, False)):
        right = scaled_dot_product_attention(q, k[..., :used, :], v[..., :used, :])
        shuffled = [torch.empty_like(x).index_copy_(2, order, x) for x in (k, v)]
        ignored = scaled_dot_product_attention(q, *(x[..., :used, :] for x in shuffled))
        assert torch.allclose(right, ignored) == blind


@pytest.mark.parametrize(("logits", "share"), [(flat_logits, FLAT), (peaked_logits, PEAKED)])
def test_the_top_50_of_the_timed_logits_have_the_share_that_is_said(logits, share):
    """Of the flat ones most candidates are refused, of the peaked ones few."""
    torch.manual_seed(0)
    mass = torch.softmax(logits(4, device="cpu").float(), 1).topk(50).values.sum(1)
    assert (mass - share).abs().max() < 0.06


@pytest.mark.parametrize("page", [1, 8, 48])
def test_pages_of_any_size_hold_the_same_attention(page):
    given = paged_inputs(2, 48, page, device="cpu", dtype=torch.float32)
    assert given[3].shape == (2, 48 // page)
    torch.testing.assert_close(kernels.paged_attention(*given), paged_attention_reference(*given))


def test_each_timed_draw_has_another_seed():
    seen = []
    draw = drawing(lambda logits, seed, *options: seen.append((int(seed), options)), torch.zeros(1), (1.0, 0, 1.0))
    for _ in range(SEEDS + 1):
        draw()
    assert seen == [(seed, (1.0, 0, 1.0)) for seed in (*range(SEEDS), 0)]


def test_what_lesson_17_concludes_from_its_record():
    record = recorded(RECORD.removesuffix(".json"))
    for sequences, by_page in record.experiment("serving_pages").items():
        times = [time.median for time in by_page.values()]
        assert max(times) < 1.06 * min(times)  # a few percent
        # Only with 128 sequences do smaller pages always take longer.
        assert (times == sorted(times, reverse=True)) == sequences.startswith("128 ")
    draws = {
        name: {way: time.median for way, time in each.items()}
        for name, each in record.experiment("serving_sample").items()
    }
    plain, flat, peaked = (draws[f"1 row, {kind}"] for kind in ("no filter", "filtered, flat", "filtered, peaked"))
    assert draws["64 rows, no filter"]["one kernel"] < 1.02 * plain["one kernel"]
    assert flat["one kernel"] > flat["torch.compile"]
    assert 2.1 < peaked["one kernel"] / plain["one kernel"] < 2.3  # two passes, the second of which also counts
    for kind in ("flat", "peaked"):  # the unluckiest of 64
        assert draws[f"64 rows, filtered, {kind}"]["one kernel"] > draws[f"1 row, filtered, {kind}"]["one kernel"]
    around = record.experiment("serving_rope_cache")
    assert around[4096]["one kernel"].median < around[4096]["torch.compile"].median
    assert around[4096]["eager"].median < 1.1 * around[1]["eager"].median  # the GPU waits for the CPU
    rows = record.experiment("serving_rows")
    assert min(rows[count]["PyTorch"].median for count in ROWS[1:]) > 2 * rows[1]["PyTorch"].median
    assert rows[8]["8 splits"].median < 1.1 * rows[1]["8 splits"].median


def test_what_lesson_17_concludes_beside_flashinfer():
    sweep = recorded_sweep()
    for point in sweep.of("sample"):
        rows, logits = point["shape"]
        ours, theirs = (point["gpu"][way][0] for way in ("fused", "FlashInfer"))
        assert ours < theirs
        if rows == 64:
            assert ours < 0.55 * theirs
        if rows == 1 and logits > 128_000:
            assert ours > 0.93 * theirs
    for point in sweep.of("paged_attention"):
        if "gpu" in point:
            ours, theirs = (point["gpu"][way][0] for way in ("fused", "FlashInfer"))
            assert max(ours, theirs) < 1.15 * min(ours, theirs)
            *_, tokens, _ = point["shape"]
            assert (ours > 1.25 * point["least"]) == (point["shape"][0] * tokens == 8192)  # the cache is short
