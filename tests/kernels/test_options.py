"""Arguments that are no tensors, of every kernel: another type, another range, is one line and nothing is launched."""

import inspect
import re

import numpy as np
import pytest
import torch

import kernels
from kernels import CATALOGUE
from kernels.arguments import INSTEAD

NUMBERS = {"nan": float("nan"), "inf": float("inf"), "huge": 10**30}
OTHERS = {
    "text": "False",
    "list": ["relu"],
    "dict": {},
    "tuple": (2, 2),
    "tensor": torch.tensor(0.5),
    "complex": 1j,
    "dtype": torch.float32,
    "NumPy's integer": np.int64(2),
    "NumPy's float": np.float32(0.5),
}
WRONG = {
    bool: {**OTHERS, **NUMBERS, "none": None, "zero": 0},
    int: {**OTHERS, **NUMBERS, "none": None, "true": True, "float": 2.0},
    float: {**OTHERS, **NUMBERS, "none": None, "true": True},
    str: {**OTHERS, **NUMBERS, "number": 1},
}
NEGATIVE = {"eps", "p", "label_smoothing", "stride", "padding", "top_k", "k", "scale"}


def options():
    """Operation, argument and a wrong value of it, from the annotations of the public functions."""
    for name in CATALOGUE:
        for argument, parameter in inspect.signature(getattr(kernels, name)).parameters.items():
            kinds = str(parameter.annotation).replace("<class '", "").replace("'>", "").split(" | ")
            for kind in (kind for kind in WRONG if kind.__name__ in kinds):
                values = WRONG[kind] | ({"negative": -1} if argument in NEGATIVE else {})
                for what, value in values.items():
                    if value is not None or "None" not in kinds:
                        yield pytest.param(name, argument, value, id=f"{name}-{argument}-{what}")


@pytest.mark.parametrize(("name", "argument", "value"), options())
def test_another_type_or_range_is_one_line(name, argument, value, device):
    op, function = CATALOGUE[name], getattr(kernels, name)
    inputs = op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)
    given = dict(zip(inspect.signature(function).parameters, inputs, strict=False)) | {argument: value}
    with pytest.raises((TypeError, ValueError)) as raised:
        function(**given)
    told = str(raised.value)
    assert told.startswith(f"{name} ")
    assert argument in told
    assert "\n" not in told
    assert len(told) < 300


def test_there_are_some_of_every_kind():
    arguments = {each.values[1] for each in options()}
    assert arguments >= {
        "eps",
        "p",
        "scale",
        "causal",
        "act",
        "stride",
        "padding",
        "top_k",
        "k",
        "ignore_index",
        "tf32",
    }


@pytest.mark.parametrize("name", INSTEAD)
def test_what_others_take_besides_is_one_line_that_says_what_to_use(name, device):
    op, function = CATALOGUE[name], getattr(kernels, name)
    inputs = op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)
    for argument, instead in INSTEAD[name].items():
        with pytest.raises(TypeError, match=rf"^{name} takes no {argument}: use {re.escape(instead)}$"):
            function(*inputs, **{argument: 1})
    with pytest.raises(TypeError, match=rf"^{name} takes no colour: see help\(kernels\.{name}\)$"):
        function(*inputs, colour="red")


def test_soft_targets_are_told_where_to_go(device):
    x = torch.randn(3, 5, device=device)
    with pytest.raises(
        TypeError, match=r"got torch\.float32: for probabilities use torch\.nn\.functional\.cross_entropy"
    ):
        kernels.cross_entropy(x, x.softmax(-1))


def test_fewer_heads_of_k_have_pytorchs_name(device):
    q, k, v = torch.randn(1, 4, 5, 16, device=device), *torch.randn(2, 1, 2, 5, 16, device=device)
    y = kernels.flash_attention(q, k, v, enable_gqa=True)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(y, theirs)
    for call in (kernels.flash_attention, lambda q, k, v, **options: kernels.attention_scores(q, k, **options)):
        with pytest.raises(ValueError, match="takes as many heads of k as of q if enable_gqa is False, got q of"):
            call(q, k, v, enable_gqa=False)
        call(q[:, :2], k, v, enable_gqa=False)


FP32 = [
    (name, argument)
    for name in CATALOGUE
    for argument, parameter in inspect.signature(getattr(kernels, name)).parameters.items()
    if parameter.annotation is float
]


