"""What is moe_int8's own: routing, empty and crowded experts, the same bits each time, its bytes, its registers."""

import math
import re

import pytest
import torch
from accuracy import assert_as_accurate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rewritten import rewritten

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import moe_int8, routing, variant
from kernels.activations import ACTIVATIONS
from kernels.interpreter import runtime
from kernels.routing import routed
from kernels.tiled import moe_int8 as module
from kernels.tiled.moe_int8 import OP, moe_int8_op, moe_int8_reference
from kernels.tuned import moe_int8 as tuned_module
from kernels.tuned.moe_int8 import FEW, SMALL, moe_int8_descriptors_kernel, moe_int8_few_kernel, small_settings

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
HALF = torch.bfloat16 if runtime.has_gpu() else torch.float16
DEVICE = "cuda" if runtime.has_gpu() else "cpu"


@pytest.fixture(params=["plain", "one launch", "two launches", "four launches"])
def tokens(request, monkeypatch):
    """How many tokens to take, for each way the layer can go."""
    if request.param == "four launches":
        monkeypatch.setattr(tuned_module, "SMALL", 0)
    with variant("plain" if request.param == "plain" else "tuned"):
        yield 3 if request.param == "one launch" else FEW + 1


def one_token_at_a_time(x, logits, weight, scale, top_k=8, act="silu", dtype=torch.float64):
    """The layer by its definition, in `dtype`: another program than the reference, slow and plain."""
    rows = []
    for token, scores in zip(x.to(dtype), logits.to(dtype), strict=True):
        chosen = sorted(range(len(scores)), key=lambda e: (-scores[e].item(), e))[:top_k]
        gates = scores[chosen].softmax(dim=0)
        experts = [weight[e].to(dtype) * scale[e].to(dtype)[:, None] @ token for e in chosen]
        rows.append(sum(gate * ACTIVATIONS[act](h) for gate, h in zip(gates, experts, strict=True)))
    return torch.stack(rows)


def check(ours, arguments, **options):
    exact = one_token_at_a_time(*arguments, **options)
    assert_as_accurate(ours, moe_int8_reference(*arguments, **options), exact)


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 3), (6, 6), (70, 2)])
def test_experts_and_how_many_are_chosen(device, tokens, experts, top_k, poisoned):
    arguments = OP.inputs(tokens, 32, 20, experts, dtype=HALF, device=device)
    check(moe_int8(*arguments, top_k=top_k), arguments, top_k=top_k)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(device, tokens, act):
    arguments = OP.inputs(tokens, 16, 8, 4, dtype=HALF, device=device)
    check(moe_int8(*arguments, top_k=2, act=act), arguments, top_k=2, act=act)


@pytest.mark.parametrize("favourites", [(3,), (3, 0)])
def test_all_tokens_to_the_same_experts_and_none_to_the_others(device, tokens, favourites, poisoned):
    x, logits, weight, scale = OP.inputs(tokens, 32, 20, 7, dtype=HALF, device=device)
    logits[:, favourites] += 100
    scale[[e for e in range(7) if e not in favourites]] = torch.nan  # nobody may look at them
    y = moe_int8(x, logits, weight, scale, top_k=len(favourites))
    check(y, (x, logits, weight, scale), top_k=len(favourites))


def test_a_wrong_layer_is_not_as_accurate(device, tokens):
    """The rule can fail: gates over all experts, another expert's weights, one expert too few, no activation."""
    arguments = x, logits, weight, scale = OP.inputs(tokens, 32, 20, 6, dtype=HALF, device=device)
    gates = logits.float().softmax(dim=1)
    kept = torch.where(logits >= logits.topk(2, dim=1).values[:, -1:], gates, 0.0).sum(dim=1, keepdim=True)
    for wrong in (
        moe_int8(*arguments, top_k=2) * kept,
        moe_int8(x, logits, weight.roll(1, dims=0), scale, top_k=2),
        moe_int8(*arguments, top_k=1),
        moe_int8(*arguments, top_k=2, act="relu"),
    ):
        with pytest.raises(AssertionError):
            check(wrong.to(x.dtype), arguments, top_k=2)


def test_equal_logits_go_to_the_first_experts(device, tokens):
    x, _, weight, scale = OP.inputs(tokens, 16, 8, 5, dtype=torch.float32, device=device)
    logits = torch.tensor([0.0, -0.0, 0.0, 0.0, -1.0], device=device).expand(tokens, 5)
    theirs, exact = (
        one_token_at_a_time(x, logits, weight, scale, top_k=3, dtype=dtype) for dtype in (x.dtype, torch.float64)
    )
    assert_as_accurate(moe_int8(x, logits, weight, scale, top_k=3), theirs, exact)


