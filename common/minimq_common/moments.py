"""Moments that users give: what counts as one is decided here, for every call, command and connector."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from minimq_common.errors import InvalidArgument
from minimq_common.words import seconds_of

#: A datetime with a time zone, ISO 8601 text with one, text such as "-24h" (before now), or milliseconds since 1970.
Time = datetime | str | int

#: The latest moment, in milliseconds since 1970: the end of the year 9999, as far as `datetime` counts.
MAX_TIME_MS = 253_402_300_799_999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: From here on a number is likely to be milliseconds since 1970.
LEAST_MS = 10_000_000_000
#: Milliseconds in these first months of 1970 are seconds (1769846400), or a date without hyphens (20260131).
_MISTAKEN_MS = range(10_000_000, LEAST_MS)
#: A longer text is no time.
_MOST_CHARACTERS = 100

#: Clocks of machines may differ by so much: what is later than that is in the future.
_AHEAD_MS = 60_000

_FORMS = "a time such as 2026-01-31T08:00Z, -24h, -90m or -7d, or milliseconds since 1970 such as 1769846400000ms"


def timestamp_ms(given: object, now: float, name: str, also: str = "") -> int:
    """Return the milliseconds since 1970 of a moment that a user gives.

    A datetime and ISO 8601 text need a time zone. Without one they mean different moments on machines whose time zones
    differ, so that messages would be skipped or repeated in silence. Text is also "-24h", a duration before now, or
    milliseconds since 1970: "1769846400000" or "1769846400000ms". What lies before 1970 is 1970, and
    what lies behind the year 9999 is its end.

    Args:
        given: what the user gave; see `Time`.
        now: the time in seconds since 1970.
        name: of the argument or option, for errors.
        also: what else it may be, for errors, such as "'latest', ".

    Raises:
        InvalidArgument: it is no such moment; the text says how to write one.
    """
    match given:
        case bool():
            pass
        case int():
            return _checked_ms(given, name)
        case datetime():
            return _of_datetime(given, repr(given), "datetime.now(UTC), for example, has one", name)
        case str() if len(given) <= _MOST_CHARACTERS:
            found = _of_text(given.strip(), now, name)
            if found is not None:
                return found
    raise InvalidArgument(f"{name} is {_shown(given)}: it must be {also}{_FORMS}")


def moment(ms: int) -> datetime:
    """Return the moment so many milliseconds after 1970 began, in UTC; the nearest that the calendar has.

    Another process may have said the number: clocks and peers can be wrong without limit.
    """
    return _EPOCH + timedelta(milliseconds=min(max(ms, 0), MAX_TIME_MS))


def start_ms(given: object, now: float, name: str, also: str = "") -> int:
    """Return the milliseconds since 1970 of a moment at which reading begins: as `timestamp_ms`, but not in the future.

    Nothing is stored in the future, so that such a start would pass over everything in silence.
    """
    ms = timestamp_ms(given, now, name, also)
    if ms > now * 1000 + _AHEAD_MS:
        raise InvalidArgument(
            f"{name} is {_shown(given)}, which is in the future: give a past time, or 'latest' for messages sent from "
            "now on"
        )
    return ms


def _shown(given: object) -> str:
    shown = repr(given)
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."


def _of_text(text: str, now: float, name: str) -> int | None:
    number = text.removesuffix("ms")
    if number.isascii() and number.isdecimal():
        return _checked_ms(int(number), name)
    if text.startswith("-"):
        seconds = seconds_of(text[1:])
        return None if seconds is None else max(round((now - seconds) * 1000), 0)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _of_datetime(when, repr(text), _spelled(when), name)


def _of_datetime(when: datetime, shown: str, remedy: str, name: str) -> int:
    if when.utcoffset() is None:
        raise InvalidArgument(f"{name} is {shown}, which has no time zone: {remedy}")
    return min(max(round(when.timestamp() * 1000), 0), MAX_TIME_MS)


def _spelled(when: datetime) -> str:
    text = when.isoformat()
    try:
        local = f", or {when.astimezone().isoformat()} for the local time of this machine"
    except (OverflowError, OSError, ValueError):  # at the edges of the calendar
        local = ""
    return f"write {text}Z for UTC{local}"


def _checked_ms(ms: int, name: str) -> int:
    if not 0 <= ms <= MAX_TIME_MS:
        raise InvalidArgument(f"{name} is {ms}: milliseconds since 1970 are 0 to {MAX_TIME_MS}")
    if ms in _MISTAKEN_MS:
        raise InvalidArgument(
            f"{name} is {ms}, which is {moment(ms):%Y-%m-%dT%H:%M}Z in milliseconds since 1970: write {ms}000 if it is "
            "seconds, or a time such as 2026-01-31T08:00Z"
        )
    return ms
