# %% [markdown]
# # Exercise 15: the capstone [30 points]
#
# We give you a block of a model in plain PyTorch: the gated norm at the end of a Mamba-2 layer, with its residual. Fuse
# it, **forward and backward**, until you've removed at least **60 % of its metered traffic**. Then write a report,
# whose numbers we'll check at sizes you haven't seen. About 120 minutes. You can draw on all the lessons, especially
# 05, 11 and 15.
# <!-- given 60 %: what this exercise asks for -->
#
# **The formula**, for each row of $n$ elements:
#
# $$h = x \cdot a, \quad a = \mathrm{silu}(gate) = gate \cdot s, \quad s = \sigma(gate)$$
#
# $$r = \frac{1}{\sqrt{\tfrac1n \sum_j h_j^2 + \varepsilon}}, \qquad y = h \, r \, w + residual$$
#
# and backward, with $g = \partial L / \partial y$ and $\hat h = h\,r$:
#
# $$\frac{\partial L}{\partial residual} = g, \qquad
# \frac{\partial L}{\partial w} = \sum_{\text{rows}} g\,\hat h, \qquad
# g_h = r \Big( g\,w - \hat h \cdot \tfrac1n \sum_j g_j w_j \hat h_j \Big)$$
#
# $$\frac{\partial L}{\partial x} = g_h \, a, \qquad
# \frac{\partial L}{\partial gate} = g_h \, x \cdot s \, \big(1 + gate\,(1 - s)\big)$$
#
# **The picture**: traffic through memory, one row at a time.

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("15")

# %% [markdown]
# The block is the gated RMSNorm from Dao and Gu, "Transformers are SSMs", arXiv:2405.21060.

# %%
import torch
import triton
import triton.language as tl

from helpers.instruments import measure
from helpers.learning import (
    BLOCK_BACKWARD_MISTAKES,
    BLOCK_MISTAKES,
    Hints,
    check_cut,
    check_gradcheck,
    check_numbers,
    check_offsets,
    check_repeats,
    check_values,
    draw_questions,
    gradient_cases,
    norm_cases,
)

# %% [markdown]
# ## The block
#
# The block computes in float32 or higher, so when the inputs are float32 its conversions are free.


# %%
def gated_norm(x, gate, weight, eps):
    wide = torch.promote_types(x.dtype, torch.float32)
    h = x.to(wide) * torch.nn.functional.silu(gate.to(wide))
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight.to(wide)


def block(x, gate, residual, weight, eps):
    return (gated_norm(x, gate, weight, eps) + residual).to(x.dtype)


def block_backward(grad_y, x, gate, weight, eps):
    leaves = [each.detach().requires_grad_() for each in (x, gate, weight)]
    y = gated_norm(*leaves, eps).to(x.dtype)
    return torch.autograd.grad(y, leaves, grad_y)


device = "cuda" if torch.cuda.is_available() else "cpu"
x, gate, residual, grad_y = torch.randn(4, 96, 256, device=device)
weight = torch.randn(256, device=device)
measure(block, x, gate, residual, weight, 1e-5).launch_table()

# %% [markdown]
# You don't have to compute a gradient for the residual, because it *is* `grad_y`.
#
# **How many bytes per element does the block have to move in the forward pass, in float32? And in the backward pass?**
# Write your numbers down.

# %% [markdown]
# ## Your answers
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 26 of the 30 points; the other
# 4 are for four hidden checks with other inputs, which only run during grading. Stuck? Run `hint(1)` in a new cell,
# then `hint(2)`: they're about the first check that fails.
#
# **What answers may use:** torch, triton and math. Write the kernels in Triton, under `@triton.jit` alone; around them,
# you may allocate, view, copy and launch. You get no points for results computed by PyTorch. `fusion check` and the
# grader reject any other import, name or decorator, classes and block pointers, and report the line.

