"""CUDA C++ compiled without a GPU: what it needs of one, and how its mistakes are told."""

import contextlib
import ctypes
import gc
import linecache
import sys

import numpy as np
import pytest
import torch

from helpers.instruments import CudaKernel, Resources, cuda_kernel, measure

ADD = """
__global__ void add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}
"""


@contextlib.contextmanager
def refused_in_one_line(error, said):
    with pytest.raises(error, match=said) as refused:
        yield
    assert "\n" not in str(refused.value)


def test_resources_are_those_that_ptxas_tells():
    kernel = cuda_kernel(ADD, "add", device="A100")
    assert isinstance(kernel.resources, Resources)
    assert f"Used {kernel.resources.registers} registers" in kernel.log
    assert (kernel.resources.spill_bytes, kernel.resources.shared_memory) == (0, 0)
    assert kernel.resources.instructions["LDG.32"] == 2
    assert ".target sm_80" in kernel.ptx
    assert "/" not in kernel.ptx[kernel.ptx.index(".file") :].split('"')[1], "a path of this machine"


def test_occupancy_is_that_of_the_block():
    launch = cuda_kernel(ADD, "add")[10, 256]
    assert launch.resources.num_warps == 8
    assert launch.resources.occupancy().blocks == 8


def test_what_a_launch_decides_is_named():
    source = """
    __global__ void reversed(float* x) {
      extern __shared__ float tile[];
      tile[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
    }
    __global__ void __cluster_dims__(2, 2) in_clusters(float* x) { x[threadIdx.x] = 1; }
    __global__ void __launch_bounds__(256) bounded(float* x) { x[threadIdx.x] = 1; }"""
    needs = cuda_kernel(source, "reversed").resources
    assert "0 B per block without extern __shared__, sized by a launch: occupancy may be lower\n" in repr(needs)
    assert "extern __shared__" not in repr(cuda_kernel(source, "reversed")[1, 256, 1024].resources)
    assert "extern __shared__" not in repr(cuda_kernel(source, "bounded").resources)
    clusters = cuda_kernel(source, "in_clusters").resources
    assert clusters.num_ctas == 4
    assert "of 4 blocks, which start together on SMs near each other" in repr(clusters)
    assert cuda_kernel(source, "bounded").resources.num_ctas == 1
    for threads in (0, 512, 2.5, True, None):
        with refused_in_one_line(ValueError, "bounded takes blocks of 1 to 256 threads, got"):
            cuda_kernel(source, "bounded").resources_for(threads)


def test_shared_memory_spills_and_registers_of_one_kernel_among_several():
    source = """
    __global__ void small(float* x) { x[threadIdx.x] = 1; }
    template <int N> __global__ void __launch_bounds__(128) large(float* x, int k) {
      __shared__ float tile[N];
      float local[64];
      for (int j = 0; j < 64; j++) local[j] = x[j] * j;
      tile[threadIdx.x] = local[k];
      __syncthreads();
      x[threadIdx.x] = tile[threadIdx.x ^ 1];
    }"""
    small, large = cuda_kernel(source, "small"), cuda_kernel(source, "large<256>")
    assert (small.resources.stack, small.resources.shared_memory) == (0, 0)
    assert (large.resources.stack, large.resources.shared_memory) == (256, 1024)
    assert large.largest_block == 128
    with pytest.raises(ValueError, match="__launch_bounds__"):
        large[1, 256](torch.zeros(64), 0)


def test_options_are_nvrtcs():
    source = "__global__ void k(float* x) { x[0] = expf(x[0]) / x[1]; }"
    assert "div.rn.f32" in cuda_kernel(source, "k").ptx
    assert "div.approx.ftz.f32" in cuda_kernel(source, "k", options={"use_fast_math": True}).ptx
    with pytest.raises(ValueError, match="ProgramOptions"):
        cuda_kernel(source, "k", options={"fast": True})


