"""Record a call's Chrome traces with torch.profiler, reduced to the last call and the events that a reader needs.

    python -m benchmarks.block_traces FILE     the block of benchmarks/block.py, by each way, with and without a graph

The traces open in Perfetto (ui.perfetto.dev); helpers.instruments.traces reads them.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

CALL = "the call"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
LONGEST_NAME = 400
KEPT = (
    "correlation",
    "External id",
    "stream",
    "grid",
    "block",
    "registers per thread",
    "shared memory",
    "blocks per SM",
    "warps per SM",
    "est. achieved occupancy %",
    "bytes",
)
TRACED = ("eager", "libraries", "torch.compile", "fused")
TOKENS = 512


def trace_of(call: Callable, calls: int = 3) -> dict:
    """Return the trace of the last of several calls: {"traceEvents": [...]}, times in microseconds from its start."""
    return trimmed(whole_trace(call, calls))


def whole_trace(call: Callable, calls: int = 3, **options) -> dict:
    """Return the trace of several calls, each a range named CALL; options: of torch.profiler.profile."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities, **options) as found:
        for _ in range(calls):
            with record_function(CALL):
                call()
                if on_gpu:
                    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        found.export_chrome_trace(str(file))
        return json.loads(file.read_text())


def last_begin(events: list[dict]) -> float:
    """Return the start of the last range named CALL, in the trace's microseconds."""
    return max(each["ts"] for each in events if each.get("name") == CALL and each.get("cat") == "user_annotation")


def trimmed(trace: dict) -> dict:
    """Keep only the last CALL: kernels, launches, the outermost operators, and the arrows between them."""
    events = trace["traceEvents"]
    begin = last_begin(events)
    kept, covered = [], begin
    for each in sorted(events, key=lambda each: (each.get("ts", 0), -each.get("dur", 0))):
        if each["ph"] == "M":
            if each["name"] in ("process_name", "process_labels", "thread_name"):
                kept.append(each)
            continue
        kind, inside = each.get("cat"), each.get("ts", -1) >= begin
        if not inside or each["ph"] not in "Xsf":
            continue
        if kind == "cpu_op":
            if each["ts"] < covered:
                continue  # an operator that another one calls
            covered = each["ts"] + each["dur"]
        elif kind in LAUNCHES:
            if "aunch" not in each["name"] and "Memcpy" not in each["name"]:
                continue
        elif kind not in (*ON_GPU, "ac2g"):
            continue
        each = {**each, "name": each["name"][:LONGEST_NAME], "ts": round(each["ts"] - begin, 3)}
        each["args"] = {name: value for name, value in each.get("args", {}).items() if name in KEPT}
        kept.append(each)
    processes = {each.get("pid") for each in kept if each["ph"] != "M"}
    return {
        "displayTimeUnit": "ns",
        "traceEvents": [each for each in kept if each["ph"] != "M" or each["pid"] in processes],
    }


def kernels_of(call: Callable) -> list[list]:
    """Return [name, microseconds] of each kernel and copy of one call, in order; nothing without a GPU."""
    events = trace_of(call)["traceEvents"]
    return [[each["name"], each["dur"]] for each in events if each.get("cat") in ON_GPU]


def graphed(call: Callable) -> Callable:
    """Return a replay of the call, captured as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        call()
    return captured.replay


def main() -> None:
    from benchmarks import block  # which imports this module

    file, found = Path(next(each for each in sys.argv[1:] if not each.startswith("--"))), {}
    tensors = block.inputs(4 if block.small else TOKENS)
    for way in TRACED:
        call = partial(block.forward, block.WAYS[way](), tensors)
        for _ in range(3):
            call()
        found[way] = block.attempted(way, partial(trace_of, call))
        if torch.cuda.is_available():
            found[f"{way}, CUDA graph"] = block.attempted(way, lambda call=call: trace_of(graphed(call)))
        file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
