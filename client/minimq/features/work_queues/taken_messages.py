"""The messages of a take: popped on the event loop of the connection, decoded where the user calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minimq.features.work_queues.pop_stream import PopStream
from minimq.features.work_queues.settler import DONE, Settlement
from minimq.features.work_queues.work_queue_message import OpenedMessages, Receipts, WorkQueueMessage, gaps
from minimq_common.errors import CorruptBatch
from minimq_common.model import MessageQueue
from minimq_common.wire.protocol_bounds import SET_ASIDE_MS
from minimq_proto.v1 import broker_pb2, work_queues_pb2

_SET_ASIDE = Settlement(broker_pb2.POP_OUTCOME_FREE, SET_ASIDE_MS)


@dataclass(slots=True)
class Unwanted:
    """Messages of a take that its caller does not get."""

    settles: list[tuple[Receipts, Settlement]] = field(default_factory=list)
    #: Number of messages that did not match the filter.
    filtered: int = 0
    #: Messages without a delivery left.
    used_up: list[WorkQueueMessage] = field(default_factory=list)
    #: One for each damaged batch.
    errors: list[CorruptBatch] = field(default_factory=list)


class TakeResult:
    """The answer to a take: messages of one queue, not decoded yet."""

    __slots__ = ("_answer", "_batches", "_stream", "count", "has_more", "is_first_delivery", "queue", "was_lost_alone")

    def __init__(
        self,
        stream: PopStream,
        queue: MessageQueue,
        answer: work_queues_pb2.PoppedMessages,
        batches: Sequence[OpenedMessages],
    ) -> None:
        self._stream, self._answer, self._batches = stream, answer, batches
        self.queue = queue
        self.count = sum([run.count for run in answer.runs])
        #: The broker has more messages that may be taken now.
        self.has_more = answer.has_more
        #: The messages were not delivered before: redelivered ones come first.
        self.is_first_delivery = answer.runs[0].delivery_count == 1
        #: It is a message whose last consumer died with it, and had no others.
        self.was_lost_alone = answer.runs[0].lost == 1

    def give_back(self) -> None:
        """Return the messages to the broker, without waiting. On the event loop."""
        self._stream.give_back(self.queue.topic, self._answer)

    def open(self, group: str) -> tuple[list[WorkQueueMessage], Unwanted]:
        """Decode the messages; return also those that compaction has removed, or that are damaged."""
        epoch, runs = self._answer.epoch, self._answer.runs
        messages: list[WorkQueueMessage] = []
        unwanted = Unwanted()
        for batch in self._batches:
            spans = [
                (max(run.first, batch.first), min(run.first + run.count, batch.end), run.delivery_count)
                for run in runs
                if run.first < batch.end and run.first + run.count > batch.first
            ]
            try:
                for first, end, delivery_count in spans:
                    here = batch.messages(first, end, delivery_count, epoch, group)
                    messages += here
                    if len(here) < end - first:
                        unwanted.settles.append(({(self.queue, epoch): gaps(first, end, here)}, DONE))
            except CorruptBatch as error:
                unwanted.settles.append(({(self.queue, epoch): [(first, end) for first, end, _ in spans]}, _SET_ASIDE))
                reason = error.message.partition("; what follows")[0]
                outcome = f"set aside for {SET_ASIDE_MS // 60_000} minutes, and the group goes on with others"
                unwanted.errors.append(error.with_message(f"{reason}; its messages are {outcome}"))
        return messages, unwanted


class TakenMessages(list[WorkQueueMessage]):
    """The messages of one `receive`, on their way to its caller."""

    #: What the caller has to open.
    taken: TakeResult | None = None
    #: What the event loop has to settle before the caller may have the messages.
    unwanted: Unwanted | None = None
    #: The caller was interrupted: return messages that still arrive to the broker. Belongs to the event loop.
    is_abandoned = False
