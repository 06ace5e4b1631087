"""Replay a submission's launches where nothing can be forged, and judge the replay.

In:   the record of a call, written in the submission's sandbox: allocations, copies and launches, but no values.
Out:  a verdict per check, with the values of the replay, its traffic and its compiled kernels.

The record is a claim: "these launches of my kernels compute the result". It contains no values, so replaying it on
other inputs proves or refutes the claim, even if the record was forged. The meter, the compiler and the reference see
only the replay, in a process where no submitted Python ever runs: only kernels in the restricted language of
`helpers.learning.submission_policy.kernel_language`.

There are three processes, and each trusts only those below it:

    sandbox     call_record        calls the answer; writes down what it allocated, copied and launched
    replayer    replayer           START HERE; has one call's inputs, and no expected value, seed or model answer
                submitted_kernels  the kernels, taken from the text of the answer, not from the process that ran it
                replayed_call      repeats the recorded launches on inputs that the submission has not seen
    judge       server             runs the exercise's own checks on a RemoteAnswer, never on submitted code
                remote_answer      stands for the answer: each call becomes a question to the replayer
                expected           the model answer's values, and how closely they must be met

They communicate through `channel` (bounded messages with a nonce and a deadline), `tensors` (arguments and results as
JSON and bytes) and `wire` (traffic, compiled kernels and errors as messages, whose types are checked on arrival).
"""
