# %% [markdown]
# # 11 Training: the backward pass is yours
#
# PyTorch differentiates whatever is made of its operators. A kernel of yours is none of them: to autograd it is a wall.
# So you derive the gradient, write a second kernel, and decide what the first one leaves for it. Then you train, and
# the loss falls. **Does a falling loss say that the gradient is right?**
#
# After this lesson you can
#
# - derive a norm's gradient, write it as a kernel, and have gradcheck say whether it is right;
# - add up a weight's gradient over thousands of programs, in time, and the same way in every run;
# - say what a layer should keep for its backward pass, what it should compute again, and what torch.compile decides;
# - register a kernel so that torch.compile takes it as it is, and prove that the registration does not lie;
# - train with a vocabulary's loss whose logits never exist all at once;
# - train a transformer on fused kernels and show that it is the same training.
#
# About 60 minutes. It builds on [04](04_residuals_gates_dropout.ipynb) (what is kept),
# [05](05_normalisation.ipynb) (norms) and [06](06_softmax.ipynb) (cross entropy), and leads to
# [exercise 11](../exercises/11_fused_backward.ipynb).

# %%
import inspect
from functools import partial

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import measure, peak_memory, recorded, saved_for_backward, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
torch.set_num_threads(1)  # tensors as small as these gain nothing by more
device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## The wall
#
# RMSNorm, as in lesson 05: each row is divided by its root mean square, each column scaled by a weight. One program
# takes one row. `COMPUTE` is the dtype of the arithmetic; why it is an argument, you will see soon.


# %%
@triton.jit
def forward_kernel(x_ptr, weight_ptr, y_ptr, cols, eps, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    inside, at = col < cols, tl.program_id(0).to(tl.int64) * cols + col
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(COMPUTE)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(COMPUTE)
    rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
    tl.store(y_ptr + at, x * rstd * weight, mask=inside)


# %%
EPS = 1e-6


def options_for(x):
    compute = tl.float64 if x.dtype == torch.float64 else tl.float32
    return {"COMPUTE": compute, "BLOCK": triton.next_power_of_2(x.shape[1])}


def forward(x, weight):
    y = torch.empty_like(x)
    forward_kernel[(len(x),)](x, weight, y, x.shape[1], EPS, **options_for(x))
    return y


def inputs(rows, columns, dtype=torch.float32):
    x, weight = torch.randn(rows, columns), torch.randn(columns)
    return [each.to(device, dtype).requires_grad_() for each in (x, weight)]


# %%
def written_out(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


x, weight = inputs(64, 1000)
y = forward(x, weight)
print("the right values:", torch.allclose(y, written_out(x, weight), atol=1e-5))
print("a way back:", y.requires_grad)

# %% [markdown]
# Right, and a dead end: no gradient reaches `x` or `weight`, and nobody complains. A model with this norm would train
# only what comes after it.
#
# ## The gradient, by hand
#
# For a row of $n$ numbers, with $r = (\frac1n\sum_j x_j^2 + \varepsilon)^{-1/2}$, $\hat x_i = r\,x_i$ and
# $y_i = w_i \hat x_i$. Given is $g_i = \partial L / \partial y_i$. The weight is easy: each row adds $g_i \hat x_i$ to
# the gradient of $w_i$. An $x_i$ acts in two ways: on its own $\hat x_i$, and through $r$ on *every* element of its
# row:
#
# $$\frac{\partial r}{\partial x_i} = -\frac12 r^3 \cdot \frac{2 x_i}{n} = -\frac{r^2}{n}\,\hat x_i
# \qquad
# \frac{\partial L}{\partial x_i} = r\, g_i w_i + \sum_j g_j w_j x_j \frac{\partial r}{\partial x_i}
# = r \Big( g_i w_i - \hat x_i \cdot \frac1n \sum_j g_j w_j \hat x_j \Big)$$
#
# What is taken off is the part of $g w$ that points along $\hat x$. It has to go: a row that is only made longer is
# normalised to the same $\hat x$, so no gradient may say "longer". **Then what is
# $\sum_i x_i \,\partial L/\partial x_i$ over a row, if eps is 0?**

# %%
along_x = predict_first("sum of x times its gradient over a row, RMSNorm, eps 0", unit="")
along_x

# %%
exact = x.detach().double().requires_grad_()
longer = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True)) * weight.double()
(of_exact,) = torch.autograd.grad(longer, exact, torch.randn_like(longer))
along_x.compare(round((exact * of_exact).sum(-1).abs().max().item(), 6))

# %% [markdown]
# ## The backward kernel
#
# Two gradients, two shapes. `x`'s has a place for each element: a program stores its row, as it did forward. The
# weight's is a sum over **all rows**, which are in other programs' hands. So each program takes many rows, one after
# the other, adds up what they have to say about the weight in its registers, and stores that *partial sum* in a row of
# its own. PyTorch adds the few rows.
#
# The step from $g w$ to the gradient of $x$ comes as a function, `THROUGH`, so that we can exchange it. The first is
# written in haste: it takes $r$ for a constant.


