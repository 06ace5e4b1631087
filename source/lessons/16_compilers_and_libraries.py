# %% [markdown]
# # 16 Compilers and libraries that fuse for you
#
# Most fused kernels that you will ever run were written by no person, or by someone at NVIDIA. **What does a compiler
# fuse by itself, what does it never find, and how do you put your own kernel where it counts?** This lesson follows one
# function through torch.compile stage by stage, with each stage's own text, then through XLA, and ends with the
# libraries and the serving engine that you will meet at work.
#
# After this lesson you can
#
# - read a function stage by stage: bytecode, Dynamo's graph, AOTAutograd's, Inductor's groups, Triton and PTX;
# - find the guard that made torch.compile compile again, and rewrite a graph break away;
# - put a kernel of yours into a compiled model, by an operator or by a pattern pass;
# - read XLA's fusions, and explain the limits of a library's epilogue;
# - choose between compiler, library and your own kernel, with a reason.
#
# About 60 minutes. It builds on [05](05_normalisation.ipynb) (RMSNorm), [08](08_matmul_epilogues.ipynb) (epilogues),
# [11](11_training.ipynb) (saved tensors) and [13](13_deciding_what_to_fuse.ipynb) (what may share a kernel), and leads
# to [exercise 16](../exercises/16_help_the_compiler.ipynb).

# %% tags=["hide-input"]
import dis
import logging
import re

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from helpers.instruments import (
    compile_for,
    flex_code,
    inductor_code,
    measure,
    recorded,
    saved_for_backward,
    table,
)
from helpers.instruments.fusion import analyse
from helpers.learning import (
    graph_puzzle,
    pattern_puzzle,
    predict_first,
    predictions,
    score_puzzle,
    self_test,
)

torch.manual_seed(0)
torch.set_num_threads(1)
logging.getLogger("torch._dynamo").setLevel(logging.ERROR)


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


# %% [markdown]
# This is what compilers do best. A linear layer with a bias, GELU and a residual, run operator by operator, and as
# `torch.compile` runs it. Press **Play**:

# %% tags=["hide-input"]
from helpers.figures import passes_animation

passes_animation("compiled")

# %% [markdown]
# ## One function
#
# RMSNorm, a SiLU gate, a product: three lines of PyTorch found in many language models.


# %%
def gated(x, weight, up):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return F.silu(y) * up


x, up, weight = torch.randn(64, 256), torch.randn(64, 256), torch.randn(256)
measure(gated, x, weight, up)

# %% [markdown]
# ## Stage 1: bytecode
#
# torch.compile does not read your source. CPython has turned it into **bytecode**, and Dynamo executes that bytecode
# symbolically, before the frame runs, with tensors that have a shape but no data.

# %% tags=["nbval-ignore-output"]
instructions = list(dis.get_instructions(gated))
rows = [(each.opname, each.argrepr) for each in instructions[:10]]
table(("instruction", f"argument; {len(instructions)} in all"), rows)

# %% [markdown]
# Each tensor operation becomes a node of an **FX graph**. Python that depends on no tensor's value (loops, attributes,
# `if` on a shape) is executed and disappears. A *backend* gets the graph; ours keeps it and runs it as it is.

# %%
graphs = []


def keep(module, inputs):
    graphs.append(module)
    return module


compiled = torch.compile(gated, backend=keep)
compiled(x, weight, up)
print(graphs[0].code.strip())

# %% [markdown]
# Dynamo then writes new bytecode for the frame. It calls the compiled graph, and CPython runs it instead of yours:

# %% tags=["hide-input", "nbval-ignore-output"]
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

(entry,) = _debug_get_cache_entry_list(gated)
shown = ("LOAD_GLOBAL", "LOAD_FAST", "CALL", "RETURN")
rows = [
    (each.opname, each.argrepr[:40])
    for each in dis.get_instructions(entry.code)
    if each.opname.startswith(shown)
]
table(("instruction", "argument"), rows)

# %% [markdown]
# ## Guards
#
# The graph is right only for what Dynamo assumed. Each assumption is a [guard](../docs/glossary.md#guard), checked at
# every call; where one fails, Dynamo compiles again.

# %% tags=["hide-input"]
for line in str(entry.guard_manager).splitlines():
    if "TENSOR_MATCH" in line:
        name = re.search(r"L\['(\w+)'\]", line)[1]
        kept = re.search(r"torch\.float32.*?(size=\[.*?\], stride=\[.*?\])", line)[1]
        print(f"{name}: float32, {kept}")

# %% [markdown]
# **Five calls, with 8, 16, 24, 32 and 40 rows. How many graphs are compiled?**

