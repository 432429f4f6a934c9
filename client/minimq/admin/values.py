"""Parsers of values in commands and forms. Each takes the name of the option, for errors, and the text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

from minimq.admin.operation import Param
from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES, PERMISSIONS, MessageQueue
from minimq_common.text_units import bytes_of, check_path, quoted, seconds_of
from minimq_common.timestamps import Time, moment, start_ms, timestamp_ms

#: Texts that select the broker's own setting.
_AS_THE_BROKER = ("default", "0")

#: Maximum number of digits of a queue id.
_MAX_DIGITS = 9


def new_topic(_what: str, text: str) -> str:
    """Return the name; topics that begin with % are reserved."""
    if text.startswith("%"):
        raise InvalidArgument(
            f"topic name {text!r} begins with %, which is reserved for topics that minimq creates, such as "
            "%DLQ%GROUP: choose another"
        )
    return text


def path(what: str, text: str) -> Path:
    """Return a path without control characters."""
    check_path(what, text)
    return Path(text)


def seconds(what: str, text: str) -> float:
    """Return a duration in seconds."""
    found = seconds_of(text)
    if found is None:
        raise InvalidArgument(f"{what} is {text!r}: give a time such as 30s, 5m, 24h or 7d")
    return found


def retention(what: str, text: str) -> float:
    """Return a retention in seconds; 0 for that of the broker."""
    if text in _AS_THE_BROKER:
        return 0.0
    if found := seconds_of(text):
        return found
    raise InvalidArgument(f"{what} is {text!r}: give a time such as 12h or 7d, or default")


def retention_size(what: str, text: str) -> int:
    """Return a size in bytes; 0 for no limit."""
    if text in _AS_THE_BROKER:
        return 0
    if found := bytes_of(text):
        return found
    raise InvalidArgument(f"{what} is {text!r}: give a size such as 10GiB, or default")


def properties_of(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Return the properties in texts such as "region=eu"."""
    properties = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise InvalidArgument(f"{what} {quoted(text)} is not a property: write NAME=VALUE, for example region=eu")
        if name in properties:
            raise InvalidArgument(f"{what} {name} is given twice: a message has each property once")
        properties[name] = value
    return properties


def moment_or_end(what: str, text: str, also: str = "'earliest', 'latest', ") -> Time:
    """Return "earliest", "latest" or a past time; relative times are resolved now."""
    if also and text in {"earliest", "latest"}:
        return text
    return moment(start_ms(text, time.time(), what, also))


def beginning(what: str, text: str) -> Time:
    """Return "earliest" or a past time."""
    return text if text == "earliest" else moment(start_ms(text, time.time(), what, "'earliest', "))


def any_moment(what: str, text: str) -> Time:
    """Return a time, which may be in the future."""
    return moment(timestamp_ms(text, time.time(), what))


def past(what: str, text: str) -> Time:
    """Return a time that is not in the future."""
    return moment_or_end(what, text, "")


def queue(what: str, text: str, topic: str = "") -> MessageQueue:
    """Return the queue of "BROKER:ID"."""
    broker, colon, number = text.rpartition(":")
    if not (broker and colon and number.isdecimal() and len(number) <= _MAX_DIGITS):
        raise InvalidArgument(f"{what} {text!r} is not a queue: write BROKER:ID, for example broker-a:0")
    return MessageQueue(topic, broker, int(number))


def offset_or_moment(what: str, text: str) -> Time:
    """Return an offset for plain digits, else what `moment_or_end` returns."""
    digits = text.strip()
    if digits.isascii() and digits.isdecimal():
        return int(digits)
    return moment_or_end(what, text, "an offset, 'earliest', 'latest', ")


TopicName = Annotated[str, Param(complete="topics", metavar="TOPIC", help="Name of the topic.")]
GroupName = Annotated[str, Param(complete="groups", metavar="GROUP", help="Name of the consumer group.")]
ProducerGroup = Param(metavar="GROUP")
Broker = Param(complete="brokers", metavar="BROKER", help="Name of the broker.")
BrokerNames = Param(flag="--broker", metavar="NAME", complete="brokers", help="Only on this broker.")
#: Choices of the forms that pause a topic or a broker: each permission, and what it pauses.
PAUSES: Final[dict[str, Sequence[tuple[str, str]]]] = {
    "permission": [
        ("read-write", "nothing: sending and reading go on"),
        ("read", "sending: consumers go on reading"),
        ("write", "reading: producers go on sending"),
        ("none", "sending and reading"),
    ]
}
Queues = Param(low=1, high=MAX_QUEUES, metavar="N")
Retention = Param(
    flag="--retention",
    read=retention,
    metavar="TIME",
    help="How long messages are kept, such as 7d or 12h; default: as long as the broker keeps others.",
)
RetentionBytes = Param(
    read=retention_size,
    metavar="SIZE",
    help="Maximum size on each broker, such as 10GiB, beyond which the oldest messages are deleted; default: no limit.",
)
Allowed = Param(choices=PERMISSIONS)
#: The callback of a parameter `progress`: takes the number done so far, and the total that is known by now.
OnProgress = Callable[[int, int], None]
