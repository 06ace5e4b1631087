"""One process of the sweep: it builds a point on request, then times it on request.

It reads one JSON object per line and answers with one: {"build": {"point": a Point's fields, "only": providers}}
compiles and calls every provider once; {"time": runs} times the built point and drops it; {"ceilings": true} measures
this GPU's current ceilings. A provider's errors are part of the answer. benchmarks/sweep/run.py lets no
process build on a GPU while another one times.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict

import torch

from benchmarks.bare_launch import bare_launches
from benchmarks.calls import fingerprints_of, launches_of, least_time, same_kernels
from benchmarks.provenance import ceilings
from benchmarks.sweep import points, tiled
from benchmarks.sweep.points import Point
from helpers.instruments.sweep_records import BARE
from helpers.instruments.timing import Timing, benchmark_together
from kernels.interpreter import runtime


def _reason(error: BaseException) -> str:
    """Return the error's type and first line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def _short(timing: Timing) -> list[float]:
    """Return median, low and high in microseconds, to four digits."""
    return [float(f"{seconds * 1e6:.4g}") for seconds in (timing.median, timing.low, timing.high)]


def _waits(call: Callable) -> bool:
    """Return whether the host waits for the GPU in a call, so that its GPU time includes the host's."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        return "synchronizing" in str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


# Work of less than so many seconds is timed MORE times as often: one kernel timed twice differs by 5 to 10 %, and the
# fastest of several peers is then one whose few runs happened to be quick.
SHORT, MORE = 15e-6, 4


class Worker:
    """The state of one process between two requests: the built point."""

    def __init__(self):
        self.gpu = runtime.has_gpu()
        self.limits: dict[str, float] = {}
        self.point, self.calls, self.work, self.refused, self.waits = None, {}, None, {}, []
        self.only, self.kernels = [], {}

    def ceilings(self, given: dict | bool) -> dict:
        """Measure this GPU's ceilings, or take those that another process measured."""
        self.limits = given if isinstance(given, dict) else ceilings() if self.gpu else {}
        return self.limits

    def build(self, request: dict) -> dict:
        """Compile and call every provider, or those in "only"; those that raise are dropped, with their reason.

        "plain" is also dropped if it launches what "fused" does: no tuned kernel takes the point."""
        fields, self.only = request["point"], request["only"]
        self.point = Point(**fields | {"shape": tuple(fields["shape"])})
        self.refused, self.waits, self.kernels = {}, [], {}
        torch._dynamo.reset()
        gc.collect()
        with torch.set_grad_enabled(self.point.direction == "backward"):
            of = tiled if self.point.kernel in tiled.PROVIDERS else points
            calls, self.work = of.build(self.point, "cuda" if self.gpu else "cpu", self.only)
            self.calls = {name: call for name, call in calls.items() if self._answers(name, call)}
            launches = {name: launches_of(self.calls[name]) for name in ("fused", "plain") if name in self.calls}
            self.kernels = {name: fingerprints_of(each.kernel for each in of_one) for name, of_one in launches.items()}
            if len(launches) == 2 and same_kernels(*launches.values()):
                del self.calls["plain"]
            self.waits = [name for name, call in self.calls.items() if self.gpu and _waits(call)]
        del calls, launches
        self._free()
        return {"built": list(self.calls)}

    def _answers(self, name: str, call: Callable) -> bool:
        try:
            call()
            if self.gpu:
                torch.cuda.synchronize()
        except Exception as error:
            self.refused[name] = _reason(error)
            self._free()
            return False
        return True

    def time(self, runs: int) -> dict:
        """Time the built calls, in microseconds, and return the times with the minimum that their work allows."""
        forward = self.point.direction == "forward"
        kind, least = least_time(self.work, self.limits) if self.limits else (None, None)
        runs *= MORE if least and least < SHORT else 1
        with torch.set_grad_enabled(not forward):
            gpu = self._timed(self.calls, runs, graphs=forward)
            called = self.calls if self.point.call and self.gpu else {}
            if forward and "fused" in called and not self.only:
                called = called | {BARE: bare_launches(called["fused"])}
            call = self._timed(called, runs, launches=True)
        found = asdict(self.point) | {
            "ceiling": kind,
            "least": least and float(f"{least * 1e6:.4g}"),
            "gpu": {name: _short(timing) for name, timing in gpu.items()},
            "calls": {name: _short(timing) for name, timing in call.items()},
            "refused": self.refused,
            "waits": self.waits,
            "kernels": self.kernels,
        }
        found |= {"only": self.only} if self.only else {}
        del found["call"]
        self.calls, self.work = {}, None
        del called
        self._free()
        return found

    def _timed(
        self, calls: dict[str, Callable], runs: int, graphs: bool = True, launches: bool = False
    ) -> dict[str, Timing]:
        try:
            return benchmark_together(calls, runs=runs, graphs=graphs, launches=launches)
        except Exception:  # such as one that cannot be captured: then time each alone, and that one queued
            self._free()
        found = {}
        for name, call in calls.items():
            for captured in dict.fromkeys((graphs, False)):
                try:
                    found |= benchmark_together({name: call}, runs=runs, graphs=captured, launches=launches)
                    break
                except Exception as error:
                    self.refused[name] = _reason(error)
            if name in found:
                self.refused.pop(name, None)
        return found

    def _free(self) -> None:
        if self.gpu:
            torch.cuda.empty_cache()


def main() -> None:
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    worker = Worker()
    gc.freeze()  # garbage-collecting all imports takes longer than a measurement
    print(json.dumps({"ready": torch.cuda.get_device_name() if worker.gpu else "no GPU"}), file=answers)
    for line in sys.stdin:
        ((what, how),) = json.loads(line).items()
        try:
            answer = getattr(worker, what)(how)
        except Exception as error:
            worker.calls = {}
            answer = {"failed": _reason(error)}
            if "CUDA error" in str(error):  # nothing works in this process any more: a new one replaces it
                print(json.dumps(answer), file=answers)
                return
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
