"""Lesson 07: fusing too much, and what goes on inside an SM.

Fusing too much: a chain of operations and its gradient in one kernel, which keeps a row of each in registers.

Each operation is y -> silu(rms_norm(y)) on rows of COLUMNS elements. The gradient of the chain's input visits the
operations in reverse order and needs each one's forward result:

    one piece     read x and the gradient, write the gradient of x          12 B/element in fp32, whatever the steps
    cut in p      p - 1 forward launches, which read and write a row,       12 p + 8 (p - 1) B/element
                  then p launches such as the one above, last piece first

So splitting costs memory traffic and saves registers. `measure` times both sides of this trade-off, and
`measure_limited` one kernel with fewer registers than it needs.

Inside an SM: dependent arithmetic, the tail of a grid, and the banks of shared memory.

These kernels move hardly any bytes. `multiply_add_kernel` keeps a thread's values independent, so the number of values
per thread is the number of a warp's instructions that don't wait for each other. `banks_kernel` reads shared memory
with a pitch.

Nsight Compute's counters inside an SM: spills that hit its L1 cache, and shared memory wavefronts.

`python -m benchmarks.experiments.lesson_07` is the profiled program: it runs one kernel after each marker.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed
from benchmarks.experiments.lesson_03 import add_gelu_in_blocks
from benchmarks.hardware_counters import counters, profiled

COLUMNS = 1024
WARPS = 4  # 8 elements of a row per thread
ROWS = 2**17  # 512 MB in fp32: far beyond any L2
STEPS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24)
PIECES = (1, 2, 3, 4)
LIMITED_STEPS = 12
LIMITS = (255, 200, 168, 128, 96, 64)  # registers per thread; with 128 threads, 168 allow 3 blocks per SM, 128 allow 4
EPS = tl.constexpr(1e-6)


@triton.jit
def chain_forward_kernel(x_ptr, y_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    for _ in tl.static_range(STEPS):
        n = y * tl.rsqrt(tl.sum(y * y) / COLUMNS + EPS)
        y = n * tl.sigmoid(n)
    tl.store(y_ptr + offset, y)


@triton.jit
def chain_gradient_kernel(x_ptr, grad_y_ptr, grad_x_ptr, COLUMNS: tl.constexpr, STEPS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    y = tl.load(x_ptr + offset)
    rows, scales = (), ()
    for _ in tl.static_range(STEPS):
        scale = tl.rsqrt(tl.sum(y * y) / COLUMNS + EPS)
        n = y * scale
        rows += (n,)  # alive until the backward loop reaches it
        scales += (scale,)
        y = n * tl.sigmoid(n)
    grad = tl.load(grad_y_ptr + offset)
    for step in tl.static_range(STEPS - 1, -1, -1):
        n = rows[step]
        gate = tl.sigmoid(n)
        grad *= gate * (1 + n * (1 - gate))
        grad = scales[step] * (grad - n * (tl.sum(grad * n) / COLUMNS))
    tl.store(grad_x_ptr + offset, grad)


def chain_gradient(
    x: torch.Tensor, grad_y: torch.Tensor, steps: int, pieces: int = 1, maxnreg: int | None = None
) -> torch.Tensor:
    """Return the gradient of `steps` operations on x, in 2 * pieces - 1 launches.

    Args:
        x, grad_y: (rows, COLUMNS), fp32, contiguous.
        steps: operations, at least `pieces`.
        pieces: number of parts that the chain is split into, as equal as possible.
        maxnreg: maximum registers per thread; None leaves it to the compiler.
    """
    grid, options = (len(x),), {"COLUMNS": COLUMNS, "num_warps": WARPS, "maxnreg": maxnreg}
    ends = [steps * (piece + 1) // pieces for piece in range(pieces)]
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    inputs = [x]
    for length in lengths[:-1]:
        inputs.append(torch.empty_like(x))
        chain_forward_kernel[grid](inputs[-2], inputs[-1], STEPS=length, **options)
    grad = grad_y
    for source, length in zip(reversed(inputs), reversed(lengths), strict=True):
        grad_x = torch.empty_like(x)
        chain_gradient_kernel[grid](source, grad, grad_x, STEPS=length, **options)
        grad = grad_x
    return grad


def over_fusion(steps: int) -> dict:
    """Return pieces -> call."""
    x, grad_y = torch.randn(2, ROWS, COLUMNS, device="cuda")
    return {pieces: partial(chain_gradient, x, grad_y, steps, pieces) for pieces in PIECES if pieces <= steps}


def over_fusion_limited() -> dict:
    """Return maximum registers per thread -> call, of LIMITED_STEPS steps in one piece."""
    x, grad_y = torch.randn(2, ROWS, COLUMNS, device="cuda")
    return {most: partial(chain_gradient, x, grad_y, LIMITED_STEPS, maxnreg=most) for most in LIMITS}


ROUNDS = 20_000
NUMBERS = (1, 2, 4, 8)  # per thread
BLOCKS = (1, 2, 4, 8, 16)  # per SM, of 4 warps: one per sub-partition
FILLING = {"BLOCK": 4096, "num_warps": 32}  # two such blocks fill an SM's warps
PER_WAVE = 2  # blocks per SM, of FILLING and of a chain of LIMITED_STEPS
WORDS = 2048  # in shared memory, of four bytes
LANES = tl.constexpr(32)
PITCHES = (1, 2, 3, 4, 8, 16, 32, 33)


@triton.jit
def multiply_add_kernel(
    x_ptr,  # *fp32 [programs * BLOCK]
    y_ptr,  # *fp32 [programs * BLOCK]
    rounds,
    BLOCK: tl.constexpr,
):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + offset)
    for _ in range(rounds):
        y = y * 0.999 + 0.001
    tl.store(y_ptr + offset, y)


@triton.jit
def banks_kernel(
    x_ptr,  # *fp32 [WORDS]
    y_ptr,  # *fp32 [programs * WORDS]
    rounds,
    PITCH: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Sum `rounds` numbers of x per element; each time, a warp's lanes read shared memory PITCH words apart."""
    i = tl.arange(0, WORDS)
    x = tl.load(x_ptr + i)
    total = tl.zeros((WORDS,), tl.float32)
    for step in range(rounds):
        total += tl.gather(x, (i % LANES * PITCH + i // LANES + step) % WORDS, 0)
    tl.store(y_ptr + tl.program_id(0) * WORDS + i, total)


def multiply_add(x: torch.Tensor, programs: int, rounds: int = ROUNDS, **settings) -> torch.Tensor:
    """Run `rounds` multiply-adds on each of x's numbers: at least programs * BLOCK, in fp32."""
    y = torch.empty_like(x)
    multiply_add_kernel[(programs,)](x, y, rounds, **settings)
    return y


def banks(x: torch.Tensor, programs: int, pitch: int, rounds: int = 1000) -> torch.Tensor:
    """Return the sums of `banks_kernel`, one row per program: (programs, WORDS) in fp32, for x of WORDS numbers."""
    y = x.new_empty(programs, WORDS)
    banks_kernel[(programs,)](x, y, rounds, PITCH=pitch, WORDS=WORDS, num_warps=4)
    return y


def multiprocessors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def parallelism() -> dict:
    """Return (numbers per thread, warps per SM) -> call, all SMs busy."""
    sms = multiprocessors()
    x = torch.randn(sms * BLOCKS[-1] * 128 * NUMBERS[-1], device="cuda")
    return {
        (numbers, 4 * blocks): partial(multiply_add, x, sms * blocks, BLOCK=128 * numbers, num_warps=4)
        for numbers in NUMBERS
        for blocks in BLOCKS
    }


def grids(sms: int) -> tuple[int, ...]:
    """Return grids of half a wave, one, one block more, one and a quarter, two, one block more."""
    wave = PER_WAVE * sms
    return sms, wave, wave + 1, wave + wave // 4, 2 * wave, 2 * wave + 1


def waves() -> dict:
    """Return (kernel, blocks) -> call: "filling" keeps the SM busy, "waiting" is a chain that mostly waits."""
    programs = grids(multiprocessors())
    x, grad_y = torch.randn(2, programs[-1], COLUMNS, device="cuda")
    numbers = torch.randn(programs[-1] * FILLING["BLOCK"], device="cuda")
    calls = {("filling", n): partial(multiply_add, numbers, n, **FILLING) for n in programs}
    return calls | {("waiting", n): partial(chain_gradient, x[:n], grad_y[:n], LIMITED_STEPS) for n in programs}


def bank_conflicts() -> dict:
    """Return words from lane to lane -> call."""
    x, programs = torch.randn(WORDS, device="cuda"), 4 * multiprocessors()
    return {pitch: partial(banks, x, programs, pitch) for pitch in PITCHES}


COUNTED_ROWS = 2**15
COUNTED_STEPS = (12, 14, 15, 16, 20, 24)
COUNTED_LIMITS = (168, 128, 96, 64)
LOCAL = "l1tex__t_sectors_pipe_lsu_mem_local_op"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op"
METRICS = {
    f"{LOCAL}_ld.sum": "local_read",  # sectors of 32 bytes
    f"{LOCAL}_ld_lookup_hit.sum": "local_read_hit",
    f"{LOCAL}_st.sum": "local_written",
    f"{LOCAL}_st_lookup_hit.sum": "local_written_hit",
    "lts__t_sectors.sum": "l2",
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    f"{SHARED}_ld.sum": "shared_read_turns",
    "smsp__inst_executed_op_shared_ld.sum": "shared_reads",
    "gpu__time_duration.sum": "nanoseconds",
}


def counted_calls() -> dict[tuple[str, str | int], callable]:
    """Return (experiment, parameter) -> a launch."""
    x, grad_y = torch.randn(2, COUNTED_ROWS, COLUMNS, device="cuda")
    words = torch.randn(WORDS, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    found = {("steps", steps): partial(chain_gradient, x, grad_y, steps) for steps in COUNTED_STEPS}
    found |= {
        ("limits", most): partial(chain_gradient, x, grad_y, LIMITED_STEPS, maxnreg=most) for most in COUNTED_LIMITS
    }
    sizes = ((16384, 2), (16384, 4), (8192, 2), (2048, 4))
    found |= {("blocks", f"{n}x{warps}"): partial(add_gelu_in_blocks, x, grad_y, n, warps) for n, warps in sizes}
    return found | {("pitches", pitch): partial(banks, words, 4 * sms, pitch, 100) for pitch in PITCHES}


def sm_counters() -> dict[str, dict[str | int, dict[str, int]]]:
    """Return experiment -> parameter -> METRICS' names -> the counter."""
    calls, found = counted_calls(), {}
    for call in calls.values():
        call()  # here too, so that the record knows which kernels were launched
    rows = counters("benchmarks.experiments.lesson_07", METRICS)
    for (experiment, varies), (row,) in zip(calls, rows, strict=True):
        found.setdefault(experiment, {})[varies] = {name: row[name] for name in METRICS.values()}
    return found


EXPERIMENTS = {
    "over_fusion": timed(over_fusion, STEPS, runs=20),
    "over_fusion_limited": timed(over_fusion_limited, runs=20),
    "parallelism": timed(parallelism, runs=20),
    "waves": timed(waves, runs=20),
    "banks": timed(bank_conflicts, runs=20),
    "sm_counters": sm_counters,
}

if __name__ == "__main__":
    profiled(counted_calls().values())