# %%
@triton.jit
def hasty(x_hat, along, rstd, cols):
    return rstd * along


@triton.jit
def whole(x_hat, along, rstd, cols):
    return rstd * (along - x_hat * (tl.sum(along * x_hat) / cols))


# %%
@triton.jit
def backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    dx_ptr,
    sums_ptr,
    rows,
    cols,
    eps,
    THROUGH: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    inside, total = col < cols, tl.zeros((BLOCK,), COMPUTE)
    weight = tl.load(w_ptr + col, mask=inside, other=0.0).to(COMPUTE)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * cols + col
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(COMPUTE)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(COMPUTE)
        rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
        tl.store(dx_ptr + at, THROUGH(x * rstd, dy * weight, rstd, cols), mask=inside)
        total += dy * x * rstd
    tl.store(sums_ptr + tl.program_id(0) * cols + col, total, mask=inside)


# %%
def backward(dy, x, weight, through):
    rows, cols = x.shape
    programs = min(rows, 264 if runtime.has_gpu() else 4)  # two for each SM of an H200
    dx, wide = torch.empty_like(x), torch.promote_types(x.dtype, torch.float32)
    sums = torch.empty(programs, cols, dtype=wide, device=x.device)
    arguments = (dy.contiguous(), x, weight, dx, sums, rows, cols, EPS)
    backward_kernel[(programs,)](*arguments, THROUGH=through, **options_for(x))
    return dx, sums.sum(0).to(weight.dtype)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, through):
        ctx.save_for_backward(x, weight)
        ctx.through = through
        return forward(x, weight)

    @staticmethod
    def backward(ctx, dy):
        return *backward(dy, *ctx.saved_tensors, ctx.through), None


# %% [markdown]
# ## Does a falling loss prove it?
#
# Train with the haste. `benchmarks/training.py` has a small transformer: two layers, made of four parts that can be
# exchanged, the norm among them. Its text is drawn so that each token is one of two successors of the token *before the
# last*; no model can have a mean loss below $\ln 2$. In PyTorch, `hasty` is one word: `detach`, which lets no gradient
# through $r$.

# %%
import math
from dataclasses import replace

from benchmarks.training import BRANCHES, FUSED, SMALL, UNFUSED, prepared, train


def norm_in_haste(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS).detach() * weight


hasty_loss = predict_first(
    "mean loss after 150 steps, gradient in haste (it begins at 3.8)", unit=""
)
hasty_loss

# %% tags=["nbval-ignore-output"]
STEPS = 150
losses = {
    name: train(prepared(parts, SMALL, device), SMALL, STEPS, device)
    for name, parts in {"right": UNFUSED, "in haste": replace(UNFUSED, norm=norm_in_haste)}.items()
}
for name, each in losses.items():
    print(f"{name:8} first {each[0]:.2f}, mean of the last 20 {sum(each[-20:]) / 20:.2f}")
print(f"none can be below {math.log(BRANCHES):.2f}")
hasty_loss.compare(round(sum(losses["in haste"][-20:]) / 20, 2))

# %% tags=["nbval-ignore-output"]
from helpers.figures import curves_chart

means = {
    name: {last: sum(each[last - 10 : last]) / 10 for last in range(10, STEPS + 1, 10)}
    for name, each in losses.items()
}
least = {"least possible": {10: math.log(BRANCHES), STEPS: math.log(BRANCHES)}}
axes = {"x": "steps", "y": "loss, mean of the last ten steps"}
chart = curves_chart(means, "In haste or not, the loss falls", **axes, limit=least)
hasty_loss.on(chart, "y")

# %%
print("both learned:", all(sum(each[-20:]) / 20 < 0.5 * each[0] for each in losses.values()))

# %% [markdown]
# Both learn, and with no other run beside it nobody would suspect the second. Gradients that point roughly the right
# way do train; they may just train worse, here or in the next model. **A falling loss proves nothing.** What does?
#
# ## gradcheck
#
# It moves each input by a hair, $10^{-6}$, looks how far the results move, and compares that with what your backward
# pass says. In fp32 such a hair drowns in rounding. So it wants float64 *all the way through the kernel*, and that is
# why `COMPUTE` is an argument. Small shapes, awkward ones: one row, one column, more rows than programs.


# %%
def gradients_right(through, rows, columns):
    function = lambda x, weight: Norm.apply(x, weight, through)
    small = inputs(rows, columns, torch.float64)
    return torch.autograd.gradcheck(function, small, raise_exception=False)


print("in haste, 1 x 5: gradients right:", gradients_right(hasty, 1, 5))
for shape in ((1, 5), (6, 3), (5, 1)):
    print(f"whole, {shape[0]} x {shape[1]}: gradients right:", gradients_right(whole, *shape))

