# %% [markdown]
# # 14 CUDA C++: what Triton decided for you
#
# In Triton you worked on whole blocks: load one, add to it, store it. The compiler decided which thread handles which
# element, in what order, how threads combine partial sums, and where they wait. In CUDA C++, all of that is up to you.
# **How much of it do you have to write, what happens if you get it wrong, and is the compiler's version any worse than
# yours?**
#
# After this lesson you can
#
# - write a kernel in terms of threads, warps and blocks, and predict which sectors it fetches;
# - use `float4` loads, and explain when they help;
# - reduce a row with shuffles and shared memory, and spot a missing barrier;
# - avoid bank conflicts and local arrays that end up in memory;
# - compare your code with what Triton generated.
#
# About 70 minutes. You don't need a GPU: NVIDIA's compiler runs without one, and we execute the
# [PTX](../docs/glossary.md#ptx) it generates on the CPU and count every byte. You should have done [07
# Occupancy](07_occupancy.ipynb). The exercise is [14](../exercises/14_cuda_softmax.ipynb).

# %% tags=["hide-input"]
import math
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
# One call to `tl.sum` does all of this. In CUDA you write each step yourself. Press **Play**:

# %% tags=["hide-input"]
from helpers.figures import block_sum_animation

block_sum_animation()

# %% [markdown]
# ## The smallest kernel
#
# You write a CUDA kernel from the point of view of **one thread**, and the launch sets how many threads run it. Here
# that's `twice[4, 256]`, or `twice<<<4, 256>>>` in a C++ program: four thread blocks of 256 threads. Each thread
# computes its own index and handles that element. `y` is a plain C++ pointer, so nothing masks or checks your accesses.

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
# Four blocks of 256 give us 1024 threads, 24 more than we have elements. Without the `if`, those 24 read past the end
# of `x` and overwrite whatever comes after `y`. On a GPU you might not notice for years. Here you get an error right
# away:

# %%
careless = cuda_kernel(scale_source.replace("if (i < n) ", ""), "twice")
print(measure(careless[4, 256], numbers.clone(), doubled.clone(), 1000))

# %% [markdown]
# (If your C++ doesn't compile, you'll see the compiler's message with the offending line marked. `printf` works too.
# Here, the lines come out in thread order. On a GPU, they go to the process's stdout, which a notebook may not show.)
#
# ## Which thread reads which address
#
# The hardware doesn't run threads individually. It runs them in groups of 32 consecutive threads, called
# [warps](../docs/glossary.md#warp), and a thread's position within its warp is its `lane`. When a warp executes a load,
# that's one *request*, and memory serves it in [sectors](../docs/glossary.md#sector) of 32 bytes.
# <!-- given 32 bytes: NVIDIA Nsight Compute documentation, memory tables -->
#
# The explorer below shows a grid of four blocks of 64 threads, where thread `i` reads `x[i * stride]`.
#
# 1. Move from thread 31 to 32, then from 63 to 64. What changes each time?
# 2. Beyond what stride does the number of sectors stop growing?
# 3. At stride 1, what do the 32 threads of a warp read between them?

# %% tags=["hide-input"]
from helpers.figures import ThreadsExplorer

explorer = ThreadsExplorer(stride=1, thread=35)
explorer

# %% [markdown]
# <details><summary>What you should see</summary>1. Going from 31 to 32 takes you to the next warp, and from 63 to 64 to
# the next block. 2. Stride 8: a sector holds eight elements, so at that stride every lane needs a sector of its own. 3.
# One contiguous chunk of memory, so we say the request is <i>coalesced</i>.</details>
#
# Here's what strides cost on a GPU. A Triton kernel sums $2^{24}$ elements, reading each of them once, further and
# further apart:

# %% tags=["hide-input"]
strides = h200.experiment("strides")
print(h200.label_of("strides"))
times = (f"stride {each}: {1e6 * strides[each].median:.0f} us" for each in (1, 2, 4, 8, 16, 32))
print(", ".join(times))

# %% [markdown]
# Up to stride 8, the time grows almost in proportion to the number of sectors. Past that, the sector count is flat, but
# from 8 to 16 the time doubles again. Lesson 15 shows why, in a hardware counter. (Stride 32 costs another fifth. We
# didn't find out why.)
#
# Now let's meter a kernel. **If each thread takes two neighbours (thread `i` takes `x[2i]`, then `x[2i + 1]`), how many
# sectors does one request fetch?**

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
    "Every byte does get used eventually, but each sector is requested twice: once for x[2i], "
    "again for x[2i + 1]. L1 may serve the second request, but it still has to look up all eight "
    "sectors again.",
)

