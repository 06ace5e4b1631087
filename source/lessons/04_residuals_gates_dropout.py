# %% [markdown]
# # 04 Residuals, gates and dropout: recompute instead of store
#
# Dropout zeroes elements at random. The backward pass has to zero *exactly the same ones*, so PyTorch stores a mask
# with one entry per element. **How could the backward pass get the forward pass's random numbers without a stored
# mask?** And what else do we store for the backward pass that it could just recompute?
#
# After this lesson you can
#
# - count the bytes that a training step moves, and those it saves for the backward pass;
# - fuse bias, dropout and residual into one kernel, with a backward pass that regenerates the mask;
# - test a backward pass with gradcheck;
# - fuse a gate (SwiGLU, GeGLU) whose two halves share one tensor;
# - decide when to recompute and when to store.
#
# About 65 minutes. You should have done [03b What the compiler made of it](03b_what_the_compiler_made.ipynb). The
# exercise is [04](../exercises/04_bias_dropout_residual.ipynb).

# %% tags=["hide-input"]
import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.figures import timing_chart, traffic_chart, watch
from helpers.instruments import (
    DEVICES,
    compile_for,
    measure,
    recorded,
    saved_for_backward,
    table,
)
from helpers.learning import predict_first, predictions, puzzle, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# Here's the end of a transformer sublayer with its backward pass. Press **Play**, and keep an eye on the mask.

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("dropout")

# %% [markdown]
# ## The end of a transformer's sublayer
#
# A transformer's attention and feed-forward layers end the same way: add a bias, apply dropout, and add the
# [residual](../docs/glossary.md#residual), which is the sublayer's input. (The elements that survive are divided by
# `1 - p` to preserve the mean.) When you train on a GPU, `F.dropout` runs the operator `native_dropout`, which returns
# both the result and the mask. We call that operator directly so that the CPU runs it too.


# %%
def sublayer_end(x, bias, residual, p=0.1):
    dropped, mask = torch.native_dropout(x + bias, p, True)  # True: training
    return residual + dropped


def inputs(rows, columns, dtype=torch.float32):
    options = {"device": device, "dtype": dtype}
    x, residual = torch.randn(2, rows, columns, **options)
    bias = torch.randn(columns, **options)
    return [tensor.requires_grad_() for tensor in (x, bias, residual)]


# %% [markdown]
# **How many bytes per element does the forward pass move, in fp32?** There are three launches. Count four bytes per
# element each time a tensor as large as x is read or written. A mask entry is one byte.

# %% tags=["hide-input"]
forward_bytes = predict_first("bytes per element, residual + dropout(x + bias)", unit="B")
forward_bytes

# %% tags=["hide-input"]
x, bias, residual = inputs(64, 1024)
forward = measure(sublayer_end, x, bias, residual)
display(forward.launch_table())
forward_bytes.compare(forward.bytes_total / x.numel())

# %% [markdown]
# The backward pass takes the gradient of the result and computes the gradients of the inputs. The gradient of `x` is
# the incoming gradient with the same elements dropped. Sum that over the rows and you have the gradient of `bias`. The
# gradient of `residual` is just the incoming gradient.

# %% tags=["hide-input"]
gradient, result = torch.randn_like(residual), sublayer_end(x, bias, residual)
backward = measure(lambda: torch.autograd.grad(result, (x, bias, residual), gradient))
backward.launch_table()

# %% [markdown]
# The backward pass reads the mask, so the mask had to be [saved for backward](../docs/glossary.md#saved-for-backward).
# In a deep network, every layer's mask stays in memory until the backward pass gets to that layer. PyTorch can list the
# saved tensors:

# %%
saved_for_backward(sublayer_end, x, bias, residual)

# %% [markdown]
# ## Philox: random numbers without state
#
# An ordinary random number generator has state. Every draw updates the state, so each number has to wait for the one
# before it. That's awkward with thousands of threads, and so is going back. [Philox](../docs/glossary.md#philox) has no
# state. It's a function of two integers, a *seed* and a *counter*, which it mixes in ten rounds of multiplications. In
# Triton, `tl.rand(seed, counter)` returns a number between 0 and 1. Any thread can compute any of these numbers
# whenever it needs them. ([Salmon et al., 2011](https://doi.org/10.1145/2063384.2063405))


# %%
@triton.jit
def draw_kernel(out_ptr, seed, each, BLOCK: tl.constexpr):
    position = tl.arange(0, BLOCK)
    counter = tl.program_id(0) * each + position  # each program draws `each` numbers
    tl.store(out_ptr + counter, tl.rand(seed, counter), mask=position < each)