@pytest.mark.parametrize("odd", [torch.nan, -torch.nan, torch.inf])
def test_a_token_that_cannot_be_routed_says_so_and_harms_no_other(device, tokens, odd):
    x, logits, weight, scale = OP.inputs(tokens, 16, 8, 5, dtype=torch.float32, device=device)
    logits[1, 3] = odd
    logits[2] = -torch.inf
    y = moe_int8(x, logits, weight, scale, top_k=2)
    assert y[1:3].isnan().all()
    others = [token for token in range(tokens) if token not in (1, 2)]
    check(y[others], (x[others], logits[others], weight, scale), top_k=2)


@pytest.mark.parametrize("favourite", [0, 3])
def test_more_tokens_than_a_tile_in_two_launches(device, favourite):
    """An expert whose tokens fill two tiles and begin a third: it reads its weights three times."""
    arguments = OP.inputs(33, 32, 20, 8, dtype=HALF, device=device)
    arguments[1][:, favourite] += 100
    with variant("tuned"):
        check(moe_int8(*arguments, top_k=1), arguments, top_k=1)
    with variant("tuned"):
        traffic = measure(moe_int8, *arguments, 1)
    assert (traffic.launches, traffic.by_tensor["weight"].read) == (2, 3 * 20 * 32)


def test_infinite_tokens_stay_alone(device, tokens):
    x, logits, weight, scale = OP.inputs(tokens, 32, 8, 5, dtype=torch.float32, device=device)
    expected = moe_int8(x, logits, weight, scale, top_k=2)
    x[0, 5] = torch.inf
    y = moe_int8(x, logits, weight, scale, top_k=2)
    assert not y[0].isfinite().all()
    assert torch.equal(y[1:], expected[1:])


def test_all_of_int8_is_exact(device, tokens):
    """Weights from -128 to 127 and small whole numbers make whole sums, which nothing may round."""
    x = torch.randint(-3, 4, (tokens, 256), device=device).to(HALF)
    weight = torch.arange(-128, 128, device=device).to(torch.int8).expand(2, 8, 256).contiguous()
    scale = torch.ones(2, 8, dtype=torch.float32, device=device)
    logits = torch.zeros(tokens, 2, device=device)
    y = moe_int8(x, logits, weight, scale, top_k=1, act="relu")
    whole = (x.double() @ weight[0].double().T).relu()
    assert torch.equal(y.double(), whole.to(HALF).double())


def test_the_same_bits_each_time_and_in_any_order(device):
    arguments = x, logits, weight, scale = OP.inputs(20, 32, 20, 6, dtype=HALF, device=device)
    y = moe_int8(*arguments, top_k=3)
    assert torch.equal(moe_int8(*arguments, top_k=3), y)
    order = torch.randperm(20, device=device)
    assert torch.equal(moe_int8(x[order], logits[order], weight, scale, top_k=3), y[order])


def test_leading_shapes_and_other_dtypes(device):
    x, logits, weight, scale = OP.inputs(12, 32, 20, 5, dtype=HALF, device=device)
    y = moe_int8(x, logits, weight, scale, top_k=2)
    shaped = moe_int8(x.view(3, 4, 32), logits.view(3, 4, 5), weight, scale, top_k=2)
    assert torch.equal(shaped, y.view(3, 4, 20))
    assert torch.equal(moe_int8(x, logits.float(), weight, scale.float(), top_k=2), y)


@pytest.mark.parametrize("spoil", [lambda w: torch.cat([w.new_zeros(1), w.flatten()])[1:].view(w.shape), lambda w: w])
@pytest.mark.parametrize("cols", [7, 33, 48])
def test_weights_that_no_descriptor_takes(device, spoil, cols):
    x, logits, weight, scale = OP.inputs(FEW + 1, cols, 6, 5, dtype=HALF, device=device)
    arguments = x, logits, spoil(weight), scale
    for kernels in ("plain", "tuned"):
        with variant(kernels):
            check(moe_int8(*arguments, top_k=2), arguments, top_k=2)


@given(
    arrays.arrays("float32", (7, 6), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0])),
    st.integers(1, 6),
)
@settings(max_examples=10)
def test_every_token_stands_with_each_of_its_experts_once(scores, top_k):
    logits = torch.from_numpy(scores).to(DEVICE)
    entries, count, picked = routed(logits, top_k)
    expected = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    for expert in range(6):
        token, rank = (expected == expert).nonzero(as_tuple=True)
        assert entries[expert, : count[expert]].tolist() == (token * top_k + rank).tolist()
    assert torch.equal(picked, logits.gather(1, expected))


