"""flash_attention's peers: PyTorch's attention by the backend that runs it, FlexAttention compiled, FlashAttention-4.

FlashAttention-4 is no dependency of the course: `pip install flash-attn-4` adds the column.
"""

from collections.abc import Callable
from importlib.util import find_spec

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


def flash_attention_4() -> dict[str, Callable]:
    """FlashAttention-4 (CuTe DSL), which wants heads before the last axis; empty where it is not installed.

    It runs on Hopper, too. Causal, its last query sees every key, as ours does.
    """
    if find_spec("flash_attn") is None:
        return {}

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        from flash_attn.cute import flash_attn_func

        found = flash_attn_func(*(each.transpose(1, 2) for each in (q, k, v)), causal=causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return {"FlashAttention-4": attention}


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Each has a gradient."""
    if name != "flash_attention" or not runtime.has_gpu():
        return {}
    q, _, _, causal = inputs
    backends = {label: by_backend(backend) for label, backend in BACKENDS.items()}
    return backends | {"Flex": flex(q, causal)} | flash_attention_4()
