"""Record what Inductor fuses in each graph of fusion_models.py on this GPU, and the speedup.

    python benchmarks/fusion_groups.py [GRAPH ...] [--small] [--workers 4] [--seconds 330] [--out FILE]

Each graph is traced to the ATen operators that eager PyTorch runs (make_fx, no decomposition). The trace goes to
Inductor, torch.compile's backend, which decomposes the operators and fuses the result. A pass after fusion reads the
groups. Every Inductor node records the traced operator that it came from, so a group is recorded as the operators that
it computes. A training step is one trace of forward and backward, so Inductor may fuse across both.

Per graph it records the operators in order; Inductor's kernels, each with its operators; the GPU time of eager and
compiled, timed in turns with L2 cold (helpers/instruments/timing.py); and the kernels that torch.profiler sees in one
call. It also records the code generated for the graphs in CODE_OF, and the timeline of a small block, launched kernel
by kernel and as a CUDA graph.

Workers compile in parallel, then measure one at a time. Results are written after every graph. On a CPU (`--small`) the
same runs with Inductor's C++ backend, which only shows that the script works.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import torch
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile

from benchmarks.fusion_models import GRAPHS, Tensors
from benchmarks.provenance import date_and_versions, provenance
from helpers.instruments.timing import benchmark_together
from helpers.instruments.traffic import measure as measure_traffic

RESULTS = Path(__file__).parent / "results"
RUNS = 20
LIMIT = 90  # seconds that compiling a graph, or measuring it, may take
CODE_OF = ("residual_layer_norm", "hard_swish_chain", "siblings")  # whose generated code is kept
TIMELINE = {"batch": 1, "tokens": 128}  # of gpt2_block: kernels shorter than the gaps between their launches
LONGEST_NAME = 100
FREE = ("getitem", "detach", "lift_fresh_copy")  # with views: no launch


def trace(function, inputs) -> torch.fx.GraphModule:
    """Trace the ATen operators that `function` runs, below autograd, each marked with its own name for later passes."""
    module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for node in module.graph.nodes:
        node.meta["custom"] = {"traced": node.name}
    return module


def operators(module: torch.fx.GraphModule) -> list[dict]:
    """Return name, target, shape and dtype of each working operator, in order; views and the like are left out."""
    found = []
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target.__name__.split(".")[0] in FREE:
            continue
        if getattr(node.target, "is_view", False):
            continue
        first = node.meta.get("val")
        first = next(iter(first), None) if isinstance(first, tuple | list) else first
        shape, dtype = (list(first.shape), str(first.dtype)) if isinstance(first, torch.Tensor) else (None, None)
        found.append({"name": node.name, "target": str(node.target), "shape": shape, "dtype": dtype})
    return found


def _traced(node: torch.fx.Node) -> set[str]:
    """Return the traced operators' names from which a node of Inductor's graph was made."""
    name = node.meta.get("custom", {}).get("traced")
    if name:
        return {name}
    found, left = set(), list(node.meta.get("from_node", ()))
    while left:
        source = left.pop()
        left += source.from_node
        if not source.from_node:
            found.add(source.name)
    return found


def kernels(nodes: list) -> list[dict]:
    """Return the scheduler's nodes after fusion: kind, traced operators, their decomposed nodes, bytes."""
    found = []
    for node in nodes:
        parts = [part for part in node.get_nodes() if part.node is not None]
        kinds = {type(part.node).__name__ for part in parts}
        if not parts or kinds <= {"MultiOutput"}:
            continue
        origins = sorted({origin for part in parts for origin in part.node.get_origins()}, key=lambda node: node.name)
        kind = "fused"
        if any(part.is_template() for part in parts):
            kind = "template"
        elif any(part.is_extern() for part in parts):
            kind = "extern"
        elif type(node).__name__.startswith("Nop"):
            kind = "nothing"  # memory that others write: a concatenation in place
        try:
            moved = node.get_read_write_buffers_sizes()
        except Exception:  # a private method, used only for the proof's notes
            moved = None
        found.append(
            {
                "kind": kind,
                "operations": sorted({name for origin in origins for name in _traced(origin)}),
                "made_of": [origin.name for origin in origins],
                "unknown": [origin.name for origin in origins if not _traced(origin)],
                "bytes": moved,
            }
        )
    return found


