"""Grading without trust: what a submitted function launched is written down, and done again where nobody can forge it.

    record     in the submission's sandbox: calls the answer, writes down what it allocated, copied and launched
    kernels    the submitted kernels, taken from the text of the answer and not from the process that ran it
    expected   what the model answer gives, and how closely it must be met
    again      calls that do what was written down: same launches, same tensors, on values the submission has not seen
    server     a process that runs an exercise's own checks on such calls

The record is a claim: "these launches, of these kernels of mine, compute the result". It holds no values, so replaying
it on other inputs proves it or not, whoever wrote it. The meter, the compiler and the reference then look at the
replay alone, in a process where no submitted Python ever runs: only kernels in the closed language of
`helpers.learning.submission_policy.kernel_language`.
"""
