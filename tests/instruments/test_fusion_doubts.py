"""Models with which the analyser was led astray: a count that was wrong in silence is right, named or refused."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.instruments.fusion import analyse


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def launched(plan) -> list[str]:
    return [each.operator for each in plan.operations if each.launches]


def named(plan, operator: str):
    return next(each for each in plan.operations if each.operator == operator)


# What hangs on a tensor


def test_hooks_of_tensors_run():
    weight = nn.Parameter(torch.randn(16, 16))
    weight.register_hook(lambda gradient: gradient * 5)
    plan = analyse(lambda x: (x @ weight).sum(), torch.randn(8, 16), backward=True)
    assert launched(plan) == ["mm", "sum", "ones_like", "mm", "mul"]
    assert len(weight._backward_hooks) == 1


def test_an_optimizer_that_steps_in_a_hook_is_counted_and_left_as_it_was():
    weight = nn.Parameter(torch.randn(16))
    optimizer, before = torch.optim.AdamW([weight]), weight.detach().clone()

    def step_at_once(parameter):
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(step_at_once)

    def step(x):
        (x * weight).sum().backward()

    assert "_foreach_addcdiv_" in launched(analyse(step, torch.randn(8, 16)))
    assert torch.equal(weight, before)
    assert not optimizer.state
    step(torch.randn(8, 16))
    assert type(optimizer.state[weight]["exp_avg"]) is torch.Tensor


def test_inputs_that_share_memory_are_one_memory():
    def both(one, other):
        one.add_(1)
        other.mul_(2)
        return one

    x = torch.randn(64, 64)
    plan = analyse(both, x, x.view(-1))
    assert plan.bytes_fused == 2 * 4 * 64**2  # one kernel reads it and writes it
    assert [(edge.producer, edge.consumer) for edge in plan.edges] == [("add_", "mul_")]
    apart = analyse(both, x[:40], x[40:])
    assert not apart.edges
    overlapping = analyse(both, x[:40], x[20:])
    assert len(overlapping.edges) == 1


def test_a_copy_of_a_weight_in_the_same_memory_is_written_before_the_weight_is_read():
    class Decayed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))
            self.shadow = self.weight.data

        def forward(self, x):
            with torch.no_grad():
                self.shadow.mul_(0.9)
            return x @ self.weight

    plan = analyse(Decayed(), torch.randn(64, 64))
    assert [(edge.producer, edge.consumer) for edge in plan.edges] == [("mul_", "mm")]


def test_integers_in_shared_memory_keep_their_values():
    at, table = torch.tensor([3, 1, 3, 1]), torch.randn(8, 16)
    plan = analyse(lambda at, same, table: (table[at], same + 1), at, at[:], table)
    assert named(plan, "index").work.bytes_read == 2 * 16 * 4 + 4 * 8  # two rows, each once


def test_an_input_that_was_computed_before_gets_its_gradient():
    computed = nn.Parameter(torch.randn(64)) * 2
    plan = analyse(lambda x: x.relu().sum(), computed, backward=True)
    assert launched(plan)[-1] == "threshold_backward"


def test_a_backward_pass_into_what_was_computed_before_is_refused_and_leaves_no_gradient():
    weight = nn.Parameter(torch.randn(64))
    computed = weight * 2
    with pytest.raises(ValueError, match=r"backward\(\) reaches a tensor of shape \(64,\) that was computed before"):
        analyse(lambda x: (x * computed).sum().backward(), torch.randn(64))
    assert weight.grad is None
    assert launched(analyse(lambda x: x * computed, torch.randn(64))) == ["mul"]


class Scaled(torch.Tensor):
    """A weight in 8 bits, as quantisation packages have them: it shows itself as one of fp32."""

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values, scales):
        self.values, self.scales = values, scales

    def detach(self):
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [each.values.float() * each.scales if isinstance(each, Scaled) else each for each in args]
        return func(*args, **(kwargs or {}))


def test_operators_on_a_subclass_are_its_own():
    weight = Scaled(torch.ones(64, 64, dtype=torch.int8), torch.ones(64, 1))
    plan = analyse(lambda x: functional.linear(x, weight), torch.randn(8, 64))
    assert launched(plan) == ["_to_copy", "mul", "mm"]
    assert named(plan, "_to_copy").work.bytes_read == 64 * 64
    with pytest.raises(ValueError, match=r"Scaled is a subclass of torch\.Tensor with operators of its own"):
        analyse(lambda x, w: functional.linear(x, w), torch.randn(8, 64), weight)


# What a GPU would be asked


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.is_cuda,
        lambda x: x.device.type == "cuda",
        lambda x: "cuda" in str(x.device),
        lambda x: torch.cuda.is_available(),
    ],
)
def test_a_model_that_asks_for_a_gpu_has_one(asks):
    def model(x):
        return x * 2 if asks(x) else x.sin().cos()

    assert launched(analyse(model, torch.randn(8))) == ["mul"]
    assert torch.randn(8).device.type == "cpu"


def test_a_model_that_asks_for_the_compute_capability_gets_the_chosen_gpus():
    def model(x):
        return x * 2 if torch.cuda.get_device_capability(x.device) >= (9, 0) else x.sin()

    assert [launched(analyse(model, torch.randn(8), device=each)) for each in ("H100", "A100")] == [["mul"], ["sin"]]


def test_a_model_that_asks_for_autocast_is_told_of_cudas():
    def model(x):
        with torch.autocast("cuda", torch.bfloat16):
            return x.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled() else x.sin()

    (cast,) = (each for each in analyse(model, torch.randn(8)).operations if each.launches)
    assert cast.dtype == torch.bfloat16


def test_what_runs_on_the_host_is_named_with_its_share():
    plan = analyse(lambda x: (x * 2).cpu().exp().to(x.device) + 1, torch.randn(64, 64))
    assert launched(plan) == ["mul", "clone", "exp", "clone", "add"]
    reasons = [each.unsure for each in plan.operations if each.launches]
    assert ["bus" in reasons[1], "on the host" in reasons[2], "bus" in reasons[3]] == [True] * 3
    assert (reasons[0], reasons[4]) == ("", "")
    assert 0.5 < plan.unsure_share < 0.7


def test_a_mask_that_selects_where_a_number_goes_is_a_fill():
    def cut(x):
        x[:, x[0] > 0] = 0
        return x

    plan = analyse(cut, torch.randn(8, 16))
    assert launched(plan) == ["gt", "masked_fill"]
    unset = torch.zeros(8, 16, dtype=torch.bool)

    def clear(x, mask):
        x[mask] = 0.0
        return x

    assert analyse(clear, torch.randn(8, 16), unset).bytes_unfused == 8 * 16 * (1 + 4 + 4)
    plan = analyse(lambda x, v: x.index_put_((x > 0,), v), torch.randn(8), torch.tensor(1.0))
    assert ["places that the mask selects" in each for each in plan.unsure] == [True]


def test_heads_of_an_odd_size_and_masks_of_an_odd_length_are_padded():
    """pad_last_dim and pad_bias in PyTorch's attention.cpp; each pad is a fill and a copy."""
    q, narrow, mask = meta(2, 4, 64, 32), meta(2, 4, 64, 20), meta(64, 63)
    attention = functional.scaled_dot_product_attention
    plan = analyse(lambda q: attention(q, q, q), narrow)
    assert launched(plan) == ["constant_pad_nd"] * 3 + ["_scaled_dot_product_flash_attention"]
    plan = analyse(lambda q, k, mask: attention(q, k, k, mask), q, q[:, :, :63], mask)
    assert launched(plan) == ["constant_pad_nd", "_scaled_dot_product_efficient_attention"]
    assert launched(analyse(lambda q, mask: attention(q, q, q, mask), q, meta(64, 64)))[:1] != ["constant_pad_nd"]


