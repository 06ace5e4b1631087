"""flash_attention's peers: PyTorch's attention by the backend that runs it, and FlexAttention compiled."""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from kernels.interpreter import runtime

BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def by_backend(backend: SDPBackend) -> Callable:
    """scaled_dot_product_attention that this backend runs or nobody."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attention


def flex(q: torch.Tensor, causal: bool) -> Callable:
    """FlexAttention compiled for tensors of q's shape; its block mask, which says what to skip, is made once."""
    tokens = q.shape[2]
    mask = None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device=q.device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, causal=False: compiled(q, k, v, block_mask=mask)


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Each has a gradient."""
    if name != "flash_attention" or not runtime.has_gpu():
        return {}
    q, _, _, causal = inputs
    return {label: by_backend(backend) for label, backend in BACKENDS.items()} | {"Flex": flex(q, causal)}