def draw(seed, count, each):
    out = torch.empty(count, device=device)
    draw_kernel[(count // each,)](out, seed, each, BLOCK=triton.next_power_of_2(each))
    return out.cpu()


by_six, by_eight = draw(3, 24, each=6), draw(3, 24, each=8)
print("four programs or three, the same numbers:", torch.equal(by_six, by_eight))
print("another seed, the same numbers:", torch.equal(by_six, draw(4, 24, each=6)))

# %% [markdown]
# We keep an element if its random number is at least `p`. Here are 24 elements in four rows, with `p = 0.5`. Four
# programs with six elements each drew the left mask, and three programs with eight each drew the right one:

# %% tags=["hide-input"]
from helpers.figures import Draw, mask_chart

number = np.arange(24).reshape(4, 6)  # each element's index in the tensor is its counter
kept_six, kept_eight = (each.view(4, 6).numpy() >= 0.5 for each in (by_six, by_eight))
mask_chart(
    {
        "forward: one program per row": Draw(number, number // 6, kept_six),
        "backward: one program per eight elements": Draw(number, number // 8, kept_eight),
    },
    "The same counter gives the same mask, whichever program draws",
)

# %% [markdown]
# So the backward pass can simply draw the same numbers again. All we have to save is the seed.
#
# ## One kernel forward, one backward, and a sum
#
# In the forward kernel, each program takes one row, which makes it easy to line up with the bias. The backward kernel
# doesn't read the bias, so it treats the tensor as one long row and splits it into blocks. Suppose a colleague wants
# each program to draw its own random numbers. They add the program ID to the seed and count positions from 0:


# %%
@triton.jit
def forward_by_position(x_ptr, bias_ptr, r_ptr, y_ptr, seed, p, columns, BLOCK: tl.constexpr):
    position = tl.arange(0, BLOCK)
    element = tl.program_id(0) * columns + position
    inside = position < columns
    x = tl.load(x_ptr + element, mask=inside) + tl.load(bias_ptr + position, mask=inside)
    residual = tl.load(r_ptr + element, mask=inside)
    kept = tl.rand(seed + tl.program_id(0), position) >= p
    y = residual + tl.where(kept, x / (1 - p), 0.0)
    tl.store(y_ptr + element, y, mask=inside)


# %%
@triton.jit
def backward_by_position(grad_y_ptr, grad_x_ptr, seed, p, elements, BLOCK: tl.constexpr):
    position = tl.arange(0, BLOCK)
    element = tl.program_id(0) * BLOCK + position
    inside = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=inside)
    kept = tl.rand(seed + tl.program_id(0), position) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y / (1 - p), 0.0), mask=inside)


# %% [markdown]
# An `autograd.Function` pairs a forward pass with its backward pass. `ctx` carries values from one to the other. The
# backward pass returns one gradient per argument (None for the seed, `p` and the pair of kernels). The bias's gradient
# is a sum over the rows, which is a second launch.


# %%
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, residual, seed, p, kernels):
        forward_kernel, ctx.backward_kernel = kernels
        ctx.seed, ctx.p = seed, p
        y, (rows, columns) = torch.empty_like(x), x.shape
        arguments = (x, bias, residual, y, seed, p, columns)
        forward_kernel[(rows,)](*arguments, BLOCK=triton.next_power_of_2(columns))
        return y

    @staticmethod
    def backward(ctx, grad_y):
        grad_x, n = torch.empty_like(grad_y), grad_y.numel()
        programs = triton.cdiv(n, 1024)
        ctx.backward_kernel[(programs,)](grad_y, grad_x, ctx.seed, ctx.p, n, BLOCK=1024)
        return grad_x, grad_x.sum(0), grad_y, None, None, None


by_position = (forward_by_position, backward_by_position)

# %% [markdown]
# Let's test it. If `x` is all ones and the bias and the residual are zero, the result is the forward mask, scaled.
# Likewise, a gradient of ones shows us the backward mask.


# %% tags=["hide-input"]
def masks(rows, columns, p, kernels):
    ones = torch.ones(rows, columns, device=device, requires_grad=True)
    zeros = torch.zeros(rows, columns, device=device)
    y = Fused.apply(ones, zeros[0], zeros, 3, p, kernels)
    (grad,) = torch.autograd.grad(y, ones, torch.ones_like(y))
    return (y != 0).cpu().numpy(), (grad != 0).cpu().numpy()


