# %% [markdown]
# # 11 Training: write the backward pass
#
# PyTorch knows how to differentiate its own operators. Your kernel isn't one of them, and autograd can't see inside it.
# So you derive the gradient, write a second kernel for it, and decide what the first kernel has to save. Then you train
# the model and watch the loss fall. **Does a falling loss prove that the gradient is right?**
#
# By the end of this lesson you'll be able to
#
# - derive the gradients of a norm and of attention, write both as kernels, and check them with gradcheck and float64;
# - compare what an unfused chain, a fused kernel and autocast lose to rounding in bf16;
# - sum a weight's gradient over thousands of programs, quickly and reproducibly;
# - decide what a layer saves for its backward pass and what it recomputes;
# - train with a large vocabulary without ever storing all the logits;
# - train a transformer on fused kernels and show that the training hasn't changed.
#
# About 75 minutes. It builds on [04](04_residuals_gates_dropout.ipynb) (saved tensors), [05](05_normalisation.ipynb)
# (norms), [06](06_softmax.ipynb) (cross entropy) and [10](10_attention.ipynb) (attention), and prepares you for
# [exercise 11](../exercises/11_fused_backward.ipynb).

# %% tags=["hide-input"]
import inspect
import math
from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import curves_chart
from helpers.instruments import measure, peak_memory, recorded, saved_for_backward, table
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
torch.set_num_threads(1)  # more threads don't speed up tensors this small
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# Here's the kernel you'll write, and the steps it replaces. Press **Play**.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("backward")

# %% [markdown]
# ## Autograd cannot see a kernel
#
# We'll use RMSNorm, as in lesson 05: divide each row by its root mean square, then multiply each column by a weight,
# with one program per row. `COMPUTE` is the dtype of the arithmetic.


# %%
@triton.jit
def forward_kernel(x_ptr, weight_ptr, y_ptr, cols, eps, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    inside, at = col < cols, tl.program_id(0).to(tl.int64) * cols + col
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(COMPUTE)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(COMPUTE)
    rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
    tl.store(y_ptr + at, x * rstd * weight, mask=inside)


EPS = 1e-6


def options_for(x):
    compute = tl.float64 if x.dtype == torch.float64 else tl.float32
    return {"COMPUTE": compute, "BLOCK": triton.next_power_of_2(x.shape[1])}


def forward(x, weight):
    y = torch.empty_like(x)
    forward_kernel[(len(x),)](x, weight, y, x.shape[1], EPS, **options_for(x))
    return y


# %% tags=["hide-input"]
def unfused(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def inputs(rows, columns, dtype=torch.float32):
    x, weight = torch.randn(rows, columns), torch.randn(columns)
    return [each.to(device, dtype).requires_grad_() for each in (x, weight)]


x, weight = inputs(64, 1000)
y = forward(x, weight)
print("right values:", torch.allclose(y, unfused(x, weight), atol=1e-5))
print("y.requires_grad:", y.requires_grad)

# %% [markdown]
# The values are right, but no gradient reaches `x` or `weight`, and PyTorch doesn't raise an error. In a plain stack of
# layers, only those after the norm would train. With residual connections, some gradient gets past it, and the mistake
# is even harder to notice.
#
# ## The gradient of RMSNorm
#
# For a row of $n$ elements, let $r = (\frac1n\sum_j x_j^2 + \varepsilon)^{-1/2}$, $\hat x_i = r\,x_i$, $y_i = w_i \hat
# x_i$ and $g_i = \partial L / \partial y_i$. The weight is the easy part: each row just adds $g_i \hat x_i$ to the
# gradient of $w_i$. But $x_i$ affects the result in two ways: directly, and through $r$, which scales *every* element
# of its row:
#
# $$\frac{\partial r}{\partial x_i} = -\frac{r^2}{n}\,\hat x_i
# \qquad
# \frac{\partial L}{\partial x_i} = r\, g_i w_i + \sum_j g_j w_j x_j \frac{\partial r}{\partial x_i}
# = r \Big( g_i w_i - \hat x_i \cdot \frac1n \sum_j g_j w_j \hat x_j \Big)$$
#
# Scaling a row doesn't change $\hat x$. **What does that make $\sum_i x_i \,\partial L/\partial x_i$ over a row, if eps
# is 0?**

# %% tags=["hide-input"]
along_x = predict_first("sum of x times its gradient over a row, RMSNorm, eps 0", unit="")
along_x

# %% tags=["hide-input"]
exact = x.detach().double().requires_grad_()
normalised = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True)) * weight.double()
(of_exact,) = torch.autograd.grad(normalised, exact, torch.randn_like(normalised))
along_x.compare(
    round((exact * of_exact).sum(-1).abs().max().item(), 6),
    "The gradient is orthogonal to the row: scaling a row changes nothing, so the gradient can't "
    "have a component along it. The formula subtracts it: the projection of g w onto x_hat.",
)

# %% [markdown]
# Now write it yourself. The kernel gets $g w$ as `gw`, each program has one row of 8 columns, and eps is 0. At the
# moment, the kernel subtracts $\hat x$ itself. **Make it subtract the projection** of $g w$ onto $\hat x$, as in the
# formula.


