"""Parses the values of options. Errors are one line, and name the option."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NoReturn

from minimq import MinimqError
from minimq.consuming.message_filter import wanted_tags
from minimq_common.timestamps import timestamp_ms
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import EARLIEST, LATEST, Offsets, QueueName, TimesByQueue

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS = '{"topic": {"broker": {"queue": offset}}}'
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
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,8}")
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
    found = {}
    for queue, offset in _by_queue(option, text, "neither earliest nor latest nor JSON", _OFFSETS):
        if type(offset) is not int or offset < EARLIEST:
            which = f"offset {_cut(repr(offset))} of queue {queue}"
            _malformed(option, _OFFSETS, f"{which} is not a whole number from -2 on")
        found[queue] = offset
    return found


def times(option: str, text: str) -> TimesByQueue:
    """Parse JSON with a time for each queue, as for `moment`; whole numbers need no quotes."""
    found = {}
    for queue, time_ in _by_queue(option, text, "not JSON", _TIMES):
        if type(time_) not in {int, str}:
            _malformed(option, _TIMES, f"time {_cut(repr(time_))} of queue {queue} is neither a whole number nor text")
        found[queue] = moment(f"{option} for queue {queue}", str(time_))
    return TimesByQueue(option, found)


def _by_queue(option: str, text: str, what: str, shape: str) -> Iterator[tuple[QueueName, object]]:
    for topic, brokers in _parsed(option, text, what, shape):
        for broker, queues in _members(option, topic, brokers, shape):
            for queue, value in _members(option, f"{topic}/{broker}", queues, shape):
                if not _QUEUE_ID.fullmatch(queue):
                    wanted = f"queue {_shown(queue)} of {topic}/{broker} is not a number such as 0 or 12"
                    _malformed(option, shape, wanted)
                yield QueueName(topic, broker, int(queue)), value


def queues(option: str, text: str) -> frozenset[QueueName]:
    """Parse JSON with queue ids by topic and broker."""
    found = set()
    for topic, brokers in _parsed(option, text, "not JSON", _QUEUES):
        for broker, ids in _members(option, topic, brokers, _QUEUES):
            if not isinstance(ids, list):
                _malformed(option, _QUEUES, f"{topic}/{broker} holds {_cut(json.dumps(ids))}, not a list")
            for queue_id in ids:
                if type(queue_id) is not int or queue_id < 0:
                    _malformed(
                        option, _QUEUES, f"queue {_cut(json.dumps(queue_id))} of {topic}/{broker} is not a number"
                    )
                found.add(QueueName(topic, broker, queue_id))
    if not found:
        _malformed(option, _QUEUES, "it names no queue")
    return frozenset(found)


def _parsed(option: str, text: str, what: str, shape: str) -> list[tuple[str, object]]:
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise MinimqSparkError(
            f"{option} is {what} such as {shape}: {error.msg} at character {error.pos + 1} of {_shown(text)}"
        ) from None
    except RecursionError:
        _malformed(option, shape, f"{_shown(text)} is nested too deeply")
    except ValueError as error:
        _malformed(option, shape, str(error))
    return _members(option, text, value, shape)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{_shown(next(key for key in keys if keys.count(key) > 1))} stands twice")
    return made


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise ValueError(f"{_cut(text)} is too large")
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"


def _members(option: str, what: str, value: object, shape: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        _malformed(option, shape, f"{_cut(what)} holds {_cut(json.dumps(value))}, not an object")
    return list(value.items())


def _malformed(option: str, shape: str, reason: str) -> NoReturn:
    raise MinimqSparkError(f"{option} must look like {shape}: {reason}")
