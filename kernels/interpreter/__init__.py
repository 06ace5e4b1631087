"""Run kernels without a GPU in a corrected version of Triton's interpreter, and refuse what it would get wrong.

runtime.py decides where a launch runs and corrects the interpreter; advice.py explains its errors; bounds.py refuses
out-of-bounds accesses; hints.py checks tl.multiple_of and similar hints against the values.
"""