# %% [markdown]
# So in CUDA C++ you want adjacent *lanes* to access adjacent elements, even if each thread's own elements are then far
# apart, as in `apart`. In Triton, the compiler took care of this when it laid `tl.arange` out over the lanes.
#
# ## add+GELU with float4
#
# A `float4` packs four floats, and a single instruction can load it. The scalar and the vector kernel differ only in
# their type, so one template covers both.

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
# Take $2^{14}$ elements in blocks of 256. The `float` version makes 1536 requests. **How many does `float4` make?**
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
requests.compare(
    made["float4"],
    "A quarter of the requests, but each one now fetches 16 sectors instead of 4. The bytes and "
    "the sectors are the same: you save instructions, not traffic.",
)

# %% [markdown]
# **Claim: "vectorised loads bring another 1.2 to 1.3 times."** It's about a fused add+GELU on a million fp32 numbers,
# on an unnamed GPU. Here's an H200, at that size and at a hundred million:

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
print("\nVerdict: fails as a rule; the gain is smaller at a million, except in the smallest")
print("blocks, and larger at 100 million.")
closest = four_ways[large][256]["one number"].median / four_ways[large][256]["float4"].median
print(f"At 100 million, blocks of 256 come close to the claim, with {closest:.2f}x.")
print("A likely reason for the gain is bytes in flight per SM (lesson 07's Little's law): a thread")
print("that loads one element of each input has few, and its block ends right after.")
print("We didn't check with a counter. It isn't theoretical occupancy:")
full = {ways["float"].resources_for(threads).occupancy().fraction for threads in four_ways[large]}
print(f"at all four block sizes it is {', '.join(f'{each:.0%}' for each in full)}.")

# %% [markdown]
# ## A block that works together: LayerNorm
#
# LayerNorm needs sums over a whole row, but each thread only has its own elements. So we add them up in two steps:
#
# 1. Within a warp, `__shfl_xor_sync(mask, v, far)` gives each lane the `v` of the lane whose number differs in a
#    single bit. After five of these [shuffles](../docs/glossary.md#shuffle) (16, 8, 4, 2, 1), every lane has the sum
#    over all 32, without touching memory.
# 2. Across the warps of a block, we use [shared memory](../docs/glossary.md#shared-memory). Each warp stores its sum
#    there, all threads wait at a [barrier](../docs/glossary.md#barrier), `__syncthreads()`, and then every thread reads
#    all of the sums.
#
# Start with the first step. Each of these two warps should store the sum of its 32 elements. **Fix the loop.** (This
# cell is CUDA C++, so edit the text between the quotes.)

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
# <details><summary>Answer</summary><code>for (int far = 16; far > 0; far /= 2)</code>: the loop skipped the last
# exchange, between direct neighbours, so lane 0 only summed the even elements.</details>
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
# Here are both steps in one function, which works for any reduction operator:

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
# This is our first LayerNorm, with one block per row:

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
# **How many bytes per element does it request?** All rows share the weight and bias, but each block reads them.

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
    "That's six reads and writes where two would do. x alone is read three times. (The caches "
    "may serve some of them.)",
)

# %% [markdown]
# Step through it on a row of 64, which takes two warps with five shuffles for each of the two sums, and shared memory
# to combine them. The first half of the row is all 1s and the second half all 3s, so until the barrier, each warp only
# knows the sum of its own half.

# %% tags=["hide-input"]
few = torch.ones(64, device=device)
few[32:] = 3
watch(first[1, 64], few, torch.ones_like(few), torch.zeros_like(few), torch.empty_like(few), 64)