def test_headers_of_half_precision_and_cooperative_groups_are_there():
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    #include <cuda/std/limits>
    __global__ void k(__half* x, __nv_bfloat16* y) { y[0] = __float2bfloat16(__half2float(x[0])); }"""
    kernel = cuda_kernel(source, "k")
    assert [parameter.dtype for parameter in kernel.parameters] == [torch.float16, torch.bfloat16]


def test_error_is_nvrtcs_with_the_line_marked():
    with pytest.raises(ValueError, match='identifier "foo" is undefined') as failure:
        cuda_kernel("__global__ void k(float* a) {\n  a[0] = foo;\n  a[1] = 1;\n}\n", "k")
    message = str(failure.value)
    assert "k.cu(2): error" in message
    assert ">    2 |   a[0] = foo;" in message
    assert "     1 | __global__" in message


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "# /* */ include </etc/passwd>",
        '#inc\\\nlude "secret.h"',
        "%:include <../../secret.h>",
        "#define F </etc/passwd>\n#include F",
        '/* */ const char* s = "/*";\n#include "x" // */',
        '// #include /*\n#include "/etc/passwd"\n// */ <cuda_fp16.h>',
        '// # /*\n#include "/etc/passwd"\n// */ include <cuda_fp16.h>',
        '#define __THRUST_DEVICE_SYSTEM_VECTOR_HEADER "/etc/passwd"\n#include <thrust/universal_vector.h>',
        "#include <./thrust/universal_vector.h>",
        '#if __has_include("/etc/passwd")\n#endif',
        "#include <cub/../thrust/universal_vector.h>",
        "#include <cub/no_such_header.cuh>",
    ],
)
def test_no_file_but_nvidias_headers_is_included(text):
    with pytest.raises(ValueError, match="NVIDIA's own headers"):
        cuda_kernel(f"{text}\n{ADD}", "add")


def test_source_is_found_by_its_line():
    kernel = cuda_kernel(ADD, "add")
    assert linecache.getline(kernel.file, 4).strip() == "if (i < n) out[i] = x[i] + y[i];"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1,), r"add\(x, y, out, n\) takes 4 arguments, got 1"),
        ((torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4)), "n is a number"),
        ((torch.zeros(4), 3.0, torch.zeros(4), 4), "y is a pointer"),
        ((torch.zeros(4), torch.zeros(4).double(), torch.zeros(4), 4), "y points to torch.float32"),
        ((torch.zeros(4), torch.zeros(4), torch.zeros(4), 4.5), "whole number"),
        ((torch.zeros(4), torch.zeros(4), torch.zeros(4), "4"), "takes a number"),
    ],
)
def test_arguments_must_fit(arguments, said):
    with pytest.raises(TypeError, match=said):
        cuda_kernel(ADD, "add")[1, 32](*arguments)


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (1, 2048), (1, (32, 64)), ((1, 70000), 32), (1.0, 32)])
def test_grid_and_block_have_limits(grid, block):
    with pytest.raises(ValueError, match=r"a (grid|block)"):
        cuda_kernel(ADD, "add")[grid, block]


def test_too_much_shared_memory_is_refused():
    with pytest.raises(ValueError, match="232448"):
        cuda_kernel(ADD, "add")[1, 32, 240_000](torch.zeros(4), torch.zeros(4), torch.zeros(4), 4)


def test_a_device_without_cuda_or_too_old_is_refused():
    with pytest.raises(ValueError, match="NVRTC cannot compile for V100"):
        cuda_kernel(ADD, "add", device="V100")


def test_a_kernel_that_is_not_there():
    assert isinstance(cuda_kernel(ADD, "add"), CudaKernel)
    with pytest.raises(ValueError, match="sub does not compile"):
        cuda_kernel(ADD, "sub")


def test_a_compile_error_prints_nothing_when_it_is_collected(monkeypatch):
    """A program left to the garbage collector printed an exception of cuda-core's into the learner's cell."""

    def refused():
        try:
            cuda_kernel("__global__ void k(float* x) { x[0] = 1 }", "k")
        except ValueError as error:
            _kept = error  # whose frames hold this one

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: ignored.append(str(raised.exc_value)))
    refused()
    gc.collect()
    assert ignored == []


POINTERS = "__global__ void k(%s x, float* y) { y[threadIdx.x] = x[0][threadIdx.x] + x[1][threadIdx.x]; }"


@pytest.mark.parametrize("declared", ["float**", "const float* const*", "float* const* __restrict__"])
def test_an_array_of_pointers_is_a_list_of_tensors(declared):
    first, second, y = torch.randn(64), torch.randn(64), torch.empty(64)
    traffic = measure(cuda_kernel(POINTERS % declared, "k")[1, 64], [first, second], y)
    assert torch.equal(y, first + second)
    assert traffic.hazards == ()
    assert {name: moved.total for name, moved in traffic.by_tensor.items()} == {"x[0]": 256, "x[1]": 256, "y": 256}


def test_an_array_of_pointers_in_brackets_is_written_through():
    tensors = [torch.zeros(64), torch.ones(64)]
    source = "__global__ void k(float* x[], int n) { x[0][threadIdx.x] = x[1][threadIdx.x] * n; }"
    cuda_kernel(source, "k")[1, 64](tuple(tensors), 3)
    assert (tensors[0] == 3).all()
    short = [torch.zeros(64), torch.ones(32)]
    with pytest.raises(RuntimeError, match=r"out-of-bounds read: x\[1\], 1 past the last of its 32 elements"):
        cuda_kernel(source, "k")[1, 64](short, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(64), "x is an array of pointers: pass a list of tensors, got Tensor"),
        ([1, 2], "pass a list of tensors, got list"),
        ([torch.zeros(64), torch.zeros(64).double()], "holds pointers to torch.float32, got a tensor of torch.float64"),
    ],
)
def test_an_array_of_pointers_takes_nothing_else(given, said):
    with pytest.raises(TypeError, match=said):
        cuda_kernel(POINTERS % "float**", "k")[1, 64](given, torch.empty(64))
    with pytest.raises(TypeError, match="x is a pointer: pass a tensor, got list"):
        cuda_kernel(ADD, "add")[1, 32]([torch.zeros(4)], torch.zeros(4), torch.zeros(4), 4)


BY_VALUE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void half_scale(const float* x, float* y, __half a)
{ y[threadIdx.x] = x[threadIdx.x] * __half2float(a); }
extern "C" __global__ void bfloat_scale(const float* x, float* y, __nv_bfloat16 a)
{ y[threadIdx.x] = x[threadIdx.x] * __bfloat162float(a); }
extern "C" __global__ void whole(float* y, unsigned n) { y[threadIdx.x] = n; }
"""