forwards, backwards = masks(64, 1024, 0.1, by_position)
print("64 x 1024, the same mask:", bool((forwards == backwards).all()))
forwards, backwards = masks(64, 1000, 0.1, by_position)
print(f"64 x 1000, dropped: {1 - forwards.mean():.1%} and {1 - backwards.mean():.1%}")
metered = measure(lambda: masks(64, 1000, 0.1, by_position))
print("64 x 1000, memory errors:", metered.hazards or "none")

# %% [markdown]
# Both passes have the right drop rate, and no access is out of bounds. But at 1000 columns, we didn't check whether the
# two masks are still the *same*. If they aren't, some of the gradients are wrong, and nothing tells you.
#
# The tool for this is [gradcheck](../docs/glossary.md#gradcheck). It nudges each input, looks at how the results
# change, and compares that with the gradients from the backward pass. Use it in double precision, on small, awkward
# shapes.


# %%
def gradients_right(rows, columns, kernels):
    small = inputs(rows, columns, torch.float64)
    function = lambda *tensors: Fused.apply(*tensors, 3, 0.5, kernels)
    return torch.autograd.gradcheck(function, small, raise_exception=False)


print("gradients right, 1 x 5:", gradients_right(1, 5, by_position))
print("gradients right, 3 x 5:", gradients_right(3, 5, by_position))

# %% [markdown]
# One row passes; three rows fail. Suppose the two masks are independent: **on what share of the elements do they
# disagree, with `p = 0.1`?**

# %% tags=["hide-input"]
disagree = predict_first("share of elements where the two masks disagree, p = 0.1", unit="%")
disagree

# %% tags=["hide-input"]
disagree.compare(
    100 * np.not_equal(*masks(64, 1000, 0.1, by_position)).mean(),
    "Either pass can be the one that drops the element, so independent masks disagree on 2 p (1 "
    "- p) of them. Our two are independent in every row but the first, where seed and positions "
    "are the same.",
)

# %% [markdown]
# Here, the forward pass has four programs, and the backward pass has one that takes all 24 elements:

# %% tags=["hide-input"]
rows_mask, blocks_mask = masks(4, 6, 0.5, by_position)
mask_chart(
    {
        "forward: seed + row, counter = position": Draw(number % 6, number // 6, rows_mask),
        "backward: seed + block, counter = position": Draw(number, 0 * number, blocks_mask),
    },
    "Counted from each program's own start, the masks differ after the first row",
)

# %% [markdown]
# An element's position depends on how the tensor was split, and the two passes split it differently. The test at 64 x
# 1024 passed only because its rows were as long as a block, so the two happened to agree. The counter has to belong to
# *the element*, no matter which program handles it. This backward kernel should drop the elements that the forward pass
# dropped (zeros in `forward_mask`). **Fix the marked line.**


# %%
@triton.jit
def mask_again_kernel(grad_y_ptr, grad_x_ptr, seed, p, BLOCK: tl.constexpr):
    position = tl.arange(0, BLOCK)
    element = tl.program_id(0) * BLOCK + position
    grad_y = tl.load(grad_y_ptr + element)
    counter = position  # <- here
    kept = tl.rand(seed, counter) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y / (1 - p), 0.0))


forward_mask = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0.0])
incoming = torch.arange(1.0, 17.0)
puzzle(mask_again_kernel, 4, incoming, wanted=2 * incoming * forward_mask, seed=3, p=0.5, BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>counter = element</code>: an element's index in the whole tensor is the same
# however you split it.</details>
#
# <!-- choices
# counter = position
#
# counter = seed + position
#
# counter = tl.program_id(0) + position
#
# counter = element - position
#
# counter = element
# -->
#
# Here are both kernels with that counter. As in lesson 03, we cast the program ID to int64 before multiplying.
# `tl.rand` accepts an int64 counter.


# %%
@triton.jit
def forward_by_element(x_ptr, bias_ptr, r_ptr, y_ptr, seed, p, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    element = tl.program_id(0).to(tl.int64) * columns + column
    inside = column < columns
    x = tl.load(x_ptr + element, mask=inside) + tl.load(bias_ptr + column, mask=inside)
    residual = tl.load(r_ptr + element, mask=inside)
    kept = tl.rand(seed, element) >= p
    y = residual + tl.where(kept, x / (1 - p), 0.0)
    tl.store(y_ptr + element, y, mask=inside)


# %% tags=["hide-input"]
@triton.jit
def backward_by_element(grad_y_ptr, grad_x_ptr, seed, p, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=inside)
    kept = tl.rand(seed, element) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y / (1 - p), 0.0), mask=inside)


by_element = (forward_by_element, backward_by_element)
print("the same mask, 64 x 1000:", bool(np.equal(*masks(64, 1000, 0.1, by_element)).all()))
print("gradients right, 3 x 5:", gradients_right(3, 5, by_element))

