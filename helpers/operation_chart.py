"""The bytes that an operation moves, launch by launch, unfused and fused, as bars."""

from helpers.charts import FUSED, UNFUSED, Chart, si
from helpers.devices import Device
from helpers.operations import Launch, Versions
from helpers.page_bars import Box, Label, Panel, Scene, axis_end, picture, still

SIZE = (576, 160)  # points
COLOURS = {"unfused": UNFUSED, "fused": FUSED}
ROWS = {"unfused": 68, "fused": 104}  # the middle of each version's bar
READ, WRITTEN = 24, 12  # heights
MOVED = Panel(64, 430, "bytes moved, launch by launch: wide bars are read, narrow ones written")


def operation_scene(versions: Versions, device: Device, what: str) -> Scene:
    """The bars of one operation on one device; times are bytes over its bandwidth. `what` opens the line of text."""
    by_version = {"unfused": versions.unfused, "fused": versions.fused}
    end = axis_end(max(_moved(launches) for launches in by_version.values()))
    scale = (MOVED.right - MOVED.left) / end
    boxes, labels, told = [], [], []
    for version, launches in by_version.items():
        x, y = MOVED.left, ROWS[version]
        for launch in launches:
            for nbytes, height in ((launch.work.bytes_read, READ), (launch.work.bytes_written, WRITTEN)):
                boxes.append(Box(x, y, nbytes * scale, height, COLOURS[version]))
                x += nbytes * scale
        moved = _moved(launches)
        cost = f"{si(moved, 'B')}, {si(moved / device.memory_bandwidth, 's')}"
        labels.append(Label(cost, x + 5, y, "left"))
        count = f"{len(launches)} launch{'es' if len(launches) > 1 else ''}"
        told.append(f"{version} {count}, {cost}")
    title = _finding(versions)
    return Scene(title, tuple(boxes), (*labels, *MOVED.ends(end, SIZE)), f"{what}: {'; '.join(told)}. {title}.")


def _moved(launches: tuple[Launch, ...]) -> int:
    return sum(launch.work.bytes for launch in launches)


def _finding(versions: Versions) -> str:
    if versions.fused == versions.unfused:
        return "Nothing to fuse: it is one launch already"
    return f"Fusing moves {_moved(versions.unfused) / _moved(versions.fused):.2f} times fewer bytes"


def operation_axes():
    """What stays still: the versions' names, the panel's head and its axis."""
    return still(SIZE, ROWS, (MOVED,))


def operation_chart(shown: Scene) -> Chart:
    """One bar a version, as long as the bytes that it moves: what each launch reads, then what it writes."""
    return picture(*operation_axes(), shown)
