"""Lesson 13: its statements about the recorded tables are true."""

import math
import re
from pathlib import Path

from benchmarks.fusion_proof import compare, compared, plan_of, record
from helpers.figures import Trace
from helpers.figures.launches.launch_overhead import launch_costs
from helpers.instruments import recorded

LESSON = (Path(__file__).resolve().parents[1] / "source/lessons/13_deciding_what_to_fuse.py").read_text()
TEXT = " ".join(re.sub(r"^# ?", "", line) for line in LESSON.splitlines() if line.startswith("#"))
OURS = re.search(r'names = "(swiglu [a-z_ ]+)"', LESSON)[1].split()


def test_every_row_that_is_slower_compiled_is_named_as_a_wrong_direction():
    slower = [name for name in OURS if compare(name).measured < 0.95]
    (named,) = re.findall(
        r"two of these rows predict the \*wrong direction\*: (.*?) are slower compiled than eager", TEXT
    )
    assert re.findall(r"`(\w+)`", named) == slower
    assert not set(OURS) & {each.name for each in compared()}  # "not among the thirty"


def test_the_worst_predictions_below_the_measured_gain_are_all_named():
    worst = sorted(compared(), key=lambda each: abs(each.predicted / each.measured - 1))[-9:]
    beaten = {each.name for each in worst if each.error < -0.3}
    (named,) = re.findall(r"(`\w+` and `\w+`) err in the other direction", TEXT)
    assert set(re.findall(r"`(\w+)`", named)) == beaten


def test_where_the_analyser_promises_too_much_inductor_takes_about_three_times_as_long():
    worst = sorted(compared(), key=lambda each: -abs(math.log(1 + each.error)))[:5]
    names = [each.name for each in worst if each.error > 0]
    taken = {name: record()["graphs"][name]["gpu"]["compiled"]["median"] for name in names}
    assert names
    assert all(2.5 < taken[name] / plan_of(name).time_fused < 3.5 for name in names)


def test_rotary_would_pass_more_bytes_than_the_memory_can():
    rate = plan_of("rotary").bytes_fused / record()["graphs"]["rotary"]["gpu"]["compiled"]["median"]
    assert rate > 4.8e12 > rate / 1.5


def test_the_profiler_stretches_the_gaps_several_times():
    eager = Trace.of(record()["timeline"]["eager"])
    assert eager.total > 3 * len(eager.kernels) * launch_costs(recorded("h200")).operator * 1e6


def test_optlike_layers_fuse_as_the_verdict_says():
    h100 = recorded("h100_80gb_hbm3")
    taken = {tokens: h100.experiment(f"opt_layer_{tokens}")["gpu"] for tokens in (64, 512, 2048)}
    library = {tokens: times["libraries"].median for tokens, times in taken.items()}
    compiled = [library[tokens] / times["libraries, torch.compile"].median for tokens, times in taken.items()]
    assert max(compiled) < 1.07  # "gains at most a few percent"
    ahead = [tokens for tokens, times in taken.items() if times["ours"].median < library[tokens]]
    assert ahead == [64]  # "ours helps only with 64 tokens"
