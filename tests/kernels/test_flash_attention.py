"""What is flash attention's own: shapes, masks, layouts, gradients, bytes, registration, errors and resources."""

import pytest
import torch
from accuracy import assert_as_accurate
from hypothesis import given, settings, strategies
from rewritten import rewritten

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import flash_attention, variant
from kernels.descriptors import described
from kernels.interpreter import runtime
from kernels.tiled import flash_attention as module
from kernels.tiled.flash_attention import (
    OP,
    FlashAttention,
    flash_attention_op,
    flash_attention_reference,
)
from kernels.tuned import hopper_attention, hopper_attention_backward
from kernels.tuned.hopper_attention import heads_together
from kernels.tuned.hopper_attention_backward import num_splits

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
HALF = torch.bfloat16 if runtime.has_gpu() else torch.float16


def operands(batch, heads, kv_heads, queries, keys, dim, device, dtype=HALF):
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim)
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def with_gradients(function, tensors, weight, *rest, dtype=None):
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]
    out = function(*leaves, *rest)
    return out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))


def check(tensors, *rest):
    weight = torch.randn_like(tensors[0])
    results = (
        with_gradients(flash_attention, tensors, weight, *rest),
        with_gradients(flash_attention_reference, tensors, weight, *rest),
        with_gradients(flash_attention_reference, tensors, weight, *rest, dtype=torch.float64),
    )
    assert_as_accurate(*results)
    assert all(x.is_contiguous() for x in results[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [  # batch, heads, key heads, queries, keys, dim
        (1, 1, 1, 1, 1, 32),
        (2, 2, 1, 127, 130, 40),
        (1, 4, 2, 70, 33, 64),
        (1, 3, 3, 1, 200, 80),
        (1, 2, 2, 130, 127, 96),
        (1, 2, 1, 129, 257, 128),
        (1, 1, 1, 65, 40, 256),
        (1, 1, 1, 9, 17, 7),
        (2, 14, 1, 70, 33, 40),  # one key head for many query heads
    ],
    ids=str,
)
def test_shapes_and_their_gradients(device, shape, causal, poisoned):
    check(operands(*shape, device), causal)


def test_programs_share_keys_where_there_are_few():
    assert num_splits(132, 512, 132, False) == 1
    assert num_splits(33, 512, 132, False) == 4  # one each
    assert num_splits(34, 512, 132, False) != 4  # four more than run at a time
    assert num_splits(33, 512, 132, True) > 4  # of many lengths
    assert num_splits(1, 15, 132, False) == 1  # shorter than what a part costs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_types(device, dtype, poisoned):
    check(operands(1, 2, 1, 35, 50, 48, device, dtype), True)


def test_a_given_scale(device):
    check(operands(1, 1, 1, 20, 30, 32, device), False, 0.7)


def test_a_wrong_answer_is_not_as_accurate(device):
    """The rule can fail: one key too many for each query, and an output not divided by its sum's last part."""
    tensors = operands(1, 1, 1, 40, 40, 32, device, torch.float32)
    exact = flash_attention_reference(*[x.double() for x in tensors], True)
    theirs = flash_attention_reference(*tensors, True)
    shifted = flash_attention(tensors[0][:, :, 1:], *tensors[1:], True)
    for wrong, truth, native in (
        (shifted, exact[:, :, :-1], theirs[:, :, :-1]),
        (flash_attention(*tensors, True) * 1.01, exact, theirs),
    ):
        with pytest.raises(AssertionError):
            assert_as_accurate(wrong, native, truth)


def test_causal_programs_reach_every_head_in_their_order(device, poisoned):
    """More heads than stand side by side, and a last few fewer than that."""
    q, k, v = operands(1, 514, 2, 1, 3, 16, device)
    ours, theirs, exact = (
        flash_attention(q, k, v, True),
        flash_attention_reference(q, k, v, True),
        flash_attention_reference(q.double(), k.double(), v.double(), True),
    )
    assert_as_accurate(ours, theirs, exact)


def test_queries_that_see_no_key_give_zero_and_take_no_gradient(device, poisoned):
    q, k, v = operands(1, 2, 2, 150, 20, 32, device)
    out, grad_q, grad_k, grad_v = with_gradients(flash_attention, (q, k, v), torch.ones_like(q), True)
    assert not out[:, :, :130].any()
    assert not grad_q[:, :, :130].any()
    assert all(x.isfinite().all() for x in (out, grad_q, grad_k, grad_v))
    assert not flash_attention(q, k[:, :, :0], v[:, :, :0]).any()


@settings(max_examples=8)
@given(
    queries=strategies.integers(1, 140),
    keys=strategies.integers(1, 140),
    causal=strategies.booleans(),
    seed=strategies.integers(0, 99),
)
def test_probabilities_sum_to_one(queries, keys, causal, seed):
    """With v all ones every query that sees a key gives ones; the others zeros."""
    torch.manual_seed(seed)
    device = "cuda" if runtime.has_gpu() else "cpu"
    q, k, v = operands(1, 1, 1, queries, keys, 16, device)
    q, v = 8 * q, torch.ones_like(v)
    out = flash_attention(q, k, v, causal)
    expected = torch.ones_like(out, dtype=torch.float64)
    if causal:
        expected[:, :, : max(0, queries - keys)] = 0
    assert_as_accurate(out, flash_attention_reference(q, k, v, causal), expected)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_nan_and_infinity_stay_in_their_rows(device, dtype):
    q, k, v = operands(1, 1, 1, 70, 90, 32, device, dtype)
    clean = flash_attention(q, k, v, True)
    q[0, 0, 3, 5] = torch.nan
    q[0, 0, 66, 0] = torch.inf
    out = flash_attention(q, k, v, True)
    assert out[0, 0, [3, 66]].isnan().all()
    keep = [row for row in range(70) if row not in (3, 66)]
    assert torch.equal(out[0, 0, keep], clean[0, 0, keep])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("seed", [0, 3, 7])  # by 3 and 7 rows see one key alone: all but 0
def test_scores_far_beyond_what_an_exponential_holds(device, sign, seed):
    """All of them near -800 or 800; a lane past the last key, whose score is 0, must not become inf times 0.

    A score and a row's logarithm are near 1154 by base 2, so that fp32 knows each probability to that many roundings:
    each term of a result may be off by so much of itself, also where the terms cancel; and a probability's gradient
    less its row's mean by a rounding of what both are sums of.
    """
    torch.manual_seed(seed)
    q, k, v = operands(1, 1, 1, 40, 33, 64, device, torch.float32)
    tensors, weight = (10 + q, sign * (10 + k), v), torch.randn_like(q)
    ours, theirs = (with_gradients(f, tensors, weight) for f in (flash_attention, flash_attention_reference))
    exact = with_gradients(flash_attention_reference, tensors, weight, dtype=torch.float64)
    q, k, v, grad = (x.double() for x in (*tensors, weight))
    probability, grad_p = (q @ k.mT / 8).softmax(-1), grad @ v.mT
    grad_s = (probability * (grad_p - (probability * grad_p).sum(-1, keepdim=True))).abs()
    grad_s = (grad_s + probability * (grad.abs() @ v.abs().mT) / 1154) / 8
    terms = probability @ v.abs(), grad_s @ k.abs(), grad_s.mT @ q.abs(), probability.mT @ grad.abs()
    for x, native, truth, most in zip(ours, theirs, exact, terms, strict=True):
        roundings = 1154 * torch.finfo(torch.float32).eps * most.amax()
        assert (x - truth).abs().amax() <= 2 * (native - truth).abs().amax() + roundings


def test_heads_inside_tokens_are_not_copied(device):
    """(batch, tokens, heads, dim), as a projection gives them, seen as (batch, heads, tokens, dim)."""
    joined = torch.randn(2, 50, 3, 4, 32, device=device, dtype=HALF)
    q, k, v = (x.transpose(1, 2) for x in joined.unbind(2))
    assert measure(flash_attention, q, k, v).launches == 1
    check((q, k, v), True)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: torch.stack([x, x], dim=-1)[..., 0],
        lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
        lambda x: x.mT.contiguous().mT,
        lambda x: x[:, :1].expand_as(x),
    ],
    ids=["every other element", "odd offset", "columns first", "expanded"],
)
def test_layouts_that_descriptors_cannot_tell_of_are_copied(device, view):
    check([view(x) for x in operands(1, 2, 2, 20, 30, 40, device)], True)


