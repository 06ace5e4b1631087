"""Asynchronous copies from global to shared memory (cp.async), which complete only once a thread waits for them.

A thread's copies belong to the group that it commits next. Their bytes arrive in shared memory when the thread waits
for the group. Until then shared memory keeps its old values, and accesses to those bytes are reported.
"""

from typing import NamedTuple

import numpy as np

from helpers.instruments.cuda import mbarriers
from helpers.instruments.cuda.warp import everyone

_WORD = 4  # bytes: the smallest copy; larger ones are multiples of it
HOW = "__pipeline_wait_prior or cp.async.wait_group"


class Copy(NamedTuple):
    """One instruction's copies: one row of `data` per thread, to byte `offsets` of shared memory."""

    line: int
    threads: np.ndarray
    offsets: np.ndarray
    data: np.ndarray  # words
    group: np.ndarray  # number of groups that each thread had committed before
    number: np.ndarray  # among all copies, in start order
    source: np.ndarray  # the first word that it reads from global memory; -1: none
    memory: dict | None  # the source's memory, by item size

    def of(self, chosen: np.ndarray) -> "Copy":
        return Copy(self.line, *(each[chosen] for each in self[1:-1]), self.memory)

    @property
    def words(self) -> np.ndarray:
        """The places in shared memory, (threads, words)."""
        return self.offsets[:, None] // _WORD + np.arange(self.data.shape[1])


