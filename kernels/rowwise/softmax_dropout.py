"""Softmax of each row and dropout in one kernel:  y = dropout(softmax(x)), as attention applies to its scores.

    unfused   softmax: read x, write s | dropout: read s, write y and a mask of 1 B    9 B/element in 16 bits
    fused     read x, write y                                                           4 B/element, one launch

Neither the probabilities nor the mask is stored for the backward pass:

    grad_x = softmax (passed - sum(softmax passed)),    passed = grad_y mask / (1 - p)

It recomputes both from x, each row's maximum and sum, and the seed (kernels/philox.py): read x, read grad_y, write
grad_x, 6 B/element. Rows of up to 16384 columns stay in registers, 8192 in the backward pass; wider ones are
read twice.

Source: Vaswani et al., "Attention is all you need", arXiv:1706.03762; torch.nn.functional.dropout.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns
from kernels.online_softmax import LOG2_E, absorb
from kernels.op import FusedOp, Work, like, planned, register
from kernels.philox import begin_fours, check_dropout, dropout_mask, kept_eights, new_seed, scale_of_kept
from kernels.rowwise.blocks import CHUNK, alignment, compute_dtype, row_settings

MAX_COLUMNS = 16384  # widest row that a program keeps in registers next to Philox's numbers


@triton.jit
def softmax_dropout_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; None without a backward pass
    seed_ptr,  # (1,) int64
    rows,
    cols,
    x_row_stride,
    p,
    scale,  # 1 / (1 - p)
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,  # the row's first columns, a power of two, at least 8
    TAIL: tl.constexpr,  # a power of two, at least the remaining columns; 0 where there are none
    FOURS: tl.constexpr,  # each row starts with four columns of one Philox evaluation
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides; the compiler, told so, loads 16 bytes at a time
):
    cols, x_row_stride = cols // ALIGN * ALIGN, x_row_stride // ALIGN * ALIGN
    # int64 before the multiplication: row numbers and row * stride pass 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, HEAD)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
    top = tl.max(x, axis=1, keep_dims=True)
    if TAIL:
        tail_col = HEAD + tl.arange(0, TAIL)[None, :]
        in_tail = (row < rows) & (tail_col < cols)
        x_tail = tl.load(x_ptr + row * x_row_stride + tail_col, mask=in_tail, other=-float("inf")).to(COMPUTE)
        top = tl.maximum(top, tl.max(x_tail, axis=1, keep_dims=True))
    e = tl.exp(x - top)
    total = tl.sum(e, axis=1, keep_dims=True)
    if TAIL:
        e_tail = tl.exp(x_tail - top)
        total += tl.sum(e_tail, axis=1, keep_dims=True)
    scale = scale / total  # NaN if any of the row is: dropped elements are NaN then too, as in PyTorch
    seed = tl.load(seed_ptr)
    within_four = (row * cols % 4).to(tl.int32)
    eights = tl.zeros((BLOCK_ROWS, 1), tl.int32) + 8 * tl.arange(0, HEAD // 8)[None, :]
    keep = kept_eights(seed, row, eights, within_four, p, FOURS)
    y = tl.where(keep, e, 0.0) * scale
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)
    if TAIL:
        eights = tl.zeros((BLOCK_ROWS, 1), tl.int32) + HEAD + 8 * tl.arange(0, TAIL // 8)[None, :]
        keep = kept_eights(seed, row, eights, within_four, p, FOURS)
        y = tl.where(keep, e_tail, 0.0) * scale
        tl.store(y_ptr + row * cols + tail_col, y.to(y_ptr.dtype.element_ty), mask=in_tail)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top, mask=row < rows)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total), mask=row < rows)


@triton.jit
def softmax_dropout_online_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    sums_ptr,  # as above
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    p,
    scale,
    BLOCK: tl.constexpr,  # columns at a time
    FOURS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    top, total = tl.full((1,), -float("inf"), COMPUTE), tl.zeros((1,), COMPUTE)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(COMPUTE)
        top, total = absorb(top, total, x)
    seed = tl.load(seed_ptr)
    within_four = (row * cols % 4).to(tl.int32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + col, mask=col < cols).to(COMPUTE)
        keep = kept_eights(seed, row, start + 8 * tl.arange(0, BLOCK // 8)[None, :], within_four, p, FOURS)
        y = tl.where(keep, tl.exp(x - top), 0.0) * (scale / total)
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row + tl.arange(0, 1), top)
        tl.store(sums_ptr + 2 * row + 1 + tl.arange(0, 1), tl.log2(total))


def settings(cols: int, dtype: torch.dtype, *strides: int, tensors: int = 1) -> dict:
    """Return the kernel's settings for rows of `cols` columns with these row strides, of `tensors` tensors."""
    chosen = row_settings(max(16, cols), dtype, tensors)  # HEAD of 8 at least
    chosen["TAIL"] = chosen["TAIL"] and max(8, chosen["TAIL"])  # kept_eights takes whole groups of eight columns
    return {**chosen, "FOURS": begin_fours(cols, 1), "ALIGN": alignment(cols, *strides)}


