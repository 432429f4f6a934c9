"""Messages of work queues, and the batches in which they come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat

from minimq.receiving.receipt_handle import ReceiptHandle
from minimq.receiving.received import EncodedBatch, ReceivedBatch, ReceivedMessage
from minimq_common.errors import InternalError, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.protocol_bounds import MAX_HAVE

#: Bytes of the batches that are kept because further messages of them may come.
_MOST_BYTES = 32 << 20


class PoppedMessage(ReceivedMessage, frozen=True, gc=False):
    """A message of a work queue. Settle it: acknowledge, release or reject it.

    Attributes:
        tries: number of its consumption attempts, including this one.
    """

    tries: int
    epoch: int
    group: str

    @property
    def receipt(self) -> ReceiptHandle:
        """The receipt handle of this delivery of the message."""
        return ReceiptHandle(self.group, self.queue, self.queue_offset, self.epoch)

    @property
    def handle(self) -> str:
        """The receipt handle as text, by which any process of the group can settle the message."""
        return str(self.receipt)

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries of the message."""
        return self.tries - 1


class OpenedBatch:
    """An open batch, whose messages may be delivered in several parts."""

    def __init__(self, batch: ReceivedBatch, size: int) -> None:
        self.batch = batch
        self.size = size
        self._bodies, self._tags = batch.bodies_and_tags(0)

    def is_at(self, stored: EncodedBatch) -> bool:
        """Tell whether it holds the offsets of a batch as it came."""
        return (self.batch.base_offset, len(self.batch.records)) == (stored.base_offset, stored.count)

    def messages(self, first: int, end: int, tries: int, epoch: int, group: str) -> list[PoppedMessage]:
        """Return the messages from `first` to before `end`, as far as the batch has them."""
        base, records = self.batch.base_offset, self.batch.records
        part = slice(records.place(max(first - base, 0)), records.place(max(end - base, 0)))
        columns = (
            iter(records.numbers(max(first - base, 0))),
            iter(self._bodies[part]),
            iter(self._tags[part]),
            repeat(tries),
            repeat(epoch),
            repeat(group),
        )
        messages: list[PoppedMessage] = []
        for shared in self.batch.parts(part.start, part.stop):
            messages += map(PoppedMessage, shared, *columns)
        return messages


class OpenedBatches:
    """The latest batches of one stream, by log position, so that each comes once however many parts are taken of it."""

    def __init__(self) -> None:
        self._opened: OrderedDict[int, OpenedBatch] = OrderedDict()
        self._size = 0

    def kept(self) -> dict[int, OpenedBatch]:
        """Return the batches that are kept, by log position."""
        return dict(self._opened)

    def get(self, queue: MessageQueue, stored: EncodedBatch, kept: Mapping[int, OpenedBatch]) -> OpenedBatch:
        """Return a batch, opened. Raises as `ReceivedBatch`."""
        opened = kept.get(stored.position) or self._opened.get(stored.position)
        if opened is not None and not opened.is_at(stored):
            # Compaction has put another batch there.
            opened = None
            if gone := self._opened.pop(stored.position, None):
                self._size -= gone.size
            if not stored.data:
                raise Unavailable(f"a batch of queue {queue} was compacted meanwhile: its messages are taken again")
        if opened is None:
            if not stored.data:
                raise InternalError(f"a batch of queue {queue} came without its bytes, and was not there")
            opened = OpenedBatch(ReceivedBatch(queue, stored), len(stored.data))
            self._opened[stored.position] = opened
            self._size += opened.size
            while len(self._opened) > 1 and (len(self._opened) > MAX_HAVE or self._size > _MOST_BYTES):
                self._size -= self._opened.popitem(last=False)[1].size
        elif stored.position in self._opened:
            self._opened.move_to_end(stored.position)
        return opened


def gaps(first: int, end: int, messages: Sequence[PoppedMessage]) -> list[tuple[int, int]]:
    """Return the spans of offsets from `first` to before `end` that compaction has left without a message."""
    offsets = [first - 1, *[message.queue_offset for message in messages], end]
    return [(before + 1, after) for before, after in pairwise(offsets) if before + 1 < after]
