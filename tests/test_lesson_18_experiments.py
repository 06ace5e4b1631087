"""Lesson 18's timed code computes a decoder layer, moves the same bytes, and compiles with a dependent launch."""

import pytest
import torch

from benchmarks.experiments.lesson_18 import (
    EMPTY,
    EPS,
    LAYERS,
    RECORD,
    SHAPES,
    STREAM_BLOCK,
    STREAMS,
    empty_kernel,
    layer_in_steps,
    layer_product_by_product,
    one_query_kernel,
    rows_kernel,
    stream_kernel,
    through,
)
from helpers.instruments import DEVICES, compile_for, measure, recorded
from kernels.tiled.decoder_layer import OP, decoder_layer_reference

SHAPE = (64, 4, 2, 72, 5)


@pytest.mark.parametrize("layer", [layer_in_steps, layer_product_by_product])
def test_each_way_is_a_decoder_layer(layer):
    inputs = OP.inputs(*SHAPE, dtype=torch.float32)
    exact = decoder_layer_reference(*(x.double() for x in inputs), EPS)[:2]
    for ours, truth in zip(layer(*inputs), exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, atol=1e-5, rtol=1e-5)


def test_a_stack_hands_on_both_streams():
    first, second = (OP.inputs(*SHAPE, dtype=torch.float64) for _ in range(2))
    x, residual = first[:2]
    y, s, *_ = decoder_layer_reference(*first)
    expected = decoder_layer_reference(y, s, *second[2:])[0]
    assert torch.equal(through(decoder_layer_reference, [first[2:], second[2:]], x, residual), expected)


def test_five_launches_that_read_each_weight_once():
    inputs = OP.inputs(*SHAPE, dtype=torch.float32)
    found = measure(layer_in_steps, *inputs)
    assert found.launches == 5
    for name in ("qkv", "out", "gate", "up", "down"):
        place = "x residual attention_norm qkv keys values out ffn_norm gate up down".split().index(name)
        assert found.by_tensor[name].read == inputs[place].nbytes


@pytest.mark.parametrize("late", [False, True])
def test_a_dependent_launch_compiles_to_griddepcontrol(late):
    x = torch.empty(64, device="meta", dtype=torch.bfloat16)
    weight = torch.empty(64, 64, device="meta", dtype=torch.bfloat16)
    kinds = {
        empty_kernel: ((x,), {}),
        rows_kernel: (
            (weight, None, x, None, None, x, None, None, 64, 64, EPS),
            {"BLOCK_N": 16, "BLOCK_K": 64, "LATE": late},
        ),
        one_query_kernel: ((x, x, x, x, 2, 1, 4, 0.1), {"D": 16, "BLOCK_KEYS": 16, "LATE": late}),
    }
    for kernel, (arguments, options) in kinds.items():
        ptx = compile_for(kernel, *arguments, device="H200", **options, PDL=True, launch_pdl=True).ptx
        assert "griddepcontrol.wait" in ptx
        assert "griddepcontrol.launch_dependents" in ptx
        assert "griddepcontrol" not in compile_for(kernel, *arguments, device="H200", **options, PDL=False).ptx