def test_traffic_is_linear_in_the_tokens(device):
    """Distinct bytes, as memory sees them: what eager's would be grows with the square."""
    distinct = {}
    for tokens in (128, 256):
        q, k, v = operands(1, 1, 1, tokens, tokens, 32, device)
        fused = measure(flash_attention, q, k, v)
        assert (fused.launches, fused.hazards) == (1, ())
        assert (fused.unique_read, fused.unique_written) == (3 * q.nbytes, q.nbytes)
        # k and v are asked for once a tile of queries; memory sees that once, L2 answers the rest.
        rows = module.settings("forward", 32, HALF)["BLOCK_M"]
        assert fused.bytes_read == q.nbytes + tokens // rows * 2 * k.nbytes
        eager = measure(flash_attention_reference, q, k, v)
        assert (eager.launches, eager.bytes_total) == (4, 12 * tokens**2 + 8 * tokens * 32)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = flash_attention(*leaves)
        backward = measure(lambda out=out, leaves=leaves: torch.autograd.grad(out, leaves, torch.ones_like(out)))
        assert backward.hazards == ()
        distinct[tokens] = fused.unique_read + fused.unique_written, backward.unique_read + backward.unique_written
    assert all(double == 2 * once for once, double in zip(distinct[128], distinct[256], strict=True))


