"""Where and for how long a search looks, as a user says it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypedDict

from minimq.options import refuse_unknown
from minimq_common.errors import InvalidArgument
from minimq_common.moments import Time, start_ms, timestamp_ms

#: How far back a search goes unless it is told.
DEFAULT_SINCE = "-1h"
#: A search ends with so many messages unless it is told.
DEFAULT_MAX_MESSAGES = 1_000


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """Where and for how long to look."""

    #: Earlier messages are not wanted, in ms since 1970.
    since_ms: int
    #: Nor those stored from this time on; 0 stands for none.
    before_ms: int
    max_messages: int
    verify: bool
    #: A broker that does not answer for so long is left out.
    patience_s: float

    def contains(self, stored_ms: int) -> bool:
        """Return whether a message that was stored at this time is wanted."""
        return self.since_ms <= stored_ms and (not self.before_ms or stored_ms < self.before_ms)


class SearchRange(TypedDict, total=False):
    """The bounds of a search: arguments of `Admin.find_messages`.

    Attributes:
        since: only messages stored from this time on, or "earliest"; an hour ago unless given, as the range decides how
            long a search takes. A time is 2026-01-31T08:00Z, with a time zone, or before now: -24h, -90m, -7d; or
            1769846400000ms since 1970.
        until: only messages stored before this time.
        max_messages: end after so many; 1,000 unless given.
        verify: compare each batch with its checksum as well, which takes a multiple: damaged keys could hide a message.
    """

    since: Time
    until: Time | None
    max_messages: int
    verify: bool


def bounds_of(chosen: SearchRange, patience_s: float) -> SearchBounds:
    """Return the bounds that a user has chosen. Raises `InvalidArgument`."""
    names = tuple(SearchRange.__annotations__)
    if unknown := chosen.keys() - set(names):
        refuse_unknown(unknown, names, f"a search has {', '.join(names)}")
    now, since, until = time.time(), chosen.get("since", DEFAULT_SINCE), chosen.get("until")
    most = chosen.get("max_messages", DEFAULT_MAX_MESSAGES)
    if type(most) is not int or most < 1:
        raise InvalidArgument(f"max_messages is {most!r}: it must be a whole number from 1 on")
    since_ms = 0 if since == "earliest" else start_ms(since, now, "since", "'earliest', ")
    before_ms = 0 if until is None else timestamp_ms(until, now, "until")
    if until is not None and before_ms <= since_ms:
        raise InvalidArgument("until is not after since: nothing is stored in between")
    return SearchBounds(since_ms, before_ms, most, bool(chosen.get("verify")), patience_s)
