"""Tensor-core instructions of a warp."""

BUILDERS = {}
