"""What libraries launch around one operator, and the public models whose kernels were counted on a GPU."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks import public_models
from helpers.instruments.devices import DEVICES
from helpers.instruments.fusion import analyse
from helpers.instruments.fusion.library_kernels import product_time
from helpers.instruments.prediction import ATOMICS

BF16 = torch.bfloat16
H100 = DEVICES["H100"]


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(model, *inputs) -> int:
    return analyse(model, *inputs, device="H100").launches_unfused


def seconds(model, *inputs) -> float:
    return analyse(model, *inputs, device="H100").time_unfused


def convolution(channels=64, size=3, groups=1, bias=False):
    return nn.Conv2d(channels, channels, size, padding=size // 2, groups=groups, bias=bias, dtype=BF16, device="meta")


def test_a_convolution_of_nchw_tensors_is_converted_and_one_in_nhwc_is_not():
    x = meta(8, 64, 28, 28)
    last = x.to(memory_format=torch.channels_last)
    assert launches(convolution(), x) == 5  # a fill of its workspace among them
    assert launches(convolution(bias=True), x) == 6
    assert launches(convolution().to(memory_format=torch.channels_last), last) == 2
    assert launches(convolution(size=1), x) == 1
    assert launches(convolution(groups=64), x) == 1
    assert launches(convolution().to(memory_format=torch.channels_last), x) == 3  # its result stays in NHWC


def test_a_convolutions_bias_is_added_at_the_pace_of_a_broadcast():
    """ConvNeXt's 22 add to 173 million elements in all: 483 us on an H100, where their bytes alone would take 235."""
    x, size = meta(64, 96, 56, 56), {"size": 1, "channels": 96}
    with_bias, without = (seconds(convolution(bias=bias, **size), x) for bias in (True, False))
    assert with_bias - without == pytest.approx(483e-6 * x.numel() / 173e6, rel=0.1)


def test_cudnn_fills_workspaces_and_pads_the_first_layers_image():
    """What an H100 launched: VGG-16 a fill, or a kernel for it, for each of 12 convolutions; RegNetY 75 for its 25
    grouped ones; ResNet-50's and ViT's first layers 2, and in NHWC 2 kernels that pad."""
    x, image = meta(8, 64, 28, 28), meta(8, 3, 56, 56)
    first = nn.Conv2d(3, 64, 7, bias=False, dtype=BF16, device="meta")
    last = torch.channels_last
    assert launches(convolution(groups=2), x) == 7
    assert launches(convolution(channels=64, size=1), x) == 1
    assert launches(first, image) == 6
    assert launches(first.to(memory_format=last), image.to(memory_format=last)) == 5


def test_a_convolution_of_sequences_is_converted_as_one_of_images_is():
    """Whisper's first two, with three taps: cuDNN converted input, filters and result of each on an H100."""
    of_sequences = nn.Conv1d(80, 768, 3, padding=1, bias=False, dtype=BF16, device="meta")
    assert launches(of_sequences, meta(8, 80, 3000)) == 5


def test_torch_compile_copies_filters_and_images_to_nhwc_on_every_call_and_stores_what_pooling_reads():
    """As Inductor's own kernels did for ResNet-50 on an H100."""
    x, image = meta(8, 64, 28, 28), meta(8, 3, 56, 56)
    first = nn.Conv2d(3, 64, 7, bias=False, dtype=BF16, device="meta")
    made = [analyse(model, each, device="H100").today for model, each in ((convolution(), x), (first, image))]
    assert [plan.launches_fused for plan in made] == [3, 7]  # 1 and 2 of them its own copies
    assert made[0].bytes_fused == 2 * (2 * x.numel() + 3 * 64 * 64 * 9)
    plan = analyse(lambda x: functional.max_pool2d(torch.relu(x), 3, 2), x, device="H100")
    assert (plan.launches_fused, plan.today.launches_fused) == (1, 2)


def test_a_convolution_of_one_tap_is_a_product_in_nchw_if_its_rows_are_of_even_length():
    """Else input and result are converted, but no weight: with one tap it is the same in both layouts."""
    assert [launches(convolution(size=1), meta(8, 64, size, size)) for size in (14, 7)] == [1, 3]
    strided = nn.Conv2d(64, 64, 1, stride=2, bias=False, dtype=BF16, device="meta")
    assert launches(strided, meta(8, 64, 28, 28)) == 3


def test_a_convolution_of_few_factors_runs_in_nchw():
    """The first of VGG-16, 3 channels by 3 x 3, is not converted; that of a ViT, by 16 x 16, is, with two fills."""
    x = meta(8, 3, 64, 64)
    of_three = [nn.Conv2d(3, 64, size, bias=False, dtype=BF16, device="meta") for size in (3, 16)]
    assert [launches(each, x) for each in of_three] == [1, 6]


def test_torch_where_fills_a_tensor_with_each_number():
    x = meta(64, 64)
    assert launches(lambda x: torch.where(x > 0, x, x), x) == 2
    assert launches(lambda x: torch.where(x > 0, x, 0.0), x) == 3
    assert launches(lambda x: torch.where(x > 0, 1.0, 0.0), x) == 4


