"""The bounds of a message search: an address, or a time range."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TypedDict

import msgspec

from minimq.options import reject_unknown
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.names import check_broker, check_topic
from minimq_common.text_units import quoted
from minimq_common.timestamps import Time, start_ms, timestamp_ms

_MAX_OFFSET = (1 << 63) - 1
_MAX_QUEUE = (1 << 31) - 1
#: Names of topics and brokers contain no slash.
_ADDRESS = re.compile(r"([^/]*)/([^/]*)/([0-9]{1,10})@([0-9]{1,19})", re.ASCII)

DEFAULT_SINCE = "-1h"
DEFAULT_LIMIT = 1_000


class MessageAddress(msgspec.Struct, frozen=True, order=True):
    """Where a message is stored: "orders/broker-a/3@10423" is offset 10423 of queue 3 of topic orders at broker-a."""

    queue: MessageQueue
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}@{self.offset}"


def parse_address(text: object) -> MessageAddress:
    """Parse an address; a `MessageAddress` is returned unchanged. Raises `InvalidArgument`."""
    if isinstance(text, MessageAddress):
        return text
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[3]) > _MAX_QUEUE or int(match[4]) > _MAX_OFFSET:
        raise InvalidArgument(
            f"{quoted(text)} is not the address of a message: write TOPIC/BROKER/QUEUE@OFFSET, for example "
            "orders/broker-a/3@10423"
        )
    queue = MessageQueue(check_topic(match[1]), check_broker(match[2]), int(match[3]))
    return MessageAddress(queue, int(match[4]))


@dataclass(frozen=True, slots=True)
class SearchBounds:
    #: Inclusive start, in ms since 1970.
    since_ms: int
    #: Exclusive end, in ms since 1970; 0 for none.
    before_ms: int
    limit: int
    verify: bool
    #: A broker that does not answer for this long is left out.
    max_wait_s: float

    def contains(self, stored_ms: int) -> bool:
        return self.since_ms <= stored_ms and (not self.before_ms or stored_ms < self.before_ms)


class SearchRange(TypedDict, total=False):
    """The bounds of a search: arguments of `Admin.find_messages`.

    Attributes:
        since: only messages stored from this time on, or "earliest"; by default the last hour. A longer range takes
            longer. A time is "2026-01-31T08:00Z", with a time zone, or before now: "-24h", "-90m", "-7d";
            or "1769846400000ms" since 1970.
        until: only messages stored before this time.
        limit: end after this number of messages; 1,000 by default.
        verify: also verify the checksum of each batch: damaged keys could hide a message. This takes several times as
            long.
    """

    since: Time
    until: Time | None
    limit: int
    verify: bool


def bounds_of(chosen: SearchRange, max_wait_s: float) -> SearchBounds:
    """Check the bounds that a user chose; relative times are resolved now. Raises `InvalidArgument`."""
    names = tuple(SearchRange.__annotations__)
    reject_unknown(chosen.keys() - set(names), names, f"a search has {', '.join(names)}")
    now, since, until = time.time(), chosen.get("since", DEFAULT_SINCE), chosen.get("until")
    most = chosen.get("limit", DEFAULT_LIMIT)
    if type(most) is not int or most < 1:
        raise InvalidArgument(f"limit is {most!r}: it must be a whole number from 1 on")
    since_ms = 0 if since == "earliest" else start_ms(since, now, "since", "'earliest', ")
    before_ms = 0 if until is None else timestamp_ms(until, now, "until")
    if until is not None and before_ms <= since_ms:
        raise InvalidArgument("until is not after since: nothing is stored in between")
    return SearchBounds(since_ms, before_ms, most, bool(chosen.get("verify")), max_wait_s)