def test_a_scaler_that_is_disabled_and_transposed_convolutions_are_named():
    model = nn.Linear(16, 16)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cuda", enabled=False)

    def step(x):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    plan = analyse(step, torch.randn(8, 16))
    assert ["GradScaler is disabled" in each for each in plan.unsure] == [True]
    last = torch.channels_last
    up = nn.ConvTranspose2d(8, 4, 3).to(memory_format=last)
    plan = analyse(up, torch.randn(2, 8, 4, 4).to(memory_format=last))
    assert ["transposed convolutions" in each for each in plan.unsure] == [True]


def test_arithmetic_of_vectors_and_complex_numbers():
    w, x = torch.randn(64, 32), torch.randn(32)
    assert analyse(torch.mv, w, x).operations[0].work.flops == 2 * 64 * 32
    assert analyse(torch.dot, x, x).operations[0].work.flops == 2 * 32
    z = torch.randn(64, dtype=torch.complex64)
    flops = [each.work.flops for each in analyse(lambda z: z * z + z, z).operations]
    assert flops == [6 * 64, 2 * 64]


def test_a_custom_operator_without_a_result_is_named():
    @torch.library.custom_op("fusion_doubts::note", mutates_args=())
    def note(x: torch.Tensor) -> None:
        pass

    note.register_fake(lambda x: None)
    plan = analyse(lambda x: (note(x), x + 1)[1], torch.randn(64))
    assert list(plan.unsure) == ["fusion_doubts.note: its GPU kernels are unknown and not counted"]
    assert launched(plan) == ["add"]


