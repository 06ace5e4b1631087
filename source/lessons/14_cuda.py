# %% [markdown]
# # 14 CUDA C++: what Triton decided for you
#
# In Triton you wrote about blocks: load a block, add it, store it. Somebody decided which thread takes which number,
# in what order, how a sum gets from one thread to another, and when they wait. In CUDA C++ you decide. **How much of
# it must you say, what happens if you say it wrong, and was the compiler's answer any worse than yours?**
#
# After this lesson you can
#
# - write a kernel of threads, warps and blocks, and say which sectors it fetches;
# - use `float4`, `__launch_bounds__` and `__maxnreg__`, knowing what each costs;
# - reduce a row with shuffles and shared memory, and find the barrier that is missing;
# - avoid bank conflicts, and arrays that end up in memory;
# - read what Triton wrote for you beside what you wrote.
#
# About 50 minutes. It needs no GPU: NVIDIA's compiler runs here, and what it wrote (**PTX**) is executed on the CPU,
# with every byte counted. It follows on [07 Occupancy](07_occupancy.ipynb) and leads to
# [exercise 14](../exercises/14_cuda_softmax.ipynb).

# %%
import re

import torch
import triton
import triton.language as tl

from helpers.instruments import compile_for, cuda_kernel, measure, recorded, table
from helpers.learning import predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"

# %% [markdown]
# ## The smallest kernel
#
# A kernel is written for **one thread**. The launch says how many there are: here `twice[4, 256]`, in a C++ program
# `twice<<<4, 256>>>`, four blocks of 256 threads. Each finds out which one it is, and takes its own number. `y` is a
# plain C++ pointer: no mask, no check.

# %%
scale_source = """
__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}"""
twice = cuda_kernel(scale_source, "twice", device="H100")
numbers = torch.arange(1000.0, device=device)
doubled = torch.empty_like(numbers)
twice[4, 256](numbers, doubled, 1000)
print("all doubled:", torch.equal(doubled, 2 * numbers))

# %% [markdown]
# Four blocks of 256 are 1024 threads, and 24 of them have no number. Take the `if` away, and they read past the end of
# `x` and store past the end of `y`, into whatever lies there. On a GPU that may go unnoticed for years. Here it does
# not:

# %%
careless = cuda_kernel(scale_source.replace("if (i < n) ", ""), "twice")
print(measure(careless[4, 256], numbers.clone(), doubled.clone(), 1000))

# %% [markdown]
# A mistake in C++ itself is told as the compiler says it, with your line marked:

# %%
try:
    cuda_kernel(scale_source.replace("2 * x[i]", "2 * z[i]"), "twice")
except ValueError as error:
    print(error)

# %% [markdown]
# ## Which thread reads which address
#
# The hardware does not see your threads one by one. It runs 32 neighbours together, a **warp**; `lane` is a thread's
# place in it. One load of a warp is one *request*, and memory answers in **sectors** of 32 bytes.
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->
#
# Below is a grid of four blocks of 64 threads. Thread `i` reads `x[i * stride]`.
#
# 1. Move the thread from 31 to 32, and from 63 to 64. What changes?
# 2. From which stride on does it make no difference any more?
# 3. All together, what do the threads of one warp read at stride 1?

# %%
from helpers.figures import ThreadsExplorer

explorer = ThreadsExplorer(stride=1, thread=35)
explorer

# %% [markdown]
# <details><summary>What is to be found</summary>1. From 31 to 32 the warp, from 63 to 64 the block. 2. From 8 on: a
# sector holds eight numbers, so that each lane has one of its own. 3. One run of memory without a gap: the request is
# <i>coalesced</i>.</details>
#
# What it costs, on a GPU: $2^{24}$ numbers, each read once, further and further apart (by a Triton kernel that sums
# them).

# %%
h200 = recorded("h200")
strides = h200.experiment("strides")
print(h200.label_of("strides"))
told = (f"stride {each}: {1e6 * strides[each].median:.0f} us" for each in (1, 2, 4, 8, 16, 32))
print(", ".join(told))

# %% [markdown]
# Up to 8 the time goes nearly as the sectors do. Beyond, a request asks for no more of them, and still it takes
# longer: from 8 to 16 it doubles once more, as if memory handed over two sectors where one is asked for. That is
# inferred from the times; no counter was read here.
#
# Now a kernel, metered. **With two neighbours a thread (thread `i` takes `x[2i]`, then `x[2i + 1]`), how many
# sectors does a request of a warp fetch?** All that it fetches is used in the end.

# %%
pairs = predict_first("sectors a request, two neighbours a thread one by one", unit="sectors")
pairs

