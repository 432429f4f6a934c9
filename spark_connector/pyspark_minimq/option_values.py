"""From the text of an option to its value. What is wrong is said in one line that names the option."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import NoReturn

from minimq import MiniMQError
from minimq.connectors import TagFilter
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import EARLIEST, LATEST, Offsets, QueueName

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS = '{"topic": {"broker": {"queue": offset}}}'
_QUEUES = '{"topic": {"broker": [queue, queue]}}'

#: Seconds and bytes in the units that Spark knows.
_SECONDS = {"ms": 0.001, "": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_AMOUNT = re.compile(r"(\d+)\s*([a-z]*)")


def names(_: str, text: str) -> tuple[str, ...]:
    """Return names that are separated by commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def pattern(option: str, text: str) -> str:
    """Return a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise MinimqSparkError(f"{option} is {text!r}, which is no regular expression: {error}") from None
    return text


def tags(option: str, text: str) -> frozenset[str] | None:
    """Return the tags in an expression such as "paid || refunded"; None for all."""
    try:
        return TagFilter(text).tags
    except MiniMQError as error:
        raise MinimqSparkError(f"{option}: {error.message}") from None


def count(option: str, text: str) -> int:
    """Return a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise MinimqSparkError(f"{option} is {text!r}: write a whole number above 0")
    return int(text)


def number(option: str, text: str) -> int:
    """Return a whole number, which may be 0."""
    if not text.isdecimal():
        raise MinimqSparkError(f"{option} is {text!r}: write a whole number, 0 or above")
    return int(text)


def flag(option: str, text: str) -> bool:
    """Return true or false."""
    if text.lower() not in ("true", "false"):
        raise MinimqSparkError(f"{option} is {text!r}: write true or false")
    return text.lower() == "true"


def size(option: str, text: str) -> int:
    """Return a number of bytes, which may have a unit: 1000000, 64m, 1g."""
    match = _AMOUNT.fullmatch(text.lower())
    if match is None or match[2] not in _BYTES or int(match[1]) == 0:
        raise MinimqSparkError(f"{option} is {text!r}: write a number of bytes, or for example 64m or 1g")
    return int(match[1]) * _BYTES[match[2]]


def duration(option: str, text: str) -> float:
    """Return seconds; without a unit a number stands for milliseconds, as elsewhere in Spark."""
    match = _AMOUNT.fullmatch(text.lower())
    if match is None or match[2] not in _SECONDS:
        raise MinimqSparkError(f"{option} is {text!r}: write a time such as 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2]]


def moment(option: str, text: str) -> datetime:
    """Return a moment with a time zone: from milliseconds since 1970, or from ISO 8601."""
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise MinimqSparkError(
            f"{option} is {text!r}: write milliseconds since 1970, or a time such as 2026-01-31T08:00:00Z"
        ) from None
    if when.tzinfo is None:
        raise MinimqSparkError(f"{option} is {text!r}, which has no time zone: add Z or an offset such as +02:00")
    return when


def offsets(option: str, text: str) -> Offsets:
    """Return one of the words earliest and latest, or an offset for each queue."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    found = {}
    for topic, brokers in _parsed(option, text, "neither earliest nor latest nor JSON", _OFFSETS):
        for broker, queues in _members(option, topic, brokers, _OFFSETS):
            for queue, offset in _members(option, f"{topic}/{broker}", queues, _OFFSETS):
                if not queue.isdecimal():
                    _malformed(option, _OFFSETS, f"queue {queue!r} of {topic}/{broker} is not a number")
                if type(offset) is not int or offset < EARLIEST:
                    wanted = f"offset {offset!r} of queue {topic}/{broker}/{queue} is not a whole number from -2 on"
                    _malformed(option, _OFFSETS, wanted)
                found[QueueName(topic, broker, int(queue))] = offset
    return found


def queues(option: str, text: str) -> frozenset[QueueName]:
    """Return chosen queues."""
    found = set()
    for topic, brokers in _parsed(option, text, "not JSON", _QUEUES):
        for broker, ids in _members(option, topic, brokers, _QUEUES):
            if not isinstance(ids, list):
                _malformed(option, _QUEUES, f"{topic}/{broker} holds {json.dumps(ids)}, not a list")
            for queue_id in ids:
                if type(queue_id) is not int or queue_id < 0:
                    _malformed(option, _QUEUES, f"queue {json.dumps(queue_id)} of {topic}/{broker} is not a number")
                found.add(QueueName(topic, broker, queue_id))
    if not found:
        _malformed(option, _QUEUES, "it names no queue")
    return frozenset(found)


def _parsed(option: str, text: str, what: str, shape: str) -> list[tuple[str, object]]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise MinimqSparkError(
            f"{option} is {what} such as {shape}: {error.msg} at character {error.pos + 1} of {text!r}"
        ) from None
    return _members(option, text, value, shape)


def _members(option: str, what: str, value: object, shape: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        _malformed(option, shape, f"{what} holds {json.dumps(value)}, not an object")
    return list(value.items())


def _malformed(option: str, shape: str, reason: str) -> NoReturn:
    raise MinimqSparkError(f"{option} must look like {shape}: {reason}")