# %% [markdown]
# Step through it on two rows of six. When you get to `kept`, notice that this line reads nothing: it computes each
# random number on the spot from the element's index.

# %% tags=["hide-input"]
slope = torch.arange(12.0, device=device).view(2, 6)
tensors = (slope, torch.zeros(6, device=device), 100 + slope, torch.empty_like(slope))
watch(forward_by_element[(2,)], *tensors, 3, 0.5, 6, BLOCK=8)

# %% [markdown]
# **How many bytes per element does the fused forward pass move, in fp32?** (Count each byte once. Every program reads
# the bias, but from cache. The meter calls this count `unique_total`.)

# %% tags=["hide-input"]
fused_bytes = predict_first("bytes per element, fused, the mask not stored", unit="B")
fused_bytes

# %% tags=["hide-input"]
fused = measure(Fused.apply, x, bias, residual, 3, 0.1, by_element)
apply = lambda *tensors: Fused.apply(*tensors, 3, 0.1, by_element)
print(saved_for_backward(apply, x, bias, residual))
fused_bytes.compare(
    fused.unique_total / x.numel(), "And no tensor is saved. The mask never exists in memory."
)

# %% [markdown]
# ## The cost of the random numbers
#
# We've traded bytes for arithmetic. As you saw in lesson 01, arithmetic is almost free in a memory-bound kernel, up to
# a point. Is Philox still below that point? Let's compile three versions of our forward kernel for an H200: without
# dropout, with `tl.rand`, and with `tl.rand4x`. One Philox call produces *four* numbers. `tl.rand` uses the first and
# throws the other three away, while `tl.rand4x` returns all four. (The tensors are bf16, the arithmetic is fp32, and
# each thread has 16 elements.)
#
# An SM can issue at most four instructions per clock, each for a warp of 32 threads. That gives us a lower bound on the
# time for the instructions, to go with the one for the bytes:

# %% tags=["hide-input", "nbval-ignore-output"]
from benchmarks.experiments.lesson_04 import COLUMNS, NUMBERS, ROWS
from benchmarks.experiments.lesson_04 import dice_kernel as numbers_kernel

gpu, elements = DEVICES["H200"], ROWS * COLUMNS
ways = {name: name.replace("no dice", "no dropout") for name in NUMBERS}
row = torch.empty(8, COLUMNS, device="meta", dtype=torch.bfloat16)
arguments = (row, row[0], row, row, 3141, 0.1, COLUMNS)
options = {"device": "H200", "BLOCK": COLUMNS, "num_warps": 8}  # 16 elements per thread
rows = []
for name, each in NUMBERS.items():
    made = compile_for(numbers_kernel, *arguments, EACH=each, **options)
    instructions = sum(made.instructions.values())
    shortest = elements / 16 / 32 * instructions / (4 * gpu.sms * gpu.sm_clock)
    multiplies, registers = made.instructions["IMAD"], made.registers
    rows.append((ways[name], instructions, f"{1e6 * shortest:.0f} us", multiplies, registers))
bytes_time = 3 * 2 * elements / h200.copy_bandwidth  # x, residual and result, two bytes each
print(f"{ROWS} x {COLUMNS} in bf16: moving the bytes takes {1e6 * bytes_time:.0f} us")
columns = ("", "instructions", "minimum time", "IMAD", "registers per thread")
table(columns, rows)

# %% [markdown]
# With `tl.rand`, the instructions take longer than the bytes, so **that kernel can't be memory-bound.** For the other
# two versions, the bound is below the time for the bytes, so it doesn't prove anything; we have to measure. **On an
# H200, in bf16, how much slower is the kernel with `tl.rand` than without dropout?** (You can work out a minimum
# from the two times above. You can only guess how far above that minimum it ends up.)

# %% tags=["hide-input"]
rand_time = predict_first("time with tl.rand ÷ time without dropout, bf16, H200", unit="times")
rand_time

# %% tags=["hide-input"]
numbers = h200.experiment("dice")
without = numbers["bfloat16"]["no dice"].median
chart = timing_chart(
    {ways[name]: numbers["bfloat16"][name] for name in NUMBERS}, f"{h200.label_of('dice')}, bf16"
)
rand = list(NUMBERS).index("tl.rand")
display(
    rand_time.on(
        chart, "x", lambda times: times * without, row=rand, says=lambda t: f"{1e6 * t:.0f} µs"
    )
)
rand_time.compare(
    numbers["bfloat16"]["tl.rand"].median / without,
    "It's above the bound, for two likely reasons. The bound counts all instructions alike, but "
    "Philox's integer multiplies (IMAD) issue at a lower rate. And with so many registers per "
    "thread, fewer warps fit on an SM. Even with rand4x, the random numbers aren't free in bf16, "
    "although the bound is below the time for the bytes.",
)

