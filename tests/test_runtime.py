"""The interpreter against the H200's recorded results, what it refuses, and that the compiler works next to it."""

import re
import subprocess
import sys
from pathlib import Path

import gpu_semantics
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")
RECORDED = np.load(Path(__file__).parent / "data" / "h200_semantics.npz")

# Where the order of additions or an approximate instruction decides the last bits: largest difference allowed, in
# units of eps(dtype) * largest exact partial result.
INEXACT = {
    "sum": 8,
    "cumsum": 40,
    "dot": 8,
    "exp": 12,
    "exp2": 2,
    "log": 2,
    "sigmoid": 8,
    "rsqrt": 2,
    "erf": 2,
    "divide": 2,
}
EPS = {"fp32": 2**-23, "fp16": 2**-10, "bf16": 2**-7}


@pytest.fixture(scope="module")
def interpreted():
    return gpu_semantics.run("cpu")


def as_float(array, dtype):
    tensor = torch.from_numpy(array.copy())
    return (tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor).double().numpy()


@pytest.mark.parametrize("case", list(gpu_semantics.cases()), ids=lambda case: case[0])
def test_agrees_with_the_h200(case, interpreted):
    name, _, inputs, (_, dtype), _ = case
    theirs, ours = as_float(RECORDED[name], dtype), as_float(interpreted[name], dtype)
    operation, precision = name.split("_")[0], name.split("_")[-1]
    if operation not in INEXACT or name in ("sum_fp16", "sum_bf16"):
        np.testing.assert_array_equal(ours, theirs)
        return
    if operation == "cumsum":
        scale = np.abs(inputs[0].double().numpy()).cumsum()
    elif operation == "sum":
        scale = np.abs(inputs[0].double().numpy()).sum()
    elif operation == "dot":
        precision = "fp32"  # products of the operands are exact; only the fp32 accumulation differs
        square = [np.abs(x.double().numpy().reshape(32, 32)) for x in inputs]
        scale = (square[0] @ square[1]).ravel()
    else:
        scale = np.abs(theirs)
    assert np.all(np.abs(ours - theirs) <= INEXACT[operation] * EPS[precision] * scale)


def test_the_comparison_can_fail():
    """Triton's own interpreter truncates on a bfloat16 store; the record tells truncation from rounding."""
    x = gpu_semantics.awkward(11).numpy()
    truncated = (x.view(np.uint32) >> 16).astype(np.uint16)
    assert (truncated != RECORDED["store_bf16"]).mean() > 0.25


def test_tf32_is_not_fp32():
    assert np.abs(RECORDED["dot_tf32_fp32"] - RECORDED["dot_ieee_fp32"]).max() > 1e-4


@triton.jit
def swish(x):
    x = x.to(tl.float32)
    return x * tl.sigmoid(x)


@triton.jit
def swish_kernel(x_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, swish(tl.load(x_ptr + i, mask=i < elements)), mask=i < elements)


def compile_swish() -> str:
    """The PTX, less the lines that name source files."""
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "elements": "i32", "BLOCK": "constexpr"}
    source = ASTSource(swish_kernel, signature, {"BLOCK": 256})
    ptx = triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]
    return re.sub(r"^\s*\.(file|loc).*\n", "", ptx, flags=re.MULTILINE)


def launch_swish():
    x = torch.randn(1025)
    y = torch.full_like(x, torch.nan)
    swish_kernel[(5,)](x, y, 1025, BLOCK=256, num_warps=4)
    torch.testing.assert_close(y, torch.nn.functional.silu(x))


def test_the_compiler_works_before_and_after_a_launch():
    before = compile_swish()
    launch_swish()
    triton.knobs.compilation.always_compile, kept = True, triton.knobs.compilation.always_compile
    try:
        assert compile_swish() == before
    finally:
        triton.knobs.compilation.always_compile = kept
    launch_swish()


def test_the_compiler_first_met_after_a_launch_knows_the_language():
    """Triton imports half its compiler on first use, and it keeps what tl.static_assert is at that moment."""
    program = "import test_runtime as t; t.launch_swish(); t.compile_asserting()"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert "StaticAssertionFailed" in done.stderr or "CompileTimeAssertionFailure" in done.stderr, done.stderr


