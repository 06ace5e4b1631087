"""Code shared by the attention kernels: program order, visible keys, tile sizes and argument checks."""

import torch
import triton
import triton.language as tl

from kernels.arguments import check_option, check_together, next_power_of_2, refuse
from kernels.descriptors import padded_empty

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x LOG2_E); GPUs only have exp2


@triton.jit
def longest_first(blocks, CAUSAL: tl.constexpr):
    """Return this program's head, and its block of rows out of the head's `blocks`, from 0 for the longest.

    Causal programs differ in length: the longest ones of several heads start first, so that the last to finish are
    short. Only heads whose k and v fit in L2 together are mixed.
    """
    pid = tl.program_id(0)
    if CAUSAL:
        side = tl.maximum(512 // blocks, 1)
        first = pid // (side * blocks) * side
        side = tl.minimum(side, tl.num_programs(0) // blocks - first)
        at = pid - first * blocks
        head, block = first + at % side, at // side
    else:
        head, block = pid // blocks, pid % blocks
    return head, block


@triton.jit
def visible_keys(start, queries, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return, for the BLOCK_M queries starting at `start`: the end of the keys that any of them sees (0 or less: none),
    the last key that each sees, (BLOCK_M,), negative for none, and how many of the first keys all of them see."""
    if CAUSAL:
        end = tl.minimum(keys, start + BLOCK_M + keys - queries)
        last = tl.minimum(start + tl.arange(0, BLOCK_M) + keys - queries, keys - 1)
        by_all = tl.minimum(start + 1 + keys - queries, keys)
    else:
        end = keys
        last = tl.full((BLOCK_M,), 0, tl.int32) + (keys - 1)
        by_all = keys
    return end, last, by_all


def tile_settings(tiles: dict[int, tuple[int, int, int]], dim: int, dtype: torch.dtype, large: bool) -> dict:
    """Return launch settings for head dim `dim`.

    Args:
        tiles: the largest `dim`, 64, 128 or 256 -> BLOCK_M, the rows that a program owns, BLOCK_N, the rows that it
            loops over, and num_warps. Used for 16 bits if tiles may be `large`.
        large: whether a program may use 227 KB of shared memory. Otherwise tiles are small enough to spill little, as
            they are for fp32 and fp64. Tensor cores would not multiply these exactly, and these dtypes are meant to be
            exact, not fast.
    """
    block_d = max(16, next_power_of_2(dim))
    if dtype.itemsize > 2:
        side = 32 if dtype.itemsize == 4 and block_d <= 64 else 16
        block_m, block_n, warps = side, side, 8 if block_d > 128 else 4
    elif large:
        block_m, block_n, warps = tiles[max(64, block_d)]
    else:
        block_m, block_n, warps = 32 if block_d > 128 else 64, 32, 8 if block_d > 64 else 4
    return {
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "num_warps": warps,
        "num_stages": 2,
    }


def value_per_row(x: torch.Tensor) -> torch.Tensor:
    """Allocate one value per row of x, (batch, heads, rows), in the dtype of the arithmetic."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return padded_empty(x.shape[:3], x.new_empty(0, dtype=dtype))


def check_heads(
    operation: str, causal: bool, scale: float | None, enable_gqa: bool, more: dict, **tensors: torch.Tensor
) -> None:
    """Check q, k, v if given, and attention's options.

    Raises:
        TypeError: as check_together, an option has another type, or `more` is given (arguments.refuse).
        ValueError: as check_together, shapes do not match, the head dim exceeds 256, or scale is not a positive normal
            fp32 number.
    """
    refuse(operation, more)
    check_option(operation, "enable_gqa", enable_gqa, bool)
    check_together(operation, **tensors)
    q, k, *rest = tensors.values()
    wrong = None
    if any(x.dim() != 4 for x in tensors.values()):
        wrong = "(batch, heads, tokens, dim)", "add or join dimensions"
    elif q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or any(x.shape != k.shape for x in rest):
        wrong = "one batch and dim, k and v alike", "expand or slice them"
    elif not 1 <= q.shape[3] <= 256:
        wrong = "heads of dim 1 to 256", "split them"
    elif q.shape[1] % max(1, k.shape[1]) or (q.shape[1] and not k.shape[1]):
        wrong = "heads of q in multiples of those of k", "repeat those of k"
    elif not enable_gqa and q.shape[1] != k.shape[1]:
        wrong = "as many heads of k as of q if enable_gqa is False", "leave it out"
    if wrong is not None:
        shapes = ", ".join(f"{name} of {tuple(x.shape)}" for name, x in tensors.items())
        raise ValueError(f"{operation} takes {wrong[0]}, got {shapes}: {wrong[1]}")
    check_option(operation, "scale", scale, float, optional=True)
    if scale is not None and scale <= 0:
        check_option(operation, "causal", causal, bool)
        raise ValueError(f"{operation} takes a positive scale, got {scale}: negate q for a negative one")
    if scale is not None and q.dtype != torch.float64 and not 2.0**-126 <= scale < 2.0**127:
        raise ValueError(f"{operation} takes a scale of 2^-126 to 2^127, fp32's range, got {scale}: scale q instead")


def check_mask(operation: str, mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> None:
    """Check that mask, if given, fits the scores of q, (batch, heads, queries, dim), and k.

    Raises:
        TypeError: it is neither bool nor floating-point.
        ValueError: it does not broadcast to (batch, heads, queries, keys), or is not on q's device.
    """
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        kind = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"{operation} takes mask as a bool or floating-point tensor, got {kind}: convert it")
    shape = (*q.shape[:3], k.shape[2])
    fits = mask.dim() <= 4 and all(
        size in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{operation} takes mask of a shape that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}: reshape it"
        )
    if mask.device != q.device:
        raise ValueError(
            f"{operation} takes tensors on one device, got q on {q.device} and mask on {mask.device}: "
            f"move one with .to(device)"
        )
