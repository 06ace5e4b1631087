# %% [markdown]
# # 14 CUDA C++: what Triton decided for you
#
# In Triton you wrote about blocks: load a block, add it, store it. The compiler decided which thread takes which
# element, in what order, how a sum gets from one thread to another, and when threads wait. In CUDA C++ you decide.
# **How much of it must you write, what happens if you get it wrong, and was the compiler's answer any worse than
# yours?**
#
# After this lesson you can
#
# - write a kernel of threads, warps and blocks, and predict which sectors it fetches;
# - load with `float4`, and explain what that gains;
# - reduce a row with shuffles and shared memory, and find a missing barrier;
# - avoid bank conflicts, and local arrays that end up in memory;
# - compare the code that Triton generated with yours.
#
# About 60 minutes. It needs no GPU: NVIDIA's compiler runs here, and the [PTX](../docs/glossary.md#ptx) that it writes
# is executed on the CPU, with every byte counted. It follows on [07 Occupancy](07_occupancy.ipynb) and leads to
# [exercise 14](../exercises/14_cuda_softmax.ipynb).

# %% tags=["hide-input"]
import re

import torch
import triton
import triton.language as tl

from helpers.figures import watch
from helpers.instruments import compile_for, cuda_kernel, measure, recorded, table
from helpers.learning import cuda_puzzle, predict_first, predictions, self_test
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"
h200 = recorded("h200")

# %% [markdown]
# ## The smallest kernel
#
# A kernel is written for **one thread**. The launch says how many there are: here `twice[4, 256]`, in a C++ program
# `twice<<<4, 256>>>`, four thread blocks of 256 threads. Each computes its own index and takes that element. `y` is a
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
# Four blocks of 256 are 1024 threads, and 24 of them have no element. Remove the `if`, and they read past the end of
# `x` and store past the end of `y`, into whatever is there. On a GPU that may go unnoticed for years. Not here:

# %%
careless = cuda_kernel(scale_source.replace("if (i < n) ", ""), "twice")
print(measure(careless[4, 256], numbers.clone(), doubled.clone(), 1000))

# %% [markdown]
# (A mistake in C++ itself prints the compiler's message, with your line marked. `printf` is not available here.)
#
# ## Which thread reads which address
#
# The hardware does not run threads one by one. It runs 32 neighbours together, a [warp](../docs/glossary.md#warp);
# `lane` is a thread's place in it. One load by a warp is one *request*, and memory answers in
# [sectors](../docs/glossary.md#sector) of 32 bytes.
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->
#
# Below is a grid of four blocks of 64 threads. Thread `i` reads `x[i * stride]`.
#
# 1. Move the thread from 31 to 32, and from 63 to 64. What changes?
# 2. At what stride does a larger stride stop making a difference?
# 3. Together, what do the threads of one warp read at stride 1?

# %% tags=["hide-input"]
from helpers.figures import ThreadsExplorer

explorer = ThreadsExplorer(stride=1, thread=35)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. From 31 to 32 the warp, from 63 to 64 the block. 2. At 8: a sector
# holds eight elements, so each lane then has its own. 3. One contiguous piece of memory: the request is
# <i>coalesced</i>.</details>
#
# The cost on a GPU: $2^{24}$ elements, each read once, farther and farther apart (by a Triton kernel that sums them).

# %% tags=["hide-input"]
strides = h200.experiment("strides")
print(h200.label_of("strides"))
times = (f"stride {each}: {1e6 * strides[each].median:.0f} us" for each in (1, 2, 4, 8, 16, 32))
print(", ".join(times))

# %% [markdown]
# Up to 8 the time grows nearly as the sectors do. Beyond, a request needs no more of them, and still it gets slower:
# L2 fetches sectors in pairs, which lesson 15 reads from a counter.
#
# Now a kernel, metered. **If each thread takes two neighbours (thread `i` takes `x[2i]`, then `x[2i + 1]`), how many
# sectors does one request fetch?** Everything fetched is used in the end.

# %% tags=["hide-input"]
pairs = predict_first("sectors per request, two neighbours per thread", unit="sectors")
pairs