@triton.jit
def asserting_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 1000, "too small")
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


def compile_asserting():
    source = ASTSource(asserting_kernel, {"x_ptr": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 16})
    triton.compile(source, target=GPUTarget("cuda", 80, 32))


def test_kernels_are_ordinary_jit_functions_and_the_language_is_put_back():
    assert isinstance(swish_kernel, JITFunction)
    load = tl.load
    launch_swish()
    assert tl.load is load
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        swish(1)


def test_a_kernel_that_closes_over_a_constant():
    scale = tl.constexpr(3.0)

    @triton.jit
    def scaled(x_ptr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x_ptr + i, tl.load(x_ptr + i) * scale)

    x = torch.ones(16)
    scaled[(1,)](x, BLOCK=16)
    assert x.tolist() == [3.0] * 16


def test_debug_makes_device_assert_fire():
    @triton.jit
    def guarded(x_ptr):
        tl.device_assert(tl.load(x_ptr) > 0, "x must be positive")

    guarded[(1,)](-torch.ones(1))
    with pytest.raises(InterpreterError, match="x must be positive"):
        guarded[(1,)](-torch.ones(1), debug=True)


@triton.jit
def next_kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def test_debug_tells_of_overflow():
    largest = torch.iinfo(torch.int32).max
    x = torch.tensor([largest], dtype=torch.int32)
    with pytest.raises(InterpreterError, match="int32 overflow detected for operation add"):
        next_kernel[(1,)](x, debug=True)
    assert x.item() == largest
    next_kernel[(1,)](x)
    assert x.item() == -largest - 1


def test_launch_arguments_arrive_as_on_a_gpu():
    @triton.jit
    def store_arguments(out_ptr, flag, number, BLOCK: tl.constexpr = 4):
        i = tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.where(flag, number, -1.0) + tl.zeros([BLOCK], tl.float64))

    out = torch.zeros(4, dtype=torch.float64)
    store_arguments[lambda meta: (meta["BLOCK"] // 4,)](out, True, number=0.1)
    assert out.tolist() == [float(np.float32(0.1))] * 4


@triton.jit
def refused_kernel(x_ptr, WHAT: tl.constexpr):
    i = tl.arange(0, 16)
    x = tl.load(x_ptr + i)
    if WHAT == "block condition":
        if x > 0:
            tl.store(x_ptr + i, x)
    elif WHAT == "short dot":
        a = tl.reshape(x, (4, 4))
        tl.store(x_ptr + i, tl.reshape(tl.dot(a, a), (16,)))
    elif WHAT == "bfloat16 atomic":
        tl.atomic_add(x_ptr + i, x)
    elif WHAT == "float8":
        tl.store(x_ptr + i, x.to(tl.float8e5).to(tl.float32))
    elif WHAT == "inline assembly":
        tl.store(x_ptr + i, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], tl.float32, True, 1))


@pytest.mark.parametrize(
    ("what", "dtype", "message"),
    [
        ("block condition", torch.float32, r"refused_kernel, line \d+, `if x > 0:`: a block of 16 values"),
        ("short dot", torch.float32, "K >= 16"),
        ("bfloat16 atomic", torch.bfloat16, "accumulate in float32"),
        ("float8", torch.float32, "fp8e5 needs a GPU"),
        ("inline assembly", torch.float32, "inline assembly needs a GPU"),
    ],
)
def test_refused_in_one_line_that_names_the_kernels_line(what, dtype, message):
    with pytest.raises(InterpreterError, match=message) as raised:
        refused_kernel[(1,)](torch.ones(16, dtype=dtype), WHAT=what)
    assert "\n" not in str(raised.value)
    assert "refused_kernel, line" in str(raised.value)


@pytest.mark.parametrize("grid", [(1, 65536), (-1,), (1.5,), (1, 1, 1, 1), 3, ()])
def test_a_grid_no_gpu_takes(grid):
    with pytest.raises(ValueError, match="a grid is 1 to 3 sizes"):
        swish_kernel[grid](torch.ones(4), torch.ones(4), 4, BLOCK=16)