def test_causal_programs_skip_what_no_query_sees(device):
    q, k, v = operands(1, 1, 1, 256, 256, 32, device)
    assert (
        measure(flash_attention, q, k, v, True).by_tensor["k"].read
        < measure(flash_attention, q, k, v).by_tensor["k"].read
    )


def test_registration(device):
    q, k, v = (x.requires_grad_() for x in operands(1, 2, 1, 5, 9, 16, device, torch.float32))
    torch.library.opcheck(flash_attention_op.forward_op, (q.detach(), k.detach(), v.detach(), True, None))
    torch.library.opcheck(flash_attention_op.training_op, (q, k, v, True, None))
    out, lse = flash_attention_op.training_op(q, k, v, True, None)
    saved = [x.detach() for x in (torch.randn_like(out), q, k, v, out, lse)]
    torch.library.opcheck(
        flash_attention_op.backward_op, (*saved, True, None), test_utils=("test_schema", "test_faketensor")
    )


def test_the_module_and_autocast(device):
    q, k, v = operands(1, 2, 2, 20, 20, 32, device, torch.float32)
    assert torch.equal(FlashAttention(causal=True)(q, k, v), flash_attention(q, k, v, True))
    with pytest.raises(TypeError, match="FlashAttention takes causal as bool, got 'no' of type str"):
        FlashAttention(causal="no")
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = flash_attention(q, k, v)
    assert torch.equal(inside, flash_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


@pytest.mark.parametrize(
    ("dim", "causal"),
    [(128, True), *(pytest.param(*each, marks=pytest.mark.long) for each in ((64, False), (64, True), (128, False)))],
)
def test_the_backward_does_not_spill_and_its_instructions_are_those_of_the_docstring(dim, causal):
    x, values = (torch.empty(shape, device="meta") for shape in ((1, 16, 4096, dim), (1, 16, 4096)))
    x, sizes = x.bfloat16(), (16, 1, 4096, 4096)
    for launch, kernel in (("grad_q", module.grad_q_kernel), ("grad_kv", module.grad_kv_kernel)):
        chosen = module.settings(launch, dim, x.dtype)
        stays, passes = (described(x, [1, 1, chosen[rows], chosen["BLOCK_D"]]) for rows in ("BLOCK_M", "BLOCK_N"))
        if launch == "grad_q":
            its_values = described(values, [1, 1, chosen["BLOCK_M"]])
            tensors = stays, stays, stays, passes, passes, its_values, its_values, stays
            chosen["MASKED"] = causal
        else:
            its_values = described(values, [1, 1, chosen["BLOCK_N"]])
            tensors = stays, stays, passes, passes, its_values, its_values, stays, stays
        found = compile_for(kernel, *tensors, *sizes, device="H100", SCALE=0.125, CAUSAL=causal, **chosen)
        counts = found.instructions
        assert (found.spill_bytes, counts["HGMMA"] > 0, counts["UTMALDG"] > 0) == (0, True, True)


@pytest.mark.parametrize(
    "dim", [64, pytest.param(128, marks=pytest.mark.long), pytest.param(256, marks=pytest.mark.long)]
)
def test_the_forward_does_not_spill_and_its_instructions_are_those_of_the_docstring(dim):
    arguments, options = OP.compile_arguments(4, 16, 4096, dim, True, dtype=torch.bfloat16)
    found = compile_for(OP.kernel, *arguments, device="H100", **options)
    counts = found.instructions
    assert (found.spill_bytes, counts["HGMMA"] > 0, counts["UTMALDG"] > 0) == (0, True, True)


@pytest.mark.parametrize(
    ("dim", "causal", "tokens", "keeps_lse"),
    [
        (128, True, 4096, True),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (64, False, 4096, True),
                (64, False, 4096, False),
                (64, True, 8192, True),
                (128, False, 4096, True),
                (128, True, 128, True),
                (256, True, 4096, True),
            )
        ),
    ],
)
def test_the_kernel_with_roles_by_hand_spills_nothing_and_gives_registers_away(dim, causal, tokens, keeps_lse):
    x, lse = (torch.empty(shape, device="meta") for shape in ((4, 16, tokens, dim), (4, 16, tokens)))
    arguments, options = hopper_attention.operands(*[x.bfloat16()] * 4, lse if keeps_lse else None, causal, None)
    found = compile_for(hopper_attention.flash_attention_hopper_kernel, *arguments, device="H200", **options)
    counts = found.instructions
    assert found.spill_bytes == 0
    assert all(counts[name] > 0 for name in ("HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"))
    assert found.shared_memory <= 232448


