"""Run lesson 16's functions with compilers and libraries on this GPU: XLA, cuBLASLt and cuDNN's graphs.

    python -m benchmarks.libraries [--out FILE] [--small] [--only PART ...]

It records XLA's HLO of `gated` before and after optimisation, with the kinds of its fusions and the bytes from its own
cost analysis, and the fusion kinds of four small functions. It times `gated` in eager PyTorch, torch.compile and XLA; a
linear layer with GELU in cuBLASLt's epilogue (`torch._addmm_activation`), eager, torch.compile and this course's
kernel; convolution + bias + ReLU in cuDNN's fused call and in a graph built with nvidia-cudnn-frontend, if installed;
linear + bias + GELU in CUTLASS (cutlass_linear_gelu.cu, built by nvcc once per tile, with headers in the folder
CUTLASS_INCLUDE). A part that fails is recorded with its error. Each part is recorded with the fingerprints of the
kernels that it launches. Results are written after every part. Without a GPU, XLA's output is for the CPU, and nothing
is timed.
"""

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.calls import fingerprints_of, forget_launched, launched_kernels
from benchmarks.provenance import RESULTS, date_and_versions, provenance
from helpers.instruments.timing import benchmark_together
from kernels.tiled.linear_act import linear_act

RECORDS = {"GPU": "libraries.json", "CPU": "libraries_cpu.json"}
SHAPE = (32768, 4096)
SMALL = (64, 256)
LINEARS = ((8192, 1024, 4096), (128, 4096, 4096), (4096, 4096, 4096))  # tokens, in, out
CONVOLUTIONS = ((32, 64, 56, 56, 64, 3), (32, 256, 28, 28, 256, 3))  # images, channels, height, width, out, taps
CUTLASS_SOURCE = Path(__file__).with_name("cutlass_linear_gelu.cu")
# tile of the result, schedule of its warps, thread blocks in a cluster
CUTLASS_TILES = {
    "128x256 cooperative": (128, 256, "Cooperative", 2),
    "128x128 pingpong": (128, 128, "Pingpong", 2),
    "64x128 pingpong": (64, 128, "Pingpong", 1),
    "64x64 pingpong": (64, 64, "Pingpong", 1),
}
EPS = 1e-6
CALLS = 20  # in a row, by the host's clock
RUNS = 20


def record(name: str = "GPU") -> dict:
    """Return the record of the GPU, or of the "CPU": XLA's texts alone."""
    return json.loads((RESULTS / RECORDS[name]).read_text())


def gated(x: torch.Tensor, weight: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute silu(rms_norm(x) * weight) * up: x and up (rows, cols), weight (cols,)."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    return functional.silu(y) * up


def gated_in_jax():
    """Return the same function for JAX."""
    import jax
    import jax.numpy as jnp

    def gated(x, weight, up):
        y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPS) * weight
        return jax.nn.silu(y) * up

    return gated


def xla_texts(shape: tuple[int, int]) -> dict:
    """Return XLA's HLO of `gated` before and after optimisation, the kinds of fusion in it, and XLA's cost analysis.

    Where no JAX is installed, ImportError.
    """
    import jax
    import jax.numpy as jnp

    rows, cols = (jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in (shape, shape[1:]))
    lowered = jax.jit(gated_in_jax()).lower(rows, cols, rows)
    compiled = lowered.compile()
    after = without_source(compiled.as_text())
    costs = compiled.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return {
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "shape": list(shape),
        "before": lowered.as_text(dialect="hlo"),
        "after": after,
        "kinds": re.findall(r"kind=(k\w+)", after),
        "costs": {name: float(value) for name, value in (costs or {}).items()},
    }


def without_source(text: str) -> str:
    """Return HLO without its source information: the tables of files and functions, and each instruction's metadata."""
    text = re.sub(r"\nFileNames\n.*?\n{3}", "", text, flags=re.DOTALL)
    return re.sub(r", metadata=\{[^}]*\}|, frontend_attributes=\{[^}]*\}", "", text)


def fusion_kinds() -> dict[str, list[str]]:
    """Return the kinds of the fusions that XLA makes of four small functions in float32, or what it launches instead.

    Where no JAX is installed, ImportError.
    """
    import jax
    import jax.numpy as jnp

    square, vector = (jax.ShapeDtypeStruct((2048,) * dims, jnp.float32) for dims in (2, 1))
    functions = {
        "2 * relu(x) + 1": (lambda x: 2 * jax.nn.relu(x) + 1, square),
        "exp(x), summed over the rows": (lambda x: jnp.exp(x).sum(0), square),
        "matrix @ vector + bias": (lambda a, x, bias: a @ x + bias, square, vector, vector),
        "relu(a @ b + bias)": (lambda a, b, bias: jax.nn.relu(a @ b + bias), square, square, vector),
    }
    found = {}
    for name, (function, *inputs) in functions.items():
        entry = jax.jit(function).lower(*inputs).compile().as_text().partition("ENTRY")[2]
        found[name] = kinds_in(entry)
    return found


