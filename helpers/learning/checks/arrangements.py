"""Check how an answer arranges a layer's operations in launches: can they run in this order, and within a budget?

A layer is {"operations": [...], "results": [...]}. An operation is {"name", "kind", "reads", "length"}: its kind is
"elementwise", "norm" or "product", `reads` maps each tensor it reads to that tensor's number of elements, and its
result has the operation's name and `length` elements. A product reads its weight and a vector. The operations are
listed in an order that can run.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable

from helpers.learning.checks import cases
from helpers.learning.outcome import AnswerError, as_check

ITEMSIZE = 4


def operation(name: str, kind: str, length: int, **reads: int) -> dict:
    return {"name": name, "kind": kind, "reads": reads, "length": length}


def a_layer(width: int, hidden: int, norm: bool, gated: bool, first_gate: bool, post_norm: bool) -> dict:
    """Return the feed-forward half of a decoder layer, with the requested parts."""
    found = [operation("s", "elementwise", width, x=width, residual=width)]
    given = "s"
    if norm:
        found.append(operation("normed", "norm", width, s=width, norm_weight=width))
        given = "normed"
    if first_gate:
        found.append(operation("opened", "elementwise", width, gate=width))
        found.append(operation("gated", "elementwise", width, **{given: width, "opened": width}))
        given = "gated"
    found.append(operation("up", "product", hidden, up_weight=hidden * width, **{given: width}))
    if gated:
        found.append(operation("side", "product", hidden, side_weight=hidden * width, **{given: width}))
        found.append(operation("active", "elementwise", hidden, side=hidden))
        found.append(operation("inner", "elementwise", hidden, active=hidden, up=hidden))
    elif post_norm:
        # It has the length of the matmul's result, and reads nothing that the layer produces.
        found.append(operation("mask", "elementwise", hidden, noise=hidden))
        found.append(operation("inner", "elementwise", hidden, up=hidden, mask=hidden))
    else:
        found.append(operation("inner", "elementwise", hidden, up=hidden))
    found.append(operation("down", "product", width, down_weight=hidden * width, inner=hidden))
    last = "down"
    if post_norm:
        found.append(operation("settled", "norm", width, down=width, post_weight=width))
        last = "settled"
    found.append(operation("y", "elementwise", width, **{last: width, "s": width}))
    return {"operations": found, "results": ["y", "s"] if norm else ["y"]}


def projections(width: int, hidden: int) -> dict:
    """Return two norms, six products of their result, and the operation that follows each product.

    Each of these operations belongs neither in the last launch nor in the last launch of its length; and one product
    has the length of the norm's result.
    """
    first = operation("first", "norm", width, x=width, first_weight=width)
    normed = operation("normed", "norm", width, first=width, norm_weight=width)
    products = [
        operation(name, "product", length, normed=width, **{f"{name}_weight": length * width})
        for name, length in (
            ("q", hidden),
            ("k", hidden),
            ("v", width),
            ("gate", hidden + 1),
            ("up", hidden + 2),
            ("route", hidden + 3),
        )
    ]
    added = [
        operation(f"{each['name']}_added", "elementwise", each["length"], **{each["name"]: each["length"]})
        for each in products
    ]
    return {"operations": [first, normed, *products, *added], "results": [each["name"] for each in added]}


def a_chain(width: int, hidden: int, steps: int) -> dict:
    """Return a norm, a chain of `steps` operations on its result, and a product with as long an epilogue."""
    found = [operation("normed", "norm", width, x=width, norm_weight=width)]
    for place in range(steps):
        found.append(operation(f"step_{place}", "elementwise", width, **{found[-1]["name"]: width}))
    found.append(operation("up", "product", hidden, up_weight=hidden * width, **{found[-1]["name"]: width}))
    # It reads nothing that the layer produces, and has the length of the second launch.
    found.append(operation("mask", "elementwise", hidden, noise=hidden))
    found.append(operation("hidden", "elementwise", hidden, up=hidden, mask=hidden))
    for place in range(steps):
        found.append(operation(f"then_{place}", "elementwise", hidden, **{found[-1]["name"]: hidden}))
    return {"operations": found, "results": [found[-1]["name"]]}


def layers_asked(seed: int, count: int) -> list[dict]:
    """Return the plainest layer, one with every part, some drawn at random, the projections before an attention, and a
    long chain."""
    draw = random.Random(seed + (cases.draw << 16))
    parts = [(False,) * 4, (True,) * 4, (True, False, True, True)]
    parts += [tuple(draw.random() < 0.5 for _ in range(4)) for _ in range(count)]
    found = [a_layer(draw.choice((8, 24, 96)), draw.choice((16, 40, 200)), *each) for each in parts]
    found.append(projections(draw.choice((8, 24, 96)), draw.choice((16, 40, 200))))
    return [*found, a_chain(draw.choice((8, 24, 96)), draw.choice((16, 40, 200)), draw.randint(6, 9))]


def joined_reason(group: list[dict]) -> str:
    """Return why one launch can't do these operations, in this order; empty where it can."""
    products = [each for each in group if each["kind"] == "product"]
    if len(products) > 1:
        return f"{products[0]['name']} and {products[1]['name']} are two products: each has a launch of its own"
    if products and group[0]["kind"] != "product":
        return f"{products[0]['name']}, a product, is not first: each of its tiles would do the work before it again"
    if products and (norms := [each["name"] for each in group if each["kind"] == "norm"]):
        return f"{norms[0]}, a norm, needs a whole row, and a tile of the product has only a part"
    if len({each["length"] for each in group}) > 1:
        return f"{group[0]['name']} and {group[-1]['name']} have results of different lengths"
    return ""