# %% [markdown]
# That settles the formula. It does not settle the digits: in fp32 and bf16 a right formula may still round badly. The
# test for those is the one for values. Take float64 for the truth, and ask of each gradient whether its error is at
# most twice that of PyTorch's own, in the same dtype:


# %%
def gradients(norm, x, weight, dy):
    return torch.autograd.grad(norm(x, weight), (x, weight), dy)


by_hand = lambda x, weight: Norm.apply(x, weight, whole)
for dtype in (torch.float32, torch.bfloat16):
    given = inputs(24, 1000, dtype)
    dy = torch.randn(24, 1000).to(given[0])
    exact = gradients(
        written_out, *(each.detach().double().requires_grad_() for each in given), dy.double()
    )
    pairs = zip(
        gradients(by_hand, *given, dy), gradients(written_out, *given, dy), exact, strict=True
    )
    errors = [((a - c).abs().max() / (b - c).abs().max()).item() for a, b, c in pairs]
    print(f"{dtype}: at most twice the error of PyTorch, written out: {max(errors) <= 2}")

# %% [markdown]
# ## What it moves, and what it keeps
#
# **How many times fewer bytes does the backward pass move, fused, in fp32?** Written out, PyTorch goes through the
# formula operator by operator, backwards. Ours reads `x` and the gradient, and writes a gradient; the partial sums are
# a few rows.

# %%
backward_bytes = predict_first("times fewer bytes, RMSNorm's backward pass fused", unit="times")
backward_bytes

# %% tags=["nbval-ignore-output"]
dy, results = (
    torch.randn(64, 1000, device=device),
    {"written out": written_out(x, weight), "fused": by_hand(x, weight)},
)
moved = {}
for name, y in results.items():
    moved[name] = measure(lambda y=y: torch.autograd.grad(y, (x, weight), dy))
    print(f"{name:11} {moved[name]}")
backward_bytes.compare(moved["written out"].bytes_total / moved["fused"].bytes_total)

# %% tags=["nbval-ignore-output"]
from helpers.figures import traffic_chart

apart = moved["written out"].bytes_total
chart = traffic_chart({"unfused": moved["written out"], "fused": moved["fused"]})
in_mb = lambda nbytes: f"{nbytes / 1e6:.2f} MB"
backward_bytes.on(chart, "x", lambda times: apart / times, row=1, says=in_mb)

# %% [markdown]
# (The weight is read by each program, and each program's partial sum is written and read. With as many rows as a batch
# has, thirty thousand and more, neither shows.) And between the passes:

# %%
print("written out:", saved_for_backward(written_out, x, weight))
print("fused:", saved_for_backward(by_hand, x, weight))

# %% [markdown]
# Ours keeps its inputs and computes `rstd` again: the row is in registers anyway. (The catalogue's `rms_norm` keeps
# `rstd`, a number a row, and saves a reduction. That is a matter of time, hardly of bytes.)
#
# ## Atomics or partial sums?
#
# The partial sums cost a second launch. Could each program not simply *add* to one row in memory? `tl.atomic_add` lets
# many programs do so, none of them lost. Lesson 06 had it for a single number. Below, each program adds up the share of
# its rows in the weight's gradient and hands it over either way. A GPU starts programs in an order of its own, and this
# interpreter in that of their numbers, so a table of numbers, `order`, stands in for chance.


# %%
@triton.jit
def share_kernel(
    dy_ptr,
    x_hat_ptr,
    order_ptr,
    sums_ptr,
    ATOMIC: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    program = tl.load(order_ptr + tl.program_id(0))
    row, col = program * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)
    dy, x_hat = tl.load(dy_ptr + row * COLS + col), tl.load(x_hat_ptr + row * COLS + col)
    share = tl.sum(dy * x_hat, axis=0)
    if ATOMIC:
        tl.atomic_add(sums_ptr + col, share)
    else:
        tl.store(sums_ptr + program * COLS + col, share)


# %%
def weight_gradient(dy, x_hat, order, atomic):
    rows, cols = dy.shape
    sums = (
        torch.zeros(cols, device=device) if atomic else torch.empty(len(order), cols, device=device)
    )
    share_kernel[(len(order),)](
        dy, x_hat, order, sums, ATOMIC=atomic, ROWS=rows // len(order), COLS=cols
    )
    return sums if atomic else sums.sum(0)


# %% [markdown]
# **Ten runs, each with its programs in another order. How many different gradients come of atomics, and how many of
# partial sums?** Different in any bit of any of 64 columns.

# %%
different = predict_first("different gradients in ten runs, atomics", unit="")
different

# %%
draw = torch.Generator().manual_seed(0)
dy, x_hat = torch.randn(2, 512, 64, generator=draw).to(device)
orders = [torch.randperm(32, generator=draw).to(device) for _ in range(10)]
gradient_of = {
    name: torch.stack([weight_gradient(dy, x_hat, order, atomic) for order in orders])
    for name, atomic in (("atomics", True), ("partial sums", False))
}
for name, sums in gradient_of.items():
    print(f"{name}: {len(sums.unique(dim=0))} different")