# %% tags=["hide-input"]
hint = Hints(
    values=(
        "h is x times gate times sigmoid(gate). Which of the formula's terms come after the norm?",
        "The mean of h's squares divides by cols, and eps is inside the root. The weight and the "
        "residual come last.",
    ),
    cut=(
        "x, gate and residual are read and y is written: 16 B/element. What else does the message "
        "list?",
        "h stays in registers: don't store it, and don't load x or gate a second time.",
    ),
    large=(
        "Kernel integers are int32 unless an operand is int64. Which product in your offsets can "
        "pass 2^31?",
        "tl.program_id(0).to(tl.int64), before you multiply it; for a loop's row, tl.cast(row, "
        "tl.int64).",
    ),
    gradients={
        "Look at the loop over rows": (
            "There are more rows than programs. Which rows does a program take, and when does it "
            "store its sums?",
            "Loop over range(tl.program_id(0), rows, tl.num_programs(0)), and store the sums after "
            "the loop.",
        ),
        "": (
            "Which of the three results is wrong? 1 is x's gradient, 2 the gate's, 3 the weight's. "
            "Start with 3, which only needs h and rstd.",
            "x and the gate share g_h. If both are wrong, g_h is; if only the gate's is, look at "
            "the slope of silu.",
        ),
    },
    gradcheck=(
        "Use float64 throughout: convert every load with .to(COMPUTE), keep the sum in "
        "registers in COMPUTE, and make the tensor of sums float64.",
    ),
    repeats=(
        "Which address do two programs both write to? The GPU decides which of them comes first.",
        "Use sums_ptr + tl.program_id(0) * cols + col, a row for each program, and no atomics.",
    ),
    **{
        "backward-cut": (
            "grad_y, x and gate are read and two gradients are written: 20 B/element. The weight "
            "is read once per program, and there are the sums. What else does the message list?",
            "Recompute h and rstd from x and gate, instead of loading them.",
            "Store one row of sums per program, not per row of x, and use at most PROGRAMS "
            "programs.",
        ),
        "large-gradient": (
            "This is the forward pass's problem again. Where do you compute an element's number?",
            "tl.cast(row, tl.int64), before you multiply it.",
        ),
        "report-numbers": (
            "measure(block, ...).launch_table() above lists the launches. Write down what each one "
            "reads and writes.",
            "The rest of the step takes 1 - share, whatever you do. The block takes share times "
            "least / unfused.",
        ),
    },
)
hint

# %% [markdown]
# ## Forward: your kernel and its launcher
#
# `x`, `gate` and `residual` have shape (..., cols), with up to 16,384 columns and any strides. `weight` is contiguous,
# with shape (cols,). They all share one dtype (float32, float16 or bfloat16), which is also the dtype of `y`. In
# float16 and bfloat16, round only once, when you store. There may be zero rows.


# %% grade_id="forward-kernel"
@triton.jit
def forward_kernel(
    x_ptr, gate_ptr, residual_ptr, weight_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr
):
    # About 11 lines: which row; load; h, in float32; its root mean square; y; store.
    # BEGIN SOLUTION
    col = tl.arange(0, BLOCK)
    # int64 before the multiplication: row * cols passes 2**31 in large tensors.
    exists, at = col < cols, tl.program_id(0).to(tl.int64) * cols + col
    x = tl.load(x_ptr + at, mask=exists, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=exists, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + at, mask=exists, other=0.0).to(tl.float32)
    # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
    h = x * gate * tl.sigmoid(gate)
    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)
    tl.store(y_ptr + at, h * rstd * weight + residual, mask=exists)
    # END SOLUTION


