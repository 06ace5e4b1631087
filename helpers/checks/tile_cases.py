"""Inputs on which a kernel that works on tiles turns out wrong."""

import torch

from helpers.checks.cases import Case
from helpers.checks.row_cases import normal

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
