"""Check the compiled code of the answer's kernels, for a GPU you may not have."""

import inspect
from collections.abc import Callable
from unittest import mock

import torch
from triton.runtime.jit import JITFunction

from helpers.instruments.resources import Resources, compile_for
from helpers.instruments.traffic import MeteredElsewhere, Traffic, measure
from helpers.learning.checks.cases import described
from helpers.learning.outcome import AnswerError, as_check

WIDTHS = (8, 16, 32, 64, 128)  # bits of one thread's load or store


@as_check
def check_vectorised(answer: Callable, inputs: tuple[torch.Tensor, ...], device: str = "A100") -> str:
    """Compile each kernel that `answer(*inputs)` launches: it should access global memory 16 bytes per thread at a
    time, and not spill.

    Args:
        answer: the learner's function.
        inputs: tensors aligned to 16 bytes, with a multiple of 16 elements, like most tensors.
        device: the GPU compiled for, a name in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    (compiled,) = compiled_launches(answer, inputs, (device,))
    if not compiled:
        raise AnswerError("no Triton kernel was launched", "your launcher: kernel[grid](...)")
    for resources in compiled:
        check_widths(resources)
        require_no_spills(resources)
    major, minor = compiled[0].device.compute_capability
    return f"every load and store is 16 bytes wide on {device} (sm_{major}{minor}), and no register spills."


def require_no_spills(resources: Resources, where: str = "") -> None:
    """Raise AnswerError if registers of a kernel spill to memory."""
    if resources.spill_bytes:
        warps = f"{resources.num_warps} warp{'s' * (resources.num_warps != 1)}"
        raise AnswerError(
            f"{where and where + ': '}{resources.kernel} spills {resources.spill_bytes} bytes of registers to memory "
            f"on {resources.device.name}, with {warps}",
            "num_warps and the block: more warps, or fewer elements per program, need fewer registers per thread",
        )


def require_no_spills_at(answer: Callable, widest: tuple, device: str) -> None:
    """Raise AnswerError if a kernel of `answer(*widest)` spills; without `widest`, compile nothing."""
    if widest:
        for resources in compiled_launches(answer, widest, (device,))[0]:
            require_no_spills(resources, described(widest))


def check_widths(resources: Resources) -> None:
    """Raise AnswerError if a load or store of global memory is narrower than 16 bytes."""
    for opcode, what in (("LDG", "loads"), ("STG", "stores")):
        counts = {width: resources.instructions[f"{opcode}.{width}"] for width in WIDTHS}
        narrowest = next((width for width in WIDTHS if counts[width]), 128)
        if narrowest < 128:
            raise AnswerError(
                f"a thread of {resources.kernel} {what} {narrowest // 8} bytes at a time on {resources.device.name}: "
                f"{counts[narrowest]} {opcode}.{narrowest}, {counts[128]} {opcode}.128",
                f"the block: {resources.num_warps} warps are {32 * resources.num_warps} threads; each needs 16 bytes "
                "of neighbouring elements; and the mask, which must hold for all of these elements or for none: the "
                "compiler has to see that from its sizes",
            )


def compiled_launches(
    answer: Callable, inputs: tuple[torch.Tensor, ...], devices: tuple[str, ...]
) -> list[list[Resources]]:
    """Return, for each device, the compiled kernels that `answer(*inputs)` launches; ValueError if one doesn't
    compile."""
    if isinstance(answer, MeteredElsewhere):
        return answer.compiled(inputs, devices)
    seen, _ = launches(answer, inputs)
    return [
        [compile_for(kernel, *args, device=device, **kwargs) for kernel, args, kwargs in seen] for device in devices
    ]


def launches(
    answer: Callable, inputs: tuple[torch.Tensor, ...]
) -> tuple[list[tuple[JITFunction, tuple, dict]], Traffic]:
    """Return the kernels that `answer(*inputs)` launches, each with its positional and keyword arguments, and the
    call's traffic.

    Launches with an empty grid don't count.
    """
    seen = []

    def recorded(*inputs):
        run = JITFunction.run

        def record(self, *args, grid, warmup, **kwargs):
            if 0 not in sizes_of(grid, self, args, kwargs):
                seen.append((self, args, kwargs))
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)

        with mock.patch.object(JITFunction, "run", record):
            return answer(*inputs)

    # Under the meter, so that a kernel without its mask can't overwrite this process's memory.
    traffic = measure(recorded, *inputs)
    return seen, traffic


def sizes_of(grid, kernel: JITFunction, args: tuple, kwargs: dict) -> tuple:
    if callable(grid):
        given = {name: value for name, value in kwargs.items() if name in kernel.arg_names}
        grid = grid(inspect.signature(kernel.fn).bind(*args, **given).arguments)
    return grid if isinstance(grid, tuple | list) else (grid,)
