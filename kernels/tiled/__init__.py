"""Kernels in which one program owns a tile of the result and loops over the terms of its sum.

Operands are loaded tile by tile into shared memory and feed the tensor cores. The sum stays in registers in fp32 until
the epilogue has used it, and is rounded once.
"""
