"""Draw one token per row of logits: temperature, top-k, top-p and the draw itself, in one launch.

    unfused   divide by T | softmax | sort | cumulative sum | mask | draw      at least six launches, one of them a sort
    fused     read the logits, write one index per row                         2 B/element in 16 bits, plus L2 rereads

A draw from a softmax needs no softmax (the Gumbel-max trick): with e_i exponential random numbers,

    argmax_i  x_i / T - log(e_i)  =  argmax_i  exp(x_i / T) / e_i      equals i with probability softmax(x / T)_i

The second form needs one logarithm less, and the sum needs those exponentials anyway.

The filters don't need a sort either. Token i is kept if fewer than top_k tokens have a larger logit, and if their share
of the probability is below top_p. One pass over the row counts both for one candidate. So the kernel draws from all
tokens and checks the candidate. If it isn't kept, the kernel draws again from the tokens with larger logits, because no
token below a rejected one is kept either. Accepted tokens have the right distribution, because every draw is
proportional to the probabilities. The pass that checks one candidate also draws the next. With top_p = 0.9, nine first
candidates in ten are kept.

Random numbers come from Philox (kernels/philox.py) and depend only on seed, row, column and round.

Source: Maddison et al., arXiv:1411.0030 (Gumbel-max); rejection from above a pivot as in FlashInfer, arXiv:2501.01005.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, check_alike, check_columns, check_option, next_power_of_2
from kernels.op import FusedOp, Work, planned, register
from kernels.philox import check_dropout, new_seed, philox

MAX_LANES = 1024
MIN_TEMPERATURE = 0.01  # 0 is greedy; in between, rounding errors in the logits would decide


@triton.jit
def exponentials(seed, row, start, round, LANES: tl.constexpr):
    """Return exponential random numbers for LANES times four columns of this row, from `start`, a multiple of 4."""
    zero = tl.zeros((LANES,), tl.uint32)
    four = (start // 4 + tl.arange(0, LANES)).to(tl.uint32)
    r0, r1, r2, r3 = tl.philox(seed, four, row.to(tl.uint32) + zero, (row >> 32).to(tl.uint32) + zero, round + zero)
    bits = tl.reshape(tl.join(tl.join(r0, r2), tl.join(r1, r3)), (LANES, 4))  # r0, r1, r2, r3 side by side
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    # -log(1 - u). The smallest win, and 1 - u would round them to multiples of 2^-24.
    return tl.where(u < 0.001, u + 0.5 * u * u, -tl.log(1.0 - u))


@triton.jit
def better(best, token, score, start):
    """Return each lane's best score and its token, with the scores, (LANES, 4), of columns from `start` included."""
    highest, at = tl.max(score, axis=1, return_indices=True)
    token = tl.where(highest > best, start + 4 * tl.arange(0, score.shape[0]) + at, token)
    return tl.maximum(best, highest), token


@triton.jit
def first_of_best(best, token, cols):
    """Return the token of the best score, of equals the first."""
    return tl.min(tl.where(best == tl.max(best, axis=0), token, cols), axis=0)