different.compare(len(gradient_of["atomics"].unique(dim=0)))

# %% tags=["nbval-ignore-output"]
exact = (dy.double() * x_hat.double()).sum(0)
for name, sums in gradient_of.items():
    print(f"{name}, first column:", *(f"{each:.7f}" for each in sums[:4, 0].tolist()))
    right = bool((sums - exact).abs().max() < 1e-6 * exact.abs().max())
    print(f"right to a millionth of the largest: {right}")

# %% [markdown]
# All are right, and the atomic ones are each right in their own way: the last digits hang on who came first.
#
# A GPU needs no table to shuffle its programs. Our backward kernel on an H200, 32,768 rows of 4096, with the weight's
# gradient added up in three ways (`benchmarks/experiments/lesson_11.py`): atomics from a program for each row; atomics from
# only as many programs as keep the GPU busy, each for many rows; partial sums from as many. **The same call twenty
# times, on the same inputs: how many different gradients come of atomics from a program a row?**

# %%
repeats = predict_first("different gradients in 20 runs, atomics, H200", unit="")
repeats

# %%
h200 = recorded("h200")
repeated, times = h200.experiment("gradient_repeats"), h200.experiment("gradient_sums")
rows = []
for way, of_runs in repeated.items():
    counts = (of_runs["different"], of_runs["columns"])
    rows.append((way, *counts, f"{of_runs['error']:.0e}", f"{1e6 * times[way].median:.0f} us"))
columns = ("", "different", "in columns, of 4096", "largest error", "time")
display(table(columns, rows, h200.label_of("gradient_sums", "gradient_repeats")))
repeats.compare(repeated["atomics, a program a row"]["different"])

# %%
rows = []
for way, of_runs in repeated.items():
    rows.append((way, *(f"{each:.6f}" for each in of_runs["first"].values())))
table(("first column", "run 1", "run 2", "run 3"), rows)

# %% [markdown]
# No two runs are alike with atomics, and no column is spared; one result with partial sums. The largest errors are
# theirs, too: a number that grows row by row loses more digits than a sum of sums. And the time? Atomics *from few
# programs* take as long as partial sums with their second launch: **what costs is how many additions meet in one place,
# not who makes them.** So atomics buy nothing here, and they cost repeatability: two training runs with the same seed
# drift apart, first in the last digit, in the end in all. A fault that does not come twice cannot be bisected.
#
# ## What should a layer keep?
#
# Norms and gates are one question; a whole transformer layer is made of several. Its matrix products need their inputs
# again, for the weights' gradients: the norms' results, the gate's. Those inputs are themselves a few bytes of reading
# and a little arithmetic away from something that is kept in any case. So there is more to choose from than "keep" and
# "compute again":
#
# - *written out*: what PyTorch keeps, operator by operator (attention is fused in all four);
# - *fused*: what our kernels keep, and what the products need;
# - *and norms, gate again*: the products' inputs are computed again, too;
# - *the whole layer again*: only the layer's own input is kept. This is **checkpointing**.
#
# Time is the data sheet's: products at the rate of its tensor cores, the rest, which is all memory, by its bytes. Find
# out:
#
# 1. Which way would you take for 32 layers on an H200, at 32,768 tokens of width 4096 in bf16, if weights and
#    optimiser need half of its memory?
# 2. Where do norms and gate cost more of the time: at a small width, or at a large one? Why?
# 3. From bf16 to fp32: why does recomputing the norms get even cheaper, next to the rest?

# %%
from helpers.figures import CheckpointingExplorer

explorer = CheckpointingExplorer(tokens=8192, width=4096, dtype="bf16", device="H200")
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. Kept as it is, even fused, it does not fit, nor with norms and gate
# computed again. Checkpointing does. (In practice one mixes: some layers so, some so.) 2. At a small one: products grow
# with the square of the width, all else with the width. 3. In fp32 the products run without tensor cores, at a
# fraction of the rate; the bytes only double.</details>
#
# **Claim: "checkpointing costs a third more compute."** For the forward pass, so it is said, is a third of a step, and
# is made twice. PyTorch counts a model's FLOPs as it runs, and `torch.utils.checkpoint` checkpoints any module. **By
# what factor do the FLOPs of our transformer's blocks grow?**

# %%
checkpoint_flops = predict_first(
    "times the FLOPs of matrix products, blocks checkpointed", unit="times"
)
checkpoint_flops

# %%
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


def through_blocks(x, run):
    for block in model.blocks:
        x = run(block, x)
    return x


