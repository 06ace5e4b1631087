"""Draw small random graphs of operations, each with a feature that a careless partition gets wrong."""

import functools
import json
import random

from helpers.instruments.fusion.small_graph import RULES, illegal_reason
from helpers.learning.checks import cases
from helpers.learning.checks.partition_search import best_partition, joined, joinings, overwrites, time_of, touching

NAMES = {
    "elementwise": ("add", "mul", "gelu", "relu", "silu", "scale", "clamp", "square"),
    "rows": ("softmax", "layer_norm", "rms_norm"),
    "matmul": ("linear",),
    "opaque": ("sort", "topk", "fft"),
}
WEIGHTS = {"elementwise": 11, "rows": 4, "matmul": 3, "opaque": 2}
OPERATIONS = 6  # of a drawn graph: 203 partitions
TRIES = 2000
CLEARLY = 1.02  # times: how much slower a partition must be to count as worse than the best
# Features that a drawn graph can depend on, in addition to each of RULES.
GREEDY, APART, PAIR, CYCLE, LATE, IN_PLACE, FAR = "greedy", "apart", "pair", "cycle", "late", "in place", "far"


def drawn_graphs(seed: int, *features: str) -> list[dict]:
    """Return one graph per feature, drawn from `seed` and from the grading's own draw.

    A feature is one of RULES (ignoring that rule makes a partition look better than is possible), or one of these.
    GREEDY: repeatedly joining the pair that saves most ends in a worse partition. APART: the best one has kernels that
    may be joined, but shouldn't be. PAIR: the same is true of a pair of operations. CYCLE: the best groups are each
    harmless, but would wait for each other. LATE: one of the best groups is legal only once its last operation joins.
    IN_PLACE: one of them overwrites an input, and may. FAR: two operations in sequence are between two others, and some
    go over fewer rows, not columns.
    """
    drawn = seed + (cases.draw << 16)
    return [json.loads(_graph_with(feature, f"{drawn} {place}")) for place, feature in enumerate(features)]


@functools.cache
def _graph_with(feature: str, seed: str) -> str:
    draw = random.Random(seed)
    for _ in range(TRIES):
        graph = _drawn(draw, feature)
        if _turns_on(graph, feature):
            return json.dumps(graph)
    raise ValueError(f"no graph that turns on {feature!r} in {TRIES} draws")


