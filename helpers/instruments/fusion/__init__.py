"""Which operations of a model should be one kernel, and what that brings: before a kernel is written, without a GPU."""

from helpers.instruments.fusion.analyser import analyse
from helpers.instruments.fusion.capture import capture
from helpers.instruments.fusion.plan import FusionEdge, FusionGroup, FusionPlan, FusionScore, TracedOperation

__all__ = ["FusionEdge", "FusionGroup", "FusionPlan", "FusionScore", "TracedOperation", "analyse", "capture"]
