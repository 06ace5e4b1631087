"""Due dates, delays and the deduction for them.

    --due "2026-11-01 23:59 Europe/Berlin"        with its zone: +01:00, Z or a name
    --late "10 % a day, at most 50 %, grace 15 min"

A share refers to the exercise's points, as in Canvas. Each day, hour or week that has begun since the due date counts
in full. A hand-in within the grace period costs nothing. Without "a day", the share is taken once.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from helpers.grading.csv_tables import number

UNITS = {"min": 60, "h": 3600, "hour": 3600, "day": 86400, "d": 86400, "week": 604800}  # seconds
SPAN = re.compile(r"\s*(\d+(?:[.,]\d+)?)\s*(minute|min|hour|h|day|d|week)s?\s*", re.ASCII)
SHARE = re.compile(r"(\d+(?:[.,]\d+)?) ?%(?: (?:a|an|per|each|every) (hour|day|week)| once)?", re.ASCII)
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ]+(\d\d:\d\d)(?::(\d\d)(?:\.\d+)?)?\s*([+-]\d\d:?\d\d|[A-Za-z][A-Za-z0-9_+/-]*)?", re.ASCII
)
# Moodle's grading worksheet in English: "Wednesday, 10 June 2026, 2:14 PM", "Wednesday, June 10, 2026, 2:14 PM".
OF_MOODLE = ("%A, %d %B %Y, %I:%M %p", "%A, %B %d, %Y, %I:%M %p")
MAX_LATE = timedelta(days=36500)


@dataclass(frozen=True)
class LateRule:
    """The price of lateness.

    Args:
        share: percent of the exercise's points, taken for each `unit` begun, or once without a unit.
        unit: seconds, or 0.
        most: percent, at most.
        grace: a delay up to this costs nothing.
        text: the rule as given.
    """

    share: Decimal
    unit: int
    most: Decimal
    grace: timedelta
    text: str

    def cost(self, late: timedelta, points: Decimal) -> Decimal:
        """Return the deduction, to a hundredth of a point, if an exercise worth `points` is this late."""
        if late <= max(self.grace, timedelta()):
            return Decimal(0)
        times = -(-late // timedelta(seconds=self.unit)) if self.unit else 1
        return (min(self.share * times, self.most) * points / 100).quantize(Decimal("0.01"))


def rule_in(text: str) -> LateRule:
    """Parse a rule from a line; ValueError, one line, if it's malformed."""
    share = unit = most = grace = None
    for clause in filter(None, (part.strip() for part in re.split(r"[,;](?!\d)", " ".join(text.lower().split())))):
        if match := re.fullmatch(r"at most (\d+(?:[.,]\d+)?) ?%", clause, re.ASCII):
            given, most = most, number(match[1])
        elif clause.startswith("grace "):
            given, grace = grace, span_in(clause.removeprefix("grace "))
        elif match := SHARE.fullmatch(clause):
            given, share = share, number(match[1])
            unit = UNITS.get(match[2], 0)
        else:
            raise ValueError(
                f"--late {text!r}: {clause!r} is not understood: write 10 % a day, at most 50 %, grace 15 min"
            )
        if given is not None:
            raise ValueError(f"--late {text!r}: {clause!r} repeats an earlier part: remove one")
    if share is None:
        raise ValueError(f"--late {text!r} has no share of the points: write 10 % a day, or 20 % once")
    most = Decimal(100) if most is None else most
    if share > 100 or most > 100:
        raise ValueError(f"--late {text!r} takes more than 100 %: write at most that")
    return LateRule(share, unit, most, grace or timedelta(), " ".join(text.split()))


def span_in(text: str) -> timedelta:
    """Parse a time span such as "90 min", "2 days" or "1 day 12 h"; ValueError if it's malformed."""
    text, total, at = text.lower().strip(), timedelta(), 0
    while match := SPAN.match(text, at):
        seconds = UNITS[{"minute": "min"}.get(match[2], match[2])]
        total += timedelta(seconds=float(number(match[1]) * seconds))
        at = match.end()
    if at < len(text) or not text:
        raise ValueError(f"{text!r} is not a span of time such as 90 min, 36 h or 2 days")
    if total > MAX_LATE:
        raise ValueError(f"{text!r} is more than a hundred years")
    return total


def time_in(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse a time that has a zone, or is in `zone`, and return it in UTC; ValueError if it's malformed or the zone is
    unknown."""
    text = " ".join(text.split())
    for pattern in OF_MOODLE:
        try:
            moment, named = datetime.strptime(text, pattern), ""
        except ValueError:
            continue
        break
    else:
        if not (match := TIME.fullmatch(text)):
            raise ValueError(f"{text!r} is not a time such as 2026-11-01 23:59 +01:00")
        named = match[4] or ""
        try:
            moment = datetime.fromisoformat(f"{match[1]}T{match[2]}:{match[3] or '00'}")
        except ValueError as error:
            raise ValueError(f"{text!r} is not a time: {error}") from None
    if named:
        zone = zone_in(named)
    if zone is None:
        raise ValueError(f"{text!r} has no zone: write {text} +01:00, or {text} Europe/Berlin")
    try:
        return moment.replace(tzinfo=zone).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None


def zone_in(named: str) -> tzinfo:
    if named[0] in "+-":
        return datetime.strptime(named, "%z").tzinfo
    try:
        return UTC if named.upper() in ("Z", "UTC") else ZoneInfo(named)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown zone {named}: write +01:00, Z or Europe/Berlin") from None


@dataclass(frozen=True)
class DueDates:
    """Due dates: number or name -> time in UTC, with "" for all others.

    `zone` is the zone of the first date; times in tables that have no zone are read in it.
    """

    dates: dict[str, datetime] = field(default_factory=dict)
    zone: tzinfo | None = None

    def of(self, exercise: str) -> datetime | None:
        named = (date for name, date in self.dates.items() if name and f"{exercise}_".startswith(f"{name}_"))
        return next(named, self.dates.get(""))


def due_dates(given: list[str], exercises: list[str]) -> DueDates:
    """Parse "2026-11-01 23:59 +01:00" for all, or "03=2026-11-01 23:59 +01:00"; ValueError if one is malformed."""
    dates, zone = {}, None
    for text in given:
        name, equals, when = text.rpartition("=")
        if equals and not any(f"{exercise}_".startswith(f"{name.strip()}_") for exercise in exercises):
            raise ValueError(
                f"--due {text!r}: no exercise {name.strip()!r} is graded: choose from {', '.join(exercises)}"
            )
        if name.strip() in dates:
            raise ValueError(f"--due {text!r}: a second date: name its exercise, 03=2026-11-01 23:59 +01:00")
        try:
            dates[name.strip()] = time_in(when)
        except ValueError as error:
            raise ValueError(f"--due: {error}") from None
        named = TIME.fullmatch(" ".join(when.split()))
        zone = zone or (zone_in(named[4]) if named and named[4] else None)
    return DueDates(dates, zone)


def shown_span(late: timedelta) -> str:
    """Format a delay, such as "26 h", "3 days 2 h", "12 min"."""
    minutes = -(-late // timedelta(minutes=1))
    days, hours = divmod(minutes // 60, 24)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{days} days" + (f" {hours} h" if hours else "")