# %% [markdown]
# Triton kept the row in registers on its own. In CUDA C++ you have to do that yourself, with a local array:
# `float v[4]` holds four elements per thread.

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
# The minimum is 8. The rest is weight and bias, which every block reads again, so we rely on the caches. (Note the `if`
# in the second loop. Without it, each padding element would count as `-mean`, which is the bug from lesson 05.)
#
# ### Registers or local memory?
#
# Registers don't have addresses, so the compiler can only keep `v[k]` in one if it knows `k` at compile time. That
# means it has to be able to unroll the loop. Let's see what happens if the loop runs to the end of the row instead,
# when the row's length is only known at launch:

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
# The results are correct and nothing was spilled, but the row ended up in **local memory**, which lives in DRAM and is
# cached in L1 and L2. `spill_bytes` won't show you that, so look at `stack`.
#
# ## A missing barrier
#
# This block of 64 threads reverses a row through shared memory, but a line is missing. The meter has a **sanitizer**
# for shared memory, which tracks which thread touched which byte, and the barriers in between. **Add the line.**

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
# <details><summary>Answer</summary><code>__syncthreads();</code>: each thread reads an element that was stored by a
# thread in the other warp. <code>__syncwarp()</code> isn't enough, because it only synchronises the threads of one warp.</details>
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
# `of_block` has two barriers. The second one looks redundant, because `of_block` just returns after it. Let's remove
# it:

# %%
barrier = "  __syncthreads();  // all have read: the next reduction may overwrite\n"
racing = cuda_kernel(reduce_source.replace(barrier, "") + kept_source, "layer_norm<4>")

# %% tags=["hide-input"]
found = measure(layer_norm, racing, rows)
wrong = ~torch.isclose(found.result.double(), exact, atol=1e-2).all(dim=1)
print(f"{int(wrong.sum())} of {len(rows)} rows wrong")
print(found)

# %% [markdown]
# Every value is correct, but only because the warps always run in the same order here. On a GPU, a result may be wrong
# as soon as one warp falls far enough behind: the second reduction overwrites `of_warps` while the slow warp is still
# reading the first reduction's sums. You won't see that in the output until it actually happens. The sanitizer doesn't
# have to wait: it reports any two threads that touch the same byte with no barrier in between if at least one of them
# writes. (The line it reports is the call to `of_block`.)
#
# If only some of the threads reach a barrier, the block may deadlock. The meter also catches that:

# %%
stuck_source = """
__global__ void stuck(float* y) {
  if (threadIdx.x < 100) __syncthreads();
  y[threadIdx.x] = 1;
}"""
stuck = cuda_kernel(stuck_source, "stuck")
print(measure(stuck[1, 256], torch.empty(256, device=device)).hazards[0])

# %% [markdown]
# In Triton, `tl.sum` generates the shuffles, the shared memory and the barriers for you, so you can't get these wrong.
#
# ## Bank conflicts and padding
#
# Shared memory is split into 32 **banks**, each 4 bytes wide. Word 0 is in bank 0, word 31 in bank 31, and word 32
# wraps around to bank 0. Each bank serves one word per clock, so if several lanes need different words from the same
# bank, the request takes several [wavefronts](../docs/glossary.md#wavefront). That's a [bank
# conflict](../docs/glossary.md#bank-conflict).
# <!-- given 4 bytes: CUDA C++ Programming Guide, shared memory -->
#
# 1. How many wavefronts does a warp need to read a column of a tile with 32 words per row?
# 2. Which widths work best for reading columns? Do they slow down the rows?
# 3. What happens if all lanes read the same word?

# %% tags=["hide-input"]
from helpers.figures import BanksExplorer

banks = BanksExplorer(width=32)
banks

# %% [markdown]
# <details><summary>What you should see</summary>1. 32, because the whole column is in a single bank. 2. Any odd width
# works, and 33 is the smallest one that fits the tile. Rows take one wavefront whatever the width. 3. One wavefront,
# because the word is broadcast to every lane that asked for it.</details>
#
# A transpose does both: it writes the tile by rows and reads it by columns. (Otherwise, its global stores wouldn't be
# coalesced.)

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
# For a 64 x 64 matrix, that's 128 row stores to shared memory and 128 column loads from it. **How many wavefronts does
# that take with 32 words per row?**

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
    f"One word of padding per row removes the conflicts. On an H200 they cost {slower:.2f}x, far "
    "less than 32x: only the column loads conflict, and another block on the SM can probably keep "
    "loading meanwhile. (We didn't measure that, nor why even the padded version is slower than "
    "a copy.)",
)

