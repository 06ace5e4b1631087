"""The kernels' sweep as it was recorded on a GPU: where a kernel stands behind a peer, and where it falls between the
sizes that it is tuned for.
"""


def key_of(point: dict) -> tuple:
    """What names a point of the sweep."""
    return (point["kernel"], point["direction"], point["dtype"], point["regime"], tuple(point["shape"]))
