"""Tuned softmax and its gradient for 16-bit rows of more than 32768 columns, each split over programs on several SMs.

A program keeps a part of its row in registers and reduces it: forward to a maximum and a sum of exponentials, in the
gradient to one sum. It publishes the result in `parts`, reads it there again and again until the row's other programs
have published theirs, and writes its part of y. So a row wider than an SM's registers is read only once, and a few
rows keep all SMs busy. A result is published with its row's other numbers in one 64-bit word that is never 0, as
`parts` is before: no fence and no second round trip are needed.

Waiting cannot hang, whatever the order in which the hardware starts programs. A program draws a ticket when it starts,
which gives it its row and part; tickets go through the rows in order. So of all rows drawn from, only the last can
lack programs: those of the others have all started, publish before they wait, and end. The last row's programs, while
they wait, leave places free: a row has at most a quarter as many parts as the GPU has SMs, and an SM holds at least
four programs. So the next program can start, and it draws the next missing part. That is still so if sixteen launches
run side by side. Each launch has tickets of its own, in fresh memory that is zeroed before it, also where a CUDA graph
replays it. Rows of more parts are left to wide_softmax.py, and so are rows that aren't whole 16-byte vectors.

All threads of a program must leave the loop at once, with the same words. So each thread loads one word, and the sum of
the missing ones goes through shared memory: were a word loaded by two threads, one could see it published, and the
other not.

Loads have no eviction policy: marked evict_first they take softmax of 883 x 151936 191 us instead of 188, and its
gradient 282 instead of 272 (H100).
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import MULTIPROCESSORS, cdiv, multiprocessors, next_power_of_2
from kernels.interpreter.runtime import interprets
from kernels.online_softmax import LOG2_E
from kernels.op import like
from kernels.tuned.packed import halves, join_halves, opaque_zero
from kernels.tuned.segments import VECTOR_BYTES
from kernels.variants import tuned

MIN_COLUMNS = 32769
SMS_PER_PART = 4  # least number of SMs for each part of a row


@triton.jit
def draw(parts_ptr, count):
    """Draw a ticket, and return its row and which of the row's `count` parts it is."""
    ticket = tl.atomic_add(parts_ptr, 1, sem="relaxed").to(tl.int32)
    # int64 before a multiplication: row * cols passes 2**31 on large tensors.
    return (ticket // count).to(tl.int64), ticket % count


@triton.jit
def word_of(number, second):
    """Return two fp32 numbers as one int64, the first in its upper half."""
    lower = second.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (number.to(tl.int32, bitcast=True).to(tl.int64) << 32) | lower


@triton.jit
def all_published(parts_ptr, count, THREADS: tl.constexpr):
    """Wait until the row's `count` words are published, and return them: (THREADS,), the rest 1."""
    words, missing = tl.zeros((THREADS,), tl.int64), 1
    while missing > 0:
        words = tl.load(parts_ptr + tl.arange(0, THREADS), mask=tl.arange(0, THREADS) < count, other=1, volatile=True)
        missing = tl.sum((words == 0).to(tl.int32))
    return words


@triton.jit
def exchange(parts_ptr, part, count, number, second, THREADS: tl.constexpr):
    """Publish two numbers that are not both 0, and return those of all of the row's parts: twice (THREADS,), fp32."""
    tl.atomic_xchg(parts_ptr + part, word_of(number, second), sem="relaxed")
    words = all_published(parts_ptr, count, THREADS)
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True), words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def words_of(ptr, row, cols):
    """Return a pointer to the row's first word, which is two elements; `cols` is a multiple of 8."""
    return ptr.to(tl.pointer_type(tl.int32)) + row * cols // 8 * 4


