"""Stored or recomputed: the model against the meter and against autograd, the picture and its explorer."""

import re

import pytest
import torch
from drawn import assert_texts_lie_apart
from torch.nn import functional

from helpers.figures.training.recomputation import BARS as PLACES
from helpers.figures.training.recomputation import (
    COLUMNS,
    ROWS,
    TRAINING_STEPS,
    RecomputationExplorer,
    recomputation_chart,
    scene,
)
from helpers.instruments.devices import DEVICES
from helpers.instruments.saved_tensors import saved_for_backward
from helpers.instruments.traffic import measure
from kernels import bias_dropout_residual, geglu, residual_act, swiglu

SHAPE = (48, 512)
N = SHAPE[0] * SHAPE[1]
SMALL = 3 * SHAPE[1] * 4 + 64  # bytes: a bias, its gradient, a seed


def tensors(count):
    return [torch.randn(SHAPE, requires_grad=True) for _ in range(count)]


def measured(fn, *inputs):
    kept = saved_for_backward(fn, *inputs)
    forward = measure(fn, *inputs)
    grad = torch.ones_like(forward.result)
    backward = measure(lambda: torch.autograd.grad(forward.result, inputs, grad))
    return forward, backward, kept.total


def dropout_written_out(x, bias, residual):
    return residual + torch.native_dropout(x + bias, 0.1, True)[0]


@pytest.mark.parametrize(
    ("operation", "written_out"),
    [
        ("bias+dropout+residual", dropout_written_out),
        ("SwiGLU", lambda gate, up: functional.silu(gate) * up),
        ("GeGLU", lambda gate, up: functional.gelu(gate) * up),
        ("residual+GELU", lambda x, residual: functional.gelu(x + residual)),
    ],
)
def test_written_out_it_moves_and_keeps_what_the_meter_and_autograd_say(operation, written_out):
    inputs = tensors(2)
    if operation == "bias+dropout+residual":
        inputs.insert(1, torch.randn(SHAPE[1], requires_grad=True))
    forward, backward, kept = measured(written_out, *inputs)
    model = TRAINING_STEPS[operation](N, 4).unfused
    assert 0 <= forward.bytes_total - model.forward < SMALL
    assert 0 <= backward.bytes_total - model.backward < SMALL
    assert kept == model.kept


@pytest.mark.parametrize(
    ("operation", "fused", "version"),
    [
        ("SwiGLU", swiglu, "recomputed"),
        ("GeGLU", geglu, "recomputed"),
        ("residual+GELU", lambda x, residual: residual_act(x, residual, "gelu"), "stored"),
    ],
)
def test_fused_it_moves_and_keeps_what_the_catalogue_does(operation, fused, version):
    forward, backward, kept = measured(fused, *tensors(2))
    step = getattr(TRAINING_STEPS[operation](N, 4), version)
    assert (forward.bytes_total, backward.bytes_total, kept) == (step.forward, step.backward, step.kept)


def test_the_mask_recomputed_costs_no_byte():
    x, residual = tensors(2)
    bias, seed = torch.randn(SHAPE[1], requires_grad=True), torch.tensor(7)
    kept = saved_for_backward(bias_dropout_residual, x, bias, residual, seed)
    assert kept.total == seed.nbytes
    forward = measure(bias_dropout_residual, x, bias, residual, seed)
    step = TRAINING_STEPS["bias+dropout+residual"](N, 4).recomputed
    assert 0 <= forward.unique_total - step.forward < SMALL
    grad = torch.ones_like(forward.result)
    backward = measure(lambda: torch.autograd.grad(forward.result, (x, bias), grad))
    large = [moved for moved in backward.by_tensor.values() if moved.read == 4 * N or moved.written == 4 * N]
    assert sum(moved.total for moved in large) == step.backward
    assert step.kept == 0


