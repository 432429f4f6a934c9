"""Parses the values of options. Errors are one line, and name the option."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from minimq import MinimqError
from minimq.consuming.message_filter import wanted_tags
from minimq_common.model import MessageQueue
from minimq_common.timestamps import timestamp_ms
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import EARLIEST, LATEST, Offsets, TimesByQueue

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS = 'earliest, latest, or {"topic": {"broker": {"queue": offset}}}'
_QUEUES = '{"topic": {"broker": [queue, queue]}}'
_TIMES = '{"topic": {"broker": {"queue": time}}}'

#: Seconds and bytes by unit, as in Spark.
_SECONDS = {"ms": 0.001, "": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_AMOUNT = re.compile(r"(\d{1,18})\s*([a-z]*)")
#: Longer numbers are rejected before they are parsed.
_MAX_DIGITS = 20
#: Above the 64-bit integers of Spark.
_TOO_LARGE = 1 << 63
#: The types of values in JSON, by topic, broker and queue.
_QueueId = Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]{0,8})$")]
_OffsetTree = dict[str, dict[str, dict[_QueueId, Annotated[int, msgspec.Meta(ge=EARLIEST)]]]]
_TimeTree = dict[str, dict[str, dict[_QueueId, int | str]]]
_QueueTree = dict[str, dict[str, list[Annotated[int, msgspec.Meta(ge=0)]]]]
#: An error quotes this many characters of a value.
_SHOWN = 200


def names(_: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def pattern(option: str, text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise MinimqSparkError(f"{option} is {_shown(text)}, which is not a regular expression: {error}") from None
    return text


def tags(option: str, text: str) -> frozenset[str] | None:
    """Return the tags in an expression such as "paid || refunded"; None for all tags."""
    try:
        return wanted_tags(text)
    except MinimqError as error:
        raise MinimqSparkError(f"{option}: {error.message}") from None


def count(option: str, text: str) -> int:
    """Return a whole number above 0."""
    if not _is_whole(text) or not 0 < int(text) < _TOO_LARGE:
        raise MinimqSparkError(f"{option} is {_shown(text)}: write a whole number above 0")
    return int(text)


def number(option: str, text: str) -> int:
    """Return a whole number from 0 on."""
    if not _is_whole(text):
        raise MinimqSparkError(f"{option} is {_shown(text)}: write a whole number, 0 or above")
    return int(text)


def flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise MinimqSparkError(f"{option} is {_shown(text)}: write true or false")
    return text.lower() == "true"


def size(option: str, text: str) -> int:
    """Return a number of bytes, from text with or without a unit: 1000000, 64m, 1g."""
    match = _AMOUNT.fullmatch(text.lower())
    found = int(match[1]) * _BYTES.get(match[2], 0) if match is not None else 0
    if not 0 < found < _TOO_LARGE:
        raise MinimqSparkError(f"{option} is {_shown(text)}: write a number of bytes, or for example 64m or 1g")
    return found


def duration(option: str, text: str) -> float:
    """Return seconds; a number above 0 needs a unit, because it would mean milliseconds elsewhere in Spark."""
    match = _AMOUNT.fullmatch(text.lower())
    if match is not None and not match[2] and int(match[1]):
        raise MinimqSparkError(f"{option} is {_shown(text)}, without a unit: write {match[1]}s or {match[1]}ms")
    if match is None or match[2] not in _SECONDS:
        raise MinimqSparkError(f"{option} is {_shown(text)}: write a time such as 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2]]


def time_above_zero(option: str, text: str) -> float:
    """Return seconds above 0; see `duration`."""
    seconds = duration(option, text)
    if not seconds:
        raise MinimqSparkError(f"{option} is {text!r}: write a time above 0")
    return seconds


def moment(option: str, text: str) -> datetime:
    """Parse a time: milliseconds since 1970, ISO 8601 with a time zone, or a duration before now such as -24h."""
    try:
        return datetime.fromtimestamp(timestamp_ms(text, time.time(), option) / 1000, UTC)
    except MinimqError as error:
        raise MinimqSparkError(error.message) from None


def offsets(option: str, text: str) -> Offsets:
    """Parse "earliest", "latest", or JSON with an offset for each queue."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return dict(_by_queue(option, text, _OFFSETS, _OffsetTree))


def times(option: str, text: str) -> TimesByQueue:
    """Parse JSON with a time for each queue, as for `moment`; whole numbers need no quotes."""
    found = _by_queue(option, text, _TIMES, _TimeTree)
    return TimesByQueue(option, {queue: moment(f"{option} for queue {queue}", str(time_)) for queue, time_ in found})


def queues(option: str, text: str) -> frozenset[MessageQueue]:
    """Parse JSON with queue ids by topic and broker."""
    tree = _decoded(option, text, _QUEUES, _QueueTree).items()
    found = {
        MessageQueue(topic, broker, each) for topic, brokers in tree for broker, ids in brokers.items() for each in ids
    }
    if not found:
        raise MinimqSparkError(f"{option} must look like {_QUEUES}: it names no queue")
    return frozenset(found)


def _by_queue(option: str, text: str, shape: str, kind: Any) -> Iterator[tuple[MessageQueue, Any]]:
    for topic, brokers in _decoded(option, text, shape, kind).items():
        for broker, values in brokers.items():
            yield from ((MessageQueue(topic, broker, int(queue)), value) for queue, value in values.items())


def _decoded(option: str, text: str, shape: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MinimqSparkError(f"{option} is {_shown(text)}, and must look like {shape}: {error}") from None


def _is_whole(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"
