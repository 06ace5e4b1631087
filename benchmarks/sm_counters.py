"""What Nsight Compute counts inside an SM: spills that its L1 cache serves, and shared memory's turns.

`python -m benchmarks.sm_counters` is the program that is profiled, one kernel after each marker.
"""

from functools import partial

import torch

from benchmarks.hardware_counters import counters, profiled
from benchmarks.inside_an_sm import PITCHES, WORDS, banks
from benchmarks.occupancy_sweep import add_gelu_with
from benchmarks.over_fusion import COLUMNS, LIMITED_STEPS, chain_gradient

ROWS = 2**15
STEPS = (12, 14, 15, 16, 20, 24)
LIMITS = (168, 128, 96, 64)
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


def calls() -> dict[tuple[str, str | int], callable]:
    """(experiment, what varies) -> a launch."""
    x, grad_y = torch.randn(2, ROWS, COLUMNS, device="cuda")
    words = torch.randn(WORDS, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    found = {("steps", steps): partial(chain_gradient, x, grad_y, steps) for steps in STEPS}
    found |= {("limits", most): partial(chain_gradient, x, grad_y, LIMITED_STEPS, maxnreg=most) for most in LIMITS}
    sizes = ((16384, 2), (16384, 4), (8192, 2), (2048, 4))
    found |= {("blocks", f"{n}x{warps}"): partial(add_gelu_with, x, grad_y, n, warps) for n, warps in sizes}
    return found | {("pitches", pitch): partial(banks, words, 4 * sms, pitch, 100) for pitch in PITCHES}


def measure() -> dict[str, dict[str | int, dict[str, int]]]:
    """Experiment -> what varies -> METRICS' names -> the counter."""
    rows = counters("benchmarks.sm_counters", METRICS)
    found = {}
    for (experiment, varies), (row,) in zip(calls(), rows, strict=True):
        found.setdefault(experiment, {})[varies] = {name: row[name] for name in METRICS.values()}
    return found


if __name__ == "__main__":
    profiled(calls().values())