@triton.jit
def sample_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    token_ptr,  # (rows,) int64
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    inverse_temperature,
    top_k,  # at least 1
    top_p,  # 0 to 1, or above 1 where it keeps everything
    GREEDY: tl.constexpr,  # the largest logit, without a draw
    FILTER: tl.constexpr,  # whether top_k or top_p may refuse a token
    LANES: tl.constexpr,  # of four neighbouring columns each: as many as a call of Philox serves
):
    row = tl.program_id(0).to(tl.int64)  # int64: row * stride passes 2**31 on large tensors
    x_ptr += row * x_row_stride
    seed = tl.load(seed_ptr)
    place = 4 * tl.arange(0, LANES)[:, None] + tl.arange(0, 4)[None, :]
    # Each lane has a peak, a total and a best token of its own: none waits for another before the row's end.
    peak, total = tl.full((LANES,), -float("inf"), tl.float32), tl.zeros((LANES,), tl.float32)
    best, token = peak if GREEDY else total, tl.zeros((LANES,), tl.int32)
    for start in range(0, cols, 4 * LANES):
        x = tl.load(x_ptr + start + place, mask=start + place < cols, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # -inf - -inf would be NaN
        # Scores are relative to the peak, as the sum is: both move with it, and large logits lose no digits.
        lower, z = (peak - base) * inverse_temperature, (x - base[:, None]) * inverse_temperature
        peak, p = higher, tl.exp(z)
        total = total * tl.exp(lower) + tl.sum(p, axis=1)
        if GREEDY:
            best, token = better(best + lower, token, z, start)
        else:
            best, token = better(best * tl.exp(lower), token, p / exponentials(seed, row, start, 0, LANES), start)
    top = tl.max(peak, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    lower = (peak - base) * inverse_temperature
    total = tl.sum(total * tl.exp(lower), axis=0)
    defined = total > 0.0  # NaN where a logit is NaN or inf, 0 where all are -inf
    drawn = first_of_best(best + lower if GREEDY else best * tl.exp(lower), token, cols)
    if FILTER:
        round, searching = 1, defined
        while searching:
            pivot = tl.load(x_ptr + drawn).to(tl.float32)
            count, mass = tl.zeros((LANES,), tl.int32), tl.zeros((LANES,), tl.float32)
            best, token = tl.zeros((LANES,), tl.float32), tl.zeros((LANES,), tl.int32)
            for start in range(0, cols, 4 * LANES):
                x = tl.load(x_ptr + start + place, mask=start + place < cols, other=-float("inf")).to(tl.float32)
                p = tl.where(x > pivot, tl.exp((x - top) * inverse_temperature), 0.0)
                count += tl.sum((x > pivot).to(tl.int32), axis=1)
                mass += tl.sum(p, axis=1)
                best, token = better(best, token, p / exponentials(seed, row, start, round, LANES), start)
            count, mass = tl.sum(count, axis=0), tl.sum(mass, axis=0)
            kept = (count == 0) | ((count < top_k) & (mass < top_p * total))
            drawn = tl.where(kept, drawn, first_of_best(best, token, cols))
            round, searching = round + 1, kept == 0
    tl.store(token_ptr + row, tl.where(defined, drawn, -1).to(tl.int64))


def settings(cols: int) -> dict:
    """Return LANES and num_warps for rows of `cols` columns: a lane is a thread.

    On an H100, a row of 131072 takes 50 us. Finding each chunk's best at once took 67 us; keeping each lane's best, 59;
    the rest comes from a division instead of a second logarithm. 16 columns per lane took 59 us (66 for 40 at 50257).
    """
    lanes = min(MAX_LANES, next_power_of_2(cdiv(max(1, cols), 4)))
    return {"LANES": lanes, "num_warps": max(1, lanes // 32)}


def _result(logits: torch.Tensor, *_) -> torch.Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


def _forward(logits: torch.Tensor, seed: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    tokens = _result(logits)
    if tokens.numel() == 0:
        return tokens
    x = as_rows(logits)
    rows, cols = x.shape
    top_k, top_p = min(top_k or cols, cols), 2.0 if top_p == 1 else top_p  # 2: a rounded sum can't reach it
    options = {"GREEDY": temperature == 0, "FILTER": temperature > 0 and (top_k < cols or top_p < 1)}
    with torch.cuda.device_of(x):
        sample_kernel[(rows,)](
            x, tokens, seed, cols, x.stride(0), 1.0 / (temperature or 1.0), top_k, top_p, **options, **settings(cols)
        )
    return tokens


sample_op = register("sample", _forward, _result)


@planned
def sample(
    logits: torch.Tensor, seed: torch.Tensor | None = None, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """Draw one token per row from softmax(logits / temperature), filtered by top_k and top_p. Not differentiable.

    Args:
        logits: tensor of shape (..., cols) in fp32, fp16 or bf16, any strides; non-adjacent columns are copied.
        seed: int64 tensor of one value, on logits' device; drawn from PyTorch's generator if not given. The same seed
            draws the same tokens. Each row has its own random numbers.
        temperature: 0 for the largest logit, the first of them on a tie; otherwise at least 0.01. Its inverse is
            rounded to fp32.
        top_k: keep a token if fewer than top_k have a larger logit, so all that tie with the k-th stay; 0: all.
        top_p: keep a token if those with a larger logit have less than top_p, as fp32, of the probability; 0 to 1. Both
            filters use the probabilities of all tokens. The most probable token always stays, with all that tie with
            it.

    Returns:
        int64 tensor of shape (...): a column's index, or -1 for a row without a softmax, which contains NaN or inf, or
        only -inf.

    Raises:
        TypeError: logits are not a tensor of these dtypes, or an option has another type.
        ValueError: rows have no column, an option is out of range, seed has more than one value or is on another
            device, or tensors on the CPU where kernels run on a GPU.
    """
    check_alike("sample", dtypes=OP.dtypes, logits=logits)
    check_columns("sample", logits)
    check_dropout("sample", logits, seed, 0.0)
    for name, value, kind in (("temperature", temperature, float), ("top_k", top_k, int), ("top_p", top_p, float)):
        check_option("sample", name, value, kind)
    if temperature != 0 and temperature < MIN_TEMPERATURE:
        raise ValueError(f"sample takes temperature of 0 (greedy) or 0.01 and above, got {temperature}: choose another")
    if top_k < 0:
        raise ValueError(f"sample takes top_k of 0 (all) or above, got {top_k}: choose another")
    if not 0 <= top_p <= 1:
        raise ValueError(f"sample takes top_p of 0 to 1, got {top_p}: choose one in that range")
    if logits.shape[-1] == 0 and logits.shape[:-1].numel():
        raise ValueError("sample takes rows of at least one column, got none: there is nothing to draw")
    return sample_op(logits, new_seed(logits.device) if seed is None else seed, temperature, top_k, top_p)


def sample_reference(
    logits: torch.Tensor, seed: torch.Tensor | None = None, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """Compute the same in PyTorch, unfused. Its own generator draws, and a sort decides which of equal logits stay."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    p, index = torch.softmax(logits.float() / temperature, dim=-1).sort(dim=-1, descending=True)
    before = p.cumsum(dim=-1) - p
    kept = (before < top_p) | (torch.arange(p.shape[-1], device=p.device) == 0)
    kept &= torch.arange(p.shape[-1], device=p.device) < (top_k or p.shape[-1])
    drawn = torch.multinomial(torch.where(kept, p, 0.0).flatten(0, -2), 1).view(p.shape[:-1])
    return index.gather(-1, drawn[..., None])[..., 0]


def sample_oracle(
    logits: torch.Tensor, seed: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """Compute the same with the kernel's random numbers, in float64."""
    if logits.shape[:-1].numel() == 0:
        return _result(logits)
    x = logits.double().flatten(0, -2) if logits.dim() > 1 else logits.double()[None]
    rows, cols = x.shape
    row = torch.arange(rows, device=x.device)[:, None]
    four = torch.arange(-(-cols // 4), device=x.device).expand(rows, -1)

    def scores(kept: torch.Tensor, round: int) -> torch.Tensor:
        counters = (four, (row & 2**32 - 1).expand_as(four), (row >> 32).expand_as(four), torch.full_like(four, round))
        bits = torch.stack(philox(int(seed), counters), dim=-1).flatten(1)[:, :cols]
        noise = -torch.log1p(-(bits.double() + 0.5) * 2.0**-32)
        return torch.where(kept, x / (temperature or 1.0) - (noise.log() if temperature else 0.0), -torch.inf)

    p = torch.softmax(x / (temperature or 1.0), dim=-1)
    token = scores(x > -torch.inf, 0).argmax(dim=-1, keepdim=True)
    waiting = torch.full_like(token, temperature > 0, dtype=torch.bool)
    for round in range(1, cols + 1):
        above = x > x.gather(-1, token)
        count, mass = above.sum(-1, keepdim=True), torch.where(above, p, 0.0).sum(-1, keepdim=True)
        waiting &= ~((count == 0) | ((count < (top_k or cols)) & ((mass < top_p) | (top_p == 1))))
        if not waiting.any():
            break
        token = torch.where(waiting, scores(above, round).argmax(dim=-1, keepdim=True), token)
    return torch.where(p.isnan().any(-1, keepdim=True), -1, token).view(logits.shape[:-1])


def sample_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: softmax's maximum, subtraction, exponential and sum, a logarithm, a subtraction
    and a comparison for the draw; logits and seed in once, a token per row out."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(flops=7 * elements, bytes_read=elements * dtype.itemsize + 8, bytes_written=8 * rows)


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple:
    return torch.randn(shape, device=device, **options), new_seed(device), 0.8


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    tokens = torch.empty(rows, dtype=torch.int64, device="meta")
    options = {"GREEDY": False, "FILTER": False, **settings(cols)}
    return (x, tokens, tokens[0], cols, cols, 1.25, cols, 2.0), options


OP = FusedOp(
    name="sample",
    fused=sample,
    reference=sample_reference,
    work=sample_work,
    kernel=sample_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 9000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((64, 131072), (1, 131072)),
    oracle=sample_oracle,
)
