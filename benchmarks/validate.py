"""Validate the instruments on a GPU: record the values from the GPU and its tools, for tests to compare with ours.

    python benchmarks/validate.py [SECTION ...]

    compiled    registers, local and shared memory of loaded kernels, active blocks by the driver's occupancy function
    counters    DRAM bytes and sectors by Nsight Compute
    launches    GPU kernels by torch.profiler
    constants   times of kernels that do one thing, from which helpers/instruments/prediction.py has its constants
    times       fused and unfused, at five sizes, for the prediction

This writes benchmarks/results/<gpu>_validation.json; sections that are not named stay as they were. Needs a GPU.
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial

import torch
import triton
import triton.language as tl
from torch.autograd import DeviceType

from benchmarks import hardware_counters
from benchmarks.calls import backward_pass, same_kernels
from benchmarks.example_kernels import EXAMPLES
from benchmarks.hardware_counters import shape_of
from benchmarks.held_out import measure
from benchmarks.provenance import provenance, results_file
from benchmarks.triton_launches import Launch, triton_launches
from benchmarks.validation import COVERED
from helpers.instruments.devices import this_device
from helpers.instruments.resources import compile_for
from helpers.instruments.timing import benchmark_together
from kernels import variant
from kernels.interpreter import runtime
from kernels.op import FusedOp

SIZES = tuple(2**power for power in (16, 19, 22, 25, 28))  # bytes of the first argument
PROCESSES = 8  # compiling at the same time
PROFILED = 2**25  # bytes: many waves, and still quick
# CUfunction_attribute
STATIC_SHARED, LOCAL, REGISTERS = 1, 3, 4


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def attribute(function: int, which: int) -> int:
    """Return an attribute of a loaded kernel from the driver."""
    value = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuFuncGetAttribute(ctypes.byref(value), which, ctypes.c_void_p(function))
    if status:
        raise RuntimeError(f"cuFuncGetAttribute failed with status {status}")
    return value.value


def active_blocks(function: int, threads: int, dynamic_shared_memory: int) -> int:
    """Return the blocks per SM by cuOccupancyMaxActiveBlocksPerMultiprocessor."""
    value = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(value), ctypes.c_void_p(function), threads, ctypes.c_size_t(dynamic_shared_memory)
    )
    if status:
        raise RuntimeError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor failed with status {status}")
    return value.value


def run_once(op: FusedOp, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Run the operation as a benchmark calls it, and its backward pass if it has one."""
    inputs = op.inputs(*shape, dtype=dtype, device=device)
    with torch.no_grad():
        op.fused(*inputs)
    if op.backward_work is not None:
        backward_pass(op.fused, inputs)()


def compiled_of(name: str) -> list[dict]:
    """Return one operation's rows: its plain kernels, and the tuned ones at sizes where those run."""
    op, rows = COVERED[name], []
    for shape, dtype in itertools.product(op.gpu_shapes, op.gpu_dtypes):
        found = {}
        for which in ("plain", "tuned"):
            with variant(which), triton_launches() as found[which]:
                run_once(op, shape, dtype, "cuda")
        if same_kernels(*found.values()):
            del found["tuned"]
        of = {"operation": op.name, "shape": list(shape), "dtype": name_of(dtype)}
        rows += [of | {"variant": which, **compared(launch)} for which, seen in found.items() for launch in seen]
        del found
        torch.cuda.empty_cache()
    return rows


def compiled() -> list[dict]:
    """Return each kernel as loaded on this GPU, and compile_for's figures for it with the same Triton."""
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = [row for rows in pool.map(compiled_of, COVERED) for row in rows]
    for name, (kernel, args, options) in EXAMPLES.items():
        loaded = kernel.warmup(*args, grid=(1,), **options)
        launch = Launch(kernel, (1,), args, options, loaded)
        rows.append({"operation": name, "shape": None, "dtype": None, **compared(launch)})
    return rows


def compared(launch: Launch) -> dict:
    loaded = launch.loaded
    loaded._init_handles()
    threads, shared = loaded.metadata.num_warps * 32, loaded.metadata.shared
    ours = compile_for(launch.kernel, *launch.arguments, device=this_device(), **launch.options)
    return {
        "kernel": launch.kernel.fn.__name__,
        "loaded": {
            "registers": attribute(loaded.function, REGISTERS),
            "local_memory": attribute(loaded.function, LOCAL),
            "static_shared_memory": attribute(loaded.function, STATIC_SHARED),
            "dynamic_shared_memory": shared,
            "threads": threads,
            "blocks": active_blocks(loaded.function, threads, shared),
        },
        "compile_for": {
            "registers": ours.registers,
            "stack": ours.stack,
            "spill_stores": ours.spill_stores,
            "spill_loads": ours.spill_loads,
            "static_shared_memory": ours.static_shared_memory,
            "dynamic_shared_memory": ours.dynamic_shared_memory,
            "threads": ours.num_warps * 32,
            "blocks": ours.occupancy().blocks,
        },
    }


def launches() -> list[dict]:
    """Return the GPU kernels of each version, as torch.profiler names them, including copies and fills."""
    rows = []
    with torch.no_grad():
        for op, version, shape, function, inputs in hardware_counters.sections(PROFILED):
            function(*inputs)
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                function(*inputs)
                torch.cuda.synchronize()
            events = [event for event in profile.events() if event.device_type == DeviceType.CUDA]
            names = [event.name for event in sorted(events, key=lambda event: event.time_range.start)]
            rows.append({"kernel": op.name, "version": version, "shape": list(shape), "kernels": names})
    return rows