def kinds_in(entry: str) -> list[str]:
    """Return what each instruction of an entry computation is: a fusion's kind, or the name of an operation."""
    found = []
    for line in entry.splitlines():
        operation, kind = re.search(r" ([a-z][a-z-]*)\(", line), re.search(r"kind=(k\w+)", line)
        if operation and " = " in line and operation[1] not in ("parameter", "constant"):
            found.append(kind[1] if kind else operation[1])
    return found


def in_a_row(call: Callable, wait: Callable) -> list[float]:
    """Return seconds per call, of RUNS rows of CALLS, by the host's clock: the same for PyTorch and JAX."""
    wait(call())
    found = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            last = call()
        wait(last)
        found.append((time.perf_counter() - start) / CALLS)
    return found


def gated_times(shape: tuple[int, int]) -> dict:
    """Time `gated` as eager PyTorch, torch.compile and XLA run it, in rows of calls; bf16."""
    x, up = torch.randn(2, *shape, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(shape[1], dtype=torch.bfloat16, device="cuda")
    compiled = torch.compile(gated, dynamic=False)
    compiled(x, weight, up)

    def wait(_):
        torch.cuda.synchronize()

    found = {
        "eager": in_a_row(lambda: gated(x, weight, up), wait),
        "torch.compile": in_a_row(lambda: compiled(x, weight, up), wait),
    }
    try:
        import jax

        function = jax.jit(gated_in_jax())
        arguments = [jax.dlpack.from_dlpack(each) for each in (x, weight, up)]
        found["XLA"] = in_a_row(lambda: function(*arguments), lambda last: last.block_until_ready())
    except Exception as error:
        found["XLA"] = said(error)
    return {name: spread(times) if isinstance(times, list) else times for name, times in found.items()}


def spread(times: list[float]) -> dict:
    low, _, high = statistics.quantiles(times, n=4)
    return {"median": statistics.median(times), "low": low, "high": high, "runs": len(times)}


def kernels_of(call: Callable) -> list[str]:
    """Return the names of the kernels that one call launches."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    return [event.name[:200] for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def linear_gelu(tokens: int, inner: int, out: int) -> dict:
    """Time gelu_tanh(x W^T + bias) in fp16 by cuBLASLt's epilogue, eager, torch.compile and linear_act."""
    options = {"dtype": torch.float16, "device": "cuda"}
    x, bias = torch.randn(tokens, inner, **options), torch.randn(out, **options)
    weight = torch.randn(out, inner, **options) / inner**0.5

    def eager(x, weight, bias):
        return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")

    compiled = torch.compile(eager, dynamic=False)
    tuned = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    calls = {
        "eager": lambda: eager(x, weight, bias),
        "cuBLASLt epilogue": lambda: torch._addmm_activation(bias, x, weight.t(), use_gelu=True),
        "torch.compile": lambda: compiled(x, weight, bias),
        "ours": lambda: linear_act(x, weight, bias, act="gelu_tanh"),
        "cuBLAS, no activation": lambda: functional.linear(x, weight, bias),
    }
    if (tokens, inner, out) == LINEARS[-1]:  # it compiles for half a minute
        calls["max-autotune"] = lambda: tuned(x, weight, bias)
    return measured(calls, functional.gelu(x.double() @ weight.double().t() + bias.double(), approximate="tanh"))


def nvcc_command(tile: str, include: str, out: Path) -> list[str]:
    """Return the command that builds CUTLASS_SOURCE for one of CUTLASS_TILES."""
    height, width, schedule, cluster = CUTLASS_TILES[tile]
    sizes = [f"-DTILE_M={height}", f"-DTILE_N={width}", f"-DSCHEDULE={schedule}", f"-DCLUSTER_M={cluster}"]
    sizes += ["-DEPILOGUE_COOPERATIVE"] if schedule == "Cooperative" else []
    flags = [
        "-std=c++17",
        "-O3",
        "-DNDEBUG",
        "-w",
        "-arch=sm_90a",
        "--expt-relaxed-constexpr",
        "-Xcompiler",
        "-fPIC",
        "-shared",
    ]
    folders = Path(include), Path(include).parent / "tools" / "util" / "include"  # as in CUTLASS's repository
    return ["nvcc", *flags, *(f"-I{each}" for each in folders), *sizes, str(CUTLASS_SOURCE), "-o", str(out)]


def cutlass_build(include: str, folder: Path) -> dict[str, Path | str]:
    """Build every tile at once: tile -> its library, or nvcc's error. Existing builds are reused."""
    files = {tile: folder / f"{tile.replace(' ', '_')}.so" for tile in CUTLASS_TILES}
    started = {
        tile: subprocess.Popen(nvcc_command(tile, include, file), stderr=subprocess.PIPE, text=True)
        for tile, file in files.items()
        if not file.exists()
    }
    errors = {tile: process.communicate()[1] for tile, process in started.items()}
    return {tile: file if file.exists() else errors[tile][-400:] for tile, file in files.items()}


def cutlass_call(file: Path, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable:
    """Return the call of a built library: gelu_tanh(x W^T + bias).

    Raises:
        RuntimeError: CUTLASS does not take these sizes.
    """
    function = ctypes.CDLL(str(file)).linear_gelu
    pointer = ctypes.c_void_p
    function.argtypes = [pointer] * 4 + [ctypes.c_int] * 4 + [pointer, ctypes.POINTER(ctypes.c_size_t), pointer]
    y, size = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device), ctypes.c_size_t()
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    given = [each.data_ptr() for each in (x, weight, bias, y)] + [*x.shape, len(weight), sms]
    if status := function(*given, None, ctypes.byref(size), None):
        raise RuntimeError(f"CUTLASS status {status}")
    workspace = torch.empty(size.value + 1, dtype=torch.uint8, device=x.device)

    def call():
        stream = torch.cuda.current_stream().cuda_stream
        if status := function(*given, workspace.data_ptr(), ctypes.byref(size), stream):
            raise RuntimeError(f"CUTLASS status {status}")
        return y

    return call


def cutlass_linear_gelu(tokens: int, inner: int, out: int) -> dict:
    """Time gelu_tanh(x W^T + bias) in fp16 by CUTLASS at each tile, cuBLASLt's epilogue and linear_act."""
    include = os.environ.get("CUTLASS_INCLUDE")
    if include is None:
        return {"error": "CUTLASS_INCLUDE names no folder with CUTLASS's headers"}
    options = {"dtype": torch.float16, "device": "cuda"}
    x, bias = torch.randn(tokens, inner, **options), torch.randn(out, **options)
    weight = torch.randn(out, inner, **options) / inner**0.5
    folder = Path(os.environ.get("CUTLASS_BUILT") or tempfile.gettempdir()) / "cutlass_linear_gelu"
    folder.mkdir(parents=True, exist_ok=True)
    calls, refused = {}, {}
    for tile, built in cutlass_build(include, folder).items():
        try:
            if isinstance(built, str):
                raise RuntimeError(built)
            calls[tile] = cutlass_call(built, x, weight, bias)
        except Exception as error:
            refused[tile] = said(error)
    calls |= {
        "cuBLASLt epilogue": lambda: torch._addmm_activation(bias, x, weight.t(), use_gelu=True),
        "ours": lambda: linear_act(x, weight, bias, act="gelu_tanh"),
    }
    wanted = functional.gelu(x.double() @ weight.double().t() + bias.double(), approximate="tanh")
    return measured(calls, wanted) | refused


def conv_bias_relu(images: int, channels: int, height: int, width: int, out: int, taps: int) -> dict:
    """Time relu(conv(x) + bias) by eager, cuDNN's fused call and a graph of cuDNN's frontend; fp16, channels last."""
    options = {"dtype": torch.float16, "device": "cuda"}
    x = torch.randn(images, channels, height, width, **options).to(memory_format=torch.channels_last)
    weight = torch.randn(out, channels, taps, taps, **options) / (channels * taps * taps) ** 0.5
    weight, bias, pad = weight.to(memory_format=torch.channels_last), torch.randn(out, **options), taps // 2
    calls = {
        "eager": lambda: functional.conv2d(x, weight, bias, padding=pad).relu(),
        "cudnn_convolution_relu": lambda: torch.cudnn_convolution_relu(x, weight, bias, (1, 1), (pad, pad), (1, 1), 1),
    }
    found = {}
    try:
        calls["cuDNN graph"] = cudnn_graph(x, weight, bias, pad)
    except Exception as error:
        found["cuDNN graph"] = said(error)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        wanted = functional.conv2d(x.float(), weight.float(), bias.float(), padding=pad).relu()
    return measured(calls, wanted) | found


def cudnn_graph(x, weight, bias, pad: int) -> Callable:
    """Build conv -> bias -> ReLU as a graph of cuDNN's frontend, and return the call that executes its plan."""
    import cudnn

    handle = cudnn.create_handle()
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(handle=handle, io_data_type=half, intermediate_data_type=single, compute_data_type=single)
    channels = weight.shape[0]
    bias4 = bias.view(1, channels, 1, 1).contiguous(memory_format=torch.channels_last)
    tensors = [
        graph.tensor(name=name, dim=list(each.shape), stride=strides, data_type=half)
        for name, each, strides in (
            ("x", x, list(x.stride())),
            ("w", weight, list(weight.stride())),
            ("b", bias4, [channels, 1, channels, channels]),
        )
    ]
    sums = graph.conv_fprop(image=tensors[0], weight=tensors[1], padding=[pad, pad], stride=[1, 1], dilation=[1, 1])
    result = graph.relu(name="relu", input=graph.bias(name="bias", input=sums, bias=tensors[2]))
    result.set_output(True).set_data_type(half)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    y = torch.empty(
        x.shape[0], channels, *x.shape[2:], dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=x.device)
    pointers = dict(zip(tensors, (x, weight, bias4), strict=True)) | {result: y}

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pointers, workspace, handle=handle)
        return y

    return call


