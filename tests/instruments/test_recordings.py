"""Recorded measurements, as lessons use them."""

import dataclasses

import pytest

from helpers.instruments import fingerprints
from helpers.instruments.recordings import EARLIER, Recorded, dated, recorded


def test_an_experiment_reads_as_it_was_measured():
    times = recorded("h200").experiment("chain_sizes")
    assert times[2**20]["call"]["fused"].median > times[2**20]["gpu"]["fused"].median > 0


def test_recorded_figures_carry_their_provenance():
    h200 = recorded("H200")
    assert h200.label.startswith("NVIDIA H200, PyTorch ")
    assert h200.label.endswith("(the course installs 2.13.0 and 3.7.1)")
    of_its_run = h200.table("add_gelu", "float32").splitlines()[0]
    assert of_its_run.startswith("NVIDIA H200, PyTorch ")
    assert of_its_run.endswith("(the course installs 2.13.0 and 3.7.1)")
    assert 4e12 < h200.copy_bandwidth < 4.8e12
    assert "\n100,000,000 " in h200.table("add_gelu", "float32")
    assert "\n 32768 x 4096 " in h200.table("softmax", "bfloat16")
    fused = h200.times("add_gelu", (100_000_000,), "float32")["fused"]
    assert fused.low <= fused.median <= fused.high


def test_a_table_shows_what_a_call_costs_where_a_small_size_is_shown():
    h200 = recorded("h200")
    _, explained, heading, million, *_, large = h200.table("add_gelu", "float32").splitlines()
    assert "default mode" in explained
    assert heading.count("fused") == 2
    of_million = {"kernel": "add_gelu", "shape": [2**20], "dtype": "float32"}
    rows = {row["provider"]: row for row in h200.rows if of_million.items() <= row.items()}
    ratios = [rows["eager"][clock]["median"] / rows["fused"][clock]["median"] for clock in ("gpu", "call")]
    assert [each for each in million.split() if each.endswith("x")] == [f"{ratio:.2f}x" for ratio in ratios]
    assert abs(ratios[0] - ratios[1]) > 0.01
    assert large.count("x") == 1


def test_figures_of_several_runs_say_so_and_a_table_of_one_names_that_run():
    """Rows of another kernel measured on another day with another PyTorch."""
    h200 = recorded("h200")
    later = {**h200.runs[-1], "date": "2027-01-02", "versions": {"torch": "2.13.0", "triton": "3.7.1"}}
    rows = [row | {"run": len(h200.runs)} if row["kernel"] == "softmax" else row for row in h200.rows]
    both = dataclasses.replace(h200, runs=[*h200.runs, later], rows=rows)
    assert "PyTorch 2.11.0+cu130 and 2.13.0, Triton 3.6.0 and 3.7.1, 2026-11-21 to 2027-01-02" in both.label
    assert "PyTorch 2.13.0, Triton 3.7.1, 2027-01-02" in both.table("softmax", "bfloat16")
    day = h200.runs[next(row["run"] for row in h200.rows if row["kernel"] == "rms_norm")]["date"]
    of_rms_norm = both.table("rms_norm", "bfloat16").replace(f", {EARLIER} (", " (")
    assert f"PyTorch 2.11.0+cu130, Triton 3.6.0, {day} (" in of_rms_norm


def test_what_was_measured_with_an_earlier_kernel_says_so(monkeypatch):
    monkeypatch.setattr(fingerprints, "fingerprints", lambda: {"kernels.here": "now"})
    run = {"date": "2026-11-22", "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "ceilings": {}}
    experiments = {name: {"run": 0, "times": {}, "kernels": [name]} for name in ("now", "before")}
    experiments |= {"nobody knows": {"run": 1, "times": {}}, "none of ours": {"run": 0, "times": {}, "kernels": []}}
    clock = {"median": 1.0}
    rows = [
        {"kernel": name, "shape": [8], "dtype": "bf16", "provider": provider, "run": 0, "kernels": [kernel]}
        | {"gpu": clock, "call": None, "least_seconds": 1.0}
        for name, kernel in (("softmax", "now"), ("l2_norm", "before"))
        for provider in ("fused", "eager", "torch.compile")
    ]
    found = Recorded("NVIDIA H200", [run, run | {"date": "2026-11-23"}], rows, experiments)
    earlier = {name: EARLIER in found.label_of(name) for name in (*experiments, "softmax", "l2_norm")}
    assert [name for name, marked in earlier.items() if marked] == ["before", "nobody knows", "l2_norm"]
    assert EARLIER in found.label_of("now", "before")
    assert "2026-11-23" not in found.label_of("now", "softmax")
    assert [EARLIER in found.table(name, "bf16") for name in ("softmax", "l2_norm")] == [False, True]
    assert [dated("2026-11-23", kernels) for kernels in (["now"], ["now", "before"], None)] == [
        "2026-11-23",
        *["2026-11-23, an earlier version of this kernel"] * 2,
    ]
    with pytest.raises(ValueError, match="no experiment or kernel 'x' is recorded"):
        found.label_of("x")


def test_an_experiment_that_is_added_changes_no_ceiling():
    h200 = recorded("h200")
    later = {**h200.runs[-1], "ceilings": dict.fromkeys(h200.runs[-1]["ceilings"], 1.0)}
    added = dataclasses.replace(h200, runs=[*h200.runs, later])
    assert (added.copy_bandwidth, added.matrix_rate) == (h200.copy_bandwidth, h200.matrix_rate)
    timed = dataclasses.replace(added, rows=[*h200.rows, {"run": len(h200.runs)}])
    assert (timed.copy_bandwidth, timed.matrix_rate) == (1.0, 1.0)


def test_the_recorded_add_gelu_meets_its_targets():
    """At least 97 % of the copy bandwidth at 100M fp32 elements; no slower than torch.compile at 1M and 10M."""
    h200 = recorded("h200")
    large = h200.times("add_gelu", (100_000_000,), "float32")["fused"]
    assert 12 * 100_000_000 / large.median >= 0.97 * h200.copy_bandwidth
    for elements in (2**20, 10_000_000):
        for clock in ("gpu", "call"):
            median = {
                row["provider"]: row[clock]["median"]
                for row in h200.rows
                if (row["kernel"], row["shape"], row["dtype"]) == ("add_gelu", [elements], "float32")
            }
            assert median["fused"] <= median["torch.compile"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: recorded("h200").experiment("x"), "no experiment 'x' is recorded: choose from free_flops, "),
        (lambda: recorded("H300"), "nothing is recorded for H300: choose from cpu, h100_80gb_hbm3, h200, or run"),
        (lambda: recorded("h200_fusion"), "nothing is recorded for h200_fusion: choose from cpu, "),
        (lambda: recorded(None), "nothing is recorded for None: choose from cpu, "),
        (
            lambda: recorded("h200").table("add_gelu", "int8"),
            "no recorded add_gelu in int8: choose from .*add_gelu in float32",
        ),
        (lambda: recorded("h200").times("add_gelu", (3,), "float32"), r"no recorded add_gelu of \(3,\) in float32"),
    ],
)
def test_what_was_not_recorded(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