# %%
@triton.jit
def norm_gradient_kernel(x_ptr, gw_ptr, dx_ptr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x, gw = tl.load(x_ptr + at), tl.load(gw_ptr + at)
    rstd = tl.rsqrt(tl.sum(x * x) / COLUMNS)
    x_hat = x * rstd
    dx = rstd * (gw - x_hat)  # <- change this line
    tl.store(dx_ptr + at, dx)


row = torch.tensor(
    [
        [0.5, -3.25, 0.75, -2.25, 1.5, 2.5, 1.75, -2.0],
        [-1.75, -0.75, 1.0, 1.25, 3.0, -1.25, -2.5, -3.0],
    ],
    requires_grad=True,
)
gw = torch.tensor([[3.0, 1, 4, -1, 5, -9, 2, 6], [5.5, -3, 5.25, 8, 9, -7, 9.5, 3.5]])
(right,) = torch.autograd.grad(row * torch.rsqrt(row.square().mean(-1, keepdim=True)), row, gw)
puzzle(norm_gradient_kernel, 2, row.detach(), gw, wanted=right, COLUMNS=8)

# %% [markdown]
# <details><summary>Answer</summary><code>dx = rstd * (gw - x_hat * (tl.sum(gw * x_hat) / COLUMNS))</code>: the mean of
# the products times x_hat is the component along the row.</details>
#
# <!-- choices
# dx = rstd * (gw - x_hat)
#
# dx = rstd * gw
#
# dx = rstd * (gw - x_hat * tl.sum(gw * x_hat))
#
# dx = rstd * (gw - tl.sum(gw) / COLUMNS)
#
# dx = rstd * (gw - x_hat * (tl.sum(gw * x_hat) / COLUMNS))
# -->
#
# ## The backward kernel
#
# We need two gradients of different shapes. The gradient of `x` has the same shape as `x`, so a program can store its
# own row. The weight's gradient is a sum over **all rows**, which are spread over all programs. So each program loops
# over many rows and accumulates their weight gradients in registers. Then it stores this [partial
# sum](../docs/glossary.md#partial-sum) in its own row of a small buffer, and PyTorch adds up those few rows.
#
# The formula is an argument, `GRADIENT`, so that we can swap in a naive one that treats $r$ as a constant.


# %%
@triton.jit
def naive(x_hat, gw, rstd, cols):
    return rstd * gw


@triton.jit
def full(x_hat, gw, rstd, cols):
    return rstd * (gw - x_hat * (tl.sum(gw * x_hat) / cols))


# %%
@triton.jit
def backward_kernel(
    dy_ptr, x_ptr, w_ptr, dx_ptr, sums_ptr, rows, cols, eps,
    GRADIENT: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    inside, total = col < cols, tl.zeros((BLOCK,), COMPUTE)
    weight = tl.load(w_ptr + col, mask=inside, other=0.0).to(COMPUTE)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * cols + col
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(COMPUTE)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(COMPUTE)
        rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
        tl.store(dx_ptr + at, GRADIENT(x * rstd, dy * weight, rstd, cols), mask=inside)
        total += dy * x * rstd
    tl.store(sums_ptr + tl.program_id(0) * cols + col, total, mask=inside)


# %%
def backward(dy, x, weight, gradient):
    rows, cols = x.shape
    programs = min(rows, 264 if runtime.has_gpu() else 4)  # two per SM of an H200
    dx, wide = torch.empty_like(x), torch.promote_types(x.dtype, torch.float32)
    sums = torch.empty(programs, cols, dtype=wide, device=x.device)
    arguments = (dy.contiguous(), x, weight, dx, sums, rows, cols, EPS)
    backward_kernel[(programs,)](*arguments, GRADIENT=gradient, **options_for(x))
    return dx, sums.sum(0).to(weight.dtype)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, gradient):
        ctx.save_for_backward(x, weight)
        ctx.gradient = gradient
        return forward(x, weight)

    @staticmethod
    def backward(ctx, dy):
        return *backward(dy, *ctx.saved_tensors, ctx.gradient), None


# %% [markdown]
# ## Does a falling loss prove it?
#
# Let's train with the naive gradient and see. `benchmarks/training.py` has a small two-layer transformer in which you
# can swap the norm, attention, gate and loss. In its training text, there are always two equally likely next tokens,
# which depend on the second-to-last token. So no model's mean loss can drop below $\ln 2$. In PyTorch, the naive
# gradient takes a single call: `detach` stops the gradient through $r$. **What's the mean loss after 150 steps?** Just
# guess, between $\ln 2$ and the 3.8 at the start.

# %%
from benchmarks.training import BRANCHES, FUSED, SMALL, UNFUSED, prepared, train


def naive_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS).detach() * weight


# %% tags=["hide-input"]
naive_loss = predict_first("mean loss after 150 steps, naive gradient (it starts at 3.8)", unit="")
naive_loss

# %% tags=["hide-input", "nbval-ignore-output"]
STEPS = 150
losses = {
    name: train(prepared(parts, SMALL, device), SMALL, STEPS, device)
    for name, parts in {"right": UNFUSED, "naive": replace(UNFUSED, norm=naive_norm)}.items()
}
rows = [(name, f"{each[0]:.2f}", f"{sum(each[-20:]) / 20:.2f}") for name, each in losses.items()]
display(table(("loss", "first", "mean of the last 20"), rows))
naive_loss.compare(
    round(sum(losses["naive"][-20:]) / 20, 2),
    f"No model can go below {math.log(BRANCHES):.2f}. Both learn. Gradients that point roughly the "
    "right way do train a model, though perhaps to a worse result.",
)

# %% tags=["hide-input", "nbval-ignore-output"]
means = {
    name: {last: sum(each[last - 10 : last]) / 10 for last in range(10, STEPS + 1, 10)}
    for name, each in losses.items()
}
limit = {"minimum": {10: math.log(BRANCHES), STEPS: math.log(BRANCHES)}}
axes = {"x": "steps", "y": "loss, mean of ten steps"}
chart = curves_chart(means, "The loss falls with either gradient", **axes, limit=limit)
naive_loss.on(chart, "y")

# %% tags=["hide-input"]
print("both learned:", all(sum(each[-20:]) / 20 < 0.5 * each[0] for each in losses.values()))

# %% [markdown]
# **A falling loss proves nothing.** So what does?
#
# ## gradcheck
#
# [gradcheck](../docs/glossary.md#gradcheck) nudges each input by $10^{-6}$, measures how much the results change, and
# compares that with your backward pass. In fp32, such a small nudge gets lost in rounding, so you need float64 *all the
# way through the kernel*. That's why `COMPUTE` is an argument. Test small, awkward shapes: one row, one column, more
# rows than programs (on a GPU, that would take more than 264).


# %%
def gradcheck(gradient, rows, columns):
    norm = lambda x, weight: Norm.apply(x, weight, gradient)
    small = inputs(rows, columns, torch.float64)
    return torch.autograd.gradcheck(norm, small, raise_exception=False)


print("naive, 1 x 5:", gradcheck(naive, 1, 5))
for shape in ((1, 5), (6, 3), (5, 1)):
    print(f"full, {shape[0]} x {shape[1]}:", gradcheck(full, *shape))

# %% [markdown]
# So the formula is right. But gradcheck doesn't cover rounding, and a correct formula can still lose accuracy in fp32
# or bf16. So we take float64 as the truth and compare our error in each gradient with PyTorch's error in the same
# dtype:


# %% tags=["hide-input"]
def gradients(norm, x, weight, dy):
    return torch.autograd.grad(norm(x, weight), (x, weight), dy)


by_hand = lambda x, weight: Norm.apply(x, weight, full)
for dtype in (torch.float32, torch.bfloat16):
    given = inputs(24, 1000, dtype)
    dy = torch.randn(24, 1000).to(given[0])
    truth = gradients(
        unfused, *(each.detach().double().requires_grad_() for each in given), dy.double()
    )
    pairs = zip(gradients(by_hand, *given, dy), gradients(unfused, *given, dy), truth, strict=True)
    errors = [((a - c).abs().max() / (b - c).abs().max()).item() for a, b, c in pairs]
    print(f"{dtype}: at most twice the error of unfused PyTorch: {max(errors) <= 2}")

