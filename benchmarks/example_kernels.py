"""Kernels of kinds that the course may lack, for comparing the compiler's figures with a loaded kernel's."""

import linecache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def calls_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, silu(tl.load(x_ptr + i, i < elements)), i < elements)


@triton.jit(noinline=True)
def stays_a_call(x):
    return tl.sin(x) + 1.0


@triton.jit
def real_call_kernel(x_ptr):
    tl.store(x_ptr, stays_a_call(tl.load(x_ptr)))


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    col = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        total = tl.dot(tl.load(a_ptr + row * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + col), total)
    tl.store(c_ptr + row * N + col, total.to(tl.float16))


@triton.jit
def transpose_kernel(x, y, TILE: tl.constexpr):
    row, col = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    y.store([col, row], x.load([row, col]).T)


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + i, i < elements), 1, i < elements)


CELL = """@triton.jit
def halve_kernel(x_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, i < elements) * 0.5, i < elements)
"""


def _from_a_cell():
    """Return CELL's kernel, as a notebook defines one: its source only in linecache."""
    file = "<cell of example_kernels>"
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    namespace = {"triton": triton, "tl": tl, "__name__": __name__}
    exec(compile(CELL, file, "exec"), namespace)
    return namespace["halve_kernel"]


def _tensors(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return torch.empty(count, 4096, dtype=dtype, device="meta").unbind()


def _descriptor() -> TensorDescriptor:
    return TensorDescriptor.from_tensor(torch.empty(256, 256, dtype=torch.float16), [64, 64])


_TILES = {"BM": 64, "BN": 64, "BK": 32}
_MATRICES = (*_tensors(3, torch.float16), 512, 512, 512)

# name -> kernel, arguments, options
EXAMPLES = {
    "with called functions": (calls_kernel, (*_tensors(2, torch.float32), 4096), {"BLOCK": 1024}),
    "with a call that stays": (real_call_kernel, _tensors(1, torch.float32), {}),
    "tensor cores": (matmul_kernel, _MATRICES, _TILES),
    "tensor cores, 8 warps, 4 stages": (matmul_kernel, _MATRICES, {**_TILES, "num_warps": 8, "num_stages": 4}),
    "spilling": (matmul_kernel, _MATRICES, {**_TILES, "num_warps": 1, "maxnreg": 128}),
    "tensor descriptors": (transpose_kernel, (_descriptor(), _descriptor()), {"TILE": 64}),
    "atomics": (histogram_kernel, (*_tensors(2, torch.int32), 4096), {"BLOCK": 256}),
    "from a notebook cell": (_from_a_cell(), (*_tensors(1, torch.float32), 4096), {"BLOCK": 1024}),
}