# %%
two_per_thread = """
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

# %% tags=["hide-input"]
x, y = torch.randn(2, 4096, device=device)
fetched = {}
for name in ("neighbours", "apart"):
    found = measure(cuda_kernel(two_per_thread, name)[8, 256], x, y, 4096)
    fetched[name] = found.sectors_per_request
    print(f"{name:10} {found.bytes_total:,} bytes, {fetched[name]:g} sectors per request")
pairs.compare(
    fetched["neighbours"],
    "The bytes are the same, but each sector is requested twice: once for x[2i], again for "
    "x[2i + 1]. A cache may serve the second request, but it has to be made.",
)

# %% [markdown]
# So in CUDA C++ neighbours in a *warp* take neighbours in memory, and one thread's next load is far away, as in
# `apart`. In Triton the compiler laid `tl.arange` out over the lanes for you.
#
# ## add+GELU with float4
#
# `float4` is four floats that one instruction loads. A template makes both kernels one: only the type differs.

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

# %% [markdown]
# $2^{14}$ elements, blocks of 256. The `float` version makes 1536 requests. **How many does `float4` make?**
# <!-- given 1536 requests: 3 tensors of 2^14 elements, 32 per request -->

# %% tags=["hide-input"]
requests = predict_first("requests of add+GELU with float4, 2^14 elements", unit="")
requests

# %% tags=["hide-input"]
a, b = torch.randn(2, 2**14, device=device)
expected = torch.nn.functional.gelu(a.double() + b.double(), approximate="tanh")
ways, made = {}, {}
for type, width in (("float", 1), ("float4", 4)):
    ways[type] = cuda_kernel(add_gelu_source, f"add_gelu<{type}>", device="H200")
    y = torch.empty_like(a)
    found = measure(ways[type][2**14 // width // 256, 256], a, b, y, 2**14 // width)
    made[type] = sum(line.requests for line in found.by_line.values())
    print(f"{type:6} right: {torch.allclose(y.double(), expected, atol=1e-6)}", end=", ")
    print(f"{found.bytes_total / a.numel():g} B/element, {made[type]} requests")
requests.compare(made["float4"])

# %% [markdown]
# **Claim: "vectorised loads bring another 1.2 to 1.3 times."** It was made about a fused add+GELU of a million fp32
# numbers, on a GPU that was not named. On an H200, at that size and at a hundred million:

# %% tags=["hide-input"]
four_ways = h200.experiment("cuda_four_ways")
small, large = min(four_ways), max(four_ways)
rows = []
for threads, taken in four_ways[large].items():
    one, four = taken["one number"].median, taken["float4"].median
    million = four_ways[small][threads]
    ratios = (one / four, million["one number"].median / million["float4"].median)
    shown = (f"{1e6 * each:.0f} us" for each in (one, four))
    rows.append((threads, *shown, *(f"{ratio:.2f}x" for ratio in ratios)))
title = f"{h200.label_of('cuda_four_ways')}\n{large:,} elements; last column {small:,}"
heads = ("threads per block", "float", "float4", "speedup", "a million: speedup")
display(table(heads, rows, title))
print("\nVerdict: fails as a rule; it is less at a million, except in the smallest blocks, and")
print("more at 100 million.")
print("There, blocks of 256 come close. The difference is bytes in flight per SM (lesson 07's")
print("Little's law): a thread that loads one element of each input has few. Occupancy is not it:")
full = {ways["float"].resources_for(threads).occupancy().fraction for threads in four_ways[large]}
print(f"at all four block sizes it is {', '.join(f'{each:.0%}' for each in full)}.")

# %% [markdown]
# ## A block that works together: LayerNorm
#
# A row needs sums over all its elements, and each thread has only its own. Two steps bring them together:
#
# 1. Within a warp, `__shfl_xor_sync(mask, v, far)` gives each lane the `v` of the lane whose number differs in one
#    bit. After five of these [shuffles](../docs/glossary.md#shuffle) (16, 8, 4, 2, 1) every lane has the sum of 32. No
#    memory is involved.
# 2. Between the warps of a block the data goes through [shared memory](../docs/glossary.md#shared-memory): each warp
#    stores its sum there, all wait at a [barrier](../docs/glossary.md#barrier), `__syncthreads()`, and then all read.
#
# Start with the first. Each of two warps should store the sum of its 32 elements. **Fix the loop.** (This cell is
# CUDA C++: edit the text between the quotes.)

# %%
warp_sums_source = """
__global__ void warp_sums(const float* x, float* y) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float v = x[threadIdx.x];
  for (int far = 16; far > 1; far /= 2)  // <- change this line
    v += __shfl_xor_sync(0xffffffff, v, far);
  if (lane == 0) y[warp] = v;
}"""
x = torch.arange(64.0)
cuda_puzzle(warp_sums_source, "warp_sums", 1, 64, x, wanted=x.view(2, 32).sum(1))

# %% [markdown]
# <details><summary>Answer</summary><code>for (int far = 16; far > 0; far /= 2)</code>: the last exchange, with the
# direct neighbour, was missing, so lane 0 had the even elements only.</details>
#
# <!-- choices
# for (int far = 16; far > 1; far /= 2)
#
# for (int far = 8; far > 0; far /= 2)
#
# for (int far = 16; far > 0; far /= 2)
#
# for (int far = 1; far < 16; far *= 2)
#
# for (int far = 16; far > 0; far -= 2)
# -->
#
# And both together, as a function for any operation:

# %%
reduce_source = """
struct Sum { __device__ float operator()(float a, float b) { return a + b; } };
struct Max { __device__ float operator()(float a, float b) { return fmaxf(a, b); } };