def test_an_unknown_launch_option():
    with pytest.raises(KeyError, match="no parameter or launch option num_warp"):
        swish_kernel[(1,)](torch.ones(4), torch.ones(4), 4, BLOCK=16, num_warp=4)


def test_an_observer_sees_launches_programs_and_accesses():
    class Seen:
        launches, programs, accesses = [], [], []

        def launch(self, kernel, grid, on_host, given):
            self.launches.append((kernel, grid, list(on_host), list(given)))

        def program(self, index):
            self.programs.append(index)

        def access(self, kind, addresses, mask, itemsize, stored):
            assert (stored is None) == (kind == "read")
            self.accesses.append((kind, int(mask.sum()), itemsize))
            return mask & (addresses < addresses.min() + 8) if kind == "write" else None

    x = torch.randn(300).bfloat16()
    y = torch.full_like(x, torch.nan)
    names = ["x_ptr", "y_ptr", "elements", "BLOCK"]
    with runtime.observed(Seen()) as seen:
        swish_kernel[(2,)](x, y, 300, BLOCK=256)
    assert seen.launches == [(swish_kernel, (2, 1, 1), names, names)]
    assert y.isfinite().nonzero().flatten().tolist() == [0, 1, 2, 3, 256, 257, 258, 259]  # the rest was withheld
    assert seen.programs == [(0, 0, 0), (1, 0, 0)]
    assert seen.accesses == [("read", 256, 2), ("write", 256, 2), ("read", 44, 2), ("write", 44, 2)]


def test_an_observer_chooses_the_program_instances():
    class Some:
        def launch(self, kernel, grid, on_host, given):
            assert (grid, given["num_warps"]) == ((4, 1, 1), 2)
            return [(3, 0, 0), (1, 0, 0)]

        program = access = lambda *_: None

    x = torch.ones(1024)
    y = torch.full_like(x, torch.nan)
    with runtime.observed(Some()):
        swish_kernel[(4,)](x, y, 1024, BLOCK=256, num_warps=2)
    assert y.view(4, 256).isfinite().all(dim=1).tolist() == [False, True, False, True]