model = prepared(UNFUSED, SMALL, device)
states = torch.randn(SMALL.batch, SMALL.tokens, SMALL.width, device=device, requires_grad=True)
ways = {"kept": lambda block, x: block(x), "checkpointed": partial(checkpoint, use_reentrant=False)}
flops = {}
for name, run in ways.items():
    with FlopCounterMode(display=False) as counter:
        through_blocks(states, run).sum().backward()
    flops[name] = counter.get_total_flops()
    held = peak_memory(through_blocks, states, run).bytes / states.nbytes
    told = f"the forward pass holds {held:.0f} times its input"
    print(f"{name}: {flops[name] / 1e6:.1f} MFLOP; {told}")
checkpoint_flops.compare(flops["checkpointed"] / flops["kept"])

# %% [markdown]
# **Verdict: nearly, for FLOPs: a third is the most.** The forward pass is not repeated whole: what leaves nothing for
# the backward pass, such as the result of a block's last product, is skipped. What is dear to repeat are products, and
# what fills memory is mostly cheap to repeat: a finer choice than "the whole layer" is worth looking for.
#
# ## What torch.compile decides by itself
#
# `torch.compile` gets forward and backward pass as *one* graph, and must cut it in two. Each edge that the cut goes
# through is a tensor that is kept. It looks for the cheapest cut, a **minimum cut** in a network whose capacities are
# bytes, and may compute what is cheap again on the far side. (This is the **min-cut partitioner**; PyTorch 2.0 on.) We
# can run it alone, with no code generated. Norm and gate, written out:


# %%
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition


def norm_and_gate(x, weight, up):
    return F.silu(written_out(x, weight)) * up


def cut(function, partition, *inputs):
    """The graphs of the forward and the backward pass."""
    graphs = []
    note = lambda graph, _: graphs.append(graph) or make_boxed_func(graph)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=note, bw_compiler=note, partition_fn=partition)
    torch.compile(function, backend=backend, fullgraph=True)(*inputs).sum().backward()
    return graphs


# %% [markdown]
# What is kept is what the backward graph takes as its inputs, the gradient apart. What is computed again stands in both
# graphs. Cut where autograd cuts (`default_partition`), it keeps whatever any operator's gradient asks for. **How many
# tensors as large as `x` does the minimum cut keep?**

# %%
kept_by_cut = predict_first(
    "tensors as large as x that the minimum cut keeps, silu(norm(x)) * up", unit=""
)
kept_by_cut


# %%
def told(graphs, like):
    """Names of the tensors as large as `like` that are kept, and of what is computed again."""
    forward_graph, backward_graph = (list(graph.graph.nodes) for graph in graphs)
    given = [
        node for node in backward_graph if node.op == "placeholder" and "tangents" not in node.name
    ]
    large = [node.name for node in given if node.meta["val"].numel() == like.numel()]
    made = {node.name for node in forward_graph if node.op == "call_function"}
    return large, [
        node.name for node in backward_graph if node.op == "call_function" and node.name in made
    ]


up = torch.randn_like(x, requires_grad=True)
for partition in (default_partition, min_cut_rematerialization_partition):
    large, again = told(cut(norm_and_gate, partition, x, weight, up), x)
    kept = f"{len(large)} kept, {', '.join(large)}"
    print(f"{partition.__name__}: {kept}; again: {', '.join(again) or 'nothing'}")
kept_by_cut.compare(len(large))

# %% [markdown]
# (`primals` are the function's arguments, in order.) It keeps `x` and `up`, which exist anyway, and the rest is
# multiplied together again: what you would have done. It also kept `rsqrt`, a number a row: a reduction is not cheap
# enough to it.
#
# How far it goes can be set: `activation_memory_budget`, from 1, the least time, to 0, the least memory. With a matrix
# product in the middle, `silu(norm(x) @ p) * up`:


# %% tags=["nbval-ignore-output"]
import torch._functorch.config as functorch_config


def with_product(x, weight, up, p):
    return F.silu(written_out(x, weight) @ p) * up


p = torch.randn(1000, 1000, device=device, requires_grad=True)
for budget in (1.0, 0.6, 0.3):
    with functorch_config.patch(activation_memory_budget=budget):
        large, again = told(
            cut(with_product, min_cut_rematerialization_partition, x, weight, up, p), x
        )
    print(f"budget {budget}: {len(large)} kept, {', '.join(large)}; again: {', '.join(again)}")

# %% [markdown]
# At first the product (`mm`) and its input (`t`, the norm's result) are kept. Then the norm is computed again. At last
# the product, too. The explorer's ways, chosen by a compiler.
#
# ## Your kernel in its graph
#
# Without a word from you, `torch.compile` looks *into* a function that launches a kernel. On a GPU it knows Triton's
# launches and finds its way; into this interpreter it does not; into a CUDA C++ extension nobody can look. With
# `torch.library` you tell it what it must know: a name, how the result looks without computing it (a **fake**), and
# what the gradient is. The course's `kernels/op.py` does so for every kernel of the catalogue, from the same
# pieces that you have just written:

