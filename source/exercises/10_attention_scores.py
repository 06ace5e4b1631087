# %% [markdown]
# # Exercise 10: attention scores, mask and softmax in one kernel [20 points]
#
# Attention's weights are an N x N matrix per head, which PyTorch writes and reads several times: for the matmul, the
# scaling, the mask and the softmax. Your kernel will write it **once**, when it's finished. Allow about 80 minutes.
# You'll find the parts in lesson 10 and exercises 06 and 08.
#
# **The formula**, for each head, with $q$ and $k$ of $N \times d$ in float16, and $p$ in float32:
#
# $$p = \text{softmax}\!\left(\frac{q\,k^T}{\sqrt d} + \text{mask}\right)$$
#
# $$\text{mask}_{ij} = \begin{cases} 0 & j \le i \text{ and key } j \text{ is valid} \\ -\infty & \text{otherwise}
# \end{cases}$$
#
# A query that doesn't see any key gets a row of zeros. A query that sees a score of NaN or +infinity gets a row of NaN,
# as it does from `torch.softmax`.
#
# **The picture**, for 8 queries and keys, tiles of 4 x 4, keys 0 and 1 being padding:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("10")

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    SCORES_MISTAKES,
    Hints,
    check_offsets,
    check_passes,
    check_values,
    compare_with_ours,
    masked_cases,
    scores_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(q, k, valid):
    single = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(single) @ k.to(single).mT / q.shape[-1] ** 0.5
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    seen = valid[:, None, None, :] & causal
    p = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.where(seen.any(dim=-1, keepdim=True), p, 0.0)


device = "cuda" if torch.cuda.is_available() else "cpu"
# The layout that a projection produces: all heads of a token side by side.
q, k = torch.randn(2, 2, 128, 2, 32, device=device).half().transpose(2, 3)
valid = torch.ones(2, 128, dtype=torch.bool, device=device)
unfused = measure(reference, q, k, valid)
each = unfused.bytes_total / (2 * 2 * 128 * 128)
print(f"{unfused.launches} launches, {each:.3g} B per weight")

# %% [markdown]
# **How many bytes per weight remain if scores never go to memory?** Write your number down. q and k hardly matter: with
# N = 128 and d = 32 they're small compared with N x N, and even smaller for longer sequences.

