"""Cases and the traffic check for exercise 17: one query per head, keys split at given bounds, and the merge."""

from collections.abc import Callable
from dataclasses import replace

import torch

from helpers.instruments.traffic import measure
from helpers.learning.checks.cases import Case, between, described, transposed
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.row_cases import LOW_PRECISION, normal
from helpers.learning.checks.tile_cases import score_conditioning
from helpers.learning.outcome import AnswerError, as_check

MANY_KEYS = 70000  # more than 16 bits hold
PARTIAL_VALUES = 8  # per element of dim, split and head: a generous bound for partial results, in bytes


def split_cases(seed: int, lengths: tuple[int, ...] = (70, 129), many: bool = False) -> list[Case]:
    """Return calls of `flash_decode(q, k, v, bounds)`, with q (heads, dim), k and v (heads, keys, dim) in fp32 and
    bounds in int64.

    They are: one split; equal splits, unequal ones, and several blocks in a split; empty splits at either end and in
    between; scores far below zero, far above it, and rising or falling from split to split; no keys at all; dims of 16
    to 128; views; fp16 and bf16, rounded once; NaN; if `many`, more than 2^15 keys and more than 128 splits; then, for
    each length in `lengths`, a sequence with random splits.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, bounds: list[int], heads: int = 2, dim: int = 16, score=None, **kind) -> Case:
        q, k, v = draw(heads, dim, **kind), draw(heads, bounds[-1], dim, **kind), draw(heads, bounds[-1], dim, **kind)
        if score is not None:  # q[:, 0] k[:, :, 0] dim**-0.5 is nearly the whole score
            q[:, 0], k[..., 0] = dim**0.5, torch.as_tensor(score, device=k.device).to(k.dtype)
        ends = torch.tensor(bounds, device=q.device)
        given = f"bounds {bounds}" if len(bounds) < 8 else f"{len(bounds) - 1} splits"
        if q.dtype in LOW_PRECISION:
            rounded = max(4.0, score_conditioning(q[:, None], k, torch.float32))
            return Case(label, (q, k, v, ends), look_at, arguments=given, conditioning=rounded, one_rounding=True)
        conditioning = max(4.0, score_conditioning(q[:, None], k, q.dtype))
        return Case(label, (q, k, v, ends), look_at, input_error=q.dtype, arguments=given, conditioning=conditioning)

    merge = (
        "the merge: each split's sum and values, loaded from where that split stored them, times exp(its maximum - the "
        "largest maximum)"
    )
    empty = "an empty split: its maximum is -inf, its sum and values 0, and -inf - -inf is NaN"
    top = "the maximum: subtract it before every exponential, in the splits and in the merge"
    steps = torch.linspace(0.0, 48.0, 64)
    found = [
        call("one split", "the formula: softmax(q k^T / sqrt(dim)) v", [0, 32]),
        call("two equal splits", merge, [0, 32, 64]),
        call(
            "unequal splits",
            "the bounds: split i has keys bounds[i] to bounds[i + 1], and its last block has lanes past its end",
            [0, 5, 17, 33, 48],
        ),
        call(
            "several blocks per split",
            "the loop over a split's blocks: does it reach the last key, and rescale when the maximum grows",
            [0, 300, 333],
        ),
        call("scores that grow from split to split", merge, [0, 16, 32, 48, 64], score=steps),
        call("scores that fall from split to split", merge, [0, 16, 32, 48, 64], score=steps.flip(0)),
        call("an empty split between", empty, [0, 20, 20, 50]),
        call("empty splits at both ends", empty, [0, 0, 0, 40, 40]),
        call("scores far below zero", f"{top}; nothing past a split's end may count", [0, 7, 40, 61], score=-12000.0),
        call("scores far above zero", top, [0, 7, 40, 61], score=12000.0),
        call("empty splits, and scores far below zero", f"{empty}; {top}", [0, 0, 7, 7, 40], score=-12000.0),
        call("no key at all", "no key: the result is 0, as in PyTorch, and the sum you'd divide by is 0", [0, 0, 0]),
        call("one key", "one key: its weight is 1", [0, 1]),
    ]
    lowest = call("scores of -3e37", f"{top}; -inf alone is below any score", [0, 7, 40], score=-3e37)
    lowest.inputs[1][..., 1:] = 0.0
    found.append(replace(lowest, conditioning=4.0))  # all scores are equal, so their size loses no digits
    found += [call(f"dim {dim}", "the sizes: dim is 16, 32, 64 or 128", [0, 9, 40], dim=dim) for dim in (32, 64, 128)]
    found.append(
        call("17 splits", "the merge's block: splits needn't be a power of two", [*range(0, 180, 10)], heads=3)
    )
    viewed = call("", "strides of k and v, or a copy", [0, 30, 50], heads=3)
    q, k, v, bounds = viewed.inputs

    def tokens_first(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().transpose(0, 1)

    for label, views in (
        ("k and v as a cache has them, tokens first", (tokens_first(k), tokens_first(v))),
        ("k transposed", (transposed(k), v)),
        ("v tokens first", (k, tokens_first(v))),
        ("v transposed", (k, transposed(v))),
    ):
        found.append(replace(viewed, label=label, inputs=(q, *views, bounds)))
    shared = (x[:1].expand(x.shape) for x in (k, v))
    found.append(replace(viewed, label="k and v of one head, expanded", inputs=(q, *shared, bounds)))
    sizes = call("values from 1e-30 to 1e30", "the values: results are as large or small as they are", [0, 30, 50])
    sizes.inputs[2][:] = sizes.inputs[2].abs() * torch.logspace(-30, 30, 16, device=q.device)  # no two terms cancel
    found.append(replace(sizes, relative=True))
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        found.append(
            call(name, f"{name}: convert to float32 when loaded, keep partial results in it", [0, 33, 70], dtype=dtype)
        )
    small = call("float16, small values", "float16: values below 6e-5 are not 0", [0, 33, 70], dtype=torch.float16)
    small.inputs[2][:] *= 2.0**-16
    found.append(small)
    nan = "NaN: a head with NaN in it has a result of NaN, and no other head does"
    infinite = f"{nan}; inf is a value like any other"
    special = call("NaN or inf in one head's query, keys or values", infinite, [0, 20, 40], heads=5)
    special.inputs[1][1, 7, 3], special.inputs[2][0, 30, 5] = torch.nan, torch.inf
    special.inputs[0][2, 3], special.inputs[0][3, 3], special.inputs[2][4, 30, 5] = torch.nan, torch.inf, -torch.inf
    found.append(special)
    # One key in a split's first block, one in a later block, and all keys of a split.
    unseen = call("NaN in values of weight 0", f"{nan}, even if its weight is 0", [0, 20, 70, 90], heads=3)
    q, k, v, _ = unseen.inputs
    q[:, 0] = 16.0
    for head, keys in enumerate((slice(7, 8), slice(60, 61), slice(70, 90))):
        k[head, keys, 0], v[head, keys, 3] = -1000.0, torch.nan
    found.append(unseen)
    if many:
        wide = "the bounds: keep them in int64, as they are stored; 16 bits can't count this many keys"
        # Each key but the first has a small weight, and together they have most of it.
        small = torch.full((MANY_KEYS,), -10.0)
        small[0] = 0.0
        found.append(call("", wide, [0, MANY_KEYS - 40, MANY_KEYS], heads=1, score=small))
        found.append(
            call(
                "very many splits",
                "the merge's block: it must be as large as the number of splits requires",
                [*range(between(520, 560, seed))],
                heads=1,
            )
        )
        heads = "the program's number: each has a head of its own, and all of its number counts"
        found.append(replace(call("many heads", heads, [0, 9], heads=between(4100, 6000, seed)), few=True))
    for length in lengths:
        inner = torch.randint(0, length + 1, (4,), generator=torch.Generator().manual_seed(seed + length)).sort().values
        found.append(call("", "the bounds of each split", [0, *inner.tolist(), length], dim=32))
    return found


@as_check
def check_split_traffic(answer: Callable, inputs: tuple) -> str:
    """Meter `answer(*inputs)`: two launches that read each key and value once and move little else.

    Args:
        answer: the learner's function of (q, k, v, bounds).
        inputs: its arguments.
        name: the check's name.

    Raises:
        AnswerError: the wrong number of launches, k or v not read exactly once, or partial results too large.
    """
    traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    q, k, _, bounds = inputs
    if traffic.launches != 2:
        count = "1 launch" if traffic.launches == 1 else f"{traffic.launches} launches"
        raise AnswerError(f"{count}, 2 expected: one for the splits, one for the merge", "what is launched")
    for name, x in (("k", inputs[1]), ("v", inputs[2])):
        read = traffic.by_tensor[name].read if name in traffic.by_tensor else 0
        if read != x.nbytes:
            raise AnswerError(
                f"{name} is read {read / x.nbytes:.3g} times, once is needed",
                "which keys each program loads, and masks",
            )
    splits = len(bounds) - 1
    rest = traffic.bytes_total - 2 * k.nbytes
    programs = splits * len(q)
    most = programs * (q.shape[1] * (PARTIAL_VALUES + 2 * q.itemsize) + 64) + 2 * q.nbytes
    if rest > most:
        raise AnswerError(
            f"{rest:,} B apart from k and v, at most {most:,} B expected: dim values, a maximum and a sum per split",
            "what the splits store for the merge",
        )
    return (
        f"2 launches; k and v once; {100 * rest / (2 * k.nbytes):.1f} % more for queries, partial results and result."
    )
