"""Compare the bytes that the fusion analyser counts for torch.compile's kernels with Inductor's own count.

    python -m benchmarks.inductor_bytes [NAME ...]     one line of JSON per public model of MODELS

The public models are those of tests/instruments/foreign_models.py; docs/inductor_bytes.md has the table.

Both start from the same graph, the operators that eager PyTorch launches on a GPU, and share nothing else. Inductor
decomposes, lowers, schedules and fuses the graph itself, for a GPU you may not have, and its scheduler counts the bytes
that each kernel reads and writes, library kernels included. The analyser's count is for its plan of the kernels that
torch.compile makes today.
"""

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.func import functionalize
from torch.fx import GraphModule

from helpers.instruments.fusion import FusionPlan, analyse, capture
from helpers.instruments.inductor import InductorCode, inductor_code

PUBLIC = Path(__file__).parents[1] / "tests" / "instruments" / "foreign_models.py"


@dataclass(frozen=True)
class Expected:
    """The analyser's bytes as a fraction of Inductor's, and the reason if they differ by more than 5 %."""

    ratio: float
    why: str = ""


_TABLES = "Inductor counts an embedding's whole table and, of a view, the whole buffer; the analyser what is read"
_GROUPS = "Inductor normalizes groups in channels-last by two kernels, which read the input twice; the analyser by one"
MODELS = {
    "Llama": Expected(1.01),
    "Qwen3": Expected(1.01),
    "U-Net": Expected(0.913, _GROUPS),
    "BERT": Expected(0.93, _TABLES),
    "GPT-2": Expected(0.84, _TABLES),
    "ViT": Expected(0.96),
    "ConvNeXt": Expected(0.963),
    "Whisper": Expected(0.96),
    "ResNet, channels last": Expected(1.00),
}


@dataclass(frozen=True)
class Bytes:
    """One model's bytes: the analyser's plan and Inductor's code."""

    plan: FusionPlan
    code: InductorCode

    @property
    def ours(self) -> int:
        return sum(group.work.bytes_read + group.work.bytes_written for group in self.plan.groups)

    @property
    def inductors(self) -> int:
        return sum(self.code.traffic)

    @property
    def ratio(self) -> float:
        return self.ours / self.inductors


def compared(model: Callable, *inputs, keywords: dict | None = None, device: str = "H100") -> Bytes:
    """Count `model(*inputs, **keywords)` in both ways."""
    graph, tensors = _on_a_gpu(*capture(model, *inputs, keywords=keywords))
    function, options = functionalize(graph, remove="mutations"), {"joint_graph_constant_folding": False}
    code = inductor_code(function, *tensors, device=device, source=False, **options)
    return Bytes(analyse(model, *inputs, keywords=keywords, device=device).today, code)


def _on_a_gpu(graph: GraphModule, tensors: list[torch.Tensor]) -> tuple[GraphModule, list[torch.Tensor]]:
    """Move the tensors that a graph makes to the GPU; its constants become inputs, and it returns those with theirs."""
    constants = graph.graph.find_nodes(op="get_attr")
    last = graph.graph.find_nodes(op="placeholder")[-1]
    for node in constants:
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"constant_{node.name}")
        node.replace_all_uses_with(last)
        graph.graph.erase_node(node)
    for node in graph.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            continue
        takes = any(argument.name == "device" for argument in node.target._schema.arguments)
        made_like = any(isinstance(argument, torch.fx.Node) for argument in node.args)
        if takes and (not made_like or node.kwargs.get("device") is not None):
            node.kwargs = {**node.kwargs, "device": torch.device("cuda")}
    graph.recompile()
    return graph, [*tensors, *(getattr(graph, node.target) for node in constants)]


def main(names: list[str]) -> None:
    spec = importlib.util.spec_from_file_location("foreign_models", PUBLIC)
    public = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(public)
    for name in names or MODELS:
        model, inputs, keywords = public.MODELS[name]()
        found = compared(model, *inputs, keywords=keywords)
        print(json.dumps({"name": name, "ours": found.ours, "inductor": found.inductors}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
