"""decoder_layer: values against float64, its counters in many orders, its bytes, its errors."""

import importlib.util
import itertools
import re
from pathlib import Path

import pytest
import torch
from accuracy import assert_as_accurate, doubled

from benchmarks.calls import launches_of
from helpers.instruments import check_orders, compile_for, measure
from kernels import arguments, decoder_layer
from kernels.interpreter import runtime
from kernels.tiled import decoder_layer as module
from kernels.tiled.decoder_layer import OP, decoder_layer_op, decoder_layer_reference
from kernels.transformer_block import transformer_block_reference

interpreted = pytest.mark.skipif(runtime.has_gpu(), reason="a wrong count hangs a GPU")
SMALL = (32, 2, 1, 48, 5)
SOURCE = Path(module.__file__).read_text()
numbers = itertools.count()
NAMES = "x residual attention_norm qkv keys values out ffn_norm gate up down".split()


@pytest.mark.parametrize("shape", [*OP.interpreter_shapes, (33, 3, 3, 17, 33)], ids=str)
@pytest.mark.parametrize("dtype", OP.dtypes)
def test_values(device, shape, dtype, poisoned):
    inputs = OP.inputs(*shape, dtype=dtype, device=device)
    assert_as_accurate(OP.fused(*inputs), OP.reference(*inputs), OP.reference(*doubled(inputs)))


def test_far_from_zero(device):
    """Rows of large mean, and scores far apart: the online softmax must not overflow."""
    inputs = list(OP.inputs(*SMALL, dtype=torch.float32, device=device))
    inputs[0] = inputs[0] + 1e4
    inputs[4] = inputs[4] * 300
    assert_as_accurate(OP.fused(*inputs), OP.reference(*inputs), OP.reference(*doubled(inputs)))


def test_the_reference_is_a_transformer_blocks_last_token():
    """Against the block over all tokens, in float64: the caches are the earlier tokens' keys and values."""
    heads, key_heads, tokens = 4, 2, 6
    x, _, first, qkv, *_, out, second, gate, up, down = OP.inputs(32, heads, key_heads, 48, 0, dtype=torch.float64)
    xs = torch.randn(1, tokens, 32, dtype=torch.float64)
    whole = transformer_block_reference(xs, first, qkv, out, second, gate, up, down, heads, key_heads)
    keys, values = torch.empty(2, 0, key_heads, 8, dtype=torch.float64)
    for token in range(tokens):
        y, s, key, value = decoder_layer_reference(
            xs[0, token], torch.zeros_like(x), first, qkv, keys, values, out, second, gate, up, down
        )
        keys, values = torch.cat([keys, key[None]]), torch.cat([values, value[None]])
    torch.testing.assert_close(y + s, whole[0, -1], atol=1e-5, rtol=1e-5)  # the two have other defaults of eps


def test_strides_and_inputs_stay(device):
    inputs = [x.double().float().mT if x.dim() == 2 else x for x in OP.inputs(*SMALL, dtype=torch.float32)]
    inputs = [x.contiguous().mT.to(device) if x.dim() == 2 else x.to(device) for x in inputs]
    before = [x.clone() for x in inputs]
    assert_as_accurate(OP.fused(*inputs), OP.reference(*inputs), OP.reference(*doubled(inputs)))
    assert all(torch.equal(x, kept) for x, kept in zip(inputs, before, strict=True))


def test_nan_propagates(device):
    inputs = OP.inputs(*SMALL, dtype=torch.float32, device=device)
    inputs[0][3] = torch.nan
    y, s, key, value = OP.fused(*inputs)
    assert all(each.isnan().all() for each in (y, s, key, value))


def test_it_is_compiled_as_it_is_launched(device, monkeypatch):
    """Keys are shared out among all programs, of which an SM has several."""
    if runtime.has_gpu():  # a launch counts the GPU's own SMs
        count = torch.cuda.get_device_properties(device).multi_processor_count
        monkeypatch.setattr(arguments, "MULTIPROCESSORS", count)
    shape = (16, 1, 1, 16, 512)
    inputs = OP.inputs(*shape, dtype=torch.bfloat16, device=device)
    launched = next(each for each in launches_of(lambda: OP.fused(*inputs)) if each.kernel is OP.kernel)
    _, chosen = OP.compile_arguments(*shape, dtype=torch.bfloat16)
    assert chosen["SPLITS"] > 2 or runtime.has_gpu()
    assert launched.options == chosen


@interpreted
def test_no_order_shows_a_race_or_a_deadlock():
    assert check_orders(OP.fused, *OP.inputs(*SMALL, dtype=torch.float32), orders=12) == ()


@interpreted
@pytest.mark.parametrize("seed", range(4))
def test_every_order_gives_the_same_bits(seed):
    inputs = OP.inputs(*SMALL, dtype=torch.float32)
    expected = OP.fused(*inputs)
    with runtime.ordered_by(seed):
        assert all(torch.equal(a, b) for a, b in zip(OP.fused(*inputs), expected, strict=True))


