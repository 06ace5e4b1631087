"""Every instrument on one function, in one call: values, traffic, resources, occupancy, roofline, predicted time.

bench(my_function, *inputs, reference=plain_pytorch)
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch
from helpers.instruments.occupancy_calculator import Waves
from helpers.instruments.prediction import FLOP_FORMULAS, Prediction, dry_run_for, prediction_of, takes_tf32
from helpers.instruments.resources import Resources, compile_for
from helpers.instruments.roofline import Roofline, Work
from helpers.instruments.timing import Timing, benchmark_together
from helpers.instruments.traffic import Traffic, measure

# What a matmul's PTX instruction calls its operands -> the name of the peak.
PRODUCT = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\S*")
OPERANDS = {
    r"mxf4|e2m1": "fp4",
    r"e4m3|e5m2|f8f6f4": "fp8",
    r"tf32": "tf32",
    r"bf16": "bf16",
    r"f64": "fp64",
    r"[su]8|i8": "int8",
    r"f16": "fp16",
}
DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class BenchedKernel:
    """One Triton launch of the function: its compiled resources, and how its grid fills the GPU."""

    grid: tuple[int, int, int]
    resources: Resources
    waves: Waves


@dataclass(frozen=True, repr=False)
class BenchReport:
    """The results of `bench`. `reference`, `difference` and `reference_prediction` are None without a reference.

    difference: None if every value matches the reference within the dtype's tolerance, else the mismatch.
    kernels: each Triton launch, in order; PyTorch operators appear only in `prediction.launches`.
    roof: the roofline of the fastest units that a matmul runs on; without a matmul, of fp32.
    unknown_peak: a matmul's dtype without a known peak on the device; `roof` then only holds for bytes.
    interpreted: the functions that launch Triton kernels, which run interpreted without a GPU.
    """

    functions: dict[str, Callable]
    inputs: tuple
    device: Device
    traffic: Traffic
    kernels: tuple[BenchedKernel, ...]
    prediction: Prediction
    roof: Roofline
    flops: float
    reference: Traffic | None
    difference: str | None
    reference_prediction: Prediction | None
    unknown_peak: str = ""
    interpreted: frozenset[str] = frozenset()

    @property
    def work(self) -> Work:
        """The given FLOPs, if their peak is known, and the metered bytes, each distinct byte counted once."""
        flops = 0.0 if self.unknown_peak else self.flops
        return Work(flops, self.traffic.unique_read, self.traffic.unique_written)

    def times(self) -> dict[str, dict[str, Timing]]:
        """Return clock -> function -> seconds on this machine, alternating with the reference: "alone" and, on a GPU,
        "call", the caller's cost per back-to-back call. Without a GPU, a function that launches Triton kernels is named
        "yours, interpreted": that is the interpreter's time."""
        calls = {name: lambda each=each: each(*self.inputs) for name, each in self.functions.items()}
        if not torch.cuda.is_available():
            named = {f"{name}, interpreted" if name in self.interpreted else name: each for name, each in calls.items()}
            return {"alone": benchmark_together(named, runs=3)}
        return {"alone": benchmark_together(calls), "call": benchmark_together(calls, launches=True)}

    def __repr__(self):
        lines = []
        if self.reference is not None:
            lines += [("values", self.difference or "right: match the reference within its dtype's precision")]
        lines += [("traffic", repr(self.traffic))]
        if self.reference is not None:
            lines += [("reference", repr(self.reference))]
        for each in self.kernels:
            needs, grid = each.resources, " x ".join(map(str, each.grid))
            spills = f"{needs.spill_bytes} B spilled" if needs.spill_bytes else "no spills"
            lines += [("kernel", f"{needs.kernel}, grid {grid}, {needs.num_warps} warps per block")]
            lines += [("", f"{needs.registers} registers, {spills}, {needs.shared_memory} B of shared memory")]
            lines += [("occupancy", repr(needs.occupancy()))]
            lines += [("clusters", needs.clusters)] if needs.clusters else []
            lines += [("waves", repr(each.waves))]
        at_best = self.roof.time(self.work)
        bound = ""
        if self.work.flops:
            bound = f" and the FLOPs given, {self.roof.bound(self.work)}-bound on {self.roof.dtype}"
        share = f"; predicted is {self.prediction.time / at_best:.1f} times that" if at_best else ""
        lines += [("roofline", f"{at_best * 1e6:.3g} us at best for the bytes metered{bound}{share}")]
        if self.unknown_peak and self.flops:
            peak = f"{self.device.name} has no known {self.unknown_peak} peak"
            lines += [("", f"{peak}: the {self.flops:.4g} FLOPs are not counted, so the best may take longer")]
        lines += [("predicted", repr(self.prediction))]
        if self.reference_prediction is not None:
            theirs, ours = self.reference_prediction.time, self.prediction.time
            times = f", {theirs / ours:.2f} times that" if ours else ""
            lines += [("", f"the reference: {theirs * 1e6:.3g} us{times}")]
        return "\n".join(f"{name:10}  {text}".replace("\n", "\n" + 12 * " ").rstrip() for name, text in lines)


