"""Runs kernels where there is no GPU, in Triton's interpreter put right, and refuses what would be wrong there.

runtime.py decides where a launch goes and corrects the interpreter; advice.py words its errors; bounds.py refuses
accesses outside every tensor; hints.py checks tl.multiple_of and its kin against the values.
"""
