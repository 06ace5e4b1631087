"""Inputs on which a kernel that works on tiles turns out wrong."""

import torch

from helpers.learning.checks.cases import Case
from helpers.learning.checks.row_cases import normal

HALF = torch.float16
EDGES = "the edges: which rows, columns and products exist in the last tile of each direction"
TILED_STRIDES = "the strides: a matrix may lie transposed, or in a wider one"
ACTIVATIONS = ("relu", "gelu", "silu")


def linear_cases(
    seed: int, sizes: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (33, 65, 17), (64, 64, 100), (70, 40, 130))
) -> list[Case]:
    """Calls of `linear_act(x, weight, bias, activation)`: (M, K), (N, K), (N,) in fp16.

    A single tile; each activation; each of `sizes`, (M, N, K); strided and transposed operands; NaN in a row; values
    at which a sum of fp16 overflows; no row at all.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, m: int, n: int, k: int, activation: str = "relu", scale: float = 0.5) -> Case:
        x, weight, bias = draw(m, k) * scale, draw(n, k) * scale, draw(n)
        return Case(
            f"{label}{', ' * bool(label)}{activation}", (x.half(), weight.half(), bias.half(), activation), look_at
        )

    found = [call("", f"the product, the bias, and {name}", 16, 16, 16, name) for name in ACTIVATIONS]
    found += [call("", EDGES, *size, ACTIVATIONS[place % 3]) for place, size in enumerate(sizes)]
    wide = call("columns of wider matrices", TILED_STRIDES, 20, 24, 60)
    wide = Case(wide.label, (wide.inputs[0][:, :33], wide.inputs[1][:, 20:53], *wide.inputs[2:]), wide.look_at)
    found.append(wide)
    turned = call("transposed", TILED_STRIDES, 20, 24, 33)
    x, weight = (each.T.contiguous().T for each in turned.inputs[:2])
    found.append(Case(turned.label, (x, weight, *turned.inputs[2:]), turned.look_at))
    large = call(
        "sums that pass 65504 on their way", "the accumulator: fp16 cannot hold these sums", 16, 16, 64, scale=0.0
    )
    large.inputs[0][:, :32], large.inputs[0][:, 32:], large.inputs[1][:] = 200.0, -199.0, 100.0
    found.append(large)
    special = call("NaN in one row", "what rows share: nothing but weight and bias", 20, 16, 16, "silu")
    special.inputs[0][3, 5] = torch.nan
    found.append(special)
    found.append(call("no rows", "the empty tensor", 0, 16, 16))
    return found


LENGTHS = ((1, 1, 1, 16), (2, 2, 33, 16), (1, 1, 130, 32))


def _attention_call(draw, shape: tuple[int, int, int, int], tensors: int, scale: float = 0.5) -> tuple:
    return tuple((draw(*shape) * scale).half() for _ in range(tensors))


def _layouts(draw, tensors: int) -> tuple:
    """Tensors (batch, heads, seq, dim) that lie as (batch, seq, heads, dim), as a projection leaves them."""
    return tuple((draw(2, 20, 3, 16) * 0.5).half().transpose(1, 2) for _ in range(tensors))


def scores_cases(seed: int, shapes: tuple[tuple[int, int, int, int], ...] = LENGTHS) -> list[Case]:
    """Calls of `attention_scores(q, k, valid)`: (batch, heads, seq, dim) in fp16; (batch, seq) in bool, all True.

    One tile; each of `shapes`; heads that are not contiguous; scores whose exponentials overflow; no batch at all.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, inputs: tuple) -> Case:
        batch, _, seq, _ = inputs[0].shape
        valid = torch.ones(batch, seq, dtype=torch.bool, device=inputs[0].device)
        # The weights are float32, and so are the scores that they hang on.
        return Case(label, (*inputs, valid), look_at, input_error=torch.float32)

    found = [call("", "the scale, 1/sqrt(dim), and the causal mask", _attention_call(draw, (1, 1, 16, 16), 2))]
    found += [call("", EDGES, _attention_call(draw, shape, 2)) for shape in shapes]
    found.append(call("heads side by side", "the strides: four for each tensor", _layouts(draw, 2)))
    large = _attention_call(draw, (1, 1, 20, 16), 2, scale=3.0)
    found.append(call("large scores", "the exponential: take the row's maximum off first", large))
    found.append(call("no batch", "the empty tensor", _attention_call(draw, (0, 2, 16, 16), 2)))
    return found


def masked_cases(seed: int, seq: int = 40) -> list[Case]:
    """Calls of `attention_scores(q, k, valid)` with keys that are padding: queries that see few keys, or none."""
    draw = normal(seed)
    device = draw(1).device
    found = []
    for label, first, last in (
        ("padding at the end", 0, seq // 2),
        ("padding at the start", seq // 2, seq),
        ("one key", 5, 6),
        ("no key", 0, 0),
    ):
        valid = torch.ones(2, seq, dtype=torch.bool, device=device)
        valid[0, :first], valid[0, last:] = False, False
        look_at = (
            "rows without a key: 0, and not 0/0" if first or not last else "which mask is whose: valid tells of keys"
        )
        inputs = (*_attention_call(draw, (2, 2, seq, 16), 2), valid)
        found.append(Case(label, inputs, look_at, input_error=torch.float32))
    return found


def flash_cases(seed: int, shapes: tuple[tuple[int, int, int, int], ...] = LENGTHS) -> list[Case]:
    """Calls of `flash_attention(q, k, v, causal)`: (batch, heads, seq, dim) in fp16 and a bool.

    One tile, each of `shapes`, both full and causal; heads that are not contiguous; scores that grow along the keys;
    scores whose exponentials overflow; no batch at all.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, inputs: tuple, causal: bool) -> Case:
        kind = "causal" if causal else "full"
        return Case(f"{label}{', ' * bool(label)}{kind}", (*inputs, causal), look_at)

    found = [call("", "the formula", _attention_call(draw, (1, 1, 16, 16), 3), False)]
    found.append(
        call("", "the causal mask: key j for query i where j <= i", _attention_call(draw, (1, 1, 16, 16), 3), True)
    )
    found += [call("", EDGES, _attention_call(draw, shape, 3), causal) for shape in shapes for causal in (False, True)]
    found.append(call("heads side by side", "the strides: four for each tensor", _layouts(draw, 3), True))
    growing = _attention_call(draw, (1, 1, 130, 16), 3, scale=1.0)
    growing[1][:] *= torch.linspace(0, 2, 130, device=growing[1].device).half()[:, None]
    rescale = "the rescaling: when the maximum grows, what was summed so far shrinks"
    found.append(call("scores that grow", rescale, growing, False))
    large = _attention_call(draw, (1, 1, 20, 16), 3, scale=3.0)
    found.append(call("large scores", "the exponential: take the maximum off first", large, False))
    found.append(call("no batch", "the empty tensor", _attention_call(draw, (0, 2, 16, 16), 3), False))
    return found
