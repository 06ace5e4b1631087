"""Kernels in which one program owns one block of elements and no program needs another's."""
