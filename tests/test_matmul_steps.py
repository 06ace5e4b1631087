"""The kernels that lesson 08 develops: values against double precision, bytes by the meter; they match the lesson."""

import ast
from pathlib import Path

import pytest
import torch

from benchmarks.experiments import lesson_08
from benchmarks.experiments.lesson_08 import FEW_ROWS, STEPS, linear_layer_norm, run, split
from helpers.instruments import measure
from kernels.activations import ACTIVATIONS

LESSON = Path(__file__).resolve().parents[1] / "source/lessons/08_matmul_epilogues.py"
SMALL = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP": 2}
KERNELS = {name: kernel for name, (kernel, _) in STEPS.items()}


def settings_of(kernel) -> dict:
    return {name: size for name, size in SMALL.items() if name in kernel.arg_names}


def exact(x, w, bias, act):
    return ACTIVATIONS[act](torch.nn.functional.linear(*(each.double() for each in (x, w, bias))))


@pytest.mark.parametrize("act", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_step_computes_the_layer_where_no_tile_fits(name, act):
    torch.manual_seed(len(name))
    # Rows that are no multiple of 16 bytes are for pointers alone.
    k, n = (40, 24) if "desc" in KERNELS[name].arg_names[0] else (37, 19)
    x, w, bias = lesson_08.operands((5 if name == "one output per program" else 50, k, n), device="cpu")
    found = measure(lambda: run(KERNELS[name], x, w, bias, act, **settings_of(KERNELS[name])))
    torch.testing.assert_close(found.result.double(), exact(x, w, bias, act), rtol=0.005, atol=0.002)
    assert found.launches == 1
    assert not found.hazards


@pytest.mark.parametrize("name", KERNELS)
def test_a_tile_loads_its_rows_and_columns_once_for_each_k(name):
    x, w, bias = lesson_08.operands((64, 32, 64), device="cpu")
    if name == "one output per program":
        x, w, bias = x[:4], w[:4], bias[:4]
    settings = settings_of(KERNELS[name])
    found = measure(lambda: run(KERNELS[name], x, w, bias, **settings)).by_tensor
    rows, columns = settings.get("BLOCK_M", 1), settings.get("BLOCK_N", 1)
    assert found["x"].read == x.nbytes * len(w) // columns
    assert found["w"].read == w.nbytes * len(x) // rows


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_parts_are_added_before_the_epilogue(parts):
    x, w, bias = lesson_08.operands((20, 300, 40), device="cpu")
    found = measure(lambda: split(x, w, bias, parts, **FEW_ROWS | {"BLOCK_K": 32}))
    torch.testing.assert_close(found.result.double(), exact(x, w, bias, "gelu"), rtol=0.005, atol=0.002)
    assert found.launches == 2
    assert not found.hazards
    assert found.bytes_written == parts * 20 * 40 * 4 + 20 * 40 * 2


def test_whole_rows_are_normalised_in_one_launch():
    x, w, beta = lesson_08.operands((32, 64, 128), device="cpu")
    gamma = torch.rand(128).bfloat16()
    found = measure(lambda: linear_layer_norm(x, w, gamma, beta, BLOCK_M=16, BLOCK_K=32, num_warps=4))
    wide = x.double() @ w.double().T
    wanted = torch.nn.functional.layer_norm(wide, (128,), gamma.double(), beta.double())
    torch.testing.assert_close(found.result.double(), wanted, rtol=0.005, atol=0.01)
    assert found.launches == 1


def test_nothing_wrong_is_timed():
    right = torch.randn(8, 8)
    assert lesson_08.checked({"it": lambda: right.bfloat16()}, right)
    with pytest.raises(ValueError, match="early is wrong by 1"):
        lesson_08.checked({"early": lambda: right * 2}, right)


def functions(path: Path) -> dict[str, str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_what_was_timed_is_what_the_lesson_shows():
    timed, shown = functions(Path(lesson_08.__file__)), functions(LESSON)
    same = {name for name in timed.keys() & shown.keys() if timed[name] == shown[name]}
    assert same >= {kernel.fn.__name__ for kernel in KERNELS.values()} | {"load_tile", "finish", "one_tile"}