template <typename Op>
__device__ float of_block(float v, float* of_warps) {
  Op op;
  for (int far = 16; far > 0; far /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, far));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();  // every warp has stored its value
  v = of_warps[0];
  for (int warp = 1; warp < blockDim.x / 32; warp++) v = op(v, of_warps[warp]);
  __syncthreads();  // all have read: the next reduction may overwrite
  return v;
}"""

# %% [markdown]
# LayerNorm, one block per row, in its first version:

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
# **How many bytes per element does it request?** Weight and bias are shared by all rows, but each block reads them.

# %% tags=["hide-input"]
row_bytes = predict_first("bytes per element that this LayerNorm requests", unit="B/element")
row_bytes


# %% tags=["hide-input"]
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
row_bytes.compare(
    found.bytes_total / rows.numel(),
    "Six reads and writes where two would do: x is read three times. (The caches may serve some.)",
)

# %% [markdown]
# Here it is on a row of 64: two warps, five shuffles each, and both sums in shared memory. The row is 1 in its first
# half and 3 in its second. Before the barrier, each warp has only its own half's sum.

# %% tags=["hide-input"]
few = torch.ones(64, device=device)
few[32:] = 3
watch(first[1, 64], few, torch.ones_like(few), torch.zeros_like(few), torch.empty_like(few), 64)

# %% [markdown]
# Triton kept the row in registers without being asked. Here you ask, with an array: `float v[4]`, four elements per
# thread.

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
# Above the minimum of 8 there remain weight and bias, which every block reads: the caches' work. (Note the `if` in the
# second loop: without it, each padding element would count as `-mean`, the bug of lesson 05.)
#
# ### Registers or local memory?
#
# Registers have no addresses. `v[k]` is a register only if `k` is known at compile time, which means that the loop can
# be unrolled. Now let the loop end where the row ends, which only the launch knows:

# %%
loose = kept_source.replace("k < EACH;", "threadIdx.x + k * blockDim.x < columns;")
in_memory = cuda_kernel(reduce_source + loose, "layer_norm<4>")

# %% tags=["hide-input"]
for name, kernel in (("k < EACH", kept), ("until the row ends", in_memory)):
    right = torch.allclose(layer_norm(kernel, rows).double(), exact, atol=1e-2)
    need = kernel.resources
    local = sum(n for each, n in need.instructions.items() if each[:3] in ("LDL", "STL"))
    print(f"{name:18} right: {right}, {need.spill_bytes} B spilled", end=", ")
    print(f"{need.stack:2} B of stack, {local} local loads and stores in the code")

# %% [markdown]
# The values are right, nothing was spilled, and yet the row went to **local memory**, which is in DRAM. `spill_bytes`
# does not show it; `stack` does.
#
# ## A missing barrier
#
# A block of 64 threads reverses a row through shared memory. Something is missing. The meter's **sanitizer** watches
# shared memory: it records which thread touched which byte, and which barriers were in between. **Add the line.**

# %%
reverse_source = """
__global__ void reverse(const float* x, float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = x[threadIdx.x];
  // <- a line here
  y[threadIdx.x] = row[63 - threadIdx.x];
}"""
x = torch.arange(64.0)
cuda_puzzle(reverse_source, "reverse", 1, 64, x, wanted=x.flip(0))

# %% [markdown]
# <details><summary>Answer</summary><code>__syncthreads();</code>: a thread of one warp reads an element that a thread
# of the other stores. `__syncwarp()` would not do, because it waits for one warp only.</details>
#
# <!-- choices
# // <- a line here
#
# __syncwarp();
#
# __syncwarp(0xffffffff);
#
# __syncthreads();
#
# if (threadIdx.x == 0) __syncwarp();
# -->
#
# `of_block` has two barriers. The second looks idle: after it, `of_block` only returns. Remove it:

# %%
barrier = "  __syncthreads();  // all have read: the next reduction may overwrite\n"
racing = cuda_kernel(reduce_source.replace(barrier, "") + kept_source, "layer_norm<4>")

# %% tags=["hide-input"]
found = measure(layer_norm, racing, rows)
wrong = ~torch.isclose(found.result.double(), exact, atol=1e-2).all(dim=1)
print(f"{int(wrong.sum())} of {len(rows)} rows wrong")
print(found)

# %% [markdown]
# Every value is right here, where the warps run in one order, and the kernel will be wrong on the day a warp is late.
# (The reported line is the call of `of_block`.) The second reduction writes `of_warps` while a slow warp may still read
# the first one's sums. No value shows it until it happens. The sanitizer does not wait for that: two threads touched
# the same byte, one of them wrote, and no barrier was in between.
#
# And a barrier that only some threads reach may deadlock the block. Here that is detected:

# %%
stuck_source = """
__global__ void stuck(float* y) {
  if (threadIdx.x < 100) __syncthreads();
  y[threadIdx.x] = 1;
}"""
stuck = cuda_kernel(stuck_source, "stuck")
print(measure(stuck[1, 256], torch.empty(256, device=device)).hazards[0])

# %% [markdown]
# In Triton you cannot write any of these bugs: `tl.sum` comes with its shuffles, its shared memory and its barriers.
#
# ## Bank conflicts and padding
#
# Shared memory has 32 **banks** of 4 bytes: word 0 is in bank 0, word 31 in bank 31, word 32 in bank 0 again. A bank
# serves one word per clock. If lanes need different words from one bank, the request takes several
# [wavefronts](../docs/glossary.md#wavefront): a [bank conflict](../docs/glossary.md#bank-conflict).
# <!-- given 4 bytes: CUDA C++ Programming Guide, shared memory -->
#
# 1. A warp reads a column of a tile with 32 words per row. How many wavefronts?
# 2. Which widths are best for columns? Do they hurt the rows?
# 3. What if all lanes read the same word?

# %% tags=["hide-input"]
from helpers.figures import BanksExplorer

banks = BanksExplorer(width=32)
banks

# %% [markdown]
# <details><summary>What you should see</summary>1. 32: all its words are in one bank. 2. Every odd width, 33 being the
# smallest that fits; a row takes one wavefront at any width. 3. One wavefront: a word is broadcast to all lanes that
# want it.</details>
#
# A transpose needs both, rows on the way in and columns on the way out (otherwise its stores would not be coalesced):

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
# On 64 x 64 elements it makes 128 row stores and 128 column loads of shared memory. **How many wavefronts does that
# take with 32 words per row?**

# %% tags=["hide-input"]
conflicts = predict_first("wavefronts of a 64 x 64 transpose, 32 words per row", unit="")
conflicts

# %% tags=["hide-input"]
x, y = torch.randn(2, 64, 64, device=device)
wavefronts = {}
for width in (32, 33):
    kernel = cuda_kernel(transpose_source, f"transpose<{width}>")
    found = measure(kernel[(2, 2), (32, 32)], x, y, 64)
    wavefronts[width] = found.shared_wavefronts
    counts = f"{found.shared_requests} requests, {wavefronts[width]} wavefronts"
    print(f"tile[32][{width}] right: {torch.equal(y, x.T)}, {counts}")
transposes = h200.experiment("cuda_transpose")
taken = ((name, f"{1e6 * time.median:.0f} us") for name, time in transposes.items())
display(table(("", "8192 x 8192"), taken, h200.label_of("cuda_transpose")))
slower = transposes["tile[32][32]"].median / transposes["tile[32][33]"].median
conflicts.compare(
    wavefronts[32],
    f"One word of padding per row removes them. On an H200 they cost {slower:.2f}x, far less "
    "than 32x: only the column loads have them, and meanwhile the SM's other block loads. "
    "(Even the padded one is slower than a copy; why was not measured.)",
)

# %% [markdown]
# ## CUDA C++ and Triton side by side
#
# The course's Triton kernel of add+GELU in blocks of 256 threads, four elements each, against `add_gelu<float4>`:

# %% tags=["hide-input"]
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

chosen = settings(torch.float32) | {"BLOCK": 1024, "num_warps": 8}
by_triton = compile_for(add_gelu_kernel, a, a, a, None, 2**14, device="H200", **chosen)
by_hand = ways["float4"].resources_for(256)


def instructions(ptx):
    """Return the instructions of PTX text, in order."""
    return re.findall(r"^\s*((?:@!?%\w+ )?[a-z]\w*(?:\.[\w:]+)*\b.*?;)", ptx, re.MULTILINE)


for name, need in (("CUDA C++", by_hand), ("Triton", by_triton)):
    print(f"{name}: {need.registers} registers, {len(instructions(need.ptx))} instructions of PTX")
    memory = [
        line for line in instructions(need.ptx) if re.search(r"\b(ld|st)\.global|\bbra\b", line)
    ]
    print("\n".join(f"    {line}" for line in memory))
times = (
    f"{threads} threads "
    f"{1e6 * taken['float4'].median:.0f} and {1e6 * taken['Triton'].median:.0f} us"
    for threads, taken in four_ways[large].items()
)
print(f"H200, {large:,} elements, float4 and Triton: {'; '.join(times)}")

# %% [markdown]
# Much the same. Triton found by itself that four elements are contiguous and aligned to 16 bytes (you promised so by
# writing `float4`). Your `if` became a branch (`bra`); Triton put a **predicate** before each load and store: `@%p1`,
# execute if `%p1` is true.
# <!-- given 16 bytes: a float4 -->
#
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
    weight, bias = (
        tl.load(weight_ptr + column, mask=inside),
        tl.load(bias_ptr + column, mask=inside),
    )
    tl.store(y_ptr + row * columns + column, centred * scale * weight + bias, mask=inside)


# %% [markdown]
# There is no barrier in this code. Each `tl.sum` compiles to: shuffles within a warp; each warp stores its sum; one
# warp adds these up by shuffles and stores the total; all read it. Both use the same shared memory. **How many barriers
# does the machine code hold?**

# %% tags=["hide-input"]
barriers = predict_first("barriers in the machine code of Triton's LayerNorm", unit="barriers")
barriers

# %% tags=["hide-input"]
t = rows.new_empty(16, 1024)
triton_for = lambda n: compile_for(
    layer_norm_kernel, t, t, t, t, n, device="H200", BLOCK=1024, num_warps=8
)
cuda_layer_norm = cuda_kernel(reduce_source + kept_source, "layer_norm<4>", device="H200")
by_hand_row = cuda_layer_norm.resources_for(256)
found = {
    "CUDA C++": by_hand_row,
    "Triton, 1024": triton_for(1024),
    "Triton, 1000": triton_for(1000),
}
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
barriers.compare(
    counts["barriers"][1],
    "Two per sum, before each of its two reads, and one between the sums: the second must not "
    "overwrite shared memory that a slow warp still reads. Ours has the same guard, inside "
    "of_block.",
)

# %% [markdown]
# The plan is the same. Triton also took wide loads by itself; we would have to write `float4`, and a second kernel for
# rows that are not a multiple of four. At 1000 it missed something you know: rows of 1000 are a multiple of four, so
# `float4` would do, but Triton only checks whether 16 divides `columns`, and takes narrow loads. It even moves a row
# through shared memory to hand its elements to other threads. What Triton decided for you:
#
# | you in CUDA C++ | Triton |
# |---|---|
# | `blockIdx.x * blockDim.x + threadIdx.x` | `tl.arange`, laid out over lanes so that requests are coalesced |
# | `float4`, and that the pointer is aligned | from the pointer's divisibility by 16 |
# | `if (c < columns)`, and the value of padding | `mask=` and `other=`: still yours |
# | shuffles, shared memory, `__syncthreads()` | `tl.sum`, `tl.max` |
# | an array in registers, its loop unrolled | a block of constant size |
# | `tile[32][33]` | its own layout of shared memory, with padding or a *swizzle* (a row's words in another order) |
# | `__launch_bounds__`, `__maxnreg__` | `num_warps`, `maxnreg` |
#
# What you cannot write in Triton: which thread holds what, and which warp does what. For some of that it has a switch
# and leaves the details to its compiler: warps with different work (`tl.range(..., warp_specialize=True)`), a *cluster*
# of blocks (`num_ctas`), inline PTX (`tl.inline_asm_elementwise`).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel's values are right in every test and the sanitizer reports a race. Which do you believe?
# <details><summary>Answer</summary>The sanitizer. The tests saw one order in which warps may run; the race is about
# another.</details>
#
# 2. `float4` on a tensor that starts at `x[1]`: what happens?
# <details><summary>Answer</summary>The address is not a multiple of 16 bytes: the kernel fails with "misaligned
# address", reported by the next call that waits for the GPU. Triton would have checked the pointer and compiled narrow
# loads.</details>
# <!-- given 16 bytes: a float4 -->
#
# 3. `__syncthreads()` inside `if (i < n)`: why is it wrong, and when do you notice?
# <details><summary>Answer</summary>In the last block some threads never reach it, if `n` is not a multiple of the block
# size. The result is undefined: it may hang, give wrong values, or work for years. The sanitizer reports it at
# once.</details>
#
# 4. `spill_bytes` is 0 and `stack` is 64. What happened?
# <details><summary>Answer</summary>A local array has an index that the compiler does not know: it is in memory, though
# registers did not run out.</details>
#
# 5. A block of 512 threads reduces a row as above. How many words of shared memory does it need? Replace the dots by
#    your number.

# %%
answer = ...
self_test(answer, 512 / 32, "one word per warp")

# %% [markdown]
# 6. A warp reads `tile[lane][k]` of a `tile[32][36]` of fp32. How many wavefronts?

# %%
answer = ...
self_test(answer, 4, "36 lane mod 32 takes every fourth bank: eight of them, four lanes each")

# %% [markdown]
# ## Now you
#
# [Exercise 14](../exercises/14_cuda_softmax.ipynb) asks for a softmax of your own, of any width. Then comes
# [lesson 15](15_profilers_capstone.ipynb): profilers, and a block from report to race.

# %% [markdown]
# ## Going further
#
# ### Capping registers: launch bounds and maxnreg
#
# Load eight `float4` of each input before using the first. That would take 64 registers for them alone.
# `__launch_bounds__(256, 8)` is a promise and a request: no launch has more than 256 threads per block, and eight
# blocks should fit on an SM. `__maxnreg__(24)` sets the maximum directly. Each cap costs spills:
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

# %%
names = ("as_it_is<float4>", "bounded<5>", "bounded<6>", "bounded<8>", "capped<24>")
eights = {name: cuda_kernel(add_gelu_source + eight_source, name, device="H200") for name in names}
rows_of = []
for name, kernel in (ways | eights).items():
    need = kernel.resources_for(256)
    share = (need.occupancy().blocks, f"{need.occupancy().fraction:.0%}")
    rows_of.append((name, f"{need.registers} registers", f"{need.spill_bytes} B", *share))
display(table(("", "per thread", "spilled", "blocks", "occupancy"), rows_of))
order = re.findall(r"LDG\.E\.128|FADD", eights["as_it_is<float4>"].resources.sass)
loads = f"{order.index('FADD')} of {order.count('LDG.E.128')} loads"
print(f"as_it_is<float4>: {loads} before the first sum")
print("\n".join(line for line in eights["bounded<8>"].log.splitlines() if " bytes " in line))

# %% [markdown]
# With fewer than 64 registers not everything is loaded first, whatever the source says: NVIDIA's assembler, **ptxas**,
# whose lines those are, moves loads behind the first sums.
# <!-- given 64 registers: 8 times 4 numbers of two inputs, one register each -->
#
# **Claim: "spilled registers are 100 times slower."**

# %%
caps = h200.experiment("cuda_caps")
rows_of = []
for kernel, (cap, time) in zip(eights.values(), caps.items(), strict=True):
    need = kernel.resources_for(256)
    shown = (f"{need.spill_bytes} B", f"{need.occupancy().fraction:.0%}")
    rows_of.append((cap, *shown, f"{1e6 * time.median:.0f} us"))
display(table(("", "spilled", "occupancy", "time"), rows_of, h200.label_of("cuda_caps")))
worst = max(time.median for time in caps.values()) / caps["as it is"].median
print(f"the slowest is {worst:.2f}x slower than the one that spills nothing")

# %% [markdown]
# **Verdict: fails for a kernel; the worst of these is not even three times slower.** (For one access that goes all the
# way to DRAM it may be true: lesson 07.) But no cap gained anything, either. Half the occupancy was enough, because
# many `float4` per thread put enough bytes in flight, and every spill adds a store and a load. One `float4` per thread,
# above, is as fast as eight.
#
# **Claim: "fusing add and GELU takes a kernel from 24 registers to 32."** It was read off a kernel that we do not have.
# Ours, with this compiler:

# %%
apart_source = add_gelu_source.replace("gelu(a[i] + b[i])", "{}")
for name, body in (("add", "a[i] + b[i]"), ("GELU", "gelu(a[i])"), ("both", "gelu(a[i] + b[i])")):
    kernel = cuda_kernel(apart_source.replace("{}", body, 1), "add_gelu<float>", device="H200")
    print(f"{name:4} {kernel.resources.registers} registers")

# %% [markdown]
# **Verdict: fails here; fusing took none more than GELU alone.** The sum replaces its operands, and each of them gives
# its register back.
#
# ### Softmax with a template for its input
#
# A template parameter can be a function. The compiler writes each kernel with the function inlined: that is how CUDA
# C++ fuses, as `tl.constexpr` does in Triton. (Exercise 14 asks for a softmax of any width; try it first.)

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
# ### Inline PTX
#
# C++ has no name for every instruction. `asm` writes one into the kernel: `"=f"(y)` is a register that it writes,
# `"f"(x)` one that it reads. GELU by `tanh.approx` needs one special instruction where the sigmoid needs two, an
# exponential and a reciprocal. In the machine code it is called `MUFU.TANH`:

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
y = torch.empty_like(a)
by_tanh[2**14 // 256, 256](a, b, y, 2**14)
print("within 0.002 of the exact value:", torch.allclose(y.double(), expected, atol=2e-3))

# %% [markdown]
# It is *approximate*: its documented relative error is $2^{-11}$, three digits, about fp16's precision and far from
# fp32's. And that is the error of `t`: far left of zero, `1 + t` cancels, and the small remainder of GELU may be wrong
# by a large part of itself. (The executor here rounds such instructions from double precision, so it flatters them.)
#
# ### L2 norm twice: to learn from, and to race
#
# The L2 norm divides each row by the root of its sum of squares. The first version shows every step. Each thread adds up
# its own elements; then the sums meet in shared memory, in a **tree**: half of the threads add the other half's sums,
# then half of those, until one sum is left.

# %%
l2_to_learn_source = """
__global__ void l2_to_learn(const float* x, float* y, int columns, float eps) {
  __shared__ float sums[256];
  const float* row = x + (long long)blockIdx.x * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += row[c] * row[c];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {  // a tree: 128 sums, 64, ..., 1
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  float norm = sqrtf(sums[0]);
  if (norm < eps) norm = eps;
  y += (long long)blockIdx.x * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = row[c] / norm;
}"""

# %% [markdown]
# The second one is to race: `float4`, the row in registers, shuffles before shared memory, one division per row instead
# of one per element, and a template, so that the compiler knows the block's size.

# %%
l2_to_race_source = """
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
l2_to_race(const float4* x, float4* y, int columns, float eps) {
  __shared__ float of_warps[32];
  int fours = columns / 4;  // rows of whole float4, at most 16 * THREADS columns
  x += (long long)blockIdx.x * fours, y += (long long)blockIdx.x * fours;
  float4 v[4];
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    int c = threadIdx.x + k * THREADS;
    v[k] = c < fours ? x[c] : float4{0, 0, 0, 0};
    sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
  }
  float norm = sqrtf(of_block<Sum>(sum, of_warps));
  float scale = 1 / (norm < eps ? eps : norm);
  for (int k = 0; k < 4; k++) {
    int c = threadIdx.x + k * THREADS;
    if (c < fours) y[c] = {v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale};
  }
}"""

# %% tags=["hide-input"]
x, y = torch.randn(2, 16, 4096, device=device)
normalised = torch.nn.functional.normalize(x.double(), eps=1e-12)
learned = cuda_kernel(l2_to_learn_source, "l2_to_learn")
raced = cuda_kernel(reduce_source + l2_to_race_source, "l2_to_race<256>")
rows_of = []
for name, kernel in (("to learn from", learned), ("to race", raced)):
    found = measure(kernel[16, 256], x, y, 4096, 1e-12)
    right = torch.allclose(y.double(), normalised, rtol=1e-5, atol=1e-7)
    bar_count = kernel.resources.instructions["BAR"]
    per_element = f"{found.bytes_total / x.numel():g} B"
    rows_of.append((name, right, per_element, found.shared_requests, bar_count, len(found.hazards)))
columns = ("", "right", "per element", "shared memory requests", "barriers in the code", "races")
table(columns, rows_of)

# %% [markdown]
# The first version reads each row twice. (The second read may find the row in L1 or L2: then DRAM supplies it once.) On an
# H100, next to PyTorch and the course's Triton kernel:

# %% tags=["hide-input"]
from benchmarks.experiments.lesson_14 import RECORD

h100 = recorded(RECORD.removesuffix(".json"))
l2_norms, rows_of = h100.experiment("cuda_l2_norm"), []
for shape, taken in l2_norms.items():
    rows_of.append((shape, *(f"{1e6 * each.median:.0f} us" for each in taken.values())))
display(table(("fp32", *taken), rows_of, h100.label_of("cuda_l2_norm")))
for shape, taken in l2_norms.items():
    slower = taken["to learn"].median / taken["to race"].median
    beside = taken["Triton"].median / taken["to race"].median
    print(f"{shape}: to learn {slower:.2f}x the time to race, Triton {beside:.2f}x")

# %% [markdown]
# The one to race is level with Triton's: both read the row once and are near copy bandwidth. The one to learn from reads
# it twice.
#
# ### nvcc and a Makefile
#
# `cuda_kernel` compiles with NVRTC, the compiler as a library. A C++ project calls `nvcc`, and writes into a Makefile
# what is typed:

# %%
program_source = r"""
int main() {
  const int rows = 1000, columns = 4096;
  float* x;
  if (cudaError_t error = cudaMallocManaged(&x, 2 * sizeof(float) * rows * columns)) {
    printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  float* y = x + rows * columns;
  for (int i = 0; i < rows * columns; i++) x[i] = i % 7 - 3;
  l2_to_race<256><<<rows, 256>>>((float4*)x, (float4*)y, columns, 1e-12f);
  cudaDeviceSynchronize();
  double squares = 0;
  for (int c = 0; c < columns; c++) squares += double(y[c]) * y[c];
  printf("the first row's norm is now %.5f\n", sqrt(squares));
}"""
makefile = """
l2_norm: l2_norm.o
\tnvcc -arch=sm_90 l2_norm.o -o l2_norm
l2_norm.o: l2_norm.cu
\tnvcc -arch=sm_90 -O3 -Xptxas=-v -c l2_norm.cu -o l2_norm.o
"""

# %%
import tempfile
from pathlib import Path

from helpers.instruments.cuda.toolkit import in_toolkit

project = Path(tempfile.mkdtemp())
headers = "#include <cmath>\n#include <cstdio>\n"
(project / "l2_norm.cu").write_text(headers + reduce_source + l2_to_race_source + program_source)
(project / "Makefile").write_text(makefile)
print(in_toolkit("make", project))
same = raced.resources.registers
print(f"the same kernel by NVRTC, as cuda_kernel compiles it: {same} registers")

# %% [markdown]
# `-Xptxas=-v` hands `-v` to ptxas, NVIDIA's assembler. Its lines are those that `cuda_kernel(...).log` keeps: registers,
# spills, barriers, shared memory, per kernel and GPU. (The mangled name has the template's argument in it: `c++filt`
# prints it as C++.) `make` runs the second command again only if `l2_norm.cu` has changed. And `nvcc` itself
# compiles nothing; with `--dryrun` it lists the programs that it calls:

# %% tags=["hide-input"]
steps = in_toolkit("nvcc -arch=sm_90 --dryrun -c l2_norm.cu -o l2_norm.o", project)
called = re.findall(r"^#\$ (?:\S*/)?\"?(?:\$CICC_PATH/)?([a-z+]+)\"? +-", steps, re.MULTILINE)
print(" > ".join(called))

# %% [markdown]
# `gcc -E` preprocesses; `cudafe++` splits the file into the host's part and the GPU's; `cicc` compiles the GPU's part to
# PTX and `ptxas` that to machine code; `fatbinary` packs both into the object file that gcc compiles from the host's part. The
# program needs a GPU to run. Without one, its error check speaks:

# %% tags=["nbval-ignore-output"]
print(in_toolkit("./l2_norm", project))

# %% [markdown]
# ### load_inline: the kernel as a PyTorch extension
#
# `torch.utils.cpp_extension.load_inline` takes the same C++ as strings, writes a binding for Python, has `nvcc` and the
# C++ compiler build a library, and imports it. You write the function between PyTorch and the kernel:

# %%
host_source = """
torch::Tensor l2_norm(torch::Tensor x, double eps, int64_t stream) {
  auto y = torch::empty_like(x);
  l2_to_race<256><<<x.size(0), 256, 0, (cudaStream_t)stream>>>(
      (const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), x.size(1), eps);
  return y;
}"""
declared = "torch::Tensor l2_norm(torch::Tensor x, double eps, int64_t stream);"


def build(folder):
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        name="l2_norm_inline",
        cpp_sources=declared,
        cuda_sources=reduce_source + l2_to_race_source + host_source,
        functions=["l2_norm"],
        build_directory=str(folder),
        extra_cuda_cflags=["-Xptxas=-v"],
    )


# %% [markdown]
# With a GPU the next cell builds and runs it. Without one PyTorch has no CUDA libraries to link against: the cell stops
# `load_inline` after it has written its files, and shows them (for `cuda.cu`, only the part above your code).

# %% tags=["hide-input", "nbval-ignore-output"]
from unittest.mock import patch

from torch.utils import cpp_extension

if runtime.has_gpu():
    extension = build(project)
    stream = torch.cuda.current_stream().cuda_stream
    found = extension.l2_norm(x, 1e-12, stream)
    print("right:", torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-7))
else:
    with patch.object(cpp_extension, "_jit_compile"):
        build(project)
for name in ("main.cpp", "cuda.cu"):
    text = (project / name).read_text().split("struct Sum")[0]
    print(f"--- {name}", text.strip(), sep="\n")

# %% tags=["hide-input"]
inline = h100.experiment("cuda_load_inline")
print(h100.label_of("cuda_load_inline"))
print(f"built in {inline['build seconds']:.0f} s, largest error {inline['largest error']:.1e}")
for clock, what in (("gpu", "the GPU's time, 32768 rows"), ("call", "a call, 64 rows")):
    both = (f"{way} {1e6 * time.median:.0f} us" for way, time in inline[clock].items())
    print(f"{what}: {', '.join(both)}")

# %% [markdown]
# The kernel is the same and so is its time on the GPU. A call through C++ is far cheaper than one of `cuda_kernel`; the
# build is the price, paid once per change of the source.
#
# ### Other languages for kernels
#
# - **CUTLASS**: NVIDIA's C++ templates for matmuls, built on *layouts*, functions from coordinates to memory offsets;
#   CuTe writes `(32,33):(33,1)` for the padded tile. **CuTe DSL** is the same in Python, compiled at run time. You
#   decide what each thread and warp does, as here, with layouts instead of index arithmetic.
# - **Gluon** comes with Triton and uses its compiler, but you write the layouts, the shared memory and the barriers. It
#   is for the kernel where Triton's own choice is the obstacle.
# - **cuTile** is NVIDIA's language of tiles in Python: as in Triton you write about blocks, not threads. An array is
#   loaded by the tile's index instead of by pointers and masks: `ct.load(a, index=(block,), shape=(1024,))`.
# - **Helion** is one level above Triton: PyTorch's own operators inside a loop over tiles. It generates many Triton
#   kernels, times them and keeps the fastest. add+GELU is `for tile in hl.tile(a.size(0)): y[tile] =
#   gelu(a[tile] + b[tile])`.
#
# From top to bottom: Helion, then Triton and cuTile, then Gluon and CuTe DSL, then CUDA C++, then PTX. Each level
# decides less for you. Going down does not by itself move fewer bytes: you decide what to fuse on all of them.
