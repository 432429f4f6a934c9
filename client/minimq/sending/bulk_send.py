"""The implementation of `send_many`: large batches from an iterable, receipts in the order of the messages."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, repeat, starmap
from queue import Empty, SimpleQueue
from typing import Any

from minimq.features.delayed.due_times import DueBucket, DueTime, due_time
from minimq.sending.chosen_queues import takes_only_tombstones
from minimq.sending.interceptor import Interceptors, reason_of
from minimq.sending.pending_batch import BufferShare, Completion, PendingRecords, UserCall
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.record_accumulator import MIN_SPLIT_MESSAGES
from minimq.sending.sender import Sender
from minimq_common.batch.builder import MESSAGE_BYTES, BatchBuilder, lengths_of_bodies
from minimq_common.errors import MinimqError, SendFailed
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_topic

#: Messages read from the iterable at a time: few enough to stay in the processor's cache.
_PART = 512
#: The first part is small: it shows how large the messages are.
_FIRST_PART = 16
#: Limit because an open batch costs more memory than the buffer counts for its messages.
_MAX_OPEN_BATCHES = 1_000

#: Indexes of messages among all messages of a call.
Slots = Sequence[int]


#: Topic, fixed queue, message group and due bucket that the messages of a batch share.
Destination = tuple[str, MessageQueue | None, str | None, DueBucket | None]


class _BulkBuffer:
    """A batch that is being filled, and its share of the buffer."""

    def __init__(self, destination: Destination, records: BatchBuilder, due: DueTime | None) -> None:
        self.destination = destination
        self.records = records
        self.due = due
        self.slots: list[Slots] = []
        self.share = BufferShare()
        #: The batch that is sent, and its number in this call.
        self.sent: PendingRecords | None = None
        self.number = 0

    def split(self, count: int) -> list[_BulkBuffer]:
        """Divide the messages, in order, into `count` batches of about the same size."""
        portions = []
        begin = 0
        epochs = chain.from_iterable(starmap(repeat, self.share.counts.items()))
        for records in self.records.split(count):
            portion = _BulkBuffer(self.destination, records, self.due)
            at, end = 0, begin + len(records)
            for slots in self.slots:
                portion.slots.append(slots[max(begin - at, 0) : max(end - at, 0)])
                at += len(slots)
            begin = end
            for epoch in islice(epochs, len(records)):
                portion.share.counts[epoch] += 1
            portion.share.size = records.memory
            portions.append(portion)
        return portions


class BulkSend:
    """One call of `send_many`. Runs on the thread of the caller; only outcomes of batches arrive on other threads."""

    def __init__(
        self,
        sender: Sender,
        options: ProducerOptions,
        find: Callable[[str], TopicRoute],
        choose: Callable[[Message], MessageQueue | None],
        interceptors: Interceptors,
        *,
        is_bound: bool,
        may_move: bool,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._sender = sender
        self._buffer = sender.buffer
        self._options = options
        self._find = find
        self._choose = choose
        self._is_bound = is_bound
        self._may_move = may_move
        self._cancelled = cancelled or threading.Event()
        self._open: dict[Destination, _BulkBuffer] = {}
        #: Batches to send now.
        self._leaving: deque[_BulkBuffer] = deque()
        #: Destinations that have had a full batch.
        self._filled: set[Destination] = set()
        self._count = 0
        self._batches = 0
        self._interceptors = interceptors
        #: Messages, by index, whose outcome the interceptors have not received yet.
        self._watched: dict[int, Message] = {}
        #: The error that ended the call early.
        self._failure: MinimqError | None = None
        #: Numbers of batches without an outcome. `_ends` reports outcomes; it is a queue, as Ctrl-C may leave a
        #: lock taken for which the event loop would wait.
        self._under_way: set[int] = set()
        self._ends: SimpleQueue[int] = SimpleQueue()
        self._outcomes: list[tuple[list[Slots], BatchReceipt | MinimqError]] = []

    def _intercepted(self, messages: Iterable[Message]) -> Iterator[Message]:
        for place, message in enumerate(messages):
            made = self._watched[place] = self._interceptors.before_send(message)
            yield made

    def send(self, messages: Iterator[Message]) -> None:
        """Send all messages. Raises as `Producer.send_many`."""
        try:
            self._send_all(self._intercepted(messages) if self._interceptors else messages)
        except BaseException as error:
            for batch in (*self._open.values(), *self._leaving):
                if batch.sent is None:
                    self._buffer.release(batch.share)
                elif self._sender.take_back(batch.sent):
                    self._ends.put(batch.number)
            self._open.clear()
            self._leaving.clear()
            self._failure = reason_of(error)
            raise

    def _send_all(self, messages: Iterator[Message]) -> None:
        wanted = _FIRST_PART
        while not self._cancelled.is_set() and (part := list(islice(messages, wanted))):
            lengths, are_alike = _lengths(part)
            size = sum(lengths)
            if size > 2 * self._options.batch_bytes:  # messages are suddenly much larger: add them one by one
                for message, length in zip(part, lengths, strict=True):
                    self._add([message], [length], are_alike=are_alike)
            else:
                self._add(part, lengths, are_alike=are_alike)
            wanted = max(
                1, min(_PART, self._options.batch_bytes * len(part) // max(size, 1), self._options.batch_messages)
            )
        for batch in self._open.values():
            portions, none = self._spread(batch), BufferShare()
            self._leaving += portions
            if portions != [batch]:
                batch.share = none  # right after the move, without a call in between where Ctrl-C could strike
        self._open.clear()
        self._send_leaving()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the outcomes of all sent batches; if `send` failed, messages without one get its error."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with suppress(Empty):
            while self._under_way:
                left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                self._under_way.discard(self._ends.get(timeout=left_s))
        if self._failure is not None:
            self._tell([*self._watched], None, self._failure)

    def receipts(self) -> list[SendReceipt]:
        """Return the receipts of all messages, in order. Raises `SendFailed` if a batch failed."""
        receipts: list[Any] = [None] * self._count
        failures: list[MinimqError] = []
        for slots, outcome in self._outcomes:
            if isinstance(outcome, BatchReceipt):
                _fill(receipts, slots, outcome)
            else:
                failures.append(outcome)
        if failures:
            raise self._failed(failures)
        return receipts

    def _add(self, messages: list[Message], lengths: list[int], *, are_alike: bool) -> None:
        start = self._count
        self._count += len(messages)
        monotonic_s, time_s = time.monotonic(), time.time()
        if are_alike and not self._is_bound and not self._find(messages[0].topic).key_queues:
            due = due_time(messages[0], monotonic_s, time_s)
            shared = messages[0].topic, None, None, due and due.bucket
            self._add_to(shared, messages, range(start, self._count), lengths, due)
            return
        groups: defaultdict[Destination, list[int]] = defaultdict(list)
        dues: defaultdict[Destination, list[DueTime]] = defaultdict(list)
        for index, message in enumerate(messages):
            if not isinstance(message.topic, str):  # could be unhashable
                check_topic(message.topic)
            is_chosen = self._is_bound or message.message_group is not None or self._find(message.topic).key_queues
            queue = self._choose(message) if is_chosen else None
            due = due_time(message, monotonic_s, time_s)
            destination = message.topic, queue, message.message_group, due and due.bucket
            groups[destination].append(index)
            if due is not None:
                dues[destination].append(due)
        for destination, group in groups.items():
            chosen = [messages[index] for index in group]
            due = max(dues[destination]) if destination in dues else None
            slots = [start + index for index in group]
            self._add_to(destination, chosen, slots, [lengths[index] for index in group], due)
        if len(self._open) > _MAX_OPEN_BATCHES:
            self._send_open()

    def _add_to(
        self, destination: Destination, messages: list[Message], slots: Slots, lengths: list[int], due: DueTime | None
    ) -> None:
        size = sum(lengths) + MESSAGE_BYTES * len(messages)
        batch = self._open.get(destination) or self._begin(destination, messages[0], due)
        if not self._buffer.try_reserve(batch.share, len(messages), size):
            self._send_open()  # open batches hold room that only sending frees
            batch = self._begin(destination, messages[0], due)
            self._buffer.reserve(batch.share, len(messages), size)
        if due is not None and batch.due is not None:
            batch.due = max(batch.due, due)
        before, held = batch.records.size, batch.records.memory
        batch.records.add(messages, lengths)
        batch.slots.append(slots)
        grown = batch.records.size - before
        beside_bodies = batch.records.memory - held - size  # keys and properties
        self._buffer.grow(batch.share, beside_bodies)
        # A batch is full if another part of this size would not fit.
        full = batch.records.size + grown > self._options.batch_bytes or (due is not None and due.recallable)
        if full or len(batch.records) + len(messages) > self._options.batch_messages:
            self._filled.add(destination)
            self._leaving.append(batch)
            del self._open[destination]
            self._send_leaving()

    def _begin(self, destination: Destination, first: Message, due: DueTime | None) -> _BulkBuffer:
        topic, _, message_group, _ = destination
        records = BatchBuilder(
            self._options.max_body_bytes,
            self._options.batch_compression,
            message_group,
            is_compacted=takes_only_tombstones(self._find(topic)),
        )
        batch = self._open[destination] = _BulkBuffer(destination, records, due)
        return batch

    def _send_open(self) -> None:
        self._leaving.extend(batch for batch in self._open.values() if batch.slots)
        self._open.clear()
        self._send_leaving()

    def _spread(self, batch: _BulkBuffer) -> list[_BulkBuffer]:
        topic, queue, _, _ = batch.destination
        portions = math.ceil(len(batch.records) / MIN_SPLIT_MESSAGES)
        if portions > 1 and queue is None and batch.destination not in self._filled:
            portions = min(portions, self._find(topic).write_queue_count())
        else:
            portions = 1
        return batch.split(portions) if portions > 1 else [batch]

    def _send_leaving(self) -> None:
        while self._leaving:  # a batch is removed only after it was sent, so that `send` finds it after an error
            batch = self._leaving[0]
            batch.number = self._batches = self._batches + 1
            topic, queue, message_group, _ = batch.destination
            sent = PendingRecords(
                topic,
                queue,
                count=len(batch.records),
                completion=self._completion(batch.number, batch.slots),
                may_move=self._may_move and queue is not None,
                message_group=message_group,
                due=batch.due,
                share=batch.share,
            )
            batch.sent = sent
            self._under_way.add(batch.number)
            self._sender.send_batch(sent, batch.records)
            self._leaving.popleft()

    def _completion(self, number: int, slots: list[Slots]) -> Completion:
        def complete(receipt: BatchReceipt | None, error: MinimqError | None) -> UserCall | None:
            outcome = receipt or error
            if outcome is not None:
                self._outcomes.append((slots, outcome))
                if self._interceptors:
                    return partial(self._notify_and_end, number, slots, receipt, error)
            self._ends.put(number)
            return None

        return complete

    def _notify_and_end(
        self, number: int, slots: list[Slots], receipt: BatchReceipt | None, error: MinimqError | None
    ) -> None:
        try:
            self._tell(chain.from_iterable(slots), receipt, error)
        finally:
            self._ends.put(number)

    def _tell(self, places: Iterable[int], receipt: BatchReceipt | None, error: MinimqError | None) -> None:
        for index, place in enumerate(places if self._interceptors else ()):
            message = self._watched.pop(place, None)
            if message is not None:
                self._interceptors.after_send(message, SendReceipt(receipt, index) if receipt else None, error)

    def _failed(self, failures: list[MinimqError]) -> SendFailed:
        first = failures[0]
        stored = sum(outcome.count for _, outcome in self._outcomes if isinstance(outcome, BatchReceipt))
        in_doubt = sum(failure.may_be_stored for failure in failures if isinstance(failure, SendFailed))
        return SendFailed(
            f"{len(failures)} of {len(self._outcomes)} batches failed: of {self._count} messages, {stored} are stored, "
            f"{in_doubt} may be stored; the first failure: {first.message.splitlines()[0]}",
            first.attempts if isinstance(first, SendFailed) else (),
            stored=stored,
            may_be_stored=in_doubt,
            not_stored=self._count - stored - in_doubt,
        )


def _fill(receipts: list[Any], slots: list[Slots], receipt: BatchReceipt) -> None:
    index = 0
    for part in slots:
        made = map(SendReceipt, repeat(receipt), range(index, index + len(part)))
        if isinstance(part, range):
            receipts[part.start : part.stop] = made
        else:
            for slot, single in zip(part, made, strict=True):
                receipts[slot] = single
        index += len(part)


def _lengths(messages: Sequence[Message]) -> tuple[list[int], bool]:
    """Return the length of each body, and whether all may share a batch. Raises as `lengths_of_bodies`."""
    first = messages[0]
    with suppress(TypeError, AttributeError):  # an item is not a message
        topic, delay, moment = first.topic, first.deliver_after_s, first.deliver_at
        alike = [  # the hot loop of `send_many`: one pass, due times compared by identity
            len(message.body)
            for message in messages
            if message.topic == topic
            and message.message_group is None
            and message.deliver_after_s is delay
            and message.deliver_at is moment
            and not message.recallable
        ]
        if len(alike) == len(messages) and isinstance(topic, str):
            return alike, True
    return lengths_of_bodies(messages), False
