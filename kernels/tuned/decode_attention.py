"""Tuned flash_attention for few queries and many keys: split the keys over programs, as paged_attention does.

The plain kernel and the Hopper kernel run one program per block of queries. With one query and 32 heads that is 32
programs, and each query head of a group reads the group's keys again. The two kernels in
kernels/tiled/paged_attention.py fill the GPU and read each key once. They run here without a block table: the keys of
sequence i are page i.
"""

from torch import Tensor

from kernels.tiled.paged_attention import MAX_ROWS, attend_in_splits
from kernels.variants import tuned

MAX_QUERIES = 16
MIN_KEYS = 1024  # the second launch pays off from here


def takes(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Return whether there are 1 to 16 queries, in 16 bits, and at least 1024 keys."""
    (_, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    few = 1 <= queries <= MAX_QUERIES and heads // max(1, kv_heads) * queries <= MAX_ROWS
    return q.dtype.itemsize == 2 and few and keys >= MIN_KEYS


@tuned(
    "flash_attention",
    "forward",
    takes=takes,
    gain="one query: 4.4x at 64 x 2048 keys, 16x at 1 x 65536, 100x at 1 x 131072 with one key head (H100, bf16)",
)
def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    return attend_in_splits(q, k, v, None, None, causal, scale)
