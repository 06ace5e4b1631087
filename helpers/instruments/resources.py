"""Compile a kernel for a GPU, present or not, and report registers, spills, shared memory and SASS.

    compile_for(add_gelu_kernel, x, y, out, n, device="A100", BLOCK=1024).registers

Triton's own compiler and NVIDIA's assembler do the work; the driver isn't involved.
"""

import ast
import contextlib
import copy
import importlib
import io
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError, CompiledKernel, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import cache, driver
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction, MockTensor, create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.occupancy_calculator import MAX_REGISTERS, WARP, Occupancy, limits, occupancy
from helpers.instruments.sass import SassView, count, disassemble
from helpers.instruments.source_lines import with_source
from kernels.interpreter import configurations, runtime

OLDEST = (7, 5)  # lowest compute capability that Triton and its assembler target
TENSOR_MEMORY = 512  # columns per SM of compute capability 10.0
MAX_CLUSTER = 16  # blocks, on GPUs that allow more than the portable 8
LOG_FILE = "ptxas.log"  # kept in Triton's cache next to its cubin

# This Triton's key in its own cache, used without a GPU: Triton itself reads its library's 460 MB in every
# process that compiles.
_library = os.stat(triton._C.libtriton.__file__)
_triton_key = f"{triton.__version__}-{_library.st_size}-{_library.st_mtime_ns}"
if not runtime.has_gpu():
    cache.triton_key = lambda: _triton_key

_one_compilation_at_a_time = threading.RLock()  # Triton's settings and standard output belong to the whole process


@dataclass(frozen=True, repr=False)
class Resources:
    """The resources that one compiled kernel needs.

    Attributes:
        kernel: its name.
        device: the Device that it was compiled for.
        registers: per thread.
        spill_stores, spill_loads: bytes per thread written and read back because registers ran out, each instruction
            counted once, as `ptxas -v` counts them.
        stack: bytes per thread, for spills and other data (tl.sin keeps a table there).
        static_shared_memory, dynamic_shared_memory: bytes per block, without the driver's share.
        barriers: named barriers per block.
        num_warps: per block, including those that warp specialisation adds.
        num_ctas: blocks per program of the grid, which form a cluster.
        tensor_memory: columns per block.
        launch_decides: whether a launch sets the size of an array in shared memory, as with CUDA's extern __shared__.
        ptx: the code that Triton hands to NVIDIA's assembler.
        cubin: the assembled code.
        file: the source of the kernel's own lines.
        configuration: for an autotuned kernel, the compiled configuration, in words.
        configurations: for an autotuned kernel, all configurations in order, with the reason for each one skipped.
    """

    kernel: str
    device: Device
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared_memory: int
    dynamic_shared_memory: int
    barriers: int
    num_warps: int
    ptx: str
    cubin: bytes
    file: str = field(default="", compare=False)
    configuration: str = ""
    configurations: tuple[str, ...] = ()
    num_ctas: int = 1
    tensor_memory: int = 0
    launch_decides: bool = False

    @property
    def spill_bytes(self) -> int:
        """Bytes of spill stores and spill loads; 0 if every value has a register."""
        return self.spill_stores + self.spill_loads

    @property
    def shared_memory(self) -> int:
        """Bytes per block, static and dynamic."""
        return self.static_shared_memory + self.dynamic_shared_memory

    @cached_property
    def instructions(self) -> Counter[str]:
        """Count each instruction in the SASS, loads and stores by width in bits.

        "LDG.128" and "STG.128" (16-byte loads and stores), "LDL.32", "STL.32" (stack), "HMMA", "HGMMA", "UTCHMMA"
        (tensor cores), "UTMALDG", "UTMASTG" (tensor-memory copies), "USETMAXREG", "FFMA" and so on; 0 if absent.
        """
        return count(disassemble(self.cubin))

    @cached_property
    def sass(self) -> str:
        """Return the machine code, one instruction per line."""
        rows = ((each.label and f"{each.label}:\n") + f"    {each.text}" for each in disassemble(self.cubin))
        return "\n".join(rows)

    def sass_view(self, *kinds: str) -> SassView:
        """Return the SASS with its source lines, marking loads, stores, tensor-core and spill instructions.

        Args:
            kinds: show only these: "load", "store" and "atomic" (global memory), "shared", "stack" (includes spills),
                "tensor core".

        Raises:
            ValueError: an unknown kind.
        """
        known = ("load", "store", "atomic", "shared", "stack", "tensor core")
        if unknown := sorted(set(kinds) - set(known)):
            raise ValueError(f"unknown instruction kind {unknown[0]!r}: choose from {', '.join(known)}")
        shown = (each for each in disassemble(self.cubin) if not kinds or each.kind in kinds)
        entry = _entry_file(self.ptx)
        file = self.file or entry
        found = tuple(replace(each, file=file) if each.file == entry else each for each in shown)
        return SassView(found, file, spills=self.spill_bytes > 0)

    def occupancy(self, carveout: int | None = None) -> Occupancy:
        """Compute how many blocks of the kernel fit on an SM of the device; `carveout` as in `occupancy`.

        With clusters, this is an upper bound: all blocks of one start at the same time, on SMs near each other.
        """
        return occupancy(
            self.device.compute_capability,
            threads=self.num_warps * WARP,
            registers=self.registers,
            shared_memory=self.static_shared_memory,
            dynamic_shared_memory=self.dynamic_shared_memory,
            barriers=self.barriers,
            carveout=carveout,
            tensor_memory=self.tensor_memory,
        )

    @property
    def clusters(self) -> str:
        """Describe, in words, how clusters make the occupancy unsure; empty without clusters."""
        if self.num_ctas == 1:
            return ""
        return (
            f"of {self.num_ctas} blocks, which start together on SMs near each other: fewer blocks than the "
            "occupancy's may fit"
        )

    @property
    def _launch_decides(self) -> str:
        """Say so if a launch adds shared memory of a size that is not known."""
        unknown = self.launch_decides and not self.dynamic_shared_memory
        return " without extern __shared__, sized by a launch: occupancy may be lower" if unknown else ""

    def __repr__(self):
        major, minor = self.device.compute_capability
        spills = f"{self.spill_stores} B stored, {self.spill_loads} B loaded" if self.spill_bytes else "none"
        return "\n".join(
            [
                f"{self.kernel} on {self.device.name} (compute capability {major}.{minor}), {self.num_warps} warps",
                f"  registers      {self.registers} per thread",
                f"  spills         {spills}",
                f"  stack          {self.stack} B per thread",
                f"  shared memory  {self.shared_memory} B per block{self._launch_decides}",
                *([f"  tensor memory  {self.tensor_memory} columns per block"] if self.tensor_memory else []),
                f"  occupancy      {self.occupancy()}",
                *([f"  clusters       {self.clusters}"] if self.num_ctas > 1 else []),
                *([f"  configuration  {self.configuration}"] if self.configuration else []),
            ]
        )


