"""The gradients of ffn's gated hidden values, h = act(g) u with g = x gate^T and u = x up^T, which training keeps.

The activation's and the product's gradients come from one launch, GEGLU's kernel; the matmuls have no epilogue and are
left to PyTorch.
"""

import torch
from torch import Tensor

from kernels.arguments import as_matrix
from kernels.elementwise.geglu import geglu_backward_kernel
from kernels.elementwise.geglu import settings as geglu_settings
from kernels.elementwise.vectors import launch
from kernels.op import Work, like


def launch_elementwise(kernel, act: str, *tensors: Tensor) -> None:
    """GEGLU's kernels, which take any of the activations."""
    launch(kernel, geglu_settings(tensors[0].dtype) | {"ACT": act}, *tensors)


def gradients_of_products(grad_h: Tensor, g: Tensor, u: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """The gradients of g and u, all of one shape."""
    grad_g, grad_u = like(g), like(u)
    launch_elementwise(geglu_backward_kernel, act, grad_h.contiguous(), g, u, grad_g, grad_u)
    return grad_g, grad_u


def gradients(of_products, needed, grad_h: Tensor, x: Tensor, gate: Tensor, up: Tensor, g, u, act: str) -> tuple:
    """Of x, gate and up, where they are needed; the products as precise as torch.backends.cuda.matmul says."""
    to_x, to_gate, to_up, *_ = needed
    grad_g, grad_u = of_products(grad_h, g, u, act)
    return (
        grad_g @ gate + grad_u @ up if to_x else None,
        as_matrix(grad_g).T @ as_matrix(x) if to_gate else None,
        as_matrix(grad_u).T @ as_matrix(x) if to_up else None,
    )


def work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of all the layer's gradients: two products for each of the forward's, and GELU's 20
    operations; grad_y, x, the weights and what was kept of the hidden values in once, the gradients out once."""
    tokens, width, hidden, gated = (*shape, False)[:4]
    products = 3 if gated else 2
    return Work(
        flops=products * 4 * tokens * width * hidden + (22 if gated else 20) * tokens * hidden,
        bytes_read=(2 * tokens * width + products * (width * hidden + tokens * hidden)) * dtype.itemsize,
        bytes_written=(tokens * width + products * width * hidden) * dtype.itemsize,
    )
