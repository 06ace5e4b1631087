"""The lab bench: instruments, charts, explorers, checks and grading. Each is imported by its own name."""

from kernels import runtime as runtime  # a learner's @triton.jit works from the first import on, GPU or not
