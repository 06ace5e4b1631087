"""FlashInfer's paged decode attention and its sampler, if installed.

The course does not depend on it: `pip install flashinfer-python` adds the column. It compiles its kernels with nvcc at
the first call. vLLM's attention and samplers are FlashInfer's or FlashAttention's, so vLLM itself is not timed here.
FlashInfer has no single operation for rope_cache: rotation and the cache write are two. Its sampler creates a random
generator in the call, which fails in a CUDA graph, so the sweep times it with queued calls.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch

from kernels.interpreter import runtime

WORKSPACE = 128 * 2**20  # bytes, as its documentation recommends for a wrapper


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return its decode of one query per sequence, and its draw from all tokens."""
    makers = {"paged_attention": _decode, "sample": _draw}
    if name not in makers or find_spec("flashinfer") is None or not runtime.has_gpu():
        return {}
    try:
        return {"FlashInfer": makers[name](*inputs)}
    except Exception as error:  # from its compiler, or an unsupported size: record it in the row
        return {"FlashInfer": _refuse(error)}


def _decode(q, k_cache, v_cache, block_table, lengths) -> Callable:
    """Return the decode call. Its plan, made once per step for all layers on the CPU, is not timed."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    if q.shape[2] != 1:
        raise ValueError("its decode wrapper takes one query per sequence")
    sequences, heads, _, dim = q.shape
    kv_heads, page = k_cache.shape[1:3]
    each = torch.div(lengths + page - 1, page, rounding_mode="floor")
    starts = torch.zeros(sequences + 1, dtype=torch.int32, device=q.device)
    starts[1:] = each.cumsum(0)
    pages = torch.cat([row[:count] for row, count in zip(block_table, each.tolist(), strict=True)])
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=q.device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=heads // kv_heads > 1)
    last = lengths - (each - 1) * page
    wrapper.plan(starts, pages, last.int(), heads, kv_heads, dim, page, q_data_type=q.dtype, kv_data_type=k_cache.dtype)
    return lambda q, k, v, *_: wrapper.run(q[:, :, 0], (k, v))[:, :, None]


def _draw(logits, seed, temperature=1.0, top_k=0, top_p=1.0) -> Callable:
    """Return its draw. Its Gumbel-max kernel takes fp32 logits and no temperature: we convert and divide first."""
    from flashinfer.sampling import sampling_from_logits

    if top_k or top_p < 1:
        raise ValueError("with a filter it draws with another kernel, which is not timed here")
    return lambda x, *_: sampling_from_logits(x.float() / temperature)


def _refuse(error: Exception) -> Callable:
    def call(*_) -> None:
        raise error

    return call
