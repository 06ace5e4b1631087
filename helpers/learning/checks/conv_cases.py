"""Inputs that expose mistakes in a convolution with batch norm and ReLU."""

from dataclasses import replace

import torch

from helpers.learning.checks.cases import Case, between
from helpers.learning.checks.row_cases import normal

PRODUCT = "the product: a row is an output pixel, a column an output channel, the sum runs over taps and input channels"
INDEX_MAP = "the index map: the row and the column that a tap sees, and 0 where either is outside the image"
FILTER = "the filter's two sizes: a tap's row is tap // taps_w, its column tap % taps_w; and the loop over all of them"
EDGES = "the edges: which pixels, output channels, taps and input channels exist in the last tile of each direction"
STRIDES = "the strides: four for x and four for the weight, which may be in any order in memory"
NAN_IN_VECTORS = "what happens to NaN in gamma, beta, the mean or the variance: a channel with one is NaN, and no other"
NORM = "batch norm: scale = gamma / sqrt(var + eps), and beta - mean * scale is added"


class _Draw:
    """Calls of `conv_bn_relu(x, weight, bias, gamma, beta, mean, var, stride, padding, eps)`, drawn from a seed.

    x (images, channels, height, width), weight (out_channels, channels, taps_h, taps_w) and bias (out_channels,) are
    fp16, the other vectors fp32.
    """

    def __init__(self, seed: int):
        self.draw = normal(seed)

    def call(self, label: str, look_at: str, x, filters, stride: int = 1, padding: int = 0, eps: float = 1e-5) -> Case:
        """Draw a call. `x` and `filters` are shapes; gamma is positive, and batch norm is the identity apart from its
        eps."""
        out, channels, taps_h, taps_w = filters
        weight = self.draw(*filters) / (2 * channels * taps_h * taps_w) ** 0.5
        pictures, ones, zeros = self.draw(*x) / 2, torch.ones(out), torch.zeros(out)
        vectors = [each.to(pictures.device) for each in (zeros.half(), ones, zeros, zeros, ones)]
        return Case(label, (pictures.half(), weight.half(), *vectors, stride, padding, eps), look_at)

    def normed(self, case: Case, bias: bool = True, negative: bool = True) -> Case:
        """Draw a case whose batch norm matters, and whose convolution has a bias of its own."""
        x, weight, _, _, _, _, _, *rest = case.inputs
        out = len(weight)
        gamma, beta, mean = self.draw(out) / 2, self.draw(out) / 2, self.draw(out) / 2
        gamma = gamma if negative else gamma.abs() + 0.25
        own = self.draw(out).half() if bias else torch.zeros_like(gamma).half()
        var = self.draw(out).abs() / 2 + 0.5
        return replace(case, inputs=(x, weight, own, gamma, beta, mean, var, *rest))