def test_a_command_that_reads_a_notebook_builds_no_grammars(tmp_path):
    program = (
        "import sys; from helpers.cli import main; print(main(sys.argv[1:]), 'jsonschema' in sys.modules, "
        "'lark' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "check", str(tmp_path / "missing.ipynb")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == "2 True False\n"


def test_importing_helpers_blocks_no_other_package():
    program = (
        "import sys, helpers.grading.workers, helpers.instruments, helpers.figures, helpers.learning; "
        "print([name for name, module in sys.modules.items() if module is None])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


def test_block_types_made_while_interpreting_are_tritons():
    for shape in ([4, tl.constexpr(8)], [8, 4], [4, 8]):
        for dtype in (tl.float32, tl.int32):
            theirs = tl.block_type(dtype, shape)
            ours_of = tl.tensor(None, theirs)
            with runtime._language_interpreted():
                for ours in (tl.block_type(dtype, shape), tl.block_type(dtype, shape)):
                    assert (ours.name, ours.numel) == (theirs.name, theirs.numel)
                    assert ours.shape.values == theirs.shape.values
                made = tl.tensor(None, ours)
            assert (made.shape.values, made.numel, made.dtype) == (ours_of.shape.values, ours_of.numel, dtype)
            assert str(made.type.shape) == str(theirs.shape)
    with runtime._language_interpreted():
        for shape in ([4.0, 8], [3], [], 4):
            with pytest.raises((TypeError, ValueError, AssertionError)):
                tl.block_type(tl.float32, shape)


IMPORTED = """
import sys, time
start = time.process_time()
import torch, triton
middle, before = time.process_time(), set(sys.modules)
import helpers
packages = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*(packages - {name.partition(".")[0] for name in before}), (time.process_time() - middle) / (middle - start))
"""


def test_importing_the_course_costs_little():
    """At most one package that torch and triton don't load, and at most a third of their processor time in one of three
    new processes: a share, since a busy machine slows both down."""
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
        *packages, share = ran.stdout.split()
        assert set(packages) <= {"helpers", "kernels", "ml_dtypes"}
        if float(share) <= 1 / 3:
            return
    pytest.fail(f"importing helpers takes {float(share):.0%} of what importing torch and triton takes")


@triton.jit
def merge(mean1, squares1, count1, mean2, squares2, count2):
    count = count1 + count2
    apart = mean2 - mean1
    return mean1 + apart * count2 / count, squares1 + squares2 + apart * apart * count1 * count2 / count, count


@triton.jit
def left(a, b):
    return a


@triton.jit
def reduces_kernel(x_ptr, variances_ptr, firsts_ptr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.arange(0, ROWS), tl.arange(0, COLS)
    x = tl.load(x_ptr + row[:, None] * COLS + col[None, :])
    _, squares, count = tl.reduce((x, tl.zeros_like(x), tl.full((ROWS, COLS), 1.0, tl.float32)), 1, merge)
    tl.store(variances_ptr + row, squares / count)
    tl.store(firsts_ptr + row[:, None], tl.reduce(x, 1, left, keep_dims=True))
    tl.store(firsts_ptr + ROWS + col, tl.reduce(x, 0, left))
    tl.store(firsts_ptr + ROWS + COLS, tl.reduce(x, None, left))


@triton.jit
def column_sums_kernel(x_ptr, y_ptr, ROWS: tl.constexpr):
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, 2)[None, :]
    tl.store(y_ptr + tl.arange(0, 2), tl.sum(tl.load(x_ptr + row * 2 + col), axis=0))


def test_sums_along_any_axis_are_added_as_trees():
    """One after another, as NumPy adds along an axis that is not the last, they would be off by far more."""
    x, y = 1e4 + torch.rand(8192, 2), torch.empty(2)
    column_sums_kernel[(1,)](x, y, ROWS=8192)
    exact = x.double().sum(0)
    allowed = 2 * (x.sum(0) - exact).abs().max() + 4 * torch.finfo(torch.float32).eps * exact.max()
    one_by_one = torch.from_numpy(np.cumsum(x.numpy(), axis=0, dtype=np.float32)[-1])
    assert (y - exact).abs().max() <= allowed < (one_by_one - exact).abs().max()


def test_reductions_by_a_function_of_ones_own_keep_the_order():
    x, variances, firsts = torch.randn(8, 64), torch.empty(8), torch.empty(8 + 64 + 1)
    reduces_kernel[(1,)](x, variances, firsts, ROWS=8, COLS=64)
    torch.testing.assert_close(variances, x.var(dim=1, correction=0))
    assert torch.equal(firsts, torch.cat([x[:, 0], x[0], x[0, :1]]))


@triton.jit
def load_past_the_end_kernel(x_ptr, y_ptr, n):
    tl.store(y_ptr, tl.load(x_ptr + n, mask=n < 0, other=0.0))
    i = tl.arange(0, 1)
    tl.store(y_ptr + 1 + i, tl.load(x_ptr + n + i, mask=n + i < n, other=0.0))
    tl.store(y_ptr + 2 + i, tl.load(x_ptr + n + i, mask=n + i < n))


def test_a_masked_load_of_one_element_takes_its_other():
    x, y = torch.ones(4), torch.ones(3)
    load_past_the_end_kernel[(1,)](x, y, 4)
    assert y[:2].tolist() == [0, 0]
    assert y[2].isnan()


def test_a_lessons_first_cell_waits_for_neither_torch_nor_triton_nor_matplotlib():
    """They take seconds to import; a field for a guess needs none of them."""
    asks = "import sys\nfrom helpers.learning import predict_first\npredict_first('how many', unit='B')\n"
    heavy = "print([name for name in ('torch', 'triton', 'matplotlib') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", asks + heavy], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("first", ["import triton; import helpers", "import helpers; import triton"])
def test_triton_is_interpreted_whichever_is_imported_first(first):
    """Without a GPU a learner's launch reaches this project's interpreter, and inspect still finds Triton's source."""
    code = (
        f"{first}\nimport inspect, triton\nfrom triton.runtime.jit import JITFunction\n"
        'print(JITFunction.run.__module__, inspect.getsource(triton).startswith(\'"""\'), triton.__spec__.name)'
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    module, found, name = ran.stdout.split()
    assert (found, name) == ("True", "triton")
    assert (module == "kernels.interpreter.runtime") == (not torch.cuda.is_available())
