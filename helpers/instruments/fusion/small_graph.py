"""A small graph of plain values: which operations one kernel may do, and the analyser's cost for them.

    {"tensors": {name: bytes},
     "operations": [{"name", "kind", "rows", "columns", "reads", "elsewhere", "writes", "flops"}, ..],
     "results": [names of the tensors to return]}

Operations are in program order; writing an existing tensor overwrites it. `kind` is "elementwise", "rows" (each
result needs its whole row), "matmul" or "opaque" (a library's kernel). `elsewhere` lists the `reads` in which a
result needs elements other than its own or its own row. `flops`: a matmul's.
"""

from itertools import combinations

from helpers.instruments import prediction
from helpers.instruments.devices import DEVICES
from helpers.instruments.fusion.cost import (
    memory_time,
    pointwise_registers,
    row_registers,
    start_time,
    tile_registers,
)
from helpers.instruments.occupancy_calculator import MAX_REGISTERS

DEVICE = DEVICES["H200"]
OF_PAIRS = (
    "opaque",
    "size",
    "tiles",
    "elsewhere",
    "overwritten",
)  # rules that two operations can break, whatever else is in their kernel
RULES = (*OF_PAIRS, "together", "between", "registers")


def kernel_cost(graph: dict, group: list[str]) -> dict:
    """Return the cost of one kernel of these operations on an H200, legal or not.

    Args:
        graph: in this module's format.
        group: names of operations.

    Returns:
        "bytes": read, once each, and written; "live": the maximum number of live values per element;
        "registers": per thread; "time": seconds.

    Raises:
        ValueError: group is not a list of this graph's operation names; the message is one line.
    """
    operations = graph["operations"]
    known = {each["name"] for each in operations}
    if isinstance(group, str) or not group or not known.issuperset(group):
        raise ValueError(f"pass a list of operation names, not {group!r}"[:200])
    inside = [place for place, each in enumerate(operations) if each["name"] in group]
    made_by = producers(graph)
    reads = {
        (tensor, maker): graph["tensors"][tensor]
        for place in inside
        for tensor, maker in made_by[place].items()
        if maker not in inside
    }
    written = sum(graph["tensors"][tensor] for place in inside for tensor in _stored(graph, place, inside, made_by))
    nbytes = sum(reads.values()) + written
    members = [operations[place] for place in inside]
    kinds = {each["kind"] for each in members}
    kind = next((each for each in ("matmul", "opaque", "rows") if each in kinds), "pointwise")
    first = members[0]
    live = _live(graph, inside, made_by)
    if kind == "matmul":
        registers = tile_registers(live)
    elif kind == "rows":
        registers = row_registers(live, len(members), first["columns"])
    else:
        registers = pointwise_registers(live, nbytes / (first["rows"] * first["columns"]))
    share = min(1.0, first["rows"] / DEVICE.sms) if kind == "rows" else 1.0
    flops = sum(each["flops"] for each in members)
    product = flops / (prediction.MATRIX_SHARE * DEVICE.peak_flops["bf16"])
    time = start_time(kind) + max(memory_time(nbytes, DEVICE, share), product)
    return {"bytes": nbytes, "live": live, "registers": registers, "time": time}


def producers(graph: dict) -> list[dict[str, int | None]]:
    """Return, per operation, tensor that it reads -> index of the operation that wrote it last; None for an input."""
    last: dict[str, int] = {}
    found = []
    for place, each in enumerate(graph["operations"]):
        found.append({tensor: last.get(tensor) for tensor in each["reads"]})
        last |= dict.fromkeys(each["writes"], place)
    return found


def _stored(graph: dict, place: int, inside: list[int], made_by: list[dict]) -> list[str]:
    """Return the tensors that an operation writes and that outlive a kernel with the operations `inside`."""
    operations = graph["operations"]
    return [
        tensor
        for tensor in operations[place]["writes"]
        if any(made.get(tensor) == place and reader not in inside for reader, made in enumerate(made_by))
        or (tensor in graph["results"] and not any(tensor in each["writes"] for each in operations[place + 1 :]))
    ]


def _live(graph: dict, inside: list[int], made_by: list[dict]) -> int:
    """Return the live values per element, without smaller tensors, if the operations run in their order."""
    last: dict[tuple, int] = {}
    for place in inside:
        wide = graph["operations"][place]["rows"] * graph["operations"][place]["columns"]
        for tensor, maker in made_by[place].items():
            if graph["tensors"][tensor] >= wide:
                last[tensor, maker] = place
    most, alive = 1, set()
    for place in inside:
        alive |= {(tensor, maker) for tensor, maker in made_by[place].items() if (tensor, maker) in last}
        alive |= {(tensor, place) for tensor in graph["operations"][place]["writes"] if (tensor, place) in last}
        most = max(most, len(alive))
        alive = {value for value in alive if last[value] > place}
    return most