# %% [markdown]
# **By what factor does fusing cut the traffic of the backward pass, in fp32?** Unfused, PyTorch goes back through the
# formula one operator at a time. You can't know its exact list of kernels, so guess how many tensors the size of x they
# read and write. Ours reads `x` and the incoming gradient and writes the outgoing one. The partial sums are just a few
# rows.

# %% tags=["hide-input"]
backward_bytes = predict_first("unfused ÷ fused traffic, RMSNorm backward", unit="times")
backward_bytes

# %% tags=["hide-input", "nbval-ignore-output"]
dy = torch.randn(64, 1000, device=device)
results = {"unfused": unfused(x, weight), "fused": by_hand(x, weight)}
moved = {}
for name, y in results.items():
    moved[name] = measure(lambda y=y: torch.autograd.grad(y, (x, weight), dy))
    print(f"{name:7} {moved[name]}")
backward_bytes.compare(moved["unfused"].bytes_total / moved["fused"].bytes_total)

# %% [markdown]
# (Each program also reads the weight and writes a partial sum, but in a real batch of tens of thousands of rows, that
# hardly counts.) Here's what each version [saves for backward](../docs/glossary.md#saved-for-backward):

# %%
print("unfused:", saved_for_backward(unfused, x, weight))
print("fused:", saved_for_backward(by_hand, x, weight))

# %% [markdown]
# Ours saves its inputs and [recomputes](../docs/glossary.md#recompute) `rstd`, because the row is in registers anyway.
#
# ## Mixed precision with one rounding
#
# In mixed precision, tensors are bf16 but arithmetic is fp32. Unfused, each operator rounds its result to bf16. A fused
# kernel rounds once, when it stores. Here's the chain `silu(gate + bias) * up` both ways:


# %%
@triton.jit
def biased_gate_kernel(gate_ptr, bias_ptr, up_ptr, y_ptr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + col
    z = tl.load(gate_ptr + at).to(tl.float32) + tl.load(bias_ptr + col).to(tl.float32)
    tl.store(y_ptr + at, z * tl.sigmoid(z) * tl.load(up_ptr + at).to(tl.float32))


def fused_gate(gate, bias, up):
    y = torch.empty_like(gate)
    biased_gate_kernel[(len(gate),)](gate, bias, up, y, BLOCK=gate.shape[1])
    return y


def biased_gate(gate, bias, up):
    return F.silu(gate + bias) * up


def autocast(*tensors):
    with torch.autocast(device, torch.bfloat16):
        return biased_gate(*tensors)


# %% [markdown]
# We take the root mean square of the error against float64. Rounding errors are independent, so it's their *squares*
# that add up. **By what factor do three roundings raise the error, compared with one?**

# %% tags=["hide-input"]
three_roundings = predict_first("error with three roundings ÷ error with one, bf16", unit="times")
three_roundings

# %% tags=["hide-input"]
draw = torch.Generator().manual_seed(1)
sizes = (64, 1024), (1024,), (64, 1024)
gate, bias, up = (torch.randn(each, generator=draw).to(device, torch.bfloat16) for each in sizes)
wide = bias.float()
ways = {
    "unfused": lambda: biased_gate(gate, bias, up),
    "autocast": lambda: autocast(gate, bias, up),
    "autocast, fp32 bias": lambda: autocast(gate, wide, up).bfloat16(),
    "fused": lambda: fused_gate(gate, bias, up),
}
exact, errors, rows = biased_gate(gate.double(), bias.double(), up.double()), {}, []
for name, way in ways.items():
    found = measure(way)
    errors[name] = ((found.result - exact).norm() / exact.norm()).item()
    moved_by = f"{found.unique_total / gate.numel():.0f}"
    rows.append((name, f"{100 * errors[name]:.2f} %", found.launches, moved_by))
display(table(("", "error", "launches", "B/element"), rows))
three_roundings.compare(
    round(errors["unfused"] / errors["fused"], 1),
    "Three equal and independent errors would give the square root of 3. SiLU amplifies the first.",
)

# %% [markdown]
# `torch.autocast` fuses nothing. It changes the dtype of two lists of operators: matmuls run in bf16, and some others,
# such as losses, in fp32. The rest, like these three, it leaves alone, so the widest dtype of their inputs wins, as
# usual. With bf16 tensors that changes nothing. But it leaves parameters in fp32, so an fp32 bias makes the rest of the
# chain fp32, until the next matmul rounds to bf16. That's as accurate as the fused kernel, and you pay for it in bytes.
#
# ## Atomics or partial sums?
#
# Adding up the partial sums takes a second launch. Couldn't every program simply *add* to the same row in memory? With
# [`tl.atomic_add`](../docs/glossary.md#atomic-operation), many programs can do that without losing an addition. But
# GPUs don't run programs in a fixed order, and the result of an fp32 sum depends on the order. Here are the same 32
# numbers, added up in ten different orders:

# %%
draw = torch.Generator().manual_seed(0)
shares = torch.randn(32, generator=draw)
orders = [torch.randperm(32, generator=draw) for _ in range(10)]
sums = [sum(shares[order]).item() for order in orders]
print(f"{len(set(sums))} different sums, from {min(sums):.8f} to {max(sums):.8f}")

# %% [markdown]
# All of these are correct to fp32 precision. Now take our backward kernel on an H200, with 32,768 rows of 4096, and sum
# the weight's gradient in three ways: atomics with one program per row, atomics with just enough programs to keep the
# GPU busy (each looping over many rows), and partial sums from that same number of programs. **Make the same call
# twenty times on the same fp32 inputs. With atomics and one program per row, in how many of the 4096 columns do the
# sums differ?**

# %% tags=["hide-input"]
repeats = predict_first("columns that differ in 20 runs, atomics, H200", unit="")
repeats

# %% tags=["hide-input"]
repeated, times = h200.experiment("gradient_repeats"), h200.experiment("gradient_sums")
rows = []
for way, of_runs in repeated.items():
    counts = (of_runs["different"], of_runs["columns"])
    shown = (f"{of_runs['error']:.0e}", f"{1e6 * times[way].median:.0f} us")
    rows.append((way.replace("a program a row", "one program per row"), *counts, *shown))
columns = ("", "different results", "columns affected, of 4096", "largest error", "time in bf16")
display(table(columns, rows, h200.label_of("gradient_sums", "gradient_repeats")))
repeats.compare(
    repeated["atomics, a program a row"]["columns"],
    "No two runs agree, and every column is affected, while partial sums give the same result "
    "every time. With few programs, atomics take as long as partial sums and their second "
    "launch. With one program per row, too many additions go to the same address.",
)

# %% [markdown]
# So use partial sums wherever they're as fast. With atomics, two training runs with the same seed drift apart, first in
# the last digit and eventually in all of them. You can't bisect a bug that doesn't happen twice.
#
# ## Attention's backward pass
#
# In lesson 10 we computed $S = \sigma\, Q K^T$ (with $\sigma = 1/\sqrt{d}$), $P = \mathrm{softmax}(S)$ row by row and
# $O = P V$, one tile at a time. Going backwards from $dO = \partial L/\partial O$, the two matmuls give
#
# $$dV = P^T dO, \qquad dP = dO\, V^T, \qquad dQ = \sigma\, dS\, K, \qquad dK = \sigma\, dS^T Q.$$
#
# To get from $dP$ to $dS$ we have to go through the softmax. Since $\partial P_{ij} / \partial S_{ik} = P_{ij}
# (\delta_{jk} - P_{ik})$,
#
# $$dS_{ik} = \sum_j dP_{ij} P_{ij} (\delta_{jk} - P_{ik}) = P_{ik} \,(dP_{ik} - D_i), \qquad
# D_i = \sum_j P_{ij}\, dP_{ij}.$$
#
# Once again we're subtracting what can't matter: adding a constant to a row of scores doesn't change any probability.
# **Write it** for three queries and four keys. At the moment, the kernel leaves out $D$.


# %%
@triton.jit
def scores_gradient_kernel(p_ptr, dp_ptr, ds_ptr, KEYS: tl.constexpr):
    at = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    p, dp = tl.load(p_ptr + at), tl.load(dp_ptr + at)
    ds = p * dp  # <- change this line
    tl.store(ds_ptr + at, ds)


p = torch.tensor([[8.0, 4, 2.5, 1.5], [2, 3.5, 4.5, 6], [1, 7, 5, 3]]) / 16
dp = torch.tensor([[3.0, -1, 4, 1], [-5, 9, 2, 6], [5, 3.5, -5.5, 8]])
scores = p.double().log().requires_grad_()
(right,) = torch.autograd.grad(torch.softmax(scores, -1), scores, dp.double())
puzzle(scores_gradient_kernel, 3, p, dp, wanted=right.float(), KEYS=4)

# %% [markdown]
# <details><summary>Answer</summary><code>ds = p * (dp - tl.sum(p * dp))</code>: the sum is D, one value per
# query.</details>
#
# <!-- choices
# ds = p * dp
#
# ds = p * (dp - tl.sum(dp))
#
# ds = p * (dp - tl.sum(p * dp))
#
# ds = p * dp - tl.sum(p * dp)
#
# ds = p * (1 - p) * dp
# -->
#
# That leaves two problems. First, **P isn't in memory**, because flash attention never writes it. Instead, the forward
# pass saves one value per query, $\mathrm{lse}_i = \log \sum_j e^{S_{ij}}$, and the backward pass recomputes each tile
# as $P = e^{S - \mathrm{lse}}$, with no running max and no rescaling. Second, **D needs a whole row** of $P$ and $dP$,
# but a tile only has part of one. Fortunately, $D_i = \sum_j P_{ij} \sum_c dO_{ic} V_{jc} = \sum_c dO_{ic}\, O_{ic}$,
# which is the row sum of $dO$ times $O$, element by element, and you can compute that before the loop starts.
#
# **The forward pass does two matmuls per tile. How many does the backward pass do?**

# %% tags=["hide-input"]
backward_matmuls = predict_first("matmuls per tile in attention's backward pass", unit="")
backward_matmuls

# %% tags=["hide-input"]
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

shape = (1, 1, 96, 32)
ratio = sdpa_backward_flop_count(shape, *[shape] * 3) / sdpa_flop_count(*[shape] * 3)
backward_matmuls.compare(
    2 * ratio,
    f"PyTorch's FLOP counter agrees: {ratio} times the forward pass. One matmul recomputes S, and "
    "the others compute dV, dP, dK and dQ.",
)

# %% [markdown]
# A program owns a block of keys and loops over the queries, so `dk` and `dv` can accumulate in registers. (To keep the
# code short, there's one head, no mask, and every length is a multiple of `BLOCK`.)


# %%
@triton.jit
def attention_backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    tokens, scale, BLOCK: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    place, dim = tl.arange(0, BLOCK), tl.arange(0, DIM)
    keys = (tl.program_id(0) * BLOCK + place)[:, None] * DIM + dim
    k, v = tl.load(k_ptr + keys), tl.load(v_ptr + keys)
    dk, dv = tl.zeros((BLOCK, DIM), tl.float32), tl.zeros((BLOCK, DIM), tl.float32)
    for start in range(0, tokens, BLOCK):
        query = start + place
        queries = query[:, None] * DIM + dim
        q, do = tl.load(q_ptr + queries), tl.load(do_ptr + queries)
        lse, delta = tl.load(lse_ptr + query), tl.load(delta_ptr + query)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        p = tl.exp(s - lse[:, None])  # recomputed
        dv = tl.dot(p.T, do, dv, input_precision="ieee")
        dp = tl.dot(do, v.T, input_precision="ieee")
        ds = p * (dp - delta[:, None]) * scale
        dk = tl.dot(ds.T, q, dk, input_precision="ieee")
        tl.atomic_add(dq_ptr + queries, tl.dot(ds, k, input_precision="ieee"))
    tl.store(dk_ptr + keys, dk)
    tl.store(dv_ptr + keys, dv)


# %%
TOKENS, DIM = 96, 32
q, k, v, do = (torch.randn(TOKENS, DIM, device=device) for _ in range(4))
scale = DIM**-0.5
s = q @ k.T * scale
lse, o = s.logsumexp(-1), torch.softmax(s, -1) @ v  # flash attention saves these two
dq, (dk, dv) = torch.zeros_like(q), torch.empty(2, TOKENS, DIM, device=device)
arguments = (q, k, v, do, lse, (do * o).sum(-1), dq, dk, dv, TOKENS, scale)
_ = attention_backward_kernel[(TOKENS // 32,)](*arguments, BLOCK=32, DIM=DIM)

# %% tags=["hide-input"]
leaves = [each.double().requires_grad_() for each in (q, k, v)]
attended = F.scaled_dot_product_attention(*(each[None, None] for each in leaves))
truth = torch.autograd.grad(attended, leaves, do.double()[None, None])
for name, mine, each in zip(("dQ", "dK", "dV"), (dq, dk, dv), truth, strict=True):
    agree = (mine - each).abs().max() < 1e-5 * each.abs().max()
    print(f"{name} agrees with autograd in float64: {agree.item()}")

# %% [markdown]
# The catch is `dq`. Every block of keys contributes to it, so we sum it with atomics, in whatever order the programs
# arrive. Alternatively, you can write a second kernel whose programs own blocks of queries and loop over the keys. It
# has to repeat the matmuls for S and dP, but it returns the same bits every time. The plain kernel behind
# `kernels.flash_attention` does this. On Hopper, a tuned kernel adds dQ in memory as above: five matmuls instead of
# seven. (Lesson 10's sweep table compares the two.) `torch.use_deterministic_algorithms(True)` turns that kernel off,
# and PyTorch's own attention obeys the same switch.
#
# ## What should a layer save?
#
# A whole layer gives you more choices. To compute the weights' gradients, the layer's matmuls need their inputs again,
# mostly outputs of the norms and the gate. You can recompute those from tensors that are saved anyway, with a few extra
# reads and a little arithmetic. We'll compare four policies:
#
# - *unfused*: save what PyTorch saves, operator by operator (attention is fused in all four);
# - *fused*: save what our kernels need, plus the matmuls' inputs;
# - *norms, gate recomputed*: don't save those inputs either;
# - *layer recomputed*: save nothing except the layer's input. This is **checkpointing**.
#
# The times come from the data sheet: matmuls run at the tensor cores' rate, and everything else at memory bandwidth.
# Try these:
#
# 1. You have 32 layers on an H200, with 32,768 tokens of width 4096 in bf16, and weights and optimiser take half of
#    its memory. Which policy do you choose?
# 2. Does recomputing norms and gate take a larger share of the time at a small width or a large one? Why?
# 3. Switch from bf16 to fp32. Why does recomputing the norms become even cheaper relative to the rest?

# %% tags=["hide-input"]
from helpers.figures import CheckpointingExplorer

explorer = CheckpointingExplorer(tokens=8192, width=4096, dtype="bf16", device="H200")
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. Neither unfused nor fused fits, and recomputing norms and gate isn't
# enough either. Checkpointing does. (In practice you'd use different policies for different layers.) 2. At a small
# width, because matmuls grow as the square of the width and everything else grows linearly. 3. By default, fp32 matmuls
# don't use tensor cores, so they run at a fraction of the rate, while the bytes only double.</details>
#
# *Going further* counts what checkpointing costs, and shows which tensors torch.compile decides to save.
#
# ## Cross entropy without all the logits
#
# The largest tensor in a language model is often its last one, the logits: one per token *and per word of the
# vocabulary*. Cross entropy computes just as many log-probabilities, and its backward pass just as many gradients. But
# the loss is a mean over tokens, so we can process a few tokens at a time. All the other gradients need from the logits
# is *their* gradient, $(\mathrm{softmax} - \mathrm{onehot})/N$, and we can compute that during the **forward** pass,
# while the logits exist. We use it in both matmuls, and then the next chunk overwrites the logits. In outline:
#
# ```python
# for part in chunks:                             # slices of tokens
#     logits = hidden[part] @ weight.T            # in one buffer, reused
#     loss_kernel[grid](logits, labels[part], losses[part], ...)  # into logits: gradients
#     grad_hidden[part] = logits @ weight
#     grad_weight += logits.T @ hidden[part]
# ```
#
# `loss_kernel` reads each row of logits twice: first for the max and sum, as in lesson 06, and then to overwrite it
# with the gradient. Here is its second loop:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_11 import linear_loss, loss_kernel, step
from benchmarks.experiments.lesson_11 import written_out as logits_and_loss

second_loop = inspect.getsource(loss_kernel.fn).split("overwrites it\n")[1]
print(inspect.cleandoc("\n" + second_loop))

# %% [markdown]
# Let's use the dimensions of the smaller Llama 3, with 8192 tokens of width 4096 and 128,256 words, in bf16 on an H200.
# `eager` computes all logits, and the loss in fp32, as most models' code does, so at its peak it holds three fp32
# tensors with the shape of the logits. With chunks, the largest tensor left is the weight's gradient, in two copies:
# the sum, and the sum scaled by the loss's own gradient. **By what factor do chunks of 1024 tokens cut the loss's peak
# memory?**

# %% tags=["hide-input"]
large_peak = predict_first(
    "peak memory of Llama 3's loss, eager ÷ chunks of 1024 tokens", unit="times"
)
large_peak

# %% tags=["hide-input"]
of_loss = h200.experiment("linear_loss")
matmuls = 3 * 2 * 8192 * 4096 * 128_256 / h200.matrix_rate
print(f"three matmuls at the rate of a large one: {1e3 * matmuls:.0f} ms")
rows = []
for name, found in of_loss.items():
    rows.append((name, f"{found['peak'] / 1e9:.2f} GB", f"{1e3 * found['time'].median:.1f} ms"))
display(table(("tokens at a time", "peak", "time"), rows, h200.label_of("linear_loss")))
all_at_once = of_loss["eager"]["peak"]
large_peak.compare(
    all_at_once / of_loss[1024]["peak"],
    "At 4096 tokens and fewer, the peak no longer falls, because the two copies of the weight's "
    "gradient remain. Each chunk moves the weight or its gradient four times, about 1 ms. Below "
    "512 tokens the arithmetic takes no longer than that, so the time rises: choose the largest "
    "chunk that fits. (Each chunk also rounds the sum in bf16 once more.) torch.compile avoids "
    "the fp32 logits without any hint, and it's faster than any chunk size. Use it if the bf16 "
    "logits and their gradient both fit.",
)

# %% [markdown]
# You don't have to write this yourself. PyTorch 2.13 has `linear_cross_entropy` (chunked only if you pass `options`),
# Liger has a fused linear cross entropy, and *Cut Cross-Entropy* (arXiv:2411.09009) keeps all logits out of DRAM. We
# haven't timed any of the three. Here's how much memory ours and PyTorch's need for 64 tokens and 4096 words in fp32:

# %%
hidden, head = (torch.randn(size, 32, device=device, requires_grad=True) for size in (64, 4096))
labels = torch.randint(4096, (64,), device=device)
chunked = partial(linear_loss, chunk=8)
of_pytorch = partial(F.linear_cross_entropy, options=torch.nn.LinearCrossEntropyOptions())

# %% tags=["hide-input", "nbval-ignore-output"]
ways = {"all logits": logits_and_loss, "8 at a time": chunked, "PyTorch's, chunked": of_pytorch}
peaks = {name: peak_memory(step, way, hidden, head, labels) for name, way in ways.items()}
for name, peak in peaks.items():
    print(f"{name}: {peak}")

# %% tags=["hide-input"]
doubles = [each.detach().double().requires_grad_() for each in (hidden, head)]
for name, peak in peaks.items():
    pairs = zip(peak.result, step(logits_and_loss, *doubles, labels), strict=True)
    errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    print(f"{name}: gradients agree with float64: {max(errors) < 1e-5}")

# %% [markdown]
# ## A transformer, trained twice
#
# Now let's train the transformer from above twice: first unfused in PyTorch, then with four parts swapped. RMSNorm,
# FlashAttention and SwiGLU come from the course's kernels, and the loss is computed in chunks. The rest of the code,
# the initial weights and the text are the same. Without a GPU, the fused kernels run in Triton's interpreter, which
# does the same arithmetic, only slowly.

# %% tags=["hide-input"]
for name, part in vars(FUSED).items():
    print(f"{name}: {getattr(part, 'func', part).__name__}")
runs = {
    name: train(prepared(parts, SMALL, device), SMALL, 8, device)
    for name, parts in {"unfused": UNFUSED, "fused": FUSED}.items()
}
for step_number, pair in enumerate(zip(*runs.values(), strict=True)):
    print(f"step {step_number}: unfused {pair[0]:.3f}, fused {pair[1]:.3f}")

# %% tags=["nbval-ignore-output", "hide-input"]
twice = lambda x, weight: UNFUSED.norm(x, 2 * weight - weight.detach())  # weight, 2x its gradient
others = {"naive": losses["naive"], "fused": runs["fused"]}
others["twice the weight's gradient"] = train(
    prepared(replace(UNFUSED, norm=twice), SMALL, device), SMALL, 4, device
)
for number in (0, 1, 2, 3):
    off = (f"{name} {abs(losses['right'][number] - of[number]):.0e}" for name, of in others.items())
    print(f"step {number}, differs by:", ", ".join(off))

# %% tags=["hide-input"]
apart = max(abs(one - other) for one, other in zip(*runs.values(), strict=True))
print("fused and unfused losses agree to within 1e-5 over 8 steps:", apart < 1e-5)

# %% [markdown]
# The difference starts in the last digit of an fp32 value, because the kernels add in a different order, and over many
# training steps it grows. **So compare losses step by step at the start, and as curves later.** No gradient has
# affected the loss at step 0, but at step 1 the naive loss is already off by over a thousand times more than the fused
# one. *That's* how a loss can expose a wrong gradient: compared step by step with a trusted run. But it can't expose a
# weight gradient's wrong *scale*: AdamW divides that out, so twice the gradient passes unnoticed. For that, compare the
# gradients themselves. Here's a minute of `python -m benchmarks.training`, recorded:

# %% tags=["hide-input"]
from helpers.figures import loss_chart

cpu = recorded("cpu")
minute = cpu.experiment("training")
loss_chart(minute["unfused"], minute["fused"], math.log(BRANCHES), cpu.label)

# %% [markdown]
# **Claim: dropping intermediates takes 20 to 40 % less memory.** So far, it held for a gate (lesson 04), in part for a
# loss (lesson 06), and for a block with attention at two lengths out of six (lesson 10). Here we test it on the whole
# transformer, without its weights, which both versions save:


# %% tags=["hide-input"]
def activations(parts):
    """Return the loss, and the bytes saved for the backward pass, without the weights."""
    model, sizes = prepared(parts, SMALL, device), {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    text = torch.zeros(SMALL.batch, SMALL.tokens + 1, dtype=torch.int64, device=device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(text)  # held, so that no address is used twice
    weights = {each.data_ptr() for each in model.parameters()}
    return loss, sum(nbytes for address, nbytes in sizes.items() if address not in weights)


kept = {name: activations(parts)[1] for name, parts in {"unfused": UNFUSED, "fused": FUSED}.items()}
for name, nbytes in kept.items():
    print(f"{name}: {nbytes / 1e3:.0f} kB saved")
print(
    "\nVerdict: holds, for the whole of this small model. "
    f"{100 * (1 - kept['fused'] / kept['unfused']):.1f} % less."
)
print("Both save the inputs of the matmuls, norms and gates. At other sizes the saving differs.")

# %% [markdown]
# Next, a larger version of the model on an H200: six layers of width 1024 with 16 heads, 8 sequences of 1024 tokens per
# step, and 32,768 words, in bf16. Unfused, the two largest items are each layer's N x N probabilities and the loss's
# three fp32 tensors of logits. Everything else takes about two gigabytes in either version. **By what factor does
# fusing cut the peak memory of a step, not counting the weights?**

# %% tags=["hide-input"]
step_memory = predict_first("peak memory of a training step, unfused ÷ fused, H200", unit="times")
step_memory

# %% tags=["hide-input"]
on_h200 = h200.experiment("training")
rows = []
for name, found in on_h200.items():
    took = f"{1e3 * found['step'].median:.1f} ms"
    rows.append((name, took, f"{found['peak'] / 1e9:.2f} GB"))
display(table(("", "time per step", "peak"), rows, h200.label_of("training")))
first = on_h200["unfused"]["losses"]
for name in ("torch.compile", "fused"):
    off = [abs(loss - first[number]) for number, loss in on_h200[name]["losses"].items()]
    print(f"{name}: loss off by at most {max(off):.4f} in {len(off)} steps")
print("losses that differ in a second fused run:", on_h200["fused"]["again"])
step_memory.compare(
    on_h200["unfused"]["peak"] / on_h200["fused"]["peak"],
    "The N x N scores and the logits are gone. torch.compile was given unfused attention and "
    "loss and still stores both matrices, so this isn't a comparison of compilers.",
)

# %% [markdown]
# With `scaled_dot_product_attention` and a chunked loss, torch.compile should come closer, but we haven't timed that.
# The second fused run repeats every loss because the attention kernel of the time summed dQ in a fixed order. On
# Hopper, today's only does that under `torch.use_deterministic_algorithms(True)`.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. LayerNorm subtracts the row's mean before it divides. What does its gradient subtract that RMSNorm's doesn't?
# <details><summary>Answer</summary>
#
# Its mean. Adding a constant to a row doesn't change the result, so the gradient has
# no component along the vector of ones: $r\,(g w - \mathrm{mean}(g w) - \hat x \cdot \mathrm{mean}(g w \hat
# x))$.
#
# </details>
#
# 2. gradcheck rejects your kernel at every shape, but accepts the same formula in PyTorch. Where do you look first?
# <details><summary>Answer</summary>At <code>.to(tl.float32)</code>. A kernel that computes in fp32 can't resolve a
# nudge of 10<sup>-6</sup>.</details>
#
# 3. Your backward kernel sums the weight's gradient with atomics, and the tests pass. Name two drawbacks.
# <details><summary>Answer</summary>Two runs differ, first in the last digits and later in all of them. And you have to
# zero the row of sums first, which is another launch. (In bf16, every addition would also round.)</details>
#
# 4. Your layer runs out of memory. Which would you recompute first: the norms and the gate, or a matmul's result?
# <details><summary>Answer</summary>Norms and the gate. They take a few extra reads and little arithmetic, while
# repeating a matmul takes all of its FLOPs.</details>
#
# 5. Fused and unfused losses agree to six digits for a hundred steps, and over the next thousand they drift apart by a
#    tenth. Is a gradient wrong?
# <details><summary>Answer</summary>Most likely not. It's rounding, amplified by training. A gradient of the wrong
# direction usually shows in the very first steps. One of the wrong scale may not, with AdamW, so also compare the
# gradients of one step with float64.</details>
#
# 6. A batch has 8192 tokens and the vocabulary has 128,256 words. How many GB do the logits take in bf16? Replace the
#    dots with your number.

# %%
answer = ...
self_test(answer, 8192 * 128_256 * 2 / 1e9, "tokens times words, two bytes each")

# %% [markdown]
# ## Now you
#
# In [Exercise 11](../exercises/11_fused_backward.ipynb) you'll write the backward pass for LayerNorm with GELU. The
# checks compare your gradients with float64.

# %% [markdown]
# ## Going further
#
# ### Checkpointing's FLOPs
#
# Checkpointing runs the forward pass again, but with `use_reentrant=False` only up to the last tensor that the backward
# pass needs. It skips the block's last matmul, because no gradient depends on that result. (The explorer above repeats
# it.) Our block has width 32. Its matmuls are those of attention, which are small here, and five linear layers: $w \to
# 3w$ (Q, K, V), $w \to w$, two of $w \to 3w$ (gate and up), and finally $3w \to w$. PyTorch counts the FLOPs as it
# runs:

# %% tags=["hide-input"]
from torch.utils.checkpoint import checkpoint


def through_blocks(x, run):
    for block in model.blocks:
        x = run(block, x)
    return x


model = prepared(UNFUSED, SMALL, device)
states = torch.randn(SMALL.batch, SMALL.tokens, SMALL.width, device=device, requires_grad=True)
ways = {
    "saved": lambda block, x: block(x),
    "checkpointed": partial(checkpoint, use_reentrant=False),
}
flops = {}
for name, run in ways.items():
    with FlopCounterMode(display=False) as counter:
        through_blocks(states, run).sum().backward()
    flops[name] = counter.get_total_flops()
    held = peak_memory(through_blocks, states, run).bytes / states.nbytes
    print(f"{name}: {flops[name] / 1e6:.1f} MFLOP; the forward pass peaks at {held:.0f}x its input")
more = flops["checkpointed"] / flops["saved"] - 1
print(f"not repeated: {100 * (1 - 3 * more):.0f} % of the forward pass")
print(
    f"checkpointing adds {100 * more:.1f} % to a step's FLOPs; "
    "a whole forward pass would add a third"
)

# %% [markdown]
# **Claim: checkpointing costs a third more compute.** The idea is that the forward pass is a third of a step and now
# runs twice.

# %% tags=["hide-input"]
print(
    f"{100 * more:.1f} % more FLOPs, checkpointed\n\n"
    "Verdict: nearly, for FLOPs: a third is the upper limit. Matmuls are expensive to repeat, but\n"
    "norms and the gate are cheap: in the explorer, 30 % less memory for 1 % more time. So it\n"
    "pays to choose more finely than by layer."
)

# %% [markdown]
# ### What torch.compile decides
#
# `torch.compile` captures the forward and backward passes as *one* graph, then cuts it in two. Every edge it cuts is a
# tensor it has to save. So it looks for the cheapest cut, a **minimum cut** in a network whose capacities are bytes,
# and it can recompute cheap operations in the backward half. We can run this **min-cut partitioner** without generating
# any code. Here it is on an unfused norm and gate:


# %% tags=["hide-input"]
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition


def cut(function, partition, *inputs):
    """Return the graphs of the forward and the backward pass."""
    graphs = []
    note = lambda graph, _: graphs.append(graph) or make_boxed_func(graph)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=note, bw_compiler=note, partition_fn=partition)
    torch.compile(function, backend=backend, fullgraph=True)(*inputs).sum().backward()
    return graphs


def describe(graphs, like):
    """Return the names of the saved tensors as large as `like`, and of those recomputed."""
    forward_graph, backward_graph = (list(graph.graph.nodes) for graph in graphs)
    given = [
        node for node in backward_graph if node.op == "placeholder" and "tangents" not in node.name
    ]
    large = [node.name for node in given if node.meta["val"].numel() == like.numel()]
    made = {node.name for node in forward_graph if node.op == "call_function"}
    return large, [
        node.name for node in backward_graph if node.op == "call_function" and node.name in made
    ]


# %%
def norm_and_gate(x, weight, up):
    return F.silu(unfused(x, weight)) * up


up = torch.randn_like(x, requires_grad=True)
large, again = describe(cut(norm_and_gate, default_partition, x, weight, up), x)
print(f"autograd's cut: {len(large)} saved, {', '.join(large)}")

# %% [markdown]
# (`primals` are the arguments, in order of use.) The minimum cut saves fewer:

# %% tags=["hide-input"]
large, again = describe(cut(norm_and_gate, min_cut_rematerialization_partition, x, weight, up), x)
print(f"minimum cut: {len(large)} saved, {', '.join(large)}; recomputed: {', '.join(again)}")

# %% [markdown]
# It saves x and up, which exist anyway, and recomputes the rest, just as you would. It also saves rsqrt (not listed: it
# has one value per row), because a reduction isn't cheap enough to repeat.
#
# ### How much the compiler recomputes
#
# You control this with `activation_memory_budget`, from 1 for minimum time down to 0 for minimum memory. Let's try it
# with a matmul in the middle, `silu(norm(x) @ p) * up`. At first the compiler saves the matmul (`mm`) and its input
# (`t`, the norm's result). With a smaller budget it recomputes the norm, and finally the matmul too. These are the
# explorer's policies again, but chosen by the compiler.


# %% tags=["nbval-ignore-output"]
import torch._functorch.config as functorch_config


def with_matmul(x, weight, up, p):
    return F.silu(unfused(x, weight) @ p) * up


projection = torch.randn(1000, 1000, device=device, requires_grad=True)
for budget in (1.0, 0.6, 0.3):
    with functorch_config.patch(activation_memory_budget=budget):
        graphs = cut(with_matmul, min_cut_rematerialization_partition, x, weight, up, projection)
    large, again = describe(graphs, x)
    print(
        f"budget {budget}: {len(large)} saved, {', '.join(large)}; recomputed: {', '.join(again)}"
    )

# %% [markdown]
# ### Your kernel in torch.compile's graph
#
# By default, `torch.compile` traces into any function that launches a kernel. It understands Triton launches on a GPU,
# but not this course's interpreter, and it can't see inside a CUDA C++ extension at all. With `torch.library` you can
# register the three things it needs: a name, a function that describes the result without computing it (a **fake**),
# and the gradient. The course does this for all of its kernels in `kernels/op.py`, with the same pieces you've just
# written:

# %%
from kernels.op import like, register


def norm_forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return forward(x, weight)


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return backward(dy, x, weight, full)


norm = register(
    "lesson_norm",
    norm_forward,
    lambda x, weight: like(x),
    keep=lambda arguments, y: arguments,
    backward=norm_backward,
    backward_fake=lambda dy, x, weight: (like(x), like(weight)),
)


def model_of_mine(x, weight, up):
    return (F.silu(norm(x, weight)) * up).sum()


# %% tags=["hide-input"]
found = torch._dynamo.explain(model_of_mine)(x, weight, up)
calls = [node.target for node in found.graphs[0].graph.nodes if node.op == "call_function"]
print(f"{found.graph_count} graph, {found.graph_break_count} breaks:", end=" ")
print(", ".join(str(getattr(call, "__name__", call)) for call in calls))
compiled = torch.compile(model_of_mine, backend="aot_eager", fullgraph=True)
ours = torch.autograd.grad(compiled(x, weight, up), (x, weight, up))
expected = torch.autograd.grad(norm_and_gate(x, weight, up).sum(), (x, weight, up))
right = all(torch.allclose(*pair, atol=1e-3) for pair in zip(ours, expected, strict=True))
print("right gradients:", right)
large, again = describe(cut(model_of_mine, min_cut_rematerialization_partition, x, weight, up), x)
print(f"{len(large)} saved, {', '.join(large)}; recomputed: {', '.join(again)}")

# %% [markdown]
# We get one graph with your kernel as a node. But the cut now also saves the norm's result, because the partitioner
# can't look inside your operator and doesn't know that it's cheap to recompute. **The compiler has no say inside an
# operator you register this way.** (`torch.library.triton_op` makes the Triton kernels inside visible to it. The course
# doesn't use it, because the compiler doesn't understand its interpreter.) You could fuse the gate into the kernel too.
# Otherwise the compiler may save more than it should.
#
# ### A fake that is wrong
#
# A fake is a promise, and the compiler relies on it to allocate and fuse. By default, compiled code does compare sizes
# and strides with the result, but not the dtype. The fake below forgets that the kernel returns `x`'s dtype. `opcheck`
# compares all of it, in each of PyTorch's tracing modes, and the course's tests run it on every operator.

# %%
careless = register("careless_norm", norm_forward, lambda x, weight: like(x).float())
half = torch.randn(4, 100, device=device, dtype=torch.bfloat16)
for name, operation in (("norm", norm), ("careless", careless)):
    try:
        tests = torch.library.opcheck(operation.forward_op, (half, half[0]))
        print(f"{name}: {', '.join(tests)}: {set(tests.values())}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).partition(' with ')[0]}")

# %% [markdown]
# ### Loss scaling in fp16
#
# In fp16, gradients that are too small to represent become 0. That's why mixed precision in fp16 multiplies the loss by
# a scale, and divides the gradients by it before the optimiser's step. If a fused loss rounds its gradient in the
# forward pass, it has to apply the scale *before* that rounding, which `linear_loss` doesn't: it passes only 1/N.
# Afterwards it's too late, as you can see from the gradients of a few of 8192 tokens over 4096 words:

# %%
logits = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
gradient = torch.softmax(logits, -1) / 8192  # without the label's -1
for name, scaled in (
    ("after rounding", gradient.half() * 2**12),
    ("before", (gradient * 2**12).half()),
):
    zeros = (scaled == 0).float().mean().item()
    print(f"scaled {name}: {100 * zeros:.1f} % of the gradients are 0")

# %% [markdown]
# bf16 has the same range as fp32 and doesn't need loss scaling.
#
# The division doesn't need an extra pass if the optimiser does it while it loads each gradient. `kernels.adamw` is
# AdamW in one launch for all parameters. Each program looks up its chunk of a tensor in a table. If `found_inf` is set,
# as `GradScaler` does for fused optimisers, the programs don't write anything.
#
# An fp32 step reads the parameter, its gradient and two moments, and writes all but the gradient: seven passes. Here
# are the passes of PyTorch's eager steps, including the division by the scale, and of ours, including its table:

# %%
from kernels import adamw

sizes = (1000, 10, 10_000, 100)
scale, found_inf = torch.tensor(2.0**12), torch.tensor(0.0)
params = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
for p in params:
    p.grad = torch.randn_like(p)
gradients = [p.grad for p in params]
moments = [[torch.zeros_like(p) for p in params] for _ in range(2)]


def eager_step(optimizer, foreach):
    if foreach:
        torch._foreach_div_(gradients, scale)
    else:
        for gradient in gradients:
            gradient.div_(scale)
    optimizer.step()


def fused_step():
    adamw(params, gradients, *moments, step=1, grad_scale=scale, found_inf=found_inf)


steps = {"fused": fused_step}
for foreach in (False, True):
    optimizer = torch.optim.AdamW(params, foreach=foreach)
    steps[f"foreach={foreach}"] = partial(eager_step, optimizer, foreach)
rows = []
for name, one_step in steps.items():
    measure(one_step)  # the first step allocates moments, or makes the table
    found = measure(one_step)
    rows.append((name, found.launches, f"{found.bytes_total / (4 * sum(sizes)):.1f}"))
table(("step", "launches", "passes"), rows)

# %% [markdown]
# `foreach=True` merges launches across tensors but doesn't save any passes, because every operator still goes through
# memory. We didn't count the search for infinite gradients, which has to finish before any step may write.
