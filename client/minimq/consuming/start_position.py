"""Start positions of groups in requests."""

from __future__ import annotations

import time

from minimq_common.errors import InvalidArgument
from minimq_common.timestamps import Time, start_ms
from minimq_proto.v1 import broker_pb2

#: "earliest", "latest" or a time.
Start = Time


def start_position(start: Start, name: str = "start") -> broker_pb2.StartPosition:
    """Return the start position for "earliest", "latest" or a past time. Raises `InvalidArgument`."""
    if start == "earliest":
        return broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)
    if start == "latest":
        return broker_pb2.StartPosition(at=broker_pb2.START_AT_LATEST)
    timestamp = start_ms(start, time.time(), name, "'earliest', 'latest', ")
    return broker_pb2.StartPosition(at=broker_pb2.START_AT_TIMESTAMP, timestamp_ms=timestamp)


def offset_or_start(given: Start, name: str) -> int | broker_pb2.StartPosition:
    """Return an offset if `given` is a number, otherwise what `start_position` returns. Raises `InvalidArgument`."""
    if isinstance(given, int):
        if isinstance(given, bool) or not 0 <= given < 1 << 63:
            raise InvalidArgument(
                f"{name} is {given!r}: it must be 'earliest', 'latest', a time or an offset from 0 on, below 2^63"
            )
        return given
    if isinstance(given, str) and given.strip().isdecimal():
        raise InvalidArgument(
            f"{name} is {given!r}: give an offset as a number, milliseconds since 1970 as '{given.strip()}ms'"
        )
    return start_position(given, name)
