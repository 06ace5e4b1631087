"""The fusion analyser against what a GPU did: Inductor's groups and times as recorded, the traffic meter's counts."""

from pathlib import Path

import pytest
import torch

from benchmarks import fusion_proof
from benchmarks.fusion_models import GRAPHS
from helpers.instruments.fusion import analyse
from helpers.instruments.traffic import measure

PAGE = Path(__file__).parents[2] / "docs" / "fusion_proof.md"
# A GPU has dropout and RMSNorm as one operator each, keeps the statistics of 16-bit norms in fp32, those of batch norm
# in evaluation too, and no buffer of log_sigmoid.
OTHERWISE_ON_A_GPU = {"native_dropout", "_fused_rms_norm", "native_layer_norm", "native_batch_norm"}
OTHERWISE_ON_A_GPU |= {"binary_cross_entropy_with_logits"}


def test_every_graph_was_recorded():
    content = fusion_proof.record()
    assert set(content["graphs"]) == set(GRAPHS)
    assert not content["failed"]


def unfused(name):
    torch.manual_seed(0)
    function, inputs = GRAPHS[name].build("cpu", small=True)
    plan = analyse(function, *inputs, device="H200")
    read, written = (sum(getattr(each.work, f"bytes_{way}") for each in plan.operations) for way in ("read", "written"))
    launches = sum(each.launches - each.added_launches for each in plan.operations)
    # The meter does not see the fill of a number that torch.where makes a tensor of.
    fills = sum(each.target == "aten.scalar_tensor.default" for each in plan.operations)
    return plan, (read, written, launches - fills)


@pytest.mark.parametrize("name", GRAPHS)
def test_unfused_bytes_and_launches_are_the_meters_on_the_gpu(name):
    _, found = unfused(name)
    assert found == tuple(fusion_proof.record()["graphs"][name]["metered_small"].values())


@pytest.mark.parametrize("name", GRAPHS)
def test_unfused_bytes_and_launches_are_the_meters_here(name):
    plan, found = unfused(name)
    if {operation.target.split(".")[1] for operation in plan.operations} & OTHERWISE_ON_A_GPU:
        pytest.skip("a CPU runs other operators here than a GPU")
    function, inputs = GRAPHS[name].build("cpu", small=True)
    traffic = measure(function, *inputs)
    assert found == (traffic.bytes_read, traffic.bytes_written, traffic.launches)


def test_a_library_runs_the_last_operator_of_its_kernel_and_keeps_it_from_others():
    operations = [{"name": name} for name in ("silu", "mm", "add", "mul")]
    kernels = [
        {"kind": "fused", "operations": ["silu", "view"]},
        {"kind": "extern", "operations": ["mm", "silu", "t"]},
        {"kind": "fused", "operations": ["add", "mm", "mul"]},
        {"kind": "fused", "operations": ["mul", "add"]},
        {"kind": "nothing", "operations": ["silu"]},
    ]
    found = fusion_proof.homes({"operations": operations, "kernels": kernels})
    assert {name: found[name] for name in ("silu", "mm", "add", "mul")} == {
        "silu": {0},
        "mm": {1},
        "add": {2, 3},
        "mul": {2, 3},
    }


@pytest.fixture(scope="module")
def held_out():
    return fusion_proof.compared()


def test_every_edge_is_counted_once(held_out):
    for each in held_out:
        edges = [*each.both, *each.neither, *each.analyser_alone, *each.inductor_alone, *each.left_out]
        wanted = {(edge.producer, edge.consumer) for edge in fusion_proof.plan_of(each.name).edges if not edge.ordering}
        assert sorted(edges) == sorted(wanted)
        assert each.library <= len(each.neither)


@pytest.mark.parametrize("name", GRAPHS)
def test_no_edge_of_the_traced_graph_is_left_out(name):
    """The trace's own arguments, through views, but for those of which only the shape is used."""
    plan = fusion_proof.plan_of(name)
    launching = {operation.name for operation in plan.operations if operation.launches}

    def makers(node):
        if node.name in launching or node.op != "call_function":
            return {node.name} & launching
        return set().union(*map(makers, node.all_input_nodes))

    wanted = {
        (maker, node.name)
        for node in plan.graph.graph.nodes
        if node.name in launching and not node.target.__name__.startswith(("ones_like", "zeros_like"))
        for argument in node.all_input_nodes
        for maker in makers(argument)
        if not (node.target.__name__ == "nll_loss_backward.default" and argument is node.args[1])
    }
    assert {(edge.producer, edge.consumer) for edge in plan.edges if not edge.ordering} == wanted


def test_the_analyser_agrees_with_inductor_and_predicts_its_speed_up(held_out):
    found = fusion_proof.summary(held_out)
    assert found["graphs"] >= 25
    assert found["left_out"] <= 0.01 * found["edges"]
    assert found["agreement"] >= 0.90
    assert found["median_error"] <= 0.20
    assert found["right_directions"] >= 0.95


def test_the_page_says_what_is_found(held_out):
    page = PAGE.read_text()
    assert fusion_proof.headline(held_out) in page, "make notebooks"


def test_a_plan_that_fuses_nothing_would_not_pass(held_out):
    fused = sum(len(each.both) + len(each.inductor_alone) for each in held_out)
    assert 1 - fused / sum(each.edges for each in held_out) < 0.60


def test_a_speed_up_on_the_wrong_side_is_no_right_direction():
    def graph(predicted, measured):
        return fusion_proof.Comparison("", (), (), (), (), (), 0, predicted, measured)

    assert graph(1.5, 1.2).right_direction
    assert graph(1.0, 0.9).right_direction
    assert graph(1.06, 1.04).right_direction
    assert not graph(1.3, 0.98).right_direction
    assert not graph(1.0, 1.4).right_direction