def _drawn(draw: random.Random, feature: str) -> dict:
    rows, columns = draw.choice([2048, 4096, 8192]), draw.choice([2048, 4096, 8192])
    if feature in (APART, PAIR):  # fewer rows than multiprocessors, and long ones
        rows, columns = draw.choice([64, 72, 80]), draw.choice([32768, 49152, 65536])
    if feature == "registers":  # a block keeps long rows
        rows, columns = draw.choice([512, 1024]), draw.choice([65536, 81920])
    itemsize = draw.choice([2, 4])
    sizes = {"x": (rows, columns), "y": (rows, columns)}
    weights = {"small": itemsize * columns}
    operations, names = [], {}
    if feature == CYCLE:
        operations = _crossed(draw, rows, columns)
        sizes |= dict.fromkeys(("a", "b", "c", "d"), (rows, columns))
    if feature == FAR:
        operations = _far(rows, columns)
        sizes |= dict.fromkeys(("a", "b", "c", "d"), (rows, columns)) | dict.fromkeys(("e", "f"), (rows // 2, columns))
    while len(operations) < OPERATIONS:
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        # Prefer recent results to inputs.
        near = list(sizes)[::-1]
        first = draw.choice(near[:3])
        size = sizes[first]
        alike = [each for each in near if sizes[each] == size and each != first]
        reads = [first]
        if kind == "elementwise" and alike and draw.random() < 0.6:
            reads.append(draw.choice(alike[:3]))
        elsewhere, flops = [], 0
        if kind == "matmul":
            wide = draw.choice([size[1], columns, columns // 2])
            weight = f"w{len(weights)}"
            weights[weight] = itemsize * size[1] * wide
            reads, elsewhere = [first, weight], [first, weight]
            flops, size = 2 * size[0] * size[1] * wide, (size[0], wide)
        elif kind == "elementwise" and draw.random() < (0.4 if feature == "overwritten" else 0.15):
            elsewhere = [reads[-1]]  # shifted by a place, or transposed
        word = draw.choice(NAMES[kind])
        names[word] = names.get(word, 0) + 1
        free = [each for each in reads if each not in elsewhere]
        over = (
            kind == "elementwise" and free and draw.random() < (0.5 if feature in ("overwritten", IN_PLACE) else 0.15)
        )
        written = draw.choice(free) if over else f"t{len(operations)}"
        sizes[written] = size
        operations.append(
            {
                "name": f"{word}_{names[word]}",
                "kind": kind,
                "rows": size[0],
                "columns": size[1],
                "reads": reads,
                "elsewhere": elsewhere,
                "writes": [written],
                "flops": flops,
            }
        )
    del weights["small"]
    tensors = {name: itemsize * size[0] * size[1] for name, size in sizes.items()} | weights
    read = {tensor for each in operations for tensor in each["reads"]}
    written = [each["writes"][0] for each in operations]
    # Results that nothing reads are the outputs; an overwritten input holds its new values.
    results = sorted({each for each in written if each not in read or each in ("x", "y")} | {written[-1]})
    used = read | set(written)
    return {
        "tensors": {name: nbytes for name, nbytes in tensors.items() if name in used},
        "operations": operations,
        "results": results,
    }


def _crossed(draw: random.Random, rows: int, columns: int) -> list[dict]:
    """Return two pairs that read the same tensor, where each pair waits for a result of the other."""

    size = rows, columns
    first = [_elementwise("scale_x", size, ["x"], [], "a"), _elementwise("roll_a", size, ["y", "a"], ["a"], "b")]
    second = [_elementwise("scale_y", size, ["y"], [], "c"), _elementwise("roll_c", size, ["x", "c"], ["c"], "d")]
    return draw.choice([[*first, *second], [first[0], second[0], first[1], second[1]], [*second, *first]])


def at_the_limit() -> list[dict]:
    """Return two operations that need 255 registers in one kernel, which is the maximum, and two that need one more."""
    found = []
    for columns, reads in ((79 * 1024, ["x", "y"]), (119 * 1024, ["x"])):
        size = {"rows": 1024, "columns": columns}
        first = {"kind": "elementwise", **size, "reads": reads, "elsewhere": [], "writes": ["s"], "flops": 0}
        then = {"kind": "rows", **size, "reads": ["s"], "elsewhere": [], "writes": ["t"], "flops": 0}
        tensors = dict.fromkeys([*reads, "s", "t"], 2 * 1024 * columns)
        operations = [{"name": "add" if len(reads) > 1 else "relu", **first}, {"name": "softmax", **then}]
        found.append({"tensors": tensors, "operations": operations, "results": ["t"]})
    return found


def nearly_even() -> list[dict]:
    """Return pairs where one kernel saves 1.5 to 5% of the time of two, or costs 1.5 to 2% more: any gain is worth
    it."""
    draw = random.Random(cases.draw)
    found = []
    for deep in (24576, draw.choice((12288, 16384)), 8192):  # a large product and a small GELU
        size = {"rows": 8192, "columns": 8192}
        linear = {"kind": "matmul", **size, "reads": ["x", "w"], "elsewhere": ["x", "w"], "writes": ["s"]}
        operations = [
            {"name": "linear", **linear, "flops": 2 * 8192 * 8192 * deep},
            _elementwise("gelu", (8192, 8192), ["s"], [], "t"),
        ]
        tensors = dict.fromkeys(("x", "w"), 2 * 8192 * deep) | dict.fromkeys(("s", "t"), 2 * 8192 * 8192)
        found.append({"tensors": tensors, "operations": operations, "results": ["t"]})
    # Fewer rows than multiprocessors: once fused, an elementwise operation's reads go at the softmax's pace.
    for rows, inputs in draw.sample([(72, 5), (80, 6)], 2) + draw.sample([(80, 5), (88, 6)], 1):
        names, size = [f"x{number}" for number in range(inputs)], (rows, 32768)
        operations = [
            _elementwise("mix", size, names, [], "s"),
            _elementwise("softmax", size, ["s"], [], "t") | {"kind": "rows"},
        ]
        tensors = dict.fromkeys([*names, "s", "t"], 4 * rows * 32768)
        found.append({"tensors": tensors, "operations": operations, "results": ["t"]})
    return found


def long_chain() -> tuple[dict, list[str]]:
    """Return a legal (graph, group) where each operation shares a tensor with its neighbours only."""
    size, tensors = (4096, 8192), ["x", "s", "t", "u", "v", "a", "b", "c", "d", "y"]
    operations = [
        _elementwise(name, size, [tensors[place]], [], tensors[place + 1])
        for place, name in enumerate(("relu", "scale", "gelu", "clamp", "sigmoid", "tanh", "exp", "abs", "sqrt"))
    ]
    graph = {"tensors": dict.fromkeys(tensors, 2 * 4096 * 8192), "operations": operations, "results": ["y"]}
    return graph, [each["name"] for each in operations]


def overwritten_and_turned() -> list[tuple[dict, list[str]]]:
    """Return two illegal (graph, group) pairs: operations outside the group wait for it only because both write the
    same tensor; and two operations have equally many elements, but in different rows and columns."""
    size, turned = (4096, 8192), (8192, 4096)
    between = [
        _elementwise("relu", size, ["x"], [], "t"),
        _elementwise("gelu", size, ["y"], [], "t"),
        _elementwise("add", size, ["x", "t"], [], "u"),
    ]
    other = [_elementwise("relu", size, ["x"], [], "t"), _elementwise("scale", turned, ["x"], [], "u")]
    return [
        (
            {"tensors": dict.fromkeys(tensors, 2 * 4096 * 8192), "operations": operations, "results": results},
            [operations[0]["name"], operations[-1]["name"]],
        )
        for tensors, operations, results in (
            (["x", "y", "t", "u"], between, ["u"]),
            (["x", "t", "u"], other, ["t", "u"]),
        )
    ]


def of_several_tensors() -> list[tuple[dict, list[str]]]:
    """Return (graph, group) with operations that write two tensors, or read three, where the second or third one
    decides; each pair also in reverse order."""
    size = (4096, 8192)
    cases_of_two = [  # operations as (name, reads, elsewhere, writes), results, and the group that is asked
        # The one that is read elsewhere, by an operation that reads two so.
        ([("split", "x", "", "ab"), ("roll", "yb", "yb", "c")], "ac", ["split", "roll"]),
        # The one that is overwritten, and was read elsewhere.
        ([("roll", "xy", "xy", "a"), ("split", "a", "", "by")], "by", ["roll", "split"]),
        # The one that makes them hang together, and nothing is wrong with it.
        ([("split", "x", "", "ab"), ("relu", "b", "", "c")], "ac", ["split", "relu"]),
        ([("scale", "x", "", "a"), ("mix", "yza", "", "c")], "c", ["scale", "mix"]),
        # The one that something between them waits for.
        ([("split", "x", "", "ab"), ("gelu", "b", "", "c"), ("add", "ac", "", "d")], "d", ["split", "add"]),
        # The one that may be overwritten only after something between them has read it.
        ([("relu", "x", "", "a"), ("add", "ay", "", "c"), ("split", "a", "", "dy")], "cdy", ["relu", "split"]),
        ([("relu", "x", "", "a"), ("mix", "zya", "", "c"), ("add", "ca", "", "d")], "d", ["relu", "add"]),
    ]
    found = []
    for rows, results, group in cases_of_two:
        for turned in (1, -1):
            operations = [
                _elementwise(name, size, [*reads][::turned], [*elsewhere][::turned], "")
                | {"writes": [*writes][::turned]}
                for name, reads, elsewhere, writes in rows
            ]
            names = sorted({tensor for each in operations for tensor in (*each["reads"], *each["writes"])})
            tensors = dict.fromkeys(names, 2 * 4096 * 8192)
            found.append(({"tensors": tensors, "operations": operations, "results": [*results]}, group))
    return found


def _far(rows: int, columns: int) -> list[dict]:
    """Return a graph where scale_x and mul read the same tensor and have two operations between them; two more go over
    half the rows."""
    size, half = (rows, columns), (rows // 2, columns)
    return [
        _elementwise("scale_x", size, ["x"], [], "a"),
        _elementwise("roll_a", size, ["a"], ["a"], "b"),
        _elementwise("gelu_b", size, ["b"], [], "c"),
        _elementwise("mul", size, ["x", "c"], [], "d"),
        _elementwise("half_x", half, ["x"], [], "e"),
        _elementwise("relu_e", half, ["e"], [], "f"),
    ]


def _elementwise(name: str, size: tuple[int, int], reads: list[str], elsewhere: list[str], written: str) -> dict:
    moved = {"reads": reads, "elsewhere": elsewhere, "writes": [written], "flops": 0}
    return {"name": name, "kind": "elementwise", "rows": size[0], "columns": size[1], **moved}


def _turns_on(graph: dict, feature: str) -> bool:
    if feature == FAR:
        return True
    found = best_partition(graph)
    best = time_of(graph, found)
    if feature == PAIR:
        pairs = [list(pair) for pair in touching(graph) if not illegal_reason(graph, list(pair))]
        alone = [(time_of(graph, [pair]), time_of(graph, [[name] for name in pair])) for pair in pairs]
        return any(one > two * CLEARLY for one, two in alone)
    if feature == IN_PLACE:
        return any(overwrites(graph, group) for group in found)
    if feature == LATE:
        return time_of(graph, best_partition(graph, grown=True)) > best * CLEARLY
    if feature in (*RULES, CYCLE):
        # If something has to run between its operations, a kernel fits in no order.
        seeming = best_partition(graph, feature, ordered=feature not in ("between", CYCLE))
        return time_of(graph, seeming) * CLEARLY < best
    if feature == APART and not joinings(graph, found):
        return False
    return time_of(graph, joined(graph, whatever=feature == APART)) > best * CLEARLY
