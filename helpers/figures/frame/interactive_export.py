"""Export a live figure as data: everything a web page needs to show it without a kernel.

An explorer draws its frames for every position of its sliders beforehand (explorer.py). Here they are drawn for its
choices too, one choice after the other, while all of them together stay small.
"""

import base64
import itertools
import json
import math
import zlib

import ipywidgets as widgets

from helpers.figures.frame.animation import Film, FilmStage
from helpers.figures.frame.explorer import MORE, POSITIONS, Explorer
from helpers.figures.frame.stepper import Stepper, Watch

MAX = 600_000  # bytes of one figure's frames, packed
# Offered where not all fit: lessons name them.
FEW = {
    "GPU": ("T4", "RTX 4090", "H100", "A100", "H200", "B200"),
    "dtype": ("fp32", "bf16", "fp16", "float32", "bfloat16"),
}


def export_interactive(figure) -> dict | None:
    """Return the data that shows a figure without a kernel; None for one that is not live.

    Returns:
        `text`: the line under it. `stage`: the name of the widget whose script draws it. `positions`: its sliders'
        positions. `sliders`, `choices`: a list of {`name`, `labels`, `at`} each, with `folded`, the heading, where the
        reader unfolds it; choices that need a kernel are left out, and a choice of GPUs or dtypes may have only some.
        `states`: the stage's `still` and `data` for each combination of the choices, the last of them running fastest;
        JSON, compressed (zlib), in base64.

    Raises:
        ValueError: the states are too many.
    """
    if isinstance(figure, Film):
        return _alone(figure, FilmStage, figure.data())
    if isinstance(figure, Watch) and figure.scene is not None:
        return _alone(figure, Stepper, figure.scene.data())
    if not isinstance(figure, Explorer):
        return None
    stage, first = figure._stage, _state(figure)
    choices = [
        each for each in figure._choices if each.description not in figure._kernel_only and len(_options(each)) > 1
    ]
    for gpus, dtypes in ((None, None), (4, None), (3, None), (3, 2), (2, 2)):
        most = {"GPU": gpus, "dtype": dtypes}
        changed = [(choice, _few(choice, most.get(choice.description))) for choice in choices]
        count = math.prod(len(options) for _, options in changed)
        if len(first) * count <= 4 * MAX and (states := _states(figure, changed)):
            break
    else:
        raise ValueError(
            f"no room for all choices of {type(figure).__name__}: the states take more than {MAX:,} bytes. Draw fewer "
            "frames, or name choices in _kernel_only."
        )
    return {
        "text": figure.text,
        "stage": type(stage).__name__,
        "positions": [getattr(stage, position) for position in POSITIONS],
        "sliders": [_control(each, folded=figure._folded) for each in figure._sliders],
        "choices": [_control(choice, options, figure._folded) for choice, options in changed],
        "states": states,
    }


def _alone(figure, stage: type, data: dict) -> dict:
    """A figure with controls of its own."""
    return {
        "text": figure.text, "stage": stage.__name__, "positions": [0, 0, 0], "sliders": [], "choices": [],
        "states": [_packed({"still": "", "data": data})],
    }  # fmt: skip


def _control(widget, options: list[tuple] | None = None, folded: tuple[str, ...] = ()) -> dict:
    options = options or _options(widget)
    at = next(number for number, (_, value) in enumerate(options) if value == widget.value)
    control = {"name": widget.description, "labels": [str(label) for label, _ in options], "at": at}
    return control | ({"folded": MORE} if widget.description in folded else {})


def _options(widget) -> list[tuple]:
    """(label, value) of each."""
    if isinstance(widget, widgets.Checkbox):
        return [("no", False), ("yes", True)]
    if isinstance(widget, widgets.Text):
        return [(widget.value, widget.value)]
    return [each if isinstance(each, tuple) else (each, each) for each in widget.options]


def _few(choice, most: int | None) -> list[tuple]:
    """Return the options of a choice; of a long choice of GPUs or dtypes, `most`, including the current one."""
    options = _options(choice)
    if most is None or choice.description not in FEW or len(options) <= most:
        return options
    wanted = [choice.value, *(name for name in FEW[choice.description] if name != choice.value)]
    taken = [name for name in wanted if name in [value for _, value in options]][:most]
    return [each for each in options if each[1] in taken]


def _states(figure: Explorer, changed: list[tuple]) -> list[str] | None:
    """Return the states of every combination; None if they are too large. The choices are restored.

    changed: (choice, its options) of each.
    """
    choices = [choice for choice, _ in changed]
    before, found = [choice.value for choice in choices], []
    for values in itertools.product(*([value for _, value in options] for _, options in changed)):
        _set(choices, values)
        found.append(_state(figure))
        if sum(map(len, found)) > MAX:
            found = None
            break
    _set(choices, before)
    return found


def _set(choices: list, values) -> None:
    for choice, value in zip(choices, values, strict=True):
        choice.value = value


def _state(figure: Explorer) -> str:
    return _packed({"still": figure._stage.still, "data": figure._stage.data})


def _packed(state: dict) -> str:
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