# %%
from kernels.op import like, register


def norm_forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return forward(x, weight)


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return backward(dy, x, weight, whole)


norm = register(
    "lesson_norm",
    norm_forward,
    lambda x, weight: like(x),
    keep=lambda arguments, y: arguments,
    backward=norm_backward,
    backward_fake=lambda dy, x, weight: (like(x), like(weight)),
)


# %%
def model_of_mine(x, weight, up):
    return (F.silu(norm(x, weight)) * up).sum()


found = torch._dynamo.explain(model_of_mine)(x, weight, up)
print(f"{found.graph_count} graph, {found.graph_break_count} breaks")
for node in found.graphs[0].graph.nodes:
    if node.op == "call_function":
        print(getattr(node.target, "__name__", node.target))

# %% [markdown]
# One graph, your kernel a node in it. (`aot_eager`, below, is torch.compile without its code generator, which is slow
# on a CPU.) The same gradients?

# %%
compiled = torch.compile(model_of_mine, backend="aot_eager", fullgraph=True)
ours = torch.autograd.grad(compiled(x, weight, up), (x, weight, up))
expected = torch.autograd.grad(norm_and_gate(x, weight, up).sum(), (x, weight, up))
print(
    "the same gradients:",
    all(torch.allclose(*pair, atol=1e-3) for pair in zip(ours, expected, strict=True)),
)
large, again = told(cut(model_of_mine, min_cut_rematerialization_partition, x, weight, up), x)
print(f"{len(large)} kept, {', '.join(large)}; again: {', '.join(again)}")

# %% [markdown]
# But look what the cut keeps now: the norm's result as well. An operator is a wall to the partitioner, which cannot
# know that yours is cheap to run again. **Each registered kernel is a decision taken out of the compiler's hands.**
# Fuse what follows into it, or it may keep more than it saves.
#
# A fake is a promise. The compiler allocates, strides and fuses by it, and never looks at the result. What if it is
# wrong? Here is one that forgets that the kernel returns `x`'s dtype:

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
# `opcheck` compares promise and result, with each of PyTorch's ways to trace. Every operator of the catalogue goes
# through it in the tests.
#
# ## A loss without logits
#
# The largest tensor of a language model is often its last: the logits, a number for each token *and each word of the
# vocabulary*. Cross entropy makes as many logarithms of them, and the backward pass as many gradients. Lesson 06 made
# one pass of the loss. Yet the logits themselves, the result of a matrix product, still stood in memory.
#
# They need not. The loss is a mean over tokens; take a few tokens at a time. And the gradients need nothing of the
# logits but *their* gradient, $(\mathrm{softmax} - \mathrm{onehot})/N$, which can be had at once, while they are there:
# in the **forward** pass. It goes into both products, and the next chunk's logits take its place:

# %%
from benchmarks.experiments.lesson_11 import LinearLoss, linear_loss, step
from benchmarks.experiments.lesson_11 import written_out as logits_and_loss

print(inspect.getsource(LinearLoss))

# %% [markdown]
# `loss_kernel` reads a row of logits twice: once for its maximum and sum, as in lesson 06, and once to write the
# gradient in its place. **64 tokens, 4096 words, fp32. How many times less memory does it hold at its peak, with 8
# tokens at a time?** Count the logits' size as often as they exist; beside them there are only the gradients of
# `hidden`, 64 by 32, and of the weight, 4096 by 32.

# %%
peak_ratio = predict_first("times less memory at the peak, 8 of 64 tokens at a time", unit="times")
peak_ratio

# %% tags=["nbval-ignore-output"]
hidden, head = (torch.randn(size, 32, device=device, requires_grad=True) for size in (64, 4096))
labels = torch.randint(4096, (64,), device=device)
peaks = {"written out": peak_memory(step, logits_and_loss, hidden, head, labels)}
for chunk in (64, 8):
    peaks[f"{chunk} at a time"] = peak_memory(
        step, partial(linear_loss, chunk=chunk), hidden, head, labels
    )
for name, peak in peaks.items():
    print(f"{name}: {peak}")
peak_ratio.compare(peaks["written out"].bytes / peaks["8 at a time"].bytes)

# %% [markdown]
# Written out, logits are there three times at the peak: they, their logarithms, a gradient. In chunks, the largest
# tensor is not made of logits at all. What is left is the weight's gradient, which nobody can save, twice: once as it
# is added up, and once scaled by the loss's own gradient. Are the gradients right?

# %%
exact = step(
    logits_and_loss, *(each.detach().double().requires_grad_() for each in (hidden, head)), labels
)
usual, chunked = (peaks[name].result for name in ("written out", "8 at a time"))
for name, truth, a, b in zip(("hidden", "weight"), exact, usual, chunked, strict=True):
    errors = [((each - truth).abs().max() / truth.abs().max()).item() for each in (a, b)]
    print(f"{name}: both within a hundred-thousandth of the largest: {max(errors) < 1e-5}")

