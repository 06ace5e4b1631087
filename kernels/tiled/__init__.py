"""Kernels in which one program owns a tile of the result and walks over what the tile is a sum of.

Operands arrive tile by tile, in shared memory, and feed the tensor cores; the sum stays in registers in fp32 until
the epilogue has used it, and is rounded once.
"""