# %% [markdown]
# The course's own kernel also draws four at a time, and it compares the raw bits with `p`, both as integers
# (`kernels/philox.py`). In bf16 it moves 6 bytes per element, while PyTorch's three kernels move 15. **How many times
# faster is it than PyTorch's three, on an H200, in bf16, on 16384 rows of 4096?** (Go by the bytes. The answer shows
# how far that gets you.)

# %% tags=["hide-input"]
dropout_speed_up = predict_first(
    "speedup of one kernel over PyTorch's three, bias+dropout+add", unit="times"
)
dropout_speed_up

# %% tags=["hide-input"]
dropout_times = h200.times("bias_dropout_residual", (16384, 4096), "bfloat16")
shares = {
    name: each * elements / dropout_times[name].median / h200.copy_bandwidth
    for name, each in (("eager", 15), ("torch.compile", 6))
}
dropout_speed_up.compare(
    dropout_times["eager"].median / dropout_times["fused"].median,
    f"The bytes allow {15 / 6:g}x. The rest comes from PyTorch's kernels, which reach only "
    f"{shares['eager']:.0%} of copy bandwidth (one of them also runs Philox). torch.compile also "
    "gets down to 6 bytes, but it draws with tl.rand and reaches only "
    f"{shares['torch.compile']:.0%}.",
)

# %% [markdown]
# **Claim: bias + dropout + add in one kernel is 2 to 3 times faster.** Here's every size we recorded:

# %% tags=["hide-input", "answers-dropout_speed_up"]
h200.table("bias_dropout_residual", "bfloat16")

# %% [markdown]
# **Verdict: it understates the gain in GPU time, and overstates the gain of a call from Python at the small size.**
# There (the columns after `call`) the gain is smaller, because launching one Triton kernel from Python isn't much
# cheaper than launching PyTorch's three from C++.
#
# ## Gates
#
# Llama's feed-forward layer multiplies two vectors elementwise: the [gate](../docs/glossary.md#gate) $g$ and the *up*
# projection $u$. It computes $y = \mathrm{silu}(g) \cdot u$ with $\mathrm{silu}(g) = g\,\sigma(g)$, which is called
# **SwiGLU**. With GELU instead of SiLU, it's **GeGLU**. Some implementations, vLLM's for example, compute $g$ and $u$
# in *one* matmul, so they're the two halves of each row. The course has a kernel for SwiGLU:

# %%
from kernels import swiglu

product = torch.randn(64, 2 * 512, device=device)
gate, up = product.chunk(2, dim=1)  # two views, no copy
unfused = measure(lambda: F.silu(gate) * up)
unfused

# %% [markdown]
# **By what factor does `swiglu(gate, up)` reduce the bytes?** Its kernel reads two contiguous tensors and writes one.

# %% tags=["hide-input"]
fewer = predict_first("unfused bytes ÷ bytes of swiglu on the two halves", unit="times")
fewer

# %% tags=["hide-input"]
halves = measure(swiglu, gate, up)
display(halves.launch_table())
fewer.compare(
    unfused.bytes_total / halves.bytes_total,
    "It's below one: the fused call moves more bytes than PyTorch's two kernels. The kernel "
    "expects contiguous tensors, and the halves aren't, so the host wrapper copies them first.",
)

# %% [markdown]
# If we pass the **row stride** to the kernel, we don't need a copy. Each program handles one row:


