"""The puzzle of lesson 13: choose which edges of a graph to fuse, and reach the shortest predicted time."""

from collections.abc import Callable, Sequence

import torch

from helpers.figures.fusion.simulator import Simulation
from helpers.instruments.fusion.analyser import costs_of
from helpers.instruments.fusion.legality import NotLegalError, bits
from helpers.learning.display_text import Unquoted


def choose_edges(function: Callable, *inputs: torch.Tensor, fuse: Sequence[tuple[str, str]]) -> Unquoted:
    """Fuse a graph's edges in the given order and compare the predicted time with that of the best partition.

    Args:
        function: traced on `inputs`, at most 12 operations.
        inputs: its tensors, on the device "meta" if they are large.
        fuse: pairs of operations, by the analyser's names. An edge joins two operations if one reads the other's
            result or both read the same tensor.

    Returns:
        Text that begins with "Solved" or "Not yet", then one line per kernel; a single line if an edge doesn't exist or
        may not be fused.
    """
    graph = Simulation(costs_of(function, *inputs))
    handles = {(graph.names[each.first], graph.names[each.second]): each for each in graph.handles}
    groups = graph.apart
    for first, second in fuse:
        handle = handles.get((first, second)) or handles.get((second, first))
        if handle is None:
            known = ", ".join("-".join(pair) for pair in handles)
            return Unquoted(f"Not yet: no edge joins {first} and {second}; there are {known}")
        if graph.is_fused(handle, groups):
            continue
        try:
            groups = graph.step(groups, handle)
        except NotLegalError as error:
            return Unquoted(f"Not yet: {first} and {second} may not share a kernel: {error}")
    now, best = graph.totals(groups), graph.totals(graph.best)
    if now["time"] <= best["time"] * (1 + 1e-9):
        verdict = f"Solved: {now['time'] * 1e6:.0f} us predicted, the minimum"
    else:
        verdict = f"Not yet: {now['time'] * 1e6:.0f} us predicted, {best['time'] * 1e6:.0f} us is possible"
    kernels = (" + ".join(graph.names[place] for place in bits(mask)) for mask in groups)
    lines = (f"{verdict}; {now['bytes'] / 1e6:.0f} MB, {now['launches']} launches", *kernels)
    return Unquoted("\n  ".join(lines))