@pytest.mark.parametrize(("name", "dtype"), [("half_scale", torch.float16), ("bfloat_scale", torch.bfloat16)])
@pytest.mark.parametrize("value", [2.5, 3, -1, 0.1, np.float16(2.5), np.int64(7), float("inf")])
def test_a_number_in_16_bits_is_the_one_that_was_passed(name, dtype, value):
    x, y = torch.arange(1, 9, dtype=torch.float32), torch.empty(8)
    cuda_kernel(BY_VALUE, name)[1, 8](x, y, value)
    assert torch.equal(y, x * torch.tensor(float(value), dtype=dtype).float())


STRUCT = """
struct Mixed { char tag; float table[4]; double shift; };
__device__ __noinline__ float of(Mixed m, int k) { return m.table[k]; }
__device__ __noinline__ float at(const Mixed& m, int k) { return m.table[k]; }
__global__ void k(float* y, %s m, int k) { y[threadIdx.x] = %s + m.shift + m.tag; }
"""
VECTORS = "__global__ void k(float4* y, float4 v, int2 n) { *y = make_float4(v.x, v.y, v.z, v.w * n.y); }"


class Mixed(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_int8), ("table", ctypes.c_float * 4), ("shift", ctypes.c_double))


MIXED = Mixed(3, (ctypes.c_float * 4)(1, 2, 4, 8), 0.5)
OF_NUMPY = np.dtype([("tag", "i1"), ("table", "f4", 4), ("shift", "f8")], align=True)
OF_MIXED = {"structure": MIXED, "numpy": np.array((3, [1, 2, 4, 8], 0.5), OF_NUMPY)[()], "bytes": bytes(MIXED)}


@pytest.mark.parametrize("given", OF_MIXED)
def test_a_struct_is_passed_by_value(given):
    y = torch.empty(8)
    traffic = measure(cuda_kernel(STRUCT % ("Mixed", "m.table[1]"), "k")[1, 8], y, OF_MIXED[given], 0)
    assert (y == 5.5).all()
    assert (traffic.bytes_total, traffic.hazards) == (32, ())


@pytest.mark.parametrize(
    ("declared", "value", "more"),
    [
        ("const Mixed", "m.table[(threadIdx.x + k) & 3]", 0),
        ("const __grid_constant__ Mixed", "(&m)->table[(threadIdx.x + k) & 3]", 0),
        ("const __grid_constant__ Mixed", "at(m, (threadIdx.x + k) & 3)", 0),
        ("Mixed", "of(m, (threadIdx.x + k) & 3)", 0),
        ("Mixed", "(m.table[(threadIdx.x + k) & 3] += 1)", 1),
    ],
)
def test_an_array_within_a_struct_is_indexed(declared, value, more):
    y = torch.empty(8)
    cuda_kernel(STRUCT % (declared, value), "k")[1, 8](y, MIXED, 1)
    assert y.tolist() == [each + 3.5 + more for each in (2, 4, 8, 1)] * 2