def compile_for(
    kernel: JITFunction | Autotuner | Heuristics,
    /,
    *args,
    device: str | Device = "H100",
    num_warps: int | None = None,
    num_stages: int | None = None,
    maxnreg: int | None = None,
    **constexprs,
) -> Resources:
    """Compile a `@triton.jit` or `@gluon.jit` kernel as a launch with these arguments would on `device`.

    `@triton.heuristics` values are computed as in a launch. With `@triton.autotune`, this compiles the first
    configuration that `prune_configs_by` keeps, that has the constexprs and options given here and that fits the
    device; the result's `configurations` lists all of them.

    Like a launch, the compiler learns each argument's type, whether a pointer is aligned to 16 bytes and an integer a
    multiple of 16 (which decides how wide loads become), and integers that are 1. Nothing runs, so tensors may be on
    any device, "meta" included.

    Args:
        args: as in a launch: tensors, TensorDescriptors, numbers; a torch.dtype means an aligned pointer to it.
        device: a name in DEVICES, or a Device.
        num_warps: per block, a power of two up to 32; default: the configuration's, or 4.
        num_stages: loads in flight ahead of a loop's arithmetic; default: the configuration's, or 3.
        maxnreg: maximum registers per thread, 1 to 255; None leaves it to the compiler.
        constexprs: the kernel's other parameters by name, and any launch option of Triton.

    Raises:
        TypeError: not a kernel, or arguments that do not fit its parameters.
        ValueError: an unknown device or one that Triton cannot target, a kernel that does not compile, or one that
            needs more shared memory than the device has.
    """
    device = device if isinstance(device, Device) else DEVICES[device]
    target = _target(device)
    if not isinstance(undecorated(kernel), JITFunction):
        raise TypeError(
            f"compile_for takes a @triton.jit kernel, got {_called(kernel)}: write it in a file or a notebook cell "
            "under @triton.jit"
        )
    if num_warps is not None and not (_whole(num_warps) and num_warps in (1, 2, 4, 8, 16, 32)):
        raise ValueError(f"num_warps is a power of two from 1 to 32, got {num_warps!r}")
    if num_stages is not None and not (_whole(num_stages) and num_stages >= 0):
        raise ValueError(f"num_stages is a whole number from 0, got {num_stages!r}")
    if maxnreg is not None and not (_whole(maxnreg) and 1 <= maxnreg <= MAX_REGISTERS):
        raise ValueError(f"maxnreg is 1 to {MAX_REGISTERS} registers per thread, got {maxnreg!r}")
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg}
    options = {name: value for name, value in options.items() if value is not None} | constexprs
    if isinstance(kernel, JITFunction):
        return _compiled(kernel, device, target, args, options)
    return _first_that_fits(kernel, device, target, args, options)


