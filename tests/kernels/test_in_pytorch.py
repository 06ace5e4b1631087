"""Every kernel of the catalogue inside PyTorch: autograd, torch.compile, autocast and, on a GPU, streams and graphs."""

import pytest
import torch
from accuracy import as_tuple, assert_as_accurate, doubled, is_float

from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.op import FusedOp

OPS = pytest.mark.parametrize("op", CATALOGUE.values(), ids=CATALOGUE)
DIFFERENTIABLE = pytest.mark.parametrize(
    "op", [op for op in CATALOGUE.values() if op.backward_work], ids=lambda op: op.name
)
gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


def small_inputs(op: FusedOp, device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Arguments of the second shape: awkward and small."""
    return op.inputs(*op.interpreter_shapes[1], dtype=dtype, device=device)


def tracked(inputs) -> list[torch.Tensor]:
    return [x.detach().clone().requires_grad_() if is_float(x) else x for x in inputs]


def gradients(function, inputs, weights=None) -> tuple[torch.Tensor, ...]:
    """Of the weighted sum of the floating-point outputs, for every floating-point input."""
    leaves = tracked(inputs)
    outputs = [y for y in as_tuple(function(*leaves)) if y.is_floating_point()]
    weights = [torch.ones_like(y) for y in outputs] if weights is None else [w.to(outputs[0].dtype) for w in weights]
    return torch.autograd.grad(outputs, [x for x in leaves if is_float(x)], weights)


@DIFFERENTIABLE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_are_as_accurate_as_pytorchs(op, device, dtype, poisoned):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=dtype, device=device)
    weights = [torch.randn_like(y) for y in as_tuple(op.oracle(*inputs)) if y.is_floating_point()]
    exact = gradients(op.oracle, doubled(inputs), weights)
    assert_as_accurate(gradients(op.fused, inputs, weights), gradients(op.oracle, inputs, weights), exact)


@DIFFERENTIABLE
def test_gradients_through_strided_inputs_and_gradients(op, device):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    strided = [torch.stack([x, x], dim=-1)[..., 0] if isinstance(x, torch.Tensor) else x for x in inputs]
    weights = [torch.randn((*y.shape, 2), device=device)[..., 0] for y in as_tuple(op.oracle(*inputs))]
    weights = [w for w, y in zip(weights, as_tuple(op.oracle(*inputs)), strict=True) if y.is_floating_point()]
    exact = gradients(op.oracle, doubled(inputs), weights)
    assert_as_accurate(gradients(op.fused, strided, weights), gradients(op.oracle, inputs, weights), exact)


@DIFFERENTIABLE
def test_gradients_of_nothing(op, device):
    inputs = op.inputs(0, *op.interpreter_shapes[-1][1:], dtype=torch.float32, device=device)
    for ours, expected in zip(gradients(op.fused, inputs), gradients(op.oracle, inputs), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


# In `make test` one of each way to be registered: a seed, two results, no gradient, integers, tiles.
COMPILED = "bias_dropout_residual softmax_topk layer_norm layer_norm_int8 linear_act flash_attention moe_int8"


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=[] if name in COMPILED.split() else [pytest.mark.long]) for name, op in CATALOGUE.items()],
    ids=CATALOGUE,
)
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.long), True])
def test_torch_compile_takes_it_whole(op, device, dynamic):
    inputs = small_inputs(op, device)
    compiled = torch.compile(op.fused, fullgraph=True, dynamic=dynamic)
    for ours, expected in zip(as_tuple(compiled(*inputs)), as_tuple(op.fused(*inputs)), strict=True):
        assert torch.equal(ours, expected)
    if op.backward_work:
        for ours, expected in zip(gradients(compiled, inputs), gradients(op.fused, inputs), strict=True):
            torch.testing.assert_close(ours, expected)


@OPS
def test_autocast_changes_nothing_of_one_dtype(op, device):
    inputs = small_inputs(op, device, op.dtypes[-1])
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = as_tuple(op.fused(*inputs))
    for ours, expected in zip(inside, as_tuple(op.fused(*inputs)), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("name", ["add_gelu", "residual_act", "bias_dropout_residual"])
def test_two_dtypes_under_autocast_meet_in_the_wider(name, device):
    op = CATALOGUE[name]
    inputs = small_inputs(op, device)
    mixed = [x.bfloat16() if i == 0 else x for i, x in enumerate(inputs)]
    with torch.autocast(device, dtype=torch.bfloat16):
        ours = op.fused(*mixed)
    assert torch.equal(ours, op.fused(mixed[0].float(), *inputs[1:]))
    with pytest.raises(TypeError, match="takes one dtype"):
        op.fused(*mixed)


def test_a_convolution_under_autocast_takes_its_precision(device):
    op = CATALOGUE["conv_bn_act"]
    inputs = small_inputs(op, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        ours, theirs = op.fused(*inputs), op.reference(*inputs)
    lowered = [x.bfloat16() for x in inputs[:2]]
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert torch.equal(ours, op.fused(*lowered, *inputs[2:]))


@pytest.mark.parametrize("name", ["add_gelu", "residual_act", "conv_bn_act"])
def test_channels_stay_last(name, device):
    """In training too; of two layouts the result is contiguous."""
    op = CATALOGUE[name]
    inputs = op.inputs(*((2, 3, 5, 7) if name != "conv_bn_act" else op.interpreter_shapes[1]), device=device)
    last = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
    y, expected = op.fused(*last), op.fused(*(x.contiguous() for x in inputs))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()
    assert torch.equal(y, expected)
    if name == "add_gelu":
        assert torch.compile(op.fused)(*last).stride() == y.stride()
    if op.backward_work:
        assert op.fused(last[0], inputs[1]).is_contiguous()
        weight = torch.randn_like(y)
        for ours, contiguous in zip(
            gradients(op.fused, last, [weight]), gradients(op.fused, inputs, [weight]), strict=True
        ):
            assert torch.equal(ours, contiguous)


def test_a_mistake_under_torch_compile_is_the_same_line(device):
    """With fullgraph=True Dynamo wraps it in a page of its own, as it does every exception."""
    x = torch.randn(3, 5, device=device).int()
    message = r"softmax takes float32, float16, bfloat16, float64, got x of torch\.int32: convert it with \.to\(dtype\)"
    with pytest.raises(TypeError, match=f"^{message}$"):
        torch.compile(CATALOGUE["softmax"].fused)(x)


@gpu_only
@OPS
def test_another_stream_and_a_graph(op):
    inputs = small_inputs(op, "cuda")
    expected = as_tuple(op.fused(*inputs))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = as_tuple(op.fused(*inputs))
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = as_tuple(op.fused(*inputs))
    for y in replayed:
        y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for y, streamed, again in zip(expected, on_side, replayed, strict=True):
        assert torch.equal(streamed, y)
        assert torch.equal(again, y)


# In `make test` one of elements and one of rows, beside the gradients of all against PyTorch's.
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=[] if op.name in ("swiglu", "softmax") else [pytest.mark.long])
        for op in CATALOGUE.values()
        if op.backward_work
    ],
    ids=lambda op: op.name,
)
def test_gradcheck(op, device):
    inputs = tracked(
        op.inputs(*(min(size, 9) for size in op.interpreter_shapes[-1]), dtype=torch.float64, device=device)
    )
    floats = [i for i, x in enumerate(inputs) if is_float(x)]

    def of_floats(*values):
        arguments = list(inputs)
        for i, value in zip(floats, values, strict=True):
            arguments[i] = value
        return op.fused(*arguments)

    assert torch.autograd.gradcheck(of_floats, [inputs[i] for i in floats])
