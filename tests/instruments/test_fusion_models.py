"""The graphs on which the fusion analyser is tried are what they say they are."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from benchmarks.fusion_models import GRAPHS


# In `make test` every second.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (place % 2)) for place, name in enumerate(GRAPHS)]
)
def test_small_sizes_run_and_keep_every_operator(name):
    torch.manual_seed(0)
    traced = {}
    for device, small in (("cpu", True), ("meta", False)):
        function, inputs = GRAPHS[name].build(device, small)
        graph = make_fx(function, tracing_mode="fake")(*inputs).graph
        traced[device] = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert traced["cpu"] == traced["meta"]
    function, inputs = GRAPHS[name].build("cpu", small=True)
    results = [each for each in tree_leaves(function(*inputs)) if each.is_floating_point()]
    assert results
    assert all(each.isfinite().all() for each in results)


def in_double(name):
    torch.manual_seed(1)
    function, inputs = GRAPHS[name].build("cpu", small=True)
    return function, [each.double() if each.is_floating_point() else each for each in inputs]


def test_bert_layer_is_pytorchs_encoder_layer():
    function, (x, padding, g1, b1, qkv, bqkv, out, bout, g2, b2, up, bup, down, bdown) = in_double("bert_layer")
    theirs = torch.nn.TransformerEncoderLayer(
        x.shape[-1], 4, up.shape[0], 0.0, functional.gelu, batch_first=True, dtype=torch.float64
    )
    given = qkv, bqkv, out, bout, up, bup, down, bdown, g1, b1, g2, b2
    with torch.no_grad():
        for mine, parameter in zip(given, theirs.parameters(), strict=True):
            parameter.copy_(mine)
    mine = function(x, padding, g1, b1, qkv, bqkv, out, bout, g2, b2, up, bup, down, bdown)
    torch.testing.assert_close(mine, theirs(x, src_key_padding_mask=padding), rtol=1e-9, atol=1e-9)


def test_mamba_in_chunks_is_the_recurrence():
    function, inputs = in_double("mamba_block")
    x, project, taps, dt_bias, log_a, weight, out, _ = inputs
    tokens, heads, dim, state = len(x), len(log_a), 16, 8
    width = heads * dim
    z, xbc, dt = (x @ project.T).split([width, width + 2 * state, heads], dim=-1)
    before = torch.cat((torch.zeros(3, xbc.shape[1], dtype=xbc.dtype), xbc))
    xbc = sum(before[tap : tap + tokens] * taps[:, 0, tap] for tap in range(4))
    u, b, c = (xbc * torch.sigmoid(xbc)).split([width, state, state], dim=-1)
    dt = torch.log1p(torch.exp(dt.float() + dt_bias))
    h, y = torch.zeros(heads, state, dim, dtype=torch.float64), []
    for t in range(tokens):
        step = dt[t][:, None] * u[t].view(heads, dim)
        h = torch.exp(-torch.exp(log_a) * dt[t])[:, None, None] * h + b[t][None, :, None] * step[:, None, :]
        y.append(torch.einsum("n,hnd->hd", c[t], h).flatten())
    gated = torch.stack(y) * z * torch.sigmoid(z)
    wanted = gated * torch.rsqrt(gated.pow(2).mean(-1, keepdim=True) + 1e-6) * weight @ out.T
    torch.testing.assert_close(function(*inputs), wanted, rtol=1e-4, atol=1e-4)  # two of its steps are in fp32


def test_training_steps_give_the_gradients_of_their_loss():
    function, inputs = in_double("norm_step")
    x, residual, weight, bias, upstream = inputs

    def loss(x):
        return (functional.gelu(functional.layer_norm(x + residual, x.shape[-1:], weight, bias)) * upstream).sum()

    value, gradient, *_ = function(*inputs)
    direction, step = torch.randn_like(x), 1e-6
    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    torch.testing.assert_close(value, loss(x))
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-6)
