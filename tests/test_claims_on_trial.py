"""The code that tests the claims in lessons 05, 08, 13, 14 and 15: the same values, and the bytes it should move."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks import profiler_outputs
from benchmarks.experiments import lesson_05, lesson_14, lesson_15
from benchmarks.experiments import lesson_13_opt as opt
from helpers.instruments import measure
from helpers.instruments.cuda import toolkit
from helpers.instruments.cuda.kernel import cuda_kernel


@pytest.mark.parametrize("norm", lesson_05.NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_the_same_by_operator_as_one_call_and_by_ours(norm, dtype):
    x, *vectors = lesson_05.inputs(norm, 9, 777, dtype=dtype)
    given = (x + 3, *vectors)
    by_operator, by_pytorch, ours, _ = lesson_05.NORMS[norm]
    exact = by_pytorch(*(each.double() for each in given))
    tolerance = {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for function in (by_operator, by_pytorch, ours):
        torch.testing.assert_close(function(*given).double(), exact, **tolerance)


def test_a_layer_of_opt_is_the_same_in_each_way_and_fuses_to_seven_kernels():
    given = opt.layer_inputs(24, width=64, hidden=96, dtype=torch.float32)
    exact = opt.WAYS["libraries"](4, *(each.double() for each in given))
    for way in opt.WAYS.values():
        torch.testing.assert_close(way(4, *given).double(), exact, rtol=1e-4, atol=1e-5)
    launches = [name for name, _ in measure(opt.fused_layer, 4, *given).by_launch]
    assert sum(name.endswith("kernel") for name in launches) == 7
    assert len(launches) == 8  # and the copy that puts a token's heads side by side


def test_a_layer_has_the_weights_of_opt_13b():
    given = opt.layer_inputs(8, dtype=torch.bfloat16, device="meta")
    weights = sum(each.numel() for each in given[2:])
    embeddings = (50272 + 2050) * opt.WIDTH  # tokens and positions, of the model's configuration
    assert 12.8e9 < opt.LAYERS * weights + embeddings < 13.0e9


@pytest.mark.parametrize("columns", [4, 64, 100, 1000, 1024, 4096])
@pytest.mark.parametrize(("norm", "trips"), [(lesson_14.l2_to_learn, 3), (lesson_14.l2_to_race, 2)])
def test_both_l2_norms_are_right_and_free_of_races(norm, trips, columns):
    x = 3 * torch.randn(5, columns)
    x[1], x[2, 1], x[3] = 0, 1e18, 1e-15
    found = measure(norm, x)
    exact = functional.normalize(x.double(), eps=lesson_14.L2_EPS)
    error = (found.result.double() - exact).abs().max()
    reference = (functional.normalize(x, eps=lesson_14.L2_EPS).double() - exact).abs().max()
    assert error <= 2 * reference + 1e-7
    assert found.bytes_total == trips * x.nbytes
    assert not found.hazards


def test_an_l2_norm_keeps_a_nan_in_its_row():
    x = torch.randn(3, 64)
    x[1, 5] = torch.nan
    for norm in (lesson_14.l2_to_learn, lesson_14.l2_to_race):
        y = norm(x)
        assert y[1].isnan().all()
        assert not y[[0, 2]].isnan().any()


def test_a_tree_without_its_barrier_is_a_race():
    source = lesson_14.L2_TO_LEARN.replace(
        "sums[threadIdx.x + half];\n    __syncthreads();", "sums[threadIdx.x + half];"
    )
    assert source != lesson_14.L2_TO_LEARN
    x, y = torch.randn(2, 2, 512)
    assert measure(cuda_kernel(source, "l2_to_learn")[2, 256], x, y, 512, 1e-12).hazards


@pytest.mark.parametrize("source", ["REDUCE", "L2_TO_LEARN", "L2_TO_RACE", "L2_HOST"])
def test_the_l2_norms_that_were_timed_are_those_that_lesson_14_shows(source):
    lesson = Path(__file__).resolve().parents[1] / "source/lessons/14_cuda.py"
    assert getattr(lesson_14, source).strip() in lesson.read_text(encoding="utf-8")


def test_counters_are_read_kernel_by_kernel_after_each_marker():
    heads = '"ID","Kernel Name",' + ",".join(f'"{metric}"' for metric in lesson_15.METRICS)
    units = '"","",' + ",".join('""' for _ in lesson_15.METRICS)
    values = ",".join(f'"1,00{place}.5"' for place, _ in enumerate(lesson_15.METRICS))
    names = ("spin_kernel", "add", "gelu", "spin_kernel", "fused")
    text = "\n".join(["==PROF==", heads, units, *(f'"{n}","{name}",{values}' for n, name in enumerate(names))])
    found = lesson_15.parse(text)
    assert [len(each) for each in found] == [2, 1]
    assert found[0][0] == {name: 1000.5 + place for place, name in enumerate(lesson_15.METRICS.values())}


def test_a_trace_with_stacks_keeps_the_last_call_and_who_called_its_operators():
    events = profiler_outputs.trace()["traceEvents"]
    assert json.dumps(events)
    names = [each["name"].rpartition(": ")[2] for each in events if each["cat"] == "python_function"]
    assert names.count("steps") == 1
    assert names.count("clip") == names.count("update") == profiler_outputs.STEPS
    norms = [each for each in events if each["name"] == "aten::linalg_vector_norm"]
    calls = [each for each in events if each["name"].endswith(": clip")]
    for norm in norms:
        assert any(c["ts"] <= norm["ts"] and norm["ts"] + norm["dur"] <= c["ts"] + c["dur"] for c in calls)


def test_the_query_joins_each_kernel_to_its_launch():
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE StringIds (id, value)")
    base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (correlationId, start, "end")')
    base.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (correlationId, start, "end", shortName)')
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "add"), (2, "mul")])
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", [(7, 0, 3), (8, 20, 22), (9, 30, 31)])
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", [(8, 25, 29, 2), (7, 5, 10, 1)])
    assert base.execute(profiler_outputs.QUERY).fetchall() == [("add", 5, 10, 0), ("mul", 25, 29, 20)]


def test_nvcc_compiles_and_links_as_a_makefile_says(tmp_path):
    (tmp_path / "empty.cu").write_text("__global__ void none() {}\nint main() { none<<<1, 1>>>(); }")
    (tmp_path / "Makefile").write_text("empty: empty.cu\n\tnvcc -arch=sm_90 -Xptxas=-v empty.cu -o empty\n")
    printed = toolkit.in_toolkit("make", tmp_path)
    assert printed.splitlines()[0] == "nvcc -arch=sm_90 -Xptxas=-v empty.cu -o empty"
    assert "Compiling entry function '_Z4nonev' for 'sm_90'" in printed
    assert "Compile time" not in printed
    assert (tmp_path / "empty").stat().st_size


def test_without_nvcc_or_a_host_compiler_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"no g\+\+ here"):
        toolkit.in_toolkit("make", tmp_path)
    monkeypatch.setattr(toolkit.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(FileNotFoundError, match="no nvcc here: `pip install nvidia-cuda-nvcc"):
        toolkit.cuda_home()