# %% [markdown]
# Now at the size of Llama 3's smaller model: 8192 tokens of width 4096, 128,256 words, in bf16 on an H200. `eager`
# computes all logits, and the loss in fp32, as most models' code does. **How many times less memory does the loss hold
# at its peak, 1024 tokens at a time?**

# %%
large_peak = predict_first(
    "times less memory at the peak, Llama 3's loss, 1024 tokens at a time", unit="times"
)
large_peak

# %%
of_loss = h200.experiment("linear_loss")
products = 3 * 2 * 8192 * 4096 * 128_256 / h200.matrix_rate
print(f"three products at the rate of a large one: {1e3 * products:.0f} ms")
rows = []
for name, found in of_loss.items():
    rows.append((name, f"{found['peak'] / 1e9:.2f} GB", f"{1e3 * found['time'].median:.1f} ms"))
display(table(("tokens at a time", "peak", "time"), rows, h200.label_of("linear_loss")))
all_at_once = of_loss["eager"]["peak"]
large_peak.compare(all_at_once / of_loss[1024]["peak"])

# %%
in_chunks = {
    tokens: found["peak"] / 1e9 for tokens, found in of_loss.items() if tokens in range(9000)
}
eager = {"eager": dict.fromkeys(in_chunks, all_at_once / 1e9)}
axes = {"x": "tokens at a time", "y": "memory at the peak (GB)"}
title = "From 4096 tokens at a time down, the peak stays where it is"
chart = curves_chart({"in chunks": in_chunks}, title, **axes, log=True, limit=eager)
large_peak.on(chart, "y", lambda t: all_at_once / t / 1e9, says=lambda gb: f"{gb:.3g} GB")

# %% [markdown]
# The numbers on the left are tokens at a time. From 4096 down the peak stays where it is: at the weight's gradient,
# twice. Below 512 the products get too thin for the GPU, and the time runs away. So a chunk is chosen as *large* as
# memory allows. And `torch.compile`, told nothing, makes a better bargain than one would think: it never has the fp32
# logits, and takes less time than any chunk. It still has the logits. If they fit, take that.

# %% [markdown]
# ## A transformer, trained twice
#
# Now all of it. The transformer from above, once as it is written out in PyTorch, once with four parts exchanged:
# RMSNorm, FlashAttention and SwiGLU from the catalogue, and the loss in chunks. Everything else is one code:

# %%
from benchmarks.training import Block, Transformer

print(inspect.getsource(Block.forward), inspect.getsource(Transformer.forward), sep="\n")
for name, part in vars(FUSED).items():
    print(f"{name}: {getattr(part, 'func', part).__name__}")

# %% [markdown]
# The same weights, the same text. With no GPU the fused one's kernels run in Triton's interpreter: the same kernels,
# and no speed at all. It is a proof, not a race. **To which digit do the two losses agree after eight steps?** Say how
# many zeros follow the point in their difference.

# %%
zeros = predict_first("zeros after the point in the difference of the losses, 8 steps", unit="")
zeros

# %%
runs = {
    name: train(prepared(parts, SMALL, device), SMALL, 8, device)
    for name, parts in {"unfused": UNFUSED, "fused": FUSED}.items()
}
for step_number, pair in enumerate(zip(*runs.values(), strict=True)):
    print(f"step {step_number}: unfused {pair[0]:.3f}, fused {pair[1]:.3f}")

# %% tags=["nbval-ignore-output"]
apart = max(abs(one - other) for one, other in zip(*runs.values(), strict=True))
print(f"the largest difference: {apart:.1e}")
zeros.compare(math.floor(-math.log10(max(apart, 1e-9))))

# %%
print("below a hundred-thousandth:", apart < 1e-5)

# %% [markdown]
# A minute of it, so that one can see it learn, takes `python -m benchmarks.training`. Recorded:

# %%
from helpers.figures import loss_chart

cpu = recorded("cpu")
minute = cpu.experiment("training")
loss_chart(minute["unfused"], minute["fused"], math.log(BRANCHES), cpu.label)

# %% [markdown]
# The difference begins in the last digit of an fp32, because the kernels add in another order. Then it grows, step by
# step: training magnifies it, as it does an atomic's. It is no fault of either. **So compare losses step by step at the
# beginning, where a wrong gradient shows at once, and as curves later.** In haste, for instance:

# %% tags=["nbval-ignore-output"]
for number in (0, 1, 2, 3):
    right, wrong = (losses[name][number] for name in ("right", "in haste"))
    fused = runs["fused"][number]
    print(
        f"step {number}: in haste differs by {abs(right - wrong):.0e}, fused by "
        f"{abs(right - fused):.0e}"
    )

