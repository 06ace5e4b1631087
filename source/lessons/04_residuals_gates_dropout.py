# %% [markdown]
# # 04 Residuals, gates and dropout: compute it again
#
# Dropout throws away some of the numbers, at random. The backward pass must throw away *the very same ones*, so
# PyTorch writes down which: a mask, as many entries as the tensor has. **Can the backward pass know what the dice
# showed in the forward pass, if nobody wrote it down?** And what else is stored for the backward pass that could as
# well be computed again?
#
# After this lesson you can
#
# - count what a training step moves and what it keeps between its two passes;
# - fuse bias, dropout and residual into one kernel whose backward pass makes the same mask again;
# - find a backward pass that draws another mask, where values, bytes and drop rate all look right;
# - fuse a gate (SwiGLU, GeGLU) whose two halves lie in one tensor, without a copy;
# - say when to recompute and when to store.
#
# About 60 minutes. It follows on [03b What the compiler made of it](03b_what_the_compiler_made.ipynb) and leads to
# [exercise 04](../exercises/04_bias_dropout_residual.ipynb).

# %%
import numpy as np
import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import measure, saved_for_backward, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

torch.manual_seed(0)
device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## The end of a transformer's sublayer
#
# Attention and feed-forward layer both end the same way: add a bias, drop some numbers (those that stay are divided by
# `1 - p`, so that the mean stays), add what came in. In training, on a GPU, `F.dropout` is the operator
# `native_dropout`, which gives the result and the mask; here it is called by name, so that a CPU runs the same.


# %%
def written_out(x, bias, residual, p=0.1):
    dropped, mask = torch.native_dropout(x + bias, p, True)  # True: training
    return residual + dropped


def inputs(rows, columns, dtype=torch.float32):
    options = {"device": device, "dtype": dtype}
    x, residual = torch.randn(2, rows, columns, **options)
    bias = torch.randn(columns, **options)
    return [tensor.requires_grad_() for tensor in (x, bias, residual)]


# %% [markdown]
# **How many bytes an element does the forward pass move, in fp32?** Three launches. What is as large as `x` counts four
# bytes when it is read or written; an entry of the mask is one byte.

# %%
forward_bytes = predict_first("bytes an element, residual + dropout(x + bias)", unit="B")
forward_bytes

# %%
x, bias, residual = inputs(64, 1024)
forward = measure(written_out, x, bias, residual)
display(forward.launch_table())
forward_bytes.compare(forward.bytes_total / x.numel())

# %%
from helpers.figures import traffic_chart

each = forward.bytes_total / x.numel()
chart = traffic_chart({"unfused": forward}, f"Three launches move {each:.4g} bytes an element")
forward_bytes.on(chart, "x", lambda b: b * x.numel(), row=0, says=lambda b: f"{b / 1e6:.3g} MB")

# %% [markdown]
# The backward pass is given the gradient of the result and works out those of the inputs. `x`'s is dropped where `x`
# was; the bias's is the sum of that over the rows; the residual's is what was given, and costs nothing.

# %%
gradient, result = torch.randn_like(residual), written_out(x, bias, residual)
backward = measure(lambda: torch.autograd.grad(result, (x, bias, residual), gradient))
backward.launch_table()

# %% [markdown]
# It reads the mask. So from one pass to the other the mask was **kept**: in a network of many layers, all the masks of
# all the layers lie in memory until their turn comes. PyTorch tells what it keeps:

# %%
saved_for_backward(written_out, x, bias, residual)

# %% [markdown]
# ## Dice that anyone can throw again
#
# The usual random generator has a state: each number changes it, so the next one must wait for the last. That is no
# good to thousands of threads, and nobody can go back. **Philox** has no state. It is a function of two integers, the
# *seed* and a *counter*: ten rounds of multiplying and mixing, until nothing of their order is left. In Triton,
# `tl.rand(seed, counter)` is a number between 0 and 1. Any thread can have any number, at any time, again.
# ([Salmon et al., 2011](https://doi.org/10.1145/2063384.2063405))


