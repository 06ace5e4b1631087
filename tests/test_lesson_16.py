"""Lesson 16: stage texts come from the installed packages; CUTLASS's file and script agree; records name kernels."""

import json
import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from benchmarks import libraries
from helpers.instruments import compile_for, inductor_code

ROOT = Path(__file__).resolve().parents[1]
LESSON = (ROOT / "source/lessons/16_compilers_and_libraries.py").read_text()
# What only a compiler writes: none of it may be typed into the lesson's code.
WRITTEN_BY_COMPILERS = (
    r"tl\.load\(in_ptr\d \+", r"triton_\w{3}_fused\w*\(", r"torch\.ops\.aten", r"LOAD_FAST .*\n", r"ld\.global\.[a-z]",
    r"HloModule", r"\btmp\d = tl\.",
)  # fmt: skip


def code_cells(text):
    cells = re.split(r"^# %%", text, flags=re.M)
    return [cell for cell in cells if not cell.lstrip().startswith("[markdown]")]


def typed(text):
    return [name for name in WRITTEN_BY_COMPILERS if any(re.search(name, cell) for cell in code_cells(text))]


def test_no_stage_text_is_typed_into_the_lesson():
    assert typed(LESSON) == []


@pytest.mark.parametrize("line", ["triton_poi_fused_0(x)", "tmp1 = tl.sigmoid(tmp0)", "HloModule jit_gated"])
def test_a_typed_stage_text_is_found(line):
    assert typed(f'{LESSON}\n# %%\nprint("""{line}""")\n')


def test_every_tile_is_given_whole_to_nvcc():
    source = libraries.CUTLASS_SOURCE.read_text()
    for tile in libraries.CUTLASS_TILES:
        command = libraries.nvcc_command(tile, "include", Path("out.so"))
        given = {each[2:].partition("=")[0] for each in command if each.startswith("-D")}
        assert {"TILE_M", "TILE_N", "SCHEDULE", "CLUSTER_M"} <= given
        assert all(name in source for name in given - {"NDEBUG"})  # that one is for the headers
        assert ("EPILOGUE_COOPERATIVE" in given) == tile.endswith("cooperative")
        assert {"-Iinclude", "-Itools/util/include"} <= {*command}  # of packed_stride.hpp


def test_what_does_not_build_is_recorded_as_nvcc_said_it(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "nvcc_command", lambda *_: ["sh", "-c", "echo no such header >&2; exit 1"])
    built = libraries.cutlass_build("nowhere", tmp_path)
    assert set(built) == set(libraries.CUTLASS_TILES)
    assert all("no such header" in error for error in built.values())


def test_each_recorded_part_says_which_kernels_it_launched(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["libraries", "--small", "--only", "xla", "--out", str(tmp_path / "record.json")])
    monkeypatch.setattr(libraries, "xla_texts", lambda shape: {"shape": shape})
    libraries.main()
    assert json.loads((tmp_path / "record.json").read_text())["kernels"] == {"xla": []}


def test_recorded_hlo_names_no_file():
    noted = (
        'HloModule m\n\nFileNames\n1 "/home/a.py"\n\nStackFrames\n1 {file_location_id=1}\n\n\nENTRY x, metadata={op=1}'
    )
    assert libraries.without_source(noted) == "HloModule m\nENTRY x"
    for name in libraries.RECORDS:
        assert "FileNames" not in libraries.record(name)["xla"]["after"]


def test_an_instruction_is_a_fusion_of_a_kind_or_an_operation():
    entry = """ %main (a: f32[2]) -> f32[2] {
      %a = f32[2]{0} parameter(0)
      %d = f32[2]{0} dot(%a, %a), lhs_contracting_dims={0}
      ROOT %f = f32[2]{0} fusion(%a, %d), kind=kLoop, calls=%add(x)
    }"""
    assert libraries.kinds_in(entry) == ["dot", "kLoop"]
    assert libraries.record("CPU")["kinds"]["matrix @ vector + bias"] == ["kOutput"]


# What the lesson says of the installed compiler.


def test_the_kernel_in_ptx_loads_x_twice_before_the_sum_and_three_tensors_after_it():
    wide, row = (
        torch.empty(8192, 4096, device="meta", dtype=torch.bfloat16),
        torch.empty(4096, device="meta", dtype=torch.bfloat16),
    )
    code = inductor_code(libraries.gated, wide, row, wide, device="H100")
    built = compile_for(code.kernel(), wide, row, wide, wide, 8192, 4096, XBLOCK=1, R0_BLOCK=2048, num_warps=16)
    before, *_, after = built.ptx.split("bar.sync")
    assert (before.count("ld.global"), after.count("ld.global")) == (2, 3)


@triton.jit
def double_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