def _whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def undecorated(kernel):
    """Return the kernel inside decorators such as @triton.autotune and @triton.heuristics."""
    while isinstance(kernel, Autotuner | Heuristics):
        kernel = kernel.fn
    return kernel


def _first_that_fits(kernel, device: Device, target: GPUTarget, args: tuple, options: dict) -> Resources:
    name, found, listed, refused = undecorated(kernel).fn.__name__, None, [], []
    for config, jitted, arguments, settings in _configured(kernel, args, options):
        said = configurations.shown(config) if config else ""
        if found is None:
            try:
                found = replace(_compiled(jitted, device, target, arguments, settings), configuration=said)
            except ValueError as error:
                if not config:
                    raise
                refused.append(f"{said}: {error}")
                said = refused[-1]
        listed += [said] if said else []
    if found is None:
        tuned = next(each for each in _decorators(kernel) if isinstance(each, Autotuner))
        if refused:
            raise ValueError(f"no configuration of {name} fits {device.name}; the last: {refused[-1]}")
        known = "; ".join(map(configurations.shown, tuned.configs[:8]))
        names = {name for config in tuned.configs for name in config.all_kwargs()}
        given = ", ".join(f"{key}={value}" for key, value in options.items() if key in names) or "what is given"
        raise ValueError(f"no configuration of {name} has {given}: it has {known}; for another compile {name}.fn")
    return replace(found, configurations=tuple(listed))


def _decorators(kernel) -> Iterator:
    while isinstance(kernel, Autotuner | Heuristics):
        yield kernel
        kernel = kernel.fn


def _configured(kernel, args: tuple, options: dict) -> Iterator[tuple]:
    """Yield (configuration or None, @triton.jit kernel, arguments, options) per way to launch a decorated kernel."""
    if isinstance(kernel, Heuristics):
        positional = dict(zip(kernel.arg_names, args, strict=False))
        for name, value in kernel.values.items():
            try:
                options = {**options, name: value({**positional, **options})}
            except (AttributeError, KeyError, TypeError) as error:
                told = " ".join(str(error).split())
                raise TypeError(
                    f"the heuristic of {name} in {undecorated(kernel).fn.__name__} fails ({told}): pass tensors, on "
                    "device meta say, and all arguments that it asks for"
                ) from None
        yield from _configured(kernel.fn, args, options)
    elif isinstance(kernel, Autotuner):
        tuned = {name for config in kernel.configs for name in config.all_kwargs()}
        fixed = {name: value for name, value in options.items() if name in tuned}
        others = {name: value for name, value in options.items() if name not in fixed}
        for config in configurations.pruned(kernel, dict(zip(kernel.arg_names, args, strict=False)), others):
            its = config.all_kwargs()
            if any(its.get(name) != value for name, value in fixed.items()):
                continue
            arguments = tuple(map(_apart, args)) if config.pre_hook else args
            if config.pre_hook:  # such as one that sets the block of a tensor descriptor
                config.pre_hook(dict(zip(kernel.arg_names, arguments, strict=False)) | others | its)
            for _, *found in _configured(kernel.fn, arguments, others | its):
                yield config, *found
    else:
        yield None, kernel, args, options


def _apart(argument):
    """Return a copy of a tensor descriptor, for a hook to change, or a tensor without data for it to zero."""
    if isinstance(argument, torch.Tensor):
        return argument.to("meta")
    return copy.copy(argument) if isinstance(argument, TensorDescriptor) else argument


