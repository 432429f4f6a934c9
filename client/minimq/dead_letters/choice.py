"""The choice of some of the dead letters of a group."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypedDict

from minimq_common.errors import InvalidArgument
from minimq_common.moments import Time, start_ms, timestamp_ms

if TYPE_CHECKING:
    from minimq.dead_letters.dead_letter import DeadLetter

#: A message id, or the place of a dead letter.
_ID = re.compile(r"[0-9a-f]{40}|[^:]+:[0-9]+@[0-9]+")


#: Tells whether a dead letter is chosen.
Wants = Callable[["DeadLetter"], bool]


class Chosen(TypedDict, total=False):
    """The choice as a user makes it: arguments of `Admin.dead_letters` and others, all of which have to match.

    Attributes:
        since: only dead letters that failed at or after this time. A time is 2026-01-31T08:00Z, with a time zone, or
            before now: -24h, -90m, -7d; or 1769846400000ms since 1970.
        until: only dead letters that failed before this time.
        key: only dead letters with this key.
        reason: only dead letters with this reason.
        topic: only dead letters of this topic.
        ids: the dead letter with this message id, or at this place, such as broker-a:0@17; `minimq dlq show` prints
            both. May be given several times.
    """

    since: Time | None
    until: Time | None
    key: str | None
    reason: str | None
    topic: str | None
    ids: str | Iterable[str] | None


def choice_of(chosen: Chosen) -> Wants:
    """Return what tells which dead letters a user has chosen. Raises `InvalidArgument`."""
    if unknown := sorted(chosen.keys() - Chosen.__annotations__.keys()):
        known = ", ".join(Chosen.__annotations__)
        raise InvalidArgument(f"dead letters are not chosen by {', '.join(unknown)}: give {known}")
    now = time.time()
    key, reason, topic = (chosen.get(name) for name in ("key", "reason", "topic"))
    for name, text in (("key", key), ("reason", reason), ("topic", topic)):
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{name} is {type(text).__name__}: give text")
    since, until, given = chosen.get("since"), chosen.get("until"), chosen.get("ids")
    ids = None if given is None else frozenset([given] if isinstance(given, str) else given)
    if ids is not None and not all(isinstance(one, str) for one in ids):
        raise InvalidArgument("ids has something that is no text: give message ids, or places such as broker-a:0@17")
    if wrong := sorted(one for one in ids or () if not _ID.fullmatch(one)):
        raise InvalidArgument(
            f"{wrong[0]!r} is no id of a dead letter: give the message id, 40 hexadecimal digits, or the place, such "
            "as broker-a:0@17; `minimq dlq show` prints both"
        )
    since_ms = 0 if since is None or since == "earliest" else start_ms(since, now, "since")
    until_ms = math.inf if until is None else timestamp_ms(until, now, "until")

    def wants(letter: DeadLetter) -> bool:
        return (
            since_ms <= letter.died_ms < until_ms
            and reason in (None, letter.reason)
            and topic in (None, letter.topic)
            and (key is None or key in letter.keys)
            and (ids is None or letter.place in ids or letter.message_id in ids)
        )

    return wants
