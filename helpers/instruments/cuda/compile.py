"""Compile CUDA C++ with NVIDIA's own NVRTC, which needs no GPU."""

import functools
import hashlib
import importlib.util
import io
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import triton
from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions

from helpers.instruments.devices import DEVICES, Device

STANDARD = "c++17"
# As nvcc gets them from <math.h>; NVRTC has no such header.
MACROS = [("INFINITY", "__int_as_float(0x7f800000)"), ("NAN", "__int_as_float(0x7fffffff)")]
# NVRTC 13 starts at compute capability 7.5.
OLDEST = (7, 5)
# Folders of headers that include a file named by a macro: a program could define that macro, or part of the name. A
# program that defines no macros at all may include CUB's own headers.
_COMPUTED = {"thrust", "cub"}
_DEFINE = re.compile(r"(?:\#|%:|\?\?=)\s*define\b")
# Any spelling that the preprocessor accepts; lines continued with \ are joined first. Comments within a directive are
# not parsed: only the compiler knows where they begin and end.
_INCLUDE = re.compile(
    r"(?:\#|%:|\?\?=)\s*(?:/\*|(?:include(?:_next)?|import|embed)\b[^\S\n]*(?:<[^>\n]*>|[^\n]*))"
    r"|__has_(?:include|embed)"
)
# NVRTC has these functions built in and lacks the files; nvcc requires the lines.
_BUILT_IN = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:stdio\.h|cstdio|math\.h|cmath|assert\.h|cassert)>[ \t]*(?://[^\n\\]*)?$",
    re.MULTILINE,
)
# Instructions that NVRTC compiles only for sm_90a and the like; code here runs on all GPUs of its capability.
_OF_ONE_GPU = {
    "wgmma": "Hopper's warpgroup products are not compiled here: use wmma of <mma.h> or mma.sync",
    "tcgen05": "Blackwell's tensor memory is not compiled here: use wmma of <mma.h> or mma.sync",
    "setmaxnreg": "registers cannot move between warps here: leave it out",
}
_DIRECTIVE = re.compile(r"\W*include\s*<([\w./]+)>")


class CompileError(ValueError):
    """The compiler rejected the source; holds its messages with the source lines they refer to."""


@dataclass(frozen=True)
class Compiled:
    """ptx and cubin of one compilation; entry: the kernel's mangled name; log: the output of `ptxas -v`.

    file: the source's name in linecache.
    """

    entry: str
    ptx: str
    cubin: bytes
    log: str
    file: str


def compile_source(source: str, name: str, device: Device, options: Mapping) -> Compiled:
    """Compile `source` and pick the kernel `name`, such as "add" or "softmax<float, 4>".

    Raises:
        CompileError: the source is not valid CUDA C++, has no such kernel, or includes files that aren't NVIDIA's.
        ValueError: NVRTC cannot compile for the device.
    """
    capability = device.compute_capability
    if capability is None or capability < OLDEST:
        known = ", ".join(each.name for each in DEVICES.values() if (each.compute_capability or (0, 0)) >= OLDEST)
        raise ValueError(f"NVRTC cannot compile for {device.name}: choose from {known}")
    return _compile(source, name, capability, tuple(sorted(options.items())))


@functools.lru_cache(maxsize=256)
def _compile(source: str, name: str, capability: tuple[int, int], options: tuple) -> Compiled:
    given, source = source, _BUILT_IN.sub("", source)
    check_includes(source)
    file = re.match(r"\w*", name)[0] + ".cu"
    major, minor = capability
    settings = {
        "std": STANDARD,
        "lineinfo": True,
        "ptxas_options": "-v",
        "include_path": include_folders(),
        "define_macro": MACROS,
        **dict(options),
    }
    try:
        chosen = ProgramOptions(name=file, arch=f"sm_{major}{minor}", **settings)
    except TypeError as error:
        raise ValueError(f"options are fields of cuda.core.ProgramOptions: {error}") from None
    log = io.StringIO()
    program = Program(source, "c++", chosen)
    try:
        code = program.compile("cubin", name_expressions=(name,), logs=log)
    except Exception as error:  # the error's type differs by cuda-core release
        # Freed here: if the garbage collector frees it with the error's frames, cuda-core prints its own exception.
        program = None
        raise CompileError(_marked(str(error), given, file, name)) from None
    entry = code.symbol_mapping[name]
    entry = entry.decode() if isinstance(entry, bytes) else entry
    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program.handle, text)
    ptx = re.sub(r'(\.file\s+\d+\s+")[^"]*?([^"/]*")', r"\1\2", text.decode().rstrip("\0"))
    if f".entry {entry}" not in ptx:
        raise CompileError(f"{name} is a function, not a kernel: declare it `__global__ void {name}(...)`")
    said = re.split(r"(?=Compiling entry function)", log.getvalue())
    mine = next((part for part in said if f"'{entry}'" in part), "")
    return Compiled(entry, ptx, bytes(code.code), mine, _remember(file, given))