# %% [markdown]
# ## CUDA C++ and Triton side by side
#
# Let's compare `add_gelu<float4>` with the course's Triton kernel for add+GELU, run with 256 threads per block and four
# elements per thread:

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
# The two are nearly identical. Triton worked out on its own that each group of four elements is contiguous and aligned
# to 16 bytes, which is what you promised the compiler by writing `float4`. Your `if` turned into a branch (`bra`),
# while Triton put a **predicate** in front of each load and store: `@%p1` means "execute this if `%p1` is true".
# <!-- given 16 bytes: a float4 -->
#
# Next, a row reduction, where the threads have to cooperate:


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
# There isn't a barrier in this source. Each `tl.sum` compiles to shuffles within each warp, and then every warp stores
# its sum to shared memory. One warp adds those up with more shuffles and stores the total, which all threads read. Both
# sums reuse the same shared memory. **How many barriers are in the machine code?**

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
    "Two per sum, before each of its two reads, and one between the sums, because the second sum "
    "mustn't overwrite shared memory that a slow warp is still reading. Ours has the same guard, "
    "inside of_block.",
)

# %% [markdown]
# Both versions follow the same plan. Triton also picked wide loads automatically. We'd have to write those with
# `float4`, and add a second kernel for rows that aren't a multiple of four. With 1000 columns, though, Triton falls
# back to narrow loads, because it only checks whether `columns` is divisible by 16. You know that 1000 is a multiple of
# four, so `float4` would work. With narrow loads, Triton even moves the row through shared memory to redistribute its
# elements across threads. Here's what it does for you:
#
# | you in CUDA C++ | Triton |
# |---|---|
# | `blockIdx.x * blockDim.x + threadIdx.x` | `tl.arange`, laid out over lanes so that requests are coalesced |
# | `float4`, and your promise that the pointer is aligned | inferred from the pointer's divisibility by 16 |
# | `if (c < columns)`, and the padding value | `mask=` and `other=`: still yours |
# | shuffles, shared memory, `__syncthreads()` | `tl.sum`, `tl.max` |
# | an array in registers, its loop unrolled | a block of constant size |
# | `tile[32][33]` | its own shared-memory layout, with padding or a *swizzle* (a row's words in another order) |
# | `__launch_bounds__`, `__maxnreg__` | `num_warps`, `maxnreg` |
#
# In Triton you can't choose which thread holds which element, or give particular warps particular jobs. For some of
# this it does offer switches and lets the compiler work out the details: warp specialisation (`tl.range(...,
# warp_specialize=True)`), thread block *clusters* (`num_ctas`) and inline PTX (`tl.inline_asm_elementwise`).
#
# ## Your predictions vs the measurements

# %% tags=["hide-input"]
predictions()

# %% [markdown]
# ## Test yourself
#
# 1. A kernel passes every test, but the sanitizer reports a race. Which do you believe?
# <details><summary>Answer</summary>The sanitizer. Your tests only exercised one of the many orders in which the warps
# can run.</details>
#
# 2. What happens if you use `float4` on a tensor that starts at `x[1]`?
# <details><summary>Answer</summary>The address isn't a multiple of 16 bytes, so the kernel fails with "misaligned
# address". You'll see the error at the next call that synchronises with the GPU. Triton would have checked the
# pointer's alignment and compiled narrow loads instead.</details>
# <!-- given 16 bytes: a float4 -->
#
# 3. Why is `__syncthreads()` inside `if (i < n)` a bug, and when would you notice?
# <details><summary>Answer</summary>If <code>n</code> isn't a multiple of the block size, some threads in the last block never
# reach the barrier. That's undefined behaviour: it might hang, give wrong results, or happen to work for years. The
# sanitizer reports it right away.</details>
#
# 4. `spill_bytes` is 0 but `stack` is 64. What happened?
# <details><summary>Answer</summary>The kernel indexes a local array with something the compiler can't resolve at
# compile time, so the array went to local memory even though there were enough registers.</details>
#
# 5. A block of 512 threads reduces a row with the scheme above. How many of the 32 words of `of_warps` does it use?
#    Replace the dots with your answer.

# %%
answer = ...
self_test(answer, 512 / 32, "one word per warp")

# %% [markdown]
# 6. How many wavefronts does it take for a warp to read `tile[lane][k]` from an fp32 `tile[32][36]`?

# %%
answer = ...
self_test(answer, 4, "36 lane mod 32 takes every fourth bank: eight of them, four lanes each")

# %% [markdown]
# ## Now you
#
# In [exercise 14](../exercises/14_cuda_softmax.ipynb) you'll write your own softmax, for rows of any width. After that,
# [lesson 15](15_profilers_capstone.ipynb) covers profilers, and takes a whole transformer block from profile to
# speedup.

