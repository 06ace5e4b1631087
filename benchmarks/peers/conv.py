"""conv_bn_act's peers: cuDNN's own fused kernel, with batch norm folded into the weights, and torch.compile at its
best."""

from collections.abc import Callable

import torch

from kernels.tiled.conv_bn_act import conv_bn_act_reference


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return cuDNN's convolution with bias and ReLU, weights folded beforehand, and torch.compile's max-autotune."""
    if name != "conv_bn_act" or not inputs[0].is_cuda:
        return {}
    x, weight, gamma, beta, mean, var = inputs
    scale = gamma.float() * torch.rsqrt(var.float() + 1e-5)
    folded = (weight * scale[:, None, None, None]).to(x.dtype, memory_format=torch.channels_last)
    bias = (beta.float() - mean.float() * scale).to(x.dtype)
    padding = [weight.shape[2] // 2, weight.shape[3] // 2]

    def cudnn(x, *_):
        return torch.cudnn_convolution_relu(x, folded, bias, [1, 1], padding, [1, 1], 1)

    # Without CUDA graphs of its own: the timer captures one.
    autotuned = torch.compile(conv_bn_act_reference, dynamic=False, mode="max-autotune-no-cudagraphs")
    return {"cuDNN fused": cudnn, "max-autotune": autotuned}
