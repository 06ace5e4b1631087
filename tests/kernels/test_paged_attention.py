"""Attention over paged keys: lengths, block tables and splits of any kind, beside float64; what it refuses."""

import math

import pytest
import torch
from accuracy import assert_as_accurate, doubled

import kernels
from helpers.instruments import measure
from kernels import CATALOGUE, arguments, variant
from kernels.interpreter import runtime
from kernels.tiled import paged_attention as module
from kernels.tuned import decode_attention

OP = CATALOGUE["paged_attention"]


def paged(
    lengths, heads=2, kv_heads=1, queries=1, dim=64, page=16, dtype=torch.float32, device="cpu", width=None, spare=3
):
    """Arguments of paged_attention: pages in random order, `spare` of them nobody's, and NaN wherever no key is."""
    width = max(1, *(arguments.cdiv(length, page) for length in lengths)) if width is None else width
    pages = sum(arguments.cdiv(length, page) for length in lengths) + spare
    order = torch.randperm(pages).tolist()
    caches = torch.full((2, pages, kv_heads, page, dim), math.nan, dtype=dtype)
    table = torch.full((len(lengths), width), -1, dtype=torch.int32)  # a page that there is not, where none is used
    for i, length in enumerate(lengths):
        for n in range(0, length, page):
            table[i, n // page] = place = order.pop()
            used = min(page, length - n)
            caches[:, place, :, :used] = torch.randn(2, kv_heads, used, dim).to(dtype)
    q = torch.randn(len(lengths), heads, queries, dim).to(dtype)
    given = q, *caches, table, torch.tensor(lengths, dtype=torch.int32)
    return tuple(x.to(device) for x in given)


def check(inputs, **options):
    ours = kernels.paged_attention(*inputs, **options)
    assert ours.isfinite().all()
    exact = OP.reference(*doubled(inputs), **options)
    assert_as_accurate(ours, OP.reference(*inputs, **options), exact)


def splits_of(inputs) -> int:
    q, k, _, table, _ = inputs
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    tiles = arguments.cdiv(rows, module.settings(rows, q.shape[3], q.dtype)["BLOCK_M"])
    capacity = table.shape[1] * k.shape[2]
    return module.splits_for(len(q) * k.shape[1] * tiles, capacity, arguments.multiprocessors(q))


@pytest.fixture
def many_multiprocessors(monkeypatch):
    """As many splits as a GPU would have: some empty, and of other lengths than the rest."""
    if not runtime.has_gpu():
        monkeypatch.setattr(arguments, "MULTIPROCESSORS", 12)


def test_lengths(device, poisoned, many_multiprocessors):
    inputs = paged([1, 15, 0, 16, 17], device=device)
    check(inputs)
    assert (kernels.paged_attention(*inputs)[2] == 0).all()
    inputs = paged([1025, 0], device=device)
    assert splits_of(inputs) > 4
    check(inputs)
    check(paged([0, 0], device=device))


def test_unequal_and_empty_splits(device, poisoned, many_multiprocessors):
    """The longest sequence says how many splits there are: the short ones leave most of theirs without a key."""
    for dtype in (torch.float32, torch.bfloat16):
        inputs = paged([700, 1, 65], dtype=dtype, device=device)
        assert splits_of(inputs) > 2
        check(inputs)


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("group", [1, 4, 7])
def test_groups_and_head_sizes(group, dim, device, poisoned):
    check(paged([130, 33], heads=2 * group, kv_heads=2, dim=dim, dtype=torch.float16, device=device))


@pytest.mark.parametrize("queries", [2, 8, 16])
@pytest.mark.parametrize("causal", [True, False])
def test_several_queries(queries, causal, device, poisoned, many_multiprocessors):
    """The last tokens of each sequence; where it has fewer keys than queries, the first see none."""
    inputs = paged([300, 5, 16], heads=4, queries=queries, dtype=torch.bfloat16, device=device)
    check(inputs, causal=causal)
    if queries > 5 and causal:
        assert (kernels.paged_attention(*inputs)[1, :, : queries - 5] == 0).all()


def test_more_rows_than_a_tile_has(device, poisoned):
    check(paged([70], heads=9, queries=16, dtype=torch.bfloat16, device=device))


@pytest.mark.parametrize("page", [1, 5, 16, 100])
def test_pages_of_any_size(page, device, poisoned):
    check(paged([130, 1], page=page, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_far_below_zero(dtype, device, poisoned, many_multiprocessors):
    """Scores of -1024 and, in the first 256 keys, of -2048: exp() of any is 0. They are sums without a rounding."""
    q, k, v, table, lengths = paged([600], dtype=dtype, device=device)
    k = torch.where(k.isnan(), k, torch.randint(-4, 5, k.shape, device=device).to(dtype) / 64 - 8)
    k[table[0, :16].long()] -= 8
    check((torch.ones_like(q), k, v, table, lengths), scale=2.0)


def test_strides_and_offsets_of_caches(device, poisoned):
    q, k, v, table, lengths = paged([130, 20], heads=4, kv_heads=2, dtype=torch.float16, device=device)
    expected = kernels.paged_attention(q, k, v, table, lengths)

    def tokens_first(x):  # (pages, page, kv_heads, dim) in memory, as some engines keep it
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def offset(x):
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    def one_cache(x):
        return torch.stack([x, x], dim=1)[:, 1]

    def columns_first(x):
        return x.mT.contiguous().mT

    for strided in (tokens_first, offset, one_cache, columns_first):
        assert torch.equal(kernels.paged_attention(q, strided(k), strided(v), table, lengths), expected)
        assert torch.equal(kernels.paged_attention(strided(q), strided(k), v, table, lengths), expected)
    wide = torch.stack([table, table], dim=2)[..., 0]
    assert torch.equal(kernels.paged_attention(q, k, v, wide, torch.stack([lengths, lengths], 1)[:, 0]), expected)


def test_two_sequences_may_share_a_page(device):
    q, k, v, table, lengths = paged([32, 32], device=device)
    table[1] = table[0]
    check((q, k, v, table, lengths))


def test_wrong_merges_are_refused(device, many_multiprocessors, monkeypatch):
    """The tests above can fail: splits weighed alike, or the last one left out, are not as accurate."""
    inputs = paged([700], device=device)
    assert splits_of(inputs) > 2
    y = kernels.paged_attention(*inputs)
    q, k, v, table, lengths = inputs
    halves = [kernels.paged_attention(q, k, v, t.contiguous(), lengths * 0 + n) for t, n in ((table, 352),)]
    rest = kernels.paged_attention(q, k, v, table[:, 22:].contiguous(), lengths - 352)
    exact = OP.reference(*doubled(inputs))
    for wrong in ((halves[0] + rest) / 2, halves[0], y * 1.001):
        with pytest.raises(AssertionError):
            assert_as_accurate(wrong, OP.reference(*inputs), exact)


def refused(device):
    q, k, v, table, lengths = paged([40, 3], heads=4, kv_heads=2, device=device, spare=0)
    return {
        "takes one dtype": (q.half(), k, v, table, lengths),
        "takes block_table in a tensor of torch.int32, got torch.int64: convert with .int()": (
            q, k, v, table.long(), lengths,
        ),
        "takes lengths in a tensor of torch.int32, got list": (q, k, v, table, [40, 3]),
        "takes block_table of (2, width), a row per sequence of q, got (1, 3)": (q, k, v, table[:1], lengths),
        "takes lengths of (2,), a row per sequence of q, got (2, 1)": (q, k, v, table, lengths[:, None]),
        "takes one dim, k_cache and v_cache alike": (q, k, v[:1], table, lengths),
        "takes heads of q in multiples of those of k_cache": (q[:, :3], k, v, table, lengths),
        "takes heads of dim 1 to 256": (q[..., :0], k[..., :0], v[..., :0], table, lengths),
        "takes pages of at least 1 key": (q, k[:, :, :0], v[:, :, :0], table, lengths),
        "takes q of (sequences, heads, queries, dim)": (q[0], k, v, table, lengths),
    }  # fmt: skip


@pytest.mark.parametrize("said", refused("cpu"))
def test_what_does_not_fit_is_refused_in_one_line(said, device):
    with pytest.raises((TypeError, ValueError)) as raised:
        kernels.paged_attention(*refused(device)[said])
    assert str(raised.value).startswith("paged_attention takes ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def beyond(device):
    q, k, v, table, lengths = paged([40, 3], device=device, spare=0)
    far, below = table.clone(), table.clone()
    far[0, 2], below[0, 1] = len(k), -1
    return {
        "takes pages of 0 to 3, those of k_cache, got 4 in block_table for sequence 0": (q, k, v, far, lengths),
        "takes pages of 0 to 3, those of k_cache, got -1 in block_table for sequence 0": (q, k, v, below, lengths),
        "takes lengths of 0 to 48, 3 pages of 16 keys, got 49 for sequence 0": (q, k, v, table, lengths + 9),
    }


@pytest.mark.parametrize("said", beyond("cpu"))
def test_pages_and_lengths_beyond_what_there_is(said, device, monkeypatch):
    """Refused on the CPU; on a GPU, which nobody waits for, NaN of that sequence, and no other is touched."""
    inputs = beyond(device)[said]
    if not runtime.has_gpu():
        with pytest.raises(ValueError, match="paged_attention") as raised:
            kernels.paged_attention(*inputs)
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)
        monkeypatch.setattr(module, "_check_values", lambda *_: None)
    y = kernels.paged_attention(*inputs)
    assert y[0].isnan().all()
    if "lengths" not in said:
        assert y[1].isfinite().all()


def test_it_has_no_gradient(device):
    q, *rest = paged([20], device=device)
    with pytest.raises(RuntimeError, match=r"has no backward pass: use kernels\.paged_attention\.reference"):
        kernels.paged_attention(q.requires_grad_(), *rest).sum().backward()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "kv_heads"), [(1, 4), (3, 1), (16, 2)])
def test_flash_attention_takes_it_for_few_queries(queries, kv_heads, causal, device, many_multiprocessors, monkeypatch):
    monkeypatch.setattr(decode_attention, "MIN_KEYS", 200)
    calls = []
    launch = decode_attention.attend_in_splits
    monkeypatch.setattr(decode_attention, "attend_in_splits", lambda *given: calls.append(1) or launch(*given))
    q = torch.randn(2, 4, queries, 64, device=device).bfloat16()
    k, v = torch.randn(2, 2, kv_heads, 333, 64, device=device).bfloat16()
    reference = kernels.flash_attention.reference
    with variant("tuned"):
        ours = kernels.flash_attention(q, k, v, causal)
        assert calls
        assert_as_accurate(ours, reference(q, k, v, causal), reference(*doubled((q, k, v)), causal))
        kernels.flash_attention(q.requires_grad_(), k, v, causal)
    assert len(calls) == 1  # with gradients the kernels that keep what the backward pass takes


def test_the_splits_fill_the_gpu():
    assert module.splits_for(1, 128, 132) == 1
    assert module.splits_for(32, 65536, 132) == 8
    assert module.splits_for(1, 131072, 132) == module.MAX_SPLITS
    assert module.splits_for(100, 65536, 132) == 2
    assert module.splits_for(512, 2048, 132) == 1
    assert module.splits_for(10_000, 2048, 132) == 1


@pytest.mark.parametrize("queries", [1, 8])
def test_keys_and_values_are_read_once_whatever_the_group(queries, device):
    """Each split reads the queries and its sequence's length again; the merge reads what the splits wrote."""
    shape = (2, 8, 2, queries, 1040, 64)
    inputs = OP.inputs(*shape, dtype=torch.bfloat16, device=device)
    q, k, v, table, _ = inputs
    traffic = measure(kernels.paged_attention, *inputs, device="H200")
    splits = module.splits_for(4, 1040, 132)
    partial = 2 * 8 * queries * splits * (64 + 2) * 4
    assert traffic.launches == 2
    assert traffic.bytes_written == partial + 2 * q.numel()
    keys_and_values, tables = 2 * (k.numel() + v.numel()), 2 * 4 * table.numel()  # a table for each key head
    again = splits * (2 * q.numel() + 4 * 4)
    assert traffic.bytes_read == pytest.approx(keys_and_values + tables + again + partial, rel=1e-3)


def test_programs_may_run_in_any_order(device, monkeypatch, many_multiprocessors):
    if runtime.has_gpu():
        pytest.skip("a GPU has an order of its own")
    inputs = paged([300, 40], heads=4, kv_heads=2)
    expected = kernels.paged_attention(*inputs)
    in_order = runtime._in_order
    monkeypatch.setattr(runtime, "_in_order", lambda grid: reversed([*in_order(grid)]))
    assert torch.equal(kernels.paged_attention(*inputs), expected)


@pytest.mark.long
def test_pytorch_accepts_the_operation(device):
    torch.library.opcheck(module.paged_attention_op.forward_op, (*paged([5, 17], device=device), True, None))
