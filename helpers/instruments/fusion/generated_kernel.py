"""Generate and compile a Triton kernel for a pointwise group, for its real register count.

The kernel loads each tensor contiguously, wrapping around smaller ones, and computes the group's formula. Dropout
and other layouts are not supported.
"""

import importlib.util
import tempfile
from pathlib import Path

import torch
from torch.fx import Node

from helpers.instruments.fusion.plan import FusionGroup, FusionPlan
from helpers.instruments.resources import Resources, compile_for

BLOCK, WARPS = 1024, 4
FORMULAS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sigmoid": "tl.sigmoid({0})",
    "tanh": "2 * tl.sigmoid(2 * {0}) - 1",
    "silu": "{0} * tl.sigmoid({0})",
    "gelu": "0.5 * {0} * (1 + tl.erf({0} * 0.7071067811865476))",
    "_to_copy": "{0}",
    "clone": "{0}",
}


def compiled(plan: FusionPlan, group: FusionGroup) -> Resources:
    """Compile a kernel of the group for the plan's device.

    Raises:
        ValueError: the group is not pointwise, or has an operator without a formula here.
    """
    source, pointers = kernel_source(plan, group)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "generated_group.py")
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("generated_group", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return compile_for(module.kernel, *pointers, 2**20, device=plan.device, num_warps=WARPS, BLOCK=BLOCK)


def kernel_source(plan: FusionPlan, group: FusionGroup) -> tuple[str, list[torch.dtype]]:
    """Return the kernel's source and the dtypes of its pointers.

    Raises:
        ValueError: as `compiled`.
    """
    if group.kind != "pointwise":
        raise ValueError(f"a kernel is generated for a pointwise group, but this one is built around {group.kind}")
    nodes = {node.name: node for node in plan.graph.graph.nodes}
    inside = [nodes[operation.name] for operation in plan.operations if operation.name in _all(group)]
    whole = max(_numel(node) for node in inside)
    loads: dict[str, str] = {}
    types, body = [], []
    for node in inside:
        name = plan.by_name[node.name].operator
        if name not in FORMULAS:
            raise ValueError(f"no formula for {name}: {', '.join(FORMULAS)} have one")
        values = []
        for argument in node.args[:2]:
            if not isinstance(argument, Node):
                values.append(repr(argument))
                continue
            source = _source(argument, plan)
            if source.name not in _all(group) and source.name not in loads:
                place = "i" if _numel(source) == whole else f"i % {_numel(source)}"
                loads[source.name] = f"    {source.name} = tl.load({source.name}_ptr + {place}, i < n).to(tl.float32)"
                types.append((f"{source.name}_ptr", source.meta["val"].dtype))
            values.append(source.name)
        body.append(f"    {node.name} = {FORMULAS[name].format(*values)}")
    for node in inside:
        if node.name in group.operations and _is_read_outside(node, plan, _all(group)):
            types.append((f"{node.name}_out", node.meta["val"].dtype))
            body.append(f"    tl.store({node.name}_out + i, {node.name}, i < n)")
    names = ", ".join(name for name, _ in types)
    head = [
        "import triton",
        "import triton.language as tl",
        "@triton.jit",
        f"def kernel({names}, n, BLOCK: tl.constexpr):",
        "    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
    ]
    return "\n".join([*head, *loads.values(), *body]) + "\n", [pointer for _, pointer in types]


def _all(group: FusionGroup) -> set[str]:
    return {*group.operations, *group.recomputed}


def _numel(node: Node) -> int:
    return node.meta["val"].numel()


def _source(node: Node, plan: FusionPlan) -> Node:
    """Return the base of a view."""
    while node.name in plan.by_name and not plan.by_name[node.name].launches:
        node = node.args[0]
    return node


def _is_read_outside(node: Node, plan: FusionPlan, inside: set[str]) -> bool:
    for reader in node.users:
        view = reader.name in plan.by_name and not plan.by_name[reader.name].launches
        if (view and _is_read_outside(reader, plan, inside)) or (not view and reader.name not in inside):
            return True
    return False
