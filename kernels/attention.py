"""What attention kernels share: keys that a query sees, the order of programs, how many share a sum, a head's tiles."""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, check_option, check_together, next_power_of_2, refuse
from kernels.descriptors import load_rows, padded_empty, store_values

LEAST = tl.constexpr(-(2.0**120))  # times a scale of up to 2**7 still finite in fp32, and any score is lost in it
LEAST_STEPS = 10  # of a part: what starting it, storing it in fp32 and adding it to the others takes, in steps


@triton.jit
def seen_keys(start, queries, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """Of the BLOCK_M queries from `start` on: where the keys end that any sees (at 0 or before: none does), the last
    key that each sees, negative for one that sees none, and how many of the first keys all see."""
    if CAUSAL:
        end = tl.minimum(keys, start + BLOCK_M + keys - queries)
        # One sum before the splat. Where warps take roles, Triton 3.6 and 3.7 halve the rows by adding to the place of
        # a load, `start`; whatever is made of that very value alone gets the addition a second time.
        last = tl.minimum((start + keys - queries) + tl.arange(0, BLOCK_M), keys - 1)
        by_all = tl.minimum(start + 1 + keys - queries, keys)
    else:
        end = keys
        last = tl.full((BLOCK_M,), 0, tl.int32) + (keys - 1)
        by_all = keys
    return end, last, by_all


@triton.jit
def hide(s, n, last, by_all, ROLES: tl.constexpr):
    """The scores s of the keys from n on, -inf for those after a row's last; the first `by_all` keys all rows see."""
    # Not `arange <= last - n`: Triton 3.6 and 3.7 would keep every column's number in a register throughout the loop.
    visible = (n + tl.arange(0, s.shape[1]))[None, :] <= last[:, None]
    if ROLES:  # Triton 3.6 and 3.7 give warps none around a branch
        return tl.where(visible, s, -float("inf"))
    if n + s.shape[1] > by_all:
        s = tl.where(visible, s, -float("inf"))
    return s


@triton.jit
def unscaled(given, SCALE: tl.constexpr, COMPUTE: tl.constexpr):
    """The floating-point mask `given` over SCALE, to be added to scores before they are scaled.

    LEAST stands for what is finite and below, such as the least number of the dtype: over SCALE it would be -inf,
    and a row that hides all keys so is the mean of them, not empty.
    """
    given = given.to(COMPUTE)
    over = given * (1 / SCALE)
    return tl.where((given > -float("inf")) & (over < LEAST), LEAST, over)


@triton.jit
def store_part(x_ptr, value, part, start, rows, D: tl.constexpr):
    """Store (ROWS, BLOCK_D) from the row `start` on of one part of x, contiguous (parts, rows, D).

    Not through a descriptor: where warps take roles it would want shared memory of its own, which fp32 does not leave.
    """
    first = x_ptr + (part.to(tl.int64) * rows + start) * D
    row, col = tl.arange(0, value.shape[0])[:, None], tl.arange(0, value.shape[1])[None, :]
    tl.store(first + (row * D + col), value, mask=(row < rows - start) & (col < D))


@triton.jit
def delta_kernel(
    out_desc,  # (batch, heads, queries, D) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    grad_desc,  # the same
    delta_desc,  # (batch, heads, queries) of COMPUTE in tiles of (1, 1, BLOCK_M)
    heads,
    queries,
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """sum(grad out) of each row."""
    blocks = tl.cdiv(queries, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    b, h = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    out = load_rows(out_desc, b, h, start, queries, D, BLOCK_M, BLOCK_D, False).to(COMPUTE)
    grad = load_rows(grad_desc, b, h, start, queries, D, BLOCK_M, BLOCK_D, False).to(COMPUTE)
    store_values(delta_desc, tl.sum(out * grad, axis=1), b, h, start, queries, False)


@triton.jit
def scale_kernel(
    x_desc,  # (batch, heads, rows, D) in tiles of (1, 1, BLOCK_M, BLOCK_D), fp32
    y_desc,  # the same, of any dtype
    heads,
    rows,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """y = x SCALE"""
    blocks = tl.cdiv(rows, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    b, h = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    y_desc.store([b, h, start, 0], (x_desc.load([b, h, start, 0]) * SCALE).to(y_desc.dtype))


@triton.jit
def longest_first(blocks, CAUSAL: tl.constexpr):
    """Which head this program serves, and which of its `blocks` blocks of rows, the longest being 0.

    Causal: the longest of several heads first, so that the last programs to finish are short. Of several only: those
    heads' k and v are to stay in L2.
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


def head_settings(table: dict[int, tuple], dim: int, dtype: torch.dtype, hopper: bool) -> dict:
    """Launch settings of a kernel for heads of `dim`.

    Args:
        table: for 16-bit heads up to 64, 128 and 256 on a GPU of compute capability 9.0: BLOCK_M, the rows that stay,
            BLOCK_N, those that pass by, whether warps take roles, and num_warps.
        hopper: whether it is such a GPU. Earlier ones take what spills little; fp32 and fp64, which tensor cores do
            not multiply exactly, are there to be exact, not fast.
    """
    block_d = max(16, next_power_of_2(dim))
    roles, warps = False, 8 if block_d > 128 else 4
    if dtype.itemsize > 2:
        block_m = block_n = 32 if dtype.itemsize == 4 and block_d <= 64 else 16
    elif not hopper:
        block_m, block_n, warps = 32 if block_d > 128 else 64, 32, 8 if block_d > 64 else 4
    else:
        block_m, block_n, roles, warps = table[max(64, block_d)]
    return {
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "D": dim,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROLES": roles,
        "num_warps": warps,
        "num_stages": 2,
    }


@cache
def parts_of(programs: int, steps: int, at_once: int, causal: bool) -> int:
    """How many programs share a block of keys.

    Args:
        programs: blocks of keys, of all key heads.
        steps: what one walks over at most, tiles of queries of all its query heads.
        at_once: programs that run at a time.
        causal: lengths are then spread evenly from nothing to `steps`, and programs start from the longest.
    """
    if programs >= 2 * at_once:
        return 1

    def time(parts: int) -> float:
        count, longest = programs * parts, steps / parts
        if causal:
            mean = longest / 2 + LEAST_STEPS
            return max(longest, mean * (count / at_once + 0.5))
        return (longest + LEAST_STEPS) * cdiv(count, at_once)

    return min(range(1, max(1, steps // LEAST_STEPS) + 1), key=time)


def is_hopper(x: torch.Tensor) -> bool:
    """Whether x's GPU is of compute capability 9.0, as the reference GPU is that stands in where there is none."""
    return not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] == 9


def value_per_row(x: torch.Tensor) -> torch.Tensor:
    """Uninitialised: one value a row of x, (batch, heads, rows), in the dtype of the arithmetic."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return padded_empty(x.shape[:3], x.new_empty(0, dtype=dtype))


def check_heads(operation: str, scale: float | None, enable_gqa: bool, more: dict, **tensors: torch.Tensor) -> None:
    """Check what attention asks of q and of k, and of v where it is given.

    Raises:
        TypeError: as check_together, an option of another type, or `more` (options.refuse).
        ValueError: as check_together, shapes that do not fit, a head wider than 256, or a scale that is not positive.
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
        wrong = "as many heads of k as of q where enable_gqa is False", "leave it out"
    if wrong is not None:
        shapes = ", ".join(f"{name} of {tuple(x.shape)}" for name, x in tensors.items())
        raise ValueError(f"{operation} takes {wrong[0]}, got {shapes}: {wrong[1]}")
    check_option(operation, "scale", scale, float, optional=True)
    if scale is not None and scale <= 0:
        raise ValueError(f"{operation} takes a positive scale, got {scale}: negate q for a negative one")


def check_mask(operation: str, mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> None:
    """Check that mask, where it is given, fits the scores of q, (batch, heads, queries, dim), and k.

    Raises:
        TypeError: neither bool nor floating-point.
        ValueError: a shape that does not broadcast to (batch, heads, queries, keys), or another device than q's.
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