def test_a_module_that_moves_to_the_gpu_in_its_step_and_an_optimizer_for_cuda_graphs_run():
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step(x):
        optimizer.zero_grad()
        model.to("cuda").cuda()(x.to("cuda")).sum().backward()
        optimizer.step()

    assert "_foreach_addcdiv_" in launched(analyse(step, torch.randn(8, 16)))
    assert not optimizer.state


# What it does not touch


def test_random_numbers_of_python_and_numpy_go_on_as_if_it_had_not_run():
    x = torch.randn(8)
    states = random.getstate(), np.random.get_state()[2], torch.get_rng_state()  # noqa: NPY002

    def model(x):
        return functional.dropout(x * random.random() * np.random.rand(), 0.5)  # noqa: NPY002

    analyse(model, x)
    assert random.getstate() == states[0]
    assert np.random.get_state()[2] == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_the_callers_default_device_does_not_matter():
    with torch.device("meta"):
        plan = analyse(lambda x: x + torch.zeros(8), torch.randn(8))
    assert launched(plan) == ["zeros", "add"]


# What it refuses, in one line


def catches(x):
    try:
        return x * 2 if x.max() > 0 else x
    except Exception:
        return x * 3


def in_a_thread(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.sin, x).result() + 1


def offloads(x):
    with torch.autograd.graph.save_on_cpu():
        return x.exp().sum()


SPARSE = torch.eye(8).to_sparse()


@pytest.mark.parametrize(
    ("model", "why", "line"),
    [
        (catches, "the values are not known", "return x * 2 if x.max() > 0 else x"),
        (in_a_thread, "out of the tracer's sight", "pool.submit(torch.sin, x)"),
        (offloads, "save_on_cpu copies saved tensors over the bus", "return x.exp().sum()"),
        (lambda x: SPARSE @ x, "a sparse tensor's size depends on values", "SPARSE @ x"),
        (lambda x: SPARSE.to_sparse_csr() @ x, "a sparse tensor's size depends on values", "to_sparse_csr()"),
        (lambda x: torch.sparse.mm(x.to_sparse(), x), "a sparse tensor's size depends on values", "x.to_sparse()"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "kernels for CPUs alone", "quantize_per_tensor"),
    ],
)
def test_it_is_refused_in_a_line_that_names_the_users(model, why, line):
    with pytest.raises(ValueError, match="cannot be traced") as error:
        analyse(model, torch.randn(8, 8))
    said = str(error.value)
    assert why in said
    assert "test_fusion_doubts.py:" in said
    assert line in said or model is offloads
    assert "\n" not in said


def test_lazy_and_sparse_inputs_are_refused():
    with pytest.raises(ValueError, match="a lazy module has no shapes yet"):
        analyse(nn.LazyLinear(4), torch.randn(8, 8))
    with pytest.raises(ValueError, match="a sparse tensor's size depends on values"):
        analyse(lambda s, x: s @ x, SPARSE, torch.randn(8, 8))


def test_packed_weights_of_a_cpu_are_refused():
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 64)), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ValueError, match="kernels for CPUs alone"):
        analyse(packed, torch.randn(8, 64))
