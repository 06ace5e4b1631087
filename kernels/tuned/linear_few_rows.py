"""Linear layers of up to 32 rows, as in token generation: on tensor cores, or without them for a single row.

Almost all of such a layer's traffic is weights, and each is used by only a few rows. They must stream at full memory
bandwidth.

**Up to 32 rows** (linear_act in 16 bits or tf32, on compute capability 9.0 and 10.0, rows of x and weight as in
linear_descriptors.py). A tile of linear_descriptors.py has at least 64 rows, most of them empty here, and loads as much
of x per step of K as of the weights. This kernel transposes the matmul, W x^T: the weights become the operand that
needs 64 rows, and x's rows become columns, where 16 are enough. So shared memory holds weights in flight. Bias and GELU
in bf16 on an H200, K = N = 4096, us from one run:

    1, 2, 8, 16 rows    tiles of 64 x 64                 20.0, 22.0, 20.8, 19.1
                        here                             11.7, 11.8, 12.1, 12.2
                        cuBLAS, linear and bias alone    13.5, 13.5, 13.6, 14.4

**One row** (linear_one_row, which kernels/transformer_block.py calls): y = n W^T + residual, or silu(n gate^T) * n
up^T, with n = rms_norm(x) or x. Thousands of programs each own a few outputs and loop over K. Each rereads x from L2,
so it can normalise x itself: RMSNorm's factor is the same for all of K and is applied at the end.

    unfused   rms_norm: write n | gate: write g | up: write u | silu: write a | product: write h        five launches
    fused     write h                                                                                   one launch

On an H100, bf16, it takes at most as long as rms_norm and linear_act up to K = 8192 (4.8 us against 7.2 at K = 1024,
N = 3072, 42 against 45 at 4096 and 14336). With a gate it is slower than rms_norm and ffn's gated product: 38 us
against 30 at 2048 and 8192, 109 against 99 at 4096 and 14336.

Source: as linear_descriptors.py; Zhang and Sennrich, arXiv:1910.07467, for the norm; Shazeer, arXiv:2002.05202, for the
gate.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors
from kernels.tiled.linear_act import run
from kernels.tuned.linear_descriptors import FEW_ROWS, as_descriptors_take, takes
from kernels.variants import tuned


@triton.jit
def linear_act_few_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K), all of its rows in one
    weight_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    bias_ptr,  # (n,), or None
    residual_ptr,  # (m, n), contiguous, or None
    y_ptr,  # (m, n), contiguous
    sum_ptr,  # the same, or None if no backward pass needs it
    m,
    n,
    k,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of fp32 products; "ieee" for 16 bits, where it has no effect
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


def few_settings(m: int, n: int, dtype: torch.dtype, multiprocessors: int = 132) -> dict:
    """Return launch settings for an (m, n) result of up to FEW_ROWS rows.

    About 200 KB of loads are in flight per SM. If the grid has at most one program per SM, they are all that program's.
    Otherwise each of two programs has half, and one's epilogue overlaps the other's loads.
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


def few_operands(x, weight, bias, residual, y, s, chosen: dict) -> tuple:
    """Return the kernel's arguments for these matrices and settings; bias, residual and s may be None."""
    of_x, of_weight = (
        TensorDescriptor.from_tensor(each, [chosen[rows], chosen["BLOCK_K"]])
        for each, rows in ((x, "BLOCK_M"), (weight, "BLOCK_N"))
    )
    return of_x, of_weight, bias, residual, y, s, x.shape[0], *weight.shape


def _launch(x, weight, bias, residual, y, s, act: str | None, tf32: bool) -> None:
    m, n = y.shape
    x, weight = as_descriptors_take(x, weight)
    chosen = few_settings(m, n, x.dtype, multiprocessors(x))
    arguments = few_operands(x, weight, bias, residual, y, s, chosen)
    linear_act_few_kernel[(cdiv(n, chosen["BLOCK_N"]),)](*arguments, ACT=act, **chosen)


def _takes_few(x, weight, *others) -> bool:
    return x.numel() <= FEW_ROWS * x.shape[-1] and takes(x, weight, *others)