def test_by_hand_in_16_bits():
    dropout = TRAINING_STEPS["bias+dropout+residual"](1, 2)
    assert [(s.forward, s.backward, s.kept) for s in (dropout.unfused, dropout.stored, dropout.recomputed)] == [
        (15, 7, 1),  # 4 + 5 + 6; 5 + 2
        (7, 5, 1),  # x, residual, y, mask; gradient, mask, gradient
        (6, 4, 0),
    ]
    residual = TRAINING_STEPS["residual+GELU"](1, 2)
    assert residual.recomputed.moved == residual.stored.moved
    assert residual.recomputed.kept > residual.stored.kept


def widths(svg):
    """Widths of the bars drawn, in order, from the SVG's rectangles."""
    return [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', svg)]


@pytest.mark.parametrize("operation", TRAINING_STEPS)
def test_bars_are_as_long_as_the_bytes(operation):
    steps = TRAINING_STEPS[operation](4096 * 4096, 2)
    shown = scene(steps, DEVICES["H200"], "what")
    moved = [box for box in shown.boxes if box.x < 400]
    for box, nbytes in zip(
        moved,
        (part for name in PLACES for part in (getattr(steps, name).forward, getattr(steps, name).backward)),
        strict=True,
    ):
        assert box.width / moved[0].width == pytest.approx(nbytes / steps.unfused.forward)
    kept = [box for box in shown.boxes if box.x > 400]
    sizes = [size for name in PLACES if (size := getattr(steps, name).kept)]
    assert [box.width / kept[0].width for box in kept] == pytest.approx([size / sizes[0] for size in sizes])


def test_every_text_lies_on_the_picture_and_none_on_another():
    for operation, rows, columns in (("bias+dropout+residual", 64, 256), ("residual+GELU", 131_072, 16384)):
        for device in ("T4", "H200"):
            explorer = RecomputationExplorer(operation, "fp32", device, rows, columns)
            figure = explorer.chart().figure
            assert_texts_lie_apart(figure)


def test_every_frame_is_that_of_its_sliders():
    explorer = RecomputationExplorer()
    for operation, dtype, device, rows, columns in (
        ("SwiGLU", "bf16", "A100", ROWS[0], COLUMNS[-1]),
        ("residual+GELU", "fp32", "T4", ROWS[-1], COLUMNS[0]),
    ):
        explorer.operation.value, explorer.dtype.value, explorer.device.value = operation, dtype, device
        explorer.rows.value, explorer.columns.value = rows, columns
        frames = explorer._stage.data["frames"]
        assert len(frames) == len(ROWS) * len(COLUMNS)
        frame = frames[ROWS.index(rows) * len(COLUMNS) + COLUMNS.index(columns)]
        chart = explorer.chart()
        assert frame["text"] == explorer.text == repr(chart)
        bars = chart.figure.axes[0].patches
        assert widths(frame["svg"]) == pytest.approx([bar.get_width() for bar in bars], abs=0.06)
        drawn = re.findall(r"<text [^>]*>([^<]*)</text>", frame["svg"])
        still = len(PLACES) + 2
        assert drawn[1:] == [text.get_text() for text in chart.figure.axes[0].texts][still:]
        assert drawn[0] == chart.figure.texts[0].get_text()


def test_the_text_by_hand():
    # 2^26 elements in bf16: 22, 12 and 10 B an element; a mask of 2^26 B, 32 of them 1.4 % of 141 GiB.
    text = RecomputationExplorer().text
    assert "unfused moves 1.48 GB" in text
    assert "fused, stored moves 805 MB" in text
    assert "fused, recomputed moves 671 MB" in text
    assert "keeps 67.1 MB (1.4 %)" in text
    assert text.endswith("Recomputing moves 16.7 % fewer bytes than storing and keeps 67.1 MB less.")


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = RecomputationExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]
    assert data["text/plain"] == repr(recomputation_chart(explorer._scene(16384, 4096)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operation": "ReLU"}, "'ReLU' in 'bf16': choose from bias"),
        ({"dtype": "int4"}, "in 'int4': choose from"),
        ({"device": "H1000"}, "unknown device"),
        ({"rows": 5}, "the rows slider has no 5"),
        ({"columns": 99}, "the columns slider has no 99"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        RecomputationExplorer(**arguments)
    assert "\n" not in str(error.value)
