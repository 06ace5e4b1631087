# Takes the operations off the graph that it is given, one kernel after another; gives tuples.

# %%
from helpers.learning.allowed_calls import kernel_cost


# %% grade_id="legal-answer"
def after(one, two):
    """Whether `two`, later in the program, waits for `one`."""
    return any(
        tensor in two["reads"] or tensor in two["writes"] for tensor in one["writes"]
    ) or any(tensor in two["writes"] for tensor in one["reads"])


def refused(one, two):
    if one["kind"] == "opaque" or two["kind"] == "opaque" or one["rows"] != two["rows"]:
        return True
    if one["columns"] != two["columns"]:
        return True
    if "matmul" in (one["kind"], two["kind"]) and (
        one["kind"] == two["kind"] or "rows" in (one["kind"], two["kind"])
    ):
        return True
    made = [tensor for tensor in two["elsewhere"] if tensor in one["writes"]]
    return bool(made + [tensor for tensor in one["elsewhere"] if tensor in two["writes"]])


def is_legal(graph, group):
    operations = graph["operations"]
    if len(group) < 2:
        return True
    inside = [each for each in operations if each["name"] in group]
    if any(refused(inside[one], inside[two]) for two in range(len(inside)) for one in range(two)):
        return False
    # What waits for one of them, directly or by way of another; and whether one of them waits for
    # that.
    behind = []
    for each in operations:
        waits = [other for other in behind if after(other, each)]
        if each["name"] in group:
            if any(other["name"] not in group for other in waits):
                return False
            behind.append(each)
        elif waits:
            behind.append(each)
    left, near = inside[1:], [inside[0]]
    while near:
        tensors = {tensor for each in near for tensor in each["reads"] + each["writes"]}
        near = [
            each
            for each in left
            if any(tensor in tensors for tensor in each["reads"] + each["writes"])
        ]
        left = [each for each in left if each not in near]
    return not left and kernel_cost(graph, list(group))["registers"] <= 255


# %% grade_id="edge-answer"
def should_fuse(graph, one, two):
    def time(*names):
        return kernel_cost(graph, list(names))["time"]

    return is_legal(graph, [one, two]) and time(one, two) - time(one) - time(two) < 0


# %% grade_id="partition-answer"
def partition(graph):
    operations, best = graph["operations"], {}
    whole = {
        "operations": list(operations),
        "tensors": graph["tensors"],
        "results": graph["results"],
    }
    candidates = []
    while operations:
        first = operations.pop()  # the last one: groups that end with it
        groups = [[first["name"]]]
        for each in reversed(operations):
            groups += [
                [each["name"], *group]
                for group in groups
                if not any(
                    refused(each, other) for other in whole["operations"] if other["name"] in group
                )
            ]
        candidates += [
            (kernel_cost(whole, group)["time"], group) for group in groups if is_legal(whole, group)
        ]
    candidates.sort()

    def next_kernels(done):
        """(seconds, kernels) from here on, the best; those that can run now are tried."""
        if len(done) == len(whole["operations"]):
            return 0.0, ()
        if done not in best:
            found = (float("inf"), ())
            for seconds, group in candidates:
                there = done | frozenset(group)
                if not done & frozenset(group):
                    ready = all(
                        earlier["name"] in there
                        for place, each in enumerate(whole["operations"])
                        if each["name"] in group
                        for earlier in whole["operations"][:place]
                        if after(earlier, each)
                    )
                    if ready:
                        rest, kernels = next_kernels(there)
                        if seconds + rest < found[0]:
                            found = (seconds + rest, ((*group,), *kernels))
            best[done] = found
        return best[done]

    return next_kernels(frozenset())[1]