def _compile_arguments(m: int, k: int, n: int, *, dtype: torch.dtype):
    if m > FEW_ROWS or dtype.itemsize != 2 or k % 8:
        return None
    chosen = few_settings(m, n, dtype)
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    return linear_act_few_kernel, few_operands(x, weight, y[0], None, y, None, chosen), {"ACT": "gelu_tanh", **chosen}


GAIN = (
    "2.55x at 1 x 4096 x 4096 (H100, bf16); 1.6x to 1.9x over tiles of 64 x 64 with descriptors at 1 to 16 rows (H200)"
)


@tuned("linear_act", "forward", takes=_takes_few, gain=GAIN, compile_arguments=_compile_arguments)
def _forward(*arguments) -> Tensor:
    return run(*arguments, keep_sum=False, launch=_launch)[0]


@tuned("linear_act", "training", takes=_takes_few, gain=GAIN)
def _training(x, weight, bias, residual, act, tf32) -> tuple[Tensor, Tensor]:
    y, s = run(x, weight, bias, residual, act, tf32, keep_sum=act is not None, launch=_launch)
    return y, x.new_empty(0) if s is None else s


@triton.jit
def linear_one_row_kernel(
    x_ptr,  # (k,)
    norm_ptr,  # (k,) the norm's weight, or None to use x as it is
    weight_ptr,  # (n, k), contiguous
    gate_ptr,  # the same, or None
    residual_ptr,  # (n,), or None
    y_ptr,  # (n,)
    n,
    k,
    eps,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # int64 before the multiplication: a head of 250,000 words by 16,384 passes 2**31.
    start = row.to(tl.int64)[:, None] * k
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    gated = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for first in range(0, k, BLOCK_K):
        col = first + tl.arange(0, BLOCK_K)
        inside = (row < n)[:, None] & (col < k)[None, :]
        # Read once, by one program: L2 should keep x instead.
        weight = tl.load(weight_ptr + start + col[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + col, mask=col < k, other=0.0).to(tl.float32)
        if norm_ptr is not None:
            squares += x * x
            x *= tl.load(norm_ptr + col, mask=col < k, other=0.0).to(tl.float32)
        total += weight.to(tl.float32) * x[None, :]
        if gate_ptr is not None:
            gate = tl.load(gate_ptr + start + col[None, :], mask=inside, other=0.0, eviction_policy="evict_first")
            gated += gate.to(tl.float32) * x[None, :]
    scale = tl.rsqrt(tl.sum(squares) / k + eps) if norm_ptr is not None else 1.0
    y = tl.sum(total, axis=1) * scale
    if gate_ptr is not None:
        g = tl.sum(gated, axis=1) * scale
        y *= g * tl.sigmoid(g)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + row, mask=row < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < n)


def linear_one_row(
    x: Tensor,
    weight: Tensor,
    norm: Tensor | None = None,
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Compute weight n + residual, or silu(gate n) * (weight n) + residual, n = rms_norm(x, norm), in one launch.

    Args:
        x: (..., k) with one row, floating-point. All tensors are contiguous and share one dtype and device.
        weight, gate: (n, k).
        norm: (k,), the norm's weight; if not given, x is not normalised.
        residual: (..., n).
        eps: the norm's.

    Returns:
        (..., n) of x's dtype; the arithmetic is fp32, rounded once.

    Raises:
        ValueError: x has more than one row.
    """
    n, k = weight.shape
    if x.numel() != k:
        raise ValueError(f"linear_one_row takes x of (..., {k}) with one row, got {tuple(x.shape)}: use linear_act")
    y = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    # Each program has 8 KB of weights in flight; with seven programs an SM has 57 KB.
    chosen = {"BLOCK_N": 4, "BLOCK_K": 1024, "num_warps": 4}
    with torch.cuda.device_of(x):
        grid = (cdiv(n, chosen["BLOCK_N"]),)
        linear_one_row_kernel[grid](x, norm, weight, gate, residual, y, n, k, eps, **chosen)
    return y
