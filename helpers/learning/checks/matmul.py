"""Check that a matmul suits tensor cores: it uses their instructions and large tiles, and rounds once."""

import re
from collections.abc import Callable, Iterable

import torch

from helpers.instruments.resources import Resources
from helpers.instruments.traffic import measure
from helpers.instruments.traffic.result import size
from helpers.learning.checks.cases import Case, described
from helpers.learning.checks.compiled_code import compiled_launches
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.passes import require_one_launch
from helpers.learning.checks.traffic_checks import lines_of
from helpers.learning.checks.values import described_difference, fresh_copy, in_float64, of_tensors, try_each
from helpers.learning.outcome import AnswerError, as_check

TENSOR_CORE = ("HMMA", "HGMMA", "UTCHMMA")  # SASS of compute capability 8, 9 and 10
TF32 = re.compile(r"mma\S*tf32")  # PTX: mma.sync, wgmma and tcgen05 name the operands' format


@as_check
def check_tensor_cores(answer: Callable, inputs: tuple, devices: tuple[str, ...] = ("A100", "H100")) -> str:
    """Compile each kernel that `answer(*inputs)` launches: matmuls use tensor-core instructions, no spills.

    16-bit operands must stay 16-bit: if they are widened to fp32, `tl.dot` rounds them to tf32, which tensor cores
    multiply at half the speed.

    Args:
        answer: the learner's function.
        inputs: its arguments, tensors aligned to 16 bytes whose sizes are multiples of 16.
        devices: the target GPUs, names in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    try:
        of_devices = compiled_launches(answer, inputs, devices)
    except ValueError as error:
        raise AnswerError(str(error), "the line that this names, or the size of your tiles") from error
    for device, compiled in zip(devices, of_devices, strict=True):
        if not compiled:
            raise AnswerError("no Triton kernel was launched", "your launcher: kernel[grid](...)")
        if not any(on_tensor_cores(each) for each in compiled):
            counts = "; ".join(f"{each.kernel}: {each.instructions['FFMA']} FFMA, 0 HMMA" for each in compiled)
            raise AnswerError(
                f"no tensor-core instruction on {device} ({counts})",
                "the product: tl.dot of the tiles as they were loaded, not in fp32 with input_precision='ieee'",
            )
        if all(x.itemsize == 2 for x in matrices(inputs)) and any(TF32.search(each.ptx) for each in compiled):
            raise AnswerError(
                f"the tensor cores of {device} multiply in tf32, half as fast as in 16 bits",
                "the operands of tl.dot: fp32 tiles are multiplied as tf32 by default; leave out .to(tl.float32): the "
                "sum is fp32 anyway",
            )
        for each in compiled:
            if each.spill_bytes:
                raise AnswerError(
                    f"{each.kernel} spills {each.spill_bytes} bytes of registers to memory on {device}",
                    "the tiles: smaller ones, or more warps, need fewer registers per thread",
                )
    return f"tensor-core instructions and no spills on {' and '.join(devices)}."


def matrices(inputs: tuple) -> list[torch.Tensor]:
    """Return the tensors that are multiplied. Vectors are added or scale the result, so their dtypes may differ."""
    return [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 1]


def on_tensor_cores(resources: Resources) -> bool:
    return any(resources.instructions[opcode] for opcode in TENSOR_CORE)


@as_check
def check_one_rounding(answer: Callable, reference: Callable, cases: Iterable[Case]) -> str:
    """Check that each element of `answer` is the exact value rounded once to the result's dtype, up to fp32's own
    error.

    A value that is rounded earlier, say before the activation, or summed in fp16, is further off; so is one from an
    approximate activation.

    Args:
        answer: the learner's function, returning one 16-bit tensor.
        reference: the same in PyTorch. It runs in fp64, and in fp32 to measure fp32's own error.
        cases: calls whose results are finite.
        name: the check's name.
    """
    cases = list(cases)
    try_each(cases, lambda case: require_one_rounding(answer, reference, case), wrong_formula)
    return f"every element is rounded once, on {len(cases)} inputs."


MANY_ROUNDINGS = 64  # half units in the last place of the largest value: more than roundings add up to


def require_one_rounding(answer: Callable, reference: Callable, case: Case) -> None:
    """Raise AnswerError if an element is not the exact value rounded once."""
    traffic = measure(answer, *of_tensors(fresh_copy, case.inputs))
    require_no_hazards(traffic, case.where)
    exact = reference(*of_tensors(in_float64, case.inputs))
    single = reference(*of_tensors(in_float32, case.inputs))
    got = traffic.result
    if not isinstance(got, torch.Tensor) or got.shape != exact.shape:
        raise AnswerError(
            f"{case.where}: expected a tensor of shape {tuple(exact.shape)}", "what your function returns"
        )
    # Twice the error of PyTorch's fp32: another order of summation may lose more.
    lost = 2 * (single.double() - exact).abs().max()
    error = (got.double() - exact).abs()
    wrong = ~(error <= half_ulp(exact, got.dtype) + lost)
    if wrong.any():
        nearest = exact.to(got.dtype)
        look_at = "what is rounded to 16 bits before the store: from the sum to the last operation, all is float32"
        # A value rounded too early is off by a few units in the last place of the largest value, not by many times
        # that.
        if not error.max() <= MANY_ROUNDINGS * half_ulp(exact.abs().max(), got.dtype):
            look_at = "the values: no rounding is as far off as this; the check of values, above, says more"
        raise AnswerError(
            f"{case.where}: {described_difference(got, nearest, wrong)}, the nearest {str(got.dtype)[6:]}", look_at
        )


def wrong_formula(wrong: list[Case], look_at: str) -> str:
    """Return where to look: early rounding affects every curved activation, an approximate formula only its own."""
    activations = {case.arguments for case in wrong}
    if len(activations) == 1 and activations <= {"gelu", "silu"}:
        return f"the formula of {activations.pop()}: the others are right, so nothing else is rounded early"
    return look_at


def in_float32(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


def half_ulp(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half the distance between neighbouring numbers of `dtype` at each value: the error of one rounding to
    nearest."""
    kind = torch.finfo(dtype)
    power = torch.frexp(exact.abs().clamp(min=kind.tiny)).exponent
    return torch.ldexp(torch.full_like(exact, kind.eps / 4), power)


