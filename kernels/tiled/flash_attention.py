"""Attention without its matrix:  out = softmax(q k^T scale) v, a query seeing all keys or none after its own.

Written out in PyTorch, N x N numbers a head go through memory, six times:

    unfused   product: write s | scale: read s, write s | softmax: read s, write p | product: read p, write out
                                                                    12 N^2 + 8 N d B a head in 16 bits, four launches
    fused     read q, k and v, write out; s and p live in registers, a tile at a time         8 N d B, one launch

At 4096 tokens and heads of 128 that is 206 MB a head against 4 MB, and linear in N. A program owns BLOCK_M queries and
walks over the keys, with the softmax as kernels/online_softmax.py has it: a running maximum and sum, and the output so
far shrunk whenever the maximum grows. Each program reads k and v again; it does so from L2, where its neighbours of the
same head have them too. Heads of 65 to 256 on compute capability 9.0, and those of 33 to 64 that have few keys, go to
flash_attention_hopper.py. The backward pass is in flash_attention_backward.py; of the forward it needs the log-sum-exp
of each row, all that training keeps.

Source: Dao et al., arXiv:2205.14135; Dao, arXiv:2307.08691; the warps' roles: Shah et al., arXiv:2407.08608.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs, descriptors
from kernels.arguments import as_autocast_says, cdiv
from kernels.attention import check_heads, head_settings, hide, is_hopper, longest_first, seen_keys, value_per_row
from kernels.descriptors import describable, described, load_rows, of_rows, padded_empty, store_rows, store_values
from kernels.online_softmax import LOG2_E
from kernels.op import FusedOp, Work, like, planned, register
from kernels.tiled import flash_attention_hopper
from kernels.tiled.flash_attention_backward import backward, backward_work

TILES = {  # heads up to so many columns: BLOCK_M queries, BLOCK_N keys at a time, whether warps take roles, warps
    64: (64, 128, False, 4),  # three programs on a multiprocessor hide one another's exponentials
    128: (128, 128, True, 4),  # one fills it: four warps fetch, four compute exponentials while four others multiply
    256: (128, 64, False, 8),  # what the registers hold
}


@triton.jit
def flash_attention_kernel(
    q,  # (batch, heads, queries, D) in tiles of (BLOCK_M, BLOCK_D), as load_rows takes it
    k_desc,  # (batch, heads // group, keys, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    v_desc,  # the same
    out,  # as q
    lse,  # (batch, heads, queries) of COMPUTE, in tiles of (BLOCK_M,), or None where no backward pass will ask for it
    heads,
    group,  # query heads a key head
    queries,
    keys,
    SCALE: tl.constexpr,  # of the scores
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile may hold keys that some row must not see
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROLES: tl.constexpr,  # whether some warps only load, and the others halve the rows
):
    blocks = tl.cdiv(queries, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = (blocks - 1 - block) * BLOCK_M  # programs near the end see the most keys
    b, h = head // heads, head % heads
    q = load_rows(q, b, h, start, queries, D, BLOCK_M, BLOCK_D, ROLES)
    end, last, by_all = seen_keys(start, queries, keys, CAUSAL, BLOCK_M)
    peak = tl.full((BLOCK_M,), -float("inf"), COMPUTE)
    # Eight sums a row, each in one thread: only at the end do threads add up a row's together. Larger heads and wider
    # types leave no registers for that, and where warps take roles, the compiler could not halve such sums.
    APART: tl.constexpr = BLOCK_D <= 64 and v_desc.dtype.primitive_bitwidth == 16
    total = tl.zeros((BLOCK_M, 8) if APART else (BLOCK_M,), COMPUTE)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N, warp_specialize=ROLES):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
        if MASKED:
            s = hide(s, n, last, by_all, ROLES)
        if APART:  # v is waited for here, not amid the arithmetic
            v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        higher = tl.maximum(peak, tl.max(s, axis=1) * (SCALE * LOG2_E))
        # A row that has seen no key yet, or scores of -inf alone, would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        # The scale is folded into the exponent's one multiply-add; exponentials are powers of two, as the GPU's are.
        p = tl.exp2(s * (SCALE * LOG2_E) - base[:, None])
        shrink = tl.exp2(peak - base)
        if APART:
            total = total * shrink[:, None] + tl.sum(p.reshape(BLOCK_M, BLOCK_N // 8, 8), axis=1)
        else:
            total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        if not APART:
            v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee", out_dtype=COMPUTE)
        peak = higher
    if APART:
        total = tl.sum(total, axis=1)
    store_rows(out, acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None], b, h, start, queries, D, ROLES)
    if lse is not None:
        # In base 2. A row that sees no key has inf, which makes every p of the backward pass 0.
        store_values(lse, tl.where(total == 0, float("inf"), peak + tl.log2(total)), b, h, start, queries, ROLES)


def settings(dim: int, dtype: torch.dtype, hopper: bool = True) -> dict:
    """Launch settings of flash_attention_kernel, by TILES."""
    return head_settings(TILES, dim, dtype, hopper)


def _launch(q, k, v, out, lse, causal: bool, scale: float | None, chosen: dict) -> tuple[tuple, dict]:
    """The kernel's arguments and options, for tensors that descriptors can tell of."""
    rows, wide, roles = chosen["BLOCK_M"], chosen["BLOCK_D"], chosen["ROLES"]
    stay = [of_rows(x, [rows, wide], roles) for x in (q, out)]
    pass_by = [described(x, [1, 1, chosen["BLOCK_N"], wide]) for x in (k, v)]
    sizes = q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    masked = causal or k.shape[2] % chosen["BLOCK_N"] > 0
    options = {"SCALE": q.shape[3] ** -0.5 if scale is None else scale, "CAUSAL": causal, "MASKED": masked, **chosen}
    return (stay[0], *pass_by, stay[1], None if lse is None else of_rows(lse, [rows], roles), *sizes), options


