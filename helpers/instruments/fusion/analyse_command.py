"""`fusion analyse module.py:build`: run the analyser on any model."""

import importlib
import importlib.util
import sys
from pathlib import Path

from tqdm import tqdm

from helpers.instruments.devices import DEVICES
from helpers.instruments.fusion.analyser import analyse
from helpers.instruments.fusion.plan_report import FusionReport


def analyse_named(
    name: str, device: str = "H200", backward: bool = False, epilogues: bool = True, page: str | None = None
) -> str:
    """Return the report on `file.py:function` or `package.module:function`, which returns (model, inputs).

    Inputs: one tensor, a tuple, or a dict of keyword arguments, which may also be returned as a third item.

    Raises:
        ValueError: no such function or device, the function returns something else, or its model cannot be analysed.
    """
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}: choose from {', '.join(DEVICES)}")
    build = _function(name)
    model, inputs, keywords = _given(build(), name)
    with _Bar() as bar:
        options = {"device": device, "backward": backward, "epilogues": epilogues, "progress": bar.show}
        plan = analyse(model, *inputs, keywords=keywords, **options)
    report = FusionReport(plan)
    if page:
        report.save(page)
    return repr(report)


def _given(given, name: str) -> tuple:
    """Return (model, inputs, keywords) from a function's result; inputs in a dict are keyword arguments."""
    if not (isinstance(given, tuple) and len(given) in (2, 3)):
        raise ValueError(f"{name} returns {type(given).__name__}: it must return (model, inputs)")
    model, inputs, *more = given
    keywords = more[0] if more else {}
    if not isinstance(keywords, dict):
        raise ValueError(f"{name} returns {type(keywords).__name__} as third: it must return (model, inputs, keywords)")
    if isinstance(inputs, dict):
        inputs, keywords = (), {**inputs, **keywords}
    return model, inputs if isinstance(inputs, tuple | list) else (inputs,), keywords


def _function(name: str):
    place, _, function = name.rpartition(":")
    if not place:
        raise ValueError(f"{name} names no function: write model.py:build or package.module:build")
    try:
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
    except ImportError as error:
        raise ValueError(f"{place} cannot be imported: {' '.join(str(error).split())}") from error
    if not callable(found := getattr(module, function, None)):
        raise ValueError(f"{place} has no function {function}: define one that returns (model, inputs)")
    return found


def _module(place: str):
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(place)


def _file(path: Path):
    if not path.is_file():
        raise ValueError(f"no file {path}: pass a file with a function that returns (model, inputs)")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class _Bar:
    """Report progress on stderr if it is a terminal: one line for each task."""

    def __init__(self):
        self._what, self._bar = None, None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, done: int, of: int) -> None:
        if what != self._what:
            self.__exit__()
            self._what, self._bar = what, tqdm(desc=what, total=of, leave=False, disable=None)
        self._bar.update(done - self._bar.n)