def test_a_mask_whose_rows_are_not_contiguous_rules_out_the_attention_kernels():
    """T5's bias of positions is a permuted table: 14 kernels in fp32 instead of cuDNN's and its two fills."""
    q, bias = meta(2, 12, 512, 64), meta(1, 512, 512, 12)
    attention = functional.scaled_dot_product_attention
    assert launches(attention, q, q, q, bias.permute(0, 3, 1, 2).contiguous()) == 3
    assert launches(attention, q, q, q, bias.permute(0, 3, 1, 2)) == 15


def test_a_result_in_nhwc_stays_so_for_the_next_operator():
    """A batch of NHWC images through two convolutions, a fill before each: nothing is converted between them."""
    model = nn.Sequential(convolution(), nn.ReLU(), convolution()).to(memory_format=torch.channels_last)
    assert launches(model, meta(8, 64, 28, 28).to(memory_format=torch.channels_last)) == 5


def test_sums_by_atomics_cost_as_much_in_a_fused_kernel():
    """A message per edge, gathered, scaled and added to its node: the atomics bound it, fused or not."""
    edges = 200_000
    x, at = torch.empty(1000, 64, device="meta"), torch.empty(edges, 64, dtype=torch.int64, device="meta")

    def messages(x, rows, at):
        return torch.zeros_like(x).scatter_add(0, at, torch.relu(x[rows]) * 2)

    plan = analyse(messages, x, torch.empty(edges, dtype=torch.int64, device="meta"), at, device="H100")
    atomics = edges * 64 / (ATOMICS * H100.sms * H100.sm_clock)
    assert plan.time_fused > atomics


def test_what_is_elementwise_on_nhwc_tensors_takes_as_long_as_on_nchw():
    x = meta(64, 64, 56, 56)
    assert seconds(torch.relu, x.to(memory_format=torch.channels_last)) == pytest.approx(seconds(torch.relu, x))
    assert seconds(lambda x: x.mT.contiguous(), x) > 1.2 * seconds(torch.relu, x)


def test_batch_norm_of_16_bits_converts_its_parameters():
    norm = nn.BatchNorm2d(64, device="meta").eval()
    assert launches(norm, meta(8, 64, 28, 28, dtype=torch.float32)) == 2
    assert launches(norm.to(BF16), meta(8, 64, 28, 28)) == 3


def test_layer_norm_copies_what_is_not_contiguous():
    norm = nn.LayerNorm(768, device="meta", dtype=BF16)
    assert launches(norm, meta(64, 196, 768)) == 1
    assert launches(norm, meta(64, 768, 196).mT) == 2


def test_attention_on_hopper_is_cudnns_with_two_fills():
    q = meta(2, 8, 512, 64)
    found = analyse(functional.scaled_dot_product_attention, q, q, q, device="H100")
    assert (found.launches_unfused, found.operations[0].added_launches) == (3, 2)
    assert analyse(functional.scaled_dot_product_attention, q, q, q, device="A100").launches_unfused == 1


def test_a_recurrent_layer_has_two_kernels_a_step():
    model = nn.LSTM(512, 1024, num_layers=2, batch_first=True, dtype=BF16, device="meta")
    assert launches(model, meta(64, 128, 512)) == 560  # what an H100 launched


@pytest.mark.parametrize(("columns", "least", "most"), [(50304, 0.9, 1.1), (50258, 5, 9), (50257, 6, 12)])
def test_rows_that_start_off_16_bytes_cost_a_product_its_fast_kernels(columns, least, most):
    """GPT-2's vocabulary of 50,257: 6634 us where 700 TFLOP/s would take 900 (H100, PyTorch 2.11)."""
    x = meta(8192, 768)
    times = [seconds(nn.Linear(768, n, bias=False, dtype=BF16, device="meta"), x) for n in (columns, 50304)]
    assert least < times[0] / times[1] < most


def test_a_product_takes_whole_waves_of_tiles():
    """4096 x 768 tokens: 132 tiles of 192 x 128, one for each SM (14 us on an H100 with a quarter of them 4 times as
    deep); one row of tiles more takes a second wave."""
    time = [product_time(1, rows, 768, 768, BF16, DEVICES["H100"]) for rows in (4096, 4097 + 192)]
    assert time[0] == pytest.approx(10.1e-6, rel=0.1)
    assert time[1] > 1.15 * time[0]


def test_a_product_of_doubles_takes_what_the_gpus_fp64_units_take():
    """Tensor cores on an H100, 67 TFLOP/s; two multiply-adds per clock and SM on an L4, a 64th of fp32."""
    x = meta(4096, 4096, dtype=torch.float64)
    h100, l4 = (analyse(torch.mm, x, x, device=name).time_unfused for name in ("H100", "L4"))
    assert h100 == pytest.approx(2 * 4096**3 / 67e12 / 0.81, rel=0.05)
    assert l4 == pytest.approx(2 * 4096**3 / (DEVICES["L4"].peak_flops["fp32"] / 64) / 0.81, rel=0.05)