@pytest.mark.parametrize(("name", "argument"), FP32)
def test_a_number_that_reaches_the_kernel_as_fp32_is_said_to(name, argument):
    told = inspect.getdoc(getattr(kernels, name)).split("Args:")[1].split("Returns:")[0]
    of_argument = " ".join(told.split(f" {argument}: ")[1].split())
    assert "as fp32" in of_argument or of_argument.startswith(
        ("as in layer_norm", "as in rms_norm", "added to the variance, as in")
    )


def test_fp64_is_fp64_but_for_the_numbers_given(device):
    x = torch.full((1, 64), 1.0, dtype=torch.float64, device=device)
    kept = kernels.softmax_dropout(x, torch.tensor(3, device=device), 0.1)
    assert set((kept * 64).unique().tolist()) == {0.0, float(np.float32(1 / (1 - 0.1)))}
    x = 1e-3 * torch.randn(3, 65, dtype=torch.float64, device=device)
    expected = torch.nn.functional.layer_norm(x, (65,), eps=float(np.float32(1e-5)))
    torch.testing.assert_close(kernels.layer_norm(x), expected, rtol=1e-14, atol=1e-14)
    assert (kernels.layer_norm(x) - torch.nn.functional.layer_norm(x, (65,), eps=1e-5)).abs().max() > 1e-11


def test_whole_numbers_are_floats(device):
    x = torch.randn(3, 5, device=device)
    assert torch.equal(kernels.l2_norm(x, eps=1), kernels.l2_norm(x, eps=1.0))


def calls_of_other_functions(device):
    """What callers write who know PyTorch's functions, and what they are told."""
    x, w, q = torch.randn(3, 40, device=device), torch.ones(40, device=device), torch.randn(1, 1, 4, 16, device=device)
    labels, image = torch.zeros(3, dtype=torch.int64, device=device), torch.randn(1, 8, 6, 6, device=device)
    weight, vectors = torch.randn(4, 8, 3, 3, device=device), torch.rand(4, 4, device=device)
    up, down = torch.randn(80, 40, device=device), torch.randn(40, 80, device=device)
    return {
        "a mask as SDPA's fourth": (
            lambda: kernels.flash_attention(q, q, q, torch.ones(4, 4, device=device) > 0),
            "takes causal as bool, got a tensor of shape (4, 4): for a mask use kernels.attention_scores with mask",
        ),
        "SDPA's order": (
            lambda: kernels.flash_attention(q, q, q, None, 0.0, True),
            "takes causal as bool, got None of type NoneType: pass causal and scale by name: scaled_dot_product",
        ),
        "class weights": (
            lambda: kernels.cross_entropy(x, labels, w),
            "takes ignore_index as int, got a tensor of shape (40,): for class weights use torch.nn.functional.cross",
        ),
        "(N, C, d) logits": (
            lambda: kernels.cross_entropy(torch.randn(5, 4, 4, device=device), labels.new_zeros(5, 4)),
            "and (5, 4, 4) may be PyTorch's (N, classes, ...): pass logits.flatten(0, -2) and labels.flatten()",
        ),
        "(N, C, d) logits of other sizes": (
            lambda: kernels.cross_entropy(torch.randn(5, 7, 4, device=device), labels.new_zeros(5, 4)),
            "got (5, 4): pass logits of (..., classes), such as logits.movedim(1, -1), and labels of (...)",
        ),
        "two strides": (
            lambda: kernels.conv_bn_act(image, weight, *vectors, stride=(2, 2)),
            "takes stride as int, got (2, 2) of type tuple: pass one int for both directions",
        ),
        "a padding's name": (
            lambda: kernels.conv_bn_act(image, weight, *vectors, padding="same"),
            "got 'same' of type str: pass (kernel size - 1) // 2 for 'same', 0 for 'valid'",
        ),
        "PyTorch's eps of None": (
            lambda: kernels.rms_norm(x, w, eps=None),
            "takes eps as float, got None of type NoneType: pass one float; PyTorch's None is torch.finfo(x.dtype).eps",
        ),
        "p as the second": (
            lambda: kernels.softmax_dropout(x, 0.5),
            "takes seed in a tensor of torch.int64, got float: pass p by name",
        ),
        "layer_norm's shape": (
            lambda: kernels.layer_norm(x, (40,), w, w),
            "got weight of type tuple: leave the shape out; the last dimension is normalized",
        ),
        "rms_norm's shape": (
            lambda: kernels.rms_norm(x, [40], w),
            "got weight of type list: leave the shape out; the last dimension is normalized",
        ),
        "an activation as linear_act's fourth": (
            lambda: kernels.linear_act(x, up, None, "relu"),
            "got residual of type str: pass act by name",
        ),
        "an activation as ffn's fourth": (
            lambda: kernels.ffn(x, up, down, "relu"),
            "got gate of type str: pass act by name",
        ),
        "softmax's dim": (lambda: kernels.softmax(x, dim=-1), "takes no dim: use x.movedim(dim, -1)"),
        "normalize's p": (lambda: kernels.l2_norm(x, p=1), "takes no p: use torch.nn.functional.normalize"),
        "normalize's p by place": (lambda: kernels.l2_norm(x, 2.0), "takes 1 positional argument but 2 were given"),
        "an eps that is 0 in fp32": (
            lambda: kernels.rms_norm(x, w, eps=1e-50),
            "takes eps of 2^-126 to 2^128, fp32's",
        ),
        "an eps that is infinite in fp32": (
            lambda: kernels.l2_norm(x, eps=1e39),
            "takes eps of 2^-126 to 2^128, fp32's",
        ),
        "a scale that is 0 in fp32": (
            lambda: kernels.flash_attention(q, q, q, scale=1e-50),
            "takes a scale of 2^-126 to",
        ),
    }