def conv_cases(seed: int, sizes: tuple[tuple[int, ...], ...] = ((1, 5, 7, 9, 3), (2, 20, 9, 6, 70))) -> list[Case]:
    """Return calls in which batch norm does nothing: pixels, taps, strides, padding, edges, layouts, NaN, inf, an
    empty batch.

    Args:
        seed: decides the values.
        sizes: images, channels, height, width and output channels, for cases that no block divides evenly.
    """
    draw = _Draw(seed)
    found = [
        draw.call("1 x 1", PRODUCT, (1, 16, 4, 4), (16, 16, 1, 1)),
        draw.call("3 x 3, no padding", f"{PRODUCT}; {INDEX_MAP}", (1, 16, 6, 6), (16, 16, 3, 3)),
        draw.call("two images", "the image: output pixels are counted through all of them",
                  (2, 16, 5, 4), (16, 16, 3, 3)),
        draw.call("3 x 3, padding 1", INDEX_MAP, (2, 16, 6, 5), (16, 16, 3, 3), padding=1),
        draw.call("stride 2", "the stride: an output pixel's window begins stride pixels after its neighbour's",
                  (1, 16, 7, 8), (16, 16, 3, 3), stride=2, padding=1),
        draw.call("1 x 1, stride 3", "how many pixels the result has: (size + 2 padding - taps) // stride + 1",
                  (2, 16, 8, 9), (16, 16, 1, 1), stride=3),
        draw.call("5 x 2, padding 2", FILTER, (1, 16, 6, 5), (16, 16, 5, 2), padding=2),
    ]  # fmt: skip
    for images, channels, height, width, out in sizes:
        found.append(draw.call("", EDGES, (images, channels, height, width), (out, channels, 3, 3), padding=1))
    last = draw.call("channels last", STRIDES, (2, 16, 5, 6), (16, 16, 3, 3), padding=1)
    x, weight, *rest = last.inputs
    order = {"memory_format": torch.channels_last}
    found.append(replace(last, inputs=(x.contiguous(**order), weight.contiguous(**order), *rest)))
    wide = draw.call("part of larger images", STRIDES, (2, 32, 9, 12), (16, 16, 3, 3), padding=1)
    x, weight, *rest = wide.inputs
    found.append(replace(wide, inputs=(x[:, ::2, 1:8, ::2], weight.transpose(0, 1), *rest)))
    large = draw.call("partial sums that pass 65504", "the accumulator: fp16 cannot hold these sums",
                      (1, 64, 4, 4), (16, 64, 1, 1))  # fmt: skip
    large.inputs[0][:, :32], large.inputs[0][:, 32:], large.inputs[1][:] = 200.0, -199.0, 100.0
    found.append(large)
    past = draw.call("results past 65504", "float16: a result past 65504 is inf", (1, 16, 4, 4), (16, 16, 1, 1))
    past.inputs[0][:], past.inputs[1][:] = 200.0, 100.0
    past.inputs[1][::2] *= -1
    found.append(past)
    walk = "the loop over taps and channels: every slice is added"
    found.append(draw.call("many channels", walk, (1, 2500, 3, 3), (16, 2500, 1, 1)))
    nan = (
        "ReLU: tl.where(y < 0, 0, y) lets NaN through, y > 0 and tl.maximum do not; and loads past the filter's end, "
        "where a weight of 0 makes NaN of NaN"
    )
    special = draw.call("NaN in one pixel", nan, (1, 16, 6, 6), (16, 16, 3, 3), padding=1)
    special.inputs[0][0, :, 2, 2] = torch.nan  # also in channel 0, which a sum that runs too far reaches next
    special.inputs[1][3, 0, 1, 1], special.inputs[2][5] = torch.nan, torch.nan  # one filter, and one channel's bias
    found.append(special)
    infinite = "inf: it is multiplied and added like any other number, and a result may be inf, or NaN for inf - inf"
    special = draw.call("inf in x and in a weight", infinite, (1, 16, 4, 4), (16, 16, 1, 1))
    x, weight = special.inputs[:2]
    x[0, 2, 1, 1], x[0, 5, 2, 3], x[0, 7:9, 3, 0], weight[3, 4] = torch.inf, -torch.inf, torch.inf, torch.inf
    found.append(special)
    several = "the image: there may be any number of them"
    found.append(draw.call("19 images", several, (19, 16, 2, 2), (16, 16, 1, 1)))
    found.append(draw.call("7 x 7, stride 2, padding 3", f"{FILTER}; {INDEX_MAP}", (1, 1, 70, 68), (4, 1, 7, 7), 2, 3))
    stride, padding = between(4, 6, seed), between(4, 6, seed + 1)
    label, shapes = f"8 x 9, stride {stride}, padding {padding}", ((34, 1, 13, 12), (3, 1, 8, 9))
    found.append(draw.call(label, f"{FILTER}; {INDEX_MAP}", *shapes, stride, padding))
    found.append(draw.call("many output channels", EDGES, (1, 4, 3, 3), (520, 4, 1, 1)))
    height, width = (between(80, 110, seed + axis) for axis in range(2))
    large = draw.call("large images", f"{INDEX_MAP}; {EDGES}", (2, 4, height, width), (8, 4, 3, 3), padding=1)
    found.append(replace(large, few=True))
    found.append(draw.call("no image", "the empty tensor", (0, 16, 4, 4), (16, 16, 1, 1)))
    return found


