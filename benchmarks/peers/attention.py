"""Attention's peers: PyTorch's, by backend, compiled FlexAttention, and FlashAttention-4.

The course does not depend on FlashAttention-4: `pip install flash-attn-4` adds the column. The peers of paged_attention
get each sequence's keys contiguously, already gathered from the pages.
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
    """Return scaled_dot_product_attention restricted to this backend. Its causal mask starts at the top left."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return attention


def flex(q: torch.Tensor, k: torch.Tensor, causal: bool) -> Callable:
    """Return FlexAttention compiled for these shapes; its block mask, the list of tiles to skip, is made once.

    Causal, its last query sees every key, as ours does.
    """
    (queries, keys), grouped = (q.shape[2], k.shape[2]), q.shape[1] != k.shape[1]
    mask = None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i + keys - queries >= j, None, None, queries, keys, device=q.device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, causal=False: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


def flash_attention_4() -> dict[str, Callable]:
    """Return FlashAttention-4 (CuTe DSL), which takes heads before the last axis; empty if it is not installed.

    It also runs on Hopper. Causal, its last query sees every key, as ours does.
    """
    if find_spec("flash_attn") is None:
        return {}

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        from flash_attn.cute import flash_attn_func

        found = flash_attn_func(*(each.transpose(1, 2) for each in (q, k, v)), causal=causal)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return {"FlashAttention-4": attention}


def in_a_row(cache: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
    """Return all sequences' keys, each with as many full pages, as (sequences, kv_heads, keys, dim)."""
    return cache[block_table.long()].transpose(1, 2).flatten(2, 3)


def decoding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable]:
    """Return the peers of a causal call for the last tokens; they ignore all arguments except q."""
    flash, masked = by_backend(SDPBackend.FLASH_ATTENTION), flex(q, k, causal=True)
    return {
        "FlashAttention-2": lambda q, *_: flash(q, k, v),  # no mask: with several queries it does a little more work
        "Flex": lambda q, *_: masked(q, k, v),
    }


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return the peers; those of flash_attention have a gradient."""
    if name == "paged_attention" and runtime.has_gpu():
        q, k_cache, v_cache, block_table, _ = inputs
        return decoding(q, in_a_row(k_cache, block_table), in_a_row(v_cache, block_table))
    if name != "flash_attention" or not runtime.has_gpu():
        return {}
    q, k, _, causal = inputs
    backends = {label: by_backend(backend) for label, backend in BACKENDS.items()}
    return backends | {"Flex": flex(q, k, causal)} | flash_attention_4()