def _compiled(kernel: JITFunction, device: Device, target: GPUTarget, args: tuple, options: dict) -> Resources:
    name = kernel.fn.__name__
    options = {"num_warps": 4, "num_stages": 3, "maxnreg": None} | options
    source, parsed = _as_launched(kernel, target, args, options)
    try:
        compiled, log = _compile(source, target, parsed)
    except Exception as error:  # whatever Triton raises, it is about this kernel on this target
        raise ValueError(f"{name} does not compile for {device.name}: {_complaint(error)}") from None
    _check_globals(kernel)

    def logged(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))

    resources = Resources(
        kernel=name,
        device=device,
        registers=logged(r"Used (\d+) registers"),
        spill_stores=logged(r"(\d+) bytes spill stores"),
        spill_loads=logged(r"(\d+) bytes spill loads"),
        stack=logged(r"(\d+) bytes cumulative stack size"),
        static_shared_memory=logged(r"(\d+) bytes smem"),
        dynamic_shared_memory=compiled.metadata.shared,
        barriers=logged(r"used (\d+) barriers"),
        num_warps=compiled.metadata.num_warps,
        num_ctas=compiled.metadata.num_ctas,
        tensor_memory=_columns(compiled.asm["ptx"]),
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        file=kernel.fn.__code__.co_filename,
    )
    _check_fits(resources, compiled)
    return resources


def _columns(ptx: str) -> int:
    """Return the columns of tensor memory that the code allocates."""
    return sum(map(int, re.findall(r"tcgen05\.alloc[^;]*,\s*(\d+);", ptx)))


def lower_for(kernel: JITFunction, /, *args, device: str | Device = "H100", **options) -> None:
    """Run only Triton's front end on a kernel, as a launch with these arguments would: milliseconds, no machine code.

    Args:
        args, device, options: as `compile_for` takes them.

    Raises:
        TypeError: arguments that do not fit the kernel's parameters.
        ValueError: the kernel is not valid Triton; the message is one line and quotes the source.
    """
    device = device if isinstance(device, Device) else DEVICES[device]
    target = _target(device)
    options = {"num_warps": 4, "num_stages": 3, "maxnreg": None, **options}
    source, parsed = _as_launched(kernel, target, args, options)
    backend = make_backend(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    try:
        with _one_compilation_at_a_time, _naming(target), _diagnosed(), contextlib.redirect_stdout(io.StringIO()):
            generated = backend.get_codegen_implementation(parsed)
            source.make_ir(target, parsed, generated, backend.get_module_map(), context)
    except Exception as error:  # whatever Triton raises, it is about this kernel
        raise ValueError(f"{kernel.fn.__name__} does not compile for {device.name}: {_complaint(error)}") from None


def _called(thing) -> str:
    return f"{type(thing).__name__} {getattr(thing, '__name__', '')}".strip()


def _entry_file(ptx: str) -> str:
    """Return the kernel's source file at compile time: a cached notebook cell's path has changed since."""
    entry = re.search(r"\.entry .*?\.loc\s+(\d+)", ptx, re.DOTALL)
    return re.search(rf'\.file\s+{entry[1]}\s+"(.*)"', ptx)[1] if entry else ""


def _target(device: Device) -> GPUTarget:
    if device.compute_capability is None:
        raise ValueError(f"{device.name} is a CPU: choose a GPU to compile for, such as device='H100'")
    limits(device.compute_capability)
    major, minor = device.compute_capability
    if (major, minor) < OLDEST:
        raise ValueError(
            f"Triton {triton.__version__} cannot compile for {device.name}, compute capability {major}.{minor}: "
            f"it takes {OLDEST[0]}.{OLDEST[1]} and later"
        )
    return GPUTarget("cuda", 10 * major + minor, WARP)


def _as_launched(kernel: JITFunction, target: GPUTarget, args: tuple, options: dict) -> tuple[ASTSource, object]:
    """Return what JITFunction.run would compile for a target, using Triton's own functions."""
    name = kernel.fn.__name__
    given = {key: value for key, value in options.items() if key in kernel.arg_names}
    try:
        bound = kernel.signature.bind_partial(*args, **given).arguments
    except TypeError as error:
        raise TypeError(f"{name}({', '.join(kernel.arg_names)}): {error}") from None
    if missing := [p.name for p in kernel.params if not p.has_default and p.name not in bound]:
        raise TypeError(f"{name} needs a value for {', '.join(missing)}: pass them as in a launch, by name or position")
    # The two options that a launch adds itself.
    options = {
        **options,
        "debug": options.get("debug", kernel.debug) or knobs.runtime.debug,
        "instrumentation_mode": knobs.compilation.instrumentation_mode,
    }
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    try:
        bound, specialization, rest = bind(*map(MockTensor.wrap_dtype, args), **options)
        parsed, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, rest)
    except OverflowError:
        raise TypeError(f"{name}: an integer does not fit in 64 bits: Triton takes -2**63 to 2**64 - 1") from None
    except (TypeError, KeyError) as error:
        said = str(error.args[0])
        unknown_dtype = isinstance(error, KeyError) and " " not in said
        raise TypeError(f"{name}: {f'Triton has no pointer to {said}' * unknown_dtype or said}") from None
    language = GluonASTSource if kernel.is_gluon() else ASTSource
    return language(kernel, signature, constants, attributes), parsed