@triton.jit
def softmax_split_kernel(
    x_ptr,  # (rows, cols), contiguous, 16-bit elements, rows are whole vectors of 16 bytes
    y_ptr,  # the same
    parts_ptr,  # (1 + rows, PARTS), int64, zeros; the first counts tickets
    cols,
    count,  # parts of a row
    PARTS: tl.constexpr,  # at least count
    THREADS: tl.constexpr,  # of a program; at least count
    BLOCK: tl.constexpr,  # words of a part
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    row, part = draw(parts_ptr, count)
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols // 8 * 4
    lowest = tl.full((1,), -float("inf"), tl.float32)
    x = tl.load(words_of(x_ptr, row, cols) + at, mask=inside, other=join_halves(lowest, lowest, DTYPE))
    low, high = halves(x, 0, DTYPE)
    top = tl.max(tl.maximum(low, high), axis=0) * LOG2_E
    base = tl.where(top == -float("inf"), 0.0, top)  # a part of only -inf would compute -inf - -inf
    low, high = tl.exp2(low * LOG2_E - base), tl.exp2(high * LOG2_E - base)
    tops, totals = exchange(parts_ptr + (row + 1) * PARTS, part, count, top, tl.sum(low + high, axis=0), THREADS)
    mine = tl.arange(0, THREADS) < count
    highest = tl.max(tl.where(mine, tops, -float("inf")), axis=0)
    total = tl.sum(tl.where(mine, totals * tl.exp2(tops - highest), 0.0), axis=0)
    scale = tl.exp2(top - highest) / total
    words = join_halves(low * scale, high * scale, DTYPE)
    tl.store(words_of(y_ptr, row, cols) + at, words, mask=inside, eviction_policy="evict_first")


@triton.jit
def softmax_backward_split_kernel(
    grad_y_ptr,  # (rows, cols), contiguous, 16-bit elements, rows are whole vectors of 16 bytes
    y_ptr,  # the same
    grad_x_ptr,  # the same
    parts_ptr,  # (1 + rows, PARTS), int64, zeros; the first counts tickets
    cols,
    count,
    PARTS: tl.constexpr,
    THREADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    row, part = draw(parts_ptr, count)
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols // 8 * 4
    grad_y = tl.load(words_of(grad_y_ptr, row, cols) + at, mask=inside, other=0)
    y = tl.load(words_of(y_ptr, row, cols) + at, mask=inside, other=0)
    low, high = halves(y, 0, DTYPE)
    grad_low, grad_high = halves(grad_y, 0, DTYPE)
    dot = tl.sum(low * grad_low + high * grad_high, axis=0)
    _, dots = exchange(parts_ptr + (row + 1) * PARTS, part, count, tl.full((), 1.0, tl.float32), dot, THREADS)
    dot = tl.sum(tl.where(tl.arange(0, THREADS) < count, dots, 0.0), axis=0)
    zero = opaque_zero(dot, cols)
    low, high = halves(y, zero, DTYPE)
    grad_low, grad_high = halves(grad_y, zero, DTYPE)
    words = join_halves(low * (grad_low - dot), high * (grad_high - dot), DTYPE)
    tl.store(words_of(grad_x_ptr, row, cols) + at, words, mask=inside, eviction_policy="evict_first")


def settings(cols: int) -> dict:
    """Return the forward's options: parts of 4096 or 8192 elements, 64 per thread, whose exponentials it keeps."""
    warps = 2 if cols <= 65536 else 4
    return {"BLOCK": 1024 * warps, "THREADS": 32 * warps, "num_warps": warps, "maxnreg": 96}


def backward_settings(cols: int) -> dict:
    """Return the gradient's options: a thread has 32 elements of each tensor, packed."""
    return {"BLOCK": 4096, "THREADS": 256, "num_warps": 8, "maxnreg": 64}


def _parts(rows: int, cols: int, block: int, device: torch.device) -> tuple[torch.Tensor, int]:
    count = cdiv(cols, 2 * block)
    return torch.zeros(1 + rows, next_power_of_2(count), dtype=torch.int64, device=device), count


def _fits(cols: int, itemsize: int, sms: int) -> bool:
    """Return whether rows are wide enough and whole vectors, and programs that wait leave places free."""
    whole = itemsize == 2 and cols >= MIN_COLUMNS and cols * itemsize % VECTOR_BYTES == 0
    return whole and SMS_PER_PART * cdiv(cols, 2 * settings(cols)["BLOCK"]) <= sms


def takes(*tensors: torch.Tensor) -> bool:
    """Return whether these kernels take these tensors, their inputs."""
    x = tensors[0]
    if x.numel() == 0 or interprets() or not _fits(x.shape[-1], x.itemsize, multiprocessors(x)):
        return False
    return all(each.is_contiguous() and each.data_ptr() % VECTOR_BYTES == 0 for each in tensors)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple | None:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    if not _fits(cols, dtype.itemsize, MULTIPROCESSORS):
        return None
    chosen = settings(cols)
    parts, count = _parts(rows, cols, chosen["BLOCK"], x.device)
    return softmax_split_kernel, (x, x, parts, cols, count, parts.shape[1]), chosen


@tuned(
    "softmax",
    "forward",
    takes=takes,
    gain="1.5x at 2048 x 262144, 1.7x at 2670 x 50264 (H100, bf16)",
    compile_arguments=_compile_arguments,
)
def forward(x: torch.Tensor) -> torch.Tensor:
    """Return softmax(x)."""
    y, cols, chosen = like(x), x.shape[-1], settings(x.shape[-1])
    rows = x.numel() // cols
    parts, count = _parts(rows, cols, chosen["BLOCK"], x.device)
    with torch.cuda.device_of(x):
        softmax_split_kernel[(rows * count,)](x, y, parts, cols, count, parts.shape[1], **chosen)
    return y


@tuned("softmax", "backward", takes=takes, gain="1.7x at 512 x 262144, 1.9x at 2670 x 50264 (H100, bf16)")
def backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradient of softmax's argument."""
    grad_x, cols, chosen = torch.empty_like(y), y.shape[-1], backward_settings(y.shape[-1])
    rows = y.numel() // cols
    parts, count = _parts(rows, cols, chosen["BLOCK"], y.device)
    with torch.cuda.device_of(y):
        softmax_backward_split_kernel[(rows * count,)](grad_y, y, grad_x, parts, cols, count, parts.shape[1], **chosen)
    return grad_x