def test_what_lesson_18_concludes_from_its_record():
    """Its verdict, its reading of the waterfall, and what remains of a graph's time beside the model."""
    record = recorded(RECORD.removesuffix(".json"))
    empty = record.experiment("short_kernels_empty")
    launches = {
        "eager, separate q, k, v": (16, "torch add"),
        "eager": (14, "torch add"),
        "kernel per step": (5, "132 programs"),
        "dependent launch": (5, "132 programs, dependent"),
        "dependent, late signal": (5, "132 programs, dependent"),
        "persistent kernel": (2, "132 programs"),
    }
    call, graph, rest, floors = {}, {}, {}, {}
    for name, shape in SHAPES.items():
        found = record.experiment(f"short_kernels_{name}")
        call[name], graph[name] = (
            {way: each[clock].median / LAYERS for way, each in found.items()} for clock in ("call", "graph")
        )
        floor = floors[name] = OP.work(shape, torch.bfloat16).bytes / DEVICES["H100"].memory_bandwidth
        rest[name] = {
            way: graph[name][way]
            - empty[kind]["call"].median / EMPTY / LAYERS
            - count * empty[kind]["graph"].median / EMPTY
            - floor
            for way, (count, kind) in launches.items()
        }
    assert min(rest["small"].values()) == rest["small"]["persistent kernel"]
    assert sorted(rest["8B"], key=rest["8B"].get)[:2] == ["persistent kernel", "eager"]
    assert rest["8B"]["persistent kernel"] > 0
    per_launch = {way: each / launches[way][0] for way, each in rest["8B"].items()}
    assert per_launch["kernel per step"] > 4 * per_launch["eager"]
    small, large = call["small"], call["8B"]
    for ways in graph.values():
        assert min(ways.values()) == ways["persistent kernel"]
    assert small["kernel per step"] < small["persistent kernel"] < small["eager"]
    assert small["kernel per step"] < small["eager"] / 2
    assert small["torch.compile"] > small["eager"]
    assert graph["8B"]["torch.compile"] < graph["8B"]["eager"] < graph["8B"]["kernel per step"]
    five = ("kernel per step", "dependent launch", "dependent, late signal")
    for way in call["8B"]:
        assert (large[way] < 1.06 * graph["8B"][way]) == (way in five)  # they hardly benefit from a graph
    for name, ways in graph.items():
        over = {way: ways[way] / (ways[way] - rest[name][way]) for way in rest[name]}
        assert min(over[way] for way in five) > max(each for way, each in over.items() if way not in five)
    of_add = {clock: time.median / EMPTY for clock, time in empty["torch add"].items()}
    called = 14 * max(of_add["call"], of_add["graph"] + floors["small"] / 14)
    assert 0.4 < called / small["eager"] < 0.6  # the model gives about half of both times
    assert 0.4 < 1 - rest["small"]["eager"] / graph["small"]["eager"] < 0.6
    saved = graph["8B"]["eager, separate q, k, v"] - graph["8B"]["eager"]
    assert saved > 4 * 2 * of_add["graph"]  # more than the gaps
    late, per_step = (graph["8B"][way] for way in ("dependent, late signal", "kernel per step"))
    assert abs(late / per_step - 1) < 0.01 < graph["8B"]["dependent launch"] / per_step - 1
    assert graph["small"]["dependent, late signal"] < graph["small"]["kernel per step"]
    assert 0.5 < floors["8B"] / graph["8B"]["persistent kernel"] < 1  # most of what is left is bytes


def test_what_lesson_18_says_of_ramp_up_and_tail():
    record = recorded(RECORD.removesuffix(".json"))
    gap = record.experiment("short_kernels_empty")["132 programs"]["graph"].median / EMPTY
    bandwidth = DEVICES["H100"].memory_bandwidth
    times, needed = {}, {}
    for name, each in record.experiment("short_kernels_ends").items():
        programs, blocks = (int(word) for word in name.split()[::2])
        times[programs, blocks] = each["graph"].median / STREAMS
        needed[programs, blocks] = 4 * programs * blocks * STREAM_BLOCK / bandwidth
    rest = [times[132, blocks] - needed[132, blocks] - gap for blocks in (1, 2, 4, 8)]
    assert rest == sorted(rest)
    assert 0.8e-6 < rest[0] < 1.5e-6  # about a microsecond
    assert rest[-1] < 0.15 * needed[132, 8]  # grows slowly: the bandwidth is not quite reached
    assert times[133, 8] - times[132, 8] > 1e-6 > 4 * (needed[133, 8] - needed[132, 8])


def test_one_program_that_streams_fits_on_an_sm():
    """Only so does one program more than there are SMs run alone at the end."""
    x, y = torch.empty(2**20, device="meta"), torch.empty(264, device="meta")
    compiled = compile_for(stream_kernel, x, y, 8, device="H100", BLOCK=STREAM_BLOCK, num_warps=32)
    assert compiled.occupancy().blocks == 1
    assert compiled.spill_bytes == 0
