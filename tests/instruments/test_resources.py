"""Compiling for absent GPUs, against Triton's own launcher, NVIDIA's assembler and NVIDIA's cubin reader."""

import dataclasses
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from nbclient import NotebookClient
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout, allocate_tensor_memory
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments import resources as module
from helpers.instruments.devices import DEVICES, this_device
from helpers.instruments.occupancy_calculator import occupancy
from helpers.instruments.resources import compile_for, inspect_kernel
from helpers.instruments.sass import Instruction, SassView, disassemble
from kernels.interpreter import runtime


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def add_silu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, i < n)
    y = tl.load(y_ptr + i, i < n)
    tl.store(out_ptr + i, silu(x + y), i < n)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    column = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + row * K + k[None, :])
        b = tl.load(b_ptr + k[:, None] * N + column)
        total = tl.dot(a, b, total)
    tl.store(out_ptr + row * N + column, total.to(tl.float16))


@triton.jit
def transpose_tiles(x, out, TILE: tl.constexpr):
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    out.store([column, row], x.load([row, column]).T)


@triton.jit
def histogram(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + i, i < n), 1, i < n)


@triton.jit
def sine(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.sin(tl.load(x_ptr + i)))


@triton.jit
def static_shared(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    code: tl.constexpr = "{ .shared .b32 t[512]; st.shared.b32 [t], $1; bar.sync 0; ld.shared.b32 $0, [t+4]; }"
    y = tl.inline_asm_elementwise(code, "=r,r", [tl.load(x_ptr + i)], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(x_ptr + i, y)


@triton.jit(noinline=True)
def called_for_real(x):
    return tl.sin(x) + 1.0


@triton.jit
def calls(x_ptr):
    tl.store(x_ptr, called_for_real(tl.load(x_ptr)))


@triton.jit
def asks_its_target(x_ptr):
    if tl.target_info.cuda_capability_geq(9, 0):
        tl.store(x_ptr, 9)
    else:
        tl.store(x_ptr, 8)


@triton.jit
def specialized(x_ptr, n, stride, eps, flag, BLOCK: tl.constexpr, other_ptr=None):
    i = tl.arange(0, BLOCK)
    if flag:
        tl.store(x_ptr + i * stride, eps, i < n)


def tensors(count, size=4096, dtype=torch.float32):
    return torch.zeros(count, size, dtype=dtype, device="meta").unbind()


def descriptor(tile=64):
    return TensorDescriptor.from_tensor(torch.zeros(256, 256, dtype=torch.float16), [tile, tile])


F32, F16, I32 = tensors(3), tensors(3, dtype=torch.float16), tensors(2, dtype=torch.int32)
# name -> kernel, arguments, options: what the kernels here need, and each kind of kernel that there is
EXAMPLES = {
    "calls another": (add_silu, (*F32, 4096), {"BLOCK": 1024}),
    "tensor cores": (matmul, (*F16, 512, 512, 512), {"BM": 64, "BN": 64, "BK": 32}),
    "tensor descriptors": (transpose_tiles, (descriptor(), descriptor()), {"TILE": 64}),
    "atomics": (histogram, (*I32, 4096), {"BLOCK": 256}),
    "spills": (matmul, (*F16, 512, 512, 512), {"BM": 64, "BN": 64, "BK": 32, "num_warps": 1, "maxnreg": 128}),
    "stack without spills": (sine, F32[:1], {"BLOCK": 128}),
    "static shared memory": (static_shared, I32[:1], {"BLOCK": 128}),
    "a call that stays": (calls, F32[:1], {}),
}
TARGETS = {
    "T4": "sm_75",
    "A100": "sm_80",
    "A10": "sm_86",
    "L4": "sm_89",
    "H100": "sm_90a",
    "B200": "sm_100a",
    "B300": "sm_103a",
    "RTX 5090": "sm_120a",
}


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request):
    return EXAMPLES[request.param]


class GPU:
    """A driver that names a GPU and has nothing else: enough for Triton's launcher to compile, not to launch."""

    def __init__(self, arch):
        self.arch = arch

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return self.arch  # Triton keeps compiled kernels by device

    def get_current_stream(self, device):
        return 0


@pytest.fixture
def gpu():
    """Makes Triton's own launcher believe in a GPU."""
    before = driver._active
    yield lambda arch: driver.set_active(GPU(arch))
    driver.set_active(before)


def launched(kernel, args, options):
    return runtime.triton_run(kernel, *args, grid=(1,), warmup=True, **options)


@pytest.mark.parametrize("device", ["A100", "H100"])
def test_is_what_a_launch_compiles(example, device, gpu):
    kernel, args, options = example
    here = compile_for(kernel, *args, device=device, **options)
    major, minor = DEVICES[device].compute_capability
    gpu(10 * major + minor)
    there = launched(kernel, args, options)
    assert here.cubin == there.asm["cubin"]
    assert here.dynamic_shared_memory == there.metadata.shared
    assert here.num_warps == there.metadata.num_warps


@settings(max_examples=150)
@given(
    offset=st.sampled_from([0, 1, 4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    n=st.sampled_from([0, 1, 2, 15, 16, 17, 4096, 2**31 - 1, 2**31, 2**40 + 16, -16, True]),
    stride=st.integers(-(2**33), 2**33),
    eps=st.sampled_from([1e-5, 1, 16, None, 3.5]),
    flag=st.booleans(),
    other=st.sampled_from(["none", "tensor", "unaligned"]),
    warps=st.sampled_from([1, 8]),
)
def test_arguments_are_specialized_as_a_launch_does(offset, dtype, n, stride, eps, flag, other, warps):
    others = {"none": None, "tensor": torch.zeros(64), "unaligned": torch.zeros(64)[3:]}
    args = (torch.zeros(256, dtype=dtype)[offset:], n, stride, eps, flag)
    options = {"BLOCK": 64, "other_ptr": others[other], "num_warps": warps}
    seen = []

    def hook(**launch):
        seen.append(launch["compile"])
        return True  # do not compile

    before, kept = driver._active, knobs.runtime.jit_cache_hook
    driver.set_active(GPU(90))
    knobs.runtime.jit_cache_hook = hook
    specialized.device_caches.clear()
    try:
        launched(specialized, args, options)
    finally:
        knobs.runtime.jit_cache_hook = kept
        driver.set_active(before)
    source, parsed = module._as_launched(specialized, GPUTarget("cuda", 90, 32), args, options)
    assert source.signature == seen[0]["signature"]
    assert source.constants == seen[0]["constants"]
    assert [source.attrs] == seen[0]["configs"]
    assert parsed.num_warps == seen[0]["num_warps"]


def assembler(target):
    """`ptxas` of Triton for a target, with the flags of this Triton's make_cubin."""
    tool = knobs.nvidia.ptxas_blackwell if target in ("sm_100a", "sm_120a") else knobs.nvidia.ptxas
    newer = ["--regAllocOptLevel=2"] if triton.__version__ >= "3.7" else []
    return [tool.path, "-lineinfo", "-v", *newer, f"--gpu-name={target}"]


@pytest.mark.parametrize("device", ["A100", "H100", "RTX 5090"])
def test_figures_are_those_of_nvidias_tools(example, device, tmp_path):
    kernel, args, options = example
    found = compile_for(kernel, *args, device=device, **options)

    (tmp_path / "kernel.ptx").write_text(found.ptx)
    command = [*assembler(TARGETS[device]), tmp_path / "kernel.ptx", "-o", tmp_path / "kernel.cubin"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stores = sum(int(size) for size in re.findall(r"(\d+) bytes spill stores", log))
    loads = sum(int(size) for size in re.findall(r"(\d+) bytes spill loads", log))
    assert (found.spill_stores, found.spill_loads) == (stores, loads)

    (tmp_path / "found.cubin").write_bytes(found.cubin)
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", tmp_path / "found.cubin"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = usage[usage.index(f"Function {kernel.fn.__name__}:") :]
    assert found.registers == int(re.search(r"REG:(\d+)", usage)[1])
    assert found.stack == int(re.search(r"STACK:(\d+)", usage)[1])
    # From 9.0 on, a cubin that uses shared memory also states the kilobyte that the driver reserves.
    shared = int(re.search(r"SHARED:(\d+)", usage)[1])
    assert shared - found.static_shared_memory in ((0, 1024) if device != "A100" else (0,))


@pytest.mark.parametrize("device", TARGETS)
def test_every_target(device):
    kernel, args, options = EXAMPLES["calls another"]
    found = compile_for(kernel, *args, device=device, **options)
    assert f".target {TARGETS[device]}" in found.ptx
    assert found.instructions["LDG.128"] == 4
    assert found.instructions["STG.128"] == 2
    assert 16 <= found.registers <= 40
    assert found.spill_bytes == found.stack == found.shared_memory == 0


def test_every_device_of_the_catalogue_is_a_target_or_too_old():
    capabilities = {DEVICES[name].compute_capability for name in TARGETS}
    assert {device.compute_capability for device in DEVICES.values()} - capabilities == {(7, 0)}


@pytest.mark.parametrize(
    ("device", "instruction", "copy"),
    [
        ("T4", "FFMA", "LDG.128"),  # Triton does without Turing's tensor cores
        ("A100", "HMMA", "LDGSTS.128"),
        ("H100", "HGMMA", "LDGSTS.128"),
        ("B200", "UTCHMMA", "LDGSTS.128"),
        ("RTX 5090", "HMMA", "LDGSTS.128"),
    ],
)
def test_matrix_products_use_what_the_device_has(device, instruction, copy):
    kernel, args, options = EXAMPLES["tensor cores"]
    found = compile_for(kernel, *args, device=device, **options)
    assert found.instructions[instruction] > 0
    assert found.instructions[copy] > 0
    kinds = {each.kind for each in disassemble(found.cubin)}
    assert ("tensor core" in kinds) == (instruction != "FFMA")


def test_tensor_descriptors_become_tensor_memory_copies_on_hopper():
    kernel, args, options = EXAMPLES["tensor descriptors"]
    hopper = compile_for(kernel, *args, device="H100", **options)
    ampere = compile_for(kernel, *args, device="A100", **options)
    assert (hopper.instructions["UTMALDG"], hopper.instructions["UTMASTG"]) == (1, 1)
    assert (ampere.instructions["UTMALDG"], ampere.instructions["UTMASTG"]) == (0, 0)
    assert hopper.shared_memory >= 64 * 64 * 2


def test_atomics_are_counted():
    kernel, args, options = EXAMPLES["atomics"]
    names = compile_for(kernel, *args, device="A100", **options).instructions
    assert names["ATOMG"] + names["RED"] + names["REDG"] > 0


def test_spills_are_bytes_of_stack_instructions():
    kernel, args, options = EXAMPLES["spills"]
    for device in ("A100", "H100"):
        found = compile_for(kernel, *args, device=device, **options)
        for opcode, size in (("STL", found.spill_stores), ("LDL", found.spill_loads)):
            names = found.instructions.items()
            assert size == sum(int(n.split(".")[1]) // 8 * count for n, count in names if n.startswith(opcode)) > 0
        assert found.spill_bytes == found.spill_stores + found.spill_loads
        assert "spill" in repr(found.sass_view("stack"))
        roomy = compile_for(kernel, *args, device=device, **{**options, "maxnreg": None})
        assert found.registers <= 128 < roomy.registers
        assert roomy.spill_bytes == 0


def test_a_stack_is_not_a_spill():
    # Taking LDL and STL, or the stack's size, for spills would call every sine a spill.
    found = compile_for(sine, *F32[:1], BLOCK=128)
    assert found.stack > 0
    assert found.instructions["STL.32"] > 0
    assert found.spill_bytes == 0
    assert "stack" in repr(found.sass_view("stack"))
    assert "spill" not in repr(found.sass_view())


def test_static_and_dynamic_shared_memory():
    found = compile_for(static_shared, *I32[:1], BLOCK=128)
    assert (found.static_shared_memory, found.dynamic_shared_memory) == (2048, 0)
    kernel, args, options = EXAMPLES["tensor cores"]
    found = compile_for(kernel, *args, **options)
    assert found.static_shared_memory == 0
    assert found.shared_memory == found.dynamic_shared_memory > 0


@pytest.mark.parametrize("device", ["A100", "H100"])
@pytest.mark.parametrize(
    ("n", "x", "widths"),
    [
        (4096, torch.zeros(4096), {"LDG.128": 4, "STG.128": 2}),
        (4096, torch.zeros(4097)[1:], {"LDG.128": 2, "LDG.32": 8, "STG.128": 2}),  # x is not aligned to 16 bytes
        (4095, torch.zeros(4096), {"LDG.32": 16, "STG.32": 8}),  # the mask may end within any group of four
    ],
)
def test_divisibility_decides_how_wide_loads_are(device, n, x, widths):
    found = compile_for(add_silu, x, F32[1], F32[2], n, device=device, BLOCK=1024).instructions
    assert {name: count for name, count in found.items() if name.startswith(("LDG", "STG"))} == widths


def test_a_dtype_stands_for_a_pointer():
    by_dtype = compile_for(add_silu, torch.float32, torch.float32, torch.float32, 4096, BLOCK=1024)
    assert by_dtype == compile_for(add_silu, *F32, 4096, BLOCK=1024)


def test_occupancy_is_that_of_the_figures():
    kernel, args, options = EXAMPLES["tensor cores"]
    found = compile_for(kernel, *args, device="A100", **options)
    expected = occupancy(
        (8, 0), threads=128, registers=found.registers, dynamic_shared_memory=found.dynamic_shared_memory
    )
    assert found.occupancy().blocks == expected.blocks
    assert found.occupancy(carveout=0).blocks <= expected.blocks


def test_kernels_compile_before_and_after_they_ran():
    x, y, out = torch.randn(2, 100), torch.randn(2, 100), torch.zeros(2, 100)
    args = (x, y, out, 200)
    before = compile_for(add_silu, *args, BLOCK=128)
    with runtime.observed(SimpleNamespace(launch=lambda *_: None, program=lambda _: None, access=lambda *_: None)):
        add_silu[(2,)](*args, BLOCK=128)
    torch.testing.assert_close(out, torch.nn.functional.silu(x + y))
    for device in ("H100", "A100"):
        compile_for(add_silu, *args, device=device, BLOCK=256)
    assert compile_for(add_silu, *args, BLOCK=128) == before


def test_in_a_notebook_cell():
    cells = [
        "import torch, triton, triton.language as tl\n"
        "from helpers.instruments.resources import compile_for\n"
        "@triton.jit\n"
        "def half(x):\n"
        "    return x * 0.5",
        "@triton.jit\n"
        "def halve(x_ptr, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + i, i < n)\n"
        "    tl.store(x_ptr + i, half(x), i < n)",
        "x = torch.ones(64)\nbefore = compile_for(halve, x, 64, device='A100', BLOCK=64)",
        "halve[(1,)](x, 64, BLOCK=64)\nprint(x.sum().item())",
        "print(compile_for(halve, x, 64, device='A100', BLOCK=64) == before)",
        "print(before.sass_view('load', 'store'))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = [cell.outputs[0].text for cell in notebook.cells if cell.outputs]
    assert printed[:2] == ["32.0\n", "True\n"]
    assert "x = tl.load(x_ptr + i, i < n)" in printed[2]
    rows = [row.split()[:2] for row in printed[2].splitlines()[1:]]
    assert ["load", "4"] in rows
    assert ["store", "5"] in rows


def test_the_driver_is_left_alone():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(f"the driver was asked for {name}")

    before, untouchable = driver._active, Untouchable()
    driver.set_active(untouchable)
    try:
        for kernel, args, options in EXAMPLES.values():
            compile_for(kernel, *args, device="L4", **options)
            assert driver._active is untouchable
        with pytest.raises(ValueError, match="does not compile"):
            compile_for(broken, *F32[:1], BLOCK=128)
        assert driver._active is untouchable
    finally:
        driver.set_active(before)


def test_a_kernel_that_asks_for_its_target_is_told_the_right_one():
    for device, constant in (("A100", 8), ("H100", 9)):
        assert re.search(rf"mov.*, {constant};", compile_for(asks_its_target, *I32[:1], device=device).ptx), device


def test_a_warm_call_is_quick_and_a_cold_one_compiles_once(tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    hits = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **compilation: hits.append(compilation["cache_hit"]))
    kernel, args, options = EXAMPLES["tensor cores"]
    cold = compile_for(kernel, *args, **options)
    assert hits == [False]
    seconds = []
    for _ in range(5):
        start = time.process_time()
        warm = compile_for(kernel, *args, **options)
        seconds.append(time.process_time() - start)
    assert warm == cold
    assert hits == [False] + 5 * [True]
    assert sorted(seconds)[2] < 0.05
    # A launch leaves no assembler's log in the cache: then, once, the kernel is compiled again.
    (log,) = tmp_path.rglob(module.LOG_FILE)
    log.unlink()
    assert compile_for(kernel, *args, **options) == cold
    assert hits[-2:] == [True, False]
    assert compile_for(kernel, *args, **options) == cold
    assert hits[-1]


@triton.jit
def prints(x_ptr, BLOCK: tl.constexpr):
    tl.static_print("BLOCK is", BLOCK)
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


def test_a_kernels_own_prints_are_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    compile_for(prints, *F32[:1], BLOCK=128)
    assert capsys.readouterr().out == "BLOCK is 128\n"


def test_repr():
    kernel, args, options = EXAMPLES["calls another"]
    found = compile_for(kernel, *args, **options)
    fixed = {"registers": 70, "spill_stores": 8, "spill_loads": 12, "stack": 16, "num_warps": 8, "barriers": 0}
    assert repr(dataclasses.replace(found, **fixed)).splitlines() == [
        "add_silu on H100 (compute capability 9.0), 8 warps",
        "  registers      70 per thread",
        "  spills         8 B stored, 12 B loaded",
        "  stack          16 B per thread",
        "  shared memory  0 B per block",
        "  occupancy      3 blocks, 24 of 64 warps (38%), limited by registers: "
        "to fit one more block, use 6 fewer registers per thread",
    ]
    assert "spills         none" in repr(found)


def test_sass_view_marks_what_matters():
    rows = (
        Instruction("MOV R1, c[0x0][0x28]", "/k.py", 3, ""),
        Instruction("@!P0 LDG.E.128.CONSTANT R4, [R2.64]", "/k.py", 4, ".L_x_1"),
        Instruction("LDG.E.LTC128B.64 R4, [R2.64]", "/k.py", 4, ""),
        Instruction("STG.E.U16 [R2.64], R4", "/k.py", 5, ""),
        Instruction("STL [R1+0x8], R4", "/lib/standard.py", 50, ""),
        Instruction("HGMMA.64x64x16.F32 R24, gdesc[UR4], R24", "/k.py", 6, ""),
    )
    assert [row.name for row in rows] == ["MOV", "LDG.128", "LDG.64", "STG.16", "STL.32", "HGMMA"]
    view = SassView(rows, "/k.py", spills=True)
    assert repr(view) == "\n".join(
        [
            "kind                    line  instruction",
            "                           3  MOV R1, c[0x0][0x28]",
            "load                       4  .L_x_1: @!P0 LDG.E.128.CONSTANT R4, [R2.64]",
            "load                       4  LDG.E.LTC128B.64 R4, [R2.64]",
            "store                      5  STG.E.U16 [R2.64], R4",
            "spill         standard.py:50  STL [R1+0x8], R4",
            "tensor core                6  HGMMA.64x64x16.F32 R24, gdesc[UR4], R24",
        ]
    )
    assert view._repr_html_().count("<b>") == 5


def test_beside_an_instruction_stands_the_text_of_its_line(tmp_path):
    (kernel := tmp_path / "k.py").write_text("\n".join(["@triton.jit", "def k(x_ptr):", "    x = tl.load(x_ptr)", ""]))
    rows = (
        Instruction("MOV R1, c[0x0][0x28]", str(kernel), 2, ""),
        Instruction("LDG.E R4, [R2]", str(kernel), 3, ""),
        Instruction("LDG.E R5, [R2+0x4]", str(kernel), 3, ""),
        Instruction("EXIT", "/lib/gone.py", 50, ""),
    )
    assert [row.source for row in rows] == ["def k(x_ptr):", "x = tl.load(x_ptr)", "x = tl.load(x_ptr)", ""]
    view = SassView(rows, str(kernel), spills=False)
    assert repr(view) == "\n".join(
        [
            "kind                    line  instruction           source",
            "                           2  MOV R1, c[0x0][0x28]  def k(x_ptr):",
            "load                       3  LDG.E R4, [R2]        x = tl.load(x_ptr)",
            "load                       3  LDG.E R5, [R2+0x4]",
            "                  gone.py:50  EXIT",
        ]
    )
    assert "x = tl.load(x_ptr)</b>" in view._repr_html_()


def test_sass_is_all_of_the_code_and_no_padding(tmp_path):
    kernel, args, options = EXAMPLES["tensor cores"]
    found = compile_for(kernel, *args, device="A100", **options)
    (tmp_path / "kernel.cubin").write_bytes(found.cubin)
    command = [knobs.nvidia.cuobjdump.path, "-sass", tmp_path / "kernel.cubin"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    opcodes = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@\S+ )?([A-Z][\w.]*)", listing, flags=re.MULTILINE)
    assert [each.opcode for each in disassemble(found.cubin)] == opcodes[: len(disassemble(found.cubin))]
    assert set(opcodes[len(disassemble(found.cubin)) :]) <= {"BRA", "NOP"}
    assert found.instructions.total() == len(disassemble(found.cubin))
    assert "/" not in re.sub(r"/\*.*?\*/", "", found.sass), "a path of this machine"
    lines = {each.line for each in disassemble(found.cubin) if each.file == __file__}
    assert matmul.starting_line_number < min(lines) < max(lines) < matmul.starting_line_number + 14


# Bad input


@triton.jit
def broken_inside(x):
    y = x + 1
    return y.missing


@triton.jit
def broken(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, broken_inside(tl.load(x_ptr + i)))


@triton.jit
def bad_assembly(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i, tl.inline_asm_elementwise("foo $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1))


SCALE = tl.constexpr(2.0)


@triton.jit
def scaled(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i) * SCALE)


def plain(x_ptr):
    pass


tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=[])(scaled)


@triton.jit
def specialized_warps(a, b, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    a.store([row, column], total.to(tl.float16))


@pytest.mark.parametrize(
    ("kernel", "args", "options", "error", "message"),
    [
        (add_silu, (*F32, 4096), {}, TypeError, "add_silu needs a value for BLOCK: pass them as in a launch"),
        (add_silu, F32, {"BLOCK": 8}, TypeError, "add_silu needs a value for n: "),
        (add_silu, (*F32, 1, 2, 3), {}, TypeError, "out_ptr, n, BLOCK): too many positional arguments"),
        (add_silu, (*F32, 1), {"BLOCK": 8, "BLCK": 9}, TypeError, "argument BLCK was specified but unrecognised"),
        (add_silu, ("x", *F32[:2], 1), {"BLOCK": 8}, TypeError, "failed to specialize argument of type: str"),
        (
            plain,
            F32[:1],
            {},
            TypeError,
            "takes a @triton.jit kernel, got function plain: write it in",
        ),
        (
            scaled,
            F32[:1],
            {"BLOCK": 100},
            ValueError,
            "scaled does not compile for H100: scaled, `i = tl.arange(0, BLOCK)`",
        ),
        (broken, F32[:1], {"BLOCK": 64}, ValueError, "broken_inside, `return y.missing`: AttributeError("),
        (bad_assembly, I32[:1], {"BLOCK": 128}, ValueError, "H100: Not a name of any known instruction: 'foo'"),
        (scaled, F32[:1], {"BLOCK": 64, "num_warps": 3}, ValueError, "num_warps is a power of two from 1 to 32, got 3"),
        (
            scaled,
            F32[:1],
            {"BLOCK": 64, "maxnreg": 256},
            ValueError,
            "maxnreg is 1 to 255 registers per thread, got 256",
        ),
        (scaled, F32[:1], {"BLOCK": 64, "device": "H1000"}, ValueError, "the nearest is 'H100'"),
        (
            scaled,
            F32[:1],
            {"BLOCK": 64, "device": "V100"},
            ValueError,
            "cannot compile for V100, compute capability 7.0: it takes 7.5 and later",
        ),
        (
            matmul,
            (*F16, 512, 512, 512),
            {"BM": 128, "BN": 256, "BK": 64, "num_stages": 5, "num_warps": 8},
            ValueError,
            "of shared memory and a block on H100 has at most 232448 B: ",
        ),
    ],
)
def test_bad_input_is_one_line(kernel, args, options, error, message):
    with pytest.raises(error) as raised:
        compile_for(kernel, *args, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


def test_what_the_compilers_cpp_half_says_is_the_message(capfd, tmp_path):
    def fail(said):
        with module._diagnosed():
            os.write(2, said)
            raise RuntimeError("PassManager::run failed")

    with pytest.raises(RuntimeError, match=r"^line 11: types must match$"):
        fail(b"/home/me/mine.py:11:20: error: types must match\n    c.store()\nmodule {\n")
    (mine := tmp_path / "mine.py").write_text("first\n    c.store()\n")
    with pytest.raises(RuntimeError, match=r"^line 2, `c.store\(\)`: types must match$"):
        fail(f"{mine}:2:20: error: types must match\n".encode())
    with pytest.raises(RuntimeError, match=r"^PassManager::run failed$"):
        fail(b"")
    with module._diagnosed():
        os.write(2, b"remark: fine\n")
    assert capfd.readouterr().err == "remark: fine\n"


def test_warps_that_specialisation_adds_are_counted():
    arguments = descriptor(128), descriptor(128), 256
    found = compile_for(specialized_warps, *arguments, device="B200", BM=128, BN=128, BK=128, num_stages=2)
    assert found.num_warps > 4
    assert found.instructions["USETMAXREG"] > 0
    assert found.barriers > 1


def test_too_much_shared_memory_says_by_how_much(gpu):
    args, options = (*F16, 512, 512, 512), {"BM": 128, "BN": 256, "BK": 64, "num_stages": 5, "num_warps": 8}
    gpu(90)
    needed = launched(matmul, args, options).metadata.shared
    with pytest.raises(ValueError, match=f"needs {needed} B .* {needed - 227 * 1024} B too many"):
        compile_for(matmul, *args, **options)


def test_a_kernel_without_source():
    with pytest.raises(ValueError, match="should be defined in a Python file"):
        exec("@triton.jit\ndef kernel(x_ptr):\n    pass", {"triton": triton})


def test_a_changed_global_is_told_as_in_a_launch(monkeypatch):
    compile_for(scaled, *F32[:1], BLOCK=64)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3.0))
    with pytest.raises(ValueError, match=r"scaled was defined with SCALE = constexpr\[2.0\], now constexpr\[3.0\]"):
        compile_for(scaled, *F32[:1], BLOCK=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine's device is a GPU")
def test_a_cpu_is_no_target():
    with pytest.raises(ValueError, match="is a CPU: choose a GPU to compile for, such as device='H100'"):
        compile_for(scaled, *F32[:1], BLOCK=64, device=this_device())


def test_sass_view_of_an_unknown_kind():
    found = compile_for(scaled, *F32[:1], BLOCK=64)
    with pytest.raises(ValueError, match="unknown instruction kind 'jump': choose from load, store, atomic"):
        found.sass_view("jump")


# fusion inspect


def test_inspect_a_kernel_of_the_catalogue():
    found = inspect_kernel("kernels.elementwise.add_gelu:add_gelu_kernel", device="A100")
    assert found.kernel == "add_gelu_kernel"
    assert found.instructions["LDG.128"] > 0


def test_inspect_any_kernel(tmp_path, monkeypatch):
    (tmp_path / "kernel_here.py").write_text(
        "import triton, triton.language as tl\n"
        "@triton.jit\n"
        "def fill(x_ptr, value, n, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n"
        "    tl.store(x_ptr + i, value, i < n)\n"
    )
    (tmp_path / "half_written.py").write_text("def f(:\n")
    (tmp_path / "quits.py").write_text("import sys; sys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    found = inspect_kernel("kernel_here:fill", ["*fp32", "2.5", "4096", "BLOCK=512", "num_warps=2"], "L4")
    assert (found.num_warps, found.instructions["STG.128"]) == (2, 2)
    for where, arguments, message in (
        ("kernel_here", [], "named as module:kernel"),
        ("kernel_here:full", [], "kernel_here has no @triton.jit kernel full: choose from fill"),
        ("yours:fill", [], "cannot import yours: No module named 'yours'"),
        (".kernel_here:fill", [], "named from the top, without a dot in front"),
        ("half_written:fill", [], "cannot import half_written: SyntaxError: "),
        ("quits:fill", [], "cannot import quits: SystemExit: 3"),
        ("kernel_here:fill", ["BLOCK=1", "BLOCK=2"], "BLOCK is given twice"),
        ("kernel_here:fill", ["device=A100"], "by --device A100, not device=A100"),
        (
            "kernel_here:fill",
            ["*fp31"],
            r"'\*fp31' is not an argument: pass a number, NAME=VALUE or one of \*fp64, \*fp32",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            inspect_kernel(where, arguments)
    with pytest.raises(TypeError, match="fill needs a value for x_ptr, value, n, BLOCK"):
        inspect_kernel("kernel_here:fill")
    del sys.modules["kernel_here"]


@gluon.jit
def holds_tensor_memory(out_ptr, COLUMNS: ttgl.constexpr):
    tile = allocate_tensor_memory(ttgl.float32, [128, COLUMNS], TensorMemoryLayout((128, COLUMNS), col_stride=1))
    part = tile.slice(0, 32)
    layout: ttgl.constexpr = ttgl.BlockedLayout([1, 32], [32, 1], [4, 1], [0, 1])
    row = ttgl.arange(0, 128, layout=ttgl.SliceLayout(1, layout))
    column = ttgl.arange(0, 32, layout=ttgl.SliceLayout(0, layout))
    ttgl.store(out_ptr + row[:, None] * 32 + column[None, :], part.load(layout))


def test_tensor_memory_is_shown_and_limits_occupancy():
    """An SM of a B200 has 512 columns: registers alone would allow 12 blocks."""
    found = compile_for(holds_tensor_memory, torch.float32, device="B200", COLUMNS=256)
    assert found.tensor_memory == 256
    assert (found.occupancy().blocks, found.occupancy().limiters) == (2, ("tensor memory",))
    assert "\n  tensor memory  256 columns per block\n" in repr(found)
    kernel, args, options = EXAMPLES["calls another"]
    assert compile_for(kernel, *args, **options).tensor_memory == 0


def test_clusters_are_named():
    kernel, args, options = EXAMPLES["calls another"]
    found = compile_for(kernel, *args, num_ctas=2, **options)
    assert found.num_ctas == 2
    assert repr(found).splitlines()[-1].startswith("  clusters       of 2 blocks, which start together on SMs")
    with pytest.raises(ValueError, match="num_ctas is at most 16, got 32"):
        compile_for(kernel, *args, num_ctas=32, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_warps": True}, "num_warps is a power of two from 1 to 32, got True"),
        ({"num_warps": 4.0}, "num_warps is a power of two from 1 to 32, got 4.0"),
        ({"num_stages": -1}, "num_stages is a whole number from 0, got -1"),
        ({"num_stages": 2.5}, "num_stages is a whole number from 0, got 2.5"),
        ({"maxnreg": True}, "maxnreg is 1 to 255 registers per thread, got True"),
        ({"maxnreg": "32"}, "maxnreg is 1 to 255 registers per thread, got '32'"),
    ],
)
def test_options_of_the_wrong_kind_are_one_line(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        compile_for(add_silu, *F32, 1024, BLOCK=128, **options)


def test_arguments_that_no_kernel_can_take_are_one_line():
    with pytest.raises(TypeError, match=r"^add_silu: Triton has no pointer to complex64$"):
        compile_for(add_silu, torch.complex64, *F32[:2], 1024, BLOCK=128)
    with pytest.raises(TypeError, match="an integer does not fit in 64 bits"):
        compile_for(add_silu, *F32, 2**64, BLOCK=128)
