"""Inputs that expose mistakes in a tiled kernel."""

from dataclasses import replace

import torch

from helpers.learning.checks.cases import Case, between, in_turn, transposed
from helpers.learning.checks.row_cases import normal

HALF = torch.float16
EDGES = "the edges: which rows, columns and products exist in the last tile of each direction"
TILED_STRIDES = "the strides: a matrix may be transposed, or part of a wider one"
TILES = "the grid, the loop over K, and which program has which rows and columns: every tile here is whole"
ACTIVATIONS = ("relu", "gelu", "silu")


def linear_cases(
    seed: int, sizes: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (33, 65, 17), (64, 64, 100), (70, 40, 130))
) -> list[Case]:
    """Return calls of `linear_act(x, weight, bias, activation)` with (M, K), (N, K) and (N,) in fp16.

    They are: a single tile with each activation, with NaN, with sums of +-200, and with values whose fp16 sum
    overflows; several whole tiles; then each (M, N, K) in `sizes`; each operand alone transposed, both transposed, and
    slices of wider matrices; no rows at all; and sums of no products.
    """
    draw = normal(seed)

    def call(label: str, look_at: str, m: int, n: int, k: int, activation: str = "relu", scale: float = 0.5) -> Case:
        x, weight, bias = draw(m, k) * scale, draw(n, k) * scale, draw(n)
        return Case(label, (x.half(), weight.half(), bias.half(), activation), look_at, arguments=activation)

    found = [
        call("", f"the product, with every slice of K in it, the bias, and {name}", 16, 16, 128, name)
        for name in ACTIVATIONS
    ]
    for name in ACTIVATIONS:
        special = call(
            "NaN in one row",
            f"{name} of NaN, which is NaN: row 3 has one, and so has its result, alone",
            16,
            16,
            128,
            name,
        )
        special.inputs[0][3, 5] = torch.nan
        found.append(special)
    for name in ACTIVATIONS:
        far = call(
            "sums of 200 and -200", f"{name} far from 0: e^s overflows float32 for s above 88", 16, 16, 128, name
        )
        far.inputs[0][:], far.inputs[1][:] = 1.25, 1.25
        far.inputs[0][::2] *= -1
        found.append(far)
    found.append(call("a long row", "the loop over K: every slice is added to the sum", 16, 16, 256, scale=0.25))
    large = call("partial sums that pass 65504", "the accumulator: fp16 cannot hold these sums", 16, 16, 256)
    large.inputs[0][:, :128], large.inputs[0][:, 128:], large.inputs[1][:] = 200.0, -199.0, 100.0
    found.append(large)
    found.append(replace(call("whole tiles", TILES, 128, 256, 128), whole=True))
    found += [call("", EDGES, *size, ACTIVATIONS[place % 3]) for place, size in enumerate(sizes)]
    # After the sums that fp16 does not hold and the edges: a row of 5000 has both.
    past = call("results past 65504", "float16: a result past 65504 is inf, as PyTorch's is", 16, 16, 32)
    past.inputs[0][:], past.inputs[1][:] = 200.0, 100.0
    past.inputs[0][::2] *= -1
    found.append(past)
    longer = "the loop over K, which ends only at K: x and weight may have any width"
    found.append(call("a very long row", longer, 16, 16, between(8200, 9500, seed), scale=0.125))
    many = between(2100, 4000, seed)
    # Whole: the check of large tensors grows the rows alone.
    found.append(call("many columns", f"the grid: every tile of columns has its program; and {EDGES}", 3, many, 16))
    found.append(replace(call("many rows", EDGES, many, 3, 16), few=True))
    *operands, bias, activation = call("", "", 20, 24, 33).inputs
    found += [
        replace(case, inputs=(*case.inputs, bias, activation), arguments=activation)
        for case in in_turn(operands, transposed, "transposed", TILED_STRIDES)
    ]
    turned = call("transposed", TILED_STRIDES, 20, 24, 33)
    found.append(replace(turned, inputs=(*(transposed(x) for x in turned.inputs[:2]), *turned.inputs[2:])))
    wide = call("columns of wider matrices", TILED_STRIDES, 20, 24, 60)
    found.append(replace(wide, inputs=(wide.inputs[0][:, :33], wide.inputs[1][:, 20:53], *wide.inputs[2:])))
    found.append(call("no rows", "the empty tensor", 0, 16, 16))
    found.append(call("no products", "K = 0: each sum is 0, and so a result is the activation of the bias", 3, 5, 0))
    return found