@pytest.mark.parametrize(
    ("dim", "causal", "parts", "whole"),
    [
        (64, True, 1, False),
        pytest.param(64, True, 1, True, marks=pytest.mark.long),
        pytest.param(128, False, 1, False, marks=pytest.mark.long),
        pytest.param(128, True, 4, False, marks=pytest.mark.long),
        (128, True, 1, True),
    ],
)
def test_five_products_by_hand_keep_their_sums_in_registers(dim, causal, parts, whole):
    """What spills is numbers and addresses of the walk. A sum of gradients has dim / 2 numbers per thread: if it
    spilled, each of the two groups of warps would store 2 * dim bytes."""
    x, values = (
        torch.empty((4, 16, 256, dim), dtype=torch.bfloat16, device="meta"),
        torch.empty((4, 16, 256), device="meta"),
    )
    grad = x if parts == 1 else torch.empty((4, 16 * parts, 256, dim), device="meta")
    scratch = torch.empty((64, 1, 4, 64, 128), device="meta") if whole else None
    tensors = *[x] * 4, values, values, x if whole else x.float(), grad, grad, scratch
    arguments, options = hopper_attention_backward.operands(*tensors, causal, 0.1)
    found = compile_for(hopper_attention_backward.grads_kernel, *arguments, device="H200", **options)
    counts = found.instructions
    assert found.spill_stores < 4 * dim
    assert all(counts[name] > 0 for name in ("HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"))
    assert (counts["UTMAREDG"] > 0) == (not whole)
    assert found.shared_memory <= 232448


