# Sets as bit masks, partitions by a table over masks, exceptions for rules that are broken.
# ruff: noqa: F821


# %% grade_id="legal-answer"
def insist(claim, rule):
    if not claim:
        raise ValueError(rule)


def touched(operation):
    return frozenset(operation["reads"]) | frozenset(operation["writes"])


def after(graph):
    """For each operation the mask of those that it waits for, directly."""
    found = []
    for later, two in enumerate(graph["operations"]):
        mask = 0
        for earlier, one in enumerate(graph["operations"][:later]):
            made = not touched(two).isdisjoint(one["writes"])
            reused = not set(one["reads"]).isdisjoint(two["writes"])
            mask |= (made or reused) << earlier
        found.append(mask)
    return found


def goes(masks, waits):
    done = 0
    left = list(masks)
    while left:
        for mask in left:
            needed = 0
            for place, before in enumerate(waits):
                if mask >> place & 1:
                    needed |= before
            if not needed & ~(done | mask):
                done |= mask
                left.remove(mask)
                break
        else:
            return False
    return True


def insist_on_pairs(members):
    for place, two in enumerate(members):
        for one in members[:place]:
            kinds = sorted((one["kind"], two["kind"]))
            insist("opaque" not in kinds, 1)
            insist(all(one[side] == two[side] for side in ("rows", "columns")), 2)
            insist(kinds not in (["matmul", "matmul"], ["matmul", "rows"]), 3)
            insist(set(one["writes"]).isdisjoint(two["elsewhere"]), 4)
            insist(set(two["writes"]).isdisjoint(one["elsewhere"]), 4)


def insist_on_one_piece(members):
    def reach(names, rest):
        near = [each for each in rest if touched(each) & names]
        if not near:
            return rest
        return reach(names.union(*map(touched, near)), [each for each in rest if each not in near])

    insist(not reach(touched(members[0]), members[1:]), 5)


def is_legal(graph, group):
    members = [each for each in graph["operations"] if each["name"] in set(group)]
    if len(members) < 2:
        return True
    try:
        insist_on_pairs(members)
        insist_on_one_piece(members)
        mask = sum(1 << n for n, each in enumerate(graph["operations"]) if each in members)
        alone = [1 << n for n in range(len(graph["operations"])) if not mask >> n & 1]
        insist(goes([mask, *alone], after(graph)), 6)
        insist(kernel_cost(graph, group)["registers"] < 256, 7)
    except ValueError:
        return False
    return True


# %% grade_id="edge-answer"
def should_fuse(graph, one, two):
    saved = (
        -kernel_cost(graph, [one, two])["time"] if is_legal(graph, [one, two]) else -float("inf")
    )
    for name in (one, two):
        saved += kernel_cost(graph, [name])["time"]
    return saved > 0


# %% grade_id="partition-answer"
def partition(graph):
    names = [each["name"] for each in graph["operations"]]
    everything, waits = (1 << len(names)) - 1, after(graph)

    def chosen(mask):
        return [name for place, name in enumerate(names) if mask >> place & 1]

    time = {
        mask: kernel_cost(graph, chosen(mask))["time"]
        for mask in range(1, everything + 1)
        if is_legal(graph, chosen(mask))
    }

    def partitions(left):
        if not left:
            yield ()
            return
        lowest, rest = left & -left, left & (left - 1)
        part = rest
        while True:
            if part | lowest in time:
                for others in partitions(rest & ~part):
                    yield (part | lowest, *others)
            if not part:
                return
            part = (part - 1) & rest

    able = (masks for masks in partitions(everything) if goes(masks, waits))
    return {
        tuple(chosen(mask))
        for mask in min(able, key=lambda masks: sum(time[each] for each in masks))
    }