def rounding_cases(seed: int) -> list[Case]:
    """Return calls of `linear_act(x, weight, bias, activation)` with finite results.

    They have each activation, with short and long sums; curved activations have sums near -2.
    """
    draw = normal(seed)
    found = [
        Case(
            "", ((draw(m, k) / 2).half(), (draw(m, k) / 2).half(), draw(m).half(), name), "the rounding", arguments=name
        )
        for m, k in ((16, 16), (40, 200))
        for name in ACTIVATIONS
    ]
    # There 16 bits best resolve the effect of a constant with few digits.
    for name in ("gelu", "silu"):
        x, weight, bias = draw(32, 16) / 8, draw(32, 16) / 8, draw(32) / 8 - 2
        found.append(Case("sums near -2", (x.half(), weight.half(), bias.half(), name), "the rounding", arguments=name))
    return found


LENGTHS = ((1, 1, 1, 16), (4, 3, 33, 16), (1, 1, 130, 32))
PEAK = 150.0  # of scores whose exponentials no fp32 holds: e^88.8 is too large


def _attention_call(draw, shape: tuple[int, int, int, int], tensors: int, scale: float = 0.5) -> tuple:
    return tuple((draw(*shape) * scale).half() for _ in range(tensors))


def _first_key_leads(draw, shape: tuple[int, int, int, int], tensors: int, peak: float = 6.0) -> tuple:
    """Return queries whose largest score, at most `peak`, belongs to key 0, so no later tile has a larger maximum."""
    q, k, *v = _attention_call(draw, shape, tensors)
    q = q.abs()
    k[:, :, 0] = k.abs().amax()
    scores = (q.double() @ k.double().mT)[..., 0] / shape[-1] ** 0.5
    return q * (peak / scores.max()).half(), k, *v


def _growing(draw, shape: tuple[int, int, int, int], tensors: int) -> tuple:
    """Return scores that grow along the keys, so every tile has a new maximum."""
    q, k, *v = _attention_call(draw, shape, tensors, scale=1.0)
    steps = torch.linspace(0, 2, shape[2], device=k.device).half()[:, None]
    return q.abs(), k.abs() * steps, *v


def _planned(
    draw, shape: tuple[int, int, int, int], tensors: int, of_queries: torch.Tensor, of_keys: torch.Tensor
) -> tuple:
    """Return scores close to `of_queries[i] * of_keys[j]`."""
    q, k, *v = _attention_call(draw, shape, tensors, scale=0.125)
    q[..., 0], k[..., 0] = of_queries.to(q.device), shape[-1] ** 0.5 * of_keys.to(k.device)
    return q, k, *v


def _far_below_zero(draw, shape: tuple[int, int, int, int], tensors: int, score: float) -> tuple:
    keys = torch.full((shape[2],), score / 16)
    return _planned(draw, shape, tensors, torch.full((shape[2],), 16.0), keys)


def _alike(draw, shape: tuple[int, int, int, int], tensors: int) -> tuple:
    """Return scores that all are -2^21, exactly: below -10^6, and a sum's logarithm can still be added to them."""
    q, k, *v = (
        torch.zeros_like(x) if place < 2 else x for place, x in enumerate(_attention_call(draw, shape, tensors))
    )
    q[..., 0], k[..., 0] = -(2.0**12), 2.0**11
    return q, k, *v


def _far_apart(draw, shape: tuple[int, int, int, int], tensors: int) -> tuple:
    """Return scores that are 32x larger for every second query: 120, compared with less than 4."""
    queries = torch.ones(shape[2])
    queries[1::2] = 32.0
    return _planned(draw, shape, tensors, queries, torch.full((shape[2],), 3.75))


