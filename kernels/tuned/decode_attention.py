"""flash_attention of few queries over many keys: cut into splits of the keys, as paged_attention has them in pages.

The plain kernel and the Hopper kernel give a block of queries one program. With one query and 32 heads that is 32
programs, and the query heads of a group read its keys once each. The two kernels of kernels/tiled/paged_attention.py
fill the GPU, and read each key once; here without pages, the keys of sequence i being page i.
"""

from torch import Tensor

from kernels.tiled.paged_attention import MAX_ROWS, attend_in_splits
from kernels.variants import tuned

MAX_QUERIES = 16
MIN_KEYS = 1024  # the second launch pays off from here


def takes(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Return whether there are 1 to 16 queries, of 16 bits, for 1024 keys or more."""
    (_, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    few = 1 <= queries <= MAX_QUERIES and heads // max(1, kv_heads) * queries <= MAX_ROWS
    return q.dtype.itemsize == 2 and few and keys >= MIN_KEYS


@tuned(
    "flash_attention",
    "forward",
    takes=takes,
    gain="one query: 4.1x at 64 x 2048 keys, 16x at 1 x 65536, 96x at 1 x 131072 with one key head (H100, bf16)",
)
def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    return attend_in_splits(q, k, v, None, None, causal, scale)
