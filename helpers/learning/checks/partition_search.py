"""Find the fastest partition of a small graph into kernels by exhaustive search."""

from itertools import combinations

from helpers.instruments.fusion.small_graph import conflict, illegal_reason, in_order, kernel_cost, tensors_of


def time_of(graph: dict, groups: list[list[str]]) -> float:
    """Return the time of these kernels, one after another, in seconds."""
    return sum(kernel_cost(graph, group)["time"] for group in groups)


def best_partition(graph: dict, ignoring: str = "", ordered: bool = True, grown: bool = False) -> list[list[str]]:
    """Return the fastest partition, a list of kernels, each a list of names.

    Args:
        graph: as in helpers.instruments.fusion.small_graph.
        ignoring: one of that module's RULES that kernels may break.
        ordered: whether the kernels must be able to run one after another.
        grown: whether each kernel must be legal at every step as its operations join it in program order.
    """
    names = [each["name"] for each in graph["operations"]]
    by_first: dict[int, list[tuple[float, int]]] = {}
    legal = legal_groups(graph, ignoring)
    if grown:
        known = {tuple(group) for _, group in legal}
        legal = [each for each in legal if all(tuple(each[1][:length]) in known for length in range(1, len(each[1])))]
    for mask, group in legal:
        by_first.setdefault((mask & -mask).bit_length() - 1, []).append((kernel_cost(graph, group)["time"], mask))
    best: tuple[float, list[list[str]]] = float("inf"), []

    def go_on(done: int, chosen: list[int], time: float) -> None:
        nonlocal best
        if time >= best[0]:
            return
        if done == (1 << len(names)) - 1:
            groups = [named(names, mask) for mask in chosen]
            if not ordered or len(in_order(graph, groups)) == len(groups):
                best = time, groups
            return
        first = (~done & (done + 1)).bit_length() - 1
        for seconds, mask in sorted(by_first[first]):
            if not mask & done:
                go_on(done | mask, [*chosen, mask], time + seconds)

    go_on(0, [], 0.0)
    return best[1]


def legal_groups(graph: dict, ignoring: str = "") -> list[tuple[int, list[str]]]:
    """Return each set of operations that one kernel may run: a bit mask of their positions, and their names."""
    operations = graph["operations"]
    names = [each["name"] for each in operations]
    apart = [
        sum(1 << place for place, one in enumerate(operations[:later]) if conflict(one, two, ignoring))
        for later, two in enumerate(operations)
    ]
    masks = [0]
    for place in range(len(names)):
        masks += [mask | 1 << place for mask in masks if not mask & apart[place]]
    found = ((mask, named(names, mask)) for mask in masks[1:])
    return [(mask, group) for mask, group in found if not illegal_reason(graph, group, ignoring)]


def overwrites(graph: dict, group: list[str]) -> bool:
    """Return whether one of these operations overwrites an input of an earlier one."""
    members = [each for each in graph["operations"] if each["name"] in group]
    return any({*one["reads"]} & {*two["writes"]} for one, two in combinations(members, 2))


def named(names: list[str], mask: int) -> list[str]:
    return [name for place, name in enumerate(names) if mask >> place & 1]


def joined(graph: dict, whatever: bool = False) -> list[list[str]]:
    """Partition greedily: merge the two kernels whose merging saves most, until no merge saves anything.

    Args:
        whatever: merge any two that may be merged, the first ones first, even if that saves no time.
    """
    groups = [[each["name"]] for each in graph["operations"]]
    while True:
        gains = [each for each in joinings(graph, groups) if whatever or each[0] > 0]
        if not gains:
            return groups
        _, one, other = gains[0] if whatever else max(gains, key=lambda gain: gain[0])
        groups = [group for group in groups if group not in (one, other)] + [[*one, *other]]


def joinings(graph: dict, groups: list[list[str]]) -> list[tuple[float, list[str], list[str]]]:
    """Return all pairs of kernels of a partition that may be merged, with the seconds that this saves."""
    found = []
    for one, other in combinations(groups, 2):
        both, rest = [*one, *other], [group for group in groups if group not in (one, other)]
        if not illegal_reason(graph, both) and len(in_order(graph, [both, *rest])) == len(rest) + 1:
            found.append((time_of(graph, [one, other]) - time_of(graph, [both]), one, other))
    return found


def touching(graph: dict) -> list[tuple[str, str]]:
    """Return the pairs of operations that share a tensor, in program order."""
    pairs = combinations(graph["operations"], 2)
    return [(one["name"], other["name"]) for one, other in pairs if tensors_of(one) & tensors_of(other)]
