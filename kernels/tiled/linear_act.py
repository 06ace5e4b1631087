"""A linear layer, its activation and a residual in one kernel:  y = act(x W^T + bias) + residual.

Written out in PyTorch, cuBLAS adds the bias itself; the activation and the sum go through memory, M x N elements each:

    unfused   linear: read x and W, write s | activation: read s, write a | sum: read a and residual, write y
    fused     read x, W and residual, write y; the sum of products never leaves the registers in between

In bf16 at M = 8192, K = 4096, N = 11008 the activation alone moves 361 MB, 85 us at an H200's 4.2 TB/s, beside 940 us
of arithmetic at cuBLAS's 788 TFLOP/s. So what fusion can gain is a tenth, and a matmul a tenth slower than cuBLAS's
would lose all of it. It is also more precise: the fp32 sum is rounded once, after the epilogue, not once an operation.

Two kernels compute the same. `linear_act_plain_kernel` is the tiled matmul of textbooks: one program a tile, pointers
and masks. `linear_act_kernel` takes four steps from there, TFLOP/s with bias and GELU on an H200 in one run:

                                                                          8192^3   4096^3   8192 x 4096 x 11008
    plain kernel, tiles of 128 x 128                                         572      578      568
    tensor descriptors: the copy engine (TMA) fetches whole tiles into       705      700      682
        shared memory and checks the bounds; no registers spent on
        addresses and masks, so that tiles of 128 x 256 fit
    grouped order: tiles that run together form a block of the result,       756      714      741
        not a strip, and share x and W in L2
    persistent programs: one a multiprocessor walks over tiles, and the      774      734      771
        next tile's loads run under this tile's epilogue
    a shorter epilogue: GELU with one special instruction an element         778      741      779
        instead of two, and the bias loaded once a tile, coalesced
    cuBLAS and a GELU kernel                                                 748      686      704
    cuBLAS, linear and bias alone                                            793      762      783

Descriptors need rows that start at multiples of 16 bytes, and these tiles the shared memory of compute capability 9.0
or 10.0; everything else is for the plain kernel. Without an activation the kernel is level with cuBLAS (789, 762 and
799). With it the tensor cores wait 1.2 us of the 46 that a tile takes at 4096^3: the GELU's eight instructions an
element keep a multiprocessor's four schedulers for 2048 cycles. Measured to hide or shorten that, and not taken:

    - the hardware's own tanh, two instructions fewer: 1 per cent faster, but with an error that the tail shows;
    - a tile kept back (in 16 bits, or half of it in 32) and finished in the next one's first steps of K: 9 to 25 per
      cent slower, since every step then copies the registers it is kept in, and wrong values in Triton 3.6;
    - two programs of 128 x 128 a multiprocessor, one's epilogue under the other's products: 1, 5 and 22 per cent slower
      at 1024 rows, 4096^3 and 8192^3, for they ask L2 for a third more;
    - the bias as the sum's first value: each product then waits for the last, less than half the speed; loaded in the
      loop over K, under the products: 1 per cent slower at 8192^3;
    - the tile in one part with three stages of loads, in quarters, or of 256 x 128: up to 3 per cent slower;
    - letting other warps compute meanwhile (warp_specialize): 4 to 9 per cent slower, and NaN with some epilogues in
      Triton 3.6;
    - the same by hand (in Gluon), each half of the warps with its own 64 rows: as fast as here while the halves keep
      step. One must be two steps of K ahead for its epilogue to run under the other's products; that takes two of the
      four stages that fit in shared memory, and a third of the speed;
    - by hand, the tile's left half two steps ahead of its right: that hides the epilogue, but products of 128 columns
      read x twice as often. With the loads that asks 144 bytes a cycle of a shared memory that gives 128: 10 per cent
      slower;
    - the last two rounds' steps of K shared out evenly over the programs (stream-K), whose gain could be 3 per cent at
      8192^3, 15.5 rounds of which the last counts whole: level there and 10 per cent slower at 4096^3, for programs
      at different places in K share nothing in L2 and run at half the speed.

Training keeps s = x W^T + bias for the backward pass: grad_s = grad_y act'(s), its column sums (the bias's gradient) in
the same launch, then the two products grad_s W and grad_s^T x, which have no epilogue and are left to PyTorch.

Source: torch.nn.functional.linear; the order of tiles and the persistent loop after Triton's tutorials 03 and 09.
"""

