"""What is conv_bn_act's own: strides, paddings, filters, both of its kernels, its bytes, its errors, its registers."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import arguments, conv_bn_act, variant
from kernels.activations import ACTIVATIONS
from kernels.interpreter import runtime
from kernels.tiled import conv_bn_act as module
from kernels.tiled.conv_bn_act import OP, conv_bn_act_kernel, conv_bn_act_op, conv_bn_act_reference
from kernels.tuned import conv_descriptors
from kernels.tuned.conv_descriptors import box_of_pixels, count_tiles, write_runs

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
HALF = torch.bfloat16 if runtime.has_gpu() else torch.float16


def inputs(shape, taps, dtype=HALF, device="cpu"):
    """Arguments with a filter of taps (height, width); shape is (images, channels, height, width, out)."""
    images, channels, height, width, out = shape
    x, _, *vectors = OP.inputs(images, channels, height, width, out, 1, dtype=dtype, device=device)
    weight = torch.randn(out, *taps, channels, dtype=dtype, device=device).permute(0, 3, 1, 2)
    return x, weight / (channels * taps[0] * taps[1]) ** 0.5, *vectors


def assert_right(ours, arguments, **options):
    exact = conv_bn_act_reference(*doubled(arguments), **options)
    assert_as_accurate(ours, conv_bn_act_reference(*arguments, **options), exact)


@pytest.mark.parametrize(
    ("shape", "taps", "stride", "padding", "way"),
    [
        ((2, 16, 6, 10, 8), (3, 3), 1, None, "as it is"),
        ((2, 32, 6, 10, 24), (3, 3), 2, 1, "as it is"),
        ((1, 16, 8, 8, 8), (3, 3), 2, 0, "as it is"),
        ((1, 16, 9, 6, 8), (3, 3), 3, 2, "as it is"),
        ((1, 16, 4, 4, 8), (7, 7), 2, 3, "as it is"),
        ((1, 16, 6, 6, 8), (2, 4), 1, None, "as it is"),
        ((1, 16, 8, 8, 8), (1, 1), 2, 0, "as it is"),
        ((2, 48, 4, 4, 16), (1, 1), 1, 0, "as it is"),
        ((1, 16, 3, 3, 8), (3, 3), 1, 4, "as it is"),
        ((3, 16, 5, 6, 70), (3, 3), 1, None, "as it is"),  # results whose rows are no multiple of 16 bytes
        ((1, 24, 5, 5, 8), (3, 3), 1, None, "as it is"),  # channels that end within a block
        ((2, 8, 4, 6, 8), (3, 2), 1, None, "as it is"),
        ((1, 72, 3, 5, 16), (3, 3), 1, 0, "as it is"),
        ((2, 3, 9, 7, 5), (3, 3), 2, 1, "padded"),  # odd sizes, three channels
        ((2, 3, 14, 12, 16), (7, 7), 2, None, "padded"),
        ((1, 16, 7, 7, 8), (3, 3), 2, 1, "padded"),
        ((1, 24, 6, 6, 8), (3, 3), 2, 1, "padded"),
        ((3, 20, 5, 5, 8), (3, 3), 1, None, "padded"),
        ((1, 100, 3, 5, 12), (2, 4), 1, 2, "padded"),
        ((2, 10, 5, 5, 6), (1, 1), 1, None, "padded"),
        ((1, 5, 9, 9, 8), (1, 1), 2, 0, "padded"),
        ((1, 3, 9, 9, 8), (4, 4), 4, 0, "padded"),
        ((1, 9, 6, 6, 8), (3, 3), 3, 2, "padded"),
        ((1, 300, 2, 2, 8), (1, 2), 5, 1, "padded"),  # more channels than a block that copies
        ((1, 1, 1, 1, 1), (1, 1), 1, None, "padded"),
        ((2, 3, 9, 7, 5), (3, 3), 2, 1, "plain"),
        ((1, 16, 7, 7, 8), (3, 3), 1, None, "plain"),
    ],
)
def test_filters_strides_and_paddings(device, shape, taps, stride, padding, way, poisoned, monkeypatch):
    arguments = inputs(shape, taps, device=device)
    monkeypatch.setattr(conv_descriptors, "copies_gain", lambda *_: way == "padded")
    options = {"stride": stride, "padding": padding}
    if way != "plain":
        launches = {"as it is": conv_descriptors.launch_boxes, "padded": conv_descriptors.launch_runs}
        assert conv_descriptors.launch_for(*arguments[:2], stride, padding) == launches[way]
    with variant("plain" if way == "plain" else "tuned"):
        assert_right(conv_bn_act(*arguments, **options), arguments, **options)


@pytest.mark.parametrize(
    ("shape", "taps", "gains"),
    [
        ((32, 3, 224, 224, 64), 7, True),
        ((16, 100, 30, 30, 100), 3, True),
        ((16, 130, 29, 29, 66), 1, True),
        ((8, 72, 113, 57, 200), 3, True),
        ((13, 40, 65, 65, 88), 5, True),
        ((22, 248, 31, 31, 456), 3, True),
        ((17, 96, 27, 35, 96), 3, False),
        ((32, 32, 112, 112, 64), 3, False),
        ((32, 256, 14, 14, 256), 3, False),
        ((2, 3, 9, 7, 5), 3, False),
        ((1, 3, 64, 64, 64), 3, False),
    ],
)
def test_a_copy_is_made_where_it_costs_less_than_it_saves(shape, taps, gains, monkeypatch):
    monkeypatch.setattr(arguments, "MULTIPROCESSORS", 132)
    images, channels, height, width, out = shape
    sizes = (images, channels, height, width), (out, channels, taps, taps)
    x, weight = (torch.empty(size, dtype=torch.bfloat16) for size in sizes)
    assert (conv_descriptors.launch_for(x, weight, 1, None) == conv_descriptors.launch_runs) == gains


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_copy_is_what_a_filters_row_sees_and_zeros(device, stride, poisoned):
    arguments = inputs((2, 3, 8, 6, 5), (3, 3), device=device)
    x, weight = (tensor.permute(0, 2, 3, 1).contiguous() for tensor in arguments[:2])
    height, width = 7 // stride + 1, 5 // stride + 1
    padded = torch.nn.functional.pad(x, (0, 0, 1, 2 * stride, 1, 2 * stride))
    phases, rows, cols, pitch = conv_descriptors.runs_of(weight.shape, (2, height, width, 5), stride)
    assert (phases, cols, pitch) == (min(stride, 3), width, 16)
    runs, of_weight = write_runs(x, weight, cols, rows, pitch, stride, (1, 1))
    for phase in range(phases):
        for row in range(rows):
            for col in range(cols):
                seen = padded[:, row * stride + phase, col * stride : col * stride + 3].flatten(1)
                assert torch.equal(runs[:, phase, row, col, :9], seen)
    assert not runs[..., 9:].any()
    assert torch.equal(of_weight, torch.nn.functional.pad(weight.flatten(2), (0, 7)))


@pytest.mark.parametrize("kernels", ["plain", "tuned"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(device, act, kernels):
    arguments = inputs((1, 16, 4, 4, 8), (3, 3), device=device)
    with variant(kernels):
        assert_right(conv_bn_act(*arguments, act=act), arguments, act=act)


def test_a_wrong_convolution_is_not_as_accurate(device):
    """The rule can fail: a tap too far, a scale forgotten, a padding of ones."""
    arguments = inputs((1, 16, 6, 6, 8), (3, 3), device=device)
    x, weight, gamma, beta, mean, var = arguments
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), value=1.0)
    for wrong in (
        conv_bn_act(x.roll(1, dims=3), *arguments[1:]),
        conv_bn_act(x, weight, torch.ones_like(gamma), beta, mean, var),
        conv_bn_act(padded, *arguments[1:], padding=0),
    ):
        with pytest.raises(AssertionError):
            assert_right(wrong, arguments)


@pytest.mark.parametrize("kernels", ["plain", "tuned"])
@pytest.mark.parametrize(("dtype", "channels"), [(HALF, 16), (HALF, 3), (torch.float32, 16)])
def test_infinity_spreads_to_its_neighbours_and_no_further(device, dtype, channels, kernels, monkeypatch):
    """A block of channels or a padding that multiplied it by zero would give NaN."""
    monkeypatch.setattr(conv_descriptors, "copies_gain", lambda *_: True)
    x, weight, *vectors = inputs((1, channels, 8, 8, 8), (3, 3), dtype, device)
    x, weight = x.abs(), weight.abs()
    x[0, -1, 3, 4] = torch.inf
    with variant(kernels):
        y = conv_bn_act(x, weight, torch.ones_like(vectors[0]), *vectors[1:], stride=1)
    assert not y.isnan().any()
    assert y.isinf().all(dim=1).sum() == 9
    assert y[0, :, 2:5, 3:6].isinf().all()


def test_a_large_mean_does_not_cost_digits(device):
    x, weight, gamma, beta, mean, var = inputs((1, 16, 6, 6, 8), (3, 3), torch.float32, device)
    arguments = x + 1e3, weight, gamma, beta, mean + 1e3, var
    assert_right(conv_bn_act(*arguments), arguments)


def test_vectors_of_another_dtype(device):
    x, weight, *vectors = inputs((1, 16, 4, 4, 8), (1, 1), device=device)
    arguments = x, weight, *[vector.float() for vector in vectors]
    assert_right(conv_bn_act(*arguments), arguments)


def test_channels_first_is_copied_and_channels_last_is_not(device):
    arguments = inputs((2, 16, 4, 4, 8), (3, 3), device=device)
    assert measure(conv_bn_act, *arguments).launches == 1
    first = [tensor.contiguous() for tensor in arguments]
    assert measure(conv_bn_act, *first).launches == 3
    y = conv_bn_act(*first)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, conv_bn_act(*arguments))


@pytest.mark.parametrize("kernels", ["plain", "tuned"])
def test_a_tile_reads_its_pixels_once_a_tap(device, kernels):
    """Padding costs no bytes; without tiles that stick out, x is read once for each tap inside the picture. The plain
    kernel loads two taps of 16 channels at once, and a pixel that both see once."""
    images, channels, side, out = 2, 16, 8, 64
    arguments = inputs((images, channels, side, side, out), (3, 3), torch.float16, device)
    with variant(kernels):
        traffic = measure(conv_bn_act, *arguments)
    inside = images * (3 * side - 2) ** 2  # pairs of an output and an input that a tap joins
    work = OP.work((images, channels, side, side, out, 3), torch.float16)
    assert traffic.launches == 1
    read = traffic.by_tensor["x"].read
    assert read == 2 * channels * inside if kernels == "tuned" else read < 2 * channels * inside
    assert traffic.unique_read == work.bytes_read
    assert traffic.bytes_written == work.bytes_written == images * side * side * out * 2


@given(st.sampled_from([128, 256]), st.integers(1, 70), st.integers(1, 70), st.integers(1, 70))
@settings(max_examples=50)
def test_no_box_covers_with_fewer(pixels, images, height, width):
    def count(box):
        return count_tiles(box, images, height, width)

    best = box_of_pixels(pixels, images, height, width)
    assert best[0] * best[1] * best[2] == pixels
    flat = 1, 1, pixels
    assert count(best) <= count(flat)
    for i in range(3):
        for j in range(3):
            if i != j and best[j] > 1:
                moved = list(best)
                moved[i], moved[j] = moved[i] * 2, moved[j] // 2
                assert count(best) <= count(tuple(moved))


# The tile of pixels x output channels x input channels that was the fastest of those tried on an H200 in bf16; of 96
# channels on an H100.
MEASURED = {
    (32, 28, 28, 256, 256, 1, 9): (256, 64, 64),
    (32, 14, 14, 256, 256, 2, 9): (256, 64, 64),
    (1, 64, 64, 320, 320, 1, 9): (256, 64, 64),
    (32, 7, 7, 512, 512, 1, 9): (64, 128, 128),
    (32, 7, 7, 512, 512, 2, 9): (64, 128, 128),
    (1, 1, 1568, 2048, 512, 1, 1): (64, 128, 128),
    (1, 1, 196, 1024, 256, 1, 1): (16, 64, 256),
    (17, 27, 35, 96, 96, 1, 9): (256, 128, 32),
    (1, 1, 6272, 256, 1024, 1, 1): (128, 64, 64),
    (1, 1, 6272, 512, 2048, 1, 1): (128, 256, 64),
    (4, 64, 64, 512, 512, 1, 9): (256, 128, 64),
    (64, 56, 56, 128, 256, 1, 9): (256, 128, 64),
    (32, 56, 56, 64, 64, 1, 9): (128, 64, 64),
    (8, 113, 57, 72, 200, 1, 9): (256, 128, 64),
    (22, 31, 31, 248, 456, 1, 9): (256, 128, 64),
}


@pytest.mark.parametrize("shape", MEASURED)
def test_the_tile_that_was_fastest_is_chosen(shape):
    *sizes, stride, taps = shape
    chosen, _, _ = conv_descriptors.fastest(*sizes, stride, 132, taps)
    pixels = chosen["BOX_N"] * chosen["BOX_H"] * chosen["BOX_W"]
    assert (pixels, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]) == MEASURED[shape]


def test_no_tile_has_twice_as_many_outputs_as_there_are():
    """9 x 160 x 25 x 25 to 64 outputs takes 14.0 us by a tile of 64, and 24.8 by one of 128 (H100, bf16)."""
    for outputs in (8, 64, 72):
        chosen, _, _ = conv_descriptors.fastest(9, 25, 25, 160, outputs, 1, 132, 9)
        assert chosen["BLOCK_OUT"] <= (64 if outputs <= 64 else 128)


def test_boxes_come_out_even_where_they_can():
    assert box_of_pixels(128, 32, 28, 28) == (8, 4, 4)
    assert box_of_pixels(256, 64, 56, 56) == (4, 8, 8)
    assert box_of_pixels(128, 1, 1, 6272) == (1, 1, 128)


@pytest.mark.parametrize("shape", OP.gpu_shapes)
def test_what_the_compiler_makes_of_the_settings(shape):
    """Both operands reach the tensor cores from shared memory, and the loop keeps one product in flight."""
    kernel, arguments, options = conv_descriptors.compile_arguments(*shape, dtype=torch.bfloat16)
    compiled = compile_for(kernel, *arguments, device="H100", **options)
    assert compiled.spill_bytes == 0
    images, channels, height, width, out, taps = shape
    sizes = (images, height, width) if taps > 1 else (1, 1, images * height * width)
    at_once = conv_descriptors.fastest(*sizes, channels, out, 1, 132, taps**2)[1]
    assert compiled.occupancy().blocks >= at_once
    assert compiled.instructions["UTMALDG"] > 0
    assert compiled.instructions["UTMASTG"] == options["PARTS"]
    products = [line for line in compiled.sass.splitlines() if "HGMMA" in line]
    assert products
    assert all(line.split("HGMMA")[1].count("gdesc") == 1 and ", R" in line for line in products)
    assert not any("LDSM" in line for line in compiled.sass.split("HGMMA")[1:-1])
    assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in compiled.sass


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_kernel_does_not_spill(gpu, dtype):
    def empty(*shape):
        return torch.empty(*shape, dtype=dtype, device="meta")

    constants = {"TAPS_H": 3, "TAPS_W": 3, "STRIDE": 1, "PADDING_H": 1, "PADDING_W": 1, "ACT": "relu"}
    tensors = empty(32, 28, 28, 256), empty(256, 3, 3, 256), *4 * (empty(256),), empty(32, 28, 28, 256)
    sizes = 1e-5, 28, 28, 256, 32 * 28 * 28, 28, 28, 256
    chosen = constants | module.settings(dtype)
    assert compile_for(conv_bn_act_kernel, *tensors, *sizes, device=gpu, **chosen).spill_bytes == 0


def test_registration(device):
    arguments = inputs((1, 16, 4, 4, 8), (3, 3), torch.float32, device)
    torch.library.opcheck(conv_bn_act_op.forward_op, (*arguments, "relu", 1, None, 1e-5))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"act": "tanh"}, ValueError, "conv_bn_act takes act of relu, gelu, gelu_tanh, silu, got 'tanh'"),
        ({"stride": 0}, ValueError, "stride of 1 or above, got 0: choose"),
        ({"padding": -1}, ValueError, "padding of 0 or above, got -1"),
        ({"padding": 0, "x": torch.ones(1, 16, 2, 9)}, ValueError, "no larger than the padded x"),
        ({"x": torch.ones(1, 15, 4, 4)}, ValueError, "give both the same channels"),
        ({"x": torch.ones(16, 4, 4)}, ValueError, r"x \(images, channels, height, width\)"),
        ({"x": torch.ones(1, 16, 4, 4).double()}, TypeError, "got x of torch.float64: convert it with .to"),
        (
            {"x": torch.ones(1, 16, 4, 4).half()},
            TypeError,
            "one dtype, got x of torch.float16 and weight of torch.float32",
        ),
        (
            {"mean": torch.ones(7)},
            ValueError,
            r"mean of weight's output channels, \(8,\), got \(7,\): pass one value per channel",
        ),
        ({"var": torch.ones(8).int()}, TypeError, "got var of torch.int32: convert it"),
        ({"gamma": None}, TypeError, "got gamma of type NoneType"),
        ({"x": torch.ones(1, 16, 4, 4, device="meta")}, ValueError, "got x on meta and weight on"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    names = "x", "weight", "gamma", "beta", "mean", "var"
    arguments = dict(zip(names, inputs((1, 16, 4, 4, 8), (3, 3), torch.float32, device), strict=True)) | change
    x = arguments["x"]
    arguments["x"] = x if x.is_meta else x.to(device)
    arguments = {
        name: value.to(device) if name in change and name != "x" and isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    with pytest.raises(error, match=message) as raised:
        conv_bn_act(**arguments)
    assert "\n" not in str(raised.value)


@gpu_only
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", OP.gpu_shapes)
def test_the_benchmarks_shapes(shape, dtype):
    arguments = OP.inputs(*shape, dtype=dtype, device="cuda")
    y = conv_bn_act(*arguments)
    few = arguments[0][:2], *arguments[1:]
    assert_right(y[:2], few)


@gpu_only
def test_offsets_past_two_to_the_31():
    x, weight, *vectors = inputs((1100, 32, 256, 256, 32), (3, 3), torch.bfloat16, "cuda")
    for kernels in ("plain", "tuned"):
        with variant(kernels):
            y = conv_bn_act(x, weight, *vectors)
        assert_right(y[-1:], (x[-1:], weight, *vectors))