def test_vectors_are_passed_as_their_bytes():
    y = torch.empty(4)
    cuda_kernel(VECTORS, "k")[1, 1](y, np.float32([1, 2, 3, 4]).tobytes(), np.int32([0, 5]).tobytes())
    assert y.tolist() == [1, 2, 3, 20]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (1.0, "k: m is a struct of 32 bytes: pass a ctypes.Structure, a NumPy structured scalar or bytes, got"),
        (np.zeros(4), "NumPy structured scalar or bytes, got ndarray"),
        (b"1234", "k: m is a struct of 32 bytes, got one of 4$"),
        (np.zeros((), np.dtype([("tag", "i1")])), r"got one of 1; NumPy lays fields out as C\+\+ does with"),
    ],
)
def test_what_is_not_the_struct_is_refused_in_one_line(given, said):
    with refused_in_one_line(TypeError, said):
        cuda_kernel(STRUCT % ("Mixed", "m.table[1]"), "k")[1, 8](torch.empty(8), given, 0)


@pytest.mark.parametrize("value", [1.5, np.float32(1.5)])
def test_a_fraction_is_no_whole_number(value):
    with pytest.raises(TypeError, match=r"whole: n takes a whole number \(u32\), got 1.5"):
        cuda_kernel(BY_VALUE, "whole")[1, 8](torch.empty(8), value)


RANGES = """
template <typename T> __global__ void k(float* y, T v) { y[0] = (float)v; }
extern "C" __global__ void of_int(float* y, int v) { y[0] = v; }
extern "C" __global__ void of_unsigned(float* y, unsigned v) { y[0] = v; }
extern "C" __global__ void of_long(float* y, long long v) { y[0] = v; }
extern "C" __global__ void of_size(float* y, size_t v) { y[0] = v; }
extern "C" __global__ void of_bool(float* y, bool v) { y[0] = v; }
extern "C" __global__ void of_char(float* y, unsigned char v) { y[0] = v; }
extern "C" __global__ void of_float(float* y, float v) { y[0] = v; }
"""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("of_int", 2**31, "of_int: v is an int, from -2,147,483,648 to 2,147,483,647, got 2,147,483,648"),
        ("of_int", -(2**31) - 1, "is an int"),
        ("of_int", np.int64(2**40), "is an int"),
        ("of_unsigned", -1, "of_unsigned: v is an unsigned, from 0 to 4,294,967,295, got -1"),
        ("of_unsigned", 2**32, "is an unsigned"),
        ("of_long", 2**63, "is a long long"),
        ("of_size", -1, "is a size_t, from 0"),
        ("of_bool", 256, "of_bool: v is a bool: pass True or False, got 256"),
        ("of_bool", -1, "is a bool"),
        ("of_char", 256, "is an unsigned char, from 0 to 255"),
        ("of_float", 1e39, r"of_float: v is a float, at most 3.4e\+38, got 1e\+39"),
        ("k<int>", 2**32, "v is a T|has 32 bits"),
    ],
)
def test_a_number_out_of_range_is_refused(name, value, said):
    y = torch.zeros(1)
    with refused_in_one_line(ValueError, said):
        cuda_kernel(RANGES, name)[1, 1](y, value)
    assert not y.any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("of_int", 2**31 - 1), ("of_int", -(2**31)), ("of_unsigned", 2**32 - 1), ("of_long", -(2**63)),
        ("of_size", 2**63), ("of_bool", True), ("of_bool", np.bool_(False)), ("of_bool", 1), ("of_char", 255),
        ("of_float", float("inf")), ("of_float", 3.4e38), ("k<int>", -1), ("k<unsigned>", 2**32 - 1),
    ],
)  # fmt: skip
def test_the_ends_of_a_range_are_in_it(name, value):
    y = torch.zeros(1)
    cuda_kernel(RANGES, name)[1, 1](y, value)
    assert y.item() == torch.tensor(float(value)).item()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("y[0] = clock64();", "needs a GPU: there is no clock without one; count with `measure`"),
        ("y[0] = clock();", "needs a GPU: there is no clock without one; count with `measure`"),
        ("*y = *new float(*y);", "malloc within a kernel .* needs a GPU: allocate the memory in PyTorch"),
        ("y = (float*)malloc(4); *y = 1;", "malloc within a kernel .* needs a GPU: allocate the memory in PyTorch"),
        ('asm("mov.u32 %0, %%smid;" : "=r"(*(int*)y));', "needs a GPU: which multiprocessor runs a block"),
    ],
)
def test_what_needs_a_gpu_is_said_in_one_line(statement, said):
    with refused_in_one_line(NotImplementedError, said):
        cuda_kernel(f"__global__ void k(float* y) {{ {statement} }}", "k")[1, 1](torch.zeros(1))