def batch_norm_cases(
    seed: int, sizes: tuple[tuple[int, ...], ...] = ((1, 16, 4, 4, 16), (2, 7, 5, 3, 20))
) -> list[Case]:
    """Return calls whose batch norm matters: alone, with a bias, with negative gamma, with large means, with NaN,
    with hardly any variance.

    Args:
        seed: decides the values.
        sizes: images, channels, height, width and output channels.
    """
    draw, found = _Draw(seed), []
    for images, channels, height, width, out in sizes:
        shapes = (images, channels, height, width), (out, channels, 3, 3)
        plain = draw.call("gamma above 0, no bias", NORM, *shapes, padding=1)
        found.append(draw.normed(plain, bias=False, negative=False))
        bias = draw.call("a bias", "the convolution's own bias: it comes before batch norm, which scales it",
                         *shapes, padding=1)  # fmt: skip
        found.append(draw.normed(bias, negative=False))
        negative = draw.call("gamma below 0", "the order: batch norm first, ReLU last", *shapes, padding=1)
        negative = draw.normed(negative)
        gamma, var = negative.inputs[3], negative.inputs[6]
        gamma[1], var[2] = 0.0, 2.5e4  # one channel is beta alone, another has a large variance
        found.append(negative)
        mean = "the mean: all of it is subtracted, however large"
        far = draw.normed(draw.call("means to 1000", mean, *shapes, padding=1))
        means = torch.linspace(-1000, 1000, out, device=far.inputs[5].device)
        found.append(replace(far, inputs=(*far.inputs[:5], means, *far.inputs[6:])))
        unknown = draw.normed(draw.call("NaN in batch norm's vectors", NAN_IN_VECTORS, *shapes, padding=1))
        for place, vector in enumerate(unknown.inputs[3:7]):
            vector[2 * place + 1] = torch.nan
        found.append(unknown)
        # Up to twice eps: there the larger of the two, or eps left out, is not nearly the sum.
        for variance, eps in ((1e-6, 1e-3), (0.0, 1e-5), (2e-3, 1e-3), (2e-5, 2e-6)):
            small = draw.call(f"variances to {variance:g}, eps {eps:g}", "eps: added to the variance, inside the root",
                              *shapes, padding=1, eps=eps)  # fmt: skip
            x, weight, own, gamma, beta, mean, var, *rest = draw.normed(small).inputs
            var = variance * torch.linspace(0, 1, out, device=var.device)
            # Weights so small that the scale does not carry the result out of fp16's range.
            found.append(replace(small, inputs=(x, weight / 32, own / 32, gamma, beta, mean / 32, var, *rest)))
    return found


def conv_rounding_cases(seed: int) -> list[Case]:
    """Return calls whose sums have a mean of 24, which batch norm subtracts, so that rounding a sum to 16 bits becomes
    visible; with 1 x 1 and 3 x 3 filters."""
    draw, found = _Draw(seed), []
    for taps, padding in ((1, 0), (3, 1)):
        images, filters = (1, 32, 8, 8), (32, 32, taps, taps)
        case = draw.normed(draw.call(f"{taps} x {taps}", "the rounding", images, filters, padding=padding))
        x, weight, own, gamma, beta, mean, var, *rest = case.inputs
        mean = mean + 24  # of the sums: the bias is 24, and batch norm takes as much off
        found.append(replace(case, inputs=(x, weight, own + 24, gamma + 1, beta, mean, var, *rest)))
    return found
