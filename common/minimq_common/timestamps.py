"""Parses points in time that users give to calls, commands and Spark options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from minimq_common.errors import InvalidArgument
from minimq_common.text_units import seconds_of

#: A datetime with a time zone, ISO 8601 text with one, text such as "-24h" (before now), or milliseconds since 1970.
Time = datetime | str | int

#: The latest time, in milliseconds since 1970: the end of the year 9999, which is the limit of `datetime`.
MAX_TIME_MS = 253_402_300_799_999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Numbers from here on are taken for milliseconds since 1970.
MIN_MS = 10_000_000_000
#: As milliseconds these are in the first months of 1970. More likely the user means seconds (1769846400) or a date
#: without hyphens (20260131).
_MISTAKEN_MS = range(10_000_000, MIN_MS)
#: Limit for text that can be a time, and for what an error quotes.
_MAX_CHARACTERS = 100

#: Tolerated clock skew between machines: only later times count as being in the future.
_AHEAD_MS = 60_000

_FORMS = "a time such as 2026-01-31T08:00Z, -24h, -90m or -7d, or milliseconds since 1970 such as 1769846400000ms"


def timestamp_ms(given: object, now: float, name: str, also: str = "") -> int:
    """Convert a time that a user gives to milliseconds since 1970.

    A datetime and ISO 8601 text need a time zone: otherwise machines in different time zones would silently skip or
    repeat messages. Text may also be a duration before now ("-24h"), or milliseconds since 1970 ("1769846400000" or
    "1769846400000ms"). A datetime or a duration before 1970 counts as 1970, a datetime after the year 9999 as its end;
    milliseconds outside of these years are rejected.

    Args:
        given: The value from the user; see `Time`.
        now: The current time in seconds since 1970.
        name: Name of the argument or option, for errors.
        also: Other values that it may have, for errors, such as "'latest', ".

    Raises:
        InvalidArgument: The value is not a time; the text shows valid ones.
    """
    match given:
        case bool():
            pass
        case int():
            return _checked_ms(given, name)
        case datetime():
            return _of_datetime(given, repr(given), "datetime.now(UTC), for example, has one", name)
        case str() if len(given) <= _MAX_CHARACTERS:
            found = _of_text(given.strip(), now, name)
            if found is not None:
                return found
    raise InvalidArgument(f"{name} is {_shown(given)}: it must be {also}{_FORMS}")


def moment(ms: int) -> datetime:
    """Convert milliseconds since 1970 to a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, 0), MAX_TIME_MS))


def start_ms(given: object, now: float, name: str, also: str = "") -> int:
    """Convert the time from which to read, like `timestamp_ms`, but reject the future."""
    ms = timestamp_ms(given, now, name, also)
    if ms > now * 1000 + _AHEAD_MS:
        raise InvalidArgument(
            f"{name} is {_shown(given)}, which is in the future: give a past time, or 'latest' for messages sent from "
            "now on"
        )
    return ms


def _shown(given: object) -> str:
    shown = repr(given)
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."


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
    except (OverflowError, OSError, ValueError):  # close to the limits of the calendar
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