# %% tags=["hide-input"]
graphs_compiled = predict_first("graphs compiled for five numbers of rows", unit="")
graphs_compiled

# %% tags=["hide-input"]
torch._dynamo.reset()
graphs.clear()
for rows in (8, 16, 24, 32, 40):
    compiled(x[:rows], weight, up[:rows])
    print(f"{rows} rows: {len(graphs)} compiled so far")
graphs_compiled.compare(
    len(graphs),
    "The first size is taken as a constant. The second differs, so Dynamo turns the row count into "
    "a symbol, and that graph serves every other size. mark_dynamic skips the first step; another "
    "dtype compiles again.",
)

# %% [markdown]
# A [graph break](../docs/glossary.md#graph-break) (lesson 13) is where Dynamo gives up on one graph: nothing is fused
# across it. **Puzzle: scale a tensor down if its maximum exceeds 1, in one graph.**


# %%
def scaled(x):
    y = torch.relu(x)
    if y.max().item() > 1:  # <- these two lines look at a value: make them one that does not
        y = y / y.max()
    return y * 2


graph_puzzle(
    scaled, torch.linspace(-3, 2, 12), wanted=lambda x: 2 * x.relu() / max(1, x.relu().max())
)

# %% [markdown]
# <details><summary>Answer</summary><code>y = y / y.max().clamp(min=1)</code> instead of both lines: the decision becomes
# arithmetic on the tensor, and stays on the GPU.</details>
#
# ## Stage 2: forward and backward in one graph
#
# **AOTAutograd** traces the graph once more, down to [ATen](../docs/glossary.md#aten) operators, and through the
# backward pass: the [joint graph](../docs/glossary.md#joint-graph). A partitioner then cuts it in two, and decides what forward saves. Eager PyTorch
# saves what each operator's formula asks for:

# %% tags=["hide-input"]
trained = [each.clone().requires_grad_() for each in (x, weight, up)]
saved_for_backward(gated, *trained)

# %% [markdown]
# **How many tensors of x's size does compiled forward save that are not its own inputs?**

# %% tags=["hide-input"]
saved_large = predict_first("large tensors saved by compiled forward, inputs apart", unit="")
saved_large

# %%
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

stages = {}


def keep_as(name):
    def compiler(module, inputs):
        stages[name] = module
        return make_boxed_func(module.forward)

    return compiler


def partition(joint, inputs, **options):
    stages["joint"] = joint
    return min_cut_rematerialization_partition(joint, inputs, **options)


backend = aot_autograd(
    fw_compiler=keep_as("forward"), bw_compiler=keep_as("backward"), partition_fn=partition
)
torch.compile(gated, backend=backend)(*trained).sum().backward()

# %% tags=["hide-input"]


def calls_of(module):
    return [node for node in module.graph.nodes if node.op == "call_function"]


for name in ("joint", "forward", "backward"):
    print(f"{name}: {len(calls_of(stages[name]))} operators")
print("\nforward:", *stages["forward"].code.strip().splitlines()[-1:], sep="\n")
print("\nbackward begins:", *stages["backward"].code.strip().splitlines()[1:4], sep="\n")
(output,) = [node for node in stages["forward"].graph.nodes if node.op == "output"]
kept = [node for node in output.args[0][1:] if node.op != "placeholder"]
saved_large.compare(
    sum(tuple(node.meta["val"].shape) == tuple(x.shape) for node in kept),
    "It saves the inputs and one root per row. Backward recomputes the rest: a few multiplications "
    "per element cost less than reading a tensor. This is the min cut of lesson 11.",
)

# %% [markdown]
# ## Stage 3: Inductor
#
# Inductor lowers ATen to loops over elements, and its **scheduler** decides which loops share a kernel. It needs shapes
# and a GPU's properties, not the GPU: `inductor_code` hands it an H100's, and gets the source that it would write
# there. Only what it would *time*, it cannot know.

# %%
code = inductor_code(gated, meta(8192, 4096), meta(4096), meta(8192, 4096), device="H100")

# %% tags=["hide-input"]
print(f"{len(calls_of(code.graph))} operators as eager runs them")
print(f"{len(calls_of(code.lowered))} after decomposition: SiLU is written out, in fp32")
print("loops before fusion:", *code.buffers)
print("kernels after fusion:", *(" + ".join(group) for group in code.groups))
print("launched:", *code.calls)

# %% [markdown]
# `op0` is the sum over a row, `op1` everything elementwise. Most operators were never a loop of their own: Inductor
# *inlines* an operator into the loop that reads it. The two that are left share their row index, so they fuse. **How
# often does the kernel load each element of x?** A row has 4096 of them.