# %%
@triton.jit
def draw_kernel(out_ptr, seed, each, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    counter = tl.program_id(0) * each + lane  # a program draws `each` numbers
    tl.store(out_ptr + counter, tl.rand(seed, counter), mask=lane < each)


def draw(seed, count, each):
    out = torch.empty(count, device=device)
    draw_kernel[(count // each,)](out, seed, each, BLOCK=triton.next_power_of_2(each))
    return out.cpu()


# %%
by_six, by_eight = draw(3, 24, each=6), draw(3, 24, each=8)
print("four programs or three, the same numbers:", torch.equal(by_six, by_eight))
print("another seed, the same numbers:", torch.equal(by_six, draw(4, 24, each=6)))

# %% [markdown]
# An element is kept where its number is at least `p`. **Of 10,000 numbers, how many are dropped with `p = 0.1`?**

# %%
dropped = predict_first("dropped of 10,000 with p = 0.1", unit="")
dropped

# %%
dropped.compare(int((draw(3, 10_000, each=2500) < 0.1).sum()))

# %% [markdown]
# Not a tenth to the last one: dice are dice. As a picture, 24 elements in four rows, with `p = 0.5`. Four programs of
# six draw the left mask, three programs of eight the right one:

# %%
from helpers.figures import Draw, mask_chart

number = np.arange(24).reshape(4, 6)  # of each element in the tensor: its counter
kept_six, kept_eight = (each.view(4, 6).numpy() >= 0.5 for each in (by_six, by_eight))
mask_chart(
    {
        "forward: a program takes a row": Draw(number, number // 6, kept_six),
        "backward: a program takes eight": Draw(number, number // 8, kept_eight),
    },
    "The same counter gives the same mask, whoever draws",
)

# %% [markdown]
# That is all it takes: the backward pass draws again. Between the passes only the seed is kept, one number.
#
# ## One kernel forward, one backward
#
# The forward kernel gives each program a row, so that lane and bias go together. The backward kernel has no bias to
# read, so it may as well take the tensor as one long row, in blocks. Somebody wants each program to have dice of its
# own: `seed` plus the program's number, and the lanes count from 0. **Is there anything wrong with that?**


# %%
@triton.jit
def forward_by_lane(x_ptr, bias_ptr, r_ptr, y_ptr, seed, p, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    element = tl.program_id(0) * columns + lane
    inside = lane < columns
    x = tl.load(x_ptr + element, mask=inside) + tl.load(bias_ptr + lane, mask=inside)
    residual = tl.load(r_ptr + element, mask=inside)
    kept = tl.rand(seed + tl.program_id(0), lane) >= p
    y = residual + tl.where(kept, x / (1 - p), 0.0)
    tl.store(y_ptr + element, y, mask=inside)


# %%
@triton.jit
def backward_by_lane(grad_y_ptr, grad_x_ptr, seed, p, elements, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    element = tl.program_id(0) * BLOCK + lane
    inside = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=inside)
    kept = tl.rand(seed + tl.program_id(0), lane) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y / (1 - p), 0.0), mask=inside)


# %% [markdown]
# To PyTorch the two belong together: an `autograd.Function` is a forward pass and its backward pass. What the second
# needs of the first it finds in `ctx`. It returns a gradient for each argument; seed, `p` and the two kernels have
# none.


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


by_lane = (forward_by_lane, backward_by_lane)


# %% [markdown]
# Test it. With ones for `x`, and zeros for bias and residual, the result shows the forward mask. A gradient of ones
# shows the backward one.


# %%
def masks(rows, columns, p, kernels):
    ones = torch.ones(rows, columns, device=device, requires_grad=True)
    zeros = torch.zeros(rows, columns, device=device)
    y = Fused.apply(ones, zeros[0], zeros, 3, p, kernels)
    (grad,) = torch.autograd.grad(y, ones, torch.ones_like(y))
    return (y != 0).cpu().numpy(), (grad != 0).cpu().numpy()


forwards, backwards = masks(64, 1024, 0.1, by_lane)
print(f"dropped: {1 - forwards.mean():.1%} forward, {1 - backwards.mean():.1%} backward")
print("the same mask:", bool((forwards == backwards).all()))

# %% [markdown]
# And now, as always in this course, a width that is no power of two:

# %%
forwards, backwards = masks(64, 1000, 0.1, by_lane)
print(f"dropped: {1 - forwards.mean():.1%} forward, {1 - backwards.mean():.1%} backward")
metered = measure(lambda: masks(64, 1000, 0.1, by_lane))
print("hazards found by the meter:", metered.hazards or "none")

# %% [markdown]
# The rate is right in both. The meter reports no hazard: not a byte is touched that should not be. But whether the two
# masks are still the *same*, this cell did not ask. If they are not, your network would train, a little worse than it
# could, and nobody would know why.
#
# The instrument for this is **gradcheck**. It moves each input by a hair, looks how the results move, and compares
# that with what the backward pass says. It wants double precision and small, awkward shapes.


# %%
def gradients_right(rows, columns, kernels):
    small = inputs(rows, columns, torch.float64)
    function = lambda *tensors: Fused.apply(*tensors, 3, 0.5, kernels)
    return torch.autograd.gradcheck(function, small, raise_exception=False)


print("gradients right, 1 x 5:", gradients_right(1, 5, by_lane))
print("gradients right, 3 x 5:", gradients_right(3, 5, by_lane))

# %% [markdown]
# One row is right, three are not. If the two masks had nothing to do with each other, **what share of the elements
# would be dropped in one pass and kept in the other, with `p = 0.1`?**

# %%
disagree = predict_first("elements on which the two masks disagree, p = 0.1", unit="%")
disagree

# %%
disagree.compare(100 * np.not_equal(*masks(64, 1000, 0.1, by_lane)).mean())

# %% [markdown]
# Dropped by the first and kept by the second, or the reverse: by chance alone that happens to `2 p (1 - p)` of them,
# and so it does here, nearly. The masks have next to nothing in common. Look at the counters (here the forward pass has
# four programs and the backward pass one, for all 24 elements):

# %%
rows_mask, blocks_mask = masks(4, 6, 0.5, by_lane)
mask_chart(
    {
        "forward: seed + row, counter = lane": Draw(number % 6, number // 6, rows_mask),
        "backward: seed + block, counter = lane": Draw(number, 0 * number, blocks_mask),
    },
    "Counted from a program's own start, the masks differ after the first row",
)

# %% [markdown]
# A lane's number depends on how the tensor was cut up, and the two passes cut it differently. With rows as long as a
# block they happened to agree, which is why the first test passed. The counter must be something that *the element*
# has, whoever works on it: **its number in the whole tensor**.
#
# While we are at it, a second mistake, which no small tensor shows. `tl.program_id` is an `int32`, and so is its
# product with `columns`. **With rows of $2^{30}$ elements, where does row 2 begin?** No such tensor is made here; the
# kernel only stores where its rows would begin:


# %%
@triton.jit
def start_kernel(narrow_ptr, wide_ptr, columns):
    row = tl.program_id(0)
    tl.store(narrow_ptr + row, row * columns)
    tl.store(wide_ptr + row, row.to(tl.int64) * columns)


# %%
narrow, wide = torch.empty(2, 4, dtype=torch.int64, device=device)
start_kernel[(4,)](narrow, wide, 2**30)
print("int32:", *narrow.tolist())
print("int64:", *wide.tolist())

# %% [markdown]
# *Before* its tensor: past $2^{31}$ elements the `int32` has wrapped, and the kernel reads and writes other people's
# memory. 65,536 tokens of 32,768 numbers are as many. So the program's number is converted **before** it is multiplied.
# (`tl.rand` takes an `int64` counter as it is.) Both mended, in both kernels:


# %%
@triton.jit
def forward_by_element(x_ptr, bias_ptr, r_ptr, y_ptr, seed, p, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    element = tl.program_id(0).to(tl.int64) * columns + lane
    inside = lane < columns
    x = tl.load(x_ptr + element, mask=inside) + tl.load(bias_ptr + lane, mask=inside)
    residual = tl.load(r_ptr + element, mask=inside)
    kept = tl.rand(seed, element) >= p
    y = residual + tl.where(kept, x / (1 - p), 0.0)
    tl.store(y_ptr + element, y, mask=inside)


# %%
@triton.jit
def backward_by_element(grad_y_ptr, grad_x_ptr, seed, p, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    grad_y = tl.load(grad_y_ptr + element, mask=inside)
    kept = tl.rand(seed, element) >= p
    tl.store(grad_x_ptr + element, tl.where(kept, grad_y / (1 - p), 0.0), mask=inside)


# %%
from helpers.figures import watch

few = torch.arange(24.0, device=device).view(4, 6)
watch(
    forward_by_element[(2,)],
    few[:2],
    few[3],
    few[2:],
    torch.empty_like(few[:2]),
    3,
    0.5,
    6,
    BLOCK=8,
)

# %% [markdown]
# Step to `kept`: every number there was made on the spot, from the element's own. Nothing was read for it.

# %%
by_element = (forward_by_element, backward_by_element)
print("the same mask:", bool(np.equal(*masks(64, 1000, 0.1, by_element)).all()))
print("gradients right, 3 x 5:", gradients_right(3, 5, by_element))

# %% [markdown]
# **How many bytes an element does the fused forward pass move, in fp32?** (Distinct bytes: the bias is read by every
# program, but from the cache.)

# %%
fused_bytes = predict_first("bytes an element, fused, the mask not stored", unit="B")
fused_bytes

# %%
fused = measure(Fused.apply, x, bias, residual, 3, 0.1, by_element)
print(
    saved_for_backward(
        lambda *tensors: Fused.apply(*tensors, 3, 0.1, by_element), x, bias, residual
    )
)
fused_bytes.compare(fused.unique_total / x.numel())

# %% [markdown]
# Nothing is kept, and the mask is nowhere in memory. (The course's own kernels, in the folder `kernels`, are its
# *catalogue*. Its `bias_dropout_residual` also sums the bias's gradient on the way, where we call `sum`.)
#
# ## A seed that never changes
#
# The catalogue keeps its seed in a tensor, not in a Python number. Why? A training step may be recorded once, as a
# **CUDA graph**, and played again and again, which saves the host's work for each launch. What is recorded are launches
# with their arguments: of a tensor its address, of a number its value. **Played twice, which draws the same mask twice:
# a kernel that is given its seed as a number, or one that loads it from a tensor?** (With no GPU, the cell plays the
# launches itself, which is the same.)


# %%
import random
from functools import partial


@triton.jit
def draw_from_kernel(out_ptr, seed_ptr, each, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    counter = tl.program_id(0) * each + lane
    tl.store(out_ptr + counter, tl.rand(tl.load(seed_ptr), counter), mask=lane < each)


def play_twice(steps, out):
    """Whether a recording of the steps draws the same numbers both times."""
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
print("seed a number, the same mask twice:", play_twice(by_number, out))
print("seed in a tensor, the same mask twice:", play_twice(by_tensor, out))

# %% [markdown]
# The number was drawn while recording, and never again: dropout that drops the same elements in every step, and no
# test of a single step sees it. Our `Fused` has that fault. In a tensor, drawing the seed is one more recorded step.
#
# ## What the dice cost
#
# Bytes are saved, arithmetic is added. Lesson 01 said that arithmetic is nearly free in a kernel that waits for memory:
# up to a point. Ten rounds of Philox for each number: **how many times as many instructions does the kernel have as one
# that drops nothing?** Here is our forward kernel again, made ready for bf16 and fp16: it computes in fp32
# (`.to(tl.float32)`), and the store rounds. `EACH` is how many numbers come of one evaluation of Philox: 0, no dice; 1,
# as above. (Leave 4 aside; it is explained when we need it.)

# %%
import inspect

from benchmarks.experiments.lesson_04 import COLUMNS, NUMBERS, ROWS, dice_kernel

print(inspect.getsource(dice_kernel.fn))

# %%
more_instructions = predict_first("times as many instructions with tl.rand", unit="times")
more_instructions

# %% tags=["nbval-ignore-output"]
from helpers.instruments import compile_for

row = torch.empty(8, COLUMNS, device="meta", dtype=torch.bfloat16)
arguments = (row, row[0], row, row, 3141, 0.1, COLUMNS)
options = {"device": "H200", "BLOCK": COLUMNS, "num_warps": 8}  # 16 numbers a thread
count = {}
for name, each in NUMBERS.items():
    made = compile_for(dice_kernel, *arguments, EACH=each, **options)
    count[name] = sum(made.instructions.values())
print(count["no dice"], "instructions with no dice,", count["tl.rand"], "with tl.rand")
more_instructions.compare(count["tl.rand"] / count["no dice"])

# %% [markdown]
# Is that still free? A GPU is made of multiprocessors (SMs; lesson 07 is about them). An SM starts at most four
# instructions a clock, each for a whole warp of 32 threads. That is a bound which no kernel beats:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import DEVICES, recorded

h200, gpu = recorded("h200"), DEVICES["H200"]
elements = ROWS * COLUMNS
warps = elements / 16 / 32  # 16 numbers a thread, 32 threads a warp


def instruction_time(instructions):
    return warps * instructions / (4 * gpu.sms * gpu.sm_clock)


moved = 3 * 2 * elements  # x, the residual and the result, two bytes each
print(f"{ROWS} x {COLUMNS}, bf16: the bytes take {1e6 * moved / h200.copy_bandwidth:.0f} us")
for name in ("no dice", "tl.rand"):
    print(f"{name}: the instructions take at least {1e6 * instruction_time(count[name]):.0f} us")

# %% [markdown]
# With `tl.rand` the instructions take longer than the bytes: **that kernel cannot be bound by memory.** For the one
# without dice the bound says nothing: below the bytes' time, it rules nothing out. Only a clock decides. **How many
# times as long does the kernel take with `tl.rand` as without, in bf16, on an H200?**

# %%
dice_time = predict_first("times as long with tl.rand, bf16, H200", unit="times")
dice_time

# %%
dice = h200.experiment("dice")
without = dice["bfloat16"]["no dice"].median
dice_time.compare(dice["bfloat16"]["tl.rand"].median / without)

# %% [markdown]
# Philox has an answer. One evaluation makes *four* numbers; `tl.rand` takes the first and throws three away.
# `tl.rand4x` gives all four. With `EACH=4`, one counter serves four neighbours. (`tl.join` pairs the numbers of two
# blocks; twice, and the four of a counter stand side by side.) Measured, with each tensor's bytes at a copy's speed
# beside it:

# %%
rows = []
for dtype, itemsize in (("bfloat16", 2), ("float32", 4)):
    bytes_time = 3 * itemsize * elements / h200.copy_bandwidth
    measured = (f"{1e6 * dice[dtype][name].median:.0f} us" for name in NUMBERS)
    rows.append((dtype, f"{1e6 * bytes_time:.0f} us", *measured))
table(("", "the bytes", *NUMBERS), rows, h200.label_of("dice"))

# %%
from helpers.figures import timing_chart

chart = timing_chart(
    {name: dice["bfloat16"][name] for name in NUMBERS}, f"{h200.label_of('dice')}, bf16"
)
rand = list(NUMBERS).index("tl.rand")
dice_time.on(
    chart, "x", lambda times: times * without, row=rand, says=lambda t: f"{1e6 * t:.0f} µs"
)

# %% [markdown]
# With an evaluation a number, no dtype gets its dice free, and bf16 pays more, whose bytes leave less time to hide
# them in. It pays more than the bound said: that was the least. With one for four they are free in fp32; in bf16 they
# still cost something, though the instructions' least time is now below the bytes':

# %% tags=["nbval-ignore-output"]
print(
    f"tl.rand4x: the instructions take at least {1e6 * instruction_time(count['tl.rand4x']):.0f} us"
)

# %% [markdown]
# So a bound below the bytes' time proves nothing, and the clock has the word. The catalogue also draws four at a time,
# and compares the random bits with `p` as integers, without making numbers between 0 and 1 of them
# (`kernels/philox.py`; its counter is a row and a four of columns, so that any width will do). What it reaches is in
# the next table.
#
# **Claim: "bias + dropout + add: 2 to 3 times faster."** By the bytes, in bf16, fifteen an element become six. **How
# many times faster is the fused kernel on this H200, on 16384 rows of 4096?**

# %%
dropout_speed_up = predict_first("speed-up, bias+dropout+add, 16384 x 4096", unit="times")
dropout_speed_up

# %%
display(h200.table("bias_dropout_residual", "bfloat16"))
dropout_times = h200.times("bias_dropout_residual", (16384, 4096), "bfloat16")
dropout_speed_up.compare(dropout_times["eager"].median / dropout_times["fused"].median)

# %% [markdown]
# **Verdict: too modest by the GPU's own time, on the large size by far; too much for the caller of the small one.** It
# is more than the bytes allow, too. The kernels it is compared with do not reach the memory's speed:

# %%
for name, each in (("eager", 15), ("torch.compile", 6)):
    share = each * elements / dropout_times[name].median / h200.copy_bandwidth
    print(f"{name} moves {each} bytes an element at {share:.0%} of a copy's speed")

# %% [markdown]
# `torch.compile` makes one kernel of it, too, moves no byte more than ours, and takes twice as long. It draws with
# `tl.rand`, one evaluation a number: you have just seen what that costs.
#
# And the small one, as its caller sees it, who waits for Python and the launches as well (the columns after `call`)?
# Ours has the shortest time on the GPU, and its caller gains less over PyTorch's three kernels than the GPU: a Triton
# launch through Python costs much of what they do. **There the claim fails**, unless many calls are recorded in a
# CUDA graph.
#
# ## Gates
#
# The feed-forward layer of Llama multiplies two halves, the *gate* $g$ and the *up* half $u$, which widens the row:
# $y = \mathrm{silu}(g) \cdot u$ with $\mathrm{silu}(g) = g\,\sigma(g)$. That is **SwiGLU**; with GELU in its place,
# **GeGLU**. Both halves come out of *one* matrix product, side by side in each row. The course's kernel is ready:

# %%
from kernels import swiglu

product = torch.randn(64, 2 * 512, device=device)
gate, up = product.chunk(2, dim=1)  # two views, no copy
unfused = measure(lambda: F.silu(gate) * up)
unfused

# %% [markdown]
# **How many times fewer bytes does `swiglu(gate, up)` move?** Two tensors in, one out.

# %%
fewer = predict_first("times fewer bytes, swiglu on two halves", unit="times")
fewer

# %%
halves = measure(swiglu, gate, up)
display(halves.launch_table())
fewer.compare(unfused.bytes_total / halves.bytes_total)

# %%
chart, moved = traffic_chart({"unfused": unfused, "fused": halves}), unfused.bytes_total
fewer.on(chart, "x", lambda times: moved / times, row=1, says=lambda b: f"{b / 1e3:.0f} kB")

# %% [markdown]
# Less than one: the fused call moves *more* bytes than PyTorch's two kernels. The kernel takes elements one after
# another, and the halves are not: from one row of a half to the next it is two halves' width. So the launcher makes
# copies first (its docstring says so). The meter's launch table shows them.
#
# A kernel that knows the **row stride** needs no copy. Write it with a program a row. (The row's number is made an
# `int64`: times the stride it may pass what an `int32` holds.) SiLU and GELU both let a share of `gate` through; `ACT`
# says which share, when the kernel is compiled, so that only one is in the machine code:


# %%
@triton.jit
def gate_kernel(g_ptr, u_ptr, y_ptr, stride, cols, BLOCK: tl.constexpr, ACT: tl.constexpr):
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = lane < cols
    gate = tl.load(g_ptr + row * stride + lane, mask=inside)
    up = tl.load(u_ptr + row * stride + lane, mask=inside)
    share = tl.sigmoid(gate)
    if ACT == "gelu":
        share = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    tl.store(y_ptr + row * cols + lane, gate * share * up, mask=inside)


# %%
def gated(product, act):
    gate, up = product.chunk(2, dim=1)
    y = torch.empty(gate.shape, device=product.device)
    rows, columns = gate.shape
    options = {"BLOCK": triton.next_power_of_2(columns), "ACT": act}
    gate_kernel[(rows,)](gate, up, y, product.stride(0), columns, **options)
    return y


swiglu_right = torch.allclose(gated(product, "silu"), F.silu(gate) * up, atol=1e-6)
geglu_right = torch.allclose(gated(product, "gelu"), F.gelu(gate) * up, atol=1e-6)
print(f"SwiGLU right: {swiglu_right}, GeGLU right: {geglu_right}")
measure(gated, product, "silu")

# %% [markdown]
# One launch, and what two tensors in and one out must cost. (With tensors of their own, gate and up, the catalogue's
# kernel moves as little.)
#
# ## Recompute, or store?
#
# **Claim: "dropping intermediates takes 20 to 40 % less memory."** (It is quoted with neither a source nor a model that
# it was measured on.) Written out, autograd keeps what the gradients need: the product needs both its factors, SiLU its
# input. **What share of that does the fused operation save, if its backward pass computes `silu(gate)` again?**

# %%
memory_saved = predict_first("memory saved between the passes, SwiGLU fused", unit="%")
memory_saved

# %%
g, u = (half.contiguous().requires_grad_() for half in (gate, up))
apart = saved_for_backward(lambda gate, up: F.silu(gate) * up, g, u)
together = saved_for_backward(swiglu, g, u)
print(apart)
print(together)
memory_saved.compare(100 * (1 - together.total / apart.total))

# %% [markdown]
# **Verdict: holds for SwiGLU, too modest for the sublayer above, all of whose mask is gone.** And it costs
# nothing: the backward pass must read `gate` in any case, for SiLU's slope. `silu(gate)` is a few instructions away,
# where a stored one would have to be written and read. So the whole step gets lighter:

# %%
gradient = torch.ones_like(g)
steps = {}
for name, result in (("unfused", F.silu(g) * u), ("fused", swiglu(g, u))):
    steps[name] = measure(lambda y=result: torch.autograd.grad(y, (g, u), gradient))
    print(f"backward, {name}: {steps[name]}")

# %%
lighter = steps["unfused"].bytes_total / steps["fused"].bytes_total
title = f"SwiGLU's backward pass, fused, moves {lighter:.1f} times fewer bytes"
traffic_chart(steps, title)

# %% [markdown]
# Is recomputing always better? Take `gelu(x + residual)`. GELU's slope needs the sum. Store it: the forward pass writes
# it, the backward pass reads it. Or keep `x` and `residual` and add them again: the backward pass reads *two* tensors
# where one was enough, and two must be kept. See what the course's `residual_act` does, and with ReLU:

# %%
from kernels import residual_act

with_gelu = saved_for_backward(residual_act, g, u, "gelu")
with_relu = saved_for_backward(residual_act, g, u, "relu")
print("GELU,", with_gelu)
print("ReLU,", with_relu)
for act in ("gelu", "relu"):
    written = measure(residual_act, g, u, act).bytes_written / g.nbytes
    print(f"{act}: the forward pass writes {written:.3g} times the result's bytes")

# %% [markdown]
# With GELU it stores the sum, a second tensor. ReLU's slope asks only whether the sum is above 0, so the answer is
# stored, one bit an element. (The result would tell, too: it is above 0 where the sum is, and the next layer most often
# keeps it anyway. But then the backward pass reads a float an element, where a bit is enough.) The rule:
#
# **Recompute what follows from something that the backward pass has at hand in any case: a seed, a gate it must read.
# Store what would need more to be read than it takes up itself.**
#
# Try the rule on the explorer below. Its bars are what a training step moves, forward and backward, and what it keeps
# in between; times are bytes over the bandwidth in the GPU's data sheet. Find out:
#
# 1. Bias+dropout+residual: what share of the fused kernels' bytes does recomputing the mask save in bf16? In fp32? Why
#    is it less there?
# 2. SwiGLU in a network of 32 layers, at 16384 rows of 11008: does what is kept fit into an A100, with and without
#    recomputing? And beside it, into an L4?
# 3. Residual+GELU: what does recomputing change?
# 4. From an H200 to a T4: which of the bars' lengths change, and which numbers?

# %%
from helpers.figures import RecomputationExplorer

explorer = RecomputationExplorer("bias+dropout+residual", "bf16", "H200", 16384, 4096)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. A sixth in bf16, an eleventh in fp32: the mask's bytes, one an
# element, stay what they are, and all others double. 2. An A100 holds it either way. An L4 holds it only recomputed,
# and then has hardly room for anything else. 3. As many bytes are moved, and twice as many kept: it does not pay. 4.
# None of the lengths: the bytes are the same. The times change, and the share of the memory.</details>
#
# ## The claims about gates
#
# **Claim: "fused GELU or SwiGLU: 1.5 to 2 times faster."** In bf16, ten bytes an element become six. **How many
# times faster is SwiGLU on 16384 rows of 11008, forward?**

# %%
gate_speed_up = predict_first("speed-up, SwiGLU forward, 16384 x 11008", unit="times")
gate_speed_up

# %%
gate_shape = (16384, 11008)
times = h200.times("swiglu", gate_shape, "bfloat16")
eager = times["eager"].median
gate_speed_up.compare(eager / times["fused"].median)

# %%
chart, fused_row = timing_chart(times, h200.label_of("swiglu")), list(times).index("fused")
in_us = lambda seconds: f"{1e6 * seconds:.0f} µs"
gate_speed_up.on(chart, "x", lambda gain: eager / gain, row=fused_row, says=in_us)

# %%
print(f"what the bytes allow: {10 / 6:.2f} times")
print("swiglu, geglu, residual_act:")
for name in ("swiglu", "geglu", "residual_act"):
    display(h200.table(name, "bfloat16"))

# %% [markdown]
# **Verdict: holds by the GPU's own time on every size, and for no caller of a small one.** The launch through Python
# outweighs it there (`call`). The residual with its activation gains as much: about what the bytes allow. On large
# tensors GeGLU gains more, since PyTorch's GELU does not reach a copy's speed. `torch.compile` does as well as our
# kernels on SwiGLU: two elementwise operations are just what it fuses.
#
# And backward:

# %%
rows = []
shapes = {"bias_dropout_residual": (16384, 4096), "swiglu": gate_shape, "geglu": gate_shape}
for name, shape in shapes.items():
    taken = h200.times(f"{name} backward", shape, "bfloat16")
    apart, in_one = (1e6 * taken[version].median for version in ("eager", "fused"))
    rows.append((name, f"{apart:.0f} us", f"{in_one:.0f} us", f"{apart / in_one:.2f}"))
label = h200.label_of(*(f"{name} backward" for name in shapes))
table(("backward", "eager", "fused", "times faster"), rows, label)

# %% [markdown]
# The gates gain what the bytes of the chart say, or more. Dropout's backward pass gains less than its bytes would allow
# (seven an element become four): it, too, must throw the dice, and sum the bias's gradient. With a GPU at hand, your
# own kernels:

# %% tags=["nbval-ignore-output"]
from helpers.instruments import benchmark_together

if runtime.has_gpu():
    with torch.no_grad():
        tensors, both = inputs(16384, 4096), torch.randn(16384, 8192, device="cuda")
        left, right = both.chunk(2, dim=1)
        versions = {
            "written out": lambda: written_out(*tensors),
            "fused": lambda: Fused.apply(*tensors, 3, 0.1, by_element),
            "F.silu(gate) * up": lambda: F.silu(left) * right,
            "gated": lambda: gated(both, "silu"),
        }
        print(benchmark_together(versions))
else:
    print(f"No GPU here. Recorded above: {h200.label}.")

# %% [markdown]
# ## What you said, what was found

# %% tags=["nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. Why can't the backward pass of a dropout with an ordinary generator, one with a state, draw its mask again?
# <details><summary>Answer</summary>The state has moved on. It would have to be wound back, and the numbers drawn one
# after another, in the order of the first time. A counter needs no order.</details>
#
# 2. A dropout kernel uses `tl.rand(0, element)`, always seed 0. Forward and backward agree, gradcheck passes. What is
#    wrong?
# <details><summary>Answer</summary>It drops the same places in every step and every layer. Each weight still learns,
# from the rows where its element stays; but the noise is always the same, so the network fits it instead of learning to
# do without any one number. The seed must be a new one for each call, drawn in the forward pass and kept for the
# backward one.</details>
#
# 3. You change `BLOCK` of the backward kernel, and training gets slightly worse. What do you look at first?
# <details><summary>Answer</summary>What the random numbers are counted by. If it is the lane or the program, the mask
# depends on the block. gradcheck on an awkward shape tells.</details>
#
# 4. A fused kernel moves more bytes than the unfused operators. Where do you look?
# <details><summary>Answer</summary>At the launches: copies made because the inputs are not contiguous. Give the kernel
# strides.</details>
#
# 5. `y = silu(gate) * up` as one kernel, with `silu(gate)` *stored* by the forward pass and read by the backward pass,
#    which still needs gate and up. In fp16, how many bytes an element do both passes move, together? Put your number in
#    place of the dots.

# %%
from helpers.figures import TRAINING_STEPS

answer = ...
correct = TRAINING_STEPS["SwiGLU"](1, 2).stored.moved
self_test(answer, correct, "forward 2 in, 2 out; backward 4 in (the gradient, too), 2 out")

# %% [markdown]
# ## Now you
#
# [Exercise 04](../exercises/04_bias_dropout_residual.ipynb) asks for bias, dropout and residual, with a backward pass
# that makes the mask again. Next: [05 Normalisation](05_normalisation.ipynb), where a program owns a whole row.