def bench(
    fn: Callable, *inputs, reference: Callable | None = None, flops: float = 0.0, device: str | Device = "H100"
) -> BenchReport:
    """Run all of the course's instruments on `fn(*inputs)`.

    Args:
        fn: any callable on tensors: Triton launches, PyTorch, or both.
        inputs: its arguments, any number of them.
        reference: the same operation in plain PyTorch, to compare values, traffic and predicted time.
        flops: floating-point operations of the call, if the roofline should include arithmetic.
        device: the GPU to compile and predict for, present or not.

    Raises:
        TypeError: fn or reference is not callable.
        ValueError: an unknown device or a CPU, FLOPs that are not a number from 0, or a kernel that does not compile
            for it.
    """
    if not isinstance(flops, int | float) or not 0 <= flops < math.inf:
        raise ValueError(f"flops is a number of at least 0, got {flops!r}")
    device = device if isinstance(device, Device) else DEVICES[device]
    reports = {"yours": fn} | ({"reference": reference} if reference is not None else {})
    launches, traffic, predictions, values = {}, {}, {}, {}
    for name, each in reports.items():
        launches[name] = dry_run_for(device, each, *inputs)
        predictions[name] = prediction_of(launches[name], device)
        own = tree_map_only(torch.Tensor, torch.clone, inputs)  # in case a function works in place
        traffic[name] = measure(each, *own, device=device)
        result = traffic[name].result
        values[name] = own if result is None else result  # a function that returns nothing works in place
    kernels = compiled(launches["yours"], device)
    dtypes = [dtype for each in kernels for dtype in _products_of(each.resources)]
    dtypes += [dtype for launch in launches["yours"] for dtype in _product_of(launch, device)]
    known = [dtype for dtype in dtypes if dtype in device.peak_flops]
    difference = None
    if reference is not None:
        difference = _difference(values["yours"], values["reference"])
    return BenchReport(
        functions=reports,
        inputs=inputs,
        device=device,
        traffic=traffic["yours"],
        kernels=kernels,
        prediction=predictions["yours"],
        roof=Roofline(device, max(known, key=device.peak_flops.get, default="fp32")),
        flops=flops,
        reference=traffic.get("reference"),
        difference=difference,
        reference_prediction=predictions.get("reference"),
        unknown_peak=next((dtype for dtype in dtypes if dtype not in known), ""),
        interpreted=frozenset(
            name for name, each in launches.items() if any(isinstance(launch, TritonLaunch) for launch in each)
        ),
    )


def _products_of(needs: Resources) -> list[str]:
    """Return the dtypes that a Triton kernel multiplies on tensor cores, as peaks are named."""
    named = {
        next((name for what, name in OPERANDS.items() if re.search(what, each)), "")
        for each in PRODUCT.findall(needs.ptx)
    }
    return sorted(named - {""})


def _product_of(launch: EagerLaunch | TritonLaunch, device: Device) -> list[str]:
    """Return the dtype that a matmul or convolution of PyTorch multiplies on `device`, as peaks are named."""
    if isinstance(launch, TritonLaunch) or launch.operator.overloadpacket not in FLOP_FORMULAS:
        return []
    dtype = launch.inputs[0].dtype
    if dtype == torch.float32:
        tf32 = "tf32" in device.peak_flops and takes_tf32("convolution" in launch.operator.name())
        return ["tf32" if tf32 else "fp32"]
    return [DTYPES.get(dtype) or ("fp8" if dtype.is_floating_point else str(dtype).removeprefix("torch."))]


def compiled(rehearsed: list[EagerLaunch | TritonLaunch], device: Device) -> tuple[BenchedKernel, ...]:
    """Compile the Triton kernels among these launches, from a dry run for `device`."""
    kernels = []
    for launch in rehearsed:
        if isinstance(launch, TritonLaunch):
            needs = compile_for(launch.kernel, device=device, **launch.given)
            waves = needs.occupancy().waves(grid=math.prod(launch.grid) * needs.num_ctas, sms=device.sms)
            kernels.append(BenchedKernel(launch.grid, needs, waves))
    return tuple(kernels)


def _difference(result, expected) -> str | None:
    """Return one line on how the results differ, or None; tolerances are torch.testing's for each dtype."""
    ours, theirs = tree_leaves(result), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"WRONG: {len(ours)} results, the reference has {len(theirs)}"
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    except TypeError as error:
        return f"not compared: {str(error).splitlines()[0]}"
    except AssertionError as error:
        lines = (line.strip() for line in str(error).splitlines() if line.strip())
        told = [line for line in lines if not re.match(r"The failure occurred|(Tensor-likes|Scalars) are not", line)]
        return "WRONG: " + "; ".join(told)
    return None
