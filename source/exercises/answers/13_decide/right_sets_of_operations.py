# Sets of operations as bits; the best way to do each set that some kernels can have done, smallest first.

# %%
from helpers.learning.allowed_calls import kernel_cost


# %% grade_id="legal-answer"
def bits_of(graph, group):
    return sum(
        1 << place for place, each in enumerate(graph["operations"]) if each["name"] in group
    )


def waiting(graph):
    """Of each operation, the bits of those that it waits for, in the end."""
    found = []
    for place, later in enumerate(graph["operations"]):
        before = 0
        for other, earlier in enumerate(graph["operations"][:place]):
            made = [
                tensor for tensor in earlier["writes"] if tensor in later["reads"] + later["writes"]
            ]
            kept = [tensor for tensor in earlier["reads"] if tensor in later["writes"]]
            if made or kept:
                before |= 1 << other | found[other]
        found.append(before)
    return found


def never(graph):
    """Of each operation, the bits of those that can be in no kernel with it."""
    found = []
    for one in graph["operations"]:
        apart = 0
        for place, two in enumerate(graph["operations"]):
            written = [*(t for t in one["writes"] if t in two["elsewhere"])]
            written += [t for t in two["writes"] if t in one["elsewhere"]]
            products = [one["kind"], two["kind"]].count("matmul")
            rows = [one["kind"], two["kind"]].count("rows")
            size = one["rows"] != two["rows"] or one["columns"] != two["columns"]
            opaque = "opaque" in (one["kind"], two["kind"])
            if one is not two and (
                written or products == 2 or (products and rows) or size or opaque
            ):
                apart |= 1 << place
        found.append(apart)
    return found


def is_legal(graph, group):
    mask, operations = bits_of(graph, group), graph["operations"]
    inside = [place for place in range(len(operations)) if mask >> place & 1]
    if len(inside) == 1:
        return True
    apart, before = never(graph), waiting(graph)
    if any(apart[place] & mask for place in inside):
        return False
    for place, each in enumerate(before):
        if (
            not mask >> place & 1
            and each & mask
            and any(before[other] >> place & 1 for other in inside)
        ):
            return False
    found, tensors, more = {inside[0]}, set(), True
    while more:
        for place in found:
            tensors |= set(operations[place]["reads"]) | set(operations[place]["writes"])
        near = {p for p in inside if tensors & {*operations[p]["reads"], *operations[p]["writes"]}}
        more, found = len(near) > len(found), near
    return len(found) == len(inside) and kernel_cost(graph, group)["registers"] < 256


# %% grade_id="edge-answer"
def should_fuse(graph, one, two):
    if not is_legal(graph, [one, two]):
        return False
    seconds = [kernel_cost(graph, group)["time"] for group in ([one, two], [one], [two])]
    return seconds[0] < seconds[1] + seconds[2]


# %% grade_id="partition-answer"
def partition(graph):
    names = [each["name"] for each in graph["operations"]]
    apart, before = never(graph), waiting(graph)
    masks = [0]
    for place in range(len(names)):
        masks += [mask | 1 << place for mask in masks if not mask & apart[place]]
    kernels = []
    for mask in masks[1:]:
        group = [name for place, name in enumerate(names) if mask >> place & 1]
        if is_legal(graph, group):
            needs = 0
            for place in range(len(names)):
                needs |= before[place] if mask >> place & 1 else 0
            kernels.append((mask, needs & ~mask, kernel_cost(graph, group)["time"], group))
    # What a kernel runs after is done already, so no two wait for each other.
    best = {0: (0.0, [])}
    for done in range(1 << len(names)):
        if done in best:
            time, groups = best[done]
            for mask, needs, seconds, group in kernels:
                then = done | mask
                if (
                    not done & mask
                    and not needs & ~done
                    and time + seconds < best.get(then, (float("inf"), 0))[0]
                ):
                    best[then] = (time + seconds, [*groups, group])
    return best[(1 << len(names)) - 1][1]
