"""The instruments against what an H100 and its tools said: benchmarks/results/h100_80gb_hbm3_validation.json.

It has the H200's multiprocessors, 132 of the same kind, and less and slower memory, which nothing here depends on.

Each comparison is a function of its own, so that a test can also hand it a wrong answer.
"""

import copy

import pytest
import torch
import triton

from benchmarks import validate
from benchmarks.calls import backward_pass
from benchmarks.example_kernels import EXAMPLES
from benchmarks.hardware_counters import METRICS, parse
from benchmarks.validation import COVERED, recorded_validation
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch, dry_run
from helpers.instruments.occupancy_calculator import occupancy
from helpers.instruments.resources import compile_for
from kernels import variant
from kernels.interpreter import runtime

RECORD = recorded_validation("h100_80gb_hbm3")
DRAM, SECTORS = 0.05, 0.02  # of what the meter counts

# What the hardware counts otherwise than the meter, and why. (operation, version) -> DRAM bytes and sectors read, as
# shares of what the meter counts, and the reason.
OTHERWISE = {
    ("softmax_dropout", "fused"): (0.99, 1.03, "each of 8 warps loads the seed; the meter has it once an instance"),
    ("softmax_topk", "fused"): (1.0, 1.05, "where the candidates lie depends on the data, here zeros"),
    ("cross_entropy", "eager"): (
        1.92,
        None,
        "PyTorch's log-softmax reads a row of 128 KB again for the results; on an H200, whose L2 misses fewer, 1.45",
    ),
    ("layer_norm", "eager"): (1.10, None, "a tenth of PyTorch's second reads of a row miss L2; on an H200 none do"),
    ("rms_norm", "eager"): (1.11, None, "a tenth of PyTorch's second reads of a row miss L2; on an H200 none do"),
    ("sample", "eager"): (3.46, None, "PyTorch's sort is a radix sort that moves keys and indices several times"),
    ("softmax_topk", "eager"): (
        1.71,
        None,
        "PyTorch's top-k is a radix select that reads the probabilities three times",
    ),
}
# Kernels that PyTorch launches on a GPU beyond the meter's one an operator, and why.
MORE_LAUNCHES = {
    ("cross_entropy", "eager"): (1, "nll_loss clears its result first"),
    ("sample", "eager"): (25, "the radix sort goes digit by digit, and its copies are launches of their own"),
    ("softmax_topk", "eager"): (15, "the radix select of top-k goes digit by digit, with scans and a sort between"),
}


def rehearsed(name, version, shape, dtype):
    op = COVERED[name]
    function = op.fused if version == "fused" else op.reference
    inputs = op.inputs(*shape, dtype=getattr(torch, dtype), device="meta")
    with torch.no_grad():
        return dry_run(function, *inputs, multiprocessors=132)


def recorded(rows, left_out=()):
    """A case each; those of `left_out` are left to `make test-all`."""
    for row in rows:
        if row["kernel"] in COVERED:
            marks = [pytest.mark.long] if (row["kernel"], row["version"]) in left_out else []
            yield pytest.param(row, marks=marks, id=f"{row['kernel']}-{row['version']}")


def test_every_kernel_of_the_catalogue_is_recorded():
    for section in (RECORD.counters, RECORD.launches, RECORD.times):
        missing = COVERED.keys() - {row["kernel"] for row in section}
        if missing:
            pytest.skip(f"run python benchmarks/validate.py on a GPU for {', '.join(sorted(missing))}")
    assert COVERED.keys() <= {row["operation"] for row in RECORD.compiled}
    assert len(EXAMPLES) >= 6


# Occupancy


def as_the_driver_counts(row):
    loaded = row["loaded"]
    ours = occupancy(
        (9, 0),
        threads=loaded["threads"],
        registers=loaded["registers"],
        shared_memory=loaded["static_shared_memory"],
        dynamic_shared_memory=loaded["dynamic_shared_memory"],
    )
    return ours.blocks == loaded["blocks"]


def test_occupancy_is_the_drivers():
    assert [row for row in RECORD.compiled if not as_the_driver_counts(row)] == []


def test_one_block_more_is_not_the_drivers():
    wrong = copy.deepcopy(RECORD.compiled)
    for row in wrong:
        row["loaded"]["blocks"] += 1
    assert not any(map(as_the_driver_counts, wrong))


