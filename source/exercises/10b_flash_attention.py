# %% [markdown]
# # Exercise 10b: FlashAttention, forward [25 points]
#
# In exercise 10 you wrote the N x N weights once. This time they're **never written**: you multiply each tile of
# weights by its values straight away, in registers, and drop it. Memory then grows with N rather than with its square.
# Allow about 100 minutes, after exercise 10.
#
# **The formula**, for each head, with everything $N \times d$ in float16:
#
# $$o = \text{softmax}\!\left(\frac{q\,k^T}{\sqrt d}\right) v$$
#
# If attention is causal, query $i$ only sees keys $j \le i$. As in PyTorch, NaN in a query, or in a key or value that
# it sees, reaches its result, and so does infinity in a value that it sees. Scores, maximum, sum and accumulator are
# float32. For the second matmul the weights become float16, because that's what tensor cores multiply.
#
# **The picture**: one program handles BLOCK_M queries and loops over keys and values, one tile at a time.

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("10b")

# %% [markdown]
# When the maximum grows, `sum` and `acc` so far were computed with the old one, so you multiply both by the same factor
# f.

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    FLASH_MISTAKES,
    Hints,
    check_linear_traffic,
    check_offsets,
    check_tensor_cores,
    check_values,
    compare_with_ours,
    flash_cases,
)

# %% [markdown]
# ## The unfused reference


# %%
def reference(q, k, v, causal):
    single = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(single) @ k.to(single).mT / q.shape[-1] ** 0.5
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores.softmax(dim=-1).to(v.dtype) @ v


device = "cuda" if torch.cuda.is_available() else "cpu"


def inputs_of(seq):
    # The layout that a projection produces: all heads of a token side by side.
    return tuple(torch.randn(1, seq, 2, 64, device=device).half().transpose(1, 2) for _ in range(3))


shorter, longer = inputs_of(128), inputs_of(256)
for inputs in (shorter, longer):
    unfused = measure(reference, *inputs, False)
    touched = f"{unfused.unique_total / 1e3:.4g} kB of memory touched"
    print(f"{inputs[0].shape[2]} tokens: {touched} in {unfused.launches} launches")

# %% [markdown]
# **How many kB of memory do you have to touch for 128 tokens, and for 256?** q, k and v are read and o is written, for
# 2 heads of dimension 64. Write your numbers down. (Later programs read k and v again, but from L2.)

# %% [markdown]
# ## Your kernel
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.


# %% grade_id="kernel"
@triton.jit
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, heads, seq, scale,
    q_stride_b, q_stride_h, q_stride_n, q_stride_d,
    k_stride_b, k_stride_h, k_stride_n, k_stride_d,
    v_stride_b, v_stride_h, v_stride_n, v_stride_d,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # About 35 lines: the queries; a loop over tiles of keys and values; the result, divided and
    # stored once.
    # BEGIN SOLUTION
    # int64 before the multiplication by a stride, which may pass 2**31.
    batch = tl.program_id(1).to(tl.int64) // heads
    head = tl.program_id(1).to(tl.int64) % heads
    query = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIM)
    q_ptr += batch * q_stride_b + head * q_stride_h
    k_ptr += batch * k_stride_b + head * k_stride_h
    v_ptr += batch * v_stride_b + head * v_stride_h
    q = tl.load(
        q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d,
        mask=(query < seq)[:, None],
        other=0.0,
    )

    # Each query's state, which is all that FlashAttention keeps from N scores.
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    # Causal: no query of this program sees a key after its last query, so half of the work is
    # skipped.
    last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else seq
    for start in range(0, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(
            k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d,
            mask=(key < seq)[None, :],
            other=0.0,
        )
        # Keys that don't exist need -inf, not 0, because a score of 0 would contribute to the sum.
        seen = (key < seq)[None, :]
        if CAUSAL:
            seen = seen & (key[None, :] <= query[:, None])
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        # Every row sees key 0, in the first tile, so no maximum stays -inf, and -inf - -inf never
        # happens.
        grown = tl.maximum(top, tl.max(s, axis=1))
        e = tl.exp(s - grown[:, None])
        # The sums so far, of weights and of weighted values, were computed with the old maximum, so
        # scale them down to the new one.
        shrink = tl.exp(top - grown)
        total = total * shrink + tl.sum(e, axis=1)
        # Load rows that don't exist as 0: e is 0 there, and 0 * NaN would be NaN.
        v = tl.load(
            v_ptr + key[:, None] * v_stride_n + d[None, :] * v_stride_d,
            mask=(key < seq)[:, None],
            other=0.0,
        )
        # The weights are at most 1, so float16 holds them well, and it's the dtype that tensor
        # cores need.
        acc = tl.dot(e.to(tl.float16), v, acc * shrink[:, None])
        top = grown
    # Divide once, at the end, instead of in every tile.
    o = acc / total[:, None]
    row = tl.program_id(1).to(tl.int64) * seq + query
    tl.store(o_ptr + row[:, None] * DIM + d[None, :], o.to(tl.float16), mask=(query < seq)[:, None])
    # END SOLUTION


# %% [markdown]
# ## Its launcher
#
# q, k and v are (batch, heads, seq, dim) in float16 with any strides; seq is at most 2048, and dim is 16, 32, 64 or
# 128. The batch may be empty.


# %% grade_id="launcher"
def flash_attention(q, k, v, causal):
    """softmax(q k^T / sqrt(dim)) v as (batch, heads, seq, dim) in float16, in one launch."""
    # About 7 lines: the sizes, the result, a two-dimensional grid, launch.
    # BEGIN SOLUTION
    batch, heads, seq, dim = q.shape
    # The only allocation. There's no buffer for N x N weights, because they never exist.
    o = torch.empty((batch, heads, seq, dim), dtype=q.dtype, device=q.device)
    # 64 queries per program: each loaded key and value serves 64 rows. For dim 128, acc is 64
    # registers per thread.
    block_m, block_n = 64, 64
    grid = (triton.cdiv(seq, block_m), batch * heads)
    flash_attention_kernel[grid](
        q, k, v, o, heads, seq, dim**-0.5, *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal, DIM=dim, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
    return o
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 20 of the 25 points; the other 5 are for one hidden check with
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
        "Look at (the (rescaling|running maximum|maximum|order: )|what is carried)": (
            "You carry three things per query from tile to tile: top, total and acc (dim values). "
            "What happens to each when a tile has a larger maximum?",
            "In each tile, compute s, the new top and e = exp(s - top). Multiply total and acc by "
            "exp(old top - new top), then add the sum of e and the product of e and v.",
        ),
        "Look at the edges": (
            "Which keys of the last tile exist? Their scores must not be 0.",
            "Give keys beyond seq a score of -inf before you take the maximum.",
        ),
        "16 bits|float16 |fp16 ": (
            "Which values in your kernel have 16 bits? Only some of them may.",
            "q, k and v have 16 bits as loaded, and e when it goes into the second tl.dot. Scores, "
            "top, total, acc and the factor that rescales them stay in float32.",
        ),
        "": (
            "The first case has 64 tokens, which is one tile of 64 keys. Get that right without a "
            "loop, then 128 tokens with one.",
            "For one tile: s = scale times tl.dot(q, k), e = exp(s - its row's maximum), and the "
            "result is tl.dot(e, v), divided by the sum of e along the row.",
        ),
    },
    traffic=(
        "The message lists everything you read and write. Is there anything except q, k, v and "
        "the result?",
        "Don't store s or e. Pass e straight into tl.dot with the tile of v. And acc is a variable "
        "of the loop, not a tensor in memory.",
        "If it's causal, a program's last query is (tl.program_id(0) + 1) * BLOCK_M - 1. So where "
        "does its loop over the keys end?",
    ),
    tensor_cores=(
        "Both operands of both tl.dot calls should be float16.",
        "q and k are float16 when you load them. e is float32, so convert it for the second "
        "matmul: e.to(tl.float16).",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64, so they overflow at 2^31. Which "
        "product in your offsets could get that large?",
        "Use tl.program_id(1).to(tl.int64), before you multiply anything by it.",
    ),
)
hint

