"""Decide which operations of a model to fuse on a GPU, and predict the gain."""

from collections.abc import Callable

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.fusion.capture import capture
from helpers.instruments.fusion.cost import Costs, GroupCost, eager_costs, eager_run
from helpers.instruments.fusion.graph_nodes import FusionNode, nodes_of
from helpers.instruments.fusion.legality import Legality, NotLegalError, bits
from helpers.instruments.fusion.operation_account import TracedStep, account
from helpers.instruments.fusion.operator_kinds import arithmetic_of, is_left_out, kind_of, launches_of, unsure_of
from helpers.instruments.fusion.plan import FusionEdge, FusionGroup, FusionPlan, TracedOperation
from helpers.instruments.fusion.score import score_of
from helpers.instruments.fusion.search import partition
from helpers.instruments.prediction import L2Cache, launch_prediction
from helpers.instruments.roofline import Work


def analyse(
    model: Callable,
    *inputs,
    keywords: dict | None = None,
    device: str | Device = "H200",
    backward: bool = False,
    epilogues: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> FusionPlan:
    """Find the partition of `model(*inputs)` into kernels with the shortest predicted time on a GPU, present or not.

    Args:
        model: an nn.Module, a torch.export.ExportedProgram, or any function that can be traced, even a whole training
            step. Everything it can reach is left unchanged.
        inputs: its arguments; tensors on any device: `torch.empty(shape, dtype=..., device="meta")` takes no memory.
            Only shapes, strides and dtypes matter, and the values of integers, which may be positions or decide a
            branch; unknown positions are assumed to be spread as widely as possible.
        keywords: its keyword arguments.
        device: a name in DEVICES, or a Device.
        backward: also compute the gradients of all parameters and inputs that require one.
        epilogues: whether to also build kernels around matmuls and convolutions; otherwise they stay library calls.
        progress: called with the current task, the amount done and the total.

    Raises:
        TypeError: model cannot be called.
        ValueError: an unknown device or a CPU, or a model that cannot be traced or whose shapes depend on data.
    """
    graph, steps, predictions, costs, inlined = _prepare(model, inputs, keywords, device, backward, epilogues, progress)
    operations = _operations(graph, steps, predictions, costs.device)

    def plan(costs: Costs, progress, today: Callable[[], FusionPlan] | None) -> FusionPlan:
        groups = partition(costs, progress)
        return FusionPlan(
            device=costs.device,
            graph=graph,
            operations=operations,
            edges=_edges(steps, inlined, costs.legality),
            groups=tuple(_group(mask, costs, inlined, operations) for mask in groups),
            _today=today,
        )

    def today() -> FusionPlan:
        left = Costs(Legality(costs.nodes, epilogues=False), costs.device, costs.eager)
        return plan(left, lambda done, of: None, None)

    return plan(costs, _part_of(progress, "search"), today if epilogues else None)


def costs_of(model: Callable, *inputs, device: str | Device = "H200", backward=False, epilogues=True) -> Costs:
    """Return the search space of `analyse`: the graph's nodes, which of them can share a kernel, and its cost."""
    return _prepare(model, inputs, None, device, backward, epilogues, None)[3]


def _prepare(model, inputs, keywords, device, backward, epilogues, progress):
    device = device if isinstance(device, Device) else DEVICES[device]
    if device.sms is None:
        raise ValueError(f"{device.name} is a CPU: choose a GPU to fuse for, such as device='H200'")
    traced = _part_of(progress, "trace")
    traced(0, 1)
    options = {"keywords": keywords, "backward": backward, "capability": device.compute_capability}
    graph, tensors = capture(model, *inputs, **options)
    traced(1, 1)
    steps = account(graph, tensors, device.sms, _part_of(progress, "rehearse"))
    for step in steps:
        if is_left_out(step):
            step.launches.clear()
    predictions, missing = _eager(steps, device)
    nodes, inlined = nodes_of(steps, missing)
    costs = Costs(Legality(nodes, epilogues), device, eager_costs(nodes, predictions, device))
    return graph, steps, predictions, costs, inlined


def _part_of(progress, what: str) -> Callable[[int, int], None]:
    return (lambda done, of: progress(what, done, of)) if progress else (lambda done, of: None)


def _eager(steps: list[TracedStep], device: Device) -> tuple[dict, dict]:
    """Return TracedStep -> its launches with their predictions; (step, read) -> bytes not in L2 when it runs."""
    cache, predictions, missing = L2Cache(device.l2_cache), {}, {}
    for step in steps:
        predictions[step.index], shares = [], {}
        for launch in step.launches:
            absent = cache.pass_through(launch)
            for storage, operand in launch.operands.items():
                if operand.read:
                    shares.setdefault(storage, (absent[storage] - operand.written) / operand.read)
            predictions[step.index].append((launch, launch_prediction(launch, sum(absent.values()), device)))
        for number, read in enumerate(step.reads):
            missing[step.index, number] = read.nbytes * shares.get(read.storage, 1.0)
    return predictions, missing


def _operations(graph, steps: list[TracedStep], predictions: dict, device: Device) -> tuple[TracedOperation, ...]:
    by_name = {step.name: step for step in steps}
    found = []
    for node in graph.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "overloadpacket"):
            continue
        value = node.meta.get("val")
        first = value[0] if isinstance(value, list | tuple) and value else value
        shaped = hasattr(first, "shape") and first is not None
        step = by_name.get(node.name)
        kind, work, launches, added, time, unsure = "view", Work(0, 0, 0), 0, 0, 0.0, ""
        if step is not None:
            kind = kind_of(step)
            moved = [operand for launch, _ in predictions[step.index] for operand in launch.operands.values()]
            arithmetic = arithmetic_of(step, kind)
            flops = arithmetic.product + arithmetic.fp32
            work = Work(flops, sum(each.read for each in moved), sum(each.written for each in moved))
            unsure = unsure_of(step)
            _, launches, time = eager_run(step, predictions[step.index], device)
            added = launches - launches_of(step)
        found.append(
            TracedOperation(
                name=node.name,
                target=str(node.target),
                kind=kind,
                shape=tuple(first.shape) if shaped else (),
                dtype=first.dtype if shaped else None,
                strides=tuple(first.stride()) if shaped else (),
                work=work,
                launches=launches,
                time=time,
                added_launches=added,
                module=node.meta.get("module", ""),
                line=node.meta.get("line"),
                backward=node.meta.get("backward", False),
                unsure=unsure,
            )
        )
    return tuple(found)


