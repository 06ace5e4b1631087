"""Decide which operations of a model should share a kernel, and predict the gain, before any kernel is written.

In:   a model (any function of tensors that can be traced) with its inputs, and a GPU's name; no GPU is needed.
Out:  a FusionPlan: the operations, the edges between them with the bytes each carries, the groups that should be one
      kernel with bytes, registers and predicted time before and after, and the reason for each edge left unfused.

`analyse` (analyser.py, START HERE) runs one module after another:

    capture             traces the model into a graph of ATen operators, one node per operator that eager would launch
    operation_account   dry-runs each node under the traffic meter's rules: launches, bytes, dependencies
    graph_nodes         keeps the operations that launch; cheap ones are inlined into their readers
    legality            decides which operations can share a kernel, with the reason if not
    cost                computes a group's bytes, registers and time
    search              finds the fastest partition into groups
    plan                holds the result, its score (score) and existing kernels for it (existing_kernels)

    operator_kinds      classifies operators and counts their FLOPs
    plan_report         shows a plan as text, table or page; `drawing` draws its graph
    generated_kernel    writes a pointwise group as a Triton kernel, to compile it and compare registers
    small_graph         the same rules and costs for a graph of plain values, which exercise 13 uses
    analyse_command     the command `fusion analyse module.py:build`

A plan is a prediction. How accurate it is on graphs outside the course is measured in docs/fusion_proof.md.
"""

from helpers.instruments.fusion.analyser import analyse
from helpers.instruments.fusion.capture import capture
from helpers.instruments.fusion.plan import FusionEdge, FusionGroup, FusionPlan, FusionScore, TracedOperation

__all__ = ["FusionEdge", "FusionGroup", "FusionPlan", "FusionScore", "TracedOperation", "analyse", "capture"]
