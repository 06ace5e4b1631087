# %% [markdown]
# # Exercise 14: softmax in CUDA C++ [20 points]
#
# Write a softmax with one block per row, for rows of any width, in a single launch. Keep the row in registers, and
# reduce with shuffles within a warp and shared memory between warps. About 60 minutes. Lesson 14 has all the pieces,
# and your job is to put them together. You don't need a GPU: we compile your code with NVIDIA's compiler and execute it
# here, under a sanitizer.
#
# **The formula**, for each row $x$, with $m$ its maximum:
#
# $$y_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}$$
#
# **The picture**, for a block of two warps and a row of 200, four elements per load:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("14")

# %%
import math  # for your answer

import torch

from helpers.instruments import cuda_kernel, measure
from helpers.learning import (
    Hints,
    check_cuda_code,
    check_cuda_memory_safety,
    check_cuda_rows,
    check_cuda_traffic,
)


def reference(x):
    return torch.softmax(x, dim=-1)


# %% [markdown]
# Your function receives the number of columns, from 1 to 8192. It returns the source of the program, the name of the
# kernel in it (with its template arguments, if it has any) and the number of threads per block, which must be a whole
# number of warps. The kernel's parameters are `(const float* x, float* y, int columns)`, and we launch it with one
# block per row. If `columns` is a multiple of four, every row is aligned to 16 bytes, and your loads and stores must be
# that wide. There may be more than 2^31 elements. As in PyTorch, a row's result is all NaN if the row contains NaN or
# +infinity, or nothing but -infinity.
# <!-- given 16 bytes: what the check asks for -->
#
# **What your answer may use:** its argument, `math` and plain Python, but no classes, and no other name from this
# notebook. `fusion check` and the grader reject such a line and report it. (In an f-string you'd have to double all of
# C++'s braces, so template arguments are easier.)


