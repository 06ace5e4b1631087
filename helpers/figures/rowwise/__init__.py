"""Figures of lessons 05 and 06: numerical error and wide rows in row-wise kernels."""
