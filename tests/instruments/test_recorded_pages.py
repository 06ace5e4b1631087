"""Each counter of the recorded H200 pages against the instrument that answers it: meter, compiler, occupancy, trace."""

import json

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments import compare_counters, compile_for, measure, read_ncu, read_trace, recorded_page
from helpers.instruments.recordings import RESULTS
from kernels import CATALOGUE
from kernels.variants import kernel_at

LAUNCHED = read_ncu(recorded_page("ncu.csv"))
PAGES = {}
for each in LAUNCHED:
    PAGES.setdefault(each.name, each)
# The record has pages of layer_norm_act, softmax and flash_attention, too, of kernels that have changed since.
CASES = {  # name -> shape, dtype, a shape with so many fewer programs, how many
    "add_gelu": ((2**25,), torch.float32, (2**14,), 2**11),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_compiler_and_the_calculator_said_was_counted(name):
    shape, dtype, *_ = CASES[name]
    op = CATALOGUE[name]
    kernel, arguments, options = kernel_at(op, *shape, dtype=dtype)
    resources = compile_for(kernel, *arguments, device="H200", **options)
    for pair in compare_counters(PAGES[kernel.fn.__name__], resources):
        assert pair.ratio == 1, str(pair)


def test_a_matmuls_page_is_that_of_its_recorded_settings():
    """It stored its tile in halves, by the copy engine; today's stores quarters through addresses."""
    op, shape = CATALOGUE["linear_act"], (4096, 4096, 4096)
    kernel, arguments, options = kernel_at(op, *shape, dtype=torch.bfloat16)
    result = TensorDescriptor.from_tensor(arguments[4], [128, 128])
    arguments, options = (*arguments[:4], result, *arguments[5:]), options | {"DESCRIBED": True, "PARTS": 2}
    resources = compile_for(kernel, *arguments, device="H200", **options)
    for pair in compare_counters(PAGES[kernel.fn.__name__], resources):
        if pair.counter != "Registers Per Thread":  # Triton 3.6 gave others than the course's 3.7
            assert pair.ratio == 1, str(pair)


@pytest.mark.parametrize("name", ["add_gelu"])
def test_what_the_meter_said_was_counted(name):
    shape, dtype, small, times = CASES[name]
    op = CATALOGUE[name]
    page = PAGES[kernel_at(op, *shape, dtype=dtype)[0].fn.__name__]
    traffic = measure(op.fused, *op.inputs(*small, dtype=dtype))
    loads, stores, read, written = compare_counters(page, None, traffic, times, op.work(shape, dtype))
    assert (loads.ratio, stores.ratio) == (1, 1)
    assert read.ratio == pytest.approx(1, abs=0.002)
    kept = written.said - written.counted  # in L2 when the kernel ends
    assert 0 < kept < 60 * 2**20


def test_the_copy_engine_passes_by_the_counter_of_loads():
    for name in ("linear_act_descriptors_kernel", "flash_attention_kernel"):
        page = PAGES[name]
        assert page.counter("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") < 0.01 * page.counter(
            "lts__t_sectors_op_read.sum"
        )


def test_memory_delivers_two_sectors_from_64_bytes_on():
    strided = [page for page in LAUNCHED if page.name == "strided_sum_kernel"]
    numbers = [page.counter("dram__bytes_read.sum") / 2**22 for page in strided]
    assert numbers == pytest.approx([4, 32, 64, 64], rel=0.001)


def test_a_fused_add_and_gelu_takes_as_long_as_the_add():
    add, gelu, fused = LAUNCHED[:3]
    assert fused.counter("Duration") == pytest.approx(add.counter("Duration"), rel=0.02)
    assert gelu.counter("Duration") > 0.5 * fused.counter("Duration")


@pytest.mark.parametrize("file", sorted((RESULTS / "h200_profiles").glob("*.trace.json")), ids=lambda path: path.name)
def test_every_trace_opens_and_holds_the_kernels_that_were_timed(file):
    timeline = read_trace(file)
    way = {"eager": "eager", "torch": "torch.compile", "fused": "fused", "libraries": "libraries"}
    name = way[file.name.split("_")[1].split(".")[0]]
    times = json.loads(recorded_page("block.json").read_text())["times"]["512"]["forward"][name]["kernels"]
    assert len(timeline.kernels) == len(times)
    assert 0 < timeline.busy <= 1


def test_the_fused_block_launches_what_the_meter_counts():
    from kernels.transformer_block import transformer_block, transformer_block_inputs

    sizes = {"width": 64, "heads": 4, "key_heads": 2, "hidden": 96}
    for tokens in (1, 16):
        tensors = transformer_block_inputs(tokens, **sizes, dtype=torch.bfloat16)
        times = json.loads(recorded_page("block.json").read_text())["times"]
        counted = len(times["1" if tokens == 1 else "512"]["forward"]["fused"]["kernels"])
        assert measure(transformer_block, *tensors, 4, 2).launches == counted


def test_an_unknown_page_is_named():
    with pytest.raises(ValueError, match=r"no page 'x' is recorded for h200: choose from .*ncu\.csv"):
        recorded_page("x")