# %% tags=["hide-input"]
x_loads = predict_first("loads per element of x, 4096 columns", unit="")
x_loads

# %% tags=["hide-input"]
(source,) = code.kernels.values()
print(source)
x_loads.compare(
    source.count("tl.load(in_ptr0"),
    "One kernel, two passes: a row of more than 1024 elements is walked in blocks, and is gone "
    "from the registers when the root is known. Shorter rows stay there: such a kernel's name has "
    "per for persistent, where this one has red.",
)

# %% [markdown]
# It is a Triton kernel like yours, so the meter takes it. Here with 256 columns, in fp32, against eager:

# %%
narrow = inductor_code(gated, x, weight, up)
kernel = narrow.kernel()
device = "cuda" if torch.cuda.is_available() else "cpu"
given = [each.to(device) for each in (x, weight, up)]


def by_inductor(x, weight, up):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, weight, up, y, *x.shape, XBLOCK=1)
    return y


print("largest difference:", f"{(by_inductor(*given) - gated(*given)).abs().max():.0e}")
before, after = measure(gated, *given), measure(by_inductor, *given)
print(f"eager {before.launches} launches, {before.bytes_total / x.numel():.1f} B/element")
print(f"Inductor {after.launches} launch, {after.bytes_total / x.numel():.1f} B/element")

# %% [markdown]
# (The weight counts once per row; a GPU reads most of it from L2.) *Vertical* fusion follows an edge. *Horizontal*
# fusion joins loops that share an input. Without a shared input Inductor leaves loops apart by default. A
# [combo kernel](../docs/glossary.md#combo-kernel), an option, puts them into one launch: programs take turns, each
# computes one loop. (Inductor refuses one that would raise peak memory too much; here it may.)

# %%
three = (8192, 4096), (8192, 4096), (8192, 4096)
shared = inductor_code(lambda a: (a.relu(), a.sigmoid(), a.tanh()), meta(8192, 4096))
apart = inductor_code(lambda a, b, c: (a.relu(), b.sigmoid(), c.tanh()), *(meta(*s) for s in three))
inputs = [meta(*s) for s in three]
anyhow = {"combo_kernels": True, "combo_kernel_peak_memory_pct_threshold": None}
combo = inductor_code(lambda a, b, c: (a.relu(), b.sigmoid(), c.tanh()), *inputs, **anyhow)
print("one input:", *shared.calls)
print("three inputs:", *apart.calls)
print("three inputs, combo kernel:", *combo.calls)

# %% tags=["hide-input"]
(source,) = combo.kernels.values()
for line in source.splitlines():
    if re.search(r"pid|tl.load|tl.store", line):
        print(line)

# %% [markdown]
# ## Stage 4: PTX
#
# Triton compiles the source as it compiles yours (lesson 03b). On a GPU Inductor tries a few block sizes and keeps the
# fastest; here one of them.

# %%
wide = meta(8192, 4096)
built = compile_for(
    code.kernel(), wide, meta(4096), wide, wide, 8192, 4096, XBLOCK=1, R0_BLOCK=2048, num_warps=16
)
built

# %% tags=["hide-input"]
names = {
    "ld.global": "loads",
    "st.global": "stores",
    "shfl.sync": "shuffles of the row's sum",
    "ex2.approx": "exponentials",
    "rsqrt.approx": "roots",
}
rows = [
    (name, len(re.findall(re.escape(name), built.ptx)), meaning) for name, meaning in names.items()
]
display(table(("instruction", "times", "what it does"), rows))
print(*[line.strip() for line in built.ptx.splitlines() if "ld.global" in line][:2], sep="\n")

# %% [markdown]
# ## Online softmax: found by name only
#
# Softmax needs a row's maximum before it can sum exponentials, and their sum before it can normalise. Lesson 06's
# *online* softmax finds both in one loop. **With its option `online_softmax` off, how
# often does Inductor's softmax of 32,000 columns load each element?**

# %% tags=["hide-input"]
softmax_loads = predict_first("loads per element, option off", unit="")
softmax_loads

# %% tags=["hide-input"]
loads = {}
for on in (True, False):
    made = inductor_code(lambda s: torch.softmax(s, -1), meta(8192, 32000), online_softmax=on)
    loads[on] = sum(text.count("tl.load(in_ptr0") for text in made.kernels.values())
    print(f"online_softmax={on}: {loads[on]} loads per element, {len(made.kernels)} kernel")