def compiled(module: torch.fx.GraphModule, inputs) -> tuple:
    """Return Inductor's (function, kernels, generated code) for a trace."""
    found = []

    def read(nodes):
        found.append(kernels(nodes))
        return nodes

    with torch.no_grad(), config.patch(_post_fusion_custom_pass=read):
        function, code = run_and_get_code(lambda: compile_fx(module, list(inputs)))
    return function, [kernel for graph in found for kernel in graph], code


def _events(function, calls: int) -> tuple[list, list]:
    """Return (the GPU's events, the host's launches) of the last of several calls, each in order of time."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as found:
        for _ in range(calls):
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    events = sorted(found.events(), key=lambda event: event.time_range.start)
    on_gpu = [
        event
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("##", "Torch-Compiled"))
    ]
    launching = [event for event in events if event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch"))]
    return on_gpu[len(on_gpu) - len(on_gpu) // calls :], launching[len(launching) - len(launching) // calls :]


def _profiled(function) -> list:
    """Return [name, microseconds] of each kernel and copy of one call."""
    on_gpu, _ = _events(function, calls=2)
    return [[event.name[:LONGEST_NAME], round(event.time_range.elapsed_us(), 2)] for event in on_gpu]


def _rows(function) -> list:
    """Return [where, name, start, duration] in microseconds of one call's host launches and GPU kernels."""
    on_gpu, launching = _events(function, calls=10)
    begin = min((event.time_range.start for event in (*on_gpu, *launching)), default=0)
    rows = [
        [
            where,
            event.name[:LONGEST_NAME],
            round(event.time_range.start - begin, 2),
            round(event.time_range.elapsed_us(), 2),
        ]
        for where, events in (("host", launching), ("GPU", on_gpu))
        for event in events
    ]
    return sorted(rows, key=lambda row: row[2])


