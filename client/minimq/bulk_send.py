"""The fast path of sending: an iterable becomes large batches, and receipts in the order of the messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from minimq.dispatcher import Dispatcher
from minimq.options import ProducerOptions
from minimq.outgoing import Completion
from minimq.receipt import BatchReceipt, SendReceipt
from minimq.routing import RouteCache
from minimq_common.batch_builder import BatchBuilder, bytes_of_bodies
from minimq_common.errors import MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_topic

#: What a message takes of the buffer beside its body.
OVERHEAD_BYTES = 64
#: Messages that are taken from the iterable at a time: few enough to stay in the processor's cache.
_PART = 512
#: The first part is small, to learn how large the messages are.
_FIRST_PART = 16

#: Places of some messages among all of a call.
Slots = Sequence[int]


class _OpenBatch:
    """Messages of one topic that will leave together."""

    def __init__(self, topic: str, max_body_bytes: int) -> None:
        self.topic = topic
        self.records = BatchBuilder(max_body_bytes)
        self.slots: list[Slots] = []

    @property
    def size(self) -> int:
        """Bytes that it takes of the buffer."""
        return self.records.size + OVERHEAD_BYTES * len(self.records)


class BulkSend:
    """One call of `send_many`. Belongs to its thread, but for the outcomes of batches.

    Args:
        dispatcher: sends the batches.
        routes: where the queues are.
        queue: where all messages must go, or None.
        options: of the producer.
    """

    def __init__(
        self, dispatcher: Dispatcher, routes: RouteCache, queue: MessageQueue | None, options: ProducerOptions
    ) -> None:
        self._dispatcher = dispatcher
        self._routes = routes
        self._queue = queue
        self._options = options
        self._open: dict[str, _OpenBatch] = {}
        self._count = 0
        self._size = 0
        #: Protects the two fields below.
        self._changed = threading.Condition()
        self._under_way = 0
        self._outcomes: list[tuple[list[Slots], BatchReceipt | MiniMQError]] = []

    def send(self, messages: Iterator[Message]) -> None:
        """Send all messages. Raises where it stops, as `Producer.send_many` tells."""
        wanted = _FIRST_PART
        while part := list(islice(messages, wanted)):
            before = self._size
            for piece in self._pieces(part, bytes_of_bodies(part)):
                self._add(piece)
            average = max((self._size - before) // len(part), 1)
            wanted = max(1, min(_PART, self._options.batch_bytes // average, self._options.batch_messages))
        for batch in self._open.values():
            self._send(batch)

    def wait(self) -> None:
        """Wait for the outcome of every batch that was sent."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)

    def receipts(self) -> list[SendReceipt]:
        """Return the receipts of all messages, in their order. Raises `SendFailed` when one has none."""
        receipts: list[Any] = [None] * self._count
        failures: list[MiniMQError] = []
        for slots, outcome in self._outcomes:
            if isinstance(outcome, BatchReceipt):
                _fill(receipts, slots, outcome)
            else:
                failures.append(outcome)
        if failures:
            raise self._failed(failures)
        return receipts

    def _pieces(self, part: list[Message], size: int) -> Iterator[list[Message]]:
        """Cut a part in which the messages are suddenly much larger than before."""
        if size <= 2 * self._options.batch_bytes:
            yield part
            return
        for message in part:
            yield [message]

    def _add(self, messages: list[Message]) -> None:
        start = self._count
        self._count += len(messages)
        topics = {message.topic for message in messages}
        if len(topics) == 1:
            self._add_to(messages[0].topic, messages, range(start, self._count))
            return
        for topic in topics:
            slots = [slot for slot, message in enumerate(messages, start) if message.topic == topic]
            self._add_to(topic, [messages[slot - start] for slot in slots], slots)

    def _add_to(self, topic: str, messages: list[Message], slots: Slots) -> None:
        batch = self._open.get(topic)
        if batch is None:
            if self._routes.known(topic) is None:
                self._routes.route(check_topic(topic))
            batch = self._open[topic] = _OpenBatch(topic, self._options.max_body_bytes)
        before = batch.records.size
        batch.records.add(messages)
        batch.slots.append(slots)
        self._size += batch.records.size - before
        # Full when another part like this one would not fit.
        size = 2 * batch.records.size - before
        if size > self._options.batch_bytes or len(batch.records) + len(messages) > self._options.batch_messages:
            self._send(self._open.pop(topic))

    def _send(self, batch: _OpenBatch) -> None:
        size = batch.size
        self._dispatcher.reserve(len(batch.records), size)
        with self._changed:
            self._under_way += 1
        complete = self._completion(batch.slots)
        try:
            self._dispatcher.send_batch(batch.topic, self._queue, batch.records, size, complete)
        except Exception:  # it was not handed in
            complete(None, None)
            raise

    def _completion(self, slots: list[Slots]) -> Completion:
        def complete(receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
            outcome = receipt or error
            with self._changed:
                self._under_way -= 1
                if outcome is not None:
                    self._outcomes.append((slots, outcome))
                self._changed.notify_all()

        return complete

    def _failed(self, failures: list[MiniMQError]) -> SendFailed:
        first = failures[0]
        stored = sum(outcome.count for _, outcome in self._outcomes if isinstance(outcome, BatchReceipt))
        return SendFailed(
            f"{len(failures)} of {len(self._outcomes)} batches failed, {stored} of {self._count} messages were "
            f"acknowledged; the first failure: {first.message.splitlines()[0]}",
            first.tries if isinstance(first, SendFailed) else (),
        )


def _fill(receipts: list[Any], slots: list[Slots], receipt: BatchReceipt) -> None:
    """Put the receipts of the messages of one batch in their places."""
    index = 0
    for part in slots:
        made = map(SendReceipt, repeat(receipt), range(index, index + len(part)))
        if isinstance(part, range):
            receipts[part.start : part.stop] = made
        else:
            for slot, single in zip(part, made, strict=True):
                receipts[slot] = single
        index += len(part)
