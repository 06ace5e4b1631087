"""The observer of current launches: the meter registers here with the executor, so neither imports the other."""

import contextlib

_observer = None
_executed = 0


def observer():
    """Return the observer of current launches; None outside of `observed`."""
    return _observer


@contextlib.contextmanager
def observed(by):
    """Execute every CUDA launch inside this context on the CPU, even with a GPU, and report its actions to `by`.

    It has these methods; threads are indices into the running chunk of blocks, offsets are in bytes:
    `launch(launch, arguments, originals, memory)` before a launch, with its arguments on the host and as passed;
    `chunk(machine)` before some of its blocks run;
    `access(kind, line, segment, threads, offsets, nbytes)` at each load ("read"), store ("write") and atomic in global
    memory, `local(...)` the same without a segment, with offsets into the chunk's own;
    `shared(kind, line, threads, offsets, nbytes, reported)` the same, reported: whether the access was already reported
    for touching an unfinished cp.async;
    `shared_copy(line, threads, offsets, nbytes, reported)` when a cp.async to shared memory starts, and
    `landed(line, threads, offsets, nbytes)` when it is complete;
    `stored(line, threads, offsets, lost, changed)` after a store to global memory, for each value a lane stores: which
    lanes' values another lane has overwritten, and which differ from the previous contents;
    `block_synchronised(blocks)`; `warps_synchronised(groups)`, of warps that reached a barrier without their block;
    `lanes_synchronised(threads, masks)`; `fenced(threads)` at a fence that other blocks see;
    `hazard(kind, line, where, block, thread, count)`. Optional: `outside(kind, line, segment, threads, offsets)`,
    before the hazard, with the lanes outside a tensor.
    """
    global _observer
    before, _observer = _observer, by
    try:
        yield by
    finally:
        _observer = before


def executed(count: int) -> None:
    """Add to the number of thread-instructions executed in this process."""
    global _executed
    _executed += count


def total_executed() -> int:
    """Return the number of thread-instructions executed in this process so far."""
    return _executed