def _compile(source: ASTSource, target: GPUTarget, options) -> tuple[CompiledKernel, str]:
    """Return the compiled kernel and the output of `ptxas -v`: the cubin itself does not separate spills from stack."""
    with _one_compilation_at_a_time, knobs.nvidia.scope(), knobs.compilation.scope(), _naming(target):
        knobs.nvidia.dump_ptxas_log = True
        compiled, log = _compile_and_listen(source, target, options)
        kept = cache.get_cache_manager(compiled.hash)
        if not log:
            path = kept.get_file(LOG_FILE)
            if path is not None:
                return compiled, Path(path).read_text()
            knobs.compilation.always_compile = True  # cached by a launch, without its log
            compiled, log = _compile_and_listen(source, target, options)
        kept.put(log, LOG_FILE, binary=False)
    return compiled, log


def _compile_and_listen(source, target, options) -> tuple[CompiledKernel, str]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), _diagnosed(), runtime.large_blocks_refused():
            compiled = triton.compile(source, target=target, options=options.__dict__)
    finally:
        # tl.static_print's output comes before the log, or before the dump of a failed assembly.
        output = re.compile(r"(.*?)(^ptxas.*|\n\n={64}\n.*)?", re.DOTALL | re.MULTILINE)
        of_kernel, log = output.fullmatch(said.getvalue()).groups("")
        print(of_kernel, end="")
    return compiled, log


@contextlib.contextmanager
def _diagnosed() -> Iterator[None]:
    """Add to the exception what the compiler's C++ half wrote to standard error, bypassing Python."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        real = os.dup(2)
        os.dup2(file.fileno(), 2)
        failure = None
        try:
            yield
        except RuntimeError as error:
            failure = error
        finally:
            os.dup2(real, 2)
            os.close(real)
        file.seek(0)
        said = file.read()
    if failure is None:
        os.write(2, said)
        return
    diagnostics = re.findall(r"^(.*):(\d+):\d+: error: (.*)", said.decode(errors="replace"), re.MULTILINE)
    if not diagnostics:
        raise failure
    file, line, message = diagnostics[0]
    raise RuntimeError(f"{with_source(f'line {line}', file)}: {message}")


class _DriverNaming:
    """Triton's driver with a different target for this thread: some tl functions query it during compilation."""

    def __init__(self, target: GPUTarget, real):
        self._target, self._thread, self._real = target, threading.get_ident(), real

    def get_current_target(self):
        if threading.get_ident() == self._thread:
            return self._target
        return (self._real or driver.default).get_current_target()

    def __getattr__(self, name):
        return getattr(self._real or driver.default, name)


@contextlib.contextmanager
def _naming(target: GPUTarget) -> Iterator[None]:
    before = driver._active
    driver.set_active(_DriverNaming(target, before))
    try:
        yield
    finally:
        driver.set_active(before)


