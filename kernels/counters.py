"""Counters in memory that let programs of one launch wait for each other.

After storing its share of a result, a program signals. A program that needs the whole result waits until the counter
has reached the number of shares. Waiting is only safe if the signalling program can run, so launch with
`launch_cooperative_grid=True`, which fails if the programs of the grid don't all fit on the GPU at once. Without a GPU,
programs of such a launch take turns, and a meter looks for accesses that no counter orders.

Counters are int32 and must be zero before the launch.
"""

import triton
import triton.language as tl


@triton.jit
def signal(counter_ptr):
    """Add 1 to a counter, ordered after all of this program's stores."""
    # One thread runs the atomic: the barrier puts the other threads' stores before it, `release` keeps them there.
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")


@triton.jit
def complete(counter_ptr, shares):
    """Add 1 to a counter, and return whether it has reached `shares`; the last program sees all stores."""
    tl.debug_barrier()
    return tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == shares - 1


@triton.jit
def wait(counter_ptr, value):
    """Wait until a counter has reached `value`; stores made before its signals are then visible."""
    while tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu") < value:
        pass