# %%
two_a_thread = """
__global__ void neighbours(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[2 * i] = 2 * x[2 * i];
  y[2 * i + 1] = 2 * x[2 * i + 1];
}
__global__ void apart(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2 * x[i];
  y[i + n / 2] = 2 * x[i + n / 2];
}"""
x, y = torch.randn(2, 4096, device=device)
for name in ("neighbours", "apart"):
    found = measure(cuda_kernel(two_a_thread, name)[8, 256], x, y, 4096)
    each = found.sectors_per_request
    print(f"{name:10} {found.bytes_total:,} bytes, {each:g} sectors a request")
    if name == "neighbours":
        said = pairs.compare(each)
said

# %% [markdown]
# The bytes are the same, the sectors asked for are twice as many: each is fetched once for `x[2i]` and again for
# `x[2i + 1]`. A cache may serve the second time, but the request has to be made. So in CUDA C++, of one load,
# neighbours in a *warp* take neighbours in memory, and one thread's next load lies far off. In Triton the compiler laid
# `tl.arange` out over the lanes for you.
#
# ## add+GELU, four ways
#
# **One: a number a thread. Two: `float4`**, four numbers that are loaded by one instruction. A template makes them one
# kernel: only the type differs.

# %%
add_gelu_source = r"""
__device__ float gelu(float s) {
  float twice_u = 1.5957691216057308f * (s + 0.044715f * s * s * s);
  return s * __fdividef(1.0f, 1.0f + __expf(-twice_u));
}
__device__ float4 gelu(float4 s) { return {gelu(s.x), gelu(s.y), gelu(s.z), gelu(s.w)}; }
__device__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <typename T>
__global__ void add_gelu(const T* a, const T* b, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = gelu(a[i] + b[i]);
}
"""

