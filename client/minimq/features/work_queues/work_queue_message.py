"""Messages of work queues, their batches, and the receipts that settle them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import msgspec

from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq.handle_text import from_text, to_text
from minimq_common.errors import CorruptBatch, InternalError, InvalidArgument, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.wire.protocol_bounds import MAX_HAVE

#: Maximum length of a handle in an error.
_SHOWN = 40


#: Offsets from the first up to but not including the second.
Span = tuple[int, int]


class _Parts(msgspec.Struct, frozen=True, array_like=True):
    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    epoch: int


class ReceiptHandle(NamedTuple):
    """Identifies one delivery of one message.

    Attributes:
        group: the consumer group.
        queue: the queue of the message.
        offset: its offset in the queue.
        epoch: the epoch of the delivery.
    """

    group: str
    queue: MessageQueue
    offset: int
    epoch: int

    def __str__(self) -> str:
        queue = self.queue
        return to_text(_Parts(self.group, queue.topic, queue.broker_name, queue.queue_id, self.offset, self.epoch))

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Parse the text of a handle. Raises `InvalidArgument`."""
        try:
            parts = from_text(text, _Parts)
        except ValueError:
            raise InvalidArgument(
                f"{text[:_SHOWN]!r} is no receipt handle, or an incomplete one: give the whole `handle` of the message"
            ) from None
        queue = MessageQueue(parts.topic, parts.broker_name, parts.queue_id)
        return cls(parts.group, queue, parts.offset, parts.epoch)


#: Maximum size of the opened batches that are kept in case more of their messages come.
_MAX_BYTES = 32 << 20


class WorkQueueMessage(ReceivedMessage, frozen=True, gc=False):
    """A message of a work queue. Settle it: acknowledge, release or reject it.

    Attributes:
        delivery_count: number of deliveries, including this one.
    """

    delivery_count: int
    epoch: int
    group: str

    @property
    def receipt(self) -> ReceiptHandle:
        """The receipt handle of this delivery of the message."""
        return ReceiptHandle(self.group, self.queue, self.queue_offset, self.epoch)

    @property
    def handle(self) -> str:
        """The receipt handle as text, with which any process of the same user and group can settle the message."""
        return str(self.receipt)


class OpenedMessages:
    """A batch whose messages may be delivered in several parts; the first one decodes it. Thread-safe."""

    def __init__(self, queue: MessageQueue, stored: EncodedRecords) -> None:
        self._queue = queue
        self._stored: EncodedRecords | None = stored
        self._columns: tuple[ReceivedBatch, Sequence[bytes], Sequence[str | None]] | None = None
        self._is_damaged = False
        #: The first offset, and the one after the last.
        self.first, self.end = stored.base_offset, stored.base_offset + stored.count
        self.size = len(stored.data)

    def is_at(self, stored: EncodedRecords) -> bool:
        place = stored.base_offset, stored.base_offset + stored.count
        return not self._is_damaged and (self.first, self.end) == place

    def _open(self) -> tuple[ReceivedBatch, Sequence[bytes], Sequence[str | None]]:
        stored, columns = self._stored, self._columns  # in this order: another thread may open it, too
        if columns is None:
            assert stored is not None  # until it is opened
            try:
                batch = ReceivedBatch(self._queue, stored)
                columns = self._columns = batch, *batch.bodies_and_tags(0)
            except CorruptBatch:
                self._is_damaged = True
                raise
            self._stored = None
        return columns

    def messages(self, first: int, end: int, delivery_count: int, epoch: int, group: str) -> list[WorkQueueMessage]:
        """Return the messages of this batch from `first` to before `end`. Raises as `ReceivedBatch`."""
        batch, bodies, tags = self._columns or self._open()
        base, records = batch.base_offset, batch.records
        part = slice(records.place(max(first - base, 0)), records.place(max(end - base, 0)))
        columns = (
            iter(records.numbers(max(first - base, 0))),
            iter(bodies[part]),
            iter(tags[part]),
            repeat(delivery_count),
            repeat(epoch),
            repeat(group),
        )
        messages: list[WorkQueueMessage] = []
        for shared in batch.parts(part.start, part.stop):
            messages += map(WorkQueueMessage, shared, *columns)
        return messages