def _edges(steps: list[TracedStep], inlined: list[TracedStep], legality: Legality) -> tuple[FusionEdge, ...]:
    nodes = legality.nodes
    place = {node.step.index: node.index for node in nodes}
    again = {step.index for step in inlined}
    found = []
    for step in steps:
        for other, wait in sorted(step.waits.items()):
            nbytes = sum(mine.nbytes for _, mine in wait.tensors)
            if other in again or step.index in again:
                legal, reason = True, "each reader recomputes it, which is cheaper than reading it back"
                if step.index in again and other not in again:
                    legal, reason = _through_readers(place[other], step, nodes, legality)
            else:
                legal, reason = _judge(place[other], place[step.index], legality)
            found.append(FusionEdge(steps[other].name, step.name, nbytes, legal, reason, ordering=not wait.tensors))
    return tuple(found)


def _through_readers(source: int, step: TracedStep, nodes: list[FusionNode], legality: Legality) -> tuple[bool, str]:
    """Judge an operation that its readers recompute: legal if one of them may share the producer's kernel."""
    verdicts = [_judge(source, node.index, legality) for node in nodes if step in node.inlined]
    return max(verdicts, default=(False, "nothing reads it"))


def _judge(source: int, target: int, legality: Legality) -> tuple[bool, str]:
    mask = 1 << source | 1 << target
    producer, consumer = legality.nodes[source], legality.nodes[target]
    try:
        # Whether its result must also be stored depends on the partition.
        kind = legality.kind(mask, 1 << target | (1 << source if producer.kept else 0))
    except NotLegalError as error:
        return False, str(error)
    links = [link for link in producer.links if link.target == target]
    reasons = {
        "pointwise": "the same elements",
        "rows": "the same rows, one block per row",
        "matmul": f"applied to each tile of {producer.name if producer.kind == 'matmul' else consumer.name}",
        "convolution": f"applied to each tile of {producer.name}",
    }
    reason = reasons[kind]
    if any(link.expanded for link in links):
        reason += ", some computed more than once"
    if any(link.part for link in links):
        reason += ", each part computed where it is read"
    if any(link.permuted for link in links):
        reason += ", in another order"
    if producer.random or consumer.random:
        reason += "; its random numbers differ from PyTorch's unless it uses the same Philox counters"
    if {write.dtype for write in producer.step.writes[:1]} != {write.dtype for write in consumer.step.writes[:1]}:
        reason += "; cast in registers"
    if legality.readers[source].bit_count() > 1 or producer.kept:
        reason += "; also stored if other kernels read it"
    return True, reason


def _group(mask: int, costs: Costs, inlined: list[TracedStep], operations) -> FusionGroup:
    members = [costs.nodes[place] for place in bits(mask)]
    by_name = {operation.name: operation for operation in operations}
    cost: GroupCost = costs.of(mask)
    again = {step.index: step.name for node in members for step in node.inlined}
    first = {}  # a recomputed operation counts where it first runs
    for node in costs.nodes:
        for step in node.inlined:
            first.setdefault(step.index, node.index)
    own = [node.step for node in members]
    own += [step for step in inlined if mask >> first[step.index] & 1]
    names = [step.name for step in sorted(own, key=lambda step: step.index)]
    eager = [by_name[name] for name in names]
    work = sum((each.work for each in eager), Work(0, 0, 0))
    launches = sum(each.launches for each in eager)
    return FusionGroup(
        operations=tuple(names),
        recomputed=tuple(name for index, name in sorted(again.items()) if name not in names),
        kind=cost.kind,
        work=cost.work,
        launches=cost.launches,
        time=cost.time,
        work_unfused=work,
        launches_unfused=launches,
        time_unfused=sum(each.time for each in eager),
        live=cost.live,
        registers=cost.registers,
        score=score_of(cost, work, launches, costs.device),
    )