@as_check
def check_tile_traffic(answer: Callable, inputs: tuple, tile: int = 64) -> str:
    """Meter a linear layer: one launch, and at most 1.1x the bytes of a kernel with `tile` x `tile` tiles.

    Args:
        answer: the learner's function of x (M, K), weight (N, K), bias (N,) and more, returning (M, N).
        inputs: its arguments, with any strides; a copy would be another launch.
        tile: rows and columns of the tiles to compare with.
        name: the check's name.
    """
    traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    require_one_launch(traffic)
    x, weight, bias = inputs[:3]
    result = x.shape[0] * weight.shape[0] * x.itemsize
    model = x.nbytes * -(-weight.shape[0] // tile) + (weight.nbytes + bias.nbytes) * -(-x.shape[0] // tile) + result
    if traffic.unique_written < result:
        raise AnswerError(
            f"{size(traffic.unique_written)} are written, {size(result)} needed", "the grid and the store"
        )
    if traffic.bytes_total > 1.1 * model:
        raise AnswerError(
            "\n".join(
                [
                    f"{size(traffic.bytes_total)} moved, {traffic.bytes_total / model:.3g} times the {size(model)} of "
                    f"{tile} x {tile} tiles; in bytes per element of the result:",
                    *lines_of(traffic, x.shape[0] * weight.shape[0]),
                ]
            ),
            "the tiles: each loaded value serves a whole row or column of the tile, so larger tiles load less",
        )
    return f"1 launch, at most 1.1 times the traffic of {tile} x {tile} tiles."
