"""Find the fastest partition of a graph into kernels.

Up to EXACT operations, the search is exact: kernels are placed one after another, each after everything it waits for,
and dynamic programming keeps the best way to do each set of operations closed under waiting. Larger graphs use beam
search: operations are placed one by one in the graph's order, each in a new kernel or in one that it shares a tensor
with, keeping the WIDTH best partitions; then kernels that share a tensor are merged while that saves time.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce

from helpers.instruments.fusion.cost import Costs
from helpers.instruments.fusion.graph_nodes import POINTWISE, PRODUCTS
from helpers.instruments.fusion.legality import NotLegalError, bits
from helpers.instruments.fusion.operator_kinds import SOFTMAX

EXACT = 14
WIDTH = 6
OPEN = 12  # kernels that an operation may join
SUBSETS = 20_000  # maximum candidate kernels for the exact search; above that, beam search


def partition(costs: Costs, progress: Callable[[int, int], None] = lambda done, of: None) -> list[int]:
    """Return the kernels, each as a bit mask of its nodes, in an order in which they can run."""
    if len(costs.nodes) <= EXACT:
        groups = candidates(costs)
        if groups is not None:
            return exact(costs, groups)
    return _in_order(costs, joined(costs, beam(costs, progress)))


def candidates(costs: Costs) -> dict[int, float] | None:
    """Return every legal kernel with its time; None if there are too many to try."""
    seen = {1 << node.index for node in costs.nodes}
    waiting = list(seen)
    while waiting:
        mask = waiting.pop()
        around = 0
        for place in bits(mask):
            around |= costs.legality.neighbours[place]
        for place in bits(around & ~mask):
            wider = mask | 1 << place
            if wider not in seen:
                seen.add(wider)
                waiting.append(wider)
        if len(seen) > SUBSETS:
            return None
    found = {}
    for mask in seen:
        try:
            found[mask] = costs.of(mask).time
        except NotLegalError:
            continue
    return found


def exact(costs: Costs, groups: dict[int, float]) -> list[int]:
    """Return the best partition into the given kernels."""
    before = {}
    for mask in groups:
        waits = 0
        for place in bits(mask):
            waits |= costs.nodes[place].before
        before[mask] = waits & ~mask
    best = {0: (0.0, None, 0)}  # done -> time, the last kernel, what was done before it
    by_size: dict[int, set[int]] = {0: {0}}
    for size in range(len(costs.nodes)):
        for done in by_size.get(size, ()):
            time = best[done][0]
            for mask, seconds in groups.items():
                if mask & done or before[mask] & ~done:
                    continue
                then = done | mask
                if then not in best or time + seconds < best[then][0]:
                    best[then] = time + seconds, mask, done
                    by_size.setdefault(then.bit_count(), set()).add(then)
    found, done = [], costs.all
    while done:
        _, mask, done = best[done]
        found.append(mask)
    return found[::-1]


def _added_up(times: Iterable[float]) -> float:
    """Add sequentially, as `sum` did before Python 3.12: rounding decides between partitions of equal time, and
    every Python must choose the same."""
    return reduce(operator.add, times, 0.0)


class _Placed:
    """A partition of the first operations."""

    __slots__ = ("groups", "of", "time", "times")

    def __init__(self, groups: dict[int, int], of: list[int], times: dict[int, float], time: float):
        self.groups, self.of, self.times, self.time = groups, of, times, time

    def with_node(self, node: int, number: int, costs: Costs, placed: int, whole: int) -> "_Placed | None":
        """Return the state with the node placed in kernel `number`; None if that is illegal.

        A kernel that becomes illegal because the node reads a result it doesn't store is split into its operations.
        `whole`: all nodes of kernel `number`, which costs nothing until it is complete.
        """
        groups, times, of = dict(self.groups), dict(self.times), [*self.of, number]
        groups[number] = groups.get(number, 0) | 1 << node
        changed = {number} | {self.of[source] for source in bits(costs.nodes[node].before)}
        for each in changed:
            try:
                waiting = each == number and groups[number] != whole and whole
                times[each] = 0.0 if waiting else costs.of(groups[each], placed).time
            except NotLegalError:
                if each == number or times[each] == 0.0:
                    return None
                del times[each]
                for place in bits(groups.pop(each)):
                    of[place] = len(costs.nodes) + place
                    groups[of[place]] = 1 << place
                    times[of[place]] = costs.of(1 << place, placed).time
        return _Placed(groups, of, times, _added_up(times.values()))

    def makes_cycle(self, node: int, number: int, costs: Costs) -> bool:
        """Return whether the node waits for another kernel that itself waits for kernel `number`."""
        first = bits(self.groups[number] & -self.groups[number])[0]
        waiting = [self.of[source] for source in bits(costs.nodes[node].before) if self.of[source] != number]
        seen = set()
        while waiting:
            group = waiting.pop()
            if group == number:
                return True
            if group in seen or self.groups[group].bit_length() <= first:
                continue
            seen.add(group)
            for member in bits(self.groups[group]):
                waiting += [self.of[source] for source in bits(costs.nodes[member].before) if self.of[source] != group]
        return False


def beam(costs: Costs, progress: Callable[[int, int], None] = lambda done, of: None) -> list[int]:
    """Return a good partition of a graph of any size."""
    fixed = attention_groups(costs)
    inside = {place: mask for mask in fixed for place in bits(mask)}
    states = [_Placed({}, [], {}, 0.0)]
    for node in costs.nodes:
        place, placed = node.index, (1 << node.index + 1) - 1
        progress(place, len(costs.nodes))
        found: dict[tuple, _Placed] = {}
        for state in states:
            whole = inside.get(place, 0)
            for number in [-whole] if whole else _choices(state, place, costs.legality.neighbours):
                if number in state.groups and state.makes_cycle(place, number, costs):
                    continue
                then = state.with_node(place, number, costs, placed, whole)
                if then is None:
                    continue
                key = tuple(sorted(then.groups[each] for each in set(then.of[-OPEN:])))
                if key not in found or then.time < found[key].time:
                    found[key] = then
        states = sorted(found.values(), key=lambda state: state.time)[:WIDTH]
    progress(len(costs.nodes), len(costs.nodes))
    return list(states[0].groups.values()) if states else [1 << node.index for node in costs.nodes]


def _choices(state: _Placed, node: int, neighbours: list[int]) -> list[int]:
    """Return the kernel numbers to try for the node: a new one, and the latest that it shares a tensor with."""
    new = len(state.of)
    near = bits(neighbours[node] & ((1 << node) - 1))[-OPEN:]
    return [new, *(each for each in dict.fromkeys(state.of[place] for place in reversed(near)) if each >= 0)]


def joined(costs: Costs, groups: list[int]) -> list[int]:
    """Return the partition after merging kernels that share a tensor, best pairs first, while that saves time."""
    while True:
        of = {place: mask for mask in groups for place in bits(mask)}
        pairs = {
            (min(of[one], of[other]), max(of[one], of[other]))
            for one in of
            for other in bits(costs.legality.neighbours[one])
            if of[one] != of[other]
        }
        gains = sorted(((_gain(costs, *pair), pair) for pair in pairs), reverse=True)
        left = set(groups)
        for gain, (one, other) in gains:
            if gain > 0 and one in left and other in left and not _cyclic(costs, left, one, other):
                left = left - {one, other} | {one | other}
        if len(left) == len(groups):
            return groups
        groups = sorted(left)


def _gain(costs: Costs, one: int, other: int) -> float:
    """Return the seconds that merging two kernels saves."""
    try:
        return costs.of(one).time + costs.of(other).time - costs.of(one | other).time
    except NotLegalError:
        return 0.0


def _cyclic(costs: Costs, groups: set[int], one: int, other: int) -> bool:
    try:
        _in_order(costs, [one | other, *(groups - {one, other})])
    except ValueError:
        return True
    return False


def attention_groups(costs: Costs) -> list[int]:
    """Return groups of two matmuls with a softmax and elementwise operations in between, if one kernel may do them."""
    found = []
    for node in costs.nodes:
        if node.name not in SOFTMAX or node.kind != "normalisation":
            continue
        up, down = _chain(costs, node, -1), _chain(costs, node, 1)
        if up is not None and down is not None:
            mask = up | down | 1 << node.index
            try:
                if costs.of(mask).kind == "attention":
                    found.append(mask)
            except NotLegalError:
                continue
    return found


def _chain(costs: Costs, node, way: int) -> int | None:
    """Walk from a softmax through elementwise operations to the matmul before or after it."""
    mask, waiting = 0, [node.index]
    product = None
    while waiting:
        place = waiting.pop()
        if way > 0:
            near = [link.target for link in costs.nodes[place].links]
        else:
            near = [source for read in costs.nodes[place].reads for source in read.sources]
        for each in near:
            other = costs.nodes[each]
            is_product = other.kind in PRODUCTS
            if (is_product and product not in (None, each)) or not (is_product or other.kind in POINTWISE):
                continue
            if is_product:
                product = each
            elif not mask >> each & 1:
                waiting.append(each)
            mask |= 1 << each
    return mask if product is not None else None


def _in_order(costs: Costs, groups: list[int]) -> list[int]:
    """Return the kernels in an order in which each follows everything it waits for.

    Raises:
        ValueError: there is none.
    """
    of = {place: number for number, mask in enumerate(groups) for place in bits(mask)}
    waits = [
        {of[source] for place in bits(mask) for source in bits(costs.nodes[place].before)} - {number}
        for number, mask in enumerate(groups)
    ]
    readers: list[list[int]] = [[] for _ in groups]
    for number, each in enumerate(waits):
        for other in each:
            readers[other].append(number)
    left = [len(each) for each in waits]
    ready = [number for number, count in enumerate(left) if not count]
    found = []
    while ready:
        number = min(ready, key=lambda each: groups[each] & -groups[each])
        ready.remove(number)
        found.append(groups[number])
        for other in readers[number]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    if len(found) < len(groups):
        raise ValueError("kernels that wait for one another")
    return found
