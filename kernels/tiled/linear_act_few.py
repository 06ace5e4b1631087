"""linear_act of up to 32 rows on tensor cores of compute capability 9.0 and 10.0, as where a model writes its tokens.

Nearly all that it reads is weights, each used by few rows: what counts is that they come at the memory's full rate.
A tile of linear_act_descriptors.py has 64 rows at least, most of them not there, and takes as many of x with each step
of K as of weights. Here the product is turned round, W x^T: weights are the operand that must have 64 rows, and x's
rows are columns, of which 16 are enough; the room goes to weights on their way.

    1, 2, 8, 16 rows, K = N = 4096, bias and GELU in bf16 on an H200, in us of one run
        tiles of 64 x 64    20.0, 22.0, 20.8, 19.1
        here                11.7, 11.8, 12.1, 12.2
        cuBLAS, linear and bias alone    13.5, 13.5, 13.6, 14.4

Source: as linear_act_descriptors.py.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors

ROWS = 32  # beyond which linear_act_descriptors.py takes it


@triton.jit
def linear_act_few_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K), all of its rows in one
    weight_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    bias_ptr,  # (n,), or None
    residual_ptr,  # (m, n), contiguous, or None
    y_ptr,  # (m, n), contiguous
    sum_ptr,  # the same, or None where no backward pass will ask for it
    m,
    n,
    k,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of products of fp32; "ieee" for 16 bits, where it says nothing
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_N
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        x = x_desc.load([0, step * BLOCK_K])
        weight = weight_desc.load([first, step * BLOCK_K])
        acc = tl.dot(weight, x.T, acc, input_precision=PRECISION)
    acc = acc.T
    col = first + tl.arange(0, BLOCK_N)[None, :]
    row = tl.arange(0, BLOCK_M)[:, None]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + col, mask=col < n, other=0.0).to(tl.float32)
    inside = (row < m) & (col < n)
    at = row.to(tl.int64) * n + col  # 32 rows of a large n pass 2**31
    if sum_ptr is not None:
        tl.store(sum_ptr + at, acc.to(sum_ptr.dtype.element_ty), mask=inside)
    y = acc if ACT is None else activate(acc, ACT, y_ptr.dtype.element_ty)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


def settings(m: int, n: int, dtype: torch.dtype, multiprocessors: int = 132) -> dict:
    """Launch settings for an (m, n) result of up to ROWS rows.

    About 200 KB of loads are on their way on a multiprocessor: a program's alone where each has one, else half of it
    for each of two, so that one's epilogue runs under the other's loads.
    """
    shared = cdiv(n, 64) > multiprocessors
    block_m, bytes_k = 16 if m <= 16 else 32, 256 if shared else 512
    return {
        "PRECISION": "tf32" if dtype == torch.float32 else "ieee",
        "BLOCK_M": block_m,
        "BLOCK_N": 64,
        "BLOCK_K": bytes_k // dtype.itemsize,
        "num_warps": 4,
        "num_stages": 5 if block_m == 16 else 4,
    }


def operands(x, weight, bias, residual, y, s, chosen: dict) -> tuple:
    """The kernel's arguments for matrices in tiles of these settings; bias, residual and s may be None."""
    of_x, of_weight = (
        TensorDescriptor.from_tensor(each, [chosen[rows], chosen["BLOCK_K"]])
        for each, rows in ((x, "BLOCK_M"), (weight, "BLOCK_N"))
    )
    return of_x, of_weight, bias, residual, y, s, x.shape[0], *weight.shape


def launch(x, weight, bias, residual, y, s, act: str | None) -> None:
    """Write y, (m, n), and s where it is not None, for x and weight that descriptors can tell of."""
    m, n = y.shape
    chosen = settings(m, n, x.dtype, multiprocessors(x))
    arguments = operands(x, weight, bias, residual, y, s, chosen)
    linear_act_few_kernel[(cdiv(n, chosen["BLOCK_N"]),)](*arguments, ACT=act, **chosen)