def _remember(file: str, source: str) -> str:
    """Register the source in linecache, under a name of its own."""
    key = f"<{file} {hashlib.sha256(source.encode()).hexdigest()[:8]}>"
    linecache.cache[key] = (len(source), None, source.splitlines(keepends=True), key)
    return key


@functools.cache
def include_folders() -> list[str]:
    """Return the folders of NVIDIA's headers: CUDA's own with Triton, `cuda/std` and `nv/target` in their package or
    toolkit."""
    folders = [Path(triton.__file__).parent / "backends/nvidia/include"]
    package = importlib.util.find_spec("nvidia")
    roots = [Path(root) / "cu13/include" for root in (package.submodule_search_locations if package else ())]
    for root in [*roots, Path("/usr/local/cuda/include")]:
        folders += [folder for folder in (root / "cccl", root) if folder.is_dir()]
    return [str(folder) for folder in folders]


def check_includes(source: str) -> None:
    """Check that every #include names one of NVIDIA's headers, in angle brackets, and nothing else reads a file.

    Raises:
        CompileError: one does not. Directives in comments and strings count too, so none can be hidden.
    """
    joined = re.sub(r"\\[^\S\n]*\n", "", source)
    for match in _INCLUDE.finditer(joined):
        named = _DIRECTIVE.fullmatch(match[0])
        header = Path(named[1] if named else "/")
        parts = header.parts
        there = _is_there(header)
        if header == Path("cuda.h"):
            raise CompileError(
                f"`{match[0][:70]}`: the driver's functions are for the host, and TMA's CUtensorMap is not supported "
                "here: copy with __pipeline_memcpy_async or plain loads"
            )
        if parts[0] == "cub" and ".." not in parts and there:
            if _DEFINE.search(joined):
                raise CompileError(
                    f"`{match[0][:70]}`: a source that includes CUB may not have a #define: use constexpr and "
                    "functions instead"
                )
            continue
        if header.is_absolute() or {"..", *_COMPUTED} & set(parts) or not there:
            standard = f"cuda/std/c{header.stem}" if header.suffix else f"cuda/std/{header}"
            instead = f"; for this one <{standard}>" if len(parts) == 1 and _is_there(standard) else "; not thrust"
            raise CompileError(
                f"`{match[0][:70]}`: only NVIDIA's own headers are available, such as <cuda_fp16.h> and "
                f"<cub/block/block_reduce.cuh>{instead}"
            )


def _is_there(header: str | Path) -> bool:
    return any((Path(folder) / header).is_file() for folder in include_folders())


def _marked(message: str, source: str, file: str, name: str) -> str:
    """Return NVRTC's log, and the source line of its first error."""
    log = message.split("compilation log:", 1)[-1].strip() or message
    log = log.removesuffix("\0").strip()
    for start, why in _OF_ONE_GPU.items():
        if refused := re.search(rf"Instruction '({start}[\w.]*)[^']*' not supported", log):
            number = next((at for at, text in enumerate(source.splitlines(), 1) if refused[1] in text), 0)
            where = f"line {number}, " if number else ""
            return f"{name} does not compile: {where}{refused[1]}: {why}"
    place = re.search(rf"{re.escape(file)}\((\d+)\): (?:catastrophic )?error", log)
    if not place:
        return f"{name} does not compile:\n{log}"
    number = int(place[1])
    lines = source.splitlines()
    shown = [
        f"{'>' if at == number else ' '} {at:>4} | {lines[at - 1]}"
        for at in range(max(1, number - 2), min(len(lines), number + 1) + 1)
    ]
    return "\n".join([f"{name} does not compile:", log, "", *shown])