def cost(layer: dict, groups: list[list[str]]) -> tuple[int, int]:
    """Return launches and bytes: a launch reads what it doesn't compute itself, and writes what is needed after it."""
    known = {each["name"]: each for each in layer["operations"]}
    nbytes = 0
    for group in groups:
        reads = {}
        for name in group:
            reads |= {tensor: n for tensor, n in known[name]["reads"].items() if tensor not in group}
        outside = {t for each in known.values() if each["name"] not in group for t in each["reads"]}
        written = [known[name]["length"] for name in group if name in outside or name in layer["results"]]
        nbytes += ITEMSIZE * (sum(reads.values()) + sum(written))
    return len(groups), nbytes


def budget_of(layer: dict) -> tuple[int, int]:
    """Return the minimum number of launches, and the minimum bytes with that many, by trying every arrangement."""
    operations, best = layer["operations"], []

    def go_on(place: int, groups: list[list[dict]], where: dict[str, int]) -> None:
        if best and len(groups) > best[0][0]:
            return
        if place == len(operations):
            best.append(cost(layer, [[each["name"] for each in group] for group in groups]))
            best.sort()
            del best[1:]
            return
        new = operations[place]
        first = max((where[t] for t in new["reads"] if t in where), default=0)
        for at in range(first, len(groups)):
            if not joined_reason([*groups[at], new]):
                go_on(place + 1, [*groups[:at], [*groups[at], new], *groups[at + 1 :]], where | {new["name"]: at})
        go_on(place + 1, [*groups, [new]], where | {new["name"]: len(groups)})

    go_on(0, [], {})
    return best[0]


@as_check
def check_arrangement(answer: Callable, layers: Iterable[dict]) -> str:
    """Ask `answer(operations, results)` for a list of launches, each a list of names in the order in which they run.

    Args:
        answer: the learner's function.
        layers: the simplest first.
        name: the check's name.
    """
    layers = list(layers)
    for layer in layers:
        got = answer(copy.deepcopy(layer["operations"]), list(layer["results"]))
        require_launches(got, layer, answer.__name__)
        launches, nbytes = cost(layer, got)
        most, at_most = budget_of(layer)
        if launches > most or nbytes > at_most:
            raise AnswerError(
                f"{answer.__name__}: {launches} launches, {nbytes} bytes; the budget is {most} launches, {at_most} "
                f"bytes: {shown(got)}",
                "operations that could join the launch of what they read",
            )
    return f"within the budget of launches and bytes on {len(layers)} layers."


def require_launches(got: object, layer: dict, function: str) -> None:
    """Raise AnswerError unless these launches have every operation once, can be launched, and run in this order."""
    known = {each["name"]: each for each in layer["operations"]}
    listed = isinstance(got, list | tuple) and all(isinstance(group, list | tuple) and group for group in got)
    if not listed or not all(isinstance(name, str) for group in got for name in group):
        raise AnswerError(f"{function} gives {got!r:.80}, not a list of lists of names", "what your function returns")
    counted = Counter(name for group in got for name in group)
    wrong = [name for name in {*counted, *known} if counted[name] != (name in known)]
    if wrong:
        raise AnswerError(
            f"{function}: {min(wrong)} is in {counted[min(wrong)]} launches, must be in {int(min(wrong) in known)}: "
            f"{shown(got)}",
            "how each operation of the layer gets into one launch",
        )
    done = set()
    for group in got:
        for name in group:
            if early := sorted(set(known[name]["reads"]) & known.keys() - done):
                raise AnswerError(
                    f"{function}: {name} runs before {early[0]}, which it reads: {shown(got)}", "the order"
                )
            done.add(name)
        if why := joined_reason([known[name] for name in group]):
            raise AnswerError(f"{function} has the launch {' '.join(group)}, but {why}", "the rules of a launch")


def shown(groups: Iterable[Iterable[str]]) -> str:
    return " | ".join(" ".join(group) for group in groups)