softmax_loads.compare(
    loads[False],
    "With the option on it is one loop fewer, because someone wrote online softmax into Inductor "
    "by name. No rule of its scheduler leads there.",
)

# %% [markdown]
# A scheduler reorders and joins loops. It keeps the arithmetic of each. Online softmax is other arithmetic: it sums
# with a wrong maximum and corrects the sum later, by $e^{m_{old} - m_{new}}$. The graph holds no proof that this is
# allowed; a person found one. So compilers find such things by **pattern**: a known subgraph and its replacement.
# Attention is the same story. As three lines of PyTorch, in a form that matches no pattern:


# %%
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


heads = meta(16, 1024, 64)
print(*inductor_code(attention, heads, heads, heads).calls, sep="\n")

# %% [markdown]
# The matrix of scores is written and read. Inductor has patterns for several ways to write attention, and
# replaces those.
#
# ## Helping the compiler: `triton_op`
#
# Where you know more than the compiler, help it. This kernel reads a row once, if it fits in registers. `triton_op`
# registers a Triton launch as an operator with a schema, so that it is one node of the graph, with a name:


# %%
@triton.jit
def gated_kernel(x_ptr, weight_ptr, up_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + row + col, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row + col, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / cols + eps) * weight
    tl.store(y_ptr + row + col, y * tl.sigmoid(y) * up, mask=inside)