CLUSTER = """#include <cooperative_groups.h>
__global__ void __cluster_dims__(2) k(float* y) {
  auto cluster = cooperative_groups::this_cluster();
  %s
}"""


@pytest.mark.parametrize(
    "statement", ["cluster.sync();", "y[0] = cluster.block_rank();", "y[0] = *cluster.map_shared_rank(y, 1);"]
)
def test_clusters_are_refused_in_one_line(statement):
    said = r"line \d, `.*` needs a GPU: thread block clusters are not executed here; use plain blocks"
    with refused_in_one_line(NotImplementedError, said):
        cuda_kernel(CLUSTER % statement, "k")[2, 32](torch.zeros(64))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "wgmma.fence.sync.aligned",
            "line 2, wgmma.fence: Hopper's warpgroup products are not compiled here: use wmma",
        ),
        ("setmaxnreg.inc.sync.aligned.u32 232", "line 2, setmaxnreg.inc: registers cannot move between warps here"),
    ],
)
def test_instructions_of_one_gpu_are_refused_in_one_line(statement, said):
    with refused_in_one_line(ValueError, said):
        cuda_kernel(f'__global__ void k(float* y) {{\n  asm volatile("{statement};");\n}}', "k")


CALLS = """
__device__ float one(float x) { return x + 1; }
__device__ float two(float x) { return x + 2; }
__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void k(float* y) {
  float (*either[])(float) = {one, two};
  *y = %s;
}"""


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ("either[(int)*y & 1](*y)", "does not call functions through pointers, or virtual ones .*: choose with `if`"),
        ("fibonacci(*y)", "cannot call fibonacci .*: it calls itself: write it as a loop"),
    ],
)
def test_calls_that_are_not_executed_are_refused_in_one_line(called, said):
    with refused_in_one_line(NotImplementedError, said):
        cuda_kernel(CALLS % called, "k")[1, 1](torch.zeros(1))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("cuda.h", "TMA's CUtensorMap is not supported here: copy with __pipeline_memcpy_async"),
        ("stdint.h", "for this one <cuda/std/cstdint>"),
        ("limits", "for this one <cuda/std/limits>"),
        ("cublas_v2.h", "not thrust"),
    ],
)
def test_a_header_that_is_not_there_is_refused_in_one_line(header, said):
    with refused_in_one_line(ValueError, said):
        cuda_kernel(f"#include <{header}>\n{ADD}", "add")


def test_headers_that_nvrtc_has_built_in_may_be_named():
    source = "#include <stdio.h>\n#include <cmath>\n# include  <cassert> // asserts\n" + ADD
    kernel = cuda_kernel(source, "add")
    assert linecache.getline(kernel.file, 1).strip() == "#include <stdio.h>"
    with pytest.raises(ValueError, match='identifier "foo" is undefined') as failure:
        cuda_kernel("#include <cstdio>\n__global__ void k(float* a) { a[0] = foo; }", "k")
    assert "k.cu(2): error" in str(failure.value)
    with pytest.raises(ValueError, match="NVIDIA's own headers"):
        cuda_kernel("#include <vector>\n" + ADD, "add")


def test_copies_of_tma_are_refused_in_one_line():
    source = """#include <cuda/barrier>
    __global__ void k(const float* x, float* y) {
      __shared__ alignas(16) float s[64];
      __shared__ cuda::barrier<cuda::thread_scope_block> b;
      if (threadIdx.x == 0) {
        init(&b, 1);
        cuda::device::memcpy_async_tx(s, x, cuda::aligned_size_t<16>(256), b);
      }
    }"""
    with pytest.raises(NotImplementedError, match=r"line 7, `.*` needs a GPU: TMA copies are not executed here; copy"):
        cuda_kernel(source, "k")[1, 64](torch.zeros(64), torch.zeros(64))
