"""printf within a kernel, against C's own."""

import ctypes

import numpy as np
import pytest
import torch

from helpers.instruments import cuda_kernel, measure
from helpers.instruments.cuda import printing

SAY = """
#include <cstdio>
__global__ void k(const float* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  printf("thread %d of block %d: %.2f\\n", threadIdx.x, blockIdx.x, x[i]);
  if (i % 2) printf("odd %s %llu %c%%\\n", i == 3 ? "three" : "other", 1ULL << 40, 'a' + i);
}"""


def test_threads_print_in_their_order(capsys):
    x = torch.arange(4) / 2
    cuda_kernel(SAY, "k")[2, 2](x)
    text = capsys.readouterr().out
    assert text.splitlines() == [
        "thread 0 of block 0: 0.00",
        "thread 1 of block 0: 0.50",
        "thread 0 of block 1: 1.00",
        "thread 1 of block 1: 1.50",
        "odd other 1099511627776 b%",
        "odd three 1099511627776 d%",
    ]
    assert measure(cuda_kernel(SAY, "k")[2, 2], x).hazards == ()
    assert capsys.readouterr().out == text


CASES = [
    ("%d|%5d|%-5d|%05d|%+d", "iiiii", (-3, 42, 42, 42, 42)),
    ("%u|%x|%X|%#x|%o|%#o", "iiiiii", (2**32 - 1, 255, 255, 255, 8, 8)),
    ("%lld|%llu|%lx|%zu", "llll", (-(2**40), 2**63, 2**40, 7)),
    ("%f|%.3f|%10.2e|%g|%-8.1f|%+.0f", "dddddd", (1.5, 2.0005, 12345.678, 1e-7, 2.25, 2.5)),
    ("%f %f %f", "ddd", (float("inf"), float("-inf"), float("nan"))),
    ("%d %f %d %f", "idid", (1, 2.5, 3, 4.5)),  # doubles begin at multiples of 8
    ("%hhd %hd %hu", "iii", (255, 65535, 65535)),
    ("%*d|%.*f|%-*d|", "iiidii", (6, 42, 2, 3.14159, 5, 7)),
    ("%c%c 100%%", "ii", (72, 105)),
    ("%.3d|%8.3d|%08.3d|%#x", "iiii", (5, 5, 5, 0)),
    ("no values", "", ()),
]


@pytest.mark.parametrize(("text", "kinds", "values"), CASES, ids=[case[0] for case in CASES])
def test_formats_are_those_of_c(text, kinds, values):
    memory = b""
    for kind, given in zip(kinds, values, strict=True):
        size = 4 if kind == "i" else 8
        memory = memory.ljust(-(-len(memory) // size) * size, b"\0")
        memory += np.float64(given).tobytes() if kind == "d" else (given % (1 << 8 * size)).to_bytes(size, "little")
    buffer = ctypes.create_string_buffer(400)
    types = {"i": ctypes.c_int, "l": ctypes.c_longlong, "d": ctypes.c_double}
    converted = [types[kind](given) for kind, given in zip(kinds, values, strict=True)]
    ctypes.CDLL(None).snprintf(buffer, 400, text.encode(), *converted)
    assert printing.formatted(text, memory, None) == (buffer.value.decode(), len(values))


def test_strings_of_the_threads_own(capsys):
    source = """__global__ void k(float* x) {
      __shared__ char shared[8];
      char local[4] = {'o', 'k', (char)(x[threadIdx.x] > 0 ? '!' : '?'), 0};
      if (threadIdx.x == 0) for (int i = 0; i < 4; i++) shared[i] = "abc"[i];
      __syncthreads();
      printf("%s %s\\n", local, shared);
    }"""
    cuda_kernel(source, "k")[1, 2](torch.tensor([0.0, 1.0]))
    assert capsys.readouterr().out == "ok? abc\nok! abc\n"


def test_output_without_end_is_cut(monkeypatch, capsys):
    monkeypatch.setattr(printing, "MOST", 100)
    cuda_kernel('__global__ void k(float* x) { printf("line %d\\n", threadIdx.x); }', "k")[1, 64](torch.zeros(1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["line 0", "line 1", "line 2"]
    assert lines[-1].startswith(f"... and {65 - len(lines)} more calls of printf")


def test_printf_returns_how_many_values_it_printed():
    out = torch.zeros(2, dtype=torch.int32)
    source = '__global__ void k(int* x) { x[threadIdx.x] = printf("%d %d\\n", 1, 2); }'
    cuda_kernel(source, "k")[1, 2](out)
    assert out.tolist() == [2, 2]


def test_a_table_of_strings(capsys):
    source = """__device__ const char* names[2] = {"even", "odd"};
    __global__ void k() { printf("%d is %s\\n", threadIdx.x, names[threadIdx.x % 2]); }"""
    cuda_kernel(source, "k")[1, 2]()
    assert capsys.readouterr().out == "0 is even\n1 is odd\n"