@torch.library.triton_op("lesson16::gated", mutates_args={})
def gated_op(x: torch.Tensor, weight: torch.Tensor, up: torch.Tensor, eps: float) -> torch.Tensor:
    y, cols = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(cols)
    launch = torch.library.wrap_triton(gated_kernel)[(x.numel() // cols,)]
    launch(x, weight, up, y, cols, eps, BLOCK=block)
    return y


# %% [markdown]
# Now a model computes `gated(x, weight, relu(up)) + 1`. Inductor alone makes one kernel of it. **How many launches are
# there with your operator in the middle?**

# %% tags=["hide-input"]
op_launches = predict_first("launches: relu, your operator, + 1", unit="")
op_launches

# %% tags=["hide-input"]
shapes = meta(8192, 4096), meta(4096), meta(8192, 4096)
alone = inductor_code(lambda x, w, u: gated(x, w, u.relu()) + 1, *shapes)
with_op = inductor_code(lambda x, w, u: gated_op(x, w, u.relu(), 1e-6) + 1, *shapes)
print("Inductor alone:", *alone.calls)
print("with your operator:", *with_op.calls, sep="\n  ")
op_launches.compare(
    len(with_op.calls),
    "An operator is a fence: nothing fuses into it from either side. Each neighbour becomes a pass "
    "over memory. Your kernel has to win by more than its fences cost, or take the neighbours in.",
)

# %% [markdown]
# ## Helping the compiler: pattern passes
#
# You rarely own the model. A [pattern pass](../docs/glossary.md#pattern-pass) finds the subgraph in whatever model comes along and puts your operator
# there. `register_replacement` traces two functions: the first is the pattern, the second what replaces it. Operators
# must agree one by one. **Puzzle: the pattern below means the same as the model, and matches nowhere. Make it match.**


# %%
def model(x, weight, up):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return torch.relu(F.silu(y) * up)


def search(x, weight, up):
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight  # <- change this line
    return F.silu(y) * up


def replacement(x, weight, up):
    return torch.ops.lesson16.gated(x, weight, up, 1e-6)


pattern_puzzle(search, replacement, model, x, weight, up)

# %% [markdown]
# <details><summary>Answer</summary><code>y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight</code>:
# a pattern matches operators, not mathematics. Libraries register one pattern per way of writing it.</details>
#
# Three things a pass must not do, and exercise 16 checks all three. Replace a subgraph with a value **inside that is read
# elsewhere**: then it is computed twice. Ignore the **dtype**: a pattern traced in fp32 has no casts, and in bf16 a
# model has. Compare **sizes with numbers**: under dynamic shapes they are symbols.
#
# ## Helping the compiler: templates
#
# The third way leaves the loop to an expert, with a hole for you. **FlexAttention** takes a `score_mod`: a function of
# one score and its indices, which it inlines into a FlashAttention kernel. **Puzzle: a query sees itself and the three
# keys before it.**


# %%
def window(score, batch, head, query, key):
    visible = query - key < 4  # <- change this line
    return torch.where(visible, score, -float("inf"))


q, k, v = torch.randn(3, 1, 2, 16, 8)
place = torch.arange(16)
distance = place[:, None] - place
score_puzzle(
    window, q, k, v, wanted=lambda s: s.masked_fill((distance < 0) | (distance > 3), -torch.inf)
)

# %% [markdown]
# <details><summary>Answer</summary><code>visible = (query >= key) & (query - key < 4)</code>. A key after the query has a
# negative distance, which is less than 4 too.</details>
#
# What Inductor does with such a function, here one that caps scores, as some models do: `flex_code` hands it an
# H100's properties and attention's shapes. These lines of its Triton are your function, between the two matmuls:


# %%
def capped(score, batch, head, query, key):
    return 20 * torch.tanh(score / 20)


flex = flex_code(capped, batch=4, heads=16, tokens=4096, head_dim=64)
print(*flex.calls)

# %% tags=["hide-input"]
(source,) = flex.kernels.values()
lines = source.splitlines()
first = next(number for number, line in enumerate(lines) if "tmp0 = (qk)" in line)
dots = [number for number, line in enumerate(lines) if "tl.dot(" in line]
before, after = max(n for n in dots if n < first), min(n for n in dots if n > first)
print(f"{len(lines)} lines; yours, and the matmuls around them:")
for number in (before, *range(first, first + 6), after):
    print(f"{number}: {lines[number].split('#')[0].strip()}")

# %% [markdown]
# Inductor's matmuls are templates in the same way. By default it calls cuBLAS and launches the activation apart. With
# `mode="max-autotune"` it also times Triton templates, whose hole takes the epilogue. Here it may choose from one:


# %%
def linear_relu(x, weight, bias):
    return torch.relu(F.linear(x, weight, bias))


halves = [meta(*s, dtype=torch.float16) for s in ((8192, 4096), (4096, 4096), (4096,))]
template = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
by_default = inductor_code(linear_relu, *halves)
by_template = inductor_code(linear_relu, *halves, **template, **{"test_configs.max_mm_configs": 1})
print("default:     ", *by_default.calls)
print("max-autotune:", *by_template.calls)

# %% tags=["hide-input"]
(source,) = by_template.kernels.values()
print(*source.splitlines()[-8:], sep="\n")

# %% [markdown]
# ## XLA
#
# JAX traces as `make_fx` does, and compiles everything: there are no graph breaks, and an `if` on a value is an error.
# Its compiler, XLA, works on [HLO](../docs/glossary.md#hlo). The same function, as it goes in:

# %% tags=["hide-input"]
from benchmarks.libraries import record

libraries = record()
xla = libraries["xla"]
print(
    f"recorded: {libraries['gpu']}, {libraries['date']}, JAX {xla['jax']}, {xla['shape']} in bf16"
)
entry_before = xla["before"].partition("ENTRY")[2]
lines = [line.strip() for line in entry_before.splitlines() if " = " in line]
print(f"{len(lines)} instructions in the entry computation, among them")
for line in lines:
    if re.search(r" (multiply|reduce|rsqrt|call)\(", line):
        print(" ", re.sub(r"\{[\d,]*\}", "", line)[:92])

# %% [markdown]
# **How many `fusion` instructions are left after optimisation?** One fusion becomes one kernel.

# %% tags=["hide-input"]
fusions = predict_first("fusions that XLA makes of the function", unit="")
fusions

# %% tags=["hide-input"]
entry_after = xla["after"].partition("ENTRY")[2]
for line in entry_after.splitlines():
    if " = " in line and " parameter(" not in line:
        short = re.sub(r"\{[\d,]*\}|, backend_config=.*|, metadata=.*", "", line.strip())
        print(short[:98])
fusions.compare(len(re.findall(r" fusion\(", entry_after)))
print("kinds:", *xla["kinds"])

# %% [markdown]
# A fusion's *kind* says around what it is built. `kLoop`: one loop over the result's elements, like Inductor's
# pointwise kernels. `kInput`: built around a reduction, which the fused operators feed. `kOutput`: around a matmul or
# convolution, with an epilogue. `kCustom`: a code generator of its own, on GPUs mostly Triton. XLA fuses by a cost
# model, as our analyser does; Inductor fuses whatever it may. For the rest there is **Pallas**, JAX's
# language for kernels, which compiles through Triton or Mosaic: Triton's counterpart.

# %% [markdown]
# Times of both compilers' kernels and of eager, in rows of twenty calls by the host's clock (at this size launches cost
# nothing):

# %% tags=["hide-input"]
moved = 3 * 32768 * 4096 * 2
rows = []
for name, found in libraries["gated"].items():
    rate = f"{moved / found['median'] / 1e12:.2f} TB/s"
    rows.append((name, f"{found['median'] * 1e6:.0f} us", rate))
title = f"recorded: {libraries['gpu']}, {libraries['date']}, 32768 x 4096 in bf16"
table(("", "time", "of the minimum traffic"), rows, title)

# %% [markdown]
# ## Libraries that take an epilogue
#
# A library's matmul is a black box with a few labelled holes. cuBLASLt's epilogue is an enumeration: bias, ReLU, GELU,
# their gradients. PyTorch reaches it by `torch._addmm_activation`. cuDNN takes a **graph** of operations, built with
# `nvidia-cudnn-frontend`, and looks for an engine that supports it. Here linear + bias + GELU, 4096 x 4096 x 4096 in
# fp16. **By what percentage does cuBLASLt's epilogue shorten eager's time?**

# %% tags=["hide-input"]
by_epilogue = predict_first("time that cuBLASLt's epilogue saves over eager", unit="%")
by_epilogue

# %% tags=["hide-input"]


def micro(found):
    return f"{found['gpu']['median'] * 1e6:.0f} us"


def kernel_names(found):
    names = (name.partition("(")[0].split("::")[-1] for name in found["kernels"])
    short = (re.sub(r"_sm90.*_coopA", "...", name) for name in names)
    return " + ".join(name for name in short if not name.startswith("Memset"))


square = libraries["linear_gelu"]["4096 x 4096 x 4096"]
rows = [(name, micro(found), kernel_names(found)) for name, found in square.items()]
title = (
    f"recorded: {libraries['gpu']}, {libraries['date']}, PyTorch {libraries['versions']['torch']}"
)
display(table(("", "time", "kernels"), rows, title))
by_epilogue.compare(
    round(
        100 * (1 - square["cuBLASLt epilogue"]["gpu"]["median"] / square["eager"]["gpu"]["median"])
    ),
    "The same tile, and gelubias at the end of its name. Compare with the last but one line: the "
    "epilogue costs little more than no activation at all. But torch.compile launches "
    "GELU apart, and max-autotune kept cuBLAS, because its own templates, epilogue included, lost.",
)

# %% [markdown]
# So a compiler does not always pick the fastest that a library offers. Rounding differs too: a separate GELU reads a
# sum rounded to fp16, and so does Inductor's template above (`tmp2`). A convolution with bias and ReLU, at two sizes:

# %% tags=["hide-input"]
rows = [
    (size, *(micro(found) for found in times.values()))
    for size, times in libraries["conv_bias_relu"].items()
]
names = next(iter(libraries["conv_bias_relu"].values()))
table(("images x channels x height x width x out x taps", *names), rows, title)

# %% [markdown]
# `cudnn_convolution_relu` and the graph that you build yourself take the same time. The graph pays where PyTorch has
# no function of its own. Its answer may be "not supported".
#
# **CUTLASS** leaves the hole open. Its epilogue is a tree, the **epilogue visitor tree**
# ([EVT](../docs/glossary.md#epilogue-visitor-tree)): leaves load (the accumulator, a bias per column, an auxiliary
# tensor), inner nodes compute, some nodes also store. The compiler visits the tree once per fragment of the tile, in
# registers. In Python, on a tile:


# %%
def visit(tree, accumulator):
    kind, *children = tree
    if kind == "accumulator":
        return accumulator
    if kind == "row":  # one value per column of the tile
        return children[0][None, :]
    values = [visit(child, accumulator) for child in children]
    return {"add": torch.add, "gelu": F.gelu, "mul": torch.mul}[kind](*values)


a, b, bias = torch.randn(16, 32), torch.randn(24, 32), torch.randn(24)
tree = ("gelu", ("add", ("accumulator",), ("row", bias)))
print(
    "as PyTorch:", torch.allclose(visit(tree, a @ b.t()), F.gelu(F.linear(a, b, bias)), atol=1e-5)
)

# %% [markdown]
# A tree sees one fragment. So what crosses a tile, such as a row's norm, cannot be an EVT, as in lesson 08. In C++ the
# tree is a type. From the file that nvcc compiles for an H100:

# %% tags=["hide-input"]
from benchmarks.libraries import CUTLASS_SOURCE, CUTLASS_TILES

text = CUTLASS_SOURCE.read_text()
print(text[text.index("// The tree") : text.index("using Epilogue =")].strip())

# %% [markdown]
# The result's **tile** is left open. CUTLASS's builder derives the number of pipeline stages from it. Which tile is
# best depends on the problem's size: CUTLASS's profiler times candidates, and so does our script. *Chosen* is the
# fastest.

# %% tags=["hide-input"]
print("candidates:", *CUTLASS_TILES, sep="\n  ")
rows = []
for size, found in libraries.get("cutlass", {}).items():
    tiles = {name: found[name] for name in CUTLASS_TILES if "gpu" in found.get(name, {})}
    if tiles:
        chosen = min(tiles, key=lambda name: tiles[name]["gpu"]["median"])
        others = (micro(found[name]) for name in ("cuBLASLt epilogue", "ours"))
        rows.append((size, chosen, micro(tiles[chosen]), *others))
columns = ("tokens x in x out", "tile chosen", "CUTLASS", "cuBLASLt epilogue", "ours (08)")
table(columns, rows, title if rows else "not recorded on this GPU")

# %% [markdown]
# ## A serving engine
#
# vLLM is where these ways meet: its own CUDA kernels, Triton, CUTLASS, and passes for Inductor's pattern matcher that
# put them into a compiled model. File by file:

# %% tags=["hide-input"]
rows = [
    ("activation_kernels.cu", "SiLU or GELU of a gate, and product", "04"),
    ("layernorm_kernels.cu", "residual + RMSNorm", "05"),
    ("layernorm_quant_kernels.cu", "residual + RMSNorm + fp8, scale known", "12"),
    ("quantization/activation_kernels.cu", "SiLU and product + fp8", "12"),
    ("quantization/fused_kernels/", "RMSNorm or SiLU + scale per token or block", "12"),
    ("moe/topk_softmax_kernels.cu", "the router's softmax + top k", "06"),
    ("moe/moe_align_sum_kernels.cu", "rows sorted by expert", "12"),
    ("attention/merge_attn_states.cu", "joining parts of attention", "17"),
    ("cache_kernels_fused.cu", "RoPE + write to the KV cache", "17"),
    ("pass: rms_quant_fusion.py", "RMSNorm, then quantise", "16"),
    ("pass: act_quant_fusion.py", "SiLU and product, then quantise", "16"),
    ("pass: attn_quant_fusion.py", "attention, then quantise", "16"),
    ("pass: allreduce_rms_fusion.py", "all-reduce, then RMSNorm", "16"),
]
table(("file in csrc/libtorch_stable/ or passes/fusion/", "what it fuses", "lesson"), rows)

# %% [markdown]
# (Names as of 2026; `passes/` is in `vllm/compilation/`.) Experts' matmuls are Triton, in `layers/fused_moe/`, or
# CUTLASS. Exercise 16 builds such a pass. `rms_quant_fusion.py` registers one pattern per way to quantise, and refuses
# a weight whose dtype differs from x's, as yours must.
#
# One of the kernels, predicted: SiLU and product of a gate, 16384 rows of 11008, in bf16 on an H200. **By what
# factor is it faster fused, by the analyser?**

# %% tags=["hide-input"]
gate_gain = predict_first("SiLU and product, unfused over fused, predicted", unit="times")
gate_gain

# %% tags=["hide-input"]
plan = analyse(
    lambda gate, up: F.silu(gate) * up, meta(16384, 11008), meta(16384, 11008), device="H200"
)
times = recorded("h200").times("swiglu", (16384, 11008), "bfloat16")
print(f"predicted {plan.time_unfused * 1e6:.0f} us unfused, {plan.time_fused * 1e6:.0f} us fused")
for name in ("eager", "torch.compile", "fused"):
    print(f"recorded: {name} {times[name].median * 1e6:.0f} us")
gate_gain.compare(
    plan.time_unfused / plan.time_fused,
    "Five passes become three. torch.compile reaches the same time as a kernel by hand here, so "
    "the kernel alone no longer pays. A pass can, if it takes the quantisation along.",
)

# %% [markdown]
# Lesson 04's `swiglu` does the same as vLLM's first file, and the meter takes it:

# %%
from kernels import swiglu

gate, up = torch.randn(2, 64, 256)
for name, call in {"eager": lambda g, u: F.silu(g) * u, "fused": swiglu}.items():
    seen = measure(call, gate, up)
    print(f"{name}: {seen.launches} launches, {seen.bytes_total / gate.numel():.3g} B/element")

# %% [markdown]
# ## When to reach for which

# %% tags=["hide-input"]
ratio = {name: square[name]["gpu"]["median"] / square["ours"]["gpu"]["median"] for name in square}
convolution = list(libraries["conv_bias_relu"].values())[-1]
of_conv = (
    convolution["eager"]["gpu"]["median"] / convolution["cudnn_convolution_relu"]["gpu"]["median"]
)
gain = libraries["gated"]["eager"]["median"] / libraries["gated"]["torch.compile"]["median"]
rows = [
    ("elementwise, one reduction per row", "torch.compile", f"{gain:.1f}x over eager, above"),
    ("matmul + bias + activation", "the library's epilogue", f"eager takes {ratio['eager']:.2f}x"),
    ("convolution + bias + ReLU", "cuDNN, fused", f"eager takes {of_conv:.2f}x"),
    (
        "other algorithm for the same result",
        "your kernel, or a pattern",
        f"{loads[False]} loads, not {loads[True]}",
    ),
    ("attention with another score", "FlexAttention", f"{len(flex.calls)} kernel, score inlined"),
    (
        "independent small loops",
        "combo kernels",
        f"{len(combo.calls)} launch, not {len(apart.calls)}",
    ),
    ("your kernel in other people's models", "a pattern pass", "the puzzle of the pattern"),
    (
        "your kernel between elementwise neighbours",
        "take them into it",
        f"{len(with_op.calls)} launches, not {len(alone.calls)}",
    ),
    ("many small kernels, nothing to fuse", "a CUDA graph", "lesson 13"),
]
table(("what you have", "reach for", "because"), rows)

# %% [markdown]
# Start at the top of the stack, with `torch.compile`, and read what it wrote. Go down only for a measured reason. A
# kernel of your own is the last resort: it is the one that you maintain.
#
# ## Your predictions vs the measurements

# %% tags=["hide-input", "nbval-ignore-output"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A model compiles again at every request. What do you look at?
# <details><summary>Answer</summary>The guards that fail (`TORCH_LOGS=recompiles`): a size taken as a constant, a Python
# number that changes, a dtype. Mark sizes dynamic, and turn changing numbers into tensors.</details>
#
# 2. Your `triton_op` beats Inductor's kernel for its own part, and the model got slower. Why?
# <details><summary>Answer</summary>Its neighbours used to be fused with that part. Now each is a pass over memory of its
# own. Take them into the kernel, or leave the part to Inductor.</details>
#
# 3. A pattern pass matched in fp32 and matches nowhere in bf16. Why?
# <details><summary>Answer</summary>Operators that compute in fp32 bring casts into the graph, and patterns match
# operators. Trace the pattern once per dtype.</details>
#
# 4. Why does no scheduler turn three loops of softmax into two?
# <details><summary>Answer</summary>It joins loops and keeps their arithmetic. Two loops need other arithmetic, which
# someone has to prove equal first.</details>
#
# 5. Can an epilogue visitor tree compute LayerNorm of a matmul's rows?
# <details><summary>Answer</summary>No: it sees one fragment of one tile, and a row spans many tiles.</details>
#
# 6. A matmul takes 90 us, its activation apart 15 us. The epilogue adds 3 us to the matmul. How many times faster is it
#    with the epilogue? Replace the dots by your number.
# <!-- given 90 us, 15 us, 3 us: the question's own -->

# %%
answer = ...
self_test(answer, 105 / 93, "90 + 15 apart, over 90 + 3")

# %% [markdown]
# ## Now you
#
# [Exercise 16](../exercises/16_help_the_compiler.ipynb): a fused kernel, and the pass that makes torch.compile use it,
# wherever it may and nowhere else.

# %% [markdown]
# ## Going further
#
# ### XLA on a CPU
#
# The same function, compiled by an older XLA for a CPU, recorded: three fusions, not one.

# %% tags=["hide-input"]
on_cpu = record("CPU")["xla"]
print("JAX", on_cpu["jax"], "on a CPU, kinds:", *on_cpu["kinds"])
print("the GPU's", xla["kinds"], "is compiled by", re.search(r'"kind":"(\w+)"', xla["after"])[1])

# %% [markdown]
# With the course's extra (`pip install -e .[jax]`) this cell compiles it here:

# %% tags=["nbval-ignore-output"]
try:
    from benchmarks.libraries import xla_texts

    print(xla_texts((8192, 4096))["after"].partition("ENTRY")[2][:1500])
except ImportError as error:
    print(error)

# %% [markdown]
# ### The joint graph, whole
#
# Forward to the first use of `tangents_1`, backward from there:

# %% tags=["hide-input"]
for line in stages["joint"].code.strip().splitlines()[1:]:
    print(" ".join(line.split())[:98])

# %% [markdown]
# ### A smaller matmul, a wider one

# %% tags=["hide-input"]
rows = [
    (
        size,
        *(micro(times[name]) for name in ("eager", "cuBLASLt epilogue", "torch.compile", "ours")),
    )
    for size, times in libraries["linear_gelu"].items()
]
table(("tokens x in x out", "eager", "cuBLASLt epilogue", "torch.compile", "ours"), rows, title)
