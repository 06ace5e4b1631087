"""What goes on inside an SM: arithmetic that waits for itself, the tail of a grid, and the banks of shared memory.

Nothing here moves bytes to speak of. `multiply_add_kernel` keeps a thread's numbers apart, so that numbers a thread
are instructions of one warp that need not wait for each other; `banks_kernel` reads shared memory with a pitch.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.over_fusion import COLUMNS, LIMITED_STEPS, chain_gradient
from helpers.instruments.timing import Timing, benchmark_together

ROUNDS = 20_000
NUMBERS = (1, 2, 4, 8)  # a thread
BLOCKS = (1, 2, 4, 8, 16)  # an SM, of 4 warps: one for each of its parts
FILLING = {"BLOCK": 4096, "num_warps": 32}  # two such blocks fill an SM's warps
PER_WAVE = 2  # blocks an SM, of FILLING and of a chain of LIMITED_STEPS
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
    """Sums of `rounds` numbers of x; at each, a warp's lanes read shared memory PITCH words apart."""
    i = tl.arange(0, WORDS)
    x = tl.load(x_ptr + i)
    total = tl.zeros((WORDS,), tl.float32)
    for step in range(rounds):
        total += tl.gather(x, (i % LANES * PITCH + i // LANES + step) % WORDS, 0)
    tl.store(y_ptr + tl.program_id(0) * WORDS + i, total)


def multiply_add(x: torch.Tensor, programs: int, rounds: int = ROUNDS, **settings) -> torch.Tensor:
    """x of at least programs * BLOCK numbers in fp32, each multiplied and added to `rounds` times."""
    y = torch.empty_like(x)
    multiply_add_kernel[(programs,)](x, y, rounds, **settings)
    return y


def banks(x: torch.Tensor, programs: int, pitch: int, rounds: int = 1000) -> torch.Tensor:
    """The sums of `banks_kernel`, once a program: (programs, WORDS) in fp32, of x of WORDS numbers."""
    y = x.new_empty(programs, WORDS)
    banks_kernel[(programs,)](x, y, rounds, PITCH=pitch, WORDS=WORDS, num_warps=4)
    return y


def multiprocessors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def measure_parallelism() -> dict[int, dict[int, Timing]]:
    """Numbers a thread -> warps an SM -> time on the GPU, all SMs at work."""
    sms = multiprocessors()
    x = torch.randn(sms * BLOCKS[-1] * 128 * NUMBERS[-1], device="cuda")
    calls = {
        (numbers, 4 * blocks): partial(multiply_add, x, sms * blocks, BLOCK=128 * numbers, num_warps=4)
        for numbers in NUMBERS
        for blocks in BLOCKS
    }
    found = benchmark_together(calls, runs=20)
    return {numbers: {4 * blocks: found[numbers, 4 * blocks] for blocks in BLOCKS} for numbers in NUMBERS}


def grids(sms: int) -> tuple[int, ...]:
    """Half a wave, one, one block more, one and a quarter, two, one block more."""
    wave = PER_WAVE * sms
    return sms, wave, wave + 1, wave + wave // 4, 2 * wave, 2 * wave + 1


def measure_waves() -> dict[str, dict[int, Timing]]:
    """Kernel -> blocks -> time on the GPU: "filling" keeps the SM busy, "waiting" is a chain that waits most of it."""
    programs = grids(multiprocessors())
    x, grad_y = torch.randn(2, programs[-1], COLUMNS, device="cuda")
    numbers = torch.randn(programs[-1] * FILLING["BLOCK"], device="cuda")
    calls = {("filling", n): partial(multiply_add, numbers, n, **FILLING) for n in programs}
    calls |= {("waiting", n): partial(chain_gradient, x[:n], grad_y[:n], LIMITED_STEPS) for n in programs}
    found = benchmark_together(calls, runs=20)
    return {kind: {n: found[kind, n] for n in programs} for kind in ("filling", "waiting")}


def measure_banks() -> dict[int, Timing]:
    """Words from lane to lane -> time on the GPU."""
    x, programs = torch.randn(WORDS, device="cuda"), 4 * multiprocessors()
    return benchmark_together({pitch: partial(banks, x, programs, pitch) for pitch in PITCHES}, runs=20)