# %% [markdown]
# Step 0 has no gradient behind it yet. From step 1 on the hasty one is off by thousands of times as much: *that* is how
# a falling loss can tell. And what is kept?
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** It has no source that
# says of what model. Lesson 04 found it true of one gate, lesson 06 of one loss. Of the whole model? Weights are kept
# by both; they are left out. **How many % less is kept, fused?**

# %%
kept_less = predict_first("less kept between the passes, the whole transformer fused", unit="%")
kept_less


# %%
def activations(parts):
    """Bytes kept for the backward pass, the weights apart."""
    model, sizes = prepared(parts, SMALL, device), {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    text = torch.zeros(SMALL.batch, SMALL.tokens + 1, dtype=torch.int64, device=device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(text)  # held, so that no address is used twice
    weights = {each.data_ptr() for each in model.parameters()}
    return loss, sum(nbytes for address, nbytes in sizes.items() if address not in weights)


# %%
kept = {name: activations(parts)[1] for name, parts in {"unfused": UNFUSED, "fused": FUSED}.items()}
for name, nbytes in kept.items():
    print(f"{name}: {nbytes / 1e3:.0f} kB kept")
kept_less.compare(100 * (1 - kept["fused"] / kept["unfused"]))

# %% [markdown]
# **Verdict: holds, for the whole of this small model.** What the products need as their inputs is kept by both, and it
# is most of what is left. With other sizes it is another share, as lesson 10's block had it with other lengths.
#
# On an H200 the same model, larger: six layers of width 1024, 8192 tokens a step, 32,768 words, in bf16. **How many
# times less memory does a fused step hold at its peak than an unfused one, beside the weights?**

# %%
step_memory = predict_first("times less memory at a step's peak, fused, H200", unit="times")
step_memory

# %%
on_h200 = h200.experiment("training")
rows = []
for name, found in on_h200.items():
    took = f"{1e3 * found['step'].median:.1f} ms"
    rows.append((name, took, f"{found['peak'] / 1e9:.2f} GB"))
display(table(("", "a step", "at its peak"), rows, h200.label_of("training")))
first, others = (
    on_h200["unfused"]["losses"],
    {name: on_h200[name] for name in ("torch.compile", "fused")},
)
for name, found in others.items():
    differences = [abs(loss - first[number]) for number, loss in found["losses"].items()]
    print(f"{name}: loss off by at most {max(differences):.4f} in {len(differences)} steps")
again = {name: on_h200[name]["again"] for name in ("unfused", "fused")}
print("losses of a second run that differ:", again)
step_memory.compare(on_h200["unfused"]["peak"] / on_h200["fused"]["peak"])

# %% [markdown]
# Of three ways, the fused one is the fastest and the smallest. `torch.compile` takes a quarter more time, and twice the
# memory: it fuses neither attention, as it is written out here, nor the loss. A second run of either has the same
# losses to the last bit: nothing in them is added up in an order of chance. In bf16 the losses differ by more than in
# fp32, and by little all the same.
#
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. LayerNorm takes the row's mean off before it divides. What does its gradient take off that RMSNorm's does not?
# <details><summary>Answer</summary>Its mean. A row to which a constant is added gives the same result, so no gradient
# may point along ones, either: $r\,(g w - \mathrm{mean}(g w) - \hat x \cdot \mathrm{mean}(g w \hat x))$.</details>
#
# 2. gradcheck says no to your kernel at every shape, and yes to the same formula in PyTorch. Where do you look first?
# <details><summary>Answer</summary>At `.to(tl.float32)`. A kernel that computes in fp32 has not the digits for a step
# of $10^{-6}$.</details>
#
# 3. Your backward kernel adds to the weight's gradient with atomics, and the tests pass. Name two things that are
#    worse.
# <details><summary>Answer</summary>Two runs are not the same in the last digits, and later in all. And the row of sums
# must be zeroed before, which is a launch as well. In bf16 it would also round at every addition.</details>
#
# 4. `torch.compile` keeps less for `silu(norm(x)) * up` written out than with your registered norm. Why, and what would
#    you do?
# <details><summary>Answer</summary>It computes the cheap parts of what it knows again. Your operator it does not know,
# so it keeps its result. Fuse the gate into the kernel, or leave both to the compiler.</details>
#
# 5. Fused and unfused losses are equal to six digits for a hundred steps. In the next thousand they drift apart by a
#    tenth. Is a gradient wrong?
# <details><summary>Answer</summary>Most likely not: rounding, magnified. Wrong gradients differ from the first step
# on. To be sure, compare the gradients of one step with float64.</details>
#
# 6. A batch has 8192 tokens, the vocabulary 128,256 words. How many GB do the logits take in bf16? Put your number in
#    place of the dots.

# %%
answer = ...
self_test(answer, 8192 * 128_256 * 2 / 1e9, "tokens times words, two bytes each")

# %% [markdown]
# ## Now you
#
# [Exercise 11](../exercises/11_fused_backward.ipynb) asks for the backward pass of LayerNorm with GELU. Its
# gradients are judged in float64.