def _complaint(error: Exception) -> str:
    """Return the line that matters in Triton's or the assembler's message."""
    if isinstance(error, PTXASError):
        lines = re.findall(r"(?:error|fatal) +: (.*)", str(error))
        return lines[0] if lines else str(error).splitlines()[0]
    while isinstance(error.__cause__, CompilationError):  # the innermost function, not its callers
        error = error.__cause__
    if not isinstance(error, CompilationError):
        return " ".join(str(error).split()) or type(error).__name__
    said = " ".join((error.error_message or "").split()) or "it does not hold"  # of a static_assert without a message
    if error.src is None or not hasattr(error.node, "lineno"):
        return said
    lines = error.src.splitlines()
    function = re.match(r"def\s+(\w+)", lines[0])[1]
    return f"{function}, `{lines[error.node.lineno - 1].strip()}`: {said}"


def _check_globals(kernel: JITFunction) -> None:
    # Triton remembers the values it compiled with; a launch raises the same error.
    for (name, _), (value, namespace) in kernel.used_global_vals.items():
        if namespace.get(name) != value:
            raise ValueError(
                f"{kernel.fn.__name__} was defined with {name} = {value}, now {namespace.get(name)}: define it again"
            )


def _check_fits(resources: Resources, compiled: CompiledKernel) -> None:
    device = resources.device
    if resources.num_ctas > MAX_CLUSTER:
        raise ValueError(f"num_ctas is at most {MAX_CLUSTER}, got {resources.num_ctas}: no GPU starts a larger cluster")
    used, most = resources.shared_memory, limits(device.compute_capability).shared_memory_per_block
    if used > most:
        raise ValueError(
            f"{resources.kernel} needs {used} B of shared memory and a block on {device.name} has at most {most} B: "
            f"{used - most} B too many; use smaller tiles or fewer stages"
        )
    columns = compiled.metadata.tmem_size or 0
    if columns > TENSOR_MEMORY:
        raise ValueError(
            f"{resources.kernel} needs {columns} columns of tensor memory and an SM of {device.name} has "
            f"{TENSOR_MEMORY}: {columns - TENSOR_MEMORY} too many; use smaller tiles"
        )


POINTERS = {
    "*fp64": torch.float64,
    "*fp32": torch.float32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*fp8e4nv": torch.float8_e4m3fn,
    "*fp8e5": torch.float8_e5m2,
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*i16": torch.int16,
    "*i8": torch.int8,
    "*u8": torch.uint8,
    "*i1": torch.bool,
}


def inspect_kernel(where: str, arguments: Sequence[str] = (), device: str = "H100") -> Resources:
    """Compile a kernel named on the command line.

    Args:
        where: "module:kernel"; the module may also be in the current folder.
        arguments: in the kernel's order, "*bf16" for an aligned pointer, a number, or NAME=VALUE for any parameter or
            launch option. May be omitted for a kernel whose module defines its FusedOp as OP.
        device: a name in DEVICES.

    Raises:
        ValueError, TypeError: as compile_for; or no such module or kernel, or an unsupported argument.
    """
    module_name, colon, name = where.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"a kernel is named as module:kernel, such as kernels.elementwise.add_gelu:..., got {where!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    if module_name.startswith("."):
        raise ValueError(f"a module is named from the top, without a dot in front: got {module_name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {module_name}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever its own code raises
        raise ValueError(f"cannot import {module_name}: {type(error).__name__}: {error}") from None
    kernel = getattr(module, name, None)
    if not isinstance(undecorated(kernel), JITFunction):
        found = [key for key, value in vars(module).items() if isinstance(undecorated(value), JITFunction)]
        raise ValueError(f"{module_name} has no @triton.jit kernel {name}: choose from {', '.join(found) or 'none'}")
    op = getattr(module, "OP", None)
    if not arguments and getattr(op, "kernel", None) is kernel:
        positional, options = op.compile_arguments(*op.gpu_shapes[0], dtype=op.dtypes[0])
        return compile_for(kernel, *positional, device=device, **options)
    pairs = [word.split("=", 1) for word in arguments if "=" in word]
    named = dict(pairs)
    if twice := [each for each, times in Counter(key for key, _ in pairs).items() if times > 1]:
        raise ValueError(f"{twice[0]} is given twice: write each name once")
    if "device" in named:
        raise ValueError(f"a device is named by --device {named['device']}, not device={named['device']}")
    positional = [_value(word) for word in arguments if "=" not in word]
    return compile_for(kernel, *positional, device=device, **{key: _value(word) for key, word in named.items()})


def _value(word: str):
    if word in POINTERS:
        return POINTERS[word]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        known = ", ".join(POINTERS)
        raise ValueError(f"{word!r} is not an argument: pass a number, NAME=VALUE or one of {known}") from None