# %%
@triton.jit
def swiglu_kernel(g_ptr, u_ptr, y_ptr, stride, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(g_ptr + row * stride + column, mask=inside)
    up = tl.load(u_ptr + row * stride + column, mask=inside)
    tl.store(y_ptr + row * columns + column, gate * tl.sigmoid(gate) * up, mask=inside)


def gated(product):
    gate, up = product.chunk(2, dim=1)
    y = torch.empty(gate.shape, device=product.device)
    rows, columns = gate.shape
    block = triton.next_power_of_2(columns)
    swiglu_kernel[(rows,)](gate, up, y, product.stride(0), columns, BLOCK=block)
    return y


print("right:", torch.allclose(gated(product), F.silu(gate) * up, atol=1e-6))
measure(gated, product)

# %% [markdown]
# Now it reads two tensors and writes one.
#
# ## Recompute, or store?
#
# In the unfused version, autograd saves whatever the gradients need. The multiplication needs both factors, and SiLU
# needs its input. **By what share does the fused operation reduce that memory, if its backward pass recomputes
# `silu(gate)`?**

# %% tags=["hide-input"]
memory_saved = predict_first("reduction of the memory saved for backward, SwiGLU", unit="%")
memory_saved

# %% tags=["hide-input"]
g, u = (half.contiguous().requires_grad_() for half in (gate, up))
apart = saved_for_backward(lambda gate, up: F.silu(gate) * up, g, u)
together = saved_for_backward(swiglu, g, u)
print(apart)
print(together)
memory_saved.compare(100 * (1 - together.total / apart.total))

# %% [markdown]
# **Claim: dropping intermediates takes 20 to 40 % less memory.** (It doesn't name a model.)

# %% tags=["hide-input", "answers-memory_saved"]
mask_and_none = saved_for_backward(sublayer_end, x, bias, residual).total
print(
    f"SwiGLU: {1 - together.total / apart.total:.0%} less; the sublayer's end: all "
    f"{mask_and_none:,} B"
)

# %% [markdown]
# **Verdict: it's right for SwiGLU, and an understatement for the sublayer, where the whole mask is gone.**
#
# Recomputing costs almost nothing here. The backward pass has to read `gate` anyway to get SiLU's slope,
# $\mathrm{silu}'(g) = \sigma(g)\,(1 + g\,(1 - \sigma(g)))$. With that in a register, `silu(gate)` takes only a few more
# instructions, while storing it would cost a write and a read. Now write the slope yourself. At the moment, the kernel
# uses $\sigma(g)$. **Fix the marked line.**


# %%
@triton.jit
def grad_gate_kernel(grad_y_ptr, g_ptr, u_ptr, grad_g_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad_y = tl.load(grad_y_ptr + element).to(tl.float32)
    gate = tl.load(g_ptr + element).to(tl.float32)
    up = tl.load(u_ptr + element).to(tl.float32)
    share = tl.sigmoid(gate)
    slope = share  # <- here
    tl.store(grad_g_ptr + element, grad_y * up * slope)


gates = torch.linspace(-4, 4, 12).double().requires_grad_()
ups, grads = torch.arange(1.0, 13.0).double(), torch.arange(12.0, 0.0, -1.0).double()
(silu_grads,) = torch.autograd.grad(torch.nn.functional.silu(gates) * ups, gates, grads)
halved = (each.detach().half() for each in (grads, gates, ups))
puzzle(grad_gate_kernel, 3, *halved, wanted=silu_grads.half(), BLOCK=4)

# %% [markdown]
# <details><summary>Answer</summary><code>slope = share * (1 + gate * (1 - share))</code>: it depends only on the gate,
# which is already in a register.</details>
#
# <!-- choices
# slope = share
#
# slope = gate * share
#
# slope = share * (1 - share)
#
# slope = share * (1 + gate * (1 - share))
#
# slope = share * (1 + gate) * (1 - share)
# -->
#
# As a result, the whole backward pass moves fewer bytes:

# %% tags=["hide-input"]
gradient = torch.ones_like(g)
steps = {}
for name, result in (("unfused", F.silu(g) * u), ("fused", swiglu(g, u))):
    steps[name] = measure(lambda y=result: torch.autograd.grad(y, (g, u), gradient))
lighter = steps["unfused"].bytes_total / steps["fused"].bytes_total
traffic_chart(steps, f"Fusing cuts SwiGLU's backward traffic by a factor of {lighter:.1f}")

# %% [markdown]
# Is it always better to [recompute](../docs/glossary.md#recompute)? Take `gelu(x + residual)`. GELU's slope needs the
# sum. You can store the sum: the forward pass writes it, and the backward pass reads it. Or you can save `x` and
# `residual` and add them again, but then you keep *two* tensors instead of one, and the backward pass reads both. So
# the rule is:
#
# **Recompute a value if you can get it from something the backward pass has anyway, such as a seed, or a gate that it
# has to read. Store it if recomputing would read more bytes than it takes to write and read the value. In a tie, pick
# whichever saves fewer bytes for the backward pass.**
#
# The bars below show the bytes that a training step moves, forward and backward, and the bytes it saves in between.
# Times are bytes divided by data-sheet bandwidth. See if you can answer these:
#
# 1. Bias+dropout+residual: by what share does recomputing the mask reduce the fused kernels' bytes in bf16? Why is the
#    share smaller in fp32?
# 2. SwiGLU in a network of 32 layers, at 16384 rows of 11008: do the saved tensors fit on an A100, with and without
#    recomputing? On an L4?
# 3. Residual+GELU: what does recomputing change?

# %% tags=["hide-input"]
from helpers.figures import RecomputationExplorer

explorer = RecomputationExplorer("bias+dropout+residual", "bf16", "H200", 16384, 4096)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. A sixth in bf16, but only an eleventh in fp32: the mask still takes
# one byte per element, while everything else has doubled. (The sum for the bias's gradient isn't counted. Both versions
# need it.) 2. They fit on an A100 either way. On an L4 they fit only if you recompute, and then there's hardly room for
# anything else. 3. It moves the same number of bytes and keeps twice as many for the backward pass, so it isn't worth
# it.</details>
#
# ## Gates, timed
#
# **In bf16, how many times faster is the fused SwiGLU on 16384 rows of 11008, forward?** You can work it out from the
# bytes.

# %% tags=["hide-input"]
gate_speed_up = predict_first("speedup of fused SwiGLU over eager, 16384 x 11008", unit="times")
gate_speed_up

# %% tags=["hide-input"]
gate_shape = (16384, 11008)
times = h200.times("swiglu", gate_shape, "bfloat16")
eager = times["eager"].median
gate_speed_up.compare(
    eager / times["fused"].median,
    f"The bytes allow {10 / 6:.2f}x: ten per element become six. torch.compile does just as well "
    "here.",
)

# %% [markdown]
# **Claim: fusing GELU or SwiGLU makes it 1.5 to 2 times faster.** (*Liger* in the chart is a published collection of
# fused Triton kernels.)

# %% tags=["hide-input"]
display(h200.table("swiglu", "bfloat16"))
chart, fused_row = timing_chart(times, h200.label_of("swiglu")), list(times).index("fused")
in_us = lambda seconds: f"{1e6 * seconds:.0f} µs"
gate_speed_up.on(chart, "x", lambda gain: eager / gain, row=fused_row, says=in_us)

# %% [markdown]
# **Verdict: it holds for GPU time at every size, but not for a call at the smallest.** There, the launch from Python
# costs more than fusing saves. *Going further* covers GeGLU and the backward passes.
#
# ## Your predictions vs the measurements

# %% tags=["nbval-ignore-output", "hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Suppose dropout used an ordinary generator, with state. Why would it be hard to draw the mask again in the backward
#    pass?
# <details><summary>Answer</summary>The state has moved on. You'd have to reset it and then draw the numbers one by one,
# in the same order as the first time. With a counter, order doesn't matter.</details>
#
# 2. A dropout kernel uses `tl.rand(0, element)`, always with seed 0. Forward and backward agree, and gradcheck passes.
#    What's wrong?
# <details><summary>Answer</summary>It drops the same positions in every step and every layer. Each weight still learns
# from the rows where its element is kept, but the noise is always the same, so the network fits the noise instead of
# learning to cope without any single element. Every call needs a new seed, drawn in the forward pass and saved for the
# backward pass.</details>
#
# 3. You change `BLOCK` in the backward kernel, and training gets worse. What do you check first?
# <details><summary>Answer</summary>The counter of the random numbers. If it's computed from the position in the block
# or the program ID, the mask depends on the block size. gradcheck on an awkward shape will show it.</details>
#
# 4. A fused kernel moves more bytes than the unfused operators. Where do you look?
# <details><summary>Answer</summary>At the list of launches. You'll probably find copies, made because the inputs aren't
# contiguous. Pass strides to the kernel.</details>
#
# 5. `y = silu(gate) * up` is one kernel. Its forward pass *stores* `silu(gate)`, and its backward pass reads that as
#    well as gate and up. In fp16, how many bytes per element do the two passes move in total? Replace the dots with
#    your number.

# %%
from helpers.figures import TRAINING_STEPS

answer = ...
correct = TRAINING_STEPS["SwiGLU"](1, 2).stored.moved
self_test(answer, correct, "forward 2 in, 2 out; backward 4 in (including the gradient), 2 out")

# %% [markdown]
# ## Now you
#
# In [Exercise 04](../exercises/04_bias_dropout_residual.ipynb) you'll write bias, dropout and residual, with a backward
# pass that regenerates the mask. Next: [05 Normalisation](05_normalisation.ipynb), where each program takes a whole
# row.

# %% [markdown]
# ## Going further
#
# ### A seed that never changes
#
# The course's kernel saves its seed in a tensor, not in a Python number. Here's why. You can record a training step
# once as a **CUDA graph** and replay it, which spares the CPU the work of each launch. The graph records every launch
# with its arguments. For a tensor, that's its address; for a number, it's the value. So if the seed is a number, it's
# drawn while recording and never again. Dropout then drops the same elements in every step, and no test of a single
# step will show it. Our `Fused` has that bug. If the seed is in a tensor, drawing it is just one more recorded launch.
# (Without a GPU, this cell replays the launches itself, with the same effect.)


# %%
import random
from functools import partial


@triton.jit
def draw_from_kernel(out_ptr, seed_ptr, each, BLOCK: tl.constexpr):
    position = tl.arange(0, BLOCK)
    counter = tl.program_id(0) * each + position
    tl.store(out_ptr + counter, tl.rand(tl.load(seed_ptr), counter), mask=position < each)


def replay_twice(steps, out):
    """Return whether a recording of the steps draws the same numbers both times."""
    play = lambda: [step() for step in steps]
    play()  # compiles
    if runtime.has_gpu():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            play()
        play = graph.replay
    drawn = []
    for _ in range(2):
        play()
        drawn.append(out.clone())
    return torch.equal(*drawn)


# %%
out, seed = torch.empty(24, device=device), torch.zeros((), dtype=torch.int64, device=device)
by_number = [partial(draw_kernel[(4,)], out, random.getrandbits(31), 6, BLOCK=8)]
by_tensor = [seed.random_, partial(draw_from_kernel[(4,)], out, seed, 6, BLOCK=8)]
print("seed a number, the same mask twice:", replay_twice(by_number, out))
print("seed in a tensor, the same mask twice:", replay_twice(by_tensor, out))

# %% [markdown]
# ### What `residual_act` stores
#
# With GELU, it stores the sum, a second tensor. For ReLU's slope, all we need to know is whether the sum is above 0, so
# we store one bit per element. (The result contains the same information, and the next layer usually saves it anyway.
# But then the backward pass would read a whole value per element when one bit is enough.)

# %%
from kernels import residual_act

for act in ("gelu", "relu"):
    print(f"{act}:", saved_for_backward(residual_act, g, u, act))
    written = measure(residual_act, g, u, act).bytes_written / g.nbytes
    print(f"{act}: the forward pass writes {written:.3g} times the result's bytes")

# %% [markdown]
# ### Random numbers in fp32, GeGLU, and the backward passes
#
# With one Philox call per element, the random numbers aren't free in either dtype. They cost more in bf16, where the
# memory traffic takes less time and hides less arithmetic. With one call per four elements, they're free in fp32.

# %% tags=["hide-input"]
rows = []
for dtype, itemsize in (("bfloat16", 2), ("float32", 4)):
    transfer = 3 * itemsize * elements / h200.copy_bandwidth
    measured = (f"{1e6 * numbers[dtype][name].median:.0f} us" for name in NUMBERS)
    rows.append((dtype, f"{1e6 * transfer:.0f} us", *measured))
table(("", "moving the bytes", *ways.values()), rows, h200.label_of("dice"))

# %% [markdown]
# On the largest shape, GeGLU gains more than SwiGLU. The fused kernels take the same time and move the same number of
# bytes, so PyTorch's GELU must be further from copy bandwidth than its SiLU.

# %% tags=["hide-input"]
print("geglu, residual_act:")
for name in ("geglu", "residual_act"):
    display(h200.table(name, "bfloat16"))

# %% [markdown]
# In the backward pass, the gates gain about as much as the bytes in the chart suggest, or more. Dropout gains a little
# less than its bytes allow (they drop from seven per element to four), because it also has to draw random numbers and
# sum the bias's gradient.

# %% tags=["hide-input"]
rows = []
shapes = {"bias_dropout_residual": (16384, 4096), "swiglu": gate_shape, "geglu": gate_shape}
for name, shape in shapes.items():
    taken = h200.times(f"{name} backward", shape, "bfloat16")
    eager_time, fused_time = (1e6 * taken[version].median for version in ("eager", "fused"))
    gain = f"{eager_time / fused_time:.2f}"
    rows.append((name, f"{eager_time:.0f} us", f"{fused_time:.0f} us", gain))
label = h200.label_of(*(f"{name} backward" for name in shapes))
table(("backward", "eager", "fused", "speedup"), rows, label)

# %% [markdown]
# If you have a GPU, time your own kernels:

# %% tags=["nbval-ignore-output", "hide-input"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    with torch.no_grad():
        own, both = inputs(16384, 4096), torch.randn(16384, 8192, device="cuda")
        left, right = both.chunk(2, dim=1)
        versions = {
            "unfused": lambda: sublayer_end(*own),
            "fused": lambda: Fused.apply(*own, 3, 0.1, by_element),
            "F.silu(gate) * up": lambda: F.silu(left) * right,
            "gated": lambda: gated(both),
        }
        print(benchmark_together(versions))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")
