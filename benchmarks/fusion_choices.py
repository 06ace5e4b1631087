"""Time both choices where the analyser and Inductor differ.

    python -m benchmarks.fusion_choices --plan       here: which regions of which graphs, to REGIONS
    python -m benchmarks.fusion_choices [--out FILE] on the GPU: times them

A region is the smallest set of operators around an edge on which they differ that is both a union of the analyser's
groups and a union of Inductor's kernels. Inductor's choice is the region compiled whole. The analyser's choice is its
groups compiled one by one. Inductor may refuse to compile a group into one kernel. The analyser's choice then has more
kernels than groups, and its time is no evidence against it: only a hand-written kernel settles such a region.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch.fx import Graph, GraphModule, Node

from benchmarks.fusion_groups import compiled, operators, trace
from benchmarks.fusion_models import GRAPHS
from benchmarks.provenance import date_and_versions, provenance
from helpers.instruments.timing import benchmark_together

REGIONS = Path(__file__).parent / "results" / "h200_fusion_choices.json"
RUNS = 20


def piece(module: GraphModule, names: set[str], again: set[str]) -> tuple[GraphModule, list[Node], list[Node]]:
    """Return the named operators, with views of their inputs, as a separate graph; its inputs; its outputs.

    again: operators of other pieces that this one recomputes.
    """
    working = {operation["name"] for operation in operators(module)}
    graph, copied, inputs, whole = Graph(), {}, [], names | again

    def has_several(node: Node) -> bool:
        return isinstance(node.meta.get("val"), tuple | list)

    def copy(node: Node) -> Node:
        if node in copied:
            return copied[node]
        is_element = node.op == "call_function" and node.target.__name__ == "getitem" and has_several(node.args[0])
        outside = node.op == "placeholder" or (node.name in working and node.name not in whole)
        if outside or (is_element and node.args[0].name in working - whole):
            copied[node] = graph.placeholder(node.name)
            copied[node].meta = dict(node.meta)
            inputs.append(node)
        else:
            for argument in node.all_input_nodes:
                copy(argument)
            copied[node] = graph.node_copy(node, lambda argument: copied[argument])
        return copied[node]

    def leaves(node: Node) -> bool:
        """Return whether a result is read outside the piece, directly or through views."""
        return any(
            user.op == "output"
            or (user.name in working and user.name not in names)
            or (user.name not in working and leaves(user))
            for user in node.users
        )

    inside = [node for node in module.graph.nodes if node.name in names]
    results = []
    for node in inside:
        copy(node)
        elements = [user for user in node.users if user.target.__name__ == "getitem"] if has_several(node) else [node]
        results += [element for element in elements if leaves(element)]
    graph.output(tuple(copy(node) for node in results))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for first in reversed(placeholders):  # inputs come first
        next(iter(graph.nodes)).prepend(first)
    return GraphModule(module, graph), [node for node in module.graph.nodes if node in inputs], results


def _waits_for(part: GraphModule) -> set[str]:
    """Return the inputs whose values a piece uses, not just their shapes."""
    return {
        node.target
        for node in part.graph.nodes
        if node.op == "placeholder"
        and not all("_like." in getattr(user.target, "__name__", str(user.target)) for user in node.users)
    }


def values(module: GraphModule, inputs, wanted: set[str]) -> dict[str, torch.Tensor]:
    """Return the values of the named nodes of a trace."""
    found = {}

    class Keep(torch.fx.Interpreter):
        def run_node(self, node):
            result = super().run_node(node)
            if node.name in wanted:
                found[node.name] = result
            return result

    with torch.no_grad():
        Keep(module).run(*inputs)
    return found


def prepared(module: GraphModule, inputs, parts: list[tuple[set[str], set[str]]]) -> tuple:
    """Return a function of no argument that runs the parts, each compiled alone, in order; and Inductor's kernels."""
    made = [piece(module, names, again) for names, again in parts]
    held = values(module, inputs, {node.name for _, needs, _ in made for node in needs})
    steps, count, ready = [], 0, set(held) - {node.name for _, _, results in made for node in results}
    while made:
        place = next(i for i, (part, _, _) in enumerate(made) if _waits_for(part) <= ready)
        part, _, results = made.pop(place)
        order = [node.target for node in part.graph.nodes if node.op == "placeholder"]
        function, kernels, _ = compiled(part, [held[name] for name in order])
        count += sum(kernel["kind"] != "nothing" for kernel in kernels)
        steps.append((function, order, [node.name for node in results]))
        ready |= {node.name for node in results}

    def run():
        memory = dict(held)
        with torch.no_grad():
            for function, order, results in steps:
                memory |= zip(results, function(*(memory[name] for name in order)), strict=True)
        return memory[steps[-1][2][-1]] if steps[-1][2] else None

    return run, count


def measure(name: str, regions: list[dict], small: bool) -> list[dict]:
    """Return the regions of one graph, each with both choices' times and kernels."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    function, inputs = GRAPHS[name].build(device, small)
    module = trace(function, inputs)
    found = []
    for region in regions:
        groups = [(set(group["operations"]), set(group["recomputed"])) for group in region["analyser"]]
        ways = {"inductor": [(set().union(*(names for names, _ in groups)), set())], "analyser": groups}
        runs, kernels = {}, {}
        for way, parts in ways.items():
            runs[way], kernels[way] = prepared(module, inputs, parts)
        times = benchmark_together(runs, runs=RUNS)
        row = {"gpu": {way: asdict(timing) for way, timing in times.items()}, "kernels": kernels}
        found.append(region | row)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="*", help="names of graphs; all that have regions by default")
    parser.add_argument("--plan", action="store_true", help="find the regions; times nothing")
    parser.add_argument("--small", action="store_true", help="sizes for a laptop")
    parser.add_argument("--out", type=Path, default=REGIONS)
    options = parser.parse_args(arguments)
    if options.plan:
        from benchmarks.fusion_proof import regions  # needs the analyser, which the GPU's machine may lack

        options.out.write_text(json.dumps({"regions": regions()}, indent=1) + "\n")
        return
    planned = json.loads((options.out if options.out.exists() else REGIONS).read_text())["regions"]
    chosen = options.graphs or list(planned)
    run = provenance() if torch.cuda.is_available() else date_and_versions()
    content = {**run, "runs": RUNS, "regions": dict(planned)}
    for name in chosen:
        try:
            content["regions"][name] = measure(name, planned[name], options.small)
        except Exception as error:  # one failing graph must not stop the others
            content.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"[:1000]
        print(
            name,
            content.get("failed", {}).get(name, [each.get("gpu") for each in content["regions"][name]]),
            flush=True,
        )
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
