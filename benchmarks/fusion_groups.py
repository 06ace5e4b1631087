"""What Inductor fuses in each graph of fusion_models.py on this GPU, and what that brings.

    python benchmarks/fusion_groups.py [GRAPH ...] [--small] [--workers 4] [--seconds 330] [--out FILE]

Each graph is traced to the ATen operators that eager PyTorch runs (make_fx, no decomposition), and that trace is given
to Inductor, torch.compile's backend, which takes the operators apart and fuses what comes of it. The groups are read
by its pass after fusion. Every node that it made remembers which traced operator it came from, so a group is written
down as the operators that it computes. A training step is one trace, forward and backward, so Inductor may fuse across.

Recorded of a graph: its operators in order; Inductor's kernels, each with its operators; the GPU's time of eager and
compiled, taking turns, L2 cold (helpers/instruments/timing.py); the kernels that torch.profiler sees in one call. Also
the code generated for the graphs in CODE_OF, and the timeline of a small block, launched kernel by kernel and as a CUDA
graph.

Workers compile side by side; one at a time uses the GPU. Results are written after every graph. On a CPU (`--small`)
the same runs with Inductor's C++ backend, which shows that it works and nothing of what a GPU does.
"""

import argparse
import json
import multiprocessing
import os
import queue
import signal
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
from benchmarks.run import date_and_versions
from helpers.instruments.timing import benchmark_together
from helpers.instruments.traffic import measure as measure_traffic

RESULTS = Path(__file__).parent / "results"
RUNS = 20
LIMIT = 90  # seconds a graph may take
CODE_OF = ("residual_layer_norm", "hard_swish_chain", "siblings")  # whose generated code is kept
TIMELINE = {"batch": 1, "tokens": 128}  # of gpt2_block: kernels shorter than the gaps between their launches
LONGEST_NAME = 100
FREE = ("getitem", "detach", "lift_fresh_copy")  # with views: no launch


def trace(function, inputs) -> torch.fx.GraphModule:
    """The ATen operators that `function` runs, below autograd, each marked with its own name for what is made of it."""
    module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for node in module.graph.nodes:
        node.meta["custom"] = {"traced": node.name}
    return module


def operators(module: torch.fx.GraphModule) -> list[dict]:
    """Name, target, shape and dtype of each operator that works, in order; views and the like are left out."""
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
    """Names of the traced operators that a node of Inductor's graph was made of."""
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
    """The scheduler's nodes after fusion: kind, traced operators, the nodes they were taken apart into, bytes."""
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
        except Exception:  # a private method, of use only for the proof's notes
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
    """(function, kernels, generated code) of Inductor for a trace."""
    found = []

    def read(nodes):
        found.append(kernels(nodes))
        return nodes

    with torch.no_grad(), config.patch(_post_fusion_custom_pass=read):
        function, code = run_and_get_code(lambda: compile_fx(module, list(inputs)))
    return function, [kernel for graph in found for kernel in graph], code


def _profiled(function, rows: bool = False) -> list:
    """[name, microseconds] of each kernel of one call; with `rows` the whole timeline, host's launches too."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as found:
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events = sorted(found.events(), key=lambda event: event.time_range.start)
    on_gpu = [
        event
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("##", "Torch-Compiled"))
    ]
    if not rows:
        return [[event.name[:LONGEST_NAME], round(event.time_range.elapsed_us(), 2)] for event in on_gpu]
    launching = [event for event in events if event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch"))]
    begin = min((event.time_range.start for event in (*on_gpu, *launching)), default=0)
    return [
        [
            "GPU" if event in on_gpu else "host",
            event.name[:LONGEST_NAME],
            round(event.time_range.start - begin, 2),
            round(event.time_range.elapsed_us(), 2),
        ]
        for event in sorted((*on_gpu, *launching), key=lambda event: event.time_range.start)
    ]


def _difference(mine, theirs) -> float:
    """Largest relative difference, by norm, of the floating-point results."""
    pairs = zip(torch.utils._pytree.tree_leaves(mine), torch.utils._pytree.tree_leaves(theirs), strict=True)
    floats = [(a.double(), b.double()) for a, b in pairs if a.is_floating_point()]
    return max(((a - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in floats)


def measure(name: str, small: bool, lock) -> dict:
    """Everything recorded of one graph."""
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

    with lock:
        row["difference"] = _difference(fused(), eager())
        both = {"eager": eager, "compiled": fused}
        times = benchmark_together(both, runs=RUNS, graphs=not graph.training)
        row["gpu"] = {way: asdict(timing) for way, timing in times.items()}
        row["launched"] = {way: _profiled(each) for way, each in both.items()}
        try:
            row["metered_small"] = metered(graph, device)
        except Exception as error:
            row["metered_small"] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    return row


def metered(graph, device: str) -> dict:
    """Bytes and launches that the traffic meter counts at the small sizes, of the operators that this device has."""
    function, inputs = graph.build(device, small=True)
    with torch.set_grad_enabled(graph.training):
        traffic = measure_traffic(function, *inputs)
    return {name: getattr(traffic, name) for name in ("bytes_read", "bytes_written", "launches")}


def timeline(lock) -> dict:
    """The same block kernel by kernel and as one CUDA graph, eager and compiled: where, name, start, us."""
    on_gpu = torch.cuda.is_available()
    sizes = TIMELINE if on_gpu else TIMELINE | GRAPHS["gpt2_block"].small
    function, inputs = GRAPHS["gpt2_block"].make(Tensors("cuda" if on_gpu else "cpu"), **sizes)
    call, _, _ = compiled(trace(function, inputs), inputs)
    ways = {"eager": lambda: function(*inputs), "compiled": lambda: call(*inputs)}
    found = {}
    with lock, torch.no_grad():
        for way, each in ways.items():
            for _ in range(5):
                each()
            found[way] = _profiled(each, rows=True)
            if not on_gpu:
                continue
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                each()
            torch.cuda.synchronize()
            replayed = torch.cuda.CUDAGraph()
            with torch.cuda.graph(replayed):
                each()
            replayed.replay()
            found[f"{way}, CUDA graph"] = _profiled(replayed.replay, rows=True)
    return found


def _late(signal_number, frame):
    raise TimeoutError(f"longer than {LIMIT} s")


def _work(names, results, lock, small: bool, until: float) -> None:
    """One worker: takes names until none is left or the time is up."""
    signal.signal(signal.SIGALRM, _late)
    torch.set_num_threads(1 if not torch.cuda.is_available() else 4)
    while time.time() < until:
        try:
            name = names.get_nowait()
        except queue.Empty:
            break
        signal.alarm(LIMIT)
        try:
            found = timeline(lock) if name == "timeline" else measure(name, small, lock)
        except BaseException as error:  # one graph that fails takes no other with it
            found = {"failed": f"{type(error).__name__}: {error}"[:2000], "where": traceback.format_exc()[-3000:]}
        finally:
            signal.alarm(0)
        results.put((name, found))
        torch._dynamo.reset()
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

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    content = {"gpu": gpu, **date_and_versions(), "runs": RUNS, "graphs": {}, "failed": {}, "timeline": None}
    context = multiprocessing.get_context("spawn")
    names, results, lock = context.Queue(), context.Queue(), context.Lock()
    for name in sorted(chosen, key=lambda name: name not in ("gpt2_step", "timeline", "mamba_block")):  # longest first
        names.put(name)
    shared = names, results, lock, options.small, began + options.seconds
    workers = [context.Process(target=_work, args=shared) for _ in range(options.workers)]
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
