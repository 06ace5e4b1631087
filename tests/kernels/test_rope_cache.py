"""rope_cache: its rotation against float64, what it writes and leaves in the cache, its bytes, its errors."""

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments import compile_for, measure
from kernels import paged_attention, rope_cache
from kernels.elementwise.rope_cache import OP, rope_cache_op, rope_cache_reference, rope_table


def in_slots(cache):
    """Return the cache as (slots, key heads, dim)."""
    return cache.transpose(1, 2).flatten(0, 1)


def both(inputs):
    """Return (q, key cache, value cache) by the kernel, by PyTorch in its dtype and in float64, each on copies."""

    def by(function, convert):
        copies = [convert(x.clone()) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        return function(*copies), *copies[6:8]

    ours = by(rope_cache, lambda x: x)
    return ours, by(rope_cache_reference, lambda x: x), by(rope_cache_reference, torch.Tensor.double)


@pytest.mark.parametrize("shape", [*OP.interpreter_shapes, (3, 5, 5, 128), (17, 4, 1, 96)], ids=str)
@pytest.mark.parametrize("dtype", OP.dtypes)
def test_values(device, shape, dtype, poisoned):
    inputs = OP.inputs(*shape, dtype=dtype, device=device)
    assert_as_accurate(*both(inputs))
    assert_as_accurate(*both(inputs[:8]))  # without norms


def test_against_complex_numbers(device):
    """Rotation is multiplication by e^(i angle), in float64: an oracle that shares no code with ours."""
    q, k, v, _, positions, slots, keys, values, *_ = OP.inputs(20, 2, 1, 64, dtype=torch.float32, device=device)
    y = rope_cache(q, k, v, rope_table(80, 64, device=device), positions, slots, keys, values)
    angle = positions[:, None].double() * 10000.0 ** (-torch.arange(0, 64, 2, device=device).double() / 64)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]

    def turned(x):
        z = torch.complex(*x.double().chunk(2, dim=-1)) * turn
        return torch.cat([z.real, z.imag], dim=-1).float()

    torch.testing.assert_close(y, turned(q), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(in_slots(keys)[slots], turned(k), atol=2e-6, rtol=2e-6)
    assert torch.equal(in_slots(values)[slots], v)


def test_what_has_no_slot_is_left_alone(device):
    q, k, v, table, positions, slots, keys, values, *_ = OP.inputs(5, 2, 1, 8, dtype=torch.float32, device=device)
    slots = torch.tensor([-1, 3, 32, 2**40, -(2**40)], device=device)  # 32 slots in 2 pages of 16
    keys, values = torch.full((2, 2, 1, 16, 8), 7.0, device=device)
    y = rope_cache(q, k, v, table, positions, slots, keys, values)
    assert y.isfinite().all()
    written = (in_slots(keys) != 7).any(-1).any(-1).nonzero().flatten().tolist()
    assert written == [3]
    assert torch.equal(in_slots(values)[3], v[1])


def test_a_position_that_the_table_lacks_is_nan(device):
    inputs = list(OP.inputs(5, 2, 1, 8, dtype=torch.float32, device=device))
    inputs[4] = torch.tensor([0, 4, 5, -1, 2**40], device=device)
    y = rope_cache(*inputs)
    assert y.isnan().all(-1).all(-1).tolist() == [False, False, True, True, True]


def test_slices_of_one_projection_and_other_strides(device):
    qkv = torch.randn(5, (4 + 2 + 2) * 16, device=device)
    q, k, v = (each.view(5, -1, 16) for each in qkv.split([64, 32, 32], dim=1))
    inputs = [*OP.inputs(5, 4, 2, 16, dtype=torch.float32, device=device)]
    inputs[:3] = q, k, v
    assert_as_accurate(*both(inputs))
    inputs[:3] = (x.transpose(0, 2).contiguous().transpose(0, 2) for x in (q, k, v))
    assert_as_accurate(*both(inputs))


def test_a_cache_of_pages_of_tokens(device):
    """vLLM's order, (pages, page_size, key heads, dim), is a transposed view: written in place, without a copy."""
    inputs = [*OP.inputs(20, 2, 2, 32, dtype=torch.float32, device=device)]
    expected = [x.clone() for x in inputs]
    rope_cache(*expected)
    tokens_first = [x.transpose(1, 2).contiguous() for x in inputs[6:8]]
    inputs[6:8] = (x.transpose(1, 2) for x in tokens_first)
    rope_cache(*inputs)
    for ours, right in zip(tokens_first, expected[6:8], strict=True):
        assert torch.equal(ours.transpose(1, 2), right)


def test_paged_attention_reads_what_it_wrote(device):
    """Twenty tokens rotated and written one sequence's pages long, then read by the last query: attention to all."""
    q, k, v, table, positions, _, keys, values, *weights = OP.inputs(20, 4, 2, 32, dtype=torch.float32, device=device)
    pages = torch.tensor([2, 0], device=device)
    place = torch.arange(20, device=device)
    slots = pages[place // 16] * 16 + place % 16
    y = rope_cache(q, k, v, table, positions, slots, keys, values, *weights)
    length = torch.tensor([20], dtype=torch.int32, device=device)
    found = paged_attention(y[None, -1:].transpose(1, 2), keys, values, pages.int()[None], length)
    written = in_slots(keys)[slots].double().transpose(0, 1)
    exact = torch.nn.functional.scaled_dot_product_attention(
        y[-1:].double().transpose(0, 1), written, v.double().transpose(0, 1), enable_gqa=True
    )
    torch.testing.assert_close(found[0].double(), exact, atol=1e-5, rtol=1e-5)


def test_empty(device):
    inputs = [*OP.inputs(3, 2, 1, 8, dtype=torch.float32, device=device)]
    none = [x[:0] if i in (0, 1, 2, 4, 5) else x for i, x in enumerate(inputs)]
    assert rope_cache(*none).shape == (0, 2, 8)


def test_each_byte_once(device):
    shape = (20, 4, 2, 64)
    inputs = OP.inputs(*shape, dtype=torch.bfloat16, device=device)
    found, work = measure(rope_cache, *inputs), OP.work(shape, torch.bfloat16)
    assert found.launches == 1
    assert (found.unique_read, found.bytes_written) == (work.bytes_read, work.bytes_written)
    unfused = measure(rope_cache_reference, *inputs)
    assert unfused.launches > 10
    assert unfused.bytes_total > 4 * work.bytes


@pytest.mark.parametrize("gpu", ["A100", "H200"])
def test_nothing_spills(gpu):
    for dtype in (torch.float32, torch.bfloat16):
        arguments, options = OP.compile_arguments(64, 32, 8, 128, dtype=dtype)
        assert compile_for(OP.kernel, *arguments, device=gpu, **options).spill_bytes == 0


def test_registration(device):
    inputs = OP.inputs(3, 2, 1, 8, dtype=torch.float32, device=device)
    torch.library.opcheck(rope_cache_op, (*inputs, 1e-6))


def test_under_torch_compile(device):
    inputs = OP.inputs(5, 4, 2, 16, dtype=torch.float32, device=device)
    copies = [x.clone() for x in inputs]
    expected = rope_cache(*copies)
    compiled = torch.compile(lambda *given: rope_cache(*given) + 0, backend="aot_eager")
    assert torch.equal(compiled(*inputs), expected)
    assert torch.equal(inputs[6], copies[6])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "rope_cache takes tensors, got q of type list"),
        ({"q": torch.ones(5, 4, 7)}, ValueError, r"takes q of \(tokens, heads, even dim\), got \(5, 4, 7\)"),
        ({"k": torch.ones(4, 2, 16)}, ValueError, r"takes k and v of \(tokens, key heads, dim\) for q of \(5, 4, 16\)"),
        ({"v": torch.ones(5, 1, 16)}, ValueError, "takes k and v of"),
        ({"k": torch.ones(5, 2, 16).half()}, TypeError, "takes one dtype, got q of torch.float32 and k of"),
        ({"key_cache": torch.ones(2, 1, 16, 16)}, ValueError, r"takes caches of \(pages, 2, page_size, 16\)"),
        ({"key_cache": torch.ones(2, 2, 16, 16).mT}, ValueError, "takes caches with each head's elements side by side"),
        ({"cos_sin": torch.ones(9, 8)}, ValueError, r"takes cos_sin of \(max_position, 16\), got \(9, 8\)"),
        ({"cos_sin": None}, TypeError, "takes cos_sin in a floating-point tensor: use rope_table"),
        ({"positions": torch.ones(5).int()}, TypeError, "takes positions in a tensor of torch.int64, got torch.int32"),
        ({"slots": torch.ones(4).long()}, ValueError, r"takes slots of \(5,\), one per token, got \(4,\)"),
        ({"q_weight": torch.ones(8)}, ValueError, r"takes q_weight of q's head dimension, \(16,\), got \(8,\)"),
        ({"eps": -1.0}, ValueError, "takes eps of 0 or above, got -1.0"),
        (
            {"q": torch.ones(5, 4, 16, requires_grad=True)},
            RuntimeError,
            "rope_cache has no backward pass: call it under",
        ),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    names = "q k v cos_sin positions slots key_cache value_cache q_weight k_weight".split()
    given = dict(zip(names, OP.inputs(5, 4, 2, 16, dtype=torch.float32, device=device), strict=True)) | change
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    with pytest.raises(error, match=message) as raised:
        rope_cache(**given)
    assert "\n" not in str(raised.value)
