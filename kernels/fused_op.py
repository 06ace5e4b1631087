"""The records that tie a fused kernel to its reference, its work and its examples.

Tests, benchmarks, lessons and explorers read these and nothing else of a kernel file.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Work:
    """What an operation must do, however it is written: arithmetic, and the least bytes through device memory.

    Args:
        flops: floating-point operations; a multiply-add counts two.
        bytes_read: bytes, each input once.
        bytes_written: bytes, each output once.
    """

    flops: float
    bytes_read: float
    bytes_written: float

    def __post_init__(self):
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"Work takes {name} of at least 0, got {value}")

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP/byte; infinite where no byte moves."""
        return self.flops / self.bytes if self.bytes else float("inf")

    def __add__(self, other: "Work") -> "Work":
        """The work of both, one after the other."""
        return Work(
            self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written
        )


@dataclass(frozen=True)
class FusedOp:
    """One fused operation: how to run it, what it must equal, what it must cost.

    Args:
        name: its name in CATALOGUE, and of its file and public function.
        fused: the public function: checks, allocates, launches.
        reference: the same in unfused PyTorch, taking the same arguments.
        work: `work(shape, dtype) -> Work`: FLOPs and least bytes.
        kernel: the forward `@triton.jit` function, as the compiler takes it.
        settings: `settings(...) -> dict` of constexprs and launch options for a size.
        inputs: `inputs(*shape, dtype=, device=) -> tuple`: fresh random arguments for `fused` and `reference`.
        compile_arguments: `compile_arguments(*shape, dtype=) -> (arguments, options)` as a launch would pass them to
            `kernel`, for compiling without launching.
        interpreter_shapes: shapes small enough for the interpreter, awkward ones first.
        gpu_shapes: shapes that benchmarks measure.
        dtypes: what the operation takes.
        gpu_dtypes: what benchmarks measure.
        backward_work: `backward_work(shape, dtype) -> Work` of one backward pass, where the operation has a gradient.
        oracle: what `fused` must equal, where `reference` leaves that open: it draws its own random numbers, or says
            nothing of the order of ties. `reference` itself where not given.
        kernel_for: `kernel_for(*shape) -> kernel`: which kernel `compile_arguments(*shape)` are for, where wide rows
            have one of their own. Always `kernel` where not given.
    """

    name: str
    fused: Callable
    reference: Callable
    work: Callable[..., Work]
    kernel: JITFunction
    settings: Callable[..., dict]
    inputs: Callable[..., tuple]
    compile_arguments: Callable[..., tuple[tuple, dict]]
    interpreter_shapes: tuple[tuple[int, ...], ...]
    gpu_shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
    gpu_dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)
    backward_work: Callable[..., Work] | None = None
    oracle: Callable | None = None
    kernel_for: Callable[..., JITFunction] | None = None

    def __post_init__(self):
        if self.oracle is None:
            object.__setattr__(self, "oracle", self.reference)
        if self.kernel_for is None:
            object.__setattr__(self, "kernel_for", lambda *shape: self.kernel)

    @property
    def group(self) -> str:
        """The package of its file, which says how the work is split: "elementwise", "rowwise" or "tiled"."""
        return self.fused.__module__.split(".")[1]
