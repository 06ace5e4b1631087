"""Predicted times against an H200's, and the parts of the model against cases worked by hand."""

import dataclasses
import functools
import re

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from benchmarks import held_out
from benchmarks.calls import fingerprints_of
from benchmarks.predictions import (
    EXPLAINED,
    FAR,
    as_timed,
    held_out_rows,
    recorded_rows,
    rows,
    summary,
    sweep_entries,
    sweep_rows,
    table,
    tiled_rows,
)
from benchmarks.validation import COVERED, recorded_validation
from helpers.instruments import prediction
from helpers.instruments.devices import DEVICES
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch, dry_run
from helpers.instruments.prediction import predict
from helpers.instruments.recordings import recorded
from helpers.instruments.sass import Instruction
from helpers.instruments.sweep_records import recorded_sweep
from helpers.instruments.traffic import measure
from kernels import CATALOGUE, variant

H200 = DEVICES["H200"]
SMALL = 1e11  # FLOPs, of the recorded tiled rows that are rehearsed in seconds


@triton.jit
def scale_kernel(x_ptr, w_ptr, y_ptr, elements, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """Each instance multiplies BLOCK elements, LANES at a time, by the same row of weights."""
    for start in range(0, BLOCK, LANES):
        lane = start + tl.arange(0, LANES)
        i = tl.program_id(0).to(tl.int64) * BLOCK + lane
        tl.store(y_ptr + i, tl.load(x_ptr + i, i < elements) * tl.load(w_ptr + lane), i < elements)


def scale(x, w, block=4096, lanes=1024):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), block),)](x, w, y, x.numel(), BLOCK=block, LANES=lanes)
    return y


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """STEPS products of tiles, an exponential of each element after each."""
    i = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    acc = tl.zeros((SIZE, SIZE), tl.float32)
    for step in range(STEPS):
        at = i + step * SIZE * SIZE
        acc = tl.exp(tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), acc))
    tl.store(c_ptr + i, acc)


def without_tiles():
    return {"fitted": rows(), "held out": held_out_rows("")}


# Against the recorded times


@functools.cache
def sampled_rows():
    """Of every second operation."""
    return recorded_rows(sorted(COVERED)[::2])


SAMPLE_AND_ALL = [sampled_rows, pytest.param(rows, marks=pytest.mark.long)]


@pytest.mark.parametrize("predicted", SAMPLE_AND_ALL)
def test_errors_where_it_was_fitted_are_within_the_targets(predicted):
    median, most = summary([row.error for row in predicted()])
    assert median <= 0.15
    assert most <= 0.30


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_both_tiers_are_predicted_within_a_fifth_in_the_half_of_the_sweep_that_nothing_was_fitted_to():
    found = sweep_rows(fitted=False)
    assert {row.version for row in found} == {"plain", "fused"}
    median, most = summary([row.error for row in found])
    assert median <= 0.06
    assert most <= 0.20


def test_a_sample_of_that_half_is_predicted_within_a_fifth():
    assert len(sweep_entries(fitted=False)) + len(sweep_entries(fitted=True)) > 1000
    median, most = summary([row.error for row in sweep_rows(fitted=False, every=48)])
    assert median <= 0.08
    assert most <= 0.20


@pytest.mark.long
def test_errors_at_shapes_drawn_by_lot_are_no_worse_than_the_module_says():
    same = [row.error for row in as_timed(held_out_rows(""))]
    if not same:
        pytest.skip("the machine code that was timed is known for another Triton")
    assert len(same) >= 60, "many kernels have changed since: time them again, by benchmarks/held_out.py"
    median, most = summary(same)
    assert median <= 0.08
    assert most <= 0.20
    assert max(map(abs, same)) <= 0.35
    eager = [row for row in held_out_rows("") if row.version == "eager"]
    assert summary([row.error for row in eager])[1] <= 0.55
    assert all(0.5 <= row.measured / row.prediction.time <= 4 for row in eager if row.prediction.unsure)
    assert summary([row.error for row in eager if not row.prediction.unsure])[0] <= 0.15
    printed = table(without_tiles())
    assert f"held out: {3 * len(held_out.shapes())} times, error: median " in printed
    assert f"fitted: {len(rows())} times" in printed


DECODER = "decoder_layer"


