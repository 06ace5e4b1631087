"""The sweep: time every kernel at many sizes between those that it is tuned for, with its plain variant and its peers.

`points` and `tiled` list the points, `worker` is a process that builds and times them, `run` is the command.
"""