def test_a_product_of_complex_numbers_is_four_of_real_ones_and_uses_no_tensor_cores():
    times = [seconds(torch.mm, *[meta(2048, 2048, dtype=dtype)] * 2) for dtype in (torch.float32, torch.complex64)]
    assert times[1] == pytest.approx(4 * times[0], rel=0.02)
    x = meta(64, 64, dtype=torch.complex64)
    assert analyse(torch.mm, x, x, device="H100").operations[0].work.flops == 8 * 64**3


RECORD = public_models.RECORD


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text())


def test_every_model_was_measured_or_says_why_not(record):
    assert set(record["predicted"]) == set(record["unchanged"]) == set(public_models.ALL)
    assert set(record["measured"]) >= set(public_models.MODELS)
    assert sorted(public_models.MODELS)[1::2] == public_models.HELD_OUT
    assert len(public_models.compared(record)) >= 22


def test_a_few_models_measured_later_have_their_own_date(record, monkeypatch, tmp_path):
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record))
    monkeypatch.setitem(public_models.PARTS, "measured", lambda name: {"eager": {"us": 1.0}})
    public_models.take("measured", ["Mixtral"], file)
    found = json.loads(file.read_text())
    assert found["date"] == record["date"] < found["measured"]["Mixtral"]["date"]
    assert all(
        each["date"] > record["date"] for name, each in record["measured"].items() if name in public_models.OTHERS
    )


def test_the_page_has_both_numbers_of_a_model_measured_later(record):
    (line,) = (each for each in public_models.page(record).splitlines() if each.startswith("| Mixtral | 289 | 324 |"))
    assert line.split(" | ")[3:] == ["2724", "3316", "-18%", "1589", "1810", "-12%", "1.71", "1.83 |"]


def test_the_held_out_models_are_predicted_as_the_page_says(record):
    errors = public_models.errors(record, held_out=True)
    assert max(errors["launches"]) <= 0.10
    for way in ("eager", "compiled"):
        median, most = errors[way]
        assert median <= 0.15
        assert most <= 0.30
    median, most = errors["speed-up"]
    assert median <= 0.10
    assert most <= 0.25
    assert public_models.page(record) == public_models.PAGE.read_text(), "python -m benchmarks.public_models --predict"


LIBRARIES = ("mm.default", "bmm.default", "addmm.default", "convolution", "scaled_dot_product", "baddbmm")


def test_launches_that_are_missing_are_no_more_than_the_fills_that_reports_name(record):
    """Of models whose only unpredicted launches are fills: ConvNeXt made 186, 163 were predicted."""
    for name in ("ConvNeXt-T", "GPT-2", "MLP-Mixer", "Swin-T", "ViT-B/16"):
        ours, theirs = record["predicted"][name], record["measured"][name]
        calls = sum(row[0] for target, row in ours["by_operator"].items() if any(each in target for each in LIBRARIES))
        assert ours["eager"]["launches"] <= theirs["eager"]["launches"] <= ours["eager"]["launches"] + calls


def test_the_report_says_how_many_fills_a_library_may_add():
    plan = analyse(lambda x, w: functional.gelu(x @ w) @ w + 1, meta(64, 64), meta(64, 64))
    assert plan.fills_unsure == 2
    assert "launches: 4 to 6, because a library may fill a workspace" in repr(plan)
    assert "fill a workspace" not in repr(analyse(lambda x: x + 1, meta(64, 64)))


@pytest.mark.parametrize("name", ["DLRM", "GRU", "LSTM"])  # which need no package
def test_the_recorded_predictions_are_todays(name, record):
    found = public_models.predicted(name)
    for way in ("eager", "compiled"):
        assert found[way] == pytest.approx(record["predicted"][name][way], rel=1e-6)


def test_every_model_was_left_as_it_was(record):
    for name in public_models.ALL:  # GCN, which is refused, among them
        assert record["unchanged"][name]["before"] == record["unchanged"][name]["after"], name


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_a_model_is_left_as_it_was_today_too(name):
    found = public_models.unchanged(name)
    assert found["before"] == found["after"]


def test_a_digest_sees_every_value_a_training_step_changes():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    step = public_models.training_step(model, lambda x: model(x).sum(), optimizer)
    x = torch.randn(8, 4)
    step(x)
    changes = (
        lambda: model[0].weight.data[0, 0].add_(1e-6),
        lambda: model[1].running_mean[0].add_(1e-6),
        lambda: model[0].bias.grad[0].add_(1e-3),
        lambda: optimizer.state[model[0].bias]["exp_avg"][0].add_(1e-3),
        lambda: model[0].bias.requires_grad_(False),
        lambda: x[0, 0].neg_(),
    )
    digests = [public_models.digest(step, x)]
    for change in changes:
        change()
        digests.append(public_models.digest(step, x))
    assert len(set(digests)) == len(digests)
