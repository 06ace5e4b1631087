"""`cuda_kernel`: turn a string of CUDA C++ into a function of tensors, with or without a GPU.

    add = cuda_kernel(source, "add")
    add.resources.registers
    add[blocks, threads](x, y, out, n)

With a GPU the kernel runs there, on PyTorch's stream. Without one, or under `measure`, the CPU executes the PTX from
NVRTC (executor.py), and refuses unsupported instructions by name. Differences from a GPU:

    approximate instructions    rounded once from fp64: ex2, rsqrt, sqrt, rcp .approx are within 1 ulp of an H200,
                                division .full 2, lg2 1 ulp or 2^-22, sin and cos 2^-20.5, tanh 2^-11
    mma                         sums in fp64, rounded once: 2^-20 from an H200 for values of ordinary size
    NaN                         is NaN, with different bits
    atomics on floats           in thread order, one of the orders a GPU may choose
    cp.async                    reads global memory when it starts, and fills shared memory when a thread waits for it
    wmma                        lanes hold different elements of a fragment than on a GPU; sums as in mma
    mbarrier                    orders the whole block once one of its threads has waited
    __device__ variables        keep their values from launch to launch, but not those of a launch on the GPU
    printf                      prints in thread order, to Python's standard output; a GPU prints to the process's
    races                       between blocks: a fence and an atomic order a block's earlier accesses before those of
                                blocks that run an atomic later, on any address; so a wrong lock goes unnoticed
    blocks                      run a few at a time: one must not wait for another that runs much later, unless the
                                kernel calls grid.sync(), which makes all of them run at once
"""

import ctypes
import functools
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from helpers.instruments.cuda import observers
from helpers.instruments.cuda.compile import Compiled, compile_source
from helpers.instruments.cuda.decode import Decoder
from helpers.instruments.cuda.executor import Machine
from helpers.instruments.cuda.memory import GRID_BARRIER, GlobalMemory
from helpers.instruments.cuda.operation import DTYPES
from helpers.instruments.cuda.ptx import Parameter, Program, parameters, parse
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.occupancy_calculator import WARP, limits
from helpers.instruments.resources import Resources
from helpers.instruments.source_lines import naming_lines

MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, technical specifications per compute capability
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
# dtype -> the C++ types of its elements.
_NAMES = {
    torch.float32: ("float", "float2", "float4"),
    torch.float64: ("double", "double2"),
    torch.float16: ("__half", "half", "__half2", "half2"),
    torch.bfloat16: ("__nv_bfloat16", "__nv_bfloat162"),
    torch.bool: ("bool",),
    torch.int8: ("char", "signed char", "int8_t"),
    torch.int16: ("short", "short int", "int16_t"),
    torch.int32: ("int", "signed", "signed int", "int32_t", "int2", "int4"),
    torch.int64: ("long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t"),
    torch.uint8: ("unsigned char", "uint8_t"),
    torch.uint16: ("unsigned short", "uint16_t"),
    torch.uint32: ("unsigned", "unsigned int", "uint", "uint32_t"),
    torch.uint64: ("unsigned long", "unsigned long long", "unsigned long long int", "uint64_t", "size_t"),
}
_ELEMENTS = {name: dtype for dtype, names in _NAMES.items() for name in names}
# PyTorch supports few operations on these, so pointers to them take any tensor.
_ANY_TENSOR = {torch.uint16, torch.uint32, torch.uint64}
GRID_SYNC = {"%envreg1", "%envreg2"}  # where a kernel finds the barrier of its grid


def cuda_kernel(
    source: str, name: str, device: str | Device = "H100", options: Mapping[str, Any] | None = None
) -> "CudaKernel":
    """Compile a CUDA C++ (C++17) kernel for `device` without running it.

    Args:
        source: the text; it may include NVIDIA's own headers, such as <cuda_bf16.h>, <cooperative_groups.h>.
        name: the `__global__` function's; for a template with its arguments, "softmax<256>".
        device: a name in DEVICES, or a Device; compute capability 7.5 or later.
        options: NVRTC's, as fields of cuda.core.ProgramOptions: {"use_fast_math": True, "max_register_count": 32}.

    Raises:
        CompileError: the source does not compile; a ValueError with NVRTC's log and the line marked.
        ValueError: the device or an option is unknown, or NVRTC cannot compile for the device.
    """
    device = device if isinstance(device, Device) else DEVICES[device]
    return CudaKernel(source, name, device, dict(options or {}))


