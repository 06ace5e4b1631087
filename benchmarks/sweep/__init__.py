"""The sweep: every kernel at many sizes between those that it is tuned for, beside its plain variant and its peers.

`points` and `tiled` list what is timed, `worker` is a process that builds and times points, `run` is the command.
"""