def dependencies(graph: dict) -> list[set[int]]:
    """Return, per operation, the indices of the operations it must follow: it reads or overwrites their outputs, or
    overwrites their inputs."""
    found = []
    for place, later in enumerate(graph["operations"]):
        touched = {*later["reads"], *later["writes"]}
        found.append(
            {
                before
                for before, earlier in enumerate(graph["operations"][:place])
                if touched & set(earlier["writes"]) or set(later["writes"]) & set(earlier["reads"])
            }
        )
    return found


def in_order(graph: dict, groups: list[list[str]]) -> list[list[str]]:
    """Return the groups that can run one after another, each as a kernel: not all if some wait for each other."""
    place = {each["name"]: number for number, each in enumerate(graph["operations"])}
    before, done = dependencies(graph), set()
    left, found = list(groups), []

    def can_run(group: list[str]) -> bool:
        there = done | {place[name] for name in group}
        return all(before[place[name]] <= there for name in group)

    while ready := [group for group in left if can_run(group)]:
        found += ready
        done |= {place[name] for group in ready for name in group}
        left = [group for group in left if group not in ready]
    return found


def illegal_reason(graph: dict, group: list[str], ignoring: str = "") -> str:
    """Return why one kernel cannot do these operations; empty if it can. `ignoring`: one of RULES to skip."""
    if len(group) == 1:
        return ""
    members = [each for each in graph["operations"] if each["name"] in group]
    for rule in RULES:
        if rule != ignoring and (why := _broken(rule, graph, members)):
            return why
    return ""


def _broken(rule: str, graph: dict, members: list[dict]) -> str:
    """Explain how operations break a rule; empty if they don't."""
    if rule in OF_PAIRS:
        return next((why for pair in combinations(members, 2) if (why := _clash(rule, *pair))), "")
    match rule:
        case "together":
            left = members[1:]
            touched = tensors_of(members[0])
            while near := [each for each in left if tensors_of(each) & touched]:
                touched |= {tensor for each in near for tensor in tensors_of(each)}
                left = [each for each in left if each not in near]
            return f"{left[0]['name']} shares no tensor with the others" if left else ""
        case "between":
            names = [each["name"] for each in members]
            others = [[each["name"]] for each in graph["operations"] if each["name"] not in names]
            if names in in_order(graph, [names, *others]):
                return ""
            return f"{operations_between(graph, names)[0]} has to run between them"
        case "registers":
            registers = kernel_cost(graph, [each["name"] for each in members])["registers"]
            return f"it takes {registers} registers per thread (limit: {MAX_REGISTERS})" * (registers > MAX_REGISTERS)
    raise ValueError(f"no such rule: {rule}")


def conflict(one: dict, other: dict, ignoring: str = "") -> str:
    """Return why two operations, `one` before `other` in the program, can't share a kernel; empty if they can."""
    return next((why for rule in OF_PAIRS if rule != ignoring and (why := _clash(rule, one, other))), "")


def _clash(rule: str, one: dict, other: dict) -> str:
    pair = one, other
    match rule:
        case "opaque":
            opaque = next((each for each in pair if each["kind"] == "opaque"), None)
            return f"{opaque['name']} is opaque, a kernel of its own" if opaque else ""
        case "size":
            sizes = [f"{each['rows']} x {each['columns']}" for each in pair]
            return f"{one['name']} goes over {sizes[0]}, {other['name']} over {sizes[1]}" * (sizes[0] != sizes[1])
        case "tiles":
            kinds = sorted(each["kind"] for each in pair)
            if kinds == ["matmul", "matmul"]:
                return f"{one['name']} and {other['name']} are two products"
            product, rows = pair if one["kind"] == "matmul" else pair[::-1]
            return f"a tile of {product['name']} holds no whole row for {rows['name']}" * (kinds == ["matmul", "rows"])
        case "elsewhere":
            made = [tensor for tensor in one["writes"] if tensor in other["elsewhere"]]
            return f"{one['name']} writes {made[0]}, which {other['name']} reads elsewhere" if made else ""
        case "overwritten":
            gone = [tensor for tensor in other["writes"] if tensor in one["elsewhere"]]
            return f"{other['name']} overwrites {gone[0]}, which {one['name']} reads elsewhere" if gone else ""
    raise ValueError(f"no such rule: {rule}")


def tensors_of(operation: dict) -> set[str]:
    return {*operation["reads"], *operation["writes"]}


def operations_between(graph: dict, names: list[str]) -> list[str]:
    """Return the other operations that wait for one of `names` and that another of them waits for."""
    place = {each["name"]: number for number, each in enumerate(graph["operations"])}
    before = dependencies(graph)
    up = [set() for _ in before]  # everything it waits for, directly or not
    for number, direct in enumerate(before):
        up[number] = direct.union(*(up[each] for each in direct))
    inside = {place[name] for name in names}
    return [
        each["name"]
        for number, each in enumerate(graph["operations"])
        if number not in inside and up[number] & inside and any(number in up[one] for one in inside)
    ]