def _in_chunks(cols: int, dtype: torch.dtype) -> dict:
    return {"BLOCK": CHUNK, "FOURS": begin_fours(cols, 1), "COMPUTE": compute_dtype(dtype), "num_warps": 16}


def sums_of(x: torch.Tensor) -> torch.Tensor:
    """Allocate one maximum and one sum per row."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.empty((*x.shape[:-1], 2), dtype=dtype, device=x.device)


def _launch(x: torch.Tensor, sums: torch.Tensor | None, seed: torch.Tensor, p: float) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    sizes = cols, x.stride(0), float(p), scale_of_kept(p)
    with torch.cuda.device_of(x):
        if cols <= MAX_COLUMNS:
            chosen = settings(cols, x.dtype, x.stride(0))
            programs = triton.cdiv(rows, chosen["BLOCK_ROWS"])
            softmax_dropout_kernel[(programs,)](x, y, sums, seed, rows, *sizes, **chosen)
        else:
            softmax_dropout_online_kernel[(rows,)](x, y, sums, seed, *sizes, **_in_chunks(cols, x.dtype))
    return y


def _forward(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    return _launch(x, None, seed, p)


def _training(x: torch.Tensor, seed: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    sums = sums_of(x)
    return _launch(x, sums, seed, p), sums


@triton.jit
def recompute(grad_y_ptr, x_ptr, row, first, inside, cols, top, log_total, seed, p, scale, FOURS: tl.constexpr):
    """Return softmax and passed in the columns starting at `first`, with the shape of `inside`; 0 where that is
    false."""
    ROWS: tl.constexpr = inside.shape[0]
    COLS: tl.constexpr = inside.shape[1]
    col = first + tl.arange(0, COLS)[None, :]
    grad_y = tl.load(grad_y_ptr + col, mask=inside, other=0.0).to(top.dtype)
    x = tl.load(x_ptr + col, mask=inside, other=-float("inf")).to(top.dtype)
    eights = tl.zeros((ROWS, 1), tl.int32) + first + 8 * tl.arange(0, COLS // 8)[None, :]
    keep = kept_eights(seed, row, eights, (row * cols % 4).to(tl.int32), p, FOURS)
    return tl.exp2((x - top) * LOG2_E - log_total), grad_y * tl.where(keep, scale, 0.0)


@triton.jit
def softmax_dropout_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    sums_ptr,  # (rows, 2) COMPUTE
    seed_ptr,  # (1,) int64
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    CHUNKED: tl.constexpr,  # rows are wider than HEAD + TAIL: read twice, in chunks of TAIL
    FOURS: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGN: tl.constexpr,  # divides cols and the row strides
):
    cols = cols // ALIGN * ALIGN
    grad_y_row_stride = grad_y_row_stride // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    here = row < rows
    grad_y_ptr += row * grad_y_row_stride
    x_ptr += row * x_row_stride
    grad_x_ptr += row * cols
    top = tl.load(sums_ptr + 2 * row, mask=here, other=0.0)
    log_total = tl.load(sums_ptr + 2 * row + 1, mask=here, other=0.0)
    seed = tl.load(seed_ptr)
    chunk = tl.arange(0, TAIL if TAIL else 1)[None, :]

    col = tl.arange(0, HEAD)[None, :]
    inside = here & (col < cols)
    softmax, passed = recompute(grad_y_ptr, x_ptr, row, 0, inside, cols, top, log_total, seed, p, scale, FOURS)
    dot = tl.sum(softmax * passed, axis=1, keep_dims=True)
    if TAIL:
        in_tail = here & (HEAD + chunk < cols)
        softmax_tail, passed_tail = recompute(
            grad_y_ptr, x_ptr, row, HEAD, in_tail, cols, top, log_total, seed, p, scale, FOURS
        )
        dot += tl.sum(softmax_tail * passed_tail, axis=1, keep_dims=True)
    if CHUNKED:
        for start in range(HEAD + TAIL, cols, TAIL):
            in_chunk = here & (start + chunk < cols)
            more, passed_more = recompute(
                grad_y_ptr, x_ptr, row, start, in_chunk, cols, top, log_total, seed, p, scale, FOURS
            )
            dot += tl.sum(more * passed_more, axis=1, keep_dims=True)

    tl.store(grad_x_ptr + col, (softmax * (passed - dot)).to(grad_x_ptr.dtype.element_ty), mask=inside)
    if TAIL:
        grad_x_tail = softmax_tail * (passed_tail - dot)
        tl.store(grad_x_ptr + HEAD + chunk, grad_x_tail.to(grad_x_ptr.dtype.element_ty), mask=in_tail)
    if CHUNKED:
        for start in range(HEAD + TAIL, cols, TAIL):
            in_chunk = here & (start + chunk < cols)
            more, passed_more = recompute(
                grad_y_ptr, x_ptr, row, start, in_chunk, cols, top, log_total, seed, p, scale, FOURS
            )
            grad_x_more = more * (passed_more - dot)
            tl.store(grad_x_ptr + start + chunk, grad_x_more.to(grad_x_ptr.dtype.element_ty), mask=in_chunk)


def backward_settings(cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return the backward's settings for rows of `cols` columns: two tensors need twice the registers."""
    if cols <= MAX_COLUMNS // 2:
        return {"CHUNKED": False, **settings(cols, dtype, *strides, tensors=2)}
    return {
        **settings(MAX_COLUMNS // 2, dtype, tensors=2),
        "HEAD": 4096,
        "TAIL": 4096,
        "CHUNKED": True,
        "FOURS": begin_fours(cols, 1),
        "ALIGN": alignment(cols, *strides),
    }


def _backward(grad_y: torch.Tensor, x: torch.Tensor, sums: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    grad_x = like(x)
    if x.numel() == 0:
        return grad_x
    x, grad_y = as_rows(x), as_rows(grad_y)
    (rows, cols), strides = x.shape, (grad_y.stride(0), x.stride(0))
    chosen = backward_settings(cols, x.dtype, *strides)
    programs = triton.cdiv(rows, chosen["BLOCK_ROWS"])
    sizes = rows, cols, *strides, float(p), scale_of_kept(p)
    with torch.cuda.device_of(x):
        softmax_dropout_backward_kernel[(programs,)](grad_y, x, sums, seed, grad_x, *sizes, **chosen)
    return grad_x


softmax_dropout_op = register(
    "softmax_dropout",
    _forward,
    lambda x, seed, p: like(x),
    training=_training,
    training_fake=lambda x, seed, p: (like(x), sums_of(x)),
    keep=lambda arguments, result: (arguments[0], result[1], *arguments[1:]),
    backward=_backward,
    backward_fake=lambda grad_y, x, sums, seed, p: like(x),
)


@planned
def softmax_dropout(x: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1) -> torch.Tensor:
    """Compute dropout(softmax(x)) over the last dimension in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; non-adjacent columns are copied first.
        seed: int64 tensor of one value on x's device: the same seed drops the same elements (see
            kernels.philox.dropout_mask). If not given, a small launch draws it from PyTorch's generator.
            torch.compile's generator differs; pass a seed to get the same numbers there.
        p: the drop probability, 0 to 1; kept elements are multiplied by 1 / (1 - p), as fp32.

    Returns:
        A contiguous tensor of x's shape and dtype, even under autocast. The arithmetic is fp32 (fp64 for fp64 inputs),
        rounded once. A row of only -inf, or one that contains NaN or inf, becomes NaN, as in PyTorch.

    Raises:
        TypeError: x is not a floating-point tensor, or seed is not int64.
        ValueError: x has no dimension, p is not within 0 to 1, or seed is not one value on x's device.
    """
    check_alike("softmax_dropout", x=x)
    check_columns("softmax_dropout", x)
    check_dropout("softmax_dropout", x, seed, p)
    seed = new_seed(x.device) if seed is None else seed
    return softmax_dropout_op(x, seed, p)


def softmax_dropout_reference(x: torch.Tensor, seed: torch.Tensor | None = None, p: float = 0.1) -> torch.Tensor:
    """Compute the same in PyTorch, unfused; PyTorch's generator chooses the dropped elements."""
    return torch.nn.functional.dropout(torch.nn.functional.softmax(x, dim=-1), p)


def softmax_dropout_oracle(x: torch.Tensor, seed: torch.Tensor, p: float = 0.1) -> torch.Tensor:
    """Compute the same, dropping the elements that `seed` drops."""
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    mask = dropout_mask(seed, rows, x.shape[-1], p).view(x.shape)
    return torch.nn.functional.softmax(x, dim=-1) * mask.to(x.dtype) * scale_of_kept(p)


def softmax_dropout_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: 6 operations per element, without random numbers; x and seed in, y out."""
    elements = torch.Size(shape).numel()
    return Work(flops=6 * elements, bytes_read=elements * dtype.itemsize + 8, bytes_written=elements * dtype.itemsize)


def softmax_dropout_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic of the gradient: 8 operations per element; x, grad_y, two fp32 values per row
    and the seed in, grad_x out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    rows = elements // shape[-1] if elements else 0
    return Work(flops=8 * elements, bytes_read=2 * elements * size + 8 * rows + 8, bytes_written=elements * size)


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, device=device, **options), new_seed(device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, seed = torch.empty(shape, dtype=dtype, device="meta"), torch.empty((), dtype=torch.int64, device="meta")
    sizes = cols, cols, 0.1, scale_of_kept(0.1)
    if cols > MAX_COLUMNS:
        return (x, x, None, seed, *sizes), _in_chunks(cols, dtype)
    return (x, x, None, seed, rows, *sizes), settings(cols, dtype)


OP = FusedOp(
    name="softmax_dropout",
    fused=softmax_dropout,
    reference=softmax_dropout_reference,
    work=softmax_dropout_work,
    kernel=softmax_dropout_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 20000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (16384, 16384)),
    backward_work=softmax_dropout_backward_work,
    oracle=softmax_dropout_oracle,
    kernel_for=lambda *shape: softmax_dropout_kernel if shape[-1] <= MAX_COLUMNS else softmax_dropout_online_kernel,
)
