"""Export a live figure as data: everything a web page needs to show it without a kernel.

An explorer draws its frames for every position of its sliders beforehand (explorer.py). Here they are drawn for its
choices too, one choice after the other, while all of them together stay small.
"""

import base64
import itertools
import json
import zlib

import ipywidgets as widgets

from helpers.figures.frame.animation import Film, FilmStage
from helpers.figures.frame.explorer import POSITIONS, Explorer
from helpers.figures.frame.stepper import Stepper, Watch

MAX = 600_000  # bytes of one figure's frames, packed
GPUS = ("T4", "RTX 4090", "H100", "A100", "H200", "B200")  # offered where not all fit: lessons name them


def export_interactive(figure) -> dict | None:
    """Return the data that shows a figure without a kernel; None for one that is not live.

    Returns:
        `text`: the line under it. `stage`: the name of the widget whose script draws it. `positions`: its sliders'
        positions. `sliders`, `choices`: a list of {`name`, `labels`, `at`} each; choices that need a kernel are left
        out, and a choice of GPUs may have only some. `states`: the stage's `still` and `data` for each combination of
        the choices, the last of them running fastest; JSON, compressed (zlib), in base64.

    Raises:
        ValueError: the states are too many for one of the choices.
    """
    if isinstance(figure, Film):
        return _alone(figure, FilmStage, figure.data())
    if isinstance(figure, Watch) and figure.scene is not None:
        return _alone(figure, Stepper, figure.scene.data())
    if not isinstance(figure, Explorer):
        return None
    stage, states, changed = figure._stage, [_state(figure)], []
    # A choice of GPUs, which may be cut, gets the room that the others leave.
    for choice in sorted(figure._choices, key=lambda each: each.description == "GPU"):
        for options in (_options(choice), _few(choice, 4), _few(choice, 3), _few(choice, 2)):
            if len(options) < 2 or len(states[0]) * len(states) * len(options) > 2 * MAX:
                continue
            wider = sorted([*changed, (choice, options)], key=lambda each: figure._choices.index(each[0]))
            if found := _states(figure, wider):
                states, changed = found, wider
                break
        else:
            if len(_options(choice)) > 1:
                raise ValueError(
                    f"no room for the choice {choice.description!r} of {type(figure).__name__}: with two options "
                    f"the states take more than {MAX:,} bytes. Draw fewer frames."
                )
    return {
        "text": figure.text,
        "stage": type(stage).__name__,
        "positions": [getattr(stage, position) for position in POSITIONS],
        "sliders": [_control(each) for each in figure._sliders],
        "choices": [_control(choice, options) for choice, options in changed],
        "states": states,
    }


def _alone(figure, stage: type, data: dict) -> dict:
    """A figure with controls of its own."""
    return {
        "text": figure.text, "stage": stage.__name__, "positions": [0, 0, 0], "sliders": [], "choices": [],
        "states": [_packed({"still": "", "data": data})],
    }  # fmt: skip


def _control(widget, options: list[tuple] | None = None) -> dict:
    options = options or _options(widget)
    at = next(number for number, (_, value) in enumerate(options) if value == widget.value)
    return {"name": widget.description, "labels": [str(label) for label, _ in options], "at": at}


def _options(widget) -> list[tuple]:
    """(label, value) of each."""
    if isinstance(widget, widgets.Checkbox):
        return [("no", False), ("yes", True)]
    if isinstance(widget, widgets.Text):
        return [(widget.value, widget.value)]
    return [each if isinstance(each, tuple) else (each, each) for each in widget.options]


def _few(choice, count: int) -> list[tuple]:
    """Return `count` options of a choice of GPUs, in their order, including the current one; none of other choices."""
    if choice.description != "GPU":
        return []
    wanted = [choice.value, *(name for name in GPUS if name != choice.value)]
    taken = [name for name in wanted if name in [value for _, value in _options(choice)]][:count]
    return [each for each in _options(choice) if each[1] in taken]


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