def run_double(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(double_kernel)[(1,)](x, y, BLOCK=16)
    return y


double = torch.library.triton_op("test_lesson_16::double", run_double, mutates_args={})


def kept_by(graphs):
    def compiler(module, inputs):
        graphs.append(module)
        return make_boxed_func(module.forward)

    return compiler


def targets(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_aot_autograd_traces_into_a_triton_op():
    graphs = []
    x = torch.arange(16.0)
    y = torch.compile(lambda x: double(x.relu()), backend=aot_autograd(fw_compiler=kept_by(graphs)))(x)
    assert torch.equal(y, 2 * x)
    assert "triton_kernel_wrapper_functional" in targets(graphs[0])
    assert not any("double" in name for name in targets(graphs[0]))


def test_inductor_launches_the_kernel_inside_a_triton_op_between_its_neighbours():
    x = torch.empty(16, device="meta")
    code = inductor_code(lambda x: run_double(x.relu()) + 1, x)
    body = code.wrapper.partition("def call(")[2].partition("return")[0]
    assert re.findall(r"(\w+)\.run\(", body) == ["triton_poi_fused_0", "double_kernel_0", "triton_poi_fused_1"]


def test_one_row_needs_a_third_graph():
    graphs = []
    compiled = torch.compile(lambda x: x.relu() * 2, backend=lambda module, _: graphs.append(module) or module)
    counts = []
    for rows in (8, 16, 24, 1):
        compiled(torch.randn(rows, 4))
        counts.append(len(graphs))
    assert counts == [1, 2, 2, 3]


@pytest.mark.parametrize(("shape", "matched"), [((16, 32, 64), False), ((1, 16, 32, 64), True)])
def test_inductors_attention_patterns_want_four_dimensions(shape, matched):
    graphs = []

    def passes(module, inputs):
        joint_graph_passes(module)
        return kept_by(graphs)(module, inputs)

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=passes, inference_compiler=passes, decompositions=select_decomp_table())
    with torch.no_grad():
        torch.compile(attention, backend=backend, dynamic=False)(*torch.randn(3, *shape))
    assert any("attention" in name for name in targets(graphs[0])) == matched


def norm(x, weight):
    return functional.silu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


def norm_and_more(x, weight):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return functional.silu(y), y


@pytest.mark.parametrize(
    ("function", "dtypes", "matches"),
    [
        (norm, (torch.float32, torch.float32), 1),
        (norm_and_more, (torch.float32, torch.float32), 0),  # a value inside is read elsewhere
        (norm, (torch.bfloat16, torch.bfloat16), 0),  # casts
        (norm, (torch.bfloat16, torch.float32), 1),  # and the result's dtype is wrong: extra_check is for this
    ],
)
def test_register_replacement_checks_readers_but_not_dtypes(function, dtypes, matches):
    found, (x, weight) = PatternMatcherPass(), (torch.randn(4, 8), torch.randn(8))
    register_replacement(norm, lambda x, weight: x + weight, [x, weight], fwd_only, found)
    given = [each.to(dtype) for each, dtype in zip((x, weight), dtypes, strict=True)]
    assert found.apply(make_fx(function, select_decomp_table(), tracing_mode="fake")(*given).graph) == matches


def test_the_gelu_that_is_timed_is_the_gelu_of_the_tree():
    assert 'approximate="tanh"' in (ROOT / "benchmarks/libraries.py").read_text()
    assert "GELU_taylor" in libraries.CUTLASS_SOURCE.read_text()
    cells = [cell for cell in code_cells(LESSON) if "def visit(" in cell]
    assert all('approximate="tanh"' in cell for cell in cells)


def test_cutlass_is_ahead_of_a_short_inner_size_and_level_elsewhere_as_the_lesson_says():
    for size, found in libraries.record()["cutlass"].items():
        times = {name: each["gpu"]["median"] for name, each in found.items()}
        chosen = min(libraries.CUTLASS_TILES, key=times.get)
        others = times["cuBLASLt epilogue"], times["ours"]
        if size.split(" x ")[1] == "1024":
            assert chosen.endswith("pingpong")
            assert times[chosen] < 0.9 * min(others)
        else:
            assert all(0.97 < times[chosen] / other < 1.03 for other in others)
        if size.startswith("128 "):
            assert times["128x256 cooperative"] > 2 * times["64x64 pingpong"]


def test_the_bytecodes_names_are_whole_but_for_a_graphs_digits():
    """They were cut after 40 characters, in the middle of a word."""
    digits = re.compile(re.search(r'^digits = re\.compile\("(.*)"\)', LESSON, re.MULTILINE)[1])
    known = {
        "NULL + __compiled_fn_1_fc94d936_fc98_463d_99c9_a46f076824d5": "NULL + __compiled_fn_1",
        "NULL + __import_torch_dot__dynamo_dot_utils": "NULL + __import_torch_dot__dynamo_dot_utils",
        "graph_out_0": "graph_out_0",
    }
    assert {name: digits.sub("", name) for name in known} == known
    assert "argrepr[" not in LESSON