# %% grade_id="forward"
def forward(x, gate, residual, weight, eps):
    """The block, in one launch."""
    # About 7 lines: reshape the tensors to rows, allocate, choose block and warps, launch.
    # BEGIN SOLUTION
    x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()
    y, cols = torch.empty_like(x), x.shape[-1]
    block_size = triton.next_power_of_2(cols)
    warps = min(32, max(4, block_size // 512))
    tensors = (x, gate, residual, weight, y)
    forward_kernel[(x.numel() // cols,)](*tensors, cols, eps, BLOCK=block_size, num_warps=warps)
    return y
    # END SOLUTION


# %% [markdown]
# **Does it compute the right thing?** We try odd widths, unusual strides, another eps, half precision, NaN and zero
# rows.

# %% grade_id="values" points=5
check_values(
    forward,
    block,
    norm_cases(3, 1, seed=15, one_rounding=True, gate=1),
    unlike=BLOCK_MISTAKES,
    name="values",
)

# %% [markdown]
# **Is the traffic gone?** Grading also meters another size. Your kernel also mustn't spill any registers with rows of
# 8192 on an A100.

# %%
rows, columns = 93, 307
given = (*torch.randn(3, rows, columns, device=device), torch.randn(columns, device=device), 1e-5)

# %% grade_id="cut" points=4
wide = *torch.randn(3, 2, 8192, device=device), torch.randn(8192, device=device), 1e-5
check_cut(forward, block, given, least=0.6, launches=1, widest=wide, name="cut")

# %% [markdown]
# **Can it handle a large tensor?** It has 2^22 rows of 1024, which we don't allocate. Instead, your launcher gets
# tensors that have a shape but no memory, and we run only the first and the last program of its launch, with loads and
# stores turned off. Your grid has to grow with the tensor, or have at least 108 programs (one per SM of an A100) that
# loop over all of it. Only the first and last passes of a long loop run.


# %%
def rows_of(rows):
    return *torch.randn(3, rows, 1024, device=device), torch.randn(1024, device=device), 1e-5


# %% grade_id="large" points=1
check_offsets(forward, rows_of, sizes=(16, 32), size=2**22, programs=108, name="large")

# %% [markdown]
# ## Backward: your kernel and its launcher
#
# Each program handles rows `program_id`, `program_id + num_programs` and so on, with at most `PROGRAMS` programs. It
# accumulates its part of the weight's gradient in registers and stores it once, in a row of its own. For float64
# inputs, compute in float64, as set by `COMPUTE`. In float16 and bfloat16, round each gradient only once, when you
# store it.

# %%
PROGRAMS = 8


# %% grade_id="backward-kernel"
@triton.jit
def backward_kernel(
    grad_y_ptr,
    x_ptr,
    gate_ptr,
    weight_ptr,
    grad_x_ptr,
    grad_gate_ptr,
    sums_ptr,
    rows,
    cols,
    eps,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # About 22 lines: the weight; a loop over rows: load, recompute h and rstd, three gradients;
    # store the sum.
    # BEGIN SOLUTION
    col = tl.arange(0, BLOCK)
    exists = col < cols
    # It's the same for every row, so load it once, before the loop.
    weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK,), dtype=COMPUTE)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * cols + col
        grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)
        x = tl.load(x_ptr + at, mask=exists, other=0.0).to(COMPUTE)
        gate = tl.load(gate_ptr + at, mask=exists, other=0.0).to(COMPUTE)
        # As in the forward pass, the row is in registers, so this costs arithmetic but no bytes.
        s = tl.sigmoid(gate)
        h = x * gate * s
        rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)
        h_hat = h * rstd
        along = grad_y * weight
        # Subtract the projection: scaling a row doesn't change its normalised values.
        stretch = tl.sum(along * h_hat, axis=0) / cols
        grad_h = rstd * (along - h_hat * stretch)
        tl.store(grad_x_ptr + at, grad_h * gate * s, mask=exists)
        tl.store(grad_gate_ptr + at, grad_h * x * s * (1.0 + gate * (1.0 - s)), mask=exists)
        grad_weight += grad_y * h_hat
    # Each program stores one row of sums in its own place.
    tl.store(sums_ptr + tl.program_id(0) * cols + col, grad_weight, mask=exists)
    # END SOLUTION


# %% grade_id="backward"
def backward(grad_y, x, gate, weight, eps):
    """(grad_x, grad_gate, grad_weight): one kernel, and a sum over the programs' sums."""
    # About 12 lines: reshape the tensors to rows, allocate, launch, add up the partial sums.
    # BEGIN SOLUTION
    grad_y, x, gate = grad_y.contiguous(), x.contiguous(), gate.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    grad_x, grad_gate = torch.empty_like(x), torch.empty_like(x)
    # Launch at least one program, even without rows: it stores the zeros that no other program
    # would.
    programs = max(1, min(rows, PROGRAMS))
    double = x.dtype == torch.float64
    # Keep sums wide until the last one: 16 bits would round at every addition.
    sums = torch.empty(
        programs, cols, dtype=torch.float64 if double else torch.float32, device=x.device
    )
    compute, block_size = tl.float64 if double else tl.float32, triton.next_power_of_2(cols)
    # About ten values per column are in registers at once, so take at most 8 columns per thread.
    warps = min(32, max(4, block_size // 256))
    backward_kernel[(programs,)](
        grad_y, x, gate, weight, grad_x, grad_gate, sums, rows, cols, eps,
        COMPUTE=compute, BLOCK=block_size, num_warps=warps,
    )  # fmt: skip
    return grad_x, grad_gate, sums.sum(0).to(x.dtype)
    # END SOLUTION


# %% [markdown]
# **Are the gradients right?**

# %% grade_id="gradients" points=5
check_values(
    backward,
    block_backward,
    gradient_cases(15, tensors=2, vectors=1, wide=True),
    unlike=BLOCK_BACKWARD_MISTAKES,
    name="gradients",
)

# %% [markdown]
# **Does gradcheck agree?** It nudges each input slightly in float64 and compares how the block's result changes. We use
# a power of two for its eps, because a kernel receives it in float32, which would round most other values.

# %%
double = {"dtype": torch.float64, "device": device}
small = (torch.randn(3, 5, **double), torch.randn(3, 5, **double), torch.randn(5, **double), 2**-10)

# %% grade_id="gradcheck" points=3
check_gradcheck(backward, gated_norm, small, name="gradcheck")

# %% [markdown]
# **Is the traffic of the backward pass gone?** Autograd's own backward pass moves more than the forward block does, so
# you have to remove more of it: 84 %. Use at most three launches: your kernel, the sum over its partial sums, and a
# conversion. And don't spill any registers with rows of 4096.
# <!-- given 84 %: what this exercise asks for -->

# %%
of_backward = (torch.randn(rows, columns, device=device), *given[:2], given[3], 1e-5)

# %% grade_id="backward-cut" points=3
wide_backward = (*torch.randn(3, 2, 4096, device=device), torch.randn(4096, device=device), 1e-5)
check_cut(
    backward,
    block_backward,
    of_backward,
    least=0.84,
    launches=3,
    widest=wide_backward,
    name="backward-cut",
)

# %% [markdown]
# **Is it the same in every run?** Without a GPU, we run the programs in reverse order.

# %% grade_id="repeats" points=2
check_repeats(backward, of_backward, name="repeats")

# %% [markdown]
# **Can the backward handle a large tensor?** It gets as many rows.

# %% grade_id="large-gradient" points=1
check_offsets(
    backward, rows_of, sizes=(16, 32), size=2**22, at_most=PROGRAMS, name="large-gradient"
)

# %% [markdown]
# ## Your report
#
# Write a function of the sizes that gives readers the facts they need before adopting your kernel. **Forward, in
# float32**, return the launches and bytes of the original block, counted the way the meter counts them; the minimum
# traffic, with each input read once and `y` written once; and the saving in per cent. Finally, suppose a training step
# spends `share` of its time (0 to 1) in this block, and the block is memory-bound. How many times faster can the *whole
# step* get, at best, if you fuse only the block? Use the arguments and plain Python.


# %% grade_id="report"
def report(rows, columns, share):
    """Return (launches, bytes unfused, minimum bytes, % saved, speedup of the step)."""
    # About 6 lines.
    # BEGIN SOLUTION
    n = rows * columns
    # silu 2n, times x 3n, square 2n, mean n and one value per row, plus eps and rsqrt on those,
    # times rstd 2n and one value per row, times weight 2n and the weight, plus residual 3n.
    unfused = 4 * (15 * n + 6 * rows + columns)
    least = 4 * (4 * n + columns)
    # Amdahl: the rest takes as long as before.
    return 9, unfused, least, 100 * (1 - least / unfused), 1 / (1 - share + share * least / unfused)
    # END SOLUTION


# %% [markdown]
# **Are the numbers in your report correct?**


# %%
def metered(rows, columns, share):
    tensors = (*torch.ones(3, rows, columns), torch.ones(columns))
    found = measure(block, *tensors, 1e-5)
    least = sum(each.nbytes for each in (*tensors, tensors[0]))
    part = least / found.bytes_total
    return (
        found.launches,
        found.bytes_total,
        least,
        100 * (1 - part),
        1 / (1 - share + share * part),
    )


parts = ("launches", "bytes unfused", "minimum bytes", "% saved", "speedup")
shares = (0.1, 0.25, 0.5, 0.9)

# %% grade_id="report-numbers" points=2
questions = [
    (1, 8, 0.5),
    (3, 5, 0.99),
    (2, 7, 1.0),
    (5, 2, 0.0),
    *draw_questions(15, 4, range(2, 100), range(2, 300), shares),
]
check_numbers(report, metered, questions, parts=parts, within=1e-6, name="report-numbers")

# %% [markdown]
# **The four hidden checks** are empty here, and run during grading.

# %% grade_id="other-values" points=1
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
check_values(
    forward,
    block,
    norm_cases(3, 1, seed=1729, widths=(2, 255, 2049), widest=5000, one_rounding=True, gate=1),
    unlike=BLOCK_MISTAKES,
    name="other-values",
)
# END HIDDEN TESTS

# %% grade_id="other-gradients" points=1
# Grading checks other widths and values here.
# BEGIN HIDDEN TESTS
others = gradient_cases(
    1729, widths=(7, 255, 2049), rows=51, tensors=2, vectors=1, wide=True, many=False
)
check_values(
    backward, block_backward, others, unlike=BLOCK_BACKWARD_MISTAKES, name="other-gradients"
)
# END HIDDEN TESTS

# %% grade_id="other-cut" points=1
# Grading meters another size here.
# BEGIN HIDDEN TESTS
other_tensors = (*torch.randn(3, 171, 149, device=device), torch.randn(149, device=device))
check_cut(forward, block, (*other_tensors, 1e-5), least=0.6, launches=1, name="other-cut")
# END HIDDEN TESTS

# %% grade_id="other-report" points=1
# Grading asks about other sizes here.
# BEGIN HIDDEN TESTS
asked = draw_questions(1729, 10, range(1, 300), range(1, 300), shares)
check_numbers(report, metered, asked, parts=parts, within=1e-6, name="other-report")
# END HIDDEN TESTS

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/15_capstone.ipynb`.
