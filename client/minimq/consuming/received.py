"""Received messages and the batches that they come in."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec

from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument, MinimqError
from minimq_common.model import MESSAGE_GROUP, MessageQueue
from minimq_common.timestamps import moment

#: Bytes of a body that `repr` shows.
_SHOWN_BYTES = 60
#: Neighboring messages share about this many bytes of metadata, which stay in memory as long as any of them.
_SHARED_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """An undecoded batch from a broker; keeps nothing else of the response alive."""

    base_offset: int
    stored_ms: int
    #: Position in the CommitLog of its broker.
    position: int
    count: int
    data: bytes
    #: Due time of a delayed batch in ms since 1970; else 0.
    due_ms: int = 0
    is_compacted: bool = False


class ReceivedBatch:
    """A decoded batch of a queue, with a verified checksum.

    Indexes of messages follow their offsets, so messages that compaction has removed leave gaps.

    Messages do not keep the batch alive: each refers to a part, a copy of the metadata without bodies, which it shares
    with a few neighbors.

    Attributes:
        queue: its queue.
        base_offset: offset of its first record.
        stored_ms: when the broker stored it, in ms since 1970; in a compacted batch, its last message.
        due_ms: due time of a delayed batch in ms since 1970; else 0.
        is_compacted: its topic is compacted: empty bodies are tombstones.
        records: the columns; in a part, only `RecordBatch.metadata`.

    Raises:
        CorruptBatch: it is damaged; the text and the attributes name its place.
        InvalidArgument: it has a newer format.
    """

    __slots__ = (
        "__weakref__",
        "_position",
        "_stored_end",
        "_whole",
        "base_offset",
        "due_ms",
        "is_compacted",
        "queue",
        "records",
        "stored_ms",
    )

    def __init__(self, queue: MessageQueue, stored: EncodedRecords) -> None:
        self.queue = queue
        self.base_offset = stored.base_offset
        self.stored_ms = stored.stored_ms
        self.due_ms = stored.due_ms
        self.is_compacted = stored.is_compacted
        self._whole: weakref.ref[ReceivedBatch] | None = None
        self._stored_end, self._position = stored.base_offset + stored.count, stored.position
        try:
            self.records = RecordBatch(stored.data)
            if stored.count != len(self.records):
                raise CorruptBatch(f"a batch of {len(self.records)} records stands where {stored.count} should")
        except (CorruptBatch, InvalidArgument) as error:
            raise self._unreadable(error) from None

    @property
    def end_offset(self) -> int:
        """Offset after the last record, even if compaction has removed that record."""
        return self.base_offset + len(self.records)

    def messages(self, offset: int) -> list[ReceivedMessage]:
        """Return the messages from an offset on. Raises `CorruptBatch` if any of them is damaged."""
        first = max(offset - self.base_offset, 0)
        bodies, tags = self.bodies_and_tags(first)
        indices = self.records.numbers(first)
        columns = iter(indices), iter(bodies), iter(tags)
        messages: list[ReceivedMessage] = []
        for part in self.parts(self.records.place(first), self.records.remaining):
            messages += map(ReceivedMessage, part, *columns)
        return messages

    def parts(self, first: int, end: int) -> Iterator[Iterable[ReceivedBatch]]:
        """Yield the part of each message from place `first` to before `end`, grouped by shared parts."""
        records = self.records
        if records.size <= _SHARED_BYTES:
            yield repeat(self, end - first)
            return
        count = max(_SHARED_BYTES * records.remaining // max(records.metadata_size, 1), 1)
        for place in range(first, end, count):
            stop = min(place + count, end)
            yield repeat(self._part(place, stop), stop - place)

    def only(self, index: int) -> ReceivedBatch:
        place = self.records.place(index)
        return self._part(place, place + 1)

    @property
    def whole(self) -> ReceivedBatch | None:
        """The whole batch of a part, as long as something else keeps it alive; of a whole batch, itself."""
        return self if self._whole is None else self._whole()

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.base_offset, self.stored_ms, self._position, self._stored_end, self.due_ms, self.is_compacted)
        return _restored, (self.queue, self.records, *place)

    def _part(self, first: int, end: int) -> ReceivedBatch:
        part = ReceivedBatch.__new__(ReceivedBatch)
        part.queue, part.base_offset, part.stored_ms = self.queue, self.base_offset, self.stored_ms
        part.due_ms, part.is_compacted = self.due_ms, self.is_compacted
        part._stored_end, part._position = self._stored_end, self._position
        part.records = self.records.metadata(first, end)
        part._whole = weakref.ref(self)
        return part

    def bodies_and_tags(self, first: int) -> tuple[Sequence[bytes], Sequence[str | None]]:
        """Return bodies and tags of the messages from an index on. Raises `CorruptBatch`."""
        try:
            return self.records.bodies(first), self.records.tags(first)
        except CorruptBatch as error:
            raise self._unreadable(error) from None

    def stored_ms_of(self, index: int) -> int:
        """Return when the broker stored a message, in ms since 1970."""
        stored_ms = self.records.stored_ms(index)
        return self.stored_ms if stored_ms is None else stored_ms

    def check_texts(self) -> None:
        """Validate keys and properties of all messages, which are decoded lazily. Raises `CorruptBatch`."""
        try:
            self.records.check_texts()
        except CorruptBatch as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: MinimqError) -> MinimqError:
        told = error.with_message(
            f"queue {self.queue} at offset {self.base_offset} (log position {self._position} of its broker) cannot be "
            f"read: {error.message}; what follows is readable: seek to {self._stored_end}"
        )
        return told.at(self.queue, self.base_offset, self._stored_end) if isinstance(told, CorruptBatch) else told


def _restored(queue: MessageQueue, records: RecordBatch, *place: Any) -> ReceivedBatch:
    batch = ReceivedBatch.__new__(ReceivedBatch)
    batch.queue, batch.records, batch._whole = queue, records, None
    batch.base_offset, batch.stored_ms, batch._position, batch._stored_end, batch.due_ms, batch.is_compacted = place
    return batch


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A message read from a queue. Body and tag are decoded, everything else on access.

    Messages are equal if all of their values are. A message may be kept, copied and pickled without its whole batch.
    """

    batch: ReceivedBatch
    index: int
    body: bytes
    tag: str | None

    @property
    def topic(self) -> str:
        """Topic of the message."""
        return self.batch.queue.topic

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from."""
        return self.batch.queue

    @property
    def queue_offset(self) -> int:
        """Offset of the message in its queue."""
        return self.batch.base_offset + self.index

    @property
    def keys(self) -> Sequence[str]:
        """Keys of the message. Raises `CorruptBatch` if those of its batch are malformed."""
        self.batch.check_texts()
        return self.batch.records.keys(self.index)

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the message. Raises `CorruptBatch` if those of its batch are malformed."""
        self.batch.check_texts()
        return self.batch.records.properties(self.index)

    @property
    def message_group(self) -> str | None:
        """Message group of the message, if it was sent to a FIFO topic. Raises `CorruptBatch` as `properties`."""
        return self.properties.get(MESSAGE_GROUP) if self.group_hash else None

    @property
    def group_hash(self) -> int:
        """Hash of the message group, within which the broker keeps the order; 0 if the topic is not FIFO."""
        return self.batch.records.header.group_hash

    @property
    def is_tombstone(self) -> bool:
        """True if the message deletes its key from a compacted topic."""
        return not self.body and self.batch.is_compacted

    @property
    def message_id(self) -> str:
        """Id of the message, as in the receipt of its producer."""
        return self.batch.records.message_id(self.index)

    @property
    def born_at(self) -> datetime:
        """When the message was handed to its producer."""
        return moment(self.born_ms)

    @property
    def born_ms(self) -> int:
        """When the message was handed to its producer, in ms since 1970."""
        return self.batch.records.born_ms(self.index)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored the message."""
        return moment(self.batch.stored_ms_of(self.index))

    @property
    def due_at(self) -> datetime | None:
        """When a delayed message was due, by the clock of its broker; None if it was not delayed."""
        return moment(self.batch.due_ms) if self.batch.due_ms else None

    @property
    def delivery_count(self) -> int:
        """Number of deliveries of the message in its group, including this one."""
        return 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage) or type(self) is not type(other):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((self.queue, self.queue_offset))

    def __reduce__(self) -> tuple[Any, ...]:
        # Writes the metadata of this message alone.
        return type(self), (self.batch.only(self.index), *msgspec.structs.astuple(self)[1:])

    def __repr__(self) -> str:
        shown = repr(self.body[:_SHOWN_BYTES]) + ("..." if len(self.body) > _SHOWN_BYTES else "")
        where = f"{self.queue}, offset {self.queue_offset}"
        return f"ReceivedMessage({where}, tag {self.tag!r}, {shown}, {len(self.body)} bytes)"


def _values(message: ReceivedMessage) -> tuple[object, ...]:
    batch, index = message.batch, message.index
    return (
        (
            batch.queue,
            batch.base_offset,
            batch.stored_ms_of(index),
            batch.due_ms,
            *msgspec.structs.astuple(message)[1:],
        ),
        (batch.records.message_id(index), batch.records.born_ms(index), batch.records.header.group_hash),
        (batch.records.keys(index), batch.records.properties(index)),
    )