def _falling(draw, tensors: int) -> tuple:
    """Return scores that fall by 300 along the keys, so that in later tiles the maximum is far below the row's."""
    return _planned(draw, (1, 1, FALLING, 16), tensors, torch.ones(FALLING), torch.linspace(150.0, -150.0, FALLING))


def _one_nan_score(draw, tensors: int) -> tuple:
    """Return scores of which one is NaN: the last query's with key 5, which is 0 times inf. The other queries' scores
    with that key are -inf, so it has no weight, whether they see it or not."""
    q, k, *v = _attention_call(draw, (1, 1, 16, 16), tensors)
    k[:, :, 5, 3] = torch.inf
    q[..., 3] = -1.0
    q[:, :, -1, 3] = 0.0
    return q, k, *v


def _one_infinite_score(draw, tensors: int) -> tuple:
    """Return scores with one +inf: the last query's with key 5. The other queries' scores with that key are
    -inf, so it has no weight, whether they see it or not."""
    q, k, *v = _one_nan_score(draw, tensors)
    q[:, :, -1, 3] = 1.0
    return q, k, *v


def _steep(draw, shape: tuple[int, int, int, int], tensors: int, step: float = 4.0) -> tuple:
    """Return scores that grow by `step` per key, so that a query's hidden scores are above its visible ones."""
    return _planned(draw, shape, tensors, torch.full((shape[2],), step), torch.arange(float(shape[2])))


MANY_KEYS = 1536
SLOW_KEYS = 768
SMALL_KEYS = 448
ROUNDED_WEIGHTS = 32.0  # float32 roundings of a sum over so many keys, in any order


def _many_small_weights(draw) -> tuple:
    """Return 16 keys that share 63/64 of each row's weight, and 1520 keys that share the rest. A 16-bit sum that has
    already passed the 16 keys' weights loses most or all of those in a tile of 64 keys (the first head's) or 128 keys
    (the second's), because they are less than half a unit in its last place. All values are 1, and so is every result.
    """
    q, k, v = (torch.zeros_like(draw(1, 2, MANY_KEYS, 16)) for _ in range(3))
    q[..., 0] = 1.0
    for head, tile in enumerate((64, 128)):
        # 16 weights of 1 have a last place of 2^-6 in float16; 0.45 of it, spread over a tile.
        k[:, head, 16:, 0] = 4.0 * torch.log(torch.tensor(0.45 * 2**-6 / tile))
    v += 1.0
    return q.half(), k.half(), v.half()


def _many_with_most_of_the_weight(draw) -> tuple:
    """Return keys that each have a weight of e^-8.2, or 2.7e-4, of the first one's, and together a tenth of the row's.
    The first has the value 0 and the others have 16, so all of the result is theirs."""
    q, k, v = (torch.zeros_like(draw(1, 1, SMALL_KEYS, 16)) for _ in range(3))
    q[..., 0], k[:, :, 1:, 0] = 4.0, -8.2
    v[:, :, 1:] = 16.0
    return q.half(), k.half(), v.half()