class DeclaredParameter:
    """One parameter as the source declares it: its name, the C++ type without qualifiers and asterisks ("" if the
    source cannot be parsed), and that type's dtype if it has one."""

    def __init__(self, name: str, declared: str):
        self.name = name
        stars = declared.count("*") + declared.count("[")
        self.pointer, self.array = stars > 0, stars == 2 and "(" not in declared
        plain = re.sub(
            r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__)\b|[*&]|\[[^]]*\]", " ", declared
        )
        self.type = " ".join(plain.split())
        self.dtype = _ELEMENTS.get(self.type)

    def points_to(self, dtype: torch.dtype) -> bool:
        """Return whether a pointer of this type may point to elements of `dtype`, judging by its type alone."""
        return self.dtype in (None, dtype, *_ANY_TENSOR)


def is_half(parameter: Parameter, source: DeclaredParameter) -> bool:
    """Return whether a parameter is one __half or __nv_bfloat16, which PTX stores as two bytes."""
    halves = torch.float16, torch.bfloat16
    return (parameter.type, parameter.size) == ("b8", 2) and not source.pointer and source.dtype in halves


class CudaKernel:
    """A compiled kernel; `kernel[grid, block](...)` or `kernel[grid, block, dynamic_shared_bytes](...)` launches it."""

    def __init__(self, source: str, name: str, device: Device, options: dict):
        self.source, self.name, self.device, self._options = source, name, device, options
        self._compiled = self.compiled_for(device)

    def compiled_for(self, device: Device) -> Compiled:
        return compile_source(self.source, self.name, device, self._options)

    @property
    def file(self) -> str:
        """Return the source's name in linecache and `by_line`."""
        return self._compiled.file

    @property
    def ptx(self) -> str:
        return self._compiled.ptx

    @cached_property
    def program(self) -> Program:
        return parse(self._compiled.ptx, self._compiled.entry)

    @cached_property
    def declared(self) -> dict[str, Parameter]:
        """Return the parameters as declared in the PTX: type, size and place."""
        return parameters(self.ptx, self._compiled.entry)

    @cached_property
    def parameters(self) -> list[DeclaredParameter]:
        """Return the parameters as declared in the source; numbered if the source cannot be parsed."""
        function = re.match(r"[\w:]+", self.name)[0].split("::")[-1]
        count = len(self.declared)
        text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", self.source, flags=re.DOTALL)
        found = re.search(rf"__global__[^;{{}}]*?\b{function}\s*\(([^)]*)\)", text)
        declared = _split(found[1]) if found else []
        if len(declared) != count:
            return [DeclaredParameter(f"argument {place}", "") for place in range(count)]
        return [DeclaredParameter(*_named(each)) for each in declared]

    @cached_property
    def resources(self) -> Resources:
        """Return registers, spills, shared memory, SASS, PTX, for a block of the size in __launch_bounds__, or 1024."""
        return self.resources_for(self.largest_block)

    @property
    def largest_block(self) -> int:
        """Return the threads per block that __launch_bounds__ allows, or 1024."""
        bound = re.search(rf"\.entry {re.escape(self._compiled.entry)}\s*\([^)]*\)\s*\.maxntid (\d+)", self.ptx)
        return int(bound[1]) if bound else MAX_THREADS

    def resources_for(self, threads: int, dynamic_shared_memory: int = 0) -> Resources:
        """Return the resources for blocks of `threads` threads and `dynamic_shared_memory` bytes, which determine
        occupancy.

        Raises:
            ValueError: more threads than a block can have or __launch_bounds__ allows, or not a whole number.
        """
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= self.largest_block:
            raise ValueError(f"{self.name} takes blocks of 1 to {self.largest_block} threads, got {threads!r}")
        cluster = re.search(
            rf"{re.escape(self._compiled.entry)}\s*\([^)]*\)[^{{]*\.reqnctapercluster ([\d, ]+)", self.ptx
        )
        body = self.ptx.partition(f".entry {self._compiled.entry}(")[2].partition("\n}")[0]
        arrays = re.findall(r"\.extern \.shared [^;]*?(\w+)\[\]", self.ptx)
        log = self._compiled.log

        def logged(pattern: str) -> int:
            return sum(map(int, re.findall(pattern, log)))

        return Resources(
            kernel=self.name,
            device=self.device,
            registers=logged(r"Used (\d+) registers"),
            spill_stores=logged(r"(\d+) bytes spill stores"),
            spill_loads=logged(r"(\d+) bytes spill loads"),
            stack=logged(r"(\d+) bytes stack frame"),
            static_shared_memory=logged(r"(\d+) bytes smem"),
            dynamic_shared_memory=dynamic_shared_memory,
            barriers=logged(r"used (\d+) barriers"),
            num_warps=-(-threads // WARP),
            num_ctas=math.prod(map(int, cluster[1].split(","))) if cluster else 1,
            launch_decides=any(re.search(rf"\b{re.escape(array)}\b", body) for array in arrays),
            ptx=self.ptx,
            cubin=self._compiled.cubin,
            file=self.file,
        )

    @property
    def log(self) -> str:
        """Return the output of `ptxas -v` for the kernel."""
        return self._compiled.log.strip()

    def __getitem__(self, configuration) -> "CudaLaunch":
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 3:
            raise TypeError(
                f"{self.name}: launch as kernel[grid, block](...) or kernel[grid, block, shared_bytes](...)"
            )
        grid, block, *shared = configuration
        return CudaLaunch(
            self, _sizes(self.name, "grid", grid, MAX_GRID), _sizes(self.name, "block", block, MAX_BLOCK), *shared
        )

    def __repr__(self):
        return f"<CUDA kernel {self.name} for {self.device.name}>"


def _named(declared: str) -> tuple[str, str]:
    """Return ("x", "float* []") for "float* x[]"."""
    brackets = "".join(re.findall(r"\[[^]]*\]", declared))
    bare = re.sub(r"\[[^]]*\]", " ", declared)
    name = re.findall(r"\w+", bare)[-1]
    return name, bare[: bare.rindex(name)] + brackets


def tensors_of(arguments) -> list[torch.Tensor]:
    """Return the tensors among the arguments, including those in lists."""
    found = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found += tensors_of(argument)
    return found


def _on_host(argument):
    if isinstance(argument, list | tuple):
        return [_on_host(each) for each in argument]
    return argument.cpu() if isinstance(argument, torch.Tensor) else argument


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.stride(0) * tensor.element_size() if tensor.dim() else 0


def _split(text: str) -> list[str]:
    """Split parameters at the commas outside brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [each.strip() for each in [*parts, part] if each.strip() not in ("", "void")]


def _sizes(name: str, what: str, given, most) -> tuple[int, int, int]:
    sizes = (*given, 1, 1)[:3] if isinstance(given, tuple | list) else (given, 1, 1)
    if not all(isinstance(size, int) and 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
        raise ValueError(f"{name}: a {what} is 1 to 3 sizes from 1 to {most}, got {given}")
    if what == "block" and int(np.prod(sizes)) > MAX_THREADS:
        raise ValueError(f"{name}: a block has at most {MAX_THREADS} threads, got {sizes}")
    return sizes


@dataclass(frozen=True)
class CudaLaunch:
    """A kernel with its grid and block; call it with the C++ function's arguments: tensors and numbers."""

    kernel: CudaKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_memory: int = 0
    skipped: int = 0

    def after(self, blocks: int) -> "CudaLaunch":
        """Return the same launch without its first blocks and their rows: row 0 of every tensor is at row `blocks`
        of the whole tensor, up to 2^35 bytes from its start. Nothing before it is allocated, so an overflowing offset
        goes out of bounds. Works without a GPU, or under `measure`."""
        return replace(self, skipped=blocks)

    @property
    def __name__(self) -> str:
        return self.kernel.name

    @property
    def __signature__(self) -> inspect.Signature:
        names = [re.sub(r"\W", "_", parameter.name) for parameter in self.kernel.parameters]
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])

    @property
    def resources(self) -> Resources:
        """Return the resources that this launch needs."""
        return self.kernel.resources_for(int(np.prod(self.block)), self.dynamic_shared_memory)

    def __call__(self, *arguments) -> None:
        """Launch the kernel.

        Raises:
            TypeError: the arguments do not fit the parameters.
            ValueError: the block is larger than __launch_bounds__, or needs more shared memory than the device has; a
                number is outside the range of its parameter's type.
            NotImplementedError: without a GPU, an instruction is not supported by the executor.
            RuntimeError: without a GPU, an access is out of bounds or misaligned, not all threads reach a barrier
                or a shuffle, or the kernel does not end.
        """
        self._check()
        if self.cooperative:
            self._check_resident()
        arguments = self._checked(arguments)
        on_gpu = any(tensor.is_cuda for tensor in tensors_of(arguments))
        if on_gpu and observers.observer() is None:
            from helpers.instruments.cuda.gpu import launch  # only if there is one

            launch(self, arguments)
            return
        with _disable_current_modes():  # a meter must not count the copies
            on_host = [_on_host(argument) for argument in arguments]
        with naming_lines(self.kernel.file):
            self._execute(on_host, arguments)
        with _disable_current_modes():
            for host, original in zip(tensors_of(on_host), tensors_of(arguments), strict=True):
                if host is not original:
                    original.copy_(host)

    def _check(self) -> None:
        kernel, threads = self.kernel, int(np.prod(self.block))
        if threads > kernel.largest_block:
            raise ValueError(f"{kernel.name} has __launch_bounds__({kernel.largest_block}), got a block of {threads}")
        most = limits(kernel.device.compute_capability).shared_memory_per_block
        used = self.resources.shared_memory
        if used > most:
            raise ValueError(
                f"{kernel.name} needs {used} B of shared memory; {kernel.device.name} has {most} B per block"
            )

    @property
    def cooperative(self) -> bool:
        """Return whether the kernel calls grid.sync(): then all of its blocks must run at once."""
        return all(name in self.kernel.ptx for name in GRID_SYNC)

    def _check_resident(self) -> None:
        each, device = self.resources.occupancy().blocks, self.kernel.device
        blocks = int(np.prod(self.grid))
        if device.sms and blocks > each * device.sms:
            raise ValueError(
                f"{self.kernel.name} synchronises its grid, so all blocks must run at once: {device.name} holds "
                f"{each * device.sms:,} of them ({each} on each of {device.sms} SMs), got {blocks:,}"
            )

    def _checked(self, arguments) -> tuple:
        kernel = self.kernel
        declared = list(kernel.declared.values())
        if len(arguments) != len(declared):
            names = ", ".join(parameter.name for parameter in kernel.parameters)
            raise TypeError(f"{kernel.name}({names}) takes {len(declared)} arguments, got {len(arguments)}")
        for argument, type, parameter in zip(arguments, declared, kernel.parameters, strict=True):
            where = f"{kernel.name}: {parameter.name}"
            if parameter.array:
                self._check_array(argument, where, parameter)
            elif isinstance(argument, torch.Tensor):
                if type.type not in ("u64", "b64"):
                    raise TypeError(f"{where} is a number ({type.type}), got a tensor")
                if parameter.pointer and not parameter.points_to(argument.dtype):
                    raise TypeError(f"{where} points to {parameter.dtype}, got a tensor of {argument.dtype}")
            elif parameter.pointer:
                raise TypeError(f"{where} is a pointer: pass a tensor, got {_shown(argument)}")
            elif type.type == "b8" and not is_half(type, parameter):
                self._check_struct(argument, where, type.size)
            elif not isinstance(argument, bool | int | float | np.generic) or type.type not in DTYPES or type.size > 8:
                raise TypeError(f"{where} takes a number ({type.type}), got {_kind(argument)}")
        return arguments

    def _check_array(self, argument, where: str, parameter: "DeclaredParameter") -> None:
        """Check that an array of pointers gets a list of tensors."""
        tensors = argument if isinstance(argument, list | tuple) else [None]
        if not all(isinstance(each, torch.Tensor) for each in tensors):
            raise TypeError(f"{where} is an array of pointers: pass a list of tensors, got {_kind(argument)}")
        for each in tensors:
            if not parameter.points_to(each.dtype):
                raise TypeError(f"{where} holds pointers to {parameter.dtype}, got a tensor of {each.dtype}")

    def _check_struct(self, argument, where: str, size: int) -> None:
        of_numpy = isinstance(argument, np.void | np.ndarray) and argument.dtype.names is not None
        if not of_numpy and not isinstance(argument, bytes | ctypes.Structure):
            raise TypeError(
                f"{where} is a struct of {size} bytes: pass a ctypes.Structure, a NumPy structured scalar or bytes, "
                f"got {_kind(argument)}"
            )
        if len(bytes(argument)) != size:
            how = "; NumPy lays fields out as C++ does with np.dtype(..., align=True)" if of_numpy else ""
            raise TypeError(f"{where} is a struct of {size} bytes, got one of {len(bytes(argument))}{how}")

    def parameter_bytes(self, values) -> bytes:
        """Return the arguments as the kernel reads them from memory: addresses, numbers and structs."""
        declared = list(self.kernel.declared.values())
        block = bytearray(declared[-1].offset + declared[-1].size if declared else 0)
        for value, parameter, source in zip(values, declared, self.kernel.parameters, strict=True):
            struct = parameter.type == "b8" and not is_half(parameter, source)
            raw = bytes(value) if struct else self._number(value, parameter, source).tobytes()
            block[parameter.offset : parameter.offset + parameter.size] = raw
        return bytes(block)

    def _number(self, value, parameter: Parameter, source: DeclaredParameter) -> np.generic:
        """Return an argument, a number or an address, as the kernel's parameter stores it.

        Raises:
            TypeError: the parameter takes a whole number, and this isn't one.
            ValueError: it's outside the range of the parameter's type.
        """
        if is_half(parameter, source):
            self._check_finite(value, source.dtype, source)
            return torch.tensor(float(value), dtype=source.dtype).view(torch.uint16).numpy()[()]
        dtype = DTYPES[parameter.type]
        if dtype.kind in "iu" and isinstance(value, float | np.floating):
            raise TypeError(f"{self.kernel.name}: {source.name} takes a whole number ({parameter.type}), got {value}")
        if dtype.kind in "iu" and not source.pointer:
            self._check_range(value, dtype, source)
        elif dtype.kind == "f":
            self._check_finite(value, dtype, source)
        return np.array(int(value) % (1 << 8 * dtype.itemsize) if dtype.kind == "u" else value).astype(dtype)[()]

    def _check_range(self, value, dtype: np.dtype, source: DeclaredParameter) -> None:
        where, type = f"{self.kernel.name}: {source.name}", source.type
        if type == "bool":
            if value not in (0, 1):
                raise ValueError(f"{where} is a bool: pass True or False, got {value}")
            return
        bits = 8 * dtype.itemsize
        low, high = -(1 << (bits - 1)), (1 << bits) - 1  # of a template's type, signed or not
        if source.dtype is not None:
            low, high = torch.iinfo(source.dtype).min, torch.iinfo(source.dtype).max
        if not low <= int(value) <= high:
            named = f"is {'an' if type[:1] in 'aeiou' else 'a'} {type}" if type else f"has {bits} bits"
            raise ValueError(f"{where} {named}, from {low:,} to {high:,}, got {int(value):,}")

    def _check_finite(self, value, dtype, source: DeclaredParameter) -> None:
        if dtype in (torch.float16, torch.bfloat16):
            lost = torch.tensor(float(value), dtype=dtype).isinf().item()
        else:
            with np.errstate(over="ignore"):
                lost = bool(np.isinf(np.float64(value).astype(dtype)))
        if lost and not np.isinf(float(value)):
            largest = torch.finfo(dtype).max if isinstance(dtype, torch.dtype) else float(np.finfo(dtype).max)
            type = source.type or str(dtype)
            raise ValueError(f"{self.kernel.name}: {source.name} is a {type}, at most {largest:.3g}, got {value}")

    def _execute(self, arguments, originals) -> None:
        kernel, program = self.kernel, self.kernel.program
        memory = GlobalMemory()

        def placed(name: str, argument):
            if isinstance(argument, list | tuple):
                each = [placed(f"{name}[{place}]", tensor) for place, tensor in enumerate(argument)]
                return memory.variable(name, np.array(each, np.uint64).tobytes())
            if isinstance(argument, torch.Tensor):
                return memory.tensor(name, argument) - self.skipped * _row_bytes(argument)
            return argument

        values = [
            placed(parameter.name, argument) for argument, parameter in zip(arguments, kernel.parameters, strict=True)
        ]
        parameters = self.parameter_bytes(values)
        start = memory.variable("the parameters", parameters) if parameters else 0
        symbols = {name: start + parameter.offset for name, parameter in program.parameters.items()}
        sizes = {"shared": 0, "local": 0}
        dynamic = []
        kept = _variables_of(kernel.ptx, kernel._compiled.entry)
        for name, variable in program.variables.items():
            if variable.space in ("global", "const"):
                symbols[name] = memory.variable(name, kept.get(name, variable.initial))
            elif variable.space == "shared" and not variable.size:
                dynamic.append(name)
            else:
                start = -(-sizes[variable.space] // variable.align) * variable.align
                symbols[name], sizes[variable.space] = start, start + variable.size
        for name, variable in program.variables.items():
            for byte, named, past in variable.addresses:
                memory.fill(symbols[name] + byte, (symbols[named] + past).to_bytes(8, "little"))
        start = -(-sizes["shared"] // 16) * 16 if dynamic else sizes["shared"]
        symbols |= dict.fromkeys(dynamic, start)
        special = {
            f"%{name}.{axis}": size[place]
            for name, size in (("ntid", self.block), ("nctaid", self.grid))
            for place, axis in enumerate("xyz")
        }
        special["%dynamic_smem_size"] = self.dynamic_shared_memory
        special["%nwarpid"] = -(-int(np.prod(self.block)) // WARP)
        cooperative = program.special.keys() >= GRID_SYNC
        if cooperative:
            barrier = memory.variable(GRID_BARRIER, bytes(16))
            special |= {"%envreg1": barrier >> 32, "%envreg2": barrier & 0xFFFFFFFF}
        decoder = Decoder(program, symbols, parameters, special)
        observer = observers.observer()
        machine = Machine(
            kernel.name, program, decoder, memory, self.grid, self.block,
            start + self.dynamic_shared_memory, sizes["local"], observer, self.skipped, cooperative,
        )  # fmt: skip
        if observer is not None:
            observer.launch(self, arguments, originals, memory)
        try:
            machine.run()
        finally:
            machine.printer.finish()
        for name, variable in program.variables.items():
            if variable.space == "global":
                kept[name] = memory.bytes_at(symbols[name])[: len(variable.initial)]
        observers.executed(machine.executed)


@functools.lru_cache(maxsize=256)
def _variables_of(ptx: str, entry: str) -> dict[str, bytes]:
    """Return the contents that earlier launches of a kernel left in its `__device__` variables, as a module on a GPU
    keeps them."""
    return {}


def _shown(value) -> str:
    return _kind(value) if isinstance(value, list | tuple | dict) else repr(value)


def _kind(value) -> str:
    return type(value).__name__