def _difference(mine, theirs) -> float:
    """Return the largest relative difference, by norm, of the floating-point results."""
    pairs = zip(torch.utils._pytree.tree_leaves(mine), torch.utils._pytree.tree_leaves(theirs), strict=True)
    floats = [(a.double(), b.double()) for a, b in pairs if a.is_floating_point()]
    return max(((a - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in floats)


def prepare(name: str, small: bool) -> tuple[dict, dict]:
    """Return (one graph's record before running it, way -> function of no argument)."""
    device, graph = "cuda" if torch.cuda.is_available() else "cpu", GRAPHS[name]
    torch.manual_seed(0)
    function, inputs = graph.build(device, small)
    module = trace(function, inputs)
    row = {"name": name, "operations": operators(module)}
    started = time.perf_counter()
    call, row["kernels"], code = compiled(module, inputs)
    row["compile_seconds"] = round(time.perf_counter() - started, 2)
    if name in CODE_OF:
        row["code"] = code

    def eager():
        with torch.set_grad_enabled(graph.training):
            return function(*inputs)

    def fused():
        with torch.no_grad():
            return call(*inputs)

    return row, {"eager": eager, "compiled": fused}


def measure(name: str, ways: dict) -> dict:
    """Measure one graph: times, kernels of one call, and the traffic meter's counts at small sizes."""
    graph = GRAPHS[name]
    difference = _difference(ways["compiled"](), ways["eager"]())
    times = benchmark_together(ways, runs=RUNS, graphs=not graph.training)
    function, inputs = graph.build("cuda" if torch.cuda.is_available() else "cpu", small=True)
    with torch.set_grad_enabled(graph.training):
        traffic = measure_traffic(function, *inputs)
    return {
        "difference": difference,
        "gpu": {way: asdict(timing) for way, timing in times.items()},
        "launched": {way: _profiled(each) for way, each in ways.items()},
        "metered_small": {part: getattr(traffic, part) for part in ("bytes_read", "bytes_written", "launches")},
    }


def timeline() -> dict:
    """Record one block kernel by kernel and as one CUDA graph, eager and compiled: where, name, start, us."""
    on_gpu = torch.cuda.is_available()
    sizes = GRAPHS["gpt2_block"].real | TIMELINE if on_gpu else GRAPHS["gpt2_block"].small
    function, inputs = GRAPHS["gpt2_block"].make(Tensors("cuda" if on_gpu else "cpu"), **sizes)
    call, _, _ = compiled(trace(function, inputs), inputs)
    ways = {"eager": lambda: function(*inputs), "compiled": lambda: call(*inputs)}
    found = {}
    with torch.no_grad():
        for way, each in ways.items():
            for _ in range(5):
                each()
            found[way] = _rows(each)
            if not on_gpu:
                continue
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                each()
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                each()
            found[f"{way}, CUDA graph"] = _rows(captured.replay)
    return found


def _late(signal_number, frame):
    raise TimeoutError(f"longer than {LIMIT} s")


def _work(names: list[str], results, lock, compiling, small: bool, until: float) -> None:
    """Compile one worker's graphs and, when all workers have, measure them, one at a time on the whole machine."""
    signal.signal(signal.SIGALRM, _late)
    prepared = {}

    def attempt(name: str, step, *given):
        signal.alarm(LIMIT)
        try:
            if time.time() > until:
                raise TimeoutError("no time was left to begin it")
            return step(*given)
        except Exception as error:  # one failing graph must not stop the others
            failed = f"{type(error).__name__}: {error}"[:2000]
            results.put((name, {"failed": failed, "where": traceback.format_exc()[-3000:]}))
        finally:
            signal.alarm(0)

    for name in names:
        if name != "timeline":
            prepared[name] = attempt(name, prepare, name, small)
    with contextlib.suppress(threading.BrokenBarrierError):  # a dead worker must not keep others from measuring
        compiling.wait(timeout=2 * LIMIT)
    for name in names:
        with lock:
            if name == "timeline":
                found = attempt(name, timeline)
            elif prepared[name]:
                row, ways = prepared.pop(name)
                found = attempt(name, measure, name, ways)
                found = found and row | found
            else:
                continue
        if found:
            results.put((name, found))
        found = ways = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    results.put((None, None))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="*", help="names in fusion_models.GRAPHS; all by default")
    parser.add_argument("--small", action="store_true", help="sizes for a laptop")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=330, help="after which no further graph is begun")
    parser.add_argument("--out", type=Path, default=RESULTS / "h200_fusion.json")
    options = parser.parse_args(arguments)
    chosen = options.graphs or [*GRAPHS, "timeline"]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each worker
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a graph out of the cache would skip the pass
    began = time.time()

    run = provenance() if torch.cuda.is_available() else {"gpu": None, **date_and_versions()}
    content = {**run, "runs": RUNS, "graphs": {}, "failed": {}, "timeline": None}
    context = multiprocessing.get_context("spawn")
    results, lock, compiling = context.Queue(), context.Lock(), context.Barrier(min(options.workers, len(chosen)))
    shared = results, lock, compiling, options.small, began + options.seconds
    shares = [chosen[first :: options.workers] for first in range(min(options.workers, len(chosen)))]
    workers = [context.Process(target=_work, args=(share, *shared)) for share in shares]
    for worker in workers:
        worker.start()
    running, patience = len(workers), options.seconds + LIMIT
    while running and time.time() - began < patience:
        try:
            name, found = results.get(timeout=5)
        except queue.Empty:
            running = min(running, sum(worker.is_alive() for worker in workers))
            continue
        if name is None:
            running -= 1
            continue
        if "failed" in found:
            content["failed"][name] = found
        elif name == "timeline":
            content["timeline"] = found
        else:
            content["graphs"][name] = found
        done = len(content["graphs"]) + len(content["failed"])
        gpu_times = {way: timing["median"] for way, timing in found.get("gpu", {}).items()}
        print(f"{time.time() - began:5.0f} s {done:3} {name} {found.get('failed', gpu_times)}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    for worker in workers:
        worker.kill()
    left = [name for name in chosen if name not in (*content["graphs"], *content["failed"], "timeline")]
    print(f"{len(content['graphs'])} graphs, {len(content['failed'])} failed, not begun: {', '.join(left) or 'none'}")


if __name__ == "__main__":
    main()
