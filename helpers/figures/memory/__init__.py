"""Figures of memory traffic: tensors, warps, threads, shared-memory banks, the parts of a GPU."""
