"""The sanitizer: each kind of mistake found at its line and element, and nothing found in correct kernels."""

import pytest
import torch
import triton
import triton.language as tl

import kernels
from helpers.instruments.traffic import measure
from helpers.instruments.traffic.hazards import outside
from helpers.instruments.traffic.ledger import Ledger
from helpers.instruments.traffic.triton_meter import TritonMeter
from kernels.interpreter import runtime


@triton.jit
def scale(x_ptr, y_ptr, n, stride, MISTAKE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at * stride, mask=mask | (MISTAKE == "unmasked load"))
    if MISTAKE == "off by one":
        tl.store(y_ptr + at + 1, x * 2, mask=mask)
    elif MISTAKE == "overlapping blocks":
        tl.store(y_ptr + at - tl.program_id(0) * 8, x * 2, mask=mask)
    elif MISTAKE == "adds to the output":
        tl.store(y_ptr + at, x * 2 + tl.load(y_ptr + at, mask=mask), mask=mask)
    else:
        tl.store(y_ptr + at, x * 2, mask=mask)


def run_scale(x, mistake="", stride=1):
    y = torch.empty(x.numel() + 256)[: x.numel()]  # room for the mistakes
    scale[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), stride, MISTAKE=mistake, BLOCK=64)
    return y


def roomy(n, stride=1):
    return torch.randn(4 * n + 256)[: n * stride : stride]


@pytest.mark.parametrize("n", [1, 64, 127, 1025])
def test_a_correct_kernel_is_clean(n):
    x = roomy(n)
    traffic = measure(run_scale, x)
    assert traffic.hazards == ()
    assert torch.equal(traffic.result, 2 * x)


@pytest.mark.parametrize(
    ("mistake", "stride", "kind", "where", "source", "program", "elements"),
    [
        # 127 elements, blocks of 64: lane 63 of the second instance reads element 127.
        (
            "unmasked load",
            1,
            "out-of-bounds read",
            "x, 1 past the last of",
            "x = tl.load(x_ptr + at * stride",
            1,
            1,
        ),
        (
            "off by one",
            1,
            "out-of-bounds store",
            "result, 1 past the last of",
            "tl.store(y_ptr + at + 1",
            1,
            1,
        ),
        # stride 2 on a contiguous x: the first instance reads elements 0..126; the second 128, 130, ... 252.
        (
            "",
            2,
            "out-of-bounds read",
            "x, 2 past the last of",
            "x = tl.load(x_ptr + at * stride",
            1,
            63,
        ),
        # The second instance starts 8 elements early, on the last 8 of the first.
        ("overlapping blocks", 1, "race", "result[56], stored by (0, 0, 0)", "tl.store(y_ptr + at - tl.prog", 1, 8),
        ("adds to the output", 1, "uninitialised read", "result[0]", "tl.load(y_ptr + at, mask=mask)", 0, 64),
    ],
)
def test_a_mistake_is_found(mistake, stride, kind, where, source, program, elements):
    traffic = measure(run_scale, roomy(127), mistake, stride)
    (hazard,) = traffic.hazards
    assert hazard.kind == kind
    assert hazard.where.startswith(where)
    assert source in hazard.source
    assert (hazard.file, hazard.kernel) == (__file__, "scale")
    assert (hazard.program, hazard.elements) == ((program, 0, 0), elements)
    assert str(hazard) in str(traffic)
    assert "\n" not in str(hazard)


def test_elements_between_those_of_a_strided_tensor_are_not_its_own():
    x = roomy(100, stride=2)
    assert measure(run_scale, x, "", 2).hazards == ()
    (hazard,) = measure(run_scale, x, "", 1).hazards
    assert hazard.where.startswith("x, 1 past the first of its 100 elements, in a gap")