CALLS = list(calls_of_other_functions("cpu"))


@pytest.mark.parametrize("what", CALLS)
def test_a_call_as_another_function_takes_it_is_one_true_line(what, device):
    call, said = calls_of_other_functions(device)[what]
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_messages_suggest_works(device):
    x, logits = torch.randn(3, 40, device=device), torch.randn(5, 4, 4, device=device)
    labels = torch.randint(4, (5, 4), device=device)
    theirs = torch.nn.functional.cross_entropy(logits, labels)
    ours = kernels.cross_entropy(logits.movedim(1, -1).flatten(0, -2), labels.flatten())
    torch.testing.assert_close(ours, theirs)
    rows = kernels.cross_entropy(logits.flatten(0, -2), labels.flatten())
    torch.testing.assert_close(rows, torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()))
    torch.testing.assert_close(kernels.softmax(x.movedim(0, -1)).movedim(-1, 0), x.softmax(0))
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(kernels.rms_norm(x, eps=eps), torch.nn.functional.rms_norm(x, (40,), eps=None))
    image, weight, vectors = torch.randn(1, 8, 6, 6), torch.randn(4, 8, 3, 3), torch.rand(4, 4)
    assert kernels.conv_bn_act(image.to(device), weight.to(device), *vectors.to(device), padding=1).shape[2:] == (6, 6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: kernels.FlashAttention(causal="no"), "FlashAttention takes causal as bool, got 'no'"),
        (lambda: kernels.FlashAttention(scale="1"), "FlashAttention takes scale as float, got '1'"),
        (lambda: kernels.LayerNorm(40, eps="a"), "LayerNorm takes eps as float, got 'a'"),
        (lambda: kernels.LayerNorm(40, eps=-1.0), "LayerNorm takes eps of 0 or above, got -1.0"),
        (lambda: kernels.LayerNormAct(40, eps=None), "LayerNormAct takes eps as float, got None"),
        (lambda: kernels.RMSNorm(40, eps=1e-50), "RMSNorm takes eps of 2^-126 to 2^128, fp32's range"),
        (lambda: kernels.LinearAct(4, 4, tf32="yes"), "LinearAct takes tf32 as bool, got 'yes'"),
        (lambda: kernels.FeedForward(4, 8, gated="yes"), "FeedForward takes gated as bool, got 'yes'"),
        (lambda: kernels.FeedForward(4, 8, bias=1), "FeedForward takes bias as bool, got 1"),
    ],
)
def test_a_module_checks_its_options_when_it_is_made(make, said):
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_messages_name_the_function_that_was_called(device):
    x = torch.randn(3, 40, device=device)
    for function, name in ((kernels.layer_norm, "layer_norm"), (kernels.layer_norm_act, "layer_norm_act")):
        with pytest.raises(
            RuntimeError, match=rf"^{name} has no forward-mode derivative: use kernels\.{name}\.reference"
        ):
            torch.func.jvp(function, (x,), (x,))
        with pytest.raises(RuntimeError, match=rf"^{name} is differentiable once, .* use kernels\.{name}\.reference"):
            torch.autograd.functional.hvp(lambda x, function=function: function(x).square().sum(), x, x)