@pytest.mark.parametrize("size", [0, 2, 5])
def test_a_persistent_kernel_is_predicted_at_real_sizes(size):
    """Its programs wait for each other: two per SM, of which a few are metered."""
    points = [point for point in recorded_sweep().points if point["kernel"] == DECODER and "failed" not in point]
    point = points[size]
    inputs = CATALOGUE[DECODER].inputs(*point["shape"], dtype=torch.bfloat16, device="meta")
    found = predict(CATALOGUE[DECODER].fused, *inputs, device="H100")
    (waits,) = [reason for reason in found.unsure if "wait for each other" in reason]
    bound = float(re.search(r"up to ([\d.]+)x", waits)[1])
    assert 1 <= point["ours"]["gpu"]["fused"][0] * 1e-6 / found.time <= bound
    # Each weight moves once; the vectors that all programs load again come from L2.
    least = CATALOGUE[DECODER].work(tuple(point["shape"]), torch.bfloat16).bytes_read
    moved = (
        found.launches[-1].terms["DRAM"]
        * prediction.ONE_WAY["read"]
        * prediction.BANDWIDTH_SHARE
        * DEVICES["H100"].memory_bandwidth
    )
    assert moved == pytest.approx(least, rel=0.05)


def test_programs_that_cannot_run_together_are_refused():
    x = meta(2**20)

    def launch(x):
        y = torch.empty_like(x)
        scale_kernel[(2**15,)](x, x, y, x.numel(), BLOCK=32, LANES=32, launch_cooperative_grid=True)

    with pytest.raises(ValueError, match=r"a cooperative launch of 32768 programs; H200 holds [0-9]+ at once"):
        predict(launch, x)


@pytest.mark.parametrize(("kind", "shapes"), [("", held_out.shapes), ("_tiled", held_out.tiled_shapes)])
def test_held_out_times_are_of_the_shapes_drawn(kind, shapes):
    drawn = [(name, shape) for name, shape, _ in shapes()]
    found = [(entry["kernel"], tuple(entry["shape"])) for entry in held_out.record(kind)["times"]]
    assert found[::3] == found[1::3] == found[2::3] == drawn


def test_each_version_is_what_it_is_called():
    """A wide cross entropy has a tuned kernel, and each call chooses for itself, whatever is chosen around it."""
    entry = {"kernel": "cross_entropy", "shape": [5, 70000], "dtype": "float32"}
    names = {}
    for version in held_out.VERSIONS:
        for around in ("plain", "tuned"):
            with variant(around):
                launches = held_out.rehearsed({**entry, "version": version}, DEVICES["H100"])
            names.setdefault(version, set()).add(tuple(launch.name for launch in launches))
    assert [len(found) for found in names.values()] == [1, 1, 1]
    assert names["plain"] != names["fused"] != names["eager"]
    assert not any("kernel" in name for (found,) in [names["eager"]] for name in found)


def test_a_kernel_that_changed_since_it_was_timed_gets_no_hash():
    entry = {"kernel": "add_gelu", "shape": [5000], "dtype": "float16", "version": "plain"}
    launches = held_out.rehearsed(entry, DEVICES["H100"])
    entry["kernels"] = fingerprints_of(launch.kernel for launch in launches)
    record = {"gpu": "NVIDIA H100 80GB HBM3", "times": [entry]}
    (found,) = held_out.with_code(record)["times"]
    assert found == {**entry, "code": held_out.machine_code(launches, DEVICES["H100"])}
    entry["kernels"] = ["another.one"]
    assert held_out.with_code(record)["times"] == [{**entry, "code": None}]


def test_tiled_kernels_are_predicted_within_a_fifth():
    fused = [row for row in tiled_rows(SMALL) if row.version == "fused"]
    assert len(fused) == 6
    assert summary([row.error for row in fused])[0] <= 0.20
    without_matrix = [row.prediction.time - row.prediction.terms["matrix"] for row in fused]
    wrong = [time / row.measured - 1 for row, time in zip(fused, without_matrix, strict=True)]
    assert summary(wrong)[0] > 0.20


@pytest.mark.long
def test_every_tiled_row_is_predicted_within_a_fifth():
    assert summary([row.error for row in tiled_rows() if row.version == "fused"])[0] <= 0.20


