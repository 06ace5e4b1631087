"""The matrix fragments of <mma.h>: products of every shape and type against PyTorch's."""

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
TYPES = {
    "half": ("half", "half", torch.float16, torch.float16),
    "half and float": ("half", "float", torch.float16, torch.float32),
    "bfloat16": ("__nv_bfloat16", "float", torch.bfloat16, torch.float32),
    "char": ("signed char", "int", torch.int8, torch.int32),
    "unsigned char": ("unsigned char", "int", torch.uint8, torch.int32),
}
SOURCE = """
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
template <int M, int N, int K, typename T, typename Stored, typename Sum, typename A, typename B>
__device__ void product(const Stored* a, int lda, const Stored* b, int ldb, Sum* c, int ldc, wmma::layout_t of_c) {
  wmma::fragment<wmma::matrix_a, M, N, K, T, A> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, T, B> fb;
  wmma::fragment<wmma::accumulator, M, N, K, Sum> fc;
  wmma::load_matrix_sync(fc, c, ldc, of_c);
  wmma::load_matrix_sync(fa, a, lda);
  wmma::load_matrix_sync(fb, b, ldb);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] + fc.x[i];
  wmma::store_matrix_sync(c, fc, ldc, of_c);
}
extern "C" __global__ void k(const STORED* a, const STORED* b, SUM* c, int by_columns) {
  product<SIZES, TYPE, STORED, SUM, wmma::LEFT_major, wmma::RIGHT_major>(
      a, 64, b, 64, c, 64, by_columns ? wmma::mem_col_major : wmma::mem_row_major);
}"""


def held(rows, columns, dtype, layout):
    """(memory of a matrix with 64 elements from row to row or column to column, the matrix as a view)."""
    memory = torch.zeros(64, 64, dtype=dtype)
    matrix = (memory if layout == "row" else memory.T)[:rows, :columns]
    integral = not dtype.is_floating_point
    matrix.copy_(torch.randint(0 if dtype == torch.uint8 else -9, 9, (rows, columns)) / (1 if integral else 8))
    return memory, matrix


def run(shape, stored, type, sum, dtype, sums, left, right, of_c):
    m, n, k = shape
    text = SOURCE
    for name, by in (
        ("STORED", stored),
        ("SUM", sum),
        ("SIZES", f"{m}, {n}, {k}"),
        ("TYPE", type),
        ("LEFT", left),
        ("RIGHT", right),
    ):
        text = text.replace(name, by)
    (a, first), (b, second), (c, third) = (held(m, k, dtype, left), held(k, n, dtype, right), held(m, n, sums, of_c))
    expected = 2 * (first.double() @ second.double() + third.double())
    traffic = measure(cuda_kernel(text, "k")[1, 32], a, b, c, int(of_c == "col"))
    assert traffic.hazards == ()
    return third, expected, traffic


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_products(shape, name):
    for left, right, of_c in (("row", "col", "row"), ("col", "row", "col"), ("row", "row", "col")):
        type, sum, dtype, sums = TYPES[name]
        result, expected, _ = run(shape, type, type, sum, dtype, sums, left, right, of_c)
        assert torch.equal(result.double(), expected)  # small numbers: every sum is exact


def test_tf32_ignores_the_last_bits():
    result, expected, _ = run((16, 16, 8), "float", "wmma::precision::tf32", "float", torch.float32, torch.float32,
                              "row", "col", "row")  # fmt: skip
    assert torch.equal(result.double(), expected)


def test_bytes_are_counted_once():
    _, _, traffic = run((16, 16, 16), "half", "half", "float", torch.float16, torch.float32, "row", "col", "row")
    assert (traffic.bytes_read, traffic.bytes_written) == (2 * 256 * 2 + 256 * 4, 256 * 4)


TILED = """
#include <mma.h>
using namespace nvcuda;
__global__ void k(const half* a, const half* b, float* c, int n) {
  __shared__ half left[16][24], right[16][24];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.f);
  int row = 16 * blockIdx.y, column = 16 * blockIdx.x;
  for (int k = 0; k < n; k += 16) {
    for (int i = threadIdx.x; i < 256; i += 32) {
      left[i / 16][i % 16] = a[(row + i / 16) * n + k + i % 16];
      right[i / 16][i % 16] = b[(k + i / 16) * n + column + i % 16];
    }
    __syncwarp();
    wmma::load_matrix_sync(fa, &left[0][0], 24);
    wmma::load_matrix_sync(fb, &right[0][0], 24);
    wmma::mma_sync(fc, fa, fb, fc);
    __syncwarp();
  }
  wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}"""


def test_a_tiled_matmul_through_shared_memory():
    a, b, c = torch.randn(64, 64).half(), torch.randn(64, 64).half(), torch.empty(64, 64)
    traffic = measure(cuda_kernel(TILED, "k")[(4, 4), 32], a, b, c, 64)
    assert traffic.hazards == ()
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=0, atol=64 * 2**-20)


def test_a_missing_barrier_before_the_load_is_a_race():
    source = TILED.replace("__syncwarp();\n    wmma", "wmma")
    found = measure(cuda_kernel(source, "k")[1, 32], *(torch.randn(64, 64).half() for _ in range(2)),
                    torch.empty(64, 64), 64).hazards  # fmt: skip
    assert {hazard.kind for hazard in found} == {"race"}


def test_a_part_of_a_warp_is_refused():
    source = TILED.replace("__syncwarp();", "__syncthreads();")
    with pytest.raises(RuntimeError, match="a matrix instruction needs all 32 lanes of the warp"):
        cuda_kernel(source, "k")[1, 16](torch.zeros(256).half(), torch.zeros(256).half(), torch.zeros(256), 16)
