"""Linear layer, activation and residual in one kernel:  y = act(x W^T + bias) + residual.

Unfused in PyTorch, cuBLAS adds the bias itself; activation and sum each move M x N elements through memory:

    unfused   linear: read x and W, write s | activation: read s, write a | sum: read a and residual, write y
    fused     read x, W and residual, write y; the sum of products stays in registers

In bf16 at M = 8192, K = 4096, N = 11008 the activation alone moves 361 MB, 85 us at an H200's 4.2 TB/s, next to 940 us
of arithmetic at cuBLAS's 788 TFLOP/s. So fusion can save a tenth of the time, and a matmul 10 % slower than cuBLAS's
loses all of it. Fusion is also more precise: the fp32 sum is rounded once, after the epilogue, instead of once per
operation.

The kernel is a textbook tiled matmul, one program per tile of y, for every GPU, dtype and stride. Training saves s = x
W^T + bias for the backward pass:

    grad_s = grad_y act'(s)    grad_bias = sum of grad_s over rows    grad_x = grad_s W    grad_W = grad_s^T x

One launch computes the first two. The matmuls have no epilogue and are left to PyTorch. On an H200 in bf16 that launch
and the sum over programs take 16 us for 1024 x 4096 and 171 us for 8192 x 11008; PyTorch's two operations take 20 and
199 us.

Source: torch.nn.functional.linear.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import (
    as_autocast_says,
    as_rows,
    autocasts,
    cdiv,
    check_linear,
    check_option,
    check_together,
    given,
    multiprocessors,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise.sums import sums_of_programs


@triton.jit
def linear_act_kernel(
    x_ptr,  # (m, k), any row stride, unit column stride
    weight_ptr,  # (n, k), the same
    bias_ptr,  # (n,), or None
    residual_ptr,  # (m, n), contiguous, or None
    y_ptr,  # (m, n), contiguous
    sum_ptr,  # (m, n), contiguous: kept for the backward pass, or None
    m,
    n,
    k,
    x_row_stride,
    weight_row_stride,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of fp32 products: "ieee" or "tf32"
    COMPUTE: tl.constexpr,  # the dtype of the sum and the epilogue
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # int64 before the multiplications: row * stride passes 2**31 on large tensors.
    tile = tl.program_id(0).to(tl.int64)
    tiles_n = tl.cdiv(n, BLOCK_N)
    row = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        x = tl.load(x_ptr + row * x_row_stride + at[None, :], mask=(row < m) & (at[None, :] < k), other=0.0)
        weight = tl.load(
            weight_ptr + col * weight_row_stride + at[:, None], mask=(col < n) & (at[:, None] < k), other=0.0
        )
        acc = tl.dot(x, weight, acc, input_precision=PRECISION, out_dtype=COMPUTE)
    # The epilogue: everything from here on happens in registers.
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + col, mask=col < n, other=0.0).to(COMPUTE)
    inside = (row < m) & (col < n)
    if sum_ptr is not None:
        tl.store(sum_ptr + row * n + col, acc.to(sum_ptr.dtype.element_ty), mask=inside)
    y = acc if ACT is None else activate(acc, ACT, y_ptr.dtype.element_ty)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + row * n + col, mask=inside, other=0.0).to(COMPUTE)
    tl.store(y_ptr + row * n + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def settings(dtype: torch.dtype, tf32: bool = False) -> dict:
    """Return the tile and launch options for a dtype.

    128 x 128 is the smallest tile that reads few enough bytes from L2 to keep tensor cores busy. 8 warps share its
    accumulator, 64 registers per thread. A step along K is 128 bytes of a row, one cache line. Without tensor cores
    (fp32 without tf32) or with few of them (fp64), tiles and accumulators must be small enough for the registers.
    """
    if dtype.itemsize == 2 or tf32:
        tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128 // dtype.itemsize, "num_warps": 8}
    elif dtype == torch.float32:
        tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4}
    else:
        tile = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4}
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"PRECISION": "tf32" if tf32 else "ieee", "COMPUTE": compute, **tile, "num_stages": 3}


def _launch(x, weight, bias, residual, y, s, act: str | None, tf32: bool) -> None:
    (m, k), n, chosen = x.shape, weight.shape[0], settings(x.dtype, tf32)
    grid = (cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"]),)
    strides = x.stride(0), weight.stride(0)
    linear_act_kernel[grid](x, weight, bias, residual, y, s, m, n, k, *strides, ACT=act, **chosen)


def empty_result(x: Tensor, weight: Tensor) -> Tensor:
    """Allocate x W^T, (..., n), uninitialised."""
    return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)


def run(x, weight, bias, residual, act: str | None, tf32: bool, keep_sum: bool, launch=_launch) -> tuple:
    """Return y and, with `keep_sum`, s, after launch(x, weight, bias, residual, y, s, act, tf32) on matrices."""
    y = empty_result(x, weight)
    s = like(y) if keep_sum else None
    if y.numel():
        matrices = [None if each is None else as_rows(each.contiguous()) for each in (residual, y, s)]
        bias = None if bias is None else bias.contiguous()
        with torch.cuda.device_of(x):
            launch(as_rows(x), as_rows(weight), bias, *matrices, act, tf32)
    return y, s


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, act: str | None, tf32: bool
) -> Tensor:
    return run(x, weight, bias, residual, act, tf32, keep_sum=False)[0]


def _training(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, act: str | None, tf32: bool
) -> tuple[Tensor, Tensor]:
    y, s = run(x, weight, bias, residual, act, tf32, keep_sum=act is not None)
    return y, x.new_empty(0) if s is None else s  # without an activation the gradient needs no sum


@triton.jit
def linear_act_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    sum_ptr,  # (rows, cols), contiguous
    grad_sum_ptr,  # (rows, cols), contiguous
    grad_bias_ptr,  # (programs along the second axis of the grid, cols), in COMPUTE: each program's part
    rows,
    cols,
    grad_y_row_stride,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program loops down a few columns and keeps their sums in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    first, step = tl.program_id(1).to(tl.int64) * BLOCK_ROWS, tl.num_programs(1).to(tl.int64) * BLOCK_ROWS
    for start in tl.range(first, rows, step):
        row = start + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        s = tl.load(sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        grad = activate_gradient(grad_y, s, ACT)
        tl.store(grad_sum_ptr + row * cols + col, grad.to(grad_sum_ptr.dtype.element_ty), mask=inside)
        grad_bias += grad
    at = tl.program_id(1).to(tl.int64) * cols + col
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


def backward_settings(dtype: torch.dtype) -> dict:
    """Return the block and launch options for a dtype: 16 rows of at least 128 bytes in flight."""
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"COMPUTE": compute, "BLOCK_ROWS": 16, "BLOCK_COLS": 64, "num_warps": 4}


def gradient_of_sum(grad_y: Tensor, s: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of s, (..., cols), and of the bias, (cols,), the latter summed in fp32, or in fp64 for
    fp64."""
    grad_s = like(s)
    if s.numel() == 0:
        return grad_s, torch.zeros(s.shape[-1], dtype=s.dtype, device=s.device)
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    chosen = backward_settings(s.dtype)
    tiles = cdiv(cols, chosen["BLOCK_COLS"])
    programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(8 * multiprocessors(s), tiles))
    compute = torch.float64 if s.dtype == torch.float64 else torch.float32
    grad_bias = torch.empty(programs, cols, dtype=compute, device=s.device)
    with torch.cuda.device_of(s):
        linear_act_backward_kernel[(tiles, programs)](
            grad_y, s, grad_s, grad_bias, rows, cols, grad_y.stride(0), ACT=act, **chosen
        )
        (grad_bias,) = sums_of_programs((grad_bias,), (s.new_empty(cols),))
    return grad_s, grad_bias


