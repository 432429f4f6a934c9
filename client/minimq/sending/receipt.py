"""Receipts for messages that a broker has stored."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

import msgspec

from minimq.sending.hold import Held
from minimq_common.batch import records
from minimq_common.model import MessageQueue
from minimq_common.timestamps import moment


class SendStatus(Enum):
    """The guarantee of a broker that comes with a receipt."""

    #: The message is on disk.
    SEND_OK = 0
    #: The message is on disk since an earlier attempt whose acknowledgement was lost; it was not stored twice.
    ALREADY_STORED = 1


#: By number.
STATUSES = {status.value: status for status in SendStatus}


class BatchReceipt(msgspec.Struct, frozen=True):
    """Where a whole batch was stored.

    Attributes:
        queue: the queue that holds it.
        base_offset: offset of its first message; the others follow without a gap. -1 until the batch is in its queue.
        stored_ms: when the broker stored it, in ms since 1970.
        count: number of messages.
        producer_id: id of the producer; with `sequence`, it identifies the batch.
        sequence: number of the batch at its producer.
        status: the guarantee of the broker.
        held: until when a broker holds it back; None if it is in its queue already.
    """

    queue: MessageQueue
    base_offset: int
    stored_ms: int
    count: int
    producer_id: int
    sequence: int
    status: SendStatus
    held: Held | None = None


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored."""

    batch: BatchReceipt
    index: int

    @property
    def status(self) -> SendStatus:
        """The guarantee of the broker."""
        return self.batch.status

    @property
    def message_id(self) -> str:
        """Id of the message, the same that consumers see."""
        return records.message_id(self.batch.producer_id, self.batch.sequence, self.index)

    @property
    def queue(self) -> MessageQueue:
        """The queue that holds the message."""
        return self.batch.queue

    @property
    def queue_offset(self) -> int:
        """Offset of the message in its queue; -1 for a delayed message, which gets one when it is delivered."""
        base_offset = self.batch.base_offset
        return base_offset if base_offset < 0 else base_offset + self.index

    @property
    def stored_at(self) -> datetime:
        """When the broker stored the message."""
        return moment(self.batch.stored_ms)

    @property
    def due_at(self) -> datetime | None:
        """When a delayed message is due, by the clock of its broker; None if it was due when the broker stored it."""
        return moment(self.batch.held.due_ms) if self.batch.held is not None else None

    @property
    def recall_handle(self) -> str | None:
        """The text with which any process can recall the message; None unless it was sent with `recallable=True`."""
        return self.batch.held.handle if self.batch.held is not None else None

    def __repr__(self) -> str:
        at = self.due_at
        where = f"offset {self.queue_offset}" if at is None else f"due {at.isoformat(timespec='milliseconds')}"
        return f"SendReceipt({self.message_id}, {self.queue}, {where})"
