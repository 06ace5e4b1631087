"""Whose bytes a layer of experts moves: the model against the catalogue and by hand, the picture and its explorer."""

import re

import pytest
import torch
from drawn import assert_texts_lie_apart

from helpers.figures.matmul.expert_weights import (
    BARS,
    EXPERTS,
    FORMATS,
    TOKENS,
    ExpertLayer,
    ExpertWeightsExplorer,
    scene,
    seconds,
    weights_chart,
)
from helpers.instruments.devices import DEVICES
from kernels import CATALOGUE

H200 = DEVICES["H200"]


def time(layer, tokens, name="bf16", device=H200):
    return max(seconds(layer.work(tokens, FORMATS[name]), FORMATS[name], device))


@pytest.mark.parametrize("tokens", [512, 8192])
def test_bytes_and_flops_are_the_catalogues(tokens):
    """Where all experts are read: it counts the most that can be, the scales of outputs, and the router's logits."""
    found = ExpertLayer(64, 8, 2048, 768).work(tokens, FORMATS["int8 weights"])
    known = CATALOGUE["moe_int8"].work((tokens, 2048, 768, 64), torch.bfloat16)
    assert found.bytes == pytest.approx(known.bytes - 64 * 768 * 2 - tokens * 64 * 2, rel=1e-6)
    assert found.flops == pytest.approx(known.flops, rel=0.01)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(64, 8, 8), (32, 4, 8), (8, 2, 3)])
def test_as_many_experts_are_read_as_a_router_draws(experts, top_k, tokens):
    draw = torch.Generator().manual_seed(0)
    chosen = torch.rand(4000, tokens, experts, generator=draw).topk(top_k, dim=-1).indices.flatten(1)
    drawn = sum(len(each.unique()) for each in chosen) / 4000
    assert ExpertLayer(experts, top_k, 1, 1).touched(tokens) == pytest.approx(drawn, rel=0.01)


def test_one_token_by_hand():
    layer = ExpertLayer(256, 8, 7168, 2048)
    work = layer.work(1, FORMATS["MXFP4 weights"])
    weights = 8 * 7168 * 2048
    assert work.bytes == round(weights * 4.25 / 8) + 7168 * 2 + 2048 * 2
    assert work.flops == 2 * weights
    assert time(layer, 1, "MXFP4 weights") == work.bytes / 4.814e12
    assert time(layer, 1) / time(layer, 1, "int8 weights") == pytest.approx(2, abs=0.01)


def test_what_lesson_12_says_is_to_be_found():
    def gain(layer, tokens, name):
        return time(layer, tokens) / time(layer, tokens, name)

    def pays_no_more(layer):
        return next(tokens for tokens in TOKENS if gain(layer, tokens, "int8 weights") < 1.005)

    dense, experts = ExpertLayer(1, 1, 2048, 768), ExpertLayer(64, 8, 2048, 768)
    assert (pays_no_more(dense), pays_no_more(experts)) == (512, 2048)
    assert gain(dense, 8192, "FP8 both") == pytest.approx(2, abs=0.01)
    many = ExpertLayer(256, 8, 2048, 768)
    assert [round(many.touched(tokens)) for tokens in (8, 128)] == [57, 252]
    assert round(gain(many, 8192, "int8 weights"), 1) == 1.0
    assert round(gain(many, 8192, "FP8 both"), 1) == 2.0


def test_every_text_lies_on_the_picture_and_none_on_another():
    for arguments in (
        (1, 1, 1, "4096 x 14336", "L4"),
        (8192, 256, 8, "7168 x 2048", "B200"),
        (8192, 8, 8, "4096 x 14336", "L4"),
        (4096, 128, 4, "4096 x 14336", "RTX 4090"),
    ):
        figure = ExpertWeightsExplorer(*arguments).chart().figure
        assert_texts_lie_apart(figure)


def test_every_frame_is_that_of_its_sliders():
    explorer = ExpertWeightsExplorer()
    explorer.device.value, explorer.top_k.value, explorer.size.value = "B200", 2, "7168 x 2048"
    explorer.tokens.value, explorer.experts.value = TOKENS[3], EXPERTS[-1]
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(TOKENS) * len(EXPERTS)
    frame, chart = frames[4 * len(EXPERTS) - 1], explorer.chart()
    assert frame["text"] == explorer.text == repr(chart)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', frame["svg"])]
    assert widths == pytest.approx([bar.get_width() for bar in chart.figure.axes[0].patches], abs=0.06)
    drawn = re.findall(r"<text [^>]*>([^<]*)</text>", frame["svg"])
    still = len(BARS) + 3
    assert drawn[1:] == [text.get_text() for text in chart.figure.axes[0].texts][still:]


def test_more_experts_a_token_than_there_are_count_as_all():
    assert "1 token, 1 experts of 2048 x 768, 1 per token" in ExpertWeightsExplorer(1, 1, 8).text


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = ExpertWeightsExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]
    assert data["text/plain"] == repr(weights_chart(scene(ExpertLayer(64, 8, 2048, 768), 64, H200)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "A100"}, "device of 'A100': choose from L4"),
        ({"top_k": 3}, "top_k of 3: choose from 1, 2, 4, 8"),
        ({"size": "9 x 9"}, "size of '9 x 9': choose from 2048 x 768"),
        ({"tokens": 5}, "the tokens slider has no 5"),
        ({"experts": 9}, "the experts slider has no 9"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        ExpertWeightsExplorer(**arguments)
    assert "\n" not in str(error.value)
