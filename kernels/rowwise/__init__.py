"""Kernels in which a row is the unit of work: one program owns one row or several, and no two need to agree.

What a row is reduced to, a sum, a mean, a maximum, never leaves the program's registers. A row too wide for registers
is read in chunks, twice: once to reduce it and once to write the result.
"""
