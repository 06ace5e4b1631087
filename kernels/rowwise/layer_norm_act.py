"""LayerNorm and an activation in one kernel:  y = act(layer_norm(x)),  with act ReLU, GELU or SiLU.

    unfused   layer_norm: read x, write z | act: read z, write y     16 B/element in fp32, two launches
    fused     read x once, keep the row in registers, write y         8 B/element, one launch

The kernels are those of kernels/rowwise/layer_norm.py, with ACT set. The backward pass recomputes z from x. It reads
the gradient and x and writes x's gradient, 12 B/element in fp32; PyTorch also saves z and moves its gradient.

Source: see layer_norm; for the activations, kernels/activations.py.
"""

from functools import partial

import torch

from kernels import costs
from kernels.activations import ACTIVATIONS, check_activation
from kernels.arguments import check_alike, check_columns, check_option, ones_unless, over_last, zeros_unless
from kernels.op import FusedOp, planned, work_per_element
from kernels.rowwise import layer_norm


@planned
def layer_norm_act(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    act: str = "gelu_tanh",
    eps: float = 1e-5,
) -> torch.Tensor:
    """Apply LayerNorm over the last dimension, then act, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        weight, bias: as in layer_norm.
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".
        eps: added to the variance, as in layer_norm.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, without atomics, in an order that depends only on the GPU.

    Raises:
        TypeError: a tensor is not a floating-point tensor.
        ValueError: act is not one of the four, x has no dimension, weight or bias is not (cols,), the devices differ,
            or the tensors are on the CPU where kernels run on a GPU.
    """
    check_activation("layer_norm_act", act)
    check_alike("layer_norm_act", x=x)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("layer_norm_act", x, weight=weight, bias=bias)
    check_option("layer_norm_act", "eps", eps, float)
    return layer_norm.layer_norm_op(x, weight, bias, act, eps)


class LayerNormAct(torch.nn.LayerNorm):
    """torch.nn.LayerNorm and an activation by layer_norm_act. Takes torch.nn.LayerNorm's arguments, and act by name."""

    def __init__(self, *arguments, act: str = "gelu_tanh", **options):
        super().__init__(*arguments, **options)
        check_activation("LayerNormAct", act)
        check_option("LayerNormAct", "eps", self.eps, float)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"act": self.act, "eps": self.eps}
        return over_last(layer_norm_act, self.normalized_shape, x, self.weight, self.bias, **options)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act={self.act!r}"


def layer_norm_act_reference(
    x: torch.Tensor, weight=None, bias=None, act: str = "gelu_tanh", eps: float = 1e-5
) -> torch.Tensor:
    """Compute the same in PyTorch, unfused."""
    return ACTIVATIONS[act](torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps))


OP = FusedOp(
    name="layer_norm_act",
    fused=layer_norm_act,
    reference=layer_norm_act_reference,
    work=work_per_element(costs.LAYER_NORM + costs.GELU_TANH, tensors=(1, 1), vectors=(2, 0)),
    kernel=layer_norm.layer_norm_kernel,
    settings=layer_norm.settings,
    inputs=layer_norm.OP.inputs,
    compile_arguments=partial(layer_norm.OP.compile_arguments, act="gelu_tanh"),
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=work_per_element(38, tensors=(2, 1), vectors=(2, 2)),
)
