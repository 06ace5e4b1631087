"""A linear layer of one token:  y = n W^T + residual,  or  silu(n gate^T) * n up^T,  with n = rms_norm(x) or x.

Of what one token's layer reads nearly all is weights, each used once: what counts is that they come at the memory's
full rate. linear_act's tiles of 64 or more rows leave most multiprocessors without a tile
then. Here a program owns a few outputs and walks along K, and there are thousands of them; each reads x again, from L2,
so that it may as well normalise it: RMSNorm's factor is the same for all of K and is multiplied in at the end.

    unfused   rms_norm: write n | gate: write g | up: write u | silu: write a | product: write h        five launches
    fused     write h                                                                                   one launch

Without a gradient: training takes many tokens.

Source: Zhang and Sennrich, arXiv:1910.07467, for the norm; Shazeer, arXiv:2002.05202, for the gate.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import cdiv


@triton.jit
def linear_one_row_kernel(
    x_ptr,  # (k,)
    norm_ptr,  # (k,) the norm's weight, or None where x is taken as it is
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
        # Read once by one program alone: what stays in L2 should be x.
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
    """weight n + residual, or silu(gate n) * (weight n) + residual, with n = rms_norm(x, norm), in one launch.

    Args:
        x: (..., k) with one row, floating-point, contiguous, as are the others; of one dtype and device.
        weight, gate: (n, k).
        norm: (k,), the weight of the norm; x is taken as it is where not given.
        residual: (..., n).
        eps: of the norm.

    Returns:
        (..., n) of x's dtype; the arithmetic is fp32, rounded once.

    Raises:
        ValueError: x has more than one row.
    """
    n, k = weight.shape
    if x.numel() != k:
        raise ValueError(f"linear_one_row takes x of (..., {k}) with one row, got {tuple(x.shape)}: use linear_act")
    y = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    # 8 KB of weights a program in flight; seven programs on a multiprocessor make 57 KB.
    chosen = {"BLOCK_N": 4, "BLOCK_K": 1024, "num_warps": 4}
    with torch.cuda.device_of(x):
        grid = (cdiv(n, chosen["BLOCK_N"]),)
        linear_one_row_kernel[grid](x, norm, weight, gate, residual, y, n, k, eps, **chosen)
    return y
