"""Every instrument on one function, in one call: values, traffic, resources, occupancy, roofline, predicted time.

bench(my_function, *inputs, reference=plain_pytorch)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch
from helpers.instruments.occupancy_calculator import Waves
from helpers.instruments.prediction import Prediction, dry_run_for, prediction_of
from helpers.instruments.resources import Resources, compile_for
from helpers.instruments.roofline import Roofline, Work
from helpers.instruments.timing import Timing, benchmark_together
from helpers.instruments.traffic import Traffic, measure

TENSOR_CORES = ("HMMA", "HGMMA", "UTCHMMA")


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
    roof: the tensor cores' roofline if a kernel uses them, else the one for fp32.
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

    @property
    def work(self) -> Work:
        """The given FLOPs and the metered bytes, each distinct byte counted once."""
        return Work(self.flops, self.traffic.unique_read, self.traffic.unique_written)

    def times(self) -> dict[str, dict[str, Timing]]:
        """Return clock -> function -> seconds on this machine, alternating with the reference: "alone" and, on a GPU,
        "call", the caller's cost per back-to-back call. Without a GPU, kernels are interpreted, so their times mean
        nothing."""
        calls = {name: lambda each=each: each(*self.inputs) for name, each in self.functions.items()}
        if not torch.cuda.is_available():
            return {"alone": benchmark_together(calls, runs=3)}
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
            lines += [("occupancy", repr(needs.occupancy())), ("waves", repr(each.waves))]
        at_best = self.roof.time(self.work)
        bound = f", {self.roof.bound(self.work)}-bound" if self.flops else ""
        share = f"; predicted is {self.prediction.time / at_best:.1f} times that" if at_best else ""
        lines += [("roofline", f"{at_best * 1e6:.3g} us at best for the bytes metered{bound}{share}")]
        lines += [("predicted", repr(self.prediction))]
        if self.reference_prediction is not None:
            theirs = self.reference_prediction.time
            lines += [("", f"the reference: {theirs * 1e6:.3g} us, {theirs / self.prediction.time:.2f} times that")]
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
        ValueError: an unknown device or a CPU, or a kernel that does not compile for it.
    """
    device = device if isinstance(device, Device) else DEVICES[device]
    reports = {"yours": fn} | ({"reference": reference} if reference is not None else {})
    launches, traffic, predictions = {}, {}, {}
    for name, each in reports.items():
        launches[name] = dry_run_for(device, each, *inputs)
        predictions[name] = prediction_of(launches[name], device)
        own = tree_map_only(torch.Tensor, torch.clone, inputs)  # in case a function works in place
        traffic[name] = measure(each, *own, device=device)
    kernels = compiled(launches["yours"], device)
    products = any(each.resources.instructions[name] for each in kernels for name in TENSOR_CORES)
    difference = None
    if reference is not None:
        difference = _difference(traffic["yours"].result, traffic["reference"].result)
    return BenchReport(
        functions=reports,
        inputs=inputs,
        device=device,
        traffic=traffic["yours"],
        kernels=kernels,
        prediction=predictions["yours"],
        roof=Roofline(device, "fp16" if products else "fp32"),
        flops=flops,
        reference=traffic.get("reference"),
        difference=difference,
        reference_prediction=predictions.get("reference"),
    )


def compiled(rehearsed: list[EagerLaunch | TritonLaunch], device: Device) -> tuple[BenchedKernel, ...]:
    """Compile the Triton kernels among these launches, from a dry run for `device`."""
    kernels = []
    for launch in rehearsed:
        if isinstance(launch, TritonLaunch):
            needs = compile_for(launch.kernel, device=device, **launch.given)
            waves = needs.occupancy().waves(grid=math.prod(launch.grid), sms=device.sms)
            kernels.append(BenchedKernel(launch.grid, needs, waves))
    return tuple(kernels)


def _difference(result, expected) -> str | None:
    """Return one line on how the results differ, or None; tolerances are torch.testing's for each dtype."""
    ours, theirs = tree_leaves(result), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"WRONG: {len(ours)} results, the reference has {len(theirs)}"
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    except AssertionError as error:
        _, *lines = (line.strip() for line in str(error).splitlines() if line.strip())
        return "WRONG: " + "; ".join(line for line in lines if not line.startswith("The failure occurred"))
    return None
