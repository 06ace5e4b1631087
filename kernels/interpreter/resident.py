"""Run the programs of a cooperative launch together, so that they can wait for each other.

Each program has its own thread, and one runs at a time. A program yields when it waits for a counter, and with a seed
also after each atomic; the next is then drawn from those that can run, because a GPU may run them in any order.
"""

import contextlib
import contextvars
import random
import threading
from collections.abc import Callable, Iterable

LISTED = 4  # programs listed in a deadlock's message


class _Stopped(BaseException):
    """Ends a program after its launch has failed."""


class _Program:
    def __init__(self, index: tuple[int, int, int]):
        self.index = index
        self.turn = threading.Semaphore(0)
        self.thread = None
        self.can_run: Callable[[], bool] | None = None  # None: at once
        self.waits_for: Callable[[], str] | None = None
        self.error: BaseException | None = None
        self.done = False


class Programs:
    """The programs of one launch.

    Args:
        run: runs one program, given its index.
        resumed: called with a program's index when it resumes after others have run.
        seed: determines the random order of programs; None: in order, each until it waits.
        waiting: False if only a sample of the programs runs: nothing signals them, so they don't wait.
    """

    def __init__(self, run: Callable, resumed: Callable, seed: int | None = None, waiting: bool = True):
        self._run, self._resumed, self.waiting = run, resumed, waiting
        self._random = None if seed is None else random.Random(seed)
        self._back = threading.Semaphore(0)
        self._running: _Program | None = None
        self._stopping = False

    def run(self, indices: Iterable[tuple[int, int, int]]) -> None:
        """Run all programs to completion.

        Raises:
            RuntimeError: on deadlock, when every remaining program waits.
            Exception: the one that a program raised.
        """
        left = [_Program(index) for index in indices]
        try:
            while left:
                able = [each for each in left if each.can_run is None or each.can_run()]
                if not able:
                    raise RuntimeError(_deadlock(left))
                self._give_turn(self._next(able))
                if self._running.error is not None:
                    raise self._running.error
                if self._running.done:
                    left.remove(self._running)
        finally:
            self._stopping = True
            for each in left:
                if each.thread is not None and each.thread.is_alive():
                    each.turn.release()
                    each.thread.join()

    def pause(self, can_run: Callable[[], bool] | None = None, waits_for: Callable[[], str] | None = None) -> None:
        """Let other programs run, until `can_run()` if given. The running program calls this."""
        if not self.waiting or (self._random is None and (can_run is None or can_run())):
            return
        me = self._running
        me.can_run, me.waits_for = can_run, waits_for
        self._back.release()
        me.turn.acquire()
        if self._stopping:
            raise _Stopped
        self._resumed(me.index)

    def _next(self, able: list[_Program]) -> _Program:
        if self._random is None:
            return able[0]
        # Usually a waiter resumes at once, before others store what it should have waited for: this exposes missing
        # waits.
        waiters = [each for each in able if each.can_run is not None]
        return self._random.choice(waiters if waiters and self._random.random() < 0.75 else able)

    def _give_turn(self, program: _Program) -> None:
        self._running = program
        program.can_run = None
        if program.thread is None:
            # The context carries NumPy's error state.
            target, context = self._in_thread, contextvars.copy_context()
            program.thread = threading.Thread(target=context.run, args=(target, program), daemon=True)
            program.thread.start()
        else:
            program.turn.release()
        self._back.acquire()

    def _in_thread(self, program: _Program) -> None:
        try:
            with contextlib.suppress(_Stopped):
                self._run(program.index)
        except Exception as error:
            program.error = error
        program.done = True
        if not self._stopping:
            self._back.release()


def _deadlock(left: list[_Program]) -> str:
    said = [f"{each.index} {each.waits_for()}" for each in left[:LISTED]]
    more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
    return (
        f"deadlock: all programs that have not ended wait: {', '.join(said)}{more}: signal once per share that they "
        "wait for, in programs that do not wait for these"
    )