@pytest.mark.parametrize(
    ("shape", "causal", "keeps_lse", "groups"),
    [
        ((4, 16, 16, 4096, 4096, 64), False, False, 3),
        ((4, 16, 16, 4096, 4096, 64), False, True, 2),  # three would spill
        ((4, 16, 16, 4096, 4096, 64), True, False, 2),
        ((1, 16, 16, 16384, 16384, 64), True, True, 3),
        ((8, 10, 10, 4096, 77, 64), False, False, 2),  # long, but with one step
        ((4, 16, 16, 77, 4096, 128), False, False, 1),  # 64 tiles of 128 queries, or 128 of 64
        ((4, 16, 16, 512, 4096, 128), False, False, 2),
        ((128, 16, 16, 128, 128, 128), False, True, 1),
        ((128, 16, 16, 128, 128, 128), True, True, 2),
        ((1, 2, 2, 64, 64, 256), False, False, 2),
    ],
)
def test_groups_of_warps_by_shape(shape, causal, keeps_lse, groups, monkeypatch):
    monkeypatch.setattr(hopper_attention, "multiprocessors", lambda _: 132)
    batch, heads, kv_heads, queries, keys, dim = shape
    q, k = (torch.empty(sizes, device="meta") for sizes in ((batch, heads, queries, dim), (batch, kv_heads, keys, dim)))
    assert hopper_attention.groups_of(q, k, causal, keeps_lse) == groups


def shares(blocks: int, heads: int, programs: int) -> list[int]:
    """Steps of each program: tiles in groups of heads, the longest first, dealt to programs there and back."""
    side = heads_together(blocks, heads, programs)
    groups = [min(side, heads - first) for first in range(0, heads, side)]
    steps = [block for count in groups for block in range(blocks, 0, -1) for _ in range(count)]
    there_and_back = [*range(programs), *reversed(range(programs))]
    taken = [0] * programs
    for place, length in enumerate(steps):
        taken[there_and_back[place % (2 * programs)]] += length
    assert sum(taken) == heads * blocks * (blocks + 1) // 2
    return taken


@pytest.mark.parametrize(
    ("blocks", "heads", "together"),
    [(2, 1024, 66), (4, 512, 33), (8, 256, 1), (16, 128, 1), (32, 64, 1), (128, 16, 16), (64, 8, 8), (256, 8, 8)],
)
def test_programs_get_even_shares_of_causal_tiles(blocks, heads, together):
    assert heads_together(blocks, heads, 132) == together
    taken = shares(blocks, heads, 132)
    assert max(taken) < 1.08 * sum(taken) / 132


