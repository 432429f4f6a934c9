"""Reads some messages of queues for a page. Nothing is committed, and no group is needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from minimq import MessageQueue, ReceivedMessage
from minimq.administration.descriptions import QueueDescription
from minimq.receiving.range_reader import RangeReader
from minimq_common.errors import CorruptBatch, OffsetOutOfRange
from minimq_console.bodies import preview
from minimq_console.page import Data, Visit

#: Queues that are looked into for the newest messages: those that were written last.
MOST_QUEUES = 32
#: Bytes of bodies that one page holds at most.
_MOST_BYTES = 32 << 20
_NEVER = datetime.min.replace(tzinfo=UTC)
#: Seconds before the end of a page in which no further batch is read.
_RESERVE_S = 0.3
#: Keys that a row shows.
_MOST_KEYS = 20


def message_row(message: ReceivedMessage) -> Data:
    """Return the row of a message; "damaged" says why its keys cannot be read."""
    damaged, keys = None, list[str]()
    try:
        keys = list(message.keys[:_MOST_KEYS])
    except CorruptBatch as error:
        damaged = error.message
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_at": message.stored_at,
        "tag": message.tag,
        "keys": keys,
        "size": len(message.body),
        "preview": preview(message.body),
        "is_tombstone": message.is_tombstone,
        "damaged": damaged,
    }


class MessageSearch:
    """Reads messages within the time that a page has. Used by one thread."""

    def __init__(self, visit: Visit, most: int) -> None:
        self._visit = visit
        self._most = most
        self._give_up = time.monotonic() + visit.left_s - _RESERVE_S

    def newest(self, queues: Sequence[QueueDescription]) -> list[ReceivedMessage]:
        """Return the last messages of some queues together, the newest first."""
        used = [queue for queue in queues if queue.messages]
        used.sort(key=lambda queue: queue.last_stored_at or _NEVER, reverse=True)
        ranges = [
            (queue.queue, max(queue.min_offset, queue.max_offset - self._most), queue.max_offset)
            for queue in used[:MOST_QUEUES]
        ]
        found = self._read(ranges, (), last=True)
        return sorted(found, key=_place, reverse=True)[: self._most]

    def following(
        self, queues: Sequence[QueueDescription], starts: dict[MessageQueue, int], tags: Sequence[str] = ()
    ) -> list[ReceivedMessage]:
        """Return the first messages of some queues from offsets on, the oldest first; only those with the tags."""
        ranges = [
            (queue.queue, max(starts[queue.queue], queue.min_offset), queue.max_offset)
            for queue in queues
            if queue.queue in starts and starts[queue.queue] < queue.max_offset
        ]
        found = self._read(ranges, tags, last=False)
        return sorted(found, key=_place)[: self._most]

    def _read(
        self, ranges: Sequence[tuple[MessageQueue, int, int]], tags: Sequence[str], *, last: bool
    ) -> list[ReceivedMessage]:
        reader = self._visit.observer.reader
        room = _MOST_BYTES // max(len(ranges), 1)
        asked = [
            self._visit.ask(f"queue {each[0]}", partial(self._of_queue, reader, each, tags, room, last=last))
            for each in ranges
        ]
        nothing: list[ReceivedMessage] = []
        return [message for each in asked for message in each.or_else(nothing)]

    def _of_queue(
        self, reader: RangeReader, span: tuple[MessageQueue, int, int], tags: Sequence[str], room: int, *, last: bool
    ) -> list[ReceivedMessage]:
        queue, start, end = span
        found: list[ReceivedMessage] = []
        batches = reader.read(queue, start, end, tags)
        try:
            for batch in batches:
                found += [
                    message
                    for message in batch.messages(start)
                    if message.queue_offset < end and (not tags or message.tag in tags)
                ]
                size = sum(len(message.body) for message in found)
                if last:
                    while found and size > room:
                        size -= len(found.pop(0).body)
                elif len(found) >= self._most or size > room:
                    break
                if time.monotonic() >= self._give_up:
                    break
        except OffsetOutOfRange:  # retention has deleted the beginning meanwhile
            if not found:
                raise
        finally:
            batches.close()
        return found if last else found[: self._most]


def _place(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    return message.batch.stored_ms_of(message.index), message.queue, message.queue_offset
