"""Lesson 15: the meter confirms its statements about passes."""

from pathlib import Path

import torch

import kernels
from helpers.instruments import measure

LESSON = (Path(__file__).resolve().parents[1] / "source/lessons/15_profilers_capstone.py").read_text()


def by_operators(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def test_softmax_by_five_operators_makes_eight_passes_and_fused_two():
    x = torch.randn(16, 4096)
    passes = [measure(way, x).bytes_total / x.nbytes for way in (by_operators, kernels.softmax)]
    assert [round(each) for each in passes] == [8, 2]
    assert "Fusing removes six of the eight passes" in LESSON
    assert "| softmax | six passes" in LESSON