# Resources: what is compiled here beside what was loaded there


def compiled_here(operation, shape, dtype, which):
    """(kernel's name, Resources) of each launch of a variant of an operation, backward pass included."""
    op = COVERED[operation]

    def run(*inputs):
        with torch.no_grad():
            op.fused(*inputs)
        if op.backward_work is not None:
            backward_pass(op.fused, inputs)()

    inputs = op.inputs(*shape, dtype=getattr(torch, dtype), device="meta")
    with variant(which):
        launches = [each for each in dry_run(run, *inputs, multiprocessors=132) if isinstance(each, TritonLaunch)]
    return [(each.name, compile_for(each.kernel, device="H100", **each.given)) for each in launches]


def compiled_there():
    """(operation, shape, dtype, variant), each once; of every second operation the first is compiled in `make test`."""
    of_operation = {}
    for row in RECORD.compiled:
        if row["operation"] in COVERED:
            case = row["operation"], tuple(row["shape"]), row["dtype"], row.get("variant", "tuned")
            of_operation.setdefault(row["operation"], {})[case] = None
    for place, cases in enumerate(map(list, of_operation.values())):
        for case in cases:
            marks = [] if place % 2 == 0 and case == cases[0] else [pytest.mark.long]
            yield pytest.param(*case, marks=marks, id="-".join([case[0], "x".join(map(str, case[1])), *case[2:]]))


def differences(there, here):
    """Figure -> what was loaded there and what is compiled here, where they differ."""
    ours = {
        "registers": here.registers,
        "local_memory": here.stack,
        "static_shared_memory": here.static_shared_memory,
        "dynamic_shared_memory": here.dynamic_shared_memory,
        "threads": here.num_warps * 32,
    }
    loaded = there["loaded"]
    if loaded["registers"] == here.registers:
        ours["blocks"] = here.occupancy().blocks
    return {name: (loaded[name], figure) for name, figure in ours.items() if loaded[name] != figure}


# What Triton 3.6 gave there and 3.7.1 gives here, beyond a few registers; both from one source, compiled by either.
ANOTHER_TRITON = {
    ("layer_norm_columns_backward_kernel", "registers", 186, 144),
    ("layer_norm_row_terms_kernel", "registers", 77, 64),
    ("layer_norm_row_terms_kernel", "registers", 165, 203),
    ("sample_kernel", "registers", 58, 49),
    ("softmax_dropout_kernel", "registers", 54, 32),
    ("softmax_topk_groups_kernel", "dynamic_shared_memory", 256, 512),
    ("softmax_topk_kernel", "local_memory", 8, 0),
    ("softmax_topk_kernel", "registers", 63, 48),
}


def allowed(differing, kernel=""):
    """Another Triton allocates a few registers more or less. No other figure may differ, but for those named above."""
    return all(
        (name == "registers" and abs(there - here) <= 8) or (kernel, name, there, here) in ANOTHER_TRITON
        for name, (there, here) in differing.items()
    )


@pytest.mark.parametrize(("operation", "shape", "dtype", "which"), list(compiled_there()))
def test_catalogue_compiles_here_to_what_was_loaded_there(operation, shape, dtype, which):
    here = compiled_here(operation, shape, dtype, which)
    wanted = {"operation": operation, "shape": list(shape), "dtype": dtype}
    rows = [row for row in RECORD.compiled if wanted.items() <= row.items()]
    there = [row for row in rows if row.get("variant", "tuned") == which]
    unrecorded = COVERED[operation].backward_work is not None and len(there) == 1
    assert [row["kernel"] for row in there] == [name for name, _ in (here[:1] if unrecorded else here)]
    for row, (name, resources) in zip(there, here, strict=not unrecorded):
        differing = differences(row, resources)
        print(f"{name}: Triton {RECORD.versions['triton']} there, {triton.__version__} here: {differing or 'the same'}")
        assert allowed(differing, name)
    if unrecorded:
        pytest.skip(f"run python benchmarks/validate.py compiled on a GPU for {operation} backward")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_compile_here_to_what_was_loaded_there(name):
    kernel, args, options = EXAMPLES[name]
    (row,) = (row for row in RECORD.compiled if row["operation"] == name)
    assert differences(row, compile_for(kernel, *args, device="H100", **options)) == {}


