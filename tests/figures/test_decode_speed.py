"""Tokens per second by the kind of cache: the model by hand, the picture and its explorer."""

import re

import pytest
from drawn import assert_texts_lie_apart

from helpers.figures.attention.decode_speed import (
    BARS,
    BATCHES,
    CACHES,
    CONTEXTS,
    FORMATS,
    DecodeSpeedExplorer,
    DecodeStep,
)
from helpers.instruments.devices import DEVICES

H200 = DEVICES["H200"]


def test_one_sequence_by_hand():
    """Llama 3 8B's cache is 128 KiB per token in bf16: 2 x 32 layers x 8 heads x 128 x 2 B."""
    step = DecodeStep(CACHES["8 key heads"], 1, 8192, "bf16, cache bf16")
    assert step.cache_bytes == 8192 * 128 * 1024
    assert step.weight_bytes == 15e9
    assert step.tokens_per_second(H200) == H200.memory_bandwidth / (15e9 + 2**30)
    assert step.work().flops == 2 * 7.5e9 + 8192 * 32 * 4 * 32 * 128
    many = DecodeStep(CACHES["8 key heads"], 64, 8192, "bf16, cache bf16", rows=4)
    assert many.work().bytes == 15e9 + 64 * 2**30
    assert many.work().flops == 64 * 4 * step.work().flops


def test_latent_attention_stores_deepseeks_elements():
    """DeepSeek-V2, arXiv:2405.04434, section 2.1.4: 4.5 head dimensions per token and layer."""
    assert CACHES["latent (MLA)"].elements == 4.5 * 128
    assert CACHES["32 key heads"].elements / CACHES["latent (MLA)"].elements > 14


def speed(cache: str, batch: int, context: int, format: str = "bf16, cache bf16") -> float:
    return DecodeStep(CACHES[cache], batch, context, format).tokens_per_second(H200)


def test_what_lesson_17_reads_off_the_explorer():
    """The answers below its explorer, and the intensities that its roofline places."""
    assert 1.2 < speed("1 key head", 1, 8192) / speed("32 key heads", 1, 8192) < 4 / 3
    assert 4.75 < speed("1 key head", 1, 131072) / speed("32 key heads", 1, 131072) < 5
    assert DecodeStep(CACHES["8 key heads"], 64, 8192, "bf16, cache bf16").fits(H200)
    assert not DecodeStep(CACHES["8 key heads"], 128, 8192, "bf16, cache bf16").fits(H200)
    assert DecodeStep(CACHES["8 key heads"], 128, 8192, "bf16, cache fp8").fits(H200)
    plain, cache, both = (speed("8 key heads", 64, 8192, each) for each in FORMATS)
    assert cache / plain == pytest.approx(5 / 3, abs=0.05)
    assert 1 < both / cache < 1.2
    ridge = H200.peak_flops["bf16"] / H200.memory_bandwidth
    past = {name for name in CACHES if DecodeStep(CACHES[name], 512, 1024, "bf16, cache bf16").work().intensity > ridge}
    assert past == {"1 key head", "latent (MLA)"}
    assert not any(
        DecodeStep(cache, batch, 8192, "bf16, cache bf16").work().intensity > ridge
        for cache in CACHES.values()
        for batch in BATCHES
    )


def test_a_batch_that_does_not_fit_is_marked():
    assert not DecodeStep(CACHES["32 key heads"], 512, 8192, "bf16, cache bf16").fits(H200)
    assert "doesn't fit in memory" in DecodeSpeedExplorer(512, 8192).text
    assert "too large" in DecodeSpeedExplorer(512, 8192)._stage.data["frames"][-1]["svg"]


def test_every_text_lies_on_the_picture_and_none_on_another():
    for arguments in ((1, 1024), (512, 131072, "fp8, cache fp8", "B200"), (256, 1024, "bf16, cache fp8", "L4"), (64,)):
        assert_texts_lie_apart(DecodeSpeedExplorer(*arguments).chart().figure)


def test_every_frame_is_that_of_its_sliders():
    explorer = DecodeSpeedExplorer()
    explorer.device.value, explorer.format.value = "B200", "fp8, cache fp8"
    explorer.batch.value, explorer.context.value = BATCHES[3], CONTEXTS[-1]
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(BATCHES) * len(CONTEXTS)
    frame, chart = frames[4 * len(CONTEXTS) - 1], explorer.chart()
    assert frame["text"] == explorer.text == repr(chart)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', frame["svg"])]
    assert widths == pytest.approx([bar.get_width() for bar in chart.figure.axes[0].patches], abs=0.06)
    drawn = re.findall(r"<text [^>]*>([^<]*)</text>", frame["svg"])
    assert drawn[1:] == [text.get_text() for text in chart.figure.axes[0].texts][len(BARS) + 3 :]


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = DecodeSpeedExplorer()
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "A100"}, "device of 'A100': choose from L4"),
        ({"format": "fp4"}, "format of 'fp4': choose from bf16, cache bf16"),
        ({"batch": 3}, "the batch slider has no 3"),
        ({"context": 9}, "the context slider has no 9"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        DecodeSpeedExplorer(**arguments)
    assert "\n" not in str(error.value)


def test_each_line_across_the_bars_has_its_name_and_the_logarithmic_axis_its_ticks():
    """A bar character in a head, "tokens/s; | without a cache", was read as a mistake."""
    svg = DecodeSpeedExplorer(64, 8192)._stage.data["frames"][0]["svg"]
    assert "|" not in svg
    names = dict(re.findall(r'<text x="([\d.]+)" [^>]*>(ridge|without a cache)</text>', svg))
    lines = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="2.0" height="(\d\d\d[\d.]*)"', svg)
    assert len(names) == len(lines) == 2
    assert sorted(float(x) for x in names) == pytest.approx(sorted(float(x) + 1 for x, _ in lines))
    ticks = {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)" [^>]*>(1|100|10,000)</text>', svg)}
    assert ticks["100"] - ticks["1"] == pytest.approx(ticks["10,000"] - ticks["100"])