def measured(calls: dict[str, Callable], wanted: torch.Tensor) -> dict:
    """Time calls together, the GPU's own time with a cold L2, and return each one's kernels and largest error.

    A call that fails is left out of the timing, and recorded with its error.
    """
    found = {}
    for name, call in list(calls.items()):
        try:
            error = (call().double() - wanted).abs().max().item()
            found[name] = {"kernels": kernels_of(call), "largest_error": error}
        except Exception as error:
            found[name] = said(error)
            del calls[name]
    for name, timing in benchmark_together(calls, runs=RUNS).items():
        found[name] |= {"gpu": asdict(timing)}
    return found


def said(error: Exception) -> dict:
    return {"error": f"{type(error).__name__}: {error}"[:500]}


def whether_there(module: str) -> dict:
    """Return a module's version, or the error from importing it."""
    try:
        return {"version": str(getattr(__import__(module), "__version__", "unknown"))}
    except Exception as error:
        return said(error)


def cutlass_version() -> dict:
    """Return the version in CUTLASS's headers, or an error if there are none."""
    header = Path(os.environ.get("CUTLASS_INCLUDE", "")) / "cutlass" / "version.h"
    if not header.exists():
        return {"error": "CUTLASS_INCLUDE names no folder with CUTLASS's headers"}
    numbers = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    return {"version": ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="in benchmarks/results unless given")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts; the others stay as they are in `--out`")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    gpu = torch.cuda.get_device_name() if on_gpu else "CPU"
    out = options.out or RESULTS / RECORDS["GPU" if on_gpu else "CPU"]
    record = provenance() if on_gpu else {"gpu": gpu, **date_and_versions(), "ceilings": {}}
    if options.only and out.exists():
        record = json.loads(out.read_text()) | record
    found = {module: whether_there(module) for module in ("jax", "cudnn")} | {"cutlass": cutlass_version()}
    # With only some PARTS, the others' packages keep the version that they were timed with.
    record["packages"] = found | {
        name: each for name, each in record.get("packages", {}).items() if "version" not in found[name]
    }
    shape = SMALL if options.small else SHAPE
    parts = [("xla", (), lambda: xla_texts(shape)), ("kinds", (), fusion_kinds)]
    if on_gpu:
        parts += [("gated", (), lambda: gated_times(shape))]
        parts += [("conv_bias_relu", size, lambda size=size: conv_bias_relu(*size)) for size in CONVOLUTIONS]
        parts += [("linear_gelu", size, lambda size=size: linear_gelu(*size)) for size in LINEARS]
        parts += [("cutlass", size, lambda size=size: cutlass_linear_gelu(*size)) for size in LINEARS]
    for name, size, part in parts:
        if options.only and name not in options.only:
            continue
        forget_launched()
        try:
            found = part()
        except Exception as error:
            found = said(error)
        if size:
            record.setdefault(name, {})[" x ".join(map(str, size))] = found
        else:
            record[name] = found
        # What each part launched of this project: "part" -> fingerprints, from which a table tells its age.
        launched = record.setdefault("kernels", {})
        launched[name] = sorted({*launched.get(name, []), *fingerprints_of(launched_kernels())})
        out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
