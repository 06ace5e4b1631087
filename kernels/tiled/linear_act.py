"""A linear layer, its activation and a residual in one kernel:  y = act(x W^T + bias) + residual.

Written out in PyTorch, cuBLAS adds the bias itself; the activation and the sum go through memory, M x N elements each:

    unfused   linear: read x and W, write s | activation: read s, write a | sum: read a and residual, write y
    fused     read x, W and residual, write y; the sum of products never leaves the registers in between

In bf16 at M = 8192, K = 4096, N = 11008 the activation alone moves 361 MB, 85 us at an H200's 4.2 TB/s, beside 940 us
of arithmetic at cuBLAS's 788 TFLOP/s. So what fusion can gain is a tenth, and a matmul a tenth slower than cuBLAS's
would lose all of it. It is also more precise: the fp32 sum is rounded once, after the epilogue, not once an operation.

The kernel here is the tiled matmul of textbooks, one program a tile of y, for every GPU, dtype and stride. What tensor
descriptors can take, or a padded copy that they can, goes to linear_act_descriptors.py or, of few rows,
linear_act_few.py, which compute the same.

Training keeps s = x W^T + bias for the backward pass, which is in linear_act_backward.py.

Source: torch.nn.functional.linear.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_autocast_says, as_matrix, autocasts, cdiv, check_linear, check_together, given
from kernels.descriptors import takes_descriptors
from kernels.op import FusedOp, Work, like, planned, register
from kernels.tiled import linear_act_backward, linear_act_descriptors, linear_act_few


@triton.jit
def linear_act_kernel(
    x_ptr,  # (m, k), any row stride, unit column stride
    weight_ptr,  # (n, k), the same
    bias_ptr,  # (n,), or None
    residual_ptr,  # (m, n), contiguous, or None
    y_ptr,  # (m, n), contiguous
    sum_ptr,  # (m, n), contiguous, or None where no backward pass will ask for it
    m,
    n,
    k,
    x_row_stride,
    weight_row_stride,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of products of fp32: "ieee" or "tf32"
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
    """Tiles of 128 x 128 are the smallest that ask L2 for few enough bytes to keep tensor cores busy; 8 warps share
    their sums, 64 registers a thread. A step of K is 128 bytes of a row, a cache line. What has no tensor cores (fp32
    without tf32, and fp64's own few) keeps tiles and sums small enough for its registers."""
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
    """For x W^T, (..., n), uninitialised."""
    return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)


def _run(x, weight, bias, residual, act: str | None, tf32: bool, keep_sum: bool) -> tuple[Tensor, Tensor | None]:
    y = empty_result(x, weight)
    s = like(y) if keep_sum else None
    if y.numel() == 0:
        return y, s
    rows, weight, bias = as_matrix(x), as_matrix(weight), None if bias is None else bias.contiguous()
    results = [None if each is None else as_matrix(each.contiguous()) for each in (residual, y, s)]
    on_tensor_cores = x.dtype.itemsize == 2 or tf32
    with torch.cuda.device_of(x):
        whole = on_tensor_cores and takes_descriptors(rows, weight)
        if on_tensor_cores and not whole and linear_act_descriptors.worth_padding(rows, weight):
            whole, (rows, weight) = True, linear_act_descriptors.padded(rows, weight)
        if not whole:
            _launch(rows, weight, bias, *results, act, tf32)
        elif rows.shape[0] <= linear_act_few.ROWS:
            linear_act_few.launch(rows, weight, bias, *results, act)
        else:
            linear_act_descriptors.launch(rows, weight, bias, *results, act)
    return y, s


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, act: str | None, tf32: bool
) -> Tensor:
    return _run(x, weight, bias, residual, act, tf32, keep_sum=False)[0]