@pytest.mark.long
def test_tiled_rows_that_are_held_out_are_predicted_within_a_quarter():
    for version in ("fused", "plain"):
        assert summary([row.error for row in held_out_rows("_tiled") if row.version == version])[0] <= 0.25


def beyond(rows) -> list[str]:
    """The rows that take longer than each of their reasons to be unsure allows."""
    found = []
    for row in rows:
        most = max(float(re.search(r"([\d.]+)x the predicted time", reason)[1]) for reason in row.prediction.unsure)
        if row.measured > most * row.prediction.time:
            found.append(
                f"{row.kernel} {row.version} {row.shape}: {row.measured / row.prediction.time:.2f}, not {most}"
            )
    return found


def sure_and_unsure(rows) -> tuple[list, list]:
    ours = [row for row in rows if row.version != "eager"]
    return [row for row in ours if not row.prediction.unsure], [row for row in ours if row.prediction.unsure]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["", "_tiled"])
def test_what_is_far_off_at_shapes_drawn_by_lot_is_named_as_unsure(kind):
    sure, unsure = sure_and_unsure(held_out_rows(kind))
    assert beyond(unsure) == []
    if sure:
        assert max(abs(row.error) for row in sure) <= 0.20
        assert summary([row.error for row in sure])[1] <= 0.13


def test_what_is_far_off_in_a_sample_of_the_sweep_is_named_as_unsure():
    sure, unsure = sure_and_unsure(sweep_rows(fitted=False, every=48))
    assert beyond(unsure) == []
    assert max(abs(row.error) for row in sure) <= 0.35


@pytest.mark.long
def test_eager_times_that_are_far_off_are_named_as_unsure():
    rows = [row for row in held_out_rows("") if row.version == "eager" and not row.prediction.unsure]
    assert max(abs(row.error) for row in rows) <= 0.40
    assert summary([row.error for row in rows])[1] <= 0.30


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (torch.fft.rfft, (meta(64, 64),), "_fft_r2c: its kernels are unknown"),
        (torch.linalg.svdvals, (meta(64, 64),), "_linalg_svd: its kernels are unknown"),
        (lambda x: x.cumsum(-1), (meta(64, 64),), "cumsum: its kernels are unknown"),
        (lambda x: torch.softmax(x, -1), (meta(64, 64),), "PyTorch's softmax: one throughput"),
        (torch.nn.LSTM(8, 8), (meta(4, 2, 8),), "mkldnn_rnn_layer: PyTorch implements it for CPUs only"),
        (scale, (meta(2**14), meta(4096)), "fewer programs than SMs"),
    ],
)
def test_what_is_not_known_of_a_time_is_named_with_its_share(function, inputs, reason):
    found = predict(function, *inputs, device="H100")
    (share,) = [share for each, share in found.unsure.items() if each.startswith(reason)]
    assert 0 < share <= 1
    assert f"unsure, {share:.0%} of the time: {reason}" in repr(found)


@pytest.mark.parametrize(
    "function", [torch.relu, lambda x: x.t().contiguous() + 1, lambda x: x @ x, lambda x: torch.cat([x, x]).sum()]
)
def test_what_is_known_is_not_named(function):
    assert predict(function, meta(64, 64)).unsure == {}


def test_attention_and_products_in_eight_bits_are_not_priced_as_copies():
    q, k = meta(4, 32, 2048, 128, dtype=torch.bfloat16), meta(4, 8, 2048, 128, dtype=torch.bfloat16)
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = predict(lambda q, k: attention(q, k, k, is_causal=True, enable_gqa=True), q, k, device="H100")
    assert grouped.time > 4 * 4 * 32 * 2048**2 * 128 / 2 / 989e12
    assert any("FlashAttention" in reason for reason in grouped.unsure)
    x = meta(4096, 4096, dtype=torch.int8)
    assert predict(lambda x: torch._int_mm(x, x), x, device="H100").time > 2 * 4096**3 / 1979e12


@pytest.mark.parametrize("predicted", SAMPLE_AND_ALL)
def test_errors_that_are_far_off_are_explained(predicted):
    errors = {(row.kernel, row.version, row.bytes): abs(row.error) for row in predicted() if row.current}
    assert {key for key, error in errors.items() if error > FAR} <= set(EXPLAINED)
    operations = {operation for operation, _, _ in errors}
    assert all(errors[key] > FAR / 2 for key in EXPLAINED if key[0] in operations)


