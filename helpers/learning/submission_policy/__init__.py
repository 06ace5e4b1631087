"""Decide from the text of a submission's answers what may be graded, before anything runs.

In:   the source of the answer cells. Out: the functions and kernels to grade, or refusals that name a line.

`screening.screened` (START HERE) calls the other modules. `fusion check` and `fusion grade` both call it:

    unambiguous_source   refuses text that Python, IPython, linecache or Triton would read differently
    kernel_language      the closed language of @triton.jit kernels
    launcher_language    the Python around them: allocate, view, launch
    plain_language       the Python of answers that are numbers or settings and launch nothing
"""