# %% [markdown]
# ## Going further
#
# ### Capping registers: launch bounds and maxnreg
#
# Suppose we load eight `float4` from each input before using any of them. That alone takes 64 registers. With
# `__launch_bounds__(256, 8)` you promise never to launch more than 256 threads per block, and ask for eight blocks to
# fit on an SM. `__maxnreg__(24)` caps the register count directly. Either way, the caps cause spills:
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
# With fewer than 64 registers, you can't load everything up front, no matter how you write the source. The last two
# lines are printed by **ptxas**, NVIDIA's assembler. It's also what moved some of the loads below the first sums.
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
print(f"the slowest is {worst:.2f}x slower than the one without spills")

# %% [markdown]
# **Verdict: fails for a kernel; the worst of these isn't even three times slower.** (For one access that goes all the
# way to DRAM it may be true: lesson 07.) But none of the caps made it faster either. 50 % occupancy was already enough,
# because eight `float4` per thread keep plenty of bytes in flight. And each spill adds a store and a load. The version
# above with one `float4` per thread is as fast as the one with eight.
#
# **Claim: "fusing add and GELU takes a kernel from 24 registers to 32."** We don't have the kernel it's about, so
# here's ours, built with this compiler:

# %%
apart_source = add_gelu_source.replace("gelu(a[i] + b[i])", "{}")
for name, body in (("add", "a[i] + b[i]"), ("GELU", "gelu(a[i])"), ("both", "gelu(a[i] + b[i])")):
    kernel = cuda_kernel(apart_source.replace("{}", body, 1), "add_gelu<float>", device="H200")
    print(f"{name:4} {kernel.resources.registers} registers")

# %% [markdown]
# **Verdict: fails here; fusing took no more registers than GELU alone.** Once you have the sum, you don't need its
# operands any more, so their registers are free again.
#
# ### Softmax with a template for its input
#
# You can pass a function as a template parameter, and the compiler generates a separate kernel for each one, with the
# function inlined. That's how you fuse in CUDA C++, much as with `tl.constexpr` in Triton. (Exercise 14 asks for a
# softmax of any width, so try that first.)

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
# You can't reach every instruction from C++, but with `asm` you can insert one by hand: `"=f"(y)` declares a register
# that it writes, and `"f"(x)` one that it reads. A GELU built on `tanh.approx` needs only one special-function
# instruction (`MUFU.TANH` in machine code), while the sigmoid takes two, an exponential and a reciprocal:

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
# The result is only *approximate*. The documented relative error is $2^{-11}$, or about three digits, so it's roughly
# as precise as fp16 and nowhere near fp32. And that's just the error in `t`: for large negative inputs, `1 + t`
# cancels, and the error in `t` can be larger than what's left. (The check above is absolute, so it can't show that. And
# our executor computes these instructions in double precision and then rounds, so they look better here than on a GPU.)
#
# ### L2 norm, in a teaching version and a fast one
#
# L2 normalisation divides each row by the square root of its sum of squares. Our first version spells out every step.
# Each thread sums the squares of its own elements, and then we combine those sums in shared memory as a **tree**: half
# of the threads add in the other half's sums, then half of those do the same, until there's only one sum left.

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
# The second version is built for speed. It uses `float4`, keeps the row in registers, does shuffles before going to
# shared memory, and divides once per thread instead of once per element. The block size is a template parameter, so the
# compiler knows it.

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
for name, kernel in (("teaching version", learned), ("fast version", raced)):
    found = measure(kernel[16, 256], x, y, 4096, 1e-12)
    right = torch.allclose(y.double(), normalised, rtol=1e-5, atol=1e-7)
    bar_count = kernel.resources.instructions["BAR"]
    per_element = f"{found.bytes_total / x.numel():g} B"
    rows_of.append((name, right, per_element, found.shared_requests, bar_count, len(found.hazards)))
columns = ("", "right", "per element", "shared memory requests", "barriers in the code", "races")
table(columns, rows_of)

# %% [markdown]
# The first version reads each row twice. (The second read may hit in L1 or L2, in which case the row only comes from
# DRAM once.) It makes fewer shared-memory requests, because in the fast version every warp reads all eight sums. But it
# waits at nine barriers per row, while the fast version waits at two. Here's how both compare with PyTorch and the
# course's Triton kernel on an H100:

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
    share = 8 * math.prod(map(int, shape.split(" x "))) / h100.copy_bandwidth
    share /= taken["to race"].median
    print(f"{shape}: fast version 1x ({share:.0%} of copy bandwidth), teaching", end=" ")
    print(f"version {slower:.2f}x, Triton {beside:.2f}x")