@pytest.mark.long
def test_the_table_explains_what_is_far_off():
    assert "not explained" not in table({"fitted": rows()})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda terms: terms["DRAM"],  # the roofline alone
        lambda terms: terms["launch"] + terms["ramp"],  # launches alone
        lambda terms: sum(terms.values()) * 1.4,
    ],
)
def test_a_wrong_model_is_outside_the_targets(wrong):
    median, most = summary([wrong(row.prediction.terms) / row.measured - 1 for row in sampled_rows()])
    assert median > 0.15 or most > 0.30


def test_constants_are_those_recorded():
    copies = {name: timing["median"] for name, timing in recorded_validation().constants["copies"].items()}
    assert copies["1 empty"] == pytest.approx(prediction.LAUNCH, rel=0.1)
    share = 2 * 2**30 / copies[f"copy {2**30}"] / H200.memory_bandwidth
    assert share == pytest.approx(prediction.BANDWIDTH_SHARE, rel=0.02)
    size = 2**23  # the copy of a copy: its source lies in L2
    second = copies[f"copy {size}, copy the copy"] - copies[f"copy {size}"]
    least = 2 * size / (prediction.L2_BYTES * H200.sms * H200.sm_clock)
    assert prediction.LAUNCH + prediction.FIRST_ACCESS_L2 + least <= 1.15 * second
    for pace, operator, dtype in (
        ("converting or broadcasting", "times column", "bfloat16"),
        ("converting or broadcasting", "to int8", "float32"),
        ("gelu", "gelu", "bfloat16"),
        ("random", "random", "float32"),
    ):
        row = next(
            row
            for row in recorded_validation().constants["operators"]
            if (row["operator"], row["dtype"]) == (operator, dtype) and row["gpu"]["median"] > 100e-6
        )
        elements = row["shape"][0] * row["shape"][1]
        reached = elements / row["gpu"]["median"] / H200.sms / H200.sm_clock
        assert reached == pytest.approx(prediction.THROUGHPUTS[pace].results, rel=0.15)


# The rehearsal against the meter, which sees every program instance


