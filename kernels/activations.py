"""Activation functions inside kernels, and the gradients through them.

relu        max(s, 0)                                      Nair and Hinton, ICML 2010
gelu        s/2 (1 + erf(s/sqrt 2))                        Hendrycks and Gimpel, arXiv:1606.08415
gelu_tanh   s sigmoid(2u),  u = sqrt(2/pi) (s + 0.044715 s^3), which is s/2 (1 + tanh u)    the same
silu        s sigmoid(s)                                   Elfwing et al., arXiv:1702.03118
"""

from functools import partial

import torch
import triton
import triton.language as tl

# Name -> PyTorch's function.
ACTIVATIONS = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def check_activation(operation: str, act: str) -> None:
    """Check that `act` is a name in ACTIVATIONS.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise ValueError(f"{operation} takes act of {', '.join(ACTIVATIONS)}, got {act!r}: choose one of them")


@triton.jit
def normal(s):
    """Return the standard normal distribution's CDF and density at s, as precise as s's dtype allows.

    In fp32 the tail below -|s| is exp(-s^2/2) times a polynomial in t = 1 / (1 + 0.22 |s|), the form of Abramowitz and
    Stegun, Handbook of Mathematical Functions, 7.1.26. The eight coefficients are a minimax fit on |s| <= 6, off by
    2.2e-8 of the tail. tl.erf takes more instructions than a memory-bound GELU can hide, and loses the tail.
    """
    e = tl.exp2(-0.7213475204444817 * s * s)  # log2(e) / 2
    if s.dtype == tl.float64:
        below = 0.5 * (1.0 + tl.erf(s * 0.7071067811865476))
    else:
        root = tl.rsqrt(1.0 + 0.22 * tl.abs(s))  # a division would cost more
        t = root * root
        series = 0.6523463661 + t * (-0.6361433638 + t * (0.4859422625 + t * -0.1084949815))
        series = 0.08917925072 + t * (0.06966785641 + t * (0.1836575474 + t * (-0.2361549272 + t * series)))
        tail = t * series * e
        below = tl.where(s < 0, tail, 1.0 - tail)
    return below, 0.3989422804014327 * e  # 1/sqrt(2 pi)


@triton.jit
def sigmoid_base_2(z):
    """Return 1 / (1 + 2^-z), which is sigmoid(z ln 2).

    tl.sigmoid takes eleven instructions, more than a memory-bound LayerNorm can hide. tl.exp2 takes one, tl.exp four;
    squaring tl.rsqrt gives a reciprocal in two, a division takes five.
    """
    root = tl.rsqrt(1.0 + tl.exp2(-z))
    return root * root


@triton.jit
def gelu_of_16_bits(s, ACT: tl.constexpr, RESULT: tl.constexpr):
    """Return gelu or gelu_tanh in half the instructions, for 16-bit results:  max(s, 0) - a 2^q(a),  a = |s|.

    2^q is the gate at -a, so that the tail keeps its digits. q is a minimax polynomial of the gate's log2 on a <= 4,
    where PyTorch's own tail still has digits. Over all 16-bit s with |s| < 4, the worst result is off by 0.71 units in
    the last place of bf16 and 0.70 of fp16 with tanh, 0.51 and 0.63 with erf; PyTorch's by 0.50, 1.3, 128 and 5.8. -inf
    becomes NaN, as in PyTorch.
    """
    a = tl.minimum(tl.abs(s), 10.0)  # not inf * 0; at 10 the tail is below 1e-22
    if ACT == "gelu":
        q = -0.04875484 + a * (0.005982341 + a * -0.00033655544)
        q = -1.0000977 + a * (-1.1494949 + a * (-0.46342711 + a * q))
    elif RESULT.is_fp16():
        q = -0.059118383 + a * (0.017955969 + a * (-0.0051593134 + a * 0.00039422537))
        q = -1.0001518 + a * (-1.1497775 + a * (-0.45892983 + a * q))
    else:
        q = -0.51684562 + a * (-0.0021658451 + a * -0.0073170271)
        q = -1.0014386 + a * (-1.1282613 + a * q)
    half = 0.5 * s
    return half + tl.abs(half) - a * tl.exp2(q)  # tl.maximum(s, 0) would hide a sum's overflow to -inf


@triton.jit
def activate(s, ACT: tl.constexpr, RESULT: tl.constexpr = tl.float32):
    """Return act(s) in the dtype of s; RESULT, the dtype that the caller rounds to, sets the required accuracy."""
    if ACT == "relu":
        y = tl.where(s < 0, 0.0, s)  # tl.maximum would turn NaN into 0
    elif (ACT == "gelu" or ACT == "gelu_tanh") and (RESULT.is_fp16() or RESULT.is_bf16()):
        y = gelu_of_16_bits(s, ACT, RESULT)
    elif ACT == "gelu":
        below, _ = normal(s)
        y = s * below
    elif ACT == "gelu_tanh":
        y = s * sigmoid_base_2(s * (2.302208198144325 + 0.1029432395800235 * s * s))  # log2(e) z below
    else:
        tl.static_assert(ACT == "silu", "ACT is relu, gelu, gelu_tanh or silu")
        if RESULT.is_fp16() or RESULT.is_bf16():
            y = s * sigmoid_base_2(1.4426950408889634 * s)  # log2(e)
        else:
            y = s / (1.0 + tl.exp2(-1.4426950408889634 * s))  # a square of rsqrt has 2.5x the error
    return y


@triton.jit
def activate_gradient(grad_y, s, ACT: tl.constexpr):
    """Return the gradient of s, given the gradient of y = act(s)."""
    if ACT == "relu":
        grad = tl.where(s <= 0, 0.0, grad_y)  # not a product: an infinite grad_y times 0 is NaN
    elif ACT == "gelu":
        below, density = normal(s)
        grad = grad_y * (below + s * density)
    elif ACT == "gelu_tanh":
        # y = s g with the gate g = sigmoid(z), so y' = g + s g(1 - g) z'. From e = exp(-|z|) both g and
        # g(1 - g) = e / (1 + e)^2 keep all their digits where g is near 1 and 1 - g would lose them.
        z = 1.5957691216057308 * (s + 0.044715 * s * s * s)  # 2 sqrt(2/pi)
        slope = 1.5957691216057308 + 0.21406444881780075 * s * s
        e = tl.exp2(-1.4426950408889634 * tl.abs(z))
        root = tl.rsqrt(1.0 + e)
        larger = root * root  # of g and 1 - g
        gate = tl.where(z < 0, e * larger, larger)
        # A fully closed or open gate is flat; without tl.where, 0 * inf would give NaN when s^2 overflows.
        grad = grad_y * (gate + tl.where(e == 0.0, 0.0, s * slope * (e * larger * larger)))
    else:
        tl.static_assert(ACT == "silu", "ACT is relu, gelu, gelu_tanh or silu")
        gate = 1.0 / (1.0 + tl.exp2(-1.4426950408889634 * s))  # exact: 1 - gate amplifies gate's error
        grad = grad_y * gate * (1.0 + s * (1.0 - gate))
    return grad