# %% grade_id="softmax-cuda"
def softmax_cuda(columns):
    """{"source": CUDA C++, "kernel": its name, "threads": per block} for rows of that many
    columns."""
    # About 40 lines, nearly all of them C++.
    # BEGIN SOLUTION
    source = """
struct Sum { __device__ float operator()(float a, float b) { return a + b; } };
struct Max { __device__ float operator()(float a, float b) { return fmaxf(a, b); } };

template <typename Op> __device__ float of_block(float v, float* of_warps) {
  Op op;
  for (int far = 16; far > 0; far /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, far));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();  // every warp has left its own
  v = of_warps[0];
  for (int warp = 1; warp < blockDim.x / 32; warp++) v = op(v, of_warps[warp]);
  __syncthreads();  // all have read: the next reduction may write
  return v;
}

// W numbers that are loaded at once.
template <int W> struct alignas(4 * W) Numbers { float of[W]; };

template <int W, int EACH> __global__ void softmax(const float* x, float* y, int columns) {
  __shared__ float of_warps[32];
  long long start = (long long)blockIdx.x * columns;  // past 2^31 in large tensors
  const Numbers<W>* from = (const Numbers<W>*)(x + start);
  Numbers<W>* to = (Numbers<W>*)(y + start);
  Numbers<W> v[EACH];
  float peak = -INFINITY, sum = 0;
  // The loops end where the compiler knows: v stays in registers.
  for (int k = 0; k < EACH; k++) {
    int i = threadIdx.x + k * blockDim.x;
    for (int w = 0; w < W; w++) v[k].of[w] = -INFINITY;  // no maximum, and nothing in the sum
    if (i < columns / W) v[k] = from[i];
    for (int w = 0; w < W; w++) peak = fmaxf(peak, v[k].of[w]);
  }
  peak = of_block<Max>(peak, of_warps);
  for (int k = 0; k < EACH; k++)
    for (int w = 0; w < W; w++) sum += v[k].of[w] = __expf(v[k].of[w] - peak);
  sum = of_block<Sum>(sum, of_warps);
  for (int k = 0; k < EACH; k++) {
    int i = threadIdx.x + k * blockDim.x;
    for (int w = 0; w < W; w++) v[k].of[w] /= sum;
    if (i < columns / W) to[i] = v[k];
  }
}"""
    threads = 256
    # If the row length isn't a multiple of four, not every row starts at a multiple of 16 bytes.
    width = 4 if columns % 4 == 0 else 1
    each = -(-columns // (width * threads))
    return {"source": source, "kernel": f"softmax<{width}, {each}>", "threads": threads}
    # END SOLUTION


# %% [markdown]
# Try your kernel with the meter and the compiler:

# %% tags=["nbval-ignore-output"]
try:
    made = softmax_cuda(1000)
    kernel = cuda_kernel(made["source"], made["kernel"])
    x, y = torch.randn(3, 1000), torch.empty(3, 1000)
    print(measure(kernel[3, made["threads"]], x, y, 1000))
    print(kernel[3, made["threads"]].resources)
except NotImplementedError:
    print("nothing to try yet")
except Exception as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# ## Checks
#
# Run these in order, as often as you like. They're worth 17 of the 20 points; the other 3 are for one hidden check with
# other inputs, which only runs during grading. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the
# first check that fails.

# %% tags=["hide-input"]
OF_THREADS = (
    "The message names the thread and the byte. Which of its indices is past the row's end?",
    "Put `if (i < columns)` around each load and store, where i is the element's index in the row.",
)
OF_ALIGNMENT = (
    "A row of 1001 floats starts at a multiple of 4004 bytes. Which loads may start there?",
    "A float4 must start at a multiple of 16 bytes, which all rows do only if columns % 4 == 0.",
)
# For every check: each of them compiles the source, runs it and compares the values.
OF_ALL = {
    "^error: ": (
        "This is an exception in your Python function. Which value on that line is None, or "
        "undefined?",
    ),
    "the compiler names|does not compile": (
        "The compiler's message quotes the line and the column, counted from the first line of "
        "your string. Is a name or a type wrong?",
    ),
    "out-of-bounds|end of the row": OF_THREADS,
    "misaligned": OF_ALIGNMENT,
    "where the NaN comes from": (
        "NaN comes from 0 / 0, inf / inf, or -inf - -inf. Which maximum does your kernel get if "
        "every value of a row is below -200? And a thread without an element?",
        "Start the maximum at -INFINITY, not at 0. A thread without an element adds 0 to the sum.",
    ),
}
hint = Hints(
    values={
        **OF_ALL,
        "": (
            "Which threads have no element of the row? What do they contribute to the maximum, "
            "and to the sum?",
            "Minus infinity is never the maximum, and its exponential is 0. And what is the "
            "exponential of 200?",
        ),
    },
    sound={
        **{
            pattern: OF_ALL[pattern]
            for pattern in ("^error: ", "the compiler names|does not compile")
        },
        "race|uninitialised": (
            "The message quotes the line. Which two threads touch that word, and which barrier is "
            "between them?",
            "Two reductions that use the same words of shared memory: have all threads read the "
            "first's before the second writes there? If not, a __syncthreads() is missing.",
        ),
        "mask|shuffle": (
            "Every lane that the mask names must reach the shuffle, even those of threads without "
            "elements. Is yours in a branch, or in a loop that some threads leave earlier?",
        ),
        r"2\^31|rows from": (
            "blockIdx.x and columns have 32 bits, and so has their product. How large can it get?",
            "Row 2^20 of 8192 columns starts at element 2^33: make one of them long long first.",
        ),
        **OF_ALL,
        "": (
            "The message quotes the line. What does each thread do there, and in which order?",
            "All threads must reach a __syncthreads(), and all lanes in the mask must shuffle.",
        ),
    },
    traffic={
        **OF_ALL,
        "bank conflicts": (
            "Each warp stores one number. Which lane stores it, and where?",
            "All lanes may read the same word, or neighbouring lanes neighbouring words.",
        ),
        "": (
            "Where is the row kept between one loop over it and the next?",
            "Keep it in registers: an array `float v[EACH]` for each thread.",
        ),
    },
    code={
        **OF_ALL,
        "spilled": (
            "How many floats does a thread hold, and does the compiler know every index?",
            "`v[k]` is a register only if the compiler knows k: the loop's end must be a "
            "constant, a template argument. More threads hold fewer floats each.",
        ),
        "": (
            "How many bytes does each lane load at once?",
            "Load four floats at once: `float4`, or a struct of `float of[4]` with `alignas(16)`, "
            "read as a whole.",
        ),
    },
)
hint

# %% [markdown]
# **Values**: rows that are shorter than the block, exactly as long, or of odd length; large values; and a row far below
# zero.

# %% grade_id="values" points=5
check_cuda_rows(softmax_cuda, reference, [100, 1024, 1001], scales=(1, 60), name="values")

# %% [markdown]
# **Memory safety**: the sanitizer finds nothing, even in row 2^20 with 8192 columns. (The check doesn't allocate the
# rows before it.)

# %% grade_id="sound" points=5
check_cuda_memory_safety(softmax_cuda, [100, 1024, 1001], name="sound")

# %% [markdown]
# **Traffic**: each row is read once and written once, without bank conflicts in shared memory.

# %% grade_id="traffic" points=3
check_cuda_traffic(softmax_cuda, [1001, 4096], name="traffic")

# %% [markdown]
# **Machine code**: the row is kept in registers, and loads are wide wherever alignment allows it.

# %% grade_id="code" points=4
check_cuda_code(softmax_cuda, [1024, 1001, 4096, 8191, 8192], name="code")

# %% grade_id="other-widths" points=3
# Grading tries other widths here.
# BEGIN HIDDEN TESTS
check_cuda_rows(
    softmax_cuda, reference, [1, 36, 2047, 8192], scales=(0.5, 100), name="other-widths"
)
# END HIDDEN TESTS

# %% [markdown]
# To grade the saved notebook from the command line, run `fusion check exercises/14_cuda_softmax.ipynb`.
