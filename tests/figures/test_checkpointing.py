"""What a layer keeps and moves: the model against autograd and the meter, the picture and its explorer."""

import re
from dataclasses import replace

import pytest
import torch
from drawn import assert_texts_lie_apart
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.training import FUSED, SMALL, UNFUSED, Block, norm_written_out
from helpers.figures.training.checkpointing import (
    BARS,
    SEQUENCE,
    TOKENS,
    WIDTHS,
    CheckpointingExplorer,
    checkpointing_chart,
    layer_ways,
)
from helpers.instruments import measure
from kernels import rms_norm, swiglu

INNER = 3  # of benchmarks.training's layer
ROWS, WIDTH = 160, 64
UNIT = ROWS * WIDTH * 4
WAYS = layer_ways(ROWS, WIDTH, 4, INNER)


def kept_by(parts) -> int:
    """Bytes that a layer keeps beside its weights."""
    block = Block(replace(SMALL, width=WIDTH), parts)
    sizes = {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.randn(5, 32, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        held = block(x)
    weights = {each.data_ptr() for each in block.parameters()}
    assert held.shape == x.shape
    return sum(nbytes for address, nbytes in sizes.items() if address not in weights)


@pytest.mark.parametrize(("way", "parts"), [("unfused", replace(UNFUSED, attention=FUSED.attention)), ("fused", FUSED)])
def test_a_layer_keeps_what_autograd_keeps(way, parts):
    # The model leaves out what is one number a token: rstd of two norms, logsumexp of attention.
    assert kept_by(parts) == WAYS[way].kept + 3 * ROWS * 4


def moved_by(function, *inputs) -> float:
    forward = measure(function, *inputs)
    backward = measure(lambda: torch.autograd.grad(forward.result, inputs, torch.ones_like(forward.result)))
    return (forward.bytes_total + backward.bytes_total - forward.result.nbytes) / UNIT


def test_the_rest_moves_what_the_meter_says():
    x, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.ones(WIDTH, requires_grad=True)
    gate, up = torch.randn(2, ROWS, INNER * WIDTH).unbind()
    gated = [each.clone().requires_grad_() for each in (gate, up)]
    residuals = 4 * 3
    fused = 2 * moved_by(rms_norm, x, weight) + moved_by(swiglu, *gated) - 2 - INNER + 3
    unfused = 2 * moved_by(norm_written_out, x, weight) + moved_by(
        lambda gate, up: torch.nn.functional.silu(gate) * up, *gated
    )
    assert fused + residuals == pytest.approx(WAYS["fused"].moved / UNIT, rel=0.15)
    assert unfused + residuals == pytest.approx(WAYS["unfused"].moved / UNIT, rel=0.05)


def test_products_are_counted_as_pytorch_counts_them():
    block = Block(replace(SMALL, width=WIDTH), replace(UNFUSED, attention=lambda q, k, v: v))
    with FlopCounterMode(display=False) as counter:
        block(torch.randn(5, 32, WIDTH, requires_grad=True)).sum().backward()
    attention = 3.5 * 2 * ROWS * SEQUENCE * WIDTH
    assert WAYS["fused"].flops == counter.get_total_flops() + attention
    forward = counter.get_total_flops() / 3 + attention / 3.5
    assert WAYS["layer recomputed"].flops == pytest.approx(WAYS["fused"].flops + forward)


def test_the_text_by_hand():
    # 2^25 elements in bf16: a unit of 67.1 MB; 24, 18.5, 13 and 1 of them are kept, and of 32 layers their shares.
    text = CheckpointingExplorer().text
    for kept in ("1.61 GB saved (34 %)", "1.24 GB saved (26 %)", "872 MB saved (18 %)", "67.1 MB saved (1.4 %)"):
        assert kept in text
    # (14 + 46 + 49 + 12) units and (4 + 6 + 28 + 12).
    assert "unfused: 14.7 ms; norms, gate and additions move 8.12 GB" in text
    assert "fused: 13.8 ms; norms, gate and additions move 3.36 GB" in text


def test_every_text_lies_on_the_picture_and_none_on_another():
    for arguments in ((1024, 1024, "bf16", "H200"), (131_072, 8192, "fp32", "L4"), (8192, 4096, "fp16", "A10")):
        figure = CheckpointingExplorer(*arguments).chart().figure
        assert_texts_lie_apart(figure)


def test_every_frame_is_that_of_its_sliders():
    explorer = CheckpointingExplorer()
    explorer.dtype.value, explorer.device.value = "fp32", "A100"
    explorer.tokens.value, explorer.width.value = TOKENS[0], WIDTHS[-1]
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(TOKENS) * len(WIDTHS)
    frame, chart = frames[len(WIDTHS) - 1], explorer.chart()
    assert frame["text"] == explorer.text == repr(chart)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', frame["svg"])]
    assert widths == pytest.approx([bar.get_width() for bar in chart.figure.axes[0].patches], abs=0.06)
    drawn = re.findall(r"<text [^>]*>([^<]*)</text>", frame["svg"])
    still = len(BARS) + 2
    assert drawn[1:] == [text.get_text() for text in chart.figure.axes[0].texts][still:]


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = CheckpointingExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]
    assert data["text/plain"] == repr(checkpointing_chart(explorer._scene(8192, 4096)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int4"}, "'int4' on 'H200': choose from bf16"),
        ({"device": "T4"}, "'bf16' on 'T4': choose from bf16, fp16, fp32, and from A10"),
        ({"tokens": 5}, "the tokens slider has no 5"),
        ({"width": 99}, "the width slider has no 99"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        CheckpointingExplorer(**arguments)
    assert "\n" not in str(error.value)