@pytest.fixture
def by_hand():
    """Which kernels for Hopper were launched, whatever --tier chose; the test needs that GPU."""
    if not runtime.has_gpu() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    launched = []

    def noting(module, name):
        launch = module.launch

        def noted(*given):
            launched.append(name)
            return launch(*given)

        return module, "launch", noted

    with variant("tuned"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(*noting(hopper_attention, "forward"))
        patch.setattr(*noting(hopper_attention_backward, "backward"))
        yield launched


@pytest.fixture
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [  # batch, heads, key heads, queries, keys, dim
        (1, 1, 1, 1, 2, 128),
        (1, 1, 1, 64, 128, 128),
        (2, 4, 2, 127, 127, 128),
        (1, 3, 1, 1025, 1025, 80),
        (2, 8, 8, 4096, 4096, 128),
        (1, 8, 2, 1, 4096, 128),  # a token that is written
        (1, 4, 4, 700, 1025, 96),
        (1, 4, 2, 1025, 300, 72),  # causal: queries that see no key, blocks of them too
        (1, 80, 10, 513, 2047, 128),  # several tiles for a program, or programs for longer than there is room
        (1, 80, 10, 2047, 2500, 128),
        (1, 16, 1, 1000, 700, 96),  # programs that share a block of keys
        (2, 2, 2, 300, 128, 128),  # one block of keys
        (20, 16, 8, 256, 300, 128),  # three, of more heads than programs
        (20, 16, 8, 190, 200, 80),  # two
        (1, 4, 2, 700, 1025, 200),
        (1, 80, 10, 513, 700, 256),
        (2, 4, 2, 2047, 2100, 64),
        (20, 16, 8, 256, 300, 64),
        (1, 16, 1, 1000, 700, 48),
        (1, 4, 2, 1025, 300, 40),
        (80, 16, 8, 256, 200, 64),  # few keys, many tiles
        (90, 16, 4, 130, 77, 40),
        (1, 32, 4, 4100, 4100, 64),  # many tiles of long heads: three groups of warps, or two
    ],
    ids=str,
)
def test_roles_by_hand(shape, causal, by_hand, poisoned):
    tensors = operands(*shape, "cuda", torch.float16 if causal else torch.bfloat16)
    check(tensors, causal)
    ours = flash_attention(*tensors, causal)
    assert torch.equal(ours, flash_attention(*tensors, causal))
    batch, _, _, queries, keys, dim = shape
    # Without gradients, a token that is written is decode_attention's: only the call that keeps them is by hand.
    forward = 1 if queries == 1 and keys > 1000 else 3
    assert (by_hand.count("forward"), by_hand.count("backward")) == (
        forward if dim > 64 or batch >= 80 or queries >= 4100 else 0,
        1 if dim <= 128 else 0,
    )
    if causal and queries > keys:
        assert not ours[:, :, : queries - keys].any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("groups", "dim"), [(1, 128), (2, 64), (2, 128), (2, 256), (3, 40), (3, 64)])
@pytest.mark.parametrize(
    ("shape", "parts"),
    [  # batch, heads, key heads, queries, keys; programs that share a block of keys
        ((2, 6, 2, 2, 3), 5),  # some with no step
        ((2, 6, 2, 70, 150), 1),  # one step a head, and one tile with two or three groups
        ((2, 6, 2, 391, 120), 1),  # one block of keys; causal: tiles of queries that see no key
        ((3, 6, 2, 263, 391), 1),
        ((3, 6, 2, 263, 391), 5),
    ],
    ids=str,
)
def test_any_number_of_groups_of_warps_by_hand(shape, parts, groups, dim, causal, by_hand, poisoned, monkeypatch):
    """Small shapes would mostly get one number of groups, and no programs that share a block."""
    monkeypatch.setattr(hopper_attention, "_serves", lambda *_: True)
    monkeypatch.setattr(hopper_attention, "groups_of", lambda *_: groups)
    monkeypatch.setattr(hopper_attention_backward, "num_splits", lambda *_: parts)
    tensors = operands(*shape, dim, "cuda")
    check(tensors, causal)
    queries, keys = shape[3:]
    for _ in range(20):
        ours = flash_attention(*tensors, causal)
        assert not causal or not ours[:, :, : max(queries - keys, 0)].any()
        assert torch.equal(ours, flash_attention(*tensors, causal))
    assert by_hand.count("forward") == 41
    assert by_hand.count("backward") == (1 if dim <= 128 else 0)


@pytest.mark.parametrize("causal", [False, True])
def test_roles_by_hand_of_one_key_give_its_value(causal, by_hand, poisoned):
    """No gradient reaches q or k then, and no rounding may be told from it."""
    q, k, v = operands(1, 2, 2, 1, 1, 128, "cuda")
    assert_as_accurate(flash_attention(q, k, v, causal), v, v.double())
    assert by_hand == ["forward"]