@pytest.mark.parametrize("name", ["local_memory", "static_shared_memory", "dynamic_shared_memory", "threads", "blocks"])
def test_one_more_than_was_loaded_is_a_difference(name):
    kernel, args, options = EXAMPLES["spilling"]
    (row,) = (row for row in RECORD.compiled if row["operation"] == "spilling")
    here = compile_for(kernel, *args, device="H100", **options)
    assert here.spill_bytes
    assert differences(row | {"loaded": row["loaded"] | {name: row["loaded"][name] + 1}}, here).keys() == {name}


def test_another_kernel_is_another():
    kernel, args, options = EXAMPLES["tensor cores"]
    (row,) = (row for row in RECORD.compiled if row["operation"] == "spilling")
    assert not allowed(differences(row, compile_for(kernel, *args, device="H100", **options)))


# Traffic


def dram_error(row, launches):
    counted = sum(each.read + each.written for launch in launches for each in launch.operands.values())
    return sum(kernel["dram_read"] + kernel["dram_written"] for kernel in row["kernels"]) / counted - 1


def sector_errors(row, launches):
    for way in ("read", "written"):
        there = sum(kernel[f"sectors_{way}"] for kernel in row["kernels"])
        here = sum(getattr(launch, f"sectors_{way}") for launch in launches)
        yield there / here - 1


# A program of layer_norm_int8 goes through 496 rows, of the others through few.
@pytest.mark.parametrize("row", recorded(RECORD.counters, left_out={("layer_norm_int8", "fused")}))
def test_traffic_is_what_nsight_compute_counts(row):
    launches = rehearsed(row["kernel"], row["version"], row["shape"], row["dtype"])
    dram, sectors, _ = OTHERWISE.get((row["kernel"], row["version"]), (1, 1, ""))
    assert dram_error(row, launches) + 1 == pytest.approx(dram, abs=DRAM)
    if row["version"] == "fused":
        read, written = sector_errors(row, launches)
        assert read + 1 == pytest.approx(sectors, abs=SECTORS)
        assert abs(written) <= SECTORS


def test_traffic_counted_otherwise_is_not():
    row = next(row for row in RECORD.counters if (row["kernel"], row["version"]) == ("add_gelu", "fused"))
    launches = rehearsed("add_gelu", "eager", row["shape"], row["dtype"])
    assert abs(dram_error(row, launches)) > DRAM
    launches = rehearsed("add_gelu", "fused", [row["shape"][0] * 15 // 16], row["dtype"])
    assert abs(dram_error(row, launches)) > DRAM
    assert any(abs(each) > SECTORS for each in sector_errors(row, launches))


@pytest.mark.parametrize("row", recorded(RECORD.launches))
def test_launches_are_those_that_torch_profiler_counts(row):
    launches = rehearsed(row["kernel"], row["version"], row["shape"], "bfloat16")
    more, _ = MORE_LAUNCHES.get((row["kernel"], row["version"]), (0, ""))
    assert len(row["kernels"]) == len(launches) + more, row["kernels"]
    if row["version"] == "fused":
        assert all(isinstance(launch, TritonLaunch) for launch in launches)
    else:
        assert all(isinstance(launch, EagerLaunch) for launch in launches)


# The profiler's table


TABLE = f"""==PROF== Connected to process 1
"ID","Kernel Name",{",".join(f'"{metric}"' for metric in METRICS)}
"","","byte","byte","sector","sector"
"0","spin_kernel(long)","32","0","1","0"
"1","add","1,024","512.000000","32","16"
"2","spin_kernel(long)","32","0","1","0"
"""


def test_parse_cuts_at_the_markers():
    first, second = parse(TABLE)
    assert first == [{"name": "add", "dram_read": 1024, "dram_written": 512, "sectors_read": 32, "sectors_written": 16}]
    assert second == []


def test_recording_needs_a_gpu_and_a_section_that_exists():
    with pytest.raises(ValueError, match="no section named traffic: choose from compiled, counters"):
        validate.main(["traffic"])
    if not runtime.has_gpu():
        with pytest.raises(RuntimeError, match="validation needs an NVIDIA GPU"):
            validate.main(["times"])