def _training(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, act: str | None, tf32: bool
) -> tuple[Tensor, Tensor]:
    y, s = _run(x, weight, bias, residual, act, tf32, keep_sum=act is not None)
    return y, x.new_empty(0) if s is None else s  # without an activation its gradient needs no sum


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
    backward=linear_act_backward.gradient_of_sum,
    backward_fake=lambda grad_y, s, act: (like(s), s.new_empty(s.shape[-1])),
    gradients=linear_act_backward.gradients,
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
    """act(x weight^T + bias) + residual in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., K), any strides; columns that are not side by side are copied first, and
            so are rows of a large product that begin between multiples of 16 bytes.
        weight: (N, K), of x's dtype and on its device, as are the others.
        bias: (N,).
        residual: (..., N), added after the activation.
        act: "relu", "gelu" (exact), "gelu_tanh", "silu", or None.
        tf32: let tensor cores round fp32 operands to tf32, 10 bits of mantissa; only for fp32. Without it fp32 stays
            exact, an eighth as fast at best.

    Returns:
        A contiguous tensor of shape (..., N) and x's dtype, the autocast dtype under autocast. Products are summed in
        fp32 (fp64 for fp64 inputs), where bias, activation and residual are applied too, and rounded once.

    Raises:
        TypeError: an argument is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes that do not fit, act is none of these, tf32 for another dtype, two devices, or tensors on
            the CPU where kernels run on a GPU.
    """
    x, weight, bias = as_autocast_says(x, weight, bias)
    if isinstance(residual, Tensor) and autocasts(x) and residual.dtype != x.dtype:
        return linear_act(x, weight, bias, None, act, tf32) + residual  # a stream of residuals in fp32 stays that
    if act is not None:
        check_activation("linear_act", act)
    check_together("linear_act", x=x, weight=weight, **given(bias=bias, residual=residual))
    check_linear("linear_act", x, weight, bias, residual)
    if tf32 and x.dtype != torch.float32:
        raise ValueError(f"linear_act takes tf32=True for float32, got {x.dtype}: leave it out")
    return linear_act_op(x, weight, bias, residual, act, tf32)


class LinearAct(torch.nn.Linear):
    """linear_act with weight and bias that are learned; torch.nn.Linear's arguments, and act and tf32 by name."""

    def __init__(self, *arguments, act: str | None = "gelu_tanh", tf32: bool = False, **options):
        super().__init__(*arguments, **options)
        if act is not None:
            check_activation("LinearAct", act)
        self.act, self.tf32 = act, tf32

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return linear_act(x, self.weight, self.bias, residual, self.act, self.tf32)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act={self.act!r}, tf32={self.tf32}"


def linear_act_reference(x, weight, bias=None, residual=None, act: str | None = "gelu_tanh") -> Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    s = torch.nn.functional.linear(x, weight, bias)
    y = s if act is None else ACTIVATIONS[act](s)
    return y if residual is None else y + residual


def linear_act_work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (M, K, N) with bias and GELU's tanh form: 2 M K N, and 10 operations an element of the
    result; x, weight and bias in once, y out once."""
    m, k, n = shape
    read, written = m * k + n * k + n, m * n
    return Work(costs.product(m, k, n) + (1 + costs.GELU_TANH) * m * n, read * dtype.itemsize, written * dtype.itemsize)


def _inputs(m: int, k: int, n: int, **options) -> tuple[Tensor, Tensor, Tensor]:
    # Weights of the size that a trained layer has, so that the sums are as large as x is.
    weight = torch.randn(n, k, **options) / max(1, k) ** 0.5
    return torch.randn(m, k, **options), weight, torch.randn(n, **options)


OP = FusedOp(
    name="linear_act",
    fused=linear_act,
    reference=linear_act_reference,
    work=linear_act_work,
    kernel=linear_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=linear_act_descriptors.compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 127, 129), (130, 96, 264), (33, 72, 40)),
    gpu_shapes=((1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 11008)),
    backward_work=linear_act_backward.work,
    kernel_for=lambda *shape: linear_act_descriptors.linear_act_descriptors_kernel,
)