@pytest.mark.parametrize(
    ("tensor", "place", "told"),
    [
        (torch.empty(8), -19, "19 before the first of its 8 elements"),
        (torch.empty(8), 8, "1 past the last of its 8 elements"),
        (torch.empty(4, 16)[:, ::2], 63, "1 past the last of its 32 elements"),
        (torch.empty(1), 1, "1 past its only element"),
        (torch.empty(1), -1, "1 before its only element"),
        (torch.empty(0), 0, "0 elements from its start, and it is empty"),
    ],
)
def test_where_memory_outside_a_tensor_is(tensor, place, told):
    assert outside(tensor, place) == told


def test_out_of_bounds_bytes_are_counted_apart():
    traffic = measure(run_scale, roomy(127), "unmasked load")
    assert traffic.bytes_read == 128 * 4
    assert (traffic.by_tensor["x"].read, traffic.by_tensor["outside"].read) == (127 * 4, 4)
    assert traffic.unique_read == 127 * 4


def test_the_observer_says_which_lanes_may_touch_memory():
    kept = []

    class Recorder(TritonMeter):
        def access(self, *access):
            kept.append(super().access(*access))
            return kept[-1]

    with runtime.observed(Recorder(Ledger())):
        run_scale(roomy(127), "unmasked load")
    assert [mask is None for mask in kept] == [True, True, False, True]  # load, store; load, store
    assert kept[2].tolist() == [True] * 63 + [False]


def test_an_output_that_was_filled_may_be_read():
    def filled(x):
        y = torch.zeros(x.numel())
        scale[(2,)](x, y, x.numel(), 1, MISTAKE="adds to the output", BLOCK=64)

    assert measure(filled, roomy(127)).hazards == ()


def test_initial_contents_of_the_callers_tensors_are_not_known():
    x, y = roomy(127), torch.empty(127)
    run = scale[(2,)]
    assert measure(lambda: run(x, y, 127, 1, MISTAKE="adds to the output", BLOCK=64)).hazards == ()


@triton.jit
def accumulate(total_ptr, lock_ptr, LOCK: tl.constexpr, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(total_ptr, 1.0)
    else:
        if LOCK:
            while tl.atomic_cas(lock_ptr, 0, 1) == 1:
                pass
        tl.store(total_ptr, tl.load(total_ptr) + 1.0)
        if LOCK:
            tl.atomic_xchg(lock_ptr, 0)


def test_atomics_and_locks_do_not_race():
    total, lock = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    assert measure(lambda: accumulate[(4,)](total, lock, LOCK=False, ATOMIC=True)).hazards == ()
    assert measure(lambda: accumulate[(4,)](total, lock, LOCK=True, ATOMIC=False)).hazards == ()
    found = measure(lambda: accumulate[(4,)](total, lock, LOCK=False, ATOMIC=False)).hazards
    assert [hazard.kind for hazard in found] == ["unsynchronised read", "race"]


@triton.jit
def guarded(total_ptr, lock_ptr, count_ptr, HOW: tl.constexpr):
    program = tl.program_id(0)
    if HOW == "counts":
        tl.atomic_add(count_ptr, 1)
    elif HOW == "one lock each":
        tl.atomic_cas(lock_ptr + program, 0, 1)
    elif HOW == "given back too early":
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.atomic_xchg(lock_ptr, 0)
    elif HOW == "tried once":
        tl.atomic_cas(lock_ptr, 0, 1)
    elif HOW == "exchanged":
        while tl.atomic_xchg(lock_ptr, 1) == 1:
            pass
    elif HOW == "in turn":
        while tl.atomic_cas(lock_ptr, program, program) != program:
            pass
    tl.store(total_ptr, tl.load(total_ptr) + 1.0)
    if HOW == "exchanged":
        tl.atomic_xchg(lock_ptr, 0)
    elif HOW == "in turn":
        tl.atomic_xchg(lock_ptr, program + 1)
    elif HOW == "counts":
        tl.atomic_add(count_ptr, 1)


@pytest.mark.parametrize(
    ("how", "races"),
    [
        ("counts", True),
        ("one lock each", True),
        ("given back too early", True),
        ("tried once", True),
        ("exchanged", False),
        ("in turn", False),
    ],
)
def test_an_atomic_hides_no_race_unless_it_is_a_lock(how, races):
    total, lock, count = torch.zeros(1), torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    found = measure(lambda: guarded[(4,)](total, lock, count, HOW=how)).hazards
    assert [hazard.kind for hazard in found if hazard.kind != "unsynchronised read"] == ["race"] * races


@triton.jit
def beside_atomics(x_ptr, total_ptr, count_ptr, out_ptr, HOW: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    if HOW == "set to zero by the first" and program == 0:
        tl.store(total_ptr, 0.0)
    if HOW == "a block of atomics":
        tl.atomic_add(total_ptr + lane, tl.load(x_ptr + program * BLOCK + lane))
        tl.store(out_ptr + program * BLOCK + lane, tl.load(total_ptr + lane))
    else:
        tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + program * BLOCK + lane), 0))
    if HOW == "loaded by the last":
        if program == tl.num_programs(0) - 1:
            tl.store(out_ptr, tl.load(total_ptr))
    elif HOW == "loaded by the last that counts":
        if tl.atomic_add(count_ptr, 1) == tl.num_programs(0) - 1:
            tl.store(out_ptr, tl.load(total_ptr))
            tl.store(count_ptr, 0)
    elif HOW == "a volatile load":
        tl.store(out_ptr + program, tl.load(total_ptr, volatile=True))
    elif HOW == "a plain check" and tl.load(total_ptr) > 1e9:
        tl.store(out_ptr, 1.0)


