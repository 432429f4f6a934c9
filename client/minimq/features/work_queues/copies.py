"""Copies of messages in the retry topic and the dead letters of a group.

A copy is an ordinary message. The properties below record its origin. If a user property has one of these names, the
copy stores it with the prefix `%`, which is removed again when the copy is received.
"""

from __future__ import annotations

from collections.abc import Mapping

from minimq.consuming.received import ReceivedMessage
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message
from minimq_common.names import DEAD_LETTER_PREFIX, dead_letter_topic, retry_topic

#: The topic that the message was sent to.
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
#: As text, "topic/broker/queue id".
ORIGIN_QUEUE = "ORIGIN_QUEUE"
ORIGIN_OFFSET = "ORIGIN_OFFSET"
#: When it was sent, and when a broker stored it, in ms since 1970.
ORIGIN_BORN = "ORIGIN_BORN"
ORIGIN_STORED = "ORIGIN_STORED"
#: Only for messages of FIFO topics; in other topics `MESSAGE_GROUP` is an ordinary property of the user.
ORIGIN_MESSAGE_GROUP = "ORIGIN_MESSAGE_GROUP"
#: Only for tombstones.
ORIGIN_TOMBSTONE = "ORIGIN_TOMBSTONE"
#: Number of deliveries before the copy was stored.
DELIVERY_COUNT = "DELIVERY_COUNT"
#: Only in the retry topic: how many ms the message waits. The first consumer that receives it releases it that long.
RETRY_DELAY_MS = "RETRY_DELAY_MS"
#: Only for dead letters: the group that gave the message up, and why.
CONSUMER_GROUP = "CONSUMER_GROUP"
DEAD_LETTER_REASON = "DEAD_LETTER_REASON"
#: Only if the group consumed the dead letters of another group: their topic.
DEAD_LETTER_TOPIC = "DEAD_LETTER_TOPIC"

_ORIGIN = frozenset(
    {
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        ORIGIN_QUEUE,
        ORIGIN_OFFSET,
        ORIGIN_BORN,
        ORIGIN_STORED,
        ORIGIN_MESSAGE_GROUP,
        ORIGIN_TOMBSTONE,
    }
)
_OF_DEAD_LETTERS = frozenset({CONSUMER_GROUP, DEAD_LETTER_REASON, DEAD_LETTER_TOPIC})
_NAMES = _ORIGIN | _OF_DEAD_LETTERS | {DELIVERY_COUNT, RETRY_DELAY_MS}
#: The library's own reasons; users may give any text. Dead letters are counted by reason.
MAX_DELIVERIES_REACHED = "max_deliveries reached"
REJECTED = "rejected"
_MAX_REASON = 200
_ESCAPE = "%"
#: Maximum length of a number in a copy. Any client may send to a retry topic, and `int` rejects very long text.
_MAX_DIGITS = 18


class CopiedMessage(WorkQueueMessage, frozen=True, gc=False):
    """The message that a copy was made of. Only queue, offset and `delivery_count` are those of the copy."""

    @property
    def topic(self) -> str:
        return self._origin(RETRY_TOPIC) or self.queue.topic

    @property
    def properties(self) -> Mapping[str, str]:
        found = self.batch.records.properties(self.index)
        return {_unescaped(name): value for name, value in found.items() if name not in _NAMES}

    @property
    def message_group(self) -> str | None:
        return self._origin(ORIGIN_MESSAGE_GROUP) or super().message_group

    @property
    def is_tombstone(self) -> bool:
        return bool(self._origin(ORIGIN_TOMBSTONE)) or super().is_tombstone

    @property
    def message_id(self) -> str:
        return self._origin(ORIGIN_MESSAGE_ID) or self.batch.records.message_id(self.index)

    @property
    def born_ms(self) -> int:
        """When the original message was handed to its producer, in ms since 1970."""
        return _number(self._origin(ORIGIN_BORN), self.batch.records.born_ms(self.index))

    @property
    def delay_ms(self) -> int:
        """For how long the message waits before its first delivery from the retry topic."""
        return _number(self._origin(RETRY_DELAY_MS), 0)

    def _origin(self, name: str) -> str:
        return self.batch.records.properties(self.index).get(name, "")