def planted(tmp_path, change):
    """The module's operation with its kernel's source changed."""
    changed = change(SOURCE).replace('register("decoder_layer"', f'register("planted_layer_{next(numbers)}"')
    assert changed != SOURCE
    path = tmp_path / "planted.py"
    path.write_text(changed)
    spec = importlib.util.spec_from_file_location("planted", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made._forward


WAITS = re.findall(r"^ +(?:if me < heads \* SPLITS:\n +)?wait\(.*\)$", SOURCE, re.MULTILINE)


def call(forward):
    inputs = OP.inputs(*SMALL, dtype=torch.float32)
    return lambda: forward(*inputs, 1e-6)


@interpreted
@pytest.mark.parametrize("number", range(4))
def test_each_wait_is_needed(tmp_path, number):
    assert len(WAITS) == 4
    forward = planted(tmp_path, lambda source: source.replace(WAITS[number] + "\n", "\n"))
    assert check_orders(call(forward), orders=3)


@interpreted
@pytest.mark.parametrize("number", range(4))
def test_each_signal_is_needed(tmp_path, number):
    signals = re.findall(r"signal\(counters_ptr.*\)", SOURCE)
    assert len(signals) == 4
    forward = planted(tmp_path, lambda source: source.replace(signals[number] + "\n", "pass\n"))
    with pytest.raises(Exception, match=rf"deadlock: .*counters_ptr\[{number}\] to reach"):
        call(forward)()


@interpreted
def test_each_weight_once():
    shape = (96, 4, 2, 72, 5)
    inputs = OP.inputs(*shape, dtype=torch.bfloat16)
    found, work = measure(OP.fused, *inputs), OP.work(shape, torch.bfloat16)
    assert found.launches == 2  # the counters' zeros, and the layer
    assert not found.hazards
    for name in ("qkv", "out", "gate", "up", "down"):
        assert found.by_tensor[name].read == inputs[NAMES.index(name)].nbytes
    for name in ("keys", "values"):  # once per head: two share a key head here
        assert found.by_tensor[name].read == 2 * inputs[NAMES.index(name)].nbytes
    assert measure(OP.reference, *inputs).launches > 10
    assert work.bytes_read == sum(x.nbytes for x in inputs)
    assert work.bytes_written == sum(x.nbytes for x in OP.fused(*inputs))


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H200"])
@pytest.mark.parametrize("shape", OP.gpu_shapes, ids=str)
def test_nothing_spills(gpu, shape):
    arguments, options = OP.compile_arguments(*shape, dtype=torch.bfloat16)
    compiled = compile_for(OP.kernel, *arguments, device=gpu, **options)
    assert compiled.spill_bytes == 0


def test_the_counters_are_acquired_and_released():
    """What Triton 3.6 makes of wait and signal: a load that acquires, then a barrier; a barrier, then a release."""
    arguments, options = OP.compile_arguments(*OP.gpu_shapes[0], dtype=torch.bfloat16)
    ptx = compile_for(OP.kernel, *arguments, device="H200", **options).ptx
    assert len(re.findall(r"ld\.global\.gpu\.acquire(?:(?!(?:ld|st)\.global)[\s\S])*?bar\.sync", ptx)) == 4
    assert len(re.findall(r"bar\.sync(?:(?!st\.global|bar\.sync)[\s\S])*?atom\.global\.gpu\.release\.add", ptx)) == 4


def test_registration(device):
    inputs = OP.inputs(*SMALL, dtype=torch.float32, device=device)
    torch.library.opcheck(decoder_layer_op.forward_op, (*inputs, 1e-6))


def test_under_torch_compile(device):
    inputs = OP.inputs(*SMALL, dtype=torch.float32, device=device)
    compiled = torch.compile(lambda *given: decoder_layer(*given)[0] + 0, backend="aot_eager")
    assert torch.equal(compiled(*inputs), decoder_layer(*inputs)[0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "decoder_layer takes tensors, got x of type list"),
        ({"x": torch.ones(1, 32)}, ValueError, r"takes x of one token, \(width,\), got \(1, 32\)"),
        ({"x": torch.ones(0)}, ValueError, "takes x of one token"),
        ({"x": torch.ones(32).double()}, TypeError, "takes float32, float16, bfloat16, got x of torch.float64"),
        ({"keys": torch.ones(5, 16)}, ValueError, r"takes keys of \(keys, key_heads, dim\), got \(5, 16\)"),
        ({"values": torch.ones(4, 1, 16)}, ValueError, r"takes values of \(5, 1, 16\) here, got \(4, 1, 16\)"),
        ({"out": torch.ones(32, 8)}, ValueError, r"takes out of \(width, heads dim\), heads a multiple of 1 here"),
        ({"qkv": torch.ones(32, 64)}, ValueError, r"takes qkv of \(64, 32\) here, got \(32, 64\): reshape or trans"),
        ({"gate": torch.ones(0, 32)}, ValueError, r"takes gate of \(hidden, width\), got \(0, 32\)"),
        ({"down": torch.ones(48, 32)}, ValueError, r"takes down of \(32, 48\) here"),
        ({"eps": "small"}, TypeError, "takes eps as"),
        ({"x": torch.ones(32, requires_grad=True)}, RuntimeError, "decoder_layer has no backward pass"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    given = dict(zip(NAMES, OP.inputs(*SMALL, dtype=torch.float32, device=device), strict=True)) | change
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    with pytest.raises(error, match=message) as raised:
        decoder_layer(**given)[0].sum().backward()
    assert "\n" not in str(raised.value)