def _gradients(of_sum, needed, grad_y: Tensor, x: Tensor, weight: Tensor, s: Tensor, act: str | None) -> tuple:
    """Return the gradients of x, weight, bias and residual that are needed. The matmuls use the precision set in
    torch.backends.cuda.matmul."""
    to_x, to_weight, to_bias, to_residual, *_ = needed
    if act is None:
        grad_s, grad_bias = grad_y, as_rows(grad_y).sum(0) if to_bias else None
    else:
        grad_s, grad_bias = of_sum(grad_y, s, act)
    return (
        grad_s @ weight if to_x else None,
        as_rows(grad_s).T @ as_rows(x) if to_weight else None,
        grad_bias if to_bias else None,
        grad_y if to_residual else None,
    )


linear_act_op = register(
    "linear_act",
    _forward,
    lambda x, weight, *_: empty_result(x, weight),
    training=_training,
    training_fake=lambda x, weight, bias, residual, act, tf32: (
        empty_result(x, weight),
        x.new_empty(0) if act is None else empty_result(x, weight),
    ),
    keep=lambda arguments, results: (*arguments[:2], results[1], arguments[4]),
    backward=gradient_of_sum,
    backward_fake=lambda grad_y, s, act: (like(s), s.new_empty(s.shape[-1])),
    gradients=_gradients,
)