# %% [markdown]
# ## Your kernel
#
# A program handles BLOCK_M queries of one head and loops over all keys, BLOCK_N at a time. A row may not fit in
# registers, so you need two passes. The first finds each row's maximum and sum online, and the second computes the
# scores again and stores the weights. Recomputing is worth it, because scores are cheap for tensor cores and bytes
# aren't.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def attention_scores_kernel(
    q_ptr, k_ptr, valid_ptr, p_ptr, heads, seq, scale,
    q_stride_b, q_stride_h, q_stride_n, q_stride_d, k_stride_b, k_stride_h, k_stride_n, k_stride_d,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # About 35 lines: the queries; a loop for maximum and sum; a loop that stores.
    # BEGIN SOLUTION
    # int64 before the multiplication by a stride: with N x N weights per head, offsets soon pass
    # 2**31.
    batch = tl.program_id(1).to(tl.int64) // heads
    head = tl.program_id(1).to(tl.int64) % heads
    query = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIM)
    q_ptr += batch * q_stride_b + head * q_stride_h
    k_ptr += batch * k_stride_b + head * k_stride_h
    # The head's index among all heads of the batch: its N x N weights are contiguous.
    p_ptr += tl.program_id(1).to(tl.int64) * seq * seq
    # Load the queries once: they stay in registers for both passes.
    q = tl.load(
        q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d,
        mask=(query < seq)[:, None],
        other=0.0,
    )

    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    # None of these queries sees a key after the last query, so we skip half of this pass.
    for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(
            k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d,
            mask=(key < seq)[None, :],
            other=0.0,
        )
        # The mask is per key. A key that doesn't exist isn't valid, which also handles the edge of
        # the last tile.
        valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0
        seen = valid[None, :] & (key[None, :] <= query[:, None])
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        grown = tl.maximum(top, tl.max(s, axis=1))
        # A row that hasn't seen a key yet has a maximum of -inf, and -inf - -inf is NaN. With 0
        # instead we get e^-inf = 0.
        safe = tl.where(grown == -float("inf"), 0.0, grown)
        # The sum so far was computed with the old maximum, so scale it down to the new one.
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None]), axis=1)
        top = grown
    safe = tl.where(top == -float("inf"), 0.0, top)
    # Rows without a key have a sum of 0. Their weights are 0, not 0/0. (A NaN score makes the sum
    # NaN, and `total > 0` would make that row 0.)
    share = tl.where(total == 0, 0.0, 1.0 / total)

    # Now loop over all keys: weights that no query sees are 0, and no other program writes them.
    for start in range(0, seq, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(
            k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d,
            mask=(key < seq)[None, :],
            other=0.0,
        )
        valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0
        seen = valid[None, :] & (key[None, :] <= query[:, None])
        # Compute the same scores again instead of storing them: in memory they'd cost 8 bytes each
        # for the round trip.
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        p = tl.exp(s - safe[:, None]) * share[:, None]
        tl.store(
            p_ptr + query[:, None] * seq + key[None, :],
            p,
            mask=(query < seq)[:, None] & (key < seq)[None, :],
        )
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# q and k are (batch, heads, seq, dim) in float16 with any strides, and dim is 16, 32, 64 or 128. The batch may be
# empty. valid is a contiguous (batch, seq) tensor of bool, true for real keys and false for padding. A score of NaN or
# +infinity that the mask hides may count as NaN, as in the formula's sum, or as -inf. No query sees only scores of
# -inf.


# %% grade_id="launcher"
def attention_scores(q, k, valid):
    """softmax(q k^T / sqrt(dim) + mask) as (batch, heads, seq, seq) in float32, in one launch."""
    # About 7 lines: the sizes, the result, a two-dimensional grid, launch.
    # BEGIN SOLUTION
    batch, heads, seq, dim = q.shape
    p = torch.empty((batch, heads, seq, seq), dtype=torch.float32, device=q.device)
    # 32 queries per program for short sequences, so that there are enough programs; a tensor core
    # needs at least 16.
    block_m, block_n = 32, 64
    grid = (triton.cdiv(seq, block_m), batch * heads)
    attention_scores_kernel[grid](
        q, k, valid, p, heads, seq, dim**-0.5, *q.stride(), *k.stride(),
        DIM=dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return p
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 16 of the 20 points; the other 4 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
hint = Hints(
    values={
        "several heads": (
            "Each program handles one head of one sequence. How do you get both indices from "
            "tl.program_id(1)?",
            "batch = tl.program_id(1) // heads and head = tl.program_id(1) % heads. Each pointer "
            "advances by batch * stride_b + head * stride_h.",
        ),
        "Look at the (rescaling|running maximum|maximum|order: )": (
            "What do you carry from one tile of keys to the next, and what happens to it when a "
            "tile has a larger maximum?",
            "The online softmax keeps a maximum and a sum for each query. When the maximum grows "
            "from m to m', the sum so far is multiplied by exp(m - m'). Then a second loop "
            "computes the same scores and stores exp(s - m) / sum.",
        ),
        "Look at the (edges|store)": (
            "Every element of the result must be written: those right of the diagonal are 0. Keys "
            "beyond seq must count as masked.",
        ),
        "": (
            "Begin with one tile, and no loop: scores, scale, causal mask, softmax along axis 1, "
            "store. Then let the keys come in tiles.",
            "Keep the scores in float32, and scale and mask them before the softmax: -inf where a "
            "query doesn't see a key.",
        ),
    },
    masked_rows=(
        "What are exp(-inf - -inf) and 0/0? Both are NaN. Where can they arise when a query sees "
        "no key?",
        "Take 0 for the maximum where it is -inf, and 0 for 1/sum where the sum is 0. And valid "
        "is indexed by the key.",
    ),
    traffic=(
        "You may store the result once and never load it. Do you load anything of size N x N, or "
        "store it twice?",
        "Don't store scores in p to normalise them later. Compute them twice instead. Load q "
        "before the loops.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "Use tl.program_id(1).to(tl.int64), before you multiply anything by it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** The cases have lengths that no tile divides, several heads, various strides,
# large scores, NaN and inf. All keys are valid.

# %% grade_id="values" points=6
check_values(
    attention_scores, reference, scores_cases(seed=10), unlike=SCORES_MISTAKES, name="values"
)

# %% [markdown]
# **Does it handle masked rows?** There's padding at the end and at the start, a case with just one key, and a case with
# no key.

# %% grade_id="masked_rows" points=4
check_values(
    attention_scores, reference, masked_cases(seed=10), unlike=SCORES_MISTAKES, name="masked_rows"
)

# %% [markdown]
# **Is it fused?** It should be one launch that uses q and k in their own layout, writes the weights once and never
# reads them, reads q once, and reads k no more than two passes with tiles of 16 queries require.

# %% grade_id="traffic" points=5
check_passes(attention_scores, (q, k, valid), reads=(1, 16, 64), name="traffic")

# %% [markdown]
# **Can it handle many weights?** We check it for 60000 sequences of 512 without allocating them: your launcher gets
# tensors that have a shape but no memory, and we run only the first and the last program of its launch, with loads and
# stores turned off. Your grid has to grow with the batch, or have at least 108 programs (one per SM of an A100) that
# loop over all of it.


# %%
def sequences(batch):
    q, k = (torch.randn(batch, 1, 512, 128, device=device).half() for _ in range(2))
    return q, k, torch.ones(batch, 512, dtype=torch.bool, device=device)


# %% grade_id="large" points=1
check_offsets(attention_scores, sequences, sizes=(1, 2), size=60000, programs=108, name="large")

# %% grade_id="other-values" points=4
# Grading checks other lengths, masks and values here.
# BEGIN HIDDEN TESTS
others = scores_cases(seed=1729, shapes=((1, 2, 65, 128), (5, 1, 31, 16), (1, 20, 17, 16)))
others += masked_cases(seed=1729, seq=70)
check_values(attention_scores, reference, others, unlike=SCORES_MISTAKES, name="other-values")
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.attention_scores`. The prediction is based on your compiled code. If this machine has a GPU, it times
# both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE


def on_all_keys(q, k, *_):
    valid = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool, device=q.device)
    return attention_scores(q, k, valid)


compare_with_ours(
    on_all_keys, CATALOGUE["attention_scores"], (4, 16, 2048, 64, True), torch.float16
)

# %% [markdown]
# On the command line, `fusion check exercises/10_attention_scores.ipynb` grades the saved notebook.