def _slowly_growing(draw) -> tuple:
    """Return scores that grow so little from tile to tile that e^-growth rounds to 1 in 16 bits: it's 1 - 2^-12 for
    tiles of 64 keys (the first head's) or 128 (the second's), and closer to 1 for smaller tiles. The first quarter of
    the keys has values of 1 and the rest have 0, so that quarter's share shows what was lost."""
    q, k, v = (torch.zeros_like(draw(1, 2, SLOW_KEYS, 16)) for _ in range(3))
    k[..., 0] = torch.arange(SLOW_KEYS, device=k.device) / 64
    for head, tile in enumerate((64, 128)):
        q[:, head, :, 0] = 4.0 * 0.95 * 2**-12 * 64 / tile
    v[:, :, : SLOW_KEYS // 4] = 1.0
    return q.half(), k.half(), v.half()


def _of_large_products(draw, shape: tuple[int, int, int, int], tensors: int) -> tuple:
    """Return four keys that share a row's weight, with scores near 1000 that are sums of far larger products: rounding
    a query or a score to float16 then shows in the weights."""
    q, k, *v = (draw(*shape) for _ in range(tensors))
    along = 200 * q[:, :, :1]
    q = along * torch.linspace(0.999, 1.001, shape[2], device=q.device)[:, None]
    score = torch.full((shape[2],), 1000.0, device=q.device)
    score[:: shape[2] // 4] = 1020.0
    k = k / 2
    apart = score[:, None] * shape[-1] ** 0.5 - (along * k).sum(-1, keepdim=True)
    k = k + apart * along / along.square().sum(-1, keepdim=True)
    return q.half(), k.half(), *(x.half() for x in v)


def score_conditioning(q: torch.Tensor, k: torch.Tensor, dtype: torch.dtype) -> float:
    """Return how far the rounding of float32 scores may move a result, in units in the last place of `dtype`.

    A score is off by half a unit in its last place, and so is the maximum: together, by the score's magnitude times
    float32's eps. The exponential turns that into a relative error of the weight, even if the two are close to each
    other.
    """
    scores = (q.double() @ k.double().mT).abs() / q.shape[-1] ** 0.5
    largest = scores[scores.isfinite()].max().item() if scores.isfinite().any() else 0.0
    return max(1.0, largest * torch.finfo(torch.float32).eps / torch.finfo(dtype).eps)


FALLING = 256  # keys: two tiles even of 128
WHOLE = 128  # queries and keys, whole tiles of the usual sizes
RESCALE = "the rescaling: when the maximum grows, the sum so far shrinks"
MAXIMUM = "the exponential: subtract the row's maximum first"
SIZES = "the sizes: dim, the scale that depends on it, and how many tiles of queries and of keys there are"
LARGEST_SO_FAR = (
    "the running maximum: tl.maximum of the one so far and the tile's, because a later tile's may be smaller"
)
MANY = "the loops over keys: they go on to the last key that a query sees, however many there are"
CARRIED = "what is carried from one tile of keys to the next, and what is done once, after the last"
LOWEST = "the maximum's start: -inf, because 0 is above every score here"
MASKED_WITH = f"{LOWEST}; and the score of a masked key, which is -inf, not a large negative number"
OWN_MAXIMUM = "the maximum: each query has its own (tl.max along axis 1)"
MASK_FIRST = "the order: the mask comes before the maximum and the exponential, so that no hidden score is the maximum"
IN_FLOAT32 = (
    "what is rounded to 16 bits before the exponential: q and k go into tl.dot as loaded, and the scale multiplies the "
    "float32 scores"
)
SHRINK = (
    "the factor that rescales the sum and acc: it stays in float32, because float16 rounds it to 1; and what tl.dot "
    "multiplies: float32 tiles are cut to tf32"
)
TOTAL = "the running sum of the weights: it stays in float32, because float16 drops small terms"
ACCUMULATOR = "the accumulator: fp16 cannot hold this sum; acc is float32 until it is divided"
SMALL_WEIGHTS = "small weights: in float32 they have as many digits as large ones, and none of them is 0"
KEPT_NAN = "what happens to NaN: a query with NaN gets a row of NaN, and no other query does"
ONE_NAN = (
    "what happens to NaN: one NaN score among those that a query sees makes its sum NaN, and so the whole row; "
    "no comparison with NaN is true"
)
INFINITE = "what happens to inf: as from torch.softmax, a query that sees a score of +inf gets a row of NaN"
HEADS = "the strides: four for each tensor, and which belong to which"
OF_PROGRAM = "which program has which batch and head: its number // heads, and % heads"


def scores_cases(seed: int, shapes: tuple[tuple[int, int, int, int], ...] = LENGTHS) -> list[Case]:
    """Return calls of `attention_scores(q, k, valid)`: (batch, heads, seq, dim) in fp16, and (batch, seq) in bool, all
    True.

    They are: one tile; scores whose exponentials overflow; other dims; scores that rise or fall along the keys; scores
    far below 0; queries in a tile with very different scores; weights down to e^-60; hidden scores above visible ones;
    NaN; then each shape in `shapes`; each tensor alone with its axes in the opposite order; heads that are not
    contiguous; and an empty batch.
    """
    draw = normal(seed)
    extreme = normal(seed + 1)

    def call(label: str, look_at: str, inputs: tuple) -> Case:
        batch, _, seq, _ = inputs[0].shape
        valid = torch.ones(batch, seq, dtype=torch.bool, device=inputs[0].device)
        # The weights are float32, and so are the scores they depend on.
        rounded = score_conditioning(*inputs[:2], torch.float32)
        return Case(label, (*inputs, valid), look_at, input_error=torch.float32, conditioning=rounded)

    base = "the scale, 1/sqrt(dim); the causal mask, j <= i, and which keys are valid; and the softmax over these"
    found = [call("", base, _first_key_leads(draw, (1, 1, 64, 16), 2))]
    found.append(call("large scores", MAXIMUM, _first_key_leads(draw, (1, 1, 64, 16), 2, PEAK)))
    found.append(call("another dim", SIZES, _first_key_leads(draw, (1, 1, 64, 64), 2)))
    found.append(call("dim 32, large scores", IN_FLOAT32, _of_large_products(extreme, (1, 1, 64, 32), 2)))
    found.append(call("scores that grow", RESCALE, _growing(draw, (1, 1, WHOLE, 16), 2)))
    found.append(call("scores that fall", LARGEST_SO_FAR, _falling(extreme, 2)))
    tile = (1, 1, 64, 16)
    found.append(call("scores far below 0", LOWEST, _far_below_zero(extreme, tile, 2, -150.0)))
    found.append(call("scores of -12000", MASKED_WITH, _far_below_zero(extreme, tile, 2, -12000.0)))
    found.append(call("scores of -2e6", MASKED_WITH, _alike(extreme, tile, 2)))
    found.append(call("queries far apart", OWN_MAXIMUM, _far_apart(extreme, tile, 2)))
    # To e^-60, which is far above the smallest number of float32.
    down = _planned(extreme, (1, 1, 32, 16), 2, torch.ones(32), torch.linspace(0.0, -60.0, 32))
    found.append(replace(call("small weights", SMALL_WEIGHTS, down), relative=True))
    found.append(call("hidden scores above visible ones", MASK_FIRST, _steep(extreme, (1, 1, WHOLE, 16), 2)))
    # The last of 16 sees all keys, also in a window: the weight of a hidden key in such a row is not checked.
    special = call("NaN in the last query", KEPT_NAN, _attention_call(extreme, (1, 1, 16, 16), 2))
    special.inputs[0][..., -1, 3] = torch.nan
    found.append(special)
    found.append(call("one NaN score of the last query", ONE_NAN, _one_nan_score(extreme, 2)))
    found.append(call("one infinite score of the last query", INFINITE, _one_infinite_score(normal(seed + 2), 2)))
    found.append(replace(call("several heads", OF_PROGRAM, _attention_call(draw, (2, 9, 64, 16), 2)), whole=True))
    found += [call("", EDGES, _attention_call(draw, shape, 2)) for shape in shapes]
    # Whole: of few programs, only what they write is compared, and a grid may end too early.
    found.append(call("many heads", OF_PROGRAM, _attention_call(draw, (1, between(33, 40, seed), 17, 16), 2)))
    several = between(20, 26, seed), between(66, 80, seed), 17, 16
    found.append(replace(call("many heads and sequences", OF_PROGRAM, _attention_call(draw, several, 2)), few=True))
    long = _attention_call(draw, (1, 1, between(960, 1100, seed), 16), 2)
    found.append(replace(call("many keys", MANY, long), few=True))
    found += [call(*turned) for turned in _turned(draw, 2)]
    found.append(call("no batch", "the empty tensor", _attention_call(draw, (0, 2, 16, 16), 2)))
    return found


def _turned(draw, tensors: int) -> list[tuple[str, str, tuple]]:
    """Yield (label, where to look, inputs) with one tensor after another in the opposite axis order, and in (batch,
    seq, heads, dim), as a projection leaves it."""
    shape = (2, 3, 20, 16)
    found = [
        (case.label, case.look_at, case.inputs)
        for case in in_turn(_attention_call(draw, shape, tensors), transposed, "transposed", HEADS)
    ]
    first = tuple(
        x[:, :1].expand(x.shape) if place else x for place, x in enumerate(_attention_call(draw, shape, tensors))
    )
    found.append(("one head's keys for all, expanded", HEADS, first))
    beside = tuple((draw(2, 20, 3, 16) * 0.5).half().transpose(1, 2) for _ in range(tensors))
    return [*found, ("heads side by side", HEADS, beside)]


def masked_cases(seed: int, seq: int = 40) -> list[Case]:
    """Return calls of `attention_scores(q, k, valid)` with padding among the keys: queries that see only a few keys, or
    none."""
    draw = normal(seed)
    device = draw(1).device

    def call(label: str, look_at: str, q: torch.Tensor, k: torch.Tensor, valid: torch.Tensor) -> Case:
        rounded = score_conditioning(q, k, torch.float32)
        return Case(label, (q, k, valid), look_at, input_error=torch.float32, conditioning=rounded)

    found = []
    for label, first, last, heads, keys in (
        ("padding at the end", 0, seq // 2, 2, seq),
        ("padding at the start", seq // 2, seq, 2, seq),
        ("one key", 5, 6, 2, seq),
        ("no key", 0, 0, 2, seq),
        ("padding over several tiles", seq + 100, seq + 120, 1, seq + 120),
    ):
        valid = torch.ones(2, keys, dtype=torch.bool, device=device)
        valid[0, :first], valid[0, last:] = False, False
        look_at = (
            "rows without a key: 0, and not 0/0"
            if first or not last
            else "which mask applies to what: valid is for keys"
        )
        if keys > seq:
            look_at += "; and the rescaling, which begins with the first tile that has a visible key"
        found.append(call(label, look_at, *_attention_call(draw, (2, heads, keys, 16), 2), valid))
    several = between(17, 24, seed), 2, 17, 16
    valid = torch.rand(several[0], several[2], generator=torch.Generator().manual_seed(seed)) < 0.6
    look_at = "which mask applies to what: valid has a row for each batch"
    found.append(call("many batches", look_at, *_attention_call(draw, several, 2), valid.to(device)))
    # Padding with the largest scores, 200 above the rest.
    q, k = _planned(draw, (1, 1, seq, 16), 2, torch.full((seq,), 8.0), torch.zeros(seq))
    k[..., ::2, 0] = 100.0
    valid = (torch.arange(seq, device=device) % 2 == 1)[None]
    found.append(call("padding with the largest scores", MASK_FIRST, q, k, valid))
    return found


def flash_cases(seed: int, shapes: tuple[tuple[int, int, int, int], ...] = LENGTHS) -> list[Case]:
    """Return calls of `flash_attention(q, k, v, causal)`: (batch, heads, seq, dim) in fp16, and a bool.

    They are: one or two tiles, full and causal; scores whose exponentials overflow; another dim; scores that rise or
    fall along the keys; large scores; scores far below 0; queries in a tile with very different scores; hidden scores
    above visible ones; several heads; values whose sum passes 65504; many small weights among a few large ones; a
    result of small weights; small and large values; scores that grow slowly; NaN; then each shape in `shapes`, both
    full and causal; each tensor alone with its axes in the
    opposite order; heads that are not contiguous; and an empty batch.
    """
    draw = normal(seed)
    extreme = normal(seed + 1)

    def call(label: str, look_at: str, inputs: tuple, causal: bool = False, **kind) -> Case:
        rounded = score_conditioning(*inputs[:2], torch.float16)
        given = "causal" if causal else "full"
        return Case(label, (*inputs, causal), look_at, arguments=given, conditioning=rounded, **kind)

    formula = "the formula: two products, and the softmax between them"
    mask = "the causal mask, and the loop over keys: query i sees key j where j <= i"
    found = [call("", formula, _first_key_leads(draw, (1, 1, 64, 16), 3))]
    found.append(call("", CARRIED, _first_key_leads(draw, (1, 1, WHOLE, 16), 3)))
    found.append(call("", mask, _first_key_leads(draw, (1, 1, WHOLE, 16), 3), True))
    found.append(call("large scores", MAXIMUM, _first_key_leads(draw, (1, 1, WHOLE, 16), 3, PEAK)))
    found += [call("another dim", SIZES, _first_key_leads(draw, (1, 1, 64, 64), 3), causal) for causal in (False, True)]
    tile, two = (1, 1, 64, 16), (1, 1, WHOLE, 16)
    single = {"input_error": torch.float32}  # the weights depend on float32 scores
    found.append(call("dim 128, large scores", IN_FLOAT32, _of_large_products(extreme, (1, 1, 64, 128), 3), **single))
    found.append(call("scores that grow", RESCALE, _growing(draw, (1, 1, WHOLE, 16), 3)))
    found.append(call("scores that fall", LARGEST_SO_FAR, _falling(extreme, 3), **single))
    found.append(call("scores far below 0", LOWEST, _far_below_zero(extreme, tile, 3, -40.0), **single))
    found.append(call("scores of -12000", MASKED_WITH, _far_below_zero(extreme, tile, 3, -12000.0), True, **single))
    found.append(call("scores of -2e6", MASKED_WITH, _alike(extreme, two, 3), True))
    found.append(call("queries far apart", OWN_MAXIMUM, _far_apart(extreme, two, 3), **single))
    found.append(call("hidden scores above visible ones", MASK_FIRST, _steep(extreme, two, 3), True, **single))
    # These come before the cases that have two heads for other reasons.
    found.append(replace(call("several heads", OF_PROGRAM, _attention_call(draw, (2, 9, 64, 16), 3)), whole=True))
    q, k, v = _attention_call(extreme, two, 3)
    found.append(call("values about 1000", ACCUMULATOR, (q / 4, k, 1000 + 64 * v)))
    found.append(call("many small weights", TOTAL, _many_small_weights(extreme)))
    small = "small weights: they count as they are, because there may be many"
    found.append(call("a result of many small weights", small, _many_with_most_of_the_weight(extreme)))
    q, k, v = _first_key_leads(draw, (1, 1, 64, 16), 3)
    v = v.abs() * torch.logspace(-3, 4, 16, device=v.device).half()  # no two terms cancel
    sizes = "the values: results are as large or small as they are"
    found.append(replace(call("values from 1e-3 to 1e4", sizes, (q, k, v)), relative=True))
    slow = call("scores that grow slowly", SHRINK, _slowly_growing(extreme))
    found.append(replace(slow, one_rounding=True, conditioning=ROUNDED_WEIGHTS))
    special = call("NaN in the last query", KEPT_NAN, _attention_call(extreme, tile, 3))
    special.inputs[0][..., -1, 3], special.inputs[0][..., -2, 3] = torch.nan, torch.inf
    found.append(special)
    kept = "what happens to NaN and inf in a key or a value: each query of that head sees it, and no other head does"
    q, k, v = _attention_call(extreme, (1, 4, 64, 16), 3)
    k[0, 1, 7, 3], v[0, 2, 9, 5], v[0, 3, 9, 5] = torch.nan, torch.nan, torch.inf
    found.append(call("NaN or inf in one key or value", kept, (q / 4, k, v)))
    found += [call("", EDGES, _attention_call(draw, shape, 3), causal) for shape in shapes for causal in (False, True)]
    several = between(20, 26, seed), between(33, 40, seed), 17, 16
    found.append(replace(call("many heads", OF_PROGRAM, _attention_call(draw, several, 3)), few=True))
    for causal in (True, False):
        long = _attention_call(draw, (1, 1, between(2010, 2048, seed), 16), 3)
        found.append(replace(call("many keys", MANY, long, causal), few=True))
    found += [call(*turned, True) for turned in _turned(draw, 3)]
    found.append(call("no batch", "the empty tensor", _attention_call(draw, (0, 2, 16, 16), 3)))
    return found