@planned
def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    act: str | None = "gelu_tanh",
    tf32: bool = False,
) -> Tensor:
    """Compute act(x weight^T + bias) + residual in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., K), any strides; non-adjacent columns are copied first.
        weight: (N, K). All tensors have x's dtype and device.
        bias: (N,).
        residual: (..., N), added after the activation.
        act: "relu", "gelu" (exact), "gelu_tanh", "silu", or None.
        tf32: let tensor cores round fp32 operands to tf32, 10 bits of mantissa; only for fp32. Without it fp32 products
            are exact, and at best an eighth as fast.

    Returns:
        A contiguous tensor of shape (..., N) and x's dtype (under autocast, autocast's). Products are summed in fp32
        (fp64 for fp64 inputs). Bias, activation and residual have that precision, and the result is rounded once.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes do not match, act is unknown, tf32 is set for another dtype, devices differ, or tensors are
            on the CPU while kernels run on a GPU.
    """
    x, weight, bias = as_autocast_says(x, weight, bias)
    if isinstance(residual, Tensor) and autocasts(x) and residual.dtype != x.dtype:
        return linear_act(x, weight, bias, None, act, tf32) + residual  # an fp32 residual stream stays fp32
    if act is not None:
        check_activation("linear_act", act)
    check_together("linear_act", x=x, weight=weight, **given(bias=bias, residual=residual))
    check_linear("linear_act", x, weight, bias, residual)
    if tf32 and x.dtype != torch.float32:
        raise ValueError(f"linear_act takes tf32=True for float32, got {x.dtype}: leave it out")
    return linear_act_op(x, weight, bias, residual, act, tf32)


class LinearAct(torch.nn.Linear):
    """linear_act with learned weight and bias. Takes torch.nn.Linear's arguments, and act and tf32 by name."""

    def __init__(self, *arguments, act: str | None = "gelu_tanh", tf32: bool = False, **options):
        super().__init__(*arguments, **options)
        if act is not None:
            check_activation("LinearAct", act)
        check_option("LinearAct", "tf32", tf32, bool)
        self.act, self.tf32 = act, tf32

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return linear_act(x, self.weight, self.bias, residual, self.act, self.tf32)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act={self.act!r}, tf32={self.tf32}"


def linear_act_reference(x, weight, bias=None, residual=None, act: str | None = "gelu_tanh") -> Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    s = torch.nn.functional.linear(x, weight, bias)
    y = s if act is None else ACTIVATIONS[act](s)
    return y if residual is None else y + residual


def linear_act_work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (M, K, N) with bias and GELU's tanh form: 2 M K N, and 10 operations per
    element of the result; x, weight and bias read once, y written once."""
    m, k, n = shape
    read, written = m * k + n * k + n, m * n
    return Work(costs.product(m, k, n) + (1 + costs.GELU_TANH) * m * n, read * dtype.itemsize, written * dtype.itemsize)


def linear_act_backward_work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic of the three gradients for (M, K, N): two matmuls, and 20 operations per element
    of the result; grad_y, s, x and weight read once, the gradients written once."""
    m, k, n = shape
    read, written = 2 * m * n + m * k + n * k, m * k + n * k + n
    return Work(4 * m * k * n + 20 * m * n, read * dtype.itemsize, written * dtype.itemsize)


def _inputs(m: int, k: int, n: int, **options) -> tuple[Tensor, Tensor, Tensor]:
    # Weights as large as a trained layer's, so that the sums are as large as x.
    weight = torch.randn(n, k, **options) / max(1, k) ** 0.5
    return torch.randn(m, k, **options), weight, torch.randn(n, **options)


def _compile_arguments(m: int, k: int, n: int, *, dtype: torch.dtype, bias: bool = True) -> tuple[tuple, dict]:
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    arguments = x, weight, y[0] if bias else None, None, y, None, m, n, k, k, k
    return arguments, {"ACT": "gelu_tanh", **settings(dtype)}


OP = FusedOp(
    name="linear_act",
    fused=linear_act,
    reference=linear_act_reference,
    work=linear_act_work,
    kernel=linear_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 127, 129), (130, 96, 264), (33, 72, 40)),
    gpu_shapes=((1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 11008)),
    backward_work=linear_act_backward_work,
)
