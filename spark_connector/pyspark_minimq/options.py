"""The options of a read: checked before anything is asked of a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn, TypeVar

from pyspark_minimq.errors import MinimqSourceError
from pyspark_minimq.planning import EARLIEST, LATEST, Offsets, QueueName

T = TypeVar("T")

#: Every option of a read and its default as a user would write it; "" when there is none.
READ_OPTIONS: Mapping[str, str] = {
    "nameserver": "127.0.0.1:9876",
    "topic": "",
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingTimestamp": "",
    "endingTimestamp": "",
    "minPartitions": "",
    "maxRecordsPerPartition": "",
    "failOnDataLoss": "true",
}

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_SHAPE = '{"topic": {"broker": {"queue": offset}}}'

#: Where a read begins or ends: at offsets, or in every queue at the first message stored at or after a moment.
Position = Offsets | datetime


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a topic is read.

    Attributes:
        nameserver: HOST:PORT of each, separated by commas.
        topics: their names, without repetition.
        starting: the first message to read.
        ending: the first message not to read.
        min_partitions: how many partitions there are to be at least.
        max_records_per_partition: most messages in one partition.
        fail_on_data_loss: fail when messages of the range are not stored, instead of reading the others.
    """

    nameserver: str
    topics: tuple[str, ...]
    starting: Position
    ending: Position
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read.

    Args:
        options: as Spark hands them on: all values are text, and upper and lower case of the names make no difference.

    Raises:
        MinimqSourceError: an option is unknown, missing or malformed.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in READ_OPTIONS}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        names = ", ".join(READ_OPTIONS)
        raise MinimqSourceError(f"unknown option {', '.join(map(repr, unknown))}: a read has {names}")

    def value_of(name: str, parse: Callable[[str, str], T]) -> T | None:
        text = given.get(name.lower(), "").strip() or READ_OPTIONS[name]
        return parse(name, text) if text else None

    topics = value_of("topic", _names)
    if not topics:
        raise MinimqSourceError('no topic is given: add .option("topic", "NAME"), or several, separated by commas')
    starting = value_of("startingTimestamp", _moment) or value_of("startingOffsets", _offsets)
    ending = value_of("endingTimestamp", _moment) or value_of("endingOffsets", _offsets)
    if _has(starting, LATEST):
        raise MinimqSourceError(
            "startingOffsets is latest (-1), which cannot be a start: a batch query would never read anything; write "
            "earliest (-2) or offsets"
        )
    if _has(ending, EARLIEST):
        raise MinimqSourceError(
            "endingOffsets is earliest (-2), which cannot be an end: a batch query would never read anything; write "
            "latest (-1) or offsets"
        )
    return ReadOptions(
        nameserver=value_of("nameserver", lambda _, text: text) or "",
        topics=topics,
        starting=EARLIEST if starting is None else starting,
        ending=LATEST if ending is None else ending,
        min_partitions=value_of("minPartitions", _count),
        max_records_per_partition=value_of("maxRecordsPerPartition", _count),
        fail_on_data_loss=value_of("failOnDataLoss", _flag) is not False,
    )


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise MinimqSourceError(f"{option} is {text!r}: write a whole number above 0")
    return int(text)


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise MinimqSourceError(f"{option} is {text!r}: write true or false")
    return text.lower() == "true"


def _moment(option: str, text: str) -> datetime:
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise MinimqSourceError(
            f"{option} is {text!r}: write milliseconds since 1970, or a time such as 2026-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise MinimqSourceError(f"{option} is {text!r}, which has no time zone: add Z or an offset such as +02:00")
    return moment


def _offsets(option: str, text: str) -> Offsets:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise MinimqSourceError(
            f"{option} is neither earliest nor latest nor JSON such as {_SHAPE}: {error.msg} at character "
            f"{error.pos + 1} of {text!r}"
        ) from None
    offsets = {}
    for topic, brokers in _members(option, text, topics):
        for broker, queues in _members(option, topic, brokers):
            for queue, offset in _members(option, f"{topic}/{broker}", queues):
                if not queue.isdecimal():
                    _malformed(option, f"queue {queue!r} of {topic}/{broker} is not a number")
                if type(offset) is not int or offset < EARLIEST:
                    _malformed(
                        option, f"offset {offset!r} of queue {topic}/{broker}/{queue} is not a whole number from -2 on"
                    )
                offsets[QueueName(topic, broker, int(queue))] = offset
    return offsets


def _members(option: str, what: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        _malformed(option, f"{what} holds {json.dumps(value)}, not an object")
    return list(value.items())


def _malformed(option: str, reason: str) -> NoReturn:
    raise MinimqSourceError(f"{option} must look like {_SHAPE}: {reason}")


def _has(position: Position | None, word: int) -> bool:
    return position == word or (isinstance(position, Mapping) and word in position.values())
