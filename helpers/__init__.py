"""The lab bench, in four rooms: instruments, figures, learning, grading. A room's names are imported from the room."""

from kernels.interpreter import runtime as runtime  # a learner's @triton.jit works from the first import on, GPU or not