# %%
a, b = torch.randn(2, 2**14, device=device)
expected = torch.nn.functional.gelu(a.double() + b.double(), approximate="tanh")
ways = {}
for type, width in (("float", 1), ("float4", 4)):
    ways[type] = cuda_kernel(add_gelu_source, f"add_gelu<{type}>", device="H200")
    y = torch.empty_like(a)
    found = measure(ways[type][2**14 // width // 256, 256], a, b, y, 2**14 // width)
    requests = sum(line.requests for line in found.by_line.values())
    print(f"{type:6} right: {torch.allclose(y.double(), expected, atol=1e-6)}", end=", ")
    print(f"{found.bytes_total / a.numel():g} B/element, {requests} requests")

# %% [markdown]
# The same bytes in a quarter of the requests. **Claim: "vectorised loads bring another 1.2 to 1.3 times."** Is it so?
# (It was said of a fused add+GELU of a million fp32 numbers, on a GPU that was not named: both sizes are below.) **In
# blocks of 256 threads, how many times as long does the kernel with one number a thread take?** (100 million numbers
# on an H200.)

# %%
wide = predict_first("time of one number a thread against float4, blocks of 256", unit="times")
wide

# %%
four_ways = h200.experiment("cuda_four_ways")
large = max(four_ways)
rows = []
for threads, times in four_ways[large].items():
    one, four = times["one number"].median, times["float4"].median
    rows.append((threads, *(f"{1e6 * each:.0f} us" for each in (one, four)), f"{one / four:.2f}"))
title = f"{h200.label_of('cuda_four_ways')}\n{large:,} numbers"
table(("threads", "one number", "float4", "ratio"), rows, title)

# %%
small = min(four_ways)
rows = []
for threads, times in four_ways[small].items():
    ratio = times["one number"].median / times["float4"].median
    rows.append((threads, f"{ratio:.2f} times as long"))
display(table(("threads", f"{small:,} numbers"), rows))
times = four_ways[large][256]
wide.compare(times["one number"].median / times["float4"].median)

# %%
from helpers.figures import curves_chart

took = {
    way: {threads: 1e6 * times[way].median for threads, times in four_ways[large].items()}
    for way in ("one number", "float4")
}
axes = {"x": "threads a block", "y": f"time of {large:,} numbers on an H200 (µs)"}
least = min(took["one number"], key=took["one number"].get)
title = f"One number a thread is at its best in blocks of {least}"
chart, of_four = curves_chart(took, title, **axes), took["float4"][256]
wide.on(chart, "y", lambda ratio: ratio * of_four, says=lambda us: f"{us:.0f} µs")

# %% [markdown]
# **Verdict: fails as a rule; it is less at a million numbers, but for the smallest blocks, and more at 100 million,
# where blocks of 256 come close.** What counts is how many bytes are under way on an SM (lesson 07's Little's law): a
# thread that loads one number of each input has few. Occupancy is not what differs, since at each of the four sizes
# the SM is full of threads:

# %%
rows = []
for threads in four_ways[large]:
    rows.append((threads, repr(ways["float"].resources_for(threads).occupancy())))
table(("threads", "occupancy"), rows)

# %% [markdown]
# Why then is 256 best? A likely reason, not measured here: such threads are soon done, and between the end of a block
# and the first load of the next nothing is under way in its place. Small blocks change most often, and a large one
# waits until there is room for all of its threads.
#
# **Three and four: more numbers a thread, and fewer registers.** Eight `float4` of each input are to be loaded before
# the first is used. That would take 64 registers for them alone: watch what the compiler makes of it.
# <!-- given 64 registers: 8 times 4 numbers of two inputs, one register each -->

# %%
eight_source = r"""
__device__ void eight(const float4* a, const float4* b, float4* y) {
  int i = blockIdx.x * blockDim.x * 8 + threadIdx.x;
  float4 s[8], t[8];
  for (int k = 0; k < 8; k++) {
    s[k] = a[i + k * blockDim.x];
    t[k] = b[i + k * blockDim.x];
  }
  for (int k = 0; k < 8; k++) y[i + k * blockDim.x] = gelu(s[k] + t[k]);
}
template <typename T>
__global__ void as_it_is(const T* a, const T* b, T* y) { eight(a, b, y); }

template <int BLOCKS>
__global__ void __launch_bounds__(256, BLOCKS)
bounded(const float4* a, const float4* b, float4* y) { eight(a, b, y); }

template <int REGISTERS>
__global__ void __maxnreg__(REGISTERS)
capped(const float4* a, const float4* b, float4* y) { eight(a, b, y); }
"""

# %% [markdown]
# `__launch_bounds__(256, 8)` is a promise and a wish: no launch has more than 256 threads a block, and eight blocks
# shall fit on an SM. `__maxnreg__(24)` names the most registers itself. **How many bytes does a thread spill if
# eight blocks of 256 shall fit?** (Stores and loads together. An SM has 65,536 registers.)
# <!-- given 65,536 registers: CUDA C++ Programming Guide, technical specifications -->

# %%
spilled = predict_first("bytes spilled by a thread when eight blocks shall fit", unit="B")
spilled

# %%
names = ("as_it_is<float4>", "bounded<5>", "bounded<6>", "bounded<8>", "capped<24>")
eights = {name: cuda_kernel(add_gelu_source + eight_source, name, device="H200") for name in names}
rows = []
for name, kernel in (ways | eights).items():
    need = kernel.resources_for(256)
    share = (need.occupancy().blocks, f"{need.occupancy().fraction:.0%}")
    rows.append((name, f"{need.registers} registers", f"{need.spill_bytes} B", *share))
    if name == "bounded<8>":
        said = spilled.compare(need.spill_bytes)
display(table(("", "a thread", "spilled", "blocks", "occupancy"), rows))
said

# %% [markdown]
# With fewer than 64 registers not all is loaded first, whatever the source says: the assembler moves loads behind the
# first sums. Registers and spills are as NVIDIA's assembler, **ptxas**, tells them:
# <!-- given 64 registers: 8 times 4 numbers of two inputs, one register each -->

# %%
print("\n".join(line for line in eights["bounded<8>"].log.splitlines() if " bytes " in line))
order = re.findall(r"LDG\.E\.128|FADD", eights["as_it_is<float4>"].resources.sass)
print(
    f"as_it_is<float4>: {order.index('FADD')} of {order.count('LDG.E.128')} loads before the first "
    "sum"
)

# %% [markdown]
# And what it is worth. **Claim: "spilled registers are 100 times slower."**

# %%
caps = h200.experiment("cuda_caps")
rows = []
for kernel, (cap, time) in zip(eights.values(), caps.items(), strict=True):
    need = kernel.resources_for(256)
    told = (f"{need.spill_bytes} B", f"{need.occupancy().fraction:.0%}")
    rows.append((cap, *told, f"{1e6 * time.median:.0f} us"))
display(table(("", "spilled", "occupancy", "time"), rows, h200.label_of("cuda_caps")))
worst = max(time.median for time in caps.values()) / caps["as it is"].median
print(f"the slowest takes {worst:.2f} times as long as the one that spills nothing")

# %% [markdown]
# **Verdict: fails for a kernel; the worst of these does not take three times as long.** (Of one access that goes all
# the way to memory it may be true: lesson 07.) But neither did any cap gain: half the occupancy was enough, since many
# `float4` a thread are bytes enough under way, and every spill is a store and a load more. In lesson 07 a cap gained;
# here none does. (And one `float4` a thread, above, is as fast as eight.)
#
# **Claim: "fusing add and GELU takes a kernel from 24 registers to 32."** Somebody has read that off a kernel that we
# do not have. Off ours, by this compiler:

# %%
apart_source = add_gelu_source.replace("gelu(a[i] + b[i])", "{}")
for name, body in (("add", "a[i] + b[i]"), ("GELU", "gelu(a[i])"), ("both", "gelu(a[i] + b[i])")):
    kernel = cuda_kernel(apart_source.replace("{}", body, 1), "add_gelu<float>", device="H200")
    print(f"{name:4} {kernel.resources.registers} registers")

# %% [markdown]
# **Verdict: fails here; fusing took none more than GELU alone.** The sum replaces its parts, and what is replaced
# gives its register back.
#
# ## A block that works together: LayerNorm
#
# A row needs sums over all its numbers, and each thread has only its own. Two steps bring them together:
#
# 1. Within a warp, `__shfl_xor_sync(mask, v, far)` hands each lane the `v` of the lane whose number differs in one
#    bit. Five of these (16, 8, 4, 2, 1) and every lane has the sum of 32. No memory is involved.
# 2. Between the warps of a block the way is **shared memory**, a piece of the SM's own that the whole block sees: each
#    warp leaves its sum there, all wait at a **barrier**, `__syncthreads()`, and then all read.

# %%
reduce_source = """
struct Sum { __device__ float operator()(float a, float b) { return a + b; } };
struct Max { __device__ float operator()(float a, float b) { return fmaxf(a, b); } };

template <typename Op>
__device__ float of_block(float v, float* of_warps) {
  Op op;
  for (int far = 16; far > 0; far /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, far));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();  // every warp has left its own
  v = of_warps[0];
  for (int warp = 1; warp < blockDim.x / 32; warp++) v = op(v, of_warps[warp]);
  __syncthreads();  // all have read: the next reduction may write
  return v;
}"""

# %% [markdown]
# LayerNorm, one block a row, as one writes it first:

# %%
layer_norm_source = """
__global__ void layer_norm(
    const float* x, const float* weight, const float* bias, float* y, int columns) {
  __shared__ float of_warps[32];
  x += blockIdx.x * columns, y += blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += x[c];
  float mean = of_block<Sum>(sum, of_warps) / columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) squares += (x[c] - mean) * (x[c] - mean);
  float scale = rsqrtf(of_block<Sum>(squares, of_warps) / columns + 1e-5f);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[c] = (x[c] - mean) * scale * weight[c] + bias[c];
}"""

# %% [markdown]
# **How many bytes an element does it move?** The least is one trip in and one out, 8; weight and bias are shared by
# all rows, and each block reads them.
#
# <!-- given 8 B: two fp32 numbers -->

# %%
row_bytes = predict_first("bytes an element that this LayerNorm asks for", unit="B/element")
row_bytes


# %%
def layer_norm(kernel, x):
    y = torch.empty_like(x)
    kernel[len(x), 256](x, weight, bias, y, x.shape[1])
    return y


rows = 1e4 + torch.randn(16, 1000, device=device)  # a large mean, as in lesson 05
weight, bias = torch.randn(1000, device=device), torch.randn(1000, device=device)
exact = torch.nn.functional.layer_norm(rows.double(), (1000,), weight.double(), bias.double())
first = cuda_kernel(reduce_source + layer_norm_source, "layer_norm")
found = measure(layer_norm, first, rows)
print("right:", torch.allclose(found.result.double(), exact, atol=1e-2))
display(found.tensor_table())
row_bytes.compare(found.bytes_total / rows.numel())

# %% [markdown]
# Here it is on a row of 64, a warp at a time: two warps, five shuffles each, and the sums of both in shared memory.
# Before the barrier each has only its own.

# %%
from helpers.figures import watch

few = torch.arange(64.0, device=device)
watch(first[1, 64], few, torch.ones_like(few), torch.zeros_like(few), torch.empty_like(few), 64)

# %% [markdown]
# Six trips where two would do: `x` is read three times, and weight and bias once a row. (The caches may serve some of
# that; nothing in the program says so.) Triton kept the row in registers without being asked. Here you ask, with an
# array of your own: `float v[4]`, four numbers a thread.

# %%
kept_source = """
template <int EACH>
__global__ void layer_norm(
    const float* x, const float* weight, const float* bias, float* y, int columns) {
  __shared__ float of_warps[32];
  float v[EACH], sum = 0, squares = 0;
  for (int k = 0; k < EACH; k++) {
    int c = threadIdx.x + k * blockDim.x;
    v[k] = c < columns ? x[blockIdx.x * columns + c] : 0;
    sum += v[k];
  }
  float mean = of_block<Sum>(sum, of_warps) / columns;
  for (int k = 0; k < EACH; k++)
    if (threadIdx.x + k * blockDim.x < columns) squares += (v[k] - mean) * (v[k] - mean);
  float scale = rsqrtf(of_block<Sum>(squares, of_warps) / columns + 1e-5f);
  for (int k = 0; k < EACH; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c < columns) y[blockIdx.x * columns + c] = (v[k] - mean) * scale * weight[c] + bias[c];
  }
}"""
kept = cuda_kernel(reduce_source + kept_source, "layer_norm<4>")
found = measure(layer_norm, kept, rows)
print("right:", torch.allclose(found.result.double(), exact, atol=1e-2))
print(f"{found.bytes_total / rows.numel():g} B/element, {kept.resources.registers} registers")

# %% [markdown]
# Above the least there are left weight and bias, which every block reads: the caches' work. (Mind the second loop:
# without its `if`, the padding would count as `-mean` each, the bug of lesson 05.)
#
# ### Is it an array, or memory?
#
# Registers have no addresses. `v[k]` is a register only if `k` is known when the kernel is compiled, that is, if the
# loop can be unrolled. Let the loop end where the row ends, which only the launch knows:

# %%
loose = kept_source.replace("k < EACH;", "threadIdx.x + k * blockDim.x < columns;")
in_memory = cuda_kernel(reduce_source + loose, "layer_norm<4>")
for name, kernel in (("k < EACH", kept), ("until the row ends", in_memory)):
    right = torch.allclose(layer_norm(kernel, rows).double(), exact, atol=1e-2)
    need = kernel.resources
    local = sum(n for each, n in need.instructions.items() if each[:3] in ("LDL", "STL"))
    print(f"{name:18} right: {right}, {need.spill_bytes} B spilled", end=", ")
    print(f"{need.stack:2} B of stack, {local} loads and stores of it in the code")

# %% [markdown]
# The values are right, nothing was spilled, and yet the row went to **local memory**: `spill_bytes` does not tell,
# `stack` does.
#
# ## The barrier that is missing
#
# `of_block` has two barriers. The second looks idle: after it, `of_block` does nothing but return. **Take it away: how
# many of the 16 rows come out wrong?** The meter's **sanitizer** looks on: it notes which thread touched which byte,
# and when.

# %%
barrier = "  __syncthreads();  // all have read: the next reduction may write\n"
racing = cuda_kernel(reduce_source.replace(barrier, "") + kept_source, "layer_norm<4>")
found = measure(layer_norm, racing, rows)
wrong = ~torch.isclose(found.result.double(), exact, atol=1e-2).all(dim=1)
print(f"{int(wrong.sum())} of {len(rows)} rows wrong")
print(found)

# %% [markdown]
# A kernel that is right here, where the warps run in one order, and wrong on the day when a warp is late. (The line is
# where `of_block` is called.) The second reduction writes `of_warps` while a slow warp may still read the first one's
# sums; no value shows it until it happens. The sanitizer does not wait for it: two threads touched one byte, one of
# them wrote, and no barrier stood between.
#
# Without the first, a warp may read a sum before its owner has left it. That too need not show in a value:

# %%
first_barrier = "  __syncthreads();  // every warp has left its own\n"
worse = cuda_kernel(reduce_source.replace(first_barrier, "") + kept_source, "layer_norm<4>")
found = measure(layer_norm, worse, rows)
wrong = ~torch.isclose(found.result.double(), exact, atol=1e-2).all(dim=1)
print(f"{int(wrong.sum())} of {len(rows)} rows wrong")
for hazard in found.hazards:
    print(hazard)

# %% [markdown]
# And a barrier that only some threads reach may make them wait for ever. Here that is found, not waited for:

# %%
stuck_source = """
__global__ void stuck(float* y) {
  if (threadIdx.x < 100) __syncthreads();
  y[threadIdx.x] = 1;
}"""
for hazard in measure(
    cuda_kernel(stuck_source, "stuck")[1, 256], torch.empty(256, device=device)
).hazards:
    print(hazard)

# %% [markdown]
# In Triton you cannot write any of these: `tl.sum` brought its shuffles, its shared memory and both barriers along.
#
# ## Softmax, with a template for what comes before
#
# A template parameter can be a function. The compiler writes each kernel anew, with the function inside it: that is
# how CUDA C++ fuses, as `tl.constexpr` does it in Triton.

# %%
softmax_source = """
struct Plain { __device__ float operator()(float v) { return v; } };
struct Scaled { __device__ float operator()(float v) { return 0.125f * v; } };
struct Capped { __device__ float operator()(float v) { return 30 * tanhf(v / 30); } };

template <int EACH, typename Before>
__global__ void softmax(const float* x, float* y, int columns) {
  __shared__ float of_warps[32];
  float v[EACH], peak = -INFINITY, sum = 0;
  for (int k = 0; k < EACH; k++) {
    int c = threadIdx.x + k * blockDim.x;
    v[k] = c < columns ? Before()(x[blockIdx.x * columns + c]) : -INFINITY;
    peak = fmaxf(peak, v[k]);
  }
  peak = of_block<Max>(peak, of_warps);
  for (int k = 0; k < EACH; k++) sum += v[k] = __expf(v[k] - peak);
  sum = of_block<Sum>(sum, of_warps);
  for (int k = 0; k < EACH; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c < columns) y[blockIdx.x * columns + c] = v[k] / sum;
  }
}"""

# %%
x, y = 20 * torch.randn(16, 1000, device=device), torch.empty(16, 1000, device=device)
before = {
    "Plain": lambda x: x,
    "Scaled": lambda x: x / 8,
    "Capped": lambda x: 30 * torch.tanh(x / 30),
}
for name, function in before.items():
    softmax = cuda_kernel(reduce_source + softmax_source, f"softmax<4, {name}>")
    found = measure(softmax[16, 256], x, y, 1000)
    right = torch.allclose(
        y.double(), torch.softmax(function(x.double()), -1), rtol=1e-4, atol=1e-7
    )
    need = softmax.resources
    print(f"{name:6} right: {right}, {found.bytes_total / x.numel():g} B/element", end=", ")
    print(f"{need.registers} registers, {sum(need.instructions.values())} instructions")

# %% [markdown]
# The bytes stay, the instructions grow. `tanhf` is long; the GPU has a short one.
#
# ## One instruction by hand: inline PTX
#
# C++ has no name for every instruction. `asm` writes one into the kernel: `"=f"(y)` is a register that it writes,
# `"f"(x)` one that it reads. GELU by `tanh.approx` needs one special instruction where the sigmoid needs two, an
# exponential and a reciprocal. Look for it in the machine code, where it is called `MUFU.TANH`:

# %%
tanh_source = add_gelu_source.replace(
    "return s * __fdividef(1.0f, 1.0f + __expf(-twice_u));",
    """float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5f * twice_u));
  return 0.5f * s * (1.0f + t);""",
)
by_tanh = cuda_kernel(tanh_source, "add_gelu<float>", device="H200")
for name, kernel in (("exponential", ways["float"]), ("tanh.approx", by_tanh)):
    special = re.findall(r"MUFU\.\w+", kernel.resources.sass)
    print(f"{name}: {', '.join(special)}")

# %%
y = torch.empty_like(a)
by_tanh[2**14 // 256, 256](a, b, y, 2**14)
print("within 0.002 of the exact value:", torch.allclose(y.double(), expected, atol=2e-3))

# %% [markdown]
# It is *approximate*: its documented relative error is $2^{-11}$, three digits, about what fp16 holds and far from
# fp32. And that is the error of `t`: far left of zero `1 + t` cancels, and what is left of GELU, small as it is, may
# be off by a large part of itself. (The executor here rounds such instructions from double precision, so it flatters
# them: a GPU decides.)
#
# ## Banks, and padding
#
# Shared memory is 32 **banks** of 4 bytes each, by turns: word 0 in bank 0, word 31 in bank 31, word 32 in bank 0. A
# bank gives one word a clock. If lanes ask for different words of one bank, they are served one after the other, each
# time a **wavefront**.
# <!-- given 4 bytes: CUDA C++ Programming Guide, shared memory -->
#
# 1. A warp reads a column of a tile with 32 words a row. How many wavefronts?
# 2. Which widths are best for columns? Do they harm the rows?
# 3. What if all lanes ask for the same word?

# %%
from helpers.figures import BanksExplorer

banks = BanksExplorer(width=32)
banks

# %% [markdown]
# <details><summary>What is to be found</summary>1. 32: all its words lie in one bank. 2. Every odd width, 33 first of
# all; a row takes one wavefront at any width. 3. One wavefront: a word is given to all lanes that want it.</details>
#
# A transpose needs both, rows on the way in and columns on the way out (or else its stores would not be coalesced):

# %%
transpose_source = r"""
template <int WIDTH>
__global__ void transpose(const float* x, float* y, int n) {
  __shared__ float tile[32][WIDTH];
  int row = blockIdx.y * 32, column = blockIdx.x * 32;
  tile[threadIdx.y][threadIdx.x] = x[(row + threadIdx.y) * n + column + threadIdx.x];
  __syncthreads();
  y[(column + threadIdx.y) * n + row + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""

# %% [markdown]
# **How many times as long does the transpose take with 32 words a row as with 33?** (8192 × 8192 numbers on an H200.)
# The column's reads take 32 times as many wavefronts.
# <!-- given 32 times: the explorer above shows it -->

# %%
padding = predict_first("time of a transpose without padding against one with", unit="times")
padding

# %%
x, y = torch.randn(2, 64, 64, device=device)
for width in (32, 33):
    found = measure(
        cuda_kernel(transpose_source, f"transpose<{width}>")[(2, 2), (32, 32)], x, y, 64
    )
    print(
        f"tile[32][{width}] right: {torch.equal(y, x.T)}, {found.shared_requests} requests",
        end=", ",
    )
    print(f"{found.shared_wavefronts} wavefronts, {found.sectors_per_request:g} sectors a request")

# %%
transposes = h200.experiment("cuda_transpose")
taken = ((name, f"{1e6 * time.median:.0f} us") for name, time in transposes.items())
display(table(("", "time"), taken, h200.label_of("cuda_transpose")))
padded = transposes["tile[32][33]"].median
padding.compare(transposes["tile[32][32]"].median / padded)

# %%
from helpers.figures import timing_chart

pair = {name: time for name, time in transposes.items() if name != "copy"}
chart, row = timing_chart(pair, h200.label_of("cuda_transpose")), list(pair).index("tile[32][32]")
padding.on(chart, "x", lambda t: t * padded, row=row, says=lambda s: f"{1e6 * s:.0f} µs")

# %% [markdown]
# Far from 32 times, since only the column's reads take them, and while they do, the SM's other block may go on with
# its own loads. But they are no longer hidden. (Even the padded one is no copy: each thread moves one number, and a
# thousand of them wait at a barrier. Which of these costs how much was not measured.)
# <!-- given 32 times: the explorer above shows it -->
#
# ## The same from Triton, side by side
#
# Time to look at what was decided for you. The course's own Triton kernel of add+GELU in blocks of 256 threads, four
# numbers each, against `add_gelu<float4>`:

# %%
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = settings(torch.float32) | {"BLOCK": 1024, "num_warps": 8}
by_triton = compile_for(add_gelu_kernel, a, a, a, None, 2**14, device="H200", **chosen)
by_hand = ways["float4"].resources_for(256)


def instructions(ptx):
    """The instructions of PTX text, in order."""
    return re.findall(r"^\s*((?:@!?%\w+ )?[a-z]\w*(?:\.[\w:]+)*\b.*?;)", ptx, re.MULTILINE)


for name, need in (("CUDA C++", by_hand), ("Triton", by_triton)):
    print(f"{name}: {need.registers} registers, {len(instructions(need.ptx))} instructions of PTX")
    memory = [
        line for line in instructions(need.ptx) if re.search(r"\b(ld|st)\.global|\bbra\b", line)
    ]
    print("\n".join(f"    {line}" for line in memory))

# %% [markdown]
# Much the same. Triton found out by itself that four numbers lie together and 16 bytes aligned (you said so by writing
# `float4`), and where you wrote an `if`, which became a branch (`bra`), it put a **predicate** before each load and
# store: `@%p1`, do it if `%p1` is true. On the clock:
# <!-- given 16 bytes: a float4 -->

# %%
taken = []
for threads, times in four_ways[large].items():
    taken.append((threads, *(f"{1e6 * times[way].median:.0f} us" for way in ("float4", "Triton"))))
table(("threads", "float4", "Triton"), taken)

# %% [markdown]
# Now a row, where threads have to work together:


# %%
@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=0.0)
    mean = tl.sum(x) / columns
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred) / columns + 1e-5)
    y = centred * scale * tl.load(weight_ptr + column, mask=inside) + tl.load(
        bias_ptr + column, mask=inside
    )
    tl.store(y_ptr + row * columns + column, y, mask=inside)


# %% [markdown]
# You wrote no barrier here. **How many does its machine code hold, for rows of 1024?**

# %%
barriers = predict_first("barriers in the machine code of Triton's LayerNorm", unit="barriers")
barriers

# %%
t = rows.new_empty(16, 1024)
triton_for = lambda n: compile_for(
    layer_norm_kernel, t, t, t, t, n, device="H200", BLOCK=1024, num_warps=8
)
by_hand = cuda_kernel(reduce_source + kept_source, "layer_norm<4>", device="H200").resources_for(
    256
)
found = {"CUDA C++": by_hand, "Triton, 1024": triton_for(1024), "Triton, 1000": triton_for(1000)}
names = {
    "barriers": "BAR",
    "shuffles": "SHFL",
    "16-byte loads": "LDG.128",
    "4-byte loads": "LDG.32",
}
counts = {}
for name, key in names.items():
    counts[name] = [need.instructions[key] for need in found.values()]
counts["shared memory, B"] = [need.shared_memory for need in found.values()]
counts["registers"] = [need.registers for need in found.values()]
display(table(("", *found), ((name, *row) for name, row in counts.items())))
barriers.compare(counts["barriers"][1])

# %% [markdown]
# The same plan: shuffles within a warp, a few words of shared memory between warps, barriers around it. Triton adds up
# the warps' sums by shuffles too, where ours is a loop. It also took wide loads by itself; we would have to write
# `float4`, and a second kernel for rows that are no multiple of four.
#
# At 1000 you could say what it did not find. Rows of 1000 are a multiple of four, so `float4` would do for them; but of
# `columns` Triton asks only whether 16 divides it, and takes narrow loads. It even passes a row through shared memory,
# to hand its numbers to other threads. What Triton decided for you:
#
# | you in CUDA C++ | Triton |
# |---|---|
# | `blockIdx.x * blockDim.x + threadIdx.x` | `tl.arange`, laid out over lanes so that requests are coalesced |
# | `float4`, and that the pointer is aligned | from the pointer's divisibility, if it was 16 |
# | `if (c < columns)`, and what padding holds | `mask=` and `other=`: still yours |
# | shuffles, shared memory, `__syncthreads()` | `tl.sum`, `tl.max` |
# | an array in registers, its loop unrolled | a block of constant size |
# | `tile[32][33]` | it lays out shared memory itself, with padding or a *swizzle* (a row's words in another order) |
# | `__launch_bounds__`, `__maxnreg__` | `num_warps`, `maxnreg` |
#
# What you say in CUDA C++ and not there: which thread holds what, and which warp does what. For some of it Triton has
# a switch, but leaves the how to its compiler: warps with different work (`tl.range(..., warp_specialize=True)`),
# blocks that talk, a *cluster* (`num_ctas`), an instruction by hand (`tl.inline_asm_elementwise`).
#
# ## Where the others stand
#
# **CUTLASS** is NVIDIA's C++ templates for matrix products, built on *layouts*, functions from coordinates to places
# in memory; **CuTe DSL** writes the same in Python and compiles it at run time. You say what each thread and each warp
# does, as here, but with layouts in place of index arithmetic. A layout is only this:

# %%
shape, stride = (32, 33), (33, 1)  # CuTe writes (32,33):(33,1)
place = lambda coordinate: sum(c * s for c, s in zip(coordinate, stride, strict=True))
print(f"row 2, column 5 of the padded tile lies at word {place((2, 5))}, bank {place((2, 5)) % 32}")

# %% [markdown]
# **Gluon** is Triton's own lower floor, and comes with Triton: the same compiler, but you write the layouts, the
# shared memory and the barriers. It is for the kernel in which Triton's choice is the thing that stands in the way.
# The layout that Triton chose for add+GELU above, said aloud:

# %%
from triton.experimental.gluon import language as gl

layout = gl.BlockedLayout(size_per_thread=[4], threads_per_warp=[32], warps_per_cta=[8], order=[0])
print(f"thread: {layout.size_per_thread[0]} numbers, warp: {layout.threads_per_warp[0]}", end=" ")
print(f"threads, block: {layout.warps_per_cta[0]} warps = 1024 numbers")

# %% [markdown]
# **cuTile** is NVIDIA's language of tiles in Python: as in Triton you write about blocks and not about threads, and
# the compiler (by way of *Tile IR*) decides the rest. An array is loaded by the tile's number instead of by pointers
# and masks: `ct.load(a, index=(block,), shape=(1024,))`.
#
# **Helion** stands a floor above Triton: PyTorch's own operators inside a loop over tiles, from which it writes Triton
# kernels, many of them, times them and keeps the fastest. You need decide neither the block size nor the number of
# warps nor the loops' order. add+GELU is `for tile in hl.tile(a.size(0)): y[tile] = gelu(a[tile] + b[tile])`.
#
# From top to bottom, then: Helion, then Triton and cuTile, then Gluon and CuTe DSL, then CUDA C++, then PTX. Each
# floor decides less for you. Going down does not of itself move fewer bytes: what is fused, you decide on all of them.
#
# ## What you said, what was found

# %%
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel's values are right in every test and the sanitizer reports a race. Who is right?
# <details><summary>Answer</summary>The sanitizer. The tests saw one order in which warps may run; the race is about
# another.</details>
#
# 2. `float4` on a tensor that starts at `x[1]`: what happens?
# <details><summary>Answer</summary>An address that is no multiple of 16 bytes: the kernel ends with the error
# "misaligned address", which is told at the next call that waits for the GPU. Triton would have looked at the pointer
# and compiled narrow loads.</details>
#
# 3. `__syncthreads()` inside `if (i < n)`: why is it wrong, and when does one notice?
# <details><summary>Answer</summary>In the last block some threads never reach it, if `n` is no multiple of the block.
# What happens then is undefined: it may hang, it may give wrong values, and it may go well for years. The sanitizer
# says so at once.</details>
#
# 4. `spill_bytes` is 0 and `stack` is 64. What happened?
# <details><summary>Answer</summary>A local array whose index the compiler does not know: it lies in memory, though no
# register ran out.</details>
#
# 5. A block of 512 threads reduces a row as above. How many words of shared memory does it need? Put your number in
#    place of the dots.

# %%
answer = ...
self_test(answer, 512 / 32, "one word a warp")

# %% [markdown]
# 6. A warp reads `tile[lane][k]` of a `tile[32][36]` of fp32. How many wavefronts?

# %%
answer = ...
self_test(answer, 4, "36 lane mod 32 takes every fourth bank: eight of them, four lanes each")

# %% [markdown]
# [Exercise 14](../exercises/14_cuda_softmax.ipynb) asks for a softmax of your own, of any width. Next: the
# [lab bench](lab_bench.ipynb), every instrument of the course in one line each.