import math
from functools import lru_cache, partial

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, activate_gradient, check_activation
from kernels.arguments import as_autocast_says, autocasts, check_together, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.sizes import cdiv

TILES_IN_SHARED_MEMORY = 227 * 2**10  # bytes that linear_act_kernel's tiles may take
# Rows and columns of a tile, warps, microseconds of a round of one tile a multiprocessor at K = 4096 (H200, bf16).
TILES = (
    (128, 256, 8, 45.4),
    (256, 128, 8, 47.0),
    (128, 128, 8, 26.7),
    (64, 128, 4, 20.3),
    (64, 64, 4, 12.2),
)


@triton.jit
def linear_act_plain_kernel(
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


@triton.jit
def grouped_order(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of the tile-th tile, GROUP rows of tiles at a time and column by column within them."""
    group = tile // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - group * GROUP, GROUP)
    within = tile % (GROUP * tiles_n)
    return group * GROUP + within % rows, within // rows


@triton.jit
def finish(acc, residual_desc, y_desc, sum_desc, row, col, ACT: tl.constexpr, PARTS: tl.constexpr):
    """The epilogue, from fp32 sums in registers to memory, in PARTS side by side one after another."""
    ROWS: tl.constexpr = acc.shape[0]
    COLS: tl.constexpr = acc.shape[1]
    if PARTS > 1:
        left, right = tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLS // 2)), (0, 2, 1)))
        finish(left, residual_desc, y_desc, sum_desc, row, col, ACT, PARTS // 2)
        finish(right, residual_desc, y_desc, sum_desc, row, col + COLS // 2, ACT, PARTS // 2)
    else:
        if sum_desc is not None:
            sum_desc.store([row, col], acc.to(sum_desc.dtype))
        y = acc if ACT is None else activate(acc, ACT, y_desc.dtype)
        if residual_desc is not None:
            y += residual_desc.load([row, col]).to(tl.float32)
        y_desc.store([row, col], y.to(y_desc.dtype))


@triton.jit
def linear_act_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K)
    weight_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    bias_ptr,  # (n,), or None
    residual_desc,  # (m, n) in tiles of (BLOCK_M, BLOCK_N // PARTS), or None
    y_desc,  # the same
    sum_desc,  # the same, or None where no backward pass will ask for it
    m,
    n,
    k,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of products of fp32; "ieee" for 16 bits, where it says nothing
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,  # in which a tile leaves, by way of shared memory: with fewer there is no room for loads
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            weight = weight_desc.load([col, step * BLOCK_K])
            acc = tl.dot(x, weight.T, acc, input_precision=PRECISION)
        if bias_ptr is not None:
            # For all parts at once: its way from memory is waited for once, and under the last product.
            at = col + tl.arange(0, BLOCK_N)
            acc += tl.load(bias_ptr + at, mask=at < n, other=0.0).to(tl.float32)[None, :]
        finish(acc, residual_desc, y_desc, sum_desc, row, col, ACT, PARTS)


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
    # One program owns some columns of every row that it walks over, so that their sums stay in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, tl.num_programs(1) * BLOCK_ROWS):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        s = tl.load(sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        grad = activate_gradient(grad_y, s, ACT)
        tl.store(grad_sum_ptr + row * cols + col, grad.to(grad_sum_ptr.dtype.element_ty), mask=inside)
        grad_bias += grad
    at = tl.program_id(1).to(tl.int64) * cols + col
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


def plain_settings(dtype: torch.dtype, tf32: bool = False) -> dict:
    """Tiles of linear_act_plain_kernel.

    128 x 128 are the smallest that ask L2 for few enough bytes to keep tensor cores busy; 8 warps share their sums, 64
    registers a thread, where 4 would spill on an A100. A step of K is 128 bytes of a row, a cache line. What has no
    tensor cores (fp32 without tf32, and fp64's own few) keeps tiles and sums small enough for its registers.
    """
    if dtype.itemsize == 2 or tf32:
        tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128 // dtype.itemsize, "num_warps": 8}
    elif dtype == torch.float32:
        tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4}
    else:
        tile = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4}
    return {
        "PRECISION": "tf32" if tf32 else "ieee",
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        **tile,
        "num_stages": 3,
    }


@lru_cache(maxsize=1024)  # batches come in many sizes
def settings(
    m: int, n: int, dtype: torch.dtype, residual: bool = False, keep_sum: bool = False, multiprocessors: int = 132
) -> dict:
    """Tiles of linear_act_kernel for an (m, n) result, with a residual read or the sum written beside it.

    Large tiles ask L2 for fewer bytes (128 x 256 for 3/4 of what 128 x 128 does), but multiprocessors take tiles in
    rounds, and a last round for a few tiles takes as long as a full one: the fastest are those of TILES whose rounds
    add up to the least time. On an H200, bf16, K = N = 4096: 1024 rows 47 us with 128 x 256, one round; 1056 rows 88,
    two rounds, and 78 with 128 x 128, three short ones. At 3000 x 4104 it is 182 us with 128 x 256 and 145 with
    256 x 128. cuBLAS has more tiles to choose from: 1056 rows take it 50 us, 3000 x 4104 141.

    A step of K is 128 bytes of a row, what the copy engine's swizzle spans. Tiles of 64 rows, which wait for memory and
    not for tensor cores, take two, and as many stages of loads as fit, up to six: 200 rows 19 us against 26, 64 rows of
    K = 14336 37 against 44. The others take four, where residual and sum leave room for them: against three they gain 2
    per cent at 4096^3 and 4 at 1024 rows. A tile leaves in halves, up to 1 per cent faster than in quarters; quarters
    where a second tensor needs registers that halves would spill, and for 4-byte elements. 16 rows of tiles make a
    group: 132 tiles of 128 x 256 are about a square then.
    """

    def time(tile: tuple) -> float:
        block_m, block_n, _, of_a_round = tile
        return cdiv(cdiv(m, block_m) * cdiv(n, block_n), multiprocessors) * of_a_round

    block_m, block_n, warps, _ = min(TILES, key=time)
    small = block_m == 64
    block_k = (256 if small else 128) // dtype.itemsize
    parts = 4 if residual or keep_sum or dtype.itemsize == 4 else 2
    stage = (block_m + block_n) * block_k * dtype.itemsize
    passing = (2 if residual else 1) * block_m * block_n // parts * dtype.itemsize
    return {
        "PRECISION": "tf32" if dtype == torch.float32 else "ieee",
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP": 16,
        "PARTS": parts,
        "num_warps": warps,
        "num_stages": min(6 if small else 4, (TILES_IN_SHARED_MEMORY - 1024 - passing) // stage),
    }


def backward_settings(dtype: torch.dtype) -> dict:
    """Launch settings of the backward kernel: 128-byte pieces of 16 rows in flight.

    On an H200 in bf16 with the sum over programs: 16 us for 1024 x 4096 and 171 us for 8192 x 11008, where PyTorch's
    two operations take 20 and 199. Wider pieces of fewer rows (8 x 256) take 22 and 202.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"COMPUTE": compute, "BLOCK_ROWS": 16, "BLOCK_COLS": 64, "num_warps": 4}


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    """x as (rows, cols) with columns side by side: a view where its strides allow it, else a copy."""
    rows = x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def take_descriptors(*matrices: torch.Tensor) -> bool:
    """Whether the kernels with tensor descriptors can have them: rows start at multiples of 16 bytes, and the GPU has
    shared memory for the tiles."""
    for matrix in matrices:
        stride = matrix.stride(0)
        if matrix.data_ptr() % 16 or stride * matrix.itemsize % 16 or not stride >= matrix.shape[1] > 0:
            return False
    return shared_memory(matrices[0]) >= TILES_IN_SHARED_MEMORY


def _launch_plain(x, weight, bias, residual, y, s, act: str | None, tf32: bool) -> None:
    (m, k), n = x.shape, weight.shape[0]
    chosen = plain_settings(x.dtype, tf32)
    grid = (cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"]),)
    strides = x.stride(0), weight.stride(0)
    linear_act_plain_kernel[grid](x, weight, bias, residual, y, s, m, n, k, *strides, ACT=act, **chosen)


def _launch_descriptors(x, weight, bias, residual, y, s, act: str | None) -> None:
    (m, k), n = x.shape, weight.shape[0]
    chosen = settings(m, n, x.dtype, residual is not None, s is not None, multiprocessors(x))
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    part = [tile_m, tile_n // chosen["PARTS"]]
    describe = TensorDescriptor.from_tensor
    of_x, of_weight = describe(x, [tile_m, tile_k]), describe(weight, [tile_n, tile_k])
    results = [None if each is None else describe(each, part) for each in (residual, y, s)]
    grid = (min(multiprocessors(x), cdiv(m, tile_m) * cdiv(n, tile_n)),)
    linear_act_kernel[grid](of_x, of_weight, bias, *results, m, n, k, ACT=act, **chosen)


def _run(x, weight, bias, residual, act: str | None, tf32: bool, keep_sum: bool, plain: bool = False):
    """y, and s or None."""
    y = torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
    s = torch.empty_like(y) if keep_sum else None
    if y.numel() == 0:
        return y, s
    rows, weight, bias = as_matrix(x), as_matrix(weight), None if bias is None else bias.contiguous()
    results = [None if each is None else as_matrix(each.contiguous()) for each in (residual, y, s)]
    on_tensor_cores = x.dtype.itemsize == 2 or (tf32 and x.dtype == torch.float32)
    with torch.cuda.device_of(x):
        described = rows, weight, *(each for each in results if each is not None)
        if not plain and on_tensor_cores and take_descriptors(*described):
            _launch_descriptors(rows, weight, bias, *results, act)
        else:
            _launch_plain(rows, weight, bias, *results, act, tf32)
    return y, s


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    act: str | None,
    tf32: bool,
) -> torch.Tensor:
    return _run(x, weight, bias, residual, act, tf32, keep_sum=False)[0]


def _forward_keeping_sum(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    act: str,
    tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(x, weight, bias, residual, act, tf32, keep_sum=True)


def _backward(grad_y: torch.Tensor, s: torch.Tensor, act: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of s and, summed in fp32 but for fp64, of the bias."""
    grad_s = torch.empty_like(s)
    sums = torch.float64 if s.dtype == torch.float64 else torch.float32
    if s.numel() == 0:
        return grad_s, torch.zeros(s.shape[-1], dtype=s.dtype, device=s.device)
    grad_y = as_matrix(grad_y)
    rows, cols = grad_y.shape
    chosen = backward_settings(s.dtype)
    tiles = cdiv(cols, chosen["BLOCK_COLS"])
    programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(8 * multiprocessors(s), tiles))
    grad_bias = torch.empty(programs, cols, dtype=sums, device=s.device)
    with torch.cuda.device_of(s):
        linear_act_backward_kernel[(tiles, programs)](
            grad_y, s, grad_s, grad_bias, rows, cols, grad_y.stride(0), ACT=act, **chosen
        )
    return grad_s, grad_bias.sum(0).to(s.dtype)


def _keep_operands(ctx, inputs, output):
    ctx.act = inputs[4]
    if ctx.act is None:
        ctx.save_for_backward(*inputs[:2])
    else:
        ctx.set_materialize_grads(False)  # no tensor of zeros for the sum, which nobody differentiates
        ctx.save_for_backward(*inputs[:2], output[1])


def _gradients(ctx, grad_y: torch.Tensor | None, of_sum=None, activation_gradient=_backward):
    """One for each argument of _forward. The two products are matmuls without an epilogue: PyTorch's, as precise as
    torch.backends.cuda.matmul says."""
    if grad_y is None:
        return (None,) * 6
    x, weight, *kept = ctx.saved_tensors
    to_x, to_weight, to_bias, to_residual = ctx.needs_input_grad[:4]
    if kept:
        grad_s, grad_bias = activation_gradient(grad_y, *kept, ctx.act)
    else:
        grad_s, grad_bias = grad_y, as_matrix(grad_y).sum(0) if to_bias else None
    return (
        grad_s @ weight if to_x else None,
        as_matrix(grad_s).T @ as_matrix(x) if to_weight else None,
        grad_bias if to_bias else None,
        grad_y if to_residual else None,
        None,
        None,
    )


class LinearFunction(torch.autograd.Function):
    """x W^T + bias + residual for autograd. Calling it costs Python less than the registered operator does."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep_operands)
    backward = staticmethod(once_differentiable(_gradients))


class LinearActFunction(torch.autograd.Function):
    """act(x W^T + bias) + residual and the sum before the activation, for autograd."""

    forward = staticmethod(_forward_keeping_sum)
    setup_context = staticmethod(_keep_operands)
    backward = staticmethod(once_differentiable(_gradients))


# The same for torch.compile, which does not look inside registered operators.
linear_act_op = torch.library.custom_op("kernel_fusion::linear_act", _forward, mutates_args=())
linear_act_training_op = torch.library.custom_op(
    "kernel_fusion::linear_act_training", _forward_keeping_sum, mutates_args=()
)
linear_act_backward_op = torch.library.custom_op("kernel_fusion::linear_act_backward", _backward, mutates_args=())


def _result_like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


linear_act_op.register_fake(lambda x, weight, *rest: _result_like(x, weight))
linear_act_training_op.register_fake(lambda x, weight, *rest: (_result_like(x, weight), _result_like(x, weight)))
linear_act_backward_op.register_fake(lambda grad_y, s, act: (torch.empty_like(s), s.new_empty(s.shape[-1])))
for _operator in (linear_act_op, linear_act_training_op):
    _operator.register_autograd(
        partial(_gradients, activation_gradient=linear_act_backward_op), setup_context=_keep_operands
    )


def _check(operation: str, x, weight, bias, residual, act: str | None, tf32: bool) -> None:
    if act is not None:
        check_activation(operation, act)
    operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    check_together(operation, **{name: each for name, each in operands.items() if each is not None})
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{operation} takes x of (..., K) and weight of (N, K), got {tuple(x.shape)} and {tuple(weight.shape)}: "
            f"transpose weight, or reshape x"
        )
    shapes = {"bias": weight.shape[:1], "residual": (*x.shape[:-1], weight.shape[0])}
    for name, shape in shapes.items():
        if operands[name] is not None and operands[name].shape != shape:
            raise ValueError(
                f"{operation} takes {name} of {tuple(shape)} for x of {tuple(x.shape)} and weight of "
                f"{tuple(weight.shape)}, got {tuple(operands[name].shape)}: expand or reshape it"
            )
    if tf32 and x.dtype != torch.float32:
        raise ValueError(f"{operation} takes tf32=True for float32, got {x.dtype}: leave it out")


def linear_act(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    act: str | None = "gelu_tanh",
    tf32: bool = False,
) -> torch.Tensor:
    """act(x weight^T + bias) + residual in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., K), any strides; columns that are not side by side are copied first.
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
    if isinstance(residual, torch.Tensor) and autocasts(x) and residual.dtype != x.dtype:
        return linear_act(x, weight, bias, None, act, tf32) + residual  # a stream of residuals in fp32 stays that
    _check("linear_act", x, weight, bias, residual, act, tf32)
    arguments = x, weight, bias, residual, act, tf32
    tracked = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in arguments[:4])
    if torch.compiler.is_compiling():
        return linear_act_training_op(*arguments)[0] if tracked and act is not None else linear_act_op(*arguments)
    if not tracked:
        return _forward(*arguments)
    return LinearFunction.apply(*arguments) if act is None else LinearActFunction.apply(*arguments)[0]


def linear_act_plain(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    act: str | None = "gelu_tanh",
    tf32: bool = False,
) -> torch.Tensor:
    """linear_act by the plain kernel, whatever the GPU and the strides; arguments and errors the same, no gradient."""
    _check("linear_act_plain", x, weight, bias, residual, act, tf32)
    return _run(x, weight, bias, residual, act, tf32, keep_sum=False, plain=True)[0]


class LinearAct(torch.nn.Linear):
    """linear_act with weight and bias that are learned, initialised as torch.nn.Linear's."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        act: str | None = "gelu_tanh",
        tf32: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(in_features, out_features, bias, device, dtype)
        if act is not None:
            check_activation("LinearAct", act)
        self.act, self.tf32 = act, tf32

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return linear_act(x, self.weight, self.bias, residual, self.act, self.tf32)


def linear_act_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    act: str | None = "gelu_tanh",
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    s = torch.nn.functional.linear(x, weight, bias)
    y = s if act is None else ACTIVATIONS[act](s)
    return y if residual is None else y + residual


def linear_act_work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (M, K, N) with bias and GELU's tanh form: 2 M K N, and 10 operations an element of the
    result; x, weight and bias in once, y out once."""
    m, k, n = shape
    return Work(
        flops=2 * m * k * n + 10 * m * n,
        bytes_read=(m * k + n * k + n) * dtype.itemsize,
        bytes_written=m * n * dtype.itemsize,
    )


def linear_act_backward_work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients: two products, and 20 operations an element of the result; grad_y,
    s, x and weight in once, the gradients out once."""
    m, k, n = shape
    return Work(
        flops=4 * m * k * n + 20 * m * n,
        bytes_read=(2 * m * n + m * k + n * k) * dtype.itemsize,
        bytes_written=(m * k + n * k + n) * dtype.itemsize,
    )


def _inputs(m: int, k: int, n: int, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # Weights of the size that a trained layer has, so that the sums are as large as x is.
    weight = torch.randn(n, k, **options) / max(1, k) ** 0.5
    return torch.randn(m, k, **options), weight, torch.randn(n, **options)


def compile_arguments(m: int, k: int, n: int, dtype: torch.dtype, bias: bool = True) -> tuple[tuple, dict]:
    """As FusedOp.compile_arguments."""
    chosen = settings(m, n, dtype)
    describe = TensorDescriptor.from_tensor
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    of_y = describe(y, [tile_m, tile_n // chosen["PARTS"]])
    operands = (
        describe(x, [tile_m, tile_k]),
        describe(weight, [tile_n, tile_k]),
        y[0] if bias else None,
        None,
        of_y,
        None,
    )
    return (*operands, m, n, k), {"ACT": "gelu_tanh", **chosen}


OP = FusedOp(
    name="linear_act",
    fused=linear_act,
    reference=linear_act_reference,
    work=linear_act_work,
    kernel=linear_act_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=compile_arguments,
    interpreter_shapes=((1, 1, 1), (5, 127, 129), (130, 96, 264), (33, 72, 40)),
    gpu_shapes=((1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 11008)),
    backward_work=linear_act_backward_work,
)