def test_one_launch_reads_the_weights_of_the_chosen_experts_alone(device):
    x, logits, weight, scale = OP.inputs(1, 256, 8, 64, dtype=torch.float16, device=device)
    with variant("tuned"):
        traffic = measure(moe_int8, x, logits, weight, scale)
    work = OP.work((1, 256, 8, 64), torch.float16)
    assert traffic.launches == 1
    assert (traffic.unique_read, traffic.unique_written) == (work.bytes_read, work.bytes_written)
    assert traffic.by_tensor["weight"].read == 8 * 8 * 256


@pytest.mark.parametrize(("kernels", "launches"), [("plain", 4), ("tuned", 2), ("tuned", 4)])
def test_weights_are_read_once_a_tile_of_tokens(device, kernels, launches, monkeypatch):
    tokens, cols, out_cols, experts = 40, 64, 128, 4
    if launches == 4:
        monkeypatch.setattr(tuned_module, "SMALL", 0)
    x, logits, weight, scale = OP.inputs(tokens, cols, out_cols, experts, dtype=torch.float16, device=device)
    logits[:, :2] += 10
    with variant(kernels):
        traffic = measure(moe_int8, x, logits, weight, scale, 2)
    assert (traffic.launches, traffic.hazards) == (launches, ())
    if kernels == "plain":
        chosen = module.settings(tokens, experts, 2, torch.float16)
    else:
        choose = small_settings if launches == 2 else tuned_module.grouped_settings
        chosen = choose(tokens, experts, 2, cols, torch.float16)
    tiles = math.ceil(tokens / chosen["BLOCK_TOKENS"])
    assert traffic.by_tensor["weight"].read == 2 * tiles * out_cols * cols
    # Each expert's tokens, and token 0 in place of those that its last tile has not.
    assert traffic.by_tensor["x"].read == 2 * (tokens + 1) * cols * x.itemsize


@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [
        (1, torch.float32),
        (64, torch.bfloat16),
        (512, torch.bfloat16),
        (8192, torch.float16),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (1, torch.bfloat16),
                (64, torch.float32),
                (64, torch.float16),
                (256, torch.bfloat16),
                (512, torch.float32),
                (8192, torch.bfloat16),
            )
        ),
    ],
)
def test_what_the_compiler_makes_of_the_settings(tokens, dtype):
    """No spills; 16-bit weights are made by arithmetic, not by a conversion instruction each."""
    kernel, arguments, options = tuned_module.compile_arguments(tokens, 2048, 768, 64, dtype=dtype)
    compiled = compile_for(kernel, *arguments, device="H100", **options)
    assert compiled.spill_bytes == 0
    if tokens > FEW:
        assert compiled.instructions["UTMALDG"] > 0
    if tokens <= FEW or dtype != torch.float32:
        assert compiled.instructions["I2F"] <= 1  # of a count of tiles
    if FEW < tokens <= SMALL and dtype != torch.float32:
        assert compiled.instructions["HMMA"] > 0
    if tokens > SMALL and dtype != torch.float32:
        # Weights go from registers into the products.
        assert set(re.findall(r"HGMMA\S* R\d+, (\w)", compiled.sass)) == {"R"}
        # All of a step's are done before the next step writes its weights into the same registers.
        assert set(re.findall(r"gsb0, 0x(\d)", compiled.sass)) == {"0"}
        assert compiled.sass.count("gsb0, 0x0") <= 2
    if tokens == 8192:
        assert 2 * (compiled.shared_memory + 1024) <= 228 * 2**10
        assert 2 * compiled.num_warps * 32 * compiled.registers <= 65536


def test_the_compiler_leaves_products_in_flight_where_it_can(tmp_path):
    """When this fails, Triton waits for them by itself: moe_int8_descriptors_kernel can do without its tl.where."""
    guarded, bare = "acc = tl.where(start < cols, product, acc)", "acc = product"
    unguarded = rewritten(moe_int8_descriptors_kernel, tmp_path, guarded, bare)
    _, arguments, options = tuned_module.compile_arguments(8192, 2048, 768, 64, dtype=torch.bfloat16)
    for kernel, in_flight in ((unguarded, True), (moe_int8_descriptors_kernel, False)):
        left = products_in_flight(kernel, arguments, options)
        assert "0" in left
        assert (left != {"0"}) == in_flight