@pytest.mark.parametrize("elements", [1, 4096, 5 * 4096, 37 * 4096 + 100])
def test_sampled_instances_stand_for_all(elements):
    x, w = torch.randn(elements), torch.randn(4096)
    exact = measure(scale, x, w)
    (launch,) = dry_run(scale, x, w, multiprocessors=132)
    assert (launch.bytes_read, launch.bytes_written) == (exact.bytes_read, exact.bytes_written)
    assert (launch.sectors_read, launch.sectors_written) == (exact.sectors_read, exact.sectors_written)
    read = sum(operand.read for operand in launch.operands.values())
    written = sum(operand.written for operand in launch.operands.values())
    assert (read, written) == (exact.unique_read, exact.unique_written)
    assert launch.sampled == min(4, -(-elements // 4096))
    assert launch.rounds == 4


def test_eager_operators_count_as_metered():
    def chain(x, w):
        y = torch.nn.functional.layer_norm(x, w.shape, w, w)
        return (y / y.abs().amax(dim=-1, keepdim=True)).to(torch.int8), y[:, ::2].contiguous()

    x, w = torch.randn(64, 256), torch.randn(256)
    exact = measure(chain, x, w)
    launches = dry_run(chain, x, w, multiprocessors=132)
    assert [launch.name for launch in launches] == [name for name, _ in exact.by_launch]
    ours = [sum(each.read + each.written for each in launch.operands.values()) for launch in launches]
    assert ours == [moved.total for _, moved in exact.by_launch]


def test_fake_quantisation_has_a_gpus_bytes():
    def fake(x):
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)

    exact = measure(fake, torch.randn(64, 256))
    (launch,) = dry_run(fake, meta(64, 256), multiprocessors=132)
    assert sum(each.read + each.written for each in launch.operands.values()) == exact.bytes_total
    assert any("its kernels are unknown" in reason for reason in predict(fake, meta(64, 256)).unsure)


def test_a_rehearsal_computes_nothing_and_takes_no_memory():
    x, labels = torch.ones(4096), torch.arange(3)
    seen = []
    dry_run(lambda x, labels: (x.add_(1), seen.append(labels.tolist())), x, labels, multiprocessors=132)
    assert x.eq(1).all()
    assert seen == [[0, 1, 2]]
    huge = dry_run(lambda x: torch.relu(x) + 1, meta(2**38), multiprocessors=132)  # a terabyte
    assert [sum(each.read for each in launch.operands.values()) for launch in huge] == [2**40, 2**40]


def test_rmsnorm_and_dropout_are_one_kernel_as_on_a_gpu():
    x, w = meta(8, 64), meta(64)
    for call in (
        lambda: torch.nn.functional.rms_norm(x, (64,), w),
        lambda: torch.nn.functional.dropout(x, 0.5),
    ):
        (launch,) = dry_run(lambda x, w, call=call: call(), x, w, multiprocessors=132)
        assert isinstance(launch, EagerLaunch)


# Terms


def test_a_large_copy_takes_its_bytes_over_the_bandwidth():
    found = predict(torch.neg, meta(2**28))
    assert found.bound == "DRAM"
    assert found.time == pytest.approx(2 * 2**30 / (0.88 * H200.memory_bandwidth), rel=0.02)


def test_what_the_launch_before_left_in_l2_is_not_read_again():
    def twice(x):
        return torch.neg(torch.neg(x))

    small, large = predict(twice, meta(2**20)), predict(twice, meta(2**28))
    assert small.launches[1].terms["DRAM"] == pytest.approx(small.launches[0].terms["DRAM"] / 2)
    assert large.launches[1].terms["DRAM"] == large.launches[0].terms["DRAM"]


def test_loops_count_as_often_as_they_run():
    once = predict(scale, meta(2**20), meta(4096), device="H200")
    often = predict(lambda x, w: scale(x, w, block=32768), meta(2**20), meta(32768))
    assert often.terms["latency"] > 7 * once.terms["latency"] > 0


def test_a_slower_device_takes_longer():
    x = meta(2**26)
    times = [predict(torch.neg, x, device=name).time for name in ("H200", "A100", "T4")]
    assert times == sorted(times)


def test_matrix_products_are_bound_by_arithmetic():
    a = meta(8192, 8192, dtype=torch.bfloat16)
    found = predict(torch.matmul, a, a)
    assert found.bound == "arithmetic"
    assert found.time == pytest.approx(2 * 8192**3 / recorded("h200").matrix_rate, rel=0.05)


def test_products_are_counted_and_not_computed():
    a = torch.full((5 * 64, 64), torch.nan, dtype=torch.bfloat16)
    (launch,) = dry_run(lambda a: product_kernel[(3,)](a, a, torch.empty(64, 64), 64, 5), a, multiprocessors=132)
    assert (launch.flops, launch.most_flops, launch.product) == (3 * 5 * 2 * 64**3, 5 * 2 * 64**3, "bfloat16")
    assert launch.special == 3 * 5 * 64**2
    assert launch.operations >= launch.special


def test_an_uneven_last_wave_of_tiles_counts_whole():
    def products(a, count):
        product_kernel[(count,)](a, a, torch.empty(64, 64), 64, 64, num_stages=3)
        return a

    a = meta(64 * 64, 64, dtype=torch.bfloat16)
    one, full, past = (predict(products, a, count).terms["matrix"] for count in (1, 132, 133))
    assert one == pytest.approx(full)
    assert past == pytest.approx(2 * full)


def test_a_linear_layer_with_a_bias_is_a_product():
    x, bias = meta(4096, 4096, dtype=torch.bfloat16), meta(4096, dtype=torch.bfloat16)
    found = predict(torch.nn.functional.linear, x, x, bias)
    assert found.time == pytest.approx(predict(torch.matmul, x, x).time, rel=0.1)


def test_repr_is_the_same_each_time_and_says_what_was_sampled():
    found = predict(scale, meta(2**20), meta(4096))
    assert repr(found) == repr(predict(scale, meta(2**20), meta(4096)))
    first, launch = repr(found).splitlines()
    assert "on H200, bound by" in first
    assert all(f"{name} " in first for name in found.terms)
    assert "scale_kernel" in launch
    assert "4 of 256 programs metered, the others taken to be like them" in launch


def test_nothing_takes_no_time():
    assert predict(lambda x: x.view(-1), meta(8, 8)).time == 0
    assert predict(scale, meta(0), meta(4096)).time == 0


# Bad input


def test_bad_input_is_one_line():
    with pytest.raises(TypeError, match="pass a function and its arguments, not Tensor"):
        predict(meta(4))
    with pytest.raises(ValueError, match="unknown device 'H2000'"):
        predict(torch.neg, meta(4), device="H2000")
    with pytest.raises(ValueError, match=r"aten\.nonzero\.default cannot run without data"):
        predict(torch.nonzero, meta(4))
    for given in (torch.eye(4).to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
        with pytest.raises(ValueError, match=r"a dry run takes dense tensors, got a (torch\.sparse_coo|nested) one"):
            predict(torch.neg, given)


def test_held_out_shapes_are_the_same_everywhere_and_none_was_fitted_or_recorded():
    drawn = held_out.shapes()
    assert drawn == held_out.shapes()
    assert drawn[0] == ("add_gelu", (2108902,), torch.float16)
    assert {name for name, *_ in drawn} == set(COVERED) - set(held_out.UNPREDICTED)
    times = [*recorded_validation().times, *recorded_validation("h100_80gb_hbm3").times]
    known = {(row["kernel"], tuple(row["shape"])) for row in (*times, *recorded().rows)}
    assert not known & {(name, shape) for name, shape, _ in drawn}


# Loops of the machine code


def code(*texts: str, line: int = 7) -> tuple[Instruction, ...]:
    """Instructions of one source line; a text "label: instruction" is a branch target."""
    parts = [text.rpartition(": ") for text in texts]
    return tuple(Instruction(text, "kernel.py", line, label) for label, _, text in parts)


def launch_that_loads(loads: dict, rounds: int) -> TritonLaunch:
    return TritonLaunch("kernel", None, {}, (1, 1, 1), loads=loads, rounds=rounds)


COUNTED = (
    ".L_1: VIADD R59, R59, 0x1",
    "FADD R1, R1, R2",
    "ISETP.NE.U32.AND P4, PT, R59, 0x8, PT",
    "@P4 BRA `(.L_1)",
)


def test_a_loop_to_a_constant_counts_as_often_as_its_bound_says_in_each_turn_of_the_loop_around_it():
    outer = code(".L_0: LDG.E.128 R4, [R2]", *COUNTED, "@P0 BRA `(.L_0)")
    launch = launch_that_loads({7: 5 * 32 * 16}, 5)
    assert prediction._iterations(outer, 32, launch) == {(1, 4): 40, (0, 5): 5}
    assert prediction._iterations(code(*COUNTED), 32, launch) == {(0, 3): 8}


def test_a_loop_whose_loads_no_program_executed_does_not_run():
    loop = code(".L_0: LDG.E.128 R4, [R2]", "FADD R1, R1, R4", "@P0 BRA `(.L_0)", line=8)
    assert prediction._iterations(loop, 32, launch_that_loads({7: 512}, 1)) == {(0, 2): 0}


def test_a_million_blocks_of_one_warp_wait_to_be_started():
    """The H100's sweep: top-k of 1,048,576 rows took 635 us and of 2,097,152, a point held out, 1264."""
    for many, columns, measured in ((2**20, 128, 635e-6), (2**21, 64, 1264e-6)):
        x = meta(many, columns, dtype=torch.bfloat16)
        with variant("plain"):
            found = predict(CATALOGUE["softmax_topk"].fused, x, 8, device="H100")
        assert found.bound == "dispatch"
        assert found.time == pytest.approx(measured, rel=0.03)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, K, SIZE: tl.constexpr, ACC: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    acc = tl.zeros((SIZE, SIZE), ACC)
    for k in range(0, K, SIZE):
        a = tl.load(a_ptr + rows * K + k + columns)
        acc = tl.dot(a, tl.load(b_ptr + (k + rows) * SIZE + columns), acc, out_dtype=ACC)
    tl.store(c_ptr + rows * SIZE + columns, acc)


NO_INT8 = "tl.dot of int8: no peak of {} for it is known; counted at fp16's, so the time of its matmuls is uncertain"


@pytest.mark.parametrize(
    ("dtype", "acc", "device", "rate", "unsure"),
    [
        (torch.int8, tl.int32, "H100", DEVICES["H100"].peak_flops["fp16"], NO_INT8.format("H100")),
        (torch.int8, tl.int32, "L4", DEVICES["L4"].peak_flops["fp16"], NO_INT8.format("L4")),
        (torch.float64, tl.float64, "A100", DEVICES["A100"].double_rate, prediction.UNSURE["tiles"]),
        (torch.float64, tl.float64, "T4", DEVICES["T4"].double_rate, prediction.UNSURE["matmul"]),
        (torch.float16, tl.float32, "H100", DEVICES["H100"].peak_flops["fp16"], prediction.UNSURE["tiles"]),
    ],
)
def test_products_of_any_dtype_have_a_rate_or_name_what_is_unknown(dtype, acc, device, rate, unsure):
    def product(a, b):
        c = torch.empty(64, 64, dtype=torch.int32 if dtype == torch.int8 else dtype, device=a.device)
        matmul_kernel[(1,)](a, b, c, a.shape[1], SIZE=64, ACC=acc)
        return c

    found = predict(product, meta(64, 4096, dtype=dtype), meta(4096, 64, dtype=dtype), device=device)
    assert list(found.unsure) == [unsure]
    of_one_sm = 2 * 64 * 64 * 4096 / (prediction.MATRIX_SHARE * rate / DEVICES[device].sms)
    assert found.terms.get("matrix", found.terms["arithmetic"]) >= 0.999 * of_one_sm


def test_products_in_8_bit_floats_are_refused_in_one_line():
    a, c = meta(64, 64, dtype=torch.float8_e4m3fn), meta(64, 64)
    with pytest.raises(InterpreterError, match="fp8e4nv needs a GPU") as raised:
        predict(lambda a, c: matmul_kernel[(1,)](a, a, c, 64, SIZE=64, ACC=tl.float32), a, c)
    assert "\n" not in str(raised.value)


def test_a_products_rate_that_a_gpu_does_not_have_is_named():
    unknown = dataclasses.replace(DEVICES["A100"], name="another", compute_capability=(12, 1))
    launch = launch_that_loads({}, 1)
    launch.product = "float64"
    rate, why = prediction._product_rate(launch, None, unknown)
    assert rate == unknown.peak_flops["fp32"] / 2
    assert why.startswith("tl.dot of float64: no peak of another for it is known; counted at half of fp32's")


def test_eager_softmax_reaches_another_share_of_the_bandwidth_at_each_width():
    """The shares of the bandwidth that stand beside its one constant, from the H100's sweep."""
    reached = {}
    for point in recorded_sweep().points:
        rows, columns = point["shape"] if len(point["shape"]) == 2 else (0, 0)
        which = point["kernel"], point["direction"], point["dtype"]
        if which == ("softmax", "forward", "bf16") and rows * columns >= 2**27 and "eager" in point.get("gpu", {}):
            share = 4 * rows * columns / (point["gpu"]["eager"][0] * 1e-6) / DEVICES["H100"].memory_bandwidth
            reached[columns] = max(share, reached.get(columns, 0))
    assert all(0.65 <= reached[columns] <= 0.75 for columns in (256, 512, 1024))
    assert 0.45 <= reached[2048] <= 0.55
    assert all(0.27 <= reached[columns] <= 0.42 for columns in reached if 2560 <= columns <= 8192)
    assert 0.55 <= reached[16384] <= 0.65
    assert all(0.42 <= reached[columns] <= 0.48 for columns in reached if columns >= 65536)


def test_one_block_has_one_sms_share_of_l2_to_load_from():
    few, many = (predict(scale, meta(blocks * 2**14), meta(2**14)).terms["L2"] for blocks in (1, 132))
    whole = predict(lambda x, w: scale(x, w, block=2**14), meta(2**14), meta(2**14))
    assert whole.terms["L2"] == pytest.approx(2 * 2**16 / (prediction.L2_BYTES * H200.sm_clock), rel=0.6)
    assert many < 132 * few


# Integers whose values nobody gave


@triton.jit
def rows_kernel(x_ptr, at_ptr, length_ptr, y_ptr, columns, USE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy a row of x to one of y: the row `at`, as many blocks as `length` says, or all but one number."""
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    source = tl.load(at_ptr + row) if USE == "positions" else row
    end = tl.load(length_ptr + row) * BLOCK if USE == "lengths" else columns
    for start in range(0, end, BLOCK):
        tl.store(y_ptr + row * columns + start + lane, tl.load(x_ptr + source * columns + start + lane))
    if USE == "label":
        tl.store(y_ptr + row * columns, tl.load(x_ptr + row * columns + tl.load(at_ptr + row)))


def copied_rows(x, at, lengths, use):
    y = torch.empty_like(x)
    rows_kernel[(len(x),)](x, at, lengths, y, x.shape[1], USE=use, BLOCK=128)
    return y


@pytest.mark.parametrize(("use", "named"), [("positions", "at_ptr"), ("lengths", "length_ptr"), ("label", "")])
def test_unknown_integers_that_decide_what_is_read_are_named(use, named):
    x, integers = meta(300, 1024), meta(300, dtype=torch.int32)
    reasons = predict(lambda x, at, lengths: copied_rows(x, at, lengths, use), x, integers, integers + 0).unsure
    said = [reason.split(",")[0] for reason in reasons if " reads " in reason]
    assert said == ([f"rows_kernel reads {named}"] if named else [])
    known = torch.arange(300, dtype=torch.int32) % 8 + 1
    found = predict(lambda x, at, lengths: copied_rows(x, at, lengths, use), x, known, known.clone())
    assert not any(" reads " in reason for reason in found.unsure)
    assert [launch.name for launch in found.launches] == ["rows_kernel"]  # not the copies of known integers


def test_integers_that_a_kernel_wrote_are_unknown_to_the_next():
    def both(x, at):
        lengths = torch.zeros(300, dtype=torch.int32)
        rows_kernel[(2,)](at, at, at, lengths, 128, USE="all", BLOCK=128)
        return copied_rows(x, at, lengths, "lengths")

    found = predict(both, meta(300, 1024), torch.zeros(1024, dtype=torch.int32))
    assert found.launches[-1].unsure.startswith("rows_kernel reads length_ptr")


@triton.jit
def counts_kernel(x_ptr, counts_ptr, elements, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts_ptr + tl.load(x_ptr + i, i < elements, 0) % BINS, 1, i < elements)


def test_atomics_are_paid_for_and_named():
    """A histogram in 16 bins: its bytes alone would take 1.4 us."""
    found = predict(
        lambda x, counts: counts_kernel[(256,)](x, counts, 2**20, BINS=16, BLOCK=4096),
        meta(2**20, dtype=torch.int32),
        torch.zeros(16, dtype=torch.int32),
        device="H100",
    )
    assert found.time > 2**20 / (prediction.ATOMICS * DEVICES["H100"].sms * DEVICES["H100"].sm_clock)
    assert any("atomics" in reason or "x_ptr" in reason for reason in found.unsure)


@pytest.fixture
def tf32():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_fp32_products_are_as_fast_as_pytorch_is_set_to_run_them(tf32):
    """By default convolutions take TF32 and matmuls don't."""
    x, image, filters = meta(4096, 4096), meta(32, 256, 56, 56), meta(256, 256, 3, 3)

    def times():
        return predict(torch.mm, x, x, device="H100").time, predict(torch.conv2d, image, filters, device="H100").time

    by_default = times()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    other_way = times()
    peaks = DEVICES["H100"].peak_flops
    ratio = peaks["tf32"] / peaks["fp32"]
    assert by_default[0] / other_way[0] == pytest.approx(ratio, rel=0.1)
    assert other_way[1] / by_default[1] == pytest.approx(ratio, rel=0.1)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: torch.lgamma(x), "sums up a series or iterates"),
        (lambda x: torch.special.gammainc(x, x), "sums up a series or iterates"),
        (lambda x: x.int() @ x.int(), "PyTorch has no matmul of torch.int32 on a GPU"),
        (lambda x: torch.conv2d(x.view(4, 64, 64, 64), x[:9, :64].reshape(64, 1, 3, 3), groups=64), "in groups"),
    ],
)
def test_what_bytes_and_a_large_matmuls_rate_do_not_tell_is_named(call, reason):
    assert any(reason in each for each in predict(call, meta(1024, 1024), device="H100").unsure)
