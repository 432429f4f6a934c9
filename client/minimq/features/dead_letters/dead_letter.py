"""A dead letter, which is a message that a group has given up, and the filter that selects dead letters."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from minimq.consuming.received import ReceivedMessage
from minimq.features.work_queues import copies
from minimq.options import reject_unknown
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from minimq_common.names import DEAD_LETTER_PREFIX
from minimq_common.timestamps import Time, moment, start_ms, timestamp_ms

#: The reason of a dead letter that has none: any client may send to the topic.
UNKNOWN = "unknown"

#: A message id, or the place of a dead letter.
_ID = re.compile(r"[0-9a-f]{40}|[^:]+:[0-9]+@[0-9]+")
#: A filter of dead letters.
Wants = Callable[["DeadLetter"], bool]


class DeadLetter:
    """A message that a group failed to process, as stored in the topic of its dead letters.

    Args:
        message: the copy in that topic.

    Attributes:
        body, tag: of the message.
    """

    __slots__ = ("_copy", "_raw", "body", "tag")

    def __init__(self, message: ReceivedMessage) -> None:
        self._copy, self._raw = message, message.properties
        self.body, self.tag = message.body, message.tag

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.queue.topic.removeprefix(DEAD_LETTER_PREFIX)

    @property
    def reason(self) -> str:
        """Why the last delivery failed."""
        return self._raw.get(copies.DEAD_LETTER_REASON, UNKNOWN)

    @property
    def delivery_count(self) -> int:
        """Number of deliveries of the message."""
        return copies.number_of(self._raw.get(copies.DELIVERY_COUNT, "")) or 0

    @property
    def topic(self) -> str | None:
        """Topic that the message was sent to; None if unknown."""
        return self._raw.get(copies.RETRY_TOPIC)

    @property
    def received_from(self) -> str | None:
        """Topic of the dead letters that the group consumed it from; None if it consumed the original message."""
        return self._raw.get(copies.DEAD_LETTER_TOPIC)

    @property
    def origin_queue(self) -> MessageQueue | None:
        """Queue that the message was sent to; None if unknown."""
        topic, _, rest = self._raw.get(copies.ORIGIN_QUEUE, "").partition("/")
        broker_name, _, queue_id = rest.rpartition("/")
        number = copies.number_of(queue_id)
        return MessageQueue(topic, broker_name, number) if topic and broker_name and number is not None else None

    @property
    def origin_offset(self) -> int | None:
        """Offset of the message in `origin_queue`; None if unknown."""
        return copies.number_of(self._raw.get(copies.ORIGIN_OFFSET, ""))

    @property
    def origin_stored_at(self) -> datetime | None:
        """When the broker stored the message in `origin_queue`; None if unknown."""
        ms = copies.number_of(self._raw.get(copies.ORIGIN_STORED, ""))
        return None if ms is None else moment(ms)

    @property
    def message_id(self) -> str:
        """Id of the original message, as in its producer's receipt."""
        return self._original.message_id

    @property
    def keys(self) -> Sequence[str]:
        """Keys of the message."""
        return self._original.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """The original properties."""
        return self._original.properties

    @property
    def born_at(self) -> datetime:
        """When the message was handed to its producer."""
        return self._original.born_at

    @property
    def died_at(self) -> datetime:
        """When it was stored among the dead letters."""
        return self._copy.stored_at

    @property
    def died_ms(self) -> int:
        """`died_at` in milliseconds since 1970."""
        return self._copy.batch.stored_ms

    @property
    def queue(self) -> MessageQueue:
        """The queue of the dead letter."""
        return self._copy.queue

    @property
    def queue_offset(self) -> int:
        """The offset of the dead letter in `queue`."""
        return self._copy.queue_offset

    @property
    def place(self) -> str:
        """Broker, queue and offset as text, to select it by: "broker-a:0@17"."""
        return f"{self.queue.broker_name}:{self.queue.queue_id}@{self.queue_offset}"

    @property
    def received(self) -> ReceivedMessage:
        """The copy that was stored, with all its properties."""
        return self._copy

    @property
    def _original(self) -> copies.CopiedMessage:
        return copies.original_of(self._copy)

    def message(self, topic: str) -> Message:
        """Return the original message, addressed to `topic`."""
        original = self._original
        return Message(
            topic,
            original.body,
            original.tag,
            original.keys,
            original.properties,  # with those that carry fields
            message_group=original.message_group if topic == self.topic else None,
            is_tombstone=original.is_tombstone,
        )

    def __eq__(self, other: object) -> bool:
        return self._copy == other._copy if isinstance(other, DeadLetter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._copy)

    def retry(self) -> Message:
        """Return a copy for the retry topic, which only its group reads, with the number of deliveries reset."""
        return copies.retry_of_dead_letter(self._copy, self.group)

    def __repr__(self) -> str:
        about = f"topic {self.topic}, {self.reason!r}, deliveries {self.delivery_count}"
        return f"DeadLetter({self.place} of group {self.group}, {about})"


class DeadLetterFilter(TypedDict, total=False):
    """A user's selection of dead letters: arguments of `Admin.dead_letters` and others; all must match.

    Attributes:
        since: only dead letters that failed at or after this time. A time is "2026-01-31T08:00Z", with a time zone, or
            before now: "-24h", "-90m", "-7d"; or "1769846400000ms" since 1970.
        until: only dead letters that failed before this time.
        key: only dead letters with this key.
        reason: only dead letters with this reason.
        topic: only dead letters of this topic.
        ids: the dead letters with these message ids, or at these places, such as "broker-a:0@17"; `minimq dlq describe`
            prints both.
    """

    since: Time | None
    until: Time | None
    key: str | None
    reason: str | None
    topic: str | None
    ids: str | Iterable[str] | None


def choice_of(chosen: DeadLetterFilter) -> Wants:
    """Return the filter for a user's selection. Raises `InvalidArgument`."""
    names = [*DeadLetterFilter.__annotations__]
    reject_unknown(chosen.keys() - set(names), names, f"dead letters are selected by {', '.join(names)}")
    now = time.time()
    key, reason, topic = (chosen.get(name) for name in ("key", "reason", "topic"))
    for name, text in (("key", key), ("reason", reason), ("topic", topic)):
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{name} is {type(text).__name__}: give text")
    since, until, given = chosen.get("since"), chosen.get("until"), chosen.get("ids")
    ids = None if given is None else frozenset([given] if isinstance(given, str) else given)
    if wrong := sorted(repr(one) for one in ids or () if not _ID.fullmatch(str(one))):
        raise InvalidArgument(
            f"{wrong[0]} is no id of a dead letter: give the message id, 40 hexadecimal digits, or the place, such "
            "as broker-a:0@17; `minimq dlq describe` prints both"
        )
    since_ms = 0 if since is None or since == "earliest" else start_ms(since, now, "since")
    until_ms = math.inf if until is None else timestamp_ms(until, now, "until")
    if until_ms <= since_ms:
        raise InvalidArgument("until is not after since: no letter is in between")

    def wants(letter: DeadLetter) -> bool:
        return (
            since_ms <= letter.died_ms < until_ms
            and reason in (None, letter.reason)
            and topic in (None, letter.topic)
            and (key is None or key in letter.keys)
            and (ids is None or letter.place in ids or letter.message_id in ids)
        )

    return wants
