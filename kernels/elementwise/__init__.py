"""Kernels in which each program owns one block of elements and needs no other program's results."""