def original_of(copy: ReceivedMessage) -> CopiedMessage:
    """Return the message that a copy was made of. Its `delivery_count` is the number of deliveries so far."""
    if isinstance(copy, WorkQueueMessage):
        received, epoch, group = copy.delivery_count, copy.epoch, copy.group
    else:
        received, epoch, group = 0, 0, ""
    count = deliveries_of(copy, received)
    return CopiedMessage(copy.batch, copy.index, copy.body, copy.tag, count, epoch, group)


def deliveries_of(copy: ReceivedMessage, received: int) -> int:
    """Return how often the message of a copy was delivered, if the copy itself was received so often."""
    raw = copy.batch.records.properties(copy.index)
    only_waited = RETRY_DELAY_MS in raw and received > 0
    return _number(raw.get(DELIVERY_COUNT, ""), 0) + received - only_waited


def retry_of(message: ReceivedMessage, group: str, delay_ms: int) -> Message:
    """Return the copy of a failed message for the retry topic of the group."""
    added = {DELIVERY_COUNT: str(message.delivery_count), RETRY_DELAY_MS: str(delay_ms)}
    return _copy(message, retry_topic(group), added)


def retry_of_dead_letter(letter: ReceivedMessage, group: str) -> Message:
    """Return a copy for the retry topic, which only its group reads, with no delivery counted."""
    raw = letter.batch.records.properties(letter.index)
    kept = {name: value for name, value in raw.items() if name not in _OF_DEAD_LETTERS}
    return Message(retry_topic(group), letter.body, letter.tag, letter.keys, kept | {DELIVERY_COUNT: "0"})


def dead_letter_of(message: ReceivedMessage, group: str, reason: str, delivery_count: int) -> Message:
    """Return the copy of a message for the dead letters of the group. A copy of a dead letter has the same origin."""
    why = {DELIVERY_COUNT: str(delivery_count), CONSUMER_GROUP: group, DEAD_LETTER_REASON: reason}
    if message.topic.startswith(DEAD_LETTER_PREFIX) and RETRY_TOPIC in message.properties:
        kept = {name: value for name, value in message.properties.items() if name not in _OF_DEAD_LETTERS}
        why[DEAD_LETTER_TOPIC] = message.topic
        return Message(dead_letter_topic(group), message.body, message.tag, message.keys, kept | why)
    return _copy(message, dead_letter_topic(group), why)


def check_reason(reason: str) -> str:
    """Return the reason of a dead letter in one line. Raises `InvalidArgument` unless it is text of valid length."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"the reason is {type(reason).__name__}: give text")
    in_one_line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    if not 0 < len(in_one_line) <= _MAX_REASON:
        raise InvalidArgument(f"the reason has {len(in_one_line)} characters: it must have 1 to {_MAX_REASON}")
    return in_one_line


def _copy(message: ReceivedMessage, topic: str, added: Mapping[str, str]) -> Message:
    properties = {_escaped(name): value for name, value in message.properties.items()}
    raw = message.batch.records.properties(message.index)
    if isinstance(message, CopiedMessage):
        properties |= {name: raw[name] for name in _ORIGIN & raw.keys()}
    else:
        properties |= {
            RETRY_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: message.message_id,
            ORIGIN_QUEUE: str(message.queue),
            ORIGIN_OFFSET: str(message.queue_offset),
            ORIGIN_BORN: str(message.batch.records.born_ms(message.index)),
            ORIGIN_STORED: str(message.batch.stored_ms_of(message.index)),
        }
        if message.is_tombstone:
            properties[ORIGIN_TOMBSTONE] = "1"
        if message.message_group is not None:
            properties[ORIGIN_MESSAGE_GROUP] = message.message_group
    return Message(topic, message.body, message.tag, message.keys, {**properties, **added})


def origin_of(message: ReceivedMessage) -> tuple[str, str]:
    """Return the queue and the offset of the original message, as text."""
    if isinstance(message, CopiedMessage):
        raw = message.batch.records.properties(message.index)
        return raw.get(ORIGIN_QUEUE, ""), raw.get(ORIGIN_OFFSET, "")
    return str(message.queue), str(message.queue_offset)


def _escaped(name: str) -> str:
    return _ESCAPE + name if name.lstrip(_ESCAPE) in _NAMES else name


def _unescaped(name: str) -> str:
    return name[1:] if name.startswith(_ESCAPE) and name.lstrip(_ESCAPE) in _NAMES else name


def number_of(text: str) -> int | None:
    """Return the number in a property of a copy; None if it is not a valid one."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def _number(text: str, otherwise: int) -> int:
    found = number_of(text)
    return otherwise if found is None else found
