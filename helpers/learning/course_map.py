"""Build the course's overview page in Markdown: lessons, exercises, progress, and the next step."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.learning.progress import Progress, in_all, progress_of, read
from helpers.learning.questions import answers_of, text
from helpers.learning.saved_guesses import kept_in

# The course in three parts: the first lesson of each, its name, and its topic.
PARTS = (
    ("00", "Memory", "Why most kernels wait for memory, how to count what they move, and a first fused kernel."),
    ("04", "Kernels", "Fused kernels one idea at a time: elementwise, row-wise, matmul, attention, training, int8."),
    (
        "13",
        "Deciding",
        "What to fuse in a whole model, what Triton decides for you, and how to check it in a profiler.",
    ),
)
WHAT = (
    "Each lesson is a notebook: it asks for your guess, then measures. Exercises ask you to write the kernel. No GPU "
    "is needed."
)
DRAWINGS = "COURSE_MAP_files"  # the folder with a drawing for each lesson, NN.svg, next to the page
BOXES = 5  # in a lesson's progress bar


@dataclass(frozen=True)
class Lesson:
    """One lesson, with its description, progress and exercises.

    Args:
        minutes: as announced in its first cell.
        questions: the number of questions that ask for a guess.
        seen: how many of their answers the reader has seen.
        off: the factor by which each guess was off, 1 or more.
    """

    path: Path
    title: str
    minutes: int
    questions: int
    seen: int
    off: tuple[float, ...]
    exercises: tuple[tuple[Path, Progress], ...]

    @property
    def minutes_left(self) -> float:
        return self.minutes * (1 - self.seen / self.questions) if self.questions else 0

    @property
    def open_exercises(self) -> list[Path]:
        return [path for path, progress in self.exercises if progress.earned < sum(progress.points.values())]


def lessons_of(course: Path) -> list[Lesson]:
    """Return the lessons in `course`/notebooks in order. An exercise belongs to the lesson with its number."""
    exercises = {path: found for path in _notebooks(course / "exercises") if (found := progress_of(path))}
    lessons = []
    for path in _notebooks(course / "notebooks"):
        notebook = read(path)
        try:
            opening = text(notebook["cells"][0]["source"])
            questions = answers_of(notebook)
        except (TypeError, KeyError, IndexError):
            continue
        minutes = minutes_in(opening)
        title = re.match(r"# (?:\d+[a-z]? )?(.+)", opening)
        if minutes is None or title is None:  # not a lesson, such as the bench for experiments
            continue
        kept = {question: each for question, each in kept_in(path).items() if question in questions}
        seen = [each for each in kept.values() if each.found is not None]
        number = path.stem.partition("_")[0]
        own = tuple((at, found) for at, found in exercises.items() if re.match(rf"{number}[a-z]?_", at.stem))
        off = tuple(
            max(each.guess / each.found, each.found / each.guess)
            for each in seen
            if each.guess and each.found and each.guess * each.found > 0
        )
        lessons.append(Lesson(path, title[1], minutes, len(questions), len(seen), off, own))
    return lessons


def minutes_in(opening: str) -> int | None:
    """Return how long a notebook takes, as its first cell announces it: "About 40 minutes", or "takes about 40"."""
    told = re.search(r"\b[Aa]bout (\d+)\s+minutes", opening)
    return int(told[1]) if told else None


def minutes_of(notebook: Path) -> int | None:
    try:
        return minutes_in(text(read(notebook)["cells"][0]["source"]))
    except (TypeError, KeyError, IndexError):
        return None


def _notebooks(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ipynb"), key=lambda path: path.stem)


def course_map(course: Path) -> str:
    """Return the page: where to continue, a one-line summary, and a row per lesson with its exercises."""
    lessons = lessons_of(course)
    everything = [found for lesson in lessons for _, found in lesson.exercises]
    left = sum(lesson.minutes_left for lesson in lessons)
    done = sum(lesson.seen for lesson in lessons), sum(lesson.questions for lesson in lessons)
    return "\n".join(
        [
            "# The course",
            "",
            WHAT,
            "",
            f"**{_where_to_go_on(lessons, course)}**",
            "",
            f"{done[0]} of {done[1]} questions seen, {in_all(everything)}, about {_hours(left)} of lessons "
            f"left.{_calibrated([off for lesson in lessons for off in lesson.off])}",
            "",
            *map_table(lessons, course),
            "",
            "A lesson is done when its questions are; your guesses and check results are saved next to the "
            "notebooks. This page is redrawn each time you open it.",
            "",
        ]
    )


def still_map(course: Path) -> str:
    """Return only the table, as it looks before the learner has done anything."""
    return "\n".join(map_table([replace(lesson, seen=0, off=()) for lesson in lessons_of(course)], course, still=True))


def map_table(lessons: list[Lesson], course: Path, still: bool = False) -> list[str]:
    """Return one table per part; a still one shows no progress."""
    lines = []
    for name, aim, own in parts_of(lessons):
        lines += [f"**{name}.** {aim}", "", *_table(own, course, still), ""]
    return lines[:-1]


def parts_of(lessons: list[Lesson]) -> list[tuple[str, str, list[Lesson]]]:
    """Return the name, aim and lessons of each of PARTS that has lessons."""
    ends = [*(first for first, *_ in PARTS[1:]), "~"]
    found = [
        (name, aim, [lesson for lesson in lessons if first <= _number(lesson.path) < end])
        for (first, name, aim), end in zip(PARTS, ends, strict=True)
    ]
    return [part for part in found if part[2]]


def _table(lessons: list[Lesson], course: Path, still: bool) -> list[str]:
    if still:
        rows = ["| lesson | minutes | questions | exercises |", "|---|--:|--:|---|"]
    else:
        rows = ["| | lesson | minutes | done | your guesses | exercises |", "|---|---|--:|---|---|---|"]
    for lesson in lessons:
        name = _link(lesson.path, course, f"{_number(lesson.path)} {lesson.title}")
        done = [str(lesson.questions)] if still else [_bar(lesson), _typical(lesson.off)]
        exercises = "; ".join(
            f"{_link(path, course, _number(path))}, {_time(path)}{_points(found, still)}"
            for path, found in lesson.exercises
        )
        drawing = [] if still else [f'<img src="{DRAWINGS}/{_number(lesson.path)}.svg" width="68" alt="">']
        rows.append(f"| {' | '.join([*drawing, name, str(lesson.minutes), *done, exercises])} |")
    return rows


def _where_to_go_on(lessons: list[Lesson], course: Path) -> str:
    if not any(lesson.seen for lesson in lessons):
        first = lessons[0] if lessons else None
        return f"Start here: {_link(first.path, course, f'{_number(first.path)} {first.title}')}" if first else "Empty"
    for lesson in lessons:
        if lesson.seen < lesson.questions:
            return f"Go on here: {_link(lesson.path, course, f'{_number(lesson.path)} {lesson.title}')}"
        for path in lesson.open_exercises:
            return f"Go on here: {_link(path, course, f'exercise {_number(path)}')}"
    return "Every lesson and every exercise is done."


def _link(path: Path, course: Path, name: str) -> str:
    return f"[{name}]({path.relative_to(course).as_posix()})"


def _number(path: Path) -> str:
    return path.stem.partition("_")[0]


def _time(exercise: Path) -> str:
    minutes = minutes_of(exercise)
    return f"{minutes} minutes, " if minutes else ""


def _points(found: Progress, still: bool) -> str:
    earned = f"{found.earned:g} of " if found.states and not still else ""
    return f"{earned}{found.total:g} points"


def _bar(lesson: Lesson) -> str:
    if not lesson.questions:
        return ""
    filled = BOXES * lesson.seen // lesson.questions
    return f"{'■' * filled}{'□' * (BOXES - filled)} {lesson.seen} of {lesson.questions}"


def _typical(off: tuple[float, ...] | list[float]) -> str:
    """Return the geometric mean of how far off the guesses were, as factors."""
    if not off:
        return ""
    mean = math.exp(sum(map(math.log, off)) / len(off))
    return "right" if mean < 1.02 else f"{mean:.2g} times off"


def _calibrated(off: list[float]) -> str:
    return f" Your guesses: {_typical(off)}, in the geometric mean of {len(off)}." if off else ""


def _hours(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.0f} hours"