def products_in_flight(kernel, arguments, options) -> set[str]:
    """How many products the kernel does not wait for, of each of its waits."""
    ptx = compile_for(kernel, *arguments, device="H100", **options).ptx
    return set(re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d)", ptx))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [64, 512, 8192])
def test_what_the_compiler_makes_of_the_plain_kernel(tokens, dtype):
    """No spills; and no product is in flight while the next step's weights are converted."""
    arguments, options = OP.compile_arguments(tokens, 2048, 768, 64, dtype=dtype)
    assert compile_for(OP.kernel, *arguments, device="H100", **options).spill_bytes == 0
    assert products_in_flight(OP.kernel, arguments, options) <= {"0"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_tokens_on_an_older_gpu_do_not_spill(dtype):
    _, arguments, options = tuned_module.compile_arguments(1, 2048, 768, 64, dtype=dtype)
    assert compile_for(moe_int8_few_kernel, *arguments, device="A100", **options).spill_bytes == 0


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
def test_routing_and_combining_do_not_spill(gpu):
    def empty(*shape, dtype):
        return torch.empty(*shape, dtype=dtype, device="meta")

    logits, picked = empty(8192, 64, dtype=torch.bfloat16), empty(8192, 8, dtype=torch.float32)
    rank, entries = empty(64, 8192, dtype=torch.int16), empty(64, 8192, dtype=torch.int32)
    h = empty(65536, 768, dtype=torch.bfloat16)
    for kernel, arguments, options in (
        (routing.route_kernel, (logits, rank, picked, 8192, 64, 64), {"BLOCK_TOKENS": 16, "BLOCK_EXPERTS": 64}),
        (routing.gather_kernel, (rank, entries, entries, 8192), {"BLOCK": 4096, "num_warps": 8}),
        (routing.combine_kernel, (h, picked, h, 768), {"BLOCK_SLOTS": 8, "BLOCK_OUT": 1024}),
    ):
        assert compile_for(kernel, *arguments, device=gpu, TOP_K=8, **options).spill_bytes == 0


def test_registration(device):
    arguments = OP.inputs(FEW + 1, 16, 4, 3, dtype=torch.float32, device=device)
    torch.library.opcheck(moe_int8_op.forward_op, (*arguments, 2, "silu"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"act": "tanh"}, ValueError, "moe_int8 takes act of relu, gelu, gelu_tanh, silu, got 'tanh'"),
        ({"top_k": 0}, ValueError, "top_k of 1 to 4, the number of experts, got 0"),
        ({"top_k": 5}, ValueError, "got 5"),
        ({"weight": torch.ones(4, 8, 16)}, TypeError, "takes int8, got weight of torch.float32"),
        ({"scale": torch.ones(4, 9)}, ValueError, r"\(4, 9\): give them the same sizes"),
        ({"logits": torch.ones(3, 5)}, ValueError, "give them the same sizes"),
        ({"logits": torch.ones(2, 4)}, ValueError, "give them the same sizes"),
        ({"x": torch.ones(3, 15)}, ValueError, "give them the same sizes"),
        ({"x": torch.ones(())}, ValueError, "give them the same sizes"),
        ({"x": torch.ones(3, 16).double()}, TypeError, "got x of torch.float64"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    names = "x", "logits", "weight", "scale"
    arguments = dict(zip(names, OP.inputs(3, 16, 8, 4, dtype=torch.float32, device=device), strict=True))
    arguments |= {"top_k": 2}
    for name, value in change.items():
        here = isinstance(value, torch.Tensor) and not value.is_meta
        arguments[name] = value.to(device) if here else value
    with pytest.raises(error, match=message) as raised:
        moe_int8(**arguments)
    assert "\n" not in str(raised.value)


@gpu_only
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, FEW, FEW + 1, 64, SMALL, SMALL + 1, 513, 8192])
def test_the_benchmarks_sizes(tokens, dtype):
    x, logits, weight, scale = OP.inputs(tokens, 2048, 768, 64, dtype=dtype, device="cuda")
    y = moe_int8(x, logits, weight, scale)
    few = slice(max(0, tokens - 16), None)
    check(y[few], (x[few], logits[few], weight, scale))


@gpu_only
def test_offsets_past_two_to_the_31():
    tokens = 2**31 // 2048 + 40
    x, logits, weight, scale = OP.inputs(tokens, 2048, 16, 8, dtype=torch.bfloat16, device="cuda")
    y = moe_int8(x, logits, weight, scale, top_k=2)
    check(y[-8:], (x[-8:], logits[-8:], weight, scale), top_k=2)
