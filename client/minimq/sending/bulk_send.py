"""The fast path of sending: an iterable becomes large batches, and receipts in the order of the messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

from minimq.sending.dispatcher import Dispatcher
from minimq.sending.outgoing import Completion
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.send_buffer import SendBuffer
from minimq_common.batch_builder import BatchBuilder, bytes_of_bodies
from minimq_common.errors import MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue

#: What a message takes of the buffer beside its body.
OVERHEAD_BYTES = 64
#: Messages that are taken from the iterable at a time: few enough to stay in the processor's cache.
_PART = 512
#: The first part is small, to learn how large the messages are.
_FIRST_PART = 16

#: Places of some messages among all of a call.
Slots = Sequence[int]


#: Where messages go together: a topic, and the queue when they must go to one.
Destination = tuple[str, MessageQueue | None]


class _OpenBatch:
    """Messages for one destination that will leave together."""

    def __init__(self, options: ProducerOptions) -> None:
        self.records = BatchBuilder(options.max_body_bytes, options.batch_compression)
        self.slots: list[Slots] = []

    @property
    def size(self) -> int:
        """Bytes that it takes of the buffer."""
        return self.records.size + OVERHEAD_BYTES * len(self.records)


class BulkSend:
    """One call of `send_many`. Belongs to its thread, but for the outcomes of batches.

    Args:
        dispatcher: sends the batches.
        buffer: holds room for them.
        options: of the producer.
        find: makes the route of a topic known, or raises.
        choose: returns the queue where a message must go, None for any; without it all may go anywhere.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        buffer: SendBuffer,
        options: ProducerOptions,
        find: Callable[[str], object],
        choose: Callable[[Message], MessageQueue | None] | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._buffer = buffer
        self._find = find
        self._choose = choose
        self._options = options
        self._open: dict[Destination, _OpenBatch] = {}
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
        for destination, batch in self._open.items():
            self._send(destination, batch)

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

    def outcomes(self) -> Iterator[tuple[int, SendReceipt | None, MiniMQError | None]]:
        """Yield the place of each message that was sent, with its receipt or the reason why there is none."""
        for slots, outcome in self._outcomes:
            places = chain.from_iterable(slots)
            if isinstance(outcome, BatchReceipt):
                yield from ((place, SendReceipt(outcome, index), None) for index, place in enumerate(places))
            else:
                yield from ((place, None, outcome) for place in places)

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
        if self._choose is None and len({message.topic for message in messages}) == 1:
            self._add_to((messages[0].topic, None), messages, range(start, self._count))
            return
        groups: defaultdict[Destination, list[int]] = defaultdict(list)
        for index, message in enumerate(messages):
            groups[message.topic, self._choose(message) if self._choose else None].append(index)
        for destination, group in groups.items():
            self._add_to(destination, [messages[index] for index in group], [start + index for index in group])

    def _add_to(self, destination: Destination, messages: list[Message], slots: Slots) -> None:
        batch = self._open.get(destination)
        if batch is None:
            self._find(destination[0])
            batch = self._open[destination] = _OpenBatch(self._options)
        before = batch.records.size
        batch.records.add(messages)
        batch.slots.append(slots)
        self._size += batch.records.size - before
        # Full when another part like this one would not fit.
        size = 2 * batch.records.size - before
        if size > self._options.batch_bytes or len(batch.records) + len(messages) > self._options.batch_messages:
            self._send(destination, self._open.pop(destination))

    def _send(self, destination: Destination, batch: _OpenBatch) -> None:
        size = batch.size
        self._buffer.reserve(len(batch.records), size)
        with self._changed:
            self._under_way += 1
        complete = self._completion(batch.slots)
        try:
            self._dispatcher.send_batch(*destination, batch.records, size, complete)
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