class OpenedMessageCache:
    """Caches the latest batches of one stream by log position, so that the broker sends each batch only once."""

    def __init__(self) -> None:
        self._opened: OrderedDict[int, OpenedMessages] = OrderedDict()
        self._size = 0

    def kept(self) -> dict[int, OpenedMessages]:
        return dict(self._opened)

    def get(self, queue: MessageQueue, stored: EncodedRecords, kept: Mapping[int, OpenedMessages]) -> OpenedMessages:
        """Return the batch, from `kept`, the cache, or its bytes."""
        opened = kept.get(stored.position) or self._opened.get(stored.position)
        if opened is not None and not opened.is_at(stored):
            # Compaction has replaced the batch at this position, or this copy of it is damaged.
            opened = None
            if gone := self._opened.pop(stored.position, None):
                self._size -= gone.size
            if not stored.data:
                raise Unavailable(f"a batch of queue {queue} was replaced: its messages are taken again")
        if opened is None:
            if not stored.data:
                raise InternalError(f"a batch of queue {queue} came without its bytes, and was not there")
            opened = self._opened[stored.position] = OpenedMessages(queue, stored)
            self._size += opened.size
            while len(self._opened) > 1 and (len(self._opened) > MAX_HAVE or self._size > _MAX_BYTES):
                self._size -= self._opened.popitem(last=False)[1].size
        elif stored.position in self._opened:
            self._opened.move_to_end(stored.position)
        return opened


def gaps(first: int, end: int, messages: Sequence[WorkQueueMessage]) -> list[tuple[int, int]]:
    """Return the spans between `first` and `end` whose messages compaction has removed."""
    offsets = [first - 1, *[message.queue_offset for message in messages], end]
    return [(before + 1, after) for before, after in pairwise(offsets) if before + 1 < after]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return sorted spans, merged where they touch or overlap."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


#: A received message, or its handle as text, or an iterable of those.
Receivables = WorkQueueMessage | str | Iterable[WorkQueueMessage | str]

#: Spans of offsets by queue and epoch.
Receipts = dict[tuple[MessageQueue, int], list[Span]]


def receipts_of(what: Receivables, group: str) -> Receipts:
    """Return the receipts of messages and handles. Raises `InvalidArgument` for any other value or another group."""
    found: Receipts = {}
    for receipt, count in _runs(each_of(what)):
        if receipt.group != group:
            raise InvalidArgument(
                f"a handle of group {receipt.group!r} cannot be settled by a consumer of group {group!r}"
            )
        found.setdefault((receipt.queue, receipt.epoch), []).append((receipt.offset, receipt.offset + count))
    return found


def each_of(what: object) -> Iterable[Any]:
    """Return an iterable as it is, and any other value, or text, in a list."""
    return what if isinstance(what, Iterable) and not isinstance(what, str | bytes) else [what]


def _runs(items: Iterable[object]) -> Iterator[tuple[ReceiptHandle, int]]:
    first: WorkQueueMessage | None = None
    following = 0
    for item in items:
        if isinstance(item, WorkQueueMessage):
            if first is not None:
                if item.index == following and item.batch is first.batch and item.epoch == first.epoch:
                    following += 1
                    continue
                yield first.receipt, following - first.index
            first, following = item, item.index + 1
        elif isinstance(item, str):
            yield ReceiptHandle.parse(item), 1
        else:
            raise InvalidArgument(
                f"{type(item).__name__} cannot be settled: give a message that was received, or its handle"
            )
    if first is not None:
        yield first.receipt, following - first.index