@triton.jit
def nothing_kernel(x_ptr):
    pass


@triton.jit
def copy_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, i < elements), i < elements)


def copy(x: torch.Tensor, y: torch.Tensor) -> None:
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024, num_warps=4)


def copies() -> dict[str, Callable]:
    """Return an empty kernel, copies of many sizes, and copies whose source the previous launch wrote or read."""
    x, y, z = torch.empty(3, 2**28, device="cuda")

    def nothing(count):
        for _ in range(count):
            nothing_kernel[(132,)](x)

    functions = {f"{count} empty": partial(nothing, count) for count in (1, 2, 8)}
    for size in (2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24, 3 * 2**23, 2**25, 3 * 2**24, 2**26, 2**28, 2**30):
        a, b, c = (tensor[: size // 4] for tensor in (x, y, z))
        functions[f"copy {size}"] = partial(copy, a, b)
        if size <= 2**26:
            functions[f"copy {size}, copy the copy"] = lambda a=a, b=b, c=c: (copy(a, b), copy(b, c))
            functions[f"copy {size}, copy it again"] = lambda a=a, b=b, c=c: (copy(a, b), copy(a, c))
    return functions


# PyTorch's kernels by how they are written, each on a matrix x, a row w, a column r and labels.
OPERATORS = {
    "neg": lambda x, w, r, labels: -x,
    "gelu": lambda x, w, r, labels: torch.nn.functional.gelu(x),
    "times row": lambda x, w, r, labels: x * w,
    "times column": lambda x, w, r, labels: x * r,
    "to float32": lambda x, w, r, labels: x.to(torch.float32),
    "to int8": lambda x, w, r, labels: x.to(torch.int8),
    "transposed": lambda x, w, r, labels: x.T.contiguous(),
    "fill": lambda x, w, r, labels: torch.zeros_like(x),
    "random": lambda x, w, r, labels: torch.rand_like(x),
    "dropout": lambda x, w, r, labels: torch.nn.functional.dropout(x, 0.5),
    "sum": lambda x, w, r, labels: x.sum(dim=1),
    "amax": lambda x, w, r, labels: x.amax(dim=1),
    "sum of columns": lambda x, w, r, labels: x.sum(dim=0),
    "softmax": lambda x, w, r, labels: x.softmax(dim=1),
    "log_softmax": lambda x, w, r, labels: x.log_softmax(dim=1),
    "layer_norm": lambda x, w, r, labels: torch.nn.functional.layer_norm(x, w.shape, w, w),
    "rms_norm": lambda x, w, r, labels: torch.nn.functional.rms_norm(x, w.shape, w),
    "nll_loss": lambda x, w, r, labels: torch.nn.functional.nll_loss(x, labels, reduction="none"),
    "topk": lambda x, w, r, labels: x.topk(8, dim=1),
}
ROWS = (2**18, 2**22, 2**25, 2**28)  # bytes of x
COLUMNS = (1024, 8192, 65536)


def operators() -> list[dict]:
    rows = []
    for dtype, columns, size in itertools.product((torch.bfloat16, torch.float32), COLUMNS, ROWS):
        x = torch.randn(size // (columns * dtype.itemsize), columns, device="cuda").to(dtype)
        labels = torch.zeros(len(x), dtype=torch.int64, device="cuda")
        arguments = x, x[0].clone(), x[:, :1].clone(), labels
        skipped = {"topk"} if size > 2**25 else set()  # a second each
        functions = {name: partial(f, *arguments) for name, f in OPERATORS.items() if name not in skipped}
        measured = benchmark_together(functions, runs=10)
        rows += [
            {"operator": name, "shape": list(x.shape), "dtype": name_of(dtype), "gpu": asdict(timing)}
            for name, timing in measured.items()
        ]
    return rows


def constants() -> dict:
    """Time kernels that do one thing, and PyTorch's."""
    return {
        "copies": {name: asdict(timing) for name, timing in benchmark_together(copies(), runs=20).items()},
        "operators": operators(),
    }


def times() -> list[dict]:
    """Time every kernel in its versions at every size, as held-out times are."""
    return measure([(op.name, shape_of(op, size), op.gpu_dtypes[-1]) for op in COVERED.values() for size in SIZES])


SECTIONS = {
    "compiled": compiled,
    "counters": hardware_counters.read,
    "launches": launches,
    "constants": constants,
    "times": times,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record this GPU's values, to test the instruments with.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    chosen = parser.parse_args(arguments).sections or list(SECTIONS)
    if unknown := [name for name in chosen if name not in SECTIONS]:
        raise ValueError(f"no section named {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if not runtime.has_gpu():
        raise RuntimeError("validation needs an NVIDIA GPU: the recorded run is in benchmarks/results")

    path = results_file().with_stem(f"{results_file().stem}_validation")
    content = json.loads(path.read_text()) if path.exists() else {}
    now = provenance()
    now["versions"]["ptxas"] = triton.knobs.nvidia.ptxas.version
    content |= {
        **now,
        "command": "python benchmarks/validate.py",
        "ncu": " ".join(["ncu", *hardware_counters.command("LOG")[1:]]).replace(sys.executable, "python"),
    }
    for section in chosen:
        content[section] = SECTIONS[section]()
        content.setdefault("dates", {})[section] = now["date"]
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{section}: {len(content[section])} rows", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