def _run(q, k, v, causal: bool, scale: float | None, lse: Tensor | None) -> Tensor:
    batch, heads, queries, dim = q.shape
    if q.numel() == 0 or k.shape[2] == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    out = padded_empty(q.shape, q)
    given = describable(q), describable(k), describable(v), out, lse, causal, scale
    with torch.cuda.device_of(q):
        if flash_attention_hopper.takes(q, k):
            flash_attention_hopper.launch(*given)
        else:
            arguments, options = _launch(*given, settings(dim, q.dtype, is_hopper(q)))
            descriptors.lend_scratch()
            flash_attention_kernel[(cdiv(queries, options["BLOCK_M"]) * batch * heads,)](*arguments, **options)
    return out.contiguous()


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    return _run(q, k, v, causal, scale, None)


def _training(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    lse = value_per_row(q)
    return _run(q, k, v, causal, scale, lse), lse


flash_attention_op = register(
    "flash_attention",
    _forward,
    lambda q, *_: like(q),
    training=_training,
    training_fake=lambda q, *_: (like(q), value_per_row(q)),
    keep=lambda arguments, result: (*arguments[:3], *result, *arguments[3:]),
    backward=backward,
    backward_fake=lambda grad, q, k, v, *_: (like(q), like(k), like(v)),
)


@planned
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, enable_gqa: bool = True, **more
) -> Tensor:
    """softmax(q k^T scale) v in one launch and without its matrix, differentiable once.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that do not
            start at multiples of 16 bytes, or whose elements are not side by side, are copied first.
        k, v: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: query i sees key j if j - keys <= i - queries: the last sees every key, each before it one less.
        scale: of the scores, positive; 1 / sqrt(dim) where not given. The kernel is compiled for each.
        enable_gqa: whether k may have fewer heads than q, as PyTorch asks; it costs nothing.

    Returns:
        A contiguous tensor of q's shape and dtype, the autocast dtype under autocast. Products are summed in fp32 (fp64
        for fp64 inputs; fp32 inputs are not rounded to tf32), the probabilities rounded to q's dtype before the second
        one. A query that sees no key gets 0.
        Gradients by q of 16-bit heads of 33 to 128 may differ in their last bits from run to run on compute capability
        9.0, as PyTorch's own do; not under torch.use_deterministic_algorithms(True).

    Raises:
        TypeError: q, k or v is not a floating-point tensor, the dtypes differ, or `more` is given (options.INSTEAD).
        ValueError: misfit shapes, a scale that is not positive, two devices, or tensors on the CPU beside a GPU.
    """
    q, k, v = as_autocast_says(q, k, v)
    check_heads("flash_attention", scale, enable_gqa, more, q=q, k=k, v=v)
    return flash_attention_op(q, k, v, causal, scale)


class FlashAttention(torch.nn.Module):
    """flash_attention as a module: `causal` and `scale` are kept, q, k and v are given."""

    def __init__(self, causal: bool = False, scale: float | None = None):
        super().__init__()
        self.causal, self.scale = causal, scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, self.causal, self.scale)

    def extra_repr(self) -> str:
        return f"causal={self.causal}, scale={self.scale}"


def flash_attention_reference(q, k, v, causal: bool = False, scale: float | None = None) -> Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    if k.shape[1] not in (0, q.shape[1]):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    s = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if not causal:
        return torch.softmax(s, dim=-1) @ v
    queries, keys = s.shape[-2:]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=s.device).tril(keys - queries)
    p = torch.softmax(s.masked_fill(~seen, -torch.inf), dim=-1)
    return torch.where(seen.any(dim=-1, keepdim=True), p, 0.0) @ v


def flash_attention_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (batch, heads, tokens, dim, causal): two products, 4 dim operations for each pair of a
    query and a key that it sees; q, k and v in once, the output out once."""
    batch, heads, tokens, dim, causal = shape
    pairs, size = tokens * (tokens + 1) // 2 if causal else tokens**2, batch * heads * tokens * dim * dtype.itemsize
    return Work(flops=costs.attention(batch * heads * pairs, dim), bytes_read=3 * size, bytes_written=size)


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    return *(torch.randn(batch, heads, tokens, dim, **options) for _ in range(3)), bool(causal)


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    x = torch.empty(shape[:4], dtype=dtype, device="meta")
    return _launch(x, x, x, x, None, shape[4], None, settings(shape[3], dtype))


OP = FusedOp(
    name="flash_attention",
    fused=flash_attention,
    reference=flash_attention_reference,
    work=flash_attention_work,
    kernel=flash_attention_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1, 1, False), (1, 2, 5, 36, True), (2, 1, 129, 16, False), (1, 1, 40, 4, True)),
    gpu_shapes=tuple(
        (*shape, causal)
        for shape in ((4, 16, 4096, 128), (2, 16, 8192, 128), (4, 32, 4096, 64), (1, 16, 16384, 128))
        for causal in (False, True)
    ),
    backward_work=backward_work,
)