# %% [markdown]
# The fast version ties with Triton's: both read each row once and run close to copy bandwidth. The teaching version
# reads it twice.
#
# ### nvcc and a Makefile
#
# `cuda_kernel` compiles with NVRTC, NVIDIA's compiler in library form. In a C++ project you'd call `nvcc` instead, and
# put the commands in a Makefile:

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
# `-Xptxas=-v` passes `-v` to ptxas, NVIDIA's assembler. It prints the same lines that `cuda_kernel(...).log` keeps:
# registers, spills, barriers and shared memory for each kernel and GPU. (It counts the hardware's numbered barriers,
# not instructions: all your `__syncthreads()` together use one. The mangled name includes the template argument, and
# `c++filt` turns it back into C++.) `make` only recompiles if `l2_norm.cu` has changed. `nvcc` doesn't compile anything
# itself, and with `--dryrun` you can see which programs it calls:

# %% tags=["hide-input"]
steps = in_toolkit("nvcc -arch=sm_90 --dryrun -c l2_norm.cu -o l2_norm.o", project)
called = re.findall(r"^#\$ (?:\S*/)?\"?(?:\$CICC_PATH/)?([a-z+]+)\"? +-", steps, re.MULTILINE)
print(" > ".join(called))

# %% [markdown]
# `gcc -E` preprocesses the source, and `cudafe++` splits it into host code and GPU code. `cicc` compiles the GPU code
# to PTX, and `ptxas` assembles that into machine code. `fatbinary` bundles the two, and gcc embeds the bundle in the
# object file when it compiles the host code. You need a GPU to run the program. Without one, you'll see its error
# message:

# %% tags=["nbval-ignore-output"]
print(in_toolkit("./l2_norm", project))

# %% [markdown]
# ### load_inline: the kernel as a PyTorch extension
#
# `torch.utils.cpp_extension.load_inline` takes the same C++ as strings, generates the Python binding, builds a library
# with `nvcc` and the C++ compiler, and imports it. You only write the function that connects PyTorch to the kernel:

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
# If you have a GPU, the next cell builds and runs it. Without one, PyTorch has no CUDA libraries to link against, so
# the cell stops `load_inline` after it has written its files and shows you those (for `cuda.cu`, only the part above
# your code).

# %% tags=["hide-input", "nbval-ignore-output"]
from unittest.mock import patch

from torch.utils import cpp_extension

if runtime.has_gpu():
    extension = build(project)
    stream = torch.cuda.current_stream().cuda_stream
    found = extension.l2_norm(x, 1e-12, stream)
    print("right:", torch.allclose(found.double(), normalised, rtol=1e-5, atol=1e-7))
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
# It's the same kernel, so the GPU time is the same. But a call is much cheaper through C++ than through `cuda_kernel`.
# In exchange, you pay for a build every time you change the source.
#
# ### Other languages for kernels
#
# - **CUTLASS** is NVIDIA's library of C++ templates for matmuls. It's built on *layouts*, which are functions from
#   coordinates to memory offsets: in CuTe, the padded tile is written `(32,33):(33,1)`. **CuTe DSL** brings the same
#   thing to Python, compiled at run time. You still decide what each thread and warp does, but with layouts instead of
#   index arithmetic.
# - **Gluon** ships with Triton and uses its compiler, but you write the layouts, the shared memory and the barriers
#   yourself. Use it for the kernels where Triton's own choices get in your way.
# - **cuTile** is NVIDIA's tile language for Python. As in Triton, you think in blocks rather than threads, but you load
#   a tile of an array by its index instead of using pointers and masks: `ct.load(a, index=(block,), shape=(1024,))`.
# - **Helion** is one level above Triton. You write PyTorch operators inside a loop over tiles, and Helion generates
#   many Triton kernels from that, times them and keeps the fastest. add+GELU is `for tile in hl.tile(a.size(0)):
#   y[tile] = gelu(a[tile] + b[tile])`.
#
# From highest level to lowest, that's Helion, then Triton and cuTile, then Gluon and CuTe DSL, then CUDA C++, then
# PTX. The lower you go, the more you decide yourself. But going lower doesn't move fewer bytes by itself, and at
# every level you still decide what to fuse.