@pytest.mark.parametrize("causal", [False, True])
def test_roles_by_hand_give_the_plain_kernels_log_sum_exp(causal, by_hand):
    tensors = operands(2, 4, 2, 300, 513, 128, "cuda")
    out, lse = flash_attention_op.training_op(*tensors, causal, None)
    with variant("plain"):
        plain = flash_attention_op.training_op(*tensors, causal, None)
    assert by_hand == ["forward"]
    exact = flash_attention_reference(*[x.double() for x in tensors], causal)
    for each in (out, plain[0]):
        assert_as_accurate(each, flash_attention_reference(*tensors, causal), exact)
    torch.testing.assert_close(lse, plain[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("groups", "dim"), [(1, 128), (2, 128), (3, 64)])
def test_roles_by_hand_keep_infinities_in_their_rows(groups, dim, by_hand, monkeypatch):
    monkeypatch.setattr(hopper_attention, "_serves", lambda *_: True)
    monkeypatch.setattr(hopper_attention, "groups_of", lambda *_: groups)
    q, k, v = operands(1, 2, 2, 300, 400, dim, "cuda")
    clean = flash_attention(q, k, v, True)
    q[0, 0, 3, 5] = torch.nan
    q[0, 1, 200, 0] = torch.inf
    out = flash_attention(q, k, v, True)
    assert out[0, 0, 3].isnan().all()
    assert out[0, 1, 200].isnan().all()
    touched = torch.zeros(out.shape[:3], dtype=torch.bool, device="cuda")
    touched[0, 0, 3] = touched[0, 1, 200] = True
    assert torch.equal(out[~touched], clean[~touched])
    k[:, :, -128:] = -torch.inf  # the tile that comes first: q of one sign hides it by its own values
    out = flash_attention(q.nan_to_num(1, 1).abs() + 0.1, k, v)
    given = q.nan_to_num(1, 1).abs() + 0.1, k[:, :, :-128], v[:, :, :-128]
    assert_as_accurate(out, flash_attention_reference(*given), flash_attention_reference(*[x.double() for x in given]))


@pytest.mark.long  # what another Triton may do otherwise
def test_the_compiler_keeps_the_columns_numbers_where_it_can(tmp_path):
    """When this fails, the kernel can write the mask either way."""
    ours = "(n + tl.arange(0, BLOCK_N))[None, :] <= last[:, None]"
    keeping = rewritten(OP.kernel, tmp_path, ours, "tl.arange(0, BLOCK_N)[None, :] <= (last - n)[:, None]")
    arguments, options = OP.compile_arguments(4, 16, 4096, 64, True, dtype=torch.bfloat16)
    registers = [compile_for(each, *arguments, device="H100", **options).registers for each in (keeping, OP.kernel)]
    assert registers[0] > registers[1] + 16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q, k, v: ([1.0], k, v), TypeError, "takes tensors, got q of type list"),
        (
            lambda q, k, v: (q, k.double(), v),
            TypeError,
            "takes one dtype, got q of torch.float16 and k of torch.float64",
        ),
        (lambda q, k, v: (q[0], k, v), ValueError, r"takes \(batch, heads, tokens, dim\), got q of \(4, 8, 16\)"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), ValueError, "one batch and dim, k and v alike, got q of"),
        (lambda q, k, v: (q[..., :8], k, v), ValueError, "one batch and dim, k and v alike, got q of"),
        (lambda q, k, v: (q[:, :3], k, v), ValueError, "heads of q in multiples of those of k, got q of"),
        (lambda q, k, v: (*(x.repeat(1, 1, 1, 17) for x in (q, k, v)),), ValueError, "heads of dim 1 to 256, got q of"),
        (lambda q, k, v: (q, k, v, False, -1.0), ValueError, "takes a positive scale, got -1.0: negate q"),
        (
            lambda q, k, v: (q, k, v, False, 1e-50),
            ValueError,
            r"takes a scale of 2\^-126 to 2\^127, fp32's range, got 1e",
        ),
        (
            lambda q, k, v: (q, k, v, False, 1e39),
            ValueError,
            r"takes a scale of 2\^-126 to 2\^127, fp32's range, got 1e",
        ),
        (lambda q, k, v: (q, k.to("meta"), v), ValueError, "takes tensors on one device, got q on"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    arguments = change(*operands(2, 4, 2, 8, 8, 16, device, torch.float16))
    with pytest.raises(error, match=f"flash_attention {message}" if message.startswith("takes") else message) as raised:
        flash_attention(*arguments)
    assert "\n" not in str(raised.value)


@gpu_only
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_large_and_the_same_bits_each_time_where_that_is_asked_for(dim, causal, deterministic):
    tensors = operands(2, 8, 2, 2000, 3001, dim, "cuda")
    check(tensors, causal)
    weight = torch.randn_like(tensors[0])
    first = with_gradients(flash_attention, tensors, weight, causal)
    for again, once in zip(with_gradients(flash_attention, tensors, weight, causal), first, strict=True):
        assert torch.equal(again, once)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("keys", [120, 200])
def test_all_gradients_by_hand_are_the_same_bits_where_one_program_takes_all_keys(keys, dim, causal, by_hand):
    """Also grad_q, which two groups of warps make of each other's numbers, a step late, tile by tile in one order."""
    tensors = operands(20, 16, 8, min(keys, 190), keys, dim, "cuda")
    weight = torch.randn_like(tensors[0])
    first = with_gradients(flash_attention, tensors, weight, causal)
    for _ in range(20):
        again = with_gradients(flash_attention, tensors, weight, causal)
        assert all(torch.equal(x, y) for x, y in zip(again, first, strict=True))
    assert by_hand.count("backward") == 21


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_of_keys_and_values_by_hand_are_the_same_bits_each_time(dim, causal, by_hand):
    tensors = operands(2, 8, 2, 1000, 1500, dim, "cuda")
    weight = torch.randn_like(tensors[0])
    first, again = (with_gradients(flash_attention, tensors, weight, causal) for _ in range(2))
    assert by_hand.count("backward") == 2
    for x, y in zip((first[0], *first[2:]), (again[0], *again[2:]), strict=True):
        assert torch.equal(x, y)


@gpu_only
def test_strides_past_two_to_the_31(deterministic):
    check_far_strides((0, 1, 2, 3))


def test_strides_past_two_to_the_31_by_hand(by_hand):
    """All but grad_q, whose bits may differ."""
    check_far_strides((0, 2, 3))
    assert by_hand.count("backward") == 2


def check_far_strides(compared):
    """Of the output and the gradients of q, k and v, those at `compared` are the same bits wherever the heads lie."""
    shape, far = (2, 1, 300, 128), 2**31 + 1024
    spread = [
        torch.empty(far + 300 * 128, dtype=torch.bfloat16, device="cuda").as_strided(shape, (far, 128, 128, 1))
        for _ in range(3)
    ]
    near = operands(2, 1, 1, 300, 300, 128, "cuda")
    for x, y in zip(spread, near, strict=True):
        x.copy_(y)
    weight = torch.randn_like(near[0])
    results = [with_gradients(flash_attention, tensors, weight, True) for tensors in (spread, near)]
    assert all(torch.equal(results[0][i], results[1][i]) for i in compared)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_a_first_tile_whose_scores_are_all_minus_infinity(device, dtype):
    """Its keys are hidden by their own values; the tiles fit, so that no mask is applied."""
    q, k, v = operands(1, 1, 1, 64, 256, 32, device, dtype)
    q = q.abs() + 0.1
    k[:, :, :128] = -torch.inf
    out = flash_attention(q, k, v)
    exact = flash_attention_reference(q.double(), k[:, :, 128:].double(), v[:, :, 128:].double())
    assert_as_accurate(out, flash_attention_reference(q, k[:, :, 128:], v[:, :, 128:]), exact)