# %% [markdown]
# **Does it compute the right thing?** The cases are full and causal, with lengths that no tile divides, various
# strides, scores that grow along the keys, NaN and inf.

# %% grade_id="values" points=9
check_values(flash_attention, reference, flash_cases(seed=11), unlike=FLASH_MISTAKES, name="values")

# %% [markdown]
# **Is there really no N x N?** It should be one launch that uses q, k and v in their own layout and touches no memory
# except q, k, v and the result, for 128 tokens and for 256. A causal call may load at most 85 % of a full one's bytes,
# because a program can stop at its last query.
# <!-- given 85 %: what this exercise asks for -->

# %% grade_id="traffic" points=7
check_linear_traffic(
    flash_attention,
    (*shorter, False),
    (*longer, False),
    causal=(*longer, True),
    name="traffic",
)

# %% [markdown]
# **Does it use tensor cores?** We compile it for an A100 and an H100.

# %% grade_id="tensor_cores" points=3
check_tensor_cores(flash_attention, (*shorter, True), devices=("A100", "H100"), name="tensor_cores")

# %% [markdown]
# **Can it handle many sequences?** We check it for 60000 sequences of 512 tokens without allocating them: your launcher
# gets tensors that have a shape but no memory, and we run only the first and the last program of its launch, with loads
# and stores turned off. Your grid has to grow with the batch, or have at least 108 programs (one per SM of an A100)
# that loop over all of it.


# %%
def sequences(batch):
    return *(torch.randn(batch, 1, 512, 128, device=device).half() for _ in range(3)), False


# %% grade_id="large" points=1
check_offsets(flash_attention, sequences, sizes=(1, 2), size=60000, programs=108, name="large")

# %% grade_id="other-values" points=5
# Grading checks other lengths and values here.
# BEGIN HIDDEN TESTS
others = flash_cases(seed=1729, shapes=((1, 2, 65, 128), (5, 1, 31, 16), (1, 20, 17, 16)))
check_values(flash_attention, reference, others, unlike=FLASH_MISTAKES, name="other-values")
# END HIDDEN TESTS

# %% [markdown]
# ## Your kernel vs ours
#
# Not graded. Once the checks above pass, this cell predicts your kernel's time on an H200 at a size recorded there,
# next to `kernels.flash_attention`. The prediction is based on your compiled code. If this machine has a GPU, it times
# both kernels instead.

# %% tags=["nbval-ignore-output"]
from kernels import CATALOGUE

compare_with_ours(
    flash_attention, CATALOGUE["flash_attention"], (4, 16, 4096, 128, True), torch.float16
)

# %% [markdown]
# On the command line, `fusion check exercises/10b_flash_attention.ipynb` grades the saved notebook.