class Copies:
    """The copies of blocks that run together.

    Args:
        memory: shared memory of these blocks by item size.
    """

    def __init__(self, machine, memory: dict[int, np.ndarray]):
        self._machine, self._memory = machine, memory
        self._under_way: list[Copy] = []
        self._started = 0
        self._attached: list[tuple] = []  # arrivals at an mbarrier: (its place, thread, the thread's copies before)
        self._committed = np.zeros(machine.threads, np.int64)  # groups
        self._left = np.full(machine.threads, -1)  # groups that a thread's last wait left unfinished
        self._filled = np.zeros(memory[_WORD].size, bool)  # words that an unfinished copy will fill

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def start(self, line: int, threads, offsets, data, source, memory) -> None:
        self._started += 1
        number = np.full(threads.size, self._started)
        copy = Copy(line, threads, offsets, data, self._committed[threads], number, source, memory)
        self._under_way.append(copy)
        self._filled[copy.words] = True

    def commit(self, threads) -> None:
        self._committed[slice(None) if threads is None else threads] += 1

    def wait(self, threads, left: int | None) -> None:
        """Complete the copies that the threads wait for: all but their `left` newest groups; None: all, committed or
        not."""
        if left is None:
            self.commit(threads)
        waiting = np.zeros(self._machine.threads, bool)
        waiting[slice(None) if threads is None else threads] = True
        self._left[waiting] = left or 0
        self.arrive(lambda copy: waiting[copy.threads] & (copy.group < self._committed[copy.threads] - (left or 0)))

    def attach(self, threads: np.ndarray, places: np.ndarray, counted: bool) -> None:
        """Make each thread's copies so far arrive at an mbarrier on completion. places: the barriers' places, in words
        of 8 bytes; counted: whether the barrier's count includes these arrivals."""
        if not counted:
            np.add.at(self._memory[8], places, np.uint64(1))  # one more arrival is pending, until the copies arrive
        for place, thread in zip(places.tolist(), threads.tolist(), strict=True):
            self._attached.append((place, thread, self._started))

    def arrive_at(self, places: np.ndarray) -> None:
        """Finish the copies attached to these mbarriers, because a thread waits there."""
        if not self._attached:
            return
        arriving = [each for each in self._attached if each[0] in places]
        if not arriving:
            return
        self._attached = [each for each in self._attached if each[0] not in places]
        last = np.zeros(self._machine.threads, np.int64)
        for _, thread, started in arriving:
            last[thread] = max(last[thread], started)
        self.arrive(lambda copy: copy.number <= last[copy.threads])
        at = np.array([place for place, _, _ in arriving])
        mbarriers.arrive(self._memory[8], at, np.ones(at.size, np.int64))

    def arrive(self, which) -> None:
        """Complete copies: which(copy) is a mask over its threads."""
        copies, self._under_way = self._under_way, []
        arrived = False
        for copy in copies:
            done = which(copy)
            if done.any():
                arrived = True
                self._land(copy if done.all() else copy.of(done))
            if not done.all():
                self._under_way.append(copy.of(~done) if done.any() else copy)
        if arrived:
            self._filled[...] = False
            for copy in self._under_way:
                self._filled[copy.words] = True

    def _land(self, copy: Copy) -> None:
        self._memory[_WORD][copy.words] = copy.data
        observer = self._machine.observer
        if observer is not None:
            observer.landed(copy.line, copy.threads, copy.offsets, _WORD * copy.data.shape[1])

    def check(self, kind: str, line: int, threads, offsets: np.ndarray, nbytes: int) -> bool:
        """Report an access to bytes that an unfinished copy will fill; return whether there is one."""
        words = offsets // _WORD
        touched = self._filled[words]
        for more in range(1, -(-nbytes // _WORD)):
            touched = touched | self._filled[words + more]
        if not touched.any():
            return False
        here = everyone(self._machine, threads)
        first = int(np.flatnonzero(touched)[0])
        copy, at = self._filling(int(words[first]), -(-nbytes // _WORD))
        byte = int(offsets[first]) % self._machine.spaces.shared_size
        array, place = self._machine.spaces.shared_array(byte)
        does = {"read": "read", "write": "written"}.get(kind, "changed by an atomic")
        owner = "" if int(copy.threads[at]) == int(here[first]) else f" by thread {self._of(copy, at)}"
        where = f"the cp.async into {array} in line {copy.line}{owner} is unfinished when byte {place} is {does}: "
        self._machine.hazard("unfinished copy", line, where + self._advice(copy, at), int(here[first]),
                             int(touched.sum()))  # fmt: skip
        return True

    def check_source(self, line: int, threads: np.ndarray, memory: dict, offsets: np.ndarray, nbytes: int) -> None:
        """Report a write to global memory that an unfinished copy still reads."""
        words = np.unique(np.concatenate([offsets, offsets + nbytes - 1]) // _WORD)
        for copy in self._under_way:
            if copy.memory is not memory or copy.source.max() < words[0] - 3 or copy.source.min() > words[-1]:
                continue
            read = copy.source[:, None] + np.arange(copy.data.shape[1])
            hit = np.isin(read, words).any(1) & (copy.source >= 0)
            if hit.any():
                at = int(np.flatnonzero(hit)[0])
                array, _ = self._machine.spaces.shared_array(int(copy.offsets[at]) % self._machine.spaces.shared_size)
                where = f"the source of the cp.async into {array} in line {copy.line} is overwritten too early: "
                self._machine.hazard(
                    "unfinished copy", line, where + self._advice(copy, at), int(threads[0]), int(hit.sum())
                )
                return

    def _of(self, copy: Copy, at: int):
        return self._machine.where(int(copy.threads[at]))[1]

    def _filling(self, word: int, words: int) -> tuple[Copy, int]:
        """Return the copy that will fill one of these words, and the place of its thread."""
        for copy in reversed(self._under_way):
            found = ((copy.words >= word) & (copy.words < word + words)).any(1)
            if found.any():
                return copy, int(np.flatnonzero(found)[0])
        raise AssertionError("no copy fills these words")

    def _advice(self, copy: Copy, at: int) -> str:
        thread, group = int(copy.threads[at]), int(copy.group[at])
        committed, left = int(self._committed[thread]), int(self._left[thread])
        if group >= committed:
            return f"commit it (__pipeline_commit or cp.async.commit_group), then wait ({HOW})"
        if left > 0:
            return (
                f"the previous wait may leave the thread's newest {left} group{'s' * (left > 1)} unfinished, and this "
                f"copy is in one of them: wait with {committed - 1 - group} ({HOW})"
            )
        return f"wait for it first ({HOW}), then __syncthreads() if other threads read it"