@pytest.mark.parametrize(
    ("how", "kinds", "where"),
    [
        ("set to zero by the first", ["race"], "total[0], stored by (0, 0, 0) too"),
        ("loaded by the last", ["unsynchronised read"], "total[0], changed atomically by (0, 0, 0)"),
        ("a block of atomics", ["unsynchronised store", "unsynchronised read"], "total[0], read by (0, 0, 0)"),
        ("a plain check", ["unsynchronised store", "unsynchronised read"], "total[0], read by (0, 0, 0)"),
        ("loaded by the last that counts", [], ""),
        ("a volatile load", [], ""),
        ("atomics alone", [], ""),
    ],
)
def test_plain_accesses_beside_atomics_of_other_programs(how, kinds, where):
    x, out = torch.ones(64), torch.zeros(64)
    total, count = torch.zeros(16), torch.zeros(1, dtype=torch.int32)
    found = measure(lambda: beside_atomics[(4,)](x, total, count, out, HOW=how, BLOCK=16)).hazards
    assert [hazard.kind for hazard in found] == kinds
    assert all(hazard.where == where for hazard in found[:1])


@triton.jit
def by_way_of_memory(x_ptr, scratch_ptr, y_ptr, HOW: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    if HOW == "reversed in place":
        tl.store(x_ptr + BLOCK - 1 - lane, tl.load(x_ptr + lane))
    elif HOW == "doubled in place":
        tl.store(x_ptr + lane, tl.load(x_ptr + lane) * 2)
    elif HOW == "a sum before":
        total = tl.sum(tl.load(x_ptr + lane), 0)
        tl.store(x_ptr + BLOCK - 1 - lane, total + lane)
    elif HOW == "stores that overlap":
        tl.store(x_ptr + lane, 1.0)
        tl.store(x_ptr + lane // 2 * 2, 2.0)
    elif HOW == "one number, added to":
        tl.store(scratch_ptr, tl.load(scratch_ptr) + 1.0)
    elif HOW == "other tiles":
        for at in range(0, BLOCK, 32):
            tl.store(scratch_ptr + at + tl.arange(0, 32), tl.load(x_ptr + at + tl.arange(0, 32)))
        tl.store(y_ptr + lane, tl.load(scratch_ptr + lane))
    else:
        tl.store(scratch_ptr + lane, tl.load(x_ptr + lane), mask=lane < BLOCK // 2)
        if HOW == "a barrier":
            tl.debug_barrier()
        same = (HOW == "the same lanes") or (HOW == "another half")
        at = (lane if same else BLOCK - 1 - lane) + BLOCK // 2 * (HOW == "another half")
        tl.store(y_ptr + lane, tl.load(scratch_ptr + at))


@pytest.mark.parametrize(
    ("how", "kinds", "where"),
    [
        ("mirrored", ["unsynchronised read"], "scratch[63], stored"),
        ("other tiles", ["unsynchronised read"], "scratch[0], stored"),
        ("reversed in place", ["unsynchronised store"], "x[127], read"),
        ("stores that overlap", ["race"], "x[0], stored"),
        ("a barrier", [], ""),
        ("the same lanes", [], ""),
        ("another half", [], ""),
        ("doubled in place", [], ""),
        ("a sum before", [], ""),
        ("one number, added to", [], ""),
    ],
)
def test_lanes_of_one_program_that_pass_values_by_memory_need_a_barrier(how, kinds, where):
    """The compiler puts no barrier between them: in the PTX, a load of global memory follows the store."""
    x, scratch, y = torch.ones(128), torch.zeros(256), torch.zeros(128)
    found = measure(lambda: by_way_of_memory[(1,)](x, scratch, y, HOW=how, BLOCK=128)).hazards
    assert [hazard.kind for hazard in found] == kinds
    said = " by another lane of the same program, with no tl.debug_barrier between"
    assert all(hazard.where == where + said for hazard in found)


@triton.jit
def two_halves(x_ptr, y_ptr, z_ptr, count_ptr, programs, HOW: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    if program < programs:
        at = program * BLOCK + lane
        tl.store(y_ptr + at, tl.load(x_ptr + at) + 1.0)
        if HOW == "counted":
            tl.atomic_add(count_ptr, 1)
    else:
        at = (program - programs) * BLOCK + lane
        if HOW == "counted":
            tl.atomic_add(count_ptr, 0)
        tl.store(z_ptr + at, 2.0 * tl.load(y_ptr + at))


@pytest.mark.parametrize(("how", "kinds"), [("in turn", ["unsynchronised read"]), ("counted", [])])
def test_a_program_that_reads_what_another_stored_is_found(how, kinds):
    x, y, z, count = torch.randn(64), torch.empty(64), torch.empty(64), torch.zeros(1, dtype=torch.int32)
    found = measure(lambda: two_halves[(8,)](x, y, z, count, 4, HOW=how, BLOCK=16)).hazards
    assert [hazard.kind for hazard in found] == kinds
    assert all(hazard.where == "y[0], stored by (0, 0, 0)" for hazard in found)
    assert torch.equal(z, 2 * (x + 1))  # in this order it comes out right: values would not tell


@triton.jit
def flag_kernel(x_ptr, flag_ptr, y_ptr, RAISES: tl.constexpr, SEES: tl.constexpr):
    """The first program stores a number and raises a flag; the second reads the number once it sees the flag."""
    if tl.program_id(0) == 0:
        tl.store(x_ptr, 1.0)
        tl.atomic_xchg(flag_ptr, 1, sem=RAISES)
    elif tl.atomic_add(flag_ptr, 0, sem=SEES) == 1:
        tl.store(y_ptr, tl.load(x_ptr))


@triton.jit
def swapped_flag_kernel(x_ptr, flag_ptr, y_ptr, RAISES: tl.constexpr, SEES: tl.constexpr):
    """The same by compare-and-swap, the order passed by position and by way of a variable."""
    raises: tl.constexpr = RAISES
    if tl.program_id(0) == 0:
        tl.store(x_ptr, 1.0)
        tl.atomic_cas(flag_ptr, 0, 1, raises)
    elif tl.atomic_cas(flag_ptr, 1, 1, sem=SEES) == 1:
        tl.store(y_ptr, tl.load(x_ptr))


@pytest.mark.parametrize("kernel", [flag_kernel, swapped_flag_kernel])
@pytest.mark.parametrize(
    ("raises", "sees", "kinds"),
    [
        ("relaxed", "relaxed", ["unsynchronised read"]),
        ("relaxed", "acquire", ["unsynchronised read"]),
        ("release", "relaxed", ["unsynchronised read"]),
        ("release", "acquire", []),
        ("acq_rel", "acq_rel", []),
    ],
)
def test_a_relaxed_atomic_orders_no_other_access(kernel, raises, sees, kinds):
    x, flag, y = torch.zeros(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    found = measure(lambda: kernel[(2,)](x, flag, y, RAISES=raises, SEES=sees))
    assert [hazard.kind for hazard in found.hazards] == kinds
    assert y.item() == 1  # in this order it comes out right: values would not tell


def test_instances_of_two_launches_do_not_race():
    x = roomy(127)

    def twice():
        y = run_scale(x)
        scale[(2,)](x, y, 127, 1, MISTAKE="", BLOCK=64)

    assert measure(twice).hazards == ()


@triton.jit
def shift(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.debug_barrier()  # orders the lanes of this program only
    tl.store(y_ptr + at, x)


@pytest.mark.parametrize(
    ("source", "target", "kind", "where"),
    [
        (0, 1, "unsynchronised read", "stored by"),
        (1, 0, "unsynchronised store", "read by"),  # in this order it comes out right; in the other it would not
        (0, 0, None, None),
        (0, 64, None, None),
    ],
)
def test_neighbours_that_read_and_overwrite_one_tensor_race_in_either_direction(source, target, kind, where):
    x = torch.zeros(128)
    found = measure(lambda: shift[(2,)](x[source:], x[target:], BLOCK=32)).hazards
    assert [each.kind for each in found] == [kind] * (kind is not None)
    assert all(each.where == f"x[32], {where} (0, 0, 0)" for each in found)


@triton.jit
def tile(x_ptr, y_ptr, rows, cols, row_stride, M: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    col = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    inside = (row < rows) & (col < cols)
    tl.store(y_ptr + row * row_stride + col, tl.load(x_ptr + row * cols + col, mask=inside), mask=inside)


def test_interleaved_tiles_do_not_race_and_a_wrong_stride_does():
    x = torch.randn(20, 40)

    def copy(row_stride):
        y = torch.empty(20, 40)
        tile[(3, 3)](x, y, 20, 40, row_stride, M=8, N=16)
        return y

    assert measure(copy, 40).hazards == ()
    (hazard,) = measure(copy, 39).hazards  # rows overlap by one
    assert (hazard.kind, hazard.where) == ("race", "result[0, 39], stored by (0, 0, 0) too")


@pytest.mark.parametrize("name", kernels.CATALOGUE)
def test_the_catalogue_is_clean(name):
    op = kernels.CATALOGUE[name]
    for shape in op.interpreter_shapes:
        assert measure(op.fused, *op.inputs(*shape, dtype=op.dtypes[0])).hazards == ()


@triton.jit
def store_lanes(x_ptr, y_ptr, WIDTH: tl.constexpr, SAME: tl.constexpr, MASKED: tl.constexpr):
    lane = tl.arange(0, 64)
    value = tl.load(x_ptr + (lane // WIDTH if SAME else lane))
    tl.store(y_ptr + lane // WIDTH, value, mask=(lane % WIDTH == 0) | (not MASKED))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("same", "masked", "races"), [(False, False, 1), (True, False, 0), (False, True, 0)])
def test_lanes_of_one_store_that_write_different_values_to_one_element_race(dtype, same, masked, races):
    def run(x):
        y = torch.zeros(32, dtype=dtype)
        store_lanes[(1,)](x, y, WIDTH=2, SAME=same, MASKED=masked)
        return y

    hazards = measure(run, torch.arange(64).to(dtype)).hazards
    assert len(hazards) == races
    for hazard in hazards:
        assert (hazard.kind, hazard.elements, hazard.where.split(",")[0]) == ("race", 32, "result[0]")
        assert "tl.store(y_ptr + lane // WIDTH" in hazard.source
